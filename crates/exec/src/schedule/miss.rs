//! A spilled chunk that is lost: its operand runs again, and operands that wait for the chunk wait for that run.
//!
//! ```text
//!   p ─▶ file ✗   the reader that met it, and all readers that are found and have not run, read instead from
//!   p'─▶ chunk    the same operand, found once more with its inputs
//! ```
//! Running readers hold the file too, and call this when they meet it.

use crate::error::Error;
use crate::operand::OperandState;
use crate::schedule::job::{Job, Trash};
use crate::schedule::table::Slot;
use crate::store::FinishedChunk;
use smallvec::SmallVec;
use std::collections::BTreeSet;
use std::path::Path;

/// Upper bound on the lost chunks of a plan that are recomputed. A device that loses more is reported as faulty.
const MISSES_MAX: u64 = 64;

impl Job {
    /// Handles an operand that failed because a file of one of its inputs is corrupt: the chunk is recomputed, and then
    /// the operand runs. False if the file is not of this plan, or too many chunks were lost already.
    pub(super) fn missed(&mut self, slot: Slot, file: &Path, trash: &mut Trash) -> bool {
        let operand = self.table.at(slot);
        if operand.state != OperandState::Running || self.stats.spill_misses >= MISSES_MAX {
            return false;
        }
        let root = operand.root;
        let reads: BTreeSet<(Slot, u32)> =
            operand.reads.iter().map(|r| (r.slot, r.output)).collect();
        let is_lost = |&(from, output): &(Slot, u32)| {
            let made = self.table.get(from).and_then(|o| o.made.get(output as usize));
            match made.map(|m| &m.chunk) {
                Some(Some(FinishedChunk::File(held))) => held.path() == file,
                // Another reader met it before.
                Some(None) => true,
                _ => false,
            }
        };
        let lost: SmallVec<[(Slot, u32); 1]> = reads.iter().copied().filter(is_lost).collect();
        if lost.is_empty() {
            return false;
        }
        tracing::warn!(file = %file.display(), "a spilled chunk is lost, and made again");
        // Operands run again from here on, so that counts of readers may be off.
        self.restarted = true;
        self.running -= 1;
        self.reserved -= std::mem::take(&mut self.table.at(slot).reserved);
        self.table.turn(slot, OperandState::Ready);
        self.table.turn(slot, OperandState::Unscheduled);
        self.table.at(slot).waiting = 1;
        let mut readers = BTreeSet::from([slot]);
        for (from, output) in lost {
            let key = self.table.at(from).key;
            if let Some(chunk) = self.table.at(from).made[output as usize].chunk.take() {
                self.let_go(chunk, trash);
                self.stats.spill_misses += 1;
                self.stages[key.stage.0 as usize].dropped.insert(key.number);
            }
            let waits = |o: &crate::schedule::table::Operand| {
                matches!(o.state, OperandState::Unscheduled | OperandState::Ready)
                    && o.reads.iter().any(|r| (r.slot, r.output) == (from, output))
            };
            let all: Vec<Slot> =
                self.table.iter().filter(|(_, o)| waits(o)).map(|(s, _)| s).collect();
            let known = self.table.find(key).filter(|&p| self.table.has(p, output));
            let again = known.unwrap_or_else(|| self.find(key, root, None));
            for reader in all {
                if self.table.at(reader).state == OperandState::Ready {
                    self.table.turn(reader, OperandState::Unscheduled);
                    self.table.at(reader).waiting = 1;
                    self.unqueue(reader);
                    readers.insert(reader);
                }
                self.read_instead(reader, (from, output), again);
            }
            self.unread(from, trash);
        }
        for reader in readers {
            self.arrived(reader);
        }
        true
    }

    /// Redirects a read of an operand that has not run to a second run of the producer.
    fn read_instead(&mut self, reader: Slot, (from, output): (Slot, u32), again: Slot) {
        let is_made = self.table.at(again).state == OperandState::Finished;
        let operand = self.table.at(reader);
        let mut count = 0;
        for read in operand.reads.iter_mut().filter(|r| (r.slot, r.output) == (from, output)) {
            read.slot = again;
            count += 1;
        }
        if !is_made {
            operand.waiting += count;
        }
        self.table.at(from).pins -= count;
        let to = self.table.at(again);
        if to.pins == 0 && to.idle_since != 0 {
            to.idle_since = 0;
            self.idle_count -= 1;
            self.idle_bytes -= to.bytes();
        }
        to.pins += count;
        let remaining = &mut to.made[output as usize].remaining;
        *remaining = (*remaining).max(1);
        if !is_made {
            to.waiters.extend(std::iter::repeat_n(reader, count as usize));
        }
    }

    /// Removes a ready operand from its queue.
    fn unqueue(&mut self, slot: Slot) {
        self.ready.remove(slot);
        self.loads.remove(slot);
    }

    /// Frees an operand without chunks once nothing refers to it.
    fn unread(&mut self, slot: Slot, trash: &mut Trash) {
        let operand = self.table.at(slot);
        if operand.pins > 0 {
            return;
        }
        match operand.made.iter().any(|m| m.chunk.is_some()) {
            true => self.settle(slot, trash),
            false => self.release(slot, trash),
        }
    }
}

/// The file of a lost chunk, if the error reports one.
pub(super) fn lost_file(error: &Error) -> Option<&Path> {
    match error {
        Error::ScratchCorrupt { file } => Some(file),
        _ => None,
    }
}
