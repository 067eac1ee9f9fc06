//! Moves keys of OVER whose order DataFusion does not recognize to columns below the window.
//!
//! ```text
//! Window: count(v) PARTITION BY [v < (<subquery>)]      Window: count(v) PARTITION BY [__key_0]
//!   TableScan: cells                               ⇒      Projection: cells.*, v < (<subquery>) AS __key_0
//!                                                           TableScan: cells
//! ```
//! DataFusion's physical plan sorts by such a key and then does not recognize the order: that of a scalar subquery, and
//! that of an expression in which it finds no bounds of an operand (`abs(k % 7)`, `k % 2 > 0`), or finds bounds outside
//! of a domain (`ln(k)`).

use std::sync::Arc;

use crate::walk::{Walk, WalkPlan};
use datafusion::common::tree_node::Transformed;
use datafusion::common::{Column, Result};
use datafusion::logical_expr::expr::{Cast, TryCast};
use datafusion::logical_expr::{BinaryExpr, Expr, LogicalPlan, Operator, Projection, Window};

use super::order::correlates;

/// The start of the names of the columns.
const COLUMN: &str = "__key_";

/// Functions with the order of their argument if it is in their domain. For any other argument DataFusion (55.2) knows
/// nothing about an expression with one of them, not even an order by the expression itself.
const OF_DOMAINS: [&str; 9] =
    ["acos", "acosh", "asin", "atanh", "ln", "log", "log10", "log2", "sqrt"];

/// Rewrites the plan; the schema stays the same.
pub(super) fn rewrite(plan: LogicalPlan) -> Result<LogicalPlan> {
    moved(plan, |key| Ok(has_subquery(key)? || !is_known(key)))
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
    let fields = window.input.schema().fields();
    let first = fields.iter().filter(|field| field.name().starts_with(COLUMN)).count();
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
                    *key = column(key, &mut keys, first);
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
    exprs.extend(keys.into_iter().enumerate().map(|(i, key)| key.alias(name_of(first + i))));
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

/// True for a key that DataFusion recognizes in the order of its input.
fn is_known(key: &Expr) -> bool {
    match key {
        Expr::Alias(alias) => is_known(&alias.expr),
        Expr::Cast(Cast { expr, .. }) | Expr::TryCast(TryCast { expr, .. }) => is_known(expr),
        Expr::Negative(expr) | Expr::Not(expr) => is_known(expr),
        Expr::IsNull(expr) | Expr::IsNotNull(expr) => is_known(expr),
        Expr::BinaryExpr(BinaryExpr { left, op, right }) => {
            let sides = [left, right];
            sides.iter().all(|side| is_known(side) && (!takes_bounds(*op) || has_bounds(side)))
        }
        Expr::ScalarFunction(call) => match call.name() {
            "one_nan" | "one_zero" => call.args.iter().all(is_known),
            name => !OF_DOMAINS.contains(&name) && call.args.iter().all(is_simple),
        },
        key => is_simple(key),
    }
}

/// True for an operand whose bounds have its type, for DataFusion.
fn has_bounds(operand: &Expr) -> bool {
    match operand {
        Expr::Alias(alias) => has_bounds(&alias.expr),
        Expr::Cast(_) => true,
        Expr::BinaryExpr(BinaryExpr { op, .. }) => takes_bounds(*op),
        operand => is_simple(operand),
    }
}

/// True for an operator that DataFusion applies to the bounds of its sides.
fn takes_bounds(op: Operator) -> bool {
    use Operator::{And, Gt, GtEq, Lt, LtEq, Or};
    matches!(op, Gt | GtEq | Lt | LtEq | And | Or)
}

fn is_simple(operand: &Expr) -> bool {
    matches!(operand, Expr::Column(_) | Expr::Literal(..) | Expr::OuterReferenceColumn(..))
}

fn name_of(i: usize) -> String {
    format!("{COLUMN}{i}")
}

/// The column of a key, which is added unless an equal one exists. The first one has number `first`.
fn column(key: &Expr, keys: &mut Vec<Expr>, first: usize) -> Expr {
    let known = keys.iter().position(|known| known == key);
    let i = known.unwrap_or_else(|| {
        keys.push(key.clone());
        keys.len() - 1
    });
    Expr::Column(Column::new_unqualified(name_of(first + i)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use datafusion::functions::expr_fn::{abs, date_trunc, ln};
    use datafusion::prelude::{col, lit};

    #[test]
    fn keys_without_known_bounds_are_moved() {
        for known in [
            col("k"),
            (col("k") % lit(7)) + lit(1),
            col("k").gt(lit(2)),
            abs(col("k")),
            date_trunc(lit("month"), col("t")),
        ] {
            assert!(is_known(&known), "{known}");
        }
        let unknown = [ln(col("k")), abs(col("k") % lit(7)), (col("k") - col("t")).gt(lit(0))];
        for unknown in unknown.into_iter().chain([abs(col("k")) + ln(col("k"))]) {
            assert!(!is_known(&unknown), "{unknown}");
        }
    }
}
