//! The order of lists, structs and maps. A NULL inside of a value is the greatest there, as in DuckDB and PostgreSQL.
//!
//! | written | becomes |
//! |---|---|
//! | `ORDER BY l NULLS FIRST` | `ORDER BY l IS NULL DESC, l NULLS LAST` |
//! | `ORDER BY l DESC NULLS LAST` | `ORDER BY l IS NULL, l DESC NULLS FIRST` |
//! | `a < b` | `tessera_order(a, b) < 0` |
//! | `greatest(a, b)`, `least(a, b)` | `tessera_greatest(a, b)`, `tessera_least(a, b)` |
//! | `OVER (ORDER BY l)` | `OVER (ORDER BY l GROUPS UNBOUNDED PRECEDING)` |
//!
//! In Arrow, NULLS FIRST of a sort is for the NULLs inside, too, and a comparison takes them for the least. DataFusion
//! has no frames of RANGE over such keys. Where no bound is a distance, frames of GROUPS have the same rows.

use std::cmp::Ordering;
use std::sync::Arc;

use crate::walk::{Walk, WalkPlan};
use arrow::array::{Array, ArrayRef, Int8Array, UInt64Array, make_comparator};
use arrow::compute::{SortOptions, concat, take};
use arrow::datatypes::{DataType, FieldRef};
use datafusion::common::tree_node::Transformed;
use datafusion::common::{DFSchema, Result, exec_err, internal_err};
use datafusion::execution::SessionState;
use datafusion::logical_expr::expr::Between;
use datafusion::logical_expr::utils::merge_schema;
use datafusion::logical_expr::{
    Aggregate, BinaryExpr, ColumnarValue, Expr, ExprSchemable, LogicalPlan, Operator,
    ReturnFieldArgs, ScalarFunctionArgs, ScalarUDF, ScalarUDFImpl, Signature, SortExpr, Volatility,
    WindowFrame, WindowFrameBound, WindowFrameUnits, lit, not,
};

use super::frame_bounds::known;
use super::functions::{OfArrays, over_arrays, scalar};

const NAME: &str = "tessera_order";

/// The order of values: NULL is the greatest.
pub(super) const ORDER: SortOptions = SortOptions { descending: false, nulls_first: false };

/// Rewrites sorts, windows and ordered aggregates, and [frames](super::frame_bounds). Runs before types are coerced,
/// which refuses the frames.
pub(super) fn keys(plan: LogicalPlan) -> Result<LogicalPlan> {
    plan.map_all_up(|node| match node {
        LogicalPlan::Sort(mut sort) => {
            let is_changed = apart(&mut sort.expr, sort.input.schema());
            Ok(Transformed::new_transformed(LogicalPlan::Sort(sort), is_changed))
        }
        LogicalPlan::Window(window) => {
            let input = Arc::clone(&window.input);
            super::map_parts(LogicalPlan::Window(window), |expr| {
                call(expr, input.schema()).transform_data(|expr| Ok(known(expr, &input)))
            })
        }
        LogicalPlan::Aggregate(aggregate) if has_ordered(&aggregate)? => {
            let schema = Arc::clone(aggregate.input.schema());
            super::map_parts(LogicalPlan::Aggregate(aggregate), |expr| Ok(ordered(expr, &schema)))
        }
        other => Ok(Transformed::no(other)),
    })
    .map(|t| t.data)
}

fn is_nested(expr: &Expr, schema: &DFSchema) -> bool {
    // A type that is not known here is reported by later planning.
    expr.get_type(schema).is_ok_and(|of| of.is_nested())
}

