//! numcodecs' codecs of bytes, undone before those of zarrs: `lz4` and checksums, and whatever comes after one of them.
//!
//! ```text
//!   cells ── zarrs: bytes, shuffle ──▶ … ── lz4 ──▶ … ── zstd ──▶ … ── crc32 ──▶ chunk
//!                                       ◀──────────── undone here ──────────
//! ```
//!
//! # Source
//! numcodecs 0.16: `numcodecs.lz4`, `checksum32`, `fletcher32`, `jenkins`.

use crate::formats::filters::{Checksum, Filter, Shuffle, Stream, Zstd};
use crate::formats::hdf5::{Blosc, lookup3};
use crate::source::lz4;
use serde_json::{Map, Value, json};
use std::borrow::Cow;
use std::sync::Arc;

/// Codecs with which the part that is undone here begins; zarrs has them not, or without all their options.
const FIRST: [&str; 6] = ["lz4", "crc32", "crc32c", "adler32", "fletcher32", "jenkins_lookup3"];

/// Codecs in the order of encoding.
pub(crate) type Tail = Vec<Arc<dyn Filter>>;

/// The name of a codec without `numcodecs.`, and true if it is one of numcodecs: those of Zarr v3 without that prefix
/// may be others.
fn name_of(codec: &Value) -> (&str, bool) {
    if let Some(id) = codec.get("id").and_then(Value::as_str) {
        return (id, true);
    }
    let name = codec.get("name").unwrap_or(codec).as_str().unwrap_or_default();
    match name.strip_prefix("numcodecs.") {
        Some(name) => (name, true),
        None => (name, false),
    }
}

/// Position of the first codec of a list that is undone here; the others behind it are, too.
pub(crate) fn position(list: &[Value]) -> Option<usize> {
    list.iter().position(|codec| match name_of(codec) {
        (name, true) => FIRST.contains(&name),
        (name, false) => name == "lz4",
    })
}

/// True if all codecs are written, too.
pub(crate) fn is_written(tail: &[Arc<dyn Filter>]) -> bool {
    tail.iter().all(|codec| codec.encode(Vec::new()).is_some())
}

/// Encodes bytes by codecs; `None` if one of them is not written.
pub(crate) fn encode(tail: &[Arc<dyn Filter>], bytes: Vec<u8>) -> Option<Vec<u8>> {
    tail.iter().try_fold(bytes, |bytes, codec| codec.encode(bytes))
}

/// Parses codecs that were removed from the metadata.
///
/// # Errors
/// The codec that is not supported.
pub(crate) fn parse(list: &[Value]) -> Result<Tail, String> {
    list.iter().map(filter).collect()
}

fn filter(codec: &Value) -> Result<Arc<dyn Filter>, String> {
    let (name, is_numcodecs) = name_of(codec);
    let config = match is_numcodecs && codec.get("id").is_some() {
        true => Some(codec),
        false => codec.get("configuration"),
    };
    let config = config.and_then(Value::as_object).cloned().unwrap_or_default();
    let sum = |sum: fn(&[u8]) -> u32, name: &'static str, is_first: bool| -> Result<_, String> {
        let is_first = match config.get("location").and_then(Value::as_str) {
            None => is_first,
            Some("start") => true,
            Some("end") => false,
            Some(other) => return Err(format!("codec `{name}` with its checksum at `{other}`")),
        };
        Ok(Arc::new(Checksum::new(name, Box::new(sum), is_first)) as Arc<dyn Filter>)
    };
    match name {
        "lz4" => Ok(Arc::new(Lz4)),
        "crc32" => sum(crc32fast::hash, "crc32", true),
        "crc32c" => sum(crc32c::crc32c, "crc32c", false),
        "adler32" => sum(libdeflater::adler32, "adler32", true),
        "fletcher32" => Ok(Arc::new(Checksum::fletcher32())),
        "jenkins_lookup3" => {
            if config.get("prefix").is_some_and(|prefix| !prefix.is_null()) {
                return Err("codec `jenkins_lookup3` with a prefix".into());
            }
            let seed = config.get("initval").and_then(Value::as_u64).unwrap_or(0) as u32;
            let sum = Box::new(move |bytes: &[u8]| lookup3(bytes, seed));
            Ok(Arc::new(Checksum::new("jenkins_lookup3", sum, false)))
        }
        "zstd" => Ok(Arc::new(Zstd)),
        "zlib" => Ok(Arc::new(Stream::Zlib)),
        "gzip" => Ok(Arc::new(Stream::Gzip)),
        "bz2" => Ok(Arc::new(Stream::Bzip2)),
        "blosc" => Ok(Arc::new(Blosc)),
        "shuffle" => {
            let size = config.get("elementsize").and_then(Value::as_u64).unwrap_or(4);
            Ok(Arc::new(Shuffle { size: usize::try_from(size).unwrap_or(usize::MAX) }))
        }
        other => Err(format!("codec {other}")),
    }
}

