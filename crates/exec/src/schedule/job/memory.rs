//! Eviction and spilling of a plan's chunks.

use super::{Job, Trash};
use crate::operand::OperandState;
use crate::schedule::table::Slot;
use crate::store::FinishedChunk;
use std::sync::Arc;

impl Job {
    /// Evicts all chunks in memory that can be read again and that no known operand waits for; false if there are
    /// none.
    pub(crate) fn drop_dear(&mut self, trash: &mut Trash) -> bool {
        let mut dropped = false;
        for slot in self.table.slots() {
            let operand = self.table.at(slot);
            let key = operand.key;
            if operand.state == OperandState::Finished
                && operand.pins == 0
                && operand.is_in_memory()
                && self.stages[key.stage.0 as usize].rereadable
            {
                self.stages[key.stage.0 as usize].dropped.insert(key.number);
                self.stats.evictions += 1;
                self.release(slot, trash);
                dropped = true;
            }
        }
        dropped
    }

    /// Replaces a chunk that has a file by that file; false if the chunk is not in memory or has other holders.
    /// `holders` is the number of its clones that the caller knows of, the table's included.
    pub(crate) fn move_to_file(
        &mut self,
        slot: Slot,
        output: u32,
        holders: usize,
        trash: &mut Trash,
    ) -> bool {
        let operand = self.table.at(slot);
        let Some(made) = operand.made.get_mut(output as usize) else { return false };
        let Some(FinishedChunk::Memory(chunk)) = &made.chunk else { return false };
        let Some(file) = chunk.file() else { return false };
        if Arc::strong_count(chunk) > holders {
            return false;
        }
        let (bytes, file) = (chunk.charged(), file.clone());
        trash.extend(made.chunk.replace(FinishedChunk::File(file)));
        self.held_bytes -= bytes;
        self.files += 1;
        if operand.idle_since != 0 {
            self.idle_bytes -= bytes;
            if !operand.is_in_memory() {
                operand.idle_since = 0;
                self.idle_count -= 1;
            }
        }
        true
    }

    /// Evicts the chunk that has been idle longest; false if no chunk is idle.
    pub(crate) fn evict(&mut self, trash: &mut Trash) -> bool {
        while let Some((slot, since)) = self.idle.pop_front() {
            if self.table.get(slot).is_some_and(|o| o.idle_since == since) {
                let key = self.table.at(slot).key;
                self.stages[key.stage.0 as usize].dropped.insert(key.number);
                self.stats.evictions += 1;
                self.release(slot, trash);
                return true;
            }
        }
        false
    }
}
