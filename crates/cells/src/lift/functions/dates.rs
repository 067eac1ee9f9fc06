//! Functions of times that DuckDB has and DataFusion lacks: `date_diff`, `age`, `last_day`, `dayname`, `time_bucket`,
//! `strptime`, `strftime`, `to_days` and the like.
//!
//! They take dates, times with and without a zone, and times of other calendars, which are `int64` with the calendar in
//! their field. Days and months of a time with a zone are those of its local time.

mod between;
mod bucket;
mod made;
mod read;
mod write;

use std::str::FromStr;
use std::sync::Arc;

use arrow::array::timezone::Tz;
use arrow::array::{Array, ArrayRef, AsArray, Date32Array, Int64Array, StringArray};
use arrow::compute::cast;
use arrow::datatypes::{
    DataType, Field, FieldRef, Int64Type, IntervalMonthDayNano, IntervalMonthDayNanoType,
    IntervalUnit, TimeUnit,
};
use datafusion::common::{Result, exec_datafusion_err, exec_err, plan_err};
use datafusion::logical_expr::{
    ColumnarValue, Documentation, ReturnFieldArgs, ScalarFunctionArgs, ScalarUDF, ScalarUDFImpl,
    Signature, Volatility,
};
use tessera_planner::dtype::{Calendar, DType};
use tessera_planner::time::{DAY_US, DatePart, Truncation, moved};

use super::hashes::is_text;
use super::inner::{hashed_by, scalar};
use crate::clock;
use crate::lift::error::spoken;
use crate::lift::table::{calendar, field};

pub(in crate::lift) use made::span_of;

const INTERVAL: DataType = DataType::Interval(IntervalUnit::MonthDayNano);
const MOMENT: DataType = DataType::Timestamp(TimeUnit::Microsecond, None);

const DAYS: [&str; 7] =
    ["Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday"];

const MONTHS: [&str; 12] = [
    "January",
    "February",
    "March",
    "April",
    "May",
    "June",
    "July",
    "August",
    "September",
    "October",
    "November",
    "December",
];

pub(super) fn functions() -> Vec<ScalarUDF> {
    let kinds = [
        Kind::LastDay,
        Kind::DayName,
        Kind::MonthName,
        Kind::Epoch(Scale::Milli),
        Kind::Epoch(Scale::Micro),
        Kind::Epoch(Scale::Nano),
    ];
    let of_one = kinds.into_iter().map(|kind| OfTime::new(kind).into());
    of_one
        .chain(between::functions())
        .chain(made::functions())
        .chain(read::functions())
        .chain([bucket::function(), write::function()])
        .collect()
}

/// The type to which a time is converted before a call.
fn time_type(function: &str, of: &DataType) -> Result<DataType> {
    match of {
        DataType::Timestamp(_, zone) => {
            Ok(DataType::Timestamp(TimeUnit::Microsecond, zone.clone()))
        }
        DataType::Date32 | DataType::Date64 | DataType::Null => Ok(MOMENT),
        of if is_text(of) => Ok(MOMENT),
        // Which integers are times is known from their fields.
        DataType::Int64 => Ok(DataType::Int64),
        other => {
            plan_err!("`{function}` takes a time, not {}", spoken(&other.to_string()))
        }
    }
}

/// The calendar of a time of such a type.
fn calendar_of(function: &str, field: &Field) -> Result<Calendar> {
    match (field.data_type(), calendar(field)) {
        (DataType::Int64, None) => plan_err!("`{function}` takes a time, not int64"),
        (_, found) => Ok(found.unwrap_or(Calendar::Standard)),
    }
}

fn zone_of(of: &DataType) -> Result<Option<Tz>> {
    match of {
        DataType::Timestamp(_, Some(zone)) => Ok(Some(Tz::from_str(zone)?)),
        _ => Ok(None),
    }
}

/// Microseconds since 1970 of times in microseconds, and of dates.
fn micros(times: &ArrayRef) -> Result<Int64Array> {
    let times = match times.data_type() {
        DataType::Date32 => cast(&cast(times, &MOMENT)?, &DataType::Int64)?,
        _ => cast(times, &DataType::Int64)?,
    };
    Ok(times.as_primitive::<Int64Type>().clone())
}

