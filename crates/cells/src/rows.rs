//! Tensor plans as tables of a DataFusion plan.
//!
//! ```text
//! logical plan          TableScan groups_0            attach: the placeholder's source becomes a TensorTable
//! physical plan         TensorExec                    one partition, rows in row-major order
//!   roots [rows] ──▶ Piece (root, first row, cells) ──▶ rows in order, labels beside ──▶ RecordBatch
//! ```
//! A [`TensorTable`] holds a graph whose roots are 1-d and have one cell for each row; [`RunTensor`] runs it and gives
//! pieces in any order, [`stream`] puts them in order. Rows of cells are counted ([`TensorTable::rows_exploded`]): a
//! dense query counts none.
//!
//! Errors of a run travel as [`DataFusionError::External`] with their own type.
//!
//! [`DataFusionError::External`]: datafusion::error::DataFusionError::External

pub mod assemble;
mod concat;
mod constants;
mod guard;
mod ipc;
mod large_top;
mod memory;
mod parquet;
mod pieces;
mod scratch;
mod shared;
mod single;
mod stop;
mod stream;
mod table;
mod thrift;
mod top;
mod written;

pub use concat::physical;
pub use constants::rows_of_batches;
pub use guard::Guarded;
pub use ipc::IpcFormat;
pub use large_top::with_large_limits_sorted;
pub use memory::RowsMemory;
pub use pieces::{PieceSink, Pieces};
pub use scratch::RowsScratch;
pub use shared::{SharedProvider, SharedTable};
pub use stop::{IsStopped, await_in_place, in_place, stoppable};
pub use table::{TensorTable, tensor_scans};
pub use thrift::check_parquet;

use crate::lift::TensorScan;
use arrow::array::ArrayRef;
use datafusion::catalog::TableProvider;
use datafusion::common::tree_node::Transformed;
use datafusion::datasource::provider_as_source;
use datafusion::error::Result;
use datafusion::logical_expr::{LogicalPlan, TableScanBuilder};
use futures::stream::BoxStream;
use std::collections::BTreeMap;
use std::sync::Arc;

/// An error of a run, with its own type.
pub type BoxError = Box<dyn std::error::Error + Send + Sync>;

/// Cells of one root: those of the rows from `start` on.
#[derive(Debug, Clone)]
pub struct Piece {
    /// Which root.
    pub root: usize,
    /// The first row.
    pub start: u64,
    /// One cell for each row.
    pub cells: ArrayRef,
}

/// Runs a tensor plan.
pub trait RunTensor: Send + Sync + std::fmt::Debug {
    /// The pieces of all roots of a scan, in any order; pieces of different roots begin at the same rows. Work begins
    /// at the first poll, and dropping the stream cancels it.
    fn run(&self, scan: &TensorScan) -> BoxStream<'static, std::result::Result<Piece, BoxError>>;
}

/// Puts tables in the place of the placeholders of a logical plan.
///
/// # Errors
/// DataFusion's, if a table has another schema than its placeholder.
pub fn attach(
    plan: LogicalPlan,
    tables: &BTreeMap<String, Arc<dyn TableProvider>>,
) -> Result<LogicalPlan> {
    plan.transform_up_with_subqueries(|node| {
        let LogicalPlan::TableScan(scan) = &node else { return Ok(Transformed::no(node)) };
        let Some(table) = tables.get(scan.table_name.table()) else {
            return Ok(Transformed::no(node));
        };
        let new = TableScanBuilder::new(scan.table_name.clone(), provider_as_source(table.clone()))
            .with_projection(scan.projection.clone())
            .with_filters(scan.filters.clone())
            .with_fetch(scan.fetch)
            .build()?;
        Ok(Transformed::yes(LogicalPlan::TableScan(new)))
    })
    .map(|t| t.data)
}

#[cfg(test)]
mod tests;
