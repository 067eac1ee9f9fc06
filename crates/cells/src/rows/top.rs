//! Selects the rows that can be among the first ones by a key.
//!
//! ```text
//! ORDER BY t2m DESC LIMIT 5      keys of 2^20 rows ──▶ those not behind the 5 best so far: a handful
//! ```
//! The operator above sorts the selected rows; at least `rows` other rows precede each omitted one. Keys
//! compare as in SQL: NaN (which has no sign here) is above all numbers, and -0.0 equals 0.0.

use crate::lift::Top;
use crate::lift::functions::holds;
use arrow::array::{Array, ArrayRef, ArrowPrimitiveType, AsArray, BooleanArray};
use arrow::datatypes as t;
use arrow::datatypes::{DataType, TimeUnit};
use datafusion::error::{DataFusionError, Result};
use std::collections::BinaryHeap;

/// The best keys so far; the greatest in the heap is the last of them.
#[derive(Debug)]
pub(super) struct First {
    top: Top,
    keys: BinaryHeap<SortKey>,
}

/// A sort key; the first field separates NULLs from values.
type SortKey = (bool, u64);

impl First {
    pub(super) fn new(top: Top) -> Self {
        First { top, keys: BinaryHeap::new() }
    }

    /// Returns the numbers of the rows, out of `present`, that can be among the first; calls must be in row order.
    pub(super) fn choose(
        &mut self,
        keys: &ArrayRef,
        present: Option<&BooleanArray>,
    ) -> Result<Vec<u32>> {
        let float = |bits: u64| if bits >> 63 == 1 { !bits } else { bits | 1 << 63 };
        let int = |v: i64| (v as u64) ^ (1 << 63);
        match keys.data_type() {
            // Adding 0.0 clears the sign of -0.0.
            DataType::Float64 => {
                self.of::<t::Float64Type>(keys, present, |v| float((v + 0.0).to_bits()))
            }
            DataType::Float32 => self.of::<t::Float32Type>(keys, present, |v| {
                let bits = (v + 0.0).to_bits();
                u64::from(if bits >> 31 == 1 { !bits } else { bits | 1 << 31 })
            }),
            DataType::Int8 => self.of::<t::Int8Type>(keys, present, |v| int(v.into())),
            DataType::Int16 => self.of::<t::Int16Type>(keys, present, |v| int(v.into())),
            DataType::Int32 => self.of::<t::Int32Type>(keys, present, |v| int(v.into())),
            DataType::Int64 => self.of::<t::Int64Type>(keys, present, int),
            DataType::UInt8 => self.of::<t::UInt8Type>(keys, present, u64::from),
            DataType::UInt16 => self.of::<t::UInt16Type>(keys, present, u64::from),
            DataType::UInt32 => self.of::<t::UInt32Type>(keys, present, u64::from),
            DataType::UInt64 => self.of::<t::UInt64Type>(keys, present, |v| v),
            DataType::Timestamp(TimeUnit::Microsecond, _) => {
                self.of::<t::TimestampMicrosecondType>(keys, present, int)
            }
            DataType::Boolean => {
                let values = keys.as_boolean();
                self.among(keys, present, |i| u64::from(values.value(i)))
            }
            other => Err(DataFusionError::Internal(format!("{other} is not a key of cells"))),
        }
    }

    fn of<T: ArrowPrimitiveType>(
        &mut self,
        keys: &ArrayRef,
        present: Option<&BooleanArray>,
        place: impl Fn(T::Native) -> u64,
    ) -> Result<Vec<u32>> {
        let values = keys.as_primitive::<T>().values();
        self.among(keys, present, |i| place(values[i]))
    }

    fn among(
        &mut self,
        keys: &ArrayRef,
        present: Option<&BooleanArray>,
        place: impl Fn(usize) -> u64,
    ) -> Result<Vec<u32>> {
        let Top { rows, descending, nulls_first, ties, .. } = self.top;
        let turned = if descending { u64::MAX } else { 0 };
        let mut chosen = Vec::new();
        let mut last = self.last();
        for i in 0..keys.len() {
            // NULLs sort before (false) or after (true) the values.
            let key = match keys.is_null(i) {
                true => (!nulls_first, 0),
                false => (nulls_first, place(i) ^ turned),
            };
            let is_behind = match last {
                None => false,
                Some(last) if ties => key > last,
                Some(last) => key >= last,
            };
            if is_behind || !holds(present, i) {
                continue;
            }
            chosen.push(i as u32);
            // An equal key does not replace one.
            if last.is_none_or(|last| key < last) {
                self.keys.push(key);
                if self.keys.len() as u64 > rows {
                    self.keys.pop();
                }
                last = self.last();
            }
        }
        Ok(chosen)
    }

    /// The last of the best keys, once there are `rows` of them.
    fn last(&self) -> Option<SortKey> {
        if (self.keys.len() as u64) < self.top.rows { None } else { self.keys.peek().copied() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use arrow::array::{Float64Array, Int32Array};
    use std::sync::Arc;

    fn first(rows: u64, descending: bool, nulls_first: bool, ties: bool) -> First {
        First::new(Top { root: 0, rows, descending, nulls_first, ties })
    }

    #[test]
    fn rows_behind_the_best_are_omitted() {
        let keys: ArrayRef = Arc::new(Float64Array::from(vec![
            Some(3.0),
            None,
            Some(f64::NAN),
            Some(1.0),
            Some(2.0),
            Some(-0.0),
            Some(0.0),
        ]));
        // NaN is the greatest, NULL after it; the first rows of a call are candidates until there are enough.
        assert_eq!(first(2, true, false, false).choose(&keys, None).unwrap(), [0, 1, 2]);
        assert_eq!(
            first(2, false, false, false).choose(&keys, None).unwrap(),
            [0, 1, 2, 3, 4, 5, 6]
        );
        let mut least = first(2, false, true, false);
        assert_eq!(least.choose(&keys, None).unwrap(), [0, 1, 3, 5]);
        // -0.0 equals 0.0, so row 6 was no candidate; only NULL (row 1) is before the last of the two best.
        assert_eq!(least.choose(&keys, None).unwrap(), [1]);
        assert_eq!(least.choose(&keys, None).unwrap(), [] as [u32; 0]);
    }

    #[test]
    fn equal_keys_stay_if_others_decide() {
        let keys: ArrayRef = Arc::new(Int32Array::from(vec![5, 5, 5, 4, 6]));
        assert_eq!(first(2, true, false, true).choose(&keys, None).unwrap(), [0, 1, 2, 4]);
        assert_eq!(first(2, true, false, false).choose(&keys, None).unwrap(), [0, 1, 4]);
        let present =
            BooleanArray::from(vec![Some(false), None, Some(true), Some(true), Some(true)]);
        assert_eq!(first(2, true, false, false).choose(&keys, Some(&present)).unwrap(), [2, 3, 4]);
    }
}
