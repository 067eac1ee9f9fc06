//! Splits batches so that they stay small when their texts are materialized.
//!
//! Views and dictionaries store a text once and repeat its index: a thousand rows of a text of a megabyte are a few
//! kilobytes. A cast, a concatenation or a sort copies the text to each row, so a file of some kilobytes would need
//! gigabytes. Batches of a file are split before any operator reads them, so that a batch fits memory in any form.

use arrow::array::{Array, ArrayRef, AsArray};
use arrow::compute::kernels::length::length;
use arrow::datatypes::{DataType, Int32Type, Int64Type, Schema};
use arrow::record_batch::RecordBatch;

/// Splits the batch into parts of at least a row whose texts have at most `most` bytes when materialized.
pub(super) fn cut(batch: RecordBatch, most: u64) -> Vec<RecordBatch> {
    let total: u64 = batch.columns().iter().map(at_most).fold(0, u64::saturating_add);
    if total <= most {
        return vec![batch];
    }
    let mut rows = vec![0u64; batch.num_rows()];
    for column in batch.columns() {
        each_row(column, &mut |row, bytes| rows[row] = rows[row].saturating_add(bytes));
    }
    let (mut parts, mut start, mut held) = (Vec::new(), 0, 0u64);
    for (row, &bytes) in rows.iter().enumerate() {
        if row > start && held.saturating_add(bytes) > most {
            parts.push(batch.slice(start, row - start));
            (start, held) = (row, 0);
        }
        held = held.saturating_add(bytes);
    }
    parts.push(batch.slice(start, batch.num_rows() - start));
    parts
}

/// Rows of fixed-size binary values in a batch of at most `most` bytes: readers materialize these themselves.
pub(super) fn rows_of_fixed(schema: &Schema, most: u64) -> usize {
    let lengths = schema.fields().iter().map(|f| match f.data_type() {
        DataType::FixedSizeBinary(n) => u64::try_from(*n).unwrap_or(0),
        _ => 0,
    });
    match lengths.fold(0, u64::saturating_add) {
        0 => usize::MAX,
        row => usize::try_from((most / row).max(1)).unwrap_or(usize::MAX),
    }
}

/// Bytes of a column's materialized texts; an upper bound for a dictionary.
fn at_most(column: &ArrayRef) -> u64 {
    let of_views = |views: &[u128]| views.iter().map(|&v| u64::from(v as u32)).sum();
    match column.data_type() {
        DataType::Utf8View => of_views(column.as_string_view().views()),
        DataType::BinaryView => of_views(column.as_binary_view().views()),
        DataType::Dictionary(_, _) => {
            let values = lengths_of(column.as_any_dictionary().values());
            let longest = values.into_iter().max().unwrap_or(0);
            longest.saturating_mul(column.len() as u64)
        }
        _ => 0,
    }
}

/// Calls `add` with the row and the bytes of its text, for each row.
fn each_row(column: &ArrayRef, add: &mut dyn FnMut(usize, u64)) {
    let of_views = |views: &[u128], add: &mut dyn FnMut(usize, u64)| {
        views.iter().enumerate().for_each(|(row, &v)| add(row, u64::from(v as u32)));
    };
    match column.data_type() {
        DataType::Utf8View => of_views(column.as_string_view().views(), add),
        DataType::BinaryView => of_views(column.as_binary_view().views(), add),
        DataType::Dictionary(_, _) => {
            let column = column.as_any_dictionary();
            let values = lengths_of(column.values());
            if !values.is_empty() {
                let keys = column.normalized_keys();
                keys.iter().enumerate().for_each(|(row, &key)| add(row, values[key]));
            }
        }
        _ => {}
    }
}

/// Bytes of each text; empty for other types.
fn lengths_of(values: &ArrayRef) -> Vec<u64> {
    let Ok(lengths) = length(values) else { return Vec::new() };
    match lengths.data_type() {
        DataType::Int32 => {
            lengths.as_primitive::<Int32Type>().values().iter().map(|&n| n.max(0) as u64).collect()
        }
        DataType::Int64 => {
            lengths.as_primitive::<Int64Type>().values().iter().map(|&n| n.max(0) as u64).collect()
        }
        _ => Vec::new(),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]
    use super::*;
    use arrow::array::{DictionaryArray, Int32Array, Int64Array, StringArray, StringViewArray};
    use arrow::datatypes::Field;
    use std::sync::Arc;

    fn rows(parts: &[RecordBatch]) -> Vec<usize> {
        parts.iter().map(RecordBatch::num_rows).collect()
    }

    #[test]
    fn batches_are_cut_where_their_texts_are_long() {
        let long = "x".repeat(1000);
        let texts = [long.as_str(), "a", "b", &long, &long, "c"];
        let views: ArrayRef = Arc::new(StringViewArray::from_iter_values(texts));
        let keys = Int32Array::from(vec![Some(0), Some(1), None, Some(0), Some(0), Some(1)]);
        let values = Arc::new(StringArray::from(vec![long.as_str(), "a"]));
        let dictionary: ArrayRef = Arc::new(DictionaryArray::new(keys, values));
        let numbers: ArrayRef = Arc::new(Int64Array::from_iter_values(0..6));
        let of = |columns: Vec<(&str, &ArrayRef)>| {
            let columns = columns.into_iter().map(|(n, c)| (n, c.clone()));
            RecordBatch::try_from_iter_with_nullable(columns.map(|(n, c)| (n, c, true))).unwrap()
        };
        assert_eq!(rows(&cut(of(vec![("n", &numbers)]), 1)), [6]);
        assert_eq!(rows(&cut(of(vec![("v", &views)]), 1003)), [3, 1, 2]);
        assert_eq!(rows(&cut(of(vec![("v", &views), ("n", &numbers)]), 1)), [1, 1, 1, 1, 1, 1]);
        assert_eq!(rows(&cut(of(vec![("v", &views)]), 1 << 20)), [6]);
        let parts = cut(of(vec![("v", &views), ("d", &dictionary)]), 2004);
        let whole = arrow::compute::concat_batches(&parts[0].schema(), &parts).unwrap();
        assert_eq!(whole, of(vec![("v", &views), ("d", &dictionary)]));
        assert!(parts.len() > 1);
        assert_eq!(cut(of(vec![("v", &views)]).slice(0, 0), 1).len(), 1);
    }

    #[test]
    fn rows_of_fixed_values_are_few_where_they_are_long() {
        let of = |n| Schema::new(vec![Field::new("f", DataType::FixedSizeBinary(n), true)]);
        assert_eq!(rows_of_fixed(&of(1 << 20), 8 << 20), 8);
        assert_eq!(rows_of_fixed(&of(1 << 30), 8 << 20), 1);
        assert_eq!(rows_of_fixed(&Schema::empty(), 8 << 20), usize::MAX);
    }
}
