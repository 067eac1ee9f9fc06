//! Chunks that other processes write to an output, and the protection of the output against late ones.
//!
//! ```text
//!   <output>/__parts/<id>/mark     written by the owner of the output: a process that finds it sees the same storage
//!   <output>/__parts/<id>/<any>    in a directory: a chunk that is being written; renamed to its key once it is stored
//!   <output>/__parts/<id>/<key>    in a bucket: a chunk of an output whose name is used again; the owner copies it
//! ```
//! The owner removes `__parts` before the output gets its metadata and its name. From then on a process that was taken
//! for lost can write nothing more to the output: in a directory it has no name to rename from, and it makes no
//! directory above the arrays; in a bucket its object is never copied. Where the name of an output is unique (the
//! warehouse), chunks in a bucket get their keys at once: no other output has these keys. No array is called
//! `__parts`, because Zarr reserves names that begin with `__`.

use super::SinkError;
use super::destination::{Destination, join, make_all, new, remove_tree};
use crate::disk;
use crate::fail;
use bytes::Bytes;
use futures::{StreamExt, TryStreamExt};
use object_store::ObjectStoreExt;
use std::fs::{self, DirBuilder};
use std::io::{self, ErrorKind, Write};
use std::os::unix::fs::DirBuilderExt;
use std::path::Path;

/// The directory of chunks that other processes write.
pub(super) const PARTS: &str = "__parts";
const MARK: &str = "mark";
/// Upper bound on the bytes of a mark.
const MARK_BYTES_MAX: u64 = 64;
/// Concurrent copies of objects.
const COPIES_MAX: usize = 32;

impl Destination {
    /// Lets other processes write chunks: writes the mark.
    pub(super) async fn open_parts(&self, id: &str) -> Result<(), SinkError> {
        let mark = format!("{PARTS}/{id}/{MARK}");
        match self {
            Destination::Local { root, private, .. } => {
                let at = root.join(&mark);
                let make = || -> io::Result<()> {
                    make_all(at.parent().unwrap_or(root), *private)?;
                    let mut file = new(*private).create_new(true).open(&at)?;
                    file.write_all(id.as_bytes())
                };
                disk::wait(make).map_err(self.failed(&mark))
            }
            Destination::Object { client, .. } => {
                let (at, text) = (self.key(&mark)?, Bytes::copy_from_slice(id.as_bytes()));
                self.within(&mark, client.put(&at, text.into())).await.map(drop)
            }
        }
    }

    /// Checks that this process sees the storage that the mark was written to, and may write there.
    pub(super) async fn find_parts(&self, id: &str) -> Result<(), SinkError> {
        let mark = format!("{PARTS}/{id}/{MARK}");
        let probe = format!("{PARTS}/{id}/{}", uuid::Uuid::new_v4().simple());
        let found = match self {
            Destination::Local { root, .. } => {
                let read = disk::wait(|| fs::read(root.join(&mark)));
                Some(read.map_err(self.failed(&mark))?)
            }
            Destination::Object { store, .. } => {
                store.get(&mark, MARK_BYTES_MAX).await?.map(|bytes| bytes.to_vec())
            }
        };
        if found.is_none_or(|found| found != id.as_bytes()) {
            return Err(SinkError::Storage {
                what: self.show(&mark),
                reason: "the server wrote another mark: this path is not the output that it means"
                    .into(),
            });
        }
        match self {
            Destination::Local { root, private, .. } => {
                let write = || -> io::Result<()> {
                    let probe = root.join(&probe);
                    new(*private).create_new(true).open(&probe)?;
                    fs::remove_file(&probe)
                };
                disk::wait(write).map_err(self.failed(&probe))
            }
            Destination::Object { client, .. } => {
                let at = self.key(&probe)?;
                self.within(&probe, client.put(&at, Bytes::new().into())).await?;
                self.gone(&probe, client.delete(&at)).await
            }
        }
    }

    /// Writes a chunk to a local output of another process: its key appears when it is on the device.
    pub(super) fn put_part(&self, part: &str, key: &str, bytes: &[u8]) -> Result<(), SinkError> {
        let Destination::Local { root, private, .. } = self else {
            let reason = "it is not local".into();
            return Err(SinkError::Internal { what: self.show(key), reason });
        };
        let temporary = root.join(PARTS).join(part);
        let write = || -> io::Result<()> {
            let mut file = new(*private).create_new(true).open(&temporary)?;
            fail::point("zarr.object")?;
            file.write_all(bytes)?;
            // A network file system may report only now that there is no room.
            file.sync_data()?;
            drop(file);
            let at = root.join(key);
            match fs::rename(&temporary, &at) {
                // Unless the owner has closed the output, the directories of the array do not exist yet.
                Err(e) if e.kind() == ErrorKind::NotFound && temporary.exists() => {
                    make_below(root, key, *private)?;
                    fs::rename(&temporary, &at)
                }
                renamed => renamed,
            }
        };
        write().map_err(|e| {
            // The rest of the attempt is useless; the first error is the one to report.
            let _ = fs::remove_file(&temporary);
            SinkError::io(self.show(key), &e)
        })
    }

