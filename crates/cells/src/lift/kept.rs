//! The positions that the conditions of a block keep along its dimensions, if they are on labels alone.

use datafusion::common::Result;
use datafusion::execution::SessionState;
use datafusion::logical_expr::{Expr, LogicalPlan, TableScan};
use sqlparser::ast::Query;
use tessera_frontend::cells::{KeptPositions, Positions};
use tessera_frontend::error::Error;
use tessera_planner::config::Config;

use super::labels::{Kept, Labels};
use super::table::{CellSource, CellTable};
use super::using::Stars;
use super::{CellTables, Density, Form, Lift, error, expansion, names};

/// The positions that `SELECT 1 FROM relation WHERE …` keeps along the dimensions of which it keeps not all; `None` if
/// the conditions are not on labels of one dimension each.
pub(super) fn kept(
    query: &Query,
    text: u64,
    tables: &dyn CellTables,
    state: &SessionState,
    config: &Config,
    density: Density,
) -> std::result::Result<Option<Vec<KeptPositions>>, Error> {
    tessera_frontend::limits::with_stack(|| {
        let because = "WHERE";
        let (query, prepared) = names::prepare(query, tables, because, density, text)?;
        expansion::check(&query)?;
        let form = Form { density, as_tensors: false };
        let mut lift = Lift::new(state, config, form);
        let (plan, _) = lift.optimized(query, &prepared, because, false, Stars::Kept)?;
        of_plan(&plan, state).map_err(error::plan)
    })
}

fn of_plan(plan: &LogicalPlan, state: &SessionState) -> Result<Option<Vec<KeptPositions>>> {
    match plan {
        LogicalPlan::Projection(items) if items.expr.iter().all(is_plain) => {
            of_plan(&items.input, state)
        }
        LogicalPlan::SubqueryAlias(alias) => of_plan(&alias.input, state),
        LogicalPlan::TableScan(scan) if scan.fetch.is_none() => {
            match scan.source.downcast_ref::<CellSource>() {
                Some(source) => of_scan(scan, &source.table, state),
                None => Ok(None),
            }
        }
        _ => Ok(None),
    }
}

/// True for a column or a literal, under whatever name.
fn is_plain(expr: &Expr) -> bool {
    match expr {
        Expr::Alias(alias) => is_plain(&alias.expr),
        other => matches!(other, Expr::Column(_) | Expr::Literal(..)),
    }
}

/// The positions that the filters of a scan keep.
fn of_scan(
    scan: &TableScan,
    table: &CellTable,
    state: &SessionState,
) -> Result<Option<Vec<KeptPositions>>> {
    let mut labels = Labels::new(table, state);
    for filter in &scan.filters {
        let Some(on) = table.dependence(filter).filter(|on| !on.cells) else { return Ok(None) };
        let mut axes = on.labels.into_iter();
        let (Some(axis), None) = (axes.next(), axes.next()) else { return Ok(None) };
        labels.filter(filter, axis)?;
    }
    let axes = table.axes.iter().zip(labels.kept).filter(|(axis, kept)| kept.len() < axis.len);
    let kept = axes.map(|(axis, kept)| KeptPositions {
        dim: axis.name.clone(),
        len: axis.len,
        positions: match kept {
            Kept::Range { start, len } => Positions::Range { start, len },
            Kept::Take(positions) => Positions::List(positions),
        },
    });
    Ok(Some(kept.collect()))
}
