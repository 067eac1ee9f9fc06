//! Keeps filters away from columns of the same name.
//!
//! ```text
//! FilterExec: b@0 IS NULL                         v.b IS NULL
//!   ProjectionExec: expr=[b@1 as b, b@3 as b]     v.b, u.b
//! ```
//! `FilterPushdown` looks both columns up by their name, finds one of them twice, and pushes `u.b IS NULL` down. While
//! it runs, each node whose rows, or the rows that it reads, have a name twice is below a node that lets only
//! filters on other columns through.

use crate::rows::single::{over, shown_by_name, usual};
use crate::walk::Walk;
use arrow::datatypes::Schema;
use datafusion::common::config::ConfigOptions;
use datafusion::error::Result;
use datafusion::physical_expr::PhysicalExpr;
use datafusion::physical_plan::ExecutionPlan;
use datafusion::physical_plan::filter_pushdown::{
    ChildFilterDescription, FilterDescription, FilterPushdownPhase,
};
use std::collections::HashSet;
use std::sync::Arc;

/// The plan with such nodes below a [`SameNamesExec`].
pub(super) fn hidden(plan: Arc<dyn ExecutionPlan>) -> Result<Arc<dyn ExecutionPlan>> {
    plan.replace_up(|node| {
        let mut names = repeated(&node.schema());
        names.extend(node.children().into_iter().flat_map(|input| repeated(&input.schema())));
        if names.is_empty() {
            return Ok(None);
        }
        Ok(Some(Arc::new(SameNamesExec { input: node.clone(), names })))
    })
}

/// The input of a node that [`hidden`] adds; `None` for other nodes.
pub(super) fn input(node: &Arc<dyn ExecutionPlan>) -> Option<&Arc<dyn ExecutionPlan>> {
    node.downcast_ref::<SameNamesExec>().map(|same| &same.input)
}

fn repeated(schema: &Schema) -> HashSet<String> {
    let mut known = HashSet::new();
    let names = schema.fields().iter().map(|field| field.name());
    names.filter(|name| !known.insert(*name)).cloned().collect()
}

#[derive(Debug)]
struct SameNamesExec {
    input: Arc<dyn ExecutionPlan>,
    /// The names of which no filter gets through.
    names: HashSet<String>,
}

shown_by_name!(SameNamesExec);

impl ExecutionPlan for SameNamesExec {
    usual!(name, properties of input, input, in_order, rows_of_input, no_expressions);

    over!(|node, input| SameNamesExec { input, names: node.names.clone() });

    fn gather_filters_for_pushdown(
        &self,
        _: FilterPushdownPhase,
        filters: Vec<Arc<dyn PhysicalExpr>>,
        _: &ConfigOptions,
    ) -> Result<FilterDescription> {
        let schema = self.schema();
        let columns = schema.fields().iter().enumerate();
        let others = columns.filter(|(_, field)| !self.names.contains(field.name()));
        let others = others.map(|(i, _)| i).collect();
        let input =
            ChildFilterDescription::from_child_with_allowed_indices(&filters, others, &self.input)?;
        Ok(FilterDescription::new().with_child(input))
    }
}
