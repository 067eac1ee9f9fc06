//! Samples in DuckDB's forms, as `TABLESAMPLE (10 PERCENT)` of a relation.

use std::ops::Range;

use sqlparser::tokenizer::Token;

use super::Writer;

/// Methods of samples; those that draw rows by themselves take a percentage.
const METHODS: [&str; 3] = ["RESERVOIR", "BERNOULLI", "SYSTEM"];

impl Writer<'_> {
    /// The `TABLESAMPLE` of one relation that replaces `USING SAMPLE`, and the range of the latter.
    pub(super) fn sample(
        &self,
        from: &Range<usize>,
        rest: &Range<usize>,
    ) -> Option<(Vec<Token>, Range<usize>)> {
        let start = self.find(rest.clone(), Self::is_sample)?;
        let joins = |s: &Self, at: usize| s.is(at, "JOIN") || s.is_comma(at);
        if from.is_empty() || self.find(from.clone(), joins).is_some() {
            return None;
        }
        let (sample, end) = self.drawn(start + 2)?;
        Some((sample, start..end))
    }

    /// The `TABLESAMPLE` that replaces one in DuckDB's form, and where the latter ends.
    pub(super) fn of_table(&self, at: usize) -> Option<(Vec<Token>, usize)> {
        if !self.is(at, "TABLESAMPLE") {
            return None;
        }
        let (sample, end) = self.drawn(at + 1)?;
        let is_ours = |place: usize| {
            *self.token(place) == Token::Mod
                || self.is(place, "RESERVOIR")
                || place > at + 1 && self.is_method(place)
        };
        (at..end).any(is_ours).then_some((sample, end))
    }

    fn is_method(&self, at: usize) -> bool {
        METHODS.iter().any(|method| self.is(at, method))
    }

    /// `10%`, `(10%)`, `reservoir(5 ROWS)` or `10 PERCENT (bernoulli, 3)` as a `TABLESAMPLE`, and where it ends.
    fn drawn(&self, start: usize) -> Option<(Vec<Token>, usize)> {
        let has_method = self.is_method(start) && *self.token(start + 1) == Token::LParen;
        let is_closed = has_method || *self.token(start) == Token::LParen;
        let at = start + usize::from(has_method) + usize::from(is_closed);
        let number = self.number(at)?;
        let unit = match self.token(at + 1) {
            Token::Mod => Some("PERCENT"),
            _ => ["PERCENT", "ROWS"].into_iter().find(|unit| self.is(at + 1, unit)),
        };
        let mut end = if unit.is_some() { at + 2 } else { at + 1 };
        let mut seed = None;
        if is_closed {
            if *self.token(end) != Token::RParen {
                return None;
            }
            end += 1;
        } else if *self.token(end) == Token::LParen && self.is_method(end + 1) {
            if *self.token(end + 2) == Token::Comma {
                seed = Some(self.number(end + 3)?);
                end += 2;
            }
            if *self.token(end + 2) != Token::RParen {
                return None;
            }
            end += 3;
        }
        if self.is(end, "REPEATABLE")
            && *self.token(end + 1) == Token::LParen
            && *self.token(end + 3) == Token::RParen
        {
            seed = Some(self.number(end + 2)?);
            end += 4;
        }
        let is_percent = has_method && !self.is(start, "RESERVOIR");
        let unit = unit.or(is_percent.then_some("PERCENT"));
        let mut sample = vec![Token::make_keyword("TABLESAMPLE"), Token::LParen, number];
        sample.extend(unit.map(Token::make_keyword));
        sample.push(Token::RParen);
        if let Some(seed) = seed {
            let word = Token::make_keyword("REPEATABLE");
            sample.extend([word, Token::LParen, seed, Token::RParen]);
        }
        Some((sample, end))
    }
}

#[cfg(test)]
mod tests {
    use crate::tokens::tests::tokens;

    #[test]
    fn samples_of_relations() {
        for (sample, want) in [
            ("10%", "( 10 PERCENT )"),
            ("(10%)", "( 10 PERCENT )"),
            ("10 PERCENT (system)", "( 10 PERCENT )"),
            ("10% (bernoulli, 3)", "( 10 PERCENT ) REPEATABLE ( 3 )"),
            ("reservoir(5)", "( 5 )"),
            ("reservoir(5 ROWS) REPEATABLE (3)", "( 5 ROWS ) REPEATABLE ( 3 )"),
            ("bernoulli(10%)", "( 10 PERCENT )"),
        ] {
            let want = format!("SELECT a FROM t TABLESAMPLE {want} WHERE a");
            let text = format!("SELECT a FROM t TABLESAMPLE {sample} WHERE a");
            assert_eq!(tokens(&text), want);
            assert!(crate::parse(&text).is_ok(), "{text}");
        }
        for same in [
            "SELECT a FROM t TABLESAMPLE BERNOULLI ( 10 )",
            "SELECT a FROM t TABLESAMPLE ( 10 ROWS )",
            "SELECT a FROM t TABLESAMPLE 10 PERCENT REPEATABLE ( 3 )",
            "SELECT tablesample FROM t",
        ] {
            assert_eq!(tokens(same), same);
        }
    }
}
