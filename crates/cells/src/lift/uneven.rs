//! Casts whose values are not in the order of their operands, or NULL for some of them.
//!
//! ```text
//! CAST(ts AS TIME) > '10:00'     ⇒  CAST(tessera_operand(ts) AS TIME) > '10:00'
//! TRY_CAST(i AS TINYINT) > -10   ⇒  tessera_operand(TRY_CAST(i AS TINYINT)) > -10
//! ```
//! DataFusion takes such casts for ones that keep the order. It leaves out row groups by the casts of their smallest and
//! greatest value, drops the sort by `CAST(ts AS TIME)` of rows in the order of `ts`, and compares `i` itself with -10.
//! It concludes nothing from a function that it does not know.

use crate::walk::{Walk, WalkPlan};
use arrow::datatypes::DataType;
use datafusion::common::tree_node::Transformed;
use datafusion::common::{DFSchema, Result};
use datafusion::logical_expr::expr::Cast;
use datafusion::logical_expr::utils::merge_schema;
use datafusion::logical_expr::{Expr, ExprSchemable, LogicalPlan, ScalarUDF};

use super::functions::operand;
use super::guards::is_safe_cast;

/// Rewrites the casts of a plan; names and types stay the same.
pub(super) fn rewrite(plan: LogicalPlan) -> Result<LogicalPlan> {
    let function = operand();
    plan.map_all_up(|node| {
        if !node.any_expr(|expr| expr.any(|e| Ok(matches!(e, Expr::Cast(_) | Expr::TryCast(_)))))? {
            return Ok(Transformed::no(node));
        }
        let schema = merge_schema(&node.inputs());
        super::map_parts(node, |expr| Ok(one(expr, &schema, &function)))
    })
    .map(|t| t.data)
}

fn one(expr: Expr, schema: &DFSchema, function: &ScalarUDF) -> Transformed<Expr> {
    match expr {
        Expr::Cast(Cast { expr, field })
            if of(&expr, schema).is_some_and(|from| is_uneven(&from, field.data_type())) =>
        {
            let operand = Box::new(function.call(vec![*expr]));
            Transformed::yes(Expr::Cast(Cast { expr: operand, field }))
        }
        // Around the cast, which is replaced by its operand beside a constant whatever the operand is.
        Expr::TryCast(ref cast)
            if of(&cast.expr, schema)
                .is_some_and(|from| has_nulls(&from, cast.field.data_type())) =>
        {
            Transformed::yes(function.call(vec![expr]))
        }
        expr => Transformed::no(expr),
    }
}

/// True if a cast that is NULL instead of an error may be NULL, or does not keep the order of values.
fn has_nulls(from: &DataType, to: &DataType) -> bool {
    is_uneven(from, to) || (!from.is_string() && !is_safe_cast(from, to))
}

/// The type of an operand; `None` for a constant, and for a column of an outer query, whose type is unknown here.
fn of(operand: &Expr, schema: &DFSchema) -> Option<DataType> {
    match operand {
        Expr::Literal(..) => None,
        operand => operand.get_type(schema).ok(),
    }
}

/// True if a cast between the types does not keep the order of values.
fn is_uneven(from: &DataType, to: &DataType) -> bool {
    use DataType::{Boolean, Date32, Date64, Time32, Time64, Timestamp};
    match to {
        Boolean => from.is_numeric(),
        Time32(_) | Time64(_) => matches!(from, Timestamp(..) | Date32 | Date64),
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use arrow::datatypes::TimeUnit;

    #[test]
    fn times_of_day_and_booleans_are_not_in_the_order_of_their_operands() {
        let timestamp = DataType::Timestamp(TimeUnit::Microsecond, None);
        assert!(is_uneven(&timestamp, &DataType::Time64(TimeUnit::Nanosecond)));
        assert!(is_uneven(&DataType::Int64, &DataType::Boolean));
        assert!(!is_uneven(&timestamp, &DataType::Date32));
        assert!(!is_uneven(&DataType::Boolean, &DataType::Int64));
        assert!(!is_uneven(&DataType::Utf8, &DataType::Boolean));
    }
}
