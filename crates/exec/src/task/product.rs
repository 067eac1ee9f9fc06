//! Matrix products: a strip of k at a time.
//!
//! ```text
//!   left            right            result
//!   ┌──┬──┬──┐     ┌───────┐ ┐      ┌───────┐
//!   │▒▒│  │  │     │▒▒▒▒▒▒▒│ strip  │       │
//!   │▒▒│  │  │  @  ├───────┤ ┘  =   │   +   │
//!   └──┴──┴──┘     │       │        │       │
//!    strip         └───────┘        └───────┘
//! ```
//! A strip of a side that lies in one chunk is read in place; else its pieces are copied together first, as many small
//! products cost more than the copy. Several axes that are summed, or are rows, or columns, are one axis to the kernel:
//! in place if their layout allows it, else in the copy. Where both sides are the same cells (the rows of a block are
//! its columns, in a product of a matrix with its own transpose), half of the products are computed, and the others
//! copied. A product with a vector reads each cell of its matrix once, so that a copy would cost more than the product:
//! its strips are as long as the matrix' chunks, and only rows of several chunks are copied together.

use super::Operand;
use super::gather::{Steps, lie};
use crate::chunk::{Chunk, Condition};
use crate::error::Error;
use crate::pool::PooledBuf;
use smallvec::SmallVec;
use std::ops::Range;
use std::sync::Arc;
use tessera_kernels::contract::{Block, Target, contract, contract_with_itself, mirror, room};
use tessera_kernels::copy::{Strided, copy_box};
use tessera_planner::dtype::DType;
use tessera_planner::ir::Contraction;
use tessera_planner::plan::Access;
use tessera_planner::region::{Dims, Region};
use tessera_planner::scalar::Scalar;
use tessera_planner::tile::{PRODUCT_PADDING as PADDING, PRODUCT_STRIP, for_each_index};
use tessera_planner::view::{AxisView, View};

/// Smallest number of rows of a block for which half of the products are left out.
const SYMMETRIC_MIN: u64 = 64;

/// A chunk of one side and the cells of the operand that see it.
struct Piece {
    chunk: Arc<Chunk>,
    held: Region,
    /// The cells of the stage (batch, m, n, k) that see the chunk.
    seen: Region,
}

struct Side<'a> {
    view: &'a View,
    pieces: Vec<Piece>,
    /// The axes of the stage that belong to this side alone; below, the axes of the other side, which this one lacks,
    /// and the axes that are summed.
    own: Range<usize>,
    other: Range<usize>,
    summed: Range<usize>,
}

/// The cells of a strip of one side, borrowed from its chunk or copied together: the offset of the first cell, and the
/// steps along the joined own axes, along the joined summed ones, and along each axis.
struct Strip<'a> {
    bytes: &'a [u8],
    offset: i64,
    own: i64,
    summed: i64,
    steps: Steps,
}

/// Multiplies the operand's block. The strips are a function of the grids, so of the logical grid.
pub(super) fn run(op: &Operand<'_>, dtype: DType, axes: Contraction) -> Result<Vec<Chunk>, Error> {
    let region = op.stage.grid.region(op.index);
    let [m, n, k] = axes.ranges(region.rank());
    let batch = Region { start: region.start[..m.start].into(), end: region.end[..m.start].into() };
    let left = side(op, 0, &region, [m.clone(), n.clone(), k.clone()])?;
    let right = side(op, 1, &region, [n, m, k.clone()])?;
    let summed: u64 = k.map(|a| region.len(a)).product();
    if are_ones(dtype, summed, [&left, &right]) {
        return counted(op, dtype, summed);
    }
    let symmetric = is_symmetric(op, dtype, &region, [&left, &right]);
    let product = Product { op, dtype, region: &region, left, right, symmetric };
    let mut buffers = op.buffers(0);
    let out = buffers[0].as_mut_slice();
    let cells @ Block { m, n, .. } = product.lengths(&region);
    let mut room = op.cx.buffer(room(dtype, cells));
    let room = room.as_mut_slice();
    let mut blocks = out.chunks_exact_mut((m * n * dtype.size()).max(1));
    let mut scratch = [None, None];
    let mut result = Ok(());
    let sides = product.in_place()?;
    for_each_index(&batch, &mut |at| {
        let Some(target) = blocks.next().filter(|_| result.is_ok()) else { return };
        result = match &sides {
            Some(sides) => product.whole(at, sides, target, room),
            None => product.strips(at, &mut scratch, target, room),
        };
    });
    result?;
    Ok(vec![op.chunk(0, buffers)?])
}

