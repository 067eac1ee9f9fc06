//! Sorted rows in files.
//!
//! ```text
//! rows that fit into memory ──▶ sorted on all threads ──▶ file 0 ─┐
//! the rows behind them      ──▶ …                     ──▶ file 1 ─┼▶ merged by keys, then by numbers ──▶ rows
//! the rest                  ──▶ …                     ──▶ file 2 ─┘
//! ```
//! The rows in files have the number that they have in the input as their last column, so equal keys keep the order of
//! their rows, and the result is that of a sort in memory.
//!
//! DataFusion merges the files. It reserves memory for two batches of each, so batches are small, and it merges at most
//! [`FAN_IN`](crate::rows::scratch::FAN_IN) files at a time: the operators above need memory, too. Its own sort is not
//! used: it sorts batch by batch, and where rows are narrow the keys of all batches need more memory than it reserves.

use super::super::gather::{exactly, memory_of};
use super::super::in_order::{Bounds, in_order};
use super::{Merge, Numbers};
use datafusion::arrow::compute::SortOptions;
use datafusion::arrow::datatypes::{DataType, Field, Schema, SchemaRef};
use datafusion::arrow::record_batch::RecordBatch;
use datafusion::common::Result;
use datafusion::common::utils::memory::get_record_batch_memory_size;
use datafusion::execution::TaskContext;
use datafusion::execution::memory_pool::MemoryConsumer;
use datafusion::physical_expr::expressions::Column;
use datafusion::physical_expr::{LexOrdering, PhysicalSortExpr};
use datafusion::physical_plan::metrics::{BaselineMetrics, ExecutionPlanMetricsSet, SpillMetrics};
use datafusion::physical_plan::sorts::streaming_merge::{SortedSpillFile, StreamingMergeBuilder};
use datafusion::physical_plan::spill::SpillManager;
use futures::stream::BoxStream;
use futures::{StreamExt, TryStreamExt};
use std::sync::Arc;

/// A batch in a file takes at most this part of a statement's memory for rows, or is one row.
const BATCH_SHARE: usize = 256;

/// The limits on rows that are computed ahead, by a name.
type Ahead = fn(&str, &TaskContext) -> Bounds;

pub(super) struct SortedFiles {
    context: Arc<TaskContext>,
    /// The rows with their numbers.
    schema: SchemaRef,
    manager: SpillManager,
    files: Vec<SortedSpillFile>,
    /// The limits on rows that are computed ahead.
    ahead: Ahead,
    /// Rows that were written.
    count: u64,
    /// Rows of the smallest batches.
    batch_rows: usize,
}

impl SortedFiles {
    /// No files yet, of rows with that schema.
    pub(super) fn new(schema: &Schema, ahead: Ahead, context: &Arc<TaskContext>) -> Self {
        let mut fields: Vec<_> = schema.fields().iter().cloned().collect();
        fields.push(Arc::new(Field::new("__number", DataType::UInt64, false)));
        let schema = Arc::new(Schema::new_with_metadata(fields, schema.metadata().clone()));
        let metrics = SpillMetrics::new(&ExecutionPlanMetricsSet::new(), 0);
        SortedFiles {
            manager: SpillManager::new(context.runtime_env(), metrics, schema.clone()),
            schema,
            files: Vec::new(),
            ahead,
            count: 0,
            batch_rows: context.session_config().batch_size().max(1),
            context: context.clone(),
        }
    }

    /// Writes rows to a file of their own, in their order.
    pub(super) async fn write(&mut self, mut rows: Merge) -> Result<()> {
        let mut starts = Vec::with_capacity(rows.batches.len());
        for batch in &rows.batches {
            starts.push(self.count);
            self.count += batch.num_rows() as u64;
        }
        rows.numbers = Some(Numbers { schema: self.schema.clone(), starts });
        let most = memory_of(&self.context) / BATCH_SHARE / rows.row_bytes;
        self.batch_rows = self.batch_rows.min(most).max(1);
        let (parts, begin) = Arc::new(rows).all(self.batch_rows, None);
        let ahead = (self.ahead)("sorted rows", &self.context);
        let mut rows = in_order(parts, begin, get_record_batch_memory_size, ahead);
        let mut file = self.manager.create_in_progress_file("sorting rows")?;
        let mut max_record_batch_memory = 0;
        while let Some(batch) = rows.try_next().await? {
            max_record_batch_memory = file.append_batch(&batch)?.max(max_record_batch_memory);
        }
        if let Some(file) = file.finish()? {
            self.files.push(SortedSpillFile { file, max_record_batch_memory });
        }
        Ok(())
    }

    /// All rows, with these columns.
    pub(super) fn merged(
        self,
        mut order: LexOrdering,
        schema: SchemaRef,
    ) -> Result<BoxStream<'static, Result<RecordBatch>>> {
        let number = Column::new("__number", schema.fields().len());
        order.push(PhysicalSortExpr::new(Arc::new(number), SortOptions::default()));
        let memory = MemoryConsumer::new("sorted files").register(self.context.memory_pool());
        let rows = StreamingMergeBuilder::new()
            .with_sorted_spill_files(self.files)
            .with_spill_manager(self.manager)
            .with_schema(self.schema)
            .with_expressions(&order)
            .with_metrics(BaselineMetrics::new(&ExecutionPlanMetricsSet::new(), 0))
            .with_batch_size(self.batch_rows)
            .with_reservation(memory)
            .with_round_robin_tie_breaker(false)
            .build()?;
        let columns: Vec<usize> = (0..schema.fields().len()).collect();
        let own = schema.clone();
        let rows = rows.map(move |batch| Ok(batch?.project(&columns)?.with_schema(own.clone())?));
        let batch_rows = self.context.session_config().batch_size().max(1);
        Ok(match self.batch_rows < batch_rows {
            true => exactly(rows.boxed(), schema, batch_rows),
            false => rows.boxed(),
        })
    }
}

#[cfg(test)]
mod tests;
