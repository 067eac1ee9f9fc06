//! CSV: a header line, then one line for each row; NULL is an empty field, an empty text is `""`.

use super::cell::separated;
use super::columns::Column;
use super::digits::Float;
use super::writer::output;
use crate::answer::Cell;
use crate::error::Error;
use arrow::array::RecordBatch;
use arrow::datatypes::Schema;
use std::io::{self, Write};

pub(super) fn write_header(schema: &Schema, out: &mut dyn Write) -> io::Result<()> {
    separated(out, schema.fields(), |out, f| write_text(f.name(), out))?;
    out.write_all(b"\n")
}

/// Size of the write buffer.
const BUFFER_BYTES: usize = 64 << 10;

pub(super) fn write_batch(
    batch: &RecordBatch,
    schema: &Schema,
    out: &mut dyn Write,
) -> Result<(), Error> {
    let columns = batch.columns().iter().zip(schema.fields());
    let mut fields: Vec<Field<'_>> = columns
        .map(|(array, field)| Ok(Field { column: Column::new(array, field)?, last: None }))
        .collect::<Result<_, Error>>()?;
    let mut buffer = Vec::with_capacity(2 * BUFFER_BYTES);
    for row in 0..batch.num_rows() {
        for (i, field) in fields.iter_mut().enumerate() {
            if i > 0 {
                buffer.push(b',');
            }
            field.write(row, &mut buffer)?;
        }
        buffer.push(b'\n');
        if buffer.len() >= BUFFER_BYTES {
            out.write_all(&buffer).map_err(output)?;
            buffer.clear();
        }
    }
    out.write_all(&buffer).map_err(output)
}

/// A column that is written cell by cell.
struct Field<'a> {
    column: Column<'a>,
    /// The timestamp that was written last: labels repeat.
    last: Option<(i64, Vec<u8>)>,
}

impl Field<'_> {
    fn write(&mut self, row: usize, out: &mut Vec<u8>) -> Result<(), Error> {
        if self.column.is_null(row) {
            return Ok(());
        }
        match &self.column {
            Column::Signed(a, get) => {
                out.extend_from_slice(itoa::Buffer::new().format(get(*a, row)).as_bytes());
            }
            Column::Unsigned(a, get) => {
                out.extend_from_slice(itoa::Buffer::new().format(get(*a, row)).as_bytes());
            }
            Column::F32(a) if a.value(row).is_finite() => Float::from(a.value(row)).write(out),
            Column::F64(a) if a.value(row).is_finite() => Float::from(a.value(row)).write(out),
            Column::Time(a, get, ..) | Column::Date(a, get) => {
                let raw = get(*a, row);
                match &self.last {
                    Some((known, text)) if *known == raw => out.extend_from_slice(text),
                    _ => {
                        let text = self.column.cell(row)?.text().into_bytes();
                        out.extend_from_slice(&text);
                        self.last = Some((raw, text));
                    }
                }
            }
            column => match column.cell(row)? {
                Cell::Text(t) => write_text(&t, out).map_err(output)?,
                cell @ (Cell::List(_) | Cell::Record(_)) => {
                    write_text(&cell.text(), out).map_err(output)?;
                }
                cell => out.extend_from_slice(cell.text().as_bytes()),
            },
        }
        Ok(())
    }
}

/// A text, in quotes where RFC 4180 requires them or where it would read as NULL.
fn write_text<W: Write + ?Sized>(text: &str, out: &mut W) -> io::Result<()> {
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
