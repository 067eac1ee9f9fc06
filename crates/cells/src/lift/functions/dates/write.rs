//! `strftime(t, '%d.%m.%Y')`: the text of a time in a format, as in DuckDB. The format may come first.

use std::fmt;
use std::sync::Arc;

use arrow::array::StringArray;
use arrow::array::timezone::Tz;
use arrow::datatypes::{DataType, Field, FieldRef, TimeUnit};
use datafusion::common::{Result, ScalarValue, exec_err, plan_err};
use datafusion::logical_expr::{
    ColumnarValue, Documentation, ReturnFieldArgs, ScalarFunctionArgs, ScalarUDF, ScalarUDFImpl,
    Signature, Volatility,
};
use tessera_planner::dtype::Calendar;
use tessera_planner::time::{DAY_US, DatePart, DateTime, Truncation, split};

use super::super::hashes::is_text;
use super::super::inner::scalar;
use super::{DAYS, MONTHS, calendar_of, micros, shown, time_type, zone_of};
use crate::lift::error::spoken;

const NAME: &str = "strftime";

/// Upper bound on the characters of a format: the texts of a batch of rows are in memory.
const FORMAT_MAX: usize = 1000;

pub(super) fn function() -> ScalarUDF {
    let documentation = super::super::documented(
        "strftime(t, format)",
        "The text of a time in a format such as '%d.%m.%Y'.",
    );
    Write { signature: Signature::user_defined(Volatility::Immutable), documentation }.into()
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Number {
    Year,
    YearOfCentury,
    Month,
    Day,
    DayOfYear,
    Hour,
    HourOf12,
    Minute,
    Second,
    Milli,
    Micro,
    Nano,
    /// Sundays of the year so far.
    Sundays,
    /// Mondays of the year so far.
    Mondays,
    /// The year of the ISO week.
    IsoYear,
    IsoWeek,
    /// Monday is 1.
    IsoWeekday,
    /// Sunday is 0.
    Weekday,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Item {
    Char(char),
    /// A number with at least this many digits.
    Number(Number, usize),
    Weekday {
        is_short: bool,
    },
    MonthName {
        is_short: bool,
    },
    Half,
    Offset,
    Zone,
}

/// The item of a letter after `%`.
fn item(letter: char) -> Option<Item> {
    Some(match letter {
        'Y' => Item::Number(Number::Year, 4),
        'y' => Item::Number(Number::YearOfCentury, 2),
        'm' => Item::Number(Number::Month, 2),
        'd' => Item::Number(Number::Day, 2),
        'j' => Item::Number(Number::DayOfYear, 3),
        'H' => Item::Number(Number::Hour, 2),
        'I' => Item::Number(Number::HourOf12, 2),
        'M' => Item::Number(Number::Minute, 2),
        'S' => Item::Number(Number::Second, 2),
        'g' => Item::Number(Number::Milli, 3),
        'f' => Item::Number(Number::Micro, 6),
        'n' => Item::Number(Number::Nano, 9),
        'U' => Item::Number(Number::Sundays, 2),
        'W' => Item::Number(Number::Mondays, 2),
        'G' => Item::Number(Number::IsoYear, 4),
        'V' => Item::Number(Number::IsoWeek, 2),
        'u' => Item::Number(Number::IsoWeekday, 1),
        'w' => Item::Number(Number::Weekday, 1),
        'a' => Item::Weekday { is_short: true },
        'A' => Item::Weekday { is_short: false },
        'b' | 'h' => Item::MonthName { is_short: true },
        'B' => Item::MonthName { is_short: false },
        'p' => Item::Half,
        'z' => Item::Offset,
        'Z' => Item::Zone,
        '%' => Item::Char('%'),
        _ => return None,
    })
}

fn items(format: &str) -> Result<Vec<Item>> {
    let length = format.chars().count();
    if !(1..=FORMAT_MAX).contains(&length) {
        return plan_err!(
            "the format of `{NAME}` has {length} characters; it may have 1 to {FORMAT_MAX}"
        );
    }
    let mut items = Vec::new();
    let mut chars = format.chars();
    while let Some(c) = chars.next() {
        if c != '%' {
            items.push(Item::Char(c));
            continue;
        }
        let found = match chars.next() {
            Some('c') => self::items("%Y-%m-%d %H:%M:%S")?,
            Some('x') => self::items("%Y-%m-%d")?,
            Some('X' | 'T') => self::items("%H:%M:%S")?,
            // Without leading zeros.
            Some('-') => match chars.next().filter(|c| "dmyHIMSj".contains(*c)).and_then(item) {
                Some(Item::Number(number, _)) => vec![Item::Number(number, 1)],
                _ => Vec::new(),
            },
            letter => letter.and_then(item).into_iter().collect(),
        };
        if found.is_empty() {
            return plan_err!(
                "`{NAME}` cannot write the format '{format}'; its parts are %Y %y %m %d %j %H %I %M %S %g %f %n %a %A %b %B %p %U %W %G %V %u %w %z %Z %c %x %X and %%, and %- for numbers without leading zeros"
            );
        }
        items.extend(found);
    }
    Ok(items)
}

struct Written<'a> {
    items: &'a [Item],
    /// Local time in microseconds, and the nanoseconds within the microsecond.
    us: i64,
    ns: i64,
    calendar: Calendar,
    date: DateTime,
    /// UTC offset in seconds.
    ahead: i64,
    zone: &'a str,
}

impl Written<'_> {
    /// The Thursday of the week, which lies in the year of the ISO week.
    fn thursday(&self) -> i64 {
        Truncation::Week.of(self.us, self.calendar).saturating_add(3 * DAY_US)
    }

    fn number(&self, of: Number) -> i64 {
        let part = |part: DatePart| part.of(self.us, self.calendar);
        let (hour, of_second) = (self.date.micros / 3_600_000_000, self.date.micros % 1_000_000);
        let monday = part(DatePart::DayOfWeek);
        let weeks = |weekday: i64| (part(DatePart::DayOfYear) + 6 - weekday) / 7;
        match of {
            Number::Year => self.date.year,
            Number::YearOfCentury => (self.date.year % 100).abs(),
            Number::Month => self.date.month.into(),
            Number::Day => self.date.day.into(),
            Number::DayOfYear => part(DatePart::DayOfYear),
            Number::Hour => hour,
            Number::HourOf12 => (hour + 11) % 12 + 1,
            Number::Minute => part(DatePart::Minute),
            Number::Second => part(DatePart::Second),
            Number::Milli => of_second / 1000,
            Number::Micro => of_second,
            Number::Nano => of_second * 1000 + self.ns,
            Number::Sundays => weeks((monday + 1) % 7),
            Number::Mondays => weeks(monday),
            Number::IsoYear => split(self.thursday(), self.calendar).year,
            Number::IsoWeek => (DatePart::DayOfYear.of(self.thursday(), self.calendar) + 6) / 7,
            Number::IsoWeekday => monday + 1,
            Number::Weekday => (monday + 1) % 7,
        }
    }
}

