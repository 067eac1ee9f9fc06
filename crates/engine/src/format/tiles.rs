//! The layout of chunks: a row for each chunk of the results, for readers of arrays.
//!
//! ```text
//!   origin  t2m                              of a tensor [3, 4] in chunks of [2, 4]
//!   [0, 0]  {data: [8 cells], shape: [2, 4]}
//!   [2, 0]  {data: [4 cells], shape: [1, 4]}     a smaller chunk at the edge
//! ```
//! Each value is of the extension type `arrow.variable_shape_tensor`; cells are in row-major order, masked ones are
//! NULL.
//!
//! # Source
//! Arrow's list of canonical extension types, "Variable shape tensor".

use super::columns::SURFACE_KEY;
use super::long::{same_dims, values};
use crate::answer::{Cells, Surface, Windows};
use crate::error::Error;
use arrow::array::{
    ArrayRef, FixedSizeListArray, Int32Array, Int64Array, ListArray, RecordBatch, StructArray,
};
use arrow::buffer::{MutableBuffer, OffsetBuffer};
use arrow::datatypes::{DataType, Field, FieldRef, Fields, Schema, SchemaRef};
use arrow::error::ArrowError;
use std::sync::Arc;
use tessera_cells::lift::field;
use tessera_planner::region::{Dims, Region};

const EXTENSION: &str = "arrow.variable_shape_tensor";

/// Tensors over the same dimensions, as one table with the chunks of the first.
pub(super) struct Tiles<'a> {
    tensors: Vec<&'a dyn Windows>,
    schema: SchemaRef,
    columns: Vec<Column>,
}

/// The fields below one value.
struct Column {
    data: FieldRef,
    shape: FieldRef,
}

impl<'a> Tiles<'a> {
    /// The table, or `None` if the tensors do not share their dimensions.
    ///
    /// # Errors
    /// A chunk with more cells, or a tensor with more dimensions, than the type can count.
    pub(super) fn new(
        tensors: &[&'a dyn Windows],
        surface: Option<Surface>,
    ) -> Result<Option<Self>, Error> {
        let Some(first) = tensors.first().map(|t| t.head()) else { return Ok(None) };
        if tensors.iter().any(|t| !same_dims(first, t.head())) {
            return Ok(None);
        }
        let chunk: u64 = first.grid.longest().iter().product();
        let rank = i32::try_from(first.dims.len());
        let (Ok(_), Ok(rank)) = (i32::try_from(chunk), rank) else {
            let reason = format!("a chunk of {chunk} cells is too long for a list");
            return Err(Error::format("arrow", reason, "leave `layout=chunks` away, or use npy"));
        };
        let item = |t: DataType| Arc::new(Field::new("item", t, false));
        let origin = DataType::List(item(DataType::Int64));
        let mut fields = vec![Field::new("origin", origin, false)];
        let names: Vec<Arc<str>> = first.dim_names();
        let names: Vec<&str> = names.iter().map(|n| &**n).collect();
        let metadata = serde_json::json!({ "dim_names": names }).to_string();
        let mut columns = Vec::new();
        for head in tensors.iter().map(|t| t.head()) {
            let mut name = head.name.to_string();
            let mut suffix = 1;
            while fields.iter().any(|f| *f.name() == name) {
                name = format!("{}_{suffix}", head.name);
                suffix += 1;
            }
            let data: FieldRef = Arc::new(field("item", head.dtype, head.nullable));
            let shape: FieldRef = item(DataType::Int32);
            let both = Fields::from(vec![
                Field::new("data", DataType::List(data.clone()), false),
                Field::new("shape", DataType::FixedSizeList(shape.clone(), rank), false),
            ]);
            let mut own = Field::new(name, DataType::Struct(both), false);
            let marks = [("name", EXTENSION), ("metadata", metadata.as_str())];
            own.set_metadata(
                marks.map(|(k, v)| (format!("ARROW:extension:{k}"), v.to_string())).into(),
            );
            fields.push(own);
            columns.push(Column { data, shape });
        }
        let mut schema = Schema::new(fields);
        if let Some(s) = surface {
            schema.metadata.insert(SURFACE_KEY.into(), s.name().into());
        }
        Ok(Some(Tiles { tensors: tensors.to_vec(), schema: Arc::new(schema), columns }))
    }

    pub(super) fn schema(&self) -> &SchemaRef {
        &self.schema
    }

    /// A batch of one row for each chunk, built as the iterator advances.
    pub(super) fn batches(&self) -> impl Iterator<Item = Result<RecordBatch, Error>> + '_ {
        let grid = self.tensors[0].head().grid;
        let empty = grid.shape().contains(&0);
        (0..if empty { 0 } else { grid.count() }).map(move |n| {
            let region = grid.region(&grid.unravel(n));
            let cells =
                self.tensors.iter().map(|t| read(*t, &region)).collect::<Result<Vec<_>, _>>()?;
            self.batch(&region, &cells).map_err(|source| Error::Rows { source })
        })
    }

