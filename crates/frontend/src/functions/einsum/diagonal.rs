//! Diagonals of two dimensions, and their sums (traces).

use sqlparser::tokenizer::Span;
use tessera_planner::ir::MapOp;
use tessera_planner::program::ScalarOp;
use tessera_planner::reduce::ReduceKind;
use tessera_planner::scalar::Scalar;

use crate::error::Error;
use crate::functions::Bound;
use crate::lower::value::{Dim, Tensor, Value};
use crate::lower::{At, Lowerer, misshapen};

/// The two axes of a diagonal and its offset.
fn diagonal_of(
    l: &mut Lowerer<'_, '_>,
    a: &Bound<'_>,
) -> Result<(Tensor, usize, usize, i64), Error> {
    let t = a.tensor(l, "x")?;
    if t.dims.len() < 2 {
        return misshapen(a.name, &[l.b.shape(t.node)], "it takes at least 2 dimensions", a.span);
    }
    let first = a.axis(l, &t, "axis1")?.unwrap_or(0);
    let second = a.axis(l, &t, "axis2")?.unwrap_or(1);
    if first == second {
        return a.refuse("axis2", "is the same as `axis1`");
    }
    let offset = a.int(l, "offset")?.unwrap_or(0).clamp(-(1 << 62), 1 << 62) as i64;
    Ok((t, first, second, offset))
}

pub(super) fn trace(l: &mut Lowerer<'_, '_>, a: &Bound<'_>) -> Result<Value, Error> {
    let (t, first, second, offset) = diagonal_of(l, a)?;
    let t = take_diagonal(l, t, first, second, offset, a.span)?;
    let axis = t.dims.len() - 1;
    let node = l.b.reduce_axes(t.node, ReduceKind::Sum, &[axis]).at(a.span)?;
    let node = l.b.squeeze(node, &[axis]).at(a.span)?;
    Ok(Value::Tensor(Tensor::new(node, t.dims[..axis].to_vec())))
}

pub(super) fn diagonal(l: &mut Lowerer<'_, '_>, a: &Bound<'_>) -> Result<Value, Error> {
    let (t, first, second, offset) = diagonal_of(l, a)?;
    take_diagonal(l, t, first, second, offset, a.span).map(Value::Tensor)
}

/// The cells at `[.., i, .., i + offset, ..]` along a last axis. Masks all cells of each row but one and takes the
/// maximum of the rest: one pass that stores only the diagonal.
pub(in crate::functions) fn take_diagonal(
    l: &mut Lowerer<'_, '_>,
    t: Tensor,
    first: usize,
    second: usize,
    offset: i64,
    span: Span,
) -> Result<Tensor, Error> {
    let shape = l.b.shape(t.node);
    let (dtype, rank) = (l.b.dtype(t.node), shape.len());
    // Cuts rows and columns so that the diagonal starts at (0, 0).
    let (down, right) = if offset < 0 { (offset.unsigned_abs(), 0) } else { (0, offset as u64) };
    let len = shape[first].saturating_sub(down).min(shape[second].saturating_sub(right));
    let mut node = l.b.slice(t.node, first, down as i64, 1, len).at(span)?;
    node = l.b.slice(node, second, right as i64, 1, len).at(span)?;
    let mut order: Vec<usize> =
        (0..rank).filter(|axis| *axis != first && *axis != second).collect();
    order.extend([first, second]);
    node = l.b.transpose(node, &order).at(span)?;
    let mut dims: Vec<Dim> = order[..rank - 2].iter().map(|&axis| t.dims[axis].clone()).collect();
    dims.push(Dim::default());
    let was_nullable = l.b.node(node).nullable;
    if len > 0 {
        let rows = l.b.iota(&[len, 1], None).at(span)?;
        let columns = l.b.iota(&[len], None).at(span)?;
        let keep = l.b.map(ScalarOp::Eq, &[rows, columns]).at(span)?;
        node = l.b.map_op(MapOp::Mask, &[node, keep]).at(span)?;
        node = l.b.reduce_axes(node, ReduceKind::Max, &[rank - 1]).at(span)?;
        if !was_nullable {
            let any = l.b.constant(Scalar::zero(dtype)).at(span)?;
            node = l.b.map_op(MapOp::Coalesce, &[node, any]).at(span)?;
        }
        node = l.b.squeeze(node, &[rank - 1]).at(span)?;
    } else {
        let mut empty: Vec<u64> = order[..rank - 2].iter().map(|&axis| shape[axis]).collect();
        empty.push(0);
        node = l.b.reshape(node, &empty).at(span)?;
    }
    Ok(Tensor::new(node, dims))
}
