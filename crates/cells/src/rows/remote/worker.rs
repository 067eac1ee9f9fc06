//! The worker's side of tasks.
//!
//! ```text
//! start ──▶ a task on the threads of rows ──▶ stage: known, or decoded once ──▶ Worker ──▶ TaskExec ──▶ batches
//!                                                                                             │ a channel of two messages
//! answer ◀── pieces, Runs every 250 ms ◀──────────────────────────────────────────────────────┘
//!        ◀── Done, once the task was joined; its error or its panic otherwise
//! ```
//! A stage has one template and one memory pool for all of its tasks: a build side of a join is computed once, and a
//! stage is to the memory of this process what a statement is. Tasks of parts read rows that workers keep
//! for each other ([`parts`]). Dropping an answer aborts its task. A long poll ends by the flag of the stage, which is
//! set when the stage is forgotten, or when the last of its tasks is dropped before its end; the next task of that stage
//! decodes its plan anew.

mod answer;
mod parts;

pub use parts::{HolderFault, RowsHolder, RowsHolders, RowsPartStart};

use super::codec::{self, Decoded};
use super::message::{BatchWriter, Request};
use super::stage::anywhere;
use super::task::TaskExec;
use crate::error::Error;
use crate::rows::splits::{JoinRules, SPLIT_BYTES, with_coded_groups, with_grace_joins};
use crate::rows::stop::stoppable;
use crate::rows::{IsStopped, RowsRuntime};
use answer::Answer;
use bytes::Bytes;
use datafusion::arrow::record_batch::RecordBatch;
use datafusion::common::internal_datafusion_err;
use datafusion::error::DataFusionError;
use datafusion::execution::{SendableRecordBatchStream, SessionState, TaskContext};
use datafusion::physical_plan::ExecutionPlan;
use datafusion_distributed::{
    CoordinatorToWorkerMsg, ExecuteTaskRequest, MaybeEncoded, ProducerHead, SetPlanRequest,
    TaskKey, Worker,
};
use futures::StreamExt;
use futures::stream::{self, BoxStream};
use http::HeaderMap;
use parts::KeptSplits;
use std::collections::BTreeMap;
use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use tessera_exec::error::Error as ExecError;
use tessera_exec::rows::{ROWS_REFUSED, RowsDone};
use tessera_planner::error::Class;
use tessera_storage::source::Stores;
use tokio::sync::{OnceCell, Semaphore, mpsc, oneshot};
use tokio::task::JoinSet;
use uuid::Uuid;

/// Messages of a task that are buffered.
const WAITING: usize = 2;

/// The time for which a stage without tasks is retained, and the interval of checks.
const IDLE: Duration = Duration::from_secs(60);
/// As [`IDLE`], for a stage that stores rows, which would be recomputed. It is forgotten before, unless its server is
/// lost.
const IDLE_KEPT: Duration = Duration::from_secs(600);
const IDLE_CHECK: Duration = Duration::from_secs(15);

/// The query and the stage.
type Key = ([u8; 16], u32);

/// A task that a worker is to run.
#[derive(Debug, Clone)]
pub struct RowsStart {
    /// The run of the statement.
    pub query: [u8; 16],
    /// The stage.
    pub stage: u32,
    /// The task within the stage.
    pub task: u32,
    /// [`RowsTask::header`](super::RowsTask::header).
    pub header: Bytes,
    /// The plan of the stage, unless the worker has it.
    pub plan: Option<Bytes>,
    /// The workers that store the rows which tasks of the stage read by parts, in the order of the splits.
    pub holders: Vec<RowsHolder>,
}

/// Counts of a worker's tasks of rows.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct RowsLoad {
    /// Tasks that are running.
    pub running: u64,
    /// Tasks that ended, with all rows, since the process started.
    pub done: u64,
    /// Rows that were sent since then.
    pub rows: u64,
    /// Encoded bytes of these rows.
    pub bytes: u64,
    /// Stages that are known.
    pub stages: u64,
    /// Stages that store rows for other workers.
    pub kept: u64,
}