/// Adds a key `IS NULL` before each nested key whose NULLs belong to another end than the NULLs inside.
fn apart(keys: &mut Vec<SortExpr>, schema: &DFSchema) -> bool {
    let is_moved = |key: &SortExpr| {
        key.asc == key.nulls_first && !key.expr.is_volatile() && is_nested(&key.expr, schema)
    };
    if !keys.iter().any(is_moved) {
        return false;
    }
    let mut all = Vec::with_capacity(keys.len() + 1);
    for mut key in std::mem::take(keys) {
        if is_moved(&key) {
            let is_null = Expr::IsNull(Box::new(key.expr.clone()));
            all.push(SortExpr::new(is_null, !key.nulls_first, false));
            key.nulls_first = !key.nulls_first;
        }
        all.push(key);
    }
    *keys = all;
    true
}

/// True if a node has aggregates in the order of nested values.
fn has_ordered(aggregate: &Aggregate) -> Result<bool> {
    let schema = aggregate.input.schema();
    let is_ordered = |expr: &Expr| match expr {
        Expr::AggregateFunction(function) => {
            function.params.order_by.iter().any(|key| is_nested(&key.expr, schema))
        }
        _ => false,
    };
    for call in &aggregate.aggr_expr {
        if call.any(|e| Ok(is_ordered(e)))? {
            return Ok(true);
        }
    }
    Ok(false)
}

/// An aggregate whose order may be of nested values. WITHIN GROUP has one key.
fn ordered(mut expr: Expr, schema: &DFSchema) -> Transformed<Expr> {
    let Expr::AggregateFunction(function) = &mut expr else { return Transformed::no(expr) };
    if function.func.supports_within_group_clause() {
        return Transformed::no(expr);
    }
    let is_changed = apart(&mut function.params.order_by, schema);
    Transformed::new_transformed(expr, is_changed)
}

/// A window function whose keys may be nested.
fn call(mut expr: Expr, schema: &DFSchema) -> Transformed<Expr> {
    let Expr::WindowFunction(function) = &mut expr else { return Transformed::no(expr) };
    let params = &mut function.params;
    let mut is_changed = apart(&mut params.order_by, schema);
    let frame = &params.window_frame;
    let is_free = frame.units == WindowFrameUnits::Range
        && [&frame.start_bound, &frame.end_bound]
            .iter()
            .all(|bound| bound.is_unbounded() || **bound == WindowFrameBound::CurrentRow);
    if is_free && params.order_by.iter().any(|key| has_no_range(&key.expr, schema)) {
        let (start, end) = (frame.start_bound.clone(), frame.end_bound.clone());
        params.window_frame = WindowFrame::new_bounds(WindowFrameUnits::Groups, start, end);
        is_changed = true;
    }
    Transformed::new_transformed(expr, is_changed)
}

/// True for keys over which DataFusion has no frames of RANGE.
fn has_no_range(key: &Expr, schema: &DFSchema) -> bool {
    use DataType::{Binary, BinaryView, Duration, FixedSizeBinary, Interval, LargeBinary};
    use DataType::{Time32, Time64};
    key.get_type(schema).is_ok_and(|of| match of {
        Binary | BinaryView | FixedSizeBinary(_) | LargeBinary => true,
        Duration(_) | Interval(_) | Time32(_) | Time64(_) => true,
        of => of.is_nested(),
    })
}

/// Rewrites comparisons of nested values. Runs on the analysed plan: both sides are of one type.
pub(super) fn comparisons(plan: LogicalPlan, state: &SessionState) -> Result<LogicalPlan> {
    let Some(order) = state.scalar_functions().get(NAME) else {
        return internal_err!("no such function: {NAME}");
    };
    plan.map_all_up(|node| {
        let schema = merge_schema(&node.inputs());
        super::map_parts(node, |expr| Ok(compared(expr, &schema, order)))
    })
    .map(|t| t.data)
}

