//! The work that waits for workers: the signal by which their number can follow it.
//!
//! ```text
//!   waiting = operands that running statements have left on workers − threads of these workers, which run one each
//! ```
//! A task of rows counts as an operand.
//! A sample is taken several times a second and whenever the figures are asked for. Between samples the number of
//! waiting operands counts as constant.

use crate::drive::Drive;
use crate::rows::RowsPlan;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, Weak};
use std::time::Instant;
use tessera_planner::plan::StageId;
use tessera_storage::lock;

/// The work that waits for workers.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Waiting {
    /// Operands, and tasks of rows, of running statements that no thread runs yet.
    pub operands: u64,
    /// Approximate seconds that one thread needs for them.
    pub seconds: f64,
    /// The sum, over time, of waiting operands times the seconds that they waited.
    pub operand_seconds: f64,
}

/// The plans that run on workers, and the last sample.
#[derive(Debug, Default)]
pub(crate) struct Backlog(Mutex<Inner>);

#[derive(Debug, Default)]
struct Inner {
    plans: BTreeMap<String, Weak<Drive>>,
    rows: BTreeMap<String, Weak<RowsPlan>>,
    last: Waiting,
    at: Option<Instant>,
}

impl Backlog {
    /// Adds a plan. It is forgotten when it is dropped.
    pub(crate) fn add(&self, id: &str, plan: &Arc<Drive>) {
        let mut inner = lock(&self.0);
        inner.plans.retain(|_, plan| plan.strong_count() > 0);
        inner.plans.insert(id.to_owned(), Arc::downgrade(plan));
    }

    /// Adds the rows of a statement. They are forgotten when they are dropped.
    pub(crate) fn add_rows(&self, id: &str, rows: &Arc<RowsPlan>) {
        let mut inner = lock(&self.0);
        inner.rows.retain(|_, rows| rows.strong_count() > 0);
        inner.rows.insert(id.to_owned(), Arc::downgrade(rows));
    }

    /// The address of a worker that has the chunks of an operand of a plan.
    pub(crate) fn holder(&self, plan: &str, stage: StageId, number: u64) -> Option<String> {
        let plan = lock(&self.0).plans.get(plan).and_then(Weak::upgrade);
        plan?.holder(stage, number)
    }

    /// Keeps those plans that do not run.
    pub(crate) fn over(&self, plans: &mut Vec<String>) {
        let inner = lock(&self.0);
        plans.retain(|id| inner.plans.get(id).is_none_or(|plan| plan.strong_count() == 0));
    }

    /// Takes a sample. `threads` is the number of threads of the workers that get orders.
    pub(crate) fn sample(&self, threads: u64, now: Instant) -> Waiting {
        // The last owner of a plan drops it without the lock.
        let (plans, rows) = {
            let inner = lock(&self.0);
            let plans: Vec<Arc<Drive>> = inner.plans.values().filter_map(Weak::upgrade).collect();
            let rows: Vec<Arc<RowsPlan>> = inner.rows.values().filter_map(Weak::upgrade).collect();
            (plans, rows)
        };
        let left = plans.iter().map(|plan| plan.left()).chain(rows.iter().map(|rows| rows.left()));
        let (operands, seconds) = left.fold((0, 0.0), |all, of| (all.0 + of.0, all.1 + of.1));
        drop((plans, rows));
        lock(&self.0).sampled(operands, seconds, threads, now)
    }
}

impl Inner {
    fn sampled(&mut self, left: u64, left_s: f64, threads: u64, now: Instant) -> Waiting {
        let since = self.at.map_or(0.0, |at| now.saturating_duration_since(at).as_secs_f64());
        let operand_seconds = self.last.operand_seconds + self.last.operands as f64 * since;
        let operands = left.saturating_sub(threads);
        let seconds = left_s * operands as f64 / left.max(1) as f64;
        self.last = Waiting { operands, seconds, operand_seconds };
        self.at = Some(self.at.map_or(now, |at| at.max(now)));
        self.last
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn waiting_work_is_counted_over_time() {
        let (mut inner, start) = (Inner::default(), Instant::now());
        let at = |ms| start + Duration::from_millis(ms);
        let waiting =
            |operands, seconds, operand_seconds| Waiting { operands, seconds, operand_seconds };
        assert_eq!(inner.sampled(0, 0.0, 4, at(0)), waiting(0, 0.0, 0.0));
        // Four of ten run; the others wait for half a second.
        assert_eq!(inner.sampled(10, 20.0, 4, at(1000)), waiting(6, 12.0, 0.0));
        assert_eq!(inner.sampled(3, 6.0, 4, at(1500)), waiting(0, 0.0, 3.0));
        assert_eq!(inner.sampled(3, 6.0, 0, at(9500)), waiting(3, 6.0, 3.0));
        // A clock that goes back counts nothing twice.
        assert_eq!(inner.sampled(3, 6.0, 0, at(9000)), waiting(3, 6.0, 3.0));
        assert_eq!(inner.sampled(0, 0.0, 0, at(10_500)), waiting(0, 0.0, 6.0));
    }
}
