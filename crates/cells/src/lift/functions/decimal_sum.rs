//! `sum` of decimals with the most digits: a total with more is an error.
//!
//! DataFusion adds without a check. A sum of `DECIMAL(28, s)` or less has room for ten more digits, and its total fits.

use std::sync::Arc;

use arrow::array::{Array, ArrayRef, AsArray, BooleanArray, Decimal128Array};
use arrow::compute::nullif;
use arrow::datatypes::{DECIMAL128_MAX_PRECISION, DataType, Decimal128Type, i256};
use datafusion::common::{DataFusionError, Result, ScalarValue, internal_err};
use datafusion::logical_expr::{Accumulator, EmitTo, GroupsAccumulator};
use datafusion::physical_expr::NullState;

use super::super::decimals::{is_within, overflow};

/// True for results that may have too many digits.
pub(super) fn is_ours(result: &DataType, distinct: bool) -> bool {
    !distinct && matches!(result, DataType::Decimal128(DECIMAL128_MAX_PRECISION, _))
}

fn too_large() -> DataFusionError {
    DataFusionError::External(Box::new(overflow("sum")))
}

/// The total, unless it has too many digits; `None` if it has too many bits.
pub(crate) fn checked(total: Option<i128>) -> Result<i128> {
    total.filter(|total| is_within(*total)).ok_or_else(too_large)
}

fn decimals(values: &[ArrayRef]) -> Result<&Decimal128Array> {
    match values.first().and_then(|values| values.as_primitive_opt::<Decimal128Type>()) {
        Some(values) => Ok(values),
        None => internal_err!("sum of other values than decimals"),
    }
}

/// An exact total, which may have more than 128 bits while numbers are added and subtracted.
#[derive(Debug, Default)]
pub(crate) struct WideTotal {
    low: i128,
    /// Multiples of 2^128.
    high: i64,
}

impl WideTotal {
    pub(crate) fn add(&mut self, value: i128) {
        let (low, is_over) = self.low.overflowing_add(value);
        self.low = low;
        if is_over {
            self.high += if value < 0 { -1 } else { 1 };
        }
    }

    pub(crate) fn subtract(&mut self, value: i128) {
        let (low, is_over) = self.low.overflowing_sub(value);
        self.low = low;
        if is_over {
            self.high -= if value < 0 { -1 } else { 1 };
        }
    }

    /// `None` if it has more than 128 bits.
    pub(crate) fn value(&self) -> Option<i128> {
        (self.high == 0).then_some(self.low)
    }

    /// The total times a factor, divided by `count` and rounded towards zero; `None` if it has more than 128 bits.
    pub(crate) fn mean(&self, count: usize, factor: i128) -> Option<i128> {
        let count = i128::try_from(count).ok()?;
        if let Some(total) = self.value().and_then(|total| total.checked_mul(factor)) {
            return total.checked_div(count);
        }
        // The sign of the lower half belongs to the upper one.
        let upper = i128::from(self.high) + (self.low >> 127);
        let total = i256::from_parts(self.low as u128, upper);
        let mean =
            total.checked_mul(i256::from_i128(factor))?.checked_div(i256::from_i128(count))?;
        mean.to_i128()
    }
}

/// The sum of all values, or of those of a moving frame.
#[derive(Debug)]
pub(super) struct Total {
    total: WideTotal,
    count: i64,
    result: DataType,
}

impl Total {
    pub(super) fn new(result: DataType) -> Self {
        Self { total: WideTotal::default(), count: 0, result }
    }
}

impl Accumulator for Total {
    fn update_batch(&mut self, values: &[ArrayRef]) -> Result<()> {
        let values = decimals(values)?;
        for value in values.iter().flatten() {
            self.total.add(value);
        }
        self.count += (values.len() - values.null_count()) as i64;
        Ok(())
    }

    fn retract_batch(&mut self, values: &[ArrayRef]) -> Result<()> {
        let values = decimals(values)?;
        for value in values.iter().flatten() {
            self.total.subtract(value);
        }
        self.count -= (values.len() - values.null_count()) as i64;
        Ok(())
    }

