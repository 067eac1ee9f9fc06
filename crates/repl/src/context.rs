//! The SQL context of the cursor: the part of completion that needs no engine.
//!
//! 1. [`crate::lex`] splits the text; the statement of the cursor is selected.
//! 2. A cursor inside a text is in a path or an argument; otherwise the token before the word at the cursor decides.
//! 3. [`block`] finds the relations of the query block around the cursor, including those after it.

mod block;
mod call;

pub use block::Relation;
pub use call::{Call, call as open_call};

use crate::lex::{Token, TokenKind, tokens};
use crate::words;

/// The word at the cursor, and its candidates.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Context {
    /// The first byte of the text that a completion replaces.
    pub start: usize,
    /// The replaced text, up to the cursor.
    pub word: String,
    /// The candidates for the word.
    pub what: What,
}

/// The candidates at the cursor.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum What {
    /// Nothing to complete: inside a comment, a number, a text of unknown meaning.
    Nothing,
    /// One of these words.
    Words(&'static [&'static str]),
    /// A keyword of a clause: the operand before it is complete.
    Clause,
    /// A tensor, view or table, or a path in quotes.
    Relation,
    /// The name of a setting.
    Setting,
    /// A path; its opening quote is already typed.
    File,
    /// A text argument of a call; its opening quote is already typed.
    TextArgument(Call, Vec<Relation>),
    /// An operand.
    Operand {
        /// The relations whose names are in scope.
        relations: Vec<Relation>,
        /// The call that it is an argument of.
        call: Option<Call>,
        /// The name before a dot.
        of: Option<String>,
    },
}

/// The context of a cursor at byte `at`.
pub fn context(text: &str, at: usize) -> Context {
    let all = tokens(text);
    let is_text = |t: &Token<'_>| t.kind == TokenKind::Text;
    let odd = all.last().is_some_and(|t| is_text(t) && !t.closed);
    let inside = all
        .iter()
        .any(|t| is_text(t) && t.start < at && (at < t.end() || (at == t.end() && !t.closed)));
    // With an odd number of quotes the text at the cursor is the unclosed one.
    let open = odd && inside;
    if open {
        // The text ends at the cursor.
        in_context(&format!("{}'{}", &text[..at], &text[at..]), at)
    } else {
        in_context(text, at)
    }
}

fn in_context(text: &str, at: usize) -> Context {
    let all = statement(tokens(text), at);
    let before: Vec<Token<'_>> = cut(&all, at);
    let nothing = |start| Context { start, word: text[start..at].into(), what: What::Nothing };
    let word = before.last().filter(|t| {
        matches!(t.kind, TokenKind::Word | TokenKind::Quoted)
            || (t.kind == TokenKind::Text && !t.closed)
    });
    match before.last() {
        Some(t) if t.kind == TokenKind::Comment && (!t.closed || t.end() == at) => {
            return nothing(at);
        }
        Some(t) if t.kind == TokenKind::Number => return nothing(t.start),
        Some(t) if matches!(t.kind, TokenKind::Text | TokenKind::Quoted) && t.closed => {
            return nothing(at);
        }
        _ => {}
    }
    let start = word.map_or(at, |t| t.start);
    let left: Vec<Token<'_>> =
        before.iter().filter(|t| !t.is_blank() && t.start < start).copied().collect();
    let relations = || block::relations(&all, at, text);
    let call = open_call(&left);
    if let Some(t) = word
        && t.kind == TokenKind::Text
    {
        let inner =
            Context { start: start + 1, word: text[start + 1..at].into(), what: What::File };
        let what = match (&call, left.last()) {
            _ if takes_path(&left) => What::File,
            (Some(call), Some(t)) if matches!(t.text, "(" | "," | "=>" | "[") => {
                What::TextArgument(call.clone(), relations())
            }
            _ => What::Nothing,
        };
        return Context { what, ..inner };
    }
    Context { start, word: text[start..at].into(), what: what(&left, call, relations) }
}

