//! `strptime(s, '%d.%m.%Y')` reads a time in a format, as in DuckDB; `try_strptime` returns NULL for a text of another
//! format. With `%z` the time is an instant.
//!
//! Texts that are not times of the format are errors, which show the text.

use std::sync::Arc;

use arrow::array::{ArrayRef, AsArray, Int64Array};
use arrow::compute::cast;
use arrow::datatypes::{DataType, Field, FieldRef, TimeUnit};
use datafusion::common::{Result, ScalarValue, exec_err, plan_err};
use datafusion::logical_expr::{
    ColumnarValue, Documentation, ReturnFieldArgs, ScalarFunctionArgs, ScalarUDF, ScalarUDFImpl,
    Signature, Volatility,
};
use tessera_planner::dtype::Calendar;
use tessera_planner::time::{DAY_US, DateTime, join, split};

use super::super::hashes::is_text;
use super::super::inner::{hashed_by, scalar};
use super::{DAYS, MOMENT, MONTHS};
use crate::lift::error::spoken;

const STRICT: &str = "strptime";
const TRIED: &str = "try_strptime";

pub(super) fn functions() -> [ScalarUDF; 2] {
    [false, true].map(|is_tried| Read::new(is_tried).into())
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Digits {
    Year,
    YearOfCentury,
    Month,
    Day,
    DayOfYear,
    Hour,
    HourOf12,
    Minute,
    Second,
    /// A fraction of a second of at most this number of digits.
    Fraction(u32),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Item {
    /// One or more spaces.
    Spaces,
    Char(char),
    Number(Digits),
    Weekday {
        is_short: bool,
    },
    MonthName {
        is_short: bool,
    },
    Half,
    Offset,
}

impl Digits {
    /// The most digits, and the smallest and the greatest number.
    fn bounds(self) -> (usize, i64, i64) {
        match self {
            Digits::Year => (4, 0, 9999),
            Digits::YearOfCentury => (2, 0, 99),
            Digits::Month => (2, 1, 12),
            Digits::Day => (2, 1, 31),
            Digits::DayOfYear => (3, 1, 366),
            Digits::Hour => (2, 0, 23),
            Digits::HourOf12 => (2, 1, 12),
            Digits::Minute | Digits::Second => (2, 0, 59),
            Digits::Fraction(digits) => (digits as usize, 0, i64::MAX),
        }
    }
}

fn items(format: &str) -> Result<Vec<Item>> {
    let mut items = Vec::new();
    let mut chars = format.chars();
    while let Some(c) = chars.next() {
        if c.is_ascii_whitespace() {
            if items.last() != Some(&Item::Spaces) {
                items.push(Item::Spaces);
            }
            continue;
        }
        if c != '%' {
            items.push(Item::Char(c));
            continue;
        }
        // A number without leading zeros is read as one with them.
        let letter = match chars.next() {
            Some('-') => chars.next().filter(|c| "dmyHIMSj".contains(*c)),
            other => other,
        };
        items.push(match letter {
            Some('Y') => Item::Number(Digits::Year),
            Some('y') => Item::Number(Digits::YearOfCentury),
            Some('m') => Item::Number(Digits::Month),
            Some('d') => Item::Number(Digits::Day),
            Some('j') => Item::Number(Digits::DayOfYear),
            Some('H') => Item::Number(Digits::Hour),
            Some('I') => Item::Number(Digits::HourOf12),
            Some('M') => Item::Number(Digits::Minute),
            Some('S') => Item::Number(Digits::Second),
            Some('g') => Item::Number(Digits::Fraction(3)),
            Some('f') => Item::Number(Digits::Fraction(6)),
            Some('n') => Item::Number(Digits::Fraction(9)),
            Some('a') => Item::Weekday { is_short: true },
            Some('A') => Item::Weekday { is_short: false },
            Some('b' | 'h') => Item::MonthName { is_short: true },
            Some('B') => Item::MonthName { is_short: false },
            Some('p') => Item::Half,
            Some('z') => Item::Offset,
            Some('%') => Item::Char('%'),
            Some('x') => {
                items.extend(self::items("%Y-%m-%d")?);
                continue;
            }
            Some('X' | 'T') => {
                items.extend(self::items("%H:%M:%S")?);
                continue;
            }
            Some('c') => {
                items.extend(self::items("%Y-%m-%d %H:%M:%S")?);
                continue;
            }
            _ => {
                return plan_err!(
                    "`{STRICT}` cannot read the format '{format}'; its parts are %Y %y %m %d %j %H %I %M %S %f %g %n %a %A %b %B %p %z %x %X %c and %%"
                );
            }
        });
    }
    if items.is_empty() { plan_err!("the format of `{STRICT}` is empty") } else { Ok(items) }
}

/// The fields that have been read so far.
#[derive(Debug)]
struct Said {
    year: i64,
    month: i64,
    day: i64,
    day_of_year: Option<i64>,
    hour: i64,
    minute: i64,
    second: i64,
    ns: i64,
    /// Which half of the day the hour is in, where the text says so.
    is_afternoon: Option<bool>,
    offset_seconds: i64,
}

/// The microseconds since 1970 of a text; `None` if it does not have the format.
fn read(text: &str, items: &[Item]) -> Option<i64> {
    let mut said = Said {
        year: 1900,
        month: 1,
        day: 1,
        day_of_year: None,
        hour: 0,
        minute: 0,
        second: 0,
        ns: 0,
        is_afternoon: None,
        offset_seconds: 0,
    };
    let mut rest = text.trim_matches(|c: char| c.is_ascii_whitespace());
    for item in items {
        match *item {
            Item::Spaces => {
                let after = rest.trim_start_matches(|c: char| c.is_ascii_whitespace());
                // The spaces at the end of the text are trimmed already.
                if after.len() == rest.len() && !rest.is_empty() {
                    return None;
                }
                rest = after;
            }
            Item::Char(c) => rest = rest.strip_prefix(c)?,
            Item::Number(field) => rest = number(rest, field, &mut said)?,
            Item::Weekday { is_short } => (_, rest) = word(rest, &DAYS, is_short)?,
            Item::MonthName { is_short } => {
                let (at, after) = word(rest, &MONTHS, is_short)?;
                (said.month, rest) = (at as i64 + 1, after);
            }
            Item::Half => {
                let (at, after) = word(rest, &["AM", "PM"], false)?;
                (said.is_afternoon, rest) = (Some(at == 1), after);
            }
            Item::Offset => rest = offset(rest, &mut said)?,
        }
    }
    if rest.is_empty() { said.micros() } else { None }
}

/// Digits at the start of a text as the number of a field, and what follows.
fn number<'a>(text: &'a str, field: Digits, said: &mut Said) -> Option<&'a str> {
    let (width, least, most) = field.bounds();
    let digits = text.bytes().take(width).take_while(u8::is_ascii_digit).count();
    let (digits, after) = text.split_at(digits);
    let number: i64 = digits.parse().ok()?;
    if !(least..=most).contains(&number) {
        return None;
    }
    match field {
        Digits::Year => said.year = number,
        Digits::YearOfCentury => said.year = number + if number < 69 { 2000 } else { 1900 },
        Digits::Month => said.month = number,
        Digits::Day => said.day = number,
        Digits::DayOfYear => said.day_of_year = Some(number),
        Digits::Hour | Digits::HourOf12 => said.hour = number,
        Digits::Minute => said.minute = number,
        Digits::Second => said.second = number,
        Digits::Fraction(_) => said.ns = number * 10i64.pow(9 - digits.len() as u32),
    }
    Some(after)
}

