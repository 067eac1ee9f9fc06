//! Masks of several dimensions as subscripts: `t2m[t2m > 300]`, `cube[mask2d, 0]`.

use sqlparser::tokenizer::Span;
use tessera_planner::dtype::DType;
use tessera_planner::region::cells;

use super::consteval::evaluate;
use super::value::{Dim, Tensor, Value};
use super::{At, Lowerer, span_of, unsupported};
use crate::ast::{Axis, Subscript};
use crate::error::Error;

/// A subscript after its masks of several dimensions are resolved.
pub(super) enum Masks {
    /// The only subscript was a mask of the whole tensor: the result.
    Whole(Tensor),
    /// The base, and the values of the positional subscripts other than slices, in order. Each
    /// value takes one dimension: the dimensions under a mask are merged into one.
    Rest(Tensor, Vec<Value>),
}

impl Lowerer<'_, '_> {
    /// Evaluates the positional subscripts and resolves masks of several dimensions.
    pub(super) fn masks(
        &mut self,
        base: Tensor,
        subscript: &Subscript<'_>,
    ) -> Result<Masks, Error> {
        let mut values = Vec::new();
        let mut spans = Vec::new();
        for axis in &subscript.axes {
            let Axis::Index(expr) = axis else { continue };
            let span = span_of(expr);
            values.push(match self.expr(expr)? {
                Value::List(items) if !items.is_empty() => Value::Tensor(self.array(&items, span)?),
                value => value,
            });
            spans.push(span);
        }
        if let [Value::Tensor(mask)] = values.as_slice()
            && let [span] = spans[..]
            && subscript.axes.iter().all(|axis| matches!(axis, Axis::Index(_) | Axis::Ellipsis(_)))
            && self.covers(&base, mask)
        {
            let shape = self.b.shape(base.node);
            let mask = self.mask_along(mask.clone(), &base.dims, &shape, span)?;
            return self.masked(base, mask, subscript.span).map(Masks::Whole);
        }
        let ranks: Vec<usize> = values.iter().map(|value| self.mask_rank(value)).collect();
        if ranks.iter().all(|&rank| rank < 2) {
            return Ok(Masks::Rest(base, values));
        }
        self.merged(base, subscript, values, &ranks, &spans)
    }

    /// True if a mask selects from all dimensions at once, so that an island evaluates it. Along one labelled dimension
    /// positions are needed, as the labels go with the cells; and a mask known while binding needs no island.
    fn covers(&self, base: &Tensor, mask: &Tensor) -> bool {
        let rank = base.dims.len();
        let fits = self.b.dtype(mask.node) == DType::Bool && mask.dims.len() == rank && rank > 0;
        fits && (rank > 1
            || base.dims[0].coord.is_none() && evaluate(&self.b.graph, mask.node).is_none())
    }

    /// Number of dimensions that a mask covers; 0 if the value is not a mask.
    fn mask_rank(&self, value: &Value) -> usize {
        match value {
            Value::Tensor(t) if self.b.dtype(t.node) == DType::Bool => t.dims.len(),
            _ => 0,
        }
    }

    /// Merges the dimensions that a mask covers into one.
    fn merged(
        &mut self,
        mut base: Tensor,
        subscript: &Subscript<'_>,
        mut values: Vec<Value>,
        ranks: &[usize],
        spans: &[Span],
    ) -> Result<Masks, Error> {
        if subscript.axes.iter().any(|axis| matches!(axis, Axis::Named { .. })) {
            return unsupported(
                "a named dimension next to a mask of several dimensions, write two subscripts: this",
                subscript.span,
            );
        }
        let mut given = 0;
        let mut which = 0;
        for axis in &subscript.axes {
            match axis {
                Axis::Index(_) => {
                    given += ranks[which].max(1);
                    which += 1;
                }
                Axis::Slice(_) => given += 1,
                _ => {}
            }
        }
        let rank = base.dims.len();
        if given > rank {
            return super::fail(
                crate::error::BindError::TooManySubscripts { given, rank },
                subscript.span,
            );
        }
        let open = rank - given;
        // The first axis of each value. Values are processed from the last, so that earlier axes do not shift.
        let mut at = 0;
        let mut starts = Vec::with_capacity(values.len());
        for axis in &subscript.axes {
            match axis {
                Axis::Index(_) => {
                    starts.push(at);
                    at += ranks[starts.len() - 1].max(1);
                }
                Axis::Slice(_) => at += 1,
                Axis::Ellipsis(_) => at += open,
                _ => {}
            }
        }
        for n in (0..values.len()).rev() {
            let (start, rank) = (starts[n], ranks[n]);
            if rank < 2 {
                continue;
            }
            let Value::Tensor(mask) = values[n].clone() else { continue };
            let covered = start..start + rank;
            let shape = self.b.shape(base.node);
            let lengths = shape[covered.clone()].to_vec();
            let mask = self.mask_along(mask, &base.dims[covered.clone()], &lengths, spans[n])?;
            let Some(count) = cells(&lengths) else {
                return unsupported("a mask of so many cells", spans[n]);
            };
            let mut merged = shape.to_vec();
            merged.splice(covered.clone(), [count]);
            base.node = self.b.reshape(base.node, &merged).at(spans[n])?;
            base.dims.splice(covered, [Dim::default()]);
            let flat = self.b.reshape(mask.node, &[count]).at(spans[n])?;
            values[n] = Value::Tensor(Tensor::unnamed(flat, 1));
        }
        Ok(Masks::Rest(base, values))
    }
}
