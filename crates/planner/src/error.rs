//! What can be wrong with a plan.

use crate::dtype::DType;
use thiserror::Error;

/// Who has to act on an error, as every crate of Tessera classes its errors.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Class {
    /// The query or its data must change.
    User,
    /// A limit was reached: more memory, a smaller query, or later.
    Limit,
    /// The same call may succeed when it is tried again.
    Retry,
    /// A fault of Tessera.
    Internal,
}

impl Class {
    /// The class as error bodies spell it.
    pub fn name(self) -> &'static str {
        match self {
            Class::User => "user",
            Class::Limit => "limit",
            Class::Retry => "retry",
            Class::Internal => "internal",
        }
    }
}

/// An error of building or planning.
#[derive(Debug, Clone, PartialEq, Error)]
#[non_exhaustive]
pub enum Error {
    /// An operation is not defined for a type.
    #[error("`{operation}` is not defined for {}", list(dtypes))]
    DTypes {
        /// The operation, as the user knows it.
        operation: String,
        /// Types of its arguments.
        dtypes: Vec<DType>,
    },
    /// Shapes that do not go together.
    #[error("{operation}: shapes {} do not match", shapes(shapes_))]
    Shapes {
        /// The operation, as the user knows it.
        operation: String,
        /// The shapes.
        shapes_: Vec<Vec<u64>>,
        /// What would have matched.
        hint: Option<String>,
    },
    /// An axis beyond the rank.
    #[error("{operation}: axis {axis} is out of range for {rank} dimensions")]
    Axis {
        /// The operation.
        operation: String,
        /// The axis asked for.
        axis: i64,
        /// Dimensions there are.
        rank: usize,
    },
    /// A reduction without an identity over nothing.
    #[error(
        "{operation}: axis {axis} has length 0 and {operation} of an empty axis is not defined"
    )]
    Empty {
        /// The operation.
        operation: String,
        /// The empty axis.
        axis: usize,
    },
    /// Masked cells where every cell has to have a value.
    #[error("`{operation}` is not defined for masked cells")]
    Masked {
        /// The operation.
        operation: String,
    },
    /// A tensor with more cells than can be addressed.
    #[error("shape {} has more than 2^63 cells", shapes(std::slice::from_ref(shape)))]
    TooLarge {
        /// The shape.
        shape: Vec<u64>,
    },
    /// Lists of positions that take more memory than a plan may hold.
    #[error(
        "the index lists of the plan need {} (limit {}, a quarter of the memory limit)",
        crate::explain::bytes(*bytes), crate::explain::bytes(*limit_bytes)
    )]
    Lists {
        /// Their bytes.
        bytes: u64,
        /// The most.
        limit_bytes: u64,
    },
    /// A number out of its range.
    #[error("{what}: {value} is out of range, {expected}")]
    Range {
        /// What the number is.
        what: String,
        /// The number.
        value: String,
        /// What is accepted.
        expected: String,
    },
    /// Something that a later version will do.
    #[error("{construct} is not supported yet")]
    Unsupported {
        /// The construct.
        construct: String,
    },
    /// Planning was stopped from outside: see [`crate::interrupt`].
    #[error("planning was stopped")]
    Stopped,
    /// A pass broke the plan: a fault of ours.
    #[error("the plan is broken after pass `{pass}`: {reason}")]
    Broken {
        /// The pass after which the check failed.
        pass: &'static str,
        /// What does not hold.
        reason: String,
    },
}

impl Error {
    /// Stable name for programs.
    pub fn code(&self) -> &'static str {
        match self {
            Error::DTypes { .. } => "dtype_mismatch",
            Error::Shapes { .. } => "shape_mismatch",
            Error::Axis { .. } => "axis_out_of_range",
            Error::Empty { .. } => "empty_reduction",
            Error::Masked { .. } => "masked_input",
            Error::TooLarge { .. } => "too_large",
            Error::Lists { .. } => "memory_exceeded",
            Error::Range { .. } => "out_of_range",
            Error::Unsupported { .. } => "unsupported",
            Error::Stopped => "cancelled",
            Error::Broken { .. } => "internal",
        }
    }

    /// Who has to act.
    pub fn class(&self) -> Class {
        match self {
            Error::Broken { .. } => Class::Internal,
            Error::TooLarge { .. } | Error::Lists { .. } => Class::Limit,
            _ => Class::User,
        }
    }

    /// The way out, if there is one to tell.
    pub fn hint(&self) -> Option<String> {
        match self {
            Error::DTypes { .. } => {
                Some("convert with `cast(x AS float64)` or `x::float64`".into())
            }
            Error::Shapes { hint, .. } => hint.clone(),
            Error::Axis { rank, .. } => Some(match rank {
                0 => "a 0-d tensor has no axes".into(),
                n => format!("axes are 0 to {} or -{n} to -1", n - 1),
            }),
            Error::Lists { .. } => Some(
                "use a range (`x[::2]`), `broadcast_to` or fewer positions, or raise `--memory-limit`"
                    .into(),
            ),
            Error::Masked { .. } => Some(
                "the tensor may have masked cells; give them a value first: `coalesce(x, 0.0)`"
                    .into(),
            ),
            Error::Broken { .. } => {
                Some("this is a fault in Tessera; please report the query".into())
            }
            _ => None,
        }
    }
}

fn list(dtypes: &[DType]) -> String {
    dtypes.iter().map(|d| d.name()).collect::<Vec<_>>().join(" and ")
}

fn shapes(s: &[Vec<u64>]) -> String {
    let one =
        |s: &Vec<u64>| format!("[{}]", s.iter().map(u64::to_string).collect::<Vec<_>>().join(", "));
    s.iter().map(one).collect::<Vec<_>>().join(" and ")
}
