//! What an array is where chunks are absent.
//!
//! A store may leave out chunks that have only the fill value, and nothing in it says which ones. So an absent chunk is
//! believed only if the document that describes the array is afterwards the one that it was when the array was opened:
//! a store that is being removed or written anew would give fill values instead of its cells.

use crate::source::error::SourceError;
use crate::source::store::Store;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

/// The document that absent chunks of an array rest on.
#[derive(Debug, Default)]
pub(crate) struct Rests {
    on: Option<Arc<Document>>,
    /// A chunk was absent.
    met: AtomicBool,
}

#[derive(Debug)]
struct Document {
    key: String,
    /// See [`Store::stamp`].
    stamp: u64,
}

impl Rests {
    /// On a document of a store that is being opened. A list of all files of a store is as good for what is absent.
    pub(crate) fn on(store: &Store, document: String) -> Rests {
        let stamp = store.stamp_seen(&document).filter(|_| store.manifest().is_none());
        let on = stamp.map(|stamp| Arc::new(Document { key: document, stamp }));
        Rests { on, met: AtomicBool::new(false) }
    }

    /// The same of a reader that has met nothing yet.
    pub(crate) fn fresh(&self) -> Rests {
        Rests { on: self.on.clone(), met: AtomicBool::new(false) }
    }

    /// A chunk is absent.
    pub(crate) fn meets(&self) {
        self.met.store(true, Relaxed);
    }

    /// True if a chunk was absent, and something has to be as it was for that to be so.
    pub(crate) fn asks(&self) -> bool {
        self.on.is_some() && self.met.load(Relaxed)
    }

    /// Looks at the document, once for all chunks that were absent until now.
    ///
    /// # Errors
    /// [`SourceError::Changed`], which names the array, if it is another one or is gone.
    pub(crate) async fn check(&self, store: &Store, array: &str) -> Result<(), SourceError> {
        let Some(on) = self.on.as_ref().filter(|_| self.asks()) else { return Ok(()) };
        match store.stamp(&on.key).await? == Some(on.stamp) {
            true => Ok(()),
            false => Err(SourceError::Changed { what: store.show(array) }),
        }
    }
}
