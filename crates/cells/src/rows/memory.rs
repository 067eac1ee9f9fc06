//! DataFusion's memory: a part of the one budget.
//!
//! ```text
//!   limit ├── chunks and operands ──────────────┼── rows of all statements, at most half ──┤
//!                                               ├─ one statement, at most a quarter ─┤
//! ```
//! What sorts, joins and groups of rows hold counts in the quota like everything else. They cannot wait: one that is
//! refused puts rows aside in files or ends its statement. So what they ask for within their share is always granted,
//! if need be beyond the limit for a moment; plans leave the share free as long as they get on without it, and start
//! nothing until the budget has room again.
//!
//! Statements that use rows at the same time have equal parts of the share, but always the least that holds the rows
//! of some batches. What that is beyond the shares of a tiny limit is not counted: plans would have nothing left.

use datafusion::error::{DataFusionError, Result};
use datafusion::execution::memory_pool::{MemoryLimit, MemoryPool, MemoryReservation};
use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use tessera_exec::quota::{Account, Quota, Reservation};

/// One part of this many of the limit is what a statement may have, and twice that all of them together.
const SHARE: u64 = 4;
/// What a statement gets at least: less does not hold the rows of some batches.
const LEAST: u64 = 4 << 20;

/// The part of the budget that rows may have.
#[derive(Debug)]
pub struct RowsMemory {
    quota: Arc<Quota>,
    used: AtomicU64,
    /// Bytes of them that are counted in the budget.
    counted: AtomicU64,
    /// Statements that hold some.
    active: AtomicU64,
}

/// What the rows of one statement hold.
#[derive(Debug)]
struct RowsPool {
    of: Arc<RowsMemory>,
    account: Arc<Account>,
    /// What the budget of the statement allows, whatever the others do.
    most: u64,
    /// `None` as long as it never held anything.
    held: Mutex<Option<Reserved>>,
}

#[derive(Debug)]
struct Reserved {
    bytes: u64,
    /// What of it is counted in the budget.
    counted: Reservation,
}

impl RowsMemory {
    /// Of that budget.
    pub fn new(quota: Arc<Quota>) -> Arc<Self> {
        let (used, counted, active) = Default::default();
        Arc::new(RowsMemory { quota, used, counted, active })
    }

    /// What one statement may have if no other uses rows.
    pub fn share(&self) -> u64 {
        share_of(&self.quota)
    }

    /// The same of a statement with that budget of its own.
    pub fn share_within(&self, budget: Option<&Arc<Quota>>) -> u64 {
        budget.map_or(self.share(), |own| share_of(own).min(self.share()))
    }

    /// Bytes that rows hold.
    pub fn used(&self) -> u64 {
        self.used.load(Relaxed)
    }

    /// The pool of one statement. `budget` is the statement's own, if it has one.
    pub fn pool(self: &Arc<Self>, budget: Option<&Arc<Quota>>) -> Arc<dyn MemoryPool> {
        let quota = budget.unwrap_or(&self.quota);
        let (account, most) = (quota.account(), share_of(quota));
        Arc::new(RowsPool { of: self.clone(), account, most, held: Mutex::default() })
    }

    /// What each of the statements may have that use rows now.
    fn part(&self) -> u64 {
        (self.share() / self.active.load(Relaxed).max(1)).max(LEAST)
    }

    /// Says how much rows may still ask for.
    fn tell(&self) {
        let open = match self.active.load(Relaxed) {
            0 => 0,
            1 => self.quota.limit() / SHARE,
            _ => self.most(),
        };
        self.quota.set_aside(open.saturating_sub(self.counted.load(Relaxed)));
    }

    /// What is counted of the rows of all statements, at most.
    fn most(&self) -> u64 {
        2 * (self.quota.limit() / SHARE)
    }

    /// Counts what a statement holds, within the shares.
    fn count(&self, held: &mut Reserved) {
        let (before, wanted) = (held.counted.bytes(), held.bytes.min(self.quota.limit() / SHARE));
        if wanted > before {
            let all = self.counted.load(Relaxed);
            let more = (wanted - before).min(self.most().saturating_sub(all));
            held.counted.extend(more);
            self.counted.fetch_add(more, Relaxed);
        } else {
            held.counted.shrink(wanted);
            self.counted.fetch_sub(before - wanted, Relaxed);
        }
        self.tell();
    }
}

/// What one statement may have of a budget.
fn share_of(quota: &Quota) -> u64 {
    (quota.limit() / SHARE).max(LEAST)
}

impl RowsPool {
    /// What the statement may have now.
    fn part(&self) -> u64 {
        self.of.part().min(self.most)
    }

