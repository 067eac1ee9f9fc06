//! Admission: a statement that is refused memory because other statements hold it runs again, alone.
//!
//! ```text
//!   run among others ── memory refused ──▶ release everything ──▶ wait until the others are done ──▶ run alone
//!                                                                 (new ones that take more than a moment wait too)
//! ```
//! Work outside of plans (cells that a condition selects, rows that become tensors, distinct values, buffers of COPY,
//! copies of results) cannot wait for memory: it holds some, and two waiters could deadlock. So a statement never waits
//! while it holds memory. A statement that is refused memory it could have alone releases all of it, waits holding
//! nothing, and runs again from its start, bound to the same moment, seed and versions. `docs/memory.md` argues why
//! that terminates.

use crate::Handle;
use crate::answer::Reply;
use crate::error::Error;
use crate::session::Session;
use crate::statement::StatementState;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};
use tessera_frontend::Parsed;
use tokio::sync::{OwnedRwLockReadGuard, OwnedRwLockWriteGuard, RwLock};

/// Admission of the statements of a process.
#[derive(Debug, Default)]
pub(crate) struct Admission {
    /// Statements that run concurrently hold the gate for reading. A statement that runs alone holds it for writing.
    gate: Arc<RwLock<()>>,
    live: AtomicU64,
    begun: AtomicU64,
    again: AtomicU64,
}

/// The permit of a statement that takes more than a moment.
#[derive(Debug)]
pub(crate) enum RunPermit {
    /// Other statements may run at the same time.
    Among { _gate: OwnedRwLockReadGuard<()> },
    /// No other statement runs.
    Alone { _gate: OwnedRwLockWriteGuard<()> },
}

/// A running statement, with the counters that show if others ran at the same time.
struct RunningStatement<'a> {
    admission: &'a Admission,
    number: u64,
    others: bool,
}

impl Admission {
    /// Number of statements that were refused memory and ran again, alone.
    pub(crate) fn again(&self) -> u64 {
        self.again.load(SeqCst)
    }

    /// Waits while a statement runs alone, or waits to run alone.
    pub(crate) async fn join(&self) -> RunPermit {
        RunPermit::Among { _gate: self.gate.clone().read_owned().await }
    }

    /// Like [`Admission::join`], but returns `None` instead of waiting.
    pub(crate) fn try_join(&self) -> Option<RunPermit> {
        let gate = self.gate.clone().try_read_owned().ok()?;
        Some(RunPermit::Among { _gate: gate })
    }

    /// Waits until no statement runs.
    async fn alone(&self) -> RunPermit {
        RunPermit::Alone { _gate: self.gate.clone().write_owned().await }
    }

    fn enter(&self) -> RunningStatement<'_> {
        let others = self.live.fetch_add(1, SeqCst) > 0;
        RunningStatement { admission: self, number: self.begun.fetch_add(1, SeqCst) + 1, others }
    }
}

impl RunningStatement<'_> {
    /// True if another statement ran at some time since this one began.
    fn met_others(&self) -> bool {
        self.others || self.admission.begun.load(SeqCst) > self.number
    }
}

impl Drop for RunningStatement<'_> {
    fn drop(&mut self) {
        self.admission.live.fetch_sub(1, SeqCst);
    }
}

/// Removes a statement from the running ones when its future ends or is dropped.
struct Leaves<'a>(&'a Handle);

impl Drop for Leaves<'_> {
    fn drop(&mut self) {
        self.0.turn().leave();
    }
}

impl Session {
    /// Runs a statement; again and alone, if it was refused memory while others ran.
    pub(super) async fn served(&self, parsed: &Parsed, statement: &Handle) -> Result<Reply, Error> {
        let admission = &self.host.admission;
        statement.turn().joins(admission);
        let _leaves = Leaves(statement);
        let run = admission.enter();
        let result = self.dispatch(parsed, statement).await;
        let others = run.met_others();
        match &result {
            Err(e) if e.may_fit() && others && !statement.is_cancelled() => {
                tracing::info!(id = statement.id(), "runs again, alone: {e}");
            }
            _ => return result,
        }
        drop((result, run));
        // The statement that runs alone must not wait for a place held by statements that wait for its end. A statement
        // that waits for the others holds no permit.
        statement.take_place().await?;
        statement.turn().leave();
        let place = tokio::select! {
            biased;
            () = statement.cancelled() => return Err(Error::Cancelled),
            place = admission.alone() => place,
        };
        statement.turn().is_placed(place);
        statement.move_to(StatementState::Planning);
        admission.again.fetch_add(1, SeqCst);
        let _run = admission.enter();
        self.dispatch(parsed, statement).await
    }
}
