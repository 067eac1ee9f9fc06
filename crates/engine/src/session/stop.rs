//! Stopping statements: cancellation and timeouts.
//!
//! Our planner checks, wherever it may take long, if it has to stop ([`Stop::plan`]); other threads take over the other
//! work of the blocked thread. DataFusion does not check, so a stopped statement leaves its tasks behind
//! ([`Stop::rows`]).

use crate::Handle;
use crate::error::Error;
use crate::session::cells::rows_error;
use std::time::{Duration, Instant};
use tessera_cells::rows::in_place;
use tessera_planner::config::Config as PlanConfig;
use tessera_planner::error::Error as PlanError;
use tessera_planner::interrupt::interruptible;
use tessera_planner::optimize::Rooted;
use tessera_planner::tile::Tiling;

/// Signals that a statement has to stop.
#[derive(Clone)]
pub(super) struct Stop {
    statement: Handle,
    started: Instant,
    /// Time limit in seconds.
    timeout_s: Option<u64>,
}

impl Stop {
    pub(super) fn new(statement: &Handle, timeout_s: Option<u64>) -> Self {
        Stop { statement: statement.clone(), started: Instant::now(), timeout_s }
    }

    pub(super) fn started(&self) -> Instant {
        self.started
    }

    /// True if the statement is over or its time limit has passed.
    pub(super) fn is_stopped(&self) -> bool {
        let is_late = |limit| self.started.elapsed() >= Duration::from_secs(limit);
        self.statement.is_over() || self.timeout_s.is_some_and(is_late)
    }

    pub(super) fn error(&self) -> Error {
        match self.timeout_s {
            Some(limit_s) if !self.statement.is_cancelled() => Error::Timeout { limit_s },
            _ => Error::Cancelled,
        }
    }

    /// Runs a part of planning.
    pub(super) fn plan<T>(&self, work: impl FnOnce() -> T) -> T {
        let stop = self.clone();
        in_place(|| interruptible(move || stop.is_stopped(), work))
    }

    pub(super) fn compile(
        &self,
        rooted: Rooted,
        config: &PlanConfig,
        trace: &mut dyn FnMut(&'static str, &Rooted),
    ) -> Result<Tiling, Error> {
        self.plan(|| tessera_planner::compile(rooted, config, trace)).map_err(|e| match e {
            PlanError::Stopped => self.error(),
            e => Error::stage(e),
        })
    }

    /// Waits for DataFusion, which works in tasks of its own.
    pub(super) async fn rows<T>(
        &self,
        work: impl Future<Output = Result<T, tessera_cells::Error>>,
    ) -> Result<T, Error> {
        tokio::select! {
            biased;
            () = self.statement.cancelled() => Err(self.error()),
            done = work => done.map_err(rows_error),
        }
    }
}
