//! Kernels: pure functions over bytes and strided views.
//!
//! A kernel knows nothing of chunks, schedulers or files; it allocates no more than a few tiles of scratch and does not
//! panic. Which machine instructions run is a [`Level`]; every level gives the same bits (NaN payloads excepted),
//! because nothing is contracted implicitly, reductions run in 64 virtual lanes with a fixed fold, and the order of a
//! reduction is a function of the region's shape and the reduced axes alone.
//!
//! 1. [`fused`] runs an elementwise program over a region and stores or reduces what comes out.
//! 2. [`combine`] merges the states that reductions leave, and finishes them into values.
//! 3. [`scan`] runs sums and extremes along an axis, with a carry from the chunk before.
//! 4. [`copy`] moves boxes between strided views.
//! 5. [`window`] reduces the cells around each cell, [`sort`] brings lines in order.
//! 6. [`table`] looks cells up and adds them up by code; [`fill`] carries cells over masked ones.
//! 7. [`contract`] adds a block of a matrix product.
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

/// What a kernel can refuse.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum KernelError {
    /// An argument for which an operation has no value, in a cell that is not masked.
    #[error("`{operation}` of {dtype}: {reason}")]
    Domain {
        /// The operation, as plans name it.
        operation: String,
        /// Type of its arguments.
        dtype: DType,
        /// What was met.
        reason: &'static str,
    },
    /// An integer total that its type does not hold.
    #[error("`{operation}`: the result does not fit {dtype}")]
    Overflow {
        /// The operation, as plans name it.
        operation: String,
        /// Type of the result.
        dtype: DType,
    },
    /// A matrix that has no such factorisation.
    #[error("`{operation}`: the matrix {}{fault}", place(index))]
    Matrix {
        /// The function, as users know it.
        operation: &'static str,
        /// Which matrix of a stack; empty if there is one alone.
        index: Vec<u64>,
        /// What is wrong with it.
        fault: MatrixFault,
    },
    /// Masked cells where every cell has to have a value.
    #[error(
        "`{operation}` is not defined for masked cells: {masked} of the {cells} cells in {at} are masked"
    )]
    Masked {
        /// The function, as users know it.
        operation: String,
        /// How many cells are masked, of those that were looked at.
        masked: u64,
        /// How many were.
        cells: u64,
        /// Where they are in the tensor.
        at: String,
    },
    /// The caller asked to stop.
    #[error("cancelled")]
    Cancelled,
    /// An operation on types that it is not defined for: a plan that should not have been built.
    #[error("`{operation}` has no kernel for {dtype}")]
    Unsupported {
        /// The operation.
        operation: String,
        /// The type.
        dtype: DType,
    },
    /// A buffer that is too short, misaligned or missing: a fault of the caller.
    #[error("{what}: {got} given, {expected} needed")]
    Buffer {
        /// Which buffer.
        what: &'static str,
        /// What was given.
        got: u64,
        /// What was needed.
        expected: u64,
    },
}

impl KernelError {
    /// Masked cells that are still to be counted.
    pub(crate) fn masked(operation: &str) -> Self {
        let (operation, at) = (operation.to_string(), String::new());
        KernelError::Masked { operation, masked: 0, cells: 0, at }
    }

    /// Stable name for programs.
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

    /// Who has to act.
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

    /// The way out, if there is one to tell.
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

/// Where a matrix stands in its stack, for messages.
fn place(index: &[u64]) -> String {
    match index {
        [] => String::new(),
        index => format!("{index:?} of the stack "),
    }
}

pub(crate) fn unsupported(operation: impl Into<String>, dtype: DType) -> KernelError {
    KernelError::Unsupported { operation: operation.into(), dtype }
}

/// Bits without structure for tests, from a seed that is not 0 (Marsaglia's xorshift).
#[cfg(test)]
pub(crate) fn noise(mut state: u64) -> impl FnMut() -> u64 {
    move || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state
    }
}
