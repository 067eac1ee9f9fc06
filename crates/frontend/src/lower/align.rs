//! Broadcasting: matches the dimensions of several operands.

use std::collections::BTreeMap;
use std::sync::Arc;

use smallvec::SmallVec;
use sqlparser::tokenizer::Span;
use tessera_planner::catalog::{Coord, CoordValues};
use tessera_planner::error::Error as PlanError;
use tessera_planner::ir::NodeId;
use tessera_planner::view::{AxisView, View};

use super::value::{Dim, Grouped, Tensor};
use super::{At, Lowerer, fail};
use crate::error::{BindError, Error};
use crate::labels::first_difference;

impl Lowerer<'_, '_> {
    /// The operands as nodes that broadcast by trailing position, and the dimensions of the result.
    /// Dimensions match by name if all are named, by position if none is. Where some are named, they match by
    /// position if ranks are equal; else each operand's dimensions are a subset of the highest-rank operand's.
    pub(crate) fn align(
        &mut self,
        operation: &str,
        tensors: Vec<Tensor>,
        span: Span,
    ) -> Result<(Vec<NodeId>, Vec<Dim>), Error> {
        let mut shaped = tensors.iter().filter(|t| !t.dims.is_empty());
        let Some(first) = shaped.next() else {
            return Ok((tensors.iter().map(|t| t.node).collect(), Vec::new()));
        };
        if shaped.next().is_none() {
            let dims = first.dims.clone();
            return Ok((tensors.iter().map(|t| t.node).collect(), dims));
        }
        let ranked = || tensors.iter().filter(|t| !t.dims.is_empty());
        if ranked().all(|t| t.dims.iter().all(|d| d.name.is_some())) {
            return self.align_names(operation, tensors, span);
        }
        let rank = first.dims.len();
        let names = ranked().any(|t| t.dims.iter().any(|d| d.name.is_some()));
        if names && ranked().any(|t| t.dims.len() != rank) {
            if let Some(tensors) = self.align_partly(&tensors, span)? {
                return self.align_positions(operation, tensors, span);
            }
            let shapes: Vec<_> = ranked().map(|t| self.b.shape(t.node)).collect();
            return misshapen(
                operation,
                &shapes,
                "some dimensions have no name, so it is unclear which of them match; \
                     use `keepdims => true`, `expand_dims` or `rename`",
                span,
            );
        }
        self.align_positions(operation, tensors, span)
    }

    /// Aligns partly named operands of different ranks to the dimensions of the one with the highest rank:
    /// `x - mean(x, 0)`. `None` if the others' dimensions are not a subset of its.
    fn align_partly(
        &mut self,
        tensors: &[Tensor],
        span: Span,
    ) -> Result<Option<Vec<Tensor>>, Error> {
        let Some(full) = tensors.iter().max_by_key(|t| t.dims.len()).cloned() else {
            return Ok(None);
        };
        let places: Option<Vec<Vec<usize>>> =
            tensors.iter().map(|t| places(&full.dims, &t.dims)).collect();
        let Some(places) = places else { return Ok(None) };
        let rank = full.dims.len();
        let mut out = Vec::with_capacity(tensors.len());
        for (t, places) in tensors.iter().zip(places) {
            let from = self.b.shape(t.node);
            let mut shape = vec![1; rank];
            let mut dims: Vec<Dim> = full.dims.iter().map(Dim::bare).collect();
            let mut axes: SmallVec<[AxisView; 6]> = SmallVec::new();
            for (axis, &to) in places.iter().enumerate() {
                shape[to] = from[axis];
                dims[to] = t.dims[axis].clone();
                axes.push(AxisView { axis: Some(to), start: 0, step: 1 });
            }
            let node = match t.dims.is_empty() {
                true => t.node,
                false => self.b.view(t.node, View { axes }, &shape).at(span)?,
            };
            let dims = if t.dims.is_empty() { Vec::new() } else { dims };
            out.push(Tensor { node, dims, ..t.clone() });
        }
        Ok(Some(out))
    }

    fn align_positions(
        &mut self,
        operation: &str,
        tensors: Vec<Tensor>,
        span: Span,
    ) -> Result<(Vec<NodeId>, Vec<Dim>), Error> {
        let rank = tensors.iter().map(|t| t.dims.len()).max().unwrap_or(0);
        let mut dims: Vec<(Dim, u64)> = vec![(Dim::default(), 1); rank];
        for t in &tensors {
            let shape = self.b.shape(t.node);
            let lead = rank - t.dims.len();
            for (axis, dim) in t.dims.iter().enumerate() {
                self.merge(operation, &mut dims[lead + axis], dim, shape[axis], span)?;
            }
        }
        let dims = unique(dims.into_iter().map(|(dim, _)| dim).collect());
        Ok((tensors.iter().map(|t| t.node).collect(), dims))
    }

