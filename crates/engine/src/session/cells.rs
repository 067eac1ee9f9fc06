//! Cell queries: DataFusion's plan over tables that tensor plans fill.

use crate::Handle;
use crate::answer::{Answer, Reply, RowsKept, Stats, Surface};
use crate::error::{Class, Error, Position, Report};
use crate::session::bind::Binding;
use crate::session::run::{Execution, Results};
use crate::session::stop::Stop;
use crate::session::{Failure, Session};
use crate::statement::StatementState;
use arrow::datatypes::SchemaRef;
use datafusion::catalog::TableProvider;
use datafusion::error::DataFusionError;
use datafusion::execution::{SendableRecordBatchStream, SessionState};
use datafusion::physical_plan::ExecutionPlan;
use futures::stream::{self, BoxStream, StreamExt};
use sqlparser::ast::Query;
use std::collections::BTreeMap;
use std::error::Error as StdError;
use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use tessera_cells::lift::{CellPlan, SharedRows, TensorScan};
use tessera_cells::rows::{
    BoxError, IsStopped, Piece, PieceSink, RunTensor, SharedProvider, SharedTable, TensorTable,
    attach, rows_of_batches, stoppable, tensor_scans, with_large_limits_sorted,
};
use tessera_exec::error::Error as ExecError;
use tessera_exec::schedule::{Stats as ExecStats, Tiling as _};
use tessera_exec::task::Sources;
use tessera_frontend::surface::Decision;
use tessera_planner::config::Config as PlanConfig;
use tessera_planner::ir::NodeId;

/// A cell query that is ready to run.
pub(super) struct PlannedCells {
    pub(super) plan: CellPlan,
    pub(super) state: SessionState,
    pub(super) sources: Sources,
    pub(super) config: PlanConfig,
    pub(super) stop: Stop,
    pub(super) plan_s: f64,
}

pub(super) struct PhysicalCells {
    plan: Arc<dyn ExecutionPlan>,
    /// Relations that are read by name and computed once, with the plan of each.
    shared: Vec<(Arc<SharedTable>, Arc<dyn ExecutionPlan>)>,
    state: SessionState,
    stop: Stop,
}

impl PhysicalCells {
    /// The scans of tensor plans in all its plans.
    pub(super) fn scans(&self) -> Vec<Arc<TensorScan>> {
        let plans = self.shared.iter().map(|(_, plan)| plan).chain([&self.plan]);
        plans.flat_map(tensor_scans).collect()
    }
}

impl PlannedCells {
    /// The cell query of a statement that is lowered.
    pub(super) fn of(binding: Binding<'_>, plan: CellPlan) -> Result<Self, Error> {
        let plan_s = binding.stop.started().elapsed().as_secs_f64();
        let Some(state) = binding.opener.state.into_inner() else {
            return Err(Error::Internal { what: "a cell block was planned by nothing".into() });
        };
        let sources = binding.opener.sources;
        Ok(PlannedCells {
            plan,
            state,
            sources,
            config: binding.config,
            stop: binding.stop,
            plan_s,
        })
    }

    /// A cell block inside a statement that continues after it.
    pub(super) fn of_island(binding: &Binding<'_>, plan: CellPlan) -> Result<Self, Error> {
        Ok(PlannedCells {
            plan,
            state: binding.opener.state().map_err(Error::stage)?.clone(),
            sources: binding.opener.sources.clone(),
            config: binding.config.clone(),
            stop: binding.stop.clone(),
            plan_s: 0.0,
        })
    }
}

impl Session {
    async fn plan_cells(
        &self,
        binding: &mut Binding<'_>,
        query: &Query,
        decision: &Decision,
        statement: &Handle,
    ) -> Result<CellPlan, Error> {
        let because = decision.reason.to_string();
        self.settle(binding, statement, |context, cells| cells.plan(query, context, &because)).await
    }

    /// Names and types of the columns of a cell query.
    pub(super) async fn schema_of_cells(
        &self,
        mut binding: Binding<'_>,
        query: &Query,
        decision: &Decision,
        statement: &Handle,
    ) -> Result<SchemaRef, Error> {
        let plan = self.plan_cells(&mut binding, query, decision, statement).await?;
        Ok(plan.logical.schema().inner().clone())
    }

