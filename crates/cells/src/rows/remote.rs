//! Parts of a plan that workers compute.
//!
//! ```text
//! server   DistributedExec                     the distributed planner's, above the finished plan
//!            AggregateExec: Final
//!              GatherExec: K splits            as without workers
//!                RemoteExec                    in the place of the part, with its properties
//!                  NetworkCoalesceExec K→1     the distributed planner's; it calls the channel for each split
//!                    TaskExec                  a leaf; has the template: the part, with a partition for each split
//!                       ▼  one call of RowsPeers a task, when the gather starts its split
//! worker   RowsTasks ─▶ template.execute(number of the task) ─▶ batches … Done
//! ```
//! A template is encoded once, when the statement is planned ([`codec`]); a worker decodes it once for all tasks of the
//! stage ([`worker`]). Where a split computes has no influence on its rows: the cuts are those of the server, task i
//! computes split i, and a batch of a worker is a batch of the server ([`message`]). The gather reads tasks in the order of
//! the splits. This crate sends nothing itself; [`RowsPeers`] finds workers, and sends a task again if one is lost.
//!
//! # Which parts go to workers
//! A part below an operator that reads splits in order, if all of this holds:
//! 1. a worker is alive;
//! 2. the part reads files of at least [`RowsSpread::least_bytes`]: less is read here before workers have begun;
//! 3. it leaves out or joins rows, or groups them. Other parts yield the rows of their files, which the server reads as
//!    fast as a worker does, and they would be moved once more;
//! 4. each of its build sides reads at most [`RowsSpread::build_bytes`], because each worker computes it again;
//! 5. no join outside of it fills a filter of its scans while the plan runs: workers would not see that, so their
//!    batches, and with them the bits of sums, would be others;
//! 6. each of its operators and functions can be encoded, and the plan has at most a mebibyte: each worker gets it.
//!
//! With [`RowsSpread::all`] only 1, 5 and 6 count, for at most [`ALL_SPLITS_MAX`] splits: tests cut files into splits of some
//! bytes. The reason why a part that is large enough stays is stored for EXPLAIN ([`RowsStay`]).
//!
//! Whether groups are few or many is known once their first rows have run. So the plan has inputs for both: the splits,
//! from which the server reads these rows, and further the groups of each split, for few, and the groups of each part
//! of the keys, for many. For the latter each worker stores the rows of some splits by parts, and a task groups a part
//! with its rows from all workers ([`worker`]). They pay with two workers or more, and whether or not the part leaves
//! out rows: the rows do not pass through the server. With one worker, it sends the rows of each split, and the server
//! groups them.
//!
//! Sorts and windows have parts between bounds, and a task sorts a part with its rows from all workers, under the same
//! conditions. Where partitions are not divided, it computes the windows, too. The server reads the parts in order, and
//! computes the windows that do not go.

mod channel;
mod codec;
mod functions;
mod message;
mod scans;
mod stage;
mod task;
#[cfg(test)]
mod tests;
mod worker;

pub(super) use task::RemoteExec;
pub use worker::{
    HolderFault, RowsHolder, RowsHolders, RowsLoad, RowsPartStart, RowsStart, RowsTasks,
};

use super::splits::{
    Apart, FirstExec, KeysExec, PartsExec, RowsThreads, SPLIT_BYTES, apart, over_part, over_parts,
    over_rows, over_sorted, over_windows, part_below, parts_below, rows_below, sorted_below,
    windows_below,
};
use super::{BoxError, IsStopped, RowsRuntime};
use crate::walk::Walk;
use bytes::Bytes;
use channel::TaskChannel;
use codec::Stays;
use datafusion::common::JoinType;
use datafusion::common::tree_node::{Transformed, TreeNodeRecursion};
use datafusion::datasource::listing::PartitionedFile;
use datafusion::datasource::memory::MemorySourceConfig;
use datafusion::datasource::physical_plan::FileScanConfig;
use datafusion::datasource::source::DataSourceExec;
use datafusion::error::Result;
use datafusion::execution::SessionState;
use datafusion::physical_expr::PhysicalExpr;
use datafusion::physical_expr::utils::split_conjunction;
use datafusion::physical_plan::aggregates::{AggregateExec, AggregateMode};
use datafusion::physical_plan::filter::FilterExec;
use datafusion::physical_plan::joins::{HashJoinExec, NestedLoopJoinExec};
use datafusion::physical_plan::{ExecutionPlan, ExecutionPlanProperties, displayable};
use datafusion::prelude::SessionConfig;
use futures::stream::BoxStream;
use serde::Serialize;
use std::any::Any;
use std::collections::BTreeSet;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use tessera_planner::explain;

