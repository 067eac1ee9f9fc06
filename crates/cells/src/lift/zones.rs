//! Times with a zone are instants: compared with a time without one, which is UTC here, they are converted to UTC.
//!
//! Arrow would compare the zone's local clock with the other side. Times of day of different units, which DataFusion
//! does not compare, meet in nanoseconds. Runs before types are coerced.

use std::sync::Arc;

use arrow::datatypes::{DataType, TimeUnit};
use datafusion::common::tree_node::Transformed;
use datafusion::common::{DFSchema, Result};
use datafusion::logical_expr::expr::{Between, InList, InSubquery};
use datafusion::logical_expr::planner::RawBinaryExpr;
use datafusion::logical_expr::{
    BinaryExpr, Expr, ExprSchemable, LogicalPlan, Operator, Projection, cast,
};
use sqlparser::ast::BinaryOperator;

use super::time::is_comparison;

/// Removes the zones of the expression, if times with and without one meet in it.
pub(super) fn one(expr: Expr, schema: &DFSchema) -> Result<Transformed<Expr>> {
    match expr {
        Expr::BinaryExpr(BinaryExpr { mut left, op, mut right })
            if is_comparison(op) || op == Operator::Minus =>
        {
            let is_changed = meet(&mut left, &mut right, schema);
            let new = Expr::BinaryExpr(BinaryExpr { left, op, right });
            Ok(Transformed::new_transformed(new, is_changed))
        }
        Expr::Between(Between { mut expr, negated, mut low, mut high }) => {
            let mut is_changed = meet(&mut expr, &mut low, schema);
            is_changed |= meet(&mut expr, &mut high, schema);
            // The upper bound may have changed the value.
            is_changed |= meet(&mut expr, &mut low, schema);
            let new = Expr::Between(Between { expr, negated, low, high });
            Ok(Transformed::new_transformed(new, is_changed))
        }
        Expr::InList(InList { mut expr, mut list, negated }) => {
            let mut is_changed = false;
            // A later item may change the value.
            for _ in 0..2 {
                for item in &mut list {
                    is_changed |= meet(&mut expr, item, schema);
                }
            }
            let new = Expr::InList(InList { expr, list, negated });
            Ok(Transformed::new_transformed(new, is_changed))
        }
        Expr::InSubquery(InSubquery { mut expr, mut subquery, negated }) => {
            let own = subquery.subquery.schema().clone();
            let Some(first) = own.columns().into_iter().next() else {
                let same = Expr::InSubquery(InSubquery { expr, subquery, negated });
                return Ok(Transformed::no(same));
            };
            let first = Expr::Column(first);
            match (time(&expr, schema), time(&first, &own)) {
                (Some((unit, true)), Some((_, false))) => to_utc(&mut expr, unit),
                (Some((_, false)), Some((unit, true))) => {
                    let mut utc = first;
                    to_utc(&mut utc, unit);
                    let plan = Projection::try_new(vec![utc], subquery.subquery)?;
                    subquery.subquery = Arc::new(LogicalPlan::Projection(plan));
                }
                _ => {
                    let same = Expr::InSubquery(InSubquery { expr, subquery, negated });
                    return Ok(Transformed::no(same));
                }
            }
            Ok(Transformed::yes(Expr::InSubquery(InSubquery { expr, subquery, negated })))
        }
        other => Ok(Transformed::no(other)),
    }
}

/// Removes the zone of one of two times if the other has none; gives two times of day one unit.
fn meet(a: &mut Expr, b: &mut Expr, schema: &DFSchema) -> bool {
    use DataType::Timestamp;
    // Later planning of the expression reports an error.
    let (Ok(of_a), Ok(of_b)) = (a.get_type(schema), b.get_type(schema)) else { return false };
    match (&of_a, &of_b) {
        (Timestamp(unit, Some(_)), Timestamp(_, None)) => to_utc(a, *unit),
        (Timestamp(_, None), Timestamp(unit, Some(_))) => to_utc(b, *unit),
        _ => return of_one_unit([a, b], [&of_a, &of_b]),
    }
    true
}

/// Gives the sides of a comparison one unit, if they are times of day. Their types must fit while the plan is built.
pub(super) fn compared(expr: &mut RawBinaryExpr, schema: &DFSchema) {
    use BinaryOperator::{Eq, Gt, GtEq, Lt, LtEq, NotEq};
    if matches!(expr.op, Eq | NotEq | Lt | LtEq | Gt | GtEq)
        && let (Ok(left), Ok(right)) = (expr.left.get_type(schema), expr.right.get_type(schema))
    {
        of_one_unit([&mut expr.left, &mut expr.right], [&left, &right]);
    }
}

fn of_one_unit(sides: [&mut Expr; 2], kinds: [&DataType; 2]) -> bool {
    let are_times =
        kinds.iter().all(|kind| matches!(kind, DataType::Time32(_) | DataType::Time64(_)));
    if !are_times || kinds[0] == kinds[1] {
        return false;
    }
    for side in sides {
        *side = cast(std::mem::take(side), DataType::Time64(TimeUnit::Nanosecond));
    }
    true
}

/// The unit of a time, and true if it has a zone. Later planning of the expression reports an error.
fn time(expr: &Expr, schema: &DFSchema) -> Option<(TimeUnit, bool)> {
    match expr.get_type(schema).ok()? {
        DataType::Timestamp(unit, zone) => Some((unit, zone.is_some())),
        _ => None,
    }
}

fn to_utc(expr: &mut Expr, unit: TimeUnit) {
    let zoned = std::mem::take(expr);
    let utc = cast(zoned, DataType::Timestamp(unit, Some("+00:00".into())));
    *expr = cast(utc, DataType::Timestamp(unit, None));
}
