//! Plans and runs cell queries: DataFusion's plans over tables that tensor plans fill.

use super::constants::rows_of_batches;
use super::guard::guarded;
use super::large_top::with_large_limits_sorted;
use super::measured::RowsMeasured;
use super::physical::physical;
use super::remote::{RowsOnWorkers, RowsSpread, Spreading};
use super::runtime::{RowsRuntime, RowsState};
use super::shared::{SharedProvider, SharedTable};
use super::splits::{
    JoinRules, SplitSize, with_coded_groups, with_dictionaries, with_exact_sorts, with_grace_joins,
};
use super::stop::{await_in_place, measurable, stoppable};
use super::table::{TensorTable, tensor_scans};
use super::{IsStopped, RunTensor, attach};
use crate::error::Error;
use crate::lift::{CellPlan, SharedRows, TensorScan};
use arrow::datatypes::SchemaRef;
use arrow::record_batch::RecordBatch;
use datafusion::catalog::TableProvider;
use datafusion::common::internal_datafusion_err;
use datafusion::error::DataFusionError;
use datafusion::execution::{SendableRecordBatchStream, SessionState, TaskContext};
use datafusion::logical_expr::LogicalPlan;
use datafusion::physical_plan::{ExecutionPlan, execute_stream};
use futures::stream::{self, BoxStream, StreamExt};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use tessera_exec::quota::Quota;
use tokio::sync::mpsc;

/// A cell query with DataFusion's physical plan.
pub struct PhysicalRows {
    plan: Arc<dyn ExecutionPlan>,
    /// Relations that are read by name and computed once, with the plan of each.
    shared: Vec<(Arc<SharedTable>, Arc<dyn ExecutionPlan>)>,
    /// The parts of the plans that workers compute.
    spreading: Option<Arc<Spreading>>,
    rows: RowsState,
    pub(super) measured: Option<Arc<RowsMeasured>>,
}

/// The rows of a query, computed as they are read. Dropping them stops the query.
pub struct Batches {
    /// Names and types of the columns.
    pub schema: SchemaRef,
    /// The rows.
    pub rows: BoxStream<'static, Result<RecordBatch, Error>>,
}

impl RowsState {
    /// Lets DataFusion plan a cell query; `runner` runs its tensor plans, and `exploded` counts the rows that are built
    /// from cells. Threads compute about `chunk_bytes` bytes of rows at a time; the bits of sums of floats depend on it.
    /// DataFusion works in a task of its own, which a caller that no longer waits leaves behind.
    ///
    /// With `spread` some parts compute on workers; their rows and the bits of these are the same.
    ///
    /// # Errors
    /// DataFusion's.
    pub async fn physical(
        &self,
        plan: CellPlan,
        runner: Arc<dyn RunTensor>,
        chunk_bytes: u64,
        exploded: &Arc<AtomicU64>,
        spread: Option<RowsSpread>,
    ) -> Result<PhysicalRows, Error> {
        let state = self.get()?;
        let spreading = spread.map(|spread| Spreading::new(spread, self.runtime.clone()));
        let size = SplitSize::of(chunk_bytes);
        let table = |scan: TensorScan| {
            let name = scan.name.clone();
            let table = TensorTable::new(scan, runner.clone(), exploded.clone());
            (name, Arc::new(table) as Arc<dyn TableProvider>)
        };
        let mut tables: BTreeMap<String, Arc<dyn TableProvider>> =
            plan.scans.into_iter().map(table).collect();
        let mut shared = Vec::new();
        for SharedRows { name, logical } in plan.shared {
            let schema = logical.schema().inner().clone();
            let logical = attach(logical, &tables)?;
            let plan = self.runtime.physical(state, logical, size, spreading.clone()).await?;
            let table = Arc::new(SharedTable::new(name.clone(), schema));
            tables.insert(name, Arc::new(SharedProvider(table.clone())));
            shared.push((table, plan));
        }
        let logical = attach(plan.logical, &tables)?;
        let plan = self.runtime.physical(state, logical, size, spreading.clone()).await?;
        Ok(PhysicalRows { plan, shared, spreading, rows: self.clone(), measured: None })
    }
}

impl RowsState {
    /// The rows of a plan over tables alone.
    pub(crate) async fn rows_of(&self, plan: Arc<dyn ExecutionPlan>) -> Result<Batches, Error> {
        let state = self.get()?;
        let (quota, batch_rows) = (state.config().get_extension(), state.config().batch_size());
        let plan = guarded(plan, Some(&self.runtime.places), quota.as_ref(), batch_rows)?;
        let config = state.config().clone();
        let context = self.runtime.task_context(state, config, None, batch_rows, None);
        self.runtime.rows(plan, context).await
    }
}

impl PhysicalRows {
    /// The scans of tensor plans in all its plans, each with the columns and roots that remain after projection.
    pub fn scans(&self) -> Vec<Arc<TensorScan>> {
        self.plans().flat_map(tensor_scans).collect()
    }

