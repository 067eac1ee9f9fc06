//! One plan that runs, and what happens to its operands once [`super::walk`] has found them.

use crate::cancel::CancelToken;
use crate::chunk::Chunk;
use crate::error::{Demand, Error};
use crate::operand::State;
use crate::quota::Account;
use crate::schedule::admit::Work;
use crate::schedule::ranges::RangeSet;
use crate::schedule::ready::ReadyQueue;
use crate::schedule::table::{Key, Read, Slot, Table};
use crate::schedule::{Outcome, Sink, StageStats, Stats, TaskRunner, Tiling};
use smallvec::SmallVec;
use std::collections::{BTreeSet, VecDeque};
use std::sync::Arc;
use std::time::Instant;
use tessera_planner::plan::StageId;

/// What the threads need of a statement; it does not change.
pub(crate) struct Statement {
    pub(crate) id: u64,
    pub(crate) tiling: Arc<dyn Tiling>,
    pub(crate) runner: Arc<dyn TaskRunner>,
    pub(crate) sink: Arc<dyn Sink>,
    pub(crate) token: CancelToken,
    pub(crate) account: Arc<Account>,
}

/// Called once, when nothing of the plan runs any more.
pub(crate) type Done = Box<dyn FnOnce(Outcome) + Send>;

/// What is asked of a plan's stage again and again.
pub(super) struct StageInfo {
    pub(super) depth: u32,
    pub(super) rereadable: bool,
    /// True for loads that do I/O.
    pub(super) fetches: bool,
    pub(super) outputs: u32,
    /// Results that are outputs of this stage: result, output.
    pub(super) results: SmallVec<[(u32, u32); 1]>,
    pub(super) ran: u64,
    pub(super) nanos: u64,
    /// Chunks that were dropped and may be made again.
    pub(super) dropped: RangeSet,
}

/// An operand whose reads are being visited.
pub(super) struct Frame {
    pub(super) slot: Slot,
    pub(super) next: u32,
}

/// A running plan.
pub(crate) struct Job {
    pub(crate) statement: Arc<Statement>,
    pub(crate) done: Option<Done>,
    pub(super) stages: Vec<StageInfo>,
    pub(crate) table: Table,
    /// Operands that compute.
    pub(crate) ready: ReadyQueue,
    /// Loads, which may have to fetch.
    pub(crate) loads: ReadyQueue,
    pub(crate) fetched: VecDeque<Work>,
    pub(super) stack: Vec<Frame>,
    /// Chunks of each result, and how many of them were started, in row-major order.
    pub(super) roots: Vec<(u64, u64)>,
    /// Chunks of each result beyond its cursor that were found as inputs and are delivered already, or will be.
    pub(super) early: Vec<RangeSet>,
    /// Chunks of results (number, result) whose work was given up.
    pub(super) redo: BTreeSet<(u64, u32)>,
    pub(super) roots_opened: u64,
    pub(super) found: u64,
    /// Operands found that have chunks to deliver.
    pub(crate) undelivered: usize,
    /// Operands admitted, and those of them that fetch or were fetched and wait for a thread.
    pub(crate) running: usize,
    pub(crate) fetching: usize,
    /// Bytes of chunks in the table.
    pub(crate) held_bytes: u64,
    pub(super) live_chunks: u64,
    /// Chunks that nothing known waits for and that can be made again: slot and time; stale entries are skipped.
    pub(super) idle: VecDeque<(Slot, u64)>,
    pub(super) idle_count: usize,
    /// Bytes of the idle chunks.
    pub(crate) idle_bytes: u64,
    pub(super) idle_clock: u64,
    pub(super) idle_max: usize,
    pub(crate) error: Option<Error>,
    /// An operand that asks for more than there ever is.
    pub(crate) impossible: Option<Demand>,
    /// One operand at a time.
    pub(crate) serial: bool,
    /// Waits until every older statement is over.
    pub(crate) parked: bool,
    /// Since when it waits for memory that others hold.
    pub(crate) stalled: Option<Instant>,
    pub(crate) stats: Stats,
}

/// Chunks to drop once the scheduler is unlocked.
pub(crate) type Trash = Vec<Arc<Chunk>>;

