//! Durable definitions: one JSON file each, `catalog/<name>.json` in the warehouse.
//!
//! A definition is there whole or not at all: a file is written under another name and renamed, an object is put in
//! one request.

use crate::error::Error;
use crate::session::failure::Failure;
use futures::TryStreamExt;
use object_store::local::LocalFileSystem;
use object_store::path::Path;
use object_store::{ObjectStore, ObjectStoreExt};
use serde::{Deserialize, Serialize};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

/// Most a store may take for one definition.
const TIMEOUT: Duration = Duration::from_secs(30);

/// What `CREATE EXTERNAL TABLE` keeps.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct External {
    /// Version of this file's format.
    pub(super) format_version: u32,
    /// The name as it was written.
    pub(super) name: String,
    /// `zarr` or `npy`.
    pub(super) stored_as: String,
    /// The URL or path as it was written.
    pub(super) location: String,
    /// Options as they were written.
    pub(super) options: Vec<(String, String)>,
}

/// The format that this version reads and writes.
const FORMAT_VERSION: u32 = 1;

/// The durable half of the catalog.
#[derive(Debug)]
pub(super) struct Warehouse {
    /// The directory; nothing is made before the first definition is.
    root: PathBuf,
}

impl Warehouse {
    /// The warehouse at a directory.
    ///
    /// # Errors
    /// A URL of an object store, which is not supported yet.
    pub(super) fn open(url: &str) -> Result<Self, Error> {
        let path = match url.split_once("://") {
            None => PathBuf::from(url),
            Some(("file", path)) => PathBuf::from(path),
            Some((scheme, _)) => {
                return Err(Error::Unsupported {
                    construct: format!("a warehouse at {scheme}://"),
                    hint: Some("use a directory".into()),
                });
            }
        };
        Ok(Warehouse { root: path })
    }

    fn store(&self) -> Result<Arc<dyn ObjectStore>, Error> {
        std::fs::create_dir_all(&self.root)
            .map_err(|e| Error::io("create", format!("`{}`", self.root.display()), e))?;
        let store = LocalFileSystem::new_with_prefix(&self.root)
            .map_err(|e| Failure::warehouse("open", &self.root.display().to_string(), e))?;
        Ok(Arc::new(store))
    }

    fn path(name: &str) -> Path {
        // Names are compared without case where that is unique, so the file keeps the spelling.
        Path::from_iter(["catalog".to_string(), format!("{name}.json")])
    }

    /// All definitions, by name.
    pub(super) async fn list(&self) -> Result<Vec<External>, Error> {
        if !self.root.join("catalog").exists() {
            return Ok(Vec::new());
        }
        let store = self.store()?;
        let folder = Path::from("catalog");
        let mut names: Vec<Path> = within(store.list(Some(&folder)).try_collect::<Vec<_>>())
            .await?
            .map_err(|e| Failure::warehouse("list", "catalog", e))?
            .into_iter()
            .map(|m| m.location)
            .filter(|p| p.as_ref().ends_with(".json"))
            .collect();
        names.sort();
        let mut out = Vec::with_capacity(names.len());
        for path in names {
            out.push(self.read(&store, &path).await?);
        }
        Ok(out)
    }

    async fn read(&self, store: &Arc<dyn ObjectStore>, path: &Path) -> Result<External, Error> {
        let failed = |e| Failure::warehouse("read", path.as_ref(), e);
        let bytes =
            within(async { store.get(path).await?.bytes().await }).await?.map_err(failed)?;
        let external: External = serde_json::from_slice(&bytes)
            .map_err(|e| Failure::definition(path.as_ref(), e.to_string()))?;
        if external.format_version != FORMAT_VERSION {
            return Err(Failure::definition(
                path.as_ref(),
                format!(
                    "format version {} is not known, only {FORMAT_VERSION}",
                    external.format_version
                ),
            ));
        }
        Ok(external)
    }

    /// Writes a definition; an existing one of the name goes.
    pub(super) async fn put(
        &self,
        name: &str,
        stored_as: &str,
        location: &str,
        options: Vec<(String, String)>,
    ) -> Result<(), Error> {
        let external = External {
            format_version: FORMAT_VERSION,
            name: name.into(),
            stored_as: stored_as.into(),
            location: location.into(),
            options,
        };
        let text = serde_json::to_vec_pretty(&external)
            .map_err(|e| Failure::definition(name, e.to_string()))?;
        let path = Self::path(name);
        let store = self.store()?;
        within(store.put(&path, text.into()))
            .await?
            .map_err(|e| Failure::warehouse("write", path.as_ref(), e))?;
        Ok(())
    }

    /// Removes a definition.
    pub(super) async fn remove(&self, name: &str) -> Result<(), Error> {
        let path = Self::path(name);
        let store = self.store()?;
        within(store.delete(&path))
            .await?
            .map_err(|e| Failure::warehouse("remove", path.as_ref(), e))
    }
}

async fn within<T>(work: impl Future<Output = T>) -> Result<T, Error> {
    tokio::time::timeout(TIMEOUT, work)
        .await
        .map_err(|_| Error::Timeout { limit_s: TIMEOUT.as_secs() })
}
