//! A result as it was computed: chunk by chunk.

use super::Tensor;
use crate::error::Error;
use std::sync::Arc;
use tessera_exec::chunk::{Chunk, dense};
use tessera_exec::pool::Pool;
use tessera_exec::quota::Quota;
use tessera_frontend::Labels;
use tessera_planner::grid::Grid;

/// A labelled tensor whose cells lie in chunks, which stay charged to the quota as long as it lives.
#[derive(Debug, Clone)]
pub struct Chunked {
    pub(crate) labels: Labels,
    pub(crate) grid: Grid,
    /// In row-major order of the grid.
    pub(crate) chunks: Vec<Arc<Chunk>>,
    pub(crate) pool: Arc<Pool>,
    pub(crate) quota: Arc<Quota>,
}

impl Chunked {
    /// The cells in one piece. A tensor of one chunk is not copied; of others each chunk is let go once it is copied.
    ///
    /// # Errors
    /// `result_too_large` if the quota has no room for the copy.
    pub fn whole(self) -> Result<Tensor, Error> {
        let l = self.labels;
        let chunk =
            dense(&self.grid, self.chunks, &self.pool, &self.quota).map_err(Error::stage)?;
        let data = chunk.held(0).map_err(Error::stage)?;
        let valid = if l.nullable { Some(chunk.held(1).map_err(Error::stage)?) } else { None };
        Tensor::new(l.name, l.dtype, l.dims, self.grid, data, valid, l.attrs)
    }
}
