//! Tokens of SQL that is still being typed.
//!
//! The frontend's tokenizer needs whole statements and stops at the first error. This one never fails, records byte
//! positions, and lets an unclosed text or comment extend to the end.

/// The kind of a token.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TokenKind {
    /// White space.
    Space,
    /// `-- …` or `/* … */`.
    Comment,
    /// A bare word.
    Word,
    /// A name in double quotes.
    Quoted,
    /// A text in single quotes.
    Text,
    /// A number.
    Number,
    /// `(`, `[` or `{`.
    Open,
    /// `)`, `]` or `}`.
    Close,
    /// `;`
    Semicolon,
    /// Operators, commas and everything else.
    Sign,
}

/// A token.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Token<'a> {
    /// The kind of the token.
    pub kind: TokenKind,
    /// The text as typed.
    pub text: &'a str,
    /// Its first byte in the input.
    pub start: usize,
    /// False for an unclosed text, name or comment.
    pub closed: bool,
}

impl Token<'_> {
    /// The byte after its last.
    pub fn end(&self) -> usize {
        self.start + self.text.len()
    }

    /// True for a bare word that is `word` in any case.
    pub fn is(&self, word: &str) -> bool {
        self.kind == TokenKind::Word && self.text.eq_ignore_ascii_case(word)
    }

    /// True for white space and comments.
    pub fn is_blank(&self) -> bool {
        matches!(self.kind, TokenKind::Space | TokenKind::Comment)
    }

    /// The name that a word or a quoted name denotes.
    pub fn name(&self) -> String {
        if self.kind != TokenKind::Quoted {
            return self.text.into();
        }
        let inner = self.text.strip_prefix('"').unwrap_or(self.text);
        let inner = if self.closed { inner.strip_suffix('"').unwrap_or(inner) } else { inner };
        inner.replace("\"\"", "\"")
    }
}

/// All tokens of `text`; their concatenation is `text`.
pub fn tokens(text: &str) -> Vec<Token<'_>> {
    let mut out = Vec::new();
    let mut start = 0;
    while let Some(first) = text[start..].chars().next() {
        let rest = &text[start..];
        let (kind, length, closed) = next(rest, first);
        out.push(Token { kind, text: &rest[..length], start, closed });
        start += length;
    }
    out
}

/// Kind, length in bytes, and whether it is closed.
fn next(rest: &str, first: char) -> (TokenKind, usize, bool) {
    let span = |accept: fn(char) -> bool| {
        rest.char_indices().find(|(_, c)| !accept(*c)).map_or(rest.len(), |(i, _)| i)
    };
    let until = |end: &str, skip: usize| match rest[skip..].find(end) {
        Some(at) => (skip + at + end.len(), true),
        None => (rest.len(), false),
    };
    let two = |pair: &str| rest.starts_with(pair);
    match first {
        c if c.is_whitespace() => (TokenKind::Space, span(char::is_whitespace), true),
        _ if two("--") => {
            let end = rest.find('\n').unwrap_or(rest.len());
            (TokenKind::Comment, end, true)
        }
        _ if two("/*") => {
            let (end, closed) = until("*/", 2);
            (TokenKind::Comment, end, closed)
        }
        '\'' | '"' => {
            let (end, closed) = quoted(rest, first);
            (if first == '"' { TokenKind::Quoted } else { TokenKind::Text }, end, closed)
        }
        c if c.is_ascii_digit() => (TokenKind::Number, number(rest), true),
        c if c.is_alphabetic() || c == '_' => {
            (TokenKind::Word, span(|c| c.is_alphanumeric() || c == '_'), true)
        }
        '(' | '[' | '{' => (TokenKind::Open, 1, true),
        ')' | ']' | '}' => (TokenKind::Close, 1, true),
        ';' => (TokenKind::Semicolon, 1, true),
        _ if ["=>", "->", "::", "<=", ">=", "<>", "!=", "//", "||"].iter().any(|s| two(s)) => {
            (TokenKind::Sign, 2, true)
        }
        c => (TokenKind::Sign, c.len_utf8(), true),
    }
}

