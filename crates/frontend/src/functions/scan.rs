//! Running reductions, differences and shifts along a dimension.

use sqlparser::ast::Expr;
use sqlparser::tokenizer::Span;
use tessera_planner::dtype::DType;
use tessera_planner::error::Error as PlanError;
use tessera_planner::ir::{NodeId, ScanKind};
use tessera_planner::program::ScalarOp;
use tessera_planner::scalar::Scalar;

use super::{Bound, Open, Row, row};
use crate::error::Error;
use crate::lower::value::{Tensor, Value};
use crate::lower::{At, Lowerer, fail, misshapen, span_of};

const SKIP: &str = "masked cells are skipped and stay masked; NaN stays from its cell on";

pub(super) const ROWS: &[Row] = &[
    row(
        "cumsum(x, axis => NULL, dtype => NULL)",
        scan,
        "Running sum; of all cells in row-major order without `axis`.",
    )
    .dtypes("bool and integers give 64 bits (overflow is an error); floats stay")
    .missing(SKIP)
    .example("SELECT cumsum(x, axis => 0) FROM x"),
    row("cumprod(x, axis => NULL, dtype => NULL)", scan, "Running product.")
        .dtypes("bool and integers give 64 bits; floats stay")
        .missing(SKIP)
        .example("SELECT cumprod(x, axis => 0) FROM x"),
    row("cummax(x, axis => NULL)", scan, "Running maximum.")
        .also(&["dtype"])
        .missing(SKIP)
        .example("SELECT cummax(x, axis => 0) FROM x")
        .numpy("numpy.maximum.accumulate"),
    row("cummin(x, axis => NULL)", scan, "Running minimum.")
        .also(&["dtype"])
        .missing(SKIP)
        .example("SELECT cummin(x, axis => 0) FROM x")
        .numpy("numpy.minimum.accumulate"),
    row("nancumsum(x, axis => NULL, dtype => NULL)", scan, "Running sum in which NaN counts as 0.")
        .dtypes("as cumsum")
        .missing("NaN counts as 0")
        .example("SELECT nancumsum(x, axis => 0) FROM x"),
    row(
        "nancumprod(x, axis => NULL, dtype => NULL)",
        scan,
        "Running product in which NaN counts as 1.",
    )
    .dtypes("as cumprod")
    .missing("NaN counts as 1")
    .example("SELECT nancumprod(x, axis => 0) FROM x"),
    row(
        "diff(x, n => 1, axis => -1)",
        diff,
        "Differences of neighbours, n times; a coordinate keeps its upper labels.",
    )
    .dtypes("numeric; of bools whether they differ")
    .missing("NULL where either is masked")
    .example("SELECT diff(x, axis => 0) FROM x")
    .numpy("numpy.diff, xarray.DataArray.diff"),
    row(
        "shift(x, dim => n, …, fill_value => NULL)",
        shift,
        "Cells moved by n positions along dimensions; what moves in is NULL.",
    )
    .takes(&["x", "n", "axis", "fill_value"], 1, Open::Dims)
    .missing("cells that move in are masked")
    .example("SELECT shift(t2m, time => 1) FROM era5")
    .numpy("xarray.DataArray.shift"),
    row(
        "roll(x, shift, axis => NULL)",
        roll,
        "Cells moved by positions along a dimension, or by a list along a list of them; those that \
         fall out come in at the other end.",
    )
    .missing("masks move with their cells")
    .example("SELECT roll(x, 1, axis => 0) FROM x"),
];

fn scan(l: &mut Lowerer<'_, '_>, a: &Bound<'_>) -> Result<Value, Error> {
    let mut t = a.tensor(l, "x")?;
    let dtype = a.dtype(l)?;
    let (name, nan) = match a.name.strip_prefix("nan") {
        Some(name) => (name, true),
        None => (a.name, false),
    };
    let kind = match name {
        "cumsum" => ScanKind::Sum,
        "cumprod" => ScanKind::Prod,
        "cummax" => ScanKind::Max,
        _ => ScanKind::Min,
    };
    let from = l.b.dtype(t.node);
    if nan && from.is_float() {
        let is_nan = l.b.map(ScalarOp::IsNan, &[t.node]).at(a.span)?;
        let neutral = if kind == ScanKind::Sum { 0.0 } else { 1.0 };
        let neutral = l.b.constant(Scalar::from_f64(from, neutral)).at(a.span)?;
        t.node = l.b.map(ScalarOp::Where, &[is_nan, neutral, t.node]).at(a.span)?;
    }
    let axis = match a.axis(l, &t, "axis")? {
        Some(axis) => axis,
        None => {
            t = flat(l, t, a.span)?;
            0
        }
    };
    if let Some(dtype) = dtype {
        t.node = l.b.cast(t.node, dtype).at(a.span)?;
    }
    let mut node = l.b.scan(t.node, kind, axis).at(a.span)?;
    if let Some(dtype) = dtype {
        node = l.b.cast(node, dtype).at(a.span)?;
    }
    Ok(Value::Tensor(Tensor::new(node, t.dims)))
}

/// All cells in row-major order. A 1-d tensor keeps its labels.
pub(super) fn flat(l: &mut Lowerer<'_, '_>, t: Tensor, span: Span) -> Result<Tensor, Error> {
    if t.dims.len() == 1 {
        return Ok(t);
    }
    let shape = l.b.shape(t.node);
    let Some(cells) = tessera_planner::region::cells(&shape) else {
        return Err(PlanError::TooLarge { shape: shape.to_vec() }).at(span);
    };
    let node = l.b.reshape(t.node, &[cells]).at(span)?;
    Ok(Tensor::unnamed(node, 1))
}

