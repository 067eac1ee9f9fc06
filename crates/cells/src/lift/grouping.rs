//! Moves expressions in GROUPING SETS, ROLLUP and CUBE to a projection below.
//!
//! ```text
//! Aggregate: ROLLUP (x, v + 1), [count(*)]        Projection: x, g AS v + 1, count(*)
//!                                            ⇒      Aggregate: ROLLUP (x, g), [count(*)]
//!                                                     Projection: …, v + 1 AS g
//! ```
//! Type coercion renames an expression inside a set, and the aggregate then misses its own columns. The same rewrite
//! applies to a cast of another key (`GROUP BY x, x::double`), which has the same name in DataFusion, and to a
//! correlated subquery, which only a projection may compute. A single set becomes plain keys. A cast moves below, too,
//! if the rows have keys: DataFusion drops other keys if it takes the cast for the column that determines them.
//! `grouping(v + 1)` becomes `grouping(g)`. Runs before types are coerced.

use std::cmp::Ordering;
use std::sync::Arc;

use crate::walk::WalkPlan;
use datafusion::common::tree_node::Transformed;
use datafusion::common::{Column, DFSchema, DFSchemaRef, Result, ScalarValue};
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
    // A key with a cast has an alias in `grouping` (see `casts`).
    let mut arguments = aggregate.aggr_expr.iter().filter_map(grouping).flatten();
    let has_aliases = arguments.any(|key| matches!(key, Expr::Alias(_)));
    if replaced.is_empty() && single.is_none() && !has_aliases {
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
    // The key `length(s)` is `len(s)` with an alias.
    let key_of = |argument: &Expr| {
        let plain = bare(argument);
        let exact = known.iter().find(|(e, _)| e == argument || e == plain);
        let found = exact.or_else(|| known.iter().find(|(e, _)| bare(e) == plain));
        let found = found.map(|(_, column)| column);
        found.or_else(|| groups.iter().find(|e| bare(e) == plain)).unwrap_or(plain).clone()
    };
    let has_grouping = aggregate.aggr_expr.iter().any(|call| grouping(call).is_some());
    let calls = aggregate.aggr_expr.into_iter().map(|call| of_keys(call, &key_of)).collect();
    let input = match known.is_empty() {
        true => aggregate.input,
        false => Arc::new(LogicalPlan::Projection(Projection::try_new(exprs, aggregate.input)?)),
    };
    let schema = aggregate.schema;
    let new = Aggregate::try_new(input, groups, calls)?;
    if let Some(keys) = single {
        return numbered(new, keys.len(), &schema);
    }
    // Beside `grouping`, DataFusion drops the column with the number of the set.
    let keeps = |name: &str| !has_grouping || name != Aggregate::INTERNAL_GROUPING_ID;
    let fields = new.schema.fields().iter().enumerate();
    let columns: Vec<usize> = fields.filter(|(_, f)| keeps(f.name())).map(|(at, _)| at).collect();
    let fields = schema.iter().filter(|(_, f)| keeps(f.name()));
    let fields = fields.map(|(relation, f)| (relation.cloned(), Arc::clone(f))).collect();
    let schema = Arc::new(DFSchema::new_with_metadata(fields, schema.metadata().clone())?);
    renamed(LogicalPlan::Aggregate(new), columns.into_iter(), &schema)
}

/// The keys of a call of `grouping`.
fn grouping(call: &Expr) -> Option<&[Expr]> {
    match bare(call) {
        Expr::AggregateFunction(f) if f.func.name() == "grouping" => Some(&f.params.args),
        _ => None,
    }
}

/// `grouping` of the new columns; other calls stay the same.
fn of_keys(call: Expr, key_of: &dyn Fn(&Expr) -> Expr) -> Expr {
    match call {
        Expr::Alias(mut alias) => {
            *alias.expr = of_keys(*alias.expr, key_of);
            Expr::Alias(alias)
        }
        Expr::AggregateFunction(mut f) if f.func.name() == "grouping" => {
            f.params.args = f.params.args.iter().map(key_of).collect();
            Expr::AggregateFunction(f)
        }
        other => other,
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

/// The expression inside of casts.
fn converted(mut expr: &Expr) -> &Expr {
    while let Expr::Cast(Cast { expr: inner, .. }) | Expr::TryCast(TryCast { expr: inner, .. }) =
        expr
    {
        expr = inner;
    }
    expr
}
