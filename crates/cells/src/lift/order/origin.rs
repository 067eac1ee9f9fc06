//! Traces the values of a column to the labels of a dimension of a table.

use std::collections::BTreeSet;
use std::sync::Arc;

use crate::walk::Walk;
use arrow::array::RecordBatch;
use arrow::datatypes::{Field, Schema, SchemaRef};
use datafusion::common::tree_node::{Transformed, TreeNodeRecursion};
use datafusion::common::{Column, DFSchema, JoinType, Result};
use datafusion::execution::SessionState;
use datafusion::logical_expr::utils::split_conjunction;
use datafusion::logical_expr::{BinaryExpr, Expr, Join, LogicalPlan, Operator};
use tessera_planner::catalog::Attrs;

use super::super::along::Along;
use super::super::go_on;
use super::super::labels::{Labels, physical};
use super::super::scan::ScanSource;
use super::super::table::{CellSource, CellTable, Column as CellColumn, ColumnOrigin};

/// A table's number in the plan, from left to right, and one of its dimensions.
pub(super) type Axis = (usize, usize);

#[derive(Clone)]
enum Base {
    Cells(Arc<CellTable>),
    /// A scan's fields, with the dimension and the label at each position for those that are labels.
    Scan(SchemaRef, Arc<[Option<(usize, Along)>]>),
}

/// The dimension that an expression over a plan's columns labels, with the label at each of its positions.
pub(super) fn labels(
    plan: &LogicalPlan,
    expr: &Expr,
    state: &SessionState,
) -> Result<Option<(Axis, Along)>> {
    go_on()?;
    let Some((table, base, expr)) = trace(plan, expr, 0, true) else { return Ok(None) };
    match base {
        Base::Scan(fields, labels) => {
            let known = of_scan(&expr, &fields, &labels, state);
            Ok(known.map(|(axis, values)| ((table, axis), values)))
        }
        Base::Cells(cells) => {
            let Some(on) = cells.dependence(&expr).filter(|on| !on.cells) else { return Ok(None) };
            let mut axes = on.labels.iter();
            let (Some(&axis), None) = (axes.next(), axes.next()) else { return Ok(None) };
            if let Some(CellColumn::Label { values, .. }) = cells.column(&expr) {
                return Ok(Some(((table, axis), values.clone())));
            }
            // An expression that fails for a label excluded by WHERE has no rank; its groups sort by value.
            let values = Labels::new(&cells, state).evaluate(&expr, Some(axis)).ok();
            Ok(values.map(|values| ((table, axis), values.into())))
        }
    }
}

/// The origin of a column that is unchanged from the table of cells. Its labels may be those of an equal key, its
/// attributes are its own: equal numbers may count other units.
pub(super) fn source(plan: &LogicalPlan, column: &Expr) -> Option<ColumnOrigin> {
    let of = |by_keys: bool| {
        let (_, Base::Cells(cells), expr) = trace(plan, column, 0, by_keys)? else { return None };
        let Expr::Column(column) = expr.unalias_nested().data else { return None };
        cells.origin(cells.schema.index_of(&column.name).ok()?)
    };
    let (own, equal) = (of(false), of(true));
    let labels = equal.and_then(|origin| origin.labels);
    match own {
        Some(own) => Some(ColumnOrigin { labels, ..own }),
        None => labels.map(|labels| ColumnOrigin { labels: Some(labels), attrs: Attrs::new() }),
    }
}

/// The dimension that an expression over a scan's fields labels, with its value at each position.
fn of_scan(
    expr: &Expr,
    fields: &SchemaRef,
    labels: &[Option<(usize, Along)>],
    state: &SessionState,
) -> Option<(usize, Along)> {
    let columns = expr.column_refs();
    let wanted: Option<BTreeSet<usize>> =
        columns.iter().map(|column| fields.index_of(&column.name).ok()).collect();
    let wanted = wanted?;
    let known = wanted.iter().map(|&i| labels.get(i)?.as_ref()).collect::<Option<Vec<_>>>()?;
    let (axis, first) = known.first()?;
    if known.iter().any(|(other, _)| other != axis) || expr.is_volatile() {
        return None;
    }
    if matches!(expr, Expr::Column(_)) {
        return Some((*axis, first.clone()));
    }
    let bare = expr.clone().map_up(|e| match e {
        Expr::Column(c) => Ok(Transformed::yes(Expr::Column(Column::new_unqualified(c.name)))),
        e => Ok(Transformed::no(e)),
    });
    let columns = wanted.iter().map(|&i| fields.field(i).clone().with_nullable(true));
    let schema = Arc::new(Schema::new(columns.collect::<Vec<Field>>()));
    // An expression that fails for a label has no rank; its groups sort by value.
    let arrays = known.iter().map(|(_, values)| values.array(state).ok()).collect::<Option<_>>()?;
    let batch = RecordBatch::try_new(schema.clone(), arrays).ok()?;
    let schema = DFSchema::try_from(schema.as_ref().clone()).ok()?;
    let physical = physical(state, bare.ok()?.data, &schema).ok()?;
    let values = physical.evaluate(&batch).ok()?.into_array(batch.num_rows()).ok()?;
    Some((*axis, values.into()))
}

fn tables(plan: &LogicalPlan) -> usize {
    match plan {
        LogicalPlan::TableScan(_) => 1,
        other => other.inputs().iter().map(|input| tables(input)).sum(),
    }
}

