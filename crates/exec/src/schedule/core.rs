//! All running plans, and the choice of the plan that a thread works for next.
//!
//! Plans take turns. They share the quota; when all of them are stalled for want of memory, chunks are spilled
//! ([`crate::schedule::spill`]). Where nothing can be spilled, the youngest plan that holds memory drops its work and
//! waits until the older ones are over.

use crate::chunk::Chunk;
use crate::error::Error;
use crate::operand::{OperandState, StateCounts};
use crate::quota::Quota;
use crate::schedule::admit::{Limits, Work};
use crate::schedule::job::{Done, Job, Statement, Trash};
use crate::schedule::miss::lost_file;
use crate::schedule::spill::{Claim, PATIENCE, Spill, SpillDone, Victim};
use crate::schedule::table::Slot;
use crate::schedule::{Outcome, Stats};
use smallvec::SmallVec;
use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::{Duration, Instant};
use tessera_planner::error::Class;

/// The outcome of an operand that was handed out.
pub(crate) struct Finished {
    pub(crate) statement: u64,
    pub(crate) slot: Slot,
    /// Its chunks, charged and delivered; `None` if it was to load them and they are not available.
    pub(crate) result: Result<Option<SmallVec<[Arc<Chunk>; 1]>>, Error>,
    pub(crate) nanos: u64,
    /// True if it was counted as fetching.
    pub(crate) fetch: bool,
    /// True if its thread has no more work of the statement.
    pub(crate) frees: bool,
    /// The operand itself, to be retried if its error and the number of attempts allow it.
    pub(crate) again: Option<Box<Work>>,
}

/// Work deferred until the lock is released.
#[derive(Default)]
pub(crate) struct After {
    pub(crate) trash: Trash,
    pub(crate) again: Vec<Work>,
    pub(crate) over: Vec<(Option<Done>, Outcome)>,
}

impl After {
    pub(crate) fn is_empty(&self) -> bool {
        self.trash.is_empty() && self.again.is_empty() && self.over.is_empty()
    }
}

/// The scheduler's state, under one lock.
pub(crate) struct Core {
    /// By age: the oldest first.
    pub(super) jobs: Vec<Job>,
    /// Statement that had the last turn.
    last: u64,
    pub(super) limits: Limits,
    /// Chunks to spill, in this order.
    pub(super) victims: VecDeque<Victim>,
    /// Chunks of arrays outside of plans that threads are writing.
    pub(super) spilling: usize,
    /// The error of the last failed spill, and the scratch bytes in use then. No spill is tried again until a plan is
    /// added or spill files are removed.
    pub(super) refused: Option<(Error, u64)>,
    pub(super) claim: Option<Claim>,
    retries_max: u32,
    stall_timeout: Duration,
    pub(crate) shutdown: bool,
    /// Threads that are about to drop chunks: their bytes are still counted, but will be released.
    pub(crate) settling: usize,
    /// The statement being processed: a panic is attributed to it.
    pub(super) looked_at: Option<u64>,
}

impl Core {
    pub(crate) fn new(limits: Limits, retries_max: u32, stall_timeout: Duration) -> Self {
        Core {
            jobs: Vec::new(),
            last: 0,
            limits,
            victims: VecDeque::new(),
            spilling: 0,
            refused: None,
            claim: None,
            retries_max,
            stall_timeout,
            shutdown: false,
            settling: 0,
            looked_at: None,
        }
    }

    pub(crate) fn add(&mut self, job: Job) {
        let at = self.jobs.partition_point(|j| j.statement.id < job.statement.id);
        self.jobs.insert(at, job);
        self.refused = None;
    }

    pub(crate) fn is_idle(&self) -> bool {
        self.jobs.is_empty()
    }

    /// True if the end of a statement affects other statements or threads that are to end.
    pub(crate) fn has_others(&self) -> bool {
        self.shutdown || !self.jobs.is_empty()
    }

    pub(crate) fn plans(&self) -> usize {
        self.jobs.len()
    }

    /// Operands of a statement by state, while it runs.
    pub(crate) fn counts(&self, statement: u64) -> Option<StateCounts> {
        self.jobs.iter().find(|j| j.statement.id == statement).map(|j| j.table.counts.clone())
    }

    /// Statistics of a statement so far, while it runs.
    pub(crate) fn stats(&self, statement: u64) -> Option<Stats> {
        self.jobs.iter().find(|j| j.statement.id == statement).map(Job::stats)
    }

    pub(super) fn job(&mut self, statement: u64) -> Option<&mut Job> {
        self.jobs.iter_mut().find(|j| j.statement.id == statement)
    }

    pub(crate) fn fail(&mut self, statement: u64, error: Error, after: &mut After) {
        self.guarded(after, |core, after| {
            core.looked_at = Some(statement);
            if let Some(job) = core.job(statement) {
                job.fail(error, None, &mut after.trash);
            }
            core.reap(after);
        });
    }

