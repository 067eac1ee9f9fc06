//! Joins of cells with a small table whose rows match many labels.
//!
//! ```text
//! e [time, lat, lon] JOIN r ON e.lat BETWEEN r.lat0 AND r.lat1 AND e.time >= r.start    e [time, lat, lon, rows of r]
//! ```
//! Any condition on labels of one dimension and columns of the table is evaluated now, for each row of the table and
//! each label. The relation has the rows of the table as its last axis, along which the cells are only repeated, and
//! [`Boxes`] with the positions that match. Groups reduce these without repeating the cells.

use std::collections::BTreeMap;

use arrow::array::BooleanArray;
use datafusion::logical_expr::utils::{conjunction, split_conjunction};
use datafusion::logical_expr::{BinaryExpr, Expr, Join, Operator};
use tessera_planner::ir::NodeId;

use super::NOT_ON_LABELS;
use crate::lift::boxes::Boxes;
use crate::lift::dense::Dense;
use crate::lift::lower::{Reason, refused};
use crate::lift::relation::{Column, Relation};

/// Upper bound on the pairs of a row of the table and a label for which conditions are evaluated.
const PAIRS_MAX: u64 = 1 << 25;

impl Dense<'_> {
    /// An inner join of cells and a table, which is the first side if `is_first`. `by_value` is true for columns of the
    /// join whose groups are in the order of values.
    pub(super) fn join_boxes(
        &mut self,
        join: &Join,
        conditions: &[Expr],
        sides: (Relation, Relation),
        is_first: bool,
        by_value: &[bool],
    ) -> Result<Relation, Reason> {
        if sides.0.boxes.is_some() {
            return Err("the cells are joined with two tables on ranges".to_string());
        }
        let mut joined = self.with_rows(join, sides, is_first)?;
        let axis = joined.kept.len() - 1;
        let equal = join.on.iter().map(|(left, right)| {
            let (left, right) = (Box::new(left.clone()), Box::new(right.clone()));
            Expr::BinaryExpr(BinaryExpr::new(left, Operator::Eq, right))
        });
        let others = join.filter.iter().chain(conditions);
        let others = others.flat_map(|condition| split_conjunction(condition)).cloned();
        let mut within: BTreeMap<usize, Vec<Expr>> = BTreeMap::new();
        for condition in equal.chain(others) {
            let on = joined.dependence(&condition).filter(|on| !on.cells);
            let axes: Vec<usize> = on.map_or_else(Vec::new, |on| on.labels.into_iter().collect());
            match axes[..] {
                // The axis of the table is the last one.
                [other, last] if last == axis => within.entry(other).or_default().push(condition),
                _ => joined = self.filter(joined, &condition)?,
            }
        }
        if within.is_empty() {
            return Err(NOT_ON_LABELS.to_string());
        }
        let labels: u64 = within.keys().map(|&other| joined.kept[other].len()).sum();
        let pairs = labels.saturating_mul(joined.kept[axis].len());
        if pairs > PAIRS_MAX {
            return Err(format!(
                "its conditions compare {pairs} pairs of a label and a row of the table, more than {PAIRS_MAX}"
            ));
        }
        let mut inside: BTreeMap<usize, Vec<BooleanArray>> = BTreeMap::new();
        for (other, conditions) in within {
            let Some(condition) = conjunction(conditions) else { continue };
            let met = joined.evaluate_inside(&condition, (axis, other), self.state);
            inside.insert(other, met.map_err(|e| e.strip_backtrace())?);
        }
        joined.boxes = Some(Boxes { axis, inside });
        // A key is a label too, and would be in its order, but occurs in several rows.
        for (column, own) in joined.columns.iter_mut().zip(by_value) {
            if matches!(&*column, Column::Label { by_value, .. } if by_value != own) {
                let reason = "a key of the join occurs in several rows of the table";
                *column = Column::Refused(reason.to_string());
            }
        }
        Ok(joined)
    }

    /// The cells with the table's rows as a last axis, with the columns of a join.
    fn with_rows(
        &mut self,
        join: &Join,
        (mut cells, table): (Relation, Relation),
        is_first: bool,
    ) -> Result<Relation, Reason> {
        let rank = cells.kept.len();
        for column in &mut cells.columns {
            if let Column::Cells(node) | Column::Met { met: node, .. } = column {
                *node = self.expanded(*node, rank, 1)?;
            }
        }
        if let Some(keep) = &mut cells.keep {
            *keep = self.expanded(*keep, rank, 1)?;
        }
        let mut columns = Vec::with_capacity(table.columns.len());
        for column in table.columns {
            columns.push(match column {
                Column::Label { values, partial, by_value, origin, .. } => {
                    Column::Label { axis: rank, values, partial, by_value, origin }
                }
                Column::Cells(node) => Column::Cells(self.expanded(node, 0, rank)?),
                Column::Met { .. } => {
                    return Err("an expression of the table is not a column".to_string());
                }
                Column::Refused(reason) => Column::Refused(reason),
            });
        }
        if is_first {
            columns.append(&mut cells.columns);
            cells.columns = columns;
        } else {
            cells.columns.append(&mut columns);
        }
        cells.whole.extend(table.whole);
        cells.kept.extend(table.kept);
        cells.schema = join.schema.clone();
        Ok(cells)
    }

    /// The node with `count` axes of length 1 before an axis.
    fn expanded(
        &mut self,
        mut node: NodeId,
        before: usize,
        count: usize,
    ) -> Result<NodeId, Reason> {
        for _ in 0..count {
            node = self.b.expand_dims(node, before).map_err(refused)?;
        }
        Ok(node)
    }
}
