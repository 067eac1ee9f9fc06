//! Arrays and tables of the caller, as relations.

use crate::error::exception;
use crate::memory::{Borrowed, borrow};
use pyo3::buffer::{Element, PyBuffer};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3_arrow::PyRecordBatchReader;
use std::sync::Arc;
use tessera_engine::error::Error;
use tessera_engine::locals::{self, LocalArray};
use tessera_planner::catalog::{Attrs, Coord, CoordValues, Dataset, Unreadable, parse_json};
use tessera_planner::dtype::DType;

/// A relation of the caller: arrays with labels, or a table.
#[pyclass(frozen)]
pub(crate) struct Local(pub(crate) locals::Local);

/// An array: name, names of its dimensions, dtype, object with its memory, mask (1 where a cell is valid), attributes
/// as JSON, and whether it is a coordinate. An array without axes has memory of one axis.
#[derive(FromPyObject)]
pub(crate) struct Array<'py>(
    String,
    Vec<Option<String>>,
    String,
    Bound<'py, PyAny>,
    Option<Bound<'py, PyAny>>,
    Option<String>,
    bool,
);

/// Labels: name, dimension (`None` for a text without one), dtype (`str` for texts), values, attributes as JSON, and
/// whether they are a coordinate.
#[derive(FromPyObject)]
pub(crate) struct Labels<'py>(
    String,
    Option<String>,
    String,
    Bound<'py, PyAny>,
    Option<String>,
    bool,
);

/// An array that statements cannot read: name, dimensions with their lengths, reason, hint.
#[derive(FromPyObject)]
pub(crate) struct Refused(String, Vec<(Option<String>, u64)>, String, Option<String>);

/// Arrays with labels as a relation.
#[pyfunction]
#[pyo3(signature = (name, arrays, labels, unreadable, attrs))]
pub(crate) fn dataset(
    py: Python<'_>,
    name: &str,
    arrays: Vec<Array<'_>>,
    labels: Vec<Labels<'_>>,
    unreadable: Vec<Refused>,
    attrs: Option<&str>,
) -> PyResult<Local> {
    let arrays = arrays.into_iter().map(array).collect::<PyResult<_>>()?;
    let attrs = attributes(attrs)?;
    let mut dataset = Dataset { name: name.into(), attrs, ..Dataset::default() };
    dataset.unreadable = unreadable.into_iter().map(|array| Arc::new(refused(array))).collect();
    for labels in labels {
        let (is_along, is_coordinate) = (labels.1.is_some(), labels.5);
        let coord = Arc::new(coord(labels)?);
        if is_coordinate {
            dataset.coordinates.insert(coord.name.clone());
        }
        let list = if is_along { &mut dataset.coords } else { &mut dataset.scalars };
        list.push(coord);
    }
    let local = locals::Local::with_arrays(dataset, arrays);
    Ok(Local(local.map_err(|e| exception(py, &e, ""))?))
}

/// A store that Python has opened, as a relation.
#[pyfunction]
pub(crate) fn stored(url: &str) -> Local {
    Local(locals::Local::stored(url))
}

/// A table as a relation: any object with `__arrow_c_stream__`.
#[pyfunction]
pub(crate) fn table(py: Python<'_>, object: PyRecordBatchReader) -> PyResult<Local> {
    let reader = object.into_reader()?;
    let schema = reader.schema();
    // The producer may be Python code, which attaches by itself.
    let batches = py.detach(|| reader.collect::<Result<Vec<_>, _>>());
    let local = batches
        .map_err(|source| Error::Rows { source })
        .and_then(|batches| locals::Local::table(schema, batches));
    Ok(Local(local.map_err(|e| exception(py, &e, ""))?))
}

fn refused(array: Refused) -> Unreadable {
    let Refused(name, dims, reason, hint) = array;
    let dims = dims.into_iter().map(|(dim, len)| (dim.map(Into::into), len)).collect();
    Unreadable { name: name.into(), dims, code: "unsupported", reason, hint }
}

fn dtype_of(name: &str) -> PyResult<DType> {
    DType::parse(name).ok_or_else(|| PyValueError::new_err(format!("unsupported dtype `{name}`")))
}

fn attributes(json: Option<&str>) -> PyResult<Attrs> {
    let read = |json: &str| parse_json(json.as_bytes()).and_then(serde_json::from_value);
    json.map_or(Ok(Attrs::new()), |json| {
        read(json).map_err(|e| PyValueError::new_err(format!("attributes: {e}")))
    })
}

fn array(array: Array<'_>) -> PyResult<LocalArray> {
    let Array(name, dims, dtype, cells, mask, attrs, is_auxiliary) = array;
    let dtype = dtype_of(&dtype)?;
    let size = dtype.size() as i64;
    let Borrowed { data, first, mut shape, mut strides } = borrow(&cells)?;
    if dims.is_empty() {
        shape.clear();
        strides.clear();
    }
    if strides.iter().any(|s| s % size != 0) {
        return Err(PyValueError::new_err(format!(
            "`{name}`: cells are not at multiples of {size}"
        )));
    }
    let valid = mask.map(|mask| borrow(&mask).map(|mask| mask.data)).transpose()?;
    Ok(LocalArray {
        name,
        dims,
        dtype,
        shape,
        strides: strides.iter().map(|s| s / size).collect(),
        data,
        offset: first / size,
        valid,
        attrs: attributes(attrs.as_deref())?,
        is_auxiliary,
    })
}

fn coord(labels: Labels<'_>) -> PyResult<Coord> {
    let Labels(name, dim, dtype, values, attrs, _) = labels;
    let dim = dim.unwrap_or_else(|| name.clone());
    let values = match dtype.as_str() {
        "str" => CoordValues::Text(values.extract::<Vec<Option<String>>>()?.into_iter().collect()),
        _ => match dtype_of(&dtype)? {
            DType::Datetime(calendar) => CoordValues::Time(calendar, numbers(&values)?.into()),
            dtype if dtype.is_float() => CoordValues::Float(dtype, numbers(&values)?.into()),
            dtype => CoordValues::Int(dtype, numbers(&values)?.into()),
        },
    };
    let attrs = attributes(attrs.as_deref())?;
    Ok(Coord { name: name.into(), dim: dim.into(), values, attrs })
}

/// Numbers of an array of exactly this type.
fn numbers<T: Element>(values: &Bound<'_, PyAny>) -> PyResult<Vec<T>> {
    PyBuffer::<T>::get(values)?.to_vec(values.py())
}