/// The name of a place, or its first three letters.
fn named(names: &[&'static str], at: i64, is_short: bool) -> &'static str {
    let name = usize::try_from(at).ok().and_then(|at| names.get(at)).copied().unwrap_or_default();
    if is_short { name.get(..3).unwrap_or(name) } else { name }
}

impl fmt::Display for Written<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for item in self.items {
            match *item {
                Item::Char(c) => write!(f, "{c}")?,
                Item::Number(of, digits) => match self.number(of) {
                    // As in DuckDB, years before 0 have no leading zeros.
                    number @ ..0 => write!(f, "{number}")?,
                    number => write!(f, "{number:0digits$}")?,
                },
                Item::Weekday { is_short } => {
                    let at = DatePart::DayOfWeek.of(self.us, self.calendar);
                    f.write_str(named(&DAYS, at, is_short))?;
                }
                Item::MonthName { is_short } => {
                    f.write_str(named(&MONTHS, i64::from(self.date.month) - 1, is_short))?;
                }
                Item::Half => {
                    f.write_str(if self.date.micros < DAY_US / 2 { "AM" } else { "PM" })?;
                }
                Item::Offset => {
                    let (sign, ahead) = (if self.ahead < 0 { '-' } else { '+' }, self.ahead.abs());
                    write!(f, "{sign}{:02}", ahead / 3600)?;
                    if ahead % 3600 != 0 {
                        write!(f, ":{:02}", ahead / 60 % 60)?;
                    }
                    if ahead % 60 != 0 {
                        write!(f, ":{:02}", ahead % 60)?;
                    }
                }
                Item::Zone => f.write_str(self.zone)?,
            }
        }
        Ok(())
    }
}

