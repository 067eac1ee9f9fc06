//! A worker: runs orders, and retains their chunks for others.
//!
//! ```text
//!   join ─▶ beat, beat, …     the server's advice: continue, join again, restart
//!   plan ─▶ order, order, …   each with its end; dropping the stream cancels its order
//!   rows                      a task of rows: a stream of batches, with its end
//!   rows_part ◀─ other workers  a part of the rows that this worker keeps for tasks of theirs
//!   DoGet ◀─ other parties    chunks of its shelf
//!   forget                    removes the plan and its shelf; forget_rows the rows of a statement
//!   over ─▶ plans             those that the server does not run: forgotten too
//! ```

mod listing;
mod order;
mod output;
mod plans;
mod reuse;
mod rows;
mod schedulers;
mod view;

pub use rows::{RowsLoad, RowsRunner, ask_rows};
pub use schedulers::is_to_be_ended;

use crate::cache::ChunkCache;
use crate::net::{Answers, Credentials, Fault, Object, Peers, Server, Service};
use crate::reach::Reach;
use crate::wire::{
    Advice, Beat, ChunkTicket, Hello, Load, PlanName, RetainedQuery, RowsName, Unread, Version,
    Welcome, from_postcard,
};
use arrow_flight::FlightInfo;
use async_trait::async_trait;
use bytes::Bytes;
use futures::stream::{self, BoxStream};
use futures::{FutureExt, StreamExt};
use plans::{Asked, Known, Plans};
use schedulers::Schedulers;
use serde::Serialize;
use serde::de::DeserializeOwned;
use std::net::SocketAddr;
use std::panic::AssertUnwindSafe;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};
use tessera_exec::chunk::Chunk;
use tessera_exec::chunk::ipc::Message;
use tessera_exec::error::{Error, ErrorReport};
use tessera_exec::run::Runtime;
use tessera_exec::store::FinishedChunk;
use tessera_storage::lock;
use tessera_storage::source::Stores;
use tokio_util::sync::CancellationToken;

pub(crate) use view::View;

/// Timeout of a call to the server.
const CALL: Duration = Duration::from_secs(4);
/// Heartbeats between two questions which plans are over.
const ASK: u32 = 10;
/// How long a leaving worker waits until its chunks are no longer needed.
const DRAIN: Duration = Duration::from_secs(30);
/// How long a fetch of a chunk waits for memory, or for its turn to be relayed.
pub(crate) const ROOM: Duration = Duration::from_secs(5);

/// Runs orders for a server, and serves its chunks to other parties.
pub struct Worker {
    runtime: Runtime,
    stores: Stores,
    peers: Peers,
    reach: Arc<Reach>,
    plans: Mutex<Plans>,
    cache: ChunkCache,
    reused: AtomicU64,
    orders: AtomicU64,
    fetched: Arc<AtomicU64>,
    served: AtomicU64,
    written: Arc<AtomicU64>,
    rows: rows::Rows,
    draining: AtomicBool,
    /// The address of the server that it joined.
    scheduler: Mutex<Option<String>>,
}

/// How a worker joins.
#[derive(Debug, Clone)]
pub struct Joining {
    /// Addresses on which servers accept workers; the worker joins the first that accepts it.
    pub schedulers: Vec<String>,
    /// Address on which the worker listens.
    pub listen: SocketAddr,
    /// Address that the others connect to, if it differs from --listen.
    pub advertise: Option<String>,
    /// The worker's name; its address if `None`.
    pub name: Option<String>,
    /// Version of the program.
    pub version: String,
    /// Random number that the supervisor drew for it, if it has one.
    pub supervisor: Option<u64>,
}

/// How a worker ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ended {
    /// The worker was asked to end, and left.
    Left,
    /// The server asked it to restart.
    Restart,
}

impl std::fmt::Debug for Worker {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Worker").field("load", &self.load()).finish_non_exhaustive()
    }
}

/// Counts an order while it runs.
struct Counted(Arc<Worker>);

impl Drop for Counted {
    fn drop(&mut self) {
        self.0.orders.fetch_sub(1, Relaxed);
    }
}

