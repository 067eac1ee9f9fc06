//! Factorisations of one matrix, on the caller's thread.
//!
//! A matrix is copied into working memory column by column and factored there; results are written row by row into the
//! outputs. The caller owns all memory. The order of all operations is a function of the lengths alone.
//!
//! 1. [`qr`] and [`lu`] recurse over halves of the columns, so that most of the work is matrix products (by faer).
//! 2. [`spectral`] calls faer's singular value and eigenvalue decompositions.
//!
//! Signs that a factorisation leaves open are fixed as described in [`tessera_planner::factor`].

mod lu;
mod qr;
mod spectral;

use super::KernelError;
use crate::plain::Plain;
use faer::MatMut;
use faer::traits::RealField;
use num_traits::Float;
use std::fmt;
use tessera_planner::error::Class;
use tessera_planner::factor::Factor;

/// Cell types of matrices.
pub trait Real: RealField + Float + Plain {}

impl Real for f32 {}
impl Real for f64 {}

/// Reasons why a factorisation of a matrix does not exist.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum MatrixFault {
    /// A pivot is 0.
    Singular,
    /// A pivot is not greater than 0.
    NotPositiveDefinite,
    /// A cell is NaN or infinite.
    NotFinite,
    /// The iteration did not converge.
    NoConvergence,
}

impl MatrixFault {
    /// Stable code for programs.
    pub fn code(self) -> &'static str {
        match self {
            MatrixFault::Singular => "singular_matrix",
            MatrixFault::NotPositiveDefinite => "not_positive_definite",
            MatrixFault::NotFinite => "not_finite",
            MatrixFault::NoConvergence => "no_convergence",
        }
    }

    /// Class of the error.
    pub fn class(self) -> Class {
        Class::User
    }

    /// How to resolve the error.
    pub fn hint(self) -> &'static str {
        match self {
            MatrixFault::Singular => "`lstsq` and `pinv` take matrices that are not invertible",
            MatrixFault::NotPositiveDefinite => {
                "`cholesky` needs a symmetric matrix with positive eigenvalues; `eigh` shows them"
            }
            MatrixFault::NotFinite => "give these cells a value first: `nan_to_num(x)`",
            MatrixFault::NoConvergence => "scale the matrix, or convert it to float64",
        }
    }
}

impl fmt::Display for MatrixFault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            MatrixFault::Singular => "is singular",
            MatrixFault::NotPositiveDefinite => "is not positive definite",
            MatrixFault::NotFinite => "has a cell that is NaN or infinite",
            MatrixFault::NoConvergence => "gave no result: the iteration did not converge",
        })
    }
}

/// Reason why a matrix was not factored.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Refusal {
    /// The factorisation does not exist.
    Matrix(MatrixFault),
    /// A bug in the caller, or cancellation.
    Kernel(KernelError),
}

impl From<KernelError> for Refusal {
    fn from(e: KernelError) -> Self {
        Refusal::Kernel(e)
    }
}

impl From<MatrixFault> for Refusal {
    fn from(f: MatrixFault) -> Self {
        Refusal::Matrix(f)
    }
}

/// A matrix in memory: cell (i, j) is `cells[offset + i * steps[0] + j * steps[1]]`.
#[derive(Debug, Clone, Copy)]
pub struct Matrix<'a, T> {
    /// The memory of the matrix.
    pub cells: &'a [T],
    /// Element index of the first cell.
    pub offset: i64,
    /// Row and column stride in elements.
    pub steps: [i64; 2],
    /// Number of rows.
    pub rows: usize,
    /// Number of columns.
    pub columns: usize,
}

/// Arguments of a factorisation.
pub struct Problem<'a, T> {
    /// The factorisation.
    pub kind: Factor,
    /// The matrix to factor.
    pub a: Matrix<'a, T>,
    /// The second input, for factorisations that have one.
    pub c: Option<Matrix<'a, T>>,
    /// Working memory: [`Factor::work_cells`] cells.
    pub work: &'a mut [T],
    /// Polled during the work; true cancels it.
    pub cancelled: &'a dyn Fn() -> bool,
}

