//! A statement as something that can be named, watched and stopped.
//!
//! The life of a statement:
//!
//! ```text
//!   QUEUED ◀─▶ PLANNING ◀─▶ RUNNING ─▶ FINISHED
//!      │         │  └─────────┼─────▶ FINISHED
//!      └─────────┴────────────┴─────▶ FAILED, CANCELLED
//! ```
//! 1. Who wants an answer makes a [`Handle`] and gives it to [`crate::Engine::run`].
//! 2. The engine enters it into the [`Queries`] of its process, so that `SHOW QUERIES` and `CANCEL QUERY` know it.
//! 3. Where places are few, a statement that takes more than a moment is QUEUED again once that is known, until it has
//!    one ([`Handle::take_place`]). It goes back from RUNNING to PLANNING when the next statement of a script begins, or when something had to be
//!    computed before the rest could be planned.
//! 4. While plans run, [`Handle::progress`] asks the scheduler for its counts; nothing is estimated but the time left.
//! 5. [`Handle::cancel`] may be called by anybody at any time; the end comes soon after.

mod chunks;
mod clock;
mod journal_entry;
mod lasting;
mod progress;
mod queries;
mod reads;
mod recipe;
#[cfg(test)]
mod tests;
mod track;
mod turn;

pub use chunks::DurableChunks;
pub use clock::Clock;
pub use journal_entry::JournalEntry;
pub use progress::{Progress, Watched};
pub use queries::{COLUMNS, Entered, Queries};
pub(crate) use recipe::{Intent, Made};
pub use recipe::{Keeper, Recipe};
pub use track::{PlanRuns, Track};
pub use turn::Turn;

use crate::error::Error;
use reads::Reads;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use tessera_exec::quota::Quota;
use tokio_util::sync::CancellationToken;

/// Where a statement is in its life.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum StatementState {
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

impl StatementState {
    /// All states.
    pub const ALL: [StatementState; 6] = [
        StatementState::Queued,
        StatementState::Planning,
        StatementState::Running,
        StatementState::Finished,
        StatementState::Failed,
        StatementState::Cancelled,
    ];

    /// The name in answers.
    pub fn name(self) -> &'static str {
        match self {
            StatementState::Queued => "QUEUED",
            StatementState::Planning => "PLANNING",
            StatementState::Running => "RUNNING",
            StatementState::Finished => "FINISHED",
            StatementState::Failed => "FAILED",
            StatementState::Cancelled => "CANCELLED",
        }
    }

    /// The state of that name.
    pub fn parse(name: &str) -> Option<StatementState> {
        StatementState::ALL.into_iter().find(|s| s.name() == name)
    }

    /// The end that an error is.
    pub fn of_error(error: &Error) -> StatementState {
        if error.code() == "cancelled" { StatementState::Cancelled } else { StatementState::Failed }
    }

    /// True for the states that nothing follows.
    pub fn is_over(self) -> bool {
        matches!(
            self,
            StatementState::Finished | StatementState::Failed | StatementState::Cancelled
        )
    }

    /// The transition table.
    pub const fn may_become(self, next: StatementState) -> bool {
        use StatementState::*;
        matches!(
            (self, next),
            (Queued, Planning | Failed | Cancelled)
                | (Planning, Queued | Running | Finished | Failed | Cancelled)
                | (Running, Planning | Finished | Failed | Cancelled)
        )
    }
}

impl fmt::Display for StatementState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// What those who wait for a statement share with the engine that runs it. Clones are the same statement.
///
/// What belongs to it is kept apart: its [clock](Clock), its [turn](Turn) among others, its [progress](Track), its
/// [journal entry](JournalEntry) and its [durable chunks](DurableChunks).
#[derive(Clone)]
pub struct Handle(Arc<Inner>);

