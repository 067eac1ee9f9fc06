//! CF's units of time: `hours since 1900-01-01 00:00:00 +2:00`.
//!
//! # Source
//! CF Conventions 1.11, section 4.4; UDUNITS-2 for the spellings; xarray 2026 for what is accepted.

use tessera_planner::catalog::TimeUnits;
use tessera_planner::dtype::Calendar;
use tessera_planner::time::{DAY_US, DateTime, join};

/// True if `units` claims to be a time axis; [`parse`] then has to succeed.
pub(crate) fn is_time(units: &str) -> bool {
    units.to_ascii_lowercase().contains(" since ")
}

/// Parses `units` and `calendar` (none is `standard`); the error says which part is wrong. True if the calendar is the
/// mixed one, `standard`: a reference before 1582-10-15 is a Julian date, and so are times before that day.
pub(crate) fn parse(units: &str, calendar: Option<&str>) -> Result<(TimeUnits, bool), String> {
    let at = units.to_ascii_lowercase().find(" since ").ok_or("`since` is missing")?;
    let (unit, reference) = (units[..at].trim(), units[at + 7..].trim());
    let name = calendar.unwrap_or("standard").to_ascii_lowercase();
    let (calendar, is_mixed) = match name.as_str() {
        "standard" | "gregorian" | "" => (Calendar::Standard, true),
        "proleptic_gregorian" => (Calendar::Standard, false),
        "noleap" | "365_day" => (Calendar::NoLeap, false),
        "all_leap" | "366_day" => (Calendar::AllLeap, false),
        "360_day" => (Calendar::Day360, false),
        "julian" => (Calendar::Julian, false),
        "none" => return Err("the calendar `none` has no dates".into()),
        _ => return Err(format!("the calendar `{name}` is not known")),
    };
    let unit_ns = unit_ns(unit, calendar)?;
    let bad = || format!("`{reference}` is not a date of the calendar `{name}`");
    let (date, offset_us) = reference_date(reference).ok_or_else(bad)?;
    let origin = join(date, if is_mixed { Calendar::Mixed } else { calendar });
    let origin_us = origin.and_then(|us| us.checked_sub(offset_us)).ok_or_else(bad)?;
    Ok((TimeUnits { unit_ns, origin_us, calendar }, is_mixed))
}

/// Nanoseconds of a unit. Months have a length only in the calendar of 360 days, years only in that of 365, as in
/// cftime.
fn unit_ns(unit: &str, calendar: Calendar) -> Result<i64, String> {
    let us = match unit.to_ascii_lowercase().as_str() {
        "week" | "weeks" => 7 * DAY_US,
        "day" | "days" | "d" => DAY_US,
        "hour" | "hours" | "hr" | "hrs" | "h" => 3_600_000_000,
        "minute" | "minutes" | "min" | "mins" => 60_000_000,
        "second" | "seconds" | "sec" | "secs" | "s" => 1_000_000,
        "millisecond" | "milliseconds" | "millisec" | "millisecs" | "msec" | "msecs" | "ms" => 1000,
        "microsecond" | "microseconds" | "microsec" | "microsecs" | "us" => 1,
        "nanosecond" | "nanoseconds" | "nanosec" | "nanosecs" | "nsec" | "nsecs" | "ns" => {
            return Ok(1);
        }
        "month" | "months" if calendar == Calendar::Day360 => 30 * DAY_US,
        "common_year" | "common_years" if calendar == Calendar::NoLeap => 365 * DAY_US,
        "month" | "months" => {
            return Err("months have no fixed length, but in the calendar 360_day".into());
        }
        _ => return Err(format!("the unit `{unit}` is not known")),
    };
    Ok(us * 1000)
}

/// Parses `1900-1-1`, `1900-01-01T06:30:00.5Z`, `1900-01-01 00:00:00 -5:30`, `1900-01-01 0:0:0 UTC`: the time as
/// written and its offset from UTC, in microseconds.
fn reference_date(text: &str) -> Option<(DateTime, i64)> {
    let (negative, body) = match text.strip_prefix('-') {
        Some(rest) => (true, rest),
        None => (false, text.strip_prefix('+').unwrap_or(text)),
    };
    let cut = body.find(['T', 't', ' ']).unwrap_or(body.len());
    let (date, clock) = (&body[..cut], body[cut..].trim_start_matches(['T', 't', ' ']).trim());
    let mut fields = date.split('-');
    let year: i64 = digits(fields.next()?, 6)?;
    let month = fields.next().map_or(Some(1), |s| digits(s, 2))?;
    let day = fields.next().map_or(Some(1), |s| digits(s, 2))?;
    if fields.next().is_some() {
        return None;
    }
    let year = if negative { -year } else { year };
    let (micros, offset) = clock_of(clock)?;
    let date =
        DateTime { year, month: u32::try_from(month).ok()?, day: u32::try_from(day).ok()?, micros };
    Some((date, offset))
}

