//! Totals of very many columns.
//!
//! For each item above an aggregate, DataFusion rebuilds a table of all outputs of the aggregate, to search it for
//! parts of the item. The time grows with the square of the number of items, and the search finds nothing, because the
//! items already name these outputs. Above a filter DataFusion builds no table. So a block of many totals gets a
//! condition, which is removed from its plan:
//!
//! ```text
//! SELECT sum(c1), …, sum(c1000) FROM t   ⇒   SELECT sum(c1), …, sum(c1000) FROM t HAVING true
//! ```

use std::ops::ControlFlow;
use std::sync::Arc;

use datafusion::common::tree_node::Transformed;
use datafusion::common::{Result, ScalarValue};
use datafusion::execution::SessionState;
use datafusion::logical_expr::{Expr, LogicalPlan};
use datafusion::sql::planner::SqlToRel;
use sqlparser::ast::{self, Query, Select, SelectItem, Value, VisitorMut};
use tessera_frontend::ast::function_name;
use tessera_frontend::walk::walk_mut;

use super::super::balanced;
use super::super::context::Context;
use crate::walk::WalkPlan;

/// Minimum items of a block that gets the condition.
const ITEMS_MIN: usize = 64;

/// DataFusion's plan of a query.
pub(in crate::lift) fn planned(
    mut query: Query,
    planner: &SqlToRel<'_, Context<'_>>,
    state: &SessionState,
) -> Result<LogicalPlan> {
    let mut blocks = Blocks { state, is_changed: false };
    let _ = walk_mut(&mut query, &mut blocks);
    let plan = planner.sql_statement_to_plan(balanced::statement(query))?;
    if blocks.is_changed { without_conditions(plan) } else { Ok(plan) }
}

struct Blocks<'a> {
    state: &'a SessionState,
    is_changed: bool,
}

impl VisitorMut for Blocks<'_> {
    type Break = ();

    fn pre_visit_select(&mut self, select: &mut Select) -> ControlFlow<()> {
        let items = &select.projection;
        let is_wide = items.len() >= ITEMS_MIN && select.having.is_none();
        // Without any aggregate, HAVING is an error.
        if is_wide && items.iter().any(|item| is_total(item, self.state)) {
            let is_true = Value::Boolean(true).with_empty_span();
            select.having = Some(ast::Expr::Value(is_true));
            self.is_changed = true;
        }
        ControlFlow::Continue(())
    }
}

fn is_total(item: &SelectItem, state: &SessionState) -> bool {
    let (SelectItem::UnnamedExpr(expr) | SelectItem::ExprWithAlias { expr, .. }) = item else {
        return false;
    };
    let (ast::Expr::Function(function), Some(name)) = (expr, function_name(expr)) else {
        return false;
    };
    function.over.is_none()
        && state.aggregate_functions().contains_key(name.value.as_str())
        && !state.scalar_functions().contains_key(name.value.as_str())
}

/// The plan without conditions on groups that are always true.
fn without_conditions(plan: LogicalPlan) -> Result<LogicalPlan> {
    let is_true = |expr: &Expr| matches!(expr, Expr::Literal(ScalarValue::Boolean(Some(true)), _));
    plan.map_all_up(|node| match node {
        LogicalPlan::Filter(filter)
            if is_true(&filter.predicate)
                && matches!(&*filter.input, LogicalPlan::Aggregate(_)) =>
        {
            Ok(Transformed::yes(Arc::unwrap_or_clone(filter.input)))
        }
        other => Ok(Transformed::no(other)),
    })
    .map(|t| t.data)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]
    use super::*;
    use datafusion::logical_expr::LogicalPlanBuilder;
    use datafusion::prelude::lit;

    #[test]
    fn only_conditions_on_groups_that_are_always_true_are_removed() {
        let rows = || LogicalPlanBuilder::values(vec![vec![lit(1)], vec![lit(2)]]).unwrap();
        let no_keys: [Expr; 0] = [];
        let groups = || rows().aggregate([lit(1)], no_keys.clone()).unwrap();
        for (is_removed, plan, condition) in
            [(true, groups(), lit(true)), (false, groups(), lit(false)), (false, rows(), lit(true))]
        {
            let without = plan.clone().build().unwrap();
            let with = plan.filter(condition).unwrap().build().unwrap();
            let want = if is_removed { without } else { with.clone() };
            assert_eq!(without_conditions(with).unwrap(), want);
        }
    }
}
