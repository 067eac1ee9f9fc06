//! A join in memory whose matches are found by the hashes of keys, in a table that all threads fill.
//!
//! ```text
//! rows 0 … 65,535  ──▶ hashes, scattered by their upper bits ──┬──▶ part 0 of the table ─┐
//! rows 65,536 …    ──▶ hashes, scattered …                     ├──▶ part 1               ├──▶ the first row with given keys
//! …                                                            └──▶ …                    ┘
//! ```
//! One thread fills a part, from the last row to the first. So rows with the same keys follow each other in their order,
//! and the table is the same on any number of threads. A part fits into the cache while it is filled, as in a radix join
//! (Manegold, Boncz, Kersten: Optimizing Main-Memory Join on Modern Hardware, 2002).

use super::{Firsts, Lookup, NONE, Output};
use crate::rows::IsStopped;
use crate::rows::splits::gather::bounds;
use crate::rows::splits::groups::evaluated;
use crate::rows::splits::in_order::{Begin, Bounds, in_order};
use datafusion::arrow::array::{Array, ArrayRef};
use datafusion::arrow::buffer::NullBuffer;
use datafusion::arrow::compute::{SortOptions, concat};
use datafusion::arrow::datatypes::{DataType, SchemaRef};
use datafusion::arrow::record_batch::{RecordBatch, RecordBatchOptions};
use datafusion::common::NullEquality;
use datafusion::common::hash_utils::{RandomState, create_hashes};
use datafusion::error::{DataFusionError, Result};
use datafusion::execution::TaskContext;
use datafusion::execution::memory_pool::{MemoryConsumer, MemoryReservation};
use datafusion::physical_expr::expressions::Column;
use datafusion::physical_plan::joins::HashJoinExec;
use datafusion::physical_plan::joins::utils::JoinKeyComparator;
use futures::stream::{self, BoxStream};
use futures::{StreamExt, TryStreamExt};
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};
use tessera_exec::error::Error;

/// A first side with fewer rows is left to DataFusion: one thread fills its table in a few milliseconds.
const ROWS_MIN: usize = 1 << 16;

/// Rows that are hashed and scattered at a time.
const UNIT_ROWS: usize = 1 << 16;

/// Rows after which a thread checks whether it is to end: different keys with one hash are all compared.
const CHECK_ROWS: usize = 1 << 10;

/// A part has less than two megabytes for eight million rows.
const PART_BITS: u32 = 6;
const PARTS: usize = 1 << PART_BITS;

/// Bytes of each row: the number of the next one with the same keys. While parts are filled, also its hash, its number,
/// and a copy of the number of the next one.
const ROW_BYTES: usize = size_of::<u32>();
const FILLING_BYTES: usize = size_of::<u64>() + 2 * size_of::<u32>();

const STATE: RandomState = RandomState::with_seed(0x6a6f_696e);

impl Lookup {
    /// As [`Lookup::of`], by the hashes of keys; `None` for few rows, nested keys or another kind of join, or if memory
    /// is refused.
    pub(in crate::rows::splits::grace) async fn hashed(
        join: &HashJoinExec,
        rows: &[(RecordBatch, usize)],
        is_stopped: &IsStopped,
        context: &TaskContext,
    ) -> Result<Option<Self>> {
        let count: usize = rows.iter().map(|(batch, _)| batch.num_rows()).sum();
        if !(ROWS_MIN..NONE as usize).contains(&count) || !has_hashes(join)? {
            return Ok(None);
        }
        let Some(output) = Output::of(join, context) else { return Ok(None) };
        let bytes: usize = rows.iter().map(|(_, bytes)| bytes).sum();
        let memory = MemoryConsumer::new("rows of a join").register(context.memory_pool());
        if memory.try_grow(bytes).is_err() {
            return Ok(None);
        }
        let tasks = Tasks { is_stopped, context };
        let rows = concatenated(&join.left().schema(), rows, tasks).await?;
        let exprs: Vec<_> = join.on().iter().map(|(key, _)| key.clone()).collect();
        let keys = evaluated(&exprs, &rows)?;
        // Columns are those of the rows.
        let computed = exprs.iter().zip(&keys).filter(|(expr, _)| !expr.is::<Column>());
        let bytes: usize = computed.map(|(_, key)| key.get_array_memory_size()).sum();
        if memory.try_grow(bytes).is_err() {
            return Ok(None);
        }
        let filled = Filled::of(keys, join.null_equality(), &memory, tasks).await?;
        let Some(Filled { table, next }) = filled else { return Ok(None) };
        let firsts = Firsts::Hashed(table);
        Ok(Some(Lookup { firsts, next, rows, output, _memory: memory }))
    }
}

