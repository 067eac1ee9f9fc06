//! A date and an interval with hours is a timestamp: `date '2020-01-01' + INTERVAL '36 hours'` is at noon of 2 January.
//!
//! A date and a difference of timestamps is a timestamp, too. DataFusion's result is a date, whatever the interval, and
//! Arrow drops the hours. An interval of whole days, months or years leaves a date here, too, so that a column of dates is
//! compared as it is stored; an interval that is known only at run time may have hours. Runs while the plan is built, so
//! that all types above follow.

use arrow::datatypes::{DataType, IntervalUnit, TimeUnit};
use datafusion::common::{DFSchema, ScalarValue};
use datafusion::logical_expr::planner::RawBinaryExpr;
use datafusion::logical_expr::{Expr, ExprSchemable, cast};
use sqlparser::ast::BinaryOperator;

/// Makes the date of such an expression a timestamp.
pub(super) fn one(expr: &mut RawBinaryExpr, schema: &DFSchema) {
    let is_sum = match expr.op {
        BinaryOperator::Plus => true,
        BinaryOperator::Minus => false,
        _ => return,
    };
    // The left side of a chain of operators is long; its type is wanted only beside an interval or a date.
    let date = match expr.right.get_type(schema) {
        Ok(DataType::Interval(unit)) if may_have_hours(&expr.right, unit) => &mut expr.left,
        Ok(DataType::Duration(_)) => &mut expr.left,
        Ok(DataType::Date32 | DataType::Date64) if is_sum => match expr.left.get_type(schema) {
            Ok(DataType::Interval(unit)) if may_have_hours(&expr.left, unit) => &mut expr.right,
            Ok(DataType::Duration(_)) => &mut expr.right,
            _ => return,
        },
        // An error here is not lost: later planning of the same expression reports it.
        _ => return,
    };
    if matches!(date.get_type(schema), Ok(DataType::Date32 | DataType::Date64)) {
        *date = cast(std::mem::take(date), DataType::Timestamp(TimeUnit::Microsecond, None));
    }
}

/// False if an interval is one of whole days.
fn may_have_hours(interval: &Expr, unit: IntervalUnit) -> bool {
    match interval {
        _ if unit == IntervalUnit::YearMonth => false,
        Expr::Negative(inner) => may_have_hours(inner, unit),
        Expr::Literal(ScalarValue::IntervalDayTime(value), _) => {
            value.is_some_and(|value| value.milliseconds != 0)
        }
        Expr::Literal(ScalarValue::IntervalMonthDayNano(value), _) => {
            value.is_some_and(|value| value.nanoseconds != 0)
        }
        _ => true,
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]
    use super::*;
    use arrow::datatypes::{Field, IntervalMonthDayNano, Schema};
    use datafusion::prelude::{col, lit};

    #[test]
    fn dates_become_timestamps_beside_hours() {
        let kinds = [
            ("d", DataType::Date32),
            ("t", DataType::Timestamp(TimeUnit::Nanosecond, None)),
            ("i", DataType::Interval(IntervalUnit::MonthDayNano)),
            ("y", DataType::Interval(IntervalUnit::YearMonth)),
            ("u", DataType::Duration(TimeUnit::Nanosecond)),
        ];
        let fields: Vec<Field> =
            kinds.into_iter().map(|(name, kind)| Field::new(name, kind, true)).collect();
        let schema = DFSchema::try_from(Schema::new(fields)).unwrap();
        let of = |months, days, hours: i64| {
            let value = IntervalMonthDayNano::new(months, days, hours * 3_600_000_000_000);
            Expr::Literal(ScalarValue::IntervalMonthDayNano(Some(value)), None)
        };
        let (plus, minus) = (BinaryOperator::Plus, BinaryOperator::Minus);
        for (left, op, right, want) in [
            (col("d"), plus.clone(), of(0, 0, 36), true),
            (col("d"), minus.clone(), of(0, 1, -1), true),
            (of(0, 0, 20), plus.clone(), col("d"), true),
            (col("d"), plus.clone(), -of(0, 0, 20), true),
            (col("d"), plus.clone(), col("i"), true),
            (col("d"), minus.clone(), col("u"), true),
            (col("u"), plus.clone(), col("d"), true),
            (col("t"), plus.clone(), col("u"), false),
            (col("d"), plus.clone(), of(1, 1, 0), false),
            (col("d"), minus.clone(), col("y"), false),
            (col("d"), minus, col("d"), false),
            (col("d"), plus.clone(), lit(3), false),
            (col("t"), plus, of(0, 0, 36), false),
        ] {
            let mut expr = RawBinaryExpr { op, left, right };
            let before = (expr.left.clone(), expr.right.clone());
            one(&mut expr, &schema);
            let (left, right) = (expr.left != before.0, expr.right != before.1);
            assert_eq!(left || right, want, "{} {}", before.0, before.1);
            assert!(!want || [expr.left, expr.right].iter().any(|e| matches!(e, Expr::Cast(_))));
        }
    }
}