    fn supports_retract_batch(&self) -> bool {
        true
    }

    fn evaluate(&mut self) -> Result<ScalarValue> {
        let total = checked(self.total.value())?;
        let total = (self.count != 0).then_some(total);
        ScalarValue::new_primitive::<Decimal128Type>(total, &self.result)
    }

    fn size(&self) -> usize {
        size_of_val(self)
    }

    fn state(&mut self) -> Result<Vec<ScalarValue>> {
        let total = self.total.value().ok_or_else(too_large)?;
        let total = (self.count != 0).then_some(total);
        Ok(vec![ScalarValue::new_primitive::<Decimal128Type>(total, &self.result)?])
    }

    fn merge_batch(&mut self, states: &[ArrayRef]) -> Result<()> {
        self.update_batch(states)
    }
}

#[derive(Debug)]
pub(super) struct Groups {
    totals: Vec<i128>,
    seen: NullState,
    result: DataType,
}

impl Groups {
    pub(super) fn new(result: DataType) -> Self {
        Self { totals: Vec::new(), seen: NullState::new(), result }
    }

    fn array(&mut self, totals: Vec<i128>, emit: EmitTo) -> Result<ArrayRef> {
        let array = Decimal128Array::try_new(totals.into(), self.seen.build(emit))?;
        Ok(Arc::new(array.with_data_type(self.result.clone())))
    }
}

/// The values, with NULL in the rows that a FILTER excludes.
pub(super) fn kept(values: &dyn Array, filter: Option<&BooleanArray>) -> Result<ArrayRef> {
    let Some(filter) = filter else { return Ok(values.slice(0, values.len())) };
    let out: BooleanArray = filter.iter().map(|keep| Some(keep != Some(true))).collect();
    Ok(nullif(values, &out)?)
}

impl GroupsAccumulator for Groups {
    fn update_batch(
        &mut self,
        values: &[ArrayRef],
        groups: &[usize],
        filter: Option<&BooleanArray>,
        total: usize,
    ) -> Result<()> {
        let values = decimals(values)?;
        self.totals.resize(total, 0);
        let (totals, mut is_over) = (&mut self.totals, false);
        // No branch for each value.
        self.seen.accumulate(groups, values, filter, total, |group, value| {
            let (sum, over) = totals[group].overflowing_add(value);
            totals[group] = sum;
            is_over |= over;
        });
        if is_over { Err(too_large()) } else { Ok(()) }
    }

    fn evaluate(&mut self, emit: EmitTo) -> Result<ArrayRef> {
        let totals = emit.take_needed(&mut self.totals);
        match totals.iter().all(|total| is_within(*total)) {
            true => self.array(totals, emit),
            false => Err(too_large()),
        }
    }

    fn state(&mut self, emit: EmitTo) -> Result<Vec<ArrayRef>> {
        let totals = emit.take_needed(&mut self.totals);
        Ok(vec![self.array(totals, emit)?])
    }

    fn merge_batch(&mut self, values: &[ArrayRef], groups: &[usize], total: usize) -> Result<()> {
        self.update_batch(values, groups, None, total)
    }

    fn convert_to_state(
        &self,
        values: &[ArrayRef],
        filter: Option<&BooleanArray>,
    ) -> Result<Vec<ArrayRef>> {
        let values = decimals(values)?;
        let kept = kept(values, filter)?.as_primitive::<Decimal128Type>().clone();
        Ok(vec![Arc::new(kept.with_data_type(self.result.clone()))])
    }

    fn size(&self) -> usize {
        self.totals.capacity() * size_of::<i128>() + self.seen.size()
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]
    use super::*;

    const RESULT: DataType = DataType::Decimal128(38, 2);

    fn array(values: &[Option<i128>]) -> ArrayRef {
        let values: Decimal128Array = values.iter().copied().collect();
        Arc::new(values.with_precision_and_scale(38, 2).unwrap())
    }

    /// More than 38 digits as twice this.
    const LARGE: i128 = 60_000_000_000_000_000_000_000_000_000_000_000_000;

