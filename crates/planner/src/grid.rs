//! Grids: how a tensor is cut into chunks.

use crate::region::{Dims, Region, cells};
use serde::{Deserialize, Serialize};
use smallvec::SmallVec;
use std::fmt;

/// Upper bound on the stored chunks that an operand reads, unless one of its own cells needs more.
const JOINED_MAX: u64 = 1024;

/// Chunks in memory are joined to an eighth of the size of stored ones: single chunks are read in place, joined ones
/// are copied. The copy pays off as long as the fixed cost of an operand is higher.
pub(crate) const JOINED_RESIDENT: u64 = 8;

/// The cuts along one axis: a first chunk of `first` cells, then chunks of `chunk`, the last one truncated at `len`.
///
/// ```text
///   first  chunk  chunk  rest          len = 11, first = 2, chunk = 4
///   |oo|   |oooo| |oooo| |o|
/// ```
/// A slice of a regular grid leaves the short first chunk. An axis of length 0 has one empty chunk, so that every grid
/// has at least one chunk.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct AxisGrid {
    /// Length of the axis.
    pub len: u64,
    /// Cells of the first chunk, `1..=chunk`.
    pub first: u64,
    /// Cells of a full chunk, at least 1.
    pub chunk: u64,
}

impl AxisGrid {
    /// Regular chunks from the first cell on; a `chunk` of 0 is taken as 1, one beyond `len` as `len`.
    pub fn regular(len: u64, chunk: u64) -> Self {
        let chunk = chunk.clamp(1, len.max(1));
        AxisGrid { len, first: chunk, chunk }
    }

    /// Number of chunks, at least 1.
    pub fn count(&self) -> u64 {
        if self.len <= self.first { 1 } else { 1 + (self.len - self.first).div_ceil(self.chunk) }
    }

    /// The cells `[start, end)` of chunk `i`; `i` is below `count`.
    pub fn interval(&self, i: u64) -> (u64, u64) {
        let start = if i == 0 { 0 } else { self.first + (i - 1) * self.chunk };
        let end = (self.first + i * self.chunk).min(self.len);
        (start, end)
    }

    /// The chunk that holds cell `pos`; `pos` is below `len`.
    pub fn find(&self, pos: u64) -> u64 {
        if pos < self.first { 0 } else { 1 + (pos - self.first) / self.chunk }
    }

    /// The chunks `[lo, hi)` that hold the cells `[start, end)`; none for an empty interval, except on an empty axis,
    /// where the result is its single chunk.
    pub fn overlapping(&self, start: u64, end: u64) -> (u64, u64) {
        if self.len == 0 {
            return (0, 1);
        }
        if start >= end { (0, 0) } else { (self.find(start), self.find(end - 1) + 1) }
    }

    /// The cuts of the cells `[start, end)` of this axis.
    pub fn slice(&self, start: u64, end: u64) -> AxisGrid {
        let len = end - start;
        if len == 0 {
            return AxisGrid::regular(0, self.chunk);
        }
        let (_, first_end) = self.interval(self.find(start));
        let first = first_end - start;
        if first >= len {
            return AxisGrid::regular(len, len);
        }
        AxisGrid { len, first, chunk: self.chunk.min(len).max(first) }
    }

    /// Length of the longest chunk.
    pub fn longest(&self) -> u64 {
        if self.count() == 1 {
            self.len
        } else {
            self.first.max(self.chunk.min(self.len - self.first))
        }
    }
}

/// Upper bound on the chunks of a tensor without cells (up to a factor of 2).
const EMPTY_CHUNKS_MAX: u128 = 1 << 16;

/// The cuts of a tensor: the product of the cuts of its axes.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Grid {
    /// Cuts of each axis.
    pub axes: SmallVec<[AxisGrid; 6]>,
}

/// Position of a chunk in its grid, one index for each axis.
pub type ChunkIndex = Dims;

impl Grid {
    /// Regular chunks of shape `chunk`.
    pub fn regular(shape: &[u64], chunk: &[u64]) -> Self {
        Grid { axes: shape.iter().zip(chunk).map(|(&n, &c)| AxisGrid::regular(n, c)).collect() }
    }

