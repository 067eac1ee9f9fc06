//! Rejects columns that cannot be read where a plan uses them, and only there.
//!
//! Such a column is in the schema, so that `*`, `NATURAL` and `USING` treat it like all others. Its field is
//! marked, and the mark passes with the column through projections and aliases.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::walk::{Walk, WalkPlan};
use datafusion::common::tree_node::TreeNodeRecursion;
use datafusion::common::{DFSchema, ExprSchema, Result};
use datafusion::logical_expr::utils::merge_schema;
use datafusion::logical_expr::{Expr, LogicalPlan, TableSource};

use super::table::{CellSource, CellTable, Column, UNREADABLE};
use tessera_frontend::error::BindError;

/// The error for an expression of the plan that uses an unreadable column.
pub(crate) fn used(
    plan: &LogicalPlan,
    tables: &BTreeMap<String, Arc<dyn TableSource>>,
) -> Result<Option<BindError>> {
    let tables: Vec<&CellTable> = cell_tables(tables).collect();
    if !tables.iter().any(|t| t.columns.iter().any(|c| matches!(c, Column::Unreadable(_)))) {
        return Ok(None);
    }
    let mut found: Option<String> = None;
    plan.each_of_all(|node| {
        let schema = merge_schema(&node.inputs());
        node.each_expr(|expr| {
            expr.each(|e| {
                found = found.take().or_else(|| marked(e, &schema));
                Ok(if found.is_some() {
                    TreeNodeRecursion::Stop
                } else {
                    TreeNodeRecursion::Continue
                })
            })
        })
    })?;
    let Some(name) = found else { return Ok(None) };
    let of = |table: &&CellTable| {
        let mut fields = table.schema.fields().iter().zip(&table.columns);
        fields.find_map(|(field, column)| match column {
            Column::Unreadable(error) if *field.name() == name => Some(error.clone()),
            _ => None,
        })
    };
    Ok(tables.iter().find_map(of))
}

/// The error for an unreadable column whose name a block uses: the likely reason if the plan cannot be built.
pub(crate) fn named(tables: &BTreeMap<String, Arc<dyn TableSource>>) -> Option<BindError> {
    cell_tables(tables).find_map(|table| table.unreadable.clone())
}

fn cell_tables(
    tables: &BTreeMap<String, Arc<dyn TableSource>>,
) -> impl Iterator<Item = &CellTable> {
    tables.values().filter_map(|t| t.downcast_ref::<CellSource>()).map(|source| &*source.table)
}

/// The name of the array of an unreadable column.
fn marked(expr: &Expr, schema: &DFSchema) -> Option<String> {
    let field = match expr {
        Expr::Column(column) => schema.field_from_column(column).ok()?,
        Expr::OuterReferenceColumn(field, _) => field,
        _ => return None,
    };
    field.metadata().get(UNREADABLE).cloned()
}
