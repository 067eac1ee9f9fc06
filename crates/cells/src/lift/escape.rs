//! `LIKE pattern ESCAPE '!'`: the pattern with a backslash as its escape character, the only one that Arrow knows.
//!
//! `s SIMILAR TO 'a|b'` is `s ~ '^(?:a|b)$'`: the pattern matches the whole text, as in DuckDB. DataFusion searches for
//! a match within the text.
//!
//! Runs before types are coerced.

use std::sync::Arc;

use arrow::array::{ArrayRef, AsArray, StringArray};
use arrow::datatypes::DataType;
use datafusion::common::tree_node::Transformed;
use datafusion::common::{DataFusionError, Result, ScalarValue, exec_err};
use datafusion::execution::SessionState;
use datafusion::logical_expr::expr::Like;
use datafusion::logical_expr::{
    Expr, Operator, ScalarUDF, Signature, Volatility, binary_expr, lit,
};
use tessera_frontend::error::Error;

use super::functions::OfArrays;

/// Name of the function, which no text can produce.
const NAME: &str = "tessera_like_pattern";

/// The function `tessera_like_pattern(pattern, escape)`.
pub(super) fn function() -> ScalarUDF {
    let signature = Signature::exact(vec![DataType::Utf8, DataType::Utf8], Volatility::Immutable);
    OfArrays::new(NAME, signature, DataType::Utf8, backslashed).udf()
}

/// Replaces the pattern, if the expression is a `LIKE` with an escape character, or a `SIMILAR TO`.
pub(super) fn one(expr: Expr, state: &SessionState) -> Result<Transformed<Expr>> {
    let mut like = match expr {
        Expr::Like(like) => like,
        Expr::SimilarTo(like) if like.escape_char.is_none() => {
            return Ok(Transformed::yes(of_whole_text(like)));
        }
        other => return Ok(Transformed::no(other)),
    };
    let Some(escape) = like.escape_char.take_if(|escape| *escape != '\\') else {
        return Ok(Transformed::no(Expr::Like(like)));
    };
    match (&*like.pattern, state.scalar_functions().get(NAME)) {
        (
            Expr::Literal(
                ScalarValue::Utf8(Some(pattern))
                | ScalarValue::LargeUtf8(Some(pattern))
                | ScalarValue::Utf8View(Some(pattern)),
                _,
            ),
            _,
        ) => *like.pattern = lit(with_backslashes(pattern, escape)?),
        (_, Some(function)) => {
            let pattern = std::mem::take(&mut *like.pattern);
            *like.pattern = function.call(vec![pattern, lit(escape.to_string())]);
        }
        (_, None) => return exec_err!("no such function: {NAME}"),
    }
    Ok(Transformed::yes(Expr::Like(like)))
}

/// `SIMILAR TO` as a search for a regular expression.
fn of_whole_text(similar: Like) -> Expr {
    let pattern = match similar.pattern.as_literal().and_then(ScalarValue::try_as_str) {
        Some(Some(pattern)) => lit(format!("^(?:{pattern})$")),
        _ => {
            let start = binary_expr(lit("^(?:"), Operator::StringConcat, *similar.pattern);
            binary_expr(start, Operator::StringConcat, lit(")$"))
        }
    };
    let operator = match similar.negated {
        true => Operator::RegexNotMatch,
        false => Operator::RegexMatch,
    };
    binary_expr(*similar.expr, operator, pattern)
}

/// The pattern that matches the same texts with a backslash as its escape character.
fn with_backslashes(pattern: &str, escape: char) -> Result<String> {
    let mut out = String::with_capacity(pattern.len());
    let mut chars = pattern.chars();
    while let Some(c) = chars.next() {
        let (c, is_text) = match c {
            c if c != escape => (c, c == '\\'),
            _ => match chars.next() {
                Some(c) => (c, true),
                None => return Err(ends_with_escape(pattern, escape)),
            },
        };
        if is_text && matches!(c, '%' | '_' | '\\') {
            out.push('\\');
        }
        out.push(c);
    }
    Ok(out)
}

fn ends_with_escape(pattern: &str, escape: char) -> DataFusionError {
    DataFusionError::External(Box::new(Error::Cells {
        code: "invalid_argument",
        message: format!("the pattern `{pattern}` ends with its escape character `{escape}`"),
        position: None,
        hint: Some("write the escape character twice to match it".to_string()),
    }))
}

fn backslashed(arrays: &[ArrayRef]) -> Result<ArrayRef> {
    let [patterns, escapes] = arrays else {
        return exec_err!("{NAME} takes two arguments");
    };
    let (patterns, escapes) = (patterns.as_string::<i32>(), escapes.as_string::<i32>());
    let new = patterns.iter().zip(escapes).map(|(pattern, escape)| {
        let escape = escape.and_then(|text| text.chars().next());
        pattern.zip(escape).map(|(pattern, escape)| with_backslashes(pattern, escape)).transpose()
    });
    Ok(Arc::new(new.collect::<Result<StringArray>>()?))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]
    use super::*;

    #[test]
    fn patterns_have_backslashes() {
        for (pattern, escape, want) in [
            ("a!%b%", '!', r"a\%b%"),
            ("a!!b!_c_", '!', r"a!b\_c_"),
            (r"a\b\%", '!', r"a\\b\\%"),
            (r"!\!x", '!', r"\\x"),
            ("a%%b%_", '%', r"a\%b\_"),
        ] {
            assert_eq!(with_backslashes(pattern, escape).unwrap(), want, "{pattern}");
        }
        assert!(with_backslashes("ab!", '!').is_err());
    }
}
