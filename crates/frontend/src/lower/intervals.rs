//! Times moved by an interval: `time + INTERVAL '1 day'`.

use sqlparser::ast::{BinaryOperator, Expr, Interval, Value as Literal};
use sqlparser::tokenizer::Span;
use tessera_planner::dtype::{Calendar, DType};
use tessera_planner::program::ScalarOp;
use tessera_planner::scalar::Scalar;
use tessera_planner::time::DAY_US;

use super::value::{Tensor, Value};
use super::{At, Lowerer, fail, refuse, types};
use crate::error::{BindError, Error, Position};

impl Lowerer<'_, '_> {
    /// `time + INTERVAL …`, `INTERVAL … + time` and `time - INTERVAL …`; `None` for other operands. Times of any
    /// calendar move by the microseconds of the interval; masked ones stay masked.
    ///
    /// # Errors
    /// `invalid_argument` for an interval that has no fixed length, `dtype_mismatch` if the other side is not a time.
    pub(super) fn moved(
        &mut self,
        left: &Expr,
        op: &BinaryOperator,
        right: &Expr,
        span: Span,
    ) -> Result<Option<Value>, Error> {
        let (time, interval, op) = match (plain(left), op, plain(right)) {
            (time, BinaryOperator::Plus, Expr::Interval(interval))
            | (Expr::Interval(interval), BinaryOperator::Plus, time) => {
                (time, interval, ScalarOp::Add)
            }
            (time, BinaryOperator::Minus, Expr::Interval(interval)) => {
                (time, interval, ScalarOp::Sub)
            }
            _ => return Ok(None),
        };
        let name = if op == ScalarOp::Sub { "-" } else { "+" };
        let by = micros(interval, span)?;
        let t = match self.expr(time)? {
            date @ Value::Str(_) => {
                self.typed(date, DType::Datetime(Calendar::Standard), name, span)?
            }
            value => self.tensor(value, span)?,
        };
        let dtype = self.b.dtype(t.node);
        if !dtype.is_datetime() {
            return fail(types(name, vec![dtype.name(), "an interval".into()]), span);
        }
        let us = self.b.cast(t.node, DType::Int64).at(span)?;
        let by = self.b.constant(Scalar::i64(by)).at(span)?;
        let us = self.b.map(op, &[us, by]).at(span)?;
        let node = self.b.cast(us, dtype).at(span)?;
        Ok(Some(Value::Tensor(Tensor::new(node, t.dims))))
    }

    /// The error for a time and a number as the operands of `+` or `-`; `None` for other operands.
    pub(super) fn time_and_number(&self, name: &str, values: &[Value]) -> Option<BindError> {
        let is_time = |dtype: &DType| dtype.is_datetime();
        let dtype = |value: &Value| match value {
            Value::Tensor(t) => Some(self.b.dtype(t.node)),
            _ => None,
        };
        let time = values.iter().filter_map(dtype).find(is_time)?;
        let number = values.iter().find_map(|value| match (value, dtype(value)) {
            (Value::Int(_) | Value::Float(_), _) => Some(value.kind().to_string()),
            (_, Some(dtype)) if dtype.is_numeric() => Some(dtype.name()),
            _ => None,
        })?;
        Some(BindError::Types {
            operation: name.into(),
            types: vec![time.name(), number],
            hint: Some("write an interval, as in `time + INTERVAL '1 day'`".into()),
        })
    }
}

/// The error for an interval that is not an operand of `+` or `-`.
pub(super) fn alone(interval: &Interval, span: Span) -> Error {
    Error::Unsupported {
        construct: format!("`{interval}` as a value of a tensor block"),
        position: Position::of_span(span),
        hint: Some("it is added to times or subtracted: `time + INTERVAL '1 day'`".into()),
    }
}

fn plain(mut expr: &Expr) -> &Expr {
    while let Expr::Nested(inner) = expr {
        expr = inner;
    }
    expr
}

/// The length of an interval in microseconds.
fn micros(interval: &Interval, span: Span) -> Result<i64, Error> {
    let value = match plain(&interval.value) {
        Expr::Value(value) => match &value.value {
            Literal::SingleQuotedString(text) | Literal::Number(text, _) => Some(text),
            _ => None,
        },
        _ => None,
    };
    let text = match (value, &interval.leading_field, &interval.last_field) {
        (Some(text), None, None) => Some(text.clone()),
        (Some(text), Some(unit), None) => Some(format!("{text} {unit}")),
        _ => None,
    };
    if let Some(micros) = text.as_deref().and_then(length) {
        return Ok(micros);
    }
    let text = text.unwrap_or_default().to_ascii_lowercase();
    let reason = match ["month", "quarter", "year"].iter().any(|unit| text.contains(unit)) {
        true => "has no fixed length; give it in weeks, days or hours",
        false => "must be numbers of weeks, days, hours, minutes or seconds, as in '1 day 6 hours'",
    };
    refuse("+", format!("`{interval}`"), reason, span)
}

/// The microseconds of `1 day`, `-1.5 hours`, `2 days 6 hours`; `None` for other texts and for fractions of a
/// microsecond.
fn length(text: &str) -> Option<i64> {
    let mut rest = text.trim();
    let mut total: i128 = 0;
    loop {
        let is_number = |c: char| c.is_ascii_digit() || matches!(c, '.' | '-' | '+');
        let (number, after) = rest.split_at(rest.find(|c: char| !is_number(c))?);
        let after = after.trim_start();
        let end = after.find(|c: char| !c.is_ascii_alphabetic()).unwrap_or(after.len());
        let (word, after) = after.split_at(end);
        let (whole, part) = number.split_once('.').unwrap_or((number, ""));
        let scale = 10i128.checked_pow(part.len().try_into().ok()?)?;
        let count: i128 = format!("{whole}{part}").parse().ok()?;
        let micros = count.checked_mul(unit(word)?)?;
        if micros % scale != 0 {
            return None;
        }
        total = total.checked_add(micros / scale)?;
        rest = after.trim_start();
        if rest.is_empty() {
            return i64::try_from(total).ok();
        }
    }
}

fn unit(word: &str) -> Option<i128> {
    let word = word.to_ascii_lowercase();
    Some(match (word.as_str(), word.strip_suffix('s').unwrap_or(&word)) {
        ("us", _) | (_, "microsecond") => 1,
        ("ms", _) | (_, "millisecond") => 1000,
        ("s", _) | (_, "sec" | "second") => 1_000_000,
        (_, "min" | "minute") => 60_000_000,
        (_, "h" | "hour") => 3_600_000_000,
        (_, "d" | "day") => i128::from(DAY_US),
        (_, "w" | "week") => 7 * i128::from(DAY_US),
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lengths_are_exact() {
        assert_eq!(length("1 day"), Some(DAY_US));
        assert_eq!(length(" 2 DAYS 6 hours"), Some(2 * DAY_US + DAY_US / 4));
        assert_eq!(length("-1.5h"), Some(-5_400_000_000));
        assert_eq!(length("0 s"), Some(0));
        assert_eq!(length("0.0000005 s"), None);
        for text in
            ["", "1", "day", "1 month", "06:00:00", "1 day 6", "--1 day", "300000000000 weeks"]
        {
            assert_eq!(length(text), None, "{text}");
        }
    }
}
