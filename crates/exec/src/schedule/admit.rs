//! Admission: which operands of a plan start now. An operand starts if it fits.
//!
//! ```text
//!   0 ────────────── half ─────── three quarters ──────────── limit
//!   │ loads start ahead, │ sources compute │ operands that read │
//!   │ the walk continues │                 │ chunks run         │
//! ```
//! Operands that bring new bytes in leave room for those that reduce them. When nothing of the plan runs, only the
//! limit counts.

use crate::error::{Demand, Error};
use crate::operand::OperandState;
use crate::quota::{Quota, Reservation};
use crate::schedule::Prepared;
use crate::schedule::job::{Job, Statement, Trash};
use crate::schedule::ready::Ready;
use crate::schedule::table::{OperandKey, Slot};
use crate::store::{FinishedChunk, Store};
use smallvec::SmallVec;
use std::sync::Arc;
use tessera_planner::plan::OutputRef;

/// Operands with a peak up to this are handed out several at a time: taking the lock costs more than they do.
const SMALL: u64 = 256 << 10;
/// Upper bound on the operands that a thread takes at a time.
const BATCH: usize = 32;
/// Bytes of running operands from which on loads are not fetched ahead, except one for each thread.
const FETCH_BYTES: u64 = 512 << 20;
/// Upper bound on the reads that the walk finds ahead, over all operands that have not run.
const EDGES: usize = 1 << 18;

/// Resource limits shared by all plans.
pub(crate) struct Limits {
    pub(crate) threads: usize,
    pub(crate) fetches: usize,
    pub(crate) quota: Arc<Quota>,
    pub(crate) store: Arc<Store>,
    /// Memory reserved for a statement: its number, and the bytes.
    pub(crate) claim: Option<(u64, u64)>,
}

/// A small statement may exceed the limit while its memory stays below both bounds: a number of bytes, and a fraction
/// of the limit. The total beyond the limit is bounded by the number of statements.
const SMALL_STATEMENT: u64 = 1 << 20;
const SMALL_SHARE: u64 = 32;

/// The share of a budget that operands may fill while others of the plan run.
#[derive(Clone, Copy)]
enum Share {
    Half,
    ThreeQuarters,
    Whole,
}

impl Share {
    fn of(self, limit: u64) -> u64 {
        match self {
            Share::Half => limit / 2,
            Share::ThreeQuarters => limit - limit / 4,
            Share::Whole => limit,
        }
    }
}

impl Limits {
    /// The part of the quota that a statement's operands may fill.
    fn open_to(&self, statement: u64) -> u64 {
        let kept = self.claim.filter(|&(s, _)| s != statement).map_or(0, |(_, bytes)| bytes);
        self.quota.limit().saturating_sub(kept)
    }
}

pub(crate) struct Work {
    pub(crate) statement: Arc<Statement>,
    pub(crate) slot: Slot,
    pub(crate) key: OperandKey,
    pub(crate) inputs: SmallVec<[(OutputRef, u64, FinishedChunk); 2]>,
    pub(crate) reservation: Reservation,
    pub(crate) prepared: Option<Prepared>,
    /// Results that the chunks go to: result, output.
    pub(crate) deliver: SmallVec<[(u32, u32); 1]>,
    /// True if it may have to fetch first; it is then counted as fetching.
    pub(crate) fetch: bool,
    /// True for the last operand of a thread's batch: after it the thread has no more work of the statement.
    pub(crate) frees: bool,
    pub(crate) attempts: u32,
    /// True if its chunks are loaded instead of being made.
    pub(crate) stored: bool,
}

/// Resources of an operand that starts.
struct Admitted {
    reservation: Reservation,
    prepared: Option<Prepared>,
}