/// Upper bound on the splits of a part that goes to workers independent of its size.
const ALL_SPLITS_MAX: usize = 256;

/// Runs tasks of rows on workers.
pub trait RowsPeers: Send + Sync + fmt::Debug {
    /// Upper bound on the tasks that run at a time, over all workers; 0 if there is none.
    fn turns(&self) -> usize;

    /// Number of workers.
    fn workers(&self) -> usize;

    /// Runs a task. The stream yields the messages of a worker, whole and in their order, and each batch once: a task that
    /// is sent again begins after the batches that it has yielded. It ends with the message `Done` or with a fault.
    /// Dropping it ends the task.
    fn start(&self, task: RowsTask) -> BoxStream<'static, std::result::Result<Bytes, RowsFault>>;
}

/// A task that is to run elsewhere.
#[derive(Debug, Clone)]
pub struct RowsTask {
    /// The stage, numbered within the statement from 1. All of its tasks have the same plan.
    pub stage: u32,
    /// The task within the stage, from 0.
    pub task: u32,
    /// Number of tasks of the stage.
    pub tasks: u32,
    /// Number of splits whose rows workers store for the tasks of the stage, each worker some of them
    /// ([`RowsStart::holders`]); 0 for a stage whose tasks are the splits.
    pub kept: u32,
    /// Data of the task for the worker, beside its plan.
    pub header: Bytes,
    /// The plan of the stage, for workers that do not have it.
    pub plan: Bytes,
}

/// The reason why a task did not run on a worker.
#[derive(Debug)]
pub enum RowsFault {
    /// The task itself is valid, and runs here instead: no worker took it, versions differ, or a worker lacks storage
    /// or memory.
    Here(String),
    /// The statement fails with this error.
    Failed(BoxError),
}

/// Settings for rows of a statement on workers.
#[derive(Debug, Clone)]
pub struct RowsSpread {
    /// The workers.
    pub peers: Arc<dyn RowsPeers>,
    /// Minimum bytes of the files of a part.
    pub least_bytes: u64,
    /// Upper bound on the bytes that a build side reads.
    pub build_bytes: u64,
    /// True to run every part on workers that can run there.
    pub all: bool,
}

/// A part of a statement that workers compute.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct RowsStage {
    /// Its number within the statement.
    pub stage: u32,
    /// Its splits, each a task unless there are parts.
    pub splits: usize,
    /// The parts of many groups, sorted rows or windows, each a task, which read the rows of the splits from all workers.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub parts: Option<usize>,
    /// Bytes of the files that the splits read.
    pub bytes: u64,
    /// Bytes that the largest build side reads, on each worker.
    pub build_bytes: u64,
    /// Bytes of the encoded plan.
    pub plan_bytes: usize,
    /// Its operators, one a line.
    pub text: String,
}

impl RowsStage {
    /// Its tasks.
    pub fn tasks(&self) -> usize {
        self.parts.unwrap_or(self.splits)
    }
}

/// A part of a statement that is large enough for workers, and stays on the server.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct RowsStay {
    /// Its splits.
    pub splits: usize,
    /// Bytes of the files that they read.
    pub bytes: u64,
    /// The reason.
    pub reason: String,
}

/// The parts of a statement's rows that workers compute.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct RowsOnWorkers {
    /// The parts that go to workers.
    pub stages: Vec<RowsStage>,
    /// The large parts that stay on the server.
    pub stay: Vec<RowsStay>,
}

impl fmt::Display for RowsOnWorkers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for stage in &self.stages {
            let parts = stage.parts.map_or(String::new(), |parts| format!("{parts} parts of "));
            let extent = extent(stage.splits, stage.bytes);
            writeln!(f, "rows on workers: {parts}{extent}")?;
            stage.text.lines().try_for_each(|line| writeln!(f, "  {line}"))?;
        }
        for stay in &self.stay {
            let extent = extent(stay.splits, stay.bytes);
            writeln!(f, "rows on the server: {extent}, because {}", stay.reason)?;
        }
        Ok(())
    }
}

