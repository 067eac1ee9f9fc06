//! A reference: bytes in the document, or a part of a file.

use crate::source::error::SourceError;
use crate::source::fence::Access;
use crate::source::location::{Location, Options, StoragePath};
use crate::source::store::{Parts, Store, Stores};
use bytes::Bytes;
use object_store::path::Path;
use object_store::{Error, GetOptions, GetRange, ObjectMeta, ObjectStore, Result};
use std::ops::Range;
use std::path::PathBuf;
use std::sync::Arc;

/// The target of a key.
#[derive(Clone)]
pub(super) enum Reference {
    Inline(Bytes),
    /// A part of a file; all of it without a range.
    Part {
        file: Arc<File>,
        range: Option<Range<u64>>,
    },
}

/// A file that references point to.
pub(super) enum File {
    Local(Store),
    Object { client: Arc<dyn ObjectStore>, path: Path, url: String },
}

/// A part of a file that was read.
pub(super) struct Answer {
    pub(super) bytes: Bytes,
    /// Bytes of the whole part.
    pub(super) size: u64,
    /// The bytes that were requested, from the begin of the part on.
    pub(super) range: Range<u64>,
    /// The file's description, or its version if it is a local file.
    pub(super) of: Of,
}

pub(super) enum Of {
    Object(ObjectMeta),
    Local(String),
}

impl File {
    /// The file at a URL. A relative path begins in the directory of the references.
    pub(super) fn at(
        url: &str,
        directory: &Directory,
        options: &Options,
        stores: &Stores,
    ) -> std::result::Result<File, SourceError> {
        let mut target = Location::parse(url)?;
        if let (StoragePath::Local(path), false) = (&target.path, url.contains("://")) {
            let relative = path.is_relative().then(|| path.clone());
            if let Some(relative) = relative {
                target = directory.file(&relative)?;
            }
        }
        let store = stores.at(&target, options, Access::Read)?;
        Ok(match store.parts() {
            Parts::Local(_) => File::Local(store),
            Parts::Object { client, prefix, .. } => {
                let bad = |e: object_store::path::Error| SourceError::BadUrl {
                    url: target.display.clone(),
                    reason: e.to_string(),
                };
                let path = Path::parse(&prefix).map_err(bad)?;
                File::Object { client, path, url: target.display.clone() }
            }
        })
    }

    /// URL of the file.
    pub(super) fn url(&self) -> &str {
        match self {
            File::Local(store) => store.root(),
            File::Object { url, .. } => url,
        }
    }

    /// Reads a part of the file; `shown` is the reference, for messages.
    pub(super) async fn get(
        &self,
        range: Option<&Range<u64>>,
        options: GetOptions,
        shown: impl Fn() -> String,
    ) -> Result<Answer> {
        let (client, path, url) = match self {
            File::Local(store) => return get_local(store, range, &options, shown),
            File::Object { client, path, url } => (client, path, url),
        };
        let asked = match range {
            None => options.range.clone(),
            Some(part) => {
                let r = within(options.range.as_ref(), 0..part.end - part.start);
                let (start, end) = (part.start + r.start, part.start + r.end);
                (start < end).then_some(GetRange::Bounded(start..end))
            }
        };
        let is_empty = range.is_some() && asked.is_none();
        let head = options.head || is_empty;
        let asked = GetOptions { range: asked, head, ..options };
        let got = client.get_opts(path, asked).await.map_err(|e| match e {
            // Without the file the chunk is lost; without a reference it was never written.
            Error::NotFound { .. } => failed(SourceError::NotFound { what: url.clone() }),
            e => e,
        })?;
        let (all, own) = (got.meta.clone(), got.range.clone());
        let size = range.map_or(all.size, |r| r.end - r.start);
        let bytes = if head { Bytes::new() } else { got.bytes().await? };
        let first = range.map_or(0, |r| r.start);
        let range = own.start.saturating_sub(first)..own.end.saturating_sub(first);
        Ok(Answer { bytes, size, range, of: Of::Object(all) })
    }
}

fn get_local(
    store: &Store,
    range: Option<&Range<u64>>,
    options: &GetOptions,
    shown: impl Fn() -> String,
) -> Result<Answer> {
    let found = crate::disk::wait(|| store.local_file("")).map_err(failed)?;
    let Some(file) = found else {
        return Err(failed(SourceError::NotFound { what: store.root().to_string() }));
    };
    let part = range.cloned().unwrap_or(0..file.len);
    if part.end > file.len {
        let reason = format!(
            "{} is bytes {} to {}, the file has {}",
            shown(),
            part.start,
            part.end,
            file.len
        );
        return Err(failed(SourceError::Damaged { path: store.root().to_string(), reason }));
    }
    let size = part.end - part.start;
    let own = within(options.range.as_ref(), 0..size);
    let mut bytes = vec![0; if options.head { 0 } else { (own.end - own.start) as usize }];
    crate::disk::wait(|| store.read_exact_at(&file, &mut bytes, part.start + own.start))
        .map_err(failed)?;
    let version = file.version_text();
    if options.if_match.as_ref().is_some_and(|tag| *tag != version) {
        let source = "the file has changed".into();
        return Err(Error::Precondition { path: store.root().to_string(), source });
    }
    Ok(Answer { bytes: bytes.into(), size, range: own, of: Of::Local(version) })
}

