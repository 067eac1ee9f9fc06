#![expect(unsafe_code, reason = "vector stores take addresses; each block says why it is sound")]
//! Stores past the caches, and software prefetch.
//!
//! A plain store first reads its cache line from memory, and evicts another line. For a large result that is not read
//! soon, both are wasted.
//!
//! The hardware prefetches contiguous cells, but it sees no further than its instruction queue and the current page. If
//! each cell takes several instructions, software prefetch hides the remaining latency: a seventh of the time of means
//! and variances on Zen 3. Sums of cells that are not widened get slower by it, and on Zen 4 nothing gains: machines
//! with AVX-512 do not prefetch.

use super::level::Level;

/// Copies bytes past the caches.
///
/// # Safety
/// The target is aligned to 64 bytes, the sides do not overlap and are valid for this many bytes, a multiple of 64.
pub type StreamFn = unsafe fn(*mut u8, *const u8, usize);

/// Distance in bytes by which a copy prefetches.
#[cfg(target_arch = "x86_64")]
const FETCHED: usize = 1024;

/// Upper bound on the bytes of a copy from a buffer: the block of an operation.
#[cfg(target_arch = "x86_64")]
const BUFFER: usize = 4096;

/// Returns the copy of a level; `None` where plain stores are as fast.
#[cfg(target_arch = "x86_64")]
pub fn copy(level: Level) -> Option<StreamFn> {
    use std::arch::x86_64::*;
    #[target_feature(enable = "avx512f")]
    unsafe fn avx512(to: *mut u8, from: *const u8, bytes: usize) {
        for at in (0..bytes).step_by(64) {
            // SAFETY: both sides are valid for `bytes`, a multiple of a line, and `to` is aligned to one, by the
            // contract of [`StreamFn`].
            unsafe {
                _mm512_stream_si512(to.add(at).cast(), _mm512_loadu_si512(from.add(at).cast()))
            };
        }
    }
    unsafe fn baseline(to: *mut u8, from: *const u8, bytes: usize) {
        for line in (0..bytes).step_by(LINE) {
            // Not for bytes in the caches already, such as a buffer, and not beyond the end: a caller that copies
            // scattered rows does not use the bytes there.
            if bytes > BUFFER && line + FETCHED < bytes {
                fetch(from.wrapping_add(line + FETCHED), LINE);
            }
            for at in (line..line + LINE).step_by(16) {
                // SAFETY: both sides are valid for `bytes`, by the contract of [`StreamFn`]; every x86-64 has these
                // instructions.
                unsafe {
                    _mm_stream_si128(to.add(at).cast(), _mm_loadu_si128(from.add(at).cast()))
                };
            }
        }
    }
    Some(if level == Level::Avx512 { avx512 } else { baseline })
}

/// Returns the copy of a level; `None` where plain stores are as fast.
#[cfg(not(target_arch = "x86_64"))]
pub fn copy(_: Level) -> Option<StreamFn> {
    None
}

/// Bytes of a cache line.
pub const LINE: usize = 64;

/// Distance in bytes by which [`ahead`] prefetches: half of a page.
const AHEAD: usize = 2048;

/// Prefetches `cells` cells at some distance ahead of the read position.
#[inline(always)]
pub fn ahead<T>(at: *const T, cells: usize) {
    fetch(at.wrapping_byte_add(AHEAD), cells);
}

/// True if software prefetch pays off.
#[cfg(target_arch = "x86_64")]
static IS_WORTH: std::sync::LazyLock<bool> =
    std::sync::LazyLock::new(|| Level::detect() < Level::Avx512);

/// Prefetches some cells into the first-level cache. Any address is allowed: it is a hint.
#[inline(always)]
pub fn fetch<T>(at: *const T, cells: usize) {
    #[cfg(target_arch = "x86_64")]
    if *IS_WORTH {
        for cell in (0..cells).step_by(LINE / size_of::<T>()) {
            use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
            // SAFETY: every x86-64 machine has the instruction, which never faults.
            unsafe { _mm_prefetch(at.wrapping_add(cell).cast(), _MM_HINT_T0) };
        }
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = (at, cells);
}

/// Copies bytes, past the caches for whole cache lines. The stores need a [`fence`].
///
/// Both sides have the same length.
#[inline(always)]
pub fn store(past: StreamFn, to: &mut [u8], from: &[u8]) {
    let head = to.as_ptr().align_offset(LINE).min(to.len());
    let lines = (to.len() - head) / LINE * LINE;
    let (first, rest) = to.split_at_mut(head);
    let (lines, last) = rest.split_at_mut(lines);
    let (from_first, from_rest) = from.split_at(head);
    let (from_lines, from_last) = from_rest.split_at(lines.len());
    first.copy_from_slice(from_first);
    // SAFETY: the first line is aligned to a cache line, both sides have as many bytes, and a mutable borrow overlaps
    // nothing.
    unsafe { past(lines.as_mut_ptr(), from_lines.as_ptr(), lines.len()) };
    last.copy_from_slice(from_last);
}

/// Orders the stores before subsequent ones: another thread that is notified of the cells must see them.
pub fn fence() {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: a fence touches no memory.
    unsafe {
        std::arch::x86_64::_mm_sfence();
    }
}
