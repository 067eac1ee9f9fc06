//! Stored arrays as the planner sees them: names, labels, chunking, and the decoding of raw cells.

mod joined;
mod json;
mod reads;
mod texts;

pub use json::{PythonJson, as_float, float, float_word, parse_json};
pub use reads::Reads;
pub use texts::Texts;

use crate::dtype::{Calendar, DType};
use crate::grid::Grid;
use crate::region::Dims;
use crate::scalar::Scalar;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// Attributes of a dataset or a variable: JSON values by name. NaN and infinities are those of [`float`].
pub type Attrs = BTreeMap<String, serde_json::Value>;

/// A stored array as a plan names it. Equal values refer to the same array: this is the key of a read.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct SourceRef {
    /// URL of the store, without credentials; `temp:…` names an array in memory.
    pub url: String,
    /// Path of the array inside the store; empty if the store is the array.
    pub path: String,
    /// Type of the raw cells.
    pub dtype: DType,
    /// Length of each axis.
    pub shape: Dims,
    /// Chunks of the array in its store.
    pub grid: Grid,
    /// True if the reader supplies masks (arrays in memory that were computed with masks).
    pub nullable: bool,
    /// Version of the metadata at bind (an etag, or size and time of the file), if the store reports one.
    pub version: Option<String>,
    /// True if a local file stores the cells of each chunk in memory layout: the cost of reading a box depends on the
    /// box, not on the chunks that it touches.
    pub plain: bool,
}

impl SourceRef {
    /// True for arrays that live in memory in chunks of `grid`: reading a whole chunk is free.
    pub fn is_resident(&self) -> bool {
        self.url.starts_with("temp:")
    }

    /// Contiguous runs of a box of `len` cells in a stored chunk, for a box that lies within the chunk.
    pub fn lines(&self, len: &[u64]) -> Lines {
        let size = self.dtype.size() as u64;
        let (mut bytes, mut row) = (size, size);
        let mut axes =
            self.grid.axes.iter().zip(len).map(|(a, &n)| (a.chunk, n.min(a.chunk))).rev();
        for (chunk, len) in axes.by_ref() {
            bytes = bytes.saturating_mul(len);
            row = row.saturating_mul(chunk);
            if len < chunk {
                break;
            }
        }
        let is_one = axes.all(|(_, len)| len <= 1);
        Lines { bytes, gap: if is_one { 0 } else { row - bytes } }
    }

    /// Upper bound on the memory for [reads](Reads) of a box of `len` cells besides the box and
    /// [`Reads::SCRATCH_BYTES`], if the source is [plain](SourceRef::plain) and its lines are
    /// [read alone](Lines::is_alone).
    pub fn window(&self, len: &[u64]) -> u64 {
        // Rows of whole chunks are read straight to their place.
        let mut rest = self.grid.axes.iter().zip(len).skip(1);
        match rest.all(|(a, &n)| a.chunk == a.len && n == a.len) {
            true => 0,
            false => self.grid.chunk_bytes_max(self.dtype.size()).min(Reads::WINDOW_BYTES),
        }
    }

    /// The reads of a box of `len` cells in a stored chunk of `chunk` cells, for a box of `target` cells, within the
    /// memory that plans have for them. A stored chunk may be longer than the array, and so than one of the grid.
    pub fn reads(&self, chunk: &[u64], len: &[u64], target: &[u64]) -> Reads {
        let most = self.window(target).max(Reads::SCRATCH_BYTES);
        Reads::new(chunk, len, target, self.dtype.size() as u64, most)
    }
}

/// Contiguous runs of bytes that hold a box of cells.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Lines {
    /// Length of a run.
    pub bytes: u64,
    /// Bytes between two runs; 0 if there is one run.
    pub gap: u64,
}

impl Lines {
    /// Shorter runs are read together with the gap: a read call costs about as much as reading this many bytes.
    const ALONE_BYTES: u64 = 2 << 10;
    /// Upper bound on the gap that is worth prefetching from a disk.
    const AHEAD_BYTES: u64 = 256 << 10;

    /// True if each run is worth a read of its own.
    pub fn is_alone(&self) -> bool {
        self.bytes >= Self::ALONE_BYTES
    }

    /// True if the gaps are prefetched with the runs: a disk delivers them in the time of a seek to the next run.
    pub fn is_ahead(&self) -> bool {
        (1..=Self::AHEAD_BYTES).contains(&self.gap)
    }

    /// True if runs are so long that a disk reads them separately as fast as the whole file.
    pub fn is_long(&self) -> bool {
        self.bytes >= Self::AHEAD_BYTES
    }
}

