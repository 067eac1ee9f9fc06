//! Casts of decimals to fewer digits round half away from zero: `2.50::decimal(15, 2)::int` is 3.
//!
//! Arrow's cast to an integer drops digits. DataFusion takes both casts for ones that keep the value, and compares
//! `CAST(d AS INT) = 2` as `d = 2.00`, which 2.40 is not. So a function rounds the value before the cast. Runs on the
//! analysed plan, which has the implicit casts too.

use std::sync::Arc;

use crate::walk::WalkPlan;
use arrow::datatypes::DataType;
use datafusion::common::tree_node::Transformed;
use datafusion::common::{DFSchema, Result, internal_err};
use datafusion::execution::SessionState;
use datafusion::logical_expr::expr::{Cast, TryCast};
use datafusion::logical_expr::utils::merge_schema;
use datafusion::logical_expr::{Expr, ExprSchemable, LogicalPlan, ScalarUDF, lit};

/// Rewrites the casts of a plan; names stay the same.
pub(super) fn rewrite(plan: LogicalPlan, state: &SessionState) -> Result<LogicalPlan> {
    let Some(round) = state.scalar_functions().get("round") else {
        return internal_err!("no such function: round");
    };
    plan.map_all_up(|node| {
        let schema = merge_schema(&node.inputs());
        super::map_parts(node, |expr| Ok(one(expr, &schema, round)))
    })
    .map(|t| t.data)
}

fn one(mut expr: Expr, schema: &DFSchema, round: &Arc<ScalarUDF>) -> Transformed<Expr> {
    let (Expr::Cast(Cast { expr: value, field }) | Expr::TryCast(TryCast { expr: value, field })) =
        &mut expr
    else {
        return Transformed::no(expr);
    };
    let target = match field.data_type() {
        kind if kind.is_integer() => Some(0),
        kind => scale(kind),
    };
    // The type of a column of an outer query is unknown here.
    let own = value.get_type(schema).ok().as_ref().and_then(scale);
    let is_cut = own.zip(target).is_some_and(|(own, target)| own > target);
    if let (true, Some(target)) = (is_cut, target) {
        let digits = std::mem::take(&mut **value);
        **value = round.call(vec![digits, lit(i32::from(target))]);
    }
    Transformed::new_transformed(expr, is_cut)
}

/// The digits after the point of a type of decimals.
fn scale(kind: &DataType) -> Option<i8> {
    use DataType::{Decimal32, Decimal64, Decimal128, Decimal256};
    match kind {
        Decimal32(_, scale) | Decimal64(_, scale) | Decimal128(_, scale) | Decimal256(_, scale) => {
            Some(*scale)
        }
        _ => None,
    }
}
