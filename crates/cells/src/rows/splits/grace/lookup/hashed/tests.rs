#![allow(clippy::unwrap_used, clippy::panic, reason = "tests")]
use super::*;
use crate::rows::splits::gather::RowsThreads;
use datafusion::arrow::array::{Float64Array, Int64Array, StringArray, StringViewArray};
use datafusion::common::JoinType;
use datafusion::datasource::memory::MemorySourceConfig;
use datafusion::execution::memory_pool::{GreedyMemoryPool, MemoryPool};
use datafusion::execution::runtime_env::RuntimeEnvBuilder;
use datafusion::physical_expr::PhysicalExpr;
use datafusion::physical_plan::joins::PartitionMode;
use datafusion::prelude::SessionConfig;
use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};

const FIRST: i64 = 200_000;
const SECOND: i64 = 60_000;
const MUCH: usize = 1 << 40;

/// An integer, distant from others, and a text. Either may be missing.
type Key = (Option<i64>, Option<String>);

fn key(row: i64, k: i64, kind: i64) -> Key {
    let text = format!("the name of a key: {}", k % 1000 + kind);
    (Some(k << 40).filter(|_| row % 97 != 5), Some(text).filter(|_| row % 89 != 3))
}

fn first_side() -> Vec<Key> {
    (0..FIRST).map(|row| key(row, row * 7919 % 50_021, row % 3)).collect()
}

fn second_side() -> Vec<Key> {
    (0..SECOND).map(|row| key(row, row * 104_729 % 60_013, row % 2)).collect()
}

fn columns(keys: &[Key]) -> Vec<ArrayRef> {
    let integers: Int64Array = keys.iter().map(|(integer, _)| *integer).collect();
    let texts: StringViewArray = keys.iter().map(|(_, text)| text.as_deref()).collect();
    vec![Arc::new(integers), Arc::new(texts)]
}

/// The first side's rows with the keys of each row of the second side.
fn expected(first: &[Key], second: &[Key], nulls: NullEquality) -> Vec<Vec<u32>> {
    let may_match =
        |key: &Key| nulls == NullEquality::NullEqualsNull || (key.0.is_some() && key.1.is_some());
    let mut rows: HashMap<&Key, Vec<u32>> = HashMap::new();
    for (row, key) in (0..).zip(first) {
        if may_match(key) {
            rows.entry(key).or_default().push(row);
        }
    }
    let found = |key: &Key| rows.get(key).filter(|_| may_match(key)).cloned();
    second.iter().map(|key| found(key).unwrap_or_default()).collect()
}

/// DuckDB's counts of pairs, and the sums of their rows.
const TOTALS: [(NullEquality, usize, u64, u64); 2] = [
    (NullEquality::NullEqualsNothing, 63_814, 6_378_237_742, 1_913_549_753),
    (NullEquality::NullEqualsNull, 65_242, 6_520_261_892, 1_956_027_458),
];

fn pool(bytes: usize) -> Arc<dyn MemoryPool> {
    Arc::new(GreedyMemoryPool::new(bytes))
}

fn context(threads: usize, pool: &Arc<dyn MemoryPool>) -> TaskContext {
    let environment = RuntimeEnvBuilder::new().with_memory_pool(pool.clone()).build_arc().unwrap();
    let config = SessionConfig::new().with_extension(Arc::new(RowsThreads(threads)));
    TaskContext::default().with_session_config(config).with_runtime(environment)
}

fn goes_on() -> IsStopped {
    Arc::new(|| false)
}

fn bytes_of(table: &Table) -> usize {
    table.parts.iter().map(|part| part.slots.len() * size_of::<u64>()).sum()
}