/// True if all cells of both sides are 1, and their sums exact. That is so where products of masks are counted and
/// nothing is masked.
fn are_ones(dtype: DType, summed: u64, sides: [&Side<'_>; 2]) -> bool {
    let one = Condition::Only(Scalar::from_f64(dtype, 1.0));
    dtype.is_float()
        && summed < 1 << 24
        && sides.iter().all(|s| s.pieces.iter().all(|p| p.chunk.holds(one)))
}

/// The product of ones: the number of summed cells.
fn counted(op: &Operand<'_>, dtype: DType, summed: u64) -> Result<Vec<Chunk>, Error> {
    let mut buffers = op.buffers(0);
    let out = &mut buffers[0];
    match dtype {
        DType::Float32 => out.typed_mut::<f32>().fill(summed as f32),
        _ => out.typed_mut::<f64>().fill(summed as f64),
    }
    Ok(vec![op.chunk(0, buffers)?])
}

impl Side<'_> {
    /// Number of cells of a region along the side's own axes.
    fn cells(&self, region: &Region) -> u64 {
        self.own.clone().map(|a| region.len(a)).product()
    }

    /// The part of a region that the side sees: it does not have the other side's axes.
    fn seen_by(&self, region: &Region) -> Region {
        let mut seen = region.clone();
        for a in self.other.clone() {
            seen.end[a] = seen.start[a] + 1;
        }
        seen
    }

    /// True if adjacent cells along the side's own axes are closer in memory than adjacent cells along summed ones.
    fn is_along_own(&self, cells: &Region) -> bool {
        let Some(piece) = self.pieces.first() else { return false };
        let (_, steps) = lie(self.view, cells, &piece.held);
        let nearest = |axes: &Range<usize>| {
            let long = axes.clone().filter(|&a| cells.len(a) > 1);
            long.map(|a| steps[a].unsigned_abs()).min().unwrap_or(u64::MAX)
        };
        nearest(&self.own) < nearest(&self.summed)
    }

    /// Returns the cells of a region as the side sees them, if they lie in one chunk and can be joined to one axis
    /// along its own axes, and to one along the summed ones.
    fn placed(&self, region: &Region) -> Result<Option<Strip<'_>>, Error> {
        let cells = self.seen_by(region);
        let Some(piece) = self.pieces.iter().find(|p| p.seen.contains(&cells)) else {
            return Ok(None);
        };
        let (offset, steps) = lie(self.view, &cells, &piece.held);
        let joint = |axes: &Range<usize>| joint(&steps, &cells, axes.clone());
        let (Some(own), Some(summed)) = (joint(&self.own), joint(&self.summed)) else {
            return Ok(None);
        };
        let bytes = piece.chunk.field(0)?.buffer().as_slice();
        Ok(Some(Strip { bytes, offset, own, summed, steps }))
    }
}

/// Returns the step along several axes if they can be joined to one.
fn joint(steps: &Steps, cells: &Region, axes: Range<usize>) -> Option<i64> {
    let mut joint = (steps[axes.end - 1], 1);
    for a in axes.rev() {
        let len = cells.len(a) as i64;
        joint = match joint {
            _ if len == 1 => continue,
            (_, 1) => (steps[a], len),
            (step, before) if steps[a] == step * before => (step, before * len),
            _ => return None,
        };
    }
    Some(joint.0)
}

/// Sets the steps along several axes that are joined to one with the step `step`.
fn spread(steps: &mut Steps, cells: &Region, axes: Range<usize>, mut step: i64) {
    for a in axes.rev() {
        steps[a] = step;
        step *= cells.len(a) as i64;
    }
}

/// The products of an operand: one for each position of its stack.
struct Product<'a> {
    op: &'a Operand<'a>,
    dtype: DType,
    /// Cells of the stage.
    region: &'a Region,
    left: Side<'a>,
    right: Side<'a>,
    /// True if both sides are the same cells, so that the product is its own transpose.
    symmetric: bool,
}

