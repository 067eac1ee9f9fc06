//! Moves expressions in GROUPING SETS, ROLLUP and CUBE to a projection below.
//!
//! ```text
//! Aggregate: ROLLUP (x, v + 1), [count(*)]        Projection: x, g AS v + 1, count(*)
//!                                            ⇒      Aggregate: ROLLUP (x, g), [count(*)]
//!                                                     Projection: …, v + 1 AS g
//! ```
//! Type coercion renames an expression inside a set, and the aggregate then misses its own columns. The same rewrite
//! applies to a cast of another key (`GROUP BY x, x::double`), which has the same name in DataFusion, and to a subquery
//! that uses columns outside, which only a projection may compute. A single set is the keys themselves. A cast goes below, too, if the rows have keys: DataFusion leaves out other keys if it takes the
//! cast for the column that determines them. Runs before types are coerced.

use std::cmp::Ordering;
use std::sync::Arc;

use crate::walk::WalkPlan;
use datafusion::common::tree_node::Transformed;
use datafusion::common::{Column, DFSchemaRef, Result, ScalarValue};
use datafusion::logical_expr::expr::{Cast, TryCast};
use datafusion::logical_expr::{Aggregate, Expr, GroupingSet, LogicalPlan, Projection};

use super::casts::bare;
use super::marks::renamed;
use super::order::correlates;

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
    let single = single_set(&aggregate);
    let is_named_alike = |e: &&Expr, keys: &[Expr]| {
        is_cast_of_another(e, keys) || is_cast_of_key(e, &aggregate) || correlates(e)
    };
    let replaced: Vec<Expr> = match (aggregate.group_expr.as_slice(), &single) {
        (_, Some(keys)) => keys.iter().filter(|e| is_named_alike(e, keys)).cloned().collect(),
        ([Expr::GroupingSet(set)], None) => {
            let exprs = set.distinct_expr().into_iter();
            exprs.filter(|e| !matches!(e, Expr::Column(_))).cloned().collect()
        }
        (plain, None) => plain.iter().filter(|e| is_named_alike(e, plain)).cloned().collect(),
    };
    // `grouping(expr)` is resolved by the set's expressions, before types are coerced.
    let is_grouping = |call: &Expr| matches!(bare(call), Expr::AggregateFunction(f) if f.func.name() == "grouping");
    let is_same = replaced.is_empty() && single.is_none();
    if is_same || aggregate.aggr_expr.iter().any(is_grouping) {
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
    let groups = match (aggregate.group_expr.as_slice(), &single) {
        (_, Some(keys)) => all(keys),
        ([Expr::GroupingSet(set)], None) => vec![Expr::GroupingSet(match set {
            GroupingSet::Rollup(exprs) => GroupingSet::Rollup(all(exprs)),
            GroupingSet::Cube(exprs) => GroupingSet::Cube(all(exprs)),
            GroupingSet::GroupingSets(sets) => {
                GroupingSet::GroupingSets(sets.iter().map(|exprs| all(exprs)).collect())
            }
        })],
        (plain, None) => all(plain),
    };
    let input = match known.is_empty() {
        true => aggregate.input,
        false => Arc::new(LogicalPlan::Projection(Projection::try_new(exprs, aggregate.input)?)),
    };
    let schema = aggregate.schema;
    let new = Aggregate::try_new(input, groups, aggregate.aggr_expr)?;
    let columns = 0..new.schema.fields().len();
    match single {
        Some(keys) => numbered(new, keys.len(), &schema),
        None => renamed(LogicalPlan::Aggregate(new), columns, &schema),
    }
}

/// The keys of groups whose one set has them all.
fn single_set(aggregate: &Aggregate) -> Option<Vec<Expr>> {
    let [Expr::GroupingSet(set @ GroupingSet::GroupingSets(sets))] =
        aggregate.group_expr.as_slice()
    else {
        return None;
    };
    match sets.as_slice() {
        [keys] if !keys.is_empty() => Some(set.distinct_expr().into_iter().cloned().collect()),
        _ => None,
    }
}

/// Groups by plain keys with the columns of a single set, among which is the number of the set.
fn numbered(
    groups: Aggregate,
    keys: usize,
    schema: &DFSchemaRef,
) -> Result<Transformed<LogicalPlan>> {
    let columns = groups.schema.columns();
    let mut exprs = Vec::with_capacity(schema.fields().len());
    for (at, (relation, field)) in schema.iter().enumerate() {
        let expr = match at.cmp(&keys) {
            Ordering::Less => Expr::Column(columns[at].clone()),
            Ordering::Equal => Expr::Literal(ScalarValue::new_zero(field.data_type())?, None),
            Ordering::Greater => Expr::Column(columns[at - 1].clone()),
        };
        exprs.push(expr.alias_qualified(relation.cloned(), field.name()));
    }
    let plan = Projection::try_new(exprs, Arc::new(LogicalPlan::Aggregate(groups)))?;
    Ok(Transformed::yes(LogicalPlan::Projection(plan)))
}

/// True if the expression is a cast of another key.
fn is_cast_of_another(expr: &Expr, keys: &[Expr]) -> bool {
    let inner = converted(expr);
    inner != expr && keys.iter().any(|key| key == inner)
}

/// True if the expression is a cast, of rows whose keys determine other columns.
fn is_cast_of_key(expr: &Expr, aggregate: &Aggregate) -> bool {
    converted(expr) != expr && !aggregate.input.schema().functional_dependencies().is_empty()
}

/// What casts convert.
fn converted(mut expr: &Expr) -> &Expr {
    while let Expr::Cast(Cast { expr: inner, .. }) | Expr::TryCast(TryCast { expr: inner, .. }) =
        expr
    {
        expr = inner;
    }
    expr
}
