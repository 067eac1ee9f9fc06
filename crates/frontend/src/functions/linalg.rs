//! Products of tensors.

use sqlparser::tokenizer::Span;
use tessera_planner::build::broadcast_shapes;
use tessera_planner::dtype::DType;
use tessera_planner::program::ScalarOp;

use super::einsum::sum_of_products;
use super::{Bound, Row, row, scan};
use crate::error::Error;
use crate::lower::value::{Tensor, Value};
use crate::lower::{At, Binary, Lowerer, misshapen, unique, unsupported};

const TYPES: &str = "numeric, NumPy's promotion; integers wrap";
const MASKS: &str = "products with a masked factor are skipped; NaN propagates";

pub(super) const ROWS: &[Row] = &[
    row(
        "matmul(x, y)",
        matmul,
        "Matrix product over the last dimension of x and the second to last of y, by position; \
         also `x @ y`.",
    )
    .dtypes(TYPES)
    .missing(MASKS)
    .example("SELECT a @ b FROM a, b"),
    row(
        "dot(x, y)",
        dot,
        "Sum of products over the last dimension of x and the second to last (or only) of y, \
         the others of x first; with a 0-d tensor the plain product.",
    )
    .dtypes(TYPES)
    .missing(MASKS)
    .example("SELECT dot(v, w) FROM v, w"),
    row("vdot(x, y)", vdot, "Product of all cells of x and y, added up.")
        .dtypes(TYPES)
        .missing(MASKS),
    row("outer(x, y)", outer, "All products of a cell of x and one of y.")
        .dtypes("numeric, NumPy's promotion")
        .missing("masked where either is")
        .example("SELECT outer(v, w) FROM v, w"),
];

fn pair(l: &mut Lowerer<'_, '_>, a: &Bound<'_>) -> Result<(Tensor, Tensor), Error> {
    let (x, y) = (a.value(l, "x")?, a.value(l, "y")?);
    let values = l.settle(vec![x, y], a.span)?;
    let dtype = l.meet(operator(a.name), &values, a.span)?;
    let mut out = Vec::with_capacity(2);
    for value in values {
        out.push(l.typed(value, dtype, operator(a.name), a.span)?);
    }
    match (out.pop(), out.pop()) {
        (Some(y), Some(x)) => Ok((x, y)),
        _ => unsupported(a.name, a.span),
    }
}

/// The name for error messages; `matmul` is mostly written as the operator.
fn operator(name: &str) -> &str {
    if name == "matmul" { "@" } else { name }
}

fn matmul(l: &mut Lowerer<'_, '_>, a: &Bound<'_>) -> Result<Value, Error> {
    let (x, y) = pair(l, a)?;
    product(l, x, y, a.span).map(Value::Tensor)
}

