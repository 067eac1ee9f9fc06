//! Parsing of expression prefixes.
//!
//! sqlparser first tries a word as a special form and then, if that fails anywhere inside, as a
//! plain function. An error under `CASE (CASE (CASE (…` is thus found twice at each level, and its
//! message is that of the last attempt. Here the word and the next token decide once.

use sqlparser::ast::{
    Array, CastKind, DateTimeField, Expr, Ident, Interval, LambdaFunction, LambdaFunctionParameter,
    LambdaSyntax, ObjectName, OneOrManyWithParens,
};
use sqlparser::dialect::{Dialect, Precedence};
use sqlparser::keywords::Keyword;
use sqlparser::parser::{Parser, ParserError};
use sqlparser::tokenizer::Token;

use super::TesseraDialect;
use super::subscript::make_list;
use crate::ast::{self, marker};

/// Parses lists, and expressions that begin with an unquoted word and need a decision; `None` leaves
/// the expression to sqlparser.
pub(super) fn parse(parser: &mut Parser) -> Option<Result<Expr, ParserError>> {
    let first = parser.peek_token_ref();
    if first.token == Token::LBracket {
        return Some(list(parser));
    }
    let Token::Word(word) = &first.token else { return None };
    let name = word.to_ident(first.span);
    let keyword = if word.quote_style.is_none() { word.keyword } else { Keyword::NoKeyword };
    let next = &parser.peek_nth_token_ref(1).token;
    let is_call = *next == Token::LParen;
    match keyword {
        Keyword::CASE => Some(after(parser, |p| p.parse_case_expr())),
        Keyword::NOT => Some(after(parser, |p| p.parse_not())),
        Keyword::ARRAY if *next == Token::LBracket => Some(after(parser, |parser| {
            parser.expect_token(&Token::LBracket)?;
            parser.parse_array_expr(true)
        })),
        Keyword::INTERVAL if matches!(next, Token::SingleQuotedString(_) | Token::Number(..)) => {
            Some(after(parser, interval))
        }
        Keyword::GROUPING if is_word(next, Keyword::SETS) && is_third(parser, &Token::LParen) => {
            Some(after(parser, |parser| {
                parser.advance_token();
                sets(parser).map(Expr::GroupingSets)
            }))
        }
        _ if !is_call && is_reserved(keyword) => {
            let found = parser.peek_token();
            Some(parser.expected("an expression", found))
        }
        // A word before a string may be a typed literal such as DATE '2020-01-01'.
        _ if !is_call => None,
        Keyword::CAST => Some(after(parser, |p| cast(p, CastKind::Cast))),
        Keyword::TRY_CAST => Some(after(parser, |p| cast(p, CastKind::TryCast))),
        Keyword::CUBE => Some(after(parser, |p| sets(p).map(Expr::Cube))),
        Keyword::ROLLUP => Some(after(parser, |p| sets(p).map(Expr::Rollup))),
        Keyword::EXISTS => Some(after(parser, |p| p.parse_exists_expr(false))),
        Keyword::EXTRACT => Some(after(parser, |p| p.parse_extract_expr())),
        Keyword::OVERLAY => Some(after(parser, |p| p.parse_overlay_expr())),
        Keyword::TRIM => Some(after(parser, |p| p.parse_trim_expr())),
        Keyword::SUBSTR | Keyword::SUBSTRING => Some(parser.parse_substring()),
        Keyword::POSITION => Some(after(parser, position)),
        Keyword::INTERVAL => Some(after(parser, |parser| computed(parser, name))),
        _ => Some(after(parser, |parser| call(parser, name))),
    }
}

/// Units of intervals that sqlparser does not know.
const UNITS: [&str; 4] = ["QUARTERS", "DECADES", "CENTURIES", "MILLENNIA"];

/// Parses the interval behind `INTERVAL`: `'1 day'`, `3 QUARTERS`.
fn interval(parser: &mut Parser) -> Result<Expr, ParserError> {
    let mut expr = parser.parse_interval()?;
    if let Expr::Interval(interval) = &mut expr
        && interval.leading_field.is_none()
    {
        interval.leading_field = unit(parser)?;
    }
    Ok(expr)
}

