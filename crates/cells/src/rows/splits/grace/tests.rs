#![allow(clippy::unwrap_used, clippy::panic, reason = "tests")]
//! Joins in memory and in files against loops over all rows, which are compared with DuckDB's totals.

use super::super::gather::{RowsThreads, gathered};
use super::*;
use datafusion::arrow::array::{ArrayRef, AsArray, Int64Array, StringArray};
use datafusion::arrow::datatypes::{DataType, Field, Int64Type, Schema};
use datafusion::common::{JoinSide, NullEquality};
use datafusion::datasource::memory::MemorySourceConfig;
use datafusion::execution::memory_pool::{MemoryLimit, MemoryPool};
use datafusion::execution::runtime_env::RuntimeEnvBuilder;
use datafusion::logical_expr::Operator;
use datafusion::physical_expr::expressions::{BinaryExpr, Column};
use datafusion::physical_plan::collect;
use datafusion::physical_plan::joins::utils::{ColumnIndex, JoinFilter};
use datafusion::prelude::SessionConfig;
use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst};
use tessera_exec::error::Error;

/// A row: its number, a key that may be missing, another key, a value for a condition.
#[derive(Debug, Clone, Copy)]
struct Row {
    id: i64,
    k: Option<i64>,
    s: i64,
    v: i64,
}

fn first_side() -> Vec<Row> {
    let row = |id: i64| Row {
        id,
        k: Some(id * 7919 % 701).filter(|_| id % 97 != 5),
        s: id * 31 % 5,
        v: id * 37 % 100,
    };
    (0..1500).map(row).collect()
}

fn second_side() -> Vec<Row> {
    let row = |id: i64| Row {
        id,
        k: Some(id * 104_729 % 997).filter(|_| id % 89 != 3),
        s: id % 3,
        v: id * 61 % 100,
    };
    (0..2000).map(row).collect()
}

fn batch(rows: &[Row]) -> RecordBatch {
    let columns: [ArrayRef; 4] = [
        Arc::new(rows.iter().map(|row| Some(row.id)).collect::<Int64Array>()),
        Arc::new(rows.iter().map(|row| row.k).collect::<Int64Array>()),
        Arc::new(rows.iter().map(|row| Some(format!("{:0>400}", row.s))).collect::<StringArray>()),
        Arc::new(rows.iter().map(|row| Some(row.v)).collect::<Int64Array>()),
    ];
    let schema = Schema::new(vec![
        Field::new("id", DataType::Int64, false),
        Field::new("k", DataType::Int64, true),
        Field::new("s", DataType::Utf8, false),
        Field::new("v", DataType::Int64, false),
    ]);
    RecordBatch::try_new(Arc::new(schema), columns.to_vec()).unwrap()
}

/// The rows in batches of 100, in partitions of `partition` rows.
fn scan(rows: &[Row], partition: usize) -> Arc<dyn ExecutionPlan> {
    let batches = |rows: &[Row]| rows.chunks(100).map(batch).collect::<Vec<_>>();
    let partitions: Vec<_> = rows.chunks(partition).map(batches).collect();
    MemorySourceConfig::try_new_exec(&partitions, batch(&[]).schema(), None).unwrap()
}

/// The condition of a join.
#[derive(Debug, Clone, Copy)]
struct On {
    /// `k = k`, or `k IS NOT DISTINCT FROM k AND s = s AND first.v < second.v`.
    is_all: bool,
}

impl On {
    fn matches(self, first: &Row, second: &Row) -> bool {
        match self.is_all {
            true => first.k == second.k && first.s == second.s && first.v < second.v,
            false => first.k.is_some() && first.k == second.k,
        }
    }