fn product(l: &mut Lowerer<'_, '_>, x: Tensor, y: Tensor, span: Span) -> Result<Tensor, Error> {
    let (from_x, from_y) = (l.b.shape(x.node), l.b.shape(y.node));
    if from_x.is_empty() || from_y.is_empty() {
        return misshapen(
            "matmul",
            &[from_x, from_y],
            "a 0-d tensor has nothing to contract; multiply with `*`",
            span,
        );
    }
    if l.b.dtype(x.node) == DType::Bool {
        return unsupported("a matrix product of bools (convert with `x::int64`)", span);
    }
    // A vector is a row on the left and a column on the right; the added dimension is removed afterwards.
    let mut left = x.node;
    let mut right = y.node;
    let (row, column) = (from_x.len() == 1, from_y.len() == 1);
    if row {
        left = l.b.expand_dims(left, 0).at(span)?;
    }
    if column {
        right = l.b.expand_dims(right, 1).at(span)?;
    }
    let (shape_x, shape_y) = (l.b.shape(left), l.b.shape(right));
    let (lead_x, lead_y) = (shape_x.len() - 2, shape_y.len() - 2);
    if shape_x[lead_x + 1] == shape_y[lead_y]
        && let Some(dx) = x.dims.last()
        && let Some(dy) = y.dims.get(if column { 0 } else { lead_y })
        && dx.name == dy.name
        && let (Some(cx), Some(cy)) = (&dx.coord, &dy.coord)
    {
        l.same_labels(cx, cy, span)?;
    }
    let lead = broadcast_shapes("matmul", &[shape_x[..lead_x].into(), shape_y[..lead_y].into()])
        .at(span)?;
    let wide = |tail: &[u64]| -> Vec<u64> { lead.iter().chain(tail).copied().collect() };
    left = l.b.broadcast_to(left, &wide(&shape_x[lead_x..])).at(span)?;
    right = l.b.broadcast_to(right, &wide(&shape_y[lead_y..])).at(span)?;
    let mut node = l.b.contract(left, right).at(span)?;
    let rank = lead.len();
    let mut dims = Vec::with_capacity(rank + 2);
    for axis in 0..rank {
        let of = |t: &Tensor, own: usize, shape: &[u64]| {
            let at = (axis + own).checked_sub(rank)?;
            (shape[at] == lead[axis]).then(|| t.dims[at].clone())
        };
        let (dx, dy) = (of(&x, lead_x, &from_x), of(&y, lead_y, &from_y));
        if let (Some(dx), Some(dy)) = (&dx, &dy)
            && let (Some(cx), Some(cy)) = (&dx.coord, &dy.coord)
        {
            l.same_labels(cx, cy, span)?;
        }
        let named = |dim: &Option<crate::lower::value::Dim>| {
            dim.as_ref().is_some_and(|dim| dim.name.is_some())
        };
        let dim = if named(&dx) || dy.is_none() { dx } else { dy };
        dims.push(dim.unwrap_or_default());
    }
    let mut gone = Vec::new();
    if row {
        gone.push(rank);
    } else {
        dims.push(x.dims[lead_x].clone());
    }
    if column {
        gone.push(rank + 1);
    } else {
        dims.push(y.dims[lead_y + 1].clone());
    }
    node = l.b.squeeze(node, &gone).at(span)?;
    Ok(Tensor::new(node, unique(dims)))
}

fn dot(l: &mut Lowerer<'_, '_>, a: &Bound<'_>) -> Result<Value, Error> {
    let (x, y) = pair(l, a)?;
    match (x.dims.len(), y.dims.len()) {
        (0, _) | (_, 0) => l.binary(Binary::Mul, Value::Tensor(x), Value::Tensor(y), a.span),
        (_, 1) | (1 | 2, 2) => product(l, x, y, a.span).map(Value::Tensor),
        (rank_x, rank_y) => {
            let labels_x: Vec<u32> = (0..rank_x as u32).collect();
            let mut labels_y: Vec<u32> = (rank_x as u32..(rank_x + rank_y) as u32).collect();
            labels_y[rank_y - 2] = labels_x[rank_x - 1];
            let shapes = [l.b.shape(x.node), l.b.shape(y.node)];
            if shapes[0][rank_x - 1] != shapes[1][rank_y - 2] {
                return misshapen(
                    a.name,
                    &shapes,
                    "the last length of x must be the second to last of y",
                    a.span,
                );
            }
            let own = labels_y.iter().enumerate().filter(|(at, _)| *at != rank_y - 2);
            let output: Vec<u32> = labels_x[..rank_x - 1]
                .iter()
                .copied()
                .chain(own.map(|(_, label)| *label))
                .collect();
            let dtype = l.b.dtype(x.node);
            if dtype == DType::Bool {
                return unsupported("`dot` of bools (convert with `x::int64`)", a.span);
            }
            let operands = vec![(x, labels_x), (y, labels_y)];
            sum_of_products(l, a.name, a.span, dtype, operands, &output).map(Value::Tensor)
        }
    }
}

fn vdot(l: &mut Lowerer<'_, '_>, a: &Bound<'_>) -> Result<Value, Error> {
    let (x, y) = pair(l, a)?;
    let x = scan::flat(l, x, a.span)?;
    let y = scan::flat(l, y, a.span)?;
    product(l, x, y, a.span).map(Value::Tensor)
}

fn outer(l: &mut Lowerer<'_, '_>, a: &Bound<'_>) -> Result<Value, Error> {
    let (x, y) = pair(l, a)?;
    let x = scan::flat(l, x, a.span)?;
    let y = scan::flat(l, y, a.span)?;
    let column = l.b.expand_dims(x.node, 1).at(a.span)?;
    let node = l.b.map(ScalarOp::Mul, &[column, y.node]).at(a.span)?;
    let dims = x.dims.into_iter().chain(y.dims).collect();
    Ok(Value::Tensor(Tensor::new(node, unique(dims))))
}
