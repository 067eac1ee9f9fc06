//! Rows that workers keep for each other.
//!
//! ```text
//! task p ──▶ own splits ─────────────▶ distributed to parts, once ──▶ rows of part p ──┐
//!        └─▶ RowsHolders ─▶ another worker: its splits, once ──▶ part p, Done ─────────┴─▶ in the order of the splits: groups
//! ```
//! Each worker keeps the rows of some of the splits, by parts: in memory within a share of that of a statement, otherwise in
//! scratch files. It computes them when the first task asks, so the rows of a worker that was lost are computed again by
//! whoever is asked for them next. They are the same rows, and who keeps which has no influence on the groups.
//!
//! Computing rows for others needs no turn: a task that waits for another worker may have the only one there. A task asks
//! for all of its rows before it takes a turn.

use super::{Ended, Key, Ready, RowsStart, RowsTasks, Staged, TaskRun, reported};
use crate::rows::remote::message::{self, Answer, BatchReader, broken};
use crate::rows::splits::{ArrivingPart, PartsExec, Scattered};
use bytes::Bytes;
use datafusion::arrow::record_batch::RecordBatch;
use datafusion::error::DataFusionError;
use datafusion::execution::TaskContext;
use datafusion::execution::memory_pool::MemoryConsumer;
use futures::stream::{self, BoxStream};
use futures::{StreamExt, TryStreamExt, future};
use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use tessera_exec::error::{Error as ExecError, ErrorReport};
use tessera_exec::rows::{ROWS_HOLDER_LOST, RowsDone, RowsPart};
use tessera_planner::error::Class;
use tokio::sync::OnceCell;

/// A worker that keeps the rows of some splits.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RowsHolder {
    /// The first split.
    pub from: u32,
    /// The split after the last one.
    pub to: u32,
    /// The address of the worker; `None` for the one that runs the task.
    pub address: Option<String>,
}

/// A part of the rows that a worker keeps, as another one asks for it.
#[derive(Debug, Clone)]
pub struct RowsPartStart {
    /// The statement's run.
    pub query: [u8; 16],
    /// The stage.
    pub stage: u32,
    /// The first split.
    pub from: u32,
    /// The split after the last one.
    pub to: u32,
    /// The part.
    pub part: u32,
    /// [`RowsStart::header`].
    pub header: Bytes,
    /// The plan of the stage, unless the worker has it.
    pub plan: Option<Bytes>,
}

/// Why the rows that another worker keeps do not come.
#[derive(Debug)]
pub enum HolderFault {
    /// The worker does not answer, or has forgotten the statement.
    Lost(String),
    /// An error of the worker.
    Failed(ExecError),
}

/// Asks other workers for rows that they keep.
pub trait RowsHolders: Send + Sync {
    /// The messages of a worker: those of [`RowsTasks::part`], in their order. Dropping the stream ends the call.
    fn part(
        &self,
        address: &str,
        part: RowsPartStart,
    ) -> BoxStream<'static, Result<Bytes, HolderFault>>;
}

/// Bytes of rows from other workers that a task reads before it has a turn, an equal share from each. What is larger is
/// asked for again when the task has its turn. Nothing waits unread: it would fill the window of the connection, and the
/// tasks that have the turns read from it, too.
const AHEAD_BYTES: u64 = 1 << 20;

type Answers = BoxStream<'static, Result<Bytes, HolderFault>>;

/// The first split and the one after the last one.
type Splits = (u32, u32);

/// Distributed once, by whoever asks first.
type Once = Arc<OnceCell<Arc<Scattered>>>;

/// The rows that a stage keeps.
#[derive(Default)]
pub(super) struct KeptSplits(Mutex<BTreeMap<Splits, Once>>);

impl KeptSplits {
    fn lock(&self) -> MutexGuard<'_, BTreeMap<Splits, Once>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// True if nobody has asked for rows.
    pub(super) fn is_empty(&self) -> bool {
        self.lock().is_empty()
    }

    /// True if rows were computed.
    pub(super) fn has_rows(&self) -> bool {
        self.lock().values().any(|once| once.initialized())
    }
}

impl Ready {
    /// The plan, if its tasks group parts.
    fn parts(&self) -> Option<&PartsExec> {
        self.template.downcast_ref()
    }

    /// The rows of some splits, by parts.
    async fn scattered(
        &self,
        parts: &PartsExec,
        splits: Splits,
    ) -> Result<Arc<Scattered>, DataFusionError> {
        let once = self.kept.lock().entry(splits).or_default().clone();
        let (from, to) = (splits.0 as usize, splits.1 as usize);
        let scattered = || parts.scattered(from..to, &self.context);
        once.get_or_try_init(scattered).await.cloned()
    }

    fn batch_rows(&self) -> usize {
        self.context.session_config().batch_size()
    }
}

