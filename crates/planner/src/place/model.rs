//! Cost of a placement: phases, bytes moved, and approximate time.
//!
//! ```text
//!   time of a phase = max( for each worker: work / threads,  bytes in / rate,  bytes out / rate;   longest chain )
//!   work            = that of the operands + bytes in and out / rate of a thread
//!   time            = Σ phases (time + round)
//! ```
//! Work of operands is that of [`crate::cost`], so times compare placements of one plan; they are not wall-clock times.
//! A worker moves bytes while it computes, in both directions at a time, and with the same threads.

use super::traffic::{Moves, is_everywhere};
use super::{Rates, Worker};
use crate::cost::chunk_ns;
use crate::plan::{Access, OutputRef, Stage, StageId, Task};
use crate::region::Dims;
use crate::tile::Tiling;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// Upper bound on the chunks along an axis that an operand reads from its neighbourhood.
const NEIGHBOURS: u64 = 3;

/// Stages that workers run without waiting for all others: one job of a cluster.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Phase {
    /// The stages, ascending.
    pub stages: Vec<StageId>,
    /// Microseconds of one thread, per worker.
    pub work_us: Vec<u64>,
    /// Bytes that each worker receives from others.
    pub bytes_in: Vec<u64>,
    /// Bytes that each worker sends to others.
    pub bytes_out: Vec<u64>,
    /// Approximate time of the phase, in microseconds.
    pub time_us: u64,
}

/// Chunks of an output that are moved for a stage and that no earlier stage moved to the same worker.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Edge {
    /// The output. An output of the stage `to` itself is a carry.
    pub from: OutputRef,
    /// The reading stage.
    pub to: StageId,
    /// Number of chunks, counted once for each receiving worker.
    pub chunks: u64,
    /// Bytes of the chunks.
    pub bytes: u64,
}

/// Modelled cost of a placement.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Modelled {
    /// The phases in order.
    pub phases: Vec<Phase>,
    /// Phase of each stage.
    pub phase: Vec<u32>,
    /// Chunks moved, by output and reading stage.
    pub edges: Vec<Edge>,
    /// Bytes moved between workers.
    pub bytes_moved: u64,
    /// Bytes that are read or computed again because several workers need them.
    pub bytes_again: u64,
    /// Approximate time in microseconds.
    pub time_us: u64,
}

impl Modelled {
    /// Key to minimise.
    pub(super) fn key(&self) -> (u64, u64, u64) {
        (self.time_us, self.bytes_moved, self.bytes_again)
    }
}

/// Facts about a plan that do not depend on the placement.
pub(super) struct Facts {
    /// Nanoseconds of one thread for an operand of each stage.
    pub(super) operand_ns: Vec<f64>,
    /// Number of operands of each stage that have to run in sequence.
    pub(super) steps: Vec<u64>,
    /// For each stage and input, whether it needs no exchange, wherever its chunks are.
    is_narrow: Vec<Vec<bool>>,
}

impl Facts {
    pub(super) fn of(tiling: &Tiling) -> Self {
        let stages = &tiling.plan().stages;
        let steps = |s: &Stage| match s.task {
            Task::Scan { axis, .. } => s.grid.axes[axis].count(),
            _ => 1,
        };
        let narrow = |(i, s): (u32, &Stage)| {
            (0..s.inputs.len()).map(|k| is_narrow(tiling, StageId(i), k)).collect()
        };
        Facts {
            operand_ns: stages.iter().map(|s| chunk_ns(tiling, s)).collect(),
            steps: stages.iter().map(steps).collect(),
            is_narrow: (0..).zip(stages).map(narrow).collect(),
        }
    }
}

/// True if an input needs no exchange: an operand waits for a few neighbours, for the inputs of a combine, for the
/// previous chunk, or for a load or a constant.
fn is_narrow(tiling: &Tiling, stage: StageId, number: usize) -> bool {
    let s = tiling.plan().stage(stage);
    let input = &s.inputs[number];
    let from = tiling.plan().stage(input.from.stage);
    if matches!(from.task, Task::Load { .. } | Task::Const(_)) {
        return true;
    }
    let view = match &input.access {
        Access::Fan(_) | Access::Previous { .. } => return true,
        Access::View(view) | Access::Part { view, .. } | Access::Window { view, .. } => view,
        Access::Take { .. } | Access::Reshape(_) | Access::Runs { .. } => return false,
    };
    // Moved axes keep their order and go forward; only neighbours read a chunk.
    let mut last = None;
    for a in &view.axes {
        if let Some(o) = a.axis {
            if a.step < 0 || last.is_some_and(|l| o < l) {
                return false;
            }
            last = Some(o);
        }
    }
    let counts = s.grid.counts();
    let is_read = |o: usize| view.axes.iter().any(|a| a.axis == Some(o));
    if (0..counts.len()).any(|o| counts[o] > NEIGHBOURS && !is_read(o)) {
        return false;
    }
    let middle: Dims = counts.iter().map(|n| n / 2).collect();
    let one = crate::region::Region::at(&middle, &Dims::from_elem(1, middle.len()));
    let boxes = tiling.reads_of(stage, &one, number);
    boxes.iter().all(|b| (0..b.rank()).all(|a| b.len(a) <= NEIGHBOURS)) && boxes.len() <= 1
}

