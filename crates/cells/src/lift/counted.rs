//! `INTERSECT ALL` and `EXCEPT ALL`: rows count as often as they occur.
//!
//! ```text
//! LeftAnti Join: l.k = r.k          Sort: row
//!   l                         ⇒       LeftAnti Join: l.k = r.k, nth = number
//!   r                                   Window: row_number() PARTITION BY k ORDER BY row AS nth
//!                                         Window: row_number() AS row
//!                                           l
//!                                       Window: row_number() PARTITION BY k AS number
//!                                         r
//! ```
//! DataFusion's joins keep all equal rows of the left side, or none. The n-th of equal rows on the left is paired with
//! the n-th on the right; the rows are in the order of the left side. Without ALL the left side is a DISTINCT, and
//! DataFusion's join is correct.

use std::sync::Arc;

use crate::walk::WalkPlan;
use datafusion::common::tree_node::Transformed;
use datafusion::common::{JoinType, NullEquality, Result};
use datafusion::execution::SessionState;
use datafusion::logical_expr::{Distinct, Expr, Join, LogicalPlan, Projection, Sort, lit};

use super::functions::opaque;
use super::numbered::{column, numbered};

const ROW: &str = "__set_row";
const NTH: &str = "__set_nth";
const NUMBER: &str = "__set_number";
const KEY: &str = "__set_key";

/// Rewrites the set operations of a plan; the schema stays the same.
pub(super) fn rewrite(plan: LogicalPlan, state: &SessionState) -> Result<LogicalPlan> {
    plan.map_all_up(|node| match node {
        LogicalPlan::Join(join) if counts(&join) => one(join, state).map(Transformed::yes),
        other => Ok(Transformed::no(other)),
    })
    .map(|t| t.data)
}

/// True for the join of a set operation with ALL. A join of the query's text has no keys before optimisation.
fn counts(join: &Join) -> bool {
    matches!(join.join_type, JoinType::LeftSemi | JoinType::LeftAnti)
        && join.null_equality == NullEquality::NullEqualsNull
        && !join.on.is_empty()
        && !is_distinct(&join.left)
}

fn is_distinct(plan: &LogicalPlan) -> bool {
    matches!(plan, LogicalPlan::Distinct(Distinct::All(_)))
}

fn one(mut join: Join, state: &SessionState) -> Result<LogicalPlan> {
    let schema = join.schema.clone();
    let (lefts, rights) = join.on.iter().cloned().unzip();
    let order = || vec![column(ROW).sort(true, false)];
    let left = numbered(Arc::unwrap_or_clone(join.left), Vec::new(), Vec::new(), ROW, state)?;
    let (left, keys) = keyed(left, lefts)?;
    let left = numbered(left, keys, order(), NTH, state)?;
    let (right, keys) = keyed(Arc::unwrap_or_clone(join.right), rights)?;
    let right = numbered(right, keys, Vec::new(), NUMBER, state)?;
    join.on.push((column(NTH), column(NUMBER)));
    let join = Join::try_new(
        Arc::new(left),
        Arc::new(right),
        join.on,
        join.filter,
        join.join_type,
        join.join_constraint,
        join.null_equality,
        join.null_aware,
    )?;
    let input = Arc::new(LogicalPlan::Join(join));
    let sorted = LogicalPlan::Sort(Sort { expr: order(), input, fetch: None });
    let columns = schema.columns().into_iter().map(Expr::Column).collect();
    let plan = Projection::try_new_with_schema(columns, Arc::new(sorted), schema)?;
    Ok(LogicalPlan::Projection(plan))
}

/// Adds a column for each key, so that the optimiser does not see that one key determines another, as in
/// `SELECT k, k::text`. Else the physical plan would sort by fewer keys, and not recognise rows as ordered by all of
/// them.
fn keyed(input: LogicalPlan, keys: Vec<Expr>) -> Result<(LogicalPlan, Vec<Expr>)> {
    let mut exprs: Vec<Expr> = input.schema().columns().into_iter().map(Expr::Column).collect();
    let mut columns = Vec::with_capacity(keys.len());
    for (at, key) in keys.into_iter().enumerate() {
        let name = format!("{KEY}_{at}");
        columns.push(column(name.as_str()));
        exprs.push(opaque().call(vec![key, lit(at as u64)]).alias(name));
    }
    let plan = Projection::try_new(exprs, Arc::new(input))?;
    Ok((LogicalPlan::Projection(plan), columns))
}
