//! Appends to a Zarr store along a dimension.
//!
//! ```text
//!   1. chunks     the last ones of the old length are written again with their old cells and more, others are new
//!   2. commit     one document, that of the root, has the new lengths and the mark of the append
//!   3. arrays     the documents of the arrays follow it
//! ```
//! Readers take lengths from the root's consolidated metadata, so each sees the old or the new length; cells beyond the
//! length that it knows do not exist for it. Before the first append, a store without consolidated metadata gets them.
//! A killed append leaves chunks beyond the length, which the next one overwrites.
//!
//! One statement appends to a store at a time: it holds a lock of the directory, or a document in the bucket ([`lease`]).
//! Writers that do not know the lock, and requests of a writer that lost it, are found by what they changed: the commit
//! replaces the document that was read at the start, and no other. In a bucket each object replaces the one that was
//! read under the lock.
//!
//! A statement that runs again because its server was killed looks for its mark ([`Append::earlier`]).

mod cells;
mod documents;
mod lease;
mod order;

use super::folder::{FileLock, Folder, Mode};
use super::target::{check_no_archive, check_writable};
use super::zarr::encoded;
use super::{Item, SinkError};
use crate::fail;
use crate::source::cells::Raw;
use crate::source::chunked::indices;
use crate::source::location::{Location, Options};
use crate::source::tail::{self, Tail};
use crate::source::{Access, ArrayReader, Stores, cf};
use bytes::Bytes;
use cells::Encoding;
use documents::{Documents, Stored};
use lease::Lease;
pub use order::check_labels;
use std::borrow::Cow;
use std::collections::BTreeMap;
use tessera_planner::catalog::{Coord, CoordValues};
use tessera_planner::grid::{AxisGrid, Grid};
use tessera_planner::region::{Dims, Region};
use zarrs::array::{Array, ArrayBytes};

/// An append that runs.
#[derive(Debug)]
pub struct Append {
    folder: Folder,
    documents: Documents,
    /// The root's document, which the commit replaces; `None` if it does not exist.
    root: Option<Stored>,
    dim: String,
    arrays: Vec<Growing>,
    /// Stored labels, by the index of their array.
    labels: Vec<(usize, Vec<u8>)>,
    /// Cells along the dimension before and after.
    before: u64,
    after: u64,
    lease: Option<Lease>,
    _lock: Option<FileLock>,
}

/// The outcome of an attempt to append.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Earlier {
    /// The store has its cells.
    Committed,
    /// The store does not have its cells.
    Absent,
    /// The store has grown since, and its metadata do not list all appends.
    Unknown,
}

/// An array that grows.
#[derive(Debug)]
struct Growing {
    name: String,
    /// The axis along which it grows.
    axis: usize,
    /// Its lengths afterwards.
    shape: Dims,
    /// Lengths of an object: a chunk, or a shard.
    object: Dims,
    array: Array<()>,
    encoding: Encoding,
    /// Checksums of numcodecs, behind the codecs of `array`.
    tail: Tail,
    /// Reads the old cells, as they are stored.
    reader: ArrayReader,
}

impl Append {
    /// Opens the store at `url` to append `items`, results with names, along the dimension `dim`. All arrays of the
    /// store that have the dimension must be among them, or be its labels.
    ///
    /// # Errors
    /// A store that does not exist, items that do not fit its arrays, labels that do not continue those of the store.
    pub async fn open(
        url: &str,
        dim: &str,
        items: &[Item],
        options: &Options,
        stores: &Stores,
    ) -> Result<Append, SinkError> {
        let folder = folder_at(url, options, stores)?;
        let lock = folder.try_hold_directory()?;
        let lease = Lease::take(&folder).await?;
        match Append::open_locked(url, dim, items, options, stores, folder).await {
            Ok(append) => Ok(Append { lease, _lock: lock, ..append }),
            Err(e) => {
                if let Some(lease) = lease {
                    lease.release().await;
                }
                Err(e)
            }
        }
    }

