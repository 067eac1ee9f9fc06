//! Which chunks an operand reads, who reads a chunk, and what an operand costs: functions, not lists.
//!
//! ```text
//!   operand (stage, index)  ──grid──▶ its cells ──access──▶ cells of the input ──grid──▶ chunks of the input
//!   chunk                   ──grid──▶ its cells ──inverse access──▶ operands that read it
//! ```
//! Along each axis an access touches a run (or a sorted list) of chunks, so both directions are products over axes.

use crate::catalog::SourceRef;
use crate::grid::{ChunkIndex, Grid};
use crate::ir::Contraction;
use crate::plan::{Access, OutputRef, Plan, Stage, StageId, Task};
use crate::region::{Dims, Region};
use crate::runs::Runs;
use crate::view::View;
use crate::window::{self, Frame};
use smallvec::{SmallVec, smallvec};
use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;

/// Bytes that a running operand uses beside chunks: tiles, registers, accumulators.
const SCRATCH: u64 = 256 << 10;

/// Cells of the contracted axis that a product takes at a time: its sides are copied together for so many, if they lie
/// in several chunks.
pub const PRODUCT_STRIP: u64 = 1024;

/// Products of floats that are summed before they are added to the result: their order, which decides bits.
pub const PRODUCT_DEPTH: usize = 256;

/// Bytes that a product packs of its left side at a time: so often is its right side packed again.
pub const PRODUCT_LEFT: usize = 2 << 20;

/// Bytes that it packs of its right side at a time, at most: they stay in the second-level cache.
pub const PRODUCT_RIGHT: usize = 384 << 10;

/// Cells by which packed sides may be wider than they are.
const PRODUCT_ROUNDING: u64 = 16;

/// Cells between the rows of a strip that is copied so that its rows do not lie pages apart.
pub const PRODUCT_PADDING: u64 = 16;

/// Boxes of chunks that are told apart where cells are reshaped.
const RESHAPED_BOXES_MAX: usize = 1024;

/// A plan with what is worth computing once.
#[derive(Debug, Clone)]
pub struct Tiling {
    plan: Arc<Plan>,
    /// Longest way from a source to each stage.
    depth: Vec<u32>,
    /// For each stage and output, the stages and inputs that read it.
    users: Vec<Vec<Vec<(StageId, usize)>>>,
    taken: Taken,
}

/// For each input that is taken along an axis, and each chunk of its stage along it, the chunks that hold what it takes:
/// as many numbers as there are positions, at most.
type Taken = BTreeMap<(StageId, usize), Vec<Arc<[u64]>>>;

/// Chunks along one axis.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Hits {
    Run(u64, u64),
    List(Arc<[u64]>),
}

impl Hits {
    fn count(&self) -> u64 {
        match self {
            Hits::Run(lo, hi) => hi - lo,
            Hits::List(v) => v.len() as u64,
        }
    }

    fn get(&self, i: u64) -> u64 {
        match self {
            Hits::Run(lo, _) => lo + i,
            Hits::List(v) => v[i as usize],
        }
    }

    fn contains(&self, chunk: u64) -> bool {
        match self {
            Hits::Run(lo, hi) => (*lo..*hi).contains(&chunk),
            Hits::List(v) => v.binary_search(&chunk).is_ok(),
        }
    }
}

type Touched = SmallVec<[Hits; 6]>;

impl Tiling {
    /// Prepares a plan.
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

    /// The plan.
    pub fn plan(&self) -> &Arc<Plan> {
        &self.plan
    }

    /// Longest way from a source to the stage, in stages.
    pub fn depth(&self, stage: StageId) -> u32 {
        self.depth[stage.0 as usize]
    }

    /// True if the stage's chunks can be dropped and read again.
    pub fn is_rereadable(&self, stage: StageId) -> bool {
        matches!(self.plan.stage(stage).task, Task::Load { .. })
    }

    /// Calls `f` once for each chunk that the operand reads, of whatever input, in the order of the inputs.
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

