//! DataFusion's memory pool: a part of the one budget.
//!
//! ```text
//!   limit ├── chunks and operands ──────────────┼── rows of all statements, at most half ──┤
//!                                               ├─ one statement, at most a quarter ─┤
//! ```
//! The memory of sorts, joins and groups of rows counts in the quota like all other memory. These operators cannot
//! wait: if a request is refused, they spill or the statement ends. So a request within their share is always granted,
//! if necessary exceeding the limit for a moment. Plans leave the share free as long as they progress without it, and
//! start nothing until the budget has room again.
//!
//! Statements that use rows at the same time have equal parts of the share, but always at least the memory for some
//! batches. Bytes by which this exceeds the shares of a tiny limit are not counted: plans would have nothing left.

use bytes::Bytes;
use datafusion::error::{DataFusionError, Result};
use datafusion::execution::memory_pool::{MemoryLimit, MemoryPool, MemoryReservation};
use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use tessera_exec::quota::{Account, Charge, Quota, Reservation};

/// A statement may use the limit divided by this, all statements together twice that.
const SHARE: u64 = 4;
/// Minimum share of a statement: less does not fit some batches of rows.
const LEAST: u64 = 4 << 20;

/// Bytes that are charged for as long as they live, also where arrays share them.
pub(super) fn charged_bytes(bytes: Bytes, charge: Charge) -> Bytes {
    struct Charged {
        bytes: Bytes,
        _charge: Charge,
    }
    impl AsRef<[u8]> for Charged {
        fn as_ref(&self) -> &[u8] {
            &self.bytes
        }
    }
    Bytes::from_owner(Charged { bytes, _charge: charge })
}

/// The part of the budget that rows may use.
#[derive(Debug)]
pub(super) struct RowsMemory {
    quota: Arc<Quota>,
    used: AtomicU64,
    /// Bytes that are counted in the budget.
    counted: AtomicU64,
    /// Statements that hold bytes.
    active: AtomicU64,
}

/// The memory of the rows of one statement.
#[derive(Debug)]
struct RowsPool {
    of: Arc<RowsMemory>,
    account: Arc<Account>,
    /// Maximum by the statement's own budget, independent of other statements.
    most: u64,
    /// `None` until the first request.
    held: Mutex<Option<Reserved>>,
    /// Peak of the reserved bytes, if it is measured.
    peak: Option<Arc<AtomicU64>>,
}

#[derive(Debug)]
struct Reserved {
    bytes: u64,
    counted: Reservation,
}

impl RowsMemory {
    /// The memory of rows within a budget.
    pub(super) fn new(quota: Arc<Quota>) -> Arc<Self> {
        let (used, counted, active) = Default::default();
        Arc::new(RowsMemory { quota, used, counted, active })
    }

    /// The maximum of one statement if no other uses rows.
    pub(super) fn share(&self) -> u64 {
        share_of(&self.quota)
    }

    /// As [`RowsMemory::share`], for a statement with its own budget.
    pub(super) fn share_within(&self, budget: Option<&Arc<Quota>>) -> u64 {
        budget.map_or(self.share(), |own| share_of(own).min(self.share()))
    }

    pub(super) fn used(&self) -> u64 {
        self.used.load(Relaxed)
    }

    /// The pool of one statement. `budget` is the statement's own, if it has one. `peak` records the most bytes that
    /// are reserved at once.
    pub(super) fn pool(
        self: &Arc<Self>,
        budget: Option<&Arc<Quota>>,
        peak: Option<Arc<AtomicU64>>,
    ) -> Arc<dyn MemoryPool> {
        let quota = budget.unwrap_or(&self.quota);
        let (account, most) = (quota.account(), share_of(quota));
        Arc::new(RowsPool { of: self.clone(), account, most, held: Mutex::default(), peak })
    }

    /// The current maximum of each active statement.
    fn part(&self) -> u64 {
        (self.share() / self.active.load(Relaxed).max(1)).max(LEAST)
    }

