//! `SELECT * FROM x` where a dataset is expected: the variables of `x`, each with its own dimensions.
//!
//! ```text
//! COPY (SELECT * FROM 'x.nc') TO 'x.zarr'     t (time, lat), n (time), crs (), not rows of (time, lat)
//! ```
//! `*` may leave columns out, and columns beside it may have other names: `* EXCLUDE (t), t AS temperature`. The
//! relation may be a view, a CTE or a subquery of this form ([`super::flat`]). Conditions on labels keep positions
//! (`kept`); any other clause makes the block one of rows.

use std::sync::Arc;

use sqlparser::ast::{
    ExceptSelectItem, ExcludeSelectItem, Expr, Ident, ObjectName, Query, SelectItem, TableFactor,
    WildcardAdditionalOptions,
};
use sqlparser::tokenizer::Span;
use tessera_planner::catalog::{Coord, CoordValues, TextColumn, Unreadable};

use super::names::names_of;
use super::value::Tensor;
use super::{Lowerer, fail, unsupported, wrong_surface};
use crate::bind::{self, CatalogNames};
use crate::error::{BindError, Error};
use crate::scope::{innermost, innermost_mut};
use crate::surface::{self, RelationKind, Surface};

/// The options of `*` if it is the only item of a block over one relation, and only leaves columns out.
pub(super) fn star(query: &Query) -> Option<&WildcardAdditionalOptions> {
    let select = innermost(query)?;
    let ([SelectItem::Wildcard(options)], [from]) =
        (select.projection.as_slice(), select.from.as_slice())
    else {
        return None;
    };
    (only_excludes(options) && from.joins.is_empty()).then_some(options)
}

/// True if the only item of a block over one relation is `*`, which may leave columns out.
pub fn is_star(query: &Query) -> bool {
    star(query).is_some()
}

/// True if the items of a block over one relation are `*`, which may leave columns out, and other names of columns.
pub(super) fn is_of_columns(query: &Query) -> bool {
    let Some(select) = innermost(query) else { return false };
    let [from] = select.from.as_slice() else { return false };
    let mut stars = 0;
    let is_column = |item: &SelectItem| match item {
        SelectItem::Wildcard(options) => {
            stars += 1;
            only_excludes(options)
        }
        SelectItem::ExprWithAlias { expr, .. } => matches!(expr, Expr::Identifier(_)),
        _ => false,
    };
    select.projection.iter().all(is_column) && stars == 1 && from.joins.is_empty()
}

/// Replaces the items of such a query, and of such subqueries that are its relation, by a name: then only other clauses
/// make it a block of cells.
fn name_one(query: &mut Query) {
    if !is_of_columns(query) {
        return;
    }
    let Some(select) = innermost_mut(query) else { return };
    select.projection = vec![SelectItem::UnnamedExpr(Expr::Identifier(Ident::new("v")))];
    let relation = select.from.first_mut().map(|from| &mut from.relation);
    if let Some(TableFactor::Derived { subquery, alias, .. }) = relation
        && alias.as_ref().is_none_or(|alias| alias.columns.is_empty())
    {
        name_one(subquery);
    }
}

/// True if the options of a `*` only leave columns out.
pub fn only_excludes(options: &WildcardAdditionalOptions) -> bool {
    options.opt_ilike.is_none()
        && options.opt_replace.is_none()
        && options.opt_rename.is_none()
        && options.opt_alias.is_none()
}

/// The columns that a `*` excludes.
pub fn excluded(options: &WildcardAdditionalOptions) -> Vec<Ident> {
    let last = |name: &ObjectName| name.0.last().and_then(|part| part.as_ident()).cloned();
    let mut out: Vec<Ident> = match &options.opt_exclude {
        Some(ExcludeSelectItem::Single(name)) => last(name).into_iter().collect(),
        Some(ExcludeSelectItem::Multiple(names)) => names.iter().filter_map(last).collect(),
        None => Vec::new(),
    };
    if let Some(ExceptSelectItem { first_element, additional_elements }) = &options.opt_except {
        out.push(first_element.clone());
        out.extend(additional_elements.iter().cloned());
    }
    out
}

/// The first item of a `*` that is the labels of a dimension and that only items beside the `*` have: `t` in `* EXCLUDE
/// (v), v AS w`, where `v` alone lies along `t`.
pub(super) fn labels_of_others(items: &[Tensor], given: &[Option<Span>]) -> Option<usize> {
    let labels = |at: usize| match items[at].dims.as_slice() {
        [dim] if given[at].is_none() && dim.name == items[at].name => dim.name.as_ref(),
        _ => None,
    };
    let lies_along = |at: usize, dim: &Arc<str>| {
        given[at].is_some() && items[at].dims.iter().any(|of| of.name.as_ref() == Some(dim))
    };
    (0..items.len()).find(|&at| {
        labels(at).is_some_and(|dim| (0..items.len()).any(|other| lies_along(other, dim)))
    })
}

impl Lowerer<'_, '_> {
    /// True if a query is all of one relation of tensors, or of a view or subquery that is.
    pub(super) fn is_all(&self, query: &Query) -> bool {
        if !is_of_columns(query) {
            return false;
        }
        let mut rest = query.clone();
        name_one(&mut rest);
        // Any other clause makes it a block of cells.
        if surface::kind_of_text(&rest) != RelationKind::Tensor {
            return false;
        }
        let catalog = self.context.catalog;
        if surface::decide(&rest, &CatalogNames(catalog)).surface == Surface::Tensor {
            return true;
        }
        let from = innermost(query).and_then(|select| select.from.first());
        let Some(from) = from.filter(|_| query.with.is_none()) else { return false };
        if let TableFactor::Derived { subquery, .. } = &from.relation {
            return self.is_all(subquery);
        }
        let reference = bind::reference(&from.relation).ok().flatten();
        let view = reference.and_then(|reference| catalog.view(&reference));
        view.is_some_and(|view| self.is_all(&view.query))
    }

