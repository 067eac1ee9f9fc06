//! Functions of neighbouring cells along one dimension: filling, smoothing, derivatives, integrals, convolution.

mod gradient;

use tessera_planner::dtype::DType;
use tessera_planner::error::Error as PlanError;
use tessera_planner::ir::{MapOp, NodeId, ScanKind};
use tessera_planner::program::ScalarOp;
use tessera_planner::reduce::ReduceKind;
use tessera_planner::scalar::Scalar;

use super::{Bound, Row, reduce, row};
use crate::error::Error;
use crate::lower::value::{Tensor, Value};
use crate::lower::{At, Lowerer, fail, misshapen, types};
use gradient::gradient;

/// Maximum cells of a convolution's kernel: each is a term of the program that computes a cell.
const KERNEL_MAX: u64 = 256;

pub(super) const ROWS: &[Row] = &[
    row(
        "ffill(x, axis => -1, limit => NULL)",
        fill,
        "Masked cells and NaN take the last cell before them along a dimension, over at most \
         `limit` cells.",
    )
    .missing("cells without one before stay as they are, NULL or NaN")
    .example("SELECT ffill(t2m, axis => 'time') FROM era5")
    .numpy("xarray.DataArray.ffill"),
    row(
        "bfill(x, axis => -1, limit => NULL)",
        fill,
        "Masked cells and NaN take the next cell after them along a dimension, over at most \
         `limit` cells.",
    )
    .missing("cells without one after stay as they are, NULL or NaN")
    .example("SELECT bfill(t2m, axis => 'time') FROM era5")
    .numpy("xarray.DataArray.bfill"),
    row("first(x, axis => 0)", end, "The first cell along a dimension that is not masked.")
        .missing("masked cells are skipped; NaN is a value")
        .example("SELECT first(t2m, axis => 'time') FROM era5")
        .numpy("xarray.DataArray.bfill(dim).isel(dim=0)"),
    row("last(x, axis => 0)", end, "The last cell along a dimension that is not masked.")
        .missing("masked cells are skipped; NaN is a value")
        .example("SELECT last(t2m, axis => 'time') FROM era5")
        .numpy("xarray.DataArray.ffill(dim).isel(dim=-1)"),
    row(
        "ewm(x, axis => -1, alpha => a | span => n | halflife => n | com => n)",
        ewm,
        "Exponentially weighted mean of all cells so far along a dimension; the weight of a \
         cell falls by the factor 1 - alpha with each step.",
    )
    .also(&["span", "halflife", "com"])
    .dtypes("bool and integers give float64; floats stay")
    .missing(
        "masked cells weigh nothing, their place has the mean so far, NULL before the first \
         cell; NaN stays from its cell on",
    )
    .example("SELECT ewm(t2m, axis => 'time', span => 24) FROM era5")
    .numpy("pandas.Series.ewm(adjust=True).mean"),
    row(
        "gradient(x, spacing => 1.0, axis => NULL, edge_order => 1)",
        gradient,
        "Derivative along a dimension by central differences, one-sided at the ends; `spacing` \
         is a distance, or the positions of the cells.",
    )
    .dtypes("bool and integers give float64; floats stay")
    .missing("NULL where a neighbour is masked")
    .example("SELECT gradient(t2m, 0.25, axis => 'lat') FROM era5"),
    row(
        "trapz(y, x => NULL, dx => 1.0, axis => -1)",
        trapz,
        "Integral along a dimension by the trapezoidal rule, at positions `x` or `dx` apart.",
    )
    .dtypes("bool and integers give float64; floats stay")
    .missing("masked neighbours are left out")
    .example("SELECT trapz(t2m, dx => 6.0, axis => 'time') FROM era5")
    .numpy("numpy.trapezoid"),
    row(
        "convolve(x, kernel, mode => 'full')",
        convolve,
        "Sums of neighbours weighed by a short kernel, of at most 256 cells, laid backward; \
         'same' and 'valid' as NumPy.",
    )
    .dtypes("numeric, NumPy's promotion")
    .missing("NULL where a neighbour is masked")
    .example("SELECT convolve(v, [0.25, 0.5, 0.25], 'same') FROM v"),
    row(
        "correlate(x, kernel, mode => 'valid')",
        convolve,
        "Sums of neighbours weighed by a short kernel, of at most 256 cells, laid forward.",
    )
    .dtypes("numeric, NumPy's promotion")
    .missing("NULL where a neighbour is masked")
    .example("SELECT correlate(v, [1, 0, -1]) FROM v"),
];

