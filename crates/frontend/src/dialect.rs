//! The sqlparser dialect: generic SQL plus tensor syntax.
//!
//! sqlparser's `Expr` is closed, so tensor syntax is represented by function calls:
//!
//! | text | expression |
//! |---|---|
//! | `a[0, lo:hi:step, ..., NEWAXIS, lat => 1:2]` | a marker call that [`crate::ast::subscript`] reads |
//! | `a @ b` | `matmul(a, b)` |
//! | `a ^ b`, `a ** b` | `power(a, b)`, which DataFusion knows too |
//! | `a // b` | `BinaryOperator::DuckIntegerDivide` |
//! | `s ^@ 'a'` | `BinaryOperator::PGStartsWith` |
//! | `[x + 1 for x in l if x > 2]` | `list_transform(list_filter(l, x -> x > 2), x -> x + 1)` |
//!
//! | operators, tightest first | |
//! |---|---|
//! | `.` | field |
//! | `[ ]`, `::` | left |
//! | `^` | right |
//! | `AT TIME ZONE` | left |
//! | unary `-` and `+`, `*` `/` `//` `%` `@` `^@` | left |
//! | binary `+` and `-` | left |
//! | as in PostgreSQL | |

mod prefix;
mod subscript;

use std::any::TypeId;
use std::cell::Cell;

use sqlparser::ast::{BinaryOperator, Expr, Ident};
use sqlparser::dialect::{Dialect, GenericDialect, Precedence};
use sqlparser::keywords::Keyword;
use sqlparser::parser::{Parser, ParserError};
use sqlparser::tokenizer::Token;

use crate::ast::marker;

/// Expression prefixes that sqlparser may try per token before it is considered to be
/// backtracking without end. Ordinary statements need between one and three.
const PREFIXES_PER_TOKEN: usize = 64;

/// Between `::` and the multiplicative operators, and above `AT TIME ZONE`.
const POWER: u8 = 45;

/// The dialect of one parser. It counts that parser's work, so it serves one statement only.
#[derive(Debug)]
pub struct TesseraDialect {
    /// Remaining prefixes that may be tried.
    fuel: Cell<usize>,
}

impl TesseraDialect {
    /// The dialect without a bound on backtracking, for tokenizing and for trusted texts.
    pub fn new() -> Self {
        Self { fuel: Cell::new(usize::MAX) }
    }

    /// The dialect for a statement of `count` tokens.
    pub(crate) fn for_tokens(count: usize) -> Self {
        Self { fuel: Cell::new(count.saturating_add(64).saturating_mul(PREFIXES_PER_TOKEN)) }
    }
}

impl Default for TesseraDialect {
    fn default() -> Self {
        Self::new()
    }
}

/// Flags of `Dialect` that are on; all others keep their default, which is off.
///
/// Trailing commas stay off: with them `SELECT a, where(c, x, NULL)` would end at the comma.
macro_rules! on {
    ($($flag:ident)*) => { $(fn $flag(&self) -> bool { true })* };
}

impl Dialect for TesseraDialect {
    /// sqlparser checks this type where it has no flag, as for `//`, `E'…'` and `UNNEST`.
    fn dialect(&self) -> TypeId {
        TypeId::of::<GenericDialect>()
    }

    fn is_identifier_start(&self, c: char) -> bool {
        c.is_alphabetic() || c == '_'
    }

    /// `@` is not part of a name; otherwise `a@b` would be one.
    fn is_identifier_part(&self, c: char) -> bool {
        c.is_alphanumeric() || c == '_' || c == '$'
    }

    on! {
        // Leaves `[` after an expression to `parse_infix`.
        supports_partiql
        allow_extract_custom
        allow_extract_single_quotes
        supports_bitwise_shift_operators
        // `trim(s, 'a')`.
        supports_comma_separated_trim
        supports_dictionary_syntax
        supports_filter_during_aggregation
        supports_group_by_with_modifier
        supports_lambda_functions
        support_map_literal_syntax
        supports_left_associative_joins_without_parens
        // `struct_pack(a := 1)`.
        supports_named_fn_args_with_assignment_operator
        supports_nested_comments
        supports_numeric_literal_underscores
        supports_order_by_all
        supports_parens_around_table_factor
        supports_select_wildcard_except
        supports_select_wildcard_exclude
        supports_select_wildcard_replace
        supports_select_wildcard_rename
        supports_string_escape_constant
        // `x::struct(a int)`, whose parentheses `crate::structs` replaces.
        supports_struct_literal
        // `tensor(SELECT …)`.
        supports_subquery_as_function_arg
        supports_unicode_string_literal
        supports_window_clause_named_window_reference
        supports_window_function_null_treatment_arg
    }

    fn parse_prefix(&self, parser: &mut Parser) -> Option<Result<Expr, ParserError>> {
        match self.fuel.get().checked_sub(1) {
            // The only error that sqlparser's own attempts do not swallow.
            None => return Some(Err(ParserError::RecursionLimitExceeded)),
            Some(left) => self.fuel.set(left),
        }
        prefix::parse(parser)
    }

