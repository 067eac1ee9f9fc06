//! `first_value(x ORDER BY y)` and `last_value` of groups, for one key of a primitive type: of equal rows the first one.
//!
//! Keys are compared as what they are, and of each batch only the values that are the best ones so far are copied. The
//! states are those of DataFusion, which compares rows by functions that it calls for each.

use crate::lift::functions::holds;
use datafusion::arrow::array::{
    Array, ArrayRef, ArrowPrimitiveType, AsArray, BooleanArray, PrimitiveArray, UInt32Array,
    new_empty_array, new_null_array,
};
use datafusion::arrow::compute::{SortOptions, interleave, take};
use datafusion::arrow::datatypes::{
    ArrowNativeTypeOp, DataType, Date32Type, Date64Type, Decimal128Type, Float32Type, Float64Type,
    Int8Type, Int16Type, Int32Type, Int64Type, Schema, TimeUnit, TimestampMicrosecondType,
    TimestampMillisecondType, TimestampNanosecondType, TimestampSecondType, UInt8Type, UInt16Type,
    UInt32Type, UInt64Type,
};
use datafusion::common::{Result, internal_err};
use datafusion::logical_expr::{EmitTo, GroupsAccumulator};
use datafusion::physical_expr::aggregate::AggregateFunctionExpr;
use std::cmp::Ordering;
use std::sync::Arc;

/// A row that no batch has.
const NONE: u32 = u32::MAX;

/// Values that are held beside one of each group.
const SPARE: usize = 1 << 12;

/// The accumulator of a call over these columns; `None` for calls that are left to DataFusion.
pub(super) fn accumulator(
    call: &AggregateFunctionExpr,
    input: &Schema,
) -> Result<Option<Box<dyn GroupsAccumulator>>> {
    let is_first = call.fun().name() == "first_value";
    let [key] = call.order_bys() else { return Ok(None) };
    let field = call.field();
    let of = field.data_type();
    if !(is_first || call.fun().name() == "last_value") || of.is_nested() || call.is_distinct() {
        return Ok(None);
    }
    let kind = key.expr.data_type(input)?;
    let order = Order { options: key.options, is_first, ignores_nulls: call.ignore_nulls() };
    macro_rules! of {
        ($type:ty) => {
            Box::new(Firsts::<$type>::new(order, of.clone(), kind))
        };
    }
    let states: Box<dyn GroupsAccumulator> = match kind {
        DataType::Int8 => of!(Int8Type),
        DataType::Int16 => of!(Int16Type),
        DataType::Int32 => of!(Int32Type),
        DataType::Int64 => of!(Int64Type),
        DataType::UInt8 => of!(UInt8Type),
        DataType::UInt16 => of!(UInt16Type),
        DataType::UInt32 => of!(UInt32Type),
        DataType::UInt64 => of!(UInt64Type),
        DataType::Float32 => of!(Float32Type),
        DataType::Float64 => of!(Float64Type),
        DataType::Date32 => of!(Date32Type),
        DataType::Date64 => of!(Date64Type),
        DataType::Decimal128(..) => of!(Decimal128Type),
        DataType::Timestamp(TimeUnit::Second, _) => of!(TimestampSecondType),
        DataType::Timestamp(TimeUnit::Millisecond, _) => of!(TimestampMillisecondType),
        DataType::Timestamp(TimeUnit::Microsecond, _) => of!(TimestampMicrosecondType),
        DataType::Timestamp(TimeUnit::Nanosecond, _) => of!(TimestampNanosecondType),
        _ => return Ok(None),
    };
    Ok(Some(states))
}

#[derive(Debug, Clone, Copy)]
struct Order {
    options: SortOptions,
    /// True if the first row counts, false if the last one.
    is_first: bool,
    /// True if rows whose value is NULL do not count.
    ignores_nulls: bool,
}

impl Order {
    /// True if a row with this key replaces one with the best key so far.
    #[inline]
    fn is_better<N: ArrowNativeTypeOp>(self, key: Option<N>, best: Option<N>) -> bool {
        let SortOptions { descending, nulls_first } = self.options;
        let order = match (key, best) {
            (Some(key), Some(best)) if descending => best.compare(key),
            (Some(key), Some(best)) => key.compare(best),
            (None, None) => Ordering::Equal,
            (None, Some(_)) if nulls_first => Ordering::Less,
            (Some(_), None) if !nulls_first => Ordering::Less,
            _ => Ordering::Greater,
        };
        order == if self.is_first { Ordering::Less } else { Ordering::Greater }
    }
}

/// The best row of a group.
#[derive(Debug, Clone, Copy)]
struct Best<N> {
    key: Option<N>,
    /// The array that holds its value, and the row there; `None` if there is no row.
    place: Option<(u32, u32)>,
}

#[derive(Debug)]
struct Firsts<T: ArrowPrimitiveType> {
    order: Order,
    of: DataType,
    kind: DataType,
    best: Vec<Best<T::Native>>,
    /// The values of rows that were the best ones.
    held: Vec<ArrayRef>,
    held_rows: usize,
    held_bytes: usize,
    /// The row of each group that became the best one in a batch, and the groups that have one.
    rows: Vec<u32>,
    changed: Vec<u32>,
}

impl<T: ArrowPrimitiveType> Firsts<T> {
    fn new(order: Order, of: DataType, kind: DataType) -> Self {
        Firsts {
            order,
            of,
            kind,
            best: Vec::new(),
            held: Vec::new(),
            held_rows: 0,
            held_bytes: 0,
            rows: Vec::new(),
            changed: Vec::new(),
        }
    }

