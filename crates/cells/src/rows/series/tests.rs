#![allow(clippy::unwrap_used, clippy::panic, reason = "tests")]

use super::*;
use arrow::array::AsArray;
use arrow::datatypes::{Int64Type, TimestampMicrosecondType};
use std::str::FromStr;

fn values(rows: SeriesRows, range: Range<u64>, most: u64) -> Vec<Vec<i64>> {
    let series = Arc::new(Series::of_integers("range", "range", rows));
    let mut batches = Batches::new(series, range, most);
    let mut out = Vec::new();
    while let Some(batch) = batches.next_batch(true).unwrap() {
        out.push(batch.column(0).as_primitive::<Int64Type>().values().to_vec());
    }
    out
}

fn strided(start: i64, stop: i64, step: i64, with_stop: bool) -> Vec<i64> {
    let rows = SeriesRows::strided(start, stop, step, with_stop);
    let SeriesRows::Strided { rows: count, .. } = rows else { panic!("integers have strides") };
    values(rows, 0..count, 3).concat()
}

#[test]
fn integers_end_before_or_at_the_bound() {
    assert_eq!(strided(0, 5, 1, false), [0, 1, 2, 3, 4]);
    assert_eq!(strided(0, 5, 2, true), [0, 2, 4]);
    assert_eq!(strided(1, 5, 2, true), [1, 3, 5]);
    assert_eq!(strided(1, 5, 2, false), [1, 3]);
    assert_eq!(strided(5, 1, -2, false), [5, 3]);
    assert_eq!(strided(5, 1, -2, true), [5, 3, 1]);
    assert!(strided(5, 5, 1, false).is_empty());
    assert_eq!(strided(5, 5, 1, true), [5]);
    assert!(strided(5, 1, 1, true).is_empty());
    assert!(strided(1, 5, -1, true).is_empty());
    let most = i64::MAX;
    assert_eq!(strided(most - 1, most, 1, true), [most - 1, most]);
    assert_eq!(strided(i64::MIN, most, most, true), [i64::MIN, -1, most - 1]);
}

#[test]
fn row_counts_beyond_int64_are_absent() {
    let rows = |start| SeriesRows::strided(start, i64::MAX, 1, false).rows();
    assert_eq!(rows(0), Precision::Exact(i64::MAX as usize));
    assert_eq!(rows(-1), Precision::Absent);
    assert_eq!(rows(i64::MIN), Precision::Absent);
}

#[test]
fn a_split_has_its_own_rows() {
    let rows = SeriesRows::strided(10, 100, 10, false);
    assert_eq!(values(rows, 3..8, 2), [vec![40, 50], vec![60, 70], vec![80]]);
}

#[test]
fn days_lost_in_short_months_stay_lost() {
    const DAY: i64 = 86_400_000_000;
    let series = Series::of_times(
        "generate_series",
        "t",
        SeriesRows::Calendar {
            // 31 January to 1 June 2020.
            start: 18_292 * DAY,
            stop: 18_414 * DAY,
            with_stop: true,
            step: IntervalMonthDayNano::new(1, 0, 0),
            zone: Tz::from_str("+00:00").unwrap(),
        },
        None,
    );
    let mut batches = Batches::new(Arc::new(series), 0..u64::MAX, 10);
    let batch = batches.next_batch(true).unwrap().unwrap();
    let days: Vec<i64> = batch
        .column(0)
        .as_primitive::<TimestampMicrosecondType>()
        .values()
        .iter()
        .map(|us| us / DAY)
        .collect();
    // The 29th of February, March, April and May.
    assert_eq!(days, [18_292, 18_321, 18_350, 18_381, 18_411]);
    assert!(batches.next_batch(true).unwrap().is_none());
}