/// `128 splits of 1.0GiB`, the bytes of all of them.
fn extent(splits: usize, bytes: u64) -> String {
    format!("{splits} splits of {}", explain::bytes(bytes).replace(' ', ""))
}

struct Part {
    /// The number of its stage.
    number: u32,
    /// The part, with a partition for each task.
    template: Arc<dyn ExecutionPlan>,
    /// Its tasks: the splits, or the parts of groups, of sorted rows or of windows.
    tasks: usize,
    /// Number of splits whose rows workers store for parts; otherwise 0.
    kept: usize,
    bytes: u64,
    encoded: Bytes,
    peers: Arc<dyn RowsPeers>,
}

impl fmt::Debug for Part {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Part")
            .field("number", &self.number)
            .field("template", &self.template)
            .field("tasks", &self.tasks)
            .finish_non_exhaustive()
    }
}

/// Decides which parts of a statement's plans workers compute.
pub(super) struct Spreading {
    spread: RowsSpread,
    runtime: Arc<RowsRuntime>,
    found: Mutex<RowsOnWorkers>,
}

impl Spreading {
    pub(super) fn new(spread: RowsSpread, runtime: Arc<RowsRuntime>) -> Arc<Self> {
        Arc::new(Spreading { spread, runtime, found: Mutex::default() })
    }

    pub(super) fn found(&self) -> RowsOnWorkers {
        self.lock().clone()
    }

    fn lock(&self) -> MutexGuard<'_, RowsOnWorkers> {
        self.found.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The plan with nodes in the places of the parts that workers compute. `state` is that of the statement.
    pub(super) fn with_stages(
        &self,
        plan: Arc<dyn ExecutionPlan>,
        state: &SessionState,
    ) -> Result<Arc<dyn ExecutionPlan>> {
        // Where workers may compute the second input of such a join, the join runs in one partition here.
        let plan = plan.map_down(|node| {
            Ok(match apart(&node)? {
                Some(Apart { join, part }) if bytes_below(&part)? >= self.spread.least_bytes => {
                    Transformed::yes(join)
                }
                _ => Transformed::no(node),
            })
        })?;
        let plan = plan.data;
        let filled = filled_in(&plan)?;
        // From above: a part on workers includes the parts below it.
        plan.map_down(|node| {
            if self.exchanges()
                && let Some(parts) = windows_below(&node)?
                && let Some(part) = self.exchanged(&parts, &filled, state)?
            {
                let remote = Arc::new(RemoteExec::new(part, false));
                return over_windows(&node, remote).map(Transformed::yes);
            }
            if self.exchanges()
                && let Some(parts) = sorted_below(&node)?
                && let Some(part) = self.exchanged(&parts, &filled, state)?
            {
                let remote = Arc::new(RemoteExec::new(part, false));
                return over_sorted(&node, remote).map(Transformed::yes);
            }
            let mut node = Transformed::no(node);
            if let Some(below) = part_below(&node.data)?
                && let Some(part) = self.part(below.part, 0, &filled, state)?
            {
                let remote = Arc::new(RemoteExec::new(part, below.is_second));
                node = Transformed::yes(over_part(&node.data, remote)?);
            }
            if self.exchanges()
                && let Some(parts) = parts_below(&node.data)
                && let Some(part) = self.exchanged(&parts, &filled, state)?
            {
                let remote = Arc::new(RemoteExec::new(part, true));
                node = Transformed::yes(over_parts(&node.data, remote)?);
            }
            if let Some(rows) = rows_below(&node.data)
                && self.is_worth(&rows, &filled)?
                && let Some(part) = self.part(rows, 0, &filled, state)?
            {
                let remote = Arc::new(RemoteExec::new(part, true));
                node = Transformed::yes(over_rows(&node.data, remote)?);
            }
            Ok(node)
        })
        .map(|t| t.data)
    }

    /// True if workers group and sort the rows of each other.
    fn exchanges(&self) -> bool {
        self.spread.all || self.spread.peers.workers() > 1
    }

    /// As [`Spreading::part`], of parts whose rows workers keep for each other.
    fn exchanged(
        &self,
        parts: &Arc<PartsExec>,
        filled: &BTreeSet<u64>,
        state: &SessionState,
    ) -> Result<Option<Arc<Part>>> {
        self.part(parts.clone(), parts.count_splits(), filled, state)
    }

