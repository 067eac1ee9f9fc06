//! `ORDER BY … LIMIT` of each split.
//!
//! DataFusion's top-k operator drops rows of one partition that are behind those of another, so ties would depend on
//! which of them ran first. Here each split has an operator of its own.

use crate::rows::single::{over, usual};
use datafusion::arrow::datatypes::SchemaRef;
use datafusion::error::Result;
use datafusion::execution::{SendableRecordBatchStream, TaskContext};
use datafusion::physical_plan::execution_plan::{Boundedness, EmissionType};
use datafusion::physical_plan::sorts::sort::SortExec;
use datafusion::physical_plan::stream::RecordBatchStreamAdapter;
use datafusion::physical_plan::streaming::{PartitionStream, StreamingTableExec};
use datafusion::physical_plan::{
    DisplayAs, DisplayFormatType, ExecutionPlan, ExecutionPlanProperties, PlanProperties,
};
use futures::{TryStreamExt, stream};
use std::fmt;
use std::sync::Arc;

/// The first rows of each partition of its input.
#[derive(Debug)]
pub(in crate::rows) struct FirstExec {
    /// The sort, with all splits as its input.
    sort: SortExec,
    properties: Arc<PlanProperties>,
}

impl FirstExec {
    pub(in crate::rows) fn new(sort: SortExec) -> Self {
        // Each split is sorted, all of them one after the other are not.
        let mut known = sort.input().equivalence_properties().clone();
        known.clear_orderings();
        let properties = PlanProperties::new(
            known,
            sort.input().output_partitioning().clone(),
            EmissionType::Final,
            Boundedness::Bounded,
        );
        FirstExec { sort, properties: Arc::new(properties) }
    }

    /// The sort of each partition, with all of them as its input.
    pub(in crate::rows) fn sort(&self) -> &SortExec {
        &self.sort
    }
}

impl DisplayAs for FirstExec {
    fn fmt_as(&self, format: DisplayFormatType, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("FirstExec: ")?;
        self.sort.fmt_as(format, f)
    }
}

impl ExecutionPlan for FirstExec {
    usual!(name, properties, children of sort, expressions of sort);

    over!(|FirstExec { sort, .. }, input| FirstExec::new(
        SortExec::new(sort.expr().clone(), input).with_fetch(sort.fetch())
    ));

    fn execute(
        &self,
        partition: usize,
        context: Arc<TaskContext>,
    ) -> Result<SendableRecordBatchStream> {
        let split = Split { input: self.sort.input().clone(), partition, schema: self.schema() };
        let one: Vec<Arc<dyn PartitionStream>> = vec![Arc::new(split)];
        let one = StreamingTableExec::try_new(self.schema(), one, None, [], false, None)?;
        let sort = SortExec::new(self.sort.expr().clone(), Arc::new(one));
        sort.with_fetch(self.sort.fetch()).execute(0, context)
    }
}

#[derive(Debug)]
struct Split {
    input: Arc<dyn ExecutionPlan>,
    partition: usize,
    schema: SchemaRef,
}

impl PartitionStream for Split {
    fn schema(&self) -> &SchemaRef {
        &self.schema
    }

    fn execute(&self, context: Arc<TaskContext>) -> SendableRecordBatchStream {
        let (input, partition) = (self.input.clone(), self.partition);
        let rows = stream::once(async move { input.execute(partition, context) }).try_flatten();
        Box::pin(RecordBatchStreamAdapter::new(self.schema.clone(), rows))
    }
}
