//! The durable half of the catalog: one JSON file for each name, `catalog/<name>.json`, in a directory or below an S3
//! prefix.
//!
//! ```text
//!   warehouse.json            the format of all this
//!   catalog/<name>.json       an entry: there whole or not at all; it begins with its checksum ([`crate::sealed`])
//!   data/<uuid>.zarr/         the cells of a tensor; nobody knows it until an entry names it. A server's has its
//!                             epoch before: `data/s<epoch>-<uuid>.zarr/`. Its entry has the checksum of the list of its
//!                             files, and the list has those of the files ([`tessera_storage::manifest`])
//!   key                       what secrets in entries and records are sealed with ([`crate::secrets`])
//!   data/<uuid>.lock          held by who writes them, until then
//!   files/                    what statements copy there; of all the others they reach only data/ by path
//!   statements/, epochs/      what servers remember ([`crate::journal`])
//! ```
//! Cells are written first and never change; the entry makes them a tensor, and goes first when it is dropped. Cells
//! that statements of this process still read go with the last of these ([`Pin`]). What a process that was killed left
//! in `data/` is named by no entry, read by no statement that is to be run again, and locked by nobody:
//! [`Warehouse::collect`] removes it.

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
use tessera_storage::sink::{Claim, Folder, Mode, SinkError, Target, Version};
use tessera_storage::source::{Options, SourceError, Stores};

/// The format that this version reads and writes.
const FORMAT_VERSION: u32 = 1;

/// Where the format of the warehouse is told.
pub(super) const MARK: &str = "warehouse.json";

/// Where the entries are.
const CATALOG: &str = "catalog";

/// Where the cells are.
const DATA: &str = "data";

/// What statements write by path, and read.
const FILES: &str = "files";

/// How the names of cells begin that a server made; its epoch follows. No name of another process begins so.
const SERVER: &str = "s";

/// Names that are tried for the cells of a tensor.
const CLAIMS_MAX: u32 = 16;

/// Cells that no entry names and that have no lock belong to nobody after this time: no statement takes so long.
const AGE: Duration = Duration::from_secs(24 * 3600);

/// Cells of the warehouse that somebody reads: they stay until it drops, also if their name is given up meanwhile.
#[derive(Debug)]
pub struct Pin {
    warehouse: Arc<Warehouse>,
    data: String,
}

