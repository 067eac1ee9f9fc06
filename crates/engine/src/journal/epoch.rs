//! Epochs: which server may change a warehouse.
//!
//! ```text
//!   epochs/<n>.json     a server: only the one with the highest number may write. It is also the server's lease
//!   epochs/lock         held in shared mode while a change is made, and exclusively once by a server that begins
//! ```
//! A server begins an epoch and looks for a later one before each change. [`super::lease`] renews the document, so that
//! a standby learns when its server is dead.

use super::lease::Lease;
use crate::error::{Class, Error, Report};
use std::sync::atomic::{AtomicBool, Ordering};
use tessera_storage::sink::{FileLock, Folder, Mode, SinkError};
use tokio::sync::Mutex;

/// Directory of the epochs.
pub(crate) const EPOCHS: &str = "epochs";
/// Writers hold the lock in shared mode; its exclusive holder knows that no change is being made.
const LOCK: &str = "epochs/lock";
/// Upper bound on servers that start at the same time.
const STARTS_MAX: u32 = 64;

/// The right of a server to change a warehouse.
#[derive(Debug)]
pub(crate) struct Epoch {
    folder: Folder,
    /// The number, once the epoch began. A process that is not a server never has one.
    number: Mutex<Option<u64>>,
    is_server: AtomicBool,
    /// True while the process is a standby: then its epoch begins only with [`Epoch::begin_after`].
    stands_by: AtomicBool,
}

impl Epoch {
    pub(crate) fn new(folder: Folder) -> Self {
        Epoch {
            folder,
            number: Mutex::default(),
            is_server: AtomicBool::new(false),
            stands_by: AtomicBool::new(false),
        }
    }

    pub(super) fn folder(&self) -> &Folder {
        &self.folder
    }

    /// Marks the process as a server.
    pub(crate) fn serves(&self) {
        self.is_server.store(true, Ordering::Relaxed);
    }

    /// Marks the process as a standby.
    pub(crate) fn stands_by(&self) {
        self.stands_by.store(true, Ordering::Relaxed);
    }

    /// True if the process is a server, and no standby.
    fn may_begin(&self) -> bool {
        self.is_server.load(Ordering::Relaxed) && !self.stands_by.load(Ordering::Relaxed)
    }

    /// The number of the server's epoch, which begins now if it has not; `None` if the process is not a server.
    ///
    /// # Errors
    /// Errors of storage; a later epoch.
    pub(crate) async fn begun_by_server(&self) -> Result<Option<u64>, Error> {
        if !self.may_begin() {
            return Ok(None);
        }
        self.begin().await?;
        self.check().await?;
        Ok(*self.number.lock().await)
    }

    /// Like [`Epoch::begun_by_server`], without beginning the first epoch of a warehouse.
    ///
    /// # Errors
    /// Errors of storage; a later epoch.
    pub(crate) async fn begun_if_known(&self) -> Result<Option<u64>, Error> {
        if self.may_begin() {
            self.begin_if_known().await?;
            self.check().await?;
        }
        Ok(*self.number.lock().await)
    }

    /// Begins the epoch if there was an earlier one, whose server is fenced by that.
    pub(super) async fn begin_if_known(&self) -> Result<(), Error> {
        match self.last().await? {
            0 => Ok(()),
            _ => self.begin().await,
        }
    }

    /// Begins the epoch, if it has not begun.
    ///
    /// # Errors
    /// Errors of storage; too many servers that start at the same time; the process is a standby.
    pub(super) async fn begin(&self) -> Result<(), Error> {
        let mut number = self.number.lock().await;
        if number.is_some() {
            return Ok(());
        }
        if self.stands_by.load(Ordering::Relaxed) {
            return Err(Error::stage(NotLive::Standby { live: None }));
        }
        for _ in 0..STARTS_MAX {
            let next = self.last().await? + 1;
            if self.create(next).await? {
                self.let_changes_end().await?;
                *number = Some(next);
                return self.forget_before(next).await;
            }
        }
        Err(self.fenced().await)
    }

    /// Begins the epoch that follows `last`, for a standby; false if another server did.
    ///
    /// # Errors
    /// Errors of storage.
    pub(super) async fn begin_after(&self, last: u64) -> Result<bool, Error> {
        let mut number = self.number.lock().await;
        let next = last + 1;
        // Without the first look it could begin an epoch that was forgotten since.
        if self.last().await? != last || !self.create(next).await? {
            return Ok(false);
        }
        self.let_changes_end().await?;
        if self.last().await? != next {
            return Ok(false);
        }
        *number = Some(next);
        self.stands_by.store(false, Ordering::Relaxed);
        if let Err(e) = self.forget_before(next).await {
            tracing::warn!(error = %e, "earlier epochs could not be removed");
        }
        Ok(true)
    }

