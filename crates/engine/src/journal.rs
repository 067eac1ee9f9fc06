//! What a server remembers of the statements that it accepted, in its warehouse.
//!
//! ```text
//!   statements/<id>.json    one for each statement that was acknowledged with 202, or that has a `request_id`
//!   statements/<id>/        chunks of it that were kept ([`tessera_exec::durable`])
//!   epochs/<n>.json         the servers that wrote here, one after another: the highest number may
//! ```
//! Secrets in it are sealed ([`crate::secrets`]). A record is there before its statement is acknowledged, whole, and on
//! the device. It has the text and what the text was bound to ([`Recipe`]); of the end only that it was: cells are
//! computed again when they are asked for after a restart. It goes when the statement is forgotten. It begins with its
//! checksum ([`crate::sealed`]): one that is damaged is not run again as something else.
//!
//! Two servers must not work for one warehouse. A server takes the next epoch before it writes first, and looks for a
//! later one before each change: one that finds it was taken for dead, and changes nothing any more ([`Epoch`]).
//! A later server may begin just after that look. In a directory it waits until the change is made ([`Epoch::right`]).
//! In a bucket it does not; there a record is put in place of the version that was read, so that what the earlier server
//! still had on its way is refused once the later one has written the record ([`Journal::write`]).

#[cfg(test)]
mod tests;

use crate::error::{Class, Error, Report};
use crate::sealed;
use crate::secrets::Sealer;
use crate::statement::Recipe;
use futures::{Stream, StreamExt, TryStreamExt, stream};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{SystemTime, UNIX_EPOCH};
use tessera_storage::sink::{FileLock, Folder, Mode, SinkError, Version};
use tokio::sync::Mutex;

/// Where the records are.
pub(crate) const STATEMENTS: &str = "statements";
/// Where the epochs are.
pub(crate) const EPOCHS: &str = "epochs";
/// Who holds it with others makes a change; who holds it alone knows that no change is being made.
const LOCK: &str = "epochs/lock";
/// The format that this version reads and writes.
const FORMAT_VERSION: u32 = 1;
/// Records that are read at a time.
const READS_MAX: usize = 16;
/// Servers that may start at the same moment.
const STARTS_MAX: u32 = 64;
/// How often a record is put over one that came meanwhile.
const OVER_MAX: u32 = 4;

/// What is remembered of a statement.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Record {
    format_version: u32,
    /// The name of the statement.
    pub id: String,
    /// When a server accepted it, in milliseconds since 1970.
    pub accepted_ms: u64,
    /// The session that it ran in.
    pub session: Option<String>,
    /// The client's own name for it.
    pub request_id: Option<String>,
    /// The script.
    pub sql: String,
    /// What the script was bound to.
    pub recipe: Recipe,
    /// How many servers began to run it.
    pub starts: u32,
    /// How it ended, and when, in milliseconds since 1970; `None` while it waits or runs.
    pub end: Option<(End, u64)>,
}

/// How a statement ended.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum End {
    /// With answers.
    Finished,
    /// With answers that are gone.
    Gone,
    /// Somebody stopped it.
    Cancelled,
    /// With the error of this document.
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
    /// The record of a statement that one server began to run, and that is not over.
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

/// The moment, in milliseconds since 1970; 0 if the clock is before.
pub fn now_ms() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |d| d.as_millis() as u64)
}

impl Journal {
    /// The journal in a warehouse's folder. Nothing is read or made yet.
    pub(crate) fn new(
        folder: Folder,
        epoch: Arc<Epoch>,
        sealer: Sealer,
        io: tokio::runtime::Handle,
    ) -> Self {
        Journal { folder, epoch, sealer, io }
    }

    /// All records with their versions, the oldest first. If there are some, or were, the server's epoch begins. A
    /// record that cannot be read is left where it is: it must not keep the others.
    ///
    /// # Errors
    /// Whatever storage says.
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

