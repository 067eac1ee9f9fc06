//! Parts of dates, and now.

use tessera_planner::dtype::{Calendar, DType};
use tessera_planner::scalar::Scalar;

use super::{Bound, Function, Open, row};
use crate::error::Error;
use crate::lower::value::{Tensor, Value};
use crate::lower::{At, Lowerer, fail};

const MASKS: &str = "masked cells stay masked";
const TYPES: &str = "datetimes of any calendar give int64";

macro_rules! part {
    ($name:literal, $doc:literal, $numpy:literal) => {
        row(
            $name,
            concat!($name, "(time)"),
            &["time"],
            1,
            Open::No,
            part,
            $doc,
            TYPES,
            MASKS,
            concat!("SELECT ", $name, "(time) FROM era5"),
            $numpy,
        )
    };
}

pub(super) const ROWS: &[Function] = &[
    part!("year", "Year.", "xarray: time.dt.year"),
    part!("quarter", "Quarter of the year, 1 to 4.", "xarray: time.dt.quarter"),
    part!("month", "Month, 1 to 12.", "xarray: time.dt.month"),
    part!("week", "ISO week, 1 to 53.", "xarray: time.dt.isocalendar().week"),
    part!("day", "Day of the month.", "xarray: time.dt.day"),
    part!("dayofyear", "Day of the year, from 1.", "xarray: time.dt.dayofyear"),
    part!("dayofweek", "Day of the week, Monday is 0.", "xarray: time.dt.dayofweek"),
    part!("hour", "Hour, 0 to 23.", "xarray: time.dt.hour"),
    part!("minute", "Minute, 0 to 59.", "xarray: time.dt.minute"),
    part!("second", "Second, 0 to 59.", "xarray: time.dt.second"),
    part!("season", "Season: 0 is December to February, then 1 to 3.", "xarray: time.dt.season"),
    row(
        "date_part",
        "date_part(part, time)",
        &["part", "time"],
        2,
        Open::No,
        date_part,
        "A part of a date by its name.",
        TYPES,
        MASKS,
        "SELECT date_part('month', time) FROM era5",
        "xarray: time.dt.month",
    ),
    row(
        "now",
        "now()",
        &[],
        0,
        Open::No,
        now,
        "The moment at which the statement was accepted.",
        "gives a datetime",
        "never masked",
        "SELECT now()",
        "numpy.datetime64('now')",
    ),
];

fn part(l: &mut Lowerer<'_, '_>, a: &Bound<'_>) -> Result<Value, Error> {
    let time = a.value(l, "time")?;
    l.date_part(time, a.name, a.span).map(Value::Tensor)
}

fn date_part(l: &mut Lowerer<'_, '_>, a: &Bound<'_>) -> Result<Value, Error> {
    let Some(part) = a.text(l, "part")? else {
        return fail(a.invalid("`part`", "must be the name of a part"), a.place("part"));
    };
    let time = a.value(l, "time")?;
    l.date_part(time, &part.to_ascii_lowercase(), a.span).map(Value::Tensor)
}

fn now(l: &mut Lowerer<'_, '_>, a: &Bound<'_>) -> Result<Value, Error> {
    let now = Scalar::i64(l.context.now_us).cast(DType::Datetime(Calendar::Standard));
    let node = l.b.constant(now).at(a.span)?;
    Ok(Value::Tensor(Tensor::unnamed(node, 0)))
}
