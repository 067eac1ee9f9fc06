//! DataFusion's rules with checks for cancellation, those of the optimiser at every node. The rule that pushes filters
//! down is guarded: it must not push them below an aggregate that returns a row for no input rows.
//!
//! ```text
//! Filter: 1 > 2                        a condition without columns is the same for each group, so the rule
//!   Aggregate: groupBy=[[]], sum(v)    pushes it down: there it leaves no rows, whose sum is NULL: one row
//! ```
//! With GROUP BY both forms are equal, because no rows form no group. Without GROUP BY they differ, and so with
//! the empty set of ROLLUP. Constant conditions come from the query (`1 > 2.5 * 0`), from constant columns of a
//! subquery, and from scalar subqueries.

use std::sync::Arc;

use datafusion::common::Result;
use datafusion::common::config::ConfigOptions;
use datafusion::common::tree_node::Transformed;
use datafusion::logical_expr::{Expr, LogicalPlan};
use datafusion::optimizer::analyzer::{Analyzer, AnalyzerRule};
use datafusion::optimizer::optimizer::{ApplyOrder, Optimizer};
use datafusion::optimizer::push_down_filter::PushDownFilter;
use datafusion::optimizer::{OptimizerConfig, OptimizerRule};

type Rule = Arc<dyn OptimizerRule + Send + Sync>;

pub(super) fn rules() -> Vec<Rule> {
    let guarded = |rule: Rule| -> Rule {
        let moves_filters = rule.name() == PushDownFilter::new().name();
        Arc::new(Guarded { rule, moves_filters })
    };
    Optimizer::new().rules.into_iter().map(guarded).collect()
}

pub(super) fn analyzer_rules() -> Vec<Arc<dyn AnalyzerRule + Send + Sync>> {
    let asked = |rule| Arc::new(Asked(rule)) as Arc<dyn AnalyzerRule + Send + Sync>;
    Analyzer::new().rules.into_iter().map(asked).collect()
}

#[derive(Debug)]
struct Asked(Arc<dyn AnalyzerRule + Send + Sync>);

impl AnalyzerRule for Asked {
    fn name(&self) -> &str {
        self.0.name()
    }

    fn analyze(&self, plan: LogicalPlan, config: &ConfigOptions) -> Result<LogicalPlan> {
        super::go_on()?;
        self.0.analyze(plan, config)
    }
}

#[derive(Debug)]
struct Guarded {
    rule: Rule,
    moves_filters: bool,
}

impl OptimizerRule for Guarded {
    fn name(&self) -> &str {
        self.rule.name()
    }

    fn apply_order(&self) -> Option<ApplyOrder> {
        self.rule.apply_order()
    }

    fn rewrite(
        &self,
        plan: LogicalPlan,
        config: &dyn OptimizerConfig,
    ) -> Result<Transformed<LogicalPlan>> {
        super::go_on()?;
        match self.moves_filters && is_kept_above(&plan) {
            true => Ok(Transformed::no(plan)),
            false => self.rule.rewrite(plan, config),
        }
    }
}

/// True for a filter above an aggregate that returns a row for no input rows.
fn is_kept_above(plan: &LogicalPlan) -> bool {
    let LogicalPlan::Filter(filter) = plan else { return false };
    let LogicalPlan::Aggregate(aggregate) = &*filter.input else { return false };
    matches!(aggregate.group_expr.as_slice(), [] | [Expr::GroupingSet(_)])
}
