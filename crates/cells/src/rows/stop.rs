//! Plans of DataFusion that are stopped from outside.
//!
//! DataFusion looks for a cancel where a task awaits something, and a plan whose input is ready awaits nothing: an
//! aggregate takes all batches of another one, and spills between them, in one poll. So each batch that an operator reads
//! goes through a [`Checked`], which ends the stream once the statement is stopped.
//!
//! A join that compares every row with every row looks at billions of pairs between two batches. Its condition is
//! evaluated for some thousand pairs at a time, so the check is there, and the thread's other work is handed to others.

use crate::stack;
use datafusion::arrow::datatypes::{DataType, FieldRef, Schema};
use datafusion::arrow::record_batch::RecordBatch;
use datafusion::common::tree_node::{Transformed, TreeNode, TreeNodeRecursion};
use datafusion::error::{DataFusionError, Result};
use datafusion::execution::{SendableRecordBatchStream, TaskContext};
use datafusion::logical_expr::ColumnarValue;
use datafusion::physical_expr::PhysicalExpr;
use datafusion::physical_plan::execution_plan::{ChildrenPropertiesMode, ReplaceChildrenOptions};
use datafusion::physical_plan::joins::NestedLoopJoinExec;
use datafusion::physical_plan::joins::utils::JoinFilter;
use datafusion::physical_plan::stream::RecordBatchStreamAdapter;
use datafusion::physical_plan::{DisplayAs, DisplayFormatType, ExecutionPlan, PlanProperties};
use futures::StreamExt;
use std::fmt;
use std::hash::{Hash, Hasher};
use std::sync::Arc;
use tessera_exec::error::Error;
use tokio::runtime::{Handle, RuntimeFlavor};

/// Says that a statement was cancelled, or has taken its time.
pub type IsStopped = Arc<dyn Fn() -> bool + Send + Sync>;

/// Runs what takes a thread for as long as it likes: other threads take over what this one served beside.
pub fn in_place<T>(work: impl FnOnce() -> T) -> T {
    let flavor = Handle::try_current().map(|runtime| runtime.runtime_flavor());
    let done = match flavor {
        Ok(RuntimeFlavor::MultiThread) => tokio::task::block_in_place(work),
        _ => work(),
    };
    stack::give_back();
    done
}

/// Waits for what computes between its awaits for as long as it likes: other threads take over what this one served
/// beside, and tasks that it spawns run on the threads of `spawned`.
pub async fn await_in_place<T>(spawned: &Handle, work: impl Future<Output = T>) -> T {
    let done = match Handle::try_current() {
        Ok(runtime) if runtime.runtime_flavor() == RuntimeFlavor::MultiThread => {
            tokio::task::block_in_place(|| spawned.block_on(work))
        }
        _ => work.await,
    };
    stack::give_back();
    done
}

/// The plan, whose operators end with [`Error::Cancelled`] at the next batch, or pairs of a join, after `is_stopped` is
/// true.
///
/// # Errors
/// DataFusion's.
pub fn stoppable(
    plan: Arc<dyn ExecutionPlan>,
    is_stopped: &IsStopped,
) -> Result<Arc<dyn ExecutionPlan>> {
    plan.transform_up(|node| {
        let checked = |child: &Arc<dyn ExecutionPlan>| {
            let (child, is_stopped) = (child.clone(), is_stopped.clone());
            Arc::new(Checked { child, is_stopped }) as Arc<dyn ExecutionPlan>
        };
        let children: Vec<_> = node.children().into_iter().map(checked).collect();
        if children.is_empty() {
            return Ok(Transformed::no(node));
        }
        let options = ReplaceChildrenOptions::new(ChildrenPropertiesMode::Recompute);
        let node = node.replace_children(children, options)?;
        let Some(join) = node.downcast_ref::<NestedLoopJoinExec>() else {
            return Ok(Transformed::yes(node));
        };
        let Some(filter) = join.filter() else { return Ok(Transformed::yes(node)) };
        let condition =
            Stoppable { inner: filter.expression().clone(), is_stopped: is_stopped.clone() };
        let filter = JoinFilter::new(
            Arc::new(condition),
            filter.column_indices().to_vec(),
            filter.schema().clone(),
        );
        let (left, right) = (join.left().clone(), join.right().clone());
        let projection = join.projection().as_ref().map(|columns| columns.to_vec());
        let join =
            NestedLoopJoinExec::try_new(left, right, Some(filter), join.join_type(), projection)?;
        Ok(Transformed::yes(Arc::new(join) as Arc<dyn ExecutionPlan>))
    })
    .map(|t| t.data)
}

