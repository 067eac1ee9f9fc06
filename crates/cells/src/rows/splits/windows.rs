//! Window functions over sorted rows.
//!
//! ```text
//! sorted rows ──▶ whole partitions ──▶ calls ──┐
//!             ──▶ whole partitions ──▶ calls ──┴▶ in order
//! ```
//! Where the partitions begin follows from the first keys of the sort, so the parts of the sort's result are cut there
//! and computed on all threads. [`calls`](super::calls) are computed for many rows at a time; other functions are left
//! to DataFusion's operator, part by part. Workers may sort the parts: they end where partitions end, too.

use super::calls::Calls;
use super::even::evenly;
use super::gather::{SPLIT_BYTES, Unit, bounds, memory_of, partitions_of};
use super::in_order::{Begin, Bounds, in_order};
use super::once::OnceExec;
use super::parts::PartsExec;
use super::replaced;
use super::sort::{SortSplitsExec, Sorted, of_sorted};
use crate::rows::single::{self, usual};
use crate::rows::stop::{IsStopped, Stop};
use datafusion::arrow::array::RecordBatch;
use datafusion::common::internal_datafusion_err;
use datafusion::common::utils::memory::{RecordBatchMemoryCounter, get_record_batch_memory_size};
use datafusion::error::{DataFusionError, Result};
use datafusion::execution::memory_pool::{MemoryConsumer, MemoryReservation};
use datafusion::execution::{SendableRecordBatchStream, TaskContext};
use datafusion::physical_expr::window::WindowExpr;
use datafusion::physical_plan::stream::RecordBatchStreamAdapter;
use datafusion::physical_plan::windows::{BoundedWindowAggExec, WindowAggExec};
use datafusion::physical_plan::{
    DisplayAs, DisplayFormatType, ExecutionPlan, ExecutionPlanProperties, PlanProperties,
};
use futures::stream::{self, BoxStream};
use futures::{StreamExt, TryStreamExt};
use std::fmt;
use std::sync::Arc;

/// Above a sort that merges files, a partition may take this part of a statement's memory for rows.
const MERGE_SHARE: usize = 4;

/// A window operator above a sort.
#[derive(Debug, Clone)]
pub(in crate::rows) struct WindowsExec {
    /// The operator, with the sort as its input.
    window: Arc<dyn ExecutionPlan>,
    /// Keys of the sort whose equal rows are of one partition; with none, all rows are.
    keys: usize,
    calls: Option<Arc<Calls>>,
    properties: Arc<PlanProperties>,
    stop: Stop,
}

impl WindowsExec {
    /// The operator for a window above a sort; `None` where DataFusion's own is as good.
    pub(super) fn of(window: &Arc<dyn ExecutionPlan>) -> Result<Option<Self>> {
        let exprs = exprs(window);
        let Some(sort) = sort(window).filter(|sort| sort.is_whole()) else { return Ok(None) };
        let Some(first) = exprs.iter().min_by_key(|call| call.partition_by().len()) else {
            return Ok(None);
        };
        let partition = first.partition_by();
        let keys = sort.count_keys(partition)?;
        let calls = Calls::new(exprs, &sort.schema())?.map(Arc::new);
        if keys == 0 && calls.is_none() {
            return Ok(None);
        }
        let properties = window.properties().clone();
        let (window, stop) = (window.clone(), Stop::default());
        Ok(Some(WindowsExec { window, keys, calls, properties, stop }))
    }

    /// The parts of its sort, which may be computed elsewhere; `None` if they are already, or if there are no splits.
    pub(super) fn parts(&self) -> Result<Option<PartsExec>> {
        sort(&self.window).map_or(Ok(None), |sort| sort.parts(self.keys))
    }

    /// The same windows over the parts of the sort, each of which is sorted elsewhere.
    pub(super) fn over_parts(&self, parts: Arc<dyn ExecutionPlan>) -> Result<Self> {
        let sort = sort(&self.window)
            .ok_or_else(|| internal_datafusion_err!("the input of a window is not its sort"))?;
        let window = replaced(&self.window, vec![Arc::new(sort.over_parts(parts)?)])?;
        Ok(WindowsExec { window, ..self.clone() })
    }

    /// The same windows, which end soon after `is_stopped` returns true.
    pub(in crate::rows) fn stoppable(&self, is_stopped: &IsStopped) -> Self {
        WindowsExec { stop: Stop::new(is_stopped), ..self.clone() }
    }
}

/// The calls of a window operator.
fn exprs(window: &Arc<dyn ExecutionPlan>) -> &[Arc<dyn WindowExpr>] {
    let bounded = window.downcast_ref::<BoundedWindowAggExec>().map(|w| w.window_expr());
    bounded
        .or_else(|| window.downcast_ref::<WindowAggExec>().map(|w| w.window_expr()))
        .unwrap_or(&[])
}

