//! Names of result columns: the name of an item without an alias is its source text.
//!
//! `SELECT lat, avg(t2m)` has the columns `lat` and `avg(t2m)`, whatever the plan calls them. A number
//! distinguishes two items with the same text.
//!
//! In a subquery, so is that of a cast beside its column. DataFusion calls both by the name of the column.

use std::collections::{BTreeMap, BTreeSet};

use sqlparser::ast::{Expr, Ident, Query, Select, SelectItem, SetExpr};

use tessera_frontend::ast;

/// Names the items of the outermost block; of a set operation, those of its first block.
pub(super) fn name(query: &mut Query) {
    let mut body = &mut *query.body;
    loop {
        match body {
            SetExpr::Select(select) => return items(select),
            SetExpr::Query(inner) => body = &mut inner.body,
            SetExpr::SetOperation { left, .. } => body = left,
            _ => return,
        }
    }
}

fn items(select: &mut Select) {
    let mut known = BTreeSet::new();
    for item in &mut select.projection {
        if ast::bracket_dim(item).is_some() {
            continue;
        }
        let SelectItem::UnnamedExpr(expr) = item else { continue };
        let is_name = matches!(
            expr,
            Expr::Identifier(_) | Expr::CompoundIdentifier(_) | Expr::CompoundFieldAccess { .. }
        );
        if is_name {
            continue;
        }
        let Some(text) = ast::text(expr) else { continue };
        let mut name = text.clone();
        let mut number = 1;
        while !known.insert(name.clone()) {
            number += 1;
            name = format!("{text} ({number})");
        }
        let expr = std::mem::replace(expr, ast::null());
        *item = SelectItem::ExprWithAlias { expr, alias: Ident::with_quote('"', name) };
    }
}

/// Names the casts of columns of a block whose columns may be items, too.
pub(super) fn name_casts(select: &mut Select) {
    let mut counts: BTreeMap<String, usize> = BTreeMap::new();
    let mut has_all = false;
    for item in &select.projection {
        match item {
            SelectItem::UnnamedExpr(expr) => {
                if let Some(column) = column(expr) {
                    *counts.entry(column).or_default() += 1;
                }
            }
            SelectItem::ExprWithAlias { alias, .. } => {
                *counts.entry(alias.value.to_lowercase()).or_default() += 1;
            }
            _ => has_all = true,
        }
    }
    let mut known = BTreeSet::new();
    for item in &mut select.projection {
        let SelectItem::UnnamedExpr(expr @ Expr::Cast { .. }) = item else { continue };
        let is_twice =
            column(expr).is_some_and(|name| has_all || counts.get(&name).is_some_and(|&n| n > 1));
        let Some(name) = ast::text(expr).filter(|_| is_twice) else { continue };
        if !known.insert(name.clone()) {
            continue;
        }
        let expr = std::mem::replace(expr, ast::null());
        *item = SelectItem::ExprWithAlias { expr, alias: Ident::with_quote('"', name) };
    }
}

/// The name that DataFusion gives to a column or to a cast of it, in lower case.
fn column(expr: &Expr) -> Option<String> {
    match expr {
        Expr::Identifier(name) => Some(name.value.to_lowercase()),
        Expr::CompoundIdentifier(parts) => parts.last().map(|name| name.value.to_lowercase()),
        Expr::Cast { expr, .. } | Expr::Nested(expr) => column(expr),
        _ => None,
    }
}
