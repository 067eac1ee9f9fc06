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
//! The best k keys of each partition are retained, and the worst of these as a number, so that most rows need one
//! comparison. Equal keys stay, so the window decides as before. If memory is short or few rows are dropped, all
//! further rows pass.

use super::splits::keys::{Keys, RowKeys, first_bytes};
use crate::rows::single::{over, shown, usual};
use crate::walk::Walk;
use arrow::array::{ArrayRef, BooleanArray, RecordBatch};
use arrow::buffer::BooleanBuffer;
use arrow::compute::{SortOptions, filter_record_batch};
use arrow::datatypes::{DataType, Field, Schema};
use arrow::row::{RowConverter, SortField};
use datafusion::common::ScalarValue;
use datafusion::common::tree_node::{Transformed, TreeNodeRecursion};
use datafusion::error::Result;
use datafusion::execution::memory_pool::{MemoryConsumer, MemoryReservation};
use datafusion::execution::{SendableRecordBatchStream, TaskContext};
use datafusion::logical_expr::Operator;
use datafusion::physical_expr::expressions::{BinaryExpr, Column, Literal};
use datafusion::physical_expr::window::{StandardWindowExpr, WindowExpr};
use datafusion::physical_expr::{PhysicalExpr, PhysicalSortExpr, split_conjunction};
use datafusion::physical_plan::ExecutionPlan;
use datafusion::physical_plan::aggregates::group_values::{GroupValues, new_group_values};
use datafusion::physical_plan::aggregates::order::GroupOrdering;
use datafusion::physical_plan::execution_plan::replace_children_if_necessary;
use datafusion::physical_plan::filter::FilterExec;
use datafusion::physical_plan::projection::ProjectionExec;
use datafusion::physical_plan::sorts::sort::SortExec;
use datafusion::physical_plan::stream::RecordBatchStreamAdapter;
use datafusion::physical_plan::windows::{BoundedWindowAggExec, WindowUDFExpr};
use futures::StreamExt;
use std::cmp::Ordering;
use std::collections::BinaryHeap;
use std::sync::Arc;

/// Largest number of rows of a partition for this optimisation.
const ROWS_MAX: usize = 1000;

/// Upper bound on the bytes of the partitions and the known keys.
const BYTES_MAX: usize = 64 << 20;

/// Estimated bytes of an allocation beside its content.
const OVERHEAD: usize = 16;

/// Keys that a new partition has memory for.
const FIRST_KEYS: usize = 4;

/// Rows after which an operator that drops less than a quarter of them stops.
const TRIAL: usize = 1 << 19;

