//! DataFusion's rule that moves filters down, but not below an aggregate that has a row for no rows.
//!
//! ```text
//! Filter: 1 > 2                        a condition without columns holds for each group alike, so the rule
//!   Aggregate: groupBy=[[]], sum(v)    moves it below: there it leaves no rows, of which the sum is NULL: one row
//! ```
//! Between groups and their rows that is the same, for without rows there is no group. It is not without GROUP BY, nor
//! with the empty set of ROLLUP. Constants come from the query (`1 > 2.5 * 0`), from columns of a subquery that are
//! constant, and from scalar subqueries.

use std::sync::Arc;

use datafusion::common::Result;
use datafusion::common::tree_node::Transformed;
use datafusion::logical_expr::{Expr, LogicalPlan};
use datafusion::optimizer::optimizer::{ApplyOrder, Optimizer};
use datafusion::optimizer::push_down_filter::PushDownFilter;
use datafusion::optimizer::{OptimizerConfig, OptimizerRule};

type Rule = Arc<dyn OptimizerRule + Send + Sync>;

/// DataFusion's rules, with that one guarded.
pub(super) fn rules() -> Vec<Rule> {
    let guarded = |rule: Rule| match rule.name() == PushDownFilter::new().name() {
        true => Arc::new(Guarded(rule)),
        false => rule,
    };
    Optimizer::new().rules.into_iter().map(guarded).collect()
}

#[derive(Debug)]
struct Guarded(Rule);

impl OptimizerRule for Guarded {
    fn name(&self) -> &str {
        self.0.name()
    }

    fn apply_order(&self) -> Option<ApplyOrder> {
        self.0.apply_order()
    }

    fn rewrite(
        &self,
        plan: LogicalPlan,
        config: &dyn OptimizerConfig,
    ) -> Result<Transformed<LogicalPlan>> {
        match is_kept_above(&plan) {
            true => Ok(Transformed::no(plan)),
            false => self.0.rewrite(plan, config),
        }
    }
}

/// Is it a filter above an aggregate that has a row for no rows?
fn is_kept_above(plan: &LogicalPlan) -> bool {
    let LogicalPlan::Filter(filter) = plan else { return false };
    let LogicalPlan::Aggregate(aggregate) = &*filter.input else { return false };
    matches!(aggregate.group_expr.as_slice(), [] | [Expr::GroupingSet(_)])
}
