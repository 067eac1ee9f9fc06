//! Copies of boxes between strided views.
//!
//! ```text
//!   source (any strides, 0 repeats)  ──▶  target (any strides, each cell written once)
//! ```
//! Axes along which both sides are contiguous with the next axis are joined first. Runs that are contiguous on both
//! sides are `memcpy`. If the sides are contiguous along different axes, the box is copied in square blocks, so that
//! each cache line of either side is fetched once (a transpose); within a block, squares of 8 by 8 cells are transposed
//! at once.
//!
//! Cells that are not read soon are stored past the caches ([`Stores::Past`]): rows line by line, single cells and
//! transposed blocks through a buffer.

use super::KernelError;
use super::level::Level;
use super::stream::{self, StreamFn};
use super::transpose::{self, SQUARE, TurnFn};
use smallvec::SmallVec;

/// A strided view to read: cell `p` of the box is at element `offset + Σ strides[a] * p[a]`.
#[derive(Debug, Clone, Copy)]
pub struct Strided<'a> {
    /// The memory of the view.
    pub bytes: &'a [u8],
    /// Element index of the box's first cell.
    pub offset: i64,
    /// Elements per step along each axis; 0 repeats, negative goes backward.
    pub strides: &'a [i64],
}

/// Kind of store instructions.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stores {
    /// Through the caches: the cells are read soon.
    Plain,
    /// Past the caches (non-temporal), where the machine can and whole lines are written.
    Past,
}

/// Edge of the blocks of a transpose, in cells: two blocks of 8-byte cells fit in the first-level cache.
const BLOCK: u64 = 32;

/// Bytes that are buffered before they are stored past the caches.
const GROUP: usize = 1024;

/// Bytes of each row of a transposed block that are buffered. Rows begin and end within cache lines, which are stored
/// plainly, so a row has many lines. The block stays in the second-level cache.
const TURNED: usize = 4096;

/// One axis of a box: its length and the strides of both sides.
#[derive(Debug, Clone, Copy)]
struct Axis {
    len: u64,
    from: i64,
    to: i64,
}

/// Copies a box of shape `shape` with cells of `size` bytes (1, 2, 4 or 8).
///
/// # Errors
/// [`KernelError::Buffer`] if a side does not hold the box, or if the numbers of axes differ.
pub fn copy_box(
    size: usize,
    shape: &[u64],
    from: Strided<'_>,
    to: &mut [u8],
    to_offset: i64,
    to_strides: &[i64],
) -> Result<(), KernelError> {
    store_box(size, shape, from, to, (to_offset, to_strides), Stores::Plain)
}

/// [`copy_box`] with a kind of stores.
///
/// # Errors
/// The errors of [`copy_box`].
pub fn store_box(
    size: usize,
    shape: &[u64],
    from: Strided<'_>,
    to: &mut [u8],
    (to_offset, to_strides): (i64, &[i64]),
    stores: Stores,
) -> Result<(), KernelError> {
    if from.strides.len() != shape.len() || to_strides.len() != shape.len() {
        return Err(KernelError::Buffer {
            what: "axes of a copy",
            got: from.strides.len() as u64,
            expected: shape.len() as u64,
        });
    }
    if shape.contains(&0) {
        return Ok(());
    }
    check("cells to copy from", shape, from.bytes.len() / size, from.offset, from.strides)?;
    check("cells to copy to", shape, to.len() / size, to_offset, to_strides)?;
    let axes = joined(shape, from.strides, to_strides);
    let past = if stores == Stores::Past { stream::copy(Level::detect()) } else { None };
    match size {
        1 => typed::<1>(&axes, from, to, to_offset, past),
        2 => typed::<2>(&axes, from, to, to_offset, past),
        4 => typed::<4>(&axes, from, to, to_offset, past),
        8 => typed::<8>(&axes, from, to, to_offset, past),
        other => {
            return Err(KernelError::Buffer {
                what: "bytes of a cell",
                got: other as u64,
                expected: 8,
            });
        }
    }
    if past.is_some() {
        stream::fence();
    }
    Ok(())
}