fn statement(all: Vec<Token<'_>>, at: usize) -> Vec<Token<'_>> {
    let is_end = |t: &Token<'_>| t.kind == TokenKind::Semicolon;
    let first = all.iter().rposition(|t| is_end(t) && t.end() <= at).map_or(0, |i| i + 1);
    let last = all.iter().position(|t| is_end(t) && t.start >= at).unwrap_or(all.len());
    all[first..last.max(first)].to_vec()
}

/// The tokens before the cursor, the last one cut at it.
fn cut<'a>(all: &[Token<'a>], at: usize) -> Vec<Token<'a>> {
    let mut left: Vec<Token<'a>> = all.iter().filter(|t| t.start < at).copied().collect();
    if let Some(last) = left.last_mut()
        && last.end() > at
    {
        last.text = &last.text[..at - last.start];
        last.closed &=
            !matches!(last.kind, TokenKind::Text | TokenKind::Quoted | TokenKind::Comment);
    }
    left
}

/// True if a text after these tokens is a path.
fn takes_path(left: &[Token<'_>]) -> bool {
    let Some(last) = left.last() else { return false };
    let is = |words: &[&str]| words.iter().any(|w| last.is(w));
    is(words::BEFORE_RELATION)
        || is(&["LOCATION", "TO"])
        || (last.text == "," && block::in_relations(left))
        || (last.text == "("
            && left.iter().rev().nth(1).is_some_and(|t| {
                t.kind == TokenKind::Word && t.text.to_ascii_lowercase().starts_with("read_")
            }))
}

fn what(left: &[Token<'_>], call: Option<Call>, relations: impl Fn() -> Vec<Relation>) -> What {
    let Some(last) = left.last() else { return What::Words(words::STATEMENTS) };
    let begins =
        |words: &[&str]| left.len() == words.len() && left.iter().zip(words).all(|(t, w)| t.is(w));
    if let Some((_, next)) = words::FOLLOWING.iter().find(|(first, _)| begins(first)) {
        return What::Words(next);
    }
    if begins(&["SET"]) {
        return What::Setting;
    }
    let ddl = |first: &str| left[0].is(first);
    let named = |kinds: &[&str]| kinds.iter().any(|k| last.is(k));
    if ddl("DROP") {
        return if named(&["TENSOR", "TABLE", "VIEW", "EXISTS"]) {
            What::Relation
        } else {
            What::Nothing
        };
    }
    if last.is("AS") && left.len() >= 2 && left[left.len() - 2].is("STORED") {
        return What::Words(words::FORMATS);
    }
    if ddl("CREATE") && last.is("AS") && !left.iter().any(|t| t.is("SELECT")) {
        return What::Words(&["SELECT", "WITH"]);
    }
    if ddl("CREATE") && left.len() >= 3 && !left.iter().any(|t| t.is("AS")) {
        return What::Words(&["AS", "STORED AS", "LOCATION", "OPTIONS"]);
    }
    if named(words::BEFORE_RELATION) || (last.text == "," && block::in_relations(left)) {
        return What::Relation;
    }
    // A name that the user invents.
    if last.is("AS") {
        return What::Nothing;
    }
    if last.text == "::" {
        return What::Words(words::DTYPES);
    }
    if last.text == "." {
        let of = left.iter().rev().nth(1).map(Token::name);
        return What::Operand { relations: relations(), call: None, of };
    }
    let operand = || What::Operand { relations: relations(), call: call.clone(), of: None };
    match last.kind {
        TokenKind::Open | TokenKind::Sign if last.text != "*" => operand(),
        // `SELECT *` is complete, `2 *` is not.
        TokenKind::Sign if left.len() >= 2 && !left[left.len() - 2].is("SELECT") => operand(),
        TokenKind::Word
            if words::is_keyword(last.text) && !named(&["END", "NULL", "TRUE", "FALSE"]) =>
        {
            operand()
        }
        _ => What::Clause,
    }
}

#[cfg(test)]
mod tests;
