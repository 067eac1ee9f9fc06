//! The walk that finds operands: depth-first from the results, as far as the threads can use.
//!
//! ```text
//!   stack   root ▸ its 2nd read ▸ that one's 1st read ▸ ...   one frame for each operand whose reads are being visited
//! ```
//! The walk can stop after any step. So a reduction over 10^9 chunks starts with its first leaf, and only one path and
//! the operands attached to it are known.

use crate::durable::loading_bytes;
use crate::error::Demand;
use crate::operand::OperandState;
use crate::schedule::job::{Frame, Job};
use crate::schedule::ready::Ready;
use crate::schedule::table::{Made, Operand, OperandKey, Read, Slot};
use crate::store::counted_notes;
use smallvec::SmallVec;
use std::cmp::{Ordering, Reverse};
use tessera_planner::plan::OutputRef;

/// Number of reads of an operand above which the memory of their list is checked.
const READS_FREE: u64 = 1 << 16;

/// A result of which chunks remain to be started. The one with the smallest started part comes first.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Turn {
    result: u32,
    started: u64,
    count: u64,
}

impl Turn {
    /// The turn of a result, of whose `count` chunks `started` are started; `None` if these are all.
    pub(super) fn of(result: u32, started: u64, count: u64) -> Option<Self> {
        (started < count).then_some(Turn { result, started, count })
    }
}

impl Ord for Turn {
    fn cmp(&self, other: &Self) -> Ordering {
        let product = |started: u64, count: u64| u128::from(started) * u128::from(count);
        let own = product(self.started, other.count);
        own.cmp(&product(other.started, self.count)).then(self.result.cmp(&other.result))
    }
}

impl PartialOrd for Turn {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Job {
    /// One step of the walk: visits one read of the innermost unfinished operand, or starts the next root if
    /// `new_roots` allows. False if there is nothing to find.
    pub(crate) fn step(&mut self, new_roots: bool) -> bool {
        let Some(frame) = self.stack.last_mut() else {
            return new_roots && self.open_root();
        };
        let slot = frame.slot;
        let operand = self.table.at(slot);
        let Some(&read) = operand.reads.get(frame.next as usize) else {
            self.stack.pop();
            self.arrived(slot);
            return true;
        };
        frame.next += 1;
        let i = frame.next as usize - 1;
        let root = operand.root;
        let key = OperandKey { stage: read.stage, number: read.number };
        // A chunk that was dropped because this reader was not counted is made by a second operand with the same key.
        let known = self.table.find(key).filter(|&p| self.table.has(p, read.output));
        let producer = known.unwrap_or_else(|| self.find(key, root, None));
        self.table.at(slot).reads[i].slot = producer;
        let from = self.table.at(producer);
        from.pins += 1;
        let remaining = &mut from.made[read.output as usize].remaining;
        *remaining = (*remaining).max(1);
        if from.state == OperandState::Finished {
            if from.pins == 1 && from.idle_since != 0 {
                from.idle_since = 0;
                self.idle_count -= 1;
                self.idle_bytes -= from.bytes();
            }
        } else {
            from.waiters.push(slot);
            self.table.at(slot).waiting += 1;
        }
        true
    }

    /// Starts the next chunk of a result. Chunks of all results start in step, so that they share inputs in time.
    fn open_root(&mut self) -> bool {
        let (result, number) = match self.redo.pop_first() {
            Some((number, result)) => (result, number),
            None => {
                let Some(turn) = self.turns.pop_first() else { return false };
                let r = turn.result as usize;
                let (next, count) = self.roots[r];
                let wanted = self.statement.tiling.next_wanted(r, next);
                let Some(number) = wanted.filter(|n| *n < count) else {
                    self.roots[r].0 = count;
                    return true;
                };
                self.roots[r].0 = number + 1;
                self.turns.extend(Turn::of(turn.result, number + 1, count));
                if self.early[r].remove(number) {
                    return true;
                }
                (turn.result, number)
            }
        };
        let root = self.roots_opened;
        self.roots_opened += 1;
        let stage = self.statement.tiling.results()[result as usize].stage;
        self.find(OperandKey { stage, number }, root, Some(result));
        true
    }

