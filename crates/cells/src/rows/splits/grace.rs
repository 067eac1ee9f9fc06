//! Hash joins whose first side may be larger than memory.
//!
//! ```text
//! first side ──▶ rows in memory ──▶ HashJoinExec: a table of them, and the second side row by row
//!                     │ refused         │ refused, before the second side is read
//!                     └─────────────────┴──▶ files: both sides in parts by the hash of the keys
//! ```
//! The join in files is a grace hash join (Kitsuregawa, Tanaka, Moto-oka: Application of Hash to Data Base Machine and
//! Its Architecture, 1983; [`files`]). Both forms yield the same rows in the same order, whatever the memory: the rows of
//! the second side in their order, also those without a match, each with its matches in the order of the first side; then
//! rows of the first side, in their order. DataFusion's own order depends on the ends of batches in three places:
//! * RIGHT JOIN has the rows of a batch without a match behind the others, if nothing is known of the order of the second
//!   side. Here it is in the order of the numbers of its rows.
//! * FULL JOIN always has them there ([`numbers::reordered`]).
//! * Rows of the first side come batch by batch, the last one first. Here they are one batch.
//!
//! In memory, matches of integers between close bounds are found in an array, those of many other keys in a table that all
//! threads fill ([`lookup`]).
//!
//! Where sums of floats depend on the ends of batches, these are the same in both forms, too ([`JoinRules::is_exact`]).

mod files;
mod lookup;
mod numbers;
#[cfg(test)]
mod tests;

use super::gather::{coalesced, exactly, yields_build_side};
use super::in_order::is_out_of_memory;
use super::last::{Others, ending_last};
use super::once::OnceExec;
use super::sort::limited;
use super::through::Rows;
use crate::rows::IsStopped;
use crate::rows::single::usual;
use crate::walk::Walk;
use datafusion::arrow::compute::concat_batches;
use datafusion::arrow::record_batch::RecordBatch;
use datafusion::common::utils::memory::RecordBatchMemoryCounter;
use datafusion::common::{JoinType, internal_datafusion_err, internal_err};
use datafusion::error::{DataFusionError, Result};
use datafusion::execution::memory_pool::{MemoryConsumer, MemoryReservation};
use datafusion::execution::{SendableRecordBatchStream, TaskContext};
use datafusion::physical_expr::PhysicalExpr;
use datafusion::physical_expr::expressions::DynamicFilterPhysicalExpr;
use datafusion::physical_plan::aggregates::AggregateExec;
use datafusion::physical_plan::joins::{HashJoinExec, PartitionMode};
use datafusion::physical_plan::stream::RecordBatchStreamAdapter;
use datafusion::physical_plan::{DisplayAs, DisplayFormatType, ExecutionPlan};
use files::Spilled;
use futures::future::{BoxFuture, Shared};
use futures::stream;
use futures::{FutureExt, StreamExt, TryStreamExt};
use lookup::Lookup;
use numbers::{numbered, over, reordered, when_read, without_numbers};
use std::any::Any;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

/// The columns of the numbers of rows.
const NUMBER_OF_FIRST: &str = "__first";
const NUMBER_OF_SECOND: &str = "__second";

/// A result that the partitions of a join await together.
type Once<T> = Shared<BoxFuture<'static, std::result::Result<Arc<T>, Arc<DataFusionError>>>>;

fn once<T: Send + Sync + 'static>(
    work: impl Future<Output = Result<T>> + Send + 'static,
) -> Once<T> {
    work.map(|done| done.map(Arc::new).map_err(Arc::new)).boxed().shared()
}

#[derive(Debug, Clone, Copy)]
pub(in crate::rows) struct JoinRules {
    /// If false, a join fails whose first side does not fit into memory.
    pub(in crate::rows) may_spill: bool,
    /// True if all batches of a partition but the last one have the same number of rows.
    pub(in crate::rows) is_exact: bool,
}

impl JoinRules {
    /// Parts of a plan that workers compute: their batches are the same everywhere. A worker would join all splits for
    /// the few that it computes, so there is no join in files.
    pub(in crate::rows) const ON_WORKERS: Self = JoinRules { may_spill: false, is_exact: true };

    /// Parts of workers, in a process that computes all splits that workers leave to it.
    pub(in crate::rows) const IN_PLACE_OF_WORKERS: Self =
        JoinRules { may_spill: true, is_exact: true };

