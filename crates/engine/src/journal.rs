//! The journal: records of the statements that a server accepted, in its warehouse.
//!
//! ```text
//!   statements/<id>.json    one for each statement that was acknowledged with 202, or that has a `request_id`
//!   statements/<id>/        durable chunks of the statement ([`tessera_exec::durable`])
//!   epochs/                 the servers that wrote here, in order: only the last one may write ([`Epoch`])
//! ```
//! A record is written, complete and synced to the device, before its statement is acknowledged. It has the text and
//! everything that the text was bound to ([`Recipe`]). Of the end it has only the outcome: cells are computed again if
//! they are requested after a restart. It is removed when the statement is forgotten. It begins with its checksum
//! ([`crate::sealed`]), so that a damaged record does not run as another statement. Secrets in it are encrypted
//! ([`crate::secrets`]).
//!
//! Two servers must not write to one warehouse. A server takes the next epoch before its first write, and looks for a
//! later one before each change. A server that finds a later epoch is fenced and changes nothing any more ([`Epoch`]).
//! A later server may begin just after that look. In a directory it waits until the change is made ([`Epoch::right`]).
//! In a bucket it does not wait. There a record is put only in place of the version that was read, so that requests of
//! the earlier server that are still in flight are refused once the later one has written the record
//! ([`Journal::write`]).

mod epoch;
mod lease;

#[cfg(test)]
mod tests;

pub use epoch::NotLive;
pub(crate) use epoch::{EPOCHS, Epoch};
pub use lease::{Addresses, Keeper, Lease, Standby, Turn};

use crate::error::{Class, Error, Report};
use crate::sealed;
use crate::secrets::Sealer;
use crate::statement::Recipe;
use futures::{Stream, StreamExt, TryStreamExt, stream};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};
use tessera_storage::sink::{Folder, Mode, Version};

/// Directory of the records.
pub(crate) const STATEMENTS: &str = "statements";
/// The format that this version reads and writes.
const FORMAT_VERSION: u32 = 1;
/// Records that are read concurrently.
const READS_MAX: usize = 16;
/// Attempts to overwrite a record that changes concurrently.
const OVER_MAX: u32 = 4;

/// The record of a statement.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Record {
    format_version: u32,
    /// The id of the statement.
    pub id: String,
    /// When a server accepted it, in milliseconds since 1970.
    pub accepted_ms: u64,
    /// The session that it ran in.
    pub session: Option<String>,
    /// The client's id for it.
    pub request_id: Option<String>,
    /// The script.
    pub sql: String,
    /// Everything that the script was bound to.
    pub recipe: Recipe,
    /// Number of servers that began to run it.
    pub starts: u32,
    /// How it ended, and when, in milliseconds since 1970; `None` while it waits or runs.
    pub end: Option<(End, u64)>,
}

/// How a statement ended.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum End {
    /// The statement finished with answers.
    Finished,
    /// The statement finished, and its answers are no longer available.
    Gone,
    /// A client stopped it.
    Cancelled,
    /// The statement failed with the error in this document.
    Failed(Value),
}

/// The records of a warehouse.
#[derive(Debug)]
pub struct Journal {
    folder: Folder,
    epoch: Arc<Epoch>,
    sealer: Sealer,
    io: tokio::runtime::Handle,
}

impl Record {
    /// The record of an unfinished statement that one server began to run.
    pub fn new(id: &str, sql: &str, accepted_ms: u64, recipe: Recipe) -> Self {
        Record {
            format_version: FORMAT_VERSION,
            id: id.into(),
            accepted_ms,
            session: None,
            request_id: None,
            sql: sql.into(),
            recipe,
            starts: 1,
            end: None,
        }
    }
}

/// The time in milliseconds since 1970; 0 if the clock is before 1970.
pub fn now_ms() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |d| d.as_millis() as u64)
}