impl Filled {
    /// The matches of rows with these keys, of which some are looked up at a time.
    fn matches(&self, keys: &[ArrayRef]) -> Vec<Vec<u32>> {
        let rows = keys[0].len();
        let batches = (0..rows).step_by(7000).map(|from| {
            let count = rows.min(from + 7000) - from;
            let keys: Vec<_> = keys.iter().map(|key| key.slice(from, count)).collect();
            self.table.firsts(&keys, count).unwrap()
        });
        let chain = |mut row: u32| {
            let mut all = Vec::new();
            while row > 0 {
                all.push(row - 1);
                row = self.next.get(row as usize - 1).copied().unwrap_or(0);
            }
            all
        };
        batches.flatten().map(chain).collect()
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn tables_are_the_same_on_any_number_of_threads() {
    let (first, second) = (first_side(), second_side());
    for (nulls, count, of_first, of_second) in TOTALS {
        let want = expected(&first, &second, nulls);
        let pairs = (0u64..).zip(&want);
        let sums = pairs.fold((0, 0), |(a, b), (row, all)| {
            (a + all.iter().map(|row| u64::from(*row)).sum::<u64>(), b + row * all.len() as u64)
        });
        let pairs: usize = want.iter().map(Vec::len).sum();
        assert_eq!((pairs, sums.0, sums.1), (count, of_first, of_second), "{nulls:?}");
        let mut known: Option<Filled> = None;
        for threads in [1, 2, 8] {
            let pool = pool(MUCH);
            let context = context(threads, &pool);
            let memory = MemoryConsumer::new("test").register(&pool);
            let is_stopped = goes_on();
            let tasks = Tasks { is_stopped: &is_stopped, context: &context };
            let filled = Filled::of(columns(&first), nulls, &memory, tasks).await;
            let filled = filled.unwrap().unwrap();
            let case = format!("{nulls:?}, {threads} threads");
            assert!(filled.matches(&columns(&second)) == want, "{case}");
            let bytes = bytes_of(&filled.table) + first.len() * ROW_BYTES;
            assert_eq!(memory.size(), bytes, "{case}");
            if let Some(known) = &known {
                assert!(known.table.parts == filled.table.parts, "{case}");
                assert!(known.next == filled.next, "{case}");
            }
            known = Some(filled);
        }
    }
}

fn integers(key: fn(i64) -> Option<i64>, rows: i64) -> Vec<ArrayRef> {
    vec![Arc::new((0..rows).map(key).collect::<Int64Array>())]
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn one_key_and_unique_keys() {
    let nulls = NullEquality::NullEqualsNothing;
    let (pool, is_stopped) = (pool(MUCH), goes_on());
    let context = context(2, &pool);
    let tasks = Tasks { is_stopped: &is_stopped, context: &context };
    let filled = async |keys: Vec<ArrayRef>| {
        let memory = MemoryConsumer::new("test").register(&pool);
        Filled::of(keys, nulls, &memory, tasks).await.unwrap().unwrap()
    };
    let rows = 150_000;
    let same = filled(integers(|_| Some(7), rows)).await;
    let all: Vec<u32> = (0..rows as u32).collect();
    let second = integers(|row| [Some(7), None, Some(8)][row as usize % 3], 3);
    assert!(same.matches(&second) == [all, vec![], vec![]]);
    let unique = filled(integers(|row| Some(row << 40), rows)).await;
    assert!(unique.next.is_empty());
    let second = integers(|row| Some((row * 2) << 40), rows);
    let want = (0..rows as u32).map(|row| if row < 75_000 { vec![row * 2] } else { vec![] });
    assert!(unique.matches(&second) == want.collect::<Vec<_>>());
    let missing = filled(integers(|_| None, rows)).await;
    assert!(missing.matches(&integers(Some, 9)).iter().all(Vec::is_empty));
    assert_eq!(bytes_of(&missing.table), PARTS * size_of::<u64>());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn memory_is_reserved_or_the_table_is_refused() {
    let (keys, nulls) = (columns(&first_side()), NullEquality::NullEqualsNothing);
    let is_stopped = goes_on();
    let filled = async |bytes: usize| {
        let pool = pool(bytes);
        let context = context(8, &pool);
        let tasks = Tasks { is_stopped: &is_stopped, context: &context };
        let memory = MemoryConsumer::new("test").register(&pool);
        let filled = Filled::of(keys.clone(), nulls, &memory, tasks).await.unwrap();
        drop(memory);
        assert_eq!(pool.reserved(), 0);
        filled
    };
    let whole = filled(MUCH).await.unwrap();
    let peak = bytes_of(&whole.table) + FIRST as usize * (ROW_BYTES + FILLING_BYTES);
    let small = filled(peak).await.unwrap();
    assert!(small.table.parts == whole.table.parts && small.next == whole.next);
    for bytes in [0, FIRST as usize * ROW_BYTES, peak - 1] {
        assert!(filled(bytes).await.is_none(), "{bytes} bytes");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_table_ends_when_its_statement_does() {
    let (keys, nulls) = (columns(&first_side()), NullEquality::NullEqualsNothing);
    // A task checks it before it begins, and that of a part while it runs, too.
    let tasks = (FIRST as usize).div_ceil(UNIT_ROWS) + PARTS;
    for (threads, most) in [(1, 0), (1, 9), (1, tasks), (8, 0), (8, 9), (8, tasks)] {
        let calls = AtomicUsize::new(0);
        let is_stopped: IsStopped = Arc::new(move || calls.fetch_add(1, SeqCst) >= most);
        let pool = pool(MUCH);
        let context = context(threads, &pool);
        let tasks = Tasks { is_stopped: &is_stopped, context: &context };
        let memory = MemoryConsumer::new("test").register(&pool);
        let filled = Filled::of(keys.clone(), nulls, &memory, tasks).await;
        let Err(DataFusionError::External(inner)) = filled else { panic!("{threads}, {most}") };
        assert!(matches!(inner.downcast_ref::<Error>(), Some(Error::Cancelled)), "{inner}");
    }
}

#[tokio::test]
async fn few_rows_and_other_keys_are_left_to_datafusion() {
    let texts = |rows: usize| -> ArrayRef {
        Arc::new((0..rows).map(|row| Some(format!("{row}"))).collect::<StringArray>())
    };
    let views: ArrayRef = Arc::new(StringViewArray::from(vec!["7"]));
    let floats: ArrayRef = Arc::new(Float64Array::from(vec![0.5; ROWS_MIN]));
    let (pool, is_stopped) = (pool(MUCH), goes_on());
    let context = context(2, &pool);
    let is_hashed = async |first: ArrayRef, second: ArrayRef, kind: JoinType| {
        let batch = |key: ArrayRef| RecordBatch::try_from_iter([("k", key)]).unwrap();
        let (first, second) = (batch(first), batch(second));
        let scan = |rows: &RecordBatch| {
            MemorySourceConfig::try_new_exec(&[vec![rows.clone()]], rows.schema(), None).unwrap()
        };
        let key = Arc::new(Column::new("k", 0)) as Arc<dyn PhysicalExpr>;
        let (mode, nulls) = (PartitionMode::CollectLeft, NullEquality::NullEqualsNothing);
        let (left, right, on) = (scan(&first), scan(&second), vec![(key.clone(), key)]);
        let join = HashJoinExec::try_new(left, right, on, None, &kind, None, mode, nulls, false);
        let lookup = Lookup::hashed(&join.unwrap(), &[(first, 1000)], &is_stopped, &context).await;
        lookup.unwrap().is_some()
    };
    assert!(is_hashed(texts(ROWS_MIN), texts(1), JoinType::Inner).await);
    assert!(is_hashed(texts(ROWS_MIN), texts(1), JoinType::RightMark).await);
    assert!(!is_hashed(texts(ROWS_MIN - 1), texts(1), JoinType::Inner).await);
    assert!(!is_hashed(texts(ROWS_MIN), texts(1), JoinType::Left).await);
    assert!(!is_hashed(texts(ROWS_MIN), views, JoinType::Inner).await);
    assert!(!is_hashed(floats.clone(), floats, JoinType::Inner).await);
    assert_eq!(pool.reserved(), 0);
}
