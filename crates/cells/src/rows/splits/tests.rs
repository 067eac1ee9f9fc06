#![allow(clippy::unwrap_used, clippy::panic, reason = "tests")]
//! Plans with and without splits, on one thread and on several, with much memory and with little.

use super::*;
use crate::lift::session_state;
use crate::rows::guard::guarded;
use crate::rows::physical::in_order;
use datafusion::arrow::array::{Array, ArrayRef, Float64Array, Int64Array, StringArray};
use datafusion::arrow::compute::concat_batches;
use datafusion::arrow::record_batch::RecordBatch;
use datafusion::common::tree_node::TreeNodeRecursion;
use datafusion::datasource::MemTable;
use datafusion::error::DataFusionError;
use datafusion::execution::memory_pool::FairSpillPool;
use datafusion::execution::runtime_env::RuntimeEnvBuilder;
use datafusion::execution::{SessionStateBuilder, TaskContext};
use datafusion::physical_plan::collect;
use datafusion::prelude::{ParquetReadOptions, SessionConfig, SessionContext};

const ROWS: usize = 20_000;

/// `id` by rows, `k` of many and `g` of few values with NULLs, floats whose sums depend on their order, texts.
fn rows() -> RecordBatch {
    let hash = |i: usize, salt: usize| (i * 2_654_435_761 + salt * 40_503) >> 7;
    let id: Int64Array = (0..ROWS as i64).collect();
    let k: Int64Array = (0..ROWS).map(|i| Some((hash(i, 1) % 7919) as i64)).collect();
    let g: Int64Array =
        (0..ROWS).map(|i| Some((hash(i, 2) % 11) as i64).filter(|g| *g > 0)).collect();
    let v: Float64Array = (0..ROWS).map(|i| Some(1.0 / (1 + hash(i, 3) % 1013) as f64)).collect();
    let s: StringArray = (0..ROWS).map(|i| Some(format!("text {}", hash(i, 4) % 301))).collect();
    let columns: [(&str, ArrayRef); 5] = [
        ("id", Arc::new(id)),
        ("k", Arc::new(k)),
        ("g", Arc::new(g)),
        ("v", Arc::new(v)),
        ("s", Arc::new(s)),
    ];
    RecordBatch::try_from_iter(columns).unwrap()
}

