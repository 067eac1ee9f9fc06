//! Plans with parts that run elsewhere, prepared for their run.
//!
//! The distributed planner gets the finished plan: it numbers the boundaries between server and workers and puts a
//! `DistributedExec` above all, which hands over the parts when the plan runs. It places no boundaries of its own. Its
//! planner is part of a derived state, because it also changes how DataFusion plans.

use super::channel::TaskChannel;
use super::task::RemoteExec;
use crate::walk::Walk;
use async_trait::async_trait;
use datafusion::catalog::Session;
use datafusion::common::internal_datafusion_err;
use datafusion::common::tree_node::Transformed;
use datafusion::error::Result;
use datafusion::execution::context::QueryPlanner;
use datafusion::execution::{SessionState, SessionStateBuilder};
use datafusion::logical_expr::{LogicalPlan, LogicalPlanBuilder};
use datafusion::physical_plan::ExecutionPlan;
use datafusion::prelude::SessionConfig;
use datafusion_distributed::{
    DistributedExt, RouteTasksEvent, RouteTasksEventResponse, ScaleUpLeafNodeEvent,
    ScaleUpLeafNodeEventResponse, SessionStateBuilderExt,
};
use std::sync::Arc;
use url::Url;

/// Prepares the plans of one statement. Returns them in their order, and the configuration with which they run.
pub(super) async fn distributed(
    plans: Vec<Arc<dyn ExecutionPlan>>,
    state: &SessionState,
    channel: &TaskChannel,
) -> Result<(Vec<Arc<dyn ExecutionPlan>>, SessionConfig)> {
    let mut config = state.config().clone();
    let mut prepared = Vec::with_capacity(plans.len());
    for plan in plans {
        if !plan.any(|node| Ok(node.is::<RemoteExec>()))? {
            prepared.push(plan);
            continue;
        }
        let derived = SessionStateBuilder::new_from_existing(state.clone())
            .with_distributed_channel_resolver(channel.clone())
            .with_distributed_route_tasks_handler(routed)
            .with_distributed_scale_up_leaf_node_handler(kept)
            .with_distributed_metrics_collection(false)?
            .with_query_planner(Arc::new(Given(with_boundaries(plan)?)))
            // Last: it wraps the planner that is set.
            .with_distributed_planner()
            .build();
        let none = LogicalPlanBuilder::empty(false).build()?;
        prepared.push(derived.query_planner().create_physical_plan(&none, &derived).await?);
        config = derived.config().clone();
    }
    Ok((prepared, config))
}

/// The plan with boundaries below the parts that run elsewhere.
fn with_boundaries(plan: Arc<dyn ExecutionPlan>) -> Result<Arc<dyn ExecutionPlan>> {
    plan.map_up(|node| {
        let Some(remote) = node.downcast_ref::<RemoteExec>() else {
            return Ok(Transformed::no(node));
        };
        let remote: Arc<dyn ExecutionPlan> = Arc::new(remote.with_boundary()?);
        Ok(Transformed::yes(remote))
    })
    .map(|t| t.data)
}

/// A planner that returns the given plan.
#[derive(Debug)]
struct Given(Arc<dyn ExecutionPlan>);

#[async_trait]
impl QueryPlanner for Given {
    async fn create_physical_plan(
        &self,
        _: &LogicalPlan,
        _: &dyn Session,
    ) -> Result<Arc<dyn ExecutionPlan>> {
        Ok(self.0.clone())
    }
}

/// Assigns all tasks to one address: the worker of a task is chosen when it starts, by the load at that time.
fn routed(event: RouteTasksEvent) -> Option<Result<RouteTasksEventResponse>> {
    let place = anywhere();
    Some(place.map(|place| RouteTasksEventResponse::new(vec![place; event.task_count])))
}

/// The address of all workers.
pub(super) fn anywhere() -> Result<Url> {
    Url::parse("rows://cluster/").map_err(|e| internal_datafusion_err!("rows://cluster/: {e}"))
}

/// Leaves each leaf as it is. The planner's own handler would cut files again, also those of the server's splits and of
/// build sides.
fn kept(event: ScaleUpLeafNodeEvent) -> Option<Result<ScaleUpLeafNodeEventResponse>> {
    Some(Ok(ScaleUpLeafNodeEventResponse::new(event.plan.clone())))
}
