//! Calendars: conversion between microseconds and dates, in integer arithmetic.
//!
//! # Source
//! The Gregorian day count follows Howard Hinnant, "chrono-Compatible Low-Level Date Algorithms"; the other calendars
//! are those of the CF Conventions 1.11, section 4.4.1.

use crate::dtype::Calendar;
use serde::{Deserialize, Serialize};

/// Microseconds per day.
pub const DAY_US: i64 = 86_400_000_000;

/// A date and a time of day in some calendar.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct DateTime {
    /// Year, astronomical: 0 is 1 BC.
    pub year: i64,
    /// Month, 1 to 12.
    pub month: u32,
    /// Day of the month, from 1.
    pub day: u32,
    /// Microseconds since midnight.
    pub micros: i64,
}

/// A component of a date that queries group by.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum DatePart {
    /// Year.
    Year,
    /// Quarter, 1 to 4.
    Quarter,
    /// Month, 1 to 12.
    Month,
    /// ISO 8601 week, 1 to 53, in the standard calendar; in other calendars days of the year over 7, from 1.
    Week,
    /// Day of the month, from 1.
    Day,
    /// Day of the year, from 1.
    DayOfYear,
    /// Day of the week, Monday 0, as in xarray and pandas.
    DayOfWeek,
    /// Hour, 0 to 23.
    Hour,
    /// Minute, 0 to 59.
    Minute,
    /// Second, 0 to 59.
    Second,
    /// Season, 0 to 3; 0 is December to February.
    Season,
}

impl DatePart {
    /// Parses a lower-case name, as in `month(time)` and `date_part('month', time)`.
    pub fn parse(name: &str) -> Option<DatePart> {
        Some(match name {
            "year" => DatePart::Year,
            "quarter" => DatePart::Quarter,
            "month" => DatePart::Month,
            "week" | "weekofyear" => DatePart::Week,
            "day" => DatePart::Day,
            "dayofyear" | "doy" => DatePart::DayOfYear,
            "dayofweek" | "weekday" => DatePart::DayOfWeek,
            "hour" => DatePart::Hour,
            "minute" => DatePart::Minute,
            "second" => DatePart::Second,
            "season" => DatePart::Season,
            _ => return None,
        })
    }

    /// Name of the component in SQL.
    pub fn name(self) -> &'static str {
        match self {
            DatePart::Year => "year",
            DatePart::Quarter => "quarter",
            DatePart::Month => "month",
            DatePart::Week => "week",
            DatePart::Day => "day",
            DatePart::DayOfYear => "dayofyear",
            DatePart::DayOfWeek => "dayofweek",
            DatePart::Hour => "hour",
            DatePart::Minute => "minute",
            DatePart::Second => "second",
            DatePart::Season => "season",
        }
    }

    /// Returns the component of a datetime in microseconds since 1970-01-01 of its calendar.
    pub fn of(self, micros: i64, calendar: Calendar) -> i64 {
        let of_day = micros.rem_euclid(DAY_US);
        match self {
            DatePart::Hour => return of_day / 3_600_000_000,
            DatePart::Minute => return of_day / 60_000_000 % 60,
            DatePart::Second => return of_day / 1_000_000 % 60,
            DatePart::DayOfWeek => {
                return (micros.div_euclid(DAY_US) + first_weekday(calendar)).rem_euclid(7);
            }
            _ => {}
        }
        let t = split(micros, calendar);
        match self {
            DatePart::Year => t.year,
            DatePart::Quarter => i64::from((t.month - 1) / 3 + 1),
            DatePart::Month => i64::from(t.month),
            DatePart::Day => i64::from(t.day),
            DatePart::Season => i64::from(t.month % 12 / 3),
            DatePart::DayOfYear => day_of_year(t, calendar),
            DatePart::Week if calendar == Calendar::Standard => iso_week(micros, t),
            DatePart::Week if calendar == Calendar::Mixed && micros >= REFORM_US => {
                iso_week(micros, t)
            }
            _ => (day_of_year(t, calendar) - 1) / 7 + 1,
        }
    }
}

