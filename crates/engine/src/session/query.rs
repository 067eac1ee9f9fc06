use crate::Handle;
use crate::answer::{Answer, Chunked, Chunks, Filling, Reply, Stats, Surface};
use crate::error::Error;
use crate::session::Session;
use crate::session::bind::Binding;
use crate::session::collect::{Collect, Join, Store};
use crate::session::explain::Passes;
use crate::session::open::Kept;
use crate::session::run::Results;
use sqlparser::ast::Query;
use std::sync::Arc;
use tessera_exec::chunk::Chunk;
use tessera_exec::schedule::{Sink, Stats as ExecStats};
use tessera_exec::store::{Fill, Resident};
use tessera_exec::task::Sources;
use tessera_frontend::surface::{Decision, Surface as BlockSurface};
use tessera_frontend::{Labels, Lowered};
use tessera_planner::cost::cost;
use tessera_planner::explain;
use tessera_planner::grid::Grid;
use tessera_planner::key::Keys;
use tessera_planner::optimize::Rooted;
use tessera_planner::plan::OutputRef;
use tessera_planner::tile::Tiling;

/// Upper bound on the chunks of a result that is retained as a whole: a list of them is made.
const RESULT_CHUNKS_MAX: u64 = 1 << 26;

/// Results from this size on may be computed into one piece of memory; below, copying them afterwards costs nothing.
const PIECE_BYTES_MIN: u64 = 1 << 20;

/// A query that is ready to run.
pub(super) struct Planned {
    pub(super) tiling: Arc<Tiling>,
    pub(super) labels: Vec<Labels>,
    pub(super) sources: Sources,
    /// Passes that changed the graph, with the graph after each.
    pub(super) trace: Passes,
    /// The surface of the outermost block: a cell block returns tensors if it has `[dim]` items.
    pub(super) surface: BlockSurface,
    pub(super) reason: String,
    pub(super) plan_s: f64,
}

impl Session {
    pub(super) async fn query(&self, query: &Query, statement: &Handle) -> Result<Reply, Error> {
        if statement.wants_tensors() {
            return self.query_tensors(query, statement).await;
        }
        let binding = self.bind(query, statement).await?;
        let decision = binding.decide(query);
        if !binding.is_tensor(query) {
            return self.run_cells(binding, query, &decision, statement).await;
        }
        let planned = self.plan_bound(binding, query, statement).await?;
        self.answer_planned(planned, statement).await
    }

    /// Runs a query of either surface whose result is tensors: keys and labels of rows become dimensions.
    pub(super) async fn query_tensors(
        &self,
        query: &Query,
        statement: &Handle,
    ) -> Result<Reply, Error> {
        let planned = self.plan(query, statement).await?;
        self.answer_planned(planned, statement).await
    }

    async fn answer_planned(&self, planned: Planned, statement: &Handle) -> Result<Reply, Error> {
        let results = self.run_results(&planned, statement).await?;
        let runtime = &self.host.runtime;
        let results = planned
            .labels
            .into_iter()
            .zip(results)
            .zip(&planned.tiling.plan().results)
            .map(|((labels, chunks), out)| {
                let grid = grid_of(&planned.tiling, *out, &labels);
                Chunked { labels, grid, chunks, pool: runtime.pool().clone() }
            })
            .collect();
        Ok(Reply {
            answer: Answer::Chunked(results),
            surface: Some(surface(planned.surface)),
            stats: Stats { plan_s: planned.plan_s, ..Stats::default() },
        })
    }

    /// Runs a plan and stores its results: small ones in memory, others in a file. A caller that [asked for
    /// it](Handle::in_one_piece) gets each in one piece, if they leave most of the memory to the plan.
    async fn run_results(
        &self,
        planned: &Planned,
        statement: &Handle,
    ) -> Result<Vec<Chunks>, Error> {
        let (tiling, sources) = (&planned.tiling, &planned.sources);
        let cost = cost(tiling);
        if let Some(join) = self.in_one_piece(planned, cost.result_bytes, statement) {
            let join = Arc::new(join);
            self.run_into(tiling, sources, join.clone(), statement).await?;
            return join.finish().map_err(Error::stage);
        }
        if cost.result_bytes <= self.memory_result_bytes {
            let arrays = self.run_arrays(planned, statement).await?;
            return Ok(arrays.into_iter().map(Chunks::Resident).collect());
        }
        let grids = grids(tiling);
        let limit = self.host.scratch.limit();
        check_chunks(&grids)?;
        if cost.result_bytes > limit {
            return Err(Error::stage(tessera_exec::error::Error::NoPlace {
                result_bytes: cost.result_bytes,
                memory_bytes: self.memory_result_bytes,
                scratch_bytes: limit,
            }));
        }
        let store = Arc::new(Store::new(grids, &self.host.scratch)?);
        match self.run_into(tiling, sources, store.clone(), statement).await {
            Ok(_) => store.finish(),
            Err(e) => Err(store.failure().unwrap_or(e)),
        }
    }

