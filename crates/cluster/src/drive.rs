//! One plan on a cluster: from its placement to chunks of its results that are there.
//!
//! ```text
//!   what is there ─▶ recover: what is left ─▶ orders of those who are here ─▶ a round of them ─▶ what is there …
//! ```
//! A [`round`] ends when all of its orders did, when one of them cannot (a worker was lost, or something that it was to
//! fetch), or where workers who came can have a part. Then the next one begins from what is there.
//!
//! What a worker ran when it died is [suspect](suspects): it is told again as an order for itself, on a worker that has
//! no other one meanwhile, of this statement or another. So the statement is known that workers die of: it is poison. An
//! error of the user's own making ends it at once. Where no worker is left the plan waits for one, for a bounded time.

mod expect;
mod round;
mod suspects;

pub use expect::Expected;

use crate::net::Fault;
use crate::registry::State as Standing;
use crate::server::{Cluster, Home};
use crate::shelf::{IDLE, ticket};
use crate::wire::{Done, Forget, OrderMessage, PlanMessage, Said, THE_SERVER, There};
use crate::worker::{json, read};
use bytes::Bytes;
use futures::future::BoxFuture;
use futures::{FutureExt, StreamExt};
use round::{Death, Job, Stop};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use suspects::{Died, Suspects};
use tessera_exec::chunk::Chunk;
use tessera_exec::error::{Error, Told};
use tessera_exec::order::{Found, OPERANDS_MAX, Order, Shelf, Shelved, Totals, object_bytes_max};
use tessera_exec::task::Sources;
use tessera_planner::error::Class;
use tessera_planner::place::{Placement, Rates, Share, Strategy, Worker as Place, place};
use tessera_planner::plan::{StageId, Task};
use tessera_planner::recover::{Bitmap, Recovery, recover, wanted};
use tessera_planner::tile::{Tiling, for_each_index};

/// Rounds that may fail for other reasons than a worker's death, one after the other.
const FAILURES_MAX: u32 = 4;
/// Workers that a chunk is asked of, one after the other.
const HOLDERS_MAX: u32 = 7;
/// How long a call to a worker may take until its first answer.
const CALL: Duration = Duration::from_secs(30);
/// How long a worker has to show that it is there, when its connection broke.
const PROBE: Duration = Duration::from_millis(1500);
/// What a chunk took from one worker's shelf into another's memory on one machine, with checksums and copies, and what a
/// step takes beside its work.
const RATES: Rates = Rates {
    bytes_per_s: 500_000_000,
    thread_bytes_per_s: 1_500_000_000,
    latency_us: 200,
    round_us: 2_000,
};
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
    /// The operands that results are made of.
    wanted: Has,
    /// One round at a time.
    state: tokio::sync::Mutex<State>,
    there: Mutex<BTreeMap<u32, Has>>,
    /// What was there and was lost, until it is told again.
    lost: Mutex<Has>,
    totals: Mutex<Totals>,
    /// What orders that run did until now, by their number.
    running: Mutex<BTreeMap<u64, Vec<(u64, f64)>>>,
    next_order: AtomicU64,
    io: Option<tokio::runtime::Handle>,
}

#[derive(Default)]
struct State {
    /// Numbers of the workers that were placed on, and where everything goes.
    placed: Option<(Vec<u32>, Placement)>,
    /// Workers that know the plan.
    informed: BTreeSet<u32>,
    /// Workers that may know it.
    told: BTreeSet<u32>,
    /// What workers ran when they died.
    suspects: Suspects,
    failures: u32,
    /// Workers that were here in the last round.
    had: usize,
}

