//! Partitions, and the one axis that orders rows.
//!
//! ```text
//! PARTITION BY lat, lon ORDER BY time DESC      one segment: the positions of time from the last to the first
//! PARTITION BY month(time), lat ORDER BY time   segments of time: the positions of each month
//! ```

use std::collections::BTreeMap;

use arrow::array::ArrayRef;
use arrow::compute::{SortOptions, sort_to_indices};
use datafusion::execution::SessionState;
use datafusion::logical_expr::{Expr, SortExpr};
use tessera_planner::build::Builder;
use tessera_planner::ir::NodeId;

use super::super::super::labels::Factors;
use super::super::super::lower::{Reason, refused};
use super::super::super::relation::Relation;
use super::super::gather;

/// Maximum segments of a line: each is a part of the plan.
const SEGMENTS_MAX: usize = 64;

pub(super) struct Line {
    pub(super) axis: usize,
    /// The partitions along the axis: for each, the positions of its rows in order.
    pub(super) segments: Vec<Vec<u64>>,
}

#[derive(Clone, Copy)]
pub(super) struct RowPosition {
    segment: usize,
    pub(super) number: i64,
    pub(super) rows: i64,
}

impl Line {
    /// For each position, its row's place in the segment.
    pub(super) fn places(&self) -> Vec<RowPosition> {
        let total = self.segments.iter().map(Vec::len).sum();
        let mut places = vec![RowPosition { segment: 0, number: 0, rows: 0 }; total];
        for (segment, order) in self.segments.iter().enumerate() {
            for (k, &p) in order.iter().enumerate() {
                places[p as usize] =
                    RowPosition { segment, number: k as i64, rows: order.len() as i64 };
            }
        }
        places
    }

    /// For each position the position of the row whose number in the segment is `from`; `None` outside the segment.
    pub(super) fn gathered(&self, from: impl Fn(RowPosition) -> Option<i64>) -> Vec<Option<u64>> {
        self.places()
            .into_iter()
            .map(|place| {
                let at = usize::try_from(from(place)?).ok()?;
                self.segments[place.segment].get(at).copied()
            })
            .collect()
    }

    /// Applies `of` to the rows of each segment in order, and scatters the results to their positions.
    pub(super) fn each(
        &self,
        b: &mut Builder,
        nodes: &[NodeId],
        mut of: impl FnMut(&mut Builder, &[NodeId]) -> Result<NodeId, Reason>,
    ) -> Result<NodeId, Reason> {
        let mut parts = Vec::with_capacity(self.segments.len());
        for order in &self.segments {
            let order: Vec<Option<u64>> = order.iter().copied().map(Some).collect();
            let sorted = nodes.iter().map(|&n| gather(b, n, self.axis, &order));
            let sorted = sorted.collect::<Result<Vec<_>, Reason>>()?;
            parts.push(of(b, &sorted)?);
        }
        let joined = match parts.as_slice() {
            [one] => *one,
            all => b.concat(all, self.axis).map_err(refused)?,
        };
        let mut places = vec![None; self.segments.iter().map(Vec::len).sum()];
        for (k, &p) in self.segments.iter().flatten().enumerate() {
            places[p as usize] = Some(k as u64);
        }
        gather(b, joined, self.axis, &places)
    }
}

pub(super) struct Parts {
    /// Axes whose positions are partitions of their own.
    pub(super) whole: Vec<usize>,
    /// Axes on which several positions form one partition.
    pub(super) groups: BTreeMap<usize, Factors>,
}

pub(super) fn parts(
    input: &Relation,
    partition_by: &[Expr],
    state: &SessionState,
) -> Result<Parts, Reason> {
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
    let mut parts = Parts { whole: Vec::new(), groups: BTreeMap::new() };
    for (axis, columns) in by_axis {
        let factors = Factors::of(&columns).map_err(|e| e.strip_backtrace())?;
        if factors.first.len() as u64 == input.kept[axis].len() {
            parts.whole.push(axis);
        } else {
            parts.groups.insert(axis, factors);
        }
    }
    Ok(parts)
}

/// The remaining axis for ORDER BY.
pub(super) fn line(
    input: &Relation,
    parts: &Parts,
    order_by: &[SortExpr],
    state: &SessionState,
) -> Result<Line, Reason> {
    let shape = input.shape();
    let free: Vec<usize> =
        (0..shape.len()).filter(|a| !parts.whole.contains(a) && shape[*a] > 1).collect();
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
    let options = SortOptions { descending: !first.asc, nulls_first: first.nulls_first };
    let order = sort_to_indices(&values, Some(options), None).map_err(|e| e.to_string())?;
    let own = Factors::of(std::slice::from_ref(&values)).map_err(|e| e.strip_backtrace())?;
    let groups = parts.groups.get(axis);
    let count = groups.map_or(1, |g| g.first.len());
    if count > SEGMENTS_MAX {
        return Err(format!("PARTITION BY divides that dimension into {count} parts"));
    }
    let mut segments = vec![Vec::new(); count];
    for &p in order.values() {
        let segment = groups.map_or(0, |g| g.codes[p as usize] as usize);
        segments[segment].push(u64::from(p));
    }
    // Equal keys would be adjacent.
    let is_peer = |pair: &[u64]| own.codes[pair[0] as usize] == own.codes[pair[1] as usize];
    if segments.iter().any(|s: &Vec<u64>| s.windows(2).any(is_peer)) {
        return Err(format!("OVER (ORDER BY `{}`) has peers", first.expr));
    }
    Ok(Line { axis: *axis, segments })
}
