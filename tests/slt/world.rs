//! The worlds, and the configuration of each.

use super::{Db, Failed, agrees};
use crate::common::{number, until};
use crate::s3::{KEY, S3, SECRET};
use serde_json::{Map, Value, json};
use sqllogictest::{DefaultColumnType, Record, Runner};
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};
use tessera_cluster::net::Credentials;
use tessera_cluster::registry::{Member, WorkerState};
use tessera_cluster::{Joining, Worker};
use tessera_engine::config::Config;
use tessera_engine::session::{Host, Session};
use tessera_exec::run::Runtime;
use tessera_storage::source::Stores;
use tokio_util::sync::CancellationToken;

/// One way to run all scripts.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) enum World {
    /// Chunks of the sources, two threads.
    Source,
    /// Chunks of a few cells; a few hundred where the arrays are larger, or what the script states (`# chunks`).
    Tiny,
    /// Chunks of the sources, one thread.
    OneThread,
    /// Nothing stays dense: the cells of cell blocks are rows, on this number of threads. On one and on eight threads,
    /// rows are in splits of 256.
    Rows(usize),
    /// Tiny chunks in so little memory that they are spilled.
    Spilling,
    /// Tiny chunks on that many workers of a cluster, whatever a plan costs.
    Cluster(usize),
    /// Chunks of the sources, eight threads.
    EightThreads,
    /// Chunks of the sources in little memory.
    Scarce,
    /// Tiny chunks, all stored in a directory. Each answer comes from a second run, which finds the chunks.
    Kept,
    /// Chunks of the sources, in a bucket that fails one request in ten, as is the warehouse, which stores all chunks.
    /// Each answer comes from a second run.
    Faults,
}

/// Scripts that ask for operands of some megabytes, whatever the chunks: chunks of 8 MB, whole matrices.
const WIDE: [&str; 2] = ["dialect/q01.slt", "queries/linalg_solve.slt"];

/// True if scripts run in all worlds, which takes long.
pub(super) fn all_worlds() -> bool {
    std::env::var("TESSERA_SLT_ALL").is_ok_and(|named| named == "1")
}

impl World {
    /// The worlds of every run.
    pub(super) const EACH: [World; 6] = [
        World::Source,
        World::Tiny,
        World::OneThread,
        World::Rows(2),
        World::Spilling,
        World::Cluster(3),
    ];
    /// Further worlds, if `TESSERA_SLT_ALL` is set.
    pub(super) const SOME: [World; 9] = [
        World::Rows(1),
        World::Rows(8),
        World::EightThreads,
        World::Scarce,
        World::Kept,
        World::Faults,
        World::Cluster(1),
        World::Cluster(2),
        World::Cluster(5),
    ];

    /// The worlds of this run.
    pub(super) fn all() -> Vec<World> {
        let some = |w: &&World| match std::env::var("TESSERA_SLT_ALL") {
            Ok(named) => named == "1" || format!("{w:?}").starts_with(&named),
            Err(_) => false,
        };
        World::EACH.iter().chain(World::SOME.iter().filter(some)).copied().collect()
    }

    /// The world on the same grid, so with the same bits.
    pub(super) fn twin(self) -> Option<World> {
        match self {
            World::Rows(8) => Some(World::Rows(1)),
            World::Source | World::Tiny | World::Rows(_) => None,
            World::OneThread | World::EightThreads | World::Scarce | World::Faults => {
                Some(World::Source)
            }
            World::Spilling | World::Kept | World::Cluster(_) => Some(World::Tiny),
        }
    }

    fn threads(self) -> &'static str {
        match self {
            World::OneThread | World::Rows(1) => "1",
            World::EightThreads | World::Rows(8) => "8",
            _ => "2",
        }
    }

    /// Less than the command line allows where that is asked for.
    fn memory(self, path: &Path) -> u64 {
        let is_wide = WIDE.iter().any(|w| path.ends_with(w));
        match self {
            World::Spilling | World::Scarce if is_wide => 16 << 20,
            World::Spilling => 1 << 20,
            World::Scarce => 8 << 20,
            _ => 1 << 30,
        }
    }

    fn settings(self, tiny_bytes: &str) -> Option<String> {
        // Each chunk is an operand of its own: the same bits as where small ones go together.
        let alone = "SET tessera.batch_cells = 0; ";
        let all = "SET tessera.durability = 'all'; ";
        let tiny = format!("SET tessera.chunk_bytes_target = '{tiny_bytes}'");
        match self {
            World::Source | World::OneThread | World::EightThreads | World::Scarce => None,
            World::Rows(2) => Some("SET tessera.lift = 'off'".into()),
            World::Rows(_) => {
                Some("SET tessera.lift = 'off'; SET tessera.chunk_bytes_target = '4KiB'".into())
            }
            World::Tiny => Some(tiny),
            World::Spilling => Some(format!("{alone}{tiny}")),
            World::Kept => Some(format!("{all}{tiny}")),
            World::Cluster(_) => Some(format!("SET tessera.spread = 'all'; {tiny}")),
            World::Faults => Some(all.into()),
        }
    }
}

