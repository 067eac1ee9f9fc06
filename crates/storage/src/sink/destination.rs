//! Destinations of objects: files below a directory, or objects below a prefix of a bucket.

use super::SinkError;
use crate::disk;
use crate::fail;
use crate::source::store::{Parts, Store};
use bytes::Bytes;
use futures::{StreamExt, TryStreamExt};
use object_store::path::Path as Key;
use object_store::{ObjectMeta, ObjectStore, ObjectStoreExt};
use std::fs::{self, DirBuilder, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

const DELETES_MAX: usize = 16;
/// Attempts to remove a directory to which another process adds files, and the time between two of them.
const REMOVALS_MAX: u32 = 50;
const REMOVAL_PAUSE: Duration = Duration::from_millis(10);

/// The root that objects are written below.
#[derive(Debug, Clone)]
pub(crate) enum Destination {
    Local {
        root: PathBuf,
        display: Arc<str>,
        /// True if only the owner may access its contents: a warehouse.
        private: bool,
    },
    Object {
        client: Arc<dyn ObjectStore>,
        /// Without leading and trailing slashes.
        prefix: String,
        /// Time-out of a request, its retries included.
        timeout: Duration,
        /// Maps errors and displays names.
        store: Store,
    },
}

impl Destination {
    /// The destination at a store. `display` is its URL; `private` counts for directories.
    pub(super) fn of(store: &Store, display: &str, private: bool) -> Destination {
        match store.parts() {
            Parts::Local(root) => Destination::Local { root, display: display.into(), private },
            Parts::Object { client, prefix, timeout } => {
                Destination::Object { client, prefix, timeout, store: store.clone() }
            }
        }
    }

    pub(super) fn show(&self, key: &str) -> String {
        match self {
            Destination::Local { display, .. } if key.is_empty() => display.to_string(),
            Destination::Local { display, .. } => format!("{display}/{key}"),
            Destination::Object { store, .. } => store.show(key),
        }
    }

    pub(super) fn is_local(&self) -> bool {
        matches!(self, Destination::Local { .. })
    }

    /// Writes a whole object. A local file is written on the caller's thread, under its final name: a caller that
    /// needs it to appear atomically renames the directory around it. `sync` waits until the file is on the device.
    pub(super) async fn put(&self, key: &str, bytes: Bytes, sync: bool) -> Result<(), SinkError> {
        match self {
            Destination::Local { .. } => disk::wait(|| self.put_local(key, &bytes, sync)),
            Destination::Object { client, .. } => {
                fail::point("zarr.object").map_err(self.failed(key))?;
                let path = self.key(key)?;
                self.within(key, client.put(&path, bytes.into())).await.map(drop)
            }
        }
    }

    /// Puts an object like [`Destination::put`], for local destinations only.
    pub(super) fn put_local(&self, key: &str, bytes: &[u8], sync: bool) -> Result<(), SinkError> {
        let Destination::Local { root, private, .. } = self else {
            return Err(self.broken(key, "it is not local"));
        };
        let path = root.join(key);
        let write = || -> io::Result<()> {
            let create = || new(*private).create(true).truncate(true).open(&path);
            let mut file = match create() {
                Err(e) if e.kind() == io::ErrorKind::NotFound => {
                    make_all(path.parent().unwrap_or(root), *private)?;
                    create()?
                }
                made => made?,
            };
            fail::point("zarr.object")?;
            file.write_all(bytes)?;
            if sync { file.sync_data() } else { Ok(()) }
        };
        write().map_err(self.failed(key))
    }

    /// Removes everything below `key` (the root itself if empty). Missing objects are not an error.
    pub(super) async fn remove_all(&self, key: &str) -> Result<(), SinkError> {
        match self {
            Destination::Local { root, .. } => {
                let path = if key.is_empty() { root.clone() } else { root.join(key) };
                disk::wait(|| remove_tree(&path)).map_err(self.failed(key))
            }
            Destination::Object { client, .. } => {
                let below = self.key(key)?;
                // The metadata are removed first, so that a reader never sees half a store.
                for name in ["zarr.json", ".zmetadata", ".zgroup", ".zarray"] {
                    let at = self.key(&join(key, name))?;
                    self.gone(key, client.delete(&at)).await?;
                }
                let listed: Vec<_> = self
                    .within(key, client.list(Some(&below)).map_ok(|m| m.location).try_collect())
                    .await?;
                futures::stream::iter(listed)
                    .map(|at: Key| async move { self.gone(key, client.delete(&at)).await })
                    .buffer_unordered(DELETES_MAX)
                    .try_collect::<Vec<()>>()
                    .await
                    .map(drop)
            }
        }
    }

    /// The objects below `key` of a bucket, with their keys relative to it, in no order.
    pub(super) async fn list(&self, key: &str) -> Result<Vec<(String, ObjectMeta)>, SinkError> {
        let Destination::Object { client, .. } = self else {
            return Err(self.broken(key, "it is not in a bucket"));
        };
        let below = self.key(key)?;
        let listed: Vec<_> = self.within(key, client.list(Some(&below)).try_collect()).await?;
        let relative = |m: ObjectMeta| {
            let rest = m.location.as_ref().strip_prefix(below.as_ref())?;
            Some((rest.trim_start_matches('/').to_string(), m))
        };
        Ok(listed.into_iter().filter_map(relative).collect())
    }

    /// The key of an object in its bucket.
    pub(super) fn key(&self, key: &str) -> Result<Key, SinkError> {
        let Destination::Object { prefix, .. } = self else {
            return Err(self.broken(key, "it has no key"));
        };
        Key::parse(join(prefix, key))
            .map_err(|e| SinkError::Storage { what: self.show(key), reason: e.to_string() })
    }

    /// Runs a request within the time-out.
    pub(super) async fn within<T>(
        &self,
        key: &str,
        request: impl Future<Output = object_store::Result<T>>,
    ) -> Result<T, SinkError> {
        let Destination::Object { timeout, store, .. } = self else {
            return Err(self.broken(key, "it takes no requests"));
        };
        match tokio::time::timeout(*timeout, request).await {
            Ok(Ok(v)) => Ok(v),
            Ok(Err(e)) => Err(match no_space(&e) {
                Some(code) => SinkError::NoSpace {
                    what: self.show(key),
                    written_bytes: 0,
                    reason: format!("the store says {code}"),
                },
                None => store.failure(key, e).into(),
            }),
            Err(_) => Err(SinkError::Source(crate::source::SourceError::Timeout {
                what: self.show(key),
                seconds: timeout.as_secs().max(1),
            })),
        }
    }

    /// Runs a request like [`Destination::within`]; an object that is not found counts as removed.
    pub(super) async fn gone(
        &self,
        key: &str,
        request: impl Future<Output = object_store::Result<()>>,
    ) -> Result<(), SinkError> {
        match self.within(key, request).await {
            Err(SinkError::Source(crate::source::SourceError::NotFound { .. })) => Ok(()),
            other => other,
        }
    }

    /// The error of a call of the file system.
    pub(super) fn failed(&self, key: &str) -> impl Fn(io::Error) -> SinkError {
        move |e| SinkError::io(self.show(key), &e)
    }

    fn broken(&self, key: &str, reason: &str) -> SinkError {
        SinkError::Internal { what: self.show(key), reason: reason.into() }
    }
}

/// The code of a full store, if the error has one.
fn no_space(e: &object_store::Error) -> Option<&'static str> {
    const CODES: [&str; 4] =
        ["QuotaExceeded", "XMinioStorageFull", "StorageFull", "InsufficientStorage"];
    let text = e.to_string();
    CODES.into_iter().find(|c| text.contains(c))
}