impl std::fmt::Debug for Drive {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Drive").field("id", &self.id).finish_non_exhaustive()
    }
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
        let counts: Vec<u64> = stages.iter().map(|s| s.grid.count()).collect();
        let totals = Totals { stages: vec![(0, 0.0); stages.len()], ..Totals::default() };
        Ok(Some(Arc::new(Drive {
            cluster: cluster.clone(),
            id,
            tiling: tiling.clone(),
            threads,
            message,
            wanted: wanted(&**tiling, &counts),
            state: tokio::sync::Mutex::default(),
            there: Mutex::new(BTreeMap::from([(SERVER, has)])),
            lost: Mutex::new(vec![Bitmap::default(); stages.len()]),
            totals: Mutex::new(totals),
            running: Mutex::default(),
            next_order: AtomicU64::new(0),
            io: tokio::runtime::Handle::try_current().ok(),
        })))
    }

    /// Has the chunks of all results made, and says how `whole` is run with them: this plan, or one that begins with its
    /// stages.
    ///
    /// # Errors
    /// That of an operand; [`Error::PartyLost`] if workers are lost again and again, or there is none.
    pub async fn prepare(self: &Arc<Self>, whole: &Arc<Tiling>) -> Result<Shelved, Error> {
        self.run().await?;
        // What the server has itself it does not load from anybody.
        let mut available = self.available();
        if let Some(own) = self.there().get(&SERVER) {
            let mine = available.iter_mut().zip(own).filter(|(_, own)| !own.is_empty());
            mine.for_each(|(all, _)| *all = Bitmap::default());
        }
        available.resize(whole.plan().stages.len(), Bitmap::default());
        let recovery = left(whole, available).await?;
        let shelf = Arc::new(Loading { drive: self.clone(), fetched: Arc::default() });
        Ok(Shelved { shelf, recovery })
    }

    /// What workers did until now.
    pub fn totals(&self) -> Totals {
        let mut totals = self.totals.lock().unwrap_or_else(PoisonError::into_inner).clone();
        for ran in self.running().values() {
            add(&mut totals.stages, ran);
        }
        totals
    }

    fn running(&self) -> MutexGuard<'_, BTreeMap<u64, Vec<(u64, f64)>>> {
        self.running.lock().unwrap_or_else(PoisonError::into_inner)
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
        let mut lost = self.lost.lock().unwrap_or_else(PoisonError::into_inner);
        there.retain(|worker, has| {
            let is_here = *worker == SERVER || registry.is_here(*worker);
            if !is_here {
                lost.iter_mut().zip(has).for_each(|(lost, has)| lost.extend(has));
            }
            is_here
        });
        self.available_of(&there)
    }

    fn available_of(&self, there: &BTreeMap<u32, Has>) -> Has {
        let mut all = vec![Bitmap::default(); self.tiling.plan().stages.len()];
        for has in there.values() {
            all.iter_mut().zip(has).for_each(|(all, has)| all.extend(has));
        }
        all
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
        let end = self.rounds(&mut state).await;
        let posts = self.cluster.posts();
        state.suspects.closed().into_iter().for_each(|worker| posts.acquit(worker, &self.id));
        state.suspects.open().for_each(|worker| posts.close(worker));
        end
    }

    async fn rounds(&self, state: &mut State) -> Result<(), Error> {
        loop {
            let available = self.available();
            if self.is_done(&available) {
                return Ok(());
            }
            let members = self.members(state.had).await?;
            state.had = members.len();
            let recovery = left(&self.tiling, available).await?;
            let here: BTreeSet<u32> = members.keys().copied().collect();
            let jobs = self.jobs(state, &members, &recovery)?;
            state.informed.retain(|w| here.contains(w));
            match self.round(state, &members, &jobs).await {
                Ok(()) => state.failures = 0,
                Err(Stop::Over(error)) => return Err(error),
                Err(Stop::Died(deaths)) => self.died(state, deaths, &members).await?,
                Err(Stop::Failed(error)) => {
                    // What one worker could not fetch from another one is what the server has not seen yet.
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

    /// Workers died while they ran orders.
    async fn died(
        &self,
        state: &mut State,
        deaths: Vec<Death>,
        members: &BTreeMap<u32, Place>,
    ) -> Result<(), Error> {
        if deaths.iter().any(|death| death.alone) {
            // Those who ran nothing of it may have died too, and nobody saw it.
            self.missing(members, "another worker died").await;
        }
        let registry = self.cluster.registry();
        let (dead_after, now) = (registry.limits().dead_after, Instant::now());
        let moments = deaths.iter().map(|death| {
            let member = registry.member(death.worker);
            member.and_then(|m| m.ended).unwrap_or(now)
        });
        let moments: Vec<Instant> = moments.collect();
        let others_live = moments.iter().min().is_some_and(|first| registry.has_since(*first));
        let mut counted: BTreeSet<u32> = BTreeSet::new();
        for (death, at) in deaths.into_iter().zip(moments) {
            let member = registry.member(death.worker);
            let has_left = member.as_ref().is_some_and(|m| m.state == Standing::Left);
            // Who left, or was told to start again, did not die of the statement.
            if !has_left {
                let is_silent = member.as_ref().is_none_or(|m| m.heard.elapsed() > dead_after);
                let died = Died {
                    worker: death.worker,
                    at,
                    joined: member.map_or(at, |m| m.joined),
                    is_crash: death.alone || !is_silent,
                    is_single: death.alone && others_live,
                };
                // Two workers that die at the same moment are seen to be gone within this time.
                state.suspects.died(died, &death.ran, dead_after);
            }
            if !counted.insert(death.worker) {
                continue;
            }
            self.count(|t| t.lost += 1);
            let what = "it was lost; the others make what it had".into();
            registry.note("recovering", Some(death.worker), Some(&self.id), what);
        }
        self.judge(state)
    }

    /// Ends a statement that is known to have killed workers.
    fn judge(&self, state: &mut State) -> Result<(), Error> {
        let (posts, registry) = (self.cluster.posts(), self.cluster.registry());
        state.suspects.closed().into_iter().for_each(|worker| posts.acquit(worker, &self.id));
        let is_to_blame = |worker| posts.is_to_blame(worker, &self.id);
        let Some(deaths) = state.suspects.poison(is_to_blame) else { return Ok(()) };
        let detail = format!("{deaths} workers died while they worked for it");
        registry.note("poison", None, Some(&self.id), detail.clone());
        Err(Error::Told(Box::new(Told {
            code: "poison".into(),
            class: Class::Limit,
            message: format!("{detail}; it is not tried again"),
            hint: Some("see why they died (memory?): `GET /v1/cluster` has the events".into()),
            may_fit: false,
        })))
    }

    /// The workers that get orders, with where they are.
    fn here(&self) -> BTreeMap<u32, Place> {
        let member = |m: crate::registry::Member| {
            let worker = Place {
                name: m.hello.address,
                threads: m.hello.threads,
                memory_bytes: m.hello.memory_bytes,
                ..Place::default()
            };
            (m.number, worker)
        };
        self.cluster.registry().alive().into_iter().map(member).collect()
    }

    /// The same; if there is none, waits for as many as there were.
    async fn members(&self, had: usize) -> Result<BTreeMap<u32, Place>, Error> {
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

    /// What each worker is told to get what is left. Workers that were placed on keep what they have; where others came,
    /// all share what is left, and if none of them is here any more, everything is placed anew.
    fn jobs(
        &self,
        state: &mut State,
        members: &BTreeMap<u32, Place>,
        recovery: &Recovery,
    ) -> Result<Vec<Job>, Error> {
        let tiling = &*self.tiling;
        let runs = |stage: StageId, number: u64| {
            self.wanted[stage.0 as usize].contains(number) && recovery.runs(stage, number)
        };
        let is_first = self.placed(state, members, recovery, &runs)?;
        state.suspects.retain(runs);
        let Some((numbers, placement)) = &state.placed else { return Ok(Vec::new()) };
        let mut jobs: Vec<Job> = Vec::new();
        let mut places: BTreeMap<(u32, u32), Vec<usize>> = BTreeMap::new();
        let mut made = self.available();
        for order in placement.orders(tiling)? {
            // What may have killed a worker, and the rest.
            let mut parts = [(true, Vec::new()), (false, Vec::new())];
            for share in &order.run {
                let mut told = [Bitmap::default(), Bitmap::default()];
                each(tiling, share, &mut |number| {
                    if runs(share.stage, number) {
                        let is_suspect = state.suspects.has(share.stage, number);
                        told[usize::from(!is_suspect)].insert(number);
                    }
                });
                for ((_, run), numbers) in parts.iter_mut().zip(told) {
                    if !numbers.is_empty() {
                        run.push((share.stage, numbers));
                    }
                }
            }
            let held = order.hold.iter().map(|share| {
                let mut numbers = Bitmap::default();
                each(tiling, share, &mut |number| {
                    numbers.insert(number);
                });
                (share.stage, numbers)
            });
            let hold: Vec<(StageId, Bitmap)> = held.collect();
            let before = order.after.iter().filter_map(|key| places.get(key)).flatten().copied();
            let mut after: Vec<usize> = before.collect();
            let own = places.entry((order.step, order.worker)).or_default();
            for (alone, run) in parts {
                if run.is_empty() {
                    continue;
                }
                let alone = alone || self.makes_suspects(state, &run, &made)?;
                for (stage, numbers) in &run {
                    made[stage.0 as usize].extend(numbers);
                }
                let message = OrderMessage {
                    plan: self.id.clone(),
                    run,
                    hold: hold.clone(),
                    there: Vec::new(),
                    threads: self.threads,
                };
                let worker = numbers[order.worker as usize];
                own.push(jobs.len());
                jobs.push(Job { step: order.step, worker, after: after.clone(), message, alone });
                after.push(jobs.len() - 1);
            }
        }
        let mut lost = self.lost.lock().unwrap_or_else(PoisonError::into_inner);
        let again = (0..)
            .map(StageId)
            .zip(lost.iter())
            .map(|(stage, lost)| lost.iter().filter(|number| runs(stage, *number)).count() as u64);
        let again: u64 = again.sum();
        lost.iter_mut().for_each(|lost| *lost = Bitmap::default());
        self.count(|t| t.again += again);
        if is_first {
            let moved = self.moved(&jobs)?;
            let workers: BTreeSet<u32> = jobs.iter().map(|j| j.worker).collect();
            self.count(|t| (t.bytes_expected, t.workers) = (moved, workers.len() as u64));
        }
        Ok(jobs)
    }

    /// True if one of the operands that are told makes a suspect, for itself.
    fn makes_suspects(
        &self,
        state: &State,
        run: &[(StageId, Bitmap)],
        made: &Has,
    ) -> Result<bool, Error> {
        if state.suspects.is_empty() {
            return Ok(false);
        }
        let order = Order::new(self.tiling.clone(), run.to_vec(), made)?;
        let mut ran = (0..).map(StageId).zip(order.runs());
        Ok(ran.any(|(stage, ran)| ran.iter().any(|number| state.suspects.has(stage, number))))
    }

    /// What an order ran: what it was told, and what that reads and was not there.
    fn ran(&self, message: &OrderMessage) -> Result<Vec<(StageId, Bitmap)>, Error> {
        let mut there = vec![Bitmap::default(); self.tiling.plan().stages.len()];
        for has in &message.there {
            there[has.stage.0 as usize].extend(&has.operands);
        }
        let order = Order::new(self.tiling.clone(), message.run.clone(), &there)?;
        let ran = (0..).map(StageId).zip(order.runs()).filter(|(_, ran)| !ran.is_empty());
        Ok(ran.map(|(stage, ran)| (stage, ran.clone())).collect())
    }

    /// Brings the placement up to who is here; true if it is the first one.
    fn placed(
        &self,
        state: &mut State,
        members: &BTreeMap<u32, Place>,
        recovery: &Recovery,
        runs: &dyn Fn(StageId, u64) -> bool,
    ) -> Result<bool, Error> {
        let tiling = &*self.tiling;
        if let Some((numbers, placement)) = &mut state.placed {
            let is_here = |number: &u32| members.contains_key(number);
            let came: Vec<u32> = members.keys().filter(|n| !numbers.contains(n)).copied().collect();
            if !numbers.iter().any(is_here) {
                state.placed = None;
            } else if !came.is_empty() {
                numbers.extend(came);
                let worker = |number| members.get(number).cloned().unwrap_or_default();
                let workers = numbers.iter().map(worker).collect();
                *placement = placement.among(tiling, workers, runs)?;
                return Ok(false);
            } else {
                let gone = (0..).zip(numbers.iter()).filter(|(w, number)| {
                    !is_here(number) && placement.workers[*w as usize].threads > 0
                });
                let gone: Vec<u32> = gone.map(|(w, _)| w).collect();
                if !gone.is_empty() {
                    *placement = placement.without(tiling, &gone, Some(recovery))?;
                }
                return Ok(false);
            }
        }
        let (numbers, workers): (Vec<u32>, Vec<Place>) =
            members.iter().map(|(n, w)| (*n, w.clone())).unzip();
        let mut placement = place(tiling, &workers, &RATES, Strategy::Split)?;
        let stages = tiling.plan().stages.iter().zip(&self.wanted);
        if stages.clone().any(|(s, wanted)| wanted.len() < s.grid.count()) {
            // All are to have as much of what is wanted.
            placement = placement.among(tiling, workers, runs)?;
        }
        let totals = self.totals();
        let is_first = state.placed.is_none() && (totals.lost, totals.orders) == (0, 0);
        state.placed = Some((numbers, placement));
        Ok(is_first)
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
            add(&mut t.stages, &done.stages);
            t.requests += done.requests;
            t.bytes_read += done.bytes_read;
            t.bytes_moved += done.bytes_moved;
            t.bytes_relayed += done.bytes_relayed;
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

    /// Has one order run, when the worker is free for it.
    async fn order(
        &self,
        worker: u32,
        address: &str,
        message: &OrderMessage,
        alone: bool,
    ) -> Result<Done, Stop> {
        let body = json(message)
            .map_err(|e| Stop::Over(Error::Broken { what: format!("an order: {e}") }))?;
        let posts = self.cluster.posts();
        let _stay = posts.enter(worker, &self.id, alone).await;
        if !self.cluster.registry().is_here(worker) {
            // It died of something else.
            return Err(Stop::Failed(self.lost_error(worker, address)));
        }
        let order = Counted { drive: self, number: self.next_order.fetch_add(1, Relaxed) };
        let heard = |answer: &Bytes| {
            if let Ok(Said::Runs(stages)) = read(answer) {
                self.running().insert(order.number, stages);
            }
        };
        let asked = self.ask(worker, address, "order", body, &heard).await;
        let last = match asked {
            Err(Stop::Died(_)) => {
                posts.died(worker);
                let ran = self.ran(message).map_err(Stop::Over)?;
                return Err(Stop::Died(vec![Death { worker, alone, ran }]));
            }
            asked => asked?,
        };
        let said: Said = read(&last).map_err(|e| self.failed(address, e))?;
        let Said::Done(mut done) = said else {
            let reason = "an order had no end".into();
            return Err(Stop::Failed(Error::PartyLost { party: address.into(), reason }));
        };
        match done.error.take() {
            None => Ok(*done),
            Some(mut told) => {
                // What it has too little of is its own.
                if told.class == Class::Limit {
                    told.message = format!("{} (worker {worker}, {address})", told.message);
                }
                Err(of_told(told))
            }
        }
    }

    /// Asks a worker, and gives its last answer. One that is lost meanwhile is not waited for.
    async fn ask(
        &self,
        worker: u32,
        address: &str,
        kind: &str,
        body: Bytes,
        heard: &(dyn Fn(&Bytes) + Sync),
    ) -> Result<Bytes, Stop> {
        let registry = self.cluster.registry();
        let mut changes = registry.changes();
        let talk = async {
            let mut answers = self.cluster.peers().action(address, kind, body, CALL).await?;
            let mut last = Err(Fault::Unreachable("it ended without an answer".into()));
            while let Some(answer) = answers.next().await {
                let answer = answer?;
                heard(&answer);
                last = Ok(answer);
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
                        return Err(Stop::Died(Vec::new()));
                    }
                }
            }
        };
        match fault {
            Fault::Unreachable(reason) => {
                if self.is_gone(worker, address, &reason).await {
                    return Err(Stop::Died(Vec::new()));
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
    async fn missing(&self, members: &BTreeMap<u32, Place>, why: &str) -> bool {
        let here = members.iter().filter(|(worker, _)| self.cluster.registry().is_here(**worker));
        let asked = here
            .map(|(worker, place)| async move { self.is_gone(*worker, &place.name, why).await });
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
        for _ in 0..HOLDERS_MAX {
            let worker = {
                let there = self.there();
                let mut has = there.iter().filter(|(w, _)| **w != SERVER);
                let has_it = |has: &Has| {
                    has.get(stage.0 as usize).is_some_and(|operands| operands.contains(number))
                };
                has.find(|(_, has)| has_it(has)).map(|(w, _)| *w)
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
        let told = std::mem::take(&mut self.state.get_mut().told);
        let Some(io) = &self.io else { return };
        for worker in told {
            io.spawn(forget(self.cluster.clone(), worker, self.id.clone()));
        }
    }
}

/// What is left to do of a plan of which these chunks are available.
async fn left(tiling: &Arc<Tiling>, available: Has) -> Result<Recovery, Error> {
    let tiling = tiling.clone();
    let found = tokio::task::spawn_blocking(move || recover(&*tiling, &available));
    found.await.map_err(|e| Error::Broken { what: format!("a plan was lost: {e}") })
}

/// Has a worker forget a plan; it is told until it answers or is lost.
async fn forget(cluster: Arc<Cluster>, worker: u32, plan: String) {
    let mut pause = Duration::from_millis(100);
    let message = Forget { plan };
    while let Some(member) = cluster.registry().member(worker).filter(|m| m.state.is_here()) {
        let address = member.hello.address;
        let told: Result<(), Fault> =
            cluster.peers().call(&address, "forget", &message, CALL).await;
        let Err(fault) = told else { return };
        tracing::warn!(address, %fault, "a worker still has chunks of a statement that is over");
        tokio::time::sleep(pause).await;
        pause = (pause * 2).min(Duration::from_secs(2));
    }
}

/// Calls `f` with the number of each operand of a share.
fn each(tiling: &Tiling, share: &Share, f: &mut dyn FnMut(u64)) {
    let grid = &tiling.plan().stage(share.stage).grid;
    for operands in &share.operands {
        for_each_index(operands, &mut |index: &[u64]| f(grid.ravel(index)));
    }
}

/// Operands that ran and their seconds, for each stage.
fn add(all: &mut [(u64, f64)], more: &[(u64, f64)]) {
    for (all, more) in all.iter_mut().zip(more) {
        *all = (all.0 + more.0, all.1 + more.1);
    }
}

/// An order that runs.
struct Counted<'a> {
    drive: &'a Drive,
    number: u64,
}

impl Drop for Counted<'_> {
    fn drop(&mut self) {
        self.drive.running().remove(&self.number);
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