/// Runs tasks of rows for other processes.
pub struct RowsTasks {
    runtime: Arc<RowsRuntime>,
    stores: Stores,
    others: Arc<dyn RowsHolders>,
    worker: Worker,
    stages: Mutex<BTreeMap<Key, KnownStage>>,
    /// Permits of tasks that compute: each may need memory for a split.
    turns: Semaphore,
    running: AtomicU64,
    done: AtomicU64,
    rows: AtomicU64,
    bytes: AtomicU64,
}

struct KnownStage {
    stage: Arc<Stage>,
    tasks: usize,
    /// The time at which the last task ended.
    idle_since: Instant,
}

struct Stage {
    ready: OnceCell<Arc<Ready>>,
    is_stopped: Arc<AtomicBool>,
}

impl Stage {
    fn kept(&self) -> Option<&KeptSplits> {
        self.ready.get().map(|ready| &ready.kept)
    }

    fn keeps_rows(&self) -> bool {
        self.kept().is_some_and(KeptSplits::has_rows)
    }
}

/// A stage whose plan is decoded.
struct Ready {
    task: Arc<dyn ExecutionPlan>,
    /// The plan that `task` executes.
    template: Arc<dyn ExecutionPlan>,
    context: Arc<TaskContext>,
    /// The encoded plan, for workers that lack it.
    plan: Bytes,
    kept: KeptSplits,
    /// Keeps the stores of the plan registered.
    _decoded: Decoded,
}

enum Ended {
    Done(RowsDone),
    /// The stage is unknown, and the task has no plan.
    Lacks,
}

impl RowsTasks {
    /// Tasks that use the memory, the scratch space and the threads of a runtime, and open files through `stores`. They
    /// read the rows that other workers keep through `others`.
    pub fn new(
        runtime: Arc<RowsRuntime>,
        stores: Stores,
        others: Arc<dyn RowsHolders>,
    ) -> Arc<Self> {
        let turns = usize::try_from(runtime.share()).unwrap_or(usize::MAX) / SPLIT_BYTES;
        let (running, done, rows, bytes) = Default::default();
        Arc::new(RowsTasks {
            runtime,
            stores,
            others,
            worker: Worker::default(),
            stages: Mutex::default(),
            turns: Semaphore::new(turns.clamp(1, Semaphore::MAX_PERMITS)),
            running,
            done,
            rows,
            bytes,
        })
    }

