//! The messages between the server and a worker for a task.
//!
//! ```text
//! server ──▶ worker   Request, and the plan of the stage where the worker lacks it
//! worker ──▶ server   piece, piece, last piece │ last piece │ Runs │ last piece │ … │ Done
//!                     └────── one batch ─────┘   one batch
//! worker ──▶ worker   Part │ last piece │ Runs │ … │ Done
//! ```
//! A batch of the worker is one batch of the server: sums of floats add one number for each batch, so a batch that were
//! split, joined or dropped would change their bits. Batches are Arrow IPC of one stream for a task, cut into pieces. A
//! piece begins with eight bytes: its kind, whether a new stream begins with its batch, two zeros, and its number within
//! the batch. A piece of number 0 begins its batch anew, because a task that was sent again repeats the batch that its
//! first attempt had not finished.
//!
//! [`RowsDone`] follows the last batch when the task was joined. Nothing else proves that a task has sent all of its rows.

use crate::rows::splits::PartBounds;
use bytes::Bytes;
use datafusion::arrow::buffer::Buffer;
use datafusion::arrow::datatypes::SchemaRef;
use datafusion::arrow::ipc::reader::StreamDecoder;
use datafusion::arrow::ipc::writer::StreamWriter;
use datafusion::arrow::record_batch::RecordBatch;
use datafusion::error::{DataFusionError, Result};
use serde::Serialize;
use serde::de::DeserializeOwned;
use std::mem;
use tessera_exec::error::Error as ExecError;
use tessera_exec::rows::{
    ROWS_BATCH, ROWS_BATCH_BYTES_MAX, ROWS_DONE, ROWS_LACKS, ROWS_PART, ROWS_PIECE, ROWS_RUNS,
    RowsDone, RowsPart, RowsRuns,
};

/// Bytes before those of a piece.
const HEAD: usize = 8;

const PIECE_BYTES: usize = 4 << 20;

/// The data of a task beside its plan.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub(super) struct Request {
    pub(super) tasks: u32,
    /// Rows of a batch: the worker has to cut batches as the server would.
    pub(super) batch_rows: u32,
    /// DataFusion's version. Another one may cut batches elsewhere.
    pub(super) engine: String,
}

#[derive(Debug, Clone, PartialEq)]
pub(super) enum Answer {
    /// A piece of a batch, for a [`BatchReader`].
    Piece(Bytes),
    Runs(RowsRuns),
    Done(RowsDone),
    /// Precedes the rows of a part that another worker stores.
    Part(RowsPart),
    /// The worker does not know the stage.
    Lacks,
}

impl Request {
    pub(super) fn write(&self) -> Result<Bytes> {
        Ok(to_postcard(Vec::new(), self)?.into())
    }

    pub(super) fn read(bytes: &[u8]) -> Result<Self> {
        from_postcard(bytes)
    }
}

impl Answer {
    pub(super) fn read(message: Bytes) -> Result<Self> {
        match message.first() {
            Some(&(ROWS_PIECE | ROWS_BATCH)) => Ok(Answer::Piece(message)),
            Some(&ROWS_RUNS) => from_postcard(&message[1..]).map(Answer::Runs),
            Some(&ROWS_DONE) => from_postcard(&message[1..]).map(Answer::Done),
            Some(&ROWS_PART) => from_postcard(&message[1..]).map(Answer::Part),
            Some(&ROWS_LACKS) => Ok(Answer::Lacks),
            Some(kind) => Err(broken(format!("a worker answers a message of kind {kind}"))),
            None => Err(broken("a worker answers an empty message".into())),
        }
    }
}

/// The message with the progress of a task.
pub(super) fn runs(runs: &RowsRuns) -> Result<Bytes> {
    Ok(to_postcard(vec![ROWS_RUNS], runs)?.into())
}

/// The message that precedes the rows of a part.
pub(super) fn part(part: &RowsPart) -> Result<Bytes> {
    Ok(to_postcard(vec![ROWS_PART], part)?.into())
}

/// The bounds between the parts of a sort, for workers that store rows.
pub(super) fn bounds(bounds: &PartBounds) -> Result<Bytes> {
    Ok(to_postcard(Vec::new(), bounds)?.into())
}

/// The bounds of [`bounds`].
pub(super) fn bounds_of(bytes: &[u8]) -> Result<PartBounds> {
    from_postcard(bytes)
}

/// The message that a task has sent all of its rows.
pub(super) fn done(done: &RowsDone) -> Result<Bytes> {
    Ok(to_postcard(vec![ROWS_DONE], done)?.into())
}

/// The message that the worker does not know the stage, and that the plan did not come with the task.
pub(super) fn lacks() -> Bytes {
    Bytes::from_static(&[ROWS_LACKS])
}

fn to_postcard(begun: Vec<u8>, message: &impl Serialize) -> Result<Vec<u8>> {
    postcard::to_extend(message, begun)
        .map_err(|e| broken(format!("a message cannot be written: {e}")))
}

