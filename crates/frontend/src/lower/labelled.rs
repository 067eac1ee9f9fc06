//! Cell blocks inside tensor expressions: `tensor(SELECT …)`, `[dim]` items, scalar subqueries.
//!
//! A block that stays dense becomes nodes of the graph: no row is built. Any other block is an island whose rows are
//! assembled into tensors in memory.

use std::cmp::Ordering;
use std::sync::Arc;

use sqlparser::ast::{Query, Spanned};
use sqlparser::tokenizer::Span;
use tessera_planner::catalog::{Coord, CoordValues, NAT};
use tessera_planner::dtype::DType;
use tessera_planner::error::Error as PlanError;
use tessera_planner::ir::{AxisReduce, MapOp, NodeId, Op};
use tessera_planner::reduce::ReduceKind;

use super::value::{Dim, Item, Tensor, Value};
use super::{At, Lowerer, misshapen, unsupported};
use crate::bind::CatalogNames;
use crate::cells::{Dense, DenseKey, Labelled};
use crate::error::{Error, Position};
use crate::island::{Done, Work};
use crate::scope;
use crate::surface::{self, Surface};

impl Lowerer<'_, '_> {
    /// The tensors of a query of either surface, as a relation or as a CTE. Rows without `[dim]` items yield none.
    pub(super) fn block(&mut self, query: &Query) -> Result<Vec<Item>, Error> {
        let whole = self.scope.close(query);
        let decision = surface::decide(&whole, &CatalogNames(self.context.catalog));
        if decision.surface == Surface::Tensor || decision.reason == surface::Reason::NoFrom {
            return self.inner(query);
        }
        if decision.reason == surface::Reason::Wildcard && self.is_all(&whole) {
            return self.inner(query);
        }
        let labelled = scope::innermost(query)
            .is_some_and(|s| s.projection.iter().any(|i| crate::ast::bracket_dim(i).is_some()));
        if !labelled {
            return Err(PlanError::Unsupported {
                construct: format!(
                    "a block of rows ({}) as a tensor without `[dim]` items: this",
                    decision.reason
                ),
            })
            .map_err(|error| Error::Plan { error, position: decision.position });
        }
        self.cells_as_tensors(&whole, &decision.reason.to_string(), query.span())
    }

    /// The tensors of a query of either surface, with or without `[dim]` items. `SELECT *` of a relation of tensors is
    /// its variables, each with its own dimensions, also with conditions on labels.
    pub(super) fn any_block(&mut self, query: &Query) -> Result<Vec<Item>, Error> {
        let whole = self.scope.close(query);
        let decision = surface::decide(&whole, &CatalogNames(self.context.catalog));
        if decision.surface == Surface::Tensor {
            return self.block(query);
        }
        if decision.reason == surface::Reason::Wildcard {
            if let Some(items) = self.dataset(query)? {
                return Ok(items);
            }
            if let Some(flat) = self.flat(query)
                && let Some(items) = self.dataset(&flat)?
            {
                return Ok(items);
            }
        }
        self.cells_as_tensors(&whole, &decision.reason.to_string(), query.span())
    }

    /// The items of a query that is all of a relation of tensors, or its part by conditions on labels; `None` for any
    /// other query.
    fn dataset(&mut self, query: &Query) -> Result<Option<Vec<Item>>, Error> {
        let whole = self.scope.close(query);
        match self.is_all(&whole) {
            true => self.inner(query).map(Some),
            false => self.all_where(query, &whole),
        }
    }

