//! Replaces operators of an optimised plan by functions that are faster and have the same results.

pub(super) mod select;

use super::{decimals, like};
use crate::walk::WalkPlan;
use datafusion::common::Result;
use datafusion::common::tree_node::Transformed;
use datafusion::logical_expr::LogicalPlan;
use datafusion::logical_expr::utils::merge_schema;

/// Rewrites the expressions of a plan; the schema stays the same.
pub(super) fn rewrite(plan: LogicalPlan) -> Result<LogicalPlan> {
    let functions = decimals::functions();
    plan.map_all_up(|node| match node {
        // Filters of a scan select parts of files by their original form.
        node @ LogicalPlan::TableScan(_) => Ok(Transformed::no(node)),
        node => {
            let schema = merge_schema(&node.inputs());
            super::map_parts(node, |expr| {
                like::of_like(expr)?
                    .transform_data(|expr| decimals::of_operator(expr, &schema, &functions))?
                    .transform_data(|expr| select::of_case(expr, &schema))
            })
        }
    })
    .map(|t| t.data)
}
