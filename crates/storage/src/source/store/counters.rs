//! What reading has cost.

use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// What reading has cost so far. Shared by all readers of a [`Stores`](super::Stores).
#[derive(Debug, Default)]
pub struct Counters {
    /// Reads of objects or parts of objects, metadata among them.
    pub requests: AtomicU64,
    /// Bytes that arrived.
    pub bytes: AtomicU64,
    /// Stored chunks (of shards: inner chunks) that were fetched; absent ones count.
    pub chunks: AtomicU64,
}

impl Counters {
    /// `(requests, bytes, chunks)` at this moment.
    pub fn snapshot(&self) -> (u64, u64, u64) {
        let get = |a: &AtomicU64| a.load(Ordering::Relaxed);
        (get(&self.requests), get(&self.bytes), get(&self.chunks))
    }

    pub(super) fn count(&self, bytes: usize) {
        self.add(bytes);
        // Who reads coordinates and metadata counts nothing of its own.
        let _ = OWN.try_with(|own| own.add(bytes));
    }

    fn add(&self, bytes: usize) {
        self.requests.fetch_add(1, Ordering::Relaxed);
        self.bytes.fetch_add(bytes as u64, Ordering::Relaxed);
    }

    /// Counts here too what `read` reads, whenever it is polled.
    pub async fn of<T>(self: Arc<Self>, read: impl Future<Output = T>) -> T {
        OWN.scope(self, read).await
    }

    /// Counts here too what `read` reads.
    pub fn of_now<T>(self: &Arc<Self>, read: impl FnOnce() -> T) -> T {
        OWN.sync_scope(self.clone(), read)
    }
}

tokio::task_local! {
    /// The counters of the plan for which something is read, beside those of the process.
    static OWN: Arc<Counters>;
}
