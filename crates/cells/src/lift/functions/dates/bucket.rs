//! `time_bucket(width, t[, offset or origin])`: the start of the interval of that width in which a time lies.
//!
//! Widths without months count from Monday, 3 January 2000, those of months from January 2000, as in DuckDB.

use std::sync::Arc;

use arrow::array::{Array, ArrayRef, AsArray, Date32Array, Int64Array};
use arrow::compute::cast;
use arrow::datatypes::{
    DataType, Field, FieldRef, IntervalMonthDayNano, IntervalMonthDayNanoType, TimeUnit,
};
use datafusion::common::{Result, exec_err, plan_err};
use datafusion::logical_expr::{
    ColumnarValue, Documentation, ReturnFieldArgs, ScalarFunctionArgs, ScalarUDF, ScalarUDFImpl,
    Signature, Volatility,
};
use tessera_planner::dtype::{Calendar, DType};
use tessera_planner::time::{DAY_US, DateTime, Truncation, join, moved, split};

use super::super::hashes::is_text;
use super::super::inner::scalar;
use super::{INTERVAL, beyond, calendar_of, days_since_1970, micros, shown, time_type, zone_of};
use crate::clock;
use crate::lift::error::spoken;
use crate::lift::table::field;

const NAME: &str = "time_bucket";

pub(super) fn function() -> ScalarUDF {
    let documentation = super::super::documented(
        "time_bucket(width, t[, offset])",
        "The start of the interval of that width in which a time lies; an offset moves the starts, a time is one of them.",
    );
    Bucket { signature: Signature::user_defined(Volatility::Immutable), documentation }.into()
}

#[derive(Debug, PartialEq, Eq, Hash)]
struct Bucket {
    signature: Signature,
    documentation: Documentation,
}

/// The origin of the intervals.
#[derive(Debug, Clone, Copy)]
enum Place {
    Usual,
    MovedBy(IntervalMonthDayNano),
    /// An interval starts at this time.
    At(i64),
}

/// The start of the interval in which a time lies.
fn start(us: i64, width: IntervalMonthDayNano, place: Place, calendar: Calendar) -> Result<i64> {
    let by = |us: i64, by: IntervalMonthDayNano, sign: i64| {
        let (months, days) = (i64::from(by.months) * sign, i64::from(by.days) * sign);
        moved(us, months, days, by.nanoseconds / 1000 * sign, calendar).ok_or_else(beyond)
    };
    match place {
        Place::MovedBy(offset) => {
            let start = aligned(by(us, offset, -1)?, width, None, calendar)?;
            by(start, offset, 1)
        }
        Place::At(origin) => aligned(us, width, Some(origin), calendar),
        Place::Usual => aligned(us, width, None, calendar),
    }
}

fn aligned(
    us: i64,
    width: IntervalMonthDayNano,
    origin: Option<i64>,
    calendar: Calendar,
) -> Result<i64> {
    let IntervalMonthDayNano { months, days, nanoseconds } = width;
    if months != 0 && (days != 0 || nanoseconds != 0) {
        return exec_err!("`{NAME}`: a width of months has no days and no time");
    }
    let first = |month: i64, day: u32| {
        let (year, month) = (month.div_euclid(12), month.rem_euclid(12) as u32 + 1);
        join(DateTime { year, month, day, micros: 0 }, calendar).ok_or_else(beyond)
    };
    let month = |us: i64| {
        let t = split(us, calendar);
        t.year * 12 + i64::from(t.month) - 1
    };
    let years = 2000 * 12;
    if months != 0 {
        let width = positive(i64::from(months))?;
        let origin = origin.map_or(years, month);
        return first(origin + (month(us) - origin).div_euclid(width) * width, 1);
    }
    let width = i64::from(days).checked_mul(DAY_US);
    let width = width.and_then(|us| us.checked_add(nanoseconds / 1000)).ok_or_else(beyond)?;
    let width = positive(width)?;
    let origin = match origin {
        Some(origin) => origin,
        // In other calendars another day is the Monday.
        None => Truncation::Week.of(first(years, 3)?, calendar),
    };
    let since = us.checked_sub(origin).ok_or_else(beyond)?;
    us.checked_sub(since.rem_euclid(width)).ok_or_else(beyond)
}

fn positive(width: i64) -> Result<i64> {
    match width > 0 {
        true => Ok(width),
        false => exec_err!("`{NAME}`: the width must be greater than 0, in whole microseconds"),
    }
}

impl ScalarUDFImpl for Bucket {
    scalar!(name NAME, documentation, signature, type_by_field);

    fn coerce_types(&self, types: &[DataType]) -> Result<Vec<DataType>> {
        let (width, time, place) = match types {
            [width, time] => (width, time, None),
            [width, time, place] => (width, time, Some(place)),
            _ => return plan_err!("`{NAME}` takes a width, a time, and an offset or an origin"),
        };
        if !(matches!(width, DataType::Interval(_)) || width.is_null() || is_text(width)) {
            let width = spoken(&width.to_string());
            return plan_err!("the width of `{NAME}` must be an interval, not {width}");
        }
        let time = match time {
            DataType::Date32 => DataType::Date32,
            other => time_type(NAME, other)?,
        };
        let mut all = vec![INTERVAL, time];
        match place {
            Some(DataType::Interval(_)) => all.push(INTERVAL),
            Some(origin) => all.push(time_type(NAME, origin)?),
            None => {}
        }
        Ok(all)
    }

