//! Operands follow their data, within the balance: for arrays that are stored on workers.
//!
//! A load goes to a worker that is near to its cells, any other operand to the worker with most bytes of its input, as
//! long as that worker has less than its share of the stage. The rest goes to the worker that lacks most of its share.

use super::order::{Layout, Order};
use super::traffic::is_everywhere;
use super::{Placement, Rounding, Worker, eligible, parts};
use crate::plan::{StageId, Task};
use crate::tile::Tiling;
use std::cmp::Reverse;

/// An operand without a worker.
const NOBODY: u32 = u32::MAX;

/// Time grows with operands and reads.
pub(super) fn place(tiling: &Tiling, workers: &[Worker]) -> Placement {
    let plan = tiling.plan();
    let mut homes: Vec<Vec<u32>> = Vec::with_capacity(plan.stages.len());
    for (id, stage) in (0..).map(StageId).zip(&plan.stages) {
        let mut left = vec![0u64; workers.len()];
        let shares =
            parts(stage.grid.count(), &eligible(tiling, id, workers), workers, Rounding::Half);
        shares.iter().for_each(|&(w, n)| left[w as usize] = n);
        let is_load = matches!(stage.task, Task::Load { .. });
        let mut home = vec![NOBODY; stage.grid.count() as usize];
        for (number, home) in (0u64..).zip(&mut home) {
            let mut here = vec![0u64; workers.len()];
            if is_load {
                for (here, worker) in here.iter_mut().zip(workers) {
                    *here = u64::from(worker.near.get(&id).is_some_and(|set| set.contains(number)));
                }
            } else {
                let index = stage.grid.unravel(number);
                tiling.reads(id, &index, &mut |from, at| {
                    // A carry comes from the stage itself, which is not listed yet.
                    let Some(homes) = homes.get(from.stage.0 as usize) else { return };
                    if !is_everywhere(tiling, from.stage) {
                        let output = plan.output(from);
                        let bytes = output.grid.region(&at).cells() * output.cell_bytes() as u64;
                        let worker = homes[plan.stage(from.stage).grid.ravel(&at) as usize];
                        here[worker as usize] += bytes;
                    }
                });
            }
            let some = (0..workers.len()).filter(|&w| left[w] > 0 && here[w] > 0);
            if let Some(w) = some.max_by_key(|&w| (here[w], left[w], Reverse(w))) {
                left[w] -= 1;
                *home = w as u32;
            }
        }
        // Operands without data on any worker stay together.
        let mut rest =
            (0..workers.len()).flat_map(|w| std::iter::repeat_n(w as u32, left[w] as usize));
        for home in home.iter_mut().filter(|h| **h == NOBODY) {
            *home = rest.next().unwrap_or(0);
        }
        homes.push(home);
    }
    let layout = |(home, stage): (Vec<u32>, &crate::plan::Stage)| {
        let order = Order::row_major(stage.grid.rank());
        Layout::new(order, home.into_iter().map(|w| (w, 1)))
    };
    let layouts = homes.into_iter().zip(&plan.stages).map(layout).collect();
    Placement { workers: workers.to_vec(), layouts, again: vec![false; plan.stages.len()] }
}