impl RowsTasks {
    /// Yields a part of the rows that this worker keeps, which it computes if nobody has asked for them: a [`RowsPart`], the
    /// batches, and `Done`, or the error. Dropping the stream ends it.
    pub fn part(
        self: &Arc<Self>,
        start: RowsPartStart,
    ) -> BoxStream<'static, Result<Bytes, ExecError>> {
        let what = format!("part {} of the rows of stage {}", start.part, start.stage);
        self.answer(what, move |run| run.give(start))
    }
}

fn checked(parts: &PartsExec, part: u32) -> Result<usize, DataFusionError> {
    match part as usize {
        part if part < parts.parts() => Ok(part),
        part => Err(broken(format!("part {part} of a stage of {} parts", parts.parts()))),
    }
}

/// The rows of a part that a worker keeps.
struct Opened {
    /// Bytes of their values.
    bytes: u64,
    rows: BoxStream<'static, Result<RecordBatch, DataFusionError>>,
}

impl TaskRun {
    async fn give(self, start: RowsPartStart) -> Result<Ended, ExecError> {
        let key: Key = (start.query, start.stage);
        let staged = self.staged(key, &start.header, start.plan.as_ref()).await?;
        let Some(Staged { mut within, ready, .. }) = staged else { return Ok(Ended::Lacks) };
        let done = self.given(&start, &ready).await.map_err(|e| reported(e.into()))?;
        within.has_ended = true;
        Ok(Ended::Done(done))
    }

    async fn given(
        &self,
        start: &RowsPartStart,
        ready: &Ready,
    ) -> Result<RowsDone, DataFusionError> {
        let no_parts = || broken("a stage without parts is asked for one".into());
        let parts = ready.parts().ok_or_else(no_parts)?;
        let part = checked(parts, start.part)?;
        let kept = ready.scattered(parts, (start.from, start.to)).await?;
        let of = RowsPart { rows: kept.count(part) as u64, bytes: kept.bytes(part) as u64 };
        self.say(message::part(&of)?).await?;
        self.sent(kept.apart(part, ready.batch_rows())?, None, ready).await
    }

    /// The context of a task that groups a part, with the rows of the part from all who keep some; `None` for other tasks.
    pub(super) async fn arriving(
        &self,
        start: &RowsStart,
        ready: &Ready,
    ) -> Result<Option<Arc<TaskContext>>, DataFusionError> {
        let Some(parts) = ready.parts() else { return Ok(None) };
        let part = checked(parts, start.task)?;
        let (mut opening, mut next) = (Vec::with_capacity(start.holders.len()), 0);
        for holder in &start.holders {
            if holder.from != next {
                return Err(broken(format!("no worker retains the rows of split {next}")));
            }
            next = holder.to;
            opening.push(self.opened(start, ready, parts, holder, part));
        }
        if next as usize != parts.count_splits() {
            return Err(broken(format!("no worker retains the rows of split {next}")));
        }
        let opened = future::try_join_all(opening).await?;
        let bytes = opened.iter().fold(0, |bytes: u64, opened| bytes.saturating_add(opened.bytes));
        let rows = stream::iter(opened).flat_map(|opened| opened.rows).boxed();
        let arriving = ArrivingPart::new(usize::try_from(bytes).unwrap_or(usize::MAX), rows);
        let context = &ready.context;
        let config = context.session_config().clone().with_extension(Arc::new(arriving));
        let none = (HashMap::new(), HashMap::new(), HashMap::new(), HashMap::new());
        let (id, environment) = (context.session_id(), context.runtime_env());
        let own = TaskContext::new(None, id, config, none.0, none.1, none.2, none.3, environment);
        Ok(Some(Arc::new(own)))
    }

    /// Begins to read a part of the rows that a worker keeps, when that worker has computed them.
    async fn opened(
        &self,
        start: &RowsStart,
        ready: &Ready,
        parts: &PartsExec,
        holder: &RowsHolder,
        part: usize,
    ) -> Result<Opened, DataFusionError> {
        let Some(address) = &holder.address else {
            let kept = ready.scattered(parts, (holder.from, holder.to)).await?;
            return Ok(Opened { bytes: kept.bytes(part) as u64, rows: kept.rows(part)? });
        };
        let ask = RowsPartStart {
            query: start.query,
            stage: start.stage,
            from: holder.from,
            to: holder.to,
            part: start.task,
            header: start.header.clone(),
            plan: Some(ready.plan.clone()),
        };
        let mut kept = KeptRows {
            others: self.tasks.others.clone(),
            address: address.clone(),
            ask,
            answers: None,
            reader: BatchReader::default(),
            of: RowsPart::default(),
            columns: parts.columns(),
            rows: 0,
            batches: 0,
        };
        kept.of = kept.begin().await?;
        let bytes = kept.of.bytes;
        let pool = ready.context.memory_pool();
        let memory = MemoryConsumer::new("rows of other workers").register(pool);
        let most = AHEAD_BYTES / start.holders.len().max(1) as u64;
        let is_ahead = bytes <= most && memory.try_grow(bytes as usize).is_ok();
        if !is_ahead {
            kept.answers = None;
        }
        let rows = stream::try_unfold(kept, |mut kept| async move {
            Ok::<_, DataFusionError>(kept.next().await?.map(|batch| (batch, kept)))
        });
        if !is_ahead {
            return Ok(Opened { bytes, rows: rows.boxed() });
        }
        let all: Vec<RecordBatch> = rows.try_collect().await?;
        let rows = stream::unfold((all.into_iter(), memory), |(mut all, memory)| async move {
            let batch = all.next()?;
            Some((Ok(batch), (all, memory)))
        });
        Ok(Opened { bytes, rows: rows.boxed() })
    }
}

