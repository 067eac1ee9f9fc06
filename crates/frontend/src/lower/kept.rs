//! `SELECT * FROM x WHERE …` where a dataset is expected, and the conditions are on labels: the variables of `x` at the
//! positions that these keep.
//!
//! ```text
//! COPY (SELECT * FROM 'x.nc' WHERE time >= '2020' AND lat > 50) TO 'y.nc'
//!   t (time, lat), orog (lat), crs ()   ⇒   t[k:, :n], orog[:n], crs      not rows of (time, lat)
//! ```

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use sqlparser::ast::{Expr, Query, SelectItem, Value};
use sqlparser::tokenizer::Span;
use tessera_planner::catalog::{Coord, TextColumn};

use super::value::{Dim, Item};
use super::{At, Lowerer, RED_ZONE, STACK, span_of};
use crate::cells::{KeptPositions, Positions};
use crate::error::Error;
use crate::labels::DatasetLabels;
use crate::scope::innermost_mut;

impl Lowerer<'_, '_> {
    /// The items of a query that is all of a relation but for conditions on labels; `None` for any other query. `whole` is
    /// the query with the CTEs that it sees.
    ///
    /// # Errors
    /// The errors of [`Lowerer::everything`], [`Error::Waiting`].
    pub(super) fn all_where(
        &mut self,
        query: &Query,
        whole: &Query,
    ) -> Result<Option<Vec<Item>>, Error> {
        let mut rest = query.clone();
        let condition = innermost_mut(&mut rest).and_then(|select| select.selection.take());
        let Some(condition) = condition else { return Ok(None) };
        let closed = self.scope.close(&rest);
        if !self.is_all(&closed) {
            return Ok(None);
        }
        // The names that it uses are those of the conditions.
        let mut asked = whole.clone();
        if let Some(select) = innermost_mut(&mut asked) {
            let one = Expr::Value(Value::Number("1".into(), false).into());
            select.projection = vec![SelectItem::UnnamedExpr(one)];
        }
        let (text, planner) = (self.scope.text, self.context.cells);
        let plan = || planner.kept(&asked, text, self.context);
        let Some(kept) = stacker::maybe_grow(RED_ZONE, STACK, plan)? else { return Ok(None) };
        let items = self.inner(&rest)?;
        self.at_positions(items, &kept, span_of(&condition))
    }

    /// The items at the kept positions; `None` if a dimension belongs to none of them.
    fn at_positions(
        &mut self,
        mut items: Vec<Item>,
        kept: &[KeptPositions],
        span: Span,
    ) -> Result<Option<Vec<Item>>, Error> {
        let of = |dim: &Dim| kept.iter().find(|of| dim.name.as_ref() == Some(&of.dim));
        let mut found = BTreeSet::new();
        for Item { tensor, .. } in &items {
            let shape = self.b.shape(tensor.node);
            for (of, &len) in tensor.dims.iter().map(of).zip(&shape) {
                let Some(of) = of else { continue };
                if of.len != len {
                    return Ok(None);
                }
                found.insert(&of.dim);
            }
        }
        if found.len() < kept.len() {
            return Ok(None);
        }
        let mut cut = Cut::default();
        for Item { tensor, .. } in &mut items {
            for axis in 0..tensor.dims.len() {
                let Some(of) = of(&tensor.dims[axis]) else { continue };
                tensor.node = match &of.positions {
                    Positions::Range { start, len } => {
                        self.b.slice(tensor.node, axis, *start as i64, 1, *len)
                    }
                    Positions::List(positions) => self.b.take(tensor.node, axis, positions.clone()),
                }
                .at(span)?;
                let dim = &tensor.dims[axis];
                let coord = dim.coord.as_ref().map(|coord| cut.labels(coord, of));
                tensor.dims[axis] = Dim { name: dim.name.clone(), coord, group: None };
            }
        }
        let Some(dataset) = items.first().map(|item| item.dataset.clone()) else {
            return Ok(Some(items));
        };
        let texts = dataset.texts.iter().map(|text| {
            let of = text.dim().and_then(|dim| kept.iter().find(|of| of.dim == *dim));
            let coord = of.map_or_else(|| text.coord.clone(), |of| cut.labels(&text.coord, of));
            TextColumn { coord, ..text.clone() }
        });
        let texts = texts.collect();
        let dataset = Arc::new(DatasetLabels { attrs: dataset.attrs.clone(), texts });
        items.iter_mut().for_each(|item| item.dataset = dataset.clone());
        Ok(Some(items))
    }
}

/// Labels at the kept positions, once for all variables that share them.
#[derive(Default)]
struct Cut {
    /// By the address of the whole labels, which are retained so that no others get this address.
    known: BTreeMap<*const Coord, (Arc<Coord>, Arc<Coord>)>,
}

impl Cut {
    fn labels(&mut self, whole: &Arc<Coord>, of: &KeptPositions) -> Arc<Coord> {
        let part = || {
            let values = match &of.positions {
                Positions::Range { start, len } => whole.values.slice(*start as i64, 1, *len),
                Positions::List(positions) => whole.values.take(positions),
            };
            let part = Coord { values, ..Coord::clone(whole) };
            (whole.clone(), Arc::new(part))
        };
        self.known.entry(Arc::as_ptr(whole)).or_insert_with(part).1.clone()
    }
}
