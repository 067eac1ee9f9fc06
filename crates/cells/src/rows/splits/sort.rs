//! `ORDER BY` on all threads.
//!
//! ```text
//! split ──▶ runs of 2^16 sorted keys ──┐  bounds from samples   ┌─▶ keys up to the first bound, merged ──▶ rows ─┐
//! split ──▶ runs …                     ├─────────────────────────┼─▶ up to the second …                            ├─▶ in order
//! split ──▶ runs …                     ┘                         └─▶ the rest                                    ─┘
//! ```
//! Keys of fixed width become numbers that compare as the keys do ([`super::keys`]). Equal keys keep the order of their
//! rows, so the result is the same whatever the threads, and keys by which the input is ordered already are left out.
//!
//! Rows that do not fit into memory go to [`files`], as many at a time as fit.
//!
//! Workers may sort: then the input has the parts of the result as its partitions, each sorted ([`super::parts`]). In each
//! of these ways the same rows are in the same batches ([`super::even`]).

mod files;

use super::even::evenly;
use super::gather::{Unit, bounds, bounds_of, one_turn, partitions_of, shares_matches};
use super::in_order::{Begin, Bounds, in_order};
use super::keys::{Entry, Keys, Run};
use super::parts::{PartsExec, count_parts};
use crate::rows::single::{self, over, shown, usual};
use datafusion::arrow::array::{Array, ArrayRef, UInt64Array};
use datafusion::arrow::compute::{concat_batches, interleave_record_batch};
use datafusion::arrow::datatypes::SchemaRef;
use datafusion::arrow::record_batch::RecordBatch;
use datafusion::common::Result;
use datafusion::common::tree_node::TreeNodeRecursion;
use datafusion::common::utils::memory::{RecordBatchMemoryCounter, get_record_batch_memory_size};
use datafusion::execution::memory_pool::{MemoryConsumer, MemoryReservation};
use datafusion::execution::{SendableRecordBatchStream, TaskContext};
use datafusion::physical_expr::{LexOrdering, PhysicalExpr, PhysicalSortExpr};
use datafusion::physical_plan::execution_plan::apply_expression_roots;
use datafusion::physical_plan::sorts::sort::SortExec;
use datafusion::physical_plan::stream::RecordBatchStreamAdapter;
use datafusion::physical_plan::{ExecutionPlan, ExecutionPlanProperties, PlanProperties};
use files::SortedFiles;
use futures::stream::{self, BoxStream};
use futures::{StreamExt, TryStreamExt};
use std::sync::Arc;

const PART_ROWS: usize = 1 << 16;

/// Keys of each run from which the bounds are chosen.
const SAMPLES: usize = 64;

/// Consecutive rows of the input are not copied if they are at least this part of a batch.
const SLICE_SHARE: usize = 8;

/// Sorts the rows of all partitions of its input.
#[derive(Debug)]
pub(super) struct SortSplitsExec {
    input: Arc<dyn ExecutionPlan>,
    order: LexOrdering,
    limit: Option<usize>,
    /// True if the partitions of the input are the parts of the result, each sorted.
    is_sorted: bool,
    properties: Arc<PlanProperties>,
}

impl SortSplitsExec {
    /// The sort with another operator, or `None` if its keys have a type that this one cannot compare.
    pub(super) fn of(sort: &SortExec) -> Result<Option<Self>> {
        match Keys::new(sort.expr(), &sort.input().schema()) {
            Ok(_) => Self::new(sort.input().clone(), sort.expr().clone(), sort.fetch()).map(Some),
            Err(_) => Ok(None),
        }
    }

    /// A sort by keys that this operator can compare.
    pub(super) fn new(
        input: Arc<dyn ExecutionPlan>,
        order: LexOrdering,
        limit: Option<usize>,
    ) -> Result<Self> {
        Self::with(input, order, limit, false)
    }

    fn with(
        input: Arc<dyn ExecutionPlan>,
        order: LexOrdering,
        limit: Option<usize>,
        is_sorted: bool,
    ) -> Result<Self> {
        // Constants and equal columns of the input hold for the sorted rows, too.
        let mut known = input.equivalence_properties().clone();
        known.reorder(order.clone())?;
        let properties = single::after_input(known, 1);
        Ok(SortSplitsExec { input, order, limit, is_sorted, properties })
    }

