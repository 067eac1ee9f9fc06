//! CSV: a header line, then one line for each row; NULL is an empty field, an empty text is `""`.

use super::cell::separated;
use super::digits::Float;
use super::line::{Notation, fields};
use crate::answer::Cell;
use crate::error::Error;
use arrow::array::RecordBatch;
use arrow::datatypes::Schema;
use std::io::{self, Write};

pub(super) fn write_header(schema: &Schema, out: &mut dyn Write) -> io::Result<()> {
    separated(out, schema.fields(), |out, f| write_text(f.name(), out))?;
    out.write_all(b"\n")
}

/// Appends the lines of a batch.
pub(super) fn write_lines(
    batch: &RecordBatch,
    schema: &Schema,
    out: &mut Vec<u8>,
) -> Result<(), Error> {
    let mut fields = fields(batch, schema)?;
    for row in 0..batch.num_rows() {
        for (i, field) in fields.iter_mut().enumerate() {
            if i > 0 {
                out.push(b',');
            }
            field.write::<Csv>(row, out)?;
        }
        out.push(b'\n');
    }
    Ok(())
}

struct Csv;

impl Notation for Csv {
    const NULL: &'static [u8] = b"";
    const QUOTE: &'static [u8] = b"";

    fn float(value: Float, out: &mut Vec<u8>) {
        value.write(out);
    }

    fn text(text: &str, out: &mut Vec<u8>) -> io::Result<()> {
        write_text(text, out)
    }

    fn nested(cell: &Cell<'_>, out: &mut Vec<u8>) -> io::Result<()> {
        write_text(&cell.text(), out)
    }
}

/// A text, in quotes where RFC 4180 requires them or where it would read as NULL.
fn write_text<W: Write + ?Sized>(text: &str, out: &mut W) -> io::Result<()> {
    let bytes = text.as_bytes();
    // Without a branch for each byte, so that several are compared at a time.
    let is_special = |&byte: &u8| matches!(byte, b',' | b'"' | b'\n' | b'\r');
    let quoted = bytes.iter().fold(false, |any, byte| any | is_special(byte))
        || bytes.first().is_none_or(|byte| *byte == b' ')
        || bytes.last() == Some(&b' ');
    match quoted {
        false => out.write_all(bytes),
        true => write!(out, "\"{}\"", text.replace('"', "\"\"")),
    }
}
