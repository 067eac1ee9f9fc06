//! Boxes of cells: the vocabulary of everything that moves data.

use serde::{Deserialize, Serialize};
use smallvec::SmallVec;
use std::fmt;

/// Lengths or positions, one for each axis. Six axes fit without a heap allocation.
pub type Dims = SmallVec<[u64; 6]>;

/// The most axes a tensor may have, as NumPy's `NPY_MAXDIMS` was for long.
pub const RANK_MAX: usize = 32;

/// Number of cells of a shape; `None` if it does not fit into 63 bits (so that positions fit an `i64`).
pub fn cells(shape: &[u64]) -> Option<u64> {
    // An axis of no length excuses no other: positions along each have to fit.
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
    /// The whole of a shape.
    pub fn whole(shape: &[u64]) -> Self {
        Region { start: SmallVec::from_elem(0, shape.len()), end: shape.into() }
    }

    /// The box from `start` with the lengths `shape`.
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

    /// True if the box has no cell. A 0-d box has one.
    pub fn is_empty(&self) -> bool {
        self.start.iter().zip(&self.end).any(|(s, e)| s == e)
    }

    /// The common part of two boxes, or `None` if they share no cell.
    pub fn intersect(&self, other: &Region) -> Option<Region> {
        let start: Dims = self.start.iter().zip(&other.start).map(|(a, b)| *a.max(b)).collect();
        let end: Dims = self.end.iter().zip(&other.end).map(|(a, b)| *a.min(b)).collect();
        start.iter().zip(&end).all(|(s, e)| s < e).then_some(Region { start, end })
    }

    /// True if `other` lies wholly inside.
    pub fn contains(&self, other: &Region) -> bool {
        (0..self.rank()).all(|a| self.start[a] <= other.start[a] && other.end[a] <= self.end[a])
    }

    /// The same box, further on by `origin`: the inverse of [`Region::relative_to`].
    pub fn moved_by(&self, origin: &[u64]) -> Region {
        Region {
            start: self.start.iter().zip(origin).map(|(s, o)| s + o).collect(),
            end: self.end.iter().zip(origin).map(|(e, o)| e + o).collect(),
        }
    }

    /// The same box seen from `origin`; `origin` lies at or before `start`.
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
