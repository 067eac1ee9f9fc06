//! Arrays that live outside of plans: tensors in memory, and parts of statements that later parts read.

use super::FinishedChunk;
use crate::chunk::Chunk;
use crate::error::Error;
use crate::quota::{Account, Charge, Quota};
use crate::schedule::Sink;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard};
use tessera_planner::grid::{ChunkIndex, Grid};
use tessera_planner::region::Region;
use tessera_storage::lock;

/// An array whose chunks are in memory or, once a store has adopted it and memory is short, in files.
#[derive(Debug)]
pub struct Resident {
    /// Its cells and chunks.
    pub grid: Grid,
    /// By row-major number.
    slots: Vec<Mutex<Option<FinishedChunk>>>,
    /// Logical time of the last read.
    touched: AtomicU64,
    /// True if its chunks are dropped, and not spilled, when memory is short.
    is_cache: bool,
    /// Charge for the bookkeeping of its chunks, if they are many.
    _notes: Option<Charge>,
}

/// Bookkeeping bytes of a chunk: its slot, its description, and the allocator's overhead.
pub(crate) const NOTE_BYTES: u64 = 512;

/// Bookkeeping bytes that are allowed in any case: the limits of tests leave less than a plan needs.
const NOTES_LEAST: u64 = 32 << 20;

/// Returns the bytes of bookkeeping to charge. They are bounded by the larger of a quarter of the budget and
/// [`NOTES_LEAST`]; at most a quarter of the budget is charged.
pub(crate) fn counted_notes(chunks: u64, bytes: u64, quota: &Quota) -> Result<u64, Error> {
    let quarter = quota.limit() / 4;
    let limit_bytes = quarter.max(NOTES_LEAST);
    if bytes > limit_bytes {
        return Err(Error::ChunkNotes { chunks, bytes_: bytes, limit_bytes });
    }
    Ok(bytes.min(quarter))
}

/// Chunks of one array, or operands of one statement, whose bookkeeping is not charged.
pub(crate) const NOTES_FREE: u64 = 4096;

/// Counts reads of all arrays.
static CLOCK: AtomicU64 = AtomicU64::new(1);

impl Resident {
    /// Creates an array of chunks in row-major order.
    pub fn new(grid: Grid, chunks: Vec<Arc<Chunk>>) -> Arc<Self> {
        let slots =
            chunks.into_iter().map(|c| Mutex::new(Some(FinishedChunk::Memory(c)))).collect();
        Arc::new(Resident {
            grid,
            slots,
            touched: AtomicU64::new(0),
            is_cache: false,
            _notes: None,
        })
    }

    /// Creates an array without chunks; the caller bounds their number.
    pub fn empty(grid: Grid) -> Arc<Self> {
        Resident::noted(grid, None, false)
    }

    /// Creates an array without chunks for a cache: a store that adopts it drops chunks when memory is short.
    pub fn cache(grid: Grid) -> Arc<Self> {
        Resident::noted(grid, None, true)
    }

    /// Creates an array without chunks; their bookkeeping is charged to the account.
    ///
    /// # Errors
    /// [`Error::ChunkNotes`] if that is too much for the budget; errors of [`Account::reserve`].
    pub fn charged(grid: Grid, account: &Arc<Account>) -> Result<Arc<Self>, Error> {
        let chunks = grid.count();
        let bytes = chunks.saturating_sub(NOTES_FREE).saturating_mul(NOTE_BYTES);
        let counted = counted_notes(chunks, bytes, account.quota())?;
        let notes = (counted > 0).then(|| account.reserve(counted)).transpose()?;
        Ok(Resident::noted(grid, notes, false))
    }

    fn noted(grid: Grid, notes: Option<Charge>, is_cache: bool) -> Arc<Self> {
        let slots = (0..grid.count()).map(|_| Mutex::default()).collect();
        Arc::new(Resident { grid, slots, touched: AtomicU64::new(0), is_cache, _notes: notes })
    }