    pub(super) async fn run_cells(
        &self,
        mut binding: Binding<'_>,
        query: &Query,
        decision: &Decision,
        statement: &Handle,
    ) -> Result<Reply, Error> {
        let plan = self.plan_cells(&mut binding, query, decision, statement).await?;
        let planned = PlannedCells::of(binding, plan)?;
        let plan_s = planned.plan_s;
        let cells = self.physical_cells(planned, &Measured::default(), statement).await?;
        let answer = self.rows_of_cells(cells, statement).await?;
        Ok(Reply {
            answer,
            surface: Some(Surface::Cell),
            stats: Stats { plan_s, ..Stats::default() },
        })
    }

    pub(super) async fn rows_of_cells(
        &self,
        cells: PhysicalCells,
        statement: &Handle,
    ) -> Result<Answer, Error> {
        let limit = self.host.rows.share();
        let run = async {
            let mut stream = self.stream_cells(cells, statement).await?;
            let memory = limit.min(self.memory_result_bytes);
            let (room, scratch) = (self.host.rows_room.clone(), self.host.scratch.clone());
            let mut rows = RowsKept::new(stream.schema(), memory, room, scratch);
            while let Some(batch) = stream.next().await {
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

    /// Lets DataFusion plan a cell query; [`run`](crate::session::run) runs its tensor plans.
    pub(super) async fn physical_cells(
        &self,
        planned: PlannedCells,
        measured: &Measured,
        statement: &Handle,
    ) -> Result<PhysicalCells, Error> {
        let PlannedCells { plan, state, sources, config, stop, .. } = planned;
        let runner: Arc<dyn RunTensor> = Arc::new(Runner {
            execution: self.execution(statement),
            sources,
            config,
            stop: stop.clone(),
            measured: measured.clone(),
        });
        let table = |scan: TensorScan| {
            let name = scan.name.clone();
            let table = TensorTable::new(scan, runner.clone(), measured.rows.clone());
            (name, Arc::new(table) as Arc<dyn TableProvider>)
        };
        let mut tables: BTreeMap<String, Arc<dyn TableProvider>> =
            plan.scans.into_iter().map(table).collect();
        let mut shared = Vec::new();
        for SharedRows { name, logical } in plan.shared {
            let schema = logical.schema().inner().clone();
            let logical = attach(logical, &tables).map_err(rows_error)?;
            let plan = stop.physical(&self.host.row_threads, &state, logical).await?;
            let table = Arc::new(SharedTable::new(name.clone(), schema));
            tables.insert(name, Arc::new(SharedProvider(table.clone())));
            shared.push((table, plan));
        }
        let logical = attach(plan.logical, &tables).map_err(rows_error)?;
        let plan = stop.physical(&self.host.row_threads, &state, logical).await?;
        Ok(PhysicalCells { plan, shared, state, stop })
    }

    /// Starts a cell query; rows are computed as the stream is read. Dropping the stream stops the query.
    pub(super) async fn stream_cells(
        &self,
        cells: PhysicalCells,
        statement: &Handle,
    ) -> Result<SendableRecordBatchStream, Error> {
        let PhysicalCells { plan, shared, state, stop } = cells;
        statement.move_to(StatementState::Running);
        let share = self.host.rows.share_within(statement.budget().as_ref());
        let asked = stop.clone();
        let is_stopped: IsStopped = Arc::new(move || asked.is_stopped());
        let usual = state.config().batch_size();
        let mut batch_rows = usual;
        let mut ready = |plan| {
            let plan = with_large_limits_sorted(plan, share)?;
            batch_rows = batch_rows.min(rows_of_batches(&plan, usual, share / 4)?);
            // Last: it hides the operators that the other steps look for.
            stoppable(plan, &is_stopped)
        };
        for (table, plan) in shared {
            ready(plan).and_then(|plan| table.made_by(plan)).map_err(rows_error)?;
        }
        let plan = ready(plan).map_err(rows_error)?;
        let context = self.host.task_context(&state, statement.budget().as_ref(), batch_rows);
        stop.rows(&self.host.row_threads, plan, context).await
    }
}

/// Measurements of a cell query.
#[derive(Debug, Clone, Default)]
pub(super) struct Measured {
    /// Number of rows built from cells.
    rows: Arc<AtomicU64>,
    plans: Arc<Mutex<Vec<ScanRan>>>,
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

/// Converts an error of DataFusion. An error of ours inside of it keeps its type.
pub(super) fn rows_error(error: DataFusionError) -> Error {
    match error {
        DataFusionError::External(inner) => external(inner),
        DataFusionError::Context(_, inner) => rows_error(*inner),
        DataFusionError::ArrowError(e, _) => match *e {
            arrow::error::ArrowError::ExternalError(inner) => {
                rows_error(DataFusionError::External(inner))
            }
            arrow::error::ArrowError::IoError(_, e)
                if e.get_ref().is_some_and(|e| e.is::<ExecError>()) =>
            {
                rows_error(DataFusionError::IoError(e))
            }
            other => told(other.to_string(), &other),
        },
        DataFusionError::Shared(e) => match Arc::try_unwrap(e) {
            Ok(e) => rows_error(e),
            Err(shared) => shared_error(shared),
        },
        // Our files report errors to code that only knows errors of files.
        DataFusionError::IoError(e) if e.get_ref().is_some_and(|e| e.is::<ExecError>()) => {
            match e.into_inner().map(|e| e.downcast::<ExecError>()) {
                Some(Ok(ours)) => Error::stage(*ours),
                _ => Error::Internal { what: "an error of a file changed its type".into() },
            }
        }
        DataFusionError::ResourcesExhausted(message) => {
            Error::stage(Failure::Rows { message, memory: true })
        }
        other => told(other.strip_backtrace(), &other),
    }
}

/// Converts an error that several operators share. An error of ours inside of it keeps its code.
fn shared_error(error: Arc<DataFusionError>) -> Error {
    let ours = SharedError(error);
    match ours.report() {
        Some(_) => Error::stage(ours),
        None => match ours.0.find_root() {
            DataFusionError::ResourcesExhausted(message) => {
                Error::stage(Failure::Rows { message: message.clone(), memory: true })
            }
            _ => told(ours.0.to_string(), &ours.0),
        },
    }
}

/// An error of ours that DataFusion passed to several of its operators.
#[derive(Debug)]
struct SharedError(Arc<DataFusionError>);

impl SharedError {
    fn report(&self) -> Option<&dyn Report> {
        let mut next: Option<&(dyn StdError + 'static)> = Some(&*self.0);
        while let Some(error) = next {
            if let Some(ours) = error.downcast_ref::<ExecError>() {
                return Some(ours);
            }
            if let Some(ours) = error.downcast_ref::<tessera_frontend::Error>() {
                return Some(ours);
            }
            if let Some(Error::Stage(ours)) = error.downcast_ref::<Error>() {
                return Some(&*ours.0);
            }
            // An error of a file hides its cause from its chain of sources.
            let file = error.downcast_ref::<std::io::Error>().and_then(|e| e.get_ref());
            next = match file {
                Some(inside) => Some(inside),
                None => error.source(),
            };
        }
        None
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
fn external(error: BoxError) -> Error {
    let error = match error.downcast::<Error>() {
        Ok(ours) => return *ours,
        Err(error) => error,
    };
    let error = match error.downcast::<ExecError>() {
        Ok(ours) => return Error::stage(*ours),
        Err(error) => error,
    };
    let error = match error.downcast::<tessera_frontend::Error>() {
        Ok(ours) => return Error::stage(*ours),
        Err(error) => error,
    };
    match error.downcast::<DataFusionError>() {
        Ok(nested) => rows_error(*nested),
        Err(other) => told(other.to_string(), &*other),
    }
}

/// The error of storage behind a failed table read, else DataFusion's message.
fn told(message: String, error: &(dyn std::error::Error + 'static)) -> Error {
    match tessera_storage::source::passing(error) {
        Some(storage) => Error::stage(storage),
        None => Error::stage(Failure::Rows { message, memory: false }),
    }
}
