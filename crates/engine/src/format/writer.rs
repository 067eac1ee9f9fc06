//! Writes the answers of a script in one format.

use super::long::Long;
use super::parquet::ParquetOptions;
use super::tiles::Tiles;
use super::turns::write_batches;
use super::{
    Crs, CsvOptions, Format, Narrow, arrow_ipc, csv, json, netcdf, npy, npz, parquet, safetensors,
    table, tiff,
};
use crate::answer::scratch::Scratch;
use crate::answer::{Answer, Reply, Windows};
use crate::error::Error;
use arrow::array::RecordBatch;
use arrow::datatypes::SchemaRef;
use std::collections::BTreeMap;
use std::io::{self, Write};
use std::sync::Arc;

/// Options of the formats.
#[derive(Debug, Clone)]
pub struct Options {
    /// Characters of a line in tables.
    pub width: usize,
    /// Upper bound on the rows that a table shows.
    pub max_rows: usize,
    /// Writes Arrow's file format instead of its stream.
    pub arrow_file: bool,
    /// Writes Arrow with a row for each chunk instead of each cell.
    pub arrow_chunks: bool,
    /// Draws boxes no wider than `width`: columns are narrowed, then left out. Only for people, because it drops
    /// values.
    pub fit: bool,
    /// The directory for tiles of a TIFF that do not fit into memory.
    pub scratch: Option<Arc<Scratch>>,
    /// The coordinate reference system of a TIFF; `None` uses the system that the attributes name.
    pub crs: Option<Crs>,
    /// The type that floats in safetensors are rounded to.
    pub narrow: Option<Narrow>,
    /// The texts of `__metadata__` in safetensors.
    pub metadata: BTreeMap<String, String>,
    /// How CSV is written.
    pub csv: CsvOptions,
    /// How Parquet is written.
    pub parquet: ParquetOptions,
}

impl Default for Options {
    fn default() -> Self {
        Options {
            width: 75,
            max_rows: 40,
            arrow_file: false,
            arrow_chunks: false,
            fit: false,
            scratch: None,
            crs: None,
            narrow: None,
            metadata: BTreeMap::new(),
            csv: CsvOptions::default(),
            parquet: ParquetOptions::default(),
        }
    }
}

/// Writes answers in one format.
///
/// `table`, `json`, `ndjson` and `csv` are written as answers come. CSV with rows omits the messages of statements
/// without a result. The other formats hold one result: DDL before it adds nothing, a second result is an error, and
/// [`Writer::finish`] writes it.
pub struct Writer<W: Write> {
    format: Format,
    options: Options,
    out: W,
    written: usize,
    /// Number of statements without a result, for the formats that hold one result.
    done: usize,
    /// Messages of statements without rows, for CSV: they are written only if no statement has rows.
    told: Vec<String>,
    pending: Option<Reply>,
}

impl<W: Write> Writer<W> {
    /// A writer of `format` to `out`.
    ///
    /// # Errors
    /// None today.
    pub fn new(format: Format, options: Options, out: W) -> Result<Self, Error> {
        Ok(Writer { format, options, out, written: 0, done: 0, told: Vec::new(), pending: None })
    }

    /// Writes the next answer. Each text answer is flushed, so that a reader sees it while the next statement runs.
    pub fn push(&mut self, reply: Reply) -> Result<(), Error> {
        if self.format.holds_one() {
            return self.keep(reply);
        }
        if let (Format::Csv, Answer::Done(text)) = (self.format, &reply.answer) {
            self.told.push(text.trim_end().to_string());
            return Ok(());
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
            _ => write_csv(&reply, &self.options.csv, first, out)?,
        }
        self.out.flush().map_err(output)
    }

    fn keep(&mut self, reply: Reply) -> Result<(), Error> {
        let refuse =
            |reason: String, hint: &str| Err(Error::format(self.format.name(), reason, hint));
        match &reply.answer {
            Answer::Done(_) => {
                self.done += 1;
                return Ok(());
            }
            Answer::Text(_) | Answer::Json(_) => {
                return refuse("it is a text".into(), "use `--format table` or `json`");
            }
            Answer::Rows { .. } | Answer::Stored(_) if self.format.holds_tensors() => {
                return refuse(
                    "it is rows, not a tensor".into(),
                    "use arrow, csv or json, or ask for a tensor: `SELECT [lat], avg(v) … GROUP BY lat`",
                );
            }
            answer => {
                let tensors = answer.tensors().map_or(1, |t| t.len());
                if self.format == Format::Npy && tensors != 1 {
                    return refuse(
                        format!("it needs exactly one tensor, and there are {tensors}"),
                        "use npz, or select one",
                    );
                }
            }
        }
        if self.pending.is_some() {
            return refuse(
                "it holds one result, but several statements return one".into(),
                "run one query at a time, or use json",
            );
        }
        self.pending = Some(reply);
        Ok(())
    }

