//! Hides lists of IN from the optimiser, which must not merge them.
//!
//! DataFusion's simplifier merges IN lists with two-valued logic, and compares their items syntactically:
//!
//! ```text
//! v IN (1, 2) AND v NOT IN (2, NULL)       ⇒  v = 1            NULL for every v
//! v NOT IN (1) OR v NOT IN (2)             ⇒  true             NULL where v is NULL
//! a IN (b) AND a IN (c)                    ⇒  false            true where a, b and c are equal
//! ```
//! It does not see a list behind a function. It converts a chain of `a = 1 OR a = 2` to a list, so this module does
//! so first.

use crate::walk::Walk;
use datafusion::common::DFSchema;
use datafusion::logical_expr::expr::InList;
use datafusion::logical_expr::{BinaryExpr, Expr, Operator};

use super::plain::Member;
use super::rules::is_wrapped;

/// True for a list of literals that are neither NULL nor intervals nor hold floats, or equalities that form one. In a
/// condition that must be true it may be merged with others of its kind.
pub(super) fn is_plain(expr: &Expr, schema: &DFSchema) -> bool {
    match expr {
        Expr::InList(list) => {
            !list.negated
                && matches!(&*list.expr, Expr::Column(_))
                && !is_wrapped(&list.expr, schema)
                && list.list.iter().all(is_value)
        }
        Expr::BinaryExpr(BinaryExpr { left, op: Operator::Or, right }) => {
            let floats =
                |e: &Expr| equality(e).is_some_and(|(column, _)| is_wrapped(column, schema));
            [left, right].iter().all(|e| {
                is_plain(e, schema) || (equality(e).is_some_and(|(_, v)| is_value(v)) && !floats(e))
            })
        }
        _ => false,
    }
}

/// True for a literal that is not NULL, possibly with casts.
fn is_value(expr: &Expr) -> bool {
    match expr {
        Expr::Literal(v, _) => !v.is_null(),
        Expr::Cast(cast) => is_value(&cast.expr),
        _ => false,
    }
}

/// True if the optimiser folds the expression to a literal.
fn is_constant(expr: &Expr) -> bool {
    let varies = expr.any(|e| {
        Ok(!matches!(
            e,
            Expr::Literal(..)
                | Expr::Alias(_)
                | Expr::BinaryExpr(_)
                | Expr::Negative(_)
                | Expr::Cast(_)
                | Expr::TryCast(_)
                | Expr::ScalarFunction(_)
        ))
    });
    varies.is_ok_and(|varies| !varies) && !expr.is_volatile()
}

/// True for an item of a list that DataFusion does not mistake for a constant: a column, or a constant.
pub(super) fn is_seen_through(item: &Expr) -> bool {
    match item {
        Expr::Column(_) | Expr::OuterReferenceColumn(..) => true,
        Expr::Cast(cast) => is_seen_through(&cast.expr),
        Expr::TryCast(cast) => is_seen_through(&cast.expr),
        other => is_constant(other),
    }
}

/// The column and the constant of an equality.
fn equality(expr: &Expr) -> Option<(&Expr, &Expr)> {
    let Expr::BinaryExpr(BinaryExpr { left, op: Operator::Eq, right }) = expr else { return None };
    match (&**left, &**right) {
        (Expr::Column(_), constant) if is_constant(constant) => Some((left, right)),
        (constant, Expr::Column(_)) if is_constant(constant) => Some((right, left)),
        _ => None,
    }
}

/// The left side and the list: of an equality, or of a list that was merged here.
fn values(expr: &Expr) -> Option<(Expr, Vec<Expr>)> {
    if let Some((column, value)) = equality(expr) {
        return Some((column.clone(), vec![value.clone()]));
    }
    let Expr::ScalarFunction(f) = expr else { return None };
    match f.args.as_slice() {
        [Expr::InList(list)] if f.func.inner().is::<Member>() && !list.negated => {
            let mut column = &*list.expr;
            // Float columns are wrapped in `one_zero`.
            if let Expr::ScalarFunction(f) = column
                && let [arg] = f.args.as_slice()
            {
                column = arg;
            }
            matches!(column, Expr::Column(_)).then(|| (column.clone(), list.list.clone()))
        }
        _ => None,
    }
}

/// The list that two sides of OR form, if they compare the same column.
pub(super) fn joined(left: &Expr, right: &Expr) -> Option<InList> {
    let ((column, mut list), (other, more)) = (values(left)?, values(right)?);
    if column != other {
        return None;
    }
    for item in more {
        if !list.contains(&item) {
            list.push(item);
        }
    }
    Some(InList { expr: Box::new(column), list, negated: false })
}
