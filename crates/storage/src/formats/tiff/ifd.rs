//! The header of a file and its directories (IFDs) of tagged values.
//!
//! ```text
//!   II 42 first ─▶ n  (tag, type, count, values or their offset) × n  next ─▶ …  0
//! ```
//!
//! # Source
//! TIFF revision 6.0, section 2; "The BigTIFF File Format" (Aware Systems).

use crate::formats::numbers::Reader;
use crate::formats::view::{Fault, View};
use std::borrow::Cow;
use std::collections::BTreeSet;

/// Upper bound on the directories of a file.
const IFDS_MAX: usize = 1 << 16;

/// Upper bound on the bytes of all directories.
const IFD_BYTES_MAX: u64 = 64 << 20;

/// Byte order and size of the numbers of a file.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Header {
    pub(super) big_endian: bool,
    /// True for BigTIFF: offsets have 64 bits.
    is_big: bool,
    /// Offset of the first directory.
    first: u64,
}

impl Header {
    /// True if a file begins as a TIFF does.
    pub(super) fn is(head: &[u8]) -> bool {
        matches!(
            head,
            [b'I', b'I', 42, 0, ..]
                | [b'M', b'M', 0, 42, ..]
                | [b'I', b'I', 43, 0, 8, 0, 0, 0, ..]
                | [b'M', b'M', 0, 43, 0, 8, 0, 0, ..]
        )
    }

    pub(super) fn read(file: &View<'_>) -> Result<Header, Fault> {
        let head = file.read(0, 8)?;
        if !Header::is(&head) {
            return Err(Fault::bad(0, "the header of a TIFF is expected"));
        }
        let (big_endian, is_big) = (head[0] == b'M', head[2] == 43 || head[3] == 43);
        let first = match is_big {
            false => Reader::of(file, 4, 4, big_endian)?.uint(4)?,
            true => Reader::of(file, 8, 8, big_endian)?.uint(8)?,
        };
        Ok(Header { big_endian, is_big, first })
    }

    /// Bytes of an offset.
    fn word(self) -> usize {
        if self.is_big { 8 } else { 4 }
    }

    /// Bytes of an entry of a directory.
    fn entry(self) -> usize {
        if self.is_big { 20 } else { 12 }
    }
}

/// The directories that were read of a file: each is read once.
pub(super) struct Walk {
    header: Header,
    seen: BTreeSet<u64>,
    /// Bytes that further ones may have.
    left: u64,
}

impl Walk {
    pub(super) fn new(file: &View<'_>) -> Result<Walk, Fault> {
        let left = file.len().min(IFD_BYTES_MAX);
        Ok(Walk { header: Header::read(file)?, seen: BTreeSet::new(), left })
    }

    /// Offset of the first directory.
    pub(super) fn first(&self) -> u64 {
        self.header.first
    }

    /// The directory at an offset.
    pub(super) fn ifd<'a>(&mut self, file: &View<'a>, at: u64) -> Result<Ifd<'a>, Fault> {
        if !self.seen.insert(at) {
            return Err(Fault::bad(at, "two links lead to this directory"));
        }
        if self.seen.len() > IFDS_MAX {
            return Err(Fault::bad(at, format!("more than {IFDS_MAX} directories")));
        }
        let header = self.header;
        let size = if header.is_big { 8 } else { 2 };
        let count = Reader::of(file, at, size as u64, header.big_endian)?.uint(size)?;
        let bytes = count.saturating_mul(header.entry() as u64);
        // Directories that overlap would take longer than the file is long.
        self.left = self.left.checked_sub(bytes).ok_or_else(|| {
            let left = self.left;
            Fault::bad(at, format!("a directory of {count} entries, {left} bytes may follow"))
        })?;
        let start = at + size as u64;
        let entries = file.read(start, bytes)?;
        let word = header.word();
        let next = Reader::of(file, start + bytes, word as u64, header.big_endian)?.uint(word)?;
        Ok(Ifd { header, start, entries, next })
    }
}

/// A directory.
#[derive(Debug, Clone)]
pub(super) struct Ifd<'a> {
    pub(super) header: Header,
    /// Offset of its first entry.
    start: u64,
    entries: Cow<'a, [u8]>,
    /// Offset of the next one; 0: none.
    pub(super) next: u64,
}

