//! Estimates the resources of a plan before it runs. EXPLAIN reports the estimate next to the measured values.
//!
//! ```text
//!   operands in depth-first order   ■ ■ ■ □ …        as one thread runs them; for each the bytes of the retained
//!   bytes that are held             ▁▂▃▂▅▃▂          chunks, and its own peak
//!   the limit                       ─────────        above it loads are dropped, then chunks are spilled
//! ```
//! 1. [`estimate`] walks the plan as the scheduler does: deepest stage first, and a chunk is retained until its last
//!    reader is done. It adds up the retained bytes, and the peak of one operand for each further thread.
//! 2. Chunks above the limit are dropped and read again, or spilled, by the rules of the scheduler.
//! 3. The walk of a plan ends after 65,536 operands and reads. Sums that still grew then are extrapolated linearly to
//!    the end of the plan.
//!
//! Unknown to the estimate: memory of other statements, time of an operand, results that a receiver buffers.

use crate::cost::cost;
use crate::plan::{Access, OutputRef, StageId, Task};
use crate::region::{Region, cells};
use crate::tile::Tiling;
use smallvec::SmallVec;
use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, VecDeque};

/// Upper bound on the operands and reads of a walk.
const STEPS_MAX: u64 = 1 << 16;
/// Number of remote loads that are prefetched.
const AHEAD: u64 = 32;
/// Spilling frees a fraction 1 / `MORE` of the limit beyond the missing bytes.
const MORE: u64 = 8;

/// Resources available to a plan.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Machine {
    /// Memory limit of the plan in bytes.
    pub limit_bytes: u64,
    /// Number of compute threads.
    pub threads: u64,
    /// True if chunks may be spilled to files.
    pub spills: bool,
    /// True if an array of the plan is read over a network.
    pub remote: bool,
}

/// Estimated resources of a plan.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, serde::Serialize)]
pub struct Estimate {
    /// Peak bytes held, including running operands, without delivered results.
    pub peak_bytes: u64,
    /// Bytes of the cells that loads produce, including repeated reads.
    pub bytes_read: u64,
    /// Bytes of spilled chunks; 0 if everything fits.
    pub bytes_spilled: u64,
}

/// Estimates a plan that runs alone on `machine`.
pub fn estimate(tiling: &Tiling, machine: &Machine) -> Estimate {
    let cost = cost(tiling);
    let mut walk = Walk::new(tiling, machine);
    walk.run();
    let done = walk.done.max(1);
    let times =
        |bytes: u64| (u128::from(bytes) * u128::from(cost.operands) / u128::from(done)) as u64;
    // Sums that still grew in proportion to the steps done, not to their logarithm.
    let grows =
        |half: u64, whole: u64| walk.is_cut && whole.saturating_mul(2) > half.saturating_mul(3);
    let whole = |half: u64, whole: u64| if grows(half, whole) { times(whole) } else { whole };
    let (half, end) = (walk.half, walk.sums);
    let kept = whole(half.kept, end.kept);
    let alone = if grows(half.kept, end.kept) { times(walk.alone) } else { walk.alone };
    let widest = tiling.plan().stages.iter().map(|s| s.grid.count()).max().unwrap_or(1);
    let beside = machine.threads.min(if cost.here { 1 } else { widest }).saturating_sub(1);
    let mut peak = alone.saturating_add(beside.saturating_mul(walk.each));
    if machine.remote {
        // Prefetch starts only below half of the limit.
        let ahead = AHEAD.min(walk.loads).saturating_mul(walk.load_need);
        peak = peak.saturating_add(ahead.min(machine.limit_bytes / 2));
    }
    let again = whole(half.read_again, end.read_again);
    let beyond = if machine.spills { kept.saturating_sub(machine.limit_bytes) } else { 0 };
    let spilled = whole(half.spilled, end.spilled).max(beyond);
    Estimate {
        peak_bytes: peak.min(machine.limit_bytes),
        bytes_read: cost.bytes_loaded.saturating_add(again),
        bytes_spilled: spilled,
    }
}

