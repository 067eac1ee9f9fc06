//! JSON: a document for a set of tensors or for rows, an object for each row in NDJSON.

use super::cell::{separated, write_json_string};
use super::columns::type_name;
use super::digits::Float;
use super::line::{Notation, fields};
use super::turns::write_batches;
use super::writer::output;
use crate::answer::{Batches, Cell, Head, Surface, Windows, windows};
use crate::error::Error;
use arrow::array::RecordBatch;
use arrow::datatypes::Schema;
use std::io::{self, Write};

/// Upper bound on the cells of a window.
const WINDOW_CELLS: u64 = 1 << 16;

/// `{"tensors":[{"name","dtype","dims","shape","coords","data"}],"surface"}`
pub(super) fn write_tensors(
    tensors: &[&dyn Windows],
    surface: Option<Surface>,
    out: &mut dyn Write,
) -> Result<(), Error> {
    out.write_all(b"{\"tensors\":[").map_err(output)?;
    for (i, t) in tensors.iter().enumerate() {
        if i > 0 {
            out.write_all(b",").map_err(output)?;
        }
        write_head(t.head(), out).map_err(output)?;
        write_nested(*t, out)?;
        out.write_all(b"}").map_err(output)?;
    }
    out.write_all(b"]").map_err(output)?;
    write_surface(surface, out).map_err(output)?;
    out.write_all(b"}").map_err(output)
}

fn write_surface(surface: Option<Surface>, out: &mut dyn Write) -> io::Result<()> {
    match surface {
        Some(s) => write!(out, ",\"surface\":\"{}\"", s.name()),
        None => Ok(()),
    }
}

fn write_head(t: Head<'_>, out: &mut dyn Write) -> io::Result<()> {
    let names = t.dim_names();
    let shape = t.shape();
    out.write_all(b"{\"name\":")?;
    write_json_string(out, t.name)?;
    write!(out, ",\"dtype\":\"{}\",\"dims\":[", t.dtype)?;
    separated(out, &names, |out, n| write_json_string(out, n))?;
    out.write_all(b"],\"shape\":[")?;
    separated(out, &shape, |out, n| write!(out, "{n}"))?;
    out.write_all(b"],\"coords\":{")?;
    // Unreadable labels are left out, like missing ones.
    let readable = t.dims.iter().enumerate().filter_map(|(a, d)| {
        Some((a, d.coord.as_ref().filter(|c| c.values.unreadable().is_none())?))
    });
    separated(out, readable, |out, (a, coord)| {
        write_json_string(out, &names[a])?;
        out.write_all(b":[")?;
        separated(out, 0..coord.values.len(), |out, i| t.label(a, i).write_json(out))?;
        out.write_all(b"]")
    })?;
    out.write_all(b"},\"data\":")
}

/// The cells as lists nested by axis; a 0-d tensor is one value.
fn write_nested(t: &dyn Windows, out: &mut dyn Write) -> Result<(), Error> {
    let shape = t.head().shape();
    if shape.contains(&0) {
        return write_empty(&shape, out).map_err(output);
    }
    let rank = shape.len();
    let mut index = vec![0u64; rank];
    let mut first = true;
    for window in windows(&shape, WINDOW_CELLS) {
        let cells = t.window(&window)?;
        for i in 0..cells.len() {
            let mut write = || {
                if !first {
                    out.write_all(b",")?;
                }
                first = false;
                // A list begins for each axis that is at its start together with all axes after it.
                let begin = index.iter().rev().take_while(|&&i| i == 0).count();
                (0..begin).try_for_each(|_| out.write_all(b"["))?;
                cells.cell(i).write_json(out)?;
                for a in (0..rank).rev() {
                    index[a] += 1;
                    if index[a] < shape[a] {
                        break;
                    }
                    index[a] = 0;
                    out.write_all(b"]")?;
                }
                Ok(())
            };
            write().map_err(output)?;
        }
    }
    Ok(())
}

/// The lists of a tensor without cells.
fn write_empty(shape: &[u64], out: &mut dyn Write) -> io::Result<()> {
    out.write_all(b"[")?;
    if let Some((&len, inner)) = shape.split_first()
        && !inner.is_empty()
    {
        separated(out, 0..len, |out, _| write_empty(inner, out))?;
    }
    out.write_all(b"]")
}

/// `{"columns":[{"name","type"}],"rows":[[..]],"surface"}`
pub(super) fn write_rows(
    schema: &Schema,
    batches: Batches<'_>,
    surface: Option<Surface>,
    out: &mut dyn Write,
) -> Result<(), Error> {
    out.write_all(b"{\"columns\":[").map_err(output)?;
    let head = separated(out, schema.fields(), |out, f| {
        out.write_all(b"{\"name\":")?;
        write_json_string(out, f.name())?;
        out.write_all(b",\"type\":")?;
        write_json_string(out, &type_name(f))?;
        out.write_all(b"}")
    });
    head.map_err(output)?;
    out.write_all(b"],\"rows\":[").map_err(output)?;
    let rows = |piece: usize, batch: &RecordBatch, out: &mut Vec<u8>| {
        let mut fields = fields(batch, schema)?;
        for row in 0..batch.num_rows() {
            let begin: &[u8] = if piece == 0 && row == 0 { b"[" } else { b",[" };
            out.extend_from_slice(begin);
            for (i, field) in fields.iter_mut().enumerate() {
                if i > 0 {
                    out.push(b',');
                }
                field.write(&Json, row, out)?;
            }
            out.push(b']');
        }
        Ok(())
    };
    write_batches(batches, rows, out)?;
    out.write_all(b"]").map_err(output)?;
    write_surface(surface, out).map_err(output)?;
    out.write_all(b"}").map_err(output)
}

/// NDJSON: `{"lat":50.0,"t2m":281.3}` for each row.
pub(super) fn write_lines(
    schema: &Schema,
    batch: &RecordBatch,
    out: &mut Vec<u8>,
) -> Result<(), Error> {
    let mut fields = fields(batch, schema)?;
    // Each key, with the `{` or `,` before it and the `:` behind it.
    let mut keys = Vec::with_capacity(fields.len());
    for (i, field) in schema.fields().iter().enumerate() {
        let mut key = if i > 0 { b",".to_vec() } else { b"{".to_vec() };
        write_json_string(&mut key, field.name()).map_err(output)?;
        key.push(b':');
        keys.push(key);
    }
    for row in 0..batch.num_rows() {
        if keys.is_empty() {
            out.push(b'{');
        }
        for (key, field) in keys.iter().zip(&mut fields) {
            out.extend_from_slice(key);
            field.write(&Json, row, out)?;
        }
        out.extend_from_slice(b"}\n");
    }
    Ok(())
}

struct Json;

impl Notation for Json {
    const QUOTE: &'static [u8] = b"\"";

    fn null(&self) -> &[u8] {
        b"null"
    }

    fn float(&self, value: Float, out: &mut Vec<u8>) {
        value.write_json(out);
    }

    fn text(&self, text: &str, out: &mut Vec<u8>) -> io::Result<()> {
        write_json_string(out, text)
    }

    fn nested(&self, cell: &Cell<'_>, out: &mut Vec<u8>) -> io::Result<()> {
        cell.write_json(out)
    }
}
