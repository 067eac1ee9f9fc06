//! The signature of the function at the cursor.

use crate::complete::parameters;
use crate::context::{self, Call};
use crate::knowledge::Function;
use crate::lex::{Token, tokens};
use unicode_width::UnicodeWidthChar;

/// The signature of the call around the end of `text`, cut to `room` characters; `None` outside of a call.
pub fn signature(text: &str, functions: &[Function], room: usize) -> Option<String> {
    let all = tokens(text);
    let first = all.iter().rposition(|t| t.text == ";").map_or(0, |i| i + 1);
    let left: Vec<Token<'_>> = all[first..].iter().filter(|t| !t.is_blank()).copied().collect();
    let call = context::open_call(&left)?;
    let f = functions.iter().find(|f| f.name == call.function)?;
    Some(shorten(&format!("   {}", marked(f, &call)), room))
}

/// The signature from the argument at the cursor on: `mean(…, axis => NULL, …)` for the second one.
fn marked(f: &Function, call: &Call) -> String {
    let parameters = parameters(&f.signature);
    let at = match &call.named {
        Some(name) => parameters.iter().position(|p| p.name == *name),
        None => Some(call.position),
    };
    match at.and_then(|at| parameters.get(at)) {
        Some(p) if p.bytes.start > f.name.len() + 1 => {
            format!("{}(…, {}", f.name, &f.signature[p.bytes.start..])
        }
        _ => f.signature.clone(),
    }
}

fn shorten(text: &str, room: usize) -> String {
    let mut out = String::new();
    let mut width = 0;
    for c in text.chars() {
        width += c.width().unwrap_or(0);
        if width >= room {
            out.push('…');
            break;
        }
        out.push(c);
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hint(text: &str) -> String {
        let mean = Function {
            name: "mean".into(),
            signature: "mean(x, axis => NULL, skipna => false)".into(),
            ..Function::default()
        };
        signature(text, &[mean], 60).unwrap_or_default()
    }

    #[test]
    fn the_argument_at_the_cursor_comes_first() {
        insta::assert_snapshot!(hint("SELECT mean("), @"   mean(x, axis => NULL, skipna => false)");
        insta::assert_snapshot!(hint("SELECT mean(a, "), @"   mean(…, axis => NULL, skipna => false)");
        insta::assert_snapshot!(hint("SELECT mean(a, skipna => "), @"   mean(…, skipna => false)");
        insta::assert_snapshot!(hint("SELECT mean(a, axis => ['t', "), @"   mean(…, axis => NULL, skipna => false)");
        assert_eq!(hint("SELECT mean(a)"), "");
        assert_eq!(hint("SELECT nope("), "");
        assert_eq!(hint("SELECT mean(; SELECT "), "");
    }
}