/// The next message of another worker.
async fn said(answers: &mut Answers, address: &str) -> Result<Answer, DataFusionError> {
    match answers.next().await {
        Some(Ok(message)) => Answer::read(message),
        Some(Err(HolderFault::Lost(reason))) => Err(lost(address, &reason)),
        Some(Err(HolderFault::Failed(error))) => {
            Err(DataFusionError::External(Box::new(of_holder(error, address))))
        }
        // Without `Done` nothing says that these are all rows.
        None => Err(lost(address, "its answer ended without `Done`")),
    }
}

/// The error of another worker, with its address: the server adds that of the worker that runs the task.
fn of_holder(error: ExecError, address: &str) -> ExecError {
    match error {
        ExecError::Reported(mut report) => {
            report.message = format!("{} (in the rows from {address})", report.message);
            ExecError::Reported(report)
        }
        other => other,
    }
}

/// The error of a task whose rows do not come from another worker.
fn lost(address: &str, reason: &str) -> DataFusionError {
    DataFusionError::External(Box::new(ExecError::Reported(Box::new(ErrorReport {
        code: ROWS_HOLDER_LOST.into(),
        class: Class::Retry,
        message: format!(
            "the worker at {address} does not return the rows that it retains: {reason}"
        ),
        hint: Some(address.into()),
        may_fit: false,
    }))))
}

/// The rows of a part that another worker keeps.
struct KeptRows {
    others: Arc<dyn RowsHolders>,
    address: String,
    /// With the plan, which is sent if the worker lacks it.
    ask: RowsPartStart,
    /// `None` until the rows are asked for.
    answers: Option<Answers>,
    reader: BatchReader,
    /// What is to come.
    of: RowsPart,
    columns: usize,
    /// Rows and batches that came.
    rows: u64,
    batches: u64,
}

impl KeptRows {
    /// Asks for the rows. Returns what is to come when the worker has computed them.
    async fn begin(&mut self) -> Result<RowsPart, DataFusionError> {
        let without_plan = RowsPartStart { plan: None, ..self.ask.clone() };
        let mut answers = self.others.part(&self.address, without_plan);
        let mut has_plan = false;
        loop {
            match said(&mut answers, &self.address).await? {
                Answer::Runs(_) => {}
                Answer::Part(of) => {
                    self.answers = Some(answers);
                    return Ok(of);
                }
                Answer::Lacks if !has_plan => {
                    has_plan = true;
                    answers = self.others.part(&self.address, self.ask.clone());
                }
                _ => {
                    let address = &self.address;
                    return Err(broken(format!("{address} does not report which rows it retains")));
                }
            }
        }
    }

    async fn next(&mut self) -> Result<Option<RecordBatch>, DataFusionError> {
        loop {
            let Some(answers) = &mut self.answers else {
                let of = self.begin().await?;
                if of != self.of {
                    return Err(self.other("rows", of.rows as usize, self.of.rows as usize));
                }
                continue;
            };
            match said(answers, &self.address).await? {
                Answer::Runs(_) => {}
                Answer::Piece(piece) => {
                    let Some(batch) = self.reader.take(&piece)? else { continue };
                    if batch.num_columns() != self.columns {
                        return Err(self.other("columns", batch.num_columns(), self.columns));
                    }
                    self.rows += batch.num_rows() as u64;
                    self.batches += 1;
                    return Ok(Some(batch));
                }
                Answer::Done(done) if (done.rows, done.batches) != (self.rows, self.batches) => {
                    return Err(self.other(
                        "batches",
                        self.batches as usize,
                        done.batches as usize,
                    ));
                }
                Answer::Done(_) if self.rows != self.of.rows => {
                    return Err(self.other("rows", self.rows as usize, self.of.rows as usize));
                }
                Answer::Done(_) => return Ok(None),
                Answer::Part(_) | Answer::Lacks => {
                    return Err(broken(format!("{} begins its rows again", self.address)));
                }
            }
        }
    }

    fn other(&self, what: &str, came: usize, expected: usize) -> DataFusionError {
        broken(format!("{} retains {expected} {what}, and {came} arrived", self.address))
    }
}
