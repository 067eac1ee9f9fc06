//! `groupby`: reductions over cells with equal labels.

use std::sync::Arc;

use sqlparser::ast::Expr;
use sqlparser::tokenizer::Span;
use tessera_planner::catalog::{Attrs, Coord, CoordValues};
use tessera_planner::dtype::DType;
use tessera_planner::error::Error as PlanError;
use tessera_planner::ir::{AxisReduce, Groups, MapOp, NodeId, Op, ScanKind};
use tessera_planner::program::ScalarOp;
use tessera_planner::scalar::Scalar;
use tessera_planner::time::DatePart;

use super::{Bound, Open, Row, order, reduce, row};
use crate::ast;
use crate::error::Error;
use crate::lower::value::{Dim, Grouped, Tensor, Value};
use crate::lower::{At, Lowerer, fail, misshapen, unknown_dim};

pub(super) const ROWS: &[Row] = &[row(
    "groupby(x, op, by => f(coordinate), q => NULL, ddof => 0, dtype => NULL, skipna => \
         false)",
    groupby,
    "A reduction ('sum', 'mean', 'min', 'max', 'var', 'std', 'count', 'prod', 'any', \
         'all', 'median', 'quantile' with `q`, 'first', 'last') of the cells with one key; the keys, \
         sorted, are the new coordinate, called by the function that made them. Where the result meets \
         the dimension that was grouped, it is gathered back along it.",
)
.takes(&["x", "op", "by", "q", "ddof", "dtype", "skipna"], 3, Open::No)
.dtypes("as the reduction")
.missing("as the reduction; positions whose key is NULL or NaN are left out")
.example("SELECT t2m - groupby(t2m, 'mean', by => month(time)) FROM era5")
.numpy("xarray.DataArray.groupby")];

#[derive(Debug, Clone, PartialEq, PartialOrd)]
enum GroupKey {
    Number(i128),
    Float(f64),
    Text(String),
}

fn groupby(l: &mut Lowerer<'_, '_>, a: &Bound<'_>) -> Result<Value, Error> {
    let t = a.tensor(l, "x")?;
    let how = operation(l, a, &t, OPERATIONS)?;
    let dtype = a.dtype(l)?;
    let skipna = a.flag(l, "skipna")?;
    let Some(by) = a.expr("by") else {
        return fail(a.invalid("`by`", "must be given"), a.span);
    };
    let place = a.place("by");
    let keys = keys(l, a, &t, by)?;
    let Some(axis) = t.axis(&keys.dim) else { return Err(unknown_dim(&t, &keys.dim, place)) };
    let length = l.b.shape(t.node)[axis];
    if keys.keys.len() as u64 != length {
        return misshapen(
            "groupby",
            &[[length], [keys.keys.len() as u64]],
            format!("`by` needs one key for each label of `{}`", keys.dim),
            place,
        );
    }
    let mut unique: Vec<(GroupKey, u64)> = keys
        .keys
        .iter()
        .enumerate()
        .filter_map(|(at, key)| key.clone().map(|key| (key, at as u64)))
        .collect();
    let compare =
        |a: &GroupKey, b: &GroupKey| a.partial_cmp(b).unwrap_or(std::cmp::Ordering::Equal);
    unique.sort_by(|a, b| compare(&a.0, &b.0).then(a.1.cmp(&b.1)));
    unique.dedup_by(|a, b| a.0 == b.0);
    let mut codes = Vec::with_capacity(keys.keys.len());
    let mut kept = Vec::new();
    for (at, key) in keys.keys.iter().enumerate() {
        let Some(key) = key else { continue };
        if let Ok(code) = unique.binary_search_by(|(known, _)| compare(known, key)) {
            codes.push(code as u32);
            kept.push(at as u64);
        }
    }
    let mut x = t.clone();
    let whole = kept.len() as u64 == length;
    if !whole {
        x.node = l.b.take(t.node, axis, kept.as_slice().into()).at(a.span)?;
    }
    let codes: Arc<[u32]> = codes.into();
    let groups = Groups { codes: codes.clone(), count: unique.len() as u32 };
    let node = of_groups(l, &x, how, axis, groups, dtype, skipna, a.span)?;
    let firsts: Vec<u64> = unique.iter().map(|(_, at)| *at).collect();
    let name: Arc<str> = keys.name.into();
    let mut dims = t.dims.clone();
    let group = whole.then(|| {
        Arc::new(Grouped {
            dim: keys.dim.as_str().into(),
            coord: t.dims[axis].coord.clone(),
            codes,
            part: keys.part,
        })
    });
    let coord = Coord {
        name: name.clone(),
        dim: name.clone(),
        values: keys.values.take(&firsts),
        attrs: Attrs::new(),
    };
    dims[axis] = Dim { name: Some(name), coord: Some(Arc::new(coord)), group };
    Ok(Value::Tensor(Tensor::new(node, crate::lower::unique(dims))))
}

