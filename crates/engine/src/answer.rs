//! The answers of statements.

mod chunked;
mod column;
mod piece;
mod rows;
pub mod scratch;
pub(crate) mod slices;
mod window;

pub use chunked::Chunked;
pub(crate) use chunked::Chunks;
pub(crate) use piece::Filling;
pub use rows::{RowsHeld, StoredRows};
pub(crate) use rows::{RowsKept, RowsRoom};
pub use tessera_exec::pool::PooledBuf;
pub use window::{Cells, Head, Windows, windows};

use crate::error::Error;
use arrow::array::RecordBatch;
use arrow::buffer::Buffer;
use arrow::datatypes::SchemaRef;
use bytes::BytesMut;
use std::borrow::Cow;
use std::sync::Arc;
use tessera_exec::chunk::fill_masked;
use tessera_frontend::labels::DatasetLabels;
use tessera_planner::catalog::{Attrs, DimLabel};
use tessera_planner::dtype::DType;
use tessera_planner::grid::Grid;
use tessera_planner::region::{Dims, cells};
use tessera_planner::scalar::Scalar;

/// The answer of one statement.
#[derive(Debug, Clone)]
pub enum Answer {
    /// Labelled tensors, in the order of the select items.
    Tensors(Vec<Tensor>),
    /// Labelled tensors whose cells are still in the chunks in which they were computed: [`Reply::whole`] assembles
    /// them.
    Chunked(Vec<Chunked>),
    /// Rows, in order.
    Rows {
        /// Names and types of the columns, also if there are no rows.
        schema: SchemaRef,
        /// The rows.
        batches: Vec<RecordBatch>,
        /// Their reservation of memory.
        held: RowsHeld,
    },
    /// Rows that were too many to stay in memory: [`Reply::whole`] loads them.
    Stored(StoredRows),
    /// A text, such as EXPLAIN's.
    Text(String),
    /// A document, such as that of `EXPLAIN (FORMAT json)`.
    Json(serde_json::Value),
    /// The statement has no result. The sentence reports its effect (`created temp tensor x`).
    Done(String),
}

/// The surface of the dialect that a query was read in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Surface {
    /// Expressions over whole tensors.
    Tensor,
    /// Plain SQL over cells.
    Cell,
}

impl Surface {
    /// The name in the metadata of results.
    pub fn name(self) -> &'static str {
        match self {
            Surface::Tensor => "tensor",
            Surface::Cell => "cell",
        }
    }
}

/// The cost of a statement.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Stats {
    /// Seconds of parsing, binding and planning.
    pub plan_s: f64,
    /// Seconds of the whole statement.
    pub total_s: f64,
    /// Bytes read from storage.
    pub bytes_read: u64,
}

/// An answer with its metadata.
#[derive(Debug, Clone)]
pub struct Reply {
    /// The answer.
    pub answer: Answer,
    /// The surface that the statement was read in, if it is a query.
    pub surface: Option<Surface>,
    /// The cost of the statement.
    pub stats: Stats,
}

impl Reply {
    /// The same reply with every tensor in one piece, as formats need it.
    ///
    /// # Errors
    /// `result_too_large` if the quota has no room for a tensor's cells in addition to its chunks; a file that cannot
    /// be read.
    pub fn whole(self) -> Result<Reply, Error> {
        let answer = match self.answer {
            Answer::Chunked(parts) => Answer::Tensors(
                parts.into_iter().map(Chunked::whole).collect::<Result<Vec<_>, _>>()?,
            ),
            Answer::Stored(rows) => Answer::Rows {
                schema: rows.schema().clone(),
                batches: rows
                    .batches()?
                    .collect::<Result<_, _>>()
                    .map_err(|source| Error::Rows { source })?,
                held: RowsHeld::default(),
            },
            other => other,
        };
        Ok(Reply { answer, ..self })
    }
}

impl Answer {
    /// The tensors, wherever their cells are; `None` if the answer is not tensors.
    pub fn tensors(&self) -> Option<Vec<&dyn Windows>> {
        match self {
            Answer::Tensors(t) => Some(t.iter().map(|t| t as &dyn Windows).collect()),
            Answer::Chunked(t) => Some(t.iter().map(|t| t as &dyn Windows).collect()),
            _ => None,
        }
    }

