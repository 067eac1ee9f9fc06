//! EXISTS and IN (SELECT …) outside of conditions: items, arguments of aggregates and of window functions, groups.
//!
//! ```text
//! Projection: k, EXISTS (<subquery>) AS f      Projection: k, __correlated_sq_1.mark AS f
//!   TableScan: t                          ⇒      LeftMark Join: …
//!                                                  TableScan: t
//!                                                  Subquery: __correlated_sq_1
//! ```
//! DataFusion makes such joins for filters alone. So its rule gets a filter for each subquery, and the resulting join
//! is used. ANY and ALL become EXISTS before.

use std::sync::Arc;

use crate::walk::{Walk, WalkPlan};
use datafusion::common::tree_node::{Transformed, TreeNodeRecursion};
use datafusion::common::{DFSchemaRef, DataFusionError, Result, internal_err};
use datafusion::execution::SessionState;
use datafusion::logical_expr::expr_rewriter::NamePreserver;
use datafusion::logical_expr::{
    Aggregate, EmptyRelation, Expr, Filter, LogicalPlan, Projection, Window,
};
use datafusion::optimizer::OptimizerRule;
use datafusion::optimizer::decorrelate_predicate_subquery::DecorrelatePredicateSubquery;
use datafusion::optimizer::rewrite_set_comparison::RewriteSetComparison;

use super::{error, membership};

/// Rewrites the plan; the schema stays the same.
pub(super) fn rewrite(plan: LogicalPlan, state: &SessionState) -> Result<LogicalPlan> {
    plan.map_all_up(|node| match node {
        LogicalPlan::Projection(projection) if has_subquery(&projection.expr)? => {
            let schema = projection.input.schema().clone();
            let names = NamePreserver::new_for_projection();
            let saved: Vec<_> = projection.expr.iter().map(|expr| names.save(expr)).collect();
            let input = Arc::unwrap_or_clone(projection.input);
            let mut marks = Marks { input, schema, state, known: Vec::new() };
            let exprs = marks.replaced(projection.expr)?.into_iter().zip(saved);
            let exprs = exprs.map(|(expr, name)| name.restore(expr)).collect();
            let plan = Projection::try_new(exprs, Arc::new(marks.input))?;
            Ok(Transformed::yes(LogicalPlan::Projection(plan)))
        }
        LogicalPlan::Aggregate(aggregate)
            if has_subquery(&aggregate.group_expr)? || has_subquery(&aggregate.aggr_expr)? =>
        {
            let schema = aggregate.input.schema().clone();
            let input = Arc::unwrap_or_clone(aggregate.input);
            let mut marks = Marks { input, schema, state, known: Vec::new() };
            let groups = marks.replaced(aggregate.group_expr)?;
            let calls = marks.replaced(aggregate.aggr_expr)?;
            let new = Aggregate::try_new(Arc::new(marks.input), groups, calls)?;
            let columns = 0..new.schema.fields().len();
            renamed(LogicalPlan::Aggregate(new), columns, &aggregate.schema)
        }
        LogicalPlan::Window(window) if has_subquery(&window.window_expr)? => {
            let schema = window.input.schema().clone();
            let before = schema.fields().len();
            let input = Arc::unwrap_or_clone(window.input);
            let mut marks = Marks { input, schema, state, known: Vec::new() };
            let calls = marks.replaced(window.window_expr)?;
            let wide = marks.input.schema().fields().len();
            let new = Window::try_new(calls, Arc::new(marks.input))?;
            // The marks stand between the columns of the input and the results.
            let columns = (0..before).chain(wide..new.schema.fields().len());
            renamed(LogicalPlan::Window(new), columns, &window.schema)
        }
        node => Ok(Transformed::no(node)),
    })
    .map(|t| t.data)
}

fn is_subquery(expr: &Expr) -> bool {
    matches!(expr, Expr::Exists(_) | Expr::InSubquery(_))
}

fn has_subquery(exprs: &[Expr]) -> Result<bool> {
    let is_one = |e: &Expr| is_subquery(e) || matches!(e, Expr::SetComparison(_));
    for expr in exprs {
        if expr.any(|e| Ok(is_one(e)))? {
            return Ok(true);
        }
    }
    Ok(false)
}

