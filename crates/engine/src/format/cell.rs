//! One cell as text and as JSON.

use super::digits::Float;
use crate::answer::Cell;
use std::io::{self, Write};

impl Cell<'_> {
    /// The cell as text for CSV and boxes: NULL is empty, floats have their shortest digits.
    pub fn text(&self) -> String {
        match self {
            Cell::Null => String::new(),
            Cell::Bool(b) => b.to_string(),
            Cell::Int(v) => v.to_string(),
            Cell::UInt(v) => v.to_string(),
            Cell::F32(v) => float_text((*v).into()),
            Cell::F64(v) => float_text((*v).into()),
            Cell::Text(t) => t.to_string(),
            Cell::List(_) | Cell::Record(_) => {
                let mut out = Vec::new();
                // Writing into memory cannot fail.
                let _ = self.write_json(&mut out);
                String::from_utf8_lossy(&out).into_owned()
            }
        }
    }

    /// The cell as JSON: values without a JSON number are `"NaN"`, `"Infinity"`, `"-Infinity"` and `null`.
    pub(super) fn write_json(&self, out: &mut dyn Write) -> io::Result<()> {
        match self {
            Cell::Null => out.write_all(b"null"),
            Cell::Bool(b) => write!(out, "{b}"),
            Cell::Int(v) => out.write_all(itoa::Buffer::new().format(*v).as_bytes()),
            Cell::UInt(v) => out.write_all(itoa::Buffer::new().format(*v).as_bytes()),
            Cell::F32(v) if v.is_finite() => write_json_float((*v).into(), out),
            Cell::F64(v) if v.is_finite() => write_json_float((*v).into(), out),
            Cell::F32(_) | Cell::F64(_) => write!(out, "\"{}\"", self.text()),
            Cell::Text(t) => write_json_string(out, t),
            Cell::List(cells) => {
                out.write_all(b"[")?;
                separated(out, cells, |out, c| c.write_json(out))?;
                out.write_all(b"]")
            }
            Cell::Record(cells) => {
                out.write_all(b"{")?;
                separated(out, cells, |out, (name, c)| {
                    write_json_string(out, name)?;
                    out.write_all(b":")?;
                    c.write_json(out)
                })?;
                out.write_all(b"}")
            }
        }
    }
}

/// Items with commas between them.
pub(super) fn separated<T>(
    out: &mut dyn Write,
    items: impl IntoIterator<Item = T>,
    mut write: impl FnMut(&mut dyn Write, T) -> io::Result<()>,
) -> io::Result<()> {
    for (i, item) in items.into_iter().enumerate() {
        if i > 0 {
            out.write_all(b",")?;
        }
        write(out, item)?;
    }
    Ok(())
}

fn write_json_float(value: Float, out: &mut dyn Write) -> io::Result<()> {
    let mut text = Vec::with_capacity(24);
    value.write_json(&mut text);
    out.write_all(&text)
}

/// A JSON string with its quotes.
pub(super) fn write_json_string(out: &mut dyn Write, text: &str) -> io::Result<()> {
    serde_json::to_writer(out, text).map_err(io::Error::from)
}

fn float_text(v: Float) -> String {
    if v.value.is_nan() {
        "NaN".into()
    } else if v.value.is_infinite() {
        if v.value > 0.0 { "Infinity".into() } else { "-Infinity".into() }
    } else {
        v.repr()
    }
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
    fn json_has_a_word_for_everything() {
        assert_eq!(json(Cell::F64(f64::NAN)), "\"NaN\"");
        assert_eq!(json(Cell::F32(f32::NEG_INFINITY)), "\"-Infinity\"");
        assert_eq!(json(Cell::F64(f64::INFINITY)), "\"Infinity\"");
        assert_eq!(json(Cell::Null), "null");
        assert_eq!(json(Cell::F32(0.1)), "0.1");
        assert_eq!(json(Cell::F64(1e300)), "1e300");
        assert_eq!(json(Cell::F64(-1.25e-7)), "-1.25e-7");
        assert_eq!(json(Cell::F64(1e15)), "1000000000000000.0");
        assert_eq!(json(Cell::F32(16_777_216.0)), "16777216.0");
        assert_eq!(json(Cell::UInt(u64::MAX)), "18446744073709551615");
        assert_eq!(json(Cell::Text("a\"\n\u{1}".into())), "\"a\\\"\\n\\u0001\"");
        assert_eq!(json(Cell::List(vec![Cell::Int(1), Cell::Null])), "[1,null]");
    }
}
