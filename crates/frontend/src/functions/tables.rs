//! Lookups of cells in sorted tables: searches, membership, interpolation.

use std::sync::Arc;

use tessera_planner::catalog::{Coord, CoordValues, NAT};
use tessera_planner::dtype::DType;
use tessera_planner::ir::ConstArray;
use tessera_planner::lookup::LookupKind;
use tessera_planner::program::ScalarOp;
use tessera_planner::region::cells;
use tessera_planner::scalar::Scalar;
use tessera_planner::sort::{SortOrder, SortWhat};

use super::{Bound, Open, Row, row};
use crate::error::{BindError, Error};
use crate::lower::value::{Dim, Tensor, Value};
use crate::lower::{At, Lowerer, evaluate, fail, misshapen, span_of, unsupported};

pub(super) const ROWS: &[Row] = &[
    row(
        "digitize(x, bins, right => false)",
        digitize,
        "The number of the bin that holds each cell, from 1 on; 0 and the number of edges lie \
         outside. Edges rise or fall; `right` closes bins at their upper edge.",
    )
    .dtypes("numeric give int64")
    .missing("NULL where masked; NaN lies beyond the last edge")
    .example("SELECT digitize(x, [0.0, 1.0, 2.5]) FROM x"),
    row(
        "searchsorted(a, v, side => 'left')",
        searchsorted,
        "Where each cell of v would stand in the sorted 1-d a: before equal cells, or with \
         'right' after them.",
    )
    .dtypes("any of one type give int64")
    .missing("NULL where v is masked; NaN is the greatest")
    .example("SELECT searchsorted([1, 3, 5], x) FROM x"),
    row("isin(x, values, invert => false)", isin, "Is each cell among the values?")
        .dtypes("any of one type give bool")
        .missing("NULL where masked; NaN is never among them")
        .example("SELECT isin(k, [1, 3]) FROM x"),
    row(
        "interp(x, xp, fp, left => NULL, right => NULL) | interp(x, dim => labels, …)",
        interp,
        "Linear interpolation: at each cell of x between the points (xp, fp), xp rising, with \
         fp's ends (or `left` and `right`) beyond them; or of a labelled tensor at other \
         labels of its dimensions, NULL beyond theirs.",
    )
    .takes(&["x", "xp", "fp", "left", "right"], 1, Open::Dims)
    .dtypes("numeric give float64; labelled floats stay")
    .missing("NULL where a neighbour is masked; NaN stays")
    .example("SELECT interp(t2m, lat => [51.5, 52.5]) FROM era5")
    .numpy("numpy.interp, xarray.DataArray.interp"),
];

/// A table and cells in one type.
fn met(
    l: &mut Lowerer<'_, '_>,
    a: &Bound<'_>,
    table: &str,
    cells: &str,
) -> Result<(Tensor, Tensor), Error> {
    let values = vec![a.value(l, table)?, a.value(l, cells)?];
    let values = l.settle(values, a.span)?;
    let dtype = l.meet(a.name, &values, a.span)?;
    let mut both = Vec::with_capacity(2);
    for value in values {
        both.push(l.typed(value, dtype, a.name, a.span)?);
    }
    match (both.pop(), both.pop()) {
        (Some(cells), Some(table)) => Ok((table, cells)),
        _ => unsupported(a.name, a.span),
    }
}

fn one_dimension(l: &Lowerer<'_, '_>, a: &Bound<'_>, t: &Tensor, of: &str) -> Result<u64, Error> {
    match l.b.shape(t.node)[..] {
        [n] => Ok(n),
        ref shape => misshapen(a.name, &[shape], format!("`{of}` has one dimension"), a.place(of)),
    }
}

/// A tensor with the shape and labels of `t`.
fn like(t: &Tensor, node: tessera_planner::ir::NodeId) -> Value {
    Value::Tensor(Tensor::new(node, t.dims.clone()))
}

