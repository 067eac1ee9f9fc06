//! The durable chunks of a statement: where they are stored, and which were reused.

use super::Handle;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tessera_exec::durable::{Did, Durable, DurableStore};
use tessera_planner::durable::Durability;

/// How long writes in progress may take before the chunks are removed.
const CLOSING: Duration = Duration::from_secs(60);

/// The durable chunks of a statement, stored for a run after a failure.
#[derive(Default)]
pub struct DurableChunks(Mutex<ChunksState>);

#[derive(Default)]
pub(super) struct ChunksState {
    pub(super) store: Option<Arc<DurableStore>>,
    pub(super) durable: Option<Arc<Durable>>,
    /// True if the statement runs again after this process is killed.
    pub(super) survives: bool,
}

impl DurableChunks {
    /// Allows chunks of the statement to be stored in `store`.
    pub fn stored_in(&self, store: Arc<DurableStore>) {
        self.lock().store = Some(store);
    }

    /// True if a server may have to produce the answers again.
    pub(crate) fn may_survive(&self) -> bool {
        self.lock().store.is_some()
    }

    /// Marks the statement to run again after this process is killed.
    pub fn survives(&self) {
        let mut state = self.lock();
        state.survives = true;
        if let Some(durable) = &state.durable {
            durable.begin();
        }
    }

    /// Counts of chunks that were stored and reused; `None` if chunks are not durable.
    pub(crate) fn did(&self) -> Option<Did> {
        self.lock().durable.as_ref().map(|d| d.did())
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, ChunksState> {
        // Each change is complete before anything can panic.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Handle {
    /// The store of the statement's chunks; `None` if they are not durable. The first plan decides the policy.
    pub(crate) fn durable(&self, policy: Durability) -> Option<Arc<Durable>> {
        // Begins the part of the running statement.
        self.versions();
        let reads = self.reads();
        let state = &mut *self.chunks().lock();
        let store = state.store.as_ref()?;
        let durable = state.durable.get_or_insert_with(|| {
            let durable = Durable::new(store, self.id(), policy, self.entry().is_again());
            if let Some((part, versions)) = reads.now() {
                durable.begin_part(*part, versions);
            }
            if state.survives {
                durable.begin();
            }
            durable
        });
        Some(durable.clone())
    }

    /// Removes the stored chunks.
    pub async fn remove_chunks(&self) {
        let (store, durable) = {
            let state = self.chunks().lock();
            (state.store.clone(), state.durable.clone())
        };
        let Some(store) = store else { return };
        // A worker that hangs does not retain them for ever; the chunks that it writes later are collected.
        if let Some(durable) = durable
            && tokio::time::timeout(CLOSING, durable.close()).await.is_err()
        {
            let id = self.id();
            tracing::warn!(id, "chunks are removed though a worker may still write some");
        }
        if let Err(e) = store.remove(self.id()).await {
            tracing::warn!(id = self.id(), error = %e, "chunks of a statement could not be removed");
        }
    }
}
