//! The logical grid of joined arrays.
//!
//! ```text
//!   files      |[..][..][..][.]|[..][..][..][.]|     years do not end where a chunk does
//!   grid       |==============|==============|==     chunks with codecs are read whole, so few are to be cut
//!              |===|===|===|===|===|===|===|===|     cells without codecs are read as they are wanted
//! ```

use crate::source::flat::SLAB_BYTES;
use tessera_planner::grid::{AxisGrid, Grid};
use tessera_planner::region::Dims;

/// Chunks of the joined array that do not end where those of its parts do are this many chunks long, so that few of
/// them are read twice.
const UNALIGNED: u64 = 4;

/// The chunks of the parts, if these are the same and end where the parts do; else longer ones along the axis. Those of
/// parts that are `is_flat` have no more bytes than slabs. `is_new`: the parts do not have the axis.
pub(super) fn grid(
    (shape, cell_bytes): (&[u64], usize),
    (axis, is_new): (usize, bool),
    grids: &[&Grid],
    is_flat: bool,
) -> Grid {
    let mut chunk: Dims = shape.into();
    let own = |a: usize| if is_new && a > axis { a - 1 } else { a };
    for a in 0..shape.len() {
        if is_new && a == axis {
            chunk[a] = 1;
            continue;
        }
        let chunks = grids.iter().map(|g| g.axes[own(a)].chunk);
        chunk[a] = chunks.max().unwrap_or(1).max(1);
    }
    if !is_new {
        let unit = chunk[axis];
        let all_but_last = grids.split_last().map_or(&[][..], |(_, others)| others);
        let is_aligned = grids.iter().all(|g| g.axes[axis].chunk == unit)
            && all_but_last.iter().all(|g| g.axes[axis].len.is_multiple_of(unit));
        if !is_aligned {
            let bytes = chunk.iter().fold(cell_bytes as u64, |n, &d| n.saturating_mul(d));
            let times = match is_flat {
                true => (SLAB_BYTES / bytes.max(1)).clamp(1, UNALIGNED),
                false => UNALIGNED,
            };
            chunk[axis] = unit.saturating_mul(times);
        }
    }
    let axes = shape.iter().zip(&chunk).map(|(&n, &c)| AxisGrid::regular(n, c));
    Grid { axes: axes.collect() }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::source::flat::slabs;

    /// The grid of years of `days` days of `float32`, each with its own.
    fn years(grids: &[Grid], cells: [u64; 2], is_flat: bool) -> String {
        let days: u64 = grids.iter().map(|g| g.axes[0].len).sum();
        let grids: Vec<&Grid> = grids.iter().collect();
        grid((&[days, cells[0], cells[1]], 4), (0, false), &grids, is_flat).to_string()
    }

    #[test]
    fn chunks_of_flat_files_are_no_larger_than_slabs() {
        // 45 days of 184,320 bytes are 8,294,400 of 8,388,608 bytes.
        let flat = vec![slabs(&[365, 128, 360], 4, false); 30];
        assert_eq!(years(&flat, [128, 360], true), "[10950/45, 128/128, 360/360]");
        assert_eq!(years(&flat, [128, 360], false), "[10950/180, 128/128, 360/360]");
        // Small ones are joined as others are.
        let months = [31, 28, 31].map(|n| slabs(&[n, 10, 10], 4, false));
        assert_eq!(years(&months, [10, 10], true), "[90/90, 10/10, 10/10]");
        let long = [999, 1000].map(|n| Grid::regular(&[n, 10, 10], &[100, 10, 10]));
        assert_eq!(years(&long, [10, 10], true), "[1999/400, 10/10, 10/10]");
    }

    #[test]
    fn chunks_that_end_with_their_files_stay() {
        let even = vec![Grid::regular(&[360, 8, 8], &[30, 8, 8]); 3];
        for is_flat in [false, true] {
            assert_eq!(years(&even, [8, 8], is_flat), "[1080/30, 8/8, 8/8]");
        }
        let one = Grid::regular(&[8, 8], &[4, 8]);
        let new = grid((&[3, 8, 8], 4), (0, true), &[&one, &one, &one], true);
        assert_eq!(new.to_string(), "[3/1, 8/4, 8/8]");
    }
}
