//! One budget of bytes for everything that runs.
//!
//! ```text
//!   limit ├────────────────────────────────────────────────────────┤
//!   used  ├── running operands ──┼── chunks ──┤   cached (pool) ├──┤
//! ```
//! An operand reserves its whole peak before it runs. The part that its outputs occupy becomes a [`Charge`] that lives
//! as long as the chunk, wherever it is held; the rest is released. Free buffers in the [`crate::pool`] are not `used`,
//! but they are freed as soon as a reservation needs their room.
//!
//! A statement may have its own budget [within](Quota::within) the global one: a reservation counts in both.
//!
//! The bookkeeping of operands and chunks is counted beyond the first few thousand of a statement or an array.
//!
//! Not counted: up to an eighth by which the pool rounds a buffer's size up, and allocations outside the plan's
//! arithmetic.

use crate::error::Error;
use std::fmt;
use std::panic::AssertUnwindSafe;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, OnceLock};

/// A budget of bytes, shared by statements.
pub struct Quota {
    limit: u64,
    /// The budget that contains this one.
    within: Option<Arc<Quota>>,
    used: AtomicU64,
    peak: AtomicU64,
    cached: AtomicU64,
    overrun: AtomicU64,
    /// Bytes that row operators may still request.
    aside: AtomicU64,
    /// Called to free cached bytes until no more than the argument are left.
    trim: OnceLock<Hook<u64>>,
    /// Called after bytes were released.
    released: OnceLock<Hook<()>>,
}

type Hook<T> = AssertUnwindSafe<Box<dyn Fn(T) + Send + Sync>>;

impl fmt::Debug for Quota {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Quota")
            .field("limit", &self.limit)
            .field("used", &self.used)
            .field("peak", &self.peak)
            .field("cached", &self.cached)
            .finish_non_exhaustive()
    }
}

impl Quota {
    /// Creates a budget of `limit` bytes.
    pub fn new(limit: u64) -> Arc<Self> {
        Quota::with(limit, None)
    }

    /// Creates a part of this budget, of at most `limit` bytes, for a statement with a memory limit of its own.
    pub fn within(self: &Arc<Self>, limit: u64) -> Arc<Self> {
        Quota::with(limit.min(self.limit), Some(self.clone()))
    }

    fn with(limit: u64, within: Option<Arc<Quota>>) -> Arc<Self> {
        Arc::new(Quota {
            limit,
            within,
            used: AtomicU64::new(0),
            peak: AtomicU64::new(0),
            cached: AtomicU64::new(0),
            overrun: AtomicU64::new(0),
            aside: AtomicU64::new(0),
            trim: OnceLock::new(),
            released: OnceLock::new(),
        })
    }

    /// Limit of the budget in bytes.
    pub fn limit(&self) -> u64 {
        self.limit
    }

    /// Bytes reserved by running operands or charged for chunks.
    pub fn used(&self) -> u64 {
        self.used.load(Relaxed)
    }

    /// Peak bytes in use.
    pub fn peak(&self) -> u64 {
        self.peak.load(Relaxed)
    }

    /// Bytes of free buffers that the pool retains.
    pub fn cached(&self) -> u64 {
        self.cached.load(Relaxed)
    }

    /// Bytes by which outputs were larger than their operand's reservation: 0 if the planner's arithmetic is right.
    pub fn overrun(&self) -> u64 {
        self.overrun.load(Relaxed)
    }

    /// Bytes that plans should leave free: work outside of plans that cannot wait for memory may request them.
    pub fn aside(&self) -> u64 {
        self.aside.load(Relaxed)
    }

    /// Sets [`Quota::aside`].
    pub fn set_aside(&self, bytes: u64) {
        self.aside.store(bytes, Relaxed);
    }

    /// Creates an account of this budget, such as one for each statement.
    pub fn account(self: &Arc<Self>) -> Arc<Account> {
        Arc::new(Account { quota: self.clone(), used: AtomicU64::new(0), peak: AtomicU64::new(0) })
    }

    pub(crate) fn set_trim(&self, hook: Box<dyn Fn(u64) + Send + Sync>) -> bool {
        self.trim.set(AssertUnwindSafe(hook)).is_ok()
    }

    pub(crate) fn set_released(&self, hook: Box<dyn Fn(()) + Send + Sync>) -> bool {
        self.released.set(AssertUnwindSafe(hook)).is_ok()
    }

    /// True if the pool may retain `bytes` more; they are then counted as cached.
    pub(crate) fn try_cache(&self, bytes: u64, max: u64) -> bool {
        let now = self.cached.fetch_add(bytes, Relaxed) + bytes;
        if now > max || now + self.used() > self.limit {
            self.cached.fetch_sub(bytes, Relaxed);
            return false;
        }
        true
    }

