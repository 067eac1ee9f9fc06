//! Sinks for results: chunks are retained as they come, in memory, charged to the quota until the answer is dropped, or
//! in a file; or their cells are copied to their places in one piece of memory.

use crate::answer::scratch::{Scratch, ScratchFile};
use crate::answer::{Chunks, Filling};
use crate::error::Error as ServerError;
use std::sync::{Arc, Mutex, PoisonError};
use tessera_exec::chunk::Chunk;
use tessera_exec::error::Error;
use tessera_exec::pool::PooledBuf;
use tessera_exec::schedule::Sink;
use tessera_planner::grid::{ChunkIndex, Grid};
use tessera_planner::region::Region;

/// Chunks of a result by their row-major number, `None` until they come.
type Slots = Mutex<Vec<Option<Arc<Chunk>>>>;

/// Retains every chunk of every result in memory.
#[derive(Debug)]
pub(super) struct Collect {
    results: Vec<(Grid, Slots)>,
}

impl Collect {
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
    /// A chunk is missing: an internal error.
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

    fn waits(&self) -> bool {
        false
    }
}

/// Has every chunk of every result made in its place in one piece of memory, or copies it there and drops it.
#[derive(Debug)]
pub(super) struct Join(pub(super) Vec<Filling>);

impl Join {
    /// The results, each in one piece.
    ///
    /// # Errors
    /// A chunk is missing: an internal error.
    pub(super) fn finish(&self) -> Result<Vec<Chunks>, Error> {
        self.0.iter().map(|filling| Ok(Chunks::Piece(Arc::new(filling.finish()?)))).collect()
    }
}

impl Sink for Join {
    fn chunk(
        &self,
        result: usize,
        index: ChunkIndex,
        _region: Region,
        chunk: Arc<Chunk>,
    ) -> Result<(), Error> {
        let filling = self.0.get(result).ok_or_else(|| Error::Broken {
            what: format!("result {result} of a plan that fills {} tensors", self.0.len()),
        })?;
        filling.put(&index, &chunk)
    }

    fn place(&self, result: usize, index: &[u64]) -> Option<PooledBuf> {
        self.0.get(result)?.place(index)
    }

    fn waits(&self) -> bool {
        false
    }
}

/// Writes every chunk of every result to a file, and drops the chunk.
#[derive(Debug)]
pub(super) struct Store {
    /// Offsets of the chunks of each result, by their row-major number.
    results: Vec<(Grid, Mutex<Vec<Option<u64>>>)>,
    file: Arc<ScratchFile>,
    /// The full error of a failed write.
    failed: Mutex<Option<ServerError>>,
}

impl Store {
    /// A sink for results with these grids.
    ///
    /// # Errors
    /// The directory cannot be written.
    pub(super) fn new(grids: Vec<Grid>, scratch: &Arc<Scratch>) -> Result<Self, ServerError> {
        let results = grids
            .into_iter()
            .map(|g| {
                let n = g.count() as usize;
                (g, Mutex::new(vec![None; n]))
            })
            .collect();
        Ok(Store { results, file: Arc::new(scratch.file()?), failed: Mutex::default() })
    }

    /// Takes the error of a failed write, if there is one.
    pub(super) fn failure(&self) -> Option<ServerError> {
        self.failed.lock().unwrap_or_else(PoisonError::into_inner).take()
    }

    /// The chunks of each result.
    ///
    /// # Errors
    /// A chunk is missing: an internal error.
    pub(super) fn finish(&self) -> Result<Vec<Chunks>, ServerError> {
        let missing = || ServerError::Internal { what: "a chunk of a result is missing".into() };
        self.results
            .iter()
            .map(|(_, starts)| {
                let mut starts = starts.lock().unwrap_or_else(PoisonError::into_inner);
                let starts: Option<Vec<u64>> = std::mem::take(&mut *starts).into_iter().collect();
                Ok(Chunks::File(self.file.clone(), starts.ok_or_else(missing)?))
            })
            .collect()
    }
}

impl Sink for Store {
    fn chunk(
        &self,
        result: usize,
        index: ChunkIndex,
        _region: Region,
        chunk: Arc<Chunk>,
    ) -> Result<(), Error> {
        let (grid, starts) = &self.results[result];
        let parts: Vec<&[u8]> = chunk.fields().iter().map(|f| f.buffer().as_slice()).collect();
        let start = self.file.append(&parts).map_err(|e| {
            let reason = e.to_string();
            let mut failed = self.failed.lock().unwrap_or_else(PoisonError::into_inner);
            failed.get_or_insert(e);
            Error::ReceiverGone { reason }
        })?;
        let number = grid.ravel(&index) as usize;
        starts.lock().unwrap_or_else(PoisonError::into_inner)[number] = Some(start);
        Ok(())
    }

    fn drains(&self) -> bool {
        true
    }
}
