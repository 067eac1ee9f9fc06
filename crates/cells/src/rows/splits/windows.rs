//! Window functions over sorted rows.
//!
//! ```text
//! sorted rows ──▶ whole partitions ──▶ calls ──┐
//!             ──▶ whole partitions ──▶ calls ──┴▶ in order
//! ```
//! Where the partitions begin follows from the first keys of the sort, so the parts of the sort's result are cut there
//! and computed on all threads. [`calls`](super::calls) are computed for many rows at a time; other functions are left
//! to DataFusion's operator, part by part. Operators above each other that need one order of rows are one [chain].
//! Workers may sort the parts and compute their calls ([`sent`]). These parts end where partitions end, too.

pub(super) mod chain;
mod sent;

use super::even::evenly;
use super::gather::{SPLIT_BYTES, Unit, bounds, memory_of, partitions_of};
use super::in_order::{Begin, Bounds, in_order, is_out_of_memory};
use super::once::OnceExec;
use super::parts::PartsExec;
use super::replaced;
use super::sort::{Sorted, of_sorted};
use crate::rows::single::{self, only_input, usual};
use crate::rows::stop::{IsStopped, Stop};
use chain::{Chain, Steps, is_window};
use datafusion::arrow::array::RecordBatch;
use datafusion::common::internal_datafusion_err;
use datafusion::common::tree_node::TreeNodeRecursion;
use datafusion::common::utils::memory::{RecordBatchMemoryCounter, get_record_batch_memory_size};
use datafusion::error::{DataFusionError, Result};
use datafusion::execution::memory_pool::{MemoryConsumer, MemoryReservation};
use datafusion::execution::{SendableRecordBatchStream, TaskContext};
use datafusion::physical_expr::PhysicalExpr;
use datafusion::physical_plan::stream::RecordBatchStreamAdapter;
use datafusion::physical_plan::{
    DisplayAs, DisplayFormatType, ExecutionPlan, ExecutionPlanProperties, PlanProperties,
};
use futures::future::{self, Either};
use futures::stream::{self, BoxStream};
use futures::{StreamExt, TryStreamExt};
use std::fmt;
use std::sync::Arc;

/// Above a sort that merges files, and above other windows, a partition may take this part of a statement's memory for
/// rows.
const MERGE_SHARE: usize = 4;

/// Window operators above sorted rows.
#[derive(Debug, Clone)]
pub(in crate::rows) struct WindowsExec {
    chain: Chain,
    /// Keys of the sort whose equal rows are of one partition; with none, all rows are.
    keys: usize,
    /// `None` if DataFusion's operators compute all calls.
    steps: Option<Arc<Steps>>,
    /// The parts of its rows with the results of the calls, if these are computed elsewhere.
    elsewhere: Option<Arc<dyn ExecutionPlan>>,
    properties: Arc<PlanProperties>,
    stop: Stop,
}

impl WindowsExec {
    /// The operator for a window above sorted rows; `None` where DataFusion's own is as good.
    pub(super) fn of(window: &Arc<dyn ExecutionPlan>) -> Result<Option<Self>> {
        let Some((chain, partition, keys)) = Chain::of(window)? else { return Ok(None) };
        let steps = Steps::of(&chain, partition)?.map(Arc::new);
        if keys == 0 && steps.is_none() {
            return Ok(None);
        }
        let properties = chain.top().properties().clone();
        let (elsewhere, stop) = (None, Stop::default());
        Ok(Some(WindowsExec { chain, keys, steps, elsewhere, properties, stop }))
    }

    /// The parts of its sort, which may be computed elsewhere; `None` if they are already, or if there are no splits.
    pub(super) fn parts(&self) -> Result<Option<PartsExec>> {
        match self.chain.sort() {
            Some(sort) if self.elsewhere.is_none() => sort.parts(self.keys),
            _ => Ok(None),
        }
    }

    /// The same parts with the results of the calls; `None` also if parts do not end where partitions end.
    pub(super) fn computed_parts(&self) -> Result<Option<PartsExec>> {
        if self.keys == 0 {
            return Ok(None);
        }
        self.parts()?.map(|parts| parts.with_windows(self.clone())).transpose()
    }

    /// The same rows from such parts, which are computed elsewhere.
    pub(super) fn over_computed(&self, parts: Arc<dyn ExecutionPlan>) -> Self {
        WindowsExec { elsewhere: Some(parts), ..self.clone() }
    }

