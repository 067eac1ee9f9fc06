//! Keys of `ORDER BY` that name a column of the block's relations by its relation, beside an item with that alias, or
//! that have a subquery, which may use columns of these relations:
//!
//! ```text
//! SELECT t.a AS c FROM t ORDER BY t.c
//!   ⇒  SELECT * EXCLUDE (tessera_order_0)
//!      FROM (SELECT t.a AS c, t.c AS tessera_order_0 FROM t) ORDER BY tessera_order_0
//! ```
//! DataFusion would add `t.c` to the items for the sort, and report `c` as ambiguous. It does not add the columns that a
//! subquery uses.

use std::collections::BTreeMap;
use std::ops::ControlFlow;

use sqlparser::ast::{
    ExcludeSelectItem, Expr, Ident, ObjectName, OrderBy, OrderByKind, Query, SelectItem, SetExpr,
    TableWithJoins, Value, Visitor, WildcardAdditionalOptions,
};
use tessera_frontend::derived::{all_of, derived};
use tessera_frontend::surface::walk::find;
use tessera_frontend::walk::walk;

use super::super::using::replace_in;
use super::casts;

/// The items with an alias, in parentheses, by the alias.
type Items = BTreeMap<String, Expr>;

/// Moves the items and keys of such a query into a subquery.
pub(super) fn apart(query: &mut Query) {
    let Some(OrderBy { kind: OrderByKind::Expressions(keys), .. }) = &mut query.order_by else {
        return;
    };
    let SetExpr::Select(select) = &mut *query.body else { return };
    casts::order(keys, select);
    let aliased = |item: &SelectItem| match item {
        SelectItem::ExprWithAlias { expr, alias } => {
            Some((alias.value.clone(), Expr::Nested(Box::new(expr.clone()))))
        }
        _ => None,
    };
    let items: Items = select.projection.iter().filter_map(aliased).collect();
    let is_item = |key: &Expr| {
        select.projection.iter().any(|item| match item {
            SelectItem::ExprWithAlias { expr, .. } | SelectItem::UnnamedExpr(expr) => expr == key,
            _ => false,
        })
    };
    let is_hidden = |key: &Expr| !is_item(key) && (names_hidden(key, &items) || has_subquery(key));
    if select.distinct.is_some() || !keys.iter().any(|key| is_hidden(&key.expr)) {
        return;
    }
    let mut hidden = Vec::new();
    for key in keys.iter_mut() {
        // The names of items, and their numbers, mean the same outside.
        let stays = match &key.expr {
            Expr::Identifier(name) => items.contains_key(&name.value),
            Expr::Value(value) => matches!(value.value, Value::Number(..)),
            _ => false,
        };
        if stays {
            continue;
        }
        let name = Ident::with_quote('"', format!("tessera_order_{}", hidden.len()));
        let mut expr = std::mem::replace(&mut key.expr, Expr::Identifier(name.clone()));
        // The subquery that computes the key does not know the aliases.
        replace_in(&mut expr, &items);
        select.projection.push(SelectItem::ExprWithAlias { expr, alias: name.clone() });
        hidden.push(ObjectName::from(vec![name]));
    }
    let relation = derived((**select).clone(), None);
    let Some(mut outer) = all_of(TableWithJoins { relation, joins: vec![] }) else { return };
    let options = WildcardAdditionalOptions {
        opt_exclude: Some(ExcludeSelectItem::Multiple(hidden)),
        ..WildcardAdditionalOptions::default()
    };
    outer.projection = vec![SelectItem::Wildcard(options)];
    **select = outer;
}

fn has_subquery(key: &Expr) -> bool {
    let is_one = |e: &Expr| {
        matches!(e, Expr::Subquery(_) | Expr::Exists { .. } | Expr::InSubquery { .. }).then_some(())
    };
    find(key, &is_one).is_some()
}

/// True if an expression has a name `relation.column` whose column is the alias of an item.
fn names_hidden(key: &Expr, items: &Items) -> bool {
    struct Search<'a>(&'a Items);
    impl Visitor for Search<'_> {
        type Break = ();

        fn pre_visit_expr(&mut self, expr: &Expr) -> ControlFlow<()> {
            let Expr::CompoundIdentifier(parts) = expr else { return ControlFlow::Continue(()) };
            let Some(column) = parts.last() else { return ControlFlow::Continue(()) };
            match self.0.keys().any(|alias| alias.eq_ignore_ascii_case(&column.value)) {
                true => ControlFlow::Break(()),
                false => ControlFlow::Continue(()),
            }
        }
    }
    walk(key, &mut Search(items)).is_break()
}
