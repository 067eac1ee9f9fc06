//! Rows that workers keep for each other.
//!
//! ```text
//! task p ──▶ own splits ─────────────▶ distributed to parts, once ──▶ rows of part p ──┐
//!        └─▶ RowsHolders ─▶ another worker: its splits, once ──▶ part p, Done ─────────┴─▶ in the order of the splits: groups
//! ```
//! Parts of a sort lie between bounds, which depend on the rows of all splits. So a task first asks all workers for
//! samples, once for all tasks of its worker; a worker retains the rows that it reads for them. Then the task asks for
//! its part. A worker that has not distributed its rows yet gets the bounds in the way in which it gets a plan.
//!
//! Each worker stores the rows of some of the splits, by parts: in memory within a share of a statement's memory,
//! otherwise in scratch files. It computes them when the first task asks. The rows of a lost worker are recomputed by
//! the worker that is asked for them next. They are the same rows, and which worker stores them has no influence on the
//! groups.
//!
//! Computing rows for others needs no turn: a task that waits for them may have the only turn there. A task asks for
//! all of its rows before it takes a turn.

use super::{Ended, Key, Ready, RowsStart, RowsTasks, Staged, TaskRun, reported};
use crate::rows::remote::message::{self, Answer, BatchReader, broken};
use crate::rows::splits::{
    ArrivingPart, PartBounds, PartsExec, SAMPLE_COLUMNS, Sample, Sampled, Scattered, samples_of,
};
use bytes::Bytes;
use datafusion::arrow::record_batch::RecordBatch;
use datafusion::error::DataFusionError;
use datafusion::execution::TaskContext;
use datafusion::execution::memory_pool::MemoryConsumer;
use futures::stream::{self, BoxStream};
use futures::{StreamExt, TryStreamExt, future};
use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;
use tessera_exec::error::Error as ExecError;
use tessera_exec::rows::{ROWS_HOLDER_LOST, RowsDone, RowsPart};
use tessera_planner::error::Class;
use tokio::sync::OnceCell;

/// A worker that stores the rows of some splits.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RowsHolder {
    /// The first split.
    pub from: u32,
    /// The split after the last one.
    pub to: u32,
    /// The address of the worker; `None` for the one that runs the task.
    pub address: Option<String>,
}

/// A worker's request for a part of the rows that another one stores.
#[derive(Debug, Clone)]
pub struct RowsPartStart {
    /// The run of the statement.
    pub query: [u8; 16],
    /// The stage.
    pub stage: u32,
    /// The first split.
    pub from: u32,
    /// The split after the last one.
    pub to: u32,
    /// The part; `None` asks for samples of the rows.
    pub part: Option<u32>,
    /// [`RowsStart::header`].
    pub header: Bytes,
    /// The plan of the stage, unless the worker has it.
    pub plan: Option<Bytes>,
    /// The bounds between parts, if there are any and unless the worker has distributed the rows.
    pub bounds: Option<Bytes>,
}

/// The reason why rows of another worker are not available.
#[derive(Debug)]
pub enum HolderFault {
    /// The worker does not respond, or has forgotten the statement.
    Lost(String),
    /// An error of the worker.
    Failed(ExecError),
}

/// Requests rows that other workers store.
pub trait RowsHolders: Send + Sync {
    /// The messages of a worker: those of [`RowsTasks::part`], in their order. Dropping the stream ends the call.
    fn part(
        &self,
        address: &str,
        part: RowsPartStart,
    ) -> BoxStream<'static, Result<Bytes, HolderFault>>;
}

/// Bytes of rows from other workers that a task reads before it has a turn, an equal share from each. Larger data is
/// requested again when the task has its turn. Nothing waits unread: it would fill the window of the connection, from
/// which tasks with turns read, too.
const AHEAD_BYTES: u64 = 1 << 20;

type Answers = BoxStream<'static, Result<Bytes, HolderFault>>;

/// The first split and the one after the last one.
type Splits = (u32, u32);

/// The stored data of some splits, each computed once, for the first request.
#[derive(Default)]
struct KeptRange {
    /// Samples, for parts with bounds.
    sampled: OnceCell<Arc<Sampled>>,
    /// Rows, distributed to parts.
    rows: OnceCell<Arc<Scattered>>,
}

/// The bounds between parts, also as other workers get them.
struct KnownBounds {
    bounds: PartBounds,
    sent: Bytes,
}

#[derive(Default)]
pub(super) struct KeptSplits {
    ranges: Mutex<BTreeMap<Splits, Arc<KeptRange>>>,
    bounds: OnceCell<Arc<KnownBounds>>,
    /// The times at which workers, by their addresses, did not return samples.
    lost: Mutex<BTreeMap<String, Instant>>,
}

