//! The answer of a task: its messages, its progress at intervals, and its end.

use super::{Ended, reported};
use crate::rows::remote::message::{self, lacks};
use bytes::Bytes;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};
use tessera_exec::error::Error as ExecError;
use tessera_exec::rows::RowsRuns;
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio::time::{Interval, MissedTickBehavior, interval_at};

/// Interval of progress messages of a task.
const RUNS_EVERY: Duration = Duration::from_millis(250);

/// The answer of a task, while it is read.
pub(super) struct Answer {
    /// The task, as an error names it.
    what: String,
    messages: mpsc::Receiver<Bytes>,
    /// The one task. Dropping it aborts it.
    task: JoinSet<Result<Ended, ExecError>>,
    rows: Arc<AtomicU64>,
    started: Instant,
    ticks: Option<Interval>,
    has_ended: bool,
}

fn ticks() -> Interval {
    let mut ticks = interval_at(tokio::time::Instant::now() + RUNS_EVERY, RUNS_EVERY);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    ticks
}

impl Answer {
    /// The answer of a task, which sends `messages` and counts its rows.
    pub(super) fn new(
        what: String,
        messages: mpsc::Receiver<Bytes>,
        task: JoinSet<Result<Ended, ExecError>>,
        rows: Arc<AtomicU64>,
        started: Instant,
    ) -> Self {
        Answer { what, messages, task, rows, started, ticks: None, has_ended: false }
    }

    pub(super) async fn next(&mut self) -> Option<Result<Bytes, ExecError>> {
        if self.has_ended {
            return None;
        }
        let ticks = self.ticks.get_or_insert_with(ticks);
        let message = tokio::select! {
            biased;
            message = self.messages.recv() => message,
            _ = ticks.tick() => return Some(self.runs()),
        };
        if let Some(message) = message {
            return Some(Ok(message));
        }
        // The messages end where the task ends, fails or panics.
        self.has_ended = true;
        Some(match self.task.join_next().await {
            Some(Ok(Ok(Ended::Done(done)))) => message::done(&done).map_err(|e| reported(e.into())),
            Some(Ok(Ok(Ended::Lacks))) => Ok(lacks()),
            Some(Ok(Err(e))) => Err(e),
            Some(Err(e)) if e.is_panic() => {
                Err(ExecError::of_panic(self.what.clone(), e.into_panic().as_ref()))
            }
            Some(Err(_)) | None => Err(ExecError::Cancelled),
        })
    }

    fn runs(&self) -> Result<Bytes, ExecError> {
        let (rows, seconds) = (self.rows.load(Relaxed), self.started.elapsed().as_secs_f64());
        message::runs(&RowsRuns { rows, seconds }).map_err(|e| reported(e.into()))
    }
}
