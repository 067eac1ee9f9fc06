//! Parts of plans, encoded by one process and decoded by another.

use super::*;
use crate::lift::{Unnamed, ranked};
use crate::rows::IsStopped;
use crate::rows::per_value;
use crate::rows::physical::physical;
use crate::rows::runtime::RowsState;
use crate::rows::splits::tests::{PER_VALUE, QUERIES, file};
use crate::rows::splits::{
    SplitSize, part_below, parts_below, rows_below, sorted_below, windows_below,
};
use crate::tables::{OpenedTable, TableFormat};
use crate::walk::Walk;
use datafusion::arrow::array::{ArrayRef, DictionaryArray, Int64Array, StringArray};
use datafusion::arrow::datatypes::{DataType, Field, Int32Type};
use datafusion::arrow::ipc::root_as_footer;
use datafusion::arrow::ipc::writer::{FileWriter, StreamWriter};
use datafusion::arrow::record_batch::RecordBatch;
use datafusion::catalog::TableProvider;
use datafusion::common::tree_node::TreeNodeRecursion;
use datafusion::datasource::DefaultTableSource;
use datafusion::execution::SessionStateBuilder;
use datafusion::logical_expr::{ColumnarValue, Volatility, create_udf};
use datafusion::physical_expr::expressions::Column;
use datafusion::physical_expr::{PhysicalSortExpr, ScalarFunctionExpr};
use datafusion::physical_plan::empty::EmptyExec;
use datafusion::physical_plan::projection::{ProjectionExec, ProjectionExpr};
use datafusion::physical_plan::{ExecutionPlanProperties, displayable};
use datafusion::prelude::SessionContext;
use futures::TryStreamExt;
use std::path::Path;
use std::time::Duration;
use tessera_exec::quota::Quota;
use tessera_exec::store::Store;

struct Process {
    runtime: Arc<RowsRuntime>,
    rows: RowsState,
    stores: Stores,
    _directory: tempfile::TempDir,
}

impl Process {
    fn new() -> Self {
        let directory = tempfile::tempdir().unwrap();
        let store = Store::open(directory.path(), 0);
        let runtime = RowsRuntime::new(Quota::new(1 << 30), store, 2);
        let (rows, stores) = (runtime.state(), Stores::new(Duration::from_secs(10)));
        Process { runtime, rows, stores, _directory: directory }
    }

    fn state(&self) -> SessionState {
        let state = self.rows.get().unwrap().clone();
        let config = state.config().clone().with_batch_size(512);
        SessionStateBuilder::new_from_existing(state).with_config(config).build()
    }

    async fn table(&self, format: TableFormat, path: &Path) -> OpenedTable {
        let versions = Versions::new(false);
        let path = path.to_str().unwrap();
        self.rows.open_table(format, path, &[], &self.stores, &versions).await.unwrap()
    }

    /// The parts of a query over a table that are split, as they are planned.
    async fn parts(&self, table: &OpenedTable, sql: &str) -> Vec<Arc<dyn ExecutionPlan>> {
        let source = table.table.source();
        let source = source.downcast_ref::<DefaultTableSource>().unwrap();
        let provider: Arc<dyn TableProvider> = source.table_provider.clone();
        let state = self.state();
        let context = SessionContext::new_with_state(state.clone());
        // States of one process share their tables.
        context.deregister_table("t").unwrap();
        context.register_table("t", provider).unwrap();
        let logical = context.state().create_logical_plan(sql).await.unwrap();
        let goes_on: IsStopped = Arc::new(|| false);
        let size = SplitSize::of(16 << 10);
        let plan = physical(&state, &logical, size, None, &goes_on).await.unwrap();
        let mut parts = Vec::new();
        plan.each(|node| {
            parts.extend(part_below(node)?.map(|below| below.part));
            parts.extend(rows_below(node));
            parts.extend(parts_below(node).map(|parts| -> Arc<dyn ExecutionPlan> { parts }));
            parts.extend(sorted_below(node)?.map(|parts| -> Arc<dyn ExecutionPlan> { parts }));
            parts.extend(windows_below(node)?.map(|parts| -> Arc<dyn ExecutionPlan> { parts }));
            Ok(TreeNodeRecursion::Continue)
        })
        .unwrap();
        parts
    }

