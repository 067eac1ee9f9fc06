//! The spill directory of one process, and the removal of stale ones.

use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{self, ErrorKind};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};
use tessera_storage::sink::Promise;
use tessera_storage::warn_unless_removed;

/// Prefix of the names of spill directories.
pub const PREFIX: &str = "tessera-spill-";
/// The file whose lock shows that the process lives.
const LOCK: &str = "lock";
/// Suffixes of the files in it, and the prefix of files that are unlinked right after creation.
const FILES: [&str; 4] = [".chunk", ".rows", ".heap", ".output"];
const NAMELESS: &str = ".tmp";
/// Prefixes of the directories in it.
const DIRECTORIES: [&str; 1] = ["upload-"];
/// A younger directory without a lock file may still be in creation.
const YOUNG: Duration = Duration::from_secs(60);

/// A directory that no other process writes to. It is removed with its last holder.
#[derive(Debug)]
pub struct Directory {
    path: PathBuf,
    /// The lock is released when the process ends, even if it is killed.
    _lock: File,
}

impl Directory {
    /// Creates a directory with a free name; only the owner can access it.
    pub(super) fn create(parent: &Path) -> io::Result<Self> {
        let mut last = None;
        for n in 0..1000u32 {
            let path = parent.join(format!("{PREFIX}{}-{n}", std::process::id()));
            match DirBuilder::new().mode(0o700).create(&path) {
                Ok(()) => {}
                Err(e) if e.kind() == ErrorKind::AlreadyExists => continue,
                Err(e) => return Err(e),
            }
            // Another process may take the directory for a stale one before its lock is held, and remove it: then the
            // lock file is missing and the next name is tried.
            match lock(&path) {
                Ok(lock) => return Ok(Directory { path, _lock: lock }),
                Err(e) => last = Some(e),
            }
        }
        Err(last.unwrap_or_else(|| io::Error::other("no name for a directory is free")))
    }

    /// Its path.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Removes it now, regardless of its holders.
    pub(super) fn clear(&self) {
        remove(&self.path);
    }

    pub(crate) fn file(&self, name: &str) -> PathBuf {
        self.path.join(name)
    }
}

fn lock(path: &Path) -> io::Result<File> {
    let name = path.join(LOCK);
    let file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&name)?;
    file.try_lock().map_err(io::Error::from)?;
    fs::metadata(&name)?;
    Ok(file)
}

impl Drop for Directory {
    fn drop(&mut self) {
        remove(&self.path);
    }
}

/// Removes directories of dead processes, with their incomplete outputs. Directories that cannot be read or have
/// another owner are skipped.
pub(super) fn remove_stale(parent: &Path) {
    let Ok(entries) = fs::read_dir(parent) else { return };
    let us = fs::metadata("/proc/self").ok().map(|m| m.uid());
    for entry in entries.flatten() {
        let ours = entry.file_name().to_str().is_some_and(|n| n.starts_with(PREFIX));
        // A symbolic link does not count as a directory.
        if !ours || !entry.file_type().is_ok_and(|t| t.is_dir()) {
            continue;
        }
        let path = entry.path();
        let made_by = entry.metadata().ok().map(|m| m.uid());
        if us.is_some() && made_by != us {
            continue;
        }
        let dead = match OpenOptions::new().write(true).open(path.join(LOCK)) {
            Ok(file) => file.try_lock().is_ok(),
            Err(e) if e.kind() == ErrorKind::NotFound => {
                let age = entry.metadata().and_then(|m| m.modified()).ok();
                age.and_then(|t| SystemTime::now().duration_since(t).ok())
                    .is_some_and(|a| a > YOUNG)
            }
            Err(_) => false,
        };
        if dead {
            tracing::info!(directory = %path.display(), "removing what a dead process spilled");
            // A file written by another user must not decide which files are removed.
            if us.is_some() {
                Promise::break_all(&path);
            }
            remove(&path);
        }
    }
}

/// Removes the known files of a process from its directory, and the directory if it is empty then. The lock is removed
/// last: a directory removed halfway is still recognised as stale.
fn remove(path: &Path) {
    let Ok(entries) = fs::read_dir(path) else { return };
    for entry in entries.flatten() {
        let name = entry.file_name();
        let Some(name) = name.to_str() else { continue };
        let is_dir = entry.file_type().is_ok_and(|t| t.is_dir());
        let removed = match is_dir {
            true if DIRECTORIES.iter().any(|d| name.starts_with(d)) => {
                fs::remove_dir_all(entry.path())
            }
            false if FILES.iter().any(|f| name.ends_with(f)) || name.starts_with(NAMELESS) => {
                fs::remove_file(entry.path())
            }
            _ => continue,
        };
        warn_unless_removed(&entry.path(), removed);
    }
    warn_unless_removed(&path.join(LOCK), fs::remove_file(path.join(LOCK)));
    warn_unless_removed(path, fs::remove_dir(path));
}