    /// True if the splits yield fewer rows than their files have. Else no reason is recorded: the groups above may
    /// still go to workers.
    fn is_worth(&self, rows: &Arc<dyn ExecutionPlan>, filled: &BTreeSet<u64>) -> Result<bool> {
        Ok(self.spread.all || Extent::of(rows, filled)?.is_reduced)
    }

    /// The part, if workers compute it. They store the rows of `kept` splits for its tasks.
    fn part(
        &self,
        template: Arc<dyn ExecutionPlan>,
        kept: usize,
        filled: &BTreeSet<u64>,
        state: &SessionState,
    ) -> Result<Option<Arc<Part>>> {
        let tasks = template.output_partitioning().partition_count();
        let splits = if kept > 0 { kept } else { tasks };
        let extent = Extent::of(&template, filled)?;
        let (bytes, build_bytes) = (extent.bytes, extent.build_bytes);
        if bytes < self.spread.least_bytes {
            return Ok(None);
        }
        let moves_less = extent.is_reduced || kept > 0;
        let encoded = match self.encoded(&template, splits, moves_less, &extent, state) {
            Ok(encoded) => Bytes::from(encoded),
            Err(Stays(reason)) => {
                tracing::debug!(splits, bytes, reason, "a part of the rows stays on the server");
                let (stay, mut found) = (RowsStay { splits, bytes, reason }, self.lock());
                // Groups of splits and their rows mostly stay for one reason, and so do windows, their sorts and their input.
                if found.stay.last() != Some(&stay) {
                    found.stay.push(stay);
                }
                return Ok(None);
            }
        };
        let mut found = self.lock();
        let number = found.stages.len() as u32 + 1;
        found.stages.push(RowsStage {
            stage: number,
            splits,
            parts: (kept > 0).then_some(tasks),
            bytes,
            build_bytes,
            plan_bytes: encoded.len(),
            text: displayable(template.as_ref()).indent(false).to_string(),
        });
        let peers = self.spread.peers.clone();
        Ok(Some(Arc::new(Part { number, template, tasks, kept, bytes, encoded, peers })))
    }

    /// The encoded part, or the reason why it stays. `moves_less` if workers send fewer rows than the server would
    /// read.
    fn encoded(
        &self,
        template: &Arc<dyn ExecutionPlan>,
        splits: usize,
        moves_less: bool,
        extent: &Extent,
        state: &SessionState,
    ) -> std::result::Result<Vec<u8>, Stays> {
        let RowsSpread { peers, build_bytes, all, .. } = &self.spread;
        if peers.turns() == 0 {
            return Err(Stays("no worker is connected".into()));
        }
        if *all && splits > ALL_SPLITS_MAX {
            return Err(Stays(format!("it has more than {ALL_SPLITS_MAX} splits")));
        }
        if extent.is_filtered_from_outside {
            return Err(Stays("the keys of a join outside of it leave out its rows".into()));
        }
        if !all && !moves_less {
            let reason = "it only reads rows, which the server does as fast as it receives them";
            return Err(Stays(reason.into()));
        }
        if !all && extent.build_bytes > *build_bytes {
            let (bytes, most) = (explain::bytes(extent.build_bytes), explain::bytes(*build_bytes));
            let reason = format!(
                "each worker would read the {bytes} of a side of a join again (limit {most})"
            );
            return Err(Stays(reason));
        }
        codec::encode(template, state, &self.runtime)
    }

    /// Prepares the plans of the statement for their run. Returns them in their order, and the configuration with which
    /// they run. Parts that run here after all use a part of `memory` each.
    pub(super) async fn distributed(
        &self,
        plans: Vec<Arc<dyn ExecutionPlan>>,
        state: &SessionState,
        memory: u64,
        is_stopped: &IsStopped,
    ) -> Result<(Vec<Arc<dyn ExecutionPlan>>, SessionConfig)> {
        let threads = state.config().get_extension::<RowsThreads>().map_or(1, |threads| threads.0);
        let fitting = usize::try_from(memory).unwrap_or(usize::MAX) / SPLIT_BYTES;
        let peers = self.spread.peers.clone();
        let channel = TaskChannel::new(peers, threads.min(fitting), is_stopped.clone());
        stage::distributed(plans, state, &channel).await
    }
}

