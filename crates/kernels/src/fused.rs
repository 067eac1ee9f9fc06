//! The tile interpreter: runs a fused elementwise program over a region without compiling at run time.
//!
//! 1. [`compile()`] turns a [`Fused`] into a list of tile operations, once per stage: dead code is dropped, several
//!    operations are merged into one where that preserves the bits, constants and results get registers of 64 cells.
//! 2. [`Compiled::run`] walks a region's cells in row-major order, 64 at a time. For each tile it points the inputs at
//!    the data (or packs them, if they are strided, repeated or end within the tile), calls the operations in order,
//!    and passes the results to the stores and the reductions.
//!
//! ```text
//!   region [3, 100]:   | 0 ‥ 63 | 64 ‥ 99, 100 ‥ 127 | …      tiles cross the ends of rows
//! ```
//! A tile's data stay in the first-level cache, and 64 cells are few enough that the processor overlaps the loads of
//! one operation with the arithmetic of the next.
//!
//! # Errors of single cells
//! `TruncDiv`, `TruncRem` and `Pow` of integers reject some arguments, but only in cells whose value is needed. For
//! each such operation the compiler derives a guard, a `bool` that is true where the result reaches an unmasked value
//! through taken branches of `where` only. Masked cells and branches not taken never raise.

mod compile;
mod feed;
mod plain;
mod rows;
mod run;
mod steady;
mod walk;

use super::{KernelError, Level};
use tessera_planner::dtype::DType;
use tessera_planner::plan::Fused;
use tessera_planner::region::Region;

pub use compile::{Compiled, compile, compile_at};
pub use run::Scratch;

/// A strided view to read: cell `p` (relative to the region) is at element `offset + Σ strides[a] * p[a]` of `bytes`.
#[derive(Debug, Clone, Copy)]
pub struct StridedInput<'a> {
    /// The memory of the view, native-endian.
    pub bytes: &'a [u8],
    /// Element index (not byte) of the region's first cell.
    pub offset: i64,
    /// Elements per step along each axis of the region; 0 repeats, negative goes backward.
    pub strides: &'a [i64],
    /// Type of the elements.
    pub dtype: DType,
}

impl StridedInput<'_> {
    /// Rejects a view that exceeds its memory for some cell of a region of shape `shape`.
    pub(crate) fn check(&self, shape: &[u64]) -> Result<(), KernelError> {
        if self.strides.len() != shape.len() {
            return Err(KernelError::Buffer {
                what: "axes of an input",
                got: self.strides.len() as u64,
                expected: shape.len() as u64,
            });
        }
        if shape.contains(&0) {
            return Ok(());
        }
        let (mut low, mut high) = (i128::from(self.offset), i128::from(self.offset));
        for (s, n) in self.strides.iter().zip(shape) {
            let reach = i128::from(*s) * i128::from(n - 1);
            if reach < 0 { low += reach } else { high += reach }
        }
        let cells = (self.bytes.len() / self.dtype.size()) as i128;
        if low < 0 || high >= cells {
            return Err(KernelError::Buffer {
                what: "cells of an input",
                got: cells as u64,
                expected: high.max(0) as u64 + 1,
            });
        }
        Ok(())
    }
}

/// Destination of an output of a program: its fields, each dense and row-major, aligned for its type.
///
/// A store has the value and, if it can be masked, the validity (one byte per cell). A reduction has the fields of
/// [`ReduceKind::state`](tessera_planner::reduce::ReduceKind::state), with one cell along reduced axes and one per
/// group along grouped ones. The previous content of the buffers does not matter.
#[derive(Debug, Default)]
pub struct OutputFields<'a> {
    /// Buffers of the fields.
    pub fields: Vec<&'a mut [u8]>,
    /// True to store past the caches, for cells that are not read soon. Fields that are not aligned to 64 bytes, and
    /// states, are stored plainly.
    pub stream: bool,
}

/// Compiles and runs in one call, for callers that run a program once.
pub fn run_once(
    fused: &Fused,
    region: &Region,
    stage_shape: &[u64],
    inputs: &[StridedInput<'_>],
    outputs: &mut [OutputFields<'_>],
) -> Result<(), KernelError> {
    let compiled = compile_at(fused, stage_shape.len(), Level::detect())?;
    compiled.run(region, stage_shape, inputs, outputs, &mut Scratch::new(), &|| false)
}

#[cfg(test)]
mod accuracy;
#[cfg(test)]
mod joined;
#[cfg(test)]
mod tests;
