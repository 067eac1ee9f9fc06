//! Chunks that nobody needs any more, and which of them go.
//!
//! ```text
//!   folder/<statement>   waits or runs           stays, whatever its size and age
//!                        over, or not known      goes when it is older than the store's time, or when its room is wanted:
//!                                                those that were written to longest ago first
//! ```
//! A statement's chunks are removed when it ends. What is left are those of servers that were killed between its end and
//! that, and those of statements whose records cannot be read: they have some time, as somebody may mend the record.

use super::DurableStore;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, SystemTime};
use tessera_storage::sink::SinkError;

/// One part of this many of the limit is free once room was wanted.
const FREE: u64 = 8;

/// The chunks of a statement that is not live.
struct Left {
    statement: String,
    bytes: u64,
    /// When one of them was last written.
    written: SystemTime,
}

impl DurableStore {
    /// True if chunks were not kept as there was no room, since the last collection.
    pub fn wants_room(&self) -> bool {
        self.wants_room.load(Relaxed)
    }

    /// Removes chunks of statements that are not `live`: those that were last written to longer ago than `age`, and if
    /// room is wanted, more of them. Gives back for how many statements it did. `live` is asked after the folders were
    /// listed, and once more before each is removed: a statement has to be live before its first chunk is written.
    ///
    /// # Errors
    /// Whatever storage says; what was removed until then is.
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
            // What is there takes room, whoever wrote it.
            self.found(&statement, bytes);
            left.push(Left { statement, bytes, written });
        }
        left.sort_by_key(|l| l.written);
        let most = match wanted {
            true => self.limit - self.limit / FREE,
            false => self.limit,
        };
        let (now, mut removed) = (SystemTime::now(), 0);
        for l in left {
            // A clock that was put back makes nothing old.
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
