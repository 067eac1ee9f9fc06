//! Arrays and tables of the program that embeds the engine.
//!
//! ```text
//!   x = np.ones((1000, 500))
//!   SELECT mean(x, 0) FROM x        a name that the catalog lacks ─▶ Locals ─▶ the caller's memory, where it is
//! ```
//! A statement gets them with its [`Handle`](crate::Handle) and reads their memory without a copy of the whole: arrays
//! in row-major order are read chunk by chunk in place, others by copies of the boxes that it needs. The memory is not
//! charged to the engine's limit. It must not change while a statement reads it: the engine would not crash, but the
//! result of the statement would be undefined.
//! A client of a server [sends](Local::send) them first. The server's session stores the uploads, and lends them to the
//! statement ([`Engine::lend`](crate::Engine::lend)).

mod send;

use crate::error::Error;
use crate::session::{Found, Temp, array_number, bare, pick, rows_error};
use arrow::buffer::Buffer;
use arrow::datatypes::SchemaRef;
use arrow::record_batch::RecordBatch;
use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;
use tessera_cells::tables::Table;
use tessera_exec::chunk::{Chunk, Field};
use tessera_exec::task::{Lent, Origin, Resident, Sources};
use tessera_planner::catalog::{Attrs, Coord, Dataset, Decode, SourceRef, Variable};
use tessera_planner::dtype::DType;
use tessera_planner::grid::Grid;
use tessera_planner::region::cells;
use tessera_storage::source::slabs;

/// An array of the caller.
#[derive(Debug)]
pub struct LocalArray {
    /// Name in its dataset.
    pub name: String,
    /// Name of each dimension; `None` for one without a name.
    pub dims: Vec<Option<String>>,
    /// Type of the cells.
    pub dtype: DType,
    /// Length of each axis.
    pub shape: Vec<u64>,
    /// Cells from one to the next along each axis; negative goes backward, 0 repeats.
    pub strides: Vec<i64>,
    /// Memory that holds all cells.
    pub data: Buffer,
    /// Cells between the beginning of the memory and the first cell.
    pub offset: i64,
    /// One byte for each cell in row-major order, 0 where the cell is masked; only for arrays in row-major order.
    pub valid: Option<Buffer>,
    /// Attributes.
    pub attrs: Attrs,
    /// True for a coordinate of several dimensions, or of none: it is reached by its name and adds no rows.
    pub is_auxiliary: bool,
}

/// Relations of the caller, by name.
#[derive(Debug, Clone, Default)]
pub struct Locals(Arc<BTreeMap<String, Local>>);

/// A dataset or a table of the caller.
#[derive(Clone)]
pub struct Local {
    kind: Kind,
    goes_first: bool,
}

#[derive(Clone)]
enum Kind {
    Dataset {
        dataset: Arc<Dataset>,
        origins: Vec<(SourceRef, Origin)>,
        arrays: Arc<Vec<LocalArray>>,
    },
    Table {
        table: Table,
        batches: Arc<Vec<RecordBatch>>,
    },
    /// A store that the caller has opened: the engine reads it by itself.
    Stored(Arc<str>),
    /// A temp tensor or temp table of a server's session.
    Kept(Arc<Temp>),
}

/// A relation that a statement opens.
pub(crate) enum Opened<'a> {
    Found(Found),
    /// The statement opens the store at this URL.
    Stored(&'a str),
    /// The session opens it like its own temp relations.
    Kept(&'a Arc<Temp>),
}

impl fmt::Debug for Local {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.kind {
            Kind::Dataset { dataset, .. } => f.debug_tuple("Local").field(&dataset.name).finish(),
            Kind::Table { table, .. } => f.debug_tuple("Local").field(&table.schema()).finish(),
            Kind::Stored(url) => f.debug_tuple("Local").field(url).finish(),
            Kind::Kept(temp) => f.debug_tuple("Local").field(temp).finish(),
        }
    }
}

impl FromIterator<(String, Local)> for Locals {
    fn from_iter<T: IntoIterator<Item = (String, Local)>>(all: T) -> Self {
        Locals(Arc::new(all.into_iter().collect()))
    }
}

impl Locals {
    /// Finds a relation by its name without quotes. An exact match wins; otherwise the name must match exactly one
    /// relation without regard to case.
    pub(crate) fn get(&self, name: &str) -> Option<&Local> {
        pick(name, self.names()).and_then(|name| self.0.get(&name))
    }