impl Ifd<'_> {
    /// The values of a tag.
    pub(super) fn get(&self, tag: u16) -> Result<Option<Values>, Fault> {
        let Header { big_endian, is_big, .. } = self.header;
        let size = self.header.entry();
        let bytes = if big_endian { tag.to_be_bytes() } else { tag.to_le_bytes() };
        let Some(i) = self.entries.chunks_exact(size).position(|e| e[..2] == bytes) else {
            return Ok(None);
        };
        let start = self.start + (i * size) as u64;
        let mut entry =
            Reader::new(&self.entries[i * size..(i + 1) * size], start, self.header.big_endian);
        entry.skip(2)?;
        let kind = entry.u16()?;
        let count = entry.uint(self.header.word())?;
        let here = entry.offset();
        let Some(bytes) = bytes_of(kind) else {
            return Err(Fault::bad(start, format!("tag {tag} has values of the type {kind}")));
        };
        let all = count.checked_mul(bytes).ok_or_else(|| {
            Fault::bad(start, format!("tag {tag} has {count} values of {bytes} bytes"))
        })?;
        let offset = match all <= if is_big { 8 } else { 4 } {
            true => here,
            false => entry.uint(self.header.word())?,
        };
        Ok(Some(Values { kind, count, offset, big_endian }))
    }

    /// The one number of a tag, or the first of several.
    pub(super) fn uint(&self, file: &View<'_>, tag: u16) -> Result<Option<u64>, Fault> {
        match self.get(tag)? {
            Some(values) if values.count > 0 => values.first(file).map(Some),
            _ => Ok(None),
        }
    }

    /// The numbers of a tag, at most `max`; none if there is no such tag.
    pub(super) fn uints(&self, file: &View<'_>, tag: u16, max: u64) -> Result<Vec<u64>, Fault> {
        match self.get(tag)? {
            Some(values) => values.uints(file, 0, values.count.min(max)),
            None => Ok(Vec::new()),
        }
    }

    /// Like [`Ifd::uints`], for floats.
    pub(super) fn floats(&self, file: &View<'_>, tag: u16, max: u64) -> Result<Vec<f64>, Fault> {
        let Some(values) = self.get(tag)? else { return Ok(Vec::new()) };
        let bits = values.uints(file, 0, values.count.min(max))?;
        Ok(bits
            .into_iter()
            .map(|v| match values.kind {
                11 => f64::from(f32::from_bits(v as u32)),
                12 => f64::from_bits(v),
                _ => v as f64,
            })
            .collect())
    }

    /// The text of a tag, up to its first zero byte.
    pub(super) fn text(&self, file: &View<'_>, tag: u16) -> Result<Option<String>, Fault> {
        let Some(values) = self.get(tag)?.filter(|v| bytes_of(v.kind) == Some(1)) else {
            return Ok(None);
        };
        let bytes = values.bytes(file)?;
        let end = bytes.iter().position(|b| *b == 0).unwrap_or(bytes.len());
        Ok(Some(String::from_utf8_lossy(&bytes[..end]).into_owned()))
    }
}

/// Bytes of a value of this type.
fn bytes_of(kind: u16) -> Option<u64> {
    Some(match kind {
        1 | 2 | 6 | 7 => 1,
        3 | 8 => 2,
        4 | 9 | 11 | 13 => 4,
        5 | 10 | 12 | 16 | 17 | 18 => 8,
        _ => return None,
    })
}

/// Values of a tag, unread.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Values {
    kind: u16,
    pub(super) count: u64,
    /// Offset of the first one in the file.
    pub(super) offset: u64,
    big_endian: bool,
}

impl Values {
    fn size(self) -> u64 {
        bytes_of(self.kind).unwrap_or(1)
    }

    /// The first number; 0 if the list is empty.
    pub(super) fn first(self, file: &View<'_>) -> Result<u64, Fault> {
        Ok(self.uints(file, 0, self.count.min(1))?.first().copied().unwrap_or(0))
    }

    /// `count` numbers from the one at `first` on; floats as their bits.
    fn uints(self, file: &View<'_>, first: u64, count: u64) -> Result<Vec<u64>, Fault> {
        let (offset, bytes) = self.part(first, count)?;
        let mut numbers = Reader::of(file, offset, bytes, self.big_endian)?;
        (0..count).map(|_| numbers.uint(self.size() as usize)).collect()
    }

    /// Place of `count` values in the file.
    fn part(self, first: u64, count: u64) -> Result<(u64, u64), Fault> {
        let beyond = || Fault::bad(self.offset, format!("value {first} lies beyond 2^64 bytes"));
        let start = first.checked_mul(self.size()).and_then(|n| n.checked_add(self.offset));
        let bytes = count.checked_mul(self.size());
        start.zip(bytes).ok_or_else(beyond)
    }

    /// All of them, as they are stored.
    pub(super) fn bytes<'a>(self, file: &View<'a>) -> Result<Cow<'a, [u8]>, Fault> {
        file.read(self.offset, self.count.saturating_mul(self.size()))
    }

    /// Parts of the values that hold those at `indices`, which are sorted.
    pub(super) fn parts(self, indices: &[u64]) -> Vec<Part> {
        // Reading a page costs as much as reading one number.
        const GAP_MAX: u64 = 512;
        let mut out: Vec<Part> = Vec::new();
        for &i in indices {
            match out.last_mut() {
                Some(last) if i < last.first + last.count + GAP_MAX => {
                    last.count = last.count.max(i + 1 - last.first);
                }
                _ => out.push(Part { values: self, first: i, count: 1 }),
            }
        }
        out
    }
}

/// Consecutive values.
#[derive(Debug)]
pub(super) struct Part {
    values: Values,
    first: u64,
    count: u64,
}

impl Part {
    /// Tells the file that they will be read.
    pub(super) fn announce(&self, file: &View<'_>) {
        if let Ok((offset, bytes)) = self.values.part(self.first, self.count) {
            file.will_read(offset, bytes);
        }
    }

    pub(super) fn read(&self, file: &View<'_>) -> Result<Vec<u64>, Fault> {
        self.values.uints(file, self.first, self.count)
    }

    /// Index of the first value.
    pub(super) fn first(&self) -> u64 {
        self.first
    }
}
