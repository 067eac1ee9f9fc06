//! Runs small plans on the thread that starts them.
//!
//! Waking a thread and being woken by it costs more than the operands of a small query
//! ([`tessera_planner::cost::is_small`]). So the starting thread takes its operands itself, by the same rules of
//! admission, without waking others. If it cannot continue (memory that others hold, a fetch, a plan that is larger
//! than expected), the rest is left to the threads.

use super::Shared;
use crate::schedule::core::After;
use std::sync::Arc;

/// Upper bound on the batches taken.
const TURNS_MAX: usize = 256;

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
