//! The rows of all splits, in the order of the splits.

use super::grace::GraceJoinExec;
use super::in_order::{Anew, Begin, Bounds, WINDOW, in_order, in_order_sharing};
use super::last::{Others, ending_last};
use super::replaced;
use crate::rows::remote::RemoteExec;
use crate::rows::single::{self, over, shown, usual};
use crate::rows::stop::unchecked;
use datafusion::arrow::array::{Array, AsArray};
use datafusion::arrow::compute::BatchCoalescer;
use datafusion::arrow::datatypes::SchemaRef;
use datafusion::arrow::record_batch::{RecordBatch, RecordBatchOptions};
use datafusion::common::JoinType;
use datafusion::common::utils::memory::{RecordBatchMemoryCounter, get_record_batch_memory_size};
use datafusion::error::Result;
use datafusion::execution::memory_pool::{MemoryConsumer, MemoryLimit};
use datafusion::execution::{SendableRecordBatchStream, TaskContext};
use datafusion::physical_plan::joins::{HashJoinExec, PartitionMode};
use datafusion::physical_plan::stream::RecordBatchStreamAdapter;
use datafusion::physical_plan::{ExecutionPlan, ExecutionPlanProperties, PlanProperties};
use futures::stream::{self, BoxStream};
use futures::{StreamExt, TryStreamExt};
use std::sync::Arc;

/// The threads that compute rows, as an extension of DataFusion's configuration.
#[derive(Debug, Clone, Copy)]
pub(crate) struct RowsThreads(pub(crate) usize);

/// Upper bounds on rows that are held for their turn: a share of a statement's memory for rows, and bytes.
const HELD_SHARE: usize = 16;
const HELD_MAX: usize = 256 << 20;

/// Batches that are taken together, and an upper bound on their bytes.
const UNIT_BATCHES: usize = 8;
const UNIT_BYTES: usize = 32 << 20;

/// Elements of the lists of a batch that is not joined with others.
const LONG_LISTS: usize = 1 << 14;

/// Memory that a split may need. Where a statement has less for each of several, they run one at a time.
pub(in crate::rows) const SPLIT_BYTES: usize = 32 << 20;

/// Runs the partitions of its input at the same time and yields their rows in order.
#[derive(Debug)]
pub(in crate::rows) struct GatherExec {
    input: Arc<dyn ExecutionPlan>,
    properties: Arc<PlanProperties>,
}

/// A plan with one partition: the rows of all partitions of `input`, in order.
pub(in crate::rows) fn gathered(input: Arc<dyn ExecutionPlan>) -> Arc<dyn ExecutionPlan> {
    match input.output_partitioning().partition_count() {
        1 => input,
        _ => Arc::new(GatherExec::new(input)),
    }
}

/// True for joins that yield rows of their first input by whether they have a match. All partitions share the matches,
/// and the one that ends last yields these rows.
pub(super) fn shares_matches(node: &Arc<dyn ExecutionPlan>) -> bool {
    let join = node.downcast_ref::<GraceJoinExec>().map(GraceJoinExec::join);
    join.or_else(|| node.downcast_ref::<HashJoinExec>()).is_some_and(|join| {
        *join.partition_mode() == PartitionMode::CollectLeft
            && join.fetch().is_none()
            && !join.null_aware
            && yields_build_side(*join.join_type())
    })
}

/// True for joins that yield rows of their first input by whether they have a match.
pub(super) fn yields_build_side(kind: JoinType) -> bool {
    use JoinType::{Full, Left, LeftAnti, LeftMark, LeftSemi};
    matches!(kind, Full | Left | LeftAnti | LeftMark | LeftSemi)
}

/// Begins the partitions of such a join, which has not found any matches yet. Its last partition ends behind the others,
/// so rows without a match follow all that have one.
fn sharing_matches(
    join: &Arc<dyn ExecutionPlan>,
    context: Arc<TaskContext>,
) -> Result<Begin<RecordBatch>> {
    let partitions = join.output_partitioning().partition_count();
    let others = Others::of(partitions);
    let begin = partitions_of(unmatched(join, &others)?, context);
    Ok(Box::new(move |partition| {
        let rows = begin(partition);
        if partition + 1 == partitions { rows } else { others.counted(rows) }
    }))
}

fn unmatched(plan: &Arc<dyn ExecutionPlan>, others: &Others) -> Result<Arc<dyn ExecutionPlan>> {
    if let Some(join) = plan.downcast_ref::<GraceJoinExec>() {
        return Ok(Arc::new(join.ending_last(others)));
    }
    let inputs: Vec<_> = plan.children().into_iter().cloned().collect();
    match (plan.downcast_ref::<HashJoinExec>(), inputs.as_slice()) {
        (Some(join), [build, probe]) => {
            let inputs = vec![build.clone(), ending_last(probe.clone(), others)];
            join.builder().with_new_children(inputs)?.reset_state().build_exec()
        }
        // A check for cancellation.
        _ => {
            let inputs = inputs.iter().map(|input| unmatched(input, others));
            replaced(plan, inputs.collect::<Result<_>>()?)
        }
    }
}

