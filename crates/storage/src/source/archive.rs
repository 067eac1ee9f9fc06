//! Zarr stores in ZIP archives, as zarr-python's `ZipStore` writes them: `x.zarr.zip`.
//!
//! ```text
//!   "v/c/0"  ─▶ directory of the archive ─▶ a part of the archive ─▶ as it is, or unpacked
//! ```
//! The directory is read when the archive is opened. Members become the objects of a store, in which Zarr's reader
//! finds its documents and chunks. All of them are read from the version of the archive whose directory was read.
//!
//! # Source
//! zarr-python 3.1, `zarr.storage.ZipStore`; Python's `zipfile`.

use crate::lock;
use crate::source::Opened;
use crate::source::codecs::bounded;
use crate::source::error::SourceError;
use crate::source::location::{Location, Options};
use crate::source::ngff;
use crate::source::references::{failed, within};
use crate::source::store::{Known, Store};
use crate::source::variables;
use crate::source::zip::{DEFLATED, Directory, Fault, LOCAL_BYTES, Member, STORED, begin};
use async_trait::async_trait;
use bytes::Bytes;
use futures::stream::{self, BoxStream};
use futures::{FutureExt, StreamExt};
use object_store::path::Path;
use object_store::{
    Attributes, CopyOptions, Error, GetOptions, GetResult, GetResultPayload, ListResult,
    MultipartUpload, ObjectMeta, ObjectStore, PutMultipartOptions, PutOptions, PutPayload,
    PutResult, Result,
};
use std::collections::BTreeMap;
use std::fmt;
use std::ops::Range;
use std::sync::{Arc, Mutex};

/// Upper bound on the bytes of the directory: some two million chunks.
const DIRECTORY_BYTES_MAX: u64 = 256 << 20;

/// An archive with a larger directory is opened again by each statement, instead of being held in memory.
const CACHED_BYTES_MAX: usize = 4 << 20;

/// Upper bound on the bytes of a compressed member, which is unpacked in memory.
const UNPACKED_BYTES_MAX: u64 = 1 << 30;

/// Bytes that the extra fields of a local header may have more than those of the directory without another request:
/// `zip` writes times there.
const EXTRA_BYTES: u64 = 64;

/// ZIP's compression methods that are not read.
const METHODS: [(u16, &str); 8] = [
    (1, "shrink"),
    (6, "implode"),
    (9, "deflate64"),
    (14, "lzma"),
    (95, "xz"),
    (97, "wavpack"),
    (98, "ppmd"),
    (99, "encryption"),
];

const BZIP2: u16 = 12;
const ZSTD: u16 = 93;

/// Opens the location as an archive of a store if it is a file of that name; `None` if it is something else.
pub(super) async fn open(
    store: &Store,
    location: &Location,
    options: &Options,
) -> std::result::Result<Option<Opened>, SourceError> {
    let is_wanted = options.format.as_deref().is_none_or(|format| format == "zarr");
    if !is_wanted || !location.display.to_ascii_lowercase().ends_with(".zip") {
        return Ok(None);
    }
    let opening = store.opening();
    let Some((bytes, _)) = opening.head("").await? else { return Ok(None) };
    let directory = Directory::read(&opening, bytes, DIRECTORY_BYTES_MAX).await;
    let directory = directory.map_err(|fault| match fault {
        Fault::Bad(reason) => SourceError::Damaged { path: location.display.clone(), reason },
        Fault::Source(e) => e,
    })?;
    if directory.bytes() > CACHED_BYTES_MAX
        && let Some(seen) = store.seen()
    {
        seen.note("", || None);
    }
    let (known, of) = (opening.known(""), store.unnoted());
    let version = known.version.map_or_else(String::new, |v| format!("{v:016x}"));
    let begins = Mutex::default();
    let archive = Arc::new(Archive { of, bytes, known, version, directory, begins });
    // The archive itself is noted: nothing else can change.
    let inside = store.unnoted().over_members(Arc::new(Members(archive.clone())));
    let Some(found) = ngff::find(&inside, &location.group).await? else {
        return Err(archive.without_store(location));
    };
    variables::assemble(&inside, location, options, found).await.map(Some)
}

/// An archive in an object.
struct Archive {
    of: Store,
    bytes: u64,
    /// The version of the object whose directory was read.
    known: Known,
    /// The same as the etag of the members.
    version: String,
    directory: Directory,
    /// Offsets of members, from their local headers, as far as these were read.
    begins: Mutex<BTreeMap<u32, u64>>,
}

impl Archive {
    /// The error of an archive that has no metadata of Zarr where they are looked for.
    fn without_store(&self, location: &Location) -> SourceError {
        let what = location.display.clone();
        if !location.group.is_empty() {
            return SourceError::NoGroup { what, group: location.group.clone(), groups: None };
        }
        let (directories, _) = self.directory.below("");
        SourceError::NoStore { what, directories }
    }

