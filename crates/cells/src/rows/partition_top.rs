//! `row_number() OVER (PARTITION BY g ORDER BY v) <= k`: rows that are behind k others of their partition are dropped
//! before the sort.
//!
//! ```text
//! Filter: row_number <= 3                         Filter: row_number <= 3
//!   Window: row_number() by g, order v       ⇒      Window: row_number() by g, order v
//!     Sort: g, v                                      Sort: g, v
//!       input                                           PartitionTop: by g, order v, the first 3
//!                                                         input
//! ```
//! Of each partition the best k keys are known; equal keys stay, so the window decides as before. Where memory is short
//! or few rows are dropped, the rest of the rows passes.

use arrow::array::{BooleanArray, BooleanBufferBuilder, RecordBatch};
use arrow::compute::{SortOptions, filter_record_batch};
use arrow::row::{RowConverter, SortField};
use datafusion::common::tree_node::{Transformed, TreeNode, TreeNodeRecursion};
use datafusion::common::{ScalarValue, internal_datafusion_err};
use datafusion::error::Result;
use datafusion::execution::memory_pool::{MemoryConsumer, MemoryReservation};
use datafusion::execution::{SendableRecordBatchStream, TaskContext};
use datafusion::logical_expr::Operator;
use datafusion::physical_expr::expressions::{BinaryExpr, Column, Literal};
use datafusion::physical_expr::window::{StandardWindowExpr, WindowExpr};
use datafusion::physical_expr::{PhysicalExpr, PhysicalSortExpr, split_conjunction};
use datafusion::physical_plan::execution_plan::replace_children_if_necessary;
use datafusion::physical_plan::filter::FilterExec;
use datafusion::physical_plan::projection::ProjectionExec;
use datafusion::physical_plan::sorts::sort::SortExec;
use datafusion::physical_plan::stream::RecordBatchStreamAdapter;
use datafusion::physical_plan::windows::{BoundedWindowAggExec, WindowUDFExpr};
use datafusion::physical_plan::{DisplayAs, DisplayFormatType, ExecutionPlan, PlanProperties};
use futures::StreamExt;
use std::collections::{BinaryHeap, HashMap};
use std::fmt;
use std::sync::Arc;

/// Largest number of rows of a partition for this optimisation.
const ROWS_MAX: usize = 1000;

/// Upper bound on the bytes of the known keys.
const BYTES_MAX: usize = 64 << 20;

/// Estimated bytes of a partition and of a key, beside their own.
const OVERHEAD: usize = 64;

/// Rows after which an operator that drops less than a quarter of them stops.
const TRIAL: usize = 1 << 19;

/// Inserts the operators into a plan.
///
/// # Errors
/// DataFusion's.
pub(super) fn with_tops(plan: Arc<dyn ExecutionPlan>) -> Result<Arc<dyn ExecutionPlan>> {
    plan.transform_down(|node| {
        Ok(match node.downcast_ref::<FilterExec>().and_then(filtered) {
            Some(input) => Transformed::yes(replace_children_if_necessary(node, vec![input])?),
            None => Transformed::no(node),
        })
    })
    .map(|t| t.data)
}

/// The input of a filter on the number of a row, with the operator below its sort.
fn filtered(filter: &FilterExec) -> Option<Arc<dyn ExecutionPlan>> {
    let mut limits = split_conjunction(filter.predicate()).into_iter().filter_map(limit);
    limits.find_map(|(column, rows)| below(filter.input(), column, rows))
}

/// The column that a condition bounds by a number of rows.
fn limit(condition: &Arc<dyn PhysicalExpr>) -> Option<(usize, usize)> {
    let compared = condition.downcast_ref::<BinaryExpr>()?;
    let (left, right) = (compared.left(), compared.right());
    let (column, number, op) = match (left.downcast_ref::<Column>(), right.downcast_ref::<Column>())
    {
        (Some(column), None) => (column, right, *compared.op()),
        (None, Some(column)) => (column, left, compared.op().swap()?),
        _ => return None,
    };
    let number = number.downcast_ref::<Literal>()?.value();
    let ScalarValue::UInt64(Some(number)) =
        number.cast_to(&arrow::datatypes::DataType::UInt64).ok()?
    else {
        return None;
    };
    let rows = match op {
        Operator::LtEq | Operator::Eq => number,
        Operator::Lt => number.checked_sub(1)?,
        _ => return None,
    };
    let rows = usize::try_from(rows).ok().filter(|rows| (1..=ROWS_MAX).contains(rows))?;
    Some((column.index(), rows))
}

