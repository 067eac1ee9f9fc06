//! The engine's lossless form of an answer, for another Tessera: a client shows the same as the engine itself.
//!
//! ```text
//!   "TESSERA1" │ length of the header, 4 bytes little-endian │ header, JSON │ payload
//! ```
//! The payload of tensors has, for each: the labels of its coordinates that are numbers, 8 bytes each; all cells in
//! row-major order; a validity byte for each cell if it is nullable. The payload of rows is an Arrow IPC stream. Other
//! answers are in the header. Everything is little-endian. It holds one answer, that of the last statement of a script,
//! or a [`dataset`] that a client sends to a server.

pub(crate) mod dataset;

use super::writer::output;
use crate::answer::scratch::ScratchFile;
use crate::answer::{
    Answer, Chunked, Chunks, Head, Reply, Stats, StoredRows, Surface, Windows, windows,
};
use crate::error::Error;
use arrow::ipc::writer::StreamWriter;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use std::collections::BTreeSet;
use std::io::{Read, Write};
use std::sync::Arc;
use tessera_exec::pool::Pool;
use tessera_frontend::Labels;
use tessera_frontend::labels::DatasetLabels;
use tessera_planner::catalog::{Attrs, Coord, CoordValues, DimLabel, NoLabels, Unreadable};
use tessera_planner::dtype::{Calendar, DType};
use tessera_planner::grid::Grid;
use tessera_planner::region::{Dims, RANK_MAX};

/// The name of this form in `format=` of URLs and bodies.
pub const NAME: &str = "tessera";
/// The media type of an answer in this form.
pub const CONTENT_TYPE: &str = "application/vnd.tessera.answer";

/// The first bytes of this form.
pub const MAGIC: &[u8; 8] = b"TESSERA1";
/// Upper bound on the cells of a window.
const WINDOW_CELLS: u64 = 1 << 17;
/// Upper bound on the size of a header in bytes: it contains labels that are texts, and attributes.
const HEADER_MAX: u64 = 256 << 20;

#[derive(Debug, Serialize, Deserialize)]
struct Header {
    answer: AnswerKind,
    /// Attributes of the dataset that the tensors of an answer form.
    #[serde(default)]
    dataset: Attrs,
    surface: Option<String>,
    plan_s: f64,
    total_s: f64,
    bytes_read: u64,
}

#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum AnswerKind {
    Tensors(Vec<Shape>),
    Rows(u64),
    Text(String),
    Json(Value),
    Done(String),
    Dataset(DatasetHead),
}

/// A dataset without labels and cells.
#[derive(Debug, Serialize, Deserialize)]
struct DatasetHead {
    attrs: Attrs,
    coords: Vec<Labelled>,
    /// Arrays, whose axes have no labels of their own.
    arrays: Vec<Shape>,
    /// Texts without a dimension.
    #[serde(default)]
    scalars: Vec<Labelled>,
    /// Names of arrays and texts that are coordinates of others.
    #[serde(default, rename = "auxiliary")]
    coordinates: BTreeSet<String>,
}

/// A tensor without its cells.
#[derive(Debug, Serialize, Deserialize)]
struct Shape {
    name: String,
    /// False if the name is derived from the item's text.
    #[serde(default = "is_named")]
    named: bool,
    dtype: String,
    nullable: bool,
    grid: Grid,
    dims: Vec<Dim>,
    attrs: Attrs,
    #[serde(default)]
    is_coordinate: bool,
}

fn is_named() -> bool {
    true
}

#[derive(Debug, Serialize, Deserialize)]
struct Dim {
    name: Option<String>,
    coord: Option<Labelled>,
}

#[derive(Debug, Serialize, Deserialize)]
struct Labelled {
    name: String,
    dim: String,
    attrs: Attrs,
    values: Values,
}

/// The kind of labels; labels that are numbers follow in the payload.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Values {
    Int(String, u64),
    Float(String, u64),
    Time(Calendar, u64),
    /// `None` for missing texts.
    Text(Vec<Option<String>>),
    /// The labels cannot be read and are not sent.
    Unreadable {
        name: String,
        reason: String,
        hint: Option<String>,
        len: u64,
    },
}