/// True if all keys of a join are flat and have the same types on both sides. DataFusion's comparator reads all floats of
/// both sides before it compares some of them.
fn has_hashes(join: &HashJoinExec) -> Result<bool> {
    let (left, right) = (join.left().schema(), join.right().schema());
    for (first, second) in join.on() {
        let kind = first.data_type(&left)?;
        let is_text = kind.is_string() || kind.is_binary();
        let is_flat = is_text || kind.is_primitive() || kind == DataType::Boolean;
        if !is_flat || kind.is_floating() || second.data_type(&right)? != kind {
            return Ok(false);
        }
    }
    Ok(true)
}

/// Tasks on all threads.
#[derive(Clone, Copy)]
struct Tasks<'a> {
    is_stopped: &'a IsStopped,
    context: &'a TaskContext,
}

impl Tasks<'_> {
    /// The results of `count` tasks, in order.
    fn each<T: Send + 'static>(
        self,
        count: usize,
        task: impl Fn(usize) -> Result<T> + Send + Sync + 'static,
    ) -> BoxStream<'static, Result<T>> {
        let (task, is_stopped) = (Arc::new(task), self.is_stopped.clone());
        let begin: Begin<T> = Box::new(move |at| {
            let (task, is_stopped) = (task.clone(), is_stopped.clone());
            let result = async move {
                check(&is_stopped)?;
                task(at)
            };
            stream::once(result).boxed()
        });
        // All results are retained, and their memory is reserved.
        let bounds = Bounds { bytes: 0, ..bounds("rows of a join", self.context) };
        in_order(count, begin, |_| 0, bounds)
    }
}

/// Fails once the statement is stopped.
fn check(is_stopped: &IsStopped) -> Result<()> {
    match is_stopped() {
        true => Err(DataFusionError::External(Box::new(Error::Cancelled))),
        false => Ok(()),
    }
}

/// All rows in one batch.
async fn concatenated(
    schema: &SchemaRef,
    rows: &[(RecordBatch, usize)],
    tasks: Tasks<'_>,
) -> Result<RecordBatch> {
    let batches: Vec<RecordBatch> = rows.iter().map(|(batch, _)| batch.clone()).collect();
    let count: usize = batches.iter().map(RecordBatch::num_rows).sum();
    let columns = tasks.each(schema.fields().len(), move |column| {
        let parts = batches.iter().map(|batch| batch.column(column).as_ref());
        let parts: Vec<&dyn Array> = parts.collect();
        Ok(concat(&parts)?)
    });
    let columns: Vec<ArrayRef> = columns.try_collect().await?;
    let options = RecordBatchOptions::new().with_row_count(Some(count));
    Ok(RecordBatch::try_new_with_options(schema.clone(), columns, &options)?)
}

fn hashes(keys: &[ArrayRef], rows: usize) -> Result<Vec<u64>> {
    let mut hashes = vec![0; rows];
    create_hashes(keys, &STATE, &mut hashes)?;
    Ok(hashes)
}

/// The rows that may have a match; `None` for all.
fn valid(keys: &[ArrayRef], nulls: NullEquality) -> Option<NullBuffer> {
    match nulls {
        NullEquality::NullEqualsNothing => {
            NullBuffer::union_many(keys.iter().map(|key| key.nulls()))
        }
        NullEquality::NullEqualsNull => None,
    }
}

