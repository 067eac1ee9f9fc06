//! The live operands of the scheduler: found, and not yet freed.

use crate::operand::{OperandState, StateCounts};
use crate::store::FinishedChunk;
use smallvec::SmallVec;
use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};
use tessera_planner::plan::StageId;

/// An index into the table.
pub(crate) type Slot = u32;

/// An operand's identity: its stage and its row-major number there.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct OperandKey {
    pub(crate) stage: StageId,
    pub(crate) number: u64,
}

/// A chunk that an operand reads.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Read {
    pub(crate) stage: StageId,
    pub(crate) output: u32,
    pub(crate) number: u64,
    /// Slot of the producer; valid once the walk has visited the read.
    pub(crate) slot: Slot,
}

/// One output of an operand.
#[derive(Debug, Default)]
pub(crate) struct Made {
    pub(crate) chunk: Option<FinishedChunk>,
    /// Readers that have not read it yet, found or not.
    pub(crate) remaining: u64,
}

#[derive(Debug)]
pub(crate) struct Operand {
    pub(crate) key: OperandKey,
    pub(crate) state: OperandState,
    /// Missing inputs, plus one while the walk has not visited all of them.
    pub(crate) waiting: u32,
    /// Operands found that have still to read this one.
    pub(crate) pins: u32,
    /// Order of the root that it was found for.
    pub(crate) root: u64,
    pub(crate) found: u64,
    pub(crate) peak: u64,
    /// Bytes that it was admitted with.
    pub(crate) reserved: u64,
    pub(crate) output_bytes: u64,
    /// Logical time at which it last became idle.
    pub(crate) idle_since: u64,
    pub(crate) reads: SmallVec<[Read; 2]>,
    pub(crate) waiters: SmallVec<[Slot; 4]>,
    pub(crate) made: SmallVec<[Made; 1]>,
    /// Results that its chunks are still to be delivered to.
    pub(crate) pending: SmallVec<[u32; 2]>,
    pub(crate) attempts: u32,
    /// True if its chunks are loaded instead of being made.
    pub(crate) stored: bool,
}

impl Operand {
    /// Bytes of memory of the chunks that it holds.
    pub(crate) fn bytes(&self) -> u64 {
        self.made.iter().filter_map(|m| m.chunk.as_ref()).map(FinishedChunk::memory_bytes).sum()
    }

    pub(crate) fn is_in_memory(&self) -> bool {
        self.made.iter().any(|m| matches!(m.chunk, Some(FinishedChunk::Memory(_))))
    }

    /// True if no output has a reader left.
    pub(crate) fn is_read(&self) -> bool {
        self.made.iter().all(|m| m.remaining == 0)
    }
}

/// Live operands by slot and by key.
#[derive(Debug, Default)]
pub(crate) struct Table {
    slots: Vec<Option<Operand>>,
    free: Vec<Slot>,
    names: HashMap<OperandKey, Slot, BuildHasherDefault<Mix>>,
    pub(crate) counts: StateCounts,
    pub(crate) max_live: u64,
}

impl Table {
    pub(crate) fn find(&self, key: OperandKey) -> Option<Slot> {
        self.names.get(&key).copied()
    }

    pub(crate) fn len(&self) -> usize {
        self.slots.len() - self.free.len()
    }

    pub(crate) fn insert(&mut self, operand: Operand) -> Slot {
        let key = operand.key;
        self.counts.enter(operand.state);
        let slot = match self.free.pop() {
            Some(slot) => {
                self.slots[slot as usize] = Some(operand);
                slot
            }
            None => {
                self.slots.push(Some(operand));
                (self.slots.len() - 1) as Slot
            }
        };
        self.names.insert(key, slot);
        self.max_live = self.max_live.max(self.len() as u64);
        slot
    }

    /// Returns the operand in a slot that is known to be in use.
    #[expect(clippy::expect_used, reason = "a slot number is valid only while its operand lives")]
    pub(crate) fn at(&mut self, slot: Slot) -> &mut Operand {
        self.slots[slot as usize].as_mut().expect("a slot in use")
    }

    pub(crate) fn get(&self, slot: Slot) -> Option<&Operand> {
        self.slots.get(slot as usize).and_then(Option::as_ref)
    }

    /// Moves an operand to another state; panics unless [`OperandState::may_become`] allows it.
    pub(crate) fn turn(&mut self, slot: Slot, next: OperandState) {
        let operand = self.at(slot);
        let before = operand.state;
        operand.state = next;
        assert!(before.may_become(next), "operand state {before} does not become {next}");
        self.counts.leave(before);
        self.counts.enter(next);
    }

    pub(crate) fn remove(&mut self, slot: Slot) -> Option<Operand> {
        let operand = self.slots[slot as usize].take()?;
        // Another operand may have taken over its key.
        if self.find(operand.key) == Some(slot) {
            self.names.remove(&operand.key);
        }
        self.free.push(slot);
        Some(operand)
    }

    /// The chunk of an output, if its operand holds one.
    pub(crate) fn chunk(&self, slot: Slot, output: u32) -> Option<&FinishedChunk> {
        self.get(slot)?.made.get(output as usize)?.chunk.as_ref()
    }

    /// False if the chunk of an output was already dropped while the operand lives for another output.
    pub(crate) fn has(&self, slot: Slot, output: u32) -> bool {
        self.get(slot).is_some_and(|o| o.state != OperandState::Finished)
            || self.chunk(slot, output).is_some()
    }

    /// Iterates over live operands with their slots, in ascending order.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (Slot, &Operand)> {
        (0..).zip(&self.slots).filter_map(|(i, o)| Some((i, o.as_ref()?)))
    }

    /// One past the last slot that was ever in use.
    pub(crate) fn end(&self) -> usize {
        self.slots.len()
    }

    /// Slots in use, in ascending order.
    pub(crate) fn slots(&self) -> Vec<Slot> {
        let used = |(i, o): (usize, &Option<Operand>)| o.as_ref().map(|_| i as Slot);
        self.slots.iter().enumerate().filter_map(used).collect()
    }
}

/// A multiplicative hash: keys are small numbers from our own plans, not from an adversary.
#[derive(Debug, Default, Clone, Copy)]
pub(crate) struct Mix(u64);

impl Hasher for Mix {
    fn finish(&self) -> u64 {
        self.0 ^ (self.0 >> 29)
    }

    fn write(&mut self, bytes: &[u8]) {
        for &b in bytes {
            self.write_u64(u64::from(b));
        }
    }

    fn write_u32(&mut self, n: u32) {
        self.write_u64(u64::from(n));
    }

    fn write_u64(&mut self, n: u64) {
        self.0 = (self.0.rotate_left(23) ^ n).wrapping_mul(0x9E37_79B9_7F4A_7C15);
    }
}