    fn join(
        self,
        kind: JoinType,
        first: Arc<dyn ExecutionPlan>,
        second: Arc<dyn ExecutionPlan>,
    ) -> Arc<dyn ExecutionPlan> {
        let column = |name: &str, at| Arc::new(Column::new(name, at)) as Arc<dyn PhysicalExpr>;
        let mut on = vec![(column("k", 1), column("k", 1))];
        let (mut filter, mut nulls) = (None, NullEquality::NullEqualsNothing);
        if self.is_all {
            on.push((column("s", 2), column("s", 2)));
            nulls = NullEquality::NullEqualsNull;
            let less = BinaryExpr::new(column("a", 0), Operator::Lt, column("b", 1));
            let value = |side| ColumnIndex { index: 3, side };
            let schema = Schema::new(vec![
                Field::new("a", DataType::Int64, false),
                Field::new("b", DataType::Int64, false),
            ]);
            let columns = vec![value(JoinSide::Left), value(JoinSide::Right)];
            filter = Some(JoinFilter::new(Arc::new(less), columns, Arc::new(schema)));
        }
        let mode = PartitionMode::CollectLeft;
        let join =
            HashJoinExec::try_new(first, second, on, filter, &kind, None, mode, nulls, false);
        Arc::new(join.unwrap())
    }
}

/// A row of a result: the numbers of its rows, and the mark of a mark join.
type Found = (Option<i64>, Option<i64>, Option<bool>);

/// The second side in its order, each row with its matches in the order of the first side; then rows of the first side.
fn expected(kind: JoinType, on: On, first: &[Row], second: &[Row]) -> Vec<Found> {
    use JoinType::{
        Full, Inner, Left, LeftAnti, LeftMark, LeftSemi, Right, RightAnti, RightMark, RightSemi,
    };
    let (mut found, mut seen) = (Vec::new(), BTreeSet::new());
    for row in second {
        let matches: Vec<i64> =
            first.iter().filter(|first| on.matches(first, row)).map(|first| first.id).collect();
        seen.extend(matches.iter().copied());
        match kind {
            Inner | Left => found.extend(matches.iter().map(|id| (Some(*id), Some(row.id), None))),
            Right | Full if matches.is_empty() => found.push((None, Some(row.id), None)),
            Right | Full => found.extend(matches.iter().map(|id| (Some(*id), Some(row.id), None))),
            RightSemi if !matches.is_empty() => found.push((None, Some(row.id), None)),
            RightAnti if matches.is_empty() => found.push((None, Some(row.id), None)),
            RightMark => found.push((None, Some(row.id), Some(!matches.is_empty()))),
            RightSemi | RightAnti | LeftSemi | LeftAnti | LeftMark => {}
        }
    }
    let left = first.iter().filter_map(|row| match (kind, seen.contains(&row.id)) {
        (Left | Full | LeftAnti, false) | (LeftSemi, true) => Some((Some(row.id), None, None)),
        (LeftMark, is_seen) => Some((Some(row.id), None, Some(is_seen))),
        _ => None,
    });
    found.extend(left);
    found
}

fn found(kind: JoinType, batches: &[RecordBatch]) -> Vec<Found> {
    let is_of_second =
        matches!(kind, JoinType::RightSemi | JoinType::RightAnti | JoinType::RightMark);
    let mut all = Vec::new();
    for batch in batches {
        let numbers = |column: usize| -> Vec<Option<i64>> {
            match column < batch.num_columns()
                && *batch.column(column).data_type() == DataType::Int64
            {
                true => batch.column(column).as_primitive::<Int64Type>().iter().collect(),
                false => vec![None; batch.num_rows()],
            }
        };
        let (first, second) = match is_of_second {
            true => (vec![None; batch.num_rows()], numbers(0)),
            false => (numbers(0), numbers(4)),
        };
        for row in 0..batch.num_rows() {
            let mark = matches!(kind, JoinType::LeftMark | JoinType::RightMark)
                .then(|| batch.column(4).as_boolean().value(row));
            all.push((first[row], second[row], mark));
        }
    }
    all
}

/// Refuses memory for the tables of joins alone.
#[derive(Debug)]
struct Pool {
    /// Bytes of the first side with the hashes of its rows, and of a table with its rows.
    most: [usize; 2],
    /// Peaks of the granted bytes.
    peaks: [AtomicUsize; 2],
    limit: usize,
    used: AtomicUsize,
    /// Bytes of the first side and its hashes.
    first: AtomicUsize,
    has_files: AtomicBool,
}

/// The consumer of the first side's memory.
const FIRST: &str = "table of a join";

