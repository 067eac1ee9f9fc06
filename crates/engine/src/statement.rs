//! A statement that can be named, watched and stopped.
//!
//! The life of a statement:
//!
//! ```text
//!   QUEUED ◀─▶ PLANNING ◀─▶ RUNNING ─▶ FINISHED
//!      │         │  └─────────┼─────▶ FINISHED
//!      └─────────┴────────────┴─────▶ FAILED, CANCELLED
//! ```
//! 1. The caller makes a [`Handle`] and passes it to [`crate::Engine::run`].
//! 2. The engine enters it into the [`Queries`] of its process, so that `SHOW QUERIES` and `CANCEL QUERY` find it.
//! 3. If admission is limited, a statement that takes more than a moment is QUEUED again once that is known, until it
//!    is admitted ([`Handle::take_place`]). It goes back from RUNNING to PLANNING when the next statement of a script
//!    begins, or when a result had to be computed before the rest could be planned.
//! 4. While plans run, [`Handle::progress`] reads the scheduler's counts; only the time left is estimated.
//! 5. [`Handle::cancel`] may be called at any time from any thread; the statement ends soon after.

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
use crate::locals::Locals;
use reads::Reads;
use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use tessera_exec::quota::Quota;
use tokio_util::sync::CancellationToken;

/// The state of a statement.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum StatementState {
    /// Waits for admission.
    Queued,
    /// Is being parsed, bound or planned.
    Planning,
    /// Its operands run.
    Running,
    /// Its answer is available.
    Finished,
    /// Ended with an error.
    Failed,
    /// Was cancelled.
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

    /// Parses a name.
    pub fn parse(name: &str) -> Option<StatementState> {
        StatementState::ALL.into_iter().find(|s| s.name() == name)
    }

    /// The end state of a statement that fails with `error`.
    pub fn of_error(error: &Error) -> StatementState {
        if error.code() == "cancelled" { StatementState::Cancelled } else { StatementState::Failed }
    }

    /// True for the end states.
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

