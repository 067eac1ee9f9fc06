//! The target of a result, and how the result gets its name.

use super::destination::{Destination, make_all, remove_tree};
use super::parts::PARTS;
use super::{Host, Promise, SinkError};
use crate::disk;
use crate::fail;
use crate::manifest::ManifestRef;
use crate::source::location::{Location, Options, Root, StoragePath};
use crate::source::{Access, Rules, SourceError, Stores};
use serde::{Deserialize, Serialize};
use std::fs;
use std::path::{Path, PathBuf};

/// Metadata documents that make a directory or a prefix a Zarr store.
const STORE_MARKS: [&str; 4] = ["zarr.json", ".zgroup", ".zarray", ".zmetadata"];

/// A location to write to.
#[derive(Debug, Clone)]
pub struct Target {
    /// As given by the user, without credentials.
    pub(super) display: String,
    pub(super) destination: Destination,
    pub(super) reopen: Reopen,
}

/// How another process opens the location below its URL, if it is in a bucket. The serde form includes secrets.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(super) struct Reopen {
    pub(super) options: Options,
    /// The access rules of the statement; `None` for no restrictions.
    pub(super) rules: Option<Rules>,
    /// True if the engine accesses its own data.
    pub(super) own: bool,
}

impl Reopen {
    /// The location in this process.
    pub(super) fn destination(&self, url: &str, stores: &Stores) -> Result<Destination, SinkError> {
        let location = Location::parse(url)?;
        let fenced = self.rules.clone().map(|rules| stores.fenced(rules, None, &[]));
        let fenced = fenced.transpose()?;
        let access = if self.own { Access::Own } else { Access::Write };
        let store = fenced.as_ref().unwrap_or(stores).at(&location, &self.options, access)?;
        match Destination::of(&store, &location.display, false) {
            bucket @ Destination::Object { .. } => Ok(bucket),
            Destination::Local { .. } => Err(SinkError::Internal {
                what: location.display,
                reason: "it is not a bucket".into(),
            }),
        }
    }
}

/// Statistics of a written output.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Written {
    /// Files or objects, including metadata.
    pub objects: u64,
    /// Bytes of these.
    pub bytes: u64,
    /// The manifest, if there is one.
    pub manifest: Option<ManifestRef>,
}

/// Kind of the existing object at a location.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Existing {
    Nothing,
    Store,
    File,
    Other,
}

/// How an output gets its name.
#[derive(Debug)]
pub(super) enum Publish {
    /// The output is written under its name; the metadata, written last, complete it.
    InPlace,
    /// A local file or directory, written under a temporary name beside its own.
    Rename {
        staging: PathBuf,
        to: PathBuf,
        /// True if an existing output is replaced.
        replace: bool,
        /// Held until the rename.
        _promise: Option<Promise>,
    },
}

impl Target {
    /// Parses a path, or a URL of a storage that is written to.
    ///
    /// # Errors
    /// An invalid URL, or read-only storage (`http://`).
    pub fn parse(url: &str, options: &Options, stores: &Stores) -> Result<Target, SinkError> {
        let location = Location::parse(url)?;
        if !location.group.is_empty() {
            return Err(SinkError::Source(SourceError::BadUrl {
                url: location.display,
                reason: "a group behind `#` cannot be written by itself".into(),
            }));
        }
        check_writable(&location)?;
        if let StoragePath::Object { prefix, .. } = &location.path
            && prefix.is_empty()
        {
            return Err(SinkError::Source(SourceError::BadUrl {
                url: location.display,
                reason: "it names a bucket, not what to write in it".into(),
            }));
        }
        let store = stores.at(&location, options, Access::Write)?;
        let destination = Destination::of(&store, &location.display, false);
        let (options, rules) = (options.clone(), stores.rules_for(url, options));
        let reopen = Reopen { options, rules, own: false };
        Ok(Target { display: location.display, destination, reopen })
    }

    /// The URL, without credentials.
    pub fn display(&self) -> &str {
        &self.display
    }

    /// Fails if the target already exists. The check is cheap and precedes the computation.
    ///
    /// # Errors
    /// [`SinkError::Exists`] without `overwrite`; [`SinkError::Foreign`] for files that overwriting must not destroy;
    /// [`SinkError::Option`] for a store in an archive.
    pub async fn check(&self, file: bool, overwrite: bool) -> Result<(), SinkError> {
        if !file {
            check_no_archive(&self.display)?;
        }
        let found = self.existing(file).await?;
        let what = self.display.clone();
        match (found, file) {
            (Existing::Nothing, _) => Ok(()),
            (Existing::Store, false) | (Existing::File, true) if overwrite => Ok(()),
            _ if !overwrite => Err(SinkError::Exists { what }),
            (Existing::File, false) => Err(SinkError::Foreign { what, is: "a file" }),
            (Existing::Store, true) => Err(SinkError::Foreign { what, is: "a Zarr store" }),
            (_, true) => Err(SinkError::Foreign { what, is: "a directory" }),
            (_, false) => Err(SinkError::Foreign { what, is: "no Zarr store" }),
        }
    }

    async fn existing(&self, file: bool) -> Result<Existing, SinkError> {
        match &self.destination {
            Destination::Local { root, .. } => {
                let found = disk::wait(|| local_existing(root));
                found.map_err(|e| SinkError::io(self.display.clone(), &e))
            }
            Destination::Object { client, store, .. } => {
                if file {
                    return Ok(match store.head("").await? {
                        Some(_) => Existing::File,
                        None => Existing::Nothing,
                    });
                }
                for mark in STORE_MARKS {
                    if store.head(mark).await?.is_some() {
                        return Ok(Existing::Store);
                    }
                }
                let below = self.destination.key("")?;
                let listed =
                    self.destination.within("", client.list_with_delimiter(Some(&below))).await?;
                // A process that was lost long ago may have left a part there.
                let parts = self.destination.key(PARTS)?;
                let is_part = |prefix: &object_store::path::Path| *prefix == parts;
                match listed.objects.is_empty() && listed.common_prefixes.iter().all(is_part) {
                    true => Ok(Existing::Nothing),
                    false => Ok(Existing::Other),
                }
            }
        }
    }

