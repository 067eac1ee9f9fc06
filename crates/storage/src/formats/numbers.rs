//! Numbers in the bytes of files.

use crate::formats::view::{Fault, View};
use std::borrow::Cow;

/// Reads numbers one after another.
pub(crate) struct Reader<'a> {
    bytes: Cow<'a, [u8]>,
    /// Offset of the first byte in the file.
    start: u64,
    at: usize,
    big_endian: bool,
}

impl<'a> Reader<'a> {
    /// Numbers of the `bytes` bytes at `offset` of a file.
    pub(crate) fn of(
        file: &View<'a>,
        offset: u64,
        bytes: u64,
        big_endian: bool,
    ) -> Result<Reader<'a>, Fault> {
        Ok(Reader::new(file.read(offset, bytes)?, offset, big_endian))
    }

    /// Numbers of `bytes`, which begin at `start` of the file.
    pub(crate) fn new(bytes: impl Into<Cow<'a, [u8]>>, start: u64, big_endian: bool) -> Reader<'a> {
        Reader { bytes: bytes.into(), start, at: 0, big_endian }
    }

    /// Offset of the next byte in the file.
    pub(crate) fn offset(&self) -> u64 {
        self.start + self.at as u64
    }

    /// Number of bytes that follow.
    pub(crate) fn left(&self) -> usize {
        self.bytes.len() - self.at
    }

    pub(crate) fn bytes(&mut self, n: usize) -> Result<&[u8], Fault> {
        let at = self.offset();
        let part = self.at.checked_add(n).and_then(|end| self.bytes.get(self.at..end));
        let part = part.ok_or_else(|| {
            Fault::bad(at, format!("{n} bytes are expected, {} follow", self.bytes.len() - self.at))
        })?;
        self.at += n;
        Ok(part)
    }

    pub(crate) fn skip(&mut self, n: usize) -> Result<(), Fault> {
        self.bytes(n).map(|_| ())
    }

    /// An unsigned number of `n` bytes, at most 8.
    pub(crate) fn uint(&mut self, n: usize) -> Result<u64, Fault> {
        let big = self.big_endian;
        let bytes = self.bytes(n)?;
        let push = |v: u64, b: &u8| v << 8 | u64::from(*b);
        Ok(if big { bytes.iter().fold(0, push) } else { bytes.iter().rev().fold(0, push) })
    }

    pub(crate) fn u8(&mut self) -> Result<u8, Fault> {
        self.uint(1).map(|v| v as u8)
    }

    pub(crate) fn u16(&mut self) -> Result<u16, Fault> {
        self.uint(2).map(|v| v as u16)
    }

    pub(crate) fn u32(&mut self) -> Result<u32, Fault> {
        self.uint(4).map(|v| v as u32)
    }

    pub(crate) fn u64(&mut self) -> Result<u64, Fault> {
        self.uint(8)
    }
}
