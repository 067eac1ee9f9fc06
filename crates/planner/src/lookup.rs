//! Positions of cells in sorted tables: the `Lookup` node.

use crate::dtype::DType;
use serde::{Deserialize, Serialize};

/// Kind of lookup. A table is 1-d and sorted; NaN is greater than all numbers. Masked cells of a table come last and
/// are ignored.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum LookupKind {
    /// `int64`: number of table cells that are less than the cell.
    Left,
    /// `int64`: number of table cells that are less than or equal to the cell.
    Right,
    /// `int64`: bin that holds the cell; the table contains the edges: `edges[i] <= x < edges[i + 1]`, and the last
    /// edge belongs to the last bin. -1 for cells outside of all bins, and for NaN. Edges that are not finite or that
    /// decrease are an error.
    Bins,
    /// `bool`: true if the table contains the cell; false for NaN.
    Contains,
    /// `float64`: linear interpolation between the points of two tables (positions, values). Beyond them the result is
    /// the first or the last value; NaN stays NaN.
    Interpolate,
}

impl LookupKind {
    /// Result type for cells of type `dtype`; `None` where the lookup is not defined.
    pub fn result(self, dtype: DType) -> Option<DType> {
        match self {
            LookupKind::Left | LookupKind::Right | LookupKind::Bins => Some(DType::Int64),
            LookupKind::Contains => Some(DType::Bool),
            LookupKind::Interpolate => (dtype == DType::Float64).then_some(dtype),
        }
    }

    /// Number of tables.
    pub fn tables(self) -> usize {
        if self == LookupKind::Interpolate { 2 } else { 1 }
    }

    /// Name of the function in SQL.
    pub fn name(self) -> &'static str {
        match self {
            LookupKind::Left | LookupKind::Right => "searchsorted",
            LookupKind::Bins => "histogram",
            LookupKind::Contains => "isin",
            LookupKind::Interpolate => "interp",
        }
    }
}
