//! A join in memory whose matches are found in an array.
//!
//! ```text
//! keys of a row of the second side ──▶ place ──▶ the first row of the first side with these keys ──▶ the next one …
//! ```
//! The place of an integer is its distance from the least one, that of other keys is their code. DataFusion's join finds
//! integers in this way, too, but not dates and times, and copies the columns of both sides. Here rows of the second side
//! that all have one match are returned as they are.

use super::codes::{KeyCodes, NONE, has_codes, is_close, numbers_of_integers};
use crate::rows::single;
use crate::rows::splits::gather::coalesced;
use crate::rows::splits::groups::evaluated;
use crate::rows::splits::through::{Rows, through};
use datafusion::arrow::array::{Array, ArrayRef, AsArray, BooleanArray, UInt32Array};
use datafusion::arrow::buffer::{BooleanBuffer, NullBuffer};
use datafusion::arrow::compute::{concat_batches, take};
use datafusion::arrow::datatypes::SchemaRef;
use datafusion::arrow::record_batch::{RecordBatch, RecordBatchOptions};
use datafusion::common::{JoinType, NullEquality};
use datafusion::error::{DataFusionError, Result};
use datafusion::execution::TaskContext;
use datafusion::execution::memory_pool::{MemoryConsumer, MemoryReservation};
use datafusion::physical_expr::PhysicalExpr;
use datafusion::physical_plan::joins::HashJoinExec;
use datafusion::physical_plan::{ExecutionPlan, ExecutionPlanProperties};
use futures::{StreamExt, TryStreamExt, stream};
use std::sync::Arc;

/// The rows of a first side by their keys.
pub(super) struct Lookup {
    places: Places,
    /// For each place the first row with its keys, plus one; zero if there is none.
    first: Vec<u32>,
    /// For each row the next one with the same keys, plus one; zero for the last one. Empty if no keys are the same.
    next: Vec<u32>,
    rows: RecordBatch,
    output: Output,
    _memory: MemoryReservation,
}

enum Places {
    /// Integers from this one on.
    From(i64),
    Codes(Arc<KeyCodes>),
}

/// What a join returns.
struct Output {
    kind: JoinType,
    schema: SchemaRef,
    columns: Vec<Source>,
    /// The keys of the second side.
    keys: Vec<Arc<dyn PhysicalExpr>>,
    batch_rows: usize,
}

enum Source {
    First(usize),
    Second(usize),
    Mark,
}

impl Lookup {
    /// The rows of a first side by one integer; `None` if its values are not close, if the join is of another kind, or if
    /// memory is refused.
    pub(super) fn by_integers(
        join: &HashJoinExec,
        rows: &[(RecordBatch, usize)],
        context: &TaskContext,
    ) -> Result<Option<Self>> {
        let [(key, _)] = join.on() else { return Ok(None) };
        let is_text = key.data_type(&join.left().schema())?.is_string();
        let Some(output) = Output::of(join, context).filter(|_| !is_text) else { return Ok(None) };
        if !has_codes(join)? {
            return Ok(None);
        }
        let (mut columns, mut count) = (Vec::new(), 0);
        let (mut min, mut max) = (i64::MAX, i64::MIN);
        for (batch, _) in rows {
            let column = key.evaluate(batch)?.into_array(batch.num_rows())?;
            if column.null_count() > 0 && join.null_equality() == NullEquality::NullEqualsNull {
                return Ok(None);
            }
            numbers_of_integers(&column, NONE, |value| {
                (min, max) = (min.min(value), max.max(value));
                0
            })?;
            count += batch.num_rows();
            columns.push(column);
        }
        if min > max || !is_close(min, max, count) {
            return Ok(None);
        }
        let places = max.abs_diff(min) as usize + 1;
        let Some(memory) = memory(rows, count, places, context) else { return Ok(None) };
        let mut numbers = Vec::with_capacity(count);
        for column in &columns {
            let place = |value: i64| value.wrapping_sub(min) as u32;
            numbers.extend(numbers_of_integers(column, NONE, place)?);
        }
        Lookup::over(join, rows, Places::From(min), (numbers.as_slice(), places), output, memory)
            .map(Some)
    }

    /// The rows of a first side by the codes of their keys; `None` if the join is of another kind, or if memory is refused.
    pub(super) fn by_codes(
        join: &HashJoinExec,
        rows: &[(RecordBatch, usize)],
        codes: &Arc<KeyCodes>,
        context: &TaskContext,
    ) -> Result<Option<Self>> {
        let Some(output) = Output::of(join, context) else { return Ok(None) };
        let count = rows.iter().map(|(batch, _)| batch.num_rows()).sum();
        let places = codes.len();
        let Some(memory) = memory(rows, count, places, context) else { return Ok(None) };
        let keys: Vec<_> = join.on().iter().map(|(key, _)| key.clone()).collect();
        let mut numbers = Vec::with_capacity(count);
        for (batch, _) in rows {
            numbers.extend(codes.numbers(&evaluated(&keys, batch)?)?);
        }
        let by = Places::Codes(codes.clone());
        Lookup::over(join, rows, by, (numbers.as_slice(), places), output, memory).map(Some)
    }

