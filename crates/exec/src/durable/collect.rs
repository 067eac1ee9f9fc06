//! Garbage collection of chunks.
//!
//! ```text
//!   folder/<statement>   waiting or running      retained, whatever its size and age
//!                        ended, or unknown       removed when it is older than the store's age limit, or when room is
//!                                                wanted: least recently written first
//! ```
//! A statement's chunks are removed when it ends. Leftovers belong to servers that were killed between the end and the
//! removal, and to statements whose records cannot be read. They are retained for some time, as an operator may repair
//! the record.

use super::DurableStore;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, SystemTime};
use tessera_storage::sink::SinkError;

/// A collection frees one part in this many of the limit once room was wanted.
const FREE: u64 = 8;

/// The chunks of a statement that is not live.
struct Left {
    statement: String,
    bytes: u64,
    /// Time of the latest write.
    written: SystemTime,
}

impl DurableStore {
    /// True if chunks were not stored for want of room since the last collection.
    pub fn wants_room(&self) -> bool {
        self.wants_room.load(Relaxed)
    }

    /// Removes chunks of statements that are not `live`: those last written longer ago than `age`, and more of them if
    /// room is wanted. Returns the number of statements removed. `live` is called after the folders were listed, and
    /// again before each removal: a statement has to be live before its first chunk is written.
    ///
    /// # Errors
    /// Errors of the storage; earlier removals remain done.
    pub async fn collect(
        &self,
        live: &(dyn Fn(&str) -> bool + Send + Sync),
        age: Duration,
    ) -> Result<u64, SinkError> {
        let wanted = self.wants_room.swap(false, Relaxed);
        let mut left = Vec::new();
        for statement in self.folder.stores("").await? {
            if live(&statement) {
                continue;
            }
            let (bytes, written) = self.folder.usage_below(&statement).await?;
            // Existing objects take space, even if another process wrote them.
            self.found(&statement, bytes);
            left.push(Left { statement, bytes, written });
        }
        left.sort_by_key(|l| l.written);
        let most = if wanted { self.limit - self.limit / FREE } else { self.limit };
        let (now, mut removed) = (SystemTime::now(), 0);
        for l in left {
            // A clock that was set back makes nothing old.
            let old = now.duration_since(l.written).is_ok_and(|since| since >= age);
            if (old || self.bytes() > most) && !live(&l.statement) {
                self.remove(&l.statement).await?;
                tracing::info!(statement = l.statement, bytes = l.bytes, "its chunks were removed");
                self.counters.removed.fetch_add(1, Relaxed);
                removed += 1;
            }
        }
        Ok(removed)
    }
}
