#![allow(clippy::unwrap_used, reason = "tests")]
//! Merged groups beside those of DataFusion.

use super::super::super::groups::{final_over, partial};
use super::super::coded;
use super::super::tests::aggregate_of;
use super::*;
use datafusion::arrow::array::{Date32Array, Float64Array, Int64Array, StringArray};
use datafusion::arrow::compute::concat_batches;
use datafusion::datasource::MemTable;
use datafusion::physical_plan::collect;
use datafusion::prelude::{SessionConfig, SessionContext};

/// Keys with NULLs, and values with NULLs and NaN. Some groups come late.
fn rows(batch: usize) -> RecordBatch {
    let first = batch * 500;
    let hash = |i: usize, salt: usize| (i * 2_654_435_761 + salt * 40_503) >> 9;
    let range = || first..first + 500;
    let a: StringArray = range().map(|i| Some(format!("a{}", hash(i, 1) % (5 + batch)))).collect();
    let d: Date32Array =
        range().map(|i| Some((hash(i, 2) % 40) as i32).filter(|d| *d > 0)).collect();
    let n: Int64Array = range().map(|i| Some((hash(i, 3) % 1009) as i64)).collect();
    let v: Float64Array =
        range().map(|i| Some(1.0 / (hash(i, 4) % 1013) as f64).filter(|v| *v < 0.5)).collect();
    let columns: [(&str, ArrayRef); 4] =
        [("a", Arc::new(a)), ("d", Arc::new(d)), ("n", Arc::new(n)), ("v", Arc::new(v))];
    let columns = columns.map(|(name, column)| (name, column, true));
    RecordBatch::try_from_iter_with_nullable(columns).unwrap()
}

#[tokio::test]
async fn results_are_those_of_datafusion() {
    let config = SessionConfig::new().with_target_partitions(1).with_batch_size(300);
    let context = SessionContext::new_with_config(config);
    let batches: Vec<RecordBatch> = (0..8).map(rows).collect();
    let table = MemTable::try_new(batches[0].schema(), vec![batches]).unwrap();
    context.register_table("t", Arc::new(table)).unwrap();
    let calls = "count(*), count(v), sum(v), avg(v), min(a), max(n), stddev(v), median(v), sum(n) FILTER (WHERE v > 0.1)";
    for (keys, few) in
        [("a", true), ("d", true), ("a, d", true), ("n, a", false), ("ROLLUP (a, d)", true)]
    {
        let sql = format!("SELECT {calls} FROM t GROUP BY {keys}");
        let whole = aggregate_of(&context, &sql).await;
        let partial = partial(&whole, whole.input().clone()).unwrap();
        let merged = final_over(&partial, Arc::new(partial.clone())).unwrap();
        let own = coded(&merged).unwrap().unwrap();
        assert_eq!(own.schema(), merged.schema(), "{sql}");
        let all = async |plan: &Arc<dyn ExecutionPlan>| {
            let batches = collect(plan.clone(), context.task_ctx()).await.unwrap();
            concat_batches(&plan.schema(), &batches).unwrap()
        };
        let (merged, own) = (all(&merged).await, all(&own).await);
        assert_eq!(few, own.num_rows() < 1000, "{sql}: {} groups", own.num_rows());
        assert_eq!(merged, own, "{sql}");
    }
}
