//! Norms, covariances and matrix powers.

use sqlparser::tokenizer::Span;
use tessera_planner::dtype::DType;
use tessera_planner::ir::{AxisReduce, MapOp, NodeId};
use tessera_planner::program::ScalarOp;
use tessera_planner::reduce::ReduceKind;
use tessera_planner::scalar::Scalar;

use super::reduce::{Reduction, reduce};
use super::{Bound, Row, einsum, factor, row};
use crate::error::Error;
use crate::lower::value::{Dim, Tensor, Value};
use crate::lower::{At, Lowerer, fail, misshapen, types, unique, unsupported};

pub(super) const ROWS: &[Row] = &[
    row(
        "norm(x, ord => NULL, axis => NULL, keepdims => false)",
        norm,
        "Norm of vectors (`ord` 2, 1, 0, 'inf', '-inf' or a power) along one dimension, or of \
         matrices ('fro', 'nuc', 1, -1, 2, -2, 'inf', '-inf') in two; without `ord` and `axis` \
         of all cells.",
    )
    .dtypes("numeric and bool; float32 stays, all others are float64")
    .missing("masked cells are skipped; norms by singular values refuse them")
    .example("SELECT norm(x, axis => 1) FROM x")
    .numpy("numpy.linalg.norm"),
    row(
        "cov(x, y => NULL, rowvar => true, bias => false, ddof => NULL)",
        cov,
        "Covariance of variables, which are the rows (the columns if `rowvar` is false); `y` \
         adds more of them.",
    )
    .dtypes("numeric and bool give float64")
    .missing("pairs with a masked cell are skipped, as numpy.ma.cov's")
    .example("SELECT cov(x, rowvar => false) FROM x"),
    row(
        "corrcoef(x, y => NULL, rowvar => true)",
        corrcoef,
        "Correlation coefficients of variables, as cov's.",
    )
    .dtypes("numeric and bool give float64")
    .missing("masked cells are an error; NaN propagates"),
    row(
        "matrix_power(a, n)",
        matrix_power,
        "Product of n copies of a square matrix; of its inverse if n is negative.",
    )
    .dtypes("numeric; integers wrap; negative powers give floats")
    .missing("products with a masked factor are skipped; NaN propagates")
    .example("SELECT matrix_power(a, 3) FROM a")
    .numpy("numpy.linalg.matrix_power"),
];

#[derive(Debug, Clone, Copy, PartialEq)]
enum Order {
    Default,
    Frobenius,
    Nuclear,
    Number(f64),
}

fn order(l: &mut Lowerer<'_, '_>, a: &Bound<'_>) -> Result<Order, Error> {
    Ok(match a.value(l, "ord")? {
        Value::Null => Order::Default,
        Value::Int(v) => Order::Number(v as f64),
        Value::Float(v) if !v.is_nan() => Order::Number(v),
        Value::Str(text) => match text.to_ascii_lowercase().as_str() {
            "fro" => Order::Frobenius,
            "nuc" => Order::Nuclear,
            "inf" => Order::Number(f64::INFINITY),
            "-inf" => Order::Number(f64::NEG_INFINITY),
            _ => {
                let reason = format!("is '{text}'; texts are 'fro', 'nuc', 'inf' and '-inf'");
                return a.refuse("ord", reason);
            }
        },
        other => {
            return a.refuse("ord", format!("must be a number or a text, not {}", other.kind()));
        }
    })
}

fn norm(l: &mut Lowerer<'_, '_>, a: &Bound<'_>) -> Result<Value, Error> {
    let mut t = a.tensor(l, "x")?;
    let dtype = l.b.dtype(t.node);
    if dtype.is_datetime() {
        return fail(types(a.name, vec![dtype.name()]), a.span);
    }
    if !dtype.is_float() {
        t.node = l.b.cast(t.node, DType::Float64).at(a.span)?;
    }
    let order = order(l, a)?;
    let rank = t.dims.len();
    let axes = a.axes(l, &t, "axis")?;
    let all = axes.is_none();
    let axes = axes.unwrap_or_else(|| (0..rank).collect());
    let node = match (order, &axes[..]) {
        (Order::Default, _) if all || axes.len() <= 2 => length(l, &t, &axes, a.span)?,
        (_, &[axis]) => vectors(l, a, &t, order, axis)?,
        (_, &[rows, columns]) => matrices(l, a, &t, order, rows, columns)?,
        _ => return a.refuse("ord", "needs one dimension (vectors) or two (matrices); set `axis`"),
    };
    let mut out = Tensor::new(node, t.dims.clone());
    if a.flag(l, "keepdims")? {
        for &axis in &axes {
            out.dims[axis] = out.dims[axis].bare();
        }
    } else {
        out.node = l.b.squeeze(out.node, &axes).at(a.span)?;
        let dims = t.dims.into_iter().enumerate().filter(|(axis, _)| !axes.contains(axis));
        out.dims = dims.map(|(_, dim)| dim).collect();
    }
    Ok(Value::Tensor(out))
}

