//! Locks between processes, held over a check and the write that depends on it ([`Folder::hold`]).

use super::Folder;
use crate::disk;
use crate::sink::SinkError;
use crate::sink::destination::{Destination, make_all, new};
use crate::source::SourceError;
use std::fs::{File, OpenOptions, TryLockError};
use std::io;
use std::time::{Duration, Instant};

/// Upper bound on the wait for a lock, and the time between attempts. A holder writes one document.
const HOLD_MAX: Duration = Duration::from_secs(10);
const HOLD_EVERY: Duration = Duration::from_millis(2);

/// A lock, until it drops or the process ends.
#[derive(Debug)]
pub struct FileLock(#[expect(dead_code, reason = "it is held")] File);

/// The outcome of an attempt to lock a file; false if another process holds it.
fn taken(attempt: Result<(), TryLockError>) -> io::Result<bool> {
    match attempt {
        Ok(()) => Ok(true),
        Err(TryLockError::WouldBlock) => Ok(false),
        Err(TryLockError::Error(e)) => Err(e),
    }
}

impl Folder {
    /// Takes the lock `key`, exclusively (`alone`) or in shared mode; `None` in a bucket, which has no locks.
    ///
    /// # Errors
    /// A lock that another process holds for more than ten seconds; a directory that cannot be written.
    pub async fn hold(&self, key: &str, alone: bool) -> Result<Option<FileLock>, SinkError> {
        let Destination::Local { root, .. } = &self.destination else { return Ok(None) };
        let path = root.join(key);
        let failed = self.destination.failed(key);
        let open = || {
            path.parent().map_or(Ok(()), |parent| make_all(parent, true))?;
            new(true).create(true).truncate(false).open(&path)
        };
        let file = disk::wait(open).map_err(&failed)?;
        let start = Instant::now();
        loop {
            let lock = || taken(if alone { file.try_lock() } else { file.try_lock_shared() });
            if disk::wait(lock).map_err(&failed)? {
                return Ok(Some(FileLock(file)));
            }
            if start.elapsed() >= HOLD_MAX {
                let reason = format!(
                    "a process that does not go on holds this lock for {} s: end it",
                    HOLD_MAX.as_secs()
                );
                return Err(SinkError::Storage { what: self.destination.show(key), reason });
            }
            tokio::time::sleep(HOLD_EVERY).await;
        }
    }

    /// Takes the lock `key` exclusively, without waiting; `None` if another process holds it, and in a bucket.
    ///
    /// # Errors
    /// A directory that cannot be written.
    pub fn try_hold(&self, key: &str) -> Result<Option<FileLock>, SinkError> {
        let Destination::Local { root, .. } = &self.destination else { return Ok(None) };
        let path = root.join(key);
        let take = || -> io::Result<Option<FileLock>> {
            path.parent().map_or(Ok(()), |parent| make_all(parent, true))?;
            let file = new(true).create(true).truncate(false).open(&path)?;
            Ok(taken(file.try_lock())?.then_some(FileLock(file)))
        };
        disk::wait(take).map_err(self.destination.failed(key))
    }

    /// Locks the directory itself, without waiting; `None` in a bucket.
    ///
    /// # Errors
    /// [`SinkError::Busy`] if another process holds it; a directory that does not exist.
    pub(in crate::sink) fn try_hold_directory(&self) -> Result<Option<FileLock>, SinkError> {
        let Destination::Local { root, .. } = &self.destination else { return Ok(None) };
        let take = || -> io::Result<Option<FileLock>> {
            let file = File::open(root)?;
            Ok(taken(file.try_lock())?.then_some(FileLock(file)))
        };
        match disk::wait(take) {
            Ok(Some(lock)) => Ok(Some(lock)),
            Ok(None) => Err(SinkError::Busy { what: self.display().to_string() }),
            Err(e) if e.kind() == io::ErrorKind::NotFound => {
                Err(SinkError::Source(SourceError::NotFound { what: self.display().to_string() }))
            }
            Err(e) => Err(self.destination.failed("")(e)),
        }
    }

    /// True if a process holds the lock `key` exclusively; `None` if there is no such lock, as in a bucket.
    ///
    /// # Errors
    /// Errors of the storage.
    pub fn is_held(&self, key: &str) -> Result<Option<bool>, SinkError> {
        let Destination::Local { root, .. } = &self.destination else { return Ok(None) };
        let look = || match OpenOptions::new().read(true).open(root.join(key)) {
            // Dropping the file releases the lock that this call took.
            Ok(file) => taken(file.try_lock_shared()).map(|is_free| Some(!is_free)),
            Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(e) => Err(e),
        };
        disk::wait(look).map_err(self.destination.failed(key))
    }
}