    fn slot(&self, number: u64) -> Option<MutexGuard<'_, Option<FinishedChunk>>> {
        let slot = self.slots.get(number as usize)?;
        Some(lock(slot))
    }

    /// Stores a chunk in memory.
    pub fn put(&self, number: u64, chunk: Arc<Chunk>) {
        self.put_held(number, FinishedChunk::Memory(chunk));
    }

    /// Stores a chunk that is in memory or in a file.
    pub fn put_held(&self, number: u64, held: FinishedChunk) {
        if let Some(mut slot) = self.slot(number) {
            *slot = Some(held);
        }
    }

    /// Bytes of its cells in memory, and in files.
    pub fn places(&self) -> (u64, u64) {
        let mut sum = (0, 0);
        for n in 0..self.slots.len() as u64 {
            match self.slot(n).as_deref() {
                Some(Some(FinishedChunk::Memory(chunk))) => sum.0 += chunk.bytes(),
                Some(Some(FinishedChunk::File(file))) => sum.1 += file.bytes(),
                _ => {}
            }
        }
        sum
    }

    /// Returns a chunk in memory or in a file; `None` if it was never stored.
    pub fn held(&self, number: u64) -> Option<FinishedChunk> {
        self.touched.store(CLOCK.fetch_add(1, Relaxed), Relaxed);
        self.slot(number)?.clone()
    }

    /// True if a chunk is stored, in memory or in a file.
    pub fn has(&self, number: u64) -> bool {
        self.slot(number).is_some_and(|slot| slot.is_some())
    }

    /// Removes a chunk and returns it.
    pub fn take(&self, number: u64) -> Option<FinishedChunk> {
        self.slot(number)?.take()
    }

    /// True if its chunks are dropped, and not spilled, when memory is short.
    pub(crate) fn is_cache(&self) -> bool {
        self.is_cache
    }

    /// Bytes of all cells, in memory and in files.
    pub fn bytes(&self) -> u64 {
        let bytes =
            |n| self.slot(n).and_then(|s| s.as_ref().map(FinishedChunk::bytes)).unwrap_or(0);
        (0..self.slots.len() as u64).map(bytes).sum()
    }

    /// True if all chunks are stored.
    pub fn is_complete(&self) -> bool {
        (0..self.slots.len() as u64).all(|n| self.slot(n).is_some_and(|s| s.is_some()))
    }

    /// True if all chunks are stored and no cell is masked.
    pub fn is_unmasked(&self) -> bool {
        (0..self.slots.len() as u64).all(|n| match self.slot(n).as_deref() {
            Some(Some(FinishedChunk::Memory(chunk))) => chunk.is_unmasked(),
            Some(Some(FinishedChunk::File(file))) => file.is_unmasked(),
            _ => false,
        })
    }

    /// Drops the masks of chunks in memory without other holders, because no cell is masked. Such a chunk is then
    /// charged for its values alone; the remaining masks are not read.
    pub fn drop_masks(&self) {
        for n in 0..self.slots.len() as u64 {
            if let Some(mut slot) = self.slot(n)
                && let Some(FinishedChunk::Memory(chunk)) = &mut *slot
                && let Some(chunk) = Arc::get_mut(chunk)
            {
                chunk.drop_mask();
            }
        }
    }

    /// Logical time of the last read.
    pub(crate) fn touched(&self) -> u64 {
        self.touched.load(Relaxed)
    }

    /// Calls `f` with each chunk in memory that could be spilled, and its number.
    ///
    /// One holder besides the array is allowed: a plan that made the chunk for its other readers drops it too.
    pub(crate) fn in_memory(&self, f: &mut dyn FnMut(u64, &Chunk)) {
        for n in 0..self.slots.len() as u64 {
            if let Some(slot) = self.slot(n)
                && let Some(FinishedChunk::Memory(chunk)) = &*slot
                && chunk.charged() > 0
                && Arc::strong_count(chunk) <= 2
            {
                f(n, chunk);
            }
        }
    }

    /// Returns a chunk if it is in memory.
    pub(crate) fn chunk(&self, number: u64) -> Option<Arc<Chunk>> {
        match self.slot(number)?.as_ref()? {
            FinishedChunk::Memory(chunk) => Some(chunk.clone()),
            FinishedChunk::File(_) => None,
        }
    }

    /// Replaces a chunk in memory by its file, if it has one, and returns the chunk.
    pub(crate) fn move_to_file(&self, number: u64) -> Option<FinishedChunk> {
        let mut slot = self.slot(number)?;
        match slot.as_ref()? {
            FinishedChunk::Memory(chunk) => {
                let file = FinishedChunk::File(chunk.file()?.clone());
                slot.replace(file)
            }
            FinishedChunk::File(_) => None,
        }
    }
}

/// A sink that fills arrays with the results of a plan, one for each.
#[derive(Debug)]
pub struct Fill(pub Vec<Arc<Resident>>);

impl Sink for Fill {
    fn chunk(
        &self,
        result: usize,
        index: ChunkIndex,
        _region: Region,
        chunk: Arc<Chunk>,
    ) -> Result<(), Error> {
        let array = self.0.get(result).ok_or_else(|| Error::Broken {
            what: format!("result {result} of a plan that fills {} arrays", self.0.len()),
        })?;
        // A product's index has more axes than the array: last axes of length 1, one for each summed axis.
        let rank = array.grid.axes.len().min(index.len());
        array.put(array.grid.ravel(&index[..rank]), chunk);
        Ok(())
    }

    fn waits(&self) -> bool {
        false
    }
}