/// Rejects a view that exceeds its memory.
pub(super) fn check(
    what: &'static str,
    shape: &[u64],
    cells: usize,
    offset: i64,
    strides: &[i64],
) -> Result<(), KernelError> {
    let (mut low, mut high) = (i128::from(offset), i128::from(offset));
    for (&n, &s) in shape.iter().zip(strides) {
        let reach = i128::from(n - 1) * i128::from(s);
        if reach < 0 { low += reach } else { high += reach }
    }
    if low < 0 || high >= cells as i128 {
        return Err(KernelError::Buffer {
            what,
            got: cells as u64,
            expected: high.max(0) as u64 + 1,
        });
    }
    Ok(())
}

/// The axes longer than 1; adjacent axes along which both sides are contiguous are joined.
fn joined(shape: &[u64], from: &[i64], to: &[i64]) -> SmallVec<[Axis; 6]> {
    let mut axes: SmallVec<[Axis; 6]> = SmallVec::new();
    for ((&len, &from), &to) in shape.iter().zip(from).zip(to) {
        if len == 1 {
            continue;
        }
        match axes.last_mut() {
            Some(outer) if outer.from == from * len as i64 && outer.to == to * len as i64 => {
                *outer = Axis { len: outer.len * len, from, to };
            }
            _ => axes.push(Axis { len, from, to }),
        }
    }
    axes
}

fn typed<const N: usize>(
    axes: &[Axis],
    from: Strided<'_>,
    to: &mut [u8],
    to_offset: i64,
    past: Option<StreamFn>,
) {
    let mut order: SmallVec<[Axis; 6]> = axes.into();
    // The axis along which the target is densest goes innermost, so that writes are contiguous.
    if let Some(inner) =
        (0..order.len()).min_by_key(|&i| (order[i].to.unsigned_abs(), usize::MAX - i))
    {
        let axis = order.remove(inner);
        order.push(axis);
    }
    let (Some(&inner), outer) = (order.last(), order.len().saturating_sub(1)) else {
        move_cell::<N>(from.bytes, from.offset, to, to_offset);
        return;
    };
    // The axis along which the source is densest, if it is another one, forms blocks with the inner one.
    let dense = (0..outer).min_by_key(|&i| order[i].from.unsigned_abs());
    let cross = match dense {
        Some(d)
            if inner.from.unsigned_abs() > 1
                && order[d].from.unsigned_abs() < inner.from.unsigned_abs()
                && order[d].from != 0 =>
        {
            let axis = order.remove(d);
            Some(axis)
        }
        _ => None,
    };
    order.pop();
    // Contiguous rows are stored line by line, others are buffered first.
    let least = if inner.from == 1 { 4 * stream::LINE } else { GROUP };
    let past = past.filter(|_| inner.to == 1 && inner.len as usize * N >= least);
    let turn = transpose::squares(Level::detect(), N);
    // Bytes per row of the buffer, and the number of rows that are transposed together.
    let width = TURNED.min(inner.len as usize * N);
    let mut block = match (cross, past) {
        (Some(cross), Some(_)) => vec![0; BLOCK.min(cross.len) as usize * width],
        _ => Vec::new(),
    };
    walk(&order, from.offset, to_offset, &mut |f, t| match (cross, past) {
        (Some(cross), None) => blocks::<N>(cross, inner, from.bytes, f, to, t, turn),
        (Some(cross), Some(past)) => {
            let by = (past, turn, &mut block[..], width);
            blocks_past::<N>(cross, inner, from.bytes, f, to, t, by)
        }
        (None, None) => row::<N>(inner, from.bytes, f, to, t),
        (None, Some(past)) => row_past::<N>(inner, from.bytes, f, to, t, past),
    });
}

/// Calls `f` with both offsets of each position of the axes.
fn walk(axes: &[Axis], from: i64, to: i64, f: &mut impl FnMut(i64, i64)) {
    match axes.split_first() {
        None => f(from, to),
        Some((a, rest)) => {
            for i in 0..a.len as i64 {
                walk(rest, from + i * a.from, to + i * a.to, f);
            }
        }
    }
}

#[inline(always)]
fn move_cell<const N: usize>(from: &[u8], f: i64, to: &mut [u8], t: i64) {
    let (f, t) = (f as usize * N, t as usize * N);
    to[t..t + N].copy_from_slice(&from[f..f + N]);
}

