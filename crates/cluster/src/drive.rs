//! One plan on a cluster: from its placement to chunks of its results that are there.
//!
//! ```text
//!   what is there ─▶ recover: what is left ─▶ orders of those who are here ─▶ a round of them ─▶ what is there …
//! ```
//! A round ends when all of its orders did, or when one of them cannot: a worker was lost, or something that it was to
//! fetch. Then the next one begins from what is there. A statement during which three workers died is poison; an error of
//! the user's own making ends it at once.

use crate::net::Fault;
use crate::server::{Cluster, Home};
use crate::shelf::{IDLE, ticket};
use crate::wire::{Done, Forget, OrderMessage, PlanMessage, Said, THE_SERVER, There};
use crate::worker::{json, read};
use bytes::Bytes;
use futures::future::BoxFuture;
use futures::stream::FuturesUnordered;
use futures::{FutureExt, StreamExt};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use tessera_exec::chunk::Chunk;
use tessera_exec::error::{Error, Told};
use tessera_exec::order::{Found, OPERANDS_MAX, Shelf, Shelved, Totals, object_bytes_max};
use tessera_exec::task::Sources;
use tessera_planner::error::Class;
use tessera_planner::place::{Placement, Rates, Strategy, WorkOrder, Worker as Place, place};
use tessera_planner::plan::{StageId, Task};
use tessera_planner::recover::{Bitmap, Recovery, recover};
use tessera_planner::region::Region;
use tessera_planner::tile::{Tiling, for_each_index};

/// Workers that may die while they work for one statement.
const DEATHS_MAX: u32 = 3;
/// Rounds that may fail for other reasons, one after the other.
const FAILURES_MAX: u32 = 4;
/// How long a statement waits for a worker if there is none.
const NOBODY: Duration = Duration::from_secs(30);
/// How long a call to a worker may take until its first answer.
const CALL: Duration = Duration::from_secs(30);
/// How long a worker has to show that it is there, when its connection broke.
const PROBE: Duration = Duration::from_millis(1500);
/// Ten gigabits a second, and what a step takes beside its work.
const RATES: Rates = Rates { bytes_per_s: 1_250_000_000, latency_us: 200, round_us: 2_000 };
/// The number of the server itself among those who have chunks.
const SERVER: u32 = 0;

/// The operands whose chunks a party has, by stage.
type Has = Vec<Bitmap>;

/// A plan that a cluster works at.
pub struct Drive {
    cluster: Arc<Cluster>,
    id: String,
    tiling: Arc<Tiling>,
    threads: Option<usize>,
    /// The plan, as workers are told it.
    message: Bytes,
    /// One round at a time.
    state: tokio::sync::Mutex<State>,
    there: Mutex<BTreeMap<u32, Has>>,
    totals: Mutex<Totals>,
}

#[derive(Default)]
struct State {
    /// Numbers of the workers that were placed on, and where everything goes.
    placed: Option<(Vec<u32>, Placement)>,
    /// Workers that know the plan.
    informed: BTreeSet<u32>,
    deaths: u32,
    failures: u32,
}

impl std::fmt::Debug for Drive {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Drive").field("id", &self.id).finish_non_exhaustive()
    }
}

/// Why a round ended early.
enum Stop {
    /// Workers died.
    Died(BTreeSet<u32>),
    /// Something that may work next time.
    Failed(Error),
    /// Something that will not.
    Over(Error),
}

