//! CF's units of time: `hours since 1900-01-01 00:00:00 +2:00`.
//!
//! # Source
//! CF Conventions 1.11, section 4.4; UDUNITS-2 for the spellings; xarray 2026 for the accepted forms.

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
    let is_standard = calendar == Calendar::Standard;
    let (mut date, offset_us) = reference_date(reference, is_standard).ok_or_else(bad)?;
    // As in cftime: in these calendars the year before 1 is -1, in the others 0.
    if matches!(calendar, Calendar::Julian) || is_mixed {
        match date.year {
            0 => return Err(format!("the calendar `{name}` has no year 0")),
            year if year < 0 => date.year += 1,
            _ => {}
        }
    }
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
        "year" | "years" | "yr" | "yrs" => {
            return Err("years have no fixed length, but `common_years` in noleap".into());
        }
        _ => return Err(format!("the unit `{unit}` is not known")),
    };
    Ok(us * 1000)
}

/// Parses `1900-1-1`, `1900/01/01`, `19000101`, `1900-01-01T06:30:00.5Z`, `1900-01-01 00:00:00 -5:30`,
/// `1900-01-01 0:0:0 UTC`: the time as written and its offset from UTC, in microseconds. `is_standard`: see
/// [`clock_of`].
fn reference_date(text: &str, is_standard: bool) -> Option<(DateTime, i64)> {
    let (negative, body) = match text.strip_prefix('-') {
        Some(rest) => (true, rest),
        None => (false, text.strip_prefix('+').unwrap_or(text)),
    };
    let is_of_date = |c: char| c.is_ascii_digit() || matches!(c, '-' | '/' | '.');
    let cut = body.find(|c: char| !is_of_date(c)).unwrap_or(body.len());
    let (date, clock) = (&body[..cut], body[cut..].trim_start_matches(['T', 't', ' ']).trim());
    let (year, month, day) = date_of(date)?;
    let year = if negative { -year } else { year };
    let (micros, offset) = clock_of(clock, is_standard)?;
    let date =
        DateTime { year, month: u32::try_from(month).ok()?, day: u32::try_from(day).ok()?, micros };
    Some((date, offset))
}

/// Year, month and day. Only with dashes the year may have fewer than four digits: `1/2/2000` has it at its end.
fn date_of(text: &str) -> Option<(i64, i64, i64)> {
    let Some(separator) = text.find(|c: char| !c.is_ascii_digit()) else {
        return match text.len() {
            8 => Some((digits(&text[..4], 4)?, digits(&text[4..6], 2)?, digits(&text[6..], 2)?)),
            _ => Some((digits(text, 4)?, 1, 1)),
        };
    };
    let mark = char::from(text.as_bytes()[separator]);
    let mut fields = text.split(mark);
    let year = fields.next().filter(|year| mark == '-' || year.len() == 4)?;
    let year = digits(year, 6)?;
    let month = fields.next().map_or(Some(1), |s| digits(s, 2))?;
    let day = fields.next().map_or(Some(1), |s| digits(s, 2))?;
    fields.next().is_none().then_some((year, month, day))
}

