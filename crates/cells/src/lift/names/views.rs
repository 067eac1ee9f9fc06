//! Views of cells: the query of each takes its place wherever it is named. Views of views can double with each step, so
//! where they become too many each is a CTE that is named instead.

use std::collections::BTreeMap;
use std::ops::ControlFlow;

use sqlparser::ast::helpers::attached_token::AttachedToken;
use sqlparser::ast::{Cte, Ident, Query, TableAlias, TableFactor, With};

use super::{Relations, plain_alias, table_factor};
use tessera_frontend::error::Error;
use tessera_frontend::walk::walk_mut;

/// The most views whose queries take their places in one statement.
const VIEWS_MAX: usize = 1024;

/// What stands for the views of cells.
#[derive(Default)]
pub(super) struct Views {
    are_ctes: bool,
    /// Queries that were written out so far.
    written: usize,
    /// The name of the CTE of each view, by its text.
    names: BTreeMap<u64, Ident>,
    /// Each behind those that it reads.
    ctes: Vec<Cte>,
}

impl Views {
    /// Views that are CTEs.
    pub(super) fn as_ctes() -> Self {
        Views { are_ctes: true, ..Views::default() }
    }

    pub(super) fn are_too_many(&self) -> bool {
        self.written > VIEWS_MAX
    }

    /// Gives the query the CTEs that stand for views.
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
    /// What takes the place of a view of cells.
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
        // No name that a query has for a CTE of its own, unless in quotes.
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