/// Reduces some axes to length 1.
fn fold(
    l: &mut Lowerer<'_, '_>,
    node: NodeId,
    kind: ReduceKind,
    axes: &[usize],
    span: Span,
) -> Result<NodeId, Error> {
    l.b.reduce_axes(node, kind, axes).at(span)
}

/// The norm of no cells, for norms that are a maximum of magnitudes or a sum of them. The axes have length 1.
fn zeros(l: &mut Lowerer<'_, '_>, t: &Tensor, axes: &[usize], span: Span) -> Result<NodeId, Error> {
    let dtype = l.b.dtype(t.node);
    let mut shape = l.b.shape(t.node);
    axes.iter().for_each(|&axis| shape[axis] = 1);
    l.b.full(Some(Scalar::zero(dtype)), dtype, &shape, None).at(span)
}

fn magnitudes(l: &mut Lowerer<'_, '_>, node: NodeId, span: Span) -> Result<NodeId, Error> {
    l.b.map(ScalarOp::Abs, &[node]).at(span)
}

/// The square root of the sum of squares.
fn length(
    l: &mut Lowerer<'_, '_>,
    t: &Tensor,
    axes: &[usize],
    span: Span,
) -> Result<NodeId, Error> {
    let squares = l.b.map(ScalarOp::Mul, &[t.node, t.node]).at(span)?;
    let sum = fold(l, squares, ReduceKind::Sum, axes, span)?;
    l.b.map(ScalarOp::Sqrt, &[sum]).at(span)
}

fn vectors(
    l: &mut Lowerer<'_, '_>,
    a: &Bound<'_>,
    t: &Tensor,
    order: Order,
    axis: usize,
) -> Result<NodeId, Error> {
    let span = a.span;
    let dtype = l.b.dtype(t.node);
    let power = match order {
        Order::Number(power) => power,
        Order::Default => 2.0,
        Order::Frobenius | Order::Nuclear => {
            return a.refuse("ord", "is a norm of matrices, not of vectors");
        }
    };
    if power == 2.0 {
        return length(l, t, &[axis], span);
    }
    let size = magnitudes(l, t.node, span)?;
    if power == f64::INFINITY && l.b.shape(t.node)[axis] == 0 {
        return zeros(l, t, &[axis], span);
    }
    if power.is_infinite() {
        let kind = if power > 0.0 { ReduceKind::Max } else { ReduceKind::Min };
        return fold(l, size, kind, &[axis], span);
    }
    if power == 1.0 {
        return fold(l, size, ReduceKind::Sum, &[axis], span);
    }
    if power == 0.0 {
        let zero = l.b.constant(Scalar::zero(dtype)).at(span)?;
        let differs = l.b.map(ScalarOp::Ne, &[size, zero]).at(span)?;
        let ones = l.b.cast(differs, dtype).at(span)?;
        return fold(l, ones, ReduceKind::Sum, &[axis], span);
    }
    let exponent = l.b.constant(Scalar::from_f64(dtype, power)).at(span)?;
    let powers = l.b.map(ScalarOp::Pow, &[size, exponent]).at(span)?;
    let sum = fold(l, powers, ReduceKind::Sum, &[axis], span)?;
    let root = l.b.constant(Scalar::from_f64(dtype, 1.0 / power)).at(span)?;
    l.b.map(ScalarOp::Pow, &[sum, root]).at(span)
}

