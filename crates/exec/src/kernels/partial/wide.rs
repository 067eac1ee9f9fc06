#![expect(
    unsafe_code,
    reason = "cells are typed by pointer casts; each block says why it is sound"
)]
//! Sums of integers: exact, so that the order of cells does not matter. The state is 128 bits in two fields.

use super::{Fns, Piece, PieceFn, nothing};
use crate::kernels::level::{Level, leveled};

/// Cells of a type, on their way into 128 bits.
pub(super) trait Wide {
    type T: Copy;
    /// Sum of no more values than a block of tiles has.
    fn sum(v: &[Self::T]) -> i128;
    fn high(v: Self::T) -> i64;
    fn low(v: Self::T) -> u64;
}

/// Lanes of a sum: few enough for the registers.
const LANES: usize = 32;

/// Cells of less than 32 bits, which add up in lanes of twice as many: a piece has too few to overflow them.
pub(super) struct Narrow<T, A>(std::marker::PhantomData<(T, A)>);
impl<T, A> Wide for Narrow<T, A>
where
    T: Copy + Into<i64> + Into<A>,
    A: Copy + Default + Into<i64> + std::ops::AddAssign,
{
    type T = T;
    #[inline(always)]
    fn sum(v: &[T]) -> i128 {
        let mut lanes = [A::default(); LANES];
        let (parts, rest) = v.as_chunks::<LANES>();
        for part in parts {
            for i in 0..LANES {
                lanes[i] += part[i].into();
            }
        }
        let rest = rest.iter().fold(0i64, |s, x| s.wrapping_add((*x).into()));
        i128::from(lanes.iter().fold(rest, |s, x| s.wrapping_add((*x).into())))
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

/// Cells of 32 bits: the sum of a piece fits 64.
pub(super) struct Half<T>(std::marker::PhantomData<T>);
impl<T: Copy + Into<i64>> Wide for Half<T> {
    type T = T;
    #[inline(always)]
    fn sum(v: &[T]) -> i128 {
        i128::from(v.iter().fold(0i64, |s, x| s.wrapping_add((*x).into())))
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

/// Cells of 64 bits with a sign.
pub(super) struct Signed;
/// Cells of 64 bits without one.
pub(super) struct Unsigned;

/// Sums of all bits, modulo 2^64, and of the upper 32 ones.
macro_rules! halves {
    ($v:ident, $t:ty) => {{
        let (mut all, mut high) = ([0; LANES], [0; LANES]);
        let (tiles, rest) = $v.as_chunks::<LANES>();
        for tile in tiles {
            for i in 0..LANES {
                all[i] = <$t>::wrapping_add(all[i], tile[i]);
                high[i] += tile[i] >> 32;
            }
        }
        let all = all.iter().chain(rest).fold(0, |s: $t, x| s.wrapping_add(*x));
        let high = rest.iter().fold(high.iter().sum::<$t>(), |s, x| s + (*x >> 32));
        // The lower halves are what is left: few enough that they do not reach 2^64.
        let low = all.wrapping_sub(high << 32) as u64;
        (i128::from(high) << 32) + i128::from(low)
    }};
}
impl Wide for Signed {
    type T = i64;
    #[inline(always)]
    fn sum(v: &[i64]) -> i128 {
        halves!(v, i64)
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
    #[inline(always)]
    fn sum(v: &[u64]) -> i128 {
        halves!(v, u64)
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

#[inline(always)]
unsafe fn wide_seq<W: Wide>(p: &Piece) {
    // SAFETY: the piece has so many values; `out` is a cell of both fields.
    unsafe {
        let v = p.values.cast::<W::T>().add(p.from);
        add_wide(p, p.out, W::sum(std::slice::from_raw_parts(v, p.to - p.from)));
    }
}
/// # Safety
/// `out` is a cell of both fields.
#[inline(always)]
unsafe fn add_wide(p: &Piece, out: usize, v: i128) {
    // SAFETY: the caller's promise.
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
leveled!(pick_wide_row, wide_row<W: Wide>(p: &Piece) as PieceFn);

/// How such a sum takes cells in.
pub(super) fn wide<W: Wide>(l: Level) -> Fns {
    Fns {
        lanes: pick_wide_seq::<W>(l),
        seq: pick_wide_seq::<W>(l),
        row: pick_wide_row::<W>(l),
        rows: None,
        group: wide_group::<W>,
        fold: nothing,
        init: wide_init,
        reset: nothing,
        tails: None,
        uses_lanes: false,
    }
}