/// The state that waiters share with the engine that runs the statement. Clones refer to the same statement.
///
/// Its parts are separate: its [clock](Clock), its [turn](Turn) in admission, its [progress](Track), its [journal
/// entry](JournalEntry) and its [durable chunks](DurableChunks).
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
    /// The memory budget of the running statement of the script, if it is limited.
    budget: Mutex<Option<Arc<Quota>>>,
    /// Arrays and tables of the program that embeds the engine, by name.
    locals: Mutex<Locals>,
    /// Does the caller want each result in one piece of memory?
    in_one_piece: AtomicBool,
    /// Does the caller want tensors of a query whose result is rows?
    tensors_only: AtomicBool,
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
    /// A new, queued statement.
    pub fn new() -> Self {
        Handle::reading(Locals::default())
    }

    /// A new, queued statement that may name arrays and tables of the caller.
    pub fn reading(locals: Locals) -> Self {
        Handle::with(new_id(), CancellationToken::new(), JournalEntry::default(), locals)
    }

    /// The same statement, of a caller that wants each result in one piece of memory rather than in chunks, if there is
    /// room.
    pub fn in_one_piece(self) -> Self {
        self.0.in_one_piece.store(true, Ordering::Relaxed);
        self
    }

    /// The same statement, of a caller that wants tensors of each query: of rows, their keys and labels become
    /// dimensions, as in `CREATE TENSOR … AS`. A server does not learn of it.
    pub fn tensors_only(self) -> Self {
        self.0.tensors_only.store(true, Ordering::Relaxed);
        self
    }

    pub(crate) fn wants_tensors(&self) -> bool {
        self.0.tensors_only.load(Ordering::Relaxed)
    }

    pub(crate) fn wants_one_piece(&self) -> bool {
        self.0.in_one_piece.load(Ordering::Relaxed)
    }

    /// A statement that is cancelled with `parent`.
    pub fn below(parent: &CancellationToken) -> Self {
        Handle::with(new_id(), parent.child_token(), JournalEntry::default(), Locals::default())
    }

    /// A statement that is cancelled with `parent` and may name `uploads` of its client.
    pub fn lent(parent: &CancellationToken, uploads: Locals) -> Self {
        let is_lent = !uploads.is_empty();
        let handle = Handle::with(new_id(), parent.child_token(), JournalEntry::default(), uploads);
        if is_lent {
            handle.entry().reads_uploads();
        }
        handle
    }

    /// Another statement, which is cancelled with this one.
    pub fn another(&self) -> Self {
        Handle::below(&self.0.cancel)
    }

    /// A recovered statement, with the recipe of its earlier run.
    pub fn again(id: String, parent: &CancellationToken, recipe: Recipe) -> Self {
        Handle::with(id, parent.child_token(), JournalEntry::new(recipe, true), Locals::default())
    }

    /// A part of this statement with its own recipe, planned and run for it, and cancelled with it.
    pub(crate) fn part(&self, recipe: Recipe) -> Self {
        let entry = JournalEntry::new(recipe, false);
        let (id, cancel) = (self.0.id.clone(), self.0.cancel.child_token());
        let part = Handle::with(id, cancel, entry, self.locals());
        part.limit_memory(self.budget());
        part.move_to(StatementState::Planning);
        part
    }

    fn with(id: String, cancel: CancellationToken, entry: JournalEntry, locals: Locals) -> Self {
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
            locals: Mutex::new(locals),
            in_one_piece: AtomicBool::new(false),
            tensors_only: AtomicBool::new(false),
        }))
    }

    /// Its id: 32 hexadecimal digits that cannot be guessed.
    pub fn id(&self) -> &str {
        &self.0.id
    }

    /// Requests cancellation. Idempotent; no effect after the end.
    pub fn cancel(&self) {
        if !self.is_cancelled() {
            self.0.track.remember();
        }
        self.0.cancel.cancel();
    }

    /// Requests cancellation durably: once this returns, no later server runs the statement again.
    ///
    /// # Errors
    /// Errors of storage: the statement stops, and a later server may run it again.
    pub async fn stop(&self) -> Result<(), Error> {
        self.cancel();
        self.0.entry.stopped().await
    }

    /// True once cancellation was requested.
    pub fn is_cancelled(&self) -> bool {
        self.0.cancel.is_cancelled()
    }

    /// Waits until cancellation is requested.
    pub async fn cancelled(&self) {
        self.0.cancel.cancelled().await;
    }

    /// True if no more work should be done for it.
    pub(crate) fn is_over(&self) -> bool {
        self.is_cancelled() || self.clock().is_late()
    }

    /// Begins statement `number` of `count` of a script, counted from 1.
    pub fn begin(&self, text: &str, number: usize, count: usize) {
        self.0.entry.begin(number - 1);
        self.limit_memory(None);
        self.0.track.begin(text, number, count);
    }

    /// The current state.
    pub fn state(&self) -> StatementState {
        self.0.track.state()
    }

    /// Moves to `next`. Returns false, and does nothing, if the table does not allow it: an end state never changes.
    pub fn move_to(&self, next: StatementState) -> bool {
        self.0.track.move_to(next)
    }

    /// The current progress.
    pub fn progress(&self) -> Progress {
        self.0.track.progress()
    }

    /// Its state, its text and its plans.
    pub fn track(&self) -> &Arc<Track> {
        &self.0.track
    }

    /// The time it has waited, and its time limits.
    pub fn clock(&self) -> &Clock {
        &self.0.clock
    }

    /// Its place in admission.
    pub fn turn(&self) -> &Turn {
        &self.0.turn
    }

    /// Its journal entry.
    pub fn entry(&self) -> &JournalEntry {
        &self.0.entry
    }

    /// Its durable chunks.
    pub fn chunks(&self) -> &DurableChunks {
        &self.0.chunks
    }

    /// Counts of chunks that were stored and reused; `None` if its chunks are not durable.
    pub fn did(&self) -> Option<tessera_exec::durable::Did> {
        self.chunks().did()
    }

    /// Arrays and tables of the caller.
    pub fn locals(&self) -> Locals {
        self.0.locals.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Releases arrays and tables of the caller, and temp relations, once the script has ended: its handle may be known
    /// for longer.
    pub fn release(&self) {
        drop(std::mem::take(&mut *self.0.locals.lock().unwrap_or_else(PoisonError::into_inner)));
        self.release_temps();
    }

    /// Limits the memory of the running statement of the script; `None` removes the limit.
    pub(crate) fn limit_memory(&self, budget: Option<Arc<Quota>>) {
        *self.0.budget.lock().unwrap_or_else(PoisonError::into_inner) = budget;
    }

    /// The statement's own memory budget; `None` if it is not limited.
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
