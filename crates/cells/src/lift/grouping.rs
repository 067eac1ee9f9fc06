//! Moves expressions in GROUPING SETS, ROLLUP and CUBE to a projection below.
//!
//! ```text
//! Aggregate: ROLLUP (x, v + 1), [count(*)]        Projection: x, g AS v + 1, count(*)
//!                                            ⇒      Aggregate: ROLLUP (x, g), [count(*)]
//!                                                     Projection: …, v + 1 AS g
//! ```
//! Type coercion renames an expression inside a set, and the aggregate then misses its own columns. The same rewrite
//! applies to a cast of another key (`GROUP BY x, x::double`), which has the same name in DataFusion. Runs before types
//! are coerced.

use std::sync::Arc;

use crate::walk::WalkPlan;
use datafusion::common::tree_node::Transformed;
use datafusion::common::{Column, Result};
use datafusion::logical_expr::expr::{Cast, TryCast};
use datafusion::logical_expr::{Aggregate, Expr, GroupingSet, LogicalPlan, Projection};

use super::casts::bare;
use super::marks::renamed;

/// Rewrites all aggregates of a plan; the columns stay the same.
pub(super) fn rewrite(plan: LogicalPlan) -> Result<LogicalPlan> {
    let mut names = 0;
    plan.map_all_up(|node| match node {
        LogicalPlan::Aggregate(aggregate) => one(aggregate, &mut names),
        other => Ok(Transformed::no(other)),
    })
    .map(|t| t.data)
}

fn one(aggregate: Aggregate, names: &mut usize) -> Result<Transformed<LogicalPlan>> {
    let replaced: Vec<Expr> = match aggregate.group_expr.as_slice() {
        [Expr::GroupingSet(set)] => {
            let exprs = set.distinct_expr().into_iter();
            exprs.filter(|e| !matches!(e, Expr::Column(_))).cloned().collect()
        }
        plain => plain.iter().filter(|e| is_cast_of_another(e, plain)).cloned().collect(),
    };
    // `grouping(expr)` is resolved by the set's expressions, before types are coerced.
    let is_grouping = |call: &Expr| matches!(bare(call), Expr::AggregateFunction(f) if f.func.name() == "grouping");
    if replaced.is_empty() || aggregate.aggr_expr.iter().any(is_grouping) {
        return Ok(Transformed::no(LogicalPlan::Aggregate(aggregate)));
    }
    // Each expression and its new column.
    let mut known: Vec<(Expr, Expr)> = Vec::new();
    let mut exprs: Vec<Expr> =
        aggregate.input.schema().columns().into_iter().map(Expr::Column).collect();
    for expr in replaced {
        *names += 1;
        let name = format!("__group_{names}");
        exprs.push(expr.clone().alias(name.clone()));
        known.push((expr, Expr::Column(Column::new_unqualified(name))));
    }
    let named = |expr: &Expr| {
        known.iter().find(|(e, _)| e == expr).map_or_else(|| expr.clone(), |(_, c)| c.clone())
    };
    let all = |exprs: &[Expr]| exprs.iter().map(named).collect::<Vec<Expr>>();
    let groups = match aggregate.group_expr.as_slice() {
        [Expr::GroupingSet(set)] => vec![Expr::GroupingSet(match set {
            GroupingSet::Rollup(exprs) => GroupingSet::Rollup(all(exprs)),
            GroupingSet::Cube(exprs) => GroupingSet::Cube(all(exprs)),
            GroupingSet::GroupingSets(sets) => {
                GroupingSet::GroupingSets(sets.iter().map(|exprs| all(exprs)).collect())
            }
        })],
        plain => all(plain),
    };
    let input = Arc::new(LogicalPlan::Projection(Projection::try_new(exprs, aggregate.input)?));
    let schema = aggregate.schema;
    let new = Aggregate::try_new(input, groups, aggregate.aggr_expr)?;
    let columns = 0..new.schema.fields().len();
    renamed(LogicalPlan::Aggregate(new), columns, &schema)
}

/// True if the expression is a cast of another key.
fn is_cast_of_another(expr: &Expr, keys: &[Expr]) -> bool {
    let mut inner = expr;
    while let Expr::Cast(Cast { expr, .. }) | Expr::TryCast(TryCast { expr, .. }) = inner {
        inner = expr;
    }
    inner != expr && keys.iter().any(|key| key == inner)
}