impl Pool {
    fn new(most: [usize; 2], limit: usize) -> Arc<Self> {
        let (peaks, used, first, has_files) = Default::default();
        Arc::new(Pool { most, peaks, limit, used, first, has_files })
    }
}

impl fmt::Display for Pool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("pool")
    }
}

impl MemoryPool for Pool {
    fn name(&self) -> &str {
        "pool"
    }

    fn grow(&self, reservation: &MemoryReservation, additional: usize) {
        self.used.fetch_add(additional, SeqCst);
        if reservation.consumer().name() == FIRST {
            self.first.fetch_add(additional, SeqCst);
        }
    }

    fn shrink(&self, reservation: &MemoryReservation, shrink: usize) {
        self.used.fetch_sub(shrink, SeqCst);
        if reservation.consumer().name() == FIRST {
            self.first.fetch_sub(shrink, SeqCst);
        }
    }

    fn try_grow(&self, reservation: &MemoryReservation, additional: usize) -> Result<()> {
        let wanted = match reservation.consumer().name() {
            FIRST => Some((0, self.first.load(SeqCst) + additional)),
            "HashJoinInput" | "rows of a join" => Some((1, reservation.size() + additional)),
            name => {
                self.has_files.fetch_or(name == "scattered rows", SeqCst);
                None
            }
        };
        if let Some((of, bytes)) = wanted {
            if bytes > self.most[of] {
                return Err(DataFusionError::ResourcesExhausted("on purpose".into()));
            }
            self.peaks[of].fetch_max(bytes, SeqCst);
        }
        self.grow(reservation, additional);
        Ok(())
    }

    fn reserved(&self) -> usize {
        self.used.load(SeqCst)
    }

    fn memory_limit(&self) -> MemoryLimit {
        MemoryLimit::Finite(self.limit)
    }
}

const RULES: JoinRules = JoinRules { may_spill: true, is_exact: true };
const MUCH: [usize; 2] = [usize::MAX; 2];

async fn run(
    join: Arc<dyn ExecutionPlan>,
    most: [usize; 2],
    limit: usize,
    is_stopped: bool,
) -> Result<Vec<RecordBatch>> {
    run_in(&Pool::new(most, limit), RULES, join, is_stopped).await
}

async fn run_in(
    pool: &Arc<Pool>,
    rules: JoinRules,
    join: Arc<dyn ExecutionPlan>,
    is_stopped: bool,
) -> Result<Vec<RecordBatch>> {
    run_on(4, pool, rules, join, is_stopped).await
}

async fn run_on(
    threads: usize,
    pool: &Arc<Pool>,
    rules: JoinRules,
    join: Arc<dyn ExecutionPlan>,
    is_stopped: bool,
) -> Result<Vec<RecordBatch>> {
    let is_stopped: IsStopped = Arc::new(move || is_stopped);
    let plan = gathered(with_grace_joins(join, rules, &is_stopped)?);
    let environment = RuntimeEnvBuilder::new().with_memory_pool(pool.clone()).build_arc()?;
    let config = SessionConfig::new().with_batch_size(64);
    let config = config.with_extension(Arc::new(RowsThreads(threads)));
    let context = TaskContext::default().with_session_config(config).with_runtime(environment);
    let rows = collect(plan, Arc::new(context)).await?;
    assert_eq!(pool.reserved(), 0, "all memory is free");
    Ok(rows)
}

const KINDS: [JoinType; 10] = [
    JoinType::Inner,
    JoinType::Left,
    JoinType::Right,
    JoinType::Full,
    JoinType::LeftSemi,
    JoinType::LeftAnti,
    JoinType::LeftMark,
    JoinType::RightSemi,
    JoinType::RightAnti,
    JoinType::RightMark,
];

