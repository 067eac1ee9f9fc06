//! Subscripts: positions as in NumPy, labels by name.

use std::sync::Arc;

use sqlparser::ast::{BinaryOperator, Expr, Ident};
use sqlparser::tokenizer::Span;
use tessera_planner::catalog::Coord;
use tessera_planner::dtype::DType;
use tessera_planner::error::Error as PlanError;
use tessera_planner::ir::{Node, NodeId, Op};

use super::masks::Masks;
use super::value::{Dim, Tensor, Value};
use super::{At, Lowerer, fail, misshapen, refuse, span_of, types};
use crate::ast::{self, Axis, Selection, Slice, Subscript};
use crate::error::{BindError, Error, Position};

/// Upper bound on the runs of positions that are slices, and their least mean length: each is a read of its own.
const RUNS_MAX: usize = 4;
const RUN_MIN: usize = 8;

/// The positions of one dimension that are read.
#[derive(Debug, Clone)]
pub(crate) enum Pick {
    /// All positions.
    All,
    /// One position, which drops the dimension.
    At(u64),
    /// `len` positions: `start`, `start + step`, ….
    Range {
        /// The first position.
        start: i64,
        /// The distance; not 0.
        step: i64,
        len: u64,
    },
    /// These positions, in this order, in an array of that shape. Its dimensions are those of the array, or the one
    /// that is read if there are none.
    Take(Vec<u64>, Vec<u64>, Vec<Dim>),
}

impl Pick {
    /// These positions along the dimension that is read.
    pub(crate) fn list(positions: Vec<u64>) -> Self {
        let count = positions.len() as u64;
        Pick::Take(positions, vec![count], Vec::new())
    }
}

/// A position in the result of a subscript.
pub(super) enum Slot {
    /// A dimension of the base, unless it is dropped.
    Old(usize),
    /// A new dimension.
    New,
    /// `...`, which has no dimension of its own. It separates the arrays on its sides even if it covers none.
    Ellipsis,
}

impl Lowerer<'_, '_> {
    /// `base[axes, …]`.
    pub(crate) fn subscript(&mut self, subscript: &Subscript<'_>) -> Result<Value, Error> {
        let base = self.expr(subscript.base)?;
        let base = self.tensor(base, span_of(subscript.base))?;
        let outer = self.locals.len();
        self.locals.extend(base.dims.iter().filter_map(|dim| dim.coord.clone()));
        let result = self.subscripted(base, subscript);
        self.locals.truncate(outer);
        result.map(Value::Tensor)
    }

