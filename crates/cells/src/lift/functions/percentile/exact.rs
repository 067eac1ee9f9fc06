//! The values of a whole table, of a frame, or of a group that has an accumulator of its own.
//!
//! Many values are in chunks, which are not moved when more come, and a result is selected among them ([`Selected`]). Those
//! of a frame are sorted, as it is evaluated for each of its rows.

use std::cmp::Ordering;
use std::mem::take;
use std::sync::Arc;

use arrow::array::{Array, ArrayRef, AsArray, PrimitiveArray};
use arrow::compute::cast;
use arrow::datatypes::DataType;
use datafusion::common::{Result, ScalarValue, internal_err};
use datafusion::logical_expr::Accumulator;

use super::collected::Chunks;
use super::selected::{COPIED_SHARE, LARGE, Selected};
use super::{Value, at_weight, neighbours, place_of, values_of};
use crate::lift::functions::discrete::list_of;

/// Maximum values that are inserted into the sorted ones one by one.
const FEW: usize = 16;

/// The values of a group, or those of a frame, which is evaluated for each of its rows.
#[derive(Debug)]
pub(super) struct Exact<V> {
    values: Vec<V>,
    /// Values behind these, as long as none is sorted.
    later: Chunks<V>,
    /// How many of the first values are sorted.
    sorted: usize,
    /// True once it has been evaluated: a group is evaluated once.
    is_frame: bool,
    /// True if equal values count once.
    is_distinct: bool,
    at: f64,
    /// The value between two neighbours, by its part of their distance.
    between: fn(V, V, f64) -> V,
    result: DataType,
}

impl<V: Value> Exact<V> {
    pub(super) fn new(at: f64, between: fn(V, V, f64) -> V, result: DataType) -> Self {
        let (values, later) = (Vec::new(), Chunks::default());
        let (sorted, is_frame, is_distinct) = (0, false, false);
        Self { values, later, sorted, is_frame, is_distinct, at, between, result }
    }

    /// The same; equal values count once if `is_distinct`.
    pub(super) fn with_distinct(self, is_distinct: bool) -> Self {
        Self { is_distinct, ..self }
    }

    fn extend(&mut self, values: &[V]) {
        // Sorted values, and those that are selected by comparisons, have to be in one place.
        let room = match V::HAS_KEYS && !self.is_frame && self.sorted == 0 {
            true => LARGE.saturating_sub(self.values.len()).min(values.len()),
            false => values.len(),
        };
        let (now, later) = values.split_at(room);
        self.values.extend_from_slice(now);
        self.later.extend(later);
    }

    /// Moves the values in chunks behind the others.
    fn join(&mut self) {
        for part in take(&mut self.later).parts() {
            self.values.extend_from_slice(part);
        }
    }

    fn sort(&mut self) {
        self.join();
        if self.values.len() - self.sorted > FEW {
            // The stable sort merges the sorted values with the new ones in linear time.
            self.values.sort_by(V::order);
            self.sorted = self.values.len();
        }
        while self.sorted < self.values.len() {
            let value = self.values[self.sorted];
            let place = self.place_after(|v| v.order(&value) != Ordering::Greater);
            self.values[place..=self.sorted].rotate_right(1);
            self.sorted += 1;
        }
    }

    /// The number of the first sorted values for which the condition is true.
    fn place_after(&self, condition: impl Fn(&V) -> bool) -> usize {
        self.values[..self.sorted].partition_point(condition)
    }

    /// The value at `at · (n - 1)` in the order, between two of them in proportion; NaN is the greatest.
    fn found(&mut self) -> Result<Option<V>> {
        let count = self.values.len() + self.later.parts().map(<[V]>::len).sum::<usize>();
        let Some((low, weight)) = place_of(count, self.at) else { return Ok(None) };
        let found = if self.sorted == count {
            at_place(&self.values, low)
        } else if V::HAS_KEYS && count >= LARGE {
            let parts: Vec<&[V]> =
                [self.values.as_slice()].into_iter().chain(self.later.parts()).collect();
            Selected::default().at(&parts, low)?
        } else {
            neighbours(&mut self.values, low)
        };
        Ok(Some(at_weight(found, weight, self.between)))
    }