    /// `numbers` are the places of all rows, which are less than the second number.
    fn over(
        join: &HashJoinExec,
        rows: &[(RecordBatch, usize)],
        places: Places,
        (numbers, count): (&[u32], usize),
        output: Output,
        memory: MemoryReservation,
    ) -> Result<Self> {
        let (mut first, mut next) = (vec![0; count], Vec::new());
        // Backwards, so that rows with the same keys follow each other in their order.
        for (row, place) in numbers.iter().enumerate().rev().filter(|(_, place)| **place != NONE) {
            let known = &mut first[*place as usize];
            if *known != 0 {
                if next.is_empty() {
                    next = vec![0; numbers.len()];
                }
                next[row] = *known;
            }
            *known = row as u32 + 1;
        }
        let rows = concat_batches(&join.left().schema(), rows.iter().map(|(batch, _)| batch))?;
        Ok(Lookup { places, first, next, rows, output, _memory: memory })
    }

    /// The join with these rows. If `is_exact`, the caller makes batches of equal size.
    pub(super) fn join(
        self,
        second: Arc<dyn ExecutionPlan>,
        is_exact: bool,
    ) -> Arc<dyn ExecutionPlan> {
        let partitions = second.output_partitioning().partition_count();
        let properties = single::properties_of(self.output.schema.clone(), partitions);
        let lookup = Arc::new(self);
        through(second, properties, move |_, rows: Rows| {
            let (schema, batch_rows) = (lookup.output.schema.clone(), lookup.output.batch_rows);
            let lookup = lookup.clone();
            let joined = rows.map(move |batch| {
                let matches = Matches::of(lookup.clone(), batch?)?;
                Ok::<_, DataFusionError>(stream::iter(matches))
            });
            let joined = joined.try_flatten().boxed();
            if is_exact { joined } else { coalesced(joined, schema, batch_rows) }
        })
    }

    /// For each row of the second side the first match, plus one; zero for rows without one.
    fn firsts(&self, rows: &RecordBatch) -> Result<Vec<u32>> {
        let keys = evaluated(&self.output.keys, rows)?;
        let at = |place: usize| self.first.get(place).copied().unwrap_or(0);
        match &self.places {
            Places::From(least) => {
                let first = |value: i64| at(value.wrapping_sub(*least) as usize);
                numbers_of_integers(&keys[0], 0, first)
            }
            Places::Codes(codes) => {
                let mut numbers = codes.numbers(&keys)?;
                numbers.iter_mut().for_each(|number| *number = at(*number as usize));
                Ok(numbers)
            }
        }
    }
}

/// Memory for the rows in one batch, and for the arrays. DataFusion's table needs as much.
fn memory(
    rows: &[(RecordBatch, usize)],
    count: usize,
    places: usize,
    context: &TaskContext,
) -> Option<MemoryReservation> {
    if count.max(places) >= NONE as usize {
        return None;
    }
    let bytes: usize = rows.iter().map(|(_, bytes)| bytes).sum();
    let memory = MemoryConsumer::new("rows of a join").register(context.memory_pool());
    memory.try_grow(bytes + (count + places) * size_of::<u32>()).ok()?;
    Some(memory)
}

impl Output {
    /// `None` for joins with conditions, and for those that return rows of the first side by whether they have a match.
    fn of(join: &HashJoinExec, context: &TaskContext) -> Option<Self> {
        use JoinType::{Inner, Right, RightAnti, RightMark, RightSemi};
        let kind = *join.join_type();
        // A filter that the join fills is filled by DataFusion's.
        if !matches!(kind, Inner | Right | RightAnti | RightMark | RightSemi)
            || join.filter().is_some()
            || join.fetch().is_some()
            || !join.dynamic_expressions_produced().is_empty()
        {
            return None;
        }
        let (left, right) = (join.left().schema(), join.right().schema());
        let (left, right) = (left.fields().len(), right.fields().len());
        let source = |column: usize| match kind {
            Inner | Right if column < left => Source::First(column),
            Inner | Right => Source::Second(column - left),
            _ if column < right => Source::Second(column),
            _ => Source::Mark,
        };
        let columns = match join.projection.as_deref() {
            Some(columns) => columns.iter().copied().map(source).collect(),
            None => (0..join.join_schema().fields().len()).map(source).collect(),
        };
        let keys = join.on().iter().map(|(_, key)| key.clone()).collect();
        let batch_rows = context.session_config().batch_size().max(1);
        Some(Output { kind, schema: join.schema(), columns, keys, batch_rows })
    }
}

/// The rows of the result for a batch of the second side.
struct Matches {
    lookup: Arc<Lookup>,
    batch: RecordBatch,
    firsts: Vec<u32>,
    /// The next row of the batch.
    row: usize,
    /// Its next match, plus one; zero if it is the first one.
    next: u32,
}

/// Rows of the first side, [`NONE`] for a row without a match, and those of the second side; `None` for all of them.
struct Picked {
    first: Vec<u32>,
    second: Option<Vec<u32>>,
}

