//! Texts of lists, structs and maps, as DuckDB writes them. Arrow's have nothing for NULL, and it has none of structs.
//!
//! | type | text |
//! |---|---|
//! | list | `[1, NULL, 3]`, `[a, 'b, c']` |
//! | struct | `{'a': 1, 'b': x}` |
//! | map | `{a=1, b=NULL}` |
//!
//! A value inside is its own cast to text, in quotes if that could be read otherwise.

use std::sync::Arc;

use arrow::array::{Array, ArrayRef, AsArray, ListArray, MapArray, StringArray, StructArray};
use arrow::buffer::{Buffer, OffsetBuffer};
use arrow::compute::{CastOptions, cast, cast_with_options};
use arrow::datatypes::{DataType, Field, Fields, Int64Type};
use datafusion::common::{Result, exec_err};
use datafusion::logical_expr::{
    ColumnarValue, ScalarFunctionArgs, ScalarUDFImpl, Signature, Volatility,
};
use tessera_planner::time::format_micros;

use super::inner::scalar;
use crate::lift::table::calendar;

/// Characters that a text without quotes does not have.
const SPECIAL: [char; 12] = ['\'', '"', '\\', '(', ')', '[', ']', '{', '}', ':', '=', ','];

/// `x::text` of a list, a struct or a map.
#[derive(Debug, PartialEq, Eq, Hash)]
pub(in crate::lift) struct NestedText {
    signature: Signature,
}

impl Default for NestedText {
    fn default() -> Self {
        Self { signature: Signature::any(1, Volatility::Immutable) }
    }
}

impl ScalarUDFImpl for NestedText {
    scalar!(name "tessera_nested_text", signature, returns DataType::Utf8);

    fn invoke_with_args(&self, args: ScalarFunctionArgs) -> Result<ColumnarValue> {
        let ([field], [value]) = (args.arg_fields.as_slice(), args.args.as_slice()) else {
            return exec_err!("{} takes a list, a struct or a map", self.name());
        };
        let is_scalar = matches!(value, ColumnarValue::Scalar(_));
        let values = value.to_array(if is_scalar { 1 } else { args.number_rows })?;
        super::columnar(Arc::new(texts(&values, field)?), is_scalar)
    }
}

/// The text of each value, NULL for NULL.
fn texts(values: &ArrayRef, field: &Field) -> Result<StringArray> {
    match values.data_type() {
        DataType::List(of) => of_lists(values.as_list(), of),
        DataType::LargeList(of)
        | DataType::FixedSizeList(of, _)
        | DataType::ListView(of)
        | DataType::LargeListView(of) => {
            let lists = cast(values, &DataType::List(Arc::clone(of)))?;
            of_lists(lists.as_list(), of)
        }
        DataType::Struct(fields) => of_structs(values.as_struct(), fields),
        DataType::Map(..) => of_maps(values.as_map()),
        DataType::Int64 if let Some(calendar) = calendar(field) => {
            let times = values.as_primitive::<Int64Type>().iter();
            Ok(times.map(|time| Some(format_micros(time?, calendar))).collect())
        }
        _ => {
            let options = CastOptions { safe: false, ..CastOptions::default() };
            let texts = cast_with_options(values, &DataType::Utf8, &options)?;
            Ok(texts.as_string::<i32>().clone())
        }
    }
}

/// The texts of values inside of others.
struct Inside {
    texts: StringArray,
    is_nested: bool,
}

impl Inside {
    fn of(values: &ArrayRef, field: &Field) -> Result<Self> {
        Ok(Self { texts: texts(values, field)?, is_nested: values.data_type().is_nested() })
    }

    fn write(&self, at: usize, out: &mut String) {
        if self.texts.is_null(at) {
            out.push_str("NULL");
            return;
        }
        let text = self.texts.value(at);
        match self.is_nested || is_plain(text) {
            true => out.push_str(text),
            false => quote(text, out),
        }
    }
}

/// True for a text that is the same without quotes.
fn is_plain(text: &str) -> bool {
    !text.is_empty()
        && !text.eq_ignore_ascii_case("null")
        && !text.starts_with(is_space)
        && !text.ends_with(is_space)
        && !text.contains(SPECIAL)
}

/// True for the spaces of C, which has vertical tabs among them.
fn is_space(c: char) -> bool {
    c.is_ascii_whitespace() || c == '\u{b}'
}

