//! Intervals, and functions of times, that DataFusion does not have.
//!
//! | written | becomes |
//! |---|---|
//! | `INTERVAL (n) DAY`, `INTERVAL (n + 1) QUARTERS` | `to_days(n)`, `to_quarters(n + 1)` |
//! | `INTERVAL '1 quarter'`, `INTERVAL 2 MILLENNIA` | `INTERVAL '3 months'`, `INTERVAL '2000 years'` |
//! | `date_part(['year', 'month'], t)` | `named_struct('year', date_part('year', t), 'month', date_part('month', t))` |
//! | `strptime(s, ['%d.%m.%Y', '%Y'])` | `coalesce(try_strptime(s, '%d.%m.%Y'), strptime(s, '%Y'))` |

use sqlparser::ast::{Expr, Interval, Value, ValueWithSpan};
use tessera_frontend::ast;

use super::super::functions::span_of;

/// The replacement of an interval; `None` for intervals that DataFusion supports, and for invalid ones.
pub(super) fn rewritten(interval: &Interval) -> Option<Expr> {
    if interval.leading_precision.is_some()
        || interval.last_field.is_some()
        || interval.fractional_seconds_precision.is_some()
    {
        return None;
    }
    let unit = interval.leading_field.as_ref().map(|unit| unit.to_string().to_lowercase());
    let value = plain(&interval.value);
    let Some((text, literal)) = text_of(value) else {
        return Some(super::call(span_of(&unit?)?, vec![value.clone()]));
    };
    let whole = match unit {
        Some(unit) => format!("{text} {unit}"),
        None => text.clone(),
    };
    let value = Value::SingleQuotedString(in_known_units(&whole));
    let value = Box::new(Expr::Value(ValueWithSpan { value, span: literal.span }));
    Some(Expr::Interval(Interval { value, leading_field: None, ..interval.clone() }))
}

/// Spells the units of a text that is converted to an interval.
pub(super) fn spell(text: &mut Expr) {
    if let Expr::Value(ValueWithSpan { value: Value::SingleQuotedString(text), .. }) = text {
        *text = in_known_units(text);
    }
}

fn plain(mut expr: &Expr) -> &Expr {
    while let Expr::Nested(inner) = expr {
        expr = inner;
    }
    expr
}

fn text_of(expr: &Expr) -> Option<(&String, &ValueWithSpan)> {
    match expr {
        Expr::Value(value) => match &value.value {
            Value::SingleQuotedString(text) | Value::Number(text, _) => Some((text, value)),
            _ => None,
        },
        _ => None,
    }
}

/// The text of an interval with units that Arrow knows: `3 months` for `1 quarter`.
pub(super) fn in_known_units(text: &str) -> String {
    let mut words: Vec<String> = text.split_whitespace().map(str::to_string).collect();
    for at in 1..words.len() {
        let (times, unit) = match words[at].to_lowercase().as_str() {
            "quarter" | "quarters" => (3, "months"),
            "millennium" | "millennia" | "millenium" | "millenniums" => (1000, "years"),
            _ => continue,
        };
        let count = words[at - 1].parse::<i64>().ok().and_then(|count| count.checked_mul(times));
        if let Some(count) = count {
            words[at - 1] = count.to_string();
            words[at] = unit.to_string();
        }
    }
    words.join(" ")
}

/// The replacement of a call with a list of parts or formats; `None` for other expressions.
pub(super) fn of_list(expr: &Expr) -> Option<Expr> {
    let call = ast::call(expr)?;
    if !call.named.is_empty() {
        return None;
    }
    let [first, second] = call.positional.as_slice() else { return None };
    match call.name.value.to_ascii_lowercase().as_str() {
        "date_part" | "datepart" => {
            let parts = texts(first)?;
            let fields = parts.iter().flat_map(|part| {
                let of = vec![part.clone(), (*second).clone()];
                [part.clone(), super::call("date_part", of)]
            });
            Some(super::call("named_struct", fields.collect()))
        }
        name @ ("strptime" | "try_strptime") => {
            let formats = texts(second)?;
            let last = formats.len() - 1;
            let read = formats.iter().enumerate().map(|(at, format)| {
                let name = if at == last { name } else { "try_strptime" };
                super::call(name, vec![(*first).clone(), format.clone()])
            });
            Some(super::call("coalesce", read.collect()))
        }
        _ => None,
    }
}

/// The texts of a list that has no other items, and at least one.
fn texts(list: &Expr) -> Option<&[Expr]> {
    let Expr::Array(list) = list else { return None };
    let is_text = |item: &Expr| matches!(item, Expr::Value(value) if matches!(value.value, Value::SingleQuotedString(_)));
    (!list.elem.is_empty() && list.elem.iter().all(is_text)).then_some(list.elem.as_slice())
}

#[cfg(test)]
mod tests {
    use super::in_known_units;

    #[test]
    fn quarters_and_millennia_are_months_and_years() {
        for (text, want) in [
            ("1 quarter", "3 months"),
            ("-2 QUARTERS 1 day", "-6 months 1 day"),
            ("2 millennia", "2000 years"),
            ("1 year  2 months", "1 year 2 months"),
            ("1.5 quarters", "1.5 quarters"),
            ("quarter", "quarter"),
            ("9223372036854775807 quarters", "9223372036854775807 quarters"),
            ("", ""),
        ] {
            assert_eq!(in_known_units(text), want);
        }
    }
}
