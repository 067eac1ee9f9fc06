#![expect(unsafe_code, reason = "vector stores take addresses; each block says why it is sound")]
//! Stores past the caches, and reads ahead of the processor.
//!
//! A line that is stored plainly is read from memory first, and pushes another one out of the caches. Where a large
//! result is written that nobody reads soon, both are wasted.
//!
//! Cells that lie one after the other are fetched by the processor itself, which sees no further than its queue of
//! instructions and the page that it is in. Where each cell takes several of them, fetching them by an instruction hides
//! the rest: a seventh of the time of means and variances on Zen 3. Sums of what is not widened lose by it, and on Zen 4
//! nothing gains: machines with AVX-512 fetch nothing.

use super::level::Level;

/// Copies bytes past the caches.
///
/// # Safety
/// The target is aligned to 64 bytes, both sides do not overlap and are good for as many bytes, a multiple of 64.
pub type StreamFn = unsafe fn(*mut u8, *const u8, usize);

/// Bytes by which a copy fetches ahead of what it stores.
#[cfg(target_arch = "x86_64")]
const FETCHED: usize = 1024;

/// Bytes that come from a place where they were put together, at most: the block of an operation.
#[cfg(target_arch = "x86_64")]
const BUFFER: usize = 4096;

/// The copy for a level; `None` where a plain store does as well.
#[cfg(target_arch = "x86_64")]
pub fn copy(level: Level) -> Option<StreamFn> {
    use std::arch::x86_64::*;
    #[target_feature(enable = "avx512f")]
    unsafe fn avx512(to: *mut u8, from: *const u8, bytes: usize) {
        for at in (0..bytes).step_by(64) {
            // SAFETY: both sides are good for so many bytes, a multiple of a line, and `to` is aligned to one, as of [`StreamFn`].
            unsafe {
                _mm512_stream_si512(to.add(at).cast(), _mm512_loadu_si512(from.add(at).cast()))
            };
        }
    }
    unsafe fn baseline(to: *mut u8, from: *const u8, bytes: usize) {
        for line in (0..bytes).step_by(LINE) {
            // Not what is in the caches already, as a buffer is, and not beyond the end: who copies rows from anywhere
            // has no use for what lies there.
            if bytes > BUFFER && line + FETCHED < bytes {
                fetch(from.wrapping_add(line + FETCHED), LINE);
            }
            for at in (line..line + LINE).step_by(16) {
                // SAFETY: both sides are good for so many bytes, as of [`StreamFn`]; every x86-64 has these instructions.
                unsafe {
                    _mm_stream_si128(to.add(at).cast(), _mm_loadu_si128(from.add(at).cast()))
                };
            }
        }
    }
    Some(if level == Level::Avx512 { avx512 } else { baseline })
}

/// The copy for a level; `None` where a plain store does as well.
#[cfg(not(target_arch = "x86_64"))]
pub fn copy(_: Level) -> Option<StreamFn> {
    None
}

/// Bytes of a line of the caches.
pub const LINE: usize = 64;

/// Bytes by which [`ahead`] is ahead: half of a page.
const AHEAD: usize = 2048;

/// Fetches as many cells as are read next, from some way behind them.
#[inline(always)]
pub fn ahead<T>(at: *const T, cells: usize) {
    fetch(at.wrapping_byte_add(AHEAD), cells);
}

/// Is fetching by an instruction worth its slot?
#[cfg(target_arch = "x86_64")]
static IS_WORTH: std::sync::LazyLock<bool> =
    std::sync::LazyLock::new(|| Level::detect() < Level::Avx512);

/// Fetches some cells into the first-level cache. The address may be any: it is a hint.
#[inline(always)]
pub fn fetch<T>(at: *const T, cells: usize) {
    #[cfg(target_arch = "x86_64")]
    if *IS_WORTH {
        for cell in (0..cells).step_by(LINE / size_of::<T>()) {
            use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
            // SAFETY: every machine of this kind has the instruction, which never faults.
            unsafe { _mm_prefetch(at.wrapping_add(cell).cast(), _MM_HINT_T0) };
        }
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = (at, cells);
}

/// Copies bytes, past the caches where a whole line is theirs. The stores need a [`fence`].
///
/// Both sides are equally long.
#[inline(always)]
pub fn store(past: StreamFn, to: &mut [u8], from: &[u8]) {
    let head = to.as_ptr().align_offset(LINE).min(to.len());
    let lines = (to.len() - head) / LINE * LINE;
    let (first, rest) = to.split_at_mut(head);
    let (lines, last) = rest.split_at_mut(lines);
    let (from_first, from_rest) = from.split_at(head);
    let (from_lines, from_last) = from_rest.split_at(lines.len());
    first.copy_from_slice(from_first);
    // SAFETY: the first line begins where a line of the caches does, there are as many bytes on both sides, and what is
    // borrowed mutably overlaps nothing.
    unsafe { past(lines.as_mut_ptr(), from_lines.as_ptr(), lines.len()) };
    last.copy_from_slice(from_last);
}

/// Orders the stores before those that follow: another thread that is told of the cells must see them.
pub fn fence() {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: a fence touches no memory.
    unsafe {
        std::arch::x86_64::_mm_sfence();
    }
}
