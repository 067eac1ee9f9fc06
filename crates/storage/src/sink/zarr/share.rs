//! The owner's side of chunks that other processes write: the parameters that they need, and their reports.

use super::array::{Array, Facts};
use super::document::ArrayDocument;
use super::{Layout, ZarrWriter};
use crate::lock;
use crate::manifest::{Seal, Stored, index_of};
use crate::sink::SinkError;
use crate::sink::destination::Destination;
use crate::sink::parts::PARTS;
use crate::sink::target::{Reopen, Target};
use crate::source::is_in_memory;
use serde::{Deserialize, Serialize};
use std::path::Path;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, Mutex, OnceLock};
use std::time::Duration;
use tessera_planner::dtype::DType;
use tessera_planner::region::Dims;
use tokio::sync::watch;

/// Time that the owner of objects in a bucket waits for other processes to stop writing. A process that takes longer is
/// lost, and its objects are never copied.
const OTHERS_WAIT: Duration = Duration::from_secs(6);

/// The parameters with which another process writes chunks of a store. The serde form includes the secrets of its
/// options.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct SharedOutput {
    /// The name of the directory of its parts.
    pub(super) id: String,
    pub(super) place: Place,
    /// URL of the store, for messages.
    pub(super) display: String,
    pub(super) format: u8,
    pub(super) codec: String,
    pub(super) listed: bool,
    pub(super) arrays: Vec<SharedArray>,
}

impl SharedOutput {
    /// URL of the store, without credentials.
    pub fn display(&self) -> &str {
        &self.display
    }
}

/// The place of the store.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(super) enum Place {
    Local {
        root: String,
        /// See [`Destination::Local`].
        private: bool,
    },
    Bucket {
        reopen: Box<Reopen>,
        /// True if no other output ever has the same keys.
        unique: bool,
    },
}

/// An array of the store: a result of the plan.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(super) struct SharedArray {
    pub(super) name: String,
    pub(super) dtype: DType,
    pub(super) shape: Dims,
    pub(super) chunks: Dims,
    pub(super) shards: Option<Dims>,
    /// Name of the validity array, if cells can be masked.
    pub(super) valid: Option<String>,
}

impl SharedArray {
    fn of(array: &Array) -> Self {
        let document = &array.document;
        let object = document.object.clone();
        let (chunks, shards) = match &document.inner {
            Some(inner) => (inner.clone(), Some(object)),
            None => (object, None),
        };
        SharedArray {
            name: document.name.clone(),
            dtype: array.dtype,
            shape: document.shape.clone(),
            chunks,
            shards,
            valid: array.valid.as_ref().map(|v| v.document.name.clone()),
        }
    }
}

/// A chunk of a result that another process wrote.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PartEntry {
    pub(super) result: u32,
    /// Number of the chunk in its array, row-major.
    pub(super) number: u64,
    pub(super) cells: Option<Seal>,
    pub(super) valid: Option<Seal>,
    pub(super) masked: bool,
    pub(super) collides: bool,
}

impl PartEntry {
    /// True if the owner has nothing to know of the chunk.
    pub(super) fn is_empty(&self) -> bool {
        (self.cells, self.valid, self.masked, self.collides) == (None, None, false, false)
    }

    /// Number of its objects, and their bytes.
    pub fn amount(&self) -> (u64, u64) {
        let seals = [self.cells, self.valid].into_iter().flatten();
        seals.fold((0, 0), |(n, bytes), seal| (n + 1, bytes + seal.bytes))
    }
}

/// The chunks of a store that other processes write.
#[derive(Debug)]
pub(super) struct Sharing {
    reopen: Reopen,
    /// True if no other output ever has the same keys.
    unique: bool,
    /// The name of the directory of parts, once there is one.
    id: OnceLock<String>,
    reported: Mutex<Vec<Reported>>,
    pub(super) others: Others,
}

/// The objects of one array.
#[derive(Debug, Default)]
struct Reported {
    cells: Vec<Stored>,
    valid: Vec<Stored>,
}

impl Sharing {
    pub(super) fn new(target: &Target, unique: bool, arrays: usize) -> Self {
        let mut reported = Vec::new();
        reported.resize_with(arrays, Reported::default);
        Sharing {
            reopen: target.reopen.clone(),
            unique,
            id: OnceLock::new(),
            reported: Mutex::new(reported),
            others: Others::default(),
        }
    }
}

/// Number of other processes that may be writing.
#[derive(Debug, Clone, Default)]
pub(super) struct Others(Arc<watch::Sender<usize>>);

impl Others {
    /// Waits until they have ended, for a bounded time.
    pub(super) async fn ended(&self) {
        let mut count = self.0.subscribe();
        if tokio::time::timeout(OTHERS_WAIT, count.wait_for(|n| *n == 0)).await.is_err() {
            tracing::warn!(
                "a worker that writes chunks of an output does not respond: it counts as lost"
            );
        }
    }
}

/// Another process that may be writing chunks: their owner waits until it is dropped.
#[derive(Debug)]
pub struct Other(Others);

impl Drop for Other {
    fn drop(&mut self) {
        self.0.0.send_modify(|n| *n -= 1);
    }
}