/// Writes the last of the answers, and returns `out`.
///
/// # Errors
/// No answer; labels and attributes of more than 4 GiB; cells or rows that cannot be read; errors of `out`.
pub fn write<W: Write>(replies: &[Reply], mut out: W) -> Result<W, Error> {
    let reply =
        replies.last().ok_or_else(|| Error::Internal { what: "no answer to send".into() })?;
    let tensors = reply.answer.tensors();
    let answer = match (&reply.answer, &tensors) {
        (_, Some(tensors)) => {
            AnswerKind::Tensors(tensors.iter().map(|t| shape(t.head())).collect())
        }
        (Answer::Text(t), _) => AnswerKind::Text(t.clone()),
        (Answer::Done(t), _) => AnswerKind::Done(t.clone()),
        (Answer::Json(v), _) => AnswerKind::Json(v.clone()),
        _ => AnswerKind::Rows(reply.answer.row_count()),
    };
    let first = tensors.iter().flatten().next();
    let header = Header {
        answer,
        dataset: first.map(|t| Attrs::clone(&t.head().dataset.attrs)).unwrap_or_default(),
        surface: reply.surface.map(|s| s.name().into()),
        plan_s: reply.stats.plan_s,
        total_s: reply.stats.total_s,
        bytes_read: reply.stats.bytes_read,
    };
    out.write_all(&begin(&header)?).map_err(output)?;
    for t in tensors.into_iter().flatten() {
        for coord in t.head().dims.iter().filter_map(|d| d.coord.as_ref()) {
            write_labels(&coord.values, &mut out)?;
        }
        write_cells(t, &mut out)?;
    }
    if let Some((schema, batches)) = reply.answer.rows() {
        let refused = |source| Error::Rows { source };
        let mut rows = StreamWriter::try_new(&mut out, schema).map_err(refused)?;
        for batch in batches {
            rows.write(&batch?).map_err(refused)?;
        }
        rows.finish().map_err(refused)?;
    }
    out.flush().map_err(output)?;
    Ok(out)
}

/// The bytes before the payload.
fn begin(header: &Header) -> Result<Vec<u8>, Error> {
    let header = serde_json::to_vec(header)
        .map_err(|e| Error::Internal { what: format!("an answer has no header: {e}") })?;
    let length = u32::try_from(header.len()).map_err(|_| Error::Format {
        format: NAME,
        reason: format!("its labels and attributes have {} bytes", header.len()),
        hint: None,
    })?;
    Ok([&MAGIC[..], &length.to_le_bytes(), &header].concat())
}

/// Writes all cells, then a validity byte for each if the tensor is nullable.
fn write_cells(t: &dyn Windows, out: &mut dyn Write) -> Result<(), Error> {
    let head = t.head();
    for window in windows(&head.shape(), WINDOW_CELLS) {
        out.write_all(&t.window(&window)?.data).map_err(output)?;
    }
    if head.nullable {
        for window in windows(&head.shape(), WINDOW_CELLS) {
            let valid = t.window(&window)?.valid;
            out.write_all(valid.as_deref().unwrap_or_default()).map_err(output)?;
        }
    }
    Ok(())
}

fn labelled(c: &Coord) -> Labelled {
    Labelled {
        name: c.name.to_string(),
        dim: c.dim.to_string(),
        attrs: c.attrs.clone(),
        values: match &c.values {
            CoordValues::Int(d, v) => Values::Int(d.to_string(), v.len() as u64),
            CoordValues::Float(d, v) => Values::Float(d.to_string(), v.len() as u64),
            CoordValues::Time(c, v) => Values::Time(*c, v.len() as u64),
            CoordValues::Text(v) => {
                Values::Text(v.options().map(|text| text.map(String::from)).collect())
            }
            CoordValues::Unreadable(of) => Values::Unreadable {
                name: of.of.name.to_string(),
                reason: of.of.reason.clone(),
                hint: of.of.hint.clone(),
                len: c.values.len() as u64,
            },
        },
    }
}

