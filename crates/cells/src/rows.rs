//! Tensor plans as tables of a DataFusion plan.
//!
//! ```text
//! logical plan          TableScan groups_0            attach: the placeholder's source becomes a TensorTable
//! physical plan         TensorExec                    one partition, rows in row-major order
//!   roots [rows] ──▶ Piece (root, first row, cells) ──▶ ordered rows, with labels ──▶ RecordBatch
//! ```
//! A `TensorTable` has a graph whose roots are 1-d with one cell per row. [`RunTensor`] runs it and yields
//! pieces in any order; `stream` orders them. Rows built from cells are counted ([`RowsState::physical`]): a dense
//! query counts none.
//!
//! Errors of a run are wrapped in [`DataFusionError::External`] with their own type.
//!
//! [`DataFusionError::External`]: datafusion::error::DataFusionError::External

pub mod assemble;
mod concat;
mod conditions;
mod constants;
mod csv;
mod estimates;
mod guard;
mod intervals;
mod ipc;
mod json;
mod keyed;
mod lambdas;
mod large_top;
mod measured;
mod memory;
mod named_totals;
mod opened;
mod operators;
mod parquet;
mod partition_top;
mod per_value;
mod physical;
mod pieces;
mod remote;
mod rules;
mod run;
mod runtime;
mod scratch;
mod series;
mod shared;
mod shared_run;
mod single;
mod splits;
mod stop;
mod stream;
mod table;
mod texts;
mod thrift;
mod top;
mod whole;
mod wrapped;
mod written;

pub(crate) use csv::{CsvLines, Marks, Nulls, State, is_of_minutes};
pub(crate) use guard::Guarded;
pub(crate) use ipc::IpcFormat;
pub(crate) use json::JsonFiles;
pub(crate) use measured::read as count_read;
pub use measured::{LeftOut, OperatorRan, RowsMeasured};
pub use operators::Operator;
pub use pieces::{PieceSink, Pieces};
pub use remote::{
    HolderFault, RowsFault, RowsHolder, RowsHolders, RowsLoad, RowsOnWorkers, RowsPartStart,
    RowsPeers, RowsSpread, RowsStage, RowsStart, RowsStay, RowsTask, RowsTasks,
};
pub use run::{Batches, PhysicalRows};
pub use runtime::{RowsRuntime, RowsState};
pub(crate) use series::{Series, SeriesRows};
pub(crate) use stop::go_on;
pub use stop::{IsStopped, in_place};
pub(crate) use thrift::Checked;
pub(crate) use whole::{Whole, has_long_number};

use crate::lift::TensorScan;
use crate::walk::WalkPlan;
use arrow::array::ArrayRef;
use datafusion::catalog::TableProvider;
use datafusion::datasource::provider_as_source;
use datafusion::error::Result;
use datafusion::logical_expr::{LogicalPlan, TableScanBuilder};
use futures::stream::BoxStream;
use std::collections::BTreeMap;
use std::sync::Arc;

/// An error of a run, in its own type.
pub type BoxError = Box<dyn std::error::Error + Send + Sync>;

/// Cells of one root: those of the rows from `start`.
#[derive(Debug, Clone)]
pub struct Piece {
    /// Index of the root.
    pub root: usize,
    /// The first row.
    pub start: u64,
    /// One cell per row.
    pub cells: ArrayRef,
}

/// Runs a tensor plan.
pub trait RunTensor: Send + Sync + std::fmt::Debug {
    /// Returns the pieces of all roots of a scan, in any order; pieces of different roots begin at the same rows. Work
    /// begins at the first poll, and dropping the stream cancels it.
    fn run(&self, scan: &TensorScan) -> BoxStream<'static, std::result::Result<Piece, BoxError>>;
}

/// Replaces the placeholders of a logical plan by tables.
///
/// # Errors
/// DataFusion's, if a table's schema differs from its placeholder's.
fn attach(
    plan: LogicalPlan,
    tables: &BTreeMap<String, Arc<dyn TableProvider>>,
) -> Result<LogicalPlan> {
    plan.replace_all_up(|node| {
        let LogicalPlan::TableScan(scan) = node else { return Ok(None) };
        let Some(table) = tables.get(scan.table_name.table()) else { return Ok(None) };
        let new = TableScanBuilder::new(scan.table_name.clone(), provider_as_source(table.clone()))
            .with_projection(scan.projection.clone())
            .with_filters(scan.filters.clone())
            .with_fetch(scan.fetch)
            .build()?;
        Ok(Some(LogicalPlan::TableScan(new)))
    })
}

#[cfg(test)]
mod tests;
