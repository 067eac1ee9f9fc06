//! From message to message, without their data.
//!
//! # Source
//! WMO Manual on Codes, volume I.2: FM 92 GRIB, sections 0 and 8 of edition 2; annex II to the Technical Regulations,
//! edition 1. Messages of edition 1 above 8 MiB: ECMWF, GRIBEX.

use super::octets::Octets;
use crate::formats::view::{Fault, PAGE, View};
use std::borrow::Cow;

/// Upper bound on the bytes between two messages.
const BETWEEN_MAX: u64 = 1 << 20;

/// Bytes before the first message in a file that is recognised.
const BEFORE_MAX: usize = 1024;

/// Bytes that are read together.
const BLOCK: u64 = 1024;

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
    let mut out: Vec<Message> = Vec::new();
    let mut at = 0;
    while at < file.len() {
        let is_alone = out.last().is_some_and(|m| is_long(m.end - m.start));
        match read(file, at, is_alone)? {
            Some(message) => {
                at = message.end + 4;
                out.push(message);
            }
            None => match find(file, at)? {
                Some(next) => at = next,
                None if file.len() - at > BETWEEN_MAX => {
                    let reason = format!("no message begins in {BETWEEN_MAX} bytes");
                    return Err(Fault::bad(at, reason));
                }
                None => break,
            },
        }
    }
    Ok(out)
}

/// True if the pages of a message of `n` bytes are better fetched one by one than all of them.
fn is_long(n: u64) -> bool {
    n > 2 * PAGE
}

/// The message at `at`; `None` if none begins there. `is_alone`: the one before was long.
fn read(file: &View<'_>, at: u64, is_alone: bool) -> Result<Option<Message>, Fault> {
    let left = file.len() - at;
    let get = |offset, n| match is_alone {
        true => file.read_alone(offset, n),
        false => file.read(offset, n),
    };
    let head = get(at, left.min(HEAD))?;
    if !head.starts_with(b"GRIB") {
        return Ok(None);
    }
    let edition = head.get(7).copied();
    let Some(n) = length(&head) else {
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
    if n < least + 4 {
        return Err(Fault::bad(at, format!("a message of {n} bytes")));
    }
    if n > left {
        return Err(short(file, at, &n.to_string()));
    }
    let end = at + n - 4;
    let close = if is_long(n) { file.read_alone(end, 4)? } else { file.read(end, 4)? };
    if *close != *b"7777" {
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
        let n = file.read_alone(at, 3)?;
        Octets(&n).uint(1, 3).map_err(|why| Fault::bad(at, why))
    };
    let mut at = start + 8;
    let flags = file.read_alone(at + 7, 1)?[0];
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

/// Where the next message may begin after `at`; `None` if there is none in [`BETWEEN_MAX`] bytes.
fn find(file: &View<'_>, at: u64) -> Result<Option<u64>, Fault> {
    let end = file.len().min(at.saturating_add(BETWEEN_MAX));
    let mut from = at + 1;
    while from < end {
        // Parts of a page, so that no more is fetched than is looked at; the last bytes are looked at again.
        let n = (PAGE - from % PAGE).max(HEAD).min(file.len() - from);
        let part = file.read(from, n)?;
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
            let stop = offset.saturating_add(n.max(1));
            let page = stop.saturating_sub(1) / PAGE * PAGE + PAGE;
            let block = stop.max(page.min(offset.saturating_add(BLOCK)).min(self.file.len()));
            self.block = self.file.read_alone(offset, block - offset)?;
            self.start = offset;
        }
        let at = (offset - self.start) as usize;
        Ok(&self.block[at..at + n as usize])
    }
}