/// Options to open a new file; a private file is accessible to its owner only.
pub(super) fn new(private: bool) -> OpenOptions {
    let mut options = OpenOptions::new();
    options.write(true);
    if private {
        options.mode(0o600);
    }
    options
}

/// Makes a directory and its parents; private ones are accessible to their owner only.
pub(super) fn make_all(path: &Path, private: bool) -> io::Result<()> {
    let mut builder = DirBuilder::new();
    builder.recursive(true);
    if private {
        builder.mode(0o700);
    }
    builder.create(path)
}

/// `a/b`, where either may be empty.
pub(super) fn join(a: &str, b: &str) -> String {
    match (a.is_empty(), b.is_empty()) {
        (true, _) => b.into(),
        (_, true) => a.into(),
        _ => format!("{a}/{b}"),
    }
}

/// Removes a file or a directory tree; a missing one is not an error. Another process may be adding a file to the tree
/// at the same time.
pub(super) fn remove_tree(path: &Path) -> io::Result<()> {
    let mut tries = 0..REMOVALS_MAX;
    loop {
        tries.next();
        let removed = match fs::symlink_metadata(path) {
            Ok(m) if m.is_dir() => fs::remove_dir_all(path),
            Ok(_) => fs::remove_file(path),
            Err(e) => Err(e),
        };
        match removed {
            Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(()),
            Err(e) if e.kind() == io::ErrorKind::DirectoryNotEmpty && !tries.is_empty() => {
                std::thread::sleep(REMOVAL_PAUSE);
            }
            other => return other,
        }
    }
}
