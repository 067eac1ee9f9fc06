//! Matrix products: a block of k at a time, piece by piece.

use super::Operand;
use super::gather::lie;
use crate::chunk::Chunk;
use crate::error::Error;
use crate::kernels::contract::{Block, contract};
use crate::kernels::copy::Strided;
use std::sync::Arc;
use tessera_planner::dtype::DType;
use tessera_planner::plan::Access;
use tessera_planner::region::Region;
use tessera_planner::tile::for_each_index;
use tessera_planner::view::View;

/// A chunk of one side and the cells of the operand that see it.
struct Piece {
    chunk: Arc<Chunk>,
    held: Region,
    /// The cells of the stage (batch, m, n, k) that see the chunk.
    seen: Region,
}

/// Multiplies the operand's block. Each pair of a left and a right piece that share cells adds its part, in row-major
/// order of the pieces: a function of the grids, so of the logical grid.
pub(super) fn run(op: &Operand<'_>, dtype: DType) -> Result<Vec<Chunk>, Error> {
    let region = op.stage.grid.region(op.index);
    let rank = region.rank();
    let (m, n) = (rank - 3, rank - 2);
    let (left_view, left) = pieces(op, 0, &region)?;
    let (right_view, right) = pieces(op, 1, &region)?;
    let mut buffers = op.buffers(0);
    let size = dtype.size();
    let (rows, columns) = (region.len(m) as usize, region.len(n) as usize);
    let batch = Region { start: region.start[..m].into(), end: region.end[..m].into() };
    let out = buffers[0].as_mut_slice();
    let block_bytes = rows * columns * size;
    let mut b = 0;
    let mut result = Ok(());
    for_each_index(&batch, &mut |at| {
        if result.is_err() {
            return;
        }
        let target = &mut out[b * block_bytes..(b + 1) * block_bytes];
        target.fill(0);
        b += 1;
        result = block(op, dtype, at, &region, (left_view, &left), (right_view, &right), target);
    });
    result?;
    Ok(vec![op.chunk(0, buffers)?])
}

/// One matrix of the batch.
fn block(
    op: &Operand<'_>,
    dtype: DType,
    at: &[u64],
    region: &Region,
    (left_view, left): (&View, &[Piece]),
    (right_view, right): (&View, &[Piece]),
    target: &mut [u8],
) -> Result<(), Error> {
    let rank = region.rank();
    let (m, n, k) = (rank - 3, rank - 2, rank - 1);
    let mut matrix = region.clone();
    for (a, &p) in at.iter().enumerate() {
        (matrix.start[a], matrix.end[a]) = (p, p + 1);
    }
    let size = dtype.size();
    let columns = region.len(n) as usize;
    for l in left {
        for r in right {
            op.cx.cancel.check()?;
            let Some(common) = matrix.intersect(&l.seen).and_then(|c| c.intersect(&r.seen)) else {
                continue;
            };
            let (a_offset, a_steps) = lie(left_view, &common, &l.held);
            let (b_offset, b_steps) = lie(right_view, &common, &r.held);
            let cells = Block {
                m: common.len(m) as usize,
                n: common.len(n) as usize,
                k: common.len(k) as usize,
            };
            let first = (common.start[m] - region.start[m]) as usize * columns
                + (common.start[n] - region.start[n]) as usize;
            let a = Strided {
                bytes: l.chunk.field(0)?.buffer().as_slice(),
                offset: a_offset,
                strides: &[a_steps[m], a_steps[k]],
            };
            let b = Strided {
                bytes: r.chunk.field(0)?.buffer().as_slice(),
                offset: b_offset,
                strides: &[b_steps[k], b_steps[n]],
            };
            contract(dtype, cells, a, b, &mut target[first * size..], columns, true)?;
        }
    }
    Ok(())
}

fn pieces<'a>(
    op: &Operand<'a>,
    side: usize,
    region: &Region,
) -> Result<(&'a View, Vec<Piece>), Error> {
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
    Ok((view, pieces))
}
