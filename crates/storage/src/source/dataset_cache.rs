//! Cache of opened datasets: an entry is reused if no object read to open it has changed.
//!
//! While a dataset is opened its store notes each object and listing that is read, with its version ([`Seen`]). A
//! later lookup checks all of them concurrently: a request without a body each, or a `stat` of a file.
//!
//! Invariants: the cache holds neither cells nor shard indices; a file that was changed a moment before it was read
//! is not trusted, as another change in the same moment might not show; the cache is bounded.

use crate::lock;
use crate::source::Opened;
use crate::source::reader::{ArrayReader, Layout};
use crate::source::store::Store;
use crate::source::texts;
use crate::source::versions::{SETTLED, Versions};
use futures::{StreamExt, stream};
use object_store::ObjectMeta;
use std::collections::BTreeMap;
use std::fs::Metadata;
use std::os::unix::fs::MetadataExt;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, Mutex};
use std::time::{Duration, SystemTime};
use tessera_planner::catalog::CoordValues;

/// Upper bound on the noted objects of a dataset: with more, opening it again costs no more than checking.
const OBJECTS_MAX: usize = 256;

/// Names of metadata documents of arrays.
const DOCUMENTS: [&str; 3] = ["zarr.json", ".zarray", ".zmetadata"];

/// Upper bound on the concurrent requests of one check.
const CONCURRENT_MAX: usize = 64;

/// Upper bound on the cached datasets.
const DATASETS_MAX: usize = 64;

/// Upper bound on the approximate bytes of labels, and of the readers of joined files, of all cached datasets.
const BYTES_MAX: u64 = 64 << 20;

/// Approximate bytes of the reader of one array in one of several files.
const READER_BYTES: u64 = 512;

/// Version of an object or a listing.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Version {
    /// Nothing exists.
    Absent,
    /// An object, with a text that is unique to its version.
    Object(String),
    /// The names in a directory.
    Names(Vec<String>),
}

/// Objects noted while one dataset is opened.
#[derive(Debug, Default)]
pub(crate) struct Seen {
    notes: Mutex<Notes>,
    closed: AtomicBool,
    /// Notes of the other stores that the dataset is read from.
    others: Mutex<Vec<(Arc<Seen>, Store)>>,
    /// Versions of array data that was read: labels, and files of one array.
    pub(crate) read: Arc<Versions>,
}

#[derive(Debug, Default)]
struct Notes {
    objects: BTreeMap<String, Version>,
    /// Stamps of metadata documents ([`Store::stamp`]).
    stamps: BTreeMap<String, u64>,
    /// True if an object without a checkable version was read.
    unsure: bool,
}

impl Seen {
    pub(crate) fn new() -> Arc<Self> {
        Arc::new(Seen { read: Versions::new(true), ..Seen::default() })
    }

    /// Notes an object, or a directory (whose key ends with a slash); without a version it cannot be checked.
    pub(crate) fn note(&self, key: &str, version: impl FnOnce() -> Option<Version>) {
        if self.closed.load(Relaxed) {
            return;
        }
        let mut notes = lock(&self.notes);
        match version() {
            Some(v) if notes.objects.len() < OBJECTS_MAX => {
                // An object that changed while the dataset was opened has neither version.
                let before = notes.objects.insert(key.to_string(), v.clone());
                notes.unsure |= before.is_some_and(|b| b != v);
            }
            _ => notes.unsure = true,
        }
    }

    pub(crate) fn note_stamp(&self, key: &str, stamp: impl FnOnce() -> u64) {
        let file = key.rsplit('/').next().unwrap_or(key);
        if DOCUMENTS.contains(&file) && !self.closed.load(Relaxed) {
            lock(&self.notes).stamps.insert(key.to_string(), stamp());
        }
    }

    /// The stamp of a metadata document that was read.
    pub(crate) fn stamp(&self, key: &str) -> Option<u64> {
        lock(&self.notes).stamps.get(key).copied()
    }

    /// Notes of another store that is read to open the same dataset as `store`; `None` if that one is not noted.
    pub(crate) fn below(store: &Store) -> Option<Arc<Self>> {
        let read = store.seen()?.read.clone();
        Some(Arc::new(Seen { read, ..Seen::default() }))
    }

    /// Adds the notes of `other`, which were made of `of`, to those of `store`.
    pub(crate) fn adopt(store: &Store, other: Arc<Seen>, of: Store) {
        if let Some(seen) = store.seen() {
            lock(&seen.others).push((other, of));
        }
    }

    /// Ends noting: later reads of cells are not noted. `None` if the notes are incomplete.
    pub(crate) fn close(&self, store: Store) -> Option<Vec<Noticed>> {
        self.closed.store(true, Relaxed);
        let objects = {
            let mut notes = lock(&self.notes);
            let objects = std::mem::take(&mut notes.objects);
            (!notes.unsure && !objects.is_empty()).then_some(objects)?
        };
        let others = std::mem::take(&mut *lock(&self.others));
        let mut out = vec![Noticed { store, objects }];
        for (seen, of) in others {
            out.extend(seen.close(of.unnoted())?);
        }
        Some(out)
    }
}

/// The objects that were read to open a location, with their versions.
#[derive(Debug)]
pub(crate) struct Noticed {
    store: Store,
    objects: BTreeMap<String, Version>,
}

