//! A placement as data: the orders of each worker, and when each can start.
//!
//! ```text
//!   worker 0   x ▸ partial ────▶ mean ─┐         x ▸ x − mean         the second of two orders of a worker also computes
//!                        step 0    step 1 └─▶       step 2            what lies between them, unless it is held
//!   worker 1   x ▸ partial ─────▲
//! ```
//! 1. A chunk that one worker reads and another makes *crosses*. Operands whose chunks cross or are results are listed
//!    in their worker's orders. The worker itself finds, depth-first, all inputs that do not cross. An operand that a
//!    later step of the same worker reads is listed too, if it is much work for few bytes: no worker should wait for
//!    others while it has independent work.
//! 2. A crossing chunk is available one step after its inputs. So each run of a [`Layout`](super::Layout) has a step,
//!    and an order lists all runs of a worker in one step. It can start when the orders that it reads are done.

use super::traffic::is_everywhere;
use super::{Placement, readers};
use crate::cost::{chunk_bytes, chunk_ns};
use crate::error::Error;
use crate::plan::{OutputRef, StageId, Task};
use crate::region::Region;
use crate::tile::{Tiling, add_disjoint};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};

/// Nanoseconds for each byte of a chunk that is retained for a later step: it is written, read again, and may be
/// spilled.
const KEEP_BYTE_NS: f64 = 0.5;
/// Upper bound on the operands of a plan that is examined operand by operand.
const CUT_OPERANDS_MAX: u64 = 1 << 16;
/// Upper bound on the parts of a run; a run with more parts is not cut.
const CUTS_MAX: usize = 32;

/// Operands of a stage.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Share {
    /// The stage.
    pub stage: StageId,
    /// Operands as disjoint boxes of their indices.
    pub operands: Vec<Region>,
}

/// Chunks of an output.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Chunks {
    /// The output.
    pub of: OutputRef,
    /// Index of the worker that computes them.
    pub worker: u32,
    /// Chunks as disjoint boxes of their indices.
    pub chunks: Vec<Region>,
}

/// The work of one worker in one step. Together with the plan it is all that the worker needs.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct WorkOrder {
    /// The step.
    pub step: u32,
    /// Index of the worker.
    pub worker: u32,
    /// Operands whose chunks are results, or are read by other workers or by a later step of this one. Each of them is
    /// in exactly one order.
    pub run: Vec<Share>,
    /// Chunks that the order reads and that other workers compute in earlier steps.
    pub fetch: Vec<Chunks>,
    /// Operands whose chunks are retained if the order computes them on the way: a later step of the same worker reads
    /// them again.
    pub hold: Vec<Share>,
    /// Orders, as (step, worker), that compute the chunks this order fetches or finds in its own store.
    pub after: Vec<(u32, u32)>,
}

/// A run of a layout, or a part of one: operands of one stage, one worker and one step.
struct Unit {
    stage: StageId,
    worker: u32,
    operands: Vec<Region>,
    step: u32,
    /// Operands whose chunks cross or are results.
    run: Vec<Region>,
}

/// Chunks that one run computes and another one reads.
struct Flow {
    of: OutputRef,
    from: usize,
    to: usize,
    chunks: Vec<Region>,
}

/// For each stage, the steps of its operands in the order of its layout; empty for a plan of many operands.
struct Cuts {
    steps: Vec<Vec<u32>>,
}

impl Cuts {
    /// End places of the parts of a run.
    fn of(&self, stage: StageId, begin: u64, end: u64) -> Vec<u64> {
        let Some(steps) = self.steps.get(stage.0 as usize) else { return vec![end] };
        let steps = &steps[begin as usize..end as usize];
        let changes = (1..steps.len()).filter(|&i| steps[i] != steps[i - 1]);
        let mut ends: Vec<u64> = changes.map(|i| begin + i as u64).collect();
        if ends.len() >= CUTS_MAX {
            ends.clear();
        }
        ends.push(end);
        ends
    }
}

