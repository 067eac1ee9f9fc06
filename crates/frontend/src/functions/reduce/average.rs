//! The weighted mean: `average`.

use tessera_planner::dtype::DType;
use tessera_planner::ir::{AxisReduce, MapOp};
use tessera_planner::program::ScalarOp;
use tessera_planner::reduce::ReduceKind;

use super::{call, nan_of_nothing, reduced, without_nan};
use crate::error::Error;
use crate::functions::Bound;
use crate::lower::value::{Dim, Tensor, Value};
use crate::lower::{At, Lowerer, fail, types};

pub(super) fn average(l: &mut Lowerer<'_, '_>, a: &Bound<'_>) -> Result<Value, Error> {
    if a.expr("weights").is_none() {
        return call(l, a);
    }
    let mut t = a.tensor(l, "x")?;
    let mut weights = a.tensor(l, "weights")?;
    let rank = t.dims.len();
    let axes = a.axes(l, &t, "axis")?;
    let from = l.b.dtype(t.node);
    let weight_type = l.b.dtype(weights.node);
    if from.is_datetime() || weight_type.is_datetime() {
        return fail(types("average", vec![from.name(), weight_type.name()]), a.span);
    }
    // As in NumPy: integers count as float64, and floats meet the type of the weights.
    let real = match from.is_float() {
        true => from.promote(weight_type).unwrap_or(DType::Float64),
        false => DType::Float64,
    };
    // As in NumPy: a 1-d list of weights lies along the reduced axis.
    if let (Some([axis]), 1, 2..) = (axes.as_deref(), weights.dims.len(), rank)
        && weights.dims[0].name.is_none()
    {
        let n = l.b.shape(weights.node)[0];
        let mut shape = vec![1; rank];
        shape[*axis] = n;
        weights.node = l.b.reshape(weights.node, &shape).at(a.span)?;
        weights.dims = t.dims.iter().map(Dim::bare).collect();
    }
    t.node = l.b.cast(t.node, real).at(a.span)?;
    let (whole, skip) = (t.node, a.flag(l, "skipna")?);
    if skip {
        t.node = without_nan(l, t.node, a.span)?;
    }
    weights.node = l.b.cast(weights.node, real).at(a.span)?;
    let shape = l.b.shape(t.node);
    let (nodes, dims) = l.align("average", vec![t, weights], a.span)?;
    let x = nodes[0];
    if dims.len() != rank || l.b.shape(x) != shape {
        return a.refuse("weights", "have dimensions that the tensor has not");
    }
    let w = l.b.broadcast_to(nodes[1], &shape).at(a.span)?;
    let product = l.b.map(ScalarOp::Mul, &[x, w]).at(a.span)?;
    // The weights of unmasked cells.
    let there = l.b.map_op(MapOp::IsValid, &[product]).at(a.span)?;
    let w = match l.b.node(product).nullable {
        true => l.b.map_op(MapOp::Mask, &[w, there]).at(a.span)?,
        false => w,
    };
    let axes = axes.unwrap_or_else(|| (0..rank).collect());
    let total = l.b.reduce_axes(product, ReduceKind::Sum, &axes).at(a.span)?;
    let weight = l.b.reduce_axes(w, ReduceKind::Sum, &axes).at(a.span)?;
    let mut node = l.b.map(ScalarOp::Div, &[total, weight]).at(a.span)?;
    if skip {
        let how: Vec<AxisReduce> = (0..rank)
            .map(|axis| if axes.contains(&axis) { AxisReduce::All } else { AxisReduce::Keep })
            .collect();
        node = nan_of_nothing(l, node, whole, &how, a.span)?;
    }
    let keepdims = a.flag(l, "keepdims")?;
    Ok(Value::Tensor(reduced(l, Tensor::new(node, dims), &axes, keepdims, a.span)?))
}
