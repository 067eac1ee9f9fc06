//! Constructors of nodes that move cells: views and reshapes.

use super::{Builder, Result};
use crate::dtype::DType;
use crate::error::Error;
use crate::grid::Grid;
use crate::ir::{NodeId, Op};
use crate::region::{Dims, cells};
use crate::view::{AxisView, View};
use smallvec::{SmallVec, smallvec};

impl Builder {
    /// A view of the input with the shape `shape`. Every position read lies within the input.
    ///
    /// # Errors
    /// [`Error::TooLarge`].
    pub fn view(&mut self, input: NodeId, view: View, shape: &[u64]) -> Result<NodeId> {
        // A view of a view is merged into one view.
        let (input, view) = match &self.node(input).op {
            Op::View(inner) => (self.node(input).inputs[0], view.then(inner)),
            _ => (input, view),
        };
        let node = self.node(input);
        if view.is_identity() && node.shape[..] == *shape {
            return Ok(input);
        }
        let (dtype, nullable) = (node.dtype, node.nullable);
        let grid = self.view_grid(&view, &node.grid, shape, dtype);
        self.push(Op::View(view), &[input], shape.into(), dtype, nullable, grid)
    }

    /// Axes that the view moves have the input's cuts; axes that it repeats are cut to the configured size.
    fn view_grid(&self, view: &View, input: &Grid, shape: &[u64], dtype: DType) -> Grid {
        let known = view.grid(input, shape);
        let fixed =
            known.iter().flatten().fold(dtype.size() as u64, |n, a| n.saturating_mul(a.chunk));
        let free: Dims =
            (0..shape.len()).map(|a| if known[a].is_none() { shape[a] } else { 1 }).collect();
        let auto = Grid::auto(&free, 1, (self.config.chunk_bytes_target / fixed.max(1)).max(1));
        Grid { axes: (0..shape.len()).map(|a| known[a].unwrap_or(auto.axes[a])).collect() }
    }

    /// Broadcasts the input to a shape; trailing axes are aligned.
    ///
    /// # Errors
    /// [`Error::Shapes`] for lengths that differ and are not 1.
    pub fn broadcast_to(&mut self, input: NodeId, shape: &[u64]) -> Result<NodeId> {
        let from = self.shape(input);
        if from[..] == *shape {
            return Ok(input);
        }
        let fits = from.len() <= shape.len()
            && from.iter().rev().zip(shape.iter().rev()).all(|(&n, &m)| n == m || n == 1);
        if !fits {
            return Err(Error::Shapes {
                operation: "broadcast_to".into(),
                shapes_: vec![from.to_vec(), shape.to_vec()],
                hint: Some("axes meet from the last one back; they must be equal or 1".into()),
            });
        }
        self.view(input, View::broadcast(&from, shape), shape)
    }

    /// Permutes axes: axis `a` of the result is axis `order[a]` of the input.
    ///
    /// # Errors
    /// [`Error::Range`] if `order` is not a permutation of the axes.
    pub fn transpose(&mut self, input: NodeId, order: &[usize]) -> Result<NodeId> {
        let from = self.shape(input);
        let mut seen = vec![false; from.len()];
        for &a in order {
            if a >= from.len() || std::mem::replace(&mut seen[a], true) {
                return Err(Error::Range {
                    what: "transpose: axes".into(),
                    value: format!("{order:?}"),
                    expected: format!("each of 0 to {} once", from.len().saturating_sub(1)),
                });
            }
        }
        if order.len() != from.len() {
            return Err(Error::Range {
                what: "transpose: number of axes".into(),
                value: order.len().to_string(),
                expected: format!("{} for this tensor", from.len()),
            });
        }
        let mut view = View::identity(from.len());
        for (to, &a) in order.iter().enumerate() {
            view.axes[a].axis = Some(to);
        }
        let shape: Dims = order.iter().map(|&a| from[a]).collect();
        self.view(input, view, &shape)
    }