    /// At most how many chunks the operand reads: found without going through them.
    pub fn read_count(&self, stage: StageId, index: &[u64]) -> u64 {
        (0..self.plan.stage(stage).inputs.len())
            .filter_map(|input| self.touched(stage, index, input))
            .map(|hits| hits.iter().fold(1u64, |n, h| n.saturating_mul(h.count())))
            .fold(0, u64::saturating_add)
    }

    /// The chunks of one input that the operand reads, row-major: what exec gathers the input from.
    pub fn pieces(&self, stage: StageId, index: &[u64], input: usize) -> Vec<ChunkIndex> {
        let mut out = Vec::new();
        if let Some(hits) = self.touched(stage, index, input) {
            each(&hits, &mut |c| out.push(c));
        }
        out
    }

    /// The chunks of one input that the operand reads, as runs along axes; `None` if it reads nothing.
    fn touched(&self, stage: StageId, index: &[u64], number: usize) -> Option<Touched> {
        self.touched_by(stage, &Region::at(index, &Dims::from_elem(1, index.len())), number)
    }

    /// The chunks of one input that the operands of a box read together, as runs along axes; `None` if they read
    /// nothing. Along each axis what is read depends on the operand's place along one axis at most, so that this is
    /// exact, but for cells that are reshaped: there it is the smallest box that holds what the cells of the whole box
    /// read.
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

    /// The chunks of one input that the operands of a box read together, as disjoint boxes of chunks. What a reshape
    /// reads is asked of each operand, so that it takes time that grows with them; of more than
    /// [`RESHAPED_BOXES_MAX`] boxes the smallest one around them is given instead.
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

    /// The stages that read an output, each with the number of its input, ascending.
    pub(crate) fn users(&self, of: OutputRef) -> &[(StageId, usize)] {
        &self.users[of.stage.0 as usize][of.output as usize]
    }

    /// Number of operands that read a chunk, over all stages; saturates.
    pub fn readers(&self, of: OutputRef, index: &[u64]) -> u64 {
        let mut total = 0u64;
        let users = &self.users[of.stage.0 as usize][of.output as usize];
        for (i, (stage, _)) in users.iter().enumerate() {
            if users[..i].iter().any(|(s, _)| s == stage) {
                continue;
            }
            let inputs: SmallVec<[usize; 3]> =
                users.iter().filter(|(s, _)| s == stage).map(|(_, k)| *k).collect();
            let s = self.plan.stage(*stage);
            if let [k] = inputs[..] {
                total = total.saturating_add(self.readers_by(*stage, k, of, index));
                continue;
            }
            // An operand that reads the chunk by several inputs is one reader.
            let mut boxes: Vec<Region> = Vec::new();
            for &k in &inputs {
                if let Some(b) = self.reader_box(s, k, of, index) {
                    add_disjoint(&mut boxes, b);
                }
            }
            total = boxes.iter().fold(total, |n, b| n.saturating_add(b.cells()));
        }
        total
    }

    fn readers_by(&self, stage: StageId, k: usize, of: OutputRef, index: &[u64]) -> u64 {
        let s = self.plan.stage(stage);
        let Some(candidates) = self.reader_box(s, k, of, index) else { return 0 };
        match &s.inputs[k].access {
            // Here not every operand of the box need read the chunk.
            Access::Take { axis, .. } => {
                let lists = self.taken.get(&(stage, k)).map_or(&[][..], |l| l.as_slice());
                let along = candidates.start[*axis]..candidates.end[*axis];
                let reads = |op: &u64| {
                    lists.get(*op as usize).is_some_and(|l| l.binary_search(&index[*axis]).is_ok())
                };
                let beside = candidates.cells() / candidates.len(*axis).max(1);
                beside.saturating_mul(along.filter(reads).count() as u64)
            }
            Access::Reshape(_) => {
                let mut n = 0;
                for_each_index(&candidates, &mut |op| {
                    let reads = self.touched(stage, op, k);
                    let hit =
                        reads.is_some_and(|h| h.iter().zip(index).all(|(h, &c)| h.contains(c)));
                    n += u64::from(hit);
                });
                n
            }
            _ => candidates.cells(),
        }
    }

