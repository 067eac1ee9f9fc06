//! From message to message, without their data.
//!
//! The end of a message and the headers of the next one are a spot of a file, which may be fetched before the messages
//! before it are known: where a [`sidecar`](super::sidecar) says that a message begins, and where one would begin if
//! lengths went on as they did. What counts is the length in each message, so a wrong guess costs the spot.
//!
//! # Source
//! WMO Manual on Codes, volume I.2: FM 92 GRIB, sections 0 and 8 of edition 2; annex II to the Technical Regulations,
//! edition 1. Messages of edition 1 above 8 MiB: ECMWF, GRIBEX.

use super::octets::Octets;
use crate::formats::view::{Fault, PAGE, SPOTS_MAX, View};
use crate::source::store::METADATA_BYTES_MAX;
use std::borrow::Cow;

/// Upper bound on the bytes between two messages.
const BETWEEN_MAX: u64 = 1 << 20;

/// Bytes before the first message in a file that is recognised.
const BEFORE_MAX: usize = 1024;

/// Bytes that are read together.
const BLOCK: u64 = 1024;

/// Upper bound on the bytes of headers that are read together.
const SPOT_MAX: u64 = 16 << 10;

/// Least number of guesses from a sidecar.
const HINTED: usize = 16;

/// Upper bound on the messages after which lengths are found to repeat.
const PERIOD_MAX: usize = 64;

/// Octets of `7777`.
const CLOSE: u64 = 4;

/// Octets of an indicator section of edition 2.
const HEAD: u64 = 16;

/// The bit of a length that marks a large message of edition 1.
const LARGE: u64 = 0x80_0000;

/// A message of a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Message {
    pub(super) start: u64,
    /// The end of its last section, at which `7777` begins.
    pub(super) end: u64,
    pub(super) edition: u8,
    /// Of edition 2.
    pub(super) discipline: u8,
}

/// True if a file of `len` bytes begins with a message, or with a few other bytes before one.
pub(super) fn is_first(head: &[u8], len: u64) -> bool {
    if head.starts_with(b"GRIB") {
        return head.get(7).is_some_and(|edition| *edition <= 3);
    }
    let head = &head[..head.len().min(BEFORE_MAX)];
    let at = head.windows(HEAD as usize).position(|h| length(h).is_some());
    at.is_some_and(|at| length(&head[at..]).is_some_and(|n| n <= len - at as u64))
}

/// The edition and the length of a message that begins with `head`; `None` if it is no message.
fn length(head: &[u8]) -> Option<u64> {
    if !head.starts_with(b"GRIB") {
        return None;
    }
    match *head.get(7)? {
        1 => Octets(head).uint(5, 3).ok(),
        2 => Octets(head).uint(9, 8).ok(),
        _ => None,
    }
}

/// The messages of a file in their order.
pub(super) fn messages(file: &View<'_>) -> Result<Vec<Message>, Fault> {
    let mut walk: Walk = file.resume().unwrap_or_default();
    let done = walk.go(file);
    if let Err(Fault::Missing(_) | Fault::MissingAlone(_)) = done {
        walk.look_ahead(file);
        file.remember(walk);
        return done.map(|()| Vec::new());
    }
    done.map(|()| walk.list)
}

/// The messages up to a place.
#[derive(Default)]
struct Walk {
    list: Vec<Message>,
    at: u64,
    /// Messages in a row that begin where the sidecar says so.
    hits: usize,
    /// Bytes of the headers of a message.
    spot: u64,
}

impl Walk {
    fn go(&mut self, file: &View<'_>) -> Result<(), Fault> {
        while self.at < file.len() {
            let at = self.at;
            let is_alone = self.is_hinted(file)
                || self.list.last().is_some_and(|m| is_long(file, m.end - m.start));
            match read(file, at, is_alone.then_some(self.spot.max(BLOCK)))? {
                Some(message) => {
                    let is_hit = file.starts().binary_search(&at).is_ok();
                    self.hits = if is_hit { self.hits + 1 } else { 0 };
                    self.list.push(message);
                    self.at = message.end + CLOSE;
                    if self.spot == 0 {
                        self.spot = spot(file, message).unwrap_or(BLOCK);
                    }
                }
                None => match find(file, at, is_alone)? {
                    Some(next) => self.at = next,
                    None if file.len() - at > BETWEEN_MAX => {
                        let reason = format!("no message begins in {BETWEEN_MAX} bytes");
                        return Err(Fault::bad(at, reason));
                    }
                    None => break,
                },
            }
        }
        Ok(())
    }

