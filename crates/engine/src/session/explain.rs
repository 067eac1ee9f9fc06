//! EXPLAIN: what a statement would do, and what it did.
//!
//! One [`Explained`] value is printed, sent as JSON and drawn as a graph. Its tensor plans are those that run: for a
//! cell query, the plans below the scans that DataFusion's physical plan contains.

mod expected;
mod on_workers;
mod operators;
mod waiting;

pub use expected::durable as durable_json;
pub(crate) use expected::measured as measured_json;
pub(super) use expected::measurements;
pub(super) use on_workers::{ran as rows_ran, ran_json as rows_ran_json};
pub(super) use operators::{OperatorsRan, operators_json, operators_text};
pub(super) use waiting::Shown;

use crate::Handle;
use crate::answer::{Answer, Reply, Stats as ReplyStats};
use crate::error::Error;
use crate::session::bind::{Binding, Settled};
use crate::session::cells::{Measured, PlannedCells};
use crate::session::copy::{is_zarr, takes_tensors};
use crate::session::query::{planned, surface};
use crate::session::run::Results;
use crate::session::{Session, later};
use expected::Expected;
use serde_json::{Value, json};
use sqlparser::ast::Query;
use std::fmt;
use std::sync::Arc;
use std::time::Instant;
use tessera_cells::lift::{Planner, TensorScan};
use tessera_cells::rows::{Operator, RowsOnWorkers};
use tessera_cluster::RowsTotals;
use tessera_exec::order::Discard;
use tessera_exec::schedule::Stats;
use tessera_exec::task::Sources;
use tessera_frontend::statement::{Explain, ExplainFormat, Statement};
use tessera_frontend::surface::{Decision, Surface};
use tessera_frontend::{Context, lower_any};
use tessera_planner::explain;
use tessera_planner::optimize::Rooted;
use tessera_planner::tile::Tiling;
use waiting::{explain_waiting, names, shown};