    fn subscripted(&mut self, base: Tensor, subscript: &Subscript<'_>) -> Result<Tensor, Error> {
        let (base, mut values) = match self.masks(base, subscript)? {
            Masks::Whole(result) => return Ok(result),
            Masks::Rest(base, values) => (base, values.into_iter()),
        };
        let rank = base.dims.len();
        let mut picks: Vec<Option<Pick>> = vec![None; rank];
        for axis in &subscript.axes {
            let Axis::Named { dim, selection } = axis else { continue };
            let at = self.named_axis(&base, dim)?;
            if picks[at].is_some() {
                return fail(twice("a subscript", dim), dim.span);
            }
            picks[at] = Some(match selection {
                Selection::Index(expr) => {
                    let label = self.expr(expr)?;
                    self.label_pick(&base, at, label, None, span_of(expr))?
                }
                Selection::Slice(slice) => self.label_range(&base, at, slice)?,
            });
        }
        // Named axes take no positional slot.
        let named: Vec<bool> = picks.iter().map(Option::is_some).collect();
        let free = named.iter().filter(|named| !**named).count();
        let takes = |axis: &&Axis<'_>| matches!(axis, Axis::Index(_) | Axis::Slice(_));
        let given = subscript.axes.iter().filter(takes).count();
        if given > free {
            return fail(BindError::TooManySubscripts { given, rank: free }, subscript.span);
        }
        let mut slots = Vec::new();
        let mut next = 0;
        let mut open = false;
        let mut is_array = vec![false; rank];
        let mut is_scalar = vec![false; rank];
        for axis in &subscript.axes {
            let count = match axis {
                Axis::Named { .. } => continue,
                Axis::NewAxis(_) => {
                    slots.push(Slot::New);
                    continue;
                }
                Axis::Ellipsis(span) => {
                    if std::mem::replace(&mut open, true) {
                        return refuse("a subscript", "`...`", "may occur only once", *span);
                    }
                    slots.push(Slot::Ellipsis);
                    free - given
                }
                Axis::Index(_) | Axis::Slice(_) => 1,
            };
            let mut value = match axis {
                Axis::Index(expr) => values.next().map(|value| (value, span_of(expr))),
                _ => None,
            };
            for _ in 0..count {
                while next < rank && named[next] {
                    slots.push(Slot::Old(next));
                    next += 1;
                }
                let pick = match (axis, value.take()) {
                    (_, Some((value, span))) => self.unnamed(&base, next, axis, value, span)?,
                    (Axis::Slice(slice), _) => self.position_range(&base, next, slice)?,
                    _ => Pick::All,
                };
                is_array[next] = matches!(pick, Pick::Take(..));
                is_scalar[next] = matches!(pick, Pick::At(_));
                picks[next] = Some(pick);
                slots.push(Slot::Old(next));
                next += 1;
            }
        }
        slots.extend((next..rank).map(Slot::Old));
        let arrays = is_array.iter().filter(|a| **a).count();
        let to_front = arrays > 0 && apart(&slots, &is_array, &is_scalar);
        let picks: Vec<Pick> = picks.into_iter().map(|p| p.unwrap_or(Pick::All)).collect();
        if arrays > 1 {
            let advanced: Vec<bool> =
                is_array.iter().zip(&is_scalar).map(|(a, s)| *a || *s).collect();
            return self.points(base, &picks, &advanced, &slots, to_front, subscript.span);
        }
        self.picked(base, &picks, slots, to_front, subscript.span)
    }

    /// Reads the picked positions of every dimension.
    pub(crate) fn pick(
        &mut self,
        base: Tensor,
        picks: &[Pick],
        span: Span,
    ) -> Result<Tensor, Error> {
        let slots = (0..base.dims.len()).map(Slot::Old).collect();
        self.picked(base, picks, slots, false, span)
    }

    /// The cells at positions of an axis. A few runs of positions in memory are slices, which read no other cells; the
    /// positions of a list are read with all that lies between them.
    fn taken(&mut self, node: NodeId, axis: usize, positions: &[u64]) -> Result<NodeId, PlanError> {
        let len = self.b.node(node).shape[axis];
        let runs: Vec<&[u64]> = positions.chunk_by(|a, b| a + 1 == *b).take(RUNS_MAX + 1).collect();
        let are_slices = (1..=RUNS_MAX).contains(&runs.len())
            && positions.len() >= RUN_MIN * runs.len()
            && positions.iter().all(|position| *position < len)
            && self.is_resident(node);
        if !are_slices {
            return self.b.take(node, axis, positions.into());
        }
        let slice = |run: &[u64]| self.b.slice(node, axis, run[0] as i64, 1, run.len() as u64);
        let parts = runs.into_iter().map(slice).collect::<Result<Vec<_>, _>>()?;
        match parts[..] {
            [part] => Ok(part),
            _ => self.b.concat(&parts, axis),
        }
    }

    /// True for a view of an array in memory.
    fn is_resident(&self, mut node: NodeId) -> bool {
        loop {
            let Node { op, inputs, .. } = self.b.node(node);
            match op {
                Op::View(_) => node = inputs[0],
                Op::Load { source, .. } => return source.is_resident(),
                _ => return false,
            }
        }
    }

