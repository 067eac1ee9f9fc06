//! `date_part(part, time)` for any calendar, and `epoch` of intervals.
//!
//! `epoch` is the seconds since 1970-01-01 of that calendar, as `float64`; of an interval its seconds, where a year has
//! 365.25 days and a month 30, as in PostgreSQL and DuckDB. `decade`, `century` and `millennium` follow from the year.

use std::sync::Arc;

use arrow::array::{AsArray, Float64Array, Int32Array, IntervalMonthDayNanoArray};
use arrow::compute::cast;
use arrow::datatypes::{
    DataType, Field, FieldRef, Int32Type, Int64Type, IntervalMonthDayNano,
    IntervalMonthDayNanoType, IntervalUnit, TimeUnit,
};
use datafusion::common::{Result, ScalarValue, exec_err, plan_err};
use datafusion::logical_expr::{
    ColumnarValue, ReturnFieldArgs, ScalarFunctionArgs, ScalarUDF, ScalarUDFImpl, Signature,
    Volatility,
};
use tessera_planner::dtype::Calendar;
use tessera_planner::time::DatePart;

use super::inner::{of_inner, scalar};
use crate::lift::table::calendar;
use crate::type_name;

/// DataFusion's `date_part`, extended to times of calendars that Arrow does not support: `int32` too.
#[derive(Debug, PartialEq, Eq, Hash)]
pub(super) struct DatePartOf {
    inner: Arc<ScalarUDF>,
    signature: Signature,
}

impl DatePartOf {
    pub(super) fn new(inner: Arc<ScalarUDF>) -> Self {
        Self { inner, signature: Signature::user_defined(Volatility::Immutable) }
    }
}

/// The calendar of a time that is stored as `int64`; `None` for other integers.
fn other_calendar(field: Option<&FieldRef>) -> Result<Option<Calendar>> {
    match field {
        Some(field) if *field.data_type() == DataType::Int64 => match calendar(field) {
            Some(calendar) => Ok(Some(calendar)),
            None => plan_err!("date_part takes a time, not int64"),
        },
        _ => Ok(None),
    }
}

/// The years of a part that is longer than a year; `None` for other parts.
pub(super) fn years_of(part: &ScalarValue) -> Option<i32> {
    match part.try_as_str().flatten()?.to_lowercase().as_str() {
        "decade" | "decades" => Some(10),
        "century" | "centuries" => Some(100),
        "millennium" | "millennia" | "millenium" => Some(1000),
        _ => None,
    }
}

/// The part of a year: the years 2001 to 2100 are those of the century 21, 2020 to 2029 those of the decade 202. An
/// interval has the whole ones.
fn of_year(year: i32, years: i32, is_span: bool) -> i32 {
    match year {
        _ if is_span || years == 10 => year / years,
        1.. => (year - 1) / years + 1,
        _ => year / years - 1,
    }
}

/// The seconds of intervals; `None` for other parts and other values.
fn epoch_of_interval(args: &[ColumnarValue]) -> Result<Option<ColumnarValue>> {
    let [ColumnarValue::Scalar(part), value] = args else { return Ok(None) };
    let is_epoch =
        matches!(part.try_as_str(), Some(Some(part)) if part.eq_ignore_ascii_case("epoch"));
    if !is_epoch {
        return Ok(None);
    }
    let seconds = |of: IntervalMonthDayNano| {
        let years = f64::from(of.months / 12) * 365.25;
        let days = years + f64::from(of.months % 12) * 30.0 + f64::from(of.days);
        days * 86_400.0 + of.nanoseconds as f64 / 1e9
    };
    let is_scalar = matches!(value, ColumnarValue::Scalar(_));
    let values = value.to_array(1)?;
    let seconds: Float64Array = match values.data_type() {
        DataType::Interval(IntervalUnit::MonthDayNano) => {
            let values = values.as_primitive::<IntervalMonthDayNanoType>().iter();
            values.map(|of| of.map(seconds)).collect()
        }
        // DataFusion's has no parts of a second of long ones.
        DataType::Duration(unit) => {
            let of_second = match unit {
                TimeUnit::Second => 1.0,
                TimeUnit::Millisecond => 1e3,
                TimeUnit::Microsecond => 1e6,
                TimeUnit::Nanosecond => 1e9,
            };
            let values = cast(&values, &DataType::Int64)?;
            let values = values.as_primitive::<Int64Type>().iter();
            values.map(|of| of.map(|of| of as f64 / of_second)).collect()
        }
        _ => return Ok(None),
    };
    super::columnar(Arc::new(seconds), is_scalar).map(Some)
}

