#![allow(clippy::unwrap_used, clippy::panic, reason = "tests")]
//! The states of several sets of keys beside those of DataFusion's partial aggregate.

use super::super::tests::aggregate_of;
use super::super::with_coded_groups;
use crate::rows::splits::{groups, name_of};
use datafusion::arrow::array::{
    ArrayRef, AsArray, BooleanArray, Date32Array, Float64Array, Int64Array, StringArray,
};
use datafusion::arrow::compute::concat_batches;
use datafusion::arrow::datatypes::Float64Type;
use datafusion::arrow::record_batch::RecordBatch;
use datafusion::datasource::MemTable;
use datafusion::execution::TaskContext;
use datafusion::execution::memory_pool::GreedyMemoryPool;
use datafusion::execution::runtime_env::RuntimeEnvBuilder;
use datafusion::physical_plan::{ExecutionPlan, collect};
use datafusion::prelude::{SessionConfig, SessionContext};
use std::sync::Arc;

const BATCH: usize = 700;
const BATCHES: usize = 9;

/// Keys with NULLs, of which `a`, `b`, `d` and `o` have few values, and `n` has many. Values that are seen late are among
/// them.
fn rows(batch: usize) -> RecordBatch {
    let first = batch * BATCH;
    let hash = |i: usize, salt: usize| (i * 2_654_435_761 + salt * 40_503) >> 9;
    let range = || first..first + BATCH;
    let a: Int64Array = range().map(|i| Some((hash(i, 1) % 7) as i64).filter(|a| *a > 0)).collect();
    let text = |i: usize| match hash(i, 2) % (4 + batch) {
        0 => None,
        b if b % 2 == 0 => Some(format!("b{b}")),
        b => Some(format!("a text that is longer than a view, number {b}")),
    };
    let b: StringArray = range().map(text).collect();
    let d: Date32Array =
        range().map(|i| Some(10_000 + (hash(i, 3) % 5) as i32).filter(|d| *d > 10_000)).collect();
    let o: BooleanArray =
        range().map(|i| Some(hash(i, 4) % 3).filter(|o| *o > 0).map(|o| o > 1)).collect();
    let n: Int64Array = range().map(|i| Some((hash(i, 5) % 4001) as i64 * 1_000_003)).collect();
    let v: Float64Array =
        range().map(|i| Some(1.0 / (1 + hash(i, 6) % 1013) as f64).filter(|v| *v < 0.5)).collect();
    let columns: [(&str, ArrayRef); 6] = [
        ("a", Arc::new(a)),
        ("b", Arc::new(b)),
        ("d", Arc::new(d)),
        ("o", Arc::new(o)),
        ("n", Arc::new(n)),
        ("v", Arc::new(v)),
    ];
    let columns = columns.map(|(name, column)| (name, column, true));
    RecordBatch::try_from_iter_with_nullable(columns).unwrap()
}

/// DataFusion's partial aggregate of a statement over these rows, and its task context.
async fn partial(sql: &str, memory: usize) -> (Arc<dyn ExecutionPlan>, Arc<TaskContext>) {
    let environment = RuntimeEnvBuilder::new()
        .with_memory_pool(Arc::new(GreedyMemoryPool::new(memory)))
        .build_arc()
        .unwrap();
    let config = SessionConfig::new().with_target_partitions(1);
    let context = SessionContext::new_with_config_rt(config, environment);
    let batches: Vec<RecordBatch> = (0..BATCHES).map(rows).collect();
    let table = MemTable::try_new(batches[0].schema(), vec![batches]).unwrap();
    context.register_table("t", Arc::new(table)).unwrap();
    let whole = aggregate_of(&context, sql).await;
    let partial = groups::partial(&whole, whole.input().clone());
    (Arc::new(partial.unwrap()), context.task_ctx())
}

async fn states(plan: &Arc<dyn ExecutionPlan>, context: &Arc<TaskContext>) -> RecordBatch {
    let batches = collect(plan.clone(), context.clone()).await.unwrap();
    concat_batches(&plan.schema(), &batches).unwrap()
}

/// The same values, floats nearly: coarser sets are merged from finer ones.
fn is_close(a: &ArrayRef, b: &ArrayRef) -> bool {
    let [Some(x), Some(y)] = [a, b].map(|array| array.as_primitive_opt::<Float64Type>()) else {
        return a == b;
    };
    let is_near = |(x, y): (Option<f64>, Option<f64>)| match (x, y) {
        (Some(x), Some(y)) => (x - y).abs() <= 1e-9 * x.abs().max(1e-6),
        (x, y) => x == y,
    };
    x.len() == y.len() && x.iter().zip(y).all(is_near)
}

