//! The server's side of a cluster: joins, chunks for workers, and relays.

use crate::backlog::{Backlog, Waiting};
use crate::net::{Answers, Credentials, Fault, Object, Peers, Server, Service, Unreached};
use crate::registry::{Limits, Refused, Registry, check_version};
use crate::rows::slots::RowsSlots;
use crate::shelf::{IDLE, written};
use crate::wire::{Advice, Beat, ChunkTicket, Hello, PlanNames, Version, Watch, Welcome};
use crate::worker::{ROOM, one, read, when_memory_allows};
use crate::worker_slots::{Stay, WorkerSlots};
use async_trait::async_trait;
use bytes::Bytes;
use futures::StreamExt;
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};
use tessera_exec::chunk::ipc::Message;
use tessera_exec::error::Error;
use tessera_planner::plan::StageId;
use tessera_storage::lock;
use tokio::sync::Semaphore;
use tokio_util::sync::CancellationToken;

/// Upper bound on chunks that the server relays concurrently from one worker to another. Each has a window of bytes in
/// flight (8 MiB); together they leave room in a connection for messages of workers.
const RELAYS_MAX: usize = 3;

/// Timeout to reach a worker that joins, or whose connection broke.
const REACH: Duration = Duration::from_millis(1500);

/// Interval of attempts to make room on a worker.
const LOOK: Duration = Duration::from_millis(250);

/// Returns the encoded chunks of a load whose array is in the server's memory, or only the chunk of one output; `None`
/// if memory for them is short.
pub type Home =
    Arc<dyn Fn(StageId, u64, Option<u32>) -> Option<Result<Vec<Message>, Error>> + Send + Sync>;

/// The loads of each running plan.
type Homes = Arc<Mutex<BTreeMap<String, Home>>>;

/// Why a server accepts no workers at the moment.
type Refusal = Arc<Mutex<Option<String>>>;

/// The cluster, as the server sees it.
pub struct Cluster {
    registry: Arc<Registry>,
    peers: Peers,
    address: SocketAddr,
    posts: WorkerSlots,
    rows: Arc<RowsSlots>,
    backlog: Arc<Backlog>,
    homes: Homes,
    refusal: Refusal,
    end: CancellationToken,
    server: Mutex<Option<Server>>,
    /// The runtime of connections and timers.
    io: tokio::runtime::Handle,
}

impl std::fmt::Debug for Cluster {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Cluster").field("address", &self.address).finish_non_exhaustive()
    }
}

impl Cluster {
    /// Accepts workers at an address. Must be called inside a tokio runtime.
    ///
    /// # Errors
    /// The address cannot be listened on.
    pub async fn open(
        listen: SocketAddr,
        limits: Limits,
        credentials: &Credentials,
        version: &str,
    ) -> Result<Arc<Self>, Fault> {
        let registry = Registry::new(limits);
        let (homes, refusal) = (Homes::default(), Refusal::default());
        let peers = Peers::new(credentials);
        let backlog = Arc::new(Backlog::default());
        let calls = ServerCalls {
            refusal: refusal.clone(),
            registry: registry.clone(),
            backlog: backlog.clone(),
            peers: peers.clone(),
            homes: homes.clone(),
            relays: Arc::new(Semaphore::new(RELAYS_MAX)),
            version: Version::of(version),
        };
        let server = Server::bind(listen, Arc::new(calls), credentials).await?;
        let end = CancellationToken::new();
        let (watched, ended) = (registry.clone(), end.clone());
        let sampled = backlog.clone();
        let every = (limits.dead_after / 10).max(Duration::from_millis(20));
        tokio::spawn(async move {
            loop {
                tokio::select! {
                    () = tokio::time::sleep(every) => {}
                    () = ended.cancelled() => return,
                }
                watched.expire(Instant::now());
                sampled.sample(watched.threads(), Instant::now());
            }
        });
        Ok(Arc::new(Cluster {
            registry,
            peers,
            address: server.address(),
            posts: WorkerSlots::default(),
            rows: Arc::default(),
            backlog,
            homes,
            refusal,
            end,
            server: Mutex::new(Some(server)),
            io: tokio::runtime::Handle::current(),
        }))
    }

    /// The registry of workers.
    pub fn registry(&self) -> &Arc<Registry> {
        &self.registry
    }

