//! Objects of a dataset: files of a directory, or objects below a prefix of an object store.

mod azure;
mod beside;
mod clients;
mod counters;
mod failure;
mod gcs;
mod hops;
mod listing;
mod local;
mod referred;
mod region;
mod s3;
mod within;

pub use clients::{Client, Found, Reached, Stores};
pub(crate) use clients::{key_of, origin_of};
pub use counters::Counters;
pub use failure::passing;
pub(crate) use local::LocalFile;
pub(crate) use within::Known;

use crate::disk::{self, is_nothing};
use crate::manifest::{Manifest, ManifestRef, Seal};
use crate::source::dataset_cache::{self, Seen, Version};
use crate::source::error::SourceError;
use crate::source::fence::Fenced;
use crate::source::references::References;
use crate::source::versions::{self, ABSENT, Versions};
use bytes::Bytes;
use futures::{StreamExt, TryStreamExt, stream};
use local::{join_path, local_version};
use object_store::{GetOptions, GetRange, ObjectMeta, ObjectStore, ObjectStoreExt};
use std::ops::Range;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::Semaphore;

/// Upper bound on the concurrent requests for one region.
const CONCURRENT_MAX: usize = 16;

/// The same for parts of at most [`SMALL_BYTES`], which take the time of the way there and back.
const CONCURRENT_SMALL_MAX: usize = 64;
const SMALL_BYTES: u64 = 64 << 10;

/// Bytes that [`Store::start`] reads: the metadata of most files begin there.
const START_BYTES: u64 = 256 << 10;

/// Upper bound on the bytes of a metadata document.
pub(crate) const METADATA_BYTES_MAX: u64 = 256 << 20;

/// The objects below one location.
#[derive(Clone)]
pub(crate) struct Store {
    kind: StoreRoot,
    display: Arc<str>,
    timeout: Duration,
    counters: Arc<Counters>,
    /// Each request takes a permit.
    requests: Arc<Semaphore>,
    /// See [`versions::object`].
    origin: u64,
    /// Notes of the objects read while a dataset is opened.
    seen: Option<Arc<Seen>>,
    /// Versions that the statement has read so far, which must not change.
    versions: Option<Arc<Versions>>,
    /// See [`Options::warehouse`](super::Options::warehouse).
    warehouse: bool,
    /// The store's manifest, if it has one.
    manifest: Option<Arc<Manifest>>,
    /// Checks each object, if a statement with restricted access reads the store.
    fence: Option<Arc<Fenced>>,
    /// False if the storage does not return the last bytes of an object without knowing its size (Azure).
    has_suffixes: bool,
    /// True if the first read of a part of an object takes another request, for the header of a member of an archive.
    has_headers: bool,
    /// The references that its objects are.
    references: Option<Arc<References>>,
}

#[derive(Clone)]
enum StoreRoot {
    Local(PathBuf),
    Object { client: Arc<dyn ObjectStore>, prefix: String },
}

/// Components of a store, for writers.
pub(crate) enum Parts {
    Local(PathBuf),
    Object { client: Arc<dyn ObjectStore>, prefix: String, timeout: Duration },
}

/// Names directly below a key.
#[derive(Debug, Default)]
pub(crate) struct Listing {
    pub(crate) directories: Vec<String>,
}

impl std::fmt::Debug for Store {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Store({})", self.display)
    }
}

impl Store {
    /// The object's URL, for messages.
    pub(crate) fn show(&self, key: &str) -> String {
        if key.is_empty() { self.display.to_string() } else { format!("{}/{key}", self.display) }
    }

    /// URL of the store, for messages.
    pub(crate) fn root(&self) -> &str {
        &self.display
    }

    pub(crate) fn counters(&self) -> &Counters {
        &self.counters
    }

    pub(crate) fn is_of_warehouse(&self) -> bool {
        self.warehouse
    }

