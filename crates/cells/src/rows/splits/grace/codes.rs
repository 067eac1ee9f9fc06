//! The keys of a row as one number, its code.
//!
//! ```text
//! first side    (north, city_1)  (south, city_7)   ⇒   0  1       codes in the order in which keys are seen
//! second side   (south, city_7)  (west, city_1)    ⇒   1  NULL    no row of the first side has these keys
//! ```
//! DataFusion's join finds integers between close bounds in an array. For other keys, and for several, it hashes each
//! row, looks up the hash, and copies and compares the keys of both sides. Where the first side has few rows, the tables
//! of the values of each key fit into the cache, and so does that of the pairs of their numbers. Then the join is one of
//! codes: its rows and their order are the same.

use super::numbers::over;
use crate::rows::single;
use crate::rows::splits::groups::evaluated;
use crate::rows::splits::through::{Rows, through};
use datafusion::arrow::array::{Array, ArrayRef, AsArray, UInt32Array};
use datafusion::arrow::buffer::{BooleanBuffer, NullBuffer};
use datafusion::arrow::compute::cast;
use datafusion::arrow::datatypes::{DataType, Field, FieldRef, Schema};
use datafusion::arrow::record_batch::RecordBatch;
use datafusion::common::hash_utils::RandomState;
use datafusion::common::{NullEquality, internal_err};
use datafusion::error::Result;
use datafusion::execution::TaskContext;
use datafusion::execution::memory_pool::{MemoryConsumer, MemoryReservation};
use datafusion::physical_expr::PhysicalExpr;
use datafusion::physical_expr::expressions::Column;
use datafusion::physical_plan::joins::HashJoinExec;
use datafusion::physical_plan::{ExecutionPlan, ExecutionPlanProperties};
use futures::StreamExt;
use std::collections::HashMap;
use std::sync::Arc;

/// The column of the codes.
const CODE: &str = "__code";

/// The number of values that have none.
pub(super) const NONE: u32 = u32::MAX;

/// Maximum rows of a first side whose keys have codes: a larger table leaves the cache, and DataFusion builds it faster.
const ROWS_MAX: usize = 1 << 17;

/// Upper bound on the bytes of a table for each value, but for those of long texts.
const VALUE_BYTES: usize = 128;

/// Integers are found in an array that has at most this many places, or this many for each of them.
const PLACES_MIN: usize = 1 << 16;
const PLACES_OF_EACH: usize = 16;

/// A text of at most this many bytes is within its view, whose lowest bits are its length.
const INLINE: u32 = 12;

/// The codes of the keys of a first side.
pub(super) struct KeyCodes {
    values: Vec<Values>,
    /// For each key but the first: the pairs of the code of the keys before it and of the number of its value.
    pairs: Vec<Integers>,
    _memory: MemoryReservation,
}

impl KeyCodes {
    /// The codes of a first side; `None` if DataFusion finds its keys as fast, or if memory for them is refused.
    pub(super) fn of(
        join: &HashJoinExec,
        rows: &[(RecordBatch, usize)],
        context: &TaskContext,
    ) -> Result<Option<Arc<Self>>> {
        let count: usize = rows.iter().map(|(batch, _)| batch.num_rows()).sum();
        // A filter that the join fills itself has its keys, not their codes.
        let fills_filter = !join.dynamic_expressions_produced().is_empty();
        if count == 0 || count > ROWS_MAX || fills_filter || !has_codes(join)? {
            return Ok(None);
        }
        let keys: Vec<_> = join.on().iter().map(|(key, _)| key.clone()).collect();
        let bytes: usize = rows.iter().map(|(_, bytes)| bytes).sum();
        let memory = MemoryConsumer::new("codes of keys").register(context.memory_pool());
        if memory.try_grow(count * keys.len() * VALUE_BYTES + bytes).is_err() {
            return Ok(None);
        }
        let columns = rows.iter().map(|(batch, _)| evaluated(&keys, batch));
        let columns = columns.collect::<Result<Vec<_>>>()?;
        let is_null_equal = join.null_equality() == NullEquality::NullEqualsNull;
        let (mut values, mut pairs, mut codes) = (Vec::new(), Vec::new(), Vec::new());
        for key in 0..keys.len() {
            let column: Vec<&ArrayRef> = columns.iter().map(|all| &all[key]).collect();
            let (of, numbers) = Values::of(&column, is_null_equal)?;
            if key == 0 {
                codes = numbers;
            } else {
                let mut known = Integers::default();
                for (code, number) in codes.iter_mut().zip(numbers) {
                    *code = of.pair(*code, number).map_or(NONE, |pair| known.add(pair));
                }
                known.finish();
                pairs.push(known);
            }
            values.push(of);
        }
        if let [Values { known: Known::Integers(known), .. }] = values.as_slice()
            && keys[0].data_type(&join.left().schema())?.is_integer()
            && !known.near.is_empty()
        {
            return Ok(None);
        }
        let sizes = values.iter().map(Values::size).chain(pairs.iter().map(Integers::size));
        memory.resize(sizes.sum());
        Ok(Some(Arc::new(KeyCodes { values, pairs, _memory: memory })))
    }