    async fn open_locked(
        url: &str,
        dim: &str,
        items: &[Item],
        options: &Options,
        stores: &Stores,
        folder: Folder,
    ) -> Result<Append, SinkError> {
        let own = Options { format: Some("zarr".into()), ..options.clone() };
        let decoded = crate::source::open(url, &own, stores).await?;
        let (documents, root) = Documents::read(&folder).await?;
        let fault = |reason: String| SinkError::Names {
            reason,
            hint: "select what the store has, in its names, dimensions and types".into(),
        };
        let mut lengths = items.iter().filter_map(|item| {
            let axis = item.dims.iter().position(|d| d.name.as_deref() == Some(dim))?;
            Some(item.shape[axis])
        });
        let Some(more) = lengths.next() else {
            return Err(fault(format!("no result has the dimension `{dim}`")));
        };
        if lengths.any(|n| n != more) {
            return Err(fault(format!("results have different lengths along `{dim}`")));
        }
        let along = decoded.dataset.coords.iter().filter(|c| *c.dim == *dim);
        let along: Vec<_> = along.collect();
        let is_item = |c: &Coord| c.name != c.dim && items.iter().any(|i| i.name == *c.name);
        let mut beside = Vec::new();
        for coord in along.iter().filter(|c| is_item(c)) {
            beside.extend(documents.beside(coord)?);
        }
        let known = decoded.dataset.variables.iter().chain(&decoded.dataset.auxiliary);
        let known: BTreeMap<&str, _> = known.chain(&beside).map(|v| (&*v.name, v)).collect();
        for item in items {
            if !known.contains_key(item.name.as_str()) {
                return Err(fault(format!("the store has no array `{}`", item.name)));
            }
            if !item.dims.iter().any(|d| d.name.as_deref() == Some(dim)) {
                return Err(fault(format!("`{}` has no dimension `{dim}`", item.name)));
            }
        }
        let mut arrays = Vec::new();
        let mut before = None;
        for (name, v) in &known {
            let Some(axis) = v.dims.iter().position(|d| d.as_deref() == Some(dim)) else {
                continue;
            };
            let Some(item) = items.iter().find(|i| i.name == *name) else {
                return Err(fault(format!("`{name}` of the store has the dimension `{dim}`, too")));
            };
            check_item(item, v, axis, &decoded.dataset)?;
            before = Some(v.source.shape[axis]);
            let encoding = Encoding::of(v, item.dtype).map_err(&fault)?;
            arrays.push(Growing::new(&documents, &folder, name, axis, more, encoding)?);
        }
        let Some(before) = before else {
            return Err(fault(format!("no array of the store has the dimension `{dim}`")));
        };
        let mut labels = Vec::new();
        for coord in along.iter().filter(|c| !known.contains_key(&*c.name)) {
            let meta = documents.meta(&coord.name)?;
            let is_text = || fault(format!("`{}` has texts, which are not appended", coord.name));
            let stored = meta.dtype().ok_or_else(is_text)?;
            if coord.name != coord.dim {
                return Err(fault(format!(
                    "the coordinate `{}` of the store has the dimension `{dim}`, too",
                    coord.name
                )));
            }
            let new = check_labels("the store", coord, new_labels(items, dim, coord))?;
            let read = cf::decode(&coord.name, stored, meta.attrs, meta.fill_v2.as_ref(), &[]);
            let read = read.map_err(SinkError::Source)?;
            let encoding = Encoding::of_labels(coord, read.dtype, &read.decode).map_err(&fault)?;
            labels.push((arrays.len(), encoding.labels(&new).map_err(&fault)?));
            arrays.push(Growing::new(&documents, &folder, &coord.name, 0, more, encoding)?);
        }
        let (after, dim) = (before + more, dim.to_string());
        let (lease, _lock) = (None, None);
        Ok(Append { folder, documents, root, dim, arrays, labels, before, after, lease, _lock })
    }

    /// True if the store at `url` lists an append of that mark.
    ///
    /// # Errors
    /// A store that does not exist; errors of the storage.
    pub async fn is_committed(
        url: &str,
        mark: &str,
        options: &Options,
        stores: &Stores,
    ) -> Result<bool, SinkError> {
        let (documents, _) = Documents::read(&folder_at(url, options, stores)?).await?;
        Ok(documents.has_append(mark))
    }

    /// The outcome of the attempt with this mark, which had found `before` cells along the dimension. `before` is
    /// `None` if only a commit is in question.
    pub fn earlier(&self, mark: &str, before: Option<u64>) -> Earlier {
        match before {
            _ if self.documents.has_append(mark) => Earlier::Committed,
            Some(before)
                if self.before > before && !self.documents.has_append_at(&self.dim, before) =>
            {
                Earlier::Unknown
            }
            _ => Earlier::Absent,
        }
    }

