//! A relation whose rows are the cells of one shape: the representation of a plan while it stays dense.
//!
//! ```text
//! axes     time (8, of which WHERE keeps 3) · lat (5)
//! columns  time: labels along axis 0 · lat: labels along axis 1 · t: a node [3, 5] · o: a node [1, 5]
//! keep     a condition [3, 5]: true for rows that are present
//! ```
//! Rows are row-major. A node's length along an axis is 1 where it does not depend on it.

use std::collections::BTreeSet;
use std::sync::Arc;

use crate::walk::Walk;
use arrow::array::{
    Array, ArrayRef, AsArray, BooleanArray, RecordBatch, RecordBatchOptions, UInt64Array,
};
use arrow::compute::take;
use arrow::datatypes::{Field, Schema};
use datafusion::common::tree_node::Transformed;
use datafusion::common::{DFSchema, DFSchemaRef, Result, internal_err};
use datafusion::execution::SessionState;
use datafusion::logical_expr::Expr;
use tessera_planner::build::Builder;
use tessera_planner::ir::NodeId;

use super::along::Along;
use super::boxes::Boxes;
use super::labels::{BLOCK, Kept, canonical, parts, physical, select as select_positions};
use super::lower::{Reason, refused};
use super::table::Dependence;

/// A dense relation.
#[derive(Clone)]
pub(crate) struct Relation {
    /// Lengths of the whole axes.
    pub(crate) whole: Vec<u64>,
    /// For each axis, the kept positions of the whole axis.
    pub(crate) kept: Vec<Kept>,
    /// The contents of each field of the schema.
    pub(crate) columns: Vec<Column>,
    /// The plan's own schema.
    pub(crate) schema: DFSchemaRef,
    /// The condition (`bool` without NULLs) of rows that are present; without one, all are.
    pub(crate) keep: Option<NodeId>,
    /// If set, only rows inside of a box are present. Only groups and other joins support boxes.
    pub(crate) boxes: Option<Boxes>,
    /// True for a table of rows in memory: each row is a position of its one axis. Only a join reads it.
    pub(crate) is_table: bool,
}

/// The contents of a column.
#[derive(Clone)]
pub(crate) enum Column {
    /// A label at each position of the whole axis. `partial` if it comes from the right side of a join and is NULL
    /// for unmatched positions: then its first positions do not determine the order of groups. Labels of groups have
    /// the `origin` from which they were computed, at each of its positions, and keep its order.
    /// `by_value` for columns of a table of rows, which has no order of its own: their groups are in the order of values.
    Label { axis: usize, values: Along, partial: bool, by_value: bool, origin: Option<ArrayRef> },
    /// A label of the right side of a left join whose rows match along several axes: NULL in rows where `met` (a
    /// `bool` without NULLs) is false. It is stored as cells, and has the order of the labels.
    Met { axis: usize, values: ArrayRef, met: NodeId },
    /// A node.
    Cells(NodeId),
    /// An expression without a dense form; the reason is reported on use.
    Refused(Reason),
}

impl Relation {
    /// Refuses a table of rows, whose operators DataFusion computes.
    pub(crate) fn check_cells(&self) -> std::result::Result<(), Reason> {
        if self.is_table { Err("a table of rows stands alone".to_string()) } else { Ok(()) }
    }

    /// Refuses a table of rows, and rows of boxes.
    pub(crate) fn check_rows(&self) -> std::result::Result<(), Reason> {
        self.check_cells()?;
        match self.boxes {
            Some(_) => {
                Err("its cells match several rows of the table, and are not grouped".to_string())
            }
            None => Ok(()),
        }
    }

    /// Lengths of the axes.
    pub(crate) fn shape(&self) -> Vec<u64> {
        self.kept.iter().map(Kept::len).collect()
    }

    /// The dependences of an expression over the columns; `None` if they are known only at run time.
    pub(crate) fn dependence(&self, expr: &Expr) -> Option<Dependence> {
        Dependence::of(expr, |column, out| {
            match self.column(column)? {
                Column::Label { axis, .. } => {
                    out.labels.insert(*axis);
                }
                Column::Cells(_) | Column::Met { .. } | Column::Refused(_) => out.cells = true,
            }
            Some(())
        })
    }

    /// True if an expression references a partial label.
    pub(crate) fn is_partial(&self, expr: &Expr) -> bool {
        expr.column_refs()
            .into_iter()
            .any(|c| matches!(self.column(c), Some(Column::Label { partial: true, .. })))
    }