/// Factors one matrix. `parts` are the requested parts, ascending, and `outputs` their memory, dense and row-major.
///
/// # Errors
/// [`Refusal::Matrix`] if the factorisation does not exist, [`Refusal::Kernel`] if buffers are too short or the work is
/// cancelled.
pub fn factor<T: Real>(
    mut problem: Problem<'_, T>,
    parts: &[usize],
    outputs: &mut [&mut [T]],
) -> Result<(), Refusal> {
    if parts.len() != outputs.len() {
        return Err(short("outputs of a factorisation", outputs.len(), parts.len()).into());
    }
    match problem.kind {
        Factor::Qr | Factor::QrBlocks { .. } => qr::run(&mut problem, parts, outputs),
        Factor::QrApply { .. } => qr::apply_blocks(&mut problem, outputs),
        Factor::Svd => spectral::svd(&mut problem, parts, outputs),
        Factor::Eigh { lower } => spectral::eigh(&mut problem, lower, parts, outputs),
        Factor::Cholesky => lu::cholesky(&mut problem, outputs),
        Factor::Lu => lu::parts(&mut problem, parts, outputs),
        Factor::Det => lu::determinant(&mut problem, parts, outputs),
        Factor::Inv | Factor::Solve => lu::solve(&mut problem, outputs),
        Factor::SolveTriangular { lower, unit } => {
            lu::triangular(&mut problem, lower, unit, outputs)
        }
    }
}

impl<'a, T: Real> Matrix<'a, T> {
    /// Checks that all cells lie within the memory.
    fn check(&self) -> Result<(), KernelError> {
        if self.rows == 0 || self.columns == 0 {
            return Ok(());
        }
        let (mut low, mut high) = (i128::from(self.offset), i128::from(self.offset));
        for (n, step) in [(self.rows, self.steps[0]), (self.columns, self.steps[1])] {
            let reach = (n as i128 - 1) * i128::from(step);
            if reach < 0 { low += reach } else { high += reach }
        }
        match low >= 0 && high < self.cells.len() as i128 {
            true => Ok(()),
            false => Err(short("cells of a matrix", self.cells.len(), high.max(0) as usize + 1)),
        }
    }

    fn at(&self, i: usize, j: usize) -> T {
        let at = self.offset + i as i64 * self.steps[0] + j as i64 * self.steps[1];
        self.cells[at as usize]
    }

    /// Copies the matrix into `to`, column by column, in squares that fit in the first-level cache.
    fn columns_into(&self, to: &mut [T]) -> Result<(), KernelError> {
        const EDGE: usize = 32;
        self.check()?;
        let (m, n) = (self.rows, self.columns);
        for top in (0..m).step_by(EDGE) {
            for left in (0..n).step_by(EDGE) {
                for j in left..n.min(left + EDGE) {
                    for i in top..m.min(top + EDGE) {
                        to[j * m + i] = self.at(i, j);
                    }
                }
            }
        }
        Ok(())
    }
}

/// The next `n` cells of working memory.
fn take<'a, T>(work: &mut &'a mut [T], n: usize) -> Result<&'a mut [T], KernelError> {
    if work.len() < n {
        return Err(short("cells of working memory", work.len(), n));
    }
    let (head, rest) = std::mem::take(work).split_at_mut(n);
    *work = rest;
    Ok(head)
}

/// Returns an output as a matrix.
fn rows_of<T>(out: &mut [T], rows: usize, columns: usize) -> Result<MatMut<'_, T>, KernelError> {
    if out.len() != rows * columns {
        return Err(short("cells of an output", out.len(), rows * columns));
    }
    Ok(MatMut::from_row_major_slice_mut(out, rows, columns))
}

/// Returns the output of a part if it was requested.
fn wanted<'a, T>(part: usize, parts: &[usize], outputs: &'a mut [&mut [T]]) -> Option<&'a mut [T]> {
    let at = parts.iter().position(|&p| p == part)?;
    outputs.get_mut(at).map(|out| &mut **out)
}

fn short(what: &'static str, got: usize, expected: usize) -> KernelError {
    KernelError::Buffer { what, got: got as u64, expected: expected as u64 }
}

#[cfg(test)]
mod tests;
