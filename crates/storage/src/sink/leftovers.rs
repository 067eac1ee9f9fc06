//! Incomplete stores of killed processes.
//!
//! ```text
//!   data/<name>.zarr/     a store in the making
//!   data/<name>.lock      held by its writer until something names the store: shows that the writer lives
//! ```
//! A store whose lock is free is complete, or its writer is dead; the caller knows which. Without a lock (there are
//! none below a prefix of a bucket) its age decides.

use super::SinkError;
use super::destination::{Destination, join, make_all, new};
use super::folder::Folder;
use crate::disk::{self, warn_unless_removed};
use crate::fail;
use std::collections::BTreeMap;
use std::fs::{self, File, OpenOptions};
use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

/// Suffixes of the names of stores and of their locks.
const STORE: &str = ".zarr";
const LOCK: &str = ".lock";

/// Claim on a store that is being made; dropped when something names the store, or when it is removed.
#[derive(Debug)]
pub struct Claim {
    path: PathBuf,
    /// The lock is released when the process ends, even if it is killed.
    _file: File,
}

/// A store without a live writer.
#[derive(Debug)]
pub struct Leftover {
    /// Its key in the folder, as [`Folder::remove_all`] takes it.
    pub key: String,
    /// Held, so that no other process removes it at the same time.
    lock: Option<(PathBuf, File)>,
}

impl Leftover {
    /// Releases and removes its lock.
    pub fn settled(self) {
        if let Some((path, _file)) = self.lock {
            warn_unless_removed(&path, fs::remove_file(&path));
        }
    }
}

impl Drop for Claim {
    fn drop(&mut self) {
        warn_unless_removed(&self.path, fs::remove_file(&self.path));
    }
}

impl Folder {
    /// Claims the store at `key` (`data/<name>.zarr`) for its writer. `None` below a prefix of a bucket.
    ///
    /// # Errors
    /// A directory that cannot be written; [`SinkError::Exists`] if another process took the name.
    pub fn claim(&self, key: &str) -> Result<Option<Claim>, SinkError> {
        let Destination::Local { root, .. } = &self.destination else { return Ok(None) };
        let path = root.join(lock_of(key));
        let make = || -> io::Result<File> {
            if let Some(parent) = path.parent() {
                make_all(parent, true)?;
            }
            let file = new(true).create_new(true).open(&path)?;
            // A collector may have taken it for a stale lock.
            file.try_lock().map_err(|_| io::Error::from(ErrorKind::AlreadyExists))?;
            fs::metadata(&path).map_err(|_| io::Error::from(ErrorKind::AlreadyExists))?;
            fail::point("data.claim")?;
            Ok(file)
        };
        match disk::wait(make) {
            Ok(file) => Ok(Some(Claim { path, _file: file })),
            Err(e) => Err(self.destination.failed(key)(e)),
        }
    }

    /// Returns the stores in `key` without a live writer: their lock is free, or they have no lock and are unchanged
    /// for `age`. Does not check whether something names them.
    ///
    /// # Errors
    /// Errors of the storage.
    pub async fn leftovers(&self, key: &str, age: Duration) -> Result<Vec<Leftover>, SinkError> {
        match &self.destination {
            Destination::Local { root, .. } => {
                match disk::wait(|| local(&root.join(key), key, age)) {
                    Err(e) if e.kind() == ErrorKind::NotFound => Ok(Vec::new()),
                    other => other.map_err(self.destination.failed(key)),
                }
            }
            Destination::Object { .. } => {
                let mut newest: BTreeMap<String, SystemTime> = BTreeMap::new();
                for (name, object) in self.destination.list(key).await? {
                    let Some((store, _)) = name.split_once('/') else { continue };
                    if store.ends_with(STORE) {
                        let known = newest.entry(store.into()).or_insert(SystemTime::UNIX_EPOCH);
                        *known = (*known).max(object.last_modified.into());
                    }
                }
                let old = |t: &SystemTime| is_old(Some(*t), age);
                let left = newest.into_iter().filter(|(_, t)| old(t));
                Ok(left.map(|(n, _)| Leftover { key: join(key, &n), lock: None }).collect())
            }
        }
    }

    /// Removes temporary files of documents in `key` whose writer was killed; no reader reads them.
    pub fn remove_parts(&self, key: &str) {
        let Destination::Local { root, .. } = &self.destination else { return };
        let entries = fs::read_dir(root.join(key)).into_iter().flatten().flatten();
        for entry in entries {
            let name = entry.file_name();
            let part = name.to_str().is_some_and(|n| n.starts_with('.') && n.ends_with(".part"));
            if part
                && let Ok(file) = OpenOptions::new().write(true).open(entry.path())
                && file.try_lock().is_ok()
            {
                warn_unless_removed(&entry.path(), fs::remove_file(entry.path()));
            }
        }
    }
}

fn lock_of(key: &str) -> String {
    format!("{}{LOCK}", key.strip_suffix(STORE).unwrap_or(key))
}

fn is_old(changed: Option<SystemTime>, age: Duration) -> bool {
    changed.and_then(|t| SystemTime::now().duration_since(t).ok()).is_some_and(|a| a > age)
}

fn local(at: &Path, key: &str, age: Duration) -> io::Result<Vec<Leftover>> {
    // For each name, the store's time of change and whether it has a lock.
    let mut names: BTreeMap<String, (Option<SystemTime>, bool)> = BTreeMap::new();
    for entry in fs::read_dir(at)? {
        let entry = entry?;
        let Ok(name) = entry.file_name().into_string() else { continue };
        if let Some(name) = name.strip_suffix(LOCK) {
            names.entry(name.into()).or_default().1 = true;
        } else if let Some(name) = name.strip_suffix(STORE) {
            let changed = entry.metadata().and_then(|m| m.modified()).ok();
            names.entry(name.into()).or_default().0 = changed;
        }
    }
    let mut left = Vec::new();
    for (name, (changed, locked)) in names {
        let lock = match locked {
            true => {
                let path = at.join(format!("{name}{LOCK}"));
                match OpenOptions::new().write(true).open(&path) {
                    Ok(file) if file.try_lock().is_ok() => Some((path, file)),
                    // Its writer lives, or has finished since the directory was read.
                    _ => continue,
                }
            }
            false if is_old(changed, age) => None,
            false => continue,
        };
        left.push(Leftover { key: join(key, &format!("{name}{STORE}")), lock });
    }
    Ok(left)
}