    /// Plans of one statement.
    pub(in crate::rows) fn of(plans: &[Arc<dyn ExecutionPlan>]) -> Result<Self> {
        for plan in plans {
            if plan.any(|node| Ok(adds_by_batches(node)))? {
                return Ok(JoinRules { may_spill: true, is_exact: true });
            }
        }
        Ok(JoinRules { may_spill: true, is_exact: false })
    }
}

/// True for aggregates whose last bits depend on the ends of batches: without groups, floats of a batch are added by
/// several lanes; a sketch of quantiles is compressed after each batch.
fn adds_by_batches(node: &Arc<dyn ExecutionPlan>) -> bool {
    let Some(aggregate) = node.downcast_ref::<AggregateExec>() else { return false };
    let has_groups = !aggregate.group_expr().is_true_no_grouping();
    aggregate.aggr_expr().iter().any(|call| {
        let name = call.fun().name();
        let is_float = call.field().data_type().is_floating();
        let is_added = is_float && !["min", "max"].contains(&name);
        name.starts_with("approx_") || (is_added && !has_groups)
    })
}

/// The plan with joins that go to files if memory is short. Joins of NOT IN with missing keys remain as they are.
pub(in crate::rows) fn with_grace_joins(
    plan: Arc<dyn ExecutionPlan>,
    rules: JoinRules,
    is_stopped: &IsStopped,
) -> Result<Arc<dyn ExecutionPlan>> {
    plan.replace_up(|node| {
        let join = node.downcast_ref::<HashJoinExec>();
        let join = join.filter(|join| {
            *join.partition_mode() == PartitionMode::CollectLeft && !join.null_aware
        });
        let Some(join) = join else { return Ok(None) };
        let join = Arc::new(join.builder().build()?);
        let (how, others) = (How { rules, is_stopped: is_stopped.clone() }, None);
        Ok(Some(Arc::new(GraceJoinExec::new(join, how, others))))
    })
}

#[derive(Clone)]
struct How {
    rules: JoinRules,
    is_stopped: IsStopped,
}

/// A hash join, in memory or in files.
pub(super) struct GraceJoinExec {
    /// The join, which has the inputs. It is not executed itself.
    join: Arc<HashJoinExec>,
    how: How,
    /// The other partitions, if the last one is to end behind them.
    others: Option<Others>,
    build: OnceLock<Once<Build>>,
}

impl GraceJoinExec {
    fn new(join: Arc<HashJoinExec>, how: How, others: Option<Others>) -> Self {
        GraceJoinExec { join, how, others, build: OnceLock::new() }
    }

    pub(super) fn join(&self) -> &HashJoinExec {
        &self.join
    }

    /// The same join, which has not begun. Its last partition ends behind the others.
    pub(super) fn ending_last(&self, others: &Others) -> Self {
        GraceJoinExec::new(self.join.clone(), self.how.clone(), Some(others.clone()))
    }

    fn of(&self, join: HashJoinExec) -> Arc<dyn ExecutionPlan> {
        Arc::new(GraceJoinExec::new(Arc::new(join), self.how.clone(), self.others.clone()))
    }
}

impl fmt::Debug for GraceJoinExec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("GraceJoinExec").field("join", &self.join).finish_non_exhaustive()
    }
}

impl DisplayAs for GraceJoinExec {
    fn fmt_as(&self, format: DisplayFormatType, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("GraceJoinExec: ")?;
        self.join.fmt_as(format, f)
    }
}

impl ExecutionPlan for GraceJoinExec {
    usual!(name, properties of join, children of join, expressions of join);

    fn maintains_input_order(&self) -> Vec<bool> {
        self.join.maintains_input_order()
    }

    fn dynamic_expressions_produced(&self) -> Vec<Arc<dyn PhysicalExpr>> {
        self.join.dynamic_expressions_produced()
    }

    fn with_new_children(
        self: Arc<Self>,
        children: Vec<Arc<dyn ExecutionPlan>>,
    ) -> Result<Arc<dyn ExecutionPlan>> {
        if children.len() != 2 {
            return internal_err!("GraceJoinExec has {} inputs", children.len());
        }
        let join = self.join.builder().recompute_properties().with_new_children(children)?;
        Ok(self.of(join.build()?))
    }

    fn reset_state(self: Arc<Self>) -> Result<Arc<dyn ExecutionPlan>> {
        Ok(self.of(self.join.builder().reset_state().build()?))
    }

