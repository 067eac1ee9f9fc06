//! `GROUP BY` over dimensions as a reduction.
//!
//! ```text
//! Aggregate: group by [month(time), lat], [avg(t2m)]          Reduce(mean) [time, lat, lon] → [12, lat, 1]
//!   Filter: time >= '2020' AND t2m > 0                   ⇒      Mask(t2m > 0)
//!     TableScan: cells [time, lat, lon]                           t2m[time from 2020 on]
//! ```
//! A filter on one dimension is evaluated over its labels and becomes a slice; a filter on values becomes a mask, and
//! a group without rows must then vanish (the presence root says so).

mod chain;
mod functions;

use std::sync::Arc;

use arrow::array::{ArrayRef, UInt64Array};
use arrow::compute::take;
use arrow::datatypes::{Field, Schema};
use datafusion::execution::SessionState;
use datafusion::logical_expr::{Aggregate, Expr};
use smallvec::SmallVec;
use tessera_planner::build::Builder;
use tessera_planner::config::Config;
use tessera_planner::ir::{AxisReduce, ConstArray, Groups, MapOp, NodeId};
use tessera_planner::optimize::Rooted;
use tessera_planner::program::ScalarOp;
use tessera_planner::reduce::ReduceKind;
use tessera_planner::scalar::Scalar;

use super::labels::{Factors, Labels};
use super::lower::{Lower, Reason, refused};
use super::scan::{ROW, ScanColumn, TensorScan, flatten, row_field};
use chain::Chain;

/// What happens to one axis.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Fate {
    /// Every position is a group.
    Keep,
    /// All positions are one group.
    All,
    /// Positions of one code are a group.
    Group(Factors),
}

/// The state of one lift.
struct Lift<'a> {
    lower: Lower<'a>,
    /// Lengths after the filters on dimensions.
    shape: Vec<u64>,
    fates: Vec<Fate>,
    /// Lengths after the reduction.
    out: Vec<u64>,
    /// The filter on values, `bool` without NULLs.
    keep: Option<NodeId>,
}

/// The dense form of an aggregate, or why there is none.
pub(crate) fn dense(
    aggregate: &Aggregate,
    state: &SessionState,
    config: &Config,
    name: String,
) -> Result<TensorScan, Reason> {
    let chain = Chain::read(aggregate)?;
    let table = chain.table.clone();
    let mut labels = Labels::new(&table, state);
    let mut conditions = Vec::new();
    for filter in &chain.filters {
        let on = table
            .dependence(filter)
            .ok_or_else(|| format!("`{filter}` is known only while it runs"))?;
        match (on.cells, on.labels.len()) {
            (false, 1) => {
                let axis = on.labels.first().copied().unwrap_or_default();
                labels.filter(filter, axis).map_err(|e| e.strip_backtrace())?;
            }
            _ => conditions.push(filter),
        }
    }
    let shape = labels.shape();
    if shape.contains(&0) {
        return Err("no cell is left".to_string());
    }
    let (fates, keys) = fates(&labels, &chain.groups)?;
    let out = shape
        .iter()
        .zip(&fates)
        .map(|(&n, fate)| match fate {
            Fate::Keep => n,
            Fate::All => 1,
            Fate::Group(f) => f.first.len() as u64,
        })
        .collect();
    let lower = Lower { b: Builder::new(config.clone()), labels };
    let mut lift = Lift { lower, shape, fates, out, keep: None };
    for condition in conditions {
        let met = lift.lower.is_true(condition)?;
        lift.keep = Some(match lift.keep {
            None => met,
            Some(keep) => lift.lower.map(ScalarOp::And, &[keep, met])?,
        });
    }
    let mut roots = Vec::new();
    for (i, call) in chain.aggregates.iter().enumerate() {
        let field = aggregate.schema.field(chain.groups.len() + i);
        roots.push(lift.aggregate(call, field.data_type())?);
    }
    // Without GROUP BY there is always one row.
    let mut presence = None;
    if lift.keep.is_some() && !chain.groups.is_empty() {
        let rows = lift.rows(None)?;
        let none = lift.lower.constant(Scalar::i64(0))?;
        presence = Some(roots.len());
        roots.push(lift.lower.map(ScalarOp::Gt, &[rows, none])?);
    }
    let mut fields = fields(aggregate, &chain);
    fields.push(row_field(ROW));
    let mut columns: Vec<ScanColumn> = keys;
    columns.extend((0..chain.aggregates.len()).map(ScanColumn::Cells));
    columns.push(ScanColumn::Row);
    let Lift { lower: Lower { mut b, .. }, out, .. } = lift;
    let roots = flatten(&mut b, &roots, &out).map_err(refused)?;
    Ok(TensorScan {
        name,
        schema: Arc::new(Schema::new(fields)),
        shape: out,
        columns,
        presence,
        rooted: Rooted { graph: b.graph, roots },
        exploded: false,
    })
}

