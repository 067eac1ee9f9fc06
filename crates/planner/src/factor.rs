//! Factorisations and linear solvers of whole matrices.
//!
//! A [`Factor`] works on the last two axes of its input; the axes before them are a stack of independent matrices. One
//! operand holds whole matrices and returns all requested parts of the factorisation, so `svd(a).u` and `svd(a).s` cost
//! one decomposition.
//!
//! ```text
//!   a [b.., m, n]            ──▶ parts [b.., x, y]           stage cells [b.., m, n]
//!   a [b.., m, n], c [b.., m, k] ──▶ x [b.., n, 1, k]        stage cells [b.., m, n, k]
//! ```
//! A tall matrix [m, n] is cut into blocks of rows and factored without holding all of it (TSQR): `QrBlocks` gives an
//! `r` for each block, the stacked `r`s form a smaller matrix, and `QrApply` multiplies each block's `q` by its rows of
//! the small matrix's factor. `QrApply` factors the block a second time: this costs no more than forming `q` the first
//! time, and no intermediate as large as the matrix waits for the small factorisation.
//!
//! ```text
//!   a  |rows| ─QrBlocks─▶ r |n|          Q = QrApply(a, Q of the stacked r)
//!      |rows|               |n|          R = R of the stacked r
//!      |rest|               |n|          (a block of fewer rows than n leaves zeros below in its r)
//! ```
//! Signs are fixed so that results do not depend on chunks: the diagonal of `r` is not negative; in each row of the
//! square `vh` and in each eigenvector the cell of the largest magnitude (the first of equals) is positive.
//!
//! # Source
//! Demmel, Grigori, Hoemmen, Langou: Communication-optimal parallel and sequential QR and LU factorizations (2012).

use crate::dtype::DType;
use crate::grid::{AxisGrid, Grid};
use crate::region::Dims;
use serde::{Deserialize, Serialize};
use smallvec::{SmallVec, smallvec};
use std::fmt;

/// A factorisation or solver.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum Factor {
    /// `a = q r` with k = min(m, n): parts `q` [m, k] with orthonormal columns, `r` [k, n] upper triangular.
    Qr,
    /// The `r` of each block of `rows` rows of one matrix: [blocks × n, n].
    QrBlocks {
        /// Rows of a block.
        rows: u64,
    },
    /// The `q` [rows, n] of each block of one matrix times the block's `n` rows of the second input
    /// [blocks × n, 1, k], k at most n: [m, 1, k].
    QrApply {
        /// Rows of a block.
        rows: u64,
    },
    /// `a = u diag(s) vh` of a square matrix: parts `u` [n, n], `s` [n, 1] in descending order, `vh` [n, n].
    Svd,
    /// Eigenvalues [n, 1] in ascending order and eigenvectors [n, n], by columns, of a symmetric matrix.
    Eigh {
        /// True to read the lower triangle, false for the upper one.
        lower: bool,
    },
    /// `a = l lᵀ` of a symmetric positive definite matrix, of which the lower triangle is read: [n, n].
    Cholesky,
    /// `a = p l u` by partial pivoting, k = min(m, n): parts `p` [m, m], `l` [m, k], `u` [k, n].
    Lu,
    /// Parts `det`, `sign` and the logarithm of the determinant's magnitude: [1, 1] each.
    Det,
    /// The inverse: [n, n].
    Inv,
    /// `x` of `a x = c`, by `Lu`.
    Solve,
    /// `x` of `a x = c` for a triangular `a`.
    SolveTriangular {
        /// True to read the lower triangle, false for the upper one.
        lower: bool,
        /// True if the diagonal is taken to be 1.
        unit: bool,
    },
}

