//! The groups of a split, found by numbers of the values of their keys.
//!
//! ```text
//! keys of the rows   k1 = b, a, b, b    k2 = 2020, 2020, 2021, 2020
//! their numbers           0  1  0  0            0     0     1     0
//! groups                  0  1  2  0     with the keys (0, 0), (1, 0), (0, 1)
//! ```
//! Where many rows share few groups, their keys have few values. A value is found in a table that fits into the cache, and
//! so are the tuples of the numbers of several keys; DataFusion hashes and compares all keys of each row. States and bits
//! are those of DataFusion's partial aggregate. Groups have the order of their first rows; DataFusion's may differ where
//! two groups have one hash, so workers find groups in this way, too.
//!
//! Groups of several sets of keys ([`sets`]) are found in this way however many they are: rows are aggregated in the finest
//! sets alone, and the states of coarser sets are merged from theirs at the end. So sums of floats there have another order
//! than DataFusion's, which aggregates the rows in each set.
//!
//! The groups of all splits are merged in the same way ([`results`]), as long as they fit into memory.

mod firsts;
mod numbers;
mod results;
mod sets;
mod tuples;

use super::aggregate_over;
use super::dictionaries::with_keys_as_read;
use super::groups::{evaluated, keys};
use crate::rows::single::{only_input, usual};
use crate::walk::Walk;
use datafusion::arrow::array::{Array, ArrayRef, AsArray, BooleanArray, new_null_array};
use datafusion::arrow::datatypes::DataType;
use datafusion::arrow::record_batch::RecordBatch;
use datafusion::error::{DataFusionError, Result};
use datafusion::execution::memory_pool::{MemoryConsumer, MemoryReservation};
use datafusion::execution::{SendableRecordBatchStream, TaskContext};
use datafusion::logical_expr::{EmitTo, GroupsAccumulator};
use datafusion::physical_expr::PhysicalExpr;
use datafusion::physical_plan::aggregates::{AggregateExec, AggregateMode};
use datafusion::physical_plan::stream::RecordBatchStreamAdapter;
use datafusion::physical_plan::{DisplayAs, DisplayFormatType, ExecutionPlan, InputOrderMode};
use futures::{TryStreamExt, stream};
use numbers::Numbers;
use sets::Sets;
use std::fmt;
use std::sync::Arc;

/// A partial aggregate of few groups, or of several sets of keys, or the aggregate that merges the groups of splits.
#[derive(Debug)]
pub(super) struct CodedExec {
    aggregate: AggregateExec,
}

impl CodedExec {
    /// `None` if the types of the keys or the states of the calls are not supported.
    pub(super) fn of(aggregate: &AggregateExec) -> Result<Option<Self>> {
        let types = types(aggregate)?;
        let has_states =
            aggregate.aggr_expr().iter().all(|call| call.groups_accumulator_supported());
        let has_keys =
            Numbers::has(&types) && Sets::has(types.len(), aggregate.group_expr().groups());
        Ok((has_states && has_keys).then(|| CodedExec { aggregate: aggregate.clone() }))
    }

    pub(super) fn aggregate(&self) -> &AggregateExec {
        &self.aggregate
    }
}

/// The plan, whose aggregates of splits with keys find their groups by numbers, and so do those that merge them.
pub(in crate::rows) fn with_coded_groups(
    plan: Arc<dyn ExecutionPlan>,
) -> Result<Arc<dyn ExecutionPlan>> {
    plan.replace_up(coded)
}

/// An aggregate that finds its groups by numbers; `None` for other operators.
pub(super) fn coded(node: &Arc<dyn ExecutionPlan>) -> Result<Option<Arc<dyn ExecutionPlan>>> {
    let aggregate = node.downcast_ref::<AggregateExec>();
    let aggregate = aggregate.filter(|aggregate| {
        has_partial_groups(aggregate) || has_groups(aggregate, AggregateMode::Final)
    });
    let coded = aggregate.map(CodedExec::of).transpose()?.flatten();
    Ok(coded.map(|coded| Arc::new(coded) as Arc<dyn ExecutionPlan>))
}

