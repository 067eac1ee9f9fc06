//! What workers ran when they died.
//!
//! ```text
//!   a worker dies ─▶ a case: its operands are suspect ─▶ told again, alone on a worker ─▶ they end: the case is closed
//!                                                                                     └▶ it dies too: one more case
//! ```
//! Of three open cases at a time the statement is the cause, if nothing else can be that of one of them. A worker
//! that is lost for other reasons leaves a case that is soon closed, however many are lost in the time of a statement.

use std::collections::BTreeMap;
use tessera_planner::plan::StageId;
use tessera_planner::recover::Bitmap;

/// Open cases that make a statement poison.
const CASES_MAX: usize = 3;

/// Open cases, by the worker that died.
#[derive(Default)]
pub(super) struct Suspects {
    cases: BTreeMap<u32, Case>,
    closed: Vec<u32>,
}

/// Operands that a worker ran when it died.
#[derive(Default)]
struct Case {
    ran: BTreeMap<StageId, Bitmap>,
    /// Its process ended, or it ran nothing else: a machine that falls silent has mostly other reasons.
    is_crash: bool,
}

impl Suspects {
    /// A worker died while it ran an order.
    pub(super) fn died(&mut self, worker: u32, ran: &[(StageId, Bitmap)], is_crash: bool) {
        let case = self.cases.entry(worker).or_default();
        case.is_crash |= is_crash;
        ran.iter().for_each(|(stage, numbers)| case.ran.entry(*stage).or_default().extend(numbers));
    }

    /// Operands that ended well.
    pub(super) fn acquit(&mut self, ran: &[(StageId, Bitmap)]) {
        for (stage, numbers) in ran {
            let cases = self.cases.values_mut().filter_map(|case| case.ran.get_mut(stage));
            cases.for_each(|ran| {
                numbers.iter().for_each(|number| {
                    ran.remove(number);
                });
            });
        }
        self.close();
    }

    /// Those that need not run again are no suspects.
    pub(super) fn retain(&mut self, runs: impl Fn(StageId, u64) -> bool) {
        for case in self.cases.values_mut() {
            for (stage, ran) in &mut case.ran {
                *ran = ran.iter().filter(|number| runs(*stage, *number)).collect();
            }
        }
        self.close();
    }

    fn close(&mut self) {
        self.cases.retain(|worker, case| {
            let is_open = case.ran.values().any(|ran| !ran.is_empty());
            if !is_open {
                self.closed.push(*worker);
            }
            is_open
        });
    }

    /// The workers of cases that were closed since this was asked last.
    pub(super) fn closed(&mut self) -> Vec<u32> {
        std::mem::take(&mut self.closed)
    }

    /// The workers of open cases.
    pub(super) fn open(&self) -> impl Iterator<Item = u32> + '_ {
        self.cases.keys().copied()
    }

    /// True if one more death would be one too many.
    pub(super) fn is_full(&self) -> bool {
        self.cases.len() >= CASES_MAX
    }

    /// True if there are none.
    pub(super) fn is_empty(&self) -> bool {
        self.cases.is_empty()
    }

    /// True if an operand is told alone.
    pub(super) fn has(&self, stage: StageId, number: u64) -> bool {
        self.cases.values().any(|case| case.ran.get(&stage).is_some_and(|ran| ran.contains(number)))
    }

    /// Orders of suspects that may run at a time, on a worker each: should all of these die, there are enough cases.
    pub(super) fn at_a_time(&self) -> usize {
        CASES_MAX.saturating_sub(self.cases.len()).max(1)
    }

    /// True if the next death may be the last one: nothing that is not suspect begins until these have ended.
    pub(super) fn are_first(&self) -> bool {
        self.cases.len() + 1 >= CASES_MAX
    }

    /// How many workers died of the statement, if it is poison; `is_to_blame` if nothing else can be for a death.
    pub(super) fn poison(&self, is_to_blame: impl Fn(u32) -> bool) -> Option<usize> {
        let is_sure = |(worker, case): (&u32, &Case)| case.is_crash && is_to_blame(*worker);
        (self.is_full() && self.cases.iter().any(is_sure)).then_some(self.cases.len())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(numbers: std::ops::Range<u64>) -> Vec<(StageId, Bitmap)> {
        vec![(StageId(1), numbers.collect())]
    }

    #[test]
    fn workers_that_are_lost_now_and_then_are_no_poison() {
        let mut suspects = Suspects::default();
        for worker in 0..20 {
            let at = u64::from(worker) * 10;
            suspects.died(worker, &run(at..at + 10), true);
            assert!(suspects.has(StageId(1), at + 9) && !suspects.has(StageId(1), at + 10));
            assert_eq!((suspects.at_a_time(), suspects.poison(|_| true)), (2, None));
            // They end in two orders, and what was made by somebody else need not run.
            suspects.acquit(&run(at..at + 4));
            assert!(suspects.has(StageId(1), at + 4));
            suspects.retain(|_, number| number < at + 7);
            suspects.acquit(&run(at + 4..at + 7));
            assert_eq!((suspects.at_a_time(), suspects.are_first()), (3, false));
        }
    }

    #[test]
    fn three_open_cases_are_poison_if_one_is_sure() {
        let mut suspects = Suspects::default();
        suspects.died(1, &run(0..4), false);
        assert!(!suspects.are_first());
        suspects.died(2, &run(4..8), false);
        assert!(suspects.are_first());
        suspects.died(2, &run(8..9), false);
        suspects.died(3, &run(9..12), false);
        // All of them had another statement's orders too: one is told alone.
        assert_eq!((suspects.poison(|_| false), suspects.at_a_time()), (None, 1));
        assert_eq!(suspects.poison(|_| true), None, "they fell silent");
        suspects.died(4, &run(0..4), true);
        assert_eq!(suspects.poison(|worker| worker == 4), Some(4));
        assert!(suspects.closed().is_empty());
        // The other statement's suspects end, and it goes on.
        suspects.acquit(&run(0..12));
        assert_eq!((suspects.poison(|_| true), suspects.at_a_time()), (None, 3));
        assert_eq!((suspects.closed(), suspects.closed()), (vec![1, 2, 3, 4], vec![]));
    }
}