impl Worker {
    /// A worker that has not joined yet, with a cache of at most `cache_bytes` bytes for chunks of finished statements.
    pub fn new(
        runtime: Runtime,
        stores: Stores,
        credentials: &Credentials,
        cache_bytes: u64,
    ) -> Arc<Self> {
        let peers = Peers::new(credentials);
        Arc::new(Worker {
            cache: ChunkCache::new(runtime.store().clone(), cache_bytes),
            reused: AtomicU64::new(0),
            runtime,
            stores,
            reach: Reach::new(peers.clone()),
            peers,
            plans: Mutex::default(),
            orders: AtomicU64::new(0),
            fetched: Arc::default(),
            served: AtomicU64::new(0),
            written: Arc::default(),
            rows: rows::Rows::default(),
            draining: AtomicBool::new(false),
            scheduler: Mutex::default(),
        })
    }

    /// Listens, joins and works until `end` is cancelled, or until the server asks it to restart. Calls to a server
    /// that does not respond are retried.
    ///
    /// # Errors
    /// The address cannot be listened on; the server refuses the worker.
    pub async fn work(
        self: &Arc<Self>,
        joining: &Joining,
        credentials: &Credentials,
        end: &CancellationToken,
    ) -> Result<Ended, Fault> {
        // If no other thread can start later, this one would have to do their work.
        let first = async { tokio::task::spawn_blocking(|| ()).await };
        let first = AssertUnwindSafe(first).catch_unwind().await;
        if !matches!(first, Ok(Ok(()))) {
            let reason = "no thread could be started (`ulimit -u`, `ulimit -v`)";
            return Err(Fault::Failed(reason.into()));
        }
        let server =
            Server::bind(joining.listen, Arc::new(WorkerCalls(self.clone())), credentials).await?;
        let address = match &joining.advertise {
            Some(address) => address.clone(),
            None => server.address().to_string(),
        };
        let hello = Hello {
            name: joining.name.clone().unwrap_or_else(|| address.clone()),
            address,
            threads: self.runtime.config().threads as u32,
            memory_bytes: self.runtime.quota().limit(),
            pid: std::process::id(),
            incarnation: uuid::Uuid::new_v4().as_u64_pair().0,
            version: Version::of(&joining.version),
            supervisor: joining.supervisor,
        };
        tracing::info!(address = hello.address, "the worker listens");
        let ended = self.joined(joining, &hello, end).await;
        server.shutdown().await;
        ended
    }

    async fn joined(
        self: &Arc<Self>,
        joining: &Joining,
        hello: &Hello,
        end: &CancellationToken,
    ) -> Result<Ended, Fault> {
        let mut deadline: Option<Instant> = None;
        let mut schedulers = Schedulers::new(&joining.schedulers);
        let (mut before, mut asked) = (None, Asked::default());
        loop {
            let Some(welcome) = self.join(&mut schedulers, hello, end).await? else {
                return Ok(Ended::Left);
            };
            let scheduler = schedulers.current().to_owned();
            tracing::info!(worker = welcome.worker, scheduler, "joined");
            // The number of the worker is not enough: the next server at the same address assigns the same numbers
            // again.
            let place = Some((welcome.server, welcome.worker));
            if before != place {
                // The worker joined another server, or one that had lost sight of it. That server does not count on its
                // chunks.
                self.park();
            }
            *lock(&self.scheduler) = Some(scheduler.clone());
            before = place;
            let every = Duration::from_millis(welcome.beat_ms.max(10));
            loop {
                let draining = end.is_cancelled();
                if draining {
                    self.draining.store(true, Relaxed);
                    let until = *deadline.get_or_insert_with(|| Instant::now() + DRAIN);
                    if self.is_free() || Instant::now() >= until {
                        let beat = self.beat(&welcome, hello, draining);
                        let left: Result<Advice, Fault> =
                            self.peers.call(&scheduler, "leave", &beat, CALL).await;
                        if let Err(fault) = left {
                            tracing::warn!(%fault, "the server does not know that the worker left");
                        }
                        return Ok(Ended::Left);
                    }
                }
                self.drop_parked();
                let beat = self.beat(&welcome, hello, draining);
                match self.peers.call(&scheduler, "beat", &beat, CALL).await {
                    Ok(Advice::Go) => self.forget_over(&scheduler, &mut asked, every * ASK).await,
                    Ok(Advice::Join) => {
                        self.park();
                        break;
                    }
                    Ok(Advice::Restart) => return Ok(Ended::Restart),
                    Err(fault @ Fault::Denied(_)) => return Err(fault),
                    Err(fault) => {
                        tracing::warn!(scheduler, %fault, "the server does not respond");
                        // Another one may have taken over.
                        if joining.schedulers.len() > 1 && !draining {
                            break;
                        }
                    }
                }
                let pause = if draining { every.min(Duration::from_millis(100)) } else { every };
                tokio::select! {
                    () = tokio::time::sleep(pause) => {}
                    () = end.cancelled(), if !draining => {}
                }
            }
        }
    }

