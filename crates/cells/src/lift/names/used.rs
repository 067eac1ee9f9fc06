//! The names that a block uses: they decide for which cells each of its relations has rows.
//!
//! ```text
//! SELECT sum(orog) FROM era5 WHERE lat > 50      orog, lat:  the cells of orog [lat, lon]
//! SELECT count(*)  FROM era5 WHERE lat > 50      *:          the cells of [time, lat, lon]
//! ```
//! Names in subqueries of expressions count too if they refer to this block: `x.lat`, or a name without an inner match.

use std::collections::BTreeSet;
use std::ops::ControlFlow;
use tessera_frontend::ast;
use tessera_frontend::walk::walk;

use sqlparser::ast::{
    Expr, FunctionArg, FunctionArgExpr, FunctionArguments, JoinConstraint, JoinOperator, OrderBy,
    Query, Select, SelectItem, SelectItemQualifiedWildcardKind, SetExpr, TableAlias, TableFactor,
    TableWithJoins, Visitor,
};

use super::super::table::Named;
use super::unnested::Unnested;

/// The names that a block uses, in lower case.
#[derive(Debug, Default)]
pub(super) struct Used {
    /// True for `*`, `count(*)`, `COLUMNS(…)` or a NATURAL join: all variables are used.
    all: bool,
    all_of: BTreeSet<String>,
    /// Names, with their qualifier if they have one.
    names: BTreeSet<(Option<String>, String)>,
}

/// The columns of an inner block, in lower case; `None` if they are unknown.
pub(super) type Provides<'a> = &'a dyn Fn(&Select) -> Option<BTreeSet<String>>;

impl Used {
    /// Collects the names in a block's own clauses and in the ORDER BY of its query.
    pub(super) fn of(select: &Select, order: Option<&OrderBy>, provides: Provides<'_>) -> Self {
        let mut names = Names { used: Used::default(), inner: Vec::new(), provides, skipped: None };
        for item in &select.projection {
            match item {
                SelectItem::Wildcard(_) => names.used.all = true,
                SelectItem::QualifiedWildcard(
                    SelectItemQualifiedWildcardKind::ObjectName(name),
                    _,
                ) => {
                    let last = name.0.last().and_then(|part| part.as_ident());
                    names.used.all_of.extend(last.map(|ident| ident.value.to_lowercase()));
                }
                _ => {}
            }
        }
        select.from.iter().for_each(|from| names.joins(from));
        let aliases: BTreeSet<String> = select
            .projection
            .iter()
            .filter_map(|item| match item {
                SelectItem::ExprWithAlias { alias, .. } => Some(alias.value.to_lowercase()),
                _ => None,
            })
            .collect();
        // Relations are separate blocks.
        let _ = walk(&select.distinct, &mut names);
        let _ = walk(&select.projection, &mut names);
        let _ = walk(&select.lateral_views, &mut names);
        let _ = walk(&select.prewhere, &mut names);
        let _ = walk(&select.selection, &mut names);
        let _ = walk(&select.group_by, &mut names);
        let _ = walk(&select.named_window, &mut names);
        // Here names of items take precedence over columns.
        names.skipped = Some(aliases);
        let _ = walk(&select.having, &mut names);
        let _ = walk(&select.qualify, &mut names);
        let _ = order.map(|order| walk(order, &mut names));
        names.used
    }

    /// All names.
    pub(super) fn everything() -> Self {
        Used { all: true, ..Used::default() }
    }

    /// The names that the block uses of the relations inside a join with an alias.
    pub(super) fn inside(
        &self,
        joins: &TableWithJoins,
        alias: &TableAlias,
        provides: Provides<'_>,
    ) -> Self {
        let of = self.of_relation(&alias.name.value);
        let is_of = |name: &Option<String>| name.as_ref().is_none_or(|name| *name == of.relation);
        let own = self.names.iter().filter(|(relation, _)| is_of(relation));
        let used = Used {
            // A list of names renames all columns.
            all: of.all() || !alias.columns.is_empty(),
            all_of: BTreeSet::new(),
            names: own.map(|(_, name)| (None, name.clone())).collect(),
        };
        let mut names = Names { used, inner: Vec::new(), provides, skipped: None };
        names.joins(joins);
        names.used
    }

    /// The names that the block uses of a relation, given the relation's name in the block.
    pub(super) fn of_relation(&self, relation: &str) -> OfRelation<'_> {
        OfRelation { used: self, relation: relation.to_lowercase() }
    }
}

/// The names that a block uses of one of its relations.
pub(super) struct OfRelation<'a> {
    used: &'a Used,
    relation: String,
}

impl Named for OfRelation<'_> {
    fn all(&self) -> bool {
        self.used.all || self.used.all_of.contains(&self.relation)
    }

    fn is_named(&self, column: &str) -> bool {
        let column = column.to_lowercase();
        self.used.names.contains(&(None, column.clone()))
            || self.used.names.contains(&(Some(self.relation.clone()), column))
    }
}

struct Names<'a> {
    used: Used,
    /// The columns of the open inner blocks.
    inner: Vec<Option<BTreeSet<String>>>,
    provides: Provides<'a>,
    /// Names of items, in clauses where they take precedence over columns.
    skipped: Option<BTreeSet<String>>,
}

