//! `SELECT *` of very many columns of one table of cells.
//!
//! Each of DataFusion's steps finds each column of a projection by comparing names one by one, so that its time grows
//! with the square of the number of columns. All columns of one table need none of these steps:
//!
//! ```text
//! SELECT * EXCLUDE (a) FROM cells_0 LIMIT 5      Limit: 5
//!                                                  TableScan: rows_0, all columns but a, fetch=5
//! ```

use std::collections::BTreeSet;
use std::sync::Arc;

use arrow::array::ArrayRef;
use datafusion::common::Result;
use datafusion::logical_expr::{Limit, LogicalPlan, TableScan, TableScanBuilder, lit};
use sqlparser::ast::{Expr, Ident, LimitClause, Query, SelectItem, TableFactor, Value};
use tessera_frontend::scope::{innermost, innermost_mut};
use tessera_frontend::surface::{self, RelationKind};

use super::Lift;
use super::along::Along;
use super::names::Prepared;
use super::table::{CellSource, Column};

/// Number of columns from which on the time of DataFusion's steps matters.
const COLUMNS_MIN: usize = 256;

/// All columns of a table of cells, except those that the query excludes.
pub(super) struct Wide {
    /// The scan of the table, with the limit of the query.
    pub(super) scan: TableScan,
    /// See [`CellPlan::orders`](super::CellPlan::orders).
    pub(super) orders: Vec<Option<ArrayRef>>,
}

/// The columns of a prepared query, if it is `SELECT * [EXCLUDE (…)] FROM table [LIMIT n]` with many of them. `None` for
/// any other query, and for one with an error in its columns, which DataFusion's plan reports.
pub(super) fn wide(query: &Query, prepared: &Prepared) -> Result<Option<Wide>> {
    let Some(options) = star(query) else { return Ok(None) };
    let Some(TableFactor::Table { name, alias, .. }) =
        innermost(query).and_then(|select| select.from.first()).map(|from| &from.relation)
    else {
        return Ok(None);
    };
    let is_renamed = alias.as_ref().is_some_and(|alias| !alias.columns.is_empty());
    let name = super::expansion::name_of(name).filter(|_| !is_renamed);
    let Some((name, source)) = name.and_then(|name| prepared.tables.get_key_value(&name)) else {
        return Ok(None);
    };
    let Some(cells) = source.downcast_ref::<CellSource>() else { return Ok(None) };
    let (fields, columns) = (cells.table.schema.fields(), &cells.table.columns);
    if fields.len() < COLUMNS_MIN {
        return Ok(None);
    }
    let known: BTreeSet<&str> = fields.iter().map(|field| field.name().as_str()).collect();
    let excluded: BTreeSet<&str> = options.excluded.iter().map(|e| e.value.as_str()).collect();
    let is_sound = excluded.len() == options.excluded.len() && excluded.is_subset(&known);
    let is_kept = |i: &usize| !excluded.contains(fields[*i].name().as_str());
    let projection: Vec<usize> = (0..fields.len()).filter(is_kept).collect();
    let is_unreadable = |i: &usize| matches!(columns[*i], Column::Unreadable(_));
    if !is_sound || projection.is_empty() || projection.iter().any(is_unreadable) {
        return Ok(None);
    }
    let orders = projection.iter().map(|&i| match &columns[i] {
        Column::Label { values: Along::Values(values), .. } => Some(values.clone()),
        _ => None,
    });
    let orders = orders.collect();
    let scan = TableScanBuilder::new(name.clone(), source.clone());
    let scan = scan.with_projection(Some(projection)).with_fetch(options.limit).build()?;
    Ok(Some(Wide { scan, orders }))
}

impl Lift<'_> {
    /// The plan of all columns, and its orders.
    pub(super) fn all_of(&mut self, wide: Wide) -> Result<(LogicalPlan, Vec<Option<ArrayRef>>)> {
        let Wide { scan, orders } = wide;
        let fetch = scan.fetch;
        let rows = self.rows_of(&scan)?.unwrap_or(LogicalPlan::TableScan(scan));
        let Some(rows_max) = fetch else { return Ok((rows, orders)) };
        let fetch = Some(Box::new(lit(rows_max as i64)));
        Ok((LogicalPlan::Limit(Limit { skip: None, fetch, input: Arc::new(rows) }), orders))
    }
}

/// A `*` as the only item, and the only clauses that may stand beside it.
struct Star {
    excluded: Vec<Ident>,
    limit: Option<usize>,
}

fn star(query: &Query) -> Option<Star> {
    if query.with.is_some() || !tessera_frontend::is_star(query) {
        return None;
    }
    let mut rest = query.clone();
    let limit = match rest.limit_clause.take() {
        None => None,
        Some(LimitClause::LimitOffset {
            limit: Some(Expr::Value(limit)),
            offset: None,
            limit_by,
        }) if limit_by.is_empty() => {
            let Value::Number(number, _) = &limit.value else { return None };
            Some(number.parse().ok()?)
        }
        Some(_) => return None,
    };
    let block = innermost_mut(&mut rest)?;
    let item = SelectItem::UnnamedExpr(Expr::Identifier(Ident::new("v")));
    let SelectItem::Wildcard(options) = std::mem::replace(block.projection.first_mut()?, item)
    else {
        return None;
    };
    // Any other clause makes it a block of cells.
    let is_all = surface::kind_of_text(&rest) == RelationKind::Tensor;
    is_all.then(|| Star { excluded: tessera_frontend::excluded(&options), limit })
}
