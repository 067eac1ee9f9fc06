#![allow(clippy::unwrap_used, clippy::panic, reason = "tests")]

use crate::rows::splits::gather::RowsThreads;
use crate::rows::splits::sort::{SortSplitsExec, sorted_beside};
use datafusion::arrow::array::{
    ArrayRef, Float64Array, Int64Array, RecordBatch, StringArray, UInt64Array,
};
use datafusion::arrow::compute::{
    SortColumn, SortOptions, concat_batches, lexsort_to_indices, take_record_batch,
};
use datafusion::common::Result;
use datafusion::common::utils::memory::get_record_batch_memory_size;
use datafusion::datasource::memory::MemorySourceConfig;
use datafusion::error::DataFusionError;
use datafusion::execution::TaskContext;
use datafusion::execution::disk_manager::{DiskManagerBuilder, DiskManagerMode};
use datafusion::execution::memory_pool::{GreedyMemoryPool, MemoryPool};
use datafusion::execution::runtime_env::RuntimeEnvBuilder;
use datafusion::physical_expr::expressions::col;
use datafusion::physical_expr::{LexOrdering, PhysicalSortExpr};
use datafusion::physical_plan::ExecutionPlan;
use datafusion::prelude::SessionConfig;
use futures::TryStreamExt;
use std::sync::Arc;

const BATCH_ROWS: usize = 1024;

