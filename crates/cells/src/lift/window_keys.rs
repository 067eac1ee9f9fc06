//! Moves keys of OVER that contain a scalar subquery to columns below the window.
//!
//! ```text
//! Window: count(v) PARTITION BY [v < (<subquery>)]      Window: count(v) PARTITION BY [__key_0]
//!   TableScan: cells                               ⇒      Projection: cells.*, v < (<subquery>) AS __key_0
//!                                                           TableScan: cells
//! ```
//! DataFusion's physical plan sorts by such a key and then does not recognize the order.

use std::sync::Arc;

use crate::walk::{Walk, WalkPlan};
use datafusion::common::tree_node::Transformed;
use datafusion::common::{Column, Result};
use datafusion::logical_expr::{Expr, LogicalPlan, Projection, Window};

use super::order::correlates;

/// Rewrites the plan; the schema stays the same.
pub(super) fn rewrite(plan: LogicalPlan) -> Result<LogicalPlan> {
    moved(plan, has_subquery)
}

/// As [`rewrite`], for keys with a correlated subquery, which only a projection may compute. Runs before types are
/// coerced, which refuses such keys elsewhere.
pub(super) fn correlated(plan: LogicalPlan) -> Result<LogicalPlan> {
    moved(plan, |key| Ok(correlates(key)))
}

fn moved(plan: LogicalPlan, is_moved: fn(&Expr) -> Result<bool>) -> Result<LogicalPlan> {
    plan.map_all_up(|node| match node {
        LogicalPlan::Window(window) => below(window, is_moved),
        node => Ok(Transformed::no(node)),
    })
    .map(|t| t.data)
}

fn below(window: Window, is_moved: fn(&Expr) -> Result<bool>) -> Result<Transformed<LogicalPlan>> {
    let mut keys: Vec<Expr> = Vec::new();
    let mut calls = Vec::with_capacity(window.window_expr.len());
    for call in &window.window_expr {
        let name = call.schema_name().to_string();
        let new = call.clone().map_down(|e| {
            let Expr::WindowFunction(mut function) = e else { return Ok(Transformed::no(e)) };
            let params = &mut function.params;
            let sorts = params.order_by.iter_mut().map(|sort| &mut sort.expr);
            let mut is_changed = false;
            for key in params.partition_by.iter_mut().chain(sorts) {
                if is_moved(key)? {
                    is_changed = true;
                    *key = column(key, &mut keys);
                }
            }
            Ok(Transformed::new_transformed(Expr::WindowFunction(function), is_changed))
        })?;
        // An alias preserves the name already, and the physical plan accepts only one.
        calls.push(match new.transformed && !matches!(call, Expr::Alias(_)) {
            true => new.data.alias(name),
            false => new.data,
        });
    }
    if keys.is_empty() {
        return Ok(Transformed::no(LogicalPlan::Window(window)));
    }
    let mut exprs: Vec<Expr> =
        window.input.schema().columns().into_iter().map(Expr::Column).collect();
    exprs.extend(keys.into_iter().enumerate().map(|(i, key)| key.alias(name_of(i))));
    let input = Projection::try_new(exprs, window.input)?;
    let wide = Window::try_new(calls, Arc::new(LogicalPlan::Projection(input)))?;
    let exprs = window.schema.columns().into_iter().map(Expr::Column).collect();
    let wide = Arc::new(LogicalPlan::Window(wide));
    let plan = Projection::try_new_with_schema(exprs, wide, window.schema)?;
    Ok(Transformed::yes(LogicalPlan::Projection(plan)))
}

fn has_subquery(key: &Expr) -> Result<bool> {
    key.any(|e| Ok(matches!(e, Expr::ScalarSubquery(_))))
}

fn name_of(i: usize) -> String {
    format!("__key_{i}")
}

/// The column of a key, which is added unless an equal one exists.
fn column(key: &Expr, keys: &mut Vec<Expr>) -> Expr {
    let known = keys.iter().position(|known| known == key);
    let i = known.unwrap_or_else(|| {
        keys.push(key.clone());
        keys.len() - 1
    });
    Expr::Column(Column::new_unqualified(name_of(i)))
}
