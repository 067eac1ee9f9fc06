//! Functions that change labels and leave cells unchanged.

use std::sync::Arc;

use sqlparser::ast::{Expr, Ident};
use sqlparser::tokenizer::Span;
use tessera_planner::catalog::{Attrs, Coord, CoordValues, NAT};
use tessera_planner::dtype::DType;

use super::{Bound, Row, row};
use crate::error::{BindError, Error};
use crate::labels::first_difference;
use crate::lower::value::{Dim, Tensor, Value};
use crate::lower::{Lowerer, Pick, fail, misshapen, span_of, unknown_dim};

const MOVE: &str = "masks go with their cells";

pub(super) const ROWS: &[Row] = &[
    row(
        "values(x)",
        drop_coords,
        "The cells under the same names of dimensions and without labels, so that operands \
         meet by position.",
    )
    .missing(MOVE)
    .example("SELECT values(t2m[12:]) - values(t2m[:-12]) FROM era5")
    .numpy("xarray: x.drop_vars(x.coords)"),
    row(
        "drop_coords(x, 'dim', …)",
        drop_coords,
        "Without the labels of these dimensions, or of all of them if none is given.",
    )
    .missing(MOVE)
    .example("SELECT drop_coords(t2m, 'time') FROM era5")
    .numpy("xarray.DataArray.drop_vars"),
    row(
        "assign_coords(x, dim => labels, …)",
        assign_coords,
        "Other labels for dimensions: an expression of one dimension (coordinates of x are in \
         sight), or a list of numbers, dates or texts.",
    )
    .dtypes("integers, floats, dates and texts as labels")
    .missing("masks go with their cells; a masked label is NaN among floats, else an error")
    .example("SELECT assign_coords(t2m, lon => (lon + 180) % 360 - 180) FROM era5")
    .numpy("xarray.DataArray.assign_coords"),
    row(
        "swap_dims(x, old, new)",
        swap_dims,
        "The dimension `old` called `new`, with the labels of the coordinate `new` along it, \
         without labels if there is no such coordinate.",
    )
    .missing(MOVE)
    .example("SELECT swap_dims(t2m, 'time', 'step') FROM era5")
    .numpy("xarray.DataArray.swap_dims"),
    row(
        "sortby(x, dim, descending => false)",
        sortby,
        "The positions of a dimension in the order of its labels; NaN and missing times are \
         last.",
    )
    .missing(MOVE)
    .example("SELECT sortby(assign_coords(t2m, lon => (lon + 180) % 360 - 180), 'lon') FROM era5")
    .numpy("xarray.DataArray.sortby"),
];

fn drop_coords(l: &mut Lowerer<'_, '_>, a: &Bound<'_>) -> Result<Value, Error> {
    let mut t = a.tensor(l, "x")?;
    let mut axes = Vec::with_capacity(a.rest.len());
    for &expr in &a.rest {
        let value = l.expr(expr)?;
        axes.push(a.one_axis(l, &t, "x", value, t.dims.len())?);
    }
    for (axis, dim) in t.dims.iter_mut().enumerate() {
        if a.rest.is_empty() || axes.contains(&axis) {
            *dim = dim.bare();
        }
    }
    Ok(Value::Tensor(t))
}

fn assign_coords(l: &mut Lowerer<'_, '_>, a: &Bound<'_>) -> Result<Value, Error> {
    let mut t = a.tensor(l, "x")?;
    if a.dims.is_empty() {
        return fail(a.invalid("a dimension", "must be given, as in `lon => lon - 180`"), a.span);
    }
    // All argument expressions see the labels that x had before the call.
    let coords: Vec<Arc<Coord>> = t.dims.iter().filter_map(|dim| dim.coord.clone()).collect();
    for &(name, expr) in &a.dims {
        let axis = l.named_axis(&t, name)?;
        let Some(dim) = t.dims[axis].name.clone() else {
            let reason = format!(
                "has no name, which labels need; write `rename(x, {} => 'name')` first",
                name.value
            );
            return fail(a.invalid(&format!("`{}`", name.value), reason), name.span);
        };
        let values = labels(l, a, &name.value, expr, coords.clone())?;
        let length = l.b.shape(t.node)[axis];
        if values.len() as u64 != length {
            return misshapen(
                a.name,
                &[[length], [values.len() as u64]],
                format!("`{dim}` needs one label for each of its {length} positions"),
                span_of(expr),
            );
        }
        // Units and long names are preserved while the labels are of one kind.
        let attrs = match &t.dims[axis].coord {
            Some(old) if kind(&old.values) == kind(&values) => old.attrs.clone(),
            _ => Attrs::new(),
        };
        let coord = Coord { name: dim.clone(), dim: dim.clone(), values, attrs };
        t.dims[axis] = Dim { name: Some(dim), coord: Some(Arc::new(coord)), group: None };
    }
    Ok(Value::Tensor(t))
}

