//! `INTERVAL '1 day' * n`, `n * INTERVAL '1 day'` and `INTERVAL '1 day' / n`, also of differences of times: `(a - b) / 2`.
//!
//! A fraction of a month is converted to days of which a month has 30, and a fraction of a day to hours of which it has
//! 24, in whole microseconds, as in DuckDB and PostgreSQL: half of `1 month 1 day` is 15 days and 12 hours.
//!
//! Converted while the plan is built, as DataFusion gives these operators no type.

use std::sync::Arc;

use arrow::array::{AsArray, IntervalMonthDayNanoArray};
use arrow::datatypes::{
    DataType, Float64Type, Int64Type, IntervalMonthDayNano, IntervalMonthDayNanoType, IntervalUnit,
};
use arrow::error::ArrowError;
use datafusion::common::{DFSchema, Result, exec_err, plan_err};
use datafusion::logical_expr::expr::ScalarFunction;
use datafusion::logical_expr::planner::{ExprPlanner, PlannerResult, RawBinaryExpr};
use datafusion::logical_expr::{
    ColumnarValue, Expr, ExprSchemable, ScalarFunctionArgs, ScalarUDF, ScalarUDFImpl, Signature,
    Volatility, cast,
};
use sqlparser::ast::BinaryOperator;

use super::inner::scalar;
use super::over_arrays;

const INTERVAL: DataType = DataType::Interval(IntervalUnit::MonthDayNano);

/// The functions, whose names no text can produce.
pub(super) fn functions() -> [ScalarUDF; 2] {
    [false, true].map(|is_division| Scaled::new(is_division).into())
}

/// Plans products and quotients of intervals.
#[derive(Debug)]
pub(in crate::lift) struct Scales;

impl ExprPlanner for Scales {
    fn plan_binary_op(
        &self,
        expr: RawBinaryExpr,
        schema: &DFSchema,
    ) -> Result<PlannerResult<RawBinaryExpr>> {
        let is_division = match expr.op {
            BinaryOperator::Multiply => false,
            BinaryOperator::Divide => true,
            _ => return Ok(PlannerResult::Original(expr)),
        };
        // An error here is not lost: later planning of the same expression reports it.
        let is = |e: &Expr, of: fn(&DataType) -> bool| e.get_type(schema).is_ok_and(|t| of(&t));
        let is_interval =
            |e: &Expr| is(e, |t| matches!(t, DataType::Interval(_) | DataType::Duration(_)));
        let is_number = |e: &Expr| is(e, |t| t.is_numeric() || t.is_null());
        let (interval, by) = if is_interval(&expr.left) && is_number(&expr.right) {
            (expr.left, expr.right)
        } else if !is_division && is_number(&expr.left) && is_interval(&expr.right) {
            (expr.right, expr.left)
        } else {
            return Ok(PlannerResult::Original(expr));
        };
        // A difference of times.
        let interval = match is(&interval, |t| matches!(t, DataType::Duration(_))) {
            true => cast(interval, INTERVAL),
            false => interval,
        };
        Ok(PlannerResult::Planned(Expr::ScalarFunction(ScalarFunction::new_udf(
            Arc::new(Scaled::new(is_division).into()),
            vec![interval, by],
        ))))
    }
}

#[derive(Debug, PartialEq, Eq, Hash)]
struct Scaled {
    is_division: bool,
    signature: Signature,
}

impl Scaled {
    fn new(is_division: bool) -> Self {
        Self { is_division, signature: Signature::user_defined(Volatility::Immutable) }
    }

    fn by_integer(&self, of: IntervalMonthDayNano, by: i64) -> Result<IntervalMonthDayNano> {
        if self.is_division {
            return self.by_float(of, by as f64);
        }
        let times = |part: i32| i64::from(part).checked_mul(by).and_then(|n| i32::try_from(n).ok());
        match (times(of.months), times(of.days), of.nanoseconds.checked_mul(by)) {
            (Some(months), Some(days), Some(nanoseconds)) => {
                Ok(IntervalMonthDayNano { months, days, nanoseconds })
            }
            _ => too_long(),
        }
    }

    fn by_float(&self, of: IntervalMonthDayNano, by: f64) -> Result<IntervalMonthDayNano> {
        if self.is_division && by == 0.0 {
            return Err(ArrowError::DivideByZero.into());
        }
        let scaled = |part: f64| if self.is_division { part / by } else { part * by };
        let months = scaled(f64::from(of.months));
        let days = scaled(f64::from(of.days)) + months.fract() * 30.0;
        let us = scaled(of.nanoseconds as f64 / 1e3) + days.fract() * 86_400e6;
        let (months, days, us) = (months.trunc(), days.trunc(), us.round_ties_even());
        let fits = |part: f64, most: f64| part.abs() <= most;
        let most = f64::from(i32::MAX);
        // A NaN fits nowhere.
        if !fits(months, most) || !fits(days, most) || !fits(us, 9.2e15) {
            return too_long();
        }
        let nanoseconds = us as i64 * 1000;
        Ok(IntervalMonthDayNano { months: months as i32, days: days as i32, nanoseconds })
    }
}

fn too_long() -> Result<IntervalMonthDayNano> {
    exec_err!("the interval is too long: its months and days have 32 bits, its time 64 bits")
}

impl ScalarUDFImpl for Scaled {
    scalar!(signature, returns INTERVAL);

    fn name(&self) -> &str {
        if self.is_division { "tessera_interval_divide" } else { "tessera_interval_times" }
    }

    fn coerce_types(&self, types: &[DataType]) -> Result<Vec<DataType>> {
        match types {
            [DataType::Interval(_), by] if by.is_integer() && *by != DataType::UInt64 => {
                Ok(vec![INTERVAL, DataType::Int64])
            }
            [DataType::Interval(_), by] if by.is_null() => Ok(vec![INTERVAL, DataType::Int64]),
            [DataType::Interval(_), by] if by.is_numeric() => Ok(vec![INTERVAL, DataType::Float64]),
            _ => plan_err!("an interval is multiplied with numbers"),
        }
    }

    fn invoke_with_args(&self, args: ScalarFunctionArgs) -> Result<ColumnarValue> {
        over_arrays(&args, |arrays| {
            let [intervals, by] = arrays else {
                return exec_err!("`{}` takes two arguments", self.name());
            };
            let intervals = intervals.as_primitive::<IntervalMonthDayNanoType>().iter();
            let scaled: Result<IntervalMonthDayNanoArray> = match by.data_type() {
                DataType::Int64 => {
                    let pairs = intervals.zip(by.as_primitive::<Int64Type>());
                    let pairs = pairs.map(|(of, by)| of.zip(by));
                    pairs
                        .map(|pair| pair.map(|(of, by)| self.by_integer(of, by)).transpose())
                        .collect()
                }
                DataType::Float64 => {
                    let pairs = intervals.zip(by.as_primitive::<Float64Type>());
                    let pairs = pairs.map(|(of, by)| of.zip(by));
                    pairs
                        .map(|pair| pair.map(|(of, by)| self.by_float(of, by)).transpose())
                        .collect()
                }
                other => return exec_err!("an interval times {other}"),
            };
            Ok(Arc::new(scaled?))
        })
    }
}
