//! A round: orders with dependencies, each on its worker.
//!
//! ```text
//!   wait ─▶ run ─▶ done                 its inputs are done
//!            └─▶ copy on an idle worker   much longer than the others of its step: the first to finish counts
//! ```
//! A round ends when all of its orders are done, when one of them fails, or before a step that newly joined workers can
//! take part in. Running orders are awaited.

use super::{Drive, RoundState};
use crate::wire::{OrderMessage, to_postcard};
use bytes::Bytes;
use futures::StreamExt;
use futures::stream::{self, FuturesUnordered};
use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};
use tessera_exec::error::Error;
use tessera_planner::place::Worker;
use tessera_planner::plan::StageId;
use tessera_planner::recover::Bitmap;
use tessera_storage::lock;
use tokio_util::sync::CancellationToken;

/// Interval between checks for slow orders.
const LOOK: Duration = Duration::from_millis(250);
/// Upper bound on workers that get a plan at the same time.
const PLANS_AT_A_TIME: usize = 32;
/// How long a round waits for other statements to show that the deaths were not theirs.
const OTHERS: Duration = Duration::from_secs(30);
/// Orders that ran for less are not copied.
const LONG: Duration = Duration::from_secs(2);
/// An order is slow if it runs this many times longer than the finished ones of its step.
const LONGER: u32 = 2;

/// An order to run, or a part of one.
pub(super) struct Job {
    pub(super) step: u32,
    pub(super) worker: u32,
    /// Indexes of the jobs that must be done before.
    pub(super) after: Vec<usize>,
    pub(super) message: OrderMessage,
    /// A worker died while it ran these operands or their inputs: nothing else runs at the same time on the worker
    /// until the death is explained.
    pub(super) alone: bool,
}

/// Why a round ended early.
pub(super) enum Stop {
    Died(Vec<Death>),
    /// A failure that may not repeat.
    Failed(Error),
    /// A failure that will repeat.
    Over(Error),
}

/// A worker that died while it ran an order.
pub(super) struct Death {
    pub(super) worker: u32,
    /// The operands of the order were suspect.
    pub(super) alone: bool,
    /// The operands that it was to make, with all of their inputs.
    pub(super) ran: Vec<(StageId, Bitmap)>,
}

struct Attempt {
    job: usize,
    worker: u32,
    begun: Instant,
    /// Nothing else runs at the same time on the worker.
    alone: bool,
}

/// The state of a running round.
struct Progress {
    begun: Instant,
    /// Number of jobs that have not begun.
    waiting: usize,
    /// Indexes of the jobs that can begin.
    ready: BTreeSet<usize>,
    /// For each job the number of jobs that it waits for, and the jobs that wait for it.
    blocked: Vec<usize>,
    unblocks: Vec<Vec<usize>>,
    done: Vec<bool>,
    /// Cancel the other attempts at a job that is done.
    tokens: Vec<CancellationToken>,
    /// The longest time of the done jobs of each step.
    took: BTreeMap<u32, Duration>,
    attempts: Vec<Attempt>,
    stop: Option<Stop>,
    /// Workers joined that have no jobs.
    came: bool,
    last_step: u32,
}

impl Progress {
    fn new(jobs: &[Job]) -> Self {
        let blocked: Vec<usize> = jobs.iter().map(|job| job.after.len()).collect();
        let mut unblocks = vec![Vec::new(); jobs.len()];
        for (i, job) in jobs.iter().enumerate() {
            job.after.iter().for_each(|before| unblocks[*before].push(i));
        }
        Progress {
            begun: Instant::now(),
            waiting: jobs.len(),
            ready: (0..jobs.len()).filter(|job| blocked[*job] == 0).collect(),
            blocked,
            unblocks,
            done: vec![false; jobs.len()],
            tokens: jobs.iter().map(|_| CancellationToken::new()).collect(),
            took: BTreeMap::new(),
            attempts: Vec::new(),
            stop: None,
            came: false,
            last_step: 0,
        }
    }

    /// The outcome of the round when nothing runs any more.
    fn end(self) -> Result<(), Stop> {
        match self.stop {
            Some(stop) => Err(stop),
            None if self.waiting == 0 || self.came => Ok(()),
            None => Err(Stop::Over(Error::Broken {
                what: format!("{} orders wait for each other", self.waiting),
            })),
        }
    }