impl Factor {
    /// Name of the function in SQL.
    pub fn name(self) -> &'static str {
        match self {
            Factor::Qr | Factor::QrBlocks { .. } | Factor::QrApply { .. } => "qr",
            Factor::Svd => "svd",
            Factor::Eigh { .. } => "eigh",
            Factor::Cholesky => "cholesky",
            Factor::Lu => "lu",
            Factor::Det => "det",
            Factor::Inv => "inv",
            Factor::Solve => "solve",
            Factor::SolveTriangular { .. } => "solve_triangular",
        }
    }

    /// Names of the parts.
    pub fn parts(self) -> &'static [&'static str] {
        match self {
            Factor::Qr => &["q", "r"],
            Factor::QrBlocks { .. } => &["r"],
            Factor::Svd => &["u", "s", "vh"],
            Factor::Eigh { .. } => &["w", "v"],
            Factor::Cholesky => &["l"],
            Factor::Lu => &["p", "l", "u"],
            Factor::Det => &["det", "sign", "logabsdet"],
            Factor::QrApply { .. }
            | Factor::Inv
            | Factor::Solve
            | Factor::SolveTriangular { .. } => &["x"],
        }
    }

    /// Number of inputs.
    pub fn arity(self) -> usize {
        match self {
            Factor::QrApply { .. } | Factor::Solve | Factor::SolveTriangular { .. } => 2,
            _ => 1,
        }
    }

    /// True if the first input must be square.
    fn is_square(self) -> bool {
        !matches!(self, Factor::Qr | Factor::QrBlocks { .. } | Factor::QrApply { .. } | Factor::Lu)
    }

    /// Shape of a part for inputs of these shapes; `None` if the shapes do not match.
    pub fn shape(self, part: usize, inputs: &[&[u64]]) -> Option<Dims> {
        let a = *inputs.first()?;
        if inputs.len() != self.arity() || a.len() < 2 || part >= self.parts().len() {
            return None;
        }
        let lead = a.len() - 2;
        let (m, n) = (a[lead], a[lead + 1]);
        if self.is_square() && m != n {
            return None;
        }
        let k = m.min(n);
        let tail: SmallVec<[u64; 3]> = match (self, part) {
            (Factor::Qr | Factor::Lu, _) => match (self, part) {
                (Factor::Qr, 0) | (Factor::Lu, 1) => smallvec![m, k],
                (Factor::Lu, 0) => smallvec![m, m],
                _ => smallvec![k, n],
            },
            (Factor::QrBlocks { rows }, _) => {
                if lead > 0 || rows == 0 {
                    return None;
                }
                smallvec![m.div_ceil(rows).max(1).checked_mul(n)?, n]
            }
            (Factor::QrApply { rows }, _) => {
                let [height, 1, k] = **inputs.get(1)? else { return None };
                let blocks = m.div_ceil(rows.max(1)).max(1);
                if lead > 0 || rows == 0 || height != blocks.checked_mul(n)? || k > n {
                    return None;
                }
                smallvec![m, 1, k]
            }
            (Factor::Svd, 1) | (Factor::Eigh { .. }, 0) => smallvec![n, 1],
            (Factor::Det, _) => smallvec![1, 1],
            (Factor::Solve | Factor::SolveTriangular { .. }, _) => {
                let c = *inputs.get(1)?;
                if c.len() != a.len() || c[..lead] != a[..lead] || c[lead] != m {
                    return None;
                }
                smallvec![n, 1, c[lead + 1]]
            }
            _ => smallvec![n, n],
        };
        Some(a[..lead].iter().copied().chain(tail).collect())
    }

    /// The cells that the operands divide: the stack is cut like the input's, more finely if a chunk would hold more
    /// than four times `target` bytes of matrices. A matrix is never cut, except into blocks of rows.
    pub fn space(self, inputs: &[&Grid], dtype: DType, target: u64) -> Grid {
        let a = inputs[0];
        let lead = a.rank() - 2;
        let (m, n) = (a.axes[lead].len, a.axes[lead + 1].len);
        let whole = |len: u64| AxisGrid::regular(len, len);
        match self {
            Factor::QrBlocks { rows } => {
                return Grid { axes: smallvec![AxisGrid::regular(m, rows), whole(n)] };
            }
            Factor::QrApply { rows } => {
                let k = inputs[1].axes[2].len;
                return Grid { axes: smallvec![AxisGrid::regular(m, rows), whole(n), whole(k)] };
            }
            _ => {}
        }
        let k = inputs.get(1).map(|c| c.axes[lead + 1].len);
        let wide = n.max(k.unwrap_or(0));
        let matrix =
            m.max(n).max(1).saturating_mul(wide.max(1)).saturating_mul(dtype.size() as u64);
        let stack = Grid { axes: a.axes[..lead].into() };
        let longest = stack.longest().iter().fold(1u64, |n, &d| n.saturating_mul(d));
        let mut grid = if longest.saturating_mul(matrix) > target.saturating_mul(4) {
            let cell = usize::try_from(matrix).unwrap_or(usize::MAX);
            Grid::auto(&stack.shape(), cell, target)
        } else {
            stack
        };
        grid.axes.push(whole(m));
        grid.axes.push(whole(n));
        grid.axes.extend(k.map(whole));
        grid
    }

    /// The grid of a part of shape `shape`, with as many chunks along each axis as `space`.
    pub fn grid(self, space: &Grid, shape: &[u64]) -> Grid {
        let stack = space.rank().saturating_sub(self.trailing());
        let axes = space.axes.iter().zip(shape).enumerate().map(|(axis, (s, &len))| match self {
            // Each block leaves an `r` that is square.
            Factor::QrBlocks { .. } if axis == 0 => AxisGrid::regular(len, len / s.count()),
            Factor::QrApply { .. } if axis == 0 => *s,
            _ if axis < stack => *s,
            _ => AxisGrid::regular(len, len),
        });
        Grid { axes: axes.collect() }
    }

    /// Rows and columns of one matrix, for an operand with cells of these lengths.
    pub fn matrix(self, cells: &[u64]) -> (u64, u64) {
        let lead = cells.len().saturating_sub(self.trailing());
        match cells.get(lead..) {
            Some([m, n, ..]) => (*m, *n),
            _ => (1, 1),
        }
    }

    /// Number of axes of the operands' cells that are not part of the stack.
    pub fn trailing(self) -> usize {
        match self {
            Factor::QrApply { .. } | Factor::Solve | Factor::SolveTriangular { .. } => 3,
            _ => 2,
        }
    }

    /// Upper bound on the cells of a kernel's working memory for one matrix [m, n], without inputs and outputs.
    pub fn work_cells(self, m: u64, n: u64) -> u64 {
        let of = |a: u64, b: u64| a.saturating_mul(b);
        let sum = |parts: &[u64]| parts.iter().fold(0u64, |n, p| n.saturating_add(*p));
        let low = m.min(n);
        match self {
            // The matrix, the triangle `r`, the triangle `t` of the block reflector, and a product as wide as `r`.
            Factor::Qr | Factor::QrBlocks { .. } | Factor::QrApply { .. } => {
                sum(&[of(m, n), of(low, n), of(low, low), of(low, n)])
            }
            // The matrix, `u` and `v`, and the workspace of the bidiagonal form and of divide and conquer.
            Factor::Svd => of(of(n.saturating_add(32), n.saturating_add(32)), 3)
                .saturating_add(Self::spectral_cells(n)),
            Factor::Eigh { .. } => of(of(n.saturating_add(32), n.saturating_add(32)), 2)
                .saturating_add(Self::spectral_cells(n)),
            // One column more than the matrix.
            Factor::Cholesky => sum(&[of(n, n), n, 64]),
            // The matrix and the row permutation, 8 bytes each.
            Factor::Lu | Factor::Det | Factor::Inv | Factor::Solve => {
                sum(&[of(m, n), of(m, 2), 16])
            }
            Factor::SolveTriangular { .. } => of(n, n),
        }
    }

    /// Workspace of an iteration on singular values or eigenvalues, in cells, without the matrices passed to it.
    pub fn spectral_cells(n: u64) -> u64 {
        let side = n.saturating_add(32);
        side.saturating_mul(side).saturating_mul(7).saturating_add(side.saturating_mul(1100))
    }
}

impl fmt::Display for Factor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Factor::QrBlocks { rows } => write!(f, "qr of blocks of {rows} rows"),
            Factor::QrApply { rows } => write!(f, "product of q in blocks of {rows} rows"),
            Factor::Eigh { lower: false } => f.write_str("eigh of the upper triangle"),
            Factor::SolveTriangular { lower, unit } => {
                let side = if *lower { "lower" } else { "upper" };
                write!(f, "solve_triangular {side}{}", if *unit { " unit" } else { "" })
            }
            other => f.write_str(other.name()),
        }
    }
}
