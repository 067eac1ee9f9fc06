//! Compressors that are registered with HDF5, in their framing there.
//!
//! # Source
//! h5py's `lzf_filter.c` and LibLZF; the HDF Group's `H5Zlz4.c`, `H5Zbzip2.c`; bitshuffle's `bshuf_h5filter.c`.

use crate::formats::filters::Filter;
use crate::source::blosc;
use crate::source::lz4;
use std::borrow::Cow;

#[derive(Debug)]
pub(super) struct Lzf;

impl Filter for Lzf {
    fn undo<'a>(&self, bytes: Cow<'a, [u8]>, limit: usize) -> Result<Cow<'a, [u8]>, String> {
        let out = unlzf(&bytes, limit);
        out.map(Cow::Owned).ok_or_else(|| format!("lzf: damaged, or more than {limit} bytes"))
    }
}

fn unlzf(mut from: &[u8], limit: usize) -> Option<Vec<u8>> {
    let mut out = Vec::new();
    while let Some((&control, rest)) = from.split_first() {
        from = rest;
        let control = usize::from(control);
        if control < 32 {
            let (literals, rest) = from.split_at_checked(control + 1)?;
            out.extend_from_slice(literals);
            from = rest;
        } else {
            let mut len = control >> 5;
            if len == 7 {
                let (&more, rest) = from.split_first()?;
                len += usize::from(more);
                from = rest;
            }
            let (&low, rest) = from.split_first()?;
            from = rest;
            let back = ((control & 31) << 8 | usize::from(low)) + 1;
            let start = out.len().checked_sub(back)?;
            for i in 0..len + 2 {
                out.push(out[start + i]);
            }
        }
        if out.len() > limit {
            return None;
        }
    }
    Some(out)
}

/// Blosc 1.
#[derive(Debug)]
pub(crate) struct Blosc;

impl Filter for Blosc {
    fn undo<'a>(&self, bytes: Cow<'a, [u8]>, limit: usize) -> Result<Cow<'a, [u8]>, String> {
        let buffer = blosc::Buffer::new(&bytes, limit as u64)?;
        let mut out = vec![0; buffer.decoded()];
        let n = buffer.decode(&mut out)?;
        out.truncate(n);
        Ok(Cow::Owned(out))
    }

    fn undo_to(&self, bytes: &[u8], out: &mut [u8]) -> Result<bool, String> {
        match blosc::Buffer::new(bytes, out.len() as u64)?.decode(out)? {
            n if n == out.len() => Ok(true),
            n => Err(format!("blosc: it decodes to {n} bytes, expected {}", out.len())),
        }
    }
}

/// LZ4: the decoded length, the length of a block, and for each block its stored length and bytes.
#[derive(Debug)]
pub(super) struct Lz4;

impl Filter for Lz4 {
    fn undo<'a>(&self, bytes: Cow<'a, [u8]>, limit: usize) -> Result<Cow<'a, [u8]>, String> {
        let (len, block, stream) = frame("lz4", &bytes, limit)?;
        if block == 0 && len > 0 {
            return Err("lz4: blocks of 0 bytes".into());
        }
        let mut out = vec![0; len];
        let mut stream = stream;
        for part in out.chunks_mut(block.max(1)) {
            let stored = next("lz4", &mut stream)?;
            if stored.len() == part.len() {
                part.copy_from_slice(stored);
            } else if lz4::block_of(stored, part) != Some(part.len()) {
                return Err("lz4: a block is damaged".into());
            }
        }
        Ok(Cow::Owned(out))
    }
}

/// The decoded length, the bytes of a block and the blocks.
fn frame<'a>(
    name: &str,
    bytes: &'a [u8],
    limit: usize,
) -> Result<(usize, usize, &'a [u8]), String> {
    let head = bytes.split_first_chunk::<8>().and_then(|(len, rest)| {
        let (block, rest) = rest.split_first_chunk::<4>()?;
        Some((u64::from_be_bytes(*len), u32::from_be_bytes(*block) as usize, rest))
    });
    let (len, block, rest) = head.ok_or_else(|| format!("{name}: it has no header"))?;
    match usize::try_from(len) {
        Ok(len) if len <= limit => Ok((len, block, rest)),
        _ => Err(format!("{name}: it decodes to {len} bytes, expected at most {limit}")),
    }
}

