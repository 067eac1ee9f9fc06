//! Large objects of a folder: written in parts, atomically, and listed with their sizes.

use super::{Folder, abandoned};
use crate::fail;
use crate::sink::SinkError;
use crate::sink::destination::{Destination, make_all, new, remove_tree};
use crate::sink::target::staging;
use bytes::Bytes;
use futures::TryStreamExt;
use object_store::{ObjectStoreExt, PutPayload};
use std::fs;
use std::io::{self, ErrorKind, Write};
use std::path::{Path, PathBuf};
use std::time::SystemTime;

/// Suffix of the name of an incomplete file.
const PART: &str = ".part";

impl Folder {
    /// Puts an object, replacing an existing one. A local object and its name are on the device when this returns.
    pub async fn put_parts(&self, key: &str, parts: Vec<Bytes>) -> Result<(), SinkError> {
        match &self.destination {
            Destination::Local { root, .. } => {
                let (root, path, shown) =
                    (root.clone(), root.join(key), self.destination.show(key));
                self.blocking(key, move || write(&root, &path, &shown, parts)).await
            }
            Destination::Object { client, .. } => {
                let path = self.destination.key(key)?;
                let payload: PutPayload = parts.into_iter().collect();
                self.destination.within(key, client.put(&path, payload)).await.map(drop)
            }
        }
    }

    /// Returns an object of at most `limit` bytes; `None` if it does not exist.
    pub async fn get_up_to(&self, key: &str, limit: u64) -> Result<Option<Bytes>, SinkError> {
        let Destination::Local { root, .. } = &self.destination else {
            return Ok(self.store.get(key, limit).await?);
        };
        let (path, shown) = (root.join(key), self.destination.show(key));
        let read = move || match fs::metadata(&path) {
            Ok(meta) if meta.len() > limit => Err(io::Error::from(ErrorKind::FileTooLarge)),
            Ok(_) => fs::read(&path).map(|bytes| Some(bytes.into())),
            Err(e) => Err(e),
        };
        let read = move || match read() {
            Err(e) if is_nothing(&e) => Ok(None),
            other => other.map_err(|e| SinkError::io(shown, &e)),
        };
        self.blocking(key, read).await
    }

    /// Keys below `key` (and relative to it) with the sizes of their objects, in no order.
    pub async fn list_below(&self, key: &str) -> Result<Vec<(String, u64)>, SinkError> {
        match &self.destination {
            Destination::Local { root, .. } => {
                let (path, shown) = (root.join(key), self.destination.show(key));
                let list = move || {
                    let mut all = Vec::new();
                    match walk(&path, &path, &mut all) {
                        Err(e) if is_nothing(&e) => Ok(Vec::new()),
                        other => other.map(|()| all).map_err(|e| SinkError::io(shown, &e)),
                    }
                };
                self.blocking(key, list).await
            }
            Destination::Object { client, .. } => {
                let below = self.destination.key(key)?;
                let listed: Vec<_> =
                    self.destination.within(key, client.list(Some(&below)).try_collect()).await?;
                let one = |m: object_store::ObjectMeta| {
                    let rest = m.location.as_ref().strip_prefix(below.as_ref())?;
                    Some((rest.trim_start_matches('/').to_string(), m.size))
                };
                Ok(listed.into_iter().filter_map(one).collect())
            }
        }
    }

    /// Bytes of all objects below `key`, and the time of the latest write; the start of 1970 if there are no objects.
    pub async fn usage_below(&self, key: &str) -> Result<(u64, SystemTime), SinkError> {
        match &self.destination {
            Destination::Local { root, .. } => {
                let (path, shown) = (root.join(key), self.destination.show(key));
                let add = move || {
                    let mut sum = (0, SystemTime::UNIX_EPOCH);
                    match usage(&path, &mut sum) {
                        Err(e) if !is_nothing(&e) => Err(SinkError::io(shown, &e)),
                        _ => Ok(sum),
                    }
                };
                self.blocking(key, add).await
            }
            Destination::Object { client, .. } => {
                let below = self.destination.key(key)?;
                let listed: Vec<_> =
                    self.destination.within(key, client.list(Some(&below)).try_collect()).await?;
                Ok(listed.iter().fold((0, SystemTime::UNIX_EPOCH), |(bytes, last), m| {
                    (bytes + m.size, last.max(m.last_modified.into()))
                }))
            }
        }
    }

    /// Removes all objects below `key`; missing objects are not an error.
    pub async fn remove_below(&self, key: &str) -> Result<(), SinkError> {
        let Destination::Local { root, .. } = &self.destination else {
            return self.destination.remove_all(key).await;
        };
        let (path, shown) = (root.join(key), self.destination.show(key));
        let remove = move || remove_tree(&path).map_err(|e| SinkError::io(shown, &e));
        self.blocking(key, remove).await
    }

    /// Runs blocking calls of a disk on a separate thread, so that they delay no other request.
    async fn blocking<T: Send + 'static>(
        &self,
        key: &str,
        f: impl FnOnce() -> Result<T, SinkError> + Send + 'static,
    ) -> Result<T, SinkError> {
        tokio::task::spawn_blocking(f).await.unwrap_or_else(|e| {
            Err(SinkError::Internal { what: self.destination.show(key), reason: e.to_string() })
        })
    }
}

/// Writes a file under a temporary name, and renames it once it is on the device.
fn write(root: &Path, path: &Path, shown: &str, parts: Vec<Bytes>) -> Result<(), SinkError> {
    let parent = path.parent().unwrap_or(root);
    let temporary = staging(path, shown)?;
    let create = || new(true).create_new(true).open(&temporary);
    let write = || -> io::Result<()> {
        let mut file = match create() {
            Err(e) if e.kind() == ErrorKind::NotFound => {
                make(root, parent)?;
                create()?
            }
            made => made?,
        };
        for part in &parts {
            file.write_all(part)?;
        }
        file.sync_all()?;
        fail::point("chunk.stored")?;
        fs::rename(&temporary, path)?;
        fail::point("chunk.named")?;
        fs::File::open(parent)?.sync_all()
    };
    write().map_err(|e| abandoned(&temporary, shown, &e))
}

/// Makes a directory and its parents below `root`, and syncs their names to the device.
fn make(root: &Path, directory: &Path) -> io::Result<()> {
    make_all(directory, true)?;
    for above in directory.ancestors().skip(1).take_while(|a| a.starts_with(root)) {
        fs::File::open(above)?.sync_all()?;
    }
    Ok(())
}

fn walk(root: &Path, directory: &Path, out: &mut Vec<(String, u64)>) -> io::Result<()> {
    for entry in fs::read_dir(directory)? {
        let entry = entry?;
        let path: PathBuf = entry.path();
        if entry.file_type()?.is_dir() {
            walk(root, &path, out)?;
        } else if let Some(key) = path.strip_prefix(root).ok().and_then(Path::to_str)
            && !key.ends_with(PART)
        {
            out.push((key.to_string(), entry.metadata()?.len()));
        }
    }
    Ok(())
}

/// Adds up the sizes of files, incomplete ones included. Files removed at the same time are not counted.
fn usage(directory: &Path, sum: &mut (u64, SystemTime)) -> io::Result<()> {
    for entry in fs::read_dir(directory)? {
        let entry = entry?;
        if entry.file_type()?.is_dir() {
            usage(&entry.path(), sum)?;
        } else {
            let meta = entry.metadata()?;
            *sum = (sum.0 + meta.len(), sum.1.max(meta.modified()?));
        }
    }
    Ok(())
}

fn is_nothing(e: &io::Error) -> bool {
    matches!(e.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory)
}
