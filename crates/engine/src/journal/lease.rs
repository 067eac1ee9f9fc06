//! Leases: how a standby learns that the live server is dead.
//!
//! ```text
//!   live server   writes epochs/<n>.json again, with another number, three times in the lease's timeout   Keeper
//!   standby       reads it ten times in that timeout                                                       Standby
//!                   it does not change for the timeout          ─▶ begins epoch n + 1
//!                   it says that its server let go of it        ─▶ begins epoch n + 1 at once
//!                   epochs/<n>.lock of this machine is free     ─▶ begins epoch n + 1 at once
//! ```
//! Only the standby's own clock counts, and only the time in which the standby could read the lease. Clocks of two
//! machines are never compared, and a standby does not take over because it was suspended or could not read the
//! warehouse. A lease is a hint. The later epoch ([`Epoch`]) keeps an earlier server from making changes, so a standby
//! that takes over too early costs time and no data. Of several standbys, the first one that writes the document of the
//! next epoch wins.

use super::epoch::{Epoch, epoch, lock};
use crate::error::Error;
use bytes::Bytes;
use serde::{Deserialize, Serialize};
use std::sync::Arc;
use std::time::{Duration, Instant};
use tessera_storage::sink::{FileLock, Folder, SinkError, Version};
use tessera_storage::source::SourceError;

/// Renewals in a lease's timeout.
const RENEWALS: u32 = 3;
/// Looks in a lease's timeout, and the bounds of the time between two of them.
const LOOKS: u32 = 10;
const LOOK_EVERY: (Duration, Duration) = (Duration::from_millis(20), Duration::from_secs(1));
/// Renewals between two checks for a later epoch, in a bucket that does not compare versions.
const CHECKED_EVERY: u64 = 10;

/// The document of an epoch: its server, and a number that changes while that server lives.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Lease {
    pid: u32,
    /// Random: no two servers write the same bytes.
    mark: String,
    /// URL at which clients reach the server.
    pub url: Option<String>,
    /// Address on which the server accepts workers.
    pub workers: Option<String>,
    /// How long the document may stay as it is before a standby takes over, in milliseconds.
    pub timeout_ms: Option<u64>,
    /// Number of renewals.
    pub renewals: u64,
    /// The machine, since its start, on which the server holds the lock of the epoch.
    locked_on: Option<String>,
    /// True if the server has ended, or is about to.
    pub released: bool,
}

impl Lease {
    /// The lease of this process.
    pub(super) fn new() -> Self {
        let mark = uuid::Uuid::new_v4().to_string();
        Lease { pid: std::process::id(), mark, ..Lease::default() }
    }

    pub(super) fn to_bytes(&self) -> Result<Vec<u8>, Error> {
        serde_json::to_vec(self)
            .map_err(|e| Error::Internal { what: format!("a lease is not JSON: {e}") })
    }

    /// The lease of an epoch; `None` if the epoch is forgotten.
    pub(super) async fn read(folder: &Folder, number: u64) -> Result<Option<Self>, Error> {
        let bytes = folder.get(&epoch(number)).await.map_err(Error::stage)?;
        Ok(bytes.map(|bytes| Lease::parse(&bytes)))
    }

    /// A document of another version has no address; its server counts as alive while the bytes of the document change.
    fn parse(bytes: &[u8]) -> Self {
        serde_json::from_slice(bytes).unwrap_or_default()
    }
}

/// The addresses of a server.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Addresses {
    /// URL for clients.
    pub url: Option<String>,
    /// Address for workers.
    pub workers: Option<String>,
}

/// Renews the lease of this server.
#[derive(Debug)]
pub struct Keeper {
    epoch: Arc<Epoch>,
    lease: Lease,
    timeout: Duration,
    /// The version that was written last, if it is known.
    version: Option<Version>,
    /// Shows others on this machine that the process lives.
    lock: Option<FileLock>,
}

impl Keeper {
    pub(crate) fn new(epoch: Arc<Epoch>, addresses: Addresses, timeout: Duration) -> Self {
        let Addresses { url, workers } = addresses;
        let timeout_ms = Some(timeout.as_millis() as u64);
        let lease = Lease { url, workers, timeout_ms, ..Lease::new() };
        Keeper { epoch, lease, timeout, version: None, lock: None }
    }

    /// Time between two renewals.
    pub fn every(&self) -> Duration {
        self.timeout / RENEWALS
    }

    /// Writes the lease again, and begins the epoch if it has not begun.
    ///
    /// # Errors
    /// `fenced` after a later server has taken over; errors of storage, and a warehouse that does not respond in time.
    pub async fn renew(&mut self) -> Result<(), Error> {
        self.epoch.begin().await?;
        self.lease.renewals += 1;
        self.write().await
    }

    /// Lets a standby take over at once. The server may still make changes until then.
    ///
    /// # Errors
    /// The errors of [`Keeper::renew`].
    pub async fn release(&mut self) -> Result<(), Error> {
        if self.epoch.number().await.is_none() {
            return Ok(());
        }
        self.lease.released = true;
        self.write().await
    }

    /// Fails if a later server has taken over.
    ///
    /// # Errors
    /// `fenced`; errors of storage.
    pub async fn check(&self) -> Result<(), Error> {
        self.epoch.check().await
    }