/// A part of a time down to which it is truncated.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Truncation {
    /// A multiple of that many microseconds, at most those of a day.
    Micros(i64),
    /// The week, from Monday.
    Week,
    /// Periods of this number of months, from January: 1, 3 or 12.
    Months(u32),
}

impl Truncation {
    /// Parses a lower-case name, as in `date_trunc('month', time)`.
    pub fn parse(name: &str) -> Option<Truncation> {
        Some(match name {
            "microsecond" => Truncation::Micros(1),
            "millisecond" => Truncation::Micros(1000),
            "second" => Truncation::Micros(1_000_000),
            "minute" => Truncation::Micros(60_000_000),
            "hour" => Truncation::Micros(3_600_000_000),
            "day" => Truncation::Micros(DAY_US),
            "week" => Truncation::Week,
            "month" => Truncation::Months(1),
            "quarter" => Truncation::Months(3),
            "year" => Truncation::Months(12),
            _ => return None,
        })
    }

    /// The first moment of the part in which a time lies.
    pub fn of(self, micros: i64, calendar: Calendar) -> i64 {
        match self {
            Truncation::Micros(unit) => micros.saturating_sub(micros.rem_euclid(unit)),
            Truncation::Week => {
                let week = 7 * DAY_US;
                let since = micros.rem_euclid(week) + first_weekday(calendar) * DAY_US;
                micros.saturating_sub(since % week)
            }
            Truncation::Months(months) => {
                let t = split(micros, calendar);
                let month = (t.month - 1) / months * months + 1;
                days_from_date(t.year, month, 1, calendar).saturating_mul(DAY_US)
            }
        }
    }
}

/// Day of the week of the calendar's 1970-01-01, Monday 0, as in cftime.
pub fn first_weekday(calendar: Calendar) -> i64 {
    match calendar {
        Calendar::Standard | Calendar::Mixed | Calendar::NoLeap => 3,
        Calendar::Day360 | Calendar::Julian => 2,
        Calendar::AllLeap => 6,
    }
}

fn day_of_year(t: DateTime, calendar: Calendar) -> i64 {
    if calendar == Calendar::Mixed {
        // Like cftime, count the ten days that the reform skipped.
        let leap = t.month > 2 && days_in_month(t.year, 2, calendar) == 29;
        return CUMULATIVE[t.month as usize - 1] + i64::from(leap) + i64::from(t.day);
    }
    days_from_date(t.year, t.month, t.day, calendar) - days_from_date(t.year, 1, 1, calendar) + 1
}

/// ISO week: a week belongs to the year of its Thursday.
fn iso_week(micros: i64, t: DateTime) -> i64 {
    let day = micros.div_euclid(DAY_US);
    let weekday = (day + 3).rem_euclid(7);
    let thursday = day - weekday + 3;
    let year = split(thursday * DAY_US, Calendar::Standard).year.max(t.year - 1);
    (thursday - days_from_date(year, 1, 1, Calendar::Standard)) / 7 + 1
}

/// The first day of the Gregorian calendar in [`Calendar::Mixed`].
const REFORM: (i64, u32, u32) = (1582, 10, 15);

/// [`REFORM`] in microseconds since 1970-01-01.
pub const REFORM_US: i64 = -141_427 * DAY_US;

/// Days from 1970-01-01 of the Julian calendar back to that of the Gregorian one, which is earlier.
const JULIAN_LAG_DAYS: i64 = 13;

const CUMULATIVE: [i64; 13] = [0, 31, 59, 90, 120, 151, 181, 212, 243, 273, 304, 334, 365];

