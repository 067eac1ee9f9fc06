//! Number of requests for reading an array.
//!
//! ```text
//!   units that an operand reads        1 1 │ 1 1      a chunk that is an object: one request
//!   (lengths along an axis are         1 1 │ 1 1      a shard: one or two for its index, once; one per stretch of
//!   independent of the other axes)     ────┼────      adjacent units, or one for each unit of a local file
//!                                      1 1 │ 1 1      a local chunk without codecs: what [`Reads`] says
//! ```

use super::Chunked;
use super::place::lines::TOGETHER_BYTES;
use super::ranges::{GAP_BYTES_MAX, MERGED_BYTES_MAX, SPARSE_BYTES_MAX, is_sparse};
use crate::source::boxes::typical_box;
use crate::source::meta::Shard;
use crate::source::store::Store;
use tessera_planner::catalog::{Reads, SourceRef};
use tessera_planner::grid::{AxisGrid, Grid};
use tessera_planner::region::Dims;

/// Chunks of an axis that are counted one by one; the rest is extrapolated from their average.
const LOOKED_AT: u64 = 1 << 12;

impl Chunked {
    /// Number of requests of operands that read the boxes of `grid`, which begins at `origin` of the array. Absent
    /// units count, as they are not known in advance. Units of a shard are assumed to be stored one after another, in
    /// row-major order, with their decoded length.
    pub(crate) fn requests(
        &self,
        store: &Store,
        source: &SourceRef,
        grid: &Grid,
        origin: &[u64],
    ) -> u64 {
        let along = |cells: &dyn Fn(usize) -> u64| {
            let axes = grid.axes.iter().zip(origin).enumerate();
            axes.fold(1u64, |n, (a, (g, o))| n.saturating_mul(touched(g, *o, cells(a))))
        };
        let unit = |a: usize| self.meta.unit[a];
        let lens: Dims = grid.axes.iter().map(|g| g.chunk).collect();
        if let Some(each) = self.units_of_read(store, source, &lens) {
            return along(&unit).div_ceil(each);
        }
        if source.plain && source.lines(&lens).is_alone() {
            let part: Dims = lens.iter().zip(&self.meta.unit).map(|(n, u)| *n.min(u)).collect();
            let reads = source.reads(&self.meta.unit, &part, &lens);
            let beside = |a: usize| if a < reads.apart { 1 } else { unit(a) };
            let steps = part.get(reads.apart).map_or(1, |n| n.div_ceil(reads.step));
            let index = self.meta.shard.as_ref();
            let index = index.map_or(0, |shard| self.indices(store, shard, grid, origin));
            return index.saturating_add(along(&beside).saturating_mul(steps));
        }
        let Some(shard) = &self.meta.shard else { return along(&unit) };
        let indices = self.indices(store, shard, grid, origin);
        let read = match store.is_local() {
            true => along(&unit),
            false => {
                let shards = along(&|a| unit(a) * shard.counts[a]);
                shards.saturating_mul(self.stretches(shard, grid, origin))
            }
        };
        indices.saturating_add(read)
    }

    /// Chunks of a file that an operand that reads boxes of `lens` cells reads at once, if they are several. They are
    /// assumed to be stored with their decoded length.
    fn units_of_read(&self, store: &Store, source: &SourceRef, lens: &[u64]) -> Option<u64> {
        let gap = self.file.as_ref().and_then(|file| file.index.gap())?;
        let bytes = self.meta.unit_bytes();
        let part: Dims = lens.iter().zip(&self.meta.unit).map(|(n, u)| *n.min(u)).collect();
        // From the fastest axis on, chunks lie one after another as long as all of an axis are read.
        let mut run = 1u64;
        for (a, n) in lens.iter().enumerate().rev() {
            let unit = self.meta.unit[a].max(1);
            let read = n.div_ceil(unit).max(1);
            run = run.saturating_mul(read);
            if read < source.shape[a].div_ceil(unit) {
                break;
            }
        }
        let (most, gap_max) = match store.is_local() {
            true if !self.is_read_together(&part) => return None,
            true => (TOGETHER_BYTES, Reads::GAP_BYTES),
            false if is_sparse(run.saturating_mul(bytes), run.saturating_mul(gap)) => {
                (SPARSE_BYTES_MAX, GAP_BYTES_MAX)
            }
            false => (MERGED_BYTES_MAX, GAP_BYTES_MAX),
        };
        if gap > gap_max {
            return None;
        }
        let most = 1 + most.saturating_sub(bytes) / bytes.saturating_add(gap).max(1);
        Some(run.min(most)).filter(|n| *n > 1)
    }

    /// Requests for the indices of the touched shards.
    fn indices(&self, store: &Store, shard: &Shard, grid: &Grid, origin: &[u64]) -> u64 {
        let each = store.first_part_requests(shard.at_end);
        grid.axes.iter().zip(origin).enumerate().fold(each, |n, (a, (g, o))| {
            let whole = AxisGrid::regular(g.len, g.len);
            n.saturating_mul(touched(&whole, *o, self.meta.unit[a] * shard.counts[a]))
        })
    }

    /// Requests for the part of a shard that a typical operand reads.
    fn stretches(&self, shard: &Shard, grid: &Grid, origin: &[u64]) -> u64 {
        let region = typical_box(grid, origin);
        if region.is_empty() {
            return 0;
        }
        let units = self.units(&region);
        // From the fastest axis on, units are adjacent as long as all of an axis are read, or the gap between them
        // costs less than another request.
        let (mut requests, mut apart, mut each) = (1u64, false, self.meta.unit_bytes());
        for a in (0..units.rank()).rev() {
            let (count, read) =
                (shard.counts[a], (units.end[a] - units.start[a]).min(shard.counts[a]));
            if apart {
                requests = requests.saturating_mul(read);
            }
            let gap = (count - read).saturating_mul(each);
            apart |= gap > GAP_BYTES_MAX;
            each = each.saturating_mul(count);
        }
        requests
    }
}

/// Number of boxes of `cells` cells that the chunks of an axis touch, each chunk by itself; the axis begins at
/// `origin`.
fn touched(axis: &AxisGrid, origin: u64, cells: u64) -> u64 {
    let cells = cells.max(1);
    let count = axis.count();
    let looked = count.min(LOOKED_AT);
    let sum: u64 = (0..looked)
        .map(|i| {
            let (start, end) = axis.interval(i);
            if start < end { (origin + end).div_ceil(cells) - (origin + start) / cells } else { 0 }
        })
        .sum();
    (u128::from(sum) * u128::from(count) / u128::from(looked.max(1))) as u64
}
