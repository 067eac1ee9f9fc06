//! A statement as something that can be named, watched and stopped.
//!
//! The life of a statement:
//!
//! ```text
//!   QUEUED ◀─▶ PLANNING ◀─▶ RUNNING ─▶ FINISHED
//!      │         │  └─────────┼─────▶ FINISHED
//!      └─────────┴────────────┴─────▶ FAILED, CANCELLED
//! ```
//! 1. Who wants an answer makes a [`Handle`] and gives it to [`crate::engine::Engine::run`].
//! 2. The engine enters it into the [`Queries`] of its process, so that `SHOW QUERIES` and `CANCEL QUERY` know it.
//! 3. Where places are few, a statement that takes more than a moment is QUEUED again once that is known, until it has
//!    one ([`Handle::take_place`]). It goes back from RUNNING to PLANNING when the next statement of a script begins, or when something had to be
//!    computed before the rest could be planned.
//! 4. While plans run, [`Handle::progress`] asks the scheduler for its counts; nothing is estimated but the time left.
//! 5. [`Handle::cancel`] may be called by anybody at any time; the end comes soon after.

mod lasting;
mod progress;
mod queries;
mod reads;
mod recipe;
#[cfg(test)]
mod tests;

pub use progress::{Progress, Watched};
pub use queries::{COLUMNS, Entered, Queries};
pub(crate) use recipe::{Intent, Keeper, Made, Recipe, Step};

use crate::error::Error;
use crate::session::{Admission, Pin, Place};
use progress::{Plan, Totals};
use recipe::Noted;
use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant};
use tessera_exec::durable::{Did, Durable, DurableStore};
use tessera_exec::quota::Quota;
use tessera_exec::schedule::Stats;
use tessera_frontend::secrets;
use tessera_planner::durable::Durability;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio_util::sync::CancellationToken;

/// How exactly a statement's time is kept.
const TICK: Duration = Duration::from_millis(10);

/// Where a statement is in its life.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum State {
    /// It waits for a place among those that run.
    Queued,
    /// It is read, bound and planned.
    Planning,
    /// Its operands run.
    Running,
    /// Its answer is there.
    Finished,
    /// It ended with an error.
    Failed,
    /// It was stopped.
    Cancelled,
}

impl State {
    /// All states.
    pub const ALL: [State; 6] = [
        State::Queued,
        State::Planning,
        State::Running,
        State::Finished,
        State::Failed,
        State::Cancelled,
    ];

    /// The name in answers.
    pub fn name(self) -> &'static str {
        match self {
            State::Queued => "QUEUED",
            State::Planning => "PLANNING",
            State::Running => "RUNNING",
            State::Finished => "FINISHED",
            State::Failed => "FAILED",
            State::Cancelled => "CANCELLED",
        }
    }

    /// The state of that name.
    pub fn parse(name: &str) -> Option<State> {
        State::ALL.into_iter().find(|s| s.name() == name)
    }

    /// The end that an error is.
    pub fn of_error(error: &Error) -> State {
        if error.code() == "cancelled" { State::Cancelled } else { State::Failed }
    }

    /// True for the states that nothing follows.
    pub fn is_over(self) -> bool {
        matches!(self, State::Finished | State::Failed | State::Cancelled)
    }

    /// The transition table.
    pub const fn may_become(self, next: State) -> bool {
        use State::*;
        matches!(
            (self, next),
            (Queued, Planning | Failed | Cancelled)
                | (Planning, Queued | Running | Finished | Failed | Cancelled)
                | (Running, Planning | Finished | Failed | Cancelled)
        )
    }
}

impl fmt::Display for State {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// What those who wait for a statement share with the engine that runs it. Clones are the same statement.
#[derive(Clone)]
pub struct Handle(Arc<Inner>);

struct Inner {
    id: String,
    cancel: CancellationToken,
    created: Instant,
    tracked: Mutex<Tracked>,
    noted: Mutex<Noted>,
    /// The place that it has among those that run.
    place: tokio::sync::Mutex<Option<OwnedSemaphorePermit>>,
    /// The time that all of it may take, if that is limited.
    deadline: OnceLock<Deadline>,
}

/// So much time from a moment on, at which it had waited so long for a place.
pub(super) struct Deadline {
    started: Instant,
    waited: Duration,
    limit: Duration,
}

/// What changes while a statement lives.
struct Tracked {
    state: State,
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
    /// The memory that the statement of the script may take, if that is limited.
    budget: Option<Arc<Quota>>,
}

impl Default for Handle {
    fn default() -> Self {
        Handle::new()
    }
}

impl fmt::Debug for Handle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Handle").field("id", &self.0.id).field("state", &self.state()).finish()
    }
}

impl Handle {
    /// A statement that waits for its turn.
    pub fn new() -> Self {
        Handle::with(new_id(), CancellationToken::new(), Recipe::default())
    }