/// Decoding of raw cells into values: CF's packing and missing values, applied in the order of the fields.
///
/// # Source
/// CF Conventions 1.11, sections 2.5.1 and 8.1; the resulting types are xarray's (`float32` for packed integers of up
/// to 16 bits without an offset and `float32` factors, else `float64`).
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Decode {
    /// Raw values that mean "missing" (`_FillValue`, `missing_value`, Zarr v2's `fill_value`); NaN means NaN cells.
    pub missing: Vec<Scalar>,
    /// Smallest raw value that is not missing.
    pub valid_min: Option<Scalar>,
    /// Largest raw value that is not missing.
    pub valid_max: Option<Scalar>,
    /// Result type, factor and offset: `raw * scale + offset`.
    pub unpack: Option<Unpack>,
    /// A time axis: the raw number counts `unit` from `origin`.
    pub time: Option<TimeUnits>,
    /// An array of `bool` of the same shape: true where the cell is not missing.
    pub valid: Option<Arc<SourceRef>>,
}

impl Decode {
    /// True if raw cells are the values.
    pub fn is_identity(&self) -> bool {
        *self == Decode::default()
    }
}

/// `scale_factor` and `add_offset`.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Unpack {
    /// Type of the result: `float32` or `float64`.
    pub dtype: DType,
    /// `scale_factor`.
    pub scale: f64,
    /// `add_offset`, added after scaling.
    pub offset: f64,
}

/// CF's `units` of a time: `hours since 1900-01-01`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct TimeUnits {
    /// Nanoseconds in one unit: 1, or a multiple of 1000.
    pub unit_ns: i64,
    /// Microseconds from 1970-01-01 of the calendar to the reference.
    pub origin_us: i64,
    /// Calendar of the reference and of the decoded times.
    pub calendar: Calendar,
}

/// A stored variable with its labels.
#[derive(Debug, Clone, PartialEq)]
pub struct Variable {
    /// Name in its dataset.
    pub name: Arc<str>,
    /// Names of its dimensions; `None` for a dimension that the file does not name.
    pub dims: Vec<Option<Arc<str>>>,
    /// The stored array.
    pub source: SourceRef,
    /// Decoding of its raw cells.
    pub decode: Decode,
    /// Attributes, without those consumed by decoding.
    pub attrs: Attrs,
}

impl Variable {
    /// The type of its decoded cells.
    pub fn dtype(&self) -> DType {
        match (&self.decode.time, &self.decode.unpack) {
            (Some(time), _) => DType::Datetime(time.calendar),
            (None, Some(unpack)) => unpack.dtype,
            (None, None) => self.source.dtype,
        }
    }
}

/// The labels along one dimension, read at bind.
#[derive(Debug, Clone, PartialEq)]
pub struct Coord {
    /// Name of the coordinate, usually that of its dimension.
    pub name: Arc<str>,
    /// Dimension that the coordinate labels.
    pub dim: Arc<str>,
    /// One label for each position of the dimension.
    pub values: CoordValues,
    /// Attributes (units, long_name, …).
    pub attrs: Attrs,
}

/// An array of a dataset whose values cannot be read, with the reason.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Unreadable {
    /// Name in the dataset.
    pub name: Arc<str>,
    /// Dimensions and lengths, as far as the metadata give them.
    pub dims: Vec<(Option<Arc<str>>, u64)>,
    /// Code of the error.
    pub code: &'static str,
    /// Message of the error; it names the array.
    pub reason: String,
    /// How to resolve the error, if known.
    pub hint: Option<String>,
}

/// Labels that exist but cannot be read: the positions of the dimension are no substitute for them.
#[derive(Debug, Clone)]
pub struct NoLabels {
    /// The unreadable coordinate.
    pub of: Arc<Unreadable>,
    /// Positions in the stored coordinate.
    at: Positions,
    len: usize,
}

/// Positions; a run needs no memory, whatever its length.
#[derive(Debug, Clone)]
enum Positions {
    Run { start: i64, step: i64 },
    List(Arc<[u64]>),
}

impl NoLabels {
    /// All `len` labels of a coordinate.
    pub fn new(of: Arc<Unreadable>, len: usize) -> Self {
        NoLabels { of, at: Positions::Run { start: 0, step: 1 }, len }
    }

    fn position(&self, i: usize) -> u64 {
        match &self.at {
            Positions::Run { start, step } => (start + step * i as i64) as u64,
            Positions::List(at) => at[i],
        }
    }

    fn take(&self, positions: &[u64]) -> Self {
        let at = positions.iter().map(|&i| self.position(i as usize)).collect();
        NoLabels { of: self.of.clone(), at: Positions::List(at), len: positions.len() }
    }