    /// True if an expression references a column of a table of rows.
    pub(crate) fn is_by_value(&self, expr: &Expr) -> bool {
        expr.column_refs()
            .into_iter()
            .any(|c| matches!(self.column(c), Some(Column::Label { by_value: true, .. })))
    }

    /// The one axis that an expression labels.
    pub(crate) fn axis(&self, expr: &Expr) -> Option<usize> {
        let on = self.dependence(expr).filter(|on| !on.cells)?;
        let mut axes = on.labels.into_iter();
        match (axes.next(), axes.next()) {
            (Some(axis), None) => Some(axis),
            _ => None,
        }
    }

    /// The contents of a column.
    pub(crate) fn column(&self, column: &datafusion::common::Column) -> Option<&Column> {
        self.schema.maybe_index_of_column(column).and_then(|i| self.columns.get(i))
    }

    /// Evaluates an expression of labels of one axis (or of none: one value) at the kept positions.
    pub(crate) fn evaluate(
        &self,
        expr: &Expr,
        axis: Option<usize>,
        state: &SessionState,
    ) -> Result<ArrayRef> {
        let rows = axis.map_or(1, |a| self.kept[a].len());
        self.evaluate_over(expr, axis, rows, state, |kept, values| values.kept(kept))
    }

    /// As [`Self::evaluate`], at all positions of the whole axis.
    pub(crate) fn evaluate_whole(
        &self,
        expr: &Expr,
        axis: usize,
        state: &SessionState,
    ) -> Result<ArrayRef> {
        let rows = self.whole[axis];
        self.evaluate_over(expr, Some(axis), rows, state, |_, values| Ok(values.clone()))
    }

    /// As [`Self::evaluate`], along the origin of the axis' groups; `None` if not all its labels are of groups.
    pub(crate) fn evaluate_origin(
        &self,
        expr: &Expr,
        axis: usize,
        state: &SessionState,
    ) -> Result<Option<ArrayRef>> {
        let mut columns = expr.column_refs().into_iter();
        let known = columns.try_fold(None, |len, c| match self.column(c) {
            Some(Column::Label { axis: a, origin: Some(origin), .. }) if *a == axis => {
                (len.unwrap_or(origin.len()) == origin.len()).then_some(Some(origin.len()))
            }
            _ => None,
        });
        let Some(Some(rows)) = known else { return Ok(None) };
        let origin = |column: &Column| match column {
            Column::Label { origin: Some(origin), .. } => Ok(origin.clone().into()),
            _ => internal_err!("a label of groups has an origin"),
        };
        self.evaluate_columns(expr, &[axis], rows as u64, state, origin).map(Some)
    }

    fn evaluate_over(
        &self,
        expr: &Expr,
        axis: Option<usize>,
        rows: u64,
        state: &SessionState,
        cut: impl Fn(&Kept, &Along) -> Result<Along>,
    ) -> Result<ArrayRef> {
        self.evaluate_columns(expr, axis.as_slice(), rows, state, |column| match column {
            Column::Label { axis, values, .. } => cut(&self.kept[*axis], values),
            _ => internal_err!("only labels are evaluated along an axis"),
        })
    }

    /// For each kept position of the axis `outer`, the kept positions of `inner` for which a condition on labels of both
    /// is true.
    pub(crate) fn evaluate_inside(
        &self,
        condition: &Expr,
        (outer, inner): (usize, usize),
        state: &SessionState,
    ) -> Result<Vec<BooleanArray>> {
        let (all, len) = (self.kept[outer].len(), self.kept[inner].len());
        let at_once = (BLOCK / len.max(1)).max(1);
        let mut inside = Vec::with_capacity(all as usize);
        for from in (0..all).step_by(at_once as usize) {
            super::go_on()?;
            let count = at_once.min(all - from);
            let rows = count * len;
            let met = self.evaluate_columns(condition, &[outer, inner], rows, state, |column| {
                let Column::Label { axis, values, .. } = column else {
                    return internal_err!("only labels are evaluated along an axis");
                };
                let is_outer = *axis == outer;
                let places = (0..rows).map(|i| if is_outer { from + i / len } else { i % len });
                let values = canonical(&values.kept(&self.kept[*axis])?.array(state)?);
                Ok(take(&values, &UInt64Array::from_iter_values(places), None)?.into())
            })?;
            let met = met.as_boolean();
            let is_met = |i: u64| met.is_valid(i as usize) && met.value(i as usize);
            for row in 0..count {
                let positions: Vec<bool> = (0..len).map(|p| is_met(row * len + p)).collect();
                inside.push(BooleanArray::from(positions));
            }
        }
        Ok(inside)
    }

