//! `EXCLUDE` of frames, which sqlparser does not read.
//!
//! ```text
//! OVER (PARTITION BY k ORDER BY i ROWS 2 PRECEDING EXCLUDE TIES)
//!   ⇒  OVER (PARTITION BY [__exclude]('TIES'), k ORDER BY i ROWS 2 PRECEDING)
//! ```
//! The exclusion becomes a key of the partitions, with a name that no text can produce.

use sqlparser::keywords::Keyword;
use sqlparser::tokenizer::{Token, TokenWithSpan};

use crate::ast::marker;
use crate::tokens::{is_keyword, is_word};

/// The exclusions of a frame, word by word.
const EXCLUDED: [&[&str]; 4] = [&["CURRENT", "ROW"], &["GROUP"], &["TIES"], &["NO", "OTHERS"]];

/// Replaces every `EXCLUDE` at the end of a window.
pub(crate) fn mark(tokens: &mut Vec<TokenWithSpan>) {
    let mut at = 1;
    while at < tokens.len() {
        if let Some(words) = excluded(tokens, at)
            && let Some(open) = opened(&tokens[..at])
        {
            let span = tokens[at].span;
            tokens.drain(at..=at + words.len());
            if words[0] != "NO" {
                let (place, has_keys) = keys(tokens, open);
                let mut key = vec![
                    Token::make_word(marker::EXCLUDE, Some(marker::QUOTE)),
                    Token::LParen,
                    Token::SingleQuotedString(words.join(" ")),
                    Token::RParen,
                ];
                match has_keys {
                    true => key.push(Token::Comma),
                    false => {
                        let by = ["PARTITION", "BY"].map(Token::make_keyword);
                        key.splice(0..0, by);
                    }
                }
                let key = key.into_iter().map(|token| TokenWithSpan::new(token, span));
                tokens.splice(place..place, key);
            }
        }
        at += 1;
    }
}

/// The words behind `EXCLUDE`, if it ends a window: a frame is before it, and a parenthesis behind it.
fn excluded(tokens: &[TokenWithSpan], at: usize) -> Option<&'static [&'static str]> {
    let is = |at: usize, word: &str| tokens.get(at).is_some_and(|t| is_word(&t.token, word));
    let is_behind = ["ROW", "PRECEDING", "FOLLOWING"].iter().any(|word| is(at - 1, word));
    if !is_behind || !is(at, "EXCLUDE") {
        return None;
    }
    EXCLUDED.into_iter().find(|words| {
        let end = tokens.get(at + 1 + words.len()).map(|t| &t.token);
        let is_closed = end == Some(&Token::RParen);
        is_closed && words.iter().enumerate().all(|(i, word)| is(at + 1 + i, word))
    })
}

/// The index of the parenthesis that is open at the end.
fn opened(tokens: &[TokenWithSpan]) -> Option<usize> {
    let mut depth = 0_usize;
    for (at, token) in tokens.iter().enumerate().rev() {
        match token.token {
            Token::RParen => depth += 1,
            Token::LParen if depth == 0 => return Some(at),
            Token::LParen => depth -= 1,
            _ => {}
        }
    }
    None
}

/// The index of the first key of a window, and true if it has one.
fn keys(tokens: &[TokenWithSpan], open: usize) -> (usize, bool) {
    let is = |at: usize, keyword| tokens.get(at).is_some_and(|t| is_keyword(&t.token, keyword));
    let mut at = open + 1;
    // The name of the window that this one starts from.
    if let Some(Token::Word(word)) = tokens.get(at).map(|t| &t.token)
        && word.keyword == Keyword::NoKeyword
    {
        at += 1;
    }
    match is(at, Keyword::PARTITION) && is(at + 1, Keyword::BY) {
        true => (at + 2, true),
        false => (at, false),
    }
}

#[cfg(test)]
mod tests {
    use crate::tokens::tests::tokens;

    #[test]
    fn an_exclusion_becomes_a_key() {
        assert_eq!(
            tokens("sum(x) OVER (ORDER BY f(i) ROWS 2 PRECEDING exclude current row)"),
            "sum ( x ) OVER ( PARTITION BY [__exclude] ( 'CURRENT ROW' ) ORDER BY f ( i ) ROWS 2 PRECEDING )"
        );
        assert_eq!(
            tokens(
                "sum(x) OVER (PARTITION BY k ROWS BETWEEN 2 PRECEDING AND CURRENT ROW EXCLUDE TIES)"
            ),
            "sum ( x ) OVER ( PARTITION BY [__exclude] ( 'TIES' ) , k ROWS BETWEEN 2 PRECEDING AND CURRENT ROW )"
        );
        assert_eq!(
            tokens("sum(x) OVER (w ROWS UNBOUNDED PRECEDING EXCLUDE GROUP)"),
            "sum ( x ) OVER ( w PARTITION BY [__exclude] ( 'GROUP' ) ROWS UNBOUNDED PRECEDING )"
        );
        assert_eq!(
            tokens("sum(x) OVER (w ROWS UNBOUNDED PRECEDING EXCLUDE NO OTHERS), 1"),
            "sum ( x ) OVER ( w ROWS UNBOUNDED PRECEDING ) , 1"
        );
        for other in ["( SELECT * EXCLUDE ties )", "( ROW EXCLUDE group by )", "EXCLUDE TIES )"] {
            assert_eq!(tokens(other), other);
        }
    }
}
