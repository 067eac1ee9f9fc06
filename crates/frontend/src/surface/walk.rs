//! A search through one expression that does not enter its subqueries.

use crate::walk::walk;
use std::ops::ControlFlow;

use sqlparser::ast::{Expr, Query, Visitor};

/// Returns the first result of `look` over the nodes in pre-order.
///
/// A subquery inside the expression is a block of its own and is not searched.
pub fn find<T>(expr: &Expr, look: &dyn Fn(&Expr) -> Option<T>) -> Option<T> {
    let mut search = Search { look, subqueries: 0 };
    match walk(expr, &mut search) {
        ControlFlow::Break(found) => Some(*found),
        ControlFlow::Continue(()) => None,
    }
}

struct Search<'a, T> {
    look: &'a dyn Fn(&Expr) -> Option<T>,
    subqueries: usize,
}

impl<T> Visitor for Search<'_, T> {
    type Break = Box<T>;

    fn pre_visit_query(&mut self, _query: &Query) -> ControlFlow<Self::Break> {
        self.subqueries += 1;
        ControlFlow::Continue(())
    }

    fn post_visit_query(&mut self, _query: &Query) -> ControlFlow<Self::Break> {
        self.subqueries -= 1;
        ControlFlow::Continue(())
    }

    fn pre_visit_expr(&mut self, expr: &Expr) -> ControlFlow<Self::Break> {
        if self.subqueries > 0 {
            return ControlFlow::Continue(());
        }
        match (self.look)(expr) {
            Some(found) => ControlFlow::Break(Box::new(found)),
            None => ControlFlow::Continue(()),
        }
    }
}
