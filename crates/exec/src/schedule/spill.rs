//! Making room: which chunks are spilled, for which statement, and when.
//!
//! ```text
//!   all plans are stalled, nothing fits      make_room   for the oldest plan that spilling can help
//!   one is stalled while others run          feed        after a moment: from plans that hold more than their share;
//!                                                       if what runs is in the way, memory is reserved (a claim)
//! ```
//! A chunk is spilled if only the table holds it. Chunks that no known operand waits for go first, then those whose
//! most urgent reader is last in the order of the queues; of two equal ones, the larger. A chunk that was loaded again
//! keeps its file, so it is written once.
//!
//! Termination: an admitted operand runs to its end without requesting more memory, so all running operands finish.
//! Then every finished chunk without holders outside the scheduler can be spilled, and an operand fits if its peak, the
//! inputs that it reads whole and the chunks held by clients do. `docs/memory.md` has the argument in full.

use crate::chunk::Chunk;
use crate::error::Error;
use crate::operand::OperandState;
use crate::quota::Quota;
use crate::schedule::core::Core;
use crate::schedule::job::{Job, Trash};
use crate::schedule::table::{OperandKey, Slot};
use crate::store::{FinishedChunk, Resident, Space, Spilled, Store, staging_of};
use smallvec::SmallVec;
use std::cmp::Reverse;
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};
use tessera_planner::plan::OutputRef;

/// Time that a plan is stalled before others make room for it.
pub(super) const PATIENCE: Duration = Duration::from_millis(20);
/// Time that memory is reserved for an operand before the claim is reconsidered.
const CLAIM: Duration = Duration::from_secs(1);

/// A chunk chosen to be spilled.
#[derive(Debug, Clone)]
pub(crate) enum Victim {
    Made(MadeBy),
    /// A chunk of an array outside of plans, by its number.
    Resident(Weak<Resident>, u64),
}

/// The operand and output that made a chunk.
#[derive(Debug, Clone, Copy)]
pub(crate) struct MadeBy {
    pub(crate) statement: u64,
    pub(crate) slot: Slot,
    key: OperandKey,
    pub(crate) output: u32,
}

/// A chunk to write, with the disk space for it.
pub(crate) struct Spill {
    pub(crate) victim: Victim,
    pub(crate) chunk: Arc<Chunk>,
    pub(crate) space: Space,
}

pub(crate) struct SpillDone {
    pub(crate) victim: Victim,
    pub(crate) chunk: Arc<Chunk>,
    pub(crate) result: Result<Arc<Spilled>, Error>,
}

/// Memory that is reserved for an operand of a statement.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Claim {
    statement: u64,
    bytes: u64,
    until: Instant,
}

struct Candidate {
    /// Rank of the chunk's owner: chunks of the smaller rank go first.
    order: usize,
    /// Root and number of the most urgent operand that waits for it.
    needed: (u64, u64),
    bytes: u64,
    job: usize,
    /// True if its bytes belong to the own budget of the requesting statement.
    own: bool,
    victim: Victim,
}

impl Candidate {
    fn slot(&self) -> Option<Slot> {
        match &self.victim {
            Victim::Made(made) => Some(made.slot),
            Victim::Resident(..) => None,
        }
    }
}

/// The memory that an operand needs once every possible chunk is spilled.
struct Want {
    bytes: u64,
    /// Producers of inputs in memory that it reads whole: spilling them would not help it.
    keep: SmallVec<[Slot; 8]>,
}

enum Next {
    Write(Spill),
    Moved,
    Gone,
    Refused(Error),
}

impl Core {
    /// Returns the next chosen chunk that has to be written. Chosen chunks that already have a file are dropped at
    /// once.
    pub(super) fn next_spill(&mut self, trash: &mut Trash) -> Option<Spill> {
        while let Some(victim) = self.victims.pop_front() {
            let store = self.limits.store.clone();
            let next = match victim {
                Victim::Made(made) => match self.job(made.statement) {
                    Some(job) => job.spill(made, &store, trash),
                    None => Next::Gone,
                },
                Victim::Resident(array, number) => resident(array, number, &store, trash),
            };
            match next {
                Next::Write(spill) => {
                    self.spilling += usize::from(matches!(spill.victim, Victim::Resident(..)));
                    return Some(spill);
                }
                Next::Moved | Next::Gone => {}
                Next::Refused(error) => {
                    self.refused = Some((error, store.figures().bytes));
                    self.victims.clear();
                }
            }
        }
        None
    }

