//! Numbers of keys: of the values of a column, then of pairs of numbers, in the order in which they are seen.

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

/// A number that no value has.
const NONE: u32 = u32::MAX;

/// Integers between bounds that are no further apart are found by their difference.
const WINDOW: u64 = 1 << 16;

/// Maximum pairs of numbers that are looked up in an array.
const PAIRS: usize = 1 << 18;

/// Short texts that were seen, found by some bits of their hash.
const RECENT: usize = 256;

/// The view of a text of at most this many bytes has the text itself, and its length in the lowest bits.
const INLINE: u32 = 12;

pub(super) struct Numbers {
    columns: Vec<Column>,
    /// For each column but the first: pairs of the number of the columns before it and of its own number.
    pairs: Vec<Pairs>,
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
            pairs: types.iter().skip(1).map(|_| Pairs::default()).collect(),
        }
    }

    pub(super) fn len(&self) -> usize {
        match self.pairs.last() {
            Some(pairs) => pairs.of.len(),
            None => self.columns.first().map_or(0, |column| column.values.len),
        }
    }

    /// The group of each row.
    pub(super) fn number(&mut self, keys: &[ArrayRef], groups: &mut Vec<usize>) -> Result<()> {
        let mut columns = self.columns.iter_mut().zip(keys);
        let Some((first, key)) = columns.next() else {
            return internal_err!("groups have no keys");
        };
        let mut numbers = Vec::new();
        first.number(key, &mut numbers)?;
        let (mut own, mut before) = (Vec::new(), first.values.len);
        for ((column, key), pairs) in columns.zip(&mut self.pairs) {
            column.number(key, &mut own)?;
            pairs.number(&mut numbers, before, &own, column.values.len)?;
            before = pairs.of.len();
        }
        groups.clear();
        groups.extend(numbers.iter().map(|n| *n as usize));
        Ok(())
    }

    pub(super) fn size(&self) -> usize {
        let columns: usize = self.columns.iter().map(Column::size).sum();
        columns + self.pairs.iter().map(Pairs::size).sum::<usize>()
    }

    /// The numbers of the values of these groups, for each column.
    pub(super) fn values_of(&self, mut groups: Vec<u32>) -> Vec<Vec<u32>> {
        let mut columns = Vec::with_capacity(self.columns.len());
        for Pairs { of, .. } in self.pairs.iter().rev() {
            columns.push(groups.iter().map(|group| of[*group as usize].1).collect());
            groups.iter_mut().for_each(|group| *group = of[*group as usize].0);
        }
        columns.push(groups);
        columns.reverse();
        columns
    }

    /// Removes and returns the keys of all groups, in their order.
    pub(super) fn take(&mut self) -> Result<Vec<ArrayRef>> {
        let numbers = self.values_of((0..self.len() as u32).collect());
        self.pairs.fill_with(Pairs::default);
        let columns = self.columns.iter_mut().zip(numbers);
        columns.map(|(column, numbers)| column.take(numbers)).collect()
    }
}

#[derive(Default)]
struct Pairs {
    /// Indexed by both numbers, the second one in the lower bits, as long as they are few.
    near: Vec<u32>,
    bits: u32,
    far: HashMap<(u32, u32), u32, RandomState>,
    of: Vec<(u32, u32)>,
}

impl Pairs {
    /// Replaces first numbers by those of pairs. The numbers are less than `firsts` and `seconds`.
    fn number(
        &mut self,
        first: &mut [u32],
        firsts: usize,
        second: &[u32],
        seconds: usize,
    ) -> Result<()> {
        let bits = seconds.next_power_of_two().trailing_zeros();
        let size = firsts.next_power_of_two().checked_mul(1 << bits).filter(|size| *size <= PAIRS);
        let Some(size) = size.filter(|_| self.far.is_empty()) else {
            self.near = Vec::new();
            if self.far.is_empty() {
                self.far = (0..).zip(&self.of).map(|(n, pair)| (*pair, n)).collect();
            }
            for (first, second) in first.iter_mut().zip(second) {
                let (pair, next) = ((*first, *second), self.of.len() as u32);
                *first = *self.far.entry(pair).or_insert(next);
                if *first == next {
                    self.of.push(pair);
                }
            }
            return check(self.of.len());
        };
        if size > self.near.len() || bits != self.bits {
            (self.bits, self.near) = (bits, vec![NONE; size]);
            for (n, (a, b)) in (0..).zip(&self.of) {
                self.near[((*a as usize) << bits) | *b as usize] = n;
            }
        }
        for (first, second) in first.iter_mut().zip(second) {
            let known = &mut self.near[((*first as usize) << bits) | *second as usize];
            if *known == NONE {
                *known = self.of.len() as u32;
                self.of.push((*first, *second));
            }
            *first = *known;
        }
        Ok(())
    }

