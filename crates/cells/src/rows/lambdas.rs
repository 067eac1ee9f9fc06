//! Places of the parameters of lambdas.
//!
//! A parameter is a column behind those of the operator's input: `x@1` over one column, `x@2` over two. DataFusion
//! merges a projection with the one below it, whose input may have another number of columns. It gives the columns
//! their new places there, but not the parameters.

use std::sync::Arc;

use crate::walk::Walk;
use datafusion::error::Result;
use datafusion::physical_expr::PhysicalExpr;
use datafusion::physical_expr::expressions::{LambdaExpr, LambdaVariable};
use datafusion::physical_plan::ExecutionPlan;
use datafusion::physical_plan::projection::{ProjectionExec, ProjectionExpr};

/// The plan with parameters behind the columns of each projection's input.
pub(super) fn with_parameters(plan: Arc<dyn ExecutionPlan>) -> Result<Arc<dyn ExecutionPlan>> {
    plan.replace_up(|node| {
        let Some(projection) = node.downcast_ref::<ProjectionExec>() else { return Ok(None) };
        let columns = projection.input().schema().fields().len();
        let mut is_changed = false;
        let mut items = Vec::with_capacity(projection.expr().len());
        for item in projection.expr() {
            let has_lambda = item.expr.any(|e| Ok(e.is::<LambdaExpr>()))?;
            let expr = match has_lambda {
                true => placed(&item.expr, columns, &mut Vec::new(), &mut is_changed)?,
                false => Arc::clone(&item.expr),
            };
            items.push(ProjectionExpr { expr, alias: item.alias.clone() });
        }
        if !is_changed {
            return Ok(None);
        }
        let input = Arc::clone(projection.input());
        let new = ProjectionExec::try_new_with_schema_metadata(items, input, &projection.schema())?;
        Ok(Some(Arc::new(new)))
    })
}

/// The expression over an input of `columns` columns, inside of lambdas with these parameters.
fn placed(
    expr: &Arc<dyn PhysicalExpr>,
    columns: usize,
    parameters: &mut Vec<String>,
    is_changed: &mut bool,
) -> Result<Arc<dyn PhysicalExpr>> {
    if let Some(variable) = expr.downcast_ref::<LambdaVariable>() {
        let at = parameters.iter().rposition(|name| name == variable.name());
        let place = at.map_or(variable.index(), |at| columns + at);
        if place == variable.index() {
            return Ok(Arc::clone(expr));
        }
        *is_changed = true;
        return Ok(Arc::new(LambdaVariable::new(place, Arc::clone(variable.field()))));
    }
    let outside = parameters.len();
    if let Some(lambda) = expr.downcast_ref::<LambdaExpr>() {
        parameters.extend(lambda.params().iter().cloned());
    }
    let mut parts = Vec::new();
    for part in expr.children() {
        parts.push(placed(part, columns, parameters, is_changed)?);
    }
    parameters.truncate(outside);
    if parts.is_empty() { Ok(Arc::clone(expr)) } else { Arc::clone(expr).with_new_children(parts) }
}