impl Journal {
    /// The journal in a warehouse's folder. Reads and creates nothing yet.
    pub(crate) fn new(
        folder: Folder,
        epoch: Arc<Epoch>,
        sealer: Sealer,
        io: tokio::runtime::Handle,
    ) -> Self {
        Journal { folder, epoch, sealer, io }
    }

    /// All records with their versions, the oldest first. If a server used the journal before, this server's epoch
    /// begins. An unreadable record is left in place and does not prevent reading the others.
    ///
    /// # Errors
    /// Errors of storage.
    pub async fn load(&self) -> Result<Vec<(Record, Version)>, Error> {
        self.epoch.begin_if_known().await?;
        self.epoch.check().await?;
        let mut all = Vec::new();
        for record in read_all(&self.folder, Some(&self.sealer)).await?.collect::<Vec<_>>().await {
            match record {
                Ok(record) => all.extend(record),
                Err(e) if e.code() == "invalid_record" => tracing::error!("{e}"),
                Err(e) => return Err(e),
            }
        }
        all.sort_by(|(a, _), (b, _)| (a.accepted_ms, &a.id).cmp(&(b.accepted_ms, &b.id)));
        Ok(all)
    }

    /// Writes a record in place of the version `before`, or as a new one, and returns its new version. In a directory,
    /// where no other process writes concurrently, it overwrites unconditionally.
    ///
    /// # Errors
    /// Errors of storage; a later server; `document_changed` and `already_exists` if there is another version.
    pub async fn write(&self, record: &Record, before: Option<Version>) -> Result<Version, Error> {
        self.epoch.begin().await?;
        let right = self.epoch.right().await?;
        let bad =
            |e: serde_json::Error| Error::Internal { what: format!("a record is not JSON: {e}") };
        let mut document = serde_json::to_value(record).map_err(bad)?;
        self.sealer.seal(&mut document).await?;
        let text = sealed::seal(&serde_json::to_vec(&document).map_err(bad)?);
        let (folder, key, io) = (self.folder.clone(), key(&record.id), self.io.clone());
        let is_first = before.is_none() && folder.is_remote();
        let mode = match before {
            Some(version) => Mode::Update(version),
            None if is_first => Mode::Create,
            None => Mode::Replace,
        };
        // A file is synced before this ends: that does not belong on an I/O thread.
        let put = tokio::task::spawn_blocking(move || {
            // Held until the write ends, even if the caller stops waiting.
            let _right = right;
            io.block_on(folder.put(&key, text, mode))
        });
        let put = put.await.map_err(|e| Error::Internal { what: e.to_string() })?;
        let version = put.map_err(Error::stage)?;
        if is_first {
            // A later server that began before the record was written does not know it.
            self.epoch.check().await?;
        }
        Ok(version)
    }

    /// Like [`Journal::write`], over any existing version, for a statement of this server. A version other than
    /// `before` comes from a request whose response was lost: of this server, or of an earlier one, which did nothing
    /// that depends on it.
    ///
    /// # Errors
    /// Errors of storage; a later server.
    pub async fn write_over(
        &self,
        record: &Record,
        mut before: Option<Version>,
    ) -> Result<Version, Error> {
        let mut tries = 0..OVER_MAX;
        loop {
            tries.next();
            match self.write(record, before).await {
                Err(e)
                    if matches!(e.code(), "document_changed" | "already_exists")
                        && !tries.is_empty() =>
                {
                    let there = self.folder.get_version(&key(&record.id)).await;
                    before = there.map_err(Error::stage)?.map(|(_, version)| version);
                }
                other => return other,
            }
        }
    }

    /// Fails if a later server has taken over.
    ///
    /// # Errors
    /// Errors of storage; a later epoch.
    pub async fn check(&self) -> Result<(), Error> {
        self.epoch.check().await
    }

    /// Removes the record of a statement.
    ///
    /// # Errors
    /// Errors of storage; a later server.
    pub async fn remove(&self, id: &str) -> Result<(), Error> {
        let _right = self.epoch.right().await?;
        self.folder.remove(&key(id)).await.map(|_| ()).map_err(Error::stage)
    }

