//! `base[axis, …]`: the axis list after an expression.

use sqlparser::ast::{ArrayElemTypeDef, CastKind, DataType, Expr, FunctionArg, Ident};
use sqlparser::parser::{Parser, ParserError};
use sqlparser::tokenizer::{Span, Token};

use crate::ast::marker;
use crate::tokens::is_word;

/// Parses the brackets after `base`, and the fields after them as in `svd(a).u[:, 0].T`. The brackets of `x::text[]`
/// belong to the type.
pub(super) fn parse(parser: &mut Parser, mut base: Expr) -> Result<Expr, ParserError> {
    let open = parser.expect_token(&Token::LBracket)?.span;
    if let Expr::Cast { kind: CastKind::DoubleColon, data_type, .. } = &mut base
        && parser.consume_token(&Token::RBracket)
    {
        make_list(data_type);
        return Ok(base);
    }
    let mut args = vec![marker::positional(base)];
    loop {
        args.push(axis(parser)?);
        if !parser.consume_token(&Token::Comma) {
            break;
        }
    }
    if parser.peek_token_ref().token != Token::RBracket {
        return parser.expected_ref("`:`, `,` or `]`", parser.peek_token_ref());
    }
    let close = parser.next_token().span;
    let indexed = marker::call(marker::name(marker::INDEX, open.union(&close)), args);
    // sqlparser parses fields after prefixes only.
    if parser.peek_token_ref().token == Token::Period {
        return parser.parse_compound_expr(indexed, vec![]);
    }
    Ok(indexed)
}

/// Makes a list of a type: `text[]` of `text`.
pub(super) fn make_list(of: &mut DataType) {
    let element = Box::new(std::mem::replace(of, DataType::Unspecified));
    *of = DataType::Array(ArrayElemTypeDef::SquareBracket(element, None));
}

/// `expr`, `lo:hi:step`, `...`, `NEWAXIS`, `dim => expr` or `dim => lo:hi`.
fn axis(parser: &mut Parser) -> Result<FunctionArg, ParserError> {
    if let Some(dim) = dimension(parser) {
        let found = parser.peek_token_ref();
        if found.token == Token::Period || is_newaxis(parser) {
            return parser.expected_ref("a label or a slice of labels", found);
        }
        return Ok(marker::named(dim, position(parser)?));
    }
    if is_newaxis(parser) {
        let span = parser.next_token().span;
        return Ok(marker::positional(marker::call(marker::name(marker::NEWAXIS, span), vec![])));
    }
    if parser.peek_token_ref().token == Token::Period {
        let first = parser.next_token().span;
        parser.expect_token(&Token::Period)?;
        let last = parser.expect_token(&Token::Period)?.span;
        let name = marker::name(marker::ELLIPSIS, first.union(&last));
        return Ok(marker::positional(marker::call(name, vec![])));
    }
    Ok(marker::positional(position(parser)?))
}

/// Consumes `dim =>` if it comes next.
fn dimension(parser: &mut Parser) -> Option<Ident> {
    let first = parser.peek_token_ref();
    let Token::Word(word) = &first.token else { return None };
    let dim = word.to_ident(first.span);
    if parser.peek_nth_token_ref(1).token != Token::RArrow {
        return None;
    }
    parser.advance_token();
    parser.advance_token();
    Some(dim)
}

fn is_newaxis(parser: &Parser) -> bool {
    is_word(&parser.peek_token_ref().token, "NEWAXIS")
        && matches!(parser.peek_nth_token_ref(1).token, Token::Comma | Token::RBracket)
}

/// An expression, or a slice: up to three expressions, each optional, between colons.
fn position(parser: &mut Parser) -> Result<Expr, ParserError> {
    let mut parts: [Option<Expr>; 3] = [None, None, None];
    let mut colons = 0;
    let start = parser.peek_token_ref().span;
    let mut end = start;
    loop {
        let found = parser.peek_token_ref();
        match found.token {
            Token::Colon if colons < 2 => {
                end = found.span;
                parser.advance_token();
                colons += 1;
            }
            Token::Colon => return parser.expected_ref("`,` or `]`", found),
            Token::Comma | Token::RBracket if colons > 0 => break,
            Token::Comma | Token::RBracket => {
                return parser.expected_ref("a subscript", found);
            }
            _ if parts[colons].is_some() => {
                let wanted = if colons < 2 { "`:`, `,` or `]`" } else { "`,` or `]`" };
                return parser.expected_ref(wanted, found);
            }
            _ => {
                parts[colons] = Some(parser.parse_expr()?);
                end = parser.get_current_token().span;
                if colons == 0 && parser.peek_token_ref().token != Token::Colon {
                    break;
                }
            }
        }
    }
    match (colons, parts) {
        (0, [Some(index), _, _]) => Ok(index),
        (_, parts) => Ok(slice(parts, start.union(&end))),
    }
}

fn slice(parts: [Option<Expr>; 3], span: Span) -> Expr {
    let args = parts.into_iter().map(|part| marker::positional(part.unwrap_or_else(marker::null)));
    marker::call(marker::name(marker::SLICE, span), args.collect())
}
