//! Literals of DuckDB and PostgreSQL: patterns of `GLOB`, which are regular expressions from then on, and hexadecimal
//! numbers, which sqlparser takes for bytes. `LIMIT 10%`, as `LIMIT tessera_percent(10)`.

use std::iter::Peekable;
use std::str::Chars;

use sqlparser::tokenizer::{Token, TokenWithSpan};

use crate::tokens::is_word;

/// Words behind which `glob` is a name.
const BEFORE_NAMES: [&str; 4] = ["AS", "FROM", "JOIN", "SELECT"];

/// A class of no characters.
const NOTHING: &str = r"[^\s\S]";

/// The function of a percentage of rows.
pub(crate) const PERCENT: &str = "tessera_percent";

/// Makes a call of `LIMIT 10%` and `LIMIT 10 PERCENT`; `LIMIT 10 % 3` is a remainder.
pub(super) fn limits(tokens: Vec<TokenWithSpan>) -> Vec<TokenWithSpan> {
    let token = |at: usize| tokens.get(at).map(|t| &t.token);
    let is = |at: usize, word: &str| token(at).is_some_and(|token| is_word(token, word));
    let is_percent = |at: usize| {
        let is_end = matches!(token(at + 2), None | Some(Token::RParen)) || is(at + 2, "OFFSET");
        matches!(token(at), Some(Token::Number(..)))
            && (is(at + 1, "PERCENT") || token(at + 1) == Some(&Token::Mod) && is_end)
    };
    let mut out = Vec::with_capacity(tokens.len() + 2);
    let mut at = 0;
    while at < tokens.len() {
        out.push(tokens[at].clone());
        if is(at, "LIMIT") && is_percent(at + 1) {
            let (number, percent) = (&tokens[at + 1], tokens[at + 2].span);
            let name = Token::make_word(PERCENT, None);
            out.push(TokenWithSpan::new(name, number.span.union(&percent)));
            out.push(TokenWithSpan::new(Token::LParen, number.span));
            out.push(number.clone());
            out.push(TokenWithSpan::new(Token::RParen, percent));
            at += 2;
        }
        at += 1;
    }
    out
}

/// Makes `0x1F` a number; `X'1F'` is bytes.
pub(super) fn numbers(mut tokens: Vec<TokenWithSpan>) -> Vec<TokenWithSpan> {
    for token in &mut tokens {
        let (start, end) = (token.span.start, token.span.end);
        let Token::HexStringLiteral(digits) = &token.token else { continue };
        let has_prefix = end.column == start.column + digits.len() as u64 + 2;
        if let Ok(number) = u128::from_str_radix(&digits.replace('_', ""), 16)
            && has_prefix
            && start.line == end.line
        {
            token.token = Token::Number(number.to_string(), false);
        }
    }
    tokens
}

/// Makes `s GLOB 'a*'` a comparison with a regular expression.
pub(super) fn globs(tokens: Vec<TokenWithSpan>) -> Vec<TokenWithSpan> {
    if !tokens.iter().any(|t| is_word(&t.token, "GLOB")) {
        return tokens;
    }
    let mut out: Vec<TokenWithSpan> = Vec::with_capacity(tokens.len());
    let mut tokens = tokens.into_iter().peekable();
    while let Some(token) = tokens.next() {
        let is_value = out.last().is_some_and(|before| match &before.token {
            Token::Word(_) => !BEFORE_NAMES.iter().any(|word| is_word(&before.token, word)),
            Token::RParen | Token::RBracket | Token::SingleQuotedString(_) => true,
            _ => false,
        });
        let pattern = match tokens.peek_mut().map(|next| &mut next.token) {
            Some(Token::SingleQuotedString(pattern)) if is_value => pattern,
            _ => {
                out.push(token);
                continue;
            }
        };
        if !is_word(&token.token, "GLOB") {
            out.push(token);
            continue;
        }
        *pattern = regex_of(pattern);
        let new = match out.pop_if(|before| is_word(&before.token, "NOT")) {
            Some(not) => {
                let span = not.span.union(&token.span);
                TokenWithSpan::new(Token::ExclamationMarkTilde, span)
            }
            None => TokenWithSpan::new(Token::Tilde, token.span),
        };
        out.push(new);
    }
    out
}

