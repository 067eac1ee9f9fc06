//! Incomplete outputs: their removal if this process is killed.
//!
//! An output is written under a temporary name beside its own and renamed when it is complete. Until then a file in
//! the process' directory records the temporary name; the process that removes the directory of a dead one removes
//! such outputs too. If the process was killed after it had moved the replaced output away and before the rename, the
//! replaced output is moved back.

use super::destination::remove_tree;
use crate::disk::warn_unless_removed;
use crate::fail;
use std::any::Any;
use std::ffi::OsStr;
use std::fs;
use std::io::{self, ErrorKind, Write};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Suffix of the files that record outputs.
const SUFFIX: &str = ".output";
/// Suffixes of temporary outputs, and of the outputs that they replace.
const PART: &str = "part";
const OLD: &str = "old";

/// An output under its temporary name; dropped when it is renamed or removed.
#[derive(Debug)]
pub struct Promise {
    path: PathBuf,
    _holds: Arc<dyn Any + Send + Sync>,
}

impl Promise {
    /// Records that `staging` will be renamed to `to`, in a file of `directory` whose name begins with `number`.
    /// `holds` keeps the directory; it drops after the file is removed.
    ///
    /// # Errors
    /// The file cannot be written; then it is removed.
    pub fn new(
        directory: &Path,
        number: u64,
        holds: Arc<dyn Any + Send + Sync>,
        staging: &Path,
        to: &Path,
    ) -> io::Result<Promise> {
        let path = directory.join(format!("{number}{SUFFIX}"));
        // From here on dropping it removes the file.
        let promise = Promise { path, _holds: holds };
        let (staging, to) = (std::path::absolute(staging)?, std::path::absolute(to)?);
        let mut file =
            fs::OpenOptions::new().write(true).create_new(true).mode(0o600).open(&promise.path)?;
        fail::point("promise")?;
        // No path contains this byte.
        file.write_all(
            &[staging.as_os_str().as_bytes(), &[0], to.as_os_str().as_bytes()].concat(),
        )?;
        Ok(promise)
    }

    /// Removes the outputs that are recorded in the directory of a dead process.
    pub fn break_all(directory: &Path) {
        let Ok(entries) = fs::read_dir(directory) else { return };
        for entry in entries.flatten() {
            if !entry.file_name().as_bytes().ends_with(SUFFIX.as_bytes()) {
                continue;
            }
            let Ok(bytes) = fs::read(entry.path()) else { continue };
            // A truncated record was being written: its output was not started.
            let Some(at) = bytes.iter().position(|b| *b == 0) else { continue };
            let (staging, to) = (&bytes[..at], &bytes[at + 1..]);
            let paths = [staging, to].map(|b| PathBuf::from(OsStr::from_bytes(b)));
            if let Err(e) = break_one(&paths[0], &paths[1]) {
                tracing::warn!(file = %paths[0].display(), "an unfinished output cannot be removed: {e}");
            }
        }
    }
}

impl Drop for Promise {
    fn drop(&mut self) {
        warn_unless_removed(&self.path, fs::remove_file(&self.path));
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

/// True for names that [`staging`](super::target::staging) returns: `.name.<32 hexadecimal digits>.part`.
fn is_staging(path: &Path) -> bool {
    let Some(name) = path.file_name().map(OsStr::as_bytes) else { return false };
    let Some(rest) = name.strip_suffix(PART.as_bytes()).and_then(|n| n.strip_suffix(b".")) else {
        return false;
    };
    let digits = &rest[rest.len().saturating_sub(32)..];
    name.starts_with(b".") && rest.len() > 33 && digits.iter().all(u8::is_ascii_hexdigit)
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
    fn changes_of_a_dead_process_are_undone() {
        let dir = tempfile::tempdir().unwrap();
        let own = tempfile::tempdir().unwrap();
        let staging = |name: &str| dir.path().join(format!(".{name}.{DIGITS}.part"));
        let at = |name: &str| dir.path().join(name);
        // A file; a store that replaces another; a store that had just replaced another.
        fs::write(staging("a"), "half").unwrap();
        fs::write(at("a"), "what was there").unwrap();
        fs::create_dir_all(staging("b").join("c/0")).unwrap();
        fs::create_dir(staging("b").with_extension("old")).unwrap();
        fs::create_dir(staging("d").with_extension("old")).unwrap();
        fs::create_dir(at("d")).unwrap();
        fs::write(at("thesis"), "years of work").unwrap();
        let outputs = [
            (staging("a"), at("a")),
            (staging("b"), at("b")),
            (staging("d"), at("d")),
            (at("thesis"), at("x")),
        ];
        let promise = |(n, (staging, to)): (u64, &(PathBuf, PathBuf))| {
            Promise::new(own.path(), n, Arc::new(()), staging, to).unwrap()
        };
        let promises: Vec<Promise> = (0..).zip(&outputs).map(promise).collect();
        Promise::break_all(own.path());
        assert_eq!(fs::read_to_string(at("a")).unwrap(), "what was there");
        assert!(at("b").is_dir() && at("d").is_dir() && at("thesis").is_file());
        for name in ["a", "b", "d"] {
            assert!(!staging(name).exists() && !staging(name).with_extension("old").exists());
        }
        drop(promises);
        assert_eq!(fs::read_dir(own.path()).unwrap().count(), 0);
    }
}
