//! EXISTS, IN, ANY and ALL over a correlated subquery of one row, such as an aggregate without GROUP BY, and EXISTS
//! with OFFSET.
//!
//! | written | becomes |
//! |---|---|
//! | `EXISTS (SELECT max(x) …)` | true |
//! | `EXISTS (SELECT max(x) … HAVING h)` | `(SELECT h …) IS TRUE` |
//! | `k IN (SELECT max(x) …)`, `k < ALL (SELECT max(x) …)` | `k = (SELECT max(x) …)`, `k < (SELECT max(x) …)` |
//! | the same with `HAVING h` | `CASE WHEN (SELECT h …) THEN k = (SELECT max(x) …) ELSE false END` |
//! | `(SELECT DISTINCT count(*) …)` | `(SELECT count(*) …)` |
//! | `EXISTS (SELECT … OFFSET 2)` | `(SELECT count(*) …) > 2` |
//! | `LATERAL (SELECT max(x) … HAVING h) l ON c` | `LATERAL (SELECT max(x), h AS __having …) l ON c AND l.__having` |
//!
//! DataFusion would join the groups of the inner rows, and there is no group where no row matches. Only for scalar
//! subqueries does it add the missing row. Its joins have no OFFSET. Runs on the analysed plan.
//!
//! [`dependent`](super::dependent) would rewrite these subqueries, too, but it computes the outer rows twice, and
//! refuses rows that may differ: below LIMIT, or with a sum of floats. DataFusion's join of a scalar subquery, over a
//! condition `inner = outer`, computes them once.

use std::sync::Arc;

use crate::walk::WalkPlan;
use datafusion::common::tree_node::Transformed;
use datafusion::common::{Column, JoinType, Result, internal_err};
use datafusion::execution::SessionState;
use datafusion::logical_expr::expr::{Exists, SetComparison, SetQuantifier};
use datafusion::logical_expr::{
    Aggregate, BinaryExpr, Distinct, Expr, FetchType, Filter, Join, LogicalPlan, Operator,
    Projection, SkipType, Subquery, SubqueryAlias, lit, not, when,
};

use super::maybe;

/// The column that has the value of HAVING.
const HAVING: &str = "__having";

/// Rewrites such subqueries of a plan; names stay the same.
pub(super) fn rewrite(plan: LogicalPlan, state: &SessionState) -> Result<LogicalPlan> {
    let mut is_changed = false;
    plan.map_all_up(|node| {
        let node = match node {
            // A key of groups cannot be a value of a correlated subquery; `dependent` rewrites those.
            LogicalPlan::Projection(_) | LogicalPlan::Filter(_) => {
                super::map_parts(node, |expr| {
                    Ok(match replaced(&expr, state)? {
                        Some(new) => Transformed::yes(new),
                        None => Transformed::no(expr),
                    })
                })?
            }
            LogicalPlan::Join(join) => lateral(join)?,
            other => Transformed::no(other),
        };
        is_changed |= node.transformed;
        if !is_changed {
            return Ok(node);
        }
        // A value may be NULL where IN was not, and so may be the columns of all nodes above.
        Ok(Transformed::yes(maybe::of_inputs(node.data.recompute_schema()?)?))
    })
    .map(|t| t.data)
}

fn replaced(expr: &Expr, state: &SessionState) -> Result<Option<Expr>> {
    let (left, op, subquery, is_all) = match expr {
        Expr::Exists(exists) => return existing(exists, state),
        Expr::ScalarSubquery(subquery) => return without_distinct(subquery),
        Expr::InSubquery(list) => (&list.expr, Operator::Eq, &list.subquery, false),
        Expr::SetComparison(SetComparison { expr, subquery, op, quantifier }) => {
            (expr, *op, subquery, matches!(quantifier, SetQuantifier::All))
        }
        _ => return Ok(None),
    };
    let Some(having) = one_row(subquery) else { return Ok(None) };
    let value = scalar(subquery, row(&subquery.subquery, true)?);
    let same = Expr::BinaryExpr(BinaryExpr::new(left.clone(), op, Box::new(value)));
    let new = match having {
        None => same,
        Some(filter) => when(condition(subquery, filter)?, same).otherwise(lit(is_all))?,
    };
    let is_negated = matches!(expr, Expr::InSubquery(list) if list.negated);
    Ok(Some(if is_negated { not(new) } else { new }))
}

