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
//! A strip of a side that lies in one chunk is read in place, unless its cells crowd the caches; else its pieces are
//! copied together first, as many small products cost more than the copy. Where both sides are the same cells (the rows of
//! a block are its columns, in a product of a matrix with its own transpose), half of the products are made, and the
//! others copied. A product with a vector reads each cell of its matrix once, so that a copy would cost more than the
//! product: its strips are those of the matrix' chunks.

use super::Operand;
use super::gather::{Steps, lie};
use crate::chunk::Chunk;
use crate::error::Error;
use crate::kernels::Level;
use crate::kernels::contract::{Block, contract, contract_with_itself, mirror};
use crate::kernels::copy::{Strided, copy_box};
use crate::pool::PooledBuf;
use std::sync::Arc;
use tessera_planner::dtype::DType;
use tessera_planner::plan::Access;
use tessera_planner::region::{Region, strides};
use tessera_planner::tile::{PRODUCT_PADDING as PADDING, PRODUCT_STRIP, for_each_index};
use tessera_planner::view::{AxisView, View};

/// A strip ends with a chunk of the right side if it is at least this long then.
const STRIP_MIN: u64 = PRODUCT_STRIP / 4;

/// Least rows of a block of which half of the products are left out.
const SYMMETRIC_MIN: u64 = 64;

/// A chunk of one side and the cells of the operand that see it.
struct Piece {
    chunk: Arc<Chunk>,
    held: Region,
    /// The cells of the stage (batch, m, n, k) that see the chunk.
    seen: Region,
}

/// One side of the product.
struct Side<'a> {
    view: &'a View,
    pieces: Vec<Piece>,
}

/// The cells of a strip of one side: borrowed from its chunk, or copied together.
struct Strip<'a> {
    bytes: &'a [u8],
    offset: i64,
    steps: Steps,
}

/// Multiplies the operand's block. The strips are a function of the grids, so of the logical grid.
pub(super) fn run(op: &Operand<'_>, dtype: DType) -> Result<Vec<Chunk>, Error> {
    let region = op.stage.grid.region(op.index);
    let rank = region.rank();
    let (m, n) = (rank - 3, rank - 2);
    let left = side(op, 0, &region)?;
    let right = side(op, 1, &region)?;
    let mut buffers = op.buffers(0);
    let batch = Region { start: region.start[..m].into(), end: region.end[..m].into() };
    let out = buffers[0].as_mut_slice();
    let block_bytes = (region.len(m) * region.len(n)) as usize * dtype.size();
    let mut scratch = [None, None];
    let mut b = 0;
    let mut result = Ok(());
    let sides = in_place(&region, &left, &right)?;
    let symmetric = is_symmetric(op, dtype, &region, [&left, &right]);
    for_each_index(&batch, &mut |at| {
        if result.is_err() {
            return;
        }
        if let Some(sides) = &sides {
            let target = &mut out[b * block_bytes..(b + 1) * block_bytes];
            b += 1;
            result = whole(op, dtype, &region, at, sides, target, symmetric);
            return;
        }
        let mut matrix = region.clone();
        for (a, &p) in at.iter().enumerate() {
            (matrix.start[a], matrix.end[a]) = (p, p + 1);
        }
        let target = &mut out[b * block_bytes..(b + 1) * block_bytes];
        b += 1;
        result = block(op, dtype, &matrix, (&left, &right), &mut scratch, target, symmetric);
    });
    result?;
    Ok(vec![op.chunk(0, buffers)?])
}

/// Are both sides the same cells, so that the product is its own transpose?
fn is_symmetric(op: &Operand<'_>, dtype: DType, region: &Region, sides: [&Side<'_>; 2]) -> bool {
    let (m, n) = (region.rank() - 3, region.rank() - 2);
    let rows = (region.start[m], region.end[m]);
    let turned = |a: &AxisView| AxisView { axis: a.axis.map(|o| if o == m { n } else { o }), ..*a };
    let [left, right] = sides.map(|s| &s.view.axes);
    dtype.is_float()
        && op.stage.inputs[0].from == op.stage.inputs[1].from
        && rows == (region.start[n], region.end[n])
        && region.len(m) >= SYMMETRIC_MIN
        && left.len() == right.len()
        && left.iter().map(turned).eq(right.iter().copied())
}

