//! Filters that store only some bits of numbers: nbit and scale-offset.
//!
//! # Source
//! HDF5's `H5Znbit.c` and `H5Zscaleoffset.c`.

use crate::formats::filters::Filter;
use std::borrow::Cow;

/// Bits one after another, the highest of a number first.
struct Stream<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl Stream<'_> {
    /// The next `n` bits, at most 64.
    fn take(&mut self, n: usize) -> Option<u64> {
        let mut out = 0u64;
        let mut left = n;
        while left > 0 {
            let byte = *self.bytes.get(self.at / 8)?;
            let (used, free) = (self.at % 8, 8 - self.at % 8);
            let now = left.min(free);
            let part = byte << used >> (8 - now);
            out = out << now | u64::from(part);
            self.at += now;
            left -= now;
        }
        Some(out)
    }
}

/// Puts a number of `size` bytes at the end of `out`.
fn put(out: &mut Vec<u8>, v: u64, size: usize, is_big: bool) {
    match is_big {
        true => out.extend_from_slice(&v.to_be_bytes()[8 - size..]),
        false => out.extend_from_slice(&v.to_le_bytes()[..size]),
    }
}

/// Only the bits of numbers that count.
#[derive(Debug)]
pub(super) struct NBit {
    is_stored_whole: bool,
    count: usize,
    size: usize,
    is_big: bool,
    bits: usize,
    offset: usize,
}

impl NBit {
    pub(super) fn new(values: &[u32]) -> Result<NBit, String> {
        let value = |i: usize| values.get(i).copied().unwrap_or(0) as usize;
        let mut out = NBit {
            is_stored_whole: value(1) != 0,
            count: value(2),
            size: value(4),
            is_big: value(5) == 1,
            bits: value(6),
            offset: value(7),
        };
        match value(3) {
            _ if out.is_stored_whole => Ok(out),
            1 if (1..=8).contains(&out.size)
                && out.bits > 0
                && out.bits.saturating_add(out.offset) <= 8 * out.size =>
            {
                Ok(out)
            }
            // Values of a type without bits that do not count.
            4 => {
                out.is_stored_whole = true;
                Ok(out)
            }
            n => Err(format!("HDF5 filter nbit of class {n}")),
        }
    }
}

impl Filter for NBit {
    fn undo<'a>(&self, bytes: Cow<'a, [u8]>, limit: usize) -> Result<Cow<'a, [u8]>, String> {
        if self.is_stored_whole {
            return Ok(bytes);
        }
        let (len, bits) =
            (self.count.saturating_mul(self.size), self.count.saturating_mul(self.bits));
        if len > limit || bits.div_ceil(8) > bytes.len() {
            let n = bytes.len();
            return Err(format!("nbit: {} numbers in {n} bytes, at most {limit}", self.count));
        }
        let mut stream = Stream { bytes: &bytes, at: 0 };
        let mut out = Vec::with_capacity(len);
        for _ in 0..self.count {
            let v = stream.take(self.bits).ok_or("nbit: it ends too early")?;
            put(&mut out, v << self.offset, self.size, self.is_big);
        }
        Ok(Cow::Owned(out))
    }
}

/// Bytes before the bits.
const HEADER: usize = 21;

/// Numbers less the least one, and floats scaled to integers.
#[derive(Debug)]
pub(super) struct ScaleOffset {
    /// True if the writer chose to store all bits.
    is_stored_whole: bool,
    /// Powers of ten by which floats were multiplied; `None` for integers.
    digits: Option<i32>,
    count: usize,
    size: usize,
    is_big: bool,
    fill: Option<u64>,
}

impl ScaleOffset {
    pub(super) fn new(values: &[u32]) -> Result<ScaleOffset, String> {
        let value = |i: usize| values.get(i).copied().unwrap_or(0);
        let (class, size) = (value(3), value(4) as usize);
        let low = u64::from(value(8)) | u64::from(value(9)) << 32;
        let fill = match size {
            8 => low,
            _ => low & ((1 << (8 * size.min(7))) - 1),
        };
        let digits = match (value(0), class, size) {
            (_, 0, 1 | 2 | 4 | 8) => None,
            (0, 1, 4 | 8) => Some(value(1) as i32),
            (n, c, s) => {
                return Err(format!("HDF5 filter scale-offset of kind {n}, class {c}, {s} bytes"));
            }
        };
        Ok(ScaleOffset {
            is_stored_whole: class == 0 && value(1) as usize == 8 * size,
            digits,
            count: value(2) as usize,
            size,
            is_big: value(6) == 1,
            fill: (value(7) == 1).then_some(fill),
        })
    }

