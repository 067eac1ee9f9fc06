//! Copies the chunks of a result into one.

use super::{Chunk, Field};
use crate::error::Error;
use crate::pool::Pool;
use crate::quota::Quota;
use crate::task::copy_common;
use std::sync::Arc;
use tessera_kernels::copy::Stores;
use tessera_planner::grid::Grid;
use tessera_planner::region::Region;

/// Returns the cells of all chunks of a tensor as one row-major chunk, charged to the quota. Each chunk is dropped
/// once its cells are copied. A single chunk is returned as it is.
///
/// `chunks` are in row-major order; chunks of a tensor may have trailing axes of length 1 that `grid` does not have.
///
/// # Errors
/// [`Error::ResultTooLarge`] if the copy exceeds the quota, [`Error::MemoryTaken`] if others hold the memory.
pub fn dense(
    grid: &Grid,
    mut chunks: Vec<Arc<Chunk>>,
    pool: &Arc<Pool>,
    quota: &Arc<Quota>,
) -> Result<Arc<Chunk>, Error> {
    if chunks.len() == 1 {
        return chunks.pop().ok_or_else(|| Error::Broken { what: "a chunk is missing".into() });
    }
    let shape = grid.shape();
    let whole = Region::whole(&shape);
    let dtypes: Vec<_> =
        chunks.first().map_or_else(Vec::new, |c| c.fields().iter().map(Field::dtype).collect());
    let cell: u64 = dtypes.iter().map(|d| d.size() as u64).sum();
    let bytes = whole.cells() * cell;
    let charge = quota.account().reserve(bytes)?;
    let mut buffers: Vec<_> =
        dtypes.iter().map(|d| pool.take((whole.cells() * d.size() as u64) as usize)).collect();
    for (number, chunk) in chunks.drain(..).enumerate() {
        let from = grid.region(&grid.unravel(number as u64));
        copy_common(&chunk, &from, &whole, &mut buffers, Stores::Plain)?;
    }
    let fields = dtypes.into_iter().zip(buffers).map(|(d, b)| Field::from_pooled(d, b));
    let mut chunk = Chunk::new(&shape, fields.collect::<Result<Vec<_>, _>>()?)?;
    chunk.charge(charge);
    Ok(Arc::new(chunk))
}
