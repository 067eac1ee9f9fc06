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

/// Replaces every `*` that a pattern follows, and every `*COLUMNS(…)`.
pub(crate) fn mark(tokens: &mut Vec<TokenWithSpan>) {
    let written: &[TokenWithSpan] = tokens;
    let is_replaced = |at: usize| {
        written[at].token == Token::Mul
            && (is_unpacked(written, at) || pattern(written, at + 1).is_some())
    };
    if (0..written.len()).any(is_replaced) {
        *tokens = marked(tokens);
    }
}

fn marked(tokens: &[TokenWithSpan]) -> Vec<TokenWithSpan> {
    let mut out: Vec<TokenWithSpan> = Vec::with_capacity(tokens.len() + 16);
    // For each open parenthesis whether it is that of `*COLUMNS(`.
    let mut open = Vec::new();
    let mut at = 0;
    while at < tokens.len() {
        let token = &tokens[at];
        if token.token == Token::Mul
            && let Some((pattern, condition)) = pattern(tokens, at + 1)
        {
            let mut of_relation = out.split_off(relation(&out));
            let new = |new| TokenWithSpan::new(new, token.span);
            out.extend([Token::make_word("COLUMNS", None), Token::LParen].map(new));
            if !of_relation.is_empty() {
                out.append(&mut of_relation);
                out.extend([Token::Mul, Token::Comma].map(new));
            }
            out.extend(condition);
            out.push(TokenWithSpan::new(Token::RParen, tokens[pattern.end - 1].span));
            at = pattern.end;
            continue;
        }
        if is_unpacked(tokens, at) {
            let spread = [Token::make_word(marker::SPREAD, Some(marker::QUOTE)), Token::LParen];
            out.extend(spread.map(|new| TokenWithSpan::new(new, token.span)));
            out.extend_from_slice(&tokens[at + 1..at + 3]);
            open.push(true);
            at += 3;
            continue;
        }
        out.push(token.clone());
        match token.token {
            Token::LParen => open.push(false),
            Token::RParen if open.pop() == Some(true) => out.push(token.clone()),
            _ => {}
        }
        at += 1;
    }
    out
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

/// True if a `*COLUMNS(…)`, which is an argument or an item, begins at a token.
fn is_unpacked(tokens: &[TokenWithSpan], at: usize) -> bool {
    let Some(before) = at.checked_sub(1).map(|before| &tokens[before].token) else { return false };
    let is_first = matches!(before, Token::LParen | Token::Comma) || is_word(before, "SELECT");
    let Some([star, name, open]) = tokens.get(at..at + 3) else { return false };
    is_first
        && star.token == Token::Mul
        && is_word(&name.token, "COLUMNS")
        && open.token == Token::LParen
}

/// Where the `t.` of `t.*` begins, if the `*` follows these tokens; otherwise their end.
fn relation(tokens: &[TokenWithSpan]) -> usize {
    let mut start = tokens.len();
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
    use crate::tokens::tests::tokens;

    #[test]
    fn a_star_with_a_pattern_becomes_a_call() {
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
            (
                "SELECT f(*COLUMNS(['a']), (1), *COLUMNS('b')), s.t.* LIKE 'b' FROM s.t",
                "SELECT f ( [__spread] ( COLUMNS ( [ 'a' ] ) ) , ( 1 ) , [__spread] ( COLUMNS ( 'b' ) ) ) , COLUMNS ( s . t . * , [__name] -> [__name] LIKE 'b' ) FROM s . t",
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
            "SELECT columns , t . like FROM columns ( ) , * COLUMNS",
        ] {
            assert_eq!(tokens(same), same);
        }
    }
}
