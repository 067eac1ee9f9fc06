//! Syntax colouring of the input.

use crate::lex::{TokenKind, pair, tokens, unmatched};
use crate::style::{Style, code};
use crate::words::is_keyword;

/// `text` with colours. `is_function` recognises functions; the partner of a bracket at or before the cursor, byte
/// `at`, is marked.
pub fn highlight(
    text: &str,
    at: Option<usize>,
    style: Style,
    is_function: &dyn Fn(&str) -> bool,
) -> String {
    if text.starts_with(['.', '\\']) {
        let end = text.find(char::is_whitespace).unwrap_or(text.len());
        return style.paint(code::KEYWORD, &text[..end]) + &text[end..];
    }
    let all = tokens(text);
    let wrong = unmatched(&all);
    let marked = at.and_then(|at| {
        pair(&all, at).or_else(|| at.checked_sub(1).and_then(|before| pair(&all, before)))
    });
    let mut out = String::new();
    for (i, t) in all.iter().enumerate() {
        let next = all[i + 1..].iter().find(|t| !t.is_blank());
        let called = next.is_some_and(|n| n.text == "(");
        let colour = match t.kind {
            _ if marked.is_some_and(|(a, b)| i == a || i == b) && !wrong.contains(&i) => {
                code::PARTNER
            }
            TokenKind::Close if wrong.contains(&i) => code::WRONG,
            TokenKind::Comment => code::DIM,
            TokenKind::Text => code::TEXT,
            TokenKind::Number => code::NUMBER,
            TokenKind::Word if called && is_function(t.text) => code::FUNCTION,
            TokenKind::Word if is_keyword(t.text) => code::KEYWORD,
            _ => "",
        };
        if colour.is_empty() {
            out.push_str(t.text);
        } else {
            out.push_str(&style.paint(colour, t.text));
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::style::Colours;

    fn shown(text: &str, at: Option<usize>) -> String {
        let style = Style { colours: Colours::Indexed, unicode: true };
        highlight(text, at, style, &|f| f == "mean").replace('\x1b', "")
    }

    #[test]
    fn each_kind_has_its_colour() {
        insta::assert_snapshot!(
            shown("select mean(x, 'time') + 1.5 -- c", None),
            @"[1;34mselect[0m [36mmean[0m(x, [32m'time'[0m) + [33m1.5[0m [90m-- c[0m"
        );
        insta::assert_snapshot!(shown("f(x))", None), @"f(x)[1;31m)[0m");
        insta::assert_snapshot!(shown("f(x)", Some(4)), @"f[1;7m([0mx[1;7m)[0m");
        insta::assert_snapshot!(shown(".mode json", None), @"[1;34m.mode[0m json");
    }

    #[test]
    fn colours_add_nothing_else() {
        for text in ["SELECT 'é", "((", "/* open", "", "\"a\"\"", "x\n\ty;"] {
            assert_eq!(highlight(text, Some(text.len()), Style::PLAIN, &|_| true), text);
        }
    }
}