    /// The parts of its result, which may be computed elsewhere; `None` if they are already, or if its input has no
    /// splits. Rows whose first `whole` keys are equal are in one part.
    pub(super) fn parts(&self, whole: usize) -> Result<Option<PartsExec>> {
        let splits = self.input.output_partitioning().partition_count();
        if self.is_sorted || splits == 1 || shares_matches(&self.input) {
            return Ok(None);
        }
        // A part has its rows in the order of the splits, so keys that are left out here are not missed there.
        let Some(order) = LexOrdering::new(self.own_keys()?) else { return Ok(None) };
        PartsExec::sorted(self.input.clone(), order, whole, count_parts(splits)).map(Some)
    }

    /// The same rows from the parts of the result, each of which is sorted elsewhere.
    pub(super) fn over_parts(&self, parts: Arc<dyn ExecutionPlan>) -> Result<Self> {
        Self::with(parts, self.order.clone(), self.limit, true)
    }

    /// All of its keys.
    pub(super) fn order(&self) -> &LexOrdering {
        &self.order
    }

    /// True if it yields all rows.
    pub(super) fn is_whole(&self) -> bool {
        self.limit.is_none()
    }

    /// The number of first keys that are among some expressions, if rows can be cut where these keys change; else 0.
    pub(super) fn count_keys(&self, among: &[Arc<dyn PhysicalExpr>]) -> Result<usize> {
        let is_among = |key: &&PhysicalSortExpr| among.iter().any(|expr| expr == &key.expr);
        let keys = self.order.iter().take_while(is_among).count();
        let own = Keys::new(&self.own_keys()?, &self.input.schema())?;
        Ok(if own.can_cut(keys) { keys } else { 0 })
    }

    /// Sorts the rows; parts end where the first `whole` keys change.
    pub(super) fn sorted(
        &self,
        whole: usize,
        context: Arc<TaskContext>,
    ) -> Result<impl Future<Output = Result<Sorted>> + Send + 'static> {
        let input = self.input.clone();
        let sort = if self.is_sorted {
            None
        } else {
            let keys = Arc::new(Keys::new(&self.own_keys()?, &input.schema())?);
            let (input, order) = (input.clone(), self.order.clone());
            Some(Sort { input, order, keys, whole, most: None, context })
        };
        Ok(async move {
            match sort {
                Some(sort) => sort.sorted().await,
                None => Ok(Sorted::Elsewhere(input)),
            }
        })
    }

    /// The keys without those at the end by which the input is ordered.
    fn own_keys(&self) -> Result<Vec<PhysicalSortExpr>> {
        let mut keys: Vec<_> = self.order.iter().cloned().collect();
        let known = self.input.equivalence_properties();
        for n in 1..keys.len() {
            if known.ordering_satisfy(keys[n..].to_vec())? {
                keys.truncate(n);
                break;
            }
        }
        Ok(keys)
    }
}

shown!(SortSplitsExec, |node, f| {
    write!(f, "SortSplitsExec: [{}]", node.order)?;
    node.limit.map_or(Ok(()), |limit| write!(f, ", the first {limit}"))
});

impl ExecutionPlan for SortSplitsExec {
    usual!(name, properties, input);

    fn apply_expressions(
        &self,
        visit: &mut dyn FnMut(&Arc<dyn PhysicalExpr>) -> Result<TreeNodeRecursion>,
    ) -> Result<TreeNodeRecursion> {
        apply_expression_roots(self.order.iter().map(|key| &key.expr), visit)
    }

    over!(|SortSplitsExec { order, limit, is_sorted, .. }, input| SortSplitsExec::with(
        input,
        order.clone(),
        *limit,
        *is_sorted
    )?);

    fn execute(
        &self,
        partition: usize,
        context: Arc<TaskContext>,
    ) -> Result<SendableRecordBatchStream> {
        single::check(self.name(), partition)?;
        let sorted = self.sorted(0, context.clone())?;
        let rows = async move {
            let held = bounds("sorted rows", &context);
            sorted.await.map(|sorted| sorted.evenly(0, held, &context))
        };
        let rows = limited(stream::once(rows).try_flatten().boxed(), self.limit);
        Ok(Box::pin(RecordBatchStreamAdapter::new(self.schema(), rows)))
    }
}

struct Sort {
    input: Arc<dyn ExecutionPlan>,
    order: LexOrdering,
    keys: Arc<Keys>,
    /// Rows whose first `whole` keys are equal are in one part.
    whole: usize,
    /// For one of several sorts at the same time: the memory that its rows may take. It runs on one thread.
    most: Option<usize>,
    context: Arc<TaskContext>,
}

