//! Values known only after a part of the statement has run: cells, positions, masks.

use std::rc::Rc;

use sqlparser::tokenizer::Span;
use tessera_planner::build::Builder;
use tessera_planner::dtype::DType;
use tessera_planner::error::Error as PlanError;
use tessera_planner::ir::{ConstArray, NodeId};
use tessera_planner::optimize::Rooted;
use tessera_planner::program::ScalarOp;
use tessera_planner::region::{Dims, cells};
use tessera_planner::scalar::Scalar;

use super::consteval::evaluate;
use super::value::{Dim, Tensor};
use super::{At, Lowerer, fail, misshapen, types};
use crate::error::{Error, Position};
use crate::island::{Done, VALUES_MAX, Work};

/// The cells of a tensor in row-major order.
pub(crate) enum Known {
    /// Computed from literals and labels; `None` for masked ones.
    Cells(Rc<Vec<Option<Scalar>>>),
    /// Computed by an island.
    Array(ConstArray),
}

impl Known {
    /// The cells, `None` for masked ones.
    pub(crate) fn cells(self) -> Rc<Vec<Option<Scalar>>> {
        match self {
            Known::Cells(cells) => cells,
            Known::Array(array) => Rc::new((0..array.len()).map(|i| array.get(i)).collect()),
        }
    }

    /// The cells of an `int64` array as positions along an axis of `length` cells; negative ones count from its end.
    /// `None` for other types, and if a cell is masked or out of range.
    pub(crate) fn positions(&self, length: u64) -> Option<Vec<u64>> {
        let Known::Array(array) = self else { return None };
        if array.dtype != DType::Int64 || array.valid.is_some() {
            return None;
        }
        let end = i64::try_from(length).ok()?;
        let mut are_inside = true;
        let positions = array.bytes.as_chunks::<8>().0.iter().map(|bytes| {
            let index = i64::from_le_bytes(*bytes);
            let at = index.wrapping_add(if index < 0 { end } else { 0 }) as u64;
            are_inside &= at < length;
            at
        });
        let positions: Vec<u64> = positions.collect();
        are_inside.then_some(positions)
    }
}

impl Lowerer<'_, '_> {
    /// The cells of a tensor in row-major order, `None` for masked ones: computed here from literals and labels, or
    /// by an island. `what` describes their purpose.
    pub(crate) fn cells(
        &mut self,
        t: &Tensor,
        what: &str,
        span: Span,
    ) -> Result<Rc<Vec<Option<Scalar>>>, Error> {
        self.known(t, what, span).map(Known::cells)
    }

    /// As [`Lowerer::cells`], in the form in which they were computed.
    pub(crate) fn known(&mut self, t: &Tensor, what: &str, span: Span) -> Result<Known, Error> {
        if let Some(known) = evaluate(&self.b.graph, t.node) {
            return Ok(Known::Cells(known));
        }
        let shape = self.b.shape(t.node);
        if cells(&shape).is_none_or(|n| n > VALUES_MAX) {
            return Err(Error::TooManyCells {
                what: what.to_string(),
                shape: shape.to_vec(),
                limit: VALUES_MAX,
                position: Position::of_span(span),
            });
        }
        let work = Work::Values(self.rooted(&[t.node]));
        match self.island(work, || format!("cells of {what}"), span)? {
            Done::Values(array) => Ok(Known::Array(array)),
            _ => other(span),
        }
    }

    /// The one cell of a 0-d tensor; `None` if it is masked.
    pub(crate) fn known_scalar(
        &mut self,
        t: &Tensor,
        what: &str,
        span: Span,
    ) -> Result<Option<Scalar>, Error> {
        match self.cells(t, what, span)?.as_slice() {
            [cell] => Ok(*cell),
            several => misshapen(
                what,
                &[self.b.shape(t.node)],
                format!("one cell is wanted, not {}", several.len()),
                span,
            ),
        }
    }

    /// The cells of `x` for which `keep`, of the same shape, is true, in row-major order.
    pub(crate) fn compressed(
        &mut self,
        x: NodeId,
        keep: NodeId,
        what: &str,
        span: Span,
    ) -> Result<NodeId, Error> {
        let shape = self.b.shape(x);
        let flat = flatten(&mut self.b, &[x, keep], &shape).at(span)?;
        let work = Work::Compress(self.rooted(&flat));
        let done = self.island(work, || what.to_string(), span)?;
        let nodes = self.arrays(done, span)?;
        nodes.first().copied().map_or_else(|| other(span), Ok)
    }

    /// The distinct cells of a tensor in ascending order, and the count of each.
    pub(crate) fn distinct(
        &mut self,
        x: NodeId,
        what: &str,
        span: Span,
    ) -> Result<[NodeId; 2], Error> {
        let shape = self.b.shape(x);
        let flat = flatten(&mut self.b, &[x], &shape).at(span)?;
        let work = Work::Distinct(self.rooted(&flat));
        let done = self.island(work, || what.to_string(), span)?;
        match self.arrays(done, span)?.as_slice() {
            &[values, counts] => Ok([values, counts]),
            _ => other(span),
        }
    }

