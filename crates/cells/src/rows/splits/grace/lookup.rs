//! A join in memory whose matches are found in an array.
//!
//! ```text
//! keys of a row of the second side ──▶ place ──▶ the first row of the first side with these keys ──▶ the next one …
//! ```
//! The place of an integer is its distance from the least one; so are those of dates, times and booleans. Several keys
//! are the digits of one number. DataFusion's join finds a single integer in this way, too; it hashes all other keys, and
//! copies the columns of both sides. Here rows of the second side that all have one match are returned as they are.
//! Texts, and integers that lie far apart, are hashed here if they are many ([`hashed`]): DataFusion's table is filled by
//! one thread. Few ones are left to DataFusion: a lookup of their numbers is hardly faster than of their hashes.

mod hashed;

use super::Rows;
use crate::rows::single;
use crate::rows::splits::gather::coalesced;
use crate::rows::splits::groups::evaluated;
use crate::rows::splits::through::through;
use datafusion::arrow::array::{Array, ArrayRef, AsArray, BooleanArray, UInt32Array};
use datafusion::arrow::buffer::{BooleanBuffer, NullBuffer};
use datafusion::arrow::compute::{concat_batches, take};
use datafusion::arrow::datatypes::{DataType, SchemaRef};
use datafusion::arrow::record_batch::{RecordBatch, RecordBatchOptions};
use datafusion::common::{JoinType, NullEquality, internal_err};
use datafusion::error::{DataFusionError, Result};
use datafusion::execution::TaskContext;
use datafusion::execution::memory_pool::{MemoryConsumer, MemoryReservation};
use datafusion::physical_expr::PhysicalExpr;
use datafusion::physical_plan::joins::HashJoinExec;
use datafusion::physical_plan::{ExecutionPlan, ExecutionPlanProperties};
use futures::{StreamExt, TryStreamExt, stream};
use hashed::Table;
use std::sync::Arc;

/// The place of keys that have none, and the number of a row that is missing.
const NONE: u32 = u32::MAX;

/// An array has at most this many places, or this many for each row.
const PLACES_MIN: usize = 1 << 16;
const PLACES_OF_EACH: usize = 16;

/// The rows of a first side by their keys.
pub(super) struct Lookup {
    firsts: Firsts,
    /// For each row the next one with the same keys, plus one; zero for the last one. Empty if no keys are the same.
    next: Vec<u32>,
    rows: RecordBatch,
    output: Output,
    _memory: MemoryReservation,
}

/// The first row of each key.
enum Firsts {
    /// For each place the first row with its keys, plus one; zero if there is none.
    Placed(Vec<Bounds>, Vec<u32>),
    Hashed(Table),
}

/// The values of a key.
#[derive(Debug, Clone, Copy)]
struct Bounds {
    min: i64,
    max: i64,
}

impl Bounds {
    /// The number of values between these bounds.
    fn width(self) -> usize {
        (self.max.abs_diff(self.min) as usize).saturating_add(1)
    }