    fn batch(&self, region: &Region, cells: &[Cells]) -> Result<RecordBatch, ArrowError> {
        let origin = Int64Array::from_iter_values(region.start.iter().map(|&n| n as i64));
        let one = |len: usize| OffsetBuffer::from_lengths([len]);
        let item = Arc::new(Field::new("item", DataType::Int64, false));
        let origin = ListArray::try_new(item, one(origin.len()), Arc::new(origin), None)?;
        let mut arrays: Vec<ArrayRef> = vec![Arc::new(origin)];
        for (c, (cells, own)) in
            self.columns.iter().zip(cells.iter().zip(self.schema.fields().iter().skip(1)))
        {
            let data = ListArray::try_new(c.data.clone(), one(cells.len()), values(cells), None)?;
            let lengths = region.shape();
            let rank = lengths.len() as i32;
            let lengths = Int32Array::from_iter_values(lengths.iter().map(|&n| n as i32));
            // A tensor without dimensions has an empty shape, in one row all the same.
            let shape = FixedSizeListArray::try_new_with_length(
                c.shape.clone(),
                rank,
                Arc::new(lengths),
                None,
                1,
            )?;
            let DataType::Struct(fields) = own.data_type() else { continue };
            let both: Vec<ArrayRef> = vec![Arc::new(data), Arc::new(shape)];
            arrays.push(Arc::new(StructArray::try_new(fields.clone(), both, None)?));
        }
        RecordBatch::try_new(self.schema.clone(), arrays)
    }
}

/// Bytes that a row of chunks takes while it is written: the cells, and Arrow's copy of them.
pub fn row_bytes(tensors: &[&dyn Windows]) -> u64 {
    let of = |t: &&dyn Windows| {
        let head = t.head();
        let cell = head.dtype.size() as u64 + u64::from(head.nullable);
        head.grid.longest().iter().fold(cell, |n, len| n.saturating_mul(*len))
    };
    tensors.iter().map(of).fold(0u64, u64::saturating_add).saturating_mul(3)
}