impl Placement {
    /// Returns the work orders by step and worker; a worker without work in a step has no order. Their number grows
    /// with the runs of the layouts, and the time with its square.
    ///
    /// # Errors
    /// [`Error::Range`] if operands of one stage read each other against the order of their runs. No layout of
    /// [`super::place`] does.
    pub fn orders(&self, tiling: &Tiling) -> Result<Vec<WorkOrder>, Error> {
        let plan = tiling.plan();
        let cuts = self.cuts(tiling);
        let mut units: Vec<Unit> = Vec::new();
        let mut of_stage: Vec<std::ops::Range<usize>> = Vec::with_capacity(plan.stages.len());
        for ((stage, s), layout) in (0..).map(StageId).zip(&plan.stages).zip(&self.layouts) {
            let begin = units.len();
            let counts = s.grid.counts();
            let is_result = plan.results.iter().any(|r| r.stage == stage);
            for (place, run) in layout.parts() {
                let mut begin = place;
                for end in cuts.of(stage, place, run.end) {
                    let operands = layout.order.boxes(&counts, begin, end);
                    let run_ = if is_result { operands.clone() } else { Vec::new() };
                    units.push(Unit { stage, worker: run.worker, operands, step: 0, run: run_ });
                    begin = end;
                }
            }
            of_stage.push(begin..units.len());
        }
        let flows = self.flows(tiling, &units, &of_stage);
        for flow in &flows {
            if units[flow.from].worker != units[flow.to].worker {
                let run = &mut units[flow.from].run;
                flow.chunks.iter().for_each(|c| add_disjoint(run, c.clone()));
            }
        }
        self.set_steps(&mut units, &flows)?;
        tell_early(tiling, &mut units, &flows);

        let mut orders: BTreeMap<(u32, u32), WorkOrder> = BTreeMap::new();
        for unit in units.iter().filter(|u| !u.run.is_empty()) {
            let (step, worker) = (unit.step, unit.worker);
            let order = orders.entry((step, worker)).or_insert_with(|| WorkOrder {
                step,
                worker,
                run: vec![],
                fetch: vec![],
                hold: vec![],
                after: vec![],
            });
            match order.run.last_mut() {
                Some(last) if last.stage == unit.stage => last.operands.extend(unit.run.clone()),
                _ => order.run.push(Share { stage: unit.stage, operands: unit.run.clone() }),
            }
        }
        // Flows into the runs of each worker.
        let mut into: BTreeMap<u32, Vec<&Flow>> = BTreeMap::new();
        for flow in &flows {
            into.entry(units[flow.to].worker).or_default().push(flow);
        }
        for ((step, worker), order) in &mut orders {
            let mut after: BTreeSet<(u32, u32)> = BTreeSet::new();
            let mut fetch: BTreeMap<(OutputRef, u32), Vec<Region>> = BTreeMap::new();
            let mut hold: BTreeMap<StageId, Vec<Region>> = BTreeMap::new();
            // A chunk that was computed on the way in an earlier step may be computed again.
            for flow in into.get(worker).into_iter().flatten() {
                let (from, to) = (&units[flow.from], &units[flow.to]);
                if from.worker == *worker {
                    if !from.run.is_empty() && from.step < *step && to.step <= *step {
                        after.insert((from.step, from.worker));
                    }
                    let is_computed = !matches!(plan.stage(from.stage).task, Task::Load { .. });
                    if is_computed && from.step <= *step && to.step > *step {
                        let held = hold.entry(from.stage).or_default();
                        flow.chunks.iter().for_each(|c| add_disjoint(held, c.clone()));
                    }
                } else if to.step <= *step {
                    after.insert((from.step, from.worker));
                    let all = fetch.entry((flow.of, from.worker)).or_default();
                    flow.chunks.iter().for_each(|c| add_disjoint(all, c.clone()));
                }
            }
            order.after = after.into_iter().collect();
            order.hold =
                hold.into_iter().map(|(stage, operands)| Share { stage, operands }).collect();
            let chunks = |((of, worker), chunks)| Chunks { of, worker, chunks };
            order.fetch = fetch.into_iter().map(chunks).collect();
        }
        Ok(orders.into_values().collect())
    }

    /// Finds the places where a run is cut because some of its operands can run in an earlier step than others. Plans
    /// of many operands are not examined and are not cut.
    fn cuts(&self, tiling: &Tiling) -> Cuts {
        let plan = tiling.plan();
        let operands = plan.stages.iter().map(|s| s.grid.count()).fold(0, u64::saturating_add);
        let mut cuts = Cuts { steps: Vec::new() };
        if operands > CUT_OPERANDS_MAX {
            return cuts;
        }
        // For each operand its worker and its step, by number, and the steps in the order of the layout.
        let mut known: Vec<Vec<(u32, u32)>> = Vec::with_capacity(plan.stages.len());
        for ((stage, s), layout) in (0..).map(StageId).zip(&plan.stages).zip(&self.layouts) {
            let mut of = vec![(0, 0); s.grid.count() as usize];
            let mut ordered = Vec::with_capacity(of.len());
            layout.each(&s.grid.counts(), &mut |index, worker| {
                let mut step = 0;
                tiling.reads(stage, index, &mut |from, at| {
                    let f = from.stage.0 as usize;
                    if is_everywhere(tiling, from.stage) || self.again[f] {
                        return;
                    }
                    let n = plan.stage(from.stage).grid.ravel(&at) as usize;
                    let (of_whom, before) = known.get(f).unwrap_or(&of)[n];
                    step = step.max(before + u32::from(of_whom != worker));
                });
                of[s.grid.ravel(index) as usize] = (worker, step);
                ordered.push(step);
            });
            known.push(of);
            cuts.steps.push(ordered);
        }
        cuts
    }

