//! The server's side of tasks.
//!
//! ```text
//! DistributedExec      ──▶ coordinator_channel: the part of a task is parked here      when the plan starts
//! NetworkCoalesceExec  ──▶ execute_task: its rows, a stream that has not begun         when a gather starts a split
//! first poll           ──▶ waits for the part, sends the task, decodes the answer
//! ```
//! The plan starts and parks its parts at the same time, so a task may come before its part. Parts are parked until the
//! plan ends: a task of a part may run again.
//!
//! A task that no worker runs computes here, from the same template and in batches of the same size, so it yields the
//! same batches: those that a worker had yielded before are dropped. Such tasks share permits, which they hold while they
//! compute, never while they wait for their reader.

use super::message::{Answer, BatchReader, Request, broken};
use super::task::TaskExec;
use super::{Part, RowsFault, RowsPeers, RowsTask};
use crate::rows::IsStopped;
use crate::rows::splits::{JoinRules, with_coded_groups, with_grace_joins};
use crate::rows::stop::stoppable;
use async_trait::async_trait;
use bytes::Bytes;
use datafusion::arrow::record_batch::RecordBatch;
use datafusion::common::{internal_datafusion_err, internal_err};
use datafusion::error::{DataFusionError, Result};
use datafusion::execution::TaskContext;
use datafusion::physical_plan::ExecutionPlan;
use datafusion::physical_plan::metrics::ExecutionPlanMetricsSet;
use datafusion_distributed::{
    ChannelResolver, CoordinatorToWorkerMsg, ExecuteTaskRequest, GetWorkerInfoRequest,
    GetWorkerInfoResponse, MaybeEncoded, SetPlanRequest, TaskKey, WorkerChannel,
    WorkerToCoordinatorMsg,
};
use futures::stream::{self, BoxStream};
use futures::{StreamExt, TryStreamExt, future};
use http::HeaderMap;
use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tessera_exec::error::Error as ExecError;
use tessera_exec::rows::RowsDone;
use tokio::sync::{Notify, Semaphore};
use url::Url;

/// How long a task waits for its part, which the same plan hands over when it starts.
const PART_WAIT: Duration = Duration::from_secs(60);

#[derive(Clone)]
pub(super) struct TaskChannel(Arc<Shared>);

struct Shared {
    peers: Arc<dyn RowsPeers>,
    /// The parts of tasks that may run. `None` for a plan that is not a part.
    parked: Mutex<HashMap<TaskKey, Option<Arc<Part>>>>,
    arrived: Notify,
    /// Permits of tasks that compute here.
    turns: Semaphore,
    /// The templates of the parts that ran here, which tasks of a part share.
    templates: Mutex<BTreeMap<u32, Arc<dyn ExecutionPlan>>>,
    is_stopped: IsStopped,
}

impl TaskChannel {
    /// A channel to peers. At most `turns` tasks compute here at the same time; they end once `is_stopped` returns
    /// true.
    pub(super) fn new(peers: Arc<dyn RowsPeers>, turns: usize, is_stopped: IsStopped) -> Self {
        TaskChannel(Arc::new(Shared {
            peers,
            parked: Mutex::default(),
            arrived: Notify::new(),
            turns: Semaphore::new(turns.clamp(1, Semaphore::MAX_PERMITS)),
            templates: Mutex::default(),
            is_stopped,
        }))
    }

    fn parked(&self) -> MutexGuard<'_, HashMap<TaskKey, Option<Arc<Part>>>> {
        self.0.parked.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn parked_part(&self, key: &TaskKey) -> Option<Option<Arc<Part>>> {
        self.parked().get(key).cloned()
    }

    /// Waits for the part of a task.
    async fn part(&self, key: TaskKey) -> Result<Arc<Part>> {
        let found = async {
            loop {
                // Before the check: a part may arrive in between.
                let arrived = self.0.arrived.notified();
                if let Some(part) = self.parked_part(&key) {
                    return part;
                }
                arrived.await;
            }
        };
        let part = tokio::time::timeout(PART_WAIT, found).await;
        part.map_err(|_| {
            let (task, seconds) = (key.task_number, PART_WAIT.as_secs());
            internal_datafusion_err!("the plan of task {task} did not come in {seconds} seconds")
        })?
        .ok_or_else(|| internal_datafusion_err!("task {} has no part", key.task_number))
    }

