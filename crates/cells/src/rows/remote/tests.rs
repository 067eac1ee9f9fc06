#![allow(clippy::unwrap_used, clippy::panic, reason = "tests")]
//! Statements with parts on workers in one process, without a network.

mod groups;
mod sorts;

use super::message::{Answer, Request};
use super::*;
use crate::error::Error;
use crate::lift::{CellPlan, Sites, TensorScan};
use crate::rows::splits::gathered;
use crate::rows::splits::tests::{QUERIES, file};
use crate::rows::{Batches, PhysicalRows, Piece, RowsState, RunTensor};
use crate::tables::TableFormat;
use datafusion::arrow::array::{ArrayRef, Int64Array};
use datafusion::arrow::compute::concat_batches;
use datafusion::arrow::datatypes::{DataType, Field, Schema, SchemaRef};
use datafusion::arrow::error::ArrowError;
use datafusion::arrow::record_batch::RecordBatch;
use datafusion::datasource::source_as_provider;
use datafusion::error::DataFusionError;
use datafusion::execution::{SendableRecordBatchStream, TaskContext};
use datafusion::physical_expr::{EquivalenceProperties, PhysicalExpr};
use datafusion::physical_plan::execution_plan::{Boundedness, EmissionType};
use datafusion::physical_plan::stream::RecordBatchStreamAdapter;
use datafusion::physical_plan::{
    DisplayAs, DisplayFormatType, Partitioning, PlanProperties, execute_stream,
};
use datafusion::prelude::SessionContext;
use futures::stream;
use futures::{StreamExt, TryStreamExt};
use std::path::Path;
use std::sync::Weak;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::SeqCst};
use std::time::{Duration, Instant};
use tessera_exec::error::Error as ExecError;
use tessera_exec::quota::Quota;
use tessera_exec::rows::{ROWS_HOLDER_LOST, ROWS_REFUSED};
use tessera_exec::store::Store;
use tessera_storage::source::{Stores, Versions};
use tokio::sync::Semaphore;

const QUERY: [u8; 16] = [7; 16];

/// The directory of scratch files of all processes of a test.
struct World(tempfile::TempDir);

impl World {
    fn new() -> Self {
        World(tempfile::tempdir().unwrap())
    }

    fn runtime(&self, memory: u64) -> Arc<RowsRuntime> {
        RowsRuntime::new(Quota::new(memory), Store::open(self.0.path(), 1 << 30), 2)
    }

    fn workers(&self, workers: usize, memory: u64) -> Vec<Arc<RowsTasks>> {
        self.neighbours(workers, memory, Way::Nothing)
    }

    /// Workers that give each other the rows that they keep in a way.
    fn neighbours(&self, workers: usize, memory: u64, way: Way) -> Vec<Arc<RowsTasks>> {
        let (all, window) = (Mutex::default(), Arc::new(Semaphore::new(4)));
        let neighbours = Arc::new(Neighbours { workers: all, way, window });
        let worker = |_| RowsTasks::new(self.runtime(memory), stores(), neighbours.clone());
        let all: Vec<_> = (0..workers).map(worker).collect();
        *neighbours.workers.lock().unwrap() = all.iter().map(Arc::downgrade).collect();
        all
    }
}

/// The workers of a process for each other, by their numbers.
struct Neighbours {
    workers: Mutex<Vec<Weak<RowsTasks>>>,
    way: Way,
    window: Arc<Semaphore>,
}

impl RowsHolders for Neighbours {
    fn part(
        &self,
        address: &str,
        part: RowsPartStart,
    ) -> BoxStream<'static, std::result::Result<Bytes, HolderFault>> {
        let number: usize = address.parse().unwrap();
        let worker = self.workers.lock().unwrap()[number].upgrade().unwrap();
        let messages = without_runs(worker.part(part));
        let messages = messages.map(|message| message.map_err(HolderFault::Failed));
        match self.way {
            Way::Nothing | Way::Late => messages.boxed(),
            Way::Narrow => groups::narrow(messages.boxed(), &self.window),
            Way::Cut(after) => messages.take(after).boxed(),
            Way::Lost(after) => {
                let lost = Err(HolderFault::Lost("on purpose".into()));
                messages.take(after).chain(stream::iter([lost])).boxed()
            }
        }
    }
}

