//! Blosc buffers of zstd streams, decoded block by block.
//!
//! c-blosc makes a zstd context for each block, which takes longer than decoding blocks of some KiB, and unshuffles
//! with the oldest vectors that the target has. Here the thread's context is reused, items are unshuffled straight to
//! their places with the best vectors of the machine, and of a partly wanted block only the wanted items.
//!
//! ```text
//!   16 bytes header │ i32 start of each block │ blocks: i32 length, stream (one, or one for each byte of an item)
//!   shuffled block    a₀ a₁ a₂ … b₀ b₁ b₂ … c₀ c₁ c₂ … d₀ d₁ d₂ …   rest
//!   items             a₀ b₀ c₀ d₀ a₁ b₁ c₁ d₁ a₂ b₂ c₂ d₂ …         rest
//! ```

use super::damaged;
use crate::source::unpack::{self, at_least, forget_large};
use std::cell::RefCell;
use std::ops::Range;
use tessera_kernels::shuffle::unshuffle;

const HEADER: usize = 16;
/// An item with more bytes than this is one stream.
const SPLITS_MAX: usize = 16;
/// Lower bound on the bytes of a stream.
const STREAM_MIN: usize = 128;

thread_local! {
    /// The block that the thread decodes.
    static BLOCK: RefCell<Vec<u8>> = const { RefCell::new(Vec::new()) };
}

/// A buffer that is decoded here.
pub(super) struct Frame<'a> {
    bytes: &'a [u8],
    shuffled: bool,
    split: bool,
    item: usize,
    block: usize,
    decoded: usize,
}

impl<'a> Frame<'a> {
    /// Accepts a buffer of zstd streams without bit shuffle; `None` if c-blosc must decode it or report its error.
    /// `bytes` is as long as the header says.
    pub(super) fn new(bytes: &'a [u8], decoded: usize) -> Option<Self> {
        let header = bytes.first_chunk::<HEADER>()?;
        let [version, stream_version, flags, item, ..] = *header;
        // Format 2 of buffers, format 1 of streams, which are zstd's (4 in the upper three bits). Bit 1 marks
        // uncompressed bytes, bit 2 bit shuffle; bit 3 is reserved.
        let known = version == 2 && stream_version == 1 && flags >> 5 == 4 && flags & 0b1110 == 0;
        let block = usize::try_from(number(bytes, 8)?).ok()?;
        let item = usize::from(item);
        if !known || item == 0 || block == 0 || block > decoded {
            return None;
        }
        let shuffled = flags & 1 != 0 && item > 1;
        Some(Frame { bytes, shuffled, split: flags & 0x10 == 0, item, block, decoded })
    }

    /// Writes the bytes `range` of the decoded buffer to `out`, which has that length.
    pub(super) fn decode(&self, range: Range<usize>, out: &mut [u8]) -> Result<(), String> {
        if range.end > self.decoded || range.len() != out.len() {
            return Err(damaged());
        }
        if range.is_empty() {
            return Ok(());
        }
        let mut left = out;
        for b in range.start / self.block..=(range.end - 1) / self.block {
            let first = b * self.block;
            let len = self.block.min(self.decoded - first);
            let wanted = range.start.max(first) - first..range.end.min(first + len) - first;
            let (to, rest) = left.split_at_mut(wanted.len());
            left = rest;
            self.decode_block(b, len, wanted, to)?;
        }
        Ok(())
    }

    fn decode_block(
        &self,
        b: usize,
        len: usize,
        wanted: Range<usize>,
        out: &mut [u8],
    ) -> Result<(), String> {
        let whole = wanted.len() == len;
        // Parts are unshuffled by items; unaligned parts are copied out of the block.
        let items = wanted.start.is_multiple_of(self.item)
            && (wanted.end.is_multiple_of(self.item) || wanted.end == len);
        if whole && !self.shuffled {
            return self.streams(b, len, out);
        }
        BLOCK.with_borrow_mut(|kept| {
            let room = at_least(kept, 2 * len);
            let (block, plain) = room.split_at_mut(len);
            let done = self.streams(b, len, block);
            if done.is_ok() {
                match (self.shuffled, items) {
                    (true, true) => unshuffle(block, self.item, wanted, out),
                    (true, false) => {
                        unshuffle(block, self.item, 0..len, plain);
                        out.copy_from_slice(&plain[wanted]);
                    }
                    (false, _) => out.copy_from_slice(&block[wanted]),
                }
            }
            forget_large(kept);
            done
        })
    }

    /// Decodes the streams of a block of `out.len()` bytes.
    fn streams(&self, b: usize, len: usize, out: &mut [u8]) -> Result<(), String> {
        let start = number(self.bytes, HEADER + 4 * b).ok_or_else(damaged)?;
        let mut at = usize::try_from(start).map_err(|_| damaged())?;
        let split = self.split
            && self.item <= SPLITS_MAX
            && len / self.item >= STREAM_MIN
            && len == self.block;
        let count = if split { self.item } else { 1 };
        let each = len / count;
        if each * count != len {
            return Err(damaged());
        }
        for to in out.chunks_exact_mut(each) {
            let n = usize::try_from(number(self.bytes, at).ok_or_else(damaged)?);
            let n = n.map_err(|_| damaged())?;
            let end = (at + 4).checked_add(n).ok_or_else(damaged)?;
            let stream = self.bytes.get(at + 4..end).ok_or_else(damaged)?;
            at = end;
            if n == each {
                to.copy_from_slice(stream);
            } else if unpack::whole(stream, to).map_err(|e| format!("blosc: {e}"))? != each {
                return Err(damaged());
            }
        }
        Ok(())
    }
}

/// Reads the `i32` at a position.
fn number(bytes: &[u8], at: usize) -> Option<i32> {
    Some(i32::from_le_bytes(*bytes.get(at..)?.first_chunk()?))
}