fn diff(l: &mut Lowerer<'_, '_>, a: &Bound<'_>) -> Result<Value, Error> {
    let mut t = a.tensor(l, "x")?;
    let times = a.int(l, "n")?.unwrap_or(1);
    if !(0..=64).contains(&times) {
        return a.refuse("n", format!("is {times}; it must be 0 to 64"));
    }
    if t.dims.is_empty() {
        return misshapen("diff", &[l.b.shape(t.node)], "a 0-d tensor has no neighbours", a.span);
    }
    let axis = a.axis(l, &t, "axis")?.unwrap_or(t.dims.len() - 1);
    let dtype = l.b.dtype(t.node);
    let is_time = dtype.is_datetime() && times > 0;
    if is_time {
        // Seconds since 1970 would round microseconds.
        t.node = l.b.cast(t.node, DType::Int64).at(a.span)?;
    }
    let op = if dtype == DType::Bool { ScalarOp::Ne } else { ScalarOp::Sub };
    for _ in 0..times {
        let n = l.b.shape(t.node)[axis];
        let len = n.saturating_sub(1);
        let upper = l.b.slice(t.node, axis, 1, 1, len).at(a.span)?;
        let lower = l.b.slice(t.node, axis, 0, 1, len).at(a.span)?;
        t.node = l.b.map(op, &[upper, lower]).at(a.span)?;
        t.dims[axis] = t.dims[axis].slice(1, 1, len);
    }
    let t = Tensor::new(t.node, t.dims);
    Ok(Value::Tensor(if is_time { l.seconds(t, a.span)? } else { t }))
}

/// A constant integer of an argument named by a dimension.
pub(super) fn known_int(
    l: &mut Lowerer<'_, '_>,
    a: &Bound<'_>,
    name: &str,
    expr: &Expr,
) -> Result<i128, Error> {
    let span = span_of(expr);
    match l.expr(expr)? {
        Value::Int(v) => Ok(v),
        other => {
            let reason = format!("must be an integer, not {}", other.kind());
            fail(a.invalid(&format!("`{name}`"), reason), span)
        }
    }
}

fn shift(l: &mut Lowerer<'_, '_>, a: &Bound<'_>) -> Result<Value, Error> {
    let mut t = a.tensor(l, "x")?;
    let dtype = l.b.dtype(t.node);
    let mut moves = Vec::new();
    if let Some(n) = a.int(l, "n")? {
        let axis = match a.axis(l, &t, "axis")? {
            Some(axis) => axis,
            None if t.dims.len() == 1 => 0,
            None => return fail(a.invalid("`axis`", "must be given"), a.span),
        };
        moves.push((axis, n));
    }
    for &(name, expr) in &a.dims {
        let axis = l.named_axis(&t, name)?;
        moves.push((axis, known_int(l, a, &name.value, expr)?));
    }
    let fill = match a.value(l, "fill_value")? {
        Value::Null => None,
        value => Some(l.typed(value, dtype, "shift", a.place("fill_value"))?.node),
    };
    for (axis, n) in moves {
        let shape = l.b.shape(t.node);
        let length = shape[axis];
        let by = u64::try_from(n.unsigned_abs()).unwrap_or(length).min(length);
        if by == 0 {
            continue;
        }
        let mut gap_shape = shape.clone();
        gap_shape[axis] = by;
        let gap = match fill {
            Some(value) => l.b.broadcast_to(value, &gap_shape).at(a.span)?,
            None => l.b.full(None, dtype, &gap_shape, None).at(a.span)?,
        };
        let rest = length - by;
        let start = if n > 0 { 0 } else { by as i64 };
        let kept = l.b.slice(t.node, axis, start, 1, rest).at(a.span)?;
        let parts: Vec<NodeId> = if n > 0 { vec![gap, kept] } else { vec![kept, gap] };
        t.node = l.b.concat(&parts, axis).at(a.span)?;
        t.dims[axis].group = None;
    }
    Ok(Value::Tensor(Tensor { name: None, ..t }))
}

fn roll(l: &mut Lowerer<'_, '_>, a: &Bound<'_>) -> Result<Value, Error> {
    let t = a.tensor(l, "x")?;
    let by = a.ints(l, "shift")?.unwrap_or_default();
    let axes = a.axes(l, &t, "axis")?;
    let shape = l.b.shape(t.node);
    let mut dims = t.dims.clone();
    for at in axes.clone().unwrap_or_else(|| (0..dims.len()).collect()) {
        dims[at].group = None;
    }
    let mut node = t.node;
    let moves: Vec<(usize, i128)> = match axes.as_deref() {
        None => {
            node = flat(l, t, a.span)?.node;
            by.into_iter().map(|by| (0, by)).collect()
        }
        Some(&[axis]) => by.into_iter().map(|by| (axis, by)).collect(),
        Some(axes) if by.len() == 1 => axes.iter().map(|&axis| (axis, by[0])).collect(),
        Some(axes) if by.len() == axes.len() => axes.iter().copied().zip(by).collect(),
        Some(axes) => {
            let reason = format!("has {} numbers for {} dimensions", by.len(), axes.len());
            return a.refuse("shift", reason);
        }
    };
    for (axis, by) in moves {
        let length = l.b.shape(node)[axis];
        if length == 0 {
            continue;
        }
        let by = by.rem_euclid(i128::from(length)) as u64;
        if by > 0 {
            let tail = l.b.slice(node, axis, (length - by) as i64, 1, by).at(a.span)?;
            let head = l.b.slice(node, axis, 0, 1, length - by).at(a.span)?;
            node = l.b.concat(&[tail, head], axis).at(a.span)?;
        }
    }
    node = l.b.reshape(node, &shape).at(a.span)?;
    Ok(Value::Tensor(Tensor::new(node, dims)))
}
