//! Phases as data: what each worker is told.

use super::Placement;
use super::model::Modelled;
use super::traffic::{is_everywhere, read_by, readers};
use crate::plan::{OutputRef, StageId};
use crate::region::Region;
use crate::tile::{Tiling, add_disjoint};
use serde::{Deserialize, Serialize};

/// Operands of a stage.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Share {
    /// The stage.
    pub stage: StageId,
    /// The operands, as disjoint boxes of their indices.
    pub operands: Vec<Region>,
}

/// Chunks of an output.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Chunks {
    /// The output.
    pub of: OutputRef,
    /// Number of the worker that makes them.
    pub worker: u32,
    /// The chunks, as disjoint boxes of their indices.
    pub chunks: Vec<Region>,
}

/// What one worker does in one phase. Beside the plan it is all that the worker needs to know.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct WorkOrder {
    /// The phase.
    pub phase: u32,
    /// Number of the worker.
    pub worker: u32,
    /// Operands that it runs. Each operand of a plan is in one order, but for those of arrays that are read where they
    /// are wanted, and of constants.
    pub run: Vec<Share>,
    /// Chunks that its operands read and others make: in an earlier phase, or, of neighbours, trees, carries and loads,
    /// in this one.
    pub fetch: Vec<Chunks>,
    /// Chunks that it makes and that are results, are read in a later phase, or by others.
    pub keep: Vec<Chunks>,
}

impl Placement {
    /// The work orders by phase and worker; none for a worker that has nothing to do in a phase. `model` is
    /// [`Placement::model`]'s. They grow with the boxes of the layouts, and take time with their square.
    pub fn orders(&self, tiling: &Tiling, model: &Modelled) -> Vec<WorkOrder> {
        let plan = tiling.plan();
        let workers = self.workers.len();
        let boxes: Vec<Vec<Vec<Region>>> = plan
            .stages
            .iter()
            .zip(&self.layouts)
            .map(|(s, l)| l.boxes(&s.grid.counts(), workers))
            .collect();
        let of_stage = |s: StageId| model.phase[s.0 as usize];
        let is_again = |s: StageId| self.again[s.0 as usize];
        let mut orders = Vec::new();
        for phase in 0..model.phases.len() as u32 {
            for worker in 0..workers as u32 {
                let mut order =
                    WorkOrder { phase, worker, run: vec![], fetch: vec![], keep: vec![] };
                for (stage, s) in (0..).map(StageId).zip(&plan.stages) {
                    if is_everywhere(tiling, stage) {
                        continue;
                    }
                    let homes = &boxes[stage.0 as usize];
                    let mine = &homes[worker as usize];
                    if of_stage(stage) == phase && !is_again(stage) && !mine.is_empty() {
                        order.run.push(Share { stage, operands: mine.clone() });
                    }
                    for output in 0..s.outputs.len() as u32 {
                        let of = OutputRef { stage, output };
                        // What operands here read of it in this phase, and what is read of it later or elsewhere.
                        let (mut here, mut beyond) = (Vec::new(), Vec::new());
                        for reader in readers(tiling, of) {
                            let reads = |w: u32| {
                                let operands = &boxes[reader.0 as usize][w as usize];
                                read_by(tiling, of, reader, operands)
                            };
                            let is_later = of_stage(reader) > of_stage(stage);
                            if of_stage(reader) == phase {
                                reads(worker).into_iter().for_each(|r| add_disjoint(&mut here, r));
                            }
                            if of_stage(stage) == phase && !is_again(stage) {
                                for w in (0..workers as u32).filter(|w| *w != worker || is_later) {
                                    reads(w).into_iter().for_each(|r| add_disjoint(&mut beyond, r));
                                }
                            }
                        }
                        if is_again(stage) {
                            if !here.is_empty() {
                                order.run.push(Share { stage, operands: here });
                            }
                            continue;
                        }
                        for (w, home) in (0..).zip(homes).filter(|(w, _)| *w != worker) {
                            let chunks = common(home, &here);
                            if !chunks.is_empty() {
                                order.fetch.push(Chunks { of, worker: w, chunks });
                            }
                        }
                        if of_stage(stage) == phase {
                            let is_result = plan.results.contains(&of);
                            let chunks =
                                if is_result { mine.clone() } else { common(mine, &beyond) };
                            if !chunks.is_empty() {
                                order.keep.push(Chunks { of, worker, chunks });
                            }
                        }
                    }
                }
                if !(order.run.is_empty() && order.fetch.is_empty()) {
                    orders.push(order);
                }
            }
        }
        orders
    }
}

/// What lies in boxes of both; each are disjoint among themselves.
fn common(a: &[Region], b: &[Region]) -> Vec<Region> {
    a.iter().flat_map(|a| b.iter().filter_map(|b| a.intersect(b))).collect()
}
