//! `ORDER BY … LIMIT 5000000`: DataFusion's top-k operator holds all rows of the limit in memory. For large limits
//! a full sort, which can spill, followed by a limit replaces it.

use crate::walk::Walk;
use datafusion::error::Result;
use datafusion::physical_plan::ExecutionPlan;
use datafusion::physical_plan::limit::GlobalLimitExec;
use datafusion::physical_plan::sorts::sort::SortExec;
use std::sync::Arc;

/// Estimated bytes of a text or a list.
const VARIABLE: usize = 64;
/// Overhead bytes of a row, and of each of its keys.
const PLACE: usize = 64;
const KEY: usize = 16;

/// Rewrites the plan so that a top-k sort is used only where its rows need at most half of `memory` bytes.
pub(super) fn with_large_limits_sorted(
    plan: Arc<dyn ExecutionPlan>,
    memory: u64,
) -> Result<Arc<dyn ExecutionPlan>> {
    plan.replace_up(|node| {
        let Some(sort) = node.downcast_ref::<SortExec>() else { return Ok(None) };
        let Some(limit) = sort.fetch() else { return Ok(None) };
        let schema = sort.schema();
        let own: usize = schema
            .fields()
            .iter()
            .map(|f| f.data_type().primitive_width().unwrap_or(VARIABLE))
            .sum();
        let row = own + PLACE + KEY * sort.expr().len();
        if (limit as u64).saturating_mul(row as u64) <= memory / 2 {
            return Ok(None);
        }
        let all = Arc::new(sort.with_fetch(None));
        let first = GlobalLimitExec::new(all, 0, Some(limit));
        Ok(Some(Arc::new(first)))
    })
}
