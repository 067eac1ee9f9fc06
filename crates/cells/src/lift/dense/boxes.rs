//! Reductions of cells that are joined with boxes: the rows of a small table.
//!
//! ```text
//! t [time, lat, lon, 1] in boxes of lat and lon, GROUP BY r.name
//!   positions of lat and lon that are in the same boxes are a class        Reduce(sum)  [1, 5, 7, 1]
//!   the classes of lat of each box, one box after the other                Take         [1, 1, 7, 9]
//!   the classes of lon that are not in this box do not count               Mask
//!   the boxes of a group are one                                           Reduce(sum)  [1, 1, 1, names]
//! ```
//! The cells are read once, however many boxes there are and however they overlap. A mean is a sum and a count, and a
//! variance follows from the counts, means and variances of the classes. Values that depend on the row of the table are
//! computed for each box over the cells of all boxes, if most cells are in many boxes.

use std::collections::BTreeMap;
use std::sync::Arc;

use smallvec::SmallVec;
use tessera_planner::dtype::DType;
use tessera_planner::ir::{AxisReduce, ConstArray, Groups, MapOp, NodeId};
use tessera_planner::program::ScalarOp;
use tessera_planner::reduce::ReduceKind;
use tessera_planner::region::Dims;
use tessera_planner::scalar::Scalar;

use super::super::boxes::Boxes;
use super::super::labels::Factors;
use super::super::lower::{Reason, refused};
use super::super::relation::Relation;
use super::Dense;
use super::aggregate::{Fate, Reduction, groups};

/// Upper bound on the classes of cells: a state of a reduction has one cell for each.
const CLASSES_MAX: usize = 1 << 18;
/// Upper bound on the boxes times the classes of an axis.
const INSIDE_MAX: usize = 1 << 22;
/// Upper bound on the cells that are computed for each row of the join.
const TIMES_MAX: f64 = 64.0;

impl Dense<'_> {
    /// The relation without boxes that have no cells, and without positions that are in no box.
    pub(super) fn covered(&mut self, mut relation: Relation) -> Result<Relation, Reason> {
        let Some(boxes) = &relation.boxes else { return Ok(relation) };
        let (axis, own) = (boxes.axis, boxes.with_cells());
        let others: Vec<usize> = boxes.inside.keys().copied().collect();
        if own.len() == 0 {
            return Err("no cell is left".to_string());
        }
        relation.narrow(&mut self.b, axis, &own)?;
        for other in others {
            if let Some(covered) = relation.boxes.as_ref().map(|boxes| boxes.covered(other)) {
                relation.narrow(&mut self.b, other, &covered)?;
            }
        }
        Ok(relation)
    }
}

/// The boxes of a reduction, with their axes divided into classes: no box and no group divides a class.
pub(super) struct Split<'a> {
    boxes: &'a Boxes,
    classes: BTreeMap<usize, Factors>,
    /// An axis that is reduced as a whole, whose classes are listed box by box.
    listed: Option<usize>,
    /// Pairs of a box and one of its classes of that axis.
    pairs: Vec<(u32, u32)>,
    /// Each box once, with class 0.
    all: Vec<(u32, u32)>,
    /// Cells per row of the join if each box reads the cells of all boxes.
    times: f64,
}