    /// Starts a task. The stream yields messages and ends with `Done`, or with the error of the task. Dropping it aborts
    /// the task. It is polled on a runtime of tokio.
    pub fn start(
        self: &Arc<Self>,
        start: RowsStart,
    ) -> BoxStream<'static, Result<Bytes, ExecError>> {
        let what = format!("task {} of stage {} of rows", start.task, start.stage);
        self.answer(what, move |run| run.run(start))
    }

    /// Runs the work of an answer on the threads of rows.
    fn answer<F>(
        self: &Arc<Self>,
        what: String,
        run: impl FnOnce(TaskRun) -> F,
    ) -> BoxStream<'static, Result<Bytes, ExecError>>
    where
        F: Future<Output = Result<Ended, ExecError>> + Send + 'static,
    {
        let threads = match self.runtime.threads() {
            Ok(threads) => threads,
            Err(e) => return stream::iter([Err(reported(e))]).boxed(),
        };
        let (send, messages) = mpsc::channel(WAITING);
        let rows = Arc::new(AtomicU64::new(0));
        let mut task = JoinSet::new();
        let started = Instant::now();
        let with = TaskRun { tasks: self.clone(), send, rows: rows.clone(), started };
        task.spawn_on(run(with), &threads);
        let answer = Answer::new(what, messages, task, rows, started);
        stream::unfold(answer, |mut answer| async move {
            answer.next().await.map(|message| (message, answer))
        })
        .fuse()
        .boxed()
    }

    /// Ends the tasks of a query and drops its stages.
    pub fn forget(&self, query: [u8; 16]) {
        self.forget_if(|key| key.0 == query);
    }

    fn forget_if(&self, is_over: impl Fn(&Key) -> bool) {
        self.stages().retain(|key, known| {
            let is_over = is_over(key);
            if is_over {
                known.stage.is_stopped.store(true, Relaxed);
            }
            !is_over
        });
    }

    /// True if a task of the stage needs no plan.
    pub fn knows(&self, query: [u8; 16], stage: u32) -> bool {
        self.stages().get(&(query, stage)).is_some_and(|known| known.stage.ready.initialized())
    }

    /// Counts of running and finished tasks.
    pub fn load(&self) -> RowsLoad {
        let stages = self.stages();
        let keeps = |known: &&KnownStage| known.stage.kept().is_some_and(|kept| !kept.is_empty());
        RowsLoad {
            running: self.running.load(Relaxed),
            done: self.done.load(Relaxed),
            rows: self.rows.load(Relaxed),
            bytes: self.bytes.load(Relaxed),
            stages: stages.len() as u64,
            kept: stages.values().filter(keeps).count() as u64,
        }
    }

    fn stages(&self) -> MutexGuard<'_, BTreeMap<Key, KnownStage>> {
        self.stages.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Enters a stage, which is new if its plan came; `None` if the stage is unknown and the plan is missing.
    fn enter(self: &Arc<Self>, key: Key, has_plan: bool) -> Option<InStage> {
        let mut stages = self.stages();
        if let Some(known) = stages.get_mut(&key) {
            known.tasks += 1;
            let stage = known.stage.clone();
            return Some(InStage { tasks: self.clone(), key, stage, has_ended: false });
        }
        if !has_plan {
            return None;
        }
        let stage = Arc::new(Stage { ready: OnceCell::new(), is_stopped: Arc::default() });
        let known = KnownStage { stage: stage.clone(), tasks: 1, idle_since: Instant::now() };
        stages.insert(key, known);
        drop(stages);
        self.watch(&stage);
        Some(InStage { tasks: self.clone(), key, stage, has_ended: false })
    }

    /// Checks periodically for idle stages, as long as this stage exists.
    fn watch(self: &Arc<Self>, stage: &Arc<Stage>) {
        let (tasks, stage) = (Arc::downgrade(self), Arc::downgrade(stage));
        tokio::spawn(async move {
            while stage.strong_count() > 0 {
                tokio::time::sleep(IDLE_CHECK).await;
                let Some(tasks) = tasks.upgrade() else { return };
                tasks.drop_idle(Instant::now());
            }
        });
    }

    /// Drops the stages that have had no task for some time.
    fn drop_idle(&self, now: Instant) {
        self.stages().retain(|_, known| {
            let idle = if known.stage.keeps_rows() { IDLE_KEPT } else { IDLE };
            known.tasks > 0 || now.saturating_duration_since(known.idle_since) < idle
        });
    }

    fn decoded(&self, stage: &Stage, plan: &Bytes, request: &Request) -> Result<Ready, Error> {
        let rows = self.runtime.state();
        let state = rows.get()?;
        let decoded = codec::decode(plan, state, &self.runtime, &self.stores)?;
        self.ready(stage, state, (decoded, plan.clone()), request.batch_rows as usize)
    }

    fn ready(
        &self,
        stage: &Stage,
        state: &SessionState,
        (decoded, plan): (Decoded, Bytes),
        batch_rows: usize,
    ) -> Result<Ready, Error> {
        let flag = stage.is_stopped.clone();
        let is_stopped: IsStopped = Arc::new(move || flag.load(Relaxed));
        // After it was decoded: what checks for the end is not part of the plan.
        let template = decoded.plan.clone();
        let template = with_grace_joins(template, JoinRules::ON_WORKERS, &is_stopped)?;
        let template = stoppable(with_coded_groups(template)?, &is_stopped)?;
        let config = state.config().clone();
        let context =
            Arc::new(self.runtime.task_context(state, config, None, batch_rows.max(1), None));
        let task = Arc::new(TaskExec::here(&template, &context));
        let kept = KeptSplits::default();
        Ok(Ready { task, template, context, plan, kept, _decoded: decoded })
    }
}

