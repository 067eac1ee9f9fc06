#![allow(clippy::unwrap_used, reason = "tests")]
//! The states beside those of DataFusion's accumulators.

use super::*;
use datafusion::arrow::array::{Float64Array, Int64Array, StringViewArray};
use datafusion::arrow::datatypes::SchemaRef;
use datafusion::arrow::record_batch::RecordBatch;
use datafusion::functions_aggregate::first_last::{first_value_udaf, last_value_udaf};
use datafusion::physical_expr::aggregate::AggregateExprBuilder;
use datafusion::physical_expr::expressions::col;
use datafusion::physical_expr::{PhysicalExpr, PhysicalSortExpr};

const GROUPS: usize = 7;

/// Rows with equal keys, keys that are NULL, NaN or zeros, and values that are NULL.
fn rows(batch: usize) -> RecordBatch {
    let hash = |row: usize, salt: usize| ((batch * 640 + row) * 2_654_435_761 + salt * 40_503) >> 9;
    let numbers = [-1.5, -0.0, 0.0, 7.0, f64::NAN, f64::NEG_INFINITY];
    let x: Float64Array = (0..640).map(|row| numbers.get(hash(row, 1) % 7).copied()).collect();
    let n: Int64Array =
        (0..640).map(|row| Some((hash(row, 2) % 5) as i64).filter(|n| *n > 0)).collect();
    let text = |row: usize| match hash(row, 3) % 4 {
        0 => None,
        more => Some(format!("text {row} of batch {batch}{}", "x".repeat(more * 5))),
    };
    let s: StringViewArray = (0..640).map(text).collect();
    let columns: [(&str, ArrayRef); 3] =
        [("x", Arc::new(x)), ("n", Arc::new(n)), ("s", Arc::new(s))];
    let columns = columns.map(|(name, column)| (name, column, true));
    RecordBatch::try_from_iter_with_nullable(columns).unwrap()
}

fn call(
    schema: &SchemaRef,
    [value, key]: [&str; 2],
    order: Order,
) -> (AggregateFunctionExpr, Arc<dyn PhysicalExpr>) {
    let column = |name: &str| col(name, schema).unwrap();
    let key = PhysicalSortExpr::new(column(key), order.options);
    let function = if order.is_first { first_value_udaf() } else { last_value_udaf() };
    let call = AggregateExprBuilder::new(function, vec![column(value)])
        .schema(schema.clone())
        .alias("found")
        .order_by(vec![key.clone()])
        .with_ignore_nulls(order.ignores_nulls)
        .build();
    (call.unwrap(), key.expr)
}

#[test]
fn states_are_those_of_datafusion() {
    let batches: Vec<RecordBatch> = (0..9).map(rows).collect();
    let schema = batches[0].schema();
    for case in 0..64 {
        let is = |bit: usize| (case >> bit) & 1 == 1;
        let options = SortOptions { descending: is(0), nulls_first: is(1) };
        let order = Order { options, is_first: is(2), ignores_nulls: is(3) };
        let columns = if is(4) { ["s", "x"] } else { ["x", "n"] };
        let (call, key) = call(&schema, columns, order);
        let mut own = accumulator(&call, &schema).unwrap().unwrap();
        let mut other = call.create_groups_accumulator().unwrap();
        for (at, batch) in batches.iter().enumerate() {
            // The last groups come late, and one of them has no row that counts.
            let total = if at < 3 { GROUPS - 2 } else { GROUPS };
            let groups: Vec<usize> = (0..batch.num_rows()).map(|row| row * 31 % total).collect();
            let holds = groups.iter().map(|group| Some(group % 6 > 0).filter(|_| group % 5 > 0));
            let holds: BooleanArray = holds.collect();
            let holds = is(5).then_some(&holds);
            let values = batch.column_by_name(columns[0]).unwrap().clone();
            let keys = key.evaluate(batch).unwrap().into_array(batch.num_rows()).unwrap();
            let values = [values, keys];
            own.update_batch(&values, &groups, holds, total).unwrap();
            other.update_batch(&values, &groups, holds, total).unwrap();
        }
        let own_states = own.state(EmitTo::First(2)).unwrap();
        assert_eq!(own_states, other.state(EmitTo::First(2)).unwrap(), "{case}");
        let (rest, states) = (own.state(EmitTo::All).unwrap(), other.state(EmitTo::All).unwrap());
        assert_eq!(rest, states, "{case}");
        let mut merged = accumulator(&call, &schema).unwrap().unwrap();
        merged.merge_batch(&own_states, &[0, 1], 2).unwrap();
        merged.merge_batch(&rest, &[2, 1, 3, 0, 2], 4).unwrap();
        let mut other = call.create_groups_accumulator().unwrap();
        other.merge_batch(&own_states, &[0, 1], 2).unwrap();
        other.merge_batch(&rest, &[2, 1, 3, 0, 2], 4).unwrap();
        let all = merged.evaluate(EmitTo::All).unwrap();
        assert_eq!(&all, &other.evaluate(EmitTo::All).unwrap(), "{case}");
    }
}

/// Each row of a batch is the best one of its group: values that are not any longer are dropped.
#[test]
fn few_values_are_held() {
    let schema = rows(0).schema();
    let options = SortOptions { descending: true, nulls_first: false };
    let order = Order { options, is_first: true, ignores_nulls: false };
    let (call, _) = call(&schema, ["s", "n"], order);
    let mut states = accumulator(&call, &schema).unwrap().unwrap();
    let groups: Vec<usize> = (0..640).collect();
    for batch in 0..100 {
        let values = rows(batch).column_by_name("s").unwrap().clone();
        let keys: ArrayRef = Arc::new(Int64Array::from(vec![batch as i64; 640]));
        states.update_batch(&[values, keys], &groups, None, 640).unwrap();
        assert!(states.size() < 1 << 20, "{} bytes", states.size());
    }
    let found = states.evaluate(EmitTo::All).unwrap();
    assert_eq!(&found, rows(99).column_by_name("s").unwrap());
}