impl Names<'_> {
    fn joins(&mut self, from: &TableWithJoins) {
        self.inside(&from.relation);
        for join in &from.joins {
            self.inside(&join.relation);
            self.join(&join.join_operator);
        }
    }

    fn inside(&mut self, factor: &TableFactor) {
        if let Some(unnested) = Unnested::of(factor) {
            let _ = walk(&unnested.list, self);
        }
        // A join with an alias is a block of its own.
        if let TableFactor::NestedJoin { table_with_joins, alias: None } = factor {
            self.joins(table_with_joins);
        }
    }

    fn join(&mut self, operator: &JoinOperator) {
        if let JoinOperator::AsOf { match_condition, .. } = operator {
            let _ = walk(match_condition, self);
        }
        let Some(constraint) = constraint(operator) else { return };
        match constraint {
            JoinConstraint::On(condition) => {
                let _ = walk(condition, self);
            }
            JoinConstraint::Using(columns) => {
                let last = columns.iter().filter_map(|name| name.0.last()?.as_ident());
                let last = last.map(|ident| (None, ident.value.to_lowercase()));
                self.used.names.extend(last);
            }
            JoinConstraint::Natural => self.used.all = true,
            JoinConstraint::None => {}
        }
    }

    fn add(&mut self, relation: Option<&str>, name: &str) {
        let name = name.to_lowercase();
        if relation.is_none() {
            let is_inside = |known: &Option<BTreeSet<String>>| {
                known.as_ref().is_none_or(|names| names.contains(&name))
            };
            let is_item = self.inner.is_empty()
                && self.skipped.as_ref().is_some_and(|names| names.contains(&name));
            if is_item || self.inner.iter().any(is_inside) {
                return;
            }
        }
        self.used.names.insert((relation.map(str::to_lowercase), name));
    }
}

/// The condition of a join, if it may have one.
pub(in crate::lift) fn constraint(operator: &JoinOperator) -> Option<&JoinConstraint> {
    use JoinOperator::*;
    match operator {
        Join(c) | Inner(c) | Left(c) | LeftOuter(c) | Right(c) | RightOuter(c) | FullOuter(c)
        | CrossJoin(c) | Semi(c) | LeftSemi(c) | RightSemi(c) | Anti(c) | LeftAnti(c)
        | RightAnti(c) | StraightJoin(c) => Some(c),
        AsOf { constraint, .. } => Some(constraint),
        _ => None,
    }
}

/// As [`constraint`], to change it; `None` for ASOF joins.
pub(in crate::lift) fn constraint_mut(operator: &mut JoinOperator) -> Option<&mut JoinConstraint> {
    use JoinOperator::*;
    match operator {
        Join(c) | Inner(c) | Left(c) | LeftOuter(c) | Right(c) | RightOuter(c) | FullOuter(c)
        | CrossJoin(c) | Semi(c) | LeftSemi(c) | RightSemi(c) | Anti(c) | LeftAnti(c)
        | RightAnti(c) | StraightJoin(c) => Some(c),
        _ => None,
    }
}

impl Visitor for Names<'_> {
    type Break = ();

    fn pre_visit_query(&mut self, query: &Query) -> ControlFlow<()> {
        let mut blocks = Vec::new();
        selects(&query.body, &mut blocks);
        let mut known = Some(BTreeSet::new());
        for block in blocks {
            known = known.zip((self.provides)(block)).map(|(mut all, more)| {
                all.extend(more);
                all
            });
        }
        self.inner.push(known);
        ControlFlow::Continue(())
    }

    fn post_visit_query(&mut self, _: &Query) -> ControlFlow<()> {
        self.inner.pop();
        ControlFlow::Continue(())
    }

    fn pre_visit_expr(&mut self, expr: &Expr) -> ControlFlow<()> {
        match expr {
            Expr::Identifier(ident) => self.add(None, &ident.value),
            Expr::CompoundIdentifier(parts) => {
                let parts: Vec<&str> = parts.iter().map(|part| part.value.as_str()).collect();
                // `relation.column`, and variables that are called `record.field`.
                if let [relation, column @ ..] = parts.as_slice()
                    && !column.is_empty()
                {
                    self.add(Some(relation), &column.join("."));
                }
                if let [.., relation, column] = parts.as_slice() {
                    self.add(Some(relation), column);
                }
                self.add(None, &parts.join("."));
            }
            Expr::Function(_) if ast::columns(expr).is_some() => {
                self.used.all |= self.inner.is_empty();
            }
            Expr::Function(function) => {
                if let FunctionArguments::List(list) = &function.args
                    && self.inner.is_empty()
                    && list
                        .args
                        .iter()
                        .any(|arg| matches!(arg, FunctionArg::Unnamed(FunctionArgExpr::Wildcard)))
                {
                    self.used.all = true;
                }
            }
            _ => {}
        }
        ControlFlow::Continue(())
    }
}

/// The select blocks of a query's set operations.
fn selects<'a>(body: &'a SetExpr, out: &mut Vec<&'a Select>) {
    match body {
        SetExpr::Select(select) => out.push(select),
        SetExpr::SetOperation { left, right, .. } => {
            selects(left, out);
            selects(right, out);
        }
        _ => {}
    }
}
