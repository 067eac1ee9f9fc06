//! Labels: resolves them to positions of a coordinate.

mod order;

use sqlparser::tokenizer::Span;
use tessera_planner::catalog::{Coord, CoordValues, NAT};
use tessera_planner::dtype::{Calendar, DType};
use tessera_planner::time::{DAY_US, format_micros, parse_period};

use self::order::{Direction, after, before, direction, distances, is_greater, place};
use super::subscript::Pick;
use super::value::{Tensor, Value};
use super::{Lowerer, fail, refuse, span_of};
use crate::ast::Slice;
use crate::error::{BindError, Error};

/// How labels without an exact match are found.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum Method {
    /// The nearest label, the greater of two equally near ones, within the optional distance.
    Nearest(Option<f64>),
    /// The last label that is not behind the wanted one in the order of the positions, within the optional distance.
    Before(Option<f64>),
    /// The first label that is not before the wanted one in the order of the positions, within the optional distance.
    Behind(Option<f64>),
}

/// A label in the type of its coordinate: one value, or the period of a partial date.
#[derive(Debug, Clone, PartialEq)]
enum Label {
    Number(f64),
    Integer(i128),
    /// `[start, end)`, and true if the text is as fine as the coordinate.
    Period(i64, i64, bool),
    Text(String),
}

impl Lowerer<'_, '_> {
    /// `dim => label` and `sel(…)`.
    pub(crate) fn label_pick(
        &mut self,
        t: &Tensor,
        axis: usize,
        value: Value,
        method: Option<Method>,
        span: Span,
    ) -> Result<Pick, Error> {
        match value {
            Value::Slice(bounds) => {
                let [lo, hi, step] = *bounds;
                let step = self.bound(step, span)?;
                self.between(t, axis, lo, hi, step, span)
            }
            Value::List(items) => {
                let mut positions = Vec::with_capacity(items.len());
                for item in items {
                    match self.label_pick(t, axis, item, method, span)? {
                        Pick::At(at) => positions.push(at),
                        Pick::Take(more, ..) => positions.extend(more),
                        Pick::Range { start, step, len } => {
                            positions.extend((0..len as i64).map(|i| (start + i * step) as u64));
                        }
                        Pick::All => {}
                    }
                }
                Ok(Pick::list(positions))
            }
            Value::Tensor(tensor) => {
                let dtype = self.b.dtype(tensor.node);
                let cells = self.cells(&tensor, "labels", span)?;
                let labels: Vec<Value> = cells
                    .iter()
                    .map(|cell| match (dtype, cell) {
                        (DType::Datetime(calendar), Some(v)) => {
                            Value::Str(format_micros(v.as_i128() as i64, calendar))
                        }
                        (_, cell) => Value::of_scalar(*cell).unwrap_or(Value::Null),
                    })
                    .collect();
                if dtype == DType::Bool {
                    return self.position(t, axis, Value::Tensor(tensor), span);
                }
                match (tensor.dims.is_empty(), labels.first()) {
                    (true, Some(label)) => self.label_pick(t, axis, label.clone(), method, span),
                    _ => self.label_pick(t, axis, Value::List(labels), method, span),
                }
            }
            label => self.one_label(t, axis, &label, method, span),
        }
    }

    fn one_label(
        &mut self,
        t: &Tensor,
        axis: usize,
        value: &Value,
        method: Option<Method>,
        span: Span,
    ) -> Result<Pick, Error> {
        let dim = t.dim_name(axis);
        let Some(coord) = t.dims[axis].coord.clone() else {
            // Without a coordinate labels are positions.
            let length = self.b.shape(t.node)[axis];
            return match value {
                Value::Int(v) if (0..i128::from(length)).contains(v) => Ok(Pick::At(*v as u64)),
                Value::Int(v) => fail(
                    BindError::LabelNotFound {
                        dim,
                        label: v.to_string(),
                        nearest: match length {
                            0 => Vec::new(),
                            n => vec![v.clamp(&0, &i128::from(n - 1)).to_string()],
                        },
                        is_unordered: false,
                        tolerance: None,
                    },
                    span,
                ),
                other => fail(invalid(&dim, other, "positions, as it has no coordinate"), span),
            };
        };
        let label = label(&coord, value, span)?;
        match method {
            Some(Method::Nearest(tolerance)) => {
                return nearest_label(&coord, &label, value, tolerance, span).map(Pick::At);
            }
            Some(method) => return neighbour(&coord, &label, value, method, span).map(Pick::At),
            None => {}
        }
        let (positions, drop) = matches(&coord.values, &label);
        match (positions.as_slice(), drop) {
            ([], _) => fail(missing(&coord, &label, value), span),
            ([at], true) => Ok(Pick::At(*at)),
            _ => Ok(run(positions)),
        }
    }