impl Job {
    /// Takes operands that can start now: loads to fetch and a batch for one thread.
    pub(crate) fn pick(&mut self, limits: &Limits, out: &mut Vec<Work>, trash: &mut Trash) {
        if self.error.is_some() || self.parked {
            return;
        }
        if self.statement.token.is_cancelled() {
            return self.fail(Error::Cancelled, None, trash);
        }
        if self.serial && self.running > 0 {
            // The one operand that runs may have been fetched.
            return self.compute(out, |job, out| out.extend(job.take_fetched()));
        }
        self.short = false;
        if let Err(error) = self.walk(limits, false) {
            return self.fail(error, None, trash);
        }
        if let Some(demand) = self.impossible.take() {
            let quota = self.statement.account.quota();
            let (limit_bytes, used_bytes) = (quota.limit(), quota.used());
            let error = Error::MemoryExceeded { limit_bytes, used_bytes, worst: vec![demand] };
            return self.fail(error, None, trash);
        }
        let before = out.len();
        self.start(limits, out);
        if out.len() == before && self.running == 0 && !self.is_over() {
            // Nothing runs and nothing fits: operands that the walk finds next may.
            if let Err(error) = self.walk(limits, true) {
                return self.fail(error, None, trash);
            }
            self.start(limits, out);
        }
        let still = out.len() == before && self.running == 0 && self.spilling == 0;
        if still && self.startable() == 0 && !self.is_over() {
            let what = format!("{} operands wait for each other", self.table.len());
            self.fail(Error::Broken { what }, None, trash);
        }
        if out.len() > before {
            self.stalled = None;
            self.relief = None;
            self.hungry = None;
        }
    }

    /// Finds operands until the threads have enough to choose from.
    fn walk(&mut self, limits: &Limits, regardless: bool) -> Result<(), Error> {
        let threads = limits.threads;
        let roots = threads * 4 * BATCH;
        loop {
            let startable = self.startable();
            let enough = if self.serial {
                startable > 0
            } else {
                let half_full = |q: &Arc<Quota>| {
                    q.used().saturating_sub(self.idle_bytes) > Share::Half.of(q.limit())
                };
                let short = half_full(&limits.quota) || self.own(limits).is_some_and(half_full);
                (short && !regardless && startable + self.running > 0)
                    || (self.edges > EDGES && startable + self.running > 0)
                    || self.ready.len() >= threads * BATCH
                    || self.loads.len() + self.fetching >= limits.fetches + threads * 4
            };
            if enough || !self.step(self.undelivered < roots) {
                return Ok(());
            }
            self.charge_notes()?;
        }
    }

    fn start(&mut self, limits: &Limits, out: &mut Vec<Work>) {
        let mut denied: SmallVec<[Ready; 16]> = SmallVec::new();
        while self.fetching < limits.fetches
            && (self.fetching < limits.threads || self.reserved < FETCH_BYTES)
            && !(self.serial && self.running > 0)
        {
            let Some(ready) = self.loads.pop() else { break };
            match self.admit(ready.slot, Share::Half, limits) {
                Some(admitted) => {
                    self.fetching += 1;
                    out.push(self.work(ready.slot, admitted, true));
                }
                None => {
                    denied.push(ready);
                    break;
                }
            }
        }
        denied.drain(..).for_each(|r| self.loads.push(r));
        if !(self.serial && self.running > 0) && self.at_work < self.statement.threads {
            self.compute(out, |job, out| job.take_ready(limits, out));
        }
    }

    /// Takes operands for the calling thread, and counts the thread as at work.
    fn compute(&mut self, out: &mut Vec<Work>, take: impl FnOnce(&mut Self, &mut Vec<Work>)) {
        let before = out.len();
        take(self, out);
        if let Some(last) = out[before..].last_mut() {
            last.frees = true;
            self.at_work += 1;
        }
    }