impl Product<'_> {
    /// Rows, columns and summed cells of a region.
    fn lengths(&self, region: &Region) -> Block {
        let cells = |axes: &Range<usize>| axes.clone().map(|a| region.len(a)).product::<u64>();
        let [m, n, k] = [&self.left.own, &self.right.own, &self.left.summed].map(cells);
        Block { m: m as usize, n: n as usize, k: k as usize }
    }

    fn has_vector(&self) -> bool {
        let Block { m, n, .. } = self.lengths(self.region);
        m == 1 || n == 1
    }

    /// Returns both sides of all matrices, if each lies in one chunk and no strips are needed: a stack may have many
    /// small matrices, where finding the pieces of each costs more than its product.
    fn in_place(&self) -> Result<Option<[Strip<'_>; 2]>, Error> {
        let long = self.lengths(self.region).k as u64 > PRODUCT_STRIP && !self.has_vector();
        if self.region.is_empty() || long {
            return Ok(None);
        }
        let (a, b) = (self.left.placed(self.region)?, self.right.placed(self.region)?);
        Ok(a.zip(b).map(|(a, b)| [a, b]))
    }

    /// Computes the product of the matrices at the position `at` of the stack.
    fn whole(
        &self,
        at: &[u64],
        [a, b]: &[Strip<'_>; 2],
        target: &mut [u8],
        room: &mut [u8],
    ) -> Result<(), Error> {
        self.op.cx.cancel.check()?;
        let moved = |s: &Strip<'_>| {
            let steps = at.iter().zip(&self.region.start).zip(&s.steps);
            steps.map(|((p, start), step)| (p - start) as i64 * step).sum::<i64>()
        };
        let sides = [(a, moved(a)), (b, moved(b))];
        self.multiply(self.lengths(self.region), sides, target, false, room)?;
        self.mirror(target);
        Ok(())
    }

    /// Like [`Product::whole`], strip by strip.
    fn strips(
        &self,
        at: &[u64],
        [left, right]: &mut [Option<PooledBuf>; 2],
        target: &mut [u8],
        room: &mut [u8],
    ) -> Result<(), Error> {
        let mut matrix = self.region.clone();
        for (a, &p) in at.iter().enumerate() {
            (matrix.start[a], matrix.end[a]) = (p, p + 1);
        }
        let cuts = self.cuts();
        let boxes = Region::whole(&cuts.iter().map(|c| c.len() as u64 - 1).collect::<Dims>());
        if boxes.is_empty() {
            target.fill(0);
        }
        let (mut add, mut result) = (false, Ok(()));
        let mut one = |place: &[u64], add: bool| {
            self.op.cx.cancel.check()?;
            let mut strip = matrix.clone();
            for ((a, cuts), &i) in self.left.summed.clone().zip(&cuts).zip(place) {
                (strip.start[a], strip.end[a]) = (cuts[i as usize], cuts[i as usize + 1]);
            }
            let cells = self.lengths(&strip);
            let a = self.gather(&self.left, &strip, left)?;
            match self.symmetric {
                true => self.multiply(cells, [(&a, 0), (&a, 0)], target, add, room),
                false => {
                    let b = self.gather(&self.right, &strip, right)?;
                    self.multiply(cells, [(&a, 0), (&b, 0)], target, add, room)
                }
            }
        };
        for_each_index(&boxes, &mut |place| {
            if result.is_ok() {
                result = one(place, add);
                add = true;
            }
        });
        result?;
        self.mirror(target);
        Ok(())
    }

    /// Multiplies two strips, each moved by some cells.
    fn multiply(
        &self,
        cells: Block,
        [(a, a_moved), (b, b_moved)]: [(&Strip<'_>, i64); 2],
        target: &mut [u8],
        add: bool,
        room: &mut [u8],
    ) -> Result<(), Error> {
        let (a_strides, b_strides) = ([a.own, a.summed], [b.summed, b.own]);
        let a = Strided { bytes: a.bytes, offset: a.offset + a_moved, strides: &a_strides };
        let b = Strided { bytes: b.bytes, offset: b.offset + b_moved, strides: &b_strides };
        let to = Target { c: target, c_row: cells.n, add };
        match self.symmetric {
            true => contract_with_itself(self.dtype, (cells.n, cells.k), a, to, room)?,
            false => contract(self.dtype, cells, a, b, to, room)?,
        }
        Ok(())
    }

    /// Copies the half of a symmetric product that was left out.
    fn mirror(&self, target: &mut [u8]) {
        if self.symmetric {
            mirror(self.dtype.size(), self.lengths(self.region).n, target);
        }
    }

    /// Boundaries of strips along each summed axis: from the last axis on, as many cells as fit [`PRODUCT_STRIP`]. A
    /// strip ends with a chunk of the right side if it is at least a quarter of that long then, as it is read in place.
    /// With a vector, each ends where the next chunk of the matrix does, and a chunk whose cells lie along one axis is
    /// one strip.
    fn cuts(&self) -> SmallVec<[Vec<u64>; 2]> {
        let Block { m, n, .. } = self.lengths(self.region);
        let matrix = match (m, n) {
            (_, 1) => Some(&self.left),
            (1, _) => Some(&self.right),
            _ => None,
        };
        let summed = self.left.summed.clone();
        let mut room = if matrix.is_some() && summed.len() == 1 { u64::MAX } else { PRODUCT_STRIP };
        let mut all: SmallVec<[Vec<u64>; 2]> = SmallVec::new();
        for axis in summed.rev() {
            let (mut at, end) = (self.region.start[axis], self.region.end[axis]);
            let (mut cuts, mut longest) = (vec![at], 1);
            while at < end {
                let far = end.min(at.saturating_add(room));
                let of = |side: &Side<'_>, from: u64| {
                    let ends = side.pieces.iter().map(|p| p.seen.end[axis]);
                    ends.filter(|e| (from..far).contains(e)).collect::<SmallVec<[u64; 8]>>()
                };
                let next = match matrix {
                    Some(matrix) => of(matrix, at + 1).into_iter().min(),
                    None => of(&self.right, at + (room / 4).max(1)).into_iter().max(),
                };
                let next = next.unwrap_or(far);
                longest = longest.max(next - at);
                cuts.push(next);
                at = next;
            }
            room = (room / longest).max(1);
            all.push(cuts);
        }
        all.reverse();
        all
    }

    /// Gathers the cells of a side that a strip sees.
    fn gather<'a>(
        &self,
        side: &'a Side<'_>,
        strip: &Region,
        scratch: &'a mut Option<PooledBuf>,
    ) -> Result<Strip<'a>, Error> {
        let size = self.dtype.size();
        let cells = side.seen_by(strip);
        let (rows, columns) = (side.cells(strip), self.lengths(strip).k as u64);
        if let Some(found) = side.placed(strip)? {
            return Ok(found);
        }
        let (own, summed) = match side.is_along_own(&cells) {
            true => (1, rows + PADDING),
            false => (columns, 1),
        };
        let (own, summed) = (own as i64, summed as i64);
        let bytes = (rows * own as u64).max(columns * summed as u64) as usize * size;
        let kept = scratch.take().filter(|s| s.as_slice().len() >= bytes);
        let buffer = scratch.insert(kept.unwrap_or_else(|| self.op.cx.buffer(bytes)));
        let mut steps: Steps = SmallVec::from_elem(0, cells.rank());
        spread(&mut steps, &cells, side.own.clone(), own);
        spread(&mut steps, &cells, side.summed.clone(), summed);
        for piece in &side.pieces {
            let Some(common) = cells.intersect(&piece.seen) else { continue };
            let (offset, from) = lie(side.view, &common, &piece.held);
            let at = common.start.iter().zip(&cells.start).zip(&steps);
            let at = at.map(|((c, s), step)| (c - s) as i64 * step).sum();
            let bytes = piece.chunk.field(0)?.buffer().as_slice();
            let source = Strided { bytes, offset, strides: &from };
            copy_box(size, &common.shape(), source, buffer.as_mut_slice(), at, &steps)?;
        }
        Ok(Strip { bytes: buffer.as_slice(), offset: 0, own, summed, steps })
    }
}

