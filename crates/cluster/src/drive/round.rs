//! A round: orders that wait for each other, each on its worker.
//!
//! ```text
//!   wait ─▶ run ─▶ done                 what it reads is done
//!            └─▶ copy on an idle worker   much longer than the others of its step: who is first counts
//! ```
//! A round ends when all of its orders are done, when one of them cannot be, or where a step would begin that workers
//! who came meanwhile are to have a part in. What runs is waited for.

use super::{DEATHS_MAX, Drive, State};
use crate::wire::OrderMessage;
use futures::StreamExt;
use futures::stream::FuturesUnordered;
use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};
use tessera_exec::error::Error;
use tessera_planner::place::Worker as Place;
use tessera_planner::plan::StageId;
use tessera_planner::recover::Bitmap;
use tokio_util::sync::CancellationToken;

/// How often orders that take long are looked for.
const LOOK: Duration = Duration::from_millis(250);
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
    /// A worker died while it ran what is in it: nothing else runs beside it.
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
    /// It had nothing of other statements.
    pub(super) had_one: bool,
    /// What it was told.
    pub(super) run: Vec<(StageId, Bitmap)>,
}

/// A job on a worker.
struct Attempt {
    job: usize,
    worker: u32,
    begun: Instant,
}

impl Drive {
    /// Has jobs run, each when those are done that it reads.
    pub(super) async fn round(
        &self,
        state: &mut State,
        members: &BTreeMap<u32, Place>,
        jobs: &[Job],
    ) -> Result<(), Stop> {
        let workers: BTreeSet<u32> = jobs.iter().map(|j| j.worker).collect();
        for worker in workers {
            self.inform(state, worker, &members[&worker].name).await?;
        }
        let registry = self.cluster.registry();
        let mut changes = registry.changes();
        let mut look = tokio::time::interval(LOOK);
        let alone_max = DEATHS_MAX.saturating_sub(state.deaths).max(1) as usize;
        let mut waiting: BTreeSet<usize> = (0..jobs.len()).collect();
        let mut done = vec![false; jobs.len()];
        let tokens: Vec<CancellationToken> =
            jobs.iter().map(|_| CancellationToken::new()).collect();
        // How long each done job of a step took at most.
        let mut took: BTreeMap<u32, Duration> = BTreeMap::new();
        let mut attempts: Vec<Attempt> = Vec::new();
        let mut running = FuturesUnordered::new();
        let (mut stop, mut came, mut last_step) = (None, false, 0);
        loop {
            let mut start: Vec<(usize, u32)> = Vec::new();
            if stop.is_none() {
                let mut alone = attempts.iter().filter(|a| jobs[a.job].alone).count();
                for &job in &waiting {
                    let Job { step, after, alone: is_alone, worker, .. } = &jobs[job];
                    let is_ready = after.iter().all(|before| done[*before]);
                    // Where a step begins those who came have their part.
                    let may = !came || *step <= last_step;
                    if is_ready && may && (!is_alone || alone < alone_max) {
                        alone += usize::from(*is_alone);
                        start.push((job, *worker));
                    }
                }
                for (job, _) in &start {
                    waiting.remove(job);
                    last_step = last_step.max(jobs[*job].step);
                }
                if let Some((job, worker)) = self.slow(jobs, &attempts, &took, members) {
                    // Without it the statement takes longer, and no more.
                    if self.inform(state, worker, &members[&worker].name).await.is_ok() {
                        let from = jobs[job].worker;
                        let what =
                            format!("an order of worker {from} takes long: it runs here too");
                        registry.note("copied", Some(worker), Some(&self.id), what);
                        self.count(|t| t.copies += 1);
                        start.push((job, worker));
                    }
                }
            }
            for (job, worker) in start {
                attempts.push(Attempt { job, worker, begun: Instant::now() });
                let message = OrderMessage { there: self.all_there(), ..jobs[job].message.clone() };
                let (address, token) = (members[&worker].name.clone(), tokens[job].clone());
                let alone = jobs[job].alone;
                running.push(async move {
                    tokio::select! {
                        biased;
                        // Somebody else was faster.
                        () = token.cancelled() => (job, worker, None),
                        end = self.order(worker, &address, &message, alone) => {
                            (job, worker, Some(end))
                        }
                    }
                });
            }
            if running.is_empty() {
                return match stop {
                    Some(stop) => Err(stop),
                    None if waiting.is_empty() || came => Ok(()),
                    None => Err(Stop::Over(Error::Broken {
                        what: format!("{} orders wait for each other", waiting.len()),
                    })),
                };
            }
            let (job, worker, end) = tokio::select! {
                Some(end) = running.next() => end,
                _ = look.tick() => continue,
                _ = changes.changed() => {
                    came = registry.alive().iter().any(|m| !members.contains_key(&m.number));
                    continue;
                }
            };
            let begun = attempts.iter().position(|a| a.job == job && a.worker == worker);
            let begun = begun.map(|at| attempts.swap_remove(at).begun);
            let Some(end) = end else { continue };
            match end {
                Ok(end) => {
                    self.finished(worker, &jobs[job].message, &end);
                    if !std::mem::replace(&mut done[job], true) {
                        tokens[job].cancel();
                        let longest = took.entry(jobs[job].step).or_default();
                        *longest = (*longest).max(begun.map_or(Duration::ZERO, |b| b.elapsed()));
                    }
                    if jobs[job].alone {
                        // It was not that.
                        for (stage, numbers) in &jobs[job].message.run {
                            let suspects = &mut state.suspects[stage.0 as usize];
                            numbers.iter().for_each(|number| {
                                suspects.remove(number);
                            });
                        }
                    }
                }
                Err(Stop::Over(error)) => return Err(Stop::Over(error)),
                // A death counts, whatever else failed because of it.
                Err(Stop::Died(more)) => {
                    let mut all = match stop.take() {
                        Some(Stop::Died(all)) => all,
                        _ => Vec::new(),
                    };
                    all.extend(more);
                    stop = Some(Stop::Died(all));
                }
                Err(Stop::Failed(error)) => {
                    if error.code() == "not_found" {
                        state.informed.remove(&worker);
                    }
                    // As long as another worker is at it nothing is lost.
                    if !done[job] && attempts.iter().all(|a| a.job != job) {
                        stop = stop.or(Some(Stop::Failed(error)));
                    }
                }
            }
        }
    }

    /// Tells a worker the plan, once.
    async fn inform(&self, state: &mut State, worker: u32, address: &str) -> Result<(), Stop> {
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
        members: &BTreeMap<u32, Place>,
    ) -> Option<(usize, u32)> {
        let is_slow = |a: &&Attempt| {
            let (job, ran) = (&jobs[a.job], a.begun.elapsed());
            let longer = took.get(&job.step).is_some_and(|longest| ran > *longest * LONGER);
            let is_copied = attempts.iter().any(|b| b.job == a.job && b.worker != a.worker);
            ran > LONG && longer && !job.alone && !is_copied
        };
        let slow = attempts.iter().filter(is_slow).max_by_key(|a| a.begun.elapsed())?;
        let is_idle = |worker: &&u32| {
            attempts.iter().all(|a| a.worker != **worker)
                && self.cluster.registry().is_here(**worker)
        };
        members.keys().find(is_idle).map(|worker| (slow.job, *worker))
    }
}
