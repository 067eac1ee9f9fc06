//! A round: orders that wait for each other, each on its worker.
//!
//! ```text
//!   wait ─▶ run ─▶ done                 what it reads is done
//!            └─▶ copy on an idle worker   much longer than the others of its step: who is first counts
//! ```
//! A round ends when all of its orders are done, when one of them cannot be, or where a step would begin that workers
//! who came meanwhile are to have a part in. What runs is waited for.

use super::{Drive, RoundState};
use crate::wire::OrderMessage;
use futures::StreamExt;
use futures::stream::FuturesUnordered;
use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};
use tessera_exec::error::Error;
use tessera_planner::place::Worker;
use tessera_planner::plan::StageId;
use tessera_planner::recover::Bitmap;
use tokio_util::sync::CancellationToken;

/// How often orders that take long are looked for.
const LOOK: Duration = Duration::from_millis(250);
/// How long it waits for other statements to show that workers did not die of them.
const OTHERS: Duration = Duration::from_secs(30);
/// An order that runs for less has no copy.
const LONG: Duration = Duration::from_secs(2);
/// An order takes long if it takes so many times as long as those of its step that are done.
const LONGER: u32 = 2;

/// An order that is to run, or a part of one.
pub(super) struct Job {
    pub(super) step: u32,
    /// Number of the worker.
    pub(super) worker: u32,
    /// Places of the jobs that have to be done before.
    pub(super) after: Vec<usize>,
    pub(super) message: OrderMessage,
    /// A worker died while it ran what is in it, or what it makes: nothing else runs beside it until that is explained.
    pub(super) alone: bool,
}

/// Why a round ended early.
pub(super) enum Stop {
    /// Workers died.
    Died(Vec<Death>),
    /// Something that may work next time.
    Failed(Error),
    /// Something that will not.
    Over(Error),
}

/// A worker that died while it ran an order.
pub(super) struct Death {
    pub(super) worker: u32,
    /// What it was told was suspect.
    pub(super) alone: bool,
    /// The operands that it was to make, with all that they read.
    pub(super) ran: Vec<(StageId, Bitmap)>,
}

/// A job on a worker.
struct Attempt {
    job: usize,
    worker: u32,
    begun: Instant,
    /// Nothing else runs beside it.
    alone: bool,
}

/// A round on its way.
struct Progress {
    begun: Instant,
    /// Places of the jobs that did not begin yet.
    waiting: BTreeSet<usize>,
    done: Vec<bool>,
    /// End the attempts at a job that is done.
    tokens: Vec<CancellationToken>,
    /// How long each done job of a step took at most.
    took: BTreeMap<u32, Duration>,
    attempts: Vec<Attempt>,
    stop: Option<Stop>,
    /// Workers are here that have no jobs.
    came: bool,
    last_step: u32,
}

impl Progress {
    fn new(jobs: usize) -> Self {
        Progress {
            begun: Instant::now(),
            waiting: (0..jobs).collect(),
            done: vec![false; jobs],
            tokens: (0..jobs).map(|_| CancellationToken::new()).collect(),
            took: BTreeMap::new(),
            attempts: Vec::new(),
            stop: None,
            came: false,
            last_step: 0,
        }
    }

    /// What becomes of the round when nothing runs any more.
    fn end(self) -> Result<(), Stop> {
        match self.stop {
            Some(stop) => Err(stop),
            None if self.waiting.is_empty() || self.came => Ok(()),
            None => Err(Stop::Over(Error::Broken {
                what: format!("{} orders wait for each other", self.waiting.len()),
            })),
        }
    }

    /// A job of a step is done: other attempts at it end.
    fn done(&mut self, job: usize, step: u32, begun: Option<Instant>) {
        if std::mem::replace(&mut self.done[job], true) {
            return;
        }
        self.tokens[job].cancel();
        let longest = self.took.entry(step).or_default();
        *longest = (*longest).max(begun.map_or(Duration::ZERO, |b| b.elapsed()));
    }

    /// An attempt at a job failed. An error if the round ends at once.
    fn stopped(&mut self, job: usize, stop: Stop) -> Result<(), Stop> {
        match stop {
            Stop::Over(error) => return Err(Stop::Over(error)),
            // A death counts, whatever else failed because of it.
            Stop::Died(more) => {
                let mut all = match self.stop.take() {
                    Some(Stop::Died(all)) => all,
                    _ => Vec::new(),
                };
                all.extend(more);
                self.stop = Some(Stop::Died(all));
            }
            Stop::Failed(error) => {
                // As long as another worker is at it nothing is lost.
                if !self.done[job] && self.attempts.iter().all(|a| a.job != job) {
                    self.stop = self.stop.take().or(Some(Stop::Failed(error)));
                }
            }
        }
        Ok(())
    }
}

