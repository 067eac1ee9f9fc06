//! An operator that transforms the rows of each partition.

use crate::rows::single::{over, shown_by_name, usual};
use datafusion::arrow::record_batch::RecordBatch;
use datafusion::error::Result;
use datafusion::execution::{SendableRecordBatchStream, TaskContext};
use datafusion::physical_plan::stream::RecordBatchStreamAdapter;
use datafusion::physical_plan::{ExecutionPlan, PlanProperties};
use futures::StreamExt;
use futures::stream::BoxStream;
use std::fmt;
use std::sync::Arc;

pub(super) type Rows = BoxStream<'static, Result<RecordBatch>>;

/// The transformation of the rows of a partition.
type Through = Arc<dyn Fn(usize, Rows) -> Rows + Send + Sync>;

struct ThroughExec {
    input: Arc<dyn ExecutionPlan>,
    properties: Arc<PlanProperties>,
    rows: Through,
}

/// The input, with the rows of each partition transformed by `rows`. `properties` describe the result.
pub(super) fn through(
    input: Arc<dyn ExecutionPlan>,
    properties: Arc<PlanProperties>,
    rows: impl Fn(usize, Rows) -> Rows + Send + Sync + 'static,
) -> Arc<dyn ExecutionPlan> {
    Arc::new(ThroughExec { input, properties, rows: Arc::new(rows) })
}

impl fmt::Debug for ThroughExec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.input.fmt(f)
    }
}

shown_by_name!(ThroughExec);

impl ExecutionPlan for ThroughExec {
    usual!(name, properties, input, in_order, no_expressions);

    over!(|node, input| ThroughExec {
        input,
        properties: node.properties.clone(),
        rows: node.rows.clone(),
    });

    fn execute(
        &self,
        partition: usize,
        context: Arc<TaskContext>,
    ) -> Result<SendableRecordBatchStream> {
        let rows = self.input.execute(partition, context)?;
        let rows = (self.rows)(partition, rows.boxed());
        Ok(Box::pin(RecordBatchStreamAdapter::new(self.schema(), rows)))
    }
}