    /// The join of codes, over the rows of the first side.
    pub(super) fn over(
        self: &Arc<Self>,
        join: &HashJoinExec,
        first: Arc<dyn ExecutionPlan>,
    ) -> Result<HashJoinExec> {
        let second = join.right().clone();
        let code = |of: &Arc<dyn ExecutionPlan>| -> Arc<dyn PhysicalExpr> {
            Arc::new(Column::new(CODE, of.schema().fields().len()))
        };
        let on = vec![(code(&first), code(&second))];
        let (first_keys, second_keys) = join.on().iter().cloned().unzip();
        let (first, second) = (self.coded(first, first_keys), self.coded(second, second_keys));
        over(join, first, second, false)?.with_on(on).build()
    }

    /// The input, whose rows have their codes as their last column.
    fn coded(
        self: &Arc<Self>,
        input: Arc<dyn ExecutionPlan>,
        keys: Vec<Arc<dyn PhysicalExpr>>,
    ) -> Arc<dyn ExecutionPlan> {
        let columns = input.schema();
        let mut fields: Vec<FieldRef> = columns.fields().iter().cloned().collect();
        fields.push(Arc::new(Field::new(CODE, DataType::UInt32, true)));
        let schema = Arc::new(Schema::new_with_metadata(fields, columns.metadata().clone()));
        let partitions = input.output_partitioning().partition_count();
        let properties = single::properties_of(schema.clone(), partitions);
        let (codes, keys) = (self.clone(), Arc::new(keys));
        through(input, properties, move |_, rows: Rows| {
            let (codes, keys, schema) = (codes.clone(), keys.clone(), schema.clone());
            let rows = rows.map(move |batch| {
                let batch = batch?;
                let code = codes.find(&evaluated(&keys, &batch)?)?;
                let mut columns = batch.columns().to_vec();
                columns.push(Arc::new(code));
                Ok(RecordBatch::try_new(schema.clone(), columns)?)
            });
            rows.boxed()
        })
    }

    /// The codes are less than this.
    pub(super) fn len(&self) -> usize {
        let all = self.pairs.last().map(|pairs| pairs.len);
        all.or_else(|| self.values.last().map(|values| values.len)).unwrap_or(0) as usize
    }

    /// The code of each row, and [`NONE`] for rows without one.
    pub(super) fn numbers(&self, keys: &[ArrayRef]) -> Result<Vec<u32>> {
        let mut keys = self.values.iter().zip(keys);
        let Some((first, key)) = keys.next() else { return internal_err!("a join has no keys") };
        let mut codes = first.find(key)?;
        for ((values, key), pairs) in keys.zip(&self.pairs) {
            for (code, number) in codes.iter_mut().zip(values.find(key)?) {
                *code = values.pair(*code, number).map_or(NONE, |pair| pairs.find(pair));
            }
        }
        Ok(codes)
    }

