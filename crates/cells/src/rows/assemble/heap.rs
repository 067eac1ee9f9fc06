//! Append-only spill space with random reads, in a file without a name.

use std::fs::{File, OpenOptions};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::sync::Arc;
use tessera_exec::error::Error;
use tessera_exec::store::{Directory, Space, Store};

/// A file that grows at its end. It disappears with its owner, however the process ends.
#[derive(Debug)]
pub(super) struct Heap {
    file: File,
    store: Arc<Store>,
    space: Space,
    _directory: Arc<Directory>,
}

impl Heap {
    pub(super) fn new(store: &Arc<Store>) -> Result<Self, Error> {
        let (space, directory) = (store.space(0)?, store.directory()?);
        let path = directory.path().join(format!("{}.heap", store.number()));
        let make = || -> std::io::Result<File> {
            let mut options = OpenOptions::new();
            let file = options.read(true).write(true).create_new(true).mode(0o600).open(&path)?;
            std::fs::remove_file(&path)?;
            Ok(file)
        };
        let file = make().map_err(|e| store.io(&e))?;
        Ok(Heap { file, store: store.clone(), space, _directory: directory })
    }

    pub(super) fn append(&mut self, bytes: &[u8]) -> Result<u64, Error> {
        let start = self.space.bytes();
        self.space.grow(bytes.len() as u64)?;
        self.file.write_all_at(bytes, start).map_err(|e| self.store.io(&e))?;
        self.store.count_spilled(bytes.len() as u64);
        Ok(start)
    }

    /// Fills `to` with the bytes at offset `at`.
    pub(super) fn read(&self, at: u64, to: &mut [u8]) -> Result<(), Error> {
        self.file.read_exact_at(to, at).map_err(|e| self.store.io(&e))?;
        self.store.count_read_back(to.len() as u64);
        Ok(())
    }
}
