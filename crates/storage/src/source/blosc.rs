#![expect(unsafe_code, reason = "c-blosc is C: each call says why its pointers are sound")]
//! Decodes Blosc buffers in place, whole or only some blocks.
//!
//! Buffers of zstd, the most common codec, are decoded here ([`frame`]), others by c-blosc.
//!
//! # Source
//! c-blosc 1.x, `README_CHUNK_FORMAT.rst` and `blosc.h`.

mod frame;

use frame::Frame;
use std::ffi::c_int;
use std::ops::Range;

const HEADER: usize = 16;

/// A buffer whose header was checked against its length.
pub(crate) struct Buffer<'a> {
    bytes: &'a [u8],
    decoded: usize,
    /// Bytes of an item: blocks hold whole items.
    item: usize,
}

impl<'a> Buffer<'a> {
    /// Checks the header of a buffer that decodes to at most `limit` bytes.
    pub(crate) fn new(bytes: &'a [u8], limit: u64) -> Result<Self, String> {
        let encoded = check(bytes, limit)?;
        let bytes = &bytes[..encoded];
        let mut decoded = 0usize;
        // SAFETY: the pointer and the length are those of a slice, `decoded` outlives the call; the header is
        // present.
        let sound = unsafe {
            blosc_src::blosc_cbuffer_validate(bytes.as_ptr().cast(), encoded, &mut decoded)
        };
        if sound != 0 {
            return Err("blosc: its header is damaged".into());
        }
        Ok(Buffer { bytes, decoded, item: usize::from(bytes[3]).max(1) })
    }

    /// Bytes that it decodes to.
    pub(crate) fn decoded(&self) -> usize {
        self.decoded
    }

    /// Decodes all of it to `out` and returns the number of bytes written.
    pub(crate) fn decode(&self, out: &mut [u8]) -> Result<usize, String> {
        if let (Some(frame), Some(out)) =
            (Frame::new(self.bytes, self.decoded), out.get_mut(..self.decoded))
        {
            return frame.decode(0..self.decoded, out).map(|()| self.decoded);
        }
        // SAFETY: source and destination are slices of the lengths that the header and the argument say: c-blosc reads
        // no more than the header's length, which was checked, and writes no more than `out.len()` bytes.
        let n = unsafe {
            blosc_src::blosc_decompress_ctx(
                self.bytes.as_ptr().cast(),
                out.as_mut_ptr().cast(),
                out.len(),
                1,
            )
        };
        usize::try_from(n).ok().filter(|n| *n > 0 || self.decoded == 0).ok_or_else(damaged)
    }

    /// Decodes a range to `out`, which has its length; false if the range does not align with items.
    pub(super) fn decode_part(&self, range: Range<usize>, out: &mut [u8]) -> Result<bool, String> {
        let aligned =
            range.start.is_multiple_of(self.item) && range.len().is_multiple_of(self.item);
        if !aligned || range.end > self.decoded || out.len() != range.len() {
            return Ok(false);
        }
        if let Some(frame) = Frame::new(self.bytes, self.decoded) {
            return frame.decode(range, out).map(|()| true);
        }
        let item = |n: usize| c_int::try_from(n / self.item);
        let (Ok(first), Ok(count)) = (item(range.start), item(range.len())) else {
            return Ok(false);
        };
        // SAFETY: as above; the items lie within the lengths of the header, and `out` has their bytes.
        let n = unsafe {
            blosc_src::blosc_getitem(
                self.bytes.as_ptr().cast(),
                first,
                count,
                out.as_mut_ptr().cast(),
            )
        };
        match usize::try_from(n) {
            Ok(n) if n == out.len() => Ok(true),
            _ => Err(damaged()),
        }
    }
}

fn damaged() -> String {
    "blosc: its blocks are damaged".into()
}