    fn slice(&self, start: i64, step: i64, len: u64) -> Self {
        match &self.at {
            Positions::Run { start: first, step: each } => NoLabels {
                of: self.of.clone(),
                at: Positions::Run { start: first + each * start, step: each * step },
                len: len as usize,
            },
            Positions::List(_) => self.take(&run(start, step, len)),
        }
    }
}

fn run(start: i64, step: i64, len: u64) -> Vec<u64> {
    (0..len as i64).map(|i| (start + step * i) as u64).collect()
}

impl PartialEq for NoLabels {
    /// Equal positions of the same coordinate have equal labels, whatever the labels are.
    fn eq(&self, other: &Self) -> bool {
        if !Arc::ptr_eq(&self.of, &other.of) || self.len != other.len {
            return false;
        }
        match (&self.at, &other.at) {
            (Positions::Run { start: a, step: s }, Positions::Run { start: b, step: t }) => {
                self.len == 0 || a == b && (self.len == 1 || s == t)
            }
            _ => (0..self.len).all(|i| self.position(i) == other.position(i)),
        }
    }
}

/// The label of a time coordinate that is missing: NumPy's NaT.
pub const NAT: i64 = i64::MIN;

/// Labels of one type. A NaN or missing label equals another NaN or missing label.
#[derive(Debug, Clone)]
pub enum CoordValues {
    /// Integers, with their type in the file; those of `uint64` as the `int64` of the same bits
    /// ([`CoordValues::integer`]).
    Int(DType, Arc<[i64]>),
    /// Floats, with their type in the file (a `float32` label is widened exactly).
    Float(DType, Arc<[f64]>),
    /// Moments, microseconds since 1970-01-01 of the calendar; [`NAT`] where the label is missing.
    Time(Calendar, Arc<[i64]>),
    /// Strings.
    Text(Texts),
    /// Labels that cannot be read: using them is an error.
    Unreadable(NoLabels),
}

impl PartialEq for CoordValues {
    fn eq(&self, other: &Self) -> bool {
        let is_same = |(a, b): (&f64, &f64)| a == b || (a.is_nan() && b.is_nan());
        match (self, other) {
            (Self::Int(d, a), Self::Int(e, b)) => d == e && a == b,
            (Self::Float(d, a), Self::Float(e, b)) => {
                d == e && a.len() == b.len() && a.iter().zip(b.iter()).all(is_same)
            }
            (Self::Time(c, a), Self::Time(d, b)) => c == d && a == b,
            (Self::Text(a), Self::Text(b)) => a.first_difference(b).is_none(),
            (Self::Unreadable(a), Self::Unreadable(b)) => a == b,
            _ => false,
        }
    }
}

impl CoordValues {
    /// Number of labels.
    pub fn len(&self) -> usize {
        match self {
            CoordValues::Int(_, v) | CoordValues::Time(_, v) => v.len(),
            CoordValues::Float(_, v) => v.len(),
            CoordValues::Text(v) => v.len(),
            CoordValues::Unreadable(none) => none.len,
        }
    }

    /// The unreadable coordinate, if these labels cannot be read.
    pub fn unreadable(&self) -> Option<&Arc<Unreadable>> {
        match self {
            CoordValues::Unreadable(none) => Some(&none.of),
            _ => None,
        }
    }

    /// True if the label is missing: NULL in SQL.
    pub fn is_missing(&self, i: usize) -> bool {
        match self {
            CoordValues::Time(_, v) => v[i] == NAT,
            CoordValues::Text(v) => v.is_missing(i),
            _ => false,
        }
    }

    /// True if there are no labels.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Element type; `None` for text and for labels that cannot be read.
    pub fn dtype(&self) -> Option<DType> {
        match self {
            CoordValues::Int(d, _) | CoordValues::Float(d, _) => Some(*d),
            CoordValues::Time(c, _) => Some(DType::Datetime(*c)),
            CoordValues::Text(_) | CoordValues::Unreadable(_) => None,
        }
    }

    /// Returns the labels at `positions`, in that order; each position is below `len`.
    pub fn take(&self, positions: &[u64]) -> CoordValues {
        fn pick<T: Clone>(v: &[T], p: &[u64]) -> Arc<[T]> {
            p.iter().map(|&i| v[i as usize].clone()).collect()
        }
        match self {
            CoordValues::Int(d, v) => CoordValues::Int(*d, pick(v, positions)),
            CoordValues::Float(d, v) => CoordValues::Float(*d, pick(v, positions)),
            CoordValues::Time(c, v) => CoordValues::Time(*c, pick(v, positions)),
            CoordValues::Text(v) => CoordValues::Text(v.take(positions)),
            CoordValues::Unreadable(none) => CoordValues::Unreadable(none.take(positions)),
        }
    }

