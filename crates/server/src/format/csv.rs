//! CSV: a header line, then one line for each row; NULL is an empty field, an empty text is `""`.

use super::columns::Column;
use crate::answer::Cell;
use crate::error::Error;
use arrow::array::RecordBatch;
use arrow::datatypes::Schema;
use std::io::{self, Write};

/// Writes the names of the columns.
pub(super) fn write_header(schema: &Schema, out: &mut dyn Write) -> io::Result<()> {
    for (i, f) in schema.fields().iter().enumerate() {
        if i > 0 {
            out.write_all(b",")?;
        }
        write_text(f.name(), out)?;
    }
    out.write_all(b"\n")
}

/// Writes the rows of a batch.
pub(super) fn write_batch(
    batch: &RecordBatch,
    schema: &Schema,
    out: &mut dyn Write,
) -> Result<(), Error> {
    let columns = batch
        .columns()
        .iter()
        .zip(schema.fields())
        .map(|(a, f)| Column::new(a, f))
        .collect::<Result<Vec<_>, _>>()?;
    for row in 0..batch.num_rows() {
        for (i, c) in columns.iter().enumerate() {
            let cell = c.cell(row)?;
            let write = |out: &mut dyn Write| {
                if i > 0 {
                    out.write_all(b",")?;
                }
                match &cell {
                    Cell::Null => Ok(()),
                    Cell::Text(t) => write_text(t, out),
                    Cell::List(_) | Cell::Record(_) => write_text(&cell.text(), out),
                    _ => out.write_all(cell.text().as_bytes()),
                }
            };
            write(out).map_err(super::writer::output)?;
        }
        out.write_all(b"\n").map_err(super::writer::output)?;
    }
    Ok(())
}

/// A text, in quotes where RFC 4180 wants them or where it would read as NULL.
fn write_text(text: &str, out: &mut dyn Write) -> io::Result<()> {
    let plain = !text.is_empty()
        && !text.contains([',', '"', '\n', '\r'])
        && !text.starts_with(' ')
        && !text.ends_with(' ');
    if plain {
        out.write_all(text.as_bytes())
    } else {
        write!(out, "\"{}\"", text.replace('"', "\"\""))
    }
}