fn existing(exists: &Exists, state: &SessionState) -> Result<Option<Expr>> {
    let subquery = &exists.subquery;
    match one_row(subquery) {
        Some(None) => Ok(Some(lit(!exists.negated))),
        Some(Some(filter)) => {
            let is_kept = Box::new(condition(subquery, filter)?);
            Ok(Some(if exists.negated { Expr::IsNotTrue(is_kept) } else { Expr::IsTrue(is_kept) }))
        }
        None => past_offset(exists, state),
    }
}

/// For a correlated subquery of one row: the HAVING that may remove the row. `None` for others.
fn one_row(subquery: &Subquery) -> Option<Option<&Filter>> {
    let is_total =
        |plan: &LogicalPlan| matches!(plan, LogicalPlan::Aggregate(a) if a.group_expr.is_empty());
    if subquery.outer_ref_columns.is_empty() {
        return None;
    }
    let mut plan: &LogicalPlan = &subquery.subquery;
    loop {
        plan = match plan {
            LogicalPlan::Projection(projection) => &projection.input,
            LogicalPlan::SubqueryAlias(alias) => &alias.input,
            LogicalPlan::Sort(sort) if sort.fetch.is_none() => &sort.input,
            LogicalPlan::Distinct(Distinct::All(input)) => input,
            LogicalPlan::Filter(filter)
                if is_total(&filter.input) && !filter.predicate.contains_outer() =>
            {
                return Some(Some(filter));
            }
            plan => return is_total(plan).then_some(None),
        };
    }
}

/// The plan of the one row without DISTINCT and ORDER BY; `drops_having` also removes HAVING.
fn row(plan: &LogicalPlan, drops_having: bool) -> Result<LogicalPlan> {
    Ok(match plan {
        LogicalPlan::Projection(projection) => {
            let input = Arc::new(row(&projection.input, drops_having)?);
            let (exprs, schema) = (projection.expr.clone(), Arc::clone(&projection.schema));
            LogicalPlan::Projection(Projection::try_new_with_schema(exprs, input, schema)?)
        }
        LogicalPlan::SubqueryAlias(alias) => {
            let input = Arc::new(row(&alias.input, drops_having)?);
            LogicalPlan::SubqueryAlias(SubqueryAlias::try_new(input, alias.alias.clone())?)
        }
        LogicalPlan::Sort(sort) => row(&sort.input, drops_having)?,
        LogicalPlan::Distinct(Distinct::All(input)) => row(input, drops_having)?,
        LogicalPlan::Filter(filter) if drops_having => LogicalPlan::clone(&filter.input),
        other => other.clone(),
    })
}

fn scalar(of: &Subquery, plan: LogicalPlan) -> Expr {
    Expr::ScalarSubquery(of.with_plan(Arc::new(plan)))
}

fn condition(subquery: &Subquery, having: &Filter) -> Result<Expr> {
    let items = vec![having.predicate.clone().alias(HAVING)];
    let plan = Projection::try_new(items, Arc::clone(&having.input))?;
    Ok(scalar(subquery, LogicalPlan::Projection(plan)))
}

fn without_distinct(subquery: &Subquery) -> Result<Option<Expr>> {
    let is_one = one_row(subquery).is_some();
    let mut plan: &LogicalPlan = &subquery.subquery;
    loop {
        plan = match plan {
            LogicalPlan::Projection(projection) if is_one => &projection.input,
            LogicalPlan::SubqueryAlias(alias) if is_one => &alias.input,
            LogicalPlan::Distinct(_) if is_one => {
                return Ok(Some(scalar(subquery, row(&subquery.subquery, false)?)));
            }
            _ => return Ok(None),
        };
    }
}