    pub(crate) fn fail_all(&mut self, after: &mut After) {
        let all: Vec<u64> = self.jobs.iter().map(|j| j.statement.id).collect();
        for statement in all {
            self.fail(statement, Error::Cancelled, after);
        }
    }

    pub(crate) fn complete(&mut self, finished: &mut Vec<Finished>, after: &mut After) {
        // One by one: a panic must not lose the results of other operands.
        for f in finished.drain(..) {
            self.guarded(after, |core, after| core.completed(f, after));
        }
        self.reap(after);
    }

    /// Accepts a fetched load; it waits for a thread.
    pub(crate) fn fetched(&mut self, work: Work, after: &mut After) {
        self.guarded(after, |core, after| core.take_fetched(work, after));
    }

    /// Hands out a chunk to spill, or operands of the statement whose turn it is. The time to wait is `None` if
    /// something was handed out, and bounded if a statement waits for memory that others hold.
    pub(crate) fn pick(
        &mut self,
        out: &mut Vec<Work>,
        spill: &mut Option<Spill>,
        after: &mut After,
    ) -> Option<Wait> {
        self.guarded(after, |core, after| core.picked(out, spill, after)).flatten()
    }

    pub(crate) fn spilled(&mut self, done: SpillDone, after: &mut After) {
        self.guarded(after, |core, after| core.was_spilled(done, after));
    }

    fn completed(&mut self, f: Finished, after: &mut After) {
        self.looked_at = Some(f.statement);
        let retries_max = self.retries_max;
        let Some(job) = self.job(f.statement) else { return };
        if f.fetch {
            job.fetching -= 1;
        }
        if f.frees {
            job.at_work -= 1;
        }
        let lost = f.result.as_ref().err().and_then(lost_file);
        if lost.is_some_and(|file| job.missed(f.slot, file, &mut after.trash)) {
            let inputs = f.again.into_iter().flat_map(|work| work.inputs);
            return after.trash.extend(inputs.map(|(_, _, held)| held));
        }
        if let (Err(e), Some(mut work)) = (&f.result, f.again)
            && e.class() == Class::Retry
            && work.attempts < retries_max
            && job.table.get(f.slot).is_some_and(|o| o.state == OperandState::Running)
        {
            work.attempts += 1;
            (work.fetch, work.frees) = (true, false);
            job.fetching += 1;
            job.stats.retries += 1;
            return after.again.push(*work);
        }
        match f.result.transpose() {
            Some(result) => job.complete(f.slot, result, f.nanos, &mut after.trash),
            None => job.lost(f.slot),
        }
    }

    fn take_fetched(&mut self, work: Work, after: &mut After) {
        self.looked_at = Some(work.statement.id);
        let Some(job) = self.job(work.statement.id) else { return };
        if job.error.is_some() {
            job.fetching -= 1;
            let cancelled = Err(Error::Cancelled);
            job.complete(work.slot, cancelled, 0, &mut after.trash);
            self.reap(after);
        } else {
            job.fetched.push_back(work);
        }
    }

    fn picked(
        &mut self,
        out: &mut Vec<Work>,
        spill: &mut Option<Spill>,
        after: &mut After,
    ) -> Option<Wait> {
        loop {
            *spill = self.next_spill(&mut after.trash);
            if spill.is_some() {
                return None;
            }
            self.keep_claim();
            let count = self.jobs.len();
            // Jobs are sorted by id, so the turn goes to the first after the last one, or around to the oldest.
            let first = self.jobs.partition_point(|j| j.statement.id <= self.last);
            for i in (0..count).map(|i| (first + i) % count) {
                let (job, limits) = (&mut self.jobs[i], &self.limits);
                job.parked &= i > 0;
                self.looked_at = Some(job.statement.id);
                fenced(job, after, |job, after| job.pick(limits, out, &mut after.trash));
                job.note_hunger();
                if !out.is_empty() {
                    self.last = self.jobs[i].statement.id;
                    if self.relieve(after).is_none() {
                        self.feed();
                    }
                    self.reap(after);
                    return None;
                }
            }
            let before = self.jobs.len();
            self.reap(after);
            if self.jobs.len() < before {
                continue;
            }
            match self.resolve(after) {
                Resolved::Again => {}
                Resolved::Wait(wait) => return Some(wait),
            }
        }
    }

    /// Hands out operands of one statement, regardless of turns: the calling thread starts it.
    pub(crate) fn pick_of(&mut self, statement: u64, out: &mut Vec<Work>, after: &mut After) {
        let limits = &self.limits;
        if let Some(job) = self.jobs.iter_mut().find(|j| j.statement.id == statement) {
            fenced(job, after, |job, after| job.pick(limits, out, &mut after.trash));
        }
        self.reap(after);
    }

