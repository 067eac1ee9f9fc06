//! Cell queries: DataFusion's plan over tables that tensor plans fill.

use crate::answer::{Answer, Reply, RowsKept, Stats, Surface};
use crate::engine::CancelToken;
use crate::error::Error;
use crate::session::expected::{measured as as_json, measurements};
use crate::session::islands::{Binding, Settled};
use crate::session::query::operands;
use crate::session::settings::Settings;
use crate::session::stop::Stop;
use crate::session::waiting::{explain_waiting, names, shown};
use crate::session::{Failure, Host, Session};
use crate::statement::{Handle, State};
use arrow::datatypes::SchemaRef;
use datafusion::error::DataFusionError;
use datafusion::execution::{SendableRecordBatchStream, SessionState};
use futures::stream::{self, BoxStream, StreamExt, TryStreamExt};
use sqlparser::ast::Query;
use std::collections::BTreeMap;
use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use tessera_exec::cancel::CancelToken as ExecCancel;
use tessera_exec::datafusion::{
    BoxError, Column, IsStopped, Piece, PieceSink, RunTensor, TableParts, TensorTable, Top, attach,
    rows_of_batches, stoppable, with_large_limits_sorted,
};
use tessera_exec::durable::Stored;
use tessera_exec::error::Error as ExecError;
use tessera_exec::run::How;
use tessera_exec::schedule::{Stats as ExecStats, Tiling as _};
use tessera_exec::task::{PlanRunner, Sources};
use tessera_frontend::Context;
use tessera_frontend::lift::{self, CellPlan, ScanColumn, TensorScan};
use tessera_frontend::statement::{Explain, ExplainFormat};
use tessera_frontend::surface::Decision;
use tessera_planner::config::Config as PlanConfig;
use tessera_planner::cost::{is_quick, is_small, threads_for};
use tessera_planner::durable::Durability;
use tessera_planner::optimize::Rooted;
use tessera_planner::tile::Tiling;
use tessera_planner::{compile, explain};

/// A cell query that is ready to run.
pub(super) struct PlannedCells {
    pub(super) plan: CellPlan,
    pub(super) state: SessionState,
    pub(super) sources: Sources,
    pub(super) config: PlanConfig,
    pub(super) stop: Stop,
    pub(super) plan_s: f64,
}

impl PlannedCells {
    fn of(binding: Binding<'_>, plan: CellPlan) -> Result<Self, Error> {
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
}

impl Session {
    async fn plan_cells(
        &self,
        binding: &mut Binding<'_>,
        query: &Query,
        decision: &Decision,
        cancel: &CancelToken,
    ) -> Result<CellPlan, Error> {
        let because = decision.reason.to_string();
        self.settle(binding, cancel, |context| lift::plan_cells(query, context, &because)).await
    }

    /// Names and types of the columns that a cell query gives.
    pub(super) async fn schema_of_cells(
        &self,
        mut binding: Binding<'_>,
        query: &Query,
        decision: &Decision,
        cancel: &CancelToken,
    ) -> Result<SchemaRef, Error> {
        let plan = self.plan_cells(&mut binding, query, decision, cancel).await?;
        Ok(plan.logical.schema().inner().clone())
    }

    /// Runs a cell query.
    pub(super) async fn run_cells(
        &self,
        mut binding: Binding<'_>,
        query: &Query,
        decision: &Decision,
        cancel: &CancelToken,
    ) -> Result<Reply, Error> {
        let plan = self.plan_cells(&mut binding, query, decision, cancel).await?;
        let planned = PlannedCells::of(binding, plan)?;
        let plan_s = planned.plan_s;
        let (answer, _) = self.execute_cells(planned, cancel).await?;
        Ok(Reply {
            answer,
            surface: Some(Surface::Cell),
            stats: Stats { plan_s, ..Stats::default() },
        })
    }