    /// Memory for results in one piece each; `None` if the caller does not want it, or if chunks are
    /// better, which can be spilled.
    fn in_one_piece(&self, planned: &Planned, bytes: u64, statement: &Handle) -> Option<Join> {
        if !statement.wants_one_piece() {
            return None;
        }
        let (runtime, tiling) = (&self.host.runtime, &planned.tiling);
        let quota = self.quota(statement);
        let fits =
            (PIECE_BYTES_MIN..=quota.limit().min(runtime.quota().limit()) / 4).contains(&bytes);
        let outs = planned.labels.iter().zip(&tiling.plan().results);
        let grids: Vec<Grid> = outs.map(|(labels, out)| grid_of(tiling, *out, labels)).collect();
        // One chunk is one piece.
        if !fits || grids.iter().all(|grid| grid.count() <= 1) {
            return None;
        }
        let account = quota.account();
        let fillings = planned.labels.iter().zip(grids).map(|(labels, grid)| {
            let (dtype, nullable) = (labels.dtype, labels.nullable);
            let charge = account.try_reserve(Filling::bytes(&grid, dtype, nullable))?;
            // Without memory for a piece there may be memory for chunks.
            Filling::new(grid, dtype, nullable, runtime.pool(), charge).ok()
        });
        Some(Join(fillings.collect::<Option<_>>()?))
    }

    /// Runs a plan and stores its results as arrays, which may be spilled.
    async fn run_arrays(
        &self,
        planned: &Planned,
        statement: &Handle,
    ) -> Result<Vec<Arc<Resident>>, Error> {
        let (runtime, tiling) = (&self.host.runtime, &planned.tiling);
        let cost = cost(tiling);
        let limit = self.quota(statement).limit().saturating_add(runtime.store().limit());
        check_chunks(&grids(tiling))?;
        if cost.result_bytes > limit {
            return Err(Error::stage(tessera_exec::error::Error::ResultTooLarge {
                result_bytes: cost.result_bytes,
                limit_bytes: limit,
            }));
        }
        let outs = planned.labels.iter().zip(&tiling.plan().results);
        let account = self.quota(statement).account();
        let arrays = outs.map(|(labels, out)| {
            Resident::charged(grid_of(tiling, *out, labels), &account).map_err(Error::stage)
        });
        let arrays: Vec<Arc<Resident>> = arrays.collect::<Result<_, _>>()?;
        arrays.iter().for_each(|a| runtime.store().adopt(a));
        let sink = Arc::new(Fill(arrays.clone()));
        self.run_into(tiling, &planned.sources, sink, statement).await?;
        Ok(arrays)
    }

    /// Runs a tensor query and stores its results as arrays, which may be spilled.
    pub(super) async fn run_tensors(
        &self,
        query: &Query,
        statement: &Handle,
    ) -> Result<(Vec<Kept>, Reply), Error> {
        let planned = self
            .plan_with(query, statement, |lowered| {
                lowered.as_dataset();
                Ok(())
            })
            .await?;
        let arrays = self.run_arrays(&planned, statement).await?;
        let keys = Keys::of(planned.tiling.plan());
        let kept = planned.labels.into_iter().zip(arrays).enumerate();
        let kept = kept.map(|(i, (mut labels, array))| {
            let version = keys.result(i).map(|k| k.to_string());
            // A nullable result without masked cells is stored without a mask.
            if labels.nullable && array.is_unmasked() {
                labels.nullable = false;
                array.drop_masks();
            }
            Kept { labels, array, version }
        });
        let kept = kept.collect();
        let stats = Stats { plan_s: planned.plan_s, ..Stats::default() };
        Ok((
            kept,
            Reply { answer: Answer::Tensors(Vec::new()), surface: Some(Surface::Tensor), stats },
        ))
    }

    /// Binds and plans a query of either surface whose result is tensors. Runs the islands that the query waits for.
    pub(super) async fn plan(&self, query: &Query, statement: &Handle) -> Result<Planned, Error> {
        self.plan_with(query, statement, |_| Ok(())).await
    }

