#![expect(unsafe_code, reason = "cells are typed by pointer casts; blocks say why they are sound")]
//! Reductions whose state is one value: sums and products of floats, products of integers, extremes.

use super::lanes::{CARRY_TILES, Lanes};
use super::tail::tail;
use super::{Fns, HELD, LANE_RUN, LinesFn, Piece, PieceFn, RowsFn};
use crate::elem::{self, Elem, Float};
use crate::level::{Level, leveled};
use crate::ops::N;
use crate::stream::{ahead, fetch};
use std::hint::black_box;

/// A reduction whose state is one field and whose merge is the same as accumulating a value.
pub(super) trait Mono {
    type T: Elem;
    type S: Copy;
    fn id() -> Self::S;
    /// A neutral value: it changes no state that began as `id`.
    fn none() -> Self::T;
    fn put(s: Self::S, v: Self::T) -> Self::S;
    fn join(a: Self::S, b: Self::S) -> Self::S;
    /// True if lanes are carried over regularly, so that rounding errors do not accumulate. See [`Lanes`].
    const CARRIED: bool = false;
    /// The sum of a total and a lane, and its rounding error.
    fn carry(total: Self::S, lane: Self::S) -> (Self::S, Self::S) {
        (Self::join(total, lane), Self::id())
    }
    /// A total corrected by its rounding errors.
    fn carried(total: Self::S, _lost: Self::S) -> Self::S {
        total
    }
    /// The state of a whole line. The compiler chooses which of two NaN an addition returns; this makes it one NaN.
    fn settled(s: Self::S) -> Self::S {
        s
    }
}

