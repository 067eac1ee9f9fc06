//! `GROUP BY` over splits.
//!
//! ```text
//! few groups    split ──▶ Partial ──┐                       many     split ──▶ scatter ──┐ part of the keys ──▶ Single
//!               split ──▶ Partial ──┴▶ in order ──▶ Final            split ──▶ scatter ──┴ part of the keys ──▶ Single
//! ```
//! Where rows share few groups, each split computes its own and the results are merged in the order of the splits. Where
//! groups are many, that would compute each group several times: there the rows go to parts by their keys, and each
//! part computes its groups alone, from rows in their order ([`PartsExec`]). The first rows decide, so the choice follows
//! from the data ([`first_rows`]). Groups that are not few take the first way, too, if they recur in all splits, fit into a
//! cache, and are far fewer than the rows of a split. Aggregates that cannot be merged take the second way, and so do
//! percentiles whose values do not fit into memory: the partial results of a percentile are its values.
//!
//! Workers may compute the groups of each split, if groups are few, and the groups of each part or the rows of each split,
//! if groups are many. These are further inputs, one of which is read instead of the splits. The first rows are read here
//! in any case.

mod first_rows;

use super::coded::{CodedExec, coded};
use super::gather::{bounds, bounds_of, coalesced, gathered, memory_of, partitions_of};
use super::in_order::in_order;
use super::parts::{PartGroups, PartsExec, aggregate_over, by_parts, count_parts};
use super::replaced;
use crate::rows::single::{self, only_input, usual};
use datafusion::arrow::array::ArrayRef;
use datafusion::arrow::datatypes::DataType;
use datafusion::arrow::record_batch::RecordBatch;
use datafusion::common::internal_err;
use datafusion::common::stats::Precision;
use datafusion::common::utils::memory::get_record_batch_memory_size;
use datafusion::error::Result;
use datafusion::execution::{SendableRecordBatchStream, TaskContext};
use datafusion::physical_expr::PhysicalExpr;
use datafusion::physical_expr::aggregate::AggregateFunctionExpr;
use datafusion::physical_plan::aggregates::{AggregateExec, AggregateMode};
use datafusion::physical_plan::statistics::{StatisticsArgs, StatisticsContext};
use datafusion::physical_plan::stream::RecordBatchStreamAdapter;
use datafusion::physical_plan::{
    DisplayAs, DisplayFormatType, ExecutionPlan, ExecutionPlanProperties, PlanProperties,
};
use first_rows::{Groups, Seen, sampled};
use futures::TryStreamExt;
use futures::stream;
use std::fmt;
use std::sync::Arc;

/// Groups whose numbers and states fit into the second-level cache of a thread, or nearly.
const CACHED_GROUPS: usize = 1 << 16;

/// Rows for each group of each split, at least, if groups that are not few are merged. One thread merges a group in some
/// 50 ns; to scatter a row and to group it in its part takes some 70 ns more than to group it in its split, on one of the
/// threads. So up to ten threads gain.
const ROWS_OF_MERGED: usize = 8;

/// Aggregates whose results for parts of the rows can be merged. Others need the rows of a group at once.
const MERGED: [&str; 27] = [
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
    "covar_samp",
    "covar_pop",
    "regr_slope",
    "regr_intercept",
    "regr_count",
    "regr_r2",
    "regr_avgx",
    "regr_avgy",
    "regr_sxx",
    "regr_syy",
    "regr_sxy",
    MODE,
];

/// The aggregate whose states have a count for each value of a group.
const MODE: &str = "mode";

/// Aggregates of all values of a group, which are merged if they fit into memory.
const COLLECTED: [&str; 2] = ["median", "percentile_cont"];

/// Bytes that a collected value may take, and the part of a statement's memory that all of them may take.
const COLLECTED_BYTES: usize = 16;
const COLLECTED_SHARE: usize = 2;

