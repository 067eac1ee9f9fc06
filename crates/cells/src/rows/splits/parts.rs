//! Groups of the parts of the keys; sorted rows of the parts of their order, and windows over these.
//!
//! ```text
//! server   GroupsExec                      many groups
//!            RemoteExec                    a task for each part
//! worker       PartsExec ◀── rows of the part, split after split: of this worker and of others
//!                splits                    each worker distributes some of them to parts, once
//! ```
//! A part has its rows in the order of the splits, whoever distributes them and wherever it is grouped. A part of many
//! bytes is scattered once more, so that its groups need little memory, unless it has few keys; this follows from the data.
//! Sorts and windows have parts between bounds, which the rows of all splits decide ([`sorted`]). Those of windows have
//! whole partitions, so the calls are computed part by part.

mod sorted;
mod waiting;

pub(in crate::rows) use sorted::{PartBounds, SAMPLE_COLUMNS, Sample, Sampled, samples_of};

use super::groups::{has_small_states, keys, over};
use super::once::OnceExec;
use super::replaced;
use super::scatter::{Lists, Scatter, Scattered, has_few_keys, has_one_key, hash_at, scattered};
use super::windows::WindowsExec;
use crate::rows::IsStopped;
use crate::rows::single::{after_input, only_input, properties, usual};
use datafusion::arrow::record_batch::RecordBatch;
use datafusion::common::hash_utils::RandomState;
use datafusion::common::tree_node::TreeNodeRecursion;
use datafusion::common::{internal_datafusion_err, internal_err};
use datafusion::error::{DataFusionError, Result};
use datafusion::execution::{SendableRecordBatchStream, TaskContext};
use datafusion::physical_expr::{EquivalenceProperties, LexOrdering, PhysicalExpr};
use datafusion::physical_plan::aggregates::AggregateExec;
use datafusion::physical_plan::execution_plan::apply_expression_roots;
use datafusion::physical_plan::stream::RecordBatchStreamAdapter;
use datafusion::physical_plan::{
    DisplayAs, DisplayFormatType, ExecutionPlan, ExecutionPlanProperties, PlanProperties,
};
use futures::stream::{self, BoxStream};
use futures::{StreamExt, TryStreamExt};
use sorted::SortOfSplits;
use std::fmt;
use std::ops::{Range, RangeInclusive};
use std::sync::{Arc, Mutex, PoisonError};
use tokio::sync::OnceCell;

/// Parts of the keys for each split, and bounds on all parts.
const PARTS_OF_SPLIT: usize = 4;
pub(in crate::rows) const PARTS: RangeInclusive<usize> = 16..=512;

/// A part of more bytes is scattered once more, and those parts again: rows of one key stay together.
const PART_BYTES: usize = 4 << 20;
const DEPTH_MAX: usize = 2;
const PARTS_OF_PART: usize = 64;

/// Rows that wait for their part may take this part of a statement's memory for rows.
const WAITING_SHARE: usize = 2;

/// As [`WAITING_SHARE`], on a worker, which may have to take over the rows of another one.
const KEPT_SHARE: usize = 4;

/// Hashes keys for parts, in the same way in each run.
pub(super) const STATE: RandomState = state(0);

/// Parts of parts need other hashes.
const fn state(depth: usize) -> RandomState {
    hash_at(0x7465_7373_6572_6121, depth)
}

pub(super) fn count_parts(splits: usize) -> usize {
    (splits * PARTS_OF_SPLIT).clamp(*PARTS.start(), *PARTS.end())
}

/// Distributes the rows of all splits of an input to the parts of their groups.
pub(super) async fn by_parts(
    aggregate: &AggregateExec,
    input: Arc<dyn ExecutionPlan>,
    parts: usize,
    context: &Arc<TaskContext>,
) -> Result<Arc<Scattered>> {
    let scatter = Scatter::by_keys(keys(aggregate), parts, STATE);
    Ok(Arc::new(scattered(input, scatter, WAITING_SHARE, context).await?))
}

/// Computes the groups of parts of the keys.
pub(super) struct PartGroups {
    pub(super) aggregate: AggregateExec,
    pub(super) context: Arc<TaskContext>,
    /// If false, groups that do not fit into memory are an error.
    pub(super) may_spill: bool,
}

