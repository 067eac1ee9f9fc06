//! One plan on a cluster: from its placement to the chunks of its results.
//!
//! ```text
//!   available chunks ─▶ recover: what is left ─▶ orders for the workers ─▶ a round of them ─▶ available chunks …
//! ```
//! A [`round`] ends when all of its orders are done, when an order fails (a worker was lost, or a chunk that it was to
//! fetch), or before a step in which workers that have joined can take part. The next round begins from the available
//! chunks.
//!
//! The operands that a worker ran when it died are [suspect](suspects). They run again in an order of their own, on a
//! worker that runs no other order at the same time, of this statement or another. So a statement that kills workers is
//! recognised: it is poison. A user error ends the statement at once. If no worker is left, the plan waits for one, for
//! a bounded time.

pub(crate) mod calls;
mod deaths;
mod expect;
mod fetch;
mod holders;
mod jobs;
mod leave;
mod output;
mod reuse;
mod round;
pub(crate) mod suspects;

pub use expect::Expected;
pub use reuse::Identity;

use crate::net::Fault;
use crate::server::{Cluster, Home};
use crate::wire::{OrderProgress, PlanMessage, PlanName, Reuse, STORAGE, THE_SERVER};
use bytes::Bytes;
use fetch::Loading;
use holders::{Holders, is_permanent};
use leave::Flights;
use output::Output;
use round::{Job, Stop};
use serde::Serialize;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::Ordering::Relaxed;
use std::sync::atomic::{AtomicU32, AtomicU64};
use std::sync::{Arc, Mutex, OnceLock, Weak};
use std::time::Duration;
use suspects::Suspects;
use tessera_exec::durable::Stored;
use tessera_exec::error::Error;
use tessera_exec::order::{OPERANDS_MAX, Shelved, Totals};
use tessera_exec::task::Sources;
use tessera_planner::cost::operand_s;
use tessera_planner::place::{Placement, Worker};
use tessera_planner::plan::{StageId, Task};
use tessera_planner::recover::{Bitmap, Reached, Recovery, reached, recover};
use tessera_planner::tile::Tiling;
use tessera_storage::lock;
use tessera_storage::sink::{SharedOutput, ZarrWriter};
use tessera_storage::source::is_in_memory;
use tokio_util::sync::{CancellationToken, DropGuard};

/// Rounds that may fail in a row for other reasons than a worker's death.
pub(crate) const FAILURES_MAX: u32 = 4;
/// Timeout for the first response of a call to a worker.
const CALL: Duration = Duration::from_secs(30);
/// The number of the server itself among the holders of chunks.
const SERVER: u32 = 0;
/// The number of the storage of durable chunks among them: no worker has it.
const DURABLE: u32 = u32::MAX;

/// The operands whose chunks a party has, by stage.
type Has = Vec<Bitmap>;

/// How a plan runs on a cluster.
#[derive(Debug)]
pub struct DriveOptions {
    /// Upper bound on the threads of each worker.
    pub threads: Option<usize>,
    /// Chunks that outlive workers and this process: they are not recomputed. Workers store the chunks that its policy
    /// selects.
    pub stored: Option<Stored>,
    /// The store that workers write the chunks of results to.
    pub output: Option<(Arc<ZarrWriter>, SharedOutput)>,
    /// The statement: chunks that workers retain of an earlier run of it are not recomputed.
    pub identity: Identity,
}

/// A plan that runs on a cluster.
pub struct Drive {
    this: Weak<Drive>,
    cluster: Arc<Cluster>,
    id: String,
    tiling: Arc<Tiling>,
    threads: Option<usize>,
    /// The plan, as workers get it.
    message: PlanMessage,
    identity: Identity,
    /// Held for a round: one at a time.
    state: tokio::sync::Mutex<RoundState>,
    holders: Mutex<Holders>,
    /// Workers that may know the plan.
    notified: Mutex<BTreeSet<u32>>,
    flights: Flights,
    /// Ends the task that looks for workers that leave.
    watched: OnceLock<DropGuard>,
    /// The message, encoded when the first worker gets it.
    encoded: Mutex<Option<Bytes>>,
    /// Chunks that outlive workers and this process.
    stored: Option<Arc<Stored>>,
    /// The store that workers write the chunks of results to.
    output: Option<Output>,
    /// Operands whose chunks workers may retain besides those in `there`.
    held: Mutex<BTreeMap<u32, Has>>,
    /// Requests to free unread chunks, the running one included.
    sweeps: AtomicU32,
    /// Operands whose chunks were lost, until they are assigned again.
    lost: Mutex<Has>,
    totals: Mutex<Totals>,
    /// For each stage, the operands that the round is to run, and the operands that had run before the round.
    round_runs: Mutex<Vec<(u64, u64)>>,
    running: Mutex<BTreeMap<u64, OrderProgress>>,
    next_order: AtomicU64,
    /// Bytes of the orders that were sent.
    order_bytes: AtomicU64,
    io: Option<tokio::runtime::Handle>,
}