    /// `tensor(SELECT …)` and subqueries as expressions: one tensor. `scalar` cell blocks must return one row.
    pub(super) fn subquery(
        &mut self,
        query: &Query,
        scalar: bool,
        span: Span,
    ) -> Result<Value, Error> {
        let whole = self.scope.close(query);
        let decision = surface::decide(&whole, &CatalogNames(self.context.catalog));
        if decision.surface == Surface::Tensor {
            let mut items = self.inner(query)?;
            return match (items.pop(), items.is_empty()) {
                (Some(one), true) => Ok(Value::Tensor(one.tensor)),
                _ => unsupported("a subquery with several items as one tensor", span),
            };
        }
        let mut items = self.cells_as_tensors(&whole, &decision.reason.to_string(), span)?;
        let (Some(Item { tensor: mut one, .. }), true) = (items.pop(), items.is_empty()) else {
            return unsupported("a subquery with several values as one tensor", span);
        };
        if scalar {
            let shape = self.b.shape(one.node);
            match shape.as_slice() {
                [] => {}
                [1] => {
                    one.node = self.b.squeeze(one.node, &[0]).at(span)?;
                    one.dims.clear();
                }
                [0] => {
                    let dtype = self.b.dtype(one.node);
                    one = Tensor::unnamed(self.b.null(dtype).at(span)?, 0);
                }
                _ => {
                    return misshapen(
                        "a subquery as one value",
                        &[&shape],
                        "it must return one row; `tensor(SELECT …)` takes all",
                        span,
                    );
                }
            }
        }
        Ok(Value::Tensor(one))
    }

    fn cells_as_tensors(
        &mut self,
        whole: &Query,
        because: &str,
        span: Span,
    ) -> Result<Vec<Item>, Error> {
        let labelled = self.labelled(whole, because)?;
        let items = match &labelled.dense {
            Some(dense) => self.dense_cells(dense, &labelled, span)?,
            None => {
                let work = Work::Rows(Box::new(labelled.rows.clone()));
                let title = || format!("a block of cells ({because}) as tensors");
                let position = Position::of_span(span);
                match self.context.islands.get(work, title, position)? {
                    Done::Dataset(dataset) => {
                        let mut items = Vec::with_capacity(dataset.variables.len());
                        for (at, v) in dataset.variables.iter().enumerate() {
                            let mut t = self.load(&dataset, v, span)?;
                            t.name = labelled.value_name(at);
                            items.push(t);
                        }
                        items
                    }
                    _ => {
                        return Err(PlanError::Broken {
                            pass: "lower",
                            reason: "rows gave no dataset".into(),
                        })
                        .at(span);
                    }
                }
            }
        };
        let items = items.into_iter().zip(labelled.texts());
        let item = |(tensor, text): (Tensor, &Arc<str>)| Item {
            tensor,
            text: Some(text.clone()),
            dataset: Arc::default(),
        };
        Ok(items.map(item).collect())
    }

    /// The plan of a block, computed once for the statement.
    fn labelled(&mut self, whole: &Query, because: &str) -> Result<Arc<Labelled>, Error> {
        let text = self.scope.text;
        let site = scope::site(text, whole);
        if let Some(known) = self.context.islands.labelled.get(site, whole) {
            return Ok(known);
        }
        let planner = self.context.cells;
        let plan = || planner.labelled(whole, text, self.context, because);
        let labelled = Arc::new(stacker::maybe_grow(super::RED_ZONE, super::STACK, plan)?);
        self.context.islands.labelled.insert(site, whole, labelled.clone());
        Ok(labelled)
    }