/// The cells of a box in row-major order.
fn read(t: &dyn Windows, region: &Region) -> Result<Cells, Error> {
    let (shape, rank) = (t.head().shape(), region.rank());
    let own = t.head().grid;
    let touched = own.overlapping(region);
    let is_chunk = touched.cells() == 1 && own.region(&touched.start) == *region;
    // The inner axes that the box spans, and one more, make a run.
    let mut inner = rank;
    while inner > 0 && region.len(inner - 1) == shape[inner - 1] {
        inner -= 1;
    }
    let outer = inner.saturating_sub(1);
    let runs: u64 = (0..outer).map(|a| region.len(a)).product();
    if runs == 1 || (is_chunk && t.has_chunks()) {
        return t.window(region);
    }
    let (mut data, mut valid) = (MutableBuffer::new(0), None);
    let mut at: Dims = region.start.clone();
    for _ in 0..runs {
        let mut run = Region { start: at.clone(), end: region.end.clone() };
        for a in 0..outer {
            run.end[a] = run.start[a] + 1;
        }
        let cells = t.window(&run)?;
        data.extend_from_slice(cells.data.as_slice());
        if let Some(v) = cells.valid {
            valid.get_or_insert_with(|| MutableBuffer::new(0)).extend_from_slice(v.as_slice());
        }
        for a in (0..outer).rev() {
            at[a] += 1;
            if at[a] < region.end[a] {
                break;
            }
            at[a] = region.start[a];
        }
    }
    Ok(Cells { dtype: t.head().dtype, data: data.into(), valid: valid.map(Into::into) })
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;
    use crate::answer::Tensor;
    use arrow::array::{Array, AsArray};
    use arrow::buffer::Buffer;
    use arrow::datatypes::{Int32Type, Int64Type};
    use tessera_planner::catalog::DimLabel;
    use tessera_planner::dtype::DType;
    use tessera_planner::grid::Grid;

    fn tensor(name: &str, shape: &[u64], chunk: &[u64], masked: bool) -> Tensor {
        let n: u64 = shape.iter().product();
        let dims = ["t", "y", "x"][..shape.len()].iter();
        let dims = dims.map(|d| DimLabel { name: Some((*d).into()), coord: None }).collect();
        let valid = (0..n).map(|i| u8::from(i % 5 != 0)).collect::<Vec<u8>>();
        Tensor::new(
            name,
            DType::Int32,
            dims,
            Grid::regular(shape, chunk),
            Buffer::from_vec((0..n as i32).collect::<Vec<_>>()),
            masked.then(|| Buffer::from_vec(valid)),
            Default::default(),
        )
        .unwrap()
    }

    #[test]
    fn rows_of_chunks_put_the_tensor_together() {
        for (shape, chunk) in [
            (&[][..], &[][..]),
            (&[7], &[3]),
            (&[4, 6], &[2, 6]),
            (&[5, 7], &[2, 3]),
            (&[3, 5, 4], &[2, 2, 3]),
            (&[2, 0], &[1, 1]),
        ] {
            let (a, b) = (tensor("a", shape, chunk, false), tensor("origin", shape, shape, true));
            let tiles = Tiles::new(&[&a, &b], Some(Surface::Tensor)).unwrap().unwrap();
            let names: Vec<&str> = tiles.schema().fields().iter().map(|f| &**f.name()).collect();
            assert_eq!(names, ["origin", "a", "origin_1"]);
            let marks = tiles.schema().field(1).metadata();
            assert_eq!(marks["ARROW:extension:name"], EXTENSION);
            let want = format!("{{\"dim_names\":{:?}}}", &["t", "y", "x"][..shape.len()]);
            assert_eq!(marks["ARROW:extension:metadata"], want.replace(", ", ","));
            let mut seen = vec![0u32; shape.iter().product::<u64>() as usize];
            for batch in tiles.batches() {
                let batch = batch.unwrap();
                let origin = batch.column(0).as_list::<i32>().value(0);
                let origin = origin.as_primitive::<Int64Type>().values().to_vec();
                for (c, masked) in [(1, false), (2, true)] {
                    let both = batch.column(c).as_struct();
                    let cells = both.column(0).as_list::<i32>().value(0);
                    let cells = cells.as_primitive::<Int32Type>();
                    let lengths = both.column(1).as_fixed_size_list().value(0);
                    let lengths = lengths.as_primitive::<Int32Type>().values().to_vec();
                    let n: i32 = lengths.iter().product();
                    assert_eq!((n as usize, lengths.len()), (cells.len(), shape.len()));
                    for i in 0..cells.len() {
                        let (mut rest, mut number, mut stride) = (i as i64, 0, 1);
                        for a in (0..shape.len()).rev() {
                            let len = i64::from(lengths[a]);
                            number += (origin[a] + rest % len) * stride;
                            (rest, stride) = (rest / len, stride * shape[a] as i64);
                        }
                        assert_eq!(i64::from(cells.value(i)), number, "{shape:?}");
                        assert_eq!(cells.is_null(i), masked && number % 5 == 0);
                        seen[number as usize] += 1;
                    }
                }
            }
            assert!(seen.iter().all(|n| *n == 2), "{shape:?}");
        }
        // Tensors with different dimensions are not a table.
        let (a, b) = (tensor("a", &[2], &[2], false), tensor("b", &[3], &[3], false));
        assert!(Tiles::new(&[&a, &b], None).unwrap().is_none());
    }
}
