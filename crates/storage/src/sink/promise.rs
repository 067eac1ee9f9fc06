//! Outputs that are not whole yet: who removes them if this process is killed.
//!
//! An output is written under another name beside its own and renamed when it is whole. As long as it has the other
//! name, a file in the process' directory tells where it is; the process that removes the directory of a dead one
//! removes such outputs too. If the dead one was killed between taking away what had the name and giving it to the new
//! output, what had the name gets it back.

use super::{Directory, Store};
use crate::error::Error;
use crate::fail;
use std::ffi::OsStr;
use std::fs;
use std::io::{self, ErrorKind, Write};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// How the files that tell of outputs end.
const SUFFIX: &str = ".output";
/// How the other names of outputs end, and those of what they replace.
const PART: &str = "part";
const OLD: &str = "old";

/// An output under its other name; dropped when it has its own or is gone.
#[derive(Debug)]
pub struct Promise {
    path: PathBuf,
    _directory: Arc<Directory>,
}

impl Store {
    /// Tells that `staging` is what will be called `to`.
    ///
    /// # Errors
    /// [`Error::ScratchUnusable`] or [`Error::ScratchFull`] if that cannot be written down.
    pub fn promise(&self, staging: &Path, to: &Path) -> Result<Promise, Error> {
        let directory = self.directory()?;
        let path = directory.file(&format!("{}{SUFFIX}", self.number()));
        let write = || -> io::Result<()> {
            let (staging, to) = (std::path::absolute(staging)?, std::path::absolute(to)?);
            let mut file =
                fs::OpenOptions::new().write(true).create_new(true).mode(0o600).open(&path)?;
            fail::point("promise")?;
            // No path has this byte.
            file.write_all(
                &[staging.as_os_str().as_bytes(), &[0], to.as_os_str().as_bytes()].concat(),
            )
        };
        // From here on dropping it removes the file.
        let promise = Promise { path: path.clone(), _directory: directory };
        write().map_err(|e| self.io(&e))?;
        Ok(promise)
    }
}

impl Drop for Promise {
    fn drop(&mut self) {
        if let Err(e) = fs::remove_file(&self.path)
            && e.kind() != ErrorKind::NotFound
        {
            tracing::warn!(file = %self.path.display(), "cannot be removed: {e}");
        }
    }
}

/// Removes the outputs that a dead process' directory tells of.
pub(super) fn break_all(directory: &Path) {
    let Ok(entries) = fs::read_dir(directory) else { return };
    for entry in entries.flatten() {
        if !entry.file_name().as_bytes().ends_with(SUFFIX.as_bytes()) {
            continue;
        }
        let Ok(bytes) = fs::read(entry.path()) else { continue };
        // One that is cut was being written: nothing was begun.
        let Some(at) = bytes.iter().position(|b| *b == 0) else { continue };
        let (staging, to) = (&bytes[..at], &bytes[at + 1..]);
        let paths = [staging, to].map(|b| PathBuf::from(OsStr::from_bytes(b)));
        if let Err(e) = break_one(&paths[0], &paths[1]) {
            tracing::warn!(file = %paths[0].display(), "an unfinished output cannot be removed: {e}");
        }
    }
}

fn break_one(staging: &Path, to: &Path) -> io::Result<()> {
    if !is_staging(staging) || staging.parent() != to.parent() {
        return Ok(());
    }
    let aside = staging.with_extension(OLD);
    if fs::symlink_metadata(&aside).is_ok() {
        match fs::symlink_metadata(to) {
            Err(e) if e.kind() == ErrorKind::NotFound => fs::rename(&aside, to)?,
            _ => remove_tree(&aside)?,
        }
    }
    remove_tree(staging)
}

/// True for names that [`crate::sink`] gives: `.name.<32 hexadecimal digits>.part`.
fn is_staging(path: &Path) -> bool {
    let Some(name) = path.file_name().map(OsStr::as_bytes) else { return false };
    let Some(rest) = name.strip_suffix(PART.as_bytes()).and_then(|n| n.strip_suffix(b".")) else {
        return false;
    };
    let digits = &rest[rest.len().saturating_sub(32)..];
    name.starts_with(b".") && rest.len() > 33 && digits.iter().all(u8::is_ascii_hexdigit)
}

/// Removes a file or a directory with what is in it; nothing there is fine.
fn remove_tree(path: &Path) -> io::Result<()> {
    let removed = match fs::symlink_metadata(path) {
        Ok(m) if m.is_dir() => fs::remove_dir_all(path),
        Ok(_) => fs::remove_file(path),
        Err(e) => Err(e),
    };
    match removed {
        Err(e) if e.kind() == ErrorKind::NotFound => Ok(()),
        other => other,
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]
    use super::*;

    const DIGITS: &str = "0123456789abcdef0123456789abcdef";

    #[test]
    fn only_names_of_outputs_are_touched() {
        let part = |name: &str| is_staging(Path::new(name));
        assert!(part(&format!("/a/.x.npy.{DIGITS}.part")));
        assert!(!part(&format!("/a/x.npy.{DIGITS}.part")));
        assert!(!part(&format!("/a/.x.npy.{DIGITS}.old")));
        assert!(!part(&format!("/a/.x.npy.{}.part", &DIGITS[1..])));
        assert!(!part("/etc/passwd") && !part("/") && !part(".part"));
    }

    #[test]
    fn what_a_dead_process_was_at_is_undone() {
        let dir = tempfile::tempdir().unwrap();
        let store = Store::open(&dir.path().join(""), 1 << 20);
        let staging = |name: &str| dir.path().join(format!(".{name}.{DIGITS}.part"));
        let at = |name: &str| dir.path().join(name);
        // A file; a store that replaces another; one that had just taken the other's place.
        fs::write(staging("a"), "half").unwrap();
        fs::write(at("a"), "what was there").unwrap();
        fs::create_dir_all(staging("b").join("c/0")).unwrap();
        fs::create_dir(staging("b").with_extension("old")).unwrap();
        fs::create_dir(staging("d").with_extension("old")).unwrap();
        fs::create_dir(at("d")).unwrap();
        fs::write(at("thesis"), "years of work").unwrap();
        let promises = [
            store.promise(&staging("a"), &at("a")).unwrap(),
            store.promise(&staging("b"), &at("b")).unwrap(),
            store.promise(&staging("d"), &at("d")).unwrap(),
            store.promise(&at("thesis"), &at("x")).unwrap(),
        ];
        break_all(store.directory().unwrap().path());
        assert_eq!(fs::read_to_string(at("a")).unwrap(), "what was there");
        assert!(at("b").is_dir() && at("d").is_dir() && at("thesis").is_file());
        for name in ["a", "b", "d"] {
            assert!(!staging(name).exists() && !staging(name).with_extension("old").exists());
        }
        drop(promises);
        let left = fs::read_dir(store.directory().unwrap().path()).unwrap();
        assert_eq!(left.count(), 1, "the lock");
    }
}
