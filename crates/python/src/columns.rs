//! Rows as Python's own values, and as memory of columns: the forms that work without pyarrow.

use crate::memory::Memory;
use arrow::array::{Array, ArrayRef, AsArray, RecordBatch};
use arrow::compute::{cast, concat_batches};
use arrow::datatypes::{
    self as ty, ArrowPrimitiveType, DataType, Field, IntervalUnit, Schema, SchemaRef, TimeUnit,
};
use arrow::error::ArrowError;
use arrow::util::display::{ArrayFormatter, FormatOptions};
use bytes::BytesMut;
use pyo3::IntoPyObjectExt;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict, PyList, PyTuple};
use tessera_cells::lift::calendar;
use tessera_cells::spans::{Durations, SpanError, of_intervals};
use tessera_engine::error::Error;
use tessera_planner::dtype::DType;

/// Values of a column as Python objects.
type Values<'py> = Vec<Bound<'py, PyAny>>;

/// Appends the rows of a batch as tuples. NULL is `None`, a moment a `datetime`.
pub(crate) fn append<'py>(
    py: Python<'py>,
    schema: &Schema,
    batch: &RecordBatch,
    rows: &Bound<'py, PyList>,
) -> PyResult<()> {
    let columns = schema.fields().iter().zip(batch.columns());
    let columns: Vec<Values<'py>> =
        columns.map(|(field, column)| values(py, field, column)).collect::<PyResult<_>>()?;
    let mut columns: Vec<_> = columns.into_iter().map(Vec::into_iter).collect();
    for _ in 0..batch.num_rows() {
        let row: Values<'py> = columns.iter_mut().filter_map(Iterator::next).collect();
        rows.append(PyTuple::new(py, row)?)?;
    }
    Ok(())
}

/// Names and columns: `(dtype, memory, validity or None)` for numbers, booleans and moments, else a list of values. Two
/// columns of a join may have one name.
pub(crate) fn arrays<'py>(
    py: Python<'py>,
    schema: &SchemaRef,
    batches: &[RecordBatch],
) -> PyResult<Bound<'py, PyList>> {
    let all = py.detach(|| concat_batches(schema, batches)).map_err(|e| failed(py, e))?;
    let all = match Durations::of(schema, false) {
        Some(durations) => durations.rows(&all).map_err(|e| no_duration(py, e))?,
        None => all,
    };
    let columns = PyList::empty(py);
    for (field, column) in all.schema().fields().iter().zip(all.columns()) {
        let values = match flat(field, column).map_err(|e| failed(py, e))? {
            None => PyList::new(py, values(py, field, column)?)?.into_any(),
            Some((dtype, cells)) => {
                let valid = column.logical_nulls().filter(|nulls| nulls.null_count() > 0);
                let valid = valid.map(|nulls| -> PyResult<_> {
                    let bytes: Vec<u8> = nulls.iter().map(u8::from).collect();
                    Py::new(py, Memory::new(BytesMut::from(&bytes[..])))
                });
                let cells = Py::new(py, Memory::new(cells))?;
                (dtype, cells, valid.transpose()?).into_bound_py_any(py)?
            }
        };
        columns.append((field.name(), values))?;
    }
    Ok(columns)
}

fn failed(py: Python<'_>, source: ArrowError) -> PyErr {
    crate::error::exception(py, &Error::Rows { source }, "")
}

/// The exception for spans of time that are no durations.
pub(crate) fn no_duration(py: Python<'_>, error: SpanError) -> PyErr {
    let error = match error {
        SpanError::Arrow(source) => Error::Rows { source },
        other => Error::Usage { reason: other.to_string(), hint: other.hint() },
    };
    crate::error::exception(py, &error, "")
}

