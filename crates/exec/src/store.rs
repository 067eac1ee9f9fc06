//! The spill store: finished chunks and other temporary data of a process on disk.
//!
//! ```text
//!   spill_dir/tessera-spill-<process>-<n>/     made at the first use, removed with the store
//!     lock                                     held as long as the process lives: marks the directory as in use
//!     17.chunk                                 one file for each spilled chunk, unlinked with its last holder
//!     18.rows                                  spilled rows of sorts, joins and groups
//!     19.output                                names an incomplete output, to be removed if the process is killed
//!     upload-…/                                uploads in progress, and temp tables
//! ```
//! Results that wait to be read are unlinked files in the directory. The bytes of all files together stay below a
//! limit; space is reserved before a file is created. The next process that starts removes the directories of killed
//! processes.

mod directory;
mod file;
mod lent;
mod resident;

pub use directory::{Directory, PREFIX};
pub(crate) use file::staging_of;
pub use file::{Reader, Spilled};
pub use lent::Lent;
pub use resident::{Fill, Resident};
pub(crate) use resident::{NOTE_BYTES, NOTES_FREE, counted_notes};

use crate::chunk::Chunk;
use crate::error::Error;
use crate::quota::Quota;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, Weak};
use tessera_storage::lock;

/// A size-limited store for chunks on disk.
#[derive(Debug)]
pub struct Store {
    parent: PathBuf,
    limit: u64,
    /// The directory, once something was spilled.
    directory: Mutex<Option<Arc<Directory>>>,
    /// Arrays outside of plans whose chunks may be spilled.
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

/// A finished chunk, in memory or in a file.
#[derive(Debug, Clone)]
pub enum FinishedChunk {
    /// In memory.
    Memory(Arc<Chunk>),
    /// In a file.
    File(Arc<Spilled>),
}

impl FinishedChunk {
    /// Bytes of its cells, in memory or in a file.
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

    /// Bytes of the quota that are released with it, if it has no other holder.
    pub fn memory_bytes(&self) -> u64 {
        match self {
            FinishedChunk::Memory(chunk) => chunk.charged(),
            FinishedChunk::File(_) => 0,
        }
    }
}

/// Gauges and counters of a store.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Figures {
    /// Existing files.
    pub files: u64,
    /// Bytes reserved for files.
    pub bytes: u64,
    /// Peak bytes reserved.
    pub peak_bytes: u64,
    /// Chunks written since the start.
    pub spilled_files: u64,
    /// Bytes of chunks and rows written since the start.
    pub spilled_bytes: u64,
    /// Bytes read again since the start.
    pub read_back_bytes: u64,
    /// Reads of corrupt chunks since the start.
    pub corrupt: u64,
}

/// Space reserved for a file, released on drop.
#[derive(Debug)]
pub struct Space {
    store: Arc<Store>,
    bytes: u64,
}

impl Store {
    /// Creates a store below `parent` of at most `limit` bytes; 0 turns spilling off. Directories of dead processes
    /// are removed, with their incomplete outputs. The directory is made at the first use.
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

    /// False if spilling is off.
    pub fn is_on(&self) -> bool {
        self.limit > 0
    }

    /// Upper bound on the bytes of files.
    pub fn limit(&self) -> u64 {
        self.limit
    }

    /// The parent of the store's own directory.
    pub fn parent(&self) -> &Path {
        &self.parent
    }

    /// Returns the gauges and counters.
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

    /// Allows chunks of the array to be spilled when memory is short.
    pub fn adopt(&self, array: &Arc<Resident>) {
        if self.is_on() {
            let mut all = lock(&self.residents);
            if all.len() == all.capacity() {
                all.retain(|r| r.strong_count() > 0);
            }
            all.push(Arc::downgrade(array));
        }
    }

    /// The arrays that may be spilled, least recently read first.
    pub(crate) fn residents(&self) -> Vec<Arc<Resident>> {
        let all = lock(&self.residents);
        let mut live: Vec<_> = all.iter().filter_map(Weak::upgrade).collect();
        live.sort_by_key(|r| r.touched());
        live
    }

    /// Reserves space for a file of a chunk.
    ///
    /// # Errors
    /// [`Error::ScratchFull`] if the limit does not allow it.
    pub fn reserve(self: &Arc<Self>, chunk: &Chunk) -> Result<Space, Error> {
        self.space(file::size_of(chunk))
    }

    /// Reserves space for `bytes` bytes of files.
    ///
    /// # Errors
    /// [`Error::ScratchFull`] if the limit does not allow it.
    pub fn space(self: &Arc<Self>, bytes: u64) -> Result<Space, Error> {
        let mut space = Space { store: self.clone(), bytes: 0 };
        space.grow(bytes)?;
        Ok(space)
    }

    /// Returns a number that is unique in the directory.
    pub fn number(&self) -> u64 {
        self.next.fetch_add(1, Relaxed)
    }

    /// Counts spilled bytes other than those of chunks.
    pub fn count_spilled(&self, bytes: u64) {
        self.spilled.fetch_add(bytes, Relaxed);
    }

    /// Counts bytes read again other than those of chunks.
    pub fn count_read_back(&self, bytes: u64) {
        self.read_back.fetch_add(bytes, Relaxed);
    }

    /// Stores a chunk that no plan waits for: in memory while at most half of it is in use, else in a file. If
    /// spilling is off, the chunk stays in memory.
    ///
    /// # Errors
    /// Errors of [`Store::reserve`] and [`Store::write`].
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
    /// [`Error::ScratchFull`] if the disk is full, [`Error::ScratchUnusable`] if files cannot be written. The partial
    /// file is removed then.
    pub fn write(self: &Arc<Self>, chunk: &Chunk, space: Space) -> Result<Arc<Spilled>, Error> {
        let spilled = Spilled::write(chunk, space, self.directory()?)?;
        self.spilled.fetch_add(chunk.bytes(), Relaxed);
        self.spilled_files.fetch_add(1, Relaxed);
        Ok(Arc::new(spilled))
    }

    /// Returns the store's directory; the first call makes it.
    ///
    /// # Errors
    /// [`Error::ScratchUnusable`] if it cannot be made.
    pub fn directory(&self) -> Result<Arc<Directory>, Error> {
        let mut known = lock(&self.directory);
        if let Some(directory) = &*known {
            return Ok(directory.clone());
        }
        let made = Directory::create(&self.parent).map_err(|e| self.io(&e))?;
        Ok(known.insert(Arc::new(made)).clone())
    }

    /// Removes the directory once its last file is dropped; at once with all files if a thread that does not need them
    /// still `works`.
    pub(crate) fn close(&self, works: bool) {
        let directory = lock(&self.directory).take();
        if let Some(directory) = directory.filter(|_| works) {
            directory.clear();
        }
    }

    /// Converts a system error on a file of the store.
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
    /// Reserves more bytes.
    ///
    /// # Errors
    /// [`Error::ScratchFull`] if the limit does not allow it.
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

    /// Bytes reserved.
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
