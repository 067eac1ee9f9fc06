#![expect(unsafe_code, reason = "cells are typed by pointer casts; blocks say why they are sound")]
//! Sums and extremes with the last operations of a program fused into their lanes or rows.
//!
//! Writing the result of a cheap operation and reading it again for a sum costs more than the operation, while memory
//! is idle. The adders have time while the divider computes a root, but only in the same loop. Each tail rounds as the
//! separate operations do, so fusing changes no bit.

use super::lanes::Lanes;
use super::mono::{Mono, widens};
use super::{Piece, PieceFn};
use crate::elem::{Elem, Float};
use crate::level::{Level, leveled};
use crate::ops::N;
use crate::stream::ahead;

/// The accumulated value as a function of the values `a` and, if present, their companion `b`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Tail {
    /// `a * b`.
    Product,
    /// `(a - b)²`.
    SquaredDifference,
    /// `|a - b|`.
    AbsoluteDifference,
    /// `a` where the `bool` b is true, else 0.
    Masked,
    /// `a` where `b` compares true with the parameter, else 0.
    Chosen(Comparison),
    /// `sqrt(a)`.
    Root,
}

/// A comparison of two floats.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Comparison {
    Eq,
    Ne,
    Lt,
    Le,
    Gt,
    Ge,
}

/// The functions of a reduction with a tail: as [`super::Fns`], but a piece's validity pointer refers to the companion
/// values.
#[derive(Debug, Clone, Copy)]
pub(crate) struct TailFns {
    /// A reduced run, in lanes.
    pub(crate) lanes: PieceFn,
    /// A kept run.
    pub(crate) row: PieceFn,
}

/// Picks the functions of a reduction with a tail.
pub(crate) type TailFn = fn(Tail, Level) -> TailFns;

/// The accumulated value of a value and its companion of type `C`.
trait Joint<T: Float> {
    type C: Copy;
    fn of(a: T, b: Self::C, parameter: T) -> T;
}

/// Defines tails: `Product: T, |a, b, k| a.mul(b)`.
macro_rules! joints {
    ($($name:ident: $c:ty, |$a:ident, $b:ident, $k:ident| $e:expr;)*) => { $(
        struct $name;
        impl<T: Float> Joint<T> for $name {
            type C = $c;
            #[inline(always)]
            fn of($a: T, $b: $c, $k: T) -> T { $e }
        }
    )* };
}
joints! {
    Product: T, |a, b, _k| a.mul(b);
    SquaredDifference: T, |a, b, _k| { let d = a.sub(b); d.mul(d) };
    AbsoluteDifference: T, |a, b, _k| a.sub(b).abs();
    Masked: u8, |a, b, _k| a.kept(b != 0);
    WhereEq: T, |a, b, k| a.kept(b == k);
    WhereNe: T, |a, b, k| a.kept(b != k);
    WhereLt: T, |a, b, k| a.kept(b < k);
    WhereLe: T, |a, b, k| a.kept(b <= k);
    WhereGt: T, |a, b, k| a.kept(b > k);
    WhereGe: T, |a, b, k| a.kept(b >= k);
    Root: T, |a, _b, _k| a.sqrt();
}

/// As `lanes` of [`Mono`].
#[inline(always)]
unsafe fn tail_lanes<M: Mono<T: Float>, J: Joint<M::T>>(p: &Piece) {
    // SAFETY: `lanes` points to memory for the lanes.
    let lanes = unsafe { &mut *p.lanes.cast::<Lanes<M::S>>() };
    let k = M::T::from_word(p.parameter);
    if p.is_whole() {
        // SAFETY: the piece has `to / N` whole tiles of values and of companions.
        let (mut left, mut beside) = unsafe {
            let tiles = p.to / N;
            (
                std::slice::from_raw_parts(p.values.cast::<[M::T; N]>(), tiles),
                std::slice::from_raw_parts(p.valid.cast::<[J::C; N]>(), tiles),
            )
        };
        while let Some(some) = lanes.some::<M, _>(&mut left) {
            let mut acc = lanes.now;
            for (a, b) in some.iter().zip(beside) {
                if widens::<M>() {
                    ahead(a.as_ptr(), N);
                    ahead(b.as_ptr(), N);
                }
                for i in 0..N {
                    acc[i] = M::put(acc[i], J::of(a[i], b[i], k));
                }
            }
            lanes.now = acc;
            beside = &beside[some.len()..];
            lanes.passed::<M>(some.len());
        }
    } else {
        let n = p.to - p.from;
        // SAFETY: the piece has values and companions up to `to`.
        let (a, b) = unsafe {
            (
                std::slice::from_raw_parts(p.values.cast::<M::T>().add(p.from), n),
                std::slice::from_raw_parts(p.valid.cast::<J::C>().add(p.from), n),
            )
        };
        for ((lane, a), b) in lanes.now[p.from..p.to].iter_mut().zip(a).zip(b) {
            *lane = M::put(*lane, J::of(*a, *b, k));
        }
        lanes.passed_part::<M>(p.from);
    }
}
/// As `row` of [`Mono`].
#[inline(always)]
unsafe fn tail_row<M: Mono<T: Float>, J: Joint<M::T>>(p: &Piece) {
    let (n, k) = (p.to - p.from, M::T::from_word(p.parameter));
    // SAFETY: a kept run's cells are cells of the state from `out` on; the piece has values and companions up to `to`.
    let (s, a, b) = unsafe {
        (
            std::slice::from_raw_parts_mut(p.fields[0].cast::<M::S>().add(p.out), n),
            std::slice::from_raw_parts(p.values.cast::<M::T>().add(p.from), n),
            std::slice::from_raw_parts(p.valid.cast::<J::C>().add(p.from), n),
        )
    };
    for ((s, a), b) in s.iter_mut().zip(a).zip(b) {
        *s = M::put(*s, J::of(*a, *b, k));
    }
}
leveled!(pick_tail_lanes, tail_lanes<M: Mono<T: Float>, J: Joint<M::T>>(p: &Piece) as PieceFn);
leveled!(pick_tail_row, tail_row<M: Mono<T: Float>, J: Joint<M::T>>(p: &Piece) as PieceFn);

fn fns<M: Mono<T: Float>, J: Joint<M::T>>(l: Level) -> TailFns {
    TailFns { lanes: pick_tail_lanes::<M, J>(l), row: pick_tail_row::<M, J>(l) }
}

/// The functions of a reduction with a tail.
pub(super) fn tail<M: Mono<T: Float>>(tail: Tail, l: Level) -> TailFns {
    match tail {
        Tail::Product => fns::<M, Product>(l),
        Tail::SquaredDifference => fns::<M, SquaredDifference>(l),
        Tail::AbsoluteDifference => fns::<M, AbsoluteDifference>(l),
        Tail::Masked => fns::<M, Masked>(l),
        Tail::Chosen(Comparison::Eq) => fns::<M, WhereEq>(l),
        Tail::Chosen(Comparison::Ne) => fns::<M, WhereNe>(l),
        Tail::Chosen(Comparison::Lt) => fns::<M, WhereLt>(l),
        Tail::Chosen(Comparison::Le) => fns::<M, WhereLe>(l),
        Tail::Chosen(Comparison::Gt) => fns::<M, WhereGt>(l),
        Tail::Chosen(Comparison::Ge) => fns::<M, WhereGe>(l),
        Tail::Root => fns::<M, Root>(l),
    }
}
