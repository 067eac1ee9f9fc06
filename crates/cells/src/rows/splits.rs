//! Plans of one partition, computed by all threads.
//!
//! ```text
//! AggregateExec: sum                    AggregateExec: Final
//!   FilterExec                    ⇒       GatherExec: the splits' rows, in order
//!     DataSourceExec: a.parquet             AggregateExec: Partial, one for each split
//!                                             FilterExec
//!                                               DataSourceExec: ranges of a.parquet
//! ```
//! A scan is cut into splits of [`SplitSize`], each a partition. Operators that work row by row, and the probe side of
//! joins, follow the splits; above them a [`gather`] restores the order. So the rows, their order and the bits
//! of their floats follow from the data alone, whatever the number of threads.

mod calls;
mod coded;
mod dictionaries;
mod even;
mod exact;
mod first;
mod gather;
mod grace;
mod groups;
mod in_order;
mod key_bounds;
mod key_filter;
pub(super) mod keys;
mod last;
mod once;
mod parts;
mod radix;
mod scans;
mod scatter;
mod sort;
#[cfg(test)]
pub(super) mod tests;
mod through;
mod windows;

use super::concat::ConcatExec;
use super::partition_top::PartitionTopExec;
use super::series::SeriesExec;
use super::table::TensorExec;
use crate::walk::Walk;
use coded::CodedExec;
pub(super) use coded::with_coded_groups;
use datafusion::common::tree_node::Transformed;
use datafusion::common::{JoinType, internal_err};
use datafusion::datasource::source::DataSourceExec;
use datafusion::error::Result;
use datafusion::physical_plan::aggregates::{AggregateExec, AggregateMode};
use datafusion::physical_plan::coop::CooperativeExec;
use datafusion::physical_plan::execution_plan::{ChildrenPropertiesMode, ReplaceChildrenOptions};
use datafusion::physical_plan::filter::FilterExec;
use datafusion::physical_plan::joins::{
    CrossJoinExec, HashJoinExec, NestedLoopJoinExec, PartitionMode,
};
use datafusion::physical_plan::projection::ProjectionExec;
use datafusion::physical_plan::sorts::sort::SortExec;
use datafusion::physical_plan::{
    ExecutionPlan, ExecutionPlanProperties, InputOrderMode, Partitioning, PlanProperties,
};
pub(super) use dictionaries::with_dictionaries;
pub(super) use exact::with_exact_sorts;
pub(super) use first::FirstExec;
use gather::shares_matches;
pub(super) use gather::{GatherExec, RowsThreads, SPLIT_BYTES, gathered};
use grace::GraceJoinExec;
pub(super) use grace::{JoinRules, with_grace_joins};
use groups::GroupsExec;
use key_filter::Applied;
pub(super) use key_filter::{Keys, KeysExec, has_condition, has_rare_keys, values_within};
pub(super) use parts::{
    ArrivingPart, PARTS, PartBounds, PartsExec, SAMPLE_COLUMNS, Sample, Sampled, aggregate_over,
    samples_of,
};
pub(super) use scatter::Scattered;
use sort::SortSplitsExec;
use std::sync::Arc;
pub(super) use windows::WindowsExec;

/// The size of a split. The bits of sums of floats depend on it.
#[derive(Debug, Clone, Copy)]
pub(super) struct SplitSize {
    /// Rows of cells or of tables in memory.
    rows: u64,
    /// Bytes of files.
    bytes: u64,
}

/// Assumed bytes of a row.
const ROW_BYTES: u64 = 16;

/// Upper bound on the splits of a scan: larger ones have larger splits.
const SPLITS_MAX: u64 = 1024;

/// Largest limit for which each split selects its first rows.
const FIRST_ROWS_MAX: usize = 1 << 13;

impl SplitSize {
    /// Splits of about `bytes` bytes.
    pub(super) fn of(bytes: u64) -> Self {
        let bytes = bytes.max(1);
        SplitSize { rows: (bytes / ROW_BYTES).max(1), bytes }
    }