    /// As [`Exact::found`], of the different values.
    fn found_among_different(&mut self) -> Option<V> {
        self.sort();
        let mut values = self.values.clone();
        values.dedup_by(|a, b| a.order(b) == Ordering::Equal);
        let (low, weight) = place_of(values.len(), self.at)?;
        Some(at_weight(at_place(&values, low), weight, self.between))
    }
}

/// The value at a place of sorted ones, and the next one.
fn at_place<V: Value>(sorted: &[V], place: usize) -> (V, Option<V>) {
    (sorted[place], sorted.get(place + 1).copied())
}

impl<V: Value> Accumulator for Exact<V> {
    fn update_batch(&mut self, values: &[ArrayRef]) -> Result<()> {
        let Some(values) = values.first() else { return internal_err!("percentile of nothing") };
        let values = values_of::<V>(values)?;
        match values.nulls().filter(|nulls| nulls.null_count() > 0) {
            None => self.extend(values.values()),
            Some(nulls) => {
                for (start, end) in nulls.valid_slices() {
                    self.extend(&values.values()[start..end]);
                }
            }
        }
        Ok(())
    }

    fn retract_batch(&mut self, values: &[ArrayRef]) -> Result<()> {
        let Some(values) = values.first() else { return internal_err!("percentile of nothing") };
        let values = values_of::<V>(values)?;
        self.sort();
        for value in values.iter().flatten() {
            let place = self.place_after(|v| v.order(&value) == Ordering::Less);
            if self.values.get(place).is_none_or(|v| v.order(&value) != Ordering::Equal) {
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
        // A selection would reorder the sorted values.
        if self.is_frame || self.sorted > 0 {
            self.sort();
        }
        let value = match self.is_distinct {
            true => self.found_among_different(),
            false => self.found()?,
        };
        self.is_frame = true;
        V::scalar(value).cast_to(&self.result)
    }

    fn size(&self) -> usize {
        let later = self.later.room + self.later.room / COPIED_SHARE;
        size_of_val(self) + size_of::<V>() * (self.values.capacity() + later)
    }

    fn state(&mut self) -> Result<Vec<ScalarValue>> {
        self.join();
        self.sorted = 0;
        let values = take(&mut self.values);
        let values: ArrayRef = Arc::new(PrimitiveArray::<V::Arrow>::new(values.into(), None));
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

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::panic, reason = "tests")]
    use super::super::{between, mean};
    use super::*;
    use arrow::array::Float64Array;
    use arrow::datatypes::{IntervalMonthDayNano, IntervalUnit, TimeUnit};

    fn batch(values: &[f64]) -> [ArrayRef; 1] {
        [Arc::new(Float64Array::from(values.to_vec()))]
    }

    #[test]
    fn a_frame_keeps_its_values_when_it_is_evaluated() {
        let mut frame = Exact::<f64>::new(0.5, between, DataType::Float64);
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
        let mut frame = Exact::<f64>::new(0.5, between, DataType::Float64);
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
            let mut part = Exact::<f64>::new(0.25, between, DataType::Float64);
            part.update_batch(&batch(values)).unwrap();
            part.state().unwrap().remove(0).to_array().unwrap()
        };
        let mut all = Exact::<f64>::new(0.25, between, DataType::Float64);
        for values in [&[4.0, 1.0][..], &[], &[3.0, 2.0, 8.0]] {
            all.merge_batch(&[state(values)]).unwrap();
        }
        // numpy.quantile([4, 1, 3, 2, 8], 0.25)
        assert_eq!(all.evaluate().unwrap(), ScalarValue::from(2.0));
        let mut none = Exact::<f64>::new(0.25, between, DataType::Float64);
        none.merge_batch(&[state(&[])]).unwrap();
        assert_eq!(none.evaluate().unwrap(), ScalarValue::Float64(None));
    }

