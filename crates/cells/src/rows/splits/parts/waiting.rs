//! Rows that wait until the bounds of their parts are known.
//!
//! ```text
//! split 0 ──▶ some rows │ some rows │ file of some rows
//! split 1 ──▶ some rows │ …                                each a partition, to be read by all threads
//! ```

use super::super::gather::memory_of;
use datafusion::arrow::datatypes::SchemaRef;
use datafusion::arrow::record_batch::RecordBatch;
use datafusion::common::utils::memory::RecordBatchMemoryCounter;
use datafusion::error::Result;
use datafusion::execution::memory_pool::{MemoryConsumer, MemoryReservation};
use datafusion::execution::spill_file::SpillFile;
use datafusion::execution::{SendableRecordBatchStream, TaskContext};
use datafusion::physical_plan::ExecutionPlan;
use datafusion::physical_plan::metrics::{ExecutionPlanMetricsSet, SpillMetrics};
use datafusion::physical_plan::spill::SpillManager;
use datafusion::physical_plan::stream::RecordBatchStreamAdapter;
use datafusion::physical_plan::streaming::{PartitionStream, StreamingTableExec};
use futures::stream::{self, BoxStream};
use futures::{StreamExt, TryStreamExt};
use std::fmt;
use std::sync::Arc;

/// Rows of several splits, in order.
pub(super) struct Waiting {
    files: SpillManager,
    chunks: Vec<Chunk>,
    memory: MemoryReservation,
    /// Bytes that the rows in memory may take.
    most: usize,
}

/// Rows of one split.
struct Chunk {
    split: usize,
    rows: ChunkRows,
}

enum ChunkRows {
    Here(Vec<RecordBatch>),
    File(Arc<dyn SpillFile>),
}

impl fmt::Debug for Waiting {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Waiting").field("chunks", &self.chunks.len()).finish_non_exhaustive()
    }
}

impl Waiting {
    /// No rows yet. Those in memory may take a `share`-th of a statement's memory.
    pub(super) fn new(schema: SchemaRef, share: usize, context: &TaskContext) -> Self {
        let metrics = SpillMetrics::new(&ExecutionPlanMetricsSet::new(), 0);
        Waiting {
            files: SpillManager::new(context.runtime_env(), metrics, schema),
            chunks: Vec::new(),
            memory: MemoryConsumer::new("waiting rows").register(context.memory_pool()),
            most: memory_of(context) / share,
        }
    }

    /// Adds rows behind the others. Where memory does not suffice, all go to files.
    pub(super) fn add(&mut self, split: usize, rows: Vec<RecordBatch>) -> Result<()> {
        // Batches may be slices of the same rows.
        let mut counted = RecordBatchMemoryCounter::new();
        let bytes: usize = rows.iter().map(|batch| counted.count_batch(batch)).sum();
        let fits = self.memory.size() + bytes <= self.most && self.memory.try_grow(bytes).is_ok();
        self.chunks.push(Chunk { split, rows: ChunkRows::Here(rows) });
        if fits { Ok(()) } else { self.spill() }
    }

    /// Writes the rows in memory to files, a file for those of each split.
    fn spill(&mut self) -> Result<()> {
        let mut before = std::mem::take(&mut self.chunks).into_iter().peekable();
        while let Some(Chunk { split, rows }) = before.next() {
            let mut batches = match rows {
                ChunkRows::Here(batches) => batches,
                rows @ ChunkRows::File(_) => {
                    self.chunks.push(Chunk { split, rows });
                    continue;
                }
            };
            let is_next =
                |next: &Chunk| next.split == split && matches!(next.rows, ChunkRows::Here(_));
            while let Some(next) = before.next_if(is_next) {
                if let ChunkRows::Here(more) = next.rows {
                    batches.extend(more);
                }
            }
            let mut file = self.files.create_in_progress_file("rows that wait for their part")?;
            for batch in &batches {
                file.append_batch(batch)?;
            }
            if let Some(file) = file.finish()? {
                self.chunks.push(Chunk { split, rows: ChunkRows::File(file) });
            }
        }
        self.memory.free();
        Ok(())
    }

    /// The split of each partition of [`Waiting::plan`].
    pub(super) fn splits(&self) -> Vec<usize> {
        self.chunks.iter().map(|chunk| chunk.split).collect()
    }

    /// The rows, as the input of other operators.
    pub(super) fn plan(self: &Arc<Self>) -> Result<Arc<dyn ExecutionPlan>> {
        let partition =
            |chunk| Arc::new(Partition { of: self.clone(), chunk }) as Arc<dyn PartitionStream>;
        let partitions = (0..self.chunks.len()).map(partition).collect();
        let schema = self.files.schema().clone();
        Ok(Arc::new(StreamingTableExec::try_new(schema, partitions, None, [], false, None)?))
    }

    fn rows(&self, chunk: usize) -> Result<BoxStream<'static, Result<RecordBatch>>> {
        match &self.chunks[chunk].rows {
            ChunkRows::Here(rows) => Ok(stream::iter(rows.clone().into_iter().map(Ok)).boxed()),
            ChunkRows::File(file) => {
                Ok(self.files.read_spill_as_stream(file.clone(), None)?.boxed())
            }
        }
    }
}

#[derive(Debug)]
struct Partition {
    of: Arc<Waiting>,
    chunk: usize,
}

impl PartitionStream for Partition {
    fn schema(&self) -> &SchemaRef {
        self.of.files.schema()
    }

    fn execute(&self, _: Arc<TaskContext>) -> SendableRecordBatchStream {
        let (of, chunk) = (self.of.clone(), self.chunk);
        let rows = stream::once(async move { of.rows(chunk) }).try_flatten();
        Box::pin(RecordBatchStreamAdapter::new(self.schema().clone(), rows))
    }
}
