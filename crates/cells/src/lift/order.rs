//! Dimension order: rows follow the order of cells, groups that of their labels, unless ORDER BY overrides it.
//!
//! ```text
//! Window: row_number() …           Sort: cells_0.__row_1
//!   TableScan: cells_0        ⇒      Window: row_number() …            DataFusion's window leaves its own order
//!                                      TableScan: cells_0, __row_1     a hidden number of each row
//! ```
//! A hidden row number is threaded from the scans through the plan. Where an operator loses the order (a join, a
//! window, groups), a sort by the numbers restores it at the next place that shows it: a limit, or the end. The number
//! also follows the keys of ORDER BY, so equal keys keep the order of the dimensions whatever the batches are. Groups
//! sort by the positions of their labels, which [`rank`] computes, then by their other keys, NULL last.

mod origin;
mod rank;
mod ties;

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::walk::Walk;
use datafusion::common::tree_node::Transformed;
use datafusion::common::{Column, DFSchema, JoinType, Result};
use datafusion::execution::SessionState;
use datafusion::logical_expr::{
    Aggregate, Distinct, Expr, ExprSchemable, Filter, Join, Limit, LogicalPlan, Projection, Sort,
    SortExpr, SubqueryAlias, TableScan, TableScanBuilder, Union, lit,
};
use origin::Axis;
pub(super) use origin::of_left;
#[cfg(test)]
pub(super) use rank::rank as rank_by;
pub(super) use rank::{rank_of, rank_of_parts};

use super::along::Along;
use super::functions::opaque;
use super::scan::{ROW, ScanSource};
use super::table::{CellSource, ColumnOrigin};

/// The plan with its rows in dimension order, with the same schema.
pub(super) fn ordered(plan: LogicalPlan, state: &SessionState) -> Result<LogicalPlan> {
    Order { state, names: 0 }.settle(plan)
}

/// For each column of a plan, the dimension that it labels and the label at each position.
pub(super) fn labels(
    plan: &LogicalPlan,
    state: &SessionState,
) -> Result<Vec<Option<(Axis, Along)>>> {
    let columns = plan.schema().columns().into_iter();
    columns.map(|c| origin::labels(plan, &Expr::Column(c), state)).collect()
}

/// The origin of each column of a plan that is an unchanged column of a table of cells.
pub(super) fn sources(plan: &LogicalPlan) -> Vec<Option<ColumnOrigin>> {
    if !super::reads_cells(plan) {
        return vec![None; plan.schema().fields().len()];
    }
    let columns = plan.schema().columns().into_iter();
    columns.map(|column| origin::source(plan, &Expr::Column(column))).collect()
}

struct Order<'a> {
    state: &'a SessionState,
    /// Number of hidden columns so far, for distinct names.
    names: usize,
}

/// A plan, possibly with hidden columns, and the keys of its order.
struct Keyed {
    plan: LogicalPlan,
    /// Empty if only the order of the stream is known.
    keys: Vec<SortExpr>,
    is_sorted: bool,
}

impl Keyed {
    fn as_it_is(plan: LogicalPlan) -> Self {
        Keyed { plan, keys: Vec::new(), is_sorted: true }
    }

    fn sort(self) -> LogicalPlan {
        if self.is_sorted || self.keys.is_empty() {
            return self.plan;
        }
        LogicalPlan::Sort(Sort { expr: self.keys, input: Arc::new(self.plan), fetch: None })
    }
}