    /// The tensors of a dense block: its columns of cells in the shape of its axes. Labels keep the order of
    /// their source; computed ones are ascending.
    fn dense_cells(
        &mut self,
        dense: &Dense,
        labelled: &Labelled,
        span: Span,
    ) -> Result<Vec<Tensor>, Error> {
        let roots = self.b.import(&dense.rooted).at(span)?;
        let shaped = |this: &mut Self, root: usize| -> Result<NodeId, Error> {
            let mut node = roots[root];
            // The rows of a scan are the cells of a flattened tensor: find that tensor.
            while matches!(this.b.node(node).op, Op::Rechunk | Op::Reshape) {
                node = this.b.node(node).inputs[0];
                if this.b.shape(node).as_slice() == dense.shape {
                    return Ok(node);
                }
            }
            this.b.reshape(roots[root], &dense.shape).at(span)
        };
        let presence = match dense.presence {
            Some(root) => Some(shaped(self, root)?),
            None => None,
        };
        let mut orders = Vec::with_capacity(dense.keys.len());
        for DenseKey { axis, labels, is_source, .. } in &dense.keys {
            let mut order = match is_source {
                true => (0..labels.len() as u64).collect(),
                false => ascending(labels),
            };
            if let Some(presence) = presence {
                // A label without any row is dropped.
                let how: Vec<AxisReduce> = (0..dense.shape.len())
                    .map(|a| if a == *axis { AxisReduce::Keep } else { AxisReduce::All })
                    .collect();
                let there = Tensor::unnamed(presence, dense.shape.len());
                let there = self.certain(there, span)?;
                let any = self.b.reduce(there.node, ReduceKind::Any, &how).at(span)?;
                let any = Tensor::unnamed(any, dense.shape.len());
                let any = self.cells(&any, "the labels of a block of cells", span)?;
                order.retain(|&p| any[p as usize].is_some_and(|v| v.as_i128() != 0));
            }
            orders.push(order);
        }
        let mut items = Vec::with_capacity(dense.values.len());
        for (at, &root) in dense.values.iter().enumerate() {
            let mut node = shaped(self, root)?;
            if let Some(presence) = presence {
                node = self.b.map_op(MapOp::Mask, &[node, presence]).at(span)?;
            }
            for (key, order) in dense.keys.iter().zip(&orders) {
                let is_whole = order.iter().copied().eq(0..key.labels.len() as u64);
                if !is_whole {
                    node = self.b.take(node, key.axis, order.as_slice().into()).at(span)?;
                }
            }
            let kept: Vec<usize> = dense.keys.iter().map(|key| key.axis).collect();
            let gone: Vec<usize> =
                (0..dense.shape.len()).filter(|axis| !kept.contains(axis)).collect();
            node = self.b.squeeze(node, &gone).at(span)?;
            let place = |axis: usize| kept.iter().filter(|&&other| other < axis).count();
            let order: Vec<usize> = kept.iter().map(|&axis| place(axis)).collect();
            node = self.b.transpose(node, &order).at(span)?;
            let dims = labelled
                .keys()
                .zip(dense.keys.iter().zip(&orders))
                .map(|(name, (key, order))| {
                    let coord = Coord {
                        name: name.clone(),
                        dim: name.clone(),
                        values: key.labels.take(order),
                        attrs: key.attrs.clone(),
                    };
                    Dim { name: Some(name.clone()), coord: Some(Arc::new(coord)), group: None }
                })
                .collect();
            let mut t = Tensor::new(node, super::unique(dims));
            t.name = labelled.value_name(at);
            items.push(t);
        }
        Ok(items)
    }
}

/// Positions of labels in ascending order; equal labels keep their order. NaN and missing times are last.
pub(crate) fn ascending(labels: &CoordValues) -> Vec<u64> {
    let mut order: Vec<u64> = (0..labels.len() as u64).collect();
    let at = |p: &u64| *p as usize;
    match labels {
        CoordValues::Int(DType::UInt64, v) => order.sort_by_key(|p| v[at(p)] as u64),
        CoordValues::Int(_, v) => order.sort_by_key(|p| v[at(p)]),
        CoordValues::Time(_, v) => order.sort_by_key(|p| (v[at(p)] == NAT, v[at(p)])),
        CoordValues::Float(_, v) => order.sort_by(|p, q| {
            let (x, y) = (v[at(p)], v[at(q)]);
            x.is_nan().cmp(&y.is_nan()).then(x.partial_cmp(&y).unwrap_or(Ordering::Equal))
        }),
        CoordValues::Text(v) => order.sort_by(|p, q| v[at(p)].cmp(&v[at(q)])),
        // A cell block that references them is rejected.
        CoordValues::Unreadable(_) => {}
    }
    order
}

#[cfg(test)]
mod tests {
    use super::*;
    use tessera_planner::dtype::Calendar;

    #[test]
    fn missing_labels_are_last_and_equal_ones_keep_their_order() {
        let times = CoordValues::Time(Calendar::Standard, [5, NAT, -3, NAT, 5].into());
        assert_eq!(ascending(&times), [2, 0, 4, 1, 3]);
        let nan = f64::NAN;
        let floats = CoordValues::Float(DType::Float64, [0.0, nan, -0.0, -1.0, nan, 0.0].into());
        assert_eq!(ascending(&floats), [3, 0, 2, 5, 1, 4]);
        let wide = CoordValues::Int(DType::UInt64, [-1, 3, i64::MIN].into());
        assert_eq!(ascending(&wide), [1, 2, 0]);
    }
}
