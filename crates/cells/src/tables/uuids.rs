//! UUIDs of Parquet, which are 16 bytes in the file: texts here, as `uuid()` and DuckDB have them.
//!
//! Conditions on them apply to the texts, so they leave out no groups of rows.

use super::CHECKS;
use super::computed::{Columns, computed};
use crate::lift::uuid_text;
use arrow::datatypes::{DataType, Field, Schema, SchemaRef};
use datafusion::catalog::Session;
use datafusion::datasource::TableProvider;
use datafusion::datasource::listing::ListingTableUrl;
use datafusion::datasource::physical_plan::parquet::metadata::DFParquetMetadata;
use datafusion::error::{DataFusionError, Result};
use datafusion::physical_expr::{PhysicalExpr, ScalarFunctionExpr};
use futures::{StreamExt, TryStreamExt, stream};
use object_store::ObjectMeta;
use parquet::basic::LogicalType;
use parquet::file::metadata::ParquetMetaData;
use std::collections::BTreeSet;
use std::sync::Arc;

const UUID: DataType = DataType::FixedSizeBinary(16);

/// The columns that are UUIDs in all files that have them.
pub(super) async fn of_files(
    schema: &Schema,
    state: &dyn Session,
    place: &ListingTableUrl,
) -> Result<BTreeSet<String>> {
    let fields = schema.fields().iter().filter(|field| *field.data_type() == UUID);
    let mut columns: BTreeSet<String> = fields.map(|field| field.name().clone()).collect();
    if columns.is_empty() {
        return Ok(columns);
    }
    let store = state.runtime_env().object_store(place)?;
    let files = place.list_all_files(state, &store, "").await?;
    let mut files: Vec<ObjectMeta> = files.try_collect().await?;
    files.retain(|file| file.size > 0);
    // The ends of the files were read for the schema.
    let cache = state.runtime_env().cache_manager.get_file_metadata_cache();
    let others = files.into_iter().map(|file| {
        let (store, cache) = (store.clone(), cache.clone());
        async move {
            let metadata = DFParquetMetadata::new(&*store, &file);
            let metadata = metadata.with_file_metadata_cache(Some(cache)).fetch_metadata().await?;
            Ok::<_, DataFusionError>(without(&metadata))
        }
    });
    let mut others = stream::iter(others).buffer_unordered(CHECKS);
    while let Some(others) = others.try_next().await? {
        columns.retain(|column| !others.contains(column));
    }
    Ok(columns)
}

/// The columns of a file that are no UUIDs.
fn without(metadata: &ParquetMetaData) -> BTreeSet<String> {
    let columns = metadata.file_metadata().schema_descr().root_schema().get_fields().iter();
    let others = columns
        .filter(|column| column.get_basic_info().logical_type_ref() != Some(&LogicalType::Uuid));
    others.map(|column| column.name().to_string()).collect()
}

/// The table with these columns as texts.
pub(super) fn as_texts(
    table: Arc<dyn TableProvider>,
    columns: BTreeSet<String>,
) -> Arc<dyn TableProvider> {
    if columns.is_empty() { table } else { computed(table, Uuids(columns)) }
}

/// Columns that are UUIDs.
#[derive(Debug)]
struct Uuids(BTreeSet<String>);

impl Columns for Uuids {
    fn has(&self, name: &str) -> bool {
        self.0.contains(name)
    }

    fn field(&self, read: &Field) -> Field {
        Field::new(read.name(), DataType::Utf8, read.is_nullable())
    }

    fn value(
        &self,
        _: &str,
        bytes: Arc<dyn PhysicalExpr>,
        all: &SchemaRef,
        state: &dyn Session,
    ) -> Result<Arc<dyn PhysicalExpr>> {
        let (function, options) = (Arc::new(uuid_text()), Arc::new(state.config_options().clone()));
        Ok(Arc::new(ScalarFunctionExpr::try_new(function, vec![bytes], all, options)?))
    }
}
