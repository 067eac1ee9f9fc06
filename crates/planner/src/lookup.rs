//! Places of cells in sorted tables: what a `Lookup` node computes.

use crate::dtype::DType;
use serde::{Deserialize, Serialize};

/// What is looked up. A table is 1-d and sorted; NaN is greater than all numbers. Masked cells of a table, which stand
/// last, are no part of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum LookupKind {
    /// `int64`: how many cells of the table are less.
    Left,
    /// `int64`: how many cells of the table are not greater.
    Right,
    /// `int64`: the bin that holds the cell, where the table are the edges of bins: `edges[i] <= x < edges[i + 1]`, the
    /// last edge belonging to the last bin; -1 for what lies in none, and for NaN. Edges that are not finite or that
    /// fall are an error.
    Bins,
    /// `bool`: is the cell in the table. NaN never is.
    Contains,
    /// `float64`: linear interpolation between the points of two tables (places, values); the first and the last
    /// value beyond them; NaN stays.
    Interpolate,
}

impl LookupKind {
    /// Type of the result for cells of a type; `None` where it is not defined.
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

    /// The name as users know it.
    pub fn name(self) -> &'static str {
        match self {
            LookupKind::Left | LookupKind::Right => "searchsorted",
            LookupKind::Bins => "histogram",
            LookupKind::Contains => "isin",
            LookupKind::Interpolate => "interp",
        }
    }
}