/// Moves HAVING to the ON of a join: DataFusion keeps a row although HAVING removed the row of the LATERAL subquery.
fn lateral(join: Join) -> Result<Transformed<LogicalPlan>> {
    let is_plain = matches!(join.join_type, JoinType::Inner | JoinType::Left);
    let Some((right, having)) = with_having(&join.right)?.filter(|_| is_plain) else {
        return Ok(Transformed::no(LogicalPlan::Join(join)));
    };
    let columns = join.schema.columns().into_iter().map(Expr::Column).collect();
    let having = Expr::Column(having);
    let filter = match join.filter {
        Some(filter) => filter.and(having),
        None => having,
    };
    let join = Join::try_new(
        join.left,
        Arc::new(right),
        join.on,
        Some(filter),
        join.join_type,
        join.join_constraint,
        join.null_equality,
        join.null_aware,
    )?;
    let join = Projection::try_new(columns, Arc::new(LogicalPlan::Join(join)))?;
    Ok(Transformed::yes(LogicalPlan::Projection(join)))
}

/// A LATERAL subquery of one row with the value of its HAVING in a column, and that column.
fn with_having(right: &LogicalPlan) -> Result<Option<(LogicalPlan, Column)>> {
    if let LogicalPlan::SubqueryAlias(alias) = right
        && let LogicalPlan::Subquery(subquery) = &*alias.input
        && let LogicalPlan::Projection(items) = &*subquery.subquery
        && let Some(Some(filter)) = one_row(subquery)
        && matches!(&*items.input, LogicalPlan::Filter(_))
    {
        let mut exprs = items.expr.clone();
        exprs.push(filter.predicate.clone().alias(HAVING));
        let items = Projection::try_new(exprs, Arc::clone(&filter.input))?;
        let subquery = subquery.with_plan(Arc::new(LogicalPlan::Projection(items)));
        let subquery = Arc::new(LogicalPlan::Subquery(subquery));
        let right = SubqueryAlias::try_new(subquery, alias.alias.clone())?;
        let column = Column::new(Some(alias.alias.clone()), HAVING);
        return Ok(Some((LogicalPlan::SubqueryAlias(right), column)));
    }
    Ok(None)
}

/// EXISTS with OFFSET as a comparison of the number of rows.
fn past_offset(exists: &Exists, state: &SessionState) -> Result<Option<Expr>> {
    let subquery = &exists.subquery;
    let mut plan: &Arc<LogicalPlan> = &subquery.subquery;
    let mut skipped = None;
    // Neither the columns nor the order decide how many rows there are.
    loop {
        plan = match &**plan {
            LogicalPlan::Projection(projection) => &projection.input,
            LogicalPlan::SubqueryAlias(alias) => &alias.input,
            LogicalPlan::Sort(sort) if sort.fetch.is_none() => &sort.input,
            LogicalPlan::Limit(limit) if skipped.is_none() => {
                let SkipType::Literal(skip) = limit.get_skip_type()? else { return Ok(None) };
                let has_none = matches!(limit.get_fetch_type()?, FetchType::Literal(Some(0)));
                if skip == 0 || has_none {
                    return Ok(None);
                }
                skipped = Some(skip);
                &limit.input
            }
            _ => break,
        };
    }
    let Some(skipped) = skipped.filter(|_| !subquery.outer_ref_columns.is_empty()) else {
        return Ok(None);
    };
    let Some(count) = state.aggregate_functions().get("count") else {
        return internal_err!("no such function: count");
    };
    let count = count.call(vec![lit(1_i64)]);
    let total = Aggregate::try_new(Arc::clone(plan), Vec::new(), vec![count])?;
    let total = scalar(subquery, LogicalPlan::Aggregate(total));
    let skipped = lit(i64::try_from(skipped).unwrap_or(i64::MAX));
    Ok(Some(if exists.negated { total.lt_eq(skipped) } else { total.gt(skipped) }))
}
