//! Rows of a statement on workers: tasks, each a stream of batches from one worker.
//!
//! ```text
//!   task ─▶ a worker with room ─▶ batch, batch, …, Done
//!             │  the worker is lost ─▶ again elsewhere, without the batches that were yielded; alone if it is suspect
//!             │  a failure          ─▶ again, a bounded number of times
//!             └▶ it cannot          ─▶ Here: the server runs the task
//! ```
//! A task is deterministic: a later attempt returns the same batches as the first one. So each batch is yielded once
//! and whole, even if workers are lost. Only the message `Done` proves that all batches have arrived.
//!
//! Tasks that group or sort rows by parts read the parts from the workers that keep them ([`exchange`]).
//!
//! This module does not know how rows are computed: requests and batches are bytes ([`crate::wire::RowsOrder`]). The
//! tasks that a worker ran when it died are suspect, like the operands of orders ([`crate::drive::suspects`]).

mod assign;
mod attempt;
mod deaths;
mod exchange;
mod figures;
mod pieces;
pub(crate) mod slots;

pub use figures::{RowsOfWorker, RowsTotals};

use crate::drive::suspects::Suspects;
use crate::drive::{FAILURES_MAX, forget};
use crate::server::Cluster;
use crate::wire::RowsName;
use assign::Tried;
use attempt::{Attempt, Ended};
use bytes::Bytes;
use exchange::Exchange;
use figures::Figures;
use futures::StreamExt;
use futures::stream::{self, BoxStream};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tessera_exec::error::Error;
use tessera_storage::lock;
use thiserror::Error as ThisError;
use tokio::sync::mpsc;
use tokio::task::AbortHandle;

/// Timeout for the first response of a call to a worker.
const CALL: Duration = Duration::from_secs(30);
/// Batches that wait for the reader of a task, besides the batch that is to be added.
const READY: usize = 1;
/// Tasks that run at the same time for each thread of a worker: one computes while the other one is moved.
const TASKS_A_THREAD: usize = 2;

/// Why a task has no more batches.
#[derive(Debug, ThisError)]
pub enum RowsLost {
    /// No worker can run it, for this reason; none died of it. The server runs it, without the batches that were yielded.
    #[error("{0}")]
    Here(String),
    /// The statement ends.
    #[error(transparent)]
    Failed(Error),
}

/// The rows of a statement on workers. They forget them when it is dropped.
pub struct RowsPlan {
    cluster: Arc<Cluster>,
    query: [u8; 16],
    /// The name of the statement among the work of workers.
    id: String,
    statement: String,
    state: Mutex<State>,
    figures: Mutex<Figures>,
    /// For each worker and stage, whether the worker has the plan of the stage. Locked while it is sent.
    known: Mutex<BTreeMap<(u32, u32), Known>>,
}

/// True if a worker has the plan of a stage.
type Known = Arc<tokio::sync::Mutex<bool>>;

/// The state that the tasks of a statement share.
#[derive(Default)]
struct State {
    /// Tasks that workers ran when they died.
    suspects: Suspects,
    /// Suspects that have a worker for themselves, or wait for it.
    alone: usize,
    /// Workers that died of the statement, if it is poison.
    poison: Option<usize>,
    /// Workers that were lost while they ran tasks.
    lost: BTreeSet<u32>,
    /// Workers that could not run a task, and why: they get no more of them.
    left_out: BTreeMap<u32, String>,
    /// The workers that keep the rows that the tasks of a stage read by parts.
    exchanges: BTreeMap<u32, Exchange>,
    /// The statement waits for workers, and this was noted.
    waits: bool,
}

/// A task, as its reader asks for it.
#[derive(Debug)]
struct Task {
    stage: u32,
    number: u32,
    tasks: u32,
    /// The splits of which workers keep rows for the tasks; 0 if these read no rows of others.
    kept: u32,
    header: Bytes,
    plan: Bytes,
}

/// A message of a task for its reader.
enum Item {
    Batch(Vec<Bytes>),
    /// The last message.
    Done(Bytes),
}

