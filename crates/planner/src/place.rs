//! Which worker runs which operand, and what that costs: pure functions of a plan and of the workers that there are.
//!
//! ```text
//!   grids of operands ──split──▶ one layout a stage ──∩ reads──▶ what crosses ──▶ steps ──▶ work orders
//!     ■■■■■■■■                    ■■■□□□▪▪▪                       a ▸ b 3 chunks    0, 1     one a step, worker
//! ```
//! 1. [`place`] gives every operand a worker. [`Strategy::Split`] cuts the grid of each stage into one run of an
//!    [`Order`] for each worker, as long as its threads are many: balanced within an operand, neighbours together,
//!    and what is read lies where it is made as far as one order for all stages that go along the same axes can do
//!    that. [`Strategy::Seeds`] is what it is compared with: the rules of Mars, operand by operand.
//! 2. [`Placement::model`] says what is moved between workers, and about how long the plan takes. It cuts the plan into
//!    phases: a stage begins a new one if its operands read chunks that other workers make and it is not only
//!    neighbours, a tree or a carry by which they meet.
//! 3. [`Placement::orders`] are the placement as data, one order for each worker and step: which operands to run, and
//!    which chunks to get from whom.
//! 4. [`Placement::without`] takes workers out: what they had goes to the others, and nothing else moves.
//!
//! A load whose chunks several workers want is read by each of them from where the array is, if moving its chunks
//! takes longer, and what is made of nothing, such as random numbers, is made by each of them (`again`); an array in
//! memory is always moved. Constants stand in the plan, so every worker has them.
//!
//! Invariants: a placement changes no grid, no tree and no order of a sum, so it changes no bit of a result; it is a
//! function of plan, workers and rates. What the split keeps and what it takes grows with stages and workers, not with
//! operands, but for cells that are reshaped and for workers that [are near](Worker::near) to listed chunks. The seeds'
//! rules, and the model of any placement with many runs, take time and memory in proportion to operands and reads.

mod follow;
mod loss;
mod model;
mod order;
mod seeds;
mod split;
mod traffic;
mod work;

pub use model::{Edge, Modelled, Phase};
pub use order::{Layout, Order, Run};
pub use seeds::Search;
pub use work::{Chunks, Share, WorkOrder};

use crate::error::Error;
use crate::plan::{OutputRef, StageId, Task};
use crate::recover::Bitmap;
use crate::tile::Tiling;
use model::Facts;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::sync::Arc;
use traffic::{Flow, Moves, readers};

/// Operands up to which placements that list them one by one are tried too.
const LISTED_MAX: u64 = 1 << 12;

/// The most operands that can be placed: numbers of operands are added up in 64 bits.
const OPERANDS_MAX: u64 = 1 << 56;

/// A worker.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Worker {
    /// Its name; workers are told apart by their place in the list.
    pub name: String,
    /// Threads that compute. One without threads gets nothing.
    pub threads: u32,
    /// Bytes of memory that a statement may have there. A worker where an operand does not fit gets none of its stage,
    /// as long as there is another.
    pub memory_bytes: u64,
    /// Operands of loads, by number, whose cells it can read without a network: the array is in its memory or on its
    /// disk.
    pub near: BTreeMap<StageId, Bitmap>,
}

/// What it takes to move a chunk to another worker.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Rates {
    /// Bytes a second into a worker, and as many out of it.
    pub bytes_per_s: u64,
    /// Bytes a second that a thread gives or takes: it is the threads that compute which move them.
    pub thread_bytes_per_s: u64,
    /// Microseconds until the first of them is there.
    pub latency_us: u64,
    /// Microseconds that a phase costs beside its work.
    pub round_us: u64,
}

impl Default for Rates {
    /// Ten gigabits a second, as many bytes as a thread checks and copies, and what a job of one stage took on Ballista
    /// 55: 45 ms.
    fn default() -> Self {
        Rates {
            bytes_per_s: 1_250_000_000,
            thread_bytes_per_s: 2_000_000_000,
            latency_us: 200,
            round_us: 45_000,
        }
    }
}

/// How operands are given to workers.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Strategy {
    /// Runs of one order for each stage, chosen by what they cost.
    #[default]
    Split,
    /// The rules of Mars: initial operands by a search through the graph, later ones to where their input is.
    Seeds(Search),
}

/// A worker for every operand.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Placement {
    /// The workers.
    pub workers: Vec<Worker>,
    /// For each stage, who has which operand.
    pub layouts: Vec<Layout>,
    /// For each stage, whether its chunks are read or made by each worker that wants them, not moved: loads, and what
    /// reads nothing.
    pub again: Vec<bool>,
}