impl Pin {
    /// Drops it, and waits until cells that nobody else reads are gone, if they are to go.
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

/// Who reads some cells.
#[derive(Debug, Default)]
struct Readers {
    count: usize,
    doomed: Option<Doomed>,
}

/// Cells that go with their last reader; if the process is killed before, with the next one that starts, which finds a
/// lock that nobody holds.
#[derive(Debug)]
struct Doomed(#[expect(dead_code, reason = "it is held")] Option<Claim>);

/// The durable half of the catalog.
#[derive(Debug)]
pub(crate) struct Warehouse {
    /// Nothing is made in it before the first entry is.
    folder: Folder,
    /// The right to change it, if this process is a server.
    epoch: Arc<Epoch>,
    /// True once its format is known to be ours.
    checked: AtomicBool,
    marked: AtomicBool,
    /// Cells that statements of this process may read.
    readers: Mutex<BTreeMap<String, Readers>>,
    /// Cells that are to go, as long as a server does not know which ones the statements read that were accepted before
    /// it; `None` from then on, and if the process is no server.
    waiting: Mutex<Option<Vec<String>>>,
    /// Who keeps secrets in its documents.
    sealer: Sealer,
    /// Where what is left over is removed.
    io: tokio::runtime::Handle,
}

impl Warehouse {
    /// The warehouse at a directory or an S3 prefix. Nothing is read yet.
    ///
    /// # Errors
    /// A URL that cannot be read, or a storage that is only read.
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
            readers: Mutex::default(),
            waiting: Mutex::default(),
            io,
        })
    }

    /// The folder of all that it has.
    pub(super) fn folder(&self) -> &Folder {
        &self.folder
    }

    /// Keys of all stores of cells, from the root.
    ///
    /// # Errors
    /// Whatever storage says.
    pub(super) async fn stores(&self) -> Result<Vec<String>, Error> {
        let names = self.folder.stores(DATA).await.map_err(Error::stage)?;
        Ok(names.into_iter().map(|name| format!("{DATA}/{name}")).collect())
    }

    /// The folder of what belongs to statements.
    pub(super) fn statements(&self, stores: &Stores) -> Result<Folder, Error> {
        let url = self.folder.url(crate::journal::STATEMENTS);
        Folder::open(&url, &Options::default(), stores).map_err(Error::stage)
    }

    /// Closes the warehouse to others than its owner, if it is a directory, and makes the one that statements write
    /// files to.
    ///
    /// # Errors
    /// Whatever storage says.
    pub(super) fn keep_private(&self) -> Result<(), Error> {
        self.folder.make(FILES).map_err(Error::stage)?;
        if let Err(e) = self.folder.close() {
            // Its owner did as they liked.
            tracing::warn!(error = %e, "others may look into the warehouse");
        }
        Ok(())
    }

    /// What a server remembers in it.
    pub(super) fn journal(&self) -> Journal {
        self.epoch.serves();
        *self.waiting() = Some(Vec::new());
        Journal::new(self.folder.clone(), self.epoch.clone(), self.sealer.clone(), self.io.clone())
    }

    /// Keeps cells from being removed by this process.
    pub(super) fn pin(self: &Arc<Self>, data: &str) -> Pin {
        self.readers().entry(data.into()).or_default().count += 1;
        Pin { warehouse: self.clone(), data: data.into() }
    }

    /// One reader less; it was the last one of cells that are to go, if something comes back.
    fn unpin(&self, data: &str) -> Option<Doomed> {
        let mut readers = self.readers();
        let of = readers.get_mut(data)?;
        of.count -= 1;
        match of.count {
            0 => readers.remove(data)?.doomed,
            _ => None,
        }
    }

    /// Cells that are read and that no entry names go with their last reader; false if nobody reads them.
    fn doom(&self, data: &str) -> bool {
        match self.readers().get_mut(data) {
            Some(readers) => {
                // Without a lock of its own (in a bucket, or while another process looks at it) it goes later.
                readers
                    .doomed
                    .get_or_insert_with(|| Doomed(self.folder.claim(data).ok().flatten()));
                true
            }
            None => false,
        }
    }

    /// Cells that are read and that no entry names go with their last reader: they were dropped before this process
    /// was there. From now on cells go that nobody reads.
    ///
    /// # Errors
    /// Whatever storage says.
    pub(super) async fn readers_are_known(&self) -> Result<(), Error> {
        // Asked first: what is read had a name once, and gets none again.
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

    /// All entries, by name.
    pub(super) async fn list(&self) -> Result<Vec<Entry>, Error> {
        let mut out = Vec::new();
        for name in self.names().await? {
            // One that was dropped meanwhile is no longer there.
            out.extend(self.entry(&name).await?);
        }
        Ok(out)
    }

    /// The entry with exactly that name.
    pub(super) async fn entry(&self, name: &str) -> Result<Option<Entry>, Error> {
        Ok(self.entry_version(name).await?.map(|(entry, _)| entry))
    }

    /// The same with its version.
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
            .map_err(|e| self.corrupt(&key, "a definition".into(), format!("no JSON: {e}")))?;
        let version = value.get("format_version").and_then(serde_json::Value::as_u64);
        if version != Some(FORMAT_VERSION.into()) {
            return Err(bad(unknown_version(version)));
        }
        // The first entries were all external tables and did not say so.
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

    /// A document is not what was written.
    fn corrupt(&self, key: &str, expected: String, found: String) -> Error {
        Error::stage(SourceError::Corrupt { path: self.folder.url(key), expected, found })
    }

    /// Writes an entry.
    ///
    /// # Errors
    /// `already_exists` where it meets what `mode` does not.
    pub(super) async fn put(
        &self,
        name: &str,
        definition: Definition,
        mode: Mode,
    ) -> Result<(), Error> {
        self.check().await?;
        let _right = self.epoch.right().await?;
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
            Err(SinkError::Exists { .. } | SinkError::Changed { .. }) => {
                Err(Error::stage(Failure::Exists { name: name.into() }))
            }
            other => other.map(drop).map_err(Error::stage),
        }
    }

    /// Removes an entry; true if there was one.
    pub(super) async fn remove(&self, name: &str) -> Result<bool, Error> {
        let _right = self.epoch.right().await?;
        self.folder.remove(&key(name)).await.map_err(Error::stage)
    }

    /// A place for the cells of a tensor that no entry names yet, from the root and as a target. It is claimed until
    /// an entry names it or it is gone.
    ///
    /// # Errors
    /// Whatever storage says.
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
                // Who collects took the lock before we did, and believes the name to be a dead one's.
                Err(SinkError::Exists { .. }) if !tries.is_empty() => {}
                Err(e) => return Err(Error::stage(e)),
                Ok(claim) => {
                    let target = self.folder.target(&data);
                    return Ok((data, target, claim));
                }
            }
        }
    }

    /// True if it is below a prefix of a bucket.
    pub(super) fn is_remote(&self) -> bool {
        self.folder.is_remote()
    }

    /// Removes the cells that a killed process left; how many tensors that would have been.
    ///
    /// # Errors
    /// Whatever storage says. An entry or a statement that cannot be read may name anything: then nothing is removed.
    pub(super) async fn collect(&self) -> Result<u64, Error> {
        for key in ["", CATALOG, STATEMENTS, EPOCHS] {
            self.folder.remove_parts(key);
        }
        let left = self.folder.leftovers(DATA, AGE).await.map_err(Error::stage)?;
        let dead = self.of_dead_servers().await?;
        if left.is_empty() && dead.is_empty() {
            return Ok(0);
        }
        // Asked after the locks were found free: who gave a lock up had put its entry before.
        let entries = self.list().await?;
        let mut named: BTreeSet<String> =
            entries.iter().filter_map(|e| e.definition.data().map(String::from)).collect();
        named.extend(Journal::data(&self.folder).await?);
        let mut removed = 0;
        // A statement may read what was dropped a moment ago.
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

    /// Cells of servers whose epoch is over, as this server sees it: these put no entry any more.
    async fn of_dead_servers(&self) -> Result<Vec<String>, Error> {
        let Some(now) = self.epoch.begun_if_known().await? else { return Ok(Vec::new()) };
        let is_dead = |name: &String| {
            let epoch = name.strip_prefix(SERVER).and_then(|n| n.split_once('-'));
            epoch.and_then(|(n, _)| n.parse::<u64>().ok()).is_some_and(|n| n < now)
        };
        let all = self.folder.stores(DATA).await.map_err(Error::stage)?;
        Ok(all.into_iter().filter(is_dead).map(|name| format!("{DATA}/{name}")).collect())
    }

    /// Where the cells of a tensor are.
    pub(super) fn url(&self, data: &str) -> String {
        self.folder.url(data)
    }

    /// Removes the cells of a tensor that no entry names any more, once it is known which ones are read, and no statement
    /// of this process reads them.
    pub(super) async fn remove_data(&self, data: &str) -> Result<(), Error> {
        if let Some(waiting) = &mut *self.waiting() {
            waiting.push(data.into());
            return Ok(());
        }
        match self.doom(data) {
            true => Ok(()),
            false => self.erase(data).await,
        }
    }

    /// Removes cells that nobody reads any more. What is left is collected when the next process starts.
    async fn erase_doomed(&self, data: &str, _until_gone: Doomed) {
        if let Err(e) = self.erase(data).await {
            tracing::warn!(data, error = %e, "cells that nobody reads any more could not be removed");
        }
    }

    async fn erase(&self, data: &str) -> Result<(), Error> {
        // An entry is a file that somebody may have edited: nothing outside of `data/` is removed.
        let inside =
            data.strip_prefix("data/").is_some_and(|n| !n.contains('/') && n.ends_with(".zarr"));
        if !inside {
            return Err(Failure::definition(data, "it is not in `data/`".into()));
        }
        self.folder.remove_all(data).await.map_err(Error::stage)
    }

    /// True if the document is there that says its format.
    pub(super) async fn is_marked(&self) -> Result<bool, Error> {
        Ok(self.folder.get(MARK).await.map_err(Error::stage)?.is_some())
    }

    /// Its format is not looked at any more.
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
                self.corrupt(MARK, "the format of the warehouse".into(), format!("no JSON: {e}"))
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
