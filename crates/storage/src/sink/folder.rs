//! Small documents in a directory or below a prefix, written atomically.

mod lock;
mod objects;
mod versions;

pub use lock::FileLock;
pub use versions::Version;

use super::SinkError;
use super::destination::{Destination, join, make_all, new, remove_tree};
use super::target::{Reopen, Target, check_writable, staging};
use crate::disk::{self, is_nothing};
use crate::fail;
use crate::source::chunked::Chunked;
use crate::source::location::{Location, Options, trimmed};
use crate::source::meta::ArrayMeta;
use crate::source::reader::Layout;
use crate::source::store::{METADATA_BYTES_MAX, Store};
use crate::source::{Access, ArrayReader, SourceError, Stores};
use bytes::Bytes;
use object_store::ObjectStoreExt;
use std::fs::{self, File};
use std::io::{self, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use tessera_planner::catalog::SourceRef;
use tessera_planner::dtype::DType;
use tessera_planner::grid::Grid;

/// Number of temporary names tried for a document.
const PARTS_MAX: u32 = 16;

/// Precondition of putting a document.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Mode {
    /// Fails if the document already exists.
    Create,
    /// Replaces an existing document.
    Replace,
    /// In a bucket: fails unless the stored version matches. In a directory, which has no versions: replaces.
    Update(Version),
}

/// A directory, or a prefix of a bucket, with documents in it.
#[derive(Debug, Clone)]
pub struct Folder {
    display: String,
    pub(super) destination: Destination,
    store: Store,
}

impl Folder {
    /// Returns the folder at a path, or at a URL of a storage that is written to, which may name a whole bucket. Does
    /// no I/O.
    ///
    /// # Errors
    /// An invalid URL, or read-only storage.
    pub fn open(url: &str, options: &Options, stores: &Stores) -> Result<Folder, SinkError> {
        let location = Location::parse(trimmed(url))?;
        check_writable(&location)?;
        let store = stores.at(&location, options, Access::Own)?;
        let destination = Destination::of(&store, &location.display, true);
        Ok(Folder { display: location.display, destination, store })
    }

    /// The folder at a location of a user's, whose files others may read.
    pub(super) fn below(location: &Location, store: Store) -> Folder {
        let destination = Destination::of(&store, &location.display, false);
        Folder { display: location.display.clone(), destination, store }
    }

    /// A reader of the stored cells of an array of Zarr in it, of type `dtype`.
    pub(super) fn reader(&self, key: &str, meta: ArrayMeta, dtype: DType) -> ArrayReader {
        let source = SourceRef {
            url: self.store.root().to_string(),
            path: key.into(),
            dtype,
            shape: meta.shape.clone(),
            grid: Grid::regular(&meta.shape, &meta.unit),
            nullable: false,
            version: None,
            plain: false,
        };
        let layout = Layout::Chunked(Box::new(Chunked::new(meta, key.into(), &self.store)));
        ArrayReader::new(source, key, self.store.clone(), layout)
    }

    /// True if it is below a prefix of a bucket.
    pub fn is_remote(&self) -> bool {
        !self.destination.is_local()
    }

    /// Its URL, without credentials.
    pub fn display(&self) -> &str {
        &self.display
    }

    /// The URL of `key` in it.
    pub fn url(&self, key: &str) -> String {
        join(&self.display, key)
    }

    /// Its URL for another process on this machine, or on one with the same storage.
    pub fn absolute(&self) -> String {
        match &self.destination {
            // A path that cannot be made absolute has no directory to begin from: it is passed as it is.
            Destination::Local { root, .. } => std::path::absolute(root)
                .map_or_else(|_| self.display.clone(), |path| path.display().to_string()),
            Destination::Object { .. } => self.display.clone(),
        }
    }

    /// A target for a store in it.
    pub fn target(&self, key: &str) -> Target {
        let destination = match &self.destination {
            Destination::Local { root, display, private } => Destination::Local {
                root: root.join(key),
                display: join(display, key).into(),
                private: *private,
            },
            Destination::Object { client, prefix, timeout, store } => Destination::Object {
                client: client.clone(),
                prefix: join(prefix, key),
                timeout: *timeout,
                store: store.below(key),
            },
        };
        let reopen = Reopen { options: Options::default(), rules: None, own: true };
        Target { display: self.url(key), destination, reopen }
    }

    /// Makes the directory `key`; does nothing in a bucket.
    ///
    /// # Errors
    /// Errors of the storage.
    pub fn make(&self, key: &str) -> Result<(), SinkError> {
        match &self.destination {
            Destination::Local { root, .. } => {
                make_all(&root.join(key), true).map_err(self.destination.failed(key))
            }
            Destination::Object { .. } => Ok(()),
        }
    }