pub(in crate::rows) const QUERIES: [&str; 55] = [
    "SELECT * FROM t",
    "SELECT id, v * 2 FROM t WHERE g = 3",
    "SELECT sum(v), avg(v), count(*), min(s), max(id), stddev(v) FROM t",
    "SELECT g, sum(v), avg(v), count(v), min(s) FROM t GROUP BY g ORDER BY g",
    "SELECT k, sum(v), max(s) FROM t GROUP BY k ORDER BY k",
    "SELECT s, k, sum(v) FROM t WHERE id > 100 GROUP BY s, k ORDER BY s, k",
    "SELECT count(DISTINCT k), count(DISTINCT s) FROM t",
    "SELECT g, count(DISTINCT k) FROM t GROUP BY g ORDER BY g",
    "SELECT g, k % 3, sum(v) FROM t GROUP BY ROLLUP (g, k % 3) ORDER BY 1, 2",
    "SELECT g, percentile_cont(0.05) WITHIN GROUP (ORDER BY v), median(v), approx_distinct(k) FROM t GROUP BY g ORDER BY g",
    "SELECT median(v), percentile_cont(0.9) WITHIN GROUP (ORDER BY v), corr(v, id), bit_xor(id), bool_or(g > 9) FROM t",
    "SELECT g, array_agg(id ORDER BY v, id), first_value(s ORDER BY id), corr(v, id), var_pop(v) FROM t WHERE id < 900 GROUP BY g ORDER BY g",
    "SELECT id FROM t ORDER BY v DESC, s",
    "SELECT id, s FROM t ORDER BY g NULLS FIRST, id DESC LIMIT 100",
    "SELECT id, g FROM t ORDER BY g DESC, id OFFSET 7000 LIMIT 9000",
    "SELECT a.id, b.id, a.v + b.v FROM t a JOIN t b ON a.k = b.id WHERE b.g = 5",
    "SELECT a.id, u.k FROM t a RIGHT JOIN (SELECT k, count(*) c FROM t GROUP BY k ORDER BY k LIMIT 50) u ON a.id = u.k",
    "SELECT id, sum(v) OVER (PARTITION BY g ORDER BY id), rank() OVER (PARTITION BY s ORDER BY v) FROM t ORDER BY id",
    "SELECT id, sum(v) OVER w, avg(v) OVER w, count(v) OVER w, max(v) OVER w FROM t WINDOW w AS (PARTITION BY k) ORDER BY id",
    "SELECT id, avg(v) OVER (ORDER BY id ROWS BETWEEN 9 PRECEDING AND CURRENT ROW), sum(v) OVER (ORDER BY id ROWS 5 PRECEDING), count(g) OVER (ORDER BY id ROWS BETWEEN 2 PRECEDING AND 3 FOLLOWING) FROM t ORDER BY id",
    "SELECT id, sum(v) OVER (PARTITION BY g ORDER BY s), avg(v) OVER (PARTITION BY g ORDER BY s), count(*) OVER (PARTITION BY g ORDER BY s) FROM t ORDER BY id",
    "SELECT id, row_number() OVER (PARTITION BY k ORDER BY v, id), rank() OVER (PARTITION BY k ORDER BY v), dense_rank() OVER (PARTITION BY g ORDER BY k) FROM t ORDER BY id",
    "SELECT id, sum(v) OVER (PARTITION BY k ORDER BY id ROWS BETWEEN 1 PRECEDING AND 1 FOLLOWING), lag(v) OVER (PARTITION BY k ORDER BY id) FROM t ORDER BY id",
    "SELECT id, sum(v) FILTER (WHERE g > 3) OVER (PARTITION BY k), min(s) OVER (PARTITION BY s, k) FROM t ORDER BY id",
    "SELECT max(n), sum(n * id) FROM (SELECT id, row_number() OVER (ORDER BY v, id) AS n FROM t) q",
    "SELECT g, median(length(r)), max(r) FROM (SELECT g, repeat(s, 400) AS r FROM t) q GROUP BY g ORDER BY g",
    "SELECT sum(v), count(*), max(id) FROM t WHERE k IN (SELECT k FROM t WHERE g = 3 AND s > 'text 250')",
    "SELECT u.g, sum(t.v) FROM t JOIN (SELECT k, g, s FROM t WHERE id % 1000 = 7) u ON t.k = u.k AND t.s = u.s GROUP BY u.g ORDER BY u.g",
    "SELECT t.id, u.k FROM t JOIN (SELECT DISTINCT k FROM t WHERE k < 9) u ON t.id BETWEEN u.k * 100 AND u.k * 100 + 3",
    RARE,
    COMMON,
    RARE_GROUPS,
    SEMI,
    ANTI,
    NOT_IN_GROUPS,
    MARK,
    LEFT,
    FULL,
    UNION,
    UNION_OF_CONSTANTS,
    "SELECT g, sum(v), count(*), min(s) FROM (SELECT g, v, s FROM t UNION ALL SELECT g, v, s FROM t WHERE k < 2000) q GROUP BY g ORDER BY g",
    "SELECT g, k % 5, count(*), sum(v), avg(v), min(s) FROM t GROUP BY CUBE (g, k % 5) ORDER BY 1, 2, 3",
    "SELECT k, g, s, count(*), sum(id), min(v) FROM t GROUP BY GROUPING SETS ((k, g), (s), (g), ()) ORDER BY 1, 2, 3, 4",
    "SELECT g, s, count(*), sum(v) FROM t WHERE k < 0 GROUP BY ROLLUP (g, s)",
    // Sums of floats above sorts depend on the ends of batches.
    "SELECT sum(v), sum(d * d), count(d) FROM (SELECT v, v - lag(v) OVER (ORDER BY s, id) AS d FROM t) q",
    "SELECT sum(d), max(d) FROM (SELECT avg(v) OVER (PARTITION BY k ORDER BY id) AS d FROM t WHERE g > 2) q",
    "SELECT id, lag(v) OVER (PARTITION BY s ORDER BY id DESC), sum(v) OVER (PARTITION BY s, g ORDER BY id) FROM t ORDER BY id",
    PER_VALUE,
    // Windows that are computed together.
    "SELECT j, sum(w) OVER (PARTITION BY h ORDER BY j ROWS 3 PRECEDING), stddev(w) OVER (PARTITION BY h ORDER BY j ROWS 3 PRECEDING), lag(w) OVER (PARTITION BY h ORDER BY j) FROM (SELECT g AS h, id AS j, v AS w FROM t) q ORDER BY j",
    "SELECT id, sum(v) OVER (PARTITION BY g ORDER BY k, id), avg(v) OVER (PARTITION BY g, k ORDER BY id ROWS 3 PRECEDING), max(s) OVER (PARTITION BY g ORDER BY k), sum(v) OVER (ORDER BY g, k, id ROWS 9 PRECEDING) FROM t ORDER BY id",
    "SELECT id, sum(v / r) OVER (PARTITION BY s ORDER BY v, id ROWS 5 PRECEDING) FROM (SELECT s, id, v, rank() OVER (PARTITION BY s ORDER BY v, id) AS r FROM t) q ORDER BY id",
    "SELECT id, avg(d) OVER (PARTITION BY g ORDER BY id ROWS 3 PRECEDING), sum(v) FILTER (WHERE k > 4000) OVER (PARTITION BY g ORDER BY id ROWS 3 PRECEDING), sum(n) OVER (PARTITION BY g) FROM (SELECT id, g, k, v, CAST(v AS DECIMAL(12, 6)) AS d, count(*) OVER (PARTITION BY g, s) AS n FROM t) q ORDER BY id",
    // States of few groups that have all values, or the first of equal rows.
    "SELECT g, median(v), percentile_cont(v, 0.9), median(v + id) FILTER (WHERE k > 100), count(*) FROM t GROUP BY g ORDER BY g",
    "SELECT g, first_value(s ORDER BY v DESC, id), last_value(id ORDER BY k % 5), first_value(id ORDER BY v DESC) FILTER (WHERE s IS NOT NULL), mode(k % 7), mode(s) FROM t GROUP BY g ORDER BY g",
    "SELECT first_value(s ORDER BY v DESC), first_value(id ORDER BY k % 5) FROM t",
];

