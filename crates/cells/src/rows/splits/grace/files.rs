//! The join of rows in files.
//!
//! ```text
//! first side  ──▶ by the hash of the keys ──▶ part 0 … 63 ─┐
//! second side ──▶ by the hash of the keys ──▶ part 0 … 63 ─┴▶ HashJoinExec of each pair ──▶ by the number of the row
//!                                                                   │ refused memory                 │
//!                                                                   ▼                                ▼
//!                                             both parts once more, by another hash       sorted by the number
//! ```
//! Rows with equal keys are in one pair, so each pair is joined alone. A row without a key matches nothing: it is left
//! out, or is in any part if it is a row of the result. The rows of all pairs go to parts that are intervals of the
//! numbers of the second side, which end where splits end. A part is read when its split is read, and sorted: a row of
//! the second side has its matches in one pair, in the order of the first side, and the sort keeps the order of rows with
//! equal numbers. Rows that the first side has without a match follow in parts of their own.
//!
//! Pairs whose table is refused memory are joined after the others, one at a time, so that a pair is divided only for its
//! own size.

use super::numbers::{first_of, numbered, of_split, over, when_read, without_numbers};
use super::{NUMBER_OF_FIRST, NUMBER_OF_SECOND, Rows};
use crate::rows::IsStopped;
use crate::rows::single;
use crate::rows::splits::gather::{memory_of, yields_build_side};
use crate::rows::splits::groups::evaluated;
use crate::rows::splits::in_order::is_out_of_memory;
use crate::rows::splits::once::OnceExec;
use crate::rows::splits::scatter::{Lists, Scatter, Scattered, hash_at, parts_of};
use crate::rows::splits::sort::SortSplitsExec;
use crate::rows::stop::checked;
use datafusion::arrow::array::{Array, ArrayRef, AsArray};
use datafusion::arrow::buffer::NullBuffer;
use datafusion::arrow::compute::SortOptions;
use datafusion::arrow::datatypes::{SchemaRef, UInt64Type};
use datafusion::arrow::record_batch::RecordBatch;
use datafusion::common::hash_utils::RandomState;
use datafusion::common::utils::memory::get_record_batch_memory_size;
use datafusion::common::{JoinType, NullEquality, internal_datafusion_err};
use datafusion::error::{DataFusionError, Result};
use datafusion::execution::{SendableRecordBatchStream, TaskContext};
use datafusion::physical_expr::expressions::Column;
use datafusion::physical_expr::{LexOrdering, PhysicalExpr, PhysicalSortExpr};
use datafusion::physical_plan::ExecutionPlan;
use datafusion::physical_plan::joins::HashJoinExec;
use datafusion::physical_plan::stream::RecordBatchStreamAdapter;
use datafusion::physical_plan::streaming::{PartitionStream, StreamingTableExec};
use futures::stream;
use futures::{StreamExt, TryStreamExt};
use std::collections::BTreeSet;
use std::fmt;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Parts of the keys, and of the keys of a part that is divided.
const PARTS: usize = 64;
const PARTS_LEAST: usize = 4;
/// A part is divided into parts of about this share of a statement's memory.
const DIVIDED_SHARE: usize = 16;
/// Maximum divisions of a part.
const DEPTH_MAX: usize = 3;

/// Rows that wait for their file may take this part of a statement's memory.
const WAITING_SHARE: usize = 8;

/// Rows of a key with too many of them are joined in blocks of this part of a statement's memory.
const BLOCK_SHARE: usize = 16;

/// Parts of the result's rows, by the number of the row of the second side and by that of the first one.
const RESULT_PARTS: usize = 256;
const LAST_PARTS: usize = 64;
/// Minimum rows of these sides for each part.
const RESULT_ROWS: u64 = 1 << 16;

/// Hashes keys for parts. Parts of parts need other hashes, and the join has its own.
const fn state(depth: usize) -> RandomState {
    hash_at(0x6772_6163_6500, depth)
}

struct Side {
    keys: Vec<Arc<dyn PhysicalExpr>>,
    /// True if missing keys are equal.
    is_null_equal: bool,
    /// The column of the numbers, if rows without a match are rows of the result.
    kept: Option<usize>,
}

impl Side {
    fn scatter(self: &Arc<Self>, parts: usize, depth: usize) -> Scatter {
        let side = self.clone();
        let of = move |_: usize, rows: &RecordBatch| -> Result<Vec<u32>> {
            side.parts_of(rows, parts, depth)
        };
        Scatter::by(parts, of)
    }