/// Rows may be so many times as many as estimated: DataFusion assumes that a fifth of the rows meets a condition.
const ESTIMATE_ERROR: usize = 5;

/// Prefix of the names of sketches, which are compressed after each batch: their bits depend on the ends of batches. The
/// batches of a part end where the memory of a unit does, and rows from workers take another memory.
const SKETCHES: &str = "approx_";

/// True if all calls of an aggregate can be merged from parts.
pub(super) fn is_merged(aggregate: &AggregateExec) -> bool {
    let by = aggregate.group_expr();
    // Coarser sets of keys are merged from the groups of finer ones, which have not the order of the rows.
    let is_single = by.is_single();
    let has_groups = is_single && !by.is_true_no_grouping();
    aggregate.aggr_expr().iter().all(|call| {
        let name = call.fun().name();
        let is_known = match call.order_bys().is_empty() {
            true => MERGED.contains(&name) || (has_groups && is_collected(call)),
            false => is_single && is_first_of_equal(call, has_groups),
        };
        // DataFusion's bounds of partial `min` and `max` compare by an order that nested values with NULL do not have.
        is_known && !call.is_distinct() && !call.field().data_type().is_nested()
    })
}

/// True for calls with an order whose result is that of the first one of equal rows, whatever parts they are in. The last
/// value of all rows, or of a type without states of several groups, depends on the ends of batches.
fn is_first_of_equal(call: &AggregateFunctionExpr, has_groups: bool) -> bool {
    match call.fun().name() {
        "first_value" => true,
        "last_value" => has_groups && call.groups_accumulator_supported(),
        _ => false,
    }
}

/// True for calls whose states are all values of a group.
fn is_collected(call: &AggregateFunctionExpr) -> bool {
    let field = call.field();
    COLLECTED.contains(&call.fun().name())
        && matches!(field.data_type(), DataType::Float64 | DataType::Timestamp(..))
}

/// True if no state of a group has all of its values, or all that are different.
pub(super) fn has_small_states(aggregate: &AggregateExec) -> bool {
    let mut calls = aggregate.aggr_expr().iter();
    is_merged(aggregate) && calls.all(|call| !is_collected(call) && call.fun().name() != MODE)
}

/// True if the states of all groups fit into memory, as far as the number of rows is known.
fn has_room(aggregate: &AggregateExec, context: &TaskContext) -> bool {
    let calls = aggregate.aggr_expr().iter().filter(|call| is_collected(call)).count();
    if calls == 0 {
        return true;
    }
    let rows = match known_rows(aggregate) {
        Precision::Exact(rows) => rows,
        Precision::Inexact(rows) => rows.saturating_mul(ESTIMATE_ERROR),
        Precision::Absent => return false,
    };
    rows.saturating_mul(calls * COLLECTED_BYTES) <= memory_of(context) / COLLECTED_SHARE
}

/// The number of rows of the input.
fn known_rows(aggregate: &AggregateExec) -> Precision<usize> {
    let input = aggregate.input().as_ref();
    // An estimate that fails is an unknown number.
    let known = StatisticsContext::new().compute(input, &StatisticsArgs::new()).ok();
    known.map_or(Precision::Absent, |known| known.num_rows)
}

/// True if groups that are not few recur in all splits, and merging them takes less time than distributing all rows.
async fn are_recurring(
    aggregate: &AggregateExec,
    seen: &Seen,
    context: &Arc<TaskContext>,
) -> Result<bool> {
    let groups = seen.estimate().filter(|groups| *groups <= CACHED_GROUPS);
    let (Some(groups), Some(rows), true) =
        (groups, known_rows(aggregate).get_value().copied(), has_small_states(aggregate))
    else {
        return Ok(false);
    };
    let input = aggregate.input();
    let splits = input.output_partitioning().partition_count();
    Ok(groups.saturating_mul(splits).saturating_mul(ROWS_OF_MERGED) <= rows
        && seen.recur(groups, input, &keys(aggregate), context).await?)
}

