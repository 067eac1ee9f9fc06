//! Intervals of Parquet files, which the reader would cut: its type for them has days and milliseconds, and drops months.

use arrow::datatypes::{DataType, Field, IntervalUnit};
use datafusion::datasource::physical_plan::{FileScanConfig, ParquetSource};
use datafusion::error::{DataFusionError, Result};
use datafusion::physical_expr::utils::collect_columns;
use datafusion_datasource::projection::SplitProjection;
use std::collections::BTreeSet;
use tessera_storage::source::SourceError;

/// Refuses a scan of Parquet that reads intervals; `shown` is the name of its files in messages.
///
/// # Errors
/// `unsupported`, with the column.
pub(super) fn refuse(scan: &FileScanConfig, shown: impl Fn() -> String) -> Result<()> {
    let source = &scan.file_source;
    if !source.is::<ParquetSource>() {
        return Ok(());
    }
    let columns = source.table_schema().file_schema();
    if !columns.fields().iter().any(|field| has_interval(field)) {
        return Ok(());
    }
    let mut read: BTreeSet<usize> = match source.projection() {
        Some(projection) => SplitProjection::new(columns, projection).file_indices,
        None => (0..columns.fields().len()).collect(),
    }
    .into_iter()
    .collect();
    if let Some(filter) = source.filter() {
        let names = collect_columns(&filter);
        read.extend(names.iter().filter_map(|column| columns.index_of(column.name()).ok()));
    }
    let interval = read.into_iter().map(|i| columns.field(i)).find(|field| has_interval(field));
    match interval {
        None => Ok(()),
        Some(field) => Err(DataFusionError::External(Box::new(SourceError::UnsupportedFile {
            path: shown(),
            what: format!("the type INTERVAL of column `{}`", field.name()),
        }))),
    }
}

fn has_interval(field: &Field) -> bool {
    match field.data_type() {
        DataType::Interval(IntervalUnit::DayTime) => true,
        DataType::Struct(fields) => fields.iter().any(|field| has_interval(field)),
        DataType::List(item)
        | DataType::LargeList(item)
        | DataType::FixedSizeList(item, _)
        | DataType::Map(item, _) => has_interval(item),
        _ => false,
    }
}