    /// Drops an expired claim.
    pub(super) fn keep_claim(&mut self) {
        let claim = self.claim.filter(|c| {
            let job = self.jobs.iter().find(|j| j.statement.id == c.statement);
            job.is_some_and(|j| j.hungry.is_some()) && Instant::now() < c.until
        });
        self.claim = claim;
        self.limits.claim = claim.map(|c| (c.statement, c.bytes));
    }

    /// Chooses chunks to spill when nothing runs and nothing fits. False if that cannot help.
    pub(super) fn make_room(&mut self) -> bool {
        (0..self.jobs.len()).any(|i| !self.jobs[i].parked && self.choose(i, false))
    }

    /// Makes room for a statement that has been stalled for memory for a while although others run. True if an operand
    /// can now start.
    pub(super) fn feed(&mut self) -> bool {
        let waited = |j: &Job| j.hungry.is_some_and(|since| since.elapsed() > PATIENCE);
        let Some(i) = self.jobs.iter().position(waited) else { return false };
        self.jobs[i].hungry = Some(Instant::now());
        if !self.victims.is_empty() || self.is_spilling() {
            return false;
        }
        if self.choose(i, true) {
            return true;
        }
        if self.claim.is_none() {
            self.looked_at = Some(self.jobs[i].statement.id);
            self.claim = self.claim_for(i);
        }
        false
    }

    /// Chooses chunks whose memory lets an operand of a statement start. While others run (`fair`), only plans that
    /// hold more than their share give chunks, unless the statement is the oldest.
    pub(super) fn choose(&mut self, i: usize, fair: bool) -> bool {
        self.looked_at = Some(self.jobs[i].statement.id);
        let (store, quota) = (&self.limits.store, &self.limits.quota);
        if let Some((_, used)) = &self.refused
            && store.figures().bytes >= *used
        {
            return false;
        }
        if !store.is_on() {
            return false;
        }
        self.refused = None;
        let own = self.jobs[i].own(&self.limits);
        let share = quota.limit() / self.jobs.len() as u64;
        let mut candidates: Vec<Candidate> = Vec::new();
        for (j, job) in self.jobs.iter().enumerate() {
            if j == i || !fair || i == 0 || job.held_bytes > share {
                // Chunks of the youngest plan go first, those of the requesting plan last.
                let order = if j == i { usize::MAX } else { self.jobs.len() - j };
                job.candidates(j, order, j == i, &mut candidates);
            }
        }
        self.residents(own, &mut candidates);
        let job = &self.jobs[i];
        for slot in job.wants() {
            let want = job.want(slot);
            let is_own = |c: &Candidate| c.own;
            if !want.may_fit(i, quota, &candidates, |_| true)
                || own.is_some_and(|own| !want.may_fit(i, own, &candidates, is_own))
            {
                continue;
            }
            candidates.retain(|c| !want.keeps(i, c));
            candidates.sort_by_key(|c| (c.order, Reverse(c.needed), Reverse(c.bytes)));
            // Somewhat more than is missing, so that all threads write and this is not done for every operand.
            let goal = |quota: &Quota| {
                let missing = quota.used().saturating_add(want.bytes).saturating_sub(quota.limit());
                match (missing, own) {
                    (0, Some(_)) => 0,
                    _ => missing + quota.limit() / 8,
                }
            };
            let (mut left, mut left_own) = (goal(quota), own.map_or(0, |own| goal(own)));
            for c in candidates {
                if left == 0 && (left_own == 0 || !c.own) {
                    continue;
                }
                left = left.saturating_sub(c.bytes);
                left_own = left_own.saturating_sub(if c.own { c.bytes } else { 0 });
                self.victims.push_back(c.victim);
            }
            return !self.victims.is_empty();
        }
        false
    }

    /// True if an operand of a statement fits into the statement's own budget once every possible chunk is spilled.
    pub(super) fn may_fit(&self, i: usize, own: &Arc<Quota>) -> bool {
        let mut candidates = Vec::new();
        let job = &self.jobs[i];
        if self.limits.store.is_on() {
            job.candidates(i, 0, true, &mut candidates);
            self.residents(Some(own), &mut candidates);
        }
        job.wants().into_iter().any(|slot| job.want(slot).may_fit(i, own, &candidates, |c| c.own))
    }