    fn damaged(&self, member: &Member<'_>, reason: impl fmt::Display) -> SourceError {
        let name = String::from_utf8_lossy(member.name);
        SourceError::Damaged {
            path: self.of.root().to_string(),
            reason: format!("its member `{name}`: {reason}"),
        }
    }

    async fn part(
        &self,
        range: Range<u64>,
        is_more: bool,
    ) -> std::result::Result<Bytes, SourceError> {
        self.of.part_within("", range, &self.known, is_more).await
    }

    /// Reads a part of an unpacked member.
    async fn read(
        &self,
        number: u32,
        range: Range<u64>,
    ) -> std::result::Result<Bytes, SourceError> {
        let Some(member) = self.directory.member(number) else {
            return Err(SourceError::Damaged {
                path: self.of.root().to_string(),
                reason: format!("its directory has no member {number}"),
            });
        };
        let all = 0..member.unpacked;
        let name = String::from_utf8_lossy(member.name);
        let unsupported = |what: &str| SourceError::UnsupportedFile {
            path: format!("{}!{name}", self.of.root()),
            what: what.to_string(),
        };
        if member.is_encrypted {
            return Err(unsupported("an encrypted member of a ZIP archive"));
        }
        if member.method == STORED {
            if member.packed != member.unpacked {
                let (packed, unpacked) = (member.packed, member.unpacked);
                let reason = format!("{packed} stored bytes of {unpacked}");
                return Err(self.damaged(&member, reason));
            }
            if range == all {
                let bytes = self.packed(number, &member).await?;
                return self.checked(&member, &bytes).map(|()| bytes);
            }
            let start = self.begin(number, &member).await?;
            return self.part(start + range.start..start + range.end, false).await;
        }
        if ![DEFLATED, BZIP2, ZSTD].contains(&member.method) {
            let known = METHODS.iter().find(|(method, _)| *method == member.method);
            let name = known.map_or_else(|| member.method.to_string(), |(_, n)| n.to_string());
            return Err(unsupported(&format!("ZIP compression method {name}")));
        }
        if member.unpacked > UNPACKED_BYTES_MAX {
            return Err(SourceError::ObjectTooLarge {
                what: format!("{}!{name}", self.of.root()),
                bytes: member.unpacked,
                limit: UNPACKED_BYTES_MAX,
            });
        }
        // No method expands its input by much.
        if member.packed > member.unpacked + member.unpacked / 64 + 65_536 {
            let (packed, unpacked) = (member.packed, member.unpacked);
            return Err(self.damaged(&member, format!("{packed} packed bytes of {unpacked}")));
        }
        let packed = self.packed(number, &member).await?;
        let limit = member.unpacked;
        let unpacked = match member.method {
            DEFLATED => bounded("deflate", flate2::read::DeflateDecoder::new(&*packed), limit),
            BZIP2 => bounded("bzip2", bzip2::read::MultiBzDecoder::new(&*packed), limit),
            _ => match zstd::stream::read::Decoder::new(&*packed) {
                Ok(decoder) => bounded("zstd", decoder, limit),
                Err(e) => Err(format!("zstd: {e}")),
            },
        };
        let unpacked = unpacked.map_err(|reason| self.damaged(&member, reason))?;
        self.checked(&member, &unpacked)?;
        Ok(Bytes::from(unpacked).slice(range.start as usize..range.end as usize))
    }

    fn checked(&self, member: &Member<'_>, bytes: &[u8]) -> std::result::Result<(), SourceError> {
        if bytes.len() as u64 != member.unpacked {
            let reason = format!("{} bytes, expected {}", bytes.len(), member.unpacked);
            return Err(self.damaged(member, reason));
        }
        let is = crc32fast::hash(bytes);
        match is == member.crc {
            true => Ok(()),
            false => {
                let reason = format!("its CRC-32 is {is:08x}, expected {:08x}", member.crc);
                Err(self.damaged(member, reason))
            }
        }
    }

    /// All bytes of a member, as they are in the archive.
    async fn packed(
        &self,
        number: u32,
        member: &Member<'_>,
    ) -> std::result::Result<Bytes, SourceError> {
        if let Some(start) = self.known_begin(number) {
            return self.part(start..start + member.packed, false).await;
        }
        let ahead = LOCAL_BYTES + member.name.len() as u64 + member.extra + EXTRA_BYTES;
        let end = member.at.saturating_add(ahead).saturating_add(member.packed).min(self.bytes);
        if member.at >= end {
            return Err(self.damaged(member, "it begins beyond the archive"));
        }
        let got = self.part(member.at..end, false).await?;
        let start = self.found_begin(number, member, &got)?;
        let from = (start - member.at) as usize;
        match from.checked_add(member.packed as usize) {
            Some(to) if to <= got.len() => Ok(got.slice(from..to)),
            _ => self.part(start..start + member.packed, true).await,
        }
    }