/// Expressions that are evaluated for each distinct value: a condition, a key and arguments.
pub(in crate::rows) const PER_VALUE: &str = "SELECT upper(s), max('g' || g::text), sum(length(replace(s, 't', 'TT'))), sum(v) FROM t WHERE s LIKE '%_1%' GROUP BY upper(s) ORDER BY 1";

/// Rows of two inputs, those of the first one first.
const UNION: &str = "SELECT id, v FROM t WHERE g = 7 UNION ALL SELECT k, v FROM t WHERE g = 3";

/// The second input has columns without NULL, and other names.
const UNION_OF_CONSTANTS: &str = "SELECT g, sum(x), count(*) FROM (SELECT g, v AS x FROM t UNION ALL SELECT 5 AS h, coalesce(v, 0.5) FROM t WHERE k < 2000) q GROUP BY g ORDER BY g";

/// Joins that yield rows without a match of a small first side.
const LEFT: &str = "SELECT u.id, u.v, t.id FROM (SELECT id, v, k FROM t WHERE g = 7 LIMIT 300) u LEFT JOIN t ON t.id = u.k AND t.g > 8";
const FULL: &str = "SELECT u.id, u.v, t.id FROM (SELECT id, v, k FROM t WHERE g = 7 LIMIT 300) u FULL JOIN (SELECT id, g FROM t WHERE id % 3 = 0) t ON t.id = u.k AND t.g > 8 ORDER BY u.id, t.id";

