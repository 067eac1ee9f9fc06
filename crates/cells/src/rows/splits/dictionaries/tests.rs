#![allow(clippy::unwrap_used, reason = "tests")]
//! Groups over dictionaries, compared with those over texts.

use super::super::{RowsThreads, SplitSize, with_coded_groups, with_splits};
use super::*;
use crate::lift::session_state;
use crate::rows::guard::guarded;
use crate::rows::physical::in_order;
use datafusion::arrow::array::{ArrayRef, Float64Array, Int64Array, StringArray};
use datafusion::arrow::compute::concat_batches;
use datafusion::arrow::record_batch::RecordBatch;
use datafusion::common::tree_node::TreeNodeRecursion;
use datafusion::execution::SessionStateBuilder;
use datafusion::physical_plan::collect;
use datafusion::prelude::{ParquetReadOptions, SessionContext};
use parquet::arrow::ArrowWriter;
use parquet::file::properties::WriterProperties;

const ROWS: usize = 20_000;

/// `s` and `long` have other values in each row group, `plain` has no dictionary, and `wide` has one for its first pages
/// alone.
fn rows() -> RecordBatch {
    let hash = |i: usize, salt: usize| (i * 2_654_435_761 + salt * 40_503) >> 7;
    let s = (0..ROWS).map(|i| match hash(i, 1) % 9 {
        0 => None,
        1 => Some(String::new()),
        n => Some(format!("text {}", n + i / 4000)),
    });
    let long = (0..ROWS).map(|i| {
        (hash(i, 2) % 6 > 0)
            .then(|| format!("twelve bytes and more, {}", hash(i, 3) % (2 + i / 3000)))
    });
    let plain = (0..ROWS).map(|i| Some(format!("plain {}", hash(i, 4) % 7)));
    let wide = (0..ROWS).map(|i| Some(format!("wide {}", hash(i, 5) % 3000)));
    let columns: [(&str, ArrayRef); 6] = [
        ("s", Arc::new(s.collect::<StringArray>())),
        ("long", Arc::new(long.collect::<StringArray>())),
        ("plain", Arc::new(plain.collect::<StringArray>())),
        ("wide", Arc::new(wide.collect::<StringArray>())),
        ("n", Arc::new((0..ROWS as i64).collect::<Int64Array>())),
        ("f", Arc::new((0..ROWS).map(|i| Some(1.0 / (1 + i) as f64)).collect::<Float64Array>())),
    ];
    RecordBatch::try_from_iter_with_nullable(columns.map(|(name, values)| (name, values, true)))
        .unwrap()
}

async fn context(directory: &std::path::Path) -> SessionContext {
    let path = directory.join("t.parquet");
    let properties = WriterProperties::builder()
        .set_max_row_group_row_count(Some(3000))
        .set_data_page_row_count_limit(500)
        .set_write_batch_size(100)
        .set_column_dictionary_enabled("plain".into(), false)
        .set_dictionary_page_size_limit(4000)
        .build();
    let (rows, file) = (rows(), std::fs::File::create(&path).unwrap());
    let mut writer = ArrowWriter::try_new(file, rows.schema(), Some(properties)).unwrap();
    writer.write(&rows).unwrap();
    writer.close().unwrap();
    let state = session_state(1 << 30).unwrap();
    let config = state.config().clone().with_batch_size(512);
    let config = config.with_extension(Arc::new(RowsThreads(2)));
    let state = SessionStateBuilder::new_from_existing(state).with_config(config).build();
    let context = SessionContext::new_with_state(in_order(&state));
    let path = path.to_str().unwrap();
    context.register_parquet("t", path, ParquetReadOptions::default()).await.unwrap();
    context
}

