//! Sums of products of narrow numbers: widens factors before the multiplication.
//!
//! ```text
//! sum(CAST(a * b AS DOUBLE))   ⇒   sum(CAST(a AS DOUBLE) * CAST(b AS DOUBLE))      a, b: FLOAT
//! sum(CAST(a * b AS BIGINT))   ⇒   sum(CAST(a AS BIGINT) * CAST(b AS BIGINT))      a, b: INT and narrower
//! ```
//! SQL multiplies in the type of the factors and then adds in a wider one: products of `float32` would each be rounded,
//! those of narrow integers wrap. A contraction does neither, so both paths define the sum this way.

use crate::walk::{Walk, WalkPlan};
use arrow::datatypes::DataType;
use datafusion::common::Result;
use datafusion::common::tree_node::Transformed;
use datafusion::logical_expr::expr::{AggregateFunction, Cast};
use datafusion::logical_expr::{Aggregate, BinaryExpr, Expr, ExprSchemable, LogicalPlan, Operator};

use super::casts::bare;

/// Rewrites the aggregates of a plan; names stay the same.
pub(crate) fn rewrite(plan: LogicalPlan) -> Result<LogicalPlan> {
    plan.replace_all_up(|node| {
        let LogicalPlan::Aggregate(aggregate) = node else { return Ok(None) };
        let mut calls = Vec::with_capacity(aggregate.aggr_expr.len());
        let mut is_changed = false;
        for call in &aggregate.aggr_expr {
            let name = call.schema_name().to_string();
            let new = call.clone().map_up(|e| widened(e, aggregate))?;
            is_changed |= new.transformed;
            calls.push(if new.transformed { new.data.unalias().alias(name) } else { new.data });
        }
        if !is_changed {
            return Ok(None);
        }
        let new = Aggregate::try_new(aggregate.input.clone(), aggregate.group_expr.clone(), calls)?;
        Ok(Some(LogicalPlan::Aggregate(new)))
    })
}

fn widened(expr: Expr, aggregate: &Aggregate) -> Result<Transformed<Expr>> {
    let Expr::AggregateFunction(call) = &expr else { return Ok(Transformed::no(expr)) };
    let [arg] = call.params.args.as_slice() else { return Ok(Transformed::no(expr)) };
    let Expr::Cast(Cast { expr: product, field }) = bare(arg) else {
        return Ok(Transformed::no(expr));
    };
    let Expr::BinaryExpr(BinaryExpr { left, op: Operator::Multiply, right }) = bare(product) else {
        return Ok(Transformed::no(expr));
    };
    let schema = aggregate.input.schema();
    let (l, r) = (left.get_type(schema)?, right.get_type(schema)?);
    let is_narrow = |t: &DataType| {
        use DataType::{
            Float32, Float64, Int8, Int16, Int32, Int64, UInt8, UInt16, UInt32, UInt64,
        };
        match field.data_type() {
            Float64 => *t == Float32,
            Int64 => matches!(t, Int8 | Int16 | Int32),
            UInt64 => matches!(t, UInt8 | UInt16 | UInt32),
            _ => false,
        }
    };
    if call.func.name() != "sum" || call.params.distinct || !is_narrow(&l) || !is_narrow(&r) {
        return Ok(Transformed::no(expr));
    }
    let wide =
        |e: &Expr| Box::new(Expr::Cast(Cast { expr: Box::new(e.clone()), field: field.clone() }));
    let product = Expr::BinaryExpr(BinaryExpr::new(wide(left), Operator::Multiply, wide(right)));
    let mut params = call.params.clone();
    params.args = vec![product];
    let new = Expr::AggregateFunction(AggregateFunction { func: call.func.clone(), params });
    Ok(Transformed::yes(new))
}
