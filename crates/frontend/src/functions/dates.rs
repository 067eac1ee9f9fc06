//! Parts of dates, truncated dates, and now.

use sqlparser::tokenizer::Span;
use tessera_planner::dtype::{Calendar, DType};
use tessera_planner::ir::NodeId;
use tessera_planner::program::ScalarOp;
use tessera_planner::scalar::Scalar;
use tessera_planner::time::{DAY_US, DatePart, first_weekday};

use super::row::Lower;
use super::{Bound, Row, row};
use crate::error::Error;
use crate::lower::value::{Tensor, Value};
use crate::lower::{At, Lowerer, fail, types};

const MASKS: &str = "masked cells stay masked";

/// Days by which the year 1 begins earlier in the Julian calendar than in the Gregorian one.
const JULIAN_LEAD: i64 = 2;

const TYPES: &str = "datetimes of any calendar give int64";

/// The row of a function that returns a part of a time.
const fn of_time(signature: &'static str, lower: Lower, doc: &'static str) -> Row {
    row(signature, lower, doc).dtypes(TYPES).missing(MASKS)
}

/// The row of a part of a time, which xarray has under the same name.
macro_rules! part {
    ($name:literal, $doc:literal) => {
        of_time(concat!($name, "(time)"), part, $doc)
            .example(concat!("SELECT ", $name, "(time) FROM era5"))
            .numpy(concat!("xarray: time.dt.", $name))
    };
}

pub(super) const ROWS: &[Row] = &[
    part!("year", "Year."),
    part!("quarter", "Quarter of the year, 1 to 4."),
    part!("month", "Month, 1 to 12."),
    part!("week", "ISO week, 1 to 53.").numpy("xarray: time.dt.isocalendar().week"),
    part!("day", "Day of the month."),
    part!("dayofyear", "Day of the year, from 1."),
    part!("dayofweek", "Day of the week, Monday is 0."),
    part!("hour", "Hour, 0 to 23."),
    part!("minute", "Minute, 0 to 59."),
    part!("second", "Second, 0 to 59."),
    part!("season", "Season: 0 is December to February, then 1 to 3."),
    of_time("date_part(part, time)", date_part, "A part of a date by its name.")
        .example("SELECT date_part('month', time) FROM era5")
        .numpy("xarray: time.dt.month"),
    row(
        "epoch(time)",
        epoch,
        "Seconds since 1970-01-01 of the time's calendar, as a difference of two times is in \
         seconds.",
    )
    .dtypes("datetimes of any calendar give float64")
    .missing(MASKS)
    .example("SELECT epoch(time) / 86400 FROM era5")
    .numpy("(time - numpy.datetime64(0, 's')) / numpy.timedelta64(1, 's')"),
    row(
        "date_trunc(part, time)",
        date_trunc,
        "The first moment of the second, minute, hour, day, week (from Monday), month, quarter, \
         year, decade, century or millennium in which a time lies.",
    )
    .dtypes("datetimes of any calendar; type stays")
    .missing(MASKS)
    .example("SELECT date_trunc('month', time) FROM era5")
    .numpy("pandas: time.to_period('M').start_time"),
    row("now()", now, "The moment at which the statement was accepted.")
        .dtypes("gives a datetime")
        .missing("never masked")
        .example("SELECT now()")
        .numpy("numpy.datetime64('now')"),
];

fn part(l: &mut Lowerer<'_, '_>, a: &Bound<'_>) -> Result<Value, Error> {
    let time = a.value(l, "time")?;
    l.date_part(time, a.name, a.span).map(Value::Tensor)
}

fn date_part(l: &mut Lowerer<'_, '_>, a: &Bound<'_>) -> Result<Value, Error> {
    let Some(part) = a.text(l, "part")? else {
        return a.refuse("part", "must be the name of a part");
    };
    let time = a.value(l, "time")?;
    l.date_part(time, &part.to_ascii_lowercase(), a.span).map(Value::Tensor)
}

