//! Blocks of cells inside tensor expressions, as lowering knows them.
//!
//! Rows are the business of the crate `tessera-cells`, which knows this one. Lowering asks for the plan of a block through
//! [`CellPlanner`]. A block that stays dense comes back as a graph ([`Dense`]); the relational plan of any other is
//! carried to the one who runs it, and nothing here looks inside ([`RowsPlan`]).

use std::any::Any;
use std::fmt;
use std::sync::Arc;

use sqlparser::ast::Query;
use tessera_planner::catalog::CoordValues;
use tessera_planner::optimize::Rooted;

use crate::bind::Context;
use crate::error::Error;
use crate::island::{RowsColumn, RowsToTensor};

/// Plans blocks of cells.
pub trait CellPlanner {
    /// Plans a block of cells as tensors. `text` is the text in which it stands, `because` the clause that made it one.
    ///
    /// # Errors
    /// Those of planning; [`Error::Waiting`] if a part of the block has to run first.
    fn labelled(
        &self,
        query: &Query,
        text: u64,
        context: &mut Context<'_>,
        because: &str,
    ) -> Result<Labelled, Error>;
}

/// The relational plan of a block of cells.
pub trait RowsPlan: Any + fmt::Debug + Send + Sync {
    /// The tensor plans whose cells it reads.
    fn graphs(&self) -> Vec<&Rooted>;
}

/// A planned cell block that gives tensors.
#[derive(Debug, Clone)]
pub struct Labelled {
    /// How its rows become tensors.
    pub rows: RowsToTensor,
    /// The tensors themselves, if no rows are needed.
    pub dense: Option<Dense>,
    /// The names of the values: `AS`, or the column's own; `None` for other expressions.
    pub names: Vec<Option<Arc<str>>>,
}

/// The result of a cell block that stayed dense.
#[derive(Debug, Clone)]
pub struct Dense {
    /// The graph; its roots are 1-d, the cells of `shape` in row-major order.
    pub rooted: Rooted,
    /// Lengths of the axes.
    pub shape: Vec<u64>,
    /// The root (`bool`) that is false for cells that are no rows.
    pub presence: Option<usize>,
    /// For each dimension of the result its axis and labels; other axes have length 1.
    pub keys: Vec<DenseKey>,
    /// The root of each value.
    pub values: Vec<usize>,
}

/// A dimension of a dense result.
#[derive(Debug, Clone)]
pub struct DenseKey {
    /// The axis.
    pub axis: usize,
    /// A label for each position, all different.
    pub labels: CoordValues,
    /// The labels are those of a source, and stay in its order; labels that were computed come ascending.
    pub is_source: bool,
}

impl Labelled {
    /// Names of the dimensions.
    pub(crate) fn keys(&self) -> impl Iterator<Item = &Arc<str>> {
        self.rows.columns.iter().filter_map(|column| match column {
            RowsColumn::Key(name) => Some(name),
            RowsColumn::Value(_) => None,
        })
    }

    /// What the values are called, those without a name by what they are.
    pub(crate) fn texts(&self) -> impl Iterator<Item = &Arc<str>> {
        self.rows.columns.iter().filter_map(|column| match column {
            RowsColumn::Key(_) => None,
            RowsColumn::Value(name) => Some(name),
        })
    }

    /// The name of a value, if it has one of its own.
    pub(crate) fn value_name(&self, at: usize) -> Option<Arc<str>> {
        self.names.get(at).cloned().flatten()
    }
}
