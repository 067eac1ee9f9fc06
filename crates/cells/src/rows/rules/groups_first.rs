//! Aggregates over joins of a table with groups: the groups are the first side.
//!
//! ```text
//! SELECT sum(t.v * g.m) FROM t JOIN (SELECT k, max(v) AS m FROM t GROUP BY k) g ON t.k = g.k
//!
//! HashJoinExec: t, groups      ⇒      HashJoinExec: groups, t
//! ```
//! A join has a table of its first side, and the splits of its second side are probed on all threads. DataFusion knows
//! nothing of the number of groups, so it assumes that of their rows, and for as many rows it leaves the sides as they
//! are written. There are mostly fewer groups than rows, and their rows come from one partition. A first side with fewer
//! rows than its table stays: its keys are a filter for the scan of the second side. So does one without an aggregate
//! above: rows of such a join have the order of the groups, and to sort the groups takes less than to sort all rows.

use crate::rows::splits::{has_condition, values_within};
use crate::walk::Walk;
use datafusion::common::{ColumnStatistics, Statistics};
use datafusion::error::Result;
use datafusion::physical_expr::expressions::Column;
use datafusion::physical_plan::ExecutionPlan;
use datafusion::physical_plan::aggregates::{AggregateExec, PhysicalGroupBy};
use datafusion::physical_plan::execution_plan::{ChildrenPropertiesMode, ReplaceChildrenOptions};
use datafusion::physical_plan::filter::FilterExec;
use datafusion::physical_plan::joins::{HashJoinExec, PartitionMode};
use datafusion::physical_plan::projection::ProjectionExec;
use datafusion::physical_plan::sorts::sort::SortExec;
use datafusion::physical_plan::statistics::{StatisticsArgs, StatisticsContext};
use std::sync::Arc;

/// Minimum rows of a table for which the sides matter.
const ROWS_MIN: usize = 1 << 16;

/// The plan, whose aggregates over the join of a whole table with at most as many groups have these as its first side.
pub(super) fn with_groups_first(plan: Arc<dyn ExecutionPlan>) -> Result<Arc<dyn ExecutionPlan>> {
    plan.replace_up(|node| {
        let Some(aggregate) = node.downcast_ref::<AggregateExec>() else { return Ok(None) };
        over(node, swapped(aggregate.input())?)
    })
}

/// The node over another input, if there is one.
fn over(
    node: &Arc<dyn ExecutionPlan>,
    input: Option<Arc<dyn ExecutionPlan>>,
) -> Result<Option<Arc<dyn ExecutionPlan>>> {
    let Some(input) = input else { return Ok(None) };
    let options = ReplaceChildrenOptions::new(ChildrenPropertiesMode::Recompute);
    node.clone().replace_children(vec![input], options).map(Some)
}

/// The rows of an aggregate with the other order of such a join; `None` if there is no such join. A later rule drops
/// sorts, as their order does not matter above.
fn swapped(plan: &Arc<dyn ExecutionPlan>) -> Result<Option<Arc<dyn ExecutionPlan>>> {
    if let Some(join) = plan.downcast_ref::<HashJoinExec>() {
        return groups_first(join);
    }
    let is_sort = plan.downcast_ref::<SortExec>().is_some_and(|sort| sort.fetch().is_none());
    match plan.children()[..] {
        [input] if is_sort || plan.is::<ProjectionExec>() || plan.is::<FilterExec>() => {
            over(plan, swapped(input)?)
        }
        _ => Ok(None),
    }
}

fn groups_first(join: &HashJoinExec) -> Result<Option<Arc<dyn ExecutionPlan>>> {
    let may_swap = *join.partition_mode() == PartitionMode::CollectLeft
        && join.join_type().supports_swap()
        && !join.null_aware
        && is_whole_table(join.left());
    let Some(aggregate) = groups_of(join.right()).filter(|_| may_swap) else { return Ok(None) };
    let rows = statistics(join.left())?.num_rows.get_value().copied();
    let Some(rows) = rows.filter(|rows| *rows >= ROWS_MIN) else { return Ok(None) };
    let grouped = statistics(aggregate.input())?;
    match groups_max(aggregate.group_expr(), &grouped) {
        Some(groups) if groups <= rows => join.swap_inputs(PartitionMode::CollectLeft).map(Some),
        _ => Ok(None),
    }
}

fn statistics(plan: &Arc<dyn ExecutionPlan>) -> Result<Arc<Statistics>> {
    StatisticsContext::new().compute(plan.as_ref(), &StatisticsArgs::new())
}

/// True for a scan without a condition, also below projections.
fn is_whole_table(plan: &Arc<dyn ExecutionPlan>) -> bool {
    match plan.children()[..] {
        [] => !has_condition(plan),
        [input] => plan.is::<ProjectionExec>() && is_whole_table(input),
        _ => false,
    }
}

/// The aggregate with one set of keys whose groups are the rows of a plan, or some of them; `None` for other plans.
fn groups_of(plan: &Arc<dyn ExecutionPlan>) -> Option<&AggregateExec> {
    if let Some(aggregate) = plan.downcast_ref::<AggregateExec>() {
        let by = aggregate.group_expr();
        return (!by.is_true_no_grouping() && by.is_single()).then_some(aggregate);
    }
    match plan.children()[..] {
        [input] if plan.is::<ProjectionExec>() || plan.is::<FilterExec>() => groups_of(input),
        _ => None,
    }
}

