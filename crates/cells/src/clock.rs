//! Conversions between instants and the local times of zones, with daylight saving time.
//!
//! ```text
//! Berlin, 29 March 2020      02:30 does not exist   03:30, as if the clock had not been put forward yet
//! Berlin, 25 October 2020    02:30 exists twice     the second one; days later, the one with the offset from before
//! ```
//! DuckDB, with ICU, does the same. Arrow refuses both.

use arrow::array::timezone::Tz;
use arrow::array::{Array, ArrayRef, AsArray, Int64Array};
use arrow::compute::cast;
use arrow::datatypes::{
    DataType, Int64Type, IntervalMonthDayNano, TimeUnit, TimestampMicrosecondType,
};
use arrow::temporal_conversions::as_datetime_with_timezone;
use datafusion::error::Result;
use tessera_planner::dtype::Calendar;
use tessera_planner::time;

const DAY_US: i64 = 86_400_000_000;

/// Upper bound on the distance of a time from 1970: 259,000 years.
const TIME_US_MAX: u64 = 8_200_000_000_000_000_000;

/// UTC offset of a zone at an instant, in microseconds.
fn ahead(us: i64, zone: Tz) -> Option<i64> {
    if us.unsigned_abs() > TIME_US_MAX {
        return None;
    }
    let there = as_datetime_with_timezone::<TimestampMicrosecondType>(us, zone)?;
    there.naive_local().and_utc().timestamp_micros().checked_sub(us)
}

/// Local time of a zone at an instant, in microseconds; `None` beyond the range of times.
pub(crate) fn shown(us: i64, zone: Tz) -> Option<i64> {
    us.checked_add(ahead(us, zone)?)
}

/// The instant of a local time. A local time that occurs twice is the instant with the UTC offset `kept`, or else the
/// second one.
fn instant_us(shown: i64, zone: Tz, kept: Option<i64>) -> Option<i64> {
    let before = ahead(shown.checked_sub(DAY_US)?, zone)?;
    let after = ahead(shown.checked_add(DAY_US)?, zone)?;
    let with = |offset: i64| {
        let us = shown.checked_sub(offset)?;
        (ahead(us, zone)? == offset).then_some(us)
    };
    match (with(before), with(after)) {
        (Some(first), _) if kept == Some(before) => Some(first),
        (first, second) => second.or(first).or_else(|| shown.checked_sub(before)),
    }
}

/// Applies a function of microseconds to nanoseconds; the nanoseconds within the microsecond are unchanged.
fn by_us(ns: i128, f: impl Fn(i64) -> Option<i64>) -> Option<i128> {
    let us = f(i64::try_from(ns.div_euclid(1000)).ok()?)?;
    Some(i128::from(us) * 1000 + ns.rem_euclid(1000))
}

pub(crate) fn nanoseconds(unit: TimeUnit) -> i128 {
    match unit {
        TimeUnit::Second => 1_000_000_000,
        TimeUnit::Millisecond => 1_000_000,
        TimeUnit::Microsecond => 1000,
        TimeUnit::Nanosecond => 1,
    }
}

fn in_unit(ns: i128, unit: TimeUnit) -> Option<i64> {
    i64::try_from(ns.div_euclid(nanoseconds(unit))).ok()
}

/// The instant of a local time of a zone; `None` beyond the range of times.
pub(crate) fn instant(shown: i64, unit: TimeUnit, zone: Tz) -> Option<i64> {
    let shown = i128::from(shown) * nanoseconds(unit);
    in_unit(by_us(shown, |us| instant_us(us, zone, None))?, unit)
}

/// An instant moved by months, then days, both in local time, then by nanoseconds. Nanoseconds come first if a part of
/// the interval is negative. `None` beyond the range of times.
pub(crate) fn moved(time: i64, unit: TimeUnit, by: IntervalMonthDayNano, zone: Tz) -> Option<i64> {
    let part = |us: i64, months: i32, days: i32, kept: Option<i64>| {
        let shown =
            time::moved(shown(us, zone)?, months.into(), days.into(), 0, Calendar::Standard)?;
        instant_us(shown, zone, kept)
    };
    let rest = i128::from(by.nanoseconds);
    let is_back = by.months < 0 || by.days < 0 || by.nanoseconds < 0;
    let (first, last) = if is_back { (rest, 0) } else { (0, rest) };
    let ns = by_us(i128::from(time) * nanoseconds(unit) + first, |mut us| {
        if by.months != 0 {
            us = part(us, by.months, 0, None)?;
        }
        if by.days != 0 {
            us = part(us, 0, by.days, Some(ahead(us, zone)?))?;
        }
        Some(us)
    })?;
    in_unit(ns + last, unit)
}

