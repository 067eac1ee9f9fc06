//! Subscripts with several integer arrays: cells are picked point by point, as NumPy does.
//!
//! ```text
//!   x[[1, 2], :, [3, 4]]  of x[5, 6, 7]:   [5, 6, 7] → transpose [5, 7, 6] → reshape [35, 6]
//!                                          → take rows 1 * 7 + 3 and 2 * 7 + 4 → [2, 6]
//! ```

use smallvec::SmallVec;
use sqlparser::tokenizer::Span;
use tessera_planner::build::broadcast_shapes;
use tessera_planner::region::{Dims, cells, strides};

use super::subscript::{Pick, Slot};
use super::value::{Dim, Tensor};
use super::{At, Lowerer};
use crate::error::Error;

impl Lowerer<'_, '_> {
    /// Reads the points that the arrays (and integers) on `advanced` axes select
    /// together; other axes are read by their picks. With `to_front` the points' dimensions come first.
    pub(super) fn points(
        &mut self,
        base: Tensor,
        picks: &[Pick],
        advanced: &[bool],
        slots: &[Slot],
        to_front: bool,
        span: Span,
    ) -> Result<Tensor, Error> {
        let whole: Vec<Pick> = picks
            .iter()
            .zip(advanced)
            .map(|(pick, advanced)| if *advanced { Pick::All } else { pick.clone() })
            .collect();
        let t = self.pick(base, &whole, span)?;
        // A single label may have dropped an axis.
        let axis_of =
            |old: usize| (0..old).filter(|&axis| !matches!(whole[axis], Pick::At(_))).count();
        let taken: Vec<usize> = (0..picks.len()).filter(|&axis| advanced[axis]).collect();
        let at: Vec<usize> = taken.iter().map(|&axis| axis_of(axis)).collect();
        let rest: Vec<usize> = (0..t.dims.len()).filter(|axis| !at.contains(axis)).collect();
        let from = self.b.shape(t.node);
        let shapes: Vec<Dims> = taken
            .iter()
            .map(|&axis| match &picks[axis] {
                Pick::Take(_, shape, _) => shape.as_slice().into(),
                _ => SmallVec::new(),
            })
            .collect();
        let points = broadcast_shapes("a subscript with several arrays", &shapes).at(span)?;
        let count = cells(&points).unwrap_or(0) as usize;
        let inner: Dims = at.iter().map(|&axis| from[axis]).collect();
        let (of_points, of_cells) = (strides(&points), strides(&inner));
        let mut rows = vec![0u64; count];
        for (n, &axis) in taken.iter().enumerate() {
            let own = strides(&shapes[n]);
            let lead = points.len() - shapes[n].len();
            for (i, row) in rows.iter_mut().enumerate() {
                let position = match &picks[axis] {
                    Pick::Take(positions, shape, _) => {
                        let read: i64 = (0..shape.len())
                            .filter(|&d| shape[d] != 1)
                            .map(|d| {
                                let length = points[lead + d].max(1) as i64;
                                (i as i64 / of_points[lead + d]) % length * own[d]
                            })
                            .sum();
                        positions[read as usize]
                    }
                    Pick::At(position) => *position,
                    _ => 0,
                };
                *row += position * of_cells[n] as u64;
            }
        }
        let order: Vec<usize> = at.iter().chain(&rest).copied().collect();
        let t = self.transposed(t, &order, span)?;
        let tail: Vec<u64> = rest.iter().map(|&axis| from[axis]).collect();
        let shape = |lead: &[u64]| -> Vec<u64> { lead.iter().chain(&tail).copied().collect() };
        let merged = cells(&inner).unwrap_or(u64::MAX);
        let mut node = self.b.reshape(t.node, &shape(&[merged])).at(span)?;
        node = self.b.take(node, 0, rows.into()).at(span)?;
        node = self.b.reshape(node, &shape(&points)).at(span)?;
        // The positions of the points' dimensions, of the others and of new ones.
        let width = points.len();
        let (mut order, mut new) = (Vec::new(), Vec::new());
        let mut placed = to_front;
        if to_front {
            order.extend(0..width);
        }
        for slot in slots {
            match slot {
                Slot::New => new.push(order.len() + new.len()),
                Slot::Ellipsis => {}
                Slot::Old(axis) if advanced[*axis] => {
                    if !std::mem::replace(&mut placed, true) {
                        order.extend(0..width);
                    }
                }
                Slot::Old(axis) => {
                    if let Some(n) = rest.iter().position(|&r| r == axis_of(*axis))
                        && !matches!(picks[*axis], Pick::At(_))
                    {
                        order.push(width + n);
                    }
                }
            }
        }
        let kept = t.dims[at.len()..].iter().cloned();
        let dims: Vec<Dim> = vec![Dim::default(); width].into_iter().chain(kept).collect();
        let t = Tensor { node, dims, name: None, ..t };
        let mut t = self.transposed(t, &order, span)?;
        for axis in new {
            t.node = self.b.expand_dims(t.node, axis).at(span)?;
            t.dims.insert(axis, Dim::default());
        }
        Ok(t)
    }
}
