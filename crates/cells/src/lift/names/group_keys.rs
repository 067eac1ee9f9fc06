//! Keys of GROUP BY that DataFusion takes for others, or refuses.
//!
//! | written | becomes |
//! |---|---|
//! | `SELECT k, 7 AS n … GROUP BY k, n` | `… GROUP BY k, coalesce(7)`: a number would be that of an item |
//! | `SELECT k, k AS n … GROUP BY ROLLUP (k, n)` | `… GROUP BY GROUPING SETS ((k), (k), ())`: a key may occur once |

use sqlparser::ast::{Expr, GroupByExpr, Select, SelectItem, UnaryOperator, Value};

use super::columns::Columns;

/// Keys of a CUBE whose sets are written out.
const KEYS_MAX: usize = 10;

/// Rewrites the keys of a block; `columns` has the names of its relations' columns, which aliases do not hide here.
pub(super) fn rewrite(select: &mut Select, columns: impl Fn(&Select) -> Columns) {
    let GroupByExpr::Expressions(keys, _) = &select.group_by else { return };
    let new = |key| rewritten(key, &select.projection);
    if !keys.iter().any(|key| new(key).is_some()) {
        return;
    }
    let Some(columns) = columns(select) else { return };
    let mut items = select.projection.clone();
    items.retain(|item| match item {
        SelectItem::ExprWithAlias { alias, .. } => !columns.contains(&alias.value.to_lowercase()),
        _ => false,
    });
    let GroupByExpr::Expressions(keys, _) = &mut select.group_by else { return };
    for key in keys {
        if let Some(new) = rewritten(key, &items) {
            *key = new;
        }
    }
}

fn rewritten(key: &Expr, items: &[SelectItem]) -> Option<Expr> {
    let sets: Vec<Vec<Expr>> = match key {
        Expr::Rollup(parts) if repeats(parts, items) => {
            (0..=parts.len()).rev().map(|count| parts[..count].concat()).collect()
        }
        Expr::Cube(parts) if repeats(parts, items) && parts.len() <= KEYS_MAX => subsets(parts),
        key => {
            let number = aliased(key, items).filter(|item| is_integer(item))?;
            return Some(super::call("coalesce", vec![number.clone()]));
        }
    };
    Some(Expr::GroupingSets(sets.into_iter().map(|set| distinct(set, items)).collect()))
}

/// The item that a key names by its alias; `None` for other keys.
fn aliased<'a>(key: &Expr, items: &'a [SelectItem]) -> Option<&'a Expr> {
    let Expr::Identifier(name) = key else { return None };
    items.iter().find_map(|item| match item {
        SelectItem::ExprWithAlias { expr, alias }
            if alias.value.eq_ignore_ascii_case(&name.value) =>
        {
            Some(expr)
        }
        _ => None,
    })
}

fn is_integer(expr: &Expr) -> bool {
    match expr {
        Expr::Nested(inner) => is_integer(inner),
        Expr::UnaryOp { op: UnaryOperator::Minus | UnaryOperator::Plus, expr } => is_integer(expr),
        Expr::Value(value) => {
            matches!(&value.value, Value::Number(text, _) if text.parse::<u64>().is_ok())
        }
        _ => false,
    }
}

/// What a key stands for.
fn meaning<'a>(key: &'a Expr, items: &'a [SelectItem]) -> &'a Expr {
    let mut meaning = aliased(key, items).unwrap_or(key);
    while let Expr::Nested(inner) = meaning {
        meaning = inner;
    }
    meaning
}

/// True if a key occurs twice in the parts of ROLLUP or CUBE.
fn repeats(parts: &[Vec<Expr>], items: &[SelectItem]) -> bool {
    let keys: Vec<&Expr> = parts.iter().flatten().map(|key| meaning(key, items)).collect();
    keys.iter().enumerate().any(|(at, key)| keys[..at].contains(key))
}

/// The sets of CUBE, the one of all keys first.
fn subsets(parts: &[Vec<Expr>]) -> Vec<Vec<Expr>> {
    let Some((first, rest)) = parts.split_first() else { return vec![Vec::new()] };
    let without = subsets(rest);
    let with = without.iter().map(|set| [first.as_slice(), set.as_slice()].concat());
    with.chain(without.iter().cloned()).collect()
}

/// The keys of a set, each one once.
fn distinct(set: Vec<Expr>, items: &[SelectItem]) -> Vec<Expr> {
    let mut distinct: Vec<Expr> = Vec::new();
    for key in set {
        if !distinct.iter().any(|known| meaning(known, items) == meaning(&key, items)) {
            distinct.push(key);
        }
    }
    distinct
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]
    use super::*;
    use std::collections::BTreeSet;
    use tessera_frontend::scope;

    fn group_by(sql: &str) -> String {
        let mut query = tessera_frontend::query_of(sql).unwrap().unwrap();
        let select = scope::innermost_mut(&mut query).unwrap();
        rewrite(select, |_| Some(BTreeSet::from(["k".to_string(), "v".to_string()])));
        select.group_by.to_string()
    }

    #[test]
    fn keys_that_occur_twice_and_numbers_are_rewritten() {
        for (keys, want) in [
            ("k, n", "GROUP BY k, coalesce(7)"),
            ("k, 1", "GROUP BY k, 1"),
            ("v", "GROUP BY v"),
            ("ROLLUP (k, v)", "GROUP BY ROLLUP (k, v)"),
            ("ROLLUP (k, j)", "GROUP BY GROUPING SETS ((k), (k), ())"),
            ("CUBE (k, j)", "GROUP BY GROUPING SETS ((k), (k), (j), ())"),
        ] {
            let sql = format!("SELECT k, k AS j, 7 AS n, 8 AS v, count(*) FROM t GROUP BY {keys}");
            assert_eq!(group_by(&sql), want, "{keys}");
        }
    }
}