    /// `dim => lo:hi:step`.
    pub(crate) fn label_range(
        &mut self,
        t: &Tensor,
        axis: usize,
        slice: &Slice<'_>,
    ) -> Result<Pick, Error> {
        let mut bounds = [Value::Null, Value::Null];
        for (bound, expr) in bounds.iter_mut().zip([slice.lo, slice.hi]) {
            if let Some(expr) = expr {
                *bound = self.expr(expr)?;
            }
        }
        let step = match slice.step {
            Some(expr) => {
                let value = self.expr(expr)?;
                self.bound(value, span_of(expr))?
            }
            None => None,
        };
        let [lo, hi] = bounds;
        self.between(t, axis, lo, hi, step, slice.span)
    }

    /// Positions between two labels, both included, in the coordinate's own direction.
    fn between(
        &mut self,
        t: &Tensor,
        axis: usize,
        lo: Value,
        hi: Value,
        step: Option<i128>,
        span: Span,
    ) -> Result<Pick, Error> {
        let length = self.b.shape(t.node)[axis];
        let dim = t.dim_name(axis);
        let step = step.unwrap_or(1);
        if step <= 0 {
            return refuse(
                "a slice of labels",
                format!("the step {step}"),
                "must be at least 1; reverse with a second subscript `[::-1]`",
                span,
            );
        }
        let (start, end) = match t.dims[axis].coord.clone() {
            None => {
                let position = |value: &Value, none: i128| match value {
                    Value::Null => Ok(none),
                    Value::Int(v) => Ok(*v),
                    other => fail(invalid(&dim, other, "positions, as it has no coordinate"), span),
                };
                let start = position(&lo, 0)?.clamp(0, i128::from(length));
                let end = position(&hi, i128::from(length) - 1)?.saturating_add(1);
                (start as u64, end.clamp(0, i128::from(length)) as u64)
            }
            Some(coord) => {
                let read = |value: &Value| match value {
                    Value::Null => Ok(None),
                    value => label(&coord, value, span).map(Some),
                };
                let (from, to) = (read(&lo)?, read(&hi)?);
                if let (Some(from), Some(to)) = (&from, &to)
                    && let Some((end, start)) = across(&coord, from, to)
                {
                    // From the first label to the end of the circle, and on from its start.
                    let round = (start..length).chain(0..end);
                    let step = usize::try_from(step).unwrap_or(usize::MAX);
                    return Ok(Pick::list(round.step_by(step).collect()));
                }
                span_of_labels(&coord, from, to, [&lo, &hi], span)?
            }
        };
        let len = end.saturating_sub(start);
        let step = step.min(i128::from(length.max(1))) as u64;
        let len = len.div_ceil(step);
        Ok(Pick::Range { start: start as i64, step: step as i64, len })
    }
}

fn invalid(dim: &str, value: &Value, kind: &str) -> BindError {
    BindError::InvalidLabel { dim: dim.into(), label: value.show(), kind: kind.into() }
}