impl PartGroups {
    /// The groups of a part that was scattered `depth` more times.
    pub(super) fn of(
        self: Arc<Self>,
        of: Arc<Scattered>,
        part: usize,
        depth: usize,
    ) -> BoxStream<'static, Result<RecordBatch>> {
        let begun = async move {
            let (bytes, rows) = (of.bytes(part), of.plan(part)?);
            // The first scatter may have been that of several workers, which know their own rows alone.
            let depth = if depth > 0 && has_most(&of, part) { DEPTH_MAX } else { depth };
            self.of_rows((bytes, of.key_bits(part)), rows, depth).await
        };
        stream::once(begun).try_flatten().boxed()
    }

    /// As [`PartGroups::of`], of rows with `bytes` bytes of values, whose keys chose these bits.
    async fn of_rows(
        self: Arc<Self>,
        (bytes, key_bits): (usize, u64),
        rows: Arc<dyn ExecutionPlan>,
        depth: usize,
    ) -> Result<BoxStream<'static, Result<RecordBatch>>> {
        // States with all values take the memory of the rows: those of one key at a time, if possible.
        let has_few = match has_small_states(&self.aggregate) {
            true => has_few_keys(key_bits),
            false => has_one_key(key_bits),
        };
        if bytes <= PART_BYTES || depth == DEPTH_MAX || has_few {
            let plan = over(&self.aggregate, rows)?;
            let groups = plan.execute(0, self.context.clone())?.boxed();
            return Ok(if self.may_spill { groups } else { in_memory(plan, groups) });
        }
        let parts = (bytes / (PART_BYTES / 2)).min(PARTS_OF_PART);
        let scatter = Scatter::by_keys(keys(&self.aggregate), parts, state(depth + 1));
        let of = Arc::new(scattered(rows, scatter, 4 * WAITING_SHARE, &self.context).await?);
        let part = move |part| self.clone().of(of.clone(), part, depth + 1);
        Ok(stream::iter(0..parts).flat_map(part).boxed())
    }
}

/// True if a part has most of all bytes, which are the rows of few keys, and each of the others takes little memory. The
/// part has about as many rows of other keys as each of the others.
fn has_most(of: &Scattered, part: usize) -> bool {
    let others = of.all_bytes() - of.bytes(part);
    of.bytes(part) > others && others / (of.count_parts() - 1).max(1) <= PART_BYTES
}

/// The groups of an aggregate, or an error if it has spilled: then they are in the order of their keys. A task that runs
/// again where there is more memory would yield them in another order, behind those that its reader has.
fn in_memory(
    plan: Arc<dyn ExecutionPlan>,
    groups: BoxStream<'static, Result<RecordBatch>>,
) -> BoxStream<'static, Result<RecordBatch>> {
    let checked = move |batch: Result<RecordBatch>| match plan
        .metrics()
        .and_then(|metrics| metrics.spill_count())
    {
        Some(1..) => {
            let what = "the groups of a part of the keys do not fit into the memory of a worker";
            Err(DataFusionError::ResourcesExhausted(what.into()))
        }
        _ => batch,
    };
    groups.map(checked).boxed()
}

/// The rows of a part that other processes send, once: an extension of the configuration with which it is computed.
pub(in crate::rows) struct ArrivingPart {
    bytes: usize,
    key_bits: u64,
    before: usize,
    rows: Mutex<Option<BoxStream<'static, Result<RecordBatch>>>>,
}

impl ArrivingPart {
    /// Rows with `bytes` bytes of values, in the order of the splits. Their keys, if parts have whole ones, chose these
    /// bits. The parts before have `before` rows.
    pub(in crate::rows) fn new(
        (bytes, key_bits): (usize, u64),
        before: usize,
        rows: BoxStream<'static, Result<RecordBatch>>,
    ) -> Self {
        ArrivingPart { bytes, key_bits, before, rows: Mutex::new(Some(rows)) }
    }

    fn take(&self) -> Result<BoxStream<'static, Result<RecordBatch>>> {
        let rows = self.rows.lock().unwrap_or_else(PoisonError::into_inner).take();
        rows.ok_or_else(|| internal_datafusion_err!("the rows of a part are read twice"))
    }
}

