//! CSV: a header line, then one line for each row. By default NULL is an empty field and an empty text is `""`.

use super::CsvOptions;
use super::digits::Float;
use super::line::{Notation, fields};
use crate::answer::Cell;
use crate::error::Error;
use arrow::array::RecordBatch;
use arrow::datatypes::Schema;
use std::io::{self, Write};

pub(super) fn write_header(
    schema: &Schema,
    options: &CsvOptions,
    out: &mut dyn Write,
) -> io::Result<()> {
    if !options.header {
        return Ok(());
    }
    for (i, field) in schema.fields().iter().enumerate() {
        if i > 0 {
            out.write_all(&[options.delimiter])?;
        }
        write_text(field.name(), options, out)?;
    }
    out.write_all(b"\n")
}

/// Appends the lines of a batch.
pub(super) fn write_lines(
    batch: &RecordBatch,
    schema: &Schema,
    options: &CsvOptions,
    out: &mut Vec<u8>,
) -> Result<(), Error> {
    let mut fields = fields(batch, schema)?;
    let csv = Csv(options);
    for row in 0..batch.num_rows() {
        for (i, field) in fields.iter_mut().enumerate() {
            if i > 0 {
                out.push(options.delimiter);
            }
            field.write(&csv, row, out)?;
        }
        out.push(b'\n');
    }
    Ok(())
}

struct Csv<'a>(&'a CsvOptions);

impl Notation for Csv<'_> {
    const QUOTE: &'static [u8] = b"";

    fn null(&self) -> &[u8] {
        self.0.null.as_bytes()
    }

    fn float(&self, value: Float, out: &mut Vec<u8>) {
        value.write(out);
    }

    fn text(&self, text: &str, out: &mut Vec<u8>) -> io::Result<()> {
        write_text(text, self.0, out)
    }

    fn nested(&self, cell: &Cell<'_>, out: &mut Vec<u8>) -> io::Result<()> {
        write_text(&cell.text(), self.0, out)
    }
}

/// A text, in quotes where RFC 4180 requires them, where it would read as NULL, and if it is empty.
fn write_text<W: Write + ?Sized>(text: &str, options: &CsvOptions, out: &mut W) -> io::Result<()> {
    let (bytes, delimiter) = (text.as_bytes(), options.delimiter);
    // Without a branch for each byte, so that several are compared at a time.
    let is_special = |&byte: &u8| (byte == delimiter) | matches!(byte, b'"' | b'\n' | b'\r');
    let quoted = bytes.iter().fold(false, |any, byte| any | is_special(byte))
        || bytes.first().is_none_or(|byte| *byte == b' ')
        || bytes.last() == Some(&b' ')
        || bytes == options.null.as_bytes();
    if quoted { write!(out, "\"{}\"", text.replace('"', "\"\"")) } else { out.write_all(bytes) }
}
