//! Signatures of functions.

use crate::knowledge::Function;
use crate::lex::{Kind, tokens};

/// A parameter.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Parameter {
    /// Its name.
    pub name: String,
    /// Its default; `None` if it must be given.
    pub default: Option<String>,
    /// Its bytes in the signature.
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
            Kind::Open => depth += 1,
            Kind::Close => depth = depth.saturating_sub(1),
            _ => {}
        }
    }
    out
}

/// The texts that a function's signature and description name in single quotes: its methods.
pub(super) fn told(f: &Function) -> Vec<String> {
    let mut out: Vec<String> = Vec::new();
    for text in [&f.signature, &f.doc] {
        for t in tokens(text).iter().filter(|t| t.kind == Kind::Text && t.closed) {
            let word = t.text.trim_matches('\'').to_string();
            // A text with spaces is a sentence between two apostrophes.
            if !word.is_empty() && !word.contains(char::is_whitespace) && !out.contains(&word) {
                out.push(word);
            }
        }
    }
    out
}
