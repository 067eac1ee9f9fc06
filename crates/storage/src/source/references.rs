//! kerchunk's references: a JSON document in which keys of a Zarr store are parts of other files.
//!
//! ```text
//!   "t/0.0.0": ["s3://bucket/2020.nc", 24576, 181023]     bytes of a file
//!   ".zgroup": "{\"zarr_format\": 2}"                      bytes in the document; binary ones as `base64:…`
//! ```
//! The document becomes an object store, in which Zarr's reader finds its documents and chunks.
//!
//! # Source
//! The kerchunk specification of references, versions 0 and 1. Templates are names in braces; generated references are
//! refused.

use crate::source::Opened;
use crate::source::dataset_cache::Seen;
use crate::source::error::SourceError;
use crate::source::fence::Access;
use crate::source::json;
use crate::source::location::{Location, Options, StoragePath};
use crate::source::store::{METADATA_BYTES_MAX, Parts, Store, Stores};
use crate::source::{variables, zarr};
use async_trait::async_trait;
use bytes::Bytes;
use futures::stream::{self, BoxStream, StreamExt};
use object_store::path::Path;
use object_store::{
    Attributes, CopyOptions, Error, GetOptions, GetRange, GetResult, GetResultPayload, ListResult,
    MultipartUpload, ObjectMeta, ObjectStore, PutMultipartOptions, PutOptions, PutPayload,
    PutResult, Result,
};
use serde_json::{Map, Value};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::ops::Range;
use std::path::PathBuf;
use std::sync::Arc;

/// Opens the location as a document of references if it is one, or if the options say so; `None` otherwise.
pub(super) async fn open(
    store: &Store,
    location: &Location,
    options: &Options,
    stores: &Stores,
) -> Result<Option<Opened>, SourceError> {
    let is_wanted = options.format.as_deref() == Some("references");
    let is_named = location.display.to_ascii_lowercase().ends_with(".json");
    let may_be = is_named && options.format.is_none();
    if !is_wanted && !may_be {
        return Ok(None);
    }
    let Some(text) = store.opening().get("", METADATA_BYTES_MAX).await? else { return Ok(None) };
    let bad = |reason: String| SourceError::BadFile {
        path: location.display.clone(),
        format: "references".into(),
        at: 0,
        reason,
    };
    let parsed = json::parse(&text).map_err(|e| bad(format!("it is no JSON: {e}")))?;
    let Value::Object(document) = parsed else {
        return Err(bad("it is no JSON object".into()));
    };
    let references =
        References::parse(document, location, options, stores, &text).map_err(|e| match e {
            Unfit::Bad(reason) => bad(reason),
            Unfit::Unsupported(what) => {
                SourceError::UnsupportedFile { path: location.display.clone(), what }
            }
            Unfit::Source(e) => e,
        })?;
    let Some(references) = references else { return Ok(None) };
    let of = store.over(Arc::new(references));
    let seen = Seen::below(store);
    let of = match &seen {
        Some(seen) => of.noting(seen),
        None => of,
    };
    let found = zarr::find(&of, &location.group).await?;
    let what = || format!("{}#{}", location.display, location.group);
    let found = found.ok_or_else(|| match location.group.is_empty() {
        true => SourceError::NotAnArray { what: location.display.clone() },
        false => SourceError::NotFound { what: what() },
    })?;
    let opened = variables::assemble(&of, location, options, found).await?;
    if let Some(seen) = seen {
        Seen::adopt(store, seen, of);
    }
    Ok(Some(opened))
}

/// Why a document is not read.
enum Unfit {
    Bad(String),
    Unsupported(String),
    Source(SourceError),
}

/// The objects of a document.
struct References {
    display: String,
    /// By key.
    of: BTreeMap<String, Reference>,
    files: Vec<File>,
    /// A digest of the document: the version of what is in it.
    version: String,
}

enum Reference {
    Inline(Bytes),
    /// A part of a file; all of it without a range.
    Part {
        file: usize,
        range: Option<Range<u64>>,
    },
}

/// A file that references point to.
enum File {
    Local(Store),
    Object { client: Arc<dyn ObjectStore>, path: Path, url: String },
}