/// Converts a value to a label of a coordinate.
fn label(coord: &Coord, value: &Value, span: Span) -> Result<Label, Error> {
    if let Some(error) = BindError::no_labels(coord) {
        return fail(error, span);
    }
    let kind = match &coord.values {
        CoordValues::Int(..) => "integers".to_string(),
        CoordValues::Float(..) => "floats".to_string(),
        CoordValues::Time(calendar, _) => format!("times of the calendar {}", calendar.name()),
        CoordValues::Text(_) | CoordValues::Unreadable(_) => "texts".to_string(),
    };
    let found = match (&coord.values, value) {
        (CoordValues::Int(..), Value::Int(v)) => Some(Label::Integer(*v)),
        (CoordValues::Int(..), Value::Float(v)) => Some(Label::Number(*v)),
        // A literal takes the type of the labels.
        (CoordValues::Float(DType::Float32, _), Value::Float(v)) => {
            Some(Label::Number(f64::from(*v as f32)))
        }
        (CoordValues::Float(..), Value::Float(v)) => Some(Label::Number(*v)),
        (CoordValues::Float(..), Value::Int(v)) => Some(Label::Number(*v as f64)),
        (CoordValues::Text(_), Value::Str(text)) => Some(Label::Text(text.clone())),
        (CoordValues::Time(calendar, times), Value::Str(text)) => {
            // xarray asks pandas for standard calendars and cftime for others, where every text is a period.
            let exact = |span: i64| match calendar {
                Calendar::Standard => span <= resolution(times),
                _ => false,
            };
            parse_period(text, *calendar)
                .map(|(start, end)| Label::Period(start, end, exact(end - start)))
        }
        _ => None,
    };
    match found {
        Some(label) => Ok(label),
        None => fail(invalid(&coord.dim, value, &kind), span),
    }
}

/// The coarsest unit, at most a day, that divides all times: pandas' resolution of an index.
fn resolution(times: &[i64]) -> i64 {
    let units = [DAY_US, 3_600_000_000, 60_000_000, 1_000_000];
    let divides = |unit: &i64| times.iter().all(|&t| t == NAT || t % unit == 0);
    units.into_iter().find(divides).unwrap_or(1)
}

/// The positions that a label matches, and true if it is a single label (which drops the dimension).
fn matches(values: &CoordValues, label: &Label) -> (Vec<u64>, bool) {
    fn all<T>(values: &[T], test: impl Fn(&T) -> bool) -> Vec<u64> {
        (0..values.len()).filter(|&i| test(&values[i])).map(|i| i as u64).collect()
    }
    match (values, label) {
        (CoordValues::Int(d, v), Label::Integer(x)) => {
            (all(v, |y| CoordValues::integer(*d, *y) == *x), true)
        }
        (CoordValues::Int(d, v), Label::Number(x)) => {
            (all(v, |y| CoordValues::integer(*d, *y) as f64 == *x), true)
        }
        (CoordValues::Float(_, v), Label::Number(x)) => (all(v, |y| y == x), true),
        (CoordValues::Text(v), Label::Text(x)) => {
            let is_met = |i: &usize| v.at(*i) == Some(x.as_str());
            ((0..v.len()).filter(is_met).map(|i| i as u64).collect(), true)
        }
        (CoordValues::Time(_, v), Label::Period(start, _, true)) => (all(v, |y| y == start), true),
        (CoordValues::Time(_, v), Label::Period(start, end, false)) => {
            (all(v, |y| start <= y && y < end), false)
        }
        _ => (Vec::new(), true),
    }
}

/// Consecutive positions as a range.
fn run(positions: Vec<u64>) -> Pick {
    let first = positions.first().copied().unwrap_or(0);
    let is_run = positions.iter().enumerate().all(|(i, &p)| p == first + i as u64);
    match is_run {
        true => Pick::Range { start: first as i64, step: 1, len: positions.len() as u64 },
        false => Pick::list(positions),
    }
}