    /// Evaluates an expression over the labels of axes; `along` selects the labels.
    fn evaluate_columns(
        &self,
        expr: &Expr,
        axes: &[usize],
        rows: u64,
        state: &SessionState,
        along: impl Fn(&Column) -> Result<Along>,
    ) -> Result<ArrayRef> {
        // Columns are renamed to numbers: those of several tables may share a name.
        let mut wanted: BTreeSet<usize> = BTreeSet::new();
        let bare = expr
            .clone()
            .map_up(|e| match &e {
                Expr::Column(c) => match self.schema.maybe_index_of_column(c) {
                    Some(i) => {
                        wanted.insert(i);
                        let name = format!("c{i}");
                        let column = datafusion::common::Column::new_unqualified(name);
                        Ok(Transformed::yes(Expr::Column(column)))
                    }
                    None => Ok(Transformed::no(e)),
                },
                _ => Ok(Transformed::no(e)),
            })?
            .data;
        let (mut fields, mut arrays) = (Vec::new(), Vec::new());
        for i in wanted {
            let column = &self.columns[i];
            if let Column::Label { axis, .. } = column
                && axes.contains(axis)
            {
                let values = along(column)?;
                let field: &Field = self.schema.field(i);
                let is_nullable = field.is_nullable() || values.has_nulls();
                let field = field.clone().with_name(format!("c{i}")).with_nullable(is_nullable);
                fields.push(field);
                arrays.push(values.array(state)?);
            }
        }
        let schema = Arc::new(Schema::new(fields));
        let rows = rows as usize;
        let options = RecordBatchOptions::new().with_row_count(Some(rows));
        let batch = RecordBatch::try_new_with_options(schema.clone(), arrays, &options)?;
        let schema = DFSchema::try_from(schema.as_ref().clone())?;
        let physical = physical(state, bare, &schema)?;
        physical.evaluate(&batch)?.into_array(rows)
    }

    /// Keeps the positions of an axis for which the condition on its labels is true.
    pub(crate) fn filter(
        &mut self,
        b: &mut Builder,
        condition: &Expr,
        axis: usize,
        state: &SessionState,
    ) -> std::result::Result<(), Reason> {
        let is_position = |column: &Expr| {
            let Expr::Column(column) = column else { return false };
            let Some(Column::Label { values, .. }) = self.column(column) else { return false };
            matches!(values, Along::Positions { .. })
        };
        for part in parts(condition, &is_position) {
            let kept =
                select_positions(self.kept[axis].len(), part.is_monotone, state, |from, rows| {
                    self.evaluate_over(&part.condition, Some(axis), rows, state, |kept, values| {
                        values.kept(&kept.within(&Kept::Range { start: from, len: rows }))
                    })
                });
            self.narrow(b, axis, &kept.map_err(|e| e.strip_backtrace())?)?;
        }
        Ok(())
    }

    /// Keeps some of the kept positions of an axis, given by their indices among these.
    pub(crate) fn narrow(
        &mut self,
        b: &mut Builder,
        axis: usize,
        after: &Kept,
    ) -> std::result::Result<(), Reason> {
        let before = self.kept[axis].len();
        if after.len() == before {
            return Ok(());
        }
        self.kept[axis] = self.kept[axis].within(after);
        for column in &mut self.columns {
            if let Column::Cells(node) | Column::Met { met: node, .. } = column {
                *node = select(b, *node, axis, before, after)?;
            }
        }
        if let Some(keep) = &mut self.keep {
            *keep = select(b, *keep, axis, before, after)?;
        }
        if let Some(boxes) = &mut self.boxes {
            boxes.narrow(axis, after).map_err(|e| e.strip_backtrace())?;
        }
        Ok(())
    }
}

/// The node at some positions of an axis of length `len`, if it depends on the axis.
pub(crate) fn select(
    b: &mut Builder,
    node: NodeId,
    axis: usize,
    len: u64,
    positions: &Kept,
) -> std::result::Result<NodeId, Reason> {
    if b.node(node).shape[axis] != len || (len == 1 && positions.len() == 1) {
        return Ok(node);
    }
    match positions {
        Kept::Range { start, len } => b.slice(node, axis, *start as i64, 1, *len),
        Kept::Take(p) => b.take(node, axis, p.clone()),
    }
    .map_err(refused)
}
