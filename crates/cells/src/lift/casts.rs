//! Makes the names of arguments that differ only by a cast distinct.
//!
//! DataFusion gives `sum(v::double)` and `sum(v)` one name, as its names omit casts, and rejects a block with both.
//! Here an argument with a cast gets an alias that shows it: `sum("CAST(v AS Float64)")`.

use datafusion::common::tree_node::TreeNode;
use datafusion::error::Result;
use datafusion::logical_expr::Expr;
use datafusion::logical_expr::planner::{
    ExprPlanner, PlannerResult, RawAggregateExpr, RawWindowExpr,
};

/// Analyser rule that aliases the arguments of aggregates and window functions.
#[derive(Debug)]
pub(super) struct Casts;

impl ExprPlanner for Casts {
    fn plan_aggregate(
        &self,
        mut call: RawAggregateExpr,
    ) -> Result<PlannerResult<RawAggregateExpr>> {
        call.args = call.args.into_iter().map(named).collect::<Result<_>>()?;
        if let Some(filter) = call.filter {
            call.filter = Some(Box::new(named(*filter)?));
        }
        Ok(PlannerResult::Original(call))
    }

    fn plan_window(&self, mut call: RawWindowExpr) -> Result<PlannerResult<RawWindowExpr>> {
        call.args = call.args.into_iter().map(named).collect::<Result<_>>()?;
        Ok(PlannerResult::Original(call))
    }
}

/// Aliases the expression if it contains a cast of a column.
fn named(expr: Expr) -> Result<Expr> {
    let has_cast = expr.exists(|e| Ok(matches!(e, Expr::Cast(_) | Expr::TryCast(_))))?;
    if !has_cast || expr.column_refs().is_empty() {
        return Ok(expr);
    }
    let name = expr.to_string();
    Ok(expr.alias(name))
}

/// Strips aliases.
pub(super) fn bare(mut expr: &Expr) -> &Expr {
    while let Expr::Alias(alias) = expr {
        expr = &alias.expr;
    }
    expr
}
