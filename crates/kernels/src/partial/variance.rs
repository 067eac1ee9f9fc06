#![expect(unsafe_code, reason = "cells are typed by pointer casts; blocks say why they are sound")]
//! Variances in one pass: count, mean and sum of squared deviations.

mod rows;

use super::count::count_init;
use super::lanes::Lanes;
use super::mono::{Mono, SumFloat, mono_lanes};
use super::{Fns, LANE_RUN, LinesFn, PairFn, Piece, PieceFn, RowsFn};
use crate::elem::Float;
use crate::level::{Level, leveled};
use crate::ops::N;
use crate::stream::ahead;
use rows::{var_row, var_rows};
use std::hint::black_box;

/// The state of a variance: the count of cells, a point near them, the distance of their mean from the point, and the
/// sum of squared deviations from the mean.
///
/// The mean is stored as two numbers because 64 bits are too few for it: if the mean is 10^8 times the deviations, a
/// rounded mean has an error of 10^-8 of these, and so would the variance. The point is one of the cells (for long runs
/// the mean of the first ones), so differences from it are exact or as accurate as the cells.
pub(crate) type Moments = (i64, f64, f64, f64);

/// Merges the states of two parts. The point of the first one is retained.
///
/// # Source
/// T. F. Chan, G. H. Golub, R. J. LeVeque, "Updating formulae and a pairwise algorithm for computing sample
/// variances", 1979.
#[inline(always)]
pub(crate) fn chan(a: Moments, b: Moments) -> Moments {
    if a.0 == 0 {
        return b;
    }
    if b.0 == 0 {
        return a;
    }
    let n = a.0 + b.0;
    let d = (b.1 - a.1) + (b.2 - a.2);
    let w = b.0 as f64 / n as f64;
    (n, a.1, a.2 + d * w, a.3 + b.3 + d * d * (a.0 as f64 * w))
}
/// Sums some lanes by halves.
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
/// Lanes of a variance: two vectors of the widest machine, so that additions do not wait for each other.
const VAR_LANES: usize = 16;
/// Cells after which the lanes of a variance are merged into the state.
const VAR_BLOCK: u32 = 1024;

