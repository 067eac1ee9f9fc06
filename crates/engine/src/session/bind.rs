//! Parts of a statement that run before the rest can be bound.
//!
//! [`Session::settle`] lowers the statement. If lowering reports that it waits for an island, the island runs, its
//! result becomes a tensor with a name of its own, and lowering begins again. Results of islands are charged to the
//! quota, may be spilled, and are freed with the [`Binding`] at the end of the statement.

use crate::Handle;
use crate::error::Error;
use crate::session::Session;
use crate::session::cells::{Measured, PlannedCells, rows_error};
use crate::session::explain::{
    OperatorsRan, measured_json as as_json, measurements, operators_json, operators_text, rows_ran,
    rows_ran_json,
};
use crate::session::open::Opener;
use crate::session::stop::Stop;
use crate::statement::StatementState;
use futures::StreamExt;
use sqlparser::ast::Query;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;
use tessera_cells::lift::{CellPlan, ColumnOrigin, Density, Planner};
use tessera_cells::rows::Batches;
use tessera_cells::rows::assemble::{Assemble, Assembled, Role};
use tessera_exec::chunk::{Chunk, dense};
use tessera_exec::distinct::Distinct;
use tessera_exec::schedule::Stats;
use tessera_exec::select::{Room, Select};
use tessera_exec::task::{Origin, Resident, Sources};
use tessera_frontend::island::{Done, Island, RowsColumn, RowsToTensor, Work};
use tessera_frontend::surface::{self, Decision, RelationKind};
use tessera_frontend::{CatalogNames, Context, Islands};
use tessera_planner::catalog::{Attrs, Coord, Dataset, Decode, SourceRef, Variable};
use tessera_planner::config::Config as PlanConfig;
use tessera_planner::dtype::{Calendar, DType};
use tessera_planner::grid::Grid;
use tessera_planner::ir::ConstArray;
use tessera_planner::key::Keys;
use tessera_planner::optimize::Rooted;
use tessera_planner::tile::Tiling;

/// Numbers of arrays in memory. None is used twice: the key of a plan must not name another array.
static ISLANDS: AtomicU64 = AtomicU64::new(0);

/// State that stays fixed however often a statement is lowered.
pub(super) struct Binding<'a> {
    pub(super) opener: Opener<'a>,
    pub(super) config: PlanConfig,
    /// Do the cell blocks stay dense?
    density: Density,
    /// Results of the islands that ran.
    pub(super) islands: Islands,
    /// How EXPLAIN shows the islands that ran.
    pub(super) ran: Vec<Ran>,
    /// True for EXPLAIN ANALYZE: the operators of rows are measured.
    pub(super) measures: bool,
    now_us: i64,
    seed: u64,
    /// Signals that the statement has to stop.
    pub(super) stop: Stop,
}

/// An island that ran, as EXPLAIN shows it.
pub(super) enum Ran {
    /// A tensor plan, and the measurements of its run.
    Plan { tiling: Arc<Tiling>, stats: Box<Stats> },
    /// A cell query with its tensor plans, as text and as JSON.
    Rows { text: String, json: serde_json::Value },
}

/// The outcome of lowering.
pub(super) enum Settled<T> {
    Ready(T),
    /// This island has to run first; returned only if nothing may run.
    Waiting(Box<Island>),
}

impl Binding<'_> {
    pub(super) fn decide(&self, query: &Query) -> Decision {
        surface::decide(query, &CatalogNames(&self.opener))
    }

    /// True if the query returns tensors: a tensor block, or a cell block with `[dim]` items.
    pub(super) fn is_tensor(&self, query: &Query) -> bool {
        surface::kind(query, &CatalogNames(&self.opener)) == RelationKind::Tensor
    }

    /// Calls `lower` with the relations and results that the statement is bound to.
    pub(super) fn lower<T>(
        &mut self,
        mut lower: impl FnMut(&mut Context<'_>, &Planner<'_>) -> Result<T, tessera_frontend::Error>,
    ) -> Result<Settled<T>, Error> {
        let opener = &self.opener;
        let cells = Planner { tables: &opener.tables, rows: &opener.rows, density: self.density };
        let lowered = self.stop.plan(|| {
            tessera_frontend::limits::with_stack(|| {
                let mut context = Context {
                    catalog: opener,
                    config: self.config.clone(),
                    now_us: self.now_us,
                    seed: self.seed,
                    islands: &mut self.islands,
                    cells: &cells,
                };
                lower(&mut context, &cells)
            })
        });
        match (lowered, self.islands.wanted()) {
            (Err(tessera_frontend::Error::Stopped), _) => Err(self.stop.error()),
            (Ok(lowered), _) => Ok(Settled::Ready(lowered)),
            (Err(tessera_frontend::Error::Waiting), Some(island)) => {
                Ok(Settled::Waiting(Box::new(island)))
            }
            (Err(e), _) => Err(Error::stage(e)),
        }
    }
}

