//! Lines that are longer than a chunk: cut into sorted runs, which are then merged.
//!
//! ```text
//!   chunks   3 1 2 0 │ 9 7 8 4 │ 6 5       of a line
//!   runs     0 1 2 3 │ 4 7 8 9 │ 5 6       each chunk sorted
//!   index    0 . 2 . │ 4 . 8 . │ 5 .       every n-th cell of a run
//!   merged   0 1 2 3 4 │ 5 6 7 8 9         each output chunk reads its part of every run
//! ```
//! Order statistics need less: only the cells in the index have to be at their sorted positions, and all cells between
//! two of them have to lie between them in value. Such runs are *marked*.
//!
//! The index alone determines the part of each run to read, up to `every` cells at both ends of each run
//! ([`merged_cells`]). So an operand that returns C cells reads little more than C cells, however long the line is.

use crate::dtype::DType;
use crate::grid::AxisGrid;
use crate::region::Dims;
use crate::sort::SortWhat;
use serde::{Deserialize, Serialize};
use smallvec::SmallVec;

/// Upper bound on the runs of a line, except for a short first one. Longer lines have longer runs, so that the part of
/// each run that one output chunk reads is not too small for a file.
pub const RUNS_MAX: u64 = 1024;

/// Length of the head of a run's index: the number of unmasked cells, and the number of these that are not NaN.
pub const INDEX_HEAD: u64 = 2;

/// Marks of a run, if there is room for the cells between two of them.
const MARKS: u64 = 64;

/// Cells that are merged at once: they fit in a cache.
const BLOCK: u64 = 2048;

/// Upper bound on the distance between the cells of a run that may be bounds of blocks.
const BOUNDS: u64 = 64;

/// Smallest number of cells of each run in a block.
const BLOCK_EACH: u64 = 16;

/// Bytes of merge state per run: its address and the read position.
const RUN_BYTES: u64 = 160;

/// Size of the blocks in which runs are merged.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Blocks {
    /// Approximate cells of a block.
    pub cells: u64,
    /// Distance between the cells of a run that may be bounds of blocks.
    pub every: u64,
}

impl Blocks {
    /// Blocks for `runs` runs: they fit in a cache, but hold several cells of each run.
    pub fn of(runs: u64) -> Self {
        let cells = BLOCK.max(runs.saturating_mul(BLOCK_EACH));
        Blocks { cells, every: (cells / runs.max(1)).min(BOUNDS) }
    }

    /// Upper bound on the cells of a block whose cells are not all equal: the cells between two bounds, equal cells
    /// beside each bound, and for each run the cells up to its next possible bound.
    pub fn longest(self) -> u64 {
        self.cells.saturating_mul(3)
    }
}

/// Layout of the runs of a line.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Runs {
    /// With [`SortWhat::Positions`], runs hold positions along with the cells.
    pub what: SortWhat,
    /// Distance between the cells in the index.
    pub every: u64,
    /// True for marked runs, false for sorted ones.
    pub marked: bool,
}

impl Runs {
    /// Sorted runs of at most `longest` cells. The square root makes the index as small as the number of cells that are
    /// read and not used.
    pub fn new(what: SortWhat, longest: u64) -> Self {
        Runs { what, every: (longest / 2).isqrt().max(1), marked: false }
    }

    /// Marked runs of values: `count` runs of at most `longest` cells. The marks are as few as keep the cells read for
    /// an order statistic below `room`, and at most as many as sorted runs have.
    pub fn marked(longest: u64, count: u64, room: u64) -> Self {
        let sorted = Runs::new(SortWhat::Values, longest).every;
        let every = (longest / MARKS).min(room / (2 * count + 2));
        Runs { what: SortWhat::Values, every: every.max(sorted), marked: true }
    }

    /// Fields of a run for cells of a type: keys, which are unsigned integers in the order of the cells; then
    /// positions, counted from the first cell of the chunk.
    pub fn fields(&self, dtype: DType) -> SmallVec<[DType; 4]> {
        let mut fields: SmallVec<[DType; 4]> = SmallVec::new();
        fields.push(match dtype.size() {
            1 => DType::UInt8,
            2 => DType::UInt16,
            4 => DType::UInt32,
            _ => DType::UInt64,
        });
        if self.what == SortWhat::Positions {
            fields.push(DType::UInt32);
        }
        fields
    }

    /// Grid of the runs along an axis if `kept` cells of each line are needed: no run holds more.
    pub fn axis(&self, input: AxisGrid, kept: u64) -> AxisGrid {
        map_chunks(input, |n| n.min(kept))
    }

    /// Grid of the runs' index.
    pub fn index(&self, runs: AxisGrid) -> AxisGrid {
        map_chunks(runs, |n| n.div_ceil(self.every) + INDEX_HEAD)
    }

