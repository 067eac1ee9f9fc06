//! Rewrites the syntax tree before DataFusion plans it.
//!
//! 1. Numbered tables replace relations that are tensors, each over the dimensions that the names of its
//!    block choose; queries replace views; CTEs that are tensor blocks are removed.
//! 2. Names take the spelling of the column they resolve to: an exact match, else a unique case-insensitive one.
//! 3. `//` and `^` become functions of this crate, `month(t)` becomes `date_part('month', t)`, functions that only
//!    tensors have are calls with a text; the name of an item without an alias is its source text.
//! 4. Numeric items of a block without `FROM` become columns of a tensor block, so that `7 / 2` follows NumPy.
//! 5. Subqueries replace joins with an alias, and blocks whose `ORDER BY` names a column that an alias hides; UNNEST
//!    replaces `unnest(…)` in FROM and series over columns.
//! 6. Expressions replace aliases of items in WHERE and in later items, windows their names; tensor syntax is rejected.

mod aggregates;
mod aliases;
mod casts;
mod columns;
pub(super) mod fields;
mod frames;
mod group_keys;
mod headings;
mod intervals;
mod items;
mod known;
mod nested;
mod numbers;
mod order_keys;
mod ours;
mod spelling;
mod subscripts;
mod surface;
mod tensors;
mod unnested;
mod used;
mod views;
mod windows;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::ops::ControlFlow;
use std::sync::Arc;
use tessera_frontend::walk::walk_mut;

use datafusion::datasource::DefaultTableSource;
use datafusion::logical_expr::TableSource;
use sqlparser::ast::{
    Expr, Ident, ObjectName, OrderBy, Query, Select, SelectItem, SetExpr, TableAlias, TableFactor,
    Value, ValueWithSpan, VisitorMut,
};

use super::cube::Cube;
use super::error::Call;
use super::parts::Written;
use super::table::{CellSource, CellTable, Named};
use super::{CellRelation, CellTables, Density};
pub(super) use aggregates::{ARG_MAX, ARG_MIN, TOP_MAX, TOP_MIN};
use columns::Columns;
pub(super) use items::{OWN_NAME, given_twice, has_columns, name_of};
use known::Known;
pub(super) use ours::{RENAMED, WRITTEN, call};
use spelling::Spelling;
use subscripts::Subscript;
use surface::{are_rows, span_is_operator};
use tessera_frontend::ast::{self, Relation};
use tessera_frontend::error::{Error, Position};
use tessera_frontend::scope::Scope;
use tessera_frontend::{interrupt, parameters, seasons};
use used::Used;
pub(super) use used::{constraint, constraint_mut};
use views::{Entered, Views};

/// Names of the functions that implement operators: `//`.
pub(crate) const FLOOR_DIVIDE: &str = "tessera_floor_divide";
/// `^`.
pub(crate) const POWER: &str = "tessera_power";

pub(crate) struct Prepared {
    /// Each table under its name in the query.
    pub(crate) tables: BTreeMap<String, Arc<dyn TableSource>>,
    /// The position of each text of the query (the last of equal ones): DataFusion's literals have no position.
    pub(crate) texts: BTreeMap<String, Position>,
    /// The calls of functions in the query: DataFusion's errors about their arguments have no position.
    pub(crate) calls: Vec<Call>,
    /// Variables that a misspelt name may mean: the tables contain only those along their dimensions.
    pub(crate) variables: BTreeSet<String>,
    pub(crate) aliases: BTreeSet<String>,
}

impl Prepared {
    /// True if no relation is an array, whose cells may stay dense.
    pub(super) fn reads_only_files(&self) -> bool {
        self.tables.values().all(|table| table.is::<DefaultTableSource>())
    }
}

