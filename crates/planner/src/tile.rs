//! The chunks that an operand reads, the readers of a chunk, and the cost of an operand: functions, not lists.
//!
//! ```text
//!   operand (stage, index)  ──grid──▶ its cells ──access──▶ cells of the input ──grid──▶ chunks of the input
//!   chunk                   ──grid──▶ its cells ──inverse access──▶ operands that read it
//! ```
//! Along each axis an access touches a run (or a sorted list) of chunks, so both directions are products over axes.

mod boxes;
mod hits;
mod peak;
mod readers;
mod sets;

pub(crate) use boxes::{add_disjoint, cut};
pub use boxes::{for_each_index, part_region, reshaped, window_region};
pub use peak::resident_chunk;
pub use sets::insert_box;

use crate::grid::ChunkIndex;
use crate::plan::{Access, OutputRef, Plan, StageId, Task};
use crate::region::{Dims, Region};
use boxes::joins;
use hits::{Hits, Taken, Touched, box_hits, each, hit_boxes, taken, view_hits};
use smallvec::{SmallVec, smallvec};
use std::sync::Arc;

/// Cells of the summed axis that a product processes at a time: if its sides lie in several chunks, they are assembled
/// for this many.
pub const PRODUCT_STRIP: u64 = 1024;

/// Products of floats that are summed before the sum is added to the result. This order decides bits.
pub const PRODUCT_DEPTH: usize = 256;

/// Bytes of the left side that a product packs at a time; the right side is packed again for each such block.
pub const PRODUCT_LEFT: usize = 2 << 20;

/// Upper bound on the bytes of the right side that a product packs at a time: they stay in the second-level cache.
pub const PRODUCT_RIGHT: usize = 384 << 10;

/// Padding, in cells, between the rows of a copied strip, so that the distance of rows is not a multiple of the page
/// size.
pub const PRODUCT_PADDING: u64 = 16;

/// Upper bound on the disjoint boxes of chunks behind a reshape; above it one bounding box is used.
const RESHAPED_BOXES_MAX: usize = 1024;

/// A plan with derived data that is worth computing once.
#[derive(Debug, Clone)]
pub struct Tiling {
    plan: Arc<Plan>,
    /// Length of the longest path from a source to each stage.
    depth: Vec<u32>,
    /// For each stage and output, the stages and input numbers that read it.
    users: Vec<Vec<Vec<(StageId, usize)>>>,
    taken: Taken,
}

impl Tiling {
    /// Derives the data of a plan.
    pub fn new(plan: Arc<Plan>) -> Self {
        let mut depth = vec![0u32; plan.stages.len()];
        let mut users: Vec<Vec<Vec<(StageId, usize)>>> =
            plan.stages.iter().map(|s| vec![Vec::new(); s.outputs.len()]).collect();
        for (i, stage) in plan.stages.iter().enumerate() {
            for (k, input) in stage.inputs.iter().enumerate() {
                let from = input.from.stage.0 as usize;
                if from != i {
                    depth[i] = depth[i].max(depth[from] + 1);
                }
                users[from][input.from.output as usize].push((StageId(i as u32), k));
            }
        }
        let taken = taken(&plan);
        Tiling { plan, depth, users, taken }
    }

    /// The plan of this tiling.
    pub fn plan(&self) -> &Arc<Plan> {
        &self.plan
    }

    /// Length of the longest path from a source to the stage, in stages.
    pub fn depth(&self, stage: StageId) -> u32 {
        self.depth[stage.0 as usize]
    }

    /// True if the stage's chunks can be dropped and read again.
    pub fn is_rereadable(&self, stage: StageId) -> bool {
        matches!(self.plan.stage(stage).task, Task::Load { .. })
    }

    /// Calls `f` once for each chunk that the operand reads through any input, in the order of the inputs.
    pub fn reads(&self, stage: StageId, index: &[u64], f: &mut dyn FnMut(OutputRef, ChunkIndex)) {
        let s = self.plan.stage(stage);
        let mut seen: SmallVec<[(OutputRef, Touched); 3]> = SmallVec::new();
        for (k, input) in s.inputs.iter().enumerate() {
            let Some(hits) = self.touched(stage, index, k) else { continue };
            each(&hits, &mut |chunk| {
                let holds = |h: &Touched| h.iter().zip(&chunk).all(|(h, &c)| h.contains(c));
                if !seen.iter().any(|(o, h)| *o == input.from && holds(h)) {
                    f(input.from, chunk);
                }
            });
            seen.push((input.from, hits));
        }
    }

    /// Upper bound on the number of chunks that the operand reads, computed without enumerating them.
    pub fn read_count(&self, stage: StageId, index: &[u64]) -> u64 {
        (0..self.plan.stage(stage).inputs.len())
            .filter_map(|input| self.touched(stage, index, input))
            .map(|hits| hits.iter().fold(1u64, |n, h| n.saturating_mul(h.count())))
            .fold(0, u64::saturating_add)
    }

    /// Returns the chunks of one input that the operand reads, row-major: exec assembles the input from them.
    pub fn pieces(&self, stage: StageId, index: &[u64], input: usize) -> Vec<ChunkIndex> {
        let mut out = Vec::new();
        if let Some(hits) = self.touched(stage, index, input) {
            each(&hits, &mut |c| out.push(c));
        }
        out
    }

