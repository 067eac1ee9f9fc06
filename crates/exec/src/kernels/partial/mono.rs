#![expect(
    unsafe_code,
    reason = "cells are typed by pointer casts; each block says why it is sound"
)]
//! Reductions whose state is one value: sums and products of floats, products of integers, extremes.

use super::tail::tail;
use super::{Fns, HELD, Piece, PieceFn, RowsFn};
use crate::kernels::elem::{self, Elem, Float};
use crate::kernels::level::{Level, leveled};
use crate::kernels::ops::N;

/// A reduction whose state is one field and whose merge is the same as taking in a value.
pub(super) trait Mono {
    type T: Elem;
    type S: Copy;
    fn id() -> Self::S;
    fn put(s: Self::S, v: Self::T) -> Self::S;
    fn join(a: Self::S, b: Self::S) -> Self::S;
}

#[inline(always)]
unsafe fn mono_lanes<M: Mono>(p: &Piece) {
    // SAFETY: there are N lanes.
    let lanes = unsafe { &mut *p.lanes.cast::<[M::S; N]>() };
    if p.is_whole() {
        // Cells in the order of the memory: another one costs more of its bandwidth than lanes in registers save.
        let mut acc = *lanes;
        for t in 0..p.to / N {
            // SAFETY: the piece has so many tiles.
            let v = unsafe { &*p.values.cast::<[M::T; N]>().add(t) };
            for i in 0..N {
                acc[i] = M::put(acc[i], v[i]);
            }
        }
        *lanes = acc;
    } else {
        // SAFETY: the tile has N cells.
        let v = unsafe { &*p.values.cast::<[M::T; N]>() };
        for (a, v) in lanes[p.from..p.to].iter_mut().zip(&v[p.from..p.to]) {
            *a = M::put(*a, *v);
        }
    }
}
#[inline(always)]
unsafe fn mono_seq<M: Mono>(p: &Piece) {
    // SAFETY: `out` is a cell of the state; the tile has N cells.
    let (s, v) =
        unsafe { (&mut *p.fields[0].cast::<M::S>().add(p.out), &*p.values.cast::<[M::T; N]>()) };
    let mut x = *s;
    for v in &v[p.from..p.to] {
        x = M::put(x, *v);
    }
    *s = x;
}
#[inline(always)]
unsafe fn mono_row<M: Mono>(p: &Piece) {
    let n = p.to - p.from;
    // SAFETY: a kept run's cells are cells of the state from `out` on.
    let s = unsafe { std::slice::from_raw_parts_mut(p.fields[0].cast::<M::S>().add(p.out), n) };
    // SAFETY: the piece has so many values.
    let v = unsafe { std::slice::from_raw_parts(p.values.cast::<M::T>().add(p.from), n) };
    for (s, v) in s.iter_mut().zip(v) {
        *s = M::put(*s, *v);
    }
}
#[inline(always)]
unsafe fn mono_rows<M: Mono>(p: &Piece, values: &[*const u8]) {
    // SAFETY: a kept run's cells are cells of the state from `out` on.
    let s = unsafe { &mut *p.fields[0].cast::<M::S>().add(p.out).cast::<[M::S; N]>() };
    for (part, s) in s.chunks_exact_mut(HELD).enumerate() {
        let mut held = [M::id(); HELD];
        held.copy_from_slice(s);
        for v in values {
            // SAFETY: the tile has N cells.
            let v = unsafe { &*v.cast::<M::T>().add(part * HELD).cast::<[M::T; HELD]>() };
            for i in 0..HELD {
                held[i] = M::put(held[i], v[i]);
            }
        }
        s.copy_from_slice(&held);
    }
}
unsafe fn mono_group<M: Mono>(p: &Piece) {
    for i in p.from..p.to {
        // SAFETY: codes were checked to be below the number of groups.
        unsafe {
            let s = p.fields[0].cast::<M::S>().add(p.out + *p.codes.add(i - p.from) as usize);
            *s = M::put(*s, *p.values.cast::<M::T>().add(i));
        }
    }
}
#[inline(always)]
unsafe fn mono_fold<M: Mono>(p: &Piece) {
    // SAFETY: there are N lanes; `out` is a cell of the state.
    let (acc, s) =
        unsafe { (&mut *p.lanes.cast::<[M::S; N]>(), &mut *p.fields[0].cast::<M::S>().add(p.out)) };
    let mut w = N / 2;
    while w > 0 {
        for i in 0..w {
            acc[i] = M::join(acc[i], acc[i + w]);
        }
        w /= 2;
    }
    *s = M::join(*s, acc[0]);
    acc.fill(M::id());
}
unsafe fn mono_init<M: Mono>(p: &Piece) {
    // SAFETY: `from..to` are cells of the state.
    unsafe {
        std::slice::from_raw_parts_mut(p.fields[0].cast::<M::S>().add(p.from), p.to - p.from)
            .fill(M::id());
    }
}
unsafe fn mono_reset<M: Mono>(p: &Piece) {
    // SAFETY: there are N lanes.
    unsafe { &mut *p.lanes.cast::<[M::S; N]>() }.fill(M::id());
}
leveled!(pick_lanes, mono_lanes<M: Mono>(p: &Piece) as PieceFn);
leveled!(pick_row, mono_row<M: Mono>(p: &Piece) as PieceFn);
leveled!(pick_rows, mono_rows<M: Mono>(p: &Piece, values: &[*const u8]) as RowsFn);
leveled!(pick_fold, mono_fold<M: Mono>(p: &Piece) as PieceFn);

