//! `*` with a pattern for names, and as arguments, as the tokens of `COLUMNS`.
//!
//! | written | becomes |
//! |---|---|
//! | `* LIKE 'a%'` | `COLUMNS([__name] -> [__name] LIKE 'a%')` |
//! | `t.* NOT ILIKE 'a%'` | `COLUMNS(t.*, [__name] -> [__name] NOT ILIKE 'a%')` |
//! | `f(*COLUMNS('a'), b)` | `f([__spread](COLUMNS('a')), b)` |
//! | `* SIMILAR TO 'a\|b'` | `COLUMNS('^(?:a\|b)$')` |

use std::ops::Range;

use sqlparser::tokenizer::{Token, TokenWithSpan};

use crate::ast::marker;
use crate::tokens::is_word;

/// Replaces every `*` that a pattern follows.
pub(crate) fn mark(tokens: &mut Vec<TokenWithSpan>) {
    let mut at = 0;
    while at < tokens.len() {
        if tokens[at].token == Token::Mul
            && let Some((pattern, condition)) = pattern(tokens, at + 1)
        {
            let start = relation(tokens, at);
            let place = tokens[at].span;
            let of_relation = tokens[start..=at].to_vec();
            let mut call: Vec<TokenWithSpan> = Vec::new();
            let mut write = |token| call.push(TokenWithSpan::new(token, place));
            write(Token::make_word("COLUMNS", None));
            write(Token::LParen);
            if start < at {
                call.extend(of_relation);
                call.push(TokenWithSpan::new(Token::Comma, place));
            }
            call.extend(condition);
            call.push(TokenWithSpan::new(Token::RParen, tokens[pattern.end - 1].span));
            let end = start + call.len();
            tokens.splice(start..pattern.end, call);
            at = end;
            continue;
        }
        if let Some(close) = unpacked(tokens, at) {
            let (open, end) = (tokens[at].span, tokens[close].span);
            tokens.insert(close + 1, TokenWithSpan::new(Token::RParen, end));
            let spread = [Token::make_word(marker::SPREAD, Some(marker::QUOTE)), Token::LParen];
            tokens.splice(at..=at, spread.map(|token| TokenWithSpan::new(token, open)));
        }
        at += 1;
    }
}

/// The place of a pattern that begins at a token, and the condition that it is.
fn pattern(tokens: &[TokenWithSpan], start: usize) -> Option<(Range<usize>, Vec<TokenWithSpan>)> {
    let is = |at: usize, word: &str| tokens.get(at).is_some_and(|t| is_word(&t.token, word));
    let text = |at: usize| match &tokens.get(at)?.token {
        Token::SingleQuotedString(text) => Some(text),
        _ => None,
    };
    if is(start, "SIMILAR") && is(start + 1, "TO") {
        let regex = Token::SingleQuotedString(format!("^(?:{})$", text(start + 2)?));
        let condition = TokenWithSpan::new(regex, tokens[start + 2].span);
        return Some((start..start + 3, vec![condition]));
    }
    let word = if is(start, "NOT") { start + 1 } else { start };
    if !is(word, "LIKE") && !is(word, "ILIKE") {
        return None;
    }
    text(word + 1)?;
    let has_escape = is(word + 2, "ESCAPE") && text(word + 3).is_some();
    let end = if has_escape { word + 4 } else { word + 2 };
    let new = |token| TokenWithSpan::new(token, tokens[start].span);
    let name = || new(Token::make_word("__name", Some(marker::QUOTE)));
    let mut condition = vec![name(), new(Token::Arrow), name()];
    condition.extend_from_slice(&tokens[start..end]);
    Some((start..end, condition))
}

/// The last token of a `*COLUMNS(…)`, which is an argument or an item, that begins at a token.
fn unpacked(tokens: &[TokenWithSpan], at: usize) -> Option<usize> {
    let before = &tokens[at.checked_sub(1)?].token;
    let is_first = matches!(before, Token::LParen | Token::Comma) || is_word(before, "SELECT");
    let [star, name, open] = tokens.get(at..at + 3)? else { return None };
    let is_call =
        star.token == Token::Mul && is_word(&name.token, "COLUMNS") && open.token == Token::LParen;
    if !is_first || !is_call {
        return None;
    }
    let mut depth = 0_usize;
    for (place, token) in tokens.iter().enumerate().skip(at + 2) {
        match token.token {
            Token::LParen => depth += 1,
            Token::RParen if depth == 1 => return Some(place),
            Token::RParen => depth -= 1,
            _ => {}
        }
    }
    None
}

/// Where `t.*` begins, given its `*`.
fn relation(tokens: &[TokenWithSpan], star: usize) -> usize {
    let mut start = star;
    while start >= 2
        && tokens[start - 1].token == Token::Period
        && matches!(tokens[start - 2].token, Token::Word(_))
    {
        start -= 2;
    }
    start
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]
    use crate::tokens::split;

    #[test]
    fn a_star_with_a_pattern_becomes_a_call() {
        let tokens = |text: &str| {
            let tokens = split(text).unwrap().remove(0).tokens;
            tokens.iter().map(|t| t.token.to_string()).collect::<Vec<_>>().join(" ")
        };
        for (text, want) in [
            (
                "SELECT * LIKE 'a%', b FROM t",
                "SELECT COLUMNS ( [__name] -> [__name] LIKE 'a%' ) , b FROM t",
            ),
            (
                "SELECT t.* not ilike 'a!%' ESCAPE '!' FROM t",
                "SELECT COLUMNS ( t . * , [__name] -> [__name] not ilike 'a!%' ESCAPE '!' ) FROM t",
            ),
            (
                "SELECT f(b, *COLUMNS(* EXCLUDE (a))) FROM t",
                "SELECT f ( b , [__spread] ( COLUMNS ( * EXCLUDE ( a ) ) ) ) FROM t",
            ),
            ("FROM t SELECT * SIMILAR TO 'a|b'", "SELECT COLUMNS ( '^(?:a|b)$' ) FROM t"),
        ] {
            assert_eq!(tokens(text), want);
            assert!(crate::parse(text).is_ok(), "{text}");
        }
        for same in [
            "SELECT a * like",
            "SELECT * FROM t",
            "SELECT a * COLUMNS ( 'b' )",
            "SELECT a , * NOT LIKE b",
        ] {
            assert_eq!(tokens(same), same);
        }
    }
}