/// The sorted rows of a task, which runs beside others: at most `most` bytes in memory. In the result they are behind
/// `before` others.
pub(super) async fn sorted_beside(
    input: Arc<dyn ExecutionPlan>,
    order: LexOrdering,
    (before, most): (usize, usize),
    context: &Arc<TaskContext>,
) -> Result<BoxStream<'static, Result<RecordBatch>>> {
    let keys = Arc::new(Keys::new(order.iter(), &input.schema())?);
    let (most, context) = (Some(most), context.clone());
    let held = one_turn("sorted rows", &context);
    let sort = Sort { input, order, keys, whole: 0, most, context: context.clone() };
    Ok(sort.sorted().await?.evenly(before, held, &context))
}

pub(super) enum Sorted {
    /// In memory, in parts.
    Parts(Arc<Merge>),
    /// Merged from files.
    Stream(BoxStream<'static, Result<RecordBatch>>),
    /// By workers, in the partitions of this plan.
    Elsewhere(Arc<dyn ExecutionPlan>),
}

impl Sorted {
    /// All rows, in order, and at most `batch_rows` in a batch if they are in memory.
    pub(super) fn rows(
        self,
        batch_rows: usize,
        context: &Arc<TaskContext>,
    ) -> BoxStream<'static, Result<RecordBatch>> {
        let (held, (count, begin)) = match self {
            Sorted::Parts(parts) => (bounds("sorted rows", context), parts.all(batch_rows, None)),
            Sorted::Stream(rows) => return rows,
            Sorted::Elsewhere(parts) => {
                let held = of_sorted("sorted rows", &parts, context);
                let count = parts.output_partitioning().partition_count();
                (held, (count, partitions_of(parts, context.clone())))
            }
        };
        in_order(count, begin, get_record_batch_memory_size, held)
    }

    /// All rows, in order, in batches of the usual number. In the result they are behind `from` others. Parts in memory
    /// use `held`.
    fn evenly(
        self,
        from: usize,
        held: Bounds,
        context: &Arc<TaskContext>,
    ) -> BoxStream<'static, Result<RecordBatch>> {
        let batch_rows = context.session_config().batch_size().max(1);
        let rows = match self {
            Sorted::Parts(parts) => {
                let (count, begin) = parts.all(batch_rows, Some(from));
                in_order(count, begin, get_record_batch_memory_size, held)
            }
            other => other.rows(batch_rows, context),
        };
        evenly(rows, from, batch_rows)
    }
}

/// The bounds of parts that are sorted elsewhere: as many parts as workers have turns. Further parts would retain their
/// rows on the workers until they are read.
pub(super) fn of_sorted(
    name: &str,
    parts: &Arc<dyn ExecutionPlan>,
    context: &TaskContext,
) -> Bounds {
    Bounds { window: 1, ..bounds_of(name, parts, context) }
}

struct SortedRun {
    batches: Vec<RecordBatch>,
    run: Run,
}

impl SortedRun {
    fn bytes(&self) -> usize {
        let rows: usize = self.batches.iter().map(get_record_batch_memory_size).sum();
        rows + self.run.bytes()
    }
}

struct SortedRuns {
    batches: Vec<RecordBatch>,
    runs: Vec<Run>,
    /// Batches may be slices of the same rows.
    counted: RecordBatchMemoryCounter,
    memory: MemoryReservation,
}

impl SortedRuns {
    fn new(context: &TaskContext) -> Self {
        SortedRuns {
            batches: Vec::new(),
            runs: Vec::new(),
            counted: RecordBatchMemoryCounter::new(),
            memory: MemoryConsumer::new("sort").register(context.memory_pool()),
        }
    }

    /// Asks for the memory of a run.
    fn try_grow(&mut self, SortedRun { batches, run }: &SortedRun) -> Result<()> {
        let bytes: usize = batches.iter().map(|batch| self.counted.count_batch(batch)).sum();
        self.memory.try_grow(bytes + run.bytes())
    }

    fn bytes(&self) -> usize {
        self.memory.size()
    }

    fn add(&mut self, SortedRun { batches, mut run }: SortedRun) {
        run.number(self.batches.len());
        self.batches.extend(batches);
        self.runs.push(run);
    }
}

