//! kerchunk's references: keys of a Zarr store are parts of other files.
//!
//! ```text
//!   "t/0.0.0": ["s3://bucket/2020.nc", 24576, 181023]     bytes of a file
//!   ".zgroup": "{\"zarr_format\": 2}"                      bytes in the document; binary ones as `base64:…`
//! ```
//! The references are in one JSON document ([`document`]), or those of the chunks in [`tables`] of a directory. Either
//! becomes an object store, in which Zarr's reader finds its documents and chunks.

mod document;
mod part;
mod table;
mod tables;
#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests")]
mod tests;

use crate::source::Opened;
use crate::source::dataset_cache::Seen;
use crate::source::error::SourceError;
use crate::source::location::{Location, Options};
use crate::source::store::{METADATA_BYTES_MAX, Store, Stores};
use crate::source::{ngff, variables, versions};
use async_trait::async_trait;
use bytes::Bytes;
use document::Unfit;
use futures::stream::{self, BoxStream, StreamExt};
use object_store::path::Path;
use object_store::{
    Attributes, CopyOptions, Error, GetOptions, GetResult, GetResultPayload, ListResult,
    MultipartUpload, ObjectMeta, ObjectStore, PutMultipartOptions, PutOptions, PutPayload,
    PutResult, Result,
};
use part::{File, Of, Reference};
use serde_json::{Map, Value};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::ops::Range;
use std::sync::Arc;
use tables::Tables;
use tessera_planner::catalog::parse_json;

pub(super) use part::{base64, failed, within};
pub(super) use tables::is_document;

/// Opens the location as a document of references if it is one, or as references of either form if the options say so;
/// `None` otherwise. A directory of tables is found by [`crate::source::zarr::find`], too.
pub(super) async fn open(
    store: &Store,
    location: &Location,
    options: &Options,
    stores: &Stores,
) -> std::result::Result<Option<Opened>, SourceError> {
    let is_wanted = options.format.as_deref() == Some("references");
    let is_named = location.display.to_ascii_lowercase().ends_with(".json");
    let may_be = is_named && options.format.is_none();
    if !is_wanted && !may_be {
        return Ok(None);
    }
    // A web server may answer with a page for a directory.
    if !is_named && let Some(opened) = in_directory(store, location, options, stores).await? {
        return Ok(Some(opened));
    }
    let Some(text) = store.opening().get("", METADATA_BYTES_MAX).await? else { return Ok(None) };
    let document = parsed(&text).map_err(|reason| bad(&location.display, reason))?;
    let parts = document::parse(document, location, options, stores).map_err(|e| match e {
        Unfit::Bad(reason) => bad(&location.display, reason),
        Unfit::Unsupported(what) => {
            SourceError::UnsupportedFile { path: location.display.clone(), what }
        }
        Unfit::Source(e) => e,
    })?;
    let Some(parts) = parts else { return Ok(None) };
    let references = References::new(location, Index::Document(parts), &text);
    assemble(store, location, options, references).await.map(Some)
}

async fn in_directory(
    store: &Store,
    location: &Location,
    options: &Options,
    stores: &Stores,
) -> std::result::Result<Option<Opened>, SourceError> {
    let Some(text) = store.document(tables::DOCUMENT).await? else { return Ok(None) };
    let document = parsed(&text).map_err(|reason| bad(&store.show(tables::DOCUMENT), reason))?;
    if !is_document(&document) {
        return Err(SourceError::OtherFormat {
            what: location.display.clone(),
            format: "references".into(),
        });
    }
    open_tables(store, location, options, stores, document).await.map(Some)
}

/// Opens a directory of tables by its document.
pub(super) async fn open_tables(
    store: &Store,
    location: &Location,
    options: &Options,
    stores: &Stores,
    document: Map<String, Value>,
) -> std::result::Result<Opened, SourceError> {
    let text = Value::Object(document.clone()).to_string();
    let tables = Tables::parse(document, store, location, options, stores);
    let tables = tables.map_err(|reason| bad(&store.show(tables::DOCUMENT), reason))?;
    let references = References::new(location, Index::Tables(Box::new(tables)), text.as_bytes());
    assemble(store, location, options, references).await
}

fn bad(path: &str, reason: String) -> SourceError {
    SourceError::BadFile { path: path.into(), format: "references".into(), at: 0, reason }
}

fn parsed(text: &[u8]) -> std::result::Result<Map<String, Value>, String> {
    match parse_json(text) {
        Ok(Value::Object(document)) => Ok(document),
        Ok(_) => Err("it is not a JSON object".into()),
        Err(e) => Err(format!("it is not JSON: {e}")),
    }
}

