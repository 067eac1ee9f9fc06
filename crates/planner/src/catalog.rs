//! What the planner knows of stored arrays: names, labels, chunking, and how raw cells become values.

use crate::dtype::{Calendar, DType};
use crate::grid::Grid;
use crate::region::Dims;
use crate::scalar::Scalar;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::sync::Arc;

/// Attributes of a dataset or a variable, as JSON values under their names.
pub type Attrs = BTreeMap<String, serde_json::Value>;

/// A stored array as a plan names it. Equal values are the same array: the key of a read.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct SourceRef {
    /// Where the store is, without credentials; `temp:…` names an array that lives in memory.
    pub url: String,
    /// The array inside the store; empty if the store is the array.
    pub path: String,
    /// Type of the raw cells.
    pub dtype: DType,
    /// Lengths.
    pub shape: Dims,
    /// The chunks in which the store keeps it.
    pub grid: Grid,
    /// True if the reader itself gives masks (arrays in memory that were computed with masks).
    pub nullable: bool,
    /// Version of the metadata at bind (an etag, or size and time of the file), if the store tells.
    pub version: Option<String>,
    /// True if the cells of each chunk lie in a local file as they do in memory: a box is read for what it holds, not
    /// for the chunks that it touches.
    pub plain: bool,
}

impl SourceRef {
    /// True for arrays that live in memory in chunks of `grid`: reading a whole chunk is free.
    pub fn is_resident(&self) -> bool {
        self.url.starts_with("temp:")
    }

    /// How a box of `len` cells lies in a stored chunk, if it begins and ends within it.
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
}

/// Stretches of bytes that hold a box of cells.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Lines {
    /// Bytes that lie one after another.
    pub bytes: u64,
    /// Bytes between a line and the next one; 0 if there is one line.
    pub gap: u64,
}

impl Lines {
    /// Shorter ones are read with what lies between them: a read takes about as long as reading so much more.
    const ALONE_BYTES: u64 = 2 << 10;
    /// Where less lies between lines it is worth fetching ahead of them from a disk.
    const AHEAD_BYTES: u64 = 256 << 10;

    /// True if each line is worth a read of its own.
    pub fn is_alone(&self) -> bool {
        self.bytes >= Self::ALONE_BYTES
    }

    /// True if what lies between lines is fetched with them, ahead of the reads: a disk gives that in the time that it
    /// takes to find the next line.
    pub fn is_ahead(&self) -> bool {
        (1..=Self::AHEAD_BYTES).contains(&self.gap)
    }

    /// True if lines are so long that a disk gives them one by one as fast as all of a file.
    pub fn is_long(&self) -> bool {
        self.bytes >= Self::AHEAD_BYTES
    }
}

/// How raw cells become values: CF's packing and missing values, in the order of the fields.
///
/// # Source
/// CF Conventions 1.11, sections 2.5.1 and 8.1; the resulting types are xarray's (`float32` for packed integers of up
/// to 16 bits without an offset and `float32` factors, else `float64`).
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Decode {
    /// Raw values that mean "missing" (`_FillValue`, `missing_value`, Zarr v2's `fill_value`); NaN means NaN cells.
    pub missing: Vec<Scalar>,
    /// Raw values below are missing.
    pub valid_min: Option<Scalar>,
    /// Raw values above are missing.
    pub valid_max: Option<Scalar>,
    /// Type to unpack to and the factor and offset: `raw * scale + offset`.
    pub unpack: Option<Unpack>,
    /// A time axis: the raw number counts `unit` from `origin`.
    pub time: Option<TimeUnits>,
    /// An array of `bool` with the same shape, true where the cell is not missing.
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
    /// Factor.
    pub scale: f64,
    /// Offset, added after the factor.
    pub offset: f64,
}

/// CF's `units` of a time: `hours since 1900-01-01`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct TimeUnits {
    /// Nanoseconds of one unit: 1, or a multiple of 1000.
    pub unit_ns: i64,
    /// Microseconds from 1970-01-01 of the calendar to the reference.
    pub origin_us: i64,
    /// The calendar.
    pub calendar: Calendar,
}

/// A stored variable with its labels.
#[derive(Debug, Clone, PartialEq)]
pub struct Variable {
    /// Name in its dataset.
    pub name: Arc<str>,
    /// Names of its dimensions; `None` where the file has none.
    pub dims: Vec<Option<Arc<str>>>,
    /// The stored array.
    pub source: SourceRef,
    /// How to read its cells.
    pub decode: Decode,
    /// Attributes, without those that decoding used up.
    pub attrs: Attrs,
}

/// The labels along one dimension, read at bind.
#[derive(Debug, Clone, PartialEq)]
pub struct Coord {
    /// Name of the coordinate, mostly that of its dimension.
    pub name: Arc<str>,
    /// The dimension.
    pub dim: Arc<str>,
    /// The labels.
    pub values: CoordValues,
    /// Attributes (units, long_name, …).
    pub attrs: Attrs,
}

/// An array of a dataset whose values cannot be read, and why.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Unreadable {
    /// Its name in the dataset.
    pub name: Arc<str>,
    /// Its dimensions and lengths, as far as its metadata give them.
    pub dims: Vec<(Option<Arc<str>>, u64)>,
    /// The code of the error.
    pub code: &'static str,
    /// The error: it names the array.
    pub reason: String,
    /// The way out, if there is one.
    pub hint: Option<String>,
}

