//! Workers and a server in one process, which communicate like processes.
#![allow(clippy::unwrap_used, clippy::panic, reason = "tests")]

use crate::net::{Credentials, Fault, Security};
use crate::registry::{Limits, WorkerState};
use crate::wire::Load;
use crate::{Cluster, Drive, DriveOptions, Home, Identity, Joining, Worker};
use arrow::array::AsArray;
use arrow::datatypes::{Float64Type, SchemaRef};
use arrow::record_batch::RecordBatch;
use arrow_flight::decode::FlightRecordBatchStream;
use arrow_flight::error::FlightError;
use arrow_flight::flight_service_client::FlightServiceClient;
use arrow_flight::{Criteria, FlightInfo, Ticket};
use futures::{StreamExt, TryStreamExt};
use sha2::{Digest, Sha256};
use std::collections::BTreeSet;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tessera_exec::cancel::CancelToken;
use tessera_exec::config::Config;
use tessera_exec::error::Error;
use tessera_exec::order::Totals;
use tessera_exec::run::{How, Runtime};
use tessera_exec::store::{Fill, FinishedChunk, Resident};
use tessera_exec::task::{Origin, PlanRunner, SourceLocation, Sources};
use tessera_planner::build::Builder;
use tessera_planner::catalog::SourceRef;
use tessera_planner::compile;
use tessera_planner::config::Config as PlanConfig;
use tessera_planner::dtype::DType;
use tessera_planner::ir::{NodeId, ScanKind};
use tessera_planner::optimize::Rooted;
use tessera_planner::plan::{StageId, Task};
use tessera_planner::program::ScalarOp;
use tessera_planner::reduce::ReduceKind;
use tessera_planner::tile::Tiling;
use tessera_storage::sink::{SharedOutput, ZarrWriter};
use tessera_storage::source::{self, Options, Stores, Versions};
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;
use tonic::transport::{Channel, Endpoint};

mod membership;
mod orders;
mod outputs;
mod retained;
mod simulated;

pub(crate) const MEMORY: u64 = 256 << 20;

/// The longest that anything here may take.
const PATIENCE: Duration = Duration::from_secs(60);

pub(crate) fn runtime(memory: u64) -> Runtime {
    let config = Config {
        threads: 2,
        quota_bytes_max: memory,
        spill_dir: Some(std::env::temp_dir()),
        spill_bytes_max: 1 << 30,
        ..Config::default()
    };
    Runtime::new(config, tokio::runtime::Handle::current()).unwrap()
}

pub(crate) fn stores() -> Stores {
    Stores::with_environment(Duration::from_secs(5), [])
}

/// A server, its workers and the files that all of them see.
pub(crate) struct Bench {
    files: tempfile::TempDir,
    pub(crate) credentials: Credentials,
    pub(crate) cluster: Arc<Cluster>,
    pub(crate) workers: Vec<(CancellationToken, JoinHandle<Result<crate::Ended, Fault>>)>,
    own: Arc<Runtime>,
}

impl Bench {
    pub(crate) async fn new(workers: usize) -> Self {
        // Far more than a worker is silent that only waits for its turn on a busy machine.
        Bench::with_timeout(workers, Duration::from_secs(5)).await
    }

    /// A worker without a heartbeat for `dead_after` is lost.
    async fn with_timeout(workers: usize, dead_after: Duration) -> Self {
        let limits = Limits { beat: Duration::from_millis(50), dead_after, ..Limits::default() };
        Bench::with_limits(workers, limits).await
    }