/// A file's version; `None` if it changed too recently for its time stamps to tell.
pub(crate) fn of_file(meta: &Metadata) -> Option<Version> {
    let moment = |s: i64, ns: i64| {
        let since = Duration::new(u64::try_from(s).ok()?, u32::try_from(ns).ok()?);
        SystemTime::UNIX_EPOCH.checked_add(since)
    };
    let changed =
        moment(meta.ctime(), meta.ctime_nsec())?.max(moment(meta.mtime(), meta.mtime_nsec())?);
    let age = SystemTime::now().duration_since(changed).ok()?;
    (age > SETTLED).then(|| {
        Version::Object(format!(
            "{} {} {} {}.{} {}.{}",
            meta.dev(),
            meta.ino(),
            meta.len(),
            meta.mtime(),
            meta.mtime_nsec(),
            meta.ctime(),
            meta.ctime_nsec()
        ))
    })
}

/// An object's version; `None` if the store does not tell versions apart. An object written again has a new version,
/// also with the same contents: absent chunks are checked by the [stamp](Store::stamp).
pub(crate) fn of_object(meta: &ObjectMeta) -> Option<Version> {
    let tag = meta.e_tag.as_ref()?;
    Some(Version::Object(format!("{tag} {}", meta.last_modified.to_rfc3339())))
}

/// Datasets by the key that opens them.
#[derive(Debug, Default)]
pub(crate) struct Kept(Mutex<CacheEntries>);

#[derive(Debug, Default)]
struct CacheEntries {
    by_key: BTreeMap<String, CachedDataset>,
    clock: u64,
}

#[derive(Debug, Clone)]
struct CachedDataset {
    opened: Arc<Opened>,
    noticed: Arc<[Noticed]>,
    bytes: u64,
    used: u64,
}

impl Kept {
    /// Returns the dataset that was opened with `key`, if none of its objects has changed since.
    pub(crate) async fn get(&self, key: &str) -> Option<Opened> {
        let entry = {
            let mut state = lock(&self.0);
            state.clock += 1;
            let clock = state.clock;
            let entry = state.by_key.get_mut(key)?;
            entry.used = clock;
            entry.clone()
        };
        let objects = entry.noticed.iter().flat_map(|n| {
            n.objects.iter().map(|(key, was)| (n.store.clone(), key.clone(), was.clone()))
        });
        let checks = stream::iter(objects.collect::<Vec<_>>())
            .map(|(store, key, was)| async move {
                store.version(&key).await.is_some_and(|is| is == was)
            })
            .buffer_unordered(CONCURRENT_MAX);
        if checks.all(|same| async move { same }).await {
            return Some(again(&entry.opened));
        }
        lock(&self.0).by_key.remove(key);
        None
    }

    /// Caches a dataset, if all objects noted for it can be checked again.
    pub(crate) fn put(&self, key: String, opened: &Opened, noticed: Option<Vec<Noticed>>) {
        let Some(noticed) = noticed else { return };
        let bytes = bytes_of(opened);
        if bytes > BYTES_MAX || opened.readers.iter().any(|r| holds_cells(r)) {
            return;
        }
        let mut state = lock(&self.0);
        state.clock += 1;
        let used = state.clock;
        let (opened, noticed) = (Arc::new(again(opened)), noticed.into());
        state.by_key.insert(key, CachedDataset { opened, noticed, bytes, used });
        let all = |s: &CacheEntries| s.by_key.values().map(|e| e.bytes).sum::<u64>();
        while state.by_key.len() > DATASETS_MAX || all(&state) > BYTES_MAX {
            let oldest = state.by_key.iter().min_by_key(|(_, e)| e.used).map(|(k, _)| k.clone());
            let Some(oldest) = oldest else { break };
            state.by_key.remove(&oldest);
        }
    }
}

/// The same dataset with fresh readers.
fn again(opened: &Opened) -> Opened {
    Opened {
        dataset: opened.dataset.clone(),
        readers: opened.readers.iter().map(|r| Arc::new(r.fresh())).collect(),
        unsupported: opened.unsupported.clone(),
        groups: opened.groups.clone(),
        label: None,
        read: opened.read.clone(),
    }
}

fn bytes_of(opened: &Opened) -> u64 {
    let bytes = |values: &CoordValues| match values {
        CoordValues::Text(texts) => texts::bytes(texts),
        CoordValues::Unreadable(_) => 0,
        numbers => 48 * numbers.len() as u64,
    };
    let labels: u64 = opened.dataset.coords.iter().map(|c| bytes(&c.values)).sum();
    let listed = opened.readers.first().and_then(|r| r.store.manifest());
    let parts = opened.readers.iter().map(|r| match &r.layout {
        Layout::Joined(j) => j.parts.len() as u64,
        _ => 0,
    });
    labels + listed.map_or(0, |m| m.bytes()) + READER_BYTES * parts.sum::<u64>()
}

/// Upper bound on the cells in the metadata of a file that are cached with them.
const INLINE_BYTES_MAX: usize = 64 << 10;

/// True for an array that was unpacked into memory when it was opened.
fn holds_cells(reader: &ArrayReader) -> bool {
    let is_large = |m: &bytes::Bytes| m.len() > INLINE_BYTES_MAX;
    matches!(&reader.layout, Layout::Flat(f) if f.memory.as_ref().is_some_and(is_large))
}
