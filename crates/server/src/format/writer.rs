//! The answers of a script, one after another, in one format.

use super::long::Long;
use super::{Format, arrow_ipc, csv, json, npy, npz, table};
use crate::answer::{Answer, Reply, Tensor};
use crate::error::Error;
use std::io::{self, Write};

/// How answers look.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Options {
    /// Characters of a line for tables.
    pub width: usize,
    /// The most rows that a table shows.
    pub max_rows: usize,
    /// Arrow's file format instead of its stream.
    pub arrow_file: bool,
    /// Boxes no wider than `width`: columns are narrowed, then left out. For people only: it loses values.
    pub fit: bool,
}

impl Default for Options {
    fn default() -> Self {
        Options { width: 75, max_rows: 40, arrow_file: false, fit: false }
    }
}

/// Writes answers.
///
/// `table`, `json`, `ndjson` and `csv` are written as answers come. The other formats hold one result: DDL before it
/// adds nothing, a second result is an error, and [`Writer::finish`] writes it.
pub struct Writer<W: Write> {
    format: Format,
    options: Options,
    out: W,
    written: usize,
    pending: Option<Reply>,
}

impl<W: Write> Writer<W> {
    /// A writer of `format` to `out`.
    ///
    /// # Errors
    /// Parquet is not supported yet.
    pub fn new(format: Format, options: Options, out: W) -> Result<Self, Error> {
        if format == Format::Parquet {
            return Err(Error::Unsupported {
                construct: "writing Parquet".into(),
                hint: Some("write `arrow`, `csv` or `npz`".into()),
            });
        }
        Ok(Writer { format, options, out, written: 0, pending: None })
    }

    /// Takes the next answer. Each text answer is flushed: a reader sees it while the next one runs.
    pub fn push(&mut self, reply: Reply) -> Result<(), Error> {
        let reply = reply.whole()?;
        if matches!(self.format, Format::Arrow | Format::Npy | Format::Npz) {
            return self.keep(reply);
        }
        let first = self.written == 0;
        self.written += 1;
        let out: &mut dyn Write = &mut self.out;
        match self.format {
            Format::Table => {
                if !first {
                    out.write_all(b"\n").map_err(output)?;
                }
                write_table(&reply, &self.options, out)?;
            }
            Format::Json => {
                write_json(&reply, out)?;
                out.write_all(b"\n").map_err(output)?;
            }
            Format::Ndjson => write_ndjson(&reply, out)?,
            _ => write_csv(&reply, first, out)?,
        }
        self.out.flush().map_err(output)
    }

    fn keep(&mut self, reply: Reply) -> Result<(), Error> {
        let refuse = |reason: String, hint: &str| {
            Err(Error::Format { format: self.format.name(), reason, hint: Some(hint.into()) })
        };
        match &reply.answer {
            Answer::Done(_) => return Ok(()),
            Answer::Text(_) | Answer::Json(_) => {
                return refuse("it is a text".into(), "use `--format table` or `json`");
            }
            Answer::Rows { .. } if self.format != Format::Arrow => {
                return refuse(
                    "it is rows, not a tensor".into(),
                    "use arrow, csv or json, or ask for a tensor: `SELECT [lat], avg(v) … GROUP BY lat`",
                );
            }
            Answer::Tensors(t) if self.format == Format::Npy && t.len() != 1 => {
                return refuse(
                    format!("it needs exactly one tensor, and there are {}", t.len()),
                    "use npz, or select one",
                );
            }
            _ => {}
        }
        if self.pending.is_some() {
            return refuse(
                "it is one result, and several statements give one".into(),
                "run one query at a time, or use json",
            );
        }
        self.pending = Some(reply);
        Ok(())
    }

    /// Writes what is held back and gives the stream back, flushed.
    pub fn finish(mut self) -> Result<W, Error> {
        let out: &mut dyn Write = &mut self.out;
        match (self.format, self.pending.take()) {
            (Format::Arrow | Format::Npy | Format::Npz, None) => {
                return Err(Error::Format {
                    format: self.format.name(),
                    reason: "there is no result".into(),
                    hint: Some("add a SELECT".into()),
                });
            }
            (Format::Npy, Some(Reply { answer: Answer::Tensors(t), .. })) => {
                npy::write(&t[0], out)?
            }
            (Format::Npz, Some(Reply { answer: Answer::Tensors(t), .. })) => npz::write(&t, out)?,
            (Format::Arrow, Some(reply)) => write_arrow(&reply, self.options.arrow_file, out)?,
            _ => {}
        }
        self.out.flush().map_err(output)?;
        Ok(self.out)
    }
}