fn from_postcard<T: DeserializeOwned>(bytes: &[u8]) -> Result<T> {
    postcard::from_bytes(bytes).map_err(|e| broken(format!("a message cannot be read: {e}")))
}

/// An error of this protocol.
pub(super) fn broken(what: String) -> DataFusionError {
    DataFusionError::External(Box::new(ExecError::Broken { what }))
}

#[derive(Default)]
pub(super) struct BatchWriter {
    stream: Option<(SchemaRef, StreamWriter<Vec<u8>>)>,
}

impl BatchWriter {
    pub(super) fn messages(&mut self, batch: &RecordBatch) -> Result<Vec<Bytes>> {
        let schema = batch.schema();
        let known = self.stream.take().filter(|(known, _)| *known == schema);
        let is_fresh = known.is_none();
        let mut writer = match known {
            Some((_, mut writer)) => {
                // The last batch was taken out.
                writer.get_mut().resize(HEAD, 0);
                writer
            }
            None => StreamWriter::try_new(vec![0; HEAD], &schema)?,
        };
        writer.write(batch)?;
        let encoded = mem::take(writer.get_mut());
        self.stream = Some((schema, writer));
        Ok(pieces(encoded, is_fresh))
    }
}

fn head(kind: u8, is_fresh: bool, number: u32) -> [u8; HEAD] {
    let [a, b, c, d] = number.to_le_bytes();
    [kind, u8::from(is_fresh), 0, 0, a, b, c, d]
}

/// Cuts an encoded batch, which begins with room for the head of its first piece.
fn pieces(mut encoded: Vec<u8>, is_fresh: bool) -> Vec<Bytes> {
    if encoded.len() <= HEAD + PIECE_BYTES {
        encoded[..HEAD].copy_from_slice(&head(ROWS_BATCH, is_fresh, 0));
        return vec![encoded.into()];
    }
    let cut = encoded[HEAD..].chunks(PIECE_BYTES);
    let last = cut.len() - 1;
    let piece = |(i, bytes): (usize, &[u8])| {
        let kind = if i == last { ROWS_BATCH } else { ROWS_PIECE };
        Bytes::from([&head(kind, is_fresh, i as u32)[..], bytes].concat())
    };
    cut.enumerate().map(piece).collect()
}

#[derive(Default)]
pub(super) struct BatchReader {
    decoder: StreamDecoder,
    /// The pieces of the batch that has begun.
    held: Vec<u8>,
    /// Number of the next piece.
    next: u32,
}

impl BatchReader {
    /// Takes the next piece. Returns the batch that ends with it.
    pub(super) fn take(&mut self, message: &Bytes) -> Result<Option<RecordBatch>> {
        let Some(&[kind, is_fresh, _, _, a, b, c, d]) = message.first_chunk::<HEAD>() else {
            return Err(broken(format!("a piece of a batch has {} bytes", message.len())));
        };
        let (number, bytes) = (u32::from_le_bytes([a, b, c, d]), message.slice(HEAD..));
        if number == 0 {
            (self.next, self.held) = (0, Vec::new());
        }
        if number != self.next {
            let what = format!("piece {number} of a batch comes after {} pieces", self.next);
            return Err(broken(what));
        }
        if self.held.len() + bytes.len() > ROWS_BATCH_BYTES_MAX {
            return Err(broken(format!("a batch has more than {ROWS_BATCH_BYTES_MAX} bytes")));
        }
        if kind == ROWS_PIECE {
            self.held.extend_from_slice(&bytes);
            self.next += 1;
            return Ok(None);
        }
        self.next = 0;
        let whole = if self.held.is_empty() {
            Buffer::from(bytes)
        } else {
            self.held.extend_from_slice(&bytes);
            Buffer::from(mem::take(&mut self.held))
        };
        if is_fresh == 1 {
            self.decoder = StreamDecoder::new();
        }
        self.decoded(whole).map(Some)
    }