    /// Checks, when a chunk is absent, that a store of a warehouse exists: its group's metadata are removed first, so
    /// while they exist, an absent chunk was never written, or was lost.
    ///
    /// # Errors
    /// [`SourceError::Changed`] if the store was removed.
    pub(crate) async fn check_there(&self) -> Result<(), SourceError> {
        if self.warehouse && self.head("zarr.json").await?.is_none() {
            return Err(SourceError::Changed { what: self.root().to_string() });
        }
        Ok(())
    }

    /// The same store with its manifest.
    ///
    /// # Errors
    /// [`SourceError::Corrupt`] if the manifest is corrupt or missing, [`SourceError::NotFound`] if the whole store is
    /// missing.
    pub(crate) async fn listed(&self, list: &ManifestRef) -> Result<Store, SourceError> {
        let (key, seal) = (list.file(), list.seal());
        let corrupt = |found: String| self.corrupt(key, seal, found);
        let file = match self.get(key, METADATA_BYTES_MAX.max(seal.bytes)).await {
            Ok(Some(file)) => file,
            Ok(None) if self.head("zarr.json").await?.is_none() => {
                return Err(SourceError::NotFound { what: self.root().to_string() });
            }
            Ok(None) => return Err(corrupt("no such file".into())),
            Err(SourceError::ObjectTooLarge { bytes, .. }) => {
                return Err(corrupt(format!("{bytes} bytes")));
            }
            Err(e) => return Err(e),
        };
        let found = Seal::of(&file);
        if found != seal {
            return Err(corrupt(found.to_string()));
        }
        let manifest = Some(Arc::new(Manifest::decode(&file).map_err(corrupt)?));
        Ok(Store { manifest, ..self.clone() })
    }

    pub(crate) fn manifest(&self) -> Option<&Arc<Manifest>> {
        self.manifest.as_ref()
    }

    /// The error for a file that does not match its seal.
    pub(crate) fn corrupt(&self, key: &str, seal: Seal, found: String) -> SourceError {
        SourceError::Corrupt { path: self.show(key), expected: seal.to_string(), found }
    }

    /// Returns a document that matches the manifest.
    ///
    /// # Errors
    /// [`SourceError::Corrupt`] if it does not match, or the manifest lists it and it is missing.
    pub(crate) async fn document(&self, key: &str) -> Result<Option<Bytes>, SourceError> {
        let listed = self.manifest.as_ref().and_then(|m| m.documents.get(key)).copied();
        let Some(seal) = listed else { return self.get(key, METADATA_BYTES_MAX).await };
        let limit = METADATA_BYTES_MAX.max(seal.bytes);
        match self.get(key, limit).await {
            Ok(Some(file)) if Seal::of(&file) == seal => Ok(Some(file)),
            Ok(Some(file)) => Err(self.corrupt(key, seal, Seal::of(&file).to_string())),
            Ok(None) => Err(self.corrupt(key, seal, "no such file".into())),
            Err(SourceError::ObjectTooLarge { bytes, .. }) => {
                Err(self.corrupt(key, seal, format!("{bytes} bytes")))
            }
            Err(e) => Err(e),
        }
    }

    pub(crate) fn below(&self, key: &str) -> Store {
        let kind = match &self.kind {
            StoreRoot::Local(root) => StoreRoot::Local(join_path(root, key)),
            StoreRoot::Object { client, prefix } => {
                let slash = if prefix.is_empty() || key.is_empty() { "" } else { "/" };
                StoreRoot::Object {
                    client: client.clone(),
                    prefix: format!("{prefix}{slash}{key}"),
                }
            }
        };
        let (seen, versions) = (None, None);
        Store { kind, display: self.show(key).into(), seen, versions, ..self.clone() }
    }

    /// The same store, which notes the objects that are read.
    pub(crate) fn noting(&self, seen: &Arc<Seen>) -> Store {
        Store { seen: Some(seen.clone()), ..self.clone() }
    }