/// The computation over the rows of a part.
#[derive(Debug, Clone)]
enum Work {
    /// Groups. The aggregate has the splits as its input.
    Groups(Box<AggregateExec>),
    /// The sorted rows, with the results of windows if there are some.
    Sort(SortOfSplits, Option<Box<WindowsExec>>),
}

/// A partition for each part of the keys of groups, or for each part of the order of sorted rows.
#[derive(Debug)]
pub(in crate::rows) struct PartsExec {
    work: Work,
    parts: usize,
    /// The rows of all splits, where this process distributes them all.
    here: Arc<OnceCell<Arc<Scattered>>>,
    properties: Arc<PlanProperties>,
}

/// The properties of `parts` parts of rows. Constants and equal columns remain.
fn of_parts(known: &EquivalenceProperties, parts: usize) -> Arc<PlanProperties> {
    let mut known = known.clone();
    known.clear_orderings();
    after_input(known, parts)
}

impl PartsExec {
    pub(in crate::rows) fn new(aggregate: AggregateExec, parts: usize) -> Self {
        let properties = of_parts(aggregate.properties().equivalence_properties(), parts);
        let work = Work::Groups(Box::new(aggregate));
        PartsExec { work, parts, here: Arc::default(), properties }
    }

    /// The parts of sorted rows, of which one has all rows whose first `whole` keys are equal.
    ///
    /// # Errors
    /// Keys that cannot be compared, or not by the first ones.
    pub(in crate::rows) fn sorted(
        input: Arc<dyn ExecutionPlan>,
        order: LexOrdering,
        whole: usize,
        parts: usize,
    ) -> Result<Self> {
        let properties = of_parts(input.equivalence_properties(), parts);
        let sort = SortOfSplits { input, order, whole };
        if whole > 0 && !sort.keys()?.can_cut(whole) {
            return internal_err!("sorted rows cannot be cut where {whole} keys change");
        }
        Ok(PartsExec { work: Work::Sort(sort, None), parts, here: Arc::default(), properties })
    }

    /// Sorted parts with the results of windows, whose partitions they do not divide.
    ///
    /// # Errors
    /// Parts that are not sorted.
    pub(in crate::rows) fn with_windows(self, windows: WindowsExec) -> Result<Self> {
        let Work::Sort(sort, _) = self.work else { return internal_err!("windows over groups") };
        let properties = of_parts(windows.properties().equivalence_properties(), self.parts);
        let work = Work::Sort(sort, Some(Box::new(windows)));
        Ok(PartsExec { work, parts: self.parts, here: self.here, properties })
    }

    /// The same parts with windows that end soon after `is_stopped` returns true; `None` without windows.
    pub(in crate::rows) fn stoppable(&self, is_stopped: &IsStopped) -> Option<Self> {
        let Work::Sort(sort, Some(windows)) = &self.work else { return None };
        let work = Work::Sort(sort.clone(), Some(Box::new(windows.stoppable(is_stopped))));
        let (here, properties) = (self.here.clone(), self.properties.clone());
        Some(PartsExec { work, parts: self.parts, here, properties })
    }

    /// The aggregate over splits, if parts are grouped.
    pub(in crate::rows) fn aggregate(&self) -> Option<&AggregateExec> {
        match &self.work {
            Work::Groups(aggregate) => Some(aggregate),
            Work::Sort(..) => None,
        }
    }

    /// The windows over sorted parts.
    pub(in crate::rows) fn windows(&self) -> Option<&WindowsExec> {
        match &self.work {
            Work::Groups(_) => None,
            Work::Sort(_, windows) => windows.as_deref(),
        }
    }

    /// True if neither has windows, or both have the same.
    pub(in crate::rows) fn has_windows_of(&self, other: &Self) -> bool {
        match (self.windows(), other.windows()) {
            (Some(own), Some(others)) => own.is_same(others),
            (None, None) => true,
            _ => false,
        }
    }

    /// The order of the rows, and the first keys by which parts are whole, if parts are sorted.
    pub(in crate::rows) fn order(&self) -> Option<(&LexOrdering, usize)> {
        match &self.work {
            Work::Groups(_) => None,
            Work::Sort(sort, _) => Some((&sort.order, sort.whole)),
        }
    }

    pub(in crate::rows) fn parts(&self) -> usize {
        self.parts
    }

