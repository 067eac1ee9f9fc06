//! Window operators above each other that need one order of rows, with projections between them.
//!
//! ```text
//! Window: sum(x) by g, order t             ┐
//!   Projection: g, t, x, r - 1 AS x2       │ the chain, and its steps from below
//!     Window: rank() AS r by g, h, order t │
//!       Projection: columns of the source  ┘
//!         Sort: g, h, t                      the source
//! ```
//! A partition of one operator must not divide one of another: then rows of whole partitions go through all steps.

use super::super::calls::{Calls, start_of_last};
use super::super::once::OnceExec;
use super::super::replaced;
use super::super::sort::SortSplitsExec;
use super::WindowsExec;
use crate::rows::constants::constant_bytes;
use crate::rows::stop::Stop;
use crate::walk::Walk;
use datafusion::arrow::array::{Array, ArrayRef, RecordBatch, RecordBatchOptions};
use datafusion::arrow::compute::concat;
use datafusion::arrow::datatypes::{DataType, SchemaRef};
use datafusion::common::internal_datafusion_err;
use datafusion::common::utils::memory::RecordBatchMemoryCounter;
use datafusion::error::{DataFusionError, Result};
use datafusion::execution::TaskContext;
use datafusion::execution::memory_pool::MemoryConsumer;
use datafusion::physical_expr::PhysicalExpr;
use datafusion::physical_expr::expressions::{Column, Literal};
use datafusion::physical_expr::utils::collect_columns;
use datafusion::physical_expr::window::WindowExpr;
use datafusion::physical_plan::projection::{ProjectionExec, update_expr};
use datafusion::physical_plan::windows::{BoundedWindowAggExec, WindowAggExec};
use datafusion::physical_plan::{ExecutionPlan, InputOrderMode};
use futures::stream;
use futures::{StreamExt, TryStreamExt};
use std::iter::successors;
use std::sync::Arc;

/// Bytes of most results in each row.
const VALUE_BYTES: usize = 8;

/// Operators above a source of sorted rows.
#[derive(Debug, Clone)]
pub(super) struct Chain {
    top: Arc<dyn ExecutionPlan>,
    /// The number of operators above the source.
    depth: usize,
}

/// Expressions by which rows are of one partition.
pub(super) type Partition = Vec<Arc<dyn PhysicalExpr>>;

impl Chain {
    /// A window with what is below it, down to a sort or the source of other windows, and the number of keys at which
    /// parts of its source may end; `None` for other operators, and above other inputs.
    pub(super) fn of(window: &Arc<dyn ExecutionPlan>) -> Result<Option<(Self, Partition, usize)>> {
        let Some(input) = only_child(window).filter(|_| is_window(window)) else {
            return Ok(None);
        };
        let Some((below, keys_below)) = opened(input)? else { return Ok(None) };
        if below.depth > 0 && has_nested(window)? {
            return Ok(None);
        }
        let chain = below.with(window)?;
        if let Some(partition) = chain.partition()? {
            let keys = chain.sort().map_or(Ok(0), |sort| sort.count_keys(&partition))?;
            if keys >= keys_below {
                return Ok(Some((chain, partition, keys)));
            }
        }
        // The windows below have smaller partitions, which are computed on all threads.
        let alone = Chain { top: window.clone(), depth: 1 };
        Ok(alone.partition()?.map(|partition| (alone, partition, 0)))
    }

    /// The same operators, and another one above them.
    fn with(self, operator: &Arc<dyn ExecutionPlan>) -> Result<Self> {
        Ok(Chain { top: replaced(operator, vec![self.top])?, depth: self.depth + 1 })
    }

    pub(super) fn top(&self) -> &Arc<dyn ExecutionPlan> {
        &self.top
    }

    /// The operators, from the top.
    pub(super) fn operators(&self) -> impl Iterator<Item = &Arc<dyn ExecutionPlan>> {
        successors(Some(&self.top), |&node| only_child(node)).take(self.depth)
    }