/// True if both sides are the same cells.
fn is_symmetric(op: &Operand<'_>, dtype: DType, region: &Region, sides: [&Side<'_>; 2]) -> bool {
    let [m, n] = sides.map(|s| s.own.start);
    let [left, right] = sides.map(|s| &s.view.axes);
    let rows = (region.start[m], region.end[m]);
    let turned = |a: &AxisView| AxisView { axis: a.axis.map(|o| if o == m { n } else { o }), ..*a };
    dtype.is_float()
        && sides.iter().all(|s| s.own.len() == 1)
        && op.stage.inputs[0].from == op.stage.inputs[1].from
        && rows == (region.start[n], region.end[n])
        && region.len(m) >= SYMMETRIC_MIN
        && left.len() == right.len()
        && left.iter().map(turned).eq(right.iter().copied())
}

fn side<'a>(
    op: &Operand<'a>,
    side: usize,
    region: &Region,
    [own, other, summed]: [Range<usize>; 3],
) -> Result<Side<'a>, Error> {
    let input = &op.stage.inputs[side];
    let Access::View(view) = &input.access else {
        return Err(Error::Broken { what: "a product reads its sides through views".into() });
    };
    let grid = &op.plan().output(input.from).grid;
    let shape = op.stage.grid.shape();
    let mut pieces = Vec::new();
    for index in op.tiling.pieces(op.id, op.index, side) {
        let held = grid.region(&index);
        if let Some(seen) = view.preimage(&held, &shape).intersect(region) {
            pieces.push(Piece { chunk: op.inputs.get(input.from, &index)?.clone(), held, seen });
        }
    }
    Ok(Side { view, pieces, own, other, summed })
}
