//! `date_diff(part, a, b)`: how often a part of a time begins between two times. `date_sub(part, a, b)`: how many whole
//! parts lie between them. `age(b, a)`: the months, days and time from a to b, as in PostgreSQL.

use std::sync::Arc;

use arrow::array::timezone::Tz;
use arrow::array::{ArrayRef, Int64Array, IntervalMonthDayNanoArray};
use arrow::datatypes::{DataType, Field, FieldRef, IntervalMonthDayNano};
use datafusion::common::{DataFusionError, Result, ScalarValue, exec_err, plan_err};
use datafusion::logical_expr::{
    ColumnarValue, Documentation, ReturnFieldArgs, ScalarFunctionArgs, ScalarUDF, ScalarUDFImpl,
    Signature, Volatility,
};
use tessera_frontend::error::Error;
use tessera_planner::dtype::Calendar;
use tessera_planner::time::{DAY_US, Truncation, split};

use super::super::hashes::is_text;
use super::super::inner::{hashed_by, scalar};
use super::{INTERVAL, beyond, calendar_of, last_day, micros, shown, time_type, zone_of};
use crate::lift::error::InCall;

pub(super) fn functions() -> [ScalarUDF; 3] {
    [Kind::Diff, Kind::Sub, Kind::Age].map(|kind| Between::new(kind).into())
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Kind {
    Diff,
    Sub,
    Age,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Part {
    Months(i64),
    /// The year of the ISO weeks.
    IsoYear,
    Week,
    Micros(i64),
}

const HOUR_US: i64 = 3_600_000_000;

impl Part {
    /// Parses a name in lower case, as DuckDB does.
    fn parse(name: &str) -> Option<Part> {
        Some(match name {
            "millennium" | "millennia" | "millenium" | "mil" | "mils" => Part::Months(12_000),
            "century" | "centuries" | "cent" | "c" => Part::Months(1200),
            "decade" | "decades" | "dec" | "decs" => Part::Months(120),
            "year" | "years" | "yr" | "yrs" | "y" => Part::Months(12),
            "quarter" | "quarters" => Part::Months(3),
            "month" | "months" | "mon" | "mons" => Part::Months(1),
            "isoyear" => Part::IsoYear,
            "week" | "weeks" | "w" | "weekofyear" | "yearweek" => Part::Week,
            "day" | "days" | "d" | "dayofmonth" | "dow" | "isodow" | "dayofweek" | "weekday"
            | "doy" | "dayofyear" | "julian" => Part::Micros(DAY_US),
            "hour" | "hours" | "hr" | "hrs" | "h" => Part::Micros(HOUR_US),
            "minute" | "minutes" | "min" | "mins" | "m" => Part::Micros(60_000_000),
            "second" | "seconds" | "sec" | "secs" | "s" | "epoch" => Part::Micros(1_000_000),
            "millisecond" | "milliseconds" | "ms" | "msec" | "msecs" => Part::Micros(1000),
            "microsecond" | "microseconds" | "us" | "usec" | "usecs" => Part::Micros(1),
            _ => return None,
        })
    }

    /// How often a part begins between two times; of weeks, those between their days.
    fn begun(self, from: i64, to: i64, calendar: Calendar) -> Option<i64> {
        let number = |us| match self {
            Part::Months(months) => month(us, calendar).div_euclid(months),
            Part::IsoYear => {
                let monday = Truncation::Week.of(us, calendar);
                split(monday.saturating_add(3 * DAY_US), calendar).year
            }
            Part::Week => us.div_euclid(DAY_US),
            Part::Micros(of) => us.div_euclid(of),
        };
        let begun = number(to).checked_sub(number(from))?;
        Some(if self == Part::Week { begun / 7 } else { begun })
    }

    /// How many whole parts lie between two times; `None` beyond the range of times.
    fn whole(self, from: i64, to: i64, calendar: Calendar) -> Option<i64> {
        Some(match self {
            Part::Months(months) => months_between(from, to, calendar)? / months,
            Part::IsoYear => months_between(from, to, calendar)? / 12,
            Part::Week => to.checked_sub(from)? / (7 * DAY_US),
            Part::Micros(of) => to.checked_sub(from)? / of,
        })
    }
}

fn month(us: i64, calendar: Calendar) -> i64 {
    let t = split(us, calendar);
    t.year * 12 + i64::from(t.month) - 1
}

/// Whole months between two times. The last day of a short month ends a month that began on a later day.
fn months_between(from: i64, to: i64, calendar: Calendar) -> Option<i64> {
    if from > to {
        return Some(-months_between(to, from, calendar)?);
    }
    let (start, end) = (split(from, calendar), split(to, calendar));
    let last = split(last_day(to, calendar)?, calendar).day;
    let months = month(to, calendar) - month(from, calendar);
    let is_short = (start.day.min(last), start.micros) > (end.day, end.micros);
    Some(months - i64::from(is_short))
}

/// The interval from a time to another one; `None` beyond the range of times.
fn age(from: i64, to: i64, calendar: Calendar) -> Option<IntervalMonthDayNano> {
    let (sign, early, late) = if from <= to { (1, from, to) } else { (-1, to, from) };
    let (start, end) = (split(early, calendar), split(late, calendar));
    let mut months = month(late, calendar) - month(early, calendar);
    let mut days = i64::from(end.day) - i64::from(start.day);
    let mut us = end.micros - start.micros;
    if us < 0 {
        us += DAY_US;
        days -= 1;
    }
    if days < 0 {
        // The days that the month of the earlier time has left.
        days += i64::from(split(last_day(early, calendar)?, calendar).day);
        months -= 1;
    }
    let (months, days) = (i32::try_from(sign * months).ok()?, i32::try_from(sign * days).ok()?);
    Some(IntervalMonthDayNano { months, days, nanoseconds: sign * us * 1000 })
}

#[derive(Debug, PartialEq, Eq)]
struct Between {
    kind: Kind,
    signature: Signature,
    aliases: Vec<String>,
    documentation: Documentation,
}

hashed_by!(Between, function => function.kind);

impl Between {
    fn new(kind: Kind) -> Self {
        let (syntax, about, aliases) = match kind {
            Kind::Diff => (
                "date_diff(part, a, b)",
                "How often a part of a time, such as 'month', begins between two times.",
                vec!["datediff".to_string()],
            ),
            Kind::Sub => (
                "date_sub(part, a, b)",
                "How many whole parts of a time, such as 'month', lie between two times.",
                vec!["datesub".to_string()],
            ),
            Kind::Age => ("age(b, a)", "The months, days and time from a to b.", vec![]),
        };
        let signature = Signature::user_defined(Volatility::Immutable);
        Self { kind, signature, aliases, documentation: super::super::documented(syntax, about) }
    }

    /// The part and the two times, of which the first one is the start.
    fn apart<'a, T>(&self, args: &'a [T]) -> Result<(Option<&'a T>, &'a T, &'a T)> {
        match (self.kind, args) {
            (Kind::Age, [to, from]) => Ok((None, from, to)),
            (Kind::Diff | Kind::Sub, [part, from, to]) => Ok((Some(part), from, to)),
            (Kind::Age, _) => plan_err!("`age` takes two times"),
            _ => plan_err!("`{}` takes a part and two times", self.name()),
        }
    }

    fn part(&self, value: Option<&ScalarValue>) -> Result<Part> {
        let refused = |message: String| {
            let error = Error::cells("invalid_argument", message, None)
                .with_hint("write 'year', 'quarter', 'month', 'week', 'day', 'hour', 'minute', 'second', 'millisecond' or 'microsecond'");
            let function = self.name().to_string();
            DataFusionError::External(Box::new(InCall { function, error }))
        };
        let name = self.name();
        let Some(part) = value.and_then(|value| value.try_as_str().flatten()) else {
            return Err(refused(format!("`{name}`: the part is not a text of the query")));
        };
        Part::parse(&part.to_lowercase())
            .ok_or_else(|| refused(format!("`{name}`: '{part}' is not a part of a time")))
    }

    /// The local time. Parts of a day are counted between instants, but begin in local time, whose offset may have half
    /// an hour.
    fn placed(&self, us: i64, part: Option<Part>, zone: Option<Tz>) -> Result<i64> {
        let there = shown(us, zone)?;
        Ok(match (self.kind, part) {
            (Kind::Diff, Some(Part::Micros(of @ ..DAY_US))) => us + (there - us).rem_euclid(of),
            (Kind::Sub, Some(Part::Micros(..DAY_US))) => us,
            _ => there,
        })
    }

    fn calendar(&self, from: &Field, to: &Field) -> Result<Calendar> {
        let name = self.name();
        match (calendar_of(name, from)?, calendar_of(name, to)?) {
            (from, to) if from == to => Ok(from),
            (from, to) => {
                let (from, to) = (from.name(), to.name());
                plan_err!("`{name}` takes times of one calendar, not of {from} and {to}")
            }
        }
    }
}

impl ScalarUDFImpl for Between {
    scalar!(aliases, documentation, signature, type_by_field);

    fn name(&self) -> &str {
        match self.kind {
            Kind::Diff => "date_diff",
            Kind::Sub => "date_sub",
            Kind::Age => "age",
        }
    }

    fn coerce_types(&self, types: &[DataType]) -> Result<Vec<DataType>> {
        let (part, _, _) = self.apart(types)?;
        let mut all = types.to_vec();
        let first = usize::from(part.is_some());
        if part.is_some_and(is_text) {
            all[0] = DataType::Utf8;
        }
        for of in &mut all[first..] {
            *of = time_type(self.name(), of)?;
        }
        Ok(all)
    }

    fn return_field_from_args(&self, args: ReturnFieldArgs<'_>) -> Result<FieldRef> {
        let (part, from, to) = self.apart(args.arg_fields)?;
        self.calendar(from, to)?;
        let kind = match part {
            Some(_) => {
                self.part(args.scalar_arguments.first().copied().flatten())?;
                DataType::Int64
            }
            None => INTERVAL,
        };
        let is_nullable = from.is_nullable() || to.is_nullable();
        Ok(Arc::new(Field::new(self.name(), kind, is_nullable)))
    }

    fn invoke_with_args(&self, args: ScalarFunctionArgs) -> Result<ColumnarValue> {
        let (_, from_field, to_field) = self.apart(&args.arg_fields)?;
        let calendar = self.calendar(from_field, to_field)?;
        let zone = match zone_of(from_field.data_type())? {
            Some(zone) => Some(zone),
            None => zone_of(to_field.data_type())?,
        };
        let part = match (self.kind, args.args.first()) {
            (Kind::Age, _) => None,
            (_, Some(ColumnarValue::Scalar(part))) => Some(self.part(Some(part))?),
            _ => return exec_err!("`{}`: the part must be a constant text", self.name()),
        };
        let is_scalar = args.args.iter().all(|arg| matches!(arg, ColumnarValue::Scalar(_)));
        let arrays = ColumnarValue::values_to_arrays(&args.args)?;
        let (_, from, to) = self.apart(&arrays)?;
        let (from, to) = (micros(from)?, micros(to)?);
        let pairs = from.iter().zip(to.iter()).map(|pair| -> Result<_> {
            Ok(match pair {
                (Some(from), Some(to)) => {
                    Some((self.placed(from, part, zone)?, self.placed(to, part, zone)?))
                }
                _ => None,
            })
        });
        let out: ArrayRef = match part {
            None => {
                let ages = pairs.map(|pair: Result<Option<(i64, i64)>>| {
                    let Some((from, to)) = pair? else { return Ok(None) };
                    age(from, to, calendar).map(Some).ok_or_else(beyond)
                });
                Arc::new(ages.collect::<Result<IntervalMonthDayNanoArray>>()?)
            }
            Some(part) => {
                let numbers = pairs.map(|pair: Result<Option<(i64, i64)>>| {
                    let Some((from, to)) = pair? else { return Ok(None) };
                    let number = match self.kind {
                        Kind::Diff => part.begun(from, to, calendar),
                        _ => part.whole(from, to, calendar),
                    };
                    number.map(Some).ok_or_else(beyond)
                });
                Arc::new(numbers.collect::<Result<Int64Array>>()?)
            }
        };
        super::super::columnar(out, is_scalar)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]
    use super::*;
    use tessera_planner::time::parse_period;

    fn us(text: &str) -> i64 {
        parse_period(text, Calendar::Standard).unwrap().0
    }

    /// Expected values from DuckDB 2.0.
    #[test]
    fn parts_and_ages_match_duckdb() {
        for (part, from, to, diff, sub) in [
            ("quarter", "2020-01-31", "2021-02-28", 4, 4),
            ("month", "2020-01-31", "2020-02-29", 1, 1),
            ("month", "2020-01-31T10:00", "2020-02-29T09:00", 1, 0),
            ("month", "2020-03-31T10:00", "2020-02-29T09:00", -1, -1),
            ("week", "1969-12-20", "1970-01-20", 4, 4),
            ("week", "2020-03-31", "2020-02-29T12:00", -4, -4),
            ("year", "2021-01-31", "2000-01-30", -21, -21),
            ("hour", "1969-12-31T23:30", "1970-01-01T00:30", 1, 1),
        ] {
            let part = Part::parse(part).unwrap();
            let (from, to) = (us(from), us(to));
            let begun = part.begun(from, to, Calendar::Standard);
            let found = (begun, part.whole(from, to, Calendar::Standard));
            assert_eq!(found, (Some(diff), Some(sub)), "{part:?}");
        }
        for (from, to, months, days, hours) in [
            ("2020-01-31T10:00", "2021-03-01", 13, 0, 14),
            ("2021-03-01", "2020-01-31T10:00", -13, 0, -14),
            ("2020-02-29", "2020-03-31", 1, 2, 0),
            ("2020-01-31T06:00", "2020-03-01T05:00", 1, 0, 23),
        ] {
            let want = IntervalMonthDayNano::new(months, days, hours * 3_600_000_000_000);
            assert_eq!(age(us(from), us(to), Calendar::Standard), Some(want), "{from} {to}");
        }
    }
}
