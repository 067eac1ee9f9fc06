//! Available rows as the input of a plan.

use crate::rows::single::{self, shown_by_name, usual};
use datafusion::arrow::record_batch::RecordBatch;
use datafusion::common::internal_datafusion_err;
use datafusion::error::Result;
use datafusion::execution::{SendableRecordBatchStream, TaskContext};
use datafusion::physical_plan::coop::make_cooperative;
use datafusion::physical_plan::stream::RecordBatchStreamAdapter;
use datafusion::physical_plan::{ExecutionPlan, PlanProperties};
use futures::stream::BoxStream;
use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};

/// One partition with the rows of a stream, which can be read once.
pub(super) struct OnceExec {
    properties: Arc<PlanProperties>,
    rows: Mutex<Option<BoxStream<'static, Result<RecordBatch>>>>,
}

impl OnceExec {
    /// Rows with these properties.
    pub(super) fn new(
        properties: Arc<PlanProperties>,
        rows: BoxStream<'static, Result<RecordBatch>>,
    ) -> Self {
        OnceExec { properties, rows: Mutex::new(Some(rows)) }
    }
}

impl fmt::Debug for OnceExec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("OnceExec")
    }
}

shown_by_name!(OnceExec);

impl ExecutionPlan for OnceExec {
    usual!(name, properties, no_inputs, no_expressions);

    fn execute(&self, partition: usize, _: Arc<TaskContext>) -> Result<SendableRecordBatchStream> {
        single::check(self.name(), partition)?;
        let rows = self.rows.lock().unwrap_or_else(PoisonError::into_inner).take();
        let rows =
            rows.ok_or_else(|| internal_datafusion_err!("a stream of rows is read twice"))?;
        // An operator that never has to wait for a row would not end when its task is aborted.
        Ok(make_cooperative(Box::pin(RecordBatchStreamAdapter::new(self.schema(), rows))))
    }
}