    /// Merges another operand's dimension into that of the result.
    fn merge(
        &mut self,
        operation: &str,
        into: &mut (Dim, u64),
        dim: &Dim,
        length: u64,
        span: Span,
    ) -> Result<(), Error> {
        let (known, size) = into;
        if let (Some(a), Some(b)) = (&known.name, &dim.name)
            && a != b
        {
            return misshapen(
                operation,
                &[[*size], [length]],
                format!(
                    "dimension `{a}` is matched with dimension `{b}`; `rename` or `transpose` one of them"
                ),
                span,
            );
        }
        let name = known.name.clone().or_else(|| dim.name.clone());
        let coord = match (&known.coord, &dim.coord) {
            (Some(a), Some(b)) => {
                self.same_labels(a, b, span)?;
                Some(a.clone())
            }
            (Some(a), None) if length == *size || length == 1 => Some(a.clone()),
            (None, Some(b)) if length == *size || *size == 1 => Some(b.clone()),
            _ => None,
        };
        let group = known.group.clone().or_else(|| dim.group.clone());
        if *size == 1 {
            *size = length;
        }
        *known = Dim { name, coord, group };
        Ok(())
    }

    /// Fails unless the coordinates are equal.
    pub(crate) fn same_labels(&self, a: &Coord, b: &Coord, span: Span) -> Result<(), Error> {
        let Some(at) = first_difference(&a.values, &b.values) else { return Ok(()) };
        if let Some(error) = BindError::no_labels(a).or_else(|| BindError::no_labels(b)) {
            return fail(error, span);
        }
        let calendars = match (&a.values, &b.values) {
            (CoordValues::Time(a, _), CoordValues::Time(b, _)) => a != b,
            _ => false,
        };
        let show = |values: &CoordValues| match values {
            CoordValues::Time(calendar, _) if calendars && at < values.len() => {
                format!("{} of the calendar {}", values.display(at), calendar.name())
            }
            values if at < values.len() => values.display(at),
            _ => "no label".into(),
        };
        fail(
            BindError::NotAligned {
                dim: a.dim.to_string(),
                at,
                left: show(&a.values),
                right: show(&b.values),
            },
            span,
        )
    }

    fn align_names(
        &mut self,
        operation: &str,
        mut tensors: Vec<Tensor>,
        span: Span,
    ) -> Result<(Vec<NodeId>, Vec<Dim>), Error> {
        for at in 0..tensors.len() {
            let others: Vec<Dim> = tensors
                .iter()
                .enumerate()
                .filter(|(i, _)| *i != at)
                .flat_map(|(_, t)| t.dims.clone())
                .collect();
            let tensor = tensors[at].clone();
            tensors[at] = self.ungroup(tensor, &others, span)?;
        }
        let mut out: Vec<(Dim, u64)> = Vec::new();
        for t in &tensors {
            let shape = self.b.shape(t.node);
            for (axis, dim) in t.dims.iter().enumerate() {
                match out.iter().position(|(d, _)| d.name == dim.name) {
                    Some(at) => {
                        let (had, size) = (out[at].0.coord.is_some(), out[at].1);
                        let fits = shape[axis] == size || shape[axis] == 1 || size == 1;
                        if !(fits || had && dim.coord.is_some()) {
                            let shapes: Vec<_> =
                                tensors.iter().map(|t| self.b.shape(t.node)).collect();
                            return misshapen(
                                operation,
                                &shapes,
                                format!(
                                    "dimension `{}` has length {size} on one side and {} on the \
                                     other",
                                    t.dim_name(axis),
                                    shape[axis]
                                ),
                                span,
                            );
                        }
                        let mut merged = out[at].clone();
                        self.merge(operation, &mut merged, dim, shape[axis], span)?;
                        out[at] = merged;
                    }
                    None => out.push((dim.clone(), shape[axis])),
                }
            }
        }
        let mut nodes = Vec::with_capacity(tensors.len());
        for t in &tensors {
            let from = self.b.shape(t.node);
            let axes: SmallVec<[AxisView; 6]> = t
                .dims
                .iter()
                .enumerate()
                .map(|(axis, dim)| {
                    let to = out.iter().position(|(d, _)| d.name == dim.name);
                    let repeats = from[axis] == 1 && to.is_some_and(|to| out[to].1 != 1);
                    AxisView { axis: to.filter(|_| !repeats), start: 0, step: 1 }
                })
                .collect();
            let shape: Vec<u64> = out.iter().map(|(_, n)| *n).collect();
            nodes.push(match t.dims.is_empty() {
                true => t.node,
                false => self.b.view(t.node, View { axes }, &shape).at(span)?,
            });
        }
        Ok((nodes, out.into_iter().map(|(dim, _)| dim).collect()))
    }