    /// A relation, and the name that it has here, by its name in a statement.
    pub fn named(&self, relation: &str) -> Option<(&str, &Local)> {
        let name = pick(&bare(relation), self.names())?;
        self.0.get_key_value(&name).map(|(name, local)| (name.as_str(), local))
    }

    /// True if the caller has none.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Their names.
    pub fn names(&self) -> impl Iterator<Item = &str> + Clone {
        self.0.keys().map(String::as_str)
    }
}

impl Local {
    fn new(kind: Kind) -> Self {
        Local { kind, goes_first: false }
    }

    /// The relation, before one of its name in the catalog. Without this, names of the catalog go first.
    pub fn first(self) -> Self {
        Local { goes_first: true, ..self }
    }

    /// True if it goes before a relation of its name in the catalog.
    pub fn goes_first(&self) -> bool {
        self.goes_first
    }

    /// A dataset of arrays, with the labels of dimensions.
    ///
    /// # Errors
    /// `request` if an array's memory does not hold its cells, if the lengths of a dimension differ, or if labels do
    /// not fit a dimension.
    pub fn dataset(
        name: &str,
        arrays: Vec<LocalArray>,
        coords: Vec<Coord>,
        attrs: Attrs,
    ) -> Result<Self, Error> {
        let coords = coords.into_iter().map(Arc::new).collect();
        let dataset = Dataset { name: name.into(), coords, attrs, ..Dataset::default() };
        Local::with_arrays(dataset, arrays)
    }

    /// A dataset without variables, and the arrays that are these.
    ///
    /// # Errors
    /// Errors of [`Local::dataset`].
    pub fn with_arrays(mut dataset: Dataset, arrays: Vec<LocalArray>) -> Result<Self, Error> {
        let name = dataset.name.clone();
        let mut lengths: BTreeMap<&str, u64> = BTreeMap::new();
        for array in &arrays {
            for (dim, len) in array.dims.iter().zip(&array.shape) {
                let Some(dim) = dim else { continue };
                if *lengths.entry(dim).or_insert(*len) != *len {
                    let reason =
                        format!("`{dim}` of `{name}` has lengths {} and {len}", lengths[&**dim]);
                    return Err(Error::Request { reason });
                }
            }
        }
        for coord in &dataset.coords {
            let labels = coord.values.len() as u64;
            if let Some(len) = lengths.get(&*coord.dim).filter(|len| **len != labels) {
                let dim = &coord.dim;
                let reason = format!("`{dim}` of `{name}` has {labels} labels for {len} positions");
                return Err(Error::Request { reason });
            }
        }
        let number = array_number();
        let mut origins = Vec::new();
        for array in &arrays {
            let (source, origin) = array.source(&name, number)?;
            let variables = match array.is_auxiliary {
                true => {
                    dataset.coordinates.insert(array.name.as_str().into());
                    &mut dataset.auxiliary
                }
                false => &mut dataset.variables,
            };
            variables.push(Variable {
                name: array.name.as_str().into(),
                dims: array.dims.iter().map(|dim| dim.as_deref().map(Arc::from)).collect(),
                source: source.clone(),
                decode: Decode::default(),
                attrs: array.attrs.clone(),
            });
            origins.push((source, origin));
        }
        let (dataset, arrays) = (Arc::new(dataset), Arc::new(arrays));
        Ok(Local::new(Kind::Dataset { dataset, origins, arrays }))
    }

    /// A table of rows.
    ///
    /// # Errors
    /// DataFusion's, if a batch has other columns than `schema`.
    pub fn table(schema: SchemaRef, batches: Vec<RecordBatch>) -> Result<Self, Error> {
        let table = Table::of_batches(schema, batches.clone()).map_err(rows_error)?;
        Ok(Local::new(Kind::Table { table, batches: Arc::new(batches) }))
    }

    /// A dataset in files, by its URL: the engine reads the files instead of the caller's variable.
    pub fn stored(url: &str) -> Self {
        Local::new(Kind::Stored(url.into()))
    }

    /// Makes the temp tensor or temp table of a session available to statements of other sessions.
    pub(crate) fn kept(temp: Arc<Temp>) -> Self {
        Local::new(Kind::Kept(temp))
    }

