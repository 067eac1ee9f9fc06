//! JSON as Python writes it: with `NaN`, `Infinity` and `-Infinity`.
//!
//! Python's `json` writes these words for floats, so attributes of xarray and zarr-python have them (`missing_value:
//! NaN`). JSON has no such numbers, and a text of the same letters would be another value: in memory they are objects
//! with one key, `{"$float": "NaN"}`. A file's attribute that is this very object is not told from the float.

use serde_json::{Map, Value};
use std::borrow::Cow;
use std::fmt;

/// The words, the longest first where one is a prefix of another.
const WORDS: [&str; 3] = ["-Infinity", "Infinity", "NaN"];

/// The key of a float that JSON has no number for.
const KEY: &str = "$float";

/// A float as the value of an attribute.
pub fn float(v: f64) -> Value {
    let word = match v {
        v if v.is_nan() => "NaN",
        f64::INFINITY => "Infinity",
        f64::NEG_INFINITY => "-Infinity",
        v => return v.into(),
    };
    Value::Object(Map::from_iter([(KEY.to_string(), word.into())]))
}

/// Python's word for a float that JSON has no number for; `None` of all other values.
pub fn float_word(value: &Value) -> Option<&'static str> {
    let object = value.as_object().filter(|object| object.len() == 1)?;
    let word = object.get(KEY)?.as_str()?;
    WORDS.into_iter().find(|w| *w == word)
}

/// A value that is a number, NaN or an infinity.
pub fn as_float(value: &Value) -> Option<f64> {
    match float_word(value) {
        Some("NaN") => Some(f64::NAN),
        Some("Infinity") => Some(f64::INFINITY),
        Some(_) => Some(f64::NEG_INFINITY),
        None => value.as_f64(),
    }
}

/// A value in Python's JSON, on one line; `{:#}` is indented.
pub struct PythonJson<'a>(pub &'a Value);

impl fmt::Display for PythonJson<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write(self.0, f.alternate().then_some(0), f)
    }
}

/// Writes a value that is indented by `depth`, if it is given.
fn write(value: &Value, depth: Option<usize>, f: &mut fmt::Formatter<'_>) -> fmt::Result {
    if let Some(word) = float_word(value) {
        return f.write_str(word);
    }
    let inner = depth.map(|d| d + 1);
    match value {
        Value::Array(list) if !list.is_empty() => {
            f.write_str("[")?;
            for (i, item) in list.iter().enumerate() {
                begin(i, inner, f)?;
                write(item, inner, f)?;
            }
            end("]", depth, f)
        }
        Value::Object(map) if !map.is_empty() => {
            f.write_str("{")?;
            for (i, (key, item)) in map.iter().enumerate() {
                begin(i, inner, f)?;
                write!(f, "{}:", Value::from(key.as_str()))?;
                f.write_str(if inner.is_some() { " " } else { "" })?;
                write(item, inner, f)?;
            }
            end("}", depth, f)
        }
        plain => write!(f, "{plain}"),
    }
}

/// Separates the item `i` from the one before.
fn begin(i: usize, depth: Option<usize>, f: &mut fmt::Formatter<'_>) -> fmt::Result {
    f.write_str(if i > 0 { "," } else { "" })?;
    line(depth, f)
}

fn end(bracket: &str, depth: Option<usize>, f: &mut fmt::Formatter<'_>) -> fmt::Result {
    line(depth, f)?;
    f.write_str(bracket)
}

fn line(depth: Option<usize>, f: &mut fmt::Formatter<'_>) -> fmt::Result {
    match depth {
        Some(depth) => write!(f, "\n{}", "  ".repeat(depth)),
        None => Ok(()),
    }
}

/// Parses JSON with such words. The error of a text without them is that of strict JSON; with them, its column is that
/// of the text with objects in their place.
///
/// # Errors
/// Those of `serde_json`.
pub fn parse_json(bytes: &[u8]) -> serde_json::Result<Value> {
    match serde_json::from_slice(bytes) {
        Ok(value) => Ok(value),
        Err(e) => match marked(bytes) {
            Cow::Borrowed(_) => Err(e),
            Cow::Owned(text) => serde_json::from_slice(&text),
        },
    }
}

