//! Writes results from a running plan to a store.
//!
//! 1. [`Target::parse`] parses the target; [`Target::check`] fails if it already exists.
//! 2. A writer ([`ZarrWriter`]) takes the cells of chunks as a plan computes them, encodes them on the thread that
//!    computed them, writes them, and drops them. Stream formats are written to an [`ObjectWriter`] instead, when the
//!    result is complete.
//! 3. `finish` writes the metadata and gives the result its name; `abort`, or dropping the writer, leaves nothing.
//!
//! Invariants: no array is ever held whole; memory for encoding and uploads is reserved before the plan starts
//! (`budget`); incomplete output is never visible under the final name of a file or a local directory. Objects below
//! an S3 prefix cannot be renamed together: there the metadata are written last, and without them there is no store.

mod append;
mod budget;
mod destination;
mod error;
mod file;
mod folder;
mod leftovers;
mod parts;
mod promise;
mod target;
mod zarr;

pub use append::{Append, Earlier, check_labels};
pub use error::SinkError;
pub use file::{Failure, ObjectWriter};
pub use folder::{FileLock, Folder, Mode, Version};
pub use leftovers::{Claim, Leftover};
pub use promise::Promise;
pub use target::{Target, Written};
pub use zarr::{
    Codec, Encoded, EncodedPart, Item, Layout, Other, PartBatch, PartEntry, PartWriter, Shards,
    SharedOutput, ZarrWriter, cf,
};
pub(crate) use zarr::{ROLE_KEY, VALID_KEY};

use crate::source::Stores;
use std::any::Any;
use std::fmt::Debug;
use std::path::Path;
use std::sync::Arc;
use tokio::runtime::Handle;

/// Resources that writers share with the rest of the process.
#[derive(Debug, Clone)]
pub struct Host {
    /// Connections to stores.
    pub stores: Arc<Stores>,
    /// The budget that buffers of writers are charged to.
    pub quota: Arc<dyn Memory>,
    /// The runtime for uploads.
    pub io: Handle,
    /// Number of compute threads: the number of chunks encoded concurrently, if memory allows.
    pub threads: usize,
    /// The record of incomplete outputs.
    pub store: Arc<dyn Outputs>,
}

/// A budget of bytes.
pub trait Memory: Debug + Send + Sync {
    /// Limit of the budget in bytes.
    fn limit(&self) -> u64;

    /// Bytes in use.
    fn used(&self) -> u64;

    /// Reserves bytes at once, or not at all.
    fn try_reserve(self: Arc<Self>, bytes: u64) -> Option<Reserved>;
}

/// Reserved bytes of a [`Memory`], released on drop.
pub type Reserved = Box<dyn Any + Send + Sync>;

/// A record of incomplete outputs.
pub trait Outputs: Debug + Send + Sync {
    /// Records that `staging` will be renamed to `to`. `None` if that cannot be recorded: then a killed process leaves
    /// the output behind.
    fn promise(&self, staging: &Path, to: &Path) -> Option<Promise>;
}

#[cfg(test)]
mod tests;
