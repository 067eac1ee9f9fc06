//! Answers as Python objects: tensors with their labels, and rows.

use crate::columns;
use crate::error::exception;
use crate::locals::Local;
use crate::memory::{Memory, borrow};
use arrow::array::{ArrayRef, RecordBatch, RecordBatchOptions, StructArray};
use arrow::buffer::Buffer;
use arrow::datatypes::{DataType, Field, SchemaRef, ToByteSlice};
use arrow::error::ArrowError;
use pyo3::prelude::*;
use pyo3::sync::MutexExt;
use pyo3::types::{PyCapsule, PyList, PyTuple};
use pyo3_arrow::ffi::{ArrayIterator, to_stream_pycapsule};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use tessera_cells::spans::{Durations, SpanError};
use tessera_engine::answer::{self, Answer, Chunked, Surface};
use tessera_engine::error::Error;
use tessera_engine::format::record_batches;
use tessera_engine::locals;
use tessera_frontend::labels::{DatasetLabels, are_coordinates};
use tessera_planner::catalog::{Attrs, CoordValues, DimLabel, PythonJson};
use tessera_planner::dtype::DType;
use tessera_planner::grid::Grid;

/// The answer of one statement.
#[pyclass(frozen)]
pub(crate) struct Reply {
    content: Content,
    surface: Option<Surface>,
    stats: answer::Stats,
}

enum Content {
    Tensors(Vec<Py<Tensor>>),
    Rows(Py<Rows>),
    Text(&'static str, String),
}

impl Reply {
    pub(crate) fn new(py: Python<'_>, reply: answer::Reply) -> PyResult<Self> {
        let (surface, stats) = (reply.surface, reply.stats);
        let content = match reply.answer {
            Answer::Tensors(tensors) => {
                let tensors = tensors.into_iter().map(|t| Py::new(py, Tensor::whole(t)));
                Content::Tensors(tensors.collect::<PyResult<_>>()?)
            }
            Answer::Chunked(tensors) => {
                let tensors = tensors.into_iter().map(|t| Py::new(py, Tensor::chunked(t)));
                Content::Tensors(tensors.collect::<PyResult<_>>()?)
            }
            answer @ (Answer::Rows { .. } | Answer::Stored(_)) => {
                Content::Rows(Py::new(py, Rows(answer::Reply { answer, surface, stats }))?)
            }
            Answer::Text(text) => Content::Text("text", text),
            Answer::Json(value) => Content::Text("json", value.to_string()),
            Answer::Done(text) => Content::Text("done", text),
        };
        Ok(Reply { content, surface, stats })
    }
}

#[pymethods]
impl Reply {
    /// `tensors`, `rows`, `text`, `json` or `done`.
    #[getter]
    fn kind(&self) -> &'static str {
        match &self.content {
            Content::Tensors(_) => "tensors",
            Content::Rows(_) => "rows",
            Content::Text(kind, _) => kind,
        }
    }

    /// The tensors, in the order of the items.
    #[getter]
    fn tensors(&self, py: Python<'_>) -> Vec<Py<Tensor>> {
        match &self.content {
            Content::Tensors(tensors) => tensors.iter().map(|t| t.clone_ref(py)).collect(),
            _ => Vec::new(),
        }
    }

    /// The rows, if the answer is rows.
    #[getter]
    fn rows(&self, py: Python<'_>) -> Option<Py<Rows>> {
        match &self.content {
            Content::Rows(rows) => Some(rows.clone_ref(py)),
            _ => None,
        }
    }

    /// The text of an answer that is neither tensors nor rows.
    #[getter]
    fn text(&self) -> Option<&str> {
        match &self.content {
            Content::Text(_, text) => Some(text),
            _ => None,
        }
    }