impl<'a> Split<'a> {
    /// The [covered](Dense::covered) boxes of a relation whose axes have these fates; `None` if it has none.
    pub(super) fn of(input: &'a Relation, fates: &[Fate]) -> Result<Option<Split<'a>>, Reason> {
        let Some(boxes) = &input.boxes else { return Ok(None) };
        let count = input.kept[boxes.axis].len();
        let (mut classes, mut parts, mut covered) = (BTreeMap::new(), 1usize, count as f64);
        for &axis in boxes.inside.keys() {
            let len = input.kept[axis].len();
            let own: Vec<u32> = match &fates[axis] {
                Fate::Keep => (0..len as u32).collect(),
                Fate::All => vec![0; len as usize],
                Fate::Group(factors) => factors.codes.clone(),
            };
            let own = boxes.classes(axis, own);
            if !own.is_identity() {
                parts = parts.saturating_mul(own.first.len());
            }
            covered *= len as f64;
            classes.insert(axis, own);
        }
        if parts > CLASSES_MAX {
            return Err(format!(
                "the rows of the table divide the cells into {parts} parts, more than {CLASSES_MAX}"
            ));
        }
        let all = (0..count as u32).map(|n| (n, 0)).collect();
        let times = covered / boxes.joined();
        let mut split = Split { boxes, classes, listed: None, pairs: Vec::new(), all, times };
        if let Some((axis, pairs)) = split.shortest(fates) {
            split.listed = Some(axis);
            split.pairs = pairs;
        }
        Ok(Some(split))
    }

    /// The axis whose list leaves the fewest cells, with its list.
    fn shortest(&self, fates: &[Fate]) -> Option<(usize, Vec<(u32, u32)>)> {
        let axes = self.classes.iter().filter(|(axis, _)| fates[**axis] == Fate::All);
        let lists = axes.filter_map(|(&axis, classes)| {
            if self.all.len().saturating_mul(classes.first.len()) > INSIDE_MAX {
                return None;
            }
            let own = 0..classes.first.len() as u32;
            let pairs = self.all.iter().flat_map(|&(n, _)| own.clone().map(move |c| (n, c)));
            let pairs: Vec<_> = pairs.filter(|&(n, c)| self.is_inside(axis, n, c)).collect();
            Some((axis, pairs))
        });
        // The classes of the other axes remain.
        lists.min_by_key(|(axis, pairs)| {
            let others = self.classes.iter().filter(|(other, _)| *other != axis);
            others.fold(pairs.len(), |n, (_, c)| n.saturating_mul(c.first.len()))
        })
    }

    pub(super) fn axis(&self) -> usize {
        self.boxes.axis
    }

    fn has(&self, axis: usize) -> bool {
        axis == self.boxes.axis || self.classes.contains_key(&axis)
    }

    fn is_inside(&self, axis: usize, n: u32, class: u32) -> bool {
        let position = self.classes[&axis].first[class as usize];
        self.boxes.inside[&axis][n as usize].value(position as usize)
    }

    /// The listed axis, if a node is the same for all boxes.
    fn listed(&self, shape: &[u64]) -> Option<usize> {
        self.listed.filter(|_| shape[self.boxes.axis] == 1)
    }

    /// The entries along the axis of boxes: pairs of a box and a class if an axis is listed, else the boxes.
    fn entries(&self, listed: Option<usize>) -> &[(u32, u32)] {
        if listed.is_some() { &self.pairs } else { &self.all }
    }
}

impl Reduction<'_> {
    /// True for the axis of boxes and for axes with conditions of boxes.
    pub(super) fn is_split(&self, axis: usize) -> bool {
        self.split.is_some_and(|split| split.has(axis))
    }

    /// Reduces a node over its own axes and those of the boxes.
    pub(super) fn reduce_boxes(
        &mut self,
        node: NodeId,
        kind: ReduceKind,
        split: &Split<'_>,
    ) -> Result<NodeId, Reason> {
        use ReduceKind::*;
        let listed = split.listed(&self.lower.b.node(node).shape);
        match kind {
            Mean => {
                let sum = self.reduce_boxes(node, Sum, split)?;
                let counts = self.counts(node, split)?;
                let count = self.together(counts, Sum, split, listed)?;
                self.lower.map(ScalarOp::Div, &[sum, count])
            }
            Var { ddof } => self.variance(node, ddof, split, listed),
            Sum | Min | Max | MinTotal | MaxTotal | Any | All => {
                let parts = self.parts(node, kind, split)?;
                self.together(parts, kind, split, listed)
            }
            Count => {
                let parts = self.parts(node, Count, split)?;
                let count = self.together(parts, Sum, split, listed)?;
                let none = self.lower.constant(Scalar::i64(0))?;
                self.lower.map_op(MapOp::Coalesce, &[count, none])
            }
            other => Err(format!("{other} over a join on ranges has no dense form")),
        }
    }

    /// Number of rows of the join in each group.
    pub(super) fn rows_of_boxes(&mut self, split: &Split<'_>) -> Result<NodeId, Reason> {
        let one = self.lower.constant(Scalar::i64(1))?;
        let own = self.reduce_boxes(one, ReduceKind::Sum, split)?;
        let others: Vec<bool> = (0..self.shape.len()).map(|a| !split.has(a)).collect();
        let times = self.times(&others)?;
        let rows = self.lower.map(ScalarOp::Mul, &[own, times])?;
        let none = self.lower.constant(Scalar::i64(0))?;
        self.lower.map_op(MapOp::Coalesce, &[rows, none])
    }