    /// Rows of a split of a scan with `total` rows.
    fn rows_of(self, total: u64) -> u64 {
        self.rows.max(total.div_ceil(SPLITS_MAX))
    }

    /// The rows of each split of a scan with `total` rows, and the scan's properties in splits; `None` if it is in splits
    /// already, or has only one.
    pub(super) fn split(
        self,
        total: u64,
        scan: &PlanProperties,
    ) -> Option<(u64, Arc<PlanProperties>)> {
        let rows = self.rows_of(total);
        if total <= rows || scan.output_partitioning().partition_count() > 1 {
            return None;
        }
        let splits = usize::try_from(total.div_ceil(rows)).ok()?;
        let properties = scan.clone().with_partitioning(Partitioning::UnknownPartitioning(splits));
        Some((rows, Arc::new(properties)))
    }
}

pub(super) fn with_splits(
    plan: Arc<dyn ExecutionPlan>,
    size: SplitSize,
) -> Result<Arc<dyn ExecutionPlan>> {
    let applied = Applied::of(&plan)?;
    let plan = plan.map_up(|node| match split(&node, size, &applied)? {
        Some(node) => Ok(Transformed::yes(node)),
        None => Ok(Transformed::no(node)),
    })?;
    Ok(gathered(plan.data))
}

/// The public name of an operator: a join that may go to files has the name of the join, and an aggregate that numbers
/// its keys the name of the aggregate.
pub(super) fn name_of(node: &Arc<dyn ExecutionPlan>) -> &str {
    if let Some(coded) = node.downcast_ref::<CodedExec>() {
        return coded.aggregate().name();
    }
    let join = node.downcast_ref::<GraceJoinExec>();
    join.map_or_else(|| node.name(), |grace| grace.join().name())
}

/// True for joins that hold the rows of their first input while they read the second.
pub(super) fn holds_first(node: &Arc<dyn ExecutionPlan>) -> bool {
    node.is::<GraceJoinExec>()
        || node.is::<HashJoinExec>()
        || node.is::<NestedLoopJoinExec>()
        || node.is::<CrossJoinExec>()
}

/// A part of a plan that may compute elsewhere, with a partition for each split.
pub(super) struct Below {
    pub(super) part: Arc<dyn ExecutionPlan>,
    /// True if the operator above reads the rows of the part here, too.
    pub(super) is_second: bool,
}

/// The part below an operator that reads splits in their order; `None` for other operators.
pub(super) fn part_below(node: &Arc<dyn ExecutionPlan>) -> Result<Option<Below>> {
    if let Some(groups) = node.downcast_ref::<GroupsExec>() {
        let part = groups.of_each_split()?;
        return Ok(part.map(|part| Below { part, is_second: true }));
    }
    if !(node.is::<GatherExec>() || node.is::<SortSplitsExec>() || node.is::<WindowsExec>()) {
        return Ok(None);
    }
    let is_part = |input: &&Arc<dyn ExecutionPlan>| is_split(input) && !shares_matches(input);
    let part = node.children().into_iter().find(is_part).cloned();
    Ok(part.map(|part| Below { part, is_second: false }))
}

/// The splits of an operator that distributes their rows, if the groups in them are many; `None` for other operators.
pub(super) fn rows_below(node: &Arc<dyn ExecutionPlan>) -> Option<Arc<dyn ExecutionPlan>> {
    node.downcast_ref::<GroupsExec>().and_then(GroupsExec::splits).cloned()
}

/// The operator, with its splits computed elsewhere where it distributes their rows.
pub(super) fn over_rows(
    node: &Arc<dyn ExecutionPlan>,
    rows: Arc<dyn ExecutionPlan>,
) -> Result<Arc<dyn ExecutionPlan>> {
    match node.downcast_ref::<GroupsExec>() {
        Some(groups) => Ok(Arc::new(groups.with_rows(rows))),
        None => internal_err!("{} distributes no rows", node.name()),
    }
}

