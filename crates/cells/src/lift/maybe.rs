//! Scalar subqueries without rows are NULL, even over a column that is never NULL.
//!
//! ```text
//! (SELECT id FROM t WHERE id = -1) IS NULL  ⇒  tessera_maybe((SELECT id FROM t WHERE id = -1)) IS NULL
//! ```
//! DataFusion gives such a subquery the nullability of its column: the condition becomes false, `coalesce` takes the
//! value, and an item of NULL is an error. The function returns its argument, which may be NULL.

use std::sync::Arc;

use crate::walk::{Walk, WalkPlan};
use datafusion::common::tree_node::Transformed;
use datafusion::common::{DFSchema, Result};
use datafusion::logical_expr::{Expr, LogicalPlan, ScalarUDF, Union};

use super::functions::nullable;

/// Wraps the subqueries of a plan that may have no row; names stay the same.
pub(super) fn rewrite(plan: LogicalPlan) -> Result<LogicalPlan> {
    let function = nullable();
    let mut is_changed = false;
    plan.map_all_up(|node| {
        let new = match has_one(&node)? {
            true => super::map_parts(node, |expr| Ok(one(expr, &function)))?.data,
            false if !is_changed => return Ok(Transformed::no(node)),
            false => node,
        };
        is_changed = true;
        // The columns of all nodes above may be NULL.
        Ok(Transformed::yes(of_inputs(new.recompute_schema()?)?))
    })
    .map(|t| t.data)
}

/// True if an expression of the node has such a subquery.
fn has_one(node: &LogicalPlan) -> Result<bool> {
    node.any_expr(|expr| expr.any(|e| Ok(is_one(e))))
}

fn is_one(expr: &Expr) -> bool {
    let Expr::ScalarSubquery(inner) = expr else { return false };
    let column = inner.subquery.schema().fields().first();
    column.is_some_and(|column| !column.is_nullable()) && may_be_empty(&inner.subquery)
}

fn one(expr: Expr, function: &ScalarUDF) -> Transformed<Expr> {
    if is_one(&expr) { Transformed::yes(function.call(vec![expr])) } else { Transformed::no(expr) }
}

/// False if the plan has a row for any data.
fn may_be_empty(plan: &LogicalPlan) -> bool {
    match plan {
        LogicalPlan::Projection(_) | LogicalPlan::SubqueryAlias(_) | LogicalPlan::Window(_) => {
            plan.inputs().into_iter().any(may_be_empty)
        }
        LogicalPlan::Sort(sort) => sort.fetch == Some(0) || may_be_empty(&sort.input),
        LogicalPlan::Aggregate(aggregate) => !aggregate.group_expr.is_empty(),
        LogicalPlan::EmptyRelation(rows) => !rows.produce_one_row,
        LogicalPlan::Values(rows) => rows.values.is_empty(),
        _ => true,
    }
}

/// A union whose columns may be NULL where those of an input may be.
pub(super) fn of_inputs(plan: LogicalPlan) -> Result<LogicalPlan> {
    let LogicalPlan::Union(Union { inputs, schema }) = plan else { return Ok(plan) };
    let may_be_null = |at: usize| {
        let mut fields = inputs.iter().filter_map(|input| input.schema().fields().get(at));
        fields.any(|field| field.is_nullable())
    };
    let fields = schema.iter().enumerate().map(|(at, (relation, field))| {
        let is_nullable = field.is_nullable() || may_be_null(at);
        (relation.cloned(), Arc::new(field.as_ref().clone().with_nullable(is_nullable)))
    });
    let new = DFSchema::new_with_metadata(fields.collect(), schema.metadata().clone())?;
    let new = new.with_functional_dependencies(schema.functional_dependencies().clone())?;
    Ok(LogicalPlan::Union(Union { inputs, schema: Arc::new(new) }))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]
    use super::*;
    use datafusion::functions_aggregate::expr_fn::count;
    use datafusion::logical_expr::{LogicalPlanBuilder, lit};
    use datafusion::prelude::col;

    #[test]
    fn a_plan_without_keys_has_a_row() {
        let rows = || LogicalPlanBuilder::values(vec![vec![lit(1)], vec![lit(2)]]).unwrap();
        let few = || rows().filter(col("column1").gt(lit(5))).unwrap();
        let counted = |rows: LogicalPlanBuilder, keys: Vec<Expr>| {
            rows.aggregate(keys, vec![count(lit(1))]).unwrap()
        };
        for (plan, want) in [
            (rows(), false),
            (few(), true),
            (counted(few(), vec![]), false),
            (counted(few(), vec![col("column1")]), true),
            (counted(few(), vec![]).project(vec![lit(7)]).unwrap(), false),
            (counted(few(), vec![]).limit(1, None).unwrap(), true),
            (LogicalPlanBuilder::empty(true), false),
        ] {
            let plan = plan.build().unwrap();
            assert_eq!(may_be_empty(&plan), want, "{plan}");
        }
    }
}
