//! The progress of a statement: its state, its text, and the plans that run for it.

use super::StatementState;
use super::progress::{Plan, Progress, Totals, Watched};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;
use tessera_exec::schedule::Stats;
use tessera_frontend::secrets;

/// The progress of a statement, for watchers.
pub struct Track {
    created: Instant,
    tracked: Mutex<Tracked>,
}

/// The mutable part of a track.
struct Tracked {
    state: StatementState,
    ended: Option<Instant>,
    text: String,
    /// Number of this statement in the script, from 1, and the number of all.
    number: usize,
    count: usize,
    plans: Vec<Plan>,
    next_plan: u64,
    /// Sums of finished plans, for this statement of the script.
    totals: Totals,
    /// Progress that a remote server reported for its own statement.
    told: Option<Progress>,
}

impl Track {
    pub(super) fn new(created: Instant) -> Self {
        let tracked = Tracked {
            state: StatementState::Queued,
            ended: None,
            text: String::new(),
            number: 1,
            count: 1,
            plans: Vec::new(),
            next_plan: 0,
            totals: Totals::default(),
            told: None,
        };
        Track { created, tracked: Mutex::new(tracked) }
    }

    /// The current state.
    pub fn state(&self) -> StatementState {
        self.lock().state
    }

    /// Moves to `next`. Returns false, and does nothing, if the table does not allow it: an end state never changes.
    pub fn move_to(&self, next: StatementState) -> bool {
        let mut t = self.lock();
        if t.state == next {
            return !next.is_over();
        }
        if !t.state.may_become(next) {
            debug_assert!(t.state.is_over(), "{} does not become {next}", t.state);
            return false;
        }
        t.state = next;
        if next.is_over() {
            t.ended = Some(Instant::now());
        }
        true
    }

    /// Begins statement `number` of `count` of a script, counted from 1.
    pub(super) fn begin(&self, text: &str, number: usize, count: usize) {
        {
            let mut t = self.lock();
            t.text = secrets::hidden(text);
            (t.number, t.count) = (number, count);
            t.totals = Totals::default();
            t.told = None;
        }
        self.move_to(StatementState::Planning);
    }

    /// Sets the text of a queued statement.
    pub fn name(&self, text: &str) {
        self.lock().text = secrets::hidden(text);
    }

    /// The text of the running statement, without secrets.
    pub fn text(&self) -> String {
        self.lock().text.clone()
    }

    /// The current progress.
    pub fn progress(&self) -> Progress {
        let (mut progress, plans) = {
            let t = self.lock();
            let ended = t.ended.unwrap_or_else(Instant::now);
            let mut progress = match &t.told {
                Some(told) => Progress { state: t.state, ..told.clone() },
                None => t.totals.progress(t.state),
            };
            progress.statement = t.number;
            progress.statements = t.count;
            progress.elapsed_s = ended.saturating_duration_since(self.created).as_secs_f64();
            (progress, t.plans.clone())
        };
        // The scheduler's lock is not taken under ours.
        for plan in &plans {
            plan.add_to(&mut progress);
        }
        progress
    }

    /// The measurements of its plans, including running ones, as `GET /v1/statements/{id}/plan` returns them.
    pub fn measured(&self) -> serde_json::Value {
        let mut out = self.progress().to_json();
        if let (Some(out), serde_json::Value::Object(ran)) =
            (out.as_object_mut(), crate::session::measured_json(&self.ran()))
        {
            out.extend(ran);
        }
        out
    }

    /// The sums and the highest peak of the plans of the current or last statement of the script.
    pub(crate) fn ran(&self) -> Stats {
        let (mut totals, plans) = {
            let t = self.lock();
            (t.totals.clone(), t.plans.clone())
        };
        // The scheduler's lock is not taken under ours.
        for plan in &plans {
            if let Some(stats) = plan.stats() {
                totals.add(plan, &stats);
            }
        }
        totals.stats()
    }

    /// Adds a running plan. `stages` has the number of operands of each of its stages.
    pub fn plan(self: &Arc<Self>, watch: Arc<dyn Watched>, stages: Vec<u64>) -> PlanRuns {
        let number = {
            let mut t = self.lock();
            let number = t.next_plan;
            t.next_plan += 1;
            t.plans.push(Plan::new(number, watch, stages));
            number
        };
        self.move_to(StatementState::Running);
        PlanRuns { track: self.clone(), number }
    }

    /// Sets the progress that a remote server reported. This statement represents the remote one.
    pub fn tell(&self, progress: Progress) {
        let state = progress.state;
        self.lock().told = Some(progress);
        // The end is set by the code that runs this statement, once the answer has arrived.
        if !state.is_over() && state != StatementState::Queued {
            self.move_to(StatementState::Planning);
            self.move_to(state);
        }
    }

    /// Stores the counts of the running plans: they are reported after the end too.
    pub(super) fn remember(&self) {
        let plans = self.lock().plans.clone();
        plans.iter().for_each(|p| drop(p.stats()));
    }

    fn lock(&self) -> MutexGuard<'_, Tracked> {
        // Each change is complete before anything can panic.
        self.tracked.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A running plan of a statement, until it is finished or dropped.
pub struct PlanRuns {
    track: Arc<Track>,
    number: u64,
}

impl PlanRuns {
    /// Ends the plan: its counts become part of the finished ones.
    pub fn finish(self, stats: &Stats) {
        let mut t = self.track.lock();
        if let Some(at) = t.plans.iter().position(|p| p.number == self.number) {
            let plan = t.plans.remove(at);
            t.totals.add(&plan, stats);
        }
    }
}

impl Drop for PlanRuns {
    fn drop(&mut self) {
        let mut t = self.track.lock();
        if let Some(at) = t.plans.iter().position(|p| p.number == self.number) {
            let plan = t.plans.remove(at);
            t.totals.add_cut(&plan);
        }
    }
}