    /// Like [`Session::plan`], for a query whose relations are open.
    pub(super) async fn plan_bound(
        &self,
        mut binding: Binding<'_>,
        query: &Query,
        statement: &Handle,
    ) -> Result<Planned, Error> {
        let decision = binding.decide(query);
        let lowered = self
            .settle(&mut binding, statement, |context, _| {
                tessera_frontend::lower_tensor(query, context)
            })
            .await?;
        planned(binding, &decision, lowered, false)
    }

    /// Like [`Session::plan`]; `shape` may move the results to other grids before they are planned.
    pub(super) async fn plan_with(
        &self,
        query: &Query,
        statement: &Handle,
        shape: impl FnOnce(&mut Lowered) -> Result<(), Error>,
    ) -> Result<Planned, Error> {
        let mut binding = self.bind(query, statement).await?;
        let decision = binding.decide(query);
        let mut lowered = self
            .settle(&mut binding, statement, |context, _| {
                tessera_frontend::lower_any(query, context)
            })
            .await?;
        shape(&mut lowered)?;
        planned(binding, &decision, lowered, false)
    }

    /// Runs a plan and returns the chunks of its results.
    pub(super) async fn run(
        &self,
        tiling: &Arc<Tiling>,
        sources: &Sources,
        statement: &Handle,
    ) -> Result<(Vec<Vec<Arc<Chunk>>>, ExecStats), Error> {
        let grids = grids(tiling);
        let cost = cost(tiling);
        let quota = self.quota(statement);
        check_chunks(&grids)?;
        if cost.result_bytes > quota.limit() {
            return Err(Error::stage(tessera_exec::error::Error::ResultTooLarge {
                result_bytes: cost.result_bytes,
                limit_bytes: quota.limit(),
            }));
        }
        let sink = Arc::new(Collect::new(grids));
        let stats = self.run_into(tiling, sources, sink.clone(), statement).await?;
        Ok((sink.finish().map_err(Error::stage)?, stats))
    }

    /// Runs a plan whose results all go to `sink`.
    pub(super) async fn run_into(
        &self,
        tiling: &Arc<Tiling>,
        sources: &Sources,
        sink: Arc<dyn Sink>,
        statement: &Handle,
    ) -> Result<ExecStats, Error> {
        self.execution(statement).run_plan(tiling, sources, sink, Results::Whole).await
    }
}

/// Limits the chunks of a result that is retained as a whole, because a list of them is made.
fn check_chunks(grids: &[Grid]) -> Result<(), Error> {
    match grids.iter().map(Grid::count).find(|&count| count > RESULT_CHUNKS_MAX) {
        Some(chunks) => Err(Error::stage(tessera_exec::error::Error::ResultChunks {
            chunks,
            limit: RESULT_CHUNKS_MAX,
        })),
        None => Ok(()),
    }
}

fn grids(tiling: &Tiling) -> Vec<Grid> {
    let plan = tiling.plan();
    plan.results.iter().map(|r| plan.output(*r).grid.clone()).collect()
}

/// The grid of a result with the axes of its labels.
fn grid_of(tiling: &Tiling, out: OutputRef, labels: &Labels) -> Grid {
    let mut grid = tiling.plan().output(out).grid.clone();
    // A product's chunks have last axes of length 1 more than its labels, one for each summed axis.
    grid.axes.truncate(labels.shape.len());
    grid
}

/// Converts to the surface that answers name.
pub(super) fn surface(of: BlockSurface) -> Surface {
    match of {
        BlockSurface::Tensor => Surface::Tensor,
        BlockSurface::Cell => Surface::Cell,
    }
}

pub(super) fn planned(
    binding: Binding<'_>,
    decision: &Decision,
    lowered: Lowered,
    trace: bool,
) -> Result<Planned, Error> {
    let mut passes = Passes::new();
    if trace {
        passes.push(("lower", explain::graph(&lowered.rooted)));
    }
    let tiling =
        binding.stop.compile(lowered.rooted, &binding.config, &mut |name, graph: &Rooted| {
            if trace {
                passes.push((name, explain::graph(graph)));
            }
        })?;
    // Folding removes a mask that hides nothing.
    let plan = tiling.plan();
    let mut labels = lowered.outputs;
    for (labels, out) in labels.iter_mut().zip(&plan.results) {
        labels.nullable &= plan.output(*out).fields.len() > 1;
    }
    Ok(Planned {
        tiling: Arc::new(tiling),
        labels,
        sources: binding.opener.sources,
        trace: passes,
        surface: decision.surface,
        reason: decision.reason.to_string(),
        plan_s: binding.stop.started().elapsed().as_secs_f64(),
    })
}
