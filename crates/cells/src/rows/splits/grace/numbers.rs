//! Rows of the inputs of a join with their numbers, by which its rows are ordered.

use crate::rows::single;
use crate::rows::splits::through::{Rows, through};
use datafusion::arrow::array::{Array, AsArray, UInt32Array, UInt64Array};
use datafusion::arrow::compute::{SortOptions, concat_batches, take_record_batch};
use datafusion::arrow::datatypes::{DataType, Field, FieldRef, Schema, SchemaRef, UInt64Type};
use datafusion::arrow::record_batch::RecordBatch;
use datafusion::common::JoinType;
use datafusion::error::Result;
use datafusion::physical_expr::expressions::Column;
use datafusion::physical_expr::{EquivalenceProperties, PhysicalSortExpr};
use datafusion::physical_plan::joins::{HashJoinExec, HashJoinExecBuilder};
use datafusion::physical_plan::{ExecutionPlan, ExecutionPlanProperties};
use futures::stream;
use futures::{StreamExt, TryStreamExt};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};

/// The lower bits of a number count the rows of a split, the upper ones the splits.
const ROW_BITS: u32 = 40;

pub(super) fn first_of(split: usize) -> u64 {
    (split as u64) << ROW_BITS
}

/// The input, whose rows have their numbers as their last column; and the number of rows of each split, as far as they
/// were read.
pub(super) fn numbered(
    input: Arc<dyn ExecutionPlan>,
    name: &str,
) -> (Arc<dyn ExecutionPlan>, Arc<[AtomicU64]>) {
    let columns = input.schema();
    let mut fields: Vec<FieldRef> = columns.fields().iter().cloned().collect();
    fields.push(Arc::new(Field::new(name, DataType::UInt64, false)));
    let schema = Arc::new(Schema::new_with_metadata(fields, columns.metadata().clone()));
    let number = Arc::new(Column::new(name, columns.fields().len()));
    let order = [PhysicalSortExpr::new(number, SortOptions::default())];
    let splits = input.output_partitioning().partition_count();
    let equivalence = EquivalenceProperties::new_with_orderings(schema.clone(), [order]);
    let properties = single::with_partitions(equivalence, splits);
    let counts: Arc<[AtomicU64]> = (0..splits).map(|_| AtomicU64::new(0)).collect();
    let seen = counts.clone();
    let rows = move |split: usize, rows: Rows| {
        let (schema, seen) = (schema.clone(), seen.clone());
        let mut next = 0;
        let rows = rows.map(move |batch| {
            let batch = batch?;
            let end = next + batch.num_rows() as u64;
            let numbers = first_of(split) + next..first_of(split) + end;
            next = end;
            // A split may be read again, from its start.
            seen[split].fetch_max(end, SeqCst);
            let mut columns = batch.columns().to_vec();
            columns.push(Arc::new(UInt64Array::from_iter_values(numbers)));
            Ok(RecordBatch::try_new(schema.clone(), columns)?)
        });
        rows.boxed()
    };
    (through(input, properties, rows), counts)
}

/// The input; `began` is called when the first row of a split is asked for.
pub(super) fn when_read(
    input: Arc<dyn ExecutionPlan>,
    began: impl Fn() + Send + Sync + 'static,
) -> Arc<dyn ExecutionPlan> {
    let properties = input.properties().clone();
    let began = Arc::new(began);
    through(input, properties, move |_, rows| {
        let began = began.clone();
        let first = async move {
            began();
            rows
        };
        stream::once(first).flatten().boxed()
    })
}

/// The rows of one split, of those of several.
pub(super) fn of_split(
    input: Arc<dyn ExecutionPlan>,
    number: usize,
    split: usize,
) -> Arc<dyn ExecutionPlan> {
    let properties = input.properties().clone();
    through(input, properties, move |_, rows| {
        let rows = rows.map(move |batch| {
            let batch = batch?;
            let numbers = batch.column(number).as_primitive::<UInt64Type>().values();
            let span = first_of(split)..first_of(split + 1);
            let own = (0u32..).zip(numbers).filter(|(_, number)| span.contains(number));
            let own = UInt32Array::from_iter_values(own.map(|(row, _)| row));
            Ok(take_record_batch(&batch, &own)?)
        });
        rows.boxed()
    })
}

