//! Rows of a result: in memory while they are few, then in a file.

use super::Answer;
use super::scratch::{Scratch, ScratchFile, ScratchReader, ScratchWriter};
use super::slices::compact;
use crate::error::Error;
use arrow::array::RecordBatch;
use arrow::datatypes::SchemaRef;
use arrow::error::ArrowError;
use arrow::ipc::reader::StreamReader;
use arrow::ipc::writer::StreamWriter;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use tessera_exec::quota::{Account, Charge, Quota};

/// The rows of all results may use one part in this many of the memory limit: they wait for readers, so their memory
/// cannot be reclaimed.
const SHARE: u64 = 8;

/// Rows up to this size are not charged: a short answer waits neither for memory nor for a file.
const SMALL_BYTES: u64 = 16 << 10;

/// The memory for rows in memory: a small part of the budget, charged to it.
#[derive(Debug)]
pub(crate) struct RowsRoom {
    account: Arc<Account>,
    used: AtomicU64,
}

/// The charge of some rows; dropping it returns the memory.
#[derive(Debug)]
struct RowsCharge {
    room: Arc<RowsRoom>,
    charge: Charge,
}

/// The reservation of memory for the rows of a result, while they live. Rows of [few bytes](SMALL_BYTES) reserve none.
#[derive(Debug, Clone, Default)]
pub struct RowsHeld(Vec<Arc<RowsCharge>>);

impl RowsRoom {
    pub(crate) fn new(quota: &Arc<Quota>) -> Arc<Self> {
        Arc::new(RowsRoom { account: quota.account(), used: AtomicU64::new(0) })
    }

    /// Reserves `bytes`, if they are available.
    fn hold(self: &Arc<Self>, bytes: u64) -> Option<RowsCharge> {
        let most = self.account.quota().limit() / SHARE;
        let take = |used: u64| used.checked_add(bytes).filter(|all| *all <= most);
        self.used.fetch_update(Relaxed, Relaxed, take).ok()?;
        let charge = self.account.try_reserve(bytes);
        if charge.is_none() {
            self.used.fetch_sub(bytes, Relaxed);
        }
        Some(RowsCharge { room: self.clone(), charge: charge? })
    }
}

impl Drop for RowsCharge {
    fn drop(&mut self) {
        self.room.used.fetch_sub(self.charge.bytes(), Relaxed);
    }
}

/// Rows in a file, in order.
#[derive(Debug, Clone)]
pub struct StoredRows {
    schema: SchemaRef,
    file: Arc<ScratchFile>,
    /// Offset of the first row.
    start: u64,
    count: u64,
}

impl StoredRows {
    /// The `count` rows that begin at `start` of a file.
    ///
    /// # Errors
    /// No rows begin at `start`.
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

    /// Bytes of the rows in the file.
    pub fn bytes(&self) -> u64 {
        self.file.len() - self.start
    }

    /// The rows, read as the iterator advances.
    ///
    /// # Errors
    /// The file cannot be read.
    pub fn batches(&self) -> Result<StreamReader<ScratchReader>, Error> {
        StreamReader::try_new(self.file.reader_at(self.start), None).map_err(refused)
    }
}

/// Collects the rows of a result.
pub(crate) struct RowsKept {
    schema: SchemaRef,
    batches: Vec<RecordBatch>,
    held: RowsHeld,
    held_bytes: u64,
    bytes: u64,
    count: u64,
    memory_max: u64,
    room: Arc<RowsRoom>,
    scratch: Arc<Scratch>,
    stored: Option<(Arc<ScratchFile>, StreamWriter<ScratchWriter>)>,
}

impl RowsKept {
    /// For rows of `schema`: at most `memory_max` bytes stay in memory while `room` has some; more go to `scratch`.
    pub(crate) fn new(
        schema: SchemaRef,
        memory_max: u64,
        room: Arc<RowsRoom>,
        scratch: Arc<Scratch>,
    ) -> Self {
        RowsKept {
            schema,
            batches: Vec::new(),
            held: RowsHeld::default(),
            held_bytes: 0,
            bytes: 0,
            count: 0,
            memory_max,
            room,
            scratch,
            stored: None,
        }
    }

