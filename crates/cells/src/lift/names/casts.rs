//! Casts without an alias, which DataFusion names like the expressions that they convert.
//!
//! | written | becomes |
//! |---|---|
//! | `(SELECT x, x::int FROM t) q` | `(SELECT x, x::int AS "x::INT" FROM t) q` |
//! | `FROM (SELECT …) q GROUP BY k, x::int` | `FROM (SELECT …) q GROUP BY k, GROUPING SETS ((x::int))` |
//! | `GROUP BY t::date, t::time` | `GROUP BY t::date, coalesce(t::time)`, and so in the other clauses |
//! | `SELECT DISTINCT x::int FROM t ORDER BY x::int` | `SELECT DISTINCT x::int FROM t ORDER BY 1` |
//! | `12345678901234567.8::decimal(20, 1)` | `'12345678901234567.8'::decimal(20, 1)` |
//!
//! DataFusion knows which columns the keys of inner groups determine. It takes `x::int` for the key `x` and also groups
//! by those columns, but not in sets of groups; [`super::super::grouping`] makes a key of such a set again. After
//! DISTINCT, DataFusion does not look for an expression among the items, so a number replaces it. Two casts of a column
//! have one name; `coalesce` of one value makes another name. DataFusion reads a number of many digits as a float, a text exactly.

use std::ops::ControlFlow;

use super::Relations;
use crate::walk::counts_queries;
use sqlparser::ast::{
    CastKind, DataType, Distinct, Expr, GroupByExpr, Ident, OrderByExpr, Query, Select, SelectItem,
    SetExpr, TableFactor, TableWithJoins, UnaryOperator, Value, VisitorMut,
};
use tessera_frontend::ast;
use tessera_frontend::surface::walk::find;
use tessera_frontend::walk::walk_mut;

/// Digits that every float has.
const FLOAT_DIGITS: usize = 15;

/// Makes a text of a number of more digits than a float has, if it is converted to a decimal.
pub(super) fn keep_digits(expr: &mut Expr) {
    let Expr::Cast { expr: inner, data_type, .. } = expr else { return };
    if !matches!(data_type, DataType::Decimal(_) | DataType::Numeric(_) | DataType::Dec(_)) {
        return;
    }
    let mut number = &mut **inner;
    while let Expr::Nested(inside) = number {
        number = inside;
    }
    if let Expr::Value(value) = number
        && let Value::Number(text, _) = &value.value
        && text.bytes().filter(u8::is_ascii_digit).count() > FLOAT_DIGITS
    {
        value.value = Value::SingleQuotedString(text.clone());
    }
}

/// Names the items with a cast in them by their text.
pub(super) fn name(select: &mut Select) {
    for item in &mut select.projection {
        let SelectItem::UnnamedExpr(expr) = item else { continue };
        let has_cast = find(expr, &|e| is_cast(e).then_some(())).is_some();
        if !has_cast || find(expr, &is_unnest).is_some() {
            continue;
        }
        let Some(text) = ast::text(expr) else { continue };
        let expr = std::mem::replace(expr, ast::null());
        *item = SelectItem::ExprWithAlias { expr, alias: Ident::with_quote('"', text) };
    }
}

/// Gives keys of GROUP BY that convert the same column names of their own.
pub(super) fn apart(query: &mut Query) {
    let Query { body, order_by, .. } = query;
    let SetExpr::Select(select) = &mut **body else { return };
    let mut casts: Vec<Expr> = Vec::new();
    for cast in keys(select) {
        if !casts.contains(&cast) {
            casts.push(cast);
        }
    }
    let before = |at: usize| {
        let is_same = |other: &&Expr| column(other) == column(&casts[at]);
        casts[..at].iter().filter(is_same).count()
    };
    let counts: Vec<usize> = (0..casts.len()).map(before).collect();
    if counts.iter().all(|count| *count == 0) {
        return;
    }
    name(select);
    let mut wrap = Wrap { casts: casts.into_iter().zip(counts).collect(), queries: 0 };
    let _ = walk_mut(&mut select.projection, &mut wrap);
    let _ = walk_mut(&mut select.group_by, &mut wrap);
    let _ = walk_mut(&mut select.having, &mut wrap);
    let _ = walk_mut(&mut select.qualify, &mut wrap);
    let _ = walk_mut(order_by, &mut wrap);
}

/// The casts that are keys of groups, with one spelling each.
fn keys(select: &Select) -> Vec<Expr> {
    let items = &select.projection;
    let mut found = Vec::new();
    match &select.group_by {
        GroupByExpr::All(_) => found.extend(items.iter().filter_map(value).cloned()),
        GroupByExpr::Expressions(keys, _) => {
            for key in keys {
                match key {
                    Expr::Rollup(sets) | Expr::Cube(sets) | Expr::GroupingSets(sets) => {
                        found.extend(sets.iter().flatten().cloned());
                    }
                    Expr::Identifier(name) => {
                        let item = items.iter().find(|item| is_called(item, name));
                        found.extend(item.and_then(value).cloned());
                    }
                    key => found.extend(cast(key, items)),
                }
            }
        }
    }
    found.iter().map(plain).filter(|key| matches!(key, Expr::Cast { .. })).collect()
}

