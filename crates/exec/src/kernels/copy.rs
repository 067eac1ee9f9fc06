//! Copies of boxes between strided views.
//!
//! ```text
//!   source (any strides, 0 repeats)  ──▶  target (any strides, each cell written once)
//! ```
//! Axes along which both sides run on are joined first. Runs that are contiguous on both sides are `memcpy`; where the
//! two sides are contiguous along different axes, the box is copied in square blocks, so that each cache line of either
//! side is fetched once (a transpose); within them, squares of 8 by 8 cells are turned at once.

use super::KernelError;
use super::level::at_best;
use smallvec::SmallVec;

/// Where cells are read: cell `p` of the box is at element `offset + Σ strides[a] * p[a]`.
#[derive(Debug, Clone, Copy)]
pub struct Strided<'a> {
    /// The memory.
    pub bytes: &'a [u8],
    /// Element of the box's first cell.
    pub offset: i64,
    /// Elements for one step along each axis; 0 repeats, negative goes backward.
    pub strides: &'a [i64],
}

/// Edge of the blocks of a transpose, in cells: two blocks of 8-byte cells fit the first-level cache.
const BLOCK: u64 = 32;

/// One axis of a box: its length and both sides' steps.
#[derive(Debug, Clone, Copy)]
struct Axis {
    len: u64,
    from: i64,
    to: i64,
}

/// Copies a box of cells of `size` bytes (1, 2, 4 or 8) with the lengths `shape`.
///
/// # Errors
/// [`KernelError::Buffer`] if a side does not hold the box, or if the number of axes differs.
pub fn copy_box(
    size: usize,
    shape: &[u64],
    from: Strided<'_>,
    to: &mut [u8],
    to_offset: i64,
    to_strides: &[i64],
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
    match size {
        1 => typed::<1>(&axes, from, to, to_offset),
        2 => typed::<2>(&axes, from, to, to_offset),
        4 => typed::<4>(&axes, from, to, to_offset),
        8 => typed::<8>(&axes, from, to, to_offset),
        other => {
            return Err(KernelError::Buffer {
                what: "bytes of a cell",
                got: other as u64,
                expected: 8,
            });
        }
    }
    Ok(())
}

/// Refuses a view that leaves its memory.
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

/// The axes longer than 1; neighbours along which both sides run on are one.
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

fn typed<const N: usize>(axes: &[Axis], from: Strided<'_>, to: &mut [u8], to_offset: i64) {
    let mut order: SmallVec<[Axis; 6]> = axes.into();
    // The axis along which the target is densest goes innermost: writes run on.
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
    // The axis along which the source is densest, if it is another one, makes blocks with the inner one.
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
    walk(&order, from.offset, to_offset, &mut |f, t| match cross {
        Some(cross) => at_best(|| blocks::<N>(cross, inner, from.bytes, f, to, t)),
        None => row::<N>(inner, from.bytes, f, to, t),
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

/// A transpose: `cross` is dense in the source, `inner` in the target.
#[inline(always)]
fn blocks<const N: usize>(cross: Axis, inner: Axis, from: &[u8], f: i64, to: &mut [u8], t: i64) {
    let square = cross.from == 1 && inner.to == 1;
    for i0 in (0..cross.len).step_by(BLOCK as usize) {
        let rows = BLOCK.min(cross.len - i0);
        for j0 in (0..inner.len).step_by(BLOCK as usize) {
            let columns = BLOCK.min(inner.len - j0);
            let f = f + i0 as i64 * cross.from + j0 as i64 * inner.from;
            let t = t + i0 as i64 * cross.to + j0 as i64 * inner.to;
            // Whole squares first, then what is left beside and below them.
            let (whole, side) =
                if square { (rows - rows % SQUARE, columns - columns % SQUARE) } else { (0, 0) };
            for i in (0..whole as i64).step_by(SQUARE as usize) {
                for j in (0..side as i64).step_by(SQUARE as usize) {
                    let (f, t) = (f + i + j * inner.from, t + i * cross.to + j);
                    transpose::<N>(from, f, inner.from, to, t, cross.to);
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

/// Edge of the squares that are turned at once: a line of the caches of 8-byte cells.
const SQUARE: u64 = 8;

/// Turns a square whose rows lie `from_step` apart in the source and its columns `to_step` in the target.
#[inline(always)]
fn transpose<const N: usize>(
    from: &[u8],
    f: i64,
    from_step: i64,
    to: &mut [u8],
    t: i64,
    to_step: i64,
) {
    const S: usize = SQUARE as usize;
    let mut square = [[[0u8; N]; S]; S];
    for (j, column) in square.iter_mut().enumerate() {
        let at = (f + j as i64 * from_step) as usize * N;
        for (cell, bytes) in column.iter_mut().zip(from[at..at + S * N].chunks_exact(N)) {
            cell.copy_from_slice(bytes);
        }
    }
    for i in 0..S {
        let at = (t + i as i64 * to_step) as usize * N;
        for (bytes, column) in to[at..at + S * N].chunks_exact_mut(N).zip(&square) {
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
        ) {
            let rank = shape.len();
            let cells: u64 = shape.iter().product();
            prop_assume!(cells < 5000);
            // A dense source whose axes lie in another order, some of them backward.
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
            copy_box(size, &shape, view, &mut to, 0, &to_strides).unwrap();
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