    /// `tensor` or `cell`; `None` unless the statement is a query.
    #[getter]
    fn surface(&self) -> Option<&'static str> {
        self.surface.map(Surface::name)
    }

    /// Seconds of planning, seconds in all, bytes read from storage.
    #[getter]
    fn stats(&self) -> (f64, f64, u64) {
        (self.stats.plan_s, self.stats.total_s, self.stats.bytes_read)
    }

    /// For each tensor, true if it only repeats labels of another one.
    fn labels_of_others(&self, py: Python<'_>) -> Vec<bool> {
        let Content::Tensors(tensors) = &self.content else { return Vec::new() };
        let items: Vec<(String, Vec<DimLabel>)> = tensors
            .iter()
            .map(|t| (t.borrow(py).head.name.clone(), t.borrow(py).head.dims.clone()))
            .collect();
        let items: Vec<_> = items.iter().map(|(name, dims)| (name.as_str(), &dims[..])).collect();
        are_coordinates(&items)
    }

    /// The answer as one table: rows, or tensors with a row for each cell.
    fn table(&self, py: Python<'_>) -> PyResult<Option<Py<Rows>>> {
        let tensors = match &self.content {
            Content::Rows(rows) => return Ok(Some(rows.clone_ref(py))),
            Content::Tensors(tensors) => tensors,
            Content::Text(..) => return Ok(None),
        };
        let parts = tensors.iter().map(|t| t.borrow(py).again(py));
        let parts = parts.collect::<PyResult<Vec<_>>>()?;
        let (surface, stats) = (self.surface, self.stats);
        let made = py.detach(|| -> Result<_, Error> {
            let whole = parts.into_iter().map(Detached::whole).collect::<Result<_, _>>()?;
            let reply = answer::Reply { answer: Answer::Tensors(whole), surface, stats };
            let Some((schema, batches)) = record_batches(&reply)? else { return Ok(None) };
            let answer = Answer::Rows { schema, batches, held: Default::default() };
            Ok(Some(Rows(answer::Reply { answer, surface, stats })))
        });
        let rows = made.map_err(|e| exception(py, &e, ""))?;
        rows.map(|rows| Py::new(py, rows)).transpose()
    }
}

/// A tensor of an answer.
#[pyclass(frozen)]
pub(crate) struct Tensor {
    head: Head,
    cells: Mutex<Cells>,
}

#[derive(Clone)]
struct Head {
    name: String,
    dtype: DType,
    dims: Vec<DimLabel>,
    grid: Grid,
    nullable: bool,
    attrs: Attrs,
    is_coordinate: bool,
    dataset: Arc<DatasetLabels>,
}

/// The place of the cells.
enum Cells {
    /// In the chunks in which they were computed.
    Chunked(Box<Chunked>),
    /// In one piece of the engine.
    Whole(Box<answer::Tensor>),
    /// In memory that Python has, and their validity.
    Python(Py<Memory>, Option<Py<Memory>>),
    /// Another place has them.
    Moved,
}

/// A tensor without Python.
enum Detached {
    Chunked(Box<Chunked>),
    Whole(Box<answer::Tensor>),
    Made(Box<Head>, Buffer, Option<Buffer>),
}

impl Detached {
    fn whole(self) -> Result<answer::Tensor, Error> {
        match self {
            Detached::Chunked(chunked) => chunked.whole(),
            Detached::Whole(tensor) => Ok(*tensor),
            Detached::Made(head, data, valid) => {
                let Head { name, dtype, dims, grid, attrs, dataset, is_coordinate, .. } = *head;
                let made = answer::Tensor::new(name, dtype, dims, grid, data, valid, attrs)?;
                Ok(made.in_dataset(dataset, is_coordinate))
            }
        }
    }
}

impl Tensor {
    fn whole(tensor: answer::Tensor) -> Self {
        let head = Head::of(&tensor);
        Tensor { head, cells: Mutex::new(Cells::Whole(Box::new(tensor))) }
    }

    fn chunked(chunked: Chunked) -> Self {
        let head = Head::of(&chunked);
        Tensor { head, cells: Mutex::new(Cells::Chunked(Box::new(chunked))) }
    }

    fn lock(&self) -> MutexGuard<'_, Cells> {
        self.cells.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The tensor once more, without a copy of its cells.
    fn again(&self, py: Python<'_>) -> PyResult<Detached> {
        Ok(match &*self.lock() {
            Cells::Chunked(chunked) => Detached::Chunked(chunked.clone()),
            Cells::Whole(tensor) => Detached::Whole(tensor.clone()),
            Cells::Python(data, valid) => {
                let held = |memory: &Py<Memory>| borrow(memory.bind(py).as_any()).map(|m| m.data);
                let valid = valid.as_ref().map(held).transpose()?;
                Detached::Made(Box::new(self.head.clone()), held(data)?, valid)
            }
            Cells::Moved => return Err(moved(py)),
        })
    }
}

