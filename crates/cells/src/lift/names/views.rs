//! Views of cells: the query of each is inlined at every reference. Views of views can double with each step, so
//! if there are too many, each view becomes a CTE instead.

use std::collections::BTreeMap;
use std::ops::ControlFlow;

use sqlparser::ast::helpers::attached_token::AttachedToken;
use sqlparser::ast::{Cte, Ident, Query, TableAlias, TableFactor, With};

use super::{Relations, plain_alias, table_factor};
use tessera_frontend::error::{Error, Position};
use tessera_frontend::walk::walk_mut;

/// Maximum inlined views of one statement.
const VIEWS_MAX: usize = 1024;

/// A view whose query is visited.
pub(super) struct Entered {
    pub(super) text: u64,
    pub(super) name: String,
    /// Where it is referenced.
    pub(super) position: Option<Position>,
}

/// The replacements of views of cells.
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
    /// Replaces views by CTEs.
    pub(super) fn as_ctes() -> Self {
        Views { are_ctes: true, ..Views::default() }
    }

    pub(super) fn are_too_many(&self) -> bool {
        self.written > VIEWS_MAX
    }

    /// Adds the CTEs of views to the query.
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

impl Relations<'_> {
    /// Adds the views that are being visited to an error.
    pub(super) fn in_views(&self, error: Error) -> Error {
        let views = self.scopes.iter().rev().filter_map(|level| level.view.as_ref());
        views.fold(error, |error, view| error.in_view(&view.name, view.position))
    }

    /// The replacement of a view of cells.
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