/// The aggregate over its input, computed for each partition and merged in their order.
pub(super) fn partial_then_final(
    aggregate: &AggregateExec,
    input: Arc<dyn ExecutionPlan>,
) -> Result<Arc<dyn ExecutionPlan>> {
    let partial = partial(aggregate, input)?;
    final_over(&partial, Arc::new(partial.clone()))
}

/// The aggregate over its input, computed for each partition.
pub(super) fn partial(
    aggregate: &AggregateExec,
    input: Arc<dyn ExecutionPlan>,
) -> Result<AggregateExec> {
    AggregateExec::try_new(
        AggregateMode::Partial,
        aggregate.group_expr().clone(),
        aggregate.aggr_expr().to_vec(),
        aggregate.filter_expr().to_vec(),
        input,
        aggregate.input_schema(),
    )
}

/// The aggregate, merged from what `partial` computes for each partition, here or elsewhere, in their order.
pub(super) fn final_over(
    partial: &AggregateExec,
    computed: Arc<dyn ExecutionPlan>,
) -> Result<Arc<dyn ExecutionPlan>> {
    let merged = AggregateExec::try_new(
        AggregateMode::Final,
        partial.group_expr().as_final(),
        partial.aggr_expr().to_vec(),
        partial.filter_expr().to_vec(),
        gathered(computed),
        partial.input_schema(),
    )?;
    Ok(Arc::new(merged))
}

/// Inputs that are computed elsewhere.
#[derive(Debug, Clone, Default)]
struct Elsewhere {
    /// The groups of each split.
    groups: Option<Arc<dyn ExecutionPlan>>,
    /// For many groups: the rows of each split, or the groups of each part of the keys.
    many: Option<Many>,
}

#[derive(Debug, Clone)]
enum Many {
    Rows(Arc<dyn ExecutionPlan>),
    Parts(Arc<dyn ExecutionPlan>),
}

impl Many {
    fn plan(&self) -> &Arc<dyn ExecutionPlan> {
        let (Many::Rows(plan) | Many::Parts(plan)) = self;
        plan
    }

    fn with_plan(&self, plan: Arc<dyn ExecutionPlan>) -> Self {
        match self {
            Many::Rows(_) => Many::Rows(plan),
            Many::Parts(_) => Many::Parts(plan),
        }
    }
}

/// Groups of rows, which may be in several splits.
#[derive(Debug)]
pub(super) struct GroupsExec {
    /// The aggregate, with the splits as its input.
    aggregate: AggregateExec,
    elsewhere: Elsewhere,
    properties: Arc<PlanProperties>,
}

impl GroupsExec {
    pub(super) fn new(aggregate: AggregateExec) -> Self {
        Self::of(aggregate, Elsewhere::default())
    }

    fn of(aggregate: AggregateExec, elsewhere: Elsewhere) -> Self {
        let mut known = aggregate.properties().equivalence_properties().clone();
        known.clear_orderings();
        let properties = single::after_input(known, 1);
        GroupsExec { aggregate, elsewhere, properties }
    }

    fn count_splits(&self) -> usize {
        self.aggregate.input().output_partitioning().partition_count()
    }

    /// The groups of each split, which may be computed elsewhere; `None` if they cannot be merged, or are already.
    pub(super) fn of_each_split(&self) -> Result<Option<Arc<dyn ExecutionPlan>>> {
        let is_whole = self.count_splits() == 1;
        if is_whole || self.elsewhere.groups.is_some() || !is_merged(&self.aggregate) {
            return Ok(None);
        }
        let partial = partial(&self.aggregate, self.aggregate.input().clone())?;
        Ok(Some(Arc::new(partial)))
    }

    /// The aggregate, if few groups would be merged from those of several splits that are computed here.
    pub(super) fn merged_here(&self) -> Option<&AggregateExec> {
        let is_here = self.count_splits() > 1 && self.elsewhere.groups.is_none();
        (is_here && is_merged(&self.aggregate)).then_some(&self.aggregate)
    }