    fn fetch(&self) -> Option<usize> {
        self.join.fetch()
    }

    fn execute(
        &self,
        partition: usize,
        context: Arc<TaskContext>,
    ) -> Result<SendableRecordBatchStream> {
        let build = self.build.get_or_init(|| {
            let (join, how, others) = (self.join.clone(), self.how.clone(), self.others.clone());
            once(Build::of(join, how, others, context))
        });
        let build = build.clone();
        let rows = async move {
            let build = build.await.map_err(DataFusionError::Shared)?;
            build.rows(partition).await
        };
        let rows = stream::once(rows).try_flatten();
        Ok(Box::pin(RecordBatchStreamAdapter::new(self.schema(), rows)))
    }
}

/// Rows of the first side in memory, with the bytes that are counted for each batch.
#[derive(Clone)]
struct HeldRows {
    batches: Vec<(RecordBatch, usize)>,
    memory: Arc<MemoryReservation>,
}

impl HeldRows {
    /// The rows, which are charged until they are read: the reader charges them then.
    fn rows(self) -> Rows {
        let HeldRows { batches, memory } = self;
        let rows = stream::iter(batches).map(move |(batch, bytes)| {
            memory.shrink(bytes);
            Ok(batch)
        });
        rows.boxed()
    }

    /// The rows once more, after they were read.
    fn again(self) -> Rows {
        self.memory.resize(self.batches.iter().map(|(_, bytes)| bytes).sum());
        self.rows()
    }
}

/// The form in which the join runs.
enum JoinForm {
    /// In memory, so far. These are the rows of the first side, should the table be refused memory.
    Begun(Rows),
    /// In memory: the second side is read.
    InMemory,
    InFiles(Once<Spilled>),
}

fn locked(form: &Mutex<JoinForm>) -> MutexGuard<'_, JoinForm> {
    form.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A join whose first side was read, as far as it fits into memory.
struct Build {
    join: Arc<HashJoinExec>,
    how: How,
    context: Arc<TaskContext>,
    /// The join in memory; `None` if the first side does not fit.
    table: Option<Arc<dyn ExecutionPlan>>,
    form: Arc<Mutex<JoinForm>>,
}

impl Build {
    async fn of(
        join: Arc<HashJoinExec>,
        how: How,
        others: Option<Others>,
        context: Arc<TaskContext>,
    ) -> Result<Self> {
        let has_files = context.runtime_env().disk_manager.tmp_files_enabled();
        let may_spill = how.rules.may_spill && has_files;
        let memory = MemoryConsumer::new("table of a join").register(context.memory_pool());
        let rest = join.left().execute(0, context.clone())?;
        let schema = rest.schema();
        // It may be polled after its end.
        let mut rest = rest.fuse();
        // Batches may be slices of the same rows.
        let (mut batches, mut counted) = (Vec::new(), RecordBatchMemoryCounter::new());
        let mut refused = None;
        while refused.is_none()
            && let Some(batch) = rest.try_next().await?
        {
            let bytes = counted.count_batch(&batch);
            refused = memory.try_grow(bytes).err();
            batches.push((batch, if refused.is_none() { bytes } else { 0 }));
        }
        let hashes = memory.new_empty();
        if refused.is_none() && batches.len() > 1 && yields_build_side(*join.join_type()) {
            // DataFusion hashes a batch at a time.
            let rows: usize = batches.iter().map(|(batch, _)| batch.num_rows()).sum();
            if may_spill {
                refused = hashes.try_grow(rows * size_of::<u64>()).err();
            }
            if refused.is_none() {
                let one = concat_batches(&schema, batches.iter().map(|(batch, _)| batch))?;
                batches = vec![(one, memory.size())];
            }
        }
        let held = HeldRows { batches, memory: Arc::new(memory) };
        let form = match refused {
            Some(e) if !may_spill => return Err(e),
            Some(_) => {
                let form = JoinForm::Begun(held.rows().chain(rest).boxed());
                let form = Arc::new(Mutex::new(form));
                return Ok(Build { join, how, context, table: None, form });
            }
            None if !may_spill => JoinForm::InMemory,
            None => {
                let held = held.clone();
                let again = async move {
                    drop(hashes);
                    held.again()
                };
                JoinForm::Begun(stream::once(again).flatten().boxed())
            }
        };
        let form = Arc::new(Mutex::new(form));
        let mut lookup = Lookup::of(&join, &held.batches, &context)?;
        if lookup.is_none() {
            lookup = Lookup::hashed(&join, &held.batches, &how.is_stopped, &context).await?;
        }
        let table = match lookup {
            Some(lookup) => {
                *locked(&form) = JoinForm::InMemory;
                lookup.join(join.right().clone(), how.rules.is_exact)
            }
            None => table(&join, held.rows(), others, form.clone())?,
        };
        Ok(Build { join, how, context, table: Some(table), form })
    }

