//! Splits a script into statements and tokens.

use std::ops::Range;

use sqlparser::keywords::Keyword;
use sqlparser::tokenizer::{Location, Span, Token, TokenWithSpan, Tokenizer, Whitespace, Word};

use crate::dialect::TesseraDialect;
use crate::error::{Error, Position};
use crate::rearranged::rearranged;
use crate::{asof, exclude, patterns, structs};

/// The tokens of one statement in SQL's order, without white space, comments and the final semicolon.
#[derive(Debug)]
pub(crate) struct Piece {
    pub(crate) tokens: Vec<TokenWithSpan>,
    /// Bytes of the script from the first token to the end of the last.
    pub(crate) bytes: Range<usize>,
    /// From the first token of the script to the last.
    span: Span,
    /// True if a semicolon follows.
    pub(crate) terminated: bool,
}

impl Piece {
    pub(crate) fn span(&self) -> Span {
        self.span
    }

    /// The position just after the last token.
    pub(crate) fn end(&self) -> Position {
        let end = self.span().end;
        Position { line: end.line, column: end.column, length: 1 }
    }
}

/// Splits a script at its semicolons and drops pieces without a token.
///
/// # Errors
/// [`Error::Token`] for a string, quoted name or comment without an end, or a malformed escape.
pub(crate) fn split(script: &str) -> Result<Vec<Piece>, Error> {
    let mut pieces = Vec::new();
    let mut tokens = Vec::new();
    let mut offsets = Offsets::new(script);
    for token in tokenize(script)? {
        match token.token {
            Token::Whitespace(_) | Token::EOF => {}
            Token::SemiColon => {
                pieces.extend(piece(std::mem::take(&mut tokens), true, &mut offsets));
            }
            _ => tokens.push(token),
        }
    }
    pieces.extend(piece(tokens, false, &mut offsets));
    Ok(pieces)
}

/// All tokens of a script with their spans and byte ranges.
pub(crate) fn placed(script: &str) -> Result<Vec<(Token, Span, Range<usize>)>, Error> {
    let mut offsets = Offsets::new(script);
    Ok(tokenize(script)?
        .into_iter()
        .filter(|t| !matches!(t.token, Token::Whitespace(_) | Token::EOF))
        .map(|t| {
            let bytes = offsets.of(t.span.start)..offsets.of(t.span.end);
            (t.token, t.span, bytes)
        })
        .collect())
}

/// The text of a span.
pub(crate) fn slice(script: &str, span: Span) -> &str {
    let mut offsets = Offsets::new(script);
    let start = offsets.of(span.start);
    &script[start..offsets.of(span.end)]
}

fn piece(
    mut tokens: Vec<TokenWithSpan>,
    terminated: bool,
    offsets: &mut Offsets<'_>,
) -> Option<Piece> {
    let (start, end) = (tokens.first()?.span.start, tokens.last()?.span.end);
    let bytes = offsets.of(start)..offsets.of(end);
    split_double_colons(&mut tokens);
    patterns::mark(&mut tokens);
    let mut tokens = rearranged(tokens);
    name_all(&mut tokens);
    name_lists(&mut tokens);
    asof::mark(&mut tokens);
    exclude::mark(&mut tokens);
    structs::mark(&mut tokens);
    Some(Piece { tokens, bytes, span: Span::new(start, end), terminated })
}

fn tokenize(script: &str) -> Result<Vec<TokenWithSpan>, Error> {
    let dialect = TesseraDialect::new();
    let mut tokens = Vec::new();
    let result = Tokenizer::new(&dialect, script).tokenize_with_location_into_buf(&mut tokens);
    if let Err(error) = result {
        return Err(Error::Token {
            message: lower_first(&error.message),
            position: Some(place(error.location)),
        });
    }
    // Some editors write a byte order mark before the first statement.
    if let Some(first) = tokens.first_mut()
        && first.token == Token::Char('\u{feff}')
    {
        first.token = Token::Whitespace(Whitespace::Space);
    }
    Ok(tokens)
}

fn place(location: Location) -> Position {
    Position { line: location.line.max(1), column: location.column.max(1), length: 1 }
}

fn lower_first(message: &str) -> String {
    let mut chars = message.chars();
    chars.next().map(|first| first.to_lowercase().chain(chars).collect()).unwrap_or_default()
}

/// Inside brackets `::` is two slice colons unless the name of a type follows, as in
/// `a[::2]`, `a[lo::n]` and `a[x::int]`.
///
/// Parentheses inside the brackets end the rule: in `a[(x::t)]` it is a cast.
fn split_double_colons(tokens: &mut Vec<TokenWithSpan>) {
    if !tokens.iter().any(|t| t.token == Token::DoubleColon) {
        return;
    }
    let mut open = Vec::new();
    let mut out = Vec::with_capacity(tokens.len() + 8);
    for (at, token) in tokens.iter().enumerate() {
        match &token.token {
            Token::LParen | Token::LBracket | Token::LBrace => open.push(token.token.clone()),
            Token::RParen | Token::RBracket | Token::RBrace => {
                open.pop();
            }
            Token::DoubleColon
                if open.last() == Some(&Token::LBracket)
                    && !tokens.get(at + 1).is_some_and(|next| names_type(&next.token)) =>
            {
                let Span { start, end } = token.span;
                let middle = Location::new(start.line, start.column + 1);
                out.push(TokenWithSpan::new(Token::Colon, Span::new(start, middle)));
                out.push(TokenWithSpan::new(Token::Colon, Span::new(middle, end)));
                continue;
            }
            _ => {}
        }
        out.push(token.clone());
    }
    *tokens = out;
}