/// Rewrites the expression over the columns of the one table that it derives from. `by_keys`: a key of a join may stand
/// for the equal one of the left side.
fn trace(
    plan: &LogicalPlan,
    expr: &Expr,
    before: usize,
    by_keys: bool,
) -> Option<(usize, Base, Expr)> {
    let mut columns = expr.column_refs().into_iter();
    let column = columns.next()?;
    plan.schema().maybe_index_of_column(column)?;
    match plan {
        LogicalPlan::TableScan(scan) => {
            if let Some(source) = scan.source.downcast_ref::<CellSource>() {
                return Some((before, Base::Cells(source.table.clone()), expr.clone()));
            }
            let source = scan.source.downcast_ref::<ScanSource>()?;
            let base = Base::Scan(source.schema.clone(), source.labels.clone());
            Some((before, base, expr.clone()))
        }
        LogicalPlan::SubqueryAlias(alias) => {
            let inner = alias.input.schema();
            let of = |i: usize| {
                (i < inner.fields().len()).then(|| Column::from(inner.qualified_field(i)))
            };
            let of = |i: usize| of(i).map(Expr::Column);
            trace(&alias.input, &replaced(plan, expr, of)?, before, by_keys)
        }
        LogicalPlan::Projection(projection) => {
            let of = |i: usize| projection.expr.get(i).cloned();
            trace(&projection.input, &replaced(plan, expr, of)?, before, by_keys)
        }
        LogicalPlan::Aggregate(aggregate) => {
            let groups: Vec<&Expr> = match aggregate.group_expr.as_slice() {
                [Expr::GroupingSet(set)] => set.distinct_expr(),
                plain => plain.iter().collect(),
            };
            let of = |i: usize| groups.get(i).copied().cloned();
            trace(&aggregate.input, &replaced(plan, expr, of)?, before, by_keys)
        }
        // An equality in WHERE over a cross product is a join too.
        LogicalPlan::Filter(filter) if matches!(&*filter.input, LogicalPlan::Join(_)) => {
            let LogicalPlan::Join(join) = &*filter.input else { return None };
            let predicate = filter.predicate.clone();
            let condition = match &join.filter {
                Some(own) => own.clone().and(predicate),
                None => predicate,
            };
            let join = Join { filter: Some(condition), ..join.clone() };
            trace(&LogicalPlan::Join(join), expr, before, by_keys)
        }
        LogicalPlan::Filter(_)
        | LogicalPlan::Sort(_)
        | LogicalPlan::Limit(_)
        | LogicalPlan::Distinct(_)
        | LogicalPlan::Window(_) => trace(plan.inputs().first()?, expr, before, by_keys),
        LogicalPlan::Join(join) => {
            let is_of = |side: &LogicalPlan| {
                let all = expr.column_refs();
                all.into_iter().all(|c| side.schema().maybe_index_of_column(c).is_some())
            };
            if is_of(&join.left) {
                return trace(&join.left, expr, before, by_keys);
            }
            // The right's key is the left's label where the two are equal: in a left join, where it is not NULL.
            if by_keys
                && matches!(join.join_type, JoinType::Inner | JoinType::Left)
                && let Some(own) = of_left(join, expr)
            {
                return trace(&join.left, &own, before, by_keys);
            }
            // An expression over both sides labels neither.
            is_of(&join.right)
                .then(|| trace(&join.right, expr, before + tables(&join.left), by_keys))?
        }
        _ => None,
    }
}

/// Replaces the right side's columns in an expression by equal ones of the left; `None` if one has no equal.
pub(in super::super) fn of_left(join: &Join, expr: &Expr) -> Option<Expr> {
    let mut is_known = true;
    let new = expr.clone().map_down(|e| {
        let Expr::Column(column) = &e else { return Ok(Transformed::no(e)) };
        if join.left.schema().maybe_index_of_column(column).is_some() {
            return Ok(Transformed::no(e));
        }
        match partner(join, &e) {
            Some(own) => Ok(Transformed::new(own, true, TreeNodeRecursion::Jump)),
            None => {
                is_known = false;
                Ok(Transformed::no(e))
            }
        }
    });
    new.ok().filter(|_| is_known).map(|t| t.data)
}

/// The expression of the left side that a join equates with one of the right.
fn partner(join: &Join, expr: &Expr) -> Option<Expr> {
    let is_left = |e: &Expr| {
        let columns = e.column_refs();
        !columns.is_empty()
            && columns.iter().all(|c| join.left.schema().maybe_index_of_column(c).is_some())
    };
    let conditions = join.filter.iter().flat_map(|f| split_conjunction(f));
    let equal = conditions.filter_map(|c| match c {
        Expr::BinaryExpr(BinaryExpr { left, op: Operator::Eq, right }) => Some((left, right)),
        _ => None,
    });
    let keys = join.on.iter().map(|(left, right)| (left, right));
    let equal = equal.flat_map(|(a, b)| [(&**a, &**b), (&**b, &**a)]);
    keys.chain(equal).find(|(a, b)| uncast(b) == expr && is_left(a)).map(|(a, _)| a.clone())
}

fn uncast(mut key: &Expr) -> &Expr {
    while let Expr::Cast(cast) = key {
        key = &cast.expr;
    }
    key
}

/// Replaces the plan's columns by the expressions that `of` has for their indices; `None` if it has none for one.
fn replaced(plan: &LogicalPlan, expr: &Expr, of: impl Fn(usize) -> Option<Expr>) -> Option<Expr> {
    let schema = plan.schema();
    let mut is_known = true;
    let new = expr.clone().map_up(|e| {
        let Expr::Column(column) = &e else { return Ok(Transformed::no(e)) };
        match schema.maybe_index_of_column(column).and_then(&of) {
            Some(inner) => Ok(Transformed::yes(inner.unalias_nested().data)),
            None => {
                is_known = false;
                Ok(Transformed::no(e))
            }
        }
    });
    // Replacing columns cannot fail; if it did, groups would sort by value.
    new.ok().filter(|_| is_known).map(|t| t.data)
}