/// The groups of each part of the keys of an operator that distributes rows to parts; `None` for other operators.
pub(super) fn parts_below(node: &Arc<dyn ExecutionPlan>) -> Option<Arc<PartsExec>> {
    node.downcast_ref::<GroupsExec>().and_then(GroupsExec::parts).map(Arc::new)
}

/// The operator, with the groups of each part computed elsewhere.
pub(super) fn over_parts(
    node: &Arc<dyn ExecutionPlan>,
    parts: Arc<dyn ExecutionPlan>,
) -> Result<Arc<dyn ExecutionPlan>> {
    match node.downcast_ref::<GroupsExec>() {
        Some(groups) => Ok(Arc::new(groups.with_parts(parts))),
        None => internal_err!("{} groups no parts", node.name()),
    }
}

/// The parts of a sort, which may be computed elsewhere; `None` for operators without one, or without splits.
pub(super) fn sorted_below(node: &Arc<dyn ExecutionPlan>) -> Result<Option<Arc<PartsExec>>> {
    let parts = if let Some(sort) = node.downcast_ref::<SortSplitsExec>() {
        sort.parts(0)?
    } else if let Some(windows) = node.downcast_ref::<WindowsExec>() {
        windows.parts()?
    } else {
        None
    };
    Ok(parts.map(Arc::new))
}

/// The operator over the parts of its sort, each of which is sorted elsewhere.
pub(super) fn over_sorted(
    node: &Arc<dyn ExecutionPlan>,
    parts: Arc<dyn ExecutionPlan>,
) -> Result<Arc<dyn ExecutionPlan>> {
    if let Some(sort) = node.downcast_ref::<SortSplitsExec>() {
        return Ok(Arc::new(sort.over_parts(parts)?));
    }
    match node.downcast_ref::<WindowsExec>() {
        Some(windows) => Ok(Arc::new(windows.over_parts(parts)?)),
        None => internal_err!("{} sorts nothing", node.name()),
    }
}

/// The parts of windows that do not divide their partitions, which may be computed elsewhere; `None` for other operators.
pub(super) fn windows_below(node: &Arc<dyn ExecutionPlan>) -> Result<Option<Arc<PartsExec>>> {
    let windows = node.downcast_ref::<WindowsExec>();
    Ok(windows.map_or(Ok(None), WindowsExec::computed_parts)?.map(Arc::new))
}

/// The operator with its windows, each part of which is computed elsewhere.
pub(super) fn over_windows(
    node: &Arc<dyn ExecutionPlan>,
    parts: Arc<dyn ExecutionPlan>,
) -> Result<Arc<dyn ExecutionPlan>> {
    match node.downcast_ref::<WindowsExec>() {
        Some(windows) => Ok(Arc::new(windows.over_computed(parts))),
        None => internal_err!("{} computes no windows", node.name()),
    }
}

/// A join whose partitions shared their matches, with one partition over the rows of its second input.
pub(super) struct Apart {
    pub(super) join: Arc<dyn ExecutionPlan>,
    /// The second input, which may compute elsewhere.
    pub(super) part: Arc<dyn ExecutionPlan>,
}

/// Takes such a join apart; `None` for other operators.
pub(super) fn apart(node: &Arc<dyn ExecutionPlan>) -> Result<Option<Apart>> {
    let join = node.is::<GatherExec>().then(|| node.children().into_iter().next()).flatten();
    let Some(join) = join.filter(|join| shares_matches(join)) else { return Ok(None) };
    let [build, probe] = join.children()[..] else { return Ok(None) };
    let join = replaced(join, vec![build.clone(), gathered(probe.clone())])?;
    Ok(Some(Apart { join, part: probe.clone() }))
}

/// The operator over the part that [`part_below`] returned, which computes elsewhere.
pub(super) fn over_part(
    node: &Arc<dyn ExecutionPlan>,
    part: Arc<dyn ExecutionPlan>,
) -> Result<Arc<dyn ExecutionPlan>> {
    match node.downcast_ref::<GroupsExec>() {
        Some(groups) => Ok(Arc::new(groups.with_remote(part))),
        None => replaced(node, vec![part]),
    }
}