impl KeptSplits {
    fn lock(&self) -> MutexGuard<'_, BTreeMap<Splits, Arc<KeptRange>>> {
        self.ranges.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn range(&self, splits: Splits) -> Arc<KeptRange> {
        self.lock().entry(splits).or_default().clone()
    }

    /// True if a worker did not return samples after that time.
    fn was_lost(&self, address: &str, after: Instant) -> bool {
        let lost = self.lost.lock().unwrap_or_else(PoisonError::into_inner);
        lost.get(address).is_some_and(|at| *at > after)
    }

    fn note_lost(&self, address: &str) {
        let mut lost = self.lost.lock().unwrap_or_else(PoisonError::into_inner);
        lost.insert(address.to_owned(), Instant::now());
    }

    /// True if no rows have been requested.
    pub(super) fn is_empty(&self) -> bool {
        self.lock().is_empty()
    }

    pub(super) fn has_rows(&self) -> bool {
        let has_some =
            |kept: &Arc<KeptRange>| kept.rows.initialized() || kept.sampled.initialized();
        self.lock().values().any(has_some)
    }
}

impl Ready {
    /// The plan, if its tasks are parts.
    fn parts(&self) -> Option<&PartsExec> {
        self.template.downcast_ref()
    }

    async fn sampled(
        &self,
        parts: &PartsExec,
        splits: Splits,
    ) -> Result<Arc<Sampled>, DataFusionError> {
        let kept = self.kept.range(splits);
        let sampled = || async {
            let splits = splits.0 as usize..splits.1 as usize;
            parts.sampled(splits, &self.context).await.map(Arc::new)
        };
        kept.sampled.get_or_try_init(sampled).await.cloned()
    }

    /// The rows of some splits, by parts. Parts between bounds need the bounds unless the rows are distributed.
    async fn scattered(
        &self,
        parts: &PartsExec,
        splits: Splits,
        bounds: Option<&PartBounds>,
    ) -> Result<Arc<Scattered>, DataFusionError> {
        let kept = self.kept.range(splits);
        let sampled = kept.sampled.get().cloned();
        let scattered = || async {
            let splits = splits.0 as usize..splits.1 as usize;
            parts.scattered(splits, bounds, sampled.as_deref(), &self.context).await
        };
        let rows = kept.rows.get_or_try_init(scattered).await.cloned()?;
        if let Some(sampled) = &sampled {
            sampled.drop_rows();
        }
        Ok(rows)
    }

    fn batch_rows(&self) -> usize {
        self.context.session_config().batch_size()
    }
}

impl RowsTasks {
    /// Yields a part of the rows that this worker stores, or samples of them, and computes them for the first request.
    /// The messages are a [`RowsPart`], the batches, and `Done`, or the error. Dropping the stream ends it.
    pub fn part(
        self: &Arc<Self>,
        start: RowsPartStart,
    ) -> BoxStream<'static, Result<Bytes, ExecError>> {
        let what = match start.part {
            Some(part) => format!("part {part} of the rows of stage {}", start.stage),
            None => format!("samples of the rows of stage {}", start.stage),
        };
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
    /// Rows of the parts before.
    before: u64,
    /// The bits that the hashes of their keys choose.
    key_bits: u64,
    rows: BoxStream<'static, Result<RecordBatch, DataFusionError>>,
}

impl TaskRun {
    async fn give(self, start: RowsPartStart) -> Result<Ended, ExecError> {
        let key: Key = (start.query, start.stage);
        let staged = self.staged(key, &start.header, start.plan.as_ref()).await?;
        let Some(Staged { mut within, ready, .. }) = staged else { return Ok(Ended::Lacks) };
        let done = self.given(&start, &ready).await.map_err(|e| reported(e.into()))?;
        within.has_ended = true;
        Ok(done.map_or(Ended::Lacks, Ended::Done))
    }

    /// Returns the data that another worker requests; `None` if the bounds of parts are needed and missing.
    async fn given(
        &self,
        start: &RowsPartStart,
        ready: &Ready,
    ) -> Result<Option<RowsDone>, DataFusionError> {
        let no_parts = || broken("a stage without parts is asked for one".into());
        let parts = ready.parts().ok_or_else(no_parts)?;
        let splits = (start.from, start.to);
        let (of, rows) = match start.part {
            None => {
                let samples = ready.sampled(parts, splits).await?.batch()?;
                let rows = samples.num_rows() as u64;
                let of = RowsPart { rows, ..RowsPart::default() };
                (of, stream::iter([Ok::<_, DataFusionError>(samples)]).boxed())
            }
            Some(part) => {
                let part = checked(parts, part)?;
                let bounds = start.bounds.as_deref().map(message::bounds_of).transpose()?;
                let is_kept = ready.kept.range(splits).rows.initialized();
                if parts.order().is_some() && bounds.is_none() && !is_kept {
                    return Ok(None);
                }
                let kept = ready.scattered(parts, splits, bounds.as_ref()).await?;
                (of_part(&kept, part), kept.apart(part, ready.batch_rows())?)
            }
        };
        self.say(message::part(&of)?).await?;
        self.sent(rows, None, ready).await.map(Some)
    }

