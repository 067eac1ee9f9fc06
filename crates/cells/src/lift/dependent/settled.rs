//! Relations that have the same rows each time they are computed.

use crate::walk::{Walk, WalkPlan};
use datafusion::common::tree_node::TreeNodeRecursion;
use datafusion::common::{Column, JoinType, Result};
use datafusion::logical_expr::expr::{AggregateFunction, WindowFunction};
use datafusion::logical_expr::{
    Aggregate, Distinct, Expr, LogicalPlan, Subquery, Volatility, Window,
};

use super::super::functions::opaque;
use super::bind::subquery_of;

/// Aggregates whose value does not depend on the order of rows; sums only of numbers that are not floats.
const SETTLED: [&str; 9] =
    ["count", "min", "max", "sum", "bool_and", "bool_or", "bit_and", "bit_or", "bit_xor"];

/// Window functions with the same value for rows that are equal in the order.
const RANKS: [&str; 4] = ["rank", "dense_rank", "percent_rank", "cume_dist"];

/// True if these columns of a plan have the same rows each time.
pub(super) fn is_settled(plan: &LogicalPlan, columns: &[usize]) -> Result<bool> {
    let mut is_same = true;
    plan.each(|node| {
        is_same &= match node {
            LogicalPlan::Limit(_) | LogicalPlan::Distinct(Distinct::On(_)) => false,
            LogicalPlan::Sort(sort) => sort.fetch.is_none(),
            LogicalPlan::Filter(filter) => are_settled(&filter.predicate, &filter.input),
            LogicalPlan::Aggregate(aggregate) => {
                aggregate.group_expr.iter().all(|key| are_settled(key, &aggregate.input))
            }
            LogicalPlan::Join(join) => {
                let is_one = |expr: &Expr| are_settled_in(expr, &[&join.left, &join.right]);
                join.on.iter().all(|(left, right)| is_one(left) && is_one(right))
                    && join.filter.as_ref().is_none_or(is_one)
            }
            _ => true,
        };
        node.each_expr(|expr| {
            is_same &= !is_volatile(expr)?;
            Ok(TreeNodeRecursion::Continue)
        })?;
        Ok(if is_same { TreeNodeRecursion::Continue } else { TreeNodeRecursion::Stop })
    })?;
    Ok(is_same && columns.iter().all(|&at| column(plan, at)))
}

/// True if a condition over rows of a plan keeps the same rows each time.
pub(super) fn is_condition_settled(condition: &Expr, input: &LogicalPlan) -> Result<bool> {
    Ok(!is_volatile(condition)? && are_settled(condition, input))
}

/// True if an expression calls a volatile function.
fn is_volatile(expr: &Expr) -> Result<bool> {
    let (mut found, same) = (false, opaque());
    expr.each(|e| {
        let Expr::ScalarFunction(call) = e else { return Ok(TreeNodeRecursion::Continue) };
        if call.func.name() == same.name() {
            return Ok(TreeNodeRecursion::Jump);
        }
        found |= call.func.signature().volatility == Volatility::Volatile;
        Ok(if found { TreeNodeRecursion::Stop } else { TreeNodeRecursion::Continue })
    })?;
    Ok(found)
}

/// True if all columns of an expression are settled, and all rows of its subqueries.
fn are_settled(expr: &Expr, input: &LogicalPlan) -> bool {
    are_settled_in(expr, &[input])
}

/// As [`are_settled`], for columns of any of these plans.
fn are_settled_in(expr: &Expr, inputs: &[&LogicalPlan]) -> bool {
    let is_settled_one = |name: &Column| {
        inputs.iter().find_map(|input| {
            let at = input.schema().maybe_index_of_column(name)?;
            Some(column(input, at))
        })
    };
    let differs = expr.any(|e| {
        let columns = !matches!(e, Expr::Exists(_));
        Ok(subquery_of(e).is_some_and(|of| !is_same(of, columns, &is_settled_one)))
    });
    expr.column_refs().into_iter().all(|name| is_settled_one(name) == Some(true))
        && !differs.unwrap_or(true)
}

