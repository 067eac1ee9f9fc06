//! Rows of a result: in memory while they are few, then in a file.

use super::Answer;
use super::scratch::{Scratch, ScratchFile, ScratchReader, ScratchWriter};
use crate::error::Error;
use arrow::array::RecordBatch;
use arrow::datatypes::SchemaRef;
use arrow::error::ArrowError;
use arrow::ipc::reader::StreamReader;
use arrow::ipc::writer::StreamWriter;
use std::sync::Arc;

/// Rows in a file, in order.
#[derive(Debug, Clone)]
pub struct StoredRows {
    schema: SchemaRef,
    file: Arc<ScratchFile>,
    /// Where they begin.
    start: u64,
    count: u64,
}

impl StoredRows {
    /// The `count` rows that begin at `start` of a file.
    ///
    /// # Errors
    /// A place where no rows begin.
    pub(crate) fn at(file: Arc<ScratchFile>, start: u64, count: u64) -> Result<Self, Error> {
        let reader = StreamReader::try_new(file.reader_at(start), None).map_err(refused)?;
        Ok(StoredRows { schema: reader.schema(), file, start, count })
    }

    /// Number of rows.
    pub fn count(&self) -> u64 {
        self.count
    }

    /// Names and types of the columns.
    pub fn schema(&self) -> &SchemaRef {
        &self.schema
    }

    /// Bytes of the file.
    pub fn bytes(&self) -> u64 {
        self.file.len() - self.start
    }

    /// The rows, read while they are asked for.
    ///
    /// # Errors
    /// A file that cannot be read.
    pub fn batches(&self) -> Result<StreamReader<ScratchReader>, Error> {
        StreamReader::try_new(self.file.reader_at(self.start), None).map_err(refused)
    }
}

/// Takes rows as they come.
pub(crate) struct RowsKept {
    schema: SchemaRef,
    batches: Vec<RecordBatch>,
    bytes: u64,
    count: u64,
    memory_max: u64,
    scratch: Arc<Scratch>,
    stored: Option<(Arc<ScratchFile>, StreamWriter<ScratchWriter>)>,
}

impl RowsKept {
    /// For rows of `schema`: at most `memory_max` bytes stay in memory, the rest goes to `scratch`.
    pub(crate) fn new(schema: SchemaRef, memory_max: u64, scratch: Arc<Scratch>) -> Self {
        RowsKept {
            schema,
            batches: Vec::new(),
            bytes: 0,
            count: 0,
            memory_max,
            scratch,
            stored: None,
        }
    }

    /// Takes the next rows.
    ///
    /// # Errors
    /// A file that cannot be written, or no room for it.
    pub(crate) fn push(&mut self, batch: RecordBatch) -> Result<(), Error> {
        self.count += batch.num_rows() as u64;
        self.bytes = self.bytes.saturating_add(batch.get_array_memory_size() as u64);
        if self.stored.is_none() && self.bytes > self.memory_max {
            let file = Arc::new(self.scratch.file()?);
            let writer = StreamWriter::try_new(ScratchWriter(file.clone()), &self.schema)
                .map_err(refused)?;
            let (_, writer) = self.stored.insert((file, writer));
            for early in self.batches.drain(..) {
                writer.write(&early).map_err(refused)?;
            }
        }
        match &mut self.stored {
            Some((_, writer)) => writer.write(&batch).map_err(refused),
            None => {
                self.batches.push(batch);
                Ok(())
            }
        }
    }

    /// The rows as an answer.
    pub(crate) fn finish(self) -> Result<Answer, Error> {
        match self.stored {
            None => Ok(Answer::Rows { schema: self.schema, batches: self.batches }),
            Some((file, mut writer)) => {
                writer.finish().map_err(refused)?;
                Ok(Answer::Stored(StoredRows {
                    schema: self.schema,
                    file,
                    start: 0,
                    count: self.count,
                }))
            }
        }
    }
}

/// Arrow wraps what the file said: a limit must stay one.
fn refused(e: ArrowError) -> Error {
    match e {
        ArrowError::IoError(_, source) => match source.downcast::<Error>() {
            Ok(ours) => ours,
            Err(source) => Error::io("use", "the file of a result", source),
        },
        source => Error::Rows { source },
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::panic, reason = "tests")]
    use super::*;
    use arrow::array::{ArrayRef, Int64Array};
    use tessera_exec::store::Store;

    #[test]
    fn many_rows_go_to_a_file_and_come_back() {
        let dir = tempfile::tempdir().unwrap();
        let scratch = Scratch::new(Store::open(dir.path(), 1 << 20));
        let batch = |i: i64| {
            let a: ArrayRef = Arc::new(Int64Array::from_iter_values(i * 100..(i + 1) * 100));
            RecordBatch::try_from_iter([("a", a)]).unwrap()
        };
        let keep = |n: i64, memory_max| {
            let mut kept = RowsKept::new(batch(0).schema(), memory_max, scratch.clone());
            (0..n).for_each(|i| kept.push(batch(i)).unwrap());
            kept.finish().unwrap()
        };
        assert!(matches!(keep(3, 1 << 20), Answer::Rows { batches, .. } if batches.len() == 3));
        let Answer::Stored(rows) = keep(10, 2000) else { panic!("it is in memory") };
        let back: Vec<RecordBatch> = rows.batches().unwrap().map(Result::unwrap).collect();
        assert_eq!(back, (0..10).map(batch).collect::<Vec<_>>());
        assert!(scratch.used() > 8000);
        drop(rows);
        assert_eq!(scratch.used(), 0);
        let small = Scratch::new(Store::open(dir.path(), 3000));
        let mut kept = RowsKept::new(batch(0).schema(), 0, small);
        let e = (0..9).find_map(|i| kept.push(batch(i)).err()).unwrap();
        assert_eq!(e.code(), "result_storage");
    }
}