fn shape(t: Head<'_>) -> Shape {
    let dim = |d: &DimLabel| Dim {
        name: d.name.as_ref().map(|n| n.to_string()),
        coord: d.coord.as_deref().map(labelled),
    };
    Shape {
        name: t.name.into(),
        named: t.named,
        dtype: t.dtype.to_string(),
        nullable: t.nullable,
        grid: t.grid.clone(),
        dims: t.dims.iter().map(dim).collect(),
        attrs: t.attrs.clone(),
        is_coordinate: t.is_coordinate,
    }
}

fn write_labels(values: &CoordValues, out: &mut dyn Write) -> Result<(), Error> {
    match values {
        CoordValues::Int(_, v) | CoordValues::Time(_, v) => {
            v.iter().try_for_each(|x| out.write_all(&x.to_le_bytes())).map_err(output)
        }
        CoordValues::Float(_, v) => {
            v.iter().try_for_each(|x| out.write_all(&x.to_le_bytes())).map_err(output)
        }
        CoordValues::Text(_) | CoordValues::Unreadable(_) => Ok(()),
    }
}

/// Reads the answer of a file that holds nothing else. Cells and rows stay in the file until they are read, charged to
/// the pool's quota.
///
/// # Errors
/// The file was not written by [`write()`].
pub fn read(file: &Arc<ScratchFile>, pool: &Arc<Pool>) -> Result<Reply, Error> {
    let (header, mut at) = header(file, HEADER_MAX)?;
    let dataset = DatasetLabels::of_tensors(header.dataset);
    let answer = match header.answer {
        AnswerKind::Text(t) => Answer::Text(t),
        AnswerKind::Done(t) => Answer::Done(t),
        AnswerKind::Json(v) => Answer::Json(v),
        AnswerKind::Dataset(_) => return Err(bad("it is a dataset that a client sent")),
        AnswerKind::Rows(count) => {
            let rows = StoredRows::at(file.clone(), at, count)?;
            Answer::Stored(rows)
        }
        AnswerKind::Tensors(shapes) => Answer::Chunked(
            shapes
                .into_iter()
                .map(|s| tensor(s, &dataset, file, &mut at, pool))
                .collect::<Result<_, _>>()?,
        ),
    };
    let surface = match header.surface.as_deref() {
        Some("tensor") => Some(Surface::Tensor),
        Some("cell") => Some(Surface::Cell),
        _ => None,
    };
    let stats =
        Stats { plan_s: header.plan_s, total_s: header.total_s, bytes_read: header.bytes_read };
    Ok(Reply { answer, surface, stats })
}

/// The header of a file, and where its payload begins.
fn header(file: &Arc<ScratchFile>, bytes_max: u64) -> Result<(Header, u64), Error> {
    let mut reader = file.reader();
    let mut start = [0; 12];
    reader.read_exact(&mut start).map_err(|_| bad("it is too short"))?;
    let (magic, length) = start.split_at(8);
    if magic != MAGIC {
        return Err(bad("it is not of this version"));
    }
    let length = length.try_into().map_or(0, u32::from_le_bytes);
    let at = 12 + u64::from(length);
    if u64::from(length) > bytes_max {
        let reason = format!(
            "labels that are texts, and attributes, have {length} bytes (limit {bytes_max})"
        );
        return Err(bad(&reason));
    }
    if at > file.len() {
        return Err(bad("its header does not end"));
    }
    let mut header = vec![0; length as usize];
    reader.read_exact(&mut header).map_err(|_| bad("its header does not end"))?;
    let header = serde_json::from_slice(&header).map_err(|e| bad(&format!("its header: {e}")))?;
    Ok((header, at))
}

const UNREADABLE: &str = "an answer cannot be read: ";

fn bad(reason: &str) -> Error {
    Error::Protocol { reason: format!("{UNREADABLE}{reason}") }
}

impl Shape {
    /// Type, lengths and bytes of the cells and their masks.
    fn extent(&self) -> Result<(DType, Dims, u64), Error> {
        let dtype = dtype(&self.dtype)?;
        let axes = &self.grid.axes;
        let shape = self.grid.shape();
        let cells = tessera_planner::region::cells(&shape);
        let cell_bytes = dtype.size() as u64 + u64::from(self.nullable);
        let bytes = cells.and_then(|n| n.checked_mul(cell_bytes));
        let is_cut = axes.iter().all(|a| a.len == 0 || (a.chunk > 0 && a.first <= a.len));
        let is_sound = axes.len() <= RANK_MAX && is_cut && self.grid.is_sound();
        match (is_sound, self.dims.len() == shape.len(), bytes) {
            (true, true, Some(bytes)) => Ok((dtype, shape, bytes)),
            _ => Err(bad("a tensor has no sound grid")),
        }
    }
}

