//! `PIVOT` and `UNPIVOT` as words behind a relation.

use std::ops::Range;

use sqlparser::tokenizer::{Span, Token};

use super::Writer;
use crate::ast::marker;

impl Writer<'_> {
    /// Writes a block that begins with `PIVOT` or `UNPIVOT` as a query of a relation with that word behind it.
    pub(super) fn turn(&mut self, block: Range<usize>, on: usize, depth: usize) {
        let Range { start, end } = block;
        let place = self.tokens[start].span;
        let word = Token::make_keyword;
        let stop = |s: &Self, at: usize| s.is(at, "USING") || s.is(at, "INTO") || s.ends_list(at);
        let mut columns = on + 1..self.find(on + 1..end, stop).unwrap_or(end);
        let mut rest = columns.end;
        self.write(&[word("SELECT"), Token::Mul, word("FROM")], place);
        self.part(start + 1..on, depth);
        self.part(start..start + 1, depth);
        self.write(&[Token::LParen], place);
        if self.is(start, "UNPIVOT") {
            let is_named = self.is(rest, "INTO")
                && self.is(rest + 1, "NAME")
                && self.is(rest + 3, "VALUE")
                && rest + 4 < end;
            if is_named {
                let value = self.list(rest + 4, end);
                let around = usize::from(self.find(value.clone(), Self::is_comma).is_some());
                self.enclosed(value.clone(), around, depth);
                self.write(&[word("FOR")], place);
                self.part(rest + 2..rest + 3, depth);
                rest = value.end;
            } else {
                self.write(&["value", "FOR", "name"].map(word), place);
                if self.is(rest, "INTO") && rest < end {
                    // The parser points at the word.
                    columns.end = end;
                    rest = end;
                }
            }
            self.write(&[word("IN"), Token::LParen], place);
            self.part(columns, depth);
            self.write(&[Token::RParen], place);
        } else {
            if self.is(rest, "USING") && rest < end {
                let calls = self.list(rest + 1, end);
                self.part(calls.clone(), depth);
                rest = calls.end;
            } else {
                let count = [word("count"), Token::LParen, Token::Mul, Token::RParen];
                self.write(&count, place);
            }
            self.write(&[word("FOR")], place);
            let are_several = self.find(columns.clone(), Self::is_comma).is_some();
            if !are_several && self.find(columns.clone(), |s, at| s.is(at, "IN")).is_some() {
                self.part(columns, depth);
            } else {
                let around = if are_several { 1 } else { self.parentheses(&columns) };
                if are_several {
                    self.write(&[Token::make_word(marker::PIVOTED, Some(marker::QUOTE))], place);
                }
                self.enclosed(columns, around, depth);
                self.write(&[word("IN"), Token::LParen, word("ANY"), Token::RParen], place);
            }
            if self.is(rest, "GROUP") && rest < end {
                let keys = self.list(rest + 2, end);
                rest = keys.end;
                self.keys(keys, place, depth);
            }
        }
        self.write(&[Token::RParen], place);
        self.part(rest..end, depth);
    }

    /// The number of parentheses that the `FOR` of a PIVOT needs around its column. The parser reads comparisons only
    /// inside two of them, and `(a, b)` as several columns.
    fn parentheses(&self, columns: &Range<usize>) -> usize {
        let last = self.ends.get(columns.start).copied().unwrap_or_default();
        let is_whole = *self.token(columns.start) == Token::LParen && last + 1 == columns.end;
        if is_whole && self.find(columns.start + 1..last, Self::is_comma).is_some() {
            return 0;
        }
        let is_of_name = |at: usize| match (at - columns.start) % 2 {
            0 => matches!(self.token(at), Token::Word(_)),
            _ => *self.token(at) == Token::Period,
        };
        if columns.clone().all(is_of_name) { 0 } else { 2 }
    }

    /// The `GROUP BY` of `PIVOT (… FOR … GROUP BY …)`, if the bracket is of that form.
    pub(super) fn pivot_keys(&self, open: usize) -> Option<usize> {
        let before = open.checked_sub(1)?;
        if !self.is(before, "PIVOT") {
            return None;
        }
        let end = self.ends[open];
        let columns = self.find(open + 1..end, |s, at| s.is(at, "FOR"))?;
        self.find(columns..end, |s, at| s.is(at, "GROUP") && s.is(at + 1, "BY"))
    }

    /// Writes the columns of `GROUP BY` of a PIVOT.
    pub(super) fn keys(&mut self, keys: Range<usize>, place: Span, depth: usize) {
        let marker = Token::make_word(marker::KEYS, Some(marker::QUOTE));
        self.write(&["DEFAULT", "ON", "NULL"].map(Token::make_keyword), place);
        self.write(&[Token::LParen, marker, Token::LParen], place);
        self.part(keys, depth);
        self.write(&[Token::RParen, Token::RParen], place);
    }

    /// Writes tokens in their order inside parentheses.
    fn enclosed(&mut self, part: Range<usize>, around: usize, depth: usize) {
        let place = self.tokens.get(part.start).map_or_else(Span::empty, |token| token.span);
        self.write(&vec![Token::LParen; around], place);
        self.part(part, depth);
        self.write(&vec![Token::RParen; around], place);
    }
}
