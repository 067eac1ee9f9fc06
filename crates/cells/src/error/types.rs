//! Names of types in messages: as SQL's casts spell them, not as Arrow does.

use crate::lift::calendar;
use arrow::datatypes::{DataType, Field};
use tessera_planner::dtype::{Calendar, DType};

/// Arrow's names of types whose values DataFusion writes as `Int64(1)`.
const SCALARS: [&str; 15] = [
    "Boolean",
    "Float16",
    "Float32",
    "Float64",
    "Int16",
    "Int32",
    "Int64",
    "Int8",
    "LargeUtf8",
    "UInt16",
    "UInt32",
    "UInt64",
    "UInt8",
    "Utf8",
    "Utf8View",
];

/// Arrow's names of other types, which may have parameters in parentheses.
const OTHERS: [&str; 28] = [
    "Binary",
    "BinaryView",
    "Date32",
    "Date64",
    "Decimal128",
    "Decimal256",
    "Decimal32",
    "Decimal64",
    "Dictionary",
    "Duration",
    "FixedSizeBinary",
    "FixedSizeList",
    "Interval",
    "IntervalDayTime",
    "IntervalMonthDayNano",
    "IntervalYearMonth",
    "LargeBinary",
    "LargeList",
    "LargeListView",
    "ListView",
    "RunEndEncoded",
    "Time32",
    "Time64",
    "Timestamp",
    "TimestampMicrosecond",
    "TimestampMillisecond",
    "TimestampNanosecond",
    "TimestampSecond",
];

/// The name of a type.
pub fn type_name(of: &DataType) -> String {
    spoken(&of.to_string())
}

/// The name of a column's type, as DESCRIBE shows it: with the types of its elements, as `int64[]`.
pub fn column_type(field: &Field) -> String {
    if let Some(calendar) = calendar(field).filter(|&calendar| calendar != Calendar::Standard) {
        // Arrow lacks the calendar, and would show the type of plain numbers.
        return DType::Datetime(calendar).name();
    }
    match field.data_type() {
        DataType::List(of)
        | DataType::LargeList(of)
        | DataType::FixedSizeList(of, _)
        | DataType::ListView(of)
        | DataType::LargeListView(of) => format!("{}[]", column_type(of)),
        DataType::Struct(fields) => {
            let fields = fields.iter().map(|of| format!("{} {}", of.name(), column_type(of)));
            format!("struct({})", fields.collect::<Vec<_>>().join(", "))
        }
        DataType::Map(pairs, _) => match pairs.data_type() {
            DataType::Struct(pair) if pair.len() == 2 => {
                format!("map({}, {})", column_type(&pair[0]), column_type(&pair[1]))
            }
            other => type_name(other),
        },
        DataType::RunEndEncoded(_, values) => column_type(values),
        other => type_name(other),
    }
}

/// The name of a type as SQL's casts spell it, from Arrow's name: `int` for `Int32`.
pub(crate) fn spoken_in_casts(arrow: &str) -> String {
    let name = spoken(arrow);
    let of_sql = match name.as_str() {
        "int8" => "tinyint",
        "int16" => "smallint",
        "int32" => "int",
        "int64" => "bigint",
        "float32" => "real",
        "float64" => "double",
        _ => return name,
    };
    of_sql.to_string()
}

/// The name of a type, from Arrow's name: `decimal(10, 2)` for `Decimal128(10, 2)`.
pub(crate) fn spoken(arrow: &str) -> String {
    let arrow = arrow.strip_prefix("nullable ").unwrap_or(arrow);
    let name = arrow.split(['(', ' ']).next().unwrap_or(arrow);
    let of = arrow[name.len()..].strip_prefix('(').and_then(|rest| rest.strip_suffix(')'));
    match (name, of) {
        ("Utf8" | "LargeUtf8" | "Utf8View" | "String", _) => "text".to_string(),
        ("Boolean", _) => "bool".to_string(),
        ("LargeList" | "FixedSizeList" | "ListView" | "LargeListView", _) => "list".to_string(),
        ("Null", _) => "NULL".to_string(),
        ("Dictionary", Some(of)) => spoken(of.split_once(", ").map_or(of, |(_, values)| values)),
        ("Timestamp", Some(of)) if of.contains('"') => "timestamp with time zone".to_string(),
        (name, Some(of)) if name.starts_with("Decimal") && is_numbers(of) => {
            format!("decimal({of})")
        }
        (name, _) if name.starts_with("Decimal") => "decimal".to_string(),
        (name, _) if name.starts_with("Timestamp") => "timestamp".to_string(),
        (name, _) if name.starts_with("Interval") || name == "Duration" => "interval".to_string(),
        (name, _) if name.contains("Binary") => "binary".to_string(),
        ("Date32" | "Date64", _) => "date".to_string(),
        ("Time32" | "Time64", _) => "time".to_string(),
        (name, _) => name.to_ascii_lowercase(),
    }
}

fn is_numbers(of: &str) -> bool {
    of.chars().all(|c| c.is_ascii_digit() || matches!(c, ',' | ' ' | '-'))
}

