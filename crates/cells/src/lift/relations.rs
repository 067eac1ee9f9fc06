//! Resolves the relations of a cell block: opened datasets, and tensor blocks lowered to cubes.

use std::cell::RefCell;
use std::sync::Arc;

use datafusion::datasource::provider_as_source;
use datafusion::execution::SessionState;
use sqlparser::ast::{
    Expr, Ident, ObjectName, Query, SelectItem, Spanned, TableAlias, TableFactor,
};

use super::series::Call;
use super::{CellPlan, CellRelation, CellTables, Cells, Cube, CubeVariable, Form, Planner, names};
use crate::tables::Tables;
use tessera_frontend::ast::Relation;
use tessera_frontend::bind::{self, CatalogNames, Context, RelationRef};
use tessera_frontend::cells::KeptPositions;
use tessera_frontend::error::{BindError, Error, Position};
use tessera_frontend::labels::coordinates;
use tessera_frontend::limits;
use tessera_frontend::scope::{self, Scope};
use tessera_frontend::surface::{self, RelationKind};
use tessera_frontend::{Lowered, lower_inside};

/// Plans a cell block of the given text.
///
/// # Errors
/// The errors of [`super::plan`], and [`Error::Waiting`] if a part of it must run first.
pub(crate) fn plan_cells_in(
    query: &Query,
    text: u64,
    context: &mut Context<'_>,
    planner: &Planner<'_>,
    because: &str,
    as_tensors: bool,
) -> Result<CellPlan, Error> {
    // Columns of rows are numbered, tensors of one dataset are named.
    if as_tensors && let Some(error) = names::given_twice(query) {
        return Err(error);
    }
    let (config, form) = (context.config.clone(), Form { density: planner.density, as_tensors });
    let state = planner.rows.get()?;
    let tables = Relations { context: RefCell::new(context), tables: planner.tables, state };
    limits::nested(|| super::plan(query, text, &tables, state, &config, because, form))
}

/// The positions that the conditions of a cell block keep: see
/// [`CellPlanner::kept`](tessera_frontend::cells::CellPlanner::kept).
///
/// # Errors
/// [`Error::Waiting`], [`Error::Stopped`].
pub(crate) fn kept_in(
    query: &Query,
    text: u64,
    context: &mut Context<'_>,
    planner: &Planner<'_>,
) -> Result<Option<Vec<KeptPositions>>, Error> {
    let (config, density) = (context.config.clone(), planner.density);
    let state = planner.rows.get()?;
    let tables = Relations { context: RefCell::new(context), tables: planner.tables, state };
    let kept = || super::kept::kept(query, text, &tables, state, &config, density);
    match limits::nested(kept) {
        Err(error @ (Error::Waiting | Error::Stopped)) => Err(error),
        // Planning the block's rows reports the error.
        Err(_) => Ok(None),
        Ok(kept) => Ok(kept),
    }
}

struct Relations<'c, 'a> {
    context: RefCell<&'c mut Context<'a>>,
    tables: &'c Tables,
    state: &'c SessionState,
}

impl Relations<'_, '_> {
    /// A table of `generate_series` or `range`.
    fn series(&self, call: &Call<'_>, text: u64) -> Result<CellRelation, Error> {
        let series = call.table(self, self.state, text)?;
        let name = call.function().to_string();
        let other = call.column.filter(|column| !column.eq_ignore_ascii_case(&name));
        let other: Option<(Arc<str>, Arc<str>)> =
            other.map(|column| (Arc::from(name.as_str()), Arc::from(column)));
        let also = other.into_iter().collect();
        Ok(CellRelation::Rows { source: provider_as_source(Arc::new(series)), name, also })
    }
}

impl CellTables for Relations<'_, '_> {
    fn now_us(&self) -> i64 {
        self.context.borrow().now_us
    }

    fn relation(&self, relation: &Relation<'_>, scope: &Scope) -> Result<CellRelation, Error> {
        // Its arguments may read the context themselves.
        if let Relation::Function { name, args, alias } = relation
            && let Some(call) = Call::of(name, args, alias.map(|alias| alias.value.as_str()))
        {
            return self.series(&call, scope.text);
        }
        let mut context = self.context.borrow_mut();
        if let Relation::Subquery { query, alias } = relation {
            let name = alias.map_or_else(String::new, |alias| alias.name.value.clone());
            return subquery(query, scope, name, *alias, &mut context);
        }
        if let Relation::Cells { expr, alias, .. } = relation {
            return cells(expr, alias.map(|a| a.value.as_str()), scope, &mut context, self.tables);
        }
        let Some(name) = bind::relation_ref(relation)? else {
            return match relation {
                Relation::Function { name, .. } => Err(bind::unknown_reader(name)),
                _ => Ok(CellRelation::Sql),
            };
        };
        named(relation, &name, &mut context, self.tables)
    }
}

