//! Conditions from which DataFusion would conclude too much.
//!
//! ```text
//! CAST(ts AS DATE) = '1995-01-01'   ⇒   tessera_always(ts) AND CAST(ts AS DATE) = '1995-01-01'
//! ```
//! For its estimates, DataFusion computes the values of columns that a condition leaves. It inverts casts and
//! arithmetic as if they were one-to-one: here `ts` would be midnight, and the same in all rows, so that `ORDER BY ts`
//! is dropped. An inversion that widens a range is an internal error. DataFusion concludes nothing from a condition
//! with an unknown function. The parts of the condition are unchanged, so they still prune files; the function has the
//! columns of its part, so both are pushed to the same places.

use crate::lift::always;
use crate::walk::{Walk, WalkPlan};
use datafusion::common::tree_node::Transformed;
use datafusion::error::Result;
use datafusion::logical_expr::utils::split_conjunction_owned;
use datafusion::logical_expr::{BinaryExpr, Expr, LogicalPlan, Operator};
use std::collections::BTreeSet;

pub(super) fn with_marks(plan: LogicalPlan) -> Result<LogicalPlan> {
    let always = always::function();
    plan.map_all_up(|node| match node {
        LogicalPlan::Filter(mut filter) if computes(&filter.predicate)? => {
            let condition = std::mem::take(&mut filter.predicate);
            let (mut parts, mut known) = (Vec::new(), BTreeSet::new());
            for part in split_conjunction_owned(condition) {
                let columns: BTreeSet<_> = part.column_refs().into_iter().cloned().collect();
                if computes(&part)? && !columns.is_empty() && known.insert(columns.clone()) {
                    parts.push(always.call(columns.into_iter().map(Expr::Column).collect()));
                }
                parts.push(part);
            }
            filter.predicate = parts.into_iter().reduce(Expr::and).unwrap_or_default();
            Ok(Transformed::yes(LogicalPlan::Filter(filter)))
        }
        node => Ok(Transformed::no(node)),
    })
    .map(|t| t.data)
}

/// True for a condition with a cast or arithmetic.
fn computes(condition: &Expr) -> Result<bool> {
    condition.any(|e| {
        Ok(match e {
            Expr::Cast(_) | Expr::Negative(_) => true,
            Expr::BinaryExpr(BinaryExpr { op, .. }) => matches!(
                op,
                Operator::Plus | Operator::Minus | Operator::Multiply | Operator::Divide
            ),
            _ => false,
        })
    })
}
