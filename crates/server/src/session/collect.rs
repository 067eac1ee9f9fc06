//! Where results go: chunks are kept as they come; their bytes stay charged to the quota until the answer is let go.

use std::sync::{Arc, Mutex, PoisonError};
use tessera_exec::chunk::Chunk;
use tessera_exec::error::Error;
use tessera_exec::schedule::Sink;
use tessera_planner::grid::{ChunkIndex, Grid};
use tessera_planner::region::Region;

/// Chunks of a result by their row-major number, `None` until they come.
type Slots = Mutex<Vec<Option<Arc<Chunk>>>>;

/// Keeps every chunk of every result.
#[derive(Debug)]
pub(super) struct Collect {
    results: Vec<(Grid, Slots)>,
}

impl Collect {
    /// For results with these grids.
    pub(super) fn new(grids: Vec<Grid>) -> Self {
        let results = grids
            .into_iter()
            .map(|g| {
                let n = g.count() as usize;
                (g, Mutex::new(vec![None; n]))
            })
            .collect();
        Collect { results }
    }

    /// The chunks of each result, by their row-major number.
    ///
    /// # Errors
    /// A chunk that never came: a fault of ours.
    pub(super) fn finish(&self) -> Result<Vec<Vec<Arc<Chunk>>>, Error> {
        self.results
            .iter()
            .map(|(_, chunks)| {
                let mut chunks = chunks.lock().unwrap_or_else(PoisonError::into_inner);
                std::mem::take(&mut *chunks)
                    .into_iter()
                    .map(|c| {
                        c.ok_or_else(|| Error::Broken {
                            what: "a chunk of a result is missing".into(),
                        })
                    })
                    .collect()
            })
            .collect()
    }
}

impl Sink for Collect {
    fn chunk(
        &self,
        result: usize,
        index: ChunkIndex,
        _region: Region,
        chunk: Arc<Chunk>,
    ) -> Result<(), Error> {
        let (grid, chunks) = &self.results[result];
        let number = grid.ravel(&index) as usize;
        chunks.lock().unwrap_or_else(PoisonError::into_inner)[number] = Some(chunk);
        Ok(())
    }
}