/// Resolves a subquery: tensors, with the column names of `alias`, or rows that stay unchanged.
fn subquery(
    query: &Query,
    scope: &Scope,
    name: String,
    alias: Option<&TableAlias>,
    context: &mut Context<'_>,
) -> Result<CellRelation, Error> {
    let whole = scope.close(query);
    if surface::kind(&whole, &CatalogNames(context.catalog)) != RelationKind::Tensor {
        return Ok(CellRelation::Sql);
    }
    let site = scope::site(scope.text, query);
    let lowered = lower_inside(&whole, alias, scope.text, site, context)?;
    Ok(CellRelation::Cube(Arc::new(cube(name, &lowered))))
}

/// `CELLS(expr)`: a relation name, a query, or an expression over the relations that it references.
fn cells(
    expr: &Expr,
    alias: Option<&str>,
    scope: &Scope,
    context: &mut Context<'_>,
    tables: &Tables,
) -> Result<CellRelation, Error> {
    let position = Position::of_span(tessera_frontend::span_of(expr));
    let of_rows = |hint: &str| Error::Cells {
        code: "wrong_surface",
        message: "CELLS(…) takes a tensor, and its argument already consists of rows".to_string(),
        position,
        hint: Some(hint.to_string()),
    };
    if let Some(url) = tessera_frontend::ast::url_of(expr) {
        let reference = RelationRef::Url { url: url.to_string(), options: Vec::new() };
        if context.catalog.is_rows(&reference) {
            return Err(of_rows(&format!("write FROM '{url}'")));
        }
        let (url, alias) = (Ident::with_quote('\'', url), alias.map(Ident::new));
        let relation = Relation::Url { url: &url, alias: alias.as_ref() };
        return named(&relation, &reference, context, tables);
    }
    match expr {
        Expr::Nested(inner) => return cells(inner, alias, scope, context, tables),
        Expr::Subquery(query) => {
            let name = alias.unwrap_or_default().to_string();
            return match subquery(query, scope, name, None, context)? {
                CellRelation::Sql => Err(of_rows("write FROM (SELECT …)")),
                found => Ok(found),
            };
        }
        Expr::Identifier(_) | Expr::CompoundIdentifier(_) => {
            let parts = match expr {
                Expr::CompoundIdentifier(parts) => parts.clone(),
                Expr::Identifier(one) => vec![one.clone()],
                _ => Vec::new(),
            };
            let name = ObjectName::from(parts);
            let relation = Relation::Name { name: &name, alias: None };
            let reference = RelationRef::Name(bind::dotted(&name));
            if context.catalog.is_rows(&reference) {
                return Err(of_rows("write FROM and its name"));
            }
            if is_known(&reference, context) {
                return named(&relation, &reference, context, tables);
            }
        }
        _ => {}
    }
    let known: Vec<String> = bind::names_in(expr)
        .into_iter()
        .filter(|name| scope.knows(name) || is_known(&RelationRef::Name(name.clone()), context))
        .collect();
    if known.is_empty()
        && let Some(name) = bind::names_in(expr).into_iter().next()
    {
        let names = context.catalog.names();
        let words: Vec<&str> = names.iter().map(String::as_str).collect();
        let near = tessera_frontend::error::nearest(&name, &words).map(String::from);
        let candidates = near.into_iter().collect();
        return Err(Error::UnknownName { kind: "relation", name, candidates, position });
    }
    let Some(query) = select(expr, &known) else {
        return Err(Error::cells("internal", "CELLS(…) could not be read as a query", position));
    };
    let whole = scope.close(&query);
    if surface::kind(&whole, &CatalogNames(context.catalog)) != RelationKind::Tensor {
        return Err(of_rows("write FROM (SELECT …)"));
    }
    let lowered = lower_inside(&whole, None, scope.text, None, context)?;
    Ok(CellRelation::Cube(Arc::new(cube(alias.unwrap_or("cells").to_string(), &lowered))))
}

