//! `LIMIT 10%` as a condition on numbered rows, of which the query has to count all.
//!
//! ```text
//! SELECT a, b FROM t ORDER BY b LIMIT 10% OFFSET 5
//!   ⇒  SELECT * EXCLUDE (tessera_row, tessera_rows)
//!      FROM (SELECT *, row_number() OVER (ORDER BY b) AS tessera_row, count(*) OVER () AS tessera_rows
//!            FROM (SELECT a, b FROM t WHERE true) tessera_body) tessera_numbered
//!      WHERE tessera_row > 5 AND tessera_row <= 5 + floor(tessera_rows * 10 / 100.0)
//!      QUALIFY row_number() OVER (ORDER BY tessera_row) > 0
//! ```
//! The last window puts the rows back into their order. So the order may refer to columns of the result only.

use sqlparser::ast::{Expr, LimitClause, OrderByKind, Query, SetExpr, Spanned, TableFactor, Value};

use crate::ast;
use crate::derived::{query as bare, relation_of};
use crate::error::{BindError, Error, Position};
use crate::functions::is_aggregate;
use crate::rearranged::PERCENT;
use crate::scope;
use crate::surface::walk::find;

/// Rewrites a query whose limit is a percentage.
///
/// # Errors
/// `invalid_argument` for a percentage beyond 100, `unsupported` for an order by other columns than those of the result.
pub(super) fn rewrite(query: &mut Query) -> Result<(), Error> {
    let Some(LimitClause::LimitOffset { limit: Some(limit), offset, .. }) = &query.limit_clause
    else {
        return Ok(());
    };
    if ast::function_name(limit).is_none_or(|name| name.value != PERCENT) {
        return Ok(());
    }
    let position = Position::of_span(limit.span());
    let is_number = |expr: &Expr| match expr {
        Expr::Value(value) => match &value.value {
            Value::Number(text, _) => Some(text.clone()),
            _ => None,
        },
        _ => None,
    };
    let percent = find(limit, &is_number).unwrap_or_default();
    if !percent.parse().is_ok_and(|percent: f64| percent <= 100.0) {
        return Err(Error::Bind {
            error: BindError::InvalidArgument {
                function: "LIMIT".into(),
                argument: format!("`{percent}%`"),
                reason: "must be from 0 to 100".into(),
            },
            position,
        });
    }
    let start = offset.as_ref().map_or_else(|| "0".to_string(), |own| format!("({})", own.value));
    let order = match &query.order_by {
        Some(order) if order.interpolate.is_none() && is_by_columns(&order.kind) => {
            order.to_string()
        }
        None => String::new(),
        Some(_) => {
            return Err(Error::unsupported("LIMIT of a percentage with this ORDER BY", position)
                .with_hint("order by names of columns of the result"));
        }
    };
    let text = format!(
        "SELECT * EXCLUDE (tessera_row, tessera_rows) FROM (SELECT *, row_number() OVER ({order}) AS tessera_row, count(*) OVER () AS tessera_rows FROM x tessera_body) tessera_numbered WHERE tessera_row > {start} AND tessera_row <= {start} + floor(tessera_rows * {percent} / 100.0) QUALIFY row_number() OVER (ORDER BY tessera_row) > 0"
    );
    let Some(mut new) = crate::query_of(&text)? else { return Ok(()) };
    std::mem::swap(&mut query.body, &mut new.body);
    (query.order_by, query.limit_clause) = (None, None);
    // The limit makes the block one of cells.
    if let SetExpr::Select(select) = &mut *new.body
        && !select.from.is_empty()
        && select.selection.is_none()
    {
        select.selection = Some(Expr::Value(Value::Boolean(true).into()));
    }
    if let Some(place) = scope::innermost_mut(query).and_then(relation_of)
        && let TableFactor::Table { alias, .. } = place
    {
        let (alias, subquery) = (alias.take(), Box::new(bare(*new.body)));
        *place = TableFactor::Derived { lateral: false, subquery, alias, sample: None };
    }
    Ok(())
}

/// True if all keys are expressions of columns without a relation: others may not be columns of the result.
fn is_by_columns(order: &OrderByKind) -> bool {
    let OrderByKind::Expressions(keys) = order else { return false };
    let is_other = |expr: &Expr| match expr {
        Expr::CompoundIdentifier(_) => Some(()),
        expr => is_aggregate(&ast::function_name(expr)?.value).then_some(()),
    };
    keys.iter().all(|key| {
        let is_number = matches!(key.expr, Expr::Value(_));
        key.with_fill.is_none() && !is_number && find(&key.expr, &is_other).is_none()
    })
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]
    use crate::error::Error;

    fn of(text: &str) -> Result<String, Error> {
        Ok(crate::query_of(text)?.unwrap().to_string())
    }

    #[test]
    fn percentages_are_conditions_on_numbers_of_rows() {
        let want = "SELECT * EXCLUDE (tessera_row, tessera_rows) FROM (SELECT *, row_number() OVER (ORDER BY b DESC) AS tessera_row, count(*) OVER () AS tessera_rows FROM (SELECT a, b FROM t WHERE true) tessera_body) tessera_numbered WHERE tessera_row > (5) AND tessera_row <= (5) + floor(tessera_rows * 12.5 / 100.0) QUALIFY row_number() OVER (ORDER BY tessera_row) > 0";
        let plain = |text: &str| of(text).map(|text| text.replace(" AS tessera_", " tessera_"));
        let want = want.replace(" AS tessera_", " tessera_");
        for limit in ["LIMIT 12.5% OFFSET 5", "LIMIT 12.5 PERCENT OFFSET 5"] {
            let text = format!("SELECT a, b FROM t ORDER BY b DESC {limit}");
            assert_eq!(plain(&text).unwrap(), want);
            assert_eq!(
                plain(&format!("SELECT 1 FROM ({text})")).unwrap(),
                format!("SELECT 1 FROM ({want})")
            );
        }
        assert!(
            of("WITH c AS (FROM t) FROM c LIMIT 10%")
                .unwrap()
                .starts_with("WITH c AS (SELECT * FROM t) SELECT *")
        );
        for text in [
            "SELECT a FROM t LIMIT 101%",
            "SELECT a FROM t ORDER BY 1 LIMIT 10%",
            "SELECT a FROM t ORDER BY t.a LIMIT 10%",
            "SELECT a FROM t ORDER BY ALL LIMIT 10%",
            "SELECT a FROM t GROUP BY a ORDER BY count(*) LIMIT 10%",
        ] {
            assert!(of(text).is_err(), "{text}");
        }
        assert!(of("SELECT a FROM t LIMIT 10 % 3").unwrap().ends_with("LIMIT 10 % 3"));
    }
}
