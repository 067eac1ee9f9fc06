//! The physical plan of a logical one: DataFusion's planner with our rules, and our passes over what it returns.

use super::concat::InOrder;
use super::conditions::with_comparisons_together;
use super::estimates::with_marks;
use super::guard;
use super::lambdas::with_parameters;
use super::named_totals::with_named_totals;
use super::partition_top::with_tops;
use super::per_value::PerValueRule;
use super::remote::Spreading;
use super::rules::guarded;
use super::splits::{SplitSize, with_splits};
use super::stop::IsStopped;
use crate::lift::guards::settled;
use crate::tables::Places;
use datafusion::error::Result;
use datafusion::execution::{SessionState, SessionStateBuilder};
use datafusion::logical_expr::LogicalPlan;
use datafusion::physical_optimizer::PhysicalOptimizerRule;
use datafusion::physical_plan::ExecutionPlan;
use std::sync::Arc;
use tessera_exec::quota::Quota;
use tessera_planner::interrupt::interruptible;

/// Creates the physical plan of a logical one, with a state that [`in_order`] made. Unions become concatenations, and
/// outer joins expose no constants. Readers of files charge their memory to the [`Quota`] that is an extension of the
/// state's configuration. Last, `spreading` decides which parts compute elsewhere; without it the plan runs here. The
/// rules of logical plans end with an error once `is_stopped` returns true.
pub(super) async fn physical(
    state: &SessionState,
    logical: &LogicalPlan,
    size: SplitSize,
    spreading: Option<&Spreading>,
    is_stopped: &IsStopped,
) -> Result<Arc<dyn ExecutionPlan>> {
    let quota = state.config().get_extension::<Quota>();
    let logical = with_marks(logical.clone())?;
    let is_stopped = is_stopped.clone();
    let logical = interruptible(move || is_stopped(), || settled(state.optimize(&logical)?))?;
    let logical = with_named_totals(logical)?;
    let plan = state.query_planner().create_physical_plan(&logical, state).await?;
    let plan = with_parameters(plan)?;
    let plan = with_tops(plan)?;
    let places = state.config().get_extension::<Places>();
    let batch_rows = state.config().batch_size();
    let plan = guard::guarded(plan, places.as_deref(), quota.as_ref(), batch_rows)?;
    let plan = with_splits(plan, size)?;
    let plan = with_comparisons_together(plan, state.config_options())?;
    match spreading {
        Some(spreading) => spreading.with_stages(plan, state),
        None => Ok(plan),
    }
}

/// The state, whose physical plans keep rows in order. It registers all functions anew, so it is made once a process.
pub(super) fn in_order(state: &SessionState) -> SessionState {
    // Before all other rules: they sort and group a union by its partitions, which a concatenation lacks, and move
    // expressions into scans.
    let ours: [Arc<dyn PhysicalOptimizerRule + Send + Sync>; 2] =
        [Arc::new(InOrder), Arc::new(PerValueRule)];
    let rules = ours.into_iter().chain(guarded(state.physical_optimizers())).collect();
    SessionStateBuilder::new_from_existing(state.clone())
        .with_physical_optimizer_rules(rules)
        .build()
}
