#![expect(unsafe_code, reason = "cells are typed by pointer casts; blocks say why they are sound")]
//! Sums of integers: exact, so the order of cells does not matter. The state is 128 bits in two fields.

use super::{Fns, HELD, LinesFn, Piece, PieceFn, RowsFn, nothing};
use crate::level::{Level, leveled};

/// Cells of a type that are accumulated into 128 bits.
pub(super) trait Wide {
    type T: Copy;
    /// Sum of at most [`BLOCK`] values.
    fn sum(v: &[Self::T]) -> i128;
    fn high(v: Self::T) -> i64;
    fn low(v: Self::T) -> u64;
    /// True if the sum of a band of rows fits in a signed 64-bit integer.
    const NARROW: bool;
}

/// Lanes of a sum: few enough to stay in registers.
const LANES: usize = 32;
/// Cells that are added before the sum is widened: a 16-bit lane holds the sum of 256 bytes.
const BLOCK: usize = LANES << 8;

/// Cells narrower than 32 bits, accumulated in lanes of twice their width: a block is too short to overflow them.
pub(super) struct Narrow<T, A>(std::marker::PhantomData<(T, A)>);
impl<T, A> Wide for Narrow<T, A>
where
    T: Copy + Into<i64> + Into<A>,
    A: Copy + Default + Into<i64> + std::ops::AddAssign,
{
    type T = T;
    const NARROW: bool = true;
    #[inline(always)]
    fn sum(v: &[T]) -> i128 {
        let mut lanes = [A::default(); LANES];
        let (parts, rest) = v.as_chunks::<LANES>();
        for part in parts {
            for i in 0..LANES {
                lanes[i] += part[i].into();
            }
        }
        let mut sum = 0i64;
        for lane in lanes {
            sum = sum.wrapping_add(lane.into());
        }
        for x in rest {
            sum = sum.wrapping_add((*x).into());
        }
        i128::from(sum)
    }
    #[inline(always)]
    fn high(v: T) -> i64 {
        Into::<i64>::into(v) >> 63
    }
    #[inline(always)]
    fn low(v: T) -> u64 {
        Into::<i64>::into(v) as u64
    }
}

/// Cells of 32 bits: the sum of a block fits in 64 bits.
pub(super) struct Half<T>(std::marker::PhantomData<T>);
impl<T: Copy + Into<i64>> Wide for Half<T> {
    type T = T;
    const NARROW: bool = true;
    #[inline(always)]
    fn sum(v: &[T]) -> i128 {
        let mut sum = 0i64;
        for x in v {
            sum = sum.wrapping_add((*x).into());
        }
        i128::from(sum)
    }
    #[inline(always)]
    fn high(v: T) -> i64 {
        v.into() >> 63
    }
    #[inline(always)]
    fn low(v: T) -> u64 {
        v.into() as u64
    }
}

/// Signed cells of 64 bits.
pub(super) struct Signed;
/// Unsigned cells of 64 bits.
pub(super) struct Unsigned;

/// Sum of at most [`BLOCK`] values, from two sums: that of all bits modulo 2^64, and that of the upper 32 bits.
///
/// The upper bits of a signed value are those of the value plus a bias of 2^63, which is unsigned: every machine has
/// vector shifts that insert zeros, but not shifts that insert signs.
macro_rules! halves {
    ($v:ident, $bias:expr) => {{
        let bias: u64 = $bias;
        // Scalar sums, which the compiler turns into lanes; arrays of lanes become gathers.
        let (mut sum, mut upper) = (0u64, 0u64);
        for x in $v {
            sum = sum.wrapping_add(*x as u64);
            upper = upper.wrapping_add((*x as u64 ^ bias) >> 32);
        }
        let upper = upper as i64 - $v.len() as i64 * (bias >> 32) as i64;
        // The lower halves are the remainder: too few to reach 2^64.
        let low = sum.wrapping_sub((upper << 32) as u64);
        (i128::from(upper) << 32) + i128::from(low)
    }};
}
impl Wide for Signed {
    type T = i64;
    const NARROW: bool = false;
    #[inline(always)]
    fn sum(v: &[i64]) -> i128 {
        halves!(v, 1 << 63)
    }
    #[inline(always)]
    fn high(v: i64) -> i64 {
        v >> 63
    }
    #[inline(always)]
    fn low(v: i64) -> u64 {
        v as u64
    }
}
impl Wide for Unsigned {
    type T = u64;
    const NARROW: bool = false;
    #[inline(always)]
    fn sum(v: &[u64]) -> i128 {
        halves!(v, 0)
    }
    #[inline(always)]
    fn high(_: u64) -> i64 {
        0
    }
    #[inline(always)]
    fn low(v: u64) -> u64 {
        v
    }
}

