//! The durable half of the catalog: one JSON file for each name, `catalog/<name>.json`, in a directory or below a
//! prefix of a bucket.
//!
//! ```text
//!   warehouse.json            the format of the warehouse
//!   catalog/<name>.json       an entry, written atomically; it begins with its checksum ([`crate::sealed`])
//!   data/<uuid>.zarr/         the cells of a tensor; unreachable until an entry names it. A server adds its
//!                             epoch: `data/s<epoch>-<uuid>.zarr/`. The entry has the checksum of the list of its
//!                             files, and the list has those of the files ([`tessera_storage::manifest`])
//!   key                       the key that encrypts secrets in entries and records ([`crate::secrets`])
//!   data/<uuid>.lock          held by the writer of the cells, until then
//!   files/                    files that statements copy; they read by path only here and below data/
//!   statements/, epochs/      the journal of servers ([`crate::journal`])
//!   epochs/catalog.lock       held while an entry of a directory is compared and replaced, or removed
//! ```
//! Cells are written first and never change. The entry makes them a tensor, and is removed first when the tensor is
//! dropped. Cells that statements of this process still read are removed with the last of these ([`Pin`]).
//! [`Warehouse::collect`] removes leftovers of a killed process in `data/`: no entry names them, no statement that will
//! run again reads them, and no process holds their lock.

mod entry;
mod file_name;

pub(crate) use entry::{Definition, Entry};

use crate::error::Error;
use crate::journal::{EPOCHS, Epoch, Journal, STATEMENTS};
use crate::sealed;
use crate::secrets::Sealer;
use crate::session::failure::Failure;
use file_name::{key, unescaped};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tessera_storage::sink::{Claim, FileLock, Folder, Mode, SinkError, Target, Version};
use tessera_storage::source::{Options, SourceError, Stores};

/// The format that this version reads and writes.
const FORMAT_VERSION: u32 = 1;

/// The document that holds the format of the warehouse.
pub(super) const MARK: &str = "warehouse.json";

/// Directory of the entries.
const CATALOG: &str = "catalog";

/// Directory of the cells.
const DATA: &str = "data";

/// Directory of files that statements write and read by path.
const FILES: &str = "files";

/// Prefix of the names of cells that a server wrote; its epoch follows. Names of other processes never begin with it.
const SERVER: &str = "s";

/// Attempts to claim a name for the cells of a tensor.
const CLAIMS_MAX: u32 = 16;

/// Cells that no entry names and that have no lock are leftovers after this time: no statement takes so long.
const AGE: Duration = Duration::from_secs(24 * 3600);

/// The lock of processes that replace or remove entries of a directory. Below `catalog/` it would be listed.
const CHANGES: &str = "epochs/catalog.lock";

/// Keeps cells of the warehouse until it drops, even if their entry is removed.
#[derive(Debug)]
pub struct Pin {
    warehouse: Arc<Warehouse>,
    data: String,
}

impl Pin {
    /// Drops the pin, and waits for the removal of the cells if it was the last pin of cells to be removed.
    pub(crate) async fn release(mut self) {
        let data = std::mem::take(&mut self.data);
        if let Some(doomed) = self.warehouse.unpin(&data) {
            self.warehouse.erase_doomed(&data, doomed).await;
        }
    }
}

impl Drop for Pin {
    fn drop(&mut self) {
        if let Some(doomed) = self.warehouse.unpin(&self.data) {
            let (warehouse, data) = (self.warehouse.clone(), std::mem::take(&mut self.data));
            let io = warehouse.io.clone();
            io.spawn(async move { warehouse.erase_doomed(&data, doomed).await });
        }
    }
}

/// The readers of some cells.
#[derive(Debug, Default)]
struct Readers {
    count: usize,
    doomed: Option<Doomed>,
}