    /// True while a thread writes a chunk.
    pub(super) fn is_spilling(&self) -> bool {
        self.spilling > 0 || self.jobs.iter().any(|j| j.spilling > 0)
    }

    /// Collects chunks of arrays outside of plans. They are evicted before all others: chunks of caches first, then the
    /// chunks of the least recently read array.
    fn residents(&self, own: Option<&Arc<Quota>>, out: &mut Vec<Candidate>) {
        let arrays = self.limits.store.residents();
        for (age, array) in (0..).zip(&arrays) {
            array.in_memory(&mut |number, chunk| {
                let victim = Victim::Resident(Arc::downgrade(array), number);
                let needed = if array.is_cache() { (u64::MAX, 1) } else { (u64::MAX - age, 0) };
                let (bytes, job) = (chunk.charged(), usize::MAX);
                let own = own.is_some_and(|own| chunk.is_charged_to(own));
                out.push(Candidate { order: 0, needed, bytes, job, own, victim });
            });
        }
    }

    /// Returns a claim for the most urgent operand of a statement, if the memory suffices once all running operands
    /// end.
    fn claim_for(&self, i: usize) -> Option<Claim> {
        let job = &self.jobs[i];
        let mut candidates = Vec::new();
        let mut running = 0;
        for (j, job) in self.jobs.iter().enumerate() {
            running += job.reserved;
            if self.limits.store.is_on() {
                job.candidates(j, 0, false, &mut candidates);
            }
        }
        self.residents(None, &mut candidates);
        let spillable: u64 = candidates.iter().map(|c| c.bytes).sum();
        let quota = &self.limits.quota;
        let rest = quota.used().saturating_sub(running).saturating_sub(spillable);
        let bytes = job.want(*job.wants().first()?).bytes;
        (rest.saturating_add(bytes) <= quota.limit()).then(|| Claim {
            statement: job.statement.id,
            bytes,
            until: Instant::now() + CLAIM,
        })
    }
}

/// Spills a chunk of an array outside of plans; drops it if the array is a cache.
fn resident(array: Weak<Resident>, number: u64, store: &Arc<Store>, trash: &mut Trash) -> Next {
    let Some(live) = array.upgrade() else { return Next::Gone };
    if live.is_cache() {
        let Some(held) = live.take(number) else { return Next::Gone };
        trash.push(held);
        return Next::Moved;
    }
    if let Some(held) = live.move_to_file(number) {
        trash.push(held);
        return Next::Moved;
    }
    let Some(chunk) = live.chunk(number) else { return Next::Gone };
    match store.reserve(&chunk) {
        Ok(space) => Next::Write(Spill { victim: Victim::Resident(array, number), chunk, space }),
        Err(error) => Next::Refused(error),
    }
}

impl Want {
    /// True if a chunk stays in memory because the operand reads it whole.
    fn keeps(&self, job: usize, c: &Candidate) -> bool {
        c.job == job && c.slot().is_some_and(|s| self.keep.contains(&s))
    }

    /// True if a budget has room once the candidates that count in it are spilled.
    fn may_fit(
        &self,
        job: usize,
        quota: &Quota,
        candidates: &[Candidate],
        counts: impl Fn(&Candidate) -> bool,
    ) -> bool {
        let goes = |c: &&Candidate| counts(c) && !self.keeps(job, c);
        let spilled: u64 = candidates.iter().filter(goes).map(|c| c.bytes).sum();
        quota.used().saturating_sub(spilled).saturating_add(self.bytes) <= quota.limit()
    }
}

impl Job {
    /// True if nothing of the plan runs, though operands are ready.
    pub(super) fn stands_still(&self) -> bool {
        self.running == 0
            && self.error.is_none()
            && !self.parked
            && self.startable() > 0
            && self.spilling == 0
    }

    /// Records the start of a stall.
    pub(super) fn note_hunger(&mut self) {
        self.hungry = self.stands_still().then(|| self.hungry.unwrap_or_else(Instant::now));
    }