    /// The objects of `client` as a store with the bounds of this one.
    pub(crate) fn over(&self, client: Arc<dyn ObjectStore>) -> Store {
        let kind = StoreRoot::Object { client, prefix: String::new() };
        Store { kind, fence: None, references: None, ..self.clone() }
    }

    pub(crate) fn seen(&self) -> Option<&Arc<Seen>> {
        self.seen.as_ref()
    }

    /// The same store without notes.
    pub(crate) fn unnoted(&self) -> Store {
        Store { seen: None, ..self.clone() }
    }

    /// The same store for a statement with the earlier reads `versions`.
    pub(crate) fn read_for(&self, versions: &Arc<Versions>) -> Store {
        Store { versions: Some(versions.clone()), seen: None, ..self.clone() }
    }

    /// The same store, whose reads are noted for the cache of opened datasets.
    pub(crate) fn opening(&self) -> Store {
        let versions = self.seen.as_ref().map(|s| s.read.clone());
        Store { versions, ..self.clone() }
    }

    fn object(&self, key: &str) -> u64 {
        versions::object(self.origin, &self.display, key)
    }

    /// Records the version of an object that was read; fails if the statement read another version before.
    fn met(&self, key: &str, version: u64, tag: Option<&str>) -> Result<(), SourceError> {
        match &self.versions {
            Some(v) if !v.met(self.object(key), version, tag) => Err(self.changed(key)),
            _ => Ok(()),
        }
    }

    /// Like [`Store::met`], for a response, which is `None` if the object does not exist.
    fn met_answer(&self, key: &str, meta: Option<&ObjectMeta>) -> Result<(), SourceError> {
        let (version, tag) = meta.map_or((ABSENT, None), versions::of_object);
        self.met(key, version, tag)
    }

    /// The etag of an object that the statement read before.
    fn tag(&self, key: &str) -> Option<String> {
        self.versions.as_ref()?.tag(self.object(key))
    }

    fn changed(&self, key: &str) -> SourceError {
        SourceError::Changed { what: self.show(key) }
    }

    fn note(&self, key: &str, version: impl FnOnce() -> Option<Version>) {
        if let Some(seen) = &self.seen {
            seen.note(key, version);
        }
    }

    fn note_stamp(&self, key: &str, stamp: impl FnOnce() -> u64) {
        if let Some(seen) = &self.seen {
            seen.note_stamp(key, stamp);
        }
    }

    /// The [stamp](Store::stamp) of a metadata document that was read to open the store.
    pub(crate) fn stamp_seen(&self, key: &str) -> Option<u64> {
        self.seen.as_ref()?.stamp(key)
    }

    /// A number by which the object of a key differs from earlier and later ones; `None` if it does not exist.
    pub(crate) async fn stamp(&self, key: &str) -> Result<Option<u64>, SourceError> {
        match &self.kind {
            StoreRoot::Local(root) => match disk::wait(|| join_path(root, key).metadata()) {
                Ok(meta) if meta.is_file() => Ok(Some(versions::of_file(&meta))),
                Ok(_) => Ok(None),
                Err(e) if is_nothing(&e) => Ok(None),
                Err(e) => Err(self.io_error(key, &e)),
            },
            StoreRoot::Object { client, prefix } => {
                let path = self.path(prefix, key)?;
                let meta = self.guard(key, client.head(&path)).await?;
                Ok(meta.as_ref().map(versions::stamp_of))
            }
        }
    }

    /// The current version under a key that was noted; `None` if it is unknown.
    pub(crate) async fn version(&self, key: &str) -> Option<Version> {
        match (&self.kind, key.strip_suffix('/')) {
            (_, Some(directory)) => {
                let names = self.list(directory).await.ok()?.directories;
                Some(Version::Names(names))
            }
            (StoreRoot::Local(root), None) => {
                match disk::wait(|| join_path(root, key).metadata()) {
                    Ok(meta) if meta.is_file() => dataset_cache::of_file(&meta),
                    Ok(_) => Some(Version::Absent),
                    Err(e) if is_nothing(&e) => Some(Version::Absent),
                    Err(_) => None,
                }
            }
            (StoreRoot::Object { client, prefix }, None) => {
                let path = self.path(prefix, key).ok()?;
                match self.guard(key, client.head(&path)).await.ok()? {
                    Some(meta) => dataset_cache::of_object(&meta),
                    None => Some(Version::Absent),
                }
            }
        }
    }