impl Order<'_> {
    fn name(&mut self) -> String {
        self.names += 1;
        format!("{ROW}_{}", self.names)
    }

    /// Sorts the plan into dimension order, with its own schema.
    fn settle(&mut self, plan: LogicalPlan) -> Result<LogicalPlan> {
        let schema = plan.schema().clone();
        let plan = self.keyed(plan)?.sort();
        narrow(plan, &schema)
    }

    /// Orders what is below limits and aggregates, but not the plan's own rows; with its own schema.
    ///
    /// The rows of a subquery in an expression have no order. A sort above a condition on outer columns would keep the
    /// optimiser from making it the condition of a join.
    fn unordered(&mut self, plan: LogicalPlan) -> Result<LogicalPlan> {
        let schema = plan.schema().clone();
        let plan = self.keyed(plan)?.plan;
        narrow(plan, &schema)
    }

    /// Orders the inputs; the node's own order is unknown.
    fn through(&mut self, plan: LogicalPlan) -> Result<Keyed> {
        let plan = plan.map_below(|child| self.settle(child).map(Transformed::yes))?;
        Ok(Keyed::as_it_is(plan.data))
    }

    fn keyed(&mut self, plan: LogicalPlan) -> Result<Keyed> {
        let becomes_join = plan.expressions().iter().any(correlates);
        let plan = plan.map_subqueries(|inner| {
            inner.map_below(|rows| self.unordered(rows).map(Transformed::yes))
        })?;
        let plan = plan.data;
        let mut keyed = self.operator(plan)?;
        keyed.is_sorted &= !becomes_join;
        Ok(keyed)
    }

    fn operator(&mut self, plan: LogicalPlan) -> Result<Keyed> {
        super::go_on()?;
        match plan {
            LogicalPlan::TableScan(scan) => self.scan(scan),
            LogicalPlan::Filter(filter) => {
                let input = self.keyed(Arc::unwrap_or_clone(filter.input))?;
                let plan = Filter::new(filter.predicate, Arc::new(input.plan));
                Ok(Keyed { plan: LogicalPlan::Filter(plan), ..input })
            }
            LogicalPlan::SubqueryAlias(alias) => {
                let input = self.keyed(Arc::unwrap_or_clone(alias.input))?;
                let input = self.as_columns(input)?;
                let plan = SubqueryAlias::try_new(Arc::new(input.plan), alias.alias.clone())?;
                let keys = input.keys.into_iter().map(|key| match key.expr {
                    Expr::Column(c) => {
                        let column = Column::new(Some(alias.alias.clone()), c.name);
                        SortExpr { expr: Expr::Column(column), ..key }
                    }
                    _ => key,
                });
                let keys = keys.collect();
                let plan = LogicalPlan::SubqueryAlias(plan);
                Ok(Keyed { plan, keys, is_sorted: input.is_sorted })
            }
            LogicalPlan::Projection(projection) => {
                let mut input = self.keyed(Arc::unwrap_or_clone(projection.input))?;
                let mut exprs = projection.expr;
                for key in &mut input.keys {
                    let name = self.name();
                    exprs.push(key.expr.clone().alias(name.clone()));
                    key.expr = Expr::Column(Column::new_unqualified(name));
                }
                let plan = Projection::try_new(exprs, Arc::new(input.plan))?;
                Ok(Keyed { plan: LogicalPlan::Projection(plan), ..input })
            }
            LogicalPlan::Sort(sort) => {
                let input = self.keyed(Arc::unwrap_or_clone(sort.input))?;
                let mut expr = sort.expr;
                expr.extend(input.keys);
                let plan = Sort { expr, input: Arc::new(input.plan), fetch: sort.fetch };
                Ok(Keyed::as_it_is(LogicalPlan::Sort(plan)))
            }
            LogicalPlan::Limit(limit) => {
                let input = self.keyed(Arc::unwrap_or_clone(limit.input))?;
                let keys = input.keys.clone();
                let input = Arc::new(input.sort());
                let plan = LogicalPlan::Limit(Limit { input, ..limit });
                Ok(Keyed { plan, keys, is_sorted: true })
            }
            LogicalPlan::Window(window) => {
                let input = self.keyed(Arc::unwrap_or_clone(window.input))?;
                let plan = ties::window(window.window_expr, input.plan, &input.keys)?;
                Ok(Keyed { plan, keys: input.keys, is_sorted: false })
            }
            LogicalPlan::Join(join) => self.join(join),
            LogicalPlan::Aggregate(aggregate) => self.aggregate(aggregate),
            LogicalPlan::Distinct(Distinct::All(input)) => {
                let schema = input.schema().clone();
                let keys = self.groups(&input, schema.columns())?;
                let input = self.keyed(Arc::unwrap_or_clone(input))?;
                let input = narrow(input.plan, &schema)?;
                let plan = LogicalPlan::Distinct(Distinct::All(Arc::new(input)));
                Ok(Keyed { plan, keys, is_sorted: false })
            }
            LogicalPlan::Union(union) => {
                let inputs = union.inputs.into_iter().map(|input| {
                    let input = Arc::unwrap_or_clone(input);
                    self.settle(input).map(Arc::new)
                });
                let inputs = inputs.collect::<Result<_>>()?;
                Ok(Keyed::as_it_is(LogicalPlan::Union(Union { inputs, schema: union.schema })))
            }
            other => self.through(other),
        }
    }

    fn scan(&mut self, scan: TableScan) -> Result<Keyed> {
        let is_whole = scan.projection.is_none() && scan.filters.is_empty() && scan.fetch.is_none();
        if scan.source.is::<ScanSource>() && is_whole {
            let key = Column::new(Some(scan.table_name.clone()), ROW);
            let keys = vec![Expr::Column(key).sort(true, false)];
            return Ok(Keyed { plan: LogicalPlan::TableScan(scan), keys, is_sorted: true });
        }
        match scan.source.downcast_ref::<CellSource>() {
            Some(source) if is_whole => {
                let name = self.name();
                let source = Arc::new(source.numbered(&name));
                let key = Column::new(Some(scan.table_name.clone()), name);
                let keys = vec![Expr::Column(key).sort(true, false)];
                let scan = TableScanBuilder::new(scan.table_name, source).build()?;
                Ok(Keyed { plan: LogicalPlan::TableScan(scan), keys, is_sorted: true })
            }
            _ => Ok(Keyed::as_it_is(LogicalPlan::TableScan(scan))),
        }
    }

    fn join(&mut self, join: Join) -> Result<Keyed> {
        let mut left = self.keyed(Arc::unwrap_or_clone(join.left))?;
        let right = self.keyed(Arc::unwrap_or_clone(join.right))?;
        if matches!(join.join_type, JoinType::Right | JoinType::Full) && left.keys.is_empty() {
            left = self.present(left)?;
        }
        let keys = match join.join_type {
            JoinType::LeftSemi | JoinType::LeftAnti | JoinType::LeftMark => left.keys,
            JoinType::RightSemi | JoinType::RightAnti | JoinType::RightMark => right.keys,
            // Both sides' keys: those of one side alone do not order result rows that share its row.
            _ => left.keys.into_iter().chain(right.keys).collect(),
        };
        let plan = Join::try_new(
            Arc::new(left.plan),
            Arc::new(right.plan),
            join.on,
            join.filter,
            join.join_type,
            join.join_constraint,
            join.null_equality,
            join.null_aware,
        )?;
        Ok(Keyed { plan: LogicalPlan::Join(plan), keys, is_sorted: false })
    }

    fn aggregate(&mut self, aggregate: Aggregate) -> Result<Keyed> {
        let columns = aggregate.schema.columns();
        let calls = aggregate.aggr_expr.len();
        let columns: Vec<Column> = columns.into_iter().rev().skip(calls).rev().collect();
        let schema = aggregate.schema.clone();
        let whole = LogicalPlan::Aggregate(aggregate.clone());
        let keys = self.groups(&whole, columns)?;
        let is_free = are_free_of_order(&aggregate.aggr_expr)?
            && !aggregate.input.all_out_ref_exprs().is_empty();
        let input = self.keyed(Arc::unwrap_or_clone(aggregate.input))?;
        // Order-sensitive aggregates get dimension order.
        let mut input = if is_free { input.plan } else { input.sort() };
        let has_sets = matches!(aggregate.group_expr.as_slice(), [Expr::GroupingSet(_)]);
        if has_sets {
            input = hidden_constants(input, self.state)?;
        }
        let has_order = have_orders(&aggregate.aggr_expr)?;
        let plan = Aggregate::try_new(Arc::new(input), aggregate.group_expr, aggregate.aggr_expr)?;
        debug_assert_eq!(plan.schema.fields().len(), schema.fields().len());
        let mut plan = LogicalPlan::Aggregate(plan);
        // `array_agg(x ORDER BY k)` sorts the rows. DataFusion takes the groups for sorted then, those without k, too.
        if has_sets && has_order {
            plan = hidden_constants(plan, self.state)?;
        }
        Ok(Keyed { plan, keys, is_sorted: false })
    }

    /// The sort keys of groups: the positions of labels, dimension by dimension, then the other columns.
    fn groups(&self, plan: &LogicalPlan, columns: Vec<Column>) -> Result<Vec<SortExpr>> {
        // Labels of one axis may have two lengths, those of groups and others that were joined with them.
        let mut axes: BTreeMap<(Axis, usize), (Vec<Expr>, Vec<Along>)> = BTreeMap::new();
        let mut values = Vec::new();
        for column in columns {
            let expr = Expr::Column(column);
            match origin::labels(plan, &expr, self.state)? {
                Some((axis, labels)) => {
                    // Labels of two types that a join equates have the left side's type.
                    let expr = expr.cast_to(labels.data_type(), plan.schema())?;
                    let with = |n: &usize| match axes.get(&(axis, *n)) {
                        Some((_, others)) => others.iter().all(|other| other.goes_with(&labels)),
                        None => true,
                    };
                    let nth = (0..).find(with).unwrap_or_default();
                    let entry = axes.entry((axis, nth)).or_default();
                    entry.0.push(expr);
                    entry.1.push(labels);
                }
                None => values.push(expr),
            }
        }
        let mut keys = Vec::new();
        for (exprs, labels) in axes.into_values() {
            let mut tied = Vec::new();
            for expr in &exprs {
                if expr.nullable(plan.schema())? {
                    tied.push(expr.clone().sort(true, false));
                }
            }
            let place = match labels.iter().position(|l| matches!(l, Along::Positions { .. })) {
                // A position is its own rank.
                Some(at) => exprs[at].clone(),
                None => {
                    let labels = labels.iter().map(|l| l.array(self.state));
                    rank::rank(exprs, &labels.collect::<Result<Vec<_>>>()?)?
                }
            };
            keys.push(place.sort(true, false));
            // Groups without a rank.
            keys.extend(tied);
        }
        keys.extend(values.into_iter().map(|e| e.sort(true, false)));
        Ok(keys)
    }

    /// Adds a key to rows without an order of their own that sorts unmatched rows of the other side after them.
    fn present(&mut self, input: Keyed) -> Result<Keyed> {
        let name = self.name();
        let columns = input.plan.schema().columns().into_iter().map(Expr::Column);
        // A literal on the nullable side is not constant above the join, which the optimiser does not recognize.
        let present = match self.state.scalar_functions().get("random") {
            Some(random) => opaque().call(vec![lit(0i64), random.call(vec![])]),
            None => lit(0i64),
        };
        let exprs = columns.chain([present.alias(name.clone())]).collect();
        let plan = LogicalPlan::Projection(Projection::try_new(exprs, Arc::new(input.plan))?);
        let keys = vec![Expr::Column(Column::new_unqualified(name)).sort(true, false)];
        Ok(Keyed { plan, keys, is_sorted: input.is_sorted })
    }

    fn as_columns(&mut self, input: Keyed) -> Result<Keyed> {
        if input.keys.iter().all(|key| matches!(&key.expr, Expr::Column(c) if c.name != ROW)) {
            return Ok(input);
        }
        let mut exprs: Vec<Expr> =
            input.plan.schema().columns().into_iter().map(Expr::Column).collect();
        let mut keys = input.keys;
        for key in &mut keys {
            let name = self.name();
            exprs.push(key.expr.clone().alias(name.clone()));
            key.expr = Expr::Column(Column::new_unqualified(name));
        }
        let plan = LogicalPlan::Projection(Projection::try_new(exprs, Arc::new(input.plan))?);
        Ok(Keyed { plan, keys, is_sorted: input.is_sorted })
    }
}