#[cfg(test)]
impl RowsTasks {
    /// Adds a stage of that plan, which remains until it is forgotten.
    pub(super) fn add_stage(
        &self,
        key: Key,
        plan: Arc<dyn ExecutionPlan>,
        batch_rows: usize,
    ) -> Result<(), Error> {
        let rows = self.runtime.state();
        let mut stage = Stage { ready: OnceCell::new(), is_stopped: Arc::default() };
        let decoded = Decoded { plan, _stores: Vec::new() };
        let ready = self.ready(&stage, rows.get()?, (decoded, Bytes::new()), batch_rows)?;
        stage.ready = OnceCell::new_with(Some(Arc::new(ready)));
        let known = KnownStage { stage: Arc::new(stage), tasks: 1, idle_since: Instant::now() };
        self.stages().insert(key, known);
        Ok(())
    }
}

impl fmt::Debug for RowsTasks {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RowsTasks").field("load", &self.load()).finish_non_exhaustive()
    }
}

struct InStage {
    tasks: Arc<RowsTasks>,
    key: Key,
    stage: Arc<Stage>,
    /// False for a task that failed or is dropped.
    has_ended: bool,
}

impl Drop for InStage {
    fn drop(&mut self) {
        let mut stages = self.tasks.stages();
        let Some(known) = stages.get_mut(&self.key) else { return };
        // Another task may have decoded a stage of the same number in between.
        if !Arc::ptr_eq(&known.stage, &self.stage) {
            return;
        }
        known.tasks -= 1;
        known.idle_since = Instant::now();
        if known.tasks == 0 && !self.has_ended && !self.stage.keeps_rows() {
            self.stage.is_stopped.store(true, Relaxed);
            stages.remove(&self.key);
        }
    }
}

struct TaskRun {
    tasks: Arc<RowsTasks>,
    send: mpsc::Sender<Bytes>,
    rows: Arc<AtomicU64>,
    started: Instant,
}

struct Counted(Arc<RowsTasks>);

impl Drop for Counted {
    fn drop(&mut self) {
        self.0.running.fetch_sub(1, Relaxed);
    }
}

struct Staged {
    within: InStage,
    ready: Arc<Ready>,
    request: Request,
}

impl TaskRun {
    /// Enters a stage, and decodes its plan if the stage is new; `None` if the stage is unknown and the plan is
    /// missing.
    async fn staged(
        &self,
        key: Key,
        header: &Bytes,
        plan: Option<&Bytes>,
    ) -> Result<Option<Staged>, ExecError> {
        let request = Request::read(header).map_err(|e| reported(e.into()))?;
        if request.engine != datafusion::DATAFUSION_VERSION {
            return Err(refused(&request.engine));
        }
        let Some(within) = self.tasks.enter(key, plan.is_some()) else { return Ok(None) };
        let stage = within.stage.clone();
        let decoded = stage.ready.get_or_try_init(|| async {
            match plan {
                Some(plan) => {
                    self.tasks.decoded(&stage, plan, &request).map(Arc::new).map_err(Some)
                }
                None => Err(None),
            }
        });
        let decoded = decoded.await;
        match decoded {
            Ok(ready) => Ok(Some(Staged { within, ready: ready.clone(), request })),
            Err(None) => Ok(None),
            Err(Some(e)) => Err(reported(e)),
        }
    }

    async fn run(self, start: RowsStart) -> Result<Ended, ExecError> {
        self.tasks.running.fetch_add(1, Relaxed);
        let _counted = Counted(self.tasks.clone());
        let key = (start.query, start.stage);
        let staged = self.staged(key, &start.header, start.plan.as_ref()).await?;
        let Some(Staged { mut within, ready, request }) = staged else { return Ok(Ended::Lacks) };
        // Held until the end: a task refers to its context weakly.
        let arriving = self.arriving(&start, &ready).await.map_err(|e| reported(e.into()))?;
        let task: Arc<dyn ExecutionPlan> = match &arriving {
            Some(context) => Arc::new(TaskExec::here(&ready.template, context)),
            None => ready.task.clone(),
        };
        // Held until the task ends or is aborted: then `Worker` drops its state of the task.
        let (over, until) = oneshot::channel();
        let rows = self.begun(&start, &request, task, until).await;
        let rows = rows.map_err(|e| reported(e.into()))?.boxed();
        let turns = Some(&self.tasks.turns);
        let done = self.sent(rows, turns, &ready).await.map_err(|e| reported(e.into()))?;
        drop(over);
        within.has_ended = true;
        self.tasks.done.fetch_add(1, Relaxed);
        Ok(Ended::Done(done))
    }

