//! Tables of files some of whose columns are computed from what the readers return.

use arrow::datatypes::{Field, Schema, SchemaRef};
use datafusion::catalog::Session;
use datafusion::datasource::{TableProvider, TableType};
use datafusion::error::Result;
use datafusion::logical_expr::{Expr, TableProviderFilterPushDown};
use datafusion::physical_expr::PhysicalExpr;
use datafusion::physical_expr::expressions::Column;
use datafusion::physical_plan::ExecutionPlan;
use datafusion::physical_plan::projection::ProjectionExec;
use std::fmt::Debug;
use std::sync::Arc;

/// The columns that are computed.
pub(super) trait Columns: Debug + Send + Sync + 'static {
    fn has(&self, name: &str) -> bool;

    /// The field of a computed column in place of the one that is read.
    fn field(&self, read: &Field) -> Field;

    /// The value of a computed column from the one that is read, among all columns that are read.
    fn value(
        &self,
        name: &str,
        read: Arc<dyn PhysicalExpr>,
        all: &SchemaRef,
        state: &dyn Session,
    ) -> Result<Arc<dyn PhysicalExpr>>;
}

/// The table with computed columns.
pub(super) fn computed(
    files: Arc<dyn TableProvider>,
    columns: impl Columns,
) -> Arc<dyn TableProvider> {
    let read = files.schema();
    let fields = read.fields().iter().map(|field| match columns.has(field.name()) {
        true => Arc::new(columns.field(field)),
        false => field.clone(),
    });
    let fields: Vec<_> = fields.collect();
    let schema = Arc::new(Schema::new_with_metadata(fields, read.metadata().clone()));
    Arc::new(Computed { files, columns: Box::new(columns), schema })
}

/// The table of what the readers return.
pub(super) fn files(mut table: &Arc<dyn TableProvider>) -> &Arc<dyn TableProvider> {
    while let Some(computed) = table.downcast_ref::<Computed>() {
        table = &computed.files;
    }
    table
}

#[derive(Debug)]
struct Computed {
    files: Arc<dyn TableProvider>,
    columns: Box<dyn Columns>,
    schema: SchemaRef,
}

#[async_trait::async_trait]
impl TableProvider for Computed {
    fn schema(&self) -> SchemaRef {
        self.schema.clone()
    }

    fn table_type(&self) -> TableType {
        TableType::Base
    }

    /// The files take no condition on a computed column.
    fn supports_filters_pushdown(
        &self,
        filters: &[&Expr],
    ) -> Result<Vec<TableProviderFilterPushDown>> {
        let mut all = self.files.supports_filters_pushdown(filters)?;
        for (filter, support) in filters.iter().zip(&mut all) {
            if filter.column_refs().iter().any(|column| self.columns.has(&column.name)) {
                *support = TableProviderFilterPushDown::Unsupported;
            }
        }
        Ok(all)
    }

    async fn scan(
        &self,
        state: &dyn Session,
        projection: Option<&Vec<usize>>,
        filters: &[Expr],
        limit: Option<usize>,
    ) -> Result<Arc<dyn ExecutionPlan>> {
        let scan = self.files.scan(state, projection, filters, limit).await?;
        let all = scan.schema();
        if !all.fields().iter().any(|field| self.columns.has(field.name())) {
            return Ok(scan);
        }
        let mut items = Vec::new();
        for (i, field) in all.fields().iter().enumerate() {
            let name = field.name();
            let mut item: Arc<dyn PhysicalExpr> = Arc::new(Column::new(name, i));
            if self.columns.has(name) {
                item = self.columns.value(name, item, &all, state)?;
            }
            items.push((item, name.clone()));
        }
        Ok(Arc::new(ProjectionExec::try_new(items, scan)?))
    }
}