/// The local time of a zone, in microseconds.
fn shown(us: i64, zone: Option<Tz>) -> Result<i64> {
    match zone {
        None => Ok(us),
        Some(zone) => clock::shown(us, zone).ok_or_else(beyond),
    }
}

fn beyond() -> datafusion::common::DataFusionError {
    exec_datafusion_err!("a time is beyond the range of times")
}

/// The first moment of the last day of the month in which a time lies.
fn last_day(us: i64, calendar: Calendar) -> Option<i64> {
    moved(Truncation::Months(1).of(us, calendar), 1, -1, 0, calendar)
}

fn days_since_1970(us: i64) -> Result<i32> {
    i32::try_from(us.div_euclid(DAY_US)).map_err(|_| beyond())
}

/// Microseconds of an interval: a month is 30 days, and a day 24 hours.
fn length_us(of: IntervalMonthDayNano) -> i128 {
    let days = i128::from(of.months) * 30 + i128::from(of.days);
    days * i128::from(DAY_US) + i128::from(of.nanoseconds / 1000)
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Scale {
    Milli,
    Micro,
    Nano,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Kind {
    LastDay,
    DayName,
    MonthName,
    Epoch(Scale),
}

#[derive(Debug, PartialEq, Eq)]
struct OfTime {
    kind: Kind,
    signature: Signature,
    documentation: Documentation,
}

hashed_by!(OfTime, function => function.kind);

impl OfTime {
    fn new(kind: Kind) -> Self {
        let (syntax, about) = match kind {
            Kind::LastDay => ("last_day(t)", "The last day of the month of a time."),
            Kind::DayName => ("dayname(t)", "The English name of the day of the week."),
            Kind::MonthName => ("monthname(t)", "The English name of the month."),
            Kind::Epoch(Scale::Milli) => (
                "epoch_ms(t)",
                "Milliseconds since 1970 of a time, or of an interval; the time of an integer of them.",
            ),
            Kind::Epoch(Scale::Micro) => {
                ("epoch_us(t)", "Microseconds since 1970 of a time, or of an interval.")
            }
            Kind::Epoch(Scale::Nano) => {
                ("epoch_ns(t)", "Nanoseconds since 1970 of a time, or of an interval.")
            }
        };
        let signature = Signature::user_defined(Volatility::Immutable);
        Self { kind, signature, documentation: super::documented(syntax, about) }
    }

    /// Microseconds in the function's unit.
    fn scaled(&self, us: i128, scale: Scale) -> Result<i64> {
        let scaled = match scale {
            // To the nearest one, as in DuckDB.
            Scale::Milli => (us.abs() + 500) / 1000 * us.signum(),
            Scale::Micro => us,
            Scale::Nano => us * 1000,
        };
        match i64::try_from(scaled) {
            Ok(scaled) => Ok(scaled),
            Err(_) => exec_err!("`{}`: {scaled} does not fit 64 bits", self.name()),
        }
    }

    fn epoch(&self, values: &ArrayRef, scale: Scale) -> Result<Int64Array> {
        let all: Vec<Option<i128>> = match values.data_type() {
            DataType::Interval(_) => {
                let intervals = values.as_primitive::<IntervalMonthDayNanoType>().iter();
                intervals.map(|of| of.map(length_us)).collect()
            }
            _ => micros(values)?.iter().map(|us| us.map(i128::from)).collect(),
        };
        let scaled = all.into_iter().map(|us| us.map(|us| self.scaled(us, scale)).transpose());
        scaled.collect()
    }
}

impl ScalarUDFImpl for OfTime {
    scalar!(documentation, signature, type_by_field);

    fn name(&self) -> &str {
        match self.kind {
            Kind::LastDay => "last_day",
            Kind::DayName => "dayname",
            Kind::MonthName => "monthname",
            Kind::Epoch(Scale::Milli) => "epoch_ms",
            Kind::Epoch(Scale::Micro) => "epoch_us",
            Kind::Epoch(Scale::Nano) => "epoch_ns",
        }
    }

    fn coerce_types(&self, types: &[DataType]) -> Result<Vec<DataType>> {
        let [of] = types else { return plan_err!("`{}` takes one time", self.name()) };
        Ok(vec![match (self.kind, of) {
            (Kind::Epoch(_), DataType::Interval(_)) => INTERVAL,
            (Kind::Epoch(_), DataType::Time32(_) | DataType::Time64(_)) => {
                DataType::Time64(TimeUnit::Microsecond)
            }
            (Kind::Epoch(Scale::Milli), of) if of.is_integer() => DataType::Int64,
            _ => time_type(self.name(), of)?,
        }])
    }

    fn return_field_from_args(&self, args: ReturnFieldArgs<'_>) -> Result<FieldRef> {
        let [time] = args.arg_fields else {
            return plan_err!("`{}` takes one time", self.name());
        };
        let is_number = *time.data_type() == DataType::Int64 && calendar(time).is_none();
        let kind = match self.kind {
            Kind::Epoch(Scale::Milli) if is_number => MOMENT,
            Kind::Epoch(_) if is_number => {
                return plan_err!("`{}` takes a time, not int64", self.name());
            }
            Kind::Epoch(_) => DataType::Int64,
            Kind::DayName | Kind::MonthName => {
                calendar_of(self.name(), time)?;
                DataType::Utf8
            }
            Kind::LastDay => match calendar_of(self.name(), time)? {
                Calendar::Standard => DataType::Date32,
                other => {
                    let is_nullable = time.is_nullable();
                    return Ok(Arc::new(field(self.name(), DType::Datetime(other), is_nullable)));
                }
            },
        };
        Ok(Arc::new(Field::new(self.name(), kind, time.is_nullable())))
    }

    fn invoke_with_args(&self, args: ScalarFunctionArgs) -> Result<ColumnarValue> {
        let ([value], [of]) = (args.args.as_slice(), args.arg_fields.as_slice()) else {
            return exec_err!("`{}` takes one time", self.name());
        };
        let is_scalar = matches!(value, ColumnarValue::Scalar(_));
        let values = value.to_array(1)?;
        if let Kind::Epoch(scale) = self.kind {
            let is_time = *args.return_field.data_type() != MOMENT;
            let out: ArrayRef = if is_time {
                Arc::new(self.epoch(&values, scale)?)
            } else {
                let of = values.as_primitive::<Int64Type>().iter();
                let us =
                    of.map(|ms| ms.map(|ms| ms.checked_mul(1000).ok_or_else(beyond)).transpose());
                cast(&us.collect::<Result<Int64Array>>()?, &MOMENT)?
            };
            return super::columnar(out, is_scalar);
        }
        let (calendar, zone) = (calendar_of(self.name(), of)?, zone_of(of.data_type())?);
        let times = micros(&values)?;
        let times = times.iter().map(|us| us.map(|us| shown(us, zone)).transpose());
        let of_part = |us: i64, part: DatePart, names: &[&'static str], first: i64| {
            usize::try_from(part.of(us, calendar) - first)
                .ok()
                .and_then(|at| names.get(at).copied())
        };
        let name = |us: Option<i64>| match self.kind {
            Kind::DayName => of_part(us?, DatePart::DayOfWeek, &DAYS, 0),
            _ => of_part(us?, DatePart::Month, &MONTHS, 1),
        };
        let last = |us: Option<i64>| us.map(|us| last_day(us, calendar).ok_or_else(beyond));
        let out: ArrayRef = match (self.kind, calendar) {
            (Kind::LastDay, Calendar::Standard) => {
                let days = times.map(|us| last(us?).transpose()?.map(days_since_1970).transpose());
                Arc::new(days.collect::<Result<Date32Array>>()?)
            }
            (Kind::LastDay, _) => {
                let days = times.map(|us| last(us?).transpose());
                Arc::new(days.collect::<Result<Int64Array>>()?)
            }
            _ => {
                let names = times.map(|us| -> Result<_> { Ok(name(us?)) });
                Arc::new(names.collect::<Result<StringArray>>()?)
            }
        };
        super::columnar(out, is_scalar)
    }
}