/// Times of the type `to`: `f` computes each from its row and the time in the same unit.
pub(crate) fn mapped(
    times: &dyn Array,
    to: &DataType,
    mut f: impl FnMut(usize, i64) -> Result<Option<i64>>,
) -> Result<ArrayRef> {
    let times = cast(times, &DataType::Int64)?;
    let times = times.as_primitive::<Int64Type>().iter().enumerate();
    let new = times.map(|(row, time)| match time {
        Some(time) => f(row, time),
        None => Ok(None),
    });
    Ok(cast(&new.collect::<Result<Int64Array>>()?, to)?)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]
    use super::*;
    use arrow::compute::kernels::cast_utils::string_to_timestamp_nanos;
    use std::str::FromStr;

    fn us(text: &str) -> i64 {
        string_to_timestamp_nanos(text).unwrap() / 1000
    }

    /// Expected values from DuckDB 2.0.
    #[test]
    fn daylight_saving_transitions_match_duckdb() {
        for (zone, from, months, days, want) in [
            ("Europe/Berlin", "2020-03-28T02:30:00+01:00", 0, 1, "2020-03-29T03:30:00+02:00"),
            ("Europe/Berlin", "2020-03-30T02:30:00+02:00", 0, -1, "2020-03-29T03:30:00+02:00"),
            ("Europe/Berlin", "2020-02-29T02:30:00+01:00", 1, 0, "2020-03-29T03:30:00+02:00"),
            ("Europe/Berlin", "2020-04-29T02:30:00+02:00", -1, 0, "2020-03-29T03:30:00+02:00"),
            ("Europe/Berlin", "2020-10-24T02:30:00+02:00", 0, 1, "2020-10-25T02:30:00+02:00"),
            ("Europe/Berlin", "2020-10-26T02:30:00+01:00", 0, -1, "2020-10-25T02:30:00+01:00"),
            ("Europe/Berlin", "2020-09-25T02:30:00+02:00", 1, 0, "2020-10-25T02:30:00+01:00"),
            ("Europe/Berlin", "2020-10-25T02:30:00+02:00", 12, 0, "2021-10-25T02:30:00+02:00"),
            ("America/Sao_Paulo", "2018-11-03T00:00:00-03:00", 0, 1, "2018-11-04T01:00:00-02:00"),
            ("Pacific/Apia", "2011-12-29T12:00:00-10:00", 0, 1, "2011-12-31T12:00:00+14:00"),
            ("+00:00", "2020-01-31T00:00:00Z", 1, 0, "2020-02-29T00:00:00Z"),
        ] {
            let zone = Tz::from_str(zone).unwrap();
            let by = IntervalMonthDayNano::new(months, days, 0);
            let found = moved(us(from), TimeUnit::Microsecond, by, zone);
            assert_eq!(found, Some(us(want)), "{from}, {months} months, {days} days");
        }
        let by = IntervalMonthDayNano::new(0, 1, 3_600_000_000_000);
        let berlin = Tz::from_str("Europe/Berlin").unwrap();
        let found =
            moved(us("2020-03-28T02:30:00+01:00") / 1_000_000, TimeUnit::Second, by, berlin);
        assert_eq!(found, Some(us("2020-03-29T04:30:00+02:00") / 1_000_000));
        for (zone, shown, want) in [
            ("Europe/Berlin", "2020-03-29T02:30:00", "2020-03-29T03:30:00+02:00"),
            ("Europe/Berlin", "2020-10-25T02:30:00", "2020-10-25T02:30:00+01:00"),
            ("Europe/Berlin", "2020-10-25T03:30:00", "2020-10-25T03:30:00+01:00"),
            ("Pacific/Apia", "2011-12-30T12:00:00", "2011-12-31T12:00:00+14:00"),
        ] {
            let zone = Tz::from_str(zone).unwrap();
            let found = instant(us(shown), TimeUnit::Microsecond, zone);
            assert_eq!(found, Some(us(want)), "{shown}");
        }
        for (from, days, hours, want) in [
            ("2020-10-25T02:30:00+01:00", -1, -1, "2020-10-24T02:30:00+02:00"),
            ("2020-10-26T02:30:00+01:00", -1, -1, "2020-10-25T01:30:00+02:00"),
            ("2020-10-26T01:30:00+01:00", -1, 1, "2020-10-25T02:30:00+01:00"),
            ("2020-10-24T02:30:00+02:00", 1, -1, "2020-10-25T01:30:00+02:00"),
            ("2020-10-24T01:30:00+02:00", 1, 1, "2020-10-25T02:30:00+02:00"),
        ] {
            let by = IntervalMonthDayNano::new(0, days, hours * 3_600_000_000_000);
            let found = moved(us(from), TimeUnit::Microsecond, by, berlin);
            assert_eq!(found, Some(us(want)), "{from}, {days} days, {hours} hours");
        }
        let rest = instant(us("2020-03-29T02:30:00") * 1000 + 7, TimeUnit::Nanosecond, berlin);
        assert_eq!(rest, Some(us("2020-03-29T03:30:00+02:00") * 1000 + 7));
        for extreme in [i64::MIN, i64::MAX] {
            assert_eq!(moved(extreme, TimeUnit::Microsecond, by, berlin), None);
            assert_eq!(instant(extreme, TimeUnit::Second, berlin), None);
        }
    }
}
