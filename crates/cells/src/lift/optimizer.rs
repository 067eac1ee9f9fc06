//! DataFusion's rules with checks for cancellation, those of the optimiser at every node. Some are guarded, because they
//! change rows.
//!
//! `PushDownFilter` must not push filters below an aggregate that returns a row for no input rows:
//!
//! ```text
//! Filter: 1 > 2                        a condition without columns is the same for each group, so the rule
//!   Aggregate: groupBy=[[]], sum(v)    pushes it down: there it leaves no rows, whose sum is NULL: one row
//! ```
//! With GROUP BY both forms are equal, because no rows form no group. Without GROUP BY they differ, and so with
//! the empty set of ROLLUP. Constant conditions come from the query (`1 > 2.5 * 0`), from constant columns of a
//! subquery, and from scalar subqueries.
//!
//! A join has one rule for NULL, for all its keys: those of `IS NOT DISTINCT FROM` find NULL, those of `=` do not.
//!
//! * `EliminateCrossJoin` takes neighbouring inner joins apart and builds new ones, all with the rule of the outermost.
//!   Here a projection stands between joins of different rules while it runs.
//! * `ExtractEquijoinPredicate` adds `a.y = b.y` to the keys of a join on `a.x IS NOT DISTINCT FROM b.x`. Here it
//!   leaves such a join as it is.
//!
//! `PushDownFilter` also leaves a condition above a projection below which it would become large: see [`filters`].

mod filters;

use std::sync::Arc;

use crate::walk::{Walk, WalkPlan};
use datafusion::common::config::ConfigOptions;
use datafusion::common::tree_node::Transformed;
use datafusion::common::{JoinType, NullEquality, Result};
use datafusion::logical_expr::{Expr, Filter, Join, LogicalPlan, Projection};
use datafusion::optimizer::analyzer::{Analyzer, AnalyzerRule};
use datafusion::optimizer::eliminate_cross_join::EliminateCrossJoin;
use datafusion::optimizer::extract_equijoin_predicate::ExtractEquijoinPredicate;
use datafusion::optimizer::optimizer::{ApplyOrder, Optimizer};
use datafusion::optimizer::push_down_filter::PushDownFilter;
use datafusion::optimizer::{OptimizerConfig, OptimizerRule};

type Rule = Arc<dyn OptimizerRule + Send + Sync>;

pub(super) fn rules() -> Vec<Rule> {
    let guarded = |rule: Rule| -> Rule {
        let is = |other: &str| rule.name() == other;
        let guard = if is(PushDownFilter::new().name()) {
            Guard::Filters
        } else if is(EliminateCrossJoin::new().name()) {
            Guard::Joins
        } else if is(ExtractEquijoinPredicate::new().name()) {
            Guard::Keys
        } else {
            Guard::None
        };
        Arc::new(Guarded { rule, guard })
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

/// A rewrite that a rule must not make.
#[derive(Debug, Clone, Copy)]
enum Guard {
    None,
    /// Push a filter below an aggregate of no groups, or where it becomes large.
    Filters,
    /// Merge joins with different rules for NULL.
    Joins,
    /// Add keys to a join whose keys find NULL.
    Keys,
}

#[derive(Debug)]
struct Guarded {
    rule: Rule,
    guard: Guard,
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
        match (self.guard, plan) {
            (Guard::Filters, LogicalPlan::Filter(filter)) => {
                filters::pushed(filter, |plan| self.rule.rewrite(plan, config))
            }
            (Guard::Keys, plan) if has_null_keys(&plan) => Ok(Transformed::no(plan)),
            (Guard::Joins, plan) => {
                apart(plan)?.transform_data(|plan| self.rule.rewrite(plan, config))
            }
            (_, plan) => self.rule.rewrite(plan, config),
        }
    }
}

/// True for a filter above an aggregate that returns a row for no input rows.
fn is_kept_above(filter: &Filter) -> bool {
    let LogicalPlan::Aggregate(aggregate) = &*filter.input else { return false };
    matches!(aggregate.group_expr.as_slice(), [] | [Expr::GroupingSet(_)])
}

fn finds_null(join: &Join) -> bool {
    join.null_equality == NullEquality::NullEqualsNull
}

fn has_null_keys(plan: &LogicalPlan) -> bool {
    matches!(plan, LogicalPlan::Join(join) if finds_null(join) && !join.on.is_empty())
}

fn inner(plan: &LogicalPlan) -> Option<&Join> {
    match plan {
        LogicalPlan::Join(join) if join.join_type == JoinType::Inner => Some(join),
        _ => None,
    }
}

/// Puts projections of all columns below and above inner joins whose keys find NULL, where they have inner joins or
/// filters as neighbours. A later rule removes them.
fn apart(plan: LogicalPlan) -> Result<Transformed<LogicalPlan>> {
    plan.map_all_up(|node| {
        let of_parent = inner(&node).map(finds_null);
        if of_parent.is_none() && !matches!(node, LogicalPlan::Filter(_)) {
            return Ok(Transformed::no(node));
        }
        node.map_below(|input| {
            let is_apart =
                inner(&input).is_some_and(|join| of_parent == Some(true) || finds_null(join));
            if !is_apart {
                return Ok(Transformed::no(input));
            }
            let schema = input.schema().clone();
            let columns = Projection::new_from_schema(Arc::new(input), schema);
            Ok(Transformed::yes(LogicalPlan::Projection(columns)))
        })
    })
}