/// Marks the word of `SELECT all(x)` as the function; SQL allows a quantifier there, which is never used.
fn name_all(tokens: &mut [TokenWithSpan]) {
    for at in 1..tokens.len().saturating_sub(1) {
        let is_call = is_keyword(&tokens[at - 1].token, Keyword::SELECT)
            && tokens[at + 1].token == Token::LParen;
        if let Token::Word(word) = &mut tokens[at].token
            && is_call
            && word.keyword == Keyword::ALL
        {
            word.keyword = Keyword::NoKeyword;
        }
    }
}

/// The function that reads a list of files.
pub(crate) const READ_FILES: &str = "read_files";

/// `FROM ['a.nc', 'b.nc']` is `FROM read_files(['a.nc', 'b.nc'])`.
fn name_lists(tokens: &mut Vec<TokenWithSpan>) {
    let mut at = 1;
    while at + 1 < tokens.len() {
        let before = &tokens[at - 1].token;
        let is_from = is_keyword(before, Keyword::FROM) || is_keyword(before, Keyword::JOIN);
        let is_list = tokens[at].token == Token::LBracket
            && matches!(tokens[at + 1].token, Token::SingleQuotedString(_));
        let end = (is_from && is_list)
            .then(|| tokens[at..].iter().position(|t| t.token == Token::RBracket))
            .flatten();
        if let Some(end) = end.map(|n| at + n) {
            let (open, close) = (tokens[at].span, tokens[end].span);
            tokens.insert(end + 1, TokenWithSpan::new(Token::RParen, close));
            tokens.insert(at, TokenWithSpan::new(Token::LParen, open));
            let name = Token::make_word(READ_FILES, None);
            tokens.insert(at, TokenWithSpan::new(name, open));
            at = end + 3;
        }
        at += 1;
    }
}

/// True if a token is the unquoted first word of a SQL type or a dtype.
fn names_type(token: &Token) -> bool {
    const TYPES: [&str; 62] = [
        "array",
        "bigint",
        "binary",
        "blob",
        "bool",
        "boolean",
        "bytea",
        "char",
        "character",
        "date",
        "datetime",
        "dec",
        "decimal",
        "double",
        "f16",
        "f32",
        "f64",
        "float",
        "float16",
        "float32",
        "float4",
        "float64",
        "float8",
        "i16",
        "i32",
        "i64",
        "i8",
        "int",
        "int16",
        "int2",
        "int32",
        "int4",
        "int64",
        "int8",
        "integer",
        "interval",
        "json",
        "map",
        "nchar",
        "numeric",
        "nvarchar",
        "real",
        "smallint",
        "string",
        "struct",
        "text",
        "time",
        "timestamp",
        "timestamptz",
        "tinyint",
        "u16",
        "u32",
        "u64",
        "u8",
        "uint16",
        "uint32",
        "uint64",
        "uint8",
        "unsigned",
        "uuid",
        "varbinary",
        "varchar",
    ];
    matches!(token, Token::Word(Word { value, quote_style: None, .. })
        if TYPES.binary_search(&value.to_lowercase().as_str()).is_ok())
}

/// True if a token is this unquoted keyword.
pub(crate) fn is_keyword(token: &Token, keyword: Keyword) -> bool {
    matches!(token, Token::Word(word) if word.quote_style.is_none() && word.keyword == keyword)
}

/// True if a token is this unquoted word, ignoring case; for words that sqlparser has no keyword for.
pub(crate) fn is_word(token: &Token, text: &str) -> bool {
    matches!(token, Token::Word(word) if word.quote_style.is_none()
        && word.value.eq_ignore_ascii_case(text))
}

/// Byte offsets of ascending locations, computed in one pass over the script.
struct Offsets<'a> {
    script: &'a str,
    offset: usize,
    line: u64,
    column: u64,
}

impl<'a> Offsets<'a> {
    fn new(script: &'a str) -> Self {
        Self { script, offset: 0, line: 1, column: 1 }
    }

    fn of(&mut self, location: Location) -> usize {
        for c in self.script[self.offset..].chars() {
            if (self.line, self.column) >= (location.line, location.column) {
                break;
            }
            self.offset += c.len_utf8();
            if c == '\n' {
                (self.line, self.column) = (self.line + 1, 1);
            } else {
                self.column += 1;
            }
        }
        self.offset
    }
}

#[cfg(test)]
#[path = "tokens/tests.rs"]
pub(crate) mod tests;