fn compared(expr: Expr, schema: &DFSchema, order: &ScalarUDF) -> Transformed<Expr> {
    use Operator::{Gt, GtEq, Lt, LtEq};
    let by_order = |left: Expr, op: Operator, right: Expr| {
        let order = Box::new(order.call(vec![left, right]));
        Expr::BinaryExpr(BinaryExpr::new(order, op, Box::new(lit(0_i8))))
    };
    match expr {
        Expr::BinaryExpr(BinaryExpr { left, op: op @ (Lt | LtEq | Gt | GtEq), right })
            if is_nested(&left, schema) && is_nested(&right, schema) =>
        {
            Transformed::yes(by_order(*left, op, *right))
        }
        Expr::Between(Between { expr, negated, low, high }) if is_nested(&expr, schema) => {
            let above = by_order(Expr::clone(&expr), GtEq, *low);
            let between = above.and(by_order(*expr, LtEq, *high));
            Transformed::yes(if negated { not(between) } else { between })
        }
        Expr::ScalarFunction(call)
            if matches!(call.func.name(), "greatest" | "least")
                && call.args.first().is_some_and(|arg| is_nested(arg, schema)) =>
        {
            let choice = ScalarUDF::from(Choice::new(call.func.name() == "greatest"));
            Transformed::yes(choice.call(call.args))
        }
        other => Transformed::no(other),
    }
}

/// `tessera_order(a, b)`: -1 if a is less than b, 0 if they are equal, 1 if a is greater, NULL if one is NULL;
/// and `greatest` and `least`.
pub(super) fn functions() -> [ScalarUDF; 3] {
    let signature = Signature::any(2, Volatility::Immutable);
    let order = OfArrays::new(NAME, signature, DataType::Int8, orders);
    [order.udf(), Choice::new(true).into(), Choice::new(false).into()]
}

fn orders(arrays: &[ArrayRef]) -> Result<ArrayRef> {
    let [left, right] = arrays else {
        return exec_err!("{NAME} takes two values");
    };
    let compare = make_comparator(left.as_ref(), right.as_ref(), ORDER)?;
    let order =
        |row: usize| (left.is_valid(row) && right.is_valid(row)).then(|| compare(row, row) as i8);
    let orders: Int8Array = (0..left.len()).map(order).collect();
    Ok(Arc::new(orders))
}

/// The greatest of some values, or the least one, without NULL.
#[derive(Debug, PartialEq, Eq, Hash)]
struct Choice {
    is_greatest: bool,
    signature: Signature,
}

impl Choice {
    fn new(is_greatest: bool) -> Self {
        Self { is_greatest, signature: Signature::variadic_any(Volatility::Immutable) }
    }
}

impl ScalarUDFImpl for Choice {
    scalar!(signature, type_by_field);

    fn name(&self) -> &str {
        if self.is_greatest { "tessera_greatest" } else { "tessera_least" }
    }

    fn return_field_from_args(&self, args: ReturnFieldArgs<'_>) -> Result<FieldRef> {
        match args.arg_fields {
            [first, ..] => Ok(Arc::new(first.as_ref().clone().with_nullable(true))),
            [] => exec_err!("{} takes a value", self.name()),
        }
    }

    fn invoke_with_args(&self, args: ScalarFunctionArgs) -> Result<ColumnarValue> {
        over_arrays(&args, |arrays| {
            let parts: Vec<&dyn Array> = arrays.iter().map(|values| values.as_ref()).collect();
            let rows = parts.first().map_or(0, |values| values.len());
            let all = concat(&parts)?;
            let compare = make_comparator(all.as_ref(), all.as_ref(), ORDER)?;
            let wanted = if self.is_greatest { Ordering::Greater } else { Ordering::Less };
            let best = |row: usize| {
                let mut best: Option<usize> = None;
                for place in (row..all.len()).step_by(rows).filter(|&place| all.is_valid(place)) {
                    if best.is_none_or(|best| compare(place, best) == wanted) {
                        best = Some(place);
                    }
                }
                best.map(|place| place as u64)
            };
            let places: UInt64Array = (0..rows).map(best).collect();
            Ok(take(all.as_ref(), &places, None)?)
        })
    }
}
