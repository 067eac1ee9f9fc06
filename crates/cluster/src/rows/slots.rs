//! The tasks of rows on workers, of all statements.
//!
//! ```text
//!   runs ─▶ unread ─▶ runs        its reader has not taken what arrived: the worker computes nothing for it
//!             └─▶ evicted         it is in the way of another task: it runs again when its reader reads on
//! ```
//! Readers read tasks one after the other. A task that runs again after a death may be the one that all readers wait
//! for, while unread tasks are on all workers. So unread tasks do not count against a worker's threads, and the few
//! limits that they do count against end with the eviction of one.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};
use tessera_storage::lock;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

/// Upper bound on the tasks of a worker. A connection has 256 streams, which orders and chunks use too.
const TASKS_MAX: usize = 96;
/// A task is evicted if it was unread for this long.
const UNREAD: Duration = Duration::from_secs(1);

/// The tasks of rows on workers.
#[derive(Debug)]
pub(crate) struct RowsSlots {
    inner: Mutex<Inner>,
    changes: watch::Sender<u64>,
}

#[derive(Debug, Default)]
struct Inner {
    next: u64,
    workers: BTreeMap<u32, BTreeMap<u64, HeldSlot>>,
}

/// A task on a worker.
#[derive(Debug)]
struct HeldSlot {
    /// True if the task has the worker for itself.
    alone: bool,
    /// Since when its answer is unread.
    unread: Option<Instant>,
    evict: CancellationToken,
}

/// A worker that may get a task.
#[derive(Debug, Clone, Copy)]
pub(super) struct Candidate {
    pub(super) worker: u32,
    pub(super) threads: u32,
    /// The worker gets the task only if no other worker has room: the task failed on it, or a suspect has taken it.
    pub(super) is_last_choice: bool,
}

/// A task on a worker, until it is dropped.
#[derive(Debug)]
pub(super) struct Slot {
    slots: Arc<RowsSlots>,
    worker: u32,
    number: u64,
    /// Cancelled when another task needs the room.
    pub(super) evicted: CancellationToken,
}

impl Default for RowsSlots {
    fn default() -> Self {
        RowsSlots { inner: Mutex::default(), changes: watch::channel(0).0 }
    }
}

impl Inner {
    /// The tasks of a worker that its reader waits for, and all of them.
    fn counts(&self, worker: u32) -> (u64, usize) {
        let Some(held) = self.workers.get(&worker) else { return (0, 0) };
        (held.values().filter(|held| held.unread.is_none()).count() as u64, held.len())
    }

    fn put(&mut self, worker: u32, alone: bool) -> (u64, CancellationToken) {
        self.next += 1;
        let evict = CancellationToken::new();
        let held = HeldSlot { alone, unread: None, evict: evict.clone() };
        self.workers.entry(worker).or_default().insert(self.next, held);
        (self.next, evict)
    }
}

/// Upper bound on the tasks of a worker that are read.
fn read_max(threads: u32) -> u64 {
    (u64::from(threads) + 1).min(TASKS_MAX as u64)
}

impl RowsSlots {
    fn changed(&self) {
        self.changes.send_modify(|n| *n += 1);
    }

    /// A counter of changes that may make room.
    pub(super) fn changes(&self) -> watch::Receiver<u64> {
        self.changes.subscribe()
    }

    /// Takes a slot on the worker with the fewest tasks a thread that are read, of equal ones on that with the fewest
    /// tasks and the lowest number; `None` if none has room.
    pub(super) fn take(self: &Arc<Self>, candidates: &[Candidate]) -> Option<Slot> {
        let mut inner = lock(&self.inner);
        let with_room = candidates.iter().filter_map(|candidate| {
            let (read, all) = inner.counts(candidate.worker);
            let has_room = read < read_max(candidate.threads) && all < TASKS_MAX;
            has_room.then_some((candidate, read, all))
        });
        let threads = |candidate: &Candidate| u64::from(candidate.threads.max(1));
        let (best, ..) = with_room.min_by(|(a, read_a, all_a), (b, read_b, all_b)| {
            let last = a.is_last_choice.cmp(&b.is_last_choice);
            let load = (read_a * threads(b)).cmp(&(read_b * threads(a)));
            last.then(load).then(all_a.cmp(all_b)).then(a.worker.cmp(&b.worker))
        })?;
        let worker = best.worker;
        let (number, evicted) = inner.put(worker, false);
        drop(inner);
        Some(Slot { slots: self.clone(), worker, number, evicted })
    }

