//! The distinct values of a column.

use crate::rows::texts::{New, Texts};
use arrow::array::{Array, ArrayRef, AsArray, UInt32Array};
use arrow::buffer::NullBuffer;
use arrow::datatypes::{ArrowNativeType, DataType};
use datafusion::common::hash_utils::{RandomState, create_hashes};
use datafusion::error::Result;
use std::ops::Range;

/// Values are few if on average this many rows share one.
const ROWS_OF_VALUE: usize = 4;

/// Texts that are searched at a time.
const TEXTS: usize = 2048;

const STATE: RandomState = RandomState::with_seed(0x7661_6c75_6573);

/// The distinct values of a column, in the order of their first rows. NULL is one of them.
pub(super) struct Distinct {
    /// The first row of each value.
    pub(super) rows: UInt32Array,
    /// The place of the value of each row among these.
    pub(super) places: UInt32Array,
}

/// True for the types of columns that are searched. Values of floats are not: almost all of them differ.
pub(super) fn is_searched(of: &DataType) -> bool {
    use DataType::*;
    matches!(
        of,
        Utf8 | LargeUtf8
            | Utf8View
            | Dictionary(..)
            | Date32
            | Date64
            | Time32(_)
            | Time64(_)
            | Timestamp(..)
            | Duration(_)
    ) || of.is_integer()
}

/// The distinct values of a column of less than 2³² rows; `None` if they are many, or of a type that is not searched.
pub(super) fn distinct(column: &ArrayRef) -> Result<Option<Distinct>> {
    match column.data_type() {
        DataType::Utf8View => of_texts(column),
        DataType::Utf8 => {
            let texts = column.as_string::<i32>();
            search(column, |a, b| texts.value(a) == texts.value(b))
        }
        DataType::LargeUtf8 => {
            let texts = column.as_string::<i64>();
            search(column, |a, b| texts.value(a) == texts.value(b))
        }
        DataType::Dictionary(_, values) => {
            let dictionary = column.as_any_dictionary();
            let is_text = values.is_string() && *dictionary.keys().data_type() == DataType::Int32;
            match is_text && dictionary.values().len() <= column.len() {
                true => of_texts(column),
                false => of_numbers(dictionary.keys()),
            }
        }
        _ => of_numbers(column),
    }
}

fn of_texts(column: &ArrayRef) -> Result<Option<Distinct>> {
    let rows = column.len();
    let (mut texts, mut new) = (Texts::default(), New::default());
    let mut places = Vec::with_capacity(rows);
    for start in (0..rows).step_by(TEXTS) {
        new.start = start;
        let part = column.slice(start, TEXTS.min(rows - start));
        texts.number(&part, &mut new, &mut places)?;
        if new.rows.len() > rows / ROWS_OF_VALUE {
            return Ok(None);
        }
    }
    Ok(Some(Distinct { rows: new.rows.into(), places: places.into() }))
}

fn of_numbers(numbers: &dyn Array) -> Result<Option<Distinct>> {
    let of = numbers.data_type();
    match of.primitive_width().filter(|_| is_searched(of)) {
        Some(1) => of_natives::<u8>(numbers),
        Some(2) => of_natives::<u16>(numbers),
        Some(4) => of_natives::<u32>(numbers),
        Some(8) => of_natives::<u64>(numbers),
        _ => Ok(None),
    }
}

/// As [`distinct`], of numbers with the width of `T`.
fn of_natives<T: ArrowNativeType>(numbers: &dyn Array) -> Result<Option<Distinct>> {
    let data = numbers.to_data();
    let natives = data.buffer::<T>(0);
    search(numbers, |a, b| natives[a] == natives[b])
}

/// The distinct values of a column; `is_same` compares the values of two rows that are not NULL.
fn search(column: &dyn Array, is_same: impl Fn(usize, usize) -> bool) -> Result<Option<Distinct>> {
    let rows = column.len();
    let mut hashes = vec![0; rows];
    let mut found = Found::new(rows);
    // If all values differ, the search ends within the first part.
    let first = rows.min(found.most + 1);
    for part in [0..first, first..rows] {
        let hashed = &mut hashes[part.clone()];
        create_hashes([column.slice(part.start, part.len())], &STATE, hashed)?;
        if !found.add(part, hashed, column.nulls(), &is_same) {
            return Ok(None);
        }
    }
    Ok(Some(Distinct { rows: found.rows.into(), places: found.places.into() }))
}

/// The values of the first rows of a column.
struct Found {
    /// For the hashes of values: the high half of a hash, and the value's place.
    slots: Vec<(u32, u32)>,
    /// The first row of each value.
    rows: Vec<u32>,
    /// The place of the value of each row.
    places: Vec<u32>,
    /// The place of NULL.
    null: Option<u32>,
    /// Upper bound on the values.
    most: usize,
}

/// A slot without a value.
const EMPTY: (u32, u32) = (0, u32::MAX);

impl Found {
    fn new(rows: usize) -> Self {
        let most = rows / ROWS_OF_VALUE;
        Found {
            // Half of them remain empty.
            slots: vec![EMPTY; (2 * most + 2).next_power_of_two()],
            rows: Vec::new(),
            places: Vec::with_capacity(rows),
            null: None,
            most,
        }
    }

    /// Adds the next rows with their hashes; false if there are too many values.
    fn add(
        &mut self,
        rows: Range<usize>,
        hashes: &[u64],
        nulls: Option<&NullBuffer>,
        is_same: impl Fn(usize, usize) -> bool,
    ) -> bool {
        for (row, &hash) in rows.zip(hashes) {
            let next = self.rows.len();
            let place = match nulls.is_some_and(|nulls| nulls.is_null(row)) {
                true => *self.null.get_or_insert(next as u32),
                false => self.place(row, hash, &is_same),
            };
            if place as usize == next {
                if next == self.most {
                    return false;
                }
                self.rows.push(row as u32);
            }
            self.places.push(place);
        }
        true
    }

    /// The place of the value of a row; a new value comes last.
    fn place(&mut self, row: usize, hash: u64, is_same: impl Fn(usize, usize) -> bool) -> u32 {
        let (last, tag) = (self.slots.len() - 1, (hash >> 32) as u32);
        let mut at = hash as usize & last;
        while self.slots[at] != EMPTY {
            let (other, place) = self.slots[at];
            if other == tag && is_same(self.rows[place as usize] as usize, row) {
                return place;
            }
            at = (at + 1) & last;
        }
        let place = self.rows.len() as u32;
        self.slots[at] = (tag, place);
        place
    }
}