/// Prepares a query; `because` is the clause that made its block a cell block, for errors.
pub(crate) fn prepare(
    query: &Query,
    tables: &dyn CellTables,
    because: &str,
    density: Density,
    text: u64,
) -> Result<(Query, Prepared), Error> {
    let pass = |views| Relations {
        text,
        entering: None,
        joined: None,
        views,
        catalog: tables,
        because,
        density,
        blocks: Vec::new(),
        scopes: Vec::new(),
        tables: BTreeMap::new(),
        names: BTreeSet::new(),
        texts: BTreeMap::new(),
        calls: Vec::new(),
        subscripts: Vec::new(),
        variables: BTreeSet::new(),
        expressions: 0,
        aliases: BTreeSet::new(),
        written: Written::default(),
    };
    let mut named = query.clone();
    headings::name(&mut named);
    let (mut prepared, mut first) = (named.clone(), pass(Views::default()));
    let walk = |query: &mut Query, pass: &mut Relations<'_>| {
        walk_mut(query, pass).map_break(|error| pass.in_views(error))
    };
    let walked = match walk(&mut prepared, &mut first) {
        ControlFlow::Break(_) if first.views.are_too_many() => {
            let mut second = pass(Views::as_ctes());
            prepared = named;
            walk(&mut prepared, &mut second).map_continue(|()| second)
        }
        walked => walked.map_continue(|()| first),
    };
    let pass = match walked {
        ControlFlow::Break(error) => return Err(error),
        ControlFlow::Continue(pass) => pass,
    };
    let Relations {
        tables, mut names, texts, calls, subscripts, variables, aliases, views, ..
    } = pass;
    if let Some(error) = subscripts::of_tensors(subscripts, &tables) {
        return Err(error);
    }
    views.define(&mut prepared);
    for table in tables.values() {
        names.extend(table.schema().fields().iter().map(|f| f.name().clone()));
    }
    let _ = walk_mut(&mut prepared, &mut Spelling::new(&names));
    Ok((prepared, Prepared { tables, texts, calls, variables, aliases }))
}

/// A CTE in scope.
enum Cte {
    /// A CTE of rows, which DataFusion plans.
    Rows(Columns),
    /// A tensor block, already removed from the query.
    Tensor(Arc<Cube>),
    /// A CTE that waits for an island, which runs only if the CTE is referenced: its query and the query's scope.
    Waiting(Box<(Query, TableAlias, Scope)>),
}

struct QueryCtes {
    ctes: BTreeMap<String, Cte>,
    /// The same CTEs as written.
    written: Scope,
    /// The scopes of the definitions that stay in the query, in order, until they are visited: a CTE that
    /// saw itself would be planned without end.
    definitions: VecDeque<Scope>,
    /// The view, if this is the query of one: it sees no CTEs around it.
    view: Option<Entered>,
    /// The ORDER BY of a query that is one block, until the block is visited.
    order: Option<OrderBy>,
    /// The relations of that block, once it is visited.
    known: Vec<Known>,
    /// [`Relations::expressions`] around the query.
    expressions: usize,
}

struct Block {
    used: Used,
    known: Vec<Known>,
}

struct Relations<'a> {
    catalog: &'a dyn CellTables,
    because: &'a str,
    density: Density,
    /// The open blocks, innermost last.
    blocks: Vec<Block>,
    /// CTEs of each open query, innermost last.
    scopes: Vec<QueryCtes>,
    text: u64,
    /// The view whose query is visited next.
    entering: Option<Entered>,
    /// The names used of the block that is visited next, if it replaces a join with an alias.
    joined: Option<Used>,
    views: Views,
    tables: BTreeMap<String, Arc<dyn TableSource>>,
    names: BTreeSet<String>,
    texts: BTreeMap<String, Position>,
    calls: Vec<Call>,
    subscripts: Vec<Subscript>,
    variables: BTreeSet<String>,
    /// Number of open expressions, and of relations that see those beside them.
    expressions: usize,
    aliases: BTreeSet<String>,
    written: Written,
}