    fn picked(
        &mut self,
        base: Tensor,
        picks: &[Pick],
        slots: Vec<Slot>,
        to_front: bool,
        span: Span,
    ) -> Result<Tensor, Error> {
        let mut node = base.node;
        for (axis, pick) in picks.iter().enumerate() {
            node = match pick {
                Pick::All => node,
                Pick::At(at) => self.b.slice(node, axis, *at as i64, 1, 1).at(span)?,
                Pick::Range { start, step, len } => {
                    self.b.slice(node, axis, *start, *step, *len).at(span)?
                }
                Pick::Take(positions, ..) => self.taken(node, axis, positions).at(span)?,
            };
        }
        let gone: Vec<usize> =
            (0..picks.len()).filter(|&axis| matches!(picks[axis], Pick::At(_))).collect();
        node = self.b.squeeze(node, &gone).at(span)?;
        let (mut dims, mut wide) = (Vec::new(), None);
        for slot in slots {
            match slot {
                Slot::New => {
                    node = self.b.expand_dims(node, dims.len()).at(span)?;
                    dims.push(Dim::default());
                }
                Slot::Ellipsis => {}
                Slot::Old(axis) => match &picks[axis] {
                    Pick::All => dims.push(base.dims[axis].clone()),
                    Pick::At(_) => {}
                    Pick::Range { start, step, len } => {
                        dims.push(base.dims[axis].slice(*start, *step, *len));
                    }
                    Pick::Take(positions, shape, named) => {
                        wide = Some((dims.len(), shape.clone(), named.clone()));
                        dims.push(base.dims[axis].take(positions));
                    }
                },
            }
        }
        if let Some((mut at, shape, named)) = wide {
            if to_front {
                let order: Vec<usize> =
                    std::iter::once(at).chain((0..dims.len()).filter(|&a| a != at)).collect();
                node = self.b.transpose(node, &order).at(span)?;
                let dim = dims.remove(at);
                dims.insert(0, dim);
                at = 0;
            }
            if shape.len() != 1 {
                let mut all = self.b.shape(node).to_vec();
                all.splice(at..at + 1, shape.iter().copied());
                node = self.b.reshape(node, &all).at(span)?;
            }
            if !named.is_empty() {
                dims.splice(at..at + 1, named);
            }
        }
        Ok(Tensor { node, dims, name: None, ..base })
    }

    /// Resolves the name of a dimension.
    pub(crate) fn named_axis(&self, t: &Tensor, dim: &Ident) -> Result<usize, Error> {
        t.axis(&dim.value).ok_or_else(|| unknown_dim(t, &dim.value, dim.span))
    }

    /// Resolves a value to positions: an integer, a slice, integers, or one `bool` per position.
    pub(crate) fn position(
        &mut self,
        base: &Tensor,
        axis: usize,
        value: Value,
        span: Span,
    ) -> Result<Pick, Error> {
        let length = self.b.shape(base.node)[axis];
        let tensor = match value {
            Value::Int(index) => {
                return normal_position(base, axis, length, index, span).map(Pick::At);
            }
            Value::Slice(bounds) => {
                let mut known = [None; 3];
                for (bound, value) in known.iter_mut().zip(*bounds) {
                    *bound = self.bound(value, span)?;
                }
                return range(known, length, span);
            }
            Value::List(items) if items.is_empty() => {
                return Ok(Pick::list(Vec::new()));
            }
            Value::List(items) => self.array(&items, span)?,
            Value::Tensor(tensor) => tensor,
            other => return fail(types("a subscript", vec![other.kind().into()]), span),
        };
        let dtype = self.b.dtype(tensor.node);
        if !dtype.is_integer() && dtype != DType::Bool {
            return fail(types("a subscript", vec![dtype.name()]), span);
        }
        let shape = self.b.shape(tensor.node).to_vec();
        if dtype == DType::Bool && shape != [length] {
            return misshapen(
                "a mask as a subscript",
                &[vec![length], shape],
                "a mask must have the length of its dimension",
                span,
            );
        }
        if dtype == DType::Bool {
            self.mask_along(tensor.clone(), &base.dims[axis..=axis], &[length], span)?;
        }
        let known = self.known(&tensor, "a subscript", span)?;
        // There may be millions: no scalar for each.
        if let Some(positions) = known.positions(length).filter(|_| !shape.is_empty()) {
            return Ok(Pick::Take(positions, shape, index_dims(base, axis, &tensor)));
        }
        let cells = known.cells();
        let mut positions = Vec::with_capacity(cells.len());
        for (at, cell) in cells.iter().enumerate() {
            match cell {
                Some(v) if dtype == DType::Bool => {
                    if v.as_i128() != 0 {
                        positions.push(at as u64);
                    }
                }
                Some(v) => positions.push(normal_position(base, axis, length, v.as_i128(), span)?),
                // A masked condition is false.
                None if dtype == DType::Bool => {}
                None => return fail(types("a subscript", vec!["NULL".into()]), span),
            }
        }
        Ok(match shape.as_slice() {
            [] => Pick::At(positions[0]),
            _ if dtype == DType::Bool => Pick::list(positions),
            _ => Pick::Take(positions, shape, index_dims(base, axis, &tensor)),
        })
    }

