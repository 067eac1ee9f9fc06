//! Operands that workers ran when they died.
//!
//! ```text
//!   a worker dies ─▶ a case: its operands are suspect ─▶ run again, alone on a worker ─▶ they end: the case is closed
//!                                                                                    └▶ it dies too: one more case
//! ```
//! Workers that die together have one cause: a rack, a switch, a rollout, or an order that all of them ran. So these
//! cases are one incident. If three incidents are open at the same time, the statement is the cause, provided that
//! nothing else can be the cause of one of the deaths. Workers that are lost for other reasons leave cases that are
//! soon closed, however many are lost while a statement runs.

use crate::registry::{Registry, WorkerState};
use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};
use tessera_exec::error::Error;
use tessera_planner::error::Class;
use tessera_planner::plan::StageId;
use tessera_planner::recover::Bitmap;

/// Open incidents that make a statement poison.
const INCIDENTS_MAX: usize = 3;

/// Open cases, by the worker that died.
#[derive(Default)]
pub(crate) struct Suspects {
    cases: BTreeMap<u32, Case>,
    closed: Vec<u32>,
    incidents: u32,
}

/// A worker that died while it ran an order.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Died {
    pub(crate) worker: u32,
    /// When the worker was found to be lost, and when it had joined.
    pub(crate) at: Instant,
    pub(crate) joined: Instant,
    /// Its process ended, or it ran nothing else: a machine that falls silent mostly has other reasons.
    pub(crate) is_crash: bool,
    /// The worker ran only suspects while other workers survived: its death is an incident of its own.
    pub(crate) is_single: bool,
}

impl Died {
    /// Describes the death of a worker at a moment. `alone`: the worker ran only suspects; `others_live`: another
    /// worker survived the moment. Returns `None` if the worker left or was asked to restart: it did not die of what it
    /// ran.
    pub(crate) fn of(
        registry: &Registry,
        worker: u32,
        at: Instant,
        alone: bool,
        others_live: bool,
    ) -> Option<Self> {
        let member = registry.member(worker);
        if member.as_ref().is_some_and(|m| m.state == WorkerState::Left) {
            return None;
        }
        let dead_after = registry.limits().dead_after;
        let is_silent =
            member.as_ref().is_none_or(|m| at.saturating_duration_since(m.heard) > dead_after);
        Some(Died {
            worker,
            at,
            joined: member.map_or(at, |m| m.joined),
            is_crash: alone || !is_silent,
            is_single: alone && others_live,
        })
    }
}

/// The event of a statement that killed workers, in words.
pub(crate) fn poison_detail(deaths: usize) -> String {
    format!("{deaths} workers died while they worked for it")
}

/// The error of a statement that killed workers.
pub(crate) fn poisoned(deaths: usize) -> Error {
    let message = format!("{}; it is not tried again", poison_detail(deaths));
    let hint = "see why they died (memory?): `GET /v1/cluster` has the events";
    Error::reported("poison", Class::Limit, message, Some(hint.into()))
}

/// Operands that a worker ran when it died.
#[derive(Default)]
struct Case {
    ran: BTreeMap<StageId, Bitmap>,
    is_crash: bool,
    incident: u32,
    /// When the incident began, if other deaths may belong to it.
    shared: Option<Instant>,
}

impl Suspects {
    /// Adds the death of a worker while it ran an order. It belongs to the incident of other deaths `within` this time,
    /// if the worker had joined before the first of them.
    pub(crate) fn died(&mut self, died: Died, ran: &[(StageId, Bitmap)], within: Duration) {
        let Died { worker, at, joined, is_crash, is_single } = died;
        if !self.cases.contains_key(&worker) {
            let is_one = |first: Instant| {
                joined <= first && at.max(first).duration_since(at.min(first)) <= within
            };
            let with =
                self.cases.values().find(|case| !is_single && case.shared.is_some_and(is_one));
            let (incident, shared) = match with {
                Some(case) => (case.incident, case.shared),
                None => {
                    self.incidents += 1;
                    (self.incidents, (!is_single).then_some(at))
                }
            };
            self.cases.insert(worker, Case { incident, shared, ..Case::default() });
        }
        let Some(case) = self.cases.get_mut(&worker) else { return };
        case.is_crash |= is_crash;
        ran.iter().for_each(|(stage, numbers)| case.ran.entry(*stage).or_default().extend(numbers));
    }

    fn open_incidents(&self) -> usize {
        self.cases.values().map(|case| case.incident).collect::<BTreeSet<u32>>().len()
    }

    /// Clears operands that ended well.
    pub(crate) fn acquit(&mut self, ran: &[(StageId, Bitmap)]) {
        for (stage, numbers) in ran {
            let cases = self.cases.values_mut().filter_map(|case| case.ran.get_mut(stage));
            cases.for_each(|ran| ran.remove_all(numbers));
        }
        self.close();
    }