    /// The plan whose rows the first operator reads.
    pub(super) fn source(&self) -> Result<&Arc<dyn ExecutionPlan>> {
        successors(Some(&self.top), |&node| only_child(node))
            .nth(self.depth)
            .ok_or_else(|| internal_datafusion_err!("windows without an input"))
    }

    /// The source, if it is a sort.
    pub(super) fn sort(&self) -> Option<&SortSplitsExec> {
        self.source().ok().and_then(|source| source.downcast_ref::<SortSplitsExec>())
    }

    /// The same operators above another source.
    pub(super) fn over(&self, source: Arc<dyn ExecutionPlan>) -> Result<Self> {
        let mut operators: Vec<_> = self.operators().collect();
        operators.reverse();
        let source = Chain { top: source, depth: 0 };
        operators.into_iter().try_fold(source, |below, operator| below.with(operator))
    }

    /// The keys, over the source, of the largest partitions; `None` if they divide a partition of another window.
    fn partition(&self) -> Result<Option<Partition>> {
        let operators: Vec<_> = self.operators().collect();
        let mut all = Vec::new();
        for (nth, window) in operators.iter().enumerate() {
            if let Some(first) = exprs(window).first() {
                let below_it = operators.get(nth + 1..).unwrap_or_default();
                let keys = first.partition_by().iter().map(|key| in_source(key, below_it));
                all.push(keys.collect::<Result<Vec<Option<Arc<dyn PhysicalExpr>>>>>()?);
            }
        }
        let whole =
            all.iter().filter_map(|keys| keys.iter().cloned().collect::<Option<Partition>>());
        let Some(largest) = whole.min_by_key(Vec::len) else { return Ok(None) };
        let is_shared = all
            .iter()
            .all(|keys| largest.iter().all(|key| keys.iter().flatten().any(|own| own == key)));
        Ok(is_shared.then_some(largest))
    }
}

/// The chain whose top is a plan, and the keys at which parts of its source may end; `None` if it has no source.
fn opened(plan: &Arc<dyn ExecutionPlan>) -> Result<Option<(Chain, usize)>> {
    if plan.downcast_ref::<SortSplitsExec>().is_some_and(SortSplitsExec::is_whole) {
        return Ok(Some((Chain { top: plan.clone(), depth: 0 }, 0)));
    }
    if let Some(windows) = plan.downcast_ref::<WindowsExec>() {
        let has_nested = has_nested(windows.chain.top())?;
        return Ok((!has_nested).then(|| (windows.chain.clone(), windows.keys)));
    }
    let is_operator = match plan.downcast_ref::<ProjectionExec>() {
        Some(projection) => is_narrow(projection)?,
        None => is_window(plan) && !has_nested(plan)?,
    };
    let Some(input) = only_child(plan).filter(|_| is_operator) else { return Ok(None) };
    let Some((below, keys)) = opened(input)? else { return Ok(None) };
    Ok(Some((below.with(plan)?, keys)))
}

fn only_child(node: &Arc<dyn ExecutionPlan>) -> Option<&Arc<dyn ExecutionPlan>> {
    match node.children()[..] {
        [input] => Some(input),
        _ => None,
    }
}

/// True for window operators whose partitions are one after another.
pub(super) fn is_window(node: &Arc<dyn ExecutionPlan>) -> bool {
    let bounded = node.downcast_ref::<BoundedWindowAggExec>();
    node.is::<WindowAggExec>()
        || bounded.is_some_and(|window| window.input_order_mode == InputOrderMode::Sorted)
}

/// The calls of a window operator.
pub(in crate::rows::splits) fn exprs(window: &Arc<dyn ExecutionPlan>) -> &[Arc<dyn WindowExpr>] {
    let bounded = window.downcast_ref::<BoundedWindowAggExec>().map(|w| w.window_expr());
    bounded
        .or_else(|| window.downcast_ref::<WindowAggExec>().map(|w| w.window_expr()))
        .unwrap_or(&[])
}