#[derive(Default)]
struct RoundState {
    /// The workers of the placement, and the placement.
    placed: Option<(Vec<u32>, Placement)>,
    /// True if workers have to read the versions that the statement has read so far.
    is_bound: bool,
    /// Workers that were asked for chunks of earlier plans.
    asked: BTreeSet<u32>,
    informed: BTreeSet<u32>,
    /// True once workers have orders to write durable chunks.
    begun: bool,
    /// Operands that workers ran when they died.
    suspects: Suspects,
    failures: u32,
    /// Number of workers in the last round.
    had: usize,
    /// Results that were written when workers last had orders to write available ones.
    wrote: Option<u64>,
}

impl std::fmt::Debug for Drive {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Drive").field("id", &self.id).finish_non_exhaustive()
    }
}

impl Drive {
    /// Prepares a plan to run on the cluster. Returns `None` if the plan cannot be sent: it has a source that only this
    /// process can open, or more operands than an order may have. `home` returns chunks of arrays in the memory of this
    /// process.
    ///
    /// # Errors
    /// The plan or the locations of its sources cannot be encoded.
    pub fn new(
        cluster: &Arc<Cluster>,
        tiling: &Arc<Tiling>,
        sources: &Sources,
        options: DriveOptions,
        home: Home,
    ) -> Result<Option<Arc<Self>>, Error> {
        let stages = &tiling.plan().stages;
        let operands = stages.iter().map(|s| s.grid.count());
        if operands.fold(0, u64::saturating_add) > OPERANDS_MAX {
            return Ok(None);
        }
        let (mut named, mut own) = (Vec::new(), Vec::new());
        for (id, stage) in (0..).map(StageId).zip(stages) {
            let Task::Load { source, .. } = &stage.task else { continue };
            if source.is_resident() {
                let mut all = Bitmap::default();
                all.insert_range(0, stage.grid.count());
                own.push((id, all));
                continue;
            }
            let Some(location) = sources.location(source) else { return Ok(None) };
            if is_in_memory(&location.url) {
                return Ok(None);
            }
            named.push((source.as_ref().clone(), location.as_ref().clone()));
        }
        let id = uuid::Uuid::new_v4().simple().to_string();
        let DriveOptions { threads, stored, output, identity } = options;
        let (writer, shared) = output.unzip();
        let message = PlanMessage {
            id: id.clone(),
            plan: tiling.plan().clone(),
            sources: named,
            durable: stored.as_ref().map(|stored| stored.durable().shared()),
            reuse: Reuse {
                statement: identity.statement.clone(),
                lasting: match identity.shares {
                    true => reuse::lasting(tiling.plan(), sources),
                    false => Bitmap::default(),
                },
                versions: Vec::new(),
            },
            output: shared,
        };
        let broken = |e: Fault| Error::Broken { what: e.to_string() };
        let mut holders = Holders::new(stages.len());
        holders.add(SERVER, THE_SERVER, own).map_err(broken)?;
        cluster.give(&id, home);
        let totals = Totals { stages: vec![(0, 0.0); stages.len()], ..Totals::default() };
        let drive = Arc::new_cyclic(|this| Drive {
            this: this.clone(),
            sweeps: AtomicU32::new(0),
            held: Mutex::default(),
            identity,
            cluster: cluster.clone(),
            id: id.clone(),
            tiling: tiling.clone(),
            threads,
            message,
            state: tokio::sync::Mutex::default(),
            holders: Mutex::new(holders),
            notified: Mutex::default(),
            flights: Flights::default(),
            watched: OnceLock::new(),
            encoded: Mutex::default(),
            stored: stored.map(Arc::new),
            output: writer.map(|writer| Output::new(writer, tiling)),
            lost: Mutex::new(vec![Bitmap::default(); stages.len()]),
            totals: Mutex::new(totals),
            round_runs: Mutex::default(),
            running: Mutex::default(),
            next_order: AtomicU64::new(0),
            order_bytes: AtomicU64::new(0),
            io: tokio::runtime::Handle::try_current().ok(),
        });
        cluster.backlog().add(&id, &drive);
        Ok(Some(drive))
    }

