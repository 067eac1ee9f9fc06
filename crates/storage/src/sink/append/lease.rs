//! The lock of an append to a bucket: a document that its holder renews.
//!
//! A waiting append takes the lock if the document stays as it is for [`LASTS`], by its own clock: its holder was
//! killed. A holder that cannot renew it for this long stops writing before.

use super::super::folder::{Folder, Mode, Version};
use crate::lock;
use crate::sink::SinkError;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

const KEY: &str = ".tessera-append.json";

/// How long a lock holds that is not renewed.
const LASTS: Duration = Duration::from_millis(if cfg!(test) { 3000 } else { 30_000 });

/// How long its holder trusts it: less, as a renewal takes effect before its answer arrives, and a write takes time.
const TRUSTED: Duration = Duration::from_millis(if cfg!(test) { 2000 } else { 20_000 });

const RENEWED_EVERY: Duration = Duration::from_millis(if cfg!(test) { 200 } else { 5000 });

const LOOKED_AT_EVERY: Duration = Duration::from_millis(if cfg!(test) { 100 } else { 1000 });

/// The lock, until it drops.
#[derive(Debug)]
pub(super) struct Lease {
    folder: Folder,
    held: Arc<Mutex<HeldLease>>,
    renewal: tokio::task::JoinHandle<()>,
}

#[derive(Debug)]
struct HeldLease {
    version: Version,
    until: Instant,
}

impl Lease {
    /// Takes the lock of the append to a bucket; `None` in a directory, which has locks of its own.
    ///
    /// # Errors
    /// [`SinkError::Busy`] if another append runs; errors of the storage.
    pub(super) async fn take(folder: &Folder) -> Result<Option<Lease>, SinkError> {
        if !folder.is_remote() {
            return Ok(None);
        }
        let mut seen: Option<(Version, Instant)> = None;
        loop {
            let asked = Instant::now();
            let mode = match &seen {
                Some((version, since)) if since.elapsed() >= LASTS => Mode::Update(version.clone()),
                _ => Mode::Create,
            };
            let other = match put(folder, mode).await? {
                Put::Done(version) => return Ok(Some(Lease::held(folder, version, asked))),
                Put::Other(other) => other,
            };
            seen = match (other, seen) {
                // Its holder has ended.
                (None, _) => None,
                (Some(version), None) => Some((version, Instant::now())),
                (Some(version), Some((before, _))) if version != before => {
                    return Err(SinkError::Busy { what: folder.display().to_string() });
                }
                (Some(_), seen) => seen,
            };
            tokio::time::sleep(LOOKED_AT_EVERY).await;
        }
    }

    fn held(folder: &Folder, version: Version, asked: Instant) -> Lease {
        let held = Arc::new(Mutex::new(HeldLease { version, until: asked + TRUSTED }));
        let renewal = tokio::spawn(renew(folder.clone(), held.clone()));
        Lease { folder: folder.clone(), held, renewal }
    }

    /// # Errors
    /// [`SinkError::Changed`] if the lock could not be renewed in time: another append may have it.
    pub(super) fn check(&self) -> Result<(), SinkError> {
        match lock(&self.held).until > Instant::now() {
            true => Ok(()),
            false => Err(SinkError::Changed { what: self.folder.url(KEY) }),
        }
    }

    /// Gives the lock back.
    pub(super) async fn release(self) {
        self.renewal.abort();
        if self.check().is_ok()
            && let Err(e) = self.folder.remove(KEY).await
        {
            tracing::debug!(error = %e, "the lock of an append stays until it expires");
        }
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        self.renewal.abort();
    }
}

async fn renew(folder: Folder, held: Arc<Mutex<HeldLease>>) {
    loop {
        tokio::time::sleep(RENEWED_EVERY).await;
        let asked = Instant::now();
        let version = lock(&held).version.clone();
        match put(&folder, Mode::Update(version)).await {
            Ok(Put::Done(version)) => *lock(&held) = HeldLease { version, until: asked + TRUSTED },
            Ok(Put::Other(_)) => {
                lock(&held).until = asked;
                return;
            }
            Err(e) => tracing::debug!(error = %e, "the lock of an append is not renewed"),
        }
    }
}

enum Put {
    /// The document is that of this process.
    Done(Version),
    /// The version of another one; `None` if there is no document any more.
    Other(Option<Version>),
}

/// Puts a document that no other has the text of: if the response is lost, the stored text shows whose it is.
async fn put(folder: &Folder, mode: Mode) -> Result<Put, SinkError> {
    let id = uuid::Uuid::new_v4().simple().to_string();
    let text = serde_json::json!({"about": "an append by Tessera runs", "renewal": id}).to_string();
    match folder.put(KEY, text.clone().into_bytes(), mode).await {
        Ok(version) => return Ok(Put::Done(version)),
        Err(SinkError::Exists { .. } | SinkError::Changed { .. }) => {}
        Err(e) => return Err(e),
    }
    Ok(match folder.get_version(KEY).await? {
        Some((stored, version)) if stored == text.as_bytes() => Put::Done(version),
        other => Put::Other(other.map(|(_, version)| version)),
    })
}