    /// The number that is stored as `v`.
    fn number(&self, v: u64, least: u64) -> u64 {
        match (self.digits, self.size) {
            (None, _) => v.wrapping_add(least),
            (Some(digits), 4) => {
                let scale = 10f64.powi(digits) as f32;
                let v = v as i32 as f32 / scale + f32::from_bits(least as u32);
                u64::from(v.to_bits())
            }
            (Some(digits), _) => {
                (v as i64 as f64 / 10f64.powi(digits) + f64::from_bits(least)).to_bits()
            }
        }
    }
}

impl Filter for ScaleOffset {
    fn undo<'a>(&self, bytes: Cow<'a, [u8]>, limit: usize) -> Result<Cow<'a, [u8]>, String> {
        if self.is_stored_whole {
            return Ok(bytes);
        }
        let len = self.count.saturating_mul(self.size);
        let Some((head, stream)) = bytes.split_first_chunk::<HEADER>() else {
            return Err("scale-offset: it has no header".into());
        };
        let bits = u32::from_le_bytes([head[0], head[1], head[2], head[3]]) as usize;
        let width = usize::from(head[4]).min(8);
        let least = head[5..5 + width].iter().rev().fold(0, |v, b| v << 8 | u64::from(*b));
        let stored = self.count.saturating_mul(bits).div_ceil(8);
        if len > limit || bits > 8 * self.size || stored > stream.len() {
            return Err(format!(
                "scale-offset: {} numbers of {bits} bits in {} bytes, at most {limit}",
                self.count,
                stream.len()
            ));
        }
        let all = u64::MAX >> (64 - bits.max(1));
        let mut stream = Stream { bytes: stream, at: 0 };
        let mut out = Vec::with_capacity(len);
        if bits == 8 * self.size {
            // The numbers have their full width, as in the memory of the writer.
            for v in stream.bytes[..len].chunks_exact(self.size) {
                let v = v.iter().rev().fold(0u64, |v, b| v << 8 | u64::from(*b));
                put(&mut out, v, self.size, self.is_big);
            }
            return Ok(Cow::Owned(out));
        }
        for _ in 0..self.count {
            let v = stream.take(bits).ok_or("scale-offset: it ends too early")?;
            let v = match self.fill {
                Some(fill) if bits > 0 && v == all => fill,
                _ => self.number(v, least),
            };
            put(&mut out, v, self.size, self.is_big);
        }
        Ok(Cow::Owned(out))
    }
}

/// Integers whose bits are fewer than those of their bytes: they are moved to the end and extended.
#[derive(Debug)]
pub(super) struct Widen {
    pub(super) size: usize,
    pub(super) is_big: bool,
    pub(super) is_signed: bool,
    /// The lowest bit that counts, and the number of bits that do.
    pub(super) bits: (u32, u32),
    /// Bytes of a chunk of contiguous cells, of which the last one is stored in fewer; 0 for other chunks.
    pub(super) least_bytes: usize,
}

impl Widen {
    pub(super) fn apply(&self, cells: &mut [u8]) {
        let (low, count) = self.bits;
        let unused = 64 - count;
        for cell in cells.chunks_exact_mut(self.size) {
            let push = |v: u64, b: &u8| v << 8 | u64::from(*b);
            let v = match self.is_big {
                true => cell.iter().fold(0, push),
                false => cell.iter().rev().fold(0, push),
            };
            let v = v << (unused - low);
            let v = if self.is_signed { (v as i64 >> unused) as u64 } else { v >> unused };
            match self.is_big {
                true => cell.copy_from_slice(&v.to_be_bytes()[8 - self.size..]),
                false => cell.copy_from_slice(&v.to_le_bytes()[..self.size]),
            }
        }
    }
}

impl Filter for Widen {
    fn undo<'a>(&self, bytes: Cow<'a, [u8]>, _: usize) -> Result<Cow<'a, [u8]>, String> {
        let mut cells = bytes.into_owned();
        self.apply(&mut cells);
        if cells.len() < self.least_bytes {
            cells.resize(self.least_bytes, 0);
        }
        Ok(Cow::Owned(cells))
    }
}
