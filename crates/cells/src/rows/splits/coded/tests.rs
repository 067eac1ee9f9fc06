#![allow(clippy::unwrap_used, reason = "tests")]
//! Groups and states, compared with those of DataFusion's partial aggregate.

use super::super::groups::{final_over, partial};
use super::*;
use crate::lift::session_state;
use crate::walk::Walk;
use datafusion::arrow::array::{
    BooleanArray, Date32Array, Date64Array, Decimal128Array, DictionaryArray, DurationSecondArray,
    Float64Array, Int8Array, Int16Array, Int32Array, Int64Array, LargeStringArray, StringArray,
    StringViewArray, Time32SecondArray, Time64NanosecondArray, TimestampNanosecondArray,
    UInt8Array, UInt16Array, UInt32Array, UInt64Array,
};
use datafusion::arrow::compute::concat_batches;
use datafusion::arrow::datatypes::{Int32Type, Int64Type, SchemaRef};
use datafusion::common::tree_node::TreeNodeRecursion;
use datafusion::datasource::MemTable;
use datafusion::datasource::memory::MemorySourceConfig;
use datafusion::execution::SessionStateBuilder;
use datafusion::execution::memory_pool::{GreedyMemoryPool, MemoryPool};
use datafusion::execution::runtime_env::RuntimeEnvBuilder;
use datafusion::physical_plan::collect;
use datafusion::prelude::{SessionConfig, SessionContext};
use std::collections::HashMap;

const ROWS: usize = 20_000;
const BATCH_ROWS: usize = 1000;

const TEXTS: [&str; 10] = [
    "",
    "\0",
    "a",
    "a\0",
    "a\0\0",
    "ä€",
    "twelve bytes",
    "thirteen byte",
    "twelve bytes and more, one",
    "twelve bytes and more, two",
];