/// Joins that yield rows of their first side.
const SEMI: &str = "SELECT u.id, u.v FROM (SELECT id, v, k FROM t WHERE g = 7 LIMIT 300) u WHERE EXISTS (SELECT 1 FROM t WHERE t.id = u.k AND t.g > 8)";
const ANTI: &str = "SELECT u.id, u.v FROM (SELECT id, v, k FROM t WHERE g = 7 LIMIT 300) u WHERE NOT EXISTS (SELECT 1 FROM t WHERE t.id = u.k AND t.g > 8)";
/// No row: the groups have NULL, which lies beyond the bounds of the keys.
const NOT_IN_GROUPS: &str = "SELECT count(*) FROM t u WHERE u.id > 100 AND u.s = 'text 7' AND u.id NOT IN (SELECT g FROM t GROUP BY g)";
const MARK: &str = "SELECT u.id, u.v FROM (SELECT id, v, k FROM t WHERE g = 7 LIMIT 300) u WHERE EXISTS (SELECT 1 FROM t WHERE t.id = u.k AND t.g > 8) OR u.v > 0.01";

/// Of the 7919 keys of `t`, the other side has some sixty.
const RARE: &str = "SELECT sum(t.v), count(*), min(t.s) FROM t JOIN t u ON t.k = u.id WHERE u.s = 'text 7' AND t.g > 2";
/// The other side has some 1800.
const COMMON: &str =
    "SELECT sum(t.v), count(*), min(t.s) FROM t JOIN t u ON t.k = u.id WHERE u.g = 5";
/// Of the groups of `t`, the other side has some sixty.
const RARE_GROUPS: &str = "SELECT u.id, u.v, q.a, q.n FROM t u JOIN (SELECT k, avg(v) AS a, count(*) AS n FROM t GROUP BY k) q ON u.id = q.k WHERE u.s = 'text 7' AND u.v < q.a ORDER BY u.id";

struct World {
    threads: usize,
    memory: usize,
    is_split: bool,
}

async fn answers(world: &World, sql: &str, file: &std::path::Path) -> Result<RecordBatch> {
    run(world, sql, file).await.map(|(_, rows)| rows)
}

async fn run(
    world: &World,
    sql: &str,
    file: &std::path::Path,
) -> Result<(Arc<dyn ExecutionPlan>, RecordBatch)> {
    let (plan, batches) = batches(world, sql, file).await?;
    let rows = concat_batches(&plan.schema(), &batches)?;
    Ok((plan, rows))
}

async fn batches(
    world: &World,
    sql: &str,
    file: &std::path::Path,
) -> Result<(Arc<dyn ExecutionPlan>, Vec<RecordBatch>)> {
    let state = session_state(1 << 30).map_err(|e| DataFusionError::External(Box::new(e)))?;
    let config = state
        .config()
        .clone()
        .with_batch_size(512)
        .with_sort_spill_reservation_bytes(16 << 10)
        .with_extension(Arc::new(RowsThreads(world.threads)));
    let environment = RuntimeEnvBuilder::new()
        .with_memory_pool(Arc::new(FairSpillPool::new(world.memory)))
        .build_arc()?;
    let state = SessionStateBuilder::new_from_existing(state)
        .with_config(config)
        .with_runtime_env(environment)
        .build();
    let context = SessionContext::new_with_state(in_order(&state));
    match sql.contains("a.") {
        // Ranges of one file hold its row groups.
        false => {
            let file = file.to_str().unwrap();
            context.register_parquet("t", file, ParquetReadOptions::default()).await?;
        }
        true => {
            let rows = rows();
            context.register_table(
                "t",
                Arc::new(MemTable::try_new(rows.schema(), vec![vec![rows]])?),
            )?;
        }
    }
    let plan = guarded(context.sql(sql).await?.create_physical_plan().await?, None, None, 512)?;
    let plan = if world.is_split { with_splits(plan, SplitSize::of(16 << 10))? } else { plan };
    let is_stopped: crate::rows::IsStopped = Arc::new(|| false);
    let rules = JoinRules::of(std::slice::from_ref(&plan))?;
    let plan = with_exact_sorts(with_grace_joins(plan, rules, &is_stopped)?, rules)?;
    let ends = context.runtime_env().cache_manager.get_file_metadata_cache();
    let plan = with_coded_groups(with_dictionaries(plan, &*ends)?)?;
    let batches = collect(plan.clone(), Arc::new(TaskContext::from(&context.state()))).await?;
    Ok((plan, batches))
}