fn is_split(plan: &Arc<dyn ExecutionPlan>) -> bool {
    plan.output_partitioning().partition_count() > 1
}

/// The node over inputs of which some are split; `None` if it is unchanged.
fn split(
    node: &Arc<dyn ExecutionPlan>,
    size: SplitSize,
    applied: &Applied,
) -> Result<Option<Arc<dyn ExecutionPlan>>> {
    if let Some(scan) = node.downcast_ref::<DataSourceExec>() {
        return scans::split(scan, size);
    }
    if let Some(scan) = node.downcast_ref::<TensorExec>() {
        return Ok(scan.split(size));
    }
    if let Some(series) = node.downcast_ref::<SeriesExec>() {
        return Ok(series.split(size));
    }
    let inputs: Vec<_> = node.children().into_iter().cloned().collect();
    if node.is::<ConcatExec>() && inputs.iter().any(is_split) {
        return Ok(Some(Arc::new(ConcatExec::of_splits(node.schema(), inputs))));
    }
    if let Some(sort) = node.downcast_ref::<SortExec>() {
        match sort.fetch() {
            Some(rows) if rows <= FIRST_ROWS_MAX => {
                return Ok(is_split(sort.input()).then(|| first_of(sort)));
            }
            _ => {
                if let Some(sort) = SortSplitsExec::of(sort)? {
                    return Ok(Some(Arc::new(sort)));
                }
            }
        }
    }
    if let Some(windows) = WindowsExec::of(node)? {
        return Ok(Some(Arc::new(windows)));
    }
    if let [build, probe] = inputs.as_slice()
        && !is_split(probe)
        && let Some(join) = filtered_by_keys(node, build, probe, applied)?
    {
        return Ok(Some(join));
    }
    if !inputs.iter().any(is_split) {
        let aggregate = node.downcast_ref::<AggregateExec>();
        return aggregate.filter(|aggregate| has_groups(aggregate)).map_or(Ok(None), aggregated);
    }
    if follows_splits(node) {
        return Ok(None);
    }
    if let [build, probe] = inputs.as_slice()
        && is_split(probe)
        && follows_probe(node)
    {
        return joined(node, gathered(build.clone()), probe.clone(), applied).map(Some);
    }
    if let [build, probe] = inputs.as_slice()
        && is_split(probe)
        && shares_matches(node)
    {
        let join = joined(node, gathered(build.clone()), probe.clone(), applied)?;
        return Ok(Some(gathered(join)));
    }
    if let Some(aggregate) = node.downcast_ref::<AggregateExec>()
        && let Some(parallel) = aggregated(aggregate)?
    {
        return Ok(Some(parallel));
    }
    replaced(node, inputs.into_iter().map(gathered).collect()).map(Some)
}

fn replaced(
    node: &Arc<dyn ExecutionPlan>,
    inputs: Vec<Arc<dyn ExecutionPlan>>,
) -> Result<Arc<dyn ExecutionPlan>> {
    let options = ReplaceChildrenOptions::new(ChildrenPropertiesMode::Recompute);
    node.clone().replace_children(inputs, options)
}

/// True for operators that work row by row, or may leave out rows of each split by itself.
fn follows_splits(node: &Arc<dyn ExecutionPlan>) -> bool {
    node.downcast_ref::<FilterExec>().is_some_and(|filter| filter.fetch().is_none())
        || node.is::<ProjectionExec>()
        || node.is::<CooperativeExec>()
        || node.is::<PartitionTopExec>()
}

