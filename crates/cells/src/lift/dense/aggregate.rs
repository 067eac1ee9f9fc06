//! GROUP BY over dimensions as a reduction.
//!
//! ```text
//! Aggregate: group by [month(time), lat], [avg(t2m)]          Reduce(mean) [time, lat, lon] → [12, lat, 1]
//!   Filter: time >= '2020' AND t2m > 0                   ⇒      Mask(t2m > 0)
//!     TableScan: cells [time, lat, lon]                           t2m[time from 2020 on]
//! ```
//! Groups are in the order of their first positions on the whole axes, whatever positions WHERE keeps; groups with a
//! NULL key come last.

use arrow::array::{ArrayRef, UInt64Array};
use arrow::compute::take;
use datafusion::common::DataFusionError;
use datafusion::logical_expr::{Aggregate, Expr};
use smallvec::SmallVec;
use tessera_planner::ir::{AxisReduce, ConstArray, Groups, MapOp, NodeId};
use tessera_planner::program::ScalarOp;
use tessera_planner::reduce::ReduceKind;
use tessera_planner::scalar::Scalar;

use super::super::along::Along;
use super::super::labels::{Factors, Kept, canonical};
use super::super::lower::{Lower, Reason, refused};
use super::super::relation::{Column, Relation};
use super::Dense;
use super::boxes::Split;

/// How one axis is grouped.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Fate {
    /// Every position is a group.
    Keep,
    /// All positions are one group.
    All,
    /// Positions with one code are a group.
    Group(Factors),
}

impl Fate {
    /// The reduction of an axis, over which the node may only be broadcast.
    pub(super) fn reduce(&self, repeats: bool) -> AxisReduce {
        match self {
            Fate::Keep => AxisReduce::Keep,
            Fate::Group(factors) if !repeats => AxisReduce::Group(groups(factors)),
            Fate::All | Fate::Group(_) => AxisReduce::All,
        }
    }
}

/// The lengths of the axes of the groups.
pub(super) fn lengths(shape: &[u64], fates: &[Fate]) -> Vec<u64> {
    let length = |(&n, fate): (&u64, &Fate)| match fate {
        Fate::Keep => n,
        Fate::All => 1,
        Fate::Group(factors) => factors.first.len() as u64,
    };
    shape.iter().zip(fates).map(length).collect()
}

pub(super) fn groups(factors: &Factors) -> Groups {
    Groups { codes: factors.codes.clone().into(), count: factors.first.len() as u32 }
}

/// The groups of a relation under group expressions.
struct Grouping {
    fates: Vec<Fate>,
    /// The labels of the groups.
    keys: Vec<Column>,
    order: Vec<usize>,
}

pub(super) struct Reduction<'a> {
    pub(super) lower: Lower<'a>,
    /// Lengths before the reduction.
    pub(super) shape: Vec<u64>,
    pub(super) fates: Vec<Fate>,
    /// Lengths after the reduction.
    pub(super) out: Vec<u64>,
    /// The filter on values, `bool` without NULLs.
    pub(super) keep: Option<NodeId>,
    /// The boxes that the cells were joined with.
    pub(super) split: Option<&'a Split<'a>>,
}