/// The same values, floats nearly.
fn is_close(a: &RecordBatch, b: &RecordBatch) -> bool {
    let floats = |array: &ArrayRef| array.as_any().downcast_ref::<Float64Array>().cloned();
    let columns = a.columns().iter().zip(b.columns());
    columns.into_iter().all(|(a, b)| match (floats(a), floats(b)) {
        (Some(a), Some(b)) => {
            let close = |(a, b): (Option<f64>, Option<f64>)| match (a, b) {
                (Some(a), Some(b)) => (a - b).abs() <= 1e-12 * a.abs().max(b.abs()),
                (a, b) => a == b,
            };
            a.iter().zip(b.iter()).all(close)
        }
        _ => a == b,
    })
}

pub(in crate::rows) fn file() -> (tempfile::TempDir, std::path::PathBuf) {
    use parquet::arrow::ArrowWriter;
    use parquet::file::properties::WriterProperties;
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("t.parquet");
    let properties = WriterProperties::builder().set_max_row_group_row_count(Some(700)).build();
    let rows = rows();
    let file = std::fs::File::create(&path).unwrap();
    let mut writer = ArrowWriter::try_new(file, rows.schema(), Some(properties)).unwrap();
    writer.write(&rows).unwrap();
    writer.close().unwrap();
    (directory, path)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn splits_have_the_same_rows_and_bits_on_any_number_of_threads() {
    let (_directory, path) = file();
    let world = |threads, is_split| World { threads, memory: 1 << 30, is_split };
    for sql in QUERIES {
        let whole = answers(&world(1, false), sql, &path).await.unwrap();
        let split = answers(&world(1, true), sql, &path).await.unwrap();
        assert!(whole.num_rows() > 0 && is_close(&whole, &split), "{sql}");
        for threads in [2, 8] {
            assert_eq!(split, answers(&world(threads, true), sql, &path).await.unwrap(), "{sql}");
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn splits_have_the_same_bits_in_little_memory() {
    let (_directory, path) = file();
    let mut fitting = 0;
    for sql in QUERIES {
        let much = World { threads: 4, memory: 1 << 30, is_split: true };
        let much = answers(&much, sql, &path).await.unwrap();
        let little = World { threads: 4, memory: 1 << 20, is_split: true };
        match answers(&little, sql, &path).await {
            Ok(little) => {
                fitting += 1;
                assert_eq!(much, little, "{sql}");
            }
            Err(e) => assert!(
                matches!(e.find_root(), DataFusionError::ResourcesExhausted(_)),
                "{sql}: {e}"
            ),
        }
    }
    assert!(fitting > 12, "{fitting} queries fit");
}

/// Statements whose last operators are sorts and windows. Of the first one, rows are in order already.
pub(in crate::rows) const SORTED: [&str; 9] = [
    "SELECT id, v FROM t ORDER BY id",
    "SELECT id, s FROM t ORDER BY v DESC, s",
    "SELECT g, id FROM t WHERE k > 5 ORDER BY g NULLS FIRST",
    "SELECT s, k, v FROM t ORDER BY s DESC, k",
    "SELECT id, v FROM t ORDER BY v OFFSET 300 LIMIT 11000",
    "SELECT id, k, sum(v) OVER (PARTITION BY k), count(g) OVER (PARTITION BY k) FROM t",
    "SELECT id, lag(v) OVER (PARTITION BY k) FROM t",
    "SELECT id, avg(v) OVER (ORDER BY v, id ROWS BETWEEN 9 PRECEDING AND CURRENT ROW) FROM t WHERE g > 2",
    "SELECT s, id, sum(v) OVER (PARTITION BY s ORDER BY id) FROM t",
];

/// True if all of these batches but the last one have the usual number of rows.
pub(in crate::rows) fn are_even(batches: &[RecordBatch], batch_rows: usize) -> bool {
    let Some((last, full)) = batches.split_last() else { return false };
    let rows = last.num_rows();
    full.iter().all(|batch| batch.num_rows() == batch_rows) && rows > 0 && rows <= batch_rows
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn batches_of_sorts_and_windows_end_at_the_same_rows() {
    let (_directory, path) = file();
    let mut fitting = 0;
    for sql in SORTED {
        // An offset drops the first rows of the batches.
        let is_whole = !sql.contains("OFFSET");
        let world = |threads, memory| World { threads, memory, is_split: true };
        let (_, one) = batches(&world(1, 1 << 30), sql, &path).await.unwrap();
        assert!(!is_whole || are_even(&one, 512), "{sql}");
        for (threads, memory) in [(2, 1 << 30), (8, 1 << 30), (4, 1 << 20)] {
            match batches(&world(threads, memory), sql, &path).await {
                Ok((_, other)) => {
                    fitting += usize::from(memory < 1 << 30);
                    assert_eq!(one, other, "{sql}: {threads} threads, {memory} bytes");
                }
                Err(e) => {
                    let root = e.find_root();
                    let is_short = matches!(root, DataFusionError::ResourcesExhausted(_));
                    assert!(is_short && memory < 1 << 30, "{sql}: {e}");
                }
            }
        }
    }
    assert!(fitting > 0, "{fitting} statements fit into little memory");
}

/// Of narrow rows the keys and numbers take more memory than the values.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn sorts_and_windows_of_narrow_rows_fit_into_little_memory() {
    let (_directory, path) = file();
    for sql in [
        "SELECT v FROM t ORDER BY v",
        "SELECT id, v FROM t ORDER BY v DESC, id",
        "SELECT max(n), sum(n * id) FROM (SELECT id, row_number() OVER (ORDER BY v) AS n FROM t) q",
    ] {
        let world = |memory| World { threads: 4, memory, is_split: true };
        let much = answers(&world(1 << 30), sql, &path).await.unwrap();
        let little = answers(&world(512 << 10), sql, &path).await;
        assert_eq!(much, little.unwrap_or_else(|e| panic!("{sql}: {e}")), "{sql}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn percentiles_that_spill_have_all_their_values() {
    let (_directory, path) = file();
    let sql =
        "SELECT k, percentile_cont(0.05) WITHIN GROUP (ORDER BY v) FROM t GROUP BY k ORDER BY k";
    let world = |memory| World { threads: 1, memory, is_split: false };
    let much = answers(&world(1 << 30), sql, &path).await.unwrap();
    assert_eq!(much, answers(&world(1 << 20), sql, &path).await.unwrap());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn readers_leave_out_rows_where_keys_are_rare() {
    let (_directory, path) = file();
    let left_out = async |sql: &str, is_split| {
        let world = World { threads: 4, memory: 1 << 30, is_split };
        let (plan, rows) = run(&world, sql, &path).await.unwrap();
        let mut left_out = 0;
        plan.each(|node| {
            let metrics = node.metrics();
            let of_node = metrics.and_then(|metrics| metrics.sum_by_name("pushdown_rows_pruned"));
            left_out += of_node.map_or(0, |rows| rows.as_usize());
            Ok(TreeNodeRecursion::Continue)
        })
        .unwrap();
        (left_out, rows)
    };
    let (rows, rare) = left_out(RARE, true).await;
    assert!((ROWS * 9 / 10..ROWS).contains(&rows), "{rows} rows");
    let (rows, whole) = left_out(RARE, false).await;
    assert!(rows == 0 && is_close(&rare, &whole), "{rows} rows");
    let (rows, rare) = left_out(RARE_GROUPS, true).await;
    assert!((ROWS * 9 / 10..ROWS).contains(&rows), "{rows} rows below groups");
    assert!(is_close(&rare, &left_out(RARE_GROUPS, false).await.1));
    // Conditions skip only groups of rows; and errors of a computed key are not for the reader.
    let computed = RARE.replace("t.k = u.id", "t.k + 1 = u.id");
    for sql in [COMMON, computed.as_str(), QUERIES[1], QUERIES[13]] {
        assert_eq!(left_out(sql, true).await.0, 0, "{sql}");
    }
}

#[tokio::test]
async fn plans_are_split_where_rows_are_independent() {
    let (_directory, path) = file();
    let context = SessionContext::new_with_config(SessionConfig::new().with_target_partitions(1));
    let context = SessionContext::new_with_state(in_order(&context.state()));
    let file = path.to_str().unwrap();
    context.register_parquet("t", file, ParquetReadOptions::default()).await.unwrap();
    let shown = async |sql: &str| {
        let plan = context.sql(sql).await.unwrap().create_physical_plan().await.unwrap();
        let plan = with_splits(plan, SplitSize::of(16 << 10)).unwrap();
        let lines = datafusion::physical_plan::displayable(plan.as_ref()).indent(false).to_string();
        let names =
            lines.lines().map(|line| line.split(':').next().unwrap_or_default().to_string());
        names.collect::<Vec<_>>().join("\n")
    };
    insta::assert_snapshot!(shown(QUERIES[2]).await, @r"
    ProjectionExec
      AggregateExec
        GatherExec
          AggregateExec
            DataSourceExec
    ");
    insta::assert_snapshot!(shown(QUERIES[4]).await, @r"
    SortSplitsExec
      GroupsExec
        DataSourceExec
    ");
    insta::assert_snapshot!(shown(QUERIES[13]).await, @r"
    ProjectionExec
      SortExec
        GatherExec
          FirstExec
            DataSourceExec
    ");
    insta::assert_snapshot!(shown(QUERIES[18]).await, @r"
    SortSplitsExec
      ProjectionExec
        WindowsExec
          DataSourceExec
    ");
    insta::assert_snapshot!(shown(SEMI).await, @r"
    GatherExec
      HashJoinExec
        KeysExec
          FilterExec
            GatherExec
              DataSourceExec
        FilterExec
          DataSourceExec
    ");
    insta::assert_snapshot!(shown(LEFT).await, @r"
    GatherExec
      HashJoinExec
        FilterExec
          GatherExec
            DataSourceExec
        ConcatExec
          FilterExec
            DataSourceExec
    ");
    insta::assert_snapshot!(shown(UNION).await, @r"
    GatherExec
      ConcatExec
        FilterExec
          DataSourceExec
        ProjectionExec
          FilterExec
            DataSourceExec
    ");
    let joined = "SELECT sum(a.v) FROM t a JOIN t b ON a.k = b.id WHERE b.g = 5";
    insta::assert_snapshot!(shown(joined).await, @r"
    AggregateExec
      GatherExec
        AggregateExec
          HashJoinExec
            KeysExec
              GatherExec
                FilterExec
                  DataSourceExec
            DataSourceExec
    ");
}
