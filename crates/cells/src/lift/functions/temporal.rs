//! Sums and means of times, of spans and of intervals, exact in 128 bits. Dates are times here. A mean of times is the
//! nearest one in their unit.
//!
//! A mean of intervals is that of their months, whose rest is days of 30 in a month, of their days, whose rest is hours,
//! and of their time, to the nearest microsecond.

use std::sync::Arc;

use arrow::array::{Array, ArrayRef, AsArray};
use arrow::compute::cast;
use arrow::datatypes::{
    DataType, Decimal128Type, Field, FieldRef, Int64Type, IntervalMonthDayNano,
    IntervalMonthDayNanoType, IntervalUnit, TimeUnit,
};
use datafusion::common::types::{NativeType, logical_date};
use datafusion::common::{DataFusionError, Result, ScalarValue, internal_err, not_impl_err};
use datafusion::logical_expr::function::AccumulatorArgs;
use datafusion::logical_expr::{
    Accumulator, Coercion, Signature, TypeSignature, TypeSignatureClass,
};
use tessera_frontend::error::Error;

const DAY_NS: i128 = 86_400_000_000_000;

/// A total of any number of 64-bit values that a query could read.
const STATE: DataType = DataType::Decimal128(38, 0);

/// True for times, spans and intervals.
pub(super) fn is_temporal(of: &DataType) -> bool {
    matches!(
        of,
        DataType::Timestamp(..)
            | DataType::Duration(_)
            | DataType::Interval(IntervalUnit::MonthDayNano)
    )
}

/// The signature of an aggregate that takes times, spans and intervals too, before other arguments.
pub(super) fn with_times(inner: &Signature, others: &[Coercion]) -> Signature {
    let mut all = match &inner.type_signature {
        TypeSignature::OneOf(all) => all.clone(),
        one => vec![one.clone()],
    };
    let times = [
        Coercion::new_implicit(
            TypeSignatureClass::Timestamp,
            vec![TypeSignatureClass::Native(logical_date())],
            NativeType::Timestamp(TimeUnit::Microsecond, None),
        ),
        Coercion::new_exact(TypeSignatureClass::Duration),
        Coercion::new_exact(TypeSignatureClass::Interval),
    ];
    for time in times {
        let args = std::iter::once(time).chain(others.iter().cloned());
        all.push(TypeSignature::Coercible(args.collect()));
    }
    Signature::one_of(all, inner.volatility)
}

pub(super) fn state_fields() -> Vec<FieldRef> {
    let state = |name, of| Arc::new(Field::new(name, of, true));
    vec![
        state("months", STATE),
        state("days", STATE),
        state("total", STATE),
        state("count", DataType::Int64),
    ]
}

/// The sum or the mean of times, spans or intervals; `None` for other values.
pub(super) fn total(args: &AccumulatorArgs<'_>, is_mean: bool) -> Result<Option<Total>> {
    let of = args.return_type();
    if !is_temporal(of) {
        return Ok(None);
    }
    if args.is_distinct {
        return not_impl_err!(
            "DISTINCT in a sum or mean of times beside other aggregates; compute it in a subquery"
        );
    }
    Ok(Some(Total { is_mean, of: of.clone(), parts: [0; 3], count: 0 }))
}

#[derive(Debug)]
pub(super) struct Total {
    is_mean: bool,
    of: DataType,
    /// Months, days, and the rest in the unit of the values.
    parts: [i128; 3],
    count: i64,
}

impl Total {
    fn add(&mut self, values: &[ArrayRef], sign: i128) -> Result<()> {
        let Some(values) = values.first() else { return internal_err!("sum of nothing") };
        if let Some(values) = values.as_primitive_opt::<IntervalMonthDayNanoType>() {
            for value in values.iter().flatten() {
                self.parts[0] += sign * i128::from(value.months);
                self.parts[1] += sign * i128::from(value.days);
                self.parts[2] += sign * i128::from(value.nanoseconds);
            }
        } else {
            let values = cast(values, &DataType::Int64)?;
            let values = values.as_primitive::<Int64Type>().iter().flatten();
            self.parts[2] += sign * values.map(i128::from).sum::<i128>();
        }
        self.count += (sign as i64) * (values.len() - values.null_count()) as i64;
        Ok(())
    }

    /// Months, days, and the rest of the result.
    fn result(&self) -> [i128; 3] {
        let ([months, days, rest], count) = (self.parts, i128::from(self.count));
        match self.of {
            _ if !self.is_mean => self.parts,
            DataType::Interval(_) => {
                let days = days + months % count * 30;
                let ns = rest + days % count * DAY_NS;
                [months / count, days / count, nearest(ns, count * 1000) * 1000]
            }
            // Ties go to the value nearer to 1970, as in DuckDB.
            _ if 2 * (rest % count).abs() > count => [0, 0, rest / count + rest.signum()],
            _ => [0, 0, rest / count],
        }
    }
}

/// The quotient by a positive number, rounded half to even.
fn nearest(number: i128, by: i128) -> i128 {
    let (below, rest) = (number.div_euclid(by), number.rem_euclid(by));
    let is_above = 2 * rest > by || (2 * rest == by && below % 2 != 0);
    below + i128::from(is_above)
}

