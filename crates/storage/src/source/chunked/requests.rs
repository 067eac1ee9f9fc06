//! How many requests reading an array takes.
//!
//! ```text
//!   units that an operand reads        1 1 │ 1 1      a chunk that is an object: one request
//!   (lengths along an axis are         1 1 │ 1 1      a shard: one for its index, once; one for each stretch of units
//!   independent of the other axes)     ────┼────      that lie beside each other, or one for each unit of a local file
//!                                      1 1 │ 1 1
//! ```

use super::{Chunked, GAP_BYTES_MAX};
use crate::source::meta::Shard;
use tessera_planner::catalog::SourceRef;
use tessera_planner::grid::{AxisGrid, Grid};
use tessera_planner::region::{Dims, Region};

/// Chunks of an axis that are looked at one by one; those beyond are taken to be like these on average.
const LOOKED_AT: u64 = 1 << 12;

impl Chunked {
    /// Requests of operands that read the boxes of `grid`, which begins at `origin` of the array. Units that are absent
    /// count: nobody knows before. Those of a shard are taken to lie in it one after another, in row-major order, as
    /// long as decoded ones.
    pub(crate) fn requests(
        &self,
        is_local: bool,
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
        if source.plain && source.lines(&lens).is_alone() {
            // Axes of which a typical operand reads all that a chunk has are in the line, and so is the next one.
            let within = (0..lens.len()).rev().take_while(|&a| lens[a] >= unit(a)).count();
            let outer = lens.len().saturating_sub(within + 1);
            let beside = |a: usize| if a < outer { 1 } else { unit(a) };
            let index =
                self.meta.shard.as_ref().map_or(0, |shard| self.indices(shard, grid, origin));
            return index.saturating_add(along(&beside));
        }
        let Some(shard) = &self.meta.shard else { return along(&unit) };
        let indices = self.indices(shard, grid, origin);
        let read = match is_local {
            true => along(&unit),
            false => {
                let shards = along(&|a| unit(a) * shard.counts[a]);
                shards.saturating_mul(self.stretches(shard, grid, origin))
            }
        };
        indices.saturating_add(read)
    }

    /// Shards that are touched, each of which has one index.
    fn indices(&self, shard: &Shard, grid: &Grid, origin: &[u64]) -> u64 {
        grid.axes.iter().zip(origin).enumerate().fold(1u64, |n, (a, (g, o))| {
            let whole = AxisGrid::regular(g.len, g.len);
            n.saturating_mul(touched(&whole, *o, self.meta.unit[a] * shard.counts[a]))
        })
    }

    /// Requests for what a typical operand reads of a shard.
    fn stretches(&self, shard: &Shard, grid: &Grid, origin: &[u64]) -> u64 {
        let first: Vec<u64> = grid.axes.iter().map(|g| u64::from(g.count() > 2)).collect();
        let mut region: Region = grid.region(&first);
        for (a, o) in origin.iter().enumerate() {
            region.start[a] += o;
            region.end[a] += o;
        }
        if region.is_empty() {
            return 0;
        }
        let units = self.units(&region);
        // From the fastest axis on, units lie beside each other as long as all of an axis are read, or what is left
        // out between them is less than another request costs.
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

/// Boxes of `cells` cells that the chunks of an axis touch, each chunk by itself; `origin` is where the axis begins.
fn touched(axis: &AxisGrid, origin: u64, cells: u64) -> u64 {
    let cells = cells.max(1);
    let count = axis.count();
    let looked = count.min(LOOKED_AT);
    let sum: u64 = (0..looked)
        .map(|i| {
            let (start, end) = axis.interval(i);
            match start < end {
                true => (origin + end).div_ceil(cells) - (origin + start) / cells,
                false => 0,
            }
        })
        .sum();
    (u128::from(sum) * u128::from(count) / u128::from(looked.max(1))) as u64
}
