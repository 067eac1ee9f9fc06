#![allow(clippy::unwrap_used, reason = "tests")]
use super::*;
use datafusion::arrow::array::{ArrayRef, Int64Array, StringArray};
use datafusion::datasource::memory::MemorySourceConfig;
use datafusion::physical_expr::expressions::col;

/// Numbers without an order.
fn mixed(i: u64) -> u64 {
    let i = (i ^ (i >> 31)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    (i ^ (i >> 29)).wrapping_mul(0xbf58_476d_1ce4_e5b9) >> 11
}

/// The sample of these keys of rows.
fn seen(key: impl Fn(u64) -> u64) -> Seen {
    let mut seen = Seen::default();
    let keys: Vec<u64> = (0..SAMPLE_ROWS as u64).map(key).collect();
    keys.chunks(5000).for_each(|keys| seen.add(keys));
    seen
}

#[test]
fn groups_that_recur_are_estimated() {
    assert_eq!(seen(|i| i % 25_000).estimate(), Some(25_000));
    for groups in [20_000, 25_000, 50_000, 200_000] {
        let found = seen(|i| mixed(i) % groups).estimate().unwrap() as f64 / groups as f64;
        assert!((0.93..1.07).contains(&found), "{groups}: {found}");
    }
    // Some keys have most of the rows.
    let skewed = seen(|i| if i % 3 > 0 { i % 3 } else { mixed(i) % 30_000 });
    assert!((27_000..33_000).contains(&skewed.estimate().unwrap()), "{:?}", skewed.estimate());
    assert!((15_000..17_000).contains(&skewed.count()), "{}", skewed.count());
}

#[test]
fn groups_in_order_are_taken_to_be_many() {
    assert_eq!(seen(|i| i).estimate(), None);
    assert_eq!(seen(|i| i / 2).estimate(), None);
    assert!(seen(|i| i / 3).estimate().unwrap() > 1 << 20);
    // A sample that is not whole.
    let mut few = Seen::default();
    few.add(&[1, 2, 1]);
    assert_eq!((few.estimate(), few.count()), (None, 2));
}

/// The bytes of these rows end the sample within its last rows, or not at all if a batch has them all.
#[tokio::test]
async fn the_ends_of_batches_decide_nothing() {
    let rows = SAMPLE_ROWS + 1000;
    let keys: ArrayRef =
        Arc::new(Int64Array::from_iter_values((0..rows as i64).map(|i| i % 25_000)));
    let text = "x".repeat(110);
    let texts: ArrayRef = Arc::new(StringArray::from_iter_values((0..rows).map(|_| &text)));
    let all = RecordBatch::try_from_iter([("k", keys), ("s", texts)]).unwrap();
    let keys = [col("k", &all.schema()).unwrap()];
    assert!(value_bytes(&all.slice(0, SAMPLE_ROWS)) > SAMPLE_BYTES);
    for size in [rows, 8192, 5000, 7] {
        let batches = (0..rows).step_by(size).map(|from| all.slice(from, size.min(rows - from)));
        let batches: Vec<RecordBatch> = batches.collect();
        let input = MemorySourceConfig::try_new_exec(&[batches], all.schema(), None).unwrap();
        let input: Arc<dyn ExecutionPlan> = input;
        let context = Arc::new(TaskContext::default());
        let (_, groups, seen) = sampled(&input, &keys, &context).await.unwrap();
        assert_eq!((groups, seen.estimate()), (Groups::Many, None), "batches of {size} rows");
    }
}

#[tokio::test]
async fn later_rows_show_whether_groups_recur() {
    let batch = |from: i64, rows: i64| {
        let keys: ArrayRef =
            Arc::new(Int64Array::from_iter_values((from..from + rows).map(|i| i % 40_000)));
        RecordBatch::try_from_iter([("k", keys)]).unwrap()
    };
    let first: Vec<RecordBatch> = (0..10).map(|i| batch(i * 2000, 2000)).collect();
    let schema = first[0].schema();
    let keys = [col("k", &schema).unwrap()];
    let mut seen = Seen::default();
    first.iter().for_each(|batch| seen.add(&hashes_of(&keys, batch).unwrap()));
    assert_eq!(seen.count(), 20_000);
    let context = Arc::new(TaskContext::default());
    for (later, groups, want) in [
        // All later groups are known; three fourths, a fourth and none of them are.
        (vec![vec![batch(0, 3000), batch(5000, 3000)]], 20_000, true),
        (vec![vec![batch(19_000 - 2048, 4096)]], 25_000, true),
        (vec![vec![batch(20_000 - 1024, 4096)]], 20_000, false),
        (vec![vec![batch(20_000, 5000)]], 40_000, false),
        // Half of the groups are expected to be known.
        (vec![vec![batch(20_000 - 1100, 4096)]], 40_000, true),
        // Partitions without rows, and too few rows.
        (vec![vec![], vec![], vec![batch(0, 1000)], vec![batch(0, 3096)]], 20_000, true),
        (vec![vec![batch(0, 4000)]], 20_000, false),
        // Partitions with few rows each.
        ((0..20).map(|_| vec![batch(0, 1000)]).collect(), 20_000, false),
    ] {
        let partitions: Vec<Vec<RecordBatch>> =
            std::iter::once(first.clone()).chain(later).collect();
        let input = MemorySourceConfig::try_new_exec(&partitions, schema.clone(), None).unwrap();
        let input: Arc<dyn ExecutionPlan> = input;
        let found = seen.recur(groups, &input, &keys, &context).await.unwrap();
        assert_eq!(found, want, "{} partitions, {groups} groups", partitions.len());
    }
}