    fn get_next_precedence(&self, parser: &Parser) -> Option<Result<u8, ParserError>> {
        match &parser.peek_token_ref().token {
            // `^@` has the precedence of `||`.
            Token::AtSign | Token::CaretAt => Some(Ok(self.prec_value(Precedence::MulDivModOp))),
            Token::Caret => Some(Ok(POWER)),
            // `:` ends a bound of a slice and a key of a dictionary; `:=` names an argument.
            Token::Colon | Token::Assignment => Some(Ok(self.prec_unknown())),
            _ => None,
        }
    }

    fn parse_infix(
        &self,
        parser: &mut Parser,
        left: &Expr,
        precedence: u8,
    ) -> Option<Result<Expr, ParserError>> {
        match &parser.peek_token_ref().token {
            Token::LBracket => Some(subscript::parse(parser, left.clone())),
            Token::AtSign => {
                let precedence = self.prec_value(Precedence::MulDivModOp);
                Some(operator(parser, "matmul", left, precedence))
            }
            // One less than its own precedence makes an operator right-associative.
            Token::Caret => Some(operator(parser, "power", left, POWER - 1)),
            Token::Word(word) if word.keyword == Keyword::IS => distinct(parser, left, precedence),
            _ => quantified(parser, left, precedence),
        }
    }
}

/// `a = all(b, axis => 0)`: a function on the right side of an operator. sqlparser would read these words as SQL's
/// quantifiers; `= ALL (SELECT …)` still is one.
fn quantified(
    parser: &mut Parser,
    left: &Expr,
    precedence: u8,
) -> Option<Result<Expr, ParserError>> {
    let op = match &parser.peek_token_ref().token {
        Token::Eq => BinaryOperator::Eq,
        Token::Neq => BinaryOperator::NotEq,
        Token::Lt => BinaryOperator::Lt,
        Token::LtEq => BinaryOperator::LtEq,
        Token::Gt => BinaryOperator::Gt,
        Token::GtEq => BinaryOperator::GtEq,
        Token::Plus => BinaryOperator::Plus,
        Token::Minus => BinaryOperator::Minus,
        Token::Mul => BinaryOperator::Multiply,
        Token::Div => BinaryOperator::Divide,
        Token::DuckIntDiv => BinaryOperator::DuckIntegerDivide,
        Token::Mod => BinaryOperator::Modulo,
        Token::Ampersand => BinaryOperator::BitwiseAnd,
        Token::Pipe => BinaryOperator::BitwiseOr,
        Token::Sharp => BinaryOperator::PGBitwiseXor,
        Token::Word(word) if word.quote_style.is_none() => match word.keyword {
            Keyword::AND => BinaryOperator::And,
            Keyword::OR => BinaryOperator::Or,
            Keyword::XOR => BinaryOperator::Xor,
            _ => return None,
        },
        _ => return None,
    };
    let token = |n: usize| &parser.peek_nth_token_ref(n).token;
    let word = |n: usize| match token(n) {
        Token::Word(word) if word.quote_style.is_none() => word.keyword,
        _ => Keyword::NoKeyword,
    };
    let is_call = matches!(word(1), Keyword::ALL | Keyword::ANY) && *token(2) == Token::LParen;
    let is_query = matches!(word(3), Keyword::SELECT | Keyword::WITH | Keyword::VALUES);
    if !is_call || is_query {
        return None;
    }
    parser.advance_token();
    let right = parser.parse_subexpr(precedence);
    Some(right.map(|right| Expr::BinaryOp {
        left: Box::new(left.clone()),
        op,
        right: Box::new(right),
    }))
}

/// `a IS [NOT] DISTINCT FROM b`, whose right operand binds as tightly as that of any comparison. sqlparser consumes
/// everything that follows, so `a IS DISTINCT FROM b AND c` would mean `a IS DISTINCT FROM (b AND c)`.
fn distinct(parser: &mut Parser, left: &Expr, precedence: u8) -> Option<Result<Expr, ParserError>> {
    use Keyword::{DISTINCT, FROM, IS, NOT};
    let is_negated = parser.parse_keywords(&[IS, NOT, DISTINCT, FROM]);
    if !is_negated && !parser.parse_keywords(&[IS, DISTINCT, FROM]) {
        return None;
    }
    let left = Box::new(left.clone());
    let right = parser.parse_subexpr(precedence).map(Box::new);
    Some(right.map(|right| match is_negated {
        true => Expr::IsNotDistinctFrom(left, right),
        false => Expr::IsDistinctFrom(left, right),
    }))
}

/// Parses an operator and its right operand into a call of `name`, whose span is the operator's.
fn operator(
    parser: &mut Parser,
    name: &str,
    left: &Expr,
    precedence: u8,
) -> Result<Expr, ParserError> {
    let span = parser.next_token().span;
    let right = parser.parse_subexpr(precedence)?;
    let args = vec![marker::positional(left.clone()), marker::positional(right)];
    Ok(marker::call(Ident::with_span(span, name), args))
}
