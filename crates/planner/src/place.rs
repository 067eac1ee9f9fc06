//! Assigns operands to workers and models the cost: pure functions of a plan and of the available workers.
//!
//! ```text
//!   grids of operands ──split──▶ one layout a stage ──∩ reads──▶ what crosses ──▶ steps ──▶ work orders
//!     ■■■■■■■■                    ■■■□□□▪▪▪                       a ▸ b 3 chunks    0, 1     one a step, worker
//! ```
//! 1. [`place`] assigns every operand to a worker. [`Strategy::Split`] cuts the grid of each stage into one run of an
//!    [`Order`] per worker, in proportion to its threads. Runs are balanced within one operand and keep neighbours
//!    together. Inputs are local as far as one order for all stages along the same axes allows. [`Strategy::Seeds`] is
//!    the baseline: the rules of Mars, operand by operand.
//! 2. [`Placement::model`] computes the bytes moved between workers and the approximate time of the plan. It cuts the
//!    plan into phases: a stage begins a new phase if its operands read chunks of other workers through more than
//!    neighbours, a tree or a carry.
//! 3. [`Placement::orders`] returns the placement as data, one order per worker and step: the operands to run, and the
//!    chunks to fetch from each worker.
//! 4. [`Placement::without`] removes workers: their operands go to the others, and no other operand moves.
//!
//! If several workers need the chunks of a load and moving them takes longer, each worker reads them from the array
//! itself. Stages without inputs, such as random numbers, are recomputed by each worker in the same way (`again`). An
//! array in memory is always moved. Constants are part of the plan, so every worker has them.
//!
//! Workers with as many threads and as much memory are equal to all of this. Which of them has which part is decided
//! last, by their load and by a hash.
//!
//! Invariants: a placement changes no grid, no tree and no order of a sum, so it changes no bit of a result. It is a
//! function of plan, workers and rates. Memory and time of the split grow with stages and workers, not with operands,
//! except for reshaped cells. The seeds' rules, and the model of any placement with many runs, take time and memory in
//! proportion to operands and reads.

mod loss;
mod model;
mod order;
mod seeds;
mod split;
mod ties;
mod traffic;
mod work;

pub use model::{Edge, Modelled, Phase};
pub use order::{Layout, Order, Run};
pub use seeds::Search;
pub use work::{Chunks, Share, WorkOrder};

use crate::error::Error;
use crate::plan::{OutputRef, StageId};
use crate::tile::Tiling;
use model::Facts;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::sync::Arc;
use traffic::{Moves, readers};

/// Upper bound on the operands of plans for which placements that list each operand are tried too.
const LISTED_MAX: u64 = 1 << 12;

/// Upper bound on the operands of a stage: numbers of operands are added up in 64 bits.
const OPERANDS_MAX: u64 = 1 << 56;

/// A worker.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Worker {
    /// Name of the worker; workers are identified by their index in the list.
    pub name: String,
    /// Number of compute threads. A worker without threads gets no operands.
    pub threads: u32,
    /// Memory limit of a statement on this worker, in bytes. A worker without room for an operand gets none of its
    /// stage, as long as there is another worker.
    pub memory_bytes: u64,
    /// Current load, in steps that make a difference. It decides between workers that are equal otherwise.
    pub load: u32,
}

/// Cost of moving a chunk to another worker.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Rates {
    /// Bytes per second into a worker, and out of it.
    pub bytes_per_s: u64,
    /// Bytes per second that a thread sends or receives: compute threads also move the bytes.
    pub thread_bytes_per_s: u64,
    /// Latency of a transfer in microseconds.
    pub latency_us: u64,
    /// Fixed cost of a phase in microseconds.
    pub round_us: u64,
}

impl Default for Rates {
    /// Ten gigabits per second, the rate at which a thread checks and copies bytes, and the time of a one-stage job on
    /// Ballista 55: 45 ms.
    fn default() -> Self {
        Rates {
            bytes_per_s: 1_250_000_000,
            thread_bytes_per_s: 2_000_000_000,
            latency_us: 200,
            round_us: 45_000,
        }
    }
}

/// How operands are assigned to workers.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Strategy {
    /// Runs of one order per stage, chosen by cost.
    #[default]
    Split,
    /// The rules of Mars: initial operands by a graph search, later ones to the worker with most of their input.
    Seeds(Search),
}

/// A worker for every operand.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Placement {
    /// The workers.
    pub workers: Vec<Worker>,
    /// For each stage, the worker of each operand.
    pub layouts: Vec<Layout>,
    /// For each stage, whether each worker that needs its chunks reads or computes them itself: loads, and stages
    /// without inputs.
    pub again: Vec<bool>,
}

/// Assigns every operand of a plan to a worker.
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
            ties::untie(tiling, better_seeds(tiling, workers, rates, &split).unwrap_or(split))
        }
        Strategy::Seeds(search) => seeds::place(tiling, workers, search),
    })
}

/// Returns a placement by the seeds' rules if it is faster than the split and as balanced, for a plan of few operands.
/// Rules that go operand by operand find pairs that no order of an axis makes adjacent, as in `x + transpose(x)`.
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
    fn is_balanced(&self, tiling: &Tiling) -> bool {
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

    /// Models the cost of the placement. `tiling` is that of the placed plan.
    pub fn model(&self, tiling: &Tiling, rates: &Rates) -> Modelled {
        let facts = Facts::of(tiling);
        let counts: Vec<Vec<u64>> =
            self.layouts.iter().map(|l| l.counts(self.workers.len())).collect();
        model::model(tiling, &facts, &self.workers, rates, &counts, &self.moves(tiling))
    }

    /// Returns the movement of each output's chunks.
    fn moves(&self, tiling: &Tiling) -> BTreeMap<OutputRef, Arc<Moves>> {
        let workers = self.workers.len();
        let all = if traffic::is_coarse(&self.layouts, workers) {
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
        all.into_iter().map(|(of, m)| (of, Arc::new(m))).collect()
    }
}

fn outputs(tiling: &Tiling) -> impl Iterator<Item = OutputRef> + '_ {
    (0..).map(StageId).zip(&tiling.plan().stages).flat_map(|(stage, s)| {
        (0..s.outputs.len() as u32).map(move |output| OutputRef { stage, output })
    })
}

/// Workers that may run operands of a stage: those with threads and with memory for the largest operand and its inputs.
/// If it fits nowhere, those with the most memory.
fn eligible(tiling: &Tiling, stage: StageId, workers: &[Worker]) -> Vec<u32> {
    let need = need_bytes(tiling, stage);
    let alive = || (0u32..).zip(workers).filter(|(_, w)| w.threads > 0);
    let most = alive().map(|(_, w)| w.memory_bytes).max().unwrap_or(0);
    alive().filter(|(_, w)| w.memory_bytes >= need.min(most)).map(|(i, _)| i).collect()
}

/// Bytes of a full operand of a stage with its inputs.
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

/// Direction in which a fractional share of operands is rounded.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Rounding {
    /// To a later worker.
    Down,
    /// To the worker with the larger part.
    Half,
    /// To an earlier worker.
    Up,
}

/// Number of `n` operands that each worker gets in proportion to its threads, rounded so that the sum is `n`.
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