    /// As [`Lowerer::position`], for a subscript without a name. The error for a mask along another dimension of the
    /// base says how to name that one.
    fn unnamed(
        &mut self,
        base: &Tensor,
        axis: usize,
        written: &Axis<'_>,
        value: Value,
        span: Span,
    ) -> Result<Pick, Error> {
        let along = match &value {
            Value::Tensor(mask) => match mask.dims.as_slice() {
                [dim] => dim.name.clone(),
                _ => None,
            },
            _ => None,
        };
        match self.position(base, axis, value, span) {
            Err(Error::Plan {
                error: PlanError::Shapes { operation, shapes_, hint },
                position,
            }) => {
                let hint = match (along, written) {
                    (Some(dim), Axis::Index(mask))
                        if base.axis(&dim).is_some_and(|other| other != axis) =>
                    {
                        Some(by_name(&dim, mask))
                    }
                    _ => hint,
                };
                Err(Error::Plan { error: PlanError::Shapes { operation, shapes_, hint }, position })
            }
            other => other,
        }
    }

    fn position_range(
        &mut self,
        base: &Tensor,
        axis: usize,
        slice: &Slice<'_>,
    ) -> Result<Pick, Error> {
        let length = self.b.shape(base.node)[axis];
        let mut known = [None; 3];
        for (bound, expr) in known.iter_mut().zip([slice.lo, slice.hi, slice.step]) {
            if let Some(expr) = expr {
                let value = self.expr(expr)?;
                *bound = self.bound(value, span_of(expr))?;
            }
        }
        range(known, length, slice.span)
    }

    /// A bound of a slice: a known integer, or none.
    pub(crate) fn bound(&mut self, value: Value, span: Span) -> Result<Option<i128>, Error> {
        match value {
            Value::Int(v) => Ok(Some(v)),
            Value::Null => Ok(None),
            Value::Tensor(t) if self.b.dtype(t.node).is_integer() && t.dims.is_empty() => {
                match self.known_scalar(&t, "a bound of a slice", span)? {
                    Some(v) => Ok(Some(v.as_i128())),
                    None => fail(types("a slice of positions", vec!["NULL".into()]), span),
                }
            }
            Value::Tensor(t) => {
                fail(types("a slice of positions", vec![self.b.dtype(t.node).name()]), span)
            }
            other => fail(types("a slice of positions", vec![other.kind().into()]), span),
        }
    }

    /// Transposes axes, with their labels.
    pub(crate) fn transposed(
        &mut self,
        t: Tensor,
        order: &[usize],
        span: Span,
    ) -> Result<Tensor, Error> {
        let node: NodeId = self.b.transpose(t.node, order).at(span)?;
        let dims = order.iter().map(|&axis| t.dims[axis].clone()).collect();
        Ok(Tensor { node, dims, name: None, ..t })
    }

    /// Runs `f` with the coordinates of a tensor in scope.
    pub(crate) fn with_locals<T>(
        &mut self,
        coords: Vec<Arc<Coord>>,
        f: impl FnOnce(&mut Self) -> Result<T, Error>,
    ) -> Result<T, Error> {
        let outer = self.locals.len();
        self.locals.extend(coords);
        let result = f(self);
        self.locals.truncate(outer);
        result
    }
}

/// The hint for a mask at a dimension other than its own: `lat = 50`, `elev > 300`.
fn by_name(dim: &str, mask: &Expr) -> String {
    let text = |expr: &Expr| ast::text(expr).unwrap_or_else(|| "mask".to_string());
    let is_dim = |expr: &Expr| matches!(expr, Expr::Identifier(name) if name.value == dim);
    let selection = match mask {
        Expr::BinaryOp { left, op: BinaryOperator::Eq, right } if is_dim(left) => text(right),
        mask => text(mask),
    };
    format!("the mask is along `{dim}`: write `{dim} => {selection}`")
}