/// Compares rows as DataFusion's join does.
fn comparator(
    first: &[ArrayRef],
    second: &[ArrayRef],
    nulls: NullEquality,
) -> Result<JoinKeyComparator> {
    JoinKeyComparator::new(first, second, &vec![SortOptions::default(); first.len()], nulls)
}

fn part_of(hash: u64) -> usize {
    (hash >> (u64::BITS - PART_BITS)) as usize
}

/// The first row of each key.
pub(super) struct Table {
    keys: Vec<ArrayRef>,
    nulls: NullEquality,
    parts: Vec<Part>,
}

impl Table {
    /// For each row with these keys the first match, plus one; zero for rows without one.
    pub(super) fn firsts(&self, keys: &[ArrayRef], rows: usize) -> Result<Vec<u32>> {
        let (hashes, valid) = (hashes(keys, rows)?, valid(keys, self.nulls));
        let comparator = comparator(&self.keys, keys, self.nulls)?;
        // Loads of many slots overlap if none of them waits for a comparison.
        let slots = hashes.iter().map(|hash| self.parts[part_of(*hash)].first(*hash));
        let slots: Vec<u64> = slots.collect();
        let first = |(row, slot): (usize, u64)| {
            if slot == 0 || valid.as_ref().is_some_and(|valid| valid.is_null(row)) {
                return 0;
            }
            let part = &self.parts[part_of(hashes[row])];
            part.slots[part.place(hashes[row], |first| comparator.is_equal(first, row))] as u32
        };
        Ok(slots.into_iter().enumerate().map(first).collect())
    }
}

/// A table with open addressing. A slot has the upper half of a hash and the number of a row, plus one; zero if it is
/// empty.
#[derive(Debug, Clone, PartialEq)]
struct Part {
    slots: Vec<u64>,
}

impl Part {
    /// A power of two, of which `rows` rows fill at most two thirds. One slot at least stays empty.
    fn count_slots(rows: usize) -> usize {
        (rows + rows / 2 + 1).next_power_of_two()
    }

    /// The slot where the search for a hash begins.
    fn first(&self, hash: u64) -> u64 {
        self.slots[hash as usize & (self.slots.len() - 1)]
    }

    /// The place of the keys with this hash: their slot, or the empty one where they belong.
    fn place(&self, hash: u64, is_same: impl Fn(usize) -> bool) -> usize {
        let mask = self.slots.len() - 1;
        let mut at = hash as usize & mask;
        loop {
            let slot = self.slots[at];
            let may_be_same = (slot ^ hash) >> u32::BITS == 0;
            if slot == 0 || (may_be_same && is_same(slot as u32 as usize - 1)) {
                return at;
            }
            at = (at + 1) & mask;
        }
    }

    /// Adds a row before those with the same keys. Returns the first one of these, plus one; zero if there is none.
    fn add(&mut self, hash: u64, row: u32, is_same: impl Fn(usize) -> bool) -> u32 {
        let at = self.place(hash, is_same);
        let upper = hash >> u32::BITS << u32::BITS;
        std::mem::replace(&mut self.slots[at], upper | u64::from(row + 1)) as u32
    }
}

/// Hashes and numbers of some rows, scattered to parts. In a part they have their order.
struct Scattered {
    hashes: Vec<u64>,
    rows: Vec<u32>,
    /// For each part the place behind its last row.
    ends: [usize; PARTS],
}

impl Scattered {
    /// Rows `from` to `from + count`, without those that have no match.
    fn of(keys: &[ArrayRef], nulls: NullEquality, from: usize, count: usize) -> Result<Self> {
        let keys: Vec<_> = keys.iter().map(|key| key.slice(from, count)).collect();
        let (all, valid) = (hashes(&keys, count)?, valid(&keys, nulls));
        let is_valid = |row: &usize| valid.as_ref().is_none_or(|valid| valid.is_valid(*row));
        let mut ends = [0; PARTS];
        for row in (0..count).filter(is_valid) {
            ends[part_of(all[row])] += 1;
        }
        let mut total = 0;
        for end in &mut ends {
            total += std::mem::replace(end, total);
        }
        let (mut hashes, mut rows) = (vec![0; total], vec![0; total]);
        for row in (0..count).filter(is_valid) {
            let at = &mut ends[part_of(all[row])];
            hashes[*at] = all[row];
            rows[*at] = (from + row) as u32;
            *at += 1;
        }
        Ok(Scattered { hashes, rows, ends })
    }