    /// Joins the first server that accepts the worker; `None` if the worker has to end before.
    async fn join(
        &self,
        schedulers: &mut Schedulers<'_>,
        hello: &Hello,
        end: &CancellationToken,
    ) -> Result<Option<Welcome>, Fault> {
        let mut pause = Duration::from_millis(100);
        loop {
            if end.is_cancelled() {
                return Ok(None);
            }
            let scheduler = schedulers.current();
            match self.peers.call(scheduler, "join", hello, CALL).await {
                Ok(welcome) => return Ok(Some(welcome)),
                Err(Fault::Unreachable(reason)) => {
                    tracing::warn!(scheduler, reason, "the worker cannot join; it tries again");
                }
                Err(fault) => return Err(fault),
            }
            if !schedulers.advance() {
                continue;
            }
            tokio::select! {
                () = tokio::time::sleep(pause) => {}
                () = end.cancelled() => {}
            }
            pause = (pause * 2).min(schedulers.pause_max());
        }
    }

    /// True if no other party needs this worker.
    fn is_free(&self) -> bool {
        let rows = self.rows.load();
        let runs = self.orders.load(Relaxed) + rows.running + rows.kept;
        runs == 0 && lock(&self.plans).known.is_empty()
    }

    fn beat(&self, welcome: &Welcome, hello: &Hello, draining: bool) -> Beat {
        let (worker, incarnation) = (welcome.worker, hello.incarnation);
        Beat { worker, incarnation, draining, load: self.load() }
    }

    fn load(&self) -> Load {
        let plans: Vec<Arc<Known>> = lock(&self.plans).known.values().cloned().collect();
        let (retained, retained_bytes) = self.retained_figures();
        let rows = self.rows.load();
        let mut load = Load {
            row_tasks: rows.running,
            row_tasks_done: rows.done,
            rows_sent: rows.rows,
            row_bytes: rows.bytes,
            retained,
            retained_bytes,
            reused: self.reused.load(Relaxed),
            orders: self.orders.load(Relaxed),
            operands: self.runtime.operands(),
            used_bytes: self.runtime.quota().used(),
            fetched_bytes: self.fetched.load(Relaxed),
            served_bytes: self.served.load(Relaxed),
            written_bytes: self.written.load(Relaxed),
            apart: self.reach.apart(),
            ..Load::default()
        };
        for known in plans {
            let (chunks, memory, files) = known.kept.figures();
            load.chunks += chunks;
            load.chunk_bytes += memory + files;
            load.spilled_bytes += files;
        }
        load
    }

    /// The address of the server that it joined.
    fn server(&self) -> Option<String> {
        lock(&self.scheduler).clone()
    }

    fn known(&self, plan: &str) -> Result<Arc<Known>, Fault> {
        let known = lock(&self.plans).known.get(plan).cloned();
        known.ok_or_else(|| Fault::NotFound(format!("plan `{plan}`")))
    }

    /// The chunks of an operand on its shelf, encoded.
    async fn give(self: &Arc<Self>, ticket: ChunkTicket) -> Result<Vec<Message>, Fault> {
        let ChunkTicket { plan, stage, number, output, at: _ } = ticket;
        let known = self.known(&plan)?;
        let none = || Fault::NotFound(format!("operand {number} of stage {} of `{plan}`", stage.0));
        let held = known.kept.held(stage, number).ok_or_else(none)?;
        if output.is_some_and(|output| output as usize >= held.len()) {
            return Err(none());
        }
        let mut chunks: Vec<Arc<Chunk>> = Vec::with_capacity(held.len());
        for held in held {
            match held {
                FinishedChunk::Memory(chunk) => chunks.push(chunk),
                FinishedChunk::File(file) => {
                    let worker = self.clone();
                    let load = move || worker.runtime.bring_back(&file);
                    let short = "no memory is available to read a spilled chunk back";
                    let loaded = when_memory_allows(short, load).await?;
                    chunks.push(loaded.map_err(|e| Fault::NotFound(e.to_string()))?);
                }
            }
        }
        let tiling = known.kept.tiling().clone();
        let worker = self.clone();
        let encode = move || worker.runtime.encode(&*tiling, (stage, number), &chunks, output);
        let messages = tokio::task::spawn_blocking(encode).await;
        let messages = messages.map_err(|e| Fault::Unreachable(e.to_string()))?;
        let messages = messages.map_err(|e| Fault::Failed(e.to_string()))?;
        self.served.fetch_add(messages.iter().map(Message::bytes).sum(), Relaxed);
        Ok(messages)
    }
}

