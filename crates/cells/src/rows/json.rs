//! Files of JSON objects, one per line or in one array, whose integers are checked.
//!
//! The first rows of a file determine its columns and their types. Arrow's reader truncates a 2.5 in a column of
//! integers to 2, so such columns are read as texts, and a text that is not an integer is an error. So is a key without
//! a column. `NaN` and infinities are floats ([`words`]). The reader does not report the row of an error, so after one
//! the file is read again, row by row.

mod array;
mod keys;
mod types;
mod words;

pub(crate) use types::JsonFiles;

use super::csv;
use super::opened::{Open, Scan};
use arrow::array::{Array, ArrayRef, AsArray, PrimitiveArray, RecordBatch};
use arrow::datatypes::{
    ArrowPrimitiveType, DataType, Field, Int64Type, Schema, SchemaRef, UInt64Type,
};
use arrow::error::ArrowError;
use arrow::json::ReaderBuilder;
use bytes::Bytes;
use datafusion::datasource::file_format::json::JsonDecoder;
use datafusion::datasource::listing::PartitionedFile;
use datafusion::datasource::physical_plan::{FileOpenFuture, FileOpener};
use datafusion::error::{DataFusionError, Result};
use datafusion_datasource::boundary_stream::AlignedBoundaryStream;
use datafusion_datasource::decoder::{DecoderDeserializer, deserialize_stream};
use datafusion_datasource::projection::ProjectionOpener;
use futures::stream::{self, BoxStream};
use futures::{FutureExt, StreamExt, TryStreamExt};
use keys::Keys;
use std::future::ready;
use std::str::FromStr;
use std::sync::Arc;

pub(super) struct JsonLines;

impl Open for JsonLines {
    fn opener(&self, scan: Scan) -> Result<Arc<dyn FileOpener>> {
        let files = scan.inner.table_schema().file_schema().clone();
        let split = scan.split();
        let schema = Arc::new(files.project(&split.file_indices)?);
        let places = split.file_indices.clone();
        ProjectionOpener::try_new(split, Arc::new(Opener { scan, schema, places }), &files)
    }
}

#[derive(Clone)]
struct Opener {
    scan: Scan,
    schema: SchemaRef,
    /// The positions of the columns in the file's schema.
    places: Vec<usize>,
}

impl FileOpener for Opener {
    fn open(&self, file: PartitionedFile) -> Result<FileOpenFuture> {
        let this = self.clone();
        Ok(async move { this.rows(file).await }.boxed())
    }
}

/// Rows of a file, or its bytes.
type Parts<T> = BoxStream<'static, Result<T>>;

impl Opener {
    async fn rows(self, file: PartitionedFile) -> Result<Parts<RecordBatch>> {
        let batches = self.clone().batches(&file, self.scan.batch_rows).await?;
        Ok(batches.or_else(move |e| self.clone().with_row(file.clone(), e)).boxed())
    }

    async fn with_row(self, file: PartitionedFile, error: DataFusionError) -> Result<RecordBatch> {
        if !what_of(&error).is_some_and(is_without_row) {
            return Err(error);
        }
        let Ok(mut again) = self.batches(&file, 1).await else { return Err(error) };
        let mut row = 1;
        loop {
            match again.next().await {
                Some(Ok(batch)) => row += batch.num_rows() as u64,
                Some(Err(found)) => {
                    let Some(what) = what_of(&found).filter(|what| is_without_row(what)) else {
                        return Err(found);
                    };
                    let what = csv::at_row_behind(first_of(&file), row, what);
                    let error = Box::new(ArrowError::JsonError(what));
                    return Err(DataFusionError::ArrowError(error, None));
                }
                None => return Err(error),
            }
        }
    }

    /// The bytes of the file or of its range: whole objects, one per line.
    async fn bytes(&self, file: &PartitionedFile) -> Result<Parts<Bytes>> {
        let (store, at) = (self.scan.store.clone(), file.object_meta.location.clone());
        let size = file.object_meta.size;
        match &file.range {
            None => array::objects(&store, &at).await,
            // The first range has all of an array.
            Some(range) if array::is_array(&store, &at, size).await? => match range.start {
                0 => array::objects(&store, &at).await,
                _ => Ok(stream::empty().boxed()),
            },
            Some(range) => {
                let (start, end) = (range.start.max(0) as u64, range.end.max(0) as u64);
                let lines = AlignedBoundaryStream::new(store, at, start, end, size, b'\n').await?;
                let mut is_start = start == 0;
                let lines = lines.map_ok(move |part| match std::mem::take(&mut is_start) {
                    true => array::without_mark(part),
                    false => part,
                });
                Ok(lines.map_err(DataFusionError::from).boxed())
            }
        }
    }

