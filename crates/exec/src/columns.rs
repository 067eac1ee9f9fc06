//! Elementwise programs over columns of rows: the kernels of tensors for values that are in no chunk.
//!
//! ```text
//!   columns   x  n values and a bitmap of NULL        y  one value, the same for all rows
//!   inputs    values and validity, a byte each        stride 0
//!   result    n values; NULL as the masks of a tensor
//! ```

use crate::chunk::{Chunk, Field, arrow_type};
use crate::error::Error;
use arrow::array::{Array, ArrayData, ArrayRef, AsArray, new_empty_array};
use arrow::buffer::MutableBuffer;
use std::borrow::Cow;
use std::cell::RefCell;
use std::sync::Arc;
use tessera_kernels::fused::{Compiled, OutputFields, Scratch, StridedInput, compile};
use tessera_planner::dtype::DType;
use tessera_planner::fuse;
use tessera_planner::ir::{Graph, NodeId};
use tessera_planner::plan::FusedInput;
use tessera_planner::region::Region;

thread_local! {
    static SCRATCH: RefCell<Scratch> = RefCell::new(Scratch::new());
}

/// A compiled elementwise function of columns.
#[derive(Debug)]
pub struct Elementwise {
    compiled: Compiled,
    inputs: Vec<ColumnInput>,
    columns: Vec<DType>,
    dtype: DType,
    nullable: bool,
}

/// The values of a column, or their validity.
#[derive(Debug, Clone, Copy)]
struct ColumnInput {
    column: usize,
    is_mask: bool,
}

impl Elementwise {
    /// Compiles a node of a graph, whose columns are nodes of the shape `[1]`, as it is itself.
    ///
    /// # Errors
    /// [`Error::Plan`] if the node is not an elementwise function of the columns.
    pub fn new(graph: &Graph, root: NodeId, columns: &[NodeId]) -> Result<Self, Error> {
        let fused = fuse::program(graph, root, columns)?;
        let node = graph.node(root);
        let compiled = compile(&fused, node.shape.len())?;
        let part = |input: &FusedInput| match input {
            FusedInput::Field { input, field } => {
                Ok(ColumnInput { column: *input as usize, is_mask: *field == 1 })
            }
            FusedInput::Index { .. } => {
                Err(Error::Broken { what: "a function of columns reads positions".into() })
            }
        };
        Ok(Elementwise {
            compiled,
            inputs: fused.inputs.iter().map(part).collect::<Result<_, _>>()?,
            columns: columns.iter().map(|&column| graph.node(column).dtype).collect(),
            dtype: node.dtype,
            nullable: node.nullable,
        })
    }

    /// Type of the result.
    pub fn dtype(&self) -> DType {
        self.dtype
    }

    /// True if a value of the result can be NULL.
    pub fn nullable(&self) -> bool {
        self.nullable
    }

    /// Computes the function for each of `rows` rows. A column has a value for each row, or one for all rows, in the
    /// Arrow type of its dtype ([`arrow_type`]).
    ///
    /// # Errors
    /// [`Error::Kernel`] for an argument outside of the domain of an operation; [`Error::Broken`] for columns of other
    /// types or lengths.
    pub fn run(&self, columns: &[ArrayRef], rows: usize) -> Result<ArrayRef, Error> {
        if rows == 0 {
            return Ok(new_empty_array(&arrow_type(self.dtype)));
        }
        self.check(columns, rows)?;
        let data: Vec<ArrayData> = columns.iter().map(|column| column.to_data()).collect();
        let mut cells: Vec<(Cow<'_, [u8]>, DType)> = Vec::with_capacity(self.inputs.len());
        for &ColumnInput { column, is_mask } in &self.inputs {
            cells.push(match is_mask {
                true => (validity(&columns[column]), DType::Bool),
                false => {
                    let dtype = self.columns[column];
                    (values(&columns[column], &data[column], dtype)?, dtype)
                }
            });
        }
        let one = |(bytes, dtype): &(Cow<'_, [u8]>, DType)| bytes.len() == dtype.size();
        let strides: Vec<[i64; 1]> = cells.iter().map(|cell| [i64::from(!one(cell))]).collect();
        let inputs: Vec<StridedInput<'_>> = cells
            .iter()
            .zip(&strides)
            .map(|((bytes, dtype), strides)| StridedInput {
                bytes,
                offset: 0,
                strides,
                dtype: *dtype,
            })
            .collect();
        let dtypes = [self.dtype, DType::Bool];
        let dtypes = &dtypes[..1 + usize::from(self.nullable)];
        let mut buffers: Vec<MutableBuffer> =
            dtypes.iter().map(|d| MutableBuffer::from_len_zeroed(rows * d.size())).collect();
        let fields = buffers.iter_mut().map(|buffer| buffer.as_slice_mut()).collect();
        let mut outputs = [OutputFields { fields, stream: false }];
        let shape = [rows as u64];
        SCRATCH.with(|scratch| {
            self.compiled.run(
                &Region::whole(&shape),
                &shape,
                &inputs,
                &mut outputs,
                &mut scratch.borrow_mut(),
                &|| false,
            )
        })?;
        drop(outputs);
        let fields = dtypes.iter().zip(buffers).map(|(&d, buffer)| Field::new(d, buffer.into()));
        let chunk = Chunk::new(&shape, fields.collect::<Result<Vec<_>, _>>()?)?;
        Arc::new(chunk).to_array()
    }

    fn check(&self, columns: &[ArrayRef], rows: usize) -> Result<(), Error> {
        let fits = |(column, dtype): (&ArrayRef, &DType)| {
            *column.data_type() == arrow_type(*dtype) && (column.len() == rows || column.len() == 1)
        };
        if columns.len() == self.columns.len() && columns.iter().zip(&self.columns).all(fits) {
            return Ok(());
        }
        let given: Vec<String> =
            columns.iter().map(|c| format!("{} {}", c.len(), c.data_type())).collect();
        let what = format!("{rows} rows of {:?} are given as {}", self.columns, given.join(", "));
        Err(Error::Broken { what })
    }
}

/// The values of a column, row by row.
fn values<'a>(
    column: &ArrayRef,
    data: &'a ArrayData,
    dtype: DType,
) -> Result<Cow<'a, [u8]>, Error> {
    if let Some(flags) = column.as_boolean_opt() {
        return Ok(flags.values().iter().map(u8::from).collect());
    }
    let (size, offset) = (dtype.size(), data.offset());
    let bytes = data.buffers().first().map(|buffer| buffer.as_slice());
    let own = bytes.and_then(|bytes| bytes.get(offset * size..(offset + data.len()) * size));
    match own {
        Some(bytes) => Ok(Cow::Borrowed(bytes)),
        None => Err(Error::Broken { what: format!("a column of {dtype} has too few bytes") }),
    }
}