    /// The address on which workers join.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Waits for this many workers, at most this long; for fewer if some joined and no more did for a while.
    pub async fn gather(&self, workers: usize, most: Duration) {
        let settled = self.registry.limits().dead_after;
        let mut changes = self.registry.changes();
        let until = Instant::now() + most;
        loop {
            changes.mark_unchanged();
            let here = self.registry.alive();
            let last = here.iter().map(|m| m.joined).max();
            let until = last.map_or(until, |last| until.min(last + settled));
            let wait = until.saturating_duration_since(Instant::now());
            if here.len() >= workers || wait.is_zero() {
                return;
            }
            // The sender cannot be dropped: the registry is held here.
            let _ = tokio::time::timeout(wait, changes.changed()).await;
        }
    }

    /// The work of running statements that waits for workers.
    pub fn waiting(&self) -> Waiting {
        self.backlog.sample(self.registry.threads(), Instant::now())
    }

    pub(crate) fn backlog(&self) -> &Backlog {
        &self.backlog
    }

    pub(crate) fn peers(&self) -> &Peers {
        &self.peers
    }

    pub(crate) fn posts(&self) -> &WorkerSlots {
        &self.posts
    }

    /// The tasks of rows on workers.
    pub(crate) fn rows(&self) -> &Arc<RowsSlots> {
        &self.rows
    }

    /// The runtime on which the cluster was opened.
    pub(crate) fn io(&self) -> &tokio::runtime::Handle {
        &self.io
    }

    /// Waits until an order or a task of rows may run on a worker: with others, or alone. Unread tasks of rows in its
    /// way are evicted, because their readers may be waiting for this one.
    pub(crate) async fn enter(&self, worker: u32, plan: &str, alone: bool) -> Stay {
        let entered = self.posts.enter(worker, plan, alone);
        tokio::pin!(entered);
        loop {
            match tokio::time::timeout(LOOK, &mut entered).await {
                Ok(stay) => return stay,
                Err(_) => self.rows.evict(worker, !alone),
            }
        }
    }

    /// Distinguishes a dead worker from a broken connection.
    pub(crate) async fn is_gone(&self, worker: u32, address: &str, reason: &str) -> bool {
        if !self.registry.is_here(worker) {
            return true;
        }
        if self.peers.answers(address, REACH).await {
            return false;
        }
        self.peers.forget(address);
        self.registry.lost(worker, &format!("its connection broke: {reason}"));
        true
    }

    /// Probes workers, given with their addresses, and returns how many of the present ones do not respond.
    pub(crate) async fn missing(&self, workers: Vec<(u32, String)>, why: &str) -> u64 {
        let here = workers.iter().filter(|(worker, _)| self.registry.is_here(*worker));
        let asked =
            here.map(|(worker, address)| async move { self.is_gone(*worker, address, why).await });
        let gone = futures::future::join_all(asked).await;
        gone.into_iter().filter(|gone| *gone).count() as u64
    }

    /// The error of a call to a worker that is lost.
    pub(crate) fn lost_error(&self, worker: u32, address: &str) -> Error {
        let why = self.registry.member(worker).and_then(|member| member.why);
        let reason = why.unwrap_or_else(|| "it disconnected".into());
        Error::PartyLost { party: format!("worker {worker} at {address}"), reason }
    }

    pub(crate) fn give(&self, plan: &str, home: Home) {
        lock(&self.homes).insert(plan.into(), home);
    }

    pub(crate) fn take_back(&self, plan: &str) {
        lock(&self.homes).remove(plan);
        self.posts.prune(&self.registry);
    }

    /// Refuses workers for a reason, so that they join another server; workers that have already joined are refused
    /// too. Without a reason workers are accepted.
    pub fn refuse(&self, reason: Option<String>) {
        *lock(&self.refusal) = reason;
    }

    /// Stops accepting workers.
    pub async fn close(&self) {
        self.end.cancel();
        let server = lock(&self.server).take();
        if let Some(server) = server {
            server.shutdown().await;
        }
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        self.end.cancel();
    }
}

/// Serves the calls of workers.
struct ServerCalls {
    refusal: Refusal,
    registry: Arc<Registry>,
    backlog: Arc<Backlog>,
    peers: Peers,
    homes: Homes,
    /// A permit for each relayed chunk.
    relays: Arc<Semaphore>,
    version: Version,
}