struct Inner {
    id: String,
    cancel: CancellationToken,
    clock: Clock,
    turn: Turn,
    track: Arc<Track>,
    entry: JournalEntry,
    chunks: DurableChunks,
    reads: Mutex<Reads>,
    /// The memory that the statement of the script may take, if that is limited.
    budget: Mutex<Option<Arc<Quota>>>,
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
        Handle::with(new_id(), CancellationToken::new(), JournalEntry::default())
    }

    /// A statement that is cancelled with `parent`.
    pub fn below(parent: &CancellationToken) -> Self {
        Handle::with(new_id(), parent.child_token(), JournalEntry::default())
    }

    /// Another statement, which is cancelled with this one.
    pub fn another(&self) -> Self {
        Handle::below(&self.0.cancel)
    }

    /// A statement that was known before, with what it was bound to.
    pub fn again(id: String, parent: &CancellationToken, recipe: Recipe) -> Self {
        Handle::with(id, parent.child_token(), JournalEntry::new(recipe, true))
    }

    /// A part of this one with another recipe, which is planned and run for it: it is cancelled with it.
    pub(crate) fn part(&self, recipe: Recipe) -> Self {
        let entry = JournalEntry::new(recipe, false);
        let part = Handle::with(self.0.id.clone(), self.0.cancel.child_token(), entry);
        part.limit_memory(self.budget());
        part.move_to(StatementState::Planning);
        part
    }

    fn with(id: String, cancel: CancellationToken, entry: JournalEntry) -> Self {
        let clock = Clock::default();
        Handle(Arc::new(Inner {
            id,
            cancel,
            track: Arc::new(Track::new(clock.created())),
            clock,
            turn: Turn::default(),
            entry,
            chunks: DurableChunks::default(),
            reads: Mutex::default(),
            budget: Mutex::default(),
        }))
    }

    /// Its name: 32 hexadecimal digits that nobody can guess.
    pub fn id(&self) -> &str {
        &self.0.id
    }

    /// Asks it to stop; once is enough, and after its end it does nothing.
    pub fn cancel(&self) {
        if !self.is_cancelled() {
            self.0.track.remember();
        }
        self.0.cancel.cancel();
    }

    /// Asks it to stop for good: when this is over, no later server runs it again.
    ///
    /// # Errors
    /// Whatever storage says: it stops, and a later server may run it again.
    pub async fn stop(&self) -> Result<(), Error> {
        self.cancel();
        self.0.entry.stopped().await
    }

    /// True once it was asked to stop.
    pub fn is_cancelled(&self) -> bool {
        self.0.cancel.is_cancelled()
    }

    /// Waits until it is asked to stop.
    pub async fn cancelled(&self) {
        self.0.cancel.cancelled().await;
    }

    /// True if nothing has to be done for it any more.
    pub(crate) fn is_over(&self) -> bool {
        self.is_cancelled() || self.clock().is_late()
    }

    /// A statement of a script begins: number `number`, from 1, of `count`.
    pub fn begin(&self, text: &str, number: usize, count: usize) {
        self.0.entry.begin(number - 1);
        self.limit_memory(None);
        self.0.track.begin(text, number, count);
    }

    /// Where it is in its life.
    pub fn state(&self) -> StatementState {
        self.0.track.state()
    }

    /// Goes on to `next`; false, and nothing happens, if the table does not allow it: an end stays what it is.
    pub fn move_to(&self, next: StatementState) -> bool {
        self.0.track.move_to(next)
    }

    /// How far it is.
    pub fn progress(&self) -> Progress {
        self.0.track.progress()
    }

    /// Its state, its text and its plans.
    pub fn track(&self) -> &Arc<Track> {
        &self.0.track
    }

    /// How long it has waited, and how long it may take.
    pub fn clock(&self) -> &Clock {
        &self.0.clock
    }

    /// Its place among those that run.
    pub fn turn(&self) -> &Turn {
        &self.0.turn
    }

    /// What is written down of it.
    pub fn entry(&self) -> &JournalEntry {
        &self.0.entry
    }

    /// Where its chunks are kept.
    pub fn chunks(&self) -> &DurableChunks {
        &self.0.chunks
    }

    /// What was kept of its chunks and used again; `None` if nothing can be.
    pub fn did(&self) -> Option<tessera_exec::durable::Did> {
        self.chunks().did()
    }

    /// The statement of the script takes its memory from this budget from now on; `None` for all there is.
    pub(crate) fn limit_memory(&self, budget: Option<Arc<Quota>>) {
        *self.0.budget.lock().unwrap_or_else(PoisonError::into_inner) = budget;
    }

    /// The statement's own budget; `None` if it may take all there is.
    pub(crate) fn budget(&self) -> Option<Arc<Quota>> {
        self.0.budget.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn reads(&self) -> MutexGuard<'_, Reads> {
        // Each change is complete before anything can panic.
        self.0.reads.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn new_id() -> String {
    uuid::Uuid::new_v4().simple().to_string()
}
