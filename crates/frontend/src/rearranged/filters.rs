//! `FILTER (k > 1)`, as in DuckDB, is `FILTER (WHERE k > 1)`.

use sqlparser::keywords::Keyword;
use sqlparser::tokenizer::{Token, TokenWithSpan};

use crate::tokens::{is_keyword, is_word};

/// Adds the WHERE of filters behind calls.
pub(super) fn filters(tokens: Vec<TokenWithSpan>) -> Vec<TokenWithSpan> {
    let mut out = Vec::with_capacity(tokens.len() + 4);
    let (mut open, mut last) = (Vec::new(), None);
    for (at, token) in tokens.iter().enumerate() {
        out.push(token.clone());
        match token.token {
            Token::LParen => {
                if lacks_where(&tokens, at, last) {
                    out.push(TokenWithSpan::new(Token::make_keyword("WHERE"), token.span));
                }
                open.push(at);
            }
            Token::RParen => last = open.pop(),
            _ => {}
        }
    }
    out
}

/// True for the parenthesis of a filter without WHERE; `last` opened the parentheses that were closed last.
fn lacks_where(tokens: &[TokenWithSpan], at: usize, last: Option<usize>) -> bool {
    let token = |at: usize| tokens.get(at).map_or(&Token::EOF, |t| &t.token);
    let (Some(filter), Some(end)) = (at.checked_sub(1), at.checked_sub(2)) else { return false };
    let Some(name) = last.and_then(|open| open.checked_sub(1)) else { return false };
    // `FROM (SELECT …) filter (a)` is an alias.
    let is_relation = [Keyword::FROM, Keyword::JOIN, Keyword::LATERAL]
        .iter()
        .any(|keyword| is_keyword(token(name), *keyword));
    is_word(token(filter), "FILTER")
        && *token(end) == Token::RParen
        && matches!(token(name), Token::Word(_))
        && !is_relation
        && *token(at + 1) != Token::RParen
        && !is_keyword(token(at + 1), Keyword::WHERE)
}