/// Upper bound on the groups of rows with these statistics, as far as these are right.
fn groups_max(by: &PhysicalGroupBy, rows: &Statistics) -> Option<usize> {
    let of_key = |column: &ColumnStatistics| {
        let distinct = column.distinct_count.get_value().map(|count| *count as u64);
        [distinct, values_within(column)].into_iter().flatten().min()
    };
    let keys = by.expr().iter().map(|(key, _)| {
        let column = key.downcast_ref::<Column>()?;
        // One more for missing keys.
        Some(of_key(rows.column_statistics.get(column.index())?)?.saturating_add(1))
    });
    let all = keys.collect::<Option<Vec<_>>>();
    let all = all.map(|keys| keys.into_iter().fold(1, u64::saturating_mul));
    let all = all.and_then(|groups| usize::try_from(groups).ok());
    [all, rows.num_rows.get_value().copied()].into_iter().flatten().min()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]
    use super::*;
    use crate::lift::session_state;
    use crate::rows::physical::in_order;
    use datafusion::arrow::array::{ArrayRef, Int64Array};
    use datafusion::arrow::record_batch::RecordBatch;
    use datafusion::common::JoinType;
    use datafusion::common::stats::Precision;
    use datafusion::common::tree_node::TreeNodeRecursion;
    use datafusion::physical_expr::PhysicalExpr;
    use datafusion::prelude::SessionContext;

    /// The kind of the join of a query over `t`, and whether its first side is groups.
    async fn join_of(sql: &str) -> (JoinType, bool) {
        let state = session_state(1 << 30).unwrap();
        let context = SessionContext::new_with_state(in_order(&state));
        let column = |f: fn(i64) -> i64| -> ArrayRef {
            Arc::new((0..100_000).map(f).collect::<Int64Array>())
        };
        let columns = [("k", column(|i| i % 100)), ("v", column(|i| i))];
        context.register_batch("t", RecordBatch::try_from_iter(columns).unwrap()).unwrap();
        let plan = context.sql(sql).await.unwrap().create_physical_plan().await.unwrap();
        let mut found = None;
        plan.each(|node| {
            if let Some(join) = node.downcast_ref::<HashJoinExec>() {
                found = Some((*join.join_type(), groups_of(join.left()).is_some()));
            }
            Ok(TreeNodeRecursion::Continue)
        })
        .unwrap();
        found.unwrap()
    }

    #[tokio::test]
    async fn groups_are_the_first_side_below_aggregates() {
        let table = "t";
        let some = "(SELECT k, v FROM t WHERE v % 7 = 1) t";
        let (total, rows) = ("sum(t.v), max(g.m), max(g.n), max(g.c)", "t.v, g.m, g.n, g.c");
        for (items, table, join, want) in [
            (total, table, "JOIN", (JoinType::Inner, true)),
            (total, some, "JOIN", (JoinType::Inner, false)),
            (rows, table, "JOIN", (JoinType::Inner, false)),
        ] {
            // Their columns are wider than those of the table.
            let sql = format!(
                "SELECT {items} FROM {table} {join} (SELECT k, max(v) AS m, min(v) AS n, \
                 count(*) AS c FROM t GROUP BY k) g ON t.k = g.k"
            );
            assert_eq!(join_of(&sql).await, want, "{items}, {table} {join}");
        }
    }

    #[test]
    fn groups_are_at_most_the_values_of_their_keys() {
        let column = |distinct: Option<usize>, bounds: Option<(i64, i64)>| ColumnStatistics {
            distinct_count: distinct.map_or(Precision::Absent, Precision::Inexact),
            min_value: bounds.map_or(Precision::Absent, |(min, _)| Precision::Exact(min.into())),
            max_value: bounds.map_or(Precision::Absent, |(_, max)| Precision::Exact(max.into())),
            ..ColumnStatistics::new_unknown()
        };
        let rows = Statistics {
            num_rows: Precision::Exact(1_000_000),
            total_byte_size: Precision::Absent,
            column_statistics: vec![
                column(None, Some((1, 200))),
                column(Some(30), None),
                column(Some(50), Some((0, 9))),
                column(None, None),
            ],
        };
        let by = |columns: &[usize]| {
            let keys = columns.iter().map(|at| {
                let key = Arc::new(Column::new("k", *at)) as Arc<dyn PhysicalExpr>;
                (key, "k".to_owned())
            });
            PhysicalGroupBy::new_single(keys.collect())
        };
        for (columns, groups) in [
            (vec![0], 201),
            (vec![1], 31),
            (vec![2], 11),
            (vec![0, 1], 201 * 31),
            (vec![0, 1, 0], 1_000_000),
            (vec![0, 3], 1_000_000),
            (vec![7], 1_000_000),
        ] {
            assert_eq!(groups_max(&by(&columns), &rows), Some(groups), "{columns:?}");
        }
        let unknown = Statistics { num_rows: Precision::Absent, ..rows };
        assert_eq!(groups_max(&by(&[0]), &unknown), Some(201));
        assert_eq!(groups_max(&by(&[3]), &unknown), None);
    }
}