    pub(crate) fn uncache(&self, bytes: u64) {
        self.cached.fetch_sub(bytes, Relaxed);
    }

    fn try_take(&self, bytes: u64) -> bool {
        let add = |used: u64| used.checked_add(bytes).filter(|&n| n <= self.limit);
        let Ok(before) = self.used.fetch_update(Relaxed, Relaxed, add) else { return false };
        if self.within.as_ref().is_some_and(|all| !all.try_take(bytes)) {
            self.used.fetch_sub(bytes, Relaxed);
            return false;
        }
        self.took(before + bytes);
        true
    }

    fn force(&self, bytes: u64) {
        let mut budget = Some(self);
        while let Some(b) = budget {
            b.overrun.fetch_add(bytes, Relaxed);
            budget = b.within.as_deref();
        }
        self.take(bytes);
    }

    fn take(&self, bytes: u64) {
        if let Some(all) = &self.within {
            all.take(bytes);
        }
        let before = self.used.fetch_add(bytes, Relaxed);
        self.took(before + bytes);
    }

    fn took(&self, used: u64) {
        if used > self.peak.load(Relaxed) {
            self.peak.fetch_max(used, Relaxed);
        }
        if self.cached() > self.limit.saturating_sub(used)
            && let Some(trim) = self.trim.get()
        {
            trim(self.limit.saturating_sub(used));
        }
    }

    fn give(&self, bytes: u64) {
        self.used.fetch_sub(bytes, Relaxed);
        if let Some(all) = &self.within {
            all.give(bytes);
        }
        if let Some(released) = self.released.get() {
            released(());
        }
    }
}

/// A part of a budget that is counted separately.
#[derive(Debug)]
pub struct Account {
    quota: Arc<Quota>,
    used: AtomicU64,
    peak: AtomicU64,
}

impl Account {
    /// The budget.
    pub fn quota(&self) -> &Arc<Quota> {
        &self.quota
    }

    /// Bytes that this account holds, including chunks held by clients.
    pub fn used(&self) -> u64 {
        self.used.load(Relaxed)
    }

    /// Peak bytes of this account.
    pub fn peak(&self) -> u64 {
        self.peak.load(Relaxed)
    }

    /// Reserves bytes at once, or not at all.
    pub fn try_reserve(self: &Arc<Self>, bytes: u64) -> Option<Reservation> {
        if !self.quota.try_take(bytes) {
            return None;
        }
        self.took(bytes);
        Some(Reservation { account: self.clone(), bytes })
    }

    /// Reserves bytes for work outside of plans, at once or not at all. It never waits: the caller holds memory that
    /// others may wait for.
    ///
    /// # Errors
    /// [`Error::MemoryTaken`] if others hold the memory; [`Error::ResultTooLarge`] if the request and the bytes that
    /// the account holds exceed the limit.
    pub fn reserve(self: &Arc<Self>, bytes: u64) -> Result<Reservation, Error> {
        let quota = &self.quota;
        self.try_reserve(bytes).ok_or_else(|| {
            // All memory in use of a statement's budget is its own.
            let (own_bytes, all) = match &quota.within {
                Some(all) => (quota.used(), all),
                None => (self.used(), quota),
            };
            match own_bytes.saturating_add(bytes) {
                result_bytes if result_bytes > quota.limit() => {
                    Error::ResultTooLarge { result_bytes, limit_bytes: quota.limit() }
                }
                _ => Error::MemoryTaken {
                    wanted_bytes: bytes,
                    own_bytes,
                    used_bytes: all.used(),
                    limit_bytes: all.limit(),
                },
            }
        })
    }

    /// Returns an empty reservation, to be extended.
    pub fn nothing(self: &Arc<Self>) -> Reservation {
        Reservation { account: self.clone(), bytes: 0 }
    }

    fn took(&self, bytes: u64) {
        let used = self.used.fetch_add(bytes, Relaxed) + bytes;
        if used > self.peak.load(Relaxed) {
            self.peak.fetch_max(used, Relaxed);
        }
    }
}

/// Reserved bytes, released on drop.
#[derive(Debug)]
pub struct Reservation {
    account: Arc<Account>,
    bytes: u64,
}

/// Bytes that a live object occupies, released on drop.
pub type Charge = Reservation;

impl Reservation {
    /// The account that holds the reservation.
    pub fn account(&self) -> &Arc<Account> {
        &self.account
    }

    /// Reserved bytes left.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Splits a part off as a separate guard. Bytes that this reservation lacks are added to the budget even beyond
    /// the limit and counted in [`Quota::overrun`], since the memory is already in use.
    pub fn split(&mut self, bytes: u64) -> Charge {
        let missing = bytes.saturating_sub(self.bytes);
        if missing > 0 {
            self.account.quota.force(missing);
            self.account.took(missing);
            self.bytes += missing;
        }
        self.bytes -= bytes;
        Reservation { account: self.account.clone(), bytes }
    }