    /// Removes the access rights of others than the owner from a directory, which may have been made without this
    /// rule.
    ///
    /// # Errors
    /// Errors of the storage.
    pub fn close(&self) -> Result<(), SinkError> {
        let Destination::Local { root, .. } = &self.destination else { return Ok(()) };
        let failed = |e: io::Error| SinkError::io(self.display.clone(), &e);
        let mut now = fs::metadata(root).map_err(failed)?.permissions();
        if now.mode() & 0o077 == 0 {
            return Ok(());
        }
        now.set_mode(now.mode() & !0o077);
        fs::set_permissions(root, now).map_err(failed)
    }

    /// Names of the documents directly in `key`, sorted; empty if the folder does not exist.
    ///
    /// # Errors
    /// Errors of the storage.
    pub async fn names(&self, key: &str) -> Result<Vec<String>, SinkError> {
        let mut names: Vec<String> = match &self.destination {
            Destination::Local { root, .. } => match disk::wait(|| files(&root.join(key))) {
                Err(e) if is_nothing(&e) => Vec::new(),
                listed => listed.map_err(self.destination.failed(key))?,
            },
            Destination::Object { .. } => {
                let listed = self.destination.list(key).await?.into_iter().map(|(name, _)| name);
                listed.filter(|name| !name.contains('/')).collect()
            }
        };
        names.sort();
        Ok(names)
    }

    /// Names of the stores directly in `key`, sorted; empty if the folder does not exist.
    ///
    /// # Errors
    /// Errors of the storage.
    pub async fn stores(&self, key: &str) -> Result<Vec<String>, SinkError> {
        match self.store.list(key).await {
            Ok(listing) => Ok(listing.directories),
            Err(SourceError::NotFound { .. }) => Ok(Vec::new()),
            Err(e) => Err(e.into()),
        }
    }

    /// Returns a document, or `None` if it does not exist.
    ///
    /// # Errors
    /// Errors of the storage.
    pub async fn get(&self, key: &str) -> Result<Option<Bytes>, SinkError> {
        Ok(self.store.get(key, METADATA_BYTES_MAX).await?)
    }

    /// Puts a document atomically: a reader sees the old one or the new one. A local document is on the device when
    /// this returns. Returns the new version.
    ///
    /// # Errors
    /// [`SinkError::Exists`] if the document already exists in [`Mode::Create`], [`SinkError::Changed`] if the stored
    /// version does not match that of [`Mode::Update`]; errors of the storage.
    pub async fn put(&self, key: &str, bytes: Vec<u8>, mode: Mode) -> Result<Version, SinkError> {
        self.put_bytes(key, bytes.into(), mode).await
    }

    /// Like [`Folder::put`], for shared bytes.
    pub(super) async fn put_bytes(
        &self,
        key: &str,
        bytes: Bytes,
        mode: Mode,
    ) -> Result<Version, SinkError> {
        match &self.destination {
            Destination::Local { root, private, .. } => {
                let (path, shown) = (root.join(key), self.destination.show(key));
                disk::wait(|| put_local(&path, (key, &shown), &bytes, &mode, *private))?;
                Ok(Version::default())
            }
            Destination::Object { .. } => {
                let point = |step| fail::document(key, step).map_err(self.destination.failed(key));
                point("put")?;
                let version = self.put_object(key, bytes, &mode).await?;
                point("stored")?;
                match (version, mode) {
                    (Some(version), _) => point("named").map(|()| version),
                    (None, Mode::Update(_)) => {
                        Err(SinkError::Changed { what: self.destination.show(key) })
                    }
                    (None, _) => Err(SinkError::Exists { what: self.destination.show(key) }),
                }
            }
        }
    }

    /// Replaces a document that is replaced often: like [`Folder::put`], but a local one need not be on the device when
    /// this returns. In a bucket the stored version must match, if one is given.
    ///
    /// # Errors
    /// [`SinkError::Changed`] if the stored version does not match; errors of the storage.
    pub async fn refresh(
        &self,
        key: &str,
        bytes: Vec<u8>,
        before: Option<Version>,
    ) -> Result<Version, SinkError> {
        let show = || self.destination.show(key);
        match &self.destination {
            Destination::Local { root, private, .. } => {
                let path = root.join(key);
                disk::wait(|| replace_local(&path, &show(), &bytes, *private))?;
                Ok(Version::default())
            }
            Destination::Object { .. } => {
                let mode = before.map_or(Mode::Replace, Mode::Update);
                let version = self.put_object(key, bytes.into(), &mode).await?;
                version.ok_or_else(|| SinkError::Changed { what: show() })
            }
        }
    }

    /// Puts an object; `None` if its precondition fails.
    async fn put_object(
        &self,
        key: &str,
        bytes: Bytes,
        mode: &Mode,
    ) -> Result<Option<Version>, SinkError> {
        let Destination::Object { client, .. } = &self.destination else {
            let (what, reason) = (self.destination.show(key), "it is not in a bucket".into());
            return Err(SinkError::Internal { what, reason });
        };
        let path = self.destination.key(key)?;
        self.destination.within(key, versions::put(&**client, &path, bytes.into(), mode)).await
    }