pub(in crate::source) fn failed(e: SourceError) -> Error {
    Error::Generic { store: "references", source: Box::new(e) }
}

/// The requested part of an object that has the bytes `all`.
pub(in crate::source) fn within(range: Option<&GetRange>, all: Range<u64>) -> Range<u64> {
    match range {
        None => all,
        Some(GetRange::Bounded(r)) => r.start.min(all.end)..r.end.min(all.end),
        Some(GetRange::Offset(start)) => (*start).min(all.end)..all.end,
        Some(GetRange::Suffix(n)) => all.end - (*n).min(all.end)..all.end,
    }
}

/// The directory in which relative paths begin.
#[derive(Clone)]
pub(super) enum Directory {
    Local(PathBuf),
    Url(String),
}

impl Directory {
    /// The directory at a location.
    pub(super) fn at(location: &Location) -> Directory {
        match &location.path {
            StoragePath::Local(path) => Directory::Local(path.clone()),
            _ => Directory::Url(location.display.clone()),
        }
    }

    /// The directory of the file at a location.
    pub(super) fn of(location: &Location) -> Directory {
        match &location.path {
            StoragePath::Local(path) => {
                Directory::Local(path.parent().map_or_else(PathBuf::new, PathBuf::from))
            }
            _ => {
                let directory = location.display.rsplit_once('/').map_or("", |(d, _)| d);
                Directory::Url(directory.to_string())
            }
        }
    }

    fn file(&self, name: &std::path::Path) -> std::result::Result<Location, SourceError> {
        match self {
            Directory::Local(directory) => {
                Location::parse(&directory.join(name).display().to_string())
            }
            Directory::Url(url) => Location::parse(&joined(url, &name.display().to_string())),
        }
    }
}

/// A URL below another one. Buckets have no directories, so `..` takes a part away; not the bucket or the host.
fn joined(url: &str, name: &str) -> String {
    let (scheme, rest) = url.split_once("://").unwrap_or(("", url));
    let mut parts: Vec<&str> = rest.trim_end_matches('/').split('/').collect();
    let fixed = if scheme == "memory" { 0 } else { 1 };
    for part in name.split('/') {
        match part {
            "" | "." => {}
            ".." if parts.len() > fixed && parts.last() != Some(&"..") => {
                parts.pop();
            }
            part => parts.push(part),
        }
    }
    format!("{scheme}://{}", parts.join("/"))
}

/// The bytes of a text in a document.
pub(super) fn inline(text: &[u8]) -> Option<Bytes> {
    match text.strip_prefix(b"base64:") {
        None => Some(Bytes::copy_from_slice(text)),
        Some(digits) => base64(digits).map(Bytes::from),
    }
}

/// Decodes base64, with or without padding.
pub(crate) fn base64(text: &[u8]) -> Option<Vec<u8>> {
    let mut digits = text.trim_ascii_end();
    while let Some(rest) = digits.strip_suffix(b"=") {
        digits = rest;
    }
    let mut out = Vec::with_capacity(digits.len() / 4 * 3 + 2);
    for group in digits.chunks(4) {
        let mut bits = 0u32;
        for &b in group {
            let v = match b {
                b'A'..=b'Z' => b - b'A',
                b'a'..=b'z' => b - b'a' + 26,
                b'0'..=b'9' => b - b'0' + 52,
                b'+' | b'-' => 62,
                b'/' | b'_' => 63,
                _ => return None,
            };
            bits = bits << 6 | u32::from(v);
        }
        match group.len() {
            1 => return None,
            n => out.extend_from_slice(&(bits << (6 * (4 - n)) << 8).to_be_bytes()[..n - 1]),
        }
    }
    Some(out)
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;

    #[test]
    fn base64_is_that_of_python() {
        // base64.b64encode(bytes) of 0, 1, 2, 3 and 4 bytes.
        for (text, bytes) in [
            ("", &[][..]),
            ("AQ==", &[1]),
            ("Af8=", &[1, 255]),
            ("Af8D", &[1, 255, 3]),
            ("Af8D+w==", &[1, 255, 3, 251]),
        ] {
            assert_eq!(base64(text.as_bytes()).unwrap(), bytes);
        }
        assert_eq!(base64(b"A"), None);
        assert_eq!(base64(b"A*=="), None);
    }

    #[test]
    fn relative_paths_begin_in_the_directory() {
        assert_eq!(joined("s3://bkt/a/refs", "../b/x.nc"), "s3://bkt/a/b/x.nc");
        assert_eq!(joined("s3://bkt/refs/", "./x.nc"), "s3://bkt/refs/x.nc");
        assert_eq!(joined("s3://bkt", "x.nc"), "s3://bkt/x.nc");
        assert_eq!(joined("s3://bkt/a", "../../../x.nc"), "s3://bkt/../../x.nc");
        assert_eq!(joined("memory://refs", "../x.nc"), "memory://x.nc");
    }
}
