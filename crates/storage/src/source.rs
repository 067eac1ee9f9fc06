//! Stored arrays: from a URL to the cells of a region.
//!
//! 1. [`open`] parses the URL, finds Zarr metadata or a NumPy header, checks them and reads the labels.
//! 2. It returns a [`Dataset`] for the frontend to bind, and one [`ArrayReader`] for each stored array.
//! 3. The scheduler calls [`ArrayReader::estimate`] for the cost of a region, [`ArrayReader::fetch`] to fetch exactly
//!    the chunks it touches (the only asynchronous step), and [`ArrayReader::decode`] to decode them on a CPU thread.
//!
//! Values are raw: CF's masks, factors and calendars are [`tessera_planner::catalog::Decode`], which the plan applies.

mod ahead;
mod blosc;
mod boxes;
pub(crate) mod cells;
mod cf;
pub(crate) mod chunked;
mod clouds;
pub(crate) mod codecs;
mod coords;
mod dataset_cache;
pub(crate) mod error;
mod fence;
mod flat;
pub(crate) mod found;
mod json;
pub(crate) mod location;
mod lz4;
pub(crate) mod meta;
mod moments;
mod npy;
mod npz;
mod reader;
mod rests;
pub(crate) mod retry;
mod scaled;
pub(crate) mod store;
mod table_store;
mod taken;
mod time_units;
pub(crate) mod unpack;
pub(crate) mod variables;
mod versions;
mod zarr;

pub use error::SourceError;
pub(crate) use fence::Access;
pub use fence::{Lent, Rules};
pub use flat::slabs;
pub use location::{Options, is_in_memory};
pub(crate) use meta::CHUNK_BYTES_MAX;
pub use reader::{ArrayReader, Fetched};
pub use store::{Client, Counters, Found, Reached, Stores, passing};
pub use table_store::TableStore;
pub use versions::{Noted, Read, Versions};

#[cfg(test)]
pub(crate) mod tests;

use crate::formats;
use dataset_cache::Seen;
use location::Location;
use std::collections::BTreeMap;
use std::sync::Arc;
use tessera_planner::catalog::{Dataset, SourceRef};

/// An opened dataset.
#[derive(Debug)]
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
    /// Objects that were read for labels, and the files of arrays, with their versions.
    pub(crate) read: Vec<Noted>,
}

impl Opened {
    /// The reader of an array.
    pub fn reader(&self, source: &SourceRef) -> Option<&Arc<ArrayReader>> {
        self.readers.iter().find(|r| r.source() == source)
    }
}

/// Opens a path or URL: a Zarr v2 or v3 group or array, an `.npy`, an `.npz`, or a file of one of the [formats](crate::formats);
/// `url#group/path` is a nested group.
///
/// A cached dataset of the same options is returned if the objects read for it are unchanged.
///
/// # Errors
/// `not_allowed` for objects that the [rules](Rules) of the stores deny to statements; errors of the storage and the
/// format.
pub async fn open(url: &str, options: &Options, stores: &Stores) -> Result<Opened, SourceError> {
    let location = Location::parse(url)?;
    let access = if options.warehouse { Access::Own } else { Access::Read };
    let store = stores.at(&location, options, access)?;
    let (display, group) = (&location.display, &location.group);
    let how = (options.decode_cf, options.warehouse, &options.manifest);
    let fence = stores.fence().rules();
    let key = format!("{display:?} {group:?} {how:?} {fence:?} {}", store::key_of(options));
    if let Some(opened) = stores.kept().get(&key, &store).await {
        return Ok(opened);
    }
    let seen = Seen::new();
    let mut noting = store.noting(&seen);
    if let Some(manifest) = &options.manifest {
        noting = noting.listed(manifest).await?;
    }
    let mut opened = open_anew(&location, options, noting).await?;
    opened.read = seen.read.take();
    stores.kept().put(key, &opened, &seen);
    Ok(opened)
}

/// As [`open`], for a statement: it reads one version of each object, or the read fails with
/// [`SourceError::Changed`]. Versions of immutable objects, as the tensors of a warehouse ([`Options::warehouse`]),
/// are not checked.
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
        return Err(SourceError::Changed { what: Location::parse(url)?.display });
    }
    opened.readers = opened.readers.iter().map(|r| Arc::new(r.read_for(versions))).collect();
    Ok(opened)
}

async fn open_anew(
    location: &Location,
    options: &Options,
    store: store::Store,
) -> Result<Opened, SourceError> {
    if let Some(opened) = npy::open(&store, location).await? {
        return Ok(opened);
    }
    if let Some(opened) = npz::open(&store, location).await? {
        return Ok(opened);
    }
    if let Some(opened) = formats::by_name(&store, location, options).await? {
        return Ok(opened);
    }
    if let Some(found) = zarr::find(&store, &location.group).await? {
        return variables::assemble(&store, location, options, found).await;
    }
    match formats::by_content(&store, location, options).await? {
        Some(opened) => Ok(opened),
        None if !location.group.is_empty() => {
            Err(SourceError::NotFound { what: format!("{}#{}", location.display, location.group) })
        }
        None => match store.local_exists() {
            Some(false) => Err(SourceError::NotFound { what: location.display.clone() }),
            Some(true) => Err(SourceError::NotAnArray { what: location.display.clone() }),
            // An object store has no directories: an empty prefix does not exist.
            None if store.is_empty().await => {
                Err(SourceError::NotFound { what: location.display.clone() })
            }
            None => Err(SourceError::NotAnArray { what: location.display.clone() }),
        },
    }
}
