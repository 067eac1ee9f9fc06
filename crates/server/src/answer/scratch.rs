//! Results on disk: where those wait that are too large to be kept in memory until somebody has read them.
//!
//! A file has no name, so it is gone with its last holder, however the process ends. The bytes of all files together
//! stay below a limit.

use crate::error::Error;
use std::fs::File;
use std::io::{self, Read, Write};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// A directory for files of results, with a limit.
#[derive(Debug)]
pub struct Scratch {
    directory: PathBuf,
    limit: u64,
    used: AtomicU64,
    written: AtomicU64,
}

/// A file that grows at its end and is read anywhere.
#[derive(Debug)]
pub struct ScratchFile {
    scratch: Arc<Scratch>,
    file: File,
    len: AtomicU64,
}

impl Scratch {
    /// Files in `directory`, of at most `limit` bytes together. It is made with the first file.
    pub fn new(directory: &Path, limit: u64) -> Arc<Self> {
        let directory = directory.to_path_buf();
        Arc::new(Scratch { directory, limit, used: AtomicU64::new(0), written: AtomicU64::new(0) })
    }

    /// The most bytes that there may be.
    pub fn limit(&self) -> u64 {
        self.limit
    }

    /// Bytes that there are.
    pub fn used(&self) -> u64 {
        self.used.load(Relaxed)
    }

    /// Bytes that were ever written.
    pub fn written(&self) -> u64 {
        self.written.load(Relaxed)
    }

    /// An empty file.
    ///
    /// # Errors
    /// A directory that cannot be written.
    pub fn file(self: &Arc<Self>) -> Result<ScratchFile, Error> {
        let failed = |e| self.failed("create a file in", e);
        std::fs::create_dir_all(&self.directory).map_err(failed)?;
        let file = tempfile::tempfile_in(&self.directory).map_err(failed)?;
        Ok(ScratchFile { scratch: self.clone(), file, len: AtomicU64::new(0) })
    }

    fn failed(&self, action: &'static str, e: io::Error) -> Error {
        match e.kind() {
            io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => Error::ResultStorage {
                directory: self.directory.display().to_string(),
                limit_bytes: self.limit,
                reason: e.to_string(),
            },
            _ => Error::io(action, format!("`{}`", self.directory.display()), e),
        }
    }
}

impl ScratchFile {
    /// Adds bytes at the end; where they begin. Several threads may add at a time.
    ///
    /// # Errors
    /// A limit that is reached, a disk that is full.
    pub fn append(&self, parts: &[&[u8]]) -> Result<u64, Error> {
        let bytes: u64 = parts.iter().map(|p| p.len() as u64).sum();
        let scratch = &self.scratch;
        let add = |used: u64| used.checked_add(bytes).filter(|&n| n <= scratch.limit);
        if scratch.used.fetch_update(Relaxed, Relaxed, add).is_err() {
            return Err(Error::ResultStorage {
                directory: scratch.directory.display().to_string(),
                limit_bytes: scratch.limit,
                reason: "the limit of results on disk is reached".into(),
            });
        }
        let start = self.len.fetch_add(bytes, Relaxed);
        let mut at = start;
        for part in parts {
            self.file.write_all_at(part, at).map_err(|e| scratch.failed("write to", e))?;
            at += part.len() as u64;
        }
        scratch.written.fetch_add(bytes, Relaxed);
        Ok(start)
    }

    /// Fills `to` with the bytes from `at` on.
    ///
    /// # Errors
    /// A disk that does not give back what was written.
    pub fn read_at(&self, at: u64, to: &mut [u8]) -> Result<(), Error> {
        self.file.read_exact_at(to, at).map_err(|e| self.scratch.failed("read from", e))
    }

    /// Bytes that it has.
    pub fn len(&self) -> u64 {
        self.len.load(Relaxed)
    }

    /// True if nothing was written.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The bytes from the start on, as a stream of its own.
    pub fn reader(self: &Arc<Self>) -> ScratchReader {
        self.reader_at(0)
    }

    /// The bytes from `at` on, as a stream of its own.
    pub fn reader_at(self: &Arc<Self>, at: u64) -> ScratchReader {
        ScratchReader { file: self.clone(), at }
    }
}

impl Drop for ScratchFile {
    fn drop(&mut self) {
        self.scratch.used.fetch_sub(self.len(), Relaxed);
    }
}

/// Writes at the end of a file.
#[derive(Debug, Clone)]
pub struct ScratchWriter(pub Arc<ScratchFile>);

impl Write for ScratchWriter {
    fn write(&mut self, buf: &[u8]) -> io::Result<usize> {
        self.0.append(&[buf]).map_err(io::Error::other)?;
        Ok(buf.len())
    }
    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Reads a file from its start to its end.
#[derive(Debug)]
pub struct ScratchReader {
    file: Arc<ScratchFile>,
    at: u64,
}

impl Read for ScratchReader {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        let left = self.file.len().saturating_sub(self.at);
        let n = left.min(buf.len() as u64) as usize;
        self.file.file.read_exact_at(&mut buf[..n], self.at)?;
        self.at += n as u64;
        Ok(n)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]
    use super::*;

    #[test]
    fn files_are_bounded_and_their_room_comes_back() {
        let dir = tempfile::tempdir().unwrap();
        let scratch = Scratch::new(&dir.path().join("sub"), 10);
        let file = Arc::new(scratch.file().unwrap());
        assert_eq!(file.append(&[b"ab", b"cd"]).unwrap(), 0);
        assert_eq!(file.append(&[b"efg"]).unwrap(), 4);
        let mut three = [0; 3];
        file.read_at(3, &mut three).unwrap();
        assert_eq!(&three, b"def");
        let other = scratch.file().unwrap();
        let e = other.append(&[b"1234"]).unwrap_err();
        assert_eq!((e.code(), e.status()), ("result_storage", 413));
        assert_eq!(scratch.used(), 7);
        let mut all = String::new();
        file.reader().read_to_string(&mut all).unwrap();
        assert_eq!(all, "abcdefg");
        drop((file, other));
        assert_eq!((scratch.used(), scratch.written()), (0, 7));
        assert_eq!(std::fs::read_dir(dir.path().join("sub")).unwrap().count(), 0);
    }
}
