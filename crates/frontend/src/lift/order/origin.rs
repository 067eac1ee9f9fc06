//! Where the value of a column comes from: labels of which dimension of which table.

use std::sync::Arc;

use arrow::array::ArrayRef;
use datafusion::common::tree_node::{Transformed, TreeNode};
use datafusion::common::{JoinType, Result};
use datafusion::execution::SessionState;
use datafusion::logical_expr::utils::split_conjunction;
use datafusion::logical_expr::{BinaryExpr, Expr, Join, LogicalPlan, Operator};

use super::super::labels::Labels;
use super::super::scan::ScanSource;
use super::super::table::{CellSource, CellTable};

/// A table's number in the plan, from left to right, and one of its dimensions.
pub(super) type Axis = (usize, usize);

/// A table that has labels.
#[derive(Clone)]
enum Base {
    Cells(Arc<CellTable>),
    Scan(usize, ArrayRef),
}

/// The dimension that an expression of a plan's columns labels, with the label at each of its positions.
pub(super) fn labels(
    plan: &LogicalPlan,
    expr: &Expr,
    state: &SessionState,
) -> Result<Option<(Axis, ArrayRef)>> {
    let Some((table, base, expr)) = trace(plan, expr, 0) else { return Ok(None) };
    match base {
        Base::Scan(axis, values) => Ok(Some(((table, axis), values))),
        Base::Cells(cells) => {
            let Some(on) = cells.dependence(&expr).filter(|on| !on.cells) else { return Ok(None) };
            let mut axes = on.labels.iter();
            let (Some(&axis), None) = (axes.next(), axes.next()) else { return Ok(None) };
            // What fails for a label that WHERE leaves out has no place; its groups sort by value.
            let values = Labels::new(&cells, state).evaluate(&expr, Some(axis)).ok();
            Ok(values.map(|values| ((table, axis), values)))
        }
    }
}

/// Tables in a plan.
fn tables(plan: &LogicalPlan) -> usize {
    match plan {
        LogicalPlan::TableScan(_) => 1,
        other => other.inputs().iter().map(|input| tables(input)).sum(),
    }
}

/// The expression over the columns of the one table that it comes from.
fn trace(plan: &LogicalPlan, expr: &Expr, before: usize) -> Option<(usize, Base, Expr)> {
    let mut columns = expr.column_refs().into_iter();
    let column = columns.next()?;
    let i = plan.schema().maybe_index_of_column(column)?;
    match plan {
        LogicalPlan::TableScan(scan) => {
            if let Some(source) = scan.source.downcast_ref::<CellSource>() {
                return Some((before, Base::Cells(source.table.clone()), expr.clone()));
            }
            let source = scan.source.downcast_ref::<ScanSource>()?;
            let is_plain = matches!(expr, Expr::Column(_));
            let field = scan.projection.as_ref().map_or(Some(i), |p| p.get(i).copied())?;
            let (axis, values) = source.labels.get(field)?.clone()?;
            is_plain.then(|| (before, Base::Scan(axis, values), expr.clone()))
        }
        LogicalPlan::SubqueryAlias(alias) => {
            let inner = alias.input.schema().columns();
            let inner: Vec<Expr> = inner.into_iter().map(Expr::Column).collect();
            trace(&alias.input, &replaced(plan, expr, &inner)?, before)
        }
        LogicalPlan::Projection(projection) => {
            trace(&projection.input, &replaced(plan, expr, &projection.expr)?, before)
        }
        LogicalPlan::Aggregate(aggregate) => {
            let groups = match aggregate.group_expr.as_slice() {
                [Expr::GroupingSet(set)] => set.distinct_expr().into_iter().cloned().collect(),
                plain => plain.to_vec(),
            };
            trace(&aggregate.input, &replaced(plan, expr, &groups)?, before)
        }
        // `FROM a, b WHERE a.j = b.j` is a join too.
        LogicalPlan::Filter(filter) if matches!(&*filter.input, LogicalPlan::Join(_)) => {
            let LogicalPlan::Join(join) = &*filter.input else { return None };
            let predicate = filter.predicate.clone();
            let condition = match &join.filter {
                Some(own) => own.clone().and(predicate),
                None => predicate,
            };
            let join = Join { filter: Some(condition), ..join.clone() };
            trace(&LogicalPlan::Join(join), expr, before)
        }
        LogicalPlan::Filter(_)
        | LogicalPlan::Sort(_)
        | LogicalPlan::Limit(_)
        | LogicalPlan::Distinct(_)
        | LogicalPlan::Window(_) => trace(plan.inputs().first()?, expr, before),
        LogicalPlan::Join(join) => {
            if join.left.schema().maybe_index_of_column(column).is_some() {
                return trace(&join.left, expr, before);
            }
            // The right's key is the left's label where the two are equal: in a left join, where it is not NULL.
            if matches!(join.join_type, JoinType::Inner | JoinType::Left)
                && let Some(key) = partner(join, expr)
            {
                return trace(&join.left, &key, before);
            }
            trace(&join.right, expr, before + tables(&join.left))
        }
        _ => None,
    }
}

/// The expression of the left side that a join makes equal to one of the right.
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
    keys.chain(equal).find(|(a, b)| *b == expr && is_left(a)).map(|(a, _)| a.clone())
}

/// The expression with the plan's columns replaced by what stands for them; none for columns beyond `exprs`.
fn replaced(plan: &LogicalPlan, expr: &Expr, exprs: &[Expr]) -> Option<Expr> {
    let schema = plan.schema();
    let mut is_known = true;
    let new = expr.clone().transform_up(|e| {
        let Expr::Column(column) = &e else { return Ok(Transformed::no(e)) };
        match schema.maybe_index_of_column(column).and_then(|i| exprs.get(i)) {
            Some(inner) => Ok(Transformed::yes(inner.clone().unalias_nested().data)),
            None => {
                is_known = false;
                Ok(Transformed::no(e))
            }
        }
    });
    // Replacing columns cannot fail; if it did, the order is that of the values.
    new.ok().filter(|_| is_known).map(|t| t.data)
}