    fn input(&self) -> &Arc<dyn ExecutionPlan> {
        match &self.work {
            Work::Groups(aggregate) => aggregate.input(),
            Work::Sort(sort, _) => &sort.input,
        }
    }

    pub(in crate::rows) fn count_splits(&self) -> usize {
        self.input().output_partitioning().partition_count()
    }

    pub(in crate::rows) fn columns(&self) -> usize {
        self.input().schema().fields().len()
    }

    /// Fails unless the range has splits, and only ones that exist.
    fn check(&self, splits: &Range<usize>) -> Result<()> {
        if splits.start >= splits.end || splits.end > self.count_splits() {
            let all = self.count_splits();
            return internal_err!("splits {} to {} of {all}", splits.start, splits.end);
        }
        Ok(())
    }

    /// Chooses samples of the rows of some splits, for the bounds of parts.
    ///
    /// # Errors
    /// The errors of the splits; splits that do not exist; parts without bounds.
    pub(in crate::rows) async fn sampled(
        &self,
        splits: Range<usize>,
        context: &Arc<TaskContext>,
    ) -> Result<Sampled> {
        self.check(&splits)?;
        match &self.work {
            Work::Groups(_) => internal_err!("parts of groups have no bounds"),
            Work::Sort(sort, _) => sort.sampled(splits, context).await,
        }
    }

    /// The bounds of the parts, by the samples of all splits.
    pub(in crate::rows) fn bounds(&self, samples: Vec<Sample>) -> Result<PartBounds> {
        match &self.work {
            Work::Groups(_) => internal_err!("parts of groups have no bounds"),
            Work::Sort(sort, _) => Ok(sort.bounds(samples, self.parts)),
        }
    }

    /// Distributes the rows of some of the splits to the parts. Parts of a sort have bounds; rows that were retained
    /// when they were sampled are not computed again.
    ///
    /// # Errors
    /// The errors of the splits; splits that do not exist.
    pub(in crate::rows) async fn scattered(
        &self,
        splits: Range<usize>,
        bounds: Option<&PartBounds>,
        sampled: Option<&Sampled>,
        context: &Arc<TaskContext>,
    ) -> Result<Arc<Scattered>> {
        self.check(&splits)?;
        let aggregate = match (&self.work, bounds) {
            (Work::Groups(aggregate), _) => aggregate,
            (Work::Sort(sort, _), Some(bounds)) => {
                let bounds = (bounds, self.parts);
                return sort.scattered(splits, bounds, sampled, context).await.map(Arc::new);
            }
            (Work::Sort(..), None) => return internal_err!("the bounds of parts are not known"),
        };
        let input = aggregate.input().clone();
        let scatter = Scatter::by_keys(keys(aggregate), self.parts, STATE);
        let mut lists = Lists::new(input.schema(), scatter, KEPT_SHARE, context);
        lists.read(input, splits, context).await?;
        Ok(Arc::new(lists.finish()?))
    }

    fn groups(
        &self,
        aggregate: &AggregateExec,
        part: usize,
        context: Arc<TaskContext>,
    ) -> Result<BoxStream<'static, Result<RecordBatch>>> {
        let arriving = context.session_config().get_extension::<ArrivingPart>();
        let groups = Arc::new(PartGroups {
            aggregate: aggregate.clone(),
            context: context.clone(),
            may_spill: arriving.is_none(),
        });
        if let Some(arriving) = arriving {
            let rows = arriving.take()?;
            let rows = OnceExec::new(properties(aggregate.input().schema()), rows);
            let extent = (arriving.bytes, arriving.key_bits);
            let begun = groups.of_rows(extent, Arc::new(rows), 0);
            return Ok(stream::once(begun).try_flatten().boxed());
        }
        let (here, parts) = (self.here.clone(), self.parts);
        let begun = async move {
            let aggregate = &groups.aggregate;
            let all = || by_parts(aggregate, aggregate.input().clone(), parts, &context);
            let of = here.get_or_try_init(all).await?.clone();
            Ok::<_, DataFusionError>(groups.of(of, part, 0))
        };
        Ok(stream::once(begun).try_flatten().boxed())
    }

    fn sorted_rows(
        &self,
        sort: SortOfSplits,
        windows: Option<Box<WindowsExec>>,
        part: usize,
        context: Arc<TaskContext>,
    ) -> BoxStream<'static, Result<RecordBatch>> {
        let arriving = context.session_config().get_extension::<ArrivingPart>();
        let (here, parts) = (self.here.clone(), self.parts);
        let begun = async move {
            let (rows, before) = match &arriving {
                Some(arriving) => (arriving.take()?, arriving.before),
                None => {
                    let of = here.get_or_try_init(|| sort.all(parts, &context)).await?;
                    let batch_rows = context.session_config().batch_size();
                    (of.apart(part, batch_rows)?, of.before(part))
                }
            };
            let rows = OnceExec::new(properties(sort.input.schema()), rows);
            let rows = sort.part(Arc::new(rows), before, &context).await?;
            Ok::<_, DataFusionError>(match windows {
                Some(windows) => windows.of_part(rows, (before, arriving.is_none()), &context),
                None => rows,
            })
        };
        stream::once(begun).try_flatten().boxed()
    }
}

