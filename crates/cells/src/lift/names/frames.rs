//! Refuses frames that SQL does not have: those with negative offsets, and those that end on the side before their
//! beginning.

use std::cmp::Ordering;

use arrow::compute::kernels::cast_utils::parse_interval_month_day_nano;
use sqlparser::ast::{Expr, UnaryOperator, Value, WindowFrame, WindowFrameBound};
use tessera_frontend::error::{Error, Position};

use super::intervals;

const NANOS_OF_DAY: i128 = 86_400_000_000_000;

/// # Errors
/// `plan_error`, with the position of the offset.
pub(super) fn check(frame: &WindowFrame) -> Result<(), Error> {
    let end = frame.end_bound.as_ref().unwrap_or(&WindowFrameBound::CurrentRow);
    for bound in [&frame.start_bound, end] {
        if let Some(offset) = offset(bound)
            && sign(offset) == Some(Ordering::Less)
        {
            return Err(refused(
                format!("the offset of a frame must not be negative, and is {offset}"),
                Some(offset),
                "PRECEDING is before the current row, FOLLOWING behind it",
            ));
        }
    }
    let (begins, ends) = match (&frame.start_bound, end) {
        (WindowFrameBound::Following(Some(_)), WindowFrameBound::Preceding(Some(_))) => {
            ("FOLLOWING", "PRECEDING")
        }
        (WindowFrameBound::Following(Some(_)), WindowFrameBound::CurrentRow) => {
            ("FOLLOWING", "CURRENT ROW")
        }
        (WindowFrameBound::CurrentRow, WindowFrameBound::Preceding(Some(_))) => {
            ("CURRENT ROW", "PRECEDING")
        }
        _ => return Ok(()),
    };
    Err(refused(
        format!("a frame that begins with {begins} cannot end with {ends}"),
        offset(&frame.start_bound).or_else(|| offset(end)),
        "a frame begins before its end: `ROWS BETWEEN 1 PRECEDING AND 1 FOLLOWING` has three rows",
    ))
}

fn refused(message: String, offset: Option<&Expr>, hint: &str) -> Error {
    let position = offset.and_then(Position::of);
    Error::Cells { code: "plan_error", message, position, hint: Some(hint.to_string()) }
}

fn offset(bound: &WindowFrameBound) -> Option<&Expr> {
    match bound {
        WindowFrameBound::Preceding(offset) | WindowFrameBound::Following(offset) => {
            offset.as_deref()
        }
        WindowFrameBound::CurrentRow => None,
    }
}

/// The side of zero on which a constant is; `None` for other expressions.
fn sign(constant: &Expr) -> Option<Ordering> {
    match constant {
        Expr::Nested(inner)
        | Expr::Cast { expr: inner, .. }
        | Expr::UnaryOp { op: UnaryOperator::Plus, expr: inner } => sign(inner),
        Expr::UnaryOp { op: UnaryOperator::Minus, expr } => sign(expr).map(Ordering::reverse),
        Expr::Interval(interval) => sign(&interval.value),
        Expr::Value(value) => match &value.value {
            Value::Number(text, _) | Value::SingleQuotedString(text) => sign_of_text(text.trim()),
            _ => None,
        },
        _ => None,
    }
}

fn sign_of_text(text: &str) -> Option<Ordering> {
    if let Ok(number) = text.parse::<f64>() {
        return number.partial_cmp(&0.0);
    }
    // A text that is not an interval is refused by later planning.
    let by = parse_interval_month_day_nano(&intervals::in_known_units(text)).ok()?;
    let days = i128::from(by.months) * 30 + i128::from(by.days);
    Some((days * NANOS_OF_DAY + i128::from(by.nanoseconds)).cmp(&0))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::panic, reason = "tests")]
    use super::*;
    use sqlparser::ast::{SelectItem, WindowType};
    use tessera_frontend::scope;

    fn checked(frame: &str) -> Result<(), Error> {
        let sql = format!("SELECT sum(x) OVER (ORDER BY i {frame}) FROM t");
        let mut query = tessera_frontend::query_of(&sql).unwrap().unwrap();
        let select = scope::innermost_mut(&mut query).unwrap();
        let SelectItem::UnnamedExpr(Expr::Function(call)) = &select.projection[0] else {
            panic!("no call")
        };
        let Some(WindowType::WindowSpec(spec)) = &call.over else { panic!("no window") };
        check(spec.window_frame.as_ref().unwrap())
    }

    #[test]
    fn negative_offsets_and_frames_backwards_are_errors() {
        for frame in [
            "RANGE BETWEEN -1 PRECEDING AND CURRENT ROW",
            "RANGE BETWEEN 1 PRECEDING AND -0.5 FOLLOWING",
            "ROWS -1 PRECEDING",
            "RANGE INTERVAL '-1 day' PRECEDING",
            "RANGE INTERVAL (-1) DAY PRECEDING",
            "RANGE INTERVAL '1 day -100 hours' PRECEDING",
            "RANGE INTERVAL '-1 quarter' PRECEDING",
            "ROWS BETWEEN 1 FOLLOWING AND 1 PRECEDING",
            "ROWS BETWEEN CURRENT ROW AND 1 PRECEDING",
            "ROWS 1 FOLLOWING",
        ] {
            let error = checked(frame).unwrap_err();
            assert_eq!(error.code(), "plan_error", "{frame}");
            assert!(error.position().is_some(), "{frame}");
        }
    }

    #[test]
    fn other_frames_are_not() {
        for frame in [
            "RANGE BETWEEN -0.0 PRECEDING AND CURRENT ROW",
            "RANGE BETWEEN 1 PRECEDING AND 2 PRECEDING",
            "RANGE INTERVAL '1 day -1 hour' PRECEDING",
            "ROWS BETWEEN 2 FOLLOWING AND 1 FOLLOWING",
            "ROWS BETWEEN CURRENT ROW AND UNBOUNDED FOLLOWING",
            "ROWS BETWEEN 0 PRECEDING AND 0 FOLLOWING",
            "RANGE i PRECEDING",
        ] {
            assert!(checked(frame).is_ok(), "{frame}");
        }
    }
}
