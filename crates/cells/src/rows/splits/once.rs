//! Rows that are there already as the input of a plan.

use crate::rows::single::{self, without};
use datafusion::arrow::record_batch::RecordBatch;
use datafusion::common::internal_datafusion_err;
use datafusion::error::Result;
use datafusion::execution::{SendableRecordBatchStream, TaskContext};
use datafusion::physical_plan::stream::RecordBatchStreamAdapter;
use datafusion::physical_plan::{DisplayAs, DisplayFormatType, ExecutionPlan, PlanProperties};
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

impl DisplayAs for OnceExec {
    fn fmt_as(&self, _: DisplayFormatType, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("OnceExec")
    }
}

impl ExecutionPlan for OnceExec {
    fn name(&self) -> &str {
        "OnceExec"
    }

    fn properties(&self) -> &Arc<PlanProperties> {
        &self.properties
    }

    without!(inputs, expressions);

    fn execute(&self, partition: usize, _: Arc<TaskContext>) -> Result<SendableRecordBatchStream> {
        single::check(self.name(), partition)?;
        let rows = self.rows.lock().unwrap_or_else(PoisonError::into_inner).take();
        let rows =
            rows.ok_or_else(|| internal_datafusion_err!("a stream of rows is read twice"))?;
        Ok(Box::pin(RecordBatchStreamAdapter::new(self.schema(), rows)))
    }
}