/// Returns the encoded length in the header. Rejects a buffer whose header claims more than `limit` decoded bytes, or
/// more encoded bytes than the buffer has.
pub(super) fn check(bytes: &[u8], limit: u64) -> Result<usize, String> {
    let Some(header) = bytes.first_chunk::<HEADER>() else {
        return Err(format!("blosc: {} bytes are no header", bytes.len()));
    };
    let number = |i: usize| {
        u64::from(u32::from_le_bytes([header[i], header[i + 1], header[i + 2], header[i + 3]]))
    };
    let (decoded, encoded) = (number(4), number(12));
    if decoded > limit {
        return Err(format!("blosc: its header says {decoded} bytes, expected at most {limit}"));
    }
    if encoded > bytes.len() as u64 {
        return Err(format!(
            "blosc: its header says {encoded} encoded bytes, there are {}",
            bytes.len()
        ));
    }
    if encoded < HEADER as u64 {
        return Err(format!("blosc: its header says {encoded} encoded bytes"));
    }
    Ok(encoded as usize)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]
    use super::*;
    use zarrs::array::codec::bytes_to_bytes::blosc::{
        BloscCompressor, BloscShuffleMode, blosc_compress_bytes,
    };

    fn encoded(cells: &[u8], shuffle: BloscShuffleMode, compressor: BloscCompressor) -> Vec<u8> {
        let level = 5u8.try_into().unwrap();
        blosc_compress_bytes(cells, level, shuffle, 4, compressor, 4096, 1).unwrap()
    }

    #[test]
    fn blocks_of_all_items_and_lengths() {
        // The last block is short, and ends within an item.
        let cells: Vec<u8> = (0..70_001u32).map(|i| (i / 3 % 251) as u8).collect();
        for (item, block) in [(1, 0), (2, 1024), (3, 999), (4, 0), (8, 4096), (16, 4096), (32, 640)]
        {
            for shuffle in [BloscShuffleMode::NoShuffle, BloscShuffleMode::Shuffle] {
                let level = 3u8.try_into().unwrap();
                let bytes = blosc_compress_bytes(
                    &cells,
                    level,
                    shuffle,
                    item,
                    BloscCompressor::Zstd,
                    block,
                    1,
                )
                .unwrap();
                let mut out = vec![0; cells.len() + 5];
                let buffer = Buffer::new(&bytes, cells.len() as u64).unwrap();
                assert_eq!(buffer.decode(&mut out).unwrap(), cells.len());
                assert!(out[..cells.len()] == cells, "{item} {block}");
                let range = 5 * item..(40_000 / item) * item;
                let mut part = vec![0; range.len()];
                assert!(buffer.decode_part(range.clone(), &mut part).unwrap());
                assert!(part == cells[range], "{item} {block}");
            }
        }
    }

    #[test]
    fn parts_are_parts_of_the_whole() {
        let cells: Vec<u8> = (0..40_000u32).flat_map(|i| (i / 7).to_le_bytes()).collect();
        for shuffle in
            [BloscShuffleMode::NoShuffle, BloscShuffleMode::Shuffle, BloscShuffleMode::BitShuffle]
        {
            for compressor in [BloscCompressor::LZ4, BloscCompressor::Zstd, BloscCompressor::Zlib] {
                let bytes = encoded(&cells, shuffle, compressor);
                let buffer = Buffer::new(&bytes, cells.len() as u64).unwrap();
                let mut out = vec![0; cells.len()];
                assert_eq!(buffer.decode(&mut out).unwrap(), cells.len());
                assert!(out == cells);
                for range in [0..4, 4..40_000, 4096..8192, 159_000..160_000, 8..8] {
                    let mut part = vec![0; range.len()];
                    if range.is_empty() {
                        continue;
                    }
                    assert!(buffer.decode_part(range.clone(), &mut part).unwrap(), "{range:?}");
                    assert!(part == cells[range]);
                }
                assert!(!buffer.decode_part(2..6, &mut [0; 4]).unwrap());
                assert!(!buffer.decode_part(159_996..160_004, &mut [0; 8]).unwrap());
            }
        }
    }

    #[test]
    fn damage_is_an_error() {
        let cells: Vec<u8> = (0..40_000u32).flat_map(|i| i.wrapping_mul(i).to_le_bytes()).collect();
        let bytes = encoded(&cells, BloscShuffleMode::Shuffle, BloscCompressor::Zstd);
        let limit = cells.len() as u64;
        assert!(Buffer::new(&bytes[..12], limit).is_err());
        assert!(Buffer::new(&bytes[..bytes.len() - 1], limit).is_err());
        assert!(Buffer::new(&bytes, limit - 1).is_err());
        let mut short = vec![0; cells.len() - 4];
        assert!(Buffer::new(&bytes, limit).unwrap().decode(&mut short).is_err());
        let mut out = vec![0; cells.len()];
        for at in (16..bytes.len()).step_by(97) {
            let mut bad = bytes.clone();
            bad[at] ^= 0x55;
            // With any header, decoding stays within its buffers.
            if let Ok(buffer) = Buffer::new(&bad, limit) {
                let _ = buffer.decode(&mut out);
                let _ = buffer.decode_part(4..40_000, &mut out[..39_996]);
            }
        }
    }
}
