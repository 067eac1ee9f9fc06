//! Arrow IPC, as a stream (for pipes and HTTP) or as a file.

use super::writer::output;
use crate::error::Error;
use arrow::array::RecordBatch;
use arrow::datatypes::Schema;
use arrow::error::ArrowError;
use arrow::ipc::writer::{FileWriter, StreamWriter};
use std::io::Write;

/// Writes batches of `schema`; `file` chooses the file format with its footer.
pub(super) fn write(
    schema: &Schema,
    batches: impl Iterator<Item = Result<RecordBatch, Error>>,
    file: bool,
    out: &mut dyn Write,
) -> Result<(), Error> {
    if file {
        let mut w = FileWriter::try_new(out, schema).map_err(refused)?;
        for b in batches {
            w.write(&b?).map_err(refused)?;
        }
        w.finish().map_err(refused)
    } else {
        let mut w = StreamWriter::try_new(out, schema).map_err(refused)?;
        for b in batches {
            w.write(&b?).map_err(refused)?;
        }
        w.finish().map_err(refused)
    }
}

/// Arrow wraps errors of the output; a broken pipe keeps its type.
fn refused(e: ArrowError) -> Error {
    match e {
        ArrowError::IoError(_, source) => output(source),
        source => Error::Rows { source },
    }
}
