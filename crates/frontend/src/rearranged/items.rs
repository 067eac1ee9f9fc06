//! Items in DuckDB's forms: `y: a + 1` is `a + 1 AS y`, a comma may stand between the last one and FROM. CTEs without
//! `MATERIALIZED`, which changes no row.

use std::ops::Range;

use sqlparser::tokenizer::{Token, TokenWithSpan};

use super::Writer;
use crate::tokens::is_word;

/// Words that begin a query in parentheses.
const FIRST_WORDS: [&str; 6] = ["SELECT", "FROM", "WITH", "VALUES", "PIVOT", "UNPIVOT"];

/// Removes `MATERIALIZED` and `NOT MATERIALIZED` in front of the query of a CTE. In `t AS materialized (a, b)` it is a
/// name.
pub(super) fn unmaterialized(tokens: Vec<TokenWithSpan>) -> Vec<TokenWithSpan> {
    if !tokens.iter().any(|t| is_word(&t.token, "MATERIALIZED")) {
        return tokens;
    }
    let is = |at: usize, word: &str| tokens.get(at).is_some_and(|t| is_word(&t.token, word));
    let is_open = |at: usize| tokens.get(at).is_some_and(|t| t.token == Token::LParen);
    let mut out = Vec::with_capacity(tokens.len());
    let mut at = 0;
    while at < tokens.len() {
        let end = if is(at, "NOT") { at + 1 } else { at };
        let is_query = is_open(end + 1)
            && (is_open(end + 2) || FIRST_WORDS.iter().any(|word| is(end + 2, word)));
        if at > 0 && is(at - 1, "AS") && is(end, "MATERIALIZED") && is_query {
            at = end + 1;
        } else {
            out.push(tokens[at].clone());
            at += 1;
        }
    }
    out
}

impl Writer<'_> {
    /// Writes the items of a block from its SELECT on; `precedes_from` is true if FROM follows.
    pub(super) fn items(&mut self, select: Range<usize>, precedes_from: bool, depth: usize) {
        let mut start = select.start;
        let mut first = self.first_item(&select);
        let list_end = self.find(first..select.end, Self::ends_list).unwrap_or(select.end);
        // The parser reports the open bracket.
        let takes_comma = precedes_from && self.find(select.clone(), Self::is_open).is_none();
        loop {
            let end = self.find(first..list_end, |s, at| *s.token(at) == Token::Comma);
            let end = end.unwrap_or(list_end);
            self.part(start..first, depth);
            self.item(first..end, depth);
            if end == list_end || takes_comma && end + 1 == select.end {
                break;
            }
            self.part(end..end + 1, depth);
            (start, first) = (end + 1, end + 1);
        }
        self.part(list_end..select.end, depth);
    }

    fn item(&mut self, item: Range<usize>, depth: usize) {
        let Range { start, end } = item;
        let is_named = matches!(self.token(start), Token::Word(_))
            && *self.token(start + 1) == Token::Colon
            && start + 2 < end;
        if !is_named {
            return self.part(start..end, depth);
        }
        self.part(start + 2..end, depth);
        self.write(&[Token::make_keyword("AS")], self.tokens[start + 1].span);
        self.part(start..start + 1, depth);
    }

    /// Where the first item begins, behind `SELECT DISTINCT ON (…)`.
    fn first_item(&self, select: &Range<usize>) -> usize {
        let mut at = select.start + 1;
        if self.is(at, "DISTINCT") || self.is(at, "ALL") {
            at += 1;
            if self.is(at, "ON") && *self.token(at + 1) == Token::LParen {
                at = self.ends[at + 1] + 1;
            }
        }
        at.min(select.end)
    }

    /// True for a bracket that nothing closes.
    fn is_open(&self, at: usize) -> bool {
        matches!(self.token(at), Token::LParen | Token::LBracket | Token::LBrace)
            && self.ends[at] == at
    }
}

#[cfg(test)]
mod tests {
    use crate::tokens::tests::tokens;

    #[test]
    fn names_in_front_of_items_and_last_commas() {
        for (text, want) in [
            ("SELECT y: a + 1, b FROM t", "SELECT a + 1 AS y , b FROM t"),
            (
                "SELECT DISTINCT ON (a, b) c, y: f(a, (SELECT z: 1)) LIMIT 2",
                "SELECT DISTINCT ON ( a , b ) c , f ( a , ( SELECT 1 AS z ) ) AS y LIMIT 2",
            ),
            ("FROM t SELECT \"y z\": a", "SELECT a AS \"y z\" FROM t"),
            ("SELECT a, b, FROM t ORDER BY a", "SELECT a , b FROM t ORDER BY a"),
            (
                "WITH c AS MATERIALIZED (SELECT a, FROM t), d AS NOT MATERIALIZED (FROM c) FROM d",
                "WITH c AS ( SELECT a FROM t ) , d AS ( SELECT * FROM c ) SELECT * FROM d",
            ),
        ] {
            assert_eq!(tokens(text), want);
            assert!(crate::parse(text).is_ok(), "{text}");
        }
        for same in [
            "SELECT a [ lo : hi ] , where ( c , x , NULL ) FROM t",
            "SELECT a , , b FROM t",
            "SELECT a [ 0 , FROM x",
            "SELECT a AS materialized FROM t",
            "SELECT a FROM t AS materialized ( a , b )",
            "SELECT all ( x ) , { 'k' : 1 } FROM t",
        ] {
            assert_eq!(tokens(same), same);
        }
    }
}