impl Head {
    fn of(tensor: &dyn answer::Windows) -> Self {
        let head = tensor.head();
        Head {
            name: head.name.into(),
            dtype: head.dtype,
            dims: head.dims.into(),
            grid: head.grid.clone(),
            nullable: head.nullable,
            attrs: head.attrs.clone(),
            is_coordinate: head.is_coordinate,
            dataset: head.dataset.clone(),
        }
    }
}

fn moved(py: Python<'_>) -> PyErr {
    let what = "the cells of a result are not there".into();
    exception(py, &Error::Internal { what }, "")
}

#[pymethods]
impl Tensor {
    /// The name of the item.
    #[getter]
    fn name(&self) -> &str {
        &self.head.name
    }

    /// The name of the dtype: NumPy's, or `datetime64[us, noleap]`.
    #[getter]
    fn dtype(&self) -> String {
        self.head.dtype.name()
    }

    /// The length of each axis.
    #[getter]
    fn shape<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyTuple>> {
        PyTuple::new(py, self.head.grid.shape())
    }

    /// The name of each dimension; `None` for one without a name.
    #[getter]
    fn dims(&self) -> Vec<Option<String>> {
        self.head.dims.iter().map(|dim| dim.name.as_deref().map(Into::into)).collect()
    }

    /// The length of a chunk along each axis.
    #[getter]
    fn chunks<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyTuple>> {
        PyTuple::new(py, self.head.grid.axes.iter().map(|axis| axis.chunk))
    }

    /// The attributes, as JSON.
    #[getter]
    fn attrs(&self) -> PyResult<String> {
        json(&self.head.attrs)
    }

    /// The attributes of the dataset that the items form, as JSON.
    #[getter]
    fn dataset_attrs(&self) -> PyResult<String> {
        json(&self.head.dataset.attrs)
    }

    /// True for a coordinate of other items that is not the labels of a dimension.
    #[getter]
    fn is_coordinate(&self) -> bool {
        self.head.is_coordinate
    }

    /// The labels of each dimension, or `None`: name, dtype (`str` for texts), values as memory or a list of texts,
    /// attributes as JSON.
    #[getter]
    fn labels<'py>(&self, py: Python<'py>) -> PyResult<Vec<Option<Label<'py>>>> {
        let label = |dim: &DimLabel| match &dim.coord {
            None => Ok(None),
            Some(coord) => {
                let (dtype, values) = labels(py, &coord.values)?;
                Ok(Some((coord.name.to_string(), dtype, values, json(&coord.attrs)?)))
            }
        };
        self.head.dims.iter().map(label).collect()
    }

    /// All cells in row-major order, and a byte for each that is 0 where it is masked, if any cell is. Masked floats are
    /// NaN, masked datetimes NaT.
    fn cells(&self, py: Python<'_>) -> PyResult<(Py<Memory>, Option<Py<Memory>>)> {
        // Other threads wait while it copies, without the interpreter.
        let mut cells = self.cells.lock_py_attached(py).unwrap_or_else(PoisonError::into_inner);
        let taken = match std::mem::replace(&mut *cells, Cells::Moved) {
            Cells::Python(data, valid) => {
                let both = (data.clone_ref(py), valid.as_ref().map(|valid| valid.clone_ref(py)));
                *cells = Cells::Python(data, valid);
                return Ok(both);
            }
            Cells::Moved => return Err(moved(py)),
            Cells::Chunked(mut chunked) => {
                let taken = py.detach(|| chunked.take_cells());
                if taken.is_err() {
                    *cells = Cells::Chunked(chunked);
                }
                taken.map(|(data, valid)| (Memory::pooled(data), valid.map(Memory::pooled)))
            }
            Cells::Whole(tensor) => {
                let (data, valid) = py.detach(|| tensor.copy_cells());
                Ok((Memory::new(data), valid.map(Memory::new)))
            }
        };
        let (data, valid) = taken.map_err(|e| exception(py, &e, ""))?;
        let memory = |cells| Py::new(py, cells);
        let (data, valid) = (memory(data)?, valid.map(memory).transpose()?);
        let both = (data.clone_ref(py), valid.as_ref().map(|valid| valid.clone_ref(py)));
        *cells = Cells::Python(data, valid);
        Ok(both)
    }

    /// True if cells may be masked.
    #[getter]
    fn nullable(&self) -> bool {
        self.head.nullable
    }
}

type Label<'py> = (String, String, Bound<'py, PyAny>, String);