/// The axis of a call; the last one if none is given.
fn axis_of(l: &mut Lowerer<'_, '_>, a: &Bound<'_>, t: &Tensor, last: bool) -> Result<usize, Error> {
    match a.axis(l, t, "axis")? {
        Some(axis) => Ok(axis),
        None if t.dims.is_empty() => {
            Err(PlanError::Axis { operation: a.name.into(), axis: -1, rank: 0 }).at(a.span)
        }
        None => Ok(if last { t.dims.len() - 1 } else { 0 }),
    }
}

fn flipped(
    l: &mut Lowerer<'_, '_>,
    a: &Bound<'_>,
    x: NodeId,
    axis: usize,
) -> Result<NodeId, Error> {
    let n = l.b.shape(x)[axis];
    l.b.slice(x, axis, n as i64 - 1, -1, n).at(a.span)
}

fn fill(l: &mut Lowerer<'_, '_>, a: &Bound<'_>) -> Result<Value, Error> {
    let t = a.tensor(l, "x")?;
    let axis = axis_of(l, a, &t, true)?;
    let limit = a.int(l, "limit")?;
    if limit.is_some_and(|n| !(1..=1 << 62).contains(&n)) {
        return a.refuse("limit", "must be at least 1");
    }
    let backward = a.name == "bfill";
    let dtype = l.b.dtype(t.node);
    let mut x = t.node;
    if dtype.is_float() {
        x = reduce::without_nan(l, x, a.span)?;
    }
    if backward {
        x = flipped(l, a, x, axis)?;
    }
    let mut filled = l.b.scan(x, ScanKind::Last, axis).at(a.span)?;
    if let Some(limit) = limit {
        // The distance to the last valid cell: the position less that cell's position, which is a running maximum.
        let shape = l.b.shape(x);
        let positions = l.b.iota(&[shape[axis]], None).at(a.span)?;
        let mut lie = vec![1; shape.len()];
        lie[axis] = shape[axis];
        let positions = l.b.reshape(positions, &lie).at(a.span)?;
        let positions = l.b.broadcast_to(positions, &shape).at(a.span)?;
        let there = l.b.map_op(MapOp::IsValid, &[x]).at(a.span)?;
        let none = l.b.constant(Scalar::i64(-1)).at(a.span)?;
        let known = l.b.map(ScalarOp::Where, &[there, positions, none]).at(a.span)?;
        let known = l.b.scan(known, ScanKind::Max, axis).at(a.span)?;
        let distance = l.b.map(ScalarOp::Sub, &[positions, known]).at(a.span)?;
        let limit = l.b.constant(Scalar::i64(limit as i64)).at(a.span)?;
        let near = l.b.map(ScalarOp::Le, &[distance, limit]).at(a.span)?;
        filled = l.b.map_op(MapOp::Mask, &[filled, near]).at(a.span)?;
    }
    if backward {
        filled = flipped(l, a, filled, axis)?;
    }
    if dtype.is_float() {
        // An unfilled cell keeps its value: NULL or NaN.
        filled = l.b.map_op(MapOp::Coalesce, &[filled, t.node]).at(a.span)?;
    }
    Ok(Value::Tensor(Tensor::new(filled, t.dims)))
}

fn end(l: &mut Lowerer<'_, '_>, a: &Bound<'_>) -> Result<Value, Error> {
    let mut t = a.tensor(l, "x")?;
    let axis = axis_of(l, a, &t, false)?;
    let n = l.b.shape(t.node)[axis];
    if n == 0 {
        return Err(PlanError::Empty { operation: a.name.into(), axis }).at(a.span);
    }
    let x = if a.name == "first" { flipped(l, a, t.node, axis)? } else { t.node };
    let filled = l.b.scan(x, ScanKind::Last, axis).at(a.span)?;
    let node = l.b.index(filled, axis, n - 1).at(a.span)?;
    t.dims.remove(axis);
    Ok(Value::Tensor(Tensor::new(node, t.dims)))
}

/// The tensor in a float type.
fn real(l: &mut Lowerer<'_, '_>, a: &Bound<'_>, param: &str) -> Result<Tensor, Error> {
    let mut t = a.tensor(l, param)?;
    let from = l.b.dtype(t.node);
    if from.is_datetime() {
        return fail(types(a.name, vec![from.name()]), a.place(param));
    }
    if !from.is_float() {
        t.node = l.b.cast(t.node, DType::Float64).at(a.span)?;
    }
    Ok(t)
}