    fn parts_of(&self, rows: &RecordBatch, parts: usize, depth: usize) -> Result<Vec<u32>> {
        let hashed = |keys: &[ArrayRef]| parts_of(keys, rows.num_rows(), &state(depth), parts);
        let keys = evaluated(&self.keys, rows)?;
        let mut of = hashed(&keys)?;
        if self.is_null_equal {
            return Ok(of);
        }
        let nulls: Vec<_> = keys.iter().map(|key| key.logical_nulls()).collect();
        let Some(nulls) = NullBuffer::union_many(nulls.iter().map(Option::as_ref)) else {
            return Ok(of);
        };
        let any = match self.kept {
            Some(number) => hashed(&[rows.column(number).clone()])?,
            None => vec![parts as u32; rows.num_rows()],
        };
        for (row, part) in of.iter_mut().enumerate().filter(|(row, _)| nulls.is_null(*row)) {
            *part = any[row];
        }
        Ok(of)
    }
}

/// The rows of both sides, in the same parts of their keys.
struct Sides {
    first: Arc<Scattered>,
    second: Arc<Scattered>,
}

/// Joins pairs of parts.
struct Pairs {
    join: Arc<HashJoinExec>,
    first: Arc<Side>,
    second: Arc<Side>,
    sides: Arc<Sides>,
    /// Pairs whose table was refused memory.
    refused: Mutex<BTreeSet<usize>>,
    is_stopped: IsStopped,
    context: Arc<TaskContext>,
}

impl Pairs {
    fn refused(&self) -> MutexGuard<'_, BTreeSet<usize>> {
        self.refused.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn plan(&self, of: &Arc<Scattered>, part: usize) -> Result<Arc<dyn ExecutionPlan>> {
        Ok(checked(of.plan(part)?, &self.is_stopped))
    }

    /// The rows of a pair, or the error if its table is refused memory.
    async fn joined(
        &self,
        first: Arc<dyn ExecutionPlan>,
        second: Arc<dyn ExecutionPlan>,
    ) -> Result<std::result::Result<Rows, DataFusionError>> {
        let began = Arc::new(AtomicBool::new(false));
        let has_begun = began.clone();
        let second = when_read(second, move || has_begun.store(true, SeqCst));
        let join = over(&self.join, first, second, true)?.with_fetch(None).build()?;
        let mut rows = join.execute(0, self.context.clone())?;
        match rows.next().await {
            // The second side is read once the table is complete.
            Some(Err(e)) if is_out_of_memory(&e) && !began.load(SeqCst) => Ok(Err(e)),
            row => Ok(Ok(stream::iter(row).chain(rows).boxed())),
        }
    }

    /// The rows of a pair. If its table is refused memory, there are none yet.
    async fn tried(self: Arc<Self>, part: usize) -> Result<Rows> {
        let Sides { first, second } = &*self.sides;
        let rows = self.joined(self.plan(first, part)?, self.plan(second, part)?).await?;
        let mut refused = self.refused();
        Ok(match rows {
            Ok(rows) => {
                // It may have been refused memory before it ran again.
                refused.remove(&part);
                rows
            }
            Err(_) => {
                refused.insert(part);
                stream::empty().boxed()
            }
        })
    }

    /// The rows of the pairs that were refused memory.
    fn rest(self: Arc<Self>) -> Rows {
        let parts: Vec<usize> = self.refused().iter().copied().collect();
        let sides = self.sides.clone();
        stream::iter(parts).flat_map(move |part| self.clone().of(sides.clone(), part, 0)).boxed()
    }

    /// The rows of a pair that was divided `depth` times.
    fn of(self: Arc<Self>, sides: Arc<Sides>, part: usize, depth: usize) -> Rows {
        stream::once(async move { self.begun(sides, part, depth).await }).try_flatten().boxed()
    }

