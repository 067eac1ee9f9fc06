//! Text of times in calendars that Arrow does not support, and texts of times that it does not read: those without seconds,
//! and dates with slashes.

use std::sync::Arc;

use arrow::array::{ArrayRef, AsArray, StringArray};
use arrow::compute::cast;
use arrow::datatypes::{DataType, Int64Type};
use datafusion::common::{Result, exec_err};
use datafusion::logical_expr::{
    ColumnarValue, ScalarFunctionArgs, ScalarUDF, ScalarUDFImpl, Signature, Volatility,
};
use tessera_planner::dtype::Calendar;
use tessera_planner::time::{format_micros, parse_period};

use super::OfArrays;
use super::inner::scalar;
use crate::lift::table::calendar;

/// `time::text` of an `int64` whose field has a calendar: `2000-02-30T00:00:00`.
#[derive(Debug, PartialEq, Eq, Hash)]
pub(in crate::lift) struct TimeText {
    signature: Signature,
}

impl Default for TimeText {
    fn default() -> Self {
        Self { signature: Signature::exact(vec![DataType::Int64], Volatility::Immutable) }
    }
}

impl ScalarUDFImpl for TimeText {
    scalar!(name "tessera_time_text", signature, returns DataType::Utf8);

    fn invoke_with_args(&self, args: ScalarFunctionArgs) -> Result<ColumnarValue> {
        let calendar = args.arg_fields.first().and_then(|field| calendar(field));
        let (Some(calendar), [time]) = (calendar, args.args.as_slice()) else {
            return exec_err!("{} takes a time", self.name());
        };
        let times = time.to_array(1)?;
        let times = times.as_primitive::<Int64Type>();
        let texts = times.iter().map(|t| Some(format_micros(t?, calendar)));
        let texts = Arc::new(texts.collect::<StringArray>());
        super::columnar(texts, matches!(time, ColumnarValue::Scalar(_)))
    }
}

/// The text of a time that Arrow reads; `None` for others than those without seconds and with slashes.
pub(in crate::lift) fn readable(text: &str) -> Option<String> {
    let dashed = with_dashes(text);
    with_seconds(dashed.as_deref().unwrap_or(text)).or(dashed)
}

/// `2020-01-02 10:30` for `2020/1/2 10:30`.
fn with_dashes(text: &str) -> Option<String> {
    let mut parts = text.trim_start().splitn(3, '/');
    let (year, month, rest) = (parts.next()?, parts.next()?, parts.next()?);
    let (day, rest) = rest.split_at(rest.bytes().take_while(u8::is_ascii_digit).count());
    let is_number = |digits: &str, most: usize| {
        (1..=most).contains(&digits.len()) && digits.bytes().all(|b| b.is_ascii_digit())
    };
    // A year of two digits could be a day.
    let is_date = year.len() == 4 && is_number(year, 4) && is_number(month, 2) && is_number(day, 2);
    is_date.then(|| format!("{year}-{month:0>2}-{day:0>2}{rest}"))
}

/// `2020-01-05T10:30:00` for `2020-01-05 10:30`, with a zone or without one; `None` for other texts.
fn with_seconds(text: &str) -> Option<String> {
    const MINUTE_US: i64 = 60_000_000;
    let (hour, after) = text.split_once(':')?;
    let digits = after.bytes().take_while(u8::is_ascii_digit).count();
    let (moment, zone) = text.split_at(hour.len() + 1 + digits);
    let (start, end) = parse_period(moment, Calendar::Standard)?;
    let is_minute = end - start == MINUTE_US
        && matches!(zone.bytes().next(), None | Some(b' ' | b'+' | b'-' | b'Z' | b'z'));
    is_minute.then(|| format!("{}{}", format_micros(start, Calendar::Standard), zone.trim_end()))
}

/// `tessera_with_seconds(s)`: texts with seconds, before they are converted to times.
pub(in crate::lift) fn texts_with_seconds() -> ScalarUDF {
    let signature = Signature::any(1, Volatility::Immutable);
    OfArrays::new("tessera_with_seconds", signature, DataType::Utf8, completed).udf()
}

fn completed(arrays: &[ArrayRef]) -> Result<ArrayRef> {
    let [texts] = arrays else { return exec_err!("tessera_with_seconds takes a text") };
    let mut texts = cast(texts, &DataType::Utf8)?;
    let written = texts.as_string::<i32>();
    if written.iter().flatten().any(|text| readable(text).is_some()) {
        let whole = written.iter().map(|text| {
            let text = text?;
            Some(readable(text).unwrap_or_else(|| text.to_string()))
        });
        texts = Arc::new(whole.collect::<StringArray>());
    }
    Ok(texts)
}

#[cfg(test)]
mod tests {
    use super::{readable, with_seconds};

    #[test]
    fn slashes_become_dashes() {
        for (text, want) in [
            ("2020/01/02", "2020-01-02"),
            (" 2020/1/2", "2020-01-02"),
            ("2020/01/02 03:04:05", "2020-01-02 03:04:05"),
            ("2020/01/02 03:04", "2020-01-02T03:04:00"),
        ] {
            assert_eq!(readable(text).as_deref(), Some(want), "{text}");
        }
        for text in
            ["2020/01-02", "02/01/2020", "2020/01", "2020/x/02", "2020/01/", "/", "2020-01-02"]
        {
            assert_eq!(readable(text), None, "{text}");
        }
    }

    #[test]
    fn times_without_seconds_get_seconds() {
        for (text, want) in [
            ("2020-01-05 10:30", "2020-01-05T10:30:00"),
            (" 2020-1-5T9:05 ", "2020-01-05T09:05:00"),
            ("2020-01-05 10:30Z", "2020-01-05T10:30:00Z"),
            ("2020-01-05 10:30+02:00", "2020-01-05T10:30:00+02:00"),
            ("2020-01-05 10:30 Europe/Berlin", "2020-01-05T10:30:00 Europe/Berlin"),
        ] {
            assert_eq!(with_seconds(text).as_deref(), Some(want), "{text}");
        }
        for text in [
            "2020-01-05 10:30:00",
            "2020-01-05 10:30.5",
            "2020-01-05 10",
            "2020-01-05",
            "2020-02-30 10:30",
            "2020-01-05 25:30",
            "2020-01-05 10:",
            "10:30",
            ":",
            "é:é",
            "",
        ] {
            assert_eq!(with_seconds(text), None, "{text}");
        }
    }
}
