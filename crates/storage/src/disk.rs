//! Blocking file system calls.
//!
//! A busy disk, or a network mount whose server does not respond, can block a call of the file system for seconds. On a
//! thread of tokio that call would delay the tasks of all other statements, and on some threads the polling of every
//! socket of the process.

use std::io;
use std::path::Path;
use tokio::runtime::{Handle, RuntimeFlavor};

/// Runs blocking calls of the file system: on a thread of tokio, other threads take over its tasks.
pub(crate) fn wait<T>(work: impl FnOnce() -> T) -> T {
    match Handle::try_current().map(|runtime| runtime.runtime_flavor()) {
        Ok(RuntimeFlavor::MultiThread) => tokio::task::block_in_place(work),
        _ => work(),
    }
}

/// Logs that a file, or a directory, could not be removed, unless there is none any more.
pub fn warn_unless_removed(path: &Path, removed: io::Result<()>) {
    if let Err(e) = removed
        && e.kind() != io::ErrorKind::NotFound
    {
        tracing::warn!(path = %path.display(), "cannot be removed: {e}");
    }
}

/// True if an error means that a file does not exist.
pub(crate) fn is_nothing(e: &io::Error) -> bool {
    matches!(e.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory)
}