fn is_known(reference: &RelationRef, context: &Context<'_>) -> bool {
    context.catalog.relation(reference).is_some() || context.catalog.view(reference).is_some()
}

/// `SELECT expr FROM names`.
fn select(expr: &Expr, names: &[String]) -> Option<Query> {
    let mut query = tessera_frontend::query_of("SELECT x FROM y").ok()??;
    let block = scope::innermost_mut(&mut query)?;
    block.projection = vec![SelectItem::UnnamedExpr(expr.clone())];
    let from = block.from.pop()?;
    for name in names {
        let mut from = from.clone();
        if let TableFactor::Table { name: of, .. } = &mut from.relation {
            *of = ObjectName::from(vec![Ident::new(name)]);
        }
        block.from.push(from);
    }
    Some(*query)
}

/// A relation of the catalog.
fn named(
    relation: &Relation<'_>,
    name: &RelationRef,
    context: &mut Context<'_>,
    tables: &Tables,
) -> Result<CellRelation, Error> {
    let alias = match relation {
        Relation::Name { alias, .. }
        | Relation::Url { alias, .. }
        | Relation::Function { alias, .. } => *alias,
        _ => None,
    };
    if let Some(table) = tables.get(name) {
        let stem = name.text().rsplit('/').next().unwrap_or_default();
        let stem = stem.split('.').next().unwrap_or_default();
        let name = if stem.is_empty() { "rows" } else { stem };
        let (source, name) = (table.source(), name.to_string());
        return Ok(CellRelation::Rows { source, name, also: Vec::new() });
    }
    if let Some(view) = context.catalog.view(name) {
        if surface::kind(&view.query, &CatalogNames(context.catalog)) == RelationKind::Tensor {
            return subquery(&view.query, &Scope::of(view.text), view.name.clone(), None, context)
                .map_err(|e| e.in_view(&view.name, position_of(relation)));
        }
        return Ok(CellRelation::Query { query: Box::new(view.query.clone()), text: view.text });
    }
    let Some(dataset) = context.catalog.relation(name) else {
        return Err(bind::unknown_relation(relation, &context.catalog.names()));
    };
    if let (true, Some(of)) = (dataset.variables.is_empty(), dataset.unreadable.first()) {
        let error = BindError::unreadable(of);
        return Err(Error::Bind { error, position: position_of(relation) });
    }
    let has_labels = !dataset.coords.is_empty() || !dataset.scalars.is_empty();
    if dataset.variables.is_empty() && !has_labels {
        return Err(Error::Cells {
            code: "empty_dataset",
            message: format!("`{}` has no variables, so it has no rows", dataset.name),
            position: None,
            hint: Some("DESCRIBE lists the arrays; `url#group` names a group inside".into()),
        });
    }
    let (dataset, own) = bind::under_alias(dataset, name, alias.map(|a| a.value.as_str()));
    let also = own.into_iter().map(|own| (own, dataset.variables[0].name.clone())).collect();
    Ok(CellRelation::Cube(Arc::new(Cube { also, ..Cube::from(&*dataset) })))
}

fn position_of(relation: &Relation<'_>) -> Option<Position> {
    match relation {
        Relation::Name { name, .. } => Position::of_span(name.span()),
        _ => None,
    }
}

/// The results of a tensor block as a relation of cells.
fn cube(name: String, lowered: &Arc<Lowered>) -> Cube {
    let mut cube = Cube { name, ..Cube::default() };
    let dataset = coordinates(&lowered.outputs);
    let outputs = lowered.outputs.iter().zip(&lowered.rooted.roots);
    for (at, ((labels, &node), is_coordinate)) in outputs.zip(dataset).enumerate() {
        for coord in labels.dims.iter().filter_map(|d| d.coord.as_ref()) {
            if !cube.coords.iter().any(|c| c.name == coord.name) {
                cube.coords.push(coord.clone());
            }
        }
        if is_coordinate {
            continue;
        }
        let name: Arc<str> = labels.name.as_str().into();
        if !labels.named {
            cube.also.push((format!("v{at}").into(), name.clone()));
        }
        cube.variables.push(CubeVariable {
            name,
            dims: labels.dims.iter().map(|d| d.name.clone()).collect(),
            attrs: labels.attrs.clone(),
            cells: Cells::Planned { block: lowered.clone(), node },
        });
    }
    cube
}