impl DisplayAs for PartsExec {
    fn fmt_as(&self, format: DisplayFormatType, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "PartsExec: {} parts, ", self.parts)?;
        match &self.work {
            Work::Groups(aggregate) => aggregate.fmt_as(format, f),
            Work::Sort(SortOfSplits { order, whole, .. }, windows) => {
                write!(f, "sorted by [{order}]")?;
                if *whole > 0 {
                    write!(f, ", cut by the first {whole}")?;
                }
                let Some(windows) = windows else { return Ok(()) };
                f.write_str(", ")?;
                windows.fmt_as(format, f)
            }
        }
    }
}

impl ExecutionPlan for PartsExec {
    usual!(name, properties);

    fn children(&self) -> Vec<&Arc<dyn ExecutionPlan>> {
        vec![self.input()]
    }

    fn apply_expressions(
        &self,
        visit: &mut dyn FnMut(&Arc<dyn PhysicalExpr>) -> Result<TreeNodeRecursion>,
    ) -> Result<TreeNodeRecursion> {
        match &self.work {
            Work::Groups(aggregate) => aggregate.apply_expressions(visit),
            Work::Sort(sort, windows) => {
                let keys = sort.order.iter().map(|key| &key.expr);
                let visited = apply_expression_roots(keys, visit)?;
                match windows {
                    Some(windows) if visited != TreeNodeRecursion::Stop => {
                        windows.apply_expressions(visit)
                    }
                    _ => Ok(visited),
                }
            }
        }
    }

    fn with_new_children(
        self: Arc<Self>,
        children: Vec<Arc<dyn ExecutionPlan>>,
    ) -> Result<Arc<dyn ExecutionPlan>> {
        let input = only_input(self.name(), children)?;
        Ok(Arc::new(match &self.work {
            Work::Groups(aggregate) => {
                PartsExec::new(aggregate_over(aggregate, input)?, self.parts)
            }
            Work::Sort(SortOfSplits { order, whole, .. }, windows) => {
                let sorted = PartsExec::sorted(input.clone(), order.clone(), *whole, self.parts)?;
                match windows {
                    Some(windows) => sorted.with_windows(windows.over_input(input)?)?,
                    None => sorted,
                }
            }
        }))
    }

    fn execute(
        &self,
        partition: usize,
        context: Arc<TaskContext>,
    ) -> Result<SendableRecordBatchStream> {
        if partition >= self.parts {
            return internal_err!("part {partition} of {}", self.parts);
        }
        let rows = match &self.work {
            Work::Groups(aggregate) => self.groups(aggregate, partition, context)?,
            Work::Sort(sort, windows) => {
                self.sorted_rows(sort.clone(), windows.clone(), partition, context)
            }
        };
        Ok(Box::pin(RecordBatchStreamAdapter::new(self.schema(), rows)))
    }
}

/// The aggregate over another input with the same columns.
pub(in crate::rows) fn aggregate_over(
    aggregate: &AggregateExec,
    input: Arc<dyn ExecutionPlan>,
) -> Result<AggregateExec> {
    let aggregate: Arc<dyn ExecutionPlan> = Arc::new(aggregate.clone());
    let aggregate = replaced(&aggregate, vec![input])?;
    let aggregate = aggregate.downcast_ref::<AggregateExec>();
    aggregate
        .cloned()
        .ok_or_else(|| internal_datafusion_err!("an aggregate has become another operator"))
}
