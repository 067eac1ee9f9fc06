//! Names of result columns: the name of an item without an alias is its source text.
//!
//! `SELECT lat, avg(t2m)` has the columns `lat` and `avg(t2m)`, independent of the plan's names. A number distinguishes
//! two items with the same text.

use std::collections::BTreeSet;

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
        if is_name || super::items::has_columns(expr) {
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
