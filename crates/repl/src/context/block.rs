//! The query block around the cursor, and the relations in its FROM.

use crate::lex::{Token, TokenKind};
use crate::words;

/// A relation of a FROM.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Relation {
    /// The operand for DESCRIBE: a name, a path in quotes, a query in parentheses.
    pub source: String,
    /// Its name in the block, if it has one.
    pub alias: Option<String>,
}

/// The relations of the block that byte `at` is in.
pub(super) fn relations(all: &[Token<'_>], at: usize, text: &str) -> Vec<Relation> {
    let tokens: Vec<Token<'_>> = all.iter().filter(|t| !t.is_blank()).copied().collect();
    let (first, last) = block(&tokens, at);
    let mut out = list(&tokens[first..last], text);
    // A name from WITH is described by its query.
    for r in &mut out {
        if let Some(query) = defined(&tokens, &r.source, text) {
            r.alias.get_or_insert_with(|| r.source.clone());
            r.source = query;
        }
    }
    out
}

/// True if a comma after these tokens separates relations.
pub(super) fn in_relations(left: &[Token<'_>]) -> bool {
    let mut depth = 0usize;
    for t in left.iter().rev() {
        match t.kind {
            TokenKind::Close => depth += 1,
            TokenKind::Open if depth == 0 => return false,
            TokenKind::Open => depth -= 1,
            TokenKind::Word if depth == 0 => {
                if t.is("FROM") {
                    return true;
                }
                if t.is("SELECT") || words::AFTER_RELATIONS.iter().any(|w| t.is(w)) {
                    return false;
                }
            }
            _ => {}
        }
    }
    false
}

/// The token range of the innermost parenthesised query around `at`, or of all.
fn block(tokens: &[Token<'_>], at: usize) -> (usize, usize) {
    let (pairs, open) = brackets(tokens);
    let begins = |o: usize| tokens[o].start < at && is_query(tokens, o);
    // The innermost one closes first.
    if let Some(&(o, i)) = pairs.iter().find(|(o, i)| begins(*o) && at <= tokens[*i].start) {
        return (o + 1, i);
    }
    // An unclosed parenthesis reaches to the end.
    let unclosed = open.into_iter().rev().find(|o| begins(*o));
    (unclosed.map_or(0, |o| o + 1), tokens.len())
}

/// Pairs of an opening and a closing bracket, in the order of the latter, and opening ones without a partner.
fn brackets(tokens: &[Token<'_>]) -> (Vec<(usize, usize)>, Vec<usize>) {
    let (mut pairs, mut open) = (Vec::new(), Vec::new());
    for (i, t) in tokens.iter().enumerate() {
        match t.kind {
            TokenKind::Open => open.push(i),
            TokenKind::Close => pairs.extend(open.pop().map(|o| (o, i))),
            _ => {}
        }
    }
    (pairs, open)
}

fn is_query(tokens: &[Token<'_>], open: usize) -> bool {
    tokens.get(open + 1).is_some_and(|t| t.is("SELECT") || t.is("WITH"))
}

/// The relations after FROM and JOIN on the first level of these tokens. After a set operation only the last list
/// counts.
fn list(tokens: &[Token<'_>], text: &str) -> Vec<Relation> {
    // An unclosed call does not hide the FROM behind the cursor.
    let (_, never_closed) = brackets(tokens);
    let mut out = Vec::new();
    let (mut depth, mut i, mut expected) = (0usize, 0, false);
    while i < tokens.len() {
        let t = &tokens[i];
        let ends = words::AFTER_RELATIONS.iter().any(|w| t.is(w));
        if depth == 0 && expected {
            expected = false;
            if let Some((relation, next)) = relation(tokens, i, text) {
                out.push(relation);
                i = next;
                // A comma right after a relation introduces another one.
                if tokens.get(i).is_some_and(|t| t.text == ",") {
                    expected = true;
                    i += 1;
                }
                continue;
            }
        }
        match t.kind {
            TokenKind::Open if never_closed.contains(&i) => {}
            TokenKind::Open => depth += 1,
            TokenKind::Close => depth = depth.saturating_sub(1),
            TokenKind::Word if depth == 0 && t.is("SELECT") => out.clear(),
            TokenKind::Word if depth == 0 && (t.is("FROM") || t.is("JOIN")) => expected = true,
            TokenKind::Word if depth == 0 && ends => expected = false,
            _ => {}
        }
        i += 1;
    }
    out
}

/// The relation that begins at token `i`, and the index after it and its alias.
fn relation(tokens: &[Token<'_>], i: usize, text: &str) -> Option<(Relation, usize)> {
    let t = tokens.get(i)?;
    let (source, mut next) = match t.kind {
        TokenKind::Text if t.closed => (t.text.to_string(), i + 1),
        TokenKind::Open if t.text == "(" => {
            let end = closing(tokens, i)?;
            (text[t.start..tokens[end].end()].to_string(), end + 1)
        }
        TokenKind::Word | TokenKind::Quoted
            if !(t.kind == TokenKind::Word && words::is_keyword(t.text)) =>
        {
            let mut end = i + 1;
            while tokens.get(end).is_some_and(|t| t.text == ".")
                && tokens
                    .get(end + 1)
                    .is_some_and(|t| matches!(t.kind, TokenKind::Word | TokenKind::Quoted))
            {
                end += 2;
            }
            match tokens.get(end) {
                Some(open) if open.text == "(" => {
                    let close = closing(tokens, end)?;
                    let call = &text[t.start..tokens[close].end()];
                    (format!("(SELECT * FROM {call})"), close + 1)
                }
                _ => (text[t.start..tokens[end - 1].end()].to_string(), end),
            }
        }
        _ => return None,
    };
    let is_alias = |t: &Token<'_>| {
        t.kind == TokenKind::Quoted || (t.kind == TokenKind::Word && !words::is_keyword(t.text))
    };
    let mut alias = match t.kind {
        TokenKind::Word | TokenKind::Quoted => tokens.get(next - 1).map(Token::name),
        TokenKind::Text => stem(t.text),
        _ => None,
    };
    if tokens.get(next).is_some_and(|t| t.is("AS")) {
        next += 1;
    }
    if let Some(name) = tokens.get(next).filter(|t| is_alias(t)) {
        alias = Some(name.name());
        next += 1;
    }
    Some((Relation { source, alias }, next))
}

/// The name that a path has in a query: its last part up to the first dot.
fn stem(quoted: &str) -> Option<String> {
    let path = quoted.trim_matches('\'').trim_end_matches('/');
    let last = path.rsplit('/').next()?;
    let stem = last.split('.').next()?;
    (!stem.is_empty()).then(|| stem.to_string())
}

/// The bracket that closes the one at token `open`.
fn closing(tokens: &[Token<'_>], open: usize) -> Option<usize> {
    brackets(tokens).0.into_iter().find(|(o, _)| *o == open).map(|(_, close)| close)
}

/// The query of `WITH name AS (query)`, with its parentheses.
fn defined(tokens: &[Token<'_>], name: &str, text: &str) -> Option<String> {
    tokens.iter().find(|t| t.is("WITH"))?;
    let at = tokens
        .windows(3)
        .position(|w| w[0].text.eq_ignore_ascii_case(name) && w[1].is("AS") && w[2].text == "(")?;
    let end = closing(tokens, at + 2)?;
    Some(text[tokens[at + 2].start..tokens[end].end()].to_string())
}
