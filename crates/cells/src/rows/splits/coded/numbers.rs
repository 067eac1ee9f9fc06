//! Numbers of keys: of the values of each column, then of the tuples of these numbers, in the order in which they are seen.

use super::tuples::Tuples;
use crate::rows::texts::{NONE, New, Texts};
use datafusion::arrow::array::{
    Array, ArrayRef, AsArray, PrimitiveArray, UInt32Array, new_empty_array,
};
use datafusion::arrow::buffer::NullBuffer;
use datafusion::arrow::compute::{cast, concat, take};
use datafusion::arrow::datatypes::{DataType, Int8Type, Int16Type, Int32Type, Int64Type};
use datafusion::common::hash_utils::RandomState;
use datafusion::common::internal_err;
use datafusion::error::Result;
use std::collections::HashMap;
use std::sync::Arc;

/// Integers between bounds that are no further apart are found by their difference.
const WINDOW: u64 = 1 << 16;

pub(super) struct Numbers {
    columns: Vec<Column>,
    /// `None` for one column.
    tuples: Option<Tuples>,
}

impl Numbers {
    /// True if keys of these types can be numbered. Floats and nested values have orders and equalities of their own.
    pub(super) fn has(types: &[DataType]) -> bool {
        use DataType::*;
        !types.is_empty()
            && types.iter().all(|t| {
                t.is_integer()
                    || matches!(
                        t,
                        Utf8 | LargeUtf8 | Utf8View | Boolean | Date32 | Date64 | Duration(_)
                    )
                    || matches!(t, Time32(_) | Time64(_) | Timestamp(_, _))
            })
    }

    pub(super) fn new(types: &[DataType]) -> Self {
        Numbers {
            columns: types.iter().map(Column::new).collect(),
            tuples: (types.len() > 1).then(|| Tuples::new(types.len())),
        }
    }

    pub(super) fn len(&self) -> usize {
        match &self.tuples {
            Some(tuples) => tuples.len(),
            None => self.columns.first().map_or(0, |column| column.values.len),
        }
    }

    /// The group of each row.
    pub(super) fn number(&mut self, keys: &[ArrayRef], groups: &mut Vec<usize>) -> Result<()> {
        if keys.len() != self.columns.len() {
            return internal_err!("{} columns of keys, not {}", keys.len(), self.columns.len());
        }
        let mut numbers = Vec::with_capacity(keys.len());
        for (column, key) in self.columns.iter_mut().zip(keys) {
            numbers.push(column.number(key)?);
        }
        if let Some(tuples) = &mut self.tuples {
            let counts: Vec<usize> = self.columns.iter().map(|column| column.values.len).collect();
            return tuples.number(&numbers, &counts, groups);
        }
        groups.clear();
        groups.extend(numbers.iter().flatten().map(|n| *n as usize));
        Ok(())
    }

    pub(super) fn size(&self) -> usize {
        let columns: usize = self.columns.iter().map(Column::size).sum();
        columns + self.tuples.as_ref().map_or(0, Tuples::size)
    }

    /// The numbers of the values of these groups, for each column.
    pub(super) fn values_of(&self, groups: Vec<u32>) -> Vec<Vec<u32>> {
        match &self.tuples {
            Some(tuples) => tuples.values_of(groups),
            None => vec![groups],
        }
    }

    /// Removes and returns the keys of all groups, in their order.
    pub(super) fn take(&mut self) -> Result<Vec<ArrayRef>> {
        let numbers = self.values_of((0..self.len() as u32).collect());
        self.tuples = self.tuples.is_some().then(|| Tuples::new(self.columns.len()));
        let columns = self.columns.iter_mut().zip(numbers);
        columns.map(|(column, numbers)| column.take(numbers)).collect()
    }
}

pub(super) fn check(numbers: usize) -> Result<()> {
    if numbers < NONE as usize { Ok(()) } else { internal_err!("{numbers} groups in one table") }
}

struct Column {
    known: Known,
    null: Option<u32>,
    values: Values,
}

enum Known {
    Integers(Integers),
    Texts(Box<Texts>),
}

/// Values in the order of their numbers, as they came.
struct Values {
    len: usize,
    parts: Vec<ArrayRef>,
    kind: DataType,
    bytes: usize,
}

impl Column {
    fn new(kind: &DataType) -> Self {
        let known = match kind.is_string() {
            true => Known::Texts(Box::default()),
            false => Known::Integers(Integers::default()),
        };
        let values = Values { len: 0, parts: Vec::new(), kind: kind.clone(), bytes: 0 };
        Column { known, null: None, values }
    }

    /// The number of each row. Keys that are texts may be the values of a dictionary.
    fn number(&mut self, keys: &ArrayRef) -> Result<Vec<u32>> {
        let mut numbers = Vec::with_capacity(keys.len());
        // The rows whose values have not been seen.
        let next = self.values.len as u32;
        let mut new = New { next, null: self.null, ..New::default() };
        match &mut self.known {
            Known::Integers(known) => known.number(keys, &mut new, &mut numbers)?,
            Known::Texts(known) => known.number(keys, &mut new, &mut numbers)?,
        }
        self.null = new.null;
        if !new.rows.is_empty() {
            self.values.len = new.next as usize;
            let part = take(keys, &UInt32Array::from(new.rows), None)?;
            // Not by a cast alone, to which a NULL among the values is an empty text.
            let part = match part.as_any_dictionary_opt() {
                Some(part) => take(part.values(), part.keys(), None)?,
                None => part,
            };
            let part = cast(&part, &self.values.kind)?;
            // Views hold the texts of the whole batch.
            let part = match part.as_string_view_opt() {
                Some(texts) => Arc::new(texts.gc()),
                None => part,
            };
            self.values.bytes += part.get_array_memory_size();
            self.values.parts.push(part);
        }
        check(self.values.len)?;
        Ok(numbers)
    }