/// DuckDB's counts, and sums of both numbers. Mark joins have all rows, and the sum of those with a mark.
const TOTALS: [[(usize, i64, i64); 10]; 2] = [
    [
        (2947, 2_209_300, 2_933_956),
        (2963, 2_221_020, 2_933_956),
        (3554, 2_209_300, 3_545_244),
        (3570, 2_221_020, 3_545_244),
        (1484, 1_112_530, 0),
        (16, 11_720, 0),
        (1500, 1_112_530, 0),
        (1393, 0, 1_387_712),
        (607, 0, 611_288),
        (2000, 0, 1_387_712),
    ],
    [
        (322, 240_037, 312_975),
        (1524, 1_143_867, 312_975),
        (2017, 240_037, 2_014_715),
        (3219, 1_143_867, 2_014_715),
        (298, 220_420, 0),
        (1202, 903_830, 0),
        (1500, 220_420, 0),
        (305, 0, 297_260),
        (1695, 0, 1_701_740),
        (2000, 0, 297_260),
    ],
];

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn joins_in_files_have_the_rows_and_the_batches_of_joins_in_memory() {
    let (first, second) = (first_side(), second_side());
    let mut divided = 0;
    for (is_all, totals) in [false, true].into_iter().zip(TOTALS) {
        let on = On { is_all };
        for (kind, total) in KINDS.into_iter().zip(totals) {
            let want = expected(kind, on, &first, &second);
            let counted = want.iter().filter(|(_, _, mark)| *mark != Some(false));
            let sums = counted.fold((0, 0), |(a, b), (first, second, _)| {
                (a + first.unwrap_or(0), b + second.unwrap_or(0))
            });
            assert_eq!((want.len(), sums.0, sums.1), total, "{kind} {on:?}");
            // The table is refused memory, and that of each pair fits; the rows are refused it, and pairs are divided.
            let little = [0, 6 << 10];
            for (splits, most) in [(1, [usize::MAX, 100 << 10]), (3, [0, 64 << 10]), (3, little)] {
                let (left, right) = (scan(&first, 1500), scan(&second, 2000usize.div_ceil(splits)));
                let join = on.join(kind, left, right);
                let whole = run(join.clone(), MUCH, 1 << 30, false).await.unwrap();
                let case = format!("{kind} {on:?}, {splits} splits, {most:?} bytes");
                assert_eq!(found(kind, &whole), want, "{case}");
                match run(join, most, 1 << 30, false).await {
                    Ok(files) => {
                        assert_eq!(files, whole, "{case}");
                        divided += usize::from(most == little);
                    }
                    // Rows of one key need more.
                    Err(e) => {
                        let is_refused =
                            matches!(e.find_root(), DataFusionError::ResourcesExhausted(_));
                        assert!(is_refused && most == little, "{case}: {e}");
                    }
                }
            }
        }
    }
    assert!(divided > 4, "{divided} joins of divided pairs");
}

/// The last request is refused: for the hashes of the first side or else its last rows, and for the table over all rows.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn joins_go_to_files_where_the_rows_fit_and_their_table_does_not() {
    let (first, second) = (first_side(), second_side());
    for (is_exact, is_all) in [(true, false), (true, true), (false, false), (false, true)] {
        let (rules, on) = (JoinRules { may_spill: true, is_exact }, On { is_all });
        for kind in KINDS {
            let want = expected(kind, on, &first, &second);
            let join = on.join(kind, scan(&first, 1500), scan(&second, 700));
            let much = Pool::new(MUCH, 1 << 30);
            let whole = run_in(&much, rules, join.clone(), false).await.unwrap();
            assert_eq!(found(kind, &whole), want, "{kind} {on:?}");
            assert!(!much.has_files.load(SeqCst), "{kind} {on:?}");
            let [rows, table] = [0, 1].map(|of| much.peaks[of].load(SeqCst));
            for most in [[rows - 1, usize::MAX], [usize::MAX, table - 1]] {
                let case = format!("{kind} {on:?}, exact: {is_exact}, {most:?} bytes");
                let little = Pool::new(most, 1 << 30);
                let files = run_in(&little, rules, join.clone(), false).await;
                let files = files.unwrap_or_else(|e| panic!("{case}: {e}"));
                assert!(little.has_files.load(SeqCst), "{case}");
                assert_eq!(found(kind, &files), want, "{case}");
                assert!(!is_exact || files == whole, "{case}");
            }
        }
    }
}

