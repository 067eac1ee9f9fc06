//! Parquet: rows, and tensors in the long layout, a row group at a time. Its columns are encoded on all threads.
//!
//! # Source
//! Apache Parquet format 2.x as `parquet` 59 writes it, with the Arrow schema in its metadata.

use super::turns::{next_batches, on_threads};
use super::writer::output;
use crate::error::Error;
use arrow::array::{RecordBatch, new_empty_array};
use arrow::datatypes::{FieldRef, SchemaRef};
use parquet::arrow::ArrowWriter;
use parquet::arrow::arrow_writer::{ArrowColumnWriter, compute_leaves};
use parquet::basic::{Compression, ZstdLevel};
use parquet::errors::ParquetError;
use parquet::file::properties::WriterProperties;
use parquet::file::writer::SerializedFileWriter;
use std::collections::VecDeque;
use std::io::{self, Write};
use std::sync::{Arc, Mutex, PoisonError};
use tessera_cells::spans::{Durations, SpanError};

/// A row group ends when its encoded pages have this many bytes, so that memory does not grow with the rows.
const GROUP_BYTES_MAX: usize = 32 << 20;
/// Rows after which it ends in any case, unless the options say otherwise.
const GROUP_ROWS_MAX: usize = 1 << 20;

/// Options of Parquet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ParquetOptions {
    compression: Compression,
    /// Upper bound on the rows of a row group, at least 1.
    group_rows_max: usize,
}

impl Default for ParquetOptions {
    fn default() -> Self {
        ParquetOptions { compression: Compression::SNAPPY, group_rows_max: GROUP_ROWS_MAX }
    }
}

impl ParquetOptions {
    /// The same with pages compressed by `name`: `snappy`, `zstd`, `zstd:1` to `zstd:22`, `lz4`, `none` or
    /// `uncompressed`. `None` for another name.
    pub fn compressed(self, name: &str) -> Option<Self> {
        let compression = match name.to_ascii_lowercase().as_str() {
            "snappy" => Compression::SNAPPY,
            "zstd" => Compression::ZSTD(ZstdLevel::default()),
            "lz4" | "lz4_raw" => Compression::LZ4_RAW,
            "none" | "uncompressed" => Compression::UNCOMPRESSED,
            other => {
                let level = other.strip_prefix("zstd:")?.parse().ok()?;
                Compression::ZSTD(ZstdLevel::try_new(level).ok()?)
            }
        };
        Some(ParquetOptions { compression, ..self })
    }

    /// The same with at most `rows` rows in a row group; `None` for 0.
    pub fn grouped(self, rows: usize) -> Option<Self> {
        (rows > 0).then_some(ParquetOptions { group_rows_max: rows, ..self })
    }
}

/// Encoded bytes that were not yet written: the Parquet writer needs an output that is `Send`.
#[derive(Clone, Default)]
struct Encoded(Arc<Mutex<Vec<u8>>>);

impl Encoded {
    fn drain(&self, out: &mut dyn Write) -> Result<(), Error> {
        let bytes = std::mem::take(&mut *self.0.lock().unwrap_or_else(PoisonError::into_inner));
        if bytes.is_empty() {
            // Nothing is written until a row group is full: an empty write checks that the output still accepts data.
            return out.write(&[]).map(drop).map_err(output);
        }
        out.write_all(&bytes).map_err(output)
    }
}

impl Write for Encoded {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// The columns of a row group that is being encoded. A nested column has several writers.
struct Group {
    columns: Vec<(FieldRef, Vec<ArrowColumnWriter>)>,
    rows: usize,
}

impl Group {
    fn new(schema: &SchemaRef, writers: Vec<ArrowColumnWriter>) -> Result<Self, Error> {
        let mut writers = writers.into_iter();
        let columns = schema.fields().iter().map(|field| {
            let leaves = compute_leaves(field, &new_empty_array(field.data_type()));
            let leaves = leaves.map_err(refused)?.len();
            Ok((field.clone(), writers.by_ref().take(leaves).collect()))
        });
        Ok(Group { columns: columns.collect::<Result<_, Error>>()?, rows: 0 })
    }

    /// Encodes some batches.
    fn add(&mut self, batches: &[RecordBatch]) -> Result<(), Error> {
        self.rows += batches.iter().map(RecordBatch::num_rows).sum::<usize>();
        let columns = self.columns.iter_mut().enumerate().collect();
        on_threads(columns, |(i, (field, writers))| {
            for batch in batches {
                let leaves = compute_leaves(field, batch.column(i)).map_err(refused)?;
                for (writer, leaf) in writers.iter_mut().zip(&leaves) {
                    writer.write(leaf).map_err(refused)?;
                }
            }
            Ok(())
        })
        .map(drop)
    }

    fn is_full(&self, rows_max: usize) -> bool {
        let writers = self.columns.iter().flat_map(|(_, writers)| writers);
        let bytes: usize = writers.map(ArrowColumnWriter::get_estimated_total_bytes).sum();
        self.rows >= rows_max || bytes > GROUP_BYTES_MAX
    }

