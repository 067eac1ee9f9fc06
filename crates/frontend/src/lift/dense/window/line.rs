//! Partitions as axes, and the one axis along which rows are ordered.

use std::collections::BTreeMap;

use arrow::array::ArrayRef;
use arrow::compute::{SortOptions, sort_to_indices};
use datafusion::execution::SessionState;
use datafusion::logical_expr::{Expr, SortExpr};
use tessera_planner::build::Builder;
use tessera_planner::ir::NodeId;

use super::super::super::labels::Factors;
use super::super::super::lower::Reason;
use super::super::super::relation::Relation;
use super::super::gather;

/// The axis along which a window function goes.
pub(super) struct Line {
    pub(super) axis: usize,
    /// The position of each row in its order.
    pub(super) order: Vec<u64>,
}

impl Line {
    /// For each position the number of its row in the order.
    pub(super) fn places(&self) -> Vec<u64> {
        let mut places = vec![0; self.order.len()];
        for (k, &p) in self.order.iter().enumerate() {
            places[p as usize] = k as u64;
        }
        places
    }

    /// For each position the position of the row that `from` gives for its number; none outside the line.
    pub(super) fn gathered(&self, from: impl Fn(i64) -> Option<i64>) -> Vec<Option<u64>> {
        self.places()
            .into_iter()
            .map(|k| {
                let at = usize::try_from(from(k as i64)?).ok()?;
                self.order.get(at).copied()
            })
            .collect()
    }

    /// The node with its rows in the order.
    pub(super) fn sorted(&self, b: &mut Builder, node: NodeId) -> Result<NodeId, Reason> {
        let order: Vec<Option<u64>> = self.order.iter().copied().map(Some).collect();
        gather(b, node, self.axis, &order)
    }

    /// The node with its rows back at their positions.
    pub(super) fn unsorted(&self, b: &mut Builder, node: NodeId) -> Result<NodeId, Reason> {
        let places: Vec<Option<u64>> = self.places().into_iter().map(Some).collect();
        gather(b, node, self.axis, &places)
    }
}

/// The axes whose positions are partitions of their own.
pub(super) fn parts(
    input: &Relation,
    partition_by: &[Expr],
    state: &SessionState,
) -> Result<Vec<usize>, Reason> {
    let mut by_axis: BTreeMap<usize, Vec<ArrayRef>> = BTreeMap::new();
    for expr in partition_by {
        let on = input.dependence(expr).filter(|on| !on.cells);
        let on =
            on.ok_or_else(|| format!("PARTITION BY `{expr}` is not a label of a dimension"))?;
        let mut axes = on.labels.iter();
        let axis = match (axes.next(), axes.next()) {
            (None, _) => continue,
            (Some(&axis), None) => axis,
            _ => return Err(format!("PARTITION BY `{expr}` depends on several dimensions")),
        };
        let values = input.evaluate(expr, Some(axis), state).map_err(|e| e.strip_backtrace())?;
        by_axis.entry(axis).or_default().push(values);
    }
    for (axis, columns) in &by_axis {
        let factors = Factors::of(columns).map_err(|e| e.strip_backtrace())?;
        if factors.first.len() as u64 != input.kept[*axis].len() {
            return Err("PARTITION BY joins several positions of a dimension".to_string());
        }
    }
    Ok(by_axis.into_keys().collect())
}

/// The axis that is left for ORDER BY.
pub(super) fn line(
    input: &Relation,
    parts: &[usize],
    order_by: &[SortExpr],
    state: &SessionState,
) -> Result<Line, Reason> {
    let shape = input.shape();
    let free: Vec<usize> =
        (0..shape.len()).filter(|a| !parts.contains(a) && shape[*a] > 1).collect();
    let [axis] = free.as_slice() else {
        return Err(format!("OVER orders rows along {} dimensions", free.len()));
    };
    let Some(first) = order_by.first() else {
        return Err("OVER without ORDER BY has no dense form here".to_string());
    };
    if input.axis(&first.expr) != Some(*axis) {
        return Err(format!("OVER (ORDER BY `{}`) is not a label of that dimension", first.expr));
    }
    let values =
        input.evaluate(&first.expr, Some(*axis), state).map_err(|e| e.strip_backtrace())?;
    let factors = Factors::of(std::slice::from_ref(&values)).map_err(|e| e.strip_backtrace())?;
    if factors.first.len() as u64 != shape[*axis] {
        return Err(format!("OVER (ORDER BY `{}`) has peers", first.expr));
    }
    let options = SortOptions { descending: !first.asc, nulls_first: first.nulls_first };
    let order = sort_to_indices(&values, Some(options), None).map_err(|e| e.to_string())?;
    let order = order.values().iter().map(|&p| u64::from(p)).collect();
    Ok(Line { axis: *axis, order })
}