/// Passes that changed a graph, with the graph after each.
pub(super) type Passes = Vec<(&'static str, String)>;

struct Explained {
    surface: Surface,
    reason: String,
    /// The parts that run before the rest is planned.
    islands: Vec<Shown>,
    rest: Rest,
}

/// The plan of the rest, once all islands have run.
enum Rest {
    Tensors(PlanExplained),
    Cells(CellsExplained),
}

/// A tensor plan: its work, its expected cost, and the measurements of its runs.
pub(super) struct PlanExplained {
    tiling: Arc<Tiling>,
    /// With EXPLAIN VERBOSE.
    passes: Option<Passes>,
    expected: Expected,
    /// The part that runs on workers.
    workers: Option<tessera_cluster::Expected>,
    /// True if workers write its results.
    writes: bool,
    /// The chunks that survive a failure, in words.
    durable: Option<String>,
    /// With EXPLAIN ANALYZE.
    runs: Option<Vec<Stats>>,
}

/// A relational plan over tensor plans.
struct CellsExplained {
    notes: Vec<String>,
    /// DataFusion's logical plan as text, and as a graph.
    logical: String,
    graphviz: String,
    /// The operators of rows, where threads share their work.
    operators: Vec<Operator>,
    /// The parts of rows that workers compute, and the large ones that they do not.
    on_workers: RowsOnWorkers,
    scans: Vec<ScanExplained>,
    /// With EXPLAIN ANALYZE.
    ran: Option<CellsRan>,
}

/// Measurements of a relational plan by EXPLAIN ANALYZE.
struct CellsRan {
    operators: OperatorsRan,
    /// Number of rows built from cells; `None` if the statement reads none.
    of_cells: Option<u64>,
    /// The work of workers for rows.
    on_workers: Option<RowsTotals>,
}

/// The next step of EXPLAIN.
enum Lowered<'a, T> {
    /// The lowered statement.
    Ready(Box<Binding<'a>>, T),
    /// The answer for a statement whose islands do not run.
    Outline(Box<Reply>),
}

struct ScanExplained {
    name: String,
    scan: Arc<TensorScan>,
    plan: PlanExplained,
}

impl Session {
    /// EXPLAIN of a query, or of the query of a CREATE.
    pub(super) async fn explain(&self, what: &Explain, statement: &Handle) -> Result<Reply, Error> {
        // CREATE TENSOR stores rows as tensors.
        let (query, kept) = match &*what.statement {
            Statement::Query(q) => (q, false),
            Statement::CreateTensor(c) => (&c.query, true),
            Statement::CreateView(c) => (&c.query, false),
            Statement::Copy(c) => (&c.query, takes_tensors(c)),
            _ => return Err(later("EXPLAIN of this statement", "explain a query")),
        };
        let binding = self.bind(query, statement).await?;
        let decision = binding.decide(query);
        match kept || binding.is_tensor(query) {
            true => self.explain_tensors(binding, query, &decision, what, statement).await,
            false => self.explain_cells(binding, query, &decision, what, statement).await,
        }
    }

    /// Lowers a statement. Islands run only for EXPLAIN ANALYZE; otherwise a statement that waits for one is outlined.
    async fn lowered<'a, T>(
        &self,
        mut binding: Binding<'a>,
        decision: &Decision,
        what: &Explain,
        mut lower: impl FnMut(&mut Context<'_>, &Planner<'_>) -> Result<T, tessera_frontend::Error>,
        statement: &Handle,
    ) -> Result<Lowered<'a, T>, Error> {
        if what.analyze {
            binding.measures = true;
            let lowered = self.settle(&mut binding, statement, lower).await?;
            return Ok(Lowered::Ready(Box::new(binding), lowered));
        }
        match binding.lower(&mut lower)? {
            Settled::Ready(lowered) => Ok(Lowered::Ready(Box::new(binding), lowered)),
            Settled::Waiting(island) => {
                explain_waiting(self, binding, island, decision, what, lower, statement)
                    .await
                    .map(|reply| Lowered::Outline(Box::new(reply)))
            }
        }
    }

    async fn explain_tensors(
        &self,
        binding: Binding<'_>,
        query: &Query,
        decision: &Decision,
        what: &Explain,
        statement: &Handle,
    ) -> Result<Reply, Error> {
        let lower = |context: &mut Context<'_>, _: &Planner<'_>| lower_any(query, context);
        let (binding, lowered) =
            match self.lowered(binding, decision, what, lower, statement).await? {
                Lowered::Ready(binding, lowered) => (*binding, lowered),
                Lowered::Outline(reply) => return Ok(*reply),
            };
        let islands = shown(self, &binding, statement)?;
        let planned = planned(binding, decision, lowered, what.verbose)?;
        let (tiling, sources) = (&planned.tiling, &planned.sources);
        let passes = what.verbose.then_some(planned.trace);
        // Before the run: the set of workers may change.
        let results = match &*what.statement {
            Statement::CreateTensor(create) if !create.temp => Results::Stored,
            Statement::Copy(copy) if is_zarr(copy) => Results::Stored,
            _ => Results::Whole,
        };
        let mut plan = self.explained(tiling, sources, passes, results, statement)?;
        if what.analyze {
            let sink = Arc::new(Discard);
            plan.runs = Some(vec![self.run_into(tiling, sources, sink, statement).await?]);
        }
        let (surface, reason) = (planned.surface, planned.reason);
        let rest = Rest::Tensors(plan);
        Ok(Explained { surface, reason, islands, rest }.reply(what.format, planned.plan_s))
    }

    async fn explain_cells(
        &self,
        binding: Binding<'_>,
        query: &Query,
        decision: &Decision,
        what: &Explain,
        statement: &Handle,
    ) -> Result<Reply, Error> {
        let because = decision.reason.to_string();
        let lower =
            |context: &mut Context<'_>, cells: &Planner<'_>| cells.plan(query, context, &because);
        let (binding, cells) = match self.lowered(binding, decision, what, lower, statement).await?
        {
            Lowered::Ready(binding, lowered) => (*binding, lowered),
            Lowered::Outline(reply) => return Ok(*reply),
        };
        let islands = shown(self, &binding, statement)?;
        let planned = PlannedCells::of(binding, cells);
        let (plan_s, sources) = (planned.plan_s, planned.sources.clone());
        let (config, stop) = (planned.config.clone(), planned.stop.clone());
        let notes = planned.plan.notes.clone();
        let logical = planned.plan.logical_text();
        let graphviz = planned.plan.graphviz();
        let reads_cells = !planned.plan.scans.is_empty();
        let measured = Measured::default();
        let mut cells = self.physical_cells(planned, &measured, statement).await?;
        let mut operators = cells.rows.operators();
        operators.retain(Operator::is_split);
        let on_workers = cells.rows.on_workers();
        let mut scans = Vec::new();
        for scan in cells.rows.scans() {
            let is_same = |known: &ScanExplained| {
                known.scan.name == scan.name && known.scan.rooted.roots == scan.rooted.roots
            };
            if scans.iter().any(is_same) {
                continue;
            }
            let mut passes = Passes::new();
            let tiling =
                stop.compile(scan.rooted.clone(), &config, &mut |name, graph: &Rooted| {
                    if what.verbose {
                        passes.push((name, explain::graph(graph)));
                    }
                })?;
            let results = Results::of_rows(scan.exploded);
            let passes = what.verbose.then_some(passes);
            let plan = self.explained(&Arc::new(tiling), &sources, passes, results, statement)?;
            let name = match scans.iter().filter(|known| known.scan.name == scan.name).count() {
                0 => scan.name.clone(),
                before => format!("{} ({})", scan.name, before + 1),
            };
            scans.push(ScanExplained { name, scan, plan });
        }
        // By the numbers in their names, in the order of the notes.
        scans.sort_by(|a, b| (a.name.len(), &a.name).cmp(&(b.name.len(), &b.name)));
        let mut ran = None;
        if what.analyze {
            let (operators, started) = (cells.rows.measure(), Instant::now());
            self.rows_of_cells(cells, &[], &stop, statement).await?;
            for known in &mut scans {
                known.plan.runs = Some(measured.runs_of(&known.scan));
            }
            ran = Some(CellsRan {
                operators: OperatorsRan::of(&operators, started.elapsed().as_secs_f64()),
                of_cells: reads_cells.then(|| measured.rows()),
                on_workers: measured.on_workers(),
            });
        }
        let rest = Rest::Cells(CellsExplained {
            notes,
            logical,
            graphviz,
            operators,
            on_workers,
            scans,
            ran,
        });
        let (surface, reason) = (Surface::Cell, because);
        Ok(Explained { surface, reason, islands, rest }.reply(what.format, plan_s))
    }

    pub(super) fn explained(
        &self,
        tiling: &Arc<Tiling>,
        sources: &Sources,
        passes: Option<Passes>,
        results: Results,
        statement: &Handle,
    ) -> Result<PlanExplained, Error> {
        let execution = self.execution(statement);
        let durability = execution.durability;
        Ok(PlanExplained {
            tiling: tiling.clone(),
            passes,
            expected: self.expected(tiling, sources),
            workers: execution.expected(tiling, sources, results)?,
            writes: execution.shares(tiling, results),
            durable: statement.durable(durability).map(|_| explain::durable(tiling, durability)),
            runs: None,
        })
    }
}