/// True for a partial aggregate with keys whose groups follow from all of its rows.
pub(super) fn has_partial_groups(aggregate: &AggregateExec) -> bool {
    has_groups(aggregate, AggregateMode::Partial)
}

fn has_groups(aggregate: &AggregateExec, mode: AggregateMode) -> bool {
    *aggregate.mode() == mode
        && !aggregate.group_expr().is_true_no_grouping()
        && aggregate.limit_options().is_none()
        && *aggregate.input_order_mode() == InputOrderMode::Linear
}

fn types(aggregate: &AggregateExec) -> Result<Vec<DataType>> {
    let schema = aggregate.input().schema();
    keys(aggregate).iter().map(|key| key.data_type(&schema)).collect()
}

impl DisplayAs for CodedExec {
    fn fmt_as(&self, format: DisplayFormatType, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("CodedExec: ")?;
        self.aggregate.fmt_as(format, f)
    }
}

impl ExecutionPlan for CodedExec {
    usual!(name, properties of aggregate, children of aggregate, expressions of aggregate);

    fn with_new_children(
        self: Arc<Self>,
        children: Vec<Arc<dyn ExecutionPlan>>,
    ) -> Result<Arc<dyn ExecutionPlan>> {
        let input = only_input(self.name(), children)?;
        Ok(Arc::new(CodedExec { aggregate: aggregate_over(&self.aggregate, input)? }))
    }

    fn execute(
        &self,
        partition: usize,
        context: Arc<TaskContext>,
    ) -> Result<SendableRecordBatchStream> {
        if *self.aggregate.mode() == AggregateMode::Final {
            return results::execute(&self.aggregate, partition, &context);
        }
        let input = with_keys_as_read(&self.aggregate)?.execute(partition, context.clone())?;
        let batch_rows = context.session_config().batch_size().max(1);
        let table = Table::new(&self.aggregate, &context)?;
        let states = stream::try_unfold(Some((input, table)), move |state| async move {
            let Some((mut input, mut table)) = state else { return Ok(None) };
            while let Some(batch) = input.try_next().await? {
                table.update(&batch)?;
                if !table.fits() {
                    return Ok(Some((table.take()?, Some((input, table)))));
                }
            }
            table.finish()?;
            Ok::<_, DataFusionError>(Some((table.take()?, None)))
        });
        let batches = states
            .map_ok(move |batch| stream::iter(slices(&batch, batch_rows).map(Ok)))
            .try_flatten();
        Ok(Box::pin(RecordBatchStreamAdapter::new(self.schema(), batches)))
    }
}

/// A batch in pieces of `rows` rows; none if it is empty.
fn slices(batch: &RecordBatch, rows: usize) -> impl Iterator<Item = RecordBatch> + use<> {
    let batch = batch.clone();
    (0..batch.num_rows())
        .step_by(rows)
        .map(move |start| batch.slice(start, rows.min(batch.num_rows() - start)))
}

struct Call {
    /// The arguments, and behind them the keys of its order.
    arguments: Vec<Arc<dyn PhysicalExpr>>,
    filter: Option<Arc<dyn PhysicalExpr>>,
    states: Box<dyn GroupsAccumulator>,
}

impl Call {
    /// The arguments and the filter for the rows of a batch; `None` if it holds for all.
    fn values(&self, batch: &RecordBatch) -> Result<(Vec<ArrayRef>, Option<ArrayRef>)> {
        let filter = self.filter.as_ref();
        let filter = filter.map(|filter| filter.evaluate(batch)?.into_array(batch.num_rows()));
        let filter = filter.transpose()?;
        let filter = filter.filter(|holds| holds.as_boolean().true_count() < holds.len());
        Ok((evaluated(&self.arguments, batch)?, filter))
    }
}

/// Groups and the states of their calls.
struct Table {
    aggregate: AggregateExec,
    key_exprs: Vec<Arc<dyn PhysicalExpr>>,
    keys: Sets,
    calls: Vec<Call>,
    /// The group of each row of a batch in one set.
    groups: Vec<usize>,
    memory: MemoryReservation,
}

