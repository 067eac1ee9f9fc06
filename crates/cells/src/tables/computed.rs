//! Tables of files some of whose columns are computed from what the readers return.

use arrow::datatypes::SchemaRef;
use datafusion::datasource::TableProvider;
use datafusion::error::Result;
use datafusion::logical_expr::{Expr, TableProviderFilterPushDown};
use datafusion::physical_expr::PhysicalExpr;
use datafusion::physical_expr::expressions::Column;
use datafusion::physical_plan::ExecutionPlan;
use datafusion::physical_plan::projection::ProjectionExec;
use std::sync::Arc;

/// The conditions that the files take: none on a computed column.
pub(super) fn pushdown(
    files: &dyn TableProvider,
    filters: &[&Expr],
    is_computed: impl Fn(&str) -> bool,
) -> Result<Vec<TableProviderFilterPushDown>> {
    let mut all = files.supports_filters_pushdown(filters)?;
    for (filter, support) in filters.iter().zip(&mut all) {
        if filter.column_refs().iter().any(|column| is_computed(&column.name)) {
            *support = TableProviderFilterPushDown::Unsupported;
        }
    }
    Ok(all)
}

/// The rows of a scan of the files with the computed columns. `value` returns the value of a computed column, from the
/// column that its reader returns.
pub(super) fn computed(
    scan: Arc<dyn ExecutionPlan>,
    is_computed: impl Fn(&str) -> bool,
    value: impl Fn(&str, Arc<dyn PhysicalExpr>, &SchemaRef) -> Result<Arc<dyn PhysicalExpr>>,
) -> Result<Arc<dyn ExecutionPlan>> {
    let columns = scan.schema();
    if !columns.fields().iter().any(|field| is_computed(field.name())) {
        return Ok(scan);
    }
    let mut items = Vec::new();
    for (i, field) in columns.fields().iter().enumerate() {
        let name = field.name();
        let column: Arc<dyn PhysicalExpr> = Arc::new(Column::new(name, i));
        let item = if is_computed(name) { value(name, column, &columns)? } else { column };
        items.push((item, name.clone()));
    }
    Ok(Arc::new(ProjectionExec::try_new(items, scan)?))
}
