//! Formats batches of rows on all threads and writes the texts in order.

use super::writer::output;
use crate::error::Error;
use arrow::array::RecordBatch;
use std::io::Write;
use std::thread;

/// Batches that a thread formats before their texts are written.
const BATCHES: usize = 4;

/// Upper bound on the threads.
const THREADS_MAX: usize = 16;

/// Larger batches are formatted one by one, and written piece by piece.
const BATCH_BYTES_MAX: usize = 4 << 20;

/// Writes batches with `format`, on several threads if there are several batches.
pub(super) fn write_batches(
    mut batches: impl Iterator<Item = Result<RecordBatch, Error>>,
    format: impl Fn(&RecordBatch, &mut dyn Write) -> Result<(), Error> + Sync,
    out: &mut dyn Write,
) -> Result<(), Error> {
    let threads = thread::available_parallelism().map_or(1, usize::from).min(THREADS_MAX);
    loop {
        let some = batches.by_ref().take(threads * BATCHES).collect::<Result<Vec<_>, _>>()?;
        if some.is_empty() {
            return Ok(());
        }
        let is_large = |batch: &RecordBatch| batch.get_array_memory_size() > BATCH_BYTES_MAX;
        if some.len() == 1 || threads == 1 || some.iter().any(is_large) {
            some.iter().try_for_each(|batch| format(batch, out))?;
            continue;
        }
        let text_of = |part: &[RecordBatch]| {
            let mut text = Vec::new();
            part.iter().try_for_each(|batch| format(batch, &mut text))?;
            Ok(text)
        };
        let text_of = &text_of;
        let texts = thread::scope(|scope| {
            let parts = some.chunks(some.len().div_ceil(threads));
            let tasks: Vec<_> = parts.map(|rows| scope.spawn(move || text_of(rows))).collect();
            let ended = tasks.into_iter().map(|task| match task.join() {
                Ok(text) => text,
                Err(panic) => std::panic::resume_unwind(panic),
            });
            ended.collect::<Result<Vec<Vec<u8>>, Error>>()
        })?;
        texts.iter().try_for_each(|text| out.write_all(text).map_err(output))?;
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]
    use super::*;
    use arrow::array::{AsArray, Int64Array};
    use arrow::datatypes::Int64Type;
    use std::sync::Arc;

    #[test]
    fn texts_are_in_the_order_of_the_batches() {
        let batch = |i: i64| {
            let column = Int64Array::from_iter_values((0..1 + i % 3).map(|row| i * 10 + row));
            RecordBatch::try_from_iter([("a", Arc::new(column) as _)]).unwrap()
        };
        let format = |batch: &RecordBatch, out: &mut dyn Write| {
            let values = batch.column(0).as_primitive::<Int64Type>().values();
            values.iter().try_for_each(|v| writeln!(out, "{v}").map_err(output))
        };
        for count in [0, 1, 2, 9, 100] {
            let mut out = Vec::new();
            write_batches((0..count).map(|i| Ok(batch(i))), format, &mut out).unwrap();
            let rows = (0..count).flat_map(|i| (0..1 + i % 3).map(move |row| i * 10 + row));
            let expected: String = rows.map(|v| format!("{v}\n")).collect();
            assert_eq!(String::from_utf8(out).unwrap(), expected);
        }
    }
}