    /// Gathers a group dimension back along the dimension that it grouped, if another operand has that.
    fn ungroup(&mut self, mut t: Tensor, others: &[Dim], span: Span) -> Result<Tensor, Error> {
        for axis in 0..t.dims.len() {
            let Some(group) = t.dims[axis].group.clone() else { continue };
            let has = |name: &Option<Arc<str>>, dims: &[Dim]| dims.iter().any(|d| d.name == *name);
            let grouped = Some(group.dim.clone());
            if has(&t.dims[axis].name, others) || has(&grouped, &t.dims) {
                continue;
            }
            let Some(target) = others.iter().find(|d| d.name == grouped) else { continue };
            let positions = self.groups_of(&t.dims[axis], &group, target, span)?;
            t.node = self.b.take(t.node, axis, positions).at(span)?;
            t.dims[axis] = Dim { name: grouped, coord: target.coord.clone(), group: None };
        }
        Ok(t)
    }

    /// For each position of `target`, the position of its group.
    fn groups_of(
        &self,
        dim: &Dim,
        group: &Grouped,
        target: &Dim,
        span: Span,
    ) -> Result<Arc<[u64]>, Error> {
        let same = match (&group.coord, &target.coord) {
            (Some(a), Some(b)) => first_difference(&a.values, &b.values).is_none(),
            _ => true,
        };
        if same {
            return Ok(group.codes.iter().map(|&code| u64::from(code)).collect());
        }
        let missing = |label: String| {
            fail(
                BindError::NotAligned {
                    dim: group.dim.to_string(),
                    at: 0,
                    left: label,
                    right: "no group of that label".into(),
                },
                span,
            )
        };
        let (Some(from), Some(to)) = (&group.coord, &target.coord) else {
            return missing("a dimension without labels".into());
        };
        let known: BTreeMap<String, u32> =
            (0..from.values.len()).map(|j| (from.values.display(j), group.codes[j])).collect();
        let mut positions = Vec::with_capacity(to.values.len());
        for i in 0..to.values.len() {
            let found = match (group.part, &to.values, dim.coord.as_ref().map(|c| &c.values)) {
                (
                    Some(part),
                    CoordValues::Time(calendar, times),
                    Some(CoordValues::Int(_, keys)),
                ) => {
                    let key = part.of(times[i], *calendar);
                    keys.iter().position(|k| *k == key).map(|p| p as u64)
                }
                _ => known.get(&to.values.display(i)).map(|&code| u64::from(code)),
            };
            match found {
                Some(position) => positions.push(position),
                None => return missing(to.values.display(i)),
            }
        }
        Ok(positions.into())
    }
}

/// The dimension of `full` that each of `dims` matches: names match names, unnamed dimensions match in order. `None` if
/// that is ambiguous: a name is missing, or NumPy's trailing positions would match the unnamed ones differently.
fn places(full: &[Dim], dims: &[Dim]) -> Option<Vec<usize>> {
    if dims.len() == full.len() {
        return Some((0..full.len()).collect());
    }
    let trailing: Vec<usize> = (full.len() - dims.len()..full.len()).collect();
    let unnamed = |dims: &[Dim]| -> Vec<usize> {
        (0..dims.len()).filter(|&axis| dims[axis].name.is_none()).collect()
    };
    let (open, own) = (unnamed(full), unnamed(dims));
    let mut open = open.get(open.len().checked_sub(own.len())?..)?.iter();
    let places: Vec<usize> = dims
        .iter()
        .map(|dim| match &dim.name {
            None => open.next().copied(),
            Some(_) => full.iter().position(|other| other.name == dim.name),
        })
        .collect::<Option<_>>()?;
    let is_named = dims.iter().any(|dim| dim.name.is_some());
    let is_sure = own.is_empty() || is_named && own.len() == unnamed(full).len();
    (is_sure || places == trailing).then_some(places)
}

/// Removes duplicate names: the first dimension with a name keeps it.
pub(crate) fn unique(mut dims: Vec<Dim>) -> Vec<Dim> {
    for at in 1..dims.len() {
        let (before, rest) = dims.split_at_mut(at);
        let dim = &mut rest[0];
        if dim.name.is_some() && before.iter().any(|d| d.name == dim.name) {
            *dim = Dim::default();
        }
    }
    dims
}

/// The error for shapes that an operation does not take.
pub(crate) fn misshapen<T>(
    operation: &str,
    shapes: &[impl AsRef<[u64]>],
    hint: impl Into<String>,
    span: Span,
) -> Result<T, Error> {
    let shapes_ = shapes.iter().map(|shape| shape.as_ref().to_vec()).collect();
    Err(PlanError::Shapes { operation: operation.into(), shapes_, hint: Some(hint.into()) })
        .at(span)
}
