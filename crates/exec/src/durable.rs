//! Durable chunks: they outlive their process, so that a rerun statement reuses the results of its earlier runs.
//!
//! ```text
//!   folder/<statement>/chunks/<part>-<key of the stage>/<number of the operand>.chunk
//! ```
//! 1. The caller makes a [`Durable`] for a statement. For each of its plans [`Durable::plan`] selects the stages to
//!    store ([`tessera_planner::durable`]). If the statement ran before, it lists the stored chunks and
//!    [finds](tessera_planner::recover) the remaining work.
//! 2. The scheduler loads stored chunks instead of computing them ([`Stored`]). A chunk that is missing or corrupt is
//!    a miss: its operand runs, and its inputs are recomputed.
//! 3. A thread that computed an operand of a selected stage queues its chunks for a background write. The bytes in
//!    the queue are bounded; chunks beyond the bound are not stored. No statement fails or waits because of a write,
//!    but its chunks stay in memory, and charged, until they are written.
//! 4. Before chunks are written, the versions that the statement has read until then are ([`Durable::keep_reads`]): a
//!    later run reads the same versions, or fails.
//! 5. Chunks are removed with their statement; leftovers are [collected](DurableStore::collect).
//!
//! Invariants: a reader sees a whole operand or none, and verifies checksums. Chunks are addressed by their lineage
//! ([`tessera_planner::key`]), never by their time or writer, so that a file of another plan, version or process is at
//! worst not found.

mod collect;
mod reads;
mod statement;
mod stored;

pub use statement::{Durable, Shared};
pub use stored::Stored;
pub(crate) use stored::{Kept, loading_bytes};

use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex};
use tessera_storage::lock;
use tessera_storage::sink::{Folder, SinkError};

/// A size-limited store for the chunks of statements.
#[derive(Debug)]
pub struct DurableStore {
    folder: Folder,
    limit: u64,
    room: Mutex<Room>,
    /// True once a chunk was not stored for want of room.
    wants_room: AtomicBool,
    counters: Counters,
}

/// Bytes of the known objects: written here, or found when a statement was run again.
#[derive(Debug, Default)]
struct Room {
    used: u64,
    statements: BTreeMap<String, u64>,
}

/// Counters of chunks written and reused.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub struct Did {
    /// Operands whose chunks were written.
    pub written: u64,
    /// Bytes of these chunks.
    pub bytes_written: u64,
    /// Operands that were not written: the queue or the store was full, or writing was disabled.
    pub skipped: u64,
    /// Failed writes.
    pub failed: u64,
    /// Operands whose chunks were loaded instead of being computed.
    pub reused: u64,
    /// Bytes of the loaded chunks.
    pub bytes_reused: u64,
    /// Thread-seconds that computing the loaded chunks had taken.
    pub seconds_reused: f64,
    /// Operands whose listed chunks were missing or corrupt and were computed again.
    pub corrupt: u64,
    /// Statements that were not live and whose chunks were removed. Counted only by the store.
    pub removed: u64,
}

#[derive(Debug, Default)]
struct Counters {
    written: AtomicU64,
    bytes_written: AtomicU64,
    skipped: AtomicU64,
    failed: AtomicU64,
    reused: AtomicU64,
    bytes_reused: AtomicU64,
    nanos_reused: AtomicU64,
    corrupt: AtomicU64,
    removed: AtomicU64,
}

impl Did {
    /// The work since `before`.
    pub fn since(&self, before: &Did) -> Did {
        Did {
            written: self.written.saturating_sub(before.written),
            bytes_written: self.bytes_written.saturating_sub(before.bytes_written),
            skipped: self.skipped.saturating_sub(before.skipped),
            failed: self.failed.saturating_sub(before.failed),
            reused: self.reused.saturating_sub(before.reused),
            bytes_reused: self.bytes_reused.saturating_sub(before.bytes_reused),
            seconds_reused: (self.seconds_reused - before.seconds_reused).max(0.0),
            corrupt: self.corrupt.saturating_sub(before.corrupt),
            removed: self.removed.saturating_sub(before.removed),
        }
    }
}

impl Counters {
    fn snapshot(&self) -> Did {
        let get = |a: &AtomicU64| a.load(Relaxed);
        Did {
            written: get(&self.written),
            bytes_written: get(&self.bytes_written),
            skipped: get(&self.skipped),
            failed: get(&self.failed),
            reused: get(&self.reused),
            bytes_reused: get(&self.bytes_reused),
            seconds_reused: get(&self.nanos_reused) as f64 * 1e-9,
            corrupt: get(&self.corrupt),
            removed: get(&self.removed),
        }
    }
}

impl DurableStore {
    /// Creates a store of at most `limit_bytes` bytes in a folder. Does no I/O.
    pub fn new(folder: Folder, limit_bytes: u64) -> Arc<Self> {
        let (room, wants_room, counters) = Default::default();
        Arc::new(DurableStore { folder, limit: limit_bytes, room, wants_room, counters })
    }

    /// Upper bound on the bytes of all chunks.
    pub fn limit(&self) -> u64 {
        self.limit
    }

    /// Bytes of the known chunks: written by this process, or found when a statement was run again.
    pub fn bytes(&self) -> u64 {
        lock(&self.room).used
    }

    /// Counters over all statements since the start.
    pub fn did(&self) -> Did {
        self.counters.snapshot()
    }

    /// Removes the chunks of a statement and its folder; a missing folder is not an error. Close the statement's
    /// [`Durable`] first, or objects with a write in progress may remain.
    ///
    /// # Errors
    /// Errors of the storage.
    pub async fn remove(&self, statement: &str) -> Result<(), SinkError> {
        self.folder.remove_below(statement).await?;
        self.found(statement, 0);
        Ok(())
    }

    /// Reserves room for an object of a statement; false if the store is full.
    fn take(&self, statement: &str, bytes: u64) -> bool {
        let mut room = lock(&self.room);
        let fits = room.used.saturating_add(bytes) <= self.limit;
        if fits {
            room.used += bytes;
            *room.statements.entry(statement.into()).or_default() += bytes;
        } else {
            self.wants_room.store(true, Relaxed);
        }
        fits
    }

    /// Releases room reserved by [`DurableStore::take`].
    fn give(&self, statement: &str, bytes: u64) {
        let mut room = lock(&self.room);
        if let Some(of) = room.statements.get_mut(statement) {
            let less = bytes.min(*of);
            *of -= less;
            room.used -= less;
        }
    }

    /// Sets the bytes of a statement's objects.
    fn found(&self, statement: &str, bytes: u64) {
        let mut room = lock(&self.room);
        room.used -= room.statements.remove(statement).unwrap_or(0);
        room.used += bytes;
        if bytes > 0 {
            room.statements.insert(statement.into(), bytes);
        }
    }
}

/// Folder of a statement's chunks.
fn chunks_of(statement: &str) -> String {
    format!("{statement}/chunks")
}

#[cfg(test)]
mod tests;