    /// The box of operands of a stage that may read a chunk by an input; exact but for takes and reshapes.
    fn reader_box(&self, s: &Stage, k: usize, of: OutputRef, index: &[u64]) -> Option<Region> {
        let grid = &self.plan.output(of).grid;
        let cells = grid.region(index);
        let shape = s.grid.shape();
        let operands = |region: &Region| {
            let b = s.grid.overlapping(region);
            (!region.is_empty() && !b.is_empty()).then_some(b)
        };
        match &s.inputs[k].access {
            Access::View(view) => operands(&preimage(view, &cells, &shape)?),
            Access::Fan(fan) => {
                let at: Dims = index.iter().zip(fan).map(|(i, f)| i / f).collect();
                Some(Region::at(&at, &Dims::from_elem(1, at.len())))
            }
            Access::Part { part, view } => {
                let region = preimage(view, &cells, &part.shape())?;
                operands(&region.moved_by(&part.start))
            }
            Access::Take { axis, positions } => {
                let inside = |p: &u64| (cells.start[*axis]..cells.end[*axis]).contains(p);
                let first = positions.iter().position(inside)? as u64;
                let last = positions.iter().rposition(inside)? as u64;
                let mut region = cells;
                region.start[*axis] = first;
                region.end[*axis] = last + 1;
                operands(&region)
            }
            Access::Reshape(from) => {
                // A run of cells that ends within a row reads a box of whole rows, so whoever reads a row may read
                // every chunk of it.
                let mut rows = cells;
                for a in 1..rows.rank() {
                    (rows.start[a], rows.end[a]) = (0, from[a]);
                }
                operands(&reshaped(&rows, from, &shape)?)
            }
            Access::Window { axis, frame, view } => {
                let mut region = preimage(view, &cells, &shape)?;
                let seen = (region.start[*axis], region.end[*axis]);
                (region.start[*axis], region.end[*axis]) =
                    frame.readers(seen.0, seen.1, shape[*axis]);
                operands(&region)
            }
            Access::Runs { axis } => {
                let mut readers = Region::whole(&s.grid.counts());
                for (place, a) in (0..readers.rank()).filter(|a| a != axis).enumerate() {
                    (readers.start[a], readers.end[a]) =
                        s.grid.axes[a].overlapping(cells.start[place], cells.end[place]);
                }
                Some(readers)
            }
            Access::Previous { axis } => {
                let mut next: Dims = index.into();
                next[*axis] += 1;
                (next[*axis] < s.grid.axes[*axis].count())
                    .then(|| Region::at(&next, &Dims::from_elem(1, next.len())))
            }
        }
    }

    /// Bytes of all chunks that the operand makes.
    pub fn output_bytes(&self, stage: StageId, index: &[u64]) -> u64 {
        let s = self.plan.stage(stage);
        s.outputs.iter().map(|o| o.grid.region(index).cells() * o.cell_bytes() as u64).sum()
    }

