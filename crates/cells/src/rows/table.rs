//! The table provider for a tensor plan with labels.

use super::shared_run::SharedRun;
use super::single::{self, shown, usual};
use super::splits::SplitSize;
use super::stream::{Rows, rows};
use super::{BoxError, Piece, RunTensor};
use crate::lift::{ScanColumn, TensorScan, Top};
use crate::walk::Walk;
use arrow::compute::SortOptions;
use arrow::datatypes::SchemaRef;
use datafusion::catalog::{Session, TableProvider};
use datafusion::common::stats::Precision;
use datafusion::common::{Statistics, internal_err};
use datafusion::error::Result;
use datafusion::execution::memory_pool::MemoryLimit;
use datafusion::execution::{SendableRecordBatchStream, TaskContext};
use datafusion::logical_expr::{Expr, TableType};
use datafusion::physical_expr::PhysicalSortExpr;
use datafusion::physical_expr::expressions::Column;
use datafusion::physical_plan::statistics::StatisticsArgs;
use datafusion::physical_plan::{ExecutionPlan, PlanProperties};
use futures::StreamExt;
use futures::stream::{self, BoxStream};
use std::collections::BTreeMap;
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, Mutex, PoisonError};
use tessera_planner::ir::NodeId;
use tessera_planner::optimize::Rooted;
use tessera_planner::region::cells;

#[derive(Debug)]
pub(super) struct TensorTable {
    scan: TensorScan,
    runner: Arc<dyn RunTensor>,
    pub(super) exploded: Arc<AtomicU64>,
}

impl TensorTable {
    /// A table. `exploded` counts the rows that are built from cells; tables of a statement may share
    /// it.
    pub(super) fn new(
        scan: TensorScan,
        runner: Arc<dyn RunTensor>,
        exploded: Arc<AtomicU64>,
    ) -> Self {
        TensorTable { scan, runner, exploded }
    }
}

#[async_trait::async_trait]
impl TableProvider for TensorTable {
    fn schema(&self) -> SchemaRef {
        self.scan.schema.clone()
    }

    fn table_type(&self) -> TableType {
        TableType::Base
    }

    async fn scan(
        &self,
        _: &dyn Session,
        projection: Option<&Vec<usize>>,
        _: &[Expr],
        limit: Option<usize>,
    ) -> Result<Arc<dyn ExecutionPlan>> {
        let scan = project(&self.scan, projection)?;
        // Absent rows must not count toward the limit: the stream counts the rows that it emits.
        let exploded = scan.exploded.then(|| self.exploded.clone());
        Ok(Arc::new(TensorExec::new(scan, self.runner.clone(), exploded, limit)))
    }
}

/// Projects the table to some of its columns and the roots that these need.
fn project(scan: &TensorScan, projection: Option<&Vec<usize>>) -> Result<TensorScan> {
    let Some(projection) = projection else { return Ok(scan.clone()) };
    let (mut roots, mut places) = (Vec::new(), BTreeMap::<NodeId, usize>::new());
    // A root with two uses runs once.
    let mut root = |i: usize| {
        let wanted = scan.rooted.roots[i];
        *places.entry(wanted).or_insert_with(|| {
            roots.push(wanted);
            roots.len() - 1
        })
    };
    let columns = projection
        .iter()
        .map(|&i| match &scan.columns[i] {
            ScanColumn::Cells(r) => ScanColumn::Cells(root(*r)),
            label => label.clone(),
        })
        .collect();
    let presence = scan.presence.map(&mut root);
    let top = scan.top.map(|top| Top { root: root(top.root), ..top });
    Ok(TensorScan {
        name: scan.name.clone(),
        schema: Arc::new(scan.schema.project(projection)?),
        shape: scan.shape.clone(),
        columns,
        origins: BTreeMap::new(),
        presence,
        top,
        rooted: Rooted { graph: scan.rooted.graph.clone(), roots },
        exploded: scan.exploded,
    })
}

/// The tensor scans of a physical plan, each with the columns and roots that remain after projection.
pub(super) fn tensor_scans(plan: &Arc<dyn ExecutionPlan>) -> Vec<Arc<TensorScan>> {
    let mut scans = Vec::new();
    let mut open = vec![plan];
    while let Some(node) = open.pop() {
        if let Some(exec) = node.downcast_ref::<TensorExec>() {
            scans.push(exec.scan.clone());
        }
        open.extend(node.children().into_iter().rev());
    }
    scans
}

/// True if splits of a plan share the run of a tensor plan. A split that runs again begins another run, and one that runs
/// before others lets the pieces of these wait in memory.
pub(super) fn shares_run(plan: &Arc<dyn ExecutionPlan>) -> Result<bool> {
    plan.any(|node| Ok(node.downcast_ref::<TensorExec>().is_some_and(|scan| scan.splits() > 1)))
}

