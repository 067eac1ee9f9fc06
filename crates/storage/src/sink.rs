//! Results that are kept: from a running plan to a store.
//!
//! 1. [`Target::parse`] reads where to; [`Target::check`] says whether something is there already.
//! 2. A writer ([`ZarrWriter`]) is the [`crate::schedule::Sink`]
//!    of the plan: it takes chunks as they come, encodes them on the thread that computed them, writes, and lets go.
//!    Formats that are streams write to an [`ObjectWriter`] instead, when the result is there.
//! 3. `finish` writes the metadata and gives the result its name; `abort`, or dropping the writer, leaves nothing.
//!
//! Invariants: no array is ever held whole; what encoding and uploads need is reserved before the plan starts
//! (`budget`); nothing half-written is ever seen under the final name of a file or a local directory. Objects below
//! an S3 prefix cannot be renamed together: there the metadata come last, and without them there is no store.

mod budget;
mod error;
mod file;
mod folder;
mod leftovers;
mod place;
mod target;
mod zarr;

pub use error::SinkError;
pub use file::{Failure, ObjectWriter};
pub use folder::{Folder, Held, Mode, Version};
pub use leftovers::{Claim, Leftover};
pub use target::{Target, Written};
pub use zarr::{Codec, Item, Layout, Shards, ZarrWriter};
pub(crate) use zarr::{UNNAMED_KEY, VALID_KEY};

use crate::quota::Quota;
use crate::source::Stores;
use crate::store::{Promise, Store};
use std::path::Path;
use std::sync::Arc;
use tokio::runtime::Handle;

/// What writers share with the rest of the process.
#[derive(Debug, Clone)]
pub struct Host {
    /// Connections.
    pub stores: Arc<Stores>,
    /// The budget that buffers of writers are charged to.
    pub quota: Arc<Quota>,
    /// Where uploads run.
    pub io: Handle,
    /// Threads that compute: as many chunks are encoded at a time, if memory allows.
    pub threads: usize,
    /// Where it is told which outputs are not whole yet.
    pub store: Arc<Store>,
}

impl Host {
    /// Tells of an output under another name. Without a place to tell of it a killed process leaves the output behind.
    fn promise(&self, staging: &Path, to: &Path) -> Option<Promise> {
        match self.store.promise(staging, to) {
            Ok(promise) => Some(promise),
            Err(e) => {
                tracing::debug!(output = %staging.display(), "nothing tells of an output: {e}");
                None
            }
        }
    }
}

#[cfg(test)]
pub(crate) mod tests;
