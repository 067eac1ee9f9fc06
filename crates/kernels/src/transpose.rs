#![expect(unsafe_code, reason = "vector instructions take addresses; blocks say why this is sound")]
//! Squares of 8 by 8 cells, transposed in registers.
//!
//! ```text
//!   a b c d           a e i m        rows in, columns out: pairs of cells of two rows are interleaved,
//!   e f g h    ──▶    b f j n        then pairs of those, until each row is a former column
//!   i j k l           c g k o
//!   m n o p           d h l p
//! ```
//! For the plain loops the compiler emits single loads and stores, at a third of the rate.

use super::level::Level;

/// Edge of the squares: a cache line of 8-byte cells.
pub(crate) const SQUARE: usize = 8;

/// Transposes squares that are side by side in the source and stacked in the target. Arguments: the first byte and the
/// row stride in bytes of both sides, and the number of squares.
///
/// # Safety
/// All rows of all squares are valid to read or to write, and the sides do not overlap.
pub(crate) type TurnFn = unsafe fn(*const u8, isize, *mut u8, isize, usize);

/// Returns the function for squares of cells of `size` bytes; `None` where plain loops are as fast.
#[cfg(target_arch = "x86_64")]
pub(crate) fn squares(level: Level, size: usize) -> Option<TurnFn> {
    match size {
        4 if level >= Level::Avx2 => Some(x86::four),
        8 if level >= Level::Avx2 => Some(x86::eight),
        _ => None,
    }
}

/// Returns the function for squares of cells of `size` bytes; `None` where plain loops are as fast.
#[cfg(not(target_arch = "x86_64"))]
pub(crate) fn squares(_: Level, _: usize) -> Option<TurnFn> {
    None
}

/// Transposes `count` squares. Cell (0, 0) of the first is at element `f` and `t`, its rows are `from_step` and
/// `to_step` elements apart, and cells of a row are contiguous on both sides.
///
/// # Panics
/// If a square exceeds a side.
#[inline(always)]
pub(crate) fn turn<const N: usize>(
    turn: TurnFn,
    from: &[u8],
    (f, from_step): (i64, i64),
    to: &mut [u8],
    (t, to_step): (i64, i64),
    count: usize,
) {
    let edge = SQUARE as i64;
    let within = |first: i64, step: i64, rows: i64, row: i64, cells: usize| {
        let last = first + (rows - 1) * step;
        first.min(last) >= 0 && first.max(last) + row <= cells as i64
    };
    let all = edge * count as i64;
    assert!(within(f, from_step, edge, all, from.len() / N), "squares leave the source");
    assert!(within(t, to_step, all, edge, to.len() / N), "squares leave the target");
    let bytes = N as isize;
    // SAFETY: the first and the last row of both sides were checked to lie within them, and so do all rows in between;
    // a mutable borrow overlaps nothing.
    unsafe {
        turn(
            from.as_ptr().offset(f as isize * bytes),
            from_step as isize * bytes,
            to.as_mut_ptr().offset(t as isize * bytes),
            to_step as isize * bytes,
            count,
        );
    }
}

#[cfg(target_arch = "x86_64")]
mod x86 {
    use super::SQUARE;
    use std::arch::x86_64::*;

    /// Squares of 8-byte cells, in quarters of 4 by 4.
    #[target_feature(enable = "avx2")]
    pub(super) unsafe fn eight(
        from: *const u8,
        from_step: isize,
        to: *mut u8,
        to_step: isize,
        count: usize,
    ) {
        const HALF: isize = SQUARE as isize / 2;
        for square in 0..count as isize {
            for (i, j) in [(0, 0), (0, HALF), (HALF, 0), (HALF, HALF)] {
                // SAFETY: the caller gives `count` squares on both sides, and these are quarters of them.
                unsafe {
                    let f = from.offset((square * SQUARE as isize + i) * 8 + j * from_step);
                    let t = to.offset((square * SQUARE as isize + i) * to_step + j * 8);
                    let row = |k: isize| _mm256_loadu_pd(f.offset(k * from_step).cast());
                    let (a, b, c, d) = (row(0), row(1), row(2), row(3));
                    let (ab, cd) = (_mm256_unpacklo_pd(a, b), _mm256_unpacklo_pd(c, d));
                    let (ba, dc) = (_mm256_unpackhi_pd(a, b), _mm256_unpackhi_pd(c, d));
                    let put = |k: isize, v| _mm256_storeu_pd(t.offset(k * to_step).cast(), v);
                    put(0, _mm256_permute2f128_pd(ab, cd, 0x20));
                    put(1, _mm256_permute2f128_pd(ba, dc, 0x20));
                    put(2, _mm256_permute2f128_pd(ab, cd, 0x31));
                    put(3, _mm256_permute2f128_pd(ba, dc, 0x31));
                }
            }
        }
    }

    /// Squares of 4-byte cells: a row is a register.
    #[target_feature(enable = "avx2")]
    pub(super) unsafe fn four(
        from: *const u8,
        from_step: isize,
        to: *mut u8,
        to_step: isize,
        count: usize,
    ) {
        for square in 0..count as isize {
            // SAFETY: the caller gives `count` squares on both sides, and these are rows of them.
            unsafe {
                let f = from.offset(square * SQUARE as isize * 4);
                let t = to.offset(square * SQUARE as isize * to_step);
                let put = |k: isize, v| _mm256_storeu_ps(t.offset(k * to_step).cast(), v);
                // Halves of rows 0 and 4, 1 and 5, and so on side by side: each step on rows 0 to 3 applies to rows 4
                // to 7 as well.
                for half in [0, 4] {
                    let row = |k: isize| {
                        let low = _mm_loadu_ps(f.offset(k * from_step + half * 4).cast());
                        let high = _mm_loadu_ps(f.offset((k + 4) * from_step + half * 4).cast());
                        _mm256_insertf128_ps(_mm256_castps128_ps256(low), high, 1)
                    };
                    let (a, b, c, d) = (row(0), row(1), row(2), row(3));
                    let (ab, cd) = (_mm256_unpacklo_ps(a, b), _mm256_unpacklo_ps(c, d));
                    let (ba, dc) = (_mm256_unpackhi_ps(a, b), _mm256_unpackhi_ps(c, d));
                    put(half, _mm256_shuffle_ps(ab, cd, 0b01_00_01_00));
                    put(half + 1, _mm256_shuffle_ps(ab, cd, 0b11_10_11_10));
                    put(half + 2, _mm256_shuffle_ps(ba, dc, 0b01_00_01_00));
                    put(half + 3, _mm256_shuffle_ps(ba, dc, 0b11_10_11_10));
                }
            }
        }
    }
}