impl Dense<'_> {
    pub(super) fn aggregate(&mut self, aggregate: &Aggregate) -> Result<Relation, Reason> {
        if aggregate.group_expr.iter().any(|g| matches!(g, Expr::GroupingSet(_))) {
            return Err("GROUPING SETS has no dense form".to_string());
        }
        let mut groups: Vec<&Expr> = Vec::new();
        for group in &aggregate.group_expr {
            // The aggregate has one column for equal keys.
            if !groups.contains(&group) {
                groups.push(group);
            }
        }
        let input = self.relation(&aggregate.input)?;
        input.check_cells()?;
        let input = self.covered(input)?;
        let Grouping { fates, keys: mut columns, order } = self.grouping(&input, &groups)?;
        let shape = input.shape();
        let out = lengths(&shape, &fates);
        let keep = input.keep;
        let split = Split::of(&input, &fates)?;
        let split = split.as_ref();
        let lower = self.lower(&input);
        let mut reduction = Reduction { lower, shape, fates, out, keep, split };
        for (i, call) in aggregate.aggr_expr.iter().enumerate() {
            let field = aggregate.schema.field(groups.len() + i);
            let mut call = call;
            while let Expr::Alias(alias) = call {
                call = &alias.expr;
            }
            let Expr::AggregateFunction(call) = call else {
                return Err(format!("`{call}` is not a plain aggregate"));
            };
            columns.push(Column::Cells(reduction.aggregate(call, field.data_type())?));
        }
        // Without GROUP BY there is always one row.
        let mut presence = None;
        if (keep.is_some() || split.is_some()) && !groups.is_empty() {
            let rows = reduction.rows(None)?;
            let none = reduction.lower.constant(Scalar::i64(0))?;
            presence = Some(reduction.lower.map(ScalarOp::Gt, &[rows, none])?);
        }
        let whole = reduction.out.clone();
        let kept = whole.iter().map(|&len| Kept::Range { start: 0, len }).collect();
        let schema = aggregate.schema.clone();
        let keep = presence;
        let out = Relation { whole, kept, columns, schema, keep, boxes: None, is_table: false };
        self.in_order(out, &order)
    }

    fn in_order(&mut self, mut relation: Relation, order: &[usize]) -> Result<Relation, Reason> {
        if order.is_sorted() {
            return Ok(relation);
        }
        for column in &mut relation.columns {
            match column {
                Column::Label { axis, .. } => {
                    *axis = order.iter().position(|a| a == axis).unwrap_or(*axis);
                }
                Column::Cells(node) => {
                    *node = self.b.transpose(*node, order).map_err(refused)?;
                }
                Column::Met { .. } | Column::Refused(_) => {}
            }
        }
        if let Some(keep) = &mut relation.keep {
            *keep = self.b.transpose(*keep, order).map_err(refused)?;
        }
        relation.whole = order.iter().map(|&a| relation.whole[a]).collect();
        relation.kept = order.iter().map(|&a| relation.kept[a].clone()).collect();
        Ok(relation)
    }

    fn grouping(&mut self, input: &Relation, groups: &[&Expr]) -> Result<Grouping, Reason> {
        let mut axes: Vec<GroupKeys> = input.kept.iter().map(|_| GroupKeys::default()).collect();
        let mut keys: Vec<(usize, Along, Option<ArrayRef>, bool)> = Vec::new();
        // Axes of keys that sort by value, in the order of these.
        let mut by_value: Vec<usize> = Vec::new();
        for group in groups {
            let on = input
                .dependence(group)
                .filter(|on| !on.cells)
                .ok_or_else(|| format!("GROUP BY `{group}` is not a label of a dimension"))?;
            if input.is_partial(group) {
                return Err(format!("GROUP BY `{group}` is a label of a side that may be missing"));
            }
            let mut labels = on.labels.iter();
            let (Some(&axis), None) = (labels.next(), labels.next()) else {
                return Err(format!("GROUP BY `{group}` does not depend on exactly one dimension"));
            };
            if let Expr::Column(column) = group
                && let Some(Column::Label { values, .. }) = input.column(column)
                && matches!(values, Along::Positions { .. })
            {
                axes[axis].by_position = true;
                let kept = values.kept(&input.kept[axis]).map_err(|e| e.strip_backtrace())?;
                keys.push((axis, kept, None, false));
                continue;
            }
            let values =
                input.evaluate_whole(group, axis, self.state).map_err(|e| e.strip_backtrace())?;
            // Equal keys of a group may differ in their bits; the row path shows the canonical ones.
            let values = canonical(&values);
            let kept = input.kept[axis].apply(&values).map_err(|e| e.strip_backtrace())?;
            if input.is_by_value(group) {
                if by_value.last() != Some(&axis) {
                    by_value.push(axis);
                }
                axes[axis].by_value.push(values);
                keys.push((axis, kept.into(), None, true));
                continue;
            }
            let origin = input.evaluate_origin(group, axis, self.state);
            let origin = origin.map_err(|e| e.strip_backtrace())?.map(|o| canonical(&o));
            axes[axis].labels.push(values.clone());
            axes[axis].origins.push(origin.clone());
            keys.push((axis, kept.into(), Some(origin.unwrap_or(values)), false));
        }
        let mut fates = Vec::with_capacity(axes.len());
        for (keys, kept) in axes.iter().zip(&input.kept) {
            fates.push(keys.fate(kept)?);
        }
        by_value.retain(|&axis| axes[axis].is_by_value());
        if (1..by_value.len()).any(|i| by_value[..i].contains(&by_value[i])) {
            return Err("columns of a table are grouped between others".to_string());
        }
        let labelled = (0..axes.len()).filter(|axis| !by_value.contains(axis));
        let order: Vec<usize> = labelled.chain(by_value.iter().copied()).collect();
        let keys = keys
            .into_iter()
            .map(|(axis, values, origin, by_value)| {
                let values = match (&fates[axis], values) {
                    (Fate::Group(f), Along::Values(values)) => {
                        let first = UInt64Array::from(f.first.clone());
                        take(&values, &first, None).map_err(|e| e.to_string())?.into()
                    }
                    (_, values) => values,
                };
                Ok(Column::Label { axis, values, partial: false, by_value, origin })
            })
            .collect::<Result<_, Reason>>()?;
        Ok(Grouping { fates, keys, order })
    }
}

#[derive(Default)]
struct GroupKeys {
    /// True if every position is a group, whatever the other keys are: each position is unique.
    by_position: bool,
    labels: Vec<ArrayRef>,
    /// The origin of each label, if it is not the label's own column.
    origins: Vec<Option<ArrayRef>>,
    /// Columns of tables of rows: their groups are in the order of their values, after those of labels.
    by_value: Vec<ArrayRef>,
}

impl GroupKeys {
    fn is_by_value(&self) -> bool {
        !self.by_position && self.labels.is_empty() && !self.by_value.is_empty()
    }

