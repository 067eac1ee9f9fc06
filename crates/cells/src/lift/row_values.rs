//! Rows of values in comparisons, which DataFusion takes for structs: there NULL equals NULL.
//!
//! | written | becomes |
//! |---|---|
//! | `(a, b) = (c, d)` | `a = c AND b = d` |
//! | `(a, b) < (c, d)` | `a < c OR (a = c AND b < d)` |
//! | `(a, b) IN ((1, 2), (3, 4))` | `(a = 1 AND b = 2) OR (a = 3 AND b = 4)` |
//! | `(a, b) IN (SELECT x, y …)` | `EXISTS (SELECT * FROM (SELECT x, y …) AS __rows(__0, __1)` |
//! | | `WHERE tessera_row_in(a = __0, b = __1))` |
//!
//! The first three are true, false or NULL as in the SQL standard. An EXISTS is never NULL, so
//! [`membership`](super::membership) replaces the last one where NULL counts.

use std::collections::BTreeMap;
use std::ops::ControlFlow;

use sqlparser::ast::{
    BinaryOperator, Expr, Ident, Query, SelectItem, SetExpr, Spanned, TableAlias,
    TableAliasColumnDef, TableFactor, TableWithJoins, UnaryOperator, VisitMut, VisitorMut,
};
use tessera_frontend::ast::null;
use tessera_frontend::derived::{all_of, query};
use tessera_frontend::error::{Error, Position};
use tessera_frontend::scope;
use tessera_frontend::walk::walk_mut;

use super::markers::ROW_IN;
use super::names::call;
use super::parts::{Parts, Written};
use crate::walk::counts_queries;

/// Maximum values of a row: a comparison nests as deep.
const VALUES_MAX: usize = 64;

/// Rewrites the expressions of a part of a block, without those of queries inside.
///
/// # Errors
/// `type_error` for rows of different lengths; `unsupported` for a comparison of a row with a scalar subquery; `too_complex`.
pub(super) fn rewrite<T: VisitMut>(part: &mut T, written: &mut Written) -> Result<(), Error> {
    match walk_mut(part, &mut Rows { depth: 0, written }) {
        ControlFlow::Continue(()) => Ok(()),
        ControlFlow::Break(error) => Err(error),
    }
}

struct Rows<'a> {
    depth: usize,
    written: &'a mut Written,
}

impl VisitorMut for Rows<'_> {
    type Break = Error;

    counts_queries!(depth);

    fn post_visit_expr(&mut self, expr: &mut Expr) -> ControlFlow<Error> {
        if self.depth > 0 {
            return ControlFlow::Continue(());
        }
        let new = match rewritten(expr) {
            Ok(Some(new)) => new,
            Ok(None) => return ControlFlow::Continue(()),
            Err(error) => return ControlFlow::Break(error),
        };
        // Only comparisons write their operands out.
        let is_compared = !matches!(expr, Expr::InSubquery { .. });
        if is_compared && let Err(error) = self.written.add(size(&new), expr) {
            return ControlFlow::Break(error);
        }
        *expr = new;
        ControlFlow::Continue(())
    }
}

fn size(expr: &Expr) -> Parts {
    Parts::of(expr, &BTreeMap::new())
}

fn rewritten(expr: &Expr) -> Result<Option<Expr>, Error> {
    use BinaryOperator::{And, GtEq, LtEq, Or};
    let is_row = |expr: &Expr| values(expr).is_some();
    // Comparisons inside of comparisons would double with each step.
    let check = |times: u64, of: &Expr| {
        let (all, copied) = (size(expr), size(of));
        let more = copied.count.saturating_mul(times);
        Parts { count: all.count.saturating_add(more), ..all }.check(expr)
    };
    Ok(Some(match expr {
        Expr::BinaryOp { left, op, right }
            if is_comparison(op) && (is_row(left) || is_row(right)) =>
        {
            check(1, expr)?;
            compare(left, op, right)?
        }
        Expr::IsDistinctFrom(left, right) if is_row(left) || is_row(right) => {
            not(same(left, right)?)
        }
        Expr::IsNotDistinctFrom(left, right) if is_row(left) || is_row(right) => same(left, right)?,
        Expr::InList { expr: row, list, negated } if is_row(row) => {
            // The row is written once for each item.
            check(list.len() as u64, row)?;
            let equal = list.iter().map(|item| compare(row, &BinaryOperator::Eq, item));
            let any = balanced(&Or, equal.collect::<Result<_, _>>()?);
            if *negated { not(any) } else { any }
        }
        Expr::Between { expr: row, negated, low, high } if is_row(row) => {
            check(3, expr)?;
            let inside = vec![compare(row, &GtEq, low)?, compare(row, &LtEq, high)?];
            let inside = balanced(&And, inside);
            if *negated { not(inside) } else { inside }
        }
        Expr::InSubquery { expr: row, subquery, negated } => match values(row) {
            Some(values) => member(row, values, subquery, *negated)?,
            None => return Ok(None),
        },
        _ => return Ok(None),
    }))
}

fn values(expr: &Expr) -> Option<&[Expr]> {
    match expr {
        Expr::Tuple(values) => Some(values),
        Expr::Nested(inner) => values(inner),
        _ => None,
    }
}

fn is_comparison(op: &BinaryOperator) -> bool {
    use BinaryOperator::{Eq, Gt, GtEq, Lt, LtEq, NotEq};
    matches!(op, Eq | NotEq | Lt | LtEq | Gt | GtEq)
}

