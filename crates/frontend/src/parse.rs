//! Splits a script into statements and parses them.

use std::ops::{ControlFlow, Range};

use crate::walk::walk_mut;
use sqlparser::ast::{ObjectName, ObjectNamePart, Query, VisitorMut};
use sqlparser::keywords::Keyword;
use sqlparser::parser::{Parser, ParserError};
use sqlparser::tokenizer::{Span, Token, TokenWithSpan};

use crate::dialect::TesseraDialect;
use crate::error::{Error, Position, from_parser};
use crate::statement::{self, Statement};
use crate::tokens::{self, Piece, is_keyword};
use crate::{check, clauses, limits, refused};

/// Recursion limit: sqlparser counts several calls for one level of a tree.
const RECURSION_MAX: usize = 16 * limits::DEPTH_MAX;

/// One statement of a script.
#[derive(Debug, Clone, PartialEq)]
pub struct Parsed {
    /// The statement.
    pub statement: Statement,
    /// Its text, without the semicolon.
    pub text: String,
    /// The byte range of the text in the script.
    pub bytes: Range<usize>,
    /// Its span; the spans inside `statement` count from the start of the script as well.
    pub span: Span,
}

/// Parses a script of statements separated by semicolons. An empty script yields no statements.
///
/// # Errors
/// The first fault of the script: [`Error::Syntax`], [`Error::Token`], [`Error::Unsupported`],
/// [`Error::TooComplex`] (of one statement) or [`Error::NestingTooDeep`]. A script with a fault yields no statements,
/// so a script runs from its start or not at all.
pub fn parse(script: &str) -> Result<Vec<Parsed>, Error> {
    parse_at_most(script, usize::MAX)
}

/// As [`parse()`], with at most `limit` statements: all are parsed before the first runs.
///
/// # Errors
/// The errors of [`parse()`]; [`Error::TooComplex`] for more statements.
pub fn parse_at_most(script: &str, limit: usize) -> Result<Vec<Parsed>, Error> {
    let pieces = tokens::split(script)?;
    if let Some(beyond) = pieces.get(limit) {
        return Err(Error::TooComplex {
            what: format!("the script has {} statements", pieces.len()),
            limit,
            position: Position::of_span(beyond.span()),
        });
    }
    pieces
        .iter()
        .map(|piece| {
            let mut statement = parse_piece(piece)?;
            let of = |span| tokens::slice(script, span).to_string();
            match &mut statement {
                Statement::CreateView(create) => create.query_text = of(create.query_span),
                Statement::Insert(insert) => insert.query_text = of(insert.query_span),
                _ => {}
            }
            let text = script[piece.bytes.clone()].to_string();
            Ok(Parsed { statement, text, bytes: piece.bytes.clone(), span: piece.span() })
        })
        .collect()
}

/// The query that a text is; `None` for other statements.
///
/// # Errors
/// The errors of [`parse()`].
pub fn query_of(text: &str) -> Result<Option<Box<Query>>, Error> {
    let statement = parse(text)?.into_iter().next().map(|parsed| parsed.statement);
    Ok(match statement {
        Some(Statement::Query(query)) => Some(query),
        _ => None,
    })
}

/// True if a prompt may run this input: every statement ends in a semicolon and nothing is open.
///
/// Input that can never become valid (a stray `)`, a malformed escape) is complete, so that the
/// prompt shows the error instead of waiting. Input without a statement is complete.
pub fn is_complete(input: &str) -> bool {
    match tokens::split(input) {
        Err(Error::Token { message, .. }) => {
            const OPEN: [&str; 3] = ["unterminated", "unexpected eof", "expected close delimiter"];
            let message = message.to_lowercase();
            !OPEN.iter().any(|open| message.contains(open))
        }
        Err(_) => true,
        Ok(pieces) => pieces.iter().all(|piece| piece.terminated && !is_open(piece)),
    }
}

/// True if a bracket is open at the end.
fn is_open(piece: &Piece) -> bool {
    let mut depth = 0_usize;
    for token in &piece.tokens {
        match token.token {
            Token::LParen | Token::LBracket | Token::LBrace => depth += 1,
            Token::RParen | Token::RBracket | Token::RBrace => match depth.checked_sub(1) {
                Some(rest) => depth = rest,
                None => return false,
            },
            _ => {}
        }
    }
    depth > 0
}