    /// The rows, and what they took.
    async fn execute_cells(
        &self,
        planned: PlannedCells,
        cancel: &CancelToken,
    ) -> Result<(Answer, Measured), Error> {
        let measured = Measured::default();
        let limit = self.host.rows.share();
        let run = async {
            let mut stream = self.stream_cells(planned, &measured, cancel).await?;
            let memory = limit.min(self.memory_result_bytes);
            let (room, scratch) = (self.host.rows_room.clone(), self.host.scratch.clone());
            let mut rows = RowsKept::new(stream.schema(), memory, room, scratch);
            while let Some(batch) = stream.next().await {
                rows.push(batch.map_err(rows_error)?)?;
            }
            rows.finish()
        };
        let answer = tokio::select! {
            biased;
            () = cancel.cancelled() => return Err(Error::Cancelled),
            answer = run => answer?,
        };
        Ok((answer, measured))
    }

    /// Starts a cell query; its rows come as the stream is read. Dropping the stream stops it.
    pub(super) async fn stream_cells(
        &self,
        planned: PlannedCells,
        measured: &Measured,
        cancel: &CancelToken,
    ) -> Result<SendableRecordBatchStream, Error> {
        let Settings { durability, threads, .. } = self.settings();
        let runner = Runner {
            host: self.host.clone(),
            sources: planned.sources,
            config: planned.config,
            durability,
            threads,
            handle: cancel.clone(),
            stop: planned.stop.clone(),
            scan: String::new(),
            measured: measured.clone(),
        };
        cancel.move_to(State::Running);
        let tables: BTreeMap<String, Arc<TensorTable>> = planned
            .plan
            .scans
            .into_iter()
            .map(|scan| {
                let name = scan.name.clone();
                let runner = Arc::new(Runner { scan: name.clone(), ..runner.clone() });
                (name, Arc::new(TensorTable::new(parts(scan), runner, measured.rows.clone())))
            })
            .collect();
        let logical = attach(planned.plan.logical, &tables).map_err(rows_error)?;
        let (stop, apart) = (planned.stop, &self.host.apart);
        let plan = stop.physical(apart, &planned.state, logical).await?;
        let asked = stop.clone();
        let is_stopped: IsStopped = Arc::new(move || asked.is_stopped());
        let plan = stoppable(plan, &is_stopped).map_err(rows_error)?;
        let share = self.host.rows.share_within(cancel.budget().as_ref());
        let plan = with_large_limits_sorted(plan, share).map_err(rows_error)?;
        let usual = planned.state.config().batch_size();
        let batch_rows = rows_of_batches(&plan, usual, share / 4).map_err(rows_error)?;
        let context = self.host.task_context(&planned.state, cancel.budget().as_ref(), batch_rows);
        stop.rows(apart, plan, context).await
    }