    /// True if another thread would find work.
    pub(crate) fn has_more(&self) -> bool {
        !self.victims.is_empty()
            || self.jobs.iter().any(|j| j.error.is_none() && !j.parked && j.has_more())
    }

    /// Decides what to do when nothing can start.
    fn resolve(&mut self, after: &mut After) -> Resolved {
        if let Some(resolved) = self.relieve(after) {
            return resolved;
        }
        let busy = self.is_spilling() || self.jobs.iter().any(|j| j.running > 0);
        if self.jobs.is_empty() || self.settling > 0 || busy {
            if self.feed() {
                return Resolved::Again;
            }
            let hungry = self.jobs.iter().any(|j| j.hungry.is_some());
            let time = if hungry { Wait::HUNGRY } else { Wait::FOREVER };
            return Resolved::Wait(Wait { time, starved: false });
        }
        if self.claim.take().is_some() {
            return Resolved::Again;
        }
        // Every statement is stalled: each has ready operands, and none fits. Idle chunks are evicted first.
        let mut evicted = false;
        for job in &mut self.jobs {
            self.looked_at = Some(job.statement.id);
            while job.evict(&mut after.trash) {
                evicted = true;
            }
        }
        if evicted || !after.trash.is_empty() {
            after.trash.clear();
            return Resolved::Again;
        }
        if self.make_room() {
            return Resolved::Again;
        }
        for job in &mut self.jobs {
            self.looked_at = Some(job.statement.id);
            evicted |= job.drop_dear(&mut after.trash);
        }
        if evicted {
            after.trash.clear();
            return Resolved::Again;
        }
        if self.jobs.iter().any(|j| j.statement.is_writing()) {
            let time = Duration::from_millis(20);
            return Resolved::Wait(Wait { time, starved: true });
        }
        let spills = self.limits.store.is_on();
        if let Some(job) =
            self.jobs.iter_mut().skip(1).rev().find(|j| j.held_bytes > 0 || j.files > 0)
        {
            self.looked_at = Some(job.statement.id);
            job.restart(!spills, &mut after.trash);
            job.parked = true;
            after.trash.clear();
            return Resolved::Again;
        }
        let quota = self.limits.quota.clone();
        self.stuck(0, &quota, after)
    }

    /// Makes room for a statement that is stalled because its own budget is used up: the end of other statements does
    /// not help it.
    fn relieve(&mut self, after: &mut After) -> Option<Resolved> {
        if self.is_spilling() || !self.victims.is_empty() || self.settling > 0 {
            return None;
        }
        let again = |j: &Job| j.relief.is_none_or(|since| since.elapsed() > PATIENCE);
        let i = self.jobs.iter().position(|j| j.short && j.stands_still() && again(j))?;
        let job = &mut self.jobs[i];
        self.looked_at = Some(job.statement.id);
        while job.evict(&mut after.trash) {}
        if after.trash.is_empty() && self.choose(i, true) {
            return Some(Resolved::Again);
        }
        let job = &mut self.jobs[i];
        // Bytes in the trash still count.
        if !after.trash.is_empty() || job.drop_dear(&mut after.trash) {
            after.trash.clear();
            return Some(Resolved::Again);
        }
        job.relief = Some(Instant::now());
        let own = job.own(&self.limits)?.clone();
        if job.statement.is_writing() || self.may_fit(i, &own) {
            return None;
        }
        Some(self.stuck(i, &own, after))
    }

    /// Decides the fate of a statement for which no room can be made in a budget.
    fn stuck(&mut self, i: usize, quota: &Arc<Quota>, after: &mut After) -> Resolved {
        let spills = self.limits.store.is_on();
        let job = &mut self.jobs[i];
        self.looked_at = Some(job.statement.id);
        // Bytes outside the scheduler are released when clients drop chunks. Those of a sink that collects are not.
        let outside = quota.used().saturating_sub(job.held_bytes);
        let collected = match job.statement.sink.drains() {
            true => 0,
            false => job.statement.account.used().saturating_sub(job.held_bytes),
        };
        if outside > collected {
            let since = *job.stalled.get_or_insert_with(Instant::now);
            if since.elapsed() < self.stall_timeout {
                return Resolved::Wait(Wait { time: Duration::from_millis(20), starved: true });
            }
        }
        if job.serial || spills {
            let error = match self.refused.take() {
                Some((error, _)) => error,
                None => job.memory_exceeded(quota),
            };
            job.fail(error, None, &mut after.trash);
            self.reap(after);
        } else {
            job.restart(true, &mut after.trash);
            after.trash.clear();
        }
        Resolved::Again
    }