    /// The template of a part, for tasks that compute here.
    fn template(&self, part: &Part) -> Result<Arc<dyn ExecutionPlan>> {
        let mut templates = self.0.templates.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(template) = templates.get(&part.number) {
            return Ok(template.clone());
        }
        let (template, is_stopped) = (part.template.clone(), &self.0.is_stopped);
        let template = with_grace_joins(template, JoinRules::IN_PLACE_OF_WORKERS, is_stopped)?;
        let template = stoppable(with_coded_groups(template)?, is_stopped)?;
        templates.insert(part.number, template.clone());
        Ok(template)
    }

    fn rows(&self, part: Arc<Part>, task: usize, context: Arc<TaskContext>) -> Result<TaskRows> {
        let request = Request {
            tasks: part.tasks as u32,
            batch_rows: u32::try_from(context.session_config().batch_size()).unwrap_or(u32::MAX),
            engine: datafusion::DATAFUSION_VERSION.into(),
        };
        let answer = self.0.peers.start(RowsTask {
            stage: part.number,
            task: task as u32,
            tasks: request.tasks,
            kept: part.kept as u32,
            header: request.write()?,
            plan: part.encoded.clone(),
        });
        Ok(TaskRows {
            source: Source::Worker { answer, reader: Box::default() },
            channel: self.clone(),
            part,
            task,
            context,
            batches: 0,
            rows: 0,
        })
    }
}

/// Removes a part when its plan has ended.
struct Parked {
    channel: TaskChannel,
    key: TaskKey,
}

impl Drop for Parked {
    fn drop(&mut self) {
        self.channel.parked().remove(&self.key);
    }
}

#[async_trait]
impl ChannelResolver for TaskChannel {
    async fn get_worker_client_for_url(
        &self,
        _: &Url,
    ) -> Result<Box<dyn WorkerChannel>, DataFusionError> {
        Ok(Box::new(self.clone()))
    }
}

#[async_trait]
impl WorkerChannel for TaskChannel {
    /// Parks the part of a task. It never fails: the plan would see that only after its last row. The stream that it
    /// returns ends with the plan.
    async fn coordinator_channel(
        &mut self,
        _: HeaderMap,
        request: SetPlanRequest,
        messages: BoxStream<'static, CoordinatorToWorkerMsg>,
        _: ExecutionPlanMetricsSet,
        _: &Arc<TaskContext>,
    ) -> Result<BoxStream<'static, Result<WorkerToCoordinatorMsg>>> {
        let key = request.task_key;
        let part = match &request.plan {
            MaybeEncoded::Decoded(plan) => {
                plan.downcast_ref::<TaskExec>().and_then(TaskExec::part).cloned()
            }
            MaybeEncoded::Encoded(_) => None,
        };
        self.parked().insert(key, part);
        // A plan that is dropped drops the stream before its end.
        let parked = Parked { channel: self.clone(), key };
        self.0.arrived.notify_waiters();
        let ended = async move {
            messages.for_each(|_| future::ready(())).await;
            drop(parked);
        };
        Ok(stream::once(ended).filter_map(|()| async { None }).boxed())
    }

    async fn execute_task(
        &mut self,
        _: HeaderMap,
        request: ExecuteTaskRequest,
        _: ExecutionPlanMetricsSet,
        context: &Arc<TaskContext>,
    ) -> Result<Vec<BoxStream<'static, Result<RecordBatch>>>> {
        let (first, end) = (request.target_partition_start, request.target_partition_end);
        if (first, end) != (0, 1) {
            return internal_err!("a task has one partition, not {first} to {end}");
        }
        let (channel, key, context) = (self.clone(), request.task_key, context.clone());
        let begun = async move {
            let part = channel.part(key).await?;
            let rows = channel.rows(part, key.task_number, context)?;
            Ok::<_, DataFusionError>(stream::try_unfold(rows, |mut rows| async move {
                Ok::<_, DataFusionError>(rows.next().await?.map(|batch| (batch, rows)))
            }))
        };
        Ok(vec![stream::once(begun).try_flatten().boxed()])
    }

    async fn get_worker_info(&mut self, _: GetWorkerInfoRequest) -> Result<GetWorkerInfoResponse> {
        Ok(GetWorkerInfoResponse { version: datafusion::DATAFUSION_VERSION.into() })
    }
}

/// The rows of a task, in the batches of its split.
struct TaskRows {
    source: Source,
    channel: TaskChannel,
    part: Arc<Part>,
    task: usize,
    context: Arc<TaskContext>,
    batches: u64,
    rows: u64,
}