    /// Names and types of the columns, and the rows batch by batch, wherever they are; `None` if the answer is not
    /// rows.
    pub fn rows(&self) -> Option<(&SchemaRef, Batches<'_>)> {
        match self {
            Answer::Rows { schema, batches, .. } => {
                Some((schema, Box::new(batches.iter().cloned().map(Ok))))
            }
            Answer::Stored(rows) => {
                let batches: Batches<'_> = match rows.batches() {
                    Ok(batches) => {
                        Box::new(batches.map(|b| b.map_err(|source| Error::Rows { source })))
                    }
                    Err(e) => Box::new(std::iter::once(Err(e))),
                };
                Some((rows.schema(), batches))
            }
            _ => None,
        }
    }

    /// Number of rows; 0 if the answer is not rows.
    pub fn row_count(&self) -> u64 {
        match self {
            Answer::Rows { batches, .. } => batches.iter().map(|b| b.num_rows() as u64).sum(),
            Answer::Stored(rows) => rows.count(),
            _ => 0,
        }
    }

    /// Bytes that the answer holds in memory, and on disk. Collected rows hold little besides their own cells.
    pub fn bytes(&self) -> (u64, u64) {
        match self {
            Answer::Tensors(t) => {
                let one = |t: &Tensor| t.data.len() + t.valid.as_ref().map_or(0, Buffer::len);
                (t.iter().map(|t| one(t) as u64).sum(), 0)
            }
            Answer::Chunked(t) => {
                t.iter().map(Chunked::bytes).fold((0, 0), |(m, d), (n, e)| (m + n, d + e))
            }
            Answer::Rows { batches, .. } => {
                (batches.iter().map(|b| b.get_array_memory_size() as u64).sum(), 0)
            }
            Answer::Stored(rows) => (0, rows.bytes()),
            Answer::Text(t) | Answer::Done(t) => (t.len() as u64, 0),
            Answer::Json(value) => (value.to_string().len() as u64, 0),
        }
    }
}

/// Rows, read batch by batch.
pub type Batches<'a> = Box<dyn Iterator<Item = Result<RecordBatch, Error>> + 'a>;

impl From<Answer> for Reply {
    fn from(answer: Answer) -> Self {
        Reply { answer, surface: None, stats: Stats::default() }
    }
}

/// A labelled tensor with all its cells: dense, row-major, little-endian.
///
/// Masked cells have `valid` 0 and any value.
#[derive(Debug, Clone)]
pub struct Tensor {
    name: String,
    dtype: DType,
    dims: Vec<DimLabel>,
    grid: Grid,
    data: Buffer,
    valid: Option<Buffer>,
    attrs: Attrs,
    is_coordinate: bool,
    dataset: Arc<DatasetLabels>,
}

