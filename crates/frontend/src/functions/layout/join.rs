//! Joins tensors along an existing dimension, or along a new one.

use std::sync::Arc;

use sqlparser::ast::Expr;
use sqlparser::tokenizer::Span;
use tessera_planner::catalog::{Coord, CoordValues};

use crate::ast;
use crate::error::{BindError, Error};
use crate::functions::Bound;
use crate::lower::value::{Dim, Tensor, Value};
use crate::lower::{At, Lowerer, fail, misshapen, unique};

/// The error for tensors that are not in a list: `concat(a, b)`.
fn not_a_list(a: &Bound<'_>) -> BindError {
    let given = ["tensors", "axis"].into_iter().filter_map(|param| a.expr(param));
    let given = given.filter(|expr| !matches!(expr, Expr::Value(_)));
    let given: Vec<String> = given.filter_map(ast::text).collect();
    let reason = format!("must be a list of tensors, as in `{}([{}])`", a.name, given.join(", "));
    a.invalid("the first argument", reason)
}

/// The tensors of a list, in one type.
pub(in crate::functions) fn list(
    l: &mut Lowerer<'_, '_>,
    a: &Bound<'_>,
) -> Result<Vec<Tensor>, Error> {
    let place = a.place("tensors");
    let items = match a.value(l, "tensors")? {
        Value::List(items) if !items.is_empty() => items,
        _ => return fail(not_a_list(a), place),
    };
    let items = l.settle(items, place)?;
    let dtype = l.meet(a.name, &items, place)?;
    items.into_iter().map(|item| l.typed(item, dtype, a.name, place)).collect()
}

pub(super) fn concat(l: &mut Lowerer<'_, '_>, a: &Bound<'_>) -> Result<Value, Error> {
    let parts = list(l, a)?;
    let axis = match parts[0].dims.is_empty() {
        true => 0,
        false => a.axis(l, &parts[0].clone(), "axis")?.unwrap_or(0),
    };
    joined(l, a, parts, axis).map(Value::Tensor)
}

/// Joins tensors of one type along an axis of the first one; the labels along it follow one another.
pub(in crate::functions) fn joined(
    l: &mut Lowerer<'_, '_>,
    a: &Bound<'_>,
    mut parts: Vec<Tensor>,
    axis: usize,
) -> Result<Tensor, Error> {
    let rank = parts[0].dims.len();
    let shapes: Vec<_> = parts.iter().map(|t| l.b.shape(t.node)).collect();
    let mismatch = |hint: &str| misshapen(a.name, &shapes, hint, a.span);
    if rank == 0 {
        return mismatch("0-d tensors have no dimension to join along; `stack` makes one");
    }
    if parts.iter().any(|t| t.dims.len() != rank) {
        return mismatch("all tensors must have the same number of dimensions");
    }
    // Named dimensions follow the order of the first tensor.
    let named = |t: &Tensor| t.dims.iter().all(|d| d.name.is_some());
    if parts.iter().all(named) {
        for at in 1..parts.len() {
            let order: Option<Vec<usize>> = parts[0]
                .dims
                .iter()
                .map(|dim| parts[at].dims.iter().position(|d| d.name == dim.name))
                .collect();
            match order {
                Some(order) => parts[at] = l.transposed(parts[at].clone(), &order, a.span)?,
                None => return mismatch("all tensors must have dimensions of the same names"),
            }
        }
    }
    let mut dims = parts[0].dims.clone();
    for t in &parts[1..] {
        for (at, dim) in t.dims.iter().enumerate() {
            if at == axis {
                continue;
            }
            if let (Some(x), Some(y)) = (&dims[at].coord, &dim.coord) {
                l.same_labels(x, y, a.span)?;
            }
            if dims[at].coord.is_none() {
                dims[at].coord = dim.coord.clone();
            }
            if dims[at].name.is_none() {
                dims[at].name = dim.name.clone();
            }
        }
    }
    let coords: Option<Vec<&Arc<Coord>>> =
        parts.iter().map(|t| t.dims[axis].coord.as_ref()).collect();
    let name = parts.iter().find_map(|t| t.dims[axis].name.clone());
    let coord = match coords {
        Some(coords) => {
            let values: Vec<_> = coords.iter().map(|coord| &coord.values).collect();
            let Coord { name, dim, attrs, .. } = &**coords[0];
            let values = CoordValues::joined(&values)
                .or_else(|types| fail(no_common_label(a.name, dim, types), a.span))?;
            let (name, dim, attrs) = (name.clone(), dim.clone(), attrs.clone());
            Some(Arc::new(Coord { name, dim, values, attrs }))
        }
        None => None,
    };
    dims[axis] = Dim { name, coord, group: None };
    let nodes: Vec<_> = parts.iter().map(|t| t.node).collect();
    let node = l.b.concat(&nodes, axis).at(a.span)?;
    // Attributes that all parts share are those of the whole.
    let mut attrs = parts[0].attrs.clone();
    attrs.retain(|key, value| parts.iter().all(|t| t.attrs.get(key) == Some(&*value)));
    let is_coordinate = parts.iter().all(|t| t.is_coordinate);
    Ok(Tensor { node, dims, name: None, attrs, is_coordinate })
}