    /// Makes the document of an epoch; false if another server did.
    async fn create(&self, number: u64) -> Result<bool, Error> {
        // The bytes are unique to this server: after a lost response they show if the stored epoch is ours.
        match self.folder.put(&epoch(number), Lease::new().to_bytes()?, Mode::Create).await {
            Ok(_) => Ok(true),
            Err(SinkError::Exists { .. }) => Ok(false),
            Err(e) => Err(Error::stage(e)),
        }
    }

    /// A server that checked its epoch before this one existed completes its change first. A server that checks now
    /// makes no change.
    async fn let_changes_end(&self) -> Result<(), Error> {
        self.folder.hold(LOCK, true).await.map(drop).map_err(Error::stage)
    }

    /// Removes all epochs but the last.
    async fn forget_before(&self, last: u64) -> Result<(), Error> {
        let names = self.folder.names(EPOCHS).await.map_err(Error::stage)?;
        for name in names {
            let number = name.strip_suffix(".json").or_else(|| name.strip_suffix(".lock"));
            if number.and_then(|n| n.parse::<u64>().ok()).is_some_and(|old| old < last) {
                let removed = self.folder.remove(&format!("{EPOCHS}/{name}")).await;
                removed.map_err(Error::stage)?;
            }
        }
        Ok(())
    }

    /// The right to make a change while it is held: in a directory, no later server begins until it is released. A
    /// process that is not a server gets it at once, and holds nothing.
    ///
    /// # Errors
    /// Errors of storage; a later epoch.
    pub(crate) async fn right(&self) -> Result<Option<FileLock>, Error> {
        if self.number.lock().await.is_none() {
            return Ok(None);
        }
        let held = self.folder.hold(LOCK, false).await.map_err(Error::stage)?;
        self.check().await?;
        Ok(held)
    }

    /// Fails if a later server has taken over.
    ///
    /// # Errors
    /// Errors of storage; a later epoch.
    pub(super) async fn check(&self) -> Result<(), Error> {
        match self.number().await {
            Some(number) if self.last().await? > number => Err(self.fenced().await),
            _ => Ok(()),
        }
    }

    /// The number of the server's epoch, once it began.
    pub(super) async fn number(&self) -> Option<u64> {
        *self.number.lock().await
    }

    /// The number of the last epoch; 0 if there was none.
    ///
    /// # Errors
    /// Errors of storage.
    pub(super) async fn last(&self) -> Result<u64, Error> {
        let names = self.folder.names(EPOCHS).await.map_err(Error::stage)?;
        let numbers = names.iter().filter_map(|n| n.strip_suffix(".json")?.parse().ok());
        Ok(numbers.max().unwrap_or(0))
    }

    /// The error of a server after a later one has taken over, with the URL of that one if it can be read.
    async fn fenced(&self) -> Error {
        let lease = match self.last().await {
            Ok(last) => Lease::read(&self.folder, last).await,
            Err(e) => Err(e),
        };
        let live = lease.ok().flatten().and_then(|lease| lease.url);
        Error::stage(NotLive::Fenced { warehouse: self.folder.display().into(), live })
    }
}

/// The key of the document of an epoch.
pub(super) fn epoch(number: u64) -> String {
    format!("{EPOCHS}/{number}.json")
}

/// The key of the lock that the server of an epoch holds while it lives.
pub(super) fn lock(number: u64) -> String {
    format!("{EPOCHS}/{number}.lock")
}

/// Why a server does not work for its warehouse: another one does.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum NotLive {
    /// The server waits for the end of the live server.
    #[error("this server is a standby")]
    Standby {
        /// URL of the live server, if it is known.
        live: Option<String>,
    },
    /// A later server has taken over.
    #[error("another server has taken over the warehouse `{warehouse}`")]
    Fenced {
        /// The warehouse.
        warehouse: String,
        /// URL of that server, if it is known.
        live: Option<String>,
    },
}

impl NotLive {
    /// The reason in an error, if it is one.
    pub fn of(error: &Error) -> Option<&NotLive> {
        let Error::Stage(stage) = error else { return None };
        let report: &dyn std::error::Error = &*stage.0;
        report.downcast_ref()
    }
}

impl Report for NotLive {
    fn code(&self) -> &str {
        match self {
            NotLive::Standby { .. } => "standby",
            NotLive::Fenced { .. } => "fenced",
        }
    }
    fn class(&self) -> Class {
        Class::Retry
    }
    fn hint(&self) -> Option<String> {
        let ask = match self.server() {
            Some(url) => format!("ask the live server, {url}"),
            None => "ask the live server".into(),
        };
        Some(match self {
            NotLive::Standby { .. } => ask,
            NotLive::Fenced { .. } => {
                format!("{ask}; give each server a warehouse of its own (`--warehouse`)")
            }
        })
    }
    fn server(&self) -> Option<&str> {
        let (NotLive::Standby { live } | NotLive::Fenced { live, .. }) = self;
        live.as_deref()
    }
}