/// True if a subquery has the same rows each time; without `columns` only their number counts. `outside` returns
/// whether an outer column is settled, or `None` for an unknown column.
fn is_same(of: &Subquery, columns: bool, outside: &impl Fn(&Column) -> Option<bool>) -> bool {
    let count = if columns { of.subquery.schema().fields().len() } else { 0 };
    let places: Vec<usize> = (0..count).collect();
    let are_outside = of.outer_ref_columns.iter().all(|expr| match expr {
        Expr::OuterReferenceColumn(_, name) => outside(name) != Some(false),
        _ => true,
    });
    are_outside && is_settled(&of.subquery, &places).unwrap_or(false)
}

fn column(plan: &LogicalPlan, at: usize) -> bool {
    match plan {
        LogicalPlan::TableScan(_) | LogicalPlan::Values(_) | LogicalPlan::EmptyRelation(_) => true,
        LogicalPlan::Projection(projection) => projection.expr.get(at).is_some_and(|item| {
            let has_subquery = item.any(|e| Ok(subquery_of(e).is_some())).unwrap_or(true);
            !has_subquery && are_settled(item, &projection.input)
        }),
        LogicalPlan::SubqueryAlias(alias) => column(&alias.input, at),
        LogicalPlan::Subquery(inner) => column(&inner.subquery, at),
        LogicalPlan::Filter(filter) => column(&filter.input, at),
        LogicalPlan::Sort(sort) => column(&sort.input, at),
        LogicalPlan::Distinct(Distinct::All(input)) => column(input, at),
        LogicalPlan::Join(join) => {
            use JoinType::{Full, Inner, Left, LeftAnti, LeftSemi, Right};
            let lefts = join.left.schema().fields().len();
            match join.join_type {
                Inner | Left | Right | Full | LeftSemi | LeftAnti if at < lefts => {
                    column(&join.left, at)
                }
                Inner | Left | Right | Full => column(&join.right, at - lefts),
                _ => false,
            }
        }
        LogicalPlan::Aggregate(aggregate) => of_group(aggregate, at),
        LogicalPlan::Window(window) => of_window(window, at),
        LogicalPlan::Union(union) => union.inputs.iter().all(|input| column(input, at)),
        LogicalPlan::Unnest(unnest) => {
            unnest.dependency_indices.get(at).is_some_and(|&from| column(&unnest.input, from))
        }
        _ => false,
    }
}

fn of_group(aggregate: &Aggregate, at: usize) -> bool {
    let groups = aggregate.group_expr.as_slice();
    if matches!(groups, [Expr::GroupingSet(_)]) {
        return false;
    }
    if let Some(group) = groups.get(at) {
        return are_settled(group, &aggregate.input);
    }
    let Some(call) = aggregate.aggr_expr.get(at - groups.len()) else { return false };
    let Expr::AggregateFunction(AggregateFunction { func, .. }) = unaliased(call) else {
        return false;
    };
    let is_sum_of_floats =
        func.name() == "sum" && aggregate.schema.field(at).data_type().is_floating();
    SETTLED.contains(&func.name()) && !is_sum_of_floats && are_settled(call, &aggregate.input)
}

fn of_window(window: &Window, at: usize) -> bool {
    let before = window.input.schema().fields().len();
    if at < before {
        return column(&window.input, at);
    }
    let Some(call) = window.window_expr.get(at - before) else { return false };
    let Expr::WindowFunction(function) = unaliased(call) else { return false };
    let WindowFunction { fun, .. } = &**function;
    RANKS.contains(&fun.name()) && are_settled(call, &window.input)
}

fn unaliased(expr: &Expr) -> &Expr {
    match expr {
        Expr::Alias(alias) => unaliased(&alias.expr),
        other => other,
    }
}