    async fn batches(
        self,
        file: &PartitionedFile,
        batch_rows: usize,
    ) -> Result<Parts<RecordBatch>> {
        let mut bytes = words::quoted(self.bytes(file).await?);
        let first = first_of(file);
        let columns = self.scan.inner.table_schema().file_schema();
        let is_whole = self.places.len() == columns.fields().len();
        // Where no column is read, no key is missed.
        if !is_whole && !self.places.is_empty() {
            let mut keys = Keys::new(columns);
            bytes = bytes
                .and_then(move |part| {
                    let checked = keys.check(&part).map_err(|e| in_range(first, e));
                    ready(checked.map(|()| part))
                })
                .boxed();
        }
        let is_integer =
            |field: &Arc<Field>| matches!(field.data_type(), DataType::Int64 | DataType::UInt64);
        let as_text = |field: &Arc<Field>| match is_integer(field) {
            true => Arc::new(field.as_ref().clone().with_data_type(DataType::Utf8)),
            false => field.clone(),
        };
        let texts = Schema::new(self.schema.fields().iter().map(as_text).collect::<Vec<_>>());
        let decoder = ReaderBuilder::new(Arc::new(texts))
            .with_batch_size(batch_rows)
            .with_coerce_primitive(true)
            .with_strict_mode(is_whole)
            .build_decoder()?;
        let decoder = DecoderDeserializer::new(JsonDecoder::new(decoder));
        let mut rows = 0;
        let batches = deserialize_stream(bytes.fuse(), decoder).map(move |batch| {
            let batch = self.with_integers(&batch?, rows)?;
            rows += batch.num_rows();
            Ok(batch)
        });
        Ok(batches.map_err(move |e| csv::behind(first, 1, e)).boxed())
    }

    /// The batch with integers; `rows` is the number of rows before it.
    fn with_integers(&self, batch: &RecordBatch, rows: usize) -> Result<RecordBatch, ArrowError> {
        let fields = self.schema.fields().iter().zip(&self.places);
        let columns = batch.columns().iter().zip(fields).map(|(column, (field, place))| {
            let dtype = field.data_type();
            let parsed = match dtype {
                DataType::Int64 => integers::<Int64Type>(column),
                DataType::UInt64 => integers::<UInt64Type>(column),
                _ => return Ok(column.clone()),
            };
            parsed.map_err(|row| {
                let (value, line) = (column.as_string::<i32>().value(row), rows + row + 1);
                ArrowError::ParseError(format!(
                    "Error while parsing value '{value}' as type '{dtype}' for column {place} at line {line}."
                ))
            })
        });
        let columns = columns.collect::<Result<Vec<ArrayRef>, ArrowError>>()?;
        let options =
            arrow::array::RecordBatchOptions::new().with_row_count(Some(batch.num_rows()));
        RecordBatch::try_new_with_options(self.schema.clone(), columns, &options)
    }
}

fn first_of(file: &PartitionedFile) -> u64 {
    file.range.as_ref().map_or(0, |range| range.start.max(0) as u64)
}

/// True for an error message without a row.
fn is_without_row(what: &str) -> bool {
    !csv::has_row(what) && !array::has_place(what)
}

/// The message of an error of Arrow's reader.
fn what_of(error: &DataFusionError) -> Option<&str> {
    let DataFusionError::ArrowError(e, _) = error else { return None };
    match &**e {
        ArrowError::JsonError(what) => Some(what),
        _ => None,
    }
}

/// The error in a range that begins at the byte `first`.
fn in_range(first: u64, error: ArrowError) -> DataFusionError {
    let error = match error {
        ArrowError::JsonError(what) => ArrowError::JsonError(csv::at_row_behind(first, 0, &what)),
        other => other,
    };
    DataFusionError::ArrowError(Box::new(error), None)
}

/// Parses texts as integers; fails with the row of the first text that is not one.
fn integers<T>(texts: &ArrayRef) -> std::result::Result<ArrayRef, usize>
where
    T: ArrowPrimitiveType,
    T::Native: FromStr + TryFrom<i64>,
{
    let texts = texts.as_string::<i32>();
    let mut values: Vec<T::Native> = Vec::with_capacity(texts.len());
    for row in 0..texts.len() {
        values.push(match texts.is_null(row) {
            true => T::Native::default(),
            false => integer(texts.value(row)).ok_or(row)?,
        });
    }
    Ok(Arc::new(PrimitiveArray::<T>::new(values.into(), texts.nulls().cloned())))
}

/// Accepts `2.0` and `1e3` too.
fn integer<T: FromStr + TryFrom<i64>>(text: &str) -> Option<T> {
    if let Ok(value) = text.parse() {
        return Some(value);
    }
    let value: f64 = text.parse().ok()?;
    let is_exact = value.fract() == 0.0 && value.abs() <= (1i64 << 53) as f64;
    if is_exact { T::try_from(value as i64).ok() } else { None }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_without_a_fraction_are_integers() {
        for (text, value) in [
            ("17", Some(17)),
            ("-9223372036854775808", Some(i64::MIN)),
            ("9223372036854775808", None),
            ("2.0", Some(2)),
            ("1e3", Some(1000)),
            ("2.5", None),
            ("x", None),
            ("true", None),
            ("NaN", None),
        ] {
            assert_eq!(integer::<i64>(text), value, "{text}");
        }
    }

    #[test]
    fn unsigned_integers_have_64_bits() {
        for (text, value) in [
            ("18446744073709551615", Some(u64::MAX)),
            ("18446744073709551616", None),
            ("2.0", Some(2)),
            ("-1", None),
            ("-0", Some(0)),
            ("2.5", None),
        ] {
            assert_eq!(integer::<u64>(text), value, "{text}");
        }
    }
}
