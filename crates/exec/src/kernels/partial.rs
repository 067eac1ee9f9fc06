#![expect(
    unsafe_code,
    reason = "cells are typed by pointer casts; each block says why it is sound"
)]
//! Partial states: what a reduction keeps of one region.
//!
//! A reduction sees the cells of its region as a row-major sequence in tiles of 64. Its axes, with lengths of 1 left
//! out and neighbours of one class merged, end in an *inner run*; how the cells of a run enter the state depends on
//! the class of that axis:
//!
//! ```text
//!   kept      cell i of the run goes to output cell base + i           in the order of the rows
//!   reduced   cell number c of the region adds to lane c mod 64;       at the end of the run the lanes are folded
//!             runs of less than 32 cells add straight to the state     (i += i + 32, i += i + 16, …) into the state
//!   grouped   cell i goes to output cell base + code[i]                in order
//! ```
//! So the order is a function of the region's shape and the reduced axes, and of nothing else. Sums of integers are
//! exact, so that order does not matter there. A variance has 16 lanes of its own, which enter the state in blocks; its
//! short runs are taken in two passes and merged.

use super::elem::{self, Elem, Float, Kind};
use super::level::{Level, leveled};
use super::ops::N;
use tessera_planner::dtype::DType;
use tessera_planner::reduce::ReduceKind;

/// Shortest reduced run that goes through the lanes.
pub(crate) const LANE_RUN: u64 = 32;

/// Cells of a tile on their way into a state.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Piece {
    /// The fields of the state, whole arrays.
    pub(crate) fields: [*mut u8; 4],
    /// Output cell of the first cell of the piece (of the whole piece where the run is reduced).
    pub(crate) out: usize,
    /// The tile's values.
    pub(crate) values: *const u8,
    /// The tile's validity, or null.
    pub(crate) valid: *const u8,
    /// First cell of the piece in the tile.
    pub(crate) from: usize,
    /// One past its last cell, at most [`N`].
    pub(crate) to: usize,
    /// 64 lanes of the state's type.
    pub(crate) lanes: *mut u8,
    /// Groups of the piece's cells.
    pub(crate) codes: *const u32,
    /// Position (for argmin and argmax) of the first cell of the piece.
    pub(crate) position: i64,
    /// Step of the position from cell to cell.
    pub(crate) step: i64,
}

/// Enters a piece into a state.
///
/// # Safety
/// The pointers are those of a reducer that was checked against its buffers.
pub(crate) type PieceFn = unsafe fn(&Piece);

/// Enters the tiles of several kept rows into the same cells of a state, one row after the other: whole tiles, none of
/// them masked. The piece tells the cells.
///
/// # Safety
/// As of [`PieceFn`]; every pointer is good for a tile of values.
pub(crate) type RowsFn = unsafe fn(&Piece, &[*const u8]);

/// How one part of a state takes in cells.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Fns {
    /// A reduced run, through the lanes; equal to `seq` where lanes are not used.
    pub(crate) lanes: PieceFn,
    /// A reduced run, straight into the state.
    pub(crate) seq: PieceFn,
    /// A kept run.
    pub(crate) row: PieceFn,
    /// Several kept runs, where that is worth it.
    pub(crate) rows: Option<RowsFn>,
    /// A grouped run.
    pub(crate) group: PieceFn,
    /// Folds the lanes into the state and resets them.
    pub(crate) fold: PieceFn,
    /// Sets cells `from..to` of the state to the identity (no limit of [`N`]).
    pub(crate) init: PieceFn,
    /// Sets the lanes to the identity.
    pub(crate) reset: PieceFn,
    /// `lanes` of a product: `values * valid`, both of the value's type.
    pub(crate) lanes_mul: Option<PieceFn>,
    /// True if `lanes` really uses lanes, and `fold` must run.
    pub(crate) uses_lanes: bool,
}

/// A reduction whose state is one field and whose merge is the same as taking in a value.
pub(crate) trait Mono {
    type T: Elem;
    type S: Copy;
    fn id() -> Self::S;
    fn put(s: Self::S, v: Self::T) -> Self::S;
    fn join(a: Self::S, b: Self::S) -> Self::S;
}