/// As [`mono`], for sums, which may do the last operations themselves.
pub(super) fn summed<M: Mono<T: Float>>(l: Level) -> Fns {
    Fns { tails: Some(tail::<M>), ..mono::<M>(l) }
}

/// How such a reduction takes cells in.
pub(super) fn mono<M: Mono>(l: Level) -> Fns {
    Fns {
        lanes: pick_lanes::<M>(l),
        seq: mono_seq::<M>,
        row: pick_row::<M>(l),
        rows: Some(pick_rows::<M>(l)),
        group: mono_group::<M>,
        fold: pick_fold::<M>(l),
        init: mono_init::<M>,
        reset: mono_reset::<M>,
        tails: None,
        uses_lanes: true,
    }
}

/// Names a one-field reduction.
macro_rules! monos {
    ($($name:ident<$b:ident>: $s:ty, $id:expr, |$x:ident, $v:ident| $put:expr, |$p:ident, $q:ident| $join:expr;)*) => { $(
        pub(super) struct $name<T>(std::marker::PhantomData<T>);
        impl<T: $b> Mono for $name<T> {
            type T = T;
            type S = $s;
            #[inline(always)] fn id() -> $s { $id }
            #[inline(always)] fn put($x: $s, $v: T) -> $s { $put }
            #[inline(always)] fn join($p: $s, $q: $s) -> $s { $join }
        }
    )* };
}
monos! {
    SumFloat<Float>: f64, 0.0, |s, v| s + v.to_f64(), |a, b| a + b;
    ProdFloat<Float>: f64, 1.0, |s, v| s * v.to_f64(), |a, b| a * b;
    Least<Elem>: T, T::top(), |s, v| elem::minimum(s, v), |a, b| elem::minimum(a, b);
    Greatest<Elem>: T, T::bottom(), |s, v| elem::maximum(s, v), |a, b| elem::maximum(a, b);
    LeastTotal<Float>: T, T::nan(), |s, v| elem::fmin(s, v), |a, b| elem::fmin(a, b);
}
pub(super) struct ProdInt;
impl Mono for ProdInt {
    type T = u64;
    type S = u64;
    #[inline(always)]
    fn id() -> u64 {
        1
    }
    #[inline(always)]
    fn put(s: u64, v: u64) -> u64 {
        s.wrapping_mul(v)
    }
    #[inline(always)]
    fn join(a: u64, b: u64) -> u64 {
        a.wrapping_mul(b)
    }
}

/// The least `bool`: they order as bytes, but the greatest is 1.
pub(super) struct LeastBool;
impl Mono for LeastBool {
    type T = u8;
    type S = u8;
    #[inline(always)]
    fn id() -> u8 {
        1
    }
    #[inline(always)]
    fn put(s: u8, v: u8) -> u8 {
        s & v
    }
    #[inline(always)]
    fn join(a: u8, b: u8) -> u8 {
        a & b
    }
}
/// The greatest `bool`.
pub(super) struct GreatestBool;
impl Mono for GreatestBool {
    type T = u8;
    type S = u8;
    #[inline(always)]
    fn id() -> u8 {
        0
    }
    #[inline(always)]
    fn put(s: u8, v: u8) -> u8 {
        s | v
    }
    #[inline(always)]
    fn join(a: u8, b: u8) -> u8 {
        a | b
    }
}