    /// EXPLAIN of a cell query: what stayed dense, what forced rows, DataFusion's plan, the tensor plans.
    pub(super) async fn explain_cells(
        &self,
        mut binding: Binding<'_>,
        query: &Query,
        decision: &Decision,
        what: &Explain,
        cancel: &CancelToken,
    ) -> Result<Reply, Error> {
        let because = decision.reason.to_string();
        let lower = |context: &mut Context<'_>| lift::plan_cells(query, context, &because);
        let plan = match what.analyze {
            true => self.plan_cells(&mut binding, query, decision, cancel).await?,
            false => match binding.lower(lower)? {
                Settled::Ready(plan) => plan,
                Settled::Waiting(island) => {
                    return explain_waiting(self, binding, island, decision, what, lower);
                }
            },
        };
        let islands = shown(&binding);
        let planned = PlannedCells::of(binding, plan)?;
        let plan_s = planned.plan_s;
        let logical = planned.plan.logical.display_indent().to_string();
        // Without DataFusion's remarks.
        let graphviz = planned.plan.logical.display_graphviz().to_string();
        let graphviz = graphviz.lines().filter(|line| !line.trim_start().starts_with("//"));
        let graphviz = graphviz.map(|line| format!("{line}\n")).collect::<String>();
        let notes = planned.plan.notes.clone();
        let mut scans = Vec::new();
        for scan in &planned.plan.scans {
            let mut passes = Vec::new();
            let tiling = planned.stop.compile(
                scan.read_by(&planned.plan.logical),
                &planned.config,
                &mut |name, graph: &Rooted| {
                    if what.verbose {
                        passes.push(format!("\n-- after {name}\n{}", explain::graph(graph)));
                    }
                },
            )?;
            scans.push((scan.name.clone(), scan.exploded, tiling, passes));
        }
        let sources = planned.sources.clone();
        let measured = match what.analyze {
            true => Some(self.execute_cells(planned, cancel).await?.1),
            false => None,
        };
        let answer = match what.format {
            ExplainFormat::Text => {
                let mut text = format!("surface: cell ({})\n", decision.reason);
                for island in &islands {
                    text.push_str(&island.text);
                }
                if !islands.is_empty() {
                    text.push_str(&format!("\nresult: waits for {}\n", names(0..islands.len())));
                }
                for note in &notes {
                    text.push_str(&format!("{note}\n"));
                }
                text.push_str(&format!("\n{logical}\n"));
                for (name, _, tiling, passes) in &scans {
                    text.push_str(&format!("\n{name}:\n"));
                    for p in passes {
                        text.push_str(p);
                    }
                    text.push_str(&self.told(tiling, &sources));
                    for run in measured.iter().flat_map(|m| m.runs(name)) {
                        text.push_str(&measurements(&run));
                    }
                }
                if let Some(n) = measured.as_ref().map(Measured::rows) {
                    text.push_str(&format!("\nmeasured: {n} rows of cells were built\n"));
                }
                Answer::Text(text)
            }
            ExplainFormat::Json => {
                let tensor_plans: serde_json::Map<String, serde_json::Value> = scans
                    .iter()
                    .map(|(name, exploded, tiling, _)| {
                        let mut json = self.told_json(tiling, &sources);
                        json["rows_of_cells"] = (*exploded).into();
                        if let Some(m) = &measured {
                            json["measured"] = m.runs(name).iter().map(as_json).collect();
                        }
                        (name.clone(), json)
                    })
                    .collect();
                let mut json = serde_json::json!({
                    "surface": "cell",
                    "reason": decision.reason.to_string(),
                    "notes": notes,
                    "logical": logical,
                    "tensor_plans": tensor_plans,
                });
                if !islands.is_empty() {
                    json["islands"] = islands.iter().map(|island| island.json.clone()).collect();
                }
                if let Some(n) = measured.as_ref().map(Measured::rows) {
                    json["measured"] = serde_json::json!({"rows_of_cells_built": n});
                }
                Answer::Json(json)
            }
            // One graph of the relational plan, one of each tensor plan.
            ExplainFormat::Dot => {
                let mut text = graphviz;
                for (_, _, tiling, _) in &scans {
                    text.push_str(&explain::dot(tiling));
                }
                Answer::Text(text)
            }
        };
        Ok(Reply {
            answer,
            surface: Some(Surface::Cell),
            stats: Stats { plan_s, ..Stats::default() },
        })
    }
}

fn parts(scan: TensorScan) -> TableParts {
    let columns = scan
        .columns
        .into_iter()
        .map(|c| match c {
            ScanColumn::Label { axis, values } => Column::Label { axis, values },
            ScanColumn::Position { axis, start } => Column::Position { axis, start },
            ScanColumn::Cells(root) => Column::Cells(root),
            ScanColumn::Row => Column::Row,
        })
        .collect();
    TableParts {
        schema: scan.schema,
        shape: scan.shape,
        columns,
        presence: scan.presence,
        top: scan.top.map(|top| Top {
            root: top.root,
            rows: top.rows,
            descending: top.descending,
            nulls_first: top.nulls_first,
            ties: top.ties,
        }),
        rooted: scan.rooted,
        exploded: scan.exploded,
    }
}

/// What a cell query took.
#[derive(Debug, Clone, Default)]
pub(super) struct Measured {
    /// Rows of cells that were built.
    rows: Arc<AtomicU64>,
    /// By the name of its scan, each plan that came to its end.
    plans: Arc<Mutex<Vec<(String, ExecStats)>>>,
}

impl Measured {
    /// Rows of cells that were built.
    pub(super) fn rows(&self) -> u64 {
        self.rows.load(Ordering::Relaxed)
    }

    /// What the runs of a scan's plan took: none if no row was asked for, several if the query reads it several times.
    pub(super) fn runs(&self, scan: &str) -> Vec<ExecStats> {
        let plans = self.plans.lock().unwrap_or_else(PoisonError::into_inner);
        plans.iter().filter(|(name, _)| name == scan).map(|(_, stats)| stats.clone()).collect()
    }
}

/// Runs the tensor plans of a cell query.
#[derive(Clone)]
struct Runner {
    host: Arc<Host>,
    sources: Sources,
    config: PlanConfig,
    durability: Durability,
    threads: Option<usize>,
    /// The statement that they are part of.
    handle: Handle,
    stop: Stop,
    /// The scan whose plan it is.
    scan: String,
    measured: Measured,
}

impl fmt::Debug for Runner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Runner").finish_non_exhaustive()
    }
}