fn ewm(l: &mut Lowerer<'_, '_>, a: &Bound<'_>) -> Result<Value, Error> {
    let t = real(l, a, "x")?;
    let axis = axis_of(l, a, &t, true)?;
    let mut alphas = Vec::new();
    for param in ["alpha", "span", "halflife", "com"] {
        let Some(v) = a.float(l, param)? else { continue };
        let (alpha, fits) = match param {
            "alpha" => (v, v > 0.0 && v <= 1.0),
            "span" => (2.0 / (v + 1.0), v >= 1.0),
            "halflife" => (1.0 - (-std::f64::consts::LN_2 / v).exp(), v > 0.0),
            _ => (1.0 / (1.0 + v), v >= 0.0),
        };
        if !fits || !v.is_finite() {
            let range = match param {
                "alpha" => "above 0 and at most 1",
                "span" => "at least 1",
                "halflife" => "above 0",
                _ => "at least 0",
            };
            return a.refuse(param, format!("is {v}; it must be {range}"));
        }
        alphas.push(alpha);
    }
    let [alpha] = alphas[..] else {
        let reason = "must be given, or one of `span`, `halflife` and `com`, and only one of them";
        return fail(a.invalid("`alpha`", reason), a.span);
    };
    let kind = ScanKind::Decay { factor: (1.0 - alpha).to_bits() };
    let dtype = l.b.dtype(t.node);
    // Sums in float64, divided by the sum of the weights used.
    let wide = l.b.cast(t.node, DType::Float64).at(a.span)?;
    let zero = l.b.constant(Scalar::f64(0.0)).at(a.span)?;
    let there = l.b.map_op(MapOp::IsValid, &[wide]).at(a.span)?;
    let weight = l.b.cast(there, DType::Float64).at(a.span)?;
    let value = l.b.map_op(MapOp::Coalesce, &[wide, zero]).at(a.span)?;
    let sum = l.b.scan(value, kind, axis).at(a.span)?;
    let weight = l.b.scan(weight, kind, axis).at(a.span)?;
    let mut node = l.b.map(ScalarOp::Div, &[sum, weight]).at(a.span)?;
    if l.b.node(t.node).nullable {
        let some = l.b.map(ScalarOp::Gt, &[weight, zero]).at(a.span)?;
        node = l.b.map_op(MapOp::Mask, &[node, some]).at(a.span)?;
    }
    let node = l.b.cast(node, dtype).at(a.span)?;
    Ok(Value::Tensor(Tensor::new(node, t.dims)))
}

/// Positions of cells along an axis, or their common distance.
enum Spacing {
    Even(f64),
    At(NodeId),
}

fn spacing(
    l: &mut Lowerer<'_, '_>,
    a: &Bound<'_>,
    param: &str,
    (axis, rank, n): (usize, usize, u64),
    dtype: DType,
) -> Result<Spacing, Error> {
    let place = a.place(param);
    let t = match a.value(l, param)? {
        Value::Null => return Ok(Spacing::Even(1.0)),
        Value::Int(v) => return Ok(Spacing::Even(v as f64)),
        Value::Float(v) => return Ok(Spacing::Even(v)),
        value => l.tensor(value, place)?,
    };
    if t.dims.is_empty() {
        return match l.known_scalar(&t, "a distance", place)? {
            Some(v) => Ok(Spacing::Even(v.as_f64())),
            None => fail(a.invalid(&format!("`{param}`"), "must not be NULL"), place),
        };
    }
    if l.b.shape(t.node)[..] != [n] {
        let reason = format!("must be a number or have the {n} cells of the dimension");
        return fail(a.invalid(&format!("`{param}`"), reason), place);
    }
    let at = l.b.cast(t.node, DType::Float64).at(a.span)?;
    let at = l.b.cast(at, dtype).at(a.span)?;
    let mut shape = vec![1; rank];
    shape[axis] = n;
    Ok(Spacing::At(l.b.reshape(at, &shape).at(a.span)?))
}