    /// Removes a document; true if it existed.
    ///
    /// # Errors
    /// Errors of the storage.
    pub async fn remove(&self, key: &str) -> Result<bool, SinkError> {
        let point = |step| fail::document(key, step).map_err(self.destination.failed(key));
        point("remove")?;
        let there = match &self.destination {
            Destination::Local { root, .. } => match disk::wait(|| fs::remove_file(root.join(key)))
            {
                Ok(()) => true,
                Err(e) if e.kind() == io::ErrorKind::NotFound => false,
                Err(e) => return Err(self.destination.failed(key)(e)),
            },
            Destination::Object { client, .. } => {
                let there = self.store.head(key).await?.is_some();
                if there {
                    // The object may already be removed: by an attempt whose response was lost.
                    self.destination.gone(key, client.delete(&self.destination.key(key)?)).await?;
                }
                there
            }
        };
        point("removed")?;
        Ok(there)
    }

    /// Removes a store in it, its metadata first; a missing store is not an error.
    ///
    /// # Errors
    /// Errors of the storage.
    pub async fn remove_all(&self, key: &str) -> Result<(), SinkError> {
        let point = |name| fail::point(name).map_err(self.destination.failed(key));
        point("data.remove")?;
        if let Destination::Local { root, .. } = &self.destination {
            for mark in ["zarr.json", ".zmetadata", ".zgroup", ".zarray"] {
                let mark = root.join(key).join(mark);
                remove_tree(&mark).map_err(self.destination.failed(key))?;
            }
        }
        point("data.marks_removed")?;
        self.destination.remove_all(key).await
    }
}

/// Names of the files in a directory.
fn files(directory: &Path) -> io::Result<Vec<String>> {
    let mut names = Vec::new();
    for entry in fs::read_dir(directory)? {
        let entry = entry?;
        if entry.file_type()?.is_file()
            && let Ok(name) = entry.file_name().into_string()
        {
            names.push(name);
        }
    }
    Ok(names)
}

/// Writes a file under a temporary name, and renames it once it is on the device.
fn put_local(
    path: &Path,
    (key, shown): (&str, &str),
    bytes: &[u8],
    mode: &Mode,
    private: bool,
) -> Result<(), SinkError> {
    let parent = path.parent().unwrap_or(Path::new("."));
    let point = fail::document(key, "put").and_then(|()| make_all(parent, private));
    point.map_err(|e| SinkError::io(shown, &e))?;
    let (temporary, mut file) = part(path, shown, private)?;
    let mut write = || -> io::Result<()> {
        file.write_all(bytes)?;
        file.sync_all()?;
        fail::document(key, "stored")?;
        match mode {
            Mode::Replace | Mode::Update(_) => fs::rename(&temporary, path)?,
            // A link does not replace an existing file, as a rename would.
            Mode::Create => {
                fs::hard_link(&temporary, path)?;
                fs::remove_file(&temporary)?;
            }
        }
        fail::document(key, "named")?;
        File::open(parent)?.sync_all()
    };
    let written = write();
    written.map_err(|e| abandoned(&temporary, shown, &e))
}

/// The error of a write, whose temporary file is removed.
fn abandoned(temporary: &Path, shown: &str, e: &io::Error) -> SinkError {
    // The rest of the attempt is useless; the first error is the one to report.
    let _ = fs::remove_file(temporary);
    SinkError::io(shown, e)
}

/// Writes a file under a temporary name and renames it, without syncing it to the device.
fn replace_local(path: &Path, shown: &str, bytes: &[u8], private: bool) -> Result<(), SinkError> {
    let (temporary, mut file) = part(path, shown, private)?;
    let written = file.write_all(bytes).and_then(|()| fs::rename(&temporary, path));
    written.map_err(|e| abandoned(&temporary, shown, &e))
}

/// Creates a temporary file beside `path`. Its lock shows that its writer lives ([`Folder::remove_parts`]).
fn part(path: &Path, shown: &str, private: bool) -> Result<(PathBuf, File), SinkError> {
    let mut tries = 0..PARTS_MAX;
    loop {
        tries.next();
        let temporary = staging(path, shown)?;
        let make = || -> io::Result<File> {
            let file = new(private).create_new(true).open(&temporary)?;
            file.lock()?;
            fs::metadata(&temporary)?;
            Ok(file)
        };
        match make() {
            Ok(file) => return Ok((temporary, file)),
            // A collector took it for a stale file before it was locked.
            Err(e) if e.kind() == io::ErrorKind::NotFound && !tries.is_empty() => {}
            Err(e) => return Err(SinkError::io(shown, &e)),
        }
    }
}
