//! A writer's process: its memory, and its directory.

use crate::sink::{Memory, Outputs, Promise, Reserved};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};

#[derive(Debug)]
pub(super) struct Budget {
    limit: u64,
    used: AtomicU64,
}

struct Part(Arc<Budget>, u64);

impl Budget {
    pub(super) fn new(limit: u64) -> Self {
        Budget { limit, used: AtomicU64::new(0) }
    }
}

impl Memory for Budget {
    fn limit(&self) -> u64 {
        self.limit
    }

    fn used(&self) -> u64 {
        self.used.load(SeqCst)
    }

    fn try_reserve(self: Arc<Self>, bytes: u64) -> Option<Reserved> {
        let add = |used: u64| used.checked_add(bytes).filter(|&n| n <= self.limit);
        self.used.fetch_update(SeqCst, SeqCst, add).ok()?;
        Some(Box::new(Part(self, bytes)))
    }
}

impl Drop for Part {
    fn drop(&mut self) {
        self.0.used.fetch_sub(self.1, SeqCst);
    }
}

/// A directory where outputs are recorded.
#[derive(Debug)]
pub(super) struct Scratch {
    directory: Arc<tempfile::TempDir>,
    next: AtomicU64,
}

impl Default for Scratch {
    fn default() -> Self {
        Scratch { directory: Arc::new(tempfile::tempdir().unwrap()), next: AtomicU64::new(0) }
    }
}

impl Scratch {
    pub(super) fn path(&self) -> &Path {
        self.directory.path()
    }
}

impl Outputs for Scratch {
    fn promise(&self, staging: &Path, to: &Path) -> Option<Promise> {
        let number = self.next.fetch_add(1, SeqCst);
        let holds = self.directory.clone();
        Some(Promise::new(self.path(), number, holds, staging, to).unwrap())
    }
}