    /// Operands to make room for; the first that can be helped wins: the most urgent, the most urgent load, the
    /// smallest.
    fn wants(&self) -> SmallVec<[Slot; 3]> {
        let all = || self.ready.iter().chain(self.loads.iter());
        let smallest = all().min_by_key(|r| (self.need(r.slot), r.found));
        let fronts = [self.ready.peek(), self.loads.peek(), smallest];
        fronts.into_iter().flatten().map(|r| r.slot).collect()
    }

    fn want(&self, slot: Slot) -> Want {
        let mut want = Want { bytes: 0, keep: SmallVec::new() };
        let Some(operand) = self.table.get(slot) else { return want };
        want.bytes = operand.peak.saturating_add(self.pin(slot).0);
        let tiling = &self.statement.tiling;
        let index = self.statement.index(operand.key);
        let mut staging = 0;
        let mut known: Option<(OutputRef, Option<u64>)> = None;
        for r in &operand.reads {
            let from = OutputRef { stage: r.stage, output: r.output };
            let parts = match known {
                Some((of, parts)) if of == from => parts.map(|_| 0),
                _ => tiling.parts(operand.key.stage, &index, from),
            };
            known = Some((from, parts));
            match (parts, self.table.chunk(r.slot, r.output)) {
                (Some(more), held) => {
                    staging = held.map_or(0, |h| staging_of(h.bytes())).max(staging);
                    want.bytes = want.bytes.saturating_add(more);
                }
                (None, Some(FinishedChunk::File(file))) => {
                    want.bytes = want.bytes.saturating_add(file.bytes());
                }
                (None, _) => want.keep.push(r.slot),
            }
        }
        want.bytes = want.bytes.saturating_add(staging);
        want
    }

    /// Collects the chunks of this plan that only its table holds.
    fn candidates(&self, job: usize, order: usize, own: bool, out: &mut Vec<Candidate>) {
        if self.error.is_some() || self.held_bytes == 0 {
            return;
        }
        let mut needed = vec![(u64::MAX, u64::MAX); self.table.end()];
        for (_, operand) in self.table.iter() {
            if matches!(operand.state, OperandState::Unscheduled | OperandState::Ready) {
                for read in operand.reads.iter().filter(|r| r.slot != Slot::MAX) {
                    let known = &mut needed[read.slot as usize];
                    *known = (*known).min((operand.root, operand.found));
                }
            }
        }
        for (slot, operand) in self.table.iter() {
            if operand.state != OperandState::Finished {
                continue;
            }
            for (output, made) in (0..).zip(&operand.made) {
                if let Some(FinishedChunk::Memory(chunk)) = &made.chunk
                    && Arc::strong_count(chunk) == 1
                    && chunk.charged() > 0
                {
                    let statement = self.statement.id;
                    let made = MadeBy { statement, slot, key: operand.key, output };
                    let victim = Victim::Made(made);
                    let needed = needed[slot as usize];
                    let bytes = chunk.charged();
                    out.push(Candidate { order, needed, bytes, job, own, victim });
                }
            }
        }
    }

    /// The chunk of a victim, if the table holds it in memory.
    fn held(&self, victim: &MadeBy) -> Option<&Arc<Chunk>> {
        self.table.get(victim.slot).filter(|o| o.key == victim.key)?;
        match self.table.chunk(victim.slot, victim.output)? {
            FinishedChunk::Memory(chunk) => Some(chunk),
            FinishedChunk::File(_) => None,
        }
    }

    /// True if the table holds exactly this chunk for the victim.
    pub(super) fn holds(&self, victim: &MadeBy, chunk: &Arc<Chunk>) -> bool {
        self.held(victim).is_some_and(|held| Arc::ptr_eq(held, chunk))
    }

    fn spill(&mut self, victim: MadeBy, store: &Arc<Store>, trash: &mut Trash) -> Next {
        if self.error.is_some() {
            return Next::Gone;
        }
        let Some(chunk) = self.held(&victim).filter(|chunk| Arc::strong_count(chunk) == 1) else {
            return Next::Gone;
        };
        if chunk.file().is_some() {
            return match self.move_to_file(victim.slot, victim.output, 1, trash) {
                true => Next::Moved,
                false => Next::Gone,
            };
        }
        let chunk = chunk.clone();
        match store.reserve(&chunk) {
            Ok(space) => {
                self.spilling += 1;
                Next::Write(Spill { victim: Victim::Made(victim), chunk, space })
            }
            Err(error) => Next::Refused(error),
        }
    }
}