fn now(l: &mut Lowerer<'_, '_>, a: &Bound<'_>) -> Result<Value, Error> {
    let now = Scalar::i64(l.context.now_us).cast(DType::Datetime(Calendar::Standard));
    let node = l.b.constant(now).at(a.span)?;
    Ok(Value::Tensor(Tensor::unnamed(node, 0)))
}

fn epoch(l: &mut Lowerer<'_, '_>, a: &Bound<'_>) -> Result<Value, Error> {
    let time = a.tensor(l, "time")?;
    l.epoch(time, a.name, a.place("time")).map(Value::Tensor)
}

fn date_trunc(l: &mut Lowerer<'_, '_>, a: &Bound<'_>) -> Result<Value, Error> {
    let part = a.text(l, "part")?.unwrap_or_default().to_ascii_lowercase();
    let t = a.tensor(l, "time")?;
    let dtype = l.b.dtype(t.node);
    let DType::Datetime(calendar) = dtype else {
        return fail(types(a.name, vec![dtype.name()]), a.place("time"));
    };
    let time = Truncation { span: a.span, dtype };
    let us = l.b.cast(t.node, DType::Int64).at(a.span)?;
    let start = match part.as_str() {
        "microsecond" => us,
        "millisecond" => time.floor(l, us, 1000, 0)?,
        "second" => time.floor(l, us, 1_000_000, 0)?,
        "minute" => time.floor(l, us, 60_000_000, 0)?,
        "hour" => time.floor(l, us, 3_600_000_000, 0)?,
        "day" => time.floor(l, us, DAY_US, 0)?,
        "week" => time.floor(l, us, 7 * DAY_US, first_weekday(calendar) * DAY_US)?,
        "month" => time.first_day(l, us, DatePart::Day)?,
        "quarter" => time.quarter(l, us)?,
        "year" => time.first_day(l, us, DatePart::DayOfYear)?,
        "decade" => time.first_year(l, us, 10, calendar)?,
        "century" => time.first_year(l, us, 100, calendar)?,
        "millennium" => time.first_year(l, us, 1000, calendar)?,
        other => {
            let reason = format!(
                "is '{other}'; it must be 'microsecond', 'millisecond', 'second', 'minute', 'hour', 'day', 'week', 'month', 'quarter', 'year', 'decade', 'century' or 'millennium'"
            );
            return a.refuse("part", reason);
        }
    };
    let node = l.b.cast(start, dtype).at(a.span)?;
    Ok(Value::Tensor(Tensor { node, name: None, ..t }))
}

/// The span of `date_trunc` and the calendar; times are microseconds in int64.
struct Truncation {
    span: Span,
    dtype: DType,
}

impl Truncation {
    fn map(
        &self,
        l: &mut Lowerer<'_, '_>,
        op: ScalarOp,
        x: NodeId,
        y: i64,
    ) -> Result<NodeId, Error> {
        let y = l.b.constant(Scalar::i64(y)).at(self.span)?;
        l.b.map(op, &[x, y]).at(self.span)
    }

    fn part(&self, l: &mut Lowerer<'_, '_>, us: NodeId, part: DatePart) -> Result<NodeId, Error> {
        let time = l.b.cast(us, self.dtype).at(self.span)?;
        l.b.map(ScalarOp::DatePart(part), &[time]).at(self.span)
    }

    /// Rounds down to a multiple of `unit`, counted from `shift` before 1970.
    fn floor(
        &self,
        l: &mut Lowerer<'_, '_>,
        us: NodeId,
        unit: i64,
        shift: i64,
    ) -> Result<NodeId, Error> {
        let moved = self.map(l, ScalarOp::Add, us, shift)?;
        let rest = self.map(l, ScalarOp::Rem, moved, unit)?;
        l.b.map(ScalarOp::Sub, &[us, rest]).at(self.span)
    }