/// `INTERVAL (n) DAY`; without a unit it is an ordinary call.
fn computed(parser: &mut Parser, name: Ident) -> Result<Expr, ParserError> {
    let expr = call(parser, name)?;
    let value = match ast::call(&expr) {
        Some(call) if call.named.is_empty() => match call.positional.as_slice() {
            [value] => Some(Expr::clone(value)),
            _ => None,
        },
        _ => None,
    };
    let Some(value) = value else { return Ok(expr) };
    let Some(unit) = unit(parser)? else { return Ok(expr) };
    Ok(Expr::Interval(Interval {
        value: Box::new(Expr::Nested(Box::new(value))),
        leading_field: Some(unit),
        leading_precision: None,
        last_field: None,
        fractional_seconds_precision: None,
    }))
}

/// The unit of an interval, if one follows.
fn unit(parser: &mut Parser) -> Result<Option<DateTimeField>, ParserError> {
    if parser.next_token_is_temporal_unit() {
        return parser.parse_date_time_field().map(Some);
    }
    let is_known = match &parser.peek_token_ref().token {
        Token::Word(word) => {
            word.quote_style.is_none() && UNITS.iter().any(|u| u.eq_ignore_ascii_case(&word.value))
        }
        _ => false,
    };
    match is_known {
        true => parser.parse_identifier().map(|unit| Some(DateTimeField::Custom(unit))),
        false => Ok(None),
    }
}

fn is_word(token: &Token, keyword: Keyword) -> bool {
    matches!(token, Token::Word(word) if word.quote_style.is_none() && word.keyword == keyword)
}

fn is_third(parser: &Parser, token: &Token) -> bool {
    parser.peek_nth_token_ref(2).token == *token
}

/// Skips the word and parses what follows it.
fn after(
    parser: &mut Parser,
    read: impl FnOnce(&mut Parser) -> Result<Expr, ParserError>,
) -> Result<Expr, ParserError> {
    parser.advance_token();
    read(parser)
}

/// `[1, 2]`, or a list made of the elements of another: `[x + 1 for x in l if x > 2]` is
/// `list_transform(list_filter(l, x -> x > 2), x -> x + 1)`.
fn list(parser: &mut Parser) -> Result<Expr, ParserError> {
    let span = parser.peek_token_ref().span;
    parser.expect_token(&Token::LBracket)?;
    let elem = parser.parse_comma_separated0(|parser| parser.parse_expr(), Token::RBracket)?;
    let each = match <[Expr; 1]>::try_from(elem) {
        Ok([each]) if parser.parse_keyword(Keyword::FOR) => each,
        Ok(one) => return closed(parser, one.into()),
        Err(elem) => return closed(parser, elem),
    };
    let name = parser.parse_identifier()?;
    parser.expect_keyword_is(Keyword::IN)?;
    let mut elements = parser.parse_expr()?;
    let over = |function: &str, list: Expr, body: Expr| {
        let parameter = LambdaFunctionParameter { name: name.clone(), data_type: None };
        let lambda = Expr::Lambda(LambdaFunction {
            params: OneOrManyWithParens::One(parameter),
            body: Box::new(body),
            syntax: LambdaSyntax::Arrow,
        });
        let args = vec![marker::positional(list), marker::positional(lambda)];
        marker::call(Ident::with_span(span, function), args)
    };
    if parser.parse_keyword(Keyword::IF) {
        let condition = parser.parse_expr()?;
        elements = over("list_filter", elements, condition);
    }
    parser.expect_token(&Token::RBracket)?;
    Ok(over("list_transform", elements, each))
}

fn closed(parser: &mut Parser, elem: Vec<Expr>) -> Result<Expr, ParserError> {
    parser.expect_token(&Token::RBracket)?;
    Ok(Expr::Array(Array { elem, named: false }))
}

