//! The long layout: a tensor as rows, one for each cell, with a column for each dimension and then the values.
//!
//! ```text
//!   lat  lon  t2m
//!   50.0 10.0 281.3      cells in row-major order; a dimension without a coordinate has its positions
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
use std::cmp::Reverse;
use std::sync::Arc;
use tessera_cells::lift::field;
use tessera_cells::spans::spanned;
use tessera_frontend::labels::are_coordinates;
use tessera_planner::catalog::{CoordValues, DimLabel};
use tessera_planner::dtype::{Calendar, DType};
use tessera_planner::region::{Dims, Region};

/// Rows of a batch: enough to be fast, few enough to use little memory.
const BATCH_ROWS: u64 = 1 << 16;

/// Tensors over the same dimensions or a subset of them, as one table: a cell of few dimensions repeats in many rows.
pub(super) struct Long<'a> {
    shape: Dims,
    tensors: Vec<Member<'a>>,
    schema: SchemaRef,
    /// The labels of each axis; `None` if the position is the label.
    labels: Vec<Option<ArrayRef>>,
}

impl<'a> Long<'a> {
    /// Groups tensors into tables. A tensor joins the table of a tensor that has all of its dimensions in the same
    /// order. A tensor that is labels of another tensor is already a column. Tables have the order of their first
    /// tensors.
    pub(super) fn group(
        tensors: &[&'a dyn Windows],
        surface: Option<Surface>,
    ) -> Result<Vec<Self>, Error> {
        let heads: Vec<Head<'_>> = tensors.iter().map(|t| t.head()).collect();
        let labels = are_coordinates(&heads.iter().map(|h| (h.name, h.dims)).collect::<Vec<_>>());
        let left: Vec<usize> = (0..heads.len()).filter(|&i| !labels[i]).collect();
        // For each tensor, the first of the widest tensors that have its dimensions.
        let host = |i: usize| {
            let has = |j: usize| axes_in(heads[i], heads[j]).is_some();
            let wider = left.iter().copied().filter(|&j| has(j));
            wider.max_by_key(|&j| (heads[j].dims.len(), Reverse(j))).unwrap_or(i)
        };
        let mut groups: Vec<(usize, Vec<usize>)> = Vec::new();
        for &i in &left {
            let host = host(i);
            match groups.iter_mut().find(|(known, _)| *known == host) {
                Some((_, members)) => members.push(i),
                None => groups.push((host, vec![i])),
            }
        }
        let table = |(host, members): (usize, Vec<usize>)| {
            let member = |&i: &usize| {
                axes_in(heads[i], heads[host]).map(|axes| Member { tensor: tensors[i], axes })
            };
            Long::new(heads[host], members.iter().filter_map(member).collect(), surface)
        };
        groups.into_iter().map(table).collect()
    }

    fn new(
        host: Head<'_>,
        tensors: Vec<Member<'a>>,
        surface: Option<Surface>,
    ) -> Result<Self, Error> {
        let mut fields: Vec<Field> = Vec::new();
        let mut labels = Vec::new();
        for (d, name) in host.dims.iter().zip(host.dim_names()) {
            let (f, array) = axis(&name, d)?;
            fields.push(f);
            labels.push(array);
        }
        for t in tensors.iter().map(|t| t.tensor.head()) {
            let mut name = t.name.to_string();
            let mut suffix = 1;
            while fields.iter().any(|f| *f.name() == name) {
                name = format!("{}_{suffix}", t.name);
                suffix += 1;
            }
            fields.push(spanned(field(&name, t.dtype, t.nullable), t.attrs));
        }
        let mut schema = Schema::new(fields);
        if let Some(s) = surface {
            schema.metadata.insert(SURFACE_KEY.into(), s.name().into());
        }
        Ok(Long { shape: host.shape(), tensors, schema: Arc::new(schema), labels })
    }

    pub(super) fn schema(&self) -> &SchemaRef {
        &self.schema
    }

    /// The rows, built batch by batch as the iterator advances.
    pub(super) fn batches(&self) -> impl Iterator<Item = Result<RecordBatch, Error>> + '_ {
        let mut start = 0;
        windows(&self.shape, BATCH_ROWS).map(move |window| {
            let len = window.cells() as usize;
            let cells = self.tensors.iter().map(|t| t.column(&window));
            let cells = cells.collect::<Result<Vec<_>, _>>()?;
            let batch = self.batch(&self.shape, start, len, cells);
            start += len;
            batch.map_err(|source| Error::Rows { source })
        })
    }