    /// Marks a job of a step as done, and cancels other attempts at it.
    fn done(&mut self, job: usize, step: u32, begun: Option<Instant>) {
        if std::mem::replace(&mut self.done[job], true) {
            return;
        }
        self.tokens[job].cancel();
        for next in std::mem::take(&mut self.unblocks[job]) {
            self.blocked[next] -= 1;
            if self.blocked[next] == 0 {
                self.ready.insert(next);
            }
        }
        let longest = self.took.entry(step).or_default();
        *longest = (*longest).max(begun.map_or(Duration::ZERO, |b| b.elapsed()));
    }

    /// Handles a failed attempt at a job. Returns an error if the round ends at once.
    fn stopped(&mut self, job: usize, stop: Stop) -> Result<(), Stop> {
        match stop {
            Stop::Over(error) => return Err(Stop::Over(error)),
            // A death takes precedence over failures that it caused.
            Stop::Died(more) => {
                let mut all = match self.stop.take() {
                    Some(Stop::Died(all)) => all,
                    _ => Vec::new(),
                };
                all.extend(more);
                self.stop = Some(Stop::Died(all));
            }
            Stop::Failed(error) => {
                // Nothing is lost while another worker attempts the job.
                if !self.done[job] && self.attempts.iter().all(|a| a.job != job) {
                    self.stop = self.stop.take().or(Some(Stop::Failed(error)));
                }
            }
        }
        Ok(())
    }
}

impl Drive {
    /// Runs jobs, each when its inputs are done.
    pub(super) async fn round(
        &self,
        state: &mut RoundState,
        members: &BTreeMap<u32, Worker>,
        jobs: &[Job],
    ) -> Result<(), Stop> {
        let workers: BTreeSet<u32> = jobs.iter().map(|j| j.worker).collect();
        self.inform(state, workers, members).await?;
        let registry = self.cluster.registry();
        let mut changes = registry.changes();
        let mut look = tokio::time::interval(LOOK);
        let mut p = Progress::new(jobs);
        let mut running = FuturesUnordered::new();
        loop {
            let (mut start, mut waits) = (Vec::new(), false);
            self.judge(state).map_err(Stop::Over)?;
            self.begin(state);
            if p.stop.is_none() {
                (start, waits) = self.startable(state, jobs, &mut p);
                if let Some((job, worker)) = self.slow(jobs, &p.attempts, &p.took, members)
                    && self.copies(state, jobs[job].worker, worker, members).await
                {
                    start.push((job, worker));
                }
            }
            for (job, worker) in start {
                let alone = jobs[job].alone && !state.suspects.is_empty();
                p.attempts.push(Attempt { job, worker, begun: Instant::now(), alone });
                let message = OrderMessage { begun: state.begun, ..jobs[job].message.clone() };
                let (address, token) = (members[&worker].name.clone(), p.tokens[job].clone());
                let flight = self.flights.begin(worker);
                running.push(async move {
                    tokio::select! {
                        biased;
                        // Another attempt was faster.
                        () = token.cancelled() => (job, flight, None),
                        end = self.order(worker, &address, message, alone) => {
                            (job, flight, Some(end))
                        }
                    }
                });
            }
            if running.is_empty() && !waits {
                return p.end();
            }
            // Until the end of this turn, the chunks of the order do not count as available.
            let (job, flight, end) = tokio::select! {
                Some(end) = running.next() => end,
                _ = look.tick() => continue,
                _ = changes.changed() => {
                    p.came = registry.alive().iter().any(|m| !members.contains_key(&m.number));
                    continue;
                }
            };
            let worker = flight.worker;
            let begun = p.attempts.iter().position(|a| a.job == job && a.worker == worker);
            let begun = begun.map(|at| p.attempts.swap_remove(at).begun);
            match end {
                None => {}
                Some(Ok((end, sent))) => {
                    let message = &jobs[job].message;
                    self.finished(worker, &members[&worker].name, message, &end)?;
                    p.done(job, jobs[job].step, begun);
                    if jobs.iter().zip(&p.done).all(|(j, done)| j.step != jobs[job].step || *done) {
                        self.sweep();
                    }
                    if !state.suspects.is_empty() {
                        state.suspects.acquit(&self.ran(message, sent).map_err(Stop::Over)?);
                    }
                }
                Some(Err(stop)) => {
                    if let Stop::Failed(error) = &stop
                        && error.code() == "not_found"
                    {
                        state.informed.remove(&worker);
                    }
                    p.stopped(job, stop)?;
                }
            }
        }
    }

