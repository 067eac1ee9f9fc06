//! The one way in which plans run: plans of tensor queries, of islands, below cell blocks, of `COPY` and of `CREATE
//! TENSOR`.
//!
//! ```text
//!  admission ─▶ durable chunks ─▶ workers ─▶ threads, budget ─▶ scheduler ─▶ sink
//! ```
//! [`Execution::run_plan`] decides these steps for every caller alike. Dropping its future cancels the plan.

use crate::Handle;
use crate::error::Error;
use crate::session::spread::{Both, Spread};
use crate::session::{Host, Session};
use std::sync::Arc;
use tessera_exec::cancel::CancelToken as ExecCancel;
use tessera_exec::durable::Stored;
use tessera_exec::run::How;
use tessera_exec::schedule::{Sink, Stats, Tiling as RunTiling};
use tessera_exec::task::{PlanRunner, Sources};
use tessera_planner::cost::{is_quick, is_small, threads_for};
use tessera_planner::durable::Durability;
use tessera_planner::tile::Tiling;

/// The use of the chunks of a plan's results.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Results {
    /// All chunks are retained.
    Whole,
    /// All chunks are encoded and written to a store.
    Stored,
    /// Chunks are computed one after the other, as the reader of rows asks for them, and not retained.
    Streamed,
}

impl Results {
    /// For a table: rows of cells are streamed, results of a dense plan are retained.
    pub(super) fn of_rows(exploded: bool) -> Self {
        if exploded { Results::Streamed } else { Results::Whole }
    }
}

/// The environment in which the plans of a statement run.
#[derive(Clone)]
pub(super) struct Execution {
    pub(super) host: Arc<Host>,
    pub(super) statement: Handle,
    pub(super) durability: Durability,
    /// Threads that compute; `None` chooses by the cost of the plan.
    pub(super) threads: Option<usize>,
    /// Selects the plans that run on workers.
    pub(super) spread: Spread,
    /// Do plans use chunks that workers retain of other statements, and leave theirs?
    pub(super) reuse: bool,
}

impl Session {
    /// The environment of a statement, by the settings of the session.
    pub(super) fn execution(&self, statement: &Handle) -> Execution {
        let settings = self.settings();
        Execution {
            host: self.host.clone(),
            statement: statement.clone(),
            durability: settings.durability,
            threads: settings.threads,
            spread: settings.spread,
            reuse: settings.reuse,
        }
    }
}

impl Execution {
    /// Runs a plan whose results go to `sink`.
    ///
    /// # Errors
    /// Errors of an operand, of storage or of a worker; [`Error::Cancelled`].
    pub(super) async fn run_plan(
        &self,
        tiling: &Arc<Tiling>,
        sources: &Sources,
        sink: Arc<dyn Sink>,
        results: Results,
    ) -> Result<Stats, Error> {
        let (runtime, statement) = (&self.host.runtime, &self.statement);
        let runner = Arc::new(PlanRunner::new(tiling.clone(), sources).map_err(Error::stage)?);
        if !is_quick(tiling) {
            statement.take_place().await?;
        }
        let stored = match statement.durable(self.durability) {
            Some(durable) => durable.plan(tiling).await,
            None => None,
        };
        let drive = match self.part_of_workers(tiling, results) {
            Some(part) => {
                self.gather_workers().await?;
                let output = self.share(&sink, tiling, results).await?;
                self.drive(&part, sources, &runner, stored.as_ref().map(Stored::again), output)?
            }
            None => None,
        };
        let watched = Arc::new(Both::new(tiling, drive.as_ref()));
        let tracked = statement.track().plan(watched.clone(), operands(tiling));
        let (mut whole, mut shelved): (Arc<dyn RunTiling>, _) = (tiling.clone(), None);
        if let Some(drive) = &drive {
            shelved = Some(self.prepare(drive, tiling).await?);
            // The server does not run operands whose output workers have written.
            if let Some(rest) = drive.rest_for_server(tiling).await.map_err(Error::stage)? {
                whole = Arc::new(rest);
            }
        }
        // Workers store the chunks that they compute.
        let stored = if shelved.is_some() { None } else { stored };
        let here = is_small(tiling) && !sink.waits() && shelved.is_none();
        let most = runtime.config().threads;
        // A sink that waits has work of its own on these threads, such as compressing chunks.
        let worth = if sink.waits() { most } else { threads_for(tiling, most) };
        let threads = Some(self.threads.unwrap_or(worth));
        let how = How { stored, shelved, here, threads, budget: statement.budget() };
        let token = ExecCancel::new();
        let running = runtime.start_as(whole, runner, sink, &token, how).map_err(Error::stage)?;
        watched.runs_here(running.watch());
        tokio::select! {
            biased;
            () = statement.cancelled() => {
                token.cancel();
                Err(Error::Cancelled)
            }
            mut outcome = running.outcome() => {
                if let Some(drive) = drive {
                    outcome.stats.add(drive.totals());
                }
                tracked.finish(&outcome.stats);
                outcome.result.map(|()| outcome.stats).map_err(Error::stage)
            }
        }
    }
}

/// Operands of each stage of a plan.
fn operands(tiling: &Tiling) -> Vec<u64> {
    tiling.plan().stages.iter().map(|s| s.grid.count()).collect()
}
