//! Names of seasons in comparisons with `season(t)`, on both surfaces: `season(time) = 'JJA'` means `season(time) = 2`.

use sqlparser::ast::{BinaryOperator, Expr, Value, ValueWithSpan};

use crate::ast;
use crate::error::{BindError, Error, Position};

/// xarray's names; the index is the season's number.
const NAMES: [&str; 4] = ["DJF", "MAM", "JJA", "SON"];

/// Rewrites a comparison (`=`, `<>`, `IN`, `CASE … WHEN`) of `season(t)` with names to one with numbers. Returns `None`
/// for any other expression. Operands are not searched.
///
/// # Errors
/// `invalid_argument` for a text that is not the name of a season.
pub fn numbered(expr: &Expr) -> Result<Option<Expr>, Error> {
    let is_asked = match expr {
        Expr::BinaryOp { left, op: BinaryOperator::Eq | BinaryOperator::NotEq, right } => {
            is_season(left) && is_text(right) || is_season(right) && is_text(left)
        }
        Expr::InList { expr, list, .. } => is_season(expr) && list.iter().any(is_text),
        Expr::Case { operand: Some(operand), conditions, .. } => {
            is_season(operand) && conditions.iter().any(|when| is_text(&when.condition))
        }
        _ => false,
    };
    if !is_asked {
        return Ok(None);
    }
    let mut new = expr.clone();
    match &mut new {
        Expr::BinaryOp { left, right, .. } => {
            number(left)?;
            number(right)?;
        }
        Expr::InList { list, .. } => list.iter_mut().try_for_each(number)?,
        Expr::Case { conditions, .. } => {
            conditions.iter_mut().try_for_each(|when| number(&mut when.condition))?;
        }
        _ => {}
    }
    Ok(Some(new))
}

fn is_season(expr: &Expr) -> bool {
    ast::function_name(expr).is_some_and(|name| name.value.eq_ignore_ascii_case("season"))
}

fn is_text(expr: &Expr) -> bool {
    matches!(expr, Expr::Value(ValueWithSpan { value: Value::SingleQuotedString(_), .. }))
}

/// Replaces the name of a season by its number.
fn number(expr: &mut Expr) -> Result<(), Error> {
    let Expr::Value(ValueWithSpan { value, span }) = expr else { return Ok(()) };
    let Value::SingleQuotedString(text) = &*value else { return Ok(()) };
    match NAMES.iter().position(|name| name.eq_ignore_ascii_case(text)) {
        Some(season) => {
            *value = Value::Number(season.to_string(), false);
            Ok(())
        }
        None => Err(Error::Bind {
            error: BindError::InvalidArgument {
                function: "season".to_string(),
                argument: format!("'{text}'"),
                reason: "is not a season: write DJF, MAM, JJA or SON, or a number from 0 to 3"
                    .to_string(),
            },
            position: Position::of_span(*span),
        }),
    }
}
