//! Planning that ends when its statement does: it asks, wherever it may take long, and runs beside the threads that serve
//! others.

use crate::engine::CancelToken;
use crate::error::Error;
use std::time::{Duration, Instant};
use tessera_exec::datafusion::in_place;
use tessera_planner::config::Config as PlanConfig;
use tessera_planner::error::Error as PlanError;
use tessera_planner::interrupt::interruptible;
use tessera_planner::optimize::Rooted;
use tessera_planner::tile::Tiling;

/// Whether a statement is to go on.
#[derive(Clone)]
pub(super) struct Stop {
    cancel: CancelToken,
    started: Instant,
    /// Seconds that it may take.
    timeout_s: Option<u64>,
}

impl Stop {
    /// Of a statement that starts now.
    pub(super) fn new(cancel: &CancelToken, timeout_s: Option<u64>) -> Self {
        Stop { cancel: cancel.clone(), started: Instant::now(), timeout_s }
    }

    /// Since when it runs.
    pub(super) fn started(&self) -> Instant {
        self.started
    }

    /// Was it cancelled, or has it taken its time?
    pub(super) fn is_stopped(&self) -> bool {
        let is_late = |limit| self.started.elapsed() >= Duration::from_secs(limit);
        self.cancel.is_cancelled() || self.timeout_s.is_some_and(is_late)
    }

    /// How a statement ends that was stopped.
    pub(super) fn error(&self) -> Error {
        match self.timeout_s {
            Some(limit_s) if !self.cancel.is_cancelled() => Error::Timeout { limit_s },
            _ => Error::Cancelled,
        }
    }

    /// Runs a part of planning.
    pub(super) fn plan<T>(&self, work: impl FnOnce() -> T) -> T {
        let stop = self.clone();
        in_place(|| interruptible(move || stop.is_stopped(), work))
    }

    /// [`tessera_planner::compile`].
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
}
