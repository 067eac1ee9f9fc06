//! Aligns both sides of a join to the axes of its result.

use std::collections::BTreeMap;
use std::sync::Arc;

use arrow::array::ArrayRef;
use datafusion::common::DFSchemaRef;
use tessera_planner::ir::NodeId;
use tessera_planner::program::ScalarOp;

use super::Matches;
use crate::lift::along::Along;
use crate::lift::dense::{Dense, flags, gather, gathered};
use crate::lift::labels::Kept;
use crate::lift::lower::{Reason, refused};
use crate::lift::relation::{Column, Relation, select};

/// The mapping of both sides' axes to those of the result.
struct Axes<'a> {
    left: &'a Relation,
    right: &'a Relation,
    matched: &'a BTreeMap<(usize, usize), Matches>,
    /// The result axis of each axis of the right; `None` if it is dropped.
    stands: Vec<Option<usize>>,
    /// Number of axes of the result.
    rank: usize,
    is_left: bool,
    all_right: bool,
}

struct Label {
    axis: usize,
    values: Along,
    partial: bool,
    by_value: bool,
}

impl Dense<'_> {
    /// Both sides over the left's axes and the unmatched axes of the right.
    pub(super) fn align(
        &mut self,
        left: Relation,
        right: Relation,
        matched: &BTreeMap<(usize, usize), Matches>,
        (is_left, all_right): (bool, bool),
        schema: DFSchemaRef,
    ) -> Result<Relation, Reason> {
        let left_rank = left.kept.len();
        let free: Vec<usize> = (0..right.kept.len())
            .filter(|&a| !matched.keys().any(|&(_, j)| j == a) && right.kept[a].len() > 1)
            .collect();
        if is_left && !free.is_empty() {
            return Err("a left join repeats rows only where it finds a match".to_string());
        }
        let mut stands = vec![None; right.kept.len()];
        for &(i, j) in matched.keys() {
            stands[j] = Some(i);
        }
        for (n, &a) in free.iter().enumerate() {
            stands[a] = Some(left_rank + n);
        }
        let rank = left_rank + free.len();
        let axes = Axes { left: &left, right: &right, matched, stands, rank, is_left, all_right };
        let mut columns = Vec::with_capacity(left.columns.len() + right.columns.len());
        for column in left.columns.iter().cloned().chain(left.keep.map(Column::Cells)) {
            columns.push(self.left_column(&axes, column)?);
        }
        let left_keep = if left.keep.is_some() { columns.pop() } else { None };
        for column in right.columns.iter().cloned().chain(right.keep.map(Column::Cells)) {
            columns.push(self.right_column(&axes, column)?);
        }
        let right_keep = if right.keep.is_some() { columns.pop() } else { None };
        let keep = match (left_keep, right_keep) {
            (Some(Column::Cells(a)), Some(Column::Cells(b))) => {
                Some(self.b.map(ScalarOp::And, &[a, b]).map_err(refused)?)
            }
            (Some(Column::Cells(a)), _) | (_, Some(Column::Cells(a))) => Some(a),
            _ => None,
        };
        let mut kept = left.kept.clone();
        let mut whole = left.whole.clone();
        whole.extend(free.iter().map(|&a| right.whole[a]));
        kept.extend(free.iter().map(|&a| right.kept[a].clone()));
        let mut boxes = left.boxes.clone();
        for (&(i, _), m) in matched {
            kept[i] = kept[i].within(&m.left);
            if let Some(boxes) = &mut boxes {
                boxes.narrow(i, &m.left).map_err(|e| e.strip_backtrace())?;
            }
        }
        Ok(Relation { whole, kept, columns, schema, keep, boxes, is_table: false })
    }

    /// A column of the left side at the rows that the join keeps.
    fn left_column(&mut self, axes: &Axes<'_>, mut column: Column) -> Result<Column, Reason> {
        if let Column::Cells(node) | Column::Met { met: node, .. } = &mut column {
            for _ in axes.left.kept.len()..axes.rank {
                let end = self.b.node(*node).shape.len();
                *node = self.b.expand_dims(*node, end).map_err(refused)?;
            }
            for (&(i, _), m) in axes.matched {
                let len = axes.left.kept[i].len();
                *node = select(&mut self.b, *node, i, len, &m.left)?;
            }
        }
        Ok(column)
    }

    fn right_column(&mut self, axes: &Axes<'_>, column: Column) -> Result<Column, Reason> {
        match column {
            Column::Met { axis, values, met } => {
                let node = self.lower(axes.right).met(&"a label", axis, &values, met)?;
                self.right_cells(axes, node).map(Column::Cells)
            }
            Column::Cells(node) => self.right_cells(axes, node).map(Column::Cells),
            Column::Refused(reason) => Ok(Column::Refused(reason)),
            Column::Label { axis, values, partial, by_value, origin } => {
                let matched = axes.matched.iter().find(|((_, j), _)| *j == axis);
                match (matched, axes.stands[axis]) {
                    (Some((&(i, _), m)), _) => {
                        self.matched_label(axes, Label { axis, values, partial, by_value }, i, m)
                    }
                    (None, Some(axis)) => {
                        Ok(Column::Label { axis, values, partial, by_value, origin })
                    }
                    (None, None) => {
                        self.single_label(axes, Label { axis, values, partial, by_value })
                    }
                }
            }
        }
    }

    /// The label of an axis that matches axis `i` of the left. Labels are stored along the whole axis of the left; if
    /// WHERE cut that axis, they become cells.
    fn matched_label(
        &mut self,
        axes: &Axes<'_>,
        label: Label,
        i: usize,
        m: &Matches,
    ) -> Result<Column, Reason> {
        let values = self.at_kept(axes.right, label.axis, &label.values)?;
        let values = spread(&values, m, &axes.left.kept[i], axes.left.whole[i])?;
        Ok(match self.met(axes, i)? {
            Some(met) => Column::Met { axis: i, values, met },
            None => {
                let partial = label.partial || axes.is_left || axes.all_right;
                let by_value = label.by_value;
                Column::Label { axis: i, values: values.into(), partial, by_value, origin: None }
            }
        })
    }

    /// The label of an axis of one position: the same for every row.
    fn single_label(&mut self, axes: &Axes<'_>, label: Label) -> Result<Column, Reason> {
        let left = axes.left;
        let values = self.at_kept(axes.right, label.axis, &label.values)?;
        let mut pairs = axes.matched.iter();
        let (axis, values, partial) = match (axes.is_left, pairs.next(), pairs.next()) {
            // But NULL where there is no match.
            (true, Some((&(i, _), m)), None) => {
                let met = m.right.iter().map(|q| q.map(|_| 0)).collect();
                let m = Matches { left: m.left.clone(), right: met };
                (i, spread(&values, &m, &left.kept[i], left.whole[i])?, true)
            }
            (true, ..) => {
                let reason = "a label of one position next to a left join".to_string();
                return Ok(Column::Refused(reason));
            }
            _ => {
                let n = left.whole[0] as usize;
                (0, gathered(&values, &vec![Some(0); n])?, label.partial)
            }
        };
        let by_value = label.by_value;
        Ok(Column::Label { axis, values: values.into(), partial, by_value, origin: None })
    }

    /// Cells of the right side where the rows of the left match them, with the axes of the result.
    fn right_cells(&mut self, axes: &Axes<'_>, mut node: NodeId) -> Result<NodeId, Reason> {
        for (&(_, j), m) in axes.matched {
            if self.b.node(node).shape[j] > 1 {
                node = gather(&mut self.b, node, j, &m.right)?;
            } else if m.right.iter().any(Option::is_none) {
                // The same everywhere, except where there is no match.
                let there: Vec<_> = m.right.iter().map(|q| q.map(|_| 0)).collect();
                node = gather(&mut self.b, node, j, &there)?;
            }
        }
        // The right's axes in the order of the result, then the left's own between them.
        let (mut order, dropped): (Vec<usize>, Vec<usize>) =
            (0..axes.stands.len()).partition(|&a| axes.stands[a].is_some());
        order.sort_by_key(|&a| axes.stands[a]);
        let all = [&order[..], &dropped].concat();
        node = self.b.transpose(node, &all).map_err(refused)?;
        let ends: Vec<usize> = (order.len()..all.len()).collect();
        if !ends.is_empty() {
            node = self.b.squeeze(node, &ends).map_err(refused)?;
        }
        let places: Vec<usize> = order.iter().filter_map(|&a| axes.stands[a]).collect();
        for a in 0..axes.rank {
            if !places.contains(&a) {
                node = self.b.expand_dims(node, a).map_err(refused)?;
            }
        }
        Ok(node)
    }

    fn at_kept(&self, side: &Relation, axis: usize, values: &Along) -> Result<ArrayRef, Reason> {
        let kept = values.kept(&side.kept[axis]).and_then(|kept| kept.array(self.state));
        kept.map_err(|e| e.strip_backtrace())
    }

    /// True for rows of the left that match one of the right along all axes other than `own`; `None` if they match
    /// everywhere.
    fn met(&mut self, axes: &Axes<'_>, own: usize) -> Result<Option<NodeId>, Reason> {
        let mut all: Option<NodeId> = None;
        for (&(i, _), m) in axes.matched {
            if i == own || m.right.iter().all(Option::is_some) {
                continue;
            }
            let there = flags(&mut self.b, i, axes.rank, m.right.iter().map(Option::is_some))?;
            all = Some(match all {
                Some(all) => {
                    let op = ScalarOp::And;
                    self.b.map(op, &[all, there]).map_err(refused)?
                }
                None => there,
            });
        }
        Ok(all)
    }
}

/// The right's labels at the matching positions of the left's whole axis; NULL at all others.
pub(super) fn spread(
    values: &ArrayRef,
    m: &Matches,
    left: &Kept,
    whole: u64,
) -> Result<ArrayRef, Reason> {
    let met = left.within(&m.left);
    let mut positions = vec![None; whole as usize];
    let places: Arc<[u64]> = match &met {
        Kept::Range { start, len } => (*start..start + len).collect(),
        Kept::Take(p) => p.clone(),
    };
    for (&place, &partner) in places.iter().zip(&m.right) {
        positions[place as usize] = partner;
    }
    gathered(values, &positions)
}