    /// The same windows above the sort of another input with the same columns.
    pub(super) fn over_input(&self, input: Arc<dyn ExecutionPlan>) -> Result<Self> {
        let source = match self.chain.sort() {
            Some(_) => replaced(self.chain.source()?, vec![input])?,
            None => input,
        };
        Ok(WindowsExec { chain: self.chain.over(source)?, ..self.clone() })
    }

    /// The sorted rows of a part, which has whole partitions, with the results of the calls. `before` rows of other parts
    /// precede them in the result. Unless `may_stream`, a partition that does not fit into memory is an error if
    /// DataFusion's operators would compute other bits.
    pub(super) fn of_part(
        &self,
        rows: BoxStream<'static, Result<RecordBatch>>,
        (before, may_stream): (usize, bool),
        context: &Arc<TaskContext>,
    ) -> BoxStream<'static, Result<RecordBatch>> {
        let batch_rows = context.session_config().batch_size().max(1);
        let rows = self.each(may_stream, context).windowed(rows, usize::MAX);
        evenly(rows, before, batch_rows)
    }

    fn each(&self, may_stream: bool, context: &Arc<TaskContext>) -> Arc<Each> {
        Arc::new(Each {
            chain: self.chain.clone(),
            steps: self.steps.clone(),
            may_stream,
            context: context.clone(),
            stop: self.stop.clone(),
        })
    }

    /// The same windows over the parts of the sort, each of which is sorted elsewhere.
    pub(super) fn over_parts(&self, parts: Arc<dyn ExecutionPlan>) -> Result<Self> {
        let sort = self
            .chain
            .sort()
            .ok_or_else(|| internal_datafusion_err!("the input of a window is not its sort"))?;
        let chain = self.chain.over(Arc::new(sort.over_parts(parts)?))?;
        Ok(WindowsExec { chain, ..self.clone() })
    }

    /// The same windows, which end soon after `is_stopped` returns true.
    pub(in crate::rows) fn stoppable(&self, is_stopped: &IsStopped) -> Self {
        WindowsExec { stop: Stop::new(is_stopped), ..self.clone() }
    }
}

impl DisplayAs for WindowsExec {
    fn fmt_as(&self, format: DisplayFormatType, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("WindowsExec: ")?;
        for (nth, window) in self.chain.operators().filter(|node| is_window(node)).enumerate() {
            f.write_str(if nth == 0 { "" } else { ", above " })?;
            window.fmt_as(format, f)?;
        }
        Ok(())
    }
}

impl ExecutionPlan for WindowsExec {
    usual!(name, properties);

    fn apply_expressions(
        &self,
        visit: &mut dyn FnMut(&Arc<dyn PhysicalExpr>) -> Result<TreeNodeRecursion>,
    ) -> Result<TreeNodeRecursion> {
        for operator in self.chain.operators() {
            if operator.apply_expressions(visit)? == TreeNodeRecursion::Stop {
                return Ok(TreeNodeRecursion::Stop);
            }
        }
        Ok(TreeNodeRecursion::Continue)
    }

    /// The input of the sort, or another source; or what is computed elsewhere.
    fn children(&self) -> Vec<&Arc<dyn ExecutionPlan>> {
        match (&self.elsewhere, self.chain.sort()) {
            (Some(parts), _) => vec![parts],
            (None, Some(sort)) => sort.children(),
            (None, None) => self.chain.source().into_iter().collect(),
        }
    }

    fn with_new_children(
        self: Arc<Self>,
        children: Vec<Arc<dyn ExecutionPlan>>,
    ) -> Result<Arc<dyn ExecutionPlan>> {
        let input = only_input(self.name(), children)?;
        let is_elsewhere = self.elsewhere.is_some();
        Ok(Arc::new(if is_elsewhere { self.over_computed(input) } else { self.over_input(input)? }))
    }