/// Differences of times as intervals of whole days and the rest: their hours are below 24, as in DuckDB and PostgreSQL.
fn in_days(value: &ColumnarValue, unit: TimeUnit) -> Result<ColumnarValue> {
    let nanos_of_one: i64 = match unit {
        TimeUnit::Second => 1_000_000_000,
        TimeUnit::Millisecond => 1_000_000,
        TimeUnit::Microsecond => 1_000,
        TimeUnit::Nanosecond => 1,
    };
    let of_day = 86_400 * (1_000_000_000 / nanos_of_one);
    let apart = |of: i64| {
        // More days than that have no number of 32 bits.
        let days = (of / of_day).clamp(i64::from(i32::MIN), i64::from(i32::MAX)) as i32;
        IntervalMonthDayNano { months: 0, days, nanoseconds: of % of_day * nanos_of_one }
    };
    let is_scalar = matches!(value, ColumnarValue::Scalar(_));
    let counts = cast(&value.to_array(1)?, &DataType::Int64)?;
    let counts = counts.as_primitive::<Int64Type>().iter();
    let intervals: IntervalMonthDayNanoArray = counts.map(|of| of.map(apart)).collect();
    super::columnar(Arc::new(intervals), is_scalar)
}

impl ScalarUDFImpl for DatePartOf {
    of_inner!(name, aliases, documentation);
    scalar!(signature, type_by_field);

    fn coerce_types(&self, types: &[DataType]) -> Result<Vec<DataType>> {
        let [part, time] = types else {
            return plan_err!("date_part takes a part and a time");
        };
        let time = match time {
            DataType::Utf8 | DataType::LargeUtf8 | DataType::Utf8View | DataType::Null => {
                DataType::Timestamp(TimeUnit::Nanosecond, None)
            }
            DataType::Timestamp(..)
            | DataType::Date32
            | DataType::Date64
            | DataType::Time32(_)
            | DataType::Time64(_)
            | DataType::Duration(_)
            | DataType::Int64 => time.clone(),
            DataType::Interval(_) => DataType::Interval(IntervalUnit::MonthDayNano),
            other => return plan_err!("date_part takes a time, not {}", type_name(other)),
        };
        Ok(vec![part.clone(), time])
    }

    fn return_field_from_args(&self, args: ReturnFieldArgs<'_>) -> Result<FieldRef> {
        match other_calendar(args.arg_fields.get(1))? {
            Some(_) => {
                let part = args.scalar_arguments.first().copied().flatten();
                let is_epoch = part
                    .and_then(|part| part.try_as_str().flatten())
                    .is_some_and(|part| part.eq_ignore_ascii_case("epoch"));
                let data_type = if is_epoch { DataType::Float64 } else { DataType::Int32 };
                Ok(Arc::new(Field::new(self.name(), data_type, true)))
            }
            None => self.inner.return_field_from_args(args),
        }
    }

    fn invoke_with_args(&self, mut args: ScalarFunctionArgs) -> Result<ColumnarValue> {
        if let [ColumnarValue::Scalar(part), time] = args.args.as_mut_slice()
            && let Some(years) = years_of(part)
        {
            let is_span = matches!(time.data_type(), DataType::Interval(_) | DataType::Duration(_));
            let is_scalar = matches!(time, ColumnarValue::Scalar(_));
            *part = ScalarValue::from("year");
            let all = self.invoke_with_args(args)?.to_array(1)?;
            let all = all.as_primitive::<Int32Type>().iter();
            let parts: Int32Array = all.map(|year| Some(of_year(year?, years, is_span))).collect();
            return super::columnar(Arc::new(parts), is_scalar);
        }
        let Some(calendar) = other_calendar(args.arg_fields.get(1))? else {
            return match epoch_of_interval(&args.args)? {
                Some(seconds) => Ok(seconds),
                None => {
                    if let [_, time] = args.args.as_mut_slice()
                        && let DataType::Duration(unit) = time.data_type()
                    {
                        *time = in_days(time, unit)?;
                    }
                    self.inner.invoke_with_args(args)
                }
            };
        };
        let [ColumnarValue::Scalar(part), time] = args.args.as_slice() else {
            return exec_err!("date_part takes a text such as 'month' and a time");
        };
        let Some(Some(part)) = part.try_as_str() else {
            return exec_err!("date_part: the part is a text such as 'month'");
        };
        let is_scalar = matches!(time, ColumnarValue::Scalar(_));
        let times = time.to_array(1)?;
        let times = times.as_primitive::<Int64Type>();
        let lower = part.to_lowercase();
        if lower == "epoch" {
            let seconds = times.iter().map(|t| Some(t? as f64 / 1e6));
            return super::columnar(Arc::new(seconds.collect::<Float64Array>()), is_scalar);
        }
        let name =
            if matches!(lower.as_str(), "dow" | "isodow") { "dayofweek" } else { lower.as_str() };
        let Some(kind) = DatePart::parse(name) else {
            return exec_err!("date_part: unknown part '{part}'");
        };
        // DataFusion's `dow` counts from Sunday as 0, `isodow` from Monday as 1, Tessera's from Monday as 0.
        let shift = |v: i64| match lower.as_str() {
            "dow" => (v + 1) % 7,
            "isodow" => v + 1,
            _ => v,
        };
        let parts = times.iter().map(|t| Some(shift(kind.of(t?, calendar)) as i32));
        super::columnar(Arc::new(parts.collect::<Int32Array>()), is_scalar)
    }
}