    fn lock(&self) -> MutexGuard<'_, Option<Reserved>> {
        self.held.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes bytes if `may` says so, given what the statement holds; else says what it could have.
    fn take(&self, bytes: u64, always: bool) -> std::result::Result<(), u64> {
        let mut held = self.lock();
        let held = held.get_or_insert_with(|| {
            self.of.active.fetch_add(1, Relaxed);
            Reserved { bytes: 0, counted: self.account.nothing() }
        });
        let own = held.bytes;
        let room = self.part().saturating_sub(own);
        let all = (2 * self.of.share()).saturating_sub(self.of.used());
        // The least is everybody's, however many there are.
        let room = room.min(all).max(LEAST.saturating_sub(own));
        if bytes > room && !always {
            return Err(room);
        }
        held.bytes += bytes;
        self.of.used.fetch_add(bytes, Relaxed);
        self.of.count(held);
        Ok(())
    }
}

impl MemoryPool for RowsPool {
    fn name(&self) -> &str {
        "tessera"
    }

    fn grow(&self, _: &MemoryReservation, additional: usize) {
        // What DataFusion has in hand already; it asks for the rest.
        let _ = self.take(additional as u64, true);
    }

    fn shrink(&self, _: &MemoryReservation, shrink: usize) {
        let mut held = self.lock();
        let Some(held) = &mut *held else { return };
        let given = held.bytes.min(shrink as u64);
        held.bytes -= given;
        self.of.used.fetch_sub(given, Relaxed);
        self.of.count(held);
    }

    fn try_grow(&self, reservation: &MemoryReservation, additional: usize) -> Result<()> {
        self.take(additional as u64, false).map_err(|room| {
            DataFusionError::ResourcesExhausted(format!(
                "`{}` asks for {additional} bytes beside {}, and {room} are left of the {} that rows may have",
                reservation.consumer().name(),
                reservation.size(),
                self.part()
            ))
        })
    }

    fn reserved(&self) -> usize {
        self.lock().as_ref().map_or(0, |held| held.bytes) as usize
    }

    fn memory_limit(&self) -> MemoryLimit {
        MemoryLimit::Finite(self.part() as usize)
    }
}

impl fmt::Display for RowsPool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} of {} bytes for rows", self.reserved(), self.part())
    }
}

impl Drop for RowsPool {
    fn drop(&mut self) {
        let held = self.held.get_mut().unwrap_or_else(PoisonError::into_inner);
        if let Some(held) = held.take() {
            self.of.used.fetch_sub(held.bytes, Relaxed);
            self.of.counted.fetch_sub(held.counted.bytes(), Relaxed);
            self.of.active.fetch_sub(1, Relaxed);
            drop(held);
            self.of.tell();
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]
    use super::*;
    use datafusion::execution::memory_pool::MemoryConsumer;

    #[test]
    fn rows_are_a_part_of_the_budget_and_share_it() {
        let quota = Quota::new(64 << 20);
        let rows = RowsMemory::new(quota.clone());
        let (a, b) = (rows.pool(None), rows.pool(None));
        let first = MemoryConsumer::new("sort").register(&a);
        first.try_grow(16 << 20).unwrap();
        assert_eq!((quota.used(), rows.used(), quota.aside()), (16 << 20, 16 << 20, 0));
        let error = first.try_grow(1).unwrap_err();
        assert!(matches!(error, DataFusionError::ResourcesExhausted(_)), "{error}");
        // A second one has half, although the first keeps what it has.
        let second = MemoryConsumer::new("group").register(&b);
        second.try_grow(8 << 20).unwrap();
        assert!(second.try_grow(1).is_err());
        second.shrink(4 << 20);
        assert_eq!(quota.used(), 20 << 20);
        // What is in hand is granted; more than both shares is not counted.
        second.grow(100 << 20);
        assert_eq!((rows.used(), quota.used(), quota.overrun()), (120 << 20, 32 << 20, 0));
        // Beyond the limit for a moment, if chunks are in the way.
        second.shrink(104 << 20);
        let chunks = quota.account().try_reserve(48 << 20).unwrap();
        second.try_grow(8 << 20).unwrap();
        assert_eq!((quota.used(), quota.overrun()), (72 << 20, 0));
        drop(chunks);
        drop((first, second));
        assert_eq!((quota.used(), rows.used()), (0, 0));
        assert!(quota.aside() > 0, "both may come again");
        drop((a, b));
        assert_eq!(quota.aside(), 0);
    }

    #[test]
    fn everybody_gets_the_least() {
        let quota = Quota::new(8 << 20);
        let rows = RowsMemory::new(quota.clone());
        let pools: Vec<_> = (0..3).map(|_| rows.pool(None)).collect();
        let held: Vec<_> = pools
            .iter()
            .map(|p| {
                let r = MemoryConsumer::new("x").register(p);
                r.try_grow(LEAST as usize).unwrap();
                r
            })
            .collect();
        assert_eq!((rows.used(), quota.used()), (3 * LEAST, 4 << 20));
        drop((held, pools));
        assert_eq!((quota.used(), rows.used(), quota.aside()), (0, 0, 0));
    }
}
