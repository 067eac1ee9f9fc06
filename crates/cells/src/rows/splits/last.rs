//! The last partition of a plan, which ends behind all others.

use datafusion::common::internal_datafusion_err;
use datafusion::common::tree_node::TreeNodeRecursion;
use datafusion::error::Result;
use datafusion::execution::{SendableRecordBatchStream, TaskContext};
use datafusion::physical_expr::PhysicalExpr;
use datafusion::physical_plan::stream::RecordBatchStreamAdapter;
use datafusion::physical_plan::{
    DisplayAs, DisplayFormatType, ExecutionPlan, ExecutionPlanProperties, PlanProperties,
};
use futures::stream::BoxStream;
use futures::{FutureExt, StreamExt};
use std::fmt;
use std::sync::Arc;
use tokio::sync::watch;

/// The partitions before the last one that have not ended.
#[derive(Debug, Clone)]
pub(super) struct Others(watch::Sender<usize>);

impl Others {
    /// Those of so many partitions.
    pub(super) fn of(partitions: usize) -> Self {
        Others(watch::Sender::new(partitions.saturating_sub(1)))
    }

    /// The rows of a partition that is not the last one. It has ended when its stream is dropped.
    pub(super) fn counted<T: Send + 'static>(
        &self,
        rows: BoxStream<'static, T>,
    ) -> BoxStream<'static, T> {
        let end = End(self.0.clone());
        let counted = move |row| {
            let _ = &end;
            row
        };
        rows.map(counted).boxed()
    }

    async fn ended(&self) {
        // The sender is here, so the wait cannot fail.
        let _ = self.0.subscribe().wait_for(|left| *left == 0).await;
    }
}

struct End(watch::Sender<usize>);

impl Drop for End {
    fn drop(&mut self) {
        self.0.send_modify(|left| *left = left.saturating_sub(1));
    }
}

/// The rows of its input; the end of its last partition comes when the others have ended.
#[derive(Debug)]
pub(super) struct LastExec {
    input: Arc<dyn ExecutionPlan>,
    others: Others,
}

impl LastExec {
    pub(super) fn new(input: Arc<dyn ExecutionPlan>, others: Others) -> Self {
        LastExec { input, others }
    }
}

impl DisplayAs for LastExec {
    fn fmt_as(&self, _: DisplayFormatType, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("LastExec")
    }
}

impl ExecutionPlan for LastExec {
    fn name(&self) -> &str {
        "LastExec"
    }

    fn properties(&self) -> &Arc<PlanProperties> {
        self.input.properties()
    }

    fn children(&self) -> Vec<&Arc<dyn ExecutionPlan>> {
        vec![&self.input]
    }

    fn maintains_input_order(&self) -> Vec<bool> {
        vec![true]
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
            .map_err(|all| internal_datafusion_err!("LastExec has {} inputs", all.len()))?;
        Ok(Arc::new(LastExec { input, others: self.others.clone() }))
    }

    fn execute(
        &self,
        partition: usize,
        context: Arc<TaskContext>,
    ) -> Result<SendableRecordBatchStream> {
        let rows = self.input.execute(partition, context)?;
        if partition + 1 < self.input.output_partitioning().partition_count() {
            return Ok(rows);
        }
        let others = self.others.clone();
        let end = async move { others.ended().await }.into_stream();
        let rows = rows.chain(end.filter_map(|()| async { None }));
        Ok(Box::pin(RecordBatchStreamAdapter::new(self.schema(), rows)))
    }
}