/// The fate of each axis under the group expressions, and the labels that these give to the groups.
fn fates(labels: &Labels<'_>, groups: &[Expr]) -> Result<(Vec<Fate>, Vec<ScanColumn>), Reason> {
    let rank = labels.kept.len();
    let mut by_axis: Vec<Vec<ArrayRef>> = vec![Vec::new(); rank];
    // Groups come in the order of the whole dimension, whatever WHERE leaves of it.
    let whole = Labels::new(labels.table, labels.state);
    let mut keys: Vec<(usize, ArrayRef)> = Vec::new();
    for group in groups {
        let on = labels
            .table
            .dependence(group)
            .filter(|on| !on.cells)
            .ok_or_else(|| format!("GROUP BY `{group}` is not a label of a dimension"))?;
        let mut axes = on.labels.iter();
        let (Some(&axis), None) = (axes.next(), axes.next()) else {
            return Err(format!("GROUP BY `{group}` does not depend on exactly one dimension"));
        };
        let values = whole.evaluate(group, Some(axis)).map_err(|e| e.strip_backtrace())?;
        by_axis[axis].push(values.clone());
        let kept = labels.kept[axis].apply(&values).map_err(|e| e.strip_backtrace())?;
        keys.push((axis, kept));
    }
    let mut fates = Vec::with_capacity(rank);
    for (columns, kept) in by_axis.iter().zip(&labels.kept) {
        fates.push(if columns.is_empty() {
            Fate::All
        } else {
            let factors = Factors::of(columns).map_err(|e| e.strip_backtrace())?.kept(kept);
            if factors.is_identity() { Fate::Keep } else { Fate::Group(factors) }
        });
    }
    let keys = keys
        .into_iter()
        .map(|(axis, values)| {
            let values = match &fates[axis] {
                Fate::Group(f) => take(&values, &UInt64Array::from(f.first.clone()), None)
                    .map_err(|e| e.to_string())?,
                _ => values,
            };
            Ok(ScanColumn::Label { axis, values })
        })
        .collect::<Result<_, Reason>>()?;
    Ok((fates, keys))
}

/// The fields of the aggregate, under names that no two share.
fn fields(aggregate: &Aggregate, chain: &Chain) -> Vec<Field> {
    let mut out: Vec<Field> = Vec::new();
    for (i, field) in aggregate.schema.fields().iter().enumerate() {
        let mut name = field.name().clone();
        while out.iter().any(|f| *f.name() == name) {
            name.push('\'');
        }
        let mut field = field.as_ref().clone().with_name(name);
        // The least and the greatest time are times of the same calendar.
        if let Some(metadata) = chain.metadata.get(i).filter(|m| !m.is_empty()) {
            field = field.with_metadata(metadata.clone());
        }
        out.push(field);
    }
    out
}

impl Lift<'_> {
    fn broadcast(&mut self, node: NodeId, shape: &[u64]) -> Result<NodeId, Reason> {
        self.lower.b.broadcast_to(node, shape).map_err(refused)
    }

    /// The node repeated over all cells of the table.
    fn whole(&mut self, node: NodeId) -> Result<NodeId, Reason> {
        let shape = self.shape.clone();
        self.broadcast(node, &shape)
    }

    /// True for axes over which a node only repeats.
    fn repeats(&self, node: NodeId) -> Vec<bool> {
        let own = &self.lower.b.node(node).shape;
        own.iter().zip(&self.shape).map(|(&own, &all)| own == 1 && all > 1).collect()
    }

    /// Reduces a node over its own axes; the result has the groups' shape, or 1 where the node only repeats.
    fn reduce(&mut self, node: NodeId, kind: ReduceKind) -> Result<NodeId, Reason> {
        let repeats = self.repeats(node);
        let axes: SmallVec<[AxisReduce; 6]> = self
            .fates
            .iter()
            .zip(&repeats)
            .map(|(fate, &repeats)| match fate {
                Fate::Keep => AxisReduce::Keep,
                Fate::Group(f) if !repeats => AxisReduce::Group(Groups {
                    codes: f.codes.clone().into(),
                    count: f.first.len() as u32,
                }),
                Fate::All | Fate::Group(_) => AxisReduce::All,
            })
            .collect();
        self.lower.b.reduce(node, kind, &axes).map_err(refused)
    }

    /// How often a node that repeats over the given axes stands in each group: `int64`, at most 1 cell along others.
    fn times(&mut self, axes: &[bool]) -> Result<NodeId, Reason> {
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

    /// Whole numbers along one axis of the groups.
    fn along(&mut self, axis: usize, values: &[i64]) -> Result<NodeId, Reason> {
        let mut shape = vec![1; self.out.len()];
        shape[axis] = values.len() as u64;
        let array = ConstArray { shape: shape.into(), ..ConstArray::from_i64(values) };
        self.lower.b.array(array).map_err(refused)
    }

    /// Rows in each group, of those that a condition (without NULLs) keeps.
    fn rows(&mut self, keep: Option<NodeId>) -> Result<NodeId, Reason> {
        match self.both(keep)? {
            None => self.times(&vec![true; self.shape.len()]),
            Some(keep) => {
                let one = self.lower.constant(Scalar::i64(1))?;
                let ones = self.lower.map_op(MapOp::Mask, &[one, keep])?;
                self.count(ones)
            }
        }
    }

    /// Cells that are not masked, in each group.
    fn count(&mut self, node: NodeId) -> Result<NodeId, Reason> {
        if !self.lower.b.node(node).nullable {
            return self.rows(None);
        }
        let own = self.reduce(node, ReduceKind::Count)?;
        let times = self.times(&self.repeats(node))?;
        self.lower.map(ScalarOp::Mul, &[own, times])
    }

    /// The filter on values and another condition.
    fn both(&mut self, other: Option<NodeId>) -> Result<Option<NodeId>, Reason> {
        Ok(match (self.keep, other) {
            (Some(a), Some(b)) => Some(self.lower.map(ScalarOp::And, &[a, b])?),
            (a, b) => a.or(b),
        })
    }
}
