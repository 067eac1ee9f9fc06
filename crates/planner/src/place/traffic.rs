//! Chunks that workers need from each other.
//!
//! ```text
//!   boxes of operands of a worker ──access──▶ boxes of chunks that they read ──∩ boxes of the others──▶ what is moved
//! ```
//! A chunk is moved once to each worker that needs it, however often that worker reads it. If each worker has few
//! boxes, movement is computed on boxes: a plan of 10^9 chunks takes no longer than one of a hundred. If workers have
//! many boxes, each read is visited once.

use super::order::Layout;
use crate::plan::{OutputRef, StageId, Task};
use crate::region::Region;
use crate::tile::{Tiling, add_disjoint};
use std::collections::{BTreeMap, BTreeSet};

/// Upper bound on boxes per worker; beyond it reads are visited one by one.
const BOXES_MAX: usize = 64;

/// Chunks of one output that one worker receives from another.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Flow {
    /// The first stage whose operands need the chunks.
    pub(super) to: StageId,
    pub(super) source: u32,
    pub(super) dest: u32,
    pub(super) chunks: u64,
    pub(super) bytes: u64,
}

/// Movement of the chunks of one output.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Moves {
    pub(super) flows: Vec<Flow>,
    /// Stages with an operand that reads a chunk of another worker.
    pub(super) crosses: BTreeSet<StageId>,
    /// For an output that is read again by each worker: the number of chunks that each one reads.
    pub(super) reads: Vec<u64>,
}

/// Operands by stage and worker.
pub(super) type Boxes = Vec<Vec<Region>>;

/// Bytes of a box of chunks.
pub(super) fn bytes_of(tiling: &Tiling, of: OutputRef, chunks: &Region) -> u64 {
    let output = tiling.plan().output(of);
    output.grid.cells(chunks).cells().saturating_mul(output.cell_bytes() as u64)
}

/// True if every worker has the cells because they are part of the plan.
pub(super) fn is_everywhere(tiling: &Tiling, stage: StageId) -> bool {
    matches!(tiling.plan().stage(stage).task, Task::Const(_))
}

/// The chunks of an output that the operands of a stage in these boxes read, as disjoint boxes.
pub(super) fn read_by(
    tiling: &Tiling,
    of: OutputRef,
    stage: StageId,
    operands: &[Region],
) -> Vec<Region> {
    let inputs = tiling.users(of).iter().filter(|(s, _)| *s == stage);
    let mut reads: Vec<Region> = Vec::new();
    for &(_, k) in inputs {
        for part in operands {
            for new in tiling.reads_of(stage, part, k) {
                add_disjoint(&mut reads, new);
            }
        }
    }
    reads
}

/// The stages that read an output, ascending.
pub(super) fn readers(tiling: &Tiling, of: OutputRef) -> Vec<StageId> {
    let mut stages: Vec<StageId> = tiling.users(of).iter().map(|(s, _)| *s).collect();
    stages.sort_unstable();
    stages.dedup();
    stages
}

/// Computes the movement of an output's chunks from the boxes of its stage and of its readers. With `again` no chunk is
/// moved.
pub(super) fn moves(
    tiling: &Tiling,
    of: OutputRef,
    again: bool,
    boxes: &dyn Fn(StageId) -> std::sync::Arc<Boxes>,
) -> Moves {
    let mut found = Moves::default();
    if is_everywhere(tiling, of.stage) {
        return found;
    }
    let homes = boxes(of.stage);
    let readers = readers(tiling, of);
    let operands: Vec<_> = readers.iter().map(|&s| boxes(s)).collect();
    for dest in 0..homes.len() {
        // Chunks that the stages before read here.
        let mut here: Vec<Region> = Vec::new();
        for (&stage, operands) in readers.iter().zip(&operands) {
            let reads = read_by(tiling, of, stage, &operands[dest]);
            if again {
                reads.into_iter().for_each(|r| add_disjoint(&mut here, r));
                continue;
            }
            let others = || homes.iter().enumerate().filter(|(w, _)| *w != dest);
            let is_read = |home: &Region| reads.iter().any(|read| read.meets(home));
            if others().any(|(_, home)| home.iter().any(is_read)) {
                found.crosses.insert(stage);
            }
            let before = here.len();
            reads.into_iter().for_each(|read| add_disjoint(&mut here, read));
            for (source, home) in others() {
                let (mut chunks, mut bytes) = (0, 0);
                for home in home {
                    for part in here[before..].iter().filter_map(|new| new.intersect(home)) {
                        chunks += part.cells();
                        bytes += bytes_of(tiling, of, &part);
                    }
                }
                if chunks > 0 {
                    let (source, dest) = (source as u32, dest as u32);
                    found.flows.push(Flow { to: stage, source, dest, chunks, bytes });
                }
            }
        }
        if again {
            found.reads.push(here.iter().map(Region::cells).sum());
        }
    }
    found.flows.sort_by_key(|f| (f.to, f.source, f.dest));
    found
}