/// Gives every operand of a plan a worker.
///
/// # Errors
/// [`Error::Range`] if no worker has a thread, [`Error::TooLarge`] for a stage of more than 2^56 operands.
pub fn place(
    tiling: &Tiling,
    workers: &[Worker],
    rates: &Rates,
    strategy: Strategy,
) -> Result<Placement, Error> {
    if workers.iter().all(|w| w.threads == 0) {
        return Err(Error::Range {
            what: "workers with threads".into(),
            value: "0".into(),
            expected: "at least one has to run the plan".into(),
        });
    }
    let large = tiling.plan().stages.iter().find(|s| s.grid.count() > OPERANDS_MAX);
    if let Some(stage) = large {
        return Err(Error::TooLarge { shape: stage.grid.shape().to_vec() });
    }
    Ok(match strategy {
        Strategy::Split => {
            let split = split::place(tiling, workers, rates);
            better_seeds(tiling, workers, rates, &split).unwrap_or(split)
        }
        Strategy::Seeds(search) => seeds::place(tiling, workers, search),
    })
}

/// A placement by the seeds' rules that is faster than the split and balanced as well, for a plan of few operands: rules
/// that go operand by operand find pairs of them that no order of an axis has side by side, as in `x + transpose(x)`.
fn better_seeds(
    tiling: &Tiling,
    workers: &[Worker],
    rates: &Rates,
    split: &Placement,
) -> Option<Placement> {
    let counts = tiling.plan().stages.iter().map(|s| s.grid.count());
    if counts.fold(0, u64::saturating_add) > LISTED_MAX {
        return None;
    }
    let mut best = split.model(tiling, rates).key();
    let mut better = None;
    for search in [Search::Depth, Search::Breadth] {
        let seeds = seeds::place(tiling, workers, search);
        let key = seeds.model(tiling, rates).key();
        if key < best && seeds.is_balanced(tiling) {
            (best, better) = (key, Some(seeds));
        }
    }
    better
}

impl Placement {
    /// True if every worker has its share of each stage, within one operand.
    pub fn is_balanced(&self, tiling: &Tiling) -> bool {
        let all: u64 = self.workers.iter().map(|w| u64::from(w.threads)).sum();
        let stages = tiling.plan().stages.iter().zip(&self.layouts);
        stages.into_iter().all(|(stage, layout)| {
            let counts = layout.counts(self.workers.len());
            counts.iter().zip(&self.workers).all(|(&n, w)| {
                let share = u128::from(stage.grid.count()) * u128::from(w.threads);
                (u128::from(n) * u128::from(all)).abs_diff(share) <= u128::from(all)
            })
        })
    }

    /// The worker of an operand.
    pub fn worker(&self, tiling: &Tiling, stage: StageId, index: &[u64]) -> u32 {
        let counts = tiling.plan().stage(stage).grid.counts();
        self.layouts[stage.0 as usize].worker(&counts, index)
    }

    /// What the placement costs. `tiling` is that of the plan that was placed.
    pub fn model(&self, tiling: &Tiling, rates: &Rates) -> Modelled {
        let facts = Facts::of(tiling);
        let counts: Vec<Vec<u64>> =
            self.layouts.iter().map(|l| l.counts(self.workers.len())).collect();
        model::model(tiling, &facts, &self.workers, rates, &counts, &self.moves(tiling))
    }

    /// What becomes of each output.
    fn moves(&self, tiling: &Tiling) -> BTreeMap<OutputRef, Arc<Moves>> {
        let workers = self.workers.len();
        let mut all = if traffic::is_coarse(&self.layouts, workers) {
            let boxes: Vec<Arc<traffic::Boxes>> = tiling
                .plan()
                .stages
                .iter()
                .zip(&self.layouts)
                .map(|(s, l)| Arc::new(l.boxes(&s.grid.counts(), workers)))
                .collect();
            let boxes = |s: StageId| boxes[s.0 as usize].clone();
            outputs(tiling)
                .map(|of| (of, traffic::moves(tiling, of, self.again[of.stage.0 as usize], &boxes)))
                .collect()
        } else {
            traffic::listed(tiling, &self.layouts, &self.again, workers)
        };
        for (of, moves) in &mut all {
            let stage = of.stage;
            if !self.again[stage.0 as usize] {
                let layout = &self.layouts[stage.0 as usize];
                moves.flows.extend(from_near(tiling, stage, &self.workers, layout));
            }
        }
        all.into_iter().map(|(of, m)| (of, Arc::new(m))).collect()
    }
}