    /// Takes a slot for a task that has the worker for itself.
    pub(super) fn take_alone(self: &Arc<Self>, worker: u32) -> Slot {
        let (number, evicted) = lock(&self.inner).put(worker, true);
        Slot { slots: self.clone(), worker, number, evicted }
    }

    /// Evicts the task that is unread for longest from those workers on which unread tasks alone are in the way.
    pub(super) fn evict_from_full(&self, candidates: &[Candidate]) {
        let inner = lock(&self.inner);
        let is_full = |candidate: &&Candidate| {
            let (read, all) = inner.counts(candidate.worker);
            read < read_max(candidate.threads) && all >= TASKS_MAX
        };
        let full = candidates.iter().filter(is_full);
        let held = full.filter_map(|candidate| inner.workers.get(&candidate.worker));
        let unread = held.flat_map(BTreeMap::values).filter(|held| is_unread(held));
        if let Some(held) = unread.min_by_key(|held| held.unread) {
            held.evict.cancel();
        }
    }

    /// Evicts the unread tasks of a worker. With `only_alone`, evicts only a task that has the worker for itself.
    pub(crate) fn evict(&self, worker: u32, only_alone: bool) {
        let inner = lock(&self.inner);
        let held = inner.workers.get(&worker).into_iter().flat_map(BTreeMap::values);
        let held = held.filter(|held| is_unread(held) && (held.alone || !only_alone));
        held.for_each(|held| held.evict.cancel());
    }
}

fn is_unread(held: &HeldSlot) -> bool {
    held.unread.is_some_and(|since| since.elapsed() >= UNREAD)
}

impl Slot {
    pub(super) fn worker(&self) -> u32 {
        self.worker
    }

    /// Notes if the reader has yet to take batches that arrived.
    pub(super) fn set_unread(&self, unread: bool) {
        {
            let mut inner = lock(&self.slots.inner);
            let held = inner.workers.get_mut(&self.worker);
            if let Some(held) = held.and_then(|held| held.get_mut(&self.number)) {
                held.unread = unread.then(Instant::now);
            }
        }
        if unread {
            self.slots.changed();
        }
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        {
            let mut inner = lock(&self.slots.inner);
            if let Some(held) = inner.workers.get_mut(&self.worker) {
                held.remove(&self.number);
                if held.is_empty() {
                    inner.workers.remove(&self.worker);
                }
            }
        }
        self.slots.changed();
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]
    use super::*;

    fn candidate(worker: u32, threads: u32) -> Candidate {
        Candidate { worker, threads, is_last_choice: false }
    }

    #[test]
    fn tasks_go_to_the_least_loaded_worker() {
        let slots = Arc::new(RowsSlots::default());
        let both = [candidate(1, 1), candidate(2, 3)];
        let held: Vec<Slot> = std::iter::from_fn(|| slots.take(&both)).collect();
        let workers: Vec<u32> = held.iter().map(|slot| slot.worker).collect();
        // At most one task more than threads.
        assert_eq!(workers, [1, 2, 2, 2, 1, 2]);
        drop(held);
        let avoided = [Candidate { is_last_choice: true, ..both[0] }, both[1]];
        assert_eq!(slots.take(&avoided).unwrap().worker, 2);
        assert_eq!(slots.take(&avoided[..1]).unwrap().worker, 1);
        assert!(lock(&slots.inner).workers.is_empty());
    }

    #[test]
    fn unread_tasks_make_room() {
        let slots = Arc::new(RowsSlots::default());
        let one = [candidate(1, 1)];
        let mut held: Vec<Slot> = Vec::new();
        while held.len() < TASKS_MAX {
            let slot = slots.take(&one).unwrap();
            slot.set_unread(true);
            held.push(slot);
        }
        assert!(slots.take(&one).is_none());
        // Not unread for long enough.
        slots.evict_from_full(&one);
        assert!(held.iter().all(|slot| !slot.evicted.is_cancelled()));
        for held in lock(&slots.inner).workers.get_mut(&1).unwrap().values_mut() {
            held.unread = held.unread.and_then(|since| since.checked_sub(UNREAD));
        }
        slots.evict_from_full(&one);
        assert_eq!(held.iter().filter(|slot| slot.evicted.is_cancelled()).count(), 1);
        let changes = slots.changes();
        held.retain(|slot| !slot.evicted.is_cancelled());
        assert!(changes.has_changed().unwrap() && slots.take(&one).is_some());
        slots.evict(1, true);
        assert!(held.iter().all(|slot| !slot.evicted.is_cancelled()));
        slots.evict(1, false);
        assert!(held.iter().all(|slot| slot.evicted.is_cancelled()));
    }
}