impl Drive {
    /// Makes a plan ready to be worked at; `None` if it cannot be sent: a source that only this process can open, or
    /// more operands than an order may have.
    /// `home` gives chunks of arrays that are in this process' memory.
    ///
    /// # Errors
    /// A plan without a JSON form.
    pub fn new(
        cluster: &Arc<Cluster>,
        tiling: &Arc<Tiling>,
        sources: &Sources,
        threads: Option<usize>,
        home: Home,
    ) -> Result<Option<Arc<Self>>, Error> {
        let stages = &tiling.plan().stages;
        let operands = stages.iter().map(|s| s.grid.count());
        if operands.fold(0, u64::saturating_add) > OPERANDS_MAX {
            return Ok(None);
        }
        let (mut named, mut has) = (Vec::new(), vec![Bitmap::default(); stages.len()]);
        for (stage, has) in stages.iter().zip(&mut has) {
            let Task::Load { source, .. } = &stage.task else { continue };
            if source.is_resident() {
                *has = (0..stage.grid.count()).collect();
                continue;
            }
            let Some(place) = sources.place(source) else { return Ok(None) };
            if place.url.starts_with("memory:") {
                return Ok(None);
            }
            named.push((source.as_ref().clone(), place.as_ref().clone()));
        }
        let id = uuid::Uuid::new_v4().simple().to_string();
        let message = PlanMessage { id: id.clone(), plan: tiling.plan().clone(), sources: named };
        let message = json(&message).map_err(|e| Error::Broken { what: e.to_string() })?;
        cluster.give(&id, home);
        let totals = Totals { stages: vec![(0, 0.0); stages.len()], ..Totals::default() };
        Ok(Some(Arc::new(Drive {
            cluster: cluster.clone(),
            id,
            tiling: tiling.clone(),
            threads,
            message,
            state: tokio::sync::Mutex::default(),
            there: Mutex::new(BTreeMap::from([(SERVER, has)])),
            totals: Mutex::new(totals),
        })))
    }

    /// Has the chunks of all results made, and says how the plan is run with them.
    ///
    /// # Errors
    /// That of an operand; [`Error::PartyLost`] if workers are lost again and again, or there is none.
    pub async fn prepare(self: &Arc<Self>) -> Result<Shelved, Error> {
        self.run().await?;
        // What the server has itself it does not load from anybody.
        let mut available = self.available();
        if let Some(own) = self.there().get(&SERVER) {
            let mine = available.iter_mut().zip(own).filter(|(_, own)| !own.is_empty());
            mine.for_each(|(all, _)| *all = Bitmap::default());
        }
        let recovery = self.left(available).await?;
        let shelf = Arc::new(Loading { drive: self.clone(), fetched: Arc::default() });
        Ok(Shelved { shelf, recovery })
    }

