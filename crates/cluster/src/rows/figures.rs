//! Figures of the tasks of a statement: for its progress, its measurements and the work that waits.

use super::{RowsPlan, Task};
use std::collections::BTreeMap;
use tessera_exec::rows::{RowsDone, RowsRuns};
use tessera_storage::lock;

/// Seconds of one thread for a task of a stage of which no task has ended: the time for 8 MiB of a file.
const EXPECTED_S: f64 = 0.03;

/// The work of a statement's tasks on workers.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct RowsTotals {
    /// Tasks of the stages that have begun.
    pub tasks: u64,
    /// Tasks that ended on workers.
    pub done: u64,
    /// Tasks that were left to the server.
    pub here: u64,
    /// Tasks that run on workers.
    pub running: u64,
    /// Tasks that wait for a worker.
    pub waiting: u64,
    /// Seconds of the tasks that ended, and of running tasks so far.
    pub seconds: f64,
    /// Workers that were lost while they ran tasks.
    pub lost: u64,
    /// Counters of each worker, by number.
    pub each: BTreeMap<u32, RowsOfWorker>,
}

/// The work of one worker.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct RowsOfWorker {
    /// Tasks that ended.
    pub tasks: u64,
    /// Rows that these tasks sent, and that running tasks have sent so far.
    pub rows: u64,
    /// Bytes of batches that arrived.
    pub bytes: u64,
    /// Seconds that its tasks took.
    pub seconds: f64,
    /// Tasks that ran again, because they had failed here or the worker was lost.
    pub retries: u64,
}

#[derive(Debug, Default)]
pub(super) struct Figures {
    stages: BTreeMap<u32, Stage>,
    each: BTreeMap<u32, RowsOfWorker>,
    /// Running attempts, by number.
    running: BTreeMap<u64, (u32, RowsRuns)>,
    next: u64,
    waiting: u64,
}

#[derive(Debug, Default)]
struct Stage {
    tasks: u64,
    /// Tasks that have a reader and have not ended.
    read: u64,
    done: u64,
    here: u64,
    seconds: f64,
}

impl Figures {
    pub(super) fn totals(&self) -> RowsTotals {
        let mut totals = RowsTotals {
            running: self.running.len() as u64,
            waiting: self.waiting,
            each: self.each.clone(),
            ..RowsTotals::default()
        };
        for stage in self.stages.values() {
            totals.tasks += stage.tasks;
            totals.done += stage.done;
            totals.here += stage.here;
            totals.seconds += stage.seconds;
        }
        for (worker, runs) in self.running.values() {
            totals.seconds += runs.seconds;
            let of = totals.each.entry(*worker).or_default();
            of.rows += runs.rows;
            of.seconds += runs.seconds;
        }
        totals
    }

    /// Tasks that have not ended, of the stages that are read, and about the seconds of a thread for them.
    pub(super) fn left(&self) -> (u64, f64) {
        let stages = self.stages.values().filter(|stage| stage.read > 0);
        stages.fold((0, 0.0), |(tasks, seconds), stage| {
            let left = stage.tasks.saturating_sub(stage.done + stage.here);
            let each_s = match stage.done {
                0 => EXPECTED_S,
                done => stage.seconds / done as f64,
            };
            (tasks + left, seconds + each_s * left as f64)
        })
    }

    pub(super) fn ran_here(&mut self, stage: u32) {
        self.stages.entry(stage).or_default().here += 1;
    }

    /// Counts a task that runs again, by the worker on which it had run.
    pub(super) fn retried(&mut self, worker: u32) {
        self.each.entry(worker).or_default().retries += 1;
    }

    /// Counts bytes of batches that arrived.
    pub(super) fn arrived(&mut self, worker: u32, bytes: u64) {
        self.each.entry(worker).or_default().bytes += bytes;
    }

    pub(super) fn runs(&mut self, attempt: u64, runs: RowsRuns) {
        if let Some((_, last)) = self.running.get_mut(&attempt) {
            *last = runs;
        }
    }

    /// Counts a task that ended on a worker.
    pub(super) fn done(&mut self, attempt: u64, stage: u32, worker: u32, done: &RowsDone) {
        self.running.remove(&attempt);
        let of = self.stages.entry(stage).or_default();
        of.done += 1;
        of.seconds += done.seconds;
        let of = self.each.entry(worker).or_default();
        of.tasks += 1;
        of.rows += done.rows;
        of.seconds += done.seconds;
    }
}

/// Counts a task while it is read and has not ended.
pub(super) struct Read<'a> {
    plan: &'a RowsPlan,
    stage: u32,
}

impl<'a> Read<'a> {
    pub(super) fn new(plan: &'a RowsPlan, task: &Task) -> Self {
        let mut figures = lock(&plan.figures);
        let stage = figures.stages.entry(task.stage).or_default();
        stage.tasks = stage.tasks.max(u64::from(task.tasks));
        stage.read += 1;
        drop(figures);
        Read { plan, stage: task.stage }
    }
}

impl Drop for Read<'_> {
    fn drop(&mut self) {
        if let Some(stage) = lock(&self.plan.figures).stages.get_mut(&self.stage) {
            stage.read -= 1;
        }
    }
}

/// Counts a task while it waits for a worker.
pub(super) struct Waits<'a>(&'a RowsPlan);

impl<'a> Waits<'a> {
    pub(super) fn new(plan: &'a RowsPlan) -> Self {
        lock(&plan.figures).waiting += 1;
        Waits(plan)
    }
}

impl Drop for Waits<'_> {
    fn drop(&mut self) {
        lock(&self.0.figures).waiting -= 1;
    }
}

/// Counts an attempt while it runs on a worker.
pub(super) struct Runs<'a> {
    plan: &'a RowsPlan,
    pub(super) number: u64,
}

impl<'a> Runs<'a> {
    pub(super) fn new(plan: &'a RowsPlan, worker: u32) -> Self {
        let mut figures = lock(&plan.figures);
        figures.next += 1;
        let number = figures.next;
        figures.running.insert(number, (worker, RowsRuns::default()));
        drop(figures);
        Runs { plan, number }
    }
}

impl Drop for Runs<'_> {
    fn drop(&mut self) {
        lock(&self.plan.figures).running.remove(&self.number);
    }
}
