//! Queries in DuckDB's order of words, as the tokens of SQL's order.
//!
//! | written | becomes |
//! |---|---|
//! | `FROM t WHERE x` | `SELECT * FROM t WHERE x` |
//! | `FROM t SELECT a WHERE x` | `SELECT a FROM t WHERE x` |
//! | `FROM t WHERE x USING SAMPLE 10%` | `SELECT * FROM t TABLESAMPLE (10 PERCENT) WHERE x` |
//! | `t TABLESAMPLE 10%`, `t TABLESAMPLE reservoir(5)` | `t TABLESAMPLE (10 PERCENT)`, `t TABLESAMPLE (5)` |
//! | `PIVOT t ON k IN ('a', 'b') USING sum(v) GROUP BY g` | `SELECT * FROM t PIVOT (sum(v) FOR k IN ('a', 'b') DEFAULT ON NULL ([__keys](g)))` |
//! | `PIVOT t ON a IN (1, 2), b` | `SELECT * FROM t PIVOT (count(*) FOR [__pivoted](a IN (1, 2), b) IN (ANY))` |
//! | `UNPIVOT t ON a, b INTO NAME n VALUE v` | `SELECT * FROM t UNPIVOT (v FOR n IN (a, b))` |
//! | `SUMMARIZE t` | `SUMMARIZE SELECT * FROM t` |
//! | `a ** b` | `a ^ b` |
//! | `s GLOB 'a*'`, `s NOT GLOB 'a*'` | `s ~ '(?s)^a.*$'`, `s !~ '(?s)^a.*$'` |
//! | `0x1F` | `31` |
//! | `first_value(x ORDER BY y IGNORE NULLS)` | `first_value(x IGNORE NULLS ORDER BY y)` |
//! | `SELECT y: a + 1, b, FROM t` | `SELECT a + 1 AS y, b FROM t` |
//! | `WITH c AS MATERIALIZED (…)` | `WITH c AS (…)` |
//! | `count(*) FILTER (k > 1)` | `count(*) FILTER (WHERE k > 1)` |

mod filters;
mod items;
mod literals;
mod samples;
mod turned;

use std::ops::Range;

pub(crate) use literals::PERCENT;
use sqlparser::tokenizer::{Span, Token, TokenWithSpan};

use crate::limits::NESTING_MAX;
use crate::tokens::is_word;

/// Maximum tokens of the relation behind `PIVOT`, where a bracket with all that it contains is one: a name with its
/// parts and an alias.
const RELATION_MAX: usize = 16;

/// The tokens in SQL's order.
pub(crate) fn rearranged(tokens: Vec<TokenWithSpan>) -> Vec<TokenWithSpan> {
    let tokens = literals::limits(items::unmaterialized(powers(tokens)));
    let tokens = filters::filters(literals::globs(literals::numbers(tokens)));
    let out = Vec::with_capacity(tokens.len() + 8);
    let mut writer = Writer { ends: ends(&tokens), tokens: &tokens, out };
    writer.level(0..tokens.len(), 0);
    writer.out
}

/// Makes one token of the two of `**`.
fn powers(tokens: Vec<TokenWithSpan>) -> Vec<TokenWithSpan> {
    let mut out: Vec<TokenWithSpan> = Vec::with_capacity(tokens.len());
    for token in tokens {
        match out.last_mut() {
            Some(last)
                if last.token == Token::Mul
                    && token.token == Token::Mul
                    && last.span.end == token.span.start =>
            {
                *last = TokenWithSpan::new(Token::Caret, last.span.union(&token.span));
            }
            _ => out.push(token),
        }
    }
    out
}

/// For each token the one that closes it, if it is a bracket; otherwise itself.
fn ends(tokens: &[TokenWithSpan]) -> Vec<usize> {
    let mut ends: Vec<usize> = (0..tokens.len()).collect();
    let mut open = Vec::new();
    for (at, token) in tokens.iter().enumerate() {
        match token.token {
            Token::LParen | Token::LBracket | Token::LBrace => open.push(at),
            Token::RParen | Token::RBracket | Token::RBrace => {
                if let Some(start) = open.pop() {
                    ends[start] = at;
                }
            }
            _ => {}
        }
    }
    ends
}

/// Writes tokens in another order. A level is what a pair of brackets contains; the words that are looked for are
/// those of one level.
struct Writer<'a> {
    tokens: &'a [TokenWithSpan],
    ends: Vec<usize>,
    out: Vec<TokenWithSpan>,
}