/// A script's answers, and how many operands ran for them.
pub(super) struct Run {
    pub(super) world: World,
    pub(super) answers: Vec<String>,
    pub(super) failures: Vec<String>,
    pub(super) operands: u64,
    /// Operands that ran on workers.
    pub(super) on_workers: u64,
    /// Bytes that were spilled.
    pub(super) spilled: u64,
    /// Operands whose chunks second runs found.
    pub(super) reused: u64,
    pub(super) seconds: f64,
}

/// Workers of a host, in this process.
struct Workers {
    end: CancellationToken,
    tasks: Vec<tokio::task::JoinHandle<()>>,
}

impl Workers {
    fn start(host: &Arc<Host>, runtime: &tokio::runtime::Runtime, workers: usize) -> Workers {
        let cluster = runtime.block_on(host.accept_workers()).unwrap();
        let security = host.config().cluster_security.clone();
        let credentials = Credentials::load(&security).unwrap();
        let end = CancellationToken::new();
        let start = |_| {
            let config = tessera_exec::config::Config {
                threads: 1,
                quota_bytes_max: 1 << 30,
                ..Default::default()
            };
            let threads = Runtime::new(config, runtime.handle().clone()).unwrap();
            let stores = Stores::new(Duration::from_secs(30));
            let rows = tessera_engine::rows_runner(&threads, stores.clone(), &credentials);
            let worker = Worker::new(threads, stores, &credentials, 1 << 27);
            worker.runs_rows(rows);
            let joining = Joining {
                schedulers: vec![cluster.address().to_string()],
                listen: "127.0.0.1:0".parse().unwrap(),
                advertise: None,
                name: None,
                version: env!("CARGO_PKG_VERSION").into(),
                supervisor: None,
            };
            let (credentials, end) = (credentials.clone(), end.clone());
            runtime.spawn(async move {
                worker.work(&joining, &credentials, &end).await.unwrap();
            })
        };
        let tasks = (0..workers).map(start).collect();
        until("workers join", Duration::from_secs(60), || {
            cluster.registry().alive().len() == workers
        });
        Workers { end, tasks }
    }

    /// Has them leave, when nothing of any statement is left there; how many operands they ran.
    fn end(self, host: &Arc<Host>, runtime: &tokio::runtime::Runtime) -> u64 {
        self.end.cancel();
        for task in self.tasks {
            runtime.block_on(task).unwrap();
        }
        let cluster = host.cluster().unwrap();
        let all = cluster.registry().all();
        let has_nothing = |m: &Member| m.load.chunks == 0 && m.load.row_tasks == 0;
        assert!(all.iter().all(|m| m.state == WorkerState::Left && has_nothing(m)), "{all:?}");
        runtime.block_on(cluster.close());
        all.iter().map(|m| m.load.operands).sum()
    }
}

/// The bucket of the scripts of a folder, with all that they read; `None` where no world has one.
pub(super) fn bucket() -> Option<S3> {
    if !all_worlds() {
        return None;
    }
    let s3 = S3::random(number("TESSERA_SEED").unwrap_or(20_261_122), 0.1);
    copy(Path::new("tests/data"), &s3.path("tests/data"));
    consolidate(&s3.path("tests/data/cases.zarr"));
    Some(s3)
}