#[inline(always)]
pub(super) unsafe fn mono_lanes<M: Mono>(p: &Piece) {
    // SAFETY: `lanes` points to memory for the lanes.
    let lanes = unsafe { &mut *p.lanes.cast::<Lanes<M::S>>() };
    if p.is_whole() {
        // SAFETY: the piece has `to / N` whole tiles.
        let tiles = unsafe { std::slice::from_raw_parts(p.values.cast::<[M::T; N]>(), p.to / N) };
        let mut left = tiles;
        while let Some(some) = lanes.some::<M, _>(&mut left) {
            // Cells in memory order: any other order loses more bandwidth than lanes in registers save.
            let mut acc = lanes.now;
            for v in some {
                if widens::<M>() {
                    ahead(v.as_ptr(), N);
                }
                for i in 0..N {
                    acc[i] = M::put(acc[i], v[i]);
                }
            }
            lanes.now = acc;
            lanes.passed::<M>(some.len());
        }
    } else {
        let n = p.to - p.from;
        // SAFETY: the piece has values up to `to`.
        let v = unsafe { std::slice::from_raw_parts(p.values.cast::<M::T>().add(p.from), n) };
        for (a, v) in lanes.now[p.from..p.to].iter_mut().zip(v) {
            *a = M::put(*a, *v);
        }
        lanes.passed_part::<M>(p.from);
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
    // SAFETY: the piece has values up to `to`.
    let v = unsafe { std::slice::from_raw_parts(p.values.cast::<M::T>().add(p.from), n) };
    row::<M>(s, v);
}
#[inline(always)]
fn row<M: Mono>(s: &mut [M::S], v: &[M::T]) {
    if widens::<M>() {
        ahead(v.as_ptr(), v.len());
    }
    for (s, v) in s.iter_mut().zip(v) {
        *s = M::put(*s, *v);
    }
}
/// Upper bound on the cells of a row whose states stay in the first-level cache from row to row.
const RESIDENT: usize = 2048;
#[inline(always)]
unsafe fn mono_rows<M: Mono>(p: &Piece, values: &[*const u8]) {
    let n = p.to - p.from;
    // SAFETY: a kept run's cells are cells of the state from `out` on.
    let s = unsafe { std::slice::from_raw_parts_mut(p.fields[0].cast::<M::S>().add(p.out), n) };
    let row_bytes = n * size_of::<M::T>();
    if n <= RESIDENT && values.windows(2).all(|w| w[1] == w[0].wrapping_add(row_bytes)) {
        // Contiguous rows are read in memory order. Of other rows several are read at a time, as each begins far from
        // the end of the previous one.
        for v in values {
            // SAFETY: every row has n values.
            let v = unsafe { std::slice::from_raw_parts(v.cast::<M::T>(), n) };
            row::<M>(s, v);
        }
        return;
    }
    let (parts, rest) = s.as_chunks_mut::<HELD>();
    let many = parts.len();
    for (k, part) in parts.iter_mut().enumerate() {
        // SAFETY: every row has n values.
        unsafe { held::<M, HELD>(part, values, k * HELD) };
    }
    let (parts, rest) = rest.as_chunks_mut::<FEW>();
    let done = many * HELD + parts.len() * FEW;
    for (k, part) in parts.iter_mut().enumerate() {
        // SAFETY: as above.
        unsafe { held::<M, FEW>(part, values, many * HELD + k * FEW) };
    }
    for (k, one) in rest.iter_mut().enumerate() {
        // SAFETY: as above.
        unsafe { held::<M, 1>(std::array::from_mut(one), values, done + k) };
    }
}
/// Cells at the end of a row that stay in registers together.
const FEW: usize = 4;
/// Accumulates cells `from..from + L` of some rows into as many cells of the state.
///
/// # Safety
/// Every row has `from + L` cells.
#[inline(always)]
unsafe fn held<M: Mono, const L: usize>(s: &mut [M::S; L], rows: &[*const u8], from: usize) {
    let mut held = *s;
    for v in rows {
        // SAFETY: every row has `from + L` cells.
        let v = unsafe { &*v.cast::<M::T>().add(from).cast::<[M::T; L]>() };
        for i in 0..L {
            held[i] = M::put(held[i], v[i]);
        }
    }
    *s = held;
}
#[inline(always)]
unsafe fn mono_lines<M: Mono>(p: &Piece, len: usize, many: usize) {
    // SAFETY: the runs are contiguous, as are their cells of the state.
    let (s, v) = unsafe {
        (
            std::slice::from_raw_parts_mut(p.fields[0].cast::<M::S>().add(p.out), many),
            std::slice::from_raw_parts(p.values.cast::<M::T>(), many * len),
        )
    };
    match len {
        2 => short::<M, 2>(s, v),
        3 => short::<M, 3>(s, v),
        4 => short::<M, 4>(s, v),
        5 => short::<M, 5>(s, v),
        6 => short::<M, 6>(s, v),
        7 => short::<M, 7>(s, v),
        8 => short::<M, 8>(s, v),
        _ if (len as u64) < LANE_RUN => {
            for (s, run) in s.iter_mut().zip(v.chunks_exact(len)) {
                for v in run {
                    *s = M::put(*s, *v);
                }
            }
        }
        _ => {
            let mut k = 0;
            while len / N <= SHORT && k + AT_ONCE <= many {
                // Last lanes of some runs: their last steps are vectors over the runs.
                let mut ends = [[M::id(); LAST]; AT_ONCE];
                for (j, ends) in ends.iter_mut().enumerate() {
                    fetch(v.as_ptr().wrapping_add((k + j + AHEAD) * len), len);
                    let (run, after) = v[(k + j) * len..].split_at(len / N * N);
                    let mut acc = run_lanes::<M>(run.as_chunks().0, after, len % N);
                    let mut w = N / 2;
                    while w >= LAST {
                        for i in 0..w {
                            acc[i] = M::join(acc[i], acc[i + w]);
                        }
                        w /= 2;
                    }
                    ends.copy_from_slice(&acc[..LAST]);
                }
                // Without `black_box` the compiler would fold the lanes one by one.
                let ends = black_box(&ends);
                let mut turned = [[M::id(); AT_ONCE]; AT_ONCE];
                for (j, e) in ends.iter().enumerate() {
                    for i in 0..AT_ONCE {
                        turned[i][j] = M::join(e[i], e[i + AT_ONCE]);
                    }
                }
                for j in 0..AT_ONCE {
                    let even = M::join(turned[0][j], turned[2][j]);
                    let odd = M::join(turned[1][j], turned[3][j]);
                    s[k + j] = M::settled(M::join(s[k + j], M::join(even, odd)));
                }
                k += AT_ONCE;
            }
            while k < many {
                let (run, after) = v[k * len..].split_at(len / N * N);
                let run = run.as_chunks().0;
                let mut acc = match M::CARRIED && run.len() >= CARRY_TILES {
                    true => {
                        let mut lanes = Lanes::<M::S>::empty::<M>();
                        let (whole, last) = run.split_at(run.len() / CARRY_TILES * CARRY_TILES);
                        for some in whole.chunks_exact(CARRY_TILES) {
                            lanes.now = run_lanes::<M>(some, &[], 0);
                            lanes.passed::<M>(CARRY_TILES);
                        }
                        lanes.now = run_lanes::<M>(last, after, len % N);
                        lanes.all::<M>()
                    }
                    false => run_lanes::<M>(run, after, len % N),
                };
                s[k] = M::settled(M::join(s[k], folded::<M, N>(&mut acc)));
                k += 1;
            }
        }
    }
}
/// Runs of `L` cells: a constant length vectorises over the runs.
#[inline(always)]
fn short<M: Mono, const L: usize>(s: &mut [M::S], v: &[M::T]) {
    for (s, run) in s.iter_mut().zip(v.as_chunks::<L>().0) {
        let mut x = *s;
        for v in run {
            x = M::put(x, *v);
        }
        *s = x;
    }
}
/// The lanes of a run of some tiles and `rest` more cells, the first of `after`.
#[inline(always)]
fn run_lanes<M: Mono>(tiles: &[[M::T; N]], after: &[M::T], rest: usize) -> [M::S; N] {
    let mut acc = [M::id(); N];
    for tile in tiles {
        if tiles.len() > SHORT && widens::<M>() {
            ahead(tile.as_ptr(), N);
        }
        for i in 0..N {
            acc[i] = M::put(acc[i], tile[i]);
        }
    }
    if let Some(masks) = M::T::masks()[N - rest..].first_chunk::<N>()
        && rest > 0
    {
        let mut copy = [M::T::default(); N];
        let last = last_tile(after, rest, &mut copy);
        // A neutral cell replaces those beyond the end: selecting a cell takes fewer instructions than selecting a
        // state.
        let mut cells = [M::none(); N];
        for i in 0..N {
            cells[i] = last[i].masked(masks[i], M::none());
        }
        for i in 0..N {
            acc[i] = M::put(acc[i], cells[i]);
        }
    }
    acc
}
/// Returns a whole tile of the memory from some cell on, if there is one, else a copy: cells that were copied a few at
/// a time are slow to read as vectors.
#[inline(always)]
fn last_tile<'a, T: Copy>(after: &'a [T], rest: usize, copy: &'a mut [T; N]) -> &'a [T; N] {
    match after.first_chunk::<N>() {
        Some(tile) => tile,
        None => {
            copy[..rest].copy_from_slice(&after[..rest]);
            copy
        }
    }
}
/// Upper bound on the tiles of a run that is folded together with others.
const SHORT: usize = 8;
/// Number of runs whose last lanes are folded together, and the number of lanes each then has.
const AT_ONCE: usize = 4;
const LAST: usize = 2 * AT_ONCE;
/// Number of runs that are prefetched.
const AHEAD: usize = 2;
/// True if the state is wider than a cell. The processor then does not prefetch far enough by itself.
#[inline(always)]
pub(super) fn widens<M: Mono>() -> bool {
    size_of::<M::S>() > size_of::<M::T>()
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
    // SAFETY: `lanes` points to memory for the lanes; `out` is a cell of the state.
    let (lanes, s) = unsafe {
        (&mut *p.lanes.cast::<Lanes<M::S>>(), &mut *p.fields[0].cast::<M::S>().add(p.out))
    };
    let mut acc = lanes.all::<M>();
    if p.from > 0 {
        acc.rotate_left(p.from);
    }
    *s = M::join(*s, folded::<M, N>(&mut acc));
    lanes.clear::<M>();
}
/// Folds all lanes by halves.
#[inline(always)]
fn folded<M: Mono, const LANES: usize>(acc: &mut [M::S; LANES]) -> M::S {
    let mut w = LANES / 2;
    while w > 0 {
        for i in 0..w {
            acc[i] = M::join(acc[i], acc[i + w]);
        }
        w /= 2;
    }
    acc[0]
}
unsafe fn mono_init<M: Mono>(p: &Piece) {
    // SAFETY: `from..to` are cells of the state.
    unsafe {
        std::slice::from_raw_parts_mut(p.fields[0].cast::<M::S>().add(p.from), p.to - p.from)
            .fill(M::id());
    }
}
unsafe fn mono_reset<M: Mono>(p: &Piece) {
    // SAFETY: `lanes` points to memory for the lanes.
    unsafe { p.lanes.cast::<Lanes<M::S>>().write(Lanes::empty::<M>()) };
}
leveled!(pick_lanes, mono_lanes<M: Mono>(p: &Piece) as PieceFn);
leveled!(pick_row, mono_row<M: Mono>(p: &Piece) as PieceFn);
leveled!(pick_rows, mono_rows<M: Mono>(p: &Piece, values: &[*const u8]) as RowsFn);
leveled!(pick_lines, mono_lines<M: Mono>(p: &Piece, len: usize, many: usize) as LinesFn);
leveled!(pick_fold, mono_fold<M: Mono>(p: &Piece) as PieceFn);

/// Like [`mono`], for sums and extremes of floats, into which the last operations can be fused.
pub(super) fn tailed<M: Mono<T: Float>>(l: Level) -> Fns {
    Fns { tails: Some(tail::<M>), ..mono::<M>(l) }
}

/// A sum of floats.
pub(super) fn sum<T: Float>(l: Level) -> Fns {
    Fns { is_sum: true, ..tailed::<SumFloat<T>>(l) }
}

/// The functions of such a reduction.
pub(super) fn mono<M: Mono>(l: Level) -> Fns {
    Fns {
        lanes: pick_lanes::<M>(l),
        seq: mono_seq::<M>,
        row: pick_row::<M>(l),
        rows: Some(pick_rows::<M>(l)),
        lines: Some(pick_lines::<M>(l)),
        by_tiles: false,
        has_positions: false,
        group: mono_group::<M>,
        fold: pick_fold::<M>(l),
        init: mono_init::<M>,
        reset: mono_reset::<M>,
        tails: None,
        is_sum: false,
        with_sum: None,
        uses_lanes: true,
    }
}

#[inline(always)]
fn one_nan(x: f64) -> f64 {
    if x.is_nan() { f64::NAN } else { x }
}

/// Defines one-field reductions.
macro_rules! monos {
    ($($name:ident<$b:ident>: $s:ty, $id:expr, $none:expr, |$x:ident, $v:ident| $put:expr, |$p:ident, $q:ident| $join:expr $(, $settled:path)?;)*) => { $(
        pub(super) struct $name<T>(std::marker::PhantomData<T>);
        impl<T: $b> Mono for $name<T> {
            type T = T;
            type S = $s;
            #[inline(always)] fn id() -> $s { $id }
            #[inline(always)] fn none() -> T { $none }
            #[inline(always)] fn put($x: $s, $v: T) -> $s { $put }
            #[inline(always)] fn join($p: $s, $q: $s) -> $s { $join }
            $( #[inline(always)] fn settled(s: $s) -> $s { $settled(s) } )?
        }
    )* };
}

/// A sum of floats, accumulated in `f64`.
pub(super) struct SumFloat<T>(std::marker::PhantomData<T>);
impl<T: Float> Mono for SumFloat<T> {
    type T = T;
    type S = f64;
    #[inline(always)]
    fn id() -> f64 {
        0.0
    }
    #[inline(always)]
    fn none() -> T {
        T::default()
    }
    #[inline(always)]
    fn put(s: f64, v: T) -> f64 {
        s + v.to_f64()
    }
    #[inline(always)]
    fn join(a: f64, b: f64) -> f64 {
        a + b
    }
    #[inline(always)]
    fn settled(s: f64) -> f64 {
        one_nan(s)
    }
    // For narrower cells the rounding error of the sum is far below the last bit of a result in their type.
    const CARRIED: bool = size_of::<T>() == 8;
    /// # Source
    /// D. E. Knuth, "The Art of Computer Programming", volume 2, 4.2.2, theorem B (TwoSum).
    #[inline(always)]
    fn carry(total: f64, lane: f64) -> (f64, f64) {
        let sum = total + lane;
        let added = sum - total;
        (sum, (total - (sum - added)) + (lane - added))
    }
    #[inline(always)]
    fn carried(total: f64, lost: f64) -> f64 {
        // With an infinity or NaN in the total, the rounding errors are not finite.
        if lost.is_finite() { total + lost } else { total }
    }
}
monos! {
    ProdFloat<Float>: f64, 1.0, T::one(), |s, v| s * v.to_f64(), |a, b| a * b, one_nan;
    Least<Elem>: T, T::top(), T::top(), |s, v| elem::minimum(s, v), |a, b| elem::minimum(a, b);
    Greatest<Elem>: T, T::bottom(), T::bottom(), |s, v| elem::maximum(s, v), |a, b| elem::maximum(a, b);
    LeastTotal<Float>: T, T::nan(), T::nan(), |s, v| elem::fmin(s, v), |a, b| elem::fmin(a, b);
}
/// Defines one-field reductions of one type, whose identity is neutral and whose merge accumulates.
macro_rules! alike {
    ($($(#[$doc:meta])* $name:ident: $t:ty, $id:expr, |$a:ident, $b:ident| $put:expr;)*) => { $(
        $(#[$doc])*
        pub(super) struct $name;
        impl Mono for $name {
            type T = $t;
            type S = $t;
            #[inline(always)] fn id() -> $t { $id }
            #[inline(always)] fn none() -> $t { $id }
            #[inline(always)] fn put($a: $t, $b: $t) -> $t { $put }
            #[inline(always)] fn join($a: $t, $b: $t) -> $t { $put }
        }
    )* };
}
alike! {
    ProdInt: u64, 1, |a, b| a.wrapping_mul(b);
    /// The least `bool`: ordered as bytes, but the greatest is 1.
    LeastBool: u8, 1, |a, b| a & b;
    GreatestBool: u8, 0, |a, b| a | b;
}