    /// A statement that is cancelled with `parent`.
    pub fn below(parent: &CancellationToken) -> Self {
        Handle::with(new_id(), parent.child_token(), Recipe::default())
    }

    /// Another statement, which is cancelled with this one.
    pub(crate) fn another(&self) -> Self {
        Handle::below(&self.0.cancel)
    }

    /// A statement that was known before, with what it was bound to.
    pub(crate) fn again(id: String, parent: &CancellationToken, recipe: Recipe) -> Self {
        let handle = Handle::with(id, parent.child_token(), recipe);
        handle.noted().again = true;
        handle
    }

    /// A part of this one with another recipe, which is planned and run for it: it is cancelled with it.
    pub(crate) fn part(&self, recipe: Recipe) -> Self {
        let part = Handle::with(self.0.id.clone(), self.0.cancel.child_token(), recipe);
        part.lock().budget.clone_from(&self.lock().budget);
        part.move_to(State::Planning);
        part
    }

    /// What it was bound to when it ran before.
    pub(crate) fn before(&self) -> Option<Recipe> {
        let noted = self.noted();
        noted.again.then(|| noted.recipe.clone())
    }

    fn with(id: String, cancel: CancellationToken, recipe: Recipe) -> Self {
        Handle(Arc::new(Inner {
            id,
            cancel,
            place: tokio::sync::Mutex::default(),
            deadline: OnceLock::new(),
            noted: Mutex::new(Noted { recipe, ..Noted::default() }),
            created: Instant::now(),
            tracked: Mutex::new(Tracked {
                state: State::Queued,
                ended: None,
                text: String::new(),
                number: 1,
                count: 1,
                plans: Vec::new(),
                next_plan: 0,
                totals: Totals::default(),
                told: None,
                budget: None,
            }),
        }))
    }

    /// Its name: 32 hexadecimal digits that nobody can guess.
    pub fn id(&self) -> &str {
        &self.0.id
    }

    /// Asks it to stop; once is enough, and after its end it does nothing.
    pub fn cancel(&self) {
        // How far it came is told after its end too.
        if !self.is_cancelled() {
            let plans = self.lock().plans.clone();
            plans.iter().for_each(|p| drop(p.stats()));
        }
        self.0.cancel.cancel();
    }

    /// Asks it to stop for good: when this is over, no later server runs it again.
    ///
    /// # Errors
    /// Whatever storage says: it stops, and a later server may run it again.
    pub(crate) async fn stop(&self) -> Result<(), Error> {
        self.cancel();
        let keeper = self.noted().keeper.clone();
        match keeper {
            Some(keeper) => keeper.stopped().await,
            None => Ok(()),
        }
    }

    /// True once it was asked to stop.
    pub fn is_cancelled(&self) -> bool {
        self.0.cancel.is_cancelled()
    }

    /// Waits until it is asked to stop.
    pub async fn cancelled(&self) {
        self.0.cancel.cancelled().await;
    }