    fn was_spilled(&mut self, done: SpillDone, after: &mut After) {
        let SpillDone { victim, chunk, result } = done;
        if let Victim::Made(made) = &victim {
            self.looked_at = Some(made.statement);
        }
        let used = self.limits.store.figures().bytes;
        if let Victim::Resident(..) = &victim {
            self.spilling -= 1;
        }
        let made = match &victim {
            Victim::Made(made) => Some(*made),
            Victim::Resident(..) => None,
        };
        if let Some(job) = made.and_then(|m| self.job(m.statement)) {
            job.spilling -= 1;
            if result.is_ok() {
                job.stats.spills += 1;
                job.stats.bytes_spilled += chunk.bytes();
            }
        }
        match result {
            Ok(file) => {
                chunk.is_also(file);
                match &victim {
                    // The table and this function hold it. If an operand does too, it is moved when it is chosen
                    // again.
                    Victim::Made(made) => {
                        if let Some(job) = self.job(made.statement)
                            && job.holds(made, &chunk)
                        {
                            job.move_to_file(made.slot, made.output, 2, &mut after.trash);
                        }
                    }
                    Victim::Resident(array, number) => {
                        after.trash.extend(array.upgrade().and_then(|a| a.move_to_file(*number)));
                    }
                }
            }
            Err(error) => {
                self.refused = Some((error, used));
                self.victims.clear();
            }
        }
        after.trash.push(crate::store::FinishedChunk::Memory(chunk));
        self.reap(after);
    }

    fn reap(&mut self, after: &mut After) {
        let mut i = 0;
        while i < self.jobs.len() {
            if self.jobs[i].is_over() {
                let mut job = self.jobs.remove(i);
                // If its bookkeeping panics, the waiter for the outcome still gets one.
                let done = job.done.take();
                let ended = catch_unwind(AssertUnwindSafe(|| {
                    job.clear(&mut after.trash);
                    job.into_result().1
                }));
                after.over.push((done, ended.unwrap_or_else(|p| broken(p.as_ref()))));
            } else {
                i += 1;
            }
        }
    }

    /// Runs a part of the scheduler that processes several statements. A panic ends the statement being processed:
    /// the code calls the plan's own arithmetic and names.
    fn guarded<T>(
        &mut self,
        after: &mut After,
        f: impl FnOnce(&mut Core, &mut After) -> T,
    ) -> Option<T> {
        self.looked_at = None;
        match catch_unwind(AssertUnwindSafe(|| f(self, after))) {
            Ok(value) => Some(value),
            Err(payload) => {
                self.end_looked_at(payload.as_ref(), after);
                None
            }
        }
    }

    fn end_looked_at(&mut self, payload: &(dyn std::any::Any + Send), after: &mut After) {
        let of = self.looked_at.take();
        let at = self.jobs.iter().position(|j| Some(j.statement.id) == of).unwrap_or(0);
        let Some(job) = self.jobs.get_mut(at) else { return };
        self.victims.clear();
        // A job that panics for the second time cannot be stopped in an orderly way: its counts are invalid.
        let orderly = job.error.is_none()
            && catch_unwind(AssertUnwindSafe(|| {
                job.fail(panicked(payload), None, &mut after.trash);
            }))
            .is_ok();
        if !orderly {
            let mut job = self.jobs.remove(at);
            job.statement.token.cancel();
            after.over.push((job.done.take(), broken(payload)));
        }
        self.reap(after);
    }
}

fn panicked(payload: &(dyn std::any::Any + Send)) -> Error {
    Error::of_panic("the scheduler".to_owned(), payload)
}

/// The outcome of a plan whose bookkeeping panicked.
fn broken(payload: &(dyn std::any::Any + Send)) -> Outcome {
    Outcome { result: Err(panicked(payload)), stats: Stats::default() }
}

enum Resolved {
    Again,
    Wait(Wait),
}

/// How a thread without work waits.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Wait {
    pub(crate) time: Duration,
    /// True if memory that clients release may end the wait.
    pub(crate) starved: bool,
}

impl Wait {
    const FOREVER: Duration = Duration::from_secs(3600);
    /// Polling interval while a statement is stalled and others run, if no operand finishes.
    const HUNGRY: Duration = Duration::from_millis(50);
}

/// Runs a part of the scheduler for a statement. A panic, as by a fault in the plan's arithmetic, ends that statement
/// and no other.
fn fenced(job: &mut Job, after: &mut After, f: impl FnOnce(&mut Job, &mut After)) {
    let run = catch_unwind(AssertUnwindSafe(|| f(job, after)));
    if let Err(payload) = run {
        job.fail(panicked(payload.as_ref()), None, &mut after.trash);
    }
}

impl Statement {
    /// Returns the operand's error for a panic in its code.
    pub(crate) fn panicked(
        &self,
        key: crate::schedule::table::OperandKey,
        payload: &(dyn std::any::Any + Send),
    ) -> Error {
        Error::of_panic(self.name(key), payload)
    }
}