    /// Writes a record, in place of the version `before` that the statement has, or of none; the version that it has
    /// then. In a directory, where nobody else writes it meanwhile, it replaces what is there.
    ///
    /// # Errors
    /// Whatever storage says; a later server; `document_changed` and `already_exists` if there is another version.
    pub async fn write(&self, record: &Record, before: Option<Version>) -> Result<Version, Error> {
        self.epoch.begin().await?;
        let right = self.epoch.right().await?;
        let bad =
            |e: serde_json::Error| Error::Internal { what: format!("a record is no JSON: {e}") };
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
        // A file is on the device before this ends: that is no work for a thread of I/O.
        let put = tokio::task::spawn_blocking(move || {
            // Until it is written, whoever waits for it.
            let _right = right;
            io.block_on(folder.put(&key, text, mode))
        });
        let put = put.await.map_err(|e| Error::Internal { what: e.to_string() })?;
        let version = put.map_err(Error::stage)?;
        if is_first {
            // A later server that began before the record was there does not know of it.
            self.epoch.check().await?;
        }
        Ok(version)
    }

    /// The same over whatever is there, for a statement of this server. Another version than `before` is of a request
    /// whose answer nobody has: of this server, or of an earlier one, which did nothing that rests on it.
    ///
    /// # Errors
    /// Whatever storage says; a later server.
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

    /// Refuses if a later server works here.
    ///
    /// # Errors
    /// Whatever storage says; a later epoch.
    pub async fn check(&self) -> Result<(), Error> {
        self.epoch.check().await
    }

    /// Forgets a statement.
    ///
    /// # Errors
    /// Whatever storage says; a later server.
    pub async fn remove(&self, id: &str) -> Result<(), Error> {
        let _right = self.epoch.right().await?;
        self.folder.remove(&key(id)).await.map(|_| ()).map_err(Error::stage)
    }

    /// How many records can be read, and the errors of those that cannot.
    ///
    /// # Errors
    /// Whatever storage says.
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
    /// Whatever storage says; a record that cannot be read.
    pub(crate) async fn data(folder: &Folder) -> Result<BTreeSet<String>, Error> {
        let all: Vec<Option<(Record, Version)>> =
            read_all(folder, None).await?.try_collect().await?;
        let mut data = BTreeSet::new();
        for (record, _) in all.iter().flatten() {
            data.extend(record.recipe.data().map(String::from));
            // A request that names them may still be on its way, from a server that is gone.
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

/// All records, as they come; with their secrets if there is who opens them.
async fn read_all<'a>(
    folder: &'a Folder,
    sealer: Option<&'a Sealer>,
) -> Result<impl Stream<Item = Result<Option<(Record, Version)>, Error>> + use<'a>, Error> {
    let names = folder.names(STATEMENTS).await.map_err(Error::stage)?;
    let ids = names.into_iter().filter_map(|n| n.strip_suffix(".json").map(String::from));
    let ids: Vec<String> = ids.filter(|id| !id.starts_with('.')).collect();
    Ok(stream::iter(ids).map(move |id| read(folder, id, sealer)).buffer_unordered(READS_MAX))
}

/// A record, with its secrets if there is who opens them; `None` if it was forgotten meanwhile.
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

/// The right of a server to change a warehouse.
#[derive(Debug)]
pub(crate) struct Epoch {
    folder: Folder,
    /// The number, once it began: what is not a server never has one, and is not asked for it.
    number: Mutex<Option<u64>>,
    is_server: AtomicBool,
}

impl Epoch {
    pub(crate) fn new(folder: Folder) -> Self {
        Epoch { folder, number: Mutex::default(), is_server: AtomicBool::new(false) }
    }

    /// The process is a server.
    pub(crate) fn serves(&self) {
        self.is_server.store(true, Ordering::Relaxed);
    }

    /// The number of the server's epoch, which begins now if it has not; `None` if the process is no server.
    ///
    /// # Errors
    /// Whatever storage says; a later epoch.
    pub(crate) async fn begun_by_server(&self) -> Result<Option<u64>, Error> {
        if !self.is_server.load(Ordering::Relaxed) {
            return Ok(None);
        }
        self.begin().await?;
        self.check().await?;
        Ok(*self.number.lock().await)
    }

