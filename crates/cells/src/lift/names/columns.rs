//! The columns of a block's relations, before DataFusion plans it.

use std::collections::BTreeSet;

use datafusion::logical_expr::TableSource;
use sqlparser::ast::{
    Query, RenameSelectItem, Select, SelectItem, SetExpr, TableFactor, TableWithJoins,
};

use super::super::CellRelation;
use super::super::cube::Cube;
use super::items::{has_columns, name_of};
use super::unnested::Unnested;
use super::{Cte, Relations, alias_of};
use tessera_frontend::ast::{self, Relation};

/// Names in lower case; `None` if the text and the catalog do not determine them.
pub(super) type Columns = Option<BTreeSet<String>>;

impl Relations<'_> {
    /// The names that resolve in a block: the columns of its relations, and its items.
    pub(super) fn columns(&self, select: &Select) -> Columns {
        let mut out = self.of_relations(select)?;
        out.extend(items(select).flatten());
        Some(out)
    }

    /// The columns of a block's relations.
    pub(super) fn of_relations(&self, select: &Select) -> Columns {
        let mut out = BTreeSet::new();
        for from in &select.from {
            self.joined(from, &mut out)?;
        }
        Some(out)
    }

    /// The result columns of a query.
    pub(super) fn given(&self, query: &Query) -> Columns {
        let select = match &*query.body {
            SetExpr::Select(select) => select,
            SetExpr::Query(inner) => return self.given(inner),
            SetExpr::SetOperation { left, .. } => match &**left {
                SetExpr::Select(select) => select,
                _ => return None,
            },
            _ => return None,
        };
        let is_star =
            |item: &SelectItem| ast::expr_of(item).is_none_or(|(expr, _)| has_columns(expr));
        if !select.projection.iter().any(is_star) {
            return Some(items(select).flatten().collect());
        }
        match query.with {
            None => {
                let mut columns = self.columns(select)?;
                columns.extend(renamed(select));
                Some(columns)
            }
            Some(_) => None,
        }
    }

    fn joined(&self, from: &TableWithJoins, out: &mut BTreeSet<String>) -> Option<()> {
        self.factor(&from.relation, out)?;
        from.joins.iter().try_for_each(|join| self.factor(&join.relation, out))
    }

    fn factor(&self, factor: &TableFactor, out: &mut BTreeSet<String>) -> Option<()> {
        if let Some(unnested) = Unnested::of(factor) {
            out.extend(unnested.columns().map(|column| column.value.to_lowercase()));
            return Some(());
        }
        if let Some(alias) = alias_of(factor)
            && !alias.columns.is_empty()
        {
            out.extend(alias.columns.iter().map(|column| column.name.value.to_lowercase()));
            return Some(());
        }
        let relation = ast::relation(factor);
        match &relation {
            Relation::Other(TableFactor::NestedJoin { table_with_joins, .. }) => {
                return self.joined(table_with_joins, out);
            }
            Relation::Other(_) => return None,
            Relation::Subquery { query, .. } => {
                out.extend(self.given(query)?);
                return Some(());
            }
            Relation::Name { name, .. } => {
                if let [part] = name.0.as_slice()
                    && let Some(ident) = part.as_ident()
                    && let Some(cte) = self.cte(&ident.value)
                {
                    match cte {
                        Cte::Tensor(cube) => out.extend(of_cube(cube)),
                        Cte::Rows(columns) => out.extend(columns.clone()?),
                        Cte::Waiting(_) => return None,
                    }
                    return Some(());
                }
            }
            _ => {}
        }
        match self.catalog.relation(&relation, self.scope()) {
            Ok(CellRelation::Cube(cube)) => out.extend(of_cube(&cube)),
            Ok(CellRelation::Rows { source, also, .. }) => {
                out.extend(of_rows(&*source));
                out.extend(also.iter().map(|(name, _)| name.to_lowercase()));
            }
            Ok(CellRelation::Query { query, .. }) => out.extend(self.given(&query)?),
            Ok(CellRelation::Sql) => return None,
            // The block itself reports the error when it is visited.
            Err(_) => {}
        }
        Some(())
    }
}

/// The names of items, in lower case.
fn items(select: &Select) -> impl Iterator<Item = Option<String>> + '_ {
    select.projection.iter().map(|item| Some(name_of(item)?.value.to_lowercase()))
}

/// The names of `* RENAME (…)`, in lower case.
fn renamed(select: &Select) -> Vec<String> {
    let names = |item: &SelectItem| match item {
        SelectItem::Wildcard(options) | SelectItem::QualifiedWildcard(_, options) => {
            match &options.opt_rename {
                Some(RenameSelectItem::Single(one)) => vec![one.alias.value.to_lowercase()],
                Some(RenameSelectItem::Multiple(several)) => {
                    several.iter().map(|one| one.alias.value.to_lowercase()).collect()
                }
                None => Vec::new(),
            }
        }
        _ => Vec::new(),
    };
    select.projection.iter().flat_map(names).collect()
}

fn of_rows(source: &dyn TableSource) -> Vec<String> {
    source.schema().fields().iter().map(|field| field.name().to_lowercase()).collect()
}

fn of_cube(cube: &Cube) -> Vec<String> {
    let variables = cube.variables.iter().chain(&cube.auxiliary);
    let own = variables.clone().map(|v| v.name.to_lowercase());
    let dims = variables.flat_map(|v| v.dims.iter().flatten()).map(|dim| dim.to_lowercase());
    let coords = cube.coords.iter().chain(&cube.scalars);
    let coords = coords.map(|coord| coord.name.to_lowercase());
    let also = cube.also.iter().map(|(name, _)| name.to_lowercase());
    own.chain(dims).chain(coords).chain(also).collect()
}