/// The validity of a column without NULL.
const VALID: &[u8] = &[1];

/// A byte for each row, 0 for NULL; one byte if no value is NULL.
fn validity(column: &ArrayRef) -> Cow<'static, [u8]> {
    match column.nulls() {
        Some(nulls) if nulls.null_count() > 0 => nulls.iter().map(u8::from).collect(),
        _ => Cow::Borrowed(VALID),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]
    use super::*;
    use arrow::array::{BooleanArray, Float32Array, Float64Array};
    use tessera_planner::build::Builder;
    use tessera_planner::catalog::SourceRef;
    use tessera_planner::config::Config;
    use tessera_planner::grid::Grid;
    use tessera_planner::ir::MapOp;
    use tessera_planner::program::ScalarOp;
    use tessera_planner::scalar::Scalar;

    fn column(b: &mut Builder, name: &str, dtype: DType) -> NodeId {
        let source = SourceRef {
            url: "temp:columns".into(),
            path: name.into(),
            dtype,
            shape: [1].as_slice().into(),
            grid: Grid::single(&[1]),
            nullable: true,
            version: None,
            plain: false,
        };
        b.load(Arc::new(source)).unwrap()
    }

    #[test]
    fn columns_repeat_and_null_stays() {
        let mut b = Builder::new(Config::default());
        let columns = [DType::Bool, DType::Float64, DType::Float64, DType::Float32]
            .map(|dtype| column(&mut b, &dtype.name(), dtype));
        let [c, x, y, _] = columns;
        let half = b.constant(Scalar::f64(0.5)).unwrap();
        let sum = b.map(ScalarOp::Add, &[y, half]).unwrap();
        let root = b.map_op(MapOp::Scalar(ScalarOp::Where), &[c, x, sum]).unwrap();
        let function = Elementwise::new(&b.graph, root, &columns).unwrap();
        assert_eq!((function.dtype(), function.nullable()), (DType::Float64, true));
        // More rows than a tile, and offsets into the buffers; the unused column has one value.
        let n = 150;
        let c: BooleanArray = (0..n + 3).map(|i| (i % 7 != 0).then_some(i % 2 == 0)).collect();
        let x: Float64Array = (0..n + 3).map(|i| (i % 5 != 0).then_some(i as f64)).collect();
        let given: [ArrayRef; 4] = [
            Arc::new(c.slice(3, n)),
            Arc::new(x.slice(3, n)),
            Arc::new(Float64Array::from(vec![7.0])),
            Arc::new(Float32Array::from(vec![None])),
        ];
        let got = function.run(&given, n).unwrap();
        let want: Float64Array = (3..n + 3)
            .map(|i| match (i % 7, i % 2) {
                (0, _) => None,
                (_, 0) => (i % 5 != 0).then_some(i as f64),
                _ => Some(7.5),
            })
            .collect();
        assert_eq!(got.as_primitive::<arrow::datatypes::Float64Type>(), &want);
        assert_eq!(function.run(&given, 0).unwrap().len(), 0);
        assert!(matches!(function.run(&given[..3], n), Err(Error::Broken { .. })));
        assert!(matches!(function.run(&given, n + 1), Err(Error::Broken { .. })));
    }
}