fn stores() -> Stores {
    Stores::with_environment(Duration::from_secs(10), [])
}

fn never() -> IsStopped {
    Arc::new(|| false)
}

/// Calls workers in the same process.
#[derive(Debug)]
struct Loopback {
    workers: Vec<Arc<RowsTasks>>,
    next: AtomicUsize,
    started: Arc<AtomicUsize>,
    way: Way,
}

/// Faults of the transport.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Way {
    Nothing,
    /// Messages arrive late, those of each task by another time.
    Late,
    /// Between workers there is room for few messages that are not read.
    Narrow,
    /// The messages end after this many, without an error.
    Cut(usize),
    /// The messages end after this many, and no other worker can run the task.
    Lost(usize),
}

impl Loopback {
    fn new(workers: &[Arc<RowsTasks>], way: Way) -> Self {
        let (next, started) = Default::default();
        Loopback { workers: workers.to_vec(), next, started, way }
    }
}

impl Drop for Loopback {
    fn drop(&mut self) {
        self.workers.iter().for_each(|worker| worker.forget(QUERY));
    }
}

impl RowsPeers for Loopback {
    fn turns(&self) -> usize {
        self.workers.len() * 4
    }

    fn workers(&self) -> usize {
        self.workers.len()
    }

    fn start(&self, task: RowsTask) -> BoxStream<'static, std::result::Result<Bytes, RowsFault>> {
        self.started.fetch_add(1, SeqCst);
        let workers = self.workers.len();
        let number = self.next.fetch_add(1, SeqCst) % workers;
        let worker = &self.workers[number];
        let cut = |i: usize| (task.kept as usize * i / workers) as u32;
        let holder = |i: usize| RowsHolder {
            from: cut(i),
            to: cut(i + 1),
            address: (i != number).then(|| i.to_string()),
        };
        let holders = (0..workers).map(holder).filter(|holder| holder.from < holder.to);
        let start = RowsStart {
            query: QUERY,
            stage: task.stage,
            task: task.task,
            header: task.header,
            plan: Some(task.plan),
            holders: holders.collect(),
        };
        let messages = without_runs(worker.start(start)).map(|message| message.map_err(fault));
        match self.way {
            Way::Nothing | Way::Narrow => messages.boxed(),
            Way::Late => {
                let late =
                    Duration::from_millis(u64::from(task.task.wrapping_mul(2_654_435_761) >> 27));
                messages
                    .then(move |message| async move {
                        tokio::time::sleep(late).await;
                        message
                    })
                    .boxed()
            }
            Way::Cut(after) => messages.take(after).boxed(),
            Way::Lost(after) => {
                let lost = Err(RowsFault::Here("on purpose".into()));
                messages.take(after).chain(stream::iter([lost])).boxed()
            }
        }
    }
}

/// The messages of a task without those of its progress, which depend on time.
fn without_runs(messages: Messages) -> Messages {
    let is_other = |message: &std::result::Result<Bytes, ExecError>| {
        let is_other = message.as_ref().map_or(true, |message| message[0] != 2);
        async move { is_other }
    };
    messages.filter(is_other).boxed()
}

type Messages = BoxStream<'static, std::result::Result<Bytes, ExecError>>;

/// Converts the error of a worker as a cluster does.
fn fault(error: ExecError) -> RowsFault {
    match error.code() {
        "memory_exceeded" | ROWS_REFUSED | ROWS_HOLDER_LOST | "not_found" => {
            RowsFault::Here(error.to_string())
        }
        _ => RowsFault::Failed(Box::new(error)),
    }
}

/// Cell queries of these tests have no cells.
#[derive(Debug)]
struct NoCells;

impl RunTensor for NoCells {
    fn run(&self, _: &TensorScan) -> BoxStream<'static, std::result::Result<Piece, BoxError>> {
        stream::empty().boxed()
    }
}

