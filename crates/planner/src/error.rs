//! Errors of building and planning.

use crate::dtype::DType;
use std::error::Error as StdError;
use std::iter::successors;
use thiserror::Error;

/// An error and its causes, outermost first.
pub fn causes<'a>(
    error: &'a (dyn StdError + 'static),
) -> impl Iterator<Item = &'a (dyn StdError + 'static)> {
    successors(Some(error), |&e| e.source())
}

/// Like [`causes`], with the errors inside of errors of files, which hide them from their own chain.
pub fn causes_through_io<'a>(
    error: &'a (dyn StdError + 'static),
) -> impl Iterator<Item = &'a (dyn StdError + 'static)> {
    successors(Some(error), |&e| {
        match e.downcast_ref::<std::io::Error>().and_then(|e| e.get_ref()) {
            Some(inside) => Some(inside as &(dyn StdError + 'static)),
            None => e.source(),
        }
    })
}

/// The message of an error, with the causes that it does not name.
pub fn with_causes(error: &(dyn StdError + 'static)) -> String {
    causes(error).skip(1).fold(error.to_string(), |message, cause| {
        let text = cause.to_string();
        if message.contains(&text) { message } else { format!("{message}: {text}") }
    })
}

/// The kind of action that an error calls for. Every crate of Tessera uses these classes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Class {
    /// User: the query or its data must change.
    User,
    /// A limit was reached: raise it, make the query smaller, or retry later.
    Limit,
    /// The same call may succeed when it is retried.
    Retry,
    /// A bug in Tessera.
    Internal,
}

impl Class {
    /// Name of the class in error bodies.
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
#[expect(missing_docs, reason = "messages document variants and fields")]
pub enum Error {
    #[error("`{operation}` is not defined for {}", list(dtypes))]
    DTypes { operation: String, dtypes: Vec<DType> },
    #[error("{operation}: shapes {} do not match", shapes(shapes_))]
    Shapes { operation: String, shapes_: Vec<Vec<u64>>, hint: Option<String> },
    #[error("{operation}: axis {axis} is out of range for {rank} dimensions")]
    Axis { operation: String, axis: i64, rank: usize },
    /// A reduction without an identity over an empty axis.
    #[error(
        "{operation}: axis {axis} has length 0 and {operation} of an empty axis is not defined"
    )]
    Empty {
        operation: String,
        /// Number of the empty axis.
        axis: usize,
    },
    /// Masked cells in an operation that is not defined for them.
    #[error("`{operation}` is not defined for masked cells")]
    Masked { operation: String },
    #[error("shape {} has more than 2^63 cells", shapes(std::slice::from_ref(shape)))]
    TooLarge { shape: Vec<u64> },
    #[error(
        "the index lists of the plan need {} (limit {}, a quarter of the memory limit)",
        crate::explain::bytes(*bytes), crate::explain::bytes(*limit_bytes)
    )]
    Lists { bytes: u64, limit_bytes: u64 },
    #[error("{what}: {value} is out of range, {expected}")]
    Range { what: String, value: String, expected: String },
    #[error("{construct} is not supported yet")]
    Unsupported { construct: String },
    /// Planning was stopped from outside: see [`crate::interrupt`].
    #[error("planning was stopped")]
    Stopped,
    /// A pass broke the plan: a bug in Tessera.
    #[error("the plan is broken after pass `{pass}`: {reason}")]
    Broken { pass: &'static str, reason: String },
}

impl Error {
    /// Stable code for programs.
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

    /// Class of the error.
    pub fn class(&self) -> Class {
        match self {
            Error::Broken { .. } => Class::Internal,
            Error::TooLarge { .. } | Error::Lists { .. } => Class::Limit,
            _ => Class::User,
        }
    }

    /// How to resolve the error, if known.
    pub fn hint(&self) -> Option<String> {
        match self {
            Error::DTypes { dtypes, .. } if dtypes.iter().any(|dtype| dtype.is_datetime()) => {
                Some("`epoch(x)` has times in seconds, `x::bigint` in microseconds".into())
            }
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
