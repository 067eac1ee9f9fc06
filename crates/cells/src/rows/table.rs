//! The provider: a tensor plan with labels as a table.

use super::stream::{Rows, rows};
use super::top::Top;
use super::{RunTensor, single};
use arrow::array::ArrayRef;
use arrow::datatypes::SchemaRef;
use datafusion::catalog::{Session, TableProvider};
use datafusion::common::tree_node::TreeNodeRecursion;
use datafusion::error::Result;
use datafusion::execution::memory_pool::MemoryLimit;
use datafusion::execution::{SendableRecordBatchStream, TaskContext};
use datafusion::logical_expr::{Expr, TableType};
use datafusion::physical_expr::PhysicalExpr;
use datafusion::physical_plan::execution_plan::ReplaceChildrenOptions;
use datafusion::physical_plan::{DisplayAs, DisplayFormatType, ExecutionPlan, PlanProperties};
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use tessera_planner::ir::NodeId;
use tessera_planner::optimize::Rooted;

/// What fills a column.
#[derive(Debug, Clone)]
pub enum Column {
    /// A label for each position along an axis.
    Label {
        /// The axis of the table's shape.
        axis: usize,
        /// One value for each position.
        values: ArrayRef,
    },
    /// The position along an axis of the table's shape, counted from `start` (`int64`).
    Position {
        /// The axis.
        axis: usize,
        /// The first one.
        start: u64,
    },
    /// The root with that number.
    Cells(usize),
    /// The number of the row (`uint64`).
    Row,
}

/// What a table is made of.
#[derive(Debug, Clone)]
pub struct TableParts {
    /// The name of its scans.
    pub name: String,
    /// The columns' names and types.
    pub schema: SchemaRef,
    /// Lengths of the dimensions: a row for each cell, row-major.
    pub shape: Vec<u64>,
    /// What fills each column.
    pub columns: Vec<Column>,
    /// The root (`bool`) that is false or masked for rows that are not there.
    pub presence: Option<usize>,
    /// The cells: every root is 1-d, with one cell for each row, and all have one grid.
    pub rooted: Rooted,
    /// The only rows that are wanted, if not all.
    pub top: Option<Top>,
    /// True if the rows are cells of a source, false if they are what a dense plan gives.
    pub exploded: bool,
}

/// A tensor plan as a table.
#[derive(Debug)]
pub struct TensorTable {
    parts: TableParts,
    runner: Arc<dyn RunTensor>,
    exploded: Arc<AtomicU64>,
}

impl TensorTable {
    /// A table; `exploded` is added to for each row of cells that is built, and may be shared by the tables of a
    /// statement.
    pub fn new(parts: TableParts, runner: Arc<dyn RunTensor>, exploded: Arc<AtomicU64>) -> Self {
        TensorTable { parts, runner, exploded }
    }

    /// Rows of cells built so far; what a dense plan gives does not count.
    pub fn rows_exploded(&self) -> u64 {
        self.exploded.load(Ordering::Relaxed)
    }
}

#[async_trait::async_trait]
impl TableProvider for TensorTable {
    fn schema(&self) -> SchemaRef {
        self.parts.schema.clone()
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
        let parts = project(&self.parts, projection)?;
        // Rows that turn out not to be there must not count toward the limit: the stream counts what it gives.
        let exploded = parts.exploded.then(|| self.exploded.clone());
        Ok(Arc::new(TensorExec::new(parts, self.runner.clone(), exploded, limit)))
    }
}

/// The table with some of its columns, and the roots that these need.
fn project(parts: &TableParts, projection: Option<&Vec<usize>>) -> Result<TableParts> {
    let Some(projection) = projection else { return Ok(parts.clone()) };
    let mut roots: Vec<NodeId> = Vec::new();
    // A root of two uses is run once.
    let mut root = |i: usize| {
        let wanted = parts.rooted.roots[i];
        roots.iter().position(|known| *known == wanted).unwrap_or_else(|| {
            roots.push(wanted);
            roots.len() - 1
        })
    };
    let columns = projection
        .iter()
        .map(|&i| match &parts.columns[i] {
            Column::Cells(r) => Column::Cells(root(*r)),
            label => label.clone(),
        })
        .collect();
    let presence = parts.presence.map(&mut root);
    let top = parts.top.map(|top| Top { root: root(top.root), ..top });
    Ok(TableParts {
        name: parts.name.clone(),
        schema: Arc::new(parts.schema.project(projection)?),
        shape: parts.shape.clone(),
        columns,
        presence,
        top,
        rooted: Rooted { graph: parts.rooted.graph.clone(), roots },
        exploded: parts.exploded,
    })
}

/// What a physical plan reads of tensor tables: each scan with the columns and roots that are left of its table.
pub fn tensor_scans(plan: &Arc<dyn ExecutionPlan>) -> Vec<Arc<TableParts>> {
    let mut scans = Vec::new();
    let mut open = vec![plan];
    while let Some(node) = open.pop() {
        if let Some(scan) = node.downcast_ref::<TensorExec>() {
            scans.push(scan.parts.clone());
        }
        open.extend(node.children().into_iter().rev());
    }
    scans
}

/// The physical node: one partition, rows in row-major order.
#[derive(Debug)]
struct TensorExec {
    parts: Arc<TableParts>,
    runner: Arc<dyn RunTensor>,
    exploded: Option<Arc<AtomicU64>>,
    limit: Option<usize>,
    properties: Arc<PlanProperties>,
}

impl TensorExec {
    fn new(
        parts: TableParts,
        runner: Arc<dyn RunTensor>,
        exploded: Option<Arc<AtomicU64>>,
        limit: Option<usize>,
    ) -> Self {
        let properties = single::properties(parts.schema.clone());
        TensorExec { parts: Arc::new(parts), runner, exploded, limit, properties }
    }
}

impl DisplayAs for TensorExec {
    fn fmt_as(&self, _: DisplayFormatType, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let kind = if self.parts.exploded { "cells as rows" } else { "dense rows" };
        write!(f, "TensorExec: {kind} of shape {:?}", self.parts.shape)?;
        if let Some(top) = &self.parts.top {
            write!(f, ", the first {} by a key", top.rows)?;
        }
        match self.limit {
            Some(n) => write!(f, ", limit {n}"),
            None => Ok(()),
        }
    }
}

impl ExecutionPlan for TensorExec {
    fn name(&self) -> &str {
        "TensorExec"
    }

    fn properties(&self) -> &Arc<PlanProperties> {
        &self.properties
    }

    fn children(&self) -> Vec<&Arc<dyn ExecutionPlan>> {
        vec![]
    }

    fn apply_expressions(
        &self,
        _: &mut dyn FnMut(&Arc<dyn PhysicalExpr>) -> Result<TreeNodeRecursion>,
    ) -> Result<TreeNodeRecursion> {
        Ok(TreeNodeRecursion::Continue)
    }

    fn replace_children(
        self: Arc<Self>,
        _: Vec<Arc<dyn ExecutionPlan>>,
        _: ReplaceChildrenOptions,
    ) -> Result<Arc<dyn ExecutionPlan>> {
        Ok(self)
    }

    fn with_new_children(
        self: Arc<Self>,
        _: Vec<Arc<dyn ExecutionPlan>>,
    ) -> Result<Arc<dyn ExecutionPlan>> {
        Ok(self)
    }

    fn execute(
        &self,
        partition: usize,
        context: Arc<TaskContext>,
    ) -> Result<SendableRecordBatchStream> {
        single::check(self.name(), partition)?;
        Ok(rows(Rows {
            parts: self.parts.clone(),
            runner: self.runner.clone(),
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