    /// As [`KeyCodes::numbers`], with NULL for rows without a code.
    fn find(&self, keys: &[ArrayRef]) -> Result<UInt32Array> {
        let codes = self.numbers(keys)?;
        let has_code = BooleanBuffer::collect_bool(codes.len(), |row| codes[row] != NONE);
        let nulls = Some(NullBuffer::new(has_code)).filter(|nulls| nulls.null_count() > 0);
        Ok(UInt32Array::new(codes.into(), nulls))
    }
}

/// True if the keys of a join have types whose values have numbers, the same on both sides. Floats and nested values have
/// equalities of their own.
pub(super) fn has_codes(join: &HashJoinExec) -> Result<bool> {
    use DataType::{
        Boolean, Date32, Date64, Duration, LargeUtf8, Time32, Time64, Timestamp, Utf8, Utf8View,
    };
    let (left, right) = (join.left().schema(), join.right().schema());
    for (first, second) in join.on() {
        let kind = first.data_type(&left)?;
        let has_numbers = kind.is_integer()
            || matches!(
                kind,
                Utf8 | LargeUtf8 | Utf8View | Boolean | Date32 | Date64 | Duration(_)
            )
            || matches!(kind, Time32(_) | Time64(_) | Timestamp(_, _));
        if !has_numbers || second.data_type(&right)? != kind {
            return Ok(false);
        }
    }
    Ok(true)
}

/// The numbers of the values of a key.
struct Values {
    known: Known,
    /// The number of missing values, if these are equal.
    null: u32,
    /// The numbers are less than this.
    len: u32,
}

enum Known {
    Integers(Integers),
    Texts(Texts),
}

impl Values {
    /// The numbers of the values of these columns, and those of all their rows.
    fn of(columns: &[&ArrayRef], is_null_equal: bool) -> Result<(Self, Vec<u32>)> {
        let mut numbers = Vec::new();
        let (known, len) = if columns.iter().any(|column| column.data_type().is_string()) {
            let mut known = Texts::default();
            for column in columns {
                numbers.extend(numbers_of_texts(column, NONE, |text| known.add(text))?);
            }
            let len = known.len();
            (Known::Texts(known), len)
        } else {
            let mut known = Integers::default();
            for column in columns {
                numbers.extend(numbers_of_integers(column, NONE, |value| known.add(value))?);
            }
            known.finish();
            let len = known.len;
            (Known::Integers(known), len)
        };
        if !is_null_equal {
            return Ok((Values { known, null: NONE, len }, numbers));
        }
        numbers.iter_mut().filter(|number| **number == NONE).for_each(|number| *number = len);
        Ok((Values { known, null: len, len: len + 1 }, numbers))
    }

    fn find(&self, keys: &ArrayRef) -> Result<Vec<u32>> {
        match &self.known {
            Known::Integers(known) => {
                numbers_of_integers(keys, self.null, |value| known.find(value))
            }
            Known::Texts(known) => numbers_of_texts(keys, self.null, |text| known.find(text)),
        }
    }

    /// A code and a number of a value as one integer; `None` if there is only one of them.
    fn pair(&self, code: u32, number: u32) -> Option<i64> {
        let is_both = code != NONE && number != NONE;
        is_both.then(|| i64::from(code) * i64::from(self.len) + i64::from(number))
    }

    fn size(&self) -> usize {
        match &self.known {
            Known::Integers(known) => known.size(),
            Known::Texts(known) => known.size(),
        }
    }
}