impl Session {
    /// Opens the relations that a query reads, and fixes everything that must not change while it is lowered.
    pub(super) async fn bind(
        &self,
        query: &Query,
        statement: &Handle,
    ) -> Result<Binding<'_>, Error> {
        let relations = tessera_frontend::relations(query).map_err(Error::stage)?;
        self.bind_with(Opener::new(self, relations, statement), statement).await
    }

    /// Like [`Session::bind`], with a given opener.
    pub(super) async fn bind_with<'a>(
        &'a self,
        mut opener: Opener<'a>,
        statement: &Handle,
    ) -> Result<Binding<'a>, Error> {
        let settings = self.settings();
        let stop = Stop::new(statement, settings.query_timeout_s);
        // Storage may take as long as its time-outs.
        tokio::select! {
            biased;
            () = statement.cancelled() => return Err(Error::Cancelled),
            opened = opener.open() => opened?,
        }
        let (now_us, seed) =
            statement.entry().step(|s| *s.clock.get_or_insert_with(|| self.host.clock()));
        // From here on a recovered statement repeats the same work.
        statement.entry().keep().await?;
        Ok(Binding {
            opener,
            config: settings.plan,
            density: settings.lift,
            islands: Islands::new(),
            ran: Vec::new(),
            measures: false,
            now_us,
            seed,
            stop,
        })
    }

    /// Lowers until the statement is complete, and runs the islands it waits for.
    pub(super) async fn settle<T>(
        &self,
        binding: &mut Binding<'_>,
        statement: &Handle,
        mut lower: impl FnMut(&mut Context<'_>, &Planner<'_>) -> Result<T, tessera_frontend::Error>,
    ) -> Result<T, Error> {
        loop {
            match binding.lower(&mut lower)? {
                Settled::Ready(lowered) => return Ok(lowered),
                Settled::Waiting(island) => {
                    let done = self.run_island(binding, &island, statement).await?;
                    binding.islands.finish(*island, done);
                    statement.move_to(StatementState::Planning);
                }
            }
        }
    }

    async fn run_island(
        &self,
        binding: &mut Binding<'_>,
        island: &Island,
        statement: &Handle,
    ) -> Result<Done, Error> {
        match &island.work {
            Work::Values(rooted) => {
                let (tiling, dtype, shape) = plan(rooted, binding)?;
                let (results, stats) =
                    self.run(&tiling, &binding.opener.sources, statement).await?;
                let Some(chunks) = results.into_iter().next() else { return Err(lost()) };
                let mut grid = grid(&tiling);
                grid.axes.truncate(shape.len());
                binding.ran.push(Ran::Plan { tiling: tiling.clone(), stats: stats.into() });
                let runtime = &self.host.runtime;
                let whole = dense(&grid, chunks, runtime.pool(), &self.quota(statement))
                    .map_err(Error::stage)?;
                Ok(Done::Values(values(&whole, dtype, &shape)?))
            }
            Work::Compress(rooted) => {
                let (tiling, dtype, _) = plan(rooted, binding)?;
                let sink = Arc::new(Select::new(grid(&tiling), self.room(statement)));
                let stats = self
                    .run_into(&tiling, &binding.opener.sources, sink.clone(), statement)
                    .await?;
                binding.ran.push(Ran::Plan { tiling: tiling.clone(), stats: stats.into() });
                let chunk = chunk_cells(dtype, &binding.config);
                let array =
                    sink.finish(chunk, &|| statement.is_cancelled()).map_err(Error::stage)?;
                let plan = tiling.plan();
                let nullable =
                    plan.output(plan.results[0]).fields.len() > 1 && !array.is_unmasked();
                let version = version(&tiling, "selected");
                let kept = keep(&mut binding.opener.sources, dtype, nullable, array, version);
                Ok(Done::Arrays(vec![kept]))
            }
            Work::Distinct(rooted) => {
                let (tiling, dtype, _) = plan(rooted, binding)?;
                let sink = Arc::new(Distinct::new(dtype, &self.quota(statement)));
                let stats = self
                    .run_into(&tiling, &binding.opener.sources, sink.clone(), statement)
                    .await?;
                binding.ran.push(Ran::Plan { tiling: tiling.clone(), stats: stats.into() });
                let chunk = chunk_cells(DType::Int64, &binding.config);
                let [values, counts] = sink.finish(chunk).map_err(Error::stage)?;
                let sources = &mut binding.opener.sources;
                let of = |part| version(&tiling, part);
                let values = keep(sources, dtype, false, self.array(chunk, values), of("values"));
                let counts = self.array(chunk, counts);
                let counts = keep(sources, DType::Int64, false, counts, of("counts"));
                Ok(Done::Arrays(vec![values, counts]))
            }
            Work::Rows(rows) => self.run_rows(binding, rows, statement).await,
        }
    }
}

