#![allow(clippy::unwrap_used, reason = "tests")]
//! Groups of a table of numbers, in splits. Expected values from DuckDB 2.0.

use super::*;
use crate::lift::{ScanColumn, TensorScan, session_state};
use crate::rows::guard::guarded;
use crate::rows::physical::in_order;
use crate::rows::splits::{RowsThreads, SplitSize, with_coded_groups, with_splits};
use crate::rows::table::TensorTable;
use crate::rows::{BoxError, Piece, RunTensor};
use datafusion::arrow::array::{AsArray, Float64Array, Int64Array};
use datafusion::arrow::compute::{cast, concat_batches};
use datafusion::arrow::datatypes::{Field, Float64Type, Int64Type, Schema};
use datafusion::catalog::TableProvider;
use datafusion::datasource::MemTable;
use datafusion::execution::SessionStateBuilder;
use datafusion::execution::memory_pool::FairSpillPool;
use datafusion::execution::runtime_env::RuntimeEnvBuilder;
use datafusion::physical_plan::collect;
use datafusion::prelude::SessionContext;
use futures::StreamExt;
use futures::stream::BoxStream;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::SeqCst};
use tessera_planner::build::Builder;
use tessera_planner::config::Config;
use tessera_planner::optimize::Rooted;
use tessera_planner::scalar::Scalar;

/// The answer over a table with the column `id`, in splits of `split` rows.
async fn answer(sql: &str, rows: i64, split: u64, threads: usize) -> RecordBatch {
    let ids: ArrayRef = Arc::new(Int64Array::from_iter_values(0..rows));
    let ids = RecordBatch::try_from_iter([("id", ids)]).unwrap();
    let table = MemTable::try_new(ids.schema(), vec![vec![ids]]).unwrap();
    answer_of(Arc::new(table), sql, split, threads).await
}

/// The answer over a table, in splits of `split` rows.
async fn answer_of(
    table: Arc<dyn TableProvider>,
    sql: &str,
    split: u64,
    threads: usize,
) -> RecordBatch {
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
    context.register_table("t", table).unwrap();
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

/// Returns the same cells in each run.
#[derive(Debug)]
struct Counted {
    cells: ArrayRef,
    runs: AtomicUsize,
}

impl RunTensor for Counted {
    fn run(&self, _: &TensorScan) -> BoxStream<'static, std::result::Result<Piece, BoxError>> {
        self.runs.fetch_add(1, SeqCst);
        stream::iter([Ok(Piece { root: 0, start: 0, cells: self.cells.clone() })]).boxed()
    }
}

/// A tensor with the label `id` and the cells `v`.
fn tensor(runner: &Arc<Counted>) -> Arc<dyn TableProvider> {
    let rows = runner.cells.len();
    let mut b = Builder::new(Config::default());
    let one = b.constant(Scalar::f64(1.0)).unwrap();
    let root = b.broadcast_to(one, &[rows as u64]).unwrap();
    let values: ArrayRef = Arc::new(Int64Array::from_iter_values(0..rows as i64));
    let fields = [("id", DataType::Int64), ("v", DataType::Float64)];
    let fields = fields.map(|(name, kind)| Field::new(name, kind, false));
    let scan = TensorScan {
        name: "t".into(),
        top: None,
        schema: Arc::new(Schema::new(fields.to_vec())),
        shape: vec![rows as u64],
        columns: vec![ScanColumn::Label { axis: 0, values }, ScanColumn::Cells(0)],
        origins: BTreeMap::new(),
        presence: None,
        rooted: Rooted { graph: b.graph, roots: vec![root] },
        exploded: false,
    };
    Arc::new(TensorTable::new(scan, runner.clone(), Arc::new(AtomicU64::new(0))))
}

/// Splits of a tensor share a run: later ones cannot show whether groups recur.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_tensor_runs_once_for_its_groups() {
    let sql = "SELECT v AS k, count(*) AS n, sum(id) AS s FROM t GROUP BY v";
    let keys = (0..400_000).map(|id: i64| (id * 7919 % 20_011) as f64);
    let cells: ArrayRef = Arc::new(Float64Array::from_iter_values(keys));
    for threads in [1, 4] {
        let runner = Arc::new(Counted { cells: cells.clone(), runs: AtomicUsize::new(0) });
        let answer = answer_of(tensor(&runner), sql, 200_000, threads).await;
        assert_eq!(totals(&answer), (20_011, 400_000, 79_999_800_000, 800_407_625_699_042));
        assert_eq!(runner.runs.load(SeqCst), 1, "{threads} threads");
    }
}

/// Parts of several keys, whose states do not wait in memory together.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn large_parts_of_several_keys_with_large_states_are_grouped() {
    let key = format!("'{}' || CAST(id % 20 AS VARCHAR)", "x".repeat(100));
    let sql = format!(
        "SELECT max(id % 20) AS k, count(DISTINCT id) AS n, median(CAST(id AS DOUBLE)) AS m FROM (SELECT id, {key} AS w FROM t) q GROUP BY w"
    );
    let one = answer(&sql, 400_000, 100_000, 1).await;
    let (k, n) = (integers(&one, 0), integers(&one, 1));
    assert_eq!((k.len(), k.iter().sum::<i64>()), (20, 190));
    assert!(n.iter().all(|n| *n == 20_000), "{n:?}");
    let medians = one.column(2).as_primitive::<Float64Type>().values().iter();
    assert!(k.iter().zip(medians).all(|(k, m)| (k + 199_990) as f64 == *m), "{one:?}");
    assert_eq!(one, answer(&sql, 400_000, 100_000, 4).await);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn random_keys_are_computed_once() {
    let sql = "SELECT floor(random() * 100000) AS k, count(*) AS n FROM t GROUP BY 1";
    for threads in [1, 4] {
        let all = answer(sql, 400_000, 100_000, threads).await;
        let (k, n) = (integers(&all, 0), integers(&all, 1));
        let different: BTreeSet<i64> = k.iter().copied().collect();
        assert_eq!((different.len(), n.iter().sum::<i64>()), (k.len(), 400_000));
    }
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