    /// One chunk that holds all cells.
    pub fn single(shape: &[u64]) -> Self {
        Grid::regular(shape, shape)
    }

    /// Chunks of at most `target` bytes: the longest axis is halved until a chunk fits, so chunks come out near
    /// square. A pure function of its arguments, as the bits of reductions depend on it.
    pub fn auto(shape: &[u64], cell_bytes: usize, target: u64) -> Self {
        let mut chunk: Dims = shape.iter().map(|&n| n.max(1)).collect();
        let limit = (target / cell_bytes.max(1) as u64).max(1);
        // A product of lengths may not fit in 64 bits; 128 bits hold it for any realistic rank and saturate beyond.
        let chunks = |c: &Dims| {
            let along = shape.iter().zip(c).map(|(n, c)| u128::from(n.div_ceil(*c).max(1)));
            along.fold(1u128, u128::saturating_mul)
        };
        let size = |c: &Dims| c.iter().fold(1u128, |n, &d| n.saturating_mul(u128::from(d)));
        while size(&chunk) > u128::from(limit) {
            // The longest axis; of equals the first, so that rows stay whole.
            let mut axis = 0;
            for a in 1..chunk.len() {
                if chunk[a] > chunk[axis] {
                    axis = a;
                }
            }
            if chunk[axis] == 1 {
                break;
            }
            let n = shape[axis].max(1);
            let parts = n.div_ceil(chunk[axis]) * 2;
            // Chunks without cells take no memory, but each costs an operand.
            if shape.contains(&0) && chunks(&chunk) > EMPTY_CHUNKS_MAX {
                break;
            }
            chunk[axis] = n.div_ceil(parts).min(chunk[axis] - 1);
        }
        Grid::regular(shape, &chunk)
    }

    /// Number of axes.
    pub fn rank(&self) -> usize {
        self.axes.len()
    }

    /// Shape of the tensor.
    pub fn shape(&self) -> Dims {
        self.axes.iter().map(|a| a.len).collect()
    }

    /// Number of chunks along each axis.
    pub fn counts(&self) -> Dims {
        self.axes.iter().map(AxisGrid::count).collect()
    }

    /// Number of chunks; saturates at `u64::MAX`.
    pub fn count(&self) -> u64 {
        self.axes.iter().fold(1u64, |n, a| n.saturating_mul(a.count()))
    }

    /// The cells of a chunk.
    pub fn region(&self, index: &[u64]) -> Region {
        let (mut start, mut end) = (Dims::new(), Dims::new());
        for (a, &i) in self.axes.iter().zip(index) {
            let (s, e) = a.interval(i);
            start.push(s);
            end.push(e);
        }
        Region { start, end }
    }

    /// The cells of a box of chunks, which has at least one along each axis.
    pub fn cells(&self, chunks: &Region) -> Region {
        let (mut start, mut end) = (Dims::new(), Dims::new());
        for (a, g) in self.axes.iter().enumerate() {
            start.push(g.interval(chunks.start[a]).0);
            end.push(g.interval(chunks.end[a].max(1) - 1).1);
        }
        Region { start, end }
    }

    /// The chunks that hold cells of `region`, as a box of chunk indices.
    pub fn overlapping(&self, region: &Region) -> Region {
        let (mut start, mut end) = (Dims::new(), Dims::new());
        for (a, g) in self.axes.iter().enumerate() {
            let (lo, hi) = g.overlapping(region.start[a], region.end[a]);
            start.push(lo);
            end.push(hi);
        }
        Region { start, end }
    }

    /// The index of the chunk with that row-major number.
    pub fn unravel(&self, mut number: u64) -> ChunkIndex {
        let mut index: ChunkIndex = SmallVec::from_elem(0, self.rank());
        for (a, g) in self.axes.iter().enumerate().rev() {
            let n = g.count();
            index[a] = number % n;
            number /= n;
        }
        index
    }

    /// The row-major number of a chunk.
    pub fn ravel(&self, index: &[u64]) -> u64 {
        self.axes.iter().zip(index).fold(0, |n, (g, &i)| n * g.count() + i)
    }