impl Sort {
    async fn sorted(self) -> Result<Sorted> {
        let splits = self.input.output_partitioning().partition_count();
        let begin = partitions_of(self.input.clone(), self.context.clone());
        let begin = runs(begin, self.unit(), self.keys.clone());
        let ahead = bounds("sort", &self.context);
        let mut runs = in_order(splits, begin, SortedRun::bytes, ahead);
        let has_files = self.context.runtime_env().disk_manager.tmp_files_enabled();
        let (mut held, mut files) = (SortedRuns::new(&self.context), None);
        while let Some(run) = runs.try_next().await? {
            let grown = held.try_grow(&run);
            let is_full = grown.is_err() || self.most.is_some_and(|most| held.bytes() > most);
            if held.runs.is_empty() || !has_files || !is_full {
                grown?;
            } else {
                let files = files.get_or_insert_with(|| self.files());
                let full = std::mem::replace(&mut held, SortedRuns::new(&self.context));
                files.write(self.merged(full)).await?;
                held.try_grow(&run)?;
            }
            held.add(run);
        }
        // Releases the rows that were computed ahead: the merge of files may need their memory.
        drop(runs);
        let Some(mut files) = files else {
            return Ok(Sorted::Parts(Arc::new(self.merged(held))));
        };
        files.write(self.merged(held)).await?;
        files.merged(self.order, self.input.schema()).map(Sorted::Stream)
    }

    fn files(&self) -> SortedFiles {
        let ahead = if self.most.is_some() { one_turn } else { bounds };
        SortedFiles::new(&self.input.schema(), ahead, &self.context)
    }

    fn unit(&self) -> Unit {
        let unit = Unit::of(&self.context);
        let bytes = self.most.map_or(unit.bytes, |most| unit.bytes.min(most / 2));
        Unit { bytes, ..unit }
    }

    fn merged(&self, held: SortedRuns) -> Merge {
        let SortedRuns { batches, runs, counted, memory } = held;
        let rows: usize = batches.iter().map(RecordBatch::num_rows).sum();
        let row_bytes = (counted.memory_usage() / rows.max(1)).max(1);
        let batch_rows = self.context.session_config().batch_size().max(1);
        Merge {
            cuts: self.keys.cuts(&runs, rows.div_ceil(PART_ROWS), SAMPLES, self.whole),
            keys: self.keys.clone(),
            batches,
            runs,
            row_bytes,
            most: (Unit::of(&self.context).bytes / row_bytes).max(batch_rows),
            slice: (batch_rows / SLICE_SHARE).max(1),
            numbers: None,
            _memory: memory,
        }
    }
}

/// The first rows.
pub(super) fn limited(
    rows: BoxStream<'static, Result<RecordBatch>>,
    limit: Option<usize>,
) -> BoxStream<'static, Result<RecordBatch>> {
    let Some(limit) = limit else { return rows };
    let rows = stream::try_unfold((rows, limit), |(mut rows, left)| async move {
        if left == 0 {
            return Ok(None);
        }
        let Some(batch) = rows.try_next().await? else { return Ok(None) };
        let batch = batch.slice(0, left.min(batch.num_rows()));
        let left = left - batch.num_rows();
        Ok(Some((batch, (rows, left))))
    });
    rows.boxed()
}

fn runs(rows: Begin<RecordBatch>, unit: Unit, keys: Arc<Keys>) -> Begin<SortedRun> {
    Box::new(move |split| {
        let keys = keys.clone();
        let runs = stream::try_unfold(Some(rows(split)), move |rows| {
            let keys = keys.clone();
            async move {
                let Some(mut rows) = rows else { return Ok(None) };
                let Some((batches, has_more)) = unit.next(&mut rows).await? else {
                    return Ok(None);
                };
                let run = keys.run(&batches)?;
                Ok(Some((SortedRun { batches, run }, has_more.then_some(rows))))
            }
        });
        runs.boxed()
    })
}

/// All rows, and where the parts of their order begin.
pub(super) struct Merge {
    keys: Arc<Keys>,
    batches: Vec<RecordBatch>,
    runs: Vec<Run>,
    /// For each bound, the first entry of each run that is not before it.
    cuts: Vec<Vec<usize>>,
    /// Bytes of a row, on average.
    row_bytes: usize,
    /// Upper bound on the rows of a batch that is asked for: rows with long texts are fewer.
    most: usize,
    /// Consecutive rows that are not copied.
    slice: usize,
    /// `None` for rows without their numbers.
    numbers: Option<Numbers>,
    _memory: MemoryReservation,
}

/// The numbers of rows in the order of the input, as their last column.
struct Numbers {
    schema: SchemaRef,
    /// The number of the first row of each batch.
    starts: Vec<u64>,
}