fn matrices(
    l: &mut Lowerer<'_, '_>,
    a: &Bound<'_>,
    t: &Tensor,
    order: Order,
    rows: usize,
    columns: usize,
) -> Result<NodeId, Error> {
    let span = a.span;
    let by_values = |l: &mut Lowerer<'_, '_>, kind: ReduceKind| -> Result<NodeId, Error> {
        let certain = l.b.certain(t.node, a.name).at(span)?;
        let rank = t.dims.len();
        let mut axes: Vec<usize> = (0..rank).filter(|x| *x != rows && *x != columns).collect();
        axes.extend([rows, columns]);
        let moved = l.b.transpose(certain, &axes).at(span)?;
        let s = l.b.svd(moved, None).at(span)?.s;
        let one = fold(l, s, kind, &[rank - 2], span)?;
        // The two dimensions are retained with length 1 at their positions.
        let mut node = l.b.squeeze(one, &[rank - 2]).at(span)?;
        for axis in [rows.min(columns), rows.max(columns)] {
            node = l.b.expand_dims(node, axis).at(span)?;
        }
        Ok(node)
    };
    let sums = |l: &mut Lowerer<'_, '_>, over: usize, then: usize, kind: ReduceKind| {
        let size = magnitudes(l, t.node, span)?;
        let sums = fold(l, size, ReduceKind::Sum, &[over], span)?;
        fold(l, sums, kind, &[then], span)
    };
    let shape = l.b.shape(t.node);
    let is_empty = shape[rows] == 0 || shape[columns] == 0;
    match order {
        Order::Default | Order::Frobenius => length(l, t, &[rows, columns], span),
        Order::Nuclear if is_empty => zeros(l, t, &[rows, columns], span),
        Order::Number(v) if is_empty && (v == 1.0 || v == 2.0 || v == f64::INFINITY) => {
            zeros(l, t, &[rows, columns], span)
        }
        Order::Nuclear => by_values(l, ReduceKind::Sum),
        Order::Number(2.0) => by_values(l, ReduceKind::Max),
        Order::Number(-2.0) => by_values(l, ReduceKind::Min),
        Order::Number(1.0) => sums(l, rows, columns, ReduceKind::Max),
        Order::Number(-1.0) => sums(l, rows, columns, ReduceKind::Min),
        Order::Number(f64::INFINITY) => sums(l, columns, rows, ReduceKind::Max),
        Order::Number(f64::NEG_INFINITY) => sums(l, columns, rows, ReduceKind::Min),
        Order::Number(v) => {
            let reason = format!(
                "is {v}; norms of matrices are 1, -1, 2, -2, 'inf', '-inf', 'fro' and 'nuc'"
            );
            a.refuse("ord", reason)
        }
    }
}

/// The variables of `x` (and `y`) as rows, float64, and true if there is only one, without a dimension of its own.
fn variables(l: &mut Lowerer<'_, '_>, a: &Bound<'_>) -> Result<(Tensor, bool), Error> {
    let by_rows = match a.value(l, "rowvar")? {
        Value::Null => true,
        Value::Bool(v) => v,
        other => return a.refuse("rowvar", format!("must be true or false, not {}", other.kind())),
    };
    let mut parts = Vec::new();
    for param in ["x", "y"] {
        if a.expr(param).is_none() {
            continue;
        }
        let value = a.value(l, param)?;
        if matches!(value, Value::Null) && param == "y" {
            continue;
        }
        let mut t = l.tensor(value, a.place(param))?;
        let dtype = l.b.dtype(t.node);
        if dtype.is_datetime() {
            return fail(types(a.name, vec![dtype.name()]), a.place(param));
        }
        t.node = l.b.cast(t.node, DType::Float64).at(a.span)?;
        match t.dims.len() {
            1 => {
                t.node = l.b.expand_dims(t.node, 0).at(a.span)?;
                t.dims.insert(0, Dim::default());
            }
            2 if by_rows => {}
            2 => t = l.transposed(t, &[1, 0], a.span)?,
            _ => {
                return misshapen(
                    a.name,
                    &[l.b.shape(t.node)],
                    "it takes 1 or 2 dimensions",
                    a.place(param),
                );
            }
        }
        parts.push(t);
    }
    let first = parts[0].clone();
    if parts.len() == 1 {
        let one = l.b.shape(first.node)[0] == 1;
        return Ok((first, one));
    }
    let nodes: Vec<NodeId> = parts.iter().map(|t| t.node).collect();
    let node = l.b.concat(&nodes, 0).at(a.span)?;
    let dims = vec![Dim::default(), first.dims[1].clone()];
    Ok((Tensor::new(node, dims), false))
}

/// The covariance matrix [n, n] of variables by rows.
fn covariance(l: &mut Lowerer<'_, '_>, t: &Tensor, ddof: u32, span: Span) -> Result<NodeId, Error> {
    let how = [AxisReduce::Keep, AxisReduce::All];
    let mean = reduce(l, t, Reduction::Mean, &how, None, false, span)?;
    let centred = l.b.map(ScalarOp::Sub, &[t.node, mean]).at(span)?;
    let turned = l.b.matrix_transpose(centred).at(span)?;
    let products = l.b.contract(centred, turned).at(span)?;
    let count = match l.b.node(t.node).nullable {
        false => {
            let n = l.b.shape(t.node)[1];
            l.b.constant(Scalar::f64(n as f64)).at(span)?
        }
        true => {
            let valid = l.b.map_op(MapOp::IsValid, &[t.node]).at(span)?;
            let valid = l.b.cast(valid, DType::Float64).at(span)?;
            let turned = l.b.matrix_transpose(valid).at(span)?;
            l.b.contract(valid, turned).at(span)?
        }
    };
    let ddof = l.b.constant(Scalar::f64(f64::from(ddof))).at(span)?;
    let freedom = l.b.map(ScalarOp::Sub, &[count, ddof]).at(span)?;
    // As in NumPy: zero degrees of freedom give NaN or an infinity.
    let zero = l.b.constant(Scalar::f64(0.0)).at(span)?;
    let freedom = l.b.map(ScalarOp::Maximum, &[freedom, zero]).at(span)?;
    l.b.map(ScalarOp::Div, &[products, freedom]).at(span)
}

