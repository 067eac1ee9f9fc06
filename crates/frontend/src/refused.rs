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
    None
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]

    #[test]
    fn what_is_refused_is_underlined() {
        let error = crate::parse("FROM t POSITIONAL JOIN u").unwrap_err();
        assert!(error.to_string().contains("POSITIONAL JOIN"), "{error}");
        let place = error.position().unwrap();
        assert_eq!((place.column, place.length), (8, 15));
        assert!(error.hint().is_some());
        for text in [
            "SELECT a FROM t AS positional JOIN u ON true",
            "FROM positional JOIN u ON true, s.positional JOIN u ON true",
        ] {
            assert!(crate::parse(text).is_ok(), "{text}");
        }
    }
}