    /// The same groups, of which `remote` computes those of each split.
    pub(super) fn with_remote(&self, remote: Arc<dyn ExecutionPlan>) -> Self {
        let elsewhere = Elsewhere { groups: Some(remote), ..self.elsewhere.clone() };
        GroupsExec::of(self.aggregate.clone(), elsewhere)
    }

    /// The splits, whose rows may be computed elsewhere; `None` if there are none, if they are already, or if bits depend
    /// on the ends of batches.
    pub(super) fn splits(&self) -> Option<&Arc<dyn ExecutionPlan>> {
        let calls = self.aggregate.aggr_expr();
        let has_sketch = calls.iter().any(|call| call.fun().name().starts_with(SKETCHES));
        let is_here = self.count_splits() > 1 && self.elsewhere.many.is_none();
        (is_here && !has_sketch).then(|| self.aggregate.input())
    }

    /// The groups of each part of the keys, which may be computed elsewhere where [`GroupsExec::splits`] may be.
    pub(super) fn parts(&self) -> Option<PartsExec> {
        self.splits()?;
        Some(PartsExec::new(self.aggregate.clone(), count_parts(self.count_splits())))
    }

    /// The same groups, with the rows of each split from `remote` where groups are many.
    pub(super) fn with_rows(&self, remote: Arc<dyn ExecutionPlan>) -> Self {
        let elsewhere = Elsewhere { many: Some(Many::Rows(remote)), ..self.elsewhere.clone() };
        GroupsExec::of(self.aggregate.clone(), elsewhere)
    }

    /// The same groups, with those of each part of the keys from `remote` where groups are many.
    pub(super) fn with_parts(&self, remote: Arc<dyn ExecutionPlan>) -> Self {
        let elsewhere = Elsewhere { many: Some(Many::Parts(remote)), ..self.elsewhere.clone() };
        GroupsExec::of(self.aggregate.clone(), elsewhere)
    }
}

impl DisplayAs for GroupsExec {
    fn fmt_as(&self, format: DisplayFormatType, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("GroupsExec: ")?;
        self.aggregate.fmt_as(format, f)
    }
}

impl ExecutionPlan for GroupsExec {
    usual!(name, properties, expressions of aggregate);

    fn children(&self) -> Vec<&Arc<dyn ExecutionPlan>> {
        let Elsewhere { groups, many } = &self.elsewhere;
        let many = many.as_ref().map(Many::plan);
        self.aggregate.children().into_iter().chain(groups).chain(many).collect()
    }

    fn with_new_children(
        self: Arc<Self>,
        mut children: Vec<Arc<dyn ExecutionPlan>>,
    ) -> Result<Arc<dyn ExecutionPlan>> {
        if children.len() != self.children().len() {
            return internal_err!("GroupsExec has {} inputs", children.len());
        }
        let mut others = children.split_off(1).into_iter();
        let Elsewhere { groups, many } = &self.elsewhere;
        let elsewhere = Elsewhere {
            groups: groups.as_ref().and_then(|_| others.next()),
            many: many.as_ref().and_then(|many| Some(many.with_plan(others.next()?))),
        };
        let aggregate = aggregate_over(&self.aggregate, only_input(self.name(), children)?)?;
        Ok(Arc::new(GroupsExec::of(aggregate, elsewhere)))
    }

    fn execute(
        &self,
        partition: usize,
        context: Arc<TaskContext>,
    ) -> Result<SendableRecordBatchStream> {
        single::check(self.name(), partition)?;
        let (aggregate, elsewhere) = (self.aggregate.clone(), self.elsewhere.clone());
        let rows = async move { groups(aggregate, elsewhere, context).await };
        let rows = stream::once(rows).try_flatten();
        Ok(Box::pin(RecordBatchStreamAdapter::new(self.schema(), rows)))
    }
}