pub(super) fn memory_of(context: &TaskContext) -> usize {
    match context.memory_pool().memory_limit() {
        MemoryLimit::Finite(limit) => limit,
        _ => usize::MAX,
    }
}

/// How many rows are taken together, to be sorted or scattered at once.
#[derive(Debug, Clone, Copy)]
pub(super) struct Unit {
    /// A multiple of the rows of a batch, which are fewer where constants are large.
    pub(super) rows: usize,
    /// Rows with long texts are fewer.
    pub(super) bytes: usize,
}

impl Unit {
    pub(super) fn of(context: &TaskContext) -> Self {
        Unit {
            rows: context.session_config().batch_size().max(1) * UNIT_BATCHES,
            bytes: (memory_of(context) / HELD_SHARE).min(UNIT_BYTES),
        }
    }

    /// The next batches of a stream, and whether there may be more; `None` if there are no rows left.
    pub(super) async fn next(
        self,
        rows: &mut BoxStream<'static, Result<RecordBatch>>,
    ) -> Result<Option<(Vec<RecordBatch>, bool)>> {
        let (mut batches, mut count, mut bytes) = (Vec::new(), 0, 0);
        // Batches may be slices of the same rows.
        let mut counted = RecordBatchMemoryCounter::new();
        while count == 0 || (count < self.rows && bytes < self.bytes) {
            let Some(batch) = rows.try_next().await? else {
                return Ok((count > 0).then_some((batches, false)));
            };
            count += batch.num_rows();
            bytes += counted.count_batch(&batch);
            batches.push(batch);
        }
        Ok(Some((batches, true)))
    }
}

/// Splits that run at the same time: with several threads there are more, as some wait for their file.
fn turns(threads: usize) -> usize {
    if threads > 1 { threads * 2 } else { threads }
}

/// The tasks, or splits, that the threads of this process run at the same time.
pub(super) fn turns_of(context: &TaskContext) -> usize {
    let threads = context.session_config().get_extension::<RowsThreads>();
    turns(threads.map_or(1, |threads| threads.0))
}

/// The limits on the splits of a statement.
pub(super) fn bounds(name: &str, context: &TaskContext) -> Bounds {
    let most = memory_of(context);
    Bounds {
        turns: turns_of(context).min(most / SPLIT_BYTES),
        window: WINDOW,
        bytes: (most / HELD_SHARE).min(HELD_MAX),
        memory: MemoryConsumer::new(name).register(context.memory_pool()),
    }
}

/// As [`bounds`], for one of several tasks: one part at a time, and nothing is held for the reader.
pub(super) fn one_turn(name: &str, context: &TaskContext) -> Bounds {
    Bounds { turns: 1, bytes: 0, ..bounds(name, context) }
}

/// As [`bounds`], for the partitions of a plan. Partitions on workers use the turns of the workers: here they need
/// memory for their batches alone, and those that run here after all wait for each other.
pub(super) fn bounds_of(
    name: &str,
    plan: &Arc<dyn ExecutionPlan>,
    context: &TaskContext,
) -> Bounds {
    let own = bounds(name, context);
    match unchecked(plan).downcast_ref::<RemoteExec>() {
        Some(remote) => Bounds { turns: remote.peers().turns().max(1), ..own },
        None => own,
    }
}

pub(super) fn partitions_of(
    plan: Arc<dyn ExecutionPlan>,
    context: Arc<TaskContext>,
) -> Begin<RecordBatch> {
    Box::new(move |partition| {
        let (plan, context) = (plan.clone(), context.clone());
        stream::once(async move { plan.execute(partition, context) }).try_flatten().boxed()
    })
}

/// Joins small batches to batches of `batch_rows` rows: small splits, and groups of few rows, yield many of them. Batches
/// with long lists stay as they are: they would be copied, and wait for others.
pub(super) fn coalesced(
    rows: BoxStream<'static, Result<RecordBatch>>,
    schema: SchemaRef,
    batch_rows: usize,
) -> BoxStream<'static, Result<RecordBatch>> {
    let joined = BatchCoalescer::new(schema, batch_rows)
        .with_biggest_coalesce_batch_size(Some(batch_rows / 2));
    through(joined, rows, batch_rows, has_long_lists)
}

/// True if the lists of a column have many elements.
fn has_long_lists(batch: &RecordBatch) -> bool {
    batch.columns().iter().filter_map(|column| column.as_list_opt::<i32>()).any(|lists| {
        let offsets = lists.value_offsets();
        (offsets[offsets.len() - 1] - offsets[0]) as usize > LONG_LISTS
    })
}

/// Batches of exactly `batch_rows` rows, and a last one of fewer.
pub(super) fn exactly(
    rows: BoxStream<'static, Result<RecordBatch>>,
    schema: SchemaRef,
    batch_rows: usize,
) -> BoxStream<'static, Result<RecordBatch>> {
    through(BatchCoalescer::new(schema, batch_rows), rows, batch_rows, |_| false)
}