/// Replaces such words outside of texts by their objects.
fn marked(bytes: &[u8]) -> Cow<'_, [u8]> {
    let mut out: Option<Vec<u8>> = None;
    let (mut i, mut in_text) = (0, false);
    while let Some(&b) = bytes.get(i) {
        let word = WORDS.iter().find(|w| !in_text && bytes[i..].starts_with(w.as_bytes()));
        if let Some(word) = word {
            let out = out.get_or_insert_with(|| bytes[..i].to_vec());
            out.extend_from_slice(format!("{{\"{KEY}\":\"{word}\"}}").as_bytes());
            i += word.len();
            continue;
        }
        // An escaped character does not end a text.
        let len = if in_text && b == b'\\' { 2 } else { 1 };
        in_text ^= b == b'"';
        let end = (i + len).min(bytes.len());
        if let Some(out) = &mut out {
            out.extend_from_slice(&bytes[i..end]);
        }
        i = end;
    }
    out.map_or(Cow::Borrowed(bytes), Cow::Owned)
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn words_of_python_are_floats() {
        // json.dumps of floats in Python.
        let text = r#"{"a": NaN, "b": [Infinity, -Infinity, 1.5], "NaN": "x \" NaN", "c": "NaN\\", "d": "NaN"}"#;
        let value = parse_json(text.as_bytes()).unwrap();
        assert!(as_float(&value["a"]).unwrap().is_nan());
        assert_eq!(as_float(&value["b"][0]), Some(f64::INFINITY));
        assert_eq!(as_float(&value["b"][1]), Some(f64::NEG_INFINITY));
        assert_eq!(as_float(&value["b"][2]), Some(1.5));
        assert_eq!(value["NaN"], json!("x \" NaN"));
        assert_eq!(value["c"], json!("NaN\\"));
        assert_eq!((&value["d"], as_float(&value["d"])), (&json!("NaN"), None));
        // json.dumps(json.loads(text), separators=(",", ":")) of Python.
        let shown =
            r#"{"a":NaN,"b":[Infinity,-Infinity,1.5],"NaN":"x \" NaN","c":"NaN\\","d":"NaN"}"#;
        assert_eq!(PythonJson(&value).to_string(), shown);
        for bad in ["{\"a\": nan}", "{\"a\": NaN", "{\"a\": NaNa}", "", "{\"a\": --Infinity}"] {
            assert!(parse_json(bad.as_bytes()).is_err(), "{bad}");
        }
    }

    #[test]
    fn indented_json_is_that_of_python() {
        // json.dumps(…, indent=2) of Python.
        let value = json!({"a": [1, float(f64::NAN)], "b": {}, "c": {"d": [], "e": null}});
        let want = "{\n  \"a\": [\n    1,\n    NaN\n  ],\n  \"b\": {},\n  \"c\": {\n    \"d\": [],\n    \"e\": null\n  }\n}";
        assert_eq!(format!("{:#}", PythonJson(&value)), want);
        let strict = json!({"a": [1, {"b": "é\n"}], "c": 0.1});
        assert_eq!(format!("{:#}", PythonJson(&strict)), format!("{strict:#}"));
        assert_eq!(PythonJson(&strict).to_string(), strict.to_string());
    }

    #[test]
    fn floats_are_numbers_or_marked() {
        assert_eq!(float(0.5), json!(0.5));
        for v in [f64::NAN, f64::INFINITY, f64::NEG_INFINITY] {
            assert_eq!(as_float(&float(v)).unwrap().to_bits(), v.to_bits());
            let through = serde_json::to_string(&float(v)).unwrap();
            assert_eq!(serde_json::from_str::<Value>(&through).unwrap(), float(v));
        }
        for other in [json!({"$float": "x"}), json!({"$float": "NaN", "b": 1}), json!("NaN")] {
            assert_eq!(as_float(&other), None);
        }
    }
}
