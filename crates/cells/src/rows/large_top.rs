//! `ORDER BY … LIMIT 5000000`: DataFusion keeps the first rows of a limit in memory, however many they are. Where they are
//! too many for that, all rows are sorted, which spills, and the first are taken.

use datafusion::common::tree_node::{Transformed, TreeNode};
use datafusion::error::Result;
use datafusion::physical_plan::ExecutionPlan;
use datafusion::physical_plan::limit::GlobalLimitExec;
use datafusion::physical_plan::sorts::sort::SortExec;
use std::sync::Arc;

/// Bytes of a text or a list, about.
const VARIABLE: usize = 64;
/// Bytes of a row's place and of each of its keys, beside its own.
const PLACE: usize = 64;
const KEY: usize = 16;

/// The plan, whose sorts keep the first rows of a limit only where these need at most half of `memory` bytes.
///
/// # Errors
/// DataFusion's.
pub fn with_large_limits_sorted(
    plan: Arc<dyn ExecutionPlan>,
    memory: u64,
) -> Result<Arc<dyn ExecutionPlan>> {
    plan.transform_up(|node| {
        let Some(sort) = node.downcast_ref::<SortExec>() else { return Ok(Transformed::no(node)) };
        let Some(limit) = sort.fetch() else { return Ok(Transformed::no(node)) };
        let schema = sort.schema();
        let own: usize = schema
            .fields()
            .iter()
            .map(|f| f.data_type().primitive_width().unwrap_or(VARIABLE))
            .sum();
        let row = own + PLACE + KEY * sort.expr().len();
        if (limit as u64).saturating_mul(row as u64) <= memory / 2 {
            return Ok(Transformed::no(node));
        }
        let all = Arc::new(sort.with_fetch(None));
        let first = GlobalLimitExec::new(all, 0, Some(limit));
        Ok(Transformed::yes(Arc::new(first) as Arc<dyn ExecutionPlan>))
    })
    .map(|t| t.data)
}
