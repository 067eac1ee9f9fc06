//! `isel` and `sel`: positions and labels by the names of dimensions.

use super::{Bound, Row, row};
use crate::error::Error;
use crate::lower::value::Value;
use crate::lower::{Lowerer, Method, Pick, span_of};

pub(super) const ROWS: &[Row] = &[
    row(
        "isel(x, dim => position, …)",
        isel,
        "Positions along named dimensions: an integer (the dimension goes), `slice(lo, hi, \
         step)`, or a list.",
    )
    .missing("masks go with their cells")
    .example("SELECT isel(t2m, time => slice(0, 24), lat => -1) FROM era5")
    .numpy("xarray.DataArray.isel"),
    row(
        "sel(x, dim => label, …, method => NULL, tolerance => NULL)",
        sel,
        "Labels along named dimensions: exact, or with `method` the nearest ones ('nearest'), or \
         exact ones and else those before ('pad', 'ffill') or behind them ('backfill', 'bfill'), \
         at most `tolerance` away.",
    )
    .missing("masks go with their cells")
    .example("SELECT sel(t2m, lat => 51.5, lon => -0.1, method => 'nearest') FROM era5")
    .numpy("xarray.DataArray.sel"),
    row(
        "slice(lo, hi => NULL, step => NULL)",
        slice,
        "A slice as an argument of `isel` (end excluded) and `sel` (both ends included); of \
         one argument it is the end.",
    )
    .dtypes("integers or labels")
    .missing("NULL is an open end")
    .example("SELECT isel(t2m, time => slice(0, 24)) FROM era5")
    .numpy("slice"),
];

fn slice(l: &mut Lowerer<'_, '_>, a: &Bound<'_>) -> Result<Value, Error> {
    let first = a.value(l, "lo")?;
    let step = a.value(l, "step")?;
    Ok(Value::Slice(Box::new(match a.expr("hi") {
        None => [Value::Null, first, step],
        Some(_) => [first, a.value(l, "hi")?, step],
    })))
}

fn isel(l: &mut Lowerer<'_, '_>, a: &Bound<'_>) -> Result<Value, Error> {
    let t = a.tensor(l, "x")?;
    let mut picks = vec![Pick::All; t.dims.len()];
    for &(name, expr) in &a.dims {
        let axis = l.named_axis(&t, name)?;
        let value = l.expr(expr)?;
        picks[axis] = l.position(&t, axis, value, span_of(expr))?;
    }
    l.pick(t, &picks, a.span).map(Value::Tensor)
}

fn sel(l: &mut Lowerer<'_, '_>, a: &Bound<'_>) -> Result<Value, Error> {
    let t = a.tensor(l, "x")?;
    let tolerance = a.float(l, "tolerance")?;
    let method = match a.text(l, "method")?.as_deref() {
        None => None,
        Some("nearest") => Some(Method::Nearest(tolerance)),
        Some("pad" | "ffill") => Some(Method::Before(tolerance)),
        Some("backfill" | "bfill") => Some(Method::Behind(tolerance)),
        Some(other) => {
            let methods = "'nearest', 'pad', 'ffill', 'backfill' or 'bfill'";
            return a.refuse("method", format!("is '{other}'; it must be {methods}"));
        }
    };
    let mut picks = vec![Pick::All; t.dims.len()];
    for &(name, expr) in &a.dims {
        let axis = l.named_axis(&t, name)?;
        let coords = t.dims.iter().filter_map(|dim| dim.coord.clone()).collect();
        let value = l.with_locals(coords, |l| l.expr(expr))?;
        picks[axis] = l.label_pick(&t, axis, value, method, span_of(expr))?;
    }
    l.pick(t, &picks, a.span).map(Value::Tensor)
}