    /// What workers did until now.
    pub fn totals(&self) -> Totals {
        self.totals.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn count(&self, f: impl FnOnce(&mut Totals)) {
        f(&mut self.totals.lock().unwrap_or_else(PoisonError::into_inner));
    }

    fn there(&self) -> MutexGuard<'_, BTreeMap<u32, Has>> {
        self.there.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The operands whose chunks are at somebody's who is here.
    fn available(&self) -> Has {
        let registry = self.cluster.registry();
        let mut there = self.there();
        there.retain(|worker, _| *worker == SERVER || registry.is_here(*worker));
        let mut all = vec![Bitmap::default(); self.tiling.plan().stages.len()];
        for has in there.values() {
            all.iter_mut().zip(has).for_each(|(all, has)| all.extend(has));
        }
        all
    }

    async fn left(&self, available: Has) -> Result<Recovery, Error> {
        let tiling = self.tiling.clone();
        let found = tokio::task::spawn_blocking(move || recover(&*tiling, &available));
        found.await.map_err(|e| Error::Broken { what: format!("a plan was lost: {e}") })
    }

    fn is_done(&self, available: &Has) -> bool {
        self.tiling.plan().results.iter().all(|of| {
            let stage = self.tiling.plan().stage(of.stage);
            let is_const = matches!(stage.task, Task::Const(_));
            is_const || available[of.stage.0 as usize].len() == stage.grid.count()
        })
    }

    /// Works until all results are there.
    async fn run(&self) -> Result<(), Error> {
        let mut state = self.state.lock().await;
        loop {
            let available = self.available();
            if self.is_done(&available) {
                return Ok(());
            }
            let members = self.members().await?;
            let recovery = self.left(available).await?;
            let here: BTreeSet<u32> = members.keys().copied().collect();
            let orders = self.orders(&mut state, &members, &recovery)?;
            state.informed.retain(|w| here.contains(w));
            match self.round(&mut state, &members, orders).await {
                Ok(()) => state.failures = 0,
                Err(Stop::Over(error)) => return Err(error),
                Err(Stop::Died(workers)) => {
                    // Who left, or was told to start again, did not die of the statement.
                    let registry = self.cluster.registry();
                    let left = |worker: &&u32| {
                        let member = registry.member(**worker);
                        member.is_some_and(|m| m.state == crate::registry::State::Left)
                    };
                    state.deaths += (workers.len() - workers.iter().filter(left).count()) as u32;
                    self.count(|t| t.lost += workers.len() as u64);
                    for worker in workers {
                        let what = "it was lost; the others make what it had".into();
                        let registry = self.cluster.registry();
                        registry.note("recovering", Some(worker), Some(&self.id), what);
                    }
                    if state.deaths >= DEATHS_MAX {
                        let deaths = state.deaths;
                        let detail = format!("{deaths} workers died while they worked for it");
                        let registry = self.cluster.registry();
                        registry.note("poison", None, Some(&self.id), detail.clone());
                        return Err(Error::Told(Box::new(Told {
                            code: "poison".into(),
                            class: Class::Limit,
                            message: format!("{detail}; it is not tried again"),
                            hint: Some(
                                "see why they died (memory?): `GET /v1/cluster` has the events"
                                    .into(),
                            ),
                            may_fit: false,
                        })));
                    }
                }
                Err(Stop::Failed(error)) => {
                    // What one worker could not fetch from another one is what the server has not seen yet.
                    if self.missing(&members).await {
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

    /// The workers that get orders, with where they are; waits if there is none.
    async fn members(&self) -> Result<BTreeMap<u32, Place>, Error> {
        let registry = self.cluster.registry();
        let mut changes = registry.changes();
        let until = Instant::now() + NOBODY;
        loop {
            changes.mark_unchanged();
            let alive = registry.alive();
            if !alive.is_empty() {
                let member = |m: crate::registry::Member| {
                    let worker = Place {
                        name: m.hello.address,
                        threads: m.hello.threads,
                        memory_bytes: m.hello.memory_bytes,
                        ..Place::default()
                    };
                    (m.number, worker)
                };
                return Ok(alive.into_iter().map(member).collect());
            }
            let wait = until.saturating_duration_since(Instant::now());
            if wait.is_zero() {
                let reason = format!("no worker is left, and none came for {} s", NOBODY.as_secs());
                return Err(Error::PartyLost { party: "the cluster".into(), reason });
            }
            // A sender that is gone cannot be: the registry is held here.
            let _ = tokio::time::timeout(wait, changes.changed()).await;
        }
    }

    /// What each worker is told to get what is left. Workers that were placed on keep what they have; if none of them is
    /// here any more, everything is placed anew.
    fn orders(
        &self,
        state: &mut State,
        members: &BTreeMap<u32, Place>,
        recovery: &Recovery,
    ) -> Result<Vec<(u32, WorkOrder, OrderMessage)>, Error> {
        let tiling = &*self.tiling;
        if let Some((numbers, placement)) = &mut state.placed {
            let lost: Vec<u32> = (0..)
                .zip(numbers.iter())
                .filter(|(_, n)| !members.contains_key(n))
                .map(|(w, _)| w)
                .collect();
            let is_gone = |w: u32| lost.contains(&w) || placement.workers[w as usize].threads == 0;
            if (0..numbers.len() as u32).all(is_gone) {
                state.placed = None;
            } else if !lost.is_empty() {
                *placement = placement.without(tiling, &lost, Some(recovery))?;
            }
        }
        let (numbers, placement) = match &state.placed {
            Some(placed) => placed,
            None => {
                let (numbers, workers): (Vec<u32>, Vec<Place>) =
                    members.iter().map(|(n, w)| (*n, w.clone())).unzip();
                let placement = place(tiling, &workers, &RATES, Strategy::Split)?;
                let moved = placement.model(tiling, &RATES).bytes_moved;
                self.count(|t| {
                    t.bytes_expected = moved;
                    t.workers = workers.len() as u64;
                });
                state.placed.insert((numbers, placement))
            }
        };
        let orders = placement.orders(tiling)?.into_iter().map(|order| {
            let run = order.run.iter().map(|share| {
                let grid = &tiling.plan().stage(share.stage).grid;
                let mut numbers = Bitmap::default();
                let mut add = |index: &[u64]| {
                    let number = grid.ravel(index);
                    if recovery.runs(share.stage, number) {
                        numbers.insert(number);
                    }
                };
                share.operands.iter().for_each(|b: &Region| for_each_index(b, &mut add));
                (share.stage, numbers)
            });
            let message = OrderMessage {
                plan: self.id.clone(),
                run: run.filter(|(_, numbers)| !numbers.is_empty()).collect(),
                hold: order.hold.clone(),
                there: Vec::new(),
                threads: self.threads,
            };
            (numbers[order.worker as usize], order, message)
        });
        let orders: Vec<_> = orders.filter(|(_, _, m)| !m.run.is_empty()).collect();
        if state.deaths > 0 {
            let told =
                orders.iter().flat_map(|(_, _, m)| &m.run).map(|(_, n)| n.len()).sum::<u64>();
            self.count(|t| t.again += told);
        }
        Ok(orders)
    }

    /// Has orders run, each when those are done that it reads.
    async fn round(
        &self,
        state: &mut State,
        members: &BTreeMap<u32, Place>,
        orders: Vec<(u32, WorkOrder, OrderMessage)>,
    ) -> Result<(), Stop> {
        for worker in orders.iter().map(|(w, _, _)| *w).collect::<BTreeSet<u32>>() {
            if state.informed.contains(&worker) {
                continue;
            }
            let address = &members[&worker].name;
            match self.ask(worker, address, "plan", self.message.clone()).await {
                Ok(_) => {}
                Err(Stop::Died(_)) => {
                    // It died of nothing that the statement did.
                    return Err(Stop::Failed(self.lost_error(worker, address)));
                }
                Err(stop) => return Err(stop),
            }
            state.informed.insert(worker);
        }
        let mut open: BTreeSet<(u32, u32)> =
            orders.iter().map(|(_, o, _)| (o.step, o.worker)).collect();
        let mut waiting = orders;
        let mut running = FuturesUnordered::new();
        let mut stop: Option<Stop> = None;
        loop {
            if stop.is_none() {
                let (ready, rest): (Vec<_>, Vec<_>) = waiting
                    .into_iter()
                    .partition(|(_, o, _)| o.after.iter().all(|before| !open.contains(before)));
                waiting = rest;
                for (worker, order, mut message) in ready {
                    message.there = self.all_there();
                    let address = members[&worker].name.clone();
                    running.push(async move {
                        let done = self.order(worker, &address, &message).await;
                        (worker, order, message, done)
                    });
                }
            }
            let Some((worker, order, message, done)) = running.next().await else {
                return match stop {
                    Some(stop) => Err(stop),
                    None if waiting.is_empty() => Ok(()),
                    None => Err(Stop::Over(Error::Broken {
                        what: format!("{} orders wait for each other", waiting.len()),
                    })),
                };
            };
            match done {
                Ok(done) => {
                    open.remove(&(order.step, order.worker));
                    self.finished(worker, &message, &done);
                }
                Err(Stop::Over(error)) => return Err(Stop::Over(error)),
                // A death counts, whatever else failed because of it.
                Err(Stop::Died(more)) => {
                    let mut all = match stop.take() {
                        Some(Stop::Died(all)) => all,
                        _ => BTreeSet::new(),
                    };
                    all.extend(more);
                    stop = Some(Stop::Died(all));
                }
                Err(Stop::Failed(error)) => {
                    if error.code() == "not_found" {
                        state.informed.remove(&worker);
                    }
                    stop = stop.or(Some(Stop::Failed(error)));
                }
            }
        }
    }

    fn finished(&self, worker: u32, message: &OrderMessage, done: &Done) {
        let stages = self.tiling.plan().stages.len();
        let mut there = self.there();
        let has = there.entry(worker).or_insert_with(|| vec![Bitmap::default(); stages]);
        for (stage, numbers) in &message.run {
            has[stage.0 as usize].extend(numbers);
        }
        drop(there);
        self.count(|t| {
            for (all, of) in t.stages.iter_mut().zip(&done.stages) {
                *all = (all.0 + of.0, all.1 + of.1);
            }
            t.requests += done.requests;
            t.bytes_read += done.bytes_read;
            t.bytes_moved += done.bytes_moved;
            let of = t.each.entry(worker).or_default();
            of.orders += 1;
            of.operands += done.stages.iter().map(|(operands, _)| operands).sum::<u64>();
            of.seconds += done.stages.iter().map(|(_, seconds)| seconds).sum::<f64>();
            of.peak_bytes = of.peak_bytes.max(done.peak_bytes);
            of.bytes_moved += done.bytes_moved;
            t.spills += done.spills;
            t.bytes_spilled += done.bytes_spilled;
            t.orders += 1;
        });
    }

    /// The chunks that are there, of those who are here.
    fn all_there(&self) -> Vec<There> {
        let registry = self.cluster.registry();
        let mut all = Vec::new();
        for (worker, has) in self.there().iter() {
            let address = match *worker {
                SERVER => Some(THE_SERVER.into()),
                worker => registry.member(worker).map(|m| m.hello.address),
            };
            let Some(address): Option<String> = address else { continue };
            let some = (0..).map(StageId).zip(has).filter(|(_, operands)| !operands.is_empty());
            all.extend(some.map(|(stage, operands)| There {
                stage,
                address: address.clone(),
                operands: operands.clone(),
            }));
        }
        all
    }

    /// Has one order run.
    async fn order(
        &self,
        worker: u32,
        address: &str,
        message: &OrderMessage,
    ) -> Result<Done, Stop> {
        let body = json(message)
            .map_err(|e| Stop::Over(Error::Broken { what: format!("an order: {e}") }))?;
        let last = self.ask(worker, address, "order", body).await?;
        let said: Said = read(&last).map_err(|e| self.failed(address, e))?;
        let Said::Done(mut done) = said else {
            let reason = "an order had no end".into();
            return Err(Stop::Failed(Error::PartyLost { party: address.into(), reason }));
        };
        match done.error.take() {
            None => Ok(*done),
            Some(told) => Err(of_told(told)),
        }
    }

    /// Asks a worker, and gives its last answer. One that is lost meanwhile is not waited for.
    async fn ask(
        &self,
        worker: u32,
        address: &str,
        kind: &str,
        body: Bytes,
    ) -> Result<Bytes, Stop> {
        let registry = self.cluster.registry();
        let mut changes = registry.changes();
        let talk = async {
            let mut answers = self.cluster.peers().action(address, kind, body, CALL).await?;
            let mut last = Err(Fault::Unreachable("it ended without an answer".into()));
            while let Some(answer) = answers.next().await {
                last = Ok(answer?);
            }
            last
        };
        tokio::pin!(talk);
        let fault = loop {
            tokio::select! {
                answer = &mut talk => match answer {
                    Ok(last) => return Ok(last),
                    Err(fault) => break fault,
                },
                _ = changes.changed() => {
                    if !registry.is_here(worker) {
                        return Err(Stop::Died(BTreeSet::from([worker])));
                    }
                }
            }
        };
        match fault {
            Fault::Unreachable(reason) => {
                if self.is_gone(worker, address, &reason).await {
                    return Err(Stop::Died(BTreeSet::from([worker])));
                }
                Err(Stop::Failed(Error::PartyLost { party: address.into(), reason }))
            }
            fault => Err(self.failed(address, fault)),
        }
    }

    fn failed(&self, address: &str, fault: Fault) -> Stop {
        match fault {
            Fault::Failed(words) => match serde_json::from_str::<Told>(&words) {
                Ok(told) => of_told(told),
                Err(_) => Stop::Over(Error::Broken { what: format!("{address} said: {words}") }),
            },
            // The worker has forgotten the plan: it joined again.
            Fault::NotFound(reason) => Stop::Failed(Error::Told(Box::new(Told {
                code: "not_found".into(),
                class: Class::Retry,
                message: format!("{address} does not know: {reason}"),
                hint: None,
                may_fit: false,
            }))),
            fault => {
                Stop::Over(Error::PartyLost { party: address.into(), reason: fault.to_string() })
            }
        }
    }

    fn lost_error(&self, worker: u32, address: &str) -> Error {
        let member = self.cluster.registry().member(worker);
        let reason = member.and_then(|m| m.why).unwrap_or_else(|| "it is gone".into());
        Error::PartyLost { party: format!("worker {worker} at {address}"), reason }
    }

    /// Asks all workers whether they are there; true if one is not.
    async fn missing(&self, members: &BTreeMap<u32, Place>) -> bool {
        let asked = members.iter().map(|(worker, place)| async move {
            self.is_gone(*worker, &place.name, "another worker did not reach it").await
        });
        let gone = futures::future::join_all(asked).await;
        let gone = gone.into_iter().filter(|gone| *gone).count() as u64;
        self.count(|t| t.lost += gone);
        gone > 0
    }

    /// Tells a worker that is dead from one whose connection broke.
    async fn is_gone(&self, worker: u32, address: &str, reason: &str) -> bool {
        let (registry, peers) = (self.cluster.registry(), self.cluster.peers());
        if !registry.is_here(worker) {
            return true;
        }
        if peers.answers(address, PROBE).await {
            return false;
        }
        peers.forget(address);
        registry.lost(worker, &format!("its connection broke: {reason}"));
        true
    }

    /// Brings a chunk from whoever has it.
    async fn fetch(&self, stage: StageId, number: u64, bytes: u64) -> Result<Option<Bytes>, Error> {
        for _ in 0..FAILURES_MAX + DEATHS_MAX {
            let worker = {
                let there = self.there();
                let mut has = there.iter().filter(|(w, _)| **w != SERVER);
                has.find(|(_, has)| has[stage.0 as usize].contains(number)).map(|(w, _)| *w)
            };
            let member = worker.and_then(|w| self.cluster.registry().member(w));
            if let Some(member) = member.filter(|m| m.state.is_here()) {
                let address = &member.hello.address;
                let ticket = ticket(&self.id, stage, number);
                let limit = object_bytes_max(bytes);
                match self.cluster.peers().object(address, ticket, limit, IDLE).await {
                    Ok(object) => return Ok(Some(object)),
                    Err(Fault::Unreachable(reason)) => {
                        self.is_gone(member.number, address, &reason).await;
                    }
                    Err(fault) => {
                        tracing::warn!(address, %fault, "a chunk is not where it was");
                        if let Some(has) = self.there().get_mut(&member.number) {
                            has[stage.0 as usize].remove(number);
                        }
                    }
                }
            } else if worker.is_none() && !self.is_result(stage) {
                return Ok(None);
            }
            // Whoever comes first has it made again; the others find it there.
            self.run().await?;
        }
        let party = format!("operand {number} of stage {}", stage.0);
        Err(Error::PartyLost { party, reason: "whoever had its chunks was lost each time".into() })
    }

    fn is_result(&self, stage: StageId) -> bool {
        self.tiling.plan().results.iter().any(|r| r.stage == stage)
    }
}

impl Drop for Drive {
    fn drop(&mut self) {
        self.cluster.take_back(&self.id);
        let informed = std::mem::take(&mut self.state.get_mut().informed);
        let (cluster, plan) = (self.cluster.clone(), self.id.clone());
        let Ok(io) = tokio::runtime::Handle::try_current() else { return };
        io.spawn(async move {
            for worker in informed {
                let Some(member) = cluster.registry().member(worker) else { continue };
                if !member.state.is_here() {
                    continue;
                }
                let (address, forget) = (member.hello.address, Forget { plan: plan.clone() });
                let told: Result<(), Fault> =
                    cluster.peers().call(&address, "forget", &forget, CALL).await;
                if let Err(fault) = told {
                    // It forgets all when it joins again; what is left of it is dead weight until then.
                    tracing::warn!(address, %fault, "a worker still has chunks of a statement that is over");
                }
            }
        });
    }
}

/// What becomes of a round in which an operand failed.
fn of_told(told: Told) -> Stop {
    let error = Error::Told(Box::new(told));
    match error.class() {
        Class::Retry => Stop::Failed(error),
        _ => Stop::Over(error),
    }
}

/// The results as the server loads them.
#[derive(Debug)]
struct Loading {
    drive: Arc<Drive>,
    fetched: Arc<AtomicU64>,
}

impl Shelf for Loading {
    fn fetch(
        &self,
        stage: StageId,
        number: u64,
        bytes: u64,
    ) -> BoxFuture<'static, Result<Option<Found>, Error>> {
        let (drive, fetched) = (self.drive.clone(), self.fetched.clone());
        async move {
            let object = drive.fetch(stage, number, bytes).await?;
            if let Some(object) = &object {
                fetched.fetch_add(object.len() as u64, Relaxed);
            }
            Ok(object.map(Found::Object))
        }
        .boxed()
    }

    fn made(&self, _: StageId, _: u64, _: &[Arc<Chunk>]) {}

    fn fetched_bytes(&self) -> u64 {
        self.fetched.load(Relaxed)
    }
}