impl Matches {
    fn of(lookup: Arc<Lookup>, batch: RecordBatch) -> Result<Self> {
        let firsts = lookup.firsts(&batch)?;
        Ok(Matches { lookup, batch, firsts, row: 0, next: 0 })
    }

    /// The rows of the next batch of the result.
    fn pick(&mut self) -> Picked {
        let is_chained = !self.lookup.next.is_empty();
        let picked = match self.lookup.output.kind {
            JoinType::Inner | JoinType::Right if is_chained => return self.chained(),
            JoinType::Right => {
                let first = self.firsts.iter().map(|first| first.wrapping_sub(1));
                Picked { first: first.collect(), second: None }
            }
            JoinType::RightMark => Picked { first: Vec::new(), second: None },
            JoinType::RightAnti => self.chosen(|first| first == 0),
            _ => self.chosen(|first| first != 0),
        };
        self.row = self.firsts.len();
        picked
    }

    /// The rows that are chosen by their first match.
    fn chosen(&self, is_chosen: impl Fn(u32) -> bool) -> Picked {
        let count = self.firsts.iter().filter(|first| is_chosen(**first)).count();
        let is_inner = self.lookup.output.kind == JoinType::Inner;
        let mut first = Vec::with_capacity(if is_inner { count } else { 0 });
        if is_inner {
            let found = self.firsts.iter().filter(|first| is_chosen(**first));
            first.extend(found.map(|first| first - 1));
        }
        if count == self.firsts.len() {
            return Picked { first, second: None };
        }
        let mut second = Vec::with_capacity(count);
        let rows = (0..).zip(&self.firsts).filter(|(_, first)| is_chosen(**first));
        second.extend(rows.map(|(row, _): (u32, _)| row));
        Picked { first, second: Some(second) }
    }

    /// At most a batch of rows, each with all of its matches.
    fn chained(&mut self) -> Picked {
        let (output, most) = (&self.lookup.output, self.lookup.output.batch_rows);
        let (mut first, mut second) = (Vec::with_capacity(most), Vec::with_capacity(most));
        while first.len() < most && self.row < self.firsts.len() {
            let found = if self.next == 0 { self.firsts[self.row] } else { self.next };
            if found != 0 || output.kind == JoinType::Right {
                first.push(found.wrapping_sub(1));
                second.push(self.row as u32);
            }
            self.next = if found == 0 { 0 } else { self.lookup.next[found as usize - 1] };
            if self.next == 0 {
                self.row += 1;
            }
        }
        Picked { first, second: Some(second) }
    }

    fn rows_of(&self, picked: Picked) -> Result<RecordBatch> {
        let Lookup { rows, output, .. } = self.lookup.as_ref();
        let second = picked.second.map(UInt32Array::from);
        let count = second.as_ref().map_or(self.batch.num_rows(), Array::len);
        let first = indices(picked.first);
        let columns = output.columns.iter().map(|source| match (source, &second) {
            (Source::First(column), _) => taken(rows.column(*column), &first),
            (Source::Second(column), Some(second)) => {
                Ok(take(self.batch.column(*column), second, None)?)
            }
            (Source::Second(column), None) => Ok(self.batch.column(*column).clone()),
            (Source::Mark, _) => {
                let has_match = |row: usize| self.firsts[row] != 0;
                let marks = BooleanBuffer::collect_bool(self.firsts.len(), has_match);
                Ok(Arc::new(BooleanArray::new(marks, None)) as ArrayRef)
            }
        });
        let columns = columns.collect::<Result<Vec<_>>>()?;
        let options = RecordBatchOptions::new().with_row_count(Some(count));
        Ok(RecordBatch::try_new_with_options(output.schema.clone(), columns, &options)?)
    }
}

impl Iterator for Matches {
    type Item = Result<RecordBatch>;

    fn next(&mut self) -> Option<Self::Item> {
        while self.row < self.firsts.len() {
            let picked = self.pick();
            if picked.second.as_ref().is_none_or(|rows| !rows.is_empty()) {
                return Some(self.rows_of(picked));
            }
        }
        None
    }
}

/// Numbers of rows; NULL for [`NONE`].
fn indices(mut rows: Vec<u32>) -> UInt32Array {
    if !rows.contains(&NONE) {
        return UInt32Array::from(rows);
    }
    let is_row = BooleanBuffer::collect_bool(rows.len(), |at| rows[at] != NONE);
    rows.iter_mut().filter(|row| **row == NONE).for_each(|row| *row = 0);
    UInt32Array::new(rows.into(), Some(NullBuffer::new(is_row)))
}

/// Values of the first side, without the texts of its other rows: these would be charged for each batch.
fn taken(values: &ArrayRef, rows: &UInt32Array) -> Result<ArrayRef> {
    let values = take(values, rows, None)?;
    if let Some(texts) = values.as_string_view_opt() {
        return Ok(Arc::new(texts.gc()));
    }
    match values.as_binary_view_opt() {
        Some(bytes) => Ok(Arc::new(bytes.gc())),
        None => Ok(values),
    }
}