/// The time of day and the offset after it. An hour alone and a packed clock (`06`, `0600`) are read in the standard
/// calendars, as by UDUNITS and xarray. For other calendars xarray asks cftime, which takes them for midnight.
fn clock_of(text: &str, is_standard: bool) -> Option<(i64, i64)> {
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
    let is_packed = clock.bytes().all(|b| b.is_ascii_digit());
    // `2000-01-01 5` is five o'clock for UDUNITS, and midnight for xarray.
    let is_clear = is_standard && clock.len() > 1 || clock.bytes().all(|b| b == b'0');
    let (hour, minute, second) = match (clock.len(), is_packed) {
        (_, true) if !is_clear => return None,
        (4, true) => (&clock[..2], &clock[2..], "0"),
        (6, true) => (&clock[..2], &clock[2..4], &clock[4..]),
        _ => {
            let mut fields = clock.split(':');
            let hour = fields.next()?;
            let (minute, second) = (fields.next().unwrap_or("0"), fields.next().unwrap_or("0"));
            if fields.next().is_some() {
                return None;
            }
            (hour, minute, second)
        }
    };
    let hour = digits(hour, 2).filter(|&h| h < 24)?;
    let minute = digits(minute, 2).filter(|&m| m < 60)?;
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
    fn spellings_are_those_of_xarray() {
        // 40 units after the reference, by xarray.decode_cf 2026.9 with cftime 1.6.6.
        let table = [
            ("days since 20000101", None, "2000-02-10T00:00:00"),
            ("days since 20000101 06:00", None, "2000-02-10T06:00:00"),
            ("days since 20000101T0600", None, "2000-02-10T06:00:00"),
            ("days since 2000/01/01", None, "2000-02-10T00:00:00"),
            ("hours since 2000/1/1 6:00", None, "2000-01-02T22:00:00"),
            ("days since 2000.01.01", None, "2000-02-10T00:00:00"),
            ("hours since 2000-1-1 0", None, "2000-01-02T16:00:00"),
            ("hours since 2000-01-01 05", None, "2000-01-02T21:00:00"),
            ("hours since 2000-01-01T06Z", None, "2000-01-02T22:00:00"),
            ("days since 2000-01-01 12 +3", None, "2000-02-10T09:00:00"),
            ("days since 2000-01-01 060000", None, "2000-02-10T06:00:00"),
            ("days since 2000-01-01 00", Some("noleap"), "2000-02-10T00:00:00"),
            ("days since 2000-01-01Z", None, "2000-02-10T00:00:00"),
            ("days since 2000-01-01 UTC", None, "2000-02-10T00:00:00"),
            ("days since 2000-01-01 +01:00", None, "2000-02-09T23:00:00"),
            ("hours since 2000-01-01T00:00:00+0100", None, "2000-01-02T15:00:00"),
            ("hours since 2000-01-01 00:00:00+01:00", None, "2000-01-02T15:00:00"),
            ("days since 2000-01-01 00:00:00 -6", None, "2000-02-10T06:00:00"),
            ("days since 2000-01-01 00:00:00 0:00", None, "2000-02-10T00:00:00"),
            ("days since 2000-01-01 12:00:00 GMT", None, "2000-02-10T12:00:00"),
            ("days since 2000-01", None, "2000-02-10T00:00:00"),
            ("days since 2000", None, "2000-02-10T00:00:00"),
            ("days since 2000-01-01 00:00:0.0", None, "2000-02-10T00:00:00"),
            ("Hours since 2000-01-01", None, "2000-01-02T16:00:00"),
            ("d since 2000-01-01", None, "2000-02-10T00:00:00"),
            ("D since 2000-01-01", None, "2000-02-10T00:00:00"),
            ("hr since 2000-01-01", None, "2000-01-02T16:00:00"),
            ("hrs since 2000-01-01", None, "2000-01-02T16:00:00"),
            ("H since 2000-01-01", None, "2000-01-02T16:00:00"),
            ("mins since 2000-01-01", None, "2000-01-01T00:40:00"),
            ("secs since 2000-01-01", None, "2000-01-01T00:00:40"),
            ("S since 2000-01-01", None, "2000-01-01T00:00:40"),
            ("msec since 2000-01-01", None, "2000-01-01T00:00:00.040000"),
            ("millisec since 2000-01-01", None, "2000-01-01T00:00:00.040000"),
            ("microsec since 2000-01-01", None, "2000-01-01T00:00:00.000040"),
            ("days since 01-01-01", None, "0001-02-10T00:00:00"),
            ("days since 1-1-1 00:00:00", None, "0001-02-10T00:00:00"),
            ("days since 0000-01-01", Some("noleap"), "0000-02-10T00:00:00"),
            ("days since 0-1-1", Some("360_day"), "0000-02-11T00:00:00"),
            ("days since 0000-01-01", Some("proleptic_gregorian"), "0000-02-10T00:00:00"),
            ("days since 1850-01-01", Some("STANDARD"), "1850-02-10T00:00:00"),
            ("days since 1850-01-01", Some("NOLEAP"), "1850-02-10T00:00:00"),
            ("days since 1850-01-01", Some("365_DAY"), "1850-02-10T00:00:00"),
            ("days  since  2000-01-01", None, "2000-02-10T00:00:00"),
            (" days since 2000-01-01 ", None, "2000-02-10T00:00:00"),
            ("days since 99999-01-01", Some("noleap"), "99999-02-10T00:00:00"),
            ("seconds since 1970-01-01 00:00:00.123456789", None, "1970-01-01T00:00:40.123456"),
            ("months since 2000-01-15", Some("360_day"), "2003-05-15T00:00:00"),
            ("common_year since 2000-01-01", Some("365_day"), "2040-01-01T00:00:00"),
            ("hours since 2000-01-01 00:00 +1:30", None, "2000-01-02T14:30:00"),
        ];
        for (units, calendar, want) in table {
            let (t, is_mixed) = parse(units, calendar).unwrap();
            let calendar = if is_mixed { Calendar::Mixed } else { t.calendar };
            let shown = format_micros(t.origin_us + 40 * t.unit_ns / 1000, calendar);
            assert_eq!(shown, want, "{units}");
        }
    }

    #[test]
    fn julian_days_are_cftimes() {
        // cftime.num2date(days, units, calendar) 1.6.6: only the last three calendars have a year 0.
        for (units, calendar, days, want) in [
            ("days since -4713-01-01 12:00:00", "standard", 2_451_545, "2000-01-01T12:00:00"),
            ("days since -4713-01-01 12:00:00", "julian", 2_451_545, "1999-12-19T12:00:00"),
            ("days since -1-12-31", "standard", 1, "0001-01-01T00:00:00"),
            (
                "days since -4713-11-24 12:00",
                "proleptic_gregorian",
                2_451_545,
                "2000-01-01T12:00:00",
            ),
            ("days since -1-12-31", "noleap", 1, "0000-01-01T00:00:00"),
            ("days since -1-12-31", "all_leap", 366, "0000-12-31T00:00:00"),
        ] {
            let (t, _) = parse(units, Some(calendar)).unwrap();
            let shown = match calendar {
                "standard" => format_micros(t.origin_us + days * DAY_US, Calendar::Mixed),
                _ => format_micros(t.origin_us + days * DAY_US, t.calendar),
            };
            assert_eq!(shown, want, "{units} in {calendar}");
        }
    }

    #[test]
    fn invalid_times_state_a_reason() {
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
            ("days since 0000-01-01", None, "no year 0"),
            ("days since 0-1-1", Some("julian"), "no year 0"),
            ("years since 2000-01-01", None, "common_years"),
            ("months since 2000-01-01", None, "fixed length"),
            ("common_years since 2000-01-01", Some("360_day"), "common_years"),
            ("m since 2000-01-01", None, "`m`"),
            ("days since 200001", None, "200001"),
            ("days since 01/01/2000", None, "01/01/2000"),
            ("days since 1-1-2000", None, "1-1-2000"),
            ("days since Jan 1, 2000", None, "Jan 1, 2000"),
            ("days since 2000-001", None, "2000-001"),
            ("days since 2000-01-01 24:00:00", None, "24:00:00"),
            ("days since 2000-01-01 00:00:60", None, "00:00:60"),
            ("days since 2000-13-01", None, "2000-13-01"),
            ("days since 2000-01-01 5", None, "2000-01-01 5"),
            ("days since 2000-01-01 06", Some("noleap"), "2000-01-01 06"),
            ("days since 2000-01-01T0600", Some("360_day"), "T0600"),
            ("days since 2000-01-01 00:00:00 PST", None, "PST"),
            ("days since 2000-01-01 00:00:00,5", None, "00:00:00,5"),
            ("days since 99999999999999999999-01-01", None, "9999"),
        ] {
            let e = parse(units, calendar).unwrap_err();
            assert!(e.contains(part), "{units}: {e}");
        }
        assert!(is_time("days since 2000-01-01") && !is_time("days") && !is_time("K"));
    }
}
