//! `ORDER BY ALL`: the keys are the positions of all items, `ORDER BY 1, 2, …`.

use sqlparser::ast::{Expr, OrderBy, OrderByExpr, OrderByKind, Query, SetExpr, Value};
use tessera_frontend::derived::query;
use tessera_frontend::error::Error;
use tessera_frontend::limits;

use super::super::row_values::columns_of;
use super::Pass;

impl Pass<'_> {
    /// Writes the keys of a query's `ORDER BY ALL`.
    ///
    /// # Errors
    /// `too_complex` for more items than an `ORDER BY` may have keys.
    pub(super) fn order_all(&self, ordered: &mut Query) -> Result<(), Error> {
        let Some(OrderBy { kind: OrderByKind::All(options), .. }) = &ordered.order_by else {
            return Ok(());
        };
        let options = *options;
        let count = match columns_of(ordered) {
            Some(count) => count,
            None => self.names(items_of(ordered))?.len(),
        };
        limits::check_keys(count, None)?;
        let key = |n: usize| OrderByExpr {
            expr: Expr::Value(Value::Number(n.to_string(), false).into()),
            options,
            with_fill: None,
        };
        let kind = OrderByKind::Expressions((1..=count).map(key).collect());
        ordered.order_by = Some(OrderBy { kind, interpolate: None });
        Ok(())
    }
}

/// A query with the columns of another one, whose rows do not matter.
fn items_of(ordered: &Query) -> Query {
    let mut inner = ordered.clone();
    inner.order_by = None;
    inner.limit_clause = None;
    if let SetExpr::Select(select) = &mut *inner.body {
        // Conditions may use columns of an outer query.
        (select.selection, select.having, select.qualify) = (None, None, None);
    }
    // The query keeps its own WITH.
    query(SetExpr::Query(Box::new(inner)))
}
