//! `SELECT * FROM x` where a dataset is expected: the variables of `x`, each with its own dimensions.
//!
//! ```text
//! COPY (SELECT * FROM 'x.nc') TO 'x.zarr'     t (time, lat), n (time), crs (), not rows of (time, lat)
//! ```

use std::sync::Arc;

use sqlparser::ast::{
    ExceptSelectItem, ExcludeSelectItem, Expr, Ident, ObjectName, Query, SelectItem,
    WildcardAdditionalOptions,
};
use sqlparser::tokenizer::Span;
use tessera_planner::catalog::{CoordValues, TextColumn, Unreadable};

use super::names::names_of;
use super::value::Tensor;
use super::{Lowerer, fail, unsupported, wrong_surface};
use crate::bind::{self, CatalogNames};
use crate::error::{BindError, Error};
use crate::scope::{innermost, innermost_mut};
use crate::surface::{self, RelationKind, Surface};

/// The options of `*` if it is the only item of a block over one relation, and only leaves columns out.
fn star(query: &Query) -> Option<&WildcardAdditionalOptions> {
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

/// True if the options of a `*` only leave columns out.
pub fn only_excludes(options: &WildcardAdditionalOptions) -> bool {
    options.opt_ilike.is_none()
        && options.opt_replace.is_none()
        && options.opt_rename.is_none()
        && options.opt_alias.is_none()
}

/// The columns that a `*` leaves out.
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

impl Lowerer<'_, '_> {
    /// True if a query is all of one relation of tensors, or of a view that is.
    pub(super) fn is_all(&self, query: &Query) -> bool {
        if !is_star(query) {
            return false;
        }
        let mut rest = query.clone();
        if let Some(select) = innermost_mut(&mut rest) {
            select.projection = vec![SelectItem::UnnamedExpr(Expr::Identifier(Ident::new("v")))];
        }
        // Any other clause makes it a block of cells.
        if surface::kind_of_text(&rest) != RelationKind::Tensor {
            return false;
        }
        let catalog = self.context.catalog;
        if surface::decide(&rest, &CatalogNames(catalog)).surface == Surface::Tensor {
            return true;
        }
        let from = innermost(query).and_then(|select| select.from.first());
        let reference = from.and_then(|from| bind::reference(&from.relation).ok().flatten());
        let view = reference.and_then(|reference| catalog.view(&reference));
        query.with.is_none() && view.is_some_and(|view| self.is_all(&view.query))
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
            return wrong_surface("the tensor block", "the item *", span);
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
        for dim in items.iter_mut().flat_map(|item| &mut item.dims) {
            if dim.coord.as_ref().is_some_and(|coord| !is_kept(&coord.name)) {
                *dim = dim.bare();
            }
        }
        match texts.first().filter(|_| items.is_empty()) {
            Some(text) => {
                unsupported(&format!("texts alone (`{}`) as tensors: this", text.coord.name), span)
            }
            None => Ok((items, texts)),
        }
    }
}
