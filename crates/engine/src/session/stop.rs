//! Stopping statements: cancellation and timeouts.
//!
//! Our planner checks, wherever it may take long, if it has to stop ([`Stop::plan`]). DataFusion does not check,
//! neither while planning nor between two batches, so it works in a task of its own ([`Stop::physical`],
//! [`Stop::rows`]). A stopped statement leaves the task behind, which ends with its next batch. In both cases other
//! threads take over the other work of the blocked thread. Tasks are counted, including those left behind: no more than
//! [`TASKS_MAX`] run at once.

use crate::Handle;
use crate::error::Error;
use crate::session::cells::rows_error;
use datafusion::error::DataFusionError;
use datafusion::execution::{SendableRecordBatchStream, SessionState, TaskContext};
use datafusion::logical_expr::LogicalPlan;
use datafusion::physical_plan::stream::RecordBatchStreamAdapter;
use datafusion::physical_plan::{ExecutionPlan, execute_stream};
use futures::stream::{self, StreamExt};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};
use tessera_cells::rows::{await_in_place, in_place, physical};
use tessera_frontend::limits::THREAD_STACK_BYTES;
use tessera_planner::config::Config as PlanConfig;
use tessera_planner::error::Error as PlanError;
use tessera_planner::interrupt::interruptible;
use tessera_planner::optimize::Rooted;
use tessera_planner::tile::Tiling;
use tokio::runtime::{Builder, Handle as Threads, Runtime};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc};

/// Upper bound on concurrent DataFusion tasks.
const TASKS_MAX: usize = 64;

/// The threads of DataFusion's tasks. The tasks compute between two awaits for as long as they like, so these threads
/// serve nothing else.
pub(super) struct RowThreads {
    permits: Arc<Semaphore>,
    threads: usize,
    /// Made at its first use.
    runtime: Mutex<Option<Runtime>>,
}

impl RowThreads {
    pub(super) fn new(threads: usize) -> Self {
        RowThreads {
            permits: Arc::new(Semaphore::new(TASKS_MAX)),
            threads,
            runtime: Mutex::default(),
        }
    }

    fn threads(&self) -> Result<Threads, Error> {
        let mut runtime = self.runtime.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(runtime) = &*runtime {
            return Ok(runtime.handle().clone());
        }
        let made = Builder::new_multi_thread()
            .worker_threads(self.threads)
            .thread_name("rows")
            .thread_stack_size(THREAD_STACK_BYTES)
            .enable_all()
            .build()
            .map_err(|e| Error::io("start", "threads for rows", e))?;
        Ok(runtime.insert(made).handle().clone())
    }
}

impl Drop for RowThreads {
    /// It may be dropped in a task, which must not block on threads.
    fn drop(&mut self) {
        if let Some(runtime) = self.runtime.get_mut().unwrap_or_else(PoisonError::into_inner).take()
        {
            runtime.shutdown_background();
        }
    }
}

/// Signals that a statement has to stop.
#[derive(Clone)]
pub(super) struct Stop {
    statement: Handle,
    started: Instant,
    /// Time limit in seconds.
    timeout_s: Option<u64>,
}

impl Stop {
    pub(super) fn new(statement: &Handle, timeout_s: Option<u64>) -> Self {
        Stop { statement: statement.clone(), started: Instant::now(), timeout_s }
    }

    pub(super) fn started(&self) -> Instant {
        self.started
    }

    /// True if the statement is over or its time limit has passed.
    pub(super) fn is_stopped(&self) -> bool {
        let is_late = |limit| self.started.elapsed() >= Duration::from_secs(limit);
        self.statement.is_over() || self.timeout_s.is_some_and(is_late)
    }

    pub(super) fn error(&self) -> Error {
        match self.timeout_s {
            Some(limit_s) if !self.statement.is_cancelled() => Error::Timeout { limit_s },
            _ => Error::Cancelled,
        }
    }

    /// Runs a part of planning.
    pub(super) fn plan<T>(&self, work: impl FnOnce() -> T) -> T {
        let stop = self.clone();
        in_place(|| interruptible(move || stop.is_stopped(), work))
    }

    pub(super) fn compile(
        &self,
        rooted: Rooted,
        config: &PlanConfig,
        trace: &mut dyn FnMut(&'static str, &Rooted),
    ) -> Result<Tiling, Error> {
        self.plan(|| tessera_planner::compile(rooted, config, trace)).map_err(|e| match e {
            PlanError::Stopped => self.error(),
            e => Error::stage(e),
        })
    }

    /// DataFusion's physical plan of a logical one.
    pub(super) async fn physical(
        &self,
        row_threads: &RowThreads,
        state: &SessionState,
        logical: LogicalPlan,
    ) -> Result<Arc<dyn ExecutionPlan>, Error> {
        let permit = self.permit(row_threads).await?;
        let (state, threads) = (state.clone(), row_threads.threads()?);
        let planned = tokio::spawn(async move {
            let _permit = permit;
            await_in_place(&threads, physical(&state, &logical)).await
        });
        tokio::select! {
            biased;
            () = self.statement.cancelled() => Err(self.error()),
            planned = planned => match planned {
                Ok(planned) => planned.map_err(rows_error),
                Err(e) => Err(rows_error(DataFusionError::ExecutionJoin(Box::new(e)))),
            },
        }
    }

    /// The rows of a plan, computed by another task.
    pub(super) async fn rows(
        &self,
        row_threads: &RowThreads,
        plan: Arc<dyn ExecutionPlan>,
        context: TaskContext,
    ) -> Result<SendableRecordBatchStream, Error> {
        let permit = self.permit(row_threads).await?;
        let threads = row_threads.threads()?;
        let mut rows = {
            let _inside = threads.enter();
            execute_stream(plan, Arc::new(context)).map_err(rows_error)?
        };
        let schema = rows.schema();
        let (send, receive) = mpsc::channel(1);
        let made = async move {
            loop {
                let batch = tokio::select! {
                    biased;
                    () = send.closed() => return,
                    batch = rows.next() => batch,
                };
                let Some(batch) = batch else { return };
                if send.send(batch).await.is_err() {
                    return;
                }
            }
        };
        let task = tokio::spawn(async move {
            let _permit = permit;
            await_in_place(&threads, made).await;
        });
        let batches = stream::unfold(receive, |mut receive| async move {
            receive.recv().await.map(|batch| (batch, receive))
        });
        // A task that panicked has not sent all rows.
        let end = stream::once(task).filter_map(|ended| async move {
            ended.err().map(|e| Err(DataFusionError::ExecutionJoin(Box::new(e))))
        });
        Ok(Box::pin(RecordBatchStreamAdapter::new(schema, batches.chain(end))))
    }

    async fn permit(&self, row_threads: &RowThreads) -> Result<OwnedSemaphorePermit, Error> {
        tokio::select! {
            biased;
            () = self.statement.cancelled() => Err(self.error()),
            permit = row_threads.permits.clone().acquire_owned() => permit.map_err(|_| Error::Cancelled),
        }
    }
}