/// The text of a time, given in microseconds and the nanoseconds within the microsecond.
fn written(
    (us, ns): (i64, i64),
    items: &[Item],
    calendar: Calendar,
    zone: Option<(Tz, &str)>,
) -> Result<String> {
    let there = shown(us, zone.map(|(zone, _)| zone))?;
    let (date, ahead) = (split(there, calendar), (there - us) / 1_000_000);
    let zone = match zone {
        Some((_, "+00:00")) => "UTC",
        Some((_, name)) => name,
        None => "",
    };
    Ok(Written { items, us: there, ns, calendar, date, ahead, zone }.to_string())
}

/// The place of the format: a text beside a time.
fn place(first: &DataType, second: &DataType) -> usize {
    let is_first = !is_text(second) && !second.is_null() && (is_text(first) || first.is_null());
    usize::from(!is_first)
}

#[derive(Debug, PartialEq, Eq, Hash)]
struct Write {
    signature: Signature,
    documentation: Documentation,
}

impl ScalarUDFImpl for Write {
    scalar!(name NAME, documentation, signature, type_by_field);

    fn coerce_types(&self, types: &[DataType]) -> Result<Vec<DataType>> {
        let [first, second] = types else { return plan_err!("`{NAME}` takes a time and a format") };
        let place = place(first, second);
        let (format, time) = (&types[place], &types[1 - place]);
        if !is_text(format) && !format.is_null() {
            let format = spoken(&format.to_string());
            return plan_err!("the format of `{NAME}` must be a text, not {format}");
        }
        let mut all = vec![DataType::Utf8; 2];
        all[1 - place] = match time {
            DataType::Timestamp(TimeUnit::Nanosecond, _) => time.clone(),
            other => time_type(NAME, other)?,
        };
        Ok(all)
    }

    fn return_field_from_args(&self, args: ReturnFieldArgs<'_>) -> Result<FieldRef> {
        let [first, second] = args.arg_fields else {
            return plan_err!("`{NAME}` takes a time and a format");
        };
        let place = place(first.data_type(), second.data_type());
        calendar_of(NAME, &args.arg_fields[1 - place])?;
        let format = args.scalar_arguments.get(place).copied().flatten();
        if let Some(format) = format.and_then(|format| format.try_as_str().flatten()) {
            items(format)?;
        }
        Ok(Arc::new(Field::new(NAME, DataType::Utf8, true)))
    }

    fn invoke_with_args(&self, args: ScalarFunctionArgs) -> Result<ColumnarValue> {
        let ([first, second], 2) = (args.arg_fields.as_slice(), args.args.len()) else {
            return exec_err!("`{NAME}` takes a time and a format");
        };
        let place = place(first.data_type(), second.data_type());
        let (of, value) = (&args.arg_fields[1 - place], &args.args[1 - place]);
        let ColumnarValue::Scalar(format) = &args.args[place] else {
            return exec_err!("the format of `{NAME}` must be a constant text");
        };
        let Some(format) = format.try_as_str().flatten() else {
            return Ok(ColumnarValue::Scalar(ScalarValue::Utf8(None)));
        };
        let (items, calendar) = (items(format)?, calendar_of(NAME, of)?);
        let zone = match (zone_of(of.data_type())?, of.data_type()) {
            (Some(zone), DataType::Timestamp(_, Some(name))) => Some((zone, &**name)),
            _ => None,
        };
        let is_scalar = matches!(value, ColumnarValue::Scalar(_));
        // Microseconds; nanoseconds of times that have them.
        let times = micros(&value.to_array(1)?)?;
        let in_ns = matches!(of.data_type(), DataType::Timestamp(TimeUnit::Nanosecond, _));
        let texts = times.iter().map(|time| {
            let Some(time) = time else { return Ok(None) };
            let time =
                if in_ns { (time.div_euclid(1000), time.rem_euclid(1000)) } else { (time, 0) };
            written(time, &items, calendar, zone).map(Some)
        });
        super::super::columnar(Arc::new(texts.collect::<Result<StringArray>>()?), is_scalar)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]
    use std::str::FromStr;