/// Batches of `v`, which has NULLs and each value several times, and of `id`; with texts of that length in between.
fn rows(count: usize, text: usize) -> Vec<RecordBatch> {
    let value = |i: usize| {
        let hash = (i as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 40;
        (!hash.is_multiple_of(17)).then_some((hash % 5003) as f64 - 2500.5)
    };
    let batch = |start: usize| {
        let of = start..(start + BATCH_ROWS).min(count);
        let v: Float64Array = of.clone().map(value).collect();
        let id: Int64Array = of.clone().map(|i| i as i64).collect();
        let s = StringArray::from_iter_values(of.map(|i| format!("{i:0text$}")));
        let mut columns: Vec<(&str, ArrayRef)> = vec![("v", Arc::new(v))];
        if text > 0 {
            columns.push(("s", Arc::new(s)));
        }
        columns.push(("id", Arc::new(id)));
        RecordBatch::try_from_iter_with_nullable(
            columns.into_iter().map(|(name, column)| (name, column, name == "v")),
        )
        .unwrap()
    };
    (0..count).step_by(BATCH_ROWS).map(batch).collect()
}

fn order(rows: &RecordBatch, key: &str, options: SortOptions) -> Result<LexOrdering> {
    let key = PhysicalSortExpr::new(col(key, &rows.schema())?, options);
    Ok(LexOrdering::new([key]).unwrap())
}

async fn sorted(
    batches: &[RecordBatch],
    (key, options): (&str, SortOptions),
    memory: usize,
    fan_in: usize,
) -> Result<RecordBatch> {
    let disk = DiskManagerBuilder::default().with_max_spill_merge_fan_in(fan_in);
    sorted_on(disk, batches, (key, options), memory).await
}

async fn sorted_on(
    disk: DiskManagerBuilder,
    batches: &[RecordBatch],
    (key, options): (&str, SortOptions),
    memory: usize,
) -> Result<RecordBatch> {
    let schema = batches[0].schema();
    let input = MemorySourceConfig::try_new_exec(&[batches.to_vec()], schema.clone(), None)?;
    let sort = SortSplitsExec::new(input, order(&batches[0], key, options)?, None)?;
    let pool: Arc<dyn MemoryPool> = Arc::new(GreedyMemoryPool::new(memory));
    let environment = RuntimeEnvBuilder::new()
        .with_memory_pool(pool.clone())
        .with_disk_manager_builder(disk)
        .build_arc()?;
    let config = SessionConfig::new().with_batch_size(BATCH_ROWS);
    let config = config.with_extension(Arc::new(RowsThreads(4)));
    let context = TaskContext::default().with_session_config(config).with_runtime(environment);
    let rows: Vec<_> = sort.execute(0, Arc::new(context))?.try_collect().await?;
    assert!(rows.iter().all(|batch| batch.num_rows() <= BATCH_ROWS));
    assert_eq!(pool.reserved(), 0);
    Ok(concat_batches(&schema, &rows)?)
}

/// Arrow's sort, with the number of the row as the last key.
fn expected(rows: &RecordBatch, key: &str, options: SortOptions) -> RecordBatch {
    let values = rows.column_by_name(key).unwrap().clone();
    let number: UInt64Array = (0..rows.num_rows() as u64).collect();
    let keys = [
        SortColumn { values, options: Some(options) },
        SortColumn { values: Arc::new(number), options: None },
    ];
    take_record_batch(rows, &lexsort_to_indices(&keys, None).unwrap()).unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn rows_in_files_are_sorted_as_those_in_memory() {
    for (count, text, key) in [(200_000, 0, "v"), (9_000, 400, "v"), (9_000, 400, "s")] {
        let batches = rows(count, text);
        let all = concat_batches(&batches[0].schema(), &batches).unwrap();
        for descending in [false, true] {
            let options = SortOptions { descending, nulls_first: false };
            let expected = expected(&all, key, options);
            // Files of all rows; merged at once, and two at a time.
            for (memory, fan_in) in [(1 << 30, 0), (2 << 20, 0), (2 << 20, 2)] {
                if memory < 1 << 30 {
                    assert!(get_record_batch_memory_size(&all) > memory, "{count} rows");
                }
                let sorted = sorted(&batches, (key, options), memory, fan_in).await.unwrap();
                assert_eq!(sorted, expected, "{count} rows by {key}, {memory} bytes, {fan_in}");
            }
        }
    }
}

/// A task that writes files has the rows and the batches of one that does not, wherever they are in the result.
#[tokio::test]
async fn tasks_with_little_memory_have_the_same_batches() {
    let batches = rows(20_000, 20);
    let by = order(&batches[0], "v", SortOptions::default()).unwrap();
    let all = concat_batches(&batches[0].schema(), &batches).unwrap();
    let expected = expected(&all, "v", SortOptions::default());
    for (before, most) in [(0, 1 << 30), (0, 1 << 17), (300, 1 << 30), (300, 1 << 17), (1024, 1)] {
        let input =
            MemorySourceConfig::try_new_exec(std::slice::from_ref(&batches), all.schema(), None);
        let config = SessionConfig::new().with_batch_size(BATCH_ROWS);
        let context = Arc::new(TaskContext::default().with_session_config(config));
        let rows = sorted_beside(input.unwrap(), by.clone(), (before, most), &context).await;
        let rows: Vec<RecordBatch> = rows.unwrap().try_collect().await.unwrap();
        let first = BATCH_ROWS - before % BATCH_ROWS;
        let starts = std::iter::once(0).chain((first..all.num_rows()).step_by(BATCH_ROWS));
        let ends = (first..all.num_rows()).step_by(BATCH_ROWS).chain([all.num_rows()]);
        let slices: Vec<_> = starts.zip(ends).map(|(a, b)| expected.slice(a, b - a)).collect();
        assert_eq!(rows, slices, "{before} rows before, {most} bytes");
    }
}

#[tokio::test]
async fn rows_that_do_not_fit_at_all_are_an_error() {
    let batches = rows(3 * BATCH_ROWS, 400);
    let error = sorted(&batches, ("v", SortOptions::default()), 100_000, 0).await.unwrap_err();
    assert!(matches!(error.find_root(), DataFusionError::ResourcesExhausted(_)), "{error}");
    // Without files, all rows have to fit.
    let disk = || DiskManagerBuilder::default().with_mode(DiskManagerMode::Disabled);
    let key = ("v", SortOptions::default());
    assert!(sorted_on(disk(), &batches, key, 8 << 20).await.is_ok());
    let error = sorted_on(disk(), &batches, key, 1 << 20).await.unwrap_err();
    let DataFusionError::ResourcesExhausted(what) = error.find_root() else { panic!("{error}") };
    assert!(what.contains("sort"), "the request and its number: {what}");
}
