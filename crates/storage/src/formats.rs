//! Files of other formats than Zarr and NumPy: metadata become arrays whose chunks are parts of the file.
//!
//! ```text
//!   [`FORMATS`] ─ is it? ─▶ [`Format::read`] ─▶ [`Group`] of [`FileArray`]s ─▶ a dataset and its readers
//!                              ▲                    │
//!                              └─ [`view::View`]    └─ [`ChunkIndex::find`]: index of a chunk ─▶ its [`Place`]
//! ```
//!
//! A format only parses metadata. It sees a file as a [`view::View`], whose missing parts are fetched between two runs
//! of the parser; it never waits and never reads cells. Fetching, decoding, memory bounds, versions and CF are those of
//! all stored arrays: see [`crate::source`].

mod aec;
pub(crate) mod filters;
mod grib;
pub(crate) mod hdf5;
mod netcdf;
mod nodes;
mod numbers;
mod open;
mod parts;
mod probe;
mod safetensors;
mod tiff;
pub(crate) mod view;

pub(crate) use open::{by_content, by_name, is_named};
pub use probe::{probe, probe_as};

use crate::formats::filters::Filters;
use crate::formats::view::{Fault, View};
use crate::source::cells::Raw;
use bytes::Bytes;
use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;
use tessera_planner::catalog::Attrs;
use tessera_planner::region::Dims;

/// The formats, in the order in which files are tried.
static FORMATS: [&dyn Format; 5] =
    [&netcdf::NetCdf, &hdf5::Hdf5, &tiff::Tiff, &grib::Grib, &safetensors::Safetensors];

/// A file format. It is stateless: its findings are in the [`Group`] that it returns.
pub(crate) trait Format: Sync {
    /// Its name in messages.
    fn name(&self) -> &'static str;

    /// Names in SQL, such as `netcdf` of `read_netcdf` and `STORED AS NETCDF`.
    fn keys(&self) -> &'static [&'static str];

    /// Extensions of files, in lower case and without the dot, that are tried before anything else in a store that
    /// cannot be looked at for free.
    fn extensions(&self) -> &'static [&'static str];

    /// True if a file of `len` bytes that begins with `head` is of this format. `head` is the whole file, or has at
    /// least [`view::PAGE`] bytes.
    fn is(&self, head: &[u8], len: u64) -> bool;

    /// Names of files that may lie beside a file called `name` and say where parts of it begin.
    fn sidecars(&self, _name: &str) -> Vec<String> {
        Vec::new()
    }

    /// The offsets that such a file has, for [`view::View::starts`]: in rising order, below `len`, the length of the
    /// file that it describes. It may be of another version of that file, or no such file at all.
    fn starts(&self, _sidecar: &[u8], _len: u64) -> Vec<u64> {
        Vec::new()
    }

    /// True if a group sees the coordinates of the groups above it.
    fn is_scoped(&self) -> bool {
        false
    }

    /// The arrays of a group of the file; the root is the empty path. `None` if there is no such group.
    fn read(&self, file: &View<'_>, group: &str) -> Result<Option<Group>, Fault>;
}

/// A group of arrays in a file.
#[derive(Debug, Default)]
pub(crate) struct Group {
    /// By name.
    pub(crate) arrays: BTreeMap<String, Result<FileArray, Unreadable>>,
    /// Names of the groups directly in it.
    pub(crate) groups: Vec<String>,
    pub(crate) attrs: Attrs,
}

/// An array that exists and cannot be read.
#[derive(Debug)]
pub(crate) struct Unreadable {
    pub(crate) why: Why,
    /// Names and lengths of its dimensions, as far as they are known.
    pub(crate) dims: Vec<(Option<Arc<str>>, u64)>,
    pub(crate) attrs: Attrs,
}

/// The reason why an array cannot be read.
#[derive(Debug)]
pub(crate) enum Why {
    /// A type of cells, as the format calls it.
    DType(String),
    /// A filter or layout, by name.
    Unsupported(String),
    /// Metadata that contradict themselves.
    Bad(String),
}

