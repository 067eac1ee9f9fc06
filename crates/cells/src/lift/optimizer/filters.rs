//! Selects the conditions of a filter that are pushed below its input: see [`crate::grown`].

use std::collections::HashSet;
use std::sync::Arc;

use super::is_kept_above;
use crate::grown::Size;
use crate::lift::guards;
use crate::walk::Walk;
use datafusion::common::tree_node::{Transformed, TreeNodeRecursion};
use datafusion::common::{Column, Result};
use datafusion::logical_expr::utils::{conjunction, split_conjunction};
use datafusion::logical_expr::{BinaryExpr, Expr, Filter, LogicalPlan, Operator, Projection};

/// Applies DataFusion's `rule` to the conditions that may go below the filter's input; the others stay.
///
/// Filters upon each other become one here, because the rule pushes that one down at once, wherever it is.
pub(super) fn pushed(
    filter: Filter,
    rule: impl Fn(LogicalPlan) -> Result<Transformed<LogicalPlan>>,
) -> Result<Transformed<LogicalPlan>> {
    let is_merged = matches!(&*filter.input, LogicalPlan::Filter(_));
    let filter = if is_merged { guards::merged(merged(filter))? } else { filter };
    let mut pushed = match divided(&filter) {
        None => rule(LogicalPlan::Filter(filter))?,
        Some((None, _)) => Transformed::no(LogicalPlan::Filter(filter)),
        Some((Some(goes), stays)) => rule(LogicalPlan::Filter(Filter::new(goes, filter.input)))?
            .update_data(|plan| LogicalPlan::Filter(merged(Filter::new(stays, Arc::new(plan))))),
    };
    pushed.transformed |= is_merged;
    Ok(pushed)
}

/// A filter and the filters directly below it as one; their conditions come first.
fn merged(mut filter: Filter) -> Filter {
    while let LogicalPlan::Filter(below) = &*filter.input {
        let predicate = together(&below.predicate, &filter.predicate);
        filter = Filter::new(predicate, below.input.clone());
    }
    filter
}

/// The conditions of both, each once. `random() < 0.5` is another condition each time.
fn together(first: &Expr, second: &Expr) -> Expr {
    let mut known = HashSet::new();
    let all = split_conjunction(first).into_iter().chain(split_conjunction(second));
    let all = all.filter(|condition| condition.is_volatile() || known.insert(*condition));
    conjunction(all.cloned()).unwrap_or_else(|| first.clone())
}

/// The conditions of a filter that go below its input, and those that stay above it; `None` if all go.
fn divided(filter: &Filter) -> Option<(Option<Expr>, Expr)> {
    if is_kept_above(filter) {
        return Some((None, filter.predicate.clone()));
    }
    let LogicalPlan::Projection(projection) = &*filter.input else { return None };
    let items: Vec<Size> =
        projection.expr.iter().map(|item| size(item, &|_| Size::COLUMN)).collect();
    let below = |column: &Column| size_of(column, projection, &items);
    let (stays, goes): (Vec<&Expr>, Vec<&Expr>) =
        split_conjunction(&filter.predicate).into_iter().partition(|condition| {
            size(condition, &|_| Size::COLUMN).stays_above(size(condition, &below))
        });
    let all = |conditions: Vec<&Expr>| conjunction(conditions.into_iter().cloned());
    let stays = all(stays)?;
    Some((all(goes), stays))
}

/// The size of the expression of a projection's column; `items` has the sizes of the projection's items.
fn size_of(column: &Column, projection: &Projection, items: &[Size]) -> Size {
    let at = projection.schema.maybe_index_of_column(column);
    at.and_then(|at| items.get(at)).copied().unwrap_or(Size::COLUMN)
}

fn size(expr: &Expr, of_column: &dyn Fn(&Column) -> Size) -> Size {
    let mut all = Size::default();
    let walk = expr.each_below(|operand| {
        all = all.beside(size(operand, of_column));
        Ok(TreeNodeRecursion::Continue)
    });
    debug_assert!(walk.is_ok(), "the walk has no error of its own");
    match expr {
        Expr::Column(column) => of_column(column),
        Expr::Literal(..) | Expr::Alias(_) => all,
        Expr::Not(_) | Expr::BinaryExpr(BinaryExpr { op: Operator::And | Operator::Or, .. }) => {
            all.in_logic()
        }
        _ => all.in_operator(),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]
    use super::*;
    use datafusion::logical_expr::{LogicalPlanBuilder, table_scan};
    use datafusion::prelude::{col, lit, random};

    use arrow::datatypes::{DataType, Field, Schema};

    fn table() -> LogicalPlanBuilder {
        let schema = Schema::new(vec![Field::new("v", DataType::Int64, true)]);
        table_scan(Some("t"), &schema, None).unwrap()
    }

    /// `v + 1 + 1 + …`
    fn sum(terms: usize) -> Expr {
        (0..terms).fold(col("v"), |sum, _| sum + lit(1i64))
    }

    fn filter(plan: LogicalPlan) -> Filter {
        match plan {
            LogicalPlan::Filter(filter) => filter,
            other => unreachable!("no filter: {other:?}"),
        }
    }

    #[test]
    fn sizes_count_columns_and_operators() {
        let of = |expr: &Expr| {
            let Size { parts, depth } = size(expr, &|_| Size::COLUMN);
            (parts, depth)
        };
        assert_eq!(of(&col("v")), (1, 0));
        assert_eq!(of(&col("v").gt(lit(1))), (2, 1));
        assert_eq!(of(&sum(3).gt(lit(1))), (5, 4));
        assert_eq!(of(&sum(3).alias("w").gt(lit(1)).and(col("v").lt(lit(2)))), (8, 4));
        assert_eq!(of(&col("v").in_list((0..999).map(lit).collect(), false)), (2, 1));
    }

    #[test]
    fn conditions_that_become_deep_stay_above_their_projection() {
        // `v > 2` and `v + 1 + … > 3` above `v + 1 + … AS v`.
        let plan = table().project(vec![sum(9).alias("v")]).unwrap();
        let both = col("v").gt(lit(2i64)).and(sum(9).gt(lit(3i64)));
        let above = filter(plan.filter(both).unwrap().build().unwrap());
        let (goes, stays) = divided(&above).unwrap();
        assert_eq!(goes, Some(col("v").gt(lit(2i64))));
        assert_eq!(stays, sum(9).gt(lit(3i64)));
        // Above a column alone, both go.
        let plan = table().project(vec![col("t.v").alias("v")]).unwrap();
        let both = col("v").gt(lit(2i64)).and(sum(99).gt(lit(3i64)));
        let above = filter(plan.filter(both).unwrap().build().unwrap());
        assert_eq!(divided(&above), None);
    }

    #[test]
    fn adjacent_filters_are_merged() {
        let condition = |x: i64| col("v").gt(lit(x));
        let plan = table().filter(condition(1)).unwrap().filter(condition(2)).unwrap();
        let plan = plan.filter(condition(1)).unwrap().build().unwrap();
        let one = merged(filter(plan));
        assert_eq!(one.predicate.to_string(), "t.v > Int64(1) AND t.v > Int64(2)");
        assert!(matches!(&*one.input, LogicalPlan::TableScan(_)));
    }

    #[test]
    fn random_conditions_are_not_merged() {
        let half = || random().lt(lit(0.5));
        let plan = table().filter(half()).unwrap().filter(half()).unwrap().build().unwrap();
        let one = merged(filter(plan));
        assert_eq!(split_conjunction(&one.predicate), [&half(), &half()]);
    }
}