    /// Takes the next work of one thread: a fetched load, or a batch of operands whose inputs are available.
    fn take_ready(&mut self, limits: &Limits, out: &mut Vec<Work>) {
        if self.fetched_is_older() {
            return out.extend(self.take_fetched());
        }
        let mut denied: SmallVec<[Ready; 16]> = SmallVec::new();
        let threads = limits.threads.min(self.statement.threads);
        let batch = if self.serial { 1 } else { (self.ready.len() / threads).clamp(1, BATCH) };
        let mut taken = 0;
        while taken < batch {
            let Some(ready) = self.ready.pop() else { break };
            let operand = self.table.at(ready.slot);
            let (small, leaf) = (operand.peak <= SMALL, operand.reads.is_empty());
            let share = if leaf { Share::ThreeQuarters } else { Share::Whole };
            if let Some(admitted) = self.admit(ready.slot, share, limits) {
                out.push(self.work(ready.slot, admitted, false));
                taken += 1;
                if !small {
                    break;
                }
            } else {
                denied.push(ready);
                // Other operands are tried as well, as one that fits may release memory; all of them only when nothing
                // runs.
                if denied.len() >= 16 && self.running > 0 {
                    break;
                }
            }
        }
        denied.drain(..).for_each(|r| self.ready.push(r));
        if taken == 0 {
            out.extend(self.take_fetched());
        }
    }

    /// Returns the position and root of the fetched load that was found first. Decoded in order of arrival, loads would
    /// hold chunks whose neighbours are not available yet.
    fn first_fetched(&self) -> Option<(usize, u64)> {
        let order = |(at, work): (usize, &Work)| {
            let operand = self.table.get(work.slot)?;
            Some((operand.root, operand.found, at))
        };
        let (root, _, at) = self.fetched.iter().enumerate().filter_map(order).min()?;
        Some((at, root))
    }

    /// Takes the fetched load to decode next.
    fn take_fetched(&mut self) -> Option<Work> {
        let (at, _) = self.first_fetched()?;
        let mut work = self.fetched.remove(at)?;
        self.fetching -= 1;
        work.fetch = false;
        Some(work)
    }

    /// True if a fetched load belongs to an older root than every operand that is ready to compute: a stream of ready
    /// operands must not starve it.
    fn fetched_is_older(&self) -> bool {
        let (Some((_, root)), Some(first)) = (self.first_fetched(), self.ready.peek()) else {
            return false;
        };
        root < first.root
    }

    /// Pins the memory that an operand reads in addition to its inputs, and returns the bytes that this needs.
    pub(super) fn pin(&self, slot: Slot) -> (u64, Option<Prepared>) {
        match self.table.get(slot) {
            Some(o) if self.stages[o.key.stage.0 as usize].pins => {
                let index = self.statement.index(o.key);
                self.statement.runner.pin(o.key.stage, &index)
            }
            _ => (0, None),
        }
    }

    /// Bytes that an operand needs in addition to its inputs in memory: its peak, and the parts that it reads from
    /// files.
    pub(crate) fn need(&self, slot: Slot) -> u64 {
        let Some(operand) = self.table.get(slot) else { return 0 };
        let mut bytes = operand.peak;
        if self.files == 0 {
            return bytes;
        }
        let tiling = &self.statement.tiling;
        let index = self.statement.index(operand.key);
        let mut staging = 0;
        // Chunks of one output are adjacent.
        let mut known: Option<(OutputRef, Option<u64>)> = None;
        for r in &operand.reads {
            let Some(FinishedChunk::File(file)) = self.table.chunk(r.slot, r.output) else {
                continue;
            };
            let from = OutputRef { stage: r.stage, output: r.output };
            let parts = match known {
                Some((of, parts)) if of == from => parts.map(|_| 0),
                _ => tiling.parts(operand.key.stage, &index, from),
            };
            known = Some((from, parts));
            match parts {
                Some(more) => {
                    staging = file.staging().max(staging);
                    bytes = bytes.saturating_add(more);
                }
                None => bytes = bytes.saturating_add(file.bytes()),
            }
        }
        bytes.saturating_add(staging)
    }

    /// The statement's own budget, if it has one within the global one.
    pub(crate) fn own(&self, limits: &Limits) -> Option<&Arc<Quota>> {
        let quota = self.statement.account.quota();
        (!Arc::ptr_eq(quota, &limits.quota)).then_some(quota)
    }

