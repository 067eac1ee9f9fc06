//! Bytes that an operand needs while it runs.

use super::boxes::window_region;
use super::{PRODUCT_DEPTH, PRODUCT_LEFT, PRODUCT_PADDING, PRODUCT_RIGHT, PRODUCT_STRIP, Tiling};
use crate::catalog::{Reads, SourceRef};
use crate::dtype::DType;
use crate::grid::ChunkIndex;
use crate::ir::Contraction;
use crate::plan::{Access, Stage, StageId, Task};
use crate::region::Region;
use crate::runs::Runs;
use crate::window;
use std::ops::Range;

/// Bytes that a running operand uses besides chunks: tiles, registers, accumulators, buffers of reads.
const SCRATCH: u64 = Reads::SCRATCH_BYTES;

/// Upper bound on the rounding of the width of packed sides, in cells.
const PRODUCT_ROUNDING: u64 = 16;

impl Tiling {
    /// Bytes of all chunks that the operand computes.
    pub fn output_bytes(&self, stage: StageId, index: &[u64]) -> u64 {
        let s = self.plan.stage(stage);
        s.outputs.iter().map(|o| o.grid.region(index).cells() * o.cell_bytes() as u64).sum()
    }

    /// Bytes that the operand needs besides the chunks that it reads: outputs, inputs that have to be assembled from
    /// several chunks, encoded and decoded bytes of a read, and fixed scratch.
    pub fn peak(&self, stage: StageId, index: &[u64]) -> u64 {
        let s = self.plan.stage(stage);
        let bytes = self.output_bytes(stage, index) + SCRATCH;
        let more = match &s.task {
            Task::Load { source, .. } => {
                let region = self.load_region(stage, index);
                if source.is_resident() && resident_chunk(source, &region).is_some() {
                    return 0;
                }
                read_bytes(source, &region)
            }
            Task::Contract { dtype, axes } => self.product_bytes(stage, index, *dtype, *axes),
            Task::Factor { kind, dtype, .. } => {
                let region = s.grid.region(index);
                let (m, n) = kind.matrix(&region.shape());
                let work = kind.work_cells(m, n).saturating_mul(dtype.size() as u64);
                work.saturating_add(self.all_assembled_bytes(stage, index))
            }
            Task::Merge { axis, runs, .. } => {
                let cells = s.grid.region(index).len(*axis);
                self.merge_bytes(s, runs, cells)
            }
            // One statistic at a time, each of at most two adjacent cells.
            Task::Select { runs, .. } => self.merge_bytes(s, runs, 2),
            Task::Fused(_)
            | Task::Scan { .. }
            | Task::Window { .. }
            | Task::Runs { .. }
            | Task::Sort { .. }
            | Task::Quantile { .. }
            | Task::Lookup { .. }
            | Task::Bin { .. } => {
                let bytes = self.all_assembled_bytes(stage, index);
                let bytes = bytes.saturating_add(line_bytes(s, index, self.table_bytes(s)));
                bytes.saturating_add(carry_bytes(s, index))
            }
            _ => 0,
        };
        bytes.saturating_add(more)
    }

    /// Assembled copies and packed sides of a product.
    fn product_bytes(&self, stage: StageId, index: &[u64], dtype: DType, axes: Contraction) -> u64 {
        let mut bytes = 0u64;
        let region = self.plan.stage(stage).grid.region(index);
        let [m, n, k] = axes.ranges(region.rank());
        let cells = |of: Range<usize>| of.fold(1u64, |n, a| n.saturating_mul(region.len(a)));
        // For a product with a vector a strip is as long as a chunk.
        let vector = axes.summed == 1 && cells(m.clone()).min(cells(n.clone())) == 1;
        let k = if vector { cells(k) } else { cells(k).min(PRODUCT_STRIP) };
        for (input, along, packed) in [(0, m, PRODUCT_LEFT), (1, n, PRODUCT_RIGHT)] {
            if dtype.is_float() {
                let (deep, size) = (PRODUCT_DEPTH as u64, dtype.size() as u64);
                let wide = cells(along.clone()).min(packed as u64 / (deep * size));
                let packed = (wide + PRODUCT_ROUNDING) * k.min(deep) * size;
                bytes = bytes.saturating_add(packed);
            }
            let several = self
                .touched(stage, index, input)
                .is_some_and(|hits| hits.iter().any(|h| h.count() > 1));
            // Several axes may be laid out such that they do not form one axis in place.
            if several || axes != Contraction::MATRICES {
                let row = cells(along).saturating_add(PRODUCT_PADDING);
                let cells = row.saturating_mul(k);
                bytes = bytes.saturating_add(cells.saturating_mul(dtype.size() as u64));
            }
        }
        bytes
    }

