//! Times and intervals made of numbers: `make_timestamp(2020, 2, 29, 10, 11, 12.5)`, `to_days(3)`.

use std::sync::Arc;

use arrow::array::{Array, ArrayRef, AsArray, Int64Array, IntervalMonthDayNanoArray};
use arrow::compute::cast;
use arrow::datatypes::{DataType, Float64Type, Int64Type, IntervalMonthDayNano};
use datafusion::common::{Result, exec_datafusion_err, exec_err, plan_err};
use datafusion::logical_expr::{
    ColumnarValue, Documentation, ScalarFunctionArgs, ScalarUDF, ScalarUDFImpl, Signature,
    Volatility,
};
use tessera_planner::dtype::Calendar;
use tessera_planner::time::{DAY_US, DateTime, join};

use super::super::OfArrays;
use super::super::inner::{hashed_by, scalar};
use super::{INTERVAL, MOMENT};
use crate::lift::error::spoken;

const TIMESTAMP: &str = "make_timestamp";

pub(super) fn functions() -> impl Iterator<Item = ScalarUDF> {
    let about = "The time of these numbers, or of one number of microseconds since 1970.";
    let timestamp = OfArrays::taking(TIMESTAMP, numbers, MOMENT, timestamps)
        .documented("make_timestamp(year, month, day, hour, minute, second)", about);
    std::iter::once(timestamp.udf()).chain(SPANS.iter().map(|(.., span)| Spans::new(*span).into()))
}

/// The length of one unit.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Unit {
    Months(i32),
    Days(i32),
    Nanos(i64),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
struct Span {
    function: &'static str,
    unit: Unit,
}

const fn span(function: &'static str, unit: Unit) -> Span {
    Span { function, unit }
}

/// The units of intervals: one of them, several, and their function.
static SPANS: [(&str, &str, Span); 13] = [
    ("millennium", "millennia", span("to_millennia", Unit::Months(12_000))),
    ("century", "centuries", span("to_centuries", Unit::Months(1200))),
    ("decade", "decades", span("to_decades", Unit::Months(120))),
    ("year", "years", span("to_years", Unit::Months(12))),
    ("quarter", "quarters", span("to_quarters", Unit::Months(3))),
    ("month", "months", span("to_months", Unit::Months(1))),
    ("week", "weeks", span("to_weeks", Unit::Days(7))),
    ("day", "days", span("to_days", Unit::Days(1))),
    ("hour", "hours", span("to_hours", Unit::Nanos(3_600_000_000_000))),
    ("minute", "minutes", span("to_minutes", Unit::Nanos(60_000_000_000))),
    ("second", "seconds", span("to_seconds", Unit::Nanos(1_000_000_000))),
    ("millisecond", "milliseconds", span("to_milliseconds", Unit::Nanos(1_000_000))),
    ("microsecond", "microseconds", span("to_microseconds", Unit::Nanos(1000))),
];

/// The function that makes intervals of a unit, whose name is in lower case.
pub(in crate::lift) fn span_of(unit: &str) -> Option<&'static str> {
    let found = SPANS.iter().find(|(one, several, _)| *one == unit || *several == unit);
    found.map(|(.., span)| span.function)
}

impl Span {
    /// True for units that allow fractions: milliseconds and seconds.
    fn has_parts(self) -> bool {
        matches!(self.unit, Unit::Nanos(1_000_000 | 1_000_000_000))
    }

    fn of(self, count: i64) -> Result<IntervalMonthDayNano> {
        let narrow = |of: i32| i64::from(of).checked_mul(count).and_then(|n| i32::try_from(n).ok());
        let made = match self.unit {
            Unit::Months(of) => narrow(of).map(|n| IntervalMonthDayNano::new(n, 0, 0)),
            Unit::Days(of) => narrow(of).map(|n| IntervalMonthDayNano::new(0, n, 0)),
            Unit::Nanos(of) => count.checked_mul(of).map(|n| IntervalMonthDayNano::new(0, 0, n)),
        };
        match made {
            Some(made) => Ok(made),
            None => self.too_long(&count.to_string()),
        }
    }