impl Session {
    /// Room for results of islands: memory, or files when memory is short.
    fn room(&self, statement: &Handle) -> Room {
        let runtime = &self.host.runtime;
        Room::new(self.quota(statement), runtime.pool().clone(), runtime.store().clone())
    }

    /// A 1-d array that may be spilled, from chunks of `chunk` cells each.
    fn array(&self, chunk: u64, chunks: Vec<Arc<Chunk>>) -> Arc<Resident> {
        let length: u64 = chunks.iter().map(|c| c.cells()).sum();
        let grid = Grid::regular(&[length], &[chunk.min(length.max(1))]);
        let array = Resident::new(grid, chunks);
        self.host.runtime.store().adopt(&array);
        array
    }

    /// Assembles the rows of a cell block into labelled tensors.
    async fn run_rows(
        &self,
        binding: &mut Binding<'_>,
        rows: &RowsToTensor,
        statement: &Handle,
    ) -> Result<Done, Error> {
        let plan = CellPlan::of(rows).map_err(Error::stage)?;
        let planned = PlannedCells::of_island(binding, plan.clone());
        let measured = Measured::default();
        let mut operators = None;
        let run = async {
            let mut cells = self.physical_cells(planned, &measured, statement).await?;
            let measuring = binding.measures.then(|| (cells.rows.measure(), Instant::now()));
            let Batches { schema, rows: mut batches } =
                self.stream_cells(cells, &binding.stop, statement).await?;
            let roles: Vec<Role> = rows
                .columns
                .iter()
                .zip(schema.fields())
                .map(|(column, field)| match column {
                    RowsColumn::Key(_) => Role::Key(counted(field)),
                    RowsColumn::Value(_) => Role::Value(counted(field)),
                })
                .collect();
            let mut assemble =
                Assemble::new(&schema, &roles, self.room(statement)).map_err(Error::stage)?;
            for (field, origin) in plan.orders.iter().enumerate() {
                if let Some(labels) = origin.as_ref().and_then(|of| of.labels.as_ref()) {
                    assemble.in_order(field, labels).map_err(Error::stage)?;
                }
            }
            while let Some(batch) = batches.next().await {
                assemble.push(&batch.map_err(rows_error)?).map_err(Error::stage)?;
            }
            drop(batches);
            operators = measuring
                .map(|(rows, started)| OperatorsRan::of(&rows, started.elapsed().as_secs_f64()));
            let target = binding.config.chunk_bytes_target;
            assemble.finish(target, &|| statement.is_cancelled()).map_err(Error::stage)
        };
        let assembled = tokio::select! {
            biased;
            () = statement.cancelled() => return Err(Error::Cancelled),
            assembled = run => assembled?,
        };
        binding.ran.push(rows_of_island(plan, &measured, operators));
        let sources = &mut binding.opener.sources;
        Ok(Done::Dataset(Arc::new(dataset(assembled, rows, &plan.orders, sources))))
    }
}

fn rows_of_island(plan: &CellPlan, measured: &Measured, operators: Option<OperatorsRan>) -> Ran {
    let logical = plan.logical_text();
    let mut text = format!("{logical}\n");
    if let Some(ran) = &operators {
        text.push_str(&operators_text(ran.operators()));
    }
    let mut tensor_plans = serde_json::Map::new();
    for scan in &plan.scans {
        let runs = measured.runs(&scan.name);
        text.extend(runs.iter().map(|run| format!("{} {}", scan.name, measurements(run))));
        let runs: serde_json::Value = runs.iter().map(as_json).collect();
        tensor_plans.insert(scan.name.clone(), serde_json::json!({"measured": runs}));
    }
    let on_workers = measured.on_workers();
    text.extend(on_workers.as_ref().map(rows_ran));
    text.extend(operators.as_ref().map(OperatorsRan::line));
    if !plan.scans.is_empty() {
        text.push_str(&format!("measured: {} rows of cells were built\n", measured.rows()));
    }
    let mut json = serde_json::json!({
        "logical": logical,
        "rows_of_cells_built": measured.rows(),
        "rows_on_workers": on_workers.as_ref().map(rows_ran_json),
        "tensor_plans": tensor_plans,
    });
    if let Some(ran) = &operators {
        json["operators"] = operators_json(ran.operators());
        ran.add_to(&mut json);
    }
    Ran::Rows { text, json }
}

