//! `UNION ALL` in order: all rows of the first input, then those of the second.
//!
//! DataFusion's union has a partition for each input, and merging partitions interleaves their rows: the
//! order of the result, and the bits of a float sum over it, would depend on threads.
//!
//! The nullable side of an outer join is wrapped in a concatenation of one input. DataFusion treats a column that
//! is constant below the join (`1 AS k`, `WHERE k = 5`, a `count(*)` known from statistics) as constant above it too,
//! where it may be NULL, and drops it from ORDER BY. A concatenation exposes no constants.

use super::single::{self, shown_by_name, usual};
use crate::walk::Walk;
use arrow::datatypes::{Schema, SchemaRef};
use datafusion::common::config::ConfigOptions;
use datafusion::common::tree_node::Transformed;
use datafusion::common::{JoinType, Statistics, internal_err};
use datafusion::error::Result;
use datafusion::execution::{SendableRecordBatchStream, TaskContext};
use datafusion::physical_expr::PhysicalExpr;
use datafusion::physical_expr::expressions::{CastExpr, Column};
use datafusion::physical_optimizer::PhysicalOptimizerRule;
use datafusion::physical_plan::execution_plan::{ChildrenPropertiesMode, ReplaceChildrenOptions};
use datafusion::physical_plan::joins::{HashJoinExec, NestedLoopJoinExec, SortMergeJoinExec};
use datafusion::physical_plan::projection::{ProjectionExec, ProjectionExpr};
use datafusion::physical_plan::statistics::StatisticsArgs;
use datafusion::physical_plan::stream::RecordBatchStreamAdapter;
use datafusion::physical_plan::union::UnionExec;
use datafusion::physical_plan::{ExecutionPlan, ExecutionPlanProperties, PlanProperties};
use futures::{StreamExt, TryStreamExt, stream};
use std::sync::Arc;

/// Replaces unions of a physical plan by concatenations, and wraps the nullable inputs of outer joins.
#[derive(Debug)]
pub(super) struct InOrder;

impl PhysicalOptimizerRule for InOrder {
    fn optimize(
        &self,
        plan: Arc<dyn ExecutionPlan>,
        _: &ConfigOptions,
    ) -> Result<Arc<dyn ExecutionPlan>> {
        plan.map_up(|node| {
            if let Some(kind) = join_type(&*node) {
                return missing(node, kind);
            }
            if !node.is::<UnionExec>() {
                return Ok(Transformed::no(node));
            }
            let inputs = node.children().into_iter().map(without_own_casts);
            let inputs = inputs.collect::<Result<_>>()?;
            let concat: Arc<dyn ExecutionPlan> = Arc::new(ConcatExec::new(node.schema(), inputs));
            Ok(Transformed::yes(concat))
        })
        .map(|t| t.data)
    }

    fn name(&self) -> &str {
        "in_order"
    }

    fn schema_check(&self) -> bool {
        true
    }
}

fn join_type(node: &dyn ExecutionPlan) -> Option<JoinType> {
    let hash = node.downcast_ref::<HashJoinExec>().map(|join| *join.join_type());
    let sorted = || node.downcast_ref::<SortMergeJoinExec>().map(SortMergeJoinExec::join_type);
    let pairs = || node.downcast_ref::<NestedLoopJoinExec>().map(|join| *join.join_type());
    hash.or_else(sorted).or_else(pairs)
}

/// The join with concatenations around the inputs whose rows may be missing in its result.
fn missing(
    join: Arc<dyn ExecutionPlan>,
    kind: JoinType,
) -> Result<Transformed<Arc<dyn ExecutionPlan>>> {
    let is_missing = match kind {
        JoinType::Left => [false, true],
        JoinType::Right => [true, false],
        JoinType::Full => [true, true],
        _ => return Ok(Transformed::no(join)),
    };
    let inputs = join.children().into_iter().zip(is_missing);
    let inputs = inputs.map(|(input, is_missing)| match is_missing {
        true => Arc::new(ConcatExec::new(input.schema(), vec![input.clone()])),
        false => input.clone(),
    });
    let inputs = inputs.collect();
    join.replace_children(inputs, ReplaceChildrenOptions::new(ChildrenPropertiesMode::Recompute))
        .map(Transformed::yes)
}