    fn encode(&self, part: &Arc<dyn ExecutionPlan>) -> std::result::Result<Vec<u8>, String> {
        encode(part, &self.state(), &self.runtime).map_err(|Stays(reason)| reason)
    }

    fn decode(&self, bytes: &[u8]) -> Decoded {
        decode(bytes, &self.state(), &self.runtime, &self.stores).unwrap()
    }

    async fn run(
        &self,
        plan: &Arc<dyn ExecutionPlan>,
        partition: usize,
    ) -> Result<Vec<RecordBatch>> {
        let context = Arc::new(TaskContext::from(&self.state()));
        plan.execute(partition, context)?.try_collect().await
    }
}

fn text(plan: &Arc<dyn ExecutionPlan>) -> String {
    displayable(plan.as_ref()).indent(true).to_string()
}

fn splits(plan: &Arc<dyn ExecutionPlan>) -> usize {
    plan.output_partitioning().partition_count()
}

/// A part that was encoded before anything ran.
struct Sent {
    part: Arc<dyn ExecutionPlan>,
    text: String,
    bytes: Vec<u8>,
}

impl Sent {
    fn new(here: &Process, part: &Arc<dyn ExecutionPlan>) -> std::result::Result<Self, String> {
        let bytes = here.encode(part)?;
        Ok(Sent { part: part.clone(), text: text(part), bytes })
    }

    /// Sends it to another process, and compares the batches of all partitions.
    async fn is_same(&self, here: &Process, there: &Process, of: &str) {
        let decoded = there.decode(&self.bytes);
        assert_eq!(self.text, text(&decoded.plan), "{of}");
        assert_eq!(self.part.schema(), decoded.plan.schema(), "{of}");
        let mut rows = 0;
        for split in 0..splits(&self.part) {
            let of_here = here.run(&self.part, split).await.unwrap();
            let of_there = there.run(&decoded.plan, split).await.unwrap();
            assert_eq!(of_here, of_there, "{of}: split {split}");
            rows += of_here.iter().map(RecordBatch::num_rows).sum::<usize>();
        }
        // Groups that exist without rows are added where states are merged.
        assert!(rows > 0 || of.contains("k < 0"), "{of}");
        // The build side has filled the filter of the scan.
        let empty = |shown: &str| shown.matches("DynamicFilter [ empty ]").count();
        let is_filled = empty(&text(&decoded.plan)) < empty(&self.text);
        assert_eq!(is_filled, self.text.contains("KeysExec"), "{of}");
    }
}

async fn is_same_there(here: &Process, there: &Process, part: &Arc<dyn ExecutionPlan>, of: &str) {
    match Sent::new(here, part) {
        Ok(sent) => sent.is_same(here, there, of).await,
        Err(reason) => panic!("{of}: {reason}"),
    }
}

