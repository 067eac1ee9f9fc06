//! Formats batches of rows on all threads.

use super::writer::output;
use crate::answer::slices::bytes_of;
use crate::error::Error;
use arrow::array::RecordBatch;
use std::collections::VecDeque;
use std::io::Write;
use std::sync::{Mutex, PoisonError, mpsc};
use std::thread;

/// Batches for each thread that are formatted before their text is written.
const BATCHES: usize = 4;

/// Bytes after which no more batches are taken together.
const BYTES: usize = 32 << 20;

/// Upper bound on the threads.
const THREADS_MAX: usize = 16;

/// Bytes and rows of a piece of a batch that is formatted at a time.
const PIECE_BYTES: usize = 1 << 20;
const PIECE_ROWS: usize = 1 << 14;

/// Pieces for each thread that wait or are formatted.
const PIECES: usize = 3;

fn threads() -> usize {
    thread::available_parallelism().map_or(1, usize::from).min(THREADS_MAX)
}

/// The next batches, enough for all threads; empty at the end.
pub(super) fn next_batches(
    batches: &mut impl Iterator<Item = Result<RecordBatch, Error>>,
) -> Result<Vec<RecordBatch>, Error> {
    let (mut some, mut bytes) = (Vec::new(), 0);
    while some.len() < threads() * BATCHES
        && bytes < BYTES
        && let Some(batch) = batches.next().transpose()?
    {
        bytes += bytes_of(&batch);
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

/// Cuts a batch into pieces of about [`PIECE_BYTES`].
fn pieces(batch: RecordBatch) -> impl Iterator<Item = RecordBatch> {
    let rows = batch.num_rows();
    let count = bytes_of(&batch).div_ceil(PIECE_BYTES).max(rows.div_ceil(PIECE_ROWS)).max(1);
    let each = rows.div_ceil(count).max(1);
    (0..rows).step_by(each).map(move |first| batch.slice(first, each.min(rows - first)))
}

fn pieces_of_all(
    mut batches: impl Iterator<Item = Result<RecordBatch, Error>>,
) -> impl Iterator<Item = Result<RecordBatch, Error>> {
    let mut current = None;
    std::iter::from_fn(move || {
        loop {
            if let Some(piece) = current.as_mut().and_then(Iterator::next) {
                return Some(Ok(piece));
            }
            match batches.next()? {
                Ok(batch) => current = Some(pieces(batch)),
                Err(e) => return Some(Err(e)),
            }
        }
    })
}

/// Formats batches in pieces on all threads, and writes the pieces in their order.
///
/// `format` gets the number of a piece and the piece, and appends its text to a buffer.
///
/// # Errors
/// Errors of the batches, of `format` and of the output.
pub(super) fn write_batches(
    batches: impl Iterator<Item = Result<RecordBatch, Error>>,
    format: impl Fn(usize, &RecordBatch, &mut Vec<u8>) -> Result<(), Error> + Sync,
    out: &mut dyn Write,
) -> Result<(), Error> {
    let mut left = pieces_of_all(batches);
    let formatted = |number: usize, piece: &RecordBatch| {
        let mut text = Vec::new();
        format(number, piece, &mut text)?;
        Ok(text)
    };
    let Some(first) = left.next().transpose()? else { return Ok(()) };
    let Some(second) = left.next().transpose()? else {
        return out.write_all(&formatted(0, &first)?).map_err(output);
    };
    let all = [first, second].into_iter().map(Ok).chain(left);
    let (begin, begun) = mpsc::channel::<(usize, RecordBatch, mpsc::Sender<_>)>();
    let begun = Mutex::new(begun);
    let (begun, formatted) = (&begun, &formatted);
    let next = move || begun.lock().unwrap_or_else(PoisonError::into_inner).recv();
    let work = move || {
        while let Ok((number, piece, end)) = next() {
            // Nobody waits for it after an error.
            let _ = end.send(formatted(number, &piece));
        }
    };
    thread::scope(|scope| {
        // Dropped at the end of this closure, which ends the threads.
        let begin = begin;
        (0..threads()).for_each(|_| drop(scope.spawn(work)));
        let mut waiting = VecDeque::new();
        let mut write = |end: mpsc::Receiver<Result<Vec<u8>, Error>>| match end.recv() {
            Ok(text) => out.write_all(&text?).map_err(output),
            Err(_) => Err(Error::Internal { what: "a thread that formats rows ended".into() }),
        };
        for (number, piece) in all.enumerate() {
            if waiting.len() == threads() * PIECES
                && let Some(end) = waiting.pop_front()
            {
                write(end)?;
            }
            let (told, end) = mpsc::channel();
            if begin.send((number, piece?, told)).is_err() {
                break;
            }
            waiting.push_back(end);
        }
        waiting.into_iter().try_for_each(write)
    })
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
        let format = |_, batch: &RecordBatch, out: &mut Vec<u8>| {
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
        // One batch of several pieces, and slices of it, which share its buffers.
        let rows = 5 * PIECE_ROWS + 3;
        let column = Int64Array::from_iter_values(0..rows as i64);
        let large = RecordBatch::try_from_iter([("a", Arc::new(column) as _)]).unwrap();
        let expected: String = (0..rows).map(|v| format!("{v}\n")).collect();
        let slices = (0..rows).step_by(1000).map(|at| large.slice(at, 1000.min(rows - at)));
        for batches in [vec![large.clone()], slices.collect()] {
            let bytes: usize = batches.iter().map(bytes_of).sum();
            assert_eq!(bytes, rows * 8);
            let mut out = Vec::new();
            write_batches(batches.into_iter().map(Ok), format, &mut out).unwrap();
            assert_eq!(String::from_utf8(out).unwrap(), expected);
        }
    }

    #[test]
    fn errors_of_batches_pieces_and_outputs_end_the_work() {
        let batch = |i: i64| {
            let column = Int64Array::from_iter_values([i]);
            RecordBatch::try_from_iter([("a", Arc::new(column) as _)]).unwrap()
        };
        let failed = || Error::Internal { what: "it failed".into() };
        let write = |end: i64, wrong_batch: i64, wrong_piece: usize, out: &mut dyn Write| {
            let batches = (0..end).map(|i| match i == wrong_batch {
                true => Err(failed()),
                false => Ok(batch(i)),
            });
            let format = |number, _: &RecordBatch, out: &mut Vec<u8>| match number == wrong_piece {
                true => Err(failed()),
                false => {
                    out.push(b'.');
                    Ok(())
                }
            };
            write_batches(batches, format, out)
        };
        let mut written = Vec::new();
        assert!(write(500, -1, 500, &mut written).is_ok());
        assert_eq!(written.len(), 500);
        for wrong in [0, 1, 2, 300] {
            assert!(write(500, wrong, 500, &mut Vec::new()).is_err());
            let mut written = Vec::new();
            assert!(write(500, -1, wrong as usize, &mut written).is_err());
            assert_eq!(written.len(), wrong as usize);
        }
        let mut full = [0; 100];
        assert!(write(500, -1, 500, &mut &mut full[..]).is_err());
        assert_eq!(full, [b'.'; 100]);
    }
}