/// Removes casts of columns to their own types from an input of a union. DataFusion adds them where a column has no
/// NULL but the column of another input may. A concatenation's batches have its schema anyway, and the encoding of
/// plans for workers lacks the purpose of such a cast.
fn without_own_casts(input: &Arc<dyn ExecutionPlan>) -> Result<Arc<dyn ExecutionPlan>> {
    let Some(projection) = input.downcast_ref::<ProjectionExec>() else {
        return Ok(input.clone());
    };
    let below = projection.input();
    let schema = below.schema();
    let columns = projection.expr().iter().map(|one| {
        let expr = of_own_cast(&one.expr, &schema).unwrap_or_else(|| one.expr.clone());
        ProjectionExpr { expr, alias: one.alias.clone() }
    });
    let columns: Vec<ProjectionExpr> = columns.collect();
    let is_input = columns.len() == schema.fields().len()
        && columns.iter().enumerate().all(|(at, one)| {
            let column = one.expr.downcast_ref::<Column>();
            column.is_some_and(|c| c.index() == at && c.name() == one.alias)
        });
    match is_input {
        true => Ok(below.clone()),
        false => Ok(Arc::new(ProjectionExec::try_new(columns, below.clone())?)),
    }
}

/// The column of a cast to its own type that at most permits NULL.
fn of_own_cast(expr: &Arc<dyn PhysicalExpr>, schema: &Schema) -> Option<Arc<dyn PhysicalExpr>> {
    let cast = expr.downcast_ref::<CastExpr>()?;
    let field = schema.fields().get(cast.expr().downcast_ref::<Column>()?.index())?;
    let is_own = field.data_type() == cast.cast_type()
        && cast.target_metadata() == Some(field.metadata())
        && cast.target_nullable().is_some_and(|may_be_null| may_be_null || !field.is_nullable());
    is_own.then(|| cast.expr().clone())
}

/// Concatenates inputs of one schema, into one partition or as splits.
#[derive(Debug)]
pub(super) struct ConcatExec {
    inputs: Vec<Arc<dyn ExecutionPlan>>,
    /// True if the partitions are those of the first input, then those of the second one, and so on.
    is_split: bool,
    properties: Arc<PlanProperties>,
}

impl ConcatExec {
    /// Concatenates into one partition.
    pub(super) fn new(schema: SchemaRef, inputs: Vec<Arc<dyn ExecutionPlan>>) -> ConcatExec {
        ConcatExec { inputs, is_split: false, properties: single::properties(schema) }
    }

    /// Concatenates the splits of all inputs.
    pub(super) fn of_splits(schema: SchemaRef, inputs: Vec<Arc<dyn ExecutionPlan>>) -> ConcatExec {
        let splits = inputs.iter().map(partitions).sum();
        ConcatExec { inputs, is_split: true, properties: single::properties_of(schema, splits) }
    }

    pub(super) fn of(
        schema: SchemaRef,
        inputs: Vec<Arc<dyn ExecutionPlan>>,
        is_split: bool,
    ) -> ConcatExec {
        match is_split {
            true => ConcatExec::of_splits(schema, inputs),
            false => ConcatExec::new(schema, inputs),
        }
    }

    pub(super) fn is_split(&self) -> bool {
        self.is_split
    }
}

fn partitions(input: &Arc<dyn ExecutionPlan>) -> usize {
    input.output_partitioning().partition_count()
}

shown_by_name!(ConcatExec);

impl ExecutionPlan for ConcatExec {
    usual!(name, properties, no_expressions);

    fn children(&self) -> Vec<&Arc<dyn ExecutionPlan>> {
        self.inputs.iter().collect()
    }

    /// The number of rows of all inputs, by which a join chooses the side that it keeps in memory.
    fn statistics_from_inputs(
        &self,
        inputs: &[Arc<Statistics>],
        _: &StatisticsArgs,
    ) -> Result<Arc<Statistics>> {
        let mut statistics = Statistics::new_unknown(&self.schema());
        let rows = inputs.iter().map(|input| input.num_rows.to_inexact());
        statistics.num_rows = rows.reduce(|a, b| a.add(&b)).unwrap_or_default();
        Ok(Arc::new(statistics))
    }

    fn with_new_children(
        self: Arc<Self>,
        children: Vec<Arc<dyn ExecutionPlan>>,
    ) -> Result<Arc<dyn ExecutionPlan>> {
        Ok(Arc::new(ConcatExec::of(self.schema(), children, self.is_split)))
    }

    fn execute(
        &self,
        partition: usize,
        context: Arc<TaskContext>,
    ) -> Result<SendableRecordBatchStream> {
        let mut parts = self.inputs.iter().flat_map(|input| {
            (0..partitions(input)).map(move |partition| (input.clone(), partition))
        });
        let parts: Vec<_> = match self.is_split {
            true => match parts.nth(partition) {
                Some(part) => vec![part],
                None => return internal_err!("ConcatExec has no partition {partition}"),
            },
            false => {
                single::check(self.name(), partition)?;
                parts.collect()
            }
        };
        let schema = self.schema();
        let own = schema.clone();
        // An input starts when the one before it has ended.
        let batches = stream::iter(parts)
            .map(move |(input, partition)| input.execute(partition, context.clone()))
            .try_flatten()
            .map(move |batch| Ok(batch?.with_schema(own.clone())?));
        Ok(Box::pin(RecordBatchStreamAdapter::new(schema, batches)))
    }
}