fn digitize(l: &mut Lowerer<'_, '_>, a: &Bound<'_>) -> Result<Value, Error> {
    let (table, x) = met(l, a, "bins", "x")?;
    let n = one_dimension(l, a, &table, "bins")?;
    let right = a.flag(l, "right")?;
    let known = l.cells(&table, "the edges of `digitize`", a.place("bins"))?;
    let edges: Vec<f64> = known.iter().map(|v| v.map_or(f64::NAN, |v| v.as_f64())).collect();
    let rises = edges.windows(2).all(|w| w[0] <= w[1]);
    if !rises && !edges.windows(2).all(|w| w[0] >= w[1]) {
        return a.refuse("bins", "must rise or fall");
    }
    let kind = if right { LookupKind::Left } else { LookupKind::Right };
    if rises {
        let node = l.b.lookup(x.node, &[table.node], kind).at(a.span)?;
        return Ok(like(&x, node));
    }
    // Descending edges are ascending ones in reverse.
    let flipped = l.b.slice(table.node, 0, n as i64 - 1, -1, n).at(a.span)?;
    let node = l.b.lookup(x.node, &[flipped], kind).at(a.span)?;
    let all = l.b.constant(Scalar::i64(n as i64)).at(a.span)?;
    let node = l.b.map(ScalarOp::Sub, &[all, node]).at(a.span)?;
    Ok(like(&x, node))
}

fn searchsorted(l: &mut Lowerer<'_, '_>, a: &Bound<'_>) -> Result<Value, Error> {
    let (table, v) = met(l, a, "a", "v")?;
    one_dimension(l, a, &table, "a")?;
    let kind = match a.text(l, "side")?.as_deref() {
        None | Some("left") => LookupKind::Left,
        Some("right") => LookupKind::Right,
        Some(other) => {
            return a.refuse("side", format!("is '{other}'; it must be 'left' or 'right'"));
        }
    };
    let node = l.b.lookup(v.node, &[table.node], kind).at(a.span)?;
    Ok(like(&v, node))
}

fn isin(l: &mut Lowerer<'_, '_>, a: &Bound<'_>) -> Result<Value, Error> {
    let (values, x) = met(l, a, "values", "x")?;
    let flat = match values.dims.len() {
        1 => values.node,
        _ => {
            let n = cells(&l.b.shape(values.node)).unwrap_or(u64::MAX);
            l.b.reshape(values.node, &[n]).at(a.span)?
        }
    };
    let table = l.b.sort(flat, 0, SortWhat::Values, SortOrder::default(), None).at(a.span)?;
    let mut node = l.b.lookup(x.node, &[table], LookupKind::Contains).at(a.span)?;
    if a.flag(l, "invert")? {
        node = l.b.map(ScalarOp::Not, &[node]).at(a.span)?;
    }
    Ok(like(&x, node))
}

fn interp(l: &mut Lowerer<'_, '_>, a: &Bound<'_>) -> Result<Value, Error> {
    let x = a.tensor(l, "x")?;
    if !a.dims.is_empty() {
        return interp_labels(l, a, x);
    }
    let mut tables = Vec::with_capacity(2);
    for param in ["xp", "fp"] {
        if a.expr(param).is_none() {
            return fail(a.invalid(&format!("`{param}`"), "must be given"), a.span);
        }
        let t = a.tensor(l, param)?;
        let n = one_dimension(l, a, &t, param)?;
        tables.push((l.b.cast(t.node, DType::Float64).at(a.span)?, n));
    }
    if let Some(known) = evaluate(&l.b.graph, tables[0].0)
        && known.windows(2).any(|w| match (w[0], w[1]) {
            (Some(p), Some(q)) => p.as_f64() > q.as_f64(),
            _ => true,
        })
    {
        return a.refuse("xp", "must rise");
    }
    let at = l.b.cast(x.node, DType::Float64).at(a.span)?;
    let nodes = [tables[0].0, tables[1].0];
    let mut node = l.b.lookup(at, &nodes, LookupKind::Interpolate).at(a.span)?;
    let ends = [("left", 0, ScalarOp::Lt), ("right", tables[0].1 as i64 - 1, ScalarOp::Gt)];
    for (param, position, beyond) in ends {
        if let Some(v) = a.float(l, param)? {
            let end = l.b.index(nodes[0], 0, position as u64).at(a.span)?;
            let out = l.b.map(beyond, &[at, end]).at(a.span)?;
            let v = l.b.constant(Scalar::f64(v)).at(a.span)?;
            node = l.b.map(ScalarOp::Where, &[out, v, node]).at(a.span)?;
        }
    }
    Ok(like(&x, node))
}