/// The input of an operator, whose batches end once the statement is stopped.
struct Checked {
    child: Arc<dyn ExecutionPlan>,
    is_stopped: IsStopped,
}

impl fmt::Debug for Checked {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.child.fmt(f)
    }
}

impl DisplayAs for Checked {
    fn fmt_as(&self, _: DisplayFormatType, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Checked")
    }
}

impl ExecutionPlan for Checked {
    fn name(&self) -> &str {
        "Checked"
    }

    fn properties(&self) -> &Arc<PlanProperties> {
        self.child.properties()
    }

    fn children(&self) -> Vec<&Arc<dyn ExecutionPlan>> {
        vec![&self.child]
    }

    fn maintains_input_order(&self) -> Vec<bool> {
        vec![true]
    }

    fn benefits_from_input_partitioning(&self) -> Vec<bool> {
        vec![false]
    }

    fn apply_expressions(
        &self,
        _: &mut dyn FnMut(&Arc<dyn PhysicalExpr>) -> Result<TreeNodeRecursion>,
    ) -> Result<TreeNodeRecursion> {
        Ok(TreeNodeRecursion::Continue)
    }

    fn replace_children(
        self: Arc<Self>,
        children: Vec<Arc<dyn ExecutionPlan>>,
        _: ReplaceChildrenOptions,
    ) -> Result<Arc<dyn ExecutionPlan>> {
        let child = children.into_iter().next().unwrap_or_else(|| self.child.clone());
        Ok(Arc::new(Checked { child, is_stopped: self.is_stopped.clone() }))
    }

    fn with_new_children(
        self: Arc<Self>,
        children: Vec<Arc<dyn ExecutionPlan>>,
    ) -> Result<Arc<dyn ExecutionPlan>> {
        let options = ReplaceChildrenOptions::new(ChildrenPropertiesMode::Recompute);
        self.replace_children(children, options)
    }

    fn execute(
        &self,
        partition: usize,
        context: Arc<TaskContext>,
    ) -> Result<SendableRecordBatchStream> {
        let (batches, is_stopped) =
            (self.child.execute(partition, context)?, self.is_stopped.clone());
        let schema = batches.schema();
        let checked = batches.map(move |batch| match is_stopped() {
            true => Err(DataFusionError::External(Box::new(Error::Cancelled))),
            false => batch,
        });
        Ok(Box::pin(RecordBatchStreamAdapter::new(schema, checked)))
    }
}

/// A condition that is not evaluated once the statement is stopped.
struct Stoppable {
    inner: Arc<dyn PhysicalExpr>,
    is_stopped: IsStopped,
}

impl fmt::Debug for Stoppable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.inner.fmt(f)
    }
}

impl fmt::Display for Stoppable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.inner.fmt(f)
    }
}

impl PartialEq for Stoppable {
    fn eq(&self, other: &Self) -> bool {
        self.inner.eq(&other.inner)
    }
}

impl Eq for Stoppable {}

impl Hash for Stoppable {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.inner.hash(state);
    }
}

impl PhysicalExpr for Stoppable {
    fn data_type(&self, schema: &Schema) -> Result<DataType> {
        self.inner.data_type(schema)
    }

    fn nullable(&self, schema: &Schema) -> Result<bool> {
        self.inner.nullable(schema)
    }

    fn return_field(&self, schema: &Schema) -> Result<FieldRef> {
        self.inner.return_field(schema)
    }

    fn evaluate(&self, batch: &RecordBatch) -> Result<ColumnarValue> {
        if (self.is_stopped)() {
            return Err(DataFusionError::External(Box::new(Error::Cancelled)));
        }
        in_place(|| self.inner.evaluate(batch))
    }

    fn children(&self) -> Vec<&Arc<dyn PhysicalExpr>> {
        vec![&self.inner]
    }

    fn with_new_children(
        self: Arc<Self>,
        children: Vec<Arc<dyn PhysicalExpr>>,
    ) -> Result<Arc<dyn PhysicalExpr>> {
        let inner = children.into_iter().next().unwrap_or_else(|| self.inner.clone());
        Ok(Arc::new(Stoppable { inner, is_stopped: self.is_stopped.clone() }))
    }

    fn fmt_sql(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.inner.fmt_sql(f)
    }
}
