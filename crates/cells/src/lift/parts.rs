//! The size of an expression whose names are written out.

use std::collections::BTreeMap;
use std::ops::ControlFlow;

use sqlparser::ast::{Expr, Query, TableFactor, Visitor};
use tessera_frontend::error::{Error, Position};
use tessera_frontend::limits::DEPTH_MAX;
use tessera_frontend::walk::walk;

use super::expansion::PARTS_MAX;

#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Parts {
    /// Its nodes, and the relations of its subqueries.
    pub(super) count: u64,
    /// The longest way to a node.
    pub(super) depth: u64,
}

impl Parts {
    /// The size of an expression in which names stand for expressions of these sizes.
    pub(super) fn of(expr: &Expr, names: &BTreeMap<String, Parts>) -> Self {
        let mut count = Count { names, open: 0, queries: 0, parts: Parts::default() };
        let _ = walk(expr, &mut count);
        count.parts
    }

    /// Rejects an expression that is larger or deeper than the text may be; `at` has its position.
    pub(super) fn check(self, at: &Expr) -> Result<(), Error> {
        let position = Position::of(at);
        if self.count > PARTS_MAX {
            return Err(Error::TooComplex {
                what: format!("an expression has {} parts once it is written out", self.count),
                limit: PARTS_MAX as usize,
                position,
            });
        }
        if self.depth > DEPTH_MAX as u64 {
            return Err(Error::NestingTooDeep {
                what: format!("an expression is {} deep once it is written out", self.depth),
                limit: DEPTH_MAX,
                position,
            });
        }
        Ok(())
    }
}

/// Maximum nodes that rewrites of one query write out.
const WRITTEN_MAX: u64 = 10 * PARTS_MAX;

/// The nodes that rewrites of one query have written out.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Written(u64);

impl Written {
    /// Adds an expression of that size; `at` has its position.
    pub(super) fn add(&mut self, size: Parts, at: &Expr) -> Result<(), Error> {
        size.check(at)?;
        self.0 = self.0.saturating_add(size.count);
        if self.0 <= WRITTEN_MAX {
            return Ok(());
        }
        Err(Error::TooComplex {
            what: format!("the expressions of the query have {} parts once written out", self.0),
            limit: WRITTEN_MAX as usize,
            position: Position::of(at),
        })
    }
}

struct Count<'a> {
    names: &'a BTreeMap<String, Parts>,
    open: u64,
    /// Number of open queries, in which names are their own.
    queries: u64,
    parts: Parts,
}

impl Visitor for Count<'_> {
    type Break = ();

    fn pre_visit_query(&mut self, _: &Query) -> ControlFlow<()> {
        self.queries += 1;
        ControlFlow::Continue(())
    }

    fn post_visit_query(&mut self, _: &Query) -> ControlFlow<()> {
        self.queries -= 1;
        ControlFlow::Continue(())
    }

    fn pre_visit_table_factor(&mut self, _: &TableFactor) -> ControlFlow<()> {
        self.parts.count = self.parts.count.saturating_add(1);
        ControlFlow::Continue(())
    }

    fn pre_visit_expr(&mut self, expr: &Expr) -> ControlFlow<()> {
        let named = match expr {
            Expr::Identifier(name) if self.queries == 0 => self.names.get(&name.value),
            _ => None,
        };
        let own = named.copied().unwrap_or(Parts { count: 1, depth: 0 });
        self.open += 1;
        self.parts.count = self.parts.count.saturating_add(own.count);
        self.parts.depth = self.parts.depth.max(self.open.saturating_add(own.depth));
        ControlFlow::Continue(())
    }

    fn post_visit_expr(&mut self, _: &Expr) -> ControlFlow<()> {
        self.open -= 1;
        ControlFlow::Continue(())
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]
    use super::*;
    use tessera_frontend::scope;

    fn expr(sql: &str) -> Expr {
        let sql = format!("SELECT 1 FROM t WHERE {sql}");
        let query = tessera_frontend::query_of(&sql).unwrap().unwrap();
        scope::innermost(&query).unwrap().selection.clone().unwrap()
    }

    #[test]
    fn names_count_as_their_expressions() {
        let names = BTreeMap::from([("a".to_string(), Parts { count: 7, depth: 4 })]);
        let size = |sql| {
            let Parts { count, depth } = Parts::of(&expr(sql), &names);
            (count, depth)
        };
        assert_eq!(size("b + 1 > 2"), (5, 3));
        assert_eq!(size("a + a > 2"), (1 + 1 + 7 + 7 + 1, 3 + 4));
        assert_eq!(size("b IN (SELECT a FROM t)"), (1 + 1 + 1 + 1, 2));
        assert!(Parts { count: 1 << 30, depth: 1 }.check(&expr("b")).is_err());
        assert!(Parts { count: 1, depth: 1 << 30 }.check(&expr("b")).is_err());
    }
}