    /// Bytes that an operand needs besides its outputs to merge `cells` adjacent cells of a sorted line. The runs have
    /// `cell_bytes` bytes per cell.
    pub fn merge_bytes(&self, cells: u64, runs: AxisGrid, cell_bytes: u64) -> u64 {
        let read = merged_cells(cells, runs.count(), self.every).min(runs.len);
        let index = self.index(runs).len.saturating_mul(8);
        let book = runs.count().saturating_mul(RUN_BYTES);
        let work = match self.what {
            SortWhat::Values if !self.marked => {
                let blocks = Blocks::of(runs.count());
                let bounds = (read / blocks.every).saturating_add(runs.count());
                let block = blocks.longest().min(read);
                bounds.saturating_add(block).saturating_mul(cell_bytes)
            }
            // Cells are merged one at a time, or not at all.
            _ => 0,
        };
        let cells = read.saturating_mul(cell_bytes);
        cells.saturating_add(index).saturating_add(book).saturating_add(work)
    }

    /// Bytes that an operand needs besides its outputs to sort runs of `len` cells and retain `kept` of them.
    pub fn sort_bytes(&self, dtype: DType, len: u64, kept: u64) -> u64 {
        let size = dtype.size() as u64;
        len.saturating_mul(match self.what {
            // A key and a position.
            SortWhat::Positions => size.max(4) * 2,
            // Cells, some of which are dropped.
            SortWhat::Values if kept < len => size,
            // Sorted in place.
            SortWhat::Values => 0,
        })
    }
}

/// Upper bound on the cells of `runs` runs that may be among `cells` adjacent cells of the sorted line, given an index
/// of every `every`-th cell.
///
/// # Source
/// If `k` cells of the index are less than a given cell of the index, then at most `k * every` cells of the runs are
/// less than it, and at least `k * every - runs * (every - 1)`. Such cells bound both ends of the requested range.
pub fn merged_cells(cells: u64, runs: u64, every: u64) -> u64 {
    cells.saturating_add((2 * runs + 2).saturating_mul(every))
}

/// Bytes of a cell that determine the chunks of sorted lines.
pub fn cell_bytes(what: SortWhat, dtype: DType) -> u64 {
    match what {
        SortWhat::Values => dtype.size() as u64,
        SortWhat::Positions => dtype.size().max(8) as u64,
    }
}

/// Chunk lengths for the runs of lines along an axis: near `room` cells each, and at most [`RUNS_MAX`] runs per line.
/// Chunks of about that size do not change. The result is a fixed point of this function.
pub fn run_chunks(axes: &[AxisGrid], axis: usize, room: u64) -> Dims {
    let mut chunks: Dims = axes.iter().map(|a| a.chunk.max(1)).collect();
    let least = axes[axis].len.div_ceil(RUNS_MAX).max(1);
    let lines = |c: &Dims| {
        let others = c.iter().enumerate().filter(|(a, _)| *a != axis);
        others.fold(1u64, |n, (_, &d)| n.saturating_mul(d))
    };
    let beside = lines(&chunks);
    let now = beside.saturating_mul(chunks[axis]);
    let alone = beside == 1 && chunks[axis] < least.saturating_mul(2);
    if chunks[axis] >= least && now.saturating_mul(2) > room && (now <= room * 2 || alone) {
        return chunks;
    }
    let mut run = chunks[axis].max(least);
    if beside.saturating_mul(run).saturating_mul(2) <= room {
        run *= room / beside.saturating_mul(run);
    }
    if beside.saturating_mul(run) > room {
        run = least.max(room / beside);
    }
    chunks[axis] = run;
    while lines(&chunks).saturating_mul(run) > room && halve_other(&mut chunks, axis) {}
    // Positions within a run have 32 bits.
    chunks[axis] = run.min(axes[axis].len).clamp(1, u64::from(u32::MAX));
    chunks
}

/// Halves the longest chunk along another axis than `axis`, of equal ones the first; false if all have one cell.
pub(crate) fn halve_other(chunks: &mut [u64], axis: usize) -> bool {
    let others = (0..chunks.len()).filter(|&a| a != axis);
    match others.max_by_key(|&a| (chunks[a], chunks.len() - a)) {
        Some(a) if chunks[a] > 1 => chunks[a] = chunks[a].div_ceil(2),
        _ => return false,
    }
    true
}