impl Job {
    pub(crate) fn new(statement: Statement, done: Done, idle_max: usize) -> Result<Self, Error> {
        let tiling = &statement.tiling;
        let mut stages = Vec::with_capacity(tiling.stages());
        for s in 0..tiling.stages() {
            let id = StageId(s as u32);
            if tiling.grid(id).count() > i64::MAX as u64 {
                return Err(Error::TooManyChunks { stage: tiling.name(id) });
            }
            stages.push(StageInfo {
                depth: tiling.depth(id),
                rereadable: tiling.is_rereadable(id),
                fetches: tiling.is_rereadable(id) && statement.runner.fetches(id),
                outputs: tiling.outputs(id) as u32,
                results: SmallVec::new(),
                ran: 0,
                nanos: 0,
                dropped: RangeSet::default(),
            });
        }
        let mut roots = Vec::new();
        for (r, result) in tiling.results().iter().enumerate() {
            let stage = stages.get_mut(result.stage.0 as usize);
            let stage = stage.filter(|s| result.output < s.outputs).ok_or_else(|| {
                Error::Broken { what: format!("result {r} names {result:?}, which does not exist") }
            })?;
            stage.results.push((r as u32, result.output));
            roots.push((0, tiling.grid(result.stage).count()));
        }
        Ok(Job {
            early: vec![RangeSet::default(); roots.len()],
            statement: Arc::new(statement),
            done: Some(done),
            stages,
            table: Table::default(),
            ready: ReadyQueue::default(),
            loads: ReadyQueue::default(),
            fetched: VecDeque::new(),
            stack: Vec::new(),
            roots,
            redo: BTreeSet::new(),
            roots_opened: 0,
            found: 0,
            undelivered: 0,
            running: 0,
            fetching: 0,
            held_bytes: 0,
            live_chunks: 0,
            idle: VecDeque::new(),
            idle_count: 0,
            idle_bytes: 0,
            idle_clock: 0,
            idle_max,
            error: None,
            impossible: None,
            serial: false,
            parked: false,
            stalled: None,
            stats: Stats::default(),
        })
    }

    /// True when nothing is left to do and nothing runs.
    pub(crate) fn is_over(&self) -> bool {
        self.running == 0
            && (self.error.is_some()
                || (self.undelivered == 0
                    && self.redo.is_empty()
                    && self.roots.iter().all(|(next, count)| next == count)))
    }

    /// Operands that could start if there were room.
    pub(crate) fn startable(&self) -> usize {
        self.ready.len() + self.loads.len() + self.fetched.len()
    }

    // ---- What happens to operands.

    /// An operand came to its end on a thread: its chunks, charged and delivered, or an error.
    pub(crate) fn complete(
        &mut self,
        slot: Slot,
        result: Result<SmallVec<[Arc<Chunk>; 1]>, Error>,
        nanos: u64,
        trash: &mut Trash,
    ) {
        self.running -= 1;
        if self.table.at(slot).state == State::Cancelling {
            self.table.turn(slot, State::Cancelled);
            self.table.remove(slot);
            if let Ok(chunks) = result {
                trash.extend(chunks);
            }
            return;
        }
        let chunks = match result {
            Ok(chunks) => chunks,
            Err(error) => return self.fail(error, Some(slot), trash),
        };
        self.table.turn(slot, State::Finished);
        let operand = self.table.at(slot);
        let key = operand.key;
        if !operand.pending.is_empty() {
            operand.pending.clear();
            self.undelivered -= 1;
        }
        let (mut live, mut bytes) = (0, 0);
        for (made, chunk) in operand.made.iter_mut().zip(chunks) {
            bytes += chunk.bytes();
            if made.remaining > 0 {
                live += 1;
                self.held_bytes += chunk.bytes();
                made.chunk = Some(chunk);
            } else {
                trash.push(chunk);
            }
        }
        let reads = std::mem::take(&mut operand.reads);
        let waiters = std::mem::take(&mut operand.waiters);
        self.live_chunks += live;
        self.stats.max_live_chunks = self.stats.max_live_chunks.max(self.live_chunks);
        let info = &mut self.stages[key.stage.0 as usize];
        info.ran += 1;
        info.nanos += nanos;
        if info.rereadable {
            self.stats.reads += 1;
            self.stats.bytes_read += bytes;
        }
        for waiter in waiters {
            self.arrived(waiter);
        }
        for read in reads {
            self.was_read(read, trash);
        }
        self.settle(slot, trash);
    }

    /// A reader of a chunk is done.
    fn was_read(&mut self, read: Read, trash: &mut Trash) {
        let from = self.table.at(read.slot);
        from.pins -= 1;
        let made = &mut from.made[read.output as usize];
        // A saturated count never ends. After a restart operands are made and read again, so that counts may be off:
        // chunks then go when memory is short, and all outputs of an operand go together.
        if made.remaining != u64::MAX {
            made.remaining = made.remaining.saturating_sub(1);
        }
        if made.remaining == 0
            && !self.serial
            && let Some(chunk) = made.chunk.take()
        {
            self.held_bytes -= chunk.bytes();
            self.live_chunks -= 1;
            trash.push(chunk);
        }
        self.settle(read.slot, trash);
    }

    /// Frees a finished operand that nothing reads any more, or lists it as idle if it can be made again.
    fn settle(&mut self, slot: Slot, trash: &mut Trash) {
        let serial = self.serial;
        let operand = self.table.at(slot);
        if operand.state != State::Finished || operand.pins > 0 {
            return;
        }
        if operand.is_read() {
            self.release(slot, trash);
        } else if (serial || self.stages[operand.key.stage.0 as usize].rereadable)
            && operand.idle_since == 0
        {
            self.idle_clock += 1;
            operand.idle_since = self.idle_clock;
            self.idle.push_back((slot, self.idle_clock));
            self.idle_count += 1;
            self.idle_bytes += operand.bytes();
            if self.idle.len() > 2 * self.idle_count + 64 {
                let table = &self.table;
                self.idle.retain(|&(s, t)| table.get(s).is_some_and(|o| o.idle_since == t));
            }
            if self.idle_count > self.idle_max {
                self.evict(trash);
            }
        }
    }

