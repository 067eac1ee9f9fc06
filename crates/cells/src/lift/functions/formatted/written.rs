//! Values as texts of a format.

use datafusion::common::{Result, exec_err};

use super::pattern::{Language, Spec};

/// A value of a row.
#[derive(Debug, Clone, Copy)]
pub(super) enum Value<'a> {
    Integer(i128),
    Float(f64),
    Text(&'a str),
}

impl Spec {
    /// Appends a value.
    ///
    /// # Errors
    /// The format does not take a value of this type.
    pub(super) fn write(
        &self,
        out: &mut String,
        value: &Value<'_>,
        language: Language,
    ) -> Result<()> {
        let is_printf = language == Language::Percents;
        let kind = self.kind.filter(|kind| *kind != 's' || !is_printf);
        match (*value, kind) {
            (Value::Text(text), None | Some('s')) => {
                let count = self.precision.unwrap_or(usize::MAX);
                let text: String = text.chars().take(count).collect();
                self.pad(out, "", &text, if is_printf { '>' } else { '<' });
            }
            (Value::Integer(value), None | Some('d' | 'i' | 'u')) => {
                self.integer(out, value, value.unsigned_abs().to_string(), "");
            }
            (Value::Integer(value), Some('x' | 'X' | 'o' | 'b' | 'B')) => {
                // C takes the bits, which are those of 64.
                let bits = if is_printf { i128::from(value as u64) } else { value };
                let digits = bits.unsigned_abs();
                let (digits, prefix) = match self.kind {
                    Some('x') => (format!("{digits:x}"), "0x"),
                    Some('X') => (format!("{digits:X}"), "0X"),
                    Some('o') => (format!("{digits:o}"), "0"),
                    Some('B') => (format!("{digits:b}"), "0B"),
                    _ => (format!("{digits:b}"), "0b"),
                };
                let prefix = if self.is_alternate { prefix } else { "" };
                self.integer(out, bits, digits, prefix);
            }
            (Value::Integer(value), Some('c')) => {
                let letter = u32::try_from(value).ok().and_then(char::from_u32);
                let Some(letter) = letter else {
                    let function = language.function();
                    return exec_err!("`{function}`: {value} is no character");
                };
                self.pad(out, "", &letter.to_string(), '<');
            }
            (Value::Float(value), None | Some('e' | 'E' | 'f' | 'F' | 'g' | 'G')) => {
                self.float(out, value);
            }
            (Value::Integer(value), Some('e' | 'E' | 'f' | 'F' | 'g' | 'G')) => {
                self.float(out, value as f64);
            }
            (value, kind) => {
                let of = match value {
                    Value::Integer(_) => "an integer",
                    Value::Float(_) => "a float",
                    Value::Text(_) => "a text",
                };
                let (function, kind) = (language.function(), kind.unwrap_or('s'));
                return exec_err!("`{function}`: the format '{kind}' does not take {of}");
            }
        }
        Ok(())
    }

    fn integer(&self, out: &mut String, value: i128, mut digits: String, prefix: &str) {
        if let Some(missing) = self.precision.and_then(|least| least.checked_sub(digits.len())) {
            digits.insert_str(0, &"0".repeat(missing));
        }
        let before = format!("{}{prefix}", self.sign_of(value < 0));
        self.pad(out, &before, &self.grouped(&digits), '=');
    }

    fn float(&self, out: &mut String, value: f64) {
        let size = value.abs();
        let is_upper = self.kind.is_some_and(|kind| kind.is_ascii_uppercase());
        let mut digits = match self.kind.map(|kind| kind.to_ascii_lowercase()) {
            _ if size.is_nan() => "nan".to_string(),
            _ if size.is_infinite() => "inf".to_string(),
            Some('f') => format!("{size:.*}", self.precision.unwrap_or(6)),
            Some('e') => exponential(&format!("{size:.*e}", self.precision.unwrap_or(6))),
            Some('g') => general(size, self.precision.unwrap_or(6), self.is_alternate),
            _ => {
                let digits = match self.precision {
                    Some(precision) => general(size, precision, self.is_alternate),
                    None => shortest(size),
                };
                let is_whole = !digits.contains(['.', 'e']);
                if is_whole { digits + ".0" } else { digits }
            }
        };
        if is_upper {
            digits.make_ascii_uppercase();
        }
        let is_negative = value.is_sign_negative() && !value.is_nan();
        self.pad(out, self.sign_of(is_negative), &self.grouped(&digits), '=');
    }