fn tensor(
    s: Shape,
    dataset: &Arc<DatasetLabels>,
    file: &Arc<ScratchFile>,
    at: &mut u64,
    pool: &Arc<Pool>,
) -> Result<Chunked, Error> {
    let (dtype, shape, bytes) = s.extent()?;
    let mut dims = Vec::with_capacity(s.dims.len());
    for (d, &len) in s.dims.into_iter().zip(&shape) {
        let coord = d.coord.map(|c| labels(c, Some(len), file, at)).transpose()?;
        dims.push(DimLabel { name: d.name.map(Into::into), coord: coord.map(Arc::new) });
    }
    let start = *at;
    *at = start
        .checked_add(bytes)
        .filter(|&end| end <= file.len())
        .ok_or_else(|| bad(&format!("cells of `{}` are missing", s.name)))?;
    Ok(Chunked {
        labels: Labels {
            name: s.name,
            named: s.named,
            dims,
            shape: shape.to_vec(),
            dtype,
            nullable: s.nullable,
            attrs: s.attrs,
            is_coordinate: s.is_coordinate,
            dataset: dataset.clone(),
        },
        grid: s.grid,
        chunks: Chunks::Dense(file.clone(), start),
        pool: pool.clone(),
    })
}

fn dtype(name: &str) -> Result<DType, Error> {
    DType::parse(name).ok_or_else(|| bad(&format!("`{name}` is not a dtype")))
}

impl Values {
    /// Number of labels.
    fn len(&self) -> u64 {
        match self {
            Values::Int(_, n) | Values::Float(_, n) | Values::Time(_, n) => *n,
            Values::Text(v) => v.len() as u64,
            Values::Unreadable { len, .. } => *len,
        }
    }
}

/// The labels of an axis of `len`, if that is known.
fn labels(c: Labelled, len: Option<u64>, file: &ScratchFile, at: &mut u64) -> Result<Coord, Error> {
    let n = c.values.len();
    if let Some(len) = len.filter(|len| *len != n) {
        return Err(bad(&format!("{n} labels for an axis of {len}")));
    }
    let typed = |d: &str, fits: fn(DType) -> bool| match dtype(d)? {
        d if fits(d) => Ok(d),
        d => Err(bad(&format!("labels of `{}` cannot be {d}", c.name))),
    };
    let mut words = || -> Result<Vec<[u8; 8]>, Error> {
        let end = n.checked_mul(8).and_then(|b| at.checked_add(b)).filter(|&e| e <= file.len());
        let end = end.ok_or_else(|| bad("labels are missing"))?;
        let mut bytes = vec![0; (end - *at) as usize];
        file.read_at(*at, &mut bytes)?;
        *at = end;
        Ok(bytes.as_chunks::<8>().0.to_vec())
    };
    let values = match c.values {
        Values::Int(d, _) => {
            let d = typed(&d, |d| !d.is_float() && !d.is_datetime())?;
            CoordValues::Int(d, words()?.into_iter().map(i64::from_le_bytes).collect())
        }
        Values::Float(d, _) => {
            let d = typed(&d, DType::is_float)?;
            CoordValues::Float(d, words()?.into_iter().map(f64::from_le_bytes).collect())
        }
        Values::Time(calendar, _) => {
            CoordValues::Time(calendar, words()?.into_iter().map(i64::from_le_bytes).collect())
        }
        Values::Text(v) => CoordValues::Text(v.into_iter().collect()),
        Values::Unreadable { name, reason, hint, .. } => {
            let (name, dims) = (name.into(), Vec::new());
            let of = Unreadable { name, dims, code: "unreadable", reason, hint };
            CoordValues::Unreadable(NoLabels::new(Arc::new(of), n as usize))
        }
    };
    Ok(Coord { name: c.name.into(), dim: c.dim.into(), values, attrs: c.attrs })
}
