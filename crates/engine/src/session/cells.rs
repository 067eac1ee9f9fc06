//! Cell queries: plans of rows over tables that tensor plans fill.

use crate::Handle;
use crate::answer::{Answer, Reply, RowsKept, Stats, Surface};
use crate::error::{Class, Error, Position, Report};
use crate::session::bind::Binding;
use crate::session::open::Opener;
use crate::session::placed::placed;
use crate::session::run::{Execution, Results};
use crate::session::spread_rows::Peers;
use crate::session::stop::Stop;
use crate::session::{Failure, Session};
use crate::statement::StatementState;
use futures::stream::{self, BoxStream, StreamExt};
use sqlparser::ast::Query;
use std::error::Error as StdError;
use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use tessera_cells::Error as CellsError;
use tessera_cells::lift::{CellPlan, ColumnOrigin, TensorScan};
use tessera_cells::rows::{
    Batches, BoxError, IsStopped, PhysicalRows, Piece, PieceSink, RowsState, RunTensor,
};
use tessera_cells::spans::spanned_rows;
use tessera_cluster::RowsTotals;
use tessera_exec::error::Error as ExecError;
use tessera_exec::schedule::{Stats as ExecStats, Tiling as _};
use tessera_exec::task::Sources;
use tessera_frontend::surface::Decision;
use tessera_planner::config::Config as PlanConfig;
use tessera_planner::error::causes_through_io;
use tessera_planner::ir::NodeId;

/// A cell query that is ready to run.
pub(super) struct PlannedCells {
    pub(super) plan: CellPlan,
    rows: RowsState,
    pub(super) sources: Sources,
    pub(super) config: PlanConfig,
    pub(super) stop: Stop,
    pub(super) plan_s: f64,
}

/// A cell query that DataFusion has planned.
pub(super) struct PhysicalCells {
    pub(super) rows: PhysicalRows,
    /// The workers that compute parts of it.
    peers: Option<Arc<Peers>>,
    measured: Measured,
}

impl PlannedCells {
    /// The cell query of a statement that is lowered.
    pub(super) fn of(binding: Binding<'_>, plan: CellPlan) -> Self {
        let plan_s = binding.stop.started().elapsed().as_secs_f64();
        let Opener { rows, sources, .. } = binding.opener;
        PlannedCells { plan, rows, sources, config: binding.config, stop: binding.stop, plan_s }
    }

    /// A cell block inside a statement that continues after it.
    pub(super) fn of_island(binding: &Binding<'_>, plan: CellPlan) -> Self {
        PlannedCells {
            plan,
            rows: binding.opener.rows.clone(),
            sources: binding.opener.sources.clone(),
            config: binding.config.clone(),
            stop: binding.stop.clone(),
            plan_s: 0.0,
        }
    }
}

impl Session {
    pub(super) async fn plan_cells(
        &self,
        binding: &mut Binding<'_>,
        query: &Query,
        decision: &Decision,
        statement: &Handle,
    ) -> Result<CellPlan, Error> {
        let because = decision.reason.to_string();
        self.settle(binding, statement, |context, cells| cells.plan(query, context, &because)).await
    }

    pub(super) async fn run_cells(
        &self,
        mut binding: Binding<'_>,
        query: &Query,
        decision: &Decision,
        statement: &Handle,
    ) -> Result<Reply, Error> {
        let plan = self.plan_cells(&mut binding, query, decision, statement).await?;
        let (sites, origins) = (plan.sites.clone(), plan.orders.clone());
        let planned = PlannedCells::of(binding, plan);
        let (plan_s, stop) = (planned.plan_s, planned.stop.clone());
        let cells = self.physical_cells(planned, &Measured::default(), statement).await?;
        let answer = self.rows_of_cells(cells, &origins, &stop, statement).await;
        let answer = answer.map_err(|error| placed(error, &sites))?;
        Ok(Reply {
            answer,
            surface: Some(Surface::Cell),
            stats: Stats { plan_s, ..Stats::default() },
        })
    }

    /// The rows of a cell query; `origins` says where its columns come from.
    pub(super) async fn rows_of_cells(
        &self,
        cells: PhysicalCells,
        origins: &[Option<ColumnOrigin>],
        stop: &Stop,
        statement: &Handle,
    ) -> Result<Answer, Error> {
        let limit = self.host.rows.share();
        let run = async {
            let Batches { schema, rows: mut batches } =
                self.stream_cells(cells, stop, statement).await?;
            let memory = limit.min(self.memory_result_bytes);
            let (room, scratch) = (self.host.rows_room.clone(), self.host.scratch.clone());
            let schema = spanned_rows(&schema, origins);
            let mut rows = RowsKept::new(schema, memory, room, scratch);
            while let Some(batch) = batches.next().await {
                rows.push(batch.map_err(rows_error)?)?;
            }
            rows.finish()
        };
        tokio::select! {
            biased;
            () = statement.cancelled() => Err(Error::Cancelled),
            answer = run => answer,
        }
    }