    /// Reserves the memory of an operand, evicting idle chunks if they are in the way.
    fn admit(&mut self, slot: Slot, share: Share, limits: &Limits) -> Option<Admitted> {
        let (more, prepared) = self.pin(slot);
        let need = self.need(slot).saturating_add(more);
        let open = limits.open_to(self.statement.id);
        // Memory that row operators may request is left free as long as the plan makes progress without it.
        let limit = match self.running {
            0 => open,
            _ => share.of(limits.quota.limit()).min(open.saturating_sub(limits.quota.aside())),
        };
        let own = self.own(limits).cloned();
        let mut trash = Trash::new();
        loop {
            let idle = self.idle_bytes;
            let fits = |quota: &Quota, limit: u64, idle: u64| {
                quota.used().saturating_sub(idle).saturating_add(need) <= limit
            };
            let fits_own = |idle: u64| {
                own.as_ref().is_none_or(|own| {
                    let limit = if self.running == 0 { own.limit() } else { share.of(own.limit()) };
                    fits(own, limit, idle)
                })
            };
            if fits(&limits.quota, limit, 0)
                && fits_own(0)
                && let Some(reservation) = self.statement.account.try_reserve(need)
            {
                return Some(Admitted { reservation, prepared });
            }
            // A short query does not wait until a large statement has released memory.
            let small_max = (limits.quota.limit() / SMALL_SHARE).min(SMALL_STATEMENT);
            let account = &self.statement.account;
            if self.running == 0 && account.used().saturating_add(need) <= small_max && fits_own(0)
            {
                let mut reservation = account.nothing();
                reservation.extend(need);
                return Some(Admitted { reservation, prepared });
            }
            // Chunks are evicted only if that makes enough room.
            let may_fit = fits_own(idle);
            self.short |= !may_fit;
            if !may_fit || !fits(&limits.quota, limit, idle) || !self.evict(&mut trash) {
                return None;
            }
            // Dropped at once, since the next attempt needs the room.
            trash.clear();
        }
    }

    fn work(&mut self, slot: Slot, admitted: Admitted, fetch: bool) -> Work {
        let Admitted { reservation, prepared } = admitted;
        self.table.turn(slot, OperandState::Running);
        self.running += 1;
        self.reserved += reservation.bytes();
        let deliver = self.deliveries(slot);
        let operand = self.table.at(slot);
        operand.reserved = reservation.bytes();
        let (key, attempts, stored) = (operand.key, operand.attempts, operand.stored);
        let reads = operand.reads.clone();
        let inputs = reads
            .iter()
            .filter_map(|r| {
                let from = OutputRef { stage: r.stage, output: r.output };
                Some((from, r.number, self.table.chunk(r.slot, r.output)?.clone()))
            })
            .collect();
        let statement = self.statement.clone();
        Work {
            statement,
            slot,
            key,
            inputs,
            reservation,
            prepared,
            deliver,
            fetch,
            frees: false,
            attempts,
            stored,
        }
    }

    /// The error when nothing fits, with the ready operands of the largest demand.
    pub(crate) fn memory_exceeded(&self, quota: &Quota) -> Error {
        let mut worst: Vec<Demand> = Vec::new();
        for ready in self.ready.iter().chain(self.loads.iter()) {
            let Some(operand) = self.table.get(ready.slot) else { continue };
            let held = operand.reads.iter().filter_map(|r| self.table.chunk(r.slot, r.output));
            worst.push(Demand {
                stage: self.statement.tiling.name(operand.key.stage),
                index: self.statement.index(operand.key).to_vec(),
                peak_bytes: operand.peak.saturating_add(self.pin(ready.slot).0),
                input_bytes: held.map(FinishedChunk::bytes).sum(),
            });
        }
        worst.sort_by(|a, b| {
            let bytes = |d: &Demand| d.peak_bytes.saturating_add(d.input_bytes);
            bytes(b).cmp(&bytes(a)).then_with(|| a.index.cmp(&b.index))
        });
        worst.truncate(3);
        Error::MemoryExceeded { limit_bytes: quota.limit(), used_bytes: quota.used(), worst }
    }
}
