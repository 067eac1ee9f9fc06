//! Boxes of cells, as used by all code that moves data.

use serde::{Deserialize, Serialize};
use smallvec::SmallVec;
use std::fmt;

/// Lengths or positions, one per axis. Six axes fit without a heap allocation.
pub type Dims = SmallVec<[u64; 6]>;

/// Upper bound on the axes of a tensor, as in NumPy before version 2 (`NPY_MAXDIMS`).
pub const RANK_MAX: usize = 32;

/// Number of cells of a shape; `None` if it exceeds 63 bits (positions must fit in an `i64`).
pub fn cells(shape: &[u64]) -> Option<u64> {
    // Axes of length 0 count as 1: positions along the other axes must fit all the same.
    let n = shape.iter().try_fold(1u64, |n, &d| n.checked_mul(d.max(1)));
    let n = n.filter(|&n| n <= i64::MAX as u64)?;
    Some(if shape.contains(&0) { 0 } else { n })
}

/// Row-major strides of a shape, in cells; an axis of length 1 has a stride too.
pub fn strides(shape: &[u64]) -> SmallVec<[i64; 6]> {
    let mut out: SmallVec<[i64; 6]> = SmallVec::from_elem(1, shape.len());
    for a in (0..shape.len().saturating_sub(1)).rev() {
        out[a] = out[a + 1] * shape[a + 1].max(1) as i64;
    }
    out
}

/// A half-open box `[start, end)` of cells.
///
/// ```text
///   axis 1 ─▶   0 1 2 3 4 5
///   axis 0  0   . . . . . .
///      ▼    1   . . # # # .      start = [1, 2], end = [3, 5], shape = [2, 3]
///           2   . . # # # .
/// ```
#[derive(Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Region {
    /// First position on each axis.
    pub start: Dims,
    /// One past the last position on each axis; never below `start`.
    pub end: Dims,
}

impl Region {
    /// The region of a whole shape.
    pub fn whole(shape: &[u64]) -> Self {
        Region { start: SmallVec::from_elem(0, shape.len()), end: shape.into() }
    }

    /// The box of shape `shape` at `start`.
    pub fn at(start: &[u64], shape: &[u64]) -> Self {
        Region { start: start.into(), end: start.iter().zip(shape).map(|(s, n)| s + n).collect() }
    }

    /// Number of axes.
    pub fn rank(&self) -> usize {
        self.start.len()
    }

    /// Length of one axis.
    pub fn len(&self, axis: usize) -> u64 {
        self.end[axis] - self.start[axis]
    }

    /// Lengths of all axes.
    pub fn shape(&self) -> Dims {
        self.start.iter().zip(&self.end).map(|(s, e)| e - s).collect()
    }

    /// Number of cells.
    pub fn cells(&self) -> u64 {
        if self.is_empty() {
            return 0;
        }
        self.start.iter().zip(&self.end).map(|(s, e)| e - s).product()
    }

    /// True if the box has no cells. A 0-d box has one.
    pub fn is_empty(&self) -> bool {
        self.start.iter().zip(&self.end).any(|(s, e)| s == e)
    }

    /// The intersection of two boxes; `None` if it is empty.
    pub fn intersect(&self, other: &Region) -> Option<Region> {
        self.meets(other).then(|| Region {
            start: self.start.iter().zip(&other.start).map(|(a, b)| *a.max(b)).collect(),
            end: self.end.iter().zip(&other.end).map(|(a, b)| *a.min(b)).collect(),
        })
    }

    /// True if the intersection of two boxes is not empty.
    pub fn meets(&self, other: &Region) -> bool {
        let (starts, ends) = (self.start.iter().zip(&other.start), self.end.iter().zip(&other.end));
        starts.zip(ends).all(|((a, b), (c, d))| a.max(b) < c.min(d))
    }

    /// True if `other` lies entirely inside.
    pub fn contains(&self, other: &Region) -> bool {
        (0..self.rank()).all(|a| self.start[a] <= other.start[a] && other.end[a] <= self.end[a])
    }

    /// The box shifted by `origin`: the inverse of [`Region::relative_to`].
    pub fn moved_by(&self, origin: &[u64]) -> Region {
        Region {
            start: self.start.iter().zip(origin).map(|(s, o)| s + o).collect(),
            end: self.end.iter().zip(origin).map(|(e, o)| e + o).collect(),
        }
    }

    /// The box relative to `origin`, which lies at or before `start`.
    pub fn relative_to(&self, origin: &[u64]) -> Region {
        Region {
            start: self.start.iter().zip(origin).map(|(s, o)| s - o).collect(),
            end: self.end.iter().zip(origin).map(|(e, o)| e - o).collect(),
        }
    }
}

impl fmt::Debug for Region {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl fmt::Display for Region {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("[")?;
        for a in 0..self.rank() {
            write!(f, "{}{}:{}", if a > 0 { ", " } else { "" }, self.start[a], self.end[a])?;
        }
        f.write_str("]")
    }
}
