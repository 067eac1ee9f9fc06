//! Scans of cells as rows, sliced by the filters that the optimiser pushed into them.

use std::collections::BTreeMap;
use std::sync::Arc;

use arrow::array::{Array, AsArray};
use arrow::datatypes::Schema;
use datafusion::execution::SessionState;
use datafusion::logical_expr::{Expr, TableScan, TableSource};
use tessera_planner::build::Builder;
use tessera_planner::config::Config;
use tessera_planner::optimize::Rooted;

use super::labels::{Kept, Labels};
use super::lower::place;
use super::scan::{ScanColumn, TensorScan};
use super::table::{CellSource, CellTable, Column, dtype_of};
use super::{error, guards};
use tessera_frontend::error::Error;
use tessera_frontend::flatten;

impl CellTable {
    pub(super) fn label_axis(&self, expr: &Expr) -> Option<usize> {
        let on = self.dependence(expr).filter(|on| !on.cells && on.labels.len() == 1)?;
        on.labels.first().copied()
    }
}

/// The scan of a table's cells under its filters, projection and limit.
pub(crate) fn rows(
    scan: &TableScan,
    source: &CellSource,
    state: &SessionState,
    config: &Config,
    name: String,
) -> Result<TensorScan, Error> {
    let table = &*source.table;
    let mut labels = Labels::new(table, state);
    for filter in &scan.filters {
        if table.dependence(filter).is_some_and(|on| on.labels.is_empty() && !on.cells) {
            // The optimiser found the filter constant for all labels.
            let met = labels.evaluate(filter, None).map_err(error::plan)?;
            let met = met.as_boolean();
            if !(met.is_valid(0) && met.value(0))
                && let Some(kept) = labels.kept.first_mut()
            {
                *kept = Kept::Range { start: 0, len: 0 };
            }
            continue;
        }
        let bare = guards::unguarded(filter.clone()).map_err(error::plan)?;
        match (table.label_axis(filter), table.label_axis(&bare)) {
            (Some(axis), _) => labels.filter(filter, axis).map_err(error::plan)?,
            // The filter is also above the scan. An error here may be for labels without rows.
            (None, Some(axis)) => {
                if labels.filter(&bare, axis).is_err() {
                    super::go_on().map_err(error::plan)?;
                }
            }
            (None, None) if bare != *filter => {}
            (None, None) => {
                return Err(Error::Cells {
                    code: "internal",
                    message: format!("the filter `{filter}` does not depend on one dimension"),
                    position: None,
                    hint: None,
                });
            }
        }
    }
    if let Some(fetch) = scan.fetch {
        limit(&mut labels.kept, fetch as u64);
    }
    let shape = labels.shape();
    let whole = source.schema();
    let all: Vec<usize> = (0..whole.fields().len()).collect();
    let projection = scan.projection.as_ref().unwrap_or(&all);
    let mut b = Builder::new(config.clone());
    let (mut columns, mut nodes) = (Vec::new(), Vec::new());
    for &i in projection {
        columns.push(match table.columns.get(i) {
            None => ScanColumn::Row,
            Some(Column::Label { axis, values }) => {
                let kept = values.kept(&labels.kept[*axis]).map_err(error::plan)?;
                ScanColumn::label(*axis, kept)
            }
            Some(Column::Unreadable(error)) => {
                return Err(Error::Bind { error: error.clone(), position: None });
            }
            Some(Column::Cells { variable, axes }) => {
                let node = variable.build(&mut b).map_err(error::planner)?;
                let node = place(&mut b, node, axes, &labels.kept).map_err(error::planner)?;
                let sql = dtype_of(table.schema.field(i).data_type());
                let node = match sql {
                    Some(sql) => b.cast(node, sql).map_err(error::planner)?,
                    None => node,
                };
                nodes.push(node);
                ScanColumn::Cells(nodes.len() - 1)
            }
        });
    }
    let roots = flatten(&mut b, &nodes, &shape).map_err(error::planner)?;
    let fields: Vec<_> = projection.iter().map(|&i| whole.field(i).clone()).collect();
    Ok(TensorScan {
        name,
        schema: Arc::new(Schema::new(fields)),
        shape,
        columns,
        origins: BTreeMap::new(),
        presence: None,
        top: None,
        rooted: Rooted { graph: b.graph, roots },
        exploded: true,
    })
}

/// Limits the outer axes to the positions that the first `fetch` rows need.
fn limit(kept: &mut [Kept], fetch: u64) {
    let mut wanted = fetch.max(1);
    for a in 0..kept.len() {
        let inner: u64 = kept[a + 1..].iter().fold(1, |n, k| n.saturating_mul(k.len()));
        if inner == 0 {
            return;
        }
        let needed = wanted.div_ceil(inner).min(kept[a].len());
        kept[a] = match &kept[a] {
            Kept::Range { start, .. } => Kept::Range { start: *start, len: needed },
            Kept::Take(p) => Kept::Take(p[..needed as usize].into()),
        };
        if needed != 1 {
            return;
        }
        wanted = wanted.min(inner);
    }
}