    /// Cells along the dimension before the append.
    pub fn before(&self) -> u64 {
        self.before
    }

    /// Cells along the dimension after it.
    pub fn after(&self) -> u64 {
        self.after
    }

    /// The boxes of the result `name` that [`Append::put`] takes, in any order: each has the new cells of one object.
    /// Empty if the result does not grow.
    pub fn boxes(&self, name: &str) -> impl Iterator<Item = Region> + use<> {
        let growing = self.arrays.iter().find(|a| a.name == name);
        let grid = growing.map_or(Grid { axes: Default::default() }, |growing| {
            let mut grid = Grid::regular(&growing.shape, &growing.object);
            let (len, chunk) = (self.after - self.before, growing.object[growing.axis]);
            let first = chunk - self.before % chunk;
            grid.axes[growing.axis] = AxisGrid { len, first, chunk };
            grid
        });
        let many = growing.map_or(0, |_| grid.count());
        (0..many).map(move |i| grid.region(&grid.unravel(i)))
    }

    /// Writes the cells of a box of the result `name`: dense, row-major, little-endian, with a validity byte for each
    /// if it can be masked.
    ///
    /// # Errors
    /// Cells that the array's type or packing cannot hold; errors of the storage.
    pub async fn put(
        &self,
        name: &str,
        region: &Region,
        cells: &[u8],
        valid: Option<&[u8]>,
    ) -> Result<(), SinkError> {
        let Some(growing) = self.arrays.iter().find(|a| a.name == name) else {
            return Err(internal(name, "it does not grow"));
        };
        let stored = growing.encoding.store(cells, valid).map_err(|reason| SinkError::Format {
            format: "the store",
            name: name.into(),
            reason,
            hint: "cast or round the cells, or write a new store with COPY".into(),
        })?;
        let mut at = region.clone();
        at.start[growing.axis] += self.before;
        at.end[growing.axis] += self.before;
        self.write(growing, &at, &stored).await
    }

    /// Writes stored cells of a region of the grown array, object by object.
    async fn write(&self, growing: &Growing, at: &Region, cells: &[u8]) -> Result<(), SinkError> {
        let grid = Grid::regular(&growing.shape, &growing.object);
        for index in indices(&grid.overlapping(at)) {
            let whole = grid.region(&index);
            let Some(new) = whole.intersect(at) else { continue };
            let key = format!("{}/{}", growing.name, growing.array.chunk_key(&index).as_str());
            let has_old = whole.start[growing.axis] < self.before;
            let old = match has_old && self.folder.is_remote() {
                true => Some(self.folder.version(&key).await?.map_or(Mode::Create, Mode::Update)),
                false => None,
            };
            let object = growing.object(&index, &whole, &new, (at, cells), self.before).await?;
            self.check_lock()?;
            self.put_object(&key, object, old).await?;
        }
        Ok(())
    }

    /// Puts an object. In a bucket the object replaces the one that its old cells were read from (`old`), or, beyond
    /// the old length, an object that a killed append left. So a late request of an append that has lost the lock is
    /// refused.
    async fn put_object(
        &self,
        key: &str,
        object: Vec<u8>,
        old: Option<Mode>,
    ) -> Result<(), SinkError> {
        if !self.folder.is_remote() {
            return self.folder.put(key, object, Mode::Replace).await.map(drop);
        }
        let object = Bytes::from(object);
        let is_new = old.is_none();
        match self.folder.put_bytes(key, object.clone(), old.unwrap_or(Mode::Create)).await {
            Err(SinkError::Exists { .. }) => {}
            put => return put.map(drop),
        }
        let left = if is_new { self.folder.version(key).await? } else { None };
        let Some(left) = left else {
            return Err(SinkError::Changed { what: self.folder.url(key) });
        };
        self.folder.put_bytes(key, object, Mode::Update(left)).await.map(drop)
    }

    /// Gives the store its new length, and lists the append with `mark`, which no other append has.
    ///
    /// # Errors
    /// [`SinkError::Changed`] if another writer changed the store, which is then as that writer left it; errors of the
    /// storage, after which the store may have the new length: [`Append::is_committed`] returns which.
    pub async fn finish(mut self, mark: &str) -> Result<u64, SinkError> {
        let done = self.commit(mark).await;
        if done.is_ok()
            && let Err(e) = self.update_arrays().await
        {
            // The append is done, and most readers take lengths from the root.
            let store = self.folder.display();
            tracing::warn!(store, error = %e, "the documents of single arrays have the old length until the next append");
        }
        let length = self.after;
        self.abandon().await;
        done.map(|()| length)
    }

