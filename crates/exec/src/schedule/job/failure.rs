//! Failure and restart of a plan.

use super::{Job, Trash};
use crate::error::Error;
use crate::operand::OperandState;
use crate::schedule::table::Slot;

impl Job {
    /// Stops the plan: running operands are asked to stop, everything else is dropped. Only the first error counts.
    pub(crate) fn fail(&mut self, error: Error, failed: Option<Slot>, trash: &mut Trash) {
        if let Some(slot) = failed {
            self.spread(slot);
        }
        if self.error.is_none() {
            self.error = Some(error);
        }
        self.statement.token.cancel();
        self.clear_queues();
        for fetched in self.fetched.drain(..) {
            self.running -= 1;
            self.fetching -= 1;
            self.reserved -= std::mem::take(&mut self.table.at(fetched.slot).reserved);
            self.table.turn(fetched.slot, OperandState::Cancelling);
            self.table.turn(fetched.slot, OperandState::Cancelled);
            self.table.remove(fetched.slot);
        }
        for slot in self.table.slots() {
            match self.table.at(slot).state {
                OperandState::Finished => self.release(slot, trash),
                OperandState::Running => self.table.turn(slot, OperandState::Cancelling),
                OperandState::Unscheduled | OperandState::Ready => {
                    self.table.turn(slot, OperandState::Cancelling);
                    self.table.turn(slot, OperandState::Cancelled);
                    self.table.remove(slot);
                }
                OperandState::Freed
                | OperandState::Fatal
                | OperandState::Cancelling
                | OperandState::Cancelled => {}
            }
        }
        self.redo.clear();
        self.undelivered = 0;
        self.edges = 0;
    }

    /// Marks an operand and all its direct and indirect readers FATAL.
    fn spread(&mut self, slot: Slot) {
        let mut next = vec![slot];
        while let Some(slot) = next.pop() {
            if self.table.get(slot).is_none_or(|o| !o.state.may_become(OperandState::Fatal)) {
                continue;
            }
            self.table.turn(slot, OperandState::Fatal);
            if let Some(operand) = self.table.remove(slot) {
                next.extend(operand.waiters);
            }
        }
    }

    /// Drops all chunks that were computed and not delivered, and continues, `serial` one operand at a time. Nothing
    /// runs.
    pub(crate) fn restart(&mut self, serial: bool, trash: &mut Trash) {
        debug_assert_eq!(self.running, 0, "only a plan that stands still is started again");
        self.clear_queues();
        for slot in self.table.slots() {
            let operand = self.table.at(slot);
            let number = operand.key.number;
            let pending = std::mem::take(&mut operand.pending);
            self.redo.extend(pending.into_iter().map(|r| (number, r)));
            match operand.state {
                OperandState::Finished => {
                    let stage = operand.key.stage.0 as usize;
                    self.stages[stage].dropped.insert(number);
                    self.release(slot, trash);
                    continue;
                }
                OperandState::Ready => self.table.turn(slot, OperandState::Unscheduled),
                _ => {}
            }
            self.table.turn(slot, OperandState::Freed);
            self.table.remove(slot);
        }
        self.undelivered = 0;
        self.edges = 0;
        self.serial |= serial;
        self.restarted = true;
        self.stats.restarts += 1;
    }

    pub(super) fn clear_queues(&mut self) {
        self.ready.clear();
        self.loads.clear();
        self.stack.clear();
        self.idle.clear();
    }
}
