//! Admission of orders to workers: an order with suspects gets a worker for itself, so that a death has one cause.
//!
//! If a worker with several plans dies, each plan may be the cause until the operands it ran there have ended well
//! elsewhere. The last plan left is the cause, and need not kill another worker to be identified. So the least likely
//! cause is tested first: deaths follow soon after the start of the order that causes them.

use crate::registry::Registry;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Instant;
use tessera_storage::lock;
use tokio::sync::{OwnedRwLockReadGuard, OwnedRwLockWriteGuard, RwLock};

/// The orders of all workers.
#[derive(Debug, Default)]
pub(crate) struct WorkerSlots(Mutex<BTreeMap<u32, Arc<Slot>>>);

#[derive(Debug, Default)]
struct Slot {
    gate: Arc<RwLock<()>>,
    running: Mutex<Running>,
}

#[derive(Debug, Default)]
struct Running {
    /// Running orders by plan, with the start of the last one.
    plans: BTreeMap<String, (u32, Instant)>,
    /// The plans that may be the cause of its death, with the start of their last orders.
    blamed: Option<BTreeMap<String, Instant>>,
}

/// A running order, until it is dropped.
#[derive(Debug)]
pub(crate) struct Stay {
    slot: Arc<Slot>,
    plan: String,
    _gate: Gate,
}

#[derive(Debug)]
enum Gate {
    Shared(#[allow(dead_code, reason = "held")] OwnedRwLockReadGuard<()>),
    Alone(#[allow(dead_code, reason = "held")] OwnedRwLockWriteGuard<()>),
}

impl WorkerSlots {
    fn slot(&self, worker: u32) -> Arc<Slot> {
        let mut slots = lock(&self.0);
        slots.entry(worker).or_default().clone()
    }

    /// Waits until an order may run: with others, or alone on the worker.
    pub(crate) async fn enter(&self, worker: u32, plan: &str, alone: bool) -> Stay {
        let slot = self.slot(worker);
        let gate = match alone {
            true => Gate::Alone(slot.gate.clone().write_owned().await),
            false => Gate::Shared(slot.gate.clone().read_owned().await),
        };
        let now = Instant::now();
        let mut running = lock(&slot.running);
        let (orders, last) = running.plans.entry(plan.to_owned()).or_insert((0, now));
        (*orders, *last) = (*orders + 1, now);
        drop(running);
        Stay { slot, plan: plan.to_owned(), _gate: gate }
    }

    /// Number of orders that run on a worker, of all plans.
    pub(crate) fn orders(&self, worker: u32) -> u32 {
        let slots = lock(&self.0);
        let slot = slots.get(&worker);
        slot.map_or(0, |slot| lock(&slot.running).plans.values().map(|(orders, _)| orders).sum())
    }

    /// Records the death of a worker. The first caller sees all of its plans: none leaves before that.
    pub(crate) fn died(&self, worker: u32) {
        let slot = self.slot(worker);
        let running = &mut *lock(&slot.running);
        let plans =
            || running.plans.iter().map(|(plan, (_, last))| (plan.clone(), *last)).collect();
        running.blamed.get_or_insert_with(plans);
    }

    /// True if only this plan can be the cause of a worker's death.
    pub(crate) fn is_to_blame(&self, worker: u32, plan: &str) -> bool {
        let slot = self.slot(worker);
        let running = lock(&slot.running);
        running.blamed.as_ref().is_some_and(|b| b.len() == 1 && b.contains_key(plan))
    }

    /// True if no other plan is a less likely cause.
    pub(crate) fn is_first(&self, worker: u32, plan: &str) -> bool {
        let slot = self.slot(worker);
        let running = lock(&slot.running);
        let Some(blamed) = &running.blamed else { return true };
        blamed.get(plan).is_none_or(|own| blamed.iter().all(|(p, last)| (own, plan) <= (last, p)))
    }

    /// Clears a plan: its operands on the dead workers have ended well elsewhere.
    pub(crate) fn acquit(&self, workers: Vec<u32>, plan: &str) {
        for worker in workers {
            if let Some(blamed) = &mut lock(&self.slot(worker).running).blamed {
                blamed.remove(plan);
            }
        }
    }

    /// Ends the search for a cause: it is known, or no plan is left that could show it.
    pub(crate) fn close(&self, worker: u32) {
        lock(&self.slot(worker).running).blamed = Some(BTreeMap::new());
    }

    /// Forgets workers that the registry has forgotten.
    pub(crate) fn prune(&self, registry: &Registry) {
        let mut slots = lock(&self.0);
        slots.retain(|worker, _| registry.member(*worker).is_some());
    }
}

impl Drop for Stay {
    fn drop(&mut self) {
        let mut running = lock(&self.slot.running);
        if let Some((orders, _)) = running.plans.get_mut(&self.plan) {
            *orders -= 1;
            if *orders == 0 {
                running.plans.remove(&self.plan);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]
    use super::*;
    use futures::FutureExt;

    #[tokio::test]
    async fn an_exclusive_statement_runs_alone() {
        let slots = WorkerSlots::default();
        let (a, b) = (slots.enter(1, "a", false).await, slots.enter(1, "b", false).await);
        assert_eq!((slots.orders(1), slots.orders(2)), (2, 0));
        let mut alone = Box::pin(slots.enter(1, "c", true));
        assert!(alone.as_mut().now_or_never().is_none());
        // No order overtakes a waiting one; other workers are independent.
        let mut late = Box::pin(slots.enter(1, "a", false));
        assert!(late.as_mut().now_or_never().is_none());
        assert!(slots.enter(2, "a", true).now_or_never().is_some());
        drop((a, b));
        assert_eq!(slots.orders(1), 0);
        let alone = alone.now_or_never().unwrap();
        assert!(late.as_mut().now_or_never().is_none());
        slots.died(1);
        assert!(slots.is_to_blame(1, "c"));
        drop(alone);
        assert!(late.now_or_never().is_some());
    }

    #[tokio::test]
    async fn a_death_records_the_plans_of_its_moment() {
        let slots = WorkerSlots::default();
        let (a, b) = (slots.enter(1, "a", false).await, slots.enter(1, "b", false).await);
        slots.died(1);
        drop(a);
        // The second caller sees the same plans.
        slots.died(1);
        drop(b);
        assert!(!slots.is_to_blame(1, "a") && !slots.is_to_blame(1, "b"));
        // The order of "b" began later.
        assert!(slots.is_first(1, "a") && !slots.is_first(1, "b"));
        slots.acquit(vec![1], "a");
        assert!(slots.is_to_blame(1, "b") && slots.is_first(1, "b"));
        slots.close(1);
        assert!(!slots.is_to_blame(1, "b") && slots.is_first(1, "b"));
        let two = (slots.enter(2, "a", false).await, slots.enter(2, "a", false).await);
        slots.died(2);
        assert!(slots.is_to_blame(2, "a"));
        drop(two);
    }
}
