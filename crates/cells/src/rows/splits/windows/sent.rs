//! Windows as workers get them: operators over an input without rows, which are put above the sort of the splits.
//!
//! DataFusion's encoding of a window has neither FILTER nor IGNORE NULLS, and not whether a function runs in reverse.
//! Windows with one of them stay on the server: [`unsent`](WindowsExec::unsent), [`is_same`](WindowsExec::is_same).

use super::super::calls::{aggregate_of, has_filter};
use super::super::replaced;
use super::super::sort::SortSplitsExec;
use super::WindowsExec;
use super::chain::exprs;
use datafusion::common::internal_datafusion_err;
use datafusion::error::Result;
use datafusion::physical_expr::aggregate::AggregateFunctionExpr;
use datafusion::physical_expr::window::{StandardWindowExpr, WindowExpr};
use datafusion::physical_expr::{LexOrdering, PhysicalExpr};
use datafusion::physical_plan::ExecutionPlan;
use datafusion::physical_plan::empty::EmptyExec;
use datafusion::physical_plan::projection::ProjectionExec;
use std::sync::Arc;

impl WindowsExec {
    /// The windows of [`operators`](Self::operators) above a sort of an input with the same columns.
    ///
    /// # Errors
    /// Operators that are not windows above one order.
    pub(in crate::rows) fn of_operators(
        operators: &Arc<dyn ExecutionPlan>,
        input: Arc<dyn ExecutionPlan>,
        order: LexOrdering,
    ) -> Result<Self> {
        let sort: Arc<dyn ExecutionPlan> = Arc::new(SortSplitsExec::new(input, order, None)?);
        let windows = Self::of(&above(operators, sort)?)?;
        windows.ok_or_else(|| internal_datafusion_err!("a part has no windows above its sort"))
    }

    /// The operators, over an input without rows.
    pub(in crate::rows) fn operators(&self) -> Result<Arc<dyn ExecutionPlan>> {
        let none = Arc::new(EmptyExec::new(self.chain.source()?.schema()));
        Ok(self.chain.over(none)?.top().clone())
    }

    /// The keys of the sort.
    pub(in crate::rows) fn order(&self) -> Result<&LexOrdering> {
        let order = self.chain.sort().map(SortSplitsExec::order);
        order.ok_or_else(|| internal_datafusion_err!("the input of a window is not its sort"))
    }

    /// The reason why a window cannot be sent; `None` if all can.
    pub(in crate::rows) fn unsent(&self) -> Option<String> {
        let mut calls = self.chain.operators().flat_map(exprs);
        let filtered = calls.find(|call| has_filter(call))?;
        Some(format!("the FILTER of the window function `{}` is not sent", filtered.name()))
    }

    /// True if the other windows have the same results.
    pub(in crate::rows) fn is_same(&self, other: &Self) -> bool {
        let operators = |of: &Self| of.chain.operators().cloned().collect::<Vec<_>>();
        let order = |of: &Self| of.order().ok().map(ToString::to_string);
        let (a, b) = (operators(self), operators(other));
        a.len() == b.len()
            && a.iter().zip(&b).all(|(a, b)| is_same_operator(a, b))
            && order(self) == order(other)
            && (self.keys, self.steps.is_some()) == (other.keys, other.steps.is_some())
    }
}

/// The operators above another source.
fn above(
    operators: &Arc<dyn ExecutionPlan>,
    source: Arc<dyn ExecutionPlan>,
) -> Result<Arc<dyn ExecutionPlan>> {
    match operators.children()[..] {
        [input] => replaced(operators, vec![above(input, source)?]),
        _ => Ok(source),
    }
}

fn is_same_operator(a: &Arc<dyn ExecutionPlan>, b: &Arc<dyn ExecutionPlan>) -> bool {
    let items = |of: &Arc<dyn ExecutionPlan>| {
        let items =
            of.downcast_ref::<ProjectionExec>().map(ProjectionExec::expr).unwrap_or_default();
        items.iter().map(|item| item.expr.to_string()).collect::<Vec<_>>()
    };
    let (of_a, of_b) = (exprs(a), exprs(b));
    a.name() == b.name()
        && a.schema() == b.schema()
        && items(a) == items(b)
        && of_a.len() == of_b.len()
        && of_a.iter().zip(of_b).all(|(a, b)| is_same_call(a, b))
}

fn is_same_call(a: &Arc<dyn WindowExpr>, b: &Arc<dyn WindowExpr>) -> bool {
    let texts = |all: &[Arc<dyn PhysicalExpr>]| {
        all.iter().map(ToString::to_string).collect::<Vec<String>>()
    };
    let clauses = |call: &Arc<dyn WindowExpr>| {
        let order: Vec<String> = call.order_by().iter().map(ToString::to_string).collect();
        (texts(&call.expressions()), texts(call.partition_by()), order)
    };
    clauses(a) == clauses(b)
        && a.name() == b.name()
        && a.get_window_frame() == b.get_window_frame()
        && match (aggregate_of(a), aggregate_of(b)) {
            (Some(of_a), Some(of_b)) => {
                has_filter(a) == has_filter(b) && is_same_aggregate(of_a, of_b)
            }
            (None, None) => function_of(a) == function_of(b),
            _ => false,
        }
}

fn is_same_aggregate(a: &AggregateFunctionExpr, b: &AggregateFunctionExpr) -> bool {
    let flags =
        |of: &AggregateFunctionExpr| (of.is_distinct(), of.ignore_nulls(), of.is_reversed());
    a.fun() == b.fun()
        && a.field() == b.field()
        && flags(a) == flags(b)
        && a.order_bys() == b.order_bys()
}

/// The debug text of a function that is no aggregate, which alone shows IGNORE NULLS and whether it runs in reverse.
fn function_of(call: &Arc<dyn WindowExpr>) -> Option<String> {
    let call = call.as_any().downcast_ref::<StandardWindowExpr>()?;
    Some(format!("{:?}", call.get_standard_func_expr()))
}
