#![allow(clippy::unwrap_used, reason = "tests")]
//! Groups of a table of numbers, in splits. Expected values from DuckDB 2.0.

use super::*;
use crate::lift::session_state;
use crate::rows::guard::guarded;
use crate::rows::physical::in_order;
use crate::rows::splits::{RowsThreads, SplitSize, with_coded_groups, with_splits};
use datafusion::arrow::array::{AsArray, Int64Array};
use datafusion::arrow::compute::{cast, concat_batches};
use datafusion::arrow::datatypes::{Float64Type, Int64Type};
use datafusion::datasource::MemTable;
use datafusion::execution::SessionStateBuilder;
use datafusion::execution::memory_pool::FairSpillPool;
use datafusion::execution::runtime_env::RuntimeEnvBuilder;
use datafusion::physical_plan::collect;
use datafusion::prelude::SessionContext;

/// The answer over a table with the column `id`, in splits of `split` rows.
async fn answer(sql: &str, rows: i64, split: u64, threads: usize) -> RecordBatch {
    let state = session_state(1 << 30).unwrap();
    let config = state.config().clone().with_extension(Arc::new(RowsThreads(threads)));
    let environment = RuntimeEnvBuilder::new()
        .with_memory_pool(Arc::new(FairSpillPool::new(1 << 30)))
        .build_arc()
        .unwrap();
    let state = SessionStateBuilder::new_from_existing(state)
        .with_config(config)
        .with_runtime_env(environment)
        .build();
    let context = SessionContext::new_with_state(in_order(&state));
    let ids: ArrayRef = Arc::new(Int64Array::from_iter_values(0..rows));
    let ids = RecordBatch::try_from_iter([("id", ids)]).unwrap();
    let table = MemTable::try_new(ids.schema(), vec![vec![ids]]).unwrap();
    context.register_table("t", Arc::new(table)).unwrap();
    let plan = context.sql(sql).await.unwrap().create_physical_plan().await.unwrap();
    let plan = guarded(plan, None, None, 8192).unwrap();
    let plan = with_splits(plan, SplitSize::of(16 * split)).unwrap();
    let plan = with_coded_groups(plan).unwrap();
    let batches = collect(plan.clone(), Arc::new(TaskContext::from(&context.state()))).await;
    concat_batches(&plan.schema(), &batches.unwrap()).unwrap()
}

fn integers(of: &RecordBatch, column: usize) -> Vec<i64> {
    let values = cast(of.column(column), &DataType::Int64).unwrap();
    values.as_primitive::<Int64Type>().values().to_vec()
}

/// Their number, the sums of the second column, of the third one, and of the products of the first and the third one.
fn totals(of: &RecordBatch) -> (usize, i64, i64, i64) {
    let [k, n, s] = [0, 1, 2].map(|column| integers(of, column));
    let products = k.iter().zip(&s).map(|(k, s)| k * s).sum();
    (of.num_rows(), n.iter().sum(), s.iter().sum(), products)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn groups_that_recur_in_all_splits_are_merged() {
    let sql = "SELECT id * 7919 % 20011 AS k, count(*) AS n, sum(id) AS s FROM t GROUP BY id * 7919 % 20011";
    let one = answer(sql, 400_000, 200_000, 1).await;
    assert_eq!(totals(&one), (20_011, 400_000, 79_999_800_000, 800_407_625_699_042));
    let [k, n, s] = [0, 1, 2].map(|column| integers(&one, column));
    // Merged groups have the order of their first rows, those of parts have not.
    assert!(k.iter().zip(0..).all(|(k, id)| *k == id * 7919 % 20_011));
    assert_eq!((&n[..3], &s[..3]), (&[20; 3][..], &[3_802_090, 3_802_110, 3_802_130][..]));
    assert_eq!(one, answer(sql, 400_000, 200_000, 4).await);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn groups_that_change_later_are_computed_in_parts() {
    let sql = "SELECT id * 7919 % 20011 + CASE WHEN id < 200000 THEN 0 ELSE 20011 END AS k, count(*) AS n, sum(id) AS s FROM t GROUP BY 1";
    let one = answer(sql, 400_000, 200_000, 1).await;
    assert_eq!(totals(&one), (40_022, 400_000, 79_999_800_000, 2_001_065_624_599_042));
    assert!(!integers(&one, 0).iter().zip(0..100).all(|(k, id)| *k == id * 7919 % 20_011));
    assert_eq!(one, answer(sql, 400_000, 200_000, 4).await);
}

/// One key with all rows, and one with nearly all.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn large_parts_of_few_keys_are_grouped() {
    let sql = "SELECT id < 0 AS k, count(DISTINCT id) AS n, median(CAST(id AS DOUBLE)) AS m FROM t GROUP BY id < 0";
    let one = answer(sql, 1_000_000, 250_000, 1).await;
    assert_eq!((integers(&one, 0), integers(&one, 1)), (vec![0], vec![1_000_000]));
    assert_eq!(one.column(2).as_primitive::<Float64Type>().value(0), 499_999.5);
    assert_eq!(one, answer(sql, 1_000_000, 250_000, 4).await);
    let key = "CASE WHEN id % 50 = 0 THEN id ELSE -1 END";
    let sql = format!(
        "SELECT {key} AS k, count(DISTINCT id) AS n, median(CAST(id AS DOUBLE)) AS m FROM t GROUP BY {key}"
    );
    let one = answer(&sql, 1_000_000, 250_000, 1).await;
    let (k, n) = (integers(&one, 0), integers(&one, 1));
    assert_eq!((k.len(), n.iter().sum::<i64>()), (20_001, 1_000_000));
    let at = k.iter().position(|k| *k == -1).unwrap();
    let medians = one.column(2).as_primitive::<Float64Type>();
    assert_eq!((n[at], medians.value(at)), (980_000, 500_000.0));
    assert_eq!(medians.values().iter().sum::<f64>(), 10_000_000_000.0);
    assert_eq!(one, answer(&sql, 1_000_000, 250_000, 4).await);
}