fn quote(text: &str, out: &mut String) {
    out.push('\'');
    for c in text.chars() {
        if matches!(c, '\'' | '\\') {
            out.push('\\');
        }
        out.push(c);
    }
    out.push('\'');
}

fn of_lists(lists: &ListArray, of: &Field) -> Result<StringArray> {
    let offsets = lists.value_offsets();
    let (first, last) = (offsets[0], offsets[lists.len()]);
    let elements = lists.values().slice(first as usize, (last - first) as usize);
    let elements = Inside::of(&elements, of)?;
    written(lists, |row, out| {
        out.push('[');
        for (n, at) in (offsets[row]..offsets[row + 1]).enumerate() {
            if n > 0 {
                out.push_str(", ");
            }
            elements.write((at - first) as usize, out);
        }
        out.push(']');
    })
}

fn of_structs(structs: &StructArray, fields: &Fields) -> Result<StringArray> {
    let columns = structs.columns().iter().zip(fields.iter());
    let columns = columns.map(|(column, field)| Ok((field.name(), Inside::of(column, field)?)));
    let columns: Vec<(&String, Inside)> = columns.collect::<Result<_>>()?;
    written(structs, |row, out| {
        out.push('{');
        for (n, (name, values)) in columns.iter().enumerate() {
            if n > 0 {
                out.push_str(", ");
            }
            quote(name, out);
            out.push_str(": ");
            values.write(row, out);
        }
        out.push('}');
    })
}

fn of_maps(maps: &MapArray) -> Result<StringArray> {
    let offsets = maps.value_offsets();
    let (first, last) = (offsets[0], offsets[maps.len()]);
    let (start, count) = (first as usize, (last - first) as usize);
    let fields = maps.entries().fields();
    let keys = Inside::of(&maps.keys().slice(start, count), &fields[0])?;
    let values = Inside::of(&maps.values().slice(start, count), &fields[1])?;
    written(maps, |row, out| {
        out.push('{');
        for (n, at) in (offsets[row]..offsets[row + 1]).enumerate() {
            if n > 0 {
                out.push_str(", ");
            }
            let at = (at - first) as usize;
            keys.write(at, out);
            out.push('=');
            values.write(at, out);
        }
        out.push('}');
    })
}

/// The texts that `write` makes of the rows of `values` that are not NULL.
fn written(values: &dyn Array, write: impl Fn(usize, &mut String)) -> Result<StringArray> {
    let mut out = String::new();
    let mut offsets = Vec::with_capacity(values.len() + 1);
    offsets.push(0i32);
    for row in 0..values.len() {
        if values.is_valid(row) {
            write(row, &mut out);
        }
        let Ok(end) = i32::try_from(out.len()) else {
            return exec_err!(
                "the texts of {} nested values have more than {} bytes",
                values.len(),
                i32::MAX
            );
        };
        offsets.push(end);
    }
    let offsets = OffsetBuffer::new(offsets.into());
    let bytes = Buffer::from_vec(out.into_bytes());
    Ok(StringArray::try_new(offsets, bytes, values.nulls().cloned())?)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]
    use super::*;
    use arrow::datatypes::Int32Type;

    #[test]
    fn parts_of_arrays_are_written() {
        let lists = ListArray::from_iter_primitive::<Int32Type, _, _>([
            Some(vec![Some(9)]),
            Some(vec![Some(1), None, Some(3)]),
            None,
            Some(vec![]),
        ]);
        let lists: ArrayRef = Arc::new(lists.slice(1, 3));
        let field = Field::new("l", lists.data_type().clone(), true);
        let texts = texts(&lists, &field).unwrap();
        let texts: Vec<Option<&str>> = texts.iter().collect();
        assert_eq!(texts, [Some("[1, NULL, 3]"), None, Some("[]")]);
    }

    #[test]
    fn texts_that_could_be_read_otherwise_have_quotes() {
        for (text, want) in [
            ("b c", "b c"),
            ("nul", "nul"),
            ("a;b", "a;b"),
            ("", "''"),
            ("null", "'null'"),
            ("a ", "'a '"),
            ("\ta", "'\ta'"),
            ("a\u{b}", "'a\u{b}'"),
            ("a:b", "'a:b'"),
            ("it's", r"'it\'s'"),
            (r"a\b", r"'a\\b'"),
        ] {
            let inside = Inside { texts: vec![text].into(), is_nested: false };
            let mut out = String::new();
            inside.write(0, &mut out);
            assert_eq!(out, want);
        }
    }
}
