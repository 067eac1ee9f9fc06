//! Objects that are files.

use super::{Store, StoreRoot};
use crate::disk::{self, is_nothing};
use crate::source::dataset_cache::{self, Version};
use crate::source::error::SourceError;
use crate::source::versions::{self, ABSENT};
use bytes::Bytes;
use std::fs::File;
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;

/// Linux limits a read-ahead hint to its own read-ahead size, of which this is the default.
#[cfg(target_os = "linux")]
const ADVICE_BYTES: u64 = 128 << 10;

/// An open local file.
#[derive(Debug)]
pub(crate) struct LocalFile {
    pub(crate) key: String,
    pub(super) file: File,
    /// Its length when it was opened.
    pub(crate) len: u64,
    /// Its version when it was opened.
    pub(super) version: u64,
}

impl LocalFile {
    /// Its version as a text.
    pub(crate) fn version_text(&self) -> String {
        format!("{:016x}", self.version)
    }

    /// Hints the system to read a part of the file ahead. The system may ignore it.
    pub(crate) fn will_read(&self, offset: u64, bytes: u64) {
        #[cfg(target_os = "linux")]
        {
            use rustix::fs::{Advice, fadvise};
            let end = offset.saturating_add(bytes).min(self.len);
            let mut at = offset;
            while let Some(n) = std::num::NonZeroU64::new(end.saturating_sub(at).min(ADVICE_BYTES))
            {
                if fadvise(&self.file, at, Some(n), Advice::WillNeed).is_err() {
                    return;
                }
                at += n.get();
            }
        }
    }
}

impl Store {
    pub(super) fn get_ranges_local(
        &self,
        key: &str,
        ranges: &[Range<u64>],
    ) -> Result<Option<Vec<Bytes>>, SourceError> {
        let StoreRoot::Local(root) = &self.kind else { return Ok(None) };
        let Some(file) = self.open_file(root, key)? else { return Ok(None) };
        let len = file.len;
        let parts = ranges
            .iter()
            .map(|r| self.read_at(&file, r.start.min(len)..r.end.min(len)))
            .collect::<Result<Vec<_>, _>>()?;
        self.check_same(&file)?;
        Ok(Some(parts))
    }

    /// Opens a local file of this store; `None` if the store is not local or the file does not exist.
    pub(crate) fn local_file(&self, key: &str) -> Result<Option<LocalFile>, SourceError> {
        match &self.kind {
            StoreRoot::Local(root) => self.open_file(root, key),
            StoreRoot::Object { .. } => Ok(None),
        }
    }

    /// Reads `out.len()` bytes at `offset` of a file. The caller checks after a batch of reads that the file [is
    /// unchanged](Store::check_same).
    pub(crate) fn read_exact_at(
        &self,
        from: &LocalFile,
        out: &mut [u8],
        offset: u64,
    ) -> Result<(), SourceError> {
        self.counters.count(out.len());
        from.file.read_exact_at(out, offset).or_else(|e| {
            // A file that was truncated in the meantime is reported as changed.
            self.check_same(from)?;
            Err(self.io_error(&from.key, &e))
        })
    }

    /// Checks that the file still has the version that it had when it was opened.
    pub(crate) fn check_same(&self, from: &LocalFile) -> Result<(), SourceError> {
        if self.versions.is_none() {
            return Ok(());
        }
        let now = self.io(&from.key, from.file.metadata())?;
        if versions::of_file(&now) == from.version { Ok(()) } else { Err(self.changed(&from.key)) }
    }

    /// True if the root exists; `None` if the store is not local.
    pub(crate) fn local_exists(&self) -> Option<bool> {
        match &self.kind {
            StoreRoot::Local(root) => Some(disk::wait(|| root.exists())),
            StoreRoot::Object { .. } => None,
        }
    }

    pub(super) fn open_file(
        &self,
        root: &std::path::Path,
        key: &str,
    ) -> Result<Option<LocalFile>, SourceError> {
        let absent = || {
            self.note(key, || Some(Version::Absent));
            self.met(key, ABSENT, None).map(|()| None)
        };
        let path = join_path(root, key);
        let opened = File::open(&path);
        if let (Ok(file), Some(fence)) = (&opened, &self.fence) {
            fence.opened(file, &path, &self.show(key))?;
        }
        match opened {
            Ok(file) => match file.metadata() {
                Ok(meta) if meta.is_file() => {
                    self.note(key, || dataset_cache::of_file(&meta));
                    let (len, version) = (meta.len(), versions::of_file(&meta));
                    self.met(key, version, None)?;
                    Ok(Some(LocalFile { key: key.into(), file, len, version }))
                }
                // A directory, a pipe or a device is not an object.
                Ok(_) => absent(),
                Err(e) => Err(self.io_error(key, &e)),
            },
            Err(e) if is_nothing(&e) => absent(),
            Err(e) => Err(self.io_error(key, &e)),
        }
    }

    pub(super) fn read_at(
        &self,
        from: &LocalFile,
        range: Range<u64>,
    ) -> Result<Bytes, SourceError> {
        let mut out = vec![0u8; (range.end - range.start) as usize];
        self.read_exact_at(from, &mut out, range.start)?;
        Ok(out.into())
    }
}

pub(super) fn join_path(root: &std::path::Path, key: &str) -> PathBuf {
    if key.is_empty() { root.to_path_buf() } else { root.join(key) }
}

pub(super) fn local_version(meta: &std::fs::Metadata) -> Option<String> {
    let modified = meta.modified().ok()?.duration_since(std::time::UNIX_EPOCH).ok()?;
    Some(format!("{}-{}", meta.len(), modified.as_nanos()))
}