fn too_long() -> DataFusionError {
    DataFusionError::External(Box::new(Error::Cells {
        code: "integer_overflow",
        message: "sum: the total of the intervals is too long: its months and days have 32 bits, its time 64 bits".to_string(),
        position: None,
        hint: Some("sum `epoch(x)`, the seconds".to_string()),
    }))
}

impl Accumulator for Total {
    fn update_batch(&mut self, values: &[ArrayRef]) -> Result<()> {
        self.add(values, 1)
    }

    fn retract_batch(&mut self, values: &[ArrayRef]) -> Result<()> {
        self.add(values, -1)
    }

    fn supports_retract_batch(&self) -> bool {
        true
    }

    fn evaluate(&mut self) -> Result<ScalarValue> {
        if self.count == 0 {
            return ScalarValue::try_from(&self.of);
        }
        let [months, days, rest] = self.result();
        let rest = i64::try_from(rest).map_err(|_| too_long())?;
        if !matches!(self.of, DataType::Interval(_)) {
            return ScalarValue::Int64(Some(rest)).cast_to(&self.of);
        }
        let narrow = |part: i128| i32::try_from(part).map_err(|_| too_long());
        let sum = IntervalMonthDayNano::new(narrow(months)?, narrow(days)?, rest);
        Ok(ScalarValue::IntervalMonthDayNano(Some(sum)))
    }

    fn size(&self) -> usize {
        size_of_val(self)
    }

    fn state(&mut self) -> Result<Vec<ScalarValue>> {
        let parts = self.parts.map(|part| ScalarValue::Decimal128(Some(part), 38, 0));
        Ok(parts.into_iter().chain([ScalarValue::Int64(Some(self.count))]).collect())
    }

    fn merge_batch(&mut self, states: &[ArrayRef]) -> Result<()> {
        let [parts @ .., counts] = states else { return internal_err!("sum: a broken state") };
        for (sum, parts) in self.parts.iter_mut().zip(parts) {
            *sum += parts.as_primitive::<Decimal128Type>().iter().flatten().sum::<i128>();
        }
        self.count += counts.as_primitive::<Int64Type>().iter().flatten().sum::<i64>();
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]
    use super::*;
    use arrow::array::{IntervalMonthDayNanoArray, TimestampMicrosecondArray};

    fn total_of(of: DataType, is_mean: bool) -> Total {
        Total { is_mean, of, parts: [0; 3], count: 0 }
    }

    #[test]
    fn means_of_times_are_the_nearest_ones() {
        let of = DataType::Timestamp(TimeUnit::Microsecond, None);
        for (values, want) in [
            (vec![Some(10), None, Some(11)], 10),
            (vec![Some(-10), Some(-11)], -10),
            (vec![Some(0), Some(1), Some(1)], 1),
        ] {
            let values: ArrayRef = Arc::new(TimestampMicrosecondArray::from(values));
            let mut mean = total_of(of.clone(), true);
            assert!(mean.evaluate().unwrap().is_null());
            mean.update_batch(&[Arc::clone(&values)]).unwrap();
            let mut merged = total_of(of.clone(), true);
            let states: Vec<ArrayRef> =
                mean.state().unwrap().iter().map(|part| part.to_array().unwrap()).collect();
            merged.merge_batch(&states).unwrap();
            for mean in [&mut mean, &mut merged] {
                let want = ScalarValue::TimestampMicrosecond(Some(want), None);
                assert_eq!(mean.evaluate().unwrap(), want);
                mean.retract_batch(&[Arc::clone(&values)]).unwrap();
                assert!(mean.evaluate().unwrap().is_null());
            }
        }
    }

    #[test]
    fn sums_and_means_of_intervals_keep_their_parts() {
        let hour = 3_600_000_000_000;
        let all = [(1, 0, 0), (0, 2, 0), (0, 0, 3 * hour)];
        let all = all.map(|(m, d, ns)| IntervalMonthDayNano::new(m, d, ns));
        let values: ArrayRef = Arc::new(IntervalMonthDayNanoArray::from(all.to_vec()));
        let of = DataType::Interval(IntervalUnit::MonthDayNano);
        // 10 days 17:00:00 in DuckDB
        for (is_mean, want) in [(false, (1, 2, 3 * hour)), (true, (0, 10, 17 * hour))] {
            let mut total = total_of(of.clone(), is_mean);
            total.update_batch(&[Arc::clone(&values)]).unwrap();
            let (months, days, ns) = want;
            let want = IntervalMonthDayNano::new(months, days, ns);
            let found = total.evaluate().unwrap();
            assert_eq!(found, ScalarValue::IntervalMonthDayNano(Some(want)));
        }
        let mut long = total_of(of, false);
        let longest = IntervalMonthDayNano::new(i32::MAX, 0, 0);
        long.update_batch(&[Arc::new(IntervalMonthDayNanoArray::from(vec![longest; 2]))]).unwrap();
        assert!(long.evaluate().is_err());
        assert_eq!([nearest(3, 2), nearest(1, 2), nearest(-1, 3)], [2, 0, 0]);
    }
}