    /// Adds bytes, beyond the limit of the budget if need be: for memory that cannot wait and that the caller bounds.
    /// Plans wait until the budget has room again.
    pub fn extend(&mut self, bytes: u64) {
        self.account.quota.take(bytes);
        self.account.took(bytes);
        self.bytes += bytes;
    }

    /// Merges another reservation of the same account.
    pub fn join(&mut self, mut other: Reservation) {
        debug_assert!(Arc::ptr_eq(&self.account, &other.account), "reservations of one account");
        self.bytes += std::mem::take(&mut other.bytes);
    }

    /// Releases all but `bytes`; it never grows.
    pub fn shrink(&mut self, bytes: u64) {
        if bytes < self.bytes {
            drop(self.split(self.bytes - bytes));
        }
    }
}

impl Drop for Reservation {
    fn drop(&mut self) {
        if self.bytes > 0 {
            self.account.used.fetch_sub(self.bytes, Relaxed);
            self.account.quota.give(self.bytes);
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::panic, reason = "tests")]
    use super::*;

    #[test]
    fn reservations_are_all_or_nothing_and_go_back() {
        let quota = Quota::new(100);
        let account = quota.account();
        let mut r = account.try_reserve(70).unwrap();
        assert!(account.try_reserve(31).is_none());
        assert!(account.try_reserve(u64::MAX).is_none());
        let chunk = r.split(20);
        assert_eq!((r.bytes(), chunk.bytes(), quota.used()), (50, 20, 70));
        r.shrink(10);
        assert_eq!((quota.used(), account.used()), (30, 30));
        drop(r);
        assert_eq!(quota.used(), 20);
        drop(chunk);
        assert_eq!((quota.used(), account.used(), quota.peak(), quota.overrun()), (0, 0, 70, 0));
    }

    #[test]
    fn memory_that_others_hold_differs_from_memory_beyond_the_limit() {
        let quota = Quota::new(100);
        let (own, other) = (quota.account(), quota.account());
        let held = (own.reserve(40).unwrap(), other.reserve(50).unwrap());
        let Err(taken) = own.reserve(60) else { panic!("there are 10 left") };
        assert!(taken.may_fit(), "{taken}");
        assert_eq!(
            taken.to_string(),
            "out of memory: 60 bytes more needed by a statement that holds 40 bytes; 90 bytes of 100 bytes are in use"
        );
        let Err(never) = own.reserve(61) else { panic!("there are 10 left") };
        assert!(!never.may_fit(), "{never}");
        assert_eq!(
            never.to_string(),
            "a result needs 101 bytes, and the memory limit is 100 bytes"
        );
        assert_eq!((taken.code(), never.code()), ("memory_exceeded", "memory_exceeded"));
        drop(held);
        assert_eq!(quota.used(), 0);
    }

    #[test]
    fn a_budget_within_another_takes_from_both() {
        let all = Quota::new(100);
        let part = all.within(60);
        assert_eq!((part.limit(), all.within(200).limit()), (60, 100));
        let (own, other) = (part.account(), all.account());
        let mut held = own.try_reserve(50).unwrap();
        assert_eq!((part.used(), all.used()), (50, 50));
        // Exceeds the limit of the part, whatever the whole has free.
        let never = own.reserve(11).unwrap_err();
        assert_eq!(never.to_string(), "a result needs 61 bytes, and the memory limit is 60 bytes");
        // Fits the part, but others hold the memory; nothing stays reserved.
        let others = other.try_reserve(45).unwrap();
        let taken = own.reserve(10).unwrap_err();
        assert!(taken.may_fit(), "{taken}");
        assert_eq!((part.used(), all.used()), (50, 95));
        drop(others);
        let chunk = held.split(55);
        held.extend(7);
        assert_eq!((part.used(), all.used(), part.overrun(), all.overrun()), (62, 62, 5, 5));
        drop((held, chunk));
        assert_eq!((part.used(), all.used(), own.used()), (0, 0, 0));
        assert_eq!((part.peak(), all.peak()), (62, 95));
    }

    #[test]
    fn an_overrun_is_charged_and_counted() {
        let quota = Quota::new(100);
        let account = quota.account();
        let mut r = account.try_reserve(90).unwrap();
        let chunk = r.split(120);
        assert_eq!((quota.used(), quota.overrun(), r.bytes()), (120, 30, 0));
        drop((r, chunk));
        assert_eq!((quota.used(), account.used()), (0, 0));
    }
}