enum Source {
    Worker {
        answer: BoxStream<'static, std::result::Result<Bytes, RowsFault>>,
        reader: Box<BatchReader>,
    },
    /// The task computes here.
    Here {
        rows: BoxStream<'static, Result<RecordBatch>>,
        /// Batches and rows that a worker had yielded before.
        skipped: Skipped,
    },
}

#[derive(Default)]
struct Skipped {
    batches: u64,
    rows: u64,
}

impl TaskRows {
    async fn next(&mut self) -> Result<Option<RecordBatch>> {
        loop {
            let Source::Worker { answer, reader } = &mut self.source else {
                return self.next_here().await;
            };
            match answer.next().await {
                Some(Ok(message)) => match Answer::read(message)? {
                    Answer::Piece(piece) => {
                        if let Some(batch) = reader.take(&piece)? {
                            return self.yielded(batch).map(Some);
                        }
                    }
                    Answer::Runs(runs) => {
                        let (stage, task) = (self.part.number, self.task);
                        tracing::trace!(stage, task, rows = runs.rows, "a task of rows runs");
                    }
                    Answer::Done(done) => return self.checked(&done).map(|()| None),
                    Answer::Part(_) | Answer::Lacks => {
                        return Err(broken("a worker answers what no task answers".into()));
                    }
                },
                Some(Err(RowsFault::Here(reason))) => self.run_here(&reason)?,
                Some(Err(RowsFault::Failed(error))) => {
                    return Err(DataFusionError::External(error));
                }
                // Without `Done`, rows may be missing.
                None => {
                    let (stage, task) = (self.part.number, self.task);
                    let error = ExecError::PartyLost {
                        party: "a worker".into(),
                        reason: format!("the rows of task {task} of stage {stage} have no end"),
                    };
                    return Err(DataFusionError::External(Box::new(error)));
                }
            }
        }
    }

    fn yielded(&mut self, batch: RecordBatch) -> Result<RecordBatch> {
        let (columns, own) = (self.part.template.schema().fields().len(), batch.num_columns());
        if columns != own {
            return Err(broken(format!("a worker yields {own} columns instead of {columns}")));
        }
        self.batches += 1;
        self.rows += batch.num_rows() as u64;
        Ok(batch)
    }

    fn checked(&self, done: &RowsDone) -> Result<()> {
        if (done.batches, done.rows) == (self.batches, self.rows) {
            let (stage, task, peak_bytes) = (self.part.number, self.task, done.peak_bytes);
            tracing::debug!(
                stage,
                task,
                rows = done.rows,
                done.seconds,
                peak_bytes,
                "a task of rows ended"
            );
            return Ok(());
        }
        Err(broken(format!(
            "task {} of stage {} has {} rows in {} batches, and {} in {} arrived",
            self.task, self.part.number, done.rows, done.batches, self.rows, self.batches
        )))
    }

    /// Lets the task compute here.
    fn run_here(&mut self, reason: &str) -> Result<()> {
        let (stage, task) = (self.part.number, self.task);
        tracing::info!(stage, task, reason, "a task of rows runs on the server");
        let rows = self.channel.template(&self.part)?.execute(self.task, self.context.clone())?;
        self.source = Source::Here { rows: rows.boxed(), skipped: Skipped::default() };
        Ok(())
    }

    async fn next_here(&mut self) -> Result<Option<RecordBatch>> {
        let Source::Here { rows, skipped } = &mut self.source else {
            return internal_err!("a task that a worker runs is read here");
        };
        loop {
            let batch = {
                let closed = |_| internal_datafusion_err!("the turns of tasks have ended");
                let _turn = self.channel.0.turns.acquire().await.map_err(closed)?;
                rows.try_next().await?
            };
            if skipped.batches == self.batches {
                // The other batches are those of the same rows only if these were.
                if skipped.rows != self.rows {
                    let (before, now) = (self.rows, skipped.rows);
                    let what = format!("{now} rows instead of {before} in a task that ran again");
                    return Err(broken(what));
                }
                return Ok(batch);
            }
            let Some(batch) = batch else {
                let (before, now) = (self.batches, skipped.batches);
                let what = format!("{now} batches instead of {before} in a task that ran again");
                return Err(broken(what));
            };
            skipped.batches += 1;
            skipped.rows += batch.num_rows() as u64;
        }
    }
}