/// The plan with the operator below the sort of the window that computes a column.
fn below(
    plan: &Arc<dyn ExecutionPlan>,
    column: usize,
    rows: usize,
) -> Option<Arc<dyn ExecutionPlan>> {
    let replaced = |input| replace_children_if_necessary(plan.clone(), vec![input]).ok();
    if let Some(projection) = plan.downcast_ref::<ProjectionExec>() {
        let inner = projection.expr().get(column)?.expr.downcast_ref::<Column>()?;
        return replaced(below(projection.input(), inner.index(), rows)?);
    }
    let window = plan.downcast_ref::<BoundedWindowAggExec>()?;
    let calls = window.window_expr();
    let call = calls.get(column.checked_sub(window.input().schema().fields().len())?)?;
    // A call that counts or sums rows needs them all.
    if !calls.iter().all(|other| is_like(other, call)) || call.partition_by().is_empty() {
        return None;
    }
    let sort = window.input().downcast_ref::<SortExec>().filter(|sort| sort.fetch().is_none())?;
    let top = PartitionTopExec {
        input: sort.input().clone(),
        partitions: call.partition_by().to_vec(),
        order: call.order_by().to_vec(),
        rows,
    };
    top.fields().ok().filter(|all| all.iter().all(|f| RowConverter::supports_fields(f)))?;
    let sorted = replace_children_if_necessary(window.input().clone(), vec![Arc::new(top)]).ok()?;
    replaced(sorted)
}

/// True for numbers of rows over the same partitions in the same order, which do not depend on the rows behind.
fn is_like(call: &Arc<dyn WindowExpr>, first: &Arc<dyn WindowExpr>) -> bool {
    let standard = call.as_any().downcast_ref::<StandardWindowExpr>();
    let name = standard.and_then(|call| {
        let function = call.get_standard_func_expr().as_any().downcast_ref::<WindowUDFExpr>()?;
        Some(function.fun().name().to_string())
    });
    name.is_some_and(|name| name == "row_number" || name == "rank")
        && call.partition_by() == first.partition_by()
        && call.order_by() == first.order_by()
}

/// Drops rows that are behind `rows` others of their partition.
#[derive(Debug)]
pub(super) struct PartitionTopExec {
    input: Arc<dyn ExecutionPlan>,
    partitions: Vec<Arc<dyn PhysicalExpr>>,
    order: Vec<PhysicalSortExpr>,
    rows: usize,
}

impl PartitionTopExec {
    /// The fields of the partition and of the order.
    fn fields(&self) -> Result<[Vec<SortField>; 2]> {
        let schema = self.input.schema();
        let of = |key: &Arc<dyn PhysicalExpr>, options| {
            Ok(SortField::new_with_options(key.data_type(&schema)?, options))
        };
        let partition = self.partitions.iter().map(|key| of(key, SortOptions::default()));
        let order = self.order.iter().map(|key| of(&key.expr, key.options));
        Ok([partition.collect::<Result<_>>()?, order.collect::<Result<_>>()?])
    }
}

impl DisplayAs for PartitionTopExec {
    fn fmt_as(&self, _: DisplayFormatType, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "PartitionTopExec: the first {}", self.rows)
    }
}

impl ExecutionPlan for PartitionTopExec {
    fn name(&self) -> &str {
        "PartitionTopExec"
    }

    fn properties(&self) -> &Arc<PlanProperties> {
        self.input.properties()
    }

    fn children(&self) -> Vec<&Arc<dyn ExecutionPlan>> {
        vec![&self.input]
    }

    fn apply_expressions(
        &self,
        visit: &mut dyn FnMut(&Arc<dyn PhysicalExpr>) -> Result<TreeNodeRecursion>,
    ) -> Result<TreeNodeRecursion> {
        let keys = self.partitions.iter().chain(self.order.iter().map(|key| &key.expr));
        for key in keys {
            visit(key)?;
        }
        Ok(TreeNodeRecursion::Continue)
    }