#[inline(always)]
unsafe fn mono_lanes<M: Mono>(p: &Piece) {
    // SAFETY: lanes and tile have N cells.
    let (acc, v) = unsafe { (&mut *p.lanes.cast::<[M::S; N]>(), &*p.values.cast::<[M::T; N]>()) };
    if p.from == 0 && p.to == N {
        for i in 0..N {
            acc[i] = M::put(acc[i], v[i]);
        }
    } else {
        for (a, v) in acc[p.from..p.to].iter_mut().zip(&v[p.from..p.to]) {
            *a = M::put(*a, *v);
        }
    }
}
#[inline(always)]
unsafe fn mono_lanes_mul<M: Mono>(p: &Piece) {
    // SAFETY: lanes and tiles have N cells.
    let (acc, a, b) = unsafe {
        (
            &mut *p.lanes.cast::<[M::S; N]>(),
            &*p.values.cast::<[M::T; N]>(),
            &*p.valid.cast::<[M::T; N]>(),
        )
    };
    if p.from == 0 && p.to == N {
        for i in 0..N {
            acc[i] = M::put(acc[i], a[i].mul(b[i]));
        }
    } else {
        for i in p.from..p.to.min(N) {
            acc[i] = M::put(acc[i], a[i].mul(b[i]));
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
    // SAFETY: the tile has N cells.
    let v = unsafe { &*p.values.cast::<[M::T; N]>() };
    if let (Ok(s), N) = (<&mut [M::S; N]>::try_from(&mut *s), n) {
        for i in 0..N {
            s[i] = M::put(s[i], v[i]);
        }
    } else {
        for (s, v) in s.iter_mut().zip(&v[p.from..p.to]) {
            *s = M::put(*s, *v);
        }
    }
}
/// Cells of a tile that wait in registers while several rows enter them.
const HELD: usize = 16;
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
leveled!(pick_lanes_mul, mono_lanes_mul<M: Mono>(p: &Piece) as PieceFn);
leveled!(pick_row, mono_row<M: Mono>(p: &Piece) as PieceFn);
leveled!(pick_rows, mono_rows<M: Mono>(p: &Piece, values: &[*const u8]) as RowsFn);
leveled!(pick_fold, mono_fold<M: Mono>(p: &Piece) as PieceFn);

fn mono<M: Mono>(l: Level) -> Fns {
    Fns {
        lanes: pick_lanes::<M>(l),
        seq: mono_seq::<M>,
        row: pick_row::<M>(l),
        rows: Some(pick_rows::<M>(l)),
        group: mono_group::<M>,
        fold: pick_fold::<M>(l),
        init: mono_init::<M>,
        reset: mono_reset::<M>,
        lanes_mul: None,
        uses_lanes: true,
    }
}

/// Names a one-field reduction.
macro_rules! monos {
    ($($name:ident<$b:ident>: $s:ty, $id:expr, |$x:ident, $v:ident| $put:expr, |$p:ident, $q:ident| $join:expr;)*) => { $(
        pub(crate) struct $name<T>(std::marker::PhantomData<T>);
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
pub(crate) struct ProdInt;
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

/// Sums of integers: the state is 128 bits in two fields.
pub(crate) trait Wide {
    type T: Copy;
    /// Sum of up to 64 values.
    fn sum(v: &[Self::T]) -> i128;
    fn high(v: Self::T) -> i64;
    fn low(v: Self::T) -> u64;
}
/// Cells of at most 32 bits: 64 of them do not overflow 64 bits.
struct Narrow<T>(std::marker::PhantomData<T>);
struct Signed;
struct Unsigned;
impl<T: Copy + Into<i64>> Wide for Narrow<T> {
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
impl Wide for Signed {
    type T = i64;
    #[inline(always)]
    fn sum(v: &[i64]) -> i128 {
        // Halves of 32 bits cannot overflow 64.
        let low = v.iter().fold(0i64, |s, x| s + (*x & 0xffff_ffff));
        let high = v.iter().fold(0i64, |s, x| s + (*x >> 32));
        (i128::from(high) << 32) + i128::from(low)
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
        let low = v.iter().fold(0u64, |s, x| s + (*x & 0xffff_ffff));
        let high = v.iter().fold(0u64, |s, x| s + (*x >> 32));
        (i128::from(high) << 32) + i128::from(low)
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
    // SAFETY: the tile has N cells; `out` is a cell of both fields.
    unsafe {
        let v = &*p.values.cast::<[W::T; N]>();
        let total = if p.from == 0 && p.to == N { W::sum(v) } else { W::sum(&v[p.from..p.to]) };
        add_wide(p, p.out, total);
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
    // SAFETY: a kept run's cells are cells of the state from `out` on; the tile has N cells; fields do not overlap.
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
unsafe fn nothing(_: &Piece) {}
leveled!(pick_wide_seq, wide_seq<W: Wide>(p: &Piece) as PieceFn);
leveled!(pick_wide_row, wide_row<W: Wide>(p: &Piece) as PieceFn);

fn wide<W: Wide>(l: Level) -> Fns {
    Fns {
        lanes: pick_wide_seq::<W>(l),
        seq: pick_wide_seq::<W>(l),
        row: pick_wide_row::<W>(l),
        rows: None,
        group: wide_group::<W>,
        fold: nothing,
        init: wide_init,
        reset: nothing,
        lanes_mul: None,
        uses_lanes: false,
    }
}

/// Counts of valid cells: `values` is validity, the state one `i64`.
#[inline(always)]
unsafe fn count_seq<M: Marker>(p: &Piece) {
    // SAFETY: the tile has N cells; `out` is a cell of the field.
    unsafe {
        let v = &*p.values.cast::<[u8; N]>();
        // 64 times 1 fits a byte.
        let n: u8 = if p.from == 0 && p.to == N {
            v.iter().fold(0u8, |s, x| s.wrapping_add(*x))
        } else {
            v[p.from..p.to].iter().fold(0u8, |s, x| s.wrapping_add(*x))
        };
        *p.fields[0].cast::<i64>().add(p.out) += i64::from(n);
    }
}
#[inline(always)]
unsafe fn count_row<M: Marker>(p: &Piece) {
    let n = p.to - p.from;
    // SAFETY: as for other rows.
    let (s, v) = unsafe {
        (
            std::slice::from_raw_parts_mut(p.fields[0].cast::<i64>().add(p.out), n),
            std::slice::from_raw_parts(p.values.add(p.from), n),
        )
    };
    for (s, v) in s.iter_mut().zip(v) {
        *s += i64::from(*v);
    }
}
unsafe fn count_group(p: &Piece) {
    for i in p.from..p.to {
        // SAFETY: codes were checked to be below the number of groups.
        unsafe {
            let s = p.fields[0].cast::<i64>().add(p.out + *p.codes.add(i - p.from) as usize);
            *s += i64::from(*p.values.add(i));
        }
    }
}
unsafe fn count_init(p: &Piece) {
    // SAFETY: `from..to` are cells of the field.
    unsafe {
        std::slice::from_raw_parts_mut(p.fields[0].cast::<i64>().add(p.from), p.to - p.from)
            .fill(0);
    }
}
/// Lets functions without a type of their own go through `leveled!`.
trait Marker {}
struct Plain;
impl Marker for Plain {}
leveled!(pick_count_seq, count_seq<M: Marker>(p: &Piece) as PieceFn);
leveled!(pick_count_row, count_row<M: Marker>(p: &Piece) as PieceFn);

/// The count of valid cells, as a part of its own.
pub(crate) fn count(l: Level) -> Fns {
    Fns {
        lanes: pick_count_seq::<Plain>(l),
        seq: pick_count_seq::<Plain>(l),
        row: pick_count_row::<Plain>(l),
        rows: None,
        group: count_group,
        fold: nothing,
        init: count_init,
        reset: nothing,
        lanes_mul: None,
        uses_lanes: false,
    }
}

/// Merges (count, mean, sum of squared deviations) of two parts.
///
/// # Source
/// T. F. Chan, G. H. Golub, R. J. LeVeque, "Updating formulae and a pairwise algorithm for computing sample
/// variances", 1979.
#[inline(always)]
pub(crate) fn chan(a: (i64, f64, f64), b: (i64, f64, f64)) -> (i64, f64, f64) {
    if a.0 == 0 {
        return b;
    }
    if b.0 == 0 {
        return a;
    }
    let n = a.0 + b.0;
    let d = b.1 - a.1;
    let w = b.0 as f64 / n as f64;
    (n, a.1 + d * w, a.2 + b.2 + d * d * (a.0 as f64 * w))
}
/// The sum of some lanes, by halves.
#[inline(always)]
fn fold<const L: usize>(mut x: [f64; L]) -> f64 {
    let mut w = L / 2;
    while w > 0 {
        for i in 0..w {
            x[i] += x[i + w];
        }
        w /= 2;
    }
    x[0]
}
/// Lanes of a variance: two vectors of the widest machine, so that the next addition need not wait for the last.
const VAR_LANES: usize = 16;
/// Cells after which the lanes of a variance enter the state.
const VAR_BLOCK: u32 = 1024;

/// The lanes of a variance: sums of deviations from a point and of their squares.
///
/// The point is the mean of all blocks before (of the first piece, if there are none). Then what cancels in
/// `squares - deviations² / n` is less than what the merge adds for the distance of the two means, so that the total
/// loses no digits, wherever the cells lie.
#[derive(Clone, Copy)]
#[repr(C)]
struct VarLanes {
    deviations: [f64; VAR_LANES],
    squares: [f64; VAR_LANES],
    from: f64,
    count: u32,
}
const _: () = assert!(size_of::<VarLanes>() <= N * 8);

impl VarLanes {
    const EMPTY: VarLanes =
        VarLanes { deviations: [0.0; VAR_LANES], squares: [0.0; VAR_LANES], from: 0.0, count: 0 };
}

#[inline(always)]
unsafe fn var_lanes<T: Float>(p: &Piece) {
    // SAFETY: the tile has N cells, and there is room for the lanes.
    let (v, lanes) = unsafe { (&*p.values.cast::<[T; N]>(), &mut *p.lanes.cast::<VarLanes>()) };
    if p.from == 0 && p.to == N && p.valid.is_null() {
        if lanes.count == 0 {
            // SAFETY: `out` is a cell of the state.
            lanes.from =
                unsafe { var_mean(p) }.unwrap_or_else(|| fold(v.map(T::to_f64)) / N as f64);
        }
        let (mut d, mut q) = (lanes.deviations, lanes.squares);
        for part in v.chunks_exact(VAR_LANES) {
            for i in 0..VAR_LANES {
                let x = part[i].to_f64() - lanes.from;
                d[i] += x;
                q[i] += x * x;
            }
        }
        (lanes.deviations, lanes.squares) = (d, q);
        lanes.count += N as u32;
    } else if p.from == 0 && p.to == N && lanes.count > 0 {
        // SAFETY: the tile has N cells; where validity is missing the first case holds.
        let valid = unsafe { &*p.valid.cast::<[u8; N]>() };
        let (mut d, mut q) = (lanes.deviations, lanes.squares);
        for (part, valid) in v.chunks_exact(VAR_LANES).zip(valid.chunks_exact(VAR_LANES)) {
            for i in 0..VAR_LANES {
                // By bits: a choice would become a gather.
                let keep = 0u64.wrapping_sub(u64::from(valid[i] != 0));
                let x = f64::from_bits((part[i].to_f64() - lanes.from).to_bits() & keep);
                d[i] += x;
                q[i] += x * x;
            }
        }
        (lanes.deviations, lanes.squares) = (d, q);
        // 64 times 1 fits a byte.
        lanes.count += u32::from(valid.iter().fold(0u8, |s, x| s.wrapping_add(*x)));
    } else {
        // SAFETY: as the caller promises.
        unsafe { var_some(p, v, lanes) };
    }
    if lanes.count >= VAR_BLOCK {
        // SAFETY: as the caller promises.
        unsafe { var_fold::<T>(p) };
    }
}
/// A piece that is no whole tile, or that can be masked.
///
/// # Safety
/// As of [`var_lanes`].
#[inline(always)]
unsafe fn var_some<T: Float>(p: &Piece, v: &[T; N], lanes: &mut VarLanes) {
    let mut keep = [0.0f64; N];
    for (i, k) in keep.iter_mut().enumerate() {
        *k = f64::from(u8::from(i >= p.from && i < p.to));
    }
    if !p.valid.is_null() {
        // SAFETY: the tile has N cells.
        let valid = unsafe { &*p.valid.cast::<[u8; N]>() };
        for i in 0..N {
            keep[i] *= f64::from(valid[i]);
        }
    }
    let n = fold(keep);
    if n == 0.0 {
        return;
    }
    let mut x = [0.0; N];
    if lanes.count == 0 {
        for i in 0..N {
            x[i] = if keep[i] != 0.0 { v[i].to_f64() } else { 0.0 };
        }
        // SAFETY: `out` is a cell of the state.
        lanes.from = unsafe { var_mean(p) }.unwrap_or_else(|| fold(x) / n);
    }
    for i in 0..N {
        x[i] = if keep[i] != 0.0 { v[i].to_f64() - lanes.from } else { 0.0 };
    }
    for part in x.chunks_exact(VAR_LANES) {
        for (i, x) in part.iter().enumerate() {
            lanes.deviations[i] += x;
            lanes.squares[i] += x * x;
        }
    }
    lanes.count += n as u32;
}
/// The mean that the state has so far.
///
/// # Safety
/// `out` is a cell of the three fields.
#[inline(always)]
unsafe fn var_mean(p: &Piece) -> Option<f64> {
    // SAFETY: the caller's promise.
    unsafe {
        let n = *p.fields[0].cast::<i64>().add(p.out);
        (n > 0).then(|| *p.fields[1].cast::<f64>().add(p.out))
    }
}
#[inline(always)]
unsafe fn var_fold<T: Float>(p: &Piece) {
    // SAFETY: there is room for the lanes.
    let lanes = unsafe { &mut *p.lanes.cast::<VarLanes>() };
    if lanes.count == 0 {
        return;
    }
    let n = f64::from(lanes.count);
    let (d, q) = (fold(lanes.deviations), fold(lanes.squares));
    let m2 = q - d * d / n;
    // Rounding may leave less than nothing; NaN stays.
    let m2 = if m2 < 0.0 { 0.0 } else { m2 };
    let block = (i64::from(lanes.count), lanes.from + d / n, m2);
    // SAFETY: `out` is a cell of the three fields.
    unsafe { var_merge(p, p.out, block) };
    *lanes = VarLanes::EMPTY;
}
unsafe fn var_reset(p: &Piece) {
    // SAFETY: there is room for the lanes.
    unsafe { p.lanes.cast::<VarLanes>().write(VarLanes::EMPTY) };
}
#[inline(always)]
unsafe fn var_seq<T: Float>(p: &Piece) {
    // SAFETY: the tile has N cells, of which the piece is a part.
    unsafe { var_short(p, &(&*p.values.cast::<[T; N]>())[p.from..p.to]) }
}
/// A piece of few cells, one after the other.
///
/// # Safety
/// As of [`var_seq`].
#[inline(always)]
unsafe fn var_short<T: Float>(p: &Piece, v: &[T]) {
    // SAFETY: validity, if there is any, has N cells.
    let keep = |i: usize| p.valid.is_null() || unsafe { *p.valid.add(p.from + i) } != 0;
    let (mut n, mut sum) = (0i64, 0.0);
    for (i, x) in v.iter().enumerate() {
        if keep(i) {
            n += 1;
            sum += x.to_f64();
        }
    }
    if n == 0 {
        return;
    }
    let mean = sum / n as f64;
    let mut m2 = 0.0;
    for (i, x) in v.iter().enumerate() {
        if keep(i) {
            let d = x.to_f64() - mean;
            m2 += d * d;
        }
    }
    // SAFETY: `out` is a cell of the three fields.
    unsafe { var_merge(p, p.out, (n, mean, m2)) }
}
/// # Safety
/// `out` is a cell of the three fields.
#[inline(always)]
unsafe fn var_merge(p: &Piece, out: usize, b: (i64, f64, f64)) {
    // SAFETY: the caller's promise.
    unsafe {
        let n = p.fields[0].cast::<i64>().add(out);
        let mean = p.fields[1].cast::<f64>().add(out);
        let m2 = p.fields[2].cast::<f64>().add(out);
        (*n, *mean, *m2) = chan((*n, *mean, *m2), b);
    }
}
#[inline(always)]
unsafe fn var_row<T: Float>(p: &Piece) {
    let n = p.to - p.from;
    // SAFETY: a kept run's cells are cells of the state from `out` on; the tile has N cells; fields do not overlap.
    let (count, mean, m2, v) = unsafe {
        (
            std::slice::from_raw_parts_mut(p.fields[0].cast::<i64>().add(p.out), n),
            std::slice::from_raw_parts_mut(p.fields[1].cast::<f64>().add(p.out), n),
            std::slice::from_raw_parts_mut(p.fields[2].cast::<f64>().add(p.out), n),
            std::slice::from_raw_parts(p.values.cast::<T>().add(p.from), n),
        )
    };
    if n == 0 {
        return;
    }
    if p.valid.is_null() {
        // Every cell of a row has met as many cells as the others.
        let (before, c) = (count[0] as f64, count[0] + 1);
        let w = 1.0 / c as f64;
        let grown = before * w;
        count.fill(c);
        for ((mean, m2), v) in mean.iter_mut().zip(m2).zip(v) {
            let d = v.to_f64() - *mean;
            *mean += d * w;
            *m2 += d * d * grown;
        }
        return;
    }
    // SAFETY: validity has N cells.
    let valid = unsafe { std::slice::from_raw_parts(p.valid.add(p.from), n) };
    for i in 0..n {
        // One more cell: Chan's merge with a part of one.
        let c = count[i] + 1;
        let d = v[i].to_f64() - mean[i];
        let w = 1.0 / c as f64;
        let new_mean = mean[i] + d * w;
        let new_m2 = m2[i] + d * d * (count[i] as f64 * w);
        let take = valid[i] != 0;
        count[i] = if take { c } else { count[i] };
        mean[i] = if take { new_mean } else { mean[i] };
        m2[i] = if take { new_m2 } else { m2[i] };
    }
}
#[inline(always)]
unsafe fn var_rows<T: Float>(p: &Piece, values: &[*const u8]) {
    // SAFETY: a kept run's cells are cells of the state from `out` on; fields do not overlap.
    let (count, mean, m2) = unsafe {
        (
            &mut *p.fields[0].cast::<i64>().add(p.out).cast::<[i64; N]>(),
            &mut *p.fields[1].cast::<f64>().add(p.out).cast::<[f64; N]>(),
            &mut *p.fields[2].cast::<f64>().add(p.out).cast::<[f64; N]>(),
        )
    };
    let before = count[0];
    count.fill(before + values.len() as i64);
    let blocks = mean.chunks_exact_mut(HELD).zip(m2.chunks_exact_mut(HELD));
    for (part, (mean, m2)) in blocks.enumerate() {
        let (mut means, mut squares) = ([0.0; HELD], [0.0; HELD]);
        means.copy_from_slice(mean);
        squares.copy_from_slice(m2);
        let mut n = before;
        for v in values {
            // SAFETY: the tile has N cells.
            let v = unsafe { &*v.cast::<T>().add(part * HELD).cast::<[T; HELD]>() };
            let w = 1.0 / (n + 1) as f64;
            let grown = n as f64 * w;
            n += 1;
            for i in 0..HELD {
                let d = v[i].to_f64() - means[i];
                means[i] += d * w;
                squares[i] += d * d * grown;
            }
        }
        mean.copy_from_slice(&means);
        m2.copy_from_slice(&squares);
    }
}
unsafe fn var_group<T: Float>(p: &Piece) {
    for i in p.from..p.to {
        // SAFETY: codes were checked to be below the number of groups; the tile has N cells.
        unsafe {
            if p.valid.is_null() || *p.valid.add(i) != 0 {
                let out = p.out + *p.codes.add(i - p.from) as usize;
                var_merge(p, out, (1, (*p.values.cast::<T>().add(i)).to_f64(), 0.0));
            }
        }
    }
}
unsafe fn var_init(p: &Piece) {
    // SAFETY: `from..to` are cells of the three fields.
    unsafe {
        count_init(p);
        for f in 1..3 {
            std::slice::from_raw_parts_mut(p.fields[f].cast::<f64>().add(p.from), p.to - p.from)
                .fill(0.0);
        }
    }
}
leveled!(pick_var_lanes, var_lanes<T: Float>(p: &Piece) as PieceFn);
leveled!(pick_var_seq, var_seq<T: Float>(p: &Piece) as PieceFn);
leveled!(pick_var_fold, var_fold<T: Float>(p: &Piece) as PieceFn);
leveled!(pick_var_rows, var_rows<T: Float>(p: &Piece, values: &[*const u8]) as RowsFn);
leveled!(pick_var_row, var_row<T: Float>(p: &Piece) as PieceFn);

fn var<T: Float>(l: Level) -> Fns {
    Fns {
        lanes: pick_var_lanes::<T>(l),
        seq: pick_var_seq::<T>(l),
        row: pick_var_row::<T>(l),
        rows: Some(pick_var_rows::<T>(l)),
        group: var_group::<T>,
        fold: pick_var_fold::<T>(l),
        init: var_init,
        reset: var_reset,
        lanes_mul: None,
        uses_lanes: true,
    }
}

/// Which of two values an argmin or argmax prefers.
pub(crate) trait Best {
    /// True if `v` beats `s`; neither of two NaNs, nor of two equals, beats the other.
    fn beats<T: Elem>(v: T, s: T) -> bool;
    fn join<T: Elem>(a: T, b: T) -> T;
    fn worst<T: Elem>() -> T;
}
pub(crate) struct Lowest;
pub(crate) struct Highest;
impl Best for Lowest {
    #[inline(always)]
    fn beats<T: Elem>(v: T, s: T) -> bool {
        v < s || (v.is_nan() && !s.is_nan())
    }
    #[inline(always)]
    fn join<T: Elem>(a: T, b: T) -> T {
        elem::minimum(a, b)
    }
    #[inline(always)]
    fn worst<T: Elem>() -> T {
        T::top()
    }
}
impl Best for Highest {
    #[inline(always)]
    fn beats<T: Elem>(v: T, s: T) -> bool {
        v > s || (v.is_nan() && !s.is_nan())
    }
    #[inline(always)]
    fn join<T: Elem>(a: T, b: T) -> T {
        elem::maximum(a, b)
    }
    #[inline(always)]
    fn worst<T: Elem>() -> T {
        T::bottom()
    }
}
#[inline(always)]
unsafe fn arg_seq<B: Best, T: Elem>(p: &Piece) {
    // SAFETY: the tile has N cells; `out` is a cell of both fields.
    let (v, best, at) = unsafe {
        (
            &*p.values.cast::<[T; N]>(),
            &mut *p.fields[0].cast::<T>().add(p.out),
            &mut *p.fields[1].cast::<i64>().add(p.out),
        )
    };
    if *at >= 0 && p.from == 0 && p.to == N {
        // The common case without a search: nothing in the tile beats what is there. Masked cells hold the worst value.
        let mut x = *v;
        let mut w = N / 2;
        while w > 0 {
            for i in 0..w {
                x[i] = B::join(x[i], x[i + w]);
            }
            w /= 2;
        }
        if !B::beats(x[0], *best) {
            return;
        }
    }
    for (i, &v) in v.iter().enumerate().take(p.to).skip(p.from) {
        // SAFETY: validity, if there is any, has N cells.
        let valid = p.valid.is_null() || unsafe { *p.valid.add(i) } != 0;
        if valid && (*at < 0 || B::beats(v, *best)) {
            *best = v;
            *at = p.position + p.step * (i - p.from) as i64;
        }
    }
}
#[inline(always)]
unsafe fn arg_row<B: Best, T: Elem>(p: &Piece) {
    let n = p.to - p.from;
    // SAFETY: a kept run's cells are cells of the state from `out` on; the tile has N cells; fields do not overlap.
    let (best, at, v) = unsafe {
        (
            std::slice::from_raw_parts_mut(p.fields[0].cast::<T>().add(p.out), n),
            std::slice::from_raw_parts_mut(p.fields[1].cast::<i64>().add(p.out), n),
            std::slice::from_raw_parts(p.values.cast::<T>().add(p.from), n),
        )
    };
    for i in 0..n {
        // SAFETY: validity, if there is any, has N cells.
        let valid = p.valid.is_null() || unsafe { *p.valid.add(p.from + i) } != 0;
        let take = valid & ((at[i] < 0) | B::beats(v[i], best[i]));
        best[i] = if take { v[i] } else { best[i] };
        at[i] = if take { p.position } else { at[i] };
    }
}
unsafe fn arg_group<B: Best, T: Elem>(p: &Piece) {
    for i in p.from..p.to {
        let mut one = *p;
        // SAFETY: codes were checked to be below the number of groups.
        one.out = p.out + unsafe { *p.codes.add(i - p.from) } as usize;
        (one.from, one.to) = (i, i + 1);
        one.position = p.position + p.step * (i - p.from) as i64;
        // SAFETY: a piece of one cell.
        unsafe { arg_seq::<B, T>(&one) }
    }
}
unsafe fn arg_init<B: Best, T: Elem>(p: &Piece) {
    // SAFETY: `from..to` are cells of both fields.
    unsafe {
        std::slice::from_raw_parts_mut(p.fields[0].cast::<T>().add(p.from), p.to - p.from)
            .fill(B::worst());
        std::slice::from_raw_parts_mut(p.fields[1].cast::<i64>().add(p.from), p.to - p.from)
            .fill(-1);
    }
}
leveled!(pick_arg_seq, arg_seq<B: Best, T: Elem>(p: &Piece) as PieceFn);
leveled!(pick_arg_row, arg_row<B: Best, T: Elem>(p: &Piece) as PieceFn);

fn arg<B: Best, T: Elem>(l: Level) -> Fns {
    Fns {
        lanes: pick_arg_seq::<B, T>(l),
        seq: pick_arg_seq::<B, T>(l),
        row: pick_arg_row::<B, T>(l),
        rows: None,
        group: arg_group::<B, T>,
        fold: nothing,
        init: arg_init::<B, T>,
        reset: nothing,
        lanes_mul: None,
        uses_lanes: false,
    }
}

macro_rules! all {
    ($k:expr, $T:ident => $e:expr) => {{
        macro_rules! arm {
            ($t:ty) => {{
                type $T = $t;
                $e
            }};
        }
        match $k {
            Kind::Bool | Kind::U8 => arm!(u8),
            Kind::I8 => arm!(i8),
            Kind::I16 => arm!(i16),
            Kind::I32 => arm!(i32),
            Kind::I64 => arm!(i64),
            Kind::U16 => arm!(u16),
            Kind::U32 => arm!(u32),
            Kind::U64 => arm!(u64),
            Kind::F32 => arm!(f32),
            Kind::F64 => arm!(f64),
        }
    }};
}
pub(crate) use all;

/// How a reduction of cells of type `dtype` takes them in, and the type in which it wants them. The count of a
/// nullable reduction is a part of its own ([`count`]); so is that of a mean. `None` where it is not defined.
pub(crate) fn pick(kind: ReduceKind, dtype: DType, l: Level) -> Option<(Fns, DType)> {
    use ReduceKind::*;
    let k = Kind::of(dtype);
    kind.result(dtype)?;
    Some(match kind {
        Sum | Mean if dtype == DType::Float64 => {
            let f = mono::<SumFloat<f64>>(l);
            (Fns { lanes_mul: Some(pick_lanes_mul::<SumFloat<f64>>(l)), ..f }, dtype)
        }
        Sum | Mean if dtype == DType::Float32 => {
            let f = mono::<SumFloat<f32>>(l);
            (Fns { lanes_mul: Some(pick_lanes_mul::<SumFloat<f32>>(l)), ..f }, dtype)
        }
        Sum if k == Kind::U64 => (wide::<Unsigned>(l), DType::UInt64),
        Sum if k == Kind::I64 => (wide::<Signed>(l), DType::Int64),
        Sum => match k {
            Kind::Bool | Kind::U8 => (wide::<Narrow<u8>>(l), dtype),
            Kind::I8 => (wide::<Narrow<i8>>(l), dtype),
            Kind::I16 => (wide::<Narrow<i16>>(l), dtype),
            Kind::I32 => (wide::<Narrow<i32>>(l), dtype),
            Kind::U16 => (wide::<Narrow<u16>>(l), dtype),
            Kind::U32 => (wide::<Narrow<u32>>(l), dtype),
            _ => return None,
        },
        Mean => return None,
        Prod if dtype == DType::Float64 => (mono::<ProdFloat<f64>>(l), dtype),
        Prod if dtype == DType::Float32 => (mono::<ProdFloat<f32>>(l), dtype),
        Prod => (mono::<ProdInt>(l), kind.result(dtype)?),
        Var { .. } if k == Kind::F32 => (var::<f32>(l), dtype),
        Var { .. } => (var::<f64>(l), DType::Float64),
        Min | All if k == Kind::Bool => (mono::<LeastBool>(l), dtype),
        Max | Any | MaxTotal if k == Kind::Bool => (mono::<GreatestBool>(l), dtype),
        MinTotal if k == Kind::Bool => (mono::<LeastBool>(l), dtype),
        MinTotal if k == Kind::F32 => (mono::<LeastTotal<f32>>(l), dtype),
        MinTotal if k == Kind::F64 => (mono::<LeastTotal<f64>>(l), dtype),
        Min | MinTotal => (all!(k, T => mono::<Least<T>>(l)), dtype),
        // NaN is the greatest and NaN propagates: the same thing.
        Max | MaxTotal => (all!(k, T => mono::<Greatest<T>>(l)), dtype),
        // Blocks of contractions add; no program reduces by it.
        Any | All | Add => return None,
        Count => (count(l), DType::Bool),
        ArgMin => (all!(k, T => arg::<Lowest, T>(l)), dtype),
        ArgMax => (all!(k, T => arg::<Highest, T>(l)), dtype),
    })
}

/// `bool`s order as bytes, but the greatest is 1.
struct LeastBool;
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
struct GreatestBool;
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