/// Writes the metadata of a group's arrays into the group's own. Most scripts read one store, whose metadata are asked
/// for by each statement: as some fifty objects they would take most of the time, of one request in ten that fails.
fn consolidate(store: &Path) {
    let read = |at: PathBuf| serde_json::from_slice::<Value>(&fs::read(at).unwrap()).unwrap();
    let arrays = fs::read_dir(store).unwrap().map(Result::unwrap);
    let metadata: Map<String, Value> = arrays
        .filter(|e| e.path().is_dir())
        .map(|e| (e.file_name().into_string().unwrap(), read(e.path().join("zarr.json"))))
        .collect();
    let mut group = read(store.join("zarr.json"));
    group["consolidated_metadata"] =
        json!({"kind": "inline", "must_understand": false, "metadata": metadata});
    fs::write(store.join("zarr.json"), group.to_string()).unwrap();
}

/// Copies a directory.
pub(crate) fn copy(from: &Path, to: &PathBuf) {
    fs::create_dir_all(to).unwrap();
    for entry in fs::read_dir(from).unwrap().map(Result::unwrap) {
        let to = to.join(entry.file_name());
        match entry.file_type().unwrap().is_dir() {
            true => copy(&entry.path(), &to),
            false => drop(fs::copy(entry.path(), to).unwrap()),
        }
    }
}

/// The size of tiny chunks: what the script states, or what suits the arrays of its folder. Rows are in splits of two
/// for the smallest ones, up to 1024 splits of a scan, each of which costs milliseconds.
fn tiny_bytes<'a>(path: &Path, text: &'a str) -> &'a str {
    let is_large = path.starts_with("sql/dialect") || path.starts_with("sql/geoscience");
    let stated = text.lines().find_map(|l| l.strip_prefix("# chunks "));
    stated.map_or(if is_large { "16KiB" } else { "32" }, str::trim)
}

pub(super) fn run(path: &Path, world: World, s3: Option<&S3>) -> Run {
    let began = Instant::now();
    let mut text = fs::read_to_string(path).unwrap();
    let tolerance = text
        .lines()
        .find_map(|l| l.strip_prefix("# tolerance "))
        .map(|t| t.trim().parse().unwrap());
    super::TOLERANCE.with(|t| *t.borrow_mut() = tolerance);
    let settings = world.settings(tiny_bytes(path, &text));
    let directory = tempfile::tempdir().unwrap();
    let mut warehouse = directory.path().display().to_string();
    let mut environment: Vec<(String, String)> = std::env::vars().collect();
    if let (World::Faults, Some(s3)) = (world, s3) {
        warehouse = format!("s3://bkt/{}", path.display());
        environment.extend(s3.environment(Some((KEY, SECRET))));
        text = text.replace("'tests/data/", "'s3://bkt/tests/data/");
    }
    let flags = [("warehouse", warehouse), ("threads", world.threads().to_string())];
    let mut config = Config::load(&flags.into_iter().collect(), [], None).unwrap();
    config.memory_limit_bytes = world.memory(path);
    config.cluster_listen = "127.0.0.1:0".parse().unwrap();
    config.cluster_security.secret = directory.path().join("cluster.secret");
    let runtime = Arc::new(tokio::runtime::Runtime::new().unwrap());
    let stores = Stores::with_environment(Duration::from_secs(30), environment);
    let host = Host::open_with(config, runtime.handle().clone(), stores).unwrap();
    let (answers, reused) = (Arc::new(Mutex::new(Vec::new())), Arc::new(Mutex::new(0)));
    let workers = match world {
        World::Cluster(workers) => Some(Workers::start(&host, &runtime, workers)),
        _ => None,
    };
    let before = host.runtime().operands();
    let failures = {
        let mut runner = Runner::new(|| {
            let db = Db {
                session: Session::of(host.clone()),
                runtime: runtime.clone(),
                answers: answers.clone(),
                prologue: settings.clone(),
                runs_twice: matches!(world, World::Kept | World::Faults),
                reused: reused.clone(),
            };
            async move { Ok::<_, Failed>(db) }
        });
        runner.with_validator(agrees);
        let name = path.display().to_string();
        let records: Vec<Record<DefaultColumnType>> =
            sqllogictest::parse_with_name(&text, name).unwrap();
        records.into_iter().filter_map(|r| runner.run(r).err().map(|e| e.to_string())).collect()
    };
    let there = workers.map_or(0, |w| w.end(&host, &runtime));
    let operands = host.runtime().operands() - before + there;
    let answers = std::mem::take(&mut *answers.lock().unwrap());
    let (spilled, reused) =
        (host.runtime().store().figures().spilled_bytes, *reused.lock().unwrap());
    let seconds = began.elapsed().as_secs_f64();
    Run { world, answers, failures, operands, on_workers: there, spilled, reused, seconds }
}