fn sort(window: &Arc<dyn ExecutionPlan>) -> Option<&SortSplitsExec> {
    window.children().first().and_then(|input| input.downcast_ref::<SortSplitsExec>())
}

impl DisplayAs for WindowsExec {
    fn fmt_as(&self, format: DisplayFormatType, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("WindowsExec: ")?;
        self.window.fmt_as(format, f)
    }
}

impl ExecutionPlan for WindowsExec {
    usual!(name, properties, expressions of window);

    /// The input of the sort.
    fn children(&self) -> Vec<&Arc<dyn ExecutionPlan>> {
        self.window.children().into_iter().flat_map(|sort| sort.children()).collect()
    }

    fn with_new_children(
        self: Arc<Self>,
        children: Vec<Arc<dyn ExecutionPlan>>,
    ) -> Result<Arc<dyn ExecutionPlan>> {
        let sort = self.window.children().into_iter().next().cloned();
        let sort = sort.ok_or_else(|| internal_datafusion_err!("a window has no input"))?;
        let window = replaced(&self.window, vec![replaced(&sort, children)?])?;
        Ok(Arc::new(WindowsExec { window, ..Self::clone(&self) }))
    }

    fn execute(
        &self,
        partition: usize,
        context: Arc<TaskContext>,
    ) -> Result<SendableRecordBatchStream> {
        single::check(self.name(), partition)?;
        let sort = sort(&self.window)
            .ok_or_else(|| internal_datafusion_err!("the input of a window is not its sort"))?;
        let sorted = sort.sorted(self.keys, context.clone())?;
        let each = Arc::new(Each {
            window: self.window.clone(),
            calls: self.calls.clone(),
            context: context.clone(),
            stop: self.stop.clone(),
        });
        let has_parts = self.keys > 0;
        let batch_rows = context.session_config().batch_size().max(1);
        let rows = async move {
            let rows = match sorted.await? {
                Sorted::Parts(parts) if has_parts => {
                    let (count, begin) = parts.all(large(&context).rows, None);
                    each.of_parts(count, begin, bounds("windows", &context))
                }
                Sorted::Elsewhere(parts) if has_parts => {
                    let count = parts.output_partitioning().partition_count();
                    // As many as workers sort, within the memory for what is computed here.
                    let mut held = of_sorted("windows", &parts, &context);
                    held.turns = held.turns.min(memory_of(&context) / SPLIT_BYTES);
                    each.of_parts(count, partitions_of(parts, context.clone()), held)
                }
                sorted => {
                    // A sort that merges files asks for memory as it goes on.
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

/// Computes the calls over sorted rows of whole partitions.
struct Each {
    window: Arc<dyn ExecutionPlan>,
    calls: Option<Arc<Calls>>,
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
        let Some(calls) = self.calls.clone() else { return self.by_datafusion(rows) };
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
            calls,
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
            let sort = self.window.children().into_iter().next().cloned();
            let sort = sort.ok_or_else(|| internal_datafusion_err!("a window has no input"))?;
            let rows = OnceExec::new(sort.properties().clone(), rows);
            replaced(&self.window, vec![Arc::new(rows)])?.execute(0, self.context.clone())
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
    /// The bytes of those that came since some were computed.
    bytes: usize,
    /// Batches may be slices of the same rows.
    counted: RecordBatchMemoryCounter,
    /// Held rows, or bytes, from which on they are computed.
    wanted: Unit,
    /// Rows that are computed at a time, with the rest of their last partition.
    usual: Unit,
    /// Upper bound on the memory of a partition.
    most: usize,
    memory: MemoryReservation,
    calls: Arc<Calls>,
    stop: Stop,
}

enum Next {
    /// Rows of whole partitions, with the results of the calls.
    Rows(Vec<RecordBatch>),
    /// The rows of a partition do not fit into memory.
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
                        let fits = self.memory.try_grow(self.calls.copies() * bytes).is_ok()
                            && self.memory.size() <= self.most;
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
                Some(_) => self.calls.start_of_last(&self.held)?,
                None => (self.held.len(), 0),
            };
            if (batch, row) == (0, 0) {
                // One partition so far. It is looked at again when it has doubled.
                self.wanted.rows = self.count * 2;
                self.wanted.bytes = self.usual.bytes.max(self.bytes * 2).max(1);
                continue;
            }
            let whole = self.before(batch, row);
            let rows = self.stop.within(|| self.calls.with_results(whole))?;
            self.memory.free();
            return Ok(Next::Rows(rows));
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