    #[inline]
    fn place(self, value: i64) -> u32 {
        let place = value.wrapping_sub(self.min) as u64;
        if place <= self.max.abs_diff(self.min) { place as u32 } else { NONE }
    }
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
    /// The rows of a first side by their keys; `None` if these are not close, if the join is of another kind, or if
    /// memory is refused.
    pub(super) fn of(
        join: &HashJoinExec,
        rows: &[(RecordBatch, usize)],
        context: &TaskContext,
    ) -> Result<Option<Self>> {
        let Some(output) = Output::of(join, context) else { return Ok(None) };
        if !has_places(join)? {
            return Ok(None);
        }
        let keys: Vec<_> = join.on().iter().map(|(key, _)| key.clone()).collect();
        let columns = rows.iter().map(|(batch, _)| evaluated(&keys, batch));
        let columns = columns.collect::<Result<Vec<_>>>()?;
        let has_null = columns.iter().flatten().any(|column| column.null_count() > 0);
        if has_null && join.null_equality() == NullEquality::NullEqualsNull {
            return Ok(None);
        }
        let count: usize = rows.iter().map(|(batch, _)| batch.num_rows()).sum();
        let (mut bounds, mut places) = (Vec::new(), 1usize);
        for key in 0..keys.len() {
            let Some(of_key) = bounds_of(columns.iter().map(|all| &all[key]))? else {
                return Ok(None);
            };
            places = places.saturating_mul(of_key.width());
            bounds.push(of_key);
        }
        if places > PLACES_MIN.max(count.saturating_mul(PLACES_OF_EACH)) {
            return Ok(None);
        }
        let Some(memory) = memory(rows, count, places, context) else { return Ok(None) };
        let (mut first, mut next) = (vec![0; places], Vec::new());
        let mut end = count;
        // Backwards, so that rows with the same keys follow each other in their order.
        for keys in columns.iter().rev() {
            let places = places_of(&bounds, keys)?;
            end -= places.len();
            for (row, place) in places.iter().enumerate().rev() {
                if *place == NONE {
                    continue;
                }
                let known = std::mem::replace(&mut first[*place as usize], (end + row) as u32 + 1);
                if known != 0 {
                    next.resize(count, 0);
                    next[end + row] = known;
                }
            }
        }
        let rows = concat_batches(&join.left().schema(), rows.iter().map(|(batch, _)| batch))?;
        let firsts = Firsts::Placed(bounds, first);
        Ok(Some(Lookup { firsts, next, rows, output, _memory: memory }))
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
        let (bounds, all) = match &self.firsts {
            Firsts::Placed(bounds, all) => (bounds, all),
            Firsts::Hashed(table) => return table.firsts(&keys, rows.num_rows()),
        };
        let first = |place: u32| all.get(place as usize).copied().unwrap_or(0);
        if let ([bounds], [key]) = (bounds.as_slice(), keys.as_slice()) {
            return of_integers(key, 0, |value| first(bounds.place(value)));
        }
        let mut places = places_of(bounds, &keys)?;
        places.iter_mut().for_each(|place| *place = first(*place));
        Ok(places)
    }
}

/// True if the keys of a join are stored as integers, in the same way on both sides.
fn has_places(join: &HashJoinExec) -> Result<bool> {
    use DataType::{Boolean, Date32, Date64, Duration, Time32, Time64, Timestamp};
    let (left, right) = (join.left().schema(), join.right().schema());
    for (first, second) in join.on() {
        let kind = first.data_type(&left)?;
        let is_stored = kind.is_integer()
            || matches!(kind, Boolean | Date32 | Date64 | Duration(_))
            || matches!(kind, Time32(_) | Time64(_) | Timestamp(_, _));
        if !is_stored || second.data_type(&right)? != kind {
            return Ok(false);
        }
    }
    Ok(true)
}

/// The bounds of the values of these columns; `None` if there are none.
fn bounds_of<'a>(columns: impl Iterator<Item = &'a ArrayRef>) -> Result<Option<Bounds>> {
    let mut all = Bounds { min: i64::MAX, max: i64::MIN };
    for column in columns {
        of_integers(column, (), |value| {
            all = Bounds { min: all.min.min(value), max: all.max.max(value) };
        })?;
    }
    Ok(Some(all).filter(|all| all.min <= all.max))
}

/// The places of keys.
fn places_of(bounds: &[Bounds], keys: &[ArrayRef]) -> Result<Vec<u32>> {
    let mut places = Vec::new();
    for (bounds, key) in bounds.iter().zip(keys) {
        let own = of_integers(key, NONE, |value| bounds.place(value))?;
        if places.is_empty() {
            places = own;
            continue;
        }
        let width = bounds.width() as u32;
        for (place, own) in places.iter_mut().zip(own) {
            let is_none = *place == NONE || own == NONE;
            *place = if is_none { NONE } else { *place * width + own };
        }
    }
    Ok(places)
}