fn json(attrs: &Attrs) -> PyResult<String> {
    let attrs = serde_json::to_value(attrs);
    attrs
        .map(|attrs| PythonJson(&attrs).to_string())
        .map_err(|e| pyo3::exceptions::PyValueError::new_err(format!("attributes: {e}")))
}

/// The dtype of labels, and their values: 8 bytes for each number, whatever its dtype.
fn labels<'py>(py: Python<'py>, values: &CoordValues) -> PyResult<(String, Bound<'py, PyAny>)> {
    let memory = |bytes: &[u8]| -> PyResult<Bound<'py, PyAny>> {
        Ok(Bound::new(py, Memory::new(bytes::BytesMut::from(bytes)))?.into_any())
    };
    let dtype = values.dtype().map_or("str".into(), DType::name);
    Ok(match values {
        CoordValues::Int(_, v) | CoordValues::Time(_, v) => (dtype, memory(v[..].to_byte_slice())?),
        CoordValues::Float(_, v) => (dtype, memory(v[..].to_byte_slice())?),
        CoordValues::Text(v) => (dtype, PyList::new(py, v.options())?.into_any()),
        CoordValues::Unreadable(none) => {
            let of = &none.of;
            let (reason, hint) = (of.reason.clone(), of.hint.clone());
            return Err(exception(py, &Error::Unsupported { construct: reason, hint }, ""));
        }
    })
}

/// Rows of an answer.
#[pyclass(frozen)]
pub(crate) struct Rows(answer::Reply);

/// Rows batch by batch, from memory or from their file.
type Batches = Box<dyn Iterator<Item = Result<RecordBatch, ArrowError>> + Send>;

impl Rows {
    /// The schema, and the rows, read as the iterator advances.
    fn batches(&self) -> Result<(SchemaRef, Batches), Error> {
        match &self.0.answer {
            Answer::Rows { schema, batches, .. } => {
                Ok((schema.clone(), Box::new(batches.clone().into_iter().map(Ok))))
            }
            Answer::Stored(rows) => Ok((rows.schema().clone(), Box::new(rows.batches()?))),
            _ => Err(Error::Internal { what: "the rows of a result are not there".into() }),
        }
    }
}

#[pymethods]
impl Rows {
    /// Number of rows.
    fn __len__(&self) -> usize {
        self.0.answer.row_count() as usize
    }

    /// Names of the columns, and their types as DESCRIBE shows them.
    #[getter]
    fn columns(&self) -> Vec<(String, String)> {
        let Some((schema, _)) = self.0.answer.rows() else { return Vec::new() };
        schema.fields().iter().map(|f| (f.name().clone(), tessera_cells::column_type(f))).collect()
    }

    /// The time zone of each column of instants; `None` for other columns.
    #[getter]
    fn zones(&self) -> Vec<Option<String>> {
        let Some((schema, _)) = self.0.answer.rows() else { return Vec::new() };
        let zone = |field: &Arc<Field>| match field.data_type() {
            DataType::Timestamp(_, Some(zone)) => Some(zone.to_string()),
            _ => None,
        };
        schema.fields().iter().map(zone).collect()
    }

    /// The rows with durations in place of intervals, for libraries that have none; an interval of months is an error.
    fn without_intervals(slf: &Bound<'_, Self>) -> PyResult<Py<Rows>> {
        let (py, rows) = (slf.py(), slf.get());
        let (schema, batches) = rows.batches().map_err(|e| exception(py, &e, ""))?;
        let Some(durations) = Durations::of(&schema, true) else { return Ok(slf.clone().unbind()) };
        let made = py.detach(|| {
            let batches = batches.map(|batch| durations.rows(&batch?));
            batches.collect::<Result<Vec<_>, SpanError>>()
        });
        let batches = made.map_err(|e| columns::no_duration(py, e))?;
        let schema = durations.schema().clone();
        let answer = Answer::Rows { schema, batches, held: Default::default() };
        let (surface, stats) = (rows.0.surface, rows.0.stats);
        Py::new(py, Rows(answer::Reply { answer, surface, stats }))
    }

