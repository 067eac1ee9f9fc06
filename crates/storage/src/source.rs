//! Stored arrays: from a URL to the cells of a region.
//!
//! 1. [`open`] parses the URL, finds Zarr metadata or a NumPy header, checks them and reads the labels.
//! 2. It returns a [`Dataset`] for the frontend to bind, and one [`ArrayReader`] for each stored array.
//! 3. The scheduler calls [`ArrayReader::estimate`] for the cost of a region, [`ArrayReader::fetch`] to fetch exactly
//!    the chunks it touches (the only asynchronous step), and [`ArrayReader::decode`] to decode them on a CPU thread.
//!
//! Values are raw: CF's masks, factors and calendars are [`tessera_planner::catalog::Decode`], which the plan applies.

pub(crate) mod ahead;
mod archive;
pub(crate) mod blosc;
pub(crate) mod boxes;
pub(crate) mod cells;
pub(crate) mod cf;
pub(crate) mod chunked;
mod clouds;
pub(crate) mod codecs;
pub(crate) mod coords;
pub(crate) mod cut;
mod dataset_cache;
pub(crate) mod error;
mod fence;
mod fills;
mod flat;
pub(crate) mod found;
pub(crate) mod inflate;
mod joined;
pub(crate) mod location;
pub(crate) mod look;
pub(crate) mod lz4;
pub mod many;
pub(crate) mod meta;
mod moments;
mod ngff;
mod npy;
mod npz;
pub(crate) mod reader;
mod references;
pub(crate) mod rests;
pub(crate) mod retry;
mod root;
mod scaled;
pub(crate) mod scope;
mod steps;
pub(crate) mod store;
pub(crate) mod sum;
mod table_files;
mod table_store;
pub(crate) mod tail;
mod taken;
pub(crate) mod texts;
mod time_units;
pub(crate) mod unpack;
mod unpacked;
pub(crate) mod variables;
mod versions;
mod zarr;
mod zip;

pub use cells::swap_bytes;
pub use error::SourceError;
pub(crate) use fence::Access;
pub use fence::{Lent, Rules};
pub use flat::slabs;
pub use location::{Options, inside};
pub use many::is_in_memory;
pub(crate) use meta::CHUNK_BYTES_MAX;
pub use reader::{ArrayReader, Fetched};
pub use store::{Client, Counters, Found, Reached, Stores, passing};
pub use table_files::{TableFiles, table_files};
pub use table_store::{Listing, TableStore};
pub use unpacked::Packing;
pub use versions::{Noted, Read, Versions, is_told};

#[cfg(test)]
pub(crate) mod tests;

use crate::formats;
use dataset_cache::{Noticed, Seen};
use location::Location;
use std::collections::BTreeMap;
use std::sync::Arc;
use tessera_planner::catalog::{CoordValues, Dataset, SourceRef};

/// An opened dataset.
#[derive(Debug, Default)]
pub struct Opened {
    /// Variables, coordinates and attributes.
    pub dataset: Dataset,
    /// A reader for each array of `dataset.variables` and `dataset.auxiliary`.
    pub readers: Vec<Arc<ArrayReader>>,
    /// Arrays that exist but cannot be read, with the error to return when a query names one. A dimension whose own
    /// coordinate is among them has unknown labels.
    pub unsupported: BTreeMap<String, SourceError>,
    /// Groups inside the group: `url#group` opens them.
    pub groups: Vec<String>,
    /// The value of the scalar that is called like the dimension to join along (`concat`), of one of several files.
    pub(crate) label: Option<CoordValues>,
    /// Objects that were read for labels, and the files of arrays, with their versions.
    pub(crate) read: Vec<Noted>,
}

impl Opened {
    /// The reader of an array.
    pub fn reader(&self, source: &SourceRef) -> Option<&Arc<ArrayReader>> {
        self.readers.iter().find(|r| r.source() == source)
    }
}

/// Opens a path or URL: a Zarr v2 or v3 group or array, a ZIP archive of one, an `.npy`, an `.npz`, or a file of one of
/// the [`formats`]; `url#group/path` is a nested group.
///
/// A cached dataset of the same options is returned if the objects read for it are unchanged.
///
/// # Errors
/// `not_allowed` for objects that the [rules](Rules) of the stores deny to statements; errors of the storage and the
/// format.
pub async fn open(url: &str, options: &Options, stores: &Stores) -> Result<Opened, SourceError> {
    if many::is_several(url) {
        return many::open(url, options, stores).await;
    }
    match open_one(url, options, stores).await {
        // A directory without metadata may be one of files.
        Err(SourceError::NotAnArray { what }) => {
            let location = Location::parse(url)?;
            let found = many::open_directory(&location, url, options, stores).await?;
            found.ok_or(SourceError::NotAnArray { what })
        }
        opened => opened,
    }
}

