//! Views of cells: the query of each is inlined at every reference. Views of views can double with each step, so
//! if there are too many, each view becomes a CTE instead.

use std::collections::BTreeMap;
use std::ops::ControlFlow;

use sqlparser::ast::helpers::attached_token::AttachedToken;
use sqlparser::ast::{Cte, Ident, Query, TableAlias, TableFactor, With};

use super::{Relations, plain_alias, table_factor};
use tessera_frontend::error::Error;
use tessera_frontend::walk::walk_mut;

/// Maximum inlined views of one statement.
const VIEWS_MAX: usize = 1024;

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
    /// The replacement of a view of cells.
    pub(super) fn view(
        &mut self,
        mut query: Box<Query>,
        text: u64,
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
            self.entering = Some(text);
            return Ok(TableFactor::Derived {
                lateral: false,
                subquery: query,
                alias,
                sample: None,
            });
        }
        if let Some(name) = self.views.names.get(&text) {
            return Ok(table_factor(name.clone(), alias));
        }
        let outer = (std::mem::take(&mut self.blocks), std::mem::take(&mut self.scopes));
        self.entering = Some(text);
        let walked = walk_mut(&mut *query, self);
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