    /// Returns the labels at `start`, `start + step`, …; all of these positions are below `len`.
    pub fn slice(&self, start: i64, step: i64, len: u64) -> CoordValues {
        match self {
            CoordValues::Unreadable(none) => CoordValues::Unreadable(none.slice(start, step, len)),
            other => other.take(&run(start, step, len)),
        }
    }

    /// The number that a stored label of [`CoordValues::Int`] means.
    pub fn integer(dtype: DType, label: i64) -> i128 {
        match dtype {
            DType::UInt64 => i128::from(label as u64),
            _ => i128::from(label),
        }
    }

    /// Returns one label as text, as in headers and JSON.
    pub fn display(&self, i: usize) -> String {
        match self {
            CoordValues::Int(d, v) => Self::integer(*d, v[i]).to_string(),
            CoordValues::Float(DType::Float32, v) => format!("{}", v[i] as f32),
            CoordValues::Float(_, v) => format!("{}", v[i]),
            CoordValues::Time(_, v) if v[i] == NAT => "NULL".into(),
            CoordValues::Time(c, v) => crate::time::format_micros(v[i], *c),
            CoordValues::Text(v) => v.at(i).unwrap_or("NULL").into(),
            CoordValues::Unreadable(none) => format!("(unreadable) {}", none.position(i)),
        }
    }
}

/// Texts of a dataset that are not the labels of a dimension of its variables.
#[derive(Debug, Clone, PartialEq)]
pub struct TextColumn {
    /// Name, dimension, texts and attributes. A text without a dimension is the one label of a dimension of its own name.
    pub coord: Arc<Coord>,
    /// True if they lie along their dimension.
    pub is_along: bool,
    /// True if they are a coordinate of variables.
    pub is_coordinate: bool,
}

impl TextColumn {
    /// Name of the dimension that they lie along, if any.
    pub fn dim(&self) -> Option<&Arc<str>> {
        self.is_along.then_some(&self.coord.dim)
    }
}

/// One dimension of a labelled tensor.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct DimLabel {
    /// Name; `None` for an unnamed dimension (shown as `dim_0`, …).
    pub name: Option<Arc<str>>,
    /// The coordinate along it, if any.
    pub coord: Option<Arc<Coord>>,
}

/// Several variables over shared dimensions: a Zarr group, an `.npz`, one array, or the result of a tensor block.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Dataset {
    /// Name of the dataset in queries.
    pub name: String,
    /// Data variables, sorted by name.
    pub variables: Vec<Variable>,
    /// Coordinates along its dimensions.
    pub coords: Vec<Arc<Coord>>,
    /// Texts without a dimension, each as the one label of a dimension of its own name. No variable is along it.
    pub scalars: Vec<Arc<Coord>>,
    /// Auxiliary coordinates and bounds: variables that are not data. Queries reach them by name; they add no rows.
    pub auxiliary: Vec<Variable>,
    /// Names of the variables and texts that are coordinates of others, such as `lat(y, x)` or a scalar height. The
    /// other auxiliary ones are bounds, grid mappings and the like.
    pub coordinates: BTreeSet<Arc<str>>,
    /// Arrays that cannot be read; a query that uses one fails.
    pub unreadable: Vec<Arc<Unreadable>>,
    /// Names of the nested groups; `url#group` opens one.
    pub groups: Vec<String>,
    /// Attributes of the dataset.
    pub attrs: Attrs,
}

impl Dataset {
    /// Returns the coordinate that is named like its dimension `dim`.
    pub fn index_coord(&self, dim: &str) -> Option<&Arc<Coord>> {
        self.coords.iter().find(|c| &*c.dim == dim && c.name == c.dim)
    }

    /// The texts that are not the labels of a dimension of a variable.
    pub fn texts(&self) -> Vec<TextColumn> {
        let variables = self.variables.iter().chain(&self.auxiliary);
        let dims: BTreeSet<&Arc<str>> = variables.flat_map(|v| v.dims.iter().flatten()).collect();
        let labels_none = |c: &&Arc<Coord>| c.name != c.dim || !dims.contains(&c.dim);
        let along = self.coords.iter().filter(labels_none).map(|coord| (coord, true));
        let alone = self.scalars.iter().map(|coord| (coord, false));
        let of = |(coord, is_along): (&Arc<Coord>, bool)| TextColumn {
            coord: coord.clone(),
            is_along,
            is_coordinate: self.coordinates.contains(&coord.name),
        };
        let texts = along.chain(alone).filter(|(c, _)| matches!(c.values, CoordValues::Text(_)));
        texts.map(of).collect()
    }
}