type Items = mpsc::Sender<Result<Item, RowsLost>>;

impl std::fmt::Debug for RowsPlan {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("RowsPlan").field("statement", &self.statement).finish_non_exhaustive()
    }
}

impl RowsPlan {
    /// The rows of a statement, of which no task has begun.
    pub fn new(cluster: &Arc<Cluster>, statement: &str) -> Arc<Self> {
        let number = uuid::Uuid::new_v4();
        let id = number.simple().to_string();
        let plan = Arc::new(RowsPlan {
            cluster: cluster.clone(),
            query: number.into_bytes(),
            id: id.clone(),
            statement: statement.to_owned(),
            state: Mutex::default(),
            figures: Mutex::default(),
            known: Mutex::default(),
        });
        cluster.backlog().add_rows(&id, &plan);
        plan
    }

    /// Tasks that may run at the same time on the current workers; at least one.
    pub fn turns(&self) -> usize {
        let state = lock(&self.state);
        let alive = self.cluster.registry().alive();
        let able = alive.iter().filter(|m| !state.left_out.contains_key(&m.number));
        let threads: usize = able.map(|m| m.hello.threads as usize).sum();
        (threads * TASKS_A_THREAD).max(1)
    }

    /// Runs a task of a stage of `tasks` tasks, and yields its messages as a worker sent them: the pieces of batches,
    /// then `Done`. The task begins when the stream is first polled, and ends when the stream is dropped. If tasks read
    /// rows by parts, each worker keeps the rows of some of the `kept` splits. `plan` is sent to workers that do not
    /// know the stage; it is the same for all of its tasks.
    pub fn task(
        self: &Arc<Self>,
        stage: u32,
        task: u32,
        (tasks, kept): (u32, u32),
        header: Bytes,
        plan: Bytes,
    ) -> BoxStream<'static, Result<Bytes, RowsLost>> {
        let (all, task) = (self.clone(), Task { stage, number: task, tasks, kept, header, plan });
        stream::once(async move { all.begin(task) }).flatten().boxed()
    }

    /// The work of the tasks so far.
    pub fn totals(&self) -> RowsTotals {
        let lost = lock(&self.state).lost.len() as u64;
        RowsTotals { lost, ..lock(&self.figures).totals() }
    }

    /// Tasks of the stages that are read that have not ended, and about the seconds of a thread for them.
    pub(crate) fn left(&self) -> (u64, f64) {
        lock(&self.figures).left()
    }

    /// Starts a task. Connections and timers need the runtime of the cluster, whatever runtime the reader has.
    fn begin(self: Arc<Self>, task: Task) -> BoxStream<'static, Result<Bytes, RowsLost>> {
        let (items, read) = mpsc::channel(READY);
        let io = self.cluster.io().clone();
        let running = io.spawn(self.run(task, items));
        let reader = Reader {
            items: read,
            ready: VecDeque::new(),
            is_over: false,
            _running: Running(running.abort_handle()),
        };
        stream::unfold(reader, |mut reader| async move {
            let item = reader.next().await?;
            Some((item, reader))
        })
        .boxed()
    }

    async fn run(self: Arc<Self>, task: Task, items: Items) {
        let counted = figures::Read::new(&self, &task);
        let end = self.attempts(&task, &items).await;
        drop(counted);
        if let Err(lost) = end {
            if matches!(lost, RowsLost::Here(_)) {
                lock(&self.figures).ran_here(task.stage);
            }
            // Without a reader the error is not needed.
            drop(items.send(Err(lost)).await);
        }
    }

    /// Attempts a task until it has ended on a worker.
    async fn attempts(self: &Arc<Self>, task: &Task, items: &Items) -> Result<(), RowsLost> {
        let mut withdrawn = deaths::Withdrawn::new(self, task);
        let (mut tried, mut failures, mut delivered) = (Tried::default(), 0, 0);
        loop {
            if let Some(reason) = self.grouped_here(task) {
                return Err(RowsLost::Here(reason));
            }
            let place = self.assign(task, &tried).await?;
            let (worker, alone) = (place.worker, place.alone);
            tried.any = true;
            let ended = Attempt::new(self, task, place, items, &mut delivered).run().await;
            match ended {
                Ended::Done => {
                    self.acquit(task);
                    withdrawn.not();
                    return Ok(());
                }
                Ended::NoReader => return Ok(()),
                Ended::Evicted => {}
                Ended::Over(error) => return Err(RowsLost::Failed(error)),
                Ended::Died => {
                    lock(&self.figures).retried(worker);
                    self.died(task, worker, alone).await?;
                }
                Ended::HolderLost { address, reason } => {
                    lock(&self.figures).retried(worker);
                    self.holder_lost(task, &address, reason, &mut failures).await?;
                }
                Ended::Cannot(error) if !self.is_suspect(task) => {
                    let reason = error.to_string();
                    match task.kept {
                        0 => self.leave_out(worker, reason.clone()),
                        // The error may come from another worker whose rows all tasks of the stage need.
                        _ => self.group_here(task, &reason),
                    }
                    return Err(RowsLost::Here(reason));
                }
                Ended::Cannot(error) => {
                    // A suspect may kill the server, so another worker has to run it.
                    self.leave_out(worker, error.to_string());
                    self.again(task, worker, error, &mut failures).await?;
                }
                Ended::Failed(error) => {
                    tried.avoid.insert(worker);
                    self.again(task, worker, error, &mut failures).await?;
                }
            }
        }
    }

    /// Waits after a failure that is no death; fails if it is one too many.
    async fn again(
        &self,
        task: &Task,
        worker: u32,
        error: Error,
        failures: &mut u32,
    ) -> Result<(), RowsLost> {
        *failures += 1;
        if *failures >= FAILURES_MAX {
            return Err(RowsLost::Failed(error));
        }
        lock(&self.figures).retried(worker);
        let (stage, number) = (task.stage, task.number);
        tracing::warn!(stage, number, worker, %error, "a task of rows is tried again");
        tokio::time::sleep(Duration::from_millis(50 << *failures)).await;
        Ok(())
    }

    /// Gives a worker no more tasks of this statement.
    fn leave_out(&self, worker: u32, reason: String) {
        let what = format!("it cannot run rows of the statement: {reason}");
        if lock(&self.state).left_out.insert(worker, reason).is_none() {
            self.cluster.registry().note("no_rows", Some(worker), Some(&self.statement), what);
        }
    }
}

