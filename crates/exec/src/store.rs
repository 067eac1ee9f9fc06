//! Chunks on disk: where finished chunks wait when memory is short, and all else that a process puts aside.
//!
//! ```text
//!   spill_dir/tessera-spill-<process>-<n>/     made when it is needed first, removed with the store
//!     lock                                     held as long as the process lives: tells the living from the dead
//!     17.chunk                                 one file for each spilled chunk, unlinked with its last holder
//!     18.rows                                  what sorts, joins and groups of rows put aside
//!     19.output                                names an output that is not whole yet, which would be left with it
//!     upload-…/                                uploads on their way
//! ```
//! Results that wait to be read are files there that have no name. The bytes of all files together stay below a limit;
//! room is taken before a file is begun. What processes left that were killed is removed by the next one that starts.

mod directory;
mod file;
mod resident;

pub use directory::{Directory, PREFIX};
pub(crate) use file::staging_of;
pub use file::{Reader, Spilled};
pub use resident::{Fill, Resident};
pub(crate) use resident::{NOTE_BYTES, NOTES_FREE, counted_notes};

use crate::chunk::Chunk;
use crate::error::Error;
use crate::quota::Quota;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, PoisonError, Weak};

/// A bounded place for chunks on disk.
#[derive(Debug)]
pub struct Store {
    parent: PathBuf,
    limit: u64,
    /// The directory, once something was spilled.
    directory: Mutex<Option<Arc<Directory>>>,
    /// Arrays beside plans whose chunks may be spilled.
    residents: Mutex<Vec<Weak<Resident>>>,
    next: AtomicU64,
    used: AtomicU64,
    peak: AtomicU64,
    files: AtomicU64,
    spilled: AtomicU64,
    spilled_files: AtomicU64,
    read_back: AtomicU64,
    corrupt: AtomicU64,
}

/// A finished chunk, in one of its two places.
#[derive(Debug, Clone)]
pub enum FinishedChunk {
    /// In memory.
    Memory(Arc<Chunk>),
    /// In a file.
    File(Arc<Spilled>),
}

impl FinishedChunk {
    /// Bytes of its cells, wherever they are.
    pub fn bytes(&self) -> u64 {
        match self {
            FinishedChunk::Memory(chunk) => chunk.bytes(),
            FinishedChunk::File(file) => file.bytes(),
        }
    }

    /// Number of cells.
    pub fn cells(&self) -> u64 {
        match self {
            FinishedChunk::Memory(chunk) => chunk.cells(),
            FinishedChunk::File(file) => file.shape().iter().product(),
        }
    }

    /// Bytes of the quota that go back with it, if nobody else holds it.
    pub fn memory_bytes(&self) -> u64 {
        match self {
            FinishedChunk::Memory(chunk) => chunk.charged(),
            FinishedChunk::File(_) => 0,
        }
    }
}

/// What a store holds and did.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Figures {
    /// Files there now.
    pub files: u64,
    /// Bytes set aside for them.
    pub bytes: u64,
    /// The most bytes ever set aside.
    pub peak_bytes: u64,
    /// Chunks that were written since the start.
    pub spilled_files: u64,
    /// Bytes of them, and of rows, since the start.
    pub spilled_bytes: u64,
    /// Bytes that were read again since the start.
    pub read_back_bytes: u64,
    /// Reads of chunks that found something else than what was written, since the start.
    pub corrupt: u64,
}

/// Room for a file that is not yet there; it goes back when it drops.
#[derive(Debug)]
pub struct Space {
    store: Arc<Store>,
    bytes: u64,
}

impl Store {
    /// A store below `parent` of at most `limit` bytes; 0 turns it off. Directories of processes that are gone are
    /// removed, and the outputs that these did not finish. Nothing is made before it is needed.
    pub fn open(parent: &Path, limit: u64) -> Arc<Self> {
        directory::remove_stale(parent);
        Arc::new(Store {
            parent: parent.into(),
            limit,
            directory: Mutex::default(),
            residents: Mutex::default(),
            next: AtomicU64::new(0),
            used: AtomicU64::new(0),
            peak: AtomicU64::new(0),
            files: AtomicU64::new(0),
            spilled: AtomicU64::new(0),
            spilled_files: AtomicU64::new(0),
            read_back: AtomicU64::new(0),
            corrupt: AtomicU64::new(0),
        })
    }

    /// False if nothing may be spilled.
    pub fn is_on(&self) -> bool {
        self.limit > 0
    }

    /// The most bytes that files may have.
    pub fn limit(&self) -> u64 {
        self.limit
    }

    /// The directory that the store's own is made in.
    pub fn parent(&self) -> &Path {
        &self.parent
    }

    /// What it holds and did.
    pub fn figures(&self) -> Figures {
        Figures {
            files: self.files.load(Relaxed),
            bytes: self.used.load(Relaxed),
            peak_bytes: self.peak.load(Relaxed),
            spilled_files: self.spilled_files.load(Relaxed),
            spilled_bytes: self.spilled.load(Relaxed),
            read_back_bytes: self.read_back.load(Relaxed),
            corrupt: self.corrupt.load(Relaxed),
        }
    }

    /// From now on chunks of the array may be spilled when memory is short.
    pub fn adopt(&self, array: &Arc<Resident>) {
        if self.is_on() {
            let mut all = self.residents.lock().unwrap_or_else(PoisonError::into_inner);
            if all.len() == all.capacity() {
                all.retain(|r| r.strong_count() > 0);
            }
            all.push(Arc::downgrade(array));
        }
    }