impl References {
    /// `None` if the document has no references.
    fn parse(
        mut document: Map<String, Value>,
        location: &Location,
        options: &Options,
        stores: &Stores,
        text: &[u8],
    ) -> std::result::Result<Option<References>, Unfit> {
        let is_v1 = document.contains_key("version") || document.contains_key("refs");
        if document.get("gen").and_then(Value::as_array).is_some_and(|g| !g.is_empty()) {
            return Err(Unfit::Unsupported("generated references (`gen`)".into()));
        }
        let templates = match document.remove("templates") {
            Some(Value::Object(templates)) => templates,
            _ => Map::new(),
        };
        let refs = match (is_v1, document.remove("refs")) {
            (true, Some(Value::Object(refs))) => refs,
            (true, _) => return Err(Unfit::Bad("`refs` is missing or no object".into())),
            (false, _) => document,
        };
        let is_zarr = |k: &str| {
            k.ends_with(".zgroup")
                || k.ends_with(".zarray")
                || k.ends_with(".zmetadata")
                || k.ends_with("zarr.json")
        };
        if !refs.keys().any(|k| is_zarr(k)) {
            return Ok(None);
        }
        let mut files = Vec::new();
        let mut known: BTreeMap<String, usize> = BTreeMap::new();
        let mut of = BTreeMap::new();
        for (key, value) in refs {
            let bad = |reason: &str| Unfit::Bad(format!("the reference `{key}` {reason}"));
            let made = match value {
                Value::String(text) => {
                    Reference::Inline(inline(&text).ok_or_else(|| bad("is no base64"))?)
                }
                Value::Array(parts) => {
                    let url = parts.first().and_then(Value::as_str);
                    let url = url.ok_or_else(|| bad("names no file"))?;
                    let url = filled(url, &templates)
                        .ok_or_else(|| bad("has a template that is not a name in braces"))?;
                    let range =
                        match (parts.get(1).map(Value::as_u64), parts.get(2).map(Value::as_u64)) {
                            (None, None) => None,
                            (Some(Some(start)), Some(Some(n))) => {
                                let end = start.checked_add(n);
                                Some(start..end.ok_or_else(|| bad("ends beyond 2^64"))?)
                            }
                            _ => return Err(bad("is no `[url, offset, length]`")),
                        };
                    let file = match known.get(&url) {
                        Some(&i) => i,
                        None => {
                            let file =
                                file(&url, location, options, stores).map_err(Unfit::Source)?;
                            files.push(file);
                            known.insert(url, files.len() - 1);
                            files.len() - 1
                        }
                    };
                    Reference::Part { file, range }
                }
                // kerchunk writes metadata as objects, too.
                Value::Object(_) => Reference::Inline(value.to_string().into()),
                _ => return Err(bad("is neither a text nor a list")),
            };
            of.insert(key, made);
        }
        let hash = text.iter().fold(0xcbf2_9ce4_8422_2325u64, |h, b| {
            (h ^ u64::from(*b)).wrapping_mul(0x100_0000_01b3)
        });
        let (display, version) = (location.display.clone(), format!("{hash:016x}"));
        Ok(Some(References { display, of, files, version }))
    }

    fn missing(&self, location: &Path) -> Error {
        let source = format!("`{}` has no reference `{location}`", self.display);
        Error::NotFound { path: location.to_string(), source: source.into() }
    }

    fn only_read<T>(&self) -> Result<T> {
        Err(Error::NotSupported { source: "references are only read".into() })
    }

    fn meta(&self, location: &Path, size: u64, file: Option<&ObjectMeta>) -> ObjectMeta {
        ObjectMeta {
            location: location.clone(),
            last_modified: file.map_or_else(Default::default, |m| m.last_modified),
            size,
            e_tag: match file {
                Some(m) => m.e_tag.clone(),
                None => Some(self.version.clone()),
            },
            version: file.and_then(|m| m.version.clone()),
        }
    }