/// Operators of the server, which it keeps.
const KEPT: [&str; 5] =
    ["GroupsExec", "SortExec", "SortExec(TopK)", "SortSplitsExec", "PartitionTopExec"];

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn parts_have_the_same_text_rows_and_bits_in_another_process() {
    let (_directory, path) = file();
    let (here, there) = (Process::new(), Process::new());
    let table = here.table(TableFormat::Parquet, &path).await;
    let (mut sent, mut with_keys, mut with_windows) = (0, 0, 0);
    for sql in QUERIES {
        let parts = here.parts(&table, sql).await;
        // A join that runs fills filters, which may be those of other parts.
        let parts: Vec<_> = parts.iter().map(|part| Sent::new(&here, part)).collect();
        for part in parts {
            match part {
                Ok(part) => {
                    assert!(splits(&part.part) > 1, "{sql}");
                    part.is_same(&here, &there, sql).await;
                    sent += 1;
                    with_keys += usize::from(part.text.contains("KeysExec"));
                    with_windows += usize::from(part.text.contains("WindowsExec"));
                }
                Err(reason) => {
                    let is_filter = reason.starts_with("the FILTER of the window function");
                    assert!(is_filter || KEPT.contains(&reason.as_str()), "{sql}: {reason}");
                }
            }
        }
    }
    assert!(sent >= 24 && with_keys > 0, "{sent} parts, {with_keys} with keys");
    assert!(with_windows >= 6, "{with_windows} parts with windows");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn per_value_expressions_are_the_same_in_another_process() {
    let (_directory, path) = file();
    let (here, there) = (Process::new(), Process::new());
    let table = here.table(TableFormat::Parquet, &path).await;
    for (sql, least) in [(PER_VALUE, 4), ("SELECT id, upper(btrim(s)) FROM t WHERE g > 3", 1)] {
        let mut found = 0;
        for part in here.parts(&table, sql).await {
            let Ok(bytes) = here.encode(&part) else { continue };
            let of_here = per_value::tests::parts(&part);
            let of_there = per_value::tests::parts(&there.decode(&bytes).plan);
            assert_eq!(of_here, of_there, "{sql}");
            found += of_here.len();
        }
        assert!(found >= least, "{sql}: {found}");
    }
}

/// DataFusion casts a column without NULL to its own type, so that it may be NULL as that of the other input.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn unions_with_columns_without_null_are_sent() {
    let (_directory, path) = file();
    let (here, there) = (Process::new(), Process::new());
    let table = here.table(TableFormat::Parquet, &path).await;
    for sql in [
        "SELECT sum(x), count(y) FROM (SELECT g AS x, s AS y FROM t UNION ALL SELECT 5, 'a' FROM t WHERE k < 2000) q",
        "SELECT sum(x), max(y) FROM (SELECT 1 AS x, 'b' AS z, v AS y FROM t WHERE g = 3 UNION ALL SELECT g, s, 2.5 FROM t) q",
        "SELECT sum(x) FROM (SELECT coalesce(k, 0) AS x FROM t WHERE g = 3 UNION ALL SELECT v FROM t) q",
    ] {
        let parts = here.parts(&table, sql).await;
        assert_eq!(parts.len(), 1, "{sql}");
        assert!(text(&parts[0]).contains("ConcatExec"), "{sql}");
        is_same_there(&here, &there, &parts[0], sql).await;
    }
}

/// The rows of a file: a number, one of seven, and a text.
fn lines(from: usize) -> impl Iterator<Item = (usize, usize, String)> {
    (from..from + 2000).map(|i| (i, i % 7, format!("text {i}")))
}

fn objects() -> Vec<String> {
    lines(0).map(|(id, g, s)| format!("{{\"id\": {id}, \"g\": {g}, \"s\": \"{s}\"}}")).collect()
}