/// The error for labels along a dimension that have no common type.
fn no_common_label(operation: &str, dim: &str, types: [String; 2]) -> BindError {
    BindError::Types {
        operation: operation.into(),
        types: types.map(|dtype| format!("{dtype} labels of `{dim}`")).into(),
        hint: Some(format!(
            "`assign_coords(x, {dim} => …)` gives a tensor other labels, and `values(x)` drops them"
        )),
    }
}

pub(super) fn stack(l: &mut Lowerer<'_, '_>, a: &Bound<'_>) -> Result<Value, Error> {
    let parts = list(l, a)?;
    let dim = match a.text(l, "dim")? {
        Some(name) => Dim::named(name),
        None => Dim::default(),
    };
    let axis = match a.value(l, "axis")? {
        Value::Null => 0,
        value => a.one_axis(l, &parts[0].clone(), "axis", value, parts[0].dims.len() + 1)?,
    };
    l.stack(parts, axis, dim, a.span).map(Value::Tensor)
}

impl Lowerer<'_, '_> {
    /// Stacks tensors of one shape along a new dimension.
    pub(crate) fn stack(
        &mut self,
        parts: Vec<Tensor>,
        axis: usize,
        dim: Dim,
        span: Span,
    ) -> Result<Tensor, Error> {
        let values: Vec<Value> = parts.into_iter().map(Value::Tensor).collect();
        let dtype = self.meet("stack", &values, span)?;
        let mut nodes = Vec::with_capacity(values.len());
        let mut dims: Option<Vec<Dim>> = None;
        let mut shape = None;
        for value in values {
            let t = self.typed(value, dtype, "stack", span)?;
            let own = self.b.shape(t.node);
            match &shape {
                None => shape = Some(own.clone()),
                Some(first) if *first == own => {}
                Some(first) => {
                    return misshapen(
                        "stack",
                        &[first, &own],
                        "all tensors must have the same shape",
                        span,
                    );
                }
            }
            match &mut dims {
                None => dims = Some(t.dims.clone()),
                Some(dims) => {
                    for (known, dim) in dims.iter_mut().zip(&t.dims) {
                        if let (Some(x), Some(y)) = (&known.coord, &dim.coord) {
                            self.same_labels(x, y, span)?;
                        }
                        if let (Some(x), Some(y)) = (&known.name, &dim.name)
                            && x != y
                        {
                            return misshapen(
                                "stack",
                                &[own],
                                format!("dimensions `{x}` and `{y}` differ"),
                                span,
                            );
                        }
                    }
                }
            }
            nodes.push(self.b.expand_dims(t.node, axis).at(span)?);
        }
        let node = self.b.concat(&nodes, axis).at(span)?;
        let mut dims = dims.unwrap_or_default();
        dims.insert(axis, dim);
        Ok(Tensor::new(node, unique(dims)))
    }
}