/// Both sides of all matrices, if each lies in one chunk and no strips are needed: a batch may have many small ones,
/// where looking for the pieces of each costs more than its product.
fn in_place<'a>(
    region: &Region,
    left: &'a Side<'_>,
    right: &'a Side<'_>,
) -> Result<Option<[Strip<'a>; 2]>, Error> {
    let rank = region.rank();
    let (m, n, k) = (rank - 3, rank - 2, rank - 1);
    let vector = region.len(m) == 1 || region.len(n) == 1;
    if region.is_empty() || !(vector || region.len(k) <= PRODUCT_STRIP) {
        return Ok(None);
    }
    let a = placed(left, &seen_by(region, n))?;
    let b = placed(right, &seen_by(region, m))?;
    Ok(a.zip(b).map(|(a, b)| [a, b]))
}

/// The product of the matrices at the position `at` of the batch.
fn whole(
    op: &Operand<'_>,
    dtype: DType,
    region: &Region,
    at: &[u64],
    [a, b]: &[Strip<'_>; 2],
    target: &mut [u8],
    symmetric: bool,
) -> Result<(), Error> {
    op.cx.cancel.check()?;
    let (m, n, k) = (at.len(), at.len() + 1, at.len() + 2);
    let place = |s: &Strip<'_>| {
        let steps = at.iter().zip(&region.start).zip(&s.steps);
        s.offset + steps.map(|((p, start), step)| (p - start) as i64 * step).sum::<i64>()
    };
    let cells =
        Block { m: region.len(m) as usize, n: region.len(n) as usize, k: region.len(k) as usize };
    let a_strides = [a.steps[m], a.steps[k]];
    let b_strides = [b.steps[k], b.steps[n]];
    let left = Strided { bytes: a.bytes, offset: place(a), strides: &a_strides };
    if symmetric {
        contract_with_itself(dtype, (cells.n, cells.k), left, target, cells.n, false)?;
        mirror(dtype.size(), cells.n, target);
        return Ok(());
    }
    let right = Strided { bytes: b.bytes, offset: place(b), strides: &b_strides };
    Ok(contract(dtype, cells, left, right, target, cells.n, false)?)
}

/// One matrix of the batch.
fn block(
    op: &Operand<'_>,
    dtype: DType,
    matrix: &Region,
    (left, right): (&Side<'_>, &Side<'_>),
    [left_scratch, right_scratch]: &mut [Option<PooledBuf>; 2],
    target: &mut [u8],
    symmetric: bool,
) -> Result<(), Error> {
    let rank = matrix.rank();
    let (m, n, k) = (rank - 3, rank - 2, rank - 1);
    if matrix.len(k) == 0 {
        target.fill(0);
    }
    let mut at = matrix.start[k];
    while at < matrix.end[k] {
        op.cx.cancel.check()?;
        let mut strip = matrix.clone();
        (strip.start[k], strip.end[k]) = (at, strip_end(&left.pieces, &right.pieces, matrix, at));
        let a = gather(op, left, &strip, n, dtype, left_scratch)?;
        let cells =
            Block { m: strip.len(m) as usize, n: strip.len(n) as usize, k: strip.len(k) as usize };
        let (a_strides, add) = ([a.steps[m], a.steps[k]], at > matrix.start[k]);
        let a = Strided { bytes: a.bytes, offset: a.offset, strides: &a_strides };
        at = strip.end[k];
        if symmetric {
            contract_with_itself(dtype, (cells.n, cells.k), a, target, cells.n, add)?;
            continue;
        }
        let b = gather(op, right, &strip, m, dtype, right_scratch)?;
        let b_strides = [b.steps[k], b.steps[n]];
        let b = Strided { bytes: b.bytes, offset: b.offset, strides: &b_strides };
        contract(dtype, cells, a, b, target, cells.n, add)?;
    }
    if symmetric && matrix.len(k) > 0 {
        mirror(dtype.size(), matrix.len(n) as usize, target);
    }
    Ok(())
}