/// Interpolates a labelled tensor at other labels, linearly between the two neighbours along each dimension.
fn interp_labels(l: &mut Lowerer<'_, '_>, a: &Bound<'_>, mut t: Tensor) -> Result<Value, Error> {
    let from = l.b.dtype(t.node);
    if from.is_datetime() {
        return fail(crate::lower::types(a.name, vec![from.name()]), a.span);
    }
    if !from.is_float() {
        t.node = l.b.cast(t.node, DType::Float64).at(a.span)?;
    }
    let dtype = l.b.dtype(t.node);
    let mut gone = Vec::new();
    for &(name, expr) in &a.dims {
        let place = span_of(expr);
        let axis = l.named_axis(&t, name)?;
        let Some(coord) = t.dims[axis].coord.clone() else {
            let reason = "has no labels to interpolate between";
            return fail(a.invalid(&format!("`{}`", name.value), reason), place);
        };
        if let Some(error) = BindError::no_labels(&coord) {
            return fail(error, a.span);
        }
        let Some(labels) = numbers(&coord.values) else {
            let reason = "has texts for labels";
            return fail(a.invalid(&format!("`{}`", name.value), reason), place);
        };
        let value = l.expr(expr)?;
        let of_labels = coord.values.dtype().filter(|d| d.is_datetime());
        let wanted = match (value, of_labels) {
            (Value::Str(text), Some(d)) => l.typed(Value::Str(text), d, a.name, place)?,
            (Value::Null, Some(d)) => l.typed(Value::Null, d, a.name, place)?,
            (value, _) => l.tensor(value, place)?,
        };
        let given = l.b.dtype(wanted.node);
        if given.is_datetime() != of_labels.is_some() {
            return fail(other_kind(a, &name.value, &coord.values, given), place);
        }
        let wanted = match of_labels {
            Some(d) => l.typed(Value::Tensor(wanted), d, a.name, place)?,
            None => wanted,
        };
        if wanted.dims.len() > 1 {
            let reason = "must be a label or a list of labels";
            return fail(a.invalid(&format!("`{}`", name.value), reason), place);
        }
        let known = l.cells(&wanted, "the labels of `interp`", place)?;
        let dtype_of = l.b.dtype(wanted.node);
        let known: Vec<Scalar> =
            known.iter().map(|v| v.unwrap_or(Scalar::from_f64(dtype_of, f64::NAN))).collect();
        let rises = labels.first() <= labels.last();
        let sign = if rises { 1.0 } else { -1.0 };
        if labels.is_empty() || labels.windows(2).any(|w| sign * w[0] >= sign * w[1]) {
            let reason = "has labels that neither rise nor fall throughout";
            return fail(a.invalid(&format!("`{}`", name.value), reason), place);
        }
        let LabelPositions { low, high, part } = places(&labels, sign, &known);
        let part: Vec<Option<Scalar>> =
            part.into_iter().map(|w| w.map(|w| Scalar::from_f64(dtype, w))).collect();
        let mut shape = vec![1; t.dims.len()];
        shape[axis] = part.len() as u64;
        let masked = part.iter().any(Option::is_none);
        let part = l.b.array(ConstArray::new(dtype, &shape, &part)).at(a.span)?;
        let lower = l.b.take(t.node, axis, low.into()).at(a.span)?;
        let upper = l.b.take(t.node, axis, high.into()).at(a.span)?;
        let step = l.b.map(ScalarOp::Sub, &[upper, lower]).at(a.span)?;
        let step = l.b.map(ScalarOp::Mul, &[step, part]).at(a.span)?;
        let between = l.b.map(ScalarOp::Add, &[lower, step]).at(a.span)?;
        // At an existing label the result is its own cell, whatever the neighbours are.
        let zero = l.b.constant(Scalar::zero(dtype)).at(a.span)?;
        let on = l.b.map(ScalarOp::Eq, &[part, zero]).at(a.span)?;
        t.node = l.b.map(ScalarOp::Where, &[on, lower, between]).at(a.span)?;
        debug_assert!(!masked || l.b.node(t.node).nullable, "what is beyond is masked");
        if wanted.dims.is_empty() {
            gone.push(axis);
            continue;
        }
        let values = relabelled(&coord.values, &known, dtype_of);
        let coord = Coord { values, ..(*coord).clone() };
        t.dims[axis] = Dim { coord: Some(Arc::new(coord)), ..t.dims[axis].bare() };
    }
    let node = l.b.squeeze(t.node, &gone).at(a.span)?;
    let dims = (0..t.dims.len()).filter(|a| !gone.contains(a)).map(|a| t.dims[a].clone());
    Ok(Value::Tensor(Tensor::new(node, dims.collect())))
}

