//! One running plan, and the state of its operands once [`super::walk`] has found them.

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
use crate::schedule::walk::Turn;
use crate::schedule::{Outcome, Sink, StageStats, Stats, TaskRunner, Tiling};
use crate::store::{FinishedChunk, NOTE_BYTES, NOTES_FREE, counted_notes};
use smallvec::SmallVec;
use std::collections::{BTreeSet, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Instant;
use tessera_planner::grid::ChunkIndex;
use tessera_planner::plan::StageId;
use tessera_planner::recover::Recovery;

/// The immutable part of a statement that threads use.
pub(crate) struct Statement {
    pub(crate) id: u64,
    pub(crate) tiling: Arc<dyn Tiling>,
    pub(crate) runner: Arc<dyn TaskRunner>,
    pub(crate) sink: Arc<dyn Sink>,
    pub(crate) token: CancelToken,
    pub(crate) account: Arc<Account>,
    /// Bytes of spilled chunks that its operands read.
    pub(crate) read_back: AtomicU64,
    /// The place that durable chunks of its plan are written to.
    pub(crate) kept: Option<Kept>,
    /// The chunks of other parts of its plan.
    pub(crate) shelf: Option<Arc<dyn Shelf>>,
    /// Upper bound on the threads that compute its operands concurrently.
    pub(crate) threads: usize,
}

/// Bytes by which the table may grow until it is charged again.
const NOTES_STEP: u64 = 256 << 10;

/// Called once, when nothing of the plan runs any more.
pub(crate) type Done = Box<dyn FnOnce(Outcome) + Send>;

/// Cached properties of a stage.
pub(super) struct StageInfo {
    pub(super) depth: u32,
    pub(super) rereadable: bool,
    /// True for loads that do I/O.
    pub(super) fetches: bool,
    /// True if operands pin memory that they read in addition to their inputs.
    pub(super) pins: bool,
    /// True for loads whose chunks are spilled rather than read again while several readers are left: each reads only
    /// a part of them, or they come from a remote store.
    pub(super) dear: bool,
    pub(super) outputs: u32,
    /// Results that are outputs of this stage: result, output.
    pub(super) results: SmallVec<[(u32, u32); 1]>,
    pub(super) ran: u64,
    pub(super) nanos: u64,
    /// Chunks that were evicted and may be recomputed.
    pub(super) dropped: RangeSet,
}

/// An operand whose reads are being visited.
pub(super) struct Frame {
    pub(super) slot: Slot,
    pub(super) next: u32,
}

pub(crate) struct Job {
    pub(crate) statement: Arc<Statement>,
    pub(crate) done: Option<Done>,
    pub(super) stages: Vec<StageInfo>,
    pub(crate) table: Table,
    /// Charge for the table's bookkeeping, if it is large, and the size above which it is charged again.
    notes: Charge,
    notes_bytes: u64,
    /// Error of an operand that reads more chunks than can be listed.
    pub(super) crowded: Option<Error>,
    /// Ready operands that compute.
    pub(crate) ready: ReadyQueue,
    /// Ready loads, which may have to fetch.
    pub(crate) loads: ReadyQueue,
    pub(crate) fetched: VecDeque<Work>,
    pub(super) stack: Vec<Frame>,
    /// For each result, the cursor of started chunks in row-major order, and the number of chunks.
    pub(super) roots: Vec<(u64, u64)>,
    /// The results with chunks to start, in the order of their turns.
    pub(super) turns: BTreeSet<Turn>,
    /// Chunks of each result beyond its cursor that were found as inputs and are delivered already, or will be.
    pub(super) early: Vec<RangeSet>,
    /// Chunks of results (number, result) whose work was dropped.
    pub(super) redo: BTreeSet<(u64, u32)>,
    pub(super) roots_opened: u64,
    pub(super) found: u64,
    /// Reads of all operands found that have not run.
    pub(crate) edges: usize,
    /// Operands found that have chunks to deliver.
    pub(crate) undelivered: usize,
    /// Operands admitted, and the number of these that fetch or were fetched and wait for a thread.
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
    /// Chunks that no known operand waits for and that can be recomputed: slot and time; stale entries are skipped.
    pub(super) idle: VecDeque<(Slot, u64)>,
    pub(super) idle_count: usize,
    pub(crate) idle_bytes: u64,
    pub(super) idle_clock: u64,
    pub(super) idle_max: usize,
    pub(crate) error: Option<Error>,
    /// An operand whose demand exceeds the limit.
    pub(crate) impossible: Option<Demand>,
    /// True if operands run one at a time.
    pub(crate) serial: bool,
    /// The chunks of the plan that are already available.
    pub(super) recovery: Recovery,
    /// True once work was dropped, or a stored chunk turned out to be missing: operands run again, so that counts of
    /// readers may be off.
    pub(super) restarted: bool,
    /// True while it waits until every older statement is over.
    pub(crate) parked: bool,
    /// Start of its wait for memory that others hold.
    pub(crate) stalled: Option<Instant>,
    /// True if an operand was refused memory of the statement's own budget at the last admission.
    pub(crate) short: bool,
    /// Time of the last failed attempt to make room in its own budget.
    pub(crate) relief: Option<Instant>,
    /// Start of its stall for want of memory while others run.
    pub(crate) hungry: Option<Instant>,
    pub(crate) stats: Stats,
}

/// The turns of results at the start: the cursor of each, and the number of its chunks.
fn turns(roots: &[(u64, u64)]) -> BTreeSet<Turn> {
    (0..).zip(roots).filter_map(|(result, &(next, count))| Turn::of(result, next, count)).collect()
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
            turns: turns(&roots),
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

    /// True if another thread would find work.
    pub(super) fn has_more(&self) -> bool {
        !self.serial && self.at_work < self.statement.threads && self.startable() > 0
    }

    /// Charges the table's bookkeeping. Chunks are spilled to make room for it; it cannot be spilled itself.
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

    // ---- Events of operands.

    /// Counts an operand as no longer running. Returns false, with the operand removed, if it was cancelled meanwhile.
    fn stops(&mut self, slot: Slot) -> bool {
        self.running -= 1;
        self.reserved -= std::mem::take(&mut self.table.at(slot).reserved);
        if self.table.at(slot).state != OperandState::Cancelling {
            return true;
        }
        self.table.turn(slot, OperandState::Cancelled);
        self.table.remove(slot);
        false
    }

    /// Handles an operand that was to load its chunks, if they are not available.
    pub(crate) fn lost(&mut self, slot: Slot) {
        if self.stops(slot) {
            self.put_back(slot);
        }
    }

    /// Records the end of an operand on a thread: its chunks, charged and delivered, or an error.
    pub(crate) fn complete(
        &mut self,
        slot: Slot,
        result: Result<SmallVec<[Arc<Chunk>; 1]>, Error>,
        nanos: u64,
        trash: &mut Trash,
    ) {
        if !self.stops(slot) {
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

    /// Records that a reader of a chunk is done.
    fn was_read(&mut self, read: Read, trash: &mut Trash) {
        let from = self.table.at(read.slot);
        from.pins -= 1;
        let made = &mut from.made[read.output as usize];
        // A saturated count never ends. After a restart operands are made and read again, so that counts may be off:
        // chunks are then dropped when memory is short, and all outputs of an operand are dropped together.
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

    /// Removes a chunk from the counts and puts it into the trash.
    pub(super) fn let_go(&mut self, chunk: FinishedChunk, trash: &mut Trash) {
        self.held_bytes -= chunk.memory_bytes();
        self.files -= usize::from(matches!(chunk, FinishedChunk::File(_)));
        self.live_chunks -= 1;
        trash.push(chunk);
    }

    /// Frees a finished operand that nothing reads any more, or lists it as idle if it can be recomputed.
    pub(super) fn settle(&mut self, slot: Slot, trash: &mut Trash) {
        let restarted = self.restarted;
        let operand = self.table.at(slot);
        if operand.state != OperandState::Finished || operand.pins > 0 {
            return;
        }
        let info = &self.stages[operand.key.stage.0 as usize];
        // Expensive chunks wait to be spilled instead, unless only their last reader is left.
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

    // ---- The end.

    pub(crate) fn into_result(mut self) -> (Option<Done>, Outcome) {
        let done = self.done.take();
        let stats = self.stats();
        (done, Outcome { result: self.error.map_or(Ok(()), Err), stats })
    }

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

    /// Drops the chunks left at a regular end: idle chunks, and chunks whose other readers no result needs.
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
    /// True while its chunks are being written: their memory will be released.
    pub(crate) fn is_writing(&self) -> bool {
        self.kept.as_ref().is_some_and(|k| k.durable().is_writing())
    }

    /// The chunk index of an operand.
    pub(crate) fn index(&self, key: OperandKey) -> ChunkIndex {
        self.tiling.grid(key.stage).unravel(key.number)
    }

    /// An operand as errors name it.
    pub(crate) fn name(&self, key: OperandKey) -> String {
        let index = self.index(key);
        format!("{} {:?}", self.tiling.name(key.stage), index.as_slice())
    }
}