    /// Bytes that the operand needs beside the chunks that it reads: outputs, inputs that have to be assembled from
    /// several chunks, encoded and decoded bytes of a read, and fixed scratch.
    pub fn peak(&self, stage: StageId, index: &[u64]) -> u64 {
        let s = self.plan.stage(stage);
        let mut bytes = self.output_bytes(stage, index) + SCRATCH;
        match &s.task {
            Task::Load { source, .. } => {
                let region = self.load_region(stage, index);
                if source.is_resident() && resident_chunk(source, &region).is_some() {
                    return 0;
                }
                if source.plain && source.lines(&region.shape()).is_alone() {
                    return bytes;
                }
                let chunks = source.grid.overlapping(&region);
                let stored: u64 = (0..region.rank()).fold(source.dtype.size() as u64, |n, a| {
                    let (lo, _) = source.grid.axes[a].interval(chunks.start[a]);
                    let last = chunks.end[a].max(chunks.start[a] + 1) - 1;
                    let (_, hi) = source.grid.axes[a].interval(last);
                    n.saturating_mul((hi - lo).max(1))
                });
                if !source.is_resident() {
                    // Encoded bytes are taken to be at most the decoded ones; one chunk is decoded at a time.
                    let one = source.grid.chunk_bytes_max(source.dtype.size()).min(stored);
                    bytes = bytes.saturating_add(stored).saturating_add(one);
                }
            }
            Task::Contract { dtype, axes } => {
                let region = s.grid.region(index);
                let [m, n, k] = axes.ranges(region.rank());
                let cells =
                    |of: Range<usize>| of.fold(1u64, |n, a| n.saturating_mul(region.len(a)));
                // A strip beside a vector is as long as a chunk.
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
                    // Several axes may lie such that they are not one in place.
                    if several || *axes != Contraction::MATRICES {
                        let row = cells(along).saturating_add(PRODUCT_PADDING);
                        let cells = row.saturating_mul(k);
                        bytes = bytes.saturating_add(cells.saturating_mul(dtype.size() as u64));
                    }
                }
            }
            Task::Factor { kind, dtype, .. } => {
                let region = s.grid.region(index);
                let (m, n) = kind.matrix(&region.shape());
                let work = kind.work_cells(m, n).saturating_mul(dtype.size() as u64);
                bytes = bytes.saturating_add(work);
                for k in 0..s.inputs.len() {
                    bytes = bytes.saturating_add(self.assembled_bytes(stage, index, k));
                }
            }
            Task::Merge { axis, runs, .. } => {
                let cells = s.grid.region(index).len(*axis);
                bytes = bytes.saturating_add(self.merge_bytes(s, runs, cells));
            }
            // One statistic after the other, each of up to two neighbouring cells.
            Task::Select { runs, .. } => {
                bytes = bytes.saturating_add(self.merge_bytes(s, runs, 2));
            }
            Task::Fused(_)
            | Task::Scan { .. }
            | Task::Window { .. }
            | Task::Runs { .. }
            | Task::Sort { .. }
            | Task::Quantile { .. }
            | Task::Lookup { .. }
            | Task::Bin { .. } => {
                for k in 0..s.inputs.len() {
                    bytes = bytes.saturating_add(self.assembled_bytes(stage, index, k));
                }
                let tables = match s.task {
                    Task::Lookup { .. } => s.inputs.len(),
                    Task::Bin { edges: true, .. } => 2,
                    _ => 1,
                };
                let tables = s.inputs.iter().take(tables).skip(1).map(|i| {
                    let table = self.plan.output(i.from);
                    table.grid.axes.first().map_or(0, |a| a.len) * table.cell_bytes() as u64
                });
                bytes = bytes.saturating_add(line_bytes(s, index, tables.sum()));
                if let Task::Scan { axis, .. } = &s.task {
                    // The last position of the chunk before.
                    let out = &s.outputs[0];
                    let region = out.grid.region(index);
                    let slice = region.cells() / region.len(*axis).max(1);
                    bytes = bytes.saturating_add(slice.saturating_mul(out.cell_bytes() as u64));
                }
            }
            _ => {}
        }
        bytes
    }

    fn merge_bytes(&self, s: &Stage, runs: &Runs, cells: u64) -> u64 {
        let from = self.plan.output(s.inputs[0].from);
        let line = from.grid.axes[from.grid.rank() - 1];
        runs.merge_bytes(cells, line, from.cell_bytes() as u64)
    }

    /// The box of its source that an operand of a `Load` stage reads; empty for other stages.
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

    /// Bytes of an input that lies in several chunks and has to be copied together; 0 if it is read in place.
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

/// The chunk of an array in memory that is exactly this box, if there is one: it is shared, not copied.
pub fn resident_chunk(source: &SourceRef, region: &Region) -> Option<ChunkIndex> {
    let at = source.grid.overlapping(region).start;
    (source.grid.region(&at) == *region).then_some(at)
}