    /// The context of a task that computes a part, with the rows of the part from all workers that store some; `None`
    /// for other tasks.
    pub(super) async fn arriving(
        &self,
        start: &RowsStart,
        ready: &Ready,
    ) -> Result<Option<Arc<TaskContext>>, DataFusionError> {
        let Some(parts) = ready.parts() else { return Ok(None) };
        let part = checked(parts, start.task)?;
        let mut next = 0;
        for holder in &start.holders {
            if holder.from != next {
                return Err(broken(format!("no worker retains the rows of split {next}")));
            }
            next = holder.to;
        }
        if next as usize != parts.count_splits() {
            return Err(broken(format!("no worker retains the rows of split {next}")));
        }
        let bounds = match parts.order() {
            Some(_) => Some(self.bounds(start, ready, parts).await?),
            None => None,
        };
        let mut opening = Vec::with_capacity(start.holders.len());
        for holder in &start.holders {
            opening.push(self.opened(start, ready, (parts, bounds.as_deref()), holder, part));
        }
        let opened = future::try_join_all(opening).await?;
        let sum = |of: fn(&Opened) -> u64| opened.iter().map(of).fold(0, u64::saturating_add);
        let (bytes, before) = (sum(|opened| opened.bytes), sum(|opened| opened.before));
        let key_bits = opened.iter().fold(0, |bits, opened| bits | opened.key_bits);
        let rows = stream::iter(opened).flat_map(|opened| opened.rows).boxed();
        let count = |count: u64| usize::try_from(count).unwrap_or(usize::MAX);
        let arriving = ArrivingPart::new((count(bytes), key_bits), count(before), rows);
        let context = &ready.context;
        let config = context.session_config().clone().with_extension(Arc::new(arriving));
        let none = (HashMap::new(), HashMap::new(), HashMap::new(), HashMap::new());
        let (id, environment) = (context.session_id(), context.runtime_env());
        let own = TaskContext::new(None, id, config, none.0, none.1, none.2, none.3, environment);
        Ok(Some(Arc::new(own)))
    }

    /// The bounds between parts. They depend on the rows of all splits, and not on the workers that store them.
    async fn bounds(
        &self,
        start: &RowsStart,
        ready: &Ready,
        parts: &PartsExec,
    ) -> Result<Arc<KnownBounds>, DataFusionError> {
        let known = || async {
            let mut sampling = Vec::with_capacity(start.holders.len());
            for holder in &start.holders {
                sampling.push(self.samples(start, ready, parts, holder));
            }
            let bounds = parts.bounds(future::try_join_all(sampling).await?.concat())?;
            let sent = message::bounds(&bounds)?;
            Ok::<_, DataFusionError>(Arc::new(KnownBounds { bounds, sent }))
        };
        ready.kept.bounds.get_or_try_init(known).await.cloned()
    }

    /// The samples of the rows that a worker keeps, when that worker has read them.
    async fn samples(
        &self,
        start: &RowsStart,
        ready: &Ready,
        parts: &PartsExec,
        holder: &RowsHolder,
    ) -> Result<Vec<Sample>, DataFusionError> {
        let Some(address) = &holder.address else {
            let sampled = ready.sampled(parts, (holder.from, holder.to)).await?;
            return Ok(sampled.samples().to_vec());
        };
        // Tasks ask one after the other, and each could wait for the same worker until a connection fails.
        if ready.kept.was_lost(address, self.started) {
            return Err(lost(address, "it did not return samples of them"));
        }
        let ask = asked(start, ready, holder, None);
        let kept = KeptRows::new(&self.tasks.others, address, ask, SAMPLE_COLUMNS);
        let samples = kept.samples().await;
        if samples.as_ref().is_err_and(is_lost) {
            ready.kept.note_lost(address);
        }
        samples
    }

