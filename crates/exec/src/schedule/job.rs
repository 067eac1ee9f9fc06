//! One plan that runs, and what happens to its operands once [`super::walk`] has found them.

mod failure;
mod memory;

use crate::cancel::CancelToken;
use crate::chunk::Chunk;
use crate::durable::Kept;
use crate::error::{Demand, Error};
use crate::operand::OperandState;
use crate::order::Shelf;
use crate::quota::{Account, Charge};
use crate::schedule::admit::Work;
use crate::schedule::ranges::RangeSet;
use crate::schedule::ready::ReadyQueue;
use crate::schedule::table::{OperandKey, Read, Slot, Table};
use crate::schedule::{Outcome, Sink, StageStats, Stats, TaskRunner, Tiling};
use crate::store::{FinishedChunk, NOTE_BYTES, NOTES_FREE, counted_notes};
use smallvec::SmallVec;
use std::collections::{BTreeSet, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Instant;
use tessera_planner::plan::StageId;
use tessera_planner::recover::Recovery;

/// What the threads need of a statement; it does not change.
pub(crate) struct Statement {
    pub(crate) id: u64,
    pub(crate) tiling: Arc<dyn Tiling>,
    pub(crate) runner: Arc<dyn TaskRunner>,
    pub(crate) sink: Arc<dyn Sink>,
    pub(crate) token: CancelToken,
    pub(crate) account: Arc<Account>,
    /// Bytes of spilled chunks that its operands read.
    pub(crate) read_back: AtomicU64,
    /// Where its chunks are kept.
    pub(crate) kept: Option<Kept>,
    /// Where chunks of other parts of its plan are.
    pub(crate) shelf: Option<Arc<dyn Shelf>>,
    /// The most threads that compute its operands at a time.
    pub(crate) threads: usize,
}

/// Bytes by which the table may grow until it is looked at again.
const NOTES_STEP: u64 = 256 << 10;

/// Called once, when nothing of the plan runs any more.
pub(crate) type Done = Box<dyn FnOnce(Outcome) + Send>;

/// What is asked of a plan's stage again and again.
pub(super) struct StageInfo {
    pub(super) depth: u32,
    pub(super) rereadable: bool,
    /// True for loads that do I/O.
    pub(super) fetches: bool,
    /// True if operands pin what they read beside their inputs.
    pub(super) pins: bool,
    /// True for loads whose chunks are spilled rather than read again while several readers are left: each reads a
    /// part of them only, or they come from afar.
    pub(super) dear: bool,
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
    /// What the table takes, if it is large: charged, and looked at.
    notes: Charge,
    notes_bytes: u64,
    /// An operand reads more chunks than can be listed.
    pub(super) crowded: Option<Error>,
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
    /// Reads of all operands found that have not run.
    pub(crate) edges: usize,
    /// Operands found that have chunks to deliver.
    pub(crate) undelivered: usize,
    /// Operands admitted, and those of them that fetch or were fetched and wait for a thread.
    pub(crate) running: usize,
    pub(crate) fetching: usize,
    /// Threads that compute its operands.
    pub(super) at_work: usize,
    /// Bytes of memory of the chunks in the table.
    pub(crate) held_bytes: u64,
    /// Bytes that running operands were admitted with.
    pub(crate) reserved: u64,
    /// Chunks in the table that are in files.
    pub(crate) files: usize,
    /// Chunks that threads are writing.
    pub(crate) spilling: usize,
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
    /// What of the plan is there already.
    pub(super) recovery: Recovery,
    /// True once work was given up, or what was there turned out not to be: operands run again, so that counts of
    /// readers may be off.
    pub(super) restarted: bool,
    /// Waits until every older statement is over.
    pub(crate) parked: bool,
    /// Since when it waits for memory that others hold.
    pub(crate) stalled: Option<Instant>,
    /// True if an operand was refused memory of the statement's own budget when it was last looked at.
    pub(crate) short: bool,
    /// When there was last nothing that could be done about that.
    pub(crate) relief: Option<Instant>,
    /// Since when it has stood still for want of memory while others ran.
    pub(crate) hungry: Option<Instant>,
    pub(crate) stats: Stats,
}

/// Chunks to drop once the scheduler is unlocked.
pub(crate) type Trash = Vec<FinishedChunk>;

impl Job {
    pub(crate) fn new(
        statement: Statement,
        recovery: Recovery,
        done: Done,
        idle_max: usize,
        spills: bool,
    ) -> Result<Self, Error> {
        let tiling = &statement.tiling;
        let mut stages = Vec::with_capacity(tiling.stages());
        for s in 0..tiling.stages() {
            let id = StageId(s as u32);
            if tiling.grid(id).count() > i64::MAX as u64 {
                return Err(Error::TooManyChunks { stage: tiling.name(id) });
            }
            let rereadable = tiling.is_rereadable(id);
            let fetches = rereadable && statement.runner.fetches(id);
            stages.push(StageInfo {
                depth: tiling.depth(id),
                rereadable,
                fetches,
                pins: statement.runner.pins(id),
                dear: spills && rereadable && (fetches || tiling.is_read_in_parts(id)),
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
            notes: statement.account.nothing(),
            notes_bytes: 0,
            crowded: None,
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
            edges: 0,
            undelivered: 0,
            running: 0,
            fetching: 0,
            at_work: 0,
            held_bytes: 0,
            reserved: 0,
            files: 0,
            spilling: 0,
            live_chunks: 0,
            idle: VecDeque::new(),
            idle_count: 0,
            idle_bytes: 0,
            idle_clock: 0,
            idle_max,
            error: None,
            impossible: None,
            serial: false,
            recovery,
            restarted: false,
            parked: false,
            stalled: None,
            short: false,
            relief: None,
            hungry: None,
            stats: Stats::default(),
        })
    }

    /// True when nothing is left to do and nothing runs.
    pub(crate) fn is_over(&self) -> bool {
        self.running == 0
            && self.spilling == 0
            && (self.error.is_some()
                || (self.undelivered == 0
                    && self.redo.is_empty()
                    && self.roots.iter().all(|(next, count)| next == count)))
    }

    /// Operands that could start if there were room.
    pub(crate) fn startable(&self) -> usize {
        self.ready.len() + self.loads.len() + self.fetched.len()
    }

    /// True if another thread would find something to do.
    pub(super) fn has_more(&self) -> bool {
        !self.serial && self.at_work < self.statement.threads && self.startable() > 0
    }

    /// Charges what the table takes. Chunks are spilled to make room for it; it cannot be spilled itself.
    ///
    /// # Errors
    /// [`Error::ChunkNotes`] if that is too much for the budget.
    pub(super) fn charge_notes(&mut self) -> Result<(), Error> {
        if let Some(error) = self.crowded.take() {
            return Err(error);
        }
        let chunks = self.table.end() as u64;
        let bytes = chunks.saturating_sub(NOTES_FREE) * NOTE_BYTES;
        if bytes > self.notes_bytes {
            self.notes_bytes = bytes + NOTES_STEP;
            let counted = counted_notes(chunks, bytes, self.statement.account.quota())?;
            self.notes.extend(counted.saturating_sub(self.notes.bytes()));
        }
        Ok(())
    }

    // ---- What happens to operands.

    /// The chunks of an operand that was to load them cannot be had.
    pub(crate) fn lost(&mut self, slot: Slot) {
        self.running -= 1;
        self.reserved -= std::mem::take(&mut self.table.at(slot).reserved);
        if self.table.at(slot).state == OperandState::Cancelling {
            self.table.turn(slot, OperandState::Cancelled);
            self.table.remove(slot);
        } else {
            self.put_back(slot);
        }
    }

    /// An operand came to its end on a thread: its chunks, charged and delivered, or an error.
    pub(crate) fn complete(
        &mut self,
        slot: Slot,
        result: Result<SmallVec<[Arc<Chunk>; 1]>, Error>,
        nanos: u64,
        trash: &mut Trash,
    ) {
        self.running -= 1;
        self.reserved -= std::mem::take(&mut self.table.at(slot).reserved);
        if self.table.at(slot).state == OperandState::Cancelling {
            self.table.turn(slot, OperandState::Cancelled);
            self.table.remove(slot);
            if let Ok(chunks) = result {
                trash.extend(chunks.into_iter().map(FinishedChunk::Memory));
            }
            return;
        }
        let chunks = match result {
            Ok(chunks) => chunks,
            Err(error) => return self.fail(error, Some(slot), trash),
        };
        self.table.turn(slot, OperandState::Finished);
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
                self.held_bytes += chunk.charged();
                made.chunk = Some(FinishedChunk::Memory(chunk));
            } else {
                trash.push(FinishedChunk::Memory(chunk));
            }
        }
        let reads = std::mem::take(&mut operand.reads);
        let waiters = std::mem::take(&mut operand.waiters);
        self.edges -= reads.len();
        self.live_chunks += live;
        self.stats.max_live_chunks = self.stats.max_live_chunks.max(self.live_chunks);
        let stored = operand.stored;
        let info = &mut self.stages[key.stage.0 as usize];
        info.ran += u64::from(!stored);
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
            && !self.restarted
            && let Some(chunk) = made.chunk.take()
        {
            self.let_go(chunk, trash);
        }
        self.settle(read.slot, trash);
    }

    /// A chunk leaves the table.
    pub(super) fn let_go(&mut self, chunk: FinishedChunk, trash: &mut Trash) {
        self.held_bytes -= chunk.memory_bytes();
        self.files -= usize::from(matches!(chunk, FinishedChunk::File(_)));
        self.live_chunks -= 1;
        trash.push(chunk);
    }

    /// Frees a finished operand that nothing reads any more, or lists it as idle if it can be made again.
    pub(super) fn settle(&mut self, slot: Slot, trash: &mut Trash) {
        let restarted = self.restarted;
        let operand = self.table.at(slot);
        if operand.state != OperandState::Finished || operand.pins > 0 {
            return;
        }
        let info = &self.stages[operand.key.stage.0 as usize];
        // What is dear waits to be spilled instead, unless its last reader is all that is left.
        let cheap = !info.dear || operand.made.iter().all(|m| m.remaining <= 1);
        if operand.is_read() {
            self.release(slot, trash);
        } else if (restarted || (info.rereadable && cheap))
            && operand.idle_since == 0
            && operand.is_in_memory()
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

    pub(super) fn release(&mut self, slot: Slot, trash: &mut Trash) {
        self.table.turn(slot, OperandState::Freed);
        let Some(operand) = self.table.remove(slot) else { return };
        if operand.idle_since != 0 {
            self.idle_count -= 1;
            self.idle_bytes -= operand.bytes();
        }
        for chunk in operand.made.into_iter().filter_map(|m| m.chunk) {
            self.let_go(chunk, trash);
        }
    }

    // ---- Giving up.

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
        let (requests, bytes_fetched) = self.statement.runner.requests();
        Stats {
            stages,
            requests,
            bytes_fetched,
            states: self.table.counts.clone(),
            max_live_operands: self.table.max_live,
            peak_bytes: self.statement.account.peak(),
            bytes_read_back: self.statement.read_back.load(Relaxed),
            durable: self.statement.kept.as_ref().map(|k| k.durable().did()).unwrap_or_default(),
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
            if self.table.at(slot).state == OperandState::Finished {
                self.release(slot, trash);
            }
        }
    }
}

impl Statement {
    /// True while chunks of it are being written: they come back by themselves.
    pub(crate) fn is_writing(&self) -> bool {
        self.kept.as_ref().is_some_and(|k| k.durable().is_writing())
    }

    /// An operand as errors name it.
    pub(crate) fn name(&self, key: OperandKey) -> String {
        let index = self.tiling.grid(key.stage).unravel(key.number);
        format!("{} {:?}", self.tiling.name(key.stage), index.as_slice())
    }
}
