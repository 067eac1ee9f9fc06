//! `percentile_cont` with the exact weight (DataFusion's rounds the weight of the upper value to six digits). It
//! merges all states, where DataFusion's (55.2) merges only the first of several.

use std::cmp::Ordering;
use std::sync::Arc;

use arrow::array::{Array, ArrayRef, AsArray, Float64Array, RecordBatch};
use arrow::compute::cast;
use arrow::datatypes::{DataType, Float64Type};
use datafusion::common::{Result, ScalarValue, internal_err};
use datafusion::logical_expr::function::{AccumulatorArgs, AggregateFunctionSimplification};
use datafusion::logical_expr::{Accumulator, AggregateUDF, AggregateUDFImpl, ColumnarValue};

use super::discrete::list_of;
use super::inner::of_inner;

/// The most values that are put into the sorted ones one by one.
const FEW: usize = 16;

/// DataFusion's `percentile_cont`, except for the interpolation of floats.
#[derive(Debug, PartialEq, Eq, Hash)]
pub(super) struct Percentile {
    inner: Arc<AggregateUDF>,
}

impl Percentile {
    pub(super) fn new(inner: Arc<AggregateUDF>) -> Self {
        Self { inner }
    }
}

impl AggregateUDFImpl for Percentile {
    of_inner!(name, documentation, aliases, signature, coerce_types, return_type, state_fields);

    /// Of groups and of frames.
    fn accumulator(&self, args: AccumulatorArgs) -> Result<Box<dyn Accumulator>> {
        let exact = exact(&args)?;
        // Rejects a percentile that is not from 0 to 1.
        let inner = self.inner.accumulator(args)?;
        match exact {
            Some(exact) => Ok(Box::new(exact)),
            None => Ok(inner),
        }
    }

    fn simplify(&self) -> Option<AggregateFunctionSimplification> {
        self.inner.simplify()
    }

    fn supports_within_group_clause(&self) -> bool {
        self.inner.supports_within_group_clause()
    }
}

/// The accumulator for floats; `None` for what is left to DataFusion.
fn exact(args: &AccumulatorArgs) -> Result<Option<Exact>> {
    let has_values = args.expr_fields.first().is_some_and(|field| !field.data_type().is_null());
    if args.is_distinct || !has_values || !args.return_type().is_floating() {
        return Ok(None);
    }
    Ok(percentile(args)?.map(|at| Exact::new(at, args.return_type().clone())))
}

/// The percentile in ascending order; `None` if it is not a number, which is rejected elsewhere.
fn percentile(args: &AccumulatorArgs) -> Result<Option<f64>> {
    let descending = args.order_bys.first().is_some_and(|sort| sort.options.descending);
    Ok(part_of(args)?.map(|at| if descending { 1.0 - at } else { at }))
}

/// The second argument; `None` if it is not a number.
pub(super) fn part_of(args: &AccumulatorArgs) -> Result<Option<f64>> {
    let Some(expr) = args.exprs.get(1) else { return Ok(None) };
    let nothing = RecordBatch::new_empty(Arc::new(args.schema.clone()));
    let ColumnarValue::Scalar(value) = expr.evaluate(&nothing)? else { return Ok(None) };
    Ok(match value.cast_to(&DataType::Float64)? {
        ScalarValue::Float64(part) => part,
        _ => None,
    })
}

/// The values of a group, or those of a frame, which is evaluated for each of its rows.
#[derive(Debug)]
struct Exact {
    values: Vec<f64>,
    /// How many of the first values are sorted.
    sorted: usize,
    /// True once it has been evaluated: a group is evaluated once.
    is_frame: bool,
    at: f64,
    result: DataType,
}

impl Exact {
    fn new(at: f64, result: DataType) -> Self {
        Self { values: Vec::new(), sorted: 0, is_frame: false, at, result }
    }

    fn sort(&mut self) {
        if self.values.len() - self.sorted > FEW {
            // The stable sort merges the sorted values with the new ones in linear time.
            self.values.sort_by(f64::total_cmp);
            self.sorted = self.values.len();
        }
        while self.sorted < self.values.len() {
            let value = self.values[self.sorted];
            let place = self.place_after(|v| v.total_cmp(&value) != Ordering::Greater);
            self.values[place..=self.sorted].rotate_right(1);
            self.sorted += 1;
        }
    }

    /// The number of the first sorted values for which the condition is true.
    fn place_after(&self, condition: impl Fn(&f64) -> bool) -> usize {
        self.values[..self.sorted].partition_point(condition)
    }
}

impl Accumulator for Exact {
    fn update_batch(&mut self, values: &[ArrayRef]) -> Result<()> {
        let Some(values) = values.first() else { return internal_err!("percentile of nothing") };
        let values = cast(values, &DataType::Float64)?;
        let values = values.as_primitive::<Float64Type>();
        match values.null_count() {
            0 => self.values.extend_from_slice(values.values()),
            _ => self.values.extend(values.iter().flatten()),
        }
        Ok(())
    }

    fn retract_batch(&mut self, values: &[ArrayRef]) -> Result<()> {
        let Some(values) = values.first() else { return internal_err!("percentile of nothing") };
        let values = cast(values, &DataType::Float64)?;
        self.sort();
        for value in values.as_primitive::<Float64Type>().iter().flatten() {
            let place = self.place_after(|v| v.total_cmp(&value) == Ordering::Less);
            if self.values.get(place).is_none_or(|v| v.total_cmp(&value) != Ordering::Equal) {
                return internal_err!("a value leaves a frame that did not come");
            }
            self.values.remove(place);
            self.sorted -= 1;
        }
        Ok(())
    }