    async fn rows(self: Arc<Self>, partition: usize) -> Result<Rows> {
        let refused = match &self.table {
            Some(table) => match self.in_memory(table, partition).await? {
                Ok(rows) => return Ok(rows),
                Err(e) => e,
            },
            None => internal_datafusion_err!("the rows of a join are missing"),
        };
        let Some(files) = self.files() else { return Err(refused) };
        let spilled = files.await.map_err(DataFusionError::Shared)?;
        let rows = limited(spilled.rows(partition), self.join.fetch());
        Ok(match self.how.rules.is_exact {
            true => exactly(rows, self.join.schema(), self.batch_rows()),
            false => coalesced(rows, self.join.schema(), self.batch_rows()),
        })
    }

    fn batch_rows(&self) -> usize {
        self.context.session_config().batch_size().max(1)
    }

    /// The rows of a partition of the join in memory, or the error if memory was refused.
    async fn in_memory(
        &self,
        table: &Arc<dyn ExecutionPlan>,
        partition: usize,
    ) -> Result<std::result::Result<Rows, DataFusionError>> {
        let mut rows = table.execute(partition, self.context.clone())?;
        let first = match rows.next().await {
            Some(Err(e)) if is_out_of_memory(&e) => return Ok(Err(e)),
            first => first,
        };
        let mut rows = stream::iter(first).chain(rows).boxed();
        if *self.join.join_type() == JoinType::Full {
            let ordered = reordered(rows, table.schema(), self.batch_rows());
            rows = without_numbers(ordered, self.join.schema());
        }
        Ok(Ok(match self.how.rules.is_exact {
            true => exactly(rows, self.join.schema(), self.batch_rows()),
            false => rows,
        }))
    }

    /// The join in files; `None` if the second side is read already.
    fn files(&self) -> Option<Once<Spilled>> {
        let mut form = locked(&self.form);
        let files = match std::mem::replace(&mut *form, JoinForm::InMemory) {
            JoinForm::Begun(first) => {
                let (join, context) = (self.join.clone(), self.context.clone());
                tracing::debug!("a join goes to files: its table does not fit into memory");
                once(Spilled::of(join, first, self.how.is_stopped.clone(), context))
            }
            JoinForm::InFiles(files) => files,
            JoinForm::InMemory => return None,
        };
        *form = JoinForm::InFiles(files.clone());
        Some(files)
    }
}

/// The join in memory, over the rows of the first side.
fn table(
    join: &HashJoinExec,
    first: Rows,
    others: Option<Others>,
    form: Arc<Mutex<JoinForm>>,
) -> Result<Arc<dyn ExecutionPlan>> {
    let kind = *join.join_type();
    let first = Arc::new(OnceExec::new(join.left().properties().clone(), first));
    let mut second = join.right().clone();
    if let Some(others) = others {
        second = ending_last(second, &others);
    }
    if matches!(kind, JoinType::Right | JoinType::Full) {
        (second, _) = numbered(second, NUMBER_OF_SECOND);
    }
    // The second side is read once the table is complete.
    let second = when_read(second, move || {
        let mut form = locked(&form);
        if matches!(*form, JoinForm::Begun(_)) {
            *form = JoinForm::InMemory;
        }
    });
    let table = over(join, first, second, kind == JoinType::Full)?.build()?;
    // The filter that DataFusion's join fills itself.
    let filter = join.dynamic_expressions_produced().pop();
    let filter = filter.map(|filter| filter as Arc<dyn Any + Send + Sync>);
    let filter = filter.and_then(|filter| filter.downcast::<DynamicFilterPhysicalExpr>().ok());
    let table = match filter {
        Some(filter) => table.with_dynamic_filter_expr(filter)?,
        None => table,
    };
    Ok(Arc::new(table))
}
