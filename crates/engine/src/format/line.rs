//! Rows as lines of text: cells are appended to a buffer by the type of their column.

use super::columns::Column;
use super::digits::Float;
use super::writer::output;
use crate::answer::Cell;
use crate::error::Error;
use arrow::array::{Array, RecordBatch};
use arrow::buffer::NullBuffer;
use arrow::datatypes::Schema;
use std::io;

/// How a format writes its cells.
pub(super) trait Notation {
    /// Around moments, and around floats that are not finite.
    const QUOTE: &'static [u8];

    fn null(&self) -> &[u8];

    fn float(&self, value: Float, out: &mut Vec<u8>);

    /// Writes a text.
    ///
    /// # Errors
    /// Errors of a writer; writing to memory does not fail.
    fn text(&self, text: &str, out: &mut Vec<u8>) -> io::Result<()>;

    /// Writes a list or a record.
    ///
    /// # Errors
    /// Errors of a writer; writing to memory does not fail.
    fn nested(&self, cell: &Cell<'_>, out: &mut Vec<u8>) -> io::Result<()>;
}

/// A column whose cells are appended row by row.
pub(super) struct Field<'a> {
    column: Column<'a>,
    nulls: Option<NullBuffer>,
    /// The moment that was written last: labels repeat.
    last: Option<(i64, Vec<u8>)>,
}

/// The columns of a batch.
///
/// # Errors
/// Arrow's, for a type that it does not format.
pub(super) fn fields<'a>(
    batch: &'a RecordBatch,
    schema: &'a Schema,
) -> Result<Vec<Field<'a>>, Error> {
    let columns = batch.columns().iter().zip(schema.fields());
    let fields = columns.map(|(array, field)| {
        let column = Column::new(array, field)?;
        Ok(Field { column, nulls: array.logical_nulls(), last: None })
    });
    fields.collect()
}

impl Field<'_> {
    /// Appends a cell.
    ///
    /// # Errors
    /// Arrow's.
    pub(super) fn write<N: Notation>(
        &mut self,
        notation: &N,
        row: usize,
        out: &mut Vec<u8>,
    ) -> Result<(), Error> {
        if self.nulls.as_ref().is_some_and(|nulls| nulls.is_null(row)) {
            out.extend_from_slice(notation.null());
            return Ok(());
        }
        match &self.column {
            Column::Bool(a) => out.extend_from_slice(if a.value(row) { b"true" } else { b"false" }),
            Column::Signed(a, get) => {
                out.extend_from_slice(itoa::Buffer::new().format(get(*a, row)).as_bytes());
            }
            Column::Unsigned(a, get) => {
                out.extend_from_slice(itoa::Buffer::new().format(get(*a, row)).as_bytes());
            }
            Column::F16(a) if a.value(row).is_finite() => {
                notation.float(a.value(row).to_f32().into(), out);
            }
            Column::F32(a) if a.value(row).is_finite() => notation.float(a.value(row).into(), out),
            Column::F64(a) if a.value(row).is_finite() => notation.float(a.value(row).into(), out),
            Column::F16(_) | Column::F32(_) | Column::F64(_) => {
                out.extend_from_slice(N::QUOTE);
                out.extend_from_slice(self.column.cell(row)?.text().as_bytes());
                out.extend_from_slice(N::QUOTE);
            }
            Column::Time(a, get, ..) | Column::Date(a, get) => {
                let raw = get(*a, row);
                match &self.last {
                    Some((known, text)) if *known == raw => out.extend_from_slice(text),
                    _ => {
                        let start = out.len();
                        out.extend_from_slice(N::QUOTE);
                        self.column.push_moment(raw, out);
                        out.extend_from_slice(N::QUOTE);
                        let (last, text) = self.last.get_or_insert_default();
                        *last = raw;
                        text.clear();
                        text.extend_from_slice(&out[start..]);
                    }
                }
            }
            Column::Text(a) => notation.text(a.value(row), out).map_err(output)?,
            Column::List(..) | Column::Record(..) | Column::Map(..) => {
                notation.nested(&self.column.cell(row)?, out).map_err(output)?;
            }
            Column::Other(..) => match self.column.cell(row)? {
                Cell::Text(text) => notation.text(&text, out).map_err(output)?,
                cell => notation.nested(&cell, out).map_err(output)?,
            },
        }
        Ok(())
    }
}