    /// Updates the amount that the quota sets aside for rows.
    fn tell(&self) {
        let open = match self.active.load(Relaxed) {
            0 => 0,
            1 => self.quota.limit() / SHARE,
            _ => self.most(),
        };
        self.quota.set_aside(open.saturating_sub(self.counted.load(Relaxed)));
    }

    /// Maximum bytes of the rows of all statements that are counted.
    fn most(&self) -> u64 {
        2 * (self.quota.limit() / SHARE)
    }

    /// Updates the counted bytes of a statement, within the shares.
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

/// The maximum of one statement within a budget.
fn share_of(quota: &Quota) -> u64 {
    (quota.limit() / SHARE).max(LEAST)
}

impl RowsPool {
    /// The statement's current maximum.
    fn part(&self) -> u64 {
        self.of.part().min(self.most)
    }

    fn lock(&self) -> MutexGuard<'_, Option<Reserved>> {
        self.held.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes bytes if they fit the statement's share, or always; otherwise returns the available bytes.
    fn take(&self, bytes: u64, always: bool) -> std::result::Result<(), u64> {
        let mut held = self.lock();
        let held = held.get_or_insert_with(|| {
            self.of.active.fetch_add(1, Relaxed);
            Reserved { bytes: 0, counted: self.account.nothing() }
        });
        let own = held.bytes;
        let room = self.part().saturating_sub(own);
        let all = (2 * self.of.share()).saturating_sub(self.of.used());
        // Every statement may use the minimum, however many there are.
        let room = room.min(all).max(LEAST.saturating_sub(own));
        if bytes > room && !always {
            return Err(room);
        }
        held.bytes += bytes;
        if let Some(peak) = &self.peak {
            peak.fetch_max(held.bytes, Relaxed);
        }
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
        // DataFusion already holds these bytes; it asks for more with `try_grow`.
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
                "`{}` needs {additional} bytes in addition to its {}, but only {room} of the {} bytes for rows are free",
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
    fn statements_share_the_part_of_the_budget_for_rows() {
        let quota = Quota::new(64 << 20);
        let rows = RowsMemory::new(quota.clone());
        let peak = Arc::new(AtomicU64::new(0));
        let (a, b) = (rows.pool(None, None), rows.pool(None, Some(peak.clone())));
        let first = MemoryConsumer::new("sort").register(&a);
        first.try_grow(16 << 20).unwrap();
        assert_eq!((quota.used(), rows.used(), quota.aside()), (16 << 20, 16 << 20, 0));
        let error = first.try_grow(1).unwrap_err();
        assert!(matches!(error, DataFusionError::ResourcesExhausted(_)), "{error}");
        // The second one has half, although the first retains all of its bytes.
        let second = MemoryConsumer::new("group").register(&b);
        second.try_grow(8 << 20).unwrap();
        assert!(second.try_grow(1).is_err());
        second.shrink(4 << 20);
        assert_eq!(quota.used(), 20 << 20);
        // Bytes that are already held are granted; bytes beyond both shares are not counted.
        second.grow(100 << 20);
        assert_eq!((rows.used(), quota.used(), quota.overrun()), (120 << 20, 32 << 20, 0));
        // Exceeds the limit for a moment if chunks use the rest.
        second.shrink(104 << 20);
        let chunks = quota.account().try_reserve(48 << 20).unwrap();
        second.try_grow(8 << 20).unwrap();
        assert_eq!((quota.used(), quota.overrun()), (72 << 20, 0));
        drop(chunks);
        drop((first, second));
        assert_eq!((quota.used(), rows.used()), (0, 0));
        // 8 MiB, less 4, and 100 more.
        assert_eq!(peak.load(Relaxed), 104 << 20);
        assert!(quota.aside() > 0, "both may come again");
        drop((a, b));
        assert_eq!(quota.aside(), 0);
    }

    #[test]
    fn every_statement_gets_the_minimum() {
        let quota = Quota::new(8 << 20);
        let rows = RowsMemory::new(quota.clone());
        let pools: Vec<_> = (0..3).map(|_| rows.pool(None, None)).collect();
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