    async fn get(&self, location: &Path, options: GetOptions) -> Result<GetResult> {
        let reference = self.of.get(location.as_ref()).ok_or_else(|| self.missing(location))?;
        match reference {
            Reference::Inline(bytes) => {
                let range = within(options.range.as_ref(), 0..bytes.len() as u64);
                let part = bytes.slice(range.start as usize..range.end as usize);
                let meta = self.meta(location, bytes.len() as u64, None);
                Ok(result(part, meta, range))
            }
            Reference::Part { file, range } => match &self.files[*file] {
                File::Object { client, path, url } => {
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
                        Error::NotFound { .. } => {
                            failed(SourceError::NotFound { what: url.clone() })
                        }
                        e => e,
                    })?;
                    let (all, own) = (got.meta.clone(), got.range.clone());
                    let size = range.as_ref().map_or(all.size, |r| r.end - r.start);
                    let bytes = if head { Bytes::new() } else { got.bytes().await? };
                    let meta = self.meta(location, size, Some(&all));
                    let first = range.as_ref().map_or(0, |r| r.start);
                    Ok(result(
                        bytes,
                        meta,
                        own.start.saturating_sub(first)..own.end.saturating_sub(first),
                    ))
                }
                File::Local(store) => self.get_local(store, location, range.as_ref(), &options),
            },
        }
    }

    fn get_local(
        &self,
        store: &Store,
        location: &Path,
        range: Option<&Range<u64>>,
        options: &GetOptions,
    ) -> Result<GetResult> {
        let found = crate::disk::wait(|| store.local_file("")).map_err(failed)?;
        let Some(file) = found else {
            return Err(failed(SourceError::NotFound { what: store.root().to_string() }));
        };
        let part = range.cloned().unwrap_or(0..file.len);
        if part.end > file.len {
            let reason = format!(
                "the reference `{location}` of `{}` is bytes {} to {}, the file has {}",
                self.display, part.start, part.end, file.len
            );
            return Err(failed(SourceError::Damaged { path: store.root().to_string(), reason }));
        }
        let own = within(options.range.as_ref(), 0..part.end - part.start);
        let mut bytes = vec![0; if options.head { 0 } else { (own.end - own.start) as usize }];
        crate::disk::wait(|| store.read_exact_at(&file, &mut bytes, part.start + own.start))
            .map_err(failed)?;
        let version = file.version_text();
        if options.if_match.as_ref().is_some_and(|tag| *tag != version) {
            let source = "the file has changed".into();
            return Err(Error::Precondition { path: location.to_string(), source });
        }
        let meta =
            ObjectMeta { e_tag: Some(version), ..self.meta(location, part.end - part.start, None) };
        Ok(result(bytes.into(), meta, own))
    }
}

fn failed(e: SourceError) -> Error {
    Error::Generic { store: "references", source: Box::new(e) }
}

fn result(bytes: Bytes, meta: ObjectMeta, range: Range<u64>) -> GetResult {
    let payload = GetResultPayload::Stream(stream::once(async move { Ok(bytes) }).boxed());
    GetResult { payload, meta, range, attributes: Attributes::new() }
}

/// The requested part of an object that has the bytes `all`.
fn within(range: Option<&GetRange>, all: Range<u64>) -> Range<u64> {
    match range {
        None => all,
        Some(GetRange::Bounded(r)) => r.start.min(all.end)..r.end.min(all.end),
        Some(GetRange::Offset(start)) => (*start).min(all.end)..all.end,
        Some(GetRange::Suffix(n)) => all.end - (*n).min(all.end)..all.end,
    }
}

/// The bytes of a text in the document.
fn inline(text: &str) -> Option<Bytes> {
    match text.strip_prefix("base64:") {
        None => Some(Bytes::copy_from_slice(text.as_bytes())),
        Some(digits) => base64(digits).map(Bytes::from),
    }
}

