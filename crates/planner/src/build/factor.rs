//! Factorisations: the primitive node, and the graphs built from it.

use super::{Builder, Result};
use crate::error::Error;
use crate::factor::Factor;
use crate::grid::Grid;
use crate::ir::{AxisReduce, NodeId, Op};
use crate::program::ScalarOp;
use crate::reduce::ReduceKind;
use crate::region::Dims;
use crate::scalar::Scalar;

/// Matrices with fewer rows than this many times the columns are not cut into blocks: their `r`s would be no smaller.
const TALL: u64 = 4;

/// The orthonormal factor of a QR factorisation: the matrices that are factored in blocks (the input, then the stacked
/// `r`s) with the rows per block, and the factor of the last one as a whole.
#[derive(Debug, Clone)]
struct Orthonormal {
    blocks: Vec<(NodeId, u64)>,
    last: NodeId,
}

/// A singular value decomposition, thin: `u` [b.., m, k], `s` [b.., k], `vh` [b.., k, n] with k = min(m, n).
#[derive(Debug, Clone, Copy)]
pub struct Svd {
    /// Left singular vectors, as columns.
    pub u: NodeId,
    /// Singular values in descending order.
    pub s: NodeId,
    /// Right singular vectors, as rows.
    pub vh: NodeId,
}

impl Builder {
    /// A part of a factorisation of float matrices without masks (see [`Factor`]).
    ///
    /// # Errors
    /// [`Error::Masked`], [`Error::DTypes`] for types that are not floats, [`Error::Shapes`] for matrices of the wrong
    /// shape.
    pub fn factor(&mut self, kind: Factor, part: usize, inputs: &[NodeId]) -> Result<NodeId> {
        let operation = || kind.name().to_string();
        let dtypes: Vec<_> = inputs.iter().map(|&i| self.dtype(i)).collect();
        let dtype = match dtypes.first() {
            Some(d) if d.is_float() && dtypes.iter().all(|e| e == d) => *d,
            _ => return Err(Error::DTypes { operation: operation(), dtypes }),
        };
        if inputs.iter().any(|&i| self.node(i).nullable) {
            return Err(Error::Masked { operation: operation() });
        }
        let shapes: Vec<Dims> = inputs.iter().map(|&i| self.shape(i)).collect();
        let seen: Vec<&[u64]> = shapes.iter().map(|s| &s[..]).collect();
        let Some(shape) = kind.shape(part, &seen) else {
            let hint = match (kind, seen.first()) {
                (_, Some(a)) if a.len() < 2 => "a matrix has at least 2 dimensions",
                (Factor::Solve | Factor::SolveTriangular { .. }, Some([.., m, n])) if m == n => {
                    "the right side needs as many rows as the matrix, and the same stack before them"
                }
                _ => "the last two dimensions must have the same length",
            };
            return Err(Error::Shapes {
                operation: operation(),
                shapes_: shapes.iter().map(|s| s.to_vec()).collect(),
                hint: Some(hint.into()),
            });
        };
        let grids: Vec<&Grid> = inputs.iter().map(|&i| &self.node(i).grid).collect();
        let space = kind.space(&grids, dtype, self.config.chunk_bytes_target);
        let grid = kind.grid(&space, &shape);
        self.push(Op::Factor { kind, part }, inputs, shape, dtype, false, grid)
    }

    /// `a = q r`: `q` [b.., m, k] and `r` [b.., k, n] with k = min(m, n). A tall matrix is factored in blocks of rows.
    ///
    /// # Errors
    /// The errors of [`Builder::factor`].
    pub fn qr(&mut self, a: NodeId) -> Result<(NodeId, NodeId)> {
        let (q, r) = self.qr_parts(a)?;
        let q = match q.blocks.last() {
            None => q.last,
            Some(_) => self.apply_blocks(&q.blocks, q.last)?,
        };
        Ok((q, r))
    }

    /// The singular value decomposition, through QR for a matrix that is not square; `k` selects the leading values
    /// only.
    ///
    /// # Errors
    /// The errors of [`Builder::factor`].
    pub fn svd(&mut self, a: NodeId, k: Option<u64>) -> Result<Svd> {
        let shape = self.shape(a);
        let rank = shape.len();
        if rank < 2 {
            // The constructor reports the error.
            self.factor(Factor::Svd, 1, &[a])?;
        }
        let (m, n) = (shape[rank - 2], shape[rank - 1]);
        if m < n {
            let t = self.matrix_transpose(a)?;
            let Svd { u, s, vh } = self.svd(t, k)?;
            return Ok(Svd { u: self.matrix_transpose(vh)?, s, vh: self.matrix_transpose(u)? });
        }
        let (q, square) = if m > n {
            let (q, r) = self.qr_parts(a)?;
            (Some(q), r)
        } else {
            (None, a)
        };
        let kept = k.unwrap_or(n).min(n);
        let u = self.factor(Factor::Svd, 0, &[square])?;
        let mut u = self.slice(u, rank - 1, 0, 1, kept)?;
        if let Some(q) = q {
            let product = self.contract(q.last, u)?;
            u = self.apply_blocks(&q.blocks, product)?;
        }
        let s = self.factor(Factor::Svd, 1, &[square])?;
        let s = self.squeeze(s, &[rank - 1])?;
        let s = self.slice(s, rank - 2, 0, 1, kept)?;
        let vh = self.factor(Factor::Svd, 2, &[square])?;
        let vh = self.slice(vh, rank - 2, 0, 1, kept)?;
        Ok(Svd { u, s, vh })
    }