    /// Returns the reads between runs. Constants are on every worker, and `again` stages are read by each worker
    /// itself.
    fn flows(
        &self,
        tiling: &Tiling,
        units: &[Unit],
        of_stage: &[std::ops::Range<usize>],
    ) -> Vec<Flow> {
        let mut flows = Vec::new();
        for of in super::outputs(tiling) {
            let s = of.stage.0 as usize;
            if is_everywhere(tiling, of.stage) || self.again[s] {
                continue;
            }
            for reader in readers(tiling, of) {
                for to in of_stage[reader.0 as usize].clone() {
                    let reads = super::traffic::read_by(tiling, of, reader, &units[to].operands);
                    for from in of_stage[s].clone() {
                        let chunks = common(&units[from].operands, &reads);
                        if !chunks.is_empty() && from != to {
                            flows.push(Flow { of, from, to, chunks });
                        }
                    }
                }
            }
        }
        flows
    }

    /// Sets the step of each run: one after the runs of other workers that it reads, and not before those of its own
    /// worker.
    fn set_steps(&self, units: &mut [Unit], flows: &[Flow]) -> Result<(), Error> {
        let mut into: Vec<Vec<usize>> = vec![Vec::new(); units.len()];
        for flow in flows {
            if flow.from > flow.to {
                return Err(Error::Range {
                    what: "runs of a stage whose operands read each other".into(),
                    value: format!("run {} reads run {}", flow.to, flow.from),
                    expected: "each reads what stands before it in the order".into(),
                });
            }
            into[flow.to].push(flow.from);
        }
        for to in 0..units.len() {
            let after = |&from: &usize| {
                units[from].step + u32::from(units[from].worker != units[to].worker)
            };
            units[to].step = into[to].iter().map(after).max().unwrap_or(0);
        }
        Ok(())
    }
}

/// Lists operands whose chunks only later steps of their worker read, if computing them takes longer than retaining
/// them.
fn tell_early(tiling: &Tiling, units: &mut [Unit], flows: &[Flow]) {
    let plan = tiling.plan();
    // Work of a run with its inputs in the same step.
    let mut work: Vec<f64> =
        units.iter().map(|u| count(&u.operands) * chunk_ns(tiling, plan.stage(u.stage))).collect();
    let mut into: Vec<Vec<&Flow>> = vec![Vec::new(); units.len()];
    flows.iter().for_each(|flow| into[flow.to].push(flow));
    for to in 0..units.len() {
        for flow in &into[to] {
            let from = &units[flow.from];
            if from.worker == units[to].worker && from.step == units[to].step {
                work[to] += work[flow.from] * part(flow, from);
            }
        }
    }
    for flow in flows {
        let (from, to) = (&units[flow.from], &units[flow.to]);
        let stage = plan.stage(from.stage);
        let is_load = matches!(stage.task, Task::Load { .. });
        if from.worker != to.worker || from.step == to.step || is_load {
            continue;
        }
        let bytes = count(&flow.chunks) * chunk_bytes(stage);
        if work[flow.from] * part(flow, from) > bytes * KEEP_BYTE_NS {
            let run = &mut units[flow.from].run;
            flow.chunks.iter().for_each(|c| add_disjoint(run, c.clone()));
        }
    }
}

/// Operands in boxes.
fn count(boxes: &[Region]) -> f64 {
    boxes.iter().map(Region::cells).sum::<u64>() as f64
}

/// The fraction of a run's operands whose chunks flow.
fn part(flow: &Flow, from: &Unit) -> f64 {
    count(&flow.chunks) / count(&from.operands).max(1.0)
}

/// The intersection of two lists of boxes; the boxes of each are disjoint.
fn common(a: &[Region], b: &[Region]) -> Vec<Region> {
    a.iter().flat_map(|a| b.iter().filter_map(|b| a.intersect(b))).collect()
}