    fn compare(
        &mut self,
        keys: &PrimitiveArray<T>,
        groups: &[usize],
        holds: impl Fn(usize) -> bool,
    ) {
        let order = self.order;
        for (row, &group) in groups.iter().enumerate() {
            if !holds(row) {
                continue;
            }
            let key = keys.is_valid(row).then(|| keys.value(row));
            let best = &mut self.best[group];
            let known = &mut self.rows[group];
            let has_row = best.place.is_some() || *known != NONE;
            if !has_row || order.is_better(key, best.key) {
                best.key = key;
                if *known == NONE {
                    self.changed.push(group as u32);
                }
                *known = row as u32;
            }
        }
    }

    /// Copies the values of the rows that have become the best ones.
    fn hold(&mut self, values: &ArrayRef) -> Result<()> {
        if self.changed.is_empty() {
            return Ok(());
        }
        let rows = self.changed.iter().map(|group| self.rows[*group as usize]);
        let values = take(values, &UInt32Array::from_iter_values(rows), None)?;
        let at = self.held.len() as u32;
        for (row, group) in (0..).zip(self.changed.drain(..)) {
            self.best[group as usize].place = Some((at, row));
            self.rows[group as usize] = NONE;
        }
        self.push(values);
        if self.held_rows > 2 * self.best.len() + SPARE {
            let values = self.values(&self.best)?;
            for (row, best) in (0..).zip(&mut self.best) {
                best.place = best.place.map(|_| (0, row));
            }
            (self.held, self.held_rows, self.held_bytes) = (Vec::new(), 0, 0);
            self.push(values);
        }
        Ok(())
    }

    fn push(&mut self, values: ArrayRef) {
        // Views hold the texts of the whole batch.
        let values: ArrayRef = if let Some(texts) = values.as_string_view_opt() {
            Arc::new(texts.gc())
        } else if let Some(texts) = values.as_binary_view_opt() {
            Arc::new(texts.gc())
        } else {
            values
        };
        self.held_rows += values.len();
        self.held_bytes += values.get_array_memory_size();
        self.held.push(values);
    }

    /// Removes and returns the best rows of all groups, or of the first ones, and their values.
    fn leaving(&mut self, emit: EmitTo) -> Result<(Vec<Best<T::Native>>, ArrayRef)> {
        let best = emit.take_needed(&mut self.best);
        self.rows.truncate(self.best.len());
        let values = self.values(&best)?;
        if self.best.is_empty() {
            (self.held, self.held_rows, self.held_bytes) = (Vec::new(), 0, 0);
        }
        Ok((best, values))
    }

    /// The values of the best rows, NULL without one.
    fn values(&self, best: &[Best<T::Native>]) -> Result<ArrayRef> {
        if best.is_empty() {
            return Ok(new_empty_array(&self.of));
        }
        let null = new_null_array(&self.of, 1);
        let arrays = self.held.iter().chain([&null]).map(|array| array.as_ref());
        let arrays: Vec<&dyn Array> = arrays.collect();
        let none = (self.held.len(), 0);
        let place = |(array, row): (u32, u32)| (array as usize, row as usize);
        let places = best.iter().map(|best| best.place.map_or(none, place));
        Ok(interleave(&arrays, &places.collect::<Vec<_>>())?)
    }
}

impl<T: ArrowPrimitiveType> GroupsAccumulator for Firsts<T> {
    fn update_batch(
        &mut self,
        values: &[ArrayRef],
        groups: &[usize],
        filter: Option<&BooleanArray>,
        total: usize,
    ) -> Result<()> {
        let [values, keys] = values else { return internal_err!("a first value without a key") };
        let Some(keys) = keys.as_primitive_opt::<T>() else {
            return internal_err!("a key of {} as {}", keys.data_type(), self.kind);
        };
        self.best.resize(total, Best { key: None, place: None });
        self.rows.resize(total, NONE);
        let nulls = values.logical_nulls().filter(|_| self.order.ignores_nulls);
        match (filter, nulls) {
            (None, None) => self.compare(keys, groups, |_| true),
            (filter, nulls) => self.compare(keys, groups, |row| {
                holds(filter, row) && nulls.as_ref().is_none_or(|nulls| nulls.is_valid(row))
            }),
        }
        self.hold(values)
    }

    fn evaluate(&mut self, emit: EmitTo) -> Result<ArrayRef> {
        Ok(self.leaving(emit)?.1)
    }

    fn state(&mut self, emit: EmitTo) -> Result<Vec<ArrayRef>> {
        let (best, values) = self.leaving(emit)?;
        let keys: PrimitiveArray<T> = best.iter().map(|best| best.key).collect();
        let is_set: Vec<bool> = best.iter().map(|best| best.place.is_some()).collect();
        let keys = keys.with_data_type(self.kind.clone());
        Ok(vec![values, Arc::new(keys), Arc::new(BooleanArray::from(is_set))])
    }

    fn merge_batch(&mut self, states: &[ArrayRef], groups: &[usize], total: usize) -> Result<()> {
        let Some((is_set, columns)) = states.split_last() else {
            return internal_err!("a first value without a state");
        };
        self.update_batch(columns, groups, is_set.as_boolean_opt(), total)
    }

    fn convert_to_state(
        &self,
        values: &[ArrayRef],
        filter: Option<&BooleanArray>,
    ) -> Result<Vec<ArrayRef>> {
        let rows = values.first().map_or(0, |values| values.len());
        let is_set: Vec<bool> = (0..rows).map(|row| holds(filter, row)).collect();
        let is_set: ArrayRef = Arc::new(BooleanArray::from(is_set));
        Ok(values.iter().cloned().chain([is_set]).collect())
    }

    fn size(&self) -> usize {
        size_of_val(self)
            + self.best.capacity() * size_of::<Best<T::Native>>()
            + (self.rows.capacity() + self.changed.capacity()) * size_of::<u32>()
            + self.held_bytes
    }
}

#[cfg(test)]
mod tests;
