//! `GROUP BY` over splits.
//!
//! ```text
//! few groups    split ──▶ Partial ──┐                       many     split ──▶ scatter ──┐ part of the keys ──▶ Single
//!               split ──▶ Partial ──┴▶ in order ──▶ Final            split ──▶ scatter ──┴ part of the keys ──▶ Single
//! ```
//! Where rows share few groups, each split computes its own and the results are merged in the order of the splits. Where
//! groups are many, that would compute each group several times: there the rows go to parts by their keys, and each
//! part computes its groups alone, from rows in their order. The first rows decide, so the choice follows from the data.
//! Aggregates that cannot be merged, as percentiles, take the second way.

use super::gather::{bounds, coalesced, gathered, partitions_of};
use super::in_order::in_order;
use super::replaced;
use super::scatter::{Scatter, scattered};
use crate::rows::single;
use datafusion::arrow::array::ArrayRef;
use datafusion::arrow::datatypes::SchemaRef;
use datafusion::arrow::record_batch::RecordBatch;
use datafusion::common::hash_utils::{RandomState, create_hashes};
use datafusion::common::internal_datafusion_err;
use datafusion::common::tree_node::TreeNodeRecursion;
use datafusion::common::utils::memory::get_record_batch_memory_size;
use datafusion::error::Result;
use datafusion::execution::{SendableRecordBatchStream, TaskContext};
use datafusion::physical_expr::PhysicalExpr;
use datafusion::physical_plan::aggregates::{AggregateExec, AggregateMode};
use datafusion::physical_plan::execution_plan::{Boundedness, EmissionType};
use datafusion::physical_plan::stream::RecordBatchStreamAdapter;
use datafusion::physical_plan::streaming::{PartitionStream, StreamingTableExec};
use datafusion::physical_plan::{
    DisplayAs, DisplayFormatType, ExecutionPlan, ExecutionPlanProperties, Partitioning,
    PlanProperties,
};
use futures::{StreamExt, TryStreamExt, stream};
use std::collections::HashSet;
use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};

/// Rows that decide between the two ways.
const SAMPLE_ROWS: usize = 1 << 16;

/// Groups are few if so many rows share one on average.
const ROWS_OF_GROUP: usize = 4;

/// Parts of the keys for each split, and bounds on all parts.
const PARTS_OF_SPLIT: usize = 4;
const PARTS: std::ops::RangeInclusive<usize> = 16..=512;

/// Hashes keys for parts, in the same way in each run.
const STATE: RandomState = RandomState::with_seed(0x7465_7373_6572_6121);

/// Aggregates whose results for parts of the rows can be merged. Others need the rows of a group at once.
const MERGED: [&str; 15] = [
    "sum",
    "avg",
    "count",
    "min",
    "max",
    "var",
    "var_pop",
    "stddev",
    "stddev_pop",
    "bool_and",
    "bool_or",
    "bit_and",
    "bit_or",
    "bit_xor",
    "corr",
];

/// True if all calls of an aggregate can be merged from parts.
pub(super) fn is_merged(aggregate: &AggregateExec) -> bool {
    aggregate.aggr_expr().iter().all(|call| {
        MERGED.contains(&call.fun().name()) && !call.is_distinct() && call.order_bys().is_empty()
    })
}

/// The aggregate over its input, computed for each partition and merged in their order.
pub(super) fn partial_then_final(
    aggregate: &AggregateExec,
    input: Arc<dyn ExecutionPlan>,
) -> Result<Arc<dyn ExecutionPlan>> {
    let filters = aggregate.filter_expr().to_vec();
    let partial = AggregateExec::try_new(
        AggregateMode::Partial,
        aggregate.group_expr().clone(),
        aggregate.aggr_expr().to_vec(),
        filters.clone(),
        input,
        aggregate.input_schema(),
    )?;
    let (groups, calls) = (partial.group_expr().as_final(), partial.aggr_expr().to_vec());
    let gathered = gathered(Arc::new(partial));
    let merged = AggregateExec::try_new(
        AggregateMode::Final,
        groups,
        calls,
        filters,
        gathered,
        aggregate.input_schema(),
    )?;
    Ok(Arc::new(merged))
}

