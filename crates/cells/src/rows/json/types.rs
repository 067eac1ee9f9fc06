//! Files of JSON objects, and the types of their columns.

use super::super::whole::{Whole, has_long_number};
use super::{array, words};
use arrow::datatypes::{DataType, Field, Schema, SchemaRef};
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
use serde_json::Value;
use std::collections::BTreeMap;
use std::sync::Arc;

/// NDJSON, or files that are one array of objects.
#[derive(Debug)]
pub(crate) struct JsonFiles {
    /// Number of first rows, which determine the types of the columns.
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
    async fn sample(&self, store: &Arc<dyn ObjectStore>, files: &[ObjectMeta]) -> Result<Sample> {
        let (mut sample, mut rows, mut starts) = (Vec::new(), 0, Vec::new());
        for file in files {
            starts.push((sample.len(), file.location.filename().unwrap_or_default().to_string()));
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
                    return Ok(Sample { lines: words::as_numbers(sample), starts });
                }
            }
            if sample.last().is_some_and(|byte| *byte != b'\n') {
                sample.push(b'\n');
                rows += 1;
            }
        }
        Ok(Sample { lines: words::as_numbers(sample), starts })
    }
}

/// The first rows of files.
struct Sample {
    /// With numbers in place of `NaN` and the like.
    lines: Vec<u8>,
    /// The offset and the name of each file.
    starts: Vec<(usize, String)>,
}

impl Sample {
    fn schema(&self, rows: usize) -> std::result::Result<SchemaRef, ArrowError> {
        let (schema, _) = infer_json_schema(self.lines.as_slice(), Some(rows))?;
        Ok(Arc::new(schema))
    }

    /// The schema with `uint64` for numbers that need it: for these Arrow infers floats, which round them.
    fn with_unsigned(&self, schema: SchemaRef, rows: usize) -> SchemaRef {
        if !has_long_number(&self.lines) {
            return schema;
        }
        let fields = schema.fields().iter();
        let floats = fields.filter(|field| *field.data_type() == DataType::Float64);
        let mut columns: BTreeMap<&str, Whole> =
            floats.map(|field| (field.name().as_str(), Whole::default())).collect();
        let lines = self.lines.split(|byte| *byte == b'\n');
        for line in lines.filter(|line| !line.trim_ascii().is_empty()).take(rows) {
            let Ok(Value::Object(row)) = serde_json::from_slice(line) else { continue };
            for (name, column) in &mut columns {
                if let Some(value) = row.get(*name).filter(|value| !value.is_null()) {
                    column.add(value.as_u64());
                }
            }
        }
        let of = |field: &Arc<Field>| match columns.get(field.name().as_str()) {
            Some(column) if column.is_unsigned() => {
                Arc::new(field.as_ref().clone().with_data_type(DataType::UInt64))
            }
            _ => field.clone(),
        };
        let fields: Vec<Arc<Field>> = schema.fields().iter().map(of).collect();
        Arc::new(Schema::new(fields))
    }

    /// The error of [`Self::schema`] with its file and row: the first one that does not fit those before it.
    fn placed(&self, error: ArrowError) -> DataFusionError {
        let ArrowError::JsonError(what) = &error else {
            return DataFusionError::ArrowError(Box::new(error), None);
        };
        let mut at = 0;
        let lines = self.lines.split_inclusive(|byte| *byte == b'\n').map(|line| {
            at += line.len();
            (at - line.len(), line)
        });
        let rows: Vec<usize> = lines
            .filter(|(_, line)| !line.trim_ascii().is_empty())
            .map(|(start, _)| start)
            .collect();
        let (mut fitting, mut failing) = (0, rows.len());
        while failing - fitting > 1 {
            let half = fitting + (failing - fitting) / 2;
            match self.schema(half) {
                Ok(_) => fitting = half,
                Err(_) => failing = half,
            }
        }
        let start = failing.checked_sub(1).and_then(|row| rows.get(row)).copied().unwrap_or(0);
        let file = self.starts.partition_point(|(first, _)| *first <= start).saturating_sub(1);
        let (first, name) =
            self.starts.get(file).map_or((0, ""), |(at, name)| (*at, name.as_str()));
        let row = 1 + rows.iter().filter(|row| (first..start).contains(*row)).count();
        // The reader counts lines of one line.
        let what = what.replace(" at line 1 column ", " at character ");
        DataFusionError::Plan(format!("`{name}`, row {row}: {what}"))
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
        let schema = sample.schema(self.sample_rows).map_err(|e| sample.placed(e))?;
        Ok(sample.with_unsigned(schema, self.sample_rows))
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_beyond_int64_are_unsigned_if_all_are() {
        for (rows, want) in [
            ([r#"{"a": 18446744073709551615}"#, r#"{"a": 1}"#], DataType::UInt64),
            ([r#"{"a": null, "b": 1}"#, r#"{"a": 9223372036854775808}"#], DataType::UInt64),
            ([r#"{"a": 18446744073709551615}"#, r#"{"a": -1}"#], DataType::Float64),
            ([r#"{"a": 18446744073709551615}"#, r#"{"a": 0.5}"#], DataType::Float64),
            ([r#"{"a": 18446744073709551616}"#, r#"{"a": 1}"#], DataType::Float64),
            ([r#"{"a": 9223372036854775807}"#, r#"{"a": -1}"#], DataType::Int64),
            ([r#"{"a": 1.5}"#, r#"{"b": 1111111111111111111}"#], DataType::Float64),
        ] {
            let sample = Sample { lines: rows.join("\n").into_bytes(), starts: Vec::new() };
            let schema = sample.schema(usize::MAX).map(|found| sample.with_unsigned(found, 9));
            let dtype = schema
                .ok()
                .and_then(|s| s.field_with_name("a").ok().map(Field::data_type).cloned());
            assert_eq!(dtype, Some(want), "{rows:?}");
        }
    }
}
