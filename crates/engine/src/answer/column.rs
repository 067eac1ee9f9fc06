//! A column of rows as a tensor of one axis, for formats that hold only arrays.

use super::Tensor;
use crate::error::Error;
use arrow::array::{Array, RecordBatch};
use arrow::buffer::Buffer;
use arrow::compute::concat;
use arrow::datatypes::Schema;
use tessera_cells::lift::dtype_of;
use tessera_cells::type_name;
use tessera_planner::catalog::DimLabel;
use tessera_planner::grid::Grid;

impl Tensor {
    /// Each column of rows as a tensor `[row]`; NULL is a masked cell.
    ///
    /// # Errors
    /// A column that is not a number, a truth value or a time.
    pub fn from_rows(schema: &Schema, batches: &[RecordBatch]) -> Result<Vec<Tensor>, Error> {
        (0..schema.fields().len()).map(|c| column(schema, batches, c)).collect()
    }
}

fn column(schema: &Schema, batches: &[RecordBatch], c: usize) -> Result<Tensor, Error> {
    let field = schema.field(c);
    let dtype = dtype_of(field.data_type()).ok_or_else(|| Error::Format {
        format: "npy",
        reason: format!("column `{}` is {}", field.name(), type_name(field.data_type())),
        hint: Some("select numbers only".into()),
    })?;
    let arrays: Vec<&dyn Array> = batches.iter().map(|b| b.column(c).as_ref()).collect();
    let empty = arrow::array::new_empty_array(field.data_type());
    let array = if arrays.is_empty() {
        empty
    } else {
        concat(&arrays).map_err(|source| Error::Rows { source })?
    };
    let rows = array.len();
    let data = if let Some(b) = array.as_any().downcast_ref::<arrow::array::BooleanArray>() {
        Buffer::from_vec(b.values().iter().map(u8::from).collect::<Vec<u8>>())
    } else {
        let (offset, size) = (array.offset(), dtype.size());
        match array.to_data().buffers() {
            [b] => b.slice_with_length(offset * size, rows * size),
            _ => {
                return Err(Error::Internal { what: format!("a column of {dtype} without cells") });
            }
        }
    };
    let valid =
        array.nulls().map(|n| Buffer::from_vec(n.iter().map(u8::from).collect::<Vec<u8>>()));
    let dims = vec![DimLabel { name: Some("row".into()), coord: None }];
    let grid = Grid::single(&[rows as u64]);
    Tensor::new(field.name().as_str(), dtype, dims, grid, data, valid, Default::default())
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;
    use crate::answer::Cell;
    use arrow::array::{ArrayRef, BooleanArray, Float64Array, StringArray};
    use std::sync::Arc;

    #[test]
    fn columns_become_tensors() {
        let x: ArrayRef = Arc::new(Float64Array::from(vec![Some(1.5), None, Some(3.0), Some(4.0)]));
        let b: ArrayRef = Arc::new(BooleanArray::from(vec![true, false, true, true]));
        let batch = RecordBatch::try_from_iter([("x", x), ("b", b)]).unwrap();
        // Slices have offsets of their own.
        for batches in [vec![batch.slice(1, 3)], vec![batch.slice(1, 1), batch.slice(2, 2)]] {
            let t = Tensor::from_rows(&batch.schema(), &batches).unwrap();
            let cells = |i: usize| (0..3).map(|c| t[i].cell(c)).collect::<Vec<_>>();
            assert_eq!(cells(0), [Cell::Null, Cell::F64(3.0), Cell::F64(4.0)]);
            assert_eq!(cells(1), [Cell::Bool(false), Cell::Bool(true), Cell::Bool(true)]);
        }
        assert!(Tensor::from_rows(&batch.schema(), &[]).unwrap()[0].is_empty());
        let s: ArrayRef = Arc::new(StringArray::from(vec!["a"]));
        let text = RecordBatch::try_from_iter([("s", s)]).unwrap();
        let e = Tensor::from_rows(&text.schema(), &[text]).unwrap_err();
        assert_eq!(e.to_string(), "npy cannot hold this result: column `s` is text");
    }
}