    fn with_new_children(
        self: Arc<Self>,
        children: Vec<Arc<dyn ExecutionPlan>>,
    ) -> Result<Arc<dyn ExecutionPlan>> {
        let [input] = <[_; 1]>::try_from(children)
            .map_err(|all| internal_datafusion_err!("PartitionTopExec has {} inputs", all.len()))?;
        let (partitions, order) = (self.partitions.clone(), self.order.clone());
        Ok(Arc::new(PartitionTopExec { input, partitions, order, rows: self.rows }))
    }

    fn execute(
        &self,
        partition: usize,
        context: Arc<TaskContext>,
    ) -> Result<SendableRecordBatchStream> {
        let schema = self.schema();
        let memory = MemoryConsumer::new("PartitionTop").register(context.memory_pool());
        let mut tops = Tops::new(self, memory)?;
        let input = self.input.execute(partition, context)?;
        let rows = input.map(move |batch| tops.kept(batch?));
        Ok(Box::pin(RecordBatchStreamAdapter::new(schema, rows)))
    }
}

/// The best keys of each partition, worst first, as rows that compare as the keys do.
struct Tops {
    partitions: Vec<Arc<dyn PhysicalExpr>>,
    order: Vec<PhysicalSortExpr>,
    rows: usize,
    of_partition: RowConverter,
    of_order: RowConverter,
    best: HashMap<Box<[u8]>, BinaryHeap<Box<[u8]>>>,
    memory: MemoryReservation,
    /// Rows so far, and those that were dropped.
    seen: usize,
    dropped: usize,
    is_over: bool,
}

impl Tops {
    fn new(exec: &PartitionTopExec, memory: MemoryReservation) -> Result<Tops> {
        let [of_partition, of_order] = exec.fields()?;
        Ok(Tops {
            partitions: exec.partitions.clone(),
            order: exec.order.clone(),
            rows: exec.rows,
            of_partition: RowConverter::new(of_partition)?,
            of_order: RowConverter::new(of_order)?,
            best: HashMap::new(),
            memory,
            seen: 0,
            dropped: 0,
            is_over: false,
        })
    }

    /// The rows of a batch that can be among the first of their partition.
    fn kept(&mut self, batch: RecordBatch) -> Result<RecordBatch> {
        if self.is_over {
            return Ok(batch);
        }
        let count = batch.num_rows();
        let evaluated = |key: &Arc<dyn PhysicalExpr>| key.evaluate(&batch)?.into_array(count);
        let partitions: Vec<_> = self.partitions.iter().map(evaluated).collect::<Result<_>>()?;
        let order: Vec<_> =
            self.order.iter().map(|key| evaluated(&key.expr)).collect::<Result<_>>()?;
        let partitions = self.of_partition.convert_columns(&partitions)?;
        let order = self.of_order.convert_columns(&order)?;
        let mut kept = BooleanBufferBuilder::new(count);
        for i in 0..count {
            kept.append(self.keeps(partitions.row(i).data(), order.row(i).data()));
        }
        let kept = BooleanArray::new(kept.finish(), None);
        let batch = filter_record_batch(&batch, &kept)?;
        self.seen += count;
        self.dropped += count - batch.num_rows();
        if self.seen >= TRIAL && self.dropped < self.seen / 4 {
            self.is_over = true;
            self.best = HashMap::new();
            self.memory.free();
        }
        Ok(batch)
    }

    fn keeps(&mut self, partition: &[u8], key: &[u8]) -> bool {
        let Some(best) = self.best.get_mut(partition) else {
            if self.charge(partition.len() + key.len() + 2 * OVERHEAD) {
                self.best.insert(partition.into(), BinaryHeap::from([key.into()]));
            }
            return true;
        };
        match best.peek() {
            _ if best.len() < self.rows => {}
            Some(worst) if **worst < *key => return false,
            Some(worst) if **worst == *key => return true,
            _ => {
                best.pop();
                best.push(key.into());
                return true;
            }
        }
        if self.charge(key.len() + OVERHEAD)
            && let Some(best) = self.best.get_mut(partition)
        {
            best.push(key.into());
        }
        true
    }