    pub(crate) fn open(&self, sources: &mut Sources) -> Opened<'_> {
        match &self.kind {
            Kind::Dataset { dataset, origins, .. } => {
                for (source, origin) in origins {
                    sources.add(source.clone(), origin.clone());
                }
                Opened::Found(Found::Dataset(dataset.clone()))
            }
            Kind::Table { table, .. } => Opened::Found(Found::Table(table.clone())),
            Kind::Stored(url) => Opened::Stored(url),
            Kind::Kept(temp) => Opened::Kept(temp),
        }
    }
}

impl LocalArray {
    fn is_row_major(&self) -> bool {
        let mut step = 1;
        self.shape.iter().zip(&self.strides).rev().all(|(len, stride)| {
            let fits = *len <= 1 || *stride == step;
            step *= (*len).max(1) as i64;
            fits
        })
    }

    /// Fails unless the memory holds all cells.
    fn check(&self, dataset: &str) -> Result<u64, Error> {
        let name = &self.name;
        let fault = |reason: String| Error::Request {
            reason: format!("`{name}` of `{dataset}`: {reason}"),
        };
        let axes = self.shape.len();
        if self.strides.len() != axes || self.dims.len() != axes {
            return Err(fault(format!(
                "{axes} lengths, {} strides, {} names of dimensions",
                self.strides.len(),
                self.dims.len()
            )));
        }
        let count = cells(&self.shape).ok_or_else(|| fault("too many cells".into()))?;
        let (mut first, mut last) = (i128::from(self.offset), i128::from(self.offset));
        for (len, stride) in self.shape.iter().zip(&self.strides) {
            let reach = i128::from(*stride) * i128::from(len.saturating_sub(1));
            if reach < 0 { first += reach } else { last += reach }
        }
        let held = self.data.len() / self.dtype.size();
        if count > 0 && (first < 0 || last >= held as i128) {
            return Err(fault(format!(
                "it needs cells {first} to {last} of a memory of {held} cells"
            )));
        }
        if self.valid.as_ref().is_some_and(|valid| valid.len() as u64 != count) {
            return Err(fault("its mask has another number of cells".into()));
        }
        Ok(count)
    }

    fn source(&self, dataset: &str, number: u64) -> Result<(SourceRef, Origin), Error> {
        let count = self.check(dataset)?;
        let size = self.dtype.size();
        let is_aligned = self.data.as_ptr().align_offset(size) == 0;
        // The grid of an `.npy` file, so that an array has the bits of its file.
        let grid = slabs(&self.shape, size as u64, false);
        let (kind, origin) = match self.is_row_major() && is_aligned {
            true => ("temp", Origin::Resident(self.resident(&grid)?)),
            false if self.valid.is_none() => {
                let (data, offset) = (self.data.clone(), self.offset);
                let lent = Lent::new(self.dtype, data, offset, &self.strides);
                ("local", Origin::Lent(Arc::new(lent)))
            }
            false => {
                let reason = format!("`{}` has a mask and is not in row-major order", self.name);
                return Err(Error::Request { reason });
            }
        };
        let source = SourceRef {
            url: format!("{kind}:{dataset}@{number}"),
            path: self.name.clone(),
            dtype: self.dtype,
            shape: self.shape.iter().copied().collect(),
            grid,
            nullable: self.valid.is_some() && count > 0,
            version: None,
            plain: true,
        };
        Ok((source, origin))
    }

    /// The array in row-major order, whose chunks are parts of the caller's memory.
    fn resident(&self, grid: &Grid) -> Result<Arc<Resident>, Error> {
        let size = self.dtype.size();
        let mut chunks = Vec::with_capacity(grid.count() as usize);
        let mut at = self.offset as usize;
        for number in 0..grid.count() {
            let shape = grid.region(&grid.unravel(number)).shape();
            let count = cells(&shape).unwrap_or(0) as usize;
            let data = self.data.slice_with_length(at * size, count * size);
            let mut fields = vec![Field::new(self.dtype, data).map_err(Error::stage)?];
            if let Some(valid) = &self.valid {
                let first = at - self.offset as usize;
                let valid = valid.slice_with_length(first, count);
                fields.push(Field::new(DType::Bool, valid).map_err(Error::stage)?);
            }
            chunks.push(Arc::new(Chunk::new(&shape, fields).map_err(Error::stage)?));
            at += count;
        }
        Ok(Resident::new(grid.clone(), chunks))
    }
}