/// True for joins that yield rows in the order of their second input, and nothing for rows of the first one without a
/// match.
fn follows_probe(node: &Arc<dyn ExecutionPlan>) -> bool {
    let kind = if let Some(join) = node.downcast_ref::<HashJoinExec>() {
        if *join.partition_mode() != PartitionMode::CollectLeft || join.fetch().is_some() {
            return false;
        }
        *join.join_type()
    } else if let Some(join) = node.downcast_ref::<NestedLoopJoinExec>() {
        *join.join_type()
    } else {
        return node.is::<CrossJoinExec>();
    };
    use JoinType::{Inner, Right, RightAnti, RightMark, RightSemi};
    matches!(kind, Inner | Right | RightAnti | RightMark | RightSemi)
}

fn joined(
    node: &Arc<dyn ExecutionPlan>,
    build: Arc<dyn ExecutionPlan>,
    probe: Arc<dyn ExecutionPlan>,
    applied: &Applied,
) -> Result<Arc<dyn ExecutionPlan>> {
    match node.downcast_ref::<HashJoinExec>() {
        Some(join) => {
            let build = KeysExec::of(join, build, applied)?;
            over_keys(join, build, probe)
        }
        None => replaced(node, vec![build, probe]),
    }
}

/// A join whose keys are a filter of a scan below the groups, or other operators over splits, of its second side; `None`
/// for other operators.
fn filtered_by_keys(
    node: &Arc<dyn ExecutionPlan>,
    build: &Arc<dyn ExecutionPlan>,
    probe: &Arc<dyn ExecutionPlan>,
    applied: &Applied,
) -> Result<Option<Arc<dyn ExecutionPlan>>> {
    // NOT IN returns nothing if its second side has NULL, which no key of the first one equals.
    let is_filtered = |join: &&HashJoinExec| {
        *join.partition_mode() == PartitionMode::CollectLeft && !join.null_aware
    };
    let Some(join) = node.downcast_ref::<HashJoinExec>().filter(is_filtered) else {
        return Ok(None);
    };
    let build = KeysExec::of(join, gathered(build.clone()), applied)?;
    if build.is::<KeysExec>() { over_keys(join, build, probe.clone()).map(Some) } else { Ok(None) }
}

/// The join over the build side that fills its filter.
fn over_keys(
    join: &HashJoinExec,
    build: Arc<dyn ExecutionPlan>,
    probe: Arc<dyn ExecutionPlan>,
) -> Result<Arc<dyn ExecutionPlan>> {
    join.builder().with_new_children(vec![build, probe])?.reset_state().build_exec()
}

fn has_groups(aggregate: &AggregateExec) -> bool {
    let groups = aggregate.group_expr();
    !groups.is_true_no_grouping() && groups.is_single()
}

/// The aggregate computed for each split first, or over parts of the groups; `None` if it depends on the order of its
/// input, or if its keys are random: those by which rows go to parts would be others than those of the groups.
fn aggregated(aggregate: &AggregateExec) -> Result<Option<Arc<dyn ExecutionPlan>>> {
    if aggregate.limit_options().is_some()
        || *aggregate.input_order_mode() != InputOrderMode::Linear
    {
        return Ok(None);
    }
    for key in groups::keys(aggregate) {
        if key.any(|part| Ok(part.is_volatile_node()))? {
            return Ok(None);
        }
    }
    let is_merged = groups::is_merged(aggregate);
    match aggregate.mode() {
        AggregateMode::Single if has_groups(aggregate) => {
            Ok(Some(Arc::new(GroupsExec::new(aggregate.clone()))))
        }
        AggregateMode::Single if is_merged => {
            groups::partial_then_final(aggregate, aggregate.input().clone()).map(Some)
        }
        // DataFusion plans the first step of grouping sets.
        AggregateMode::Partial if is_merged => Ok(Some(Arc::new(aggregate.clone()))),
        _ => Ok(None),
    }
}

/// `ORDER BY … LIMIT`: the first rows of each split, then those of all.
fn first_of(sort: &SortExec) -> Arc<dyn ExecutionPlan> {
    let each = FirstExec::new(sort.clone());
    Arc::new(SortExec::new(sort.expr().clone(), gathered(Arc::new(each))).with_fetch(sort.fetch()))
}