    fn finish(self, file: &mut SerializedFileWriter<Encoded>) -> Result<(), Error> {
        let close = |(_, writers): (FieldRef, Vec<ArrowColumnWriter>)| {
            let chunks = writers.into_iter().map(ArrowColumnWriter::close);
            chunks.collect::<Result<Vec<_>, _>>().map_err(refused)
        };
        let columns = on_threads(self.columns, close)?;
        let mut group = file.next_row_group().map_err(too_many)?;
        for chunk in columns.into_iter().flatten() {
            chunk.append_to_row_group(&mut group).map_err(refused)?;
        }
        group.close().map(drop).map_err(refused)
    }
}

/// Removes the first `count` rows, or all that there are, from batches that have rows.
fn first_rows(batches: &mut VecDeque<RecordBatch>, mut count: usize) -> Vec<RecordBatch> {
    let mut first = Vec::new();
    while count > 0
        && let Some(batch) = batches.pop_front()
    {
        let rows = batch.num_rows().min(count);
        if rows < batch.num_rows() {
            batches.push_front(batch.slice(rows, batch.num_rows() - rows));
        }
        first.push(batch.slice(0, rows));
        count -= rows;
    }
    first
}

/// Writes batches of `schema`. Spans of time are durations.
pub(super) fn write(
    schema: &SchemaRef,
    batches: impl Iterator<Item = Result<RecordBatch, Error>>,
    options: &ParquetOptions,
    out: &mut dyn Write,
) -> Result<(), Error> {
    // Parquet has no intervals of nanoseconds. Durations are integers there, which the Arrow schema makes durations again.
    let durations = Durations::of(schema, true);
    let schema = durations.as_ref().map_or(schema, Durations::schema);
    let mut batches = batches.map(|batch| match &durations {
        Some(durations) => durations.rows(&batch?).map_err(no_duration),
        None => batch,
    });
    let properties = WriterProperties::builder().set_compression(options.compression).build();
    let encoded = Encoded::default();
    let writer = ArrowWriter::try_new(encoded.clone(), schema.clone(), Some(properties));
    let (mut file, groups) =
        writer.and_then(ArrowWriter::into_serialized_writer).map_err(refused)?;
    let mut group = None;
    loop {
        let some = next_batches(&mut batches)?;
        if some.is_empty() {
            break;
        }
        let mut left: VecDeque<_> = some.into_iter().filter(|batch| batch.num_rows() > 0).collect();
        while !left.is_empty() {
            let current = match &mut group {
                Some(group) => group,
                None => {
                    let writers = groups.create_column_writers(file.flushed_row_groups().len());
                    group.insert(Group::new(schema, writers.map_err(refused)?)?)
                }
            };
            let room = options.group_rows_max - current.rows;
            current.add(&first_rows(&mut left, room))?;
            if current.is_full(options.group_rows_max)
                && let Some(full) = group.take()
            {
                full.finish(&mut file)?;
            }
            encoded.drain(out)?;
        }
    }
    if let Some(last) = group {
        last.finish(&mut file)?;
    }
    file.close().map_err(refused)?;
    encoded.drain(out)
}

/// The error for a row group that the file has no number for.
fn too_many(e: ParquetError) -> Error {
    Error::format("parquet", e.to_string(), "raise `row_group_size`")
}

fn no_duration(e: SpanError) -> Error {
    match e {
        SpanError::Arrow(source) => Error::Rows { source },
        e => Error::Format { format: "parquet", reason: e.to_string(), hint: e.hint() },
    }
}

/// The error for a type that Parquet does not have.
fn refused(e: ParquetError) -> Error {
    Error::format("parquet", e.to_string(), "cast the column in the query, or write arrow")
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]
    use super::*;
    use arrow::array::{
        ArrayRef, AsArray, DurationNanosecondArray, Int64Array, IntervalMonthDayNanoArray,
        ListArray, StringArray, StructArray,
    };
    use arrow::compute::concat_batches;
    use arrow::datatypes::{
        DataType, DurationNanosecondType, Field, Int64Type, IntervalMonthDayNano, IntervalUnit,
        Schema,
    };
    use parquet::arrow::arrow_reader::ParquetRecordBatchReaderBuilder;
    use tessera_cells::spans::spanned;

    const HOUR_NS: i64 = 3_600_000_000_000;

    /// Numbers, texts with missing values, lists, and structs of both.
    fn batch(start: i64, rows: i64) -> RecordBatch {
        let at = || start..start + rows;
        let numbers: ArrayRef = Arc::new(Int64Array::from_iter_values(at()));
        let texts = at().map(|i| (i % 7 != 0).then(|| format!("text {i}")));
        let texts: ArrayRef = Arc::new(texts.collect::<StringArray>());
        let lists = at().map(|i| (i % 5 != 0).then(|| (0..i % 4).map(Some)));
        let lists: ArrayRef = Arc::new(ListArray::from_iter_primitive::<Int64Type, _, _>(lists));
        let both = StructArray::try_from(vec![("a", numbers.clone()), ("b", texts.clone())]);
        let both: ArrayRef = Arc::new(both.unwrap());
        let columns =
            [("n", numbers, false), ("t", texts, true), ("l", lists, true), ("s", both, true)];
        RecordBatch::try_from_iter_with_nullable(columns).unwrap()
    }