/// Serves the calls to a worker.
struct WorkerCalls(Arc<Worker>);

#[async_trait]
impl Service for WorkerCalls {
    async fn action(&self, kind: &str, body: Bytes) -> Result<Answers, Fault> {
        match kind {
            "ping" => Ok(one(&())),
            "plan" => Ok(one(&caught("a plan", self.0.learn(from_postcard(&body)?)).await?)),
            "order" | "rows" if self.0.draining.load(Relaxed) => {
                Err(Fault::Unreachable("the worker is about to leave".into()))
            }
            "order" => caught("an order", self.0.order(from_postcard(&body)?)).await,
            "rows" => caught("a task of rows", async { self.0.rows.start(&body) }).await,
            // Also while it drains: others would have to compute the rows again.
            "rows_part" => caught("a part of rows", async { self.0.rows.part(&body) }).await,
            "forget_rows" => {
                let RowsName { query } = read(&body)?;
                self.0.rows.forget(query);
                Ok(one(&()))
            }
            "forget" => {
                let PlanName { plan } = read(&body)?;
                self.0.forget(plan).await;
                Ok(one(&()))
            }
            "begin" => {
                let PlanName { plan } = read(&body)?;
                self.0.known(&plan)?.begin().await;
                Ok(one(&()))
            }
            "retained" => Ok(one(&self.0.retained(&read::<RetainedQuery>(&body)?))),
            "free" => {
                let unread: Unread = read(&body)?;
                self.0.free(&*self.0.known(&unread.plan)?, &unread);
                Ok(one(&()))
            }
            kind => Err(Fault::Broken(format!("a worker does not do `{kind}`"))),
        }
    }

    fn objects(&self) -> BoxStream<'static, FlightInfo> {
        stream::iter(self.chunks()).boxed()
    }

    async fn object(&self, ticket: Bytes) -> Result<Object, Fault> {
        Ok(Object::whole(caught("a chunk", self.0.give(read(&ticket)?)).await?))
    }
}

/// A panic while serving a call becomes an error for the other party and does not break the connection.
async fn caught<T>(what: &str, answer: impl Future<Output = Result<T, Fault>>) -> Result<T, Fault> {
    let answer = AssertUnwindSafe(answer).catch_unwind().await;
    answer.unwrap_or_else(|payload| {
        Err(to_fault(&Error::of_panic(what.to_owned(), payload.as_ref())))
    })
}

/// Repeats an attempt, which returns `None` while memory is short, on threads for blocking calls. Fails with `short`
/// after [`ROOM`].
pub(crate) async fn when_memory_allows<T: Send + 'static>(
    short: &str,
    attempt: impl Fn() -> Option<T> + Clone + Send + 'static,
) -> Result<T, Fault> {
    let until = Instant::now() + ROOM;
    loop {
        match tokio::task::spawn_blocking(attempt.clone()).await {
            Ok(Some(found)) => return Ok(found),
            Ok(None) if Instant::now() > until => return Err(Fault::Unreachable(short.into())),
            Ok(None) => tokio::time::sleep(Duration::from_millis(10)).await,
            Err(e) => return Err(Fault::Unreachable(e.to_string())),
        }
    }
}

/// Encodes an error for the server.
fn to_fault(error: &Error) -> Fault {
    match serde_json::to_string(&ErrorReport::from(error)) {
        Ok(json) => Fault::Failed(json),
        Err(e) => Fault::Broken(format!("{error} (which has no JSON: {e})")),
    }
}

pub(crate) fn read<T: DeserializeOwned>(body: &[u8]) -> Result<T, Fault> {
    serde_json::from_slice(body)
        .map_err(|e| Fault::Broken(format!("a message cannot be read: {e}")))
}

fn json(value: &impl Serialize) -> Result<Bytes, Fault> {
    let json = serde_json::to_vec(value);
    json.map(Bytes::from).map_err(|e| Fault::Broken(format!("a message has no JSON: {e}")))
}

pub(crate) fn one(value: &impl Serialize) -> Answers {
    stream::once(std::future::ready(json(value))).boxed()
}