/// Models a placement from the number of each worker's operands per stage and from the movement of each output.
pub(super) fn model(
    tiling: &Tiling,
    facts: &Facts,
    workers: &[Worker],
    rates: &Rates,
    counts: &[Vec<u64>],
    moves: &BTreeMap<OutputRef, std::sync::Arc<Moves>>,
) -> Modelled {
    let stages = &tiling.plan().stages;
    let crosses =
        |of: OutputRef, to: StageId| moves.get(&of).is_some_and(|m| m.crosses.contains(&to));
    let phase = phases(tiling, facts, &crosses);
    let many = phase.iter().max().map_or(0, |p| *p as usize + 1);
    let mut all: Vec<Phase> = (0..many)
        .map(|p| Phase {
            stages: (0..)
                .zip(&phase)
                .filter(|(_, q)| **q as usize == p)
                .map(|(s, _)| StageId(s))
                .collect(),
            work_us: Vec::new(),
            bytes_in: vec![0; workers.len()],
            bytes_out: vec![0; workers.len()],
            time_us: 0,
        })
        .collect();
    // Chunks and bytes of each edge.
    let mut edges = BTreeMap::<(OutputRef, StageId), (u64, u64)>::new();
    let mut bytes_again = 0;
    let mut counts = counts.to_vec();
    for (&of, moves) in moves {
        for flows in moves.flows.chunk_by(|a, b| a.to == b.to) {
            let to = flows[0].to;
            let edge = edges.entry((of, to)).or_default();
            let p = &mut all[phase[to.0 as usize] as usize];
            for flow in flows {
                edge.0 += flow.chunks;
                edge.1 += flow.bytes;
                p.bytes_in[flow.dest as usize] += flow.bytes;
                p.bytes_out[flow.source as usize] += flow.bytes;
            }
        }
        if !moves.reads.is_empty() {
            let stage = &stages[of.stage.0 as usize];
            let once = stage.grid.count();
            let more = moves.reads.iter().sum::<u64>().saturating_sub(once);
            bytes_again += (more as f64 * crate::cost::chunk_bytes(stage)) as u64;
            counts[of.stage.0 as usize].clone_from(&moves.reads);
        }
    }
    let mut time_us = 0u64;
    for (p, phase_of) in all.iter_mut().enumerate() {
        let mut slowest: f64 = 0.0;
        for (w, worker) in workers.iter().enumerate() {
            let threads = f64::from(worker.threads.max(1));
            let (mut work, mut widest): (f64, f64) = (0.0, 0.0);
            for s in phase_of.stages.iter().map(|s| s.0 as usize) {
                let n = counts[s][w] as f64;
                work += n * facts.operand_ns[s];
                widest = widest.max((n / threads).ceil() * facts.operand_ns[s]);
            }
            let (taken, given) = (phase_of.bytes_in[w], phase_of.bytes_out[w]);
            let through = taken.saturating_add(given) as f64;
            work += through * 1e9 / rates.thread_bytes_per_s.max(1) as f64;
            phase_of.work_us.push((work / 1e3) as u64);
            let moved = taken.max(given) as f64;
            let wire = moved * 1e9 / rates.bytes_per_s.max(1) as f64;
            slowest = slowest.max(work / threads).max(widest).max(wire);
        }
        let slowest = slowest.max(chain_ns(tiling, facts, rates, &phase, p as u32, &crosses));
        phase_of.time_us = (slowest / 1e3).round() as u64;
        time_us += phase_of.time_us + rates.round_us;
    }
    let edge = |((from, to), (chunks, bytes))| Edge { from, to, chunks, bytes };
    let edges: Vec<Edge> = edges.into_iter().map(edge).collect();
    let bytes_moved = edges.iter().map(|e| e.bytes).sum();
    Modelled { phases: all, phase, edges, bytes_moved, bytes_again, time_us }
}

/// Returns the phase of each stage. A stage is in the phase of its inputs, unless operands need chunks of other workers
/// through an input that is not narrow. Arrays are read in the phase that first needs them.
fn phases(
    tiling: &Tiling,
    facts: &Facts,
    crosses: &dyn Fn(OutputRef, StageId) -> bool,
) -> Vec<u32> {
    let stages = &tiling.plan().stages;
    let mut phase = vec![0u32; stages.len()];
    for (i, stage) in stages.iter().enumerate() {
        for (k, input) in stage.inputs.iter().enumerate() {
            let from = input.from.stage.0 as usize;
            if from != i {
                let cut = !facts.is_narrow[i][k] && crosses(input.from, StageId(i as u32));
                phase[i] = phase[i].max(phase[from] + u32::from(cut));
            }
        }
    }
    for (i, stage) in stages.iter().enumerate() {
        if matches!(stage.task, Task::Load { .. } | Task::Const(_)) {
            let reads = |s: &Stage| s.inputs.iter().any(|k| k.from.stage.0 as usize == i);
            let first = stages.iter().zip(&phase).filter(|(s, _)| reads(s)).map(|(_, p)| *p).min();
            phase[i] = first.unwrap_or(0);
        }
    }
    phase
}

/// Length of the critical path through a phase, in nanoseconds.
fn chain_ns(
    tiling: &Tiling,
    facts: &Facts,
    rates: &Rates,
    phase: &[u32],
    number: u32,
    crosses: &dyn Fn(OutputRef, StageId) -> bool,
) -> f64 {
    let latency = |is: bool| if is { rates.latency_us as f64 * 1e3 } else { 0.0 };
    let mut longest = vec![0.0f64; phase.len()];
    for (i, stage) in tiling.plan().stages.iter().enumerate().filter(|(i, _)| phase[*i] == number) {
        let id = StageId(i as u32);
        if is_everywhere(tiling, id) {
            continue;
        }
        let mut before: f64 = 0.0;
        for input in stage.inputs.iter().filter(|k| k.from.stage != id) {
            before =
                before.max(longest[input.from.stage.0 as usize] + latency(crosses(input.from, id)));
        }
        longest[i] = before + facts.operand_ns[i] * facts.steps[i] as f64;
    }
    longest.into_iter().fold(0.0, f64::max)
}