/// Writes numcodecs' codecs of Zarr v3 as zarrs expects them: by the names of Zarr, with all options. Cells have `size`
/// bytes.
pub(crate) fn spell_out(list: &mut [Value], size: u64) {
    for codec in list {
        let (name, is_numcodecs) = name_of(codec);
        let name = name.to_string();
        if name == "sharding_indexed" {
            let inner = codec.get_mut("configuration").and_then(|c| c.get_mut("codecs"));
            if let Some(Value::Array(inner)) = inner {
                spell_out(inner, size);
            }
            continue;
        }
        if !is_numcodecs {
            continue;
        }
        let config = codec.get("configuration").and_then(Value::as_object);
        let config = config.cloned().unwrap_or_default();
        let level = |default: i64, known: std::ops::RangeInclusive<i64>| {
            let level = config.get("level").and_then(Value::as_i64);
            level.filter(|level| known.contains(level)).unwrap_or(default)
        };
        let made = match name.as_str() {
            // 0 is zstd's own default.
            "zstd" => {
                let has_sum = config.get("checksum").and_then(Value::as_bool).unwrap_or(false);
                ("zstd", json!({"level": level(0, -131_072..=22), "checksum": has_sum}))
            }
            "gzip" => ("gzip", json!({"level": level(1, 0..=9)})),
            "zlib" => ("numcodecs.zlib", json!({"level": level(1, 0..=9)})),
            "bz2" => ("numcodecs.bz2", json!({"level": level(1, 1..=9)})),
            "shuffle" => {
                // A shuffle of single bytes does nothing.
                let item = config.get("elementsize").and_then(Value::as_u64).unwrap_or(4).max(1);
                ("numcodecs.shuffle", json!({"elementsize": item}))
            }
            "blosc" => ("blosc", blosc(&config, size)),
            _ => continue,
        };
        *codec = json!({"name": made.0, "configuration": made.1});
    }
}

/// The configuration of Zarr's `blosc` for that of numcodecs.
fn blosc(config: &Map<String, Value>, size: u64) -> Value {
    let text = config.get("cname").and_then(Value::as_str).unwrap_or("lz4");
    let level = config.get("clevel").and_then(Value::as_u64).unwrap_or(5);
    let block = config.get("blocksize").and_then(Value::as_u64).unwrap_or(0);
    // -1 chooses by the size of the cells.
    let shuffle = match config.get("shuffle").and_then(Value::as_i64).unwrap_or(1) {
        0 => "noshuffle",
        2 => "bitshuffle",
        -1 if size == 1 => "bitshuffle",
        _ => "shuffle",
    };
    let item = size.clamp(1, 255);
    json!({"cname": text, "clevel": level, "shuffle": shuffle, "typesize": item, "blocksize": block})
}

/// numcodecs' LZ4: the decoded length, then one block.
#[derive(Debug)]
pub(crate) struct Lz4;

