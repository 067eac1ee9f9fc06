//! Cell blocks inside tensor expressions, as lowering sees them.
//!
//! The crate `tessera-cells`, which depends on this one, handles rows. Lowering requests the plan of a block through
//! [`CellPlanner`]. A block that stays dense is returned as a graph ([`Dense`]). The relational plan of any other block
//! is opaque here and passed on to the code that runs it ([`RowsPlan`]).

use std::any::Any;
use std::fmt;
use std::sync::Arc;

use sqlparser::ast::Query;
use tessera_planner::catalog::{Attrs, CoordValues};
use tessera_planner::optimize::Rooted;

use crate::bind::Context;
use crate::error::Error;
use crate::island::{RowsColumn, RowsToTensor};

/// Plans cell blocks.
pub trait CellPlanner {
    /// Plans a cell block as tensors. `text` is its source text, `because` the clause that made it a cell block.
    ///
    /// # Errors
    /// The errors of planning; [`Error::Waiting`] if a part of the block has to run first.
    fn labelled(
        &self,
        query: &Query,
        text: u64,
        context: &mut Context<'_>,
        because: &str,
    ) -> Result<Labelled, Error>;

    /// The positions that the conditions of `SELECT 1 FROM relation WHERE …` keep along the dimensions of which they do
    /// not keep all; `None` if they are not on labels alone, or cannot be planned.
    ///
    /// # Errors
    /// [`Error::Waiting`] if a part of the block has to run first.
    fn kept(
        &self,
        _query: &Query,
        _text: u64,
        _context: &mut Context<'_>,
    ) -> Result<Option<Vec<KeptPositions>>, Error> {
        Ok(None)
    }
}

/// The positions of a dimension that conditions keep.
#[derive(Debug, Clone, PartialEq)]
pub struct KeptPositions {
    /// The dimension.
    pub dim: Arc<str>,
    /// Its length.
    pub len: u64,
    /// The positions.
    pub positions: Positions,
}

/// Positions along a dimension, ascending.
#[derive(Debug, Clone, PartialEq)]
pub enum Positions {
    /// Consecutive positions.
    Range {
        /// The first position.
        start: u64,
        /// Number of positions.
        len: u64,
    },
    /// Any positions.
    List(Arc<[u64]>),
}

/// The relational plan of a cell block.
pub trait RowsPlan: Any + fmt::Debug + Send + Sync {
    /// The tensor plans whose cells it reads.
    fn graphs(&self) -> Vec<&Rooted>;
}

/// A planned cell block that yields tensors.
#[derive(Debug, Clone)]
pub struct Labelled {
    /// The conversion of its rows to tensors.
    pub rows: RowsToTensor,
    /// The tensors themselves, if no rows are needed.
    pub dense: Option<Dense>,
    /// Names of the values: the alias, or the column's own name; `None` for other expressions.
    pub names: Vec<Option<Arc<str>>>,
}

/// The result of a cell block that stays dense.
#[derive(Debug, Clone)]
pub struct Dense {
    /// The graph; its roots are 1-d, the cells of `shape` in row-major order.
    pub rooted: Rooted,
    /// Lengths of the axes.
    pub shape: Vec<u64>,
    /// The root (`bool`) that is false for cells without a row.
    pub presence: Option<usize>,
    /// Axis and labels of each result dimension; other axes have length 1.
    pub keys: Vec<DenseKey>,
    /// The root of each value.
    pub values: Vec<usize>,
}

/// A dimension of a dense result.
#[derive(Debug, Clone)]
pub struct DenseKey {
    /// The axis.
    pub axis: usize,
    /// A label for each position, without duplicates.
    pub labels: CoordValues,
    /// True if the labels are those of a source, whose order they keep; computed labels are ascending.
    pub is_source: bool,
    /// The attributes of the source's labels; computed ones have none.
    pub attrs: Attrs,
}

impl Labelled {
    /// Names of the dimensions.
    pub(crate) fn keys(&self) -> impl Iterator<Item = &Arc<str>> {
        self.rows.columns.iter().filter_map(|column| match column {
            RowsColumn::Key(name) => Some(name),
            RowsColumn::Value(_) => None,
        })
    }

    /// Names of the values; a value without one is named by its text.
    pub(crate) fn texts(&self) -> impl Iterator<Item = &Arc<str>> {
        self.rows.columns.iter().filter_map(|column| match column {
            RowsColumn::Key(_) => None,
            RowsColumn::Value(name) => Some(name),
        })
    }

    /// The name of a value, if it has one.
    pub(crate) fn value_name(&self, at: usize) -> Option<Arc<str>> {
        self.names.get(at).cloned().flatten()
    }
}
