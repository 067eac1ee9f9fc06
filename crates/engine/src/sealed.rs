//! JSON documents that begin with a checksum of the whole document.
//!
//! ```text
//!   {"crc32c":"1f0a93c7", …}        CRC-32C of the document in which these eight digits are zeros
//! ```
//! Documents of earlier versions have no checksum and are not checked.

use tessera_storage::manifest::Seal;
use tessera_storage::source::SourceError;

/// The begin of a document; the digits follow.
const FRONT: &[u8] = b"{\"crc32c\":\"";
/// The digits while the checksum is computed.
const ZEROS: &[u8; 8] = b"00000000";

/// Adds the checksum to the JSON object `json`.
pub(crate) fn seal(json: &[u8]) -> Vec<u8> {
    let members = json.strip_prefix(b"{").unwrap_or(json);
    let comma: &[u8] = if members.trim_ascii_start() == b"}" { b"\"" } else { b"\"," };
    let mut out = [FRONT, ZEROS, comma, members].concat();
    let digits = format!("{:08x}", Seal::of(&out).crc32c);
    out[FRONT.len()..FRONT.len() + ZEROS.len()].copy_from_slice(digits.as_bytes());
    out
}

/// Refuses a document with a wrong checksum; `path` is its name in the error.
///
/// # Errors
/// [`SourceError::Corrupt`].
pub(crate) fn check(path: &str, document: &[u8]) -> Result<(), SourceError> {
    let digits = document.strip_prefix(FRONT).and_then(|rest| rest.first_chunk::<8>());
    let Some(told) = digits else { return Ok(()) };
    let mut zeroed = document.to_vec();
    zeroed[FRONT.len()..FRONT.len() + ZEROS.len()].copy_from_slice(ZEROS);
    let is = format!("{:08x}", Seal::of(&zeroed).crc32c);
    match is.as_bytes() == told {
        true => Ok(()),
        false => Err(SourceError::Corrupt {
            path: path.into(),
            expected: format!("CRC-32C {}", String::from_utf8_lossy(told)),
            found: format!("{} bytes with CRC-32C {is}", document.len()),
        }),
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;
    use serde_json::Value;

    #[test]
    fn every_change_behind_the_first_words_is_found() {
        let body = br#"{"name":"x","query":"SELECT 1.5e300 FROM y"}"#;
        let sealed = seal(body);
        check("x", &sealed).unwrap();
        let value: Value = serde_json::from_slice(&sealed).unwrap();
        assert_eq!(value["query"], "SELECT 1.5e300 FROM y");
        for bit in 0..sealed.len() * 8 {
            let mut bad = sealed.clone();
            bad[bit / 8] ^= 1 << (bit % 8);
            // A document that no longer begins as a sealed one is not JSON, or has everything but the checksum.
            let is_found = check("x", &bad).is_err()
                || serde_json::from_slice::<Value>(&bad)
                    .map_or(true, |v| bit / 8 < FRONT.len() && v["query"] == value["query"]);
            assert!(is_found, "{bit}");
        }
    }

    #[test]
    fn empty_objects_and_old_documents_are_taken() {
        for body in [&b"{}"[..], b"{ }"] {
            let sealed = seal(body);
            check("x", &sealed).unwrap();
            assert!(serde_json::from_slice::<Value>(&sealed).is_ok());
        }
        check("x", br#"{"format_version": 1}"#).unwrap();
        check("x", b"").unwrap();
    }
}