    /// Gives the lock back and leaves the store as it was; chunks beyond its length stay.
    pub async fn abandon(mut self) {
        if let Some(lease) = self.lease.take() {
            lease.release().await;
        }
    }

    fn check_lock(&self) -> Result<(), SinkError> {
        self.lease.as_ref().map_or(Ok(()), Lease::check)
    }

    async fn commit(&mut self, mark: &str) -> Result<(), SinkError> {
        for (i, labels) in &self.labels {
            let growing = &self.arrays[*i];
            let at = Region { start: Dims::from_slice(&[self.before]), end: growing.shape.clone() };
            if !at.is_empty() {
                self.write(growing, &at, labels).await?;
            }
        }
        self.check_lock()?;
        if self.documents.consolidate() {
            // From now on readers see the old lengths in one document.
            self.put_root().await?;
        }
        for growing in &self.arrays {
            self.documents.set_shape(&growing.name, &growing.shape);
        }
        self.documents.add_append(mark, &self.dim, self.before);
        self.put_root().await
    }

    /// Replaces the root's document, which has to be the document that was last read or put.
    async fn put_root(&mut self) -> Result<(), SinkError> {
        let (key, text) = (self.documents.root_key(), Bytes::from(self.documents.root()));
        let changed = || SinkError::Changed { what: self.folder.url(key) };
        let mode = match &self.root {
            None => Mode::Create,
            Some((stored, version)) => {
                // A directory has no versions that the put could compare.
                if !self.folder.is_remote() && self.folder.get(key).await?.as_ref() != Some(stored)
                {
                    return Err(changed());
                }
                Mode::Update(version.clone())
            }
        };
        match self.folder.put_bytes(key, text.clone(), mode).await {
            Err(SinkError::Exists { .. }) => Err(changed()),
            put => {
                self.root = Some((text, put?));
                Ok(())
            }
        }
    }

    /// Gives the documents of the arrays their new lengths.
    async fn update_arrays(&self) -> Result<(), SinkError> {
        fail::point("append.committed").map_err(|e| SinkError::io(self.folder.display(), &e))?;
        for growing in &self.arrays {
            if let Some((key, text)) = self.documents.array(&growing.name) {
                self.check_lock()?;
                self.folder.put(&key, text, Mode::Replace).await?;
            }
        }
        Ok(())
    }
}

/// The store at `url`, to be written.
fn folder_at(url: &str, options: &Options, stores: &Stores) -> Result<Folder, SinkError> {
    let location = Location::parse(url)?;
    check_writable(&location)?;
    check_no_archive(&location.display)?;
    Ok(Folder::below(&location, stores.at(&location, options, Access::Write)?))
}

fn internal(what: &str, reason: &str) -> SinkError {
    SinkError::Internal { what: what.into(), reason: reason.into() }
}

/// Checks that a result fits its array.
fn check_item(
    item: &Item,
    v: &tessera_planner::catalog::Variable,
    axis: usize,
    dataset: &tessera_planner::catalog::Dataset,
) -> Result<(), SinkError> {
    let fault = |reason: String, hint: &str| SinkError::Names { reason, hint: hint.into() };
    let names = |dims: &mut dyn Iterator<Item = Option<&str>>| -> String {
        dims.map(|d| d.unwrap_or("?").to_string()).collect::<Vec<_>>().join(", ")
    };
    let own = item.dims.iter().map(|d| d.name.as_deref());
    if !own.clone().eq(v.dims.iter().map(|d| d.as_deref())) {
        return Err(fault(
            format!(
                "`{}` has the dimensions [{}], in the store it has [{}]",
                item.name,
                names(&mut own.clone()),
                names(&mut v.dims.iter().map(|d| d.as_deref()))
            ),
            "`transpose` changes their order",
        ));
    }
    for (a, dim) in item.dims.iter().enumerate().filter(|(a, _)| *a != axis) {
        let (is, was) = (item.shape[a], v.source.shape[a]);
        let name = dim.name.as_deref().unwrap_or("?");
        if is != was {
            return Err(fault(
                format!("dimension `{name}` has length {is}, in the store {was}"),
                "only the dimension after `append` may have another length",
            ));
        }
        let (Some(new), Some(old)) = (&dim.coord, dataset.index_coord(name)) else { continue };
        if new.values != old.values {
            return Err(fault(
                format!("the labels of `{name}` are not those of the store"),
                "select the same labels, or `values(x)` to append without looking at them",
            ));
        }
    }
    let dtype = v.dtype();
    // A packed variable takes floats of any width.
    let is_packed = v.decode.unpack.is_some() && item.dtype.is_float();
    if !item.dtype.fits(dtype) && !is_packed {
        return Err(fault(
            format!("`{}` is {}, in the store {}", item.name, item.dtype.name(), dtype.name()),
            "a cast changes its type: `x::float32`",
        ));
    }
    Ok(())
}