    fn fate(&self, kept: &Kept) -> Result<Fate, Reason> {
        let told = |e: DataFusionError| e.strip_backtrace();
        if self.by_position {
            return Ok(Fate::Keep);
        }
        let factors = match (self.labels.is_empty(), self.by_value.is_empty()) {
            (true, true) => return Ok(Fate::All),
            (true, false) => Factors::of(&self.by_value).and_then(|f| f.sorted(&self.by_value)),
            (false, is_alone) => {
                let origin: Option<Vec<ArrayRef>> = self.origins.iter().cloned().collect();
                let origin = origin.as_ref().unwrap_or(&self.labels);
                let factors = Factors::of(&self.labels).map_err(told)?;
                if !is_alone {
                    let all = [&self.labels[..], &self.by_value].concat();
                    if Factors::of(&all).map_err(told)? != factors {
                        return Err(
                            "columns of a table divide the groups of a dimension".to_string()
                        );
                    }
                }
                factors.ordered(&self.labels, origin)
            }
        };
        let factors = factors.map_err(told)?.kept(kept);
        Ok(if factors.is_identity() { Fate::Keep } else { Fate::Group(factors) })
    }
}

impl Reduction<'_> {
    fn broadcast(&mut self, node: NodeId, shape: &[u64]) -> Result<NodeId, Reason> {
        self.lower.b.broadcast_to(node, shape).map_err(refused)
    }

    /// Broadcasts the node over all cells of the table.
    pub(super) fn whole(&mut self, node: NodeId) -> Result<NodeId, Reason> {
        let mut shape = self.shape.clone();
        if let Some(split) = self.split {
            shape[split.axis()] = self.lower.b.node(node).shape[split.axis()];
        }
        self.broadcast(node, &shape)
    }

    /// True for axes, other than those of boxes, over which a node is only broadcast.
    pub(super) fn repeats(&self, node: NodeId) -> Vec<bool> {
        let own = self.lower.b.node(node).shape.iter().zip(&self.shape).enumerate();
        own.map(|(a, (&own, &all))| own == 1 && all > 1 && !self.is_split(a)).collect()
    }

    /// Reduces a node over its own axes; the result has the groups' shape, or 1 where the node is only broadcast.
    pub(super) fn reduce(&mut self, node: NodeId, kind: ReduceKind) -> Result<NodeId, Reason> {
        if let Some(split) = self.split {
            return self.reduce_boxes(node, kind, split);
        }
        let repeats = self.repeats(node);
        let axes: SmallVec<[AxisReduce; 6]> =
            self.fates.iter().zip(&repeats).map(|(fate, &repeats)| fate.reduce(repeats)).collect();
        self.lower.b.reduce(node, kind, &axes).map_err(refused)
    }

    /// How often a node broadcast over the given axes occurs in each group: `int64`, at most 1 cell along others.
    pub(super) fn times(&mut self, axes: &[bool]) -> Result<NodeId, Reason> {
        let mut one = 1i64;
        let mut vectors = Vec::new();
        for (a, fate) in self.fates.iter().enumerate().filter(|(a, _)| axes[*a]) {
            match fate {
                Fate::Keep => {}
                Fate::All => one = one.saturating_mul(self.shape[a] as i64),
                Fate::Group(f) => vectors.push((a, f.sizes())),
            }
        }
        let mut out = self.lower.constant(Scalar::i64(one))?;
        for (a, sizes) in vectors {
            let sizes = self.along(a, &sizes)?;
            out = self.lower.map(ScalarOp::Mul, &[out, sizes])?;
        }
        Ok(out)
    }

    /// Integers along one axis of the groups.
    pub(super) fn along(&mut self, axis: usize, values: &[i64]) -> Result<NodeId, Reason> {
        let mut shape = vec![1; self.out.len()];
        shape[axis] = values.len() as u64;
        let array = ConstArray { shape: shape.into(), ..ConstArray::from_i64(values) };
        self.lower.b.array(array).map_err(refused)
    }

    /// Number of rows in each group for which a condition (without NULLs) is true.
    pub(super) fn rows(&mut self, keep: Option<NodeId>) -> Result<NodeId, Reason> {
        match self.both(keep)? {
            None => match self.split {
                None => self.times(&vec![true; self.shape.len()]),
                Some(split) => self.rows_of_boxes(split),
            },
            Some(keep) => {
                let one = self.lower.constant(Scalar::i64(1))?;
                let ones = self.lower.map_op(MapOp::Mask, &[one, keep])?;
                self.count(ones)
            }
        }
    }

    /// Number of unmasked cells in each group.
    pub(super) fn count(&mut self, node: NodeId) -> Result<NodeId, Reason> {
        if !self.lower.b.node(node).nullable {
            return self.rows(None);
        }
        let own = self.reduce(node, ReduceKind::Count)?;
        let times = self.times(&self.repeats(node))?;
        self.lower.map(ScalarOp::Mul, &[own, times])
    }

    /// The conjunction of the filter on values and another condition.
    pub(super) fn both(&mut self, other: Option<NodeId>) -> Result<Option<NodeId>, Reason> {
        Ok(match (self.keep, other) {
            (Some(a), Some(b)) => Some(self.lower.map(ScalarOp::And, &[a, b])?),
            (a, b) => a.or(b),
        })
    }
}