/// The lanes of a variance: sums of deviations from a point and of their squares.
///
/// The point is the mean of all blocks before (of the first piece, if this is the first block). Then the amount that
/// cancels in `squares - deviations² / n` is less than the amount that the merge adds for the distance of the two
/// means. So the total loses no digits, wherever the cells lie.
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
    // SAFETY: `lanes` points to memory for the lanes.
    let lanes = unsafe { &mut *p.lanes.cast::<VarLanes>() };
    if !p.is_whole() {
        // SAFETY: the caller upholds the contract of [`PieceFn`].
        unsafe { var_some::<T>(p, lanes) };
        if lanes.count >= VAR_BLOCK {
            // SAFETY: the caller upholds the contract of [`PieceFn`].
            unsafe { var_fold::<T>(p) };
        }
        return;
    }
    // SAFETY: the piece has `to / N` whole tiles of values.
    let tiles = unsafe { std::slice::from_raw_parts(p.values.cast::<[T; N]>(), p.to / N) };
    if p.valid.is_null() {
        // SAFETY: the caller upholds the contract of [`PieceFn`].
        unsafe { var_whole(p, tiles, lanes, &mut []) };
        return;
    }
    for (t, tile) in tiles.iter().enumerate() {
        // SAFETY: the piece has a tile of validity for each of values.
        let valid = unsafe { &*p.valid.cast::<[u8; N]>().add(t) };
        if lanes.count > 0 {
            var_masked(tile, valid, lanes);
        } else {
            let mut one = *p;
            (one.values, one.valid) = (tile.as_ptr().cast(), valid.as_ptr());
            one.to = N;
            // SAFETY: a tile of the piece.
            unsafe { var_some::<T>(&one, lanes) };
        }
        if lanes.count >= VAR_BLOCK {
            // SAFETY: the caller upholds the contract of [`PieceFn`].
            unsafe { var_fold::<T>(p) };
        }
    }
}
/// [`var_lanes`] and the lanes of a sum in one pass.
///
/// # Safety
/// The contract of [`PairFn`].
#[inline(always)]
unsafe fn var_and_sum<T: Float>(p: &Piece, sum: &Piece) {
    if !p.is_whole() || !p.valid.is_null() {
        // SAFETY: the caller upholds the contract of [`PieceFn`] for both pieces.
        unsafe {
            var_lanes::<T>(p);
            mono_lanes::<SumFloat<T>>(sum);
        }
        return;
    }
    // SAFETY: both pieces point to memory for their lanes, and the piece has `to / N` whole tiles of values.
    let (lanes, sums, tiles) = unsafe {
        (
            &mut *p.lanes.cast::<VarLanes>(),
            &mut *sum.lanes.cast::<Lanes<f64>>(),
            std::slice::from_raw_parts(p.values.cast::<[T; N]>(), p.to / N),
        )
    };
    // SAFETY: the caller upholds the contract of [`PieceFn`] for both pieces.
    unsafe { var_whole(p, tiles, lanes, std::array::from_mut(sums)) };
}
/// Accumulates whole tiles without masked cells, block by block.
///
/// # Safety
/// The contract of [`var_lanes`]; the lanes are the piece's.
#[inline(always)]
unsafe fn var_whole<T: Float, const S: usize>(
    p: &Piece,
    tiles: &[[T; N]],
    lanes: &mut VarLanes,
    sums: &mut [Lanes<f64>; S],
) {
    let mut t = 0;
    while t < tiles.len() {
        if lanes.count == 0 {
            // SAFETY: `out` is a cell of the state.
            lanes.from =
                unsafe { var_mean(p) }.unwrap_or_else(|| fold(tiles[t].map(T::to_f64)) / N as f64);
        }
        // The number of tiles that fit in the block.
        let room = (VAR_BLOCK - lanes.count).div_ceil(N as u32) as usize;
        let room = sums.iter().fold(room, |room, s| room.min(s.room::<SumFloat<T>>()));
        let some = &tiles[t..(t + room).min(tiles.len())];
        var_tiles(some, lanes, sums);
        t += some.len();
        if lanes.count >= VAR_BLOCK {
            // SAFETY: the caller upholds the contract of [`PieceFn`].
            unsafe { var_enter(p, lanes) };
        }
    }
}
#[inline(always)]
unsafe fn var_lines<T: Float>(p: &Piece, len: usize, many: usize) {
    // SAFETY: the runs are contiguous; `lanes` points to memory for the lanes.
    let (v, lanes) = unsafe {
        (
            std::slice::from_raw_parts(p.values.cast::<T>(), many * len),
            &mut *p.lanes.cast::<VarLanes>(),
        )
    };
    let mut one = *p;
    for run in v.chunks_exact(len) {
        let turn = one.from;
        // The part of the run that lies in its first tile.
        let head = (N - turn).min(len);
        if (len as u64) < LANE_RUN {
            // SAFETY: `out` is a cell of the state, nothing is masked.
            unsafe { var_short(&one, &run[..head]) };
            // SAFETY: as above.
            unsafe { var_short(&one, &run[head..]) };
        } else {
            let (head, rest) = if turn == 0 { (&run[..0], run) } else { run.split_at(head) };
            // SAFETY: as above, and the lanes are the piece's.
            unsafe { var_ends(&one, head, turn, lanes) };
            let (tiles, last) = rest.as_chunks::<N>();
            // SAFETY: as above.
            unsafe { var_whole(&one, tiles, lanes, &mut []) };
            // SAFETY: as above.
            unsafe { var_ends(&one, last, 0, lanes) };
            // SAFETY: as above.
            unsafe { var_enter(&one, lanes) };
        }
        one.out += 1;
        one.from = (turn + len) % N;
    }
}
/// Accumulates cells of a tile from cell `from` on, fewer than a whole tile.
///
/// # Safety
/// The contract of [`var_whole`].
#[inline(always)]
unsafe fn var_ends<T: Float>(p: &Piece, cells: &[T], from: usize, lanes: &mut VarLanes) {
    if cells.is_empty() {
        return;
    }
    let mut tile = [T::default(); N];
    tile[from..from + cells.len()].copy_from_slice(cells);
    let mut one = *p;
    (one.from, one.to) = (from, from + cells.len());
    // SAFETY: the caller upholds the contract of [`PieceFn`].
    unsafe { var_part(&one, &tile, lanes) };
    if lanes.count >= VAR_BLOCK {
        // SAFETY: the caller upholds the contract of [`PieceFn`].
        unsafe { var_enter(p, lanes) };
    }
}
/// Accumulates tiles without masked cells, also into the lanes of a sum if there is one.
#[inline(always)]
fn var_tiles<T: Float, const S: usize>(
    tiles: &[[T; N]],
    lanes: &mut VarLanes,
    sums: &mut [Lanes<f64>; S],
) {
    // Without `black_box` the compiler would move the lanes two at a time for the later fold.
    let lanes = black_box(lanes);
    let (mut d, mut q, from) = (lanes.deviations, lanes.squares, lanes.from);
    let mut acc = sums.each_ref().map(|s| s.now);
    for tile in tiles {
        if size_of::<T>() == 8 {
            ahead(tile.as_ptr(), N);
        }
        for (k, part) in tile.as_chunks::<VAR_LANES>().0.iter().enumerate() {
            for i in 0..VAR_LANES {
                let x = part[i].to_f64() - from;
                d[i] += x;
                q[i] += x * x;
                for acc in &mut acc {
                    let lane = &mut acc[k * VAR_LANES + i];
                    *lane = SumFloat::<T>::put(*lane, part[i]);
                }
            }
        }
    }
    (lanes.deviations, lanes.squares) = (d, q);
    for (s, acc) in sums.iter_mut().zip(acc) {
        s.now = acc;
        s.passed::<SumFloat<T>>(tiles.len());
    }
    lanes.count += (tiles.len() * N) as u32;
    black_box(lanes);
}
/// Accumulates the valid cells of a tile.
#[inline(always)]
fn var_masked<T: Float>(v: &[T; N], valid: &[u8; N], lanes: &mut VarLanes) {
    let (mut d, mut q) = (lanes.deviations, lanes.squares);
    for (part, valid) in v.chunks_exact(VAR_LANES).zip(valid.chunks_exact(VAR_LANES)) {
        for i in 0..VAR_LANES {
            // By bits: a select would become a gather.
            let keep = 0u64.wrapping_sub(u64::from(valid[i] != 0));
            let x = f64::from_bits((part[i].to_f64() - lanes.from).to_bits() & keep);
            d[i] += x;
            q[i] += x * x;
        }
    }
    (lanes.deviations, lanes.squares) = (d, q);
    // 64 ones fit in a byte.
    lanes.count += u32::from(valid.iter().fold(0u8, |s, x| s.wrapping_add(*x)));
}
/// Accumulates a piece that is not a whole tile, without masked cells.
///
/// # Safety
/// The contract of [`var_lanes`].
#[inline(always)]
unsafe fn var_part<T: Float>(p: &Piece, v: &[T; N], lanes: &mut VarLanes) {
    let (from, to) = (p.from, p.to);
    let n = to - from;
    if n == 0 {
        return;
    }
    if lanes.count == 0 {
        let mut x = [0.0; N];
        for i in 0..N {
            x[i] = if i >= from && i < to { v[i].to_f64() } else { 0.0 };
        }
        // SAFETY: `out` is a cell of the state.
        lanes.from = unsafe { var_mean(p) }.unwrap_or(fold(x) / n as f64);
    }
    let (mut d, mut q, mean) = (lanes.deviations, lanes.squares, lanes.from);
    for (part, v) in v.as_chunks::<VAR_LANES>().0.iter().enumerate() {
        for i in 0..VAR_LANES {
            let at = part * VAR_LANES + i;
            let x = if at >= from && at < to { v[i].to_f64() - mean } else { 0.0 };
            d[i] += x;
            q[i] += x * x;
        }
    }
    (lanes.deviations, lanes.squares) = (d, q);
    lanes.count += n as u32;
}
/// Accumulates a piece some of whose cells can be masked.
///
/// # Safety
/// The contract of [`var_lanes`].
#[inline(always)]
unsafe fn var_some<T: Float>(p: &Piece, lanes: &mut VarLanes) {
    // SAFETY: the tile has N cells.
    let v = unsafe { &*p.values.cast::<[T; N]>() };
    if p.valid.is_null() {
        // SAFETY: the caller upholds the contract of [`PieceFn`].
        unsafe { var_part(p, v, lanes) };
        return;
    }
    let mut keep = [0.0f64; N];
    for (i, k) in keep.iter_mut().enumerate() {
        *k = f64::from(u8::from(i >= p.from && i < p.to));
    }
    // SAFETY: the tile has N cells.
    let valid = unsafe { &*p.valid.cast::<[u8; N]>() };
    for i in 0..N {
        keep[i] *= f64::from(valid[i]);
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
/// Mean of the state; `None` if it has no cell.
///
/// # Safety
/// `out` is a cell of the four fields.
#[inline(always)]
unsafe fn var_mean(p: &Piece) -> Option<f64> {
    // SAFETY: the four fields have a cell at this place.
    unsafe {
        let n = *p.fields[0].cast::<i64>().add(p.out);
        let field = |f: usize| *p.fields[f].cast::<f64>().add(p.out);
        (n > 0).then(|| field(1) + field(2))
    }
}
/// The point of the state; `first` if it has no cell.
///
/// # Safety
/// `out` is a cell of the four fields.
#[inline(always)]
unsafe fn var_point(p: &Piece, first: f64) -> f64 {
    // SAFETY: the four fields have a cell at this place.
    unsafe {
        let n = *p.fields[0].cast::<i64>().add(p.out);
        if n > 0 { *p.fields[1].cast::<f64>().add(p.out) } else { first }
    }
}
#[inline(always)]
unsafe fn var_fold<T: Float>(p: &Piece) {
    // SAFETY: `lanes` points to memory for the lanes, and `out` is a cell of the state.
    unsafe { var_enter(p, &mut *p.lanes.cast::<VarLanes>()) };
}
/// Merges the lanes into the state and resets them.
///
/// # Safety
/// The contract of [`var_merge`].
#[inline(always)]
unsafe fn var_enter(p: &Piece, lanes: &mut VarLanes) {
    if lanes.count == 0 {
        return;
    }
    let n = f64::from(lanes.count);
    let (d, q) = (fold(lanes.deviations), fold(lanes.squares));
    let m2 = q - d * d / n;
    // Rounding may give a negative sum; NaN is preserved.
    let m2 = if m2 < 0.0 { 0.0 } else { m2 };
    // SAFETY: `out` is a cell of the four fields.
    let point = unsafe { var_point(p, lanes.from) };
    let block = (i64::from(lanes.count), point, (lanes.from - point) + d / n, m2);
    // SAFETY: as above.
    unsafe { var_merge(p, p.out, block) };
    *lanes = VarLanes::EMPTY;
}
unsafe fn var_reset(p: &Piece) {
    // SAFETY: `lanes` points to memory for the lanes.
    unsafe { p.lanes.cast::<VarLanes>().write(VarLanes::EMPTY) };
}
#[inline(always)]
unsafe fn var_seq<T: Float>(p: &Piece) {
    // SAFETY: the tile has N cells, of which the piece is a part.
    unsafe { var_short(p, &(&*p.values.cast::<[T; N]>())[p.from..p.to]) }
}
/// Accumulates a piece of few cells one by one.
///
/// # Safety
/// The contract of [`var_seq`].
#[inline(always)]
unsafe fn var_short<T: Float>(p: &Piece, v: &[T]) {
    // SAFETY: validity, if present, has N cells.
    let keep = |i: usize| p.valid.is_null() || unsafe { *p.valid.add(p.from + i) } != 0;
    let Some(first) = (0..v.len()).find(|i| keep(*i)) else { return };
    // SAFETY: `out` is a cell of the four fields.
    let point = unsafe { var_point(p, v[first].to_f64()) };
    let (mut n, mut sum) = (0i64, 0.0);
    for (i, x) in v.iter().enumerate().skip(first) {
        if keep(i) {
            n += 1;
            sum += x.to_f64() - point;
        }
    }
    let away = sum / n as f64;
    let mut m2 = 0.0;
    for (i, x) in v.iter().enumerate().skip(first) {
        if keep(i) {
            let d = (x.to_f64() - point) - away;
            m2 += d * d;
        }
    }
    // SAFETY: as above.
    unsafe { var_merge(p, p.out, (n, point, away, m2)) }
}
/// # Safety
/// `out` is a cell of the four fields.
#[inline(always)]
unsafe fn var_merge(p: &Piece, out: usize, b: Moments) {
    // SAFETY: the four fields have a cell at this place.
    unsafe {
        let n = p.fields[0].cast::<i64>().add(out);
        let [point, away, m2] = [1, 2, 3].map(|f: usize| p.fields[f].cast::<f64>().add(out));
        (*n, *point, *away, *m2) = chan((*n, *point, *away, *m2), b);
    }
}
unsafe fn var_group<T: Float>(p: &Piece) {
    for i in p.from..p.to {
        // SAFETY: codes were checked to be below the number of groups; the tile has N cells.
        unsafe {
            if p.valid.is_null() || *p.valid.add(i) != 0 {
                let out = p.out + *p.codes.add(i - p.from) as usize;
                var_merge(p, out, (1, (*p.values.cast::<T>().add(i)).to_f64(), 0.0, 0.0));
            }
        }
    }
}
unsafe fn var_init(p: &Piece) {
    // SAFETY: `from..to` are cells of the four fields.
    unsafe {
        count_init(p);
        for f in 1..4 {
            std::slice::from_raw_parts_mut(p.fields[f].cast::<f64>().add(p.from), p.to - p.from)
                .fill(0.0);
        }
    }
}
leveled!(pick_var_lanes, var_lanes<T: Float>(p: &Piece) as PieceFn);
leveled!(pick_var_and_sum, var_and_sum<T: Float>(p: &Piece, sum: &Piece) as PairFn);
leveled!(pick_var_seq, var_seq<T: Float>(p: &Piece) as PieceFn);
leveled!(pick_var_fold, var_fold<T: Float>(p: &Piece) as PieceFn);
leveled!(pick_var_rows, var_rows<T: Float>(p: &Piece, values: &[*const u8]) as RowsFn);
leveled!(pick_var_lines, var_lines<T: Float>(p: &Piece, len: usize, many: usize) as LinesFn);
leveled!(pick_var_row, var_row<T: Float>(p: &Piece) as PieceFn);

/// The functions of a variance.
pub(super) fn var<T: Float>(l: Level) -> Fns {
    Fns {
        lanes: pick_var_lanes::<T>(l),
        seq: pick_var_seq::<T>(l),
        row: pick_var_row::<T>(l),
        rows: Some(pick_var_rows::<T>(l)),
        lines: Some(pick_var_lines::<T>(l)),
        by_tiles: true,
        has_positions: false,
        group: var_group::<T>,
        fold: pick_var_fold::<T>(l),
        init: var_init,
        reset: var_reset,
        tails: None,
        is_sum: false,
        with_sum: Some(pick_var_and_sum::<T>(l)),
        uses_lanes: true,
    }
}