fn missing(coord: &Coord, label: &Label, value: &Value) -> BindError {
    let mut nearest = Vec::new();
    if let Some(far) = distances(&coord.values, label) {
        let mut order: Vec<usize> = (0..far.len()).collect();
        order.sort_by(|&a, &b| far[a].total_cmp(&far[b]));
        order.retain(|&i| !far[i].is_nan());
        order.truncate(2);
        order.sort_unstable();
        nearest = order.into_iter().map(|i| coord.values.display(i)).collect();
    } else if let CoordValues::Text(texts) = &coord.values {
        nearest = texts.iter().take(3).map(|text| format!("'{text}'")).collect();
    }
    BindError::LabelNotFound {
        dim: coord.dim.to_string(),
        label: value.show(),
        nearest,
        is_unordered: false,
        tolerance: None,
    }
}

/// The error for a label without a neighbour within the tolerance, which is in microseconds for times.
fn too_far(coord: &Coord, label: &Label, value: &Value, distance: f64) -> BindError {
    let unit = match coord.values {
        CoordValues::Time(..) => " µs",
        _ => "",
    };
    match missing(coord, label, value) {
        BindError::LabelNotFound { dim, label, nearest, is_unordered, .. } => {
            let tolerance = Some(format!("{distance}{unit}"));
            BindError::LabelNotFound { dim, label, nearest, is_unordered, tolerance }
        }
        other => other,
    }
}

fn nearest_label(
    coord: &Coord,
    label: &Label,
    value: &Value,
    tolerance: Option<f64>,
    span: Span,
) -> Result<u64, Error> {
    let Some(far) = distances(&coord.values, label) else {
        return fail(invalid(&coord.dim, value, "texts, which have no distances"), span);
    };
    let mut best: Option<usize> = None;
    for i in 0..far.len() {
        let better = match best {
            None => !far[i].is_nan(),
            // Of two equally near labels pandas takes the greater.
            Some(b) => far[i] < far[b] || (far[i] == far[b] && is_greater(&coord.values, i, b)),
        };
        if better {
            best = Some(i);
        }
    }
    match best {
        Some(i) if tolerance.is_none_or(|t| far[i] <= t) => Ok(i as u64),
        _ => match tolerance {
            Some(distance) => fail(too_far(coord, label, value, distance), span),
            None => fail(missing(coord, label, value), span),
        },
    }
}

/// The position of a label, or of the label before or behind it, as pandas' `pad` and `backfill`. A partial date counts
/// as its start.
fn neighbour(
    coord: &Coord,
    label: &Label,
    value: &Value,
    method: Method,
    span: Span,
) -> Result<u64, Error> {
    let values = &coord.values;
    let wanted = match label {
        Label::Period(start, ..) => Label::Period(*start, start.saturating_add(1), true),
        label => label.clone(),
    };
    let is_up = match direction(values) {
        Direction::Up => true,
        Direction::Down => false,
        Direction::Neither => {
            return refuse(
                "sel",
                "`method`",
                format!(
                    "needs sorted labels: those of `{dim}` neither rise nor fall throughout; \
                     `sortby(x, '{dim}')` sorts them",
                    dim = coord.dim
                ),
                span,
            );
        }
    };
    let is_before = |i: &usize| match is_up {
        true => before(values, *i, &wanted),
        false => after(values, *i, &wanted),
    };
    let is_behind = |i: &usize| match is_up {
        true => after(values, *i, &wanted),
        false => before(values, *i, &wanted),
    };
    let (found, tolerance) = match method {
        Method::Behind(tolerance) => ((0..values.len()).find(|i| !is_before(i)), tolerance),
        Method::Before(tolerance) | Method::Nearest(tolerance) => {
            ((0..values.len()).rev().find(|i| !is_behind(i)), tolerance)
        }
    };
    let Some(at) = found else { return fail(missing(coord, label, value), span) };
    if let Some(distance) = tolerance {
        let Some(far) = distances(values, label) else {
            return fail(invalid(&coord.dim, value, "texts, which have no distances"), span);
        };
        if far[at].is_nan() || far[at] > distance {
            return fail(too_far(coord, label, value, distance), span);
        }
    }
    Ok(at as u64)
}