impl Writer<'_> {
    /// Writes the blocks of a level, and the tokens around them.
    fn level(&mut self, level: Range<usize>, depth: usize) {
        // The parser refuses such a statement.
        if depth > NESTING_MAX {
            self.out.extend_from_slice(&self.tokens[level]);
            return;
        }
        let mut at = level.start;
        if depth == 0 && self.is(at, "SUMMARIZE") && !self.is_query(&level, at + 1) {
            self.part(at..at + 1, depth);
            let words = [Token::make_keyword("SELECT"), Token::Mul, Token::make_keyword("FROM")];
            self.write(&words, self.tokens[at].span);
            at += 1;
        }
        while at < level.end {
            if self.is(at, "SELECT") || self.begins(&level, at) {
                let end = self.find(at + 1..level.end, Self::is_set_operator);
                let end = end.unwrap_or(level.end);
                self.block(at..end, depth);
                at = end;
            } else {
                self.part(at..at + 1, depth);
                at = self.ends[at] + 1;
            }
        }
    }

    /// Writes tokens in their order, and the levels inside. A bracket at the end includes its contents.
    fn part(&mut self, part: Range<usize>, depth: usize) {
        let mut at = part.start;
        while at < part.end {
            if let Some((sample, end)) = self.of_table(at).filter(|(_, end)| *end <= part.end) {
                self.write(&sample, self.tokens[at].span);
                at = end;
                continue;
            }
            self.out.push(self.tokens[at].clone());
            let end = self.ends[at];
            if end > at {
                if let Some(keys) = self.pivot_keys(at) {
                    self.level(at + 1..keys, depth + 1);
                    self.keys(keys + 2..end, self.tokens[keys].span, depth + 1);
                } else if let Some(order) = self.order_before_nulls(at) {
                    self.level(at + 1..order, depth + 1);
                    self.part(end - 2..end, depth + 1);
                    self.level(order..end - 2, depth + 1);
                } else {
                    self.level(at + 1..end, depth + 1);
                }
                self.out.push(self.tokens[end].clone());
            }
            at = end + 1;
        }
    }

    /// Writes one block, without set operators.
    fn block(&mut self, block: Range<usize>, depth: usize) {
        if let Some(on) = self.turned(&block) {
            self.turn(block, on, depth);
            return;
        }
        let Range { start, end } = block;
        let find =
            |from: usize, test: fn(&Self, usize) -> bool| self.find(from..end, test).unwrap_or(end);
        let (select, from, rest) = if self.is(start, "FROM") {
            let from = start..find(start + 1, |s, at| s.is(at, "SELECT") || s.ends_list(at));
            let select = match self.is(from.end, "SELECT") && from.end < end {
                true => from.end..find(from.end + 1, Self::ends_list),
                false => from.end..from.end,
            };
            (select.clone(), from, select.end..end)
        } else {
            let select = start..find(start + 1, Self::is_from);
            let from = select.end..find(select.end + 1, Self::ends_list);
            let rest = from.end..end;
            (select, from, rest)
        };
        let written = self.out.len();
        let place = self.tokens[start].span;
        match select.is_empty() {
            true => self.write(&[Token::make_keyword("SELECT"), Token::Mul], place),
            false => {
                let precedes_from = select.start == start && !from.is_empty();
                self.items(select.clone(), precedes_from, depth);
            }
        }
        // The first token of a query is the first one of its text.
        if select.start > start && !select.is_empty() {
            let first = self.tokens[select.start].span;
            self.out[written].span = place;
            let second = self.out.len();
            self.part(from.clone(), depth);
            self.out[second].span = first;
        } else {
            self.part(from.clone(), depth);
        }
        match self.sample(&from, &rest) {
            Some((sample, using)) => {
                self.write(&sample, self.tokens[using.start].span);
                self.part(rest.start..using.start, depth);
                self.part(using.end..rest.end, depth);
            }
            None => self.part(rest, depth),
        }
    }

    /// The `ORDER BY` of `f(x ORDER BY y IGNORE NULLS)`, if the bracket is of that form.
    fn order_before_nulls(&self, open: usize) -> Option<usize> {
        let nulls = self.ends[open].checked_sub(2).filter(|nulls| *nulls > open)?;
        let is_treatment = self.is(nulls, "IGNORE") || self.is(nulls, "RESPECT");
        if !is_treatment || !self.is(nulls + 1, "NULLS") {
            return None;
        }
        self.find(open + 1..nulls, |s, at| s.is(at, "ORDER") && s.is(at + 1, "BY"))
    }

    /// The list that begins at a token of a block.
    fn list(&self, start: usize, end: usize) -> Range<usize> {
        let start = start.min(end);
        start..self.find(start..end, Self::ends_list).unwrap_or(end)
    }

    /// Writes tokens that stand at a place.
    fn write(&mut self, tokens: &[Token], place: Span) {
        self.out.extend(tokens.iter().map(|token| TokenWithSpan::new(token.clone(), place)));
    }

    /// True if a query follows, also in parentheses.
    fn is_query(&self, level: &Range<usize>, at: usize) -> bool {
        *self.token(at) == Token::LParen
            || ["SELECT", "FROM", "WITH", "VALUES"].iter().any(|word| self.is(at, word))
            || self.turned(&(at..level.end)).is_some()
    }

    /// True if a block begins here with another word than SELECT.
    fn begins(&self, level: &Range<usize>, at: usize) -> bool {
        if !self.is(at, "FROM") && self.turned(&(at..level.end)).is_none() {
            return false;
        }
        let is_first = |words: &[&str]| words.iter().any(|word| self.is(level.start, word));
        let Some(before) = at.checked_sub(1).filter(|before| *before >= level.start) else {
            return true;
        };
        let follows_operator = |at: usize| at > level.start && self.is_set_operator(at - 1);
        match self.token(before) {
            Token::RParen if is_first(&["WITH", "EXPLAIN"]) => true,
            _ if self.is(before, "ALL") || self.is(before, "DISTINCT") => follows_operator(before),
            _ if self.is(before, "NAME") => before > level.start && self.is(before - 1, "BY"),
            _ if self.is(before, "AS") || self.is_set_operator(before) => true,
            // Only statements: in brackets these words are names.
            _ => {
                level.start == 0
                    && is_first(&["EXPLAIN", "DESCRIBE", "DESC", "SUMMARIZE", "INSERT"])
            }
        }
    }

    /// The `ON` of a block that begins with `PIVOT` or `UNPIVOT`.
    fn turned(&self, block: &Range<usize>) -> Option<usize> {
        let is_turn = self.is(block.start, "PIVOT") || self.is(block.start, "UNPIVOT");
        if !is_turn || self.is(block.start + 1, "ON") {
            return None;
        }
        let mut at = block.start + 1;
        for _ in 0..RELATION_MAX {
            // In `(pivot JOIN t ON …` it is a name.
            if at >= block.end || self.is(at, "JOIN") || self.ends_list(at) {
                return None;
            }
            if self.is(at, "ON") {
                return Some(at);
            }
            at = self.ends[at] + 1;
        }
        None
    }

    /// The first token of a level at which `test` is true.
    fn find(&self, level: Range<usize>, test: impl Fn(&Self, usize) -> bool) -> Option<usize> {
        let mut at = level.start;
        while at < level.end {
            if test(self, at) {
                return Some(at);
            }
            at = self.ends[at] + 1;
        }
        None
    }

    fn token(&self, at: usize) -> &Token {
        self.tokens.get(at).map_or(&Token::EOF, |token| &token.token)
    }

    fn is(&self, at: usize, word: &str) -> bool {
        is_word(self.token(at), word)
    }

    fn number(&self, at: usize) -> Option<Token> {
        Some(self.token(at)).filter(|token| matches!(token, Token::Number(..))).cloned()
    }

    fn is_comma(&self, at: usize) -> bool {
        *self.token(at) == Token::Comma
    }

    /// True for `FROM`, but not in `a IS DISTINCT FROM b`.
    fn is_from(&self, at: usize) -> bool {
        let is_comparison = at > 1
            && self.is(at - 1, "DISTINCT")
            && (self.is(at - 2, "IS") || self.is(at - 2, "NOT"));
        self.is(at, "FROM") && !is_comparison
    }

    /// True for a set operator; `* EXCEPT (a)` has none.
    fn is_set_operator(&self, at: usize) -> bool {
        let leaves_out = at > 0 && *self.token(at - 1) == Token::Mul;
        ["UNION", "INTERSECT", "EXCEPT"].iter().any(|word| self.is(at, word)) && !leaves_out
    }

    fn is_sample(&self, at: usize) -> bool {
        self.is(at, "USING") && self.is(at + 1, "SAMPLE")
    }

    /// True for the word of a clause behind FROM, which ends a list of relations or items.
    fn ends_list(&self, at: usize) -> bool {
        let is_name = at > 0
            && (matches!(self.token(at - 1), Token::Comma | Token::Period)
                || ["SELECT", "DISTINCT", "AS"].iter().any(|word| self.is(at - 1, word)));
        let is = |words: &[&str]| words.iter().any(|word| self.is(at, word));
        !is_name
            && (is(&["WHERE", "HAVING", "QUALIFY", "LIMIT", "OFFSET", "FETCH"])
                || is(&["GROUP", "ORDER"]) && self.is(at + 1, "BY")
                || is(&["WINDOW"]) && self.is(at + 2, "AS")
                || self.is_sample(at))
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]
    use crate::tokens::split;
    use crate::tokens::tests::tokens;

    #[test]
    fn select_precedes_from() {
        for (text, want) in [
            ("FROM t", "SELECT * FROM t"),
            ("FROM t, u WHERE a", "SELECT * FROM t , u WHERE a"),
            ("FROM t SELECT a, b ORDER BY a", "SELECT a , b FROM t ORDER BY a"),
            (
                "FROM t SELECT DISTINCT offset, sum(x) WITHIN GROUP (ORDER BY y) AS limit LIMIT 3",
                "SELECT DISTINCT offset , sum ( x ) WITHIN GROUP ( ORDER BY y ) AS limit FROM t LIMIT 3",
            ),
            (
                "FROM a UNION ALL BY NAME FROM b SELECT x",
                "SELECT * FROM a UNION ALL BY NAME SELECT x FROM b",
            ),
            (
                "WITH c AS (FROM t SELECT a) FROM c JOIN (FROM u) d ON c.a IS DISTINCT FROM d.a",
                "WITH c AS ( SELECT a FROM t ) SELECT * FROM c JOIN ( SELECT * FROM u ) d ON c . a IS DISTINCT FROM d . a",
            ),
            (
                "EXPLAIN ANALYZE FROM t SELECT (FROM u SELECT max(v))",
                "EXPLAIN ANALYZE SELECT ( SELECT max ( v ) FROM u ) FROM t",
            ),
            ("CREATE VIEW v AS FROM t", "CREATE VIEW v AS SELECT * FROM t"),
            ("INSERT INTO v FROM t", "INSERT INTO v SELECT * FROM t"),
            ("SUMMARIZE 'x.nc'", "SUMMARIZE SELECT * FROM 'x.nc'"),
            ("SUMMARIZE FROM t SELECT a", "SUMMARIZE SELECT a FROM t"),
        ] {
            assert_eq!(tokens(text), want);
        }
        for same in [
            "SELECT * EXCEPT ( a ) FROM t EXCEPT SELECT 1",
            "SELECT extract ( year FROM t ) , substring ( lower ( s ) FROM 2 ) FROM t",
            "SELECT a IS NOT DISTINCT FROM b FROM t",
            "COPY t FROM 'x'",
            "DROP TABLE from",
            "( pivot JOIN t ON a )",
            "SELECT pivot FROM pivot",
        ] {
            assert_eq!(tokens(same), same);
        }
    }

    #[test]
    fn the_first_token_is_where_the_text_begins() {
        let tokens = split("FROM t SELECT a").unwrap().remove(0).tokens;
        let columns: Vec<u64> = tokens.iter().map(|t| t.span.start.column).collect();
        assert_eq!(columns, [1, 15, 8, 6]);
    }

    #[test]
    fn words_of_duckdb_become_those_of_sql() {
        for (text, want) in [
            ("SELECT 2**3 * * 4", "SELECT 2 ^ 3 * * 4"),
            (
                "SELECT a FROM t WHERE b USING SAMPLE 10% ORDER BY a",
                "SELECT a FROM t TABLESAMPLE ( 10 PERCENT ) WHERE b ORDER BY a",
            ),
            ("FROM t USING SAMPLE 5", "SELECT * FROM t TABLESAMPLE ( 5 )"),
            (
                "FROM t USING SAMPLE 5 ROWS (reservoir, 7)",
                "SELECT * FROM t TABLESAMPLE ( 5 ROWS ) REPEATABLE ( 7 )",
            ),
            (
                "FROM t USING SAMPLE bernoulli(5) REPEATABLE (7)",
                "SELECT * FROM t TABLESAMPLE ( 5 PERCENT ) REPEATABLE ( 7 )",
            ),
            ("FROM t, u USING SAMPLE 5", "SELECT * FROM t , u USING SAMPLE 5"),
            (
                "SELECT f(g(x, 1) ORDER BY y, (z) IGNORE NULLS) OVER (), f(x RESPECT NULLS)",
                "SELECT f ( g ( x , 1 ) IGNORE NULLS ORDER BY y , ( z ) ) OVER ( ) , f ( x RESPECT NULLS )",
            ),
            (
                "SELECT count(*) FILTER (k > 1), sum(f(x)) FILTER (WHERE k), f(x) FILTER ()",
                "SELECT count ( * ) FILTER ( WHERE k > 1 ) , sum ( f ( x ) ) FILTER ( WHERE k ) , f ( x ) FILTER ( )",
            ),
            (
                "FROM (FROM t) filter (a) SELECT sum(a) WITHIN GROUP (ORDER BY b) FILTER (a > 0)",
                "SELECT sum ( a ) WITHIN GROUP ( ORDER BY b ) FILTER ( WHERE a > 0 ) FROM ( SELECT * FROM t ) filter ( a )",
            ),
            (
                "SELECT extract(year FROM max(b) FILTER (b > 1)), max(a) FILTER (a) FROM t JOIN range(3) filter (a) ON b, f(x) filter (a, b) WHERE c IS DISTINCT FROM max(a) FILTER (a)",
                "SELECT extract ( year FROM max ( b ) FILTER ( WHERE b > 1 ) ) , max ( a ) FILTER ( WHERE a ) FROM t JOIN range ( 3 ) filter ( a ) ON b , f ( x ) filter ( a , b ) WHERE c IS DISTINCT FROM max ( a ) FILTER ( WHERE a )",
            ),
            (
                "PIVOT t ON k IN ('a') USING sum(v) AS s, max(w) GROUP BY g ORDER BY g",
                "SELECT * FROM t PIVOT ( sum ( v ) AS s , max ( w ) FOR k IN ( 'a' ) DEFAULT ON NULL ( [__keys] ( g ) ) ) ORDER BY g",
            ),
            (
                "SELECT 1 FROM t PIVOT (sum(v) FOR k IN ('a') GROUP BY g, h) p",
                "SELECT 1 FROM t PIVOT ( sum ( v ) FOR k IN ( 'a' ) DEFAULT ON NULL ( [__keys] ( g , h ) ) ) p",
            ),
            (
                "PIVOT (SELECT k FROM t GROUP BY k) ON k IN (1)",
                "SELECT * FROM ( SELECT k FROM t GROUP BY k ) PIVOT ( count ( * ) FOR k IN ( 1 ) )",
            ),
            (
                "FROM (PIVOT (FROM t) q ON k) SELECT 1",
                "SELECT 1 FROM ( SELECT * FROM ( SELECT * FROM t ) q PIVOT ( count ( * ) FOR k IN ( ANY ) ) )",
            ),
            (
                "PIVOT t ON t.k > 1",
                "SELECT * FROM t PIVOT ( count ( * ) FOR ( ( t . k > 1 ) ) IN ( ANY ) )",
            ),
            (
                "PIVOT t ON a IN (1), b",
                "SELECT * FROM t PIVOT ( count ( * ) FOR [__pivoted] ( a IN ( 1 ) , b ) IN ( ANY ) )",
            ),
            (
                "UNPIVOT t ON (a, b) AS c INTO NAME n VALUE v, w",
                "SELECT * FROM t UNPIVOT ( ( v , w ) FOR n IN ( ( a , b ) AS c ) )",
            ),
            (
                "UNPIVOT t ON a, b INTO NAME n VALUE v LIMIT 2",
                "SELECT * FROM t UNPIVOT ( v FOR n IN ( a , b ) ) LIMIT 2",
            ),
            ("UNPIVOT t ON a", "SELECT * FROM t UNPIVOT ( value FOR name IN ( a ) )"),
        ] {
            assert_eq!(tokens(text), want);
        }
    }

    #[test]
    fn unfinished_text_is_left_to_the_parser() {
        for text in [
            "FROM",
            "FROM (",
            "PIVOT",
            "PIVOT t ON",
            "UNPIVOT t ON a INTO",
            "SELECT FROM",
            ")",
            "FROM )",
            "PIVOT t ON k USING",
            "PIVOT t ON k GROUP BY",
            "UNPIVOT t ON a INTO NAME n VALUE",
            "FROM t USING SAMPLE",
            "FROM t USING SAMPLE bernoulli(",
            "FROM t USING SAMPLE 5 (system,",
            "UNION FROM",
            "(PIVOT a ON b",
            "FROM t SELECT",
            "ALL FROM",
            "NAME FROM",
        ] {
            let _: String = tokens(text);
            assert!(crate::parse(text).is_err(), "{text}");
        }
    }
}