    /// Computes the chunks of all results, and returns how `whole` runs with them. `whole` is this plan, or a plan that
    /// begins with its stages.
    ///
    /// # Errors
    /// Errors of an operand; [`Error::PartyLost`] if workers are lost again and again, or if no worker is left.
    pub async fn prepare(self: &Arc<Self>, whole: &Arc<Tiling>) -> Result<Shelved, Error> {
        let over = CancellationToken::new();
        if self.watched.set(over.clone().drop_guard()).is_ok() {
            let changes = self.cluster.registry().changes();
            tokio::spawn(leave::watch(Arc::downgrade(self), changes, over));
        }
        self.run().await?;
        self.loads_now();
        let mut available = self.for_server();
        let recovery = match Arc::ptr_eq(whole.plan(), self.tiling.plan()) {
            // The rest is an order, which counts readers itself.
            true if self.is_written() => Recovery::loading(available),
            true => Recovery::only(available),
            false => {
                available.resize(whole.plan().stages.len(), Bitmap::default());
                let whole = whole.clone();
                apart(move || recover(&*whole, &available)).await?
            }
        };
        let shelf = Arc::new(Loading { drive: self.clone(), fetched: Arc::default() });
        Ok(Shelved { shelf, recovery })
    }

    /// Progress of the workers so far.
    pub fn totals(&self) -> Totals {
        let mut totals = lock(&self.totals).clone();
        lock(&self.running).values().for_each(|progress| add(&mut totals, progress));
        totals
    }

    /// Bytes of the orders that were sent to workers so far.
    pub fn order_bytes(&self) -> u64 {
        self.order_bytes.load(Relaxed)
    }

    /// Operands that the workers have not run yet, and the approximate seconds of a thread for them.
    pub(crate) fn left(&self) -> (u64, f64) {
        let runs = lock(&self.round_runs).clone();
        let totals = self.totals();
        let stages = (0..).map(StageId).zip(runs.iter().zip(&totals.stages));
        stages.fold((0, 0.0), |(operands, all_s), (stage, ((runs, before), (ran, ran_s)))| {
            let left = runs.saturating_sub(ran.saturating_sub(*before));
            // An operand takes the mean time of those that ran, or the time that the planner expects.
            let each_s = match ran {
                0 => operand_s(&self.tiling, stage),
                ran => ran_s / *ran as f64,
            };
            (operands + left, all_s + each_s * left as f64)
        })
    }

    fn set_round_runs(&self, runs: &[u64]) {
        let before = self.totals().stages.into_iter().map(|(ran, _)| ran);
        let runs = runs.iter().copied().zip(before).collect();
        *lock(&self.round_runs) = runs;
    }

    fn count(&self, f: impl FnOnce(&mut Totals)) {
        f(&mut lock(&self.totals));
    }

    /// The address of a present worker that has the chunks of an operand.
    pub(crate) fn holder(&self, stage: StageId, number: u64) -> Option<String> {
        let mut holders = lock(&self.holders);
        let of = stage.0 as usize;
        let has_it = |has: &Has| has.get(of).is_some_and(|has| has.contains(number));
        let mut workers = holders.workers().filter(|(_, has)| has_it(has));
        workers.find_map(|(worker, _)| self.cluster.registry().address(worker))
    }

    /// The operands whose chunks a present party has.
    fn available(&self) -> Has {
        let registry = self.cluster.registry();
        let mut holders = lock(&self.holders);
        let mut lost = lock(&self.lost);
        let is_here = |worker| is_permanent(worker) || registry.is_here(worker);
        for has in holders.lose(is_here) {
            lost.iter_mut().zip(&has).for_each(|(lost, has)| lost.extend(has));
        }
        holders.all()
    }

    /// The same for the server, which does not load its own chunks from workers.
    fn for_server(&self) -> Has {
        let mut available = self.available();
        if let Some(own) = lock(&self.holders).of(SERVER) {
            let mine = available.iter_mut().zip(own).filter(|(_, own)| !own.is_empty());
            mine.for_each(|(all, _)| *all = Bitmap::default());
        }
        available
    }

    /// The operands that have to run for the results that are not yet written, and the available chunks that they load.
    async fn rest(&self, available: Has) -> Result<Reached, Error> {
        let (tiling, results) = (self.tiling.clone(), self.unwritten());
        apart(move || reached(&tiling, &results, &[&available])).await
    }