    #[test]
    fn many_values_are_sorted_at_once() {
        let values: Vec<f64> = (0..101).map(|i| f64::from(i * 37 % 101)).collect();
        let mut frame = Exact::<f64>::new(0.25, between, DataType::Float64);
        frame.update_batch(&batch(&values)).unwrap();
        assert_eq!(frame.evaluate().unwrap(), ScalarValue::from(25.0));
        assert_eq!(frame.evaluate().unwrap(), ScalarValue::from(25.0));
        frame.retract_batch(&batch(&values[..100])).unwrap();
        assert_eq!(frame.evaluate().unwrap(), ScalarValue::from(values[100]));
    }

    /// Expected values from DuckDB 2.0.
    #[test]
    fn times_and_intervals_lie_between_others() {
        let of = DataType::Timestamp(TimeUnit::Microsecond, None);
        for (at, values, want) in [
            (0.5, vec![2, 1], 2),
            (0.1, vec![25, 0], 3),
            (0.9, vec![0, 15, 1], 12),
            (0.5, vec![-1, -2], -1),
        ] {
            let mut all = Exact::<i64>::new(at, between, of.clone());
            let values = arrow::array::TimestampMicrosecondArray::from(values);
            all.update_batch(&[Arc::new(values)]).unwrap();
            let want = ScalarValue::TimestampMicrosecond(Some(want), None);
            assert_eq!(all.evaluate().unwrap(), want);
        }
        let of = DataType::Interval(IntervalUnit::MonthDayNano);
        let (day, hour) = (|n| IntervalMonthDayNano::new(0, n, 0), 3_600_000_000_000);
        for (values, is_distinct, want) in [
            // 22 days 12:00:00
            (
                vec![IntervalMonthDayNano::new(1, 0, 0), day(15)],
                false,
                IntervalMonthDayNano::new(0, 22, 12 * hour),
            ),
            (vec![day(1), day(2)], false, IntervalMonthDayNano::new(0, 1, 12 * hour)),
            (vec![day(1), day(1), day(1), day(3)], true, day(2)),
        ] {
            let mut all = Exact::<IntervalMonthDayNano>::new(0.5, between, of.clone())
                .with_distinct(is_distinct);
            let values = arrow::array::IntervalMonthDayNanoArray::from(values);
            all.update_batch(&[Arc::new(values)]).unwrap();
            let found = all.evaluate().unwrap();
            let ScalarValue::IntervalMonthDayNano(Some(found)) = found else {
                panic!("{found:?} is no interval")
            };
            assert_eq!(found.order(&want), Ordering::Equal, "{found:?}");
        }
    }

    const MANY: usize = 300_000;

    /// A fourth of the values are infinities, NaN and equal ones.
    fn value(i: usize) -> f64 {
        let others = [f64::INFINITY, f64::NEG_INFINITY, f64::NAN, -0.25, 0.5];
        match i % 4 {
            3 => others[i / 4 % 5],
            _ => (i * 7919 % 100_003) as f64 / 8.0 - 5000.0,
        }
    }

    /// Batches of the values without those whose number is a multiple of 11, which are NULL.
    fn batches(takes: impl Fn(usize) -> bool) -> Vec<[ArrayRef; 1]> {
        let rows: Vec<usize> = (0..MANY).filter(|i| takes(*i)).collect();
        let of = |i: &usize| (!i.is_multiple_of(11)).then(|| value(*i));
        let batch = |rows: &[usize]| -> [ArrayRef; 1] {
            [Arc::new(rows.iter().map(of).collect::<Float64Array>())]
        };
        rows.chunks(8192).map(batch).collect()
    }

    fn is_close(found: &ScalarValue, want: f64) -> bool {
        let ScalarValue::Float64(Some(found)) = found else { return false };
        match want.is_nan() {
            true => found.is_nan(),
            false => *found == want || (found - want).abs() <= 1e-9 * want.abs(),
        }
    }

