//! One cell as text and as JSON.

use crate::answer::Cell;
use std::fmt::{Display, LowerExp};
use std::io::{self, Write};

impl Cell<'_> {
    /// The cell as text for CSV and boxes: NULL is empty, floats have their shortest digits.
    pub(super) fn text(&self) -> String {
        match self {
            Cell::Null => String::new(),
            Cell::Bool(b) => b.to_string(),
            Cell::Int(v) => v.to_string(),
            Cell::UInt(v) => v.to_string(),
            Cell::F32(v) => float_text(f64::from(*v), v),
            Cell::F64(v) => float_text(*v, v),
            Cell::Text(t) => t.to_string(),
            Cell::List(_) => {
                let mut out = Vec::new();
                // Writing into memory cannot fail.
                let _ = self.write_json(&mut out);
                String::from_utf8_lossy(&out).into_owned()
            }
        }
    }

    /// The cell as JSON: `"NaN"`, `"Infinity"`, `"-Infinity"` and `null` for what JSON has no number for.
    pub(super) fn write_json(&self, out: &mut dyn Write) -> io::Result<()> {
        match self {
            Cell::Null => out.write_all(b"null"),
            Cell::Bool(b) => write!(out, "{b}"),
            Cell::Int(v) => write!(out, "{v}"),
            Cell::UInt(v) => write!(out, "{v}"),
            Cell::F32(v) if v.is_finite() => write!(out, "{v:?}"),
            Cell::F64(v) if v.is_finite() => write!(out, "{v:?}"),
            Cell::F32(_) | Cell::F64(_) => write!(out, "\"{}\"", self.text()),
            Cell::Text(t) => write_json_string(out, t),
            Cell::List(cells) => {
                out.write_all(b"[")?;
                for (i, c) in cells.iter().enumerate() {
                    if i > 0 {
                        out.write_all(b",")?;
                    }
                    c.write_json(out)?;
                }
                out.write_all(b"]")
            }
        }
    }
}

/// A JSON string with its quotes.
pub(super) fn write_json_string(out: &mut dyn Write, text: &str) -> io::Result<()> {
    serde_json::to_writer(out, text).map_err(io::Error::from)
}

fn float_text<T: LowerExp + Display>(value: f64, shown: &T) -> String {
    if value.is_nan() {
        "NaN".into()
    } else if value.is_infinite() {
        if value > 0.0 { "Infinity".into() } else { "-Infinity".into() }
    } else {
        repr(shown)
    }
}

/// A finite float as Python's `repr` writes it: shortest digits, an exponent from 1e16 on and below 1e-4.
pub(super) fn repr<T: LowerExp + Display>(value: &T) -> String {
    let scientific = format!("{value:e}");
    let Some((mantissa, exponent)) = scientific.split_once('e') else { return scientific };
    let exponent: i32 = exponent.parse().unwrap_or_default();
    if (-4..16).contains(&exponent) {
        let plain = value.to_string();
        return if plain.contains('.') { plain } else { plain + ".0" };
    }
    format!("{mantissa}e{}", signed_exponent(exponent))
}

/// `+16`, `-05`, `+300`: a sign and at least two digits, as C prints an exponent.
pub(super) fn signed_exponent(exponent: i32) -> String {
    format!("{}{:02}", if exponent < 0 { '-' } else { '+' }, exponent.unsigned_abs())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn json(c: Cell<'_>) -> String {
        let mut out = Vec::new();
        assert!(c.write_json(&mut out).is_ok());
        String::from_utf8_lossy(&out).into_owned()
    }

    #[test]
    fn floats_are_pythons() {
        // repr(x) of CPython 3.11.
        for (x, want) in [
            (1.0, "1.0"),
            (0.1, "0.1"),
            (-0.0, "-0.0"),
            (1e16, "1e+16"),
            (123456789012345680.0, "1.2345678901234568e+17"),
            (9999999999999998.0, "9999999999999998.0"),
            (1e-4, "0.0001"),
            (1.5e-5, "1.5e-05"),
            (5e-324, "5e-324"),
            (1.7976931348623157e308, "1.7976931348623157e+308"),
        ] {
            assert_eq!(repr(&x), want);
        }
        assert_eq!(Cell::F32(0.1).text(), "0.1");
        assert_eq!(Cell::F32(16777216.0).text(), "16777216.0");
    }

    #[test]
    fn json_has_a_word_for_everything() {
        assert_eq!(json(Cell::F64(f64::NAN)), "\"NaN\"");
        assert_eq!(json(Cell::F32(f32::NEG_INFINITY)), "\"-Infinity\"");
        assert_eq!(json(Cell::F64(f64::INFINITY)), "\"Infinity\"");
        assert_eq!(json(Cell::Null), "null");
        assert_eq!(json(Cell::F32(0.1)), "0.1");
        assert_eq!(json(Cell::F64(1e300)), "1e300");
        assert_eq!(json(Cell::UInt(u64::MAX)), "18446744073709551615");
        assert_eq!(json(Cell::Text("a\"\n\u{1}".into())), "\"a\\\"\\n\\u0001\"");
        assert_eq!(json(Cell::List(vec![Cell::Int(1), Cell::Null])), "[1,null]");
    }
}