    fn places(&self, part: usize) -> Range<usize> {
        let start = if part == 0 { 0 } else { self.ends[part - 1] };
        start..self.ends[part]
    }
}

/// A table that is being filled.
struct Filling {
    units: Vec<Scattered>,
    comparator: JoinKeyComparator,
    /// For each row the next one with the same keys, plus one. Parts write the numbers of their own rows.
    next: Vec<AtomicU32>,
}

impl Filling {
    fn count_slots(&self, part: usize) -> usize {
        Part::count_slots(self.units.iter().map(|unit| unit.places(part).len()).sum())
    }

    /// A part, and whether some of its rows have the same keys.
    fn part(&self, part: usize, is_stopped: &IsStopped) -> Result<(Part, bool)> {
        let mut filled = Part { slots: vec![0; self.count_slots(part)] };
        let (mut has_same, mut rows) = (false, 0_usize);
        for unit in self.units.iter().rev() {
            for at in unit.places(part).rev() {
                if rows.is_multiple_of(CHECK_ROWS) {
                    check(is_stopped)?;
                }
                rows += 1;
                let row = unit.rows[at];
                let is_same = |first| self.comparator.is_equal(first, row as usize);
                let next = filled.add(unit.hashes[at], row, is_same);
                if next != 0 {
                    self.next[row as usize].store(next, Relaxed);
                    has_same = true;
                }
            }
        }
        Ok((filled, has_same))
    }
}

struct Filled {
    table: Table,
    /// As in [`Lookup`].
    next: Vec<u32>,
}

impl Filled {
    /// The rows with these keys, of which there is one at least; `None` if memory is refused.
    async fn of(
        keys: Vec<ArrayRef>,
        nulls: NullEquality,
        memory: &MemoryReservation,
        tasks: Tasks<'_>,
    ) -> Result<Option<Self>> {
        let rows = keys.first().map_or(0, |key| key.len());
        if memory.try_grow(rows * (ROW_BYTES + FILLING_BYTES)).is_err() {
            return Ok(None);
        }
        let scattered = keys.clone();
        let units = tasks.each(rows.div_ceil(UNIT_ROWS), move |unit| {
            let from = unit * UNIT_ROWS;
            Scattered::of(&scattered, nulls, from, UNIT_ROWS.min(rows - from))
        });
        let units: Vec<Scattered> = units.try_collect().await?;
        let comparator = comparator(&keys, &keys, nulls)?;
        let next = (0..rows).map(|_| AtomicU32::new(0)).collect();
        let filling = Arc::new(Filling { units, comparator, next });
        let slots: usize = (0..PARTS).map(|part| filling.count_slots(part)).sum();
        if memory.try_grow(slots * size_of::<u64>()).is_err() {
            return Ok(None);
        }
        let (filled, is_stopped) = (filling.clone(), tasks.is_stopped.clone());
        let parts = tasks.each(PARTS, move |part| filled.part(part, &is_stopped));
        let parts: Vec<(Part, bool)> = parts.try_collect().await?;
        let next = match parts.iter().any(|(_, has_same)| *has_same) {
            true => filling.next.iter().map(|next| next.load(Relaxed)).collect(),
            false => Vec::new(),
        };
        drop(filling);
        memory.shrink(rows * FILLING_BYTES);
        let parts = parts.into_iter().map(|(part, _)| part).collect();
        Ok(Some(Filled { table: Table { keys, nulls, parts }, next }))
    }
}

#[cfg(test)]
mod tests;