    /// In whole microseconds, as in DuckDB.
    fn of_part(self, count: f64) -> Result<IntervalMonthDayNano> {
        let Unit::Nanos(of) = self.unit else { return exec_err!("{} of a float", self.function) };
        let us = (count * (of as f64 / 1e3)).round_ties_even();
        // A NaN fits nowhere.
        match us.abs() <= 9.2e15 {
            true => Ok(IntervalMonthDayNano::new(0, 0, us as i64 * 1000)),
            false => self.too_long(&count.to_string()),
        }
    }

    fn too_long(self, count: &str) -> Result<IntervalMonthDayNano> {
        exec_err!(
            "`{}`: an interval of {count} is too long: its months and days have 32 bits, its time 64 bits",
            self.function
        )
    }
}

/// A function such as `to_days(n)`.
#[derive(Debug, PartialEq, Eq)]
struct Spans {
    span: Span,
    signature: Signature,
    documentation: Documentation,
}

hashed_by!(Spans, function => function.span);

impl Spans {
    fn new(span: Span) -> Self {
        let signature = Signature::user_defined(Volatility::Immutable);
        let unit = span.function.trim_start_matches("to_");
        let (syntax, about) =
            (format!("{}(n)", span.function), format!("The interval of that many {unit}."));
        Self { span, signature, documentation: super::super::documented(&syntax, &about) }
    }
}

impl ScalarUDFImpl for Spans {
    scalar!(documentation, signature, returns INTERVAL);

    fn name(&self) -> &str {
        self.span.function
    }

    fn coerce_types(&self, types: &[DataType]) -> Result<Vec<DataType>> {
        let function = self.span.function;
        match types {
            [of] if of.is_null() || (of.is_integer() && *of != DataType::UInt64) => {
                Ok(vec![DataType::Int64])
            }
            [of] if of.is_numeric() && self.span.has_parts() => Ok(vec![DataType::Float64]),
            [of] => plan_err!(
                "`{function}` takes an integer, not {}; a multiple of an interval is `x * INTERVAL '1 day'`",
                spoken(&of.to_string())
            ),
            _ => plan_err!("`{function}` takes one number"),
        }
    }

    fn invoke_with_args(&self, args: ScalarFunctionArgs) -> Result<ColumnarValue> {
        let [count] = args.args.as_slice() else {
            return exec_err!("`{}` takes one number", self.span.function);
        };
        let is_scalar = matches!(count, ColumnarValue::Scalar(_));
        let counts = count.to_array(1)?;
        let out: IntervalMonthDayNanoArray = match counts.data_type() {
            DataType::Float64 => {
                let counts = counts.as_primitive::<Float64Type>().iter();
                let made = counts.map(|n| n.map(|n| self.span.of_part(n)).transpose());
                made.collect::<Result<_>>()?
            }
            _ => {
                let counts = counts.as_primitive::<Int64Type>().iter();
                let made = counts.map(|n| n.map(|n| self.span.of(n)).transpose());
                made.collect::<Result<_>>()?
            }
        };
        super::super::columnar(Arc::new(out), is_scalar)
    }
}

/// The time of a date and a time of day, which may be 24:00 or have a 60th second.
fn made(date: [i64; 5], second: f64) -> Result<i64> {
    let [year, month, day, hour, minute] = date;
    let us = (second * 1e6).round_ties_even();
    let is_clock =
        (0..24).contains(&hour) && (0..60).contains(&minute) && (0.0..=6e7).contains(&us)
            || (hour, minute, us) == (24, 0, 0.0);
    if !is_clock {
        return exec_err!("`{TIMESTAMP}`: {hour}:{minute}:{second} is not a time of day");
    }
    let micros = hour * 3_600_000_000 + minute * 60_000_000 + us as i64;
    let date = match (u32::try_from(month), u32::try_from(day)) {
        (Ok(month), Ok(day)) if year.unsigned_abs() < 1_000_000 => {
            join(DateTime { year, month, day, micros: 0 }, Calendar::Standard)
        }
        _ => None,
    };
    let date = date
        .ok_or_else(|| exec_datafusion_err!("`{TIMESTAMP}`: {year}-{month}-{day} is not a date"))?;
    debug_assert!((0..=DAY_US).contains(&micros));
    Ok(date + micros)
}

