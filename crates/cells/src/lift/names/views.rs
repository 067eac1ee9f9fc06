//! Views of cells: the query of each is inlined at every reference. Views of views can double with each step, so
//! if there are too many, each view becomes a CTE instead.

use std::collections::BTreeMap;
use std::ops::ControlFlow;

use sqlparser::ast::helpers::attached_token::AttachedToken;
use sqlparser::ast::{
    Cte, Expr, Ident, JoinConstraint, ObjectName, ObjectNamePart, Query, Select, TableAlias,
    TableFactor, TableWithJoins, ValueWithSpan, VisitorMut, With,
};
use sqlparser::tokenizer::Span;

use super::{Relations, constraint_mut, plain_alias, table_factor};
use tessera_frontend::error::{Error, Position};
use tessera_frontend::walk::walk_mut;

const VIEWS_MAX: usize = 1024;

/// A view whose query is visited.
pub(super) struct Entered {
    pub(super) text: u64,
    pub(super) name: String,
    /// The position of the reference.
    pub(super) position: Option<Position>,
}

#[derive(Default)]
pub(super) struct Views {
    are_ctes: bool,
    /// Number of queries inlined so far.
    written: usize,
    /// The CTE's name of each view, by its text.
    names: BTreeMap<u64, Ident>,
    /// CTEs of views, each after those that it reads.
    ctes: Vec<Cte>,
}

impl Views {
    pub(super) fn as_ctes() -> Self {
        Views { are_ctes: true, ..Views::default() }
    }

    pub(super) fn are_too_many(&self) -> bool {
        self.written > VIEWS_MAX
    }

    pub(super) fn define(self, query: &mut Query) {
        if self.ctes.is_empty() {
            return;
        }
        let with = query.with.get_or_insert_with(|| With {
            with_token: AttachedToken::empty(),
            recursive: false,
            cte_tables: Vec::new(),
        });
        with.cte_tables.splice(0..0, self.ctes);
    }
}

/// Removes the positions of names and values in the query of a view, which are not positions in the statement.
pub(super) fn remove_positions(query: &mut Query) {
    let _ = walk_mut(query, &mut Placeless);
}

struct Placeless;

impl VisitorMut for Placeless {
    type Break = ();

    fn pre_visit_relation(&mut self, name: &mut ObjectName) -> ControlFlow<()> {
        remove(name);
        ControlFlow::Continue(())
    }

    fn pre_visit_select(&mut self, select: &mut Select) -> ControlFlow<()> {
        select.from.iter_mut().for_each(remove_of_joins);
        ControlFlow::Continue(())
    }

    fn pre_visit_expr(&mut self, expr: &mut Expr) -> ControlFlow<()> {
        match expr {
            Expr::Identifier(name) => name.span = Span::empty(),
            Expr::CompoundIdentifier(parts) => {
                parts.iter_mut().for_each(|part| part.span = Span::empty());
            }
            Expr::Function(call) => remove(&mut call.name),
            _ => {}
        }
        ControlFlow::Continue(())
    }

    fn pre_visit_value(&mut self, value: &mut ValueWithSpan) -> ControlFlow<()> {
        value.span = Span::empty();
        ControlFlow::Continue(())
    }
}

/// Removes the positions of the columns of USING.
fn remove_of_joins(from: &mut TableWithJoins) {
    let TableWithJoins { relation, joins } = from;
    for join in joins.iter_mut() {
        if let Some(JoinConstraint::Using(columns)) = constraint_mut(&mut join.join_operator) {
            columns.iter_mut().for_each(remove);
        }
    }
    let relations = joins.iter_mut().map(|join| &mut join.relation);
    for factor in std::iter::once(relation).chain(relations) {
        if let TableFactor::NestedJoin { table_with_joins, .. } = factor {
            remove_of_joins(table_with_joins);
        }
    }
}

fn remove(name: &mut ObjectName) {
    for part in &mut name.0 {
        if let ObjectNamePart::Identifier(part) = part {
            part.span = Span::empty();
        }
    }
}

impl Relations<'_> {
    pub(super) fn in_views(&self, error: Error) -> Error {
        let views = self.scopes.iter().rev().filter_map(|level| level.view.as_ref());
        views.fold(error, |error, view| error.in_view(&view.name, view.position))
    }

    /// True if the visited part belongs to a view, and not to the statement.
    pub(super) fn is_in_view(&self) -> bool {
        self.scopes.iter().any(|level| level.view.is_some())
    }

    pub(super) fn view(
        &mut self,
        mut query: Box<Query>,
        view: Entered,
        alias: Option<TableAlias>,
    ) -> Result<TableFactor, Error> {
        if !self.views.are_ctes {
            self.views.written += 1;
            if self.views.are_too_many() {
                return Err(Error::TooComplex {
                    what: format!("the query reads {} views of views", self.views.written),
                    limit: VIEWS_MAX,
                    position: None,
                });
            }
            self.entering = Some(view);
            return Ok(TableFactor::Derived {
                lateral: false,
                subquery: query,
                alias,
                sample: None,
            });
        }
        let text = view.text;
        if let Some(name) = self.views.names.get(&text) {
            return Ok(table_factor(name.clone(), alias));
        }
        let outer = (std::mem::take(&mut self.blocks), std::mem::take(&mut self.scopes));
        self.entering = Some(view);
        let walked = walk_mut(&mut *query, self).map_break(|error| self.in_views(error));
        (self.blocks, self.scopes) = outer;
        if let ControlFlow::Break(error) = walked {
            return Err(error);
        }
        // A name that no CTE of a query has, unless quoted.
        let name = Ident::new(format!("view:{}", self.views.ctes.len()));
        self.views.names.insert(text, name.clone());
        self.views.ctes.push(Cte {
            alias: plain_alias(name.clone()),
            query,
            from: None,
            materialized: None,
            closing_paren_token: AttachedToken::empty(),
        });
        Ok(table_factor(name, alias))
    }
}