    /// Exchanges the last two axes.
    ///
    /// # Errors
    /// The errors of [`Builder::transpose`].
    pub fn matrix_transpose(&mut self, a: NodeId) -> Result<NodeId> {
        let rank = self.node(a).shape.len();
        let mut order: Vec<usize> = (0..rank).collect();
        if rank >= 2 {
            order.swap(rank - 2, rank - 1);
        }
        self.transpose(a, &order)
    }

    /// Treats singular values of at most `rcond` times the largest of their matrix as 0. Returns 1 / s, with 0 for
    /// these values, and the number of the others, [b.., 1] as a float.
    ///
    /// # Errors
    /// [`Error::DTypes`], [`Error::Shapes`].
    pub fn inverse_values(&mut self, s: NodeId, rcond: f64) -> Result<(NodeId, NodeId)> {
        let (dtype, shape) = (self.dtype(s), self.shape(s));
        let last = shape.len() - 1;
        if shape[last] == 0 {
            let mut one = shape.clone();
            one[last] = 1;
            let none = self.full(Some(Scalar::zero(dtype)), dtype, &one, None)?;
            return Ok((s, none));
        }
        let most = self.reduce_axes(s, ReduceKind::Max, &[last])?;
        let factor = self.constant(Scalar::from_f64(dtype, rcond))?;
        let bound = self.map(ScalarOp::Mul, &[most, factor])?;
        let keeps = self.map(ScalarOp::Gt, &[s, bound])?;
        let one = self.constant(Scalar::from_f64(dtype, 1.0))?;
        let zero = self.constant(Scalar::zero(dtype))?;
        let inverse = self.map(ScalarOp::Div, &[one, s])?;
        let inverse = self.map(ScalarOp::Where, &[keeps, inverse, zero])?;
        let count = self.map(ScalarOp::Where, &[keeps, one, zero])?;
        let mut axes = vec![AxisReduce::Keep; last];
        axes.push(AxisReduce::All);
        let count = self.reduce(count, ReduceKind::Sum, &axes)?;
        Ok((inverse, count))
    }

    fn qr_parts(&mut self, a: NodeId) -> Result<(Orthonormal, NodeId)> {
        let mut blocks = Vec::new();
        let mut at = a;
        while let Some(rows) = self.block_rows(at) {
            let kind = Factor::QrBlocks { rows };
            blocks.push((at, rows));
            at = self.factor(kind, 0, &[at])?;
        }
        let last = self.factor(Factor::Qr, 0, &[at])?;
        let r = self.factor(Factor::Qr, 1, &[at])?;
        Ok((Orthonormal { blocks, last }, r))
    }

    /// Rows of the blocks in which a tall matrix is factored, a function of its shape and cuts; `None` if it is
    /// factored as a whole.
    fn block_rows(&self, a: NodeId) -> Option<u64> {
        let node = self.node(a);
        let [m, n] = node.shape[..] else { return None };
        if n == 0 || !node.dtype.is_float() || node.nullable {
            return None;
        }
        let row_bytes = n.saturating_mul(node.dtype.size() as u64);
        let fit = (self.config.chunk_bytes_target / row_bytes).max(n.saturating_mul(TALL));
        // Whole chunks of the source, so that no chunk is read by two blocks.
        let own = node.grid.axes[0].chunk.max(1);
        let rows = if own <= fit { fit / own * own } else { fit };
        (m > rows).then_some(rows)
    }

    /// Multiplies the orthonormal factors of the blocks, innermost first, by a small matrix.
    fn apply_blocks(&mut self, blocks: &[(NodeId, u64)], mut x: NodeId) -> Result<NodeId> {
        for &(a, rows) in blocks.iter().rev() {
            // Each chunk of x holds the rows of one block.
            let (n, k) = (self.shape(a)[1], self.shape(x)[1]);
            x = self.expand_dims(x, 1)?;
            x = self.rechunk(x, &[n, 1, k.max(1)])?;
            x = self.factor(Factor::QrApply { rows }, 0, &[a, x])?;
            x = self.squeeze(x, &[1])?;
        }
        Ok(x)
    }
}