#[inline(always)]
fn row<const N: usize>(a: Axis, from: &[u8], f: i64, to: &mut [u8], t: i64) {
    let n = a.len as usize;
    match (a.from, a.to) {
        (1, 1) => {
            let (f, t) = (f as usize * N, t as usize * N);
            to[t..t + n * N].copy_from_slice(&from[f..f + n * N]);
        }
        (0, 1) => {
            let (f, t) = (f as usize * N, t as usize * N);
            let mut cell = [0u8; N];
            cell.copy_from_slice(&from[f..f + N]);
            for c in to[t..t + n * N].chunks_exact_mut(N) {
                c.copy_from_slice(&cell);
            }
        }
        (step, 1) => {
            let t = t as usize * N;
            for (i, c) in to[t..t + n * N].chunks_exact_mut(N).enumerate() {
                let f = (f + i as i64 * step) as usize * N;
                c.copy_from_slice(&from[f..f + N]);
            }
        }
        _ => {
            for i in 0..a.len as i64 {
                move_cell::<N>(from, f + i * a.from, to, t + i * a.to);
            }
        }
    }
}

/// Copies a row that is contiguous in the target, with stores past the caches.
fn row_past<const N: usize>(a: Axis, from: &[u8], f: i64, to: &mut [u8], t: i64, past: StreamFn) {
    let n = a.len as usize;
    let to = &mut to[t as usize * N..(t as usize + n) * N];
    if a.from == 1 {
        stream::store(past, to, &from[f as usize * N..(f as usize + n) * N]);
        return;
    }
    let mut group = [0u8; GROUP];
    let cells = GROUP / N;
    // A repeated cell is buffered once.
    if a.from == 0 {
        row::<N>(Axis { len: cells as u64, ..a }, from, f, &mut group, 0);
    }
    // The first group ends at a cache line boundary.
    let head = (to.as_ptr().align_offset(stream::LINE) / N).min(n);
    let mut at = 0;
    while at < n {
        let end = if at < head { head } else { n.min(at + cells) };
        if a.from != 0 {
            let part = Axis { len: (end - at) as u64, ..a };
            row::<N>(part, from, f + at as i64 * a.from, &mut group, 0);
        }
        stream::store(past, &mut to[at * N..end * N], &group[..(end - at) * N]);
        at = end;
    }
}

/// A transpose whose blocks are buffered in rows of `width` bytes and stored past the caches.
#[inline(always)]
fn blocks_past<const N: usize>(
    cross: Axis,
    inner: Axis,
    from: &[u8],
    f: i64,
    to: &mut [u8],
    t: i64,
    (past, turn, block, width): (StreamFn, Option<TurnFn>, &mut [u8], usize),
) {
    let cells = (width / N) as i64;
    let length = inner.len as i64;
    for i0 in (0..cross.len as i64).step_by(BLOCK as usize) {
        let rows = BLOCK.min(cross.len - i0 as u64);
        let turned = Axis { len: rows, to: cells, ..cross };
        for j0 in (0..length).step_by(cells as usize) {
            let part = Axis { len: cells.min(length - j0) as u64, to: 1, ..inner };
            let f = f + i0 * cross.from + j0 * inner.from;
            blocks::<N>(turned, part, from, f, block, 0, turn);
            let bytes = part.len as usize * N;
            for (i, row) in block.chunks_exact(width).take(rows as usize).enumerate() {
                let at = (t + (i0 + i as i64) * cross.to + j0) as usize * N;
                stream::store(past, &mut to[at..at + bytes], &row[..bytes]);
            }
        }
    }
}

/// A transpose: `cross` is dense in the source, `inner` in the target.
#[inline(always)]
fn blocks<const N: usize>(
    cross: Axis,
    inner: Axis,
    from: &[u8],
    f: i64,
    to: &mut [u8],
    t: i64,
    turn: Option<TurnFn>,
) {
    const EDGE: u64 = SQUARE as u64;
    let square = cross.from == 1 && inner.to == 1;
    for i0 in (0..cross.len).step_by(BLOCK as usize) {
        let rows = BLOCK.min(cross.len - i0);
        for j0 in (0..inner.len).step_by(BLOCK as usize) {
            let columns = BLOCK.min(inner.len - j0);
            let f = f + i0 as i64 * cross.from + j0 as i64 * inner.from;
            let t = t + i0 as i64 * cross.to + j0 as i64 * inner.to;
            // Whole squares first, then the rest beside and below them.
            let (whole, side) = if square && rows >= EDGE {
                (rows - rows % EDGE, columns - columns % EDGE)
            } else {
                (0, 0)
            };
            for j in (0..side as i64).step_by(SQUARE) {
                let (f, t) = ((f + j * inner.from, inner.from), (t + j, cross.to));
                match turn {
                    Some(turn) => {
                        transpose::turn::<N>(turn, from, f, to, t, (whole / EDGE) as usize)
                    }
                    None => {
                        for i in (0..whole as i64).step_by(SQUARE) {
                            transpose::<N>(from, (f.0 + i, f.1), to, (t.0 + i * t.1, t.1));
                        }
                    }
                }
            }
            for i in 0..rows as i64 {
                let done = if i < whole as i64 { side } else { 0 };
                let part = Axis { len: columns - done, ..inner };
                let done = done as i64;
                let (f, t) = (f + i * cross.from + done * inner.from, t + i * cross.to + done);
                if part.len > 0 {
                    row::<N>(part, from, f, to, t);
                }
            }
        }
    }
}