/// The join over other inputs, which may have numbers as their last columns. With `shows` these are the last columns of
/// its rows, too: that of the second input, then that of the first one.
pub(super) fn over(
    join: &HashJoinExec,
    build: Arc<dyn ExecutionPlan>,
    probe: Arc<dyn ExecutionPlan>,
    shows: bool,
) -> Result<HashJoinExecBuilder> {
    use JoinType::{RightAnti, RightMark, RightSemi};
    let width = |input: &Arc<dyn ExecutionPlan>| input.schema().fields().len();
    let (left, right) = (width(join.left()), width(join.right()));
    let (new_left, new_right) = (width(&build), width(&probe));
    let is_of_right = matches!(join.join_type(), RightAnti | RightMark | RightSemi);
    let (first, more) = match is_of_right {
        true => (right, new_right - right),
        false => (left, new_left - left),
    };
    let moved = |column: usize| if column < first { column } else { column + more };
    let mut columns: Vec<usize> = match join.projection.as_deref() {
        Some(columns) => columns.iter().copied().map(moved).collect(),
        None => (0..join.join_schema().fields().len()).map(moved).collect(),
    };
    if shows && new_right > right {
        columns.push(if is_of_right { right } else { new_left + right });
    }
    if shows && new_left > left {
        columns.push(left);
    }
    let inputs = vec![build, probe];
    let join = join.builder().with_new_children(inputs)?.with_projection(Some(columns));
    Ok(join.reset_state())
}

/// Rows of a join, whose last column is the number of the row of the second input, in the order of these numbers. At
/// most `most` rows are before one with a smaller number; those without a number are the last ones.
///
/// DataFusion's FULL JOIN compares some rows of the second input at a time, with at most `most` matches, and yields
/// those without a match behind those with one.
pub(super) fn reordered(rows: Rows, schema: SchemaRef, most: usize) -> Rows {
    let state = (Some(rows), None::<RecordBatch>);
    let ordered = stream::try_unfold(state, move |(mut rows, mut held)| {
        let schema = schema.clone();
        async move {
            while let Some(left) = &mut rows {
                let Some(batch) = left.try_next().await? else {
                    rows = None;
                    continue;
                };
                let all = sorted(concat_batches(&schema, held.iter().chain([&batch]))?)?;
                let ready = all.num_rows().saturating_sub(most);
                held = Some(all.slice(ready, all.num_rows() - ready));
                if ready > 0 {
                    return Ok(Some((all.slice(0, ready), (rows, held))));
                }
            }
            Ok(held.take().map(|held| (held, (rows, None))))
        }
    });
    ordered.boxed()
}

/// The rows of a join without the numbers, which are their last columns.
pub(super) fn without_numbers(rows: Rows, schema: SchemaRef) -> Rows {
    let columns: Vec<usize> = (0..schema.fields().len()).collect();
    rows.map(move |batch| Ok(batch?.project(&columns)?.with_schema(schema.clone())?)).boxed()
}

/// The rows in the order of the numbers in their last column.
fn sorted(rows: RecordBatch) -> Result<RecordBatch> {
    let numbers = rows.column(rows.num_columns() - 1).as_primitive::<UInt64Type>();
    let number = |row: u32| match numbers.is_valid(row as usize) {
        true => numbers.value(row as usize),
        false => u64::MAX,
    };
    let mut order: Vec<u32> = (0..rows.num_rows() as u32).collect();
    if order.is_sorted_by_key(|row| number(*row)) {
        return Ok(rows);
    }
    order.sort_by_key(|row| number(*row));
    Ok(take_record_batch(&rows, &UInt32Array::from(order))?)
}