    /// The texts that an item beside `*` names, under its alias.
    pub(super) fn texts_as(&self, expr: &Expr, alias: &Ident) -> Option<TextColumn> {
        let (Expr::Identifier(name), [relation]) = (expr, self.relations.as_slice()) else {
            return None;
        };
        let mut variables = relation.variables.iter().chain(&relation.auxiliary);
        if variables.any(|(known, _)| **known == *name.value) {
            return None;
        }
        let find =
            |fits: &dyn Fn(&str) -> bool| relation.texts.iter().find(|text| fits(&text.coord.name));
        let exact = find(&|known| known == name.value);
        let text = exact.or_else(|| find(&|known| known.eq_ignore_ascii_case(&name.value)))?;
        let new: Arc<str> = alias.value.as_str().into();
        let dim = text.dim().unwrap_or(&new).clone();
        let coord = Coord { name: new, dim, ..Coord::clone(&text.coord) };
        Some(TextColumn { coord: Arc::new(coord), ..text.clone() })
    }

    /// Checks and completes the items beside a `*`: they have names of their own, and no labels that the `*` excludes.
    ///
    /// # Errors
    /// `duplicate_name`.
    pub(super) fn beside(
        &self,
        options: &WildcardAdditionalOptions,
        items: &mut [Tensor],
        given: &[Option<Span>],
    ) -> Result<(), Error> {
        let named = |at: usize| items[at].name.as_ref();
        for (at, span) in given.iter().enumerate() {
            let (Some(span), Some(name)) = (span, named(at)) else { continue };
            if (0..items.len()).any(|other| other != at && named(other) == Some(name)) {
                let error = BindError::DuplicateName { kind: "item", name: name.to_string() };
                return fail(error, *span);
            }
        }
        let excluded = excluded(options);
        let is_out = |name: &str| excluded.iter().any(|e| e.value.eq_ignore_ascii_case(name));
        for dim in items.iter_mut().flat_map(|item| &mut item.dims) {
            if dim.coord.as_ref().is_some_and(|coord| is_out(&coord.name)) {
                *dim = dim.bare();
            }
        }
        Ok(())
    }

    /// The variables of the only relation of a block with their own dimensions, then its other arrays and the
    /// coordinates that are not the labels of a dimension of these; and its texts that label none.
    ///
    /// # Errors
    /// `unknown_name` for a name that is left out and does not exist; an array that cannot be read, unless it is left
    /// out; `unsupported` for texts alone.
    pub(super) fn everything(
        &mut self,
        options: &WildcardAdditionalOptions,
        span: Span,
    ) -> Result<(Vec<Tensor>, Vec<TextColumn>), Error> {
        let [relation] = self.relations.as_slice() else {
            return wrong_surface("the item *", span);
        };
        let relation = relation.clone();
        let (excluded, known) = (excluded(options), names_of(&relation));
        let is_known = |name: &&Ident| known.iter().any(|k| k.eq_ignore_ascii_case(&name.value));
        if let Some(name) = excluded.iter().find(|name| !is_known(name)) {
            return Err(self.unknown("name", &name.value, name.span));
        }
        let is_kept = |name: &str| !excluded.iter().any(|e| e.value.eq_ignore_ascii_case(name));
        let is_lost = |of: &&Arc<Unreadable>| {
            is_kept(&of.name) && !relation.coords.iter().any(|coord| coord.name == of.name)
        };
        if let Some(of) = relation.unreadable.iter().find(is_lost) {
            let hint = Some(format!("`* EXCLUDE ({})` leaves it out", of.name));
            let of = Unreadable { hint, ..Unreadable::clone(of) };
            return fail(BindError::unreadable(&of), span);
        }
        let mut items: Vec<Tensor> = Vec::new();
        for (name, variable) in relation.variables.iter().chain(&relation.auxiliary) {
            if is_kept(name) {
                let tensor = self.variable(variable.clone(), span)?;
                items.push(Tensor { name: Some(name.clone()), ..tensor });
            }
        }
        let (stored, mut texts) = (items.len(), Vec::new());
        for coord in relation.coords.iter().filter(|coord| is_kept(&coord.name)) {
            let is_index = coord.name == coord.dim;
            let mut dims = items[..stored].iter().flat_map(|item| &item.dims);
            let is_labels = is_index && dims.any(|dim| dim.name.as_ref() == Some(&coord.dim));
            let is_stored = relation.auxiliary.iter().any(|(name, _)| *name == coord.name);
            if is_labels || is_stored {
                continue;
            }
            if let CoordValues::Text(_) = coord.values {
                let known = relation.texts.iter().find(|text| text.coord.name == coord.name);
                let labels = || TextColumn {
                    coord: coord.clone(),
                    is_along: true,
                    is_coordinate: !is_index,
                };
                texts.push(known.cloned().unwrap_or_else(labels));
                continue;
            }
            let mut tensor = self.coordinate(coord, &relation.coords, span)?;
            if is_index {
                tensor.dims.iter_mut().for_each(|dim| *dim = dim.bare());
            }
            items.push(tensor);
        }
        match texts.first().filter(|_| items.is_empty()) {
            Some(text) => {
                unsupported(&format!("texts alone (`{}`) as tensors: this", text.coord.name), span)
            }
            None => Ok((items, texts)),
        }
    }
}