impl Table {
    fn new(aggregate: &AggregateExec, context: &Arc<TaskContext>) -> Result<Self> {
        let (calls, input) = (aggregate.aggr_expr(), aggregate.input().schema());
        let calls = calls.iter().zip(aggregate.filter_expr()).map(|(call, filter)| {
            let order = call.order_bys().iter().map(|key| key.expr.clone());
            Ok(Call {
                arguments: call.expressions().into_iter().chain(order).collect(),
                filter: filter.clone(),
                states: match firsts::accumulator(call, &input)? {
                    Some(states) => states,
                    None => call.create_groups_accumulator()?,
                },
            })
        });
        let (by, types, schema) = (aggregate.group_expr(), types(aggregate)?, aggregate.schema());
        let id = by.has_grouping_set().then(|| schema.field(types.len()).data_type().clone());
        Ok(Table {
            aggregate: aggregate.clone(),
            key_exprs: keys(aggregate),
            keys: Sets::new(types, by.groups(), id),
            calls: calls.collect::<Result<_>>()?,
            groups: Vec::new(),
            memory: MemoryConsumer::new("groups").register(context.memory_pool()),
        })
    }

    fn update(&mut self, batch: &RecordBatch) -> Result<()> {
        self.keys.number(&evaluated(&self.key_exprs, batch)?)?;
        let values = self.calls.iter().map(|call| call.values(batch));
        let values = values.collect::<Result<Vec<_>>>()?;
        for set in 0..self.keys.count() {
            self.keys.add(set)?;
            if !self.keys.has_rows(set) {
                continue;
            }
            self.keys.groups_of(set, &mut self.groups);
            for (call, (arguments, filter)) in self.calls.iter_mut().zip(&values) {
                let filter = filter.as_ref().map(|filter| filter.as_boolean());
                call.states.update_batch(arguments, &self.groups, filter, self.keys.len())?;
            }
        }
        Ok(())
    }

    /// Adds the groups that exist without rows.
    fn finish(&mut self) -> Result<()> {
        if self.keys.len() > 0 {
            return Ok(());
        }
        self.keys.add_totals();
        match self.keys.len() {
            0 => Ok(()),
            _ => self.add_nothing(),
        }
    }

    /// Gives the states the number of groups with a row that no call takes. Some states count groups without any row as
    /// those of rows without NULL.
    fn add_nothing(&mut self) -> Result<()> {
        let none = BooleanArray::from(vec![false]);
        let schema = self.aggregate.input().schema();
        for call in &mut self.calls {
            let arguments = call.arguments.iter();
            let arguments = arguments.map(|arg| Ok(new_null_array(&arg.data_type(&schema)?, 1)));
            let arguments = arguments.collect::<Result<Vec<_>>>()?;
            call.states.update_batch(&arguments, &[0], Some(&none), self.keys.len())?;
        }
        Ok(())
    }

    /// Charges the held memory; false if the memory limit refuses it.
    fn fits(&mut self) -> bool {
        let states: usize = self.calls.iter().map(|call| call.states.size()).sum();
        let groups = self.groups.capacity() * size_of::<usize>();
        self.memory.try_resize(states + groups + self.keys.size()).is_ok()
    }

    /// Removes and returns the states of all groups.
    fn take(&mut self) -> Result<RecordBatch> {
        if self.keys.len() == 0 {
            return Ok(RecordBatch::new_empty(self.aggregate.schema()));
        }
        let merged = self.keys.merged();
        if merged.is_some() {
            self.add_nothing()?;
        }
        let mut columns = self.keys.take()?;
        for (call, of) in self.calls.iter_mut().zip(self.aggregate.aggr_expr()) {
            let states = call.states.state(EmitTo::All)?;
            columns.extend(match &merged {
                Some(merged) => merged.states(states, of.create_groups_accumulator()?)?,
                None => states,
            });
        }
        self.groups = Vec::new();
        self.memory.free();
        Ok(RecordBatch::try_new(self.aggregate.schema(), columns)?)
    }
}

#[cfg(test)]
mod tests;
