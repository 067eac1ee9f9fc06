//! Times in every calendar: literals, and parts of dates.
//!
//! It runs on the plan before types are coerced, because coercion would read `'2020-01'` as text. A text that meets a
//! time is its first instant: `time >= '2020'` begins with the year.

use std::sync::Arc;

use arrow::datatypes::{DataType, TimeUnit};
use datafusion::common::tree_node::{Transformed, TreeNode};
use datafusion::common::{DFSchema, DataFusionError, Result, ScalarValue};
use datafusion::logical_expr::expr::{Between, InList, ScalarFunction};
use datafusion::logical_expr::expr_rewriter::NamePreserver;
use datafusion::logical_expr::utils::merge_schema;
use datafusion::logical_expr::{BinaryExpr, Expr, ExprSchemable, LogicalPlan, Operator, ScalarUDF};
use tessera_planner::dtype::Calendar;
use tessera_planner::time::parse_period;

use super::functions::CalendarPart;
use super::table::calendar;
use crate::error::Error;

/// Rewrites all expressions of a plan.
pub(crate) fn rewrite(plan: LogicalPlan) -> Result<LogicalPlan> {
    plan.transform_up_with_subqueries(|node| {
        let schema = merge_schema(&node.inputs());
        let names = NamePreserver::new(&node);
        node.map_expressions(|expr| {
            let name = names.save(&expr);
            expr.transform_up(|e| one(e, &schema))?.map_data(|e| Ok(name.restore(e)))
        })?
        .transform_data(|node| {
            // Types of outputs may have changed (a part of a date has another function's type).
            if node.inputs().is_empty() {
                Ok(Transformed::no(node))
            } else {
                node.recompute_schema().map(Transformed::yes)
            }
        })
    })
    .map(|t| t.data)
}

fn one(expr: Expr, schema: &DFSchema) -> Result<Transformed<Expr>> {
    match expr {
        Expr::BinaryExpr(BinaryExpr { left, op, right }) if is_comparison(op) => {
            let l = meet(&left, &right, schema)?;
            let r = meet(&right, &left, schema)?;
            let is_changed = l.is_some() || r.is_some();
            let new = BinaryExpr::new(r.map_or(left, Box::new), op, l.map_or(right, Box::new));
            Ok(Transformed::new_transformed(Expr::BinaryExpr(new), is_changed))
        }
        Expr::Between(Between { expr, negated, low, high }) => {
            let l = meet(&expr, &low, schema)?;
            let h = meet(&expr, &high, schema)?;
            let is_changed = l.is_some() || h.is_some();
            let new =
                Between::new(expr, negated, l.map_or(low, Box::new), h.map_or(high, Box::new));
            Ok(Transformed::new_transformed(Expr::Between(new), is_changed))
        }
        Expr::InList(InList { expr, mut list, negated }) => {
            let mut is_changed = false;
            for item in &mut list {
                if let Some(new) = meet(&expr, item, schema)? {
                    *item = new;
                    is_changed = true;
                }
            }
            Ok(Transformed::new_transformed(
                Expr::InList(InList { expr, list, negated }),
                is_changed,
            ))
        }
        Expr::ScalarFunction(ScalarFunction { func, args })
            if func.name() == "date_part" && args.len() == 2 =>
        {
            match calendar_of(&args[1], schema) {
                Some(c) if c != Calendar::Standard => {
                    let func = Arc::new(ScalarUDF::from(CalendarPart::new(c)));
                    let call = ScalarFunction { func, args };
                    Ok(Transformed::yes(Expr::ScalarFunction(call)))
                }
                _ => Ok(Transformed::no(Expr::ScalarFunction(ScalarFunction { func, args }))),
            }
        }
        other => Ok(Transformed::no(other)),
    }
}

fn is_comparison(op: Operator) -> bool {
    use Operator::*;
    matches!(op, Eq | NotEq | Lt | LtEq | Gt | GtEq | IsDistinctFrom | IsNotDistinctFrom)
}

fn calendar_of(expr: &Expr, schema: &DFSchema) -> Option<Calendar> {
    // A failure here is not lost: planning meets the same expression and reports it.
    let (_, field) = expr.to_field(schema).ok()?;
    calendar(&field)
}

/// The literal that a text becomes where it meets a time.
fn meet(time: &Expr, text: &Expr, schema: &DFSchema) -> Result<Option<Expr>> {
    let Expr::Literal(
        ScalarValue::Utf8(Some(text))
        | ScalarValue::LargeUtf8(Some(text))
        | ScalarValue::Utf8View(Some(text)),
        _,
    ) = text
    else {
        return Ok(None);
    };
    if matches!(time, Expr::Literal(..)) {
        return Ok(None);
    }
    let Some(calendar) = calendar_of(time, schema) else { return Ok(None) };
    let Some((first, _)) = parse_period(text.trim(), calendar) else {
        return Err(DataFusionError::External(Box::new(Error::Cells {
            code: "type_error",
            message: format!("`{text}` is not a date of the {} calendar", calendar.name()),
            position: None,
            hint: Some("write it as `2020`, `2020-01`, `2020-01-31` or `2020-01-31T12:00`".into()),
        })));
    };
    let value = match calendar {
        Calendar::Standard => ScalarValue::TimestampMicrosecond(Some(first), None),
        _ => ScalarValue::Int64(Some(first)),
    };
    debug_assert!(matches!(
        value.data_type(),
        DataType::Int64 | DataType::Timestamp(TimeUnit::Microsecond, None)
    ));
    Ok(Some(Expr::Literal(value, None)))
}
