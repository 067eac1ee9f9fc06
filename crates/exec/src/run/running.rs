//! Handles of a running plan.

use super::Shared;
use crate::cancel::CancelToken;
use crate::error::Error;
use crate::operand::StateCounts;
use crate::schedule::{Outcome, Stats, TaskRunner};
use std::fmt;
use std::sync::{Arc, Weak};
use tokio::sync::oneshot;

/// A running statement. Dropping it cancels the statement.
pub struct Running {
    pub(super) shared: Arc<Shared>,
    pub(super) id: u64,
    pub(super) token: CancelToken,
    pub(super) outcome: oneshot::Receiver<Outcome>,
    pub(super) runner: Arc<dyn TaskRunner>,
}

/// A weak handle for statistics: it keeps neither the statement nor the runtime alive.
#[derive(Clone)]
pub struct Watch {
    pub(super) shared: Weak<Shared>,
    pub(super) id: u64,
}

impl fmt::Debug for Watch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Watch").field("id", &self.id).finish_non_exhaustive()
    }
}

impl Watch {
    /// Returns the statistics so far; `None` once the statement is over. It takes the scheduler's lock for a moment:
    /// call it some times a second, not for each operand.
    pub fn stats(&self) -> Option<Stats> {
        self.shared.upgrade()?.lock().stats(self.id)
    }
}

impl Running {
    /// Asks the statement to stop; its end follows soon.
    pub fn cancel(&self) {
        self.token.cancel();
    }

    /// Operands by state; `None` once the statement is over.
    pub fn progress(&self) -> Option<StateCounts> {
        self.shared.lock().counts(self.id)
    }

    /// Returns a weak handle that may outlive the statement.
    pub fn watch(&self) -> Watch {
        Watch { shared: Arc::downgrade(&self.shared), id: self.id }
    }

    /// Waits for the end; not to be called on a tokio thread.
    pub fn wait(mut self) -> Outcome {
        let (_, closed) = oneshot::channel();
        let outcome = std::mem::replace(&mut self.outcome, closed);
        let outcome = outcome.blocking_recv().unwrap_or_else(|_| gone());
        self.shared.io.block_on(self.believed(outcome))
    }

    /// Waits for the end.
    pub async fn outcome(mut self) -> Outcome {
        let outcome = (&mut self.outcome).await.unwrap_or_else(|_| gone());
        self.believed(outcome).await
    }

    /// Replaces a successful outcome by an error if the data read turn out invalid once all are read.
    async fn believed(&self, mut outcome: Outcome) -> Outcome {
        if outcome.result.is_ok() {
            outcome.result = self.runner.check_read().await;
        }
        outcome
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.token.cancel();
    }
}

fn gone() -> Outcome {
    let what = "a statement ended without an outcome".to_owned();
    Outcome { result: Err(Error::Broken { what }), stats: Stats::default() }
}