/// Which of some words a text begins with, and what follows; short ones have three letters.
fn word<'a>(text: &'a str, words: &[&str], is_short: bool) -> Option<(usize, &'a str)> {
    words.iter().enumerate().find_map(|(at, &word)| {
        let word = if is_short { word.get(..3)? } else { word };
        let start = text.get(..word.len())?;
        start.eq_ignore_ascii_case(word).then(|| (at, &text[word.len()..]))
    })
}

/// `+02`, `+0200`, `-02:30` or `+02:30:15` at the start of a text, and what follows.
fn offset<'a>(text: &'a str, said: &mut Said) -> Option<&'a str> {
    let sign = match text.chars().next()? {
        '+' => 1,
        '-' => -1,
        _ => return None,
    };
    let mut rest = &text[1..];
    let two = |text: &str| -> Option<i64> {
        let digits = text.get(..2)?;
        digits.bytes().all(|b| b.is_ascii_digit()).then(|| digits.parse().ok())?
    };
    let mut seconds = two(rest)? * 3600;
    rest = &rest[2..];
    for unit in [60, 1] {
        let (is_colon, digits) = match rest.strip_prefix(':') {
            Some(digits) => (true, digits),
            None => (false, rest),
        };
        // `+0200` has no seconds.
        if !is_colon && unit == 1 {
            break;
        }
        let Some(part) = two(digits) else { break };
        seconds += part * unit;
        rest = &digits[2..];
    }
    said.offset_seconds = sign * seconds;
    Some(rest)
}

