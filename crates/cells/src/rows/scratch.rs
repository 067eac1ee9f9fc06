//! DataFusion's spill files: in the process' own directory, within the limit of all spilled bytes.

use super::measured::spilled;
use bytes::Bytes;
use datafusion::error::{DataFusionError, Result};
use datafusion::execution::disk_manager::{DiskManagerBuilder, DiskManagerMode};
use datafusion::execution::spill_file::{SpillFile, SpillWriter, TempFileFactory};
use futures::{Stream, StreamExt, stream};
use std::fs::{File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, PoisonError};
use tessera_exec::error::Error;
use tessera_exec::store::{Directory, Space, Store};

/// Files of sorted rows that are merged at a time. Each needs memory, and a descriptor.
pub(super) const FAN_IN: usize = 32;

/// Bytes read at a time.
const PIECE: usize = 256 << 10;

/// Creates files in the directory of a store.
#[derive(Debug)]
pub(super) struct RowsScratch {
    store: Arc<Store>,
}

/// A file, which is unlinked when its last reference is dropped.
#[derive(Debug)]
struct RowsFile {
    path: PathBuf,
    store: Arc<Store>,
    space: Mutex<Space>,
    len: AtomicU64,
    _directory: Arc<Directory>,
}

struct RowsWriter {
    file: File,
    to: Arc<RowsFile>,
}

/// A shared reference to a file, for readers and writers.
struct SharedFile(Arc<RowsFile>);

impl RowsScratch {
    /// The disk manager of DataFusion's environment. Without space for files nothing is spilled.
    pub(super) fn disk_manager(store: &Arc<Store>) -> DiskManagerBuilder {
        let builder = DiskManagerBuilder::default().with_max_spill_merge_fan_in(FAN_IN);
        match store.is_on() {
            true => builder.with_temp_file_factory(Arc::new(RowsScratch { store: store.clone() })),
            false => builder.with_mode(DiskManagerMode::Disabled),
        }
    }
}

/// Wraps this crate's error for DataFusion, so that it can be unwrapped unchanged.
fn ours(e: Error) -> DataFusionError {
    DataFusionError::External(Box::new(e))
}

impl TempFileFactory for RowsScratch {
    fn create_temp_file(&self, _: &str) -> Result<Arc<dyn SpillFile>> {
        let directory = self.store.directory().map_err(ours)?;
        let path = directory.path().join(format!("{}.rows", self.store.number()));
        let space = Mutex::new(self.store.space(0).map_err(ours)?);
        let file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&path);
        file.map_err(|e| ours(self.store.io(&e)))?;
        let len = AtomicU64::new(0);
        let store = self.store.clone();
        Ok(Arc::new(SharedFile(Arc::new(RowsFile {
            path,
            store,
            space,
            len,
            _directory: directory,
        }))))
    }
}

impl SpillFile for SharedFile {
    fn path(&self) -> Option<&Path> {
        Some(&self.0.path)
    }

    fn size(&self) -> Option<u64> {
        Some(self.0.len.load(Relaxed))
    }

    fn read_stream(&self) -> Result<Pin<Box<dyn Stream<Item = Result<Bytes>> + Send>>> {
        let held = self.0.clone();
        let file = File::open(&held.path).map_err(|e| ours(held.store.io(&e)))?;
        // A piece is read on demand. Files are local and most often still in the page cache.
        let pieces = stream::unfold(Some((file, held)), |state| async move {
            let (mut file, held) = state?;
            let mut piece = vec![0; PIECE];
            let mut filled = 0;
            while filled < piece.len() {
                match file.read(&mut piece[filled..]) {
                    Ok(0) => break,
                    Ok(n) => filled += n,
                    Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                    Err(e) => return Some((Err(ours(held.store.io(&e))), None)),
                }
            }
            piece.truncate(filled);
            (filled > 0).then(|| (Ok(Bytes::from(piece)), Some((file, held))))
        });
        Ok(pieces.boxed())
    }

    fn open_writer(&self) -> Result<Box<dyn SpillWriter>> {
        let to = self.0.clone();
        let file = OpenOptions::new().append(true).open(&to.path);
        let file = file.map_err(|e| ours(to.store.io(&e)))?;
        Ok(Box::new(RowsWriter { file, to }))
    }
}

impl Write for RowsWriter {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let grown =
            self.to.space.lock().unwrap_or_else(PoisonError::into_inner).grow(bytes.len() as u64);
        grown.map_err(io::Error::other)?;
        self.file.write_all(bytes).map_err(|e| io::Error::other(self.to.store.io(&e)))?;
        self.to.len.fetch_add(bytes.len() as u64, Relaxed);
        self.to.store.count_spilled(bytes.len() as u64);
        spilled(bytes.len() as u64);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl SpillWriter for RowsWriter {
    fn finish(&mut self) -> Result<()> {
        Ok(())
    }
}

impl Drop for RowsFile {
    fn drop(&mut self) {
        tessera_storage::warn_unless_removed(&self.path, std::fs::remove_file(&self.path));
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]
    use super::*;

    #[test]
    fn files_are_counted_until_their_last_reference_is_dropped() {
        let dir = tempfile::tempdir().unwrap();
        let store = Store::open(dir.path(), 1 << 20);
        let scratch = RowsScratch { store: store.clone() };
        let file = scratch.create_temp_file("sort").unwrap();
        let mut writer = file.open_writer().unwrap();
        let bytes: Vec<u8> = (0..700_000u32).map(|i| (i * 7 % 251) as u8).collect();
        for piece in bytes.chunks(10_000) {
            writer.write_all(piece).unwrap();
        }
        writer.finish().unwrap();
        assert_eq!((file.size(), store.figures().bytes), (Some(700_000), 700_000));
        let pieces: Vec<Bytes> = futures::executor::block_on(async {
            file.read_stream().unwrap().map(Result::unwrap).collect().await
        });
        assert_eq!(pieces.concat(), bytes);
        let error = writer.write_all(&vec![0; 400_000]).unwrap_err();
        let inner = error.into_inner().unwrap().downcast::<Error>().unwrap();
        assert_eq!(inner.code(), "scratch_full");
        drop((writer, file));
        assert_eq!(store.figures().bytes, 0);
        let left = std::fs::read_dir(store.directory().unwrap().path()).unwrap();
        assert_eq!(left.count(), 1, "the lock");
    }
}