impl ServerCalls {
    /// Fails while the server accepts no workers.
    fn accepts(&self) -> Result<(), Fault> {
        match &*lock(&self.refusal) {
            Some(reason) => Err(Fault::Unreachable(reason.clone())),
            None => Ok(()),
        }
    }

    /// Registers a worker that the server reaches: orders for another one would fail.
    async fn join(&self, hello: &Hello, now: Instant) -> Result<Welcome, Fault> {
        let refused = |refused: Refused| Fault::Failed(refused.to_string());
        check_version(hello, &self.version).map_err(refused)?;
        let reached = self.peers.probe(&hello.address, REACH).await;
        let told = |reason| {
            let address = &hello.address;
            format!("the server cannot reach the worker at {address}, its `--advertise`: {reason}")
        };
        reached.map_err(|unreached| match unreached {
            // Only a new process has other certificates.
            Unreached::OtherName(reason) => Fault::Failed(told(reason)),
            Unreached::Silent(reason) => Fault::Unreachable(told(reason)),
        })?;
        // Meanwhile another server may have taken over.
        self.accepts()?;
        self.registry.join(hello, &self.version, now).map_err(refused)
    }

    /// Relays a chunk of a worker to another worker that cannot reach it. If the first worker has left, the chunk comes
    /// from the worker that took it over. The chunk is streamed: the server never holds all of it.
    async fn relay(&self, at: String, ticket: ChunkTicket) -> Result<Object, Fault> {
        let at = match self.registry.is_address(&at) {
            true => at,
            false => {
                let holder = self.backlog.holder(&ticket.plan, ticket.stage, ticket.number);
                holder.ok_or_else(|| Fault::NotFound(format!("a worker at {at}")))?
            }
        };
        let permit = tokio::time::timeout(ROOM, self.relays.clone().acquire_owned()).await;
        let Ok(Ok(permit)) = permit else {
            let reason = format!("the server already passes on {RELAYS_MAX} chunks");
            return Err(Fault::Unreachable(reason));
        };
        let Object { bytes, messages } = self.peers.open(&at, written(&ticket), IDLE).await?;
        let messages = messages.map(move |message| {
            let _held = &permit;
            message
        });
        Ok(Object { bytes, messages: messages.boxed() })
    }
}

#[async_trait]
impl Service for ServerCalls {
    async fn action(&self, kind: &str, body: Bytes) -> Result<Answers, Fault> {
        let now = Instant::now();
        match kind {
            "ping" => Ok(one(&())),
            "join" => {
                self.accepts()?;
                let hello: Hello = read(&body)?;
                let joined = self.join(&hello, now).await;
                Ok(one(&joined.inspect_err(|fault| self.registry.refused(&hello, fault))?))
            }
            "beat" if self.accepts().is_err() => Ok(one(&Advice::Join)),
            "beat" => Ok(one(&self.registry.beat(&read::<Beat>(&body)?, now))),
            "over" => {
                self.accepts()?;
                let mut names: PlanNames = read(&body)?;
                self.backlog.over(&mut names.plans);
                Ok(one(&names))
            }
            "watch" => Ok(one(&self.registry.watch(read::<Watch>(&body)?, now))),
            "leave" => {
                let beat: Beat = read(&body)?;
                self.registry.leave(&beat);
                Ok(one(&Advice::Go))
            }
            kind => Err(Fault::Broken(format!("a server does not do `{kind}`"))),
        }
    }

    async fn object(&self, ticket: Bytes) -> Result<Object, Fault> {
        let mut ticket: ChunkTicket = read(&ticket)?;
        if let Some(at) = ticket.at.take() {
            return self.relay(at, ticket).await;
        }
        let ChunkTicket { plan, stage, number, output, at: _ } = ticket;
        let home = {
            let homes = lock(&self.homes);
            homes.get(&plan).cloned()
        };
        let home = home.ok_or_else(|| Fault::NotFound(format!("plan `{plan}`")))?;
        let give = move || home(stage, number, output);
        let given = when_memory_allows("the server has no memory for a chunk", give).await?;
        given.map(Object::whole).map_err(|error| Fault::NotFound(error.to_string()))
    }
}