/// Scratch of a task that goes through whole lines: a block of window states, or the keys of one line; and of a lookup.
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

/// The box of cells that the cells of `region` see through a frame; empty if they see none.
pub fn window_region(region: &Region, axis: usize, frame: Frame, shape: &[u64]) -> Region {
    let mut wide = region.clone();
    (wide.start[axis], wide.end[axis]) =
        frame.reads(region.start[axis], region.end[axis], shape[axis]);
    wide
}

/// Chunks that a view touches from an output region; `None` if it reads nothing.
fn view_hits(view: &View, region: &Region, grid: &Grid) -> Option<Touched> {
    if region.is_empty() {
        return None;
    }
    let image = view.image(region);
    let mut hits = box_hits(grid, &image, None)?;
    for (d, a) in view.axes.iter().enumerate() {
        // A step longer than a chunk jumps over some.
        if let Some(o) = a.axis
            && a.step.unsigned_abs() > grid.axes[d].chunk.min(grid.axes[d].first)
        {
            let mut list: Vec<u64> = (region.start[o]..region.end[o])
                .map(|p| grid.axes[d].find((a.start + a.step * p as i64) as u64))
                .collect();
            list.sort_unstable();
            list.dedup();
            hits[d] = Hits::List(list.into());
        }
    }
    Some(hits)
}

/// The chunks behind all takes of a plan.
fn taken(plan: &Plan) -> Taken {
    let mut all = Taken::new();
    for (i, stage) in plan.stages.iter().enumerate() {
        for (k, input) in stage.inputs.iter().enumerate() {
            let Access::Take { axis, positions } = &input.access else { continue };
            let (from, to) = (&plan.output(input.from).grid.axes[*axis], &stage.grid.axes[*axis]);
            let mut seen = vec![false; from.count() as usize];
            let lists = (0..to.count()).map(|chunk| {
                let (lo, hi) = to.interval(chunk);
                let mut list: Vec<u64> = Vec::new();
                for &p in &positions[lo as usize..hi as usize] {
                    let here = from.find(p);
                    if !std::mem::replace(&mut seen[here as usize], true) {
                        list.push(here);
                    }
                }
                list.sort_unstable();
                list.iter().for_each(|&chunk| seen[chunk as usize] = false);
                list.into()
            });
            all.insert((StageId(i as u32), k), lists.collect());
        }
    }
    all
}

/// Chunks that hold cells of a box, as runs; `except` is an axis that the caller fills in.
fn box_hits(grid: &Grid, region: &Region, except: Option<usize>) -> Option<Touched> {
    let mut hits: Touched = smallvec![];
    for (a, g) in grid.axes.iter().enumerate() {
        if except == Some(a) {
            hits.push(Hits::Run(0, 0));
            continue;
        }
        let (lo, hi) = g.overlapping(region.start[a], region.end[a]);
        if lo == hi {
            return None;
        }
        hits.push(Hits::Run(lo, hi));
    }
    Some(hits)
}

/// `region` cut to a part of the cells and moved to the part's origin; `None` if nothing is left.
pub fn part_region(region: &Region, part: &Region) -> Option<Region> {
    Some(region.intersect(part)?.relative_to(&part.start))
}

/// The output positions that read `cells`, or `None`.
fn preimage(view: &View, cells: &Region, shape: &[u64]) -> Option<Region> {
    let r = view.preimage(cells, shape);
    (!r.is_empty()).then_some(r)
}

