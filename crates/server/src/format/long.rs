//! The long layout: a tensor as rows, one for each cell, with a column for each dimension and then the values.
//!
//! ```text
//!   lat  lon  t2m
//!   50.0 10.0 281.3      cells in row-major order; a dimension without a coordinate gives its position
//!   50.0 12.5 281.9
//! ```

use super::columns::SURFACE_KEY;
use crate::answer::{Cells, Head, Surface, Windows, windows};
use crate::error::Error;
use crate::session::readable;
use arrow::array::{
    ArrayRef, BooleanArray, Float32Array, Float64Array, Int64Array, PrimitiveArray, RecordBatch,
    StringArray, UInt64Array,
};
use arrow::buffer::{BooleanBuffer, NullBuffer, ScalarBuffer};
use arrow::compute::{cast, take};
use arrow::datatypes::{self as ty, ArrowPrimitiveType, DataType, Field, Schema, SchemaRef};
use std::sync::Arc;
use tessera_frontend::lift::field;
use tessera_planner::catalog::{CoordValues, DimLabel};
use tessera_planner::dtype::{Calendar, DType};

/// Rows of one batch: enough to be quick, few enough to need no thought about memory.
const BATCH_ROWS: u64 = 1 << 16;

/// Tensors over the same dimensions, as one table.
pub(super) struct Long<'a> {
    tensors: Vec<&'a dyn Windows>,
    schema: SchemaRef,
    /// The labels of each axis; `None` where the position is the label.
    labels: Vec<Option<ArrayRef>>,
}

impl<'a> Long<'a> {
    /// Tensors with the same dimensions share a table; tables come in the order of their first tensors.
    pub(super) fn group(
        tensors: &[&'a dyn Windows],
        surface: Option<Surface>,
    ) -> Result<Vec<Self>, Error> {
        let mut groups: Vec<Vec<&'a dyn Windows>> = Vec::new();
        for &t in tensors {
            match groups.iter_mut().find(|g| same_dims(g[0].head(), t.head())) {
                Some(g) => g.push(t),
                None => groups.push(vec![t]),
            }
        }
        groups.into_iter().map(|g| Long::new(g, surface)).collect()
    }

    fn new(tensors: Vec<&'a dyn Windows>, surface: Option<Surface>) -> Result<Self, Error> {
        let first = tensors[0].head();
        let mut fields: Vec<Field> = Vec::new();
        let mut labels = Vec::new();
        for (d, name) in first.dims.iter().zip(first.dim_names()) {
            let (f, array) = axis(&name, d)?;
            fields.push(f);
            labels.push(array);
        }
        for t in tensors.iter().map(|t| t.head()) {
            let mut name = t.name.to_string();
            let mut suffix = 1;
            while fields.iter().any(|f| *f.name() == name) {
                name = format!("{}_{suffix}", t.name);
                suffix += 1;
            }
            fields.push(field(&name, t.dtype, t.nullable));
        }
        let mut schema = Schema::new(fields);
        if let Some(s) = surface {
            schema.metadata.insert(SURFACE_KEY.into(), s.name().into());
        }
        Ok(Long { tensors, schema: Arc::new(schema), labels })
    }

    /// Names and types of the columns.
    pub(super) fn schema(&self) -> &SchemaRef {
        &self.schema
    }

    /// The rows, made batch by batch while they are asked for.
    pub(super) fn batches(&self) -> impl Iterator<Item = Result<RecordBatch, Error>> + '_ {
        let shape = self.tensors[0].head().shape();
        let mut start = 0;
        windows(&shape, BATCH_ROWS).map(move |window| {
            let len = window.cells() as usize;
            let cells =
                self.tensors.iter().map(|t| t.window(&window)).collect::<Result<Vec<_>, _>>()?;
            let batch = self.batch(&shape, start, len, &cells);
            start += len;
            batch.map_err(|source| Error::Rows { source })
        })
    }

    fn batch(
        &self,
        shape: &[u64],
        start: usize,
        len: usize,
        cells: &[Cells],
    ) -> Result<RecordBatch, arrow::error::ArrowError> {
        let mut columns = Vec::with_capacity(self.schema.fields().len());
        for (a, labels) in self.labels.iter().enumerate() {
            let stride: usize = shape[a + 1..].iter().map(|&n| n as usize).product();
            let position = |row: usize| row / stride % shape[a] as usize;
            columns.push(match labels {
                None => Arc::new(Int64Array::from_iter_values(
                    (start..start + len).map(|r| position(r) as i64),
                )) as ArrayRef,
                Some(l) => {
                    let at = UInt64Array::from_iter_values(
                        (start..start + len).map(|r| position(r) as u64),
                    );
                    take(l, &at, None)?
                }
            });
        }
        columns.extend(cells.iter().map(values));
        RecordBatch::try_new(self.schema.clone(), columns)
    }
}

