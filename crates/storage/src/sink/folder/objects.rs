//! Large objects of a folder: written in parts, atomically, and listed with their sizes.

use super::{Folder, abandoned};
use crate::disk::is_nothing;
use crate::fail;
use crate::sink::SinkError;
use crate::sink::destination::{Destination, make_all, new, remove_tree};
use crate::sink::target::staging;
use bytes::Bytes;
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
                self.blocking(key, move || write(&root, &path, &shown, parts)).await?
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
        let read = move |path: &Path| match fs::metadata(path)?.len() {
            len if len > limit => Err(io::Error::from(ErrorKind::FileTooLarge)),
            _ => fs::read(path).map(Bytes::from),
        };
        self.at_path(root, key, read).await
    }

    /// Keys below `key` (and relative to it) with the sizes of their objects, in no order.
    pub async fn list_below(&self, key: &str) -> Result<Vec<(String, u64)>, SinkError> {
        match &self.destination {
            Destination::Local { root, .. } => {
                let list = |path: &Path| {
                    let mut all = Vec::new();
                    walk(path, path, &mut all).map(|()| all)
                };
                Ok(self.at_path(root, key, list).await?.unwrap_or_default())
            }
            Destination::Object { .. } => {
                let listed = self.destination.list(key).await?.into_iter();
                Ok(listed.map(|(name, m)| (name, m.size)).collect())
            }
        }
    }

    /// Bytes of all objects below `key`, and the time of the latest write; the start of 1970 if there are no objects.
    pub async fn usage_below(&self, key: &str) -> Result<(u64, SystemTime), SinkError> {
        let nothing = (0, SystemTime::UNIX_EPOCH);
        match &self.destination {
            Destination::Local { root, .. } => {
                let add = move |path: &Path| {
                    let mut sum = nothing;
                    match usage(path, &mut sum) {
                        Err(e) if !is_nothing(&e) => Err(e),
                        _ => Ok(sum),
                    }
                };
                Ok(self.at_path(root, key, add).await?.unwrap_or(nothing))
            }
            Destination::Object { .. } => {
                let listed = self.destination.list(key).await?;
                Ok(listed.iter().fold(nothing, |(bytes, last), (_, m)| {
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
        self.at_path(root, key, remove_tree).await.map(drop)
    }

    /// Runs blocking calls of a disk on a separate thread, so that they delay no other request.
    async fn blocking<T: Send + 'static>(
        &self,
        key: &str,
        f: impl FnOnce() -> T + Send + 'static,
    ) -> Result<T, SinkError> {
        tokio::task::spawn_blocking(f).await.map_err(|e| SinkError::Internal {
            what: self.destination.show(key),
            reason: e.to_string(),
        })
    }

    /// [`Folder::blocking`] with the path of `key`; `None` if the calls report that it does not exist.
    async fn at_path<T: Send + 'static>(
        &self,
        root: &Path,
        key: &str,
        f: impl FnOnce(&Path) -> io::Result<T> + Send + 'static,
    ) -> Result<Option<T>, SinkError> {
        let path = root.join(key);
        match self.blocking(key, move || f(&path)).await? {
            Err(e) if is_nothing(&e) => Ok(None),
            done => done.map(Some).map_err(self.destination.failed(key)),
        }
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