    /// The same where no epoch begins that would be the first.
    ///
    /// # Errors
    /// Whatever storage says; a later epoch.
    pub(crate) async fn begun_if_known(&self) -> Result<Option<u64>, Error> {
        if self.is_server.load(Ordering::Relaxed) {
            self.begin_if_known().await?;
            self.check().await?;
        }
        Ok(*self.number.lock().await)
    }

    /// Begins the epoch if there was one before: who worked here until now stops.
    async fn begin_if_known(&self) -> Result<(), Error> {
        match self.last().await? {
            0 => Ok(()),
            _ => self.begin().await,
        }
    }

    /// Begins the epoch, if it has not begun.
    ///
    /// # Errors
    /// Whatever storage says; more servers than may start at a time.
    async fn begin(&self) -> Result<(), Error> {
        let mut number = self.number.lock().await;
        if number.is_some() {
            return Ok(());
        }
        // No other server's has these bytes: what is there after an answer that was lost is ours, or is not.
        let mark = uuid::Uuid::new_v4();
        let text =
            || format!("{{\"pid\":{},\"mark\":\"{mark}\"}}", std::process::id()).into_bytes();
        for _ in 0..STARTS_MAX {
            let next = self.last().await? + 1;
            match self.folder.put(&epoch(next), text(), Mode::Create).await {
                Err(SinkError::Exists { .. }) => {}
                Err(e) => return Err(Error::stage(e)),
                Ok(_) => {
                    // Who looked before there was this epoch ends its change; who looks now makes none.
                    let _nobody = self.folder.hold(LOCK, true).await.map_err(Error::stage)?;
                    *number = Some(next);
                    return self.forget_before(next).await;
                }
            }
        }
        Err(Error::stage(Fenced { warehouse: self.folder.display().into() }))
    }

    /// Removes all epochs but the last.
    async fn forget_before(&self, last: u64) -> Result<(), Error> {
        let names = self.folder.names(EPOCHS).await.map_err(Error::stage)?;
        for old in names.iter().filter_map(|n| n.strip_suffix(".json")?.parse::<u64>().ok()) {
            if old < last {
                self.folder.remove(&epoch(old)).await.map_err(Error::stage)?;
            }
        }
        Ok(())
    }

    /// The right to make a change, as long as it is held: in a directory, no later server works here before. Who is
    /// no server has it at once, and holds nothing.
    ///
    /// # Errors
    /// Whatever storage says; a later epoch.
    pub(crate) async fn right(&self) -> Result<Option<FileLock>, Error> {
        if self.number.lock().await.is_none() {
            return Ok(None);
        }
        let held = self.folder.hold(LOCK, false).await.map_err(Error::stage)?;
        self.check().await?;
        Ok(held)
    }

    /// Refuses if a later server works here.
    ///
    /// # Errors
    /// Whatever storage says; a later epoch.
    async fn check(&self) -> Result<(), Error> {
        match *self.number.lock().await {
            Some(n) => self.is_last(n).await,
            None => Ok(()),
        }
    }

    async fn is_last(&self, number: u64) -> Result<(), Error> {
        match self.last().await? {
            last if last > number => {
                Err(Error::stage(Fenced { warehouse: self.folder.display().into() }))
            }
            _ => Ok(()),
        }
    }

    /// The number of the last epoch; 0 if there was none.
    async fn last(&self) -> Result<u64, Error> {
        let names = self.folder.names(EPOCHS).await.map_err(Error::stage)?;
        let numbers = names.iter().filter_map(|n| n.strip_suffix(".json")?.parse().ok());
        Ok(numbers.max().unwrap_or(0))
    }
}

fn epoch(number: u64) -> String {
    format!("{EPOCHS}/{number}.json")
}

/// Another server took over.
#[derive(Debug, thiserror::Error)]
#[error("another server has taken over the warehouse `{warehouse}`")]
struct Fenced {
    warehouse: String,
}

impl Report for Fenced {
    fn code(&self) -> &str {
        "fenced"
    }
    fn class(&self) -> Class {
        Class::Retry
    }
    fn hint(&self) -> Option<String> {
        Some("ask that server; give each server a warehouse of its own (`--warehouse`)".into())
    }
}

/// A record that is none.
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
