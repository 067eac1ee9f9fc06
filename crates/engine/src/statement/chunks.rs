//! The durable chunks of a statement: where they are kept, and what was used again.

use super::Handle;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use tessera_exec::durable::{Did, Durable, DurableStore};
use tessera_planner::durable::Durability;

/// Where chunks of a statement are kept for a run after a failure.
#[derive(Default)]
pub struct DurableChunks(Mutex<ChunksState>);

#[derive(Default)]
pub(super) struct ChunksState {
    pub(super) store: Option<Arc<DurableStore>>,
    pub(super) durable: Option<Arc<Durable>>,
    /// True if the statement is run again should this process be killed.
    pub(super) survives: bool,
}

impl DurableChunks {
    /// Chunks of the statement may be kept there.
    pub fn stored_in(&self, store: Arc<DurableStore>) {
        self.lock().store = Some(store);
    }

    /// True if a server may have to give the answers again.
    pub(crate) fn may_survive(&self) -> bool {
        self.lock().store.is_some()
    }

    /// From now on the statement is run again should this process be killed.
    pub fn survives(&self) {
        let mut state = self.lock();
        state.survives = true;
        if let Some(durable) = &state.durable {
            durable.begin();
        }
    }

    /// What was kept of the chunks and used again; `None` if nothing can be.
    pub(crate) fn did(&self) -> Option<Did> {
        self.lock().durable.as_ref().map(|d| d.did())
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, ChunksState> {
        // Each change is complete before anything can panic.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Handle {
    /// Where chunks of the statement are kept; `None` if they are not. The first plan decides by which rule.
    pub(crate) fn durable(&self, policy: Durability) -> Option<Arc<Durable>> {
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

    /// Removes what was kept of the chunks.
    pub async fn remove_chunks(&self) {
        let (store, durable) = {
            let state = self.chunks().lock();
            (state.store.clone(), state.durable.clone())
        };
        let Some(store) = store else { return };
        if let Some(durable) = durable {
            durable.close().await;
        }
        if let Err(e) = store.remove(self.id()).await {
            tracing::warn!(id = self.id(), error = %e, "chunks of a statement could not be removed");
        }
    }
}