/// Marks cells to be removed with their last reader. If the process is killed before, the next process that starts
/// finds a free lock and removes them.
#[derive(Debug)]
struct Doomed(#[expect(dead_code, reason = "it is held")] Option<Claim>);

/// The durable half of the catalog.
#[derive(Debug)]
pub(crate) struct Warehouse {
    /// Created with the first entry, and not before.
    folder: Folder,
    /// The right to change the warehouse, if this process is a server.
    epoch: Arc<Epoch>,
    /// True once its format has been checked.
    checked: AtomicBool,
    marked: AtomicBool,
    /// Statements of this process that replace or remove entries of a directory.
    changing: tokio::sync::Mutex<()>,
    /// Cells that statements of this process may read.
    readers: Mutex<BTreeMap<String, Readers>>,
    /// Cells to remove, while a server does not yet know which cells the statements accepted before it read; `None`
    /// from then on, and if the process is not a server.
    waiting: Mutex<Option<Vec<String>>>,
    /// True once the next server removes cells without readers. It learns the readers from the records.
    is_left: AtomicBool,
    /// Encrypts secrets in its documents.
    sealer: Sealer,
    /// Runs the removal of leftovers.
    io: tokio::runtime::Handle,
}

impl Warehouse {
    /// The warehouse at a directory or a prefix of a bucket. Reads nothing yet.
    ///
    /// # Errors
    /// The URL is invalid, or the storage is read-only.
    pub(super) fn open(
        url: &str,
        stores: &Stores,
        io: tokio::runtime::Handle,
    ) -> Result<Self, Error> {
        let folder = Folder::open(url, &Options::default(), stores).map_err(Error::stage)?;
        Ok(Warehouse {
            epoch: Arc::new(Epoch::new(folder.clone())),
            sealer: Sealer::new(folder.clone()),
            folder,
            checked: AtomicBool::new(false),
            marked: AtomicBool::new(false),
            changing: tokio::sync::Mutex::default(),
            readers: Mutex::default(),
            waiting: Mutex::default(),
            is_left: AtomicBool::new(false),
            io,
        })
    }

    pub(super) fn folder(&self) -> &Folder {
        &self.folder
    }

    /// Keys of all stores of cells, from the root.
    ///
    /// # Errors
    /// Errors of storage.
    pub(super) async fn stores(&self) -> Result<Vec<String>, Error> {
        let names = self.folder.stores(DATA).await.map_err(Error::stage)?;
        Ok(names.into_iter().map(|name| format!("{DATA}/{name}")).collect())
    }

    /// The folder of the statements' journal.
    pub(super) fn statements(&self, stores: &Stores) -> Result<Folder, Error> {
        let url = self.folder.url(crate::journal::STATEMENTS);
        Folder::open(&url, &Options::default(), stores).map_err(Error::stage)
    }

    /// Makes the warehouse private to its owner, if it is a directory, and creates the directory that statements write
    /// files to.
    ///
    /// # Errors
    /// Errors of storage.
    pub(super) fn keep_private(&self) -> Result<(), Error> {
        self.folder.make(FILES).map_err(Error::stage)?;
        if let Err(e) = self.folder.close() {
            // The owner may have chosen other permissions.
            tracing::warn!(error = %e, "others may look into the warehouse");
        }
        Ok(())
    }

    /// The right to change the warehouse.
    pub(super) fn epoch(&self) -> &Arc<Epoch> {
        &self.epoch
    }

    pub(super) fn journal(&self) -> Journal {
        self.epoch.serves();
        *self.waiting() = Some(Vec::new());
        Journal::new(self.folder.clone(), self.epoch.clone(), self.sealer.clone(), self.io.clone())
    }

    /// Prevents this process from removing cells.
    pub(super) fn pin(self: &Arc<Self>, data: &str) -> Pin {
        self.readers().entry(data.into()).or_default().count += 1;
        Pin { warehouse: self.clone(), data: data.into() }
    }

    /// Removes one reader. Returns the mark if it was the last reader of cells to be removed.
    fn unpin(&self, data: &str) -> Option<Doomed> {
        let mut readers = self.readers();
        let of = readers.get_mut(data)?;
        of.count -= 1;
        match of.count {
            0 => readers.remove(data)?.doomed,
            _ => None,
        }
    }

    /// Marks cells for removal with their last reader; false if nothing reads them.
    fn doom(&self, data: &str) -> bool {
        match self.readers().get_mut(data) {
            Some(readers) => {
                // Without a lock of its own (in a bucket, or while another process holds it) a later process removes
                // it.
                readers
                    .doomed
                    .get_or_insert_with(|| Doomed(self.folder.claim(data).ok().flatten()));
                true
            }
            None => false,
        }
    }

    /// Marks unnamed cells that are read for removal with their last reader: they were dropped before this process
    /// started. From now on cells without readers are removed at once.
    ///
    /// # Errors
    /// Errors of storage.
    pub(super) async fn readers_are_known(&self) -> Result<(), Error> {
        // Read before the entries: cells that are read had a name once, and get none again.
        let read: Vec<String> = self.readers().keys().cloned().collect();
        if !read.is_empty() {
            let entries = self.list().await?;
            let named: BTreeSet<&str> =
                entries.iter().filter_map(|e| e.definition.data()).collect();
            for data in read.iter().filter(|data| !named.contains(data.as_str())) {
                self.doom(data);
            }
        }
        let waiting = self.waiting().take();
        for data in waiting.unwrap_or_default() {
            if let Err(e) = self.remove_data(&data).await {
                tracing::warn!(data, error = %e, "cells that have no name any more could not be removed");
            }
        }
        Ok(())
    }

    fn waiting(&self) -> MutexGuard<'_, Option<Vec<String>>> {
        // Each change is complete before anything can panic.
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn readers(&self) -> MutexGuard<'_, BTreeMap<String, Readers>> {
        // Each change is complete before anything can panic.
        self.readers.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Names of all entries, sorted.
    pub(super) async fn names(&self) -> Result<Vec<String>, Error> {
        let files = self.folder.names(CATALOG).await.map_err(Error::stage)?;
        Ok(files.iter().filter_map(|f| f.strip_suffix(".json").and_then(unescaped)).collect())
    }

    pub(super) async fn list(&self) -> Result<Vec<Entry>, Error> {
        let mut out = Vec::new();
        for name in self.names().await? {
            // An entry may have been dropped after it was listed.
            out.extend(self.entry(&name).await?);
        }
        Ok(out)
    }

    pub(super) async fn entry(&self, name: &str) -> Result<Option<Entry>, Error> {
        Ok(self.entry_version(name).await?.map(|(entry, _)| entry))
    }

    /// Like [`Warehouse::entry`], with its version.
    pub(super) async fn entry_version(
        &self,
        name: &str,
    ) -> Result<Option<(Entry, Version)>, Error> {
        let key = key(name);
        let found = self.folder.get_version(&key).await.map_err(Error::stage)?;
        let Some((bytes, at)) = found else { return Ok(None) };
        self.check().await?;
        sealed::check(&self.folder.url(&key), &bytes).map_err(Error::stage)?;
        let bad = |reason: String| Failure::definition(&key, reason);
        let mut value: serde_json::Value = serde_json::from_slice(&bytes)
            .map_err(|e| self.corrupt(&key, "a definition".into(), format!("not JSON: {e}")))?;
        let version = value.get("format_version").and_then(serde_json::Value::as_u64);
        if version != Some(FORMAT_VERSION.into()) {
            return Err(bad(unknown_version(version)));
        }
        // The first entries were all external tables and had no kind.
        if let Some(map) = value.as_object_mut() {
            map.entry("kind").or_insert_with(|| "external".into());
        }
        self.sealer.open(&mut value).await?;
        let entry: Entry = serde_json::from_value(value).map_err(|e| bad(e.to_string()))?;
        match entry.name == name {
            true => Ok(Some((entry, at))),
            false => {
                let of = |name: &str| format!("the definition of `{name}`");
                Err(self.corrupt(&key, of(name), of(&entry.name)))
            }
        }
    }

    /// The error for a document that differs from the written one.
    fn corrupt(&self, key: &str, expected: String, found: String) -> Error {
        Error::stage(SourceError::Corrupt { path: self.folder.url(key), expected, found })
    }

    /// Writes an entry in place of `before`, or as a new one.
    ///
    /// # Errors
    /// `already_exists` if another entry has the name.
    pub(super) async fn put(
        &self,
        name: &str,
        definition: Definition,
        before: Option<&(Entry, Version)>,
    ) -> Result<(), Error> {
        self.check().await?;
        let _right = self.epoch.right().await?;
        let exists = || Error::stage(Failure::Exists { name: name.into() });
        let (mode, _lock) = match before {
            None => (Mode::Create, None),
            Some((entry, version)) => {
                let lock = self.lock_entries().await?;
                // A directory has no versions that the put could compare.
                if lock.is_some() && self.entry(name).await?.as_ref() != Some(entry) {
                    return Err(exists());
                }
                (Mode::Update(version.clone()), lock)
            }
        };
        if !self.marked.load(Ordering::Relaxed) {
            let text = serde_json::json!({"format_version": FORMAT_VERSION}).to_string();
            match self.folder.put(MARK, text.into(), Mode::Create).await {
                Ok(_) | Err(SinkError::Exists { .. }) => {
                    self.marked.store(true, Ordering::Relaxed);
                }
                Err(e) => return Err(Error::stage(e)),
            }
        }
        let entry = Entry { format_version: FORMAT_VERSION, name: name.into(), definition };
        let bad = |e: serde_json::Error| Failure::definition(name, e.to_string());
        let mut document = serde_json::to_value(&entry).map_err(bad)?;
        self.sealer.seal(&mut document).await?;
        let text = sealed::seal(&serde_json::to_vec_pretty(&document).map_err(bad)?);
        match self.folder.put(&key(name), text, mode).await {
            Err(SinkError::Exists { .. } | SinkError::Changed { .. }) => Err(exists()),
            other => other.map(drop).map_err(Error::stage),
        }
    }

    /// The right to compare and replace entries of a directory; `None` in a bucket, which compares by itself.
    async fn lock_entries(
        &self,
    ) -> Result<Option<(tokio::sync::MutexGuard<'_, ()>, FileLock)>, Error> {
        if self.folder.is_remote() {
            return Ok(None);
        }
        let own = self.changing.lock().await;
        let lock = self.folder.hold(CHANGES, true).await.map_err(Error::stage)?;
        Ok(lock.map(|lock| (own, lock)))
    }

    /// Removes an entry; true if it existed.
    pub(super) async fn remove(&self, name: &str) -> Result<bool, Error> {
        let _right = self.epoch.right().await?;
        let _lock = self.lock_entries().await?;
        self.folder.remove(&key(name)).await.map_err(Error::stage)
    }

    /// A new place for the cells of a tensor, as a key and as a target. It stays claimed until an entry names it or it
    /// is removed.
    ///
    /// # Errors
    /// Errors of storage.
    pub(super) async fn room(&self) -> Result<(String, Target, Option<Claim>), Error> {
        let server = match self.epoch.begun_by_server().await? {
            Some(epoch) => format!("{SERVER}{epoch}-"),
            None => String::new(),
        };
        let mut tries = 0..CLAIMS_MAX;
        loop {
            tries.next();
            let data = format!("{DATA}/{server}{}.zarr", uuid::Uuid::new_v4());
            match self.folder.claim(&data) {
                // A collector took the lock before we did, and takes the name for a leftover.
                Err(SinkError::Exists { .. }) if !tries.is_empty() => {}
                Err(e) => return Err(Error::stage(e)),
                Ok(claim) => {
                    let target = self.folder.target(&data);
                    return Ok((data, target, claim));
                }
            }
        }
    }

    /// True if the warehouse is below a prefix of a bucket.
    pub(super) fn is_remote(&self) -> bool {
        self.folder.is_remote()
    }

    /// Removes the cells that killed processes left, and returns the number of such tensors.
    ///
    /// # Errors
    /// Errors of storage. An unreadable entry or statement may name any cells: then nothing is removed.
    pub(super) async fn collect(&self) -> Result<u64, Error> {
        for key in ["", CATALOG, STATEMENTS, EPOCHS] {
            self.folder.remove_parts(key);
        }
        let left = self.folder.leftovers(DATA, AGE).await.map_err(Error::stage)?;
        let dead = self.of_dead_servers().await?;
        if left.is_empty() && dead.is_empty() {
            return Ok(0);
        }
        // Read after the locks were found free: a writer puts its entry before it releases its lock.
        let entries = self.list().await?;
        let mut named: BTreeSet<String> =
            entries.iter().filter_map(|e| e.definition.data().map(String::from)).collect();
        named.extend(Journal::data(&self.folder).await?);
        let mut removed = 0;
        // A statement may read cells that were just dropped.
        let is_read = |data: &str| self.readers().contains_key(data);
        for data in dead.iter().filter(|data| !named.contains(*data) && !is_read(data)) {
            tracing::info!(data, "removing what a killed server left");
            self.folder.remove_all(data).await.map_err(Error::stage)?;
            removed += 1;
        }
        for one in left {
            if !named.contains(&one.key) {
                tracing::info!(data = one.key, "removing what a killed process left");
                self.folder.remove_all(&one.key).await.map_err(Error::stage)?;
                removed += 1;
            }
            one.settled();
        }
        Ok(removed)
    }

    /// Cells of servers whose epoch ended, as far as this server knows: such servers no longer put entries.
    async fn of_dead_servers(&self) -> Result<Vec<String>, Error> {
        let Some(now) = self.epoch.begun_if_known().await? else { return Ok(Vec::new()) };
        let is_dead = |name: &String| {
            let epoch = name.strip_prefix(SERVER).and_then(|n| n.split_once('-'));
            epoch.and_then(|(n, _)| n.parse::<u64>().ok()).is_some_and(|n| n < now)
        };
        let all = self.folder.stores(DATA).await.map_err(Error::stage)?;
        Ok(all.into_iter().filter(is_dead).map(|name| format!("{DATA}/{name}")).collect())
    }

    pub(super) fn url(&self, data: &str) -> String {
        self.folder.url(data)
    }

    /// Removes the cells of a tensor that no entry names any more, once the readers are known and no statement of this
    /// process reads them.
    pub(super) async fn remove_data(&self, data: &str) -> Result<(), Error> {
        if let Some(waiting) = &mut *self.waiting() {
            waiting.push(data.into());
            return Ok(());
        }
        if self.doom(data) { Ok(()) } else { self.erase(data).await }
    }

    /// Leaves the removal of cells to the next server. From now on, a pin of this process that drops does not show that
    /// its cells have no reader.
    pub(super) fn leave_to_next(&self) {
        self.is_left.store(true, Ordering::Relaxed);
    }

    /// Removes cells without readers. Leftovers are collected when the next process starts.
    async fn erase_doomed(&self, data: &str, _until_gone: Doomed) {
        if self.is_left.load(Ordering::Relaxed) {
            return;
        }
        if let Err(e) = self.erase_as_live(data).await {
            tracing::warn!(data, error = %e, "cells that nobody reads any more could not be removed");
        }
    }

    async fn erase_as_live(&self, data: &str) -> Result<(), Error> {
        // A later server has the statements of this one, and they read the cells. It need not wait for a removal: the
        // statements that it takes over are not forgotten here.
        drop(self.epoch.right().await?);
        self.erase(data).await
    }

    async fn erase(&self, data: &str) -> Result<(), Error> {
        // Somebody may have edited the entry: nothing outside of `data/` is removed.
        let inside =
            data.strip_prefix("data/").is_some_and(|n| !n.contains('/') && n.ends_with(".zarr"));
        if !inside {
            return Err(Failure::definition(data, "it is not in `data/`".into()));
        }
        self.folder.remove_all(data).await.map_err(Error::stage)
    }

    /// True if the document with the format exists.
    pub(super) async fn is_marked(&self) -> Result<bool, Error> {
        Ok(self.folder.get(MARK).await.map_err(Error::stage)?.is_some())
    }

    /// Skips the check of the format from now on.
    pub(super) fn is_ours(&self) {
        self.checked.store(true, Ordering::Relaxed);
    }

    /// Refuses a warehouse of another format.
    pub(super) async fn check(&self) -> Result<(), Error> {
        if self.checked.load(Ordering::Relaxed) {
            return Ok(());
        }
        if let Some(bytes) = self.folder.get(MARK).await.map_err(Error::stage)? {
            let value: serde_json::Value = serde_json::from_slice(&bytes).map_err(|e| {
                self.corrupt(MARK, "the format of the warehouse".into(), format!("not JSON: {e}"))
            })?;
            let version = value.get("format_version").and_then(serde_json::Value::as_u64);
            if version != Some(FORMAT_VERSION.into()) {
                return Err(Failure::definition(MARK, unknown_version(version)));
            }
        }
        self.checked.store(true, Ordering::Relaxed);
        Ok(())
    }
}

fn unknown_version(version: Option<u64>) -> String {
    match version {
        Some(v) => format!("format version {v} is not known, only {FORMAT_VERSION}"),
        None => "it has no format version".into(),
    }
}