    /// Expected values from DuckDB 2.0: `quantile_cont(v, at)` of 272,727 values, and of the 204,545 finite ones.
    #[test]
    fn many_values_are_selected_where_they_are() {
        for (at, want, of_finite) in [
            (0.0, f64::NEG_INFINITY, -5000.0),
            (0.1, -4166.75, -3749.95),
            (0.25, -1666.75, -1875.125),
            (0.5, 833.5, 1250.0),
            (0.9, f64::INFINITY, 6250.2),
            (1.0, f64::NAN, 7500.25),
        ] {
            for (values, want) in [(batches(|_| true), want), (batches(|i| i % 4 != 3), of_finite)]
            {
                let mut single = Exact::<f64>::new(at, between, DataType::Float64);
                values.iter().for_each(|batch| single.update_batch(batch).unwrap());
                let first = single.evaluate().unwrap();
                assert!(is_close(&first, want), "{at}: {first:?}");
                // The second time its values are sorted.
                assert!(is_close(&single.evaluate().unwrap(), want), "{at}");
                let mut all = Exact::<f64>::new(at, between, DataType::Float64);
                for some in values.chunks(values.len() / 2) {
                    let mut part = Exact::<f64>::new(at, between, DataType::Float64);
                    some.iter().for_each(|batch| part.update_batch(batch).unwrap());
                    let state = part.state().unwrap().remove(0).to_array().unwrap();
                    all.merge_batch(&[state]).unwrap();
                }
                let merged = all.evaluate().unwrap();
                assert!(is_close(&merged, want), "{at}: {merged:?}");
            }
        }
    }

    /// Expected values from DuckDB 2.0: of an odd number of values, and of an even one.
    #[test]
    fn medians_of_many_values_are_means_of_two() {
        let finite = batches(|i| i % 4 != 3);
        let mut median = Exact::<f64>::new(0.5, mean, DataType::Float64);
        finite.iter().for_each(|batch| median.update_batch(batch).unwrap());
        assert_eq!(median.evaluate().unwrap(), ScalarValue::from(1250.0));
        let mut even = Exact::<f64>::new(0.5, mean, DataType::Float64);
        let values: Vec<f64> = (0..100_000).map(|i| f64::from(i * 7919 % 100_003)).collect();
        even.update_batch(&batch(&values)).unwrap();
        assert_eq!(even.evaluate().unwrap(), ScalarValue::from(49_999.5));
        let mut none = Exact::<f64>::new(0.5, mean, DataType::Float64);
        assert_eq!(none.evaluate().unwrap(), ScalarValue::Float64(None));
    }

    /// Values that leave a frame are found among those that came in chunks.
    #[test]
    fn many_values_may_leave_a_frame() {
        let values: Vec<f64> = (0..100_001).map(|i| f64::from(i * 7919 % 100_003)).collect();
        let mut frame = Exact::<f64>::new(0.5, between, DataType::Float64);
        for some in values.chunks(30_000) {
            frame.update_batch(&batch(some)).unwrap();
        }
        frame.retract_batch(&batch(&values[..3])).unwrap();
        // numpy.median(values[3:])
        assert_eq!(frame.evaluate().unwrap(), ScalarValue::from(50_001.5));
    }

    /// Expected values from DuckDB 2.0.
    #[test]
    fn many_times_are_selected() {
        for (at, want) in [(0.5, 50_000), (0.9, 90_002), (0.123, 12_300)] {
            let mut all =
                Exact::<i64>::new(at, between, DataType::Timestamp(TimeUnit::Microsecond, None));
            let times: Vec<i64> = (0..200_001).map(|i| i * 7919 % 100_003).collect();
            for some in times.chunks(8192) {
                let some = arrow::array::TimestampMicrosecondArray::from(some.to_vec());
                all.update_batch(&[Arc::new(some)]).unwrap();
            }
            let want = ScalarValue::TimestampMicrosecond(Some(want), None);
            assert_eq!(all.evaluate().unwrap(), want, "{at}");
        }
    }
}
