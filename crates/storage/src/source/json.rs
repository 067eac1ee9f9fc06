//! JSON as Python writes it: with `NaN`, `Infinity` and `-Infinity`.
//!
//! Python's `json` writes these words for floats, so attributes of xarray and zarr-python have them (`missing_value:
//! NaN`). Here they become texts of the same letters, which is how Zarr itself writes such fill values.

use serde_json::Value;
use std::borrow::Cow;

/// The words, the longest first where one is a prefix of another.
const WORDS: [&[u8]; 3] = [b"-Infinity", b"Infinity", b"NaN"];

/// Parses JSON. If the text is invalid either way, the error is that of strict JSON.
pub(crate) fn parse(bytes: &[u8]) -> serde_json::Result<Value> {
    match serde_json::from_slice(bytes) {
        Ok(value) => Ok(value),
        Err(e) => match quoted(bytes) {
            Cow::Borrowed(_) => Err(e),
            Cow::Owned(text) => serde_json::from_slice(&text),
        },
    }
}

/// Adds quotes around such words outside of texts.
fn quoted(bytes: &[u8]) -> Cow<'_, [u8]> {
    let mut out: Option<Vec<u8>> = None;
    let (mut i, mut in_text) = (0, false);
    while let Some(&b) = bytes.get(i) {
        let word = WORDS.iter().find(|w| !in_text && bytes[i..].starts_with(w));
        if let Some(word) = word {
            let out = out.get_or_insert_with(|| bytes[..i].to_vec());
            out.push(b'"');
            out.extend_from_slice(word);
            out.push(b'"');
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
    fn words_of_python_are_texts() {
        // json.dumps of floats in Python.
        let text = r#"{"a": NaN, "b": [Infinity, -Infinity, 1.5], "NaN": "x \" NaN", "c": "NaN\\", "d": NaN}"#;
        let want = json!({
            "a": "NaN", "b": ["Infinity", "-Infinity", 1.5], "NaN": "x \" NaN", "c": "NaN\\", "d": "NaN"
        });
        assert_eq!(parse(text.as_bytes()).unwrap(), want);
        for bad in ["{\"a\": nan}", "{\"a\": NaN", "{\"a\": NaNa}", "", "{\"a\": --Infinity}"] {
            assert!(parse(bad.as_bytes()).is_err(), "{bad}");
        }
    }
}
