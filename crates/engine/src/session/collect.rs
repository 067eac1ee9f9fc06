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

/// The internal error of a sink that is finished too early.
const MISSING: &str = "a chunk of a result is missing";

/// One value for each chunk of each result, by row-major number; `None` until the chunk arrives.
#[derive(Debug)]
struct Slots<T>(Vec<(Grid, Mutex<Vec<Option<T>>>)>);

impl<T: Clone> Slots<T> {
    fn new(grids: Vec<Grid>) -> Self {
        let slots = grids.into_iter().map(|grid| {
            let n = grid.count() as usize;
            (grid, Mutex::new(vec![None; n]))
        });
        Slots(slots.collect())
    }

    fn set(&self, result: usize, index: &[u64], value: T) {
        let (grid, slots) = &self.0[result];
        let number = grid.ravel(index) as usize;
        slots.lock().unwrap_or_else(PoisonError::into_inner)[number] = Some(value);
    }

    /// Takes all of them; `None` if one is missing.
    fn take(&self) -> Option<Vec<Vec<T>>> {
        let taken = self.0.iter().map(|(_, slots)| -> Option<Vec<T>> {
            let mut slots = slots.lock().unwrap_or_else(PoisonError::into_inner);
            std::mem::take(&mut *slots).into_iter().collect()
        });
        taken.collect()
    }
}

/// Retains every chunk of every result in memory.
#[derive(Debug)]
pub(super) struct Collect(Slots<Arc<Chunk>>);

impl Collect {
    pub(super) fn new(grids: Vec<Grid>) -> Self {
        Collect(Slots::new(grids))
    }

    /// The chunks of each result, by their row-major number.
    ///
    /// # Errors
    /// A chunk is missing: an internal error.
    pub(super) fn finish(&self) -> Result<Vec<Vec<Arc<Chunk>>>, Error> {
        self.0.take().ok_or_else(|| Error::Broken { what: MISSING.into() })
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
        self.0.set(result, &index, chunk);
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
    starts: Slots<u64>,
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
        let (starts, file) = (Slots::new(grids), Arc::new(scratch.file()?));
        Ok(Store { starts, file, failed: Mutex::default() })
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
        let missing = || ServerError::Internal { what: MISSING.into() };
        let starts = self.starts.take().ok_or_else(missing)?;
        Ok(starts.into_iter().map(|starts| Chunks::File(self.file.clone(), starts)).collect())
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
        let parts: Vec<&[u8]> = chunk.fields().iter().map(|f| f.buffer().as_slice()).collect();
        let start = self.file.append(&parts).map_err(|e| {
            let reason = e.to_string();
            let mut failed = self.failed.lock().unwrap_or_else(PoisonError::into_inner);
            failed.get_or_insert(e);
            Error::ReceiverGone { reason }
        })?;
        self.starts.set(result, &index, start);
        Ok(())
    }

    fn drains(&self) -> bool {
        true
    }
}