/// The bytes of the next block, after their number.
fn next<'a>(name: &str, stream: &mut &'a [u8]) -> Result<&'a [u8], String> {
    let part = stream
        .split_first_chunk::<4>()
        .and_then(|(n, rest)| rest.split_at_checked(u32::from_be_bytes(*n) as usize));
    let (part, rest) = part.ok_or_else(|| format!("{name}: it ends within a block"))?;
    *stream = rest;
    Ok(part)
}

/// Bits of numbers, grouped by their place in the number, in blocks that may be compressed.
#[derive(Debug)]
pub(super) struct BitShuffle {
    /// Bytes of a number.
    size: usize,
    /// Numbers of a block.
    block: usize,
    packing: Packing,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Packing {
    None,
    Lz4,
    Zstd,
}

/// Bytes of a block, if the writer did not choose.
const BLOCK_BYTES: usize = 8192;

/// Numbers of the smallest block, if the writer did not choose.
const BLOCK_LEAST: usize = 128;

impl BitShuffle {
    pub(super) fn new(values: &[u32]) -> Result<BitShuffle, String> {
        let value = |i: usize| values.get(i).copied().unwrap_or(0) as usize;
        let size = value(2);
        if !(1..=1 << 16).contains(&size) {
            return Err(format!("HDF5 filter bitshuffle of numbers of {size} bytes"));
        }
        let packing = match value(4) {
            0 => Packing::None,
            2 => Packing::Lz4,
            3 => Packing::Zstd,
            n => return Err(format!("HDF5 filter bitshuffle with compressor {n}")),
        };
        let block = match value(3) {
            0 => (BLOCK_BYTES / size / 8 * 8).max(BLOCK_LEAST),
            n if n % 8 == 0 => n,
            n => return Err(format!("HDF5 filter bitshuffle with blocks of {n}")),
        };
        Ok(BitShuffle { size, block, packing })
    }
}

impl Filter for BitShuffle {
    fn undo<'a>(&self, bytes: Cow<'a, [u8]>, limit: usize) -> Result<Cow<'a, [u8]>, String> {
        let (mut len, mut block, mut stream) = (bytes.len(), self.block, &*bytes);
        if self.packing != Packing::None {
            let block_bytes;
            (len, block_bytes, stream) = frame("bitshuffle", &bytes, limit)?;
            block = block_bytes / self.size;
            if block == 0 || !block.is_multiple_of(8) {
                return Err(format!("bitshuffle: blocks of {block_bytes} bytes"));
            }
        }
        // Numbers that fill no group of 8 are stored as they are.
        let rest = len - len / (8 * self.size) * (8 * self.size);
        let mut out = vec![0; len];
        let (whole, tail) = out.split_at_mut(len - rest);
        let mut shuffled = Vec::new();
        for part in whole.chunks_mut(block.saturating_mul(self.size)) {
            match self.packing {
                Packing::None => {
                    let (this, rest) = stream.split_at_checked(part.len()).unwrap_or_default();
                    unshuffle(this, self.size, part);
                    stream = rest;
                    continue;
                }
                Packing::Lz4 => {
                    shuffled.resize(part.len(), 0);
                    let stored = next("bitshuffle", &mut stream)?;
                    if lz4::block_of(stored, &mut shuffled) != Some(part.len()) {
                        return Err("bitshuffle: a block is damaged".into());
                    }
                }
                Packing::Zstd => {
                    let stored = next("bitshuffle", &mut stream)?;
                    shuffled = zstd::bulk::decompress(stored, part.len())
                        .map_err(|e| format!("bitshuffle: {e}"))?;
                    if shuffled.len() != part.len() {
                        return Err("bitshuffle: a block is damaged".into());
                    }
                }
            }
            unshuffle(&shuffled, self.size, part);
        }
        match stream.get(..rest) {
            Some(left) => tail.copy_from_slice(left),
            None => return Err("bitshuffle: it ends too early".into()),
        }
        Ok(Cow::Owned(out))
    }
}

/// Rows of bits, one for each bit of a number, become numbers.
fn unshuffle(rows: &[u8], size: usize, out: &mut [u8]) {
    let count = out.len() / size;
    for (row, bits) in rows.chunks_exact((count / 8).max(1)).take(8 * size).enumerate() {
        let (byte, bit) = (row / 8, row % 8);
        for (i, eight) in bits.iter().enumerate() {
            for k in 0..8 {
                out[(8 * i + k) * size + byte] |= (eight >> k & 1) << bit;
            }
        }
    }
}