    /// The rows as a relation of other statements. Spans of time stay numbers there, which have their attributes.
    fn relation(&self, py: Python<'_>) -> PyResult<Local> {
        let read = py.detach(|| -> Result<_, Error> {
            let (schema, batches) = self.batches()?;
            let rows = batches.map(|batch| {
                let batch = batch?;
                let options = RecordBatchOptions::new().with_row_count(Some(batch.num_rows()));
                let columns = batch.columns().to_vec();
                RecordBatch::try_new_with_options(schema.clone(), columns, &options)
            });
            let rows = rows.collect::<Result<Vec<_>, ArrowError>>();
            let rows = rows.map_err(|source| Error::Rows { source })?;
            locals::Local::table(schema.clone(), rows)
        });
        Ok(Local(read.map_err(|e| exception(py, &e, ""))?))
    }

    /// Arrow's stream of the rows, for any library that reads it. Spans of time are durations.
    #[pyo3(signature = (requested_schema=None))]
    fn __arrow_c_stream__<'py>(
        &self,
        py: Python<'py>,
        requested_schema: Option<Bound<'py, PyCapsule>>,
    ) -> PyResult<Bound<'py, PyCapsule>> {
        let (mut schema, mut batches) = self.batches().map_err(|e| exception(py, &e, ""))?;
        if let Some(durations) = Durations::of(&schema, false) {
            schema = durations.schema().clone();
            let converted = batches.map(move |batch| {
                durations.rows(&batch?).map_err(|e| ArrowError::ExternalError(Box::new(e)))
            });
            batches = Box::new(converted);
        }
        let field = Field::new_struct("", schema.fields().clone(), false);
        let field = Arc::new(field.with_metadata(schema.metadata().clone()));
        let arrays = batches.map(|b| b.map(|b| Arc::new(StructArray::from(b)) as ArrayRef));
        let arrays = Box::new(ArrayIterator::new(arrays, field));
        Ok(to_stream_pycapsule(py, arrays, requested_schema)?)
    }

    /// The rows one after the other.
    fn reader(&self, py: Python<'_>) -> PyResult<Reader> {
        let (schema, batches) = self.batches().map_err(|e| exception(py, &e, ""))?;
        Ok(Reader { schema, rest: Mutex::new(Rest { batches, batch: None }) })
    }

    /// The rows as tuples of Python's own values.
    fn tuples<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyList>> {
        self.reader(py)?.take(py, None)
    }

    /// Names and columns: for fixed-width numbers, dtype, memory and validity; else a list of values.
    fn arrays<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyList>> {
        let read = py.detach(|| -> Result<_, Error> {
            let (schema, batches) = self.batches()?;
            let batches = batches.collect::<Result<Vec<_>, ArrowError>>();
            Ok((schema, batches.map_err(|source| Error::Rows { source })?))
        });
        let (schema, batches) = read.map_err(|e| exception(py, &e, ""))?;
        columns::arrays(py, &schema, &batches)
    }
}

/// Rows that are read one after the other, once.
#[pyclass(frozen)]
pub(crate) struct Reader {
    schema: SchemaRef,
    rest: Mutex<Rest>,
}

struct Rest {
    batches: Batches,
    /// Rows that were read and not taken.
    batch: Option<RecordBatch>,
}

impl Rest {
    /// The next rows, at most `count` and of one batch; `None` after the last.
    fn read(&mut self, count: usize) -> Result<Option<RecordBatch>, Error> {
        loop {
            let batch = match self.batch.take() {
                Some(batch) => batch,
                None => match self.batches.next() {
                    Some(read) => read.map_err(|source| Error::Rows { source })?,
                    None => return Ok(None),
                },
            };
            let rows = batch.num_rows();
            if rows > count {
                self.batch = Some(batch.slice(count, rows - count));
                return Ok(Some(batch.slice(0, count)));
            }
            if rows > 0 {
                return Ok(Some(batch));
            }
        }
    }
}

#[pymethods]
impl Reader {
    /// The next rows as tuples of Python's own values: at most `count`, or all.
    #[pyo3(signature = (count=None))]
    fn take<'py>(&self, py: Python<'py>, count: Option<usize>) -> PyResult<Bound<'py, PyList>> {
        let mut locked = self.rest.lock_py_attached(py).unwrap_or_else(PoisonError::into_inner);
        let rest = &mut *locked;
        let rows = PyList::empty(py);
        let mut left = count.unwrap_or(usize::MAX);
        while left > 0 {
            let read = py.detach(|| rest.read(left));
            let Some(batch) = read.map_err(|e| exception(py, &e, ""))? else { break };
            left -= batch.num_rows();
            columns::append(py, &self.schema, &batch, &rows)?;
        }
        Ok(rows)
    }
}