    fn sign_of(&self, is_negative: bool) -> &'static str {
        match self.sign {
            _ if is_negative => "-",
            Some('+') => "+",
            Some(' ') => " ",
            _ => "",
        }
    }

    /// The digits with separators between groups of three in front of the point.
    fn grouped(&self, digits: &str) -> String {
        let Some(separator) = self.separator else { return digits.to_string() };
        let end = digits.find(|c: char| !c.is_ascii_digit()).unwrap_or(digits.len());
        let mut out = String::with_capacity(digits.len() * 2);
        for (at, digit) in digits[..end].char_indices() {
            if at > 0 && (end - at).is_multiple_of(3) {
                out.push(separator);
            }
            out.push(digit);
        }
        out + &digits[end..]
    }

    /// Appends a text of at least the width; `before` is a sign or a prefix, behind which zeros come. `align` is that of
    /// the value's type, `=` for numbers.
    fn pad(&self, out: &mut String, before: &str, text: &str, align: char) {
        let count = before.chars().count() + text.chars().count();
        let missing = self.width.saturating_sub(count);
        let is_finite = text.starts_with(|c: char| c.is_ascii_hexdigit());
        let (fill, align) = match self.align {
            None if align == '=' && self.has_zeros && is_finite => ('0', '='),
            None if align == '=' => (' ', '>'),
            own => (self.fill.unwrap_or(' '), own.unwrap_or(align)),
        };
        let (left, middle, right) = match align {
            '<' => (0, 0, missing),
            '^' => (missing / 2, 0, missing - missing / 2),
            '=' => (0, missing, 0),
            _ => (missing, 0, 0),
        };
        let fills = |out: &mut String, count| out.extend(std::iter::repeat_n(fill, count));
        fills(out, left);
        out.push_str(before);
        fills(out, middle);
        out.push_str(text);
        fills(out, right);
    }
}

/// Rust's `1.5e7` as `1.5e+07`.
fn exponential(text: &str) -> String {
    let (digits, exponent) = text.split_once('e').unwrap_or((text, "0"));
    let (sign, exponent) = match exponent.strip_prefix('-') {
        Some(exponent) => ('-', exponent),
        None => ('+', exponent),
    };
    format!("{digits}e{sign}{exponent:0>2}")
}

/// The exponent of a number that Rust has written with one.
fn exponent_of(text: &str) -> i32 {
    text.split_once('e').and_then(|(_, exponent)| exponent.parse().ok()).unwrap_or(0)
}

/// The fewest digits that determine a number.
fn shortest(size: f64) -> String {
    let text = format!("{size:e}");
    match exponent_of(&text) {
        -4..=15 => format!("{size}"),
        _ => exponential(&text),
    }
}

/// C's `%g`: a number of that many digits, without zeros at the end unless `keeps_zeros`.
fn general(size: f64, precision: usize, keeps_zeros: bool) -> String {
    let precision = precision.max(1);
    let text = format!("{size:.*e}", precision - 1);
    let exponent = exponent_of(&text);
    let last = precision as i32 - 1 - exponent;
    let is_plain = exponent >= -4 && last >= 0;
    let text = if is_plain { format!("{size:.*}", last as usize) } else { text };
    let (digits, rest) = text.find('e').map_or((text.as_str(), ""), |at| text.split_at(at));
    let digits = match digits.contains('.') && !keeps_zeros {
        true => digits.trim_end_matches('0').trim_end_matches('.'),
        false => digits,
    };
    if is_plain { digits.to_string() } else { exponential(&format!("{digits}{rest}")) }
}
