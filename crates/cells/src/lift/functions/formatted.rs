//! `format('{} {:.2f}', s, x)` and `printf('%s %.2f', s, x)`: a text with values in it, as in DuckDB, whose formats are
//! those of the library fmt and of C. NULL if an argument is NULL.

mod pattern;
mod written;

use std::sync::Arc;

use arrow::array::{Array, ArrayRef, AsArray, StringBuilder};
use arrow::datatypes::{DataType, Float64Type, Int64Type, UInt64Type};
use datafusion::common::{DataFusionError, Result, ScalarValue, exec_err, internal_err, plan_err};
use datafusion::logical_expr::{ReturnFieldArgs, ScalarUDF};

use super::OfArrays;
use super::hashes::is_text;
use crate::error::plain;
use crate::lift::error::{InCall, spoken};
use pattern::{Language, Piece};
use tessera_frontend::error::Error;
use written::Value;

pub(super) fn functions() -> [ScalarUDF; 2] {
    let format = OfArrays::taking("format", taken, DataType::Utf8, |arrays| {
        formatted(arrays, Language::Braces)
    });
    let printf = OfArrays::taking("printf", taken, DataType::Utf8, |arrays| {
        formatted(arrays, Language::Percents)
    });
    [
        format
            .checked(|args| check(args, Language::Braces))
            .documented(
                "format('{} {:.2f}', x, …)",
                "A text with values in its brackets: `{}`, `{:05d}`, `{:>8.2f}`, `{1}`.",
            )
            .udf(),
        printf
            .checked(|args| check(args, Language::Percents))
            .documented(
                "printf('%s %.2f', x, …)",
                "A text with values in the places of C's `%s`, `%05d`, `%.2f`.",
            )
            .udf(),
    ]
}

fn taken(name: &str, types: &[DataType]) -> Result<Vec<DataType>> {
    let Some((pattern, values)) = types.split_first() else {
        return plan_err!("`{name}` takes a text and values");
    };
    if !is_text(pattern) && !pattern.is_null() {
        let of = spoken(&pattern.to_string());
        return plan_err!("argument 1 of `{name}` must be a text, not {of}");
    }
    let mut all = vec![DataType::Utf8];
    for (at, of) in values.iter().enumerate() {
        all.push(match of {
            DataType::UInt64 => DataType::UInt64,
            of if of.is_integer() => DataType::Int64,
            of if of.is_numeric() => DataType::Float64,
            DataType::Null => DataType::Null,
            DataType::Boolean | DataType::Date32 => DataType::Utf8,
            of if is_text(of) => DataType::Utf8,
            of => {
                let (number, of) = (at + 2, spoken(&of.to_string()));
                return plan_err!(
                    "argument {number} of `{name}` must be a number or a text, not {of}"
                );
            }
        });
    }
    Ok(all)
}

/// Checks a format that is written out against the types of its values. NULL makes the text NULL, whatever the format
/// is.
fn check(args: &ReturnFieldArgs<'_>, language: Language) -> Result<()> {
    let constants = args.scalar_arguments;
    let format = constants.first().copied().flatten().and_then(|format| format.try_as_str());
    let Some(format) = format.flatten() else { return Ok(()) };
    let values = args.arg_fields.get(1..).unwrap_or_default();
    if constants.iter().any(|constant| constant.is_some_and(ScalarValue::is_null))
        || values.iter().any(|field| field.data_type().is_null())
    {
        return Ok(());
    }
    let checked = pattern::parsed(format, language).and_then(|pieces| {
        pieces.iter().try_for_each(|piece| match piece {
            Piece::Text(_) => Ok(()),
            Piece::Value(at, spec) => match values.get(*at) {
                Some(field) => match example(field.data_type()) {
                    Some(value) => spec.write(&mut String::new(), &value, language),
                    None => Ok(()),
                },
                None => no_value(format, *at, language),
            },
        })
    });
    checked.map_err(|error| {
        let message = plain(&error.strip_backtrace()).to_string();
        let error = Error::cells("invalid_argument", message, None).with_hint(language.hint());
        let function = language.function().to_string();
        DataFusionError::External(Box::new(InCall { function, error }))
    })
}

/// A value of one of the types that arguments are converted to.
fn example(of: &DataType) -> Option<Value<'static>> {
    match of {
        DataType::Int64 | DataType::UInt64 => Some(Value::Integer(65)),
        DataType::Float64 => Some(Value::Float(0.5)),
        DataType::Utf8 => Some(Value::Text("a")),
        _ => None,
    }
}

fn no_value<T>(format: &str, at: usize, language: Language) -> Result<T> {
    exec_err!("`{}`: '{format}' has no value {}", language.function(), at + 1)
}

