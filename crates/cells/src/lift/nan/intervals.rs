//! Intervals compare by their length: a month is 30 days, and a day 24 hours, as in PostgreSQL and DuckDB.
//!
//! Arrow compares months, then days, then nanoseconds.

use std::sync::Arc;

use arrow::array::{ArrayRef, AsArray, Decimal128Array};
use arrow::datatypes::{DataType, IntervalMonthDayNanoType, IntervalUnit};
use datafusion::common::{Result, internal_err};
use datafusion::logical_expr::{
    ColumnarValue, ScalarFunctionArgs, ScalarUDF, ScalarUDFImpl, Signature, Volatility,
};

use super::super::functions::scalar;

const NANOSECONDS_OF_DAY: i128 = 86_400_000_000_000;
/// An integer: the longest interval has 10²⁵ nanoseconds.
const KIND: DataType = DataType::Decimal128(38, 0);

/// `tessera_length(i)`: the nanoseconds of an interval.
#[derive(Debug, PartialEq, Eq, Hash)]
pub(super) struct Length {
    signature: Signature,
}

impl Length {
    pub(super) fn udf() -> ScalarUDF {
        ScalarUDF::new_from_impl(Length { signature: Signature::any(1, Volatility::Immutable) })
    }
}

pub(super) fn is_interval(kind: &DataType) -> bool {
    matches!(kind, DataType::Interval(IntervalUnit::MonthDayNano))
}

impl ScalarUDFImpl for Length {
    scalar!(name "tessera_length", signature, returns KIND);

    fn invoke_with_args(&self, args: ScalarFunctionArgs) -> Result<ColumnarValue> {
        let [value] = args.args.as_slice() else {
            return internal_err!("tessera_length takes one argument");
        };
        let array = value.to_array(args.number_rows)?;
        if !is_interval(array.data_type()) {
            return internal_err!("tessera_length takes intervals, not {}", array.data_type());
        }
        let intervals = array.as_primitive::<IntervalMonthDayNanoType>();
        let lengths = intervals.iter().map(|of| {
            of.map(|of| {
                let days = i128::from(of.months) * 30 + i128::from(of.days);
                days * NANOSECONDS_OF_DAY + i128::from(of.nanoseconds)
            })
        });
        let lengths: Decimal128Array = lengths.collect();
        let lengths: ArrayRef = Arc::new(lengths.with_precision_and_scale(38, 0)?);
        Ok(ColumnarValue::Array(lengths))
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]
    use super::*;
    use arrow::array::IntervalMonthDayNanoArray;
    use arrow::datatypes::{Decimal128Type, Field, IntervalMonthDayNano};

    #[test]
    fn a_month_is_30_days_and_a_day_24_hours() {
        let of = |months, days, hours: i64| {
            Some(IntervalMonthDayNano::new(months, days, hours * 3_600_000_000_000))
        };
        let all = vec![of(1, 0, 0), of(0, 30, 0), of(0, 29, 24), of(0, 0, -1), None];
        let array: ArrayRef = Arc::new(IntervalMonthDayNanoArray::from(all));
        let args = ScalarFunctionArgs {
            arg_fields: vec![Arc::new(Field::new("x", array.data_type().clone(), true))],
            number_rows: array.len(),
            args: vec![ColumnarValue::Array(array)],
            return_field: Arc::new(Field::new("k", KIND, true)),
            config_options: Arc::default(),
        };
        let of = Length { signature: Signature::any(1, Volatility::Immutable) };
        let lengths = of.invoke_with_args(args).unwrap().to_array(5).unwrap();
        let lengths: Vec<_> = lengths.as_primitive::<Decimal128Type>().iter().collect();
        let month = Some(30 * NANOSECONDS_OF_DAY);
        assert_eq!(lengths, [month, month, month, Some(-3_600_000_000_000), None]);
    }
}