/// Groups of rows of several splits.
#[derive(Debug)]
pub(super) struct GroupsExec {
    /// The aggregate, with the splits as its input.
    aggregate: AggregateExec,
    properties: Arc<PlanProperties>,
}

impl GroupsExec {
    pub(super) fn new(aggregate: AggregateExec) -> Self {
        let mut known = aggregate.properties().equivalence_properties().clone();
        known.clear_orderings();
        let properties = Arc::new(PlanProperties::new(
            known,
            Partitioning::UnknownPartitioning(1),
            EmissionType::Final,
            Boundedness::Bounded,
        ));
        GroupsExec { aggregate, properties }
    }
}

impl DisplayAs for GroupsExec {
    fn fmt_as(&self, format: DisplayFormatType, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("GroupsExec: ")?;
        self.aggregate.fmt_as(format, f)
    }
}

impl ExecutionPlan for GroupsExec {
    fn name(&self) -> &str {
        "GroupsExec"
    }

    fn properties(&self) -> &Arc<PlanProperties> {
        &self.properties
    }

    fn children(&self) -> Vec<&Arc<dyn ExecutionPlan>> {
        self.aggregate.children()
    }

    fn apply_expressions(
        &self,
        visit: &mut dyn FnMut(&Arc<dyn PhysicalExpr>) -> Result<TreeNodeRecursion>,
    ) -> Result<TreeNodeRecursion> {
        self.aggregate.apply_expressions(visit)
    }

    fn with_new_children(
        self: Arc<Self>,
        children: Vec<Arc<dyn ExecutionPlan>>,
    ) -> Result<Arc<dyn ExecutionPlan>> {
        let aggregate: Arc<dyn ExecutionPlan> = Arc::new(self.aggregate.clone());
        let aggregate = replaced(&aggregate, children)?;
        let aggregate = aggregate
            .downcast_ref::<AggregateExec>()
            .ok_or_else(|| internal_datafusion_err!("an aggregate has become another operator"))?;
        Ok(Arc::new(GroupsExec::new(aggregate.clone())))
    }

    fn execute(
        &self,
        partition: usize,
        context: Arc<TaskContext>,
    ) -> Result<SendableRecordBatchStream> {
        single::check(self.name(), partition)?;
        let aggregate = self.aggregate.clone();
        let rows = stream::once(async move { groups(aggregate, context).await }).try_flatten();
        Ok(Box::pin(RecordBatchStreamAdapter::new(self.schema(), rows)))
    }
}

async fn groups(
    aggregate: AggregateExec,
    context: Arc<TaskContext>,
) -> Result<SendableRecordBatchStream> {
    let keys: Vec<_> = aggregate.group_expr().expr().iter().map(|(key, _)| key.clone()).collect();
    let (input, is_few) = match is_merged(&aggregate) {
        true => sampled(aggregate.input(), &keys, &context).await?,
        false => (aggregate.input().clone(), false),
    };
    if is_few {
        return partial_then_final(&aggregate, input)?.execute(0, context);
    }
    let splits = input.output_partitioning().partition_count();
    let parts = (splits * PARTS_OF_SPLIT).clamp(*PARTS.start(), *PARTS.end());
    let schema = input.schema();
    let of = scattered(input, Scatter { keys, parts, state: STATE }, &context).await?;
    let of = Arc::new(of);
    let part = |part| Arc::new(Part { of: of.clone(), part, schema: schema.clone() }) as _;
    let all = (0..parts).map(part).collect();
    let all = StreamingTableExec::try_new(schema.clone(), all, None, [], false, None)?;
    let schema = aggregate.schema();
    let aggregate: Arc<dyn ExecutionPlan> = Arc::new(aggregate);
    let groups = replaced(&aggregate, vec![Arc::new(all)])?;
    let bounds = bounds("groups", &context);
    let batch_rows = context.session_config().batch_size().max(1);
    let begin = partitions_of(groups, context);
    let rows = in_order(parts, begin, get_record_batch_memory_size, bounds);
    let rows = coalesced(rows, schema.clone(), batch_rows);
    Ok(Box::pin(RecordBatchStreamAdapter::new(schema, rows)))
}

