//! Parquet: rows, and tensors in the long layout, a row group at a time.
//!
//! # Source
//! Apache Parquet format 2.x as `parquet` 59 writes it, with the Arrow schema in its metadata.

use super::writer::output;
use crate::error::Error;
use arrow::array::RecordBatch;
use arrow::datatypes::SchemaRef;
use parquet::arrow::ArrowWriter;
use parquet::basic::Compression;
use parquet::errors::ParquetError;
use parquet::file::properties::WriterProperties;
use std::io::{self, Write};
use std::sync::{Arc, Mutex, PoisonError};

/// A row group ends when its encoded pages have this many bytes, so that memory does not grow with the rows.
const GROUP_BYTES_MAX: usize = 32 << 20;

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

/// Writes batches of `schema`, compressed with Snappy.
pub(super) fn write(
    schema: &SchemaRef,
    batches: impl Iterator<Item = Result<RecordBatch, Error>>,
    out: &mut dyn Write,
) -> Result<(), Error> {
    let properties = WriterProperties::builder().set_compression(Compression::SNAPPY).build();
    let encoded = Encoded::default();
    let mut writer =
        ArrowWriter::try_new(encoded.clone(), schema.clone(), Some(properties)).map_err(refused)?;
    for batch in batches {
        writer.write(&batch?).map_err(refused)?;
        if writer.in_progress_size() > GROUP_BYTES_MAX {
            writer.flush().map_err(refused)?;
        }
        encoded.drain(out)?;
    }
    writer.close().map_err(refused)?;
    encoded.drain(out)
}

/// The error for a type that Parquet does not have.
fn refused(e: ParquetError) -> Error {
    Error::Format {
        format: "parquet",
        reason: e.to_string(),
        hint: Some("cast the column in the query, or write arrow".into()),
    }
}