/// The bytes that a part reads, and whether it yields fewer rows.
#[derive(Debug, Default)]
struct Extent {
    bytes: u64,
    /// Bytes of the largest build side.
    build_bytes: u64,
    /// True if rows are filtered, joined or grouped.
    is_reduced: bool,
    /// True if a join outside of it fills a filter of its scans.
    is_filtered_from_outside: bool,
}

impl Extent {
    /// `filled` are the filters that joins of the whole plan fill.
    fn of(template: &Arc<dyn ExecutionPlan>, filled: &BTreeSet<u64>) -> Result<Self> {
        let own = filled_in(template)?;
        let is_foreign = |part: &&Arc<dyn PhysicalExpr>| {
            part.expression_id().is_some_and(|id| filled.contains(&id) && !own.contains(&id))
        };
        let mut extent = Extent {
            is_filtered_from_outside: template.any(|node| {
                let filter =
                    source::<FileScanConfig>(node).and_then(|scan| scan.file_source.filter());
                Ok(filter.is_some_and(|all| split_conjunction(&all).iter().any(is_foreign)))
            })?,
            ..Extent::default()
        };
        template.each(|node| {
            if node.output_partitioning().partition_count() == 1 {
                extent.build_bytes = extent.build_bytes.max(bytes_below(node)?);
                return Ok(TreeNodeRecursion::Jump);
            }
            extent.bytes = extent.bytes.saturating_add(bytes_of(node));
            extent.is_reduced |= is_reducing(node);
            Ok(TreeNodeRecursion::Continue)
        })?;
        Ok(extent)
    }
}

/// The numbers of the filters that joins of a plan fill while they run.
fn filled_in(plan: &Arc<dyn ExecutionPlan>) -> Result<BTreeSet<u64>> {
    let mut filled = BTreeSet::new();
    plan.each(|node| {
        if node.is::<HashJoinExec>() {
            let filters = node.dynamic_expressions_produced();
            filled.extend(filters.iter().filter_map(|filter| filter.expression_id()));
        } else if let Some(keys) = node.downcast_ref::<KeysExec>() {
            filled.extend(keys.keys().filter.expression_id());
        }
        Ok(TreeNodeRecursion::Continue)
    })?;
    Ok(filled)
}

/// Bytes that all scans of a plan read.
fn bytes_below(plan: &Arc<dyn ExecutionPlan>) -> Result<u64> {
    let mut bytes = 0u64;
    plan.each(|node| {
        bytes = bytes.saturating_add(bytes_of(node)).saturating_add(bytes_in_memory(node));
        Ok(TreeNodeRecursion::Continue)
    })?;
    Ok(bytes)
}

fn source<T: 'static>(node: &Arc<dyn ExecutionPlan>) -> Option<&T> {
    let scan = node.downcast_ref::<DataSourceExec>()?;
    (scan.data_source().as_ref() as &dyn Any).downcast_ref()
}

fn bytes_of(node: &Arc<dyn ExecutionPlan>) -> u64 {
    let Some(scan) = source::<FileScanConfig>(node) else { return 0 };
    let files = scan.file_groups.iter().flat_map(|group| group.files());
    files.map(PartitionedFile::effective_size).fold(0, u64::saturating_add)
}

/// Bytes of rows in memory, which are part of the plan.
fn bytes_in_memory(node: &Arc<dyn ExecutionPlan>) -> u64 {
    let Some(rows) = source::<MemorySourceConfig>(node) else { return 0 };
    rows.partitions().iter().flatten().map(|batch| batch.get_array_memory_size() as u64).sum()
}

/// True for an operator that yields less than it reads.
fn is_reducing(node: &Arc<dyn ExecutionPlan>) -> bool {
    let aggregate = node.downcast_ref::<AggregateExec>();
    let joined = |kind: JoinType| {
        matches!(kind, JoinType::Inner | JoinType::RightSemi | JoinType::RightAnti)
    };
    node.is::<FirstExec>()
        || node.is::<FilterExec>()
        || aggregate.is_some_and(|aggregate| *aggregate.mode() == AggregateMode::Partial)
        || node.downcast_ref::<HashJoinExec>().is_some_and(|join| joined(*join.join_type()))
        || node.downcast_ref::<NestedLoopJoinExec>().is_some_and(|join| joined(*join.join_type()))
}