impl Said {
    fn micros(&self) -> Option<i64> {
        let hour = match self.is_afternoon {
            None => self.hour,
            Some(is_afternoon) if self.hour <= 12 => self.hour % 12 + i64::from(is_afternoon) * 12,
            Some(_) => return None,
        };
        let seconds = hour * 3600 + self.minute * 60 + self.second - self.offset_seconds;
        let date = |year, month: i64, day: i64| {
            let (month, day) = (u32::try_from(month).ok()?, u32::try_from(day).ok()?);
            join(DateTime { year, month, day, micros: 0 }, Calendar::Standard)
        };
        let date = match self.day_of_year {
            Some(number) => {
                let date = date(self.year, 1, 1)? + (number - 1) * DAY_US;
                (split(date, Calendar::Standard).year == self.year).then_some(date)?
            }
            None => date(self.year, self.month, self.day)?,
        };
        date.checked_add(seconds * 1_000_000 + self.ns / 1000)
    }
}

#[derive(Debug, PartialEq, Eq)]
struct Read {
    is_tried: bool,
    signature: Signature,
    documentation: Documentation,
}

hashed_by!(Read, function => function.is_tried);

impl Read {
    fn new(is_tried: bool) -> Self {
        let (syntax, about) = match is_tried {
            false => ("strptime(s, format)", "The time of a text in a format such as '%d.%m.%Y'."),
            true => (
                "try_strptime(s, format)",
                "The time of a text in a format such as '%d.%m.%Y'; NULL for other texts.",
            ),
        };
        let signature = Signature::user_defined(Volatility::Immutable);
        Self { is_tried, signature, documentation: super::super::documented(syntax, about) }
    }

    fn items(&self, format: Option<&ScalarValue>) -> Result<Option<Vec<Item>>> {
        match format {
            Some(format) if format.is_null() => Ok(None),
            Some(format) => match format.try_as_str().flatten() {
                Some(format) => Ok(Some(items(format)?)),
                None => plan_err!("the format of `{}` must be a text", self.name()),
            },
            None => plan_err!("the format of `{}` must be a constant text", self.name()),
        }
    }
}

impl ScalarUDFImpl for Read {
    scalar!(documentation, signature, type_by_field);

    fn name(&self) -> &str {
        if self.is_tried { TRIED } else { STRICT }
    }

    fn coerce_types(&self, types: &[DataType]) -> Result<Vec<DataType>> {
        let [text, format] = types else {
            return plan_err!("`{}` takes a text and a format", self.name());
        };
        for of in [text, format] {
            if !is_text(of) && !of.is_null() {
                let of = spoken(&of.to_string());
                return plan_err!("`{}` takes a text and a format, not {of}", self.name());
            }
        }
        Ok(vec![DataType::Utf8, DataType::Utf8])
    }

    fn return_field_from_args(&self, args: ReturnFieldArgs<'_>) -> Result<FieldRef> {
        let items = self.items(args.scalar_arguments.get(1).copied().flatten())?;
        let is_instant = items.is_some_and(|items| items.contains(&Item::Offset));
        let kind = match is_instant {
            true => DataType::Timestamp(TimeUnit::Microsecond, Some("UTC".into())),
            false => MOMENT,
        };
        Ok(Arc::new(Field::new(self.name(), kind, true)))
    }