    fn return_field_from_args(&self, args: ReturnFieldArgs<'_>) -> Result<FieldRef> {
        let [_, time, place @ ..] = args.arg_fields else {
            return plan_err!("`{NAME}` takes a width and a time");
        };
        let calendar = calendar_of(NAME, time)?;
        if let [origin] = place
            && !matches!(origin.data_type(), DataType::Interval(_))
            && calendar_of(NAME, origin)? != calendar
        {
            return plan_err!("`{NAME}` takes a time and an origin of one calendar");
        }
        let is_nullable = args.arg_fields.iter().any(|field| field.is_nullable());
        Ok(Arc::new(match calendar {
            Calendar::Standard => Field::new(NAME, time.data_type().clone(), is_nullable),
            other => field(NAME, DType::Datetime(other), is_nullable),
        }))
    }

    fn invoke_with_args(&self, args: ScalarFunctionArgs) -> Result<ColumnarValue> {
        let [_, time, ..] = args.arg_fields.as_slice() else {
            return exec_err!("`{NAME}` takes a width and a time");
        };
        let (calendar, zone) = (calendar_of(NAME, time)?, zone_of(time.data_type())?);
        let is_scalar = args.args.iter().all(|arg| matches!(arg, ColumnarValue::Scalar(_)));
        let arrays = ColumnarValue::values_to_arrays(&args.args)?;
        let [widths, times, places @ ..] = arrays.as_slice() else {
            return exec_err!("`{NAME}` takes a width and a time");
        };
        let (widths, times) = (widths.as_primitive::<IntervalMonthDayNanoType>(), micros(times)?);
        let offsets = places.first().and_then(|p| p.as_primitive_opt::<IntervalMonthDayNanoType>());
        let origins = match places.first() {
            Some(origins) if offsets.is_none() => {
                Some((micros(origins)?, zone_of(origins.data_type())?))
            }
            _ => None,
        };
        let mut starts = Vec::with_capacity(times.len());
        for row in 0..times.len() {
            if times.is_null(row) || widths.is_null(row) || places.iter().any(|p| p.is_null(row)) {
                starts.push(None);
                continue;
            }
            let place = match (&offsets, &origins) {
                (Some(offsets), _) => Place::MovedBy(offsets.value(row)),
                // Beside a time with a zone, a time without one is in UTC.
                (None, Some((origins, own))) => {
                    Place::At(shown(origins.value(row), own.or(zone).filter(|_| zone.is_some()))?)
                }
                (None, None) => Place::Usual,
            };
            let us = shown(times.value(row), zone)?;
            let first = start(us, widths.value(row), place, calendar)?;
            starts.push(Some(match zone {
                Some(zone) => {
                    let instant = clock::instant(first, TimeUnit::Microsecond, zone);
                    instant.ok_or_else(beyond)?
                }
                None => first,
            }));
        }
        let starts = starts.into_iter();
        let out: ArrayRef = match args.return_field.data_type() {
            DataType::Date32 => {
                let days = starts.map(|us| us.map(days_since_1970).transpose());
                Arc::new(days.collect::<Result<Date32Array>>()?)
            }
            DataType::Int64 => Arc::new(starts.collect::<Int64Array>()),
            of => cast(&starts.collect::<Int64Array>(), of)?,
        };
        super::super::columnar(out, is_scalar)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]
    use super::*;
    use tessera_planner::time::{format_micros, parse_period};

    /// Expected values from DuckDB 2.0.
    #[test]
    fn starts_match_duckdb() {
        let us = |text: &str| parse_period(text, Calendar::Standard).unwrap().0;
        let of = |months, days, hours: i64| {
            IntervalMonthDayNano::new(months, days, hours * 3_600_000_000_000)
        };
        for (width, time, place, want) in [
            (of(0, 0, 7), "1999-03-05T11:12:13", Place::Usual, "1999-03-05T09:00:00"),
            (of(0, 14, 0), "2020-03-05", Place::Usual, "2020-03-02T00:00:00"),
            (of(0, 2, 0), "1969-03-05T10:00", Place::Usual, "1969-03-04T00:00:00"),
            (of(5, 0, 0), "2020-03-05", Place::Usual, "2020-01-01T00:00:00"),
            (of(5, 0, 0), "2020-03-05", Place::At(us("2019-12-15")), "2019-12-01T00:00:00"),
            (of(5, 0, 0), "2020-03-05", Place::MovedBy(of(1, 3, 0)), "2020-02-04T00:00:00"),
        ] {
            let found = start(us(time), width, place, Calendar::Standard).unwrap();
            assert_eq!(format_micros(found, Calendar::Standard), want, "{width:?} {time}");
        }
        for width in [of(0, 0, 0), of(0, -1, 0), of(-1, 0, 0), of(1, 1, 0)] {
            assert!(start(0, width, Place::Usual, Calendar::Standard).is_err(), "{width:?}");
        }
    }
}