/// The numbers of integers, and of types that are stored as integers. Which values are equal does not depend on a sign or
/// a unit.
pub(super) fn numbers_of_integers(
    keys: &ArrayRef,
    null: u32,
    number_of: impl FnMut(i64) -> u32,
) -> Result<Vec<u32>> {
    let (data, nulls) = (keys.to_data(), keys.nulls());
    macro_rules! numbers {
        ($of:ty) => {{
            let values = data.buffer::<$of>(0).iter().take(keys.len());
            numbered(values.map(|value| i64::from(*value)), nulls, null, number_of)
        }};
    }
    if let Some(keys) = keys.as_boolean_opt() {
        return Ok(numbered(keys.values().iter().map(i64::from), nulls, null, number_of));
    }
    Ok(match keys.data_type().primitive_width() {
        Some(1) => numbers!(i8),
        Some(2) => numbers!(i16),
        Some(4) => numbers!(i32),
        Some(8) => numbers!(i64),
        _ => return internal_err!("{} values are not integers", keys.data_type()),
    })
}

fn numbers_of_texts(
    keys: &ArrayRef,
    null: u32,
    mut number_of: impl FnMut(Text<'_>) -> u32,
) -> Result<Vec<u32>> {
    let keys = cast(keys, &DataType::Utf8View)?;
    let texts = keys.as_string_view();
    let views = texts.views().iter().enumerate();
    let number_of = |(row, view): (usize, &u128)| match *view as u32 <= INLINE {
        true => number_of(Text::Short(*view)),
        false => number_of(Text::Long(texts.value(row))),
    };
    Ok(numbered(views, texts.nulls(), null, number_of))
}

/// The number of each value, and `null` for missing ones.
fn numbered<T>(
    values: impl Iterator<Item = T>,
    nulls: Option<&NullBuffer>,
    null: u32,
    mut number_of: impl FnMut(T) -> u32,
) -> Vec<u32> {
    match nulls.filter(|nulls| nulls.null_count() > 0) {
        None => values.map(number_of).collect(),
        Some(nulls) => values
            .zip(nulls.iter())
            .map(|(value, is_valid)| if is_valid { number_of(value) } else { null })
            .collect(),
    }
}

/// True if an array may have a place for each integer between these bounds, for so many of them.
pub(super) fn is_close(min: i64, max: i64, count: usize) -> bool {
    max.abs_diff(min) < PLACES_MIN.max(count.saturating_mul(PLACES_OF_EACH)) as u64
}

#[derive(Default)]
struct Integers {
    /// The numbers of the values from `base` on, if these lie close together.
    near: Vec<u32>,
    base: i64,
    far: HashMap<i64, u32, RandomState>,
    len: u32,
}

impl Integers {
    fn add(&mut self, value: i64) -> u32 {
        let number = *self.far.entry(value).or_insert(self.len);
        self.len = self.len.max(number + 1);
        number
    }

    /// Ends the additions.
    fn finish(&mut self) {
        let (min, max) = (self.far.keys().min(), self.far.keys().max());
        let (Some(min), Some(max)) = (min, max) else { return };
        if !is_close(*min, *max, self.far.len()) {
            return;
        }
        (self.base, self.near) = (*min, vec![NONE; max.abs_diff(*min) as usize + 1]);
        for (value, number) in std::mem::take(&mut self.far) {
            self.near[value.wrapping_sub(self.base) as usize] = number;
        }
    }

    #[inline]
    fn find(&self, value: i64) -> u32 {
        let number = match self.near.is_empty() {
            true => self.far.get(&value),
            false => self.near.get(value.wrapping_sub(self.base) as usize),
        };
        number.copied().unwrap_or(NONE)
    }

    fn size(&self) -> usize {
        self.near.capacity() * size_of::<u32>()
            + self.far.capacity() * (size_of::<(i64, u32)>() + 1)
    }
}

#[derive(Clone, Copy)]
enum Text<'a> {
    /// The view of a text that is within it.
    Short(u128),
    Long(&'a str),
}

#[derive(Default)]
struct Texts {
    short: HashMap<u128, u32, RandomState>,
    long: HashMap<Box<str>, u32, RandomState>,
    /// Bytes of the long texts.
    bytes: usize,
}

impl Texts {
    fn len(&self) -> u32 {
        (self.short.len() + self.long.len()) as u32
    }

    fn add(&mut self, text: Text<'_>) -> u32 {
        let next = self.len();
        match text {
            Text::Short(view) => *self.short.entry(view).or_insert(next),
            Text::Long(text) => {
                if let Some(number) = self.long.get(text) {
                    return *number;
                }
                self.bytes += text.len();
                self.long.insert(text.into(), next);
                next
            }
        }
    }

    #[inline]
    fn find(&self, text: Text<'_>) -> u32 {
        let number = match text {
            Text::Short(view) => self.short.get(&view),
            Text::Long(text) => self.long.get(text),
        };
        number.copied().unwrap_or(NONE)
    }

    fn size(&self) -> usize {
        self.bytes
            + self.short.capacity() * (size_of::<(u128, u32)>() + 1)
            + self.long.capacity() * (size_of::<(Box<str>, u32)>() + 1)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]
    use super::*;
    use datafusion::arrow::array::{
        BooleanArray, Date32Array, Float64Array, Int8Array, Int64Array, StringArray,
        StringViewArray,
    };
    use datafusion::arrow::util::display::array_value_to_string;
    use datafusion::common::JoinType;
    use datafusion::datasource::memory::MemorySourceConfig;
    use datafusion::physical_plan::joins::PartitionMode;
    use std::collections::{BTreeMap, BTreeSet};

    fn batch(keys: &[ArrayRef]) -> RecordBatch {
        let name = |at: usize| format!("k{at}");
        RecordBatch::try_from_iter_with_nullable(
            keys.iter().enumerate().map(|(at, key)| (name(at), key.clone(), true)),
        )
        .unwrap()
    }

    /// The codes of the keys of a first side, in two batches, for a join with a second one.
    fn codes_of(
        first: &[ArrayRef],
        second: &[ArrayRef],
        nulls: NullEquality,
    ) -> Option<Arc<KeyCodes>> {
        let scan = |keys: &[ArrayRef]| {
            let rows = batch(keys);
            MemorySourceConfig::try_new_exec(&[vec![rows.clone()]], rows.schema(), None).unwrap()
        };
        let key = |at: usize| Arc::new(Column::new(&format!("k{at}"), at)) as Arc<dyn PhysicalExpr>;
        let on = (0..first.len()).map(|at| (key(at), key(at))).collect();
        let (kind, mode) = (JoinType::Inner, PartitionMode::CollectLeft);
        let (left, right) = (scan(first), scan(second));
        let join =
            HashJoinExec::try_new(left, right, on, None, &kind, None, mode, nulls, false).unwrap();
        let rows = batch(first);
        let half = rows.num_rows() / 2;
        let batches = [rows.slice(0, half), rows.slice(half, rows.num_rows() - half)];
        let batches = batches.map(|batch| (batch, 1000));
        KeyCodes::of(&join, &batches, &TaskContext::default()).unwrap()
    }

    /// The keys of each row as texts; `None` if they equal no others.
    fn texts(keys: &[ArrayRef], nulls: NullEquality) -> Vec<Option<Vec<String>>> {
        let of_row = |row: usize| {
            let of_key = |key: &ArrayRef| match (key.is_null(row), nulls) {
                (true, NullEquality::NullEqualsNothing) => None,
                (true, NullEquality::NullEqualsNull) => Some("missing".to_owned()),
                (false, _) => Some(format!("'{}'", array_value_to_string(key, row).unwrap())),
            };
            keys.iter().map(of_key).collect::<Option<Vec<_>>>()
        };
        (0..keys[0].len()).map(of_row).collect()
    }

    /// Keys have the same code if they are the same as texts.
    fn check(first: &[ArrayRef], second: &[ArrayRef]) {
        for nulls in [NullEquality::NullEqualsNothing, NullEquality::NullEqualsNull] {
            let case = format!("{nulls:?}: {first:?} {second:?}");
            let codes = codes_of(first, second, nulls).unwrap();
            let known: BTreeSet<_> = texts(first, nulls).into_iter().flatten().collect();
            let mut code_of = BTreeMap::new();
            for side in [first, second] {
                for (key, code) in texts(side, nulls).into_iter().zip(&codes.find(side).unwrap()) {
                    let key = key.filter(|key| known.contains(key));
                    assert_eq!(key.is_some(), code.is_some(), "{case}");
                    assert_eq!(*code_of.entry(key).or_insert(code), code, "{case}");
                }
            }
            let different: BTreeSet<_> = code_of.values().collect();
            assert_eq!(different.len(), code_of.len(), "{case}");
        }
    }

    fn views(texts: &[Option<&str>]) -> ArrayRef {
        Arc::new(texts.iter().copied().collect::<StringViewArray>())
    }

    fn integers(values: &[Option<i64>]) -> ArrayRef {
        Arc::new(values.iter().copied().collect::<Int64Array>())
    }

    #[test]
    fn equal_keys_have_one_code() {
        let (short, long) = (Some("a text of 12"), Some("a text of 13."));
        let other = Some("a text of 13!");
        let first = views(&[Some(""), short, None, long, Some("a"), long, None, Some("")]);
        let second = views(&[long, None, Some("b"), short, other, Some(""), Some("a\0")]);
        check(std::slice::from_ref(&first), std::slice::from_ref(&second));
        let (low, high) = (Some(i64::MIN), Some(i64::MAX));
        let wide = integers(&[low, high, Some(0), None, low, Some(-1), Some(7), Some(7)]);
        let others = integers(&[high, Some(1), None, low, Some(7), Some(-7), Some(0)]);
        check(std::slice::from_ref(&wide), std::slice::from_ref(&others));
        check(&[first.clone(), wide.clone()], &[second.clone(), others.clone()]);
        check(&[wide, first.clone(), first.clone()], &[others, second.clone(), second]);
        let days = |days: &[Option<i32>]| {
            Arc::new(days.iter().copied().collect::<Date32Array>()) as ArrayRef
        };
        check(
            &[days(&[Some(3), None, Some(9)])],
            &[days(&[Some(9), Some(4), None, Some(i32::MIN)])],
        );
        let missing = integers(&[None, None, None]);
        check(std::slice::from_ref(&missing), std::slice::from_ref(&missing));
        let flags = |of: &[Option<bool>]| {
            Arc::new(of.iter().copied().collect::<BooleanArray>()) as ArrayRef
        };
        let near = integers(&[Some(1), Some(2), Some(1)]);
        check(
            &[flags(&[Some(true), None, Some(false)]), near.clone()],
            &[flags(&[Some(false), Some(true), Some(true)]), near],
        );
    }

    #[test]
    fn many_values_are_found_far_from_each_other() {
        let texts = |step: i64| -> ArrayRef {
            Arc::new((0..3000).map(|i| Some(format!("name_{}", i * step))).collect::<StringArray>())
        };
        let values = |step: i64| -> ArrayRef {
            Arc::new((0..3000).map(|i| Some(i * step)).collect::<Int64Array>())
        };
        check(&[texts(2), values(1_000_003)], &[texts(3), values(1_000_003)]);
        check(&[values(1_000_003), texts(2)], &[values(2_000_006), texts(4)]);
        check(&[values(1 << 40)], &[values(1 << 41)]);
    }

    #[test]
    fn other_keys_have_no_codes() {
        let none = |first: ArrayRef, second: ArrayRef| {
            assert!(codes_of(&[first], &[second], NullEquality::NullEqualsNothing).is_none());
        };
        let near = integers(&[Some(1), Some(2), None]);
        none(near.clone(), near.clone());
        none(integers(&[]), near.clone());
        let narrow: ArrayRef = Arc::new(Int8Array::from(vec![1, 2]));
        none(narrow, near);
        let floats: ArrayRef = Arc::new(Float64Array::from(vec![0.0, -0.0, f64::NAN]));
        none(floats.clone(), floats);
        let many: ArrayRef =
            Arc::new((0..ROWS_MAX as i64 + 1).map(|i| i << 30).collect::<Int64Array>());
        none(many.clone(), many);
    }
}