/// An Arrow file, or a stream, of the same rows in batches of 250, with a column of two words in a dictionary.
fn arrow(from: usize, is_stream: bool) -> Vec<u8> {
    let rows: Vec<_> = lines(from).collect();
    let batch = |rows: &[(usize, usize, String)]| {
        let id: Int64Array = rows.iter().map(|row| Some(row.0 as i64)).collect();
        let g: Int64Array = rows.iter().map(|row| Some(row.1 as i64).filter(|g| *g > 0)).collect();
        let s: StringArray = rows.iter().map(|row| Some(row.2.as_str())).collect();
        let word = |i: usize| if i.is_multiple_of(2) { "even" } else { "odd" };
        let w: DictionaryArray<Int32Type> = (0..rows.len()).map(word).collect();
        let columns: [(&str, ArrayRef); 4] =
            [("id", Arc::new(id)), ("g", Arc::new(g)), ("s", Arc::new(s)), ("w", Arc::new(w))];
        // Its fields may be NULL in each file, whether or not they are.
        RecordBatch::try_from_iter_with_nullable(columns.map(|(name, column)| (name, column, true)))
            .unwrap()
    };
    let batches: Vec<RecordBatch> = rows.chunks(250).map(batch).collect();
    let schema = batches[0].schema();
    if is_stream {
        let mut writer = StreamWriter::try_new(Vec::new(), &schema).unwrap();
        batches.iter().for_each(|batch| writer.write(batch).unwrap());
        return writer.into_inner().unwrap();
    }
    let mut writer = FileWriter::try_new(Vec::new(), &schema).unwrap();
    batches.iter().for_each(|batch| writer.write(batch).unwrap());
    writer.into_inner().unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn scans_of_other_formats_are_the_same_in_another_process() {
    let directory = tempfile::tempdir().unwrap();
    let at = |name: &str| directory.path().join(name);
    std::fs::create_dir(at("many")).unwrap();
    std::fs::create_dir(at("streams")).unwrap();
    for number in 0..4 {
        let rows = lines(number * 2000).map(|(id, g, s)| format!("{id};{g};{s}\n"));
        let file = std::iter::once("id;g;s\n".to_string()).chain(rows).collect::<String>();
        std::fs::write(at(&format!("many/{number}.csv")), file).unwrap();
        let stream = arrow(number * 2000, true);
        std::fs::write(at(&format!("streams/{number}.arrows")), stream).unwrap();
    }
    std::fs::write(at("t.ndjson"), objects().join("\n")).unwrap();
    std::fs::write(at("t.json"), format!("[{}]", objects().join(",\n"))).unwrap();
    std::fs::write(at("t.arrow"), arrow(0, false)).unwrap();
    let (here, there) = (Process::new(), Process::new());
    let delimiter = [("delimiter".to_string(), ";".to_string())];
    let (versions, many) = (Versions::new(false), at("many"));
    let url = many.to_str().unwrap();
    let csv = here.rows.open_table(TableFormat::Csv, url, &delimiter, &here.stores, &versions);
    let mut tables = vec![csv.await.unwrap()];
    for (format, name) in [
        (TableFormat::Json, "t.ndjson"),
        (TableFormat::Json, "t.json"),
        (TableFormat::Arrow, "t.arrow"),
        (TableFormat::Arrow, "streams"),
    ] {
        tables.push(here.table(format, &at(name)).await);
    }
    for table in &tables {
        for sql in [
            "SELECT g, id + 1 FROM t WHERE s > 'text 5'",
            "SELECT sum(id), min(s) FROM t",
            "SELECT s, g FROM t WHERE id % 3 = 1",
        ] {
            let parts = here.parts(table, sql).await;
            let [part] = parts.as_slice() else { panic!("{sql}: {} parts", parts.len()) };
            is_same_there(&here, &there, part, sql).await;
        }
    }
    for table in &tables[3..] {
        for sql in ["SELECT w, id FROM t WHERE g = 3", "SELECT * FROM t WHERE g IS NULL"] {
            let parts = here.parts(table, sql).await;
            let [part] = parts.as_slice() else { panic!("{sql}: {} parts", parts.len()) };
            assert!(text(part).contains("file_type=arrow"), "{sql}: {}", text(part));
            is_same_there(&here, &there, part, sql).await;
        }
    }
}

/// The error names the file and the batch, wherever it is read.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn damaged_arrow_files_have_the_same_errors_in_another_process() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("t.arrow");
    let mut file = arrow(0, false);
    let end = file.len() - 10;
    let length = i32::from_le_bytes(file[end..end + 4].try_into().unwrap()) as usize;
    let batch = {
        let footer = root_as_footer(&file[end - length..end]).unwrap();
        footer.recordBatches().unwrap().get(4).offset() as usize
    };
    // Its metadata, behind a marker and their length.
    file[batch + 8..batch + 40].fill(0xee);
    std::fs::write(&path, file).unwrap();
    let (here, there) = (Process::new(), Process::new());
    let table = here.table(TableFormat::Arrow, &path).await;
    let parts = here.parts(&table, "SELECT sum(id), count(g) FROM t").await;
    let [part] = parts.as_slice() else { panic!("{} parts", parts.len()) };
    let decoded = there.decode(&here.encode(part).unwrap());
    let mut failed = 0;
    for split in 0..splits(part) {
        match (here.run(part, split).await, there.run(&decoded.plan, split).await) {
            (Ok(of_here), Ok(of_there)) => assert_eq!(of_here, of_there),
            (Err(of_here), Err(of_there)) => {
                let of_there = Error::from(of_there).report();
                assert_eq!(Error::from(of_here).report(), of_there);
                let message = &of_there.message;
                assert!(message.contains("t.arrow") && message.contains("at byte"), "{message}");
                failed += 1;
            }
            (of_here, of_there) => panic!("split {split}: {of_here:?}, there {of_there:?}"),
        }
    }
    assert_eq!(failed, 1);
}

