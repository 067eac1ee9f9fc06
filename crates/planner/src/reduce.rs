//! Reductions as states: the state of a part of the data, and how states combine.
//!
//! Every reduction has three steps: a *partial* state for each chunk of the logical grid, *combined* in a fixed tree
//! over that grid, then *finished* into the result. States are plain fields, so a partial is a chunk like any other: it
//! can be stored, sent and recomputed.

use crate::dtype::DType;
use serde::{Deserialize, Serialize};
use smallvec::{SmallVec, smallvec};
use std::fmt;

/// Kind of a reduction. Masked cells are skipped. A result over no cells is masked, except `Count`, `Any` and `All`,
/// and except `Sum` and `Prod` of an input that cannot be masked, which give 0 and 1.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum ReduceKind {
    /// Sum. Floats accumulate in `float64`; integers are exact, and a total beyond 64 bits is an error.
    Sum,
    /// Product. Floats accumulate in `float64`; integers wrap as NumPy's.
    Prod,
    /// Mean, accumulated in `float64`. The input is a float.
    Mean,
    /// Mean of a fixed number of cells, none of which can be masked: a sum that is divided at the end, without a count.
    MeanOf(u64),
    /// Sum of squared deviations divided by count minus `ddof`. The input is a float.
    Var {
        /// Delta degrees of freedom.
        ddof: u32,
    },
    /// Minimum; NaN if any cell is NaN.
    Min,
    /// Maximum; NaN if any cell is NaN.
    Max,
    /// Minimum in SQL's order, where NaN is greater than all numbers.
    MinTotal,
    /// Maximum in SQL's order, where NaN is greater than all numbers.
    MaxTotal,
    /// True if any `bool` is true.
    Any,
    /// True if all `bool`s are true.
    All,
    /// Number of unmasked cells.
    Count,
    /// Position of the first minimum (of the first NaN if there is one): row-major over the reduced axes.
    ArgMin,
    /// Position of the first maximum (of the first NaN if there is one).
    ArgMax,
    /// Sum in the element type, integers wrapping: combines the blocks of a contraction. Never masked.
    Add,
    /// The quantile of a window's cells, linear between two of them; NaN if any cell is NaN. The bits of its probability,
    /// a `float64` in [0, 1]. The input is a float. Windows alone have it: it has no state that combines.
    Quantile(u64),
}

impl ReduceKind {
    /// Type of the result for inputs of type `dtype`; `None` if the reduction is not defined for it.
    pub fn result(self, dtype: DType) -> Option<DType> {
        use ReduceKind::*;
        Some(match self {
            Sum | Prod => match dtype {
                DType::Bool => DType::Int64,
                d if d.is_signed() => DType::Int64,
                d if d.is_unsigned() => DType::UInt64,
                d if d.is_float() => d,
                _ => return None,
            },
            Mean | MeanOf(_) | Var { .. } | Quantile(_) if dtype.is_float() => dtype,
            Mean | MeanOf(_) | Var { .. } | Quantile(_) => return None,
            Min | Max | MinTotal | MaxTotal => dtype,
            Add if dtype.is_numeric() => dtype,
            Add => return None,
            Any | All if dtype == DType::Bool => DType::Bool,
            Any | All => return None,
            Count | ArgMin | ArgMax => DType::Int64,
        })
    }

    /// True if the reduction of no cells has a value.
    pub fn has_identity(self) -> bool {
        use ReduceKind::*;
        // NumPy's mean and variance of nothing are NaN, as are ours.
        matches!(self, Sum | Prod | Mean | MeanOf(_) | Var { .. } | Any | All | Count | Add)
    }

    /// Types of the fields of a state for inputs of type `dtype`.
    ///
    /// | kind | fields |
    /// |---|---|
    /// | sum of integers | low and high half of the 128-bit total (`uint64`, `int64`) |
    /// | sum, product of floats; mean | running value (`float64`) |
    /// | product of integers | running value (result's type) |
    /// | variance | count (`int64`), a point, distance of the mean from it, sum of squared deviations (`float64`) |
    /// | min, max, any, all | the value so far |
    /// | argmin, argmax | value, position (`int64`, -1 while there is none) |
    /// | count | `int64` |
    ///
    /// A masked input adds a last field: for sums and means the `int64` count of cells, for products and extremes a
    /// `bool` that is true if there was a cell. The other states contain this already. A mean over an unknown number of
    /// cells always has its count: the divisor of a group.
    pub fn state(self, dtype: DType, nullable: bool) -> SmallVec<[DType; 4]> {
        use ReduceKind::*;
        let mut fields: SmallVec<[DType; 4]> = match self {
            Sum if !dtype.is_float() => smallvec![DType::UInt64, DType::Int64],
            Sum | Mean | MeanOf(_) => smallvec![DType::Float64],
            Prod if dtype.is_float() => smallvec![DType::Float64],
            Prod => smallvec![self.result(dtype).unwrap_or(DType::Int64)],
            Var { .. } => smallvec![DType::Int64, DType::Float64, DType::Float64, DType::Float64],
            Min | Max | MinTotal | MaxTotal | Add | Quantile(_) => smallvec![dtype],
            Any | All => smallvec![DType::Bool],
            ArgMin | ArgMax => smallvec![dtype, DType::Int64],
            Count => smallvec![DType::Int64],
        };
        match self {
            Mean => fields.push(DType::Int64),
            Sum | MeanOf(_) if nullable => fields.push(DType::Int64),
            Prod | Min | Max | MinTotal | MaxTotal | Add if nullable => fields.push(DType::Bool),
            _ => {}
        }
        fields
    }

    /// True if the result can be masked.
    pub fn nullable(self, input: bool) -> bool {
        input && !matches!(self, ReduceKind::Count | ReduceKind::Any | ReduceKind::All)
    }

    /// The name in NumPy.
    pub fn name(self) -> &'static str {
        use ReduceKind::*;
        match self {
            Sum => "sum",
            Prod => "prod",
            Mean | MeanOf(_) => "mean",
            Var { .. } => "var",
            Min => "min",
            Max => "max",
            MinTotal => "min_total",
            MaxTotal => "max_total",
            Any => "any",
            All => "all",
            Count => "count",
            ArgMin => "argmin",
            ArgMax => "argmax",
            Add => "add",
            Quantile(_) => "quantile",
        }
    }
}

impl fmt::Display for ReduceKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ReduceKind::Var { ddof } if *ddof > 0 => write!(f, "var(ddof={ddof})"),
            ReduceKind::Quantile(bits) => write!(f, "quantile({})", f64::from_bits(*bits)),
            k => f.write_str(k.name()),
        }
    }
}