    /// Number of readable records, and the errors of the others.
    ///
    /// # Errors
    /// Errors of storage.
    pub(crate) async fn read_through(folder: &Folder) -> Result<(u64, Vec<Error>), Error> {
        let (mut count, mut bad) = (0, Vec::new());
        for record in read_all(folder, None).await?.collect::<Vec<_>>().await {
            match record {
                Ok(record) => count += u64::from(record.is_some()),
                Err(e) if e.code() == "invalid_record" => bad.push(e),
                Err(e) => return Err(e),
            }
        }
        Ok((count, bad))
    }

    /// Cells of the warehouse at `folder` that statements of its journal read, or may have been about to name.
    ///
    /// # Errors
    /// Errors of storage; a record that cannot be read.
    pub(crate) async fn data(folder: &Folder) -> Result<BTreeSet<String>, Error> {
        let all: Vec<Option<(Record, Version)>> =
            read_all(folder, None).await?.try_collect().await?;
        let mut data = BTreeSet::new();
        for (record, _) in all.iter().flatten() {
            data.extend(record.recipe.data().map(String::from));
            // A request of an ended server that names them may still be in flight.
            if record.end.is_none() {
                data.extend(record.recipe.made().map(String::from));
            }
        }
        Ok(data)
    }
}

fn key(id: &str) -> String {
    format!("{STATEMENTS}/{id}.json")
}

/// All records in any order; with their secrets if a sealer is given.
async fn read_all<'a>(
    folder: &'a Folder,
    sealer: Option<&'a Sealer>,
) -> Result<impl Stream<Item = Result<Option<(Record, Version)>, Error>> + use<'a>, Error> {
    let names = folder.names(STATEMENTS).await.map_err(Error::stage)?;
    let ids = names.into_iter().filter_map(|n| n.strip_suffix(".json").map(String::from));
    let ids: Vec<String> = ids.filter(|id| !id.starts_with('.')).collect();
    Ok(stream::iter(ids).map(move |id| read(folder, id, sealer)).buffer_unordered(READS_MAX))
}

/// A record, with its secrets if a sealer is given; `None` if it was removed concurrently.
async fn read(
    folder: &Folder,
    id: String,
    sealer: Option<&Sealer>,
) -> Result<Option<(Record, Version)>, Error> {
    let key = key(&id);
    let found = folder.get_version(&key).await.map_err(Error::stage)?;
    let Some((bytes, version)) = found else { return Ok(None) };
    let bad = |reason: String| Error::stage(Unreadable { key: key.clone(), reason });
    sealed::check(&folder.url(&key), &bytes).map_err(|e| bad(e.to_string()))?;
    let mut value: Value = serde_json::from_slice(&bytes).map_err(|e| bad(e.to_string()))?;
    let format = value["format_version"].as_u64();
    if format != Some(FORMAT_VERSION.into()) {
        return Err(bad(match format {
            Some(v) => format!("format version {v} is not known, only {FORMAT_VERSION}"),
            None => "it has no format version".into(),
        }));
    }
    if let Some(sealer) = sealer {
        sealer.open(&mut value).await?;
    }
    let record: Record = serde_json::from_value(value).map_err(|e| bad(e.to_string()))?;
    match record.id == id {
        true => Ok(Some((record, version))),
        false => Err(bad("it is the record of another statement".into())),
    }
}

/// A record that cannot be read.
#[derive(Debug, thiserror::Error)]
#[error("the record `{key}` in the warehouse cannot be read: {reason}")]
struct Unreadable {
    key: String,
    reason: String,
}

impl Report for Unreadable {
    fn code(&self) -> &str {
        "invalid_record"
    }
    fn class(&self) -> Class {
        Class::User
    }
    fn hint(&self) -> Option<String> {
        Some("remove the file: the statement is then forgotten".into())
    }
}
