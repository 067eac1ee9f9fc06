//! Statements that were refused memory because others had it, and how they get it.
//!
//! ```text
//!   run among others ── memory refused ──▶ let go of everything ──▶ wait until the others that run are over ──▶ run alone
//!                                                                   (new ones that take more than a moment wait too)
//! ```
//! What runs beside plans (cells that a condition keeps, rows that become tensors, different values, buffers of COPY,
//! copies of results) cannot wait for memory: it holds some, and two that wait for each other would wait for ever. So
//! nobody waits who holds memory. A statement that is refused what it could have alone gives all of it back, waits
//! holding nothing, and runs again from its start, bound to the same moment, seed and versions. `docs/memory.md` has the
//! argument why that ends.

use crate::Handle;
use crate::answer::Reply;
use crate::error::Error;
use crate::session::Session;
use crate::statement::StatementState;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};
use tessera_frontend::Parsed;
use tokio::sync::{OwnedRwLockReadGuard, OwnedRwLockWriteGuard, RwLock};

/// The statements that run in a process.
#[derive(Debug, Default)]
pub(crate) struct Admission {
    /// Read by those that run among others, written by the one that runs alone.
    gate: Arc<RwLock<()>>,
    live: AtomicU64,
    begun: AtomicU64,
    again: AtomicU64,
}

/// How a statement runs that takes more than a moment.
#[derive(Debug)]
pub(crate) enum RunPermit {
    /// Beside others.
    Among { _gate: OwnedRwLockReadGuard<()> },
    /// The only one.
    Alone { _gate: OwnedRwLockWriteGuard<()> },
}

/// A statement that runs, to learn whether others did meanwhile.
struct Run<'a> {
    admission: &'a Admission,
    number: u64,
    others: bool,
}

impl Admission {
    /// Statements that ran again, alone, as they had been refused memory.
    pub(crate) fn again(&self) -> u64 {
        self.again.load(SeqCst)
    }

    /// Waits as long as a statement runs alone, or waits to.
    pub(crate) async fn join(&self) -> RunPermit {
        RunPermit::Among { _gate: self.gate.clone().read_owned().await }
    }

    /// The same if nobody is to be waited for.
    pub(crate) fn try_join(&self) -> Option<RunPermit> {
        let gate = self.gate.clone().try_read_owned().ok()?;
        Some(RunPermit::Among { _gate: gate })
    }

    /// Waits until nobody runs.
    async fn alone(&self) -> RunPermit {
        RunPermit::Alone { _gate: self.gate.clone().write_owned().await }
    }

    fn enter(&self) -> Run<'_> {
        let others = self.live.fetch_add(1, SeqCst) > 0;
        Run { admission: self, number: self.begun.fetch_add(1, SeqCst) + 1, others }
    }
}

impl Run<'_> {
    /// True if another statement ran at some time since this one began.
    fn met_others(&self) -> bool {
        self.others || self.admission.begun.load(SeqCst) > self.number
    }
}

impl Drop for Run<'_> {
    fn drop(&mut self) {
        self.admission.live.fetch_sub(1, SeqCst);
    }
}

/// Takes a statement out of those that run, however its future ends.
struct Leaves<'a>(&'a Handle);

impl Drop for Leaves<'_> {
    fn drop(&mut self) {
        self.0.turn().leave();
    }
}

impl Session {
    /// Runs a statement; alone, if it was refused memory that others had.
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
        // Who runs alone must not wait for a place of those who wait for its end; who waits for the others is none of
        // them.
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