    /// Returns the chunks of one input that the operand reads, as runs along axes; `None` if it reads nothing.
    fn touched(&self, stage: StageId, index: &[u64], number: usize) -> Option<Touched> {
        self.touched_by(stage, &Region::at(index, &Dims::from_elem(1, index.len())), number)
    }

    /// Returns the chunks of one input that the operands of a box read together, as runs along axes; `None` if they
    /// read nothing. Along each axis the chunks depend on the operand's place along at most one axis, so the result is
    /// exact, except for a reshape: there it is the bounding box of all cells read.
    fn touched_by(&self, stage: StageId, operands: &Region, number: usize) -> Option<Touched> {
        let s = self.plan.stage(stage);
        let input = &s.inputs[number];
        let grid = &self.plan.output(input.from).grid;
        let region = s.grid.cells(operands);
        match &input.access {
            Access::View(view) => view_hits(view, &region, grid),
            Access::Fan(fan) => Some(
                (0..fan.len())
                    .map(|a| {
                        let (lo, hi) = (operands.start[a], operands.end[a]);
                        Hits::Run(lo * fan[a], (hi * fan[a]).min(grid.axes[a].count()))
                    })
                    .collect(),
            ),
            Access::Part { part, view } => view_hits(view, &part_region(&region, part)?, grid),
            Access::Take { axis, .. } => {
                if region.is_empty() {
                    return None;
                }
                let mut hits = box_hits(grid, &region, Some(*axis))?;
                let lists = self.taken.get(&(stage, number))?;
                let (lo, hi) = (operands.start[*axis] as usize, operands.end[*axis] as usize);
                let list = match lists.get(lo..hi)? {
                    [one] => one.clone(),
                    many => {
                        let mut all: Vec<u64> =
                            many.iter().flat_map(|l| l.iter().copied()).collect();
                        all.sort_unstable();
                        all.dedup();
                        all.into()
                    }
                };
                if list.is_empty() {
                    return None;
                }
                hits[*axis] = Hits::List(list);
                Some(hits)
            }
            Access::Reshape(from) => {
                let read = reshaped(&region, &s.grid.shape(), from)?;
                box_hits(grid, &read, None)
            }
            Access::Window { axis, frame, view } => {
                let region = window_region(&region, *axis, *frame, &s.grid.shape());
                view_hits(view, &region, grid)
            }
            Access::Runs { axis } => {
                let mut hits: Touched = smallvec![];
                for (place, a) in (0..region.rank()).filter(|a| a != axis).enumerate() {
                    let (lo, hi) = grid.axes[place].overlapping(region.start[a], region.end[a]);
                    hits.push(Hits::Run(lo, hi));
                }
                hits.push(Hits::Run(0, grid.axes[hits.len()].count()));
                Some(hits)
            }
            Access::Previous { axis } => {
                let run = |a: usize| {
                    let (lo, hi) = (operands.start[a], operands.end[a]);
                    if a == *axis { (lo.max(1) - 1, hi - 1) } else { (lo, hi) }
                };
                let runs = (0..operands.rank()).map(run);
                let hits: Touched = runs.map(|(lo, hi)| Hits::Run(lo, hi)).collect();
                hits.iter().all(|h| h.count() > 0).then_some(hits)
            }
        }
    }

    /// Returns the chunks of one input that the operands of a box read together, as disjoint boxes. The reads of a
    /// reshape are collected operand by operand, in time that grows with the operands; above [`RESHAPED_BOXES_MAX`]
    /// boxes the result is their bounding box.
    pub(crate) fn reads_of(&self, stage: StageId, operands: &Region, input: usize) -> Vec<Region> {
        let boxes = |hits: Option<Touched>| hits.map_or(Vec::new(), |h| hit_boxes(&h));
        if !matches!(self.plan.stage(stage).inputs[input].access, Access::Reshape(_)) {
            return boxes(self.touched_by(stage, operands, input));
        }
        let mut all: Vec<Region> = Vec::new();
        for_each_index(operands, &mut |index| {
            for new in boxes(self.touched(stage, index, input)) {
                match all.last_mut() {
                    Some(last) if last.contains(&new) => {}
                    Some(last) if joins(last, &new) => last.end = new.end,
                    _ => all.push(new),
                }
            }
        });
        if all.len() > RESHAPED_BOXES_MAX {
            return boxes(self.touched_by(stage, operands, input));
        }
        let mut disjoint = Vec::with_capacity(all.len());
        all.into_iter().for_each(|b| add_disjoint(&mut disjoint, b));
        disjoint
    }

    /// Returns the stages that read an output, each with the number of its input, ascending.
    pub(crate) fn users(&self, of: OutputRef) -> &[(StageId, usize)] {
        &self.users[of.stage.0 as usize][of.output as usize]
    }

    /// Returns the region of its source that an operand of a `Load` stage reads; empty for other stages.
    pub fn load_region(&self, stage: StageId, index: &[u64]) -> Region {
        let s = self.plan.stage(stage);
        let mut region = s.grid.region(index);
        if let Task::Load { origin, .. } = &s.task {
            for (a, o) in origin.iter().enumerate() {
                region.start[a] += o;
                region.end[a] += o;
            }
        }
        region
    }
}
