//! `ORDER BY key LIMIT k`: selects the rows that can be among the first k, which are then sorted.
//!
//! ```text
//! Limit: 5                                      a label as the key: whole positions, if WHERE keeps all their rows
//!   Sort: time DESC           time, t2m [8, 20]      ⇒  the last position of time has 20 rows: t2m[7:8]
//!   Sort: t2m DESC            t2m [8, 20]            ⇒  all cells; those behind the best 5 so far become no rows
//! ```
//! Rows that are equal by the first key are all kept if other keys follow.

use arrow::compute::{SortOptions, sort_to_indices};
use datafusion::common::ScalarValue;
use datafusion::execution::SessionState;
use datafusion::logical_expr::{Expr, Limit, LogicalPlan, Sort, SortExpr};
use tessera_planner::build::Builder;
use tessera_planner::config::Config;
use tessera_planner::ir::NodeId;

use super::super::labels::{Factors, Kept, canonical};
use super::super::lower::Reason;
use super::super::relation::{Column, Relation};
use super::super::scan::{TensorScan, Top};
use super::Dense;

/// Maximum number of first rows for this optimisation.
const ROWS_MAX: u64 = 1 << 20;

/// The key that orders the rows.
pub(super) struct First {
    pub(super) key: NodeId,
    /// The selection, whose root is not known yet.
    pub(super) top: Top,
}

/// The sort below a limit, through projections.
pub(crate) fn sort_below(limit: &Limit) -> Option<&Sort> {
    let mut plan = &*limit.input;
    loop {
        match plan {
            LogicalPlan::Projection(projection) => plan = &projection.input,
            LogicalPlan::Sort(sort) => return Some(sort),
            _ => return None,
        }
    }
}

/// The rows of a sort's input that the limit can return, as a scan of that name.
pub(crate) fn top(
    limit: &Limit,
    sort: &Sort,
    state: &SessionState,
    config: &Config,
    name: String,
) -> Result<TensorScan, Reason> {
    let number = |expr: &Option<Box<Expr>>, none| match expr.as_deref() {
        None => none,
        Some(Expr::Literal(ScalarValue::Int64(Some(n)), _)) => u64::try_from(*n).ok(),
        Some(_) => None,
    };
    let rows = match (number(&limit.fetch, None), number(&limit.skip, Some(0))) {
        (Some(fetch), Some(skip)) => fetch.saturating_add(skip),
        _ => return Err("LIMIT is not a number".to_string()),
    };
    if rows == 0 || rows > ROWS_MAX {
        return Err(format!("LIMIT keeps {rows} rows"));
    }
    let Some(first) = sort.expr.first() else { return Err("nothing is ordered".to_string()) };
    let mut dense = Dense { b: Builder::new(config.clone()), state, is_used: &|_| true };
    let mut relation = dense.relation(&sort.input)?;
    if relation.keep.is_none()
        && let Some(axis) = relation.axis(&first.expr)
    {
        dense.positions(&mut relation, axis, first, rows)?;
        return dense.scan(relation, name, None);
    }
    let mut key = &first.expr;
    while let Expr::Alias(alias) = key {
        key = &alias.expr;
    }
    let known = match key {
        Expr::Column(c) => relation.column(c),
        _ => None,
    };
    let key = match known {
        Some(Column::Cells(node)) => *node,
        _ => dense.lower(&relation).expr(key)?,
    };
    let ties = sort.expr.len() > 1;
    let top = Top { root: 0, rows, descending: !first.asc, nulls_first: first.nulls_first, ties };
    dense.scan(relation, name, Some(First { key, top }))
}

impl Dense<'_> {
    /// Keeps the positions of an axis with the first rows by a label, and those equal to the last.
    fn positions(
        &mut self,
        relation: &mut Relation,
        axis: usize,
        first: &SortExpr,
        rows: u64,
    ) -> Result<(), Reason> {
        let shape = relation.shape();
        let others = shape.iter().enumerate().filter(|(a, _)| *a != axis);
        let each = others.fold(1u64, |n, (_, &len)| n.saturating_mul(len)).max(1);
        let wanted = usize::try_from(rows.div_ceil(each)).unwrap_or(usize::MAX);
        let labels = relation
            .evaluate(&first.expr, Some(axis), self.state)
            .map_err(|e| e.strip_backtrace())?;
        let labels = canonical(&labels);
        let options = SortOptions { descending: !first.asc, nulls_first: first.nulls_first };
        let order = sort_to_indices(&labels, Some(options), None).map_err(|e| e.to_string())?;
        let order = order.values();
        let codes = Factors::of(&[labels]).map_err(|e| e.strip_backtrace())?.codes;
        let mut end = wanted.min(order.len());
        while end > 0 && end < order.len() && {
            let (last, next) = (order[end - 1] as usize, order[end] as usize);
            codes[last] == codes[next]
        } {
            end += 1;
        }
        let mut positions: Vec<u64> = order[..end].iter().map(|&p| u64::from(p)).collect();
        positions.sort_unstable();
        relation.narrow(&mut self.b, axis, &Kept::of(&positions))
    }
}