fn days_in_month(year: i64, month: u32, calendar: Calendar) -> u32 {
    let normal = || match month {
        4 | 6 | 9 | 11 => 30,
        2 => 28,
        _ => 31,
    };
    let leap = match calendar {
        Calendar::Day360 => return 30,
        Calendar::NoLeap => false,
        Calendar::AllLeap => true,
        Calendar::Mixed if (year, month) == (1582, 10) => return 21,
        Calendar::Julian => year % 4 == 0,
        Calendar::Mixed if year <= 1582 => year % 4 == 0,
        Calendar::Standard | Calendar::Mixed => {
            year % 4 == 0 && (year % 100 != 0 || year % 400 == 0)
        }
    };
    if month == 2 && leap { 29 } else { normal() }
}

/// Days from 1970-01-01 of the calendar to one of its dates; `month` is 1 to 12.
fn days_from_date(year: i64, month: u32, day: u32, calendar: Calendar) -> i64 {
    let (m, d) = (i64::from(month), i64::from(day));
    match calendar {
        Calendar::Standard => gregorian_days(year, m, d),
        Calendar::Julian => julian_days(year, m, d) - julian_days(1970, 1, 1),
        Calendar::Mixed if (year, month, day) < REFORM => {
            julian_days(year, m, d) - julian_days(1970, 1, 1) + JULIAN_LAG_DAYS
        }
        Calendar::Mixed => gregorian_days(year, m, d),
        Calendar::NoLeap => (year - 1970) * 365 + CUMULATIVE[(month as usize - 1).min(11)] + d - 1,
        Calendar::AllLeap => {
            (year - 1970) * 366
                + CUMULATIVE[(month as usize - 1).min(11)]
                + i64::from(month > 2)
                + d
                - 1
        }
        Calendar::Day360 => (year - 1970) * 360 + (m - 1) * 30 + d - 1,
    }
}

fn gregorian_days(year: i64, month: i64, day: i64) -> i64 {
    // Years begin in March, so that the leap day is the last day of a year.
    let y = if month <= 2 { year - 1 } else { year };
    let era = y.div_euclid(400);
    let of_era = y.rem_euclid(400);
    let of_year = (153 * ((month + 9) % 12) + 2) / 5 + day - 1;
    era * 146_097 + of_era * 365 + of_era / 4 - of_era / 100 + of_year - 719_468
}

fn julian_days(year: i64, month: i64, day: i64) -> i64 {
    let y = if month <= 2 { year - 1 } else { year };
    let of_year = (153 * ((month + 9) % 12) + 2) / 5 + day - 1;
    y.div_euclid(4) * 1461 + y.rem_euclid(4) * 365 + of_year
}

/// Splits microseconds since 1970-01-01 of the calendar into date and time of day.
pub fn split(micros: i64, calendar: Calendar) -> DateTime {
    let days = micros.div_euclid(DAY_US);
    let of_day = micros.rem_euclid(DAY_US);
    let (year, month, day) = match calendar {
        Calendar::Mixed if micros < REFORM_US => {
            return split(micros - JULIAN_LAG_DAYS * DAY_US, Calendar::Julian);
        }
        Calendar::Standard | Calendar::Mixed => {
            let z = days + 719_468;
            let era = z.div_euclid(146_097);
            let of_era = z.rem_euclid(146_097);
            let y = (of_era - of_era / 1460 + of_era / 36_524 - of_era / 146_096) / 365;
            march_date(y + era * 400, of_era - (365 * y + y / 4 - y / 100))
        }
        Calendar::Julian => {
            let z = days + julian_days(1970, 1, 1);
            let of_cycle = z.rem_euclid(1461);
            let y = (of_cycle - of_cycle / 1460) / 365;
            march_date(y + z.div_euclid(1461) * 4, of_cycle - 365 * y)
        }
        Calendar::Day360 => {
            let of_year = days.rem_euclid(360);
            (1970 + days.div_euclid(360), (of_year / 30 + 1) as u32, (of_year % 30 + 1) as u32)
        }
        Calendar::NoLeap | Calendar::AllLeap => {
            let long = i64::from(calendar == Calendar::AllLeap);
            let of_year = days.rem_euclid(365 + long);
            let before = |m: usize| CUMULATIVE[m] + if m >= 2 { long } else { 0 };
            let m = (0..12).rev().find(|&m| before(m) <= of_year).unwrap_or(0);
            (1970 + days.div_euclid(365 + long), m as u32 + 1, (of_year - before(m)) as u32 + 1)
        }
    };
    DateTime { year, month, day, micros: of_day }
}