/// Labels that a dimension has and that cannot be read: its positions are no substitute for them.
#[derive(Debug, Clone)]
pub struct NoLabels {
    /// The coordinate.
    pub of: Arc<Unreadable>,
    /// Positions in the stored coordinate.
    at: Positions,
    len: usize,
}

/// Positions: a run takes no memory, however long a dimension is.
#[derive(Debug, Clone)]
enum Positions {
    Run { start: i64, step: i64 },
    List(Arc<[u64]>),
}

impl NoLabels {
    /// All labels of a coordinate of that length.
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
    /// The same positions of the same coordinate have the same labels, whatever these are.
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

/// Labels of one type; a label that is NaN or missing equals another one.
#[derive(Debug, Clone)]
pub enum CoordValues {
    /// Integers, of the type in the file.
    Int(DType, Arc<[i64]>),
    /// Floats, of the type in the file (a `float32` label is widened exactly).
    Float(DType, Arc<[f64]>),
    /// Moments, microseconds since 1970-01-01 of the calendar; [`NAT`] where the label is missing.
    Time(Calendar, Arc<[i64]>),
    /// Texts.
    Text(Arc<[String]>),
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
            (Self::Text(a), Self::Text(b)) => a == b,
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

    /// Why they cannot be read, if they cannot.
    pub fn unreadable(&self) -> Option<&Arc<Unreadable>> {
        match self {
            CoordValues::Unreadable(none) => Some(&none.of),
            _ => None,
        }
    }

    /// True if the label is missing: NULL in SQL.
    pub fn is_missing(&self, i: usize) -> bool {
        matches!(self, CoordValues::Time(_, v) if v[i] == NAT)
    }

    /// True if there is none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The element type; texts and labels that cannot be read have none.
    pub fn dtype(&self) -> Option<DType> {
        match self {
            CoordValues::Int(d, _) | CoordValues::Float(d, _) => Some(*d),
            CoordValues::Time(c, _) => Some(DType::Datetime(*c)),
            CoordValues::Text(_) | CoordValues::Unreadable(_) => None,
        }
    }

    /// The labels at `positions`, in that order; each position is below `len`.
    pub fn take(&self, positions: &[u64]) -> CoordValues {
        fn pick<T: Clone>(v: &[T], p: &[u64]) -> Arc<[T]> {
            p.iter().map(|&i| v[i as usize].clone()).collect()
        }
        match self {
            CoordValues::Int(d, v) => CoordValues::Int(*d, pick(v, positions)),
            CoordValues::Float(d, v) => CoordValues::Float(*d, pick(v, positions)),
            CoordValues::Time(c, v) => CoordValues::Time(*c, pick(v, positions)),
            CoordValues::Text(v) => CoordValues::Text(pick(v, positions)),
            CoordValues::Unreadable(none) => CoordValues::Unreadable(none.take(positions)),
        }
    }

    /// The labels at `start`, `start + step`, …, which are positions below `len`.
    pub fn slice(&self, start: i64, step: i64, len: u64) -> CoordValues {
        match self {
            CoordValues::Unreadable(none) => CoordValues::Unreadable(none.slice(start, step, len)),
            other => other.take(&run(start, step, len)),
        }
    }

    /// One label as text: what headers and JSON show.
    pub fn display(&self, i: usize) -> String {
        match self {
            CoordValues::Int(_, v) => v[i].to_string(),
            CoordValues::Float(DType::Float32, v) => format!("{}", v[i] as f32),
            CoordValues::Float(_, v) => format!("{}", v[i]),
            CoordValues::Time(_, v) if v[i] == NAT => "NULL".into(),
            CoordValues::Time(c, v) => crate::time::format_micros(v[i], *c),
            CoordValues::Text(v) => v[i].clone(),
            CoordValues::Unreadable(none) => format!("(unreadable) {}", none.position(i)),
        }
    }
}

/// One dimension of a labelled tensor.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct DimLabel {
    /// The name; `None` for a dimension that has none (shown as `dim_0`, …).
    pub name: Option<Arc<str>>,
    /// The coordinate along it, if any.
    pub coord: Option<Arc<Coord>>,
}

/// Several variables over shared dimensions: a Zarr group, an `.npz`, one array, or the result of a tensor block.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Dataset {
    /// How queries call it.
    pub name: String,
    /// Its data variables, in the order of their names.
    pub variables: Vec<Variable>,
    /// The coordinates along its dimensions.
    pub coords: Vec<Arc<Coord>>,
    /// Auxiliary coordinates and bounds: variables that are not data (reached by name, they add no rows).
    pub auxiliary: Vec<Variable>,
    /// Arrays that cannot be read: an error when a query uses them.
    pub unreadable: Vec<Arc<Unreadable>>,
    /// Names of the groups inside, which `url#group` opens.
    pub groups: Vec<String>,
    /// Attributes.
    pub attrs: Attrs,
}

impl Dataset {
    /// The coordinate whose dimension is `dim` and whose name is the dimension's.
    pub fn index_coord(&self, dim: &str) -> Option<&Arc<Coord>> {
        self.coords.iter().find(|c| &*c.dim == dim && c.name == c.dim)
    }
}
