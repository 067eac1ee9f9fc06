//! The relations of a cell block: opened datasets, and tensor blocks lowered to cubes.

use std::cell::RefCell;
use std::sync::Arc;

use sqlparser::ast::{Expr, Ident, ObjectName, Query, SelectItem, Spanned, TableFactor};

use super::{CellPlan, CellRelation, CellTables, Cells, Cube, CubeVariable};
use crate::ast::Relation;
use crate::bind::{self, CatalogNames, Context, RelationRef};
use crate::error::{BindError, Error, Position};
use crate::labels::coordinates;
use crate::lower::{Lowered, lower_in};
use crate::scope::{self, Scope};
use crate::surface::{self, RelationKind};

/// Plans a cell block over what a statement is bound to. `because` is the clause that made it one.
///
/// # Errors
/// Those of [`super::plan`], and [`Error::Waiting`] if a part of it has to run first.
pub fn plan_cells(
    query: &Query,
    context: &mut Context<'_>,
    because: &str,
) -> Result<CellPlan, Error> {
    plan_cells_in(query, 0, context, because)
}

/// The same of a query in that text.
pub(crate) fn plan_cells_in(
    query: &Query,
    text: u64,
    context: &mut Context<'_>,
    because: &str,
) -> Result<CellPlan, Error> {
    let (config, density) = (context.config.clone(), context.density);
    let state = (context.state)()?;
    let tables = Relations { context: RefCell::new(context) };
    crate::limits::nested(|| super::plan_in(query, text, &tables, state, &config, because, density))
}

struct Relations<'c, 'a> {
    context: RefCell<&'c mut Context<'a>>,
}

impl CellTables for Relations<'_, '_> {
    fn now_us(&self) -> i64 {
        self.context.borrow().now_us
    }

    fn relation(&self, relation: &Relation<'_>, scope: &Scope) -> Result<CellRelation, Error> {
        let mut context = self.context.borrow_mut();
        if let Relation::Subquery { query, alias } = relation {
            let name = alias.map_or_else(String::new, |a| a.value.clone());
            return subquery(query, scope, name, &mut context);
        }
        if let Relation::Cells { expr, alias, .. } = relation {
            return cells(expr, alias.map(|a| a.value.as_str()), scope, &mut context);
        }
        let Some(name) = bind::relation_ref(relation)? else { return Ok(CellRelation::Sql) };
        named(relation, &name, &mut context)
    }
}

/// A subquery: tensors, or rows that stay as they are written.
fn subquery(
    query: &Query,
    scope: &Scope,
    name: String,
    context: &mut Context<'_>,
) -> Result<CellRelation, Error> {
    let whole = scope.close(query);
    if surface::kind(&whole, &CatalogNames(context.catalog)) != RelationKind::Tensor {
        return Ok(CellRelation::Sql);
    }
    let site = scope::site(scope.text, query);
    if let Some(known) = context.islands.cubes.get(site, &whole) {
        return Ok(CellRelation::Cube(Arc::new(Cube { name, ..Cube::clone(&known) })));
    }
    let lowered = lower_in(&whole, scope.text, context)?;
    let cube = Arc::new(cube(name, lowered));
    context.islands.cubes.insert(site, &whole, cube.clone());
    Ok(CellRelation::Cube(cube))
}