/// Aggregates that do not depend on the order of rows, but for the last bits of floats: these follow the order of the join
/// below, which is the same in each run.
const FREE_OF_ORDER: [&str; 12] = [
    "avg",
    "bool_and",
    "bool_or",
    "count",
    "max",
    "median",
    "min",
    "stddev",
    "stddev_pop",
    "sum",
    "var",
    "var_pop",
];

fn are_free_of_order(calls: &[Expr]) -> Result<bool> {
    let depends = |e: &Expr| match e {
        Expr::AggregateFunction(f) => !FREE_OF_ORDER.contains(&f.func.name()),
        _ => false,
    };
    for call in calls {
        if call.any(|e| Ok(depends(e)))? {
            return Ok(false);
        }
    }
    Ok(true)
}

/// True if an aggregate has an order of its own.
fn have_orders(calls: &[Expr]) -> Result<bool> {
    let has_order =
        |e: &Expr| matches!(e, Expr::AggregateFunction(f) if !f.params.order_by.is_empty());
    for call in calls {
        if call.any(|e| Ok(has_order(e)))? {
            return Ok(true);
        }
    }
    Ok(false)
}

/// True for a correlated scalar subquery. The optimiser makes it a left join, which has an order of its own.
pub(super) fn correlates(expr: &Expr) -> bool {
    let found = expr.any(|e| {
        Ok(matches!(e, Expr::ScalarSubquery(inner) if !inner.outer_ref_columns.is_empty()))
    });
    found.unwrap_or(false)
}

/// The same columns, hidden from the optimiser's detection of constants and orders.
fn hidden_constants(plan: LogicalPlan, state: &SessionState) -> Result<LogicalPlan> {
    let Some(random) = state.scalar_functions().get("random") else { return Ok(plan) };
    let opaque = opaque();
    let exprs = plan
        .schema()
        .columns()
        .into_iter()
        .map(|c| {
            let (relation, name) = (c.relation.clone(), c.name.clone());
            opaque.call(vec![Expr::Column(c), random.call(vec![])]).alias_qualified(relation, name)
        })
        .collect();
    Ok(LogicalPlan::Projection(Projection::try_new(exprs, Arc::new(plan))?))
}

/// Projects the hidden columns away.
fn narrow(plan: LogicalPlan, schema: &Arc<DFSchema>) -> Result<LogicalPlan> {
    if plan.schema().fields().len() == schema.fields().len() {
        return Ok(plan);
    }
    let exprs = schema.columns().into_iter().map(Expr::Column).collect();
    let plan = Projection::try_new_with_schema(exprs, Arc::new(plan), schema.clone())?;
    Ok(LogicalPlan::Projection(plan))
}