/// The aggregate of each group.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) enum Operation {
    Reduce(reduce::Reduction),
    Quantile(f64),
    First,
    Last,
}

/// The names of the operations of groups.
pub(super) const OPERATIONS: &str = "'sum', 'prod', 'mean', 'median', 'quantile', 'var', 'std', 'min', 'max', 'ptp', \
                                     'any', 'all', 'count', 'count_nonzero', 'first' or 'last'";

/// The argument `op` for `t`, with `q` for 'quantile' and `ddof` for 'var' and 'std'. `known` are the names for errors.
pub(super) fn operation(
    l: &mut Lowerer<'_, '_>,
    a: &Bound<'_>,
    t: &Tensor,
    known: &str,
) -> Result<Operation, Error> {
    let ddof = reduce::ddof(l, a)?;
    let op = a.text(l, "op")?.unwrap_or_default().to_ascii_lowercase();
    let q = a.float(l, "q")?;
    if q.is_some() && op != "quantile" {
        let hint = match t.axis("q") {
            Some(_) if a.name != "groupby" => format!("; {}", as_dimension("q")),
            _ => String::new(),
        };
        return a.refuse("q", format!("is for 'quantile', not for '{op}'{hint}"));
    }
    match (op.as_str(), q) {
        ("median", _) => return Ok(Operation::Quantile(0.5)),
        ("first", _) => return Ok(Operation::First),
        ("last", _) => return Ok(Operation::Last),
        ("quantile", Some(q)) if (0.0..=1.0).contains(&q) => return Ok(Operation::Quantile(q)),
        ("quantile", Some(q)) => return a.refuse("q", format!("is {q}; it must be 0 to 1")),
        ("quantile", None) => {
            return fail(a.invalid("`q`", "must be given, as in `q => 0.9`"), a.place("op"));
        }
        _ => {}
    }
    let kind = reduce::reduction(&op, ddof)
        .filter(|kind| !matches!(kind, reduce::Reduction::ArgMin | reduce::Reduction::ArgMax));
    match kind {
        Some(kind) => Ok(Operation::Reduce(kind)),
        None => a.refuse("op", format!("is '{op}'; it must be one of {known}")),
    }
}

/// The hint for an option with the name of a dimension of the tensor.
fn as_dimension(name: &str) -> String {
    format!("to name the dimension `{name}`, rename it first, as in `rename(x, {name} => 'dim')`")
}

/// Refuses a call without dimensions if one of its options has the name of a dimension, which must have been meant.
pub(super) fn check_dimensions(a: &Bound<'_>, t: &Tensor) -> Result<(), Error> {
    const OPTIONS: [&str; 6] = ["q", "ddof", "skipna", "center", "min_periods", "boundary"];
    if !a.dims.is_empty() {
        return Ok(());
    }
    let meant = OPTIONS.into_iter().find(|name| a.expr(name).is_some() && t.axis(name).is_some());
    match meant {
        None => Ok(()),
        Some(name) => a.refuse(name, format!("is the option of that name; {}", as_dimension(name))),
    }
}

/// Applies an operation to the groups of one axis. The result has one position per group on it.
#[expect(clippy::too_many_arguments, reason = "what a call of `groupby` says")]
pub(super) fn of_groups(
    l: &mut Lowerer<'_, '_>,
    t: &Tensor,
    operation: Operation,
    axis: usize,
    groups: Groups,
    dtype: Option<DType>,
    skipna: bool,
    span: Span,
) -> Result<NodeId, Error> {
    let node = match operation {
        Operation::Reduce(kind) => {
            let mut how = vec![AxisReduce::Keep; t.dims.len()];
            how[axis] = AxisReduce::Group(groups);
            return reduce::reduce(l, t, kind, &how, dtype, skipna, span);
        }
        Operation::Quantile(q) => quantile_of_groups(l, t, q, axis, &groups, skipna, span)?,
        Operation::First | Operation::Last => {
            end_of_groups(l, t, operation == Operation::Last, axis, &groups, skipna, span)?
        }
    };
    match dtype {
        Some(dtype) => l.b.cast(node, dtype).at(span),
        None => Ok(node),
    }
}