fn formatted(arrays: &[ArrayRef], language: Language) -> Result<ArrayRef> {
    let Some((patterns, values)) = arrays.split_first() else {
        return internal_err!("a text without a format");
    };
    let patterns = patterns.as_string::<i32>();
    let mut out = StringBuilder::new();
    let mut known: Option<(&str, Vec<Piece>)> = None;
    let (mut text, mut bytes) = (String::new(), 0);
    for row in 0..patterns.len() {
        // An array without a type has no mask.
        if arrays.iter().any(|array| array.data_type().is_null() || array.is_null(row)) {
            out.append_null();
            continue;
        }
        let pattern = patterns.value(row);
        let pieces = match known.take() {
            Some((same, pieces)) if same == pattern => pieces,
            _ => pattern::parsed(pattern, language)?,
        };
        text.clear();
        for piece in &pieces {
            match piece {
                Piece::Text(own) => text.push_str(own),
                Piece::Value(at, spec) => match values.get(*at) {
                    Some(array) => spec.write(&mut text, &value_of(array, row)?, language)?,
                    None => return no_value(pattern, *at, language),
                },
            }
        }
        bytes += text.len();
        if i32::try_from(bytes).is_err() {
            return exec_err!("`{}` would return more than 2 GiB", language.function());
        }
        out.append_value(&text);
        known = Some((pattern, pieces));
    }
    Ok(Arc::new(out.finish()))
}

fn value_of(array: &ArrayRef, row: usize) -> Result<Value<'_>> {
    Ok(match array.data_type() {
        DataType::Int64 => Value::Integer(array.as_primitive::<Int64Type>().value(row).into()),
        DataType::UInt64 => Value::Integer(array.as_primitive::<UInt64Type>().value(row).into()),
        DataType::Float64 => Value::Float(array.as_primitive::<Float64Type>().value(row)),
        DataType::Utf8 => Value::Text(array.as_string::<i32>().value(row)),
        other => return internal_err!("a text of {other}"),
    })
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]
    use super::*;

    fn of(language: Language, pattern: &str, values: &[Value<'_>]) -> Result<String> {
        let mut text = String::new();
        for piece in pattern::parsed(pattern, language)? {
            match piece {
                Piece::Text(own) => text.push_str(&own),
                Piece::Value(at, spec) => spec.write(&mut text, &values[at], language)?,
            }
        }
        Ok(text)
    }

    /// The texts are those of DuckDB.
    #[test]
    fn values_in_brackets() {
        use Value::{Float, Integer, Text};
        for (pattern, value, want) in [
            ("{}|{0}|{{}}", Text("a"), "a|a|{}"),
            ("{:5}|{0:>5}|{0:^5}|{0:*^6}", Text("ab"), "ab   |   ab| ab  |**ab**"),
            ("{:.2}", Text("äbc"), "äb"),
            ("{:05d}|{0:+d}|{0:x}|{0:#x}|{0:b}", Integer(31), "00031|+31|1f|0x1f|11111"),
            ("{:x}|{0:010d}|{0:=6d}", Integer(-42), "-2a|-000000042|-   42"),
            ("{:,}|{0:_}|{0:<12,d}|", Integer(-1_234_567), "-1,234,567|-1_234_567|-1,234,567  |"),
            ("{}|{0:.2f}|{0:>8.1f}|{0:08.2f}", Float(-3.14259), "-3.14259|-3.14|    -3.1|-0003.14"),
            ("{}|{0:.3g}|{0:,.2f}", Float(1_234_567.5), "1234567.5|1.23e+06|1,234,567.50"),
            ("{}|{0:e}|{0:G}", Float(1e-7), "1e-07|1.000000e-07|1E-07"),
            ("{}|{0:6.2}|{0:#.3g}", Float(1.0), "1.0|   1.0|1.00"),
            ("{}", Float(1e16), "1e+16"),
            ("{}", Float(1_234_567_890_123_456.0), "1234567890123456.0"),
            ("{}", Float(123_456_789_012_345_680.0), "1.2345678901234568e+17"),
            ("{}|{0:F}", Float(f64::NAN), "nan|NAN"),
            ("{:.10}", Float(0.1), "0.1"),
        ] {
            assert_eq!(of(Language::Braces, pattern, &[value]).unwrap(), want, "{pattern}");
        }
        for pattern in ["{", "}", "{:", "{:y}", "{:d}", "{:2000}", "{:.}", "{a}"] {
            assert!(of(Language::Braces, pattern, &[Float(1.5)]).is_err(), "{pattern}");
        }
        assert!(of(Language::Braces, "{:d}", &[Text("a")]).is_err());
    }

    /// The texts are those of DuckDB, except that its `%s` takes no numbers.
    #[test]
    fn values_at_percents() {
        use Value::{Float, Integer, Text};
        for (pattern, value, want) in [
            ("%s|%1$5s|%1$-5s|%1$.1s|%%", Text("ab"), "ab|   ab|ab   |a|%"),
            ("%05d|%1$+d|%1$.3d|%1$5.3d|%1$-5d|%1$lld", Integer(5), "00005|+5|005|  005|5    |5"),
            ("%x|%1$o", Integer(-1), "ffffffffffffffff|1777777777777777777777"),
            ("%X|%1$#x|%1$c|%1$s", Integer(65), "41|0x41|A|65"),
            ("%f|%1$.2f|%1$e|%1$g|%1$,.1f", Float(3.7), "3.700000|3.70|3.700000e+00|3.7|3.7"),
            ("%G|%1$.0f", Float(1e10), "1E+10|10000000000"),
            ("%010.3f", Float(-3.14259), "-00003.143"),
        ] {
            assert_eq!(of(Language::Percents, pattern, &[value]).unwrap(), want, "{pattern}");
        }
        for pattern in ["%", "%y", "%d", "%*d", "%2000f"] {
            assert!(of(Language::Percents, pattern, &[Float(1.5)]).is_err(), "{pattern}");
        }
    }
}