    /// True if there is nothing to write: no statement had a result.
    pub fn is_empty(&self) -> bool {
        self.format.holds_one() && self.done > 0 && self.pending.is_none()
    }

    /// Writes the pending result and returns the flushed stream. A script of statements without a result, such as
    /// `CREATE`, is not an error in a format that holds one result: nothing is written.
    pub fn finish(mut self) -> Result<W, Error> {
        if self.is_empty() {
            self.out.flush().map_err(output)?;
            return Ok(self.out);
        }
        let out: &mut dyn Write = &mut self.out;
        if self.written == 0 {
            self.told.iter().try_for_each(|text| writeln!(out, "{text}")).map_err(output)?;
        }
        match (self.format, self.pending.take()) {
            (format, None) if format.holds_one() => {
                let reason = "the statements return no result";
                return Err(Error::format(format.name(), reason, "add a SELECT"));
            }
            (Format::Arrow, Some(reply)) => write_arrow(&reply, &self.options, out)?,
            (Format::Parquet, Some(reply)) => write_parquet(&reply, &self.options, out)?,
            (format, Some(reply)) => match (format, reply.answer.tensors()) {
                (Format::Npy, Some(t)) => npy::write(t[0], out)?,
                (Format::Npz, Some(t)) => npz::write(&t, out)?,
                (Format::NetCdf, Some(t)) => netcdf::write(&t, out)?,
                (Format::Tiff, Some(t)) => tiff::write(&t, &self.options, out)?,
                (Format::Safetensors, Some(t)) => safetensors::write(&t, &self.options, out)?,
                _ => {}
            },
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

fn write_table(reply: &Reply, o: &Options, out: &mut dyn Write) -> Result<(), Error> {
    if let Some(tensors) = reply.answer.tensors() {
        for (i, t) in tensors.into_iter().enumerate() {
            if i > 0 {
                out.write_all(b"\n").map_err(output)?;
            }
            table::write_tensor(t, o, out)?;
        }
        return Ok(());
    }
    if let Some((schema, batches)) = reply.answer.rows() {
        return table::write_rows(schema, reply.answer.row_count() as usize, batches, o, out);
    }
    match &reply.answer {
        Answer::Text(text) | Answer::Done(text) => {
            writeln!(out, "{}", text.trim_end()).map_err(output)
        }
        Answer::Json(value) => writeln!(out, "{value:#}").map_err(output),
        _ => Ok(()),
    }
}

fn write_json(reply: &Reply, out: &mut dyn Write) -> Result<(), Error> {
    if let Some(tensors) = reply.answer.tensors() {
        return json::write_tensors(&tensors, reply.surface, out);
    }
    match reply.answer.rows() {
        Some((schema, batches)) => json::write_rows(schema, batches, reply.surface, out),
        None => document(&reply.answer, out),
    }
}

/// The one-line JSON of an answer that is neither tensors nor rows.
fn document(answer: &Answer, out: &mut dyn Write) -> Result<(), Error> {
    let value = match answer {
        Answer::Done(text) => serde_json::json!({ "ok": text }),
        Answer::Text(text) => serde_json::json!({ "text": text }),
        Answer::Json(value) => return write!(out, "{value}").map_err(output),
        Answer::Tensors(_) | Answer::Chunked(_) | Answer::Rows { .. } | Answer::Stored(_) => {
            return Ok(());
        }
    };
    write!(out, "{value}").map_err(output)
}

fn write_ndjson(reply: &Reply, out: &mut dyn Write) -> Result<(), Error> {
    if let Some(tensors) = reply.answer.tensors() {
        for table in Long::group(&tensors, None)? {
            let schema = table.schema();
            write_batches(
                table.batches(),
                |_, batch, out| json::write_lines(schema, batch, out),
                out,
            )?;
        }
        return Ok(());
    }
    match reply.answer.rows() {
        Some((schema, batches)) => {
            write_batches(batches, |_, batch, out| json::write_lines(schema, batch, out), out)
        }
        None => {
            document(&reply.answer, out)?;
            out.write_all(b"\n").map_err(output)
        }
    }
}

/// Tables are separated by an empty line.
fn write_csv(reply: &Reply, o: &CsvOptions, first: bool, out: &mut dyn Write) -> Result<(), Error> {
    if !first {
        out.write_all(b"\n").map_err(output)?;
    }
    if let Some(tensors) = reply.answer.tensors() {
        for (i, table) in Long::group(&tensors, None)?.iter().enumerate() {
            if i > 0 {
                out.write_all(b"\n").map_err(output)?;
            }
            csv::write_header(table.schema(), o, out).map_err(output)?;
            let schema = table.schema();
            write_batches(
                table.batches(),
                |_, batch, out| csv::write_lines(batch, schema, o, out),
                out,
            )?;
        }
        return Ok(());
    }
    if let Some((schema, batches)) = reply.answer.rows() {
        csv::write_header(schema, o, out).map_err(output)?;
        return write_batches(
            batches,
            |_, batch, out| csv::write_lines(batch, schema, o, out),
            out,
        );
    }
    match &reply.answer {
        Answer::Text(text) => writeln!(out, "{}", text.trim_end()).map_err(output),
        Answer::Json(value) => writeln!(out, "{value}").map_err(output),
        _ => Ok(()),
    }
}

fn write_arrow(reply: &Reply, o: &Options, out: &mut dyn Write) -> Result<(), Error> {
    let file = o.arrow_file;
    if o.arrow_chunks {
        let tensors = reply.answer.tensors().ok_or_else(|| Error::Format {
            format: "arrow",
            reason: "the result is rows, and only tensors have chunks".into(),
            hint: Some("leave `layout=chunks` away".into()),
        })?;
        let tiles = Tiles::new(&tensors, reply.surface)?;
        let tiles = tiles.ok_or_else(|| dims_differ("arrow", &tensors))?;
        return arrow_ipc::write(tiles.schema(), tiles.batches(), file, out);
    }
    if let Some(tensors) = reply.answer.tensors() {
        let tables = Long::group(&tensors, reply.surface)?;
        let [table] = &tables[..] else { return Err(dims_differ("arrow", &tensors)) };
        return arrow_ipc::write(table.schema(), table.batches(), file, out);
    }
    match reply.answer.rows() {
        Some((schema, batches)) => arrow_ipc::write(schema, batches, file, out),
        None => Ok(()),
    }
}

/// The answer as one table: rows as they are, tensors with a row for each cell, dimensions first; `None` if it is neither.
///
/// # Errors
/// `format` if the tensors do not share their dimensions; a file that cannot be read.
pub fn record_batches(reply: &Reply) -> Result<Option<(SchemaRef, Vec<RecordBatch>)>, Error> {
    if let Some(tensors) = reply.answer.tensors() {
        let tables = Long::group(&tensors, reply.surface)?;
        let [table] = &tables[..] else { return Err(dims_differ("arrow", &tensors)) };
        return Ok(Some((table.schema().clone(), table.batches().collect::<Result<_, _>>()?)));
    }
    match reply.answer.rows() {
        Some((schema, batches)) => Ok(Some((schema.clone(), batches.collect::<Result<_, _>>()?))),
        None => Ok(None),
    }
}

fn write_parquet(reply: &Reply, o: &Options, out: &mut dyn Write) -> Result<(), Error> {
    if let Some(tensors) = reply.answer.tensors() {
        let tables = Long::group(&tensors, reply.surface)?;
        let [table] = &tables[..] else { return Err(dims_differ("parquet", &tensors)) };
        return parquet::write(table.schema(), table.batches(), &o.parquet, out);
    }
    match reply.answer.rows() {
        Some((schema, batches)) => parquet::write(schema, batches, &o.parquet, out),
        None => Ok(()),
    }
}

fn dims_differ(format: &'static str, tensors: &[&dyn Windows]) -> Error {
    let names: Vec<&str> = tensors.iter().map(|t| t.head().name).collect();
    let reason = format!("its tensors ({}) do not share their dimensions", names.join(", "));
    Error::format(format, reason, "select them one by one, or use npz or json")
}