/// The values of two rows, side by side; `None` if neither is a row.
fn pairs<'a>(left: &'a Expr, right: &'a Expr) -> Result<Option<Vec<(&'a Expr, &'a Expr)>>, Error> {
    let position = || Position::of_span(left.span().union(&right.span()));
    let (l, r) = match (values(left), values(right)) {
        (None, None) => return Ok(None),
        (Some(l), Some(r)) => (l, r),
        (Some(_), None) | (None, Some(_))
            if [left, right].iter().any(|side| matches!(side, Expr::Subquery(_))) =>
        {
            return Err(Error::unsupported(
                "a comparison of a row with a scalar subquery",
                position(),
            )
            .with_hint("write `(a, b) IN (SELECT …)`"));
        }
        (l, r) => {
            let values = l.or(r).map_or(0, <[Expr]>::len);
            return Err(lengths(
                format!("a row of {values} values and a single value"),
                position(),
            ));
        }
    };
    if l.len() != r.len() {
        let what = format!("rows of {} and of {} values", l.len(), r.len());
        return Err(lengths(what, position()));
    }
    if l.len() > VALUES_MAX {
        return Err(Error::TooComplex {
            what: format!("rows of {} values are compared", l.len()),
            limit: VALUES_MAX,
            position: position(),
        });
    }
    Ok(Some(l.iter().zip(r).collect()))
}

fn lengths(what: String, position: Option<Position>) -> Error {
    Error::cells("type_error", format!("{what} cannot be compared"), position)
        .with_hint("both sides need the same number of values")
}

/// A comparison of two rows, or of two values.
fn compare(left: &Expr, op: &BinaryOperator, right: &Expr) -> Result<Expr, Error> {
    use BinaryOperator::{And, Eq, Gt, GtEq, Lt, LtEq, NotEq, Or};
    let Some(pairs) = pairs(left, right)? else {
        return Ok(binary(left.clone(), op, right.clone()));
    };
    let strict = match op {
        Eq | NotEq => {
            let each = pairs.into_iter().map(|(l, r)| compare(l, op, r));
            let together = if *op == Eq { And } else { Or };
            return Ok(balanced(&together, each.collect::<Result<_, _>>()?));
        }
        Lt | LtEq => Lt,
        Gt | GtEq => Gt,
        _ => return Ok(binary(left.clone(), op, right.clone())),
    };
    let mut rest: Option<Expr> = None;
    for (l, r) in pairs.into_iter().rev() {
        rest = Some(match rest {
            None => compare(l, op, r)?,
            Some(rest) => {
                let tied = binary(compare(l, &Eq, r)?, &And, rest);
                binary(compare(l, &strict, r)?, &Or, tied)
            }
        });
    }
    Ok(rest.unwrap_or_else(null))
}

/// `IS NOT DISTINCT FROM` of two rows, or of two values.
fn same(left: &Expr, right: &Expr) -> Result<Expr, Error> {
    let Some(pairs) = pairs(left, right)? else {
        return Ok(Expr::IsNotDistinctFrom(Box::new(left.clone()), Box::new(right.clone())));
    };
    let each = pairs.into_iter().map(|(l, r)| same(l, r));
    Ok(balanced(&BinaryOperator::And, each.collect::<Result<_, _>>()?))
}

/// `row IN (SELECT …)`.
fn member(expr: &Expr, row: &[Expr], of: &Query, negated: bool) -> Result<Expr, Error> {
    if let Some(columns) = columns_of(of)
        && columns != row.len()
    {
        let what = format!("a row of {} values and a subquery of {columns} columns", row.len());
        return Err(lengths(what, Position::of_span(expr.span())));
    }
    let names: Vec<Ident> =
        (0..row.len()).map(|i| Ident::with_quote('"', format!("__{i}"))).collect();
    let equal = row.iter().zip(&names).map(|(value, name)| {
        binary(value.clone(), &BinaryOperator::Eq, Expr::Identifier(name.clone()))
    });
    let condition = call(ROW_IN, equal.collect());
    let column = |name| TableAliasColumnDef { name, data_type: None };
    let alias = TableAlias {
        explicit: true,
        name: Ident::with_quote('"', "__rows"),
        columns: names.into_iter().map(column).collect(),
        at: None,
    };
    let relation = TableFactor::Derived {
        lateral: false,
        subquery: Box::new(of.clone()),
        alias: Some(alias),
        sample: None,
    };
    let Some(mut select) = all_of(TableWithJoins { relation, joins: vec![] }) else {
        let message = "a subquery could not be written as a relation".to_string();
        return Err(Error::Cells { code: "internal", message, position: None, hint: None });
    };
    select.selection = Some(condition);
    let subquery = Box::new(query(SetExpr::Select(Box::new(select))));
    Ok(Expr::Exists { subquery, negated })
}

/// The number of columns of a query; `None` if its items do not determine it.
pub(super) fn columns_of(query: &Query) -> Option<usize> {
    let items = &scope::innermost(query)?.projection;
    let is_one = |item: &SelectItem| {
        matches!(item, SelectItem::UnnamedExpr(_) | SelectItem::ExprWithAlias { .. })
    };
    items.iter().all(is_one).then_some(items.len())
}

/// The parts, joined by an operator into a tree of little depth.
fn balanced(op: &BinaryOperator, mut parts: Vec<Expr>) -> Expr {
    if parts.len() < 2 {
        return parts.pop().unwrap_or_else(null);
    }
    let right = parts.split_off(parts.len() / 2);
    binary(balanced(op, parts), op, balanced(op, right))
}

fn binary(left: Expr, op: &BinaryOperator, right: Expr) -> Expr {
    Expr::BinaryOp { left: Box::new(left), op: op.clone(), right: Box::new(right) }
}

fn not(expr: Expr) -> Expr {
    Expr::UnaryOp { op: UnaryOperator::Not, expr: Box::new(expr) }
}
