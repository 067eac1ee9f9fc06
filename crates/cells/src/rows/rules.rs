//! DataFusion's physical rules, guarded where they change rows, fail or choose slow plans.
//!
//! * `FilterPushdown` finds columns by their names, see [`same_names`], and makes filters large, see [`grown`].
//! * `AggregateStatistics` replaces `count(*)` by a known number. If an aggregate without groups has FILTER, the rule
//!   continues to the aggregate below and replaces both by the number of that one.
//! * `JoinSelection` leaves a table as the first side of its join with groups, see [`groups_first`].
//! * `ProjectionPushdown` moves projections into readers of files, with parameters of lambdas that have their places in
//!   another input, see [`lambdas`](super::lambdas). With lambdas in the plan, projections stay above readers. The columns of
//!   grouping sets that were hidden from the rules before are [`revealed`].
//! * `SanityCheckPlan` rejects an input without the order that its operator requires. A sort moved below a join, where
//!   one row needs none, leaves such an input. Here it is sorted.

mod groups_first;
mod grown;
mod revealed;
mod same_names;

use crate::walk::Walk;
use datafusion::common::config::ConfigOptions;
use datafusion::error::Result;
use datafusion::physical_expr::expressions::LambdaExpr;
use datafusion::physical_optimizer::PhysicalOptimizerRule;
use datafusion::physical_optimizer::aggregate_statistics::AggregateStatistics;
use datafusion::physical_optimizer::filter_pushdown::FilterPushdown;
use datafusion::physical_optimizer::join_selection::JoinSelection;
use datafusion::physical_optimizer::projection_pushdown::ProjectionPushdown;
use datafusion::physical_optimizer::sanity_checker::SanityCheckPlan;
use datafusion::physical_plan::aggregates::AggregateExec;
use datafusion::physical_plan::execution_plan::{ChildrenPropertiesMode, ReplaceChildrenOptions};
use datafusion::physical_plan::projection::ProjectionExec;
use datafusion::physical_plan::sorts::sort::SortExec;
use datafusion::physical_plan::{ExecutionPlan, ExecutionPlanProperties};
use std::sync::Arc;

type Rule = Arc<dyn PhysicalOptimizerRule + Send + Sync>;

pub(super) fn guarded(rules: &[Rule]) -> impl Iterator<Item = Rule> {
    let pushed = [FilterPushdown::new(), FilterPushdown::new_post_optimization()];
    rules.iter().cloned().map(move |rule| {
        let is = |other: &str| rule.name() == other;
        let guard = if pushed.iter().any(|pushed| is(pushed.name())) {
            Guard::Names
        } else if is(AggregateStatistics::new().name()) {
            Guard::Totals
        } else if is(JoinSelection::new().name()) {
            Guard::Sides
        } else if is(ProjectionPushdown::new().name()) {
            Guard::Projections
        } else if is(SanityCheckPlan::new().name()) {
            Guard::Orders
        } else {
            return rule;
        };
        Arc::new(Guarded { rule, guard }) as Rule
    })
}

#[derive(Debug, Clone, Copy)]
enum Guard {
    Names,
    Totals,
    Sides,
    Projections,
    Orders,
}

#[derive(Debug)]
struct Guarded {
    rule: Rule,
    guard: Guard,
}

impl PhysicalOptimizerRule for Guarded {
    fn optimize(
        &self,
        plan: Arc<dyn ExecutionPlan>,
        config: &ConfigOptions,
    ) -> Result<Arc<dyn ExecutionPlan>> {
        match self.guard {
            Guard::Names => {
                let plan = same_names::hidden(grown::hidden(plan)?)?;
                shown(self.rule.optimize(plan, config)?)
            }
            Guard::Totals if has_filtered_total(&plan)? => Ok(plan),
            Guard::Totals => self.rule.optimize(plan, config),
            Guard::Sides => groups_first::with_groups_first(self.rule.optimize(plan, config)?),
            Guard::Projections => {
                let plan = revealed::with_revealed(plan)?;
                if !plan.any(has_lambda)? {
                    return self.rule.optimize(plan, config);
                }
                let is_reader = |node: &Arc<dyn ExecutionPlan>| node.children().is_empty();
                let plan =
                    plan.replace_up(|node| Ok(is_reader(node).then(|| grown::above(node))))?;
                shown(self.rule.optimize(plan, config)?)
            }
            Guard::Orders => self.rule.optimize(sorted(plan)?, config),
        }
    }

    fn name(&self) -> &str {
        self.rule.name()
    }

    fn schema_check(&self) -> bool {
        self.rule.schema_check()
    }
}

/// The plan without the nodes that [`same_names::hidden`], [`grown::hidden`] and [`grown::above`] add.
fn shown(plan: Arc<dyn ExecutionPlan>) -> Result<Arc<dyn ExecutionPlan>> {
    plan.replace_up(|node| Ok(same_names::input(node).or_else(|| grown::input(node)).cloned()))
}

/// True for a projection with a call of a lambda.
fn has_lambda(node: &Arc<dyn ExecutionPlan>) -> Result<bool> {
    let Some(projection) = node.downcast_ref::<ProjectionExec>() else { return Ok(false) };
    for item in projection.expr() {
        if item.expr.any(|e| Ok(e.is::<LambdaExpr>()))? {
            return Ok(true);
        }
    }
    Ok(false)
}

/// True if an aggregate without groups has FILTER.
fn has_filtered_total(plan: &Arc<dyn ExecutionPlan>) -> Result<bool> {
    plan.any(|node| {
        Ok(node.downcast_ref::<AggregateExec>().is_some_and(|aggregate| {
            aggregate.group_expr().is_empty() && aggregate.filter_expr().iter().any(Option::is_some)
        }))
    })
}

/// The plan with sorts above inputs that lack a required order.
fn sorted(plan: Arc<dyn ExecutionPlan>) -> Result<Arc<dyn ExecutionPlan>> {
    plan.replace_up(|node| {
        let mut is_changed = false;
        let mut inputs = Vec::new();
        for (input, order) in node.children().into_iter().zip(node.required_input_ordering()) {
            let mut input = Arc::clone(input);
            if let Some(order) = order {
                let order = order.into_single();
                let known = input.equivalence_properties();
                if !known.ordering_satisfy_requirement(order.clone())? {
                    let is_split = input.output_partitioning().partition_count() > 1;
                    let sort = SortExec::new(order.into(), input);
                    input = Arc::new(sort.with_preserve_partitioning(is_split));
                    is_changed = true;
                }
            }
            inputs.push(input);
        }
        if !is_changed {
            return Ok(None);
        }
        let options = ReplaceChildrenOptions::new(ChildrenPropertiesMode::Recompute);
        Arc::clone(node).replace_children(inputs, options).map(Some)
    })
}