#[derive(Debug)]
pub(crate) struct FileArray {
    pub(crate) shape: Dims,
    /// Names of the dimensions.
    pub(crate) dims: Vec<Option<Arc<str>>>,
    pub(crate) raw: Raw,
    /// True if cells are stored with their highest byte first.
    pub(crate) big_endian: bool,
    pub(crate) attrs: Attrs,
    /// Names of attributes that are `float32`: CF unpacks cells to the type of the factors.
    pub(crate) narrow: Vec<String>,
    pub(crate) cells: Cells,
}

impl FileArray {
    /// An array of little-endian cells.
    pub(crate) fn new(
        dims: Vec<Option<Arc<str>>>,
        shape: Dims,
        raw: Raw,
        attrs: Attrs,
        cells: Cells,
    ) -> Self {
        FileArray { shape, dims, raw, big_endian: false, attrs, narrow: Vec::new(), cells }
    }

    /// An array in memory, by the names and lengths of its dimensions.
    pub(crate) fn inline(
        dims: &[(&str, u64)],
        raw: Raw,
        cells: impl Into<Bytes>,
        attrs: Attrs,
    ) -> Self {
        let names = dims.iter().map(|(name, _)| Some(Arc::from(*name))).collect();
        let shape = dims.iter().map(|(_, n)| *n).collect();
        FileArray::new(names, shape, raw, attrs, Cells::Inline(cells.into()))
    }
}

/// Place of the cells of an array.
#[derive(Debug)]
pub(crate) enum Cells {
    /// Contiguous from this offset on, in row-major order.
    Flat(u64),
    /// In the metadata, row-major.
    Inline(Bytes),
    /// The texts of an array of one dimension or none.
    Texts(Arc<[String]>),
    Chunks(FileChunks),
}

/// Chunks of an array in a file.
#[derive(Debug)]
pub(crate) struct FileChunks {
    /// Cells of a chunk along each axis. Chunks at the end of an axis are stored whole.
    pub(crate) unit: Dims,
    pub(crate) filters: Filters,
    /// The cell of absent chunks, as it is stored.
    pub(crate) fill: Vec<u8>,
    pub(crate) index: Arc<dyn ChunkIndex>,
}

/// Finds the chunks of an array in its file.
pub(crate) trait ChunkIndex: fmt::Debug + Send + Sync {
    /// The places of `units`, indices of chunks, in that order; `None` for chunks that have no bytes in the file.
    fn find(&self, file: &View<'_>, units: &[Dims]) -> Result<Vec<Option<Place>>, Fault>;

    /// Bytes between a chunk and the next one in row-major order, as far as they are known or can be expected; `None`
    /// if chunks lie anywhere.
    fn gap(&self) -> Option<u64> {
        None
    }
}

/// A chunk's bytes in its file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Place {
    pub(crate) offset: u64,
    pub(crate) bytes: u64,
    /// Bit `i` is set if the filter `i` was not applied to this chunk.
    pub(crate) skipped: u32,
}

/// Chunks at equal distances along the first axis, each a whole row of chunks: records of a file.
#[derive(Debug)]
pub(crate) struct Strided {
    pub(crate) first: u64,
    pub(crate) step: u64,
    pub(crate) bytes: u64,
}

impl ChunkIndex for Strided {
    fn find(&self, _: &View<'_>, units: &[Dims]) -> Result<Vec<Option<Place>>, Fault> {
        let place = |at: &Dims| {
            let i = at.first().copied().unwrap_or(0);
            let offset = i.checked_mul(self.step).and_then(|n| n.checked_add(self.first));
            let offset =
                offset.ok_or_else(|| Fault::bad(self.first, "records beyond 2^64 bytes"))?;
            Ok(Some(Place { offset, bytes: self.bytes, skipped: 0 }))
        };
        units.iter().map(place).collect()
    }

    fn gap(&self) -> Option<u64> {
        self.step.checked_sub(self.bytes)
    }
}