    /// The plans of the shared relations, then that of the answer.
    pub(super) fn plans(&self) -> impl Iterator<Item = &Arc<dyn ExecutionPlan>> {
        self.shared.iter().map(|(_, plan)| plan).chain([&self.plan])
    }

    /// The parts of its rows that workers compute.
    pub fn on_workers(&self) -> RowsOnWorkers {
        self.spreading.as_ref().map(|spreading| spreading.found()).unwrap_or_default()
    }

    /// Starts the query. Its rows are charged to `budget`, if there is one, and end with an error once `is_stopped`
    /// returns true.
    ///
    /// # Errors
    /// DataFusion's.
    pub async fn stream(
        self,
        budget: Option<&Arc<Quota>>,
        is_stopped: IsStopped,
    ) -> Result<Batches, Error> {
        let PhysicalRows { plan, shared, spreading, rows, measured } = self;
        let (state, runtime) = (rows.get()?, &rows.runtime);
        let share = runtime.memory.share_within(budget);
        let usual = state.config().batch_size();
        let mut batch_rows = usual;
        let (tables, mut plans): (Vec<_>, Vec<_>) = shared.into_iter().unzip();
        plans.push(plan);
        let rules = JoinRules::of(&plans)?;
        let ends = state.runtime_env().cache_manager.get_file_metadata_cache();
        let mut ready = |plan| {
            let plan = with_large_limits_sorted(plan, share)?;
            batch_rows = batch_rows.min(rows_of_batches(&plan, usual, share / 4)?);
            let plan = with_grace_joins(plan, rules, &is_stopped)?;
            let plan = with_dictionaries(with_exact_sorts(plan, rules)?, &*ends)?;
            let plan = with_coded_groups(plan)?;
            // Last: it hides the operators that the other steps look for.
            match &measured {
                Some(_) => measurable(plan, &is_stopped),
                None => stoppable(plan, &is_stopped),
            }
        };
        let plans = plans.into_iter().map(&mut ready);
        let plans = plans.collect::<Result<Vec<_>, DataFusionError>>()?;
        if let Some(measured) = &measured {
            measured.begun(&plans);
        }
        // After all that wraps operators: parts that compute elsewhere remain as they were encoded.
        let (mut plans, config) = match &spreading {
            Some(spreading) => spreading.distributed(plans, state, share, &is_stopped).await?,
            None => (plans, state.config().clone()),
        };
        let plan = plans.pop().ok_or_else(|| internal_datafusion_err!("a query has no plan"))?;
        for (table, plan) in tables.into_iter().zip(plans) {
            table.made_by(plan)?;
        }
        let peak = measured.map(|measured| measured.peak().clone());
        let context = runtime.task_context(state, config, budget, batch_rows, peak);
        runtime.rows(plan, context).await
    }
}

impl RowsRuntime {
    /// DataFusion's physical plan of a logical one.
    async fn physical(
        &self,
        state: &SessionState,
        logical: LogicalPlan,
        size: SplitSize,
        spreading: Option<Arc<Spreading>>,
    ) -> Result<Arc<dyn ExecutionPlan>, Error> {
        let permit = self.permit().await?;
        let (state, threads) = (state.clone(), self.threads()?);
        // Gone once the caller no longer waits.
        let caller = Arc::new(());
        let waits = Arc::downgrade(&caller);
        let is_stopped: IsStopped = Arc::new(move || waits.strong_count() == 0);
        let planned = tokio::spawn(async move {
            let _permit = permit;
            let plan = physical(&state, &logical, size, spreading.as_deref(), &is_stopped);
            await_in_place(&threads, plan).await
        });
        let planned = planned.await.map_err(|e| DataFusionError::ExecutionJoin(Box::new(e)))?;
        Ok(planned?)
    }

    /// The rows of a plan, computed by another task.
    async fn rows(
        &self,
        plan: Arc<dyn ExecutionPlan>,
        context: TaskContext,
    ) -> Result<Batches, Error> {
        let permit = self.permit().await?;
        let threads = self.threads()?;
        let mut rows: SendableRecordBatchStream = {
            let _inside = threads.enter();
            execute_stream(plan, Arc::new(context))?
        };
        let schema = rows.schema();
        let (send, receive) = mpsc::channel(1);
        let made = async move {
            loop {
                let batch = tokio::select! {
                    biased;
                    () = send.closed() => return,
                    batch = rows.next() => batch,
                };
                let Some(batch) = batch else { return };
                if send.send(batch).await.is_err() {
                    return;
                }
            }
        };
        let task = tokio::spawn(async move {
            let _permit = permit;
            await_in_place(&threads, made).await;
        });
        let batches = stream::unfold(receive, |mut receive| async move {
            receive.recv().await.map(|batch| (batch, receive))
        });
        // A task that panicked has not sent all rows.
        let end = stream::once(task).filter_map(|ended| async move {
            ended.err().map(|e| Err(DataFusionError::ExecutionJoin(Box::new(e))))
        });
        Ok(Batches { schema, rows: batches.chain(end).map(|batch| Ok(batch?)).boxed() })
    }
}