async fn planned(
    rows: &RowsState,
    sql: &str,
    file: &Path,
    spread: Option<RowsSpread>,
) -> (PhysicalRows, crate::tables::Registered) {
    let (url, versions) = (file.to_str().unwrap(), Versions::new(false));
    let opened =
        rows.open_table(TableFormat::Parquet, url, &[], &stores(), &versions).await.unwrap();
    let context = SessionContext::new_with_state(rows.get().unwrap().clone());
    let table = source_as_provider(&opened.table.source()).unwrap();
    // States of one process share their catalog.
    context.deregister_table("t").unwrap();
    context.register_table("t", table).unwrap();
    let logical = context.sql(sql).await.unwrap().into_unoptimized_plan();
    let (shared, scans, notes, orders) = Default::default();
    let sites = Sites::default();
    let plan = CellPlan { logical, shared, scans, notes, orders, sites };
    let exploded = Arc::new(AtomicU64::new(0));
    let planned = rows.physical(plan, Arc::new(NoCells), 16 << 10, &exploded, spread).await;
    (planned.unwrap(), opened.store)
}

fn all(peers: Loopback) -> Option<RowsSpread> {
    Some(RowsSpread { peers: Arc::new(peers), least_bytes: 0, build_bytes: 0, all: true })
}

async fn answer(
    server: &Arc<RowsRuntime>,
    sql: &str,
    file: &Path,
    spread: Option<RowsSpread>,
) -> (std::result::Result<RecordBatch, Error>, RowsOnWorkers) {
    let (planned, _store) = planned(&server.state(), sql, file, spread).await;
    let found = planned.on_workers();
    (rows_of(planned).await, found)
}

async fn rows_of(planned: PhysicalRows) -> std::result::Result<RecordBatch, Error> {
    let Batches { schema, rows } = planned.stream(None, never()).await?;
    let batches: Vec<RecordBatch> = rows.try_collect().await?;
    Ok(concat_batches(&schema, &batches).map_err(DataFusionError::from)?)
}

