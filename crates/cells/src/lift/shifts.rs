//! `time + INTERVAL '1 day'` for times of calendars that Arrow does not know, and for those of zones.
//!
//! Converted while the plan is built, so that the enclosing expression sees a time.

use std::sync::Arc;

use arrow::datatypes::DataType;
use datafusion::common::{DFSchema, Result};
use datafusion::logical_expr::expr::ScalarFunction;
use datafusion::logical_expr::planner::{ExprPlanner, PlannerResult, RawBinaryExpr};
use datafusion::logical_expr::{Expr, ExprSchemable};
use sqlparser::ast::BinaryOperator;

use super::calendars::other_calendar_of;
use super::functions::TimeShift;

/// Plans sums of times and intervals.
#[derive(Debug)]
pub(super) struct Shifts;

impl ExprPlanner for Shifts {
    fn plan_binary_op(
        &self,
        expr: RawBinaryExpr,
        schema: &DFSchema,
    ) -> Result<PlannerResult<RawBinaryExpr>> {
        super::go_on()?;
        // An error here is not lost: later planning of the same expression reports it.
        let is_zoned = |e: &Expr| {
            e.get_type(schema).is_ok_and(|t| matches!(t, DataType::Timestamp(_, Some(_))))
        };
        let is_time = |e: &Expr| other_calendar_of(e, schema).is_some() || is_zoned(e);
        let is_interval =
            |e: &Expr| e.get_type(schema).is_ok_and(|t| matches!(t, DataType::Interval(_)));
        let is_minus = match expr.op {
            BinaryOperator::Plus => false,
            BinaryOperator::Minus => true,
            _ => return Ok(PlannerResult::Original(expr)),
        };
        let (time, interval) = if is_time(&expr.left) && is_interval(&expr.right) {
            (expr.left, expr.right)
        } else if !is_minus && is_interval(&expr.left) && is_time(&expr.right) {
            (expr.right, expr.left)
        } else {
            return Ok(PlannerResult::Original(expr));
        };
        Ok(PlannerResult::Planned(Expr::ScalarFunction(ScalarFunction::new_udf(
            Arc::new(TimeShift::new(is_minus).into()),
            vec![time, interval],
        ))))
    }
}
