#![expect(
    unsafe_code,
    reason = "cells are typed by pointer casts; each block says why it is sound"
)]
//! Sums that do the last operations of a program by themselves, on the way into their lanes.
//!
//! What a cheap operation writes for a sum to read again costs more than the operation, and memory waits in between.
//! Each of these rounds as the operations do one after the other, so no bit depends on who does them.

use super::mono::Mono;
use super::{Piece, PieceFn};
use crate::kernels::elem::{Elem, Float};
use crate::kernels::level::{Level, leveled};
use crate::kernels::ops::N;

/// What is added, of the values `a` and, where there is one, their companion `b`.
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
    /// `a` where `b` stands so to the parameter, else 0.
    Chosen(Comparison),
}

/// How two floats stand to each other.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Comparison {
    Eq,
    Ne,
    Lt,
    Le,
    Gt,
    Ge,
}

/// Picks the function of a sum with a tail.
pub(crate) type TailFn = fn(Tail, Level) -> PieceFn;

/// What is added of a value and its companion, whose type is `C`.
trait Joint<T: Float> {
    type C: Copy;
    fn of(a: T, b: Self::C, parameter: T) -> T;
}

/// Names what is added: `Product: T, |a, b, k| a.mul(b)`.
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
}

/// As the lanes of [`Mono`]; the companions lie where other pieces have their validity.
#[inline(always)]
unsafe fn tail_lanes<M: Mono<T: Float>, J: Joint<M::T>>(p: &Piece) {
    // SAFETY: there are N lanes.
    let lanes = unsafe { &mut *p.lanes.cast::<[M::S; N]>() };
    let k = M::T::from_word(p.parameter);
    if p.is_whole() {
        let mut acc = *lanes;
        for t in 0..p.to / N {
            // SAFETY: the piece has so many tiles of both.
            let (a, b) = unsafe {
                (&*p.values.cast::<[M::T; N]>().add(t), &*p.valid.cast::<[J::C; N]>().add(t))
            };
            for i in 0..N {
                acc[i] = M::put(acc[i], J::of(a[i], b[i], k));
            }
        }
        *lanes = acc;
    } else {
        let n = p.to - p.from;
        // SAFETY: the piece has so many of both.
        let (a, b) = unsafe {
            (
                std::slice::from_raw_parts(p.values.cast::<M::T>().add(p.from), n),
                std::slice::from_raw_parts(p.valid.cast::<J::C>().add(p.from), n),
            )
        };
        for ((lane, a), b) in lanes[p.from..p.to].iter_mut().zip(a).zip(b) {
            *lane = M::put(*lane, J::of(*a, *b, k));
        }
    }
}
leveled!(pick_tail_lanes, tail_lanes<M: Mono<T: Float>, J: Joint<M::T>>(p: &Piece) as PieceFn);

/// The lanes of a sum with a tail.
pub(super) fn tail<M: Mono<T: Float>>(tail: Tail, l: Level) -> PieceFn {
    match tail {
        Tail::Product => pick_tail_lanes::<M, Product>(l),
        Tail::SquaredDifference => pick_tail_lanes::<M, SquaredDifference>(l),
        Tail::AbsoluteDifference => pick_tail_lanes::<M, AbsoluteDifference>(l),
        Tail::Masked => pick_tail_lanes::<M, Masked>(l),
        Tail::Chosen(Comparison::Eq) => pick_tail_lanes::<M, WhereEq>(l),
        Tail::Chosen(Comparison::Ne) => pick_tail_lanes::<M, WhereNe>(l),
        Tail::Chosen(Comparison::Lt) => pick_tail_lanes::<M, WhereLt>(l),
        Tail::Chosen(Comparison::Le) => pick_tail_lanes::<M, WhereLe>(l),
        Tail::Chosen(Comparison::Gt) => pick_tail_lanes::<M, WhereGt>(l),
        Tail::Chosen(Comparison::Ge) => pick_tail_lanes::<M, WhereGe>(l),
    }
}