fn positions_of(groups: &Groups) -> Vec<Vec<u64>> {
    let mut lines: Vec<Vec<u64>> = vec![Vec::new(); groups.count as usize];
    for (at, &code) in groups.codes.iter().enumerate() {
        lines[code as usize].push(at as u64);
    }
    lines
}

/// The first or last cell of each group that is not masked.
fn end_of_groups(
    l: &mut Lowerer<'_, '_>,
    t: &Tensor,
    is_last: bool,
    axis: usize,
    groups: &Groups,
    skipna: bool,
    span: Span,
) -> Result<NodeId, Error> {
    let mut lines = positions_of(groups);
    if !is_last {
        lines.iter_mut().for_each(|line| line.reverse());
    }
    let skip = skipna && l.b.dtype(t.node).is_float();
    let x = if skip { reduce::without_nan(l, t.node, span)? } else { t.node };
    let ends: Option<Vec<u64>> = lines.iter().map(|line| line.last().copied()).collect();
    if let (false, Some(ends)) = (l.b.node(x).nullable, ends) {
        return l.b.take(x, axis, ends.into()).at(span);
    }
    let x = lines_of_groups(l, x, axis, &lines, span)?;
    let filled = l.b.scan(x, ScanKind::Last, axis + 1).at(span)?;
    let end = l.b.shape(filled)[axis + 1] - 1;
    let node = l.b.index(filled, axis + 1, end).at(span)?;
    if !skip {
        return Ok(node);
    }
    let mut how = vec![AxisReduce::Keep; t.dims.len()];
    how[axis] = AxisReduce::Group(groups.clone());
    reduce::nan_of_nothing(l, node, t.node, &how, span)
}

fn quantile_of_groups(
    l: &mut Lowerer<'_, '_>,
    t: &Tensor,
    q: f64,
    axis: usize,
    groups: &Groups,
    skipna: bool,
    span: Span,
) -> Result<NodeId, Error> {
    let lines = positions_of(groups);
    let x = lines_of_groups(l, t.node, axis, &lines, span)?;
    let apart = Tensor::unnamed(x, t.dims.len() + 1);
    let node = order::quantile_over(l, &apart, &[axis + 1], q, skipna, span)?;
    let dtype = l.b.dtype(node);
    let has_empty = lines.iter().any(Vec::is_empty);
    if has_empty || l.b.node(t.node).nullable || !l.b.node(node).nullable || !dtype.is_float() {
        return Ok(node);
    }
    // Only the padding was masked, so no result is masked.
    let nan = l.b.constant(Scalar::from_f64(dtype, f64::NAN)).at(span)?;
    l.b.map_op(MapOp::Coalesce, &[node, nan]).at(span)
}

/// The cells of each group as a line along a new axis behind `axis`. A line has the length of the longest one; its
/// padding is masked.
fn lines_of_groups(
    l: &mut Lowerer<'_, '_>,
    mut x: NodeId,
    axis: usize,
    lines: &[Vec<u64>],
    span: Span,
) -> Result<NodeId, Error> {
    let shape = l.b.shape(x);
    let longest = lines.iter().map(Vec::len).max().unwrap_or(0).max(1);
    let cells = (lines.len() as u64).saturating_mul(longest as u64);
    // Groups of similar sizes need about as many cells as the input.
    if cells > shape[axis].saturating_mul(16).max(1 << 20) {
        return Err(PlanError::Unsupported {
            construct: format!(
                "this operation on {} groups of which one has {longest} cells and most far fewer",
                lines.len()
            ),
        })
        .at(span);
    }
    let is_even = lines.iter().all(|line| line.len() == longest);
    if !is_even {
        let mut one = shape.to_vec();
        one[axis] = 1;
        let masked = l.b.full(None, l.b.dtype(x), &one, None).at(span)?;
        x = l.b.concat(&[x, masked], axis).at(span)?;
    }
    let positions: Vec<u64> = lines
        .iter()
        .flat_map(|line| {
            let fill = std::iter::repeat_n(shape[axis], longest - line.len());
            line.iter().copied().chain(fill)
        })
        .collect();
    x = l.b.take(x, axis, positions.into()).at(span)?;
    let mut apart = shape.to_vec();
    apart.splice(axis..=axis, [lines.len() as u64, longest as u64]);
    l.b.reshape(x, &apart).at(span)
}