impl VisitorMut for Relations<'_> {
    type Break = Error;

    fn pre_visit_query(&mut self, query: &mut Query) -> ControlFlow<Error> {
        if let SetExpr::Select(select) = &mut *query.body {
            items::name_chosen(select);
        }
        casts::apart(query);
        let view = self.entering.take();
        let mut written = match (&view, self.scopes.last_mut()) {
            (Some(view), _) => Scope::of(view.text),
            (None, Some(outer)) => {
                outer.definitions.pop_front().unwrap_or_else(|| outer.written.clone())
            }
            (None, None) => Scope::of(self.text),
        };
        written.enter(query.with.as_ref());
        let windows = match (&*query.body, &mut query.order_by) {
            (SetExpr::Select(select), Some(order)) => {
                windows::expand_keys(order, select, &mut self.written)
            }
            _ => Ok(()),
        };
        let order = match &*query.body {
            SetExpr::Select(_) => query.order_by.clone(),
            _ => None,
        };
        let (known, definitions, expressions) = (Vec::new(), VecDeque::new(), self.expressions);
        if view.is_some() {
            self.expressions = 0;
        }
        let ctes = BTreeMap::new();
        self.scopes.push(QueryCtes { ctes, written, definitions, view, order, known, expressions });
        if let Err(error) = windows {
            return ControlFlow::Break(error);
        }
        let Some(with) = &mut query.with else { return ControlFlow::Continue(()) };
        let (mut kept, mut seen) = (Vec::new(), VecDeque::new());
        for cte in std::mem::take(&mut with.cte_tables) {
            let name = cte.alias.name.value.clone();
            self.names.extend(nested::column_names(&cte.alias));
            let relation = Relation::Subquery { query: &cte.query, alias: Some(&cte.alias) };
            let found = self.catalog.relation(&relation, self.scope());
            let before = self.scope().clone();
            if let Some(level) = self.scopes.last_mut() {
                level.written.define(&cte);
            }
            let entry = match found {
                Err(Error::Waiting) => Cte::Waiting(Box::new((*cte.query, cte.alias, before))),
                Err(error) => return ControlFlow::Break(error),
                Ok(CellRelation::Cube(cube)) => Cte::Tensor(cube),
                Ok(_) => {
                    let columns = match cte.alias.columns.is_empty() {
                        true => self.given(&cte.query),
                        false => None,
                    };
                    kept.push(cte);
                    // A recursive CTE sees itself.
                    seen.push_back(if with.recursive { self.scope().clone() } else { before });
                    Cte::Rows(columns)
                }
            };
            self.names.insert(name.clone());
            if let Some(level) = self.scopes.last_mut() {
                level.ctes.insert(name, entry);
            }
        }
        if kept.is_empty() {
            query.with = None;
        } else {
            with.cte_tables = kept;
        }
        if let Some(level) = self.scopes.last_mut() {
            level.definitions = seen;
        }
        ControlFlow::Continue(())
    }

    fn post_visit_query(&mut self, query: &mut Query) -> ControlFlow<Error> {
        let Some(level) = self.scopes.pop() else { return ControlFlow::Continue(()) };
        self.expressions = level.expressions;
        let mut resolved = ControlFlow::Continue(());
        if matches!(&*query.body, SetExpr::Select(_))
            && let Some(order) = &mut query.order_by
        {
            resolved = known::resolve(order, &level.known);
            order_keys::apart(query);
        }
        if level.view.is_some() {
            views::remove_positions(query);
        }
        resolved
    }

    fn pre_visit_select(&mut self, select: &mut Select) -> ControlFlow<Error> {
        items::name_chosen(select);
        if let Err(error) = windows::expand(select, &mut self.written) {
            return ControlFlow::Break(error);
        }
        // The columns of an outer query are names, too.
        if self.expressions == 0 {
            let mut written = self.written;
            let columns = |select: &Select| self.of_relations(select);
            if let Err(error) = aliases::replace(select, columns, &mut written) {
                return ControlFlow::Break(error);
            }
            self.written = written;
        }
        if let Some(error) = items::refused(select) {
            return ControlFlow::Break(error);
        }
        items::spell_joins(select);
        fields::of_relations(select);
        group_keys::rewrite(select, |select| self.of_relations(select));
        numbers::apart(select);
        casts::name(select);
        for item in &select.projection {
            if let SelectItem::ExprWithAlias { alias, .. } = item {
                self.names.insert(alias.value.clone());
                self.aliases.insert(alias.value.clone());
            }
            if let Some((dim, _)) = ast::bracket_dim(item) {
                return ControlFlow::Break(
                    Error::unsupported(format!("the item `[{dim}]`"), Position::of_span(dim.span))
                        .with_hint(format!("write `{dim}` to get rows")),
                );
            }
        }
        let order = self.scopes.last_mut().and_then(|level| level.order.take());
        let used = match self.joined.take() {
            Some(used) => used,
            None => Used::of(select, order.as_ref(), &|inner| self.columns(inner)),
        };
        self.blocks.push(Block { used, known: Vec::new() });
        ControlFlow::Continue(())
    }

    fn post_visit_select(&mut self, select: &mut Select) -> ControlFlow<Error> {
        let Some(Block { known, .. }) = self.blocks.pop() else {
            return ControlFlow::Continue(());
        };
        known::keep_names(select, &known);
        let resolved = known::resolve(select, &known);
        self.group_casts(select);
        if let Some(level) = self.scopes.last_mut() {
            level.known = known;
        }
        resolved
    }

    fn post_visit_table_factor(&mut self, factor: &mut TableFactor) -> ControlFlow<Error> {
        self.expressions -= usize::from(is_lateral(factor));
        ControlFlow::Continue(())
    }

    fn pre_visit_table_factor(&mut self, factor: &mut TableFactor) -> ControlFlow<Error> {
        self.expressions += usize::from(is_lateral(factor));
        if self.nested(factor) || self.unnest(factor) {
            return ControlFlow::Continue(());
        }
        match self.replace(factor) {
            Ok(()) => ControlFlow::Continue(()),
            Err(error) => ControlFlow::Break(error),
        }
    }

    fn pre_visit_expr(&mut self, expr: &mut Expr) -> ControlFlow<Error> {
        self.expressions += 1;
        if let Err(error) = interrupt::check() {
            return ControlFlow::Break(error);
        }
        let call = tensors::rewritten(expr).or_else(|| intervals::of_list(expr));
        if let Some(call) = call.or_else(|| fields::of_value(expr)) {
            *expr = call;
        }
        casts::keep_digits(expr);
        if let Some(element) = subscripts::element(expr) {
            if let (Some(column), Some(error)) = (subscripts::column(expr), self.refuse(expr)) {
                self.subscripts.push(Subscript { column, error });
            }
            *expr = element;
        } else if let Some(error) = self.refuse(expr) {
            return ControlFlow::Break(error);
        }
        match seasons::numbered(expr) {
            Ok(Some(new)) => *expr = new,
            Ok(None) => {}
            Err(error) => return ControlFlow::Break(error),
        }
        ControlFlow::Continue(())
    }

    fn pre_visit_value(&mut self, value: &mut ValueWithSpan) -> ControlFlow<Error> {
        if let (Value::SingleQuotedString(text), Some(place)) =
            (&value.value, Position::of_span(value.span))
            && !self.is_in_view()
        {
            self.texts.insert(text.clone(), place);
        }
        if let Value::Placeholder(name) = &value.value {
            return ControlFlow::Break(parameters::missing(name, Position::of_span(value.span)));
        }
        ControlFlow::Continue(())
    }

    fn post_visit_expr(&mut self, expr: &mut Expr) -> ControlFlow<Error> {
        self.expressions -= 1;
        let written = ast::function_name(expr).cloned();
        ours::rewrite(expr, self.catalog.now_us());
        if let Some(written) = written
            && let Some(position) = Position::of_span(written.span)
            && !self.is_in_view()
        {
            let planned = ast::function_name(expr).map_or("date_part", |name| name.value.as_str());
            let (written, planned) = (written.value, planned.to_string());
            self.calls.push(Call { written, planned, position });
        }
        ControlFlow::Continue(())
    }
}

