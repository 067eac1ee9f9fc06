//! Compression of chunks, in the user's notation: `zstd:5`, `blosc:lz4:5`, `gzip`, `none`.

use crate::sink::SinkError;
use serde_json::{Value, json};
use std::fmt;

/// Compression of chunks.
///
/// # Source
/// Zarr v3 codecs `zstd`, `gzip`, `blosc`, version 1.0; numcodecs' configurations of the same for Zarr v2.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Codec {
    /// No compression.
    None,
    /// Zstandard, level 1 to 22.
    Zstd(i32),
    /// Gzip, level 0 to 9.
    Gzip(u32),
    /// Blosc with byte shuffle, level 0 to 9.
    Blosc(&'static str, u8),
}

impl Default for Codec {
    /// Zstandard at its fastest level: fastest to read, and floats gain little from a higher one.
    fn default() -> Self {
        Codec::Zstd(1)
    }
}

impl fmt::Display for Codec {
    /// Formats the codec as [`Codec::parse`] reads it.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Codec::None => f.write_str("none"),
            Codec::Zstd(level) => write!(f, "zstd:{level}"),
            Codec::Gzip(level) => write!(f, "gzip:{level}"),
            Codec::Blosc(name, level) => write!(f, "blosc:{name}:{level}"),
        }
    }
}

/// Compressors inside of Blosc.
const BLOSC: [&str; 5] = ["lz4", "lz4hc", "zstd", "zlib", "blosclz"];

impl Codec {
    /// Parses `none`, `zstd[:1-22]`, `gzip[:0-9]`, `lz4[:0-9]`, `blosc[:lz4|lz4hc|zstd|zlib|blosclz[:0-9]]`.
    ///
    /// # Errors
    /// Anything else; the hint lists the codecs.
    pub fn parse(text: &str) -> Result<Codec, SinkError> {
        let lower = text.trim().to_ascii_lowercase();
        let fail = |reason: String| {
            SinkError::Option {
            option: "codec",
            reason,
            hint: Some("codecs are 'zstd:1' to 'zstd:22', 'gzip:0' to 'gzip:9', 'lz4', 'blosc:lz4:5', 'blosc:zstd:5' and 'none'".into()),
        }
        };
        let mut parts = lower.split(':');
        let name = parts.next().unwrap_or_default();
        let rest: Vec<&str> = parts.collect();
        let level = |text: Option<&&str>, default: u8, max: u8, min: u8| -> Result<u8, SinkError> {
            let Some(text) = text else { return Ok(default) };
            text.parse::<u8>()
                .ok()
                .filter(|n| (min..=max).contains(n))
                .ok_or_else(|| fail(format!("`{text}` is not a level of {name}: {min} to {max}")))
        };
        let most = |n: usize| match rest.len() > n {
            true => Err(fail(format!("`{text}` has too many parts"))),
            false => Ok(()),
        };
        match name {
            "none" | "uncompressed" => most(0).map(|()| Codec::None),
            "zstd" => {
                most(1)?;
                Ok(Codec::Zstd(level(rest.first(), 3, 22, 1)?.into()))
            }
            "gzip" => {
                most(1)?;
                Ok(Codec::Gzip(level(rest.first(), 5, 9, 0)?.into()))
            }
            "lz4" => {
                most(1)?;
                Ok(Codec::Blosc("lz4", level(rest.first(), 5, 9, 0)?))
            }
            "blosc" => {
                most(2)?;
                let inner = rest.first().copied().unwrap_or("lz4");
                let known = BLOSC.iter().find(|c| **c == inner);
                let cname =
                    known.ok_or_else(|| fail(format!("Blosc has no compressor `{inner}`")))?;
                Ok(Codec::Blosc(cname, level(rest.get(1), 5, 9, 0)?))
            }
            _ => Err(fail(format!("unknown codec `{text}`"))),
        }
    }

    /// The compressing part of a Zarr v3 codec chain, for cells of `size` bytes.
    pub(super) fn v3(self, size: usize) -> Option<Value> {
        Some(match self {
            Codec::None => return None,
            Codec::Zstd(level) => {
                json!({"name": "zstd", "configuration": {"level": level, "checksum": false}})
            }
            Codec::Gzip(level) => json!({"name": "gzip", "configuration": {"level": level}}),
            Codec::Blosc(cname, level) => json!({"name": "blosc", "configuration": {
                "cname": cname, "clevel": level, "blocksize": 0, "typesize": size,
                "shuffle": if size > 1 { "shuffle" } else { "noshuffle" },
            }}),
        })
    }

    /// Zarr v2's `compressor`, for cells of `size` bytes.
    pub(super) fn v2(self, size: usize) -> Value {
        match self {
            Codec::None => Value::Null,
            Codec::Zstd(level) => json!({"id": "zstd", "level": level}),
            Codec::Gzip(level) => json!({"id": "gzip", "level": level}),
            Codec::Blosc(cname, level) => json!({
                "id": "blosc", "cname": cname, "clevel": level, "blocksize": 0,
                "shuffle": u8::from(size > 1),
            }),
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;

    #[test]
    fn codecs_parse_and_faults_are_reported() {
        let p = |s: &str| Codec::parse(s).unwrap();
        assert_eq!(p("zstd:5"), Codec::Zstd(5));
        assert_eq!(p("ZSTD"), Codec::Zstd(3));
        assert_eq!(p("lz4"), Codec::Blosc("lz4", 5));
        assert_eq!(p("blosc:zstd:9"), Codec::Blosc("zstd", 9));
        assert_eq!(p("gzip:0"), Codec::Gzip(0));
        assert_eq!(p("none"), Codec::None);
        for text in ["none", "zstd:22", "gzip:0", "blosc:lz4:5", "blosc:blosclz:9"] {
            assert_eq!(p(text).to_string(), text);
        }
        for bad in ["", "zip", "zstd:0", "zstd:23", "zstd:x", "zstd:3:3", "blosc:snappy", "none:1"]
        {
            assert_eq!(Codec::parse(bad).unwrap_err().code(), "invalid_option", "{bad}");
        }
    }
}
