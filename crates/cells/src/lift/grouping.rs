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
//!
//! By its name DataFusion takes a cast of a column for the column, too: of `GROUP BY t::date` over a subquery with
//! `GROUP BY t` it makes groups by all that depends on t. Such a block has a text behind its keys, [`END`]: what
//! follows it and depends on casts alone is no key. So that the optimiser does not take out keys either, the casts
//! are columns of a projection below.

use std::sync::Arc;

use crate::walk::WalkPlan;
use datafusion::common::tree_node::Transformed;
use datafusion::common::{Column, Result, ScalarValue};
use datafusion::logical_expr::expr::{Cast, TryCast};
use datafusion::logical_expr::logical_plan::builder::add_group_by_exprs_from_dependencies;
use datafusion::logical_expr::{Aggregate, Expr, GroupingSet, LogicalPlan, Projection};

use super::casts::bare;
use super::marks::renamed;

/// The text behind the keys of `GROUP BY`.
pub(super) const END: &str = "tessera: the end of the keys";

/// Rewrites all aggregates of a plan; the columns stay the same, without [`END`].
pub(super) fn rewrite(plan: LogicalPlan) -> Result<LogicalPlan> {
    let (mut names, mut has_cut) = (0, false);
    plan.map_all_up(|node| match node {
        LogicalPlan::Aggregate(aggregate) => {
            let (aggregate, is_cut) = without_end(aggregate)?;
            has_cut |= is_cut;
            let node = one(aggregate, &mut names)?;
            Ok(Transformed::new_transformed(node.data, node.transformed || is_cut))
        }
        // A window has the columns of the groups below it.
        window @ LogicalPlan::Window(_) if has_cut => {
            window.recompute_schema().map(Transformed::yes)
        }
        other => Ok(Transformed::no(other)),
    })
    .map(|t| t.data)
}

/// The aggregate with the keys before [`END`] and what depends on those that are no casts; true if it has that mark.
fn without_end(aggregate: Aggregate) -> Result<(Aggregate, bool)> {
    let is_end =
        |e: &Expr| matches!(e, Expr::Literal(ScalarValue::Utf8(Some(text)), _) if text == END);
    let Some(end) = aggregate.group_expr.iter().position(is_end) else {
        return Ok((aggregate, false));
    };
    let mut keys = aggregate.group_expr;
    keys.truncate(end);
    let own: Vec<Expr> = keys.iter().filter(|key| !is_cast(key)).cloned().collect();
    let count = own.len();
    let all = add_group_by_exprs_from_dependencies(own, aggregate.input.schema())?;
    for depends in all.into_iter().skip(count) {
        if !keys.contains(&depends) {
            keys.push(depends);
        }
    }
    Ok((Aggregate::try_new(aggregate.input, keys, aggregate.aggr_expr)?, true))
}

fn is_cast(key: &Expr) -> bool {
    matches!(bare(key), Expr::Cast(_) | Expr::TryCast(_))
}

fn one(aggregate: Aggregate, names: &mut usize) -> Result<Transformed<LogicalPlan>> {
    let has_dependencies = !aggregate.input.schema().functional_dependencies().is_empty();
    let replaced: Vec<Expr> = match aggregate.group_expr.as_slice() {
        [Expr::GroupingSet(set)] => {
            let exprs = set.distinct_expr().into_iter();
            exprs.filter(|e| !matches!(e, Expr::Column(_))).cloned().collect()
        }
        plain => {
            let is_moved =
                |e: &Expr| is_cast_of_another(e, plain) || (has_dependencies && is_cast(e));
            plain.iter().filter(|e| is_moved(e)).cloned().collect()
        }
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