/// Opens one location, or takes it from the cache.
async fn open_one(url: &str, options: &Options, stores: &Stores) -> Result<Opened, SourceError> {
    let location = Location::parse(url)?;
    let key = cache_key(&location.display, &location.group, options, stores);
    if let Some(opened) = stores.kept().get(&key).await {
        return Ok(opened);
    }
    let (opened, noted) = open_noted(&location, options, stores).await?;
    stores.kept().put(key, &opened, noted);
    Ok(opened)
}

/// Opens one location and notes the objects that were read for it.
async fn open_noted(
    location: &Location,
    options: &Options,
    stores: &Stores,
) -> Result<(Opened, Option<Vec<Noticed>>), SourceError> {
    let access = if options.warehouse { Access::Own } else { Access::Read };
    let store = stores.at(location, options, access)?;
    let seen = Seen::new();
    let mut noting = store.noting(&seen);
    if let Some(manifest) = &options.manifest {
        noting = noting.listed(manifest).await?;
    }
    let mut opened = open_anew(location, options, stores, noting).await?;
    opened.read = seen.read.take();
    Ok((opened, seen.close(store)))
}

/// The parameters that a cached dataset depends on, besides the contents of its objects.
fn cache_key(what: &str, group: &str, options: &Options, stores: &Stores) -> String {
    let how = (options.decode_cf, options.warehouse, &options.manifest, &options.format);
    let fence = stores.fence().rules();
    format!("{what:?} {group:?} {how:?} {fence:?} {}", store::key_of(options))
}

/// Like [`open`], for a statement: the dataset is read in one version of each object, or reads fail with
/// [`SourceError::Changed`]. Immutable objects, such as the tensors of a warehouse ([`Options::warehouse`]), are not
/// checked.
pub async fn open_for(
    versions: &Arc<Versions>,
    url: &str,
    options: &Options,
    stores: &Stores,
) -> Result<Opened, SourceError> {
    let mut opened = open(url, options, stores).await?;
    if options.warehouse {
        return Ok(opened);
    }
    if !versions.met_all(&opened.read) {
        let what = if many::is_several(url) { url.into() } else { Location::parse(url)?.display };
        return Err(SourceError::Changed { what });
    }
    opened.readers = opened.readers.iter().map(|r| Arc::new(r.read_for(versions))).collect();
    Ok(opened)
}

/// Opens a location in the requested format, or in the first format that fits.
async fn open_anew(
    location: &Location,
    options: &Options,
    stores: &Stores,
    store: store::Store,
) -> Result<Opened, SourceError> {
    let wanted = options.format.as_deref();
    let may_be = |format: &str| wanted.is_none_or(|wanted| wanted == format);
    if may_be("npy")
        && let Some(opened) = npy::open(&store, location).await?
    {
        return Ok(opened);
    }
    if may_be("npz")
        && let Some(opened) = npz::open(&store, location).await?
    {
        return Ok(opened);
    }
    if let Some(opened) = archive::open(&store, location, options).await? {
        return Ok(opened);
    }
    if let Some(opened) = references::open(&store, location, options, stores).await? {
        return Ok(opened);
    }
    if let Some(opened) = formats::by_name(&store, location, options).await? {
        return Ok(opened);
    }
    if may_be("zarr")
        && let Some(found) = ngff::find(&store, &location.group).await?
    {
        return match found {
            found::Found::References(document) if wanted.is_none() => {
                references::open_tables(&store, location, options, stores, document).await
            }
            found => variables::assemble(&store, location, options, found).await,
        };
    }
    // A prefix of objects is no file.
    if !store.is_prefix().await
        && let Some(opened) = formats::by_content(&store, location, options).await?
    {
        return Ok(opened);
    }
    let what = location.display.clone();
    let not_there = match store.local_exists() {
        Some(exists) => !exists,
        // An object store has no directories: an empty prefix does not exist.
        None => store.is_empty().await,
    };
    Err(match wanted {
        _ if not_there => SourceError::NotFound { what },
        _ if !location.group.is_empty() && wanted.is_none_or(|w| w == "zarr") => {
            SourceError::NoGroup { what, group: location.group.clone(), groups: None }
        }
        Some(format) => SourceError::OtherFormat { what, format: format.into() },
        None => SourceError::NotAnArray { what },
    })
}
