//! The directory of one process, and those that others left behind.

use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{self, ErrorKind};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

/// How the names of our directories begin.
const PREFIX: &str = "tessera-spill-";
/// The file whose lock says that the process lives.
const LOCK: &str = "lock";
/// How the names of chunks' files end.
const SUFFIX: &str = ".chunk";
/// A directory without a lock file may just be in the making.
const YOUNG: Duration = Duration::from_secs(60);

/// A directory that nobody else writes to. It is removed with its last holder.
#[derive(Debug)]
pub(super) struct Directory {
    path: PathBuf,
    /// Its lock goes with the process, however that ends.
    _lock: File,
}

impl Directory {
    /// Makes one with a name that is free; only the owner may look into it.
    pub(super) fn create(parent: &Path) -> io::Result<Self> {
        let mut last = None;
        for n in 0..1000u32 {
            let path = parent.join(format!("{PREFIX}{}-{n}", std::process::id()));
            match DirBuilder::new().mode(0o700).create(&path) {
                Ok(()) => {}
                Err(e) if e.kind() == ErrorKind::AlreadyExists => continue,
                Err(e) => return Err(e),
            }
            // Another process may take the directory for a dead one's before its lock is held, and remove it: then
            // the lock file is gone and the next name is tried.
            match lock(&path) {
                Ok(lock) => return Ok(Directory { path, _lock: lock }),
                Err(e) => last = Some(e),
            }
        }
        Err(last.unwrap_or_else(|| io::Error::other("no name for a directory is free")))
    }

    /// Where the file of a chunk is.
    pub(super) fn file(&self, number: u64) -> PathBuf {
        self.path.join(format!("{number}{SUFFIX}"))
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

/// Removes directories whose process is gone. One that cannot be looked at belongs to another user.
pub(super) fn remove_stale(parent: &Path) {
    let Ok(entries) = fs::read_dir(parent) else { return };
    for entry in entries.flatten() {
        let ours = entry.file_name().to_str().is_some_and(|n| n.starts_with(PREFIX));
        // A symbolic link is not a directory here.
        if !ours || !entry.file_type().is_ok_and(|t| t.is_dir()) {
            continue;
        }
        let path = entry.path();
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
            remove(&path);
        }
    }
}

/// Removes the files that a store makes, and the directory if nothing else is in it.
fn remove(path: &Path) {
    let Ok(entries) = fs::read_dir(path) else { return };
    for entry in entries.flatten() {
        let name = entry.file_name();
        if name.to_str().is_some_and(|n| n == LOCK || n.ends_with(SUFFIX))
            && let Err(e) = fs::remove_file(entry.path())
        {
            tracing::warn!(file = %entry.path().display(), "cannot be removed: {e}");
        }
    }
    if let Err(e) = fs::remove_dir(path) {
        tracing::warn!(directory = %path.display(), "cannot be removed: {e}");
    }
}