    use super::*;
    use tessera_planner::time::join;

    fn at(year: i64, month: u32, day: u32, micros: i64) -> i64 {
        join(DateTime { year, month, day, micros }, Calendar::Standard).unwrap()
    }

    /// Expected values from DuckDB 2.0.
    #[test]
    fn times_are_written_as_in_duckdb() {
        let morning = at(2005, 2, 3, 14_706_078_901); // 04:05:06.078901
        for (us, format, want) in [
            (morning, "%Y-%m-%d %H:%M:%S.%f %g %n", "2005-02-03 04:05:06.078901 078 078901789"),
            (morning, "%-d.%-m.%-y %-H:%-M:%-S %-I %-j|%j", "3.2.5 4:5:6 4 34|034"),
            (morning, "%a %A %b %h %B %p %w %u", "Thu Thursday Feb Feb February AM 4 4"),
            (
                morning,
                "%c|%x|%X|%T|%z|%Z|é%%",
                "2005-02-03 04:05:06|2005-02-03|04:05:06|04:05:06|+00||é%",
            ),
            (at(2021, 1, 3, 0), "%U %W %V %G %I %p %w %u", "01 00 53 2020 12 AM 0 7"),
            (at(2021, 12, 31, DAY_US / 2), "%U %W %V %I %p %j", "52 52 52 12 PM 365"),
            (at(2022, 1, 1, 0), "%U %W %V %G", "00 00 52 2021"),
            (at(5, 12, 31, 0), "%Y %y %j %U %V %a", "0005 05 365 52 52 Sat"),
            (at(-44, 3, 15, 0), "%Y|%y|%x|%G|%V|%A", "-44|44|-44-03-15|-44|11|Thursday"),
            (at(12021, 1, 2, 0), "%Y %G %x", "12021 12020 12021-01-02"),
        ] {
            let found = written((us, 789), &items(format).unwrap(), Calendar::Standard, None);
            assert_eq!(found.unwrap(), want, "{format}");
        }
        for (zone, year, want) in [
            ("Asia/Kolkata", 2020, "+05:30 Asia/Kolkata 17:35"),
            ("America/St_Johns", 2020, "-02:30 America/St_Johns 09:35"),
            ("America/St_Johns", 1850, "-03:30:52 America/St_Johns 08:34"),
            ("+00:00", 2020, "+00 UTC 12:05"),
        ] {
            let of = Some((Tz::from_str(zone).unwrap(), zone));
            let us = at(year, 7, 3, 43_506_000_000); // 12:05:06
            let found =
                written((us, 0), &items("%z %Z %H:%M").unwrap(), Calendar::Standard, of).unwrap();
            assert_eq!(found, want);
        }
        for format in ["", "%", "%-", "%-f", "%Q", "%e", "%F"] {
            assert!(items(format).is_err(), "{format}");
        }
        assert!(items(&"%A".repeat(FORMAT_MAX)).is_err());
    }

    #[test]
    fn other_calendars_have_their_own_days() {
        let us = join(DateTime { year: 2000, month: 2, day: 30, micros: 0 }, Calendar::Day360);
        let found = written((us.unwrap(), 0), &items("%d %B %j").unwrap(), Calendar::Day360, None);
        assert_eq!(found.unwrap(), "30 February 060");
    }
}