/// `CAST(x AS type)`. sqlparser reads `text[]` only if a subscript after `x::text` is a size of the type.
fn cast(parser: &mut Parser, kind: CastKind) -> Result<Expr, ParserError> {
    parser.expect_token(&Token::LParen)?;
    let expr = Box::new(parser.parse_expr()?);
    parser.expect_keyword_is(Keyword::AS)?;
    let mut data_type = parser.parse_data_type()?;
    while parser.consume_tokens(&[Token::LBracket, Token::RBracket]) {
        make_list(&mut data_type);
    }
    let array = parser.parse_keyword(Keyword::ARRAY);
    let format = parser.parse_optional_cast_format()?;
    parser.expect_token(&Token::RParen)?;
    Ok(Expr::Cast { kind, expr, data_type, array, format })
}

/// An ordinary call; `floor`, `ceil`, `left`, `where` and all other words are not special forms.
fn call(parser: &mut Parser, name: Ident) -> Result<Expr, ParserError> {
    match begins_with_all(parser) {
        true => call_of_all(parser, name),
        false => parser.parse_function(ObjectName::from(vec![name])),
    }
}

/// True if the first argument is a call of `all`, as in `where(all(x), y, z)`. sqlparser would read the word as the
/// opposite of `DISTINCT`, which it is in `sum(ALL x)`.
fn begins_with_all(parser: &Parser) -> bool {
    let is_all = is_word(&parser.peek_nth_token_ref(1).token, Keyword::ALL);
    is_all && is_third(parser, &Token::LParen)
}

/// The sets of `CUBE`, `ROLLUP` and `GROUPING SETS`: expressions, several of them in parentheses. sqlparser, if it
/// [supports](Dialect::supports_group_by_expr) them, takes the parentheses of `(a)::text` for those of a set.
fn sets(parser: &mut Parser) -> Result<Vec<Vec<Expr>>, ParserError> {
    parser.expect_token(&Token::LParen)?;
    let sets = parser.parse_comma_separated(|parser| {
        if parser.consume_tokens(&[Token::LParen, Token::RParen]) {
            return Ok(Vec::new());
        }
        Ok(match parser.parse_expr()? {
            Expr::Nested(one) => vec![*one],
            Expr::Tuple(several) => several,
            one => vec![one],
        })
    })?;
    parser.expect_token(&Token::RParen)?;
    Ok(sets)
}

fn call_of_all(parser: &mut Parser, name: Ident) -> Result<Expr, ParserError> {
    parser.expect_token(&Token::LParen)?;
    let args = parser.parse_comma_separated(|parser| parser.parse_function_args())?;
    parser.expect_token(&Token::RParen)?;
    Ok(marker::call(name, args))
}

/// `POSITION(part IN whole)`. The precedence keeps `IN` from being read as an operator of `part`.
fn position(parser: &mut Parser) -> Result<Expr, ParserError> {
    let between = TesseraDialect::new().prec_value(Precedence::Between);
    parser.expect_token(&Token::LParen)?;
    let part = parser.parse_subexpr(between)?;
    parser.expect_keyword_is(Keyword::IN)?;
    let whole = parser.parse_expr()?;
    parser.expect_token(&Token::RParen)?;
    Ok(Expr::Position { expr: Box::new(part), r#in: Box::new(whole) })
}

/// Words that begin a clause or join two operands; as names they must be quoted.
///
/// Without this `SELECT a, FROM x` would select a column called `FROM`.
fn is_reserved(keyword: Keyword) -> bool {
    matches!(
        keyword,
        Keyword::SELECT
            | Keyword::FROM
            | Keyword::WHERE
            | Keyword::GROUP
            | Keyword::HAVING
            | Keyword::ORDER
            | Keyword::LIMIT
            | Keyword::UNION
            | Keyword::EXCEPT
            | Keyword::INTERSECT
            | Keyword::JOIN
            | Keyword::ON
            | Keyword::USING
            | Keyword::AS
            | Keyword::AND
            | Keyword::OR
            | Keyword::IN
            | Keyword::IS
            | Keyword::LIKE
            | Keyword::BETWEEN
            | Keyword::WHEN
            | Keyword::THEN
            | Keyword::ELSE
    )
}
