//! Files of JSON objects, and the types of their columns.

use super::array;
use arrow::datatypes::SchemaRef;
use arrow::error::ArrowError;
use arrow::json::reader::infer_json_schema;
use datafusion::catalog::Session;
use datafusion::common::Statistics;
use datafusion::datasource::file_format::FileFormat;
use datafusion::datasource::file_format::file_compression_type::FileCompressionType;
use datafusion::datasource::physical_plan::{FileScanConfig, FileSource, JsonSource};
use datafusion::datasource::source::DataSourceExec;
use datafusion::datasource::table_schema::TableSchema;
use datafusion::error::{DataFusionError, Result};
use datafusion::physical_plan::ExecutionPlan;
use futures::TryStreamExt;
use object_store::{ObjectMeta, ObjectStore};
use std::sync::Arc;

/// NDJSON, or files that are one array of objects.
#[derive(Debug)]
pub(crate) struct JsonFiles {
    /// The first rows, which decide on the types of the columns.
    sample_rows: usize,
    /// Maximum bytes of these rows.
    limit: u64,
}

impl JsonFiles {
    /// `usize::MAX` rows are all.
    pub(crate) fn new(sample_rows: usize, limit: u64) -> Self {
        JsonFiles { sample_rows, limit }
    }

    /// The first rows of the files, one per line.
    async fn sample(&self, store: &Arc<dyn ObjectStore>, files: &[ObjectMeta]) -> Result<Vec<u8>> {
        let (mut sample, mut rows) = (Vec::new(), 0);
        for file in files {
            let mut bytes = array::objects(store, &file.location).await?;
            while let Some(part) = bytes.try_next().await? {
                if (sample.len() + part.len()) as u64 > self.limit {
                    return Err(DataFusionError::Plan(format!(
                        "its first {rows} rows take more than {} bytes, a quarter of the memory limit; \
                         `sample_size => {}` looks at fewer rows",
                        self.limit,
                        (rows / 2).max(1)
                    )));
                }
                rows += part.iter().filter(|byte| **byte == b'\n').count();
                sample.extend_from_slice(&part);
                if rows >= self.sample_rows {
                    let end = sample.iter().rposition(|byte| *byte == b'\n').unwrap_or(0);
                    sample.truncate(end);
                    return Ok(sample);
                }
            }
            if sample.last().is_some_and(|byte| *byte != b'\n') {
                sample.push(b'\n');
                rows += 1;
            }
        }
        Ok(sample)
    }
}

#[async_trait::async_trait]
impl FileFormat for JsonFiles {
    fn get_ext(&self) -> String {
        "json".into()
    }

    fn get_ext_with_compression(&self, _: &FileCompressionType) -> Result<String> {
        Ok(self.get_ext())
    }

    fn compression_type(&self) -> Option<FileCompressionType> {
        None
    }

    async fn infer_schema(
        &self,
        _: &dyn Session,
        store: &Arc<dyn ObjectStore>,
        files: &[ObjectMeta],
    ) -> Result<SchemaRef> {
        let sample = self.sample(store, files).await?;
        let of_json = |e: ArrowError| DataFusionError::ArrowError(Box::new(e), None);
        let (schema, _) =
            infer_json_schema(sample.as_slice(), Some(self.sample_rows)).map_err(of_json)?;
        Ok(Arc::new(schema))
    }

    async fn infer_stats(
        &self,
        _: &dyn Session,
        _: &Arc<dyn ObjectStore>,
        schema: SchemaRef,
        _: &ObjectMeta,
    ) -> Result<Statistics> {
        Ok(Statistics::new_unknown(&schema))
    }

    async fn create_physical_plan(
        &self,
        _: &dyn Session,
        conf: FileScanConfig,
    ) -> Result<Arc<dyn ExecutionPlan>> {
        Ok(DataSourceExec::from_data_source(conf))
    }

    fn file_source(&self, schema: TableSchema) -> Arc<dyn FileSource> {
        Arc::new(JsonSource::new(schema))
    }
}
