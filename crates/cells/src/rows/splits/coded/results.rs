//! The results of groups, merged from the states of all splits.
//!
//! Groups are found as those of a split are, and have the order in which they arrive. If they do not fit into memory,
//! DataFusion merges the states of these groups with all that follow, in files.

use super::super::aggregate_over;
use super::super::groups::{evaluated, keys};
use super::super::once::OnceExec;
use super::numbers::Numbers;
use super::{slices, types};
use crate::rows::single::properties;
use datafusion::arrow::array::ArrayRef;
use datafusion::arrow::datatypes::SchemaRef;
use datafusion::arrow::record_batch::RecordBatch;
use datafusion::common::internal_err;
use datafusion::error::Result;
use datafusion::execution::memory_pool::{MemoryConsumer, MemoryReservation};
use datafusion::execution::{SendableRecordBatchStream, TaskContext};
use datafusion::logical_expr::{EmitTo, GroupsAccumulator};
use datafusion::physical_expr::PhysicalExpr;
use datafusion::physical_plan::ExecutionPlan;
use datafusion::physical_plan::aggregates::AggregateExec;
use datafusion::physical_plan::stream::RecordBatchStreamAdapter;
use futures::stream::BoxStream;
use futures::{StreamExt, TryStreamExt, stream};
use std::sync::Arc;

/// The results of an aggregate whose input has states.
pub(super) fn execute(
    aggregate: &AggregateExec,
    partition: usize,
    context: &Arc<TaskContext>,
) -> Result<SendableRecordBatchStream> {
    let input = aggregate.input().execute(partition, context.clone())?;
    let (schema, table) = (aggregate.schema(), Table::new(aggregate, context)?);
    let results = results(table, input, aggregate.clone(), context.clone());
    let results = stream::once(results).try_flatten();
    Ok(Box::pin(RecordBatchStreamAdapter::new(schema, results)))
}

async fn results(
    mut table: Table,
    mut input: SendableRecordBatchStream,
    aggregate: AggregateExec,
    context: Arc<TaskContext>,
) -> Result<BoxStream<'static, Result<RecordBatch>>> {
    let batch_rows = context.session_config().batch_size().max(1);
    while let Some(batch) = input.try_next().await? {
        table.merge(&batch)?;
        if !table.fits() {
            let states = slices(&table.states(input.schema())?, batch_rows);
            let properties = properties(input.schema());
            let rows = stream::iter(states.map(Ok)).chain(input).boxed();
            let rows = Arc::new(OnceExec::new(properties, rows));
            return Ok(aggregate_over(&aggregate, rows)?.execute(0, context)?.boxed());
        }
    }
    let results = table.results(aggregate.schema())?;
    Ok(stream::iter(slices(&results, batch_rows).map(Ok)).boxed())
}

/// The states of a call, and the number of their columns.
struct Call {
    states: Box<dyn GroupsAccumulator>,
    columns: usize,
}

/// Groups and the states of their calls.
struct Table {
    keys: Vec<Arc<dyn PhysicalExpr>>,
    numbers: Numbers,
    calls: Vec<Call>,
    /// The group of each row of a batch.
    groups: Vec<usize>,
    memory: MemoryReservation,
}

impl Table {
    fn new(aggregate: &AggregateExec, context: &Arc<TaskContext>) -> Result<Self> {
        let calls = aggregate.aggr_expr().iter().map(|call| {
            let columns = call.state_fields()?.len();
            Ok(Call { states: call.create_groups_accumulator()?, columns })
        });
        Ok(Table {
            keys: keys(aggregate),
            numbers: Numbers::new(&types(aggregate)?),
            calls: calls.collect::<Result<_>>()?,
            groups: Vec::new(),
            memory: MemoryConsumer::new("merged groups").register(context.memory_pool()),
        })
    }

    /// Merges states, whose columns follow those of the keys.
    fn merge(&mut self, batch: &RecordBatch) -> Result<()> {
        self.numbers.number(&evaluated(&self.keys, batch)?, &mut self.groups)?;
        let mut rest = &batch.columns()[self.keys.len()..];
        for Call { states, columns } in &mut self.calls {
            let Some((own, others)) = rest.split_at_checked(*columns) else {
                return internal_err!("the states of groups have {} columns", batch.num_columns());
            };
            states.merge_batch(own, &self.groups, self.numbers.len())?;
            rest = others;
        }
        Ok(())
    }

    /// Charges the held memory; false if the memory limit refuses it.
    fn fits(&mut self) -> bool {
        let states: usize = self.calls.iter().map(|call| call.states.size()).sum();
        let groups = self.groups.capacity() * size_of::<usize>();
        self.memory.try_resize(states + groups + self.numbers.size()).is_ok()
    }

    /// Removes and returns the states of all groups.
    fn states(&mut self, schema: SchemaRef) -> Result<RecordBatch> {
        self.taken(schema, |states| states.state(EmitTo::All))
    }

    /// Removes and returns the results of all groups.
    fn results(&mut self, schema: SchemaRef) -> Result<RecordBatch> {
        self.taken(schema, |states| Ok(vec![states.evaluate(EmitTo::All)?]))
    }

    fn taken(
        &mut self,
        schema: SchemaRef,
        of: impl Fn(&mut dyn GroupsAccumulator) -> Result<Vec<ArrayRef>>,
    ) -> Result<RecordBatch> {
        if self.numbers.len() == 0 {
            return Ok(RecordBatch::new_empty(schema));
        }
        let mut columns = self.numbers.take()?;
        for call in &mut self.calls {
            columns.extend(of(call.states.as_mut())?);
        }
        self.groups = Vec::new();
        self.memory.free();
        Ok(RecordBatch::try_new(schema, columns)?)
    }
}

#[cfg(test)]
mod tests;