    /// The cells that a mask selects, along one dimension: the mask's own if it is 1-d, else an unnamed one.
    pub(crate) fn masked(&mut self, t: Tensor, mask: Tensor, span: Span) -> Result<Tensor, Error> {
        let keep = self.certain(mask, span)?;
        let name = match &t.name {
            Some(name) => format!("the cells of {name} that a mask keeps"),
            None => "the cells that a mask keeps".to_string(),
        };
        let node = self.compressed(t.node, keep.node, &name, span)?;
        let dims = match t.dims.as_slice() {
            [one] => vec![one.bare()],
            _ => vec![Dim::default()],
        };
        Ok(Tensor { node, dims, name: None, ..t })
    }

    /// A mask with its axes in the order of `dims`, whose lengths are `shape`. Axes match by name, then by position.
    pub(crate) fn mask_along(
        &mut self,
        mask: Tensor,
        dims: &[Dim],
        shape: &[u64],
        span: Span,
    ) -> Result<Tensor, Error> {
        let fault = |this: &Self, hint: String| {
            misshapen("a mask as a subscript", &[shape, &this.b.shape(mask.node)[..]], hint, span)
        };
        let names: Vec<_> = dims.iter().map(|d| d.name.clone()).collect();
        let own: Vec<_> = mask.dims.iter().map(|d| d.name.clone()).collect();
        let all_named = names.iter().chain(&own).all(Option::is_some);
        let mut order: Vec<usize> = (0..own.len()).collect();
        if all_named && names != own {
            let found: Option<Vec<usize>> =
                names.iter().map(|name| own.iter().position(|o| o == name)).collect();
            match found {
                Some(found) if own.len() == names.len() => order = found,
                _ => {
                    let list = |names: &[Option<std::sync::Arc<str>>]| {
                        let names: Vec<&str> = names.iter().flatten().map(|n| &**n).collect();
                        format!("[{}]", names.join(", "))
                    };
                    let hint = format!(
                        "the mask is along {}, the selected tensor along {}; `x[dim => mask]` selects along a \
                         dimension",
                        list(&own),
                        list(&names)
                    );
                    return fault(self, hint);
                }
            }
        }
        for (axis, &from) in order.iter().enumerate() {
            if let (Some(a), Some(b)) = (&dims[axis].coord, &mask.dims[from].coord) {
                self.same_labels(a, b, span)?;
            }
        }
        let lengths: Dims = order.iter().map(|&axis| self.b.shape(mask.node)[axis]).collect();
        if lengths.as_slice() != shape {
            return fault(
                self,
                "a mask must have the lengths of the dimensions that it selects from".to_string(),
            );
        }
        if order.windows(2).all(|w| w[0] < w[1]) {
            return Ok(mask);
        }
        self.transposed(mask, &order, span)
    }

    fn rooted(&self, roots: &[NodeId]) -> Rooted {
        Rooted { graph: self.b.graph.clone(), roots: roots.to_vec() }.pruned()
    }

    fn island(
        &mut self,
        work: Work,
        title: impl FnOnce() -> String,
        span: Span,
    ) -> Result<Done, Error> {
        self.context.islands.get(work, title, Position::of_span(span))
    }

    /// Loads of the arrays that an island produced.
    fn arrays(&mut self, done: Done, span: Span) -> Result<Vec<NodeId>, Error> {
        let Done::Arrays(arrays) = done else { return other(span) };
        let mut nodes = Vec::with_capacity(arrays.len());
        for array in arrays {
            let empty = ConstArray::new(array.dtype, &array.shape, &[]);
            let is_empty = array.shape.contains(&0);
            nodes.push(if is_empty { self.b.array(empty) } else { self.b.load(array) }.at(span)?);
        }
        Ok(nodes)
    }

    /// The truth value of each cell: numbers are true if they are not zero, as in NumPy.
    pub(crate) fn truthy(&mut self, t: Tensor, span: Span) -> Result<Tensor, Error> {
        let dtype = self.b.dtype(t.node);
        if dtype == DType::Bool {
            return Ok(t);
        }
        if !dtype.is_numeric() {
            return fail(types("a truth value", vec![dtype.name()]), span);
        }
        let zero = self.b.constant(Scalar::zero(dtype)).at(span)?;
        let node = self.b.map(ScalarOp::Ne, &[t.node, zero]).at(span)?;
        Ok(Tensor::new(node, t.dims))
    }
}

/// Broadcasts the nodes to `shape` and flattens them to 1-d tensors on one grid: one row per cell, row-major.
///
/// # Errors
/// [`PlanError::TooLarge`] if the number of cells overflows; those of the builder for nodes that do not fit the shape.
pub fn flatten(b: &mut Builder, nodes: &[NodeId], shape: &[u64]) -> Result<Vec<NodeId>, PlanError> {
    let rows = cells(shape).ok_or_else(|| PlanError::TooLarge { shape: shape.to_vec() })?;
    // Chunk size for eight-byte columns; the streams of all columns advance together.
    let chunk = (b.config.chunk_bytes_target / 8).clamp(1, rows.max(1));
    let mut out = Vec::with_capacity(nodes.len());
    for &node in nodes {
        let wide = b.broadcast_to(node, shape)?;
        let flat = b.reshape(wide, &[rows])?;
        out.push(b.rechunk(flat, &[chunk])?);
    }
    Ok(out)
}

fn other<T>(span: Span) -> Result<T, Error> {
    Err(PlanError::Broken {
        pass: "lower",
        reason: "an island returned an unexpected kind of result".into(),
    })
    .at(span)
}
