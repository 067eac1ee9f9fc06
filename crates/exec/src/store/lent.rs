//! Arrays of the program that embeds the engine, read where they are.

use crate::error::Error;
use arrow::buffer::Buffer;
use smallvec::SmallVec;
use tessera_kernels::copy::{Stores, Strided, store_box};
use tessera_planner::dtype::DType;
use tessera_planner::region::Region;

/// A strided array in memory that the engine does not own, and does not charge.
#[derive(Debug)]
pub struct Lent {
    dtype: DType,
    bytes: Buffer,
    /// The element at the first cell.
    offset: i64,
    /// Elements from a cell to the next along each axis; negative goes backward, 0 repeats.
    strides: SmallVec<[i64; 6]>,
}

impl Lent {
    /// The cell at index `i` is element `offset + Σ strides[a] * i[a]` of `bytes`.
    pub fn new(dtype: DType, bytes: Buffer, offset: i64, strides: &[i64]) -> Self {
        Lent { dtype, bytes, offset, strides: strides.into() }
    }

    /// Copies a box to row-major cells.
    ///
    /// # Errors
    /// The memory does not hold the box.
    pub fn copy(&self, region: &Region, to: &mut [u8]) -> Result<(), Error> {
        self.store(region, to, Stores::Plain)
    }

    /// [`Lent::copy`] with a kind of stores.
    pub(crate) fn store(
        &self,
        region: &Region,
        to: &mut [u8],
        stores: Stores,
    ) -> Result<(), Error> {
        let start = self.strides.iter().zip(&region.start);
        let offset = start.fold(self.offset, |sum, (stride, at)| sum + stride * *at as i64);
        let from = Strided { bytes: self.bytes.as_slice(), offset, strides: &self.strides };
        let shape = region.shape();
        let mut steps: SmallVec<[i64; 6]> = SmallVec::from_elem(1, shape.len());
        for axis in (1..shape.len()).rev() {
            steps[axis - 1] = steps[axis] * shape[axis] as i64;
        }
        Ok(store_box(self.dtype.size(), &shape, from, to, (0, &steps), stores)?)
    }
}