    pub(crate) async fn with_limits(workers: usize, limits: Limits) -> Self {
        let files = tempfile::tempdir().unwrap();
        let path = files.path().join("secret");
        Credentials::make(&path).unwrap();
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o600)).unwrap();
        let security = Security { secret: path, ..Security::default() };
        let credentials = Credentials::load(&security).unwrap();
        let listen = "127.0.0.1:0".parse().unwrap();
        let cluster = Cluster::open(listen, limits, &credentials, "1").await.unwrap();
        let own = Arc::new(runtime(MEMORY));
        let mut bench = Bench { files, credentials, cluster, workers: Vec::new(), own };
        for _ in 0..workers {
            bench.start(MEMORY);
        }
        bench.wait_for(workers).await;
        bench
    }

    fn start(&mut self, memory: u64) {
        self.start_version(memory, "1");
    }

    fn start_version(&mut self, memory: u64, version: &str) {
        self.start_for(memory, version, vec![self.cluster.address().to_string()]);
    }

    /// Starts a worker that joins one of several servers.
    fn start_for(&mut self, memory: u64, version: &str, schedulers: Vec<String>) {
        let worker = Worker::new(runtime(memory), stores(), &self.credentials, MEMORY / 8);
        let joining = Joining {
            schedulers,
            listen: "127.0.0.1:0".parse().unwrap(),
            advertise: None,
            name: None,
            version: version.into(),
            supervisor: None,
        };
        let (end, credentials) = (CancellationToken::new(), self.credentials.clone());
        let ended = end.clone();
        let task = tokio::spawn(async move { worker.work(&joining, &credentials, &ended).await });
        self.workers.push((end, task));
    }

    pub(crate) async fn wait_for(&self, workers: usize) {
        let asked = Instant::now();
        while self.cluster.registry().alive().len() != workers {
            assert!(asked.elapsed() < PATIENCE, "{:?}", self.cluster.registry());
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }

    /// Kills a worker: it no longer responds.
    fn kill(&mut self, at: usize) {
        self.workers[at].1.abort();
    }

    /// The bytes of all results: of the plan on the cluster, compared with this machine alone.
    pub(crate) async fn both(&self, t: &Arc<Tiling>, sources: &Sources) -> (Vec<Vec<u8>>, Totals) {
        let alone = run(&self.own, t, sources, None).await.unwrap();
        let (spread, totals) = self.spread(t, sources).await.unwrap();
        assert!(spread == alone, "other bits");
        (spread, totals)
    }

    async fn spread(
        &self,
        t: &Arc<Tiling>,
        sources: &Sources,
    ) -> Result<(Vec<Vec<u8>>, Totals), Error> {
        let drive = self.drive(t, sources);
        let shelved = drive.prepare(t).await?;
        let all = run(&self.own, t, sources, Some(shelved)).await?;
        Ok((all, drive.totals()))
    }

    fn drive(&self, t: &Arc<Tiling>, sources: &Sources) -> Arc<Drive> {
        self.drive_to(t, sources, None)
    }

    fn drive_to(
        &self,
        t: &Arc<Tiling>,
        sources: &Sources,
        output: Option<(Arc<ZarrWriter>, SharedOutput)>,
    ) -> Arc<Drive> {
        let runner = Arc::new(PlanRunner::new(t.clone(), sources).unwrap());
        let (own, tiling) = (self.own.clone(), t.clone());
        let home: Home = Arc::new(move |stage, number, output| {
            let chunks = own.load_here(&*tiling, &*runner, stage, number)?;
            Some(chunks.and_then(|chunks| own.encode(&*tiling, (stage, number), &chunks, output)))
        });
        let versions = Versions::new(false);
        let identity = Identity { statement: None, is_again: false, shares: true, versions };
        let options = DriveOptions { threads: None, stored: None, output, identity };
        Drive::new(&self.cluster, t, sources, options, home).unwrap().unwrap()
    }
}

async fn run(
    own: &Runtime,
    t: &Arc<Tiling>,
    sources: &Sources,
    shelved: Option<tessera_exec::order::Shelved>,
) -> Result<Vec<Vec<u8>>, Error> {
    let runner = Arc::new(PlanRunner::new(t.clone(), sources).unwrap());
    let grids = t.plan().results.iter().map(|of| t.plan().output(*of).grid.clone());
    let arrays: Vec<Arc<Resident>> = grids.map(Resident::empty).collect();
    let sink = Arc::new(Fill(arrays.clone()));
    let how = How { shelved, ..How::default() };
    let running = own.start_as(t.clone(), runner, sink, &CancelToken::new(), how)?;
    running.outcome().await.result?;
    let bytes = arrays.iter().map(|array| {
        let mut all = Vec::new();
        for n in 0..array.grid.count() {
            let Some(FinishedChunk::Memory(chunk)) = array.held(n) else {
                panic!("chunk {n} is not there")
            };
            chunk.fields().iter().for_each(|f| all.extend_from_slice(f.buffer()));
        }
        all
    });
    Ok(bytes.collect())
}