    /// Jobs that can begin, each with its worker; and true if jobs have to wait for other statements.
    fn startable(
        &self,
        state: &RoundState,
        jobs: &[Job],
        p: &mut Progress,
    ) -> (Vec<(usize, u32)>, bool) {
        let posts = self.cluster.posts();
        let mut start: Vec<(usize, u32)> = Vec::new();
        let mut alone = p.attempts.iter().filter(|a| a.alone).count();
        // Without suspects no job needs a worker of its own.
        let is_alone = |job: usize| jobs[job].alone && !state.suspects.is_empty();
        // Workers that joined take part from the next step on.
        let may = |i: &&usize| !p.came || jobs[**i].step <= p.last_step;
        let (suspects, others): (Vec<usize>, Vec<usize>) =
            p.ready.iter().filter(may).partition(|i| is_alone(**i));
        // The next death would make the statement poison, unless another statement shows that these deaths were not its
        // own.
        let waits = state.suspects.is_full()
            && p.begun.elapsed() < OTHERS
            && !state.suspects.open().all(|worker| posts.is_first(worker, &self.id));
        for job in suspects {
            if alone < state.suspects.at_a_time() && !waits {
                alone += 1;
                start.push((job, jobs[job].worker));
            }
        }
        if !waits && alone == 0 || !state.suspects.are_first() {
            start.extend(others.into_iter().map(|job| (job, jobs[job].worker)));
        }
        for (job, _) in &start {
            p.ready.remove(job);
            p.waiting -= 1;
            p.last_step = p.last_step.max(jobs[*job].step);
        }
        (start, waits)
    }

    /// Starts a copy of a slow order on another worker; false if that fails.
    async fn copies(
        &self,
        state: &mut RoundState,
        from: u32,
        worker: u32,
        members: &BTreeMap<u32, Worker>,
    ) -> bool {
        // Without the copy the statement only takes longer.
        if self.inform(state, BTreeSet::from([worker]), members).await.is_err() {
            return false;
        }
        let what = format!("an order of worker {from} takes long: it runs here too");
        self.cluster.registry().note("copied", Some(worker), Some(&self.id), what);
        self.count(|t| t.copies += 1);
        true
    }

    /// The plan as workers get it: all of them the same.
    fn plan_message(&self, state: &RoundState) -> Result<Bytes, Stop> {
        let mut encoded = lock(&self.encoded);
        if let Some(message) = &*encoded {
            return Ok(message.clone());
        }
        let mut message = self.message.clone();
        if state.is_bound {
            message.reuse.versions = self.identity.versions.all();
        }
        let message = to_postcard(&message);
        let message = message.map_err(|e| Stop::Over(Error::Broken { what: e.to_string() }))?;
        Ok(encoded.insert(message).clone())
    }

    /// Sends workers the plan, once each.
    pub(super) async fn inform(
        &self,
        state: &mut RoundState,
        workers: BTreeSet<u32>,
        members: &BTreeMap<u32, Worker>,
    ) -> Result<(), Stop> {
        let new: Vec<u32> = workers.difference(&state.informed).copied().collect();
        if new.is_empty() {
            return Ok(());
        }
        lock(&self.notified).extend(&new);
        let message = self.plan_message(state)?;
        let told = new.into_iter().map(|worker| {
            let (address, message) = (&members[&worker].name, message.clone());
            async move { (worker, self.ask(worker, address, "plan", message, &|_| ()).await) }
        });
        let mut told = stream::iter(told).buffer_unordered(PLANS_AT_A_TIME);
        while let Some((worker, end)) = told.next().await {
            let address = &members[&worker].name;
            match end {
                Ok(learned) => {
                    state.informed.insert(worker);
                    self.learned(worker, address, &learned)?;
                }
                // The statement did not cause this death.
                Err(Stop::Died(_)) => return Err(Stop::Failed(self.lost_error(worker, address))),
                Err(stop) => return Err(stop),
            }
        }
        Ok(())
    }

    /// A job that takes much longer than others of its step did, and an idle worker.
    fn slow(
        &self,
        jobs: &[Job],
        attempts: &[Attempt],
        took: &BTreeMap<u32, Duration>,
        members: &BTreeMap<u32, Worker>,
    ) -> Option<(usize, u32)> {
        let is_slow = |a: &&Attempt| {
            let (job, ran) = (&jobs[a.job], a.begun.elapsed());
            let longer = || took.get(&job.step).is_some_and(|longest| ran > *longest * LONGER);
            let is_copied = || attempts.iter().any(|b| b.job == a.job && b.worker != a.worker);
            ran > LONG && !a.alone && longer() && !is_copied()
        };
        let slow = attempts.iter().filter(is_slow).max_by_key(|a| a.begun.elapsed())?;
        let is_idle = |worker: &&u32| {
            attempts.iter().all(|a| a.worker != **worker)
                && self.cluster.registry().is_here(**worker)
        };
        members.keys().find(is_idle).map(|worker| (slow.job, *worker))
    }
}