impl Explained {
    fn reply(&self, format: ExplainFormat, plan_s: f64) -> Reply {
        let answer = match format {
            ExplainFormat::Text => Answer::Text(self.to_string()),
            ExplainFormat::Json => Answer::Json(self.json()),
            ExplainFormat::Dot => Answer::Text(self.dot()),
        };
        let stats = ReplyStats { plan_s, ..ReplyStats::default() };
        Reply { answer, surface: Some(surface(self.surface)), stats }
    }

    fn json(&self) -> Value {
        let mut json = match &self.rest {
            Rest::Tensors(plan) => {
                let mut json = plan.json();
                if let Some(run) = plan.runs.iter().flatten().next() {
                    json["measured"] = measured_json(run);
                }
                json
            }
            Rest::Cells(cells) => cells.json(),
        };
        json["surface"] = self.surface.to_string().into();
        json["reason"] = self.reason.clone().into();
        if !self.islands.is_empty() {
            json["islands"] = self.islands.iter().map(|island| island.json.clone()).collect();
        }
        json
    }

    fn dot(&self) -> String {
        match &self.rest {
            Rest::Tensors(plan) => explain::dot(&plan.tiling),
            // One graph of the relational plan, one of each tensor plan.
            Rest::Cells(cells) => {
                let plans = cells.scans.iter().map(|scan| explain::dot(&scan.plan.tiling));
                cells.graphviz.clone() + &plans.collect::<String>()
            }
        }
    }
}