/// One cell, or one label.
#[derive(Debug, Clone, PartialEq)]
pub enum Cell<'a> {
    /// Masked, or SQL's NULL.
    Null,
    /// A truth value.
    Bool(bool),
    /// A signed integer.
    Int(i64),
    /// An unsigned integer.
    UInt(u64),
    /// A `float32`, shown with its own shortest digits.
    F32(f32),
    /// A `float64`.
    F64(f64),
    /// A text, or a value that is shown as one: a time in ISO 8601.
    Text(Cow<'a, str>),
    /// A list of cells.
    List(Vec<Cell<'a>>),
    /// Cells with names, in order.
    Record(Vec<(String, Cell<'a>)>),
}

impl Tensor {
    /// A tensor whose shape is that of `grid`.
    ///
    /// `dims` has an entry for each axis, `data` one value of `dtype` for each cell, `valid` (if any cell may be
    /// masked) one byte for each cell; a coordinate is as long as its axis. Anything else is an internal error, because
    /// the caller computed it. Misaligned data is copied.
    pub fn new(
        name: impl Into<String>,
        dtype: DType,
        dims: Vec<DimLabel>,
        grid: Grid,
        data: Buffer,
        valid: Option<Buffer>,
        attrs: Attrs,
    ) -> Result<Self, Error> {
        let name = name.into();
        let broken = |what: String| Error::Internal { what: format!("result `{name}`: {what}") };
        let shape = grid.shape();
        let n = cells(&shape).ok_or_else(|| broken("too many cells".into()))?;
        if dims.len() != shape.len() {
            return Err(broken(format!("{} dims for {} axes", dims.len(), shape.len())));
        }
        for (d, &len) in dims.iter().zip(&shape) {
            if let Some(c) = &d.coord
                && c.values.len() as u64 != len
            {
                return Err(broken(format!("{} labels for an axis of {len}", c.values.len())));
            }
        }
        if data.len() as u64 != n * dtype.size() as u64 {
            return Err(broken(format!("{} bytes for {n} cells of {dtype}", data.len())));
        }
        if let Some(v) = &valid
            && v.len() as u64 != n
        {
            return Err(broken(format!("{} validity bytes for {n} cells", v.len())));
        }
        let data = if data.as_ptr().align_offset(dtype.size()) == 0 {
            data
        } else {
            Buffer::from_slice_ref(data.as_slice())
        };
        let (is_coordinate, dataset) = (false, Arc::default());
        Ok(Tensor { name, dtype, dims, grid, data, valid, attrs, is_coordinate, dataset })
    }

    /// The same tensor in a dataset; `is_coordinate` as of [`Labels`](tessera_frontend::Labels).
    pub fn in_dataset(mut self, dataset: Arc<DatasetLabels>, is_coordinate: bool) -> Self {
        (self.dataset, self.is_coordinate) = (dataset, is_coordinate);
        self
    }

    /// The name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The same tensor under another name.
    pub fn renamed(mut self, name: impl Into<String>) -> Self {
        self.name = name.into();
        self
    }

    /// Type of the cells.
    pub fn dtype(&self) -> DType {
        self.dtype
    }

    /// Names and coordinates of the axes.
    pub fn dims(&self) -> &[DimLabel] {
        &self.dims
    }

    /// Lengths of the axes.
    pub fn shape(&self) -> Dims {
        self.grid.shape()
    }

    /// The chunks in which the tensor was computed.
    pub fn grid(&self) -> &Grid {
        &self.grid
    }

    /// The attributes of the result.
    pub fn attrs(&self) -> &Attrs {
        &self.attrs
    }

    /// The cells' bytes, aligned for `dtype`.
    pub fn data(&self) -> &Buffer {
        &self.data
    }

    /// One byte for each cell, 0 where it is masked; `None` if no cell can be masked.
    pub fn valid(&self) -> Option<&Buffer> {
        self.valid.as_ref()
    }

    /// A copy of the cells, and a validity byte for each if any cell is masked. Masked floats are NaN, masked datetimes
    /// NaT.
    pub fn copy_cells(&self) -> (BytesMut, Option<BytesMut>) {
        let mut data = BytesMut::from(self.data.as_slice());
        let valid = self.valid.as_ref().filter(|valid| valid.contains(&0));
        if let Some(valid) = valid {
            fill_masked(self.dtype, &mut data, valid);
        }
        (data, valid.map(|valid| BytesMut::from(valid.as_slice())))
    }

    /// Number of cells.
    pub fn len(&self) -> usize {
        self.data.len() / self.dtype.size()
    }

    /// True if the tensor has no cells.
    pub fn is_empty(&self) -> bool {
        self.data.is_empty()
    }

    /// Names of the axes. An axis without a name is `dim_0`, …; a name that an earlier axis has gets `_1`, ….
    pub fn dim_names(&self) -> Vec<Arc<str>> {
        window::dim_names(&self.dims)
    }

    /// True if the cell with this row-major number is masked.
    pub fn is_masked(&self, i: usize) -> bool {
        self.valid.as_ref().is_some_and(|v| v[i] == 0)
    }

    /// The value of a cell by its row-major number, below `len`, whether masked or not.
    pub fn scalar(&self, i: usize) -> Scalar {
        let size = self.dtype.size();
        Scalar::from_le_bytes(self.dtype, &self.data[i * size..(i + 1) * size])
    }

    /// A cell by its row-major number, below `len`.
    pub fn cell(&self, i: usize) -> Cell<'static> {
        window::cell_at(self.dtype, &self.data, self.valid.as_deref(), i)
    }

    /// The label at `position` of `axis`; without a coordinate, the position.
    pub fn label(&self, axis: usize, position: usize) -> Cell<'_> {
        window::label(&self.dims[axis], position)
    }
}
