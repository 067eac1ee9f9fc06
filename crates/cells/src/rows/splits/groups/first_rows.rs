//! The groups of the first rows, from which those of all rows are estimated.
//!
//! Where rows are in no order, the groups of one half of the sample are found again in the other half, in proportion to
//! their number in all (an estimate by recapture). Where rows are in the order of their groups, few are found again, and
//! the estimate is large. If groups change later, rows behind the sample show it.

use super::super::dictionaries::{texts_of, texts_over};
use super::super::parts::STATE;
use super::super::scatter::value_bytes;
use super::evaluated;
use crate::rows::single::{over, shown_by_name, usual};
use crate::rows::table::shares_run;
use datafusion::arrow::record_batch::RecordBatch;
use datafusion::common::hash_utils::{RandomState, create_hashes};
use datafusion::common::utils::memory::get_record_batch_memory_size;
use datafusion::error::Result;
use datafusion::execution::memory_pool::MemoryConsumer;
use datafusion::execution::{SendableRecordBatchStream, TaskContext};
use datafusion::physical_expr::PhysicalExpr;
use datafusion::physical_plan::stream::RecordBatchStreamAdapter;
use datafusion::physical_plan::{ExecutionPlan, ExecutionPlanProperties};
use futures::{StreamExt, TryStreamExt, stream};
use std::collections::HashSet;
use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};

/// Rows that decide between the two ways. They are held; if they have more bytes, groups are taken to be many.
const SAMPLE_ROWS: usize = 1 << 16;
const SAMPLE_BYTES: usize = 8 << 20;

/// Groups are few if on average this many rows share one.
const ROWS_OF_GROUP: usize = 4;

/// Rows from the middle on that show whether groups recur. They are read twice. Partitions of which a condition leaves few
/// rows would be read one after the other.
const LATER_ROWS: usize = 1 << 12;
const LATER_PARTITIONS: usize = 4;

/// If groups recur, later rows have this part of the expected number of known groups at least.
const RECURRING_SHARE: usize = 2;

/// The groups that the first rows show.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Groups {
    /// Many rows share a group.
    Few,
    /// Many groups, or large rows.
    Many,
    /// The first partition has no further rows, and the rows are small.
    All,
}

/// The groups of the first rows by their hashes, those of both halves of the sample apart.
#[derive(Debug, Default)]
pub(super) struct Seen {
    rows: usize,
    first: HashSet<u64, RandomState>,
    second: HashSet<u64, RandomState>,
    /// How many groups are in both halves.
    both: usize,
}

impl Seen {
    fn add(&mut self, hashes: &[u64]) {
        for &hash in hashes {
            if self.rows < SAMPLE_ROWS / 2 {
                self.first.insert(hash);
            } else if self.second.insert(hash) && self.first.contains(&hash) {
                self.both += 1;
            }
            self.rows += 1;
        }
    }

    fn count(&self) -> usize {
        self.first.len() + self.second.len() - self.both
    }

    fn has(&self, hash: u64) -> bool {
        self.first.contains(&hash) || self.second.contains(&hash)
    }

    /// The estimated number of all groups; `None` if the sample is not whole, or none is in both halves.
    pub(super) fn estimate(&self) -> Option<usize> {
        let is_whole = self.rows == SAMPLE_ROWS;
        let all = (self.first.len() * self.second.len()).checked_div(self.both);
        all.filter(|_| is_whole)
    }

    /// True if rows of later partitions have about as many of these groups as they have if there are `groups` in all; false
    /// if they are few, or if their partitions cannot run again alone.
    pub(super) async fn recur(
        &self,
        groups: usize,
        input: &Arc<dyn ExecutionPlan>,
        keys: &[Arc<dyn PhysicalExpr>],
        context: &Arc<TaskContext>,
    ) -> Result<bool> {
        if shares_run(input)? {
            return Ok(false);
        }
        let partitions = input.output_partitioning().partition_count();
        let (mut rows, mut known) = (0, 0);
        for partition in ((partitions / 2).max(1)..partitions).take(LATER_PARTITIONS) {
            let mut batches = input.execute(partition, context.clone())?;
            while rows < LATER_ROWS
                && let Some(batch) = batches.try_next().await?
            {
                let batch = batch.slice(0, batch.num_rows().min(LATER_ROWS - rows));
                let hashes = hashes_of(keys, &batch)?;
                known += hashes.into_iter().filter(|hash| self.has(*hash)).count();
                rows += batch.num_rows();
            }
            if rows == LATER_ROWS {
                return Ok(known * groups * RECURRING_SHARE >= rows * self.count());
            }
        }
        Ok(false)
    }
}

