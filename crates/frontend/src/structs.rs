//! Types of structs with parentheses, as in DuckDB: sqlparser reads them in angle brackets.
//!
//! ```text
//! x::struct(a int, b struct(c text))  ⇒  x::struct<a int, b struct<c text>>
//! x::struct(a int[])                  ⇒  x::struct<a array<int>>
//! ```

use sqlparser::keywords::Keyword;
use sqlparser::tokenizer::{Token, TokenWithSpan};

use crate::tokens::is_keyword;

/// Maximum types of structs inside each other: sqlparser has no limit of its own.
const NESTED_MAX: usize = 32;

/// Maximum brackets behind the type of a field.
const LISTS_MAX: usize = 8;

/// Replaces the parentheses of such types, and the brackets of lists in them. Other words `struct` are names.
pub(crate) fn mark(tokens: &mut Vec<TokenWithSpan>) {
    parentheses(tokens);
    let is_type = |token: &TokenWithSpan| is_keyword(&token.token, Keyword::STRUCT);
    if tokens.iter().any(is_type) && tokens.iter().any(|t| t.token == Token::RBracket) {
        *tokens = lists(std::mem::take(tokens));
    }
}

fn parentheses(tokens: &mut [TokenWithSpan]) {
    // For each open parenthesis whether it is replaced.
    let mut open: Vec<bool> = Vec::new();
    let mut is_behind_type = false;
    for at in 0..tokens.len() {
        let begins_type = begins_type(tokens, at, &open);
        match &mut tokens[at].token {
            Token::Word(word) if word.keyword == Keyword::STRUCT && !begins_type => {
                word.keyword = Keyword::NoKeyword;
            }
            bracket @ Token::LParen => {
                open.push(is_behind_type);
                if is_behind_type {
                    *bracket = Token::Lt;
                }
            }
            bracket @ Token::RParen => {
                let is_type = open.pop() == Some(true);
                *bracket = if is_type { Token::Gt } else { Token::RParen };
            }
            _ => {}
        }
        is_behind_type = begins_type;
    }
}

/// True if a type of structs begins here: behind `::`, the `AS` of a cast or the name of a field, with the name and the
/// type of a field in brackets. `FROM t AS struct(a, b)` has no types.
fn begins_type(tokens: &[TokenWithSpan], at: usize, open: &[bool]) -> bool {
    let token = |at: usize| tokens.get(at).map_or(&Token::EOF, |t| &t.token);
    let is_word = |at: usize| matches!(token(at), Token::Word(_));
    let Some(before) = at.checked_sub(1).filter(|_| is_keyword(token(at), Keyword::STRUCT)) else {
        return false;
    };
    let is_in_place = match token(before) {
        Token::DoubleColon => true,
        Token::Word(_) => is_keyword(token(before), Keyword::AS) || open.last() == Some(&true),
        _ => false,
    };
    is_in_place
        && matches!(token(at + 1), Token::LParen | Token::Lt)
        && is_word(at + 2)
        && is_word(at + 3)
        && open.iter().filter(|is_struct| **is_struct).count() < NESTED_MAX
}

/// A field of a struct: where its type begins, and how many brackets followed.
struct FieldType {
    start: usize,
    lists: usize,
}

/// Writes `a int[]` as `a array<int>` in types of structs.
fn lists(tokens: Vec<TokenWithSpan>) -> Vec<TokenWithSpan> {
    let mut out: Vec<TokenWithSpan> = Vec::with_capacity(tokens.len() + 8);
    // The open brackets of a type: those of structs with their last fields.
    let mut open: Vec<Option<FieldType>> = Vec::new();
    let mut rest = tokens.into_iter().peekable();
    while let Some(token) = rest.next() {
        // The type is behind this token and the name.
        let next = FieldType { start: out.len() + 2, lists: 0 };
        let is_struct = out.last().is_some_and(|t| is_keyword(&t.token, Keyword::STRUCT));
        match token.token {
            Token::Lt if is_struct => open.push(Some(next)),
            Token::Lt | Token::LParen if !open.is_empty() => open.push(None),
            Token::Gt | Token::RParen => {
                open.pop();
            }
            Token::ShiftRight => open.truncate(open.len().saturating_sub(2)),
            Token::Comma => {
                if let Some(Some(field)) = open.last_mut() {
                    *field = next;
                }
            }
            Token::LBracket => {
                if let Some(Some(field)) = open.last_mut()
                    && field.start < out.len()
                    && field.lists < LISTS_MAX
                    && rest.next_if(|t| t.token == Token::RBracket).is_some()
                {
                    let span = out[field.start].span;
                    let begin = [Token::make_keyword("ARRAY"), Token::Lt];
                    let begin = begin.map(|token| TokenWithSpan::new(token, span));
                    out.splice(field.start..field.start, begin);
                    out.push(TokenWithSpan::new(Token::Gt, token.span));
                    field.lists += 1;
                    continue;
                }
            }
            _ => {}
        }
        out.push(token);
    }
    out
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]
    use crate::tokens::split;

    fn tokens(text: &str) -> String {
        let tokens = split(text).unwrap().remove(0).tokens;
        tokens.iter().map(|t| t.token.to_string()).collect::<Vec<_>>().join(" ")
    }

    #[test]
    fn types_of_structs_get_angle_brackets() {
        for (text, want) in [
            ("x::struct(a int, b text)", "x :: struct < a int , b text >"),
            ("CAST(x AS STRUCT(a int))", "CAST ( x AS STRUCT < a int > )"),
            (
                "x::struct(a decimal(3, 1), \"b c\" struct(d int))[]",
                "x :: struct < a decimal ( 3 , 1 ) , \"b c\" struct < d int > > [ ]",
            ),
            (
                "x::struct(a int[], b struct(c decimal(3, 1)[][])[], d text)[]",
                "x :: struct < a ARRAY < int > , b ARRAY < struct < c ARRAY < ARRAY < decimal ( 3 , 1 ) > > > > , d text > [ ]",
            ),
            ("x::struct(a int)[1] + y[2]", "x :: struct < a int > [ 1 ] + y [ 2 ]"),
            ("x::struct(a int[3])", "x :: struct < a int [ 3 ] >"),
            ("SELECT struct(a, 1)", "SELECT struct ( a , 1 )"),
            ("FROM t AS struct(a, b)", "SELECT * FROM t AS struct ( a , b )"),
        ] {
            assert_eq!(tokens(text), want, "{text}");
        }
    }

    #[test]
    fn they_parse_beside_columns_and_functions_of_that_name() {
        for text in [
            "SELECT x::struct(a int, b struct(c text, d decimal(3, 1))), y::struct(a int)[] FROM t",
            "SELECT try_cast(x AS struct(a int)), x::struct<a int>",
            "SELECT x::struct(a int[], b struct(c double[][])[], d text)[], y < z[0:1], y > z FROM t",
            "SELECT struct, struct < 3, struct(1, 2), t.struct FROM t AS struct(a, b)",
        ] {
            assert!(crate::parse(text).is_ok(), "{text}: {:?}", crate::parse(text));
        }
        let deep = format!("SELECT x::{}int{}", "struct(a ".repeat(60), ")".repeat(60));
        assert!(crate::parse(&deep).is_err());
        let lists = format!("SELECT x::struct(a int{}) FROM t", "[]".repeat(50));
        assert!(crate::parse(&lists).is_err());
    }
}