    /// Adds rows.
    ///
    /// # Errors
    /// The file cannot be written, or it would exceed a limit.
    pub(crate) fn push(&mut self, batch: RecordBatch) -> Result<(), Error> {
        let batch = if self.stored.is_none() { compact(batch) } else { batch };
        self.count += batch.num_rows() as u64;
        let bytes = batch.get_array_memory_size() as u64;
        self.bytes = self.bytes.saturating_add(bytes);
        if self.stored.is_none() && self.bytes > SMALL_BYTES {
            let fits = self.bytes <= self.memory_max;
            match if fits { self.room.hold(self.bytes - self.held_bytes) } else { None } {
                Some(held) => {
                    self.held.0.push(Arc::new(held));
                    self.held_bytes = self.bytes;
                }
                None => self.store()?,
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

    /// Moves the rows so far to a file, where further rows go too.
    fn store(&mut self) -> Result<(), Error> {
        let file = Arc::new(self.scratch.file()?);
        let writer =
            StreamWriter::try_new(ScratchWriter(file.clone()), &self.schema).map_err(refused)?;
        let (_, writer) = self.stored.insert((file, writer));
        for early in self.batches.drain(..) {
            writer.write(&early).map_err(refused)?;
        }
        self.held = RowsHeld::default();
        Ok(())
    }

    pub(crate) fn finish(self) -> Result<Answer, Error> {
        match self.stored {
            None => {
                Ok(Answer::Rows { schema: self.schema, batches: self.batches, held: self.held })
            }
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

/// Arrow wraps the error of the file: a limit error keeps its type.
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
    use arrow::array::{ArrayRef, AsArray, Int64Array};
    use arrow::datatypes::Int64Type;
    use tessera_exec::store::Store;

    #[test]
    fn few_rows_of_a_large_batch_are_few_bytes() {
        let dir = tempfile::tempdir().unwrap();
        let scratch = Scratch::new(Store::open(dir.path(), 64 << 20));
        let quota = Quota::new(1 << 20);
        let numbers: ArrayRef = Arc::new(Int64Array::from_iter_values(0..500_000));
        let large = RecordBatch::try_from_iter([("a", numbers)]).unwrap();
        let room = RowsRoom::new(&quota);
        let mut kept = RowsKept::new(large.schema(), 64 << 20, room, scratch.clone());
        kept.push(large.slice(7, 2)).unwrap();
        kept.push(large.slice(400_000, 1)).unwrap();
        drop(large);
        let answer = kept.finish().unwrap();
        let Answer::Rows { batches, .. } = &answer else { panic!("it is in a file") };
        let values =
            |batch: &RecordBatch| batch.column(0).as_primitive::<Int64Type>().values().to_vec();
        assert_eq!(batches.iter().flat_map(values).collect::<Vec<_>>(), [7, 8, 400_000]);
        assert!(answer.bytes().0 < 1024, "{}", answer.bytes().0);
        assert_eq!((quota.used(), scratch.used()), (0, 0));
    }

    #[test]
    fn many_rows_go_to_a_file_and_come_back() {
        let dir = tempfile::tempdir().unwrap();
        let scratch = Scratch::new(Store::open(dir.path(), 64 << 20));
        let batch = |i: i64| {
            let a: ArrayRef = Arc::new(Int64Array::from_iter_values(i * 10_000..(i + 1) * 10_000));
            RecordBatch::try_from_iter([("a", a)]).unwrap()
        };
        let quota = Quota::new(3_200_000);
        let room = RowsRoom::new(&quota);
        let keep = |n: i64, memory_max| {
            let (schema, room) = (batch(0).schema(), room.clone());
            let mut kept = RowsKept::new(schema, memory_max, room, scratch.clone());
            (0..n).for_each(|i| kept.push(batch(i)).unwrap());
            kept.finish().unwrap()
        };
        let three = keep(3, 64 << 20);
        assert!(matches!(&three, Answer::Rows { batches, .. } if batches.len() == 3));
        assert_eq!(quota.used(), three.bytes().0);
        // Rows in memory may use an eighth of the budget.
        let nine = keep(9, 64 << 20);
        assert!(matches!(&nine, Answer::Stored(rows) if rows.count() == 90_000));
        assert_eq!(quota.used(), three.bytes().0);
        drop((three, nine));
        // A few bytes are not charged, even if all memory is in use.
        let all = quota.account().try_reserve(quota.limit()).unwrap();
        let few: ArrayRef = Arc::new(Int64Array::from(vec![1]));
        let few = RecordBatch::try_from_iter([("a", few)]).unwrap();
        let mut kept = RowsKept::new(few.schema(), 64 << 20, room.clone(), scratch.clone());
        kept.push(few).unwrap();
        assert!(matches!(kept.finish().unwrap(), Answer::Rows { .. }));
        drop(all);
        assert_eq!((quota.used(), scratch.used()), (0, 0));
        let Answer::Stored(rows) = keep(10, 200_000) else { panic!("it is in memory") };
        let back: Vec<RecordBatch> = rows.batches().unwrap().map(Result::unwrap).collect();
        assert_eq!(back, (0..10).map(batch).collect::<Vec<_>>());
        assert!(scratch.used() > 800_000);
        drop(rows);
        assert_eq!(scratch.used(), 0);
        let small = Scratch::new(Store::open(dir.path(), 300_000));
        let mut kept = RowsKept::new(batch(0).schema(), 0, room, small);
        let e = (0..9).find_map(|i| kept.push(batch(i)).err()).unwrap();
        assert_eq!(e.code(), "result_storage");
    }
}
