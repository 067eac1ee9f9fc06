//! Equality of tensors, exact or within a tolerance.

use sqlparser::tokenizer::Span;
use tessera_planner::dtype::DType;
use tessera_planner::ir::{MapOp, NodeId};
use tessera_planner::program::ScalarOp;
use tessera_planner::reduce::ReduceKind;
use tessera_planner::scalar::Scalar;

use super::{Bound, Row, row};
use crate::error::Error;
use crate::lower::value::{Tensor, Value};
use crate::lower::{At, Lowerer, fail};

pub(super) const ROWS: &[Row] = &[
    row(
        "allclose(x, y, rtol => 1e-5, atol => 1e-8, equal_nan => false)",
        close,
        "Are all cells equal within atol + rtol * |y|?",
    )
    .dtypes("numeric give bool")
    .missing("cells masked in either are skipped; NaN equals nothing, or NaN with `equal_nan`")
    .example("SELECT allclose(a, b) FROM a, b"),
    row(
        "array_equal(x, y, equal_nan => false)",
        array_equal,
        "Have both the same shape and the same cells?",
    )
    .dtypes("any of one type give bool")
    .missing("cells masked in either are skipped; NaN equals nothing, or NaN with `equal_nan`")
    .example("SELECT array_equal(a, b) FROM a, b"),
];

/// Comparisons of single cells.
pub(super) const CELL_ROWS: &[Row] = &[row(
    "isclose(x, y, rtol => 1e-5, atol => 1e-8, equal_nan => false)",
    close,
    "Is each cell equal within atol + rtol * |y|?",
)
.dtypes("numeric give bool")
.missing("NULL where either is masked; NaN equals nothing, or NaN with `equal_nan`")
.example("SELECT isclose(a, b) FROM a, b")];

fn close(l: &mut Lowerer<'_, '_>, a: &Bound<'_>) -> Result<Value, Error> {
    let values = vec![a.value(l, "x")?, a.value(l, "y")?];
    let values = l.settle(values, a.span)?;
    let dtype = l.meet(a.name, &values, a.span)?;
    let real = if dtype.is_float() { dtype } else { DType::Float64 };
    if dtype.is_datetime() {
        return fail(crate::lower::types(a.name, vec![dtype.name()]), a.span);
    }
    let mut sides = Vec::with_capacity(2);
    for value in values {
        sides.push(l.typed(value, real, a.name, a.span)?);
    }
    let rtol = a.float(l, "rtol")?.unwrap_or(1e-5);
    let atol = a.float(l, "atol")?.unwrap_or(1e-8);
    let equal_nan = a.flag(l, "equal_nan")?;
    let (nodes, dims) = l.align(a.name, sides, a.span)?;
    let (x, y) = (nodes[0], nodes[1]);
    let constant = |l: &mut Lowerer<'_, '_>, v: f64| l.b.constant(Scalar::from_f64(real, v));
    let difference = l.b.map(ScalarOp::Sub, &[x, y]).at(a.span)?;
    let difference = l.b.map(ScalarOp::Abs, &[difference]).at(a.span)?;
    let size = l.b.map(ScalarOp::Abs, &[y]).at(a.span)?;
    let (rtol, atol) = (constant(l, rtol).at(a.span)?, constant(l, atol).at(a.span)?);
    let slack = l.b.map(ScalarOp::Mul, &[size, rtol]).at(a.span)?;
    let slack = l.b.map(ScalarOp::Add, &[slack, atol]).at(a.span)?;
    let near = l.b.map(ScalarOp::Le, &[difference, slack]).at(a.span)?;
    // An infinite y gives an infinite tolerance; only infinities of one sign are equal.
    let finite = l.b.map(ScalarOp::IsFinite, &[y]).at(a.span)?;
    let near = l.b.map(ScalarOp::And, &[near, finite]).at(a.span)?;
    let equal = l.b.map(ScalarOp::Eq, &[x, y]).at(a.span)?;
    let mut node = l.b.map(ScalarOp::Or, &[near, equal]).at(a.span)?;
    if equal_nan {
        let both = both_nan(l, x, y, a.span)?;
        node = l.b.map(ScalarOp::Or, &[node, both]).at(a.span)?;
    }
    if a.name == "isclose" {
        return Ok(Value::Tensor(Tensor::new(node, dims)));
    }
    all_of(l, node, a.span)
}

fn both_nan(l: &mut Lowerer<'_, '_>, x: NodeId, y: NodeId, span: Span) -> Result<NodeId, Error> {
    let p = l.b.map(ScalarOp::IsNan, &[x]).at(span)?;
    let q = l.b.map(ScalarOp::IsNan, &[y]).at(span)?;
    l.b.map(ScalarOp::And, &[p, q]).at(span)
}

/// True if all cells are true.
fn all_of(l: &mut Lowerer<'_, '_>, node: NodeId, span: Span) -> Result<Value, Error> {
    let axes: Vec<usize> = (0..l.b.shape(node).len()).collect();
    let all = l.b.reduce_axes(node, ReduceKind::All, &axes).at(span)?;
    let node = l.b.squeeze(all, &axes).at(span)?;
    Ok(Value::Tensor(Tensor::new(node, Vec::new())))
}

fn array_equal(l: &mut Lowerer<'_, '_>, a: &Bound<'_>) -> Result<Value, Error> {
    let values = vec![a.value(l, "x")?, a.value(l, "y")?];
    let values = l.settle(values, a.span)?;
    let dtype = l.meet(a.name, &values, a.span)?;
    let mut nodes = Vec::with_capacity(2);
    for value in values {
        nodes.push(l.typed(value, dtype, a.name, a.span)?.node);
    }
    if l.b.shape(nodes[0]) != l.b.shape(nodes[1]) {
        return Ok(Value::Bool(false));
    }
    let mut node = l.b.map(ScalarOp::Eq, &nodes).at(a.span)?;
    if a.flag(l, "equal_nan")? && dtype.is_float() {
        let both = both_nan(l, nodes[0], nodes[1], a.span)?;
        node = l.b.map_op(MapOp::Scalar(ScalarOp::Or), &[node, both]).at(a.span)?;
    }
    all_of(l, node, a.span)
}