/// The kind of the labels: numbers, times or texts.
fn kind(values: &CoordValues) -> u8 {
    match values {
        CoordValues::Int(..) | CoordValues::Float(..) => 0,
        CoordValues::Time(..) => 1,
        CoordValues::Text(_) => 2,
        CoordValues::Unreadable(_) => 3,
    }
}

fn labels(
    l: &mut Lowerer<'_, '_>,
    a: &Bound<'_>,
    name: &str,
    expr: &Expr,
    coords: Vec<Arc<Coord>>,
) -> Result<CoordValues, Error> {
    let place = span_of(expr);
    let argument = format!("`{name}`");
    if let Expr::Identifier(ident) = expr
        && let Some(coord) = coords.iter().find(|coord| *coord.name == *ident.value)
    {
        return Ok(coord.values.clone());
    }
    let value = l.with_locals(coords, |l| l.expr(expr))?;
    if let Value::List(items) = &value
        && let Some(texts) = texts(items)
    {
        return Ok(CoordValues::Text(texts.into()));
    }
    let t = l.tensor(value, place)?;
    if t.dims.len() != 1 {
        let reason = format!("must have one dimension, not {}", t.dims.len());
        return fail(a.invalid(&argument, reason), place);
    }
    values_of(l, a, &argument, &t, place)
}

/// A list of texts that are not dates.
fn texts(items: &[Value]) -> Option<Vec<String>> {
    let texts: Vec<String> = items
        .iter()
        .map(|item| match item {
            Value::Str(text) => Some(text.clone()),
            _ => None,
        })
        .collect::<Option<_>>()?;
    let calendar = tessera_planner::dtype::Calendar::Standard;
    let is_date = |text: &String| tessera_planner::time::parse_period(text, calendar).is_some();
    (!texts.is_empty() && !texts.iter().all(is_date)).then_some(texts)
}

/// The cells of a 1-d tensor as labels.
fn values_of(
    l: &mut Lowerer<'_, '_>,
    a: &Bound<'_>,
    argument: &str,
    t: &Tensor,
    place: Span,
) -> Result<CoordValues, Error> {
    let dtype = l.b.dtype(t.node);
    if dtype == DType::Bool {
        return fail(a.invalid(argument, "must be numbers, dates or texts, not bool"), place);
    }
    let cells = l.cells(t, &format!("labels of `{}`", a.name), place)?;
    if dtype.is_float() {
        let values = cells.iter().map(|cell| cell.map_or(f64::NAN, |v| v.as_f64())).collect();
        return Ok(CoordValues::Float(dtype, values));
    }
    let mut values = Vec::with_capacity(cells.len());
    for (at, cell) in cells.iter().enumerate() {
        match cell {
            Some(cell) => values.push(cell.as_i128() as i64),
            None => {
                return fail(a.invalid(argument, format!("is NULL at position {at}")), place);
            }
        }
    }
    Ok(match dtype {
        DType::Datetime(calendar) => CoordValues::Time(calendar, values.into()),
        dtype => CoordValues::Int(dtype, values.into()),
    })
}