/// Where the strip that begins at `at` ends: with the right side's chunk if that is long enough, as it is read in place
/// then; else after [`PRODUCT_STRIP`]. With a vector, where the next chunk of the matrix ends.
fn strip_end(left: &[Piece], right: &[Piece], matrix: &Region, at: u64) -> u64 {
    let k = matrix.rank() - 1;
    let cut = |p: &Piece| p.seen.end[k];
    let beside_vector = match (matrix.len(k - 2), matrix.len(k - 1)) {
        (_, 1) => Some(left),
        (1, _) => Some(right),
        _ => None,
    };
    if let Some(pieces) = beside_vector {
        return pieces.iter().map(cut).filter(|&e| e > at).min().unwrap_or(matrix.end[k]);
    }
    let far = matrix.end[k].min(at + PRODUCT_STRIP);
    right.iter().map(cut).filter(|&e| e < far && e >= at + STRIP_MIN).max().unwrap_or(far)
}

/// The cells of a side that a strip sees; `across` is the axis of the stage that the side knows nothing of.
fn gather<'a>(
    op: &Operand<'_>,
    side: &'a Side<'_>,
    strip: &Region,
    across: usize,
    dtype: DType,
    scratch: &'a mut Option<PooledBuf>,
) -> Result<Strip<'a>, Error> {
    let size = dtype.size();
    let uses = strip.len(across);
    let strip = seen_by(strip, across);
    let mut steps = strides(&strip.shape());
    let mut cells = strip.cells();
    if let Some(found) = placed(side, &strip)? {
        // Room for a copy was asked for where there are several chunks.
        if side.pieces.len() < 2 || !is_crowded(&strip, uses, &found.steps, size) {
            return Ok(found);
        }
        let (m, n, k) = (strip.rank() - 3, strip.rank() - 2, strip.rank() - 1);
        let row = strip.len(m) * strip.len(n) + PADDING;
        (steps[m], steps[n], steps[k]) = (1, 1, row as i64);
        cells = row * strip.len(k);
    }
    let bytes = cells as usize * size;
    let kept = scratch.take().filter(|s| s.as_slice().len() >= bytes);
    let buffer = scratch.insert(kept.unwrap_or_else(|| op.cx.buffer(bytes)));
    for piece in &side.pieces {
        let Some(common) = strip.intersect(&piece.seen) else { continue };
        let (offset, from) = lie(side.view, &common, &piece.held);
        let at = common.start.iter().zip(&strip.start).zip(&steps);
        let at = at.map(|((c, s), step)| (c - s) as i64 * step).sum();
        let source =
            Strided { bytes: piece.chunk.field(0)?.buffer().as_slice(), offset, strides: &from };
        copy_box(size, &common.shape(), source, buffer.as_mut_slice(), at, &steps)?;
    }
    Ok(Strip { bytes: buffer.as_slice(), offset: 0, steps })
}

/// Do the cells of a strip that are packed together get in each other's way?
///
/// Those of neighbouring rows that lie a page apart, or several, share the few places that the caches have for each
/// line of a page. Kernels of 12 `float64` rows, as there are without AVX-512, pack parts of lines, and find them gone
/// when they come for the rest. Cells that few others are multiplied with are not worth a copy.
fn is_crowded(strip: &Region, uses: u64, steps: &Steps, size: usize) -> bool {
    const PAGE: u64 = 4096;
    const MANY: u64 = 64;
    let (m, n, k) = (strip.rank() - 3, strip.rank() - 2, strip.rank() - 1);
    let along = if strip.len(m) == 1 { n } else { m };
    let apart = steps[k].unsigned_abs() * size as u64;
    Level::detect() < Level::Avx512
        && steps[along] == 1
        && strip.len(along).min(strip.len(k)).min(uses) >= MANY
        && apart > 0
        && apart.is_multiple_of(PAGE)
}

/// The part of a region that a side knows of: `across` is not among its axes.
fn seen_by(region: &Region, across: usize) -> Region {
    let mut seen = region.clone();
    seen.end[across] = seen.start[across] + 1;
    seen
}

/// The cells of a side, if they lie in one chunk.
fn placed<'a>(side: &'a Side<'_>, cells: &Region) -> Result<Option<Strip<'a>>, Error> {
    let Some(piece) = side.pieces.iter().find(|p| p.seen.contains(cells)) else {
        return Ok(None);
    };
    let (offset, steps) = lie(side.view, cells, &piece.held);
    Ok(Some(Strip { bytes: piece.chunk.field(0)?.buffer().as_slice(), offset, steps }))
}

fn side<'a>(op: &Operand<'a>, side: usize, region: &Region) -> Result<Side<'a>, Error> {
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
    Ok(Side { view, pieces })
}