/// The columns that scans return as dictionaries.
fn dictionaries(plan: &Arc<dyn ExecutionPlan>) -> Vec<String> {
    let mut names = Vec::new();
    plan.each(|node| {
        if node.is::<DataSourceExec>() {
            let schema = node.schema();
            let fields = schema.fields().iter().filter(|f| *f.data_type() == dictionary());
            names.extend(fields.map(|field| field.name().clone()));
        }
        Ok(TreeNodeRecursion::Continue)
    })
    .unwrap();
    names.sort();
    names
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn keys_are_read_as_dictionaries() {
    let directory = tempfile::tempdir().unwrap();
    let context = context(directory.path()).await;
    let ends = context.runtime_env().cache_manager.get_file_metadata_cache();
    let cases: [(&str, &[&str]); 21] = [
        ("SELECT s, count(*), sum(n), avg(f) FROM t GROUP BY s", &["s"]),
        ("SELECT DISTINCT long FROM t", &["long"]),
        ("SELECT long, s, sum(f) FROM t GROUP BY long, s", &["long", "s"]),
        ("SELECT s, plain, wide, sum(f) FROM t GROUP BY s, plain, wide", &["s"]),
        ("SELECT s, max(n) FROM t WHERE n % 3 = 0 AND plain <> 'plain 3' GROUP BY s", &["s"]),
        ("SELECT s, min(long), max(wide) FROM t GROUP BY s", &["s"]),
        ("SELECT s, long, sum(n) FROM t GROUP BY ROLLUP (s, long)", &["long", "s"]),
        // The first rows of a sort do not shorten what groups read, unless the key is compared otherwise, too.
        ("SELECT s, sum(n) FROM t GROUP BY s ORDER BY s LIMIT 3", &["s"]),
        ("SELECT s, sum(n) FROM t WHERE s > 'text 3' GROUP BY s ORDER BY s LIMIT 3", &[]),
        // Many groups.
        ("SELECT s, n, sum(f) FROM t GROUP BY s, n", &["s"]),
        // Texts that are compared, computed with, or arguments.
        ("SELECT s, count(*) FROM t WHERE s > 'text 3' GROUP BY s", &[]),
        ("SELECT upper(s), count(*) FROM t GROUP BY upper(s)", &[]),
        ("SELECT s, min(s) FROM t GROUP BY s", &[]),
        // Conditions that are evaluated for each value.
        ("SELECT count(*) AS n FROM t WHERE replace(s, 'x', 'y') LIKE '%y%5'", &["s"]),
        (
            "SELECT count(*) AS n, sum(n) AS m FROM t WHERE upper(long) LIKE '%, 2' AND n > 9",
            &["long"],
        ),
        ("SELECT long, count(*) FROM t WHERE upper(s) LIKE '%3' GROUP BY long", &["long", "s"]),
        ("SELECT count(*) AS n FROM t WHERE s LIKE '%x%4' AND s > 'text'", &[]),
        ("SELECT count(*) AS n FROM t WHERE s IN ('text 3', 'text 4', 'text 5')", &[]),
        ("SELECT s, n FROM t WHERE upper(s) = 'TEXT 3'", &[]),
        // No dictionary, and one that the pages outgrow.
        ("SELECT plain, count(*) FROM t GROUP BY plain", &[]),
        ("SELECT wide, count(*) FROM t GROUP BY wide", &[]),
    ];
    for (sql, want) in cases {
        let mut answers = Vec::new();
        for reads in [false, true] {
            // Anew for each of them: a sort fills the filters of its plan.
            let plan = context.sql(sql).await.unwrap().create_physical_plan().await.unwrap();
            let plan = guarded(plan, None, None, 512).unwrap();
            let mut plan = with_splits(plan, SplitSize::of(4 << 10)).unwrap();
            if reads {
                plan = with_dictionaries(plan, &*ends).unwrap();
                assert_eq!(dictionaries(&plan), want, "{sql}");
            }
            let plan = with_coded_groups(plan).unwrap();
            let batches = collect(plan.clone(), context.task_ctx()).await.unwrap();
            answers.push(concat_batches(&plan.schema(), &batches).unwrap());
        }
        assert!(answers[0].num_rows() > 1 || sql.contains(" AS n"), "{sql}");
        assert_eq!(answers[0], answers[1], "{sql}");
    }
}