    /// Returns a location for the output, and how it will get its name. `in_place` is for names that nothing refers to
    /// yet.
    pub(super) async fn stage(
        &self,
        overwrite: bool,
        in_place: bool,
        host: &Host,
    ) -> Result<(Destination, Publish), SinkError> {
        let Destination::Local { root, private, .. } = &self.destination else {
            if overwrite {
                self.destination.remove_all("").await?;
            }
            return Ok((self.destination.clone(), Publish::InPlace));
        };
        if in_place {
            disk::wait(|| make_all(root, *private))
                .map_err(|e| SinkError::io(self.display.clone(), &e))?;
            return Ok((self.destination.clone(), Publish::InPlace));
        }
        let staging = staging(root, &self.display)?;
        let (promise, made) =
            disk::wait(|| (host.store.promise(&staging, root), fs::create_dir(&staging)));
        made.map_err(|e| missing_parent(root, &self.display, &e))?;
        let display = self.display.as_str().into();
        let destination = Destination::Local { root: staging.clone(), display, private: *private };
        let to = root.clone();
        Ok((destination, Publish::Rename { staging, to, replace: overwrite, _promise: promise }))
    }
}

/// Checks that a location is in a storage that can be written.
pub(super) fn check_writable(location: &Location) -> Result<(), SinkError> {
    match &location.path {
        StoragePath::Object { root: root @ Root::Http { .. }, .. } => {
            Err(SinkError::ReadOnly { scheme: format!("{}://", root.scheme()) })
        }
        _ => Ok(()),
    }
}

/// Checks that a store to be written is not called as an archive, of which stores are only read.
pub(super) fn check_no_archive(display: &str) -> Result<(), SinkError> {
    let Some(stem) = display.to_ascii_lowercase().strip_suffix(".zip").map(str::len) else {
        return Ok(());
    };
    let directory = display.get(..stem).unwrap_or(display);
    Err(SinkError::Option {
        option: "STORED AS ZARR",
        reason: format!("`{display}` is a ZIP archive: stores in archives are read, not written"),
        hint: Some(format!(
            "write `{directory}`; `zip -0 -r ../name.zarr.zip .` in a copy on a disk packs it"
        )),
    })
}

/// The error of making something in the parent of `path`.
pub(super) fn missing_parent(path: &Path, display: &str, e: &std::io::Error) -> SinkError {
    if e.kind() == std::io::ErrorKind::NotFound {
        let parent = path.parent().map_or_else(|| "/".into(), |p| p.display().to_string());
        return SinkError::Source(SourceError::NotFound { what: parent });
    }
    SinkError::io(display, e)
}

/// Returns an unused temporary name beside `path`.
pub(super) fn staging(path: &Path, display: &str) -> Result<PathBuf, SinkError> {
    let name = path.file_name().ok_or_else(|| {
        SinkError::Source(SourceError::BadUrl {
            url: display.into(),
            reason: "it has no name of its own".into(),
        })
    })?;
    let parent = match path.parent() {
        Some(p) if !p.as_os_str().is_empty() => p,
        _ => Path::new("."),
    };
    let unique = uuid::Uuid::new_v4().simple();
    Ok(parent.join(format!(".{}.{unique}.part", name.to_string_lossy())))
}

fn local_existing(path: &Path) -> std::io::Result<Existing> {
    let meta = match fs::symlink_metadata(path) {
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => return Ok(Existing::Nothing),
        other => other?,
    };
    if meta.is_file() {
        return Ok(Existing::File);
    }
    if !meta.is_dir() {
        return Ok(Existing::Other);
    }
    if STORE_MARKS.iter().any(|m| path.join(m).is_file()) {
        return Ok(Existing::Store);
    }
    // An empty directory counts as free.
    match fs::read_dir(path)?.next() {
        None => Ok(Existing::Nothing),
        Some(_) => Ok(Existing::Other),
    }
}

impl Publish {
    /// Renames the output. After an error the previous output still has the name, and the staging is left to be
    /// removed.
    pub(super) fn publish(&self, display: &str, sync: bool) -> Result<(), SinkError> {
        let Publish::Rename { staging, to, replace, .. } = self else { return Ok(()) };
        let run = || -> std::io::Result<()> {
            fail::point("publish")?;
            let aside = staging.with_extension("old");
            let replaced = *replace && fs::symlink_metadata(to).is_ok_and(|m| m.is_dir());
            if replaced {
                fs::rename(to, &aside)?;
            }
            // A link does not replace an existing file, as a rename would.
            if !*replace && fs::symlink_metadata(staging).is_ok_and(|m| m.is_file()) {
                fs::hard_link(staging, to)?;
                return fs::remove_file(staging);
            }
            let renamed = fail::point("publish.aside").and_then(|()| fs::rename(staging, to));
            if let Err(e) = renamed {
                if replaced {
                    fs::rename(&aside, to)?;
                }
                return Err(e);
            }
            fail::point("published")?;
            // The output has its name: a leftover of the old one is not an error.
            if replaced && let Err(e) = remove_tree(&aside) {
                tracing::warn!(path = %aside.display(), error = %e, "a replaced output was not removed");
            }
            if sync && let Some(parent) = to.parent() {
                fs::File::open(parent)?.sync_all()?;
            }
            Ok(())
        };
        disk::wait(run).map_err(|e| SinkError::io(display, &e))
    }
}