    /// Reduces a node to one cell for each class, along the axes of boxes on which it depends. Along other axes it is
    /// reduced to the groups.
    fn parts(
        &mut self,
        node: NodeId,
        kind: ReduceKind,
        split: &Split<'_>,
    ) -> Result<NodeId, Reason> {
        let own = self.lower.b.shape(node);
        let is_of_cells = own.iter().enumerate().any(|(a, &n)| n > 1 && a != split.axis());
        if own[split.axis()] > 1 && is_of_cells && split.times > TIMES_MAX {
            return Err(format!(
                "a value depends on the row of the table, and each row matches few of the cells: {:.0} cells would be \
                 computed for each that matches",
                split.times
            ));
        }
        let repeats = self.repeats(node);
        let axes: SmallVec<[AxisReduce; 6]> = (0..own.len())
            .map(|a| match split.classes.get(&a) {
                Some(classes) if own[a] > 1 && !classes.is_identity() => {
                    AxisReduce::Group(groups(classes))
                }
                None if a != split.axis() => self.fates[a].reduce(repeats[a]),
                _ => AxisReduce::Keep,
            })
            .collect();
        let mut out = self.lower.b.reduce(node, kind, &axes).map_err(refused)?;
        if !matches!(kind, ReduceKind::Sum | ReduceKind::Count) {
            return Ok(out);
        }
        // A value that is broadcast along an axis counts once per position.
        for (&a, classes) in &split.classes {
            if own[a] == 1 && classes.codes.len() > 1 {
                let sizes = self.along(a, &classes.sizes())?;
                let dtype = self.lower.b.dtype(out);
                let sizes = self.lower.b.cast(sizes, dtype).map_err(refused)?;
                out = self.lower.map(ScalarOp::Mul, &[out, sizes])?;
            }
        }
        Ok(out)
    }

    /// Number of unmasked cells of a node in each class, over its own axes and those of the boxes: `float64`.
    fn counts(&mut self, node: NodeId, split: &Split<'_>) -> Result<NodeId, Reason> {
        let counts = if self.lower.b.node(node).nullable {
            self.parts(node, ReduceKind::Count, split)?
        } else {
            let own: Vec<bool> = {
                let shape = &self.lower.b.node(node).shape;
                (0..shape.len()).map(|a| shape[a] > 1 && !split.has(a)).collect()
            };
            let one = self.lower.constant(Scalar::i64(1))?;
            let one = self.parts(one, ReduceKind::Sum, split)?;
            let times = self.times(&own)?;
            self.lower.map(ScalarOp::Mul, &[one, times])?
        };
        self.lower.b.cast(counts, DType::Float64).map_err(refused)
    }

    /// Reduces the classes of each group of boxes to one. No cells are NULL.
    fn together(
        &mut self,
        parts: NodeId,
        kind: ReduceKind,
        split: &Split<'_>,
        listed: Option<usize>,
    ) -> Result<NodeId, Reason> {
        let placed = self.placed(parts, split, listed)?;
        self.grouped(placed, kind, split, listed)
    }

    /// The classes of each box, masked where they are outside.
    fn placed(
        &mut self,
        mut parts: NodeId,
        split: &Split<'_>,
        listed: Option<usize>,
    ) -> Result<NodeId, Reason> {
        let (along, entries) = (split.axis(), split.entries(listed));
        let mut shape = self.lower.b.shape(parts);
        if let Some(axis) = listed
            && shape[axis] > 1
        {
            let positions: Arc<[u64]> = entries.iter().map(|&(_, c)| u64::from(c)).collect();
            parts = self.lower.b.take(parts, axis, positions).map_err(refused)?;
            let mut order: Vec<usize> = (0..shape.len()).collect();
            order.swap(axis, along);
            parts = self.lower.b.transpose(parts, &order).map_err(refused)?;
        }
        for (&axis, classes) in split.classes.iter().filter(|(axis, _)| listed != Some(**axis)) {
            let count = classes.first.len();
            if count.saturating_mul(entries.len()) > INSIDE_MAX {
                return Err(format!(
                    "{} parts of the rows of the table times {count} of a dimension are more than {INSIDE_MAX}",
                    entries.len()
                ));
            }
            let inside: Vec<u8> = (0..count as u32)
                .flat_map(|class| entries.iter().map(move |&(n, _)| (n, class)))
                .map(|(n, class)| u8::from(split.is_inside(axis, n, class)))
                .collect();
            if inside.contains(&0) {
                // The axis of the boxes is behind those of the cells.
                let mut shape = Dims::from_elem(1, shape.len());
                (shape[axis], shape[along]) = (count as u64, entries.len() as u64);
                let bytes = inside.into();
                let inside = ConstArray { dtype: DType::Bool, shape, bytes, valid: None };
                let inside = self.lower.b.array(inside).map_err(refused)?;
                parts = self.lower.map_op(MapOp::Mask, &[parts, inside])?;
            }
        }
        shape = self.lower.b.shape(parts);
        shape[along] = entries.len() as u64;
        self.lower.b.broadcast_to(parts, &shape).map_err(refused)
    }