/// The error for numbers as labels of times, or times as those of numbers, which xarray refuses, too.
fn other_kind(a: &Bound<'_>, dim: &str, labels: &CoordValues, given: DType) -> BindError {
    let first = if labels.is_empty() { String::new() } else { labels.display(0) };
    let reason = match labels {
        CoordValues::Time(..) => format!(
            "has times for labels, not {given}: write times, as in `{dim} => '{first}'`; `isel(x, {dim} => 5)` takes \
             positions"
        ),
        _ => {
            format!("has numbers for labels, not {given}: write numbers, as in `{dim} => {first}`")
        }
    };
    a.invalid(&format!("`{dim}`"), reason)
}

/// Positions of labels between those of a dimension.
struct LabelPositions {
    /// The positions of the neighbours.
    low: Vec<u64>,
    high: Vec<u64>,
    /// Each label's fraction of the distance from the lower neighbour to the upper one.
    part: Vec<Option<f64>>,
}

/// The places of `wanted` between labels that ascend when multiplied by `sign`.
fn places(labels: &[f64], sign: f64, wanted: &[Scalar]) -> LabelPositions {
    let mut out = LabelPositions { low: Vec::new(), high: Vec::new(), part: Vec::new() };
    for v in wanted {
        let v = sign * v.as_f64();
        let above = labels.partition_point(|x| sign * x < v);
        let last = labels.len() - 1;
        let exact = above <= last && sign * labels[above] == v;
        let (p, q) = match (exact, above) {
            (true, _) => (above, above),
            (false, 0) => (0, 0),
            (false, n) if n > last => (last, last),
            (false, n) => (n - 1, n),
        };
        out.low.push(p as u64);
        out.high.push(q as u64);
        out.part.push(match (exact, p == q) {
            (true, _) => Some(0.0),
            // Values beyond the labels are unknown.
            (false, true) => None,
            (false, false) => Some((v - sign * labels[p]) / (sign * labels[q] - sign * labels[p])),
        });
    }
    out
}

/// Scalars as labels of the kind that a dimension has, and of its type if the type has all of them.
fn relabelled(values: &CoordValues, new: &[Scalar], dtype: DType) -> CoordValues {
    let whole = || new.iter().map(|v| v.as_i128() as i64).collect();
    let real = || new.iter().map(|v| v.as_f64()).collect();
    match values {
        CoordValues::Time(calendar, _) => CoordValues::Time(*calendar, whole()),
        CoordValues::Int(d, _) if dtype.is_integer() => {
            let has_all = new.iter().all(|v| Scalar::from_i128(*d, v.as_i128()).is_some());
            CoordValues::Int(if has_all { *d } else { dtype }, whole())
        }
        CoordValues::Float(DType::Float32, _) => {
            let narrow = |v: &Scalar| f64::from(v.as_f64() as f32);
            CoordValues::Float(DType::Float32, new.iter().map(narrow).collect())
        }
        CoordValues::Float(d, _) => CoordValues::Float(*d, real()),
        _ => CoordValues::Float(DType::Float64, real()),
    }
}

/// Labels as numbers; `None` for texts.
fn numbers(values: &CoordValues) -> Option<Vec<f64>> {
    match values {
        CoordValues::Time(_, v) => {
            let label = |t: &i64| if *t == NAT { f64::NAN } else { *t as f64 };
            Some(v.iter().map(label).collect())
        }
        CoordValues::Int(d, v) => {
            Some(v.iter().map(|x| CoordValues::integer(*d, *x) as f64).collect())
        }
        CoordValues::Float(_, v) => Some(v.to_vec()),
        CoordValues::Text(_) | CoordValues::Unreadable(_) => None,
    }
}