/// True if each reader of a stage's chunks needs only a small part of a chunk. Such chunks are retained instead of read
/// again, as dozens of operands read each of them.
pub fn is_read_in_parts(tiling: &Tiling, stage: StageId) -> bool {
    let plan = tiling.plan();
    plan.stages.iter().any(|s| {
        s.inputs.iter().filter(|i| i.from.stage == stage).any(|input| match &input.access {
            Access::View(view) => {
                let (read, held) = (&s.grid, &plan.output(input.from).grid);
                if read.count() == 0 || held.count() == 0 {
                    return false;
                }
                // The first operand and the chunk where its cells begin represent all.
                let image = view.image(&read.region(&read.unravel(0)));
                let at = held.overlapping(&image).start;
                let chunk: Region = held.region(&at);
                image.intersect(&chunk).is_some_and(|c| c.cells() * 2 <= chunk.cells())
            }
            Access::Part { .. } | Access::Take { .. } | Access::Reshape(_) => true,
            Access::Fan(_) | Access::Previous { .. } | Access::Window { .. } => false,
            Access::Runs { .. } => false,
        })
    })
}

/// An operand: its stage and its row-major number in the stage.
type Key = (u32, u64);

/// The chunks of a finished operand.
struct Made {
    bytes: u64,
    /// Reads of the chunks that are still to come; `u64::MAX` for no end.
    readers: u64,
    /// Number of operands that wait to read the chunks.
    pins: u32,
    in_file: bool,
}

/// An operand whose inputs are being computed.
struct Frame {
    key: Key,
    reads: SmallVec<[Key; 4]>,
    next: usize,
}

/// Facts about a stage.
struct Info {
    is_load: bool,
    /// Its chunks are retained while several readers are left, instead of read again.
    is_dear: bool,
    /// Spilled chunks are read in parts, which the operand's peak includes.
    reads_parts: bool,
}

struct Walk<'a> {
    tiling: &'a Tiling,
    machine: &'a Machine,
    stages: Vec<Info>,
    made: BTreeMap<Key, Made>,
    /// Operands in the order in which they finished; released ones are skipped.
    order: VecDeque<Key>,
    /// Loads that were dropped.
    dropped: BTreeSet<Key>,
    held: u64,
    /// Held bytes that cannot be read again.
    kept: u64,
    sums: Sums,
    /// The sums when half of the steps were done.
    half: Sums,
    /// Peak of held bytes, including the operand that ran then.
    alone: u64,
    /// Largest sum of an operand's peak and its inputs.
    each: u64,
    loads: u64,
    load_need: u64,
    done: u64,
    steps: u64,
    is_cut: bool,
    /// True if nothing can be dropped or spilled until something is read.
    is_stuck: bool,
}

/// Sums that may grow with the plan.
#[derive(Debug, Clone, Copy, Default)]
struct Sums {
    /// Peak of held bytes that cannot be read again.
    kept: u64,
    read_again: u64,
    spilled: u64,
}

impl<'a> Walk<'a> {
    fn new(tiling: &'a Tiling, machine: &'a Machine) -> Self {
        let info = |(i, s): (u32, &crate::plan::Stage)| {
            let is_load = matches!(s.task, Task::Load { .. });
            let far = machine.remote
                && matches!(&s.task, Task::Load { source, .. } if !source.is_resident());
            Info {
                is_load,
                is_dear: machine.spills && is_load && (far || is_read_in_parts(tiling, StageId(i))),
                reads_parts: matches!(
                    s.task,
                    Task::Copy | Task::Merge { .. } | Task::Select { .. }
                ),
            }
        };
        Walk {
            tiling,
            machine,
            stages: (0..).zip(&tiling.plan().stages).map(info).collect(),
            made: BTreeMap::new(),
            order: VecDeque::new(),
            dropped: BTreeSet::new(),
            held: 0,
            kept: 0,
            sums: Sums::default(),
            half: Sums::default(),
            alone: 0,
            each: 0,
            loads: 0,
            load_need: 0,
            done: 0,
            steps: 0,
            is_cut: false,
            is_stuck: false,
        }
    }