    fn all_assembled_bytes(&self, stage: StageId, index: &[u64]) -> u64 {
        let inputs = 0..self.plan.stage(stage).inputs.len();
        inputs.fold(0, |n, k| n.saturating_add(self.assembled_bytes(stage, index, k)))
    }

    /// Bytes of the tables of a lookup or of a count by bins.
    fn table_bytes(&self, s: &Stage) -> u64 {
        let tables = match s.task {
            Task::Lookup { .. } => s.inputs.len(),
            Task::Bin { edges: true, .. } => 2,
            _ => 1,
        };
        let tables = s.inputs.iter().take(tables).skip(1).map(|i| {
            let table = self.plan.output(i.from);
            table.grid.axes.first().map_or(0, |a| a.len) * table.cell_bytes() as u64
        });
        tables.sum()
    }

    fn merge_bytes(&self, s: &Stage, runs: &Runs, cells: u64) -> u64 {
        let from = self.plan.output(s.inputs[0].from);
        let line = from.grid.axes[from.grid.rank() - 1];
        runs.merge_bytes(cells, line, from.cell_bytes() as u64)
    }

    /// Bytes of an input that lies in several chunks and has to be assembled; 0 if it is read in place.
    pub fn assembled_bytes(&self, stage: StageId, index: &[u64], input: usize) -> u64 {
        let s = self.plan.stage(stage);
        let i = &s.inputs[input];
        let region = s.grid.region(index);
        let (view, region) = match &i.access {
            Access::View(view) => (view, region),
            Access::Window { axis, frame, view } => {
                (view, window_region(&region, *axis, *frame, &s.grid.shape()))
            }
            _ => return 0,
        };
        match self.touched(stage, index, input) {
            Some(hits) if hits.iter().any(|h| h.count() > 1) => {
                let out = self.plan.output(i.from);
                view.image(&region).cells().saturating_mul(out.cell_bytes() as u64)
            }
            _ => 0,
        }
    }
}

/// Returns the chunk of an array in memory that is exactly this box, if there is one: it is shared, not copied.
pub fn resident_chunk(source: &SourceRef, region: &Region) -> Option<ChunkIndex> {
    let at = source.grid.overlapping(region).start;
    (source.grid.region(&at) == *region).then_some(at)
}

/// Encoded and decoded bytes of the chunks that hold a box of a source.
fn read_bytes(source: &SourceRef, region: &Region) -> u64 {
    if source.is_resident() {
        return 0;
    }
    let shape = region.shape();
    if source.plain && source.lines(&shape).is_alone() {
        return source.window(&shape);
    }
    let chunks = source.grid.overlapping(region);
    let stored: u64 = (0..region.rank()).fold(source.dtype.size() as u64, |n, a| {
        let (lo, _) = source.grid.axes[a].interval(chunks.start[a]);
        let last = chunks.end[a].max(chunks.start[a] + 1) - 1;
        let (_, hi) = source.grid.axes[a].interval(last);
        n.saturating_mul((hi - lo).max(1))
    });
    // Encoded bytes are assumed not to exceed the decoded ones; one chunk is decoded at a time.
    let one = source.grid.chunk_bytes_max(source.dtype.size()).min(stored);
    stored.saturating_add(one)
}

/// Bytes of a scan's carry: the last position of the previous chunk.
fn carry_bytes(s: &Stage, index: &[u64]) -> u64 {
    let Task::Scan { axis, .. } = &s.task else { return 0 };
    let out = &s.outputs[0];
    let region = out.grid.region(index);
    let slice = region.cells() / region.len(*axis).max(1);
    slice.saturating_mul(out.cell_bytes() as u64)
}

/// Scratch of a task over whole lines (a block of window states, or the keys of one line) or of a lookup.
fn line_bytes(s: &Stage, index: &[u64], table_bytes: u64) -> u64 {
    let region = s.grid.region(index);
    match &s.task {
        Task::Runs { runs, kept, .. } => {
            let len = region.len(region.rank() - 1);
            // Keys have the size of the cells.
            runs.sort_bytes(s.outputs[0].fields[0], len, *kept)
        }
        Task::Window { axis, frame, .. } => {
            let lines = region.cells() / region.len(*axis).max(1);
            window::scratch_bytes(*frame, s.grid.axes[*axis].len, lines)
        }
        // Tables are copied out of their chunks.
        Task::Lookup { .. } | Task::Bin { .. } => table_bytes,
        // A key and a position, of 8 bytes each.
        Task::Sort { axis, .. } | Task::Quantile { axis, .. } => {
            region.len(*axis).saturating_mul(16)
        }
        _ => 0,
    }
}