/// Day `of_year` (from 1 March of year `y`) as year, month and day.
fn march_date(y: i64, of_year: i64) -> (i64, u32, u32) {
    let mp = (5 * of_year + 2) / 153;
    let day = of_year - (153 * mp + 2) / 5 + 1;
    let month = if mp < 10 { mp + 3 } else { mp - 9 };
    (if month <= 2 { y + 1 } else { y }, month as u32, day as u32)
}

/// Microseconds since 1970-01-01 of a date and time of the calendar; `None` if the date does not exist or is out of
/// range.
pub fn join(t: DateTime, calendar: Calendar) -> Option<i64> {
    if t.month < 1 || t.month > 12 || t.day < 1 || t.year.abs() > 290_000 {
        return None;
    }
    let is_day = match (calendar, t.year, t.month) {
        // The reform skipped ten days of this month.
        (Calendar::Mixed, 1582, 10) => t.day <= 4 || (15..=31).contains(&t.day),
        _ => t.day <= days_in_month(t.year, t.month, calendar),
    };
    if !is_day {
        return None;
    }
    days_from_date(t.year, t.month, t.day, calendar).checked_mul(DAY_US)?.checked_add(t.micros)
}

/// A time moved by months, days and microseconds, in this order; `None` beyond the range of times. A day that the month
/// does not have becomes its last one.
pub fn moved(micros: i64, months: i64, days: i64, us: i64, calendar: Calendar) -> Option<i64> {
    let start = match months {
        0 => micros,
        _ => {
            let t = split(micros, calendar);
            let month = t.year * 12 + i64::from(t.month) - 1 + months;
            let (year, month) = (month.div_euclid(12), month.rem_euclid(12) as u32 + 1);
            // The reform skipped ten days: the first one after them.
            let is_reform = (calendar, year, month) == (Calendar::Mixed, 1582, 10);
            let day = match is_reform {
                true if (5..15).contains(&t.day) => 15,
                true => t.day,
                false => t.day.min(days_in_month(year, month, calendar)),
            };
            join(DateTime { year, month, day, micros: t.micros }, calendar)?
        }
    };
    start.checked_add(days.checked_mul(DAY_US)?)?.checked_add(us)
}