/// Replaces Arrow's names of types in a message, and writes `Int64(1)` as its value.
pub(crate) fn spoken_in(message: &str) -> String {
    let is_word = |c: char| c.is_ascii_alphanumeric() || c == '_';
    let (mut out, mut rest) = (String::with_capacity(message.len()), message);
    while let Some(start) = rest.find(is_word) {
        let (before, from) = rest.split_at(start);
        out.push_str(before);
        let end = from.find(|c| !is_word(c)).unwrap_or(from.len());
        let (word, behind) = from.split_at(end);
        // A name in quotes is that of a column or of a value.
        let is_name = matches!(before.chars().last(), Some('`' | '\'' | '"' | '.' | '/'));
        let inner = inside(behind);
        rest = match inner {
            Some(inner) if !is_name && SCALARS.contains(&word) => {
                out.push_str(&inner.replace('"', "'"));
                &behind[inner.len() + 2..]
            }
            Some(inner) if !is_name && OTHERS.contains(&word) => {
                out.push_str(&spoken(&from[..end + inner.len() + 2]));
                &behind[inner.len() + 2..]
            }
            None if !is_name && (SCALARS.contains(&word) || OTHERS.contains(&word)) => {
                out.push_str(&spoken(word));
                behind
            }
            _ => {
                out.push_str(word);
                behind
            }
        };
    }
    out + rest
}

/// The contents of the parentheses that a text begins with.
fn inside(text: &str) -> Option<&str> {
    let mut depth = 0_usize;
    for (at, c) in text.char_indices() {
        match c {
            '(' => depth += 1,
            ')' => depth = depth.checked_sub(1)?,
            _ => {}
        }
        if depth == 0 {
            return (c == ')').then(|| &text[1..at]);
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;
    use arrow::datatypes::{Field, IntervalUnit, TimeUnit};
    use std::sync::Arc;

    #[test]
    fn types_are_named_as_in_casts() {
        let text = || Box::new(DataType::Utf8);
        for (of, name) in [
            (DataType::Int64, "int64"),
            (DataType::Float64, "float64"),
            (DataType::Boolean, "bool"),
            (DataType::Utf8View, "text"),
            (DataType::Date32, "date"),
            (DataType::Time64(TimeUnit::Nanosecond), "time"),
            (DataType::Timestamp(TimeUnit::Microsecond, None), "timestamp"),
            (
                DataType::Timestamp(TimeUnit::Nanosecond, Some("Europe/Oslo".into())),
                "timestamp with time zone",
            ),
            (DataType::Interval(IntervalUnit::MonthDayNano), "interval"),
            (DataType::Duration(TimeUnit::Millisecond), "interval"),
            (DataType::Decimal128(10, 2), "decimal(10, 2)"),
            (DataType::FixedSizeBinary(16), "binary"),
            (DataType::Dictionary(Box::new(DataType::Int32), text()), "text"),
            (DataType::List(Arc::new(Field::new("item", DataType::Int64, true))), "list"),
            (DataType::Null, "NULL"),
        ] {
            assert_eq!(type_name(&of), name);
        }
    }

    #[test]
    fn columns_show_the_types_of_their_elements() {
        let field = |name: &str, of: DataType| Arc::new(Field::new(name, of, true));
        let list = DataType::List(field("item", DataType::Utf8View));
        let record =
            DataType::Struct(vec![field("a", DataType::Int64), field("b", list.clone())].into());
        let pair = DataType::Struct(
            vec![field("keys", DataType::Utf8), field("values", DataType::Float64)].into(),
        );
        for (of, name) in [
            (list, "text[]"),
            (record, "struct(a int64, b text[])"),
            (DataType::Map(field("entries", pair), false), "map(text, float64)"),
            (DataType::Timestamp(TimeUnit::Microsecond, None), "timestamp"),
            (DataType::Int32, "int32"),
        ] {
            assert_eq!(column_type(&field("x", of)), name);
        }
        let noleap = crate::lift::field("t", DType::Datetime(Calendar::NoLeap), false);
        assert_eq!(column_type(&noleap), "datetime64[us, noleap]");
    }

    #[test]
    fn casts_have_the_names_of_sql() {
        for (of, name) in [
            ("Int8", "tinyint"),
            ("Int64", "bigint"),
            ("Float32", "real"),
            ("UInt8", "uint8"),
            ("Utf8View", "text"),
            ("Decimal128(5, 2)", "decimal(5, 2)"),
        ] {
            assert_eq!(spoken_in_casts(of), name);
        }
    }

    #[test]
    fn messages_use_the_names_of_types() {
        for (message, told) in [
            ("cannot add Date32 and Decimal128(10, 2)", "cannot add date and decimal(10, 2)"),
            ("x = Int64(1) AND s = Utf8(\"a\")", "x = 1 AND s = 'a'"),
            ("Timestamp(µs, \"UTC\") is not Utf8", "timestamp with time zone is not text"),
            ("column `Date32` of t.Int64", "column `Date32` of t.Int64"),
            ("nothing (to do)", "nothing (to do)"),
            ("Int64(", "int64("),
        ] {
            assert_eq!(spoken_in(message), told);
        }
    }
}