impl Drive {
    /// Has jobs run, each when those are done that it reads.
    pub(super) async fn round(
        &self,
        state: &mut RoundState,
        members: &BTreeMap<u32, Worker>,
        jobs: &[Job],
    ) -> Result<(), Stop> {
        let workers: BTreeSet<u32> = jobs.iter().map(|j| j.worker).collect();
        for worker in workers {
            self.inform(state, worker, &members[&worker].name).await?;
        }
        let registry = self.cluster.registry();
        let mut changes = registry.changes();
        let mut look = tokio::time::interval(LOOK);
        let mut p = Progress::new(jobs.len());
        let mut running = FuturesUnordered::new();
        loop {
            let (mut start, mut waits) = (Vec::new(), false);
            self.judge(state).map_err(Stop::Over)?;
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
                let message = OrderMessage { there: self.all_there(), ..jobs[job].message.clone() };
                let (address, token) = (members[&worker].name.clone(), p.tokens[job].clone());
                running.push(async move {
                    tokio::select! {
                        biased;
                        // Somebody else was faster.
                        () = token.cancelled() => (job, worker, message, None),
                        end = self.order(worker, &address, &message, alone) => {
                            (job, worker, message, Some(end))
                        }
                    }
                });
            }
            if running.is_empty() && !waits {
                return p.end();
            }
            let (job, worker, message, end) = tokio::select! {
                Some(end) = running.next() => end,
                _ = look.tick() => continue,
                _ = changes.changed() => {
                    p.came = registry.alive().iter().any(|m| !members.contains_key(&m.number));
                    continue;
                }
            };
            let begun = p.attempts.iter().position(|a| a.job == job && a.worker == worker);
            let begun = begun.map(|at| p.attempts.swap_remove(at).begun);
            match end {
                None => {}
                Some(Ok(end)) => {
                    self.finished(worker, &jobs[job].message, &end);
                    p.done(job, jobs[job].step, begun);
                    if !state.suspects.is_empty() {
                        state.suspects.acquit(&self.ran(&message).map_err(Stop::Over)?);
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

    /// Jobs that can begin, each with its worker; and true if those that could have to wait for other statements.
    fn startable(
        &self,
        state: &RoundState,
        jobs: &[Job],
        p: &mut Progress,
    ) -> (Vec<(usize, u32)>, bool) {
        let posts = self.cluster.posts();
        let mut start: Vec<(usize, u32)> = Vec::new();
        let mut alone = p.attempts.iter().filter(|a| a.alone).count();
        // Once nothing is suspect any more, nothing is.
        let is_alone = |job: usize| jobs[job].alone && !state.suspects.is_empty();
        let is_ready = |job: &Job| {
            // Where a step begins those who came have their part.
            let may = !p.came || job.step <= p.last_step;
            may && job.after.iter().all(|before| p.done[*before])
        };
        let (suspects, others): (Vec<usize>, Vec<usize>) =
            p.waiting.iter().filter(|i| is_ready(&jobs[**i])).partition(|i| is_alone(**i));
        // The next death would be one too many, if another statement shows that these were not its own.
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
            p.waiting.remove(job);
            p.last_step = p.last_step.max(jobs[*job].step);
        }
        (start, waits)
    }

    /// Has a worker make a copy of an order that another one is slow with; false if it cannot.
    async fn copies(
        &self,
        state: &mut RoundState,
        from: u32,
        worker: u32,
        members: &BTreeMap<u32, Worker>,
    ) -> bool {
        // Without it the statement takes longer, and no more.
        if self.inform(state, worker, &members[&worker].name).await.is_err() {
            return false;
        }
        let what = format!("an order of worker {from} takes long: it runs here too");
        self.cluster.registry().note("copied", Some(worker), Some(&self.id), what);
        self.count(|t| t.copies += 1);
        true
    }

    /// Tells a worker the plan, once.
    async fn inform(&self, state: &mut RoundState, worker: u32, address: &str) -> Result<(), Stop> {
        if state.informed.contains(&worker) {
            return Ok(());
        }
        state.told.insert(worker);
        match self.ask(worker, address, "plan", self.message.clone(), &|_| ()).await {
            Ok(_) => {
                state.informed.insert(worker);
                Ok(())
            }
            // It died of nothing that the statement did.
            Err(Stop::Died(_)) => Err(Stop::Failed(self.lost_error(worker, address))),
            Err(stop) => Err(stop),
        }
    }

    /// A job that takes much longer than others of its step did, and a worker that has nothing to do.
    fn slow(
        &self,
        jobs: &[Job],
        attempts: &[Attempt],
        took: &BTreeMap<u32, Duration>,
        members: &BTreeMap<u32, Worker>,
    ) -> Option<(usize, u32)> {
        let is_slow = |a: &&Attempt| {
            let (job, ran) = (&jobs[a.job], a.begun.elapsed());
            let longer = took.get(&job.step).is_some_and(|longest| ran > *longest * LONGER);
            let is_copied = attempts.iter().any(|b| b.job == a.job && b.worker != a.worker);
            ran > LONG && longer && !a.alone && !is_copied
        };
        let slow = attempts.iter().filter(is_slow).max_by_key(|a| a.begun.elapsed())?;
        let is_idle = |worker: &&u32| {
            attempts.iter().all(|a| a.worker != **worker)
                && self.cluster.registry().is_here(**worker)
        };
        members.keys().find(is_idle).map(|worker| (slow.job, *worker))
    }
}
