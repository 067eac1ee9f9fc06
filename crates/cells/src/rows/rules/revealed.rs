//! Columns of grouping sets that were hidden from DataFusion's optimizer.
//!
//! ```text
//! AggregateExec: ROLLUP (k)                          AggregateExec: ROLLUP (k)
//!   ProjectionExec: tessera_opaque(k, random())  ⇒     ProjectionExec: k
//! ```
//! The optimizer takes a constant or an order of the rows for one of the groups, although those of smaller sets have
//! neither ([`crate::lift`] hides them therefore). Once it is done, the columns are what they are: `random` would keep the
//! rows on one thread.

use crate::lift::OPAQUE;
use crate::walk::Walk;
use datafusion::error::Result;
use datafusion::physical_expr::{PhysicalExpr, ScalarFunctionExpr};
use datafusion::physical_plan::aggregates::AggregateExec;
use datafusion::physical_plan::execution_plan::replace_children_if_necessary;
use datafusion::physical_plan::projection::{ProjectionExec, ProjectionExpr};
use datafusion::physical_plan::{ExecutionPlan, ExecutionPlanProperties};
use std::sync::Arc;

/// The plan, whose aggregates read such columns as they are, unless the rows have constants or an order.
pub(super) fn with_revealed(plan: Arc<dyn ExecutionPlan>) -> Result<Arc<dyn ExecutionPlan>> {
    plan.replace_up(|node| {
        let Some(aggregate) = node.downcast_ref::<AggregateExec>() else { return Ok(None) };
        let Some(hidden) = aggregate.input().downcast_ref::<ProjectionExec>() else {
            return Ok(None);
        };
        let rows = hidden.input();
        let known = rows.equivalence_properties();
        if rows.output_ordering().is_some() || !known.constants().is_empty() {
            return Ok(None);
        }
        let items = hidden.expr().iter().map(|item| {
            let expr = within(&item.expr).unwrap_or(&item.expr).clone();
            ProjectionExpr::new(expr, item.alias.clone())
        });
        let items: Vec<ProjectionExpr> = items.collect();
        if items.iter().zip(hidden.expr()).all(|(new, old)| Arc::ptr_eq(&new.expr, &old.expr)) {
            return Ok(None);
        }
        let revealed = ProjectionExec::try_new(items, rows.clone())?;
        // A column that cannot be NULL has another field than what hid it.
        if revealed.schema() != hidden.schema() {
            return Ok(None);
        }
        replace_children_if_necessary(node.clone(), vec![Arc::new(revealed)]).map(Some)
    })
}

/// The first argument of a call of [`OPAQUE`].
fn within(expr: &Arc<dyn PhysicalExpr>) -> Option<&Arc<dyn PhysicalExpr>> {
    let call = expr.downcast_ref::<ScalarFunctionExpr>()?;
    (call.name() == OPAQUE).then(|| call.args().first()).flatten()
}