/// The cuts of sorted lines of `kept` cells along an axis: chunks near `room` cells, of as few lines as possible.
pub fn merged_axes(
    axes: &[AxisGrid],
    axis: usize,
    kept: u64,
    room: u64,
) -> SmallVec<[AxisGrid; 6]> {
    let mut axes: SmallVec<[AxisGrid; 6]> = axes.into();
    let chunk = kept.div_ceil(kept.div_ceil(room).max(1));
    axes[axis] = AxisGrid::regular(kept, chunk);
    let cells = |axes: &[AxisGrid]| axes.iter().fold(1u64, |n, a| n.saturating_mul(a.chunk));
    while cells(&axes) > room {
        let others = (0..axes.len()).filter(|&a| a != axis);
        match others.max_by_key(|&a| (axes[a].chunk, axes.len() - a)) {
            Some(a) if axes[a].chunk > 1 => {
                axes[a] = AxisGrid::regular(axes[a].len, axes[a].chunk.div_ceil(2));
            }
            _ => break,
        }
    }
    axes
}

/// The grid whose chunks have `f(n)` cells where those of `axis` have `n`; `f` is monotonic.
fn map_chunks(axis: AxisGrid, f: impl Fn(u64) -> u64) -> AxisGrid {
    let count = axis.count();
    let length = |i: u64| {
        let (start, end) = axis.interval(i);
        f(end - start)
    };
    if count == 1 {
        return AxisGrid { len: length(0), first: length(0).max(1), chunk: length(0).max(1) };
    }
    let (first, chunk, last) = (length(0), f(axis.chunk), length(count - 1));
    AxisGrid { len: first + (count - 2) * chunk + last, first, chunk }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn chunks_that_are_too_short_or_too_long_change() {
        let grid = |len, chunk| AxisGrid::regular(len, chunk);
        let room = 1000;
        // About the right size: unchanged.
        assert_eq!(run_chunks(&[grid(50_000, 900)], 0, room)[..], [900]);
        // Too short, too long, and so many chunks that runs have to be longer than a chunk.
        assert_eq!(run_chunks(&[grid(50_000, 100)], 0, room)[..], [1000]);
        assert_eq!(run_chunks(&[grid(50_000, 20_000)], 0, room)[..], [1000]);
        assert_eq!(run_chunks(&[grid(10_000_000, 1000)], 0, room)[..], [9766]);
        // Many lines: fewer of them where runs grow.
        assert_eq!(run_chunks(&[grid(50_000, 10), grid(100, 100)], 0, room)[..], [49, 13]);
        assert_eq!(run_chunks(&[grid(50_000, 500), grid(100, 20)], 0, room)[..], [50, 20]);
    }

    #[test]
    fn merged_chunks_are_balanced() {
        let axes = [AxisGrid::regular(7, 5), AxisGrid::regular(1100, 300)];
        let cut = merged_axes(&axes, 1, 1100, 1000);
        assert_eq!((cut[0].chunk, cut[1].chunk, cut[1].count()), (1, 550, 2));
        // The first ten cells of each line: lines stay together.
        let top = merged_axes(&axes, 1, 10, 1000);
        assert_eq!((top[0].chunk, top[1].chunk), (5, 10));
    }

    proptest! {
        #[test]
        fn run_chunks_are_a_fixed_point(
            lens in prop::collection::vec((1u64..5000, 1u64..300), 1..4),
            axis in 0usize..4, room in 1u64..2000,
        ) {
            let axis = axis % lens.len();
            let axes: Vec<AxisGrid> = lens.iter().map(|&(n, c)| AxisGrid::regular(n, c)).collect();
            prop_assume!(axes[axis].len > room);
            let once = run_chunks(&axes, axis, room);
            let again: Vec<AxisGrid> =
                axes.iter().zip(&once).map(|(a, &c)| AxisGrid::regular(a.len, c)).collect();
            prop_assert!(again[axis].count() <= RUNS_MAX);
            prop_assert_eq!(run_chunks(&again, axis, room), once);
        }

        #[test]
        fn runs_and_their_index_have_a_chunk_for_each_chunk(
            len in 1u64..500, first in 1u64..40, more in 0u64..40, kept in 1u64..60, every in 1u64..9,
        ) {
            let axis = AxisGrid { len, first: first.min(len), chunk: (first + more).min(len) };
            let runs = Runs { what: SortWhat::Values, every, marked: false };
            let kept_axis = runs.axis(axis, kept);
            let index = runs.index(kept_axis);
            prop_assert_eq!((kept_axis.count(), index.count()), (axis.count(), axis.count()));
            for i in 0..axis.count() {
                let length = |a: AxisGrid| { let (s, e) = a.interval(i); e - s };
                prop_assert_eq!(length(kept_axis), length(axis).min(kept));
                prop_assert_eq!(length(index), length(kept_axis).div_ceil(every) + INDEX_HEAD);
            }
        }
    }
}