    /// Begins to read a part of the rows that a worker keeps, when that worker has computed them.
    async fn opened(
        &self,
        start: &RowsStart,
        ready: &Ready,
        (parts, bounds): (&PartsExec, Option<&KnownBounds>),
        holder: &RowsHolder,
        part: usize,
    ) -> Result<Opened, DataFusionError> {
        let Some(address) = &holder.address else {
            let bounds = bounds.map(|known| &known.bounds);
            let kept = ready.scattered(parts, (holder.from, holder.to), bounds).await?;
            let RowsPart { bytes, before, key_bits, .. } = of_part(&kept, part);
            // A sort counts the buffers of its rows. Those of slices are the rows of many parts.
            let rows = match parts.order() {
                Some(_) => kept.apart(part, ready.batch_rows())?,
                None => kept.rows(part)?,
            };
            return Ok(Opened { bytes, before, key_bits, rows });
        };
        let bounds = bounds.map(|known| known.sent.clone());
        let ask = RowsPartStart { bounds, ..asked(start, ready, holder, Some(start.task)) };
        let mut kept = KeptRows::new(&self.tasks.others, address, ask, parts.columns());
        kept.of = kept.begin().await?;
        let RowsPart { bytes, before, key_bits, .. } = kept.of;
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
            return Ok(Opened { bytes, before, key_bits, rows: rows.boxed() });
        }
        let all: Vec<RecordBatch> = rows.try_collect().await?;
        let rows = stream::unfold((all.into_iter(), memory), |(mut all, memory)| async move {
            let batch = all.next()?;
            Some((Ok(batch), (all, memory)))
        });
        Ok(Opened { bytes, before, key_bits, rows: rows.boxed() })
    }
}

/// The extent of the stored rows of a part.
fn of_part(kept: &Scattered, part: usize) -> RowsPart {
    let (rows, bytes, before) = (kept.count(part), kept.bytes(part), kept.before(part));
    let key_bits = kept.key_bits(part);
    RowsPart { rows: rows as u64, bytes: bytes as u64, before: before as u64, key_bits }
}

/// The request of a task to another worker, without bounds.
fn asked(
    start: &RowsStart,
    ready: &Ready,
    holder: &RowsHolder,
    part: Option<u32>,
) -> RowsPartStart {
    RowsPartStart {
        query: start.query,
        stage: start.stage,
        from: holder.from,
        to: holder.to,
        part,
        header: start.header.clone(),
        plan: Some(ready.plan.clone()),
        bounds: None,
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
        // Without `Done`, rows may be missing.
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

/// The error of a task whose rows do not arrive from another worker.
fn lost(address: &str, reason: &str) -> DataFusionError {
    let what =
        format!("the worker at {address} does not return the rows that it retains: {reason}");
    let lost = ExecError::reported(ROWS_HOLDER_LOST, Class::Retry, what, Some(address.into()));
    DataFusionError::External(Box::new(lost))
}

/// True for the errors of [`lost`].
fn is_lost(error: &DataFusionError) -> bool {
    let DataFusionError::External(error) = error else { return false };
    match error.downcast_ref::<ExecError>() {
        Some(ExecError::Reported(report)) => report.code == ROWS_HOLDER_LOST,
        _ => false,
    }
}

/// The rows of a part that another worker keeps.
struct KeptRows {
    others: Arc<dyn RowsHolders>,
    address: String,
    /// The request with the plan and the bounds, which are sent if the worker lacks one of them.
    ask: RowsPartStart,
    /// `None` until the rows are asked for.
    answers: Option<Answers>,
    reader: BatchReader,
    /// The announced rows.
    of: RowsPart,
    columns: usize,
    /// Rows and batches received.
    rows: u64,
    batches: u64,
}

impl KeptRows {
    /// Rows that have not been requested yet.
    fn new(
        others: &Arc<dyn RowsHolders>,
        address: &str,
        ask: RowsPartStart,
        columns: usize,
    ) -> Self {
        KeptRows {
            others: others.clone(),
            address: address.into(),
            ask,
            answers: None,
            reader: BatchReader::default(),
            of: RowsPart::default(),
            columns,
            rows: 0,
            batches: 0,
        }
    }

    /// Requests the rows. Returns the announced rows when the worker has computed them.
    async fn begin(&mut self) -> Result<RowsPart, DataFusionError> {
        let short = RowsPartStart { plan: None, bounds: None, ..self.ask.clone() };
        let mut answers = self.others.part(&self.address, short);
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

    /// All rows, if they are samples.
    async fn samples(mut self) -> Result<Vec<Sample>, DataFusionError> {
        self.of = self.begin().await?;
        let mut samples = Vec::new();
        while let Some(batch) = self.next().await? {
            samples.extend(samples_of(&batch)?);
        }
        Ok(samples)
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