/// A window operator with some of its calls.
pub(in crate::rows::splits) fn with_exprs(
    window: &Arc<dyn ExecutionPlan>,
    exprs: Vec<Arc<dyn WindowExpr>>,
) -> Result<Arc<dyn ExecutionPlan>> {
    if let Some(bounded) = window.downcast_ref::<BoundedWindowAggExec>() {
        let (input, mode) = (bounded.input().clone(), bounded.input_order_mode.clone());
        return Ok(Arc::new(BoundedWindowAggExec::try_new(exprs, input, mode, false)?));
    }
    let input = input_of(window)?.clone();
    Ok(Arc::new(WindowAggExec::try_new(exprs, input, false)?))
}

/// The input of a window operator.
pub(in crate::rows::splits) fn input_of(
    window: &Arc<dyn ExecutionPlan>,
) -> Result<&Arc<dyn ExecutionPlan>> {
    only_child(window)
        .ok_or_else(|| internal_datafusion_err!("{} has not one input", window.name()))
}

/// True if a call returns lists or the like. For a growing frame these may be far larger than the rows, so they are not
/// held for whole partitions.
fn has_nested(window: &Arc<dyn ExecutionPlan>) -> Result<bool> {
    for call in exprs(window) {
        if call.field()?.data_type().is_nested() {
            return Ok(true);
        }
    }
    Ok(false)
}

/// True if the results of a projection, and the intermediate ones, take a few bytes in each row.
fn is_narrow(projection: &ProjectionExec) -> Result<bool> {
    let input = projection.input().schema();
    for item in projection.expr() {
        let is_other = item.expr.any(|part| {
            let is_small = |of: DataType| of.is_primitive() || of == DataType::Boolean;
            let is_narrow = part.is::<Column>()
                || part.is::<Literal>()
                || part.data_type(&input).is_ok_and(is_small);
            Ok(!is_narrow || part.is_volatile_node())
        })?;
        if is_other || constant_bytes(&item.expr)? > 0 {
            return Ok(false);
        }
    }
    Ok(true)
}

/// An expression over the rows below some operators; `None` if it has a result of a window.
fn in_source(
    expr: &Arc<dyn PhysicalExpr>,
    operators: &[&Arc<dyn ExecutionPlan>],
) -> Result<Option<Arc<dyn PhysicalExpr>>> {
    let mut expr = expr.clone();
    for operator in operators {
        let below = match operator.downcast_ref::<ProjectionExec>() {
            Some(projection) => update_expr(&expr, projection.expr(), true)?,
            None => {
                let columns = input_of(operator)?.schema().fields().len();
                let is_below = collect_columns(&expr).iter().all(|column| column.index() < columns);
                is_below.then_some(expr)
            }
        };
        let Some(below) = below else { return Ok(None) };
        expr = below;
    }
    Ok(Some(expr))
}

/// The computations over sorted rows of whole partitions.
#[derive(Debug)]
pub(super) struct Steps {
    /// From the source upwards.
    steps: Vec<Step>,
    /// The largest partitions, over the rows of the source.
    partition: Partition,
}

#[derive(Debug)]
enum Step {
    Calls(Calls),
    Items { items: Vec<Arc<dyn PhysicalExpr>>, schema: SchemaRef },
}

impl Steps {
    /// The steps of a chain; `None` if DataFusion's operators would compute all calls.
    pub(super) fn of(chain: &Chain, partition: Partition) -> Result<Option<Self>> {
        let mut steps = Vec::new();
        for operator in chain.operators() {
            if has_nested(operator)? {
                return Ok(None);
            }
            steps.push(match operator.downcast_ref::<ProjectionExec>() {
                Some(projection) => Step::Items {
                    items: projection.expr().iter().map(|item| item.expr.clone()).collect(),
                    schema: projection.schema(),
                },
                None => Step::Calls(Calls::new(operator)?),
            });
        }
        steps.reverse();
        let has_own = |step: &Step| matches!(step, Step::Calls(calls) if calls.has_own());
        Ok(steps.iter().any(has_own).then_some(Steps { steps, partition }))
    }