/// True if every layout is a few boxes per worker.
pub(super) fn is_coarse(layouts: &[Layout], workers: usize) -> bool {
    layouts.iter().all(|l| l.runs.len() <= workers * BOXES_MAX)
}

/// Computes the movement of all outputs of a plan from its reads. Time and memory grow with operands and reads.
pub(super) fn listed(
    tiling: &Tiling,
    layouts: &[Layout],
    again: &[bool],
    workers: usize,
) -> BTreeMap<OutputRef, Moves> {
    let plan = tiling.plan();
    let words = workers.div_ceil(64);
    let mut homes: Vec<Vec<u32>> = Vec::with_capacity(layouts.len());
    // For each output and chunk, the workers that have received it.
    let mut got: BTreeMap<OutputRef, Vec<u64>> = BTreeMap::new();
    let mut all: BTreeMap<OutputRef, Moves> = BTreeMap::new();
    for (s, (stage, layout)) in (0..).map(StageId).zip(plan.stages.iter().zip(layouts)) {
        let counts = stage.grid.counts();
        let count = stage.grid.count() as usize;
        let mut home = vec![0; count];
        layout.each(&counts, &mut |index, worker| {
            home[stage.grid.ravel(index) as usize] = worker;
        });
        homes.push(home);
        for output in 0..stage.outputs.len() as u32 {
            let of = OutputRef { stage: s, output };
            let mut moves = Moves::default();
            if !is_everywhere(tiling, s) {
                got.insert(of, vec![0; count * words]);
                if again[s.0 as usize] {
                    moves.reads = vec![0; workers];
                }
            }
            all.insert(of, moves);
        }
        let mut flows: BTreeMap<(OutputRef, u32, u32), (u64, u64)> = BTreeMap::new();
        layout.each(&counts, &mut |index, dest| {
            tiling.reads(s, index, &mut |from, at| {
                let (Some(got), Some(moves)) = (got.get_mut(&from), all.get_mut(&from)) else {
                    return;
                };
                let grid = &plan.stage(from.stage).grid;
                let number = grid.ravel(&at) as usize;
                let source = homes[from.stage.0 as usize][number];
                let is_again = again[from.stage.0 as usize];
                if source == dest && !is_again {
                    return;
                }
                let (word, bit) = (&mut got[number * words + dest as usize / 64], dest % 64);
                let is_new = *word >> bit & 1 == 0;
                *word |= 1 << bit;
                if is_again {
                    moves.reads[dest as usize] += u64::from(is_new);
                    return;
                }
                moves.crosses.insert(s);
                if is_new {
                    let output = plan.output(from);
                    let flow = flows.entry((from, source, dest)).or_default();
                    flow.0 += 1;
                    flow.1 += output.grid.region(&at).cells() * output.cell_bytes() as u64;
                }
            });
        });
        for ((from, source, dest), (chunks, bytes)) in flows {
            if let Some(moves) = all.get_mut(&from) {
                moves.flows.push(Flow { to: s, source, dest, chunks, bytes });
            }
        }
    }
    all
}
