//! The objects below a location.

use super::{Store, StoreRoot};
use crate::disk;
use crate::source::error::SourceError;
use futures::TryStreamExt;
use std::path::Path;

/// Upper bound on the parts of a pattern that leads through links to directories.
const LINKS_DEPTH_MAX: usize = 64;

/// Objects that are listed for each that is returned: a store of chunks has many.
const OBJECTS_PER_FILE: usize = 16;

/// The bounds of a listing of a directory.
#[derive(Clone, Copy)]
struct Walk {
    depth: usize,
    limit: usize,
    directories: bool,
}

impl Store {
    /// Keys of the objects and prefixes below `key`, sorted, with at most `depth` parts and at most `limit + 1` of them.
    pub(crate) async fn files(
        &self,
        key: &str,
        depth: usize,
        limit: usize,
    ) -> Result<Vec<String>, SourceError> {
        // A Zarr store is a directory: it matches a pattern as a file does.
        self.names_below(key, depth, limit, true).await
    }

    /// Like [`Store::files`], without prefixes.
    pub(crate) async fn objects(
        &self,
        key: &str,
        depth: usize,
        limit: usize,
    ) -> Result<Vec<String>, SourceError> {
        self.names_below(key, depth, limit, false).await
    }

    async fn names_below(
        &self,
        key: &str,
        depth: usize,
        limit: usize,
        directories: bool,
    ) -> Result<Vec<String>, SourceError> {
        let mut out = Vec::new();
        match &self.kind {
            StoreRoot::Local(root) => {
                let directory = super::local::join_path(root, key);
                let walk = Walk { depth, limit, directories };
                disk::wait(|| self.walk(&directory, "", walk, &mut out))?;
            }
            StoreRoot::Object { client, prefix } => {
                let path = self.path(prefix, key)?;
                let base = path.as_ref().len() + usize::from(!path.as_ref().is_empty());
                let names = self.guard(key, async {
                    let mut names = Vec::new();
                    if depth == 1 {
                        let all = client.list_with_delimiter(Some(&path)).await?;
                        names.extend(all.objects.into_iter().map(|o| o.location.to_string()));
                        if directories {
                            names.extend(all.common_prefixes.iter().map(ToString::to_string));
                        }
                        return Ok(names);
                    }
                    let mut all = client.list(Some(&path));
                    while let Some(object) = all.try_next().await? {
                        names.push(object.location.to_string());
                        if names.len() > limit.saturating_mul(OBJECTS_PER_FILE) {
                            break;
                        }
                    }
                    Ok(names)
                });
                for name in names.await?.unwrap_or_default() {
                    let Some(name) = name.get(base..) else { continue };
                    let parts: Vec<&str> = name.split('/').collect();
                    let least = if directories { 1 } else { parts.len() };
                    out.extend((least..=parts.len().min(depth)).map(|n| parts[..n].join("/")));
                }
            }
        }
        out.sort();
        out.dedup();
        Ok(out)
    }

    fn walk(
        &self,
        directory: &Path,
        below: &str,
        walk: Walk,
        out: &mut Vec<String>,
    ) -> Result<(), SourceError> {
        if let Some(fence) = &self.fence {
            fence.listed(directory, &self.show(below))?;
        }
        for entry in self.io(below, std::fs::read_dir(directory))? {
            let entry = self.io(below, entry)?;
            // Names that are not UTF-8 cannot be used in a query either.
            let Ok(name) = entry.file_name().into_string() else { continue };
            let key = if below.is_empty() { name } else { format!("{below}/{name}") };
            // With `**` a link to a directory is not followed: it may lead back.
            let kind = self.io(below, entry.file_type())?;
            let is_directory = match kind.is_symlink() {
                true => walk.depth <= LINKS_DEPTH_MAX && entry.path().is_dir(),
                false => kind.is_dir(),
            };
            if walk.directories || !is_directory {
                out.push(key.clone());
            }
            if out.len() > walk.limit {
                return Ok(());
            }
            if is_directory && walk.depth > 1 {
                self.walk(&entry.path(), &key, Walk { depth: walk.depth - 1, ..walk }, out)?;
            }
        }
        Ok(())
    }
}
