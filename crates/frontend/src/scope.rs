//! CTEs in sight, as text: what one surface hands to the other with a block that it cannot plan itself.

use sqlparser::ast::{Cte, Query, Select, SetExpr, Spanned, With};

use crate::island::Site;

/// The CTEs in sight of a block, and the text that it stands in.
#[derive(Debug, Clone, Default)]
pub struct Scope {
    /// Of each enclosing query those defined so far, outermost first.
    levels: Vec<With>,
    /// The text: 0 is the statement, others are views.
    pub text: u64,
}

impl Scope {
    /// Nothing in sight.
    pub fn of(text: u64) -> Self {
        Scope { levels: Vec::new(), text }
    }

    /// Enters a query: its CTEs become visible one after the other.
    pub(crate) fn enter(&mut self, with: Option<&With>) {
        self.levels.push(match with {
            Some(with) => With { cte_tables: Vec::new(), ..with.clone() },
            None => With {
                with_token: sqlparser::ast::helpers::attached_token::AttachedToken::empty(),
                recursive: false,
                cte_tables: Vec::new(),
            },
        });
    }

    /// Makes a CTE of the innermost query visible.
    pub(crate) fn define(&mut self, cte: &Cte) {
        if let Some(level) = self.levels.last_mut() {
            level.cte_tables.push(cte.clone());
        }
    }

    /// Leaves the innermost query.
    pub(crate) fn leave(&mut self) {
        self.levels.pop();
    }

    /// True if a CTE of that name is in sight.
    pub(crate) fn knows(&self, name: &str) -> bool {
        let is = |cte: &Cte| cte.alias.name.value.eq_ignore_ascii_case(name);
        self.levels.iter().any(|level| level.cte_tables.iter().any(is))
    }

    /// The same query with all that it sees, so that it means the same anywhere.
    pub(crate) fn close(&self, query: &Query) -> Query {
        let visible = self.levels.iter().rev().filter(|level| !level.cte_tables.is_empty());
        visible.fold(query.clone(), |inner, level| Query {
            with: Some(level.clone()),
            body: Box::new(SetExpr::Query(Box::new(inner))),
            order_by: None,
            limit_clause: None,
            fetch: None,
            locks: Vec::new(),
            for_clause: None,
            settings: None,
            format_clause: None,
            pipe_operators: Vec::new(),
        })
    }
}

/// The place of a query in its text; `None` if it stands in none.
pub(crate) fn site(text: u64, query: &Query) -> Option<Site> {
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

/// The block of a query that is one, without set operations.
pub(crate) fn innermost(query: &Query) -> Option<&Select> {
    match &*query.body {
        SetExpr::Select(select) => Some(select),
        SetExpr::Query(inner) => innermost(inner),
        _ => None,
    }
}

/// The same, to change it.
pub(crate) fn innermost_mut(query: &mut Query) -> Option<&mut Select> {
    match &mut *query.body {
        SetExpr::Select(select) => Some(select),
        SetExpr::Query(inner) => innermost_mut(inner),
        _ => None,
    }
}