    async fn begun(self: Arc<Self>, sides: Arc<Sides>, part: usize, depth: usize) -> Result<Rows> {
        let (first, second) = (self.plan(&sides.first, part)?, self.plan(&sides.second, part)?);
        let error = match self.joined(first, second).await? {
            Ok(rows) => return Ok(rows),
            Err(e) => e,
        };
        if depth == DEPTH_MAX {
            return self.in_blocks(&sides, part, &error);
        }
        let bytes = sides.first.bytes(part);
        let aim = (memory_of(&self.context) / DIVIDED_SHARE).max(1);
        let parts = (bytes / aim).clamp(PARTS_LEAST, PARTS);
        let input = self.plan(&sides.first, part)?;
        let scatter = self.first.scatter(parts, depth + 1);
        let first = in_files(vec![input], scatter, &self.context).await?;
        // Another hash does not divide rows with one key.
        if (0..parts).any(|new| first.bytes(new) == bytes) {
            return self.in_blocks(&sides, part, &error);
        }
        let input = self.plan(&sides.second, part)?;
        let scatter = self.second.scatter(parts, depth + 1);
        let second = in_files(vec![input], scatter, &self.context).await?;
        let sides = Arc::new(Sides { first, second });
        let pair = move |part| self.clone().of(sides.clone(), part, depth + 1);
        Ok(stream::iter(0..parts).flat_map(pair).boxed())
    }

    /// The rows of a pair whose rows of the first side are taken some at a time. The second side is read once for each
    /// of these blocks, so no row of it may need all blocks to know whether it has a match.
    fn in_blocks(
        self: Arc<Self>,
        sides: &Arc<Sides>,
        part: usize,
        error: &DataFusionError,
    ) -> Result<Rows> {
        use JoinType::{Inner, Left, LeftAnti, LeftMark, LeftSemi};
        let kind = *self.join.join_type();
        if !matches!(kind, Inner | Left | LeftAnti | LeftMark | LeftSemi) {
            let (count, bytes) = (sides.first.count(part), sides.first.bytes(part));
            let reason = error.strip_backtrace();
            return Err(DataFusionError::ResourcesExhausted(format!(
                "{count} rows ({bytes} bytes) of one side of a join share a key, or could not be divided by their keys, and their table does not fit into memory ({reason}); a further key, or a condition that leaves out some of these rows, would help"
            )));
        }
        let most = memory_of(&self.context) / BLOCK_SHARE;
        let rows = self.plan(&sides.first, part)?.execute(0, self.context.clone())?;
        let state = (rows, self, sides.clone());
        let blocks = stream::try_unfold(state, move |(mut rows, pairs, sides)| async move {
            let (mut block, mut bytes) = (Vec::new(), 0);
            while bytes <= most
                && let Some(batch) = rows.try_next().await?
            {
                bytes += get_record_batch_memory_size(&batch);
                block.push(Ok(batch));
            }
            if block.is_empty() {
                return Ok::<_, DataFusionError>(None);
            }
            let properties = sides.first.plan(part)?.properties().clone();
            let block = Arc::new(OnceExec::new(properties, stream::iter(block).boxed()));
            let second = pairs.plan(&sides.second, part)?;
            let joined = pairs.joined(block, second).await??;
            Ok(Some((joined, (rows, pairs, sides))))
        });
        Ok(blocks.try_flatten().boxed())
    }
}

/// Writes the rows of all inputs to the files of their parts.
async fn in_files(
    inputs: Vec<Arc<dyn ExecutionPlan>>,
    scatter: Scatter,
    context: &Arc<TaskContext>,
) -> Result<Arc<Scattered>> {
    let first = inputs.first().ok_or_else(|| internal_datafusion_err!("there is no input"))?;
    let mut lists = Lists::new(first.schema(), scatter, WAITING_SHARE, context);
    for input in inputs {
        let splits = input.properties().output_partitioning().partition_count();
        lists.read(input, 0..splits, context).await?;
    }
    // Frees the memory for the tables.
    lists.spill()?;
    Ok(Arc::new(lists.finish()?))
}

/// A pair as a partition of a plan.
struct Pair {
    pairs: Arc<Pairs>,
    part: usize,
    schema: SchemaRef,
}

impl fmt::Debug for Pair {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Pair").field("part", &self.part).finish_non_exhaustive()
    }
}

impl PartitionStream for Pair {
    fn schema(&self) -> &SchemaRef {
        &self.schema
    }

    fn execute(&self, _: Arc<TaskContext>) -> SendableRecordBatchStream {
        let rows = stream::once(self.pairs.clone().tried(self.part)).try_flatten();
        Box::pin(RecordBatchStreamAdapter::new(self.schema.clone(), rows))
    }
}