/// Integers that are close, and others; one row for each key, and several.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn joins_in_memory_find_all_matches() {
    let on = On { is_all: false };
    for (keys, scale) in [(5000, 1), (5000, 1 << 40), (300, 1), (300, 1 << 40)] {
        let row = |id: i64, factor: i64| Row {
            id,
            k: Some(id * factor % keys * scale - 7).filter(|_| id % 97 != 5),
            s: 0,
            v: 0,
        };
        let first: Vec<Row> = (0..500).map(|id| row(id, 7)).collect();
        let some: Vec<Row> = (0..900).map(|id| row(id, 21)).collect();
        let all = first.iter().copied().filter(|row| row.k.is_some()).collect();
        for (second, kind) in [some, all].iter().flat_map(|of| KINDS.map(|kind| (of, kind))) {
            let want = expected(kind, on, &first, second);
            for is_exact in [true, false] {
                let join = on.join(kind, scan(&first, 500), scan(second, 400));
                let rules = JoinRules { may_spill: true, is_exact };
                let rows = run_in(&Pool::new(MUCH, 1 << 30), rules, join, false).await.unwrap();
                let case = format!("{kind}, {keys} keys of {scale}, {} rows", second.len());
                assert_eq!(found(kind, &rows), want, "{case}");
            }
        }
    }
}

/// Integers far apart, and texts: all threads fill the table.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn joins_of_many_rows_are_the_same_on_any_number_of_threads() {
    use JoinType::{Inner, Right, RightAnti, RightMark, RightSemi};
    let row = |id: i64, keys: i64| {
        let k = id * 7919 % keys;
        Row { id, k: Some(k << 40).filter(|_| id % 97 != 5), s: k % 3, v: 0 }
    };
    let first: Vec<Row> = (0..70_000).map(|id| row(id, 50_021)).collect();
    let second: Vec<Row> = (0..200).map(|id| row(id, 60_013)).collect();
    let batch = |rows: &[Row]| {
        let columns: [(&str, ArrayRef); 4] = [
            ("id", Arc::new(rows.iter().map(|row| Some(row.id)).collect::<Int64Array>())),
            ("k", Arc::new(rows.iter().map(|row| row.k).collect::<Int64Array>())),
            (
                "s",
                Arc::new(rows.iter().map(|row| Some(row.s.to_string())).collect::<StringArray>()),
            ),
            ("v", Arc::new(rows.iter().map(|row| Some(row.v)).collect::<Int64Array>())),
        ];
        RecordBatch::try_from_iter_with_nullable(columns.map(|(name, of)| (name, of, true)))
            .unwrap()
    };
    let scan = |rows: &[Row], partition: usize| {
        let batches = |rows: &[Row]| rows.chunks(1000).map(batch).collect::<Vec<_>>();
        let partitions: Vec<_> = rows.chunks(partition).map(batches).collect();
        MemorySourceConfig::try_new_exec(&partitions, batch(&[]).schema(), None).unwrap()
    };
    let key = |name: &str, at| Arc::new(Column::new(name, at)) as Arc<dyn PhysicalExpr>;
    for kind in [Inner, Right, RightAnti, RightMark, RightSemi] {
        let want = expected(kind, On { is_all: false }, &first, &second);
        let on = vec![(key("k", 1), key("k", 1)), (key("s", 2), key("s", 2))];
        let (left, right) = (scan(&first, 70_000), scan(&second, 90));
        let (mode, nulls) = (PartitionMode::CollectLeft, NullEquality::NullEqualsNothing);
        let join = HashJoinExec::try_new(left, right, on, None, &kind, None, mode, nulls, false);
        let join: Arc<dyn ExecutionPlan> = Arc::new(join.unwrap());
        let mut table = 0;
        for threads in [1, 2, 8] {
            let pool = Pool::new(MUCH, 1 << 40);
            let rows = run_on(threads, &pool, RULES, join.clone(), false).await.unwrap();
            assert_eq!(found(kind, &rows), want, "{kind}, {threads} threads");
            table = pool.peaks[1].load(SeqCst);
        }
        // The table is refused memory, and then DataFusion's, too.
        for most in [[usize::MAX, table - 1], [usize::MAX, table / 2]] {
            let little = Pool::new(most, 1 << 40);
            let rows = run_in(&little, RULES, join.clone(), false).await.unwrap();
            assert_eq!(found(kind, &rows), want, "{kind}, {most:?} bytes");
        }
    }
}

