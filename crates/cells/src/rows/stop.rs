//! External cancellation of DataFusion plans.
//!
//! DataFusion checks for cancellation only where a task awaits something, and a plan whose input is ready awaits
//! nothing: an aggregate consumes all batches of another one, and spills between them, in one poll. So each batch that
//! an operator reads passes through a [`Checked`], which ends the stream once the statement is stopped.
//!
//! A nested-loop join compares billions of pairs between two batches. Its condition is evaluated for some thousand
//! pairs at a time, so the check is made there, and the thread's other tasks are moved to other threads.

use super::measured::Counts;
use super::splits::{PartsExec, WindowsExec};
use super::wrapped::wrapped;
use crate::rows::single::{over, shown_by_name, usual};
use crate::stack;
use crate::walk::Walk;
use datafusion::arrow::array::RecordBatch;
use datafusion::common::tree_node::Transformed;
use datafusion::error::{DataFusionError, Result};
use datafusion::execution::{SendableRecordBatchStream, TaskContext};
use datafusion::physical_plan::ExecutionPlan;
use datafusion::physical_plan::execution_plan::{ChildrenPropertiesMode, ReplaceChildrenOptions};
use datafusion::physical_plan::joins::NestedLoopJoinExec;
use datafusion::physical_plan::joins::utils::JoinFilter;
use datafusion::physical_plan::stream::RecordBatchStreamAdapter;
use datafusion::physical_plan::windows::WindowAggExec;
use futures::StreamExt;
use futures::stream::{self, BoxStream};
use std::fmt;
use std::sync::Arc;
use tessera_exec::error::Error;
use tessera_planner::interrupt::{self, interruptible};
use tokio::runtime::{Handle, RuntimeFlavor};

/// Returns true once a statement is cancelled or has exceeded its time limit.
pub type IsStopped = Arc<dyn Fn() -> bool + Send + Sync>;

/// Lets work that takes long between two batches check whether its statement is stopped. Without a condition it never
/// is.
#[derive(Clone, Default)]
pub(super) struct Stop(Option<IsStopped>);

impl fmt::Debug for Stop {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Stop")
    }
}

impl Stop {
    pub(super) fn new(is_stopped: &IsStopped) -> Self {
        Stop(Some(is_stopped.clone()))
    }

    /// Runs work, in which [`go_on`] is an error once the statement is stopped.
    pub(super) fn within<T>(&self, work: impl FnOnce() -> T) -> T {
        match self.0.clone() {
            Some(is_stopped) => interruptible(move || is_stopped(), work),
            None => work(),
        }
    }

    /// The batches of an operator that computes [`within`](Self::within) this.
    pub(super) fn around(
        self,
        mut batches: SendableRecordBatchStream,
    ) -> BoxStream<'static, Result<RecordBatch>> {
        stream::poll_fn(move |context| self.within(|| batches.poll_next_unpin(context))).boxed()
    }
}

/// Checks that the statement of this work was not stopped.
pub(crate) fn go_on() -> Result<()> {
    interrupt::check().map_err(|_| DataFusionError::External(Box::new(Error::Cancelled)))
}

/// Runs blocking work: other threads take over the tasks of this one.
pub fn in_place<T>(work: impl FnOnce() -> T) -> T {
    let flavor = Handle::try_current().map(|runtime| runtime.runtime_flavor());
    let done = match flavor {
        Ok(RuntimeFlavor::MultiThread) => tokio::task::block_in_place(work),
        _ => work(),
    };
    stack::give_back();
    done
}

/// Awaits a future that computes for long between its awaits: other threads take over the tasks of this
/// one, and tasks that the future spawns run on the threads of `spawned`.
pub(super) async fn await_in_place<T>(spawned: &Handle, work: impl Future<Output = T>) -> T {
    let done = match Handle::try_current() {
        Ok(runtime) if runtime.runtime_flavor() == RuntimeFlavor::MultiThread => {
            tokio::task::block_in_place(|| spawned.block_on(work))
        }
        _ => work.await,
    };
    stack::give_back();
    done
}

/// Wraps the plan's operators so that they end with [`Error::Cancelled`] at the next batch, or pairs of a join, after
/// `is_stopped` returns true. A part that computes elsewhere has no inputs yet and remains as it is.
pub(super) fn stoppable(
    plan: Arc<dyn ExecutionPlan>,
    is_stopped: &IsStopped,
) -> Result<Arc<dyn ExecutionPlan>> {
    with_edges(plan, &|input| checked(input, is_stopped), is_stopped)
}

/// As [`stoppable`], with [`Counts`] for each operator.
pub(super) fn measurable(
    plan: Arc<dyn ExecutionPlan>,
    is_stopped: &IsStopped,
) -> Result<Arc<dyn ExecutionPlan>> {
    let edge = |input| -> Arc<dyn ExecutionPlan> {
        let (is_stopped, counts) = (is_stopped.clone(), Some(Arc::default()));
        Arc::new(Checked { input, is_stopped, counts })
    };
    with_edges(plan, &edge, is_stopped).map(edge)
}

