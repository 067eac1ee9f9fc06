//! Lowers a tensor block to the IR.
//!
//! The life of `SELECT t2m[lat => 60:30] - mean(t2m) AS d FROM era5`:
//!
//! 1. [`lower_tensor`] puts the datasets of `FROM` (and CTEs and subqueries, lowered the same way)
//!    in scope.
//! 2. `expr` walks each item; `names` turns `t2m` into `Load` and decoding nodes with labels.
//! 3. `subscript` and `select` turn brackets into views; `functions` lowers calls.
//! 4. `align` matches the dimensions of the operands of `-`; `arith` decides the result type.
//!
//! Lowering reads no data. Coordinates are in the datasets, and `consteval` computes the values that must be known
//! while binding (groups, positions) from coordinates and literals alone.

mod align;
mod all;
mod arith;
mod columns;
mod consteval;
mod coords;
mod expr;
mod flat;
mod intervals;
mod kept;
mod labelled;
mod masks;
mod names;
mod pointwise;
mod renamed;
mod runtime;
mod select;
mod subscript;
pub(crate) mod value;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use sqlparser::ast::{
    Cte, Expr, Query, Select, SelectItem, SetExpr, Spanned, TableAlias, TableFactor,
};
use sqlparser::tokenizer::Span;
use tessera_planner::build::Builder;
use tessera_planner::catalog::Coord;
use tessera_planner::error::Error as PlanError;
use tessera_planner::optimize::Rooted;

use crate::ast::{self, Relation};
use crate::bind::{self, CatalogNames, Context, RelationRef, View};
use crate::error::{BindError, Error, Position};
use crate::island::{Island, Site};
use crate::labels::{DatasetLabels, Labels};
use crate::scope::Scope;
use crate::surface;
pub(crate) use align::{misshapen, unique};
pub use all::{excluded, is_star, only_excludes};
pub(crate) use arith::{Binary, types};
pub(crate) use columns::over_columns;
pub(crate) use consteval::evaluate;
pub(crate) use expr::{TYPES, no_type};
pub(crate) use labelled::ascending;
use names::{Relation as Bound, Variable};
pub use runtime::flatten;
pub(crate) use select::Method;
pub(crate) use subscript::{Pick, normal_position, unknown_dim};
use value::{Item, Tensor, Value};

/// The graph of a tensor block and the labels of its items.
#[derive(Debug, Clone, PartialEq)]
pub struct Lowered {
    /// The graph; one root for each item, in their order.
    pub rooted: Rooted,
    /// The labels of each root.
    pub outputs: Vec<Labels>,
}

impl Lowered {
    /// Drops the items that are coordinates of other items, as a stored dataset does not list them as results.
    pub fn as_dataset(&mut self) {
        let mut labels = crate::labels::coordinates(&self.outputs).into_iter();
        let mut keep = || labels.next() != Some(true);
        let items = self.outputs.drain(..).zip(self.rooted.roots.drain(..));
        let kept: Vec<_> = items.filter(|_| keep()).collect();
        (self.outputs, self.rooted.roots) = kept.into_iter().unzip();
    }
}

/// Lowers a query whose outermost block is a tensor block.
///
/// # Errors
/// Any fault of names, labels, types and shapes, with its position; [`BindError::WrongSurface`] if
/// an inner block is one of rows; [`Error::Waiting`] if a part has to run first.
pub fn lower_tensor(query: &Query, context: &mut Context<'_>) -> Result<Lowered, Error> {
    lower_in(query, None, 0, context)
}

/// Lowers a query of either surface to tensors. The dimensions of a cell block are its bracketed columns, else the keys
/// of GROUP BY, else the columns of labels, as in `tensor(SELECT …)`.
///
/// # Errors
/// The errors of [`lower_tensor`] and of [`CellPlanner::labelled`](crate::cells::CellPlanner::labelled).
pub fn lower_any(query: &Query, context: &mut Context<'_>) -> Result<Lowered, Error> {
    crate::limits::with_room(|| lower_here(query, None, 0, context, Rows::AsTensors))
}

/// As [`lower_tensor`], for a query inside a cell block of the text `text`; the column names of its alias are those of
/// the items. A query with a `site` is lowered once for the statement.
///
/// # Errors
/// The errors of [`lower_tensor`]; [`Error::NestingTooDeep`].
pub fn lower_inside(
    query: &Query,
    alias: Option<&TableAlias>,
    text: u64,
    site: Option<Site>,
    context: &mut Context<'_>,
) -> Result<Arc<Lowered>, Error> {
    if let Some(known) = context.islands.inside.get(site, query) {
        return Ok(known);
    }
    let lowered = Arc::new(lower_in(query, alias, text, context)?);
    context.islands.inside.insert(site, query, lowered.clone());
    Ok(lowered)
}