/// A part that reads the columns of the file, and the process that planned it.
async fn scan(path: &Path) -> (Process, OpenedTable, Arc<dyn ExecutionPlan>) {
    let here = Process::new();
    let table = here.table(TableFormat::Parquet, path).await;
    let part = here.parts(&table, "SELECT id, s, v FROM t ORDER BY v, id").await.remove(0);
    (here, table, part)
}

/// The part with a column that a function of its texts computes.
fn with_call(
    state: &SessionState,
    part: &Arc<dyn ExecutionPlan>,
    function: ScalarUDF,
    field: Field,
) -> Arc<dyn ExecutionPlan> {
    let at = part.schema().index_of("s").unwrap();
    let column: Arc<dyn PhysicalExpr> = Arc::new(Column::new("s", at));
    let (name, options) = (function.name().to_string(), state.config().options().clone());
    let call =
        ScalarFunctionExpr::new(&name, Arc::new(function), vec![column], Arc::new(field), options);
    let expr = ProjectionExpr { expr: Arc::new(call), alias: "called".into() };
    Arc::new(ProjectionExec::try_new(vec![expr], part.clone()).unwrap())
}

fn boolean() -> Field {
    Field::new("called", DataType::Boolean, true)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn functions_keep_their_state() {
    let (_directory, path) = file();
    let (here, _table, part) = scan(&path).await;
    let there = Process::new();
    for negated in [false, true] {
        let (start, end) = ("text ".to_string(), "1".to_string());
        let like = Unnamed::Like { start, middle: vec!["2".into()], end, negated };
        let called = with_call(&here.state(), &part, like.function().unwrap(), boolean());
        is_same_there(&here, &there, &called, "tessera_like").await;
    }
    let labels = |count: usize| -> ArrayRef {
        let labels = (0..count).rev().map(|i| format!("text {i}"));
        Arc::new(StringArray::from_iter_values(labels))
    };
    let number = || Field::new("called", DataType::UInt64, true);
    let called = with_call(&here.state(), &part, ranked(&[labels(300)]), number());
    is_same_there(&here, &there, &called, "tessera_rank").await;
    let called = with_call(&here.state(), &part, ranked(&[labels(10_000)]), number());
    let reason = here.encode(&called).unwrap_err();
    assert!(reason.starts_with("the labels of a dimension have "), "{reason}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn unsupported_parts_stay_with_a_reason() {
    let (_directory, path) = file();
    let (here, _table, part) = scan(&path).await;
    assert_eq!(here.encode(&part).map(|bytes| bytes.is_empty()), Ok(false));
    // Functions that the session has under the same names are others.
    for name in ["starts_with", "one_nan", "tessera_like", "unheard_of"] {
        let other = create_udf(
            name,
            vec![DataType::Utf8],
            DataType::Boolean,
            Volatility::Immutable,
            Arc::new(|args: &[ColumnarValue]| Ok(args[0].clone())),
        );
        let reason = here.encode(&with_call(&here.state(), &part, other, boolean())).unwrap_err();
        assert_eq!(reason, format!("the function `{name}` is not one of the session's"));
    }
    // A field's metadata would be lost.
    let like = || {
        let like = Unnamed::Like {
            start: "a".into(),
            middle: vec!["b".into()],
            end: String::new(),
            negated: false,
        };
        like.function().unwrap()
    };
    let field = boolean().with_metadata([("unit".to_string(), "m".to_string())].into());
    let reason = here.encode(&with_call(&here.state(), &part, like(), field)).unwrap_err();
    assert!(reason.contains("the metadata of the expression"), "{reason}");
    // Operators.
    let empty: Arc<dyn ExecutionPlan> = Arc::new(EmptyExec::new(part.schema()));
    assert_eq!(here.encode(&empty).unwrap_err(), "EmptyExec");
    let order = [PhysicalSortExpr::new_default(Arc::new(Column::new("id", 0)))];
    let order = LexOrdering::new(order).unwrap();
    let sort = SortExec::new(order, part.clone()).with_preserve_partitioning(true);
    let sort: Arc<dyn ExecutionPlan> = Arc::new(sort);
    assert_eq!(here.encode(&sort).unwrap_err(), "SortExec");
    // The scan of a table that the process no longer has.
    let (elsewhere, other, part) = scan(&path).await;
    drop(other);
    let reason = elsewhere.encode(&part).unwrap_err();
    assert_eq!(reason, "its files are in a store of no table");
    // Bytes of something else are an error.
    assert!(decode(&[1, 2, 3], &here.state(), &here.runtime, &here.stores).is_err());
}

/// What DataFusion's encoding leaves out of windows keeps them on the server.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn windows_stay_where_something_of_them_is_not_encoded() {
    let (_directory, path) = file();
    let here = Process::new();
    let table = here.table(TableFormat::Parquet, &path).await;
    for (call, expected) in [
        ("sum(v) FILTER (WHERE g > 3) OVER w", "the FILTER of the window function"),
        ("lag(v) IGNORE NULLS OVER w", "its encoding would lose something: the windows"),
    ] {
        let sql = format!("SELECT id, {call} FROM t WINDOW w AS (PARTITION BY k ORDER BY id)");
        let parts = here.parts(&table, &sql).await;
        let windows: Vec<_> =
            parts.iter().filter(|part| text(part).contains("WindowsExec")).collect();
        let [windows] = windows.as_slice() else { panic!("{sql}: {} parts", windows.len()) };
        let reason = here.encode(windows).unwrap_err();
        assert!(reason.starts_with(expected), "{sql}: {reason}");
    }
}

/// A file that changes after its part was sent, of which a split was read before.
async fn is_changed_there(here: &Process, part: &Arc<dyn ExecutionPlan>, path: &Path) {
    let there = Process::new();
    let bytes = here.encode(part).unwrap();
    let decoded = there.decode(&bytes);
    there.run(&decoded.plan, 0).await.unwrap();
    let file = std::fs::OpenOptions::new().append(true).open(path).unwrap();
    file.set_modified(std::time::SystemTime::UNIX_EPOCH).unwrap();
    for decoded in [decoded, there.decode(&bytes)] {
        let mut failed = None;
        for split in 0..splits(&decoded.plan) {
            // A split without a group of rows reads nothing.
            failed = failed.or(there.run(&decoded.plan, split).await.err());
        }
        assert_eq!(Error::from(failed.unwrap()).report().code, "source_changed");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_changed_file_is_an_error_in_another_process() {
    let (_directory, path) = file();
    let (here, _table, part) = scan(&path).await;
    is_changed_there(&here, &part, &path).await;
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("t.arrow");
    std::fs::write(&path, arrow(0, false)).unwrap();
    let here = Process::new();
    let table = here.table(TableFormat::Arrow, &path).await;
    let part = here.parts(&table, "SELECT id, g FROM t WHERE g > 2").await.remove(0);
    is_changed_there(&here, &part, &path).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn conditions_have_the_same_errors_in_another_process() {
    let (_directory, path) = file();
    let (here, there) = (Process::new(), Process::new());
    let table = here.table(TableFormat::Parquet, &path).await;
    let sql = "SELECT sum(v) FROM t WHERE 100 / (id - 50) > 3";
    let parts = here.parts(&table, sql).await;
    let part = parts.first().unwrap();
    let decoded = there.decode(&here.encode(part).unwrap());
    assert_eq!(text(part), text(&decoded.plan));
    let of_here = Error::from(here.run(part, 0).await.unwrap_err()).report();
    let of_there = Error::from(there.run(&decoded.plan, 0).await.unwrap_err()).report();
    assert_eq!(of_here, of_there);
    assert_eq!(of_there.code, "division_by_zero");
}

#[tokio::test]
async fn stores_are_registered_while_they_are_used() {
    let (_directory, path) = file();
    let (here, _table, part) = scan(&path).await;
    let there = Process::new();
    let count = |process: &Process| process.runtime.places.count();
    assert_eq!((count(&here), count(&there)), (1, 0));
    let bytes = here.encode(&part).unwrap();
    assert_eq!(count(&here), 1, "the proof registers none");
    let (one, other) = (there.decode(&bytes), there.decode(&bytes));
    assert_eq!(count(&there), 2);
    drop((one, other));
    assert_eq!(count(&there), 0);
}
