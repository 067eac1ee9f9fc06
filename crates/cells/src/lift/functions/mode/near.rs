//! Counts of integers that lie close together, by group, in a table without hashes.

use std::sync::Arc;

use arrow::array::{Array, ArrayRef, BooleanArray, PrimitiveArray, UInt64Array, make_array};
use arrow::datatypes::{DataType, Int8Type, Int16Type, Int32Type, Int64Type};
use datafusion::common::{Result, internal_err};

use crate::lift::functions::holds;

/// Maximum counts in the table.
const COUNTS: usize = 1 << 16;

/// The counts of the values of some groups.
#[derive(Debug, Default)]
pub(super) struct Near {
    /// The least and the greatest value.
    bounds: Option<(i64, i64)>,
    /// The first value of the table.
    base: i64,
    /// The values of the table.
    width: usize,
    /// `width` counts for each group.
    counts: Vec<u64>,
}

/// Counted values: the group, the value and the count of each pair.
pub(super) struct Counted {
    pub(super) groups: UInt64Array,
    pub(super) values: ArrayRef,
    pub(super) times: UInt64Array,
}

impl Near {
    /// True for types whose values are stored as integers of at most 64 bits.
    pub(super) fn takes(of: &DataType) -> bool {
        use DataType::{Date32, Date64, Duration, Time32, Time64, Timestamp};
        let is_time =
            matches!(of, Date32 | Date64 | Time32(_) | Time64(_) | Timestamp(..) | Duration(_));
        of.is_integer() || is_time
    }

    /// Counts the values of the rows for which the mask holds, or of all. Returns false, and counts nothing, if the table
    /// would have too many counts.
    pub(super) fn add(
        &mut self,
        values: &ArrayRef,
        groups: &[usize],
        mask: Option<&BooleanArray>,
        total: usize,
    ) -> Result<bool> {
        let values = integers(values)?;
        let bounds = match mask {
            None => bounds_of(values.iter().copied()),
            Some(_) => {
                bounds_of((0..values.len()).filter(|&row| holds(mask, row)).map(|row| values[row]))
            }
        };
        let Some((low, high)) = bounds else { return Ok(true) };
        if !self.widen(low, high, total) {
            return Ok(false);
        }
        let (base, width) = (self.base, self.width);
        let place = |group: usize, value: i64| group * width + value.wrapping_sub(base) as usize;
        for (row, (&group, &value)) in groups.iter().zip(&values).enumerate() {
            if holds(mask, row) {
                self.counts[place(group, value)] += 1;
            }
        }
        Ok(true)
    }

    /// Makes room for values between these bounds in so many groups; false if the table would be too large.
    fn widen(&mut self, low: i64, high: i64, groups: usize) -> bool {
        let (low, high) =
            self.bounds.map_or((low, high), |(least, most)| (least.min(low), most.max(high)));
        let last = high.abs_diff(low);
        let is_covered = self.width > 0
            && low >= self.base
            && (high.wrapping_sub(self.base) as u64) < self.width as u64;
        let width = match is_covered {
            true => self.width,
            false if last >= COUNTS as u64 => return false,
            // Further values are expected on the side of the new ones.
            false => (last as usize + 1).next_power_of_two(),
        };
        if groups.checked_mul(width).is_none_or(|counts| counts > COUNTS) {
            return false;
        }
        if !is_covered {
            let is_below = self.bounds.is_some_and(|(least, _)| low < least);
            let below = high.checked_sub(width as i64 - 1).filter(|_| is_below);
            self.move_to(below.unwrap_or(low), width);
        }
        self.bounds = Some((low, high));
        self.counts.resize(self.counts.len().max(groups * width), 0);
        true
    }

    /// Moves the counts to a table of other values, which has all values between the bounds.
    fn move_to(&mut self, base: i64, width: usize) {
        if let Some((least, most)) = self.bounds {
            let from = least.wrapping_sub(self.base) as usize;
            let (to, len) = (least.wrapping_sub(base) as usize, most.abs_diff(least) as usize + 1);
            let groups = self.counts.len() / self.width;
            let mut counts = vec![0; groups * width];
            for group in 0..groups {
                let own = group * self.width + from;
                let new = group * width + to;
                counts[new..new + len].copy_from_slice(&self.counts[own..own + len]);
            }
            self.counts = counts;
        }
        (self.base, self.width) = (base, width);
    }

    /// Removes and returns all counts that are not zero. The values have the type.
    pub(super) fn take(&mut self, of: &DataType) -> Result<Counted> {
        let Near { base, width, counts, .. } = std::mem::take(self);
        let (mut groups, mut values, mut times) = (Vec::new(), Vec::new(), Vec::new());
        for (place, &count) in counts.iter().enumerate().filter(|(_, count)| **count > 0) {
            groups.push((place / width) as u64);
            values.push(base.wrapping_add((place % width) as i64));
            times.push(count);
        }
        let values = values_of(&values, of)?;
        Ok(Counted { groups: groups.into(), values, times: times.into() })
    }