    fn execute(
        &self,
        partition: usize,
        context: Arc<TaskContext>,
    ) -> Result<SendableRecordBatchStream> {
        single::check(self.name(), partition)?;
        let batch_rows = context.session_config().batch_size().max(1);
        if let Some(parts) = &self.elsewhere {
            let rows = Sorted::Elsewhere(parts.clone()).rows(batch_rows, &context);
            let rows = evenly(rows, 0, batch_rows);
            return Ok(Box::pin(RecordBatchStreamAdapter::new(self.schema(), rows)));
        }
        let sorted = match self.chain.sort() {
            Some(sort) => Either::Left(sort.sorted(self.keys, context.clone())?),
            None => {
                let rows = self.chain.source()?.execute(0, context.clone())?;
                let rows = Ok::<_, DataFusionError>(Sorted::Stream(rows.boxed()));
                Either::Right(future::ready(rows))
            }
        };
        let each = self.each(true, &context);
        let has_parts = self.keys > 0;
        let rows = async move {
            let rows = match sorted.await? {
                Sorted::Parts(parts) if has_parts => {
                    let (count, begin) = parts.all(large(&context).rows, None);
                    each.of_parts(count, begin, bounds("windows", &context))
                }
                Sorted::Elsewhere(parts) if has_parts => {
                    let count = parts.output_partitioning().partition_count();
                    // As many parts as workers sort, within the memory for the windows, which are computed here.
                    let mut held = of_sorted("windows", &parts, &context);
                    held.turns = held.turns.min(memory_of(&context) / SPLIT_BYTES);
                    each.of_parts(count, partitions_of(parts, context.clone()), held)
                }
                sorted => {
                    // A sort that merges files requests memory while it runs, and so do windows.
                    let most = match &sorted {
                        Sorted::Stream(_) => memory_of(&context) / MERGE_SHARE,
                        Sorted::Parts(_) | Sorted::Elsewhere(_) => usize::MAX,
                    };
                    each.windowed(sorted.rows(large(&context).rows, &context), most)
                }
            };
            Ok::<_, DataFusionError>(evenly(rows, 0, batch_rows))
        };
        let rows = stream::once(rows).try_flatten();
        Ok(Box::pin(RecordBatchStreamAdapter::new(self.schema(), rows)))
    }
}

/// How many rows are computed at a time: more than most parts of a sort have, so that each of those is one batch.
fn large(context: &TaskContext) -> Unit {
    let unit = Unit::of(context);
    Unit { rows: 2 * unit.rows, ..unit }
}

/// Computes the steps over sorted rows of whole partitions.
struct Each {
    chain: Chain,
    steps: Option<Arc<Steps>>,
    /// True if DataFusion's operators compute partitions that do not fit into memory, whatever their bits.
    may_stream: bool,
    context: Arc<TaskContext>,
    stop: Stop,
}

impl Each {
    /// The calls over each of some parts, which have whole partitions.
    fn of_parts(
        self: Arc<Self>,
        count: usize,
        begin: Begin<RecordBatch>,
        held: Bounds,
    ) -> BoxStream<'static, Result<RecordBatch>> {
        let begin: Begin<RecordBatch> =
            Box::new(move |part| self.clone().windowed(begin(part), usize::MAX));
        in_order(count, begin, get_record_batch_memory_size, held)
    }

    /// `most` is an upper bound on the memory of a partition.
    fn windowed(
        self: Arc<Self>,
        rows: BoxStream<'static, Result<RecordBatch>>,
        most: usize,
    ) -> BoxStream<'static, Result<RecordBatch>> {
        let Some(steps) = self.steps.clone() else { return self.by_datafusion(rows) };
        let memory = MemoryConsumer::new("windows").register(self.context.memory_pool());
        let usual = large(&self.context);
        let state = Partitions {
            rows: Some(rows),
            held: Vec::new(),
            count: 0,
            bytes: 0,
            counted: RecordBatchMemoryCounter::new(),
            wanted: usual,
            usual,
            most,
            memory,
            steps,
            context: self.context.clone(),
            stop: self.stop.clone(),
        };
        let parts = stream::try_unfold(Some(state), move |state| {
            let each = self.clone();
            async move {
                let Some(mut state) = state else { return Ok::<_, DataFusionError>(None) };
                match state.next().await? {
                    Next::Rows(rows) => {
                        let rows = stream::iter(rows.into_iter().map(Ok::<_, DataFusionError>));
                        Ok(Some((rows.boxed(), Some(state))))
                    }
                    Next::TooMany if !each.may_stream && state.steps.has_whole() => {
                        let what =
                            "a partition of a window does not fit into the memory of a worker";
                        Err(DataFusionError::ResourcesExhausted(what.into()))
                    }
                    Next::TooMany => {
                        // A partition that does not fit into memory.
                        let held = stream::iter(state.held.into_iter().map(Ok));
                        let rest = state.rows.unwrap_or_else(|| stream::empty().boxed());
                        Ok(Some((each.by_datafusion(held.chain(rest).boxed()), None)))
                    }
                    Next::End => Ok(None),
                }
            }
        });
        parts.try_flatten().boxed()
    }

    fn by_datafusion(
        &self,
        rows: BoxStream<'static, Result<RecordBatch>>,
    ) -> BoxStream<'static, Result<RecordBatch>> {
        let windowed = || {
            let rows = OnceExec::new(self.chain.source()?.properties().clone(), rows);
            self.chain.over(Arc::new(rows))?.top().execute(0, self.context.clone())
        };
        match windowed() {
            Ok(rows) => self.stop.clone().around(rows),
            Err(e) => stream::iter([Err(e)]).boxed(),
        }
    }
}