/// Batches for which `is_apart` holds are not joined.
fn through(
    joined: BatchCoalescer,
    rows: BoxStream<'static, Result<RecordBatch>>,
    batch_rows: usize,
    is_apart: fn(&RecordBatch) -> bool,
) -> BoxStream<'static, Result<RecordBatch>> {
    let state = (Some(rows), joined, None);
    let batches = stream::try_unfold(state, move |(mut rows, mut joined, mut apart)| async move {
        loop {
            if let Some(batch) = joined.next_completed_batch() {
                let batch = if batch.num_rows() < batch_rows / 2 { fitted(batch)? } else { batch };
                return Ok(Some((batch, (rows, joined, apart))));
            }
            if let Some(batch) = apart.take() {
                return Ok(Some((batch, (rows, joined, apart))));
            }
            let Some(left) = &mut rows else { return Ok(None) };
            match left.try_next().await? {
                Some(batch) if is_apart(&batch) => {
                    joined.finish_buffered_batch()?;
                    apart = Some(batch);
                }
                Some(batch) => joined.push_batch(batch)?,
                None => {
                    rows = None;
                    joined.finish_buffered_batch()?;
                }
            }
        }
    });
    batches.boxed()
}

/// The batch without the room of its columns for more rows: it would be charged.
fn fitted(batch: RecordBatch) -> Result<RecordBatch> {
    let (schema, mut columns, rows) = batch.into_parts();
    columns.iter_mut().for_each(Array::shrink_to_fit);
    let options = RecordBatchOptions::new().with_row_count(Some(rows));
    Ok(RecordBatch::try_new_with_options(schema, columns, &options)?)
}

impl GatherExec {
    fn new(input: Arc<dyn ExecutionPlan>) -> Self {
        // Splits follow each other as the rows do, so an order within each is one of all. Constants follow from the
        // query, so they are the same in all.
        let properties = single::with_partitions(input.equivalence_properties().clone(), 1);
        GatherExec { input, properties }
    }
}

shown!(GatherExec, |node, f| write!(
    f,
    "GatherExec: {} splits",
    node.input.output_partitioning().partition_count()
));

impl ExecutionPlan for GatherExec {
    usual!(name, properties, input, in_order, no_expressions);

    over!(|_, input| GatherExec::new(input));

    fn execute(
        &self,
        partition: usize,
        context: Arc<TaskContext>,
    ) -> Result<SendableRecordBatchStream> {
        single::check(self.name(), partition)?;
        let bounds = bounds_of(self.name(), &self.input, &context);
        let batch_rows = context.session_config().batch_size().max(1);
        let splits = self.input.output_partitioning().partition_count();
        let rows = if shares_matches(unchecked(&self.input)) {
            let input = self.input.clone();
            let anew: Anew<RecordBatch> =
                Box::new(move || sharing_matches(&input, context.clone()));
            in_order_sharing(splits, anew, get_record_batch_memory_size, bounds)?
        } else {
            let begin = partitions_of(self.input.clone(), context);
            in_order(splits, begin, get_record_batch_memory_size, bounds)
        };
        let rows = coalesced(rows, self.schema(), batch_rows);
        Ok(Box::pin(RecordBatchStreamAdapter::new(self.schema(), rows)))
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]
    use super::*;
    use datafusion::arrow::array::{ArrayRef, Int64Array, ListArray};
    use datafusion::arrow::buffer::OffsetBuffer;
    use datafusion::arrow::compute::concat_batches;
    use datafusion::arrow::datatypes::{DataType, Field};

    /// Rows with lists of `len` numbers.
    fn lists(rows: usize, len: usize) -> RecordBatch {
        let field = Arc::new(Field::new_list_field(DataType::Int64, true));
        let offsets = OffsetBuffer::from_lengths(std::iter::repeat_n(len, rows));
        let numbers = Arc::new(Int64Array::from_iter_values(0..(rows * len) as i64));
        let lists: ArrayRef = Arc::new(ListArray::new(field, offsets, numbers, None));
        RecordBatch::try_from_iter([("l", lists)]).unwrap()
    }

    #[tokio::test]
    async fn batches_with_long_lists_are_not_joined() {
        let batches = [lists(2, 1), lists(1, LONG_LISTS + 1), lists(3, 1), lists(1, 2)];
        let schema = batches[0].schema();
        let rows = stream::iter(batches.clone().map(Ok)).boxed();
        let joined = coalesced(rows, schema.clone(), 100);
        let joined: Vec<RecordBatch> = joined.try_collect().await.unwrap();
        assert_eq!(joined.iter().map(RecordBatch::num_rows).collect::<Vec<_>>(), [2, 1, 4]);
        let all = concat_batches(&schema, &batches).unwrap();
        assert_eq!(concat_batches(&schema, &joined).unwrap(), all);
    }
}