    /// Walks from the chunks of the results, in row-major order, all results in step.
    fn run(&mut self) {
        let results: Vec<(StageId, u64)> = self
            .tiling
            .plan()
            .results
            .iter()
            .map(|r| (r.stage, self.tiling.plan().stage(r.stage).grid.count()))
            .collect();
        let most = results.iter().map(|(_, n)| *n).max().unwrap_or(0);
        for step in 0..most {
            for &(stage, count) in &results {
                let number = (u128::from(step) * u128::from(count) / u128::from(most)) as u64;
                let is_new = step == 0
                    || (u128::from(step - 1) * u128::from(count) / u128::from(most)) as u64
                        != number;
                if is_new && !self.make((stage.0, number)) {
                    self.is_cut = true;
                    return;
                }
            }
        }
    }

    /// Computes an operand after its inputs; returns false at the end of the walk.
    fn make(&mut self, key: Key) -> bool {
        if self.made.contains_key(&key) {
            return true;
        }
        let Some(first) = self.frame(key) else { return false };
        let mut stack = vec![first];
        while let Some(frame) = stack.last_mut() {
            if let Some(&read) = frame.reads.get(frame.next) {
                frame.next += 1;
                match self.made.get_mut(&read) {
                    Some(made) => made.pins += 1,
                    None => match self.frame(read) {
                        Some(frame) => stack.push(frame),
                        None => return false,
                    },
                }
                continue;
            }
            if self.steps >= STEPS_MAX {
                return false;
            }
            if let Some(frame) = stack.pop() {
                // Pinned if an operand on the stack waits for it.
                self.operand(&frame, !stack.is_empty());
            }
        }
        true
    }

    /// Returns an operand with its reads; `None` if there are more than `STEPS_MAX`.
    fn frame(&self, key: Key) -> Option<Frame> {
        let index = self.index(key);
        if self.tiling.read_count(StageId(key.0), &index) > STEPS_MAX {
            return None;
        }
        let mut reads: SmallVec<[Key; 4]> = SmallVec::new();
        let plan = self.tiling.plan();
        self.tiling.reads(StageId(key.0), &index, &mut |from, at| {
            reads.push((from.stage.0, plan.stage(from.stage).grid.ravel(&at)));
        });
        reads.sort_by_key(|r| Reverse(self.tiling.depth(StageId(r.0))));
        Some(Frame { key, reads, next: 0 })
    }

    fn index(&self, key: Key) -> crate::grid::ChunkIndex {
        self.tiling.plan().stage(StageId(key.0)).grid.unravel(key.1)
    }

    /// Runs an operand whose inputs are available.
    fn operand(&mut self, frame: &Frame, is_awaited: bool) {
        let (stage, index) = (StageId(frame.key.0), self.index(frame.key));
        let mut need = self.tiling.peak(stage, &index);
        let mut inputs = 0u64;
        for read in &frame.reads {
            let Some(made) = self.made.get(read) else { continue };
            match made.in_file {
                false => inputs = inputs.saturating_add(made.bytes),
                true if self.stages[stage.0 as usize].reads_parts => {}
                true => need = need.saturating_add(made.bytes),
            }
        }
        self.make_room(need, &frame.reads);
        self.alone = self.alone.max(self.held.saturating_add(need));
        self.each = self.each.max(need.saturating_add(inputs));
        let info = &self.stages[stage.0 as usize];
        let is_load = info.is_load;
        if is_load {
            self.loads += 1;
            self.load_need = self.load_need.max(need);
            if self.dropped.remove(&frame.key) {
                let bytes = self.loaded_bytes(frame.key);
                self.sums.read_again = self.sums.read_again.saturating_add(bytes);
            }
        }
        for read in &frame.reads {
            self.was_read(*read);
        }
        let plan = self.tiling.plan();
        let outputs = plan.stage(stage).outputs.len() as u32;
        let readers = (0..outputs).fold(0u64, |n, output| {
            n.saturating_add(self.tiling.readers(OutputRef { stage, output }, &index))
        });
        self.done += 1;
        if readers > 0 {
            // A chunk of an array in memory is held by the array itself.
            let bytes = match is_load && need == 0 {
                true => 0,
                false => self.tiling.output_bytes(stage, &index),
            };
            self.held = self.held.saturating_add(bytes);
            if !is_load || self.stages[stage.0 as usize].is_dear {
                self.kept = self.kept.saturating_add(bytes);
                self.sums.kept = self.sums.kept.max(self.kept);
            }
            let pins = u32::from(is_awaited);
            self.made.insert(frame.key, Made { bytes, readers, pins, in_file: false });
            self.order.push_back(frame.key);
        }
        self.steps += 1 + frame.reads.len() as u64;
        if self.steps <= STEPS_MAX / 2 {
            self.half = self.sums;
        }
    }