fn lower_in(
    query: &Query,
    alias: Option<&TableAlias>,
    text: u64,
    context: &mut Context<'_>,
) -> Result<Lowered, Error> {
    let lower = || lower_here(query, alias, text, context, Rows::Refused);
    crate::limits::nested(|| crate::limits::with_room(lower))
}

/// How an outermost cell block without `[dim]` items is handled.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Rows {
    /// It is an error.
    Refused,
    /// Its rows are assembled into tensors.
    AsTensors,
}

fn lower_here(
    query: &Query,
    alias: Option<&TableAlias>,
    text: u64,
    context: &mut Context<'_>,
    rows: Rows,
) -> Result<Lowered, Error> {
    let config = context.config.clone();
    let mut lowerer = Lowerer {
        context,
        b: Builder::new(config),
        relations: Vec::new(),
        ctes: Vec::new(),
        locals: Vec::new(),
        scope: Scope::of(text),
        views: BTreeMap::new(),
    };
    let items = match rows {
        Rows::Refused => lowerer.block(query)?,
        Rows::AsTensors => lowerer.any_block(query)?,
    };
    let items = match alias {
        Some(alias) => lowerer.renamed(items, query, alias)?,
        None => items,
    };
    let mut outputs = Vec::with_capacity(items.len());
    let mut roots = Vec::with_capacity(items.len());
    let names = value::names(&items);
    for (Item { tensor: item, dataset, .. }, name) in items.into_iter().zip(names) {
        let node = lowerer.b.node(item.node);
        outputs.push(Labels {
            named: item.name.is_some(),
            name: name.to_string(),
            dims: item.dims.iter().map(value::Dim::label).collect(),
            shape: node.shape.to_vec(),
            dtype: node.dtype,
            nullable: node.nullable,
            attrs: item.attrs,
            is_coordinate: item.is_coordinate,
            dataset,
        });
        roots.push(item.node);
    }
    Ok(Lowered { rooted: Rooted { graph: lowerer.b.graph, roots }, outputs })
}

/// The state of lowering one query.
pub(crate) struct Lowerer<'c, 'a> {
    /// The binding context that the session provides.
    pub(crate) context: &'c mut Context<'a>,
    /// The graph so far.
    pub(crate) b: Builder,
    /// The relations of the block that is being lowered.
    relations: Vec<Bound>,
    /// The CTEs in scope, innermost last.
    ctes: Vec<TensorCte>,
    /// Coordinates of the tensor whose brackets or `by =>` enclose the expression.
    pub(crate) locals: Vec<Arc<Coord>>,
    /// The CTEs in scope as syntax, those of rows included, for cell blocks; and the text that is being lowered.
    scope: Scope,
    /// Views that have been lowered, by their text.
    views: BTreeMap<u64, Vec<Item>>,
}

/// A tensor CTE.
enum TensorCte {
    /// It has been lowered.
    Bound(Bound),
    /// It waits for an island, which runs only if the CTE is referenced.
    Waiting(String, Box<Island>),
}

impl TensorCte {
    fn name(&self) -> &str {
        match self {
            TensorCte::Bound(bound) => &bound.name,
            TensorCte::Waiting(name, _) => name,
        }
    }
}

impl Lowerer<'_, '_> {
    /// The items of a query, each under its alias or its own name.
    fn query(&mut self, query: &Query) -> Result<Vec<Item>, Error> {
        let outer = self.ctes.len();
        self.scope.enter(query.with.as_ref());
        for cte in query.with.iter().flat_map(|with| &with.cte_tables) {
            self.cte(cte)?;
        }
        let items = match &*query.body {
            SetExpr::Select(select) => self.select(select),
            SetExpr::Query(inner) => self.block(inner),
            _ => unsupported("this query as a tensor block", query.body.span()),
        };
        self.scope.leave();
        self.ctes.truncate(outer);
        items
    }