/// Each `step`th of the statements has the bits that it has without workers. One worker, two, three and five take turns.
async fn have_the_bits_of_the_server(step: usize, memory: u64, way: Way) {
    let (_directory, file) = file();
    let world = World::new();
    let server = world.runtime(1 << 30);
    let (mut stages, mut tasks) = (0, 0);
    for (i, sql) in QUERIES.into_iter().enumerate().step_by(step) {
        let workers = [1, 2, 3, 5][i / step % 4];
        let alone = answer(&server, sql, &file, None).await.0.unwrap();
        let peers = Loopback::new(&world.workers(workers, memory), way);
        let started = peers.started.clone();
        let (spread, found) = answer(&server, sql, &file, all(peers)).await;
        let spread = spread.unwrap_or_else(|e| panic!("{sql}: {e:?}"));
        assert!(alone.num_rows() > 0 && alone == spread, "{sql} on {workers} workers");
        assert!(found.stages.iter().all(|stage| stage.splits > 1 && stage.bytes > 0), "{sql}");
        stages += found.stages.len();
        tasks += started.load(SeqCst);
    }
    assert!(stages >= 15 / step && tasks > stages, "{stages} stages, {tasks} tasks");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn workers_compute_the_bits_of_the_server() {
    have_the_bits_of_the_server(1, 1 << 30, Way::Nothing).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn tasks_may_end_in_any_order() {
    have_the_bits_of_the_server(5, 1 << 30, Way::Late).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn workers_with_little_memory_compute_the_same_bits() {
    have_the_bits_of_the_server(5, 64 << 20, Way::Nothing).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn lost_tasks_run_on_the_server_without_repeating_batches() {
    for after in [0, 1, 2] {
        have_the_bits_of_the_server(5, 1 << 30, Way::Lost(after)).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn parts_that_are_small_or_yield_all_rows_stay() {
    let (_directory, file) = file();
    let world = World::new();
    let server = world.runtime(1 << 30);
    let workers = world.workers(1, 1 << 30);
    let found = async |sql, least_bytes, build_bytes| {
        let peers = Arc::new(Loopback::new(&workers, Way::Nothing));
        let spread = RowsSpread { peers, least_bytes, build_bytes, all: false };
        planned(&server.state(), sql, &file, Some(spread)).await.0.on_workers()
    };
    assert_eq!(found(QUERIES[2], 1 << 30, 0).await, RowsOnWorkers::default());
    let grouped = found(QUERIES[2], 1, 0).await;
    let [stage] = grouped.stages.as_slice() else { panic!("{grouped:?}") };
    assert!(stage.text.contains("mode=Partial") && stage.build_bytes == 0, "{stage:?}");
    assert!(grouped.to_string().starts_with("rows on workers: "), "{grouped}");
    let read = found(QUERIES[0], 1, 0).await;
    let [stay] = read.stay.as_slice() else { panic!("{read:?}") };
    assert!(stay.reason.contains("only reads rows"), "{stay:?}");
    assert!(read.stages.is_empty() && read.to_string().contains("because"), "{read}");
    let joined = "SELECT sum(a.v) FROM t a JOIN t b ON a.k = b.id WHERE b.g = 5";
    let with_build = found(joined, 1, 1 << 30).await;
    let [stage] = with_build.stages.as_slice() else { panic!("{with_build:?}") };
    assert!(stage.build_bytes > 0, "{stage:?}");
    // The join stays; the rows of its build side are filtered elsewhere.
    let without = found(joined, 1, 1).await;
    assert!(
        without.stay.iter().any(|stay| stay.reason.contains("a side of a join")),
        "{without:?}"
    );
    assert_eq!(without.stages.len(), 1, "{without:?}");
    // Its keys filter the scan below the groups, which workers would not see.
    let grouped = "SELECT sum(a.s) FROM (SELECT k, sum(v) AS s FROM t GROUP BY k) a JOIN t b ON a.k = b.id WHERE b.g = 5";
    let from_outside = found(grouped, 1, 1 << 30).await;
    let reason = "the keys of a join outside of it leave out its rows";
    assert!(from_outside.stay.iter().any(|stay| stay.reason == reason), "{from_outside:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_statement_that_is_dropped_leaves_nothing_on_workers() {
    let (_directory, file) = file();
    let world = World::new();
    let server = world.runtime(1 << 30);
    let workers = world.workers(3, 1 << 30);
    for sql in [QUERIES[0], QUERIES[2], QUERIES[5], QUERIES[15]] {
        let peers = Loopback::new(&workers, Way::Late);
        let (planned, _store) = planned(&server.state(), sql, &file, all(peers)).await;
        let mut rows = planned.stream(None, never()).await.unwrap().rows;
        let _ = tokio::time::timeout(Duration::from_millis(30), rows.next()).await;
        drop(rows);
        let idle = || {
            workers.iter().all(|worker| {
                let load = worker.load();
                load.running == 0 && load.stages == 0
            })
        };
        let since = Instant::now();
        while !idle() {
            assert!(since.elapsed() < Duration::from_secs(20), "{sql}: {workers:?}");
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }
}

/// The output of a partition of [`Made`].
#[derive(Debug, Clone, Copy)]
enum Yields {
    Rows(i64),
    Panic,
    Fails(fn() -> DataFusionError),
}

/// Partitions that are made.
#[derive(Debug)]
struct Made {
    parts: Vec<Vec<Yields>>,
    schema: SchemaRef,
    properties: Arc<PlanProperties>,
}

impl Made {
    fn plan(parts: Vec<Vec<Yields>>) -> Arc<dyn ExecutionPlan> {
        let schema = Arc::new(Schema::new(vec![Field::new("a", DataType::Int64, false)]));
        let properties = Arc::new(PlanProperties::new(
            EquivalenceProperties::new(schema.clone()),
            Partitioning::UnknownPartitioning(parts.len()),
            EmissionType::Incremental,
            Boundedness::Bounded,
        ));
        Arc::new(Made { parts, schema, properties })
    }
}

impl DisplayAs for Made {
    fn fmt_as(&self, _: DisplayFormatType, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Made")
    }
}

impl ExecutionPlan for Made {
    fn name(&self) -> &str {
        "Made"
    }

    fn properties(&self) -> &Arc<PlanProperties> {
        &self.properties
    }

    fn children(&self) -> Vec<&Arc<dyn ExecutionPlan>> {
        vec![]
    }

    fn apply_expressions(
        &self,
        _: &mut dyn FnMut(&Arc<dyn PhysicalExpr>) -> Result<TreeNodeRecursion>,
    ) -> Result<TreeNodeRecursion> {
        Ok(TreeNodeRecursion::Continue)
    }

    fn with_new_children(
        self: Arc<Self>,
        _: Vec<Arc<dyn ExecutionPlan>>,
    ) -> Result<Arc<dyn ExecutionPlan>> {
        Ok(self)
    }

    fn execute(&self, partition: usize, _: Arc<TaskContext>) -> Result<SendableRecordBatchStream> {
        let schema = self.schema.clone();
        let batch = move |yields| match yields {
            Yields::Rows(rows) => {
                let column: ArrayRef = Arc::new(Int64Array::from_iter_values(0..rows));
                Ok(RecordBatch::try_new(schema.clone(), vec![column])?)
            }
            Yields::Panic => panic!("on purpose"),
            Yields::Fails(error) => Err(error()),
        };
        let rows = stream::iter(self.parts[partition].clone()).map(batch);
        Ok(Box::pin(RecordBatchStreamAdapter::new(self.schema.clone(), rows)))
    }
}

/// Runs the partitions on a worker. Returns the rows that arrived, and the error.
async fn made(parts: Vec<Vec<Yields>>, way: Way) -> (usize, Option<Error>) {
    let world = World::new();
    let (server, workers) = (world.runtime(1 << 30), world.workers(1, 1 << 30));
    let template = Made::plan(parts);
    workers[0].add_stage((QUERY, 1), template.clone(), 8192).unwrap();
    let peers: Arc<dyn RowsPeers> = Arc::new(Loopback::new(&workers, way));
    let (tasks, kept) = (template.output_partitioning().partition_count(), 0);
    let (bytes, encoded) = (0, Bytes::new());
    let part = Part { number: 1, template, tasks, kept, bytes, encoded, peers: peers.clone() };
    let plan = gathered(Arc::new(RemoteExec::new(Arc::new(part), false)));
    let rows = server.state();
    let state = rows.get().unwrap();
    let channel = TaskChannel::new(peers, 2, never());
    let (mut plans, config) = stage::distributed(vec![plan], state, &channel).await.unwrap();
    let context = Arc::new(server.task_context(state, config, None, 8192, None));
    let mut rows = execute_stream(plans.pop().unwrap(), context).unwrap();
    let mut seen = 0;
    loop {
        match rows.next().await {
            Some(Ok(batch)) => seen += batch.num_rows(),
            Some(Err(e)) => return (seen, Some(e.into())),
            None => return (seen, None),
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_panic_on_a_worker_is_an_error_and_never_fewer_rows() {
    use Yields::{Panic, Rows};
    let whole = vec![vec![Rows(5000), Rows(5000)], vec![Rows(5000)], vec![Rows(5000)]];
    let (seen, error) = made(whole, Way::Nothing).await;
    assert!(seen == 20_000 && error.is_none(), "{seen} rows, {error:?}");
    for part in [vec![Panic], vec![Rows(5000), Panic], vec![Rows(5000), Panic, Rows(5000)]] {
        let parts = vec![vec![Rows(5000)], part, vec![Rows(5000)]];
        let (seen, error) = made(parts, Way::Nothing).await;
        let Some(Error::Inner(error)) = error else { panic!("{seen} rows, {error:?}") };
        let error = error.downcast_ref::<ExecError>();
        assert!(matches!(error, Some(ExecError::Panicked { .. })), "{error:?}");
        assert!(seen <= 10_000, "{seen} rows");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_stream_without_done_is_lost() {
    use Yields::Rows;
    // Three messages: two batches and `Done`.
    let parts = || vec![vec![Rows(5000), Rows(5000)], vec![Rows(5000), Rows(5000)]];
    for after in [0, 1, 2] {
        let (seen, error) = made(parts(), Way::Cut(after)).await;
        let Some(Error::Inner(error)) = error else { panic!("{seen} rows, {error:?}") };
        let error = error.downcast_ref::<ExecError>();
        assert!(matches!(error, Some(ExecError::PartyLost { .. })), "{after}: {error:?}");
        let (seen, error) = made(parts(), Way::Lost(after)).await;
        assert!(seen == 20_000 && error.is_none(), "{after}: {seen} rows, {error:?}");
    }
    let (seen, error) = made(parts(), Way::Cut(3)).await;
    assert!(seen == 20_000 && error.is_none(), "{seen} rows, {error:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn errors_of_workers_keep_their_codes() {
    let errors: [fn() -> DataFusionError; 6] = [
        || DataFusionError::from(ArrowError::DivideByZero),
        || DataFusionError::Execution("no such row".into()),
        || DataFusionError::ResourcesExhausted("all in use".into()),
        || DataFusionError::External(Box::new(ExecError::Broken { what: "on purpose".into() })),
        || {
            let (code, position, hint) = ("integer_overflow", None, Some("use double".into()));
            let message = "the sum is too large".into();
            let error = tessera_frontend::Error::Cells { code, message, position, hint };
            DataFusionError::External(Box::new(error))
        },
        || {
            let what = "a.parquet".into();
            let changed = tessera_storage::source::SourceError::Changed { what };
            DataFusionError::External(Box::new(changed))
        },
    ];
    for error in errors {
        let expected = Error::from(error()).report();
        let parts = vec![vec![Yields::Rows(3)], vec![Yields::Rows(3), Yields::Fails(error)]];
        let (seen, failed) = made(parts, Way::Nothing).await;
        let Some(failed) = failed else { panic!("{seen} rows instead of {expected:?}") };
        let report = failed.report();
        assert_eq!(
            (&report.code, report.class, &report.hint, report.may_fit),
            (&expected.code, expected.class, &expected.hint, expected.may_fit)
        );
        assert!(report.message.contains(&expected.message), "{report:?}");
    }
}

async fn messages(
    worker: &Arc<RowsTasks>,
    start: RowsStart,
) -> Vec<std::result::Result<Bytes, ExecError>> {
    without_runs(worker.start(start)).collect().await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_worker_reports_missing_plans_and_refusals() {
    let world = World::new();
    let worker = world.workers(1, 1 << 30).remove(0);
    let engine = datafusion::DATAFUSION_VERSION.to_string();
    let request = Request { tasks: 2, batch_rows: 8192, engine };
    let header = request.write().unwrap();
    let holders = Vec::new();
    let start = RowsStart { query: QUERY, stage: 1, task: 1, header, plan: None, holders };
    assert!(!worker.knows(QUERY, 1));
    let lacks = messages(&worker, start.clone()).await;
    assert_eq!(lacks.into_iter().map(|m| m.unwrap()).collect::<Vec<_>>(), [message::lacks()]);
    let other = Request { engine: "1.0.0".into(), ..request };
    let refused = RowsStart { header: other.write().unwrap(), ..start.clone() };
    let refused = messages(&worker, refused).await.remove(0).unwrap_err();
    assert_eq!(refused.code(), ROWS_REFUSED);

    let parts = vec![vec![Yields::Rows(3)], vec![Yields::Rows(4), Yields::Rows(0)]];
    worker.add_stage((QUERY, 1), Made::plan(parts), 8192).unwrap();
    assert!(worker.knows(QUERY, 1));
    let answered = messages(&worker, start.clone()).await;
    let last = answered.last().unwrap().as_ref().unwrap().clone();
    let Answer::Done(done) = Answer::read(last).unwrap() else { panic!("{answered:?}") };
    assert_eq!((done.rows, done.batches, answered.len()), (4, 2, 3));
    let load = worker.load();
    assert_eq!((load.running, load.done, load.rows, load.stages), (0, 1, 4, 1));
    let beyond = RowsStart { task: 2, ..start.clone() };
    assert!(messages(&worker, beyond).await.remove(0).is_err());
    // A plan that cannot be read is an error, and leaves no stage.
    let unreadable = RowsStart { stage: 2, plan: Some(Bytes::from_static(b"no plan")), ..start };
    assert!(messages(&worker, unreadable).await.remove(0).is_err());
    assert!(!worker.knows(QUERY, 2) && worker.load().stages == 1);
    worker.forget(QUERY);
    assert_eq!(worker.load().stages, 0);
}
