//! Computes only half of the product of a matrix with its own transpose: the other half is its mirror image.
//!
//! ```text
//!   A @ Aᵀ, A in blocks of rows A₁, A₂:    A₁A₁ᵀ  (A₂A₁ᵀ)ᵀ
//!                                          A₂A₁ᵀ   A₂A₂ᵀ        and so on along the diagonal
//! ```
//! The cuts are those of the grid, so the grid does not change. Of a block on the diagonal the kernel computes one
//! half.

use super::rebuild;
use crate::build::Builder;
use crate::error::Error;
use crate::ir::{Contraction, Node, NodeId, Op};
use crate::view::{AxisView, View};

/// Smallest summed length that pays off: the blocks that are not multiplied are copied and concatenated instead.
const CONTRACTED_MIN: u64 = 512;

/// Largest result in bytes: a block below the diagonal is retained until the block above it is computed.
const RESULT_BYTES_MAX: u64 = 256 << 20;

pub(super) fn rewrite(b: &mut Builder, node: &Node, inputs: &[NodeId]) -> Result<NodeId, Error> {
    let rank = node.shape.len();
    let bytes = node.shape.iter().fold(node.dtype.size() as u64, |n, m| n.saturating_mul(*m));
    let worth = node.op == Op::Contract(Contraction::MATRICES)
        && node.dtype.is_float()
        && node.grid.axes[rank - 1].count() > 1
        && bytes <= RESULT_BYTES_MAX
        && b.node(inputs[0]).shape[rank - 1] >= CONTRACTED_MIN;
    if worth && is_symmetric(b, inputs[0], inputs[1]) {
        let halved = halve(b, inputs[0], inputs[1])?;
        if b.node(halved).grid == node.grid {
            return Ok(halved);
        }
    }
    rebuild(b, node, inputs)
}

/// True if the right side `[b.., k, n]` is the left side `[b.., m, k]` with the last two axes transposed.
fn is_symmetric(b: &Builder, lhs: NodeId, rhs: NodeId) -> bool {
    let rank = b.node(lhs).shape.len();
    let (left, left_view) = b.graph.behind_view(lhs);
    let (right, right_view) = b.graph.behind_view(rhs);
    left == right && turned(rank).then(&left_view) == right_view
}

/// The view that transposes the last two axes.
fn turned(rank: usize) -> View {
    let mut view = View::identity(rank);
    view.axes.swap(rank - 2, rank - 1);
    view
}

fn halve(b: &mut Builder, lhs: NodeId, rhs: NodeId) -> Result<NodeId, Error> {
    let whole = b.contract(lhs, rhs)?;
    let rank = b.node(whole).shape.len();
    let (rows, columns) = (rank - 2, rank - 1);
    let axis = b.node(whole).grid.axes[rows];
    if axis.count() < 2 {
        return Ok(whole);
    }
    let cut = axis.interval(axis.count() / 2).0;
    let (upper, lower) = (part(b, lhs, rows, 0, cut)?, part(b, lhs, rows, cut, axis.len)?);
    let (left, right) = (part(b, rhs, columns, 0, cut)?, part(b, rhs, columns, cut, axis.len)?);
    let first = halve(b, upper, left)?;
    let below = b.contract(lower, left)?;
    let last = halve(b, lower, right)?;
    let mut shape = b.node(below).shape.clone();
    shape.swap(rows, columns);
    let beside = b.view(below, turned(rank), &shape)?;
    let first = b.concat(&[first, beside], columns)?;
    let last = b.concat(&[below, last], columns)?;
    b.concat(&[first, last], rows)
}

/// The positions `start..end` along an axis.
fn part(
    b: &mut Builder,
    input: NodeId,
    axis: usize,
    start: u64,
    end: u64,
) -> Result<NodeId, Error> {
    let mut shape = b.node(input).shape.clone();
    shape[axis] = end - start;
    let mut view = View::identity(shape.len());
    view.axes[axis] = AxisView { axis: Some(axis), start: start as i64, step: 1 };
    b.view(input, view, &shape)
}