/// A number below `n` that depends on the row and the column.
fn some(row: usize, column: usize, n: usize) -> usize {
    let seed = (row as u64 + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ ((column as u64) << 40);
    let mixed = (seed ^ (seed >> 32)).wrapping_mul(0xd6e8_feb8_6659_fd93);
    ((mixed ^ (mixed >> 32)) % n as u64) as usize
}

/// One of these values in each row, or NULL.
fn one_of<T: Copy>(column: usize, values: &[T]) -> impl Iterator<Item = Option<T>> {
    (0..ROWS).map(move |row| values.get(some(row, column, values.len() + 1)).copied())
}

/// The columns of `x`. Columns with a growing number of values have the number that the last row allows.
fn rows() -> RecordBatch {
    const DAY: i64 = 86_400_000;
    let ends = [i64::MIN, i64::MIN + 1, -70_000, -1, 0, 3, 65_535, 65_536, i64::MAX - 1, i64::MAX];
    let above = [0, 1, (1 << 63) - 1, 1 << 63, u64::MAX];
    let more = |column| (0..ROWS).map(move |row| some(row, column, 2 + row / 8) as i64);
    let both_sides = more(16).map(|n| if n % 2 == 0 { 500_000 + n * 30 } else { 500_000 - n * 30 });
    let zoned: TimestampNanosecondArray = one_of(13, &[i64::MIN, -7, 1 << 60, i64::MAX]).collect();
    let many =
        (0..ROWS).map(|row| Some(format!("{}{}", some(row, 19, 4000), "x".repeat(row % 16))));
    let columns: [(&str, ArrayRef); 24] = [
        ("i8", Arc::new(one_of(0, &[i8::MIN, -3, 5, i8::MAX]).collect::<Int8Array>())),
        ("i16", Arc::new(one_of(1, &[i16::MIN, -1, 0, i16::MAX]).collect::<Int16Array>())),
        ("i32", Arc::new(one_of(2, &[i32::MIN, -1, 0, i32::MAX]).collect::<Int32Array>())),
        ("i64", Arc::new(one_of(3, &ends).collect::<Int64Array>())),
        ("u8", Arc::new(one_of(4, &[0, 1, 127, 128, u8::MAX]).collect::<UInt8Array>())),
        ("u16", Arc::new(one_of(5, &[0, 1, 1 << 15, u16::MAX]).collect::<UInt16Array>())),
        ("u32", Arc::new(one_of(6, &[0, 1, 1 << 31, u32::MAX]).collect::<UInt32Array>())),
        ("u64", Arc::new(one_of(7, &above).collect::<UInt64Array>())),
        ("b", Arc::new(one_of(8, &[true, false]).collect::<BooleanArray>())),
        ("d", Arc::new(one_of(9, &[i32::MIN, -1, 19_000, 19_001]).collect::<Date32Array>())),
        ("e", Arc::new(one_of(10, &[-DAY, 0, 19_000 * DAY]).collect::<Date64Array>())),
        ("t32", Arc::new(one_of(11, &[0_i32, 7, 86_399]).collect::<Time32SecondArray>())),
        (
            "t64",
            Arc::new(
                one_of(12, &[0_i64, 7, 86_399_000_000_000]).collect::<Time64NanosecondArray>(),
            ),
        ),
        ("z", Arc::new(zoned.with_timezone("+02:00"))),
        ("p", Arc::new(one_of(14, &[-1_i64, 0, 1 << 50]).collect::<DurationSecondArray>())),
        ("s", Arc::new(one_of(15, &TEXTS).collect::<StringArray>())),
        ("l", Arc::new(one_of(17, &TEXTS).collect::<LargeStringArray>())),
        ("v", Arc::new(one_of(18, &TEXTS).collect::<StringViewArray>())),
        ("many", Arc::new(many.clone().collect::<StringArray>())),
        ("views", Arc::new(many.collect::<StringViewArray>())),
        ("w", Arc::new(both_sides.map(Some).collect::<Int64Array>())),
        ("m", Arc::new(more(20).map(|n| (n % 9 > 0).then_some(n)).collect::<Int64Array>())),
        ("n", Arc::new(more(21).map(|n| Some(n << 40)).collect::<Int64Array>())),
        (
            "f",
            Arc::new((0..ROWS).map(|row| Some(1.0 / (1 + row) as f64)).collect::<Float64Array>()),
        ),
    ];
    let columns = columns.into_iter().map(|(name, values)| (name, values, true));
    RecordBatch::try_from_iter_with_nullable(columns).unwrap()
}

/// Parts of a batch that begin at odd rows; some have no rows.
fn cut(rows: &RecordBatch) -> Vec<RecordBatch> {
    let (mut parts, mut from) = (vec![rows.slice(0, 0)], 3);
    for len in [1, 7, 900, 0, 64, 555].into_iter().cycle() {
        if from + len > rows.num_rows() {
            return parts;
        }
        parts.push(rows.slice(from, len));
        from += len;
    }
    parts
}

/// A context with the table `x` and `memory` bytes of memory.
fn context(schema: SchemaRef, batches: Vec<RecordBatch>, memory: usize) -> SessionContext {
    let config = SessionConfig::new().with_target_partitions(1).with_batch_size(BATCH_ROWS);
    let pool: Arc<dyn MemoryPool> = Arc::new(GreedyMemoryPool::new(memory));
    let runtime = RuntimeEnvBuilder::new().with_memory_pool(pool).build_arc().unwrap();
    let context = SessionContext::new_with_config_rt(config, runtime);
    let table = MemTable::try_new(schema, vec![batches]).unwrap();
    context.register_table("x", Arc::new(table)).unwrap();
    context
}

/// The lowest aggregate of a statement.
pub(super) async fn aggregate_of(context: &SessionContext, sql: &str) -> AggregateExec {
    let plan = context.sql(sql).await.unwrap().create_physical_plan().await.unwrap();
    let mut lowest = None;
    plan.each(|node| {
        if let Some(aggregate) = node.downcast_ref::<AggregateExec>() {
            lowest = Some(aggregate.clone());
        }
        Ok(TreeNodeRecursion::Continue)
    })
    .unwrap();
    lowest.unwrap()
}

async fn partial_of(context: &SessionContext, sql: &str) -> AggregateExec {
    let aggregate = aggregate_of(context, sql).await;
    partial(&aggregate, aggregate.input().clone()).unwrap()
}

fn coded(partial: &AggregateExec) -> Arc<dyn ExecutionPlan> {
    Arc::new(CodedExec::of(partial).unwrap().unwrap())
}

async fn batches(context: &SessionContext, plan: Arc<dyn ExecutionPlan>) -> Vec<RecordBatch> {
    let batches = collect(plan, context.task_ctx()).await.unwrap();
    assert!(batches.iter().all(|batch| (1..=BATCH_ROWS).contains(&batch.num_rows())));
    batches
}

/// Compares the groups, their order and their states; returns the number of groups.
async fn compare(context: &SessionContext, sql: &str) -> usize {
    let partial = partial_of(context, sql).await;
    let got = batches(context, coded(&partial)).await;
    let schema = partial.schema();
    let want = collect(Arc::new(partial), context.task_ctx()).await.unwrap();
    let got = concat_batches(&schema, &got).unwrap();
    assert_eq!(got, concat_batches(&schema, &want).unwrap(), "{sql}");
    assert_eq!(context.runtime_env().memory_pool.reserved(), 0, "{sql}");
    got.num_rows()
}

const CALLS: &str = "count(*), count(s), sum(f), avg(f), min(v), max(i64), sum(f) FILTER (WHERE i8 > 0), count(*) FILTER (WHERE b)";

#[tokio::test]
async fn groups_and_states_are_those_of_datafusion() {
    let rows = rows();
    let context = context(rows.schema(), cut(&rows), usize::MAX);
    let mut keys: Vec<String> =
        rows.schema().fields().iter().map(|field| field.name().clone()).collect();
    keys.retain(|key| key != "f");
    // With three keys and more, DataFusion's order differs where two groups have one hash: a value that is the same in
    // two columns, and NULL otherwise. These columns have different values.
    let several = [
        "s, i8",
        "v, l",
        "b, s",
        "u64, i64",
        "z, d",
        "m, w",
        "i64, s, z",
        "d, v, z",
        "z, b, s, i8",
        "m, n",
        "n, m, s",
        "many, w",
        "views, m, s",
        "i16 + 1, upper(s)",
    ];
    for key in keys.iter().map(String::as_str).chain(several) {
        assert!(
            compare(&context, &format!("SELECT {key}, {CALLS} FROM x GROUP BY {key}")).await > 1
        );
        assert!(compare(&context, &format!("SELECT DISTINCT {key} FROM x")).await > 1);
    }
    // Few and many of them, by what the pairs are found in.
    assert_eq!(compare(&context, "SELECT DISTINCT i8, b FROM x").await, 15);
    assert!(compare(&context, "SELECT DISTINCT many, m FROM x").await > 10_000);
}

#[tokio::test]
async fn no_rows_have_no_groups() {
    let rows = rows();
    for batches in [vec![], vec![rows.slice(7, 0)]] {
        let context = context(rows.schema(), batches, usize::MAX);
        for keys in ["i64", "v", "b, s, z"] {
            let sql = format!("SELECT {keys}, {CALLS} FROM x GROUP BY {keys}");
            assert_eq!(compare(&context, &sql).await, 0);
        }
    }
}

#[tokio::test]
async fn other_keys_are_left_to_datafusion() {
    let decimals = Decimal128Array::from(vec![1, 2]).with_precision_and_scale(9, 2).unwrap();
    let columns: [(&str, ArrayRef); 3] = [
        ("f", Arc::new(Float64Array::from(vec![0.0, -0.0]))),
        ("n", Arc::new(decimals)),
        ("k", Arc::new(["a", "b"].into_iter().collect::<DictionaryArray<Int32Type>>())),
    ];
    let rows = RecordBatch::try_from_iter(columns).unwrap();
    let context = context(rows.schema(), vec![rows], usize::MAX);
    for keys in ["f", "n", "k", "1 + n::int, f"] {
        let sql = format!("SELECT {keys}, count(*) FROM x GROUP BY {keys}");
        let partial = partial_of(&context, &sql).await;
        assert!(CodedExec::of(&partial).unwrap().is_none(), "{keys}");
    }
}

/// Workers compute groups by DataFusion's partial aggregate: it must not pass on rows by themselves.
#[tokio::test]
async fn splits_with_many_groups_have_the_same_states() {
    let state = session_state(1 << 30).unwrap();
    let config = state.config().clone().with_batch_size(BATCH_ROWS);
    let state = SessionStateBuilder::new_from_existing(state).with_config(config).build();
    let context = SessionContext::new_with_state(state);
    let keys: Int64Array = (0..120_000_i64).map(|row| Some(row % 110_000)).collect();
    let rows = RecordBatch::try_from_iter([("k", Arc::new(keys) as ArrayRef)]).unwrap();
    let batches: Vec<_> = slices(&rows, BATCH_ROWS).collect();
    let table = MemTable::try_new(rows.schema(), vec![batches]).unwrap();
    context.register_table("x", Arc::new(table)).unwrap();
    assert_eq!(compare(&context, "SELECT k, count(*) FROM x GROUP BY k").await, 110_000);
}

/// The states of a full table are emitted, and the next rows begin new groups.
#[tokio::test]
async fn groups_are_emitted_where_memory_is_refused() {
    const SQL: &str = "SELECT m, i8, count(*), sum(i32), min(v) FROM x GROUP BY m, i8";
    let rows = rows();
    let little = context(rows.schema(), cut(&rows), 1 << 17);
    let much = context(rows.schema(), cut(&rows), usize::MAX);
    let partial = partial_of(&little, SQL).await;
    let parts = batches(&little, coded(&partial)).await;
    assert_eq!(little.runtime_env().memory_pool.reserved(), 0);
    let whole = batches(&much, coded(&partial)).await;
    let count = |batches: &[RecordBatch]| batches.iter().map(RecordBatch::num_rows).sum::<usize>();
    assert!(count(&parts) > count(&whole));
    let mut merged = Vec::new();
    for states in [parts, whole] {
        let states = MemorySourceConfig::try_new_exec(&[states], partial.schema(), None).unwrap();
        let plan = final_over(&partial, states).unwrap();
        let groups = collect(plan.clone(), much.task_ctx()).await.unwrap();
        merged.push(concat_batches(&plan.schema(), &groups).unwrap());
    }
    assert!(merged[0].num_rows() > 1000);
    assert_eq!(merged[0], merged[1]);
}

fn expected(values: &[Option<i64>]) -> (Vec<usize>, Vec<Option<i64>>) {
    let (mut known, mut all) = (HashMap::new(), Vec::new());
    let mut numbers = Vec::new();
    for value in values {
        numbers.push(*known.entry(*value).or_insert(all.len()));
        if known.len() > all.len() {
            all.push(*value);
        }
    }
    (numbers, all)
}

fn check_numbers(values: &[Option<i64>], what: &str) {
    let mut numbers = Numbers::new(&[DataType::Int64]);
    let (mut got, mut groups) = (Vec::new(), Vec::new());
    for part in values.chunks(701) {
        let key: ArrayRef = Arc::new(part.iter().copied().collect::<Int64Array>());
        numbers.number(&[key], &mut groups).unwrap();
        got.extend_from_slice(&groups);
    }
    let (want, all) = expected(values);
    assert_eq!((got, numbers.len()), (want, all.len()), "{what}");
    let taken = numbers.take().unwrap();
    assert_eq!(taken[0].as_primitive::<Int64Type>().iter().collect::<Vec<_>>(), all, "{what}");
    assert_eq!(numbers.len(), 0);
}

#[test]
fn each_integer_has_one_number() {
    let far = 1 << 40;
    let middles = [
        i64::MIN,
        i64::MIN + 70_000,
        -far,
        -1,
        0,
        5,
        far,
        i64::MAX - 70_000,
        i64::MAX - 9,
        i64::MAX,
    ];
    for middle in middles {
        for spread in [3, 100, 1 << 12, 1 << 15, (1 << 16) - 1, 1 << 16, 1 << 17, 1 << 40] {
            let values: Vec<_> = (0..3000)
                .map(|row| {
                    let offset = some(row, 0, spread) as i64 - spread as i64 / 2;
                    (some(row, 1, 50) > 0).then_some(middle.saturating_add(offset))
                })
                .collect();
            check_numbers(&values, &format!("{middle} ± {spread}"));
        }
    }
}

/// A window that would extend beyond the integers ends with them.
#[test]
fn windows_end_where_integers_do() {
    let offsets = [100_i64, 10, 80, 70, 55, 10, 0, 101, 65_535, 65_536, 0, 10];
    let last: Vec<_> = offsets.iter().map(|offset| Some(i64::MAX - offset)).collect();
    let first: Vec<_> = offsets.iter().map(|offset| Some(i64::MIN + offset)).collect();
    check_numbers(&last, "the last integers");
    check_numbers(&first, "the first integers");
    check_numbers(&[last, first].concat(), "both");
}
