//! `string_split`: the parts of a text between separators, as in DuckDB.
//!
//! An empty text has one empty part. An empty separator splits a text into its characters.

use std::sync::Arc;

use arrow::array::{ArrayRef, AsArray, ListBuilder, StringBuilder};
use arrow::datatypes::DataType;
use datafusion::common::{Result, internal_err, plan_err};
use datafusion::logical_expr::ScalarUDF;

use super::OfArrays;
use super::slice::is_text;

const NAME: &str = "string_split";

pub(super) fn function() -> ScalarUDF {
    let about = "The parts of a text between separators, as a list.";
    OfArrays::taking(NAME, taken, DataType::new_list(DataType::Utf8, true), parts)
        .alias("str_split")
        .documented("string_split(s, separator)", about)
        .udf()
}

fn taken(_: &str, types: &[DataType]) -> Result<Vec<DataType>> {
    match types {
        [_, _] if types.iter().all(|of| is_text(of) || of.is_null()) => {
            Ok(vec![DataType::Utf8, DataType::Utf8])
        }
        _ => plan_err!("`{NAME}` takes a text and its separator"),
    }
}

fn parts(arrays: &[ArrayRef]) -> Result<ArrayRef> {
    let [texts, separators] = arrays else {
        return internal_err!("`{NAME}` is called with {} arguments", arrays.len());
    };
    let (texts, separators) = (texts.as_string::<i32>(), separators.as_string::<i32>());
    let mut lists = ListBuilder::new(StringBuilder::new());
    for (text, separator) in texts.iter().zip(separators.iter()) {
        let Some(text) = text else {
            lists.append_null();
            continue;
        };
        match separator {
            None => lists.values().append_value(text),
            Some("") => {
                for (at, letter) in text.char_indices() {
                    lists.values().append_value(&text[at..at + letter.len_utf8()]);
                }
            }
            Some(separator) => {
                text.split(separator).for_each(|part| lists.values().append_value(part));
            }
        }
        lists.append(true);
    }
    Ok(Arc::new(lists.finish()))
}