async fn groups(
    aggregate: AggregateExec,
    elsewhere: Elsewhere,
    context: Arc<TaskContext>,
) -> Result<SendableRecordBatchStream> {
    let splits = aggregate.input().output_partitioning().partition_count();
    let is_merged = is_merged(&aggregate);
    let keys = keys(&aggregate);
    let (input, groups, seen) = match is_merged || splits == 1 {
        true => sampled(aggregate.input(), &keys, &context).await?,
        false => (aggregate.input().clone(), Groups::Many, Seen::default()),
    };
    let has_merged = splits > 1
        && match groups {
            Groups::Few => has_room(&aggregate, &context),
            Groups::Many => are_recurring(&aggregate, &seen, &context).await?,
            Groups::All => false,
        };
    match groups {
        _ if has_merged => {
            let plan = match elsewhere.groups {
                // The rows that were read are dropped with `input`.
                Some(remote) => {
                    let partial = partial(&aggregate, aggregate.input().clone())?;
                    final_over(&partial, remote)?
                }
                None => {
                    let partial = partial(&aggregate, input)?;
                    let coded = CodedExec::of(&partial)?;
                    let computed = coded.map(|coded| Arc::new(coded) as Arc<dyn ExecutionPlan>);
                    let computed = computed.unwrap_or_else(|| Arc::new(partial.clone()));
                    final_over(&partial, computed)?
                }
            };
            let plan = coded(&plan)?.unwrap_or(plan);
            return plan.execute(0, context);
        }
        Groups::Few | Groups::All if splits == 1 => {
            return over(&aggregate, input)?.execute(0, context);
        }
        _ => {}
    }
    let (schema, batch_rows) = (aggregate.schema(), context.session_config().batch_size());
    // The rows that were read are dropped with `input` if they are computed elsewhere.
    let input = match elsewhere.many {
        Some(Many::Parts(remote)) => {
            let parts = remote.output_partitioning().partition_count();
            let bounds = bounds_of("groups", &remote, &context);
            let begin = partitions_of(remote, context);
            let rows = in_order(parts, begin, get_record_batch_memory_size, bounds);
            let rows = coalesced(rows, schema.clone(), batch_rows.max(1));
            return Ok(Box::pin(RecordBatchStreamAdapter::new(schema, rows)));
        }
        Some(Many::Rows(remote)) => remote,
        None => input,
    };
    let parts = count_parts(splits);
    let of = by_parts(&aggregate, input, parts, &context).await?;
    let bounds = bounds("groups", &context);
    let groups = Arc::new(PartGroups { aggregate, context, may_spill: true });
    let begin = Box::new(move |part| groups.clone().of(of.clone(), part, 0));
    let rows = in_order(parts, begin, get_record_batch_memory_size, bounds);
    let rows = coalesced(rows, schema.clone(), batch_rows.max(1));
    Ok(Box::pin(RecordBatchStreamAdapter::new(schema, rows)))
}

/// The aggregate over another input with the same columns.
pub(super) fn over(
    aggregate: &AggregateExec,
    input: Arc<dyn ExecutionPlan>,
) -> Result<Arc<dyn ExecutionPlan>> {
    let aggregate: Arc<dyn ExecutionPlan> = Arc::new(aggregate.clone());
    replaced(&aggregate, vec![input])
}

pub(super) fn keys(aggregate: &AggregateExec) -> Vec<Arc<dyn PhysicalExpr>> {
    aggregate.group_expr().expr().iter().map(|(key, _)| key.clone()).collect()
}

pub(super) fn evaluated(
    keys: &[Arc<dyn PhysicalExpr>],
    rows: &RecordBatch,
) -> Result<Vec<ArrayRef>> {
    keys.iter().map(|key| key.evaluate(rows)?.into_array(rows.num_rows())).collect()
}

#[cfg(test)]
mod tests;
