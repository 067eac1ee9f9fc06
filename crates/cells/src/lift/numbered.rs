//! Window functions that a rewrite of a plan adds.

use std::sync::Arc;

use datafusion::common::{Column, Result, internal_err};
use datafusion::execution::SessionState;
use datafusion::logical_expr::expr::{WindowFunction, WindowFunctionDefinition};
use datafusion::logical_expr::{Expr, LogicalPlan, SortExpr, Window, WindowFrame};

/// Adds a column with the number of each row, from 1, in each partition in that order; without one, in the order of the
/// rows.
pub(super) fn numbered(
    input: LogicalPlan,
    partition: Vec<Expr>,
    order: Vec<SortExpr>,
    name: &str,
    state: &SessionState,
) -> Result<LogicalPlan> {
    let Some(function) = state.window_functions().get("row_number").cloned() else {
        return internal_err!("no such function: row_number");
    };
    over(input, function.into(), Vec::new(), partition, order, name)
}

/// Adds a column that counts the values up to each row that are not NULL, in each partition in that order.
pub(super) fn counted(
    input: LogicalPlan,
    value: Expr,
    partition: Vec<Expr>,
    order: Vec<SortExpr>,
    name: &str,
    state: &SessionState,
) -> Result<LogicalPlan> {
    let Some(function) = state.aggregate_functions().get("count").cloned() else {
        return internal_err!("no such function: count");
    };
    over(input, function.into(), vec![value], partition, order, name)
}

fn over(
    input: LogicalPlan,
    function: WindowFunctionDefinition,
    args: Vec<Expr>,
    partition_by: Vec<Expr>,
    order_by: Vec<SortExpr>,
    name: &str,
) -> Result<LogicalPlan> {
    let mut call = WindowFunction::new(function, args);
    // The rows up to the current one, or all.
    call.params.window_frame = WindowFrame::new((!order_by.is_empty()).then_some(true));
    call.params.partition_by = partition_by;
    call.params.order_by = order_by;
    let call = Expr::from(call).alias(name);
    Ok(LogicalPlan::Window(Window::try_new(vec![call], Arc::new(input))?))
}

/// A column that a rewrite added.
pub(super) fn column(name: impl Into<String>) -> Expr {
    Expr::Column(Column::new_unqualified(name))
}