/// The bytes of a column of numbers, with the dtype's name.
fn flat(field: &Field, column: &ArrayRef) -> Result<Option<(String, BytesMut)>, ArrowError> {
    if let (Some(calendar), DataType::Int64) = (calendar(field), column.data_type()) {
        return Ok(Some((DType::Datetime(calendar).name(), bytes::<ty::Int64Type>(column))));
    }
    let dtype = |name: &str, cells| Ok(Some((name.to_string(), cells)));
    match column.data_type() {
        DataType::Boolean => {
            let cells: Vec<u8> = column.as_boolean().values().iter().map(u8::from).collect();
            dtype("bool", BytesMut::from(&cells[..]))
        }
        DataType::Int8 => dtype("int8", bytes::<ty::Int8Type>(column)),
        DataType::Int16 => dtype("int16", bytes::<ty::Int16Type>(column)),
        DataType::Int32 => dtype("int32", bytes::<ty::Int32Type>(column)),
        DataType::Int64 => dtype("int64", bytes::<ty::Int64Type>(column)),
        DataType::UInt8 => dtype("uint8", bytes::<ty::UInt8Type>(column)),
        DataType::UInt16 => dtype("uint16", bytes::<ty::UInt16Type>(column)),
        DataType::UInt32 => dtype("uint32", bytes::<ty::UInt32Type>(column)),
        DataType::UInt64 => dtype("uint64", bytes::<ty::UInt64Type>(column)),
        DataType::Float16 => dtype("float16", bytes::<ty::Float16Type>(column)),
        DataType::Float32 => dtype("float32", bytes::<ty::Float32Type>(column)),
        DataType::Float64 => dtype("float64", bytes::<ty::Float64Type>(column)),
        DataType::Timestamp(..) | DataType::Date32 | DataType::Date64 => {
            let moments = cast(column, &DataType::Timestamp(TimeUnit::Microsecond, None))?;
            dtype("datetime64[us]", bytes::<ty::TimestampMicrosecondType>(&moments))
        }
        DataType::Duration(unit) => {
            let name = match unit {
                TimeUnit::Second => "timedelta64[s]",
                TimeUnit::Millisecond => "timedelta64[ms]",
                TimeUnit::Microsecond => "timedelta64[us]",
                TimeUnit::Nanosecond => "timedelta64[ns]",
            };
            dtype(name, bytes::<ty::Int64Type>(&cast(column, &DataType::Int64)?))
        }
        DataType::Interval(IntervalUnit::MonthDayNano) => {
            match of_intervals(field.name(), column) {
                Ok(spans) => dtype("timedelta64[ns]", bytes::<ty::DurationNanosecondType>(&spans)),
                // Months have no fixed length: such a column is texts.
                Err(SpanError::Months { .. } | SpanError::TooLarge { .. }) => Ok(None),
                Err(SpanError::Arrow(error)) => Err(error),
            }
        }
        _ => Ok(None),
    }
}

fn bytes<T: ArrowPrimitiveType>(column: &ArrayRef) -> BytesMut {
    BytesMut::from(column.as_primitive::<T>().values().inner().as_slice())
}

/// The values of a column as Python objects.
fn values<'py>(py: Python<'py>, field: &Field, column: &ArrayRef) -> PyResult<Values<'py>> {
    if calendar(field).is_some() {
        return texts(py, column);
    }
    match column.data_type() {
        DataType::Boolean => {
            let values = column.as_boolean();
            each(py, column, |i| values.value(i).into_bound_py_any(py))
        }
        DataType::Int8 => numbers::<ty::Int8Type>(py, column),
        DataType::Int16 => numbers::<ty::Int16Type>(py, column),
        DataType::Int32 => numbers::<ty::Int32Type>(py, column),
        DataType::Int64 => numbers::<ty::Int64Type>(py, column),
        DataType::UInt8 => numbers::<ty::UInt8Type>(py, column),
        DataType::UInt16 => numbers::<ty::UInt16Type>(py, column),
        DataType::UInt32 => numbers::<ty::UInt32Type>(py, column),
        DataType::UInt64 => numbers::<ty::UInt64Type>(py, column),
        DataType::Float16 => converted(py, field, column, DataType::Float32),
        DataType::Float32 => numbers::<ty::Float32Type>(py, column),
        DataType::Float64 => numbers::<ty::Float64Type>(py, column),
        DataType::Utf8 => {
            let values = column.as_string::<i32>();
            each(py, column, |i| values.value(i).into_bound_py_any(py))
        }
        DataType::Binary => {
            let values = column.as_binary::<i32>();
            each(py, column, |i| Ok(PyBytes::new(py, values.value(i)).into_any()))
        }
        DataType::LargeUtf8 | DataType::Utf8View => converted(py, field, column, DataType::Utf8),
        DataType::LargeBinary | DataType::BinaryView | DataType::FixedSizeBinary(_) => {
            converted(py, field, column, DataType::Binary)
        }
        DataType::Dictionary(_, inner) => converted(py, field, column, inner.as_ref().clone()),
        DataType::Timestamp(TimeUnit::Microsecond, _) => moments(py, column),
        DataType::Timestamp(_, zone) => {
            let moment = DataType::Timestamp(TimeUnit::Microsecond, zone.clone());
            converted(py, field, column, moment)
        }
        DataType::Date32 => {
            let values = column.as_primitive::<ty::Date32Type>();
            let date = py.import("datetime")?.getattr("date")?;
            // Ordinal 719,163 is 1970-01-01.
            each(py, column, |i| date.call_method1("fromordinal", (values.value(i) + 719_163,)))
        }
        DataType::Date64 => converted(py, field, column, DataType::Date32),
        DataType::Time64(TimeUnit::Microsecond) => times(py, column),
        DataType::Time32(_) | DataType::Time64(_) => {
            converted(py, field, column, DataType::Time64(TimeUnit::Microsecond))
        }
        DataType::Duration(TimeUnit::Microsecond) => {
            let values = column.as_primitive::<ty::DurationMicrosecondType>();
            let delta = py.import("datetime")?.getattr("timedelta")?;
            each(py, column, |i| delta.call1((0, 0, values.value(i))))
        }
        DataType::Duration(_) => {
            converted(py, field, column, DataType::Duration(TimeUnit::Microsecond))
        }
        DataType::Decimal32(..)
        | DataType::Decimal64(..)
        | DataType::Decimal128(..)
        | DataType::Decimal256(..) => {
            let decimal = py.import("decimal")?.getattr("Decimal")?;
            let texts = texts(py, column)?;
            each(py, column, |i| decimal.call1((&texts[i],)))
        }
        DataType::List(item) => {
            let lists = column.as_list::<i32>();
            each(py, column, |i| listed(py, item, &lists.value(i)))
        }
        DataType::LargeList(item) => {
            let lists = column.as_list::<i64>();
            each(py, column, |i| listed(py, item, &lists.value(i)))
        }
        DataType::FixedSizeList(item, _) => {
            let lists = column.as_fixed_size_list();
            each(py, column, |i| listed(py, item, &lists.value(i)))
        }
        DataType::Struct(fields) => {
            let parts = fields.iter().zip(column.as_struct().columns());
            let parts = parts.map(|(f, part)| Ok((f.name(), values(py, f, part)?)));
            let parts: Vec<_> = parts.collect::<PyResult<_>>()?;
            each(py, column, |i| {
                let record = PyDict::new(py);
                parts.iter().try_for_each(|(name, part)| record.set_item(name, &part[i]))?;
                Ok(record.into_any())
            })
        }
        _ => texts(py, column),
    }
}