/// The matrix with the variables' dimension on both axes; 0-d for one variable.
fn between(
    l: &mut Lowerer<'_, '_>,
    t: &Tensor,
    node: NodeId,
    one: bool,
    span: Span,
) -> Result<Value, Error> {
    if one {
        let node = l.b.squeeze(node, &[0, 1]).at(span)?;
        return Ok(Value::Tensor(Tensor::unnamed(node, 0)));
    }
    let dim = t.dims[0].clone();
    Ok(Value::Tensor(Tensor::new(node, unique(vec![dim.clone(), dim]))))
}

fn cov(l: &mut Lowerer<'_, '_>, a: &Bound<'_>) -> Result<Value, Error> {
    let (t, one) = variables(l, a)?;
    let bias = a.flag(l, "bias")?;
    let ddof = super::reduce::ddof(l, a)?.unwrap_or(if bias { 0 } else { 1 });
    let node = covariance(l, &t, ddof, a.span)?;
    between(l, &t, node, one, a.span)
}

fn corrcoef(l: &mut Lowerer<'_, '_>, a: &Bound<'_>) -> Result<Value, Error> {
    let (mut t, one) = variables(l, a)?;
    let span = a.span;
    t.node = l.b.certain(t.node, a.name).at(span)?;
    let c = covariance(l, &t, 1, span)?;
    if one {
        let node = l.b.map(ScalarOp::Div, &[c, c]).at(span)?;
        return between(l, &t, node, one, span);
    }
    let diagonal = einsum::take_diagonal(l, Tensor::unnamed(c, 2), 0, 1, 0, span)?;
    let deviation = l.b.map(ScalarOp::Sqrt, &[diagonal.node]).at(span)?;
    let rows = l.b.expand_dims(deviation, 1).at(span)?;
    let c = l.b.map(ScalarOp::Div, &[c, rows]).at(span)?;
    let c = l.b.map(ScalarOp::Div, &[c, deviation]).at(span)?;
    let (low, high) = (Scalar::f64(-1.0), Scalar::f64(1.0));
    let (low, high) = (l.b.constant(low).at(span)?, l.b.constant(high).at(span)?);
    let c = l.b.map(ScalarOp::Maximum, &[c, low]).at(span)?;
    let c = l.b.map(ScalarOp::Minimum, &[c, high]).at(span)?;
    between(l, &t, c, one, span)
}

fn matrix_power(l: &mut Lowerer<'_, '_>, a: &Bound<'_>) -> Result<Value, Error> {
    let mut t = a.tensor(l, "a")?;
    let span = a.span;
    let Some(power) = a.int(l, "n")? else {
        return a.refuse("n", "must be an integer");
    };
    if power.unsigned_abs() > 1 << 30 {
        return a.refuse("n", format!("is {power}, beyond 2^30"));
    }
    let shape = l.b.shape(t.node);
    let rank = shape.len();
    if rank < 2 || shape[rank - 2] != shape[rank - 1] {
        return misshapen(
            a.name,
            &[shape],
            "the last two dimensions must have the same length",
            span,
        );
    }
    if l.b.dtype(t.node) == DType::Bool {
        return unsupported("a power of a matrix of bools (convert with `x::int64`)", span);
    }
    if power < 0 {
        t = factor::float(l, t, a.name, span)?;
        t = factor::inverse(l, &t, span)?;
    }
    let dtype = l.b.dtype(t.node);
    if power == 0 {
        // The identity, broadcast over the stack.
        let n = shape[rank - 1];
        let rows = l.b.iota(&[n, 1], None).at(span)?;
        let columns = l.b.iota(&[n], None).at(span)?;
        let same = l.b.map(ScalarOp::Eq, &[rows, columns]).at(span)?;
        let one = l.b.cast(same, dtype).at(span)?;
        let node = l.b.broadcast_to(one, &shape).at(span)?;
        return Ok(Value::Tensor(Tensor::new(node, t.dims)));
    }
    let mut left = power.unsigned_abs();
    let mut square = t.node;
    let mut result: Option<NodeId> = None;
    while left > 0 {
        if left & 1 == 1 {
            result = Some(match result {
                None => square,
                Some(known) => l.b.contract(known, square).at(span)?,
            });
        }
        left >>= 1;
        if left > 0 {
            square = l.b.contract(square, square).at(span)?;
        }
    }
    let node = result.unwrap_or(t.node);
    Ok(Value::Tensor(Tensor::new(node, t.dims)))
}