    /// Offset of a member's bytes in the archive.
    async fn begin(
        &self,
        number: u32,
        member: &Member<'_>,
    ) -> std::result::Result<u64, SourceError> {
        if let Some(start) = self.known_begin(number) {
            return Ok(start);
        }
        let end = member.at.saturating_add(LOCAL_BYTES).min(self.bytes);
        if member.at >= end {
            return Err(self.damaged(member, "it begins beyond the archive"));
        }
        let local = self.part(member.at..end, true).await?;
        self.found_begin(number, member, &local)
    }

    fn known_begin(&self, number: u32) -> Option<u64> {
        lock(&self.begins).get(&number).copied()
    }

    fn found_begin(
        &self,
        number: u32,
        member: &Member<'_>,
        local: &[u8],
    ) -> std::result::Result<u64, SourceError> {
        let start = member.at + begin(local).map_err(|reason| self.damaged(member, reason))?;
        if start.checked_add(member.packed).is_none_or(|end| end > self.bytes) {
            return Err(self.damaged(member, "it ends beyond the archive"));
        }
        lock(&self.begins).insert(number, start);
        Ok(start)
    }

    fn meta(&self, location: &Path, size: u64) -> ObjectMeta {
        let (last_modified, e_tag) = (Default::default(), Some(self.version.clone()));
        ObjectMeta { location: location.clone(), last_modified, size, e_tag, version: None }
    }

    fn meta_of(&self, number: u32) -> Option<ObjectMeta> {
        let member = self.directory.member(number)?;
        let location = Path::parse(std::str::from_utf8(member.name).ok()?).ok()?;
        Some(self.meta(&location, member.unpacked))
    }
}

/// The members of an archive as objects.
struct Members(Arc<Archive>);

impl Members {
    fn only_read<T>(&self) -> Result<T> {
        Err(Error::NotSupported { source: "archives are only read".into() })
    }
}

impl fmt::Display for Members {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "archive({})", self.0.of.root())
    }
}

impl fmt::Debug for Members {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Members({})", self.0.of.root())
    }
}

#[async_trait]
impl ObjectStore for Members {
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
        let archive = &self.0;
        let number = archive.directory.find(location.as_ref());
        let member = number.and_then(|n| Some((n, archive.directory.member(n)?.unpacked)));
        let Some((number, size)) = member else {
            let source = format!("`{}` has no member `{location}`", archive.of.root());
            return Err(Error::NotFound { path: location.to_string(), source: source.into() });
        };
        if options.if_match.as_ref().is_some_and(|tag| *tag != archive.version) {
            let what = archive.of.root().to_string();
            return Err(failed(SourceError::Changed { what }));
        }
        let range = within(options.range.as_ref(), 0..size);
        let read = {
            let (archive, range) = (archive.clone(), range.clone());
            // A size that is too large is refused before anything is read.
            async move { archive.read(number, range).await.map_err(failed) }
        };
        let payload = match options.head || range.is_empty() {
            true => stream::empty().boxed(),
            false => read.into_stream().boxed(),
        };
        let meta = archive.meta(location, size);
        let payload = GetResultPayload::Stream(payload);
        Ok(GetResult { payload, meta, range, attributes: Attributes::new() })
    }

    fn delete_stream(
        &self,
        _: BoxStream<'static, Result<Path>>,
    ) -> BoxStream<'static, Result<Path>> {
        stream::once(std::future::ready(self.only_read())).boxed()
    }

    fn list(&self, prefix: Option<&Path>) -> BoxStream<'static, Result<ObjectMeta>> {
        let prefix = prefix.map(|p| format!("{p}/")).filter(|p| p != "/").unwrap_or_default();
        let directory = &self.0.directory;
        let below = directory.members().filter(|(_, m)| m.name.starts_with(prefix.as_bytes()));
        let all: Vec<_> = below.filter_map(|(n, _)| self.0.meta_of(n)).map(Ok).collect();
        stream::iter(all).boxed()
    }

    async fn list_with_delimiter(&self, prefix: Option<&Path>) -> Result<ListResult> {
        let prefix = prefix.map(|p| format!("{p}/")).filter(|p| p != "/").unwrap_or_default();
        let (directories, members) = self.0.directory.below(&prefix);
        let paths = directories.iter().filter_map(|d| Path::parse(format!("{prefix}{d}")).ok());
        let objects = members.into_iter().filter_map(|n| self.0.meta_of(n)).collect();
        Ok(ListResult { common_prefixes: paths.collect(), objects })
    }

    async fn copy_opts(&self, _: &Path, _: &Path, _: CopyOptions) -> Result<()> {
        self.only_read()
    }
}