    fn groups_of_written(batches: &[RecordBatch]) -> usize {
        groups_with(batches, &ParquetOptions::default(), Compression::SNAPPY).len()
    }

    /// Rows of each group.
    fn groups_with(
        batches: &[RecordBatch],
        options: &ParquetOptions,
        compression: Compression,
    ) -> Vec<i64> {
        let schema = batches[0].schema();
        let mut file = Vec::new();
        write(&schema, batches.iter().cloned().map(Ok), options, &mut file).unwrap();
        let reader = ParquetRecordBatchReaderBuilder::try_new(bytes::Bytes::from(file)).unwrap();
        let all = reader.metadata().row_groups();
        let chunks = all.iter().flat_map(|group| group.columns());
        chunks.for_each(|chunk| assert_eq!(chunk.compression(), compression));
        let groups = all.iter().map(|group| group.num_rows()).collect();
        assert_eq!(reader.schema(), &schema);
        let read: Vec<_> = reader.build().unwrap().collect::<Result<_, _>>().unwrap();
        let all = concat_batches(&schema, batches).unwrap();
        assert_eq!(concat_batches(&schema, &read).unwrap(), all);
        groups
    }

    #[test]
    fn columns_of_all_kinds_are_read_back_from_several_row_groups() {
        assert_eq!(groups_of_written(&[batch(0, 0)]), 0);
        assert_eq!(groups_of_written(&[batch(0, 1)]), 1);
        let many: Vec<_> = (0..50).map(|i| batch(i * 1000, 1000)).collect();
        assert_eq!(groups_of_written(&many), 1);
        let large: Vec<_> = (0..9).map(|i| batch(i * 250_000, 250_000)).collect();
        assert!(groups_of_written(&large) > 1);
    }

    #[test]
    fn spans_of_time_are_read_back_as_durations() {
        let attrs = [("units", "hours"), ("dtype", "timedelta64[ns]")];
        let attrs = attrs.map(|(key, of)| (key.to_string(), serde_json::Value::from(of))).into();
        let step = spanned(Field::new("step", DataType::Int64, false), &attrs);
        let wait = DataType::Interval(IntervalUnit::MonthDayNano);
        let schema = Arc::new(Schema::new(vec![step, Field::new("wait", wait, true)]));
        let write_of = |months: i32| {
            let steps: ArrayRef = Arc::new(Int64Array::from(vec![6, 12]));
            let wait = IntervalMonthDayNano::new(months, 1, 500);
            let waits = IntervalMonthDayNanoArray::from(vec![Some(wait), None]);
            let batch = RecordBatch::try_new(schema.clone(), vec![steps, Arc::new(waits)]);
            let mut file = Vec::new();
            let options = ParquetOptions::default();
            write(&schema, [Ok(batch.unwrap())].into_iter(), &options, &mut file).map(|()| file)
        };
        let file = bytes::Bytes::from(write_of(0).unwrap());
        let reader = ParquetRecordBatchReaderBuilder::try_new(file).unwrap().build().unwrap();
        let read: Vec<_> = reader.collect::<Result<_, _>>().unwrap();
        let hours = DurationNanosecondArray::from(vec![6 * HOUR_NS, 12 * HOUR_NS]);
        assert_eq!(read[0].column(0).as_primitive::<DurationNanosecondType>(), &hours);
        let waits = DurationNanosecondArray::from(vec![Some(24 * HOUR_NS + 500), None]);
        assert_eq!(read[0].column(1).as_primitive::<DurationNanosecondType>(), &waits);
        assert!(write_of(1).unwrap_err().to_string().contains("1 months"));
    }

    #[test]
    fn options_set_the_compression_and_the_rows_of_a_group() {
        let options = ParquetOptions::default();
        let all = batch(0, 1299);
        let batches: Vec<_> = [700, 0, 1, 1299].map(|rows| all.slice(0, rows)).into();
        for (rows, groups) in [
            (3000, vec![2000]),
            (2000, vec![2000]),
            (1999, vec![1999, 1]),
            (700, vec![700, 700, 600]),
            (450, vec![450, 450, 450, 450, 200]),
        ] {
            let options = options.grouped(rows).unwrap();
            assert_eq!(groups_with(&batches, &options, Compression::SNAPPY), groups);
        }
        assert_eq!(options.grouped(0), None);
        // Files do not say the level.
        let zstd = Compression::ZSTD(ZstdLevel::default());
        for (name, compression) in [
            ("snappy", Compression::SNAPPY),
            ("ZSTD", zstd),
            ("zstd:9", zstd),
            ("lz4", Compression::LZ4_RAW),
            ("none", Compression::UNCOMPRESSED),
            ("Uncompressed", Compression::UNCOMPRESSED),
        ] {
            let options = options.compressed(name).unwrap();
            assert_eq!(groups_with(&batches, &options, compression), [2000]);
        }
        for name in ["", "gzip", "brotli", "zstd:", "zstd:99", "zstd:x"] {
            assert_eq!(options.compressed(name), None, "{name}");
        }
    }
}