    /// Reduces the classes of each box to the groups.
    fn grouped(
        &mut self,
        placed: NodeId,
        kind: ReduceKind,
        split: &Split<'_>,
        listed: Option<usize>,
    ) -> Result<NodeId, Reason> {
        let shape = self.lower.b.shape(placed);
        let axes: SmallVec<[AxisReduce; 6]> = (0..shape.len())
            .map(|a| match self.group(a, split, listed) {
                Some(groups) if groups.codes.len() as u64 == shape[a] => AxisReduce::Group(groups),
                Some(_) => AxisReduce::All,
                None if split.has(a) && self.fates[a] == Fate::All => AxisReduce::All,
                None => AxisReduce::Keep,
            })
            .collect();
        self.lower.b.reduce(placed, kind, &axes).map_err(refused)
    }

    /// The group of each class or box along an axis; `None` if it is not divided into groups, or was before.
    fn group(&self, axis: usize, split: &Split<'_>, listed: Option<usize>) -> Option<Groups> {
        let is_boxes = axis == split.axis();
        let entries = split.entries(listed).iter();
        let (codes, count): (Arc<[u32]>, usize) =
            match (&self.fates[axis], split.classes.get(&axis)) {
                (Fate::Group(f), Some(classes)) => {
                    (classes.first.iter().map(|&p| f.codes[p as usize]).collect(), f.first.len())
                }
                (Fate::Group(f), None) if is_boxes => {
                    (entries.map(|&(n, _)| f.codes[n as usize]).collect(), f.first.len())
                }
                (Fate::Keep, None) if is_boxes && listed.is_some() => {
                    (entries.map(|&(n, _)| n).collect(), split.all.len())
                }
                _ => return None,
            };
        Some(Groups { codes, count: count as u32 })
    }

    /// The variance of a group from its classes: their squared deviations, plus those of their means from the group's
    /// mean.
    fn variance(
        &mut self,
        node: NodeId,
        ddof: u32,
        split: &Split<'_>,
        listed: Option<usize>,
    ) -> Result<NodeId, Reason> {
        use ScalarOp::{Add, Div, Mul, Sub};
        let counts = self.counts(node, split)?;
        let means = self.parts(node, ReduceKind::Mean, split)?;
        let variances = self.parts(node, ReduceKind::Var { ddof: 0 }, split)?;
        let sums = self.lower.map(Mul, &[counts, means])?;
        let counts = self.placed(counts, split, listed)?;
        let count = self.grouped(counts, ReduceKind::Sum, split, listed)?;
        let sum = self.together(sums, ReduceKind::Sum, split, listed)?;
        let mut mean = self.lower.map(Div, &[sum, count])?;
        // The group's mean at each class.
        for a in 0..self.shape.len() {
            if self.lower.b.node(mean).shape[a] > 1
                && let Some(groups) = self.group(a, split, listed)
            {
                let positions = groups.codes.iter().map(|&code| u64::from(code)).collect();
                mean = self.lower.b.take(mean, a, positions).map_err(refused)?;
            }
        }
        let means = self.placed(means, split, listed)?;
        let away = self.lower.map(Sub, &[means, mean])?;
        let away = self.lower.map(Mul, &[away, away])?;
        let variances = self.placed(variances, split, listed)?;
        let squares = self.lower.map(Add, &[variances, away])?;
        let squares = self.lower.map(Mul, &[counts, squares])?;
        let squares = self.grouped(squares, ReduceKind::Sum, split, listed)?;
        let ddof = self.lower.constant(Scalar::f64(f64::from(ddof)))?;
        let degrees = self.lower.map(Sub, &[count, ddof])?;
        self.lower.map(Div, &[squares, degrees])
    }
}