fn trapz(l: &mut Lowerer<'_, '_>, a: &Bound<'_>) -> Result<Value, Error> {
    let mut t = real(l, a, "y")?;
    let axis = axis_of(l, a, &t, true)?;
    let shape = l.b.shape(t.node);
    let n = shape[axis];
    let dtype = l.b.dtype(t.node);
    let param = if a.expr("x").is_some() { "x" } else { "dx" };
    let how = spacing(l, a, param, (axis, shape.len(), n), dtype)?;
    let len = n.saturating_sub(1);
    let upper = l.b.slice(t.node, axis, 1, 1, len).at(a.span)?;
    let lower = l.b.slice(t.node, axis, 0, 1, len).at(a.span)?;
    let sum = l.b.map(ScalarOp::Add, &[upper, lower]).at(a.span)?;
    let width = match how {
        Spacing::Even(h) => l.b.constant(Scalar::from_f64(dtype, h)).at(a.span)?,
        Spacing::At(at) => {
            let next = l.b.slice(at, axis, 1, 1, len).at(a.span)?;
            let here = l.b.slice(at, axis, 0, 1, len).at(a.span)?;
            l.b.map(ScalarOp::Sub, &[next, here]).at(a.span)?
        }
    };
    let area = l.b.map(ScalarOp::Mul, &[width, sum]).at(a.span)?;
    let two = l.b.constant(Scalar::from_f64(dtype, 2.0)).at(a.span)?;
    let area = l.b.map(ScalarOp::Div, &[area, two]).at(a.span)?;
    let total = l.b.reduce_axes(area, ReduceKind::Sum, &[axis]).at(a.span)?;
    let node = l.b.squeeze(total, &[axis]).at(a.span)?;
    t.dims.remove(axis);
    Ok(Value::Tensor(Tensor::new(node, t.dims)))
}

fn convolve(l: &mut Lowerer<'_, '_>, a: &Bound<'_>) -> Result<Value, Error> {
    let values = vec![a.value(l, "x")?, a.value(l, "kernel")?];
    let values = l.settle(values, a.span)?;
    let mut dtype = l.meet(a.name, &values, a.span)?;
    if dtype == DType::Bool {
        dtype = DType::Int64;
    }
    if !dtype.is_numeric() {
        return fail(types(a.name, vec![dtype.name()]), a.span);
    }
    let mut sides = Vec::with_capacity(2);
    for value in values {
        sides.push(l.typed(value, dtype, a.name, a.span)?);
    }
    let lengths: Vec<_> = sides.iter().map(|t| l.b.shape(t.node)).collect();
    let ([n], [m]) = (&lengths[0][..], &lengths[1][..]) else {
        return misshapen(a.name, &lengths, "both have one dimension", a.span);
    };
    let (mut n, mut m) = (*n, *m);
    if n == 0 || m == 0 {
        return Err(PlanError::Empty { operation: a.name.into(), axis: 0 }).at(a.span);
    }
    let correlate = a.name == "correlate";
    let default = if correlate { "valid" } else { "full" };
    let mode = a.text(l, "mode")?.unwrap_or_else(|| default.into());
    let swapped = n < m;
    if swapped {
        sides.swap(0, 1);
        std::mem::swap(&mut n, &mut m);
    }
    if m > KERNEL_MAX {
        let reason = format!("has {m} cells; the shorter side may have {KERNEL_MAX}");
        return a.refuse("kernel", reason);
    }
    // The part of the full convolution to return: `len` cells from `skip` on.
    let (skip, len) = match mode.as_str() {
        "full" => (0, n + m - 1),
        "same" => ((m - 1) / 2, n),
        "valid" => (m - 1, n - m + 1),
        other => {
            return a.refuse("mode", format!("is '{other}'; it must be 'full', 'same' or 'valid'"));
        }
    };
    let zeros = l.b.full(Some(Scalar::zero(dtype)), dtype, &[m - 1], None).at(a.span)?;
    let padded = match m {
        1 => sides[0].node,
        _ => l.b.concat(&[zeros, sides[0].node, zeros], 0).at(a.span)?,
    };
    let mut sum: Option<NodeId> = None;
    for k in 0..m {
        // Cell i of the full convolution is Σ kernel[k] x[i - k]; x starts at m - 1 of the padded input.
        let place = if correlate { m - 1 - k } else { k };
        let weight = l.b.slice(sides[1].node, 0, place as i64, 1, 1).at(a.span)?;
        let cells = l.b.slice(padded, 0, (skip + m - 1 - k) as i64, 1, len).at(a.span)?;
        let term = l.b.map(ScalarOp::Mul, &[cells, weight]).at(a.span)?;
        sum = Some(match sum {
            None => term,
            Some(s) => l.b.map(ScalarOp::Add, &[s, term]).at(a.span)?,
        });
    }
    let mut node = sum.unwrap_or(padded);
    if correlate && swapped {
        // The operands were swapped, which reverses the result.
        node = l.b.slice(node, 0, len as i64 - 1, -1, len).at(a.span)?;
    }
    let dims = match mode == "same" && !swapped {
        true => sides.swap_remove(0).dims,
        false => vec![sides[0].dims[0].bare()],
    };
    Ok(Value::Tensor(Tensor::new(node, dims)))
}
