//! CTEs in scope, as syntax: one surface passes them to the other with a block that it cannot plan itself.

use std::sync::Arc;

use sqlparser::ast::helpers::attached_token::AttachedToken;
use sqlparser::ast::{Cte, Query, Select, SetExpr, Spanned, With};

use crate::derived;
use crate::island::Site;

/// The CTEs in scope of a block, and the text that contains it.
#[derive(Debug, Clone, Default)]
pub struct Scope {
    /// The CTEs that each enclosing query has defined so far, outermost query first.
    levels: Vec<ScopeLevel>,
    /// The text: 0 is the statement, others are views.
    pub text: u64,
}

/// The CTEs of one query. Shared, because every CTE stores the scope in which it was written.
#[derive(Debug, Clone)]
struct ScopeLevel {
    with_token: AttachedToken,
    recursive: bool,
    ctes: Vec<Arc<Cte>>,
}

impl Scope {
    /// An empty scope.
    pub fn of(text: u64) -> Self {
        Scope { levels: Vec::new(), text }
    }

    /// Enters a query, whose CTEs become visible one after the other.
    pub fn enter(&mut self, with: Option<&With>) {
        self.levels.push(ScopeLevel {
            with_token: with.map_or_else(AttachedToken::empty, |with| with.with_token.clone()),
            recursive: with.is_some_and(|with| with.recursive),
            ctes: Vec::new(),
        });
    }

    /// Makes a CTE of the innermost query visible.
    pub fn define(&mut self, cte: &Cte) {
        if let Some(level) = self.levels.last_mut() {
            level.ctes.push(Arc::new(cte.clone()));
        }
    }

    /// Leaves the innermost query.
    pub(crate) fn leave(&mut self) {
        self.levels.pop();
    }

    /// True if a CTE of that name is in scope.
    pub fn knows(&self, name: &str) -> bool {
        let is = |cte: &Arc<Cte>| cte.alias.name.value.eq_ignore_ascii_case(name);
        self.levels.iter().any(|level| level.ctes.iter().any(is))
    }

    /// The query with all CTEs that it sees, so that it is self-contained.
    pub fn close(&self, query: &Query) -> Query {
        let visible = self.levels.iter().rev().filter(|level| !level.ctes.is_empty());
        visible.fold(query.clone(), |inner, level| Query {
            with: Some(With {
                with_token: level.with_token.clone(),
                recursive: level.recursive,
                cte_tables: level.ctes.iter().map(|cte| Cte::clone(cte)).collect(),
            }),
            ..derived::query(SetExpr::Query(Box::new(inner)))
        })
    }
}

/// The position of a query in its text; `None` if it has none.
pub fn site(text: u64, query: &Query) -> Option<Site> {
    let mut body = &*query.body;
    while let SetExpr::Query(inner) = body {
        body = &inner.body;
    }
    let span = stacker::maybe_grow(crate::lower::RED_ZONE, crate::lower::STACK, || body.span());
    (span.start.line > 0).then_some(Site {
        text,
        start: (span.start.line, span.start.column),
        end: (span.end.line, span.end.column),
    })
}

/// The single block of a query without set operations.
pub fn innermost(query: &Query) -> Option<&Select> {
    match &*query.body {
        SetExpr::Select(select) => Some(select),
        SetExpr::Query(inner) => innermost(inner),
        _ => None,
    }
}

/// Mutable form of [`innermost`].
pub fn innermost_mut(query: &mut Query) -> Option<&mut Select> {
    match &mut *query.body {
        SetExpr::Select(select) => Some(select),
        SetExpr::Query(inner) => innermost_mut(inner),
        _ => None,
    }
}
