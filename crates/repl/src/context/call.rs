//! The call around the cursor.

use crate::lex::{Token, TokenKind};

/// A call, as far as it is typed.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Call {
    /// The function, in lower case; empty for a subscript `x[…]`.
    pub function: String,
    /// The index of the argument at the cursor.
    pub position: usize,
    /// The name of the argument at the cursor, if `name =>` is before it.
    pub named: Option<String>,
    /// Names of arguments that are already given.
    pub given: Vec<String>,
    /// True if the argument at the cursor is empty before the word, so that a name may still come.
    pub fresh: bool,
}

/// The innermost open call after these tokens (without blanks). Brackets of lists are ignored; those of a subquery end
/// the search.
pub fn call(left: &[Token<'_>]) -> Option<Call> {
    let mut depth = 0usize;
    let mut fresh = left.last().is_some_and(|t| matches!(t.text, "(" | ","));
    for (i, t) in left.iter().enumerate().rev() {
        match t.kind {
            TokenKind::Close => depth += 1,
            TokenKind::Open if depth > 0 => depth -= 1,
            TokenKind::Open => {
                let before = i.checked_sub(1).map(|b| left[b]);
                let inside = &left[i + 1..];
                if t.text == "(" && inside.first().is_some_and(|t| t.is("SELECT") || t.is("WITH")) {
                    return None;
                }
                let callee = before.filter(|b| {
                    b.kind == TokenKind::Word && (t.text == "(" || t.text == "[") && !is_reserved(b)
                });
                if let Some(callee) = callee {
                    let function = if t.text == "(" {
                        callee.text.to_ascii_lowercase()
                    } else {
                        String::new()
                    };
                    return Some(arguments(function, inside, fresh || inside.is_empty()));
                }
                // A list or a parenthesis is a part of an argument of the call around it.
                fresh = false;
            }
            TokenKind::Semicolon => return None,
            _ => {}
        }
    }
    None
}

/// Keywords before a parenthesis that is not a call.
fn is_reserved(t: &Token<'_>) -> bool {
    [
        "AND", "OR", "NOT", "IN", "FROM", "SELECT", "WHERE", "ON", "BY", "AS", "THEN", "ELSE",
        "WHEN", "USING", "OVER",
    ]
    .iter()
    .any(|w| t.is(w))
}

fn arguments(function: String, inside: &[Token<'_>], fresh: bool) -> Call {
    let mut call = Call { function, fresh, ..Call::default() };
    let mut depth = 0usize;
    for (i, t) in inside.iter().enumerate() {
        match t.kind {
            TokenKind::Open => depth += 1,
            TokenKind::Close => depth = depth.saturating_sub(1),
            TokenKind::Sign if depth == 0 && t.text == "," => {
                call.position += 1;
                call.named = None;
            }
            TokenKind::Sign if depth == 0 && t.text == "=>" => {
                if let Some(name) = i.checked_sub(1).map(|b| inside[b].name()) {
                    call.given.push(name.clone());
                    call.named = Some(name);
                }
            }
            _ => {}
        }
    }
    call
}