    /// An object or a part of it, with its description.
    async fn fetch(
        &self,
        client: &Arc<dyn ObjectStore>,
        prefix: &str,
        key: &str,
        range: GetRange,
    ) -> Result<Option<(Bytes, ObjectMeta)>, SourceError> {
        self.fetch_of(client, prefix, key, (range, None)).await
    }

    /// Like [`Store::fetch`], for the version with an etag, unless the statement read another one.
    async fn fetch_of(
        &self,
        client: &Arc<dyn ObjectStore>,
        prefix: &str,
        key: &str,
        (range, tag): (GetRange, Option<String>),
    ) -> Result<Option<(Bytes, ObjectMeta)>, SourceError> {
        let path = self.path(prefix, key)?;
        let if_match = self.tag(key).or(tag);
        let options = GetOptions { range: Some(range), if_match, ..GetOptions::default() };
        let got = self
            .guard(key, async {
                let r = client.get_opts(&path, options).await?;
                let meta = r.meta.clone();
                Ok((r.bytes().await?, meta))
            })
            .await?;
        self.note(key, || match &got {
            Some((_, meta)) => dataset_cache::of_object(meta),
            None => Some(Version::Absent),
        });
        self.met_answer(key, got.as_ref().map(|(_, meta)| meta))?;
        Ok(got)
    }

    pub(crate) fn parts(&self) -> Parts {
        match &self.kind {
            StoreRoot::Local(root) => Parts::Local(root.clone()),
            StoreRoot::Object { client, prefix } => Parts::Object {
                client: client.clone(),
                prefix: prefix.clone(),
                timeout: self.timeout,
            },
        }
    }

    pub(crate) fn is_local(&self) -> bool {
        matches!(self.kind, StoreRoot::Local(_))
    }

    /// Returns a whole object of at most `limit` bytes; `None` if it does not exist.
    pub(crate) async fn get(&self, key: &str, limit: u64) -> Result<Option<Bytes>, SourceError> {
        let too_large = |bytes| SourceError::ObjectTooLarge { what: self.show(key), bytes, limit };
        match &self.kind {
            StoreRoot::Local(root) => disk::wait(|| {
                let Some(file) = self.open_file(root, key)? else { return Ok(None) };
                if file.len > limit {
                    return Err(too_large(file.len));
                }
                let bytes = self.read_at(&file, 0..file.len)?;
                self.check_same(&file)?;
                self.note_stamp(key, || file.version);
                Ok(Some(bytes))
            }),
            StoreRoot::Object { client, prefix } => {
                let path = self.path(prefix, key)?;
                let options = GetOptions { if_match: self.tag(key), ..GetOptions::default() };
                let got = self
                    .guard(key, async {
                        let r = client.get_opts(&path, options).await?;
                        let meta = r.meta.clone();
                        if meta.size > limit {
                            return Ok(Err(meta.size));
                        }
                        Ok(Ok((r.bytes().await?, meta)))
                    })
                    .await?;
                self.note(key, || match &got {
                    Some(Ok((_, meta))) => dataset_cache::of_object(meta),
                    Some(Err(_)) => None,
                    None => Some(Version::Absent),
                });
                match got {
                    None => self.met_answer(key, None).map(|()| None),
                    Some(Err(size)) => Err(too_large(size)),
                    Some(Ok((bytes, meta))) => {
                        self.met_answer(key, Some(&meta))?;
                        self.note_stamp(key, || versions::stamp_of(&meta));
                        Ok(Some(bytes))
                    }
                }
            }
        }
    }