/// The column that a cast converts, by the last part of its name, or else the text of the operand.
fn column(cast: &Expr) -> String {
    match cast {
        Expr::Cast { expr: inner, .. } | Expr::Nested(inner) => column(inner),
        Expr::Identifier(name) => name.value.to_lowercase(),
        Expr::CompoundIdentifier(parts) => {
            parts.last().map_or_else(String::new, |name| name.value.to_lowercase())
        }
        other => other.to_string().to_lowercase(),
    }
}

/// Wraps each cast in a number of calls of `coalesce`.
struct Wrap {
    casts: Vec<(Expr, usize)>,
    /// Number of open subqueries, whose columns are their own.
    queries: usize,
}

impl VisitorMut for Wrap {
    type Break = ();

    counts_queries!(queries);

    fn post_visit_expr(&mut self, expr: &mut Expr) -> ControlFlow<()> {
        if self.queries > 0 || !matches!(expr, Expr::Cast { .. }) {
            return ControlFlow::Continue(());
        }
        let written = plain(expr);
        let count = self.casts.iter().find(|(cast, _)| *cast == written).map_or(0, |found| found.1);
        for _ in 0..count {
            let inner = std::mem::replace(expr, ast::null());
            *expr = super::call("coalesce", vec![inner]);
        }
        ControlFlow::Continue(())
    }
}

impl Relations<'_> {
    /// Makes sets of the keys of GROUP BY that are casts, in a block over relations other than tables.
    pub(super) fn group_casts(&self, select: &mut Select) {
        let GroupByExpr::Expressions(keys, modifiers) = &mut select.group_by else { return };
        let are_tables = |from: &TableWithJoins| {
            self.is_table(&from.relation) && from.joins.iter().all(|j| self.is_table(&j.relation))
        };
        if !modifiers.is_empty() || select.from.iter().all(are_tables) {
            return;
        }
        for key in keys {
            if let Some(cast) = cast(key, &select.projection) {
                *key = Expr::GroupingSets(vec![vec![cast]]);
            }
        }
    }

    fn is_table(&self, factor: &TableFactor) -> bool {
        match factor {
            TableFactor::Table { name, .. } => {
                let last = name.0.last().and_then(|part| part.as_ident());
                last.is_some_and(|name| self.tables.contains_key(&name.value))
            }
            TableFactor::UNNEST { .. } | TableFactor::Function { .. } => true,
            _ => false,
        }
    }
}

/// The cast that a key of GROUP BY is, perhaps by the number or the alias of an item.
fn cast(key: &Expr, items: &[SelectItem]) -> Option<Expr> {
    match key {
        key if is_cast(key) => Some(key.clone()),
        Expr::Value(number) => match &number.value {
            Value::Number(text, _) => numbered(items, text.parse().ok()?),
            _ => None,
        },
        Expr::Identifier(name) => {
            items.iter().any(|item| is_called(item, name)).then(|| key.clone())
        }
        _ => None,
    }
}

/// Replaces the keys of ORDER BY that are items by the numbers of these, after DISTINCT.
pub(super) fn order(keys: &mut [OrderByExpr], select: &Select) {
    if !matches!(select.distinct, Some(Distinct::Distinct)) {
        return;
    }
    let items = select.projection.iter().map_while(|item| value(item).map(plain));
    let items: Vec<Expr> = items.collect();
    for key in keys {
        if matches!(key.expr, Expr::Identifier(_) | Expr::CompoundIdentifier(_) | Expr::Value(_)) {
            continue;
        }
        let wanted = plain(&key.expr);
        if let Some(at) = items.iter().position(|item| *item == wanted) {
            key.expr = Expr::Value(Value::Number((at + 1).to_string(), false).into());
        }
    }
}

fn is_cast(expr: &Expr) -> bool {
    match expr {
        Expr::Nested(inner) | Expr::UnaryOp { op: UnaryOperator::Plus, expr: inner } => {
            is_cast(inner)
        }
        other => matches!(other, Expr::Cast { .. } | Expr::AtTimeZone { .. }),
    }
}

fn is_unnest(expr: &Expr) -> Option<()> {
    ast::function_name(expr)?.value.eq_ignore_ascii_case("unnest").then_some(())
}

/// The item of a number, if it is a cast.
fn numbered(items: &[SelectItem], number: usize) -> Option<Expr> {
    let before = items.get(..number)?;
    let last = before.iter().map(value).collect::<Option<Vec<_>>>()?.pop()?;
    is_cast(last).then(|| last.clone())
}

/// The expression of an item that is one column.
fn value(item: &SelectItem) -> Option<&Expr> {
    Some(ast::expr_of(item)?.0)
}

fn is_called(item: &SelectItem, name: &Ident) -> bool {
    matches!(item, SelectItem::ExprWithAlias { expr, alias }
        if is_cast(expr) && alias.value.eq_ignore_ascii_case(&name.value))
}

/// The expression with one spelling of each cast, and without parentheses around it.
fn plain(expr: &Expr) -> Expr {
    struct Spell;
    impl VisitorMut for Spell {
        type Break = ();

        fn post_visit_expr(&mut self, expr: &mut Expr) -> ControlFlow<()> {
            if let Expr::Cast { kind: kind @ CastKind::DoubleColon, .. } = expr {
                *kind = CastKind::Cast;
            }
            ControlFlow::Continue(())
        }
    }
    let mut inner = expr;
    while let Expr::Nested(nested) = inner {
        inner = nested;
    }
    let mut plain = inner.clone();
    let _ = walk_mut(&mut plain, &mut Spell);
    plain
}
