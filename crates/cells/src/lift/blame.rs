//! Finds the expression that an error is about, where DataFusion reports no position.
//!
//! The query is planned again with parts replaced. If `NULL` in place of the whole expression of a clause removes the
//! error, the fault is in that expression; an operand that fails in the same way by itself contains the fault.
//!
//! ```text
//! SELECT k, abs(a + s) FROM t    `+` is not defined for int64 and text
//! SELECT NULL, abs(a + s) …      the same error: not in `k`
//! SELECT k, NULL …               no error: in `abs(a + s)`
//! SELECT k, (a + s) IS NULL …    the same error: in `a + s`
//! SELECT k, a IS NULL …          no error, as for `s`: it is `a + s`
//! ```
//! Only statements that fail are planned more than once, and the plans of a search are limited in number and time.

use std::ops::{ControlFlow, Range};
use std::time::{Duration, Instant};

use sqlparser::ast::{Expr, Query, Visitor, VisitorMut};
use tessera_frontend::error::Position;
use tessera_frontend::walk::{walk, walk_mut};
use tessera_frontend::{ast, span_of};

/// Upper bound on the plans of one search.
const PLANS_MAX: usize = 64;

/// Upper bound on the expressions of these plans together.
const PARTS_MAX: usize = 50_000;

/// Time limit of a search, checked before each plan. Beyond it, the error has no position.
const TIME_MAX: Duration = Duration::from_secs(3);

/// The result of planning a changed query.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Outcome {
    Planned,
    SameError,
    /// It fails with another error.
    OtherError,
}

/// The position of the smallest expression of a query that has the error; `plan` plans a changed query.
pub(super) fn position(query: &Query, plan: &mut dyn FnMut(Query) -> Outcome) -> Option<Position> {
    let mut numbered = Numbered::default();
    let _ = walk(query, &mut numbered);
    let parts = numbered.parts;
    let left = PLANS_MAX.min(PARTS_MAX / parts.len().max(1));
    let mut search = Search { query, parts, left, started: Instant::now(), plan };
    let root = search.root()?;
    let mut at = root;
    while let Some(operand) = search.operand(root, at) {
        at = operand;
    }
    search.place(at)
}

/// An expression of a query. Its number is its place in the order of visits.
#[derive(Debug, Clone, Copy)]
struct Part {
    /// One more than the greatest number of an expression inside.
    end: usize,
    /// The expression around it; `None` for the whole expression of a clause.
    around: Option<usize>,
    depth: usize,
}

#[derive(Default)]
struct Numbered {
    parts: Vec<Part>,
    /// The open expressions.
    open: Vec<usize>,
    /// For each open query, the number of expressions around it.
    queries: Vec<usize>,
}

impl Visitor for Numbered {
    type Break = ();

    fn pre_visit_query(&mut self, _: &Query) -> ControlFlow<()> {
        self.queries.push(self.open.len());
        ControlFlow::Continue(())
    }

    fn post_visit_query(&mut self, _: &Query) -> ControlFlow<()> {
        self.queries.pop();
        ControlFlow::Continue(())
    }

    fn pre_visit_expr(&mut self, _: &Expr) -> ControlFlow<()> {
        let outside = self.queries.last().copied().unwrap_or(0);
        let around = self.open.get(outside..).and_then(|own| own.last().copied());
        let number = self.parts.len();
        self.open.push(number);
        self.parts.push(Part { end: number + 1, around, depth: self.queries.len() });
        ControlFlow::Continue(())
    }

    fn post_visit_expr(&mut self, _: &Expr) -> ControlFlow<()> {
        let end = self.parts.len();
        if let Some(number) = self.open.pop() {
            self.parts[number].end = end;
        }
        ControlFlow::Continue(())
    }
}

struct Search<'a> {
    query: &'a Query,
    parts: Vec<Part>,
    /// The number of plans that may still be made.
    left: usize,
    started: Instant,
    plan: &'a mut dyn FnMut(Query) -> Outcome,
}