/// A result for each integer, and for each value that is stored as one; `null` for missing values. Which values are
/// equal does not depend on a sign or a unit.
fn of_integers<T: Copy>(
    values: &ArrayRef,
    null: T,
    result: impl FnMut(i64) -> T,
) -> Result<Vec<T>> {
    let (data, nulls) = (values.to_data(), values.nulls());
    macro_rules! results {
        ($of:ty) => {{
            let values = data.buffer::<$of>(0).iter().take(values.len());
            of_each(values.map(|value| i64::from(*value)), nulls, null, result)
        }};
    }
    if let Some(values) = values.as_boolean_opt() {
        return Ok(of_each(values.values().iter().map(i64::from), nulls, null, result));
    }
    Ok(match values.data_type().primitive_width() {
        Some(1) => results!(i8),
        Some(2) => results!(i16),
        Some(4) => results!(i32),
        Some(8) => results!(i64),
        _ => return internal_err!("{} values are not integers", values.data_type()),
    })
}

fn of_each<T: Copy>(
    values: impl Iterator<Item = i64>,
    nulls: Option<&NullBuffer>,
    null: T,
    mut result: impl FnMut(i64) -> T,
) -> Vec<T> {
    match nulls.filter(|nulls| nulls.null_count() > 0) {
        None => values.map(result).collect(),
        Some(nulls) => values
            .zip(nulls.iter())
            .map(|(value, is_valid)| if is_valid { result(value) } else { null })
            .collect(),
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

    /// The rows that are chosen by their first match. Branches on it would be predicted badly.
    fn chosen(&self, is_chosen: impl Fn(u32) -> bool) -> Picked {
        let rows = self.firsts.len();
        let (mut first, mut second, mut count) = (vec![0; rows], vec![0; rows], 0);
        for (row, found) in (0u32..).zip(&self.firsts) {
            first[count] = found.wrapping_sub(1);
            second[count] = row;
            count += usize::from(is_chosen(*found));
        }
        first.truncate(count);
        second.truncate(count);
        Picked { first, second: Some(second).filter(|_| count < rows) }
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

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]
    use super::*;
    use datafusion::arrow::array::{Date32Array, Float64Array, Int8Array, Int64Array, UInt64Array};
    use datafusion::datasource::memory::MemorySourceConfig;
    use datafusion::physical_expr::expressions::Column;
    use datafusion::physical_plan::joins::PartitionMode;

    fn batch(keys: &[ArrayRef]) -> RecordBatch {
        let columns = keys.iter().enumerate();
        let columns = columns.map(|(at, key)| (format!("k{at}"), key.clone(), true));
        RecordBatch::try_from_iter_with_nullable(columns).unwrap()
    }

    /// The rows of a first side, in two batches, by their keys.
    fn lookup(first: &[ArrayRef], second: &[ArrayRef], nulls: NullEquality) -> Option<Lookup> {
        let scan = |rows: &RecordBatch| {
            MemorySourceConfig::try_new_exec(&[vec![rows.clone()]], rows.schema(), None).unwrap()
        };
        let rows = batch(first);
        let (left, right) = (scan(&rows), scan(&batch(second)));
        let key = |at: usize| Arc::new(Column::new(&format!("k{at}"), at)) as Arc<dyn PhysicalExpr>;
        let on = (0..first.len()).map(|at| (key(at), key(at))).collect();
        let (kind, mode) = (JoinType::Inner, PartitionMode::CollectLeft);
        let join = HashJoinExec::try_new(left, right, on, None, &kind, None, mode, nulls, false);
        let half = rows.num_rows() / 2;
        let batches = [rows.slice(0, half), rows.slice(half, rows.num_rows() - half)];
        Lookup::of(&join.unwrap(), &batches.map(|rows| (rows, 1000)), &TaskContext::default())
            .unwrap()
    }

    /// The matches of each row of a second side.
    fn matches(first: &[ArrayRef], second: &[ArrayRef]) -> Vec<Vec<u32>> {
        let lookup = lookup(first, second, NullEquality::NullEqualsNothing).unwrap();
        let chain = |mut row: u32| {
            let mut all = Vec::new();
            while row > 0 {
                all.push(row - 1);
                row = lookup.next.get(row as usize - 1).copied().unwrap_or(0);
            }
            all
        };
        lookup.firsts(&batch(second)).unwrap().into_iter().map(chain).collect()
    }

    fn integers(values: &[Option<i64>]) -> ArrayRef {
        Arc::new(values.iter().copied().collect::<Int64Array>())
    }

    #[test]
    fn rows_have_all_matches_in_their_order() {
        let first = integers(&[Some(5), None, Some(-2), Some(5), Some(9), Some(5)]);
        let second = integers(&[Some(5), Some(10), None, Some(-2), Some(i64::MIN), Some(9)]);
        let want = vec![vec![0, 3, 5], vec![], vec![], vec![2], vec![], vec![4]];
        assert_eq!(matches(&[first], &[second]), want);
        for (least, step) in [(i64::MIN, 1), (i64::MAX, -1)] {
            let first = integers(&[Some(least), Some(least + step * 7)]);
            let second = integers(&[Some(least + step), Some(-1 - least), Some(least), Some(0)]);
            assert_eq!(matches(&[first], &[second]), [vec![], vec![], vec![0], vec![]]);
        }
        let first: ArrayRef = Arc::new(UInt64Array::from(vec![u64::MAX, u64::MAX - 3]));
        let second: ArrayRef = Arc::new(UInt64Array::from(vec![0, u64::MAX, u64::MAX - 3]));
        assert_eq!(matches(&[first], &[second]), [vec![], vec![0], vec![1]]);
    }

    #[test]
    fn several_keys_have_one_place() {
        let days = |days: &[Option<i32>]| -> ArrayRef {
            Arc::new(days.iter().copied().collect::<Date32Array>())
        };
        let flags = |flags: &[bool]| -> ArrayRef { Arc::new(BooleanArray::from(flags.to_vec())) };
        let small = |of: &[i8]| -> ArrayRef { Arc::new(Int8Array::from(of.to_vec())) };
        let first = [
            days(&[Some(9), Some(-3), None, Some(9)]),
            flags(&[true, false, true, true]),
            small(&[-128, 127, 0, -128]),
        ];
        let second = [
            days(&[Some(9), Some(-3), None, Some(9), Some(8), Some(i32::MAX)]),
            flags(&[true, false, true, false, true, true]),
            small(&[-128, 127, 0, -128, -128, -128]),
        ];
        let want = [vec![0, 3], vec![1], vec![], vec![], vec![], vec![]];
        assert_eq!(matches(&first, &second), want);
    }

    #[test]
    fn other_keys_are_left_to_datafusion() {
        let of = |first: &ArrayRef, second: &ArrayRef, nulls| {
            lookup(std::slice::from_ref(first), std::slice::from_ref(second), nulls).is_some()
        };
        let (nothing, null) = (NullEquality::NullEqualsNothing, NullEquality::NullEqualsNull);
        let near = integers(&[Some(1), Some(1 << 15)]);
        let missing = integers(&[Some(1), None]);
        assert!(of(&near, &missing, nothing) && of(&near, &missing, null));
        assert!(of(&missing, &near, nothing) && !of(&missing, &near, null));
        assert!(!of(&integers(&[Some(1), Some(1 << 17)]), &near, nothing));
        assert!(!of(&integers(&[Some(i64::MIN), Some(i64::MAX)]), &near, nothing));
        assert!(!of(&integers(&[None, None]), &near, nothing));
        assert!(!of(&integers(&[]), &near, nothing));
        let floats: ArrayRef = Arc::new(Float64Array::from(vec![0.0, -0.0]));
        assert!(!of(&floats, &floats, nothing));
        let narrow: ArrayRef = Arc::new(Int8Array::from(vec![1, 2]));
        assert!(!of(&narrow, &near, nothing));
    }
}