    /// Defines a CTE: a tensor CTE is lowered, a CTE of rows is stored as syntax.
    fn cte(&mut self, cte: &Cte) -> Result<(), Error> {
        let whole = self.scope.close(&cte.query);
        let kind = surface::kind(&whole, &CatalogNames(self.context.catalog));
        let is_inserted = surface::is_inserted(cte);
        if is_inserted || kind == surface::RelationKind::Tensor {
            let (name, depth) = (&cte.alias.name.value, self.ctes.len());
            let before = self.scope.clone();
            let items = match is_inserted {
                true => self.any_block(&cte.query),
                false => self.block(&cte.query),
            };
            let items = items.and_then(|items| self.renamed(items, &cte.query, &cte.alias));
            let known = match (items, self.context.islands.wanted()) {
                (Err(Error::Waiting), Some(island)) => {
                    // Lowering stopped in the middle of it.
                    self.scope = before;
                    self.ctes.truncate(depth);
                    TensorCte::Waiting(name.clone(), Box::new(island))
                }
                (items, _) => TensorCte::Bound(Bound::lowered(name, items?)),
            };
            self.ctes.push(known);
        }
        self.scope.define(cte);
        Ok(())
    }

    /// Lowers a nested tensor block, which sees no relations but its own.
    fn inner(&mut self, query: &Query) -> Result<Vec<Item>, Error> {
        let relations = std::mem::take(&mut self.relations);
        let locals = std::mem::take(&mut self.locals);
        let items = stacker::maybe_grow(RED_ZONE, STACK, || self.query(query));
        self.relations = relations;
        self.locals = locals;
        items
    }

    /// Lowers a view, which sees the catalog but nothing of the query that references it.
    fn view(&mut self, view: &View, span: Span) -> Result<Vec<Item>, Error> {
        if let Some(known) = self.views.get(&view.text) {
            return Ok(known.clone());
        }
        let scope = std::mem::replace(&mut self.scope, Scope::of(view.text));
        let ctes = std::mem::take(&mut self.ctes);
        let items = stacker::maybe_grow(RED_ZONE, STACK, || self.block(&view.query));
        self.scope = scope;
        self.ctes = ctes;
        // Positions in the view's own text mean nothing to the author of the query.
        let items = items.map_err(|e| e.in_view(&view.name, Position::of_span(span)))?;
        self.views.insert(view.text, items.clone());
        Ok(items)
    }

    fn select(&mut self, select: &Select) -> Result<Vec<Item>, Error> {
        for from in &select.from {
            if let Some(join) = from.joins.first() {
                return wrong_surface("JOIN", join.relation.span());
            }
            let bound = self.relation(&from.relation)?;
            if self.relations.iter().any(|r| r.name == bound.name) {
                return fail(
                    BindError::DuplicateName { kind: "relation", name: bound.name },
                    from.relation.span(),
                );
            }
            self.relations.push(bound);
        }
        let mut items: Vec<Tensor> = Vec::new();
        // The source text of each item.
        let mut texts: Vec<Option<Arc<str>>> = Vec::new();
        // The span of each item's alias.
        let mut given: Vec<Option<Span>> = Vec::new();
        let mut aliases = BTreeSet::new();
        let attrs = self.relations.first().map(|of| of.attrs.clone()).unwrap_or_default();
        let mut whole = DatasetLabels { attrs, texts: Vec::new() };
        let has_star = select.projection.iter().any(|i| matches!(i, SelectItem::Wildcard(_)));
        let mut star = None;
        for item in &select.projection {
            let (expr, alias) = match item {
                SelectItem::UnnamedExpr(expr) => (expr, None),
                SelectItem::ExprWithAlias { expr, alias } => (expr, Some(alias)),
                SelectItem::Wildcard(options) => {
                    let (all, columns) = self.everything(options, item.span())?;
                    items.extend(all);
                    whole.texts.extend(columns);
                    star = Some(options);
                    given.resize(items.len(), None);
                    texts.resize(items.len(), None);
                    continue;
                }
                other => return wrong_surface("the item *", other.span()),
            };
            if has_star && let Some(text) = alias.and_then(|alias| self.texts_as(expr, alias)) {
                whole.texts.push(text);
                continue;
            }
            let value = self.expr(expr)?;
            if let Some(alias) = alias {
                let name = alias.value.clone();
                if !aliases.insert(name.clone()) {
                    return fail(BindError::DuplicateName { kind: "item", name }, alias.span);
                }
            }
            match value {
                Value::Record(record) => {
                    items.extend(record.spread(alias.map(|alias| alias.value.as_str())));
                }
                value => {
                    let mut tensor = self.tensor(value, span_of(expr))?;
                    if let Some(alias) = alias {
                        tensor.name = Some(alias.value.as_str().into());
                    }
                    items.push(tensor);
                }
            }
            given.resize(items.len(), alias.map(|alias| alias.span));
            texts.resize(items.len(), ast::text(expr).map(Arc::from));
        }
        if let Some(options) = star {
            self.beside(options, &mut items, &given)?;
            while let Some(at) = all::labels_of_others(&items, &given) {
                items.remove(at);
                texts.remove(at);
                given.remove(at);
            }
        }
        // Of several items with one name only one keeps it; an alias takes precedence.
        let mut keeps: BTreeMap<Arc<str>, usize> = BTreeMap::new();
        for (at, item) in items.iter().enumerate() {
            let Some(name) = &item.name else { continue };
            let kept = *keeps.entry(name.clone()).or_insert(at);
            if given[at].is_some() && given[kept].is_none() {
                keeps.insert(name.clone(), at);
            }
        }
        for (at, item) in items.iter_mut().enumerate().filter(|(at, _)| given[*at].is_none()) {
            item.name = item.name.take().filter(|name| keeps.get(name) == Some(&at));
        }
        self.coordinates(&mut items, &given)?;
        let dataset = Arc::new(whole);
        let items = items.into_iter().zip(texts);
        Ok(items.map(|(tensor, text)| Item { tensor, text, dataset: dataset.clone() }).collect())
    }

