//! Rejects items and conditions that plans of cells do not support before planning, because DataFusion's errors are
//! unclear.

use std::collections::BTreeSet;

use sqlparser::ast::{Expr, Ident, JoinOperator, Query, Select, SelectItem, Spanned};

use tessera_frontend::error::{BindError, Error, Position};
use tessera_frontend::surface::walk;
use tessera_frontend::{ast, scope, span_of};

/// The alias of an item with `COLUMNS(…)` that has none: each of its columns has a name of its own.
pub(in crate::lift) const OWN_NAME: &str = "\0";

/// True if an expression stands for several columns.
pub(in crate::lift) fn has_columns(expr: &Expr) -> bool {
    walk::find(expr, &|expr| ast::columns(expr).map(|_| ())).is_some()
}

/// The name of an item: its alias, or that of its column.
pub(in crate::lift) fn name_of(item: &SelectItem) -> Option<&Ident> {
    match item {
        SelectItem::ExprWithAlias { alias, .. } => Some(alias),
        SelectItem::UnnamedExpr(Expr::Identifier(name)) => Some(name),
        SelectItem::UnnamedExpr(Expr::CompoundIdentifier(parts)) => parts.last(),
        _ => None,
    }
}

/// Gives items with `COLUMNS(…)` that alias, before others name them by their text.
pub(super) fn name_chosen(select: &mut Select) {
    for item in &mut select.projection {
        if let SelectItem::UnnamedExpr(expr) = item
            && has_columns(expr)
        {
            let expr = std::mem::replace(expr, ast::null());
            *item = SelectItem::ExprWithAlias { expr, alias: Ident::with_quote('"', OWN_NAME) };
        }
    }
}

/// The error for the first unsupported item of a block, or for its WHERE.
pub(super) fn refused(select: &Select) -> Option<Error> {
    let of_items = select.projection.iter().find_map(|item| value(ast::expr_of(item)?.0));
    of_items.or_else(|| select.selection.as_ref().and_then(window)).or_else(|| qualify(select))
}

/// The error for a QUALIFY of a block that computes nothing with OVER.
fn qualify(select: &Select) -> Option<Error> {
    let condition = select.qualify.as_ref()?;
    let is_over = |e: &Expr| match e {
        Expr::Function(function) => function.over.as_ref().map(|_| ()),
        _ => None,
    };
    let items = select.projection.iter().filter_map(|item| Some(ast::expr_of(item)?.0));
    if items.chain([condition]).any(|expr| walk::find(expr, &is_over).is_some()) {
        return None;
    }
    Some(Error::Cells {
        code: "plan_error",
        message: "QUALIFY needs a function with OVER, and the block has none".to_string(),
        position: Position::of_span(span_of(condition)),
        hint: Some("filter rows with WHERE, groups with HAVING".to_string()),
    })
}

/// The error for the first item of a query whose name an earlier one has.
pub(in crate::lift) fn given_twice(query: &Query) -> Option<Error> {
    let select = scope::innermost(query)?;
    let mut known = BTreeSet::new();
    select.projection.iter().find_map(|item| {
        let (name, position) = named(item)?;
        if known.insert(name.clone()) {
            return None;
        }
        let name = name.last().cloned().unwrap_or_default();
        Some(Error::Bind { error: BindError::DuplicateName { kind: "item", name }, position })
    })
}

/// The name of a result column, for columns that nothing else distinguishes.
fn named(item: &SelectItem) -> Option<(Vec<String>, Option<Position>)> {
    let (parts, span) = match item {
        // Each of its columns has a name of its own.
        SelectItem::ExprWithAlias { alias, .. } if alias.value == OWN_NAME => return None,
        SelectItem::ExprWithAlias { alias, .. } => (vec![alias.value.clone()], alias.span),
        SelectItem::UnnamedExpr(Expr::Identifier(name)) => (vec![name.value.clone()], name.span),
        SelectItem::UnnamedExpr(Expr::CompoundIdentifier(parts)) => {
            (parts.iter().map(|part| part.value.clone()).collect(), item.span())
        }
        _ => return None,
    };
    Some((parts, Position::of_span(span)))
}

/// The error for an expression that is not a value in a cell block.
fn value(expr: &Expr) -> Option<Error> {
    let Expr::Lambda(lambda) = expr else { return None };
    let name = lambda.params.first();
    Some(Error::Unsupported {
        construct: "a lambda as an item".to_string(),
        position: Position::of_span(name.map_or_else(|| expr.span(), |name| name.name.span)),
        hint: Some("`->` is only allowed in arguments of functions".to_string()),
    })
}

/// The error for a window function in WHERE.
fn window(condition: &Expr) -> Option<Error> {
    walk::find(condition, &|e| match e {
        Expr::Function(function) if function.over.is_some() => Some(Error::Cells {
            code: "plan_error",
            message: format!("{} with OVER is computed after WHERE", function.name),
            position: Position::of_span(function.name.span()),
            hint: Some("filter with QUALIFY: `QUALIFY row_number() OVER (ORDER BY v) <= 3`".into()),
        }),
        _ => None,
    })
}

/// Rewrites `SEMI JOIN` and `ANTI JOIN` to `LEFT SEMI JOIN` and `LEFT ANTI JOIN`.
pub(super) fn spell_joins(select: &mut Select) {
    for join in select.from.iter_mut().flat_map(|from| &mut from.joins) {
        join.join_operator = match join.join_operator.clone() {
            JoinOperator::Semi(on) => JoinOperator::LeftSemi(on),
            JoinOperator::Anti(on) => JoinOperator::LeftAnti(on),
            other => other,
        };
    }
}