    /// Inserts an axis of length 1 before `axis` (which may be the rank).
    ///
    /// # Errors
    /// [`Error::Axis`].
    pub fn expand_dims(&mut self, input: NodeId, axis: usize) -> Result<NodeId> {
        let mut shape = self.shape(input);
        if axis > shape.len() {
            return Err(Error::Axis {
                operation: "expand_dims".into(),
                axis: axis as i64,
                rank: shape.len(),
            });
        }
        let mut view = View::identity(shape.len());
        for v in &mut view.axes {
            v.axis = v.axis.map(|a| if a >= axis { a + 1 } else { a });
        }
        shape.insert(axis, 1);
        self.view(input, view, &shape)
    }

    /// Drops axes of length 1.
    ///
    /// # Errors
    /// [`Error::Shapes`] for an axis of another length than 1.
    pub fn squeeze(&mut self, input: NodeId, axes: &[usize]) -> Result<NodeId> {
        let from = self.shape(input);
        let (mut view, mut shape) = (View { axes: smallvec![] }, Dims::new());
        for (a, &n) in from.iter().enumerate() {
            if axes.contains(&a) {
                if n != 1 {
                    return Err(Error::Shapes {
                        operation: "squeeze".into(),
                        shapes_: vec![from.to_vec()],
                        hint: Some(format!(
                            "axis {a} has length {n}; only axes of length 1 can be dropped"
                        )),
                    });
                }
                view.axes.push(AxisView { axis: None, start: 0, step: 1 });
            } else {
                view.axes.push(AxisView { axis: Some(shape.len()), start: 0, step: 1 });
                shape.push(n);
            }
        }
        self.view(input, view, &shape)
    }

    /// Takes the positions `start, start + step, …` (`len` of them) along an axis; all lie within it, `step` is not 0.
    ///
    /// # Errors
    /// [`Error::TooLarge`].
    pub fn slice(
        &mut self,
        input: NodeId,
        axis: usize,
        start: i64,
        step: i64,
        len: u64,
    ) -> Result<NodeId> {
        let mut shape = self.shape(input);
        let mut view = View::identity(shape.len());
        view.axes[axis] =
            AxisView { axis: Some(axis), start: if len == 0 { 0 } else { start }, step };
        shape[axis] = len;
        self.view(input, view, &shape)
    }

    /// Takes one position along an axis and drops the axis; `position` lies within it.
    ///
    /// # Errors
    /// The errors of [`Builder::slice`].
    pub fn index(&mut self, input: NodeId, axis: usize, position: u64) -> Result<NodeId> {
        let one = self.slice(input, axis, position as i64, 1, 1)?;
        self.squeeze(one, &[axis])
    }

    /// The same cells in row-major order, with another shape.
    ///
    /// # Errors
    /// [`Error::Shapes`] for another number of cells.
    pub fn reshape(&mut self, input: NodeId, shape: &[u64]) -> Result<NodeId> {
        let from = self.shape(input);
        if from[..] == *shape {
            return Ok(input);
        }
        if cells(&from) != cells(shape) {
            return Err(Error::Shapes {
                operation: "reshape".into(),
                shapes_: vec![from.to_vec(), shape.to_vec()],
                hint: Some(format!(
                    "{} cells do not fill {}",
                    cells(&from).map_or("too many".into(), |n| n.to_string()),
                    cells(shape).map_or("a shape that large".into(), |n| n.to_string())
                )),
            });
        }
        let node = self.node(input);
        let (dtype, nullable) = (node.dtype, node.nullable);
        let grid = leading_grid(shape, dtype, self.config.chunk_bytes_target);
        self.push(Op::Reshape, &[input], shape.into(), dtype, nullable, grid)
    }
}

/// Chunks that are runs of the row-major order: trailing axes are whole, the first that does not fit is cut, and the
/// axes before it have chunks of 1.
fn leading_grid(shape: &[u64], dtype: DType, target: u64) -> Grid {
    let mut room = (target / dtype.size() as u64).max(1);
    let mut chunk: Dims = SmallVec::from_elem(1, shape.len());
    for a in (0..shape.len()).rev() {
        let n = shape[a].max(1);
        chunk[a] = n.min(room);
        room /= chunk[a];
        if chunk[a] < n {
            break;
        }
    }
    Grid::regular(shape, &chunk)
}