    /// True if the sidecar has the last message or the next one.
    fn is_hinted(&self, file: &View<'_>) -> bool {
        self.hits > 0 || file.starts().binary_search(&self.at).is_ok()
    }

    /// Asks for the spots where messages may begin: the more, the more often that was right.
    fn look_ahead(&self, file: &View<'_>) {
        let wish = |start: u64| {
            let spot = self.spot.max(BLOCK);
            file.will_read_alone(start.saturating_sub(CLOSE), spot + CLOSE);
        };
        if self.is_hinted(file) {
            let starts = file.starts();
            let rest = &starts[starts.partition_point(|start| *start < self.at)..];
            let n = self.hits.saturating_mul(4).clamp(HINTED, SPOTS_MAX - 1);
            rest.iter().take(n).for_each(|start| wish(*start));
            if rest.len() < n {
                wish(file.len());
            }
            return;
        }
        let (Some(last), Some((period, run))) = (self.list.last(), self.period()) else { return };
        let mut start = last.start;
        for i in 0..(2 * run).clamp(4, SPOTS_MAX) {
            start = start.saturating_add(self.step(period - i % period)).min(file.len());
            wish(start);
            if start == file.len() {
                break;
            }
        }
    }

    /// Bytes between the beginnings of two neighbouring messages: the last two for 1, those before them for 2.
    fn step(&self, from_last: usize) -> u64 {
        let i = self.list.len() - from_last;
        self.list[i].start - self.list[i - 1].start
    }

    /// The number of messages after which the distances between them repeat, and for how many they do so.
    fn period(&self) -> Option<(usize, usize)> {
        let steps = self.list.len().saturating_sub(1);
        let mut best = None;
        for period in 1..=PERIOD_MAX.min(steps / 2) {
            let is_same = |i: &usize| self.step(*i) == self.step(i + period);
            let run = (1..=(steps - period).min(SPOTS_MAX)).take_while(is_same).count();
            if run >= period && best.is_none_or(|(_, most)| run > 2 * most) {
                best = Some((period, run));
            }
        }
        best
    }
}

/// True if the pages of a message of `n` bytes are better fetched one by one than all of them.
fn is_long(file: &View<'_>, n: u64) -> bool {
    n > 2 * PAGE || n > 8 * BLOCK && file.len() > METADATA_BYTES_MAX / 2
}

/// Bytes of the headers of a message, rounded up; `None` if they are not at hand.
fn spot(file: &View<'_>, message: Message) -> Option<u64> {
    let mut blocks = Blocks::new(file);
    let mut at = message.start + 8;
    if message.edition == 1 {
        let first = Octets(blocks.get(at, 8).ok()?);
        let (n, flags) = (first.uint(1, 3).ok()?, first.u8(8).ok()?);
        at += n;
        if flags & 0x80 != 0 {
            at += Octets(blocks.get(at, 3).ok()?).uint(1, 3).ok()?;
        }
    } else {
        at += 8;
        loop {
            let head = Octets(blocks.get(at, 5).ok()?);
            let (n, number) = (head.uint(1, 4).ok()?, head.u8(5).ok()?);
            if n < 5 || number >= 6 {
                break;
            }
            at += n;
        }
    }
    // The first octets of the data.
    Some((at - message.start + 16).next_multiple_of(BLOCK / 2).clamp(BLOCK, SPOT_MAX))
}

