//! Counters of reads.

use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// Counters of reads, shared by all readers of a [`Stores`](super::Stores).
#[derive(Debug, Default)]
pub struct Counters {
    /// Reads of objects or parts of objects, including metadata.
    pub requests: AtomicU64,
    /// Bytes received.
    pub bytes: AtomicU64,
    /// Stored chunks (of shards: inner chunks) that were fetched; absent ones count.
    pub chunks: AtomicU64,
}

impl Counters {
    /// Current `(requests, bytes, chunks)`.
    pub fn snapshot(&self) -> (u64, u64, u64) {
        let get = |a: &AtomicU64| a.load(Ordering::Relaxed);
        (get(&self.requests), get(&self.bytes), get(&self.chunks))
    }

    pub(super) fn count(&self, bytes: usize) {
        self.add(bytes);
        // Readers of coordinates and metadata have no counters of their own.
        let _ = OWN.try_with(|own| own.add(bytes));
    }

    fn add(&self, bytes: usize) {
        self.requests.fetch_add(1, Ordering::Relaxed);
        self.bytes.fetch_add(bytes as u64, Ordering::Relaxed);
    }

    /// Also counts the reads of `read` here, whenever it is polled.
    pub async fn of<T>(self: Arc<Self>, read: impl Future<Output = T>) -> T {
        OWN.scope(self, read).await
    }

    /// Also counts the reads of `read` here.
    pub fn of_now<T>(self: &Arc<Self>, read: impl FnOnce() -> T) -> T {
        OWN.sync_scope(self.clone(), read)
    }
}

tokio::task_local! {
    /// The counters of the plan that reads, in addition to those of the process.
    static OWN: Arc<Counters>;
}