    /// Returns the first bytes of an object, its size and its version; `None` if it does not exist.
    pub(crate) async fn start(
        &self,
        key: &str,
    ) -> Result<Option<(Bytes, u64, Option<String>)>, SourceError> {
        match &self.kind {
            StoreRoot::Local(root) => disk::wait(|| {
                let Some(file) = self.open_file(root, key)? else { return Ok(None) };
                let meta = self.io(key, file.file.metadata())?;
                let bytes = self.read_at(&file, 0..file.len.min(START_BYTES))?;
                self.check_same(&file)?;
                Ok(Some((bytes, file.len, local_version(&meta))))
            }),
            StoreRoot::Object { client, prefix } => {
                match self.fetch(client, prefix, key, GetRange::Bounded(0..START_BYTES)).await {
                    Ok(got) => Ok(got.map(|(bytes, meta)| (bytes, meta.size, meta.e_tag))),
                    // An empty object has no part to send.
                    Err(e @ SourceError::Refused { .. }) => match self.head(key).await {
                        Ok(Some((0, version))) => Ok(Some((Bytes::new(), 0, version))),
                        _ => Err(e),
                    },
                    Err(e) => Err(e),
                }
            }
        }
    }

    /// Returns parts of an object, in the given order, fetched concurrently; `None` if it does not exist. A part
    /// beyond the end of the object is short. An empty part makes no request, as stores reject those.
    pub(crate) async fn get_ranges(
        &self,
        key: &str,
        ranges: &[Range<u64>],
    ) -> Result<Option<Vec<Bytes>>, SourceError> {
        match &self.kind {
            StoreRoot::Local(_) => disk::wait(|| self.get_ranges_local(key, ranges)),
            StoreRoot::Object { client, prefix } => {
                let one = async |r: Range<u64>| match r.is_empty() {
                    true => Ok(Some(Bytes::new())),
                    false => {
                        let got = self.fetch(client, prefix, key, GetRange::Bounded(r)).await?;
                        Ok(got.map(|(bytes, _)| bytes))
                    }
                };
                let are_small = ranges.iter().all(|r| r.end.saturating_sub(r.start) <= SMALL_BYTES);
                let concurrent = if are_small { CONCURRENT_SMALL_MAX } else { CONCURRENT_MAX };
                let parts: Vec<Option<Bytes>> = stream::iter(ranges.to_vec())
                    .map(one)
                    .buffered(concurrent)
                    .try_collect()
                    .await?;
                Ok(parts.into_iter().collect())
            }
        }
    }

    /// Returns the last `n` bytes of an object (all, if it has fewer); `None` if it does not exist.
    pub(crate) async fn get_suffix(&self, key: &str, n: u64) -> Result<Option<Bytes>, SourceError> {
        match &self.kind {
            StoreRoot::Local(root) => disk::wait(|| {
                let Some(file) = self.open_file(root, key)? else { return Ok(None) };
                let bytes = self.read_at(&file, file.len - n.min(file.len)..file.len)?;
                self.check_same(&file)?;
                Ok(Some(bytes))
            }),
            StoreRoot::Object { client, prefix } if self.has_suffixes => {
                let got = self.fetch(client, prefix, key, GetRange::Suffix(n)).await?;
                Ok(got.map(|(bytes, _)| bytes))
            }
            StoreRoot::Object { client, prefix } => {
                let Some((size, tag)) = self.head(key).await? else { return Ok(None) };
                let range = size - n.min(size)..size;
                if range.is_empty() {
                    return Ok(Some(Bytes::new()));
                }
                let part = (GetRange::Bounded(range), tag.filter(|tag| !tag.starts_with("W/")));
                let got = self.fetch_of(client, prefix, key, part).await?;
                Ok(got.map(|(bytes, _)| bytes))
            }
        }
    }