type Pieces = BoxStream<'static, Result<Piece, BoxError>>;

impl Runner {
    fn start(&self, tiling: Arc<Tiling>, stored: Option<Stored>) -> Result<Pieces, ExecError> {
        let runner = Arc::new(PlanRunner::new(tiling.clone(), &self.sources)?);
        let (sink, pieces) = PieceSink::new();
        debug_assert!(tiling.stages() > 0, "a scan has a column");
        let stages = operands(&tiling);
        let (runtime, token) = (self.host.runtime(), ExecCancel::new());
        let most = runtime.config().threads;
        let how = How {
            stored,
            shelved: None,
            here: is_small(&tiling),
            threads: Some(self.threads.unwrap_or_else(|| threads_for(&tiling, most))),
            budget: self.handle.budget(),
        };
        let running = runtime.start_as(tiling, runner, sink.clone(), &token, how)?;
        let tracked = self.handle.plan(Arc::new(running.watch()), stages);
        // The outcome travels with the pieces: dropping the stream drops `running`, which cancels the plan.
        let (scan, measured) = (self.scan.clone(), self.measured.clone());
        let outcome = stream::once(async move {
            let outcome = running.outcome().await;
            tracked.finish(&outcome.stats);
            let mut plans = measured.plans.lock().unwrap_or_else(PoisonError::into_inner);
            plans.push((scan, outcome.stats));
            drop(plans);
            if let Err(e) = outcome.result {
                sink.fail(e);
            }
        })
        .filter_map(|()| async { None });
        Ok(stream::select(pieces, outcome).boxed())
    }

    fn begin(&self, rooted: Rooted) -> Result<Pieces, ExecError> {
        let tiling = self.stop.plan(|| compile(rooted, &self.config, &mut |_, _| {}))?;
        let tiling = Arc::new(tiling);
        let (durable, quick) = (self.handle.durable(self.durability), is_quick(&tiling));
        if durable.is_none() && quick {
            return self.start(tiling, None);
        }
        let this = self.clone();
        let started = async move {
            if !quick {
                this.handle.take_place().await?;
                this.handle.move_to(State::Running);
            }
            let stored = match durable {
                Some(durable) => durable.plan(&tiling).await,
                None => None,
            };
            this.start(tiling, stored).map_err(|e| Box::new(e) as BoxError)
        };
        Ok(stream::once(started).try_flatten().boxed())
    }
}

impl RunTensor for Runner {
    fn run(&self, rooted: Rooted) -> Pieces {
        match self.begin(rooted) {
            Ok(stream) => stream,
            Err(e) => stream::iter([Err(Box::new(e) as BoxError)]).boxed(),
        }
    }
}

/// An error of DataFusion: ours with its own type, if one of ours is inside.
pub(super) fn rows_error(error: DataFusionError) -> Error {
    match error {
        DataFusionError::External(inner) => match inner.downcast::<tessera_exec::error::Error>() {
            Ok(ours) => Error::stage(*ours),
            Err(inner) => match inner.downcast::<DataFusionError>() {
                Ok(nested) => rows_error(*nested),
                Err(inner) => match inner.downcast::<tessera_frontend::Error>() {
                    Ok(ours) => Error::stage(*ours),
                    Err(other) => told(other.to_string(), &*other),
                },
            },
        },
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
            Err(shared) => match shared.find_root() {
                DataFusionError::ResourcesExhausted(message) => {
                    Error::stage(Failure::Rows { message: message.clone(), memory: true })
                }
                _ => told(shared.to_string(), &shared),
            },
        },
        // What our files said to somebody who only knows errors of files.
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

/// What a storage said to somebody who reads tables, else the words of DataFusion.
fn told(message: String, error: &(dyn std::error::Error + 'static)) -> Error {
    match tessera_exec::source::passing(error) {
        Some(storage) => Error::stage(storage),
        None => Error::stage(Failure::Rows { message, memory: false }),
    }
}
