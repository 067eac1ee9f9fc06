//! Rewrites clauses to others with the same meaning, by their syntax alone.
//!
//! | written | becomes |
//! |---|---|
//! | `FETCH FIRST 3 ROWS ONLY` | `LIMIT 3` |
//! | `LIMIT 10%` | a condition on numbered rows: see [`percent`] |
//! | `t PIVOT (sum(v) FOR k IN ('a', 'b'))` | `(SELECT * EXCLUDE (v, k), sum(v) FILTER (WHERE k = 'a') AS a, sum(v) FILTER (WHERE k = 'b') AS b FROM t GROUP BY ALL)` |
//! | `SELECT unnest([1, 2])` | `SELECT unnest([1, 2]) FROM (VALUES (1)) tessera_rows(tessera_row)` |
//! | `GROUP BY ROLLUP ((a, b), c)` | `GROUP BY GROUPING SETS ((a, b, c), (a, b), ())` |
//! | `t TABLESAMPLE 10 PERCENT REPEATABLE (5)` | `(SELECT * FROM t QUALIFY tessera_draw(row_number() OVER (), 5) * 100 < 10) AS t` |
//! | `t UNPIVOT (v FOR k IN (a, b))` | `(SELECT * FROM (SELECT * EXCLUDE (a, b), unnest(make_array('a', 'b')) AS k, unnest(make_array(a, b)) AS v FROM t) WHERE v IS NOT NULL)` |

mod percent;
mod pivot;
mod sample;
mod sets;

use std::ops::ControlFlow;

pub(crate) use pivot::COLUMNS_MAX;
pub use sample::DRAW;
use sqlparser::ast::{
    Expr, Fetch, GroupByExpr, LimitClause, Query, Select, SelectItem, Spanned, TableFactor, Value,
    VisitorMut,
};

use crate::error::{Error, Position};
use crate::statement::Statement;
use crate::surface::walk::find;
use crate::walk::walk_mut;
use crate::{ast, scope};

/// Rewrites the query of a statement.
///
/// # Errors
/// `unsupported` for forms that the other clauses do not have; `syntax` for `LIMIT` and `FETCH` in one query.
pub(crate) fn rewrite(statement: &mut Statement) -> Result<(), Error> {
    let is_stored = is_stored(statement);
    let Some(query) = statement.query_mut() else { return Ok(()) };
    match walk_mut(query, &mut Clauses { is_stored }) {
        ControlFlow::Continue(()) => Ok(()),
        ControlFlow::Break(error) => Err(*error),
    }
}

/// True if the text of a statement's query is stored, or read again.
fn is_stored(statement: &Statement) -> bool {
    match statement {
        Statement::CreateView(_) | Statement::Insert(_) => true,
        Statement::CreateTensor(create) => create.temp,
        Statement::Explain(explain) => is_stored(&explain.statement),
        _ => false,
    }
}

/// Rewrites a `PIVOT` whose values are listed now.
///
/// # Errors
/// `unsupported`, as [`rewrite`].
pub(crate) fn list_pivot(factor: &mut TableFactor) -> Result<(), Error> {
    if let Some(new) = pivot::rewritten(factor, false)? {
        *factor = new;
    }
    Ok(())
}

struct Clauses {
    /// True if a PIVOT has to list its values: a query finds those of others.
    is_stored: bool,
}

impl VisitorMut for Clauses {
    type Break = Box<Error>;

    fn pre_visit_query(&mut self, query: &mut Query) -> ControlFlow<Box<Error>> {
        let limited = match query.fetch.take() {
            Some(fetch) => limit(fetch, query),
            None => percent::rewrite(query),
        };
        match limited {
            Ok(()) => ControlFlow::Continue(()),
            Err(error) => ControlFlow::Break(Box::new(error)),
        }
    }

    fn pre_visit_select(&mut self, select: &mut Select) -> ControlFlow<Box<Error>> {
        if let GroupByExpr::Expressions(keys, _) = &mut select.group_by
            && let Err(error) = keys.iter_mut().try_for_each(sets::expand)
        {
            return ControlFlow::Break(Box::new(error));
        }
        match one_row(select) {
            Ok(()) => ControlFlow::Continue(()),
            Err(error) => ControlFlow::Break(Box::new(error)),
        }
    }

    fn pre_visit_table_factor(&mut self, factor: &mut TableFactor) -> ControlFlow<Box<Error>> {
        let sampled = sample::rewritten(factor).transpose();
        match sampled.or_else(|| pivot::rewritten(factor, self.is_stored).transpose()) {
            Some(Ok(new)) => *factor = new,
            None => {}
            Some(Err(error)) => return ControlFlow::Break(Box::new(error)),
        }
        ControlFlow::Continue(())
    }
}

/// Gives a block without FROM whose items have an `unnest` a relation of one row.
fn one_row(select: &mut Select) -> Result<(), Error> {
    let is_unnest = |expr: &Expr| {
        let name = ast::function_name(expr)?;
        name.value.eq_ignore_ascii_case("unnest").then_some(())
    };
    let has_unnest = |item: &SelectItem| {
        ast::expr_of(item).is_some_and(|(expr, _)| find(expr, &is_unnest).is_some())
    };
    let items = &select.projection;
    let are_values = items.iter().all(|item| ast::expr_of(item).is_some());
    if !select.from.is_empty() || !are_values || !items.iter().any(has_unnest) {
        return Ok(());
    }
    let template = crate::query_of("SELECT 1 FROM (VALUES (1)) tessera_rows(tessera_row)")?;
    if let Some(mut query) = template
        && let Some(block) = scope::innermost_mut(&mut query)
    {
        select.from = std::mem::take(&mut block.from);
    }
    Ok(())
}

/// Sets the limit of a query that has a `FETCH`.
fn limit(fetch: Fetch, query: &mut Query) -> Result<(), Error> {
    let position = Position::of_span(query.body.span());
    let unsupported = |construct: &str, hint: &str| Error::Unsupported {
        construct: construct.to_string(),
        position,
        hint: Some(hint.to_string()),
    };
    if fetch.with_ties {
        let hint = "number the rows: `QUALIFY rank() OVER (ORDER BY …) <= 3`";
        return Err(unsupported("FETCH … WITH TIES", hint));
    }
    if fetch.percent {
        let hint = "number the rows: `QUALIFY percent_rank() OVER (ORDER BY …) < 0.1`";
        return Err(unsupported("FETCH … PERCENT", hint));
    }
    let one = || Expr::Value(Value::Number("1".to_string(), false).into());
    let rows = fetch.quantity.unwrap_or_else(one);
    let clause = query.limit_clause.get_or_insert_with(|| LimitClause::LimitOffset {
        limit: None,
        offset: None,
        limit_by: Vec::new(),
    });
    match clause {
        LimitClause::LimitOffset { limit: limit @ None, limit_by, .. } if limit_by.is_empty() => {
            *limit = Some(rows);
            Ok(())
        }
        _ => Err(Error::Syntax {
            message: "a query has LIMIT or FETCH, not both".to_string(),
            position,
            hint: None,
        }),
    }
}
