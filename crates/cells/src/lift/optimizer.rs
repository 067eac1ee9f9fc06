//! DataFusion's rules, each of which asks whether planning is to go on, those of the optimiser at every node. One of them
//! is guarded: that which moves filters down does not move them below an aggregate that has a row for no rows.
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
use datafusion::common::config::ConfigOptions;
use datafusion::common::tree_node::Transformed;
use datafusion::logical_expr::{Expr, LogicalPlan};
use datafusion::optimizer::analyzer::{Analyzer, AnalyzerRule};
use datafusion::optimizer::optimizer::{ApplyOrder, Optimizer};
use datafusion::optimizer::push_down_filter::PushDownFilter;
use datafusion::optimizer::{OptimizerConfig, OptimizerRule};

type Rule = Arc<dyn OptimizerRule + Send + Sync>;

/// The rules of the optimiser.
pub(super) fn rules() -> Vec<Rule> {
    let guarded = |rule: Rule| -> Rule {
        let moves_filters = rule.name() == PushDownFilter::new().name();
        Arc::new(Guarded { rule, moves_filters })
    };
    Optimizer::new().rules.into_iter().map(guarded).collect()
}

/// The rules of the analyser.
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

/// Is it a filter above an aggregate that has a row for no rows?
fn is_kept_above(plan: &LogicalPlan) -> bool {
    let LogicalPlan::Filter(filter) = plan else { return false };
    let LogicalPlan::Aggregate(aggregate) = &*filter.input else { return false };
    matches!(aggregate.group_expr.as_slice(), [] | [Expr::GroupingSet(_)])
}