/// `CELLS(expr)`: a relation by its name, a query, or an expression over the relations that it names.
fn cells(
    expr: &Expr,
    alias: Option<&str>,
    scope: &Scope,
    context: &mut Context<'_>,
) -> Result<CellRelation, Error> {
    let position = Position::of_span(crate::lower::span_of(expr));
    let of_rows = |hint: &str| Error::Cells {
        code: "wrong_surface",
        message: "CELLS(…) takes a tensor, and this is rows already".to_string(),
        position,
        hint: Some(hint.to_string()),
    };
    if let Some(url) = crate::ast::url_of(expr) {
        let reference = RelationRef::Url { url: url.to_string(), options: Vec::new() };
        if context.catalog.rows(&reference).is_some() {
            return Err(of_rows(&format!("write FROM '{url}'")));
        }
        let (url, alias) = (Ident::with_quote('\'', url), alias.map(Ident::new));
        let relation = Relation::Url { url: &url, alias: alias.as_ref() };
        return named(&relation, &reference, context);
    }
    match expr {
        Expr::Nested(inner) => return cells(inner, alias, scope, context),
        Expr::Subquery(query) => {
            let name = alias.unwrap_or_default().to_string();
            return match subquery(query, scope, name, context)? {
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
            if context.catalog.rows(&reference).is_some() {
                return Err(of_rows("write FROM and its name"));
            }
            if is_known(&reference, context) {
                return named(&relation, &reference, context);
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
        let near = crate::error::nearest(&name, &words).map(String::from);
        let candidates = near.into_iter().collect();
        return Err(Error::UnknownName { kind: "relation", name, candidates, position });
    }
    let Some(query) = select(expr, &known) else {
        return Err(Error::Cells {
            code: "internal",
            message: "CELLS(…) could not be read as a query".to_string(),
            position,
            hint: None,
        });
    };
    let whole = scope.close(&query);
    if surface::kind(&whole, &CatalogNames(context.catalog)) != RelationKind::Tensor {
        return Err(of_rows("write FROM (SELECT …)"));
    }
    let lowered = lower_in(&whole, scope.text, context)?;
    Ok(CellRelation::Cube(Arc::new(cube(alias.unwrap_or("cells").to_string(), lowered))))
}

fn is_known(reference: &RelationRef, context: &Context<'_>) -> bool {
    context.catalog.relation(reference).is_some() || context.catalog.view(reference).is_some()
}

/// `SELECT expr FROM names`.
fn select(expr: &Expr, names: &[String]) -> Option<Query> {
    let template = crate::parse("SELECT x FROM y").ok()?.into_iter().next()?;
    let crate::Statement::Query(mut query) = template.statement else { return None };
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
) -> Result<CellRelation, Error> {
    let alias = match relation {
        Relation::Url { alias, .. } | Relation::Function { alias, .. } => *alias,
        _ => None,
    };
    if let Some(source) = context.catalog.rows(name) {
        let stem = name.text().rsplit('/').next().unwrap_or_default();
        let stem = stem.split('.').next().unwrap_or_default();
        let name = if stem.is_empty() { "rows" } else { stem };
        return Ok(CellRelation::Rows { source, name: name.to_string() });
    }
    if let Some(view) = context.catalog.view(name) {
        if surface::kind(&view.query, &CatalogNames(context.catalog)) == RelationKind::Tensor {
            return subquery(&view.query, &Scope::of(view.text), view.name.clone(), context)
                .map_err(|e| e.moved(position_of(relation)));
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
    if dataset.variables.is_empty() && dataset.coords.is_empty() {
        return Err(Error::Cells {
            code: "empty_dataset",
            message: format!("`{}` has no variables, so it has no rows", dataset.name),
            position: None,
            hint: Some("DESCRIBE shows what is there; `url#group` names a group inside".into()),
        });
    }
    let (dataset, own) = bind::under_alias(dataset, alias.map(|a| a.value.as_str()));
    let also = own.into_iter().map(|own| (own, dataset.variables[0].name.clone())).collect();
    Ok(CellRelation::Cube(Arc::new(Cube { also, ..Cube::from(&*dataset) })))
}

fn position_of(relation: &Relation<'_>) -> Option<Position> {
    match relation {
        Relation::Name { name, .. } => Position::of_span(name.span()),
        _ => None,
    }
}

/// What a tensor block gives, as a relation of cells.
fn cube(name: String, lowered: Lowered) -> Cube {
    let graph = Arc::new(lowered.rooted.graph);
    let mut cube = Cube { name, ..Cube::default() };
    let dataset = coordinates(&lowered.outputs);
    let outputs = lowered.outputs.into_iter().zip(lowered.rooted.roots);
    for (at, ((labels, node), is_coordinate)) in outputs.zip(dataset).enumerate() {
        for coord in labels.dims.iter().filter_map(|d| d.coord.as_ref()) {
            if !cube.coords.iter().any(|c| c.name == coord.name) {
                cube.coords.push(coord.clone());
            }
        }
        if is_coordinate {
            continue;
        }
        let name: Arc<str> = labels.name.into();
        if !labels.named {
            cube.also.push((format!("v{at}").into(), name.clone()));
        }
        cube.variables.push(CubeVariable {
            name,
            dims: labels.dims.into_iter().map(|d| d.name).collect(),
            cells: Cells::Planned { graph: graph.clone(), node },
        });
    }
    cube
}
