//! A tensor in the relational plan: a table of labels and cells.
//!
//! ```text
//! shape [2, 3]      lat | lon | v        row r is the cell with row-major number r:
//!                   10  | 0   | r 0      labels repeat along the other axis,
//!                   10  | 5   | r 1      cells are 1-d tensors of all rows
//!                   …
//! ```

use std::collections::BTreeMap;
use std::sync::Arc;

use arrow::array::ArrayRef;
use arrow::datatypes::{DataType, Field, SchemaRef};
use datafusion::logical_expr::TableSource;
use tessera_planner::optimize::Rooted;

use super::along::Along;

/// The hidden column of row numbers of a scan.
pub(crate) const ROW: &str = "__row";

pub(crate) fn row_field(name: &str) -> Field {
    Field::new(name, DataType::UInt64, false)
}

/// A named source of a relational plan, backed by a tensor plan.
#[derive(Debug, Clone)]
pub struct TensorScan {
    /// The table's name in the logical plan.
    pub name: String,
    /// The columns' fields.
    pub schema: SchemaRef,
    /// Lengths of the dimensions; one row per cell, row-major.
    pub shape: Vec<u64>,
    /// The contents of each field of the schema.
    pub columns: Vec<ScanColumn>,
    /// Columns that are labels, or labels and NULL: the dimension of each, and the label at each position of the whole
    /// dimension, including filtered ones. `None` for columns of a table of rows, whose groups are in the order of their
    /// values.
    pub(crate) origins: BTreeMap<usize, Option<(usize, Along)>>,
    /// The root (`bool`) that is false or masked for absent rows.
    pub presence: Option<usize>,
    /// If set, only the rows that can be among the first are needed.
    pub top: Option<Top>,
    /// The cells: every root is 1-d with one cell per row, and all have one grid.
    pub rooted: Rooted,
    /// True if the rows are cells of a source that are relational from here on; false if they are the result of a dense
    /// plan.
    pub exploded: bool,
}

/// Restricts a scan to rows that can be among the first by a key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Top {
    /// The root of the key.
    pub root: usize,
    /// Number of first rows.
    pub rows: u64,
    /// True if the greatest key is first.
    pub descending: bool,
    /// True if NULL sorts before all values.
    pub nulls_first: bool,
    /// True if further keys order equal ones, so all of them are needed; otherwise the earlier row comes first.
    pub ties: bool,
}

/// The contents of a column of a scan.
#[derive(Debug, Clone)]
pub enum ScanColumn {
    /// A label per position along an axis of `shape`.
    Label {
        /// The axis.
        axis: usize,
        /// One value per position.
        values: ArrayRef,
    },
    /// The position along an axis of `shape`, counted from `start` (`int64`).
    Position {
        /// The axis.
        axis: usize,
        /// The first position.
        start: u64,
    },
    /// The root at this index of `rooted.roots`.
    Cells(usize),
    /// The number of the row (`uint64`).
    Row,
}

impl ScanColumn {
    pub(crate) fn label(axis: usize, values: Along) -> Self {
        match values {
            Along::Values(values) => ScanColumn::Label { axis, values },
            Along::Positions { start, .. } => ScanColumn::Position { axis, start },
        }
    }
}

/// The placeholder for a [`TensorScan`] in a logical plan, which a provider replaces before the plan runs.
#[derive(Debug)]
pub(crate) struct ScanSource {
    pub(crate) schema: SchemaRef,
    /// For each field that is labels, its dimension and the label at each position.
    pub(crate) labels: Arc<[Option<(usize, Along)>]>,
}

impl TableSource for ScanSource {
    fn schema(&self) -> SchemaRef {
        self.schema.clone()
    }
}

impl TensorScan {
    pub(crate) fn source(&self) -> Arc<dyn TableSource> {
        let labels = self
            .columns
            .iter()
            .enumerate()
            .map(|(i, column)| match (self.origins.get(&i), column) {
                (Some(origin), _) => origin.clone(),
                (None, ScanColumn::Label { axis, values }) => Some((*axis, values.clone().into())),
                (None, ScanColumn::Position { axis, start }) => {
                    let len = self.shape.get(*axis).copied().unwrap_or(0);
                    Some((*axis, Along::Positions { start: *start, len }))
                }
                (None, ScanColumn::Cells(_) | ScanColumn::Row) => None,
            })
            .collect();
        Arc::new(ScanSource { schema: self.schema.clone(), labels })
    }
}
