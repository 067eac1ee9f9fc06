//! Groups of the parts of the keys.
//!
//! ```text
//! server   GroupsExec                      many groups
//!            RemoteExec                    a task for each part
//! worker       PartsExec ◀── rows of the part, split after split: of this worker and of others
//!                splits                    each worker distributes some of them to parts, once
//! ```
//! A part has its rows in the order of the splits, whoever distributes them and wherever it is grouped. A part of many
//! bytes is scattered once more, so that its groups need little memory; this follows from the data.

use super::groups::{keys, over};
use super::once::OnceExec;
use super::replaced;
use super::scatter::{Lists, Scatter, Scattered, scattered};
use crate::rows::single::{only_input, properties, usual};
use datafusion::arrow::record_batch::RecordBatch;
use datafusion::common::hash_utils::RandomState;
use datafusion::common::{internal_datafusion_err, internal_err};
use datafusion::error::{DataFusionError, Result};
use datafusion::execution::{SendableRecordBatchStream, TaskContext};
use datafusion::physical_plan::aggregates::AggregateExec;
use datafusion::physical_plan::execution_plan::{Boundedness, EmissionType};
use datafusion::physical_plan::stream::RecordBatchStreamAdapter;
use datafusion::physical_plan::{
    DisplayAs, DisplayFormatType, ExecutionPlan, ExecutionPlanProperties, Partitioning,
    PlanProperties,
};
use futures::stream::{self, BoxStream};
use futures::{StreamExt, TryStreamExt};
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

/// The same on a worker, which may have to take over the rows of another one.
const KEPT_SHARE: usize = 4;

/// Hashes keys for parts, in the same way in each run.
pub(super) const STATE: RandomState = state(0);

/// Parts of parts need other hashes.
const fn state(depth: usize) -> RandomState {
    RandomState::with_seed(0x7465_7373_6572_6121 + depth as u64)
}

/// The parts of the groups of so many splits.
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
    /// False where groups that do not fit into memory are an error.
    pub(super) may_spill: bool,
}

impl PartGroups {
    /// The groups of a part that was scattered that many times more.
    pub(super) fn of(
        self: Arc<Self>,
        of: Arc<Scattered>,
        part: usize,
        depth: usize,
    ) -> BoxStream<'static, Result<RecordBatch>> {
        let begun = async move {
            let (bytes, rows) = (of.bytes(part), of.plan(part)?);
            self.of_rows(bytes, rows, depth).await
        };
        stream::once(begun).try_flatten().boxed()
    }

    /// As [`PartGroups::of`], of rows with so many bytes of values.
    async fn of_rows(
        self: Arc<Self>,
        bytes: usize,
        rows: Arc<dyn ExecutionPlan>,
        depth: usize,
    ) -> Result<BoxStream<'static, Result<RecordBatch>>> {
        if bytes <= PART_BYTES || depth == DEPTH_MAX {
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

/// The rows of a part that come from elsewhere, once: an extension of the configuration with which it is grouped.
pub(in crate::rows) struct ArrivingPart {
    bytes: usize,
    rows: Mutex<Option<BoxStream<'static, Result<RecordBatch>>>>,
}

impl ArrivingPart {
    /// Rows with so many bytes of values, in the order of the splits.
    pub(in crate::rows) fn new(
        bytes: usize,
        rows: BoxStream<'static, Result<RecordBatch>>,
    ) -> Self {
        ArrivingPart { bytes, rows: Mutex::new(Some(rows)) }
    }

    fn take(&self) -> Result<BoxStream<'static, Result<RecordBatch>>> {
        let rows = self.rows.lock().unwrap_or_else(PoisonError::into_inner).take();
        rows.ok_or_else(|| internal_datafusion_err!("the rows of a part are read twice"))
    }
}

/// Groups with a partition for each part of their keys.
#[derive(Debug)]
pub(in crate::rows) struct PartsExec {
    /// The aggregate, with the splits as its input.
    aggregate: AggregateExec,
    parts: usize,
    /// The rows of all splits, where this process distributes them all.
    here: Arc<OnceCell<Arc<Scattered>>>,
    properties: Arc<PlanProperties>,
}