/// A value for each row; `None` where the column is NULL.
fn each<'py>(
    py: Python<'py>,
    column: &ArrayRef,
    value: impl Fn(usize) -> PyResult<Bound<'py, PyAny>>,
) -> PyResult<Values<'py>> {
    let nulls = column.logical_nulls();
    let is_null = |i| nulls.as_ref().is_some_and(|nulls| nulls.is_null(i));
    let one = |i| if is_null(i) { Ok(py.None().into_bound(py)) } else { value(i) };
    (0..column.len()).map(one).collect()
}

/// The items of one list.
fn listed<'py>(py: Python<'py>, item: &Field, list: &ArrayRef) -> PyResult<Bound<'py, PyAny>> {
    Ok(PyList::new(py, values(py, item, list)?)?.into_any())
}

/// Times of day, microseconds since midnight, as `datetime.time`.
fn times<'py>(py: Python<'py>, column: &ArrayRef) -> PyResult<Values<'py>> {
    let values = column.as_primitive::<ty::Time64MicrosecondType>();
    let module = py.import("datetime")?;
    let midnight = module.getattr("datetime")?.getattr("min")?;
    let delta = module.getattr("timedelta")?;
    each(py, column, |i| {
        let since = delta.call1((0, 0, values.value(i)))?;
        midnight.add(since)?.call_method0("time")
    })
}

fn numbers<'py, T: ArrowPrimitiveType>(py: Python<'py>, column: &ArrayRef) -> PyResult<Values<'py>>
where
    T::Native: IntoPyObject<'py>,
{
    let values = column.as_primitive::<T>();
    each(py, column, |i| values.value(i).into_bound_py_any(py))
}

fn converted<'py>(
    py: Python<'py>,
    field: &Field,
    column: &ArrayRef,
    to: DataType,
) -> PyResult<Values<'py>> {
    let column = cast(column, &to).map_err(|e| failed(py, e))?;
    values(py, field, &column)
}

/// Moments as `datetime.datetime`, with UTC if the column has a zone; as texts beyond its years.
fn moments<'py>(py: Python<'py>, column: &ArrayRef) -> PyResult<Values<'py>> {
    let zoned = matches!(column.data_type(), DataType::Timestamp(_, Some(_)));
    let values = column.as_primitive::<ty::TimestampMicrosecondType>();
    let module = py.import("datetime")?;
    let zone = match zoned {
        true => module.getattr("timezone")?.getattr("utc")?,
        false => py.None().into_bound(py),
    };
    let epoch = module.getattr("datetime")?.call1((1970, 1, 1, 0, 0, 0, 0, zone))?;
    let delta = module.getattr("timedelta")?;
    let texts = texts(py, column)?;
    each(py, column, |i| {
        let moment = delta.call1((0, 0, values.value(i))).and_then(|d| epoch.add(d));
        Ok(moment.unwrap_or_else(|_| texts[i].clone()))
    })
}

/// Values as Arrow writes them.
fn texts<'py>(py: Python<'py>, column: &ArrayRef) -> PyResult<Values<'py>> {
    const PLAIN: FormatOptions<'static> = FormatOptions::new();
    let formatter = ArrayFormatter::try_new(column, &PLAIN).map_err(|e| failed(py, e))?;
    each(py, column, |i| formatter.value(i).to_string().into_bound_py_any(py))
}
