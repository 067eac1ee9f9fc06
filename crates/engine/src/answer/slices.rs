//! Slices of batches: the bytes of their own rows, and rows that leave the others behind.

use arrow::array::{Array, ArrayRef, AsArray, RecordBatch, UInt64Array};
use arrow::compute::take_record_batch;
use arrow::datatypes::DataType;
use std::sync::Arc;

/// Batches up to this size are not copied: they may stay as they are.
const SMALL_BYTES: usize = 16 << 10;

/// Bytes of the rows of a batch. Slices of one batch share its buffers, so each counts its own rows only.
pub(crate) fn bytes_of(batch: &RecordBatch) -> usize {
    batch.columns().iter().map(|column| bytes_of_array(column)).sum()
}

fn bytes_of_array(array: &dyn Array) -> usize {
    let rows = array.len();
    let valid = array.nulls().map_or(0, |_| rows.div_ceil(8));
    // Lengths of slices are those of the offsets, of the views and of the columns below; Arrow counts what is below
    // lists as a whole, and texts behind views not at all.
    match array.data_type() {
        DataType::Utf8View => valid + rows * 16 + array.as_string_view().total_buffer_bytes_used(),
        DataType::BinaryView => {
            valid + rows * 16 + array.as_binary_view().total_buffer_bytes_used()
        }
        DataType::List(_) => {
            let list = array.as_list::<i32>();
            let (first, end) =
                (list.value_offsets()[0] as usize, list.value_offsets()[rows] as usize);
            valid + (rows + 1) * 4 + bytes_of_array(&list.values().slice(first, end - first))
        }
        DataType::LargeList(_) => {
            let list = array.as_list::<i64>();
            let (first, end) =
                (list.value_offsets()[0] as usize, list.value_offsets()[rows] as usize);
            valid + (rows + 1) * 8 + bytes_of_array(&list.values().slice(first, end - first))
        }
        DataType::Struct(_) => {
            let columns = array.as_struct().columns().iter();
            valid + columns.map(|column| bytes_of_array(column)).sum::<usize>()
        }
        _ => match array.to_data().get_slice_memory_size() {
            Ok(bytes) => bytes,
            Err(_) => array.get_array_memory_size(),
        },
    }
}

/// Copies the batch if it is a small part of its buffers: otherwise a few rows that wait for a reader would retain all
/// rows of the buffers, and be charged for them.
pub(crate) fn compact(batch: RecordBatch) -> RecordBatch {
    let held = batch.get_array_memory_size();
    if held <= SMALL_BYTES || bytes_of(&batch) > held / 2 {
        return batch;
    }
    let rows = UInt64Array::from_iter_values(0..batch.num_rows() as u64);
    let Ok(copy) = take_record_batch(&batch, &rows) else { return batch };
    let columns = copy.columns().iter().map(|column| match column.data_type() {
        DataType::Utf8View => Arc::new(column.as_string_view().gc()) as ArrayRef,
        DataType::BinaryView => Arc::new(column.as_binary_view().gc()) as ArrayRef,
        _ => column.clone(),
    });
    RecordBatch::try_new(copy.schema(), columns.collect()).unwrap_or(copy)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]
    use super::*;
    use arrow::array::{
        BinaryViewArray, Int64Array, ListArray, StringArray, StringViewArray, StructArray,
    };
    use arrow::datatypes::Int64Type;

    const LONG: &str = "a text that is longer than a view";

    /// Columns of many rows: numbers, numbers with missing ones, texts, views, lists, and structs of them.
    fn columns(rows: i64) -> Vec<(&'static str, ArrayRef)> {
        let some = |i: i64| (i % 3 != 0).then_some(i);
        let numbers: ArrayRef = Arc::new(Int64Array::from_iter_values(0..rows));
        let missing: ArrayRef = Arc::new((0..rows).map(some).collect::<Int64Array>());
        let texts = (0..rows).map(|_| Some(LONG));
        let views: ArrayRef = Arc::new(texts.clone().collect::<StringViewArray>());
        let bytes: ArrayRef = Arc::new(texts.clone().collect::<BinaryViewArray>());
        let texts: ArrayRef = Arc::new(texts.collect::<StringArray>());
        let lists = (0..rows).map(|i| Some([Some(i), Some(i)]));
        let lists: ArrayRef = Arc::new(ListArray::from_iter_primitive::<Int64Type, _, _>(lists));
        let both = StructArray::try_from(vec![("n", numbers.clone()), ("t", views.clone())]);
        let both: ArrayRef = Arc::new(both.unwrap());
        vec![
            ("numbers", numbers),
            ("missing", missing),
            ("texts", texts),
            ("views", views),
            ("bytes", bytes),
            ("lists", lists),
            ("both", both),
        ]
    }

    #[test]
    fn slices_count_their_own_rows() {
        let own = [
            ("numbers", 10 * 8),
            ("missing", 10 * 8 + 2),
            ("texts", 11 * 4 + 10 * LONG.len()),
            ("views", 10 * 16 + 10 * LONG.len()),
            ("bytes", 10 * 16 + 10 * LONG.len()),
            ("lists", 11 * 4 + 20 * 8),
            ("both", 10 * 8 + 10 * 16 + 10 * LONG.len()),
        ];
        for ((name, column), (of, bytes)) in columns(5000).into_iter().zip(own) {
            assert_eq!(name, of);
            let batch = RecordBatch::try_from_iter([(name, column)]).unwrap();
            assert_eq!(bytes_of(&batch.slice(100, 10)), bytes, "{name}");
            assert_eq!(bytes_of(&batch.slice(100, 10).slice(3, 0)), bytes_of(&batch.slice(0, 0)));
            assert!(bytes_of(&batch) <= batch.get_array_memory_size(), "{name}");
        }
    }

    #[test]
    fn few_rows_leave_the_others_behind() {
        let batch = RecordBatch::try_from_iter_with_nullable(
            columns(5000)
                .into_iter()
                .filter(|(name, _)| *name != "both")
                .map(|(n, c)| (n, c, true)),
        )
        .unwrap();
        let whole = batch.get_array_memory_size();
        assert_eq!(compact(batch.clone()).get_array_memory_size(), whole);
        for (first, count) in [(0, 1), (4000, 20), (7, 0)] {
            let few = batch.slice(first, count);
            assert!(few.get_array_memory_size() > whole / 2);
            let own = compact(few.clone());
            assert_eq!(own, few);
            // Arrow makes room for all values of a list.
            assert!(own.get_array_memory_size() < whole / 8, "{}", own.get_array_memory_size());
        }
        // Nothing to gain.
        let most = batch.slice(1, 4998);
        assert!(compact(most).get_array_memory_size() > whole / 2);
    }
}