    fn size(&self) -> usize {
        self.values.bytes
            + match &self.known {
                Known::Integers(known) => known.size(),
                Known::Texts(known) => known.size(),
            }
    }

    /// Returns the values with these numbers, and forgets all values.
    fn take(&mut self, numbers: Vec<u32>) -> Result<ArrayRef> {
        let kind = self.values.kind.clone();
        let Values { parts, .. } = std::mem::replace(self, Column::new(&kind)).values;
        if parts.is_empty() {
            return Ok(new_empty_array(&kind));
        }
        let parts: Vec<&dyn Array> = parts.iter().map(AsRef::as_ref).collect();
        Ok(take(&concat(&parts)?, &UInt32Array::from(numbers), None)?)
    }
}

/// Integers, and types that are stored as integers.
#[derive(Default)]
struct Integers {
    /// The numbers of the values from `base` on.
    near: Vec<u32>,
    base: i64,
    far: HashMap<i64, u32, RandomState>,
}

impl Integers {
    fn number(&mut self, keys: &ArrayRef, new: &mut New, numbers: &mut Vec<u32>) -> Result<()> {
        if let Some(keys) = keys.as_boolean_opt() {
            let values = keys.values().iter().map(i64::from);
            self.add_all(values, keys.nulls(), new, numbers);
            return Ok(());
        }
        /// The values as integers of this type. Which values are equal does not depend on a sign or a unit.
        macro_rules! add {
            ($of:ty, $kind:expr) => {{
                let data = keys.to_data().into_builder().data_type($kind).build()?;
                let keys = PrimitiveArray::<$of>::from(data);
                let values = keys.values().iter().map(|value| i64::from(*value));
                self.add_all(values, keys.nulls(), new, numbers);
            }};
        }
        match keys.data_type().primitive_width() {
            Some(1) => add!(Int8Type, DataType::Int8),
            Some(2) => add!(Int16Type, DataType::Int16),
            Some(4) => add!(Int32Type, DataType::Int32),
            Some(8) => add!(Int64Type, DataType::Int64),
            _ => return internal_err!("{} values are not integers", keys.data_type()),
        }
        Ok(())
    }

    fn add_all(
        &mut self,
        values: impl Iterator<Item = i64>,
        nulls: Option<&NullBuffer>,
        new: &mut New,
        numbers: &mut Vec<u32>,
    ) {
        match nulls.filter(|nulls| nulls.null_count() > 0) {
            None => numbers
                .extend(values.enumerate().map(|(row, value)| self.number_of(value, row, new))),
            Some(nulls) => {
                numbers.extend(values.enumerate().map(|(row, value)| match nulls.is_valid(row) {
                    true => self.number_of(value, row, new),
                    false => new.null(row),
                }))
            }
        }
    }

    #[inline]
    fn number_of(&mut self, value: i64, row: usize, new: &mut New) -> u32 {
        let at = value.wrapping_sub(self.base) as u64;
        match self.near.get(at as usize) {
            Some(number) if *number != NONE => *number,
            _ => self.other(value, row, new),
        }
    }

    #[cold]
    fn other(&mut self, value: i64, row: usize, new: &mut New) -> u32 {
        if !self.widen(value) {
            return *self.far.entry(value).or_insert_with(|| new.add(row));
        }
        let number = new.add(row);
        self.near[value.wrapping_sub(self.base) as usize] = number;
        number
    }

    /// Makes room for a value near the others; false if it is far from them.
    fn widen(&mut self, value: i64) -> bool {
        if self.near.is_empty() {
            (self.base, self.near) = (value, vec![NONE; 1]);
            return true;
        }
        let last = self.base + (self.near.len() as i64 - 1);
        if (self.base..=last).contains(&value) {
            return true;
        }
        let (low, high) = (self.base.min(value), last.max(value));
        if high.abs_diff(low) >= WINDOW {
            return false;
        }
        // Twice as many as needed, on the side of the value. It never grows over a value that was far from it before.
        let len = ((high.abs_diff(low) as usize + 1) * 2).min(WINDOW as usize);
        let most = len as i64 - 1;
        let base = match value < self.base {
            true => high.saturating_sub(most),
            false => low.min(i64::MAX - most),
        };
        let mut near = vec![NONE; len];
        let at = self.base.abs_diff(base) as usize;
        near[at..at + self.near.len()].copy_from_slice(&self.near);
        (self.base, self.near) = (base, near);
        true
    }

    fn size(&self) -> usize {
        self.near.capacity() * size_of::<u32>() + self.far.capacity() * size_of::<(i64, u32)>()
    }
}
