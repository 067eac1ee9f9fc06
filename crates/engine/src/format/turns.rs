//! Formats batches of rows on all threads.

use super::writer::output;
use crate::error::Error;
use arrow::array::RecordBatch;
use std::io::Write;
use std::sync::{Mutex, PoisonError};
use std::thread;

/// Batches for each thread that are formatted before what was made of them is written.
const BATCHES: usize = 4;

/// Bytes after which no more batches are taken together.
const BYTES: usize = 32 << 20;

/// Upper bound on the threads.
const THREADS_MAX: usize = 16;

/// Larger batches are formatted one by one, and written piece by piece.
const BATCH_BYTES_MAX: usize = 4 << 20;

fn threads() -> usize {
    thread::available_parallelism().map_or(1, usize::from).min(THREADS_MAX)
}

/// The next batches, enough for all threads; none if there are no more.
pub(super) fn next_batches(
    batches: &mut impl Iterator<Item = Result<RecordBatch, Error>>,
) -> Result<Vec<RecordBatch>, Error> {
    let (mut some, mut bytes) = (Vec::new(), 0);
    while some.len() < threads() * BATCHES
        && bytes < BYTES
        && let Some(batch) = batches.next().transpose()?
    {
        bytes += batch.get_array_memory_size();
        some.push(batch);
    }
    Ok(some)
}

/// Does the work for each item on all threads, and returns the results in the order of the items.
pub(super) fn on_threads<T: Send, R: Send>(
    items: Vec<T>,
    work: impl Fn(T) -> Result<R, Error> + Sync,
) -> Result<Vec<R>, Error> {
    let (threads, count) = (threads().min(items.len()), items.len());
    if threads <= 1 {
        return items.into_iter().map(work).collect();
    }
    let left = Mutex::new(items.into_iter().enumerate());
    let take = || left.lock().unwrap_or_else(PoisonError::into_inner).next();
    let (take, work) = (&take, &work);
    let turn = move || std::iter::from_fn(take).map(|(i, item)| (i, work(item))).collect();
    let mut done: Vec<Option<Result<R, Error>>> = (0..count).map(|_| None).collect();
    thread::scope(|scope| {
        let turns: Vec<_> = (0..threads).map(|_| scope.spawn(turn)).collect();
        for turn in turns {
            let some: Vec<_> = match turn.join() {
                Ok(some) => some,
                Err(panic) => std::panic::resume_unwind(panic),
            };
            some.into_iter().for_each(|(i, result)| done[i] = Some(result));
        }
    });
    done.into_iter().flatten().collect()
}

/// Writes batches with `format`, on several threads if there are several batches.
pub(super) fn write_batches(
    mut batches: impl Iterator<Item = Result<RecordBatch, Error>>,
    format: impl Fn(&RecordBatch, &mut dyn Write) -> Result<(), Error> + Sync,
    out: &mut dyn Write,
) -> Result<(), Error> {
    loop {
        let some = next_batches(&mut batches)?;
        if some.is_empty() {
            return Ok(());
        }
        let is_large = |batch: &RecordBatch| batch.get_array_memory_size() > BATCH_BYTES_MAX;
        if some.len() == 1 || threads() == 1 || some.iter().any(is_large) {
            some.iter().try_for_each(|batch| format(batch, out))?;
            continue;
        }
        let texts = on_threads(some, |batch| {
            let mut text = Vec::new();
            format(&batch, &mut text)?;
            Ok(text)
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
