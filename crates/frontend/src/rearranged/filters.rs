//! `FILTER (k > 1)`, as in DuckDB, is `FILTER (WHERE k > 1)`.

use sqlparser::keywords::Keyword;
use sqlparser::tokenizer::{Token, TokenWithSpan};

use crate::tokens::{is_keyword, is_word};

/// Adds the WHERE of filters behind calls.
pub(super) fn filters(tokens: Vec<TokenWithSpan>) -> Vec<TokenWithSpan> {
    let mut out = Vec::with_capacity(tokens.len() + 4);
    let (mut open, mut last) = (Vec::new(), None);
    let mut is_from = false;
    for (at, token) in tokens.iter().enumerate() {
        out.push(token.clone());
        match token.token {
            Token::LParen => {
                if lacks_where(&tokens, at, last, is_from) {
                    out.push(TokenWithSpan::new(Token::make_keyword("WHERE"), token.span));
                }
                open.push((at, is_from));
                is_from = false;
            }
            Token::RParen => {
                (last, is_from) = open.pop().map_or((None, false), |(at, is)| (Some(at), is))
            }
            Token::Word(_) => is_from = names_relations(&tokens, at).unwrap_or(is_from),
            _ => {}
        }
    }
    out
}

/// True for a word before relations, false for one before other items, `None` for others.
fn names_relations(tokens: &[TokenWithSpan], at: usize) -> Option<bool> {
    let is =
        |keywords: &[Keyword]| keywords.iter().any(|word| is_keyword(&tokens[at].token, *word));
    // `a IS DISTINCT FROM max(b)` has no relation.
    let is_distinct = at
        .checked_sub(1)
        .is_some_and(|before| is_keyword(&tokens[before].token, Keyword::DISTINCT));
    if is(&[Keyword::FROM, Keyword::JOIN, Keyword::LATERAL]) {
        return (!is_distinct).then_some(true);
    }
    let is_other = is(&[
        Keyword::SELECT,
        Keyword::WHERE,
        Keyword::GROUP,
        Keyword::HAVING,
        Keyword::QUALIFY,
        Keyword::ORDER,
        Keyword::USING,
    ]);
    is_other.then_some(false)
}

/// True for the parenthesis of a filter without WHERE; `last` opened the parentheses that were closed last, and
/// `is_from` tells that relations are named here.
fn lacks_where(tokens: &[TokenWithSpan], at: usize, last: Option<usize>, is_from: bool) -> bool {
    let token = |at: usize| tokens.get(at).map_or(&Token::EOF, |t| &t.token);
    let (Some(filter), Some(end)) = (at.checked_sub(1), at.checked_sub(2)) else { return false };
    let Some(name) = last.and_then(|open| open.checked_sub(1)) else { return false };
    // `FROM (SELECT …) filter (a)` and `FROM range(3) filter (a)` are aliases.
    is_word(token(filter), "FILTER")
        && *token(end) == Token::RParen
        && matches!(token(name), Token::Word(_))
        && !(is_from && holds_names(tokens, at + 1))
        && *token(at + 1) != Token::RParen
        && !is_keyword(token(at + 1), Keyword::WHERE)
}

/// True for names with commas between them and a closing parenthesis behind them.
fn holds_names(tokens: &[TokenWithSpan], start: usize) -> bool {
    for pair in tokens[start..].chunks_exact(2) {
        match (&pair[0].token, &pair[1].token) {
            (Token::Word(_), Token::Comma) => {}
            (name, end) => return matches!((name, end), (Token::Word(_), Token::RParen)),
        }
    }
    false
}
