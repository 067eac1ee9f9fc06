//! Syntax of DuckDB that is refused before the parser sees it: the parser would take it for something else, as
//! `t POSITIONAL JOIN u` for an alias, or report the token behind it.

use sqlparser::tokenizer::{Token, TokenWithSpan};

use crate::error::{Error, Position};
use crate::tokens::is_word;

/// A refused construct, what to write in its place, and its last token.
struct Refused {
    construct: &'static str,
    hint: &'static str,
    last: usize,
}

/// Checks the tokens of a statement.
///
/// # Errors
/// `unsupported` with the first such construct.
pub(crate) fn check(tokens: &[TokenWithSpan]) -> Result<(), Error> {
    for (at, token) in tokens.iter().enumerate() {
        if let Some(Refused { construct, hint, last }) = refused(tokens, at) {
            return Err(Error::Unsupported {
                construct: construct.to_string(),
                position: Position::of_span(token.span.union(&tokens[last].span)),
                hint: Some(hint.to_string()),
            });
        }
    }
    Ok(())
}

fn refused(tokens: &[TokenWithSpan], at: usize) -> Option<Refused> {
    let token = |at: usize| tokens.get(at).map(|t| &t.token);
    let is = |at: usize, word: &str| token(at).is_some_and(|token| is_word(token, word));
    let before = at.checked_sub(1).and_then(token);
    let is_name = matches!(before, Some(Token::Comma | Token::Period))
        || ["AS", "FROM", "JOIN"]
            .iter()
            .any(|word| before.is_some_and(|before| is_word(before, word)));
    if is(at, "POSITIONAL") && is(at + 1, "JOIN") && !is_name {
        return Some(Refused {
            construct: "POSITIONAL JOIN",
            hint: "number the rows of both sides: `FROM (SELECT *, row_number() OVER () AS n FROM t) a JOIN (SELECT *, row_number() OVER () AS n FROM u) b USING (n)`; an alias of this name needs AS",
            last: at + 1,
        });
    }
    if is(at, "LIMIT") && matches!(token(at + 1), Some(Token::Number(..))) {
        let is_end = matches!(token(at + 3), None | Some(Token::RParen)) || is(at + 3, "OFFSET");
        if is(at + 2, "PERCENT") || token(at + 2) == Some(&Token::Mod) && is_end {
            return Some(Refused {
                construct: "LIMIT of a percentage",
                hint: "number the rows: `QUALIFY percent_rank() OVER (ORDER BY …) < 0.1`; for any rows, `USING SAMPLE 10%`",
                last: at + 2,
            });
        }
    }
    None
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]

    #[test]
    fn what_is_refused_is_underlined() {
        for (text, construct, column, length) in [
            ("FROM t POSITIONAL JOIN u", "POSITIONAL JOIN", 8, 15),
            ("SELECT a FROM t LIMIT 10%", "LIMIT of a percentage", 17, 9),
            ("SELECT (FROM t LIMIT 10 PERCENT)", "LIMIT of a percentage", 16, 16),
        ] {
            let error = crate::parse(text).unwrap_err();
            assert!(error.to_string().contains(construct), "{error}");
            let place = error.position().unwrap();
            assert_eq!((place.column, place.length), (column, length), "{text}");
            assert!(error.hint().is_some());
        }
        for text in [
            "SELECT a FROM t AS positional JOIN u ON true",
            "FROM positional JOIN u ON true, s.positional JOIN u ON true",
            "SELECT a FROM t LIMIT 10 % 3",
        ] {
            assert!(crate::parse(text).is_ok(), "{text}");
        }
    }
}