fn swap_dims(l: &mut Lowerer<'_, '_>, a: &Bound<'_>) -> Result<Value, Error> {
    let mut t = a.tensor(l, "x")?;
    let (Some(old), Some(new)) = (a.text(l, "old")?, a.text(l, "new")?) else {
        return fail(a.invalid("`old` and `new`", "must be names"), a.span);
    };
    let Some(axis) = t.axis(&old) else { return Err(unknown_dim(&t, &old, a.place("old"))) };
    if t.axis(&new).is_some_and(|other| other != axis) {
        return a.refuse("new", format!("is '{new}', which is another dimension of the tensor"));
    }
    let name: Arc<str> = new.into();
    let labels = along(l, a, &t, axis, &name)?;
    let coord = labels.map(|(values, attrs)| {
        Arc::new(Coord { name: name.clone(), dim: name.clone(), values, attrs })
    });
    t.dims[axis] = Dim { name: Some(name), coord, group: None };
    Ok(Value::Tensor(t))
}

/// The labels of the coordinate or variable called `name` along a dimension of `t`.
fn along(
    l: &mut Lowerer<'_, '_>,
    a: &Bound<'_>,
    t: &Tensor,
    axis: usize,
    name: &Arc<str>,
) -> Result<Option<(CoordValues, Attrs)>, Error> {
    let place = a.place("new");
    let dim = t.dim_name(axis);
    let known = l.coordinate_along(name, &dim);
    let (values, attrs, index) = match known {
        Some((coord, index)) => (coord.values.clone(), coord.attrs.clone(), index),
        None => match l.name(&Ident::with_span(place, name.to_string())) {
            Err(Error::UnknownName { .. }) => return Ok(None),
            Err(error) => return Err(error),
            Ok(Value::Tensor(one)) if one.dims.len() == 1 && one.dim_name(0) == dim => {
                let values = values_of(l, a, "`new`", &one, place)?;
                (values, one.attrs.clone(), one.dims[0].coord.clone())
            }
            Ok(_) => {
                let reason = format!("is '{name}', which does not lie along `{dim}` alone");
                return fail(a.invalid("`new`", reason), place);
            }
        },
    };
    // For a slice of the dimension, the labels at its positions.
    let own = t.dims[axis].coord.as_ref().map(|coord| &coord.values);
    let length = l.b.shape(t.node)[axis];
    match (own, index.as_ref().map(|coord| &coord.values)) {
        (Some(own), Some(index)) if first_difference(own, index).is_some() => {
            let at = |i: usize| own.display(i);
            let mut positions = Vec::with_capacity(own.len());
            for i in 0..own.len() {
                match (0..index.len()).find(|&j| index.display(j) == at(i)) {
                    Some(j) => positions.push(j as u64),
                    None => {
                        let error = BindError::NotAligned {
                            dim,
                            at: i,
                            left: at(i),
                            right: "no such label".into(),
                        };
                        return fail(error, place);
                    }
                }
            }
            Ok(Some((values.take(&positions), attrs)))
        }
        _ if values.len() as u64 == length => Ok(Some((values, attrs))),
        _ => misshapen(
            a.name,
            &[[length], [values.len() as u64]],
            format!("`{name}` needs one label for each position of `{dim}`"),
            place,
        ),
    }
}

fn sortby(l: &mut Lowerer<'_, '_>, a: &Bound<'_>) -> Result<Value, Error> {
    let t = a.tensor(l, "x")?;
    let Some(axis) = a.axis(l, &t, "dim")? else {
        return a.refuse("dim", "must be the name of a dimension");
    };
    let Some(coord) = &t.dims[axis].coord else {
        return a.refuse("dim", format!("is `{}`, which has no labels", t.dim_name(axis)));
    };
    if let Some(error) = BindError::no_labels(coord) {
        return fail(error, a.place("dim"));
    }
    let mut order = crate::lower::ascending(&coord.values);
    if a.flag(l, "descending")? {
        // NaN and missing times stay last. Of equal labels the last comes first, as in xarray.
        let known = match &coord.values {
            CoordValues::Float(_, v) => v.iter().filter(|v| !v.is_nan()).count(),
            CoordValues::Time(_, v) => v.iter().filter(|v| **v != NAT).count(),
            values => values.len(),
        };
        order[..known].reverse();
        order[known..].reverse();
    }
    let mut picks = vec![Pick::All; t.dims.len()];
    picks[axis] = Pick::list(order);
    let name = t.name.clone();
    let sorted = l.pick(t, &picks, a.span)?;
    Ok(Value::Tensor(Tensor { name, ..sorted }))
}