impl fmt::Display for Explained {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "surface: {} ({})", self.surface, self.reason)?;
        for island in &self.islands {
            f.write_str(&island.text)?;
        }
        if !self.islands.is_empty() {
            writeln!(f, "\nresult: waits for {}", names(0..self.islands.len()))?;
        }
        match &self.rest {
            Rest::Tensors(plan) => plan.fmt(f),
            Rest::Cells(cells) => cells.fmt(f),
        }
    }
}

impl PlanExplained {
    pub(super) fn json(&self) -> Value {
        let mut json = explain::json(&self.tiling);
        json["expected"] = self.expected.json();
        if let Some(workers) = &self.workers {
            json["expected"]["cluster"] = expected::workers_json(workers, self.writes);
        }
        if let Some(passes) = &self.passes {
            let pass = |(name, graph): &(_, _)| json!({"pass": name, "graph": graph});
            json["passes"] = passes.iter().map(pass).collect();
        }
        json
    }
}

impl fmt::Display for PlanExplained {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(passes) = &self.passes {
            for (name, graph) in passes {
                write!(f, "\n-- after {name}\n{graph}")?;
            }
            f.write_str("\n-- plan\n")?;
        }
        f.write_str(&explain::plan(&self.tiling))?;
        f.write_str(&self.expected.text())?;
        if let Some(workers) = &self.workers {
            f.write_str(&expected::workers(workers, self.writes))?;
        }
        if let Some(durable) = &self.durable {
            f.write_str(durable)?;
        }
        for run in self.runs.iter().flatten() {
            f.write_str(&measurements(run))?;
        }
        Ok(())
    }
}

impl CellsExplained {
    fn operators(&self) -> &[Operator] {
        match &self.ran {
            Some(ran) => ran.operators.operators(),
            None => &self.operators,
        }
    }

    fn json(&self) -> Value {
        let plans = self.scans.iter().map(|ScanExplained { name, scan, plan }| {
            let mut json = plan.json();
            json["rows_of_cells"] = scan.exploded.into();
            if let Some(runs) = &plan.runs {
                json["measured"] = runs.iter().map(measured_json).collect();
            }
            (name.clone(), json)
        });
        let mut json = json!({
            "notes": self.notes,
            "logical": self.logical,
            "operators": operators_json(self.operators()),
            "rows_on_workers": self.on_workers,
            "tensor_plans": plans.collect::<serde_json::Map<_, _>>(),
        });
        if let Some(CellsRan { operators, of_cells, on_workers }) = &self.ran {
            json["measured"] = json!({
                "rows_of_cells_built": of_cells.unwrap_or(0),
                "rows_on_workers": on_workers.as_ref().map(rows_ran_json),
            });
            operators.add_to(&mut json["measured"]);
        }
        json
    }
}

impl fmt::Display for CellsExplained {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for note in &self.notes {
            writeln!(f, "{note}")?;
        }
        writeln!(f, "\n{}", self.logical)?;
        if !self.operators().is_empty() {
            write!(f, "\n{}", operators_text(self.operators()))?;
        }
        if self.on_workers != RowsOnWorkers::default() {
            write!(f, "\n{}", self.on_workers)?;
        }
        for scan in &self.scans {
            write!(f, "\n{}:\n{}", scan.name, scan.plan)?;
        }
        let Some(CellsRan { operators, of_cells, on_workers }) = &self.ran else { return Ok(()) };
        if let Some(totals) = on_workers {
            write!(f, "\n{}", rows_ran(totals))?;
        }
        write!(f, "\n{}", operators.line())?;
        match of_cells {
            Some(rows) => writeln!(f, "measured: {rows} rows of cells were built"),
            None => Ok(()),
        }
    }
}