/// Returns the moments `[start, end)` that a date string covers: `2020` a year, `2020-01` a month, `2020-01-05` a day,
/// then an hour, minute or second, and with a fraction of a second one microsecond. `None` if the string is not a date
/// of the calendar. A `T` or a space separates date and time; a trailing `Z` is allowed, other time zones are not.
pub fn parse_period(text: &str, calendar: Calendar) -> Option<(i64, i64)> {
    let text = text.trim();
    let text = text.strip_suffix('Z').unwrap_or(text);
    let (sign, rest) = match text.strip_prefix('-') {
        Some(r) => (-1, r),
        None => (1, text),
    };
    let (date, clock) = match rest.split_once(['T', ' ']) {
        Some((d, c)) => (d, Some(c)),
        None => (rest, None),
    };
    let number = |s: &str, digits: std::ops::RangeInclusive<usize>| -> Option<i64> {
        (digits.contains(&s.len()) && s.bytes().all(|b| b.is_ascii_digit()))
            .then(|| s.parse().ok())?
    };
    let mut parts = date.split('-');
    let year = sign * number(parts.next()?, 1..=6)?;
    let month = parts.next().map(|s| number(s, 1..=2)).map_or(Some(None), |m| m.map(Some))?;
    let day = parts.next().map(|s| number(s, 1..=2)).map_or(Some(None), |d| d.map(Some))?;
    if parts.next().is_some() {
        return None;
    }
    let at = |year, month: i64, day: i64| {
        let (month, day) = (u32::try_from(month).ok()?, u32::try_from(day).ok()?);
        join(DateTime { year, month, day, micros: 0 }, calendar)
    };
    let next_month = |y, m: i64| if m == 12 { at(y + 1, 1, 1) } else { at(y, m + 1, 1) };
    match (month, day, clock) {
        (None, _, None) => Some((at(year, 1, 1)?, at(year + 1, 1, 1)?)),
        (Some(m), None, None) => Some((at(year, m, 1)?, next_month(year, m)?)),
        (Some(m), Some(d), None) => at(year, m, d).map(|t| (t, t + DAY_US)),
        (Some(m), Some(d), Some(clock)) => {
            let start = at(year, m, d)?;
            let mut fields = clock.split(':');
            let hour = number(fields.next()?, 1..=2).filter(|&h| h < 24)?;
            let Some(minute) = fields.next() else {
                let t = start + hour * 3_600_000_000;
                return Some((t, t + 3_600_000_000));
            };
            let minute = number(minute, 1..=2).filter(|&m| m < 60)?;
            let t = start + hour * 3_600_000_000 + minute * 60_000_000;
            let Some(second) = fields.next() else { return Some((t, t + 60_000_000)) };
            if fields.next().is_some() {
                return None;
            }
            let (whole, fraction) = match second.split_once('.') {
                Some((w, f)) => (w, Some(f)),
                None => (second, None),
            };
            let t = t + number(whole, 1..=2).filter(|&s| s < 60)? * 1_000_000;
            match fraction {
                None => Some((t, t + 1_000_000)),
                Some(f) => {
                    let digits = number(f, 1..=9)?;
                    let scale = 10i64.pow(9 - f.len() as u32);
                    // Digits below a microsecond are truncated.
                    let t = t + digits * scale / 1000;
                    Some((t, t + 1))
                }
            }
        }
        _ => None,
    }
}

/// Formats a moment as ISO 8601: `2020-01-05T00:00:00`, with six decimals of a second only if they are not zero.
pub fn format_micros(micros: i64, calendar: Calendar) -> String {
    let mut out = Vec::with_capacity(26);
    push_micros(micros, calendar, &mut out);
    String::from_utf8(out).unwrap_or_default()
}

/// Appends [`format_micros`] to a buffer.
pub fn push_micros(micros: i64, calendar: Calendar, out: &mut Vec<u8>) {
    let t = split(micros, calendar);
    push_date(&t, out);
    let (seconds, fraction) = (t.micros / 1_000_000, t.micros % 1_000_000);
    for (mark, n) in [(b'T', seconds / 3600), (b':', seconds / 60 % 60), (b':', seconds % 60)] {
        out.push(mark);
        push_digits(n as u64, 2, out);
    }
    if fraction != 0 {
        out.push(b'.');
        push_digits(fraction as u64, 6, out);
    }
}

/// Appends a date as ISO 8601: `2020-01-05`.
pub fn push_date(t: &DateTime, out: &mut Vec<u8>) {
    if t.year < 0 {
        out.push(b'-');
    }
    push_digits(t.year.unsigned_abs(), 4, out);
    out.push(b'-');
    push_digits(t.month.into(), 2, out);
    out.push(b'-');
    push_digits(t.day.into(), 2, out);
}

/// Appends a number with at least `least` digits.
fn push_digits(mut n: u64, least: usize, out: &mut Vec<u8>) {
    let mut digits = [b'0'; 20];
    let mut at = digits.len();
    while n > 0 || digits.len() - at < least {
        at -= 1;
        digits[at] = b'0' + (n % 10) as u8;
        n /= 10;
    }
    out.extend_from_slice(&digits[at..]);
}

#[cfg(test)]
mod tests;
