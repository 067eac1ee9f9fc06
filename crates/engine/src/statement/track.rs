//! The progress of a statement: its state, its text, and the plans that run for it.

use super::StatementState;
use super::progress::{Plan, Progress, Totals, Watched};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;
use tessera_exec::schedule::Stats;
use tessera_frontend::secrets;

/// How far a statement is, as those see it who watch it.
pub struct Track {
    created: Instant,
    tracked: Mutex<Tracked>,
}

/// What changes while a statement lives.
struct Tracked {
    state: StatementState,
    /// When it came to its end.
    ended: Option<Instant>,
    text: String,
    /// Which statement of the script this is, from 1, and how many there are.
    number: usize,
    count: usize,
    /// Plans that run now.
    plans: Vec<Plan>,
    next_plan: u64,
    /// What plans that are over did, for this statement of the script.
    totals: Totals,
    /// What a server elsewhere tells of its own statement.
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

    /// Where it is in its life.
    pub fn state(&self) -> StatementState {
        self.lock().state
    }

    /// Goes on to `next`; false, and nothing happens, if the table does not allow it: an end stays what it is.
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

    /// A statement of a script begins: number `number`, from 1, of `count`.
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

    /// The text, for a statement that still waits.
    pub fn name(&self, text: &str) {
        self.lock().text = secrets::hidden(text);
    }

    /// The text of the statement that runs, without secrets.
    pub fn text(&self) -> String {
        self.lock().text.clone()
    }

    /// How far it is.
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

    /// What its plans measured, those that run as of now: `GET /v1/statements/{id}/plan` tells it.
    pub fn measured(&self) -> serde_json::Value {
        let mut out = self.progress().to_json();
        if let (Some(out), serde_json::Value::Object(ran)) =
            (out.as_object_mut(), crate::session::measured_json(&self.ran()))
        {
            out.extend(ran);
        }
        out
    }

    /// What the plans of the statement of the script did that runs, or ran last: sums, and the highest peak.
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

    /// A plan runs now. `stages` has the number of operands of each of its stages.
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

    /// What a server elsewhere tells of the statement that this one stands for.
    pub fn tell(&self, progress: Progress) {
        let state = progress.state;
        self.lock().told = Some(progress);
        // The end is told by whoever runs this one, once the answer is here as well.
        if !state.is_over() && state != StatementState::Queued {
            self.move_to(StatementState::Planning);
            self.move_to(state);
        }
    }

    /// Remembers how far the plans that run have come: it is told after the end too.
    pub(super) fn remember(&self) {
        let plans = self.lock().plans.clone();
        plans.iter().for_each(|p| drop(p.stats()));
    }

    fn lock(&self) -> MutexGuard<'_, Tracked> {
        // Each change is complete before anything can panic.
        self.tracked.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A plan of a statement, until it is over or dropped.
pub struct PlanRuns {
    track: Arc<Track>,
    number: u64,
}

impl PlanRuns {
    /// The plan is over: what it did counts from now on as done.
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