    /// The operands of the results that are not written.
    fn unwritten(&self) -> Vec<(StageId, Bitmap)> {
        let mut results: BTreeMap<StageId, Bitmap> = BTreeMap::new();
        for of in &self.tiling.plan().results {
            let all = results.entry(of.stage).or_default();
            all.insert_range(0, self.tiling.plan().stage(of.stage).grid.count());
        }
        self.remove_written(&mut results);
        results.into_iter().collect()
    }

    fn is_done(&self, available: &Has) -> bool {
        self.tiling.plan().results.iter().all(|of| {
            let stage = self.tiling.plan().stage(of.stage);
            let is_const = matches!(stage.task, Task::Const(_));
            let has = &available[of.stage.0 as usize];
            is_const || self.has_result(of.stage, has) == stage.grid.count()
        })
    }

    /// Runs rounds until all results are available.
    async fn run(&self) -> Result<(), Error> {
        let mut state = self.state.lock().await;
        let end = self.rounds(&mut state).await;
        self.set_round_runs(&[]);
        let posts = self.cluster.posts();
        posts.acquit(state.suspects.closed(), &self.id);
        state.suspects.open().for_each(|worker| posts.close(worker));
        end
    }

    async fn rounds(&self, state: &mut RoundState) -> Result<(), Error> {
        // Stored chunks come from an earlier run and, after a failure, from the lost workers.
        let mut looks =
            state.had == 0 && self.stored.as_ref().is_some_and(|s| s.durable().ran_before());
        loop {
            if looks {
                self.find_stored().await?;
            }
            let Some((members, jobs)) = self.next_jobs(state).await? else { return Ok(()) };
            let here: BTreeSet<u32> = members.keys().copied().collect();
            state.informed.retain(|w| here.contains(w));
            let end = self.round(state, &members, &jobs).await;
            looks = end.is_err();
            match end {
                Ok(()) => state.failures = 0,
                Err(Stop::Over(error)) => return Err(error),
                Err(Stop::Died(deaths)) => self.died(state, deaths, &members).await?,
                Err(Stop::Failed(error)) => {
                    // If a worker could not fetch from another one, the server may not have noticed that loss yet.
                    if self.missing(&members, "another worker did not reach it").await {
                        continue;
                    }
                    state.failures += 1;
                    if state.failures >= FAILURES_MAX {
                        return Err(error);
                    }
                    tracing::warn!(plan = self.id, %error, "a round of orders is tried again");
                    tokio::time::sleep(Duration::from_millis(50 << state.failures)).await;
                }
            }
        }
    }

    /// The workers and the jobs of the next round; `None` if all results are available or written.
    async fn next_jobs(
        &self,
        state: &mut RoundState,
    ) -> Result<Option<(BTreeMap<u32, Worker>, Vec<Job>)>, Error> {
        if self.is_done(&self.available()) {
            return Ok(self.last_jobs(state));
        }
        let members = self.members(state.had).await?;
        state.had = members.len();
        self.find_retained(state, &members).await;
        let available = self.available();
        if self.is_done(&available) {
            return Ok(self.last_jobs(state));
        }
        let left = self.rest(available).await?.runs;
        self.set_round_runs(&left.iter().map(Bitmap::len).collect::<Vec<u64>>());
        let jobs = self.jobs(state, &members, &left)?;
        Ok(Some((members, jobs)))
    }

    /// The workers and the jobs of a round that writes available results; `None` if the server takes the results.
    fn last_jobs(&self, state: &mut RoundState) -> Option<(BTreeMap<u32, Worker>, Vec<Job>)> {
        self.set_round_runs(&[]);
        self.sweep();
        let members = self.here();
        let jobs = self.writing_jobs(state, &members);
        (!jobs.is_empty()).then_some((members, jobs))
    }

    /// Looks up the durable chunks.
    async fn find_stored(&self) -> Result<(), Error> {
        let Some(stored) = &self.stored else { return Ok(()) };
        let found = stored.find(&*self.tiling).await;
        let found = (0..).map(StageId).zip(found).filter(|(_, found)| !found.is_empty());
        let mut holders = lock(&self.holders);
        holders.clear(DURABLE);
        let added = holders.add(DURABLE, STORAGE, found.collect());
        added.map_err(|e| Error::Broken { what: e.to_string() })
    }

