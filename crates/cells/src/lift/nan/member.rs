//! Lists of IN that the optimiser must not put together.
//!
//! DataFusion's simplifier joins lists of one value with two-valued logic, and compares their items as they are written:
//!
//! ```text
//! v IN (1, 2) AND v NOT IN (2, NULL)       ⇒  v = 1            NULL for every v
//! v NOT IN (1) OR v NOT IN (2)             ⇒  true             NULL where v is NULL
//! a IN (b) AND a IN (c)                    ⇒  false            true where a, b and c are equal
//! ```
//! Behind a function it sees no list. A chain of `a = 1 OR a = 2` becomes a list there, so it is one from the start.

use datafusion::common::DFSchema;
use datafusion::common::tree_node::TreeNode;
use datafusion::logical_expr::expr::InList;
use datafusion::logical_expr::{BinaryExpr, Expr, Operator};

use super::plain::Member;
use super::rules::is_float;

/// Is it a list of literals that are not NULL, of no floats, or equalities that make one? As a condition that has to be
/// true it may be put together with others of its kind.
pub(super) fn is_plain(expr: &Expr, schema: &DFSchema) -> bool {
    match expr {
        Expr::InList(list) => {
            !list.negated
                && matches!(&*list.expr, Expr::Column(_))
                && !is_float(&list.expr, schema)
                && list.list.iter().all(is_value)
        }
        Expr::BinaryExpr(BinaryExpr { left, op: Operator::Or, right }) => {
            let floats = |e: &Expr| equality(e).is_some_and(|(column, _)| is_float(column, schema));
            [left, right].iter().all(|e| {
                is_plain(e, schema) || (equality(e).is_some_and(|(_, v)| is_value(v)) && !floats(e))
            })
        }
        _ => false,
    }
}

/// Is it a literal that is not NULL, perhaps of another type as written?
fn is_value(expr: &Expr) -> bool {
    match expr {
        Expr::Literal(v, _) => !v.is_null(),
        Expr::Cast(cast) => is_value(&cast.expr),
        _ => false,
    }
}

/// Is it something that the optimiser makes a literal of?
fn is_constant(expr: &Expr) -> bool {
    let varies = expr.exists(|e| {
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

/// The column and the constant of an equality.
fn equality(expr: &Expr) -> Option<(&Expr, &Expr)> {
    let Expr::BinaryExpr(BinaryExpr { left, op: Operator::Eq, right }) = expr else { return None };
    match (&**left, &**right) {
        (Expr::Column(_), constant) if is_constant(constant) => Some((left, right)),
        (constant, Expr::Column(_)) if is_constant(constant) => Some((right, left)),
        _ => None,
    }
}

/// What is compared, and with what: of an equality, or of a list that was put together here.
fn values(expr: &Expr) -> Option<(Expr, Vec<Expr>)> {
    if let Some((column, value)) = equality(expr) {
        return Some((column.clone(), vec![value.clone()]));
    }
    let Expr::ScalarFunction(f) = expr else { return None };
    match f.args.as_slice() {
        [Expr::InList(list)] if f.func.inner().is::<Member>() && !list.negated => {
            let mut column = &*list.expr;
            // Of floats it stands behind `one_zero`.
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

/// The list that two sides of OR are about one column.
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
