//! `ASOF JOIN` with its inequality in `ON` or `USING`, as in DuckDB.
//!
//! ```text
//! FROM t ASOF LEFT JOIN q ON t.k = q.k AND t.ts >= q.ts
//!   ⇒  FROM t ASOF JOIN q MATCH_CONDITION ([__asof_left]) ON t.k = q.k AND t.ts >= q.ts
//! ```
//! sqlparser reads only Snowflake's form, whose inequality is a `MATCH_CONDITION (…)`. So the tokens get one, with a name
//! that no text can produce.

use sqlparser::ast::Expr;
use sqlparser::keywords::Keyword;
use sqlparser::tokenizer::{Token, TokenWithSpan};

use crate::ast::marker;
use crate::tokens::is_keyword;

/// The rows of the left side that an `ASOF JOIN` returns.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Asof<'a> {
    /// `ASOF JOIN … ON …`: rows with a match. The constraint has the inequality.
    Matched,
    /// `ASOF LEFT JOIN … ON …`: all rows. The constraint has the inequality.
    All,
    /// `ASOF JOIN … MATCH_CONDITION (…)`: all rows, as in Snowflake. The inequality is here.
    AllBy(&'a Expr),
}

impl<'a> Asof<'a> {
    /// Reads the match condition of a parsed join.
    pub fn of(match_condition: &'a Expr) -> Self {
        match match_condition {
            Expr::Identifier(name) if name.quote_style == Some(marker::QUOTE) => {
                match name.value.as_str() {
                    marker::ASOF_LEFT => Asof::All,
                    _ => Asof::Matched,
                }
            }
            condition => Asof::AllBy(condition),
        }
    }
}

/// Adds the missing `MATCH_CONDITION` to every `ASOF [LEFT] JOIN`.
pub(crate) fn mark(tokens: &mut Vec<TokenWithSpan>) {
    let mut at = 0;
    while at < tokens.len() {
        if is_keyword(&tokens[at].token, Keyword::ASOF)
            && let Some((words, is_left)) = kind(&tokens[at + 1..])
            && let Some((end, has_condition)) = end_of_relation(tokens, at + 1 + words)
        {
            // sqlparser refuses INNER there: that form keeps all rows of the left side.
            if has_condition && is_keyword(&tokens[at + 1].token, Keyword::INNER) {
                at += 1;
                continue;
            }
            let span = tokens[at].span;
            if !has_condition {
                let name = if is_left { marker::ASOF_LEFT } else { marker::ASOF };
                let condition = [
                    Token::make_keyword("MATCH_CONDITION"),
                    Token::LParen,
                    Token::make_word(name, Some(marker::QUOTE)),
                    Token::RParen,
                ];
                let condition = condition.map(|token| TokenWithSpan::new(token, span));
                tokens.splice(end..end, condition);
            }
            // `JOIN` alone follows ASOF.
            tokens.drain(at + 1..at + words);
        }
        at += 1;
    }
}

/// The number of words after ASOF up to `JOIN`, and whether `LEFT` is one of them.
fn kind(tokens: &[TokenWithSpan]) -> Option<(usize, bool)> {
    let is = |at: usize, keyword| tokens.get(at).is_some_and(|t| is_keyword(&t.token, keyword));
    let is_left = is(0, Keyword::LEFT);
    let before = match (is_left, is(1, Keyword::OUTER), is(0, Keyword::INNER)) {
        (true, true, _) => 2,
        (true, false, _) | (false, _, true) => 1,
        (false, _, false) => 0,
    };
    is(before, Keyword::JOIN).then_some((before + 1, is_left))
}

/// The end of the relation that begins at `start`, and whether a `MATCH_CONDITION` follows; `None` if neither that nor
/// `ON` or `USING` does.
fn end_of_relation(tokens: &[TokenWithSpan], start: usize) -> Option<(usize, bool)> {
    let mut depth = 0_usize;
    for (at, token) in tokens.iter().enumerate().skip(start) {
        match &token.token {
            Token::LParen | Token::LBracket => depth += 1,
            Token::RParen | Token::RBracket => depth = depth.checked_sub(1)?,
            Token::Comma if depth == 0 => return None,
            Token::Word(word) if depth == 0 && word.quote_style.is_none() => match word.keyword {
                Keyword::ON | Keyword::USING => return Some((at, false)),
                Keyword::MATCH_CONDITION => return Some((at, true)),
                Keyword::JOIN | Keyword::WHERE | Keyword::GROUP | Keyword::ORDER => return None,
                _ => {}
            },
            _ => {}
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use crate::tokens::tests::tokens;

    #[test]
    fn the_condition_is_added_where_it_is_missing() {
        assert_eq!(
            tokens("a ASOF LEFT OUTER JOIN f(x) b USING (k)"),
            "a ASOF JOIN f ( x ) b MATCH_CONDITION ( [__asof_left] ) USING ( k )"
        );
        assert_eq!(
            tokens("a ASOF INNER JOIN b ON c ASOF JOIN d ON e"),
            "a ASOF JOIN b MATCH_CONDITION ( [__asof] ) ON c ASOF JOIN d MATCH_CONDITION ( [__asof] ) ON e"
        );
        assert_eq!(
            tokens("a ASOF JOIN b MATCH_CONDITION (c) ON d"),
            "a ASOF JOIN b MATCH_CONDITION ( c ) ON d"
        );
        let inner = "a ASOF INNER JOIN b MATCH_CONDITION ( c ) ON d";
        assert_eq!(tokens(inner), inner);
        assert_eq!(tokens("a ASOF JOIN b JOIN c ON d"), "a ASOF JOIN b JOIN c ON d");
        assert_eq!(tokens("a ASOF"), "a ASOF");
    }
}
