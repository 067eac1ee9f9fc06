//! Batches of one number of rows.
//!
//! Sums of floats without groups, and sketches, depend on the ends of batches. Our sorts and windows end them at the same
//! rows in each run ([`super::even`]); those of DataFusion's sort depend on memory, and on whether rows went to files.

use super::gather::exactly;
use super::grace::JoinRules;
use crate::rows::single::{self, over, shown_by_name, usual};
use crate::walk::Walk;
use datafusion::error::Result;
use datafusion::execution::{SendableRecordBatchStream, TaskContext};
use datafusion::physical_plan::sorts::sort::SortExec;
use datafusion::physical_plan::stream::RecordBatchStreamAdapter;
use datafusion::physical_plan::{ExecutionPlan, ExecutionPlanProperties};
use futures::StreamExt;
use std::sync::Arc;

/// The plan, whose sorts yield batches that end at the same rows in each run, if bits depend on that.
pub(in crate::rows) fn with_exact_sorts(
    plan: Arc<dyn ExecutionPlan>,
    rules: JoinRules,
) -> Result<Arc<dyn ExecutionPlan>> {
    if !rules.is_exact {
        return Ok(plan);
    }
    plan.replace_up(|node| {
        let is_whole = node.output_partitioning().partition_count() == 1;
        if !is_whole || !node.is::<SortExec>() {
            return Ok(None);
        }
        Ok(Some(Arc::new(ExactExec { input: node.clone() })))
    })
}

/// The rows of its input in batches of exactly the usual number, and a last one of fewer.
#[derive(Debug)]
struct ExactExec {
    input: Arc<dyn ExecutionPlan>,
}

shown_by_name!(ExactExec);

impl ExecutionPlan for ExactExec {
    usual!(name, properties of input, input, in_order, no_expressions);

    over!(|_, input| ExactExec { input });

    fn execute(
        &self,
        partition: usize,
        context: Arc<TaskContext>,
    ) -> Result<SendableRecordBatchStream> {
        single::check(self.name(), partition)?;
        let batch_rows = context.session_config().batch_size().max(1);
        let rows = self.input.execute(partition, context)?.boxed();
        let rows = exactly(rows, self.schema(), batch_rows);
        Ok(Box::pin(RecordBatchStreamAdapter::new(self.schema(), rows)))
    }
}