/// The dimensions of an array of positions in the result, with their names and labels as in xarray. A name that the
/// base has too is dropped: each position is read at all cells of that dimension. A list without a name of its own lies
/// along the dimension that it reads: it has none.
fn index_dims(base: &Tensor, axis: usize, index: &Tensor) -> Vec<Dim> {
    let is_free = |dim: &Dim| {
        let mut others = base.dims.iter().enumerate().filter(|(other, _)| *other != axis);
        dim.name.is_some() && others.all(|(_, other)| other.name != dim.name)
    };
    if let [dim] = index.dims.as_slice()
        && (!is_free(dim) || dim.name == base.dims[axis].name)
    {
        return Vec::new();
    }
    let kept = |dim: &Dim| match is_free(dim) {
        true => Dim { group: None, ..dim.clone() },
        false => Dim::default(),
    };
    index.dims.iter().map(kept).collect()
}

/// True if an array and an integer are separated by another subscript: then NumPy puts the array's
/// dimension first.
fn apart(slots: &[Slot], is_array: &[bool], is_scalar: &[bool]) -> bool {
    let advanced = |slot: &Slot| match slot {
        Slot::Old(axis) => is_array[*axis] || is_scalar[*axis],
        Slot::New | Slot::Ellipsis => false,
    };
    let first = slots.iter().position(advanced);
    let last = slots.iter().rposition(advanced);
    match (first, last) {
        (Some(first), Some(last)) => !slots[first..=last].iter().all(advanced),
        _ => false,
    }
}

/// The error for an unknown dimension.
pub(crate) fn unknown_dim(t: &Tensor, name: &str, span: Span) -> Error {
    let names = t.dim_names();
    let found: Vec<&str> = names.iter().map(String::as_str).collect();
    let candidates = match crate::error::nearest(name, &found) {
        Some(near) => vec![near.to_string()],
        None => names.clone(),
    };
    Error::UnknownName {
        kind: "dimension",
        name: name.into(),
        candidates,
        position: Position::of_span(span),
    }
}

pub(crate) fn twice(function: &str, dim: &Ident) -> BindError {
    BindError::InvalidArgument {
        function: function.into(),
        argument: format!("dimension `{}`", dim.value),
        reason: "is given twice".into(),
    }
}

/// A position from the start; negative ones count from the end.
pub(crate) fn normal_position(
    base: &Tensor,
    axis: usize,
    length: u64,
    index: i128,
    span: Span,
) -> Result<u64, Error> {
    let at = if index < 0 { index + i128::from(length) } else { index };
    match u64::try_from(at) {
        Ok(at) if at < length => Ok(at),
        _ => {
            let dim = match &base.dims[axis].name {
                Some(name) => format!("dimension `{name}`"),
                None => format!("axis {axis}"),
            };
            fail(BindError::Index { index, dim, length }, span)
        }
    }
}

/// Python's `slice(lo, hi, step).indices(length)`.
pub(crate) fn range(bounds: [Option<i128>; 3], length: u64, span: Span) -> Result<Pick, Error> {
    let [lo, hi, step] = bounds;
    let step = step.unwrap_or(1);
    if step == 0 {
        return refuse("a slice", "the step", "must not be 0", span);
    }
    if lo.is_none() && hi.is_none() && step == 1 {
        return Ok(Pick::All);
    }
    let n = i128::from(length);
    let (low, high) = if step > 0 { (0, n) } else { (-1, n - 1) };
    let clamp = |bound: Option<i128>, default: i128| match bound {
        None => default,
        Some(v) => (if v < 0 { v + n } else { v }).clamp(low, high),
    };
    let (start, end) =
        if step > 0 { (clamp(lo, 0), clamp(hi, n)) } else { (clamp(lo, n - 1), clamp(hi, -1)) };
    let distance = if step > 0 { end - start } else { start - end };
    let len = if distance <= 0 { 0 } else { (distance - 1) / step.abs() + 1 };
    // A step beyond the dimension reads its first position alone.
    let step = step.clamp(-n.max(1), n.max(1));
    Ok(Pick::Range { start: start.max(0) as i64, step: step as i64, len: len as u64 })
}
