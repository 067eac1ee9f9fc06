//! Windows: the neighbours that a rolling reduction includes for each cell.
//!
//! ```text
//!   before = 2, after = 1        . . [x x i x] . .          width 4
//!   at the first cells            [i x] . . .               the window is truncated at the end of the axis
//! ```

use crate::reduce::ReduceKind;
use serde::{Deserialize, Serialize};

/// Bytes of the states of lines that the kernel processes together.
const STRIP_BYTES: u64 = 256 << 10;

/// Upper bound on the bytes of one state of a window.
const STATE_BYTES: u64 = 32;

/// The positions in a cell's window, relative to the cell: `[-before, after]`, both ends included. With a negative side
/// the window lies beyond the cell: `before: -1, after: 3` are the next three.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Frame {
    /// Positions before the cell.
    pub before: i64,
    /// Positions after the cell.
    pub after: i64,
}

impl Frame {
    /// Number of positions, at least 1 in a frame that a builder accepted.
    pub fn width(self) -> i64 {
        self.before + self.after + 1
    }

    /// The frame with its sides limited to `len`, which gives the same windows on an axis of that length.
    pub fn clipped(self, len: u64) -> Frame {
        let n = i64::try_from(len).unwrap_or(i64::MAX / 4).min(i64::MAX / 4);
        Frame { before: self.before.clamp(-n, n), after: self.after.clamp(-n, n) }
    }

    /// Number of positions of the axis in the window of cell `i`.
    pub fn count(self, i: u64, len: u64) -> u64 {
        let (lo, hi) = self.reads(i, i + 1, len);
        hi - lo
    }

    /// Smallest number of positions in the window of any cell.
    pub fn count_min(self, len: u64) -> u64 {
        // The count rises, stays constant and falls along the axis, so the ends have the minimum.
        match len {
            0 => 0,
            n => self.count(0, n).min(self.count(n - 1, n)),
        }
    }

    /// The positions `[lo, hi)` of the axis in the windows of the cells `[start, end)`; empty if there are none.
    pub fn reads(self, start: u64, end: u64, len: u64) -> (u64, u64) {
        let n = len as i64;
        let lo = (start as i64 - self.before).clamp(0, n);
        let hi = (end as i64 + self.after).clamp(0, n);
        if start >= end || lo >= hi { (0, 0) } else { (lo as u64, hi as u64) }
    }

    /// The cells `[lo, hi)` with a position of `[start, end)` in their window; empty if there are none.
    pub fn readers(self, start: u64, end: u64, len: u64) -> (u64, u64) {
        Frame { before: self.after, after: self.before }.reads(start, end, len)
    }
}

/// Bytes that the kernel of a window uses besides cells: one block of states for each line that is processed together.
pub fn scratch_bytes(frame: Frame, len: u64, lines: u64) -> u64 {
    // A frame is clipped to the axis when its node is built.
    let block = frame.clipped(len).width().max(1) as u64;
    let lanes = lanes(block).min(lines.max(1));
    // The states of the block, and those at the start of the next one.
    (block + 1).saturating_mul(STATE_BYTES).saturating_mul(lanes)
}

/// Lines that are processed together if windows have `block` cells: their states fit in the second-level cache, unless
/// there would be few lines.
pub fn lanes(block: u64) -> u64 {
    (STRIP_BYTES / STATE_BYTES / block.max(1)).clamp(16, 512)
}

/// True for the reductions that are available over windows.
pub fn is_windowed(kind: ReduceKind) -> bool {
    !matches!(kind, ReduceKind::ArgMin | ReduceKind::ArgMax | ReduceKind::Add)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn windows_are_cut_off_at_the_ends() {
        let f = Frame { before: 2, after: 1 };
        assert_eq!((f.width(), f.count(0, 9), f.count(4, 9), f.count(8, 9)), (4, 2, 4, 3));
        assert_eq!((f.count_min(9), f.count_min(1), f.count_min(0)), (2, 1, 0));
        assert_eq!(f.reads(3, 6, 9), (1, 7));
        let next = Frame { before: -1, after: 3 };
        assert_eq!((next.count(5, 9), next.count(8, 9), next.count_min(9)), (3, 0, 0));
        let all = Frame { before: i64::MAX, after: i64::MAX }.clipped(9);
        assert_eq!(all.reads(4, 5, 9), (0, 9));
    }

    #[test]
    fn readers_are_the_inverse_of_reads() {
        for before in -3..4 {
            for after in -before..4 {
                let f = Frame { before, after };
                for p in 0..7 {
                    let (lo, hi) = f.readers(p, p + 1, 7);
                    for i in 0..7 {
                        let (a, b) = f.reads(i, i + 1, 7);
                        assert_eq!((lo..hi).contains(&i), (a..b).contains(&p), "{f:?} {p} {i}");
                    }
                }
            }
        }
    }
}