    /// Lets DataFusion plan a cell query; [`run`](crate::session::run) runs its tensor plans, and workers compute parts of
    /// its rows ([`spread_rows`](crate::session::spread_rows)).
    pub(super) async fn physical_cells(
        &self,
        planned: PlannedCells,
        measured: &Measured,
        statement: &Handle,
    ) -> Result<PhysicalCells, Error> {
        let PlannedCells { plan, rows, sources, config, stop, .. } = planned;
        let chunk_bytes = config.chunk_bytes_target;
        let execution = self.execution(statement);
        let peers = execution.peers_of_rows().await?;
        let spread = peers.as_ref().map(|peers| peers.spread(execution.spread));
        let runner = Arc::new(Runner {
            execution,
            sources,
            config,
            stop: stop.clone(),
            measured: measured.clone(),
        });
        let physical = rows.physical(plan, runner, chunk_bytes, &measured.rows, spread);
        let rows = stop.rows(physical).await?;
        Ok(PhysicalCells { rows, peers, measured: measured.clone() })
    }

    /// Starts a cell query; rows are computed as the stream is read. Dropping the stream stops the query.
    pub(super) async fn stream_cells(
        &self,
        cells: PhysicalCells,
        stop: &Stop,
        statement: &Handle,
    ) -> Result<Batches, Error> {
        statement.move_to(StatementState::Running);
        let PhysicalCells { rows, peers, measured } = cells;
        let tracked = peers.and_then(|peers| peers.track(&rows.on_workers(), statement));
        if tracked.is_some() {
            self.execution(statement).gather_workers().await?;
        }
        let asked = stop.clone();
        let is_stopped: IsStopped = Arc::new(move || asked.is_stopped());
        let batches = stop.rows(rows.stream(statement.budget().as_ref(), is_stopped)).await?;
        Ok(match tracked {
            Some(tracked) => tracked.over(batches, move |totals| measured.ran_on_workers(totals)),
            None => batches,
        })
    }
}

/// Measurements of a cell query.
#[derive(Debug, Clone, Default)]
pub(super) struct Measured {
    /// Number of rows built from cells.
    rows: Arc<AtomicU64>,
    plans: Arc<Mutex<Vec<ScanRan>>>,
    /// The work of workers for the rows of the query.
    on_workers: Arc<Mutex<Option<RowsTotals>>>,
}

/// A tensor plan below a scan that ran to its end.
#[derive(Debug, Clone)]
struct ScanRan {
    name: String,
    roots: Vec<NodeId>,
    stats: ExecStats,
}

impl Measured {
    pub(super) fn rows(&self) -> u64 {
        self.rows.load(Ordering::Relaxed)
    }

    /// The work of workers for the rows of the query; `None` if no worker computed rows, or if the rows were not read
    /// to their end.
    pub(super) fn on_workers(&self) -> Option<RowsTotals> {
        self.on_workers.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn ran_on_workers(&self, totals: RowsTotals) {
        *self.on_workers.lock().unwrap_or_else(PoisonError::into_inner) = Some(totals);
    }

    /// Measurements of each run of the plan below a scan: none if no row was requested, several if the query reads the
    /// scan several times.
    pub(super) fn runs_of(&self, scan: &TensorScan) -> Vec<ExecStats> {
        let is_it = |ran: &&ScanRan| ran.name == scan.name && ran.roots == scan.rooted.roots;
        self.plans().iter().filter(is_it).map(|ran| ran.stats.clone()).collect()
    }

    /// Measurements of all runs below the scans of a table.
    pub(super) fn runs(&self, table: &str) -> Vec<ExecStats> {
        let is_it = |ran: &&ScanRan| ran.name == table;
        self.plans().iter().filter(is_it).map(|ran| ran.stats.clone()).collect()
    }

    fn plans(&self) -> MutexGuard<'_, Vec<ScanRan>> {
        self.plans.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Runs the tensor plans of a cell query.
#[derive(Clone)]
struct Runner {
    execution: Execution,
    sources: Sources,
    config: PlanConfig,
    stop: Stop,
    measured: Measured,
}

impl fmt::Debug for Runner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Runner").finish_non_exhaustive()
    }
}