    fn release(&mut self, slot: Slot, trash: &mut Trash) {
        self.table.turn(slot, State::Freed);
        let Some(operand) = self.table.remove(slot) else { return };
        if operand.idle_since != 0 {
            self.idle_count -= 1;
            self.idle_bytes -= operand.bytes();
        }
        self.held_bytes -= operand.bytes();
        for chunk in operand.made.into_iter().filter_map(|m| m.chunk) {
            self.live_chunks -= 1;
            trash.push(chunk);
        }
    }

    /// Drops the chunk that has been idle longest; false if there is none.
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

    // ---- Giving up.

    /// Stops the plan: what runs is asked to stop, everything else is dropped. Only the first error counts.
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
            self.table.turn(fetched.slot, State::Cancelling);
            self.table.turn(fetched.slot, State::Cancelled);
            self.table.remove(fetched.slot);
        }
        for slot in self.table.slots() {
            match self.table.at(slot).state {
                State::Finished => self.release(slot, trash),
                State::Running => self.table.turn(slot, State::Cancelling),
                State::Unscheduled | State::Ready => {
                    self.table.turn(slot, State::Cancelling);
                    self.table.turn(slot, State::Cancelled);
                    self.table.remove(slot);
                }
                State::Freed | State::Fatal | State::Cancelling | State::Cancelled => {}
            }
        }
        self.redo.clear();
        self.undelivered = 0;
    }

    /// FATAL for an operand and all that would have read what it makes.
    fn spread(&mut self, slot: Slot) {
        let mut next = vec![slot];
        while let Some(slot) = next.pop() {
            if self.table.get(slot).is_none_or(|o| !o.state.may_become(State::Fatal)) {
                continue;
            }
            self.table.turn(slot, State::Fatal);
            if let Some(operand) = self.table.remove(slot) {
                next.extend(operand.waiters);
            }
        }
    }

    /// Drops all that was computed and not delivered, and goes on one operand at a time. Nothing runs.
    pub(crate) fn restart(&mut self, trash: &mut Trash) {
        debug_assert_eq!(self.running, 0, "only a plan that stands still is started again");
        self.clear_queues();
        for slot in self.table.slots() {
            let operand = self.table.at(slot);
            let number = operand.key.number;
            let pending = std::mem::take(&mut operand.pending);
            self.redo.extend(pending.into_iter().map(|r| (number, r)));
            match operand.state {
                State::Finished => {
                    let stage = operand.key.stage.0 as usize;
                    self.stages[stage].dropped.insert(number);
                    self.release(slot, trash);
                    continue;
                }
                State::Ready => self.table.turn(slot, State::Unscheduled),
                _ => {}
            }
            self.table.turn(slot, State::Freed);
            self.table.remove(slot);
        }
        self.undelivered = 0;
        self.serial = true;
        self.stats.restarts += 1;
    }

    fn clear_queues(&mut self) {
        self.ready.clear();
        self.loads.clear();
        self.stack.clear();
        self.idle.clear();
    }

    /// What the plan did, when it is over.
    pub(crate) fn into_result(mut self) -> (Option<Done>, Outcome) {
        let done = self.done.take();
        let stats = self.stats();
        (done, Outcome { result: self.error.map_or(Ok(()), Err), stats })
    }

    /// What the plan did until now.
    pub(crate) fn stats(&self) -> Stats {
        let tiling = &self.statement.tiling;
        let stages = (0u32..)
            .zip(&self.stages)
            .map(|(s, info)| StageStats {
                name: tiling.name(StageId(s)),
                operands: info.ran,
                seconds: info.nanos as f64 * 1e-9,
            })
            .collect();
        Stats {
            stages,
            states: self.table.counts.clone(),
            max_live_operands: self.table.max_live,
            peak_bytes: self.statement.account.peak(),
            ..self.stats.clone()
        }
    }

    /// Results that an operand's chunks go to: result, output.
    pub(crate) fn deliveries(&self, slot: Slot) -> SmallVec<[(u32, u32); 1]> {
        let Some(operand) = self.table.get(slot) else { return SmallVec::new() };
        let results = &self.stages[operand.key.stage.0 as usize].results;
        results.iter().filter(|(r, _)| operand.pending.contains(r)).copied().collect()
    }

    /// Drops what is left at a regular end: idle chunks, and chunks whose other readers no result needs.
    pub(crate) fn clear(&mut self, trash: &mut Trash) {
        self.clear_queues();
        for slot in self.table.slots() {
            if self.table.at(slot).state == State::Finished {
                self.release(slot, trash);
            }
        }
    }
}

impl Statement {
    /// An operand as errors name it.
    pub(crate) fn name(&self, key: Key) -> String {
        let index = self.tiling.grid(key.stage).unravel(key.number);
        format!("{} {:?}", self.tiling.name(key.stage), index.as_slice())
    }
}