    /// Drops suspects that are not `left` to run.
    pub(crate) fn retain(&mut self, left: &[Bitmap]) {
        for case in self.cases.values_mut() {
            for (stage, ran) in &mut case.ran {
                *ran = left.get(stage.0 as usize).map(|left| left.and(ran)).unwrap_or_default();
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

    /// The workers of cases that were closed since the last call.
    pub(crate) fn closed(&mut self) -> Vec<u32> {
        std::mem::take(&mut self.closed)
    }

    pub(crate) fn open(&self) -> impl Iterator<Item = u32> + '_ {
        self.cases.keys().copied()
    }

    /// True if one more death would be one too many.
    pub(crate) fn is_full(&self) -> bool {
        self.open_incidents() >= INCIDENTS_MAX
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.cases.is_empty()
    }

    /// The given operands of a stage that have to run alone.
    pub(crate) fn among(&self, stage: StageId, numbers: &Bitmap) -> Bitmap {
        let mut found = Bitmap::default();
        let all = self.cases.values().filter_map(|case| case.ran.get(&stage));
        all.for_each(|ran| found.extend(&ran.and(numbers)));
        found
    }

    /// Upper bound on concurrent orders of suspects, each on its own worker: if all of these die, there are enough
    /// incidents.
    pub(crate) fn at_a_time(&self) -> usize {
        INCIDENTS_MAX.saturating_sub(self.open_incidents()).max(1)
    }

    /// True if the next death may be the last one: other operands wait until the suspects have ended.
    pub(crate) fn are_first(&self) -> bool {
        self.open_incidents() + 1 >= INCIDENTS_MAX
    }

    /// Number of workers that died of the statement, if it is poison; `is_to_blame` if nothing else can be the cause of
    /// a death.
    pub(crate) fn poison(&self, is_to_blame: impl Fn(u32) -> bool) -> Option<usize> {
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

    fn has(suspects: &Suspects, number: u64) -> bool {
        !suspects.among(StageId(1), &[number].into_iter().collect()).is_empty()
    }

    const WITHIN: Duration = Duration::from_secs(5);

    /// A worker that joined at second `joined` of a clock and died at second `at`.
    fn death(clock: Instant, worker: u32, joined: u64, at: u64) -> Died {
        let moment = |s| clock + Duration::from_secs(s);
        let (at, joined) = (moment(at), moment(joined));
        Died { worker, at, joined, is_crash: true, is_single: false }
    }

    #[test]
    fn workers_that_are_lost_now_and_then_are_no_poison() {
        let (mut suspects, clock) = (Suspects::default(), Instant::now());
        for worker in 0..20 {
            let at = u64::from(worker) * 10;
            suspects.died(death(clock, worker, 0, at), &run(at..at + 10), WITHIN);
            assert!(has(&suspects, at + 9) && !has(&suspects, at + 10));
            assert_eq!((suspects.at_a_time(), suspects.poison(|_| true)), (2, None));
            // Two orders run operands of the suspect; operands that another worker computed need not run.
            suspects.acquit(&run(at..at + 4));
            assert!(has(&suspects, at + 4));
            suspects.retain(&[Bitmap::default(), (0..at + 7).collect()]);
            suspects.acquit(&run(at + 4..at + 7));
            assert_eq!((suspects.at_a_time(), suspects.are_first()), (3, false));
        }
    }

    #[test]
    fn three_open_incidents_are_poison_if_one_is_sure() {
        let (mut suspects, clock) = (Suspects::default(), Instant::now());
        let silent = |worker, at| Died { is_crash: false, ..death(clock, worker, 0, at) };
        suspects.died(silent(1, 0), &run(0..4), WITHIN);
        assert!(!suspects.are_first());
        suspects.died(silent(2, 10), &run(4..8), WITHIN);
        assert!(suspects.are_first());
        suspects.died(silent(2, 20), &run(8..9), WITHIN);
        suspects.died(silent(3, 20), &run(9..12), WITHIN);
        // All of them had another statement's orders too: suspects run one at a time.
        assert_eq!((suspects.poison(|_| false), suspects.at_a_time()), (None, 1));
        assert_eq!(suspects.poison(|_| true), None, "they fell silent");
        suspects.died(death(clock, 4, 0, 30), &run(0..4), WITHIN);
        assert_eq!(suspects.poison(|worker| worker == 4), Some(4));
        assert!(suspects.closed().is_empty());
        // The other statement's suspects end, and it goes on.
        suspects.acquit(&run(0..12));
        assert_eq!((suspects.poison(|_| true), suspects.at_a_time()), (None, 3));
        assert_eq!((suspects.closed(), suspects.closed()), (vec![1, 2, 3, 4], vec![]));
    }

    #[test]
    fn workers_that_die_together_are_one_incident() {
        let (mut suspects, clock) = (Suspects::default(), Instant::now());
        for worker in 0..40 {
            let at = u64::from(worker);
            suspects.died(death(clock, worker, 0, at / 8), &run(at..at + 1), WITHIN);
        }
        assert_eq!((suspects.at_a_time(), suspects.poison(|_| true)), (2, None));
        assert!(has(&suspects, 39));
        // A worker that joined later does not belong to the incident. A worker that ran only suspects is an incident of
        // its own.
        suspects.died(death(clock, 50, 3, 4), &run(0..1), WITHIN);
        assert_eq!((suspects.at_a_time(), suspects.poison(|_| true)), (1, None));
        let single = Died { is_single: true, ..death(clock, 51, 0, 4) };
        suspects.died(single, &run(1..2), WITHIN);
        assert_eq!(suspects.poison(|_| true), Some(42));
    }

    #[test]
    fn the_only_worker_dies_three_times_at_most() {
        let (mut suspects, clock) = (Suspects::default(), Instant::now());
        for (n, worker) in [1, 2, 3].into_iter().enumerate() {
            assert_eq!(suspects.poison(|_| true), None);
            let at = n as u64;
            suspects.died(death(clock, worker, at, at), &run(0..4), WITHIN);
        }
        // Each of them joined after the one before had died, and soon after.
        assert_eq!(suspects.poison(|_| true), Some(3));
    }
}
