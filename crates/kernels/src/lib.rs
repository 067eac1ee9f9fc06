//! Kernels: pure functions over bytes and strided views.
//!
//! A kernel knows nothing of chunks, schedulers or files; it allocates at most a few tiles of scratch and does not
//! panic. A [`Level`] selects the machine instructions. Every level gives the same bits (NaN payloads excepted),
//! because nothing is contracted implicitly, reductions run in 64 virtual lanes with a fixed fold, and the order of a
//! reduction is a function of the region's shape and the reduced axes alone.
//!
//! 1. [`fused`] runs an elementwise program over a region and stores or reduces the values.
//! 2. [`combine`] merges the states of reductions and finishes them into values.
//! 3. [`scan`] computes running sums and extremes along an axis, with a carry from the previous chunk.
//! 4. [`copy`] moves boxes between strided views.
//! 5. [`window`] reduces the window around each cell, [`sort`] sorts lines.
//! 6. [`table`] looks cells up and accumulates them by code; [`fill`] fills masked cells forward.
//! 7. [`contract`] computes a block of a matrix product.
//! 8. [`factor`] factors whole matrices.

pub mod combine;
pub mod contract;
pub mod copy;
mod elem;
pub mod factor;
pub mod fill;
pub mod fused;
mod level;
mod look;
mod math;
mod ops;
mod partial;
mod plain;
mod random;
pub mod scan;
pub mod shuffle;
pub mod sort;
pub mod stream;
pub mod table;
mod transpose;
pub mod window;

use factor::MatrixFault;
pub use level::Level;
pub use look::is_any;
pub use plain::Plain;

use tessera_planner::dtype::DType;
use tessera_planner::error::Class;
use thiserror::Error;

/// An error of a kernel.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[non_exhaustive]
#[expect(missing_docs, reason = "messages document variants and fields")]
pub enum KernelError {
    /// An argument outside of the domain of an operation, in an unmasked cell.
    #[error("`{operation}` of {dtype}: {reason}")]
    Domain { operation: String, dtype: DType, reason: &'static str },
    #[error("`{operation}`: the result does not fit {dtype}")]
    Overflow { operation: String, dtype: DType },
    /// A matrix for which the factorisation does not exist.
    #[error("`{operation}`: the matrix {}{fault}", place(index))]
    Matrix {
        operation: &'static str,
        /// Index of the matrix in its stack; empty for a single matrix.
        index: Vec<u64>,
        fault: MatrixFault,
    },
    /// Masked cells in an operation that is not defined for them.
    #[error(
        "`{operation}` is not defined for masked cells: {masked} of the {cells} cells in {at} are masked"
    )]
    Masked {
        operation: String,
        /// Number of masked cells among those examined.
        masked: u64,
        /// Number of examined cells.
        cells: u64,
        /// Region of the tensor that was examined.
        at: String,
    },
    /// The caller cancelled the work.
    #[error("cancelled")]
    Cancelled,
    /// An operation on types for which it is not defined: the plan should not have been built.
    #[error("`{operation}` has no kernel for {dtype}")]
    Unsupported { operation: String, dtype: DType },
    /// A buffer that is too short, misaligned or missing: a bug in the caller.
    #[error("{what}: {got} given, {expected} needed")]
    Buffer { what: &'static str, got: u64, expected: u64 },
}

impl KernelError {
    /// The error before its masked cells are counted.
    pub(crate) fn masked(operation: &str) -> Self {
        let (operation, at) = (operation.to_string(), String::new());
        KernelError::Masked { operation, masked: 0, cells: 0, at }
    }

    /// Stable code for programs.
    pub fn code(&self) -> &'static str {
        match self {
            KernelError::Domain { .. } => "domain_error",
            KernelError::Overflow { .. } => "integer_overflow",
            KernelError::Matrix { fault, .. } => fault.code(),
            KernelError::Masked { .. } => "masked_input",
            KernelError::Cancelled => "cancelled",
            KernelError::Unsupported { .. } | KernelError::Buffer { .. } => "internal",
        }
    }

    /// Class of the error.
    pub fn class(&self) -> Class {
        match self {
            KernelError::Domain { .. }
            | KernelError::Overflow { .. }
            | KernelError::Masked { .. } => Class::User,
            KernelError::Matrix { fault, .. } => fault.class(),
            KernelError::Cancelled => Class::Retry,
            KernelError::Unsupported { .. } | KernelError::Buffer { .. } => Class::Internal,
        }
    }

    /// How to resolve the error, if known.
    pub fn hint(&self) -> Option<String> {
        match self {
            KernelError::Domain { .. } => {
                Some("guard the argument with `where` or convert to float64".into())
            }
            KernelError::Overflow { .. } => Some("convert to float64 first".into()),
            KernelError::Matrix { fault, .. } => Some(fault.hint().into()),
            KernelError::Masked { .. } => {
                Some("give masked cells a value first: `coalesce(x, 0.0)`".into())
            }
            KernelError::Cancelled => None,
            _ => Some("this is a fault in Tessera; please report the query".into()),
        }
    }
}

/// Formats the index of a matrix in its stack, for messages.
fn place(index: &[u64]) -> String {
    match index {
        [] => String::new(),
        index => format!("{index:?} of the stack "),
    }
}

pub(crate) fn unsupported(operation: impl Into<String>, dtype: DType) -> KernelError {
    KernelError::Unsupported { operation: operation.into(), dtype }
}

/// Unstructured bits for tests, from a nonzero seed (Marsaglia's xorshift).
#[cfg(test)]
pub(crate) fn noise(mut state: u64) -> impl FnMut() -> u64 {
    move || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state
    }
}