/// The input of an operator, to which joins add columns.
struct Marks<'a> {
    input: LogicalPlan,
    /// The schema of the operator's own input.
    schema: DFSchemaRef,
    state: &'a SessionState,
    /// Each subquery, and the column that has its value.
    known: Vec<(Expr, Expr)>,
}

impl Marks<'_> {
    /// The expressions with a column for each subquery.
    fn replaced(&mut self, exprs: Vec<Expr>) -> Result<Vec<Expr>> {
        let mut out = Vec::with_capacity(exprs.len());
        for expr in exprs {
            let expr = membership::value(expr, &self.schema, self.state)?.data;
            let expr = expr.map_up(|e| self.compared(e))?.data;
            let new = expr.map_down(|e| match is_subquery(&e) {
                true => Ok(Transformed::new(self.mark(e)?, true, TreeNodeRecursion::Jump)),
                false => Ok(Transformed::no(e)),
            })?;
            out.push(new.data);
        }
        Ok(out)
    }

    /// ANY or ALL over a subquery in terms of EXISTS.
    fn compared(&self, expr: Expr) -> Result<Transformed<Expr>> {
        if !matches!(expr, Expr::SetComparison(_)) {
            return Ok(Transformed::no(expr));
        }
        let rows = EmptyRelation { produce_one_row: false, schema: self.schema.clone() };
        let filter = Filter::try_new(expr, Arc::new(LogicalPlan::EmptyRelation(rows)))?;
        let rule = RewriteSetComparison::new();
        match rule.rewrite(LogicalPlan::Filter(filter), self.state)?.data {
            LogicalPlan::Filter(filter) => Ok(Transformed::yes(filter.predicate)),
            other => internal_err!("{} is not a filter", other.display()),
        }
    }

    fn mark(&mut self, expr: Expr) -> Result<Expr> {
        if let Some((_, column)) = self.known.iter().find(|(known, _)| *known == expr) {
            return Ok(column.clone());
        }
        // As a part of a condition, it becomes a column.
        let filter = Filter::try_new(expr.clone().is_true(), Arc::new(self.input.clone()))?;
        let plan = DecorrelatePredicateSubquery::new()
            .rewrite(LogicalPlan::Filter(filter), self.state)?
            .data;
        let LogicalPlan::Projection(Projection { input: filter, .. }) = plan else {
            return refused(&expr);
        };
        let LogicalPlan::Filter(Filter { predicate, input, .. }) = Arc::unwrap_or_clone(filter)
        else {
            return refused(&expr);
        };
        let Expr::IsTrue(column) = predicate else { return refused(&expr) };
        self.input = Arc::unwrap_or_clone(input);
        self.known.push((expr, column.as_ref().clone()));
        Ok(*column)
    }
}

/// The error for a subquery of which DataFusion makes no join.
fn refused(expr: &Expr) -> Result<Expr> {
    let subquery = match expr {
        Expr::Exists(exists) => &exists.subquery,
        Expr::InSubquery(list) => &list.subquery,
        other => return internal_err!("{other} has no subquery"),
    };
    Err(DataFusionError::External(Box::new(error::of_outside(false, subquery))))
}

/// Some columns of a plan, under the names of a schema.
pub(super) fn renamed(
    plan: LogicalPlan,
    columns: impl Iterator<Item = usize>,
    schema: &DFSchemaRef,
) -> Result<Transformed<LogicalPlan>> {
    let all = plan.schema().columns();
    let exprs = columns.zip(schema.iter()).map(|(at, (relation, field))| {
        let column = all[at].clone();
        match (column.relation.as_ref(), &column.name) == (relation, field.name()) {
            true => Expr::Column(column),
            false => Expr::Column(column).alias_qualified(relation.cloned(), field.name()),
        }
    });
    let exprs = exprs.collect();
    let plan = Projection::try_new(exprs, Arc::new(plan))?;
    Ok(Transformed::yes(LogicalPlan::Projection(plan)))
}
