//! Lists of column names: `WITH d(day, m) AS (…)`, `FROM (…) AS q(m)`.
//!
//! Each name replaces that of the item at its position. The labels of a dimension share its name, so a new name for
//! them is the dimension's in all items, as in xarray's `Dataset.rename`; a name for an item `[dim]` likewise.

use std::collections::BTreeMap;
use std::sync::Arc;

use sqlparser::ast::{Query, TableAlias};
use tessera_planner::catalog::{Coord, TextColumn};

use super::value::{Dim, Item, Tensor};
use super::{Lowerer, fail, refuse};
use crate::ast;
use crate::error::{BindError, Error};
use crate::labels::DatasetLabels;
use crate::scope;

/// The kind of a query's column.
enum Output {
    Item(usize),
    /// The labels of the dimension of that name.
    Dim(Arc<str>),
}

impl Lowerer<'_, '_> {
    /// Gives the items of a query the column names of its alias, if it has any.
    ///
    /// # Errors
    /// `invalid_argument` if there are more or fewer names than items, `duplicate_name`, and the errors of
    /// [`Lowerer::coordinates`].
    pub(super) fn renamed(
        &mut self,
        items: Vec<Item>,
        query: &Query,
        alias: &TableAlias,
    ) -> Result<Vec<Item>, Error> {
        let Some(first) = alias.columns.first() else { return Ok(items) };
        let outputs = outputs(query, items.len());
        if outputs.len() != alias.columns.len() {
            return refuse(
                &alias.name.value,
                "its list of column names",
                format!(
                    "has {}, but the query has {}",
                    counted(alias.columns.len(), "name"),
                    counted(outputs.len(), "item")
                ),
                first.name.span,
            );
        }
        let dataset = items.first().map(|item| item.dataset.clone()).unwrap_or_default();
        let (mut tensors, texts): (Vec<Tensor>, Vec<_>) =
            items.into_iter().map(|item| (item.tensor, item.text)).unzip();
        let mut spans = vec![None; tensors.len()];
        let mut dims: BTreeMap<Arc<str>, Arc<str>> = BTreeMap::new();
        for (at, (output, column)) in outputs.iter().zip(&alias.columns).enumerate() {
            let new: Arc<str> = column.name.value.as_str().into();
            if alias.columns[..at].iter().any(|other| other.name.value == column.name.value) {
                let error = BindError::DuplicateName { kind: "column", name: new.to_string() };
                return fail(error, column.name.span);
            }
            match output {
                Output::Dim(dim) => {
                    dims.insert(dim.clone(), new);
                }
                Output::Item(item) => {
                    let tensor = &mut tensors[*item];
                    if let ([dim], Some(own)) = (tensor.dims.as_slice(), &tensor.name)
                        && dim.name.as_ref() == Some(own)
                    {
                        dims.insert(own.clone(), new.clone());
                    }
                    tensor.name = Some(new);
                    spans[*item] = Some(column.name.span);
                }
            }
        }
        for tensor in &mut tensors {
            for dim in &mut tensor.dims {
                let new = dim.name.as_ref().and_then(|name| dims.get(name));
                if let Some(new) = new.cloned() {
                    *dim = dim.called(&new);
                }
            }
            let names: Vec<_> = tensor.dims.iter().filter_map(|dim| dim.name.clone()).collect();
            let twice = (1..names.len()).find(|&at| names[..at].contains(&names[at]));
            if let Some(at) = twice {
                let error =
                    BindError::DuplicateName { kind: "dimension", name: names[at].to_string() };
                return fail(error, first.name.span);
            }
        }
        self.coordinates(&mut tensors, &spans)?;
        let dataset = with_dims(dataset, &dims);
        let items = tensors.into_iter().zip(texts);
        Ok(items.map(|(tensor, text)| Item { tensor, text, dataset: dataset.clone() }).collect())
    }
}

/// The same dataset, whose texts lie along dimensions with other names.
fn with_dims(
    dataset: Arc<DatasetLabels>,
    dims: &BTreeMap<Arc<str>, Arc<str>>,
) -> Arc<DatasetLabels> {
    let is_renamed = |text: &TextColumn| text.dim().is_some_and(|dim| dims.contains_key(dim));
    if !dataset.texts.iter().any(is_renamed) {
        return dataset;
    }
    let renamed = |text: &TextColumn| {
        let Some(new) = text.dim().and_then(|dim| dims.get(dim)) else { return text.clone() };
        let coord = Coord { dim: new.clone(), ..Coord::clone(&text.coord) };
        TextColumn { coord: Arc::new(coord), ..text.clone() }
    };
    let texts = dataset.texts.iter().map(renamed).collect();
    Arc::new(DatasetLabels { texts, attrs: dataset.attrs.clone() })
}

impl Dim {
    /// The same dimension with another name.
    fn called(&self, new: &Arc<str>) -> Self {
        let coord = self.coord.as_ref().map(|coord| {
            Arc::new(Coord { name: new.clone(), dim: new.clone(), ..(**coord).clone() })
        });
        Dim { name: Some(new.clone()), coord, group: None }
    }
}

/// The columns of a query with that number of items; the dimensions of a cell block are not among its items.
fn outputs(query: &Query, items: usize) -> Vec<Output> {
    let mut rest = (0..items).map(Output::Item);
    let written = match scope::innermost(query) {
        Some(select) => select.projection.as_slice(),
        None => &[],
    };
    if written.iter().all(|item| ast::bracket_dim(item).is_none()) {
        return rest.collect();
    }
    let of = |item| match ast::bracket_dim(item) {
        Some((dim, alias)) => Some(Output::Dim(alias.unwrap_or(dim).value.as_str().into())),
        None => rest.next(),
    };
    written.iter().filter_map(of).collect()
}

fn counted(count: usize, what: &str) -> String {
    match count {
        1 => format!("1 {what}"),
        _ => format!("{count} {what}s"),
    }
}