/// The parts of the rows of the result.
struct ResultParts {
    /// The first number of the second side in each part.
    starts: Vec<u64>,
    splits: usize,
    /// True if a part has rows of several splits.
    is_shared: bool,
    /// Number of further parts, of `last_rows` rows of the first side each, for rows without a number of the second
    /// side.
    last: usize,
    last_rows: u64,
    /// The columns of both numbers.
    second: Option<usize>,
    first: Option<usize>,
}

impl ResultParts {
    fn starts(counts: &[u64]) -> Vec<u64> {
        let splits = counts.len().max(1);
        let (together, each) = (splits.div_ceil(RESULT_PARTS), (RESULT_PARTS / splits).max(1));
        let of_split = |split: usize| {
            let count = counts.get(split).copied().unwrap_or(0);
            let rows = count.div_ceil(each as u64).max(RESULT_ROWS);
            let parts = if together > 1 { 1 } else { count.div_ceil(rows).max(1) };
            (0..parts).map(move |part| first_of(split) + part * rows)
        };
        (0..splits).step_by(together).flat_map(of_split).collect()
    }

    fn count(&self) -> usize {
        self.starts.len() + self.last
    }

    /// The parts with rows of a split.
    fn of_split(&self, split: usize) -> Range<usize> {
        let start = self.starts.partition_point(|start| *start <= first_of(split));
        let end = self.starts.partition_point(|start| *start < first_of(split + 1));
        start.saturating_sub(1)..end
    }

    fn parts_of(&self, rows: &RecordBatch) -> Vec<u32> {
        let numbers = |column: usize| rows.column(column).as_primitive::<UInt64Type>();
        let (second, first) = (self.second.map(numbers), self.first.map(numbers));
        let mut part = 0;
        let of = |row: usize| {
            let Some(second) = second.filter(|second| second.is_valid(row)) else {
                let number = first.map_or(0, |first| first.value(row));
                return (self.starts.len() as u64 + number / self.last_rows) as u32;
            };
            let number = second.value(row);
            // Rows are mostly in order.
            let is_in = |start: &u64| *start <= number;
            if !self.starts.get(part).is_some_and(is_in)
                || self.starts.get(part + 1).is_some_and(is_in)
            {
                part = self.starts.partition_point(is_in).saturating_sub(1);
            }
            part as u32
        };
        (0..rows.num_rows()).map(of).collect()
    }
}

/// The rows of a join, in files.
pub(super) struct Spilled {
    rows: Arc<Scattered>,
    places: Arc<ResultParts>,
    schema: SchemaRef,
    is_stopped: IsStopped,
    context: Arc<TaskContext>,
}

impl Spilled {
    /// Joins these rows of the first side with those of the second one.
    pub(super) async fn of(
        join: Arc<HashJoinExec>,
        first: Rows,
        is_stopped: IsStopped,
        context: Arc<TaskContext>,
    ) -> Result<Self> {
        use JoinType::{Full, Left, LeftAnti, LeftMark, LeftSemi, Right, RightAnti, RightMark};
        let kind = *join.join_type();
        let width = |input: &Arc<dyn ExecutionPlan>| input.schema().fields().len();
        let is_null_equal = join.null_equality() == NullEquality::NullEqualsNull;
        let (first_keys, second_keys): (Vec<_>, Vec<_>) = join.on().iter().cloned().unzip();
        let side = |keys, is_kept: bool, input| {
            Arc::new(Side { keys, is_null_equal, kept: is_kept.then(|| width(input)) })
        };
        let is_kept = matches!(kind, Full | Left | LeftAnti | LeftMark);
        let first_side = side(first_keys, is_kept, join.left());
        let is_kept = matches!(kind, Full | Right | RightAnti | RightMark);
        let second_side = side(second_keys, is_kept, join.right());

        let (has_first, has_second) =
            (yields_build_side(kind), !matches!(kind, LeftAnti | LeftMark | LeftSemi));
        let first: Arc<dyn ExecutionPlan> =
            Arc::new(OnceExec::new(join.left().properties().clone(), first));
        let (numbered_first, first_counts) = numbered(first.clone(), NUMBER_OF_FIRST);
        let first = if has_first { numbered_first } else { first };
        let first = in_files(vec![first], first_side.scatter(PARTS, 0), &context).await?;
        let (numbered_second, second_counts) = numbered(join.right().clone(), NUMBER_OF_SECOND);
        let second = if has_second { numbered_second } else { join.right().clone() };
        let second = in_files(vec![second], second_side.scatter(PARTS, 0), &context).await?;

        let columns = join.schema().fields().len();
        let schema = over(&join, first.plan(0)?, second.plan(0)?, true)?.build()?.schema();
        let count = |counts: &[AtomicU64]| -> Vec<u64> {
            counts.iter().map(|count| count.load(SeqCst)).collect()
        };
        let first_rows: u64 = count(&first_counts).iter().sum();
        let last_rows = first_rows.div_ceil(LAST_PARTS as u64).max(RESULT_ROWS);
        let places = Arc::new(ResultParts {
            starts: if has_second {
                ResultParts::starts(&count(&second_counts))
            } else {
                Vec::new()
            },
            splits: second_counts.len(),
            is_shared: second_counts.len() > RESULT_PARTS,
            last: if has_first { first_rows.div_ceil(last_rows).max(1) as usize } else { 0 },
            last_rows,
            second: has_second.then_some(columns),
            first: has_first.then_some(columns + usize::from(has_second)),
        });
        let pairs = Arc::new(Pairs {
            join: join.clone(),
            first: first_side,
            second: second_side,
            sides: Arc::new(Sides { first, second }),
            refused: Mutex::default(),
            is_stopped: is_stopped.clone(),
            context: context.clone(),
        });
        let rows = result_in_files(pairs, schema, places.clone()).await?;
        Ok(Spilled { rows, places, schema: join.schema(), is_stopped, context })
    }