/// Sum of any number of values.
#[inline(always)]
fn sum<W: Wide>(v: &[W::T]) -> i128 {
    // Loops are written out: closures called by a library function are compiled for the baseline.
    let mut sum = 0;
    for block in v.chunks(BLOCK) {
        sum += W::sum(block);
    }
    sum
}
#[inline(always)]
unsafe fn wide_seq<W: Wide>(p: &Piece) {
    // SAFETY: the piece has values up to `to`; `out` is a cell of both fields.
    unsafe {
        let v = p.values.cast::<W::T>().add(p.from);
        add_wide(p, p.out, sum::<W>(std::slice::from_raw_parts(v, p.to - p.from)));
    }
}
#[inline(always)]
unsafe fn wide_lines<W: Wide>(p: &Piece, len: usize, many: usize) {
    // SAFETY: the runs are contiguous.
    let v = unsafe { std::slice::from_raw_parts(p.values.cast::<W::T>(), many * len) };
    for (k, run) in v.chunks_exact(len).enumerate() {
        // SAFETY: the state has a cell for each run.
        unsafe { add_wide(p, p.out + k, sum::<W>(run)) };
    }
}
/// # Safety
/// `out` is a cell of both fields.
#[inline(always)]
unsafe fn add_wide(p: &Piece, out: usize, v: i128) {
    // SAFETY: both fields have a cell at `out`.
    unsafe {
        let (lo, hi) = (p.fields[0].cast::<u64>().add(out), p.fields[1].cast::<i64>().add(out));
        let s = (i128::from(*hi) << 64 | i128::from(*lo)) + v;
        *lo = s as u64;
        *hi = (s >> 64) as i64;
    }
}
#[inline(always)]
unsafe fn wide_row<W: Wide>(p: &Piece) {
    let n = p.to - p.from;
    // SAFETY: a kept run's cells are cells of the state from `out` on; there are n values; fields do not overlap.
    let (lo, hi, v) = unsafe {
        (
            std::slice::from_raw_parts_mut(p.fields[0].cast::<u64>().add(p.out), n),
            std::slice::from_raw_parts_mut(p.fields[1].cast::<i64>().add(p.out), n),
            std::slice::from_raw_parts(p.values.cast::<W::T>().add(p.from), n),
        )
    };
    for ((lo, hi), v) in lo.iter_mut().zip(hi).zip(v) {
        let s = lo.wrapping_add(W::low(*v));
        *hi += W::high(*v) + i64::from(s < *lo);
        *lo = s;
    }
}
#[inline(always)]
unsafe fn wide_rows<W: Wide>(p: &Piece, values: &[*const u8]) {
    let n = p.to - p.from;
    // SAFETY: a kept run's cells are cells of the state from `out` on; fields do not overlap.
    let (lo, hi) = unsafe {
        (
            std::slice::from_raw_parts_mut(p.fields[0].cast::<u64>().add(p.out), n),
            std::slice::from_raw_parts_mut(p.fields[1].cast::<i64>().add(p.out), n),
        )
    };
    let (los, last_lo) = lo.as_chunks_mut::<HELD>();
    let (his, last_hi) = hi.as_chunks_mut::<HELD>();
    let done = los.len() * HELD;
    for (part, (lo, hi)) in los.iter_mut().zip(his).enumerate() {
        // SAFETY: every row has n values.
        unsafe { held::<W, HELD>(lo, hi, values, part * HELD) };
    }
    for (k, (lo, hi)) in last_lo.iter_mut().zip(last_hi).enumerate() {
        let (lo, hi) = (std::array::from_mut(lo), std::array::from_mut(hi));
        // SAFETY: as above.
        unsafe { held::<W, 1>(lo, hi, values, done + k) };
    }
}
/// Accumulates cells `from..from + L` of some rows into as many cells of the state.
///
/// # Safety
/// Every row has `from + L` cells.
#[inline(always)]
unsafe fn held<W: Wide, const L: usize>(
    lo: &mut [u64; L],
    hi: &mut [i64; L],
    rows: &[*const u8],
    from: usize,
) {
    // SAFETY: every row has `from + L` cells.
    let cells = |v: &*const u8| unsafe { &*v.cast::<W::T>().add(from).cast::<[W::T; L]>() };
    if W::NARROW {
        let mut sums = [0i64; L];
        for v in rows.iter().map(cells) {
            for i in 0..L {
                sums[i] += W::low(v[i]) as i64;
            }
        }
        for i in 0..L {
            let s = lo[i].wrapping_add(sums[i] as u64);
            hi[i] += (sums[i] >> 63) + i64::from(s < lo[i]);
            lo[i] = s;
        }
        return;
    }
    let (mut low, mut high) = (*lo, *hi);
    for v in rows.iter().map(cells) {
        for i in 0..L {
            let s = low[i].wrapping_add(W::low(v[i]));
            high[i] += W::high(v[i]) + i64::from(s < low[i]);
            low[i] = s;
        }
    }
    (*lo, *hi) = (low, high);
}
unsafe fn wide_group<W: Wide>(p: &Piece) {
    for i in p.from..p.to {
        // SAFETY: codes were checked to be below the number of groups.
        unsafe {
            let v = *p.values.cast::<W::T>().add(i);
            let out = p.out + *p.codes.add(i - p.from) as usize;
            add_wide(p, out, i128::from(W::high(v)) << 64 | i128::from(W::low(v)));
        }
    }
}
unsafe fn wide_init(p: &Piece) {
    // SAFETY: `from..to` are cells of both fields.
    unsafe {
        std::slice::from_raw_parts_mut(p.fields[0].cast::<u64>().add(p.from), p.to - p.from)
            .fill(0);
        std::slice::from_raw_parts_mut(p.fields[1].cast::<i64>().add(p.from), p.to - p.from)
            .fill(0);
    }
}
leveled!(pick_wide_seq, wide_seq<W: Wide>(p: &Piece) as PieceFn);
leveled!(pick_wide_lines, wide_lines<W: Wide>(p: &Piece, len: usize, many: usize) as LinesFn);
leveled!(pick_wide_rows, wide_rows<W: Wide>(p: &Piece, values: &[*const u8]) as RowsFn);
leveled!(pick_wide_row, wide_row<W: Wide>(p: &Piece) as PieceFn);

/// The functions of such a sum.
pub(super) fn wide<W: Wide>(l: Level) -> Fns {
    Fns {
        lanes: pick_wide_seq::<W>(l),
        seq: pick_wide_seq::<W>(l),
        row: pick_wide_row::<W>(l),
        rows: Some(pick_wide_rows::<W>(l)),
        lines: Some(pick_wide_lines::<W>(l)),
        by_tiles: false,
        has_positions: false,
        group: wide_group::<W>,
        fold: nothing,
        init: wide_init,
        reset: nothing,
        tails: None,
        is_sum: false,
        with_sum: None,
        uses_lanes: false,
    }
}
