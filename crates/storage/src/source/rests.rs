//! Validation of absent chunks.
//!
//! A store may leave out chunks that have only the fill value, and nothing in it says which ones. So an absent chunk is
//! accepted only if the document that describes the array is unchanged since the array was opened: a store that is
//! being removed or rewritten would otherwise yield fill values instead of its cells.

use crate::source::error::SourceError;
use crate::source::store::Store;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

/// The document that absent chunks of an array depend on.
#[derive(Debug, Default)]
pub(crate) struct Rests {
    on: Option<Arc<Document>>,
    /// True once a chunk was absent.
    met: AtomicBool,
}

#[derive(Debug)]
struct Document {
    key: String,
    /// See [`Store::stamp`].
    stamp: u64,
}

impl Rests {
    /// Depends on a document of a store that is being opened; on nothing if the store has a manifest, which lists the
    /// absent chunks.
    pub(crate) fn on(store: &Store, document: String) -> Rests {
        let stamp = store.stamp_seen(&document).filter(|_| store.manifest().is_none());
        let on = stamp.map(|stamp| Arc::new(Document { key: document, stamp }));
        Rests { on, met: AtomicBool::new(false) }
    }

    /// The same dependence, without absent chunks so far.
    pub(crate) fn fresh(&self) -> Rests {
        Rests { on: self.on.clone(), met: AtomicBool::new(false) }
    }

    pub(crate) fn meets(&self) {
        self.met.store(true, Relaxed);
    }

    /// True if a chunk was absent and depends on a document.
    pub(crate) fn asks(&self) -> bool {
        self.on.is_some() && self.met.load(Relaxed)
    }

    /// Checks the document, once for all chunks that were absent so far.
    ///
    /// # Errors
    /// [`SourceError::Changed`], which names the array, if the document changed or is missing.
    pub(crate) async fn check(&self, store: &Store, array: &str) -> Result<(), SourceError> {
        let Some(on) = self.on.as_ref().filter(|_| self.asks()) else { return Ok(()) };
        match store.stamp(&on.key).await? == Some(on.stamp) {
            true => Ok(()),
            false => Err(SourceError::Changed { what: store.show(array) }),
        }
    }
}