/// The half-open span of positions from one label to another, both included.
fn span_of_labels(
    coord: &Coord,
    lo: Option<Label>,
    hi: Option<Label>,
    written: [&Value; 2],
    span: Span,
) -> Result<(u64, u64), Error> {
    let values = &coord.values;
    let n = values.len();
    let first = |test: &dyn Fn(usize) -> bool| (0..n).find(|&i| test(i)).unwrap_or(n) as u64;
    let (start, end) = match direction(values) {
        Direction::Up => (
            lo.map_or(0, |lo| first(&|i| !before(values, i, &lo))),
            hi.map_or(n as u64, |hi| first(&|i| after(values, i, &hi))),
        ),
        Direction::Down => (
            lo.map_or(0, |lo| first(&|i| !after(values, i, &lo))),
            hi.map_or(n as u64, |hi| first(&|i| before(values, i, &hi))),
        ),
        // Without an order both labels must exist, be unique, and be in this order.
        Direction::Neither => {
            let only = |label: Label, value: &Value| match matches(values, &label).0.as_slice() {
                [at] => Ok(*at),
                [] => fail(unordered(missing(coord, &label, value)), span),
                _ => refuse(
                    "a slice of labels",
                    format!("the label {}", value.show()),
                    format!("occurs several times in `{}`, which is not sorted", coord.dim),
                    span,
                ),
            };
            let start = lo.map_or(Ok(0), |lo| only(lo, written[0]))?;
            let end = hi.map_or(Ok(n as u64), |hi| only(hi, written[1]).map(|at| at + 1))?;
            if start >= end && end > 0 {
                return refuse(
                    "a slice of labels",
                    format!("{}:{}", written[0].show(), written[1].show()),
                    format!(
                        "is empty: the labels of `{dim}` are not sorted, and {} comes before {}; \
                         `sortby(x, '{dim}')` sorts them",
                        written[1].show(),
                        written[0].show(),
                        dim = coord.dim,
                    ),
                    span,
                );
            }
            (start, end)
        }
    };
    Ok((start, end.max(start)))
}

/// For a slice over the seam of a full circle of longitudes, as `345:15` of 0 to 359: the end of the positions up to
/// the second label, and the first position from the first label on.
fn across(coord: &Coord, lo: &Label, hi: &Label) -> Option<(u64, u64)> {
    let at = |label: &Label| match label {
        Label::Number(x) => Some(*x),
        Label::Integer(x) => Some(*x as f64),
        _ => None,
    };
    if at(lo)? <= at(hi)? || !is_circle(coord) {
        return None;
    }
    let n = coord.values.len();
    let first = |test: &dyn Fn(usize) -> bool| (0..n).find(|&i| test(i)).unwrap_or(n) as u64;
    let end = first(&|i| after(&coord.values, i, hi));
    let start = first(&|i| !before(&coord.values, i, lo));
    Some((end, start))
}

/// True if labels are longitudes, by CF attributes or by name, that ascend evenly once around the globe.
fn is_circle(coord: &Coord) -> bool {
    const UNITS: [&str; 6] =
        ["degrees_east", "degree_east", "degree_E", "degrees_E", "degreeE", "degreesE"];
    let text = |key: &str| coord.attrs.get(key).and_then(|value| value.as_str());
    let is_longitude = text("units").is_some_and(|units| UNITS.contains(&units))
        || text("standard_name") == Some("longitude")
        || ["lon", "longitude"].contains(&coord.name.to_ascii_lowercase().as_str());
    let labels: Option<Vec<f64>> =
        (0..coord.values.len()).map(|i| place(&coord.values, i)).collect();
    let Some(labels) = labels.filter(|labels| is_longitude && labels.len() > 1) else {
        return false;
    };
    let step = 360.0 / labels.len() as f64;
    // Labels of float32 are even to some seven digits.
    labels.windows(2).all(|pair| (pair[1] - pair[0] - step).abs() <= step * 1e-3)
}

/// Marks the error for a missing label at either end of a range of unordered labels.
fn unordered(error: BindError) -> BindError {
    match error {
        BindError::LabelNotFound { dim, label, nearest, tolerance, .. } => {
            BindError::LabelNotFound { dim, label, nearest, is_unordered: true, tolerance }
        }
        other => other,
    }
}
