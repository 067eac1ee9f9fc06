#![allow(clippy::unwrap_used, reason = "tests")]
use super::super::guard::guarded;
use super::super::splits::{SplitSize, with_splits};
use crate::lift::session_state;
use datafusion::arrow::array::{AsArray, RecordBatch};
use datafusion::arrow::compute::concat_batches;
use datafusion::arrow::datatypes::{DataType, Field, Schema};
use datafusion::physical_plan::{ExecutionPlan, ExecutionPlanProperties, collect};
use datafusion::prelude::{CsvReadOptions, SessionContext};
use std::fmt::Write as _;
use std::sync::Arc;
use tessera_exec::quota::Quota;

/// Fields as they are in the file.
const FIELDS: [&str; 9] = [
    "plain",
    "",
    "\"a,b\"",
    "\"x\"\"y\"",
    "\"two\nlines\"",
    "\"\r\n\n\"",
    "5\" pipe",
    "\"\"\"\"",
    "\"closed\"then more",
];

/// A file, and the ids of its rows as they are written.
fn file(line_end: &str, rows: usize) -> String {
    let mut text = format!("id,a,b{line_end}");
    let mut bits = 7u64;
    for id in 0..rows {
        let mut field = || {
            bits = bits.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            FIELDS[(bits >> 40) as usize % FIELDS.len()]
        };
        let (a, b) = (field(), field());
        // A row that is longer than several splits.
        let long = if id == rows / 2 { format!("\"{}\"", "line\n".repeat(3000)) } else { a.into() };
        let _ = write!(text, "{id},{long},{b}{line_end}");
    }
    text
}

/// The rows of a file, whole or in splits, with the number of splits.
async fn rows(
    text: &str,
    split: Option<u64>,
    quota: Option<&Arc<Quota>>,
    has_header: bool,
) -> datafusion::error::Result<(RecordBatch, usize)> {
    // DataFusion takes each quote for a mark where it looks at types.
    let of_id = if has_header { DataType::Int64 } else { DataType::Utf8 };
    rows_with(text, split, quota, has_header, of_id).await
}

/// As [`rows`], with that type of the first column.
async fn rows_with(
    text: &str,
    split: Option<u64>,
    quota: Option<&Arc<Quota>>,
    has_header: bool,
    of_id: DataType,
) -> datafusion::error::Result<(RecordBatch, usize)> {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("t.csv");
    std::fs::write(&path, text).unwrap();
    let context = SessionContext::new_with_state(session_state(1 << 30).unwrap());
    let schema = Schema::new(vec![
        Field::new("id", of_id, true),
        Field::new("a", DataType::Utf8, true),
        Field::new("b", DataType::Utf8, true),
    ]);
    let options = CsvReadOptions::new().has_header(has_header).schema(&schema);
    context.register_csv("t", path.to_str().unwrap(), options).await?;
    let plan = context.sql("SELECT * FROM t").await?.create_physical_plan().await?;
    let mut plan: Arc<dyn ExecutionPlan> = guarded(plan, None, quota, 100)?;
    let mut splits = 1;
    if let Some(bytes) = split {
        plan = with_splits(plan, SplitSize::of(bytes))?;
        let scan = plan.children().first().map(|scan| scan.output_partitioning().partition_count());
        splits = scan.unwrap_or(1);
    }
    let schema = plan.schema();
    let batches = collect(plan, context.task_ctx()).await?;
    Ok((concat_batches(&schema, &batches)?, splits))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn ranges_have_the_rows_of_the_file() {
    for (line_end, has_header) in [("\n", true), ("\r\n", true), ("\n", false)] {
        let text = file(line_end, 2000);
        let (whole, _) = rows(&text, None, None, has_header).await.unwrap();
        assert_eq!(whole.num_rows(), if has_header { 2000 } else { 2001 });
        for bytes in [300, 1000, 4096, 10_007] {
            let (split, splits) = rows(&text, Some(bytes), None, has_header).await.unwrap();
            assert!(splits > 4, "{splits} splits of {bytes} bytes");
            assert_eq!(split, whole, "{splits} splits of {bytes} bytes, {line_end:?}");
        }
        // Without a line break at the end.
        let text = text.trim_end_matches(['\r', '\n']);
        let (split, _) = rows(text, Some(1000), None, has_header).await.unwrap();
        assert_eq!(split, whole);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn ranges_are_counted_while_they_are_read() {
    let text = file("\n", 2000);
    let quota = Quota::new(1 << 20);
    let (split, _) = rows(&text, Some(1000), Some(&quota), true).await.unwrap();
    assert_eq!(split.num_rows(), 2000);
    assert!(quota.peak() > 1000 && quota.used() == 0, "{} of {}", quota.used(), quota.peak());
    // The long row does not fit.
    let error = rows(&text, Some(1000), Some(&Quota::new(4000)), true).await.unwrap_err();
    let text = error.find_root().to_string();
    assert!(text.contains("part of a CSV file") && text.contains("of 4000 are in use"), "{text}");
}

#[tokio::test]
async fn errors_have_the_position_of_the_row() {
    let mut text = file("\n", 2000);
    text.push_str("not a number,a,b\n");
    let error = rows(&text, Some(1000), None, true).await.unwrap_err();
    let told = error.find_root().to_string();
    let (_, place) = told.split_once("t.csv`, row ").unwrap();
    let (row, place) = place.split_once(" behind byte ").unwrap();
    let (first, reason) = place.split_once(", ").unwrap();
    assert_eq!(reason, "column 1: `not a number` cannot be read as int64");
    // The last row but one has the id 1999.
    let first: usize = text[first.parse().unwrap()..].split(',').next().unwrap().parse().unwrap();
    assert_eq!(row.parse::<usize>().unwrap(), 2000 - first + 1, "{told}");
    let ids: Vec<i64> = (0..3).collect();
    let (split, _) = rows(&file("\n", 3), Some(1 << 20), None, true).await.unwrap();
    let read = split.column(0).as_primitive::<datafusion::arrow::datatypes::Int64Type>();
    assert_eq!(read.values().to_vec(), ids);
}

/// With and without a header, in whole files, in the first range and in others.
#[tokio::test]
async fn numbers_of_rows_count_from_one() {
    for has_header in [true, false] {
        for bad in [1, 2, 7, 150] {
            let mut text = if has_header { "id,a,b\n".to_string() } else { String::new() };
            for row in 1..=200 {
                let id = if row == bad { "x".to_string() } else { row.to_string() };
                let _ = writeln!(text, "{id},a,b");
            }
            for split in [None, Some(1 << 20), Some(300)] {
                let read = rows_with(&text, split, None, has_header, DataType::Int64).await;
                let told = read.unwrap_err().find_root().to_string();
                let (_, place) = told.split_once("t.csv`, row ").unwrap();
                let (place, _) = place.split_once(", column 1: `x` cannot be read").unwrap();
                let number: usize = match place.split_once(" behind byte ") {
                    None => place.parse().unwrap(),
                    Some((row, first)) => {
                        let before = text[..first.parse().unwrap()].lines().count();
                        row.parse::<usize>().unwrap() + before - usize::from(has_header)
                    }
                };
                assert_eq!(number, bad, "header {has_header}, splits of {split:?}: {told}");
            }
        }
    }
}