fn hashes_of(keys: &[Arc<dyn PhysicalExpr>], rows: &RecordBatch) -> Result<Vec<u64>> {
    let mut hashes = vec![0; rows.num_rows()];
    create_hashes(&evaluated(keys, rows)?, &STATE, &mut hashes)?;
    Ok(hashes)
}

/// Reads the first rows. Returns the same input, and the groups that the rows show. Of an input that casts dictionaries to
/// texts, the rows below are read.
pub(super) async fn sampled(
    input: &Arc<dyn ExecutionPlan>,
    keys: &[Arc<dyn PhysicalExpr>],
    context: &Arc<TaskContext>,
) -> Result<(Arc<dyn ExecutionPlan>, Groups, Seen)> {
    let texts = texts_of(input);
    let read = texts.map_or(input, |texts| texts.input());
    let mut first = read.execute(0, context.clone())?;
    let (mut begun, mut seen, mut bytes) = (Vec::new(), Seen::default(), 0);
    let memory = MemoryConsumer::new("first rows of groups").register(context.memory_pool());
    while seen.rows < SAMPLE_ROWS
        && bytes <= SAMPLE_BYTES
        && let Some(batch) = first.try_next().await?
    {
        // The ends of batches depend on the memory; the rows of the sample must not.
        let counted = batch.slice(0, batch.num_rows().min(SAMPLE_ROWS - seen.rows));
        let counted = match texts {
            Some(texts) => {
                let items: Vec<_> = texts.projection_expr().expr_iter().collect();
                RecordBatch::try_new(texts.schema(), evaluated(&items, &counted)?)?
            }
            None => counted,
        };
        seen.add(&hashes_of(keys, &counted)?);
        bytes += value_bytes(&counted);
        // Unconditionally: a refusal would change the choice.
        memory.grow(get_record_batch_memory_size(&batch));
        begun.push(batch);
    }
    let held = begun.into_iter().map(move |batch| {
        memory.shrink(get_record_batch_memory_size(&batch));
        Ok(batch)
    });
    let resumed = stream::iter(held).chain(first);
    let resumed = RecordBatchStreamAdapter::new(read.schema(), resumed);
    let resumed: SendableRecordBatchStream = Box::pin(resumed);
    let first = Arc::new(Mutex::new(Some(resumed)));
    let begun: Arc<dyn ExecutionPlan> = Arc::new(Begun { input: read.clone(), first });
    let input = match texts {
        Some(texts) => texts_over(input, texts.expr().to_vec(), begun)?,
        None => begun,
    };
    let groups = match bytes <= SAMPLE_BYTES {
        true if seen.count() * ROWS_OF_GROUP <= seen.rows => Groups::Few,
        true if seen.rows < SAMPLE_ROWS => Groups::All,
        _ => Groups::Many,
    };
    // How many rows a sample has that its bytes end depends on the ends of batches.
    let seen = if bytes <= SAMPLE_BYTES { seen } else { Seen::default() };
    Ok((input, groups, seen))
}

/// An input whose first partition has begun.
struct Begun {
    input: Arc<dyn ExecutionPlan>,
    first: Arc<Mutex<Option<SendableRecordBatchStream>>>,
}

impl fmt::Debug for Begun {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.input.fmt(f)
    }
}

shown_by_name!(Begun);

impl ExecutionPlan for Begun {
    usual!(name, properties of input, input, no_expressions);

    over!(|node, input| Begun { input, first: node.first.clone() });

    fn execute(
        &self,
        partition: usize,
        context: Arc<TaskContext>,
    ) -> Result<SendableRecordBatchStream> {
        // A partition that runs again starts from its beginning.
        let first = match partition {
            0 => self.first.lock().unwrap_or_else(PoisonError::into_inner).take(),
            _ => None,
        };
        match first {
            Some(rows) => Ok(rows),
            None => self.input.execute(partition, context),
        }
    }
}

#[cfg(test)]
mod tests;
