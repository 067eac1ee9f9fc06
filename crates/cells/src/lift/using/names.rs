//! Substitutes merged columns in a block.

use std::ops::ControlFlow;
use tessera_frontend::walk::walk_mut;

use sqlparser::ast::{
    Expr, Ident, OrderBy, OrderByKind, Select, SelectItem, VisitorMut, WildcardAdditionalOptions,
};

use super::super::names::fields;
use super::Merged;
use super::columns::Column;
use crate::walk::counts_queries;

/// Replaces merged names by their expressions, in all clauses of a block except FROM.
pub(super) fn replace(select: &mut Select, merged: &Merged, all: &[Column]) {
    let projection = std::mem::take(&mut select.projection);
    for item in projection {
        match item {
            SelectItem::Wildcard(options) if tessera_frontend::only_excludes(&options) => {
                select.projection.extend(listed(&options, all));
            }
            // The result column keeps the merged name.
            SelectItem::UnnamedExpr(Expr::Identifier(name))
                if let Some(expr) = merged.get(&name.value) =>
            {
                select.projection.push(named(expr.clone(), &name.value));
            }
            other => select.projection.push(other),
        }
    }
    // Join conditions are already rewritten.
    let from = std::mem::take(&mut select.from);
    let _ = walk_mut(select, &mut Names { merged, depth: 0, parameters: Vec::new() });
    select.from = from;
}

/// As [`replace`], for one expression.
pub(in crate::lift) fn replace_in(expr: &mut Expr, merged: &Merged) {
    let _ = walk_mut(expr, &mut Names { merged, depth: 0, parameters: Vec::new() });
}

/// As [`replace`], for ORDER BY, where the name of an item refers to that item.
pub(super) fn replace_in_order(order: &mut OrderBy, select: &Select, merged: &Merged) {
    let OrderByKind::Expressions(keys) = &mut order.kind else { return };
    let is_item = |expr: &Expr| {
        match expr {
        Expr::Identifier(name) => select.projection.iter().any(|item| {
            matches!(item, SelectItem::ExprWithAlias { alias, .. } if alias.value == name.value)
        }),
        _ => false,
    }
    };
    for key in keys.iter_mut().filter(|key| !is_item(&key.expr)) {
        replace_in(&mut key.expr, merged);
    }
}

pub(super) fn named(expr: Expr, name: &str) -> SelectItem {
    match &expr {
        Expr::CompoundIdentifier(_) => SelectItem::UnnamedExpr(expr),
        _ => SelectItem::ExprWithAlias { expr, alias: Ident::with_quote('"', name) },
    }
}

/// The columns of `*`, each merged one once.
fn listed(options: &WildcardAdditionalOptions, all: &[Column]) -> Vec<SelectItem> {
    let excluded = tessera_frontend::excluded(options);
    all.iter()
        .filter(|column| !excluded.iter().any(|name| name.value == column.name))
        .map(|column| named(column.expr.clone(), &column.name))
        .collect()
}

struct Names<'a> {
    merged: &'a Merged,
    /// Number of enclosing subqueries, whose names are their own.
    depth: usize,
    /// The parameters of the enclosing lambdas.
    parameters: Vec<Vec<String>>,
}

impl Names<'_> {
    fn is_parameter(&self, name: &str) -> bool {
        self.parameters.iter().flatten().any(|parameter| parameter.eq_ignore_ascii_case(name))
    }
}

impl VisitorMut for Names<'_> {
    type Break = ();

    counts_queries!(depth);

    fn pre_visit_expr(&mut self, expr: &mut Expr) -> ControlFlow<()> {
        // The name of a field is no name of a column.
        if let Some(call) = fields::of_value(expr) {
            *expr = call;
        }
        if let Expr::Lambda(lambda) = expr {
            self.parameters.push(lambda.params.iter().map(|p| p.name.value.clone()).collect());
        }
        ControlFlow::Continue(())
    }

    fn post_visit_expr(&mut self, expr: &mut Expr) -> ControlFlow<()> {
        if matches!(expr, Expr::Lambda(_)) {
            self.parameters.pop();
        } else if self.depth == 0
            && let Expr::Identifier(name) = expr
            && !self.is_parameter(&name.value)
            && let Some(meaning) = self.merged.get(&name.value)
        {
            *expr = meaning.clone();
        }
        ControlFlow::Continue(())
    }
}