/// The keys of the positions along one dimension.
struct DimKeys {
    dim: String,
    name: String,
    keys: Vec<Option<GroupKey>>,
    values: CoordValues,
    part: Option<DatePart>,
}

fn keys(l: &mut Lowerer<'_, '_>, a: &Bound<'_>, t: &Tensor, by: &Expr) -> Result<DimKeys, Error> {
    let place = a.place("by");
    if let Expr::Identifier(ident) = by
        && let Some(coord) =
            t.dims.iter().filter_map(|d| d.coord.as_ref()).find(|c| *c.name == *ident.value)
        && let CoordValues::Text(texts) = &coord.values
    {
        return Ok(DimKeys {
            dim: coord.dim.to_string(),
            name: coord.name.to_string(),
            keys: texts.options().map(|text| text.map(|t| GroupKey::Text(t.into()))).collect(),
            values: coord.values.clone(),
            part: None,
        });
    }
    let coords = t.dims.iter().filter_map(|dim| dim.coord.clone()).collect();
    let value = l.with_locals(coords, |l| l.expr(by))?;
    if let Value::Str(text) = &value {
        // xarray's 'time.month' is `month(time)`.
        let example = match text.split_once('.') {
            Some((dim, part)) => format!("{part}({dim})"),
            None => "month(time)".to_string(),
        };
        let reason = format!(
            "is the text '{text}'; write an expression of one coordinate, as in `{example}`"
        );
        return fail(a.invalid("`by`", reason), place);
    }
    let key = l.tensor(value, place)?;
    let [dim] = key.dims.as_slice() else {
        return fail(
            a.invalid("`by`", "must be an expression of one coordinate, as in `month(time)`"),
            place,
        );
    };
    let cells = l.cells(&key, "keys of `groupby`", place)?;
    let dtype = l.b.dtype(key.node);
    let scalars: Vec<Scalar> =
        cells.iter().map(|cell| cell.unwrap_or(Scalar::zero(dtype))).collect();
    let keys = cells
        .iter()
        .map(|cell| {
            let cell = (*cell)?;
            match dtype.is_float() {
                false => Some(GroupKey::Number(cell.as_i128())),
                true => Some(cell.as_f64()).filter(|v| !v.is_nan()).map(GroupKey::Float),
            }
        })
        .collect();
    let ints = || scalars.iter().map(|s| s.as_i128() as i64).collect::<Vec<i64>>().into();
    let values = match dtype {
        DType::Datetime(calendar) => CoordValues::Time(calendar, ints()),
        d if d.is_float() => CoordValues::Float(d, scalars.iter().map(|s| s.as_f64()).collect()),
        d => CoordValues::Int(d, ints()),
    };
    let part = match &l.b.node(key.node).op {
        Op::Map(MapOp::Scalar(ScalarOp::DatePart(part))) => Some(*part),
        _ => None,
    };
    Ok(DimKeys {
        dim: match &dim.name {
            Some(name) => name.to_string(),
            None => key.dim_name(0),
        },
        name: key_name(by, part),
        keys,
        values,
        part,
    })
}

/// The name of the new dimension: the function that computes the keys, the coordinate that is the
/// key, else `group`.
fn key_name(by: &Expr, part: Option<DatePart>) -> String {
    if let Some(part) = part {
        return part.name().to_string();
    }
    match by {
        Expr::Nested(inner) => key_name(inner, part),
        Expr::Identifier(ident) => ident.value.clone(),
        Expr::CompoundIdentifier(parts) => {
            parts.last().map_or_else(|| "group".into(), |ident| ident.value.clone())
        }
        other => match ast::call(other) {
            Some(call) if call.name.value.chars().all(|c| c.is_alphanumeric() || c == '_') => {
                call.name.value.to_ascii_lowercase()
            }
            _ => "group".into(),
        },
    }
}