fn parse_piece(piece: &Piece) -> Result<Statement, Error> {
    limits::check(&piece.tokens)?;
    refused::check(&piece.tokens)?;
    limits::with_stack(|| {
        let dialect = TesseraDialect::for_tokens(piece.tokens.len());
        let mut statement = statement::read(parser(&dialect, piece, 0), piece)
            .map_err(|error| deepest(error, piece))?;
        place_urls(&mut statement, piece);
        clauses::rewrite(&mut statement)?;
        check::statement(&statement)?;
        Ok(statement)
    })
}

fn parser<'a>(dialect: &'a TesseraDialect, piece: &Piece, from: usize) -> Parser<'a> {
    Parser::new(dialect)
        .with_recursion_limit(RECURSION_MAX)
        .with_tokens_with_locations(piece.tokens[from..].to_vec())
}

/// Finds the fault inside a subquery of `FROM`.
///
/// sqlparser tries a subquery first and a join in parentheses next, and reports only that
/// the latter failed at its first word. Parsing each subquery by itself finds the real fault: the
/// one furthest into the statement.
fn deepest(outer: Error, piece: &Piece) -> Error {
    let Error::Syntax { position: Some(reported), .. } = &outer else { return outer };
    let mut best = (reported.line, reported.column);
    let mut found = outer;
    for (at, pair) in piece.tokens.windows(2).enumerate() {
        if pair[0].token != Token::LParen || !begins_query(&pair[1].token) {
            continue;
        }
        let dialect = TesseraDialect::for_tokens(piece.tokens.len());
        let mut parser = parser(&dialect, piece, at + 1);
        let result = parser
            .parse_query()
            .and_then(|_| parser.expect_token(&Token::RParen))
            .map_err(|error| match error {
                ParserError::RecursionLimitExceeded => None,
                error => Some(from_parser(error, &piece.tokens, piece.end())),
            });
        if let Err(Some(inner)) = result
            && let Some(place) = inner.position()
            && (place.line, place.column) > best
        {
            best = (place.line, place.column);
            found = inner;
        }
    }
    found
}

/// Sets the spans of the strings of `FROM 'url'`, which sqlparser drops.
fn place_urls(statement: &mut Statement, piece: &Piece) {
    // An equal string may occur in the select list; the match must be where a relation may follow.
    let before = |token: &Token| {
        matches!(token, Token::Comma | Token::LParen)
            || is_keyword(token, Keyword::FROM)
            || is_keyword(token, Keyword::JOIN)
    };
    let strings: Vec<&TokenWithSpan> = piece
        .tokens
        .windows(2)
        .filter(|pair| matches!(pair[1].token, Token::SingleQuotedString(_)))
        .filter(|pair| before(&pair[0].token))
        .map(|pair| &pair[1])
        .collect();
    if let Some(query) = statement.query_mut().filter(|_| !strings.is_empty()) {
        let _: ControlFlow<()> = walk_mut(query, &mut Spans { strings });
    }
}

/// Assigns spans to relations that are written as strings.
struct Spans<'a> {
    strings: Vec<&'a TokenWithSpan>,
}

impl VisitorMut for Spans<'_> {
    type Break = ();

    fn post_visit_relation(&mut self, name: &mut ObjectName) -> ControlFlow<()> {
        for part in &mut name.0 {
            if let ObjectNamePart::Identifier(ident) = part
                && ident.quote_style == Some('\'')
                && let Some(at) = self.strings.iter().position(|token| {
                    matches!(&token.token, Token::SingleQuotedString(s) if *s == ident.value)
                })
            {
                ident.span = self.strings.remove(at).span;
            }
        }
        ControlFlow::Continue(())
    }
}

fn begins_query(token: &Token) -> bool {
    [Keyword::SELECT, Keyword::WITH, Keyword::VALUES]
        .iter()
        .any(|keyword| is_keyword(token, *keyword))
}