/// Decodes base64, with or without padding.
fn base64(text: &str) -> Option<Vec<u8>> {
    let digits = text.trim_end().trim_end_matches('=').as_bytes();
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

/// A URL with its templates filled in; `None` if one is unknown or takes arguments.
fn filled(url: &str, templates: &Map<String, Value>) -> Option<String> {
    let mut out = String::new();
    let mut rest = url;
    while let Some((before, after)) = rest.split_once("{{") {
        let (name, after) = after.split_once("}}")?;
        out.push_str(before);
        out.push_str(templates.get(name.trim())?.as_str()?);
        rest = after;
    }
    out.push_str(rest);
    Some(out)
}

/// The file at a URL. A relative path begins where the document is.
fn file(
    url: &str,
    location: &Location,
    options: &Options,
    stores: &Stores,
) -> std::result::Result<File, SourceError> {
    let mut target = Location::parse(url)?;
    if let (StoragePath::Local(path), false) = (&target.path, url.contains("://")) {
        let relative = path.is_relative().then(|| path.clone());
        if let Some(relative) = relative {
            target = beside(location, &relative)?;
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

/// The location of a file in the directory of another one.
fn beside(
    location: &Location,
    name: &std::path::Path,
) -> std::result::Result<Location, SourceError> {
    match &location.path {
        StoragePath::Local(path) => {
            let directory = path.parent().map_or_else(PathBuf::new, PathBuf::from);
            Location::parse(&directory.join(name).display().to_string())
        }
        _ => {
            let directory = location.display.rsplit_once('/').map_or("", |(d, _)| d);
            Location::parse(&format!("{directory}/{}", name.display()))
        }
    }
}

impl fmt::Display for References {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "references({})", self.display)
    }
}

impl fmt::Debug for References {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "References({}, {} keys)", self.display, self.of.len())
    }
}

#[async_trait]
impl ObjectStore for References {
    async fn put_opts(&self, _: &Path, _: PutPayload, _: PutOptions) -> Result<PutResult> {
        self.only_read()
    }

    async fn put_multipart_opts(
        &self,
        _: &Path,
        _: PutMultipartOptions,
    ) -> Result<Box<dyn MultipartUpload>> {
        self.only_read()
    }

    async fn get_opts(&self, location: &Path, options: GetOptions) -> Result<GetResult> {
        self.get(location, options).await
    }

    fn delete_stream(
        &self,
        _: BoxStream<'static, Result<Path>>,
    ) -> BoxStream<'static, Result<Path>> {
        stream::once(std::future::ready(self.only_read())).boxed()
    }

    fn list(&self, prefix: Option<&Path>) -> BoxStream<'static, Result<ObjectMeta>> {
        let prefix = prefix.map(|p| format!("{p}/")).unwrap_or_default();
        let keys = self.of.keys().filter(|k| prefix == "/" || k.starts_with(&prefix));
        let all: Vec<_> = keys
            .filter_map(|k| Path::parse(k).ok())
            .map(|location| Ok(self.meta(&location, 0, None)))
            .collect();
        stream::iter(all).boxed()
    }

    async fn list_with_delimiter(&self, prefix: Option<&Path>) -> Result<ListResult> {
        let prefix = prefix.map(ToString::to_string).filter(|p| !p.is_empty());
        let prefix = prefix.map(|p| format!("{p}/")).unwrap_or_default();
        let (mut names, mut objects) = (BTreeSet::new(), Vec::new());
        for key in self.of.keys() {
            let Some(rest) = key.strip_prefix(&prefix) else { continue };
            match rest.split_once('/') {
                Some((directory, _)) => {
                    names.insert(format!("{prefix}{directory}"));
                }
                None => objects.extend(Path::parse(key).ok().map(|p| self.meta(&p, 0, None))),
            }
        }
        let common_prefixes = names.iter().filter_map(|n| Path::parse(n).ok()).collect();
        Ok(ListResult { common_prefixes, objects })
    }

    async fn copy_opts(&self, _: &Path, _: &Path, _: CopyOptions) -> Result<()> {
        self.only_read()
    }
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
            assert_eq!(base64(text).unwrap(), bytes);
        }
        assert_eq!(base64("A"), None);
        assert_eq!(base64("A*=="), None);
    }

    #[test]
    fn templates_are_names_in_braces() {
        let templates = serde_json::json!({"u": "s3://b/x.nc"});
        let templates = templates.as_object().unwrap();
        assert_eq!(filled("{{u}}", templates).unwrap(), "s3://b/x.nc");
        assert_eq!(filled("{{ u }}?a", templates).unwrap(), "s3://b/x.nc?a");
        assert_eq!(filled("plain", templates).unwrap(), "plain");
        assert_eq!(filled("{{f(c='x')}}", templates), None);
    }
}