impl ZarrWriter {
    /// Lets other processes write chunks too, with [`PartWriter`](super::PartWriter). `None` if they cannot: the store is
    /// in the memory of this one, or its path cannot be sent because it is not UTF-8.
    ///
    /// # Errors
    /// Errors of the storage.
    pub async fn share(&self) -> Result<Option<SharedOutput>, SinkError> {
        let place = match &self.destination {
            Destination::Local { root, private, .. } => {
                let root = std::path::absolute(root);
                let root = root.map_err(|e| SinkError::io(self.display.as_str(), &e))?;
                let Some(root) = root.to_str().map(String::from) else { return Ok(None) };
                Place::Local { root, private: *private }
            }
            Destination::Object { .. } if is_in_memory(&self.display) => return Ok(None),
            Destination::Object { .. } => {
                let reopen = Box::new(self.sharing.reopen.clone());
                Place::Bucket { reopen, unique: self.sharing.unique }
            }
        };
        let id = self.sharing.id.get_or_init(|| uuid::Uuid::new_v4().simple().to_string());
        self.destination.open_parts(id).await?;
        Ok(Some(SharedOutput {
            id: id.clone(),
            place,
            display: self.display.clone(),
            format: self.layout.format,
            codec: self.layout.codec.to_string(),
            listed: self.layout.listed,
            arrays: self.arrays.iter().map(SharedArray::of).collect(),
        }))
    }

    /// Marks another process as writing until the returned value is dropped.
    pub fn other(&self) -> Other {
        self.sharing.others.0.send_modify(|n| *n += 1);
        Other(self.sharing.others.clone())
    }

    /// Adds chunks that another process wrote. A chunk that was written again replaces the earlier one.
    ///
    /// # Errors
    /// A chunk that the store does not have.
    pub fn add(&self, entries: &[PartEntry]) -> Result<(), SinkError> {
        let mut reported = lock(&self.sharing.reported);
        for entry in entries {
            let result = entry.result as usize;
            let (Some(array), Some(of)) = (self.arrays.get(result), reported.get_mut(result))
            else {
                return Err(self.unknown(entry));
            };
            let count: u64 = array.document.grid().iter().product();
            let stored = |seal: &Option<Seal>| match seal {
                None => Some(None),
                Some(seal) => Stored::new(entry.number, *seal).map(Some),
            };
            let (Some(cells), Some(valid)) = (stored(&entry.cells), stored(&entry.valid)) else {
                return Err(self.unknown(entry));
            };
            if entry.number >= count || (valid.is_some() && array.valid.is_none()) {
                return Err(self.unknown(entry));
            }
            let PartEntry { masked, collides, .. } = *entry;
            array.note(Facts { masked, collides, valid: valid.is_some() });
            of.cells.extend(cells);
            of.valid.extend(valid);
        }
        Ok(())
    }

    fn unknown(&self, entry: &PartEntry) -> SinkError {
        SinkError::Internal {
            what: self.display.clone(),
            reason: format!("it has no chunk {} of result {}", entry.number, entry.result),
        }
    }

    /// Takes over the chunks that other processes wrote. Later ones are refused.
    pub(super) async fn take_parts(&self) -> Result<(), SinkError> {
        let Some(id) = self.sharing.id.get() else { return Ok(()) };
        let is_remote = !self.destination.is_local();
        if is_remote {
            self.sharing.others.ended().await;
        }
        self.destination.fence_parts()?;
        let reported = std::mem::take(&mut *lock(&self.sharing.reported));
        for (array, Reported { cells, valid }) in self.arrays.iter().zip(reported) {
            self.take(id, &array.document, cells, true).await?;
            if let Some(of) = &array.valid {
                self.take(id, &of.document, valid, array.keeps_valid()).await?;
            }
        }
        if is_remote { self.destination.remove_all(PARTS).await } else { Ok(()) }
    }

    async fn take(
        &self,
        id: &str,
        document: &ArrayDocument,
        stored: Vec<Stored>,
        is_kept: bool,
    ) -> Result<(), SinkError> {
        let stored = last_of_each(stored);
        let bytes: u64 = stored.iter().map(|s| s.seal().bytes).sum();
        self.objects.fetch_add(stored.len() as u64, Relaxed);
        self.bytes.fetch_add(bytes, Relaxed);
        if is_kept && !self.sharing.unique {
            let grid = document.grid();
            let key = |s: &Stored| document.key(&index_of(&grid, s.number));
            self.destination.copy_parts(id, stored.iter().map(key)).await?;
        }
        if self.layout.listed {
            self.listed.add(&document.name, stored);
        }
        Ok(())
    }

    /// Keeps other processes from writing, before the output is removed.
    pub(super) async fn close_parts(&self) {
        if self.sharing.id.get().is_none() {
            return;
        }
        if !self.destination.is_local() {
            return self.sharing.others.ended().await;
        }
        if let Err(e) = self.destination.fence_parts() {
            tracing::warn!(target = self.display, error = %e, "other processes may still write chunks of a removed output");
        }
    }
}

/// Removes all but the last entry of each number.
fn last_of_each(mut stored: Vec<Stored>) -> Vec<Stored> {
    // Equal numbers stay in their order.
    stored.sort_by_key(|s| s.number);
    stored.reverse();
    stored.dedup_by_key(|s| s.number);
    stored
}

/// The layout of a shared store, for a process that writes chunks.
pub(super) fn layout(shared: &SharedOutput) -> Result<Layout, SinkError> {
    let codec = super::Codec::parse(&shared.codec)?;
    let (format, listed) = (shared.format, shared.listed);
    Ok(Layout { format, codec, listed, ..Layout::default() })
}

/// The destination of a shared store in this process.
pub(super) fn destination(
    shared: &SharedOutput,
    stores: &crate::source::Stores,
) -> Result<Destination, SinkError> {
    match &shared.place {
        Place::Local { root, private } => Ok(Destination::Local {
            root: Path::new(root).into(),
            display: shared.display.as_str().into(),
            private: *private,
        }),
        Place::Bucket { reopen, .. } => reopen.destination(&shared.display, stores),
    }
}