    pub(super) fn size(&self) -> usize {
        self.counts.capacity() * size_of::<u64>()
    }
}

fn bounds_of(values: impl Iterator<Item = i64>) -> Option<(i64, i64)> {
    let (low, high) =
        values.fold((i64::MAX, i64::MIN), |(low, high), value| (low.min(value), high.max(value)));
    (low <= high).then_some((low, high))
}

/// The values as signed integers: which ones are equal does not depend on a sign or a unit.
fn integers(values: &ArrayRef) -> Result<Vec<i64>> {
    macro_rules! of {
        ($of:ty, $kind:expr) => {{
            let data = values.to_data().into_builder().data_type($kind).build()?;
            let values = PrimitiveArray::<$of>::from(data);
            values.values().iter().map(|value| i64::from(*value)).collect()
        }};
    }
    Ok(match values.data_type().primitive_width() {
        Some(1) => of!(Int8Type, DataType::Int8),
        Some(2) => of!(Int16Type, DataType::Int16),
        Some(4) => of!(Int32Type, DataType::Int32),
        Some(8) => of!(Int64Type, DataType::Int64),
        _ => return internal_err!("{} values are not integers", values.data_type()),
    })
}

/// The values of a type by [`integers`].
fn values_of(integers: &[i64], of: &DataType) -> Result<ArrayRef> {
    macro_rules! of {
        ($of:ty, $native:ty) => {
            Arc::new(PrimitiveArray::<$of>::from_iter_values(
                integers.iter().map(|value| *value as $native),
            ))
        };
    }
    let values: ArrayRef = match of.primitive_width() {
        Some(1) => of!(Int8Type, i8),
        Some(2) => of!(Int16Type, i16),
        Some(4) => of!(Int32Type, i32),
        Some(8) => {
            Arc::new(PrimitiveArray::<Int64Type>::from_iter_values(integers.iter().copied()))
        }
        _ => return internal_err!("{of} values are not integers"),
    };
    Ok(make_array(values.to_data().into_builder().data_type(of.clone()).build()?))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]
    use super::*;
    use arrow::array::{AsArray, Date32Array, Int64Array, UInt8Array};
    use arrow::datatypes::{Date32Type, UInt8Type};

    #[test]
    fn the_table_grows_on_both_sides() {
        let mut near = Near::default();
        let mut add = |values: &[i64], groups: &[usize], total| {
            let values: ArrayRef = Arc::new(Int64Array::from(values.to_vec()));
            near.add(&values, groups, None, total).unwrap()
        };
        assert!(add(&[5, 7, 5], &[0, 1, 0], 2));
        assert!(add(&[4, -9, 20], &[1, 0, 2], 3));
        assert!(add(&[-9, -30], &[0, 3], 4));
        assert!(!add(&[i64::MAX, i64::MIN], &[0, 0], 4));
        assert!(!add(&[1 << 14], &[0], 4));
        let Counted { groups, values, times } = near.take(&DataType::Int64).unwrap();
        assert_eq!(groups.values()[..], [0, 0, 1, 1, 2, 3]);
        assert_eq!(values.as_primitive::<Int64Type>().values()[..], [-9, 5, 4, 7, 20, -30]);
        assert_eq!(times.values()[..], [2, 2, 1, 1, 1, 1]);
        assert!(near.take(&DataType::Int64).unwrap().values.is_empty());
    }

    #[test]
    fn values_keep_their_type_and_masked_rows_are_not_counted() {
        let values: ArrayRef = Arc::new(UInt8Array::from(vec![200, 0, 255, 200]));
        let mask = BooleanArray::from(vec![Some(true), None, Some(true), Some(false)]);
        let mut near = Near::default();
        assert!(near.add(&values, &[0; 4], Some(&mask), 1).unwrap());
        let counted = near.take(&DataType::UInt8).unwrap();
        assert_eq!(counted.values.as_primitive::<UInt8Type>().values()[..], [200, 255]);
        assert_eq!(counted.times.values()[..], [1, 1]);
        let days: ArrayRef = Arc::new(Date32Array::from(vec![19_000, 19_001, 19_000]));
        assert!(near.add(&days, &[0; 3], None, 1).unwrap());
        let counted = near.take(&DataType::Date32).unwrap();
        assert_eq!(counted.values.as_primitive::<Date32Type>().values()[..], [19_000, 19_001]);
        assert_eq!(counted.times.values()[..], [2, 1]);
        assert!(!Near::takes(&DataType::Float64) && !Near::takes(&DataType::Utf8));
    }
}
