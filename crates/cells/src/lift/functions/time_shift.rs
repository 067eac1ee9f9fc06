//! Times in calendars that Arrow does not support, and times of zones, moved by an interval.

use std::str::FromStr;
use std::sync::Arc;

use arrow::array::timezone::Tz;
use arrow::array::{Array, ArrayRef, AsArray, Int64Array};
use arrow::compute::kernels::numeric;
use arrow::datatypes::{
    DataType, Field, FieldRef, Int64Type, IntervalMonthDayNano, IntervalMonthDayNanoType,
    IntervalUnit, TimeUnit,
};
use arrow::util::display::array_value_to_string;
use datafusion::common::{Result, exec_err, plan_err};
use datafusion::logical_expr::{
    ColumnarValue, ReturnFieldArgs, ScalarFunctionArgs, ScalarUDFImpl, Signature, Volatility,
};
use tessera_planner::dtype::{Calendar, DType};
use tessera_planner::time::{format_micros, moved};

use super::inner::scalar;
use crate::clock;
use crate::lift::table::{calendar, field};

/// `time + interval` or `time - interval` of an `int64` whose field has a calendar, or of a time with a zone.
#[derive(Debug, PartialEq, Eq, Hash)]
pub(in crate::lift) struct TimeShift {
    is_minus: bool,
    signature: Signature,
}

impl TimeShift {
    pub(in crate::lift) fn new(is_minus: bool) -> Self {
        Self { is_minus, signature: Signature::user_defined(Volatility::Immutable) }
    }

    fn of(&self, time: i64, by: IntervalMonthDayNano, calendar: Calendar) -> Result<i64> {
        let sign = if self.is_minus { -1 } else { 1 };
        let months = sign * i64::from(by.months);
        let days = sign * i64::from(by.days);
        // A time has whole microseconds.
        match moved(time, months, days, sign * (by.nanoseconds / 1000), calendar) {
            Some(time) => Ok(time),
            None => exec_err!(
                "{} moved by {months} months and {days} days is beyond the years ±290,000",
                format_micros(time, calendar)
            ),
        }
    }
}

impl TimeShift {
    fn of_zone(
        &self,
        times: &ArrayRef,
        intervals: &ArrayRef,
        unit: TimeUnit,
        zone: Tz,
    ) -> Result<ArrayRef> {
        let intervals = intervals.as_primitive::<IntervalMonthDayNanoType>();
        // Arrow has no result at daylight saving transitions, and takes the parts in one order.
        let is_mixed =
            |by: &IntervalMonthDayNano| by.nanoseconds != 0 && (by.months != 0 || by.days != 0);
        if !intervals.values().iter().any(is_mixed) {
            let moved = match self.is_minus {
                true => numeric::sub(times, intervals),
                false => numeric::add(times, intervals),
            };
            if let Ok(moved) = moved {
                return Ok(moved);
            }
        }
        clock::mapped(times, times.data_type(), |row, time| {
            if intervals.is_null(row) {
                return Ok(None);
            }
            let IntervalMonthDayNano { months, days, nanoseconds } = intervals.value(row);
            let by = match self.is_minus {
                true => match (months.checked_neg(), days.checked_neg(), nanoseconds.checked_neg())
                {
                    (Some(m), Some(d), Some(n)) => Some(IntervalMonthDayNano::new(m, d, n)),
                    _ => None,
                },
                false => Some(intervals.value(row)),
            };
            match by.and_then(|by| clock::moved(time, unit, by, zone)) {
                Some(moved) => Ok(Some(moved)),
                None => exec_err!(
                    "{} moved by {months} months and {days} days is beyond the range of times",
                    array_value_to_string(times, row)?
                ),
            }
        })
    }
}

impl ScalarUDFImpl for TimeShift {
    scalar!(signature, type_by_field);

    fn name(&self) -> &str {
        if self.is_minus { "tessera_time_minus" } else { "tessera_time_plus" }
    }

    fn coerce_types(&self, types: &[DataType]) -> Result<Vec<DataType>> {
        match types {
            [DataType::Int64, DataType::Interval(_)] => {
                Ok(vec![DataType::Int64, DataType::Interval(IntervalUnit::MonthDayNano)])
            }
            [time @ DataType::Timestamp(_, Some(_)), DataType::Interval(_)] => {
                Ok(vec![time.clone(), DataType::Interval(IntervalUnit::MonthDayNano)])
            }
            _ => plan_err!("a time is moved by an interval"),
        }
    }

    fn return_field_from_args(&self, args: ReturnFieldArgs<'_>) -> Result<FieldRef> {
        let [time, interval] = args.arg_fields else {
            return plan_err!("{} takes a time and an interval", self.name());
        };
        let is_nullable = time.is_nullable() || interval.is_nullable();
        if let zoned @ DataType::Timestamp(_, Some(_)) = time.data_type() {
            return Ok(Arc::new(Field::new(self.name(), zoned.clone(), is_nullable)));
        }
        let Some(calendar) = calendar(time) else {
            return plan_err!("{} takes a time", self.name());
        };
        Ok(Arc::new(field(self.name(), DType::Datetime(calendar), is_nullable)))
    }

    fn invoke_with_args(&self, args: ScalarFunctionArgs) -> Result<ColumnarValue> {
        let calendar = args.arg_fields.first().and_then(|field| calendar(field));
        let [time, by] = args.args.as_slice() else {
            return exec_err!("{} takes a time and an interval", self.name());
        };
        let is_scalar = args.args.iter().all(|arg| matches!(arg, ColumnarValue::Scalar(_)));
        let rows = if is_scalar { 1 } else { args.number_rows };
        let (times, intervals) = (time.to_array(rows)?, by.to_array(rows)?);
        if let DataType::Timestamp(unit, Some(zone)) = times.data_type() {
            let zone = Tz::from_str(zone)?;
            return super::columnar(self.of_zone(&times, &intervals, *unit, zone)?, is_scalar);
        }
        let Some(calendar) = calendar else {
            return exec_err!("{} takes a time and an interval", self.name());
        };
        let times = times.as_primitive::<Int64Type>().iter();
        let intervals = intervals.as_primitive::<IntervalMonthDayNanoType>().iter();
        let moved = times.zip(intervals).map(|pair| match pair {
            (Some(time), Some(by)) => self.of(time, by, calendar).map(Some),
            _ => Ok(None),
        });
        super::columnar(Arc::new(moved.collect::<Result<Int64Array>>()?), is_scalar)
    }
}
