//! JSON: a document for a dataset of tensors or for rows, an object for each row in NDJSON.

use super::cell::write_json_string;
use super::columns::{Column, type_name};
use super::writer::output;
use crate::answer::{Surface, Tensor};
use crate::error::Error;
use arrow::array::RecordBatch;
use arrow::datatypes::Schema;
use std::io::{self, Write};

/// `{"tensors":[{"name","dtype","dims","shape","coords","data"}],"surface"}`
pub(super) fn write_tensors(
    tensors: &[Tensor],
    surface: Option<Surface>,
    out: &mut dyn Write,
) -> io::Result<()> {
    out.write_all(b"{\"tensors\":[")?;
    for (i, t) in tensors.iter().enumerate() {
        if i > 0 {
            out.write_all(b",")?;
        }
        write_tensor(t, out)?;
    }
    out.write_all(b"]")?;
    write_surface(surface, out)?;
    out.write_all(b"}")
}

fn write_surface(surface: Option<Surface>, out: &mut dyn Write) -> io::Result<()> {
    match surface {
        Some(s) => write!(out, ",\"surface\":\"{}\"", s.name()),
        None => Ok(()),
    }
}

fn write_tensor(t: &Tensor, out: &mut dyn Write) -> io::Result<()> {
    let names = t.dim_names();
    let shape: Vec<usize> = t.shape().iter().map(|&n| n as usize).collect();
    out.write_all(b"{\"name\":")?;
    write_json_string(out, t.name())?;
    write!(out, ",\"dtype\":\"{}\",\"dims\":[", t.dtype())?;
    for (i, n) in names.iter().enumerate() {
        if i > 0 {
            out.write_all(b",")?;
        }
        write_json_string(out, n)?;
    }
    out.write_all(b"],\"shape\":[")?;
    for (i, n) in shape.iter().enumerate() {
        write!(out, "{}{n}", if i > 0 { "," } else { "" })?;
    }
    out.write_all(b"],\"coords\":{")?;
    let mut first = true;
    for (a, d) in t.dims().iter().enumerate() {
        let Some(coord) = &d.coord else { continue };
        if !first {
            out.write_all(b",")?;
        }
        first = false;
        write_json_string(out, &names[a])?;
        out.write_all(b":[")?;
        for i in 0..coord.values.len() {
            if i > 0 {
                out.write_all(b",")?;
            }
            t.label(a, i).write_json(out)?;
        }
        out.write_all(b"]")?;
    }
    out.write_all(b"},\"data\":")?;
    write_nested(t, &shape, 0, out)?;
    out.write_all(b"}")
}

/// The cells from number `start` on as lists nested as deep as `shape` is long; a 0-d tensor is one value.
fn write_nested(t: &Tensor, shape: &[usize], start: usize, out: &mut dyn Write) -> io::Result<()> {
    let Some((&len, inner)) = shape.split_first() else { return t.cell(start).write_json(out) };
    let step: usize = inner.iter().product();
    out.write_all(b"[")?;
    for i in 0..len {
        if i > 0 {
            out.write_all(b",")?;
        }
        write_nested(t, inner, start + i * step, out)?;
    }
    out.write_all(b"]")
}

/// `{"columns":[{"name","type"}],"rows":[[..]],"surface"}`
pub(super) fn write_rows(
    schema: &Schema,
    batches: &[RecordBatch],
    surface: Option<Surface>,
    out: &mut dyn Write,
) -> Result<(), Error> {
    out.write_all(b"{\"columns\":[").map_err(output)?;
    for (i, f) in schema.fields().iter().enumerate() {
        out.write_all(if i > 0 { b",{\"name\":" } else { b"{\"name\":" }).map_err(output)?;
        write_json_string(out, f.name()).map_err(output)?;
        out.write_all(b",\"type\":").map_err(output)?;
        write_json_string(out, &type_name(f)).map_err(output)?;
        out.write_all(b"}").map_err(output)?;
    }
    out.write_all(b"],\"rows\":[").map_err(output)?;
    let mut first = true;
    for batch in batches {
        let columns = columns(batch, schema)?;
        for row in 0..batch.num_rows() {
            out.write_all(if first { b"[" } else { b",[" }).map_err(output)?;
            first = false;
            for (i, c) in columns.iter().enumerate() {
                if i > 0 {
                    out.write_all(b",").map_err(output)?;
                }
                c.cell(row)?.write_json(out).map_err(output)?;
            }
            out.write_all(b"]").map_err(output)?;
        }
    }
    out.write_all(b"]").map_err(output)?;
    write_surface(surface, out).map_err(output)?;
    out.write_all(b"}").map_err(output)
}

/// NDJSON: `{"lat":50.0,"t2m":281.3}` for each row.
pub(super) fn write_lines(
    schema: &Schema,
    batch: &RecordBatch,
    out: &mut dyn Write,
) -> Result<(), Error> {
    let columns = columns(batch, schema)?;
    let keys = schema
        .fields()
        .iter()
        .map(|f| serde_json::to_string(f.name()).map_err(io::Error::from).map_err(output))
        .collect::<Result<Vec<_>, _>>()?;
    for row in 0..batch.num_rows() {
        out.write_all(b"{").map_err(output)?;
        for (i, (key, c)) in keys.iter().zip(&columns).enumerate() {
            write!(out, "{}{key}:", if i > 0 { "," } else { "" }).map_err(output)?;
            c.cell(row)?.write_json(out).map_err(output)?;
        }
        out.write_all(b"}\n").map_err(output)?;
    }
    Ok(())
}

fn columns<'a>(batch: &'a RecordBatch, schema: &'a Schema) -> Result<Vec<Column<'a>>, Error> {
    batch.columns().iter().zip(schema.fields()).map(|(a, f)| Column::new(a, f)).collect()
}