    fn size(&self) -> usize {
        self.near.capacity() * size_of::<u32>()
            + self.far.capacity() * size_of::<((u32, u32), u32)>()
            + self.of.capacity() * size_of::<(u32, u32)>()
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

    fn number(&mut self, keys: &ArrayRef, numbers: &mut Vec<u32>) -> Result<()> {
        numbers.clear();
        numbers.reserve(keys.len());
        // The rows whose values have not been seen.
        let mut new = New { rows: Vec::new(), next: self.values.len as u32, null: self.null };
        match &mut self.known {
            Known::Integers(known) => known.number(keys, &mut new, numbers)?,
            Known::Texts(known) => known.number(keys, &mut new, numbers)?,
        }
        self.null = new.null;
        if !new.rows.is_empty() {
            self.values.len = new.next as usize;
            let part = take(keys, &UInt32Array::from(new.rows), None)?;
            // Views hold the texts of the whole batch.
            let part = match part.as_string_view_opt() {
                Some(texts) => Arc::new(texts.gc()),
                None => part,
            };
            self.values.bytes += part.get_array_memory_size();
            self.values.parts.push(part);
        }
        check(self.values.len)
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

/// Values that are seen for the first time in a batch.
struct New {
    rows: Vec<u32>,
    next: u32,
    null: Option<u32>,
}

impl New {
    fn add(&mut self, row: usize) -> u32 {
        let number = self.next;
        self.rows.push(row as u32);
        self.next += 1;
        number
    }

    fn null(&mut self, row: usize) -> u32 {
        match self.null {
            Some(number) => number,
            None => {
                let number = self.add(row);
                self.null = Some(number);
                number
            }
        }
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

/// Texts. Those of at most 12 bytes are identified by their views.
struct Texts {
    recent: [(u128, u32); RECENT],
    short: HashMap<u128, u32, RandomState>,
    long: HashMap<Box<str>, u32, RandomState>,
    bytes: usize,
}

impl Default for Texts {
    fn default() -> Self {
        Texts {
            recent: [(0, NONE); RECENT],
            short: HashMap::default(),
            long: HashMap::default(),
            bytes: 0,
        }
    }
}

impl Texts {
    fn number(&mut self, keys: &ArrayRef, new: &mut New, numbers: &mut Vec<u32>) -> Result<()> {
        let keys = cast(keys, &DataType::Utf8View)?;
        let texts = keys.as_string_view();
        let nulls = texts.nulls().filter(|nulls| nulls.null_count() > 0);
        for (row, view) in texts.views().iter().enumerate() {
            let number = if nulls.is_some_and(|nulls| nulls.is_null(row)) {
                new.null(row)
            } else if *view as u32 <= INLINE {
                self.short(*view, row, new)
            } else {
                self.long(texts.value(row), row, new)
            };
            numbers.push(number);
        }
        Ok(())
    }

    #[inline]
    fn short(&mut self, view: u128, row: usize, new: &mut New) -> u32 {
        let mixed = (view as u64 ^ (view >> 64) as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        let recent = &mut self.recent[(mixed >> 56) as usize % RECENT];
        if recent.0 != view || recent.1 == NONE {
            let number = *self.short.entry(view).or_insert_with(|| new.add(row));
            *recent = (view, number);
        }
        recent.1
    }

    fn long(&mut self, text: &str, row: usize, new: &mut New) -> u32 {
        if let Some(number) = self.long.get(text) {
            return *number;
        }
        let number = new.add(row);
        self.bytes += text.len();
        self.long.insert(text.into(), number);
        number
    }

    fn size(&self) -> usize {
        self.bytes
            + size_of::<Self>()
            + self.short.capacity() * size_of::<(u128, u32)>()
            + self.long.capacity() * size_of::<(Box<str>, u32)>()
    }
}
