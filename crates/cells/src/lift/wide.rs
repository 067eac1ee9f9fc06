//! `SELECT *` of very many columns of one table of cells.
//!
//! Each of DataFusion's steps finds each column of a projection by comparing names one by one, so that its time grows
//! with the square of the number of columns. So one column is planned in place of all, and the scan of its rows gets the
//! others, too:
//!
//! ```text
//! SELECT * EXCLUDE (a) FROM cells_0 WHERE time > '2020' LIMIT 5
//!   ⇒  SELECT time FROM cells_0 WHERE time > '2020' LIMIT 5
//!        Limit: 5                                            Limit: 5
//!          TableScan: cells_0 [time], a filter, fetch=5   ⇒    TableScan: rows_0, all columns but a, fetch=5
//! ```
//! A plan of another form, as for conditions on cells, is left to the steps for all columns.

pub(super) mod totals;

use std::collections::BTreeSet;
use std::sync::Arc;

use datafusion::common::Result;
use datafusion::logical_expr::{EmptyRelation, Limit, LogicalPlan, TableScanBuilder, TableSource};
use sqlparser::ast::{Expr, Ident, Query, SelectItem, TableFactor};
use tessera_frontend::error::Error;
use tessera_frontend::scope::{innermost, innermost_mut};
use tessera_frontend::surface::{self, RelationKind};

use super::names::Prepared;
use super::table::{CellSource, Column};
use super::using::Stars;
use super::{Lift, Orders, Planned, error, is_column};

/// Minimum columns for which the time of DataFusion's steps matters.
const COLUMNS_MIN: usize = 256;

/// A query of all columns of a table of cells, except those that it excludes.
pub(super) struct Wide<'p> {
    /// The table, and its name in the query.
    name: &'p str,
    source: &'p Arc<dyn TableSource>,
    projection: Vec<usize>,
    orders: Orders,
    /// The same query of one column; `None` if it has no condition and no limit.
    narrow: Option<Query>,
}

/// The columns of a prepared query, if these are all of a table with many of them. `None` for any other query, and for
/// one with an error in its columns.
pub(super) fn wide<'p>(query: &Query, prepared: &'p Prepared) -> Option<Wide<'p>> {
    if query.with.is_some() || !tessera_frontend::is_star(query) {
        return None;
    }
    let select = innermost(query)?;
    let [SelectItem::Wildcard(options)] = select.projection.as_slice() else { return None };
    let TableFactor::Table { name, alias, .. } = &select.from.first()?.relation else {
        return None;
    };
    if alias.as_ref().is_some_and(|alias| !alias.columns.is_empty()) {
        return None;
    }
    let name = super::expansion::name_of(name)?;
    let (name, source) = prepared.tables.get_key_value(&name)?;
    let cells = source.downcast_ref::<CellSource>()?;
    let (fields, columns) = (cells.table.schema.fields(), &cells.table.columns);
    if fields.len() < COLUMNS_MIN {
        return None;
    }
    let known: BTreeSet<&str> = fields.iter().map(|field| field.name().as_str()).collect();
    let out = tessera_frontend::excluded(options);
    let excluded: BTreeSet<&str> = out.iter().map(|name| name.value.as_str()).collect();
    if excluded.len() < out.len() || !excluded.is_subset(&known) {
        return None;
    }
    let is_kept = |i: &usize| !excluded.contains(fields[*i].name().as_str());
    let projection: Vec<usize> = (0..fields.len()).filter(is_kept).collect();
    let is_unreadable = |i: &usize| matches!(columns[*i], Column::Unreadable(_));
    if projection.is_empty() || projection.iter().any(is_unreadable) {
        return None;
    }
    let orders = projection.iter().map(|&i| cells.table.origin(i)).collect();
    let is_label = |column: &Column| matches!(column, Column::Label { .. });
    let label = fields[columns.iter().position(is_label)?].name();
    let narrow = narrow(query, label)?;
    Some(Wide { name, source, projection, orders, narrow })
}

/// The query with a column in place of its `*`, which has no clauses but WHERE and a limit; `Some(None)` if it has none
/// at all.
fn narrow(query: &Query, column: &str) -> Option<Option<Query>> {
    let mut narrow = query.clone();
    let block = innermost_mut(&mut narrow)?;
    let column = Expr::Identifier(Ident::with_quote('"', column));
    block.projection = vec![SelectItem::UnnamedExpr(column)];
    let mut rest = narrow.clone();
    let is_limited = rest.limit_clause.take().is_some() | rest.fetch.take().is_some();
    let is_filtered = innermost_mut(&mut rest)?.selection.take().is_some();
    // Any other clause makes it a block of cells.
    let is_all = surface::kind_of_text(&rest) == RelationKind::Tensor;
    is_all.then(|| Some(narrow).filter(|_| is_limited || is_filtered))
}

impl Lift<'_> {
    /// The plan of all columns, and its orders; `None` if it has another form.
    pub(super) fn all_of(
        &mut self,
        wide: Wide<'_>,
        prepared: &Prepared,
        because: &str,
    ) -> Result<Option<Planned>, Error> {
        let (scans, notes) = (self.scans.len(), self.notes.len());
        let plan = match &wide.narrow {
            None => {
                let scan = TableScanBuilder::new(wide.name, wide.source.clone()).build();
                Some(LogicalPlan::TableScan(scan.map_err(error::plan)?))
            }
            // Its errors are those of the query of all columns.
            Some(query) => {
                let planned = self.optimized(query.clone(), prepared, because, false, Stars::Kept);
                planned.ok().map(|(plan, _)| plan)
            }
        };
        let plan = match plan {
            Some(plan) => self.widened(plan, &wide).map_err(error::plan)?,
            None => None,
        };
        if plan.is_none() {
            self.scans.truncate(scans);
            self.notes.truncate(notes);
        }
        Ok(plan.map(|plan| (plan, wide.orders)))
    }

    fn widened(&mut self, plan: LogicalPlan, wide: &Wide<'_>) -> Result<Option<LogicalPlan>> {
        let whole = || {
            TableScanBuilder::new(wide.name, wide.source.clone())
                .with_projection(Some(wide.projection.clone()))
        };
        Ok(match plan {
            LogicalPlan::Projection(items) if items.expr.iter().all(is_column) => {
                self.widened(Arc::unwrap_or_clone(items.input), wide)?
            }
            LogicalPlan::SubqueryAlias(alias) => {
                self.widened(Arc::unwrap_or_clone(alias.input), wide)?
            }
            LogicalPlan::Limit(Limit { skip, fetch, input }) => {
                let input = self.widened(Arc::unwrap_or_clone(input), wide)?;
                let limit =
                    |input| LogicalPlan::Limit(Limit { skip, fetch, input: Arc::new(input) });
                input.map(limit)
            }
            LogicalPlan::EmptyRelation(empty) if !empty.produce_one_row => {
                let schema = whole().build()?.projected_schema;
                let empty = EmptyRelation { produce_one_row: false, schema };
                Some(LogicalPlan::EmptyRelation(empty))
            }
            LogicalPlan::TableScan(scan) if scan.source.is::<CellSource>() => {
                let scan = whole().with_filters(scan.filters).with_fetch(scan.fetch).build()?;
                self.rows_of(&scan)?
            }
            _ => None,
        })
    }
}