/// The regular expression of a pattern: `*` is any text, `?` a character, `[a-c]` and `[!a]` a character of a class.
fn regex_of(glob: &str) -> String {
    let mut out = "(?s)^".to_string();
    let mut letters = glob.chars().peekable();
    while let Some(letter) = letters.next() {
        match letter {
            '*' => out.push_str(".*"),
            '?' => out.push('.'),
            '\\' => escaped(letters.next().unwrap_or(letter), &mut out),
            '[' => match class(&mut letters) {
                Some(class) => out.push_str(&class),
                None => return NOTHING.to_string(),
            },
            letter => escaped(letter, &mut out),
        }
    }
    out.push('$');
    out
}

/// The class behind its bracket; `None` if nothing closes it. The first character is never the end.
fn class(letters: &mut Peekable<Chars<'_>>) -> Option<String> {
    let is_negated = letters.next_if_eq(&'!').is_some();
    let mut members = String::new();
    let mut first = letters.next()?;
    loop {
        if first == '\\' {
            first = letters.next()?;
        }
        let mut ahead = letters.clone();
        let last = match (ahead.next(), ahead.next()) {
            (Some('-'), Some(last)) if last != ']' => {
                *letters = ahead;
                last
            }
            _ => first,
        };
        if first <= last {
            escaped(first, &mut members);
            members.push('-');
            escaped(last, &mut members);
        }
        first = letters.next()?;
        if first == ']' {
            break;
        }
    }
    Some(match (members.is_empty(), is_negated) {
        (true, true) => ".".to_string(),
        (true, false) => NOTHING.to_string(),
        (false, true) => format!("[^{members}]"),
        (false, false) => format!("[{members}]"),
    })
}

/// Appends a character that stands for itself.
fn escaped(letter: char, out: &mut String) {
    if r"\.+*?()|[]{}^$#&-~".contains(letter) {
        out.push('\\');
    }
    out.push(letter);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tokens::tests::tokens;

    #[test]
    fn patterns_are_regular_expressions() {
        for (glob, want) in [
            ("a*.?", r"(?s)^a.*\..$"),
            (r"a\*", r"(?s)^a\*$"),
            ("[a-c]", "(?s)^[a-c]$"),
            ("[!-a]", r"(?s)^[^\--\-a-a]$"),
            ("[]a-]", r"(?s)^[\]-\]a-a\--\-]$"),
            ("[^b]", r"(?s)^[\^-\^b-b]$"),
            ("x[z-a]", r"(?s)^x[^\s\S]$"),
            ("a[b", NOTHING),
            ("a[]", NOTHING),
        ] {
            assert_eq!(regex_of(glob), want, "{glob}");
        }
        assert_eq!(
            tokens("SELECT a FROM t WHERE s GLOB 'a'"),
            "SELECT a FROM t WHERE s ~ '(?s)^a$'"
        );
        assert_eq!(tokens("SELECT (a) NOT glob 'b'"), "SELECT ( a ) !~ '(?s)^b$'");
        for same in ["SELECT glob , 'a' AS glob FROM t", "SELECT a glob FROM t", "SELECT GLOB 'a'"]
        {
            assert_eq!(tokens(same), same);
        }
    }

    #[test]
    fn percentages_of_rows_are_calls() {
        for (text, want) in [
            ("FROM t LIMIT 10%", "SELECT * FROM t LIMIT tessera_percent ( 10 )"),
            (
                "SELECT (SELECT a FROM t LIMIT 10 PERCENT OFFSET 2)",
                "SELECT ( SELECT a FROM t LIMIT tessera_percent ( 10 ) OFFSET 2 )",
            ),
            ("SELECT a FROM t LIMIT 10 % 3", "SELECT a FROM t LIMIT 10 % 3"),
        ] {
            assert_eq!(tokens(text), want);
        }
    }

    #[test]
    fn hexadecimal_numbers_are_not_bytes() {
        assert_eq!(tokens("SELECT 0x1F, -0xff, X'1F'"), "SELECT 31 , - 255 , X'1F'");
    }
}
