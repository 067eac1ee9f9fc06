//! Formats as pieces: texts, and how values are written between them.

use std::iter::Peekable;
use std::str::Chars;

use datafusion::common::{Result, exec_err};

/// Maximum sum of the widths and precisions of a format.
const WIDTH_MAX: usize = 1024;

/// The functions, whose formats have a syntax each.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Language {
    /// `{:.2f}` of `format`.
    Braces,
    /// `%.2f` of `printf`.
    Percents,
}

impl Language {
    pub(super) fn function(self) -> &'static str {
        match self {
            Self::Braces => "format",
            Self::Percents => "printf",
        }
    }

    /// What formats take.
    pub(super) fn hint(self) -> &'static str {
        match self {
            Self::Braces => {
                "`{}` takes any value, `{:d}` an integer, `{:.2f}` a number, and `{{` is a brace; convert a value with `x::int`, `x::double`, `x::text`"
            }
            Self::Percents => {
                "`%s` takes any value, `%d` an integer, `%.2f` a number, and `%%` is a percent sign; convert a value with `x::int`, `x::double`, `x::text`"
            }
        }
    }
}

/// A part of a format.
#[derive(Debug)]
pub(super) enum Piece {
    Text(String),
    /// The argument of that number, from 0.
    Value(usize, Spec),
}

/// How to write a value.
#[derive(Debug, Default)]
pub(super) struct Spec {
    /// `<`, `>`, `^` or `=`; `None` for that of the value's type.
    pub(super) align: Option<char>,
    pub(super) fill: Option<char>,
    /// `+` or a space, in front of positive numbers.
    pub(super) sign: Option<char>,
    pub(super) is_alternate: bool,
    pub(super) has_zeros: bool,
    pub(super) width: usize,
    pub(super) precision: Option<usize>,
    /// The character between groups of three digits.
    pub(super) separator: Option<char>,
    pub(super) kind: Option<char>,
}

type Letters<'a> = Peekable<Chars<'a>>;

/// The pieces of a format.
pub(super) fn parsed(format: &str, language: Language) -> Result<Vec<Piece>> {
    let function = language.function();
    let mut letters = format.chars().peekable();
    let (mut pieces, mut text) = (Vec::new(), String::new());
    let (mut next, mut widths) = (0, 0_usize);
    while let Some(letter) = letters.next() {
        let (open, close) = match language {
            Language::Braces => ('{', Some('}')),
            Language::Percents => ('%', None),
        };
        let is_twice = letter == open || Some(letter) == close;
        if !is_twice || letters.next_if_eq(&letter).is_some() {
            text.push(letter);
            continue;
        }
        let found = match language {
            _ if letter != open => None,
            Language::Braces => in_braces(&mut letters),
            Language::Percents => behind_percent(&mut letters),
        };
        let Some((argument, spec)) = found else {
            return exec_err!("`{function}`: the format '{format}' cannot be read");
        };
        widths = widths.saturating_add(spec.width).saturating_add(spec.precision.unwrap_or(0));
        if widths > WIDTH_MAX {
            return exec_err!(
                "`{function}`: the widths and precisions of a format add up to {widths}, and the limit is {WIDTH_MAX}"
            );
        }
        if !text.is_empty() {
            pieces.push(Piece::Text(std::mem::take(&mut text)));
        }
        let own = next;
        next += usize::from(argument.is_none());
        pieces.push(Piece::Value(argument.unwrap_or(own), spec));
    }
    if !text.is_empty() {
        pieces.push(Piece::Text(text));
    }
    Ok(pieces)
}

fn number(letters: &mut Letters<'_>) -> Option<usize> {
    let mut number = None;
    while let Some(digit) = letters.peek().and_then(|letter| letter.to_digit(10)) {
        letters.next();
        number = Some(number.unwrap_or(0_usize).saturating_mul(10).saturating_add(digit as usize));
    }
    number
}

fn is_separator(letter: &char) -> bool {
    matches!(letter, ',' | '_' | '\'')
}

fn is_align(letter: &char) -> bool {
    matches!(letter, '<' | '>' | '^' | '=')
}

/// `{0:*>+#08,.2f}` behind its bracket.
fn in_braces(letters: &mut Letters<'_>) -> Option<(Option<usize>, Spec)> {
    let argument = number(letters);
    let mut spec = Spec::default();
    if letters.next_if_eq(&':').is_some() {
        let mut ahead = letters.clone();
        let fill = ahead.next();
        if let Some(align) = ahead.next_if(is_align) {
            (spec.fill, spec.align) = (fill, Some(align));
            *letters = ahead;
        } else {
            spec.align = letters.next_if(is_align);
        }
        spec.sign = letters.next_if(|letter| matches!(letter, '+' | '-' | ' '));
        spec.is_alternate = letters.next_if_eq(&'#').is_some();
        spec.has_zeros = letters.next_if_eq(&'0').is_some();
        spec.width = number(letters).unwrap_or(0);
        spec.separator = letters.next_if(is_separator);
        if letters.next_if_eq(&'.').is_some() {
            spec.precision = Some(number(letters)?);
        }
        spec.kind = letters.next_if(char::is_ascii_alphabetic);
    }
    letters.next_if_eq(&'}').map(|_| (argument, spec))
}

/// `%2$-+#08.2f` behind its first character.
fn behind_percent(letters: &mut Letters<'_>) -> Option<(Option<usize>, Spec)> {
    let mut argument = None;
    let mut ahead = letters.clone();
    if let Some(place) = number(&mut ahead)
        && ahead.next_if_eq(&'$').is_some()
    {
        argument = Some(place.checked_sub(1)?);
        *letters = ahead;
    }
    let mut spec = Spec::default();
    while let Some(flag) = letters
        .next_if(|letter| matches!(letter, '-' | '+' | ' ' | '#' | '0') || is_separator(letter))
    {
        match flag {
            '-' => spec.align = Some('<'),
            '+' | ' ' => spec.sign = Some(flag),
            '#' => spec.is_alternate = true,
            '0' => spec.has_zeros = true,
            separator => spec.separator = Some(separator),
        }
    }
    spec.width = number(letters).unwrap_or(0);
    if letters.next_if_eq(&'.').is_some() {
        spec.precision = Some(number(letters).unwrap_or(0));
    }
    // Lengths of C's types, which values have by themselves.
    while letters.next_if(|letter| matches!(letter, 'h' | 'l' | 'j' | 'z' | 't' | 'L')).is_some() {}
    spec.kind = Some(letters.next_if(char::is_ascii_alphabetic)?);
    Some((argument, spec))
}
