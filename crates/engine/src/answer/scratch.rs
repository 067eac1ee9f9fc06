//! Results on disk: results that are too large for memory wait here until they are read.
//!
//! A file has no name, so it is removed with its last holder, however the process ends. Files are in the process' own
//! directory, and their space counts against the limit of all spilled data.

use crate::error::Error;
use std::fs::File;
use std::io::{self, Read, Write};
use std::os::unix::fs::FileExt;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, PoisonError};
use tessera_exec::store::{Space, Store};

/// The directory for files of results.
#[derive(Debug)]
pub struct Scratch {
    store: Arc<Store>,
    used: AtomicU64,
    written: AtomicU64,
}

/// A file that grows at its end and is read anywhere.
#[derive(Debug)]
pub struct ScratchFile {
    scratch: Arc<Scratch>,
    file: File,
    len: AtomicU64,
    space: Mutex<Space>,
}

impl Scratch {
    /// Files in the directory of a store, within its limit.
    pub fn new(store: Arc<Store>) -> Arc<Self> {
        Arc::new(Scratch { store, used: AtomicU64::new(0), written: AtomicU64::new(0) })
    }

    /// Upper bound on the bytes in use.
    pub fn limit(&self) -> u64 {
        self.store.limit()
    }

    /// Creates a directory for named files, removed when the value drops, and with the process at the latest.
    ///
    /// # Errors
    /// The directory cannot be created.
    pub fn directory(&self, prefix: &str) -> Result<tempfile::TempDir, Error> {
        let own = self.store.directory().map_err(Error::stage)?;
        let made = tempfile::Builder::new().prefix(prefix).tempdir_in(own.path());
        made.map_err(|e| self.failed("create a directory in", e))
    }

    /// Space for a file in the directory.
    ///
    /// # Errors
    /// The limit is reached.
    pub fn space(&self) -> Result<Space, Error> {
        self.store.space(0).map_err(|e| self.full(e))
    }

    /// Bytes in use.
    pub fn used(&self) -> u64 {
        self.used.load(Relaxed)
    }

    /// Bytes written since the start.
    pub fn written(&self) -> u64 {
        self.written.load(Relaxed)
    }

    /// Creates an empty file.
    ///
    /// # Errors
    /// The directory cannot be written.
    pub fn file(self: &Arc<Self>) -> Result<ScratchFile, Error> {
        let own = self.store.directory().map_err(Error::stage)?;
        let file =
            tempfile::tempfile_in(own.path()).map_err(|e| self.failed("create a file in", e))?;
        let space = Mutex::new(self.space()?);
        Ok(ScratchFile { scratch: self.clone(), file, len: AtomicU64::new(0), space })
    }

    /// A file of the directory that was written before, within `space`.
    ///
    /// # Errors
    /// The length of the file is not known.
    pub fn written_before(
        self: &Arc<Self>,
        file: File,
        space: Space,
    ) -> Result<ScratchFile, Error> {
        let len =
            file.metadata().map_err(|e| self.failed("read the length of a file in", e))?.len();
        self.used.fetch_add(len, Relaxed);
        let (len, space) = (AtomicU64::new(len), Mutex::new(space));
        Ok(ScratchFile { scratch: self.clone(), file, len, space })
    }

    /// The error for a limit that is reached.
    pub fn full(&self, e: tessera_exec::error::Error) -> Error {
        match e {
            tessera_exec::error::Error::ScratchFull { reason, .. } => self.no_room(reason),
            other => Error::stage(other),
        }
    }

    fn no_room(&self, reason: String) -> Error {
        Error::ResultStorage {
            directory: self.store.parent().display().to_string(),
            limit_bytes: self.store.limit(),
            used_bytes: self.store.figures().bytes,
            reason,
        }
    }

    /// The error for an operating system error on a file in the directory.
    pub fn failed(&self, action: &'static str, e: io::Error) -> Error {
        match e.kind() {
            io::ErrorKind::StorageFull
            | io::ErrorKind::QuotaExceeded
            | io::ErrorKind::FileTooLarge => self.no_room(e.to_string()),
            _ => Error::io(action, format!("`{}`", self.store.parent().display()), e),
        }
    }
}

impl ScratchFile {
    /// Appends bytes and returns their offset. Several threads may append concurrently.
    ///
    /// # Errors
    /// The limit is reached, or the disk is full.
    pub fn append(&self, parts: &[&[u8]]) -> Result<u64, Error> {
        let bytes: u64 = parts.iter().map(|p| p.len() as u64).sum();
        let scratch = &self.scratch;
        let grown = self.space.lock().unwrap_or_else(PoisonError::into_inner).grow(bytes);
        grown.map_err(|e| scratch.full(e))?;
        scratch.used.fetch_add(bytes, Relaxed);
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
    /// The disk does not return the bytes that were written.
    pub fn read_at(&self, at: u64, to: &mut [u8]) -> Result<(), Error> {
        self.file.read_exact_at(to, at).map_err(|e| self.scratch.failed("read from", e))
    }

    /// Length of the file in bytes.
    pub fn len(&self) -> u64 {
        self.len.load(Relaxed)
    }

    /// True if nothing was written.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// A new reader from the start of the file.
    pub fn reader(self: &Arc<Self>) -> ScratchReader {
        self.reader_at(0)
    }

    /// A new reader from `at` on.
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
        let scratch = Scratch::new(Store::open(dir.path(), 10));
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
        assert_eq!(scratch.store.figures().bytes, 0);
        drop(scratch);
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0);
    }
}