    /// The same output, for chunks that the owner moves to their keys later. Messages name these keys.
    pub(super) fn of_parts(&self, id: &str) -> Destination {
        match self {
            Destination::Object { client, prefix, timeout, store } => Destination::Object {
                client: client.clone(),
                prefix: join(prefix, &format!("{PARTS}/{id}")),
                timeout: *timeout,
                store: store.clone(),
            },
            local @ Destination::Local { .. } => local.clone(),
        }
    }

    /// Gives the objects that other processes wrote their keys.
    pub(super) async fn copy_parts(
        &self,
        id: &str,
        keys: impl Iterator<Item = String>,
    ) -> Result<(), SinkError> {
        let Destination::Object { client, .. } = self else { return Ok(()) };
        let copy = |key: String| async move {
            fail::point("zarr.object").map_err(self.failed(&key))?;
            let (from, to) = (self.key(&format!("{PARTS}/{id}/{key}"))?, self.key(&key)?);
            self.within(&key, client.copy(&from, &to)).await
        };
        futures::stream::iter(keys).map(copy).buffer_unordered(COPIES_MAX).try_collect().await
    }

    /// Keeps other processes from writing more chunks to a local output, at once.
    pub(super) fn fence_parts(&self) -> Result<(), SinkError> {
        let Destination::Local { root, .. } = self else { return Ok(()) };
        let parts = root.join(PARTS);
        let closed = root.join(format!("{PARTS}-{}", uuid::Uuid::new_v4().simple()));
        // A later lookup does not find the name; an earlier one loses its directory.
        let close = || match fs::rename(&parts, &closed) {
            Err(e) if e.kind() == ErrorKind::NotFound => Ok(()),
            renamed => renamed.and_then(|()| remove_tree(&closed)),
        };
        disk::wait(close).map_err(self.failed(PARTS))
    }
}

/// Makes the directories of a key below the root, which must exist.
fn make_below(root: &Path, key: &str, private: bool) -> io::Result<()> {
    let mut builder = DirBuilder::new();
    if private {
        builder.mode(0o700);
    }
    let mut at = root.to_path_buf();
    let names = key.rsplit_once('/').map_or("", |(above, _)| above);
    for name in names.split('/') {
        at.push(name);
        match builder.create(&at) {
            Err(e) if e.kind() != ErrorKind::AlreadyExists => return Err(e),
            _ => {}
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]
    use super::*;

    fn local(root: &Path) -> Destination {
        Destination::Local { root: root.into(), display: "out".into(), private: false }
    }

    #[test]
    fn a_late_chunk_never_reaches_an_output_that_is_closed() {
        let dir = tempfile::tempdir().unwrap();
        let io = tokio::runtime::Runtime::new().unwrap();
        let root = dir.path().join("out");
        fs::create_dir(&root).unwrap();
        let (own, other) = (local(&root), local(&root));
        io.block_on(own.open_parts("one")).unwrap();
        io.block_on(other.find_parts("one")).unwrap();
        other.put_part("one/a", "x/c/0/0", b"early").unwrap();
        // Again, as after a lost answer.
        other.put_part("one/b", "x/c/0/0", b"early").unwrap();
        own.fence_parts().unwrap();
        own.fence_parts().unwrap();
        let late = other.put_part("one/c", "x/c/0/0", b"late").unwrap_err();
        assert!(late.to_string().contains("out/x/c/0/0"), "{late}");
        other.put_part("one/d", "y/c/0", b"late").unwrap_err();
        assert_eq!(fs::read(root.join("x/c/0/0")).unwrap(), b"early");
        let left: Vec<_> = fs::read_dir(&root).unwrap().map(|e| e.unwrap().file_name()).collect();
        assert_eq!(left, ["x"]);
        // An output that was removed does not appear again.
        fs::remove_dir_all(&root).unwrap();
        other.put_part("one/e", "x/c/0/0", b"late").unwrap_err();
        assert!(!root.exists());
    }

    #[test]
    fn another_place_of_the_same_name_is_noticed() {
        let (here, there) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let io = tokio::runtime::Runtime::new().unwrap();
        io.block_on(local(here.path()).open_parts("one")).unwrap();
        io.block_on(local(there.path()).open_parts("two")).unwrap();
        for (at, id) in [(&here, "two"), (&there, "one")] {
            assert!(io.block_on(local(at.path()).find_parts(id)).is_err());
        }
        // The mark is read, but nothing can be written beside it.
        let parts = here.path().join(PARTS).join("one");
        fs::write(parts.join(MARK), "another").unwrap();
        assert!(io.block_on(local(here.path()).find_parts("one")).is_err());
        assert_eq!(fs::read_dir(parts).unwrap().count(), 1, "the probe is gone");
    }
}