    /// The first day of the month or year: the day on which `part`, counted from 1, is 1.
    fn first_day(
        &self,
        l: &mut Lowerer<'_, '_>,
        us: NodeId,
        part: DatePart,
    ) -> Result<NodeId, Error> {
        let day = self.floor(l, us, DAY_US, 0)?;
        let since = self.part(l, us, part)?;
        let since = self.map(l, ScalarOp::Sub, since, 1)?;
        let since = self.map(l, ScalarOp::Mul, since, DAY_US)?;
        l.b.map(ScalarOp::Sub, &[day, since]).at(self.span)
    }

    /// The first month of the quarter: the month itself, or the one or two before it.
    fn quarter(&self, l: &mut Lowerer<'_, '_>, us: NodeId) -> Result<NodeId, Error> {
        let month = self.part(l, us, DatePart::Month)?;
        let month = self.map(l, ScalarOp::Sub, month, 1)?;
        let place = self.map(l, ScalarOp::Rem, month, 3)?;
        let mut start = self.first_day(l, us, DatePart::Day)?;
        for behind in 1..=2 {
            let before = self.map(l, ScalarOp::Sub, start, 1)?;
            let before = self.first_day(l, before, DatePart::Day)?;
            let is_later = self.map(l, ScalarOp::Ge, place, behind)?;
            start = l.b.map(ScalarOp::Where, &[is_later, before, start]).at(self.span)?;
        }
        Ok(start)
    }

    /// The first day of the 10, 100 or 1000 years, counted from year 0 in both directions.
    fn first_year(
        &self,
        l: &mut Lowerer<'_, '_>,
        us: NodeId,
        years: i64,
        calendar: Calendar,
    ) -> Result<NodeId, Error> {
        let start = self.first_day(l, us, DatePart::DayOfYear)?;
        let year = self.part(l, us, DatePart::Year)?;
        let since = self.map(l, ScalarOp::Fmod, year, years)?;
        let first = l.b.map(ScalarOp::Sub, &[year, since]).at(self.span)?;
        let (year, first) = (self.new_year(l, year, calendar)?, self.new_year(l, first, calendar)?);
        let days = l.b.map(ScalarOp::Sub, &[year, first]).at(self.span)?;
        let since = self.map(l, ScalarOp::Mul, days, DAY_US)?;
        l.b.map(ScalarOp::Sub, &[start, since]).at(self.span)
    }

    /// The first day of a year, in days from one that depends on the calendar.
    fn new_year(
        &self,
        l: &mut Lowerer<'_, '_>,
        year: NodeId,
        calendar: Calendar,
    ) -> Result<NodeId, Error> {
        let length = match calendar {
            Calendar::Day360 => 360,
            Calendar::AllLeap => 366,
            _ => 365,
        };
        let days = self.map(l, ScalarOp::Mul, year, length)?;
        if matches!(calendar, Calendar::NoLeap | Calendar::AllLeap | Calendar::Day360) {
            return Ok(days);
        }
        // A leap day is in the years before.
        let before = self.map(l, ScalarOp::Sub, year, 1)?;
        let fourth = self.map(l, ScalarOp::FloorDiv, before, 4)?;
        let julian = l.b.map(ScalarOp::Add, &[days, fourth]).at(self.span)?;
        if calendar == Calendar::Julian {
            return Ok(julian);
        }
        let hundredth = self.map(l, ScalarOp::FloorDiv, before, 100)?;
        let gregorian = l.b.map(ScalarOp::Sub, &[julian, hundredth]).at(self.span)?;
        let four_hundredth = self.map(l, ScalarOp::FloorDiv, before, 400)?;
        let gregorian = l.b.map(ScalarOp::Add, &[gregorian, four_hundredth]).at(self.span)?;
        if calendar == Calendar::Standard {
            return Ok(gregorian);
        }
        // The mixed calendar is the Julian one up to the beginning of 1582.
        let julian = self.map(l, ScalarOp::Sub, julian, JULIAN_LEAD)?;
        let is_julian = self.map(l, ScalarOp::Le, year, 1582)?;
        l.b.map(ScalarOp::Where, &[is_julian, julian, gregorian]).at(self.span)
    }
}