    /// Lets `Worker` begin the task.
    async fn begun(
        &self,
        start: &RowsStart,
        request: &Request,
        task: Arc<dyn ExecutionPlan>,
        until: oneshot::Receiver<()>,
    ) -> Result<SendableRecordBatchStream, DataFusionError> {
        // `Worker` accepts a plan for a key once, and a task may be sent again.
        let task_key = TaskKey {
            query_id: Uuid::new_v4(),
            stage_id: start.stage as usize,
            task_number: start.task as usize,
        };
        let plan = SetPlanRequest {
            task_key,
            task_count: request.tasks as usize,
            plan: MaybeEncoded::Decoded(task),
            work_unit_feed_declarations: vec![],
            target_worker_url: anywhere()?,
            query_start_time_ns: 0,
        };
        let messages: BoxStream<'static, Result<CoordinatorToWorkerMsg, DataFusionError>> =
            stream::once(until).filter_map(|_| async { None }).boxed();
        let worker = &self.tasks.worker;
        // Its messages about the task are not used.
        drop(worker.coordinator_channel(HeaderMap::new(), plan, messages).await?);
        let partition = ExecuteTaskRequest {
            task_key,
            target_partition_start: 0,
            target_partition_end: 1,
            producer_head: ProducerHead::None,
        };
        let (mut streams, _) = worker.execute_task(partition).await?;
        streams.pop().ok_or_else(|| internal_datafusion_err!("a task has no rows"))
    }

    /// Computes and sends the batches, each with one of `turns`.
    async fn sent(
        &self,
        mut rows: BoxStream<'static, Result<RecordBatch, DataFusionError>>,
        turns: Option<&Semaphore>,
        ready: &Ready,
    ) -> Result<RowsDone, DataFusionError> {
        let mut writer = BatchWriter::default();
        let (mut batches, mut peak_bytes) = (0, 0);
        loop {
            let (messages, count) = {
                let closed = |_| internal_datafusion_err!("the turns of tasks have ended");
                // Not held while the reader lets the task wait: another task may have to go first.
                let _turn = match turns {
                    Some(turns) => Some(turns.acquire().await.map_err(closed)?),
                    None => None,
                };
                let Some(batch) = rows.next().await.transpose()? else { break };
                (writer.messages(&batch)?, batch.num_rows() as u64)
            };
            batches += 1;
            peak_bytes = peak_bytes.max(ready.context.memory_pool().reserved() as u64);
            self.rows.fetch_add(count, Relaxed);
            for message in messages {
                let bytes = message.len() as u64;
                self.say(message).await?;
                self.tasks.bytes.fetch_add(bytes, Relaxed);
            }
            self.tasks.rows.fetch_add(count, Relaxed);
        }
        let (rows, seconds) = (self.rows.load(Relaxed), self.started.elapsed().as_secs_f64());
        Ok(RowsDone { rows, batches, seconds, peak_bytes })
    }

    async fn say(&self, message: Bytes) -> Result<(), DataFusionError> {
        let has_left = |_| DataFusionError::External(Box::new(ExecError::Cancelled));
        self.send.send(message).await.map_err(has_left)
    }
}

/// Converts an error for the requesting process.
fn reported(error: Error) -> ExecError {
    let error = match error {
        Error::Inner(inner) => match inner.downcast::<ExecError>() {
            Ok(ours) => return *ours,
            Err(inner) => Error::Inner(inner),
        },
        error => error,
    };
    ExecError::Reported(Box::new(error.report()))
}

fn refused(engine: &str) -> ExecError {
    let own = datafusion::DATAFUSION_VERSION;
    let what = format!("the worker has DataFusion {own}, and the server DataFusion {engine}");
    ExecError::reported(ROWS_REFUSED, Class::Retry, what, None)
}