    fn batch(
        &self,
        shape: &[u64],
        start: usize,
        len: usize,
        cells: Vec<ArrayRef>,
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
        columns.extend(cells);
        RecordBatch::try_new(self.schema.clone(), columns)
    }
}

/// A tensor of a table.
struct Member<'a> {
    tensor: &'a dyn Windows,
    /// The table's dimension for each of its own, ascending.
    axes: Vec<usize>,
}

impl Member<'_> {
    /// Its cells in the rows of a window of the table.
    fn column(&self, window: &Region) -> Result<ArrayRef, Error> {
        let of = |at: &Dims| -> Dims { self.axes.iter().map(|&a| at[a]).collect() };
        let own = Region { start: of(&window.start), end: of(&window.end) };
        let cells = values(&self.tensor.window(&own)?);
        if self.axes.len() == window.rank() {
            return Ok(cells);
        }
        // A row's number among the tensor's own cells: the step is 0 along dimensions that it does not have.
        let mut steps = vec![0; window.rank()];
        let mut step = 1;
        for &a in self.axes.iter().rev() {
            steps[a] = step;
            step *= window.len(a);
        }
        let mut at = vec![0u64];
        for (a, step) in steps.into_iter().enumerate() {
            let along = |n: &u64| {
                let n = *n;
                (0..window.len(a)).map(move |i| n + i * step)
            };
            at = at.iter().flat_map(along).collect();
        }
        take(&cells, &UInt64Array::from(at), None).map_err(|source| Error::Rows { source })
    }
}

/// For each dimension of one tensor, the same dimension of another. All must exist, in the same order. A single cell is
/// a table of its own.
fn axes_in(part: Head<'_>, whole: Head<'_>) -> Option<Vec<usize>> {
    if part.dims.len() == whole.dims.len() {
        return same_dims(part, whole).then(|| (0..part.dims.len()).collect());
    }
    if part.dims.is_empty() {
        return None;
    }
    let (own, all) = (part.shape(), whole.shape());
    let mut axes = Vec::with_capacity(own.len());
    for (d, &length) in part.dims.iter().zip(&own) {
        let from = axes.last().map_or(0, |last| last + 1);
        let is_it =
            |&a: &usize| d.name.is_some() && all[a] == length && same_dim(d, &whole.dims[a]);
        axes.push((from..all.len()).find(is_it)?);
    }
    Some(axes)
}

/// True if both have the same dimensions with the same labels.
pub(super) fn same_dims(a: Head<'_>, b: Head<'_>) -> bool {
    a.shape() == b.shape() && a.dims.iter().zip(b.dims).all(|(x, y)| same_dim(x, y))
}

fn same_dim(x: &DimLabel, y: &DimLabel) -> bool {
    x.name == y.name
        && match (&x.coord, &y.coord) {
            (None, None) => true,
            (Some(p), Some(q)) => Arc::ptr_eq(p, q) || p.values == q.values,
            _ => false,
        }
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
        Some(d) => spanned(field(name, d, has_missing), &coord.attrs),
        None => Field::new(name, DataType::Utf8, has_missing),
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
        CoordValues::Text(v) => Arc::new(v.options().collect::<StringArray>()),
    };
    Ok((f, Some(array)))
}

/// Cells as an Arrow array; zero-copy except for booleans and validity.
pub(super) fn values(t: &Cells) -> ArrayRef {
    let len = t.len();
    let nulls =
        t.valid.as_ref().map(|v| NullBuffer::new(BooleanBuffer::collect_bool(len, |i| v[i] != 0)));
    fn primitive<T: ArrowPrimitiveType>(t: &Cells, nulls: Option<NullBuffer>) -> ArrayRef {
        // Cells are always aligned for their type.
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