    fn relation(&mut self, factor: &TableFactor) -> Result<Bound, Error> {
        if let TableFactor::Table { alias: Some(alias), .. } = factor
            && let Some(column) = alias.columns.first()
        {
            let construct = "a list of column names after a name, in a block of tensors,";
            return unsupported(construct, column.name.span);
        }
        match ast::relation(factor) {
            Relation::Subquery { query, alias } => {
                let items = self.block(query)?;
                let Some(alias) = alias else { return Ok(Bound::lowered("", items)) };
                let items = self.renamed(items, query, alias)?;
                return Ok(Bound::lowered(&alias.name.value, items));
            }
            Relation::Name { name, alias } => {
                if let [part] = name.0.as_slice()
                    && let Some(ident) = part.as_ident()
                    && let Some(cte) =
                        self.ctes.iter().rev().find(|c| c.name().eq_ignore_ascii_case(&ident.value))
                {
                    let mut bound = match cte {
                        TensorCte::Bound(bound) => bound.clone(),
                        TensorCte::Waiting(_, island) => {
                            return Err(self.context.islands.want(Island::clone(island)));
                        }
                    };
                    if let Some(alias) = alias {
                        bound.name = alias.value.clone();
                    }
                    return Ok(bound);
                }
            }
            _ => {}
        }
        let span = factor.span();
        let Some(reference) = bind::reference(factor)? else {
            return wrong_surface("a relation that is rows", span);
        };
        if let Some(view) = self.context.catalog.view(&reference) {
            let items = self.view(&view, span)?;
            let alias = match ast::relation(factor) {
                Relation::Name { alias, .. } => alias,
                _ => None,
            };
            let name = match alias {
                Some(alias) => alias.value.clone(),
                None => last_part(reference.text()).to_string(),
            };
            return Ok(Bound::lowered(&name, items));
        }
        let Some(dataset) = self.context.catalog.relation(&reference) else {
            let candidates: Vec<String> =
                self.ctes.iter().map(|cte| cte.name().to_string()).collect();
            let found: Vec<&str> = candidates.iter().map(String::as_str).collect();
            return Err(Error::UnknownName {
                kind: "relation",
                name: reference.text().to_string(),
                candidates: crate::error::nearest(reference.text(), &found)
                    .map(|name| vec![name.to_string()])
                    .unwrap_or_default(),
                position: Position::of_span(span),
            });
        };
        let alias = match ast::relation(factor) {
            Relation::Name { alias, .. }
            | Relation::Url { alias, .. }
            | Relation::Function { alias, .. } => alias,
            _ => None,
        };
        let name = match (alias, &reference) {
            (Some(alias), _) => alias.value.clone(),
            (None, RelationRef::Name(name)) => last_part(name).to_string(),
            (None, RelationRef::Url { .. }) => dataset.name.clone(),
        };
        let alias = alias.map(|a| a.value.as_str());
        let (renamed, also) = bind::under_alias(dataset.clone(), &reference, alias);
        let also = also.into_iter().map(|own| (own, Variable::Data(dataset.clone(), 0)));
        Ok(Bound { also: also.collect(), ..Bound::stored(name, renamed) })
    }
}

fn last_part(name: &str) -> &str {
    name.rsplit('.').next().unwrap_or(name)
}

impl Lowerer<'_, '_> {
    /// The random seed of the call at `call`.
    pub(crate) fn seed(&self, call: Span) -> u64 {
        let place = (call.start.line << 32) ^ call.start.column ^ self.scope.text.rotate_left(17);
        // The finaliser of SplitMix64 (Steele, Lea, Flood 2014): neighbouring places get unrelated seeds.
        let mut z = (self.context.seed ^ place.wrapping_mul(0x9e37_79b9_7f4a_7c15))
            .wrapping_add(0x9e37_79b9_7f4a_7c15);
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }
}