    /// The longest chunk along each axis: an upper bound on every chunk's shape.
    pub fn longest(&self) -> Dims {
        self.axes.iter().map(AxisGrid::longest).collect()
    }

    /// The grid of a region of this tensor.
    pub fn slice(&self, region: &Region) -> Grid {
        Grid {
            axes: self
                .axes
                .iter()
                .enumerate()
                .map(|(a, g)| g.slice(region.start[a], region.end[a]))
                .collect(),
        }
    }

    /// Joins neighbouring chunks until an operand reads about `target` bytes, innermost axis first, so that joined
    /// chunks are adjacent in a row-major file. Chunks of more than 16 × `target` are cut along the outermost axes
    /// instead. `stored` is the stored grid that contains this one, if its chunks are objects: a thin slice needs few
    /// of their cells, but as a rule they are decoded whole. As each object has a fixed cost, at most [`JOINED_MAX`]
    /// are joined. Chunks in memory are joined to a [`JOINED_RESIDENT`]th of `target`. A pure function of grids, type
    /// and target.
    pub fn grouped(&self, stored: Option<&Grid>, cell_bytes: usize, target: u64) -> Grid {
        let mut axes = self.axes.clone();
        let limit = (target / cell_bytes.max(1) as u64).max(1);
        let size = |axes: &SmallVec<[AxisGrid; 6]>| {
            axes.iter().fold(1u128, |n, a| n.saturating_mul(u128::from(a.chunk)))
        };
        let current = size(&axes);
        if current > u128::from(limit) * 16 {
            for a in 0..axes.len() {
                let now = size(&axes);
                if now <= u128::from(limit) {
                    break;
                }
                let parts = now.div_ceil(u128::from(limit)).min(u128::from(axes[a].chunk)) as u64;
                let chunk = axes[a].chunk.div_ceil(parts);
                let first = axes[a].first % chunk;
                axes[a] = AxisGrid {
                    len: axes[a].len,
                    first: if first == 0 { chunk } else { first },
                    chunk,
                };
            }
            return Grid { axes };
        }
        let (limit, mut objects) = match stored {
            Some(_) => (limit, JOINED_MAX),
            None => ((limit / JOINED_RESIDENT).max(1), u64::MAX),
        };
        let stored = stored.unwrap_or(self);
        let mut read = size(&stored.axes);
        for a in (0..axes.len()).rev() {
            let room = ((u128::from(limit) / read.max(1)) as u64).min(objects);
            if room < 2 {
                break;
            }
            let g = axes[a];
            let count = g.count();
            if count <= room {
                axes[a] = AxisGrid::regular(g.len, g.len);
                objects /= count;
                let whole = stored.axes[a];
                let joined = whole.chunk.saturating_mul(count).min(whole.len).max(whole.chunk);
                read = read / u128::from(whole.chunk.max(1)) * u128::from(joined);
            } else {
                let chunk = g.chunk * room;
                // Cuts stay at multiples of the old ones: the short first chunk absorbs `room - 1` neighbours.
                axes[a] = AxisGrid {
                    len: g.len,
                    first: (g.first + (room - 1) * g.chunk).min(chunk),
                    chunk,
                };
                break;
            }
        }
        Grid { axes }
    }

    /// Bytes of the largest chunk; saturates.
    pub fn chunk_bytes_max(&self, cell_bytes: usize) -> u64 {
        self.longest().iter().fold(cell_bytes as u64, |n, &d| n.saturating_mul(d))
    }

    /// True if the cells of the largest chunk are addressable.
    pub fn is_sound(&self) -> bool {
        cells(&self.longest()).is_some()
    }
}

impl fmt::Display for Grid {
    /// `[6/2, 10/5]`: length over chunk length; `[9/2+4]` with a first chunk of 2.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("[")?;
        for (i, a) in self.axes.iter().enumerate() {
            if i > 0 {
                f.write_str(", ")?;
            }
            if a.first == a.chunk {
                write!(f, "{}/{}", a.len, a.chunk)?;
            } else {
                write!(f, "{}/{}+{}", a.len, a.first, a.chunk)?;
            }
        }
        f.write_str("]")
    }
}
