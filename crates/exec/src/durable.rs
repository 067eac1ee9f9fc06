//! Chunks that outlive their process: where a statement that is run again finds what it had computed.
//!
//! ```text
//!   folder/<statement>/chunks/<part>-<key of the stage>/<number of the operand>.chunk
//! ```
//! 1. Whoever runs a statement makes a [`Durable`] for it. For each of its plans [`Durable::plan`] says which stages
//!    are kept ([`tessera_planner::durable`]), and, if the statement ran before, lists the chunks that are there and
//!    [finds](tessera_planner::recover) what is left to do.
//! 2. The scheduler loads those instead of computing them ([`Stored`]); a chunk that turns out to be missing or
//!    corrupt is a miss: its operand runs, and what it reads is made again.
//! 3. A thread that computed an operand of a stage that is kept gives its chunks to be written in the background. A
//!    bounded number of bytes waits to be written; what comes beyond is not kept. No statement fails or waits because
//!    of a write, but that its chunks stay in memory, and charged, until they are written.
//! 4. Before chunks are written, what the statement has read until then is ([`Durable::keep_reads`]): a run after this
//!    one reads the same versions, or fails.
//! 5. Chunks go with their statement; what is left of others is [collected](DurableStore::collect).
//!
//! Invariants: a reader sees a whole operand or none, and checks what it reads; chunks are found by what they are
//! ([`tessera_planner::key`]), never by when or by whom they were made, so that a file of another plan, version or
//! process is at worst not found.

mod collect;
pub(crate) mod format;
mod reads;
mod statement;
mod stored;

pub use statement::Durable;
pub use stored::Stored;
pub(crate) use stored::{Kept, loading_bytes};

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use tessera_storage::sink::{Folder, SinkError};

/// A bounded place for the chunks of statements.
#[derive(Debug)]
pub struct DurableStore {
    folder: Folder,
    limit: u64,
    room: Mutex<Room>,
    /// True once a chunk was not kept as there was no room.
    wants_room: AtomicBool,
    counters: Counters,
}

/// Bytes of the objects that are known: written here, or found when a statement was run again.
#[derive(Debug, Default)]
struct Room {
    used: u64,
    statements: BTreeMap<String, u64>,
}

/// What was written and used again.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Did {
    /// Operands whose chunks were written.
    pub written: u64,
    /// Bytes of these chunks.
    pub bytes_written: u64,
    /// Operands that were not written: too much was waiting, the store has no room, or nothing is written (yet).
    pub skipped: u64,
    /// Writes that failed.
    pub failed: u64,
    /// Operands whose chunks were loaded instead of being computed.
    pub reused: u64,
    /// Bytes of these chunks.
    pub bytes_reused: u64,
    /// Seconds of threads that computing them had taken.
    pub seconds_reused: f64,
    /// Operands whose chunks were listed, and then missing or not what was written; they were computed again.
    pub corrupt: u64,
    /// Statements that were not live and whose chunks were removed. Only a store counts them.
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
    /// A store of at most `limit_bytes` bytes in a folder. Nothing is made or asked.
    pub fn new(folder: Folder, limit_bytes: u64) -> Arc<Self> {
        let (room, wants_room, counters) = Default::default();
        Arc::new(DurableStore { folder, limit: limit_bytes, room, wants_room, counters })
    }

    /// Bytes that the chunks may have.
    pub fn limit(&self) -> u64 {
        self.limit
    }

    /// Bytes of the chunks that are known: written by this process, or found when a statement was run again.
    pub fn bytes(&self) -> u64 {
        self.room().used
    }

    /// What was done for all statements since the start.
    pub fn did(&self) -> Did {
        self.counters.snapshot()
    }

    /// Removes the chunks of a statement and its folder; that there is none is fine. Close the statement's [`Durable`] first, or
    /// what is being written may stay.
    ///
    /// # Errors
    /// Whatever storage says.
    pub async fn remove(&self, statement: &str) -> Result<(), SinkError> {
        self.folder.remove_below(statement).await?;
        self.found(statement, 0);
        Ok(())
    }

    fn room(&self) -> MutexGuard<'_, Room> {
        self.room.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes room for an object of a statement; false if there is none.
    fn take(&self, statement: &str, bytes: u64) -> bool {
        let mut room = self.room();
        let fits = room.used.saturating_add(bytes) <= self.limit;
        if fits {
            room.used += bytes;
            *room.statements.entry(statement.into()).or_default() += bytes;
        } else {
            self.wants_room.store(true, Relaxed);
        }
        fits
    }

    /// Gives room back that was taken.
    fn give(&self, statement: &str, bytes: u64) {
        let mut room = self.room();
        if let Some(of) = room.statements.get_mut(statement) {
            let less = bytes.min(*of);
            *of -= less;
            room.used -= less;
        }
    }

    /// The objects of a statement have so many bytes.
    fn found(&self, statement: &str, bytes: u64) {
        let mut room = self.room();
        room.used -= room.statements.remove(statement).unwrap_or(0);
        room.used += bytes;
        if bytes > 0 {
            room.statements.insert(statement.into(), bytes);
        }
    }
}

/// Where the chunks of a statement are.
fn chunks_of(statement: &str) -> String {
    format!("{statement}/chunks")
}

#[cfg(test)]
mod tests;