    fn supports_retract_batch(&self) -> bool {
        true
    }

    fn evaluate(&mut self) -> Result<ScalarValue> {
        // A selection would put values among the sorted ones.
        if self.is_frame || self.sorted > 0 {
            self.sort();
        }
        self.is_frame = true;
        let is_sorted = self.sorted == self.values.len();
        let value = ScalarValue::Float64(interpolated(&mut self.values, is_sorted, self.at));
        value.cast_to(&self.result)
    }

    fn size(&self) -> usize {
        size_of_val(self) + size_of::<f64>() * self.values.capacity()
    }

    fn state(&mut self) -> Result<Vec<ScalarValue>> {
        self.sorted = 0;
        let values: ArrayRef = Arc::new(Float64Array::from(std::mem::take(&mut self.values)));
        Ok(vec![list_of(cast(&values, &self.result)?)?])
    }

    fn merge_batch(&mut self, states: &[ArrayRef]) -> Result<()> {
        let [lists] = states else { return internal_err!("percentile_cont: a broken state") };
        for values in lists.as_list::<i32>().iter().flatten() {
            self.update_batch(&[values])?;
        }
        Ok(())
    }
}

/// The value at `at · (n - 1)` of the sorted values, between two of them in proportion; NaN is the greatest.
fn interpolated(values: &mut [f64], is_sorted: bool, at: f64) -> Option<f64> {
    let last = values.len().checked_sub(1)?;
    let place = at.clamp(0.0, 1.0) * last as f64;
    let low = place.floor() as usize;
    let weight = place - low as f64;
    let (lower, upper) = match is_sorted {
        true => (values[low], values.get(low + 1).copied()),
        false => {
            let (_, &mut lower, above) = values.select_nth_unstable_by(low, f64::total_cmp);
            (lower, above.iter().copied().min_by(f64::total_cmp))
        }
    };
    Some(upper.map_or(lower, |upper| between(lower, upper, weight)))
}

/// The value between two neighbours at this part of their distance.
pub(crate) fn between(lower: f64, upper: f64, weight: f64) -> f64 {
    if weight > 0.0 && upper != lower { lower + (upper - lower) * weight } else { lower }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]
    use super::*;

    fn batch(values: &[f64]) -> [ArrayRef; 1] {
        [Arc::new(Float64Array::from(values.to_vec()))]
    }

    #[test]
    fn a_frame_keeps_its_values_when_it_is_evaluated() {
        let mut frame = Exact::new(0.5, DataType::Float64);
        let mut medians = Vec::new();
        for value in [1.0, 3.0, 5.0, 9.0] {
            frame.update_batch(&batch(&[value])).unwrap();
            medians.push(frame.evaluate().unwrap());
        }
        // numpy.median([1]), numpy.median([1, 3]), …
        assert_eq!(medians, [1.0, 2.0, 3.0, 4.0].map(ScalarValue::from));
        frame.retract_batch(&batch(&[1.0])).unwrap();
        assert_eq!(frame.evaluate().unwrap(), ScalarValue::from(5.0));
        assert!(frame.retract_batch(&batch(&[2.0])).is_err());
    }

    #[test]
    fn values_may_leave_before_the_first_evaluation() {
        let mut frame = Exact::new(0.5, DataType::Float64);
        frame.update_batch(&batch(&[7.0, 1.0, 9.0])).unwrap();
        frame.retract_batch(&batch(&[7.0])).unwrap();
        frame.update_batch(&batch(&[0.0, -3.0])).unwrap();
        // numpy.median([1, 9, 0, -3])
        assert_eq!(frame.evaluate().unwrap(), ScalarValue::from(0.5));
        frame.retract_batch(&batch(&[1.0, 9.0])).unwrap();
        assert_eq!(frame.evaluate().unwrap(), ScalarValue::from(-1.5));
    }

    #[test]
    fn states_of_several_workers_are_merged() {
        let state = |values: &[f64]| {
            let mut part = Exact::new(0.25, DataType::Float64);
            part.update_batch(&batch(values)).unwrap();
            part.state().unwrap().remove(0).to_array().unwrap()
        };
        let mut all = Exact::new(0.25, DataType::Float64);
        for values in [&[4.0, 1.0][..], &[], &[3.0, 2.0, 8.0]] {
            all.merge_batch(&[state(values)]).unwrap();
        }
        // numpy.quantile([4, 1, 3, 2, 8], 0.25)
        assert_eq!(all.evaluate().unwrap(), ScalarValue::from(2.0));
        let mut none = Exact::new(0.25, DataType::Float64);
        none.merge_batch(&[state(&[])]).unwrap();
        assert_eq!(none.evaluate().unwrap(), ScalarValue::Float64(None));
    }

    #[test]
    fn many_values_are_sorted_at_once() {
        let values: Vec<f64> = (0..101).map(|i| f64::from(i * 37 % 101)).collect();
        let mut frame = Exact::new(0.25, DataType::Float64);
        frame.update_batch(&batch(&values)).unwrap();
        assert_eq!(frame.evaluate().unwrap(), ScalarValue::from(25.0));
        assert_eq!(frame.evaluate().unwrap(), ScalarValue::from(25.0));
        frame.retract_batch(&batch(&values[..100])).unwrap();
        assert_eq!(frame.evaluate().unwrap(), ScalarValue::from(values[100]));
    }
}