    #[test]
    fn totals_with_too_many_digits_are_errors() {
        let mut total = Total::new(RESULT);
        total.update_batch(&[array(&[Some(LARGE), None, Some(7)])]).unwrap();
        let value = |value| ScalarValue::Decimal128(value, 38, 2);
        assert_eq!(total.evaluate().unwrap(), value(Some(LARGE + 7)));
        total.update_batch(&[array(&[Some(LARGE)])]).unwrap();
        assert!(total.evaluate().is_err());
        // Beyond 128 bits.
        total.update_batch(&[array(&[Some(LARGE)])]).unwrap();
        assert!(total.evaluate().is_err());
        assert!(total.state().is_err());
        total.retract_batch(&[array(&[Some(LARGE), Some(LARGE), Some(7)])]).unwrap();
        assert_eq!(total.evaluate().unwrap(), value(Some(LARGE)));
        let mut below = Total::new(RESULT);
        below.update_batch(&[array(&[Some(-LARGE), Some(-LARGE), Some(-LARGE)])]).unwrap();
        assert!(below.evaluate().is_err());
        below.retract_batch(&[array(&[Some(-LARGE), Some(-LARGE)])]).unwrap();
        assert_eq!(below.evaluate().unwrap(), value(Some(-LARGE)));
        let mut moving = Total::new(RESULT);
        moving.update_batch(&[array(&[Some(LARGE), Some(1)])]).unwrap();
        moving.retract_batch(&[array(&[Some(LARGE)])]).unwrap();
        assert_eq!(moving.evaluate().unwrap(), value(Some(1)));
        moving.retract_batch(&[array(&[Some(1)])]).unwrap();
        assert_eq!(moving.evaluate().unwrap(), value(None));
    }

    #[test]
    fn means_of_totals_with_more_than_128_bits_are_exact() {
        let mut total = WideTotal::default();
        assert_eq!(total.mean(0, 10), None);
        (0..3).for_each(|_| total.add(-LARGE));
        assert_eq!((total.value(), total.mean(3, 1)), (None, Some(-LARGE)));
        assert_eq!(total.mean(7, 2), Some(-51_428_571_428_571_428_571_428_571_428_571_428_571));
        total.subtract(-LARGE);
        total.subtract(-LARGE);
        assert_eq!(total.value(), Some(-LARGE));
        assert_eq!(total.mean(7, 10), Some(-85_714_285_714_285_714_285_714_285_714_285_714_285));
        assert_eq!(total.mean(7, 100), None);
    }

    #[test]
    fn groups_with_too_many_digits_are_errors() {
        let mut groups = Groups::new(RESULT);
        let values = [array(&[Some(1), None, Some(-3), Some(LARGE)])];
        groups.update_batch(&values, &[0, 1, 0, 2], None, 3).unwrap();
        let state = groups.state(EmitTo::All).unwrap();
        let mut merged = Groups::new(RESULT);
        merged.merge_batch(&state, &[2, 1, 0], 3).unwrap();
        let filter = BooleanArray::from(vec![Some(true), Some(true), Some(false), None]);
        let rows = merged.convert_to_state(&values, Some(&filter)).unwrap();
        merged.merge_batch(&rows, &[2, 1, 0, 0], 3).unwrap();
        let first = merged.evaluate(EmitTo::First(1)).unwrap();
        assert_eq!(&first, &array(&[Some(LARGE)]));
        assert_eq!(&merged.evaluate(EmitTo::All).unwrap(), &array(&[None, Some(-1)]));
        let large = [array(&[Some(LARGE)])];
        let mut groups = Groups::new(RESULT);
        groups.update_batch(&large, &[0], None, 1).unwrap();
        groups.update_batch(&large, &[0], None, 1).unwrap();
        assert!(groups.update_batch(&large, &[0], None, 1).is_err());
        let mut groups = Groups::new(RESULT);
        groups.update_batch(&large, &[0], None, 1).unwrap();
        groups.update_batch(&large, &[0], None, 1).unwrap();
        assert!(groups.evaluate(EmitTo::All).is_err());
    }
}