    /// True if there is memory for further keys.
    fn charge(&mut self, bytes: usize) -> bool {
        self.memory.size() + bytes <= BYTES_MAX && self.memory.try_grow(bytes).is_ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use datafusion::execution::memory_pool::{GreedyMemoryPool, MemoryPool};
    use datafusion::physical_plan::displayable;
    use datafusion::prelude::{SessionConfig, SessionContext};

    fn rows(memory: usize) -> (Tops, RecordBatch) {
        use arrow::array::{ArrayRef, Float64Array, Int32Array};
        let n = 1000i32;
        let g: ArrayRef =
            Arc::new((0..n).map(|i| (i % 7 != 0).then_some(i % 5)).collect::<Int32Array>());
        let v: ArrayRef = Arc::new(
            (0..n)
                .map(|i| (i % 11 != 0).then(|| f64::from(i * 37 % 101)))
                .collect::<Float64Array>(),
        );
        let batch = RecordBatch::try_from_iter([("g", g), ("v", v)]).unwrap();
        let column = |name, i| Arc::new(Column::new(name, i)) as Arc<dyn PhysicalExpr>;
        let exec = PartitionTopExec {
            input: Arc::new(datafusion::physical_plan::empty::EmptyExec::new(batch.schema())),
            partitions: vec![column("g", 0)],
            order: vec![PhysicalSortExpr::new_default(column("v", 1))],
            rows: 4,
        };
        let pool: Arc<dyn MemoryPool> = Arc::new(GreedyMemoryPool::new(memory));
        (Tops::new(&exec, MemoryConsumer::new("test").register(&pool)).unwrap(), batch)
    }

    #[test]
    fn rows_behind_the_first_are_dropped() {
        let (mut tops, batch) = rows(1 << 20);
        let kept = tops.kept(batch.clone()).unwrap();
        assert!(kept.num_rows() < 300, "{}", kept.num_rows());
        assert_eq!(tops.best.len(), 6);
        let (mut tops, _) = rows(0);
        assert_eq!(tops.kept(batch.clone()).unwrap(), batch);
    }

    #[tokio::test]
    async fn answers_are_those_of_the_whole_sort() {
        let config = SessionConfig::new().with_target_partitions(1).with_batch_size(64);
        let context = SessionContext::new_with_config(config);
        let (_, batch) = rows(0);
        context.register_batch("t", batch).unwrap();
        for (sql, is_used) in [
            (
                "SELECT g, v FROM (SELECT g, v, row_number() OVER (PARTITION BY g ORDER BY v) n FROM t) WHERE n <= 4",
                true,
            ),
            (
                "SELECT g, v FROM (SELECT g, v, rank() OVER (PARTITION BY g ORDER BY v DESC) n FROM t) WHERE n < 3",
                true,
            ),
            (
                "SELECT g, v, n FROM (SELECT g, v, row_number() OVER (PARTITION BY g ORDER BY v) n FROM t) WHERE 1 = n AND v > 3",
                true,
            ),
            (
                "SELECT g, v FROM (SELECT g, v, dense_rank() OVER (PARTITION BY g ORDER BY v) n FROM t) WHERE n <= 4",
                false,
            ),
            (
                "SELECT g, v, s FROM (SELECT g, v, row_number() OVER w n, sum(v) OVER w s FROM t WINDOW w AS (PARTITION BY g ORDER BY v)) WHERE n <= 4",
                false,
            ),
            (
                "SELECT g, v FROM (SELECT g, v, row_number() OVER (PARTITION BY g ORDER BY v) n FROM t) WHERE n > 4",
                false,
            ),
            (
                "SELECT g, v FROM (SELECT g, v, row_number() OVER (PARTITION BY g ORDER BY v) n FROM t) WHERE n <= 4 OR v > 3",
                false,
            ),
        ] {
            let plan = context.sql(sql).await.unwrap().create_physical_plan().await.unwrap();
            let new = with_tops(plan.clone()).unwrap();
            let text = displayable(new.as_ref()).indent(false).to_string();
            assert_eq!(text.contains("PartitionTopExec"), is_used, "{sql}\n{text}");
            let run = async |plan| {
                let batches = datafusion::physical_plan::collect(plan, context.task_ctx()).await;
                let text = arrow::util::pretty::pretty_format_batches(&batches.unwrap()).unwrap();
                let mut lines: Vec<String> = text.to_string().lines().map(String::from).collect();
                lines.sort();
                lines
            };
            assert_eq!(run(new).await, run(plan).await, "{sql}");
        }
    }
}