    fn was_read(&mut self, key: Key) {
        self.is_stuck = false;
        let Some(made) = self.made.get_mut(&key) else { return };
        made.pins = made.pins.saturating_sub(1);
        if made.readers != u64::MAX {
            made.readers = made.readers.saturating_sub(1);
        }
        if made.readers == 0
            && let Some(made) = self.made.remove(&key)
        {
            self.let_go(key, &made);
        }
    }

    /// Releases the bytes of a chunk.
    fn let_go(&mut self, key: Key, made: &Made) {
        let info = &self.stages[key.0 as usize];
        if !info.is_load || info.is_dear {
            self.kept = self.kept.saturating_sub(made.bytes);
        }
        if !made.in_file {
            self.held = self.held.saturating_sub(made.bytes);
        }
    }

    /// Drops loads that no operand waits for, then spills the oldest chunks, until `need` fits.
    fn make_room(&mut self, need: u64, inputs: &[Key]) {
        let limit = self.machine.limit_bytes;
        if self.held.saturating_add(need) <= limit || self.is_stuck {
            return;
        }
        let before = self.held;
        let mut left = VecDeque::with_capacity(self.order.len());
        for key in std::mem::take(&mut self.order) {
            let Some(made) = self.made.get(&key).filter(|m| !m.in_file) else { continue };
            let info = &self.stages[key.0 as usize];
            let may_go = info.is_load && made.pins == 0 && (!info.is_dear || made.readers <= 1);
            if may_go && self.held.saturating_add(need) > limit {
                if let Some(made) = self.made.remove(&key) {
                    self.dropped.insert(key);
                    self.let_go(key, &made);
                }
            } else {
                left.push_back(key);
            }
        }
        self.order = left;
        if !self.machine.spills || self.held.saturating_add(need) <= limit {
            self.is_stuck = self.held == before;
            return;
        }
        let enough = limit - limit / MORE;
        let inputs: BTreeSet<&Key> = inputs.iter().collect();
        for waits in [false, true] {
            let mut left = VecDeque::with_capacity(self.order.len());
            for key in std::mem::take(&mut self.order) {
                let is_input = inputs.contains(&key);
                let Some(made) = self.made.get_mut(&key) else { continue };
                if self.held.saturating_add(need) <= enough || is_input || (made.pins > 0) != waits
                {
                    left.push_back(key);
                    continue;
                }
                made.in_file = true;
                self.held -= made.bytes.min(self.held);
                self.sums.spilled = self.sums.spilled.saturating_add(made.bytes);
            }
            self.order = left;
        }
        self.is_stuck = self.held == before;
    }

    /// Bytes of the cells that a load produces.
    fn loaded_bytes(&self, key: Key) -> u64 {
        let stage = self.tiling.plan().stage(StageId(key.0));
        let Task::Load { source, .. } = &stage.task else { return 0 };
        let shape = stage.grid.region(&self.index(key)).shape();
        cells(&shape).unwrap_or(u64::MAX).saturating_mul(source.dtype.size() as u64)
    }
}

#[cfg(test)]
mod tests;