    /// Where it is in its life.
    pub fn state(&self) -> State {
        self.lock().state
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
            progress.elapsed_s = ended.saturating_duration_since(self.0.created).as_secs_f64();
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

    /// Goes on to `next`; false, and nothing happens, if the table does not allow it: an end stays what it is.
    pub fn move_to(&self, next: State) -> bool {
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
    pub fn begin(&self, text: &str, number: usize, count: usize) {
        {
            let mut t = self.lock();
            t.text = secrets::hidden(text);
            (t.number, t.count) = (number, count);
            t.totals = Totals::default();
            t.told = None;
            t.budget = None;
        }
        self.move_to(State::Planning);
    }

    /// The statement of the script takes its memory from a budget of at most `bytes` within that of `all`, from now on.
    pub(crate) fn takes_at_most(&self, bytes: u64, all: &Arc<Quota>) {
        self.lock().budget = Some(all.within(bytes));
    }

    /// The statement's own budget; `None` if it may take all there is.
    pub(crate) fn budget(&self) -> Option<Arc<Quota>> {
        self.lock().budget.clone()
    }

    /// The text, for a statement that still waits.
    pub fn name(&self, text: &str) {
        self.lock().text = secrets::hidden(text);
    }

    /// A plan runs now. `stages` has the number of operands of each of its stages.
    pub fn plan(&self, watch: Arc<dyn Watched>, stages: Vec<u64>) -> PlanRuns {
        let number = {
            let mut t = self.lock();
            let number = t.next_plan;
            t.next_plan += 1;
            t.plans.push(Plan::new(number, watch, stages));
            number
        };
        self.move_to(State::Running);
        PlanRuns { handle: self.clone(), number }
    }

    /// What a server elsewhere tells of the statement that this one stands for.
    pub fn tell(&self, progress: Progress) {
        let state = progress.state;
        self.lock().told = Some(progress);
        // The end is told by whoever runs this one, once the answer is here as well.
        if !state.is_over() && state != State::Queued {
            self.move_to(State::Planning);
            self.move_to(state);
        }
    }

    /// What the statement of the script that runs was bound to, to be read or added to.
    pub(crate) fn step<T>(&self, f: impl FnOnce(&mut Step) -> T) -> T {
        let at = self.lock().number - 1;
        f(self.noted().recipe.step(at))
    }

    /// What it was bound to until now.
    pub(crate) fn recipe(&self) -> Recipe {
        self.noted().recipe.clone()
    }

    /// The settings of its session, as the script begins.
    pub(crate) fn set(&self, settings: BTreeMap<String, String>) {
        self.noted().recipe.settings = settings;
    }

    /// It reads a temp tensor.
    pub(crate) fn uses(&self, made: &Arc<Made>) {
        self.noted().recipe.uses(made);
    }

    /// Cells of the warehouse stay as long as it may read them.
    pub(crate) fn pin(&self, pin: Pin) {
        self.noted().pins.push(pin);
    }

    /// It will read nothing any more of what it read until now.
    pub(crate) async fn unpin(&self) {
        let pins = std::mem::take(&mut self.noted().pins);
        for pin in pins {
            pin.release().await;
        }
    }

    /// True if a server may have to give its answers again.
    pub(crate) fn may_survive(&self) -> bool {
        self.noted().store.is_some()
    }

    /// From now on `keeper` is told before anything is changed for good.
    pub(crate) fn kept_by(&self, keeper: Arc<dyn Keeper>) {
        self.noted().keeper = Some(keeper);
    }

    /// It has to have one of these places while it does what takes more than a moment.
    pub(crate) fn needs_one_of(&self, places: Arc<Semaphore>) {
        self.noted().places = Some(places);
    }

    /// Waits for a place among those that run, and keeps it until the end of the statement.
    ///
    /// # Errors
    /// [`Error::Cancelled`].
    pub(crate) async fn take_place(&self) -> Result<(), Error> {
        // Of several parts that begin together one waits for the place of all.
        let mut place = self.0.place.lock().await;
        let (places, crowd) = {
            let noted = self.noted();
            (
                noted.places.clone().filter(|_| place.is_none()),
                noted.crowd.clone().filter(|_| noted.among.is_none()),
            )
        };
        if let Some(places) = places {
            *place = match places.clone().try_acquire_owned() {
                Ok(free) => Some(free),
                Err(_) => self.queued(places.acquire_owned()).await?.ok(),
            };
        }
        if let Some(crowd) = crowd {
            let among = match crowd.try_join() {
                Some(among) => among,
                None => self.queued(crowd.join()).await?,
            };
            self.noted().among = Some(among);
        }
        Ok(())
    }

    /// Waits for its turn, which does not count against the statement's time.
    async fn queued<T>(&self, turn: impl Future<Output = T>) -> Result<T, Error> {
        let since = Instant::now();
        self.noted().waits_since = Some(since);
        // A plan of it may have run already.
        self.move_to(State::Planning);
        self.move_to(State::Queued);
        let turn = tokio::select! {
            biased;
            () = self.cancelled() => Err(Error::Cancelled),
            turn = turn => Ok(turn),
        };
        {
            let noted = &mut *self.noted();
            noted.waited += since.elapsed();
            noted.waits_since = None;
        }
        self.move_to(State::Planning);
        turn
    }

    /// It runs among these statements.
    pub(crate) fn joins(&self, crowd: &Arc<Admission>) {
        self.noted().crowd = Some(crowd.clone());
    }

    /// It has its place among them.
    pub(crate) fn is_placed(&self, place: Place) {
        self.noted().among = Some(place);
    }

    /// It is none of them any longer.
    pub(crate) fn leave_crowd(&self) {
        let place = self.noted().among.take();
        drop(place);
    }

    /// Another one may have its place.
    pub(crate) async fn leave_place(&self) {
        *self.0.place.lock().await = None;
    }

    /// How long it waited for its place.
    pub(crate) fn waited(&self) -> Duration {
        let noted = self.noted();
        noted.waited + noted.waits_since.map_or(Duration::ZERO, |since| since.elapsed())
    }

    /// From now on it may take so long, waiting for a place not counted: what looks at nothing else while it works, as
    /// planning and joins do, asks [`Handle::is_over`].
    pub(crate) fn limit_to(&self, limit: Duration) {
        let deadline = Deadline { started: Instant::now(), waited: self.waited(), limit };
        // The first limit stands.
        let _ = self.0.deadline.set(deadline);
    }

    /// True if the time is over that it may take.
    pub(crate) fn is_late(&self) -> bool {
        self.0.deadline.get().is_some_and(|d| {
            let elapsed = d.started.elapsed();
            elapsed >= d.limit && elapsed >= d.limit + self.waited().saturating_sub(d.waited)
        })
    }

    /// The statement of the script that runs now may take so long, by a setting of its session; `None` for the next one.
    pub(crate) fn limit_statement_to(&self, limit: Option<Duration>) {
        let waited = self.waited();
        let deadline = limit.map(|limit| Deadline { started: Instant::now(), waited, limit });
        self.noted().own_limit = deadline;
    }

    /// Waits until the statement of the script that runs then is beyond its own limit by `grace`, and says the limit.
    pub(crate) async fn is_overdue(&self, grace: Duration) -> Duration {
        loop {
            tokio::time::sleep(grace).await;
            let waited = self.waited();
            if let Some(own) = &self.noted().own_limit
                && own.started.elapsed() >= own.limit + waited.saturating_sub(own.waited) + grace
            {
                return own.limit;
            }
        }
    }

    /// True if nothing has to be done for it any more.
    pub(crate) fn is_over(&self) -> bool {
        self.is_cancelled() || self.is_late()
    }

    /// Comes to an end when the statement has taken so long from now on; waiting for a place does not count.
    pub(crate) async fn has_taken(&self, limit: Duration) {
        let (started, waited) = (Instant::now(), self.waited());
        loop {
            let limit = limit + self.waited().saturating_sub(waited);
            match limit.checked_sub(started.elapsed()) {
                Some(left) if !left.is_zero() => tokio::time::sleep(left.max(TICK)).await,
                _ => return,
            }
        }
    }

    /// Chunks of it may be kept there.
    pub(crate) fn stored_in(&self, store: Arc<DurableStore>) {
        self.noted().store = Some(store);
    }

    /// From now on it is run again should this process be killed.
    pub(crate) fn survives(&self) {
        let mut noted = self.noted();
        noted.survives = true;
        if let Some(durable) = &noted.durable {
            durable.begin();
        }
    }

    /// Where its chunks are kept; `None` if they are not. The first plan decides by which rule.
    pub(crate) fn durable(&self, policy: Durability) -> Option<Arc<Durable>> {
        let noted = &mut *self.noted();
        let store = noted.store.as_ref()?;
        let durable = noted.durable.get_or_insert_with(|| {
            let durable = Durable::new(store, &self.0.id, policy, noted.again);
            if let Some((part, versions)) = noted.reads.now() {
                durable.begin_part(*part, versions);
            }
            if noted.survives {
                durable.begin();
            }
            durable
        });
        Some(durable.clone())
    }

    /// What was kept of its chunks and used again; `None` if nothing can be.
    pub fn did(&self) -> Option<Did> {
        self.noted().durable.as_ref().map(|d| d.did())
    }

    /// Removes what was kept of its chunks.
    pub async fn remove_chunks(&self) {
        let (store, durable) = {
            let noted = self.noted();
            (noted.store.clone(), noted.durable.clone())
        };
        let Some(store) = store else { return };
        if let Some(durable) = durable {
            durable.close().await;
        }
        if let Err(e) = store.remove(self.id()).await {
            tracing::warn!(id = self.id(), error = %e, "chunks of a statement could not be removed");
        }
    }

    /// Writes down what is known now, if the statement is one that is to survive.
    ///
    /// # Errors
    /// Whatever storage says: then nothing may be changed.
    pub(crate) async fn keep(&self) -> Result<(), Error> {
        let keeper = self.noted().keeper.clone();
        match keeper {
            Some(keeper) => keeper.keep().await,
            None => Ok(()),
        }
    }

    fn noted(&self) -> MutexGuard<'_, Noted> {
        // Each change is complete before anything can panic.
        self.0.noted.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn lock(&self) -> MutexGuard<'_, Tracked> {
        // Each change is complete before anything can panic.
        self.0.tracked.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn new_id() -> String {
    uuid::Uuid::new_v4().simple().to_string()
}

/// A plan of a statement, until it is over or dropped.
#[derive(Debug)]
pub struct PlanRuns {
    handle: Handle,
    number: u64,
}

impl PlanRuns {
    /// The plan is over: what it did counts from now on as done.
    pub fn finish(self, stats: &Stats) {
        let mut t = self.handle.lock();
        if let Some(at) = t.plans.iter().position(|p| p.number == self.number) {
            let plan = t.plans.remove(at);
            t.totals.add(&plan, stats);
        }
    }
}

impl Drop for PlanRuns {
    fn drop(&mut self) {
        let mut t = self.handle.lock();
        if let Some(at) = t.plans.iter().position(|p| p.number == self.number) {
            let plan = t.plans.remove(at);
            t.totals.add_cut(&plan);
        }
    }
}
