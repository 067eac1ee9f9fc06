//! Intervals compare by their length: a month is 30 days, and a day 24 hours, as in PostgreSQL and DuckDB.
//!
//! Arrow compares months, then days, then nanoseconds.

use std::sync::Arc;

use arrow::array::{ArrayRef, AsArray, Decimal128Array};
use arrow::datatypes::{DataType, IntervalMonthDayNanoType, IntervalUnit};
use datafusion::common::{Result, internal_err};
use datafusion::logical_expr::{ScalarUDF, Signature, Volatility};

use super::super::functions::OfArrays;

const NANOSECONDS_OF_DAY: i128 = 86_400_000_000_000;
/// An integer: the longest interval has 10²⁵ nanoseconds.
const KIND: DataType = DataType::Decimal128(38, 0);

/// `tessera_length(i)`: the nanoseconds of an interval.
pub(super) fn length() -> ScalarUDF {
    let signature = Signature::any(1, Volatility::Immutable);
    OfArrays::new("tessera_length", signature, KIND, lengths).udf()
}

pub(super) fn is_interval(kind: &DataType) -> bool {
    matches!(kind, DataType::Interval(IntervalUnit::MonthDayNano))
}

fn lengths(arrays: &[ArrayRef]) -> Result<ArrayRef> {
    let [array] = arrays else {
        return internal_err!("tessera_length takes one argument");
    };
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
    Ok(Arc::new(lengths.with_precision_and_scale(38, 0)?))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]
    use super::*;
    use arrow::array::IntervalMonthDayNanoArray;
    use arrow::datatypes::{Decimal128Type, IntervalMonthDayNano};

    #[test]
    fn a_month_is_30_days_and_a_day_24_hours() {
        let of = |months, days, hours: i64| {
            Some(IntervalMonthDayNano::new(months, days, hours * 3_600_000_000_000))
        };
        let all = vec![of(1, 0, 0), of(0, 30, 0), of(0, 29, 24), of(0, 0, -1), None];
        let array: ArrayRef = Arc::new(IntervalMonthDayNanoArray::from(all));
        let lengths = lengths(&[array]).unwrap();
        let lengths: Vec<_> = lengths.as_primitive::<Decimal128Type>().iter().collect();
        let month = Some(30 * NANOSECONDS_OF_DAY);
        assert_eq!(lengths, [month, month, month, Some(-3_600_000_000_000), None]);
    }
}
