//! The queued and running statements of a process.

use super::{Handle, Progress};
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// All queued and running statements, in the order of their arrival.
#[derive(Debug, Default)]
pub struct Queries {
    next: AtomicU64,
    known: Mutex<BTreeMap<u64, Handle>>,
}

/// Lists a statement until it is dropped.
#[derive(Debug)]
pub struct Entered {
    queries: Arc<Queries>,
    /// `None` if the statement was already listed.
    number: Option<u64>,
}

impl Queries {
    /// Lists a statement. A statement that is already listed stays with its first entry.
    pub fn enter(self: &Arc<Self>, handle: &Handle) -> Entered {
        let mut known = self.lock();
        let number = if known.values().any(|h| h.id() == handle.id()) {
            None
        } else {
            let number = self.next.fetch_add(1, Ordering::Relaxed);
            known.insert(number, handle.clone());
            Some(number)
        };
        Entered { queries: self.clone(), number }
    }

    /// All queued and running statements.
    pub fn list(&self) -> Vec<Handle> {
        self.lock().values().cloned().collect()
    }

    /// The queued or running statement with this id.
    pub fn find(&self, id: &str) -> Option<Handle> {
        self.lock().values().find(|h| h.id() == id).cloned()
    }

    /// The rows of `SHOW QUERIES`: id, state, text, and progress.
    pub fn rows(&self) -> Vec<[String; 7]> {
        // Progress locks the scheduler, so it is not read under our lock.
        self.list().iter().map(|h| row(h, &h.progress())).collect()
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<u64, Handle>> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The columns of `SHOW QUERIES`.
pub const COLUMNS: [&str; 7] = ["id", "state", "sql", "elapsed", "operands", "read", "left"];

fn row(handle: &Handle, p: &Progress) -> [String; 7] {
    [
        handle.id().into(),
        p.state.name().into(),
        handle.track().text(),
        format!("{:.1} s", p.elapsed_s),
        format!("{} of {}", p.operands_done, p.operands_total),
        crate::config::format_bytes(p.bytes_read),
        p.eta_s.map_or(String::new(), |s| format!("{s:.1} s")),
    ]
}

impl Drop for Entered {
    fn drop(&mut self) {
        if let Some(number) = self.number {
            self.queries.lock().remove(&number);
        }
    }
}
