//! Rows on the workers of a cluster.
//!
//! ```text
//!   plan of rows ─ RowsSpread ─▶ cells: which parts go to workers        EXPLAIN ends here
//!                                  │ a task for each split
//!                                  ▼
//!                                Peers ─▶ RowsPlan (cluster): a worker for each task, retries, deaths
//! ```
//! `cells` and `cluster` do not know each other; [`Peers`] is between them. A statement has one [`RowsPlan`], which is
//! made when a part is large enough for workers: most statements have none. It is dropped with the rows of the
//! statement, and workers then forget them.

use crate::Handle;
use crate::error::Error;
use crate::session::run::Execution;
use crate::session::spread::{BUILD_BYTES, ROWS_BYTES, Spread};
use crate::statement::{PlanRuns, Watched};
use bytes::Bytes;
use futures::stream::{self, BoxStream, StreamExt};
use std::sync::{Arc, OnceLock};
use tessera_cells::rows::{Batches, RowsFault, RowsOnWorkers, RowsPeers, RowsSpread, RowsTask};
use tessera_cluster::{Cluster, RowsLost, RowsPlan, RowsTotals};

/// The workers, for the tasks of one statement.
#[derive(Debug)]
pub(super) struct Peers {
    cluster: Arc<Cluster>,
    statement: String,
    plan: OnceLock<Arc<RowsPlan>>,
}

impl Peers {
    fn plan(&self) -> &Arc<RowsPlan> {
        self.plan.get_or_init(|| RowsPlan::new(&self.cluster, &self.statement))
    }

    /// Selects the rows of the statement that workers compute.
    pub(super) fn spread(self: &Arc<Self>, spread: Spread) -> RowsSpread {
        let all = spread == Spread::All;
        let least_bytes = if all { 0 } else { ROWS_BYTES };
        RowsSpread { peers: self.clone(), least_bytes, build_bytes: BUILD_BYTES, all }
    }

    /// Adds the tasks to the progress of the statement; `None` if nothing goes to workers.
    pub(super) fn track(&self, found: &RowsOnWorkers, statement: &Handle) -> Option<TrackedRows> {
        let tasks = found.stages.iter().map(|stage| stage.tasks() as u64).sum();
        if tasks == 0 {
            return None;
        }
        let plan = self.plan().clone();
        let runs = statement.track().plan(plan.clone(), vec![tasks]);
        Some(TrackedRows { plan, runs })
    }
}

impl RowsPeers for Peers {
    fn turns(&self) -> usize {
        if self.cluster.registry().alive().is_empty() { 0 } else { self.plan().turns() }
    }

    fn workers(&self) -> usize {
        self.cluster.registry().alive().len()
    }

    fn start(&self, task: RowsTask) -> BoxStream<'static, Result<Bytes, RowsFault>> {
        let RowsTask { stage, task, tasks, kept, header, plan } = task;
        let messages = self.plan().task(stage, task, (tasks, kept), header, plan);
        messages.map(|message| message.map_err(fault)).boxed()
    }
}

/// The error keeps its type: the statement reports its code, class and hint.
fn fault(lost: RowsLost) -> RowsFault {
    match lost {
        RowsLost::Here(reason) => RowsFault::Here(reason),
        RowsLost::Failed(error) => RowsFault::Failed(Box::new(error)),
    }
}

/// The tasks of a statement in its progress.
pub(super) struct TrackedRows {
    plan: Arc<RowsPlan>,
    runs: PlanRuns,
}

impl TrackedRows {
    /// Returns the rows. Once all of them were read, the tasks count as finished, and `measured` gets their totals.
    pub(super) fn over(
        self,
        batches: Batches,
        measured: impl FnOnce(RowsTotals) + Send + 'static,
    ) -> Batches {
        let Batches { schema, rows } = batches;
        let begun = (rows, Some((self, measured)));
        let rows = stream::unfold(begun, |(mut rows, mut tracked)| async move {
            let batch = rows.next().await;
            if batch.is_none()
                && let Some((tracked, measured)) = tracked.take()
            {
                measured(tracked.finish());
            }
            batch.map(|batch| (batch, (rows, tracked)))
        });
        Batches { schema, rows: rows.boxed() }
    }

    fn finish(self) -> RowsTotals {
        self.runs.finish(&Watched::stats(&*self.plan).unwrap_or_default());
        self.plan.totals()
    }
}

impl Execution {
    /// The workers for the rows of the statement, if workers exist and the session spreads statements. A statement that
    /// runs again after a failure of the server waits for the workers that it had.
    pub(super) async fn peers_of_rows(&self) -> Result<Option<Arc<Peers>>, Error> {
        let Some(cluster) = self.host.cluster() else { return Ok(None) };
        if self.spread == Spread::None {
            return Ok(None);
        }
        if self.statement.entry().step(|step| step.workers) > 0 {
            self.gather_workers().await?;
        }
        if cluster.registry().alive().is_empty() {
            return Ok(None);
        }
        let (cluster, statement) = (cluster.clone(), self.statement.id().to_owned());
        Ok(Some(Arc::new(Peers { cluster, statement, plan: OnceLock::new() })))
    }
}
