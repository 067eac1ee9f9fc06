//! Converts sqlparser's text errors to this crate's, with a position, a plain sentence and a hint.

use sqlparser::keywords::Keyword;
use sqlparser::parser::ParserError;
use sqlparser::tokenizer::{Token, TokenWithSpan};

use super::{Error, Position, nearest};
use crate::limits;
use crate::tokens::{is_keyword, is_word};

/// The words that may follow a select list or a relation; a neighbour of one is a misspelling.
const CLAUSES: [&str; 13] = [
    "FROM",
    "WHERE",
    "GROUP",
    "HAVING",
    "ORDER",
    "LIMIT",
    "OFFSET",
    "JOIN",
    "UNION",
    "WINDOW",
    "USING",
    "OVER",
    "PARTITION",
];

/// Converts an error of sqlparser. `tokens` are those of the statement and `end` is the
/// position just after it, for errors about its end.
pub(crate) fn from_parser(error: ParserError, tokens: &[TokenWithSpan], end: Position) -> Error {
    match error {
        ParserError::RecursionLimitExceeded => Error::NestingTooDeep {
            what: "the parser stopped".to_string(),
            limit: limits::DEPTH_MAX,
            position: None,
        },
        ParserError::ParserError(text) | ParserError::TokenizerError(text) => {
            let (text, place) = split_place(&text);
            let message = sentence(text);
            let at = place.and_then(|(line, column)| {
                tokens
                    .iter()
                    .position(|t| t.span.start.line == line && t.span.start.column == column)
            });
            let position = match (at, place) {
                (Some(at), _) => Position::of_span(tokens[at].span),
                (None, Some((line, column))) => Some(Position { line, column, length: 1 }),
                (None, None) => Some(end),
            };
            let hint = hint(tokens, at, text);
            Error::Syntax { message, position, hint }
        }
    }
}

/// Splits sqlparser's `… at Line: 1, Column: 8` from the message.
fn split_place(text: &str) -> (&str, Option<(u64, u64)>) {
    let Some((message, place)) = text.rsplit_once(" at Line: ") else { return (text, None) };
    let place = place
        .split_once(", Column: ")
        .and_then(|(line, column)| Some((line.trim().parse().ok()?, column.trim().parse().ok()?)));
    match place {
        Some(place) => (message, Some(place)),
        None => (text, None),
    }
}

/// Turns `Expected: X, found: Y` into ``expected X, found `Y` ``; other messages lose their capital.
fn sentence(text: &str) -> String {
    if let Some(rest) = text.strip_prefix("Expected: ")
        && let Some((expected, found)) = rest.rsplit_once(", found: ")
    {
        let found = match found {
            "EOF" => "the end of the statement".to_string(),
            found => format!("`{}`", shorten(found)),
        };
        return format!("expected {}, found {found}", quote(expected));
    }
    let mut chars = text.chars();
    match chars.next() {
        Some(first) => first.to_lowercase().chain(chars).collect(),
        None => "the statement cannot be parsed".to_string(),
    }
}

/// Puts a bare token of an expectation in back quotes and leaves words such as "an expression".
fn quote(expected: &str) -> String {
    let is_token = !expected.contains(' ')
        && expected.chars().all(|c| !c.is_lowercase())
        && !expected.contains('`');
    if is_token { format!("`{expected}`") } else { expected.to_string() }
}

/// Shortens a token, so that a name of a megabyte does not become the message.
fn shorten(text: &str) -> String {
    const LENGTH_MAX: usize = 40;
    let mut short = String::new();
    for c in text.chars().take(LENGTH_MAX) {
        // Control characters are written as code points to make them visible.
        match c.is_control() {
            true => short.push_str(&format!("U+{:04X}", u32::from(c))),
            false => short.push(c),
        }
    }
    if text.chars().nth(LENGTH_MAX).is_some() {
        short.push('…');
    }
    short
}

/// Guesses the intended syntax from the token at fault and the one before it.
fn hint(tokens: &[TokenWithSpan], at: Option<usize>, text: &str) -> Option<String> {
    let at = at?;
    let previous = at.checked_sub(1).map(|at| &tokens[at].token);
    let found = &tokens[at].token;
    if text.contains("MATCH_CONDITION") {
        return Some("write `ASOF JOIN q ON t.k = q.k AND t.ts >= q.ts`".to_string());
    }
    if previous.is_some_and(|token| is_keyword(token, Keyword::ASOF)) {
        return Some("write `ASOF JOIN`, or `ASOF LEFT JOIN` for all rows of the left side".into());
    }
    let is_sample = |at: usize| {
        let is = |at: usize, word| tokens.get(at).is_some_and(|t| is_word(&t.token, word));
        is(at, "USING") && is(at + 1, "SAMPLE")
    };
    if is_sample(at) || at > 0 && is_sample(at - 1) {
        let hint = "write `USING SAMPLE 10%` or `USING SAMPLE 5 ROWS` behind one relation; samples of a join are those of a subquery";
        return Some(hint.to_string());
    }
    if previous == Some(&Token::Comma) {
        return Some("remove the comma before it".to_string());
    }
    if *found == Token::Assignment || *found == Token::DoubleEq {
        return Some("named arguments are written `name => value`, comparison is `=`".to_string());
    }
    if text.contains("an SQL statement") {
        return None;
    }
    [previous, Some(found)].into_iter().flatten().find_map(|token| match token {
        Token::Word(word) if word.quote_style.is_none() && word.value.len() > 2 => {
            nearest(&word.value, &CLAUSES).map(|clause| format!("did you mean `{clause}`?"))
        }
        _ => None,
    })
}