/// True if the same labels stand on the same dimensions.
pub(super) fn same_dims(a: Head<'_>, b: Head<'_>) -> bool {
    let same = |x: &DimLabel, y: &DimLabel| {
        x.name == y.name
            && match (&x.coord, &y.coord) {
                (None, None) => true,
                (Some(p), Some(q)) => Arc::ptr_eq(p, q) || p.values == q.values,
                _ => false,
            }
    };
    a.shape() == b.shape() && a.dims.iter().zip(b.dims).all(|(x, y)| same(x, y))
}

/// The column of a dimension and its labels.
fn axis(name: &str, dim: &DimLabel) -> Result<(Field, Option<ArrayRef>), Error> {
    let Some(coord) = &dim.coord else {
        return Ok((Field::new(name, DataType::Int64, false), None));
    };
    readable(coord)?;
    let dtype = coord.values.dtype();
    let has_missing = (0..coord.values.len()).any(|i| coord.values.is_missing(i));
    let f = match dtype {
        Some(d) => field(name, d, has_missing),
        None => Field::new(name, DataType::Utf8, false),
    };
    let array: ArrayRef = match &coord.values {
        CoordValues::Int(DType::UInt64, v) => {
            Arc::new(UInt64Array::from_iter_values(v.iter().map(|&x| x as u64)))
        }
        CoordValues::Unreadable(_) => return Ok((f, None)),
        CoordValues::Int(_, v) | CoordValues::Time(_, v) => {
            let label = |i: usize| (!coord.values.is_missing(i)).then_some(v[i]);
            let raw: Int64Array = (0..v.len()).map(label).collect();
            cast(&raw, f.data_type()).map_err(|source| Error::Rows { source })?
        }
        CoordValues::Float(DType::Float32, v) => {
            Arc::new(Float32Array::from_iter_values(v.iter().map(|&x| x as f32)))
        }
        CoordValues::Float(_, v) => Arc::new(Float64Array::from_iter_values(v.iter().copied())),
        CoordValues::Text(v) => Arc::new(StringArray::from_iter_values(v.iter())),
    };
    Ok((f, Some(array)))
}

/// Cells as an Arrow array; zero-copy but for booleans and validity.
pub(super) fn values(t: &Cells) -> ArrayRef {
    let len = t.len();
    let nulls =
        t.valid.as_ref().map(|v| NullBuffer::new(BooleanBuffer::collect_bool(len, |i| v[i] != 0)));
    fn primitive<T: ArrowPrimitiveType>(t: &Cells, nulls: Option<NullBuffer>) -> ArrayRef {
        // Cells are aligned for their type from the start.
        let cells = ScalarBuffer::<T::Native>::new(t.data.clone(), 0, t.len());
        Arc::new(PrimitiveArray::<T>::new(cells, nulls))
    }
    match t.dtype {
        DType::Bool => {
            Arc::new(BooleanArray::new(BooleanBuffer::collect_bool(len, |i| t.data[i] != 0), nulls))
        }
        DType::Int8 => primitive::<ty::Int8Type>(t, nulls),
        DType::Int16 => primitive::<ty::Int16Type>(t, nulls),
        DType::Int32 => primitive::<ty::Int32Type>(t, nulls),
        DType::Int64 => primitive::<ty::Int64Type>(t, nulls),
        DType::UInt8 => primitive::<ty::UInt8Type>(t, nulls),
        DType::UInt16 => primitive::<ty::UInt16Type>(t, nulls),
        DType::UInt32 => primitive::<ty::UInt32Type>(t, nulls),
        DType::UInt64 => primitive::<ty::UInt64Type>(t, nulls),
        DType::Float32 => primitive::<ty::Float32Type>(t, nulls),
        DType::Float64 => primitive::<ty::Float64Type>(t, nulls),
        DType::Datetime(Calendar::Standard) => primitive::<ty::TimestampMicrosecondType>(t, nulls),
        DType::Datetime(_) => primitive::<ty::Int64Type>(t, nulls),
    }
}