impl Filter for Lz4 {
    fn undo<'a>(&self, bytes: Cow<'a, [u8]>, limit: usize) -> Result<Cow<'a, [u8]>, String> {
        let len = lz4::length(&bytes)?;
        if len > limit as u64 {
            return Err(format!("lz4: it decodes to {len} bytes, expected at most {limit}"));
        }
        let mut out = vec![0; len as usize];
        lz4::unpack(&bytes, &mut out)?;
        Ok(Cow::Owned(out))
    }

    fn undo_to(&self, bytes: &[u8], out: &mut [u8]) -> Result<bool, String> {
        match lz4::unpack(bytes, out)? {
            n if n == out.len() => Ok(true),
            n => Err(format!("lz4: it decodes to {n} bytes, expected {}", out.len())),
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;

    fn undone(codec: Value, bytes: &[u8]) -> Result<Vec<u8>, String> {
        let tail = parse(&[codec]).unwrap();
        tail[0].undo(Cow::Owned(bytes.to_vec()), 64).map(Cow::into_owned)
    }

    #[test]
    fn checksums_are_those_of_numcodecs() {
        // numcodecs.Adler32().encode(b"abcde") and so on.
        let text = b"abcde";
        let cases = [
            (json!({"id": "adler32"}), [&[240, 1, 200, 5][..], &text[..]].concat()),
            (
                json!({"name": "numcodecs.crc32", "configuration": {"location": "end"}}),
                [&text[..], &[101, 216, 135, 133]].concat(),
            ),
            (json!({"name": "numcodecs.crc32c"}), [&text[..], &[151, 214, 80, 196]].concat()),
            (json!("numcodecs.fletcher32"), [&text[..], &[199, 41, 240, 79]].concat()),
        ];
        for (codec, bytes) in cases {
            assert_eq!(undone(codec.clone(), &bytes).unwrap(), text, "{codec}");
            let tail = parse(std::slice::from_ref(&codec)).unwrap();
            assert!(is_written(&tail));
            assert_eq!(encode(&tail, text.to_vec()).unwrap(), bytes, "{codec}");
            for bit in 0..8 * bytes.len() {
                let mut flipped = bytes.clone();
                flipped[bit / 8] ^= 1 << (bit % 8);
                assert!(undone(codec.clone(), &flipped).is_err(), "{codec}: {bit}");
            }
            assert!(undone(codec.clone(), &bytes[..3]).is_err(), "{codec}");
        }
        let twelve: Vec<u8> = (0..12).collect();
        let codec = json!({"id": "jenkins_lookup3", "initval": 7, "prefix": null});
        let bytes = [&twelve[..], &[208, 175, 251, 114]].concat();
        assert_eq!(undone(codec, &bytes).unwrap(), twelve);
        let quote = b"Four score and seven years ago";
        let bytes = [&quote[..], &[81, 5, 119, 23]].concat();
        assert_eq!(undone(json!({"id": "jenkins_lookup3"}), &bytes).unwrap(), quote);
    }

    #[test]
    fn other_codecs_are_named() {
        let named = |codec: Value| parse(&[codec]).err().unwrap();
        assert_eq!(named(json!({"name": "numcodecs.lzma"})), "codec lzma");
        let prefix = json!({"id": "jenkins_lookup3", "prefix": [1]});
        assert_eq!(named(prefix), "codec `jenkins_lookup3` with a prefix");
        let place = json!({"id": "crc32", "location": "middle"});
        assert_eq!(named(place), "codec `crc32` with its checksum at `middle`");
        assert!(undone(json!({"id": "lz4"}), &[255, 0, 0, 0, 0]).is_err());
        let tail = parse(&[json!({"id": "crc32"}), json!({"id": "lz4"})]).unwrap();
        assert!(!is_written(&tail) && encode(&tail, vec![1]).is_none());
    }

    #[test]
    fn options_are_spelled_out() {
        let mut list = vec![
            json!({"name": "numcodecs.blosc", "configuration": {"cname": "zstd", "shuffle": -1}}),
            json!({"name": "numcodecs.zlib", "configuration": {}}),
            json!({"name": "crc32c"}),
        ];
        spell_out(&mut list, 1);
        let blosc = json!({"cname": "zstd", "clevel": 5, "shuffle": "bitshuffle", "typesize": 1,
            "blocksize": 0});
        assert_eq!(list[0], json!({"name": "blosc", "configuration": blosc}));
        assert_eq!(list[1], json!({"name": "numcodecs.zlib", "configuration": {"level": 1}}));
        assert_eq!(list[2], json!({"name": "crc32c"}));
        assert_eq!(position(&list), None);
        assert_eq!(
            position(&[json!({"name": "bytes"}), json!({"name": "numcodecs.crc32c"})]),
            Some(1)
        );
    }
}