async fn is_same(sql: &str, groups: impl Fn(usize) -> bool) {
    let (partial, context) = partial(sql, 1 << 30).await;
    let coded = with_coded_groups(partial.clone()).unwrap();
    assert!(coded.name() == "CodedExec" && name_of(&coded) == "AggregateExec", "{sql}");
    assert_eq!(partial.schema(), coded.schema(), "{sql}");
    let (expected, coded) = (states(&partial, &context).await, states(&coded, &context).await);
    assert!(groups(expected.num_rows()), "{sql}: {} groups", expected.num_rows());
    let columns = expected.columns().iter().zip(coded.columns());
    for (at, (expected, coded)) in columns.enumerate() {
        assert!(is_close(expected, coded), "{sql}: column {at}\n{expected:?}\n{coded:?}");
    }
}

const CALLS: &str = "sum(v), avg(v), count(*), count(v), min(b), max(n), stddev(v), sum(n) FILTER (WHERE o), count(*) FILTER (WHERE a > 3)";

const SETS: [&str; 12] = [
    "ROLLUP (a, b, d)",
    "CUBE (a, b, d)",
    "CUBE (o, b, a, d)",
    "ROLLUP (n, a)",
    "CUBE (n, b)",
    "GROUPING SETS ((a, b), (b), (a), ())",
    // None of the sets has all keys of another one.
    "GROUPING SETS ((a, b), (b, d), (d, a))",
    "GROUPING SETS ((b), (n), (o))",
    // The same set again, and the empty one.
    "GROUPING SETS ((a, b), (a), (a, b), (b, a), (), (a), ())",
    "GROUPING SETS ((), (o), (d, o, a))",
    "GROUPING SETS ((d, b), (b))",
    "ROLLUP (o)",
];

#[tokio::test]
async fn states_are_those_of_datafusion() {
    for sets in SETS {
        is_same(&format!("SELECT {CALLS} FROM t GROUP BY {sets}"), |groups| groups > 3).await;
        is_same(&format!("SELECT count(*) FROM t WHERE a > 2 GROUP BY {sets}"), |g| g > 2).await;
    }
}

#[tokio::test]
async fn empty_sets_have_a_group_without_rows() {
    for (sets, groups) in [
        ("ROLLUP (a, b)", 1),
        ("CUBE (b, d, o)", 1),
        ("GROUPING SETS ((a), (), (b), ())", 2),
        ("GROUPING SETS ((a), (b))", 0),
    ] {
        let sql = format!("SELECT {CALLS} FROM t WHERE v > 7 GROUP BY {sets}");
        is_same(&sql, |found| found == groups).await;
    }
}

/// Groups that do not fit into memory are yielded several times. Both forms have four sets.
#[tokio::test]
async fn little_memory_yields_groups_earlier() {
    for sets in ["CUBE (n, b)", "ROLLUP (a, b, d)"] {
        let sql = format!("SELECT count(*), max(n) FROM t GROUP BY {sets}");
        let (much, context) = partial(&sql, 1 << 30).await;
        let much = states(&much, &context).await;
        let (little, context) = partial(&sql, 1 << 10).await;
        let little = states(&with_coded_groups(little).unwrap(), &context).await;
        assert!(little.num_rows() > much.num_rows(), "{sql}: {} groups", little.num_rows());
        let rows = |states: &RecordBatch| -> i64 {
            let counts = states.column(states.num_columns() - 2);
            let counts = counts.as_any().downcast_ref::<Int64Array>().unwrap();
            counts.values().iter().sum()
        };
        assert_eq!(rows(&much), rows(&little), "{sql}");
        assert_eq!(rows(&much), (4 * BATCH * BATCHES) as i64, "{sql}");
    }
}

/// Keys of floats, and totals without keys, are left to DataFusion.
#[tokio::test]
async fn other_aggregates_remain() {
    for sql in [
        "SELECT count(*) FROM t GROUP BY ROLLUP (a, v)",
        "SELECT sum(v) FROM t GROUP BY GROUPING SETS (())",
        "SELECT sum(v) FROM t",
    ] {
        let (partial, _) = partial(sql, 1 << 30).await;
        assert_eq!(with_coded_groups(partial).unwrap().name(), "AggregateExec", "{sql}");
    }
}