    /// Enters an operand into the table and puts its reads first on the walk.
    pub(super) fn find(&mut self, key: OperandKey, root: u64, claim: Option<u32>) -> Slot {
        let statement = self.statement.clone();
        let tiling = &statement.tiling;
        let index = tiling.grid(key.stage).unravel(key.number);
        let output_bytes = tiling.output_bytes(key.stage, &index);
        let loading = loading_bytes(output_bytes);
        let mut stored = self.recovery.loads(key.stage, key.number);
        if stored && loading > statement.account.quota().limit() {
            // Loading it never fits, but making it may.
            self.lose(key);
            stored = false;
        }
        let (reads, peak) = match stored {
            true => (SmallVec::new(), loading),
            false => self.needs(key, &index),
        };
        let info = &mut self.stages[key.stage.0 as usize];
        if info.dropped.remove(key.number) {
            self.stats.reruns += 1;
        }
        let made = (0..info.outputs)
            .map(|output| {
                let of = OutputRef { stage: key.stage, output };
                let remaining = match tiling.readers(of, &index) {
                    // A saturated count stays saturated.
                    u64::MAX => u64::MAX,
                    readers => readers.saturating_sub(self.recovery.absent(of, key.number)),
                };
                Made { chunk: None, remaining }
            })
            .collect();
        let mut pending = SmallVec::new();
        for &(r, _) in &info.results {
            let unseen = key.number >= self.roots[r as usize].0
                && tiling.next_wanted(r as usize, key.number) == Some(key.number);
            if claim == Some(r)
                || (unseen && self.early[r as usize].insert(key.number))
                || self.redo.remove(&(key.number, r))
            {
                pending.push(r);
            }
        }
        self.undelivered += usize::from(!pending.is_empty());
        self.found += 1;
        self.edges += reads.len();
        let leaf = reads.is_empty();
        let slot = self.table.insert(Operand {
            key,
            state: OperandState::Unscheduled,
            waiting: 1,
            pins: 0,
            root,
            found: self.found,
            peak,
            reserved: 0,
            output_bytes,
            idle_since: 0,
            reads,
            waiters: SmallVec::new(),
            made,
            pending,
            attempts: 0,
            stored,
        });
        if leaf {
            self.arrived(slot);
        } else {
            self.stack.push(Frame { slot, next: 0 });
        }
        slot
    }

    /// Returns the reads and the peak of an operand that runs.
    fn needs(&mut self, key: OperandKey, index: &[u64]) -> (SmallVec<[Read; 2]>, u64) {
        let tiling = &self.statement.tiling;
        let mut reads: SmallVec<[Read; 2]> = SmallVec::new();
        let count = tiling.read_count(key.stage, index);
        if count > READS_FREE {
            let bytes = count.saturating_mul(size_of::<Read>() as u64);
            if let Err(error) = counted_notes(count, bytes, self.statement.account.quota()) {
                self.crowded.get_or_insert(error);
                return (reads, 0);
            }
        }
        tiling.reads(key.stage, index, &mut |from, at| {
            let number = tiling.grid(from.stage).ravel(&at);
            reads.push(Read { stage: from.stage, output: from.output, number, slot: Slot::MAX });
        });
        // The most expensive inputs are found first, so that loads are not held in memory in the meantime.
        let stages = &self.stages;
        reads.sort_by_key(|r| Reverse(stages[r.stage.0 as usize].depth));
        let peak = tiling.peak(key.stage, index);
        let limit = self.statement.account.quota().limit();
        if peak > limit && self.impossible.is_none() {
            self.impossible = Some(Demand {
                stage: tiling.name(key.stage),
                index: index.to_vec(),
                peak_bytes: peak,
                input_bytes: 0,
            });
        }
        (reads, peak)
    }

    /// Handles an operand whose stored chunks are missing: it runs, and so do its inputs. Some of them may have been
    /// freed, as this operand was not counted among their readers; so counts are off from here on.
    fn lose(&mut self, key: OperandKey) {
        self.recovery.lose(key.stage, key.number);
        self.restarted = true;
    }

    /// Returns an operand whose chunks could not be loaded to UNSCHEDULED, to run when all its inputs are available.
    pub(crate) fn put_back(&mut self, slot: Slot) {
        let key = self.table.at(slot).key;
        self.lose(key);
        self.table.turn(slot, OperandState::Ready);
        self.table.turn(slot, OperandState::Unscheduled);
        let index = self.statement.index(key);
        let (reads, peak) = self.needs(key, &index);
        self.edges += reads.len();
        let operand = self.table.at(slot);
        operand.stored = false;
        operand.waiting = 1;
        operand.peak = peak;
        operand.reads = reads;
        if operand.reads.is_empty() {
            self.arrived(slot);
        } else {
            self.stack.push(Frame { slot, next: 0 });
        }
    }

    /// Decrements the number of inputs that an operand waits for.
    pub(super) fn arrived(&mut self, slot: Slot) {
        let operand = self.table.at(slot);
        operand.waiting -= 1;
        if operand.waiting == 0 {
            self.table.turn(slot, OperandState::Ready);
            self.enqueue(slot);
        }
    }

    fn enqueue(&mut self, slot: Slot) {
        let operand = self.table.at(slot);
        let info = &self.stages[operand.key.stage.0 as usize];
        let ready = Ready {
            root: operand.root,
            depth: Reverse(info.depth),
            output_bytes: operand.output_bytes,
            found: operand.found,
            slot,
        };
        if operand.stored || (info.fetches && operand.reads.is_empty()) {
            self.loads.push(ready);
        } else {
            self.ready.push(ready);
        }
    }
}