/// DataFusion hashes a batch at a time, so the hashes of one large batch need memory, too.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn hashes_of_a_first_side_of_one_batch_are_counted() {
    let (first, second) = (first_side(), second_side());
    let on = On { is_all: false };
    let rows = async |kind: JoinType| {
        let join = on.join(kind, scan(&first, 1500), scan(&second, 2000));
        let much = Pool::new(MUCH, 1 << 30);
        run_in(&much, RULES, join, false).await.unwrap();
        much.peaks[0].load(SeqCst)
    };
    let inner = rows(JoinType::Inner).await;
    for kind in [JoinType::Left, JoinType::Full, JoinType::LeftSemi, JoinType::LeftAnti] {
        assert_eq!(rows(kind).await, inner + first.len() * size_of::<u64>(), "{kind}");
        let join = on.join(kind, scan(&first, 1500), scan(&second, 2000));
        let pool = Pool::new([inner, usize::MAX], 1 << 30);
        let files = run_in(&pool, RULES, join, false).await.unwrap();
        assert_eq!(found(kind, &files), expected(kind, on, &first, &second), "{kind}");
        assert!(pool.has_files.load(SeqCst), "{kind}");
        assert_eq!(pool.peaks[0].load(SeqCst), inner, "{kind}: all rows fit");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn joins_that_may_not_use_files_are_refused_memory() {
    let on = On { is_all: false };
    for kind in [JoinType::Inner, JoinType::Left] {
        for most in [[0, usize::MAX], [usize::MAX, 64 << 10]] {
            let join = on.join(kind, scan(&first_side(), 1500), scan(&second_side(), 2000));
            let pool = Pool::new(most, 1 << 30);
            let error = run_in(&pool, JoinRules::ON_WORKERS, join, false).await.unwrap_err();
            assert!(matches!(error.find_root(), DataFusionError::ResourcesExhausted(_)), "{error}");
            assert!(!pool.has_files.load(SeqCst), "{kind}, {most:?} bytes");
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn rows_of_one_key_are_joined_in_blocks_where_that_is_possible() {
    let first: Vec<Row> = (0..1500).map(|id| Row { id, k: Some(1), s: 0, v: id }).collect();
    let second: Vec<Row> = (0..9).map(|id| Row { id, k: Some(id % 3), s: 0, v: 0 }).collect();
    let on = On { is_all: false };
    for kind in [JoinType::Inner, JoinType::Left, JoinType::LeftMark] {
        let join = on.join(kind, scan(&first, 1500), scan(&second, 9));
        let rows = run(join, [0, 300 << 10], 64 << 10, false).await.unwrap();
        assert_eq!(found(kind, &rows), expected(kind, on, &first, &second), "{kind}");
    }
    let join = on.join(JoinType::Right, scan(&first, 1500), scan(&second, 9));
    let error = run(join, [0, 300 << 10], 64 << 10, false).await.unwrap_err();
    let DataFusionError::ResourcesExhausted(what) = error.find_root() else { panic!("{error}") };
    assert!(what.contains("1500 rows") && what.contains("share a key"), "{what}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_join_in_files_ends_when_its_statement_does() {
    let on = On { is_all: false };
    let join = on.join(JoinType::Inner, scan(&first_side(), 1500), scan(&second_side(), 2000));
    let error = run(join, [0, 1 << 20], 1 << 30, true).await.unwrap_err();
    let DataFusionError::External(inner) = error.find_root() else { panic!("{error}") };
    assert!(matches!(inner.downcast_ref::<Error>(), Some(Error::Cancelled)), "{inner}");
}

#[test]
fn joins_of_not_in_with_missing_keys_remain_as_they_are() {
    let on = On { is_all: false };
    let join = on.join(JoinType::LeftAnti, scan(&first_side(), 1500), scan(&second_side(), 2000));
    let join = join.downcast_ref::<HashJoinExec>().unwrap().builder().with_null_aware(true);
    let is_stopped: IsStopped = Arc::new(|| false);
    let plan = with_grace_joins(join.build_exec().unwrap(), RULES, &is_stopped).unwrap();
    assert!(plan.is::<HashJoinExec>());
}