fn numbers(_: &str, types: &[DataType]) -> Result<Vec<DataType>> {
    let is_number = |of: &DataType| of.is_null() || of.is_integer();
    match types {
        [us] if is_number(us) => Ok(vec![DataType::Int64]),
        [date @ .., second]
            if date.len() == 5
                && date.iter().all(is_number)
                && (second.is_null() || second.is_numeric()) =>
        {
            let mut all = vec![DataType::Int64; 5];
            all.push(DataType::Float64);
            Ok(all)
        }
        _ => plan_err!(
            "`{TIMESTAMP}` takes a year, a month, a day, an hour, a minute and seconds, or an integer of microseconds"
        ),
    }
}

fn timestamps(arrays: &[ArrayRef]) -> Result<ArrayRef> {
    let us: ArrayRef = match arrays {
        [us] => Arc::clone(us),
        [date @ .., seconds] => {
            let seconds = seconds.as_primitive::<Float64Type>();
            let date: Vec<&Int64Array> =
                date.iter().map(|part| part.as_primitive::<Int64Type>()).collect();
            let us = (0..seconds.len()).map(|row| {
                if seconds.is_null(row) || date.iter().any(|part| part.is_null(row)) {
                    return Ok(None);
                }
                let mut parts = [0; 5];
                for (part, of) in parts.iter_mut().zip(&date) {
                    *part = of.value(row);
                }
                made(parts, seconds.value(row)).map(Some)
            });
            Arc::new(us.collect::<Result<Int64Array>>()?)
        }
        [] => return exec_err!("`{TIMESTAMP}` takes numbers"),
    };
    Ok(cast(&us, &MOMENT)?)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]
    use super::*;
    use tessera_planner::time::format_micros;

    /// Expected values from DuckDB 2.0.
    #[test]
    fn times_and_intervals_are_made_of_numbers() {
        let of =
            |date, second| made(date, second).ok().map(|us| format_micros(us, Calendar::Standard));
        let text = |text: &str| Some(text.to_string());
        assert_eq!(of([2020, 2, 29, 10, 11], 12.345_678), text("2020-02-29T10:11:12.345678"));
        assert_eq!(of([2020, 1, 1, 24, 0], 0.0), text("2020-01-02T00:00:00"));
        assert_eq!(of([2020, 1, 1, 23, 59], 60.0), text("2020-01-02T00:00:00"));
        assert_eq!(of([2020, 13, 1, 0, 0], 0.0), None);
        assert_eq!(of([2021, 2, 29, 0, 0], 0.0), None);
        assert_eq!(of([2020, 1, 1, 25, 0], 0.0), None);
        assert_eq!(of([i64::MAX, 1, 1, 0, 0], 0.0), None);
        assert_eq!(of([2020, 1, 1, 0, 0], f64::NAN), None);
        let span = |name: &str| SPANS.iter().find(|(one, ..)| *one == name).unwrap().2;
        let nanos = |n| Some(IntervalMonthDayNano::new(0, 0, n));
        assert_eq!(span("second").of_part(1.5).ok(), nanos(1_500_000_000));
        assert_eq!(span("millisecond").of_part(0.0005).ok(), nanos(0));
        assert_eq!(span("quarter").of(2).ok(), Some(IntervalMonthDayNano::new(6, 0, 0)));
        assert!(span("year").of(200_000_000).is_err());
        assert!(span("second").of_part(1e300).is_err());
        assert!(span("second").of_part(f64::NAN).is_err());
        assert_eq!((span_of("quarters"), span_of("fortnight")), (Some("to_quarters"), None));
    }
}