    fn invoke_with_args(&self, args: ScalarFunctionArgs) -> Result<ColumnarValue> {
        let [texts, ColumnarValue::Scalar(format)] = args.args.as_slice() else {
            return exec_err!("the format of `{}` must be a constant text", self.name());
        };
        let is_scalar = matches!(texts, ColumnarValue::Scalar(_));
        let texts = texts.to_array(1)?;
        let Some(items) = self.items(Some(format))? else {
            let nothing = ScalarValue::try_from(args.return_field.data_type())?;
            return Ok(ColumnarValue::Scalar(nothing));
        };
        let times = texts.as_string::<i32>().iter().map(|text| {
            let Some(text) = text else { return Ok(None) };
            match read(text, &items) {
                None if !self.is_tried => {
                    exec_err!(
                        "`{STRICT}`: '{}' is not a time of the format '{format}'",
                        shortened(text)
                    )
                }
                us => Ok(us),
            }
        });
        let times: ArrayRef = Arc::new(times.collect::<Result<Int64Array>>()?);
        super::super::columnar(cast(&times, args.return_field.data_type())?, is_scalar)
    }
}

/// The start of a text, for a message.
fn shortened(text: &str) -> String {
    const SHOWN: usize = 60;
    match text.char_indices().nth(SHOWN) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text.to_string(),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]
    use super::*;
    use tessera_planner::time::format_micros;

    /// Expected values from DuckDB 2.0.
    #[test]
    fn texts_are_read_as_in_duckdb() {
        for (text, format, want) in [
            (" 2020-02-03 ", "%Y-%m-%d", "2020-02-03T00:00:00"),
            ("2020-3-1", "%Y-%-m-%-d", "2020-03-01T00:00:00"),
            ("20200301", "%Y%m%d", "2020-03-01T00:00:00"),
            ("2020-060", "%Y-%j", "2020-02-29T00:00:00"),
            ("10:30 PM 1/2/20", "%I:%M %p %d/%m/%y", "2020-02-01T22:30:00"),
            ("12:30 AM 1/2/99", "%I:%M %p %d/%m/%y", "1999-02-01T00:30:00"),
            ("10:30 PM", "%H:%M %p", "1900-01-01T22:30:00"),
            ("AM 12", "%p %H", "1900-01-01T00:00:00"),
            ("12", "%I", "1900-01-01T12:00:00"),
            ("Feb 2020 04:05:06", "%h %Y %T", "2020-02-01T04:05:06"),
            ("mon 1 MAR 2020", "%a %d %b %Y", "2020-03-01T00:00:00"),
            ("Sunday 1 March 2020", "%A %d %B %Y", "2020-03-01T00:00:00"),
            ("2020-03-01 10:11:12.5", "%Y-%m-%d %H:%M:%S.%f", "2020-03-01T10:11:12.500000"),
            ("2020-03-01T10:11:12.345Z", "%Y-%m-%dT%H:%M:%S.%gZ", "2020-03-01T10:11:12.345000"),
            ("03/Mar/2020:10:11:12 +0200", "%d/%b/%Y:%H:%M:%S %z", "2020-03-03T08:11:12"),
            ("2020+02:30", "%Y%z", "2019-12-31T21:30:00"),
            ("2020  5", "%Y %m", "2020-05-01T00:00:00"),
            ("10", "%H", "1900-01-01T10:00:00"),
            ("2020 %", "%Y %%", "2020-01-01T00:00:00"),
            ("2020-01-02 10:11:12", "%c", "2020-01-02T10:11:12"),
        ] {
            let us = read(text, &items(format).unwrap());
            let found = us.map(|us| format_micros(us, Calendar::Standard));
            assert_eq!(found.as_deref(), Some(want), "{text}");
        }
        for (text, format) in [
            ("2020-02-30", "%Y-%m-%d"),
            ("2020-03-01 x", "%Y-%m-%d"),
            ("2021-366", "%Y-%j"),
            ("13 PM", "%I %p"),
            ("13 AM", "%H %p"),
            ("12345", "%Y"),
            ("-5", "%Y"),
            ("", "%Y"),
            ("2020Z", "%Y%z"),
            ("2020-01-01 10:00:60", "%Y-%m-%d %H:%M:%S"),
            ("2020-ärz", "%Y-%b"),
        ] {
            assert_eq!(read(text, &items(format).unwrap()), None, "{text}");
        }
        for format in ["", "%", "%Q", "%-", "%-z"] {
            assert!(items(format).is_err(), "{format}");
        }
    }
}