/// The rows of one part of the keys.
#[derive(Debug)]
struct Part {
    of: Arc<super::scatter::Scattered>,
    part: usize,
    schema: SchemaRef,
}

impl PartitionStream for Part {
    fn schema(&self) -> &SchemaRef {
        &self.schema
    }

    fn execute(&self, _: Arc<TaskContext>) -> SendableRecordBatchStream {
        let (of, part) = (self.of.clone(), self.part);
        let rows = stream::once(async move { of.rows(part) }).try_flatten();
        Box::pin(RecordBatchStreamAdapter::new(self.schema.clone(), rows))
    }
}

/// Evaluates the keys of a batch.
pub(super) fn evaluated(
    keys: &[Arc<dyn PhysicalExpr>],
    rows: &RecordBatch,
) -> Result<Vec<ArrayRef>> {
    keys.iter().map(|key| key.evaluate(rows)?.into_array(rows.num_rows())).collect()
}

/// Reads the first rows: returns the same input, and whether the rows share few groups.
async fn sampled(
    input: &Arc<dyn ExecutionPlan>,
    keys: &[Arc<dyn PhysicalExpr>],
    context: &Arc<TaskContext>,
) -> Result<(Arc<dyn ExecutionPlan>, bool)> {
    let mut first = input.execute(0, context.clone())?;
    let (mut begun, mut groups, mut rows) = (Vec::new(), HashSet::new(), 0);
    let mut hashes = Vec::new();
    while rows < SAMPLE_ROWS
        && let Some(batch) = first.try_next().await?
    {
        hashes.clear();
        hashes.resize(batch.num_rows(), 0);
        create_hashes(&evaluated(keys, &batch)?, &STATE, &mut hashes)?;
        groups.extend(hashes.iter().copied());
        rows += batch.num_rows();
        begun.push(batch);
    }
    let resumed = stream::iter(begun.into_iter().map(Ok)).chain(first);
    let resumed = RecordBatchStreamAdapter::new(input.schema(), resumed);
    let resumed: SendableRecordBatchStream = Box::pin(resumed);
    let input = Begun { input: input.clone(), first: Arc::new(Mutex::new(Some(resumed))) };
    Ok((Arc::new(input), groups.len() * ROWS_OF_GROUP <= rows))
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

impl DisplayAs for Begun {
    fn fmt_as(&self, _: DisplayFormatType, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Begun")
    }
}

impl ExecutionPlan for Begun {
    fn name(&self) -> &str {
        "Begun"
    }

    fn properties(&self) -> &Arc<PlanProperties> {
        self.input.properties()
    }

    fn children(&self) -> Vec<&Arc<dyn ExecutionPlan>> {
        vec![&self.input]
    }

    fn apply_expressions(
        &self,
        _: &mut dyn FnMut(&Arc<dyn PhysicalExpr>) -> Result<TreeNodeRecursion>,
    ) -> Result<TreeNodeRecursion> {
        Ok(TreeNodeRecursion::Continue)
    }

    fn with_new_children(
        self: Arc<Self>,
        children: Vec<Arc<dyn ExecutionPlan>>,
    ) -> Result<Arc<dyn ExecutionPlan>> {
        let [input] = <[_; 1]>::try_from(children)
            .map_err(|all| internal_datafusion_err!("Begun has {} inputs", all.len()))?;
        Ok(Arc::new(Begun { input, first: self.first.clone() }))
    }

    fn execute(
        &self,
        partition: usize,
        context: Arc<TaskContext>,
    ) -> Result<SendableRecordBatchStream> {
        // A partition that runs again begins anew.
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
