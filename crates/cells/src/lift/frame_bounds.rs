//! Bounds of frames that DataFusion does not take.
//!
//! | written | becomes |
//! |---|---|
//! | `ROWS BETWEEN 1 PRECEDING AND 2 PRECEDING`, which has no rows | a frame behind all rows, or before them |
//! | `ORDER BY i RANGE 1.5 PRECEDING` with integers `i` | `ORDER BY i RANGE 1 PRECEDING` |
//! | `sum(x) OVER (ORDER BY i RANGE BETWEEN 1 PRECEDING AND 2 PRECEDING)` | `sum(x) FILTER (WHERE i IS NULL) OVER (ORDER BY i RANGE BETWEEN CURRENT ROW AND CURRENT ROW)` |
//!
//! In a frame of RANGE that ends before it begins, only a row whose key is NULL has rows: those with NULL.

use std::sync::Arc;

use arrow::compute::kernels::cast_utils::parse_interval_month_day_nano;
use datafusion::common::config::ConfigOptions;
use datafusion::common::tree_node::Transformed;
use datafusion::common::{Result, ScalarValue};
use datafusion::logical_expr::expr::{Case, WindowFunction};
use datafusion::logical_expr::{
    Expr, ExprSchemable, LogicalPlan, Projection, SortExpr, WindowFrame, WindowFrameBound,
    WindowFrameUnits, WindowFunctionDefinition,
};
use datafusion::optimizer::analyzer::AnalyzerRule;
use datafusion::optimizer::analyzer::type_coercion::TypeCoercion;

/// More groups of peers than a partition has.
const BEYOND: u64 = 1 << 40;

/// More rows than a partition has, and than a frame with a dense form has.
const ROWS_BEYOND: u64 = 1 << 61;

/// Distances up to here are exact as floats.
const EXACT: f64 = 1e15;

const NANOS_OF_DAY: i128 = 86_400_000_000_000;

/// The window functions that read a frame.
const OF_FRAMES: [&str; 3] = ["first_value", "last_value", "nth_value"];

/// Replaces the frame of a call. Runs before types are coerced, which refuses fractions beside integers.
pub(super) fn known(mut expr: Expr, input: &Arc<LogicalPlan>) -> Transformed<Expr> {
    let Expr::WindowFunction(function) = &mut expr else { return Transformed::no(expr) };
    let params = &mut function.params;
    let frame = match (params.window_frame.units, params.order_by.as_slice()) {
        (WindowFrameUnits::Rows, []) => behind(&params.window_frame).map(|_| {
            // Below LIMIT, a sort would yield as many more rows as a frame ends behind its row.
            let before = || WindowFrameBound::Preceding(ScalarValue::UInt64(Some(ROWS_BEYOND)));
            WindowFrame::new_bounds(WindowFrameUnits::Rows, before(), before())
        }),
        (_, []) => None,
        (WindowFrameUnits::Range, [key]) => in_integers(&params.window_frame, key, input),
        (WindowFrameUnits::Range, _) => None,
        (WindowFrameUnits::Rows | WindowFrameUnits::Groups, _) => behind(&params.window_frame),
    };
    match frame {
        Some(frame) if ends_first(&frame) => of_nulls(function, input),
        Some(frame) => params.window_frame = frame,
        None if ends_first(&params.window_frame) => of_nulls(function, input),
        None => return Transformed::no(expr),
    }
    Transformed::yes(expr)
}

/// True if a frame of distances ends before it begins, whatever the key of its row.
fn ends_first(frame: &WindowFrame) -> bool {
    use ScalarValue::Utf8;
    use WindowFrameBound::{Following, Preceding};
    match (&frame.start_bound, &frame.end_bound) {
        (Preceding(Utf8(Some(start))), Preceding(Utf8(Some(end)))) => is_shorter(start, end),
        (Following(Utf8(Some(start))), Following(Utf8(Some(end)))) => is_shorter(end, start),
        _ => false,
    }
}

/// True if a distance, a number or an interval, is shorter than another one in any month.
fn is_shorter(distance: &str, other: &str) -> bool {
    if let (Ok(distance), Ok(other)) = (distance.parse::<f64>(), other.parse::<f64>()) {
        return distance < other;
    }
    let intervals = (parse_interval_month_day_nano(distance), parse_interval_month_day_nano(other));
    let (Ok(distance), Ok(other)) = intervals else { return false };
    let months = i128::from(other.months) - i128::from(distance.months);
    let of_months = months * if months > 0 { 28 } else { 31 };
    let days = i128::from(other.days) - i128::from(distance.days) + of_months;
    let nanos = i128::from(other.nanoseconds) - i128::from(distance.nanoseconds);
    days * NANOS_OF_DAY + nanos > 0
}

/// Limits the rows of a frame to those whose key is NULL, for rows whose key is NULL. Later planning refuses keys
/// without distances.
fn of_nulls(function: &mut WindowFunction, input: &Arc<LogicalPlan>) {
    let WindowFunction { fun, params } = function;
    let [key] = params.order_by.as_slice() else { return };
    let has_distances = |key: &SortExpr| {
        let of = key.expr.get_type(input.schema());
        of.is_ok_and(|of| of.is_numeric() || of.is_temporal())
    };
    if !has_distances(key) {
        return;
    }
    let is_null = key.expr.clone().is_null();
    let current = || WindowFrameBound::CurrentRow;
    params.window_frame = WindowFrame::new_bounds(WindowFrameUnits::Range, current(), current());
    match fun {
        WindowFunctionDefinition::AggregateUDF(_) => {
            let filter = match params.filter.take() {
                Some(own) => is_null.and(*own),
                None => is_null,
            };
            params.filter = Some(Box::new(filter));
        }
        WindowFunctionDefinition::WindowUDF(function) => {
            if let Some(x) =
                params.args.first_mut().filter(|_| OF_FRAMES.contains(&function.name()))
            {
                let arms = vec![(Box::new(is_null), Box::new(x.clone()))];
                *x = Expr::Case(Case::new(None, arms, None));
            }
        }
    }
}