/// Assembles the dataset that is behind references.
async fn assemble(
    store: &Store,
    location: &Location,
    options: &Options,
    references: References,
) -> std::result::Result<Opened, SourceError> {
    let of = store.over_references(Arc::new(references));
    let seen = Seen::below(store);
    let of = match &seen {
        Some(seen) => of.noting(seen),
        None => of,
    };
    let found = ngff::find(&of, &location.group).await?;
    let what = || format!("{}#{}", location.display, location.group);
    let found = found.ok_or_else(|| match location.group.is_empty() {
        true => SourceError::NotAnArray { what: location.display.clone() },
        false => SourceError::NotFound { what: what() },
    })?;
    let opened = variables::assemble(&of, location, options, found).await?;
    if let Some(seen) = seen {
        Seen::adopt(store, seen, of);
    }
    Ok(opened)
}

/// References by their keys.
enum Index {
    Document(BTreeMap<String, Reference>),
    Tables(Box<Tables>),
}

impl Index {
    async fn find(&self, key: &str) -> std::result::Result<Option<Reference>, SourceError> {
        match self {
            Index::Document(of) => Ok(of.get(key).cloned()),
            Index::Tables(tables) => tables.find(key).await,
        }
    }

    /// The keys, but for those of chunks in tables.
    fn keys(&self) -> Box<dyn Iterator<Item = &String> + Send + '_> {
        match self {
            Index::Document(of) => Box::new(of.keys()),
            Index::Tables(tables) => Box::new(tables.keys()),
        }
    }
}

/// A part of a file that a key refers to.
#[derive(Clone)]
pub(crate) struct Referred {
    file: Arc<File>,
    pub(crate) range: Range<u64>,
}

impl Referred {
    /// URL of the file.
    pub(crate) fn url(&self) -> &str {
        self.file.url()
    }
}

/// The objects that references define.
pub(crate) struct References {
    display: String,
    index: Index,
    /// A digest of the document: the version of its contents.
    version: String,
}

impl References {
    fn new(location: &Location, index: Index, text: &[u8]) -> References {
        let (display, version) = (location.display.clone(), versions::digest(text));
        References { display, index, version }
    }

    /// The part of a file that a key refers to; `None` for a whole file, for bytes in the document, and for no reference.
    pub(crate) async fn part(
        &self,
        key: &str,
    ) -> std::result::Result<Option<Referred>, SourceError> {
        Ok(match self.index.find(key).await? {
            Some(Reference::Part { file, range: Some(range) }) => Some(Referred { file, range }),
            _ => None,
        })
    }

    /// Reads a stretch of the file in which a part is, with the description of the file.
    pub(crate) async fn stretch(
        &self,
        part: &Referred,
        range: &Range<u64>,
        options: GetOptions,
    ) -> Result<(Bytes, ObjectMeta)> {
        let shown = || format!("a stretch of references of `{}`", self.display);
        let got = part.file.get(Some(range), options, shown).await?;
        let meta = self.meta(&Path::default(), got.size, Some(got.of));
        Ok((got.bytes, meta))
    }

    fn missing(&self, location: &Path) -> Error {
        let source = format!("`{}` has no reference `{location}`", self.display);
        Error::NotFound { path: location.to_string(), source: source.into() }
    }

    fn only_read<T>(&self) -> Result<T> {
        Err(Error::NotSupported { source: "references are only read".into() })
    }

    fn meta(&self, location: &Path, size: u64, of: Option<Of>) -> ObjectMeta {
        let (last_modified, e_tag, version) = match of {
            Some(Of::Object(file)) => (file.last_modified, file.e_tag, file.version),
            Some(Of::Local(version)) => (Default::default(), Some(version), None),
            None => (Default::default(), Some(self.version.clone()), None),
        };
        ObjectMeta { location: location.clone(), last_modified, size, e_tag, version }
    }

    async fn get(&self, location: &Path, options: GetOptions) -> Result<GetResult> {
        let found = self.index.find(location.as_ref()).await.map_err(failed)?;
        match found.ok_or_else(|| self.missing(location))? {
            Reference::Inline(bytes) => {
                let range = within(options.range.as_ref(), 0..bytes.len() as u64);
                let part = bytes.slice(range.start as usize..range.end as usize);
                let meta = self.meta(location, bytes.len() as u64, None);
                Ok(result(part, meta, range))
            }
            Reference::Part { file, range } => {
                let shown = || format!("the reference `{location}` of `{}`", self.display);
                let got = file.get(range.as_ref(), options, shown).await?;
                let meta = self.meta(location, got.size, Some(got.of));
                Ok(result(got.bytes, meta, got.range))
            }
        }
    }
}

fn result(bytes: Bytes, meta: ObjectMeta, range: Range<u64>) -> GetResult {
    let payload = GetResultPayload::Stream(stream::once(async move { Ok(bytes) }).boxed());
    GetResult { payload, meta, range, attributes: Attributes::new() }
}

impl fmt::Display for References {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "references({})", self.display)
    }
}

impl fmt::Debug for References {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "References({}, {} keys)", self.display, self.index.keys().count())
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
        let keys = self.index.keys().filter(|k| prefix == "/" || k.starts_with(&prefix));
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
        for key in self.index.keys() {
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
