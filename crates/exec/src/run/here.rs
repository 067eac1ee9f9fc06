//! Small plans on the thread that starts them.
//!
//! To wake a thread and to be woken by it costs more than the operands of a small query. So whoever starts one takes
//! its operands itself, by the same rules of admission, and the threads never hear of it. What is left when it cannot
//! go on (memory that others hold, a fetch, a plan that is larger than it seemed) is left to the threads.

use super::Shared;
use crate::schedule::Tiling;
use crate::schedule::core::After;
use std::sync::Arc;
use tessera_planner::plan::{StageId, Task};
use tessera_planner::region::cells;
use tessera_planner::tile;

/// Operands and cells (over all stages) of a plan that is run where it is started: some hundred microseconds.
const OPERANDS_MAX: u64 = 64;
const CELLS_MAX: u64 = 64 << 10;
/// Cells of a factorisation, which does more than a few operations for each.
const FACTOR_CELLS_MAX: u64 = 1 << 10;
/// Batches that are taken at most.
const TURNS_MAX: usize = 256;

/// True for a plan that takes less than it costs to wake a thread, and waits for nothing.
pub fn is_small(tiling: &tile::Tiling) -> bool {
    let (mut operands, mut all) = (0u64, 0u64);
    for (i, stage) in tiling.plan().stages.iter().enumerate() {
        let n = cells(&stage.grid.shape()).unwrap_or(u64::MAX);
        let most = match &stage.task {
            Task::Load { source, .. } if !source.is_resident() => return false,
            Task::Factor { .. } => FACTOR_CELLS_MAX,
            _ => CELLS_MAX,
        };
        operands = operands.saturating_add(Tiling::grid(tiling, StageId(i as u32)).count());
        all = all.saturating_add(n);
        if n > most || all > CELLS_MAX || operands > OPERANDS_MAX {
            return false;
        }
    }
    true
}

impl Shared {
    /// Runs operands of a statement on this thread until it is over (true) or has to wait.
    pub(super) fn help(self: &Arc<Self>, statement: u64) -> bool {
        let (mut batch, mut finished) = (Vec::new(), Vec::new());
        for _ in 0..TURNS_MAX {
            let mut after = After::default();
            let over = {
                let mut core = self.lock();
                core.complete(&mut finished, &mut after);
                core.pick_of(statement, &mut batch, &mut after);
                core.settling += 1;
                core.counts(statement).is_none()
            };
            self.settle(after);
            self.lock().settling -= 1;
            if over {
                return true;
            }
            if batch.is_empty() {
                return false;
            }
            for work in batch.drain(..) {
                self.begin(work, &mut finished);
            }
        }
        let mut after = After::default();
        self.lock().complete(&mut finished, &mut after);
        self.settle(after);
        false
    }
}