    /// True if DataFusion's operators may compute other bits.
    pub(super) fn has_whole(&self) -> bool {
        self.steps.iter().any(|step| matches!(step, Step::Calls(calls) if calls.has_whole()))
    }

    /// The memory that `rows` rows of `bytes` bytes need, with all results.
    pub(super) fn memory(&self, rows: usize, bytes: usize) -> usize {
        let (mut copies, mut results) = (1, 0);
        for step in &self.steps {
            let (more, computed) = match step {
                Step::Calls(calls) => (calls.copies(), calls.count()),
                Step::Items { items, .. } => {
                    let computed = items.iter().filter(|item| !item.is::<Column>()).count();
                    (computed.min(1), computed)
                }
            };
            copies += more;
            results += computed;
        }
        (copies * bytes).max(bytes + results * VALUE_BYTES * rows)
    }

    /// Where the last partition of sorted rows begins: batch and row. No batch is empty.
    pub(super) fn start_of_last(&self, batches: &[RecordBatch]) -> Result<(usize, usize)> {
        start_of_last(&self.partition, batches)
    }

    /// The rows, sorted and of whole partitions, with all results.
    pub(super) async fn over(
        &self,
        mut rows: Vec<RecordBatch>,
        stop: &Stop,
        context: &Arc<TaskContext>,
    ) -> Result<Vec<RecordBatch>> {
        for step in &self.steps {
            rows = match step {
                Step::Calls(calls) => {
                    let others = match calls.others() {
                        Some(window) => by_datafusion(window, &rows, stop, context).await?,
                        None => Vec::new(),
                    };
                    stop.within(|| calls.with_results(rows, others))?
                }
                Step::Items { items, schema } => {
                    let rows = rows.iter().map(|rows| projected(rows, items, schema));
                    stop.within(|| rows.collect::<Result<Vec<RecordBatch>>>())?
                }
            };
        }
        Ok(rows)
    }
}

fn projected(
    rows: &RecordBatch,
    items: &[Arc<dyn PhysicalExpr>],
    schema: &SchemaRef,
) -> Result<RecordBatch> {
    let count = rows.num_rows();
    let columns = items.iter().map(|item| item.evaluate(rows)?.into_array(count));
    let columns = columns.collect::<Result<Vec<ArrayRef>>>()?;
    let options = RecordBatchOptions::new().with_row_count(Some(count));
    Ok(RecordBatch::try_new_with_options(schema.clone(), columns, &options)?)
}

/// The results of the calls of a window operator for some rows.
async fn by_datafusion(
    window: &Arc<dyn ExecutionPlan>,
    rows: &[RecordBatch],
    stop: &Stop,
    context: &Arc<TaskContext>,
) -> Result<Vec<ArrayRef>> {
    let input = input_of(window)?;
    let first = input.schema().fields().len();
    let rows: Vec<Result<RecordBatch>> = rows.iter().cloned().map(Ok).collect();
    let rows = stream::iter(rows).boxed();
    let rows = OnceExec::new(input.properties().clone(), rows);
    let results = replaced(window, vec![Arc::new(rows)])?.execute(0, context.clone())?;
    let mut results = stop.clone().around(results);
    let memory = MemoryConsumer::new("windows").register(context.memory_pool());
    let (mut counted, mut batches) = (RecordBatchMemoryCounter::new(), Vec::new());
    while let Some(batch) = results.try_next().await? {
        // The other columns are the rows themselves.
        let own: Vec<usize> = (first..batch.num_columns()).collect();
        let own = batch.project(&own)?;
        memory.try_grow(counted.count_batch(&own))?;
        batches.push(own);
    }
    let of_call = |nth: usize| -> Result<ArrayRef> {
        let parts: Vec<&dyn Array> =
            batches.iter().map(|batch| batch.column(nth).as_ref()).collect();
        // Texts of more bytes than one array may have.
        concat(&parts).map_err(|e| {
            DataFusionError::ResourcesExhausted(format!("the results of a window function: {e}"))
        })
    };
    (0..exprs(window).len()).map(of_call).collect()
}

#[cfg(test)]
mod tests;