/// A frame without rows, for one that ends before it begins.
fn behind(frame: &WindowFrame) -> Option<WindowFrame> {
    use ScalarValue::UInt64;
    use WindowFrameBound::{Following, Preceding};
    let is_empty = match (&frame.start_bound, &frame.end_bound) {
        (Preceding(UInt64(Some(start))), Preceding(UInt64(Some(end)))) => start < end,
        (Following(UInt64(Some(start))), Following(UInt64(Some(end)))) => start > end,
        _ => false,
    };
    let beyond = || Following(UInt64(Some(BEYOND)));
    is_empty.then(|| WindowFrame::new_bounds(WindowFrameUnits::Groups, beyond(), beyond()))
}

/// The same frame with whole distances; `None` if it has some already, or other keys.
fn in_integers(
    frame: &WindowFrame,
    key: &SortExpr,
    input: &Arc<LogicalPlan>,
) -> Option<WindowFrame> {
    let (start, end) = (&frame.start_bound, &frame.end_bound);
    let (new_start, new_end) = (in_integer(start, true), in_integer(end, false));
    // An error is reported by later planning.
    let has_integers = || is_integer(key, input).is_ok_and(|is_integer| is_integer);
    if (new_start.is_none() && new_end.is_none()) || !has_integers() {
        return None;
    }
    let start = new_start.unwrap_or_else(|| start.clone());
    let end = new_end.unwrap_or_else(|| end.clone());
    Some(WindowFrame::new_bounds(WindowFrameUnits::Range, start, end))
}

/// True for an integer key. Until types are coerced, `CASE WHEN c THEN 1 ELSE 0.5 END` has the type of its first value,
/// and so has its column above.
fn is_integer(key: &SortExpr, input: &Arc<LogicalPlan>) -> Result<bool> {
    let key = Projection::try_new(vec![key.expr.clone()], input.clone())?;
    let plan = LogicalPlan::Projection(key);
    let plan = TypeCoercion::new().analyze(plan, &ConfigOptions::default())?;
    Ok(plan.schema().field(0).data_type().is_integer())
}

/// The bound at the next integer within the frame, if it is a distance in another form.
fn in_integer(bound: &WindowFrameBound, is_start: bool) -> Option<WindowFrameBound> {
    use WindowFrameBound::{Following, Preceding};
    let (Preceding(ScalarValue::Utf8(Some(text))) | Following(ScalarValue::Utf8(Some(text)))) =
        bound
    else {
        return None;
    };
    if text.parse::<i128>().is_ok() {
        return None;
    }
    let distance = text.parse::<f64>().ok().filter(|by| (0.0..EXACT).contains(by))?;
    let is_before = matches!(bound, Preceding(_));
    let whole = if is_before == is_start { distance.floor() } else { distance.ceil() };
    let whole = ScalarValue::Utf8(Some(whole.to_string()));
    Some(if is_before { Preceding(whole) } else { Following(whole) })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn distances_of_integers_become_whole() {
        use WindowFrameBound::{CurrentRow, Following, Preceding};
        let text = |text: &str| ScalarValue::Utf8(Some(text.to_string()));
        let whole = |bound, is_start| in_integer(&bound, is_start);
        assert_eq!(whole(Preceding(text("1.5")), true), Some(Preceding(text("1"))));
        assert_eq!(whole(Preceding(text("1.5")), false), Some(Preceding(text("2"))));
        assert_eq!(whole(Following(text("1.5")), true), Some(Following(text("2"))));
        assert_eq!(whole(Following(text("2e0")), false), Some(Following(text("2"))));
        assert_eq!(whole(Following(text("2")), false), None);
        assert_eq!(whole(Preceding(text("-0.5")), true), None);
        assert_eq!(whole(Preceding(text("1 day")), true), None);
        assert_eq!(whole(CurrentRow, true), None);
    }

    #[test]
    fn distances_are_compared() {
        assert!(is_shorter("1", "1.5"));
        assert!(!is_shorter("2", "2") && !is_shorter("2", "1"));
        assert!(is_shorter("1 day", "25 hours") && !is_shorter("25 hours", "1 day"));
        assert!(is_shorter("27 days", "1 month") && !is_shorter("29 days", "1 month"));
        assert!(is_shorter("1 month", "32 days") && !is_shorter("1 month", "30 days"));
        assert!(!is_shorter("1", "1 day"));
    }

    #[test]
    fn frames_that_end_before_they_begin_are_behind_all_rows() {
        use WindowFrameBound::{Following, Preceding};
        let rows = |start, end| {
            behind(&WindowFrame::new_bounds(WindowFrameUnits::Rows, start, end)).is_some()
        };
        let by = |rows| ScalarValue::UInt64(Some(rows));
        assert!(rows(Preceding(by(1)), Preceding(by(2))));
        assert!(rows(Following(by(2)), Following(by(1))));
        assert!(!rows(Preceding(by(2)), Preceding(by(2))));
        assert!(!rows(Preceding(ScalarValue::UInt64(None)), Preceding(by(2))));
        assert!(!rows(Following(by(1)), Following(ScalarValue::UInt64(None))));
    }
}