    fn decoded(&mut self, mut bytes: Buffer) -> Result<RecordBatch> {
        let mut batch = self.decoder.decode(&mut bytes)?;
        if batch.is_none() {
            // The body of a batch without columns or rows may be empty. The decoder handles it only when more bytes
            // arrive, and does not consume these.
            batch = self.decoder.decode(&mut Buffer::from(vec![0xff_u8; 4]))?;
        }
        match batch {
            Some(batch) if bytes.is_empty() => Ok(batch),
            Some(_) => Err(broken("a message has more than one batch".into())),
            None => Err(broken("a message has no batch".into())),
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]
    use super::*;
    use datafusion::arrow::array::{ArrayRef, DictionaryArray, Float64Array, StringArray};
    use datafusion::arrow::datatypes::{Int32Type, Schema};
    use datafusion::arrow::record_batch::RecordBatchOptions;
    use std::sync::Arc;

    fn batch(from: u32, rows: u32, texts: &[&str]) -> RecordBatch {
        let floats: Float64Array = (from..from + rows)
            .map(|i| {
                Some(f64::from_bits(0x7ff8_0000_0000_0001 + u64::from(i))).filter(|_| i % 7 > 0)
            })
            .collect();
        let text = |i: u32| texts[i as usize % texts.len()];
        let dictionary: DictionaryArray<Int32Type> = (from..from + rows).map(text).collect();
        let texts: StringArray = (from..from + rows).map(|i| Some(text(i))).collect();
        let columns: [(&str, ArrayRef); 3] =
            [("v", Arc::new(floats)), ("d", Arc::new(dictionary)), ("s", Arc::new(texts))];
        RecordBatch::try_from_iter(columns).unwrap()
    }

    fn bits(batch: &RecordBatch) -> Vec<Option<u64>> {
        let floats = batch.column(0).as_any().downcast_ref::<Float64Array>().unwrap();
        floats.iter().map(|v| v.map(f64::to_bits)).collect()
    }

    fn same(a: &RecordBatch, b: &RecordBatch) -> bool {
        a.schema() == b.schema() && a.columns()[1..] == b.columns()[1..] && bits(a) == bits(b)
    }

    #[test]
    fn batches_arrive_as_they_were_sent() {
        let batches = [
            batch(0, 10, &["a", "b"]),
            batch(10, 1, &["a", "b"]),
            batch(11, 0, &["a"]),
            batch(11, 3, &["c"]),
            batch(0, 400_000, &["a", "b", "a longer text"]).slice(5, 399_000),
        ];
        let (mut writer, mut reader) = (BatchWriter::default(), BatchReader::default());
        for batch in &batches {
            let messages = writer.messages(batch).unwrap();
            let (last, before) = messages.split_last().unwrap();
            for message in before {
                assert_eq!((message[0], reader.take(message).unwrap()), (ROWS_PIECE, None));
            }
            assert_eq!(last[0], ROWS_BATCH);
            assert!(same(&reader.take(last).unwrap().unwrap(), batch));
        }
        assert!(writer.messages(&batches[4]).unwrap().len() > 1, "it has several pieces");
    }

    #[test]
    fn rows_without_columns_are_counted() {
        let count = |rows| {
            let options = RecordBatchOptions::new().with_row_count(Some(rows));
            RecordBatch::try_new_with_options(Arc::new(Schema::empty()), vec![], &options).unwrap()
        };
        let (mut writer, mut reader) = (BatchWriter::default(), BatchReader::default());
        for rows in [3, 0, 5] {
            let messages = writer.messages(&count(rows)).unwrap();
            assert_eq!(messages.len(), 1);
            assert_eq!(reader.take(&messages[0]).unwrap(), Some(count(rows)));
        }
    }

    #[test]
    fn a_second_attempt_restarts_its_batch() {
        let whole = batch(0, 400_000, &["a", "b"]);
        let first = BatchWriter::default().messages(&whole).unwrap();
        let second = BatchWriter::default().messages(&whole).unwrap();
        let mut reader = BatchReader::default();
        assert_eq!(reader.take(&first[0]).unwrap(), None);
        let (last, before) = second.split_last().unwrap();
        for message in before {
            assert_eq!(reader.take(message).unwrap(), None);
        }
        assert!(same(&reader.take(last).unwrap().unwrap(), &whole));
        // A piece is missing.
        let mut reader = BatchReader::default();
        assert!(reader.take(last).is_err());
    }

    #[test]
    fn the_schema_may_change() {
        let one =
            RecordBatch::try_from_iter([("v", batch(0, 3, &["a"]).column(0).clone())]).unwrap();
        let (mut writer, mut reader) = (BatchWriter::default(), BatchReader::default());
        for batch in [batch(0, 3, &["a"]), one.clone(), one, batch(3, 3, &["a"])] {
            let messages = writer.messages(&batch).unwrap();
            let read = reader.take(&messages[0]).unwrap().unwrap();
            assert_eq!((read.schema(), bits(&read)), (batch.schema(), bits(&batch)));
        }
    }

    #[test]
    fn messages_round_trip() {
        let done = RowsDone { rows: 7, batches: 2, seconds: 0.5, peak_bytes: 1 << 30 };
        let runs = RowsRuns { rows: 7, seconds: 0.5 };
        assert_eq!(Answer::read(super::done(&done).unwrap()).unwrap(), Answer::Done(done));
        assert_eq!(Answer::read(super::runs(&runs).unwrap()).unwrap(), Answer::Runs(runs));
        let request = Request { tasks: 3, batch_rows: 8192, engine: "55.2.0".into() };
        assert_eq!(Request::read(&request.write().unwrap()).unwrap(), request);
        let part = RowsPart { rows: 7, bytes: 1 << 30, before: 9, key_bits: u64::MAX };
        assert_eq!(Answer::read(super::part(&part).unwrap()).unwrap(), Answer::Part(part));
        assert_eq!(Answer::read(super::lacks()).unwrap(), Answer::Lacks);
        for message in [&b""[..], &[9], &[ROWS_DONE], &[ROWS_PART]] {
            assert!(Answer::read(Bytes::copy_from_slice(message)).is_err(), "{message:?}");
        }
    }
}