/// The labels of the results along the dimension, for a coordinate of the store.
fn new_labels(items: &[Item], dim: &str, coord: &Coord) -> Option<CoordValues> {
    items.iter().flat_map(|i| &i.dims).find_map(|d| {
        let own = d.coord.as_ref().filter(|c| *c.dim == *dim || d.name.as_deref() == Some(dim))?;
        (own.name == coord.name).then(|| own.values.clone())
    })
}

impl Growing {
    fn new(
        documents: &Documents,
        folder: &Folder,
        name: &str,
        axis: usize,
        more: u64,
        encoding: Encoding,
    ) -> Result<Growing, SinkError> {
        let meta = documents.meta(name)?;
        let unsupported = |what: &str| SinkError::Option {
            option: "append",
            reason: format!("`{name}` has {what}, which is not written"),
            hint: Some("write a new store with COPY".into()),
        };
        // The codecs of the inner chunks of a shard are written by zarrs alone.
        let is_outer = meta.taken.tail.is_empty() || meta.shard.is_none();
        if meta.taken.has_filters || !is_outer || !tail::is_written(&meta.taken.tail) {
            return Err(unsupported("filters of numcodecs"));
        }
        if !matches!(meta.raw, Raw::Plain(_)) {
            return Err(unsupported("a type"));
        }
        let mut shape = meta.shape.clone();
        shape[axis] += more;
        let object = match &meta.shard {
            Some(shard) => meta.unit.iter().zip(&shard.counts).map(|(u, n)| u * n).collect(),
            None => meta.unit.clone(),
        };
        let Some(array) = meta.zarr else { return Err(internal(name, "it is not of Zarr")) };
        let reader = folder.reader(name, documents.meta(name)?, encoding.stored());
        let tail = meta.taken.tail;
        Ok(Growing { name: name.into(), axis, shape, object, array, encoding, tail, reader })
    }

    /// The encoded object `index`, which spans `whole`: the cells `new` of `cells` (those of the region `at`), the old
    /// ones before `before`, and the fill value.
    async fn object(
        &self,
        index: &[u64],
        whole: &Region,
        new: &Region,
        (at, cells): (&Region, &[u8]),
        before: u64,
    ) -> Result<Vec<u8>, SinkError> {
        use crate::source::boxes::copy_box;
        let size = self.encoding.stored().size();
        let fill = self.array.fill_value().as_ne_bytes();
        let count = self.object.iter().product::<u64>() as usize;
        let mut out = fill.repeat(count);
        let origin: Dims = index.iter().zip(&self.object).map(|(i, n)| i * n).collect();
        // The part of the object that the store has already.
        let mut old = whole.clone();
        old.end[self.axis] = old.end[self.axis].min(before);
        if !old.is_empty() && old.start[self.axis] < old.end[self.axis] {
            let stored = self.reader.read(&old).await.map_err(SinkError::Source)?;
            let (from, to) = (vec![0; old.rank()], old.relative_to(&origin).start);
            copy_box(
                &stored,
                (&old.shape(), &from),
                &mut out,
                (&self.object, &to),
                &old.shape(),
                size,
            );
        }
        let (from, to) = (new.relative_to(&at.start).start, new.relative_to(&origin).start);
        copy_box(cells, (&at.shape(), &from), &mut out, (&self.object, &to), &new.shape(), size);
        let (dtype, fill) = (self.array.data_type(), self.array.fill_value());
        let cells = ArrayBytes::new_flen(Cow::Owned(out));
        let bytes = encoded(&self.array.codecs(), cells, &self.object, dtype, fill)
            .map_err(|reason| internal(&self.name, &reason))?;
        tail::encode(&self.tail, bytes)
            .ok_or_else(|| internal(&self.name, "its codec is not written"))
    }
}