/// Transposes a square with a row stride of `from_step` in the source and a column stride of `to_step` in the target.
#[inline(always)]
fn transpose<const N: usize>(
    from: &[u8],
    (f, from_step): (i64, i64),
    to: &mut [u8],
    (t, to_step): (i64, i64),
) {
    let mut square = [[[0u8; N]; SQUARE]; SQUARE];
    for (j, column) in square.iter_mut().enumerate() {
        let at = (f + j as i64 * from_step) as usize * N;
        for (cell, bytes) in column.iter_mut().zip(from[at..at + SQUARE * N].chunks_exact(N)) {
            cell.copy_from_slice(bytes);
        }
    }
    for i in 0..SQUARE {
        let at = (t + i as i64 * to_step) as usize * N;
        for (bytes, column) in to[at..at + SQUARE * N].chunks_exact_mut(N).zip(&square) {
            bytes.copy_from_slice(&column[i]);
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn every_cell_arrives(
            shape in proptest::collection::vec(1u64..40, 0..4),
            order in Just([0usize, 1, 2, 3]).prop_shuffle(),
            signs in proptest::collection::vec(any::<bool>(), 4),
            size in prop_oneof![Just(1usize), Just(2), Just(4), Just(8)],
            stores in prop_oneof![Just(Stores::Plain), Just(Stores::Past)],
            long in 0usize..4,
        ) {
            // One axis long enough for stores past the caches.
            let mut shape = shape;
            if let Some(n) = shape.get_mut(long) {
                *n += 1100;
            }
            let rank = shape.len();
            let cells: u64 = shape.iter().product();
            prop_assume!(cells < 100_000);
            // A dense source with its axes in another order, some of them reversed.
            let order: Vec<usize> = order.into_iter().filter(|&a| a < rank).collect();
            let (mut from, mut step, mut offset) = (vec![0i64; rank], 1i64, 0i64);
            for &a in order.iter().rev() {
                from[a] = if signs[a] { -step } else { step };
                if signs[a] { offset += step * (shape[a] as i64 - 1) }
                step *= shape[a] as i64;
            }
            let bytes: Vec<u8> = (0..cells as usize * size).map(|i| (i * 31 % 251) as u8).collect();
            let to_strides = tessera_planner::region::strides(&shape);
            let mut to = vec![0u8; bytes.len()];
            let view = Strided { bytes: &bytes, offset, strides: &from };
            store_box(size, &shape, view, &mut to, (0, &to_strides), stores).unwrap();
            let all = tessera_planner::region::Region::whole(&shape);
            let mut number = 0usize;
            tessera_planner::tile::for_each_index(&all, &mut |p| {
                let at = offset + p.iter().zip(&from).map(|(&p, s)| p as i64 * s).sum::<i64>();
                let at = at as usize * size;
                assert_eq!(to[number * size..(number + 1) * size], bytes[at..at + size]);
                number += 1;
            });
        }
    }

    #[test]
    fn repeats_and_refuses() {
        let mut to = [0u8; 6];
        let one = Strided { bytes: &[1, 2, 3], offset: 0, strides: &[0, 1] };
        copy_box(1, &[2, 3], one, &mut to, 0, &[3, 1]).unwrap();
        assert_eq!(to, [1, 2, 3, 1, 2, 3]);
        let beyond = Strided { bytes: &[1, 2, 3], offset: 1, strides: &[0, 1] };
        assert!(copy_box(1, &[2, 3], beyond, &mut to, 0, &[3, 1]).is_err());
        let back = Strided { bytes: &[1, 2, 3], offset: 1, strides: &[-1] };
        assert!(copy_box(1, &[3], back, &mut to, 0, &[1]).is_err());
    }
}