    /// The arrays that it may spill, those read longest ago first.
    pub(crate) fn residents(&self) -> Vec<Arc<Resident>> {
        let all = self.residents.lock().unwrap_or_else(PoisonError::into_inner);
        let mut live: Vec<_> = all.iter().filter_map(Weak::upgrade).collect();
        live.sort_by_key(|r| r.touched());
        live
    }

    /// Room for a file of a chunk.
    ///
    /// # Errors
    /// [`Error::ScratchFull`] if the limit does not leave it.
    pub fn reserve(self: &Arc<Self>, chunk: &Chunk) -> Result<Space, Error> {
        self.space(file::size_of(chunk))
    }

    /// Room for so many bytes of files.
    ///
    /// # Errors
    /// [`Error::ScratchFull`] if the limit does not leave it.
    pub fn space(self: &Arc<Self>, bytes: u64) -> Result<Space, Error> {
        let mut space = Space { store: self.clone(), bytes: 0 };
        space.grow(bytes)?;
        Ok(space)
    }

    /// A number that nothing else in the directory has.
    pub fn number(&self) -> u64 {
        self.next.fetch_add(1, Relaxed)
    }

    /// Counts bytes that were put aside, other than chunks.
    pub fn count_spilled(&self, bytes: u64) {
        self.spilled.fetch_add(bytes, Relaxed);
    }

    /// Counts bytes that were read again, other than chunks.
    pub fn count_read_back(&self, bytes: u64) {
        self.read_back.fetch_add(bytes, Relaxed);
    }

    /// Puts a chunk aside where there is room: in memory as long as less than half of it is in use, else in a file.
    /// Without scratch space it stays where it is. This is for chunks that no plan waits for.
    ///
    /// # Errors
    /// Those of [`Store::reserve`] and [`Store::write`].
    pub fn settle(
        self: &Arc<Self>,
        chunk: Arc<Chunk>,
        quota: &Quota,
    ) -> Result<FinishedChunk, Error> {
        if !self.is_on() || quota.used() <= quota.limit() / 2 {
            return Ok(FinishedChunk::Memory(chunk));
        }
        let space = self.reserve(&chunk)?;
        Ok(FinishedChunk::File(self.write(&chunk, space)?))
    }

    /// Writes a chunk.
    ///
    /// # Errors
    /// [`Error::ScratchFull`] if the disk has no room, [`Error::ScratchUnusable`] if files cannot be written. Nothing
    /// of the chunk stays on the disk then.
    pub fn write(self: &Arc<Self>, chunk: &Chunk, space: Space) -> Result<Arc<Spilled>, Error> {
        let spilled = Spilled::write(chunk, space, self.directory()?)?;
        self.spilled.fetch_add(chunk.bytes(), Relaxed);
        self.spilled_files.fetch_add(1, Relaxed);
        Ok(Arc::new(spilled))
    }

    /// The store's directory, made now if it is the first time.
    ///
    /// # Errors
    /// [`Error::ScratchUnusable`] if it cannot be made.
    pub fn directory(&self) -> Result<Arc<Directory>, Error> {
        let mut known = self.directory.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(directory) = &*known {
            return Ok(directory.clone());
        }
        let made = Directory::create(&self.parent).map_err(|e| self.io(&e))?;
        Ok(known.insert(Arc::new(made)).clone())
    }

    /// Removes the directory once its last file is gone; at once with all files if somebody still `works` who will not
    /// need them.
    pub(crate) fn close(&self, works: bool) {
        let directory = self.directory.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(directory) = directory.filter(|_| works) {
            directory.clear();
        }
    }

    /// What the system said about a file there.
    pub fn io(&self, e: &std::io::Error) -> Error {
        use std::io::ErrorKind::{FileTooLarge, QuotaExceeded, StorageFull};
        if matches!(e.kind(), StorageFull | QuotaExceeded | FileTooLarge) {
            return self.full(self.used.load(Relaxed), 0, &e.to_string());
        }
        Error::ScratchUnusable { directory: self.parent.clone(), reason: e.to_string() }
    }

    fn full(&self, used_bytes: u64, wanted_bytes: u64, reason: &str) -> Error {
        Error::ScratchFull {
            directory: self.parent.clone(),
            limit_bytes: self.limit,
            used_bytes,
            wanted_bytes,
            reason: reason.into(),
        }
    }
}

impl Space {
    /// Takes more.
    ///
    /// # Errors
    /// [`Error::ScratchFull`] if the limit does not leave it.
    pub fn grow(&mut self, bytes: u64) -> Result<(), Error> {
        let store = &self.store;
        let add = |used: u64| used.checked_add(bytes).filter(|&n| n <= store.limit);
        match store.used.fetch_update(Relaxed, Relaxed, add) {
            Ok(before) => {
                store.peak.fetch_max(before + bytes, Relaxed);
                self.bytes += bytes;
                Ok(())
            }
            Err(used) => Err(store.full(used, bytes, "the limit of spilled bytes is reached")),
        }
    }

    /// Bytes that it stands for.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }
}

impl Drop for Space {
    fn drop(&mut self) {
        self.store.used.fetch_sub(self.bytes, Relaxed);
    }
}

#[cfg(test)]
mod tests;
