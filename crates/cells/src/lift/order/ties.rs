//! Orders equal keys of OVER by dimension order, so that the result of a window does not depend on the batches.
//!
//! ```text
//! row_number() OVER (ORDER BY v)   ⇒   row_number() OVER (ORDER BY v, __row_1)
//! ```
//! Applies only where the keys serve as an order. `rank()` and frames of RANGE and GROUPS depend on which rows are
//! equal: they keep their keys, in a window of their own.

use std::sync::Arc;

use crate::walk::Walk;
use datafusion::common::Result;
use datafusion::common::tree_node::Transformed;
use datafusion::logical_expr::expr::WindowFunction;
use datafusion::logical_expr::{Expr, LogicalPlan, Projection, SortExpr, Window, WindowFrameUnits};

/// The window of these calls over a plan; `keys` are the plan's order.
pub(super) fn window(
    calls: Vec<Expr>,
    input: LogicalPlan,
    keys: &[SortExpr],
) -> Result<LogicalPlan> {
    let mut columns = input.schema().columns();
    let before = columns.len();
    let (mut plain, mut ordered) = (Vec::new(), Vec::new());
    let mut places = Vec::with_capacity(calls.len());
    for call in calls {
        let (call, is_ordered) = broken(call, keys)?;
        places.push(is_ordered);
        if is_ordered { ordered.push(call) } else { plain.push(call) }
    }
    // All calls of one window have the same order.
    if plain.is_empty() || ordered.is_empty() {
        plain.append(&mut ordered);
        return Ok(LogicalPlan::Window(Window::try_new(plain, Arc::new(input))?));
    }
    let inner = LogicalPlan::Window(Window::try_new(plain, Arc::new(input))?);
    let middle = inner.schema().columns().len();
    let outer = LogicalPlan::Window(Window::try_new(ordered, Arc::new(inner))?);
    let all = outer.schema().columns();
    let (mut of_inner, mut of_outer) = (before..middle, middle..all.len());
    for is_ordered in places {
        let next = if is_ordered { of_outer.next() } else { of_inner.next() };
        columns.extend(next.map(|i| all[i].clone()));
    }
    let exprs = columns.into_iter().map(Expr::Column).collect();
    Ok(LogicalPlan::Projection(Projection::try_new(exprs, Arc::new(outer))?))
}

/// The call under its own name, with `keys` appended to its own if it has free ties.
fn broken(call: Expr, keys: &[SortExpr]) -> Result<(Expr, bool)> {
    let is_named = matches!(call, Expr::Alias(_));
    let name = call.schema_name().to_string();
    let new = call.map_down(|e| match e {
        Expr::WindowFunction(mut function) if !keys.is_empty() && has_free_ties(&function) => {
            function.params.order_by.extend(keys.iter().cloned());
            Ok(Transformed::yes(Expr::WindowFunction(function)))
        }
        e => Ok(Transformed::no(e)),
    })?;
    Ok(match new.transformed && !is_named {
        true => (new.data.alias(name), true),
        false => (new.data, new.transformed),
    })
}

/// True if the result depends on the order of equal rows, but not on which rows are equal.
fn has_free_ties(call: &WindowFunction) -> bool {
    let frame = &call.params.window_frame;
    match call.fun.name() {
        "row_number" | "ntile" | "lead" | "lag" => true,
        "rank" | "dense_rank" | "percent_rank" | "cume_dist" => false,
        // The first row of the frame is the partition's, however the frame ends.
        "first_value" if frame.start_bound.is_unbounded() => true,
        "last_value" if frame.end_bound.is_unbounded() => true,
        _ => frame.units == WindowFrameUnits::Rows,
    }
}