impl Numbers {
    fn with(&self, rows: &RecordBatch, entries: &[Entry]) -> Result<RecordBatch> {
        let numbers = entries.iter().map(|&(batch, row)| self.starts[batch] + row as u64);
        let mut columns = rows.columns().to_vec();
        columns.push(Arc::new(UInt64Array::from_iter_values(numbers)));
        Ok(RecordBatch::try_new(self.schema.clone(), columns)?)
    }
}

impl Merge {
    /// The number of parts, and a function that begins each of them. A batch has at most `batch_rows` rows. With the
    /// number of the rows before the first part, batches end where [`evenly`] ends them, or with their part.
    pub(super) fn all(
        self: Arc<Self>,
        batch_rows: usize,
        from: Option<usize>,
    ) -> (usize, Begin<RecordBatch>) {
        let parts = self.cuts.len().saturating_sub(1);
        let most = batch_rows.min(self.most).max(1);
        let begin = move |part| {
            let all = self.clone();
            stream::once(async move { all.part(part, most, from) }).try_flatten().boxed()
        };
        (parts, Box::new(begin))
    }

    /// The sorted rows between two bounds.
    fn part(
        self: Arc<Self>,
        part: usize,
        most: usize,
        from: Option<usize>,
    ) -> Result<BoxStream<'static, Result<RecordBatch>>> {
        let first = from.map(|from| from + self.cuts[part].iter().sum::<usize>());
        let entries: Vec<Entry> =
            self.keys.merged(&self.runs, &self.cuts[part], &self.cuts[part + 1]);
        let state = (self, entries, 0);
        let batches = stream::try_unfold(state, move |(all, entries, start)| async move {
            let room = first.map_or(most, |first| most - (first + start) % most);
            let end = (start + room).min(entries.len());
            if start == end {
                return Ok(None);
            }
            let mut batch = match first {
                Some(_) => all.together(&entries[start..end])?,
                None => all.batch(&entries[start..end])?,
            };
            let next = start + batch.num_rows();
            if let Some(numbers) = &all.numbers {
                batch = numbers.with(&batch, &entries[start..next])?;
            }
            Ok(Some((batch, (all, entries, next))))
        });
        Ok(batches.boxed())
    }

    /// The rows of the first entries, one at least. Rows that are in order in the input are not copied.
    fn batch(&self, mut entries: &[Entry]) -> Result<RecordBatch> {
        let straight = straight(entries);
        if let Some(&(batch, row)) = entries.first()
            && straight >= self.slice
        {
            let rows = self.batches[batch].slice(row, straight);
            if is_mostly_own(&rows) {
                return Ok(rows);
            }
            entries = &entries[..straight];
        }
        self.copied(entries)
    }

    /// The rows of all of these entries. Rows that are in order in the input are not copied one by one.
    fn together(&self, entries: &[Entry]) -> Result<RecordBatch> {
        let (mut slices, mut rest, most) = (Vec::new(), entries, entries.len() / self.slice);
        while let Some(&(batch, row)) = rest.first()
            && slices.len() <= most
        {
            let straight = straight(rest);
            slices.push(self.batches[batch].slice(row, straight));
            rest = &rest[straight..];
        }
        match slices.as_slice() {
            [rows] if rest.is_empty() && is_mostly_own(rows) => Ok(rows.clone()),
            [rows, _, ..] if rest.is_empty() && slices.len() <= most => {
                Ok(concat_batches(&rows.schema(), &slices)?)
            }
            _ => self.copied(entries),
        }
    }

    fn copied(&self, entries: &[Entry]) -> Result<RecordBatch> {
        let batches: Vec<&RecordBatch> = self.batches.iter().collect();
        Ok(interleave_record_batch(&batches, entries)?)
    }
}

/// The number of first entries that are consecutive rows of a batch.
fn straight(entries: &[Entry]) -> usize {
    let Some(&(batch, row)) = entries.first() else { return 0 };
    let expected = (row..).map(|row| (batch, row));
    entries.iter().zip(expected).take_while(|(entry, expected)| *entry == expected).count()
}

/// True if at least half of the memory that these rows keep is theirs: batches may be slices of many more rows.
fn is_mostly_own(rows: &RecordBatch) -> bool {
    let bytes = |column: &ArrayRef| column.to_data().get_slice_memory_size().unwrap_or(0);
    let own: usize = rows.columns().iter().map(bytes).sum();
    get_record_batch_memory_size(rows) <= 2 * own
}

#[cfg(test)]
mod tests;
