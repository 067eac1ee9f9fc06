//! Names for the totals of very many columns.
//!
//! ```text
//! Projection: sum(c1) AS a, sum(c2) AS b, …
//!   Aggregate: [sum(c1), sum(c2), …]              ⇒    Aggregate: [sum(c1) AS a, sum(c2) AS b, …]
//! ```
//! An aggregate without groups has one row, so DataFusion records each of its columns as a constant. Whenever a
//! projection is built, it searches its expressions for each of these. The time grows with the square of their number,
//! and was half of the planning time for a thousand. A projection that only renames the columns is not needed.

use crate::walk::WalkPlan;
use datafusion::common::tree_node::Transformed;
use datafusion::error::Result;
use datafusion::logical_expr::expr::Alias;
use datafusion::logical_expr::{Aggregate, Expr, LogicalPlan, Projection};
use std::collections::BTreeMap;

/// Minimum totals for the rewrite.
const TOTALS_MIN: usize = 64;

/// The plan, whose aggregates have the names that projections above them give; the columns stay the same.
pub(super) fn with_named_totals(plan: LogicalPlan) -> Result<LogicalPlan> {
    plan.map_all_up(|node| match node {
        LogicalPlan::Projection(items) => Ok(match named(&items)? {
            Some(totals) => Transformed::yes(LogicalPlan::Aggregate(totals)),
            None => Transformed::no(LogicalPlan::Projection(items)),
        }),
        other => Ok(Transformed::no(other)),
    })
    .map(|t| t.data)
}

/// The aggregate below items that are its columns, each once, with the names of the items.
fn named(items: &Projection) -> Result<Option<Aggregate>> {
    let LogicalPlan::Aggregate(totals) = &*items.input else { return Ok(None) };
    let count = totals.aggr_expr.len();
    if !totals.group_expr.is_empty() || count < TOTALS_MIN || count != items.expr.len() {
        return Ok(None);
    }
    let fields = totals.schema.fields().iter();
    let mut left: BTreeMap<&str, &Expr> =
        fields.map(|field| field.name().as_str()).zip(&totals.aggr_expr).collect();
    let mut exprs = Vec::with_capacity(count);
    for item in &items.expr {
        let (column, name) = match item {
            Expr::Alias(Alias { expr, relation: None, name, metadata: None }) => (&**expr, name),
            column @ Expr::Column(own) => (column, &own.name),
            _ => return Ok(None),
        };
        let Expr::Column(column) = column else { return Ok(None) };
        match left.remove(column.name.as_str()) {
            Some(total) if column.relation.is_none() => exprs.push(total.clone().alias(name)),
            _ => return Ok(None),
        }
    }
    let named = Aggregate::try_new(totals.input.clone(), Vec::new(), exprs)?;
    let is_same = named.schema.iter().eq(items.schema.iter());
    Ok(is_same.then_some(named))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::panic, reason = "tests")]
    use super::*;
    use datafusion::functions_aggregate::expr_fn::sum;
    use datafusion::logical_expr::LogicalPlanBuilder;
    use datafusion::prelude::{col, lit};

    fn totals(count: i64) -> LogicalPlanBuilder {
        let rows = LogicalPlanBuilder::values(vec![vec![lit(1i64)], vec![lit(2i64)]]).unwrap();
        let no_keys: [Expr; 0] = [];
        let sums = (0..count).map(|i| sum(col("column1") + lit(i)).alias(format!("t{i}")));
        rows.aggregate(no_keys, sums).unwrap()
    }

    #[test]
    fn projections_that_only_rename_totals_are_removed() {
        let count = TOTALS_MIN as i64;
        // In another order.
        let items = (0..count).rev().map(|i| col(format!("t{i}")).alias(format!("a{i}")));
        let plan = totals(count).project(items).unwrap().build().unwrap();
        let named = with_named_totals(plan.clone()).unwrap();
        assert_eq!(named.schema().fields(), plan.schema().fields());
        let LogicalPlan::Aggregate(named) = named else { panic!("no aggregate") };
        let last = named.aggr_expr[0].to_string();
        assert!(last.contains(&format!("Int64({})", count - 1)), "{last}");
    }

    #[test]
    fn other_projections_stay() {
        let count = TOTALS_MIN as i64;
        let column = |i: i64| col(format!("t{i}"));
        let twice = |i: i64| column(i.max(1)).alias(format!("a{i}"));
        for (totals, items) in [
            (totals(count - 1), (0..count - 1).map(column).collect::<Vec<Expr>>()),
            (totals(count), (0..count).map(|i| column(i) + lit(1i64)).collect()),
            (totals(count), (0..count).map(twice).collect()),
            (totals(count), (1..count).map(column).collect()),
        ] {
            let plan = totals.project(items).unwrap().build().unwrap();
            assert_eq!(with_named_totals(plan.clone()).unwrap(), plan);
        }
    }
}