/// The physical node: rows in row-major order, in one partition or in splits of some rows each.
#[derive(Debug)]
pub(super) struct TensorExec {
    scan: Arc<TensorScan>,
    runner: Arc<dyn RunTensor>,
    exploded: Option<Arc<AtomicU64>>,
    limit: Option<usize>,
    split_rows: u64,
    /// The run that the splits share.
    run: Mutex<Option<Arc<SharedRun>>>,
    properties: Arc<PlanProperties>,
}

impl TensorExec {
    fn new(
        scan: TensorScan,
        runner: Arc<dyn RunTensor>,
        exploded: Option<Arc<AtomicU64>>,
        limit: Option<usize>,
    ) -> Self {
        let properties = single::properties_in_order(scan.schema.clone(), row_key(&scan));
        let (scan, run, split_rows) = (Arc::new(scan), Mutex::default(), u64::MAX);
        TensorExec { scan, runner, exploded, limit, split_rows, run, properties }
    }

    /// The scan in splits, or `None` if it has only one.
    pub(super) fn split(&self, size: SplitSize) -> Option<Arc<dyn ExecutionPlan>> {
        if self.limit.is_some() || self.scan.top.is_some() {
            return None;
        }
        let (split_rows, properties) = size.split(self.total(), &self.properties)?;
        Some(Arc::new(TensorExec {
            scan: self.scan.clone(),
            runner: self.runner.clone(),
            exploded: self.exploded.clone(),
            limit: None,
            split_rows,
            run: Mutex::default(),
            properties,
        }))
    }

    fn total(&self) -> u64 {
        cells(&self.scan.shape).unwrap_or(u64::MAX)
    }

    fn splits(&self) -> usize {
        self.properties.output_partitioning().partition_count()
    }

    fn pieces(&self, split: usize) -> BoxStream<'static, std::result::Result<Piece, BoxError>> {
        if self.splits() == 1 {
            return self.runner.run(&self.scan);
        }
        let mut run = self.run.lock().unwrap_or_else(PoisonError::into_inner);
        match &*run {
            Some(shared) if let Some(pieces) = shared.pieces(split) => pieces,
            // The first split, or one that runs again.
            _ => {
                let all = self.runner.run(&self.scan);
                let (roots, total) = (self.scan.rooted.roots.len(), self.total());
                let shared = run.insert(SharedRun::new(all, roots, total, self.split_rows));
                shared.pieces(split).unwrap_or_else(|| stream::empty().boxed())
            }
        }
    }
}

/// The column by which the rows are ordered, if the scan has it.
fn row_key(scan: &TensorScan) -> Option<PhysicalSortExpr> {
    let at = scan.columns.iter().position(|column| matches!(column, ScanColumn::Row))?;
    let key = Arc::new(Column::new(scan.schema.field(at).name(), at));
    Some(PhysicalSortExpr::new(key, SortOptions { descending: false, nulls_first: false }))
}

shown!(TensorExec, |node, f| {
    let kind = if node.scan.exploded { "cells as rows" } else { "dense rows" };
    write!(f, "TensorExec: {kind} of shape {:?}", node.scan.shape)?;
    if let Some(top) = &node.scan.top {
        write!(f, ", the first {} by a key", top.rows)?;
    }
    node.limit.map_or(Ok(()), |n| write!(f, ", limit {n}"))
});

impl ExecutionPlan for TensorExec {
    usual!(name, properties, no_inputs, no_expressions);

    /// The number of rows, by which a join chooses the side that it keeps in memory.
    fn statistics_from_inputs(
        &self,
        _: &[Arc<Statistics>],
        _: &StatisticsArgs,
    ) -> Result<Arc<Statistics>> {
        let rows = self.scan.shape.iter().fold(1u64, |n, &len| n.saturating_mul(len));
        let rows = usize::try_from(rows).unwrap_or(usize::MAX);
        let mut statistics = Statistics::new_unknown(&self.scan.schema);
        statistics.num_rows = Precision::Inexact(rows.min(self.limit.unwrap_or(usize::MAX)));
        Ok(Arc::new(statistics))
    }

    fn execute(
        &self,
        partition: usize,
        context: Arc<TaskContext>,
    ) -> Result<SendableRecordBatchStream> {
        let splits = self.splits();
        if partition >= splits {
            return internal_err!("TensorExec has {splits} partitions, not {partition}");
        }
        let start = self.split_rows.saturating_mul(partition as u64);
        let range = start..start.saturating_add(self.split_rows).min(self.total());
        let is_labels_only = self.scan.rooted.roots.is_empty() || range.is_empty();
        Ok(rows(Rows {
            scan: self.scan.clone(),
            pieces: if is_labels_only { stream::empty().boxed() } else { self.pieces(partition) },
            range,
            exploded: self.exploded.clone(),
            limit: self.limit,
            batch_rows: context.session_config().batch_size().max(1),
            held_bytes: match context.memory_pool().memory_limit() {
                MemoryLimit::Finite(limit) => limit / 16,
                _ => usize::MAX,
            },
        }))
    }
}