impl PartsExec {
    pub(in crate::rows) fn new(aggregate: AggregateExec, parts: usize) -> Self {
        let mut known = aggregate.properties().equivalence_properties().clone();
        known.clear_orderings();
        let properties = Arc::new(PlanProperties::new(
            known,
            Partitioning::UnknownPartitioning(parts),
            EmissionType::Final,
            Boundedness::Bounded,
        ));
        PartsExec { aggregate, parts, here: Arc::default(), properties }
    }

    /// The aggregate over splits.
    pub(in crate::rows) fn aggregate(&self) -> &AggregateExec {
        &self.aggregate
    }

    /// The parts of the groups.
    pub(in crate::rows) fn parts(&self) -> usize {
        self.parts
    }

    /// The splits whose rows are distributed to parts.
    pub(in crate::rows) fn count_splits(&self) -> usize {
        self.aggregate.input().output_partitioning().partition_count()
    }

    /// The columns of the splits.
    pub(in crate::rows) fn columns(&self) -> usize {
        self.aggregate.input().schema().fields().len()
    }

    /// Distributes the rows of some of the splits to the parts.
    ///
    /// # Errors
    /// Those of the splits; splits that do not exist.
    pub(in crate::rows) async fn scattered(
        &self,
        splits: Range<usize>,
        context: &Arc<TaskContext>,
    ) -> Result<Arc<Scattered>> {
        if splits.start >= splits.end || splits.end > self.count_splits() {
            let all = self.count_splits();
            return internal_err!("splits {} to {} of {all}", splits.start, splits.end);
        }
        let input = self.aggregate.input().clone();
        let scatter = Scatter::by_keys(keys(&self.aggregate), self.parts, STATE);
        let mut lists = Lists::new(input.schema(), scatter, KEPT_SHARE, context);
        lists.read(input, splits, context).await?;
        Ok(Arc::new(lists.finish()?))
    }
}

impl DisplayAs for PartsExec {
    fn fmt_as(&self, format: DisplayFormatType, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "PartsExec: {} parts, ", self.parts)?;
        self.aggregate.fmt_as(format, f)
    }
}

impl ExecutionPlan for PartsExec {
    usual!(name, properties, children of aggregate, expressions of aggregate);

    fn with_new_children(
        self: Arc<Self>,
        children: Vec<Arc<dyn ExecutionPlan>>,
    ) -> Result<Arc<dyn ExecutionPlan>> {
        let input = only_input(self.name(), children)?;
        Ok(Arc::new(PartsExec::new(aggregate_over(&self.aggregate, input)?, self.parts)))
    }

    fn execute(
        &self,
        partition: usize,
        context: Arc<TaskContext>,
    ) -> Result<SendableRecordBatchStream> {
        if partition >= self.parts {
            return internal_err!("part {partition} of {}", self.parts);
        }
        let arriving = context.session_config().get_extension::<ArrivingPart>();
        let groups = Arc::new(PartGroups {
            aggregate: self.aggregate.clone(),
            context: context.clone(),
            may_spill: arriving.is_none(),
        });
        let rows = match arriving {
            Some(arriving) => {
                let rows = arriving.take()?;
                let rows = OnceExec::new(properties(self.aggregate.input().schema()), rows);
                stream::once(groups.of_rows(arriving.bytes, Arc::new(rows), 0))
                    .try_flatten()
                    .boxed()
            }
            None => {
                let (here, parts) = (self.here.clone(), self.parts);
                let begun = async move {
                    let aggregate = &groups.aggregate;
                    let all = || by_parts(aggregate, aggregate.input().clone(), parts, &context);
                    let of = here.get_or_try_init(all).await?.clone();
                    Ok::<_, DataFusionError>(groups.of(of, partition, 0))
                };
                stream::once(begun).try_flatten().boxed()
            }
        };
        Ok(Box::pin(RecordBatchStreamAdapter::new(self.schema(), rows)))
    }
}

/// The aggregate over another input with the same columns.
///
/// # Errors
/// DataFusion's.
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