/// The smallest box of shape `to` that holds the cells of `region` (of shape `from`) in row-major order. Exact where
/// `region` is a run of the row-major order that fills whole rows of `to`.
pub fn reshaped(region: &Region, from: &[u64], to: &[u64]) -> Option<Region> {
    if region.is_empty() {
        return None;
    }
    let ravel =
        |p: &mut dyn Iterator<Item = u64>| from.iter().zip(p).fold(0u64, |n, (&d, p)| n * d + p);
    let first = ravel(&mut region.start.iter().copied());
    let last = ravel(&mut region.end.iter().map(|e| e - 1));
    let unravel = |mut n: u64| {
        let mut p: Dims = SmallVec::from_elem(0, to.len());
        for a in (0..to.len()).rev() {
            p[a] = n % to[a];
            n /= to[a];
        }
        p
    };
    let (lo, hi) = (unravel(first), unravel(last));
    let mut out = Region::whole(to);
    for a in 0..to.len() {
        out.start[a] = lo[a];
        out.end[a] = hi[a] + 1;
        if lo[a] != hi[a] {
            // From here on the run passes through whole rows.
            break;
        }
    }
    Some(out)
}

/// Calls `f` with each index of a product of hits, row-major.
fn each(hits: &Touched, f: &mut dyn FnMut(ChunkIndex)) {
    let counts = Region::whole(&hits.iter().map(Hits::count).collect::<Dims>());
    for_each_index(&counts, &mut |i| f(hits.iter().zip(i).map(|(h, &i)| h.get(i)).collect()));
}

/// Calls `f` with each position of a box, row-major.
pub fn for_each_index(region: &Region, f: &mut dyn FnMut(&[u64])) {
    if region.is_empty() {
        return;
    }
    let mut at = region.start.clone();
    loop {
        f(&at);
        let mut a = at.len();
        loop {
            if a == 0 {
                return;
            }
            a -= 1;
            at[a] += 1;
            if at[a] < region.end[a] {
                break;
            }
            at[a] = region.start[a];
        }
    }
}

/// Boxes of chunks from what is touched along each axis.
fn hit_boxes(hits: &Touched) -> Vec<Region> {
    let mut boxes = vec![Region { start: Dims::new(), end: Dims::new() }];
    for h in hits {
        let mut runs: Vec<(u64, u64)> = Vec::new();
        match h {
            Hits::Run(lo, hi) => runs.push((*lo, *hi)),
            Hits::List(list) => {
                for &c in list.iter() {
                    match runs.last_mut() {
                        Some((_, end)) if *end == c => *end += 1,
                        _ => runs.push((c, c + 1)),
                    }
                }
            }
        }
        boxes = boxes
            .iter()
            .flat_map(|b| {
                runs.iter().map(|&(lo, hi)| {
                    let mut b = b.clone();
                    b.start.push(lo);
                    b.end.push(hi);
                    b
                })
            })
            .collect();
    }
    boxes
}

/// True if `next` begins where `last` ends along one axis, and they are the same along the others.
fn joins(last: &Region, next: &Region) -> bool {
    let same = |a: &usize| last.start[*a] == next.start[*a] && last.end[*a] == next.end[*a];
    let mut others = (0..last.rank()).filter(|a| !same(a));
    match (others.next(), others.next()) {
        (Some(a), None) => last.start[a] <= next.start[a] && next.start[a] <= last.end[a],
        _ => false,
    }
}

/// Adds what `new` has beyond the boxes to them, so that they stay disjoint.
pub(crate) fn add_disjoint(boxes: &mut Vec<Region>, new: Region) {
    let mut rest = vec![new];
    for b in boxes.iter() {
        rest = rest.iter().flat_map(|r| subtract(r, b)).collect();
    }
    boxes.extend(rest);
}

/// `r` without `b`, as disjoint boxes.
pub(crate) fn subtract(r: &Region, b: &Region) -> Vec<Region> {
    let Some(common) = r.intersect(b) else { return vec![r.clone()] };
    let mut out = Vec::new();
    let mut left = r.clone();
    for a in 0..r.rank() {
        if left.start[a] < common.start[a] {
            let mut low = left.clone();
            low.end[a] = common.start[a];
            out.push(low);
            left.start[a] = common.start[a];
        }
        if common.end[a] < left.end[a] {
            let mut high = left.clone();
            high.start[a] = common.end[a];
            out.push(high);
            left.end[a] = common.end[a];
        }
    }
    out
}