/// The plan, with `edge` between its operators.
fn with_edges(
    plan: Arc<dyn ExecutionPlan>,
    edge: &dyn Fn(Arc<dyn ExecutionPlan>) -> Arc<dyn ExecutionPlan>,
    is_stopped: &IsStopped,
) -> Result<Arc<dyn ExecutionPlan>> {
    plan.map_up(|node| {
        let children: Vec<_> = node.children().into_iter().cloned().map(edge).collect();
        if children.is_empty() {
            return Ok(Transformed::no(node));
        }
        let options = ReplaceChildrenOptions::new(ChildrenPropertiesMode::Recompute);
        let node = node.replace_children(children, options)?;
        if let Some(windows) = node.downcast_ref::<WindowsExec>() {
            let windows: Arc<dyn ExecutionPlan> = Arc::new(windows.stoppable(is_stopped));
            return Ok(Transformed::yes(windows));
        }
        if let Some(parts) =
            node.downcast_ref::<PartsExec>().and_then(|parts| parts.stoppable(is_stopped))
        {
            return Ok(Transformed::yes(Arc::new(parts) as Arc<dyn ExecutionPlan>));
        }
        let Some(join) = node.downcast_ref::<NestedLoopJoinExec>() else {
            return Ok(Transformed::yes(node));
        };
        let Some(filter) = join.filter() else { return Ok(Transformed::yes(node)) };
        let is_stopped = is_stopped.clone();
        let condition = wrapped(filter.expression().clone(), move |condition, pairs| {
            if is_stopped() {
                return Err(DataFusionError::External(Box::new(Error::Cancelled)));
            }
            in_place(|| condition.evaluate(pairs))
        });
        let filter =
            JoinFilter::new(condition, filter.column_indices().to_vec(), filter.schema().clone());
        let (left, right) = (join.left().clone(), join.right().clone());
        let projection = join.projection().as_ref().map(|columns| columns.to_vec());
        let join =
            NestedLoopJoinExec::try_new(left, right, Some(filter), join.join_type(), projection)?;
        Ok(Transformed::yes(Arc::new(join) as Arc<dyn ExecutionPlan>))
    })
    .map(|t| t.data)
}

/// A plan whose stream ends with [`Error::Cancelled`] at the next batch after `is_stopped` returns true.
pub(super) fn checked(
    input: Arc<dyn ExecutionPlan>,
    is_stopped: &IsStopped,
) -> Arc<dyn ExecutionPlan> {
    Arc::new(Checked { input, is_stopped: is_stopped.clone(), counts: None })
}

/// The operator itself, where it is wrapped by [`stoppable`].
pub(super) fn unchecked(node: &Arc<dyn ExecutionPlan>) -> &Arc<dyn ExecutionPlan> {
    match node.downcast_ref::<Checked>() {
        Some(checked) => &checked.input,
        None => node,
    }
}

/// The counts of an operator that is wrapped by [`measurable`].
pub(super) fn counts(node: &Arc<dyn ExecutionPlan>) -> Option<&Arc<Counts>> {
    node.downcast_ref::<Checked>().and_then(|checked| checked.counts.as_ref())
}

/// The input of an operator, whose stream ends once the statement is stopped.
struct Checked {
    input: Arc<dyn ExecutionPlan>,
    is_stopped: IsStopped,
    /// The counts of `input`, if it is measured.
    counts: Option<Arc<Counts>>,
}

impl fmt::Debug for Checked {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.input.fmt(f)
    }
}

shown_by_name!(Checked);

impl ExecutionPlan for Checked {
    // Some operators ask for the number of rows when they run.
    usual!(name, properties of input, input, in_order, statistics_of_input, no_expressions);

    fn benefits_from_input_partitioning(&self) -> Vec<bool> {
        vec![false]
    }

    over!(|node, input| Checked {
        input,
        is_stopped: node.is_stopped.clone(),
        counts: node.counts.clone(),
    });

    fn execute(
        &self,
        partition: usize,
        context: Arc<TaskContext>,
    ) -> Result<SendableRecordBatchStream> {
        let begin = || self.input.execute(partition, context);
        let batches = match &self.counts {
            Some(counts) => counts.within(begin)?,
            None => begin()?,
        };
        let (schema, is_stopped) = (batches.schema(), self.is_stopped.clone());
        let batches = match self.input.is::<WindowAggExec>() {
            true => Stop::new(&is_stopped).around(batches),
            false => batches.boxed(),
        };
        let checked = batches.map(move |batch| match is_stopped() {
            true => Err(DataFusionError::External(Box::new(Error::Cancelled))),
            false => batch,
        });
        let Some(counts) = self.counts.clone() else {
            return Ok(Box::pin(RecordBatchStreamAdapter::new(schema, checked)));
        };
        let counted = counts.counted(checked.boxed());
        Ok(Box::pin(RecordBatchStreamAdapter::new(schema, counted)))
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]
    use super::*;
    use datafusion::arrow::array::{ArrayRef, Int64Array};
    use datafusion::common::stats::Precision;
    use datafusion::datasource::memory::MemorySourceConfig;
    use datafusion::physical_plan::statistics::{StatisticsArgs, StatisticsContext};

    #[test]
    fn the_number_of_rows_of_a_checked_operator_is_known() {
        let numbers: ArrayRef = Arc::new(Int64Array::from(vec![3, 1, 2]));
        let rows = RecordBatch::try_from_iter([("n", numbers)]).unwrap();
        let schema = rows.schema();
        let scan = MemorySourceConfig::try_new_exec(&[vec![rows]], schema, None).unwrap();
        let is_stopped: IsStopped = Arc::new(|| false);
        let plan = checked(checked(scan, &is_stopped), &is_stopped);
        let known = StatisticsContext::new().compute(plan.as_ref(), &StatisticsArgs::new());
        assert_eq!(known.unwrap().num_rows, Precision::Exact(3));
    }
}