/// The error of an output stream.
pub(super) fn output(source: io::Error) -> Error {
    Error::io("write", "the output", source)
}

/// `push` puts every tensor together before it is looked at.
fn in_chunks() -> Error {
    Error::Internal { what: "a result reached a format in chunks".into() }
}

fn write_table(reply: &Reply, o: &Options, out: &mut dyn Write) -> Result<(), Error> {
    match &reply.answer {
        Answer::Tensors(tensors) => {
            for (i, t) in tensors.iter().enumerate() {
                if i > 0 {
                    out.write_all(b"\n").map_err(output)?;
                }
                table::write_tensor(t, o, out).map_err(output)?;
            }
            Ok(())
        }
        Answer::Rows { schema, batches } => table::write_rows(schema, batches, o, out),
        Answer::Text(text) | Answer::Done(text) => {
            writeln!(out, "{}", text.trim_end()).map_err(output)
        }
        Answer::Json(value) => writeln!(out, "{value:#}").map_err(output),
        Answer::Chunked(_) => Err(in_chunks()),
    }
}

fn write_json(reply: &Reply, out: &mut dyn Write) -> Result<(), Error> {
    match &reply.answer {
        Answer::Tensors(t) => json::write_tensors(t, reply.surface, out).map_err(output),
        Answer::Rows { schema, batches } => json::write_rows(schema, batches, reply.surface, out),
        other => document(other, out),
    }
}

/// The one-line JSON of an answer that is neither tensors nor rows.
fn document(answer: &Answer, out: &mut dyn Write) -> Result<(), Error> {
    let value = match answer {
        Answer::Done(text) => serde_json::json!({ "ok": text }),
        Answer::Text(text) => serde_json::json!({ "text": text }),
        Answer::Json(value) => return write!(out, "{value}").map_err(output),
        Answer::Chunked(_) => return Err(in_chunks()),
        Answer::Tensors(_) | Answer::Rows { .. } => return Ok(()),
    };
    write!(out, "{value}").map_err(output)
}

fn write_ndjson(reply: &Reply, out: &mut dyn Write) -> Result<(), Error> {
    match &reply.answer {
        Answer::Tensors(tensors) => {
            for table in Long::group(tensors, None)? {
                for batch in table.batches() {
                    json::write_lines(table.schema(), &batch?, out)?;
                }
            }
            Ok(())
        }
        Answer::Rows { schema, batches } => {
            batches.iter().try_for_each(|b| json::write_lines(schema, b, out))
        }
        other => {
            document(other, out)?;
            out.write_all(b"\n").map_err(output)
        }
    }
}

/// Tables are parted by an empty line.
fn write_csv(reply: &Reply, first: bool, out: &mut dyn Write) -> Result<(), Error> {
    if !first {
        out.write_all(b"\n").map_err(output)?;
    }
    match &reply.answer {
        Answer::Tensors(tensors) => {
            for (i, table) in Long::group(tensors, None)?.iter().enumerate() {
                if i > 0 {
                    out.write_all(b"\n").map_err(output)?;
                }
                csv::write_header(table.schema(), out).map_err(output)?;
                for batch in table.batches() {
                    csv::write_batch(&batch?, table.schema(), out)?;
                }
            }
            Ok(())
        }
        Answer::Rows { schema, batches } => {
            csv::write_header(schema, out).map_err(output)?;
            batches.iter().try_for_each(|b| csv::write_batch(b, schema, out))
        }
        Answer::Text(text) | Answer::Done(text) => {
            writeln!(out, "{}", text.trim_end()).map_err(output)
        }
        Answer::Json(value) => writeln!(out, "{value}").map_err(output),
        Answer::Chunked(_) => Err(in_chunks()),
    }
}

fn write_arrow(reply: &Reply, file: bool, out: &mut dyn Write) -> Result<(), Error> {
    match &reply.answer {
        Answer::Tensors(tensors) => {
            let tables = Long::group(tensors, reply.surface)?;
            let [table] = &tables[..] else { return Err(dims_differ(tensors)) };
            arrow_ipc::write(table.schema(), table.batches(), file, out)
        }
        Answer::Rows { schema, batches } => {
            arrow_ipc::write(schema, batches.iter().cloned().map(Ok), file, out)
        }
        _ => Ok(()),
    }
}

fn dims_differ(tensors: &[Tensor]) -> Error {
    let names: Vec<&str> = tensors.iter().map(Tensor::name).collect();
    Error::Format {
        format: "arrow",
        reason: format!("its tensors ({}) do not share their dimensions", names.join(", ")),
        hint: Some("select them one by one, or use npz or json".into()),
    }
}