    async fn write(&mut self) -> Result<(), Error> {
        let Some(number) = self.epoch.number().await else { return Ok(()) };
        let folder = self.epoch.folder();
        if self.lock.is_none() && !folder.is_remote() {
            self.lock = folder.try_hold(&lock(number)).map_err(Error::stage)?;
            self.lease.locked_on = self.lock.as_ref().and_then(|_| boot());
        }
        let within = self.every();
        // If this is cut off, the version is not known.
        let before = self.version.take();
        let lease = &self.lease;
        let write = async {
            // A forgotten epoch has no document any more, so that a bucket refuses the next version of it.
            if before.is_none() || lease.renewals.is_multiple_of(CHECKED_EVERY) {
                self.epoch.check().await?;
            }
            match folder.refresh(&epoch(number), lease.to_bytes()?, before).await {
                Ok(version) => Ok(Some(version).filter(|_| folder.is_remote())),
                // A later server, or a request of this server that was late.
                Err(SinkError::Changed { .. }) => self.epoch.check().await.map(|()| None),
                Err(e) => Err(Error::stage(e)),
            }
        };
        match tokio::time::timeout(within, write).await {
            Ok(version) => {
                self.version = version?;
                Ok(())
            }
            Err(_) => Err(late(folder, number, within)),
        }
    }
}

/// The turn of a standby.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Turn {
    /// Another server lives, as far as is known.
    Waits(Lease),
    /// The standby has taken over.
    Leads,
}

/// Waits for the end of the live server.
#[derive(Debug)]
pub struct Standby {
    epoch: Arc<Epoch>,
    /// The timeout of a lease that has none: of an earlier version, or of a server that is about to start.
    timeout: Duration,
    seen: Option<Seen>,
}

/// The last epoch, as a standby has read it.
#[derive(Debug)]
struct Seen {
    number: u64,
    bytes: Bytes,
    lease: Lease,
    /// How long the standby has seen the same bytes.
    silent: Duration,
    looked: Instant,
}

impl Standby {
    pub(crate) fn new(epoch: Arc<Epoch>, timeout: Duration) -> Self {
        Standby { epoch, timeout, seen: None }
    }

    /// The timeout of the lease that it waits for.
    fn timeout(&self) -> Duration {
        let of_lease = self.seen.as_ref().and_then(|seen| seen.lease.timeout_ms);
        of_lease.map_or(self.timeout, Duration::from_millis)
    }

    /// Time between two looks.
    pub fn every(&self) -> Duration {
        (self.timeout() / LOOKS).clamp(LOOK_EVERY.0, LOOK_EVERY.1)
    }

    /// Looks at the lease of the last epoch, and takes over if its server is dead, has let go of it, or never was.
    ///
    /// # Errors
    /// Errors of storage: then it is not known whether the server lives, and the time since the last look does not
    /// count.
    pub async fn look(&mut self) -> Result<Turn, Error> {
        let number = match &self.seen {
            Some(seen) => seen.number,
            None => self.epoch.last().await?,
        };
        if number > 0 && !self.is_over(number).await? {
            let lease = self.seen.as_ref().map(|seen| seen.lease.clone());
            return Ok(Turn::Waits(lease.unwrap_or_default()));
        }
        let lease = self.seen.take().map(|seen| seen.lease);
        match self.epoch.begin_after(number).await? {
            true => Ok(Turn::Leads),
            // A server that started, or another standby: it has all of its time.
            false => Ok(Turn::Waits(lease.unwrap_or_default())),
        }
    }

    /// Looks at the lease of an epoch; true if its server is dead, or has let go of it.
    async fn is_over(&mut self, number: u64) -> Result<bool, Error> {
        let (folder, gap, within) = (self.epoch.folder().clone(), 2 * self.every(), self.timeout());
        let found = match tokio::time::timeout(within, folder.get(&epoch(number))).await {
            Ok(found) => found.map_err(Error::stage)?,
            Err(_) => return Err(late(&folder, number, within)),
        };
        let Some(bytes) = found else {
            // A later epoch began.
            self.seen = None;
            return Ok(false);
        };
        let now = Instant::now();
        match &mut self.seen {
            Some(seen) if seen.bytes == bytes => {
                seen.silent += now.saturating_duration_since(seen.looked).min(gap);
                seen.looked = now;
            }
            _ => {
                let lease = Lease::parse(&bytes);
                let silent = Duration::ZERO;
                self.seen = Some(Seen { number, bytes, lease, silent, looked: now });
            }
        }
        let timeout = self.timeout();
        let Some(seen) = &self.seen else { return Ok(false) };
        if seen.lease.released || seen.silent >= timeout {
            return Ok(true);
        }
        // A lock says nothing about a process on another machine: a file system may keep it to itself.
        let is_here = seen.lease.locked_on.is_some() && seen.lease.locked_on == boot();
        Ok(is_here && folder.is_held(&lock(number)).map_err(Error::stage)? == Some(false))
    }
}

fn late(folder: &Folder, number: u64, within: Duration) -> Error {
    let (what, seconds) = (folder.url(&epoch(number)), within.as_secs().max(1));
    Error::stage(SourceError::Timeout { what, seconds })
}

/// A random number that the kernel of this machine drew when it started; `None` on a system that has none.
fn boot() -> Option<String> {
    let text = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").ok()?;
    Some(text.trim().to_string()).filter(|id| !id.is_empty())
}