impl Relations<'_> {
    /// Replaces a relation that SQL does not have by a table.
    fn replace(&mut self, factor: &mut TableFactor) -> Result<(), Error> {
        let relation = ast::relation(factor);
        let (found, natural) = match &relation {
            Relation::Other(_) => return Ok(()),
            Relation::Subquery { .. } => (self.catalog.relation(&relation, self.scope())?, None),
            Relation::Name { name, .. } => {
                let last = name.0.last().and_then(|part| part.as_ident()).cloned();
                let cte = match name.0.as_slice() {
                    [_] => last.as_ref().and_then(|ident| self.cte(&ident.value)),
                    _ => None,
                };
                match cte {
                    Some(Cte::Rows(_)) => return Ok(()),
                    Some(Cte::Tensor(cube)) => (CellRelation::Cube(cube.clone()), last),
                    Some(Cte::Waiting(cte)) => (self.waited_for(cte)?, last),
                    None => (self.catalog.relation(&relation, self.scope())?, last),
                }
            }
            Relation::Cells { expr: Expr::Identifier(name), .. }
                if let Some(cte) = self.cte(&name.value) =>
            {
                match cte {
                    Cte::Tensor(cube) => (CellRelation::Cube(cube.clone()), Some(name.clone())),
                    Cte::Waiting(cte) => (self.waited_for(cte)?, Some(name.clone())),
                    Cte::Rows(_) => return Err(are_rows(name)),
                }
            }
            _ => (self.catalog.relation(&relation, self.scope())?, None),
        };
        let is_subquery = matches!(relation, Relation::Subquery { .. });
        let mut alias = alias_of(factor);
        if let Some(alias) = &mut alias {
            self.names.extend(nested::column_names(alias));
            // The columns of a subquery of tensors have their new names already.
            if is_subquery && matches!(found, CellRelation::Cube(_)) {
                alias.columns.clear();
            }
            self.names.insert(alias.name.value.clone());
        } else if let Some(natural) = &natural {
            self.names.insert(natural.value.clone());
        }
        let also;
        let (source, name): (Arc<dyn TableSource>, Ident) = match found {
            CellRelation::Sql => return Ok(()),
            CellRelation::Query { query, text } => {
                let name = natural.as_ref().map_or_else(String::new, |name| name.value.clone());
                let position = natural.as_ref().and_then(|name| Position::of_span(name.span));
                let alias = alias.or_else(|| natural.map(plain_alias));
                *factor = self.view(query, Entered { text, name, position }, alias)?;
                return Ok(());
            }
            CellRelation::Rows { source, name, also: others } => {
                also = others;
                (source, natural.unwrap_or_else(|| Ident::new(name)))
            }
            CellRelation::Cube(cube) => {
                let name = natural.unwrap_or_else(|| Ident::new(cube.name.clone()));
                let called = alias.as_ref().map_or(&name, |alias| &alias.name).value.as_str();
                let is_renamed = alias.as_ref().is_some_and(|alias| !alias.columns.is_empty());
                let table = match self.blocks.last().filter(|_| !is_renamed) {
                    Some(block) => CellTable::new(&cube, &block.used.of_relation(called))?,
                    None => CellTable::new(&cube, &AllNamed)?,
                };
                also = cube.also.clone();
                self.variables.extend(cube.variables.iter().map(|v| v.name.to_string()));
                (Arc::new(CellSource::new(Arc::new(table), self.density)), name)
            }
        };
        if let Some(block) = self.blocks.last_mut()
            && alias.as_ref().is_none_or(|alias| alias.columns.is_empty())
        {
            let called = alias.as_ref().map_or(&name, |alias| &alias.name).value.clone();
            block.known.push(Known::new(called, &*source, also));
        }
        self.names.insert(name.value.clone());
        let table = self.free_name();
        self.tables.insert(table.clone(), source);
        let alias = Some(alias.unwrap_or_else(|| plain_alias(name)));
        *factor = table_factor(Ident::new(table), alias);
        Ok(())
    }

    /// Retries a CTE that waits for an island, now that it is referenced.
    fn waited_for(&self, cte: &(Query, TableAlias, Scope)) -> Result<CellRelation, Error> {
        let (query, alias, scope) = cte;
        self.catalog.relation(&Relation::Subquery { query, alias: Some(alias) }, scope)
    }

    fn cte(&self, name: &str) -> Option<&Cte> {
        for QueryCtes { ctes, view, .. } in self.scopes.iter().rev() {
            let near = || ctes.iter().find(|(k, _)| k.eq_ignore_ascii_case(name)).map(|(_, v)| v);
            if let Some(found) = ctes.get(name).or_else(near) {
                return Some(found);
            }
            if view.is_some() {
                return None;
            }
        }
        None
    }

    /// A table name that no CTE in scope has: such a CTE would shadow the table.
    fn free_name(&self) -> String {
        let is_cte = |name: &str| {
            let mut ctes = self.scopes.iter().flat_map(|level| level.ctes.keys());
            ctes.any(|cte| cte.eq_ignore_ascii_case(name))
        };
        let mut name = format!("cells_{}", self.tables.len());
        while is_cte(&name) || self.tables.contains_key(&name) {
            name.push('_');
        }
        name
    }

    /// The CTEs, as written, that the innermost open query sees.
    fn scope(&self) -> &Scope {
        static NOTHING: std::sync::LazyLock<Scope> = std::sync::LazyLock::new(Scope::default);
        self.scopes.last().map_or(&NOTHING, |level| &level.written)
    }
}

/// A block whose used names are unknown, so that all columns count as used.
struct AllNamed;

impl Named for AllNamed {
    fn all(&self) -> bool {
        true
    }

    fn is_named(&self, _: &str) -> bool {
        false
    }
}

fn is_lateral(factor: &TableFactor) -> bool {
    matches!(factor, TableFactor::Derived { lateral: true, .. })
}

fn alias_of(factor: &TableFactor) -> Option<TableAlias> {
    match factor {
        TableFactor::Table { alias, .. }
        | TableFactor::Derived { alias, .. }
        | TableFactor::NestedJoin { alias, .. } => alias.clone(),
        _ => None,
    }
}

fn table_factor(name: Ident, alias: Option<TableAlias>) -> TableFactor {
    TableFactor::Table {
        name: ObjectName::from(vec![name]),
        alias,
        args: None,
        with_hints: vec![],
        version: None,
        with_ordinality: false,
        partitions: vec![],
        json_path: None,
        sample: None,
        index_hints: vec![],
    }
}

fn plain_alias(name: Ident) -> TableAlias {
    TableAlias { explicit: true, name, columns: vec![], at: None }
}