    /// Size of an object in bytes, and its version; `None` if it does not exist.
    pub(crate) async fn head(
        &self,
        key: &str,
    ) -> Result<Option<(u64, Option<String>)>, SourceError> {
        match &self.kind {
            StoreRoot::Local(root) => disk::wait(|| {
                let Some(file) = self.open_file(root, key)? else { return Ok(None) };
                let meta = self.io(key, file.file.metadata())?;
                Ok(Some((meta.len(), local_version(&meta))))
            }),
            StoreRoot::Object { client, prefix } => {
                let path = self.path(prefix, key)?;
                let meta = self.guard(key, client.head(&path)).await?;
                self.note(key, || match &meta {
                    Some(m) => dataset_cache::of_object(m),
                    None => Some(Version::Absent),
                });
                self.met_answer(key, meta.as_ref())?;
                Ok(meta.map(|m| (m.size, m.e_tag)))
            }
        }
    }

    /// True if there are objects below the location of an object store, as far as visible.
    pub(crate) async fn is_prefix(&self) -> bool {
        let StoreRoot::Object { client, prefix } = &self.kind else { return false };
        let Ok(path) = self.path(prefix, "") else { return false };
        let listed = self.guard("", client.list_with_delimiter(Some(&path))).await;
        matches!(listed, Ok(Some(l)) if !l.objects.is_empty() || !l.common_prefixes.is_empty())
    }

    /// True if the location has neither objects nor prefixes, as far as visible.
    pub(crate) async fn is_empty(&self) -> bool {
        match &self.kind {
            StoreRoot::Local(root) => disk::wait(|| !root.exists()),
            StoreRoot::Object { client, prefix } => {
                let Ok(path) = self.path(prefix, "") else { return true };
                match self.guard("", client.list_with_delimiter(Some(&path))).await {
                    Ok(Some(l)) if !l.objects.is_empty() || !l.common_prefixes.is_empty() => false,
                    _ => prefix.is_empty() || !matches!(self.head("").await, Ok(Some(_))),
                }
            }
        }
    }

    /// The directories directly below `key`, sorted.
    pub(crate) async fn list(&self, key: &str) -> Result<Listing, SourceError> {
        let mut out = Listing::default();
        match &self.kind {
            StoreRoot::Local(root) => disk::wait(|| -> Result<(), SourceError> {
                let directory = join_path(root, key);
                if let Some(fence) = &self.fence {
                    fence.listed(&directory, &self.show(key))?;
                }
                let entries = self.io(key, std::fs::read_dir(directory))?;
                for entry in entries {
                    let entry = self.io(key, entry)?;
                    // Names that are not UTF-8 cannot be used in a query either.
                    if let Ok(name) = entry.file_name().into_string()
                        && entry.path().is_dir()
                    {
                        out.directories.push(name);
                    }
                }
                Ok(())
            })?,
            StoreRoot::Object { client, prefix } => {
                let path = self.path(prefix, key)?;
                let listed = self.guard(key, client.list_with_delimiter(Some(&path))).await?;
                let listed =
                    listed.ok_or_else(|| SourceError::NotFound { what: self.show(key) })?;
                out.directories.extend(
                    listed.common_prefixes.iter().filter_map(|p| p.filename()).map(str::to_string),
                );
            }
        }
        out.directories.sort();
        self.note(&format!("{key}/"), || Some(Version::Names(out.directories.clone())));
        Ok(out)
    }

    fn path(&self, prefix: &str, key: &str) -> Result<object_store::path::Path, SourceError> {
        let full = match (prefix.is_empty(), key.is_empty()) {
            (true, _) => key.to_string(),
            (_, true) => prefix.to_string(),
            _ => format!("{prefix}/{key}"),
        };
        if let Some(fence) = &self.fence {
            fence.object(&full, &self.show(key))?;
        }
        object_store::path::Path::parse(&full)
            .map_err(|e| SourceError::BadUrl { url: self.show(key), reason: e.to_string() })
    }
}