    pub(super) fn rows(self: Arc<Self>, split: usize) -> Rows {
        let places = &self.places;
        let last = places.starts.len();
        let is_last = split + 1 == places.splits;
        let last = if is_last { last..last + places.last } else { 0..0 };
        let parts = places.of_split(split).chain(last);
        stream::iter(parts)
            .flat_map(move |part| {
                let of = self.clone();
                stream::once(async move { of.part(part, split) }).try_flatten()
            })
            .boxed()
    }

    /// The rows of a part that belong to a split, in their order.
    fn part(&self, part: usize, split: usize) -> Result<Rows> {
        if self.rows.count(part) == 0 {
            return Ok(stream::empty().boxed());
        }
        let places = &self.places;
        let is_last = part >= places.starts.len();
        let number = if is_last { places.first } else { places.second };
        let number = number.ok_or_else(|| internal_datafusion_err!("rows have no numbers"))?;
        let mut rows = checked(self.rows.plan(part)?, &self.is_stopped);
        if !is_last && places.is_shared {
            rows = of_split(rows, number, split);
        }
        let name = rows.schema().field(number).name().clone();
        let key =
            PhysicalSortExpr::new(Arc::new(Column::new(&name, number)), SortOptions::default());
        let order = LexOrdering::new([key]);
        let order = order.ok_or_else(|| internal_datafusion_err!("a sort has no keys"))?;
        let sorted = SortSplitsExec::new(rows, order, None)?.execute(0, self.context.clone())?;
        Ok(without_numbers(sorted.boxed(), self.schema.clone()))
    }
}

/// Joins all pairs, and writes their rows to files by their places.
async fn result_in_files(
    pairs: Arc<Pairs>,
    schema: SchemaRef,
    places: Arc<ResultParts>,
) -> Result<Arc<Scattered>> {
    let pair = |part| {
        let (pairs, schema) = (pairs.clone(), schema.clone());
        Arc::new(Pair { pairs, part, schema }) as Arc<dyn PartitionStream>
    };
    let all = (0..PARTS).map(pair).collect();
    let all = StreamingTableExec::try_new(schema.clone(), all, None, [], false, None)?;
    let all: Arc<dyn ExecutionPlan> = Arc::new(all);
    // The others are known once all pairs were tried.
    let rest = pairs.clone();
    let rest = stream::once(async move { rest.rest() }).flatten();
    let rest = OnceExec::new(single::properties(schema), rest.boxed());
    let rest: Arc<dyn ExecutionPlan> = Arc::new(rest);
    let parts = places.count();
    let of = move |_: usize, rows: &RecordBatch| -> Result<Vec<u32>> { Ok(places.parts_of(rows)) };
    let scatter = Scatter::by(parts, of);
    in_files(vec![all, rest], scatter, &pairs.context).await
}
