//! Shared code of this crate's physical nodes: one partition, rows in arrival order.

use arrow::datatypes::SchemaRef;
use datafusion::error::{DataFusionError, Result};
use datafusion::physical_expr::EquivalenceProperties;
use datafusion::physical_plan::execution_plan::{Boundedness, EmissionType};
use datafusion::physical_plan::{Partitioning, PlanProperties};
use std::sync::Arc;

/// The properties of a node with one partition that emits batches incrementally.
pub(super) fn properties(schema: SchemaRef) -> Arc<PlanProperties> {
    Arc::new(PlanProperties::new(
        EquivalenceProperties::new(schema),
        Partitioning::UnknownPartitioning(1),
        EmissionType::Incremental,
        Boundedness::Bounded,
    ))
}

/// Fails unless the partition is the first one.
pub(super) fn check(node: &str, partition: usize) -> Result<()> {
    if partition == 0 {
        return Ok(());
    }
    let what = format!("{node} has one partition, not {partition}");
    Err(DataFusionError::Internal(what))
}