/// The time of day and the offset after it.
fn clock_of(text: &str) -> Option<(i64, i64)> {
    let text = ["UTC", "GMT", "utc", "gmt", "Z", "z"]
        .iter()
        .find_map(|s| text.strip_suffix(s))
        .unwrap_or(text)
        .trim();
    if text.is_empty() {
        return Some((0, 0));
    }
    // A sign begins the offset; a lone number after a blank is one too (`00:00:00 3`), as UDUNITS reads it.
    let (clock, zone) = match text.find(['+', '-']) {
        Some(i) => (text[..i].trim(), Some(&text[i..])),
        None => match text.split_once(' ') {
            Some((c, z)) => (c, Some(z.trim())),
            None => (text, None),
        },
    };
    let offset = zone.map_or(Some(0), offset_us)?;
    if clock.is_empty() {
        return Some((0, offset));
    }
    let mut fields = clock.split(':');
    let hour = digits(fields.next()?, 2).filter(|&h| h < 24)?;
    let minute = fields.next().map_or(Some(0), |s| digits(s, 2)).filter(|&m| m < 60)?;
    let second = fields.next().unwrap_or("0");
    if fields.next().is_some() {
        return None;
    }
    let (whole, fraction) = second.split_once('.').unwrap_or((second, ""));
    let whole = digits(whole, 2).filter(|&s| s < 60)?;
    let fraction = match fraction.len() {
        0 => 0,
        n @ 1..=9 => digits(fraction, 9)? * 10i64.pow(9 - n as u32) / 1000,
        _ => return None,
    };
    Some((((hour * 60 + minute) * 60 + whole) * 1_000_000 + fraction, offset))
}

fn offset_us(text: &str) -> Option<i64> {
    let (sign, text) = match text.strip_prefix('-') {
        Some(t) => (-1, t),
        None => (1, text.strip_prefix('+').unwrap_or(text)),
    };
    let text = text.trim();
    let (hours, minutes) = match text.split_once(':') {
        Some((h, m)) => (digits(h, 2)?, digits(m, 2)?),
        None if text.len() > 2 => {
            (digits(text.get(..text.len() - 2)?, 2)?, digits(text.get(text.len() - 2..)?, 2)?)
        }
        None => (digits(text, 2)?, 0),
    };
    (hours <= 24 && minutes < 60).then_some(sign * (hours * 60 + minutes) * 60_000_000)
}

/// A number of 1 to `most` digits and nothing else.
fn digits(text: &str, most: usize) -> Option<i64> {
    ((1..=most).contains(&text.len()) && text.bytes().all(|b| b.is_ascii_digit()))
        .then(|| text.parse().ok())?
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;
    use tessera_planner::time::format_micros;

    #[test]
    fn references_are_cftimes() {
        // cftime.num2date(1, units, calendar), and for offsets xarray.coding.times.
        let table = [
            ("days since 2000-01-01", None, "2000-01-02T00:00:00"),
            ("hours since 1900-1-1", Some("gregorian"), "1900-01-01T01:00:00"),
            ("seconds since 1970-01-01T00:00:00Z", None, "1970-01-01T00:00:01"),
            ("minutes since 2000-01-01 12:30", None, "2000-01-01T12:31:00"),
            ("hours since 2000-01-01 00:00:00 +5:30", None, "1999-12-31T19:30:00"),
            ("hours since 2000-01-01 00:00:00 -03", None, "2000-01-01T04:00:00"),
            ("hours since 2000-01-01 00:00:00.5 UTC", None, "2000-01-01T01:00:00.500000"),
            ("milliseconds since 2000-01-01 6:0:0", None, "2000-01-01T06:00:00.001000"),
            ("days since 2000-02-28", Some("noleap"), "2000-03-01T00:00:00"),
            ("days since 1900-02-28", Some("366_day"), "1900-02-29T00:00:00"),
            ("days since 2000-02-29", Some("360_day"), "2000-02-30T00:00:00"),
            ("days since 1900-02-28", Some("julian"), "1900-02-29T00:00:00"),
            ("days since 1582-10-15", Some("standard"), "1582-10-16T00:00:00"),
            ("months since 2000-01-01", Some("360_day"), "2000-02-01T00:00:00"),
            ("common_years since 2000-01-01", Some("noleap"), "2001-01-01T00:00:00"),
        ];
        for (units, calendar, want) in table {
            let (t, _) = parse(units, calendar).unwrap();
            assert_eq!(format_micros(t.origin_us + t.unit_ns / 1000, t.calendar), want, "{units}");
        }
        // In the mixed calendar 2020-01-01 is 737426 days after 0001-01-01 (cftime.date2num), in the proleptic one
        // two days less.
        for (calendar, days) in [("standard", 737_426), ("proleptic_gregorian", 737_424)] {
            let (t, _) = parse("days since 0001-01-01", Some(calendar)).unwrap();
            let shown = format_micros(t.origin_us + days * DAY_US, t.calendar);
            assert_eq!(shown, "2020-01-01T00:00:00", "{calendar}");
        }
    }

    #[test]
    fn what_is_no_time_says_why() {
        for (units, calendar, part) in [
            ("fortnights since 2000-01-01", None, "fortnights"),
            ("days since the flood", None, "the flood"),
            ("days since 2000-02-30", None, "2000-02-30"),
            ("days since 2000-01-01", Some("discordian"), "discordian"),
            ("days since 2000-01-01", Some("none"), "has no dates"),
            ("months since 2000-01-01", Some("noleap"), "fixed length"),
            ("days since 1582-10-10", None, "1582-10-10"),
            ("days since 2000-01-01 25:00", None, "25:00"),
            ("days since 2000-01-01-01", None, "2000-01-01-01"),
            ("days since ", None, "not a date"),
            ("days since 99999999999999999999-01-01", None, "9999"),
        ] {
            let e = parse(units, calendar).unwrap_err();
            assert!(e.contains(part), "{units}: {e}");
        }
        assert!(is_time("days since 2000-01-01") && !is_time("days") && !is_time("K"));
    }
}