type Pieces = BoxStream<'static, Result<Piece, BoxError>>;

impl Runner {
    fn pieces(self, scan: &TensorScan) -> Result<Pieces, Error> {
        let tiling = self.stop.compile(scan.rooted.clone(), &self.config, &mut |_, _| {})?;
        let tiling = Arc::new(tiling);
        debug_assert!(tiling.stages() > 0, "a scan has a column");
        let results = Results::of_rows(scan.exploded);
        let (name, roots) = (scan.name.clone(), scan.rooted.roots.clone());
        let (sink, pieces) = PieceSink::new();
        // The end travels with the pieces: dropping the stream drops the run, which cancels the plan.
        let run = async move {
            let stats = self.execution.run_plan(&tiling, &self.sources, sink, results).await?;
            self.measured.plans().push(ScanRan { name, roots, stats });
            Ok::<(), Error>(())
        };
        let end = stream::once(run)
            .filter_map(|end| async move { end.err().map(|e| Err(Box::new(e) as BoxError)) });
        Ok(stream::select(pieces.map(Ok), end).boxed())
    }
}

impl RunTensor for Runner {
    fn run(&self, scan: &TensorScan) -> Pieces {
        match self.clone().pieces(scan) {
            Ok(pieces) => pieces,
            Err(e) => stream::iter([Err(Box::new(e) as BoxError)]).boxed(),
        }
    }
}

/// Converts an error of rows. An error of this crate inside of it keeps its type.
pub(crate) fn rows_error(error: CellsError) -> Error {
    match error {
        CellsError::Inner(inner) => inner_error(inner),
        CellsError::Shared { error, otherwise } => {
            let ours = SharedError(error);
            match ours.report() {
                Some(_) => Error::stage(ours),
                None => rows_error(*otherwise),
            }
        }
        CellsError::Storage(error) => Error::stage(error),
        CellsError::Rows { message, memory } => Error::stage(Failure::Rows { message, memory }),
        CellsError::Table { url, format, reason } => {
            let reason = tessera_cells::table_reason(&reason).to_string();
            Error::stage(Failure::Table { url, format, reason })
        }
        CellsError::Timeout { limit_s } => Error::Timeout { limit_s },
        CellsError::Threads(e) => Error::io("start", "threads for rows", e),
    }
}

/// An error of this crate that DataFusion passed to several of its operators.
#[derive(Debug)]
struct SharedError(Arc<dyn StdError + Send + Sync>);

impl SharedError {
    fn report(&self) -> Option<&dyn Report> {
        causes_through_io(&*self.0).find_map(|error| -> Option<&dyn Report> {
            if let Some(ours) = error.downcast_ref::<ExecError>() {
                return Some(ours);
            }
            if let Some(ours) = error.downcast_ref::<tessera_frontend::Error>() {
                return Some(ours);
            }
            match error.downcast_ref::<Error>() {
                Some(Error::Stage(ours)) => Some(&*ours.0),
                _ => None,
            }
        })
    }
}

impl fmt::Display for SharedError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.report() {
            Some(ours) => fmt::Display::fmt(ours, f),
            None => self.0.fmt(f),
        }
    }
}

impl StdError for SharedError {
    fn source(&self) -> Option<&(dyn StdError + 'static)> {
        self.report().and_then(StdError::source)
    }
}

impl Report for SharedError {
    fn code(&self) -> &str {
        self.report().map_or("execution", Report::code)
    }

    fn class(&self) -> Class {
        self.report().map_or(Class::User, Report::class)
    }

    fn hint(&self) -> Option<String> {
        self.report().and_then(Report::hint)
    }

    fn position(&self) -> Option<Position> {
        self.report().and_then(Report::position)
    }

    fn may_fit(&self) -> bool {
        self.report().is_some_and(Report::may_fit)
    }
}

/// An error that passed through DataFusion: unwrapped, if it is ours.
fn inner_error(error: BoxError) -> Error {
    let error = match error.downcast::<Error>() {
        Ok(ours) => return *ours,
        Err(error) => error,
    };
    let error = match error.downcast::<ExecError>() {
        Ok(ours) => return Error::stage(*ours),
        Err(error) => error,
    };
    match error.downcast::<tessera_frontend::Error>() {
        Ok(ours) => Error::stage(*ours),
        Err(other) => rows_error(CellsError::caused(other.to_string(), &*other)),
    }
}