/// Sorted rows, of which whole partitions are computed at a time.
struct Partitions {
    rows: Option<BoxStream<'static, Result<RecordBatch>>>,
    /// Batches that are not empty.
    held: Vec<RecordBatch>,
    /// The rows of these.
    count: usize,
    /// The bytes of batches that arrived since rows were last computed.
    bytes: usize,
    /// Batches may be slices of the same rows.
    counted: RecordBatchMemoryCounter,
    /// Number of held rows, or bytes, at which they are computed.
    wanted: Unit,
    /// Rows that are computed at a time, with the rest of their last partition.
    usual: Unit,
    /// Upper bound on the memory of a partition.
    most: usize,
    memory: MemoryReservation,
    steps: Arc<Steps>,
    context: Arc<TaskContext>,
    stop: Stop,
}

enum Next {
    /// Rows of whole partitions, with the results of the calls.
    Rows(Vec<RecordBatch>),
    /// The rows of a partition, or its results, do not fit into memory.
    TooMany,
    End,
}

impl Partitions {
    async fn next(&mut self) -> Result<Next> {
        loop {
            while (self.count == 0 || self.is_waiting())
                && let Some(rows) = &mut self.rows
            {
                match rows.try_next().await? {
                    Some(batch) if batch.num_rows() == 0 => {}
                    Some(batch) => {
                        let bytes = self.counted.count_batch(&batch);
                        let needed = self.steps.memory(batch.num_rows(), bytes);
                        let fits =
                            self.memory.try_grow(needed).is_ok() && self.memory.size() <= self.most;
                        self.count += batch.num_rows();
                        self.bytes += bytes;
                        self.held.push(batch);
                        if !fits {
                            self.memory.free();
                            return Ok(Next::TooMany);
                        }
                    }
                    None => self.rows = None,
                }
            }
            if self.held.is_empty() {
                return Ok(Next::End);
            }
            let (batch, row) = match self.rows {
                Some(_) => self.steps.start_of_last(&self.held)?,
                None => (self.held.len(), 0),
            };
            if (batch, row) == (0, 0) {
                // One partition so far. It is examined again when it has doubled.
                self.wanted.rows = self.count * 2;
                self.wanted.bytes = self.usual.bytes.max(self.bytes * 2).max(1);
                continue;
            }
            let whole = self.before(batch, row);
            let rows = self.steps.over(whole.clone(), &self.stop, &self.context).await;
            self.memory.free();
            return match rows {
                Ok(rows) => Ok(Next::Rows(rows)),
                Err(e) if is_out_of_memory(&e) => {
                    let rest = std::mem::replace(&mut self.held, whole);
                    self.held.extend(rest);
                    Ok(Next::TooMany)
                }
                Err(e) => Err(e),
            };
        }
    }

    /// True if more rows are held before some are computed.
    fn is_waiting(&self) -> bool {
        self.count < self.wanted.rows && self.bytes < self.wanted.bytes
    }

    /// Takes the held rows before a row of a batch.
    fn before(&mut self, batch: usize, row: usize) -> Vec<RecordBatch> {
        let mut rest = self.held.split_off(batch);
        if let Some(cut) = rest.first_mut()
            && row > 0
        {
            self.held.push(cut.slice(0, row));
            *cut = cut.slice(row, cut.num_rows() - row);
        }
        self.count = rest.iter().map(RecordBatch::num_rows).sum();
        self.bytes = 0;
        self.counted = RecordBatchMemoryCounter::new();
        self.wanted = self.usual;
        std::mem::replace(&mut self.held, rest)
    }
}