    /// Lets workers write durable chunks once the statement is to run again after a failure.
    fn begin(&self, state: &mut RoundState) {
        let is_open = self.stored.as_ref().is_some_and(|stored| stored.durable().is_open());
        let Some(io) = self.io.as_ref().filter(|_| is_open && !state.begun) else { return };
        state.begun = true;
        for worker in &state.informed {
            let member = self.cluster.registry().member(*worker);
            let Some(address) = member.map(|m| m.hello.address) else { continue };
            let (cluster, plan) = (self.cluster.clone(), PlanName { plan: self.id.clone() });
            io.spawn(async move {
                let begun: Result<(), Fault> =
                    cluster.peers().call(&address, "begin", &plan, CALL).await;
                // Its next order says so too.
                if let Err(fault) = begun {
                    tracing::warn!(address, %fault, "a worker does not store chunks yet");
                }
            });
        }
    }

    /// The workers that get orders, with their addresses and loads.
    fn here(&self) -> BTreeMap<u32, Worker> {
        let posts = self.cluster.posts();
        let member = |m: crate::registry::Member| {
            let worker = Worker {
                load: load(posts.orders(m.number), m.load.used_bytes, m.hello.memory_bytes),
                name: m.hello.address,
                threads: m.hello.threads,
                memory_bytes: m.hello.memory_bytes,
            };
            (m.number, worker)
        };
        self.cluster.registry().alive().into_iter().map(member).collect()
    }

    /// Like [`Drive::here`]; if no worker is left, waits for as many as there were.
    async fn members(&self, had: usize) -> Result<BTreeMap<u32, Worker>, Error> {
        let registry = self.cluster.registry();
        let here = self.here();
        if !here.is_empty() {
            return Ok(here);
        }
        let most = registry.limits().wait;
        let what = format!(
            "no worker is left; the statement waits up to {} s for workers",
            most.as_secs()
        );
        registry.note("waiting", None, Some(&self.id), what);
        self.cluster.gather(had.max(1), most).await;
        let here = self.here();
        if here.is_empty() {
            let reason = format!("no worker is left, and none came for {} s", most.as_secs());
            return Err(Error::PartyLost { party: "the cluster".into(), reason });
        }
        Ok(here)
    }
}

impl Drop for Drive {
    fn drop(&mut self) {
        self.cluster.take_back(&self.id);
        let notified = std::mem::take(&mut *lock(&self.notified));
        let Some(io) = &self.io else { return };
        for worker in notified {
            // Chunks are removed when no worker writes any more.
            let writes = self.stored.as_ref().map(|stored| stored.durable().other());
            let writes = (writes, self.output.as_ref().map(Output::other));
            let name = PlanName { plan: self.id.clone() };
            let forgotten = forget(self.cluster.clone(), worker, ("forget", "chunks"), name);
            io.spawn(async move {
                forgotten.await;
                drop(writes);
            });
        }
    }
}

/// Computes something that may take long apart from the threads of the network.
async fn apart<T: Send + 'static>(f: impl FnOnce() -> T + Send + 'static) -> Result<T, Error> {
    let found = tokio::task::spawn_blocking(f).await;
    found.map_err(|e| Error::Broken { what: format!("a plan was lost: {e}") })
}

/// Sends a worker the request `kind` to forget the `what` of a statement, until it responds or is lost.
pub(crate) async fn forget(
    cluster: Arc<Cluster>,
    worker: u32,
    (kind, what): (&'static str, &'static str),
    message: impl Serialize + Send + Sync,
) {
    let mut pause = Duration::from_millis(100);
    while let Some(address) = cluster.registry().address(worker) {
        let result: Result<(), Fault> = cluster.peers().call(&address, kind, &message, CALL).await;
        let Err(fault) = result else { return };
        tracing::warn!(address, %fault, "a worker still has {what} of a statement that is over");
        tokio::time::sleep(pause).await;
        pause = (pause * 2).min(Duration::from_secs(2));
    }
}

/// The load of a worker in steps that make a difference: an order that it runs, or a quarter of its memory.
fn load(orders: u32, used_bytes: u64, memory_bytes: u64) -> u32 {
    let quarters = u128::from(used_bytes) * 4 / u128::from(memory_bytes.max(1));
    orders.saturating_add(quarters.min(4) as u32)
}

/// Adds the progress of an order.
fn add(totals: &mut Totals, progress: &OrderProgress) {
    for (all, more) in totals.stages.iter_mut().zip(&progress.stages) {
        *all = (all.0 + more.0, all.1 + more.1);
    }
    totals.states.add(&progress.states);
}