/// All outputs of a plan.
fn outputs(tiling: &Tiling) -> impl Iterator<Item = OutputRef> + '_ {
    (0..).map(StageId).zip(&tiling.plan().stages).flat_map(|(stage, s)| {
        (0..s.outputs.len() as u32).map(move |output| OutputRef { stage, output })
    })
}

/// Chunks of a load that come from the worker that holds the array, as their operands are elsewhere.
fn from_near(tiling: &Tiling, stage: StageId, workers: &[Worker], layout: &Layout) -> Vec<Flow> {
    let s = tiling.plan().stage(stage);
    if !matches!(s.task, Task::Load { .. }) {
        return Vec::new();
    }
    let counts = s.grid.counts();
    let near: Vec<Option<&Bitmap>> = workers.iter().map(|w| w.near.get(&stage)).collect();
    let is_near =
        |w: usize, n: u64| near.get(w).copied().flatten().is_some_and(|set| set.contains(n));
    let mut flows: BTreeMap<(u32, u32), (u64, u64)> = BTreeMap::new();
    for (source, set) in near.iter().enumerate() {
        let Some(set) = set else { continue };
        for n in set.iter().take_while(|&n| n < s.grid.count()) {
            // The first that has it gives it.
            if (0..source).any(|w| is_near(w, n)) {
                continue;
            }
            let index = s.grid.unravel(n);
            let dest = layout.worker(&counts, &index);
            if !is_near(dest as usize, n) {
                let flow = flows.entry((source as u32, dest)).or_default();
                flow.0 += 1;
                flow.1 += tiling.output_bytes(stage, &index);
            }
        }
    }
    let flow = |((source, dest), (chunks, bytes))| Flow { to: stage, source, dest, chunks, bytes };
    flows.into_iter().map(flow).collect()
}

/// The workers that may have operands of a stage: those with threads where the largest of them fits with what it
/// reads. If it fits nowhere, those with the most memory.
fn eligible(tiling: &Tiling, stage: StageId, workers: &[Worker]) -> Vec<u32> {
    let need = need_bytes(tiling, stage);
    let alive = || (0u32..).zip(workers).filter(|(_, w)| w.threads > 0);
    let most = alive().map(|(_, w)| w.memory_bytes).max().unwrap_or(0);
    alive().filter(|(_, w)| w.memory_bytes >= need.min(most)).map(|(i, _)| i).collect()
}

/// Bytes of a full operand of a stage, with what it reads.
fn need_bytes(tiling: &Tiling, stage: StageId) -> u64 {
    let s = tiling.plan().stage(stage);
    let full: crate::region::Dims =
        s.grid.axes.iter().map(|a| u64::from(a.first < a.chunk && a.count() > 1)).collect();
    let one = crate::region::Region::at(&full, &crate::region::Dims::from_elem(1, full.len()));
    let read = |(k, input): (usize, &crate::plan::Input)| {
        let boxes = tiling.reads_of(stage, &one, k);
        boxes.iter().map(|b| traffic::bytes_of(tiling, input.from, b)).sum::<u64>()
    };
    let inputs: u64 = s.inputs.iter().enumerate().map(read).sum();
    tiling.peak(stage, &full).saturating_add(inputs)
}

/// Where a part of an operand goes when operands are shared out.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Rounding {
    /// To a worker further on.
    Down,
    /// To whoever has the larger part.
    Half,
    /// To a worker before.
    Up,
}

/// How many of `n` operands each of these workers gets, by its threads: its share, rounded so that all are given.
fn parts(n: u64, among: &[u32], workers: &[Worker], rounding: Rounding) -> Vec<(u32, u64)> {
    let threads = |w: u32| u128::from(workers[w as usize].threads);
    let total: u128 = among.iter().map(|&w| threads(w)).sum::<u128>().max(1);
    let more = match rounding {
        Rounding::Down => 0,
        Rounding::Half => total / 2,
        Rounding::Up => total - 1,
    };
    let (mut sum, mut begin) = (0u128, 0u64);
    among
        .iter()
        .map(|&w| {
            sum += threads(w);
            let end = ((u128::from(n) * sum + more) / total) as u64;
            let part = (w, end - begin);
            begin = end;
            part
        })
        .collect()
}

#[cfg(test)]
mod tests;