/// The message at `at`; `None` if none begins there. `spot`: bytes that are read there, if not all that follow.
fn read(file: &View<'_>, at: u64, spot: Option<u64>) -> Result<Option<Message>, Fault> {
    let left = file.len() - at;
    let get = |offset, n: u64, is_alone| match (spot, is_alone) {
        (Some(spot), _) => file.read_alone(offset, n, spot),
        (None, true) => file.read_alone(offset, n, n + BLOCK),
        (None, false) => file.read(offset, n),
    };
    let head = get(at, left.min(HEAD), false)?;
    let head = &head[..left.min(HEAD) as usize];
    if !head.starts_with(b"GRIB") {
        return Ok(None);
    }
    let edition = head.get(7).copied();
    let Some(n) = length(head) else {
        return match edition {
            Some(edition) if at == 0 => {
                Err(Fault::unsupported(format!("edition {edition} of GRIB")))
            }
            Some(_) => Ok(None),
            None => Err(short(file, at, "8 or more")),
        };
    };
    let n = match edition {
        Some(1) if n & LARGE != 0 => large(file, at, n)?,
        _ => n,
    };
    let least = if edition == Some(1) { 8 } else { HEAD };
    if n < least + CLOSE {
        return Err(Fault::bad(at, format!("a message of {n} bytes")));
    }
    if n > left {
        return Err(short(file, at, &n.to_string()));
    }
    let end = at + n - CLOSE;
    if !get(end, CLOSE, is_long(file, n))?.starts_with(b"7777") {
        let reason =
            format!("`7777` is expected at the end of the message that begins at byte {at}");
        return Err(Fault::bad(end, reason));
    }
    let discipline = if edition == Some(2) { head[6] } else { 0 };
    Ok(Some(Message { start: at, end, edition: edition.unwrap_or(2), discipline }))
}

fn short(file: &View<'_>, at: u64, bytes: &str) -> Fault {
    let reason = format!("a message of {bytes} bytes, the file ends at byte {}", file.len());
    Fault::bad(at, reason)
}

/// The length of a message of edition 1 that does not fit 23 bits: it counts 120 bytes, and section 4 has the rest.
fn large(file: &View<'_>, start: u64, n: u64) -> Result<u64, Fault> {
    let section = |at: u64| -> Result<u64, Fault> {
        let n = file.read_alone(at, 3, 0)?;
        Octets(&n).uint(1, 3).map_err(|why| Fault::bad(at, why))
    };
    let mut at = start + 8;
    let flags = file.read_alone(at + 7, 1, 0)?[0];
    at += section(at)?;
    for flag in [0x80, 0x40] {
        if flags & flag != 0 {
            at += section(at)?;
        }
    }
    Ok(match section(at)? {
        rest @ ..120 => ((n & !LARGE) * 120 + 4).saturating_sub(rest),
        _ => n,
    })
}

/// Offset at which the next message may begin after `at`; `None` if none begins within [`BETWEEN_MAX`] bytes.
fn find(file: &View<'_>, at: u64, is_alone: bool) -> Result<Option<u64>, Fault> {
    let end = file.len().min(at.saturating_add(BETWEEN_MAX));
    let mut from = at + 1;
    while from < end {
        // Parts of a page, so that no more is fetched than is looked at; the last bytes are looked at again.
        let n = (PAGE - from % PAGE).max(HEAD).min(file.len() - from);
        let (part, n) = match is_alone && from == at + 1 && n > BLOCK / 2 {
            true => (file.read_alone(from, BLOCK / 2, 0)?, BLOCK / 2),
            false => (file.read(from, n)?, n),
        };
        let heads = part.windows(8).position(|h| h.starts_with(b"GRIB") && matches!(h[7], 1 | 2));
        if let Some(i) = heads {
            return Ok(Some(from + i as u64));
        }
        if from + n >= file.len() {
            break;
        }
        from += n - 7;
    }
    Ok(None)
}

/// Reads sections: one block of a page at a time.
pub(super) struct Blocks<'v, 'a> {
    file: &'v View<'a>,
    block: Cow<'a, [u8]>,
    start: u64,
}

impl<'v, 'a> Blocks<'v, 'a> {
    pub(super) fn new(file: &'v View<'a>) -> Self {
        Blocks { file, block: Cow::Borrowed(&[]), start: 0 }
    }

    /// `n` bytes at `offset`.
    pub(super) fn get(&mut self, offset: u64, n: u64) -> Result<&[u8], Fault> {
        let end = self.start + self.block.len() as u64;
        if offset < self.start || offset.saturating_add(n) > end {
            self.block = self.file.read_alone(offset, n, BLOCK)?;
            self.start = offset;
        }
        let at = (offset - self.start) as usize;
        Ok(&self.block[at..at + n as usize])
    }
}