impl Bound {
    /// The dataset that a subquery or CTE yields: its items by name, and their coordinates.
    fn lowered(name: &str, items: Vec<Item>) -> Self {
        let names = value::names(&items);
        let dataset = items.first().map(|item| item.dataset.clone()).unwrap_or_default();
        let items: Vec<Tensor> = items.into_iter().map(|item| item.tensor).collect();
        let mut coords: Vec<Arc<Coord>> = Vec::new();
        for coord in items.iter().flat_map(|item| &item.dims).filter_map(|d| d.coord.as_ref()) {
            // Variables of one dataset share their coordinates.
            if !coords.iter().any(|known| Arc::ptr_eq(known, coord) || known == coord) {
                coords.push(coord.clone());
            }
        }
        coords.extend(dataset.texts.iter().map(|text| text.coord.clone()));
        let labels = coords::are_labels(&items);
        let (mut variables, mut also) = (Vec::new(), Vec::new());
        for (at, (mut item, name)) in items.into_iter().zip(names).enumerate() {
            if labels[at] {
                continue;
            }
            let is_named = item.name.replace(name.clone()).is_some();
            if !is_named {
                also.push((format!("v{at}").into(), Variable::Lowered(item.clone())));
            }
            variables.push((name, Variable::Lowered(item)));
        }
        let (texts, attrs) = (dataset.texts.clone(), dataset.attrs.clone());
        Bound { name: name.to_string(), variables, also, coords, texts, attrs, ..Bound::default() }
    }
}

/// Bytes of stack that one level of lowering may need, and bytes allocated when less is left.
pub(crate) const RED_ZONE: usize = 256 << 10;
pub(crate) const STACK: usize = 4 << 20;

/// Attaches a position to the planner's errors.
pub(crate) trait At<T> {
    /// Returns the same result with its error at `span`.
    fn at(self, span: Span) -> Result<T, Error>;
}

impl<T> At<T> for Result<T, PlanError> {
    fn at(self, span: Span) -> Result<T, Error> {
        self.map_err(|error| Error::Plan { error, position: Position::of_span(span) })
    }
}

pub(crate) fn fail<T>(error: BindError, span: Span) -> Result<T, Error> {
    Err(Error::Bind { error, position: Position::of_span(span) })
}

/// Refuses an argument of a function, or a part of another construct.
pub(crate) fn refuse<T>(
    function: &str,
    argument: impl Into<String>,
    reason: impl Into<String>,
    span: Span,
) -> Result<T, Error> {
    let (argument, reason) = (argument.into(), reason.into());
    fail(BindError::InvalidArgument { function: function.into(), argument, reason }, span)
}

/// The error for a construct that a later version may support.
pub(crate) fn unsupported<T>(construct: &str, span: Span) -> Result<T, Error> {
    Err(PlanError::Unsupported { construct: construct.into() }).at(span)
}

fn wrong_surface<T>(clause: &str, span: Span) -> Result<T, Error> {
    let error = BindError::WrongSurface {
        construct: "the tensor block".into(),
        belongs: "tensor",
        clause: clause.into(),
    };
    fail(error, span)
}

/// The span of an expression. sqlparser's own walk recurses with large frames, so this function iterates over chains
/// of operators and walks the rest on a new stack where little is left.
pub fn span_of(expr: &Expr) -> Span {
    let mut found: Option<Span> = None;
    let mut add = |span: Span| {
        if span.start.line > 0 {
            found = Some(found.map_or(span, |found| found.union(&span)));
        }
    };
    let mut at = expr;
    loop {
        match at {
            Expr::BinaryOp { left, right, .. } => {
                add(stacker::maybe_grow(SPAN_ZONE, STACK, || right.span()));
                at = left;
            }
            Expr::UnaryOp { expr, .. }
            | Expr::Nested(expr)
            | Expr::IsNull(expr)
            | Expr::IsNotNull(expr)
            | Expr::Cast { expr, .. } => at = expr,
            other => match ast::subscript(other) {
                Some(subscript) => {
                    add(subscript.span);
                    at = subscript.base;
                }
                None => {
                    add(stacker::maybe_grow(SPAN_ZONE, STACK, || other.span()));
                    return found.unwrap_or_else(Span::empty);
                }
            },
        }
    }
}

/// Bytes of stack for sqlparser's walk through one bracketed expression.
const SPAN_ZONE: usize = 1 << 20;

#[cfg(test)]
mod tests;