impl Search<'_> {
    /// The innermost whole expression of a clause whose removal makes the query valid; if there is none, the first one
    /// whose removal changes the error.
    fn root(&mut self) -> Option<usize> {
        let (mut found, suspect) = self.clause(0..self.parts.len());
        let mut inside = found;
        while let Some(at) = inside {
            found = inside;
            // The fault may be in a subquery inside.
            (inside, _) = self.clause(at + 1..self.parts[at].end);
        }
        found.or(suspect)
    }

    /// Among the whole expressions of clauses in a range: one whose removal makes the query valid, and the first one
    /// whose removal changes the error. A block gets the types of its relations, so a fault is in the outer one of two.
    fn clause(&mut self, range: Range<usize>) -> (Option<usize>, Option<usize>) {
        let (mut found, mut suspect): (Option<usize>, Option<usize>) = (None, None);
        let mut at = range.start;
        while at < range.end {
            let part = self.parts[at];
            if part.around.is_some() {
                at += 1;
                continue;
            }
            match self.with(at, ast::null()) {
                None => break,
                Some(Outcome::Planned) => {
                    if found.is_none_or(|known| part.depth < self.parts[known].depth) {
                        found = Some(at);
                    }
                    if part.depth == 1 {
                        break;
                    }
                }
                Some(Outcome::OtherError) => suspect = suspect.or(Some(at)),
                Some(Outcome::SameError) => {}
            }
            at = part.end;
        }
        (found, suspect)
    }

    /// The operand of expression `at` that has the error in place of the expression `root` around both.
    fn operand(&mut self, root: usize, at: usize) -> Option<usize> {
        let end = self.parts[at].end;
        let mut next = at + 1;
        while next < end {
            let part = self.parts[next];
            if part.around == Some(at) {
                // Any clause takes a bool.
                let alone = Expr::IsNull(Box::new(self.expr(next)?));
                if self.with(root, alone)? == Outcome::SameError {
                    return Some(next);
                }
            }
            next = part.end;
        }
        None
    }

    /// The outcome for the query with `expr` as its expression `at`; `None` if the limit is reached.
    fn with(&mut self, at: usize, expr: Expr) -> Option<Outcome> {
        self.left = self.left.checked_sub(1)?;
        if self.started.elapsed() > TIME_MAX {
            return None;
        }
        let mut query = self.query.clone();
        let _ = walk_mut(&mut query, &mut Replace { at, expr: Some(expr) });
        Some((self.plan)(query))
    }

    fn expr(&self, at: usize) -> Option<Expr> {
        match walk(self.query, &mut Find { at }) {
            ControlFlow::Break(found) => Some(*found),
            ControlFlow::Continue(()) => None,
        }
    }

    /// The position of an expression, or of the one around it: expressions that a rewrite added have no position.
    fn place(&self, at: usize) -> Option<Position> {
        let mut next = Some(at);
        while let Some(at) = next {
            if let Some(position) = self.expr(at).as_ref().and_then(position_of) {
                return Some(position);
            }
            next = self.parts[at].around;
        }
        None
    }
}

/// The position of an expression; of a call that of its name.
fn position_of(expr: &Expr) -> Option<Position> {
    let name = match expr {
        Expr::Function(call) => Position::of(&call.name),
        _ => None,
    };
    name.or_else(|| Position::of_span(span_of(expr)))
}

/// Replaces the expression that comes after `at` others.
struct Replace {
    at: usize,
    expr: Option<Expr>,
}

impl VisitorMut for Replace {
    type Break = ();

    fn pre_visit_expr(&mut self, expr: &mut Expr) -> ControlFlow<()> {
        if self.at > 0 {
            self.at -= 1;
            return ControlFlow::Continue(());
        }
        if let Some(new) = self.expr.take() {
            *expr = new;
        }
        ControlFlow::Break(())
    }
}

/// Finds the expression that comes after `at` others.
struct Find {
    at: usize,
}

impl Visitor for Find {
    type Break = Box<Expr>;

    fn pre_visit_expr(&mut self, expr: &Expr) -> ControlFlow<Box<Expr>> {
        if self.at > 0 {
            self.at -= 1;
            return ControlFlow::Continue(());
        }
        ControlFlow::Break(Box::new(expr.clone()))
    }
}