/// The calendar of a column that counts microseconds and is not a timestamp.
fn counted(field: &arrow::datatypes::Field) -> Option<Calendar> {
    tessera_cells::lift::calendar(field).filter(|calendar| *calendar != Calendar::Standard)
}

/// Assembled rows as a dataset whose arrays are in memory. `origins` says where columns of the rows come from.
fn dataset(
    assembled: Assembled,
    rows: &RowsToTensor,
    origins: &[Option<ColumnOrigin>],
    sources: &mut Sources,
) -> Dataset {
    let mut names = Vec::new();
    let (mut dims, mut attrs) = (Vec::new(), Vec::new());
    for (at, column) in rows.columns.iter().enumerate() {
        match column {
            RowsColumn::Key(name) => {
                dims.push(name.clone());
                let origin = origins.get(at).and_then(Option::as_ref);
                attrs.push(origin.map(ColumnOrigin::label_attrs).unwrap_or_default());
            }
            RowsColumn::Value(name) => names.push(name.clone()),
        }
    }
    let coords: Vec<Arc<Coord>> = dims
        .iter()
        .zip(assembled.coords)
        .zip(attrs)
        .map(|((name, values), attrs)| {
            let name = name.clone();
            Arc::new(Coord { dim: name.clone(), name, values, attrs })
        })
        .collect();
    // Rows without keys have a single, unnamed dimension.
    let dims: Vec<Option<Arc<str>>> =
        if dims.is_empty() { vec![None] } else { dims.into_iter().map(Some).collect() };
    let url = format!("temp:island@{}", ISLANDS.fetch_add(1, Ordering::Relaxed));
    let variables = names
        .into_iter()
        .zip(assembled.values)
        .enumerate()
        .map(|(number, (name, value))| {
            let source = SourceRef {
                url: url.clone(),
                path: number.to_string(),
                dtype: value.dtype,
                shape: value.array.grid.shape(),
                grid: value.array.grid.clone(),
                nullable: value.nullable,
                version: None,
                plain: false,
            };
            sources.add(source.clone(), Origin::Resident(value.array));
            Variable {
                name,
                dims: dims.clone(),
                source,
                decode: Decode::default(),
                attrs: Attrs::new(),
            }
        })
        .collect();
    Dataset { name: "rows".into(), variables, coords, ..Dataset::default() }
}

/// The plan of an island, and the type and shape of its first root.
fn plan(rooted: &Rooted, binding: &Binding<'_>) -> Result<(Arc<Tiling>, DType, Vec<u64>), Error> {
    let Some(&root) = rooted.roots.first() else { return Err(lost()) };
    let node = rooted.graph.node(root);
    let tiling = binding.stop.compile(rooted.clone(), &binding.config, &mut |_, _| {})?;
    Ok((Arc::new(tiling), node.dtype, node.shape.to_vec()))
}

fn grid(tiling: &Tiling) -> Grid {
    tiling.plan().output(tiling.plan().results[0]).grid.clone()
}

/// Cells in a chunk of a 1-d result whose length was unknown: a function of the type and the configuration.
fn chunk_cells(dtype: DType, config: &PlanConfig) -> u64 {
    (config.chunk_bytes_target / dtype.size() as u64).max(1)
}

/// Registers a 1-d array as a source.
fn keep(
    sources: &mut Sources,
    dtype: DType,
    nullable: bool,
    array: Arc<Resident>,
    version: Option<String>,
) -> Arc<SourceRef> {
    let grid = array.grid.clone();
    let source = SourceRef {
        url: format!("temp:island@{}", ISLANDS.fetch_add(1, Ordering::Relaxed)),
        path: String::new(),
        dtype,
        shape: grid.shape(),
        grid,
        nullable,
        version,
        plain: false,
    };
    sources.add(source.clone(), Origin::Resident(array));
    Arc::new(source)
}

/// The version of a part of an island's result, if its inputs have versions.
fn version(tiling: &Tiling, part: &str) -> Option<String> {
    Keys::of(tiling.plan()).result(0).map(|key| format!("{part} {key}"))
}

/// The cells of a small tensor as a constant of the plan.
fn values(chunk: &Chunk, dtype: DType, shape: &[u64]) -> Result<ConstArray, Error> {
    let field = chunk.field(0).map_err(Error::stage)?;
    let masks = chunk.fields().get(1).filter(|_| !chunk.is_unmasked());
    let valid = masks.map(|f| Arc::from(f.buffer().as_slice()));
    Ok(ConstArray {
        dtype,
        shape: shape.into(),
        bytes: Arc::from(field.buffer().as_slice()),
        valid,
    })
}

fn lost() -> Error {
    Error::Internal { what: "an island has no result".into() }
}