pub(super) fn with_tops(plan: Arc<dyn ExecutionPlan>) -> Result<Arc<dyn ExecutionPlan>> {
    plan.map_down(|node| {
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
    let ScalarValue::UInt64(Some(number)) = number.cast_to(&DataType::UInt64).ok()? else {
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
    // A call that counts or sums rows needs them all, and without an order no row is behind another.
    if !calls.iter().all(|other| is_like(other, call))
        || call.partition_by().is_empty()
        || call.order_by().is_empty()
    {
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

shown!(PartitionTopExec, |node, f| write!(f, "PartitionTopExec: the first {}", node.rows));

impl ExecutionPlan for PartitionTopExec {
    usual!(name, properties of input, input);

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

    over!(|node, input| PartitionTopExec {
        input,
        partitions: node.partitions.clone(),
        order: node.order.clone(),
        rows: node.rows,
    });

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

/// True if there is memory for `bytes` more.
fn charge(memory: &MemoryReservation, bytes: usize) -> bool {
    bytes == 0 || (memory.size() + bytes <= BYTES_MAX && memory.try_grow(bytes).is_ok())
}

/// The best keys of the rows so far.
struct Tops {
    /// `None` if the rest of the rows passes.
    known: Option<BestKeys>,
    memory: MemoryReservation,
    /// Rows so far, and those that were dropped.
    seen: usize,
    dropped: usize,
}

impl Tops {
    fn new(exec: &PartitionTopExec, memory: MemoryReservation) -> Result<Tops> {
        let known = BestKeys {
            groups: Groups::new(exec)?,
            keys: Keys::new(&exec.order, &exec.input.schema())?,
            best: Best { rows: exec.rows, worst: Vec::new(), heaps: Vec::new() },
            charged: 0,
        };
        Ok(Tops { known: Some(known), memory, seen: 0, dropped: 0 })
    }

    /// The rows of a batch that can be among the first of their partition.
    fn kept(&mut self, batch: RecordBatch) -> Result<RecordBatch> {
        let Some(known) = &mut self.known else { return Ok(batch) };
        let Some(kept) = known.kept(&batch, &self.memory)? else {
            self.stop();
            return Ok(batch);
        };
        let count = batch.num_rows();
        let batch = filter_record_batch(&batch, &BooleanArray::new(kept, None))?;
        self.seen += count;
        self.dropped += count - batch.num_rows();
        if self.seen >= TRIAL && self.dropped < self.seen / 4 {
            self.stop();
        }
        Ok(batch)
    }

    fn stop(&mut self) {
        self.known = None;
        self.memory.free();
    }
}

struct BestKeys {
    groups: Groups,
    keys: Keys,
    best: Best,
    /// Charged bytes of the partitions, without keys that were added later.
    charged: usize,
}

impl BestKeys {
    /// The rows of a batch that can be among the first; `None` if there is no memory for their partitions.
    fn kept(
        &mut self,
        batch: &RecordBatch,
        memory: &MemoryReservation,
    ) -> Result<Option<BooleanBuffer>> {
        if !self.groups.read(batch)? {
            return Ok(None);
        }
        let (groups, interner) = (&self.groups.of_rows, &self.groups.interner);
        let bytes = interner.size() + self.best.grow(interner.len());
        if !charge(memory, bytes.saturating_sub(self.charged)) {
            return Ok(None);
        }
        self.charged = self.charged.max(bytes);
        let none: &[u8] = &[];
        let best = &mut self.best;
        Ok(Some(match self.keys.of_rows(batch)? {
            RowKeys::Narrow(keys) => best.kept(groups, |i| (u128::from(keys[i]), none), memory),
            RowKeys::Wide(keys) => best.kept(groups, |i| (keys[i], none), memory),
            RowKeys::Bytes(keys) => {
                let key = |i| (first_bytes(keys.row(i)), keys.row(i));
                best.kept(groups, key, memory)
            }
        }))
    }
}

/// The partitions, numbered as groups.
struct Groups {
    partitions: Vec<Arc<dyn PhysicalExpr>>,
    /// Makes bytes of keys that the interner groups differently than the window: -0.0 and 0.0 are one group.
    bytes: Option<RowConverter>,
    interner: Box<dyn GroupValues>,
    /// The group of each row of the last batch.
    of_rows: Vec<usize>,
}

impl Groups {
    fn new(exec: &PartitionTopExec) -> Result<Groups> {
        let [fields, _] = exec.fields()?;
        let schema = exec.input.schema();
        let types = exec.partitions.iter().map(|key| key.data_type(&schema));
        let mut types: Vec<DataType> = types.collect::<Result<_>>()?;
        let mut bytes = None;
        if !types.iter().all(has_window_groups) {
            bytes = Some(RowConverter::new(fields)?);
            types = vec![DataType::Binary];
        }
        let fields: Vec<Field> = types.into_iter().map(|key| Field::new("", key, true)).collect();
        let interner = new_group_values(Arc::new(Schema::new(fields)), &GroupOrdering::None)?;
        Ok(Groups { partitions: exec.partitions.clone(), bytes, interner, of_rows: Vec::new() })
    }

    /// Finds the groups of a batch's rows; false if their keys are too large.
    fn read(&mut self, batch: &RecordBatch) -> Result<bool> {
        let evaluated =
            |key: &Arc<dyn PhysicalExpr>| key.evaluate(batch)?.into_array(batch.num_rows());
        let mut columns: Vec<ArrayRef> =
            self.partitions.iter().map(evaluated).collect::<Result<_>>()?;
        if let Some(bytes) = &self.bytes {
            let rows = bytes.convert_columns(&columns)?;
            if rows.size() > BYTES_MAX {
                return Ok(false);
            }
            let rows: ArrayRef = Arc::new(rows.try_into_binary()?);
            columns = vec![rows];
        }
        self.interner.intern(&columns, &mut self.of_rows)?;
        Ok(true)
    }
}

/// True for keys that are in one group if, and only if, they are in one partition of a window.
fn has_window_groups(key: &DataType) -> bool {
    key.is_integer()
        || matches!(
            key,
            DataType::Boolean
                | DataType::Date32
                | DataType::Date64
                | DataType::Timestamp(..)
                | DataType::Decimal128(..)
                | DataType::Utf8
                | DataType::LargeUtf8
                | DataType::Utf8View
        )
}

/// A number that compares as the key does, or as its first bytes, and then its bytes, if they are needed.
type Key = (u128, Box<[u8]>);

/// Bytes of a key beside those of `Key`.
fn bytes_of(key: &[u8]) -> usize {
    if key.is_empty() { 0 } else { key.len() + OVERHEAD }
}

struct Best {
    rows: usize,
    /// The number of the worst of the best keys; the largest one while there are fewer than `rows`.
    worst: Vec<u128>,
    heaps: Vec<BinaryHeap<Key>>,
}

impl Best {
    /// Makes room for `groups` groups. Returns the bytes of all with their first keys.
    fn grow(&mut self, groups: usize) -> usize {
        let keys = self.rows.min(FIRST_KEYS);
        self.worst.resize(groups, u128::MAX);
        self.heaps.resize_with(groups, || BinaryHeap::with_capacity(keys));
        self.worst.capacity() * size_of::<u128>()
            + self.heaps.capacity() * size_of::<BinaryHeap<Key>>()
            + groups * (keys * size_of::<Key>() + OVERHEAD)
    }

    /// The rows whose keys are not behind the best of their groups.
    fn kept<'k>(
        &mut self,
        groups: &[usize],
        key_of: impl Fn(usize) -> (u128, &'k [u8]),
        memory: &MemoryReservation,
    ) -> BooleanBuffer {
        BooleanBuffer::collect_bool(groups.len(), |i| {
            let (group, (number, key)) = (groups[i], key_of(i));
            let worst = self.worst[group];
            if number > worst {
                return false;
            }
            let order = number.cmp(&worst).then_with(|| self.compared(group, key));
            if order.is_lt() {
                self.add(group, (number, key), memory);
            }
            order.is_le()
        })
    }

    /// Compares the bytes of a key with those of the worst of its group; all are before one that is not known.
    fn compared(&self, group: usize, key: &[u8]) -> Ordering {
        let heap = &self.heaps[group];
        match heap.peek() {
            Some((_, worst)) if heap.len() >= self.rows => key.cmp(worst),
            _ => Ordering::Less,
        }
    }

    /// Adds a key that is before the worst of its group; without memory the group stays as it is.
    fn add(&mut self, group: usize, (number, key): (u128, &[u8]), memory: &MemoryReservation) {
        let heap = &mut self.heaps[group];
        if heap.len() < self.rows {
            let more = match heap.capacity() - heap.len() {
                0 => heap.len().clamp(1, self.rows - heap.len()),
                _ => 0,
            };
            if !charge(memory, more * size_of::<Key>() + bytes_of(key)) {
                return;
            }
            heap.reserve_exact(more);
            heap.push((number, key.into()));
        } else if let Some(mut worst) = heap.peek_mut() {
            let (old, new) = (bytes_of(&worst.1), bytes_of(key));
            if !charge(memory, new.saturating_sub(old)) {
                return;
            }
            if old > new {
                memory.shrink(old - new);
            }
            *worst = (number, key.into());
        }
        if let Some((worst, _)) = heap.peek()
            && heap.len() >= self.rows
        {
            self.worst[group] = *worst;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use arrow::array::{Float64Array, Int32Array, StringArray};
    use datafusion::datasource::MemTable;
    use datafusion::execution::memory_pool::{GreedyMemoryPool, MemoryPool};
    use datafusion::physical_plan::displayable;
    use datafusion::physical_plan::empty::EmptyExec;
    use datafusion::prelude::{SessionConfig, SessionContext};

    const N: usize = 1000;

    fn g(i: usize) -> Option<i32> {
        (!i.is_multiple_of(7)).then_some((i % 5) as i32)
    }

    fn v(i: usize) -> Option<i32> {
        (!i.is_multiple_of(11)).then_some((i * 37 % 101) as i32)
    }

    /// Rows with keys of several types; `w` has no NULLs.
    fn batch() -> RecordBatch {
        let other_nan = f64::from_bits(f64::NAN.to_bits() + 1);
        let floats = [0.0, -0.0, f64::NAN, -f64::NAN, 1.5, other_nan];
        let s = |i: usize| (!i.is_multiple_of(9)).then(|| format!("a long text {}", i * 31 % 83));
        let g: Int32Array = (0..N).map(g).collect();
        let v: Float64Array = (0..N).map(|i| v(i).map(f64::from)).collect();
        let h: Float64Array = (0..N).map(|i| (i % 13 != 0).then_some(floats[i % 6])).collect();
        let s: StringArray = (0..N).map(s).collect();
        let w = Int32Array::from_iter_values((0..N).map(|i| (i * 17 % 29) as i32));
        RecordBatch::try_from_iter([
            ("g", Arc::new(g) as ArrayRef),
            ("v", Arc::new(v) as ArrayRef),
            ("h", Arc::new(h) as ArrayRef),
            ("s", Arc::new(s) as ArrayRef),
            ("w", Arc::new(w) as ArrayRef),
        ])
        .unwrap()
    }

    fn tops(memory: usize, rows: usize) -> Tops {
        let column = |name, i| Arc::new(Column::new(name, i)) as Arc<dyn PhysicalExpr>;
        let exec = PartitionTopExec {
            input: Arc::new(EmptyExec::new(batch().schema())),
            partitions: vec![column("g", 0)],
            order: vec![PhysicalSortExpr::new_default(column("v", 1))],
            rows,
        };
        let pool: Arc<dyn MemoryPool> = Arc::new(GreedyMemoryPool::new(memory));
        Tops::new(&exec, MemoryConsumer::new("test").register(&pool)).unwrap()
    }

    #[test]
    fn rows_behind_the_first_are_dropped() {
        let mut some = tops(1 << 20, 4);
        let kept = some.kept(batch()).unwrap();
        assert!(kept.num_rows() < 300, "{}", kept.num_rows());
        assert_eq!(some.known.unwrap().groups.interner.len(), 6);
        assert_eq!(tops(0, 4).kept(batch()).unwrap().num_rows(), N);
    }

    #[test]
    fn first_rows_are_retained_in_any_memory() {
        let all = batch();
        let before = |i: usize| (0..N).filter(|&j| g(j) == g(i) && v(j) < v(i)).count();
        let before: Vec<usize> = (0..N).map(before).collect();
        let mut dropped = Vec::new();
        for bytes in (0..20_000).step_by(200) {
            let Tops { known, memory, .. } = tops(bytes, 9);
            let mut known = known.unwrap();
            dropped.push(0);
            for start in (0..N).step_by(100) {
                let kept = known.kept(&all.slice(start, 100), &memory).unwrap();
                let Some(kept) = kept else { break };
                for i in (0..100).filter(|&i| !kept.value(i)) {
                    assert!(before[start + i] >= 9, "{bytes} bytes, row {}", start + i);
                    *dropped.last_mut().unwrap() += 1;
                }
            }
        }
        assert_eq!(dropped[0], 0);
        assert!(dropped.last().unwrap() > &(N / 2), "{dropped:?}");
    }

    #[test]
    fn many_partitions_stop_the_selection() {
        let g = Int32Array::from_iter_values(0..TRIAL as i32);
        let v = Float64Array::from(vec![0.0; TRIAL]);
        let columns = [("g", Arc::new(g) as ArrayRef), ("v", Arc::new(v) as ArrayRef)];
        let many = RecordBatch::try_from_iter(columns).unwrap();
        let mut tops = tops(1 << 30, 1);
        assert_eq!(tops.kept(many).unwrap().num_rows(), TRIAL);
        assert!(tops.known.is_none());
        assert_eq!(tops.memory.size(), 0);
    }

    #[tokio::test]
    async fn results_match_a_full_sort() {
        let config = SessionConfig::new().with_target_partitions(1).with_batch_size(64);
        let context = SessionContext::new_with_config(config);
        let all = batch();
        let batches: Vec<_> = (0..N).step_by(64).map(|i| all.slice(i, (N - i).min(64))).collect();
        let table = MemTable::try_new(all.schema(), vec![batches]).unwrap();
        context.register_table("t", Arc::new(table)).unwrap();
        let sum = "sum(v) OVER (PARTITION BY g ORDER BY v) total, row_number()";
        for (columns, call, by, condition, is_used) in [
            ("g, v", "row_number()", "g ORDER BY v", "n <= 4", true),
            ("g, v", "rank()", "g ORDER BY v DESC", "n < 3", true),
            ("g, v, n", "row_number()", "g ORDER BY v", "1 = n AND v > 3", true),
            ("g, v", "dense_rank()", "g ORDER BY v", "n <= 4", false),
            ("g, v, total", sum, "g ORDER BY v", "n <= 4", false),
            ("g, v", "row_number()", "g ORDER BY v", "n > 4", false),
            ("g, v", "row_number()", "g ORDER BY v", "n <= 4 OR v > 3", false),
            ("g", "row_number()", "g", "n <= 4", false),
            ("g, w", "row_number()", "g ORDER BY w", "n <= 30", true),
            ("g, w", "rank()", "g ORDER BY w DESC", "n = 1", true),
            ("s, v, w", "rank()", "s ORDER BY v DESC NULLS LAST, w", "n <= 2", true),
            ("g, s, w", "row_number()", "g, s ORDER BY w DESC", "n = 1", true),
            ("g, s, w", "row_number()", "g ORDER BY s, w", "n <= 40", true),
            ("h, s", "row_number()", "h ORDER BY s", "n <= 2", true),
            ("h, g, s, v", "rank()", "h, g ORDER BY s DESC NULLS LAST, v", "n <= 3", true),
            ("h, w", "row_number()", "h ORDER BY w", "n <= 5", true),
            ("g, h, w", "rank()", "g ORDER BY h DESC, w", "n <= 5", true),
        ] {
            let inner = format!("SELECT *, {call} OVER (PARTITION BY {by}) n FROM t");
            let sql = format!("SELECT {columns} FROM ({inner}) WHERE {condition}");
            let plan = context.sql(&sql).await.unwrap().create_physical_plan().await.unwrap();
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