impl Drop for RowsPlan {
    fn drop(&mut self) {
        self.close();
        let known = std::mem::take(&mut *lock(&self.known));
        let workers: BTreeSet<u32> = known.into_keys().map(|(worker, _)| worker).collect();
        for worker in workers {
            let name = RowsName { query: self.query };
            let rows = ("forget_rows", "rows");
            self.cluster.io().spawn(forget(self.cluster.clone(), worker, rows, name));
        }
    }
}

/// The reader's end of a task.
struct Reader {
    items: mpsc::Receiver<Result<Item, RowsLost>>,
    /// The pieces of a batch that the reader has not taken.
    ready: VecDeque<Bytes>,
    is_over: bool,
    _running: Running,
}

/// A running task, until it is dropped.
struct Running(AbortHandle);

impl Drop for Running {
    fn drop(&mut self) {
        self.0.abort();
    }
}

impl Reader {
    async fn next(&mut self) -> Option<Result<Bytes, RowsLost>> {
        loop {
            if let Some(message) = self.ready.pop_front() {
                return Some(Ok(message));
            }
            if self.is_over {
                return None;
            }
            let end = match self.items.recv().await {
                Some(Ok(Item::Batch(messages))) => {
                    self.ready.extend(messages);
                    continue;
                }
                Some(Ok(Item::Done(message))) => Ok(message),
                Some(Err(lost)) => Err(lost),
                None => {
                    // The task panicked, or the runtime of the cluster has ended.
                    let what = "a task of rows was lost before its end".into();
                    Err(RowsLost::Failed(Error::Broken { what }))
                }
            };
            self.is_over = true;
            return Some(end);
        }
    }
}

#[cfg(test)]
mod tests;
