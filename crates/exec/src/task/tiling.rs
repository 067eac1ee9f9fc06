//! The scheduler's view of a planned query.

use crate::error::WHOLE;
use crate::schedule::Tiling;
use tessera_planner::estimate::is_read_in_parts;
use tessera_planner::factor::Factor;
use tessera_planner::grid::{ChunkIndex, Grid};
use tessera_planner::plan::{Access, OutputRef, StageId, Task};
use tessera_planner::tile;

impl Tiling for tile::Tiling {
    fn stages(&self) -> usize {
        self.plan().stages.len()
    }

    fn results(&self) -> &[OutputRef] {
        &self.plan().results
    }

    fn grid(&self, stage: StageId) -> &Grid {
        &self.plan().stage(stage).grid
    }

    fn outputs(&self, stage: StageId) -> usize {
        self.plan().stage(stage).outputs.len()
    }

    fn output_grid(&self, of: OutputRef) -> &Grid {
        &self.plan().output(of).grid
    }

    fn name(&self, stage: StageId) -> String {
        match &self.plan().stage(stage).task {
            Task::Load { source, .. } => format!("load {}#{}", source.url, source.path),
            Task::Factor { kind, .. } => {
                let (m, n) = kind.matrix(&self.plan().stage(stage).grid.longest());
                match kind {
                    Factor::QrBlocks { .. } | Factor::QrApply { .. } => {
                        format!("{} of a block [{m}, {n}] of a tall matrix", kind.name())
                    }
                    _ => format!("{} of a {WHOLE} [{m}, {n}]", kind.name()),
                }
            }
            task => task.name(),
        }
    }

    fn reads(&self, stage: StageId, index: &[u64], f: &mut dyn FnMut(OutputRef, ChunkIndex)) {
        self.reads(stage, index, f);
    }

    fn read_count(&self, stage: StageId, index: &[u64]) -> u64 {
        tile::Tiling::read_count(self, stage, index)
    }

    fn readers(&self, of: OutputRef, index: &[u64]) -> u64 {
        self.readers(of, index)
    }

    fn peak(&self, stage: StageId, index: &[u64]) -> u64 {
        self.peak(stage, index)
    }

    fn output_bytes(&self, stage: StageId, index: &[u64]) -> u64 {
        // A chunk of an array in memory is shared: it is charged to the holder of the array.
        match &self.plan().stage(stage).task {
            Task::Load { source, .. } if source.is_resident() && self.peak(stage, index) == 0 => 0,
            _ => self.output_bytes(stage, index),
        }
    }

    fn depth(&self, stage: StageId) -> u32 {
        self.depth(stage)
    }

    fn is_rereadable(&self, stage: StageId) -> bool {
        self.is_rereadable(stage)
    }

    fn parts(&self, stage: StageId, index: &[u64], from: OutputRef) -> Option<u64> {
        let s = self.plan().stage(stage);
        match &s.task {
            // Parts are read straight into the output.
            Task::Copy => Some(0),
            // The peak has memory for the parts.
            Task::Merge { .. } | Task::Select { .. } => Some(0),
            Task::Fused(_) | Task::Scan { .. } => {
                let mut bytes = 0u64;
                for (k, input) in s.inputs.iter().enumerate().filter(|(_, i)| i.from == from) {
                    // Several chunks are copied together in any case, which the peak includes. For a single chunk,
                    // the box that the operand sees is copied instead of being read in place.
                    if let Access::View(view) = &input.access
                        && self.assembled_bytes(stage, index, k) == 0
                    {
                        let cells = view.image(&s.grid.region(index)).cells();
                        let cell = self.plan().output(from).cell_bytes() as u64;
                        bytes = bytes.saturating_add(cells.saturating_mul(cell));
                    }
                }
                Some(bytes)
            }
            _ => None,
        }
    }

    fn is_read_in_parts(&self, stage: StageId) -> bool {
        is_read_in_parts(self, stage)
    }
}