/// Bytes up to the closing quote; a doubled quote is a quote.
fn quoted(rest: &str, quote: char) -> (usize, bool) {
    let mut chars = rest.char_indices().skip(1).peekable();
    while let Some((i, c)) = chars.next() {
        if c == quote {
            match chars.peek() {
                Some((_, next)) if *next == quote => {
                    chars.next();
                }
                _ => return (i + 1, true),
            }
        }
    }
    (rest.len(), false)
}

/// Bytes of a number: digits, `_`, one point that no second one follows, an exponent.
fn number(rest: &str) -> usize {
    let bytes = rest.as_bytes();
    let mut i = 0;
    while i < bytes.len() {
        let sign_after_e = matches!(bytes[i], b'+' | b'-')
            && matches!(bytes[i - 1], b'e' | b'E')
            && bytes.get(i + 1).is_some_and(u8::is_ascii_digit);
        if !(bytes[i].is_ascii_alphanumeric() || matches!(bytes[i], b'_' | b'.') || sign_after_e) {
            break;
        }
        i += 1;
    }
    i
}

/// Indexes of closing brackets without a partner. A bracket that is still open at the end is not included: it may be
/// closed yet.
pub fn unmatched(tokens: &[Token<'_>]) -> Vec<usize> {
    let mut open: Vec<&str> = Vec::new();
    let mut out = Vec::new();
    for (i, t) in tokens.iter().enumerate() {
        match t.kind {
            TokenKind::Open => open.push(t.text),
            TokenKind::Close => {
                let partner = match t.text {
                    ")" => "(",
                    "]" => "[",
                    _ => "{",
                };
                match open.last() {
                    Some(last) if *last == partner => {
                        open.pop();
                    }
                    _ => out.push(i),
                }
            }
            TokenKind::Semicolon => open.clear(),
            _ => {}
        }
    }
    out
}

/// Token indexes of the bracket at byte `at` and of its partner.
pub fn pair(tokens: &[Token<'_>], at: usize) -> Option<(usize, usize)> {
    let here = tokens
        .iter()
        .position(|t| t.start == at && matches!(t.kind, TokenKind::Open | TokenKind::Close))?;
    let mut depth = 0i64;
    let mut step = |i: usize| {
        match tokens[i].kind {
            TokenKind::Open => depth += 1,
            TokenKind::Close => depth -= 1,
            _ => {}
        }
        depth == 0
    };
    let found = if tokens[here].kind == TokenKind::Open {
        (here..tokens.len()).find(|i| step(*i))
    } else {
        (0..=here).rev().find(|i| step(*i))
    };
    found.map(|other| (here, other))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shown(text: &str) -> String {
        let all = tokens(text);
        assert_eq!(all.iter().map(|t| t.text).collect::<String>(), text);
        all.iter()
            .filter(|t| t.kind != TokenKind::Space)
            .map(|t| format!("{:?}:{}{} ", t.kind, t.text, if t.closed { "" } else { "…" }))
            .collect()
    }

    #[test]
    fn tokens_of_half_a_statement() {
        insta::assert_snapshot!(
            shown("SELECT mean(t2m, axis => 'ti"),
            @"Word:SELECT Word:mean Open:( Word:t2m Sign:, Word:axis Sign:=> Text:'ti…"
        );
        insta::assert_snapshot!(
            shown("1.5e-3+x[::2] -- c\n\"a\"\"b\" 'it''s' /* open"),
            @r#"Number:1.5e-3 Sign:+ Word:x Open:[ Sign::: Number:2 Close:] Comment:-- c Quoted:"a""b" Text:'it''s' Comment:/* open…"#
        );
        insta::assert_snapshot!(shown("温度 é'ü"), @"Word:温度 Word:é Text:'ü…");
    }

    #[test]
    fn brackets_find_each_other() {
        let all = tokens("f(a[1)]; )(");
        assert_eq!(unmatched(&all).iter().map(|i| all[*i].start).collect::<Vec<_>>(), [5, 9]);
        let all = tokens("f(a[1], (2))");
        let ends = pair(&all, 1).map(|(a, b)| (all[a].start, all[b].start));
        assert_eq!(ends, Some((1, 11)));
        let ends = pair(&all, 5).map(|(a, b)| (all[a].start, all[b].start));
        assert_eq!(ends, Some((5, 3)));
        assert_eq!(pair(&all, 0), None);
    }
}
