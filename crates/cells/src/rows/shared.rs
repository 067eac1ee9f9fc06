//! Rows that several parts of a query read and that are computed once.
//!
//! ```text
//! first poll of any reader ──▶ a task runs the plan ──▶ a file in scratch space ──▶ each reader, from its start
//! ```
//! The readers do not contain the plan, so a chain of such rows is planned and run link by link. The task ends with
//! the statement.

use super::measured::of_operator;
use super::single::{self, shown, usual};
use datafusion::arrow::datatypes::SchemaRef;
use datafusion::catalog::{Session, TableProvider};
use datafusion::common::runtime::SpawnedTask;
use datafusion::error::{DataFusionError, Result};
use datafusion::execution::spill_file::SpillFile;
use datafusion::execution::{SendableRecordBatchStream, TaskContext};
use datafusion::logical_expr::{Expr, TableType};
use datafusion::physical_plan::metrics::{ExecutionPlanMetricsSet, SpillMetrics};
use datafusion::physical_plan::spill::SpillManager;
use datafusion::physical_plan::stream::RecordBatchStreamAdapter;
use datafusion::physical_plan::{ExecutionPlan, PlanProperties, execute_stream};
use futures::future::{BoxFuture, Shared};
use futures::{FutureExt, StreamExt, TryStreamExt, stream};
use std::fmt;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

/// The file with the rows, or `None` if there are no rows.
type Made = std::result::Result<Option<Arc<dyn SpillFile>>, Arc<DataFusionError>>;

pub(super) struct SharedTable {
    name: String,
    schema: SchemaRef,
    plan: OnceLock<Arc<dyn ExecutionPlan>>,
    made: Mutex<Option<Shared<BoxFuture<'static, Made>>>>,
}

impl SharedTable {
    /// Rows of that schema. A plan must be set with [`SharedTable::made_by`] before the first read.
    pub(super) fn new(name: String, schema: SchemaRef) -> Self {
        SharedTable { name, schema, plan: OnceLock::new(), made: Mutex::default() }
    }

    /// Sets the plan that computes the rows.
    ///
    /// # Errors
    /// [`DataFusionError::Internal`] if it is set already.
    pub(super) fn made_by(&self, plan: Arc<dyn ExecutionPlan>) -> Result<()> {
        let again = |_| DataFusionError::Internal(format!("{} has a plan already", self.name));
        self.plan.set(plan).map_err(again)
    }

    fn rows(self: Arc<Self>, context: Arc<TaskContext>) -> Result<SendableRecordBatchStream> {
        let files = self.files(&context);
        let made = {
            let mut made = self.made.lock().unwrap_or_else(PoisonError::into_inner);
            match &*made {
                Some(made) => made.clone(),
                None => {
                    let missing =
                        || DataFusionError::Internal(format!("{} has no plan", self.name));
                    let plan = self.plan.get().ok_or_else(missing)?.clone();
                    let files = files.clone();
                    // Its bytes count for the first reader, whoever traces the tasks of DataFusion.
                    let task = SpawnedTask::spawn(of_operator(async move {
                        write(plan, &files, context).await.map_err(Arc::new)
                    }));
                    let joined = task.map(|ended| match ended {
                        Ok(made) => made,
                        Err(e) => Err(Arc::new(DataFusionError::ExecutionJoin(Box::new(e)))),
                    });
                    made.insert(joined.boxed().shared()).clone()
                }
            }
        };
        let schema = self.schema.clone();
        let rows = stream::once(async move {
            match made.await {
                Ok(Some(file)) => files.read_spill_as_stream(file, None),
                Ok(None) => {
                    let none = stream::empty();
                    Ok(Box::pin(RecordBatchStreamAdapter::new(files.schema().clone(), none)) as _)
                }
                Err(e) => Err(DataFusionError::Shared(e)),
            }
        });
        Ok(Box::pin(RecordBatchStreamAdapter::new(schema, rows.try_flatten())))
    }

    fn files(&self, context: &TaskContext) -> SpillManager {
        let metrics = SpillMetrics::new(&ExecutionPlanMetricsSet::new(), 0);
        SpillManager::new(context.runtime_env(), metrics, self.schema.clone())
    }
}

async fn write(
    plan: Arc<dyn ExecutionPlan>,
    files: &SpillManager,
    context: Arc<TaskContext>,
) -> Result<Option<Arc<dyn SpillFile>>> {
    let mut file = files.create_in_progress_file("storing rows that are read several times")?;
    let mut rows = execute_stream(plan, context)?;
    while let Some(batch) = rows.next().await {
        file.append_batch(&batch?)?;
    }
    file.finish()
}

impl fmt::Debug for SharedTable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SharedTable").field("name", &self.name).finish_non_exhaustive()
    }
}

#[derive(Debug)]
pub(super) struct SharedProvider(pub(super) Arc<SharedTable>);

#[async_trait::async_trait]
impl TableProvider for SharedProvider {
    fn schema(&self) -> SchemaRef {
        self.0.schema.clone()
    }

    fn table_type(&self) -> TableType {
        TableType::Temporary
    }

    async fn scan(
        &self,
        _: &dyn Session,
        projection: Option<&Vec<usize>>,
        _: &[Expr],
        _: Option<usize>,
    ) -> Result<Arc<dyn ExecutionPlan>> {
        let schema = match projection {
            Some(columns) => Arc::new(self.0.schema.project(columns)?),
            None => self.0.schema.clone(),
        };
        Ok(Arc::new(SharedExec {
            table: self.0.clone(),
            projection: projection.cloned(),
            properties: single::properties(schema.clone()),
            schema,
        }))
    }
}

/// A reader: one partition with some of the columns.
#[derive(Debug)]
struct SharedExec {
    table: Arc<SharedTable>,
    projection: Option<Vec<usize>>,
    schema: SchemaRef,
    properties: Arc<PlanProperties>,
}

shown!(SharedExec, |node, f| write!(f, "SharedExec: {}", node.table.name));

impl ExecutionPlan for SharedExec {
    usual!(name, properties, no_inputs, no_expressions);

    fn execute(
        &self,
        partition: usize,
        context: Arc<TaskContext>,
    ) -> Result<SendableRecordBatchStream> {
        single::check(self.name(), partition)?;
        let (table, projection) = (self.table.clone(), self.projection.clone());
        // The first poll starts the computation.
        let begun = async move { table.rows(context) };
        let rows = stream::once(begun).try_flatten().map(move |batch| match &projection {
            Some(columns) => Ok(batch?.project(columns)?),
            None => batch,
        });
        Ok(Box::pin(RecordBatchStreamAdapter::new(self.schema.clone(), rows)))
    }
}
