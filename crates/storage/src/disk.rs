//! Waiting for a disk.
//!
//! A disk that is busy, or a network mount whose server is away, keeps a call of the file system waiting for seconds. On
//! a thread of tokio that call would hold up the tasks of all other statements, and with an unlucky thread the polling of
//! every socket of the process.

use tokio::runtime::{Handle, RuntimeFlavor};

/// Runs calls of the file system where they may wait: on a thread of tokio, other threads take over its tasks.
pub(crate) fn wait<T>(work: impl FnOnce() -> T) -> T {
    match Handle::try_current().map(|runtime| runtime.runtime_flavor()) {
        Ok(RuntimeFlavor::MultiThread) => tokio::task::block_in_place(work),
        _ => work(),
    }
}
