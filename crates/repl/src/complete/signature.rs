//! Signatures of functions.

use crate::knowledge::Function;
use crate::lex::{TokenKind, tokens};

/// A parameter.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Parameter {
    /// Its name.
    pub name: String,
    /// Its default; `None` if it must be given.
    pub default: Option<String>,
    /// Its byte range in the signature.
    pub bytes: std::ops::Range<usize>,
}

/// The parameters in a signature such as `mean(x, axis => NULL)`.
pub fn parameters(signature: &str) -> Vec<Parameter> {
    let all = tokens(signature);
    let Some(open) = all.iter().position(|t| t.text == "(") else { return Vec::new() };
    let mut out = Vec::new();
    let (mut depth, mut start) = (0usize, open + 1);
    for (i, t) in all.iter().enumerate().skip(open + 1) {
        let ends = depth == 0 && (t.text == "," || t.text == ")");
        match t.kind {
            _ if ends => {
                let inside: Vec<_> = all[start..i].iter().filter(|t| !t.is_blank()).collect();
                start = i + 1;
                if let (Some(first), Some(last)) = (inside.first(), inside.last()) {
                    let default = inside
                        .get(1)
                        .filter(|t| t.text == "=>")
                        .and_then(|_| inside.get(2))
                        .map(|t| signature[t.start..last.end()].to_string());
                    let bytes = first.start..last.end();
                    out.push(Parameter { name: first.name(), default, bytes });
                }
                if t.text == ")" {
                    break;
                }
            }
            TokenKind::Open => depth += 1,
            TokenKind::Close => depth = depth.saturating_sub(1),
            _ => {}
        }
    }
    out
}

/// The values of `parameter` that a function's signature and description list in single quotes: names of reductions, in
/// brackets after that word, belong to `op`, all others to other parameters.
pub(super) fn told(f: &Function, parameter: &str) -> Vec<String> {
    let reductions = f.doc.split_once("reduction (").and_then(|(_, rest)| rest.split_once(')'));
    let reductions = reductions.map(|(list, _)| words(list)).unwrap_or_default();
    if parameter == "op" && !reductions.is_empty() {
        return reductions;
    }
    let mut out: Vec<String> = Vec::new();
    for word in words(&f.signature).into_iter().chain(words(&f.doc)) {
        if !out.contains(&word) && !reductions.contains(&word) {
            out.push(word);
        }
    }
    out
}

/// The words in single quotes; a text with spaces may be a sentence between two apostrophes.
fn words(text: &str) -> Vec<String> {
    let tokens = tokens(text);
    let texts = tokens.iter().filter(|t| t.kind == TokenKind::Text && t.closed);
    let words = texts.map(|t| t.text.trim_matches('\'').to_string());
    words.filter(|word| !word.is_empty() && !word.contains(char::is_whitespace)).collect()
}