/// The rows of an object, with their schema, as a client reads them that knows Arrow Flight and the secret.
async fn rows_of(
    client: &mut FlightServiceClient<Channel>,
    bearer: &str,
    ticket: Ticket,
) -> (SchemaRef, Vec<RecordBatch>) {
    let pieces = client.do_get(with(bearer, ticket)).await.unwrap().into_inner();
    let pieces = pieces.map_err(FlightError::from);
    let mut stream = FlightRecordBatchStream::new_from_flight_data(pieces);
    let mut batches = Vec::new();
    while let Some(batch) = stream.next().await {
        batches.push(batch.unwrap());
    }
    (stream.schema().unwrap().clone(), batches)
}

fn with<T>(bearer: &str, body: T) -> tonic::Request<T> {
    let mut request = tonic::Request::new(body);
    request.metadata_mut().insert("authorization", bearer.parse().unwrap());
    request
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn any_client_of_flight_reads_the_chunks_of_a_worker() {
    let bench = Bench::new(2).await;
    // Chunks of several batches, and one whose cells are no multiple of anything.
    let t = plan(1 << 23, |b| {
        let n = b.iota(&[1201, 601], Some(&[600, 601])).unwrap();
        vec![b.cast(n, DType::Float64).unwrap()]
    });
    let drive = bench.drive(&t, &Sources::default());
    let _shelved = drive.prepare(&t).await.unwrap();
    let secret = std::fs::read_to_string(bench.files.path().join("secret")).unwrap();
    let digest = Sha256::digest(format!("tessera cluster {}", secret.trim()));
    let hex: String = digest.iter().map(|b| format!("{b:02x}")).collect();
    let bearer = format!("Bearer {hex}");

    let mut all = vec![f64::NAN; 1201 * 601];
    for member in bench.cluster.registry().alive() {
        let address = format!("http://{}", member.hello.address);
        let channel = Endpoint::from_shared(address).unwrap().connect().await.unwrap();
        let mut client = FlightServiceClient::new(channel);
        let denied = client.list_flights(Criteria::default()).await.unwrap_err();
        assert_eq!(denied.code(), tonic::Code::Unauthenticated);
        let listed = client.list_flights(with(&bearer, Criteria::default())).await.unwrap();
        let listed: Vec<FlightInfo> = listed.into_inner().try_collect().await.unwrap();
        assert!(!listed.is_empty());
        for info in listed {
            let rows = info.total_records as usize;
            assert_eq!(info.total_bytes as usize, rows * 8);
            let ticket = info.endpoint[0].ticket.clone().unwrap();
            let other = String::from_utf8(ticket.ticket.to_vec()).unwrap();
            let other = Ticket::new(other.replace("\"output\":0", "\"output\":1"));
            let none = client.do_get(with(&bearer, other)).await.unwrap_err();
            assert_eq!(none.code(), tonic::Code::NotFound, "{none}");
            let (schema, batches) = rows_of(&mut client, &bearer, ticket).await;
            let of = |key: &str| &*schema.metadata[key];
            let origin: Vec<usize> = serde_json::from_str(of("tessera.origin")).unwrap();
            let shape: Vec<usize> = serde_json::from_str(of("tessera.shape")).unwrap();
            assert_eq!(shape.iter().product::<usize>(), rows);
            assert_eq!((schema.field(0).name().as_str(), schema.fields().len()), ("value", 1));
            assert_eq!(schema.field(0).metadata()["tessera.dtype"], "float64");
            assert_eq!(info.try_decode_schema().unwrap().field(0), schema.field(0));
            assert!(batches.iter().all(|batch| batch.get_array_memory_size() < 3 << 20));
            let cells = batches
                .iter()
                .flat_map(|batch| batch.column(0).as_primitive::<Float64Type>().values().to_vec());
            for (at, cell) in cells.enumerate() {
                let (row, column) = (origin[0] + at / shape[1], origin[1] + at % shape[1]);
                all[row * 601 + column] = cell;
            }
        }
    }
    assert!(all.iter().enumerate().all(|(at, cell)| *cell == at as f64));
}

/// A plan over the nodes that `f` builds.
fn plan(bytes: u64, f: impl FnOnce(&mut Builder) -> Vec<NodeId>) -> Arc<Tiling> {
    let config =
        PlanConfig { chunk_bytes_target: bytes, batch_cells: Some(0), ..Default::default() };
    let mut b = Builder::new(config.clone());
    let roots = f(&mut b);
    let rooted = Rooted { graph: b.graph, roots };
    Arc::new(compile(rooted, &config, &mut |_, _| {}).unwrap())
}

fn numbers(b: &mut Builder, shape: &[u64], chunk: &[u64]) -> NodeId {
    let n = b.iota(shape, Some(chunk)).unwrap();
    let n = b.cast(n, DType::Float64).unwrap();
    b.map(ScalarOp::Sin, &[n]).unwrap()
}

/// Plans in which workers meet: trees, transposes, products, scans, sorts, and all of them after one another.
pub(crate) fn plans() -> Vec<(&'static str, Arc<Tiling>)> {
    let size = 2048;
    vec![
        (
            "sum",
            plan(size, |b| {
                let x = numbers(b, &[100_000], &[256]);
                vec![b.reduce_axes(x, ReduceKind::Sum, &[0]).unwrap()]
            }),
        ),
        (
            "standardised columns",
            plan(size, |b| {
                let x = numbers(b, &[96, 70], &[16, 16]);
                let mean = b.reduce_axes(x, ReduceKind::Mean, &[0]).unwrap();
                let std = b.reduce_axes(x, ReduceKind::Var { ddof: 0 }, &[0]).unwrap();
                let d = b.map(ScalarOp::Sub, &[x, mean]).unwrap();
                vec![b.map(ScalarOp::Div, &[d, std]).unwrap()]
            }),
        ),
        (
            "x + its transpose",
            plan(size, |b| {
                let x = numbers(b, &[90, 90], &[16, 11]);
                let t = b.transpose(x, &[1, 0]).unwrap();
                vec![b.map(ScalarOp::Add, &[x, t]).unwrap()]
            }),
        ),
        (
            "product",
            plan(size, |b| {
                let x = numbers(b, &[64, 80], &[16, 16]);
                let y = numbers(b, &[80, 48], &[16, 16]);
                vec![b.contract(x, y).unwrap()]
            }),
        ),
        (
            "running sums and their rows as columns",
            plan(size, |b| {
                let x = numbers(b, &[60, 64], &[8, 8]);
                let s = b.scan(x, ScanKind::Sum, 1).unwrap();
                let s = b.scan(s, ScanKind::Sum, 0).unwrap();
                vec![b.rechunk(s, &[64, 3]).unwrap()]
            }),
        ),
        (
            "two results that share",
            plan(size, |b| {
                let x = numbers(b, &[64, 64], &[8, 16]);
                let y = b.map(ScalarOp::Exp, &[x]).unwrap();
                let m = b.reduce_axes(y, ReduceKind::Max, &[1]).unwrap();
                vec![y, m]
            }),
        ),
    ]
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn clusters_return_the_bits_of_one_machine() {
    for workers in [1, 2, 3, 5] {
        let bench = Bench::new(workers).await;
        let mut moved = 0;
        for (name, t) in plans() {
            let (_, totals) = bench.both(&t, &Sources::default()).await;
            assert_eq!((totals.lost, totals.again), (0, 0), "{name}: {totals:?}");
            assert!((1..=workers as u64).contains(&totals.workers), "{totals:?}");
            assert!(totals.orders >= 1, "{name}: {totals:?}");
            // The expected numbers are the measured ones.
            assert_eq!(totals.bytes_moved, totals.bytes_expected, "{name} on {workers}");
            let expected = bench.drive(&t, &Sources::default()).expected().unwrap().unwrap();
            assert_eq!(expected.bytes_moved, totals.bytes_moved, "{name} on {workers}");
            assert_eq!(expected.orders as u64, totals.orders, "{name} on {workers}");
            moved += totals.bytes_moved;
        }
        assert_eq!(moved > 0, workers > 1);
        // Finished plans leave nothing behind.
        let asked = Instant::now();
        loop {
            tokio::time::sleep(Duration::from_millis(60)).await;
            let chunks: u64 = bench.cluster.registry().alive().iter().map(|m| m.load.chunks).sum();
            if chunks == 0 {
                break;
            }
            assert!(asked.elapsed() < PATIENCE, "{chunks} chunks are left");
        }
    }
}

/// Stored arrays are opened by each worker, arrays in memory come from the server.
async fn two_arrays(bench: &Bench) -> (Arc<Tiling>, Sources) {
    let mut npy = b"\x93NUMPY\x01\x00\x76\x00".to_vec();
    let header = "{'descr': '<f8', 'fortran_order': False, 'shape': (4000,), }";
    npy.extend(format!("{header:<117}\n").bytes());
    npy.extend((0..4000).flat_map(|n| f64::from(n).sqrt().to_le_bytes()));
    let path = bench.files.path().join("x.npy");
    std::fs::write(&path, npy).unwrap();
    two_arrays_at(bench, &path).await
}

async fn two_arrays_at(bench: &Bench, path: &Path) -> (Arc<Tiling>, Sources) {
    let (url, options) = (path.to_str().unwrap().to_owned(), Options::default());
    let opened = source::open(&url, &options, &stores()).await.unwrap();
    let mut sources = Sources::default();
    let stored = opened.dataset.variables[0].source.clone();
    sources.add(stored.clone(), Origin::Stored(opened.readers[0].clone()));
    sources.opened_at(stored.clone(), Arc::new(SourceLocation { url, options, rules: None }));
    let resident = resident(bench, &mut sources, None).await;
    let t = plan(512, |b| {
        let x = b.load(stored.into()).unwrap();
        let y = b.load(resident.into()).unwrap();
        let z = b.map(ScalarOp::Mul, &[x, y]).unwrap();
        let s = b.scan(z, ScanKind::Sum, 0).unwrap();
        vec![b.reduce_axes(s, ReduceKind::Max, &[0]).unwrap(), z]
    });
    assert!(t.plan().stages.iter().filter(|s| matches!(s.task, Task::Load { .. })).count() >= 2);
    (t, sources)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn arrays_are_read_from_their_own_party() {
    let bench = Bench::new(3).await;
    let (t, sources) = two_arrays(&bench).await;
    let (_, totals) = bench.both(&t, &sources).await;
    assert!(totals.bytes_moved > 0 && totals.stages.iter().any(|s| s.0 > 0), "{totals:?}");
    // A file that changed since it was bound fails the statement with the worker's error.
    let path = bench.files.path().join("x.npy");
    let bytes = std::fs::read(&path).unwrap();
    std::fs::write(&path, &bytes[..bytes.len() - 800]).unwrap();
    let error = bench.spread(&t, &sources).await.unwrap_err();
    assert!(matches!(error, Error::Reported(_)), "{error}");
    assert!(["source_changed", "invalid_metadata"].contains(&error.code()), "{}", error.code());
    std::fs::remove_file(&path).unwrap();
    assert_eq!(bench.spread(&t, &sources).await.unwrap_err().code(), "not_found");
    // Other statements are not affected.
    std::fs::write(&path, bytes).unwrap();
    let (t, sources) = two_arrays_at(&bench, &path).await;
    bench.both(&t, &sources).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn errors_of_users_are_told_at_once() {
    let bench = Bench::new(2).await;
    let t = plan(512, |b| {
        let n = b.iota(&[4000], Some(&[64])).unwrap();
        let n = b.map(ScalarOp::Mul, &[n, n]).unwrap();
        let n = b.map(ScalarOp::Mul, &[n, n]).unwrap();
        let n = b.map(ScalarOp::Mul, &[n, n]).unwrap();
        vec![b.reduce_axes(n, ReduceKind::Sum, &[0]).unwrap()]
    });
    let alone = run(&bench.own, &t, &Sources::default(), None).await;
    let spread = bench.spread(&t, &Sources::default()).await;
    match (alone, spread) {
        (Err(alone), Err(spread)) => {
            assert_eq!((alone.code(), alone.class()), (spread.code(), spread.class()));
            assert_eq!(alone.hint(), spread.hint());
        }
        (alone, spread) => panic!("{:?} and {:?}", alone.is_ok(), spread.is_ok()),
    }
    // The workers are unaffected.
    assert_eq!(bench.cluster.registry().alive().len(), 2);
    bench.both(&plans()[0].1, &Sources::default()).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_worker_that_leaves_when_idle_loses_nothing() {
    let mut bench = Bench::new(2).await;
    bench.workers[0].0.cancel();
    let (_, ended) = bench.workers.remove(0);
    let ended = tokio::time::timeout(PATIENCE, ended).await.unwrap();
    assert_eq!(ended.unwrap().unwrap(), crate::Ended::Left);
    bench.wait_for(1).await;
    bench.both(&plans()[1].1, &Sources::default()).await;
    // All workers are asked to restart, and do so at their next heartbeat.
    assert_eq!(bench.cluster.registry().restart(Instant::now()), 1);
    let (_, ended) = bench.workers.remove(0);
    let ended = tokio::time::timeout(PATIENCE, ended).await.unwrap();
    assert_eq!(ended.unwrap().unwrap(), crate::Ended::Restart);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_statement_that_is_dropped_leaves_nothing() {
    let bench = Bench::new(2).await;
    let t = plan(512, |b| {
        let x = numbers(b, &[400_000], &[64]);
        let y = b.scan(x, ScanKind::Sum, 0).unwrap();
        vec![b.reduce_axes(y, ReduceKind::Max, &[0]).unwrap()]
    });
    for wait in [0, 5, 40, 200] {
        let drive = bench.drive(&t, &Sources::default());
        let prepared = drive.prepare(&t);
        let within = tokio::time::timeout(Duration::from_millis(wait), prepared).await;
        drop((within, drive));
        let asked = Instant::now();
        loop {
            tokio::time::sleep(Duration::from_millis(60)).await;
            let alive = bench.cluster.registry().alive();
            let left = |m: &crate::registry::Member| m.load.orders + m.load.chunks;
            if alive.iter().map(left).sum::<u64>() == 0 {
                break;
            }
            assert!(asked.elapsed() < PATIENCE, "{alive:?}");
        }
    }
    bench.both(&plans()[0].1, &Sources::default()).await;
}

/// Waits until the loads of all workers satisfy `is`, and returns them.
async fn loads(bench: &Bench, what: &str, is: impl Fn(&[Load]) -> bool) -> Vec<Load> {
    let asked = Instant::now();
    loop {
        let members = bench.cluster.registry().alive();
        let loads: Vec<Load> = members.into_iter().map(|m| m.load).collect();
        if is(&loads) {
            return loads;
        }
        assert!(asked.elapsed() < PATIENCE, "{what}: {loads:?}");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_chunk_is_freed_when_its_last_reader_ran() {
    let bench = Bench::new(2).await;
    for (name, t) in plans() {
        let drive = bench.drive(&t, &Sources::default());
        let _shelved = drive.prepare(&t).await.unwrap();
        let results: BTreeSet<StageId> = t.plan().results.iter().map(|of| of.stage).collect();
        let outputs = results.iter().map(|s| t.plan().stage(*s));
        let chunks: u64 = outputs.map(|s| s.grid.count() * s.outputs.len() as u64).sum();
        let held = |loads: &[Load]| loads.iter().map(|l| l.chunks).sum::<u64>() == chunks;
        loads(&bench, &format!("{name}, {chunks} chunks"), held).await;
        // A freed chunk that is needed after all would be computed again.
        assert_eq!(drive.totals().again, 0, "{name}");
    }
}

/// An array that is made here, and stays in memory.
async fn resident(bench: &Bench, sources: &mut Sources, version: Option<String>) -> SourceRef {
    let t = plan(512, |b| vec![numbers(b, &[4000], &[64])]);
    let grid = t.plan().output(t.plan().results[0]).grid.clone();
    let array = Resident::empty(grid.clone());
    let runner = Arc::new(PlanRunner::new(t.clone(), &Sources::default()).unwrap());
    let sink = Arc::new(Fill(vec![array.clone()]));
    let running = bench.own.start(t, runner, sink, &CancelToken::new()).unwrap();
    running.outcome().await.result.unwrap();
    let resident = SourceRef {
        url: "temp:t@0".into(),
        path: "t".into(),
        dtype: DType::Float64,
        shape: [4000].as_slice().into(),
        grid,
        nullable: false,
        version,
        plain: false,
    };
    sources.add(resident.clone(), Origin::Resident(array));
    resident
}
