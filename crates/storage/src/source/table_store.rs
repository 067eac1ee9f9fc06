//! The files of tables, for one statement: a listing stays the same, and each file is of one version.
//!
//! Readers of tables may request a file repeatedly; each request asks for the version that was found when the table
//! was opened (`If-Match`), and the response is compared. Local files are read in blocks, and checked after each.

use crate::lock;
use crate::source::error::SourceError;
use crate::source::fence::Fenced;
use crate::source::location::Options;
use crate::source::store::{Client, Reached, origin_of};
use crate::source::unpacked::{Packing, unpacked};
use crate::source::versions::{self, ABSENT, Noted, Versions};
use bytes::Bytes;
use futures::stream::BoxStream;
use futures::{StreamExt, TryStreamExt, stream};
use object_store::path::Path;
use object_store::{
    CopyOptions, Error, GetOptions, GetResult, GetResultPayload, ListResult, MultipartUpload,
    OBJECT_STORE_COALESCE_DEFAULT, ObjectMeta, ObjectStore, ObjectStoreExt, PutMultipartOptions,
    PutOptions, PutPayload, PutResult, Result, coalesce_ranges,
};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::fs::File;
use std::hash::{BuildHasher, RandomState};
use std::ops::Range;
use std::sync::{Arc, Mutex};
use std::time::{Duration, SystemTime, UNIX_EPOCH};
use tessera_planner::error::causes;

/// Bytes of one read of a local file.
const BLOCK_BYTES: u64 = 1 << 20;

/// Files that are asked for at the same time.
const HEADS_MAX: usize = 16;

/// A storage of tables, for one statement.
#[derive(Debug, Clone)]
pub struct TableStore(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    store: Arc<dyn ObjectStore>,
    /// Prefix of its URLs.
    root: String,
    origin: u64,
    files: Listing,
    is_local: bool,
    versions: Arc<Versions>,
    /// Differs from that of each other storage of tables.
    number: u64,
    /// Checks each file.
    fence: Option<Arc<Fenced>>,
    lists: Mutex<BTreeMap<String, Arc<Vec<ObjectMeta>>>>,
    /// Files that were found, and their versions.
    found: Mutex<BTreeMap<String, u64>>,
}

/// The files of a listing.
#[derive(Debug, Clone)]
pub enum Listing {
    /// All.
    All,
    /// Those, of a directory that may have others.
    Only(Arc<BTreeSet<Path>>),
    /// Those, which are asked for one by one: their directory is not listed.
    Each(Arc<BTreeSet<Path>>),
}

impl TableStore {
    /// Creates the storage of a client that was made with these options; `root` is the prefix of its URLs.
    pub fn remote(
        reached: &Reached,
        client: &Client,
        root: &str,
        options: &Options,
        versions: &Arc<Versions>,
    ) -> Self {
        let fence = reached.fence.clone();
        let files = Listing::All;
        Self::new(client.store.clone(), (root, origin_of(options)), files, false, versions, fence)
    }

    /// Creates a storage of local files, through a store that is rooted at `/`.
    pub fn local(reached: &Reached, store: Arc<dyn ObjectStore>, versions: &Arc<Versions>) -> Self {
        Self::new(store, ("", 0), Listing::All, true, versions, reached.fence.clone())
    }

    fn new(
        store: Arc<dyn ObjectStore>,
        (root, origin): (&str, u64),
        files: Listing,
        is_local: bool,
        versions: &Arc<Versions>,
        fence: Option<Arc<Fenced>>,
    ) -> Self {
        TableStore(Arc::new(Inner {
            store,
            root: root.into(),
            origin,
            files,
            is_local,
            versions: versions.clone(),
            number: RandomState::new().hash_one(root),
            fence,
            lists: Mutex::default(),
            found: Mutex::default(),
        }))
    }

    /// The storage with nothing but those files in its listings.
    pub fn with_files(&self, files: Listing) -> Self {
        let Inner { store, root, origin, is_local, versions, fence, .. } = &*self.0;
        Self::new(store.clone(), (root, *origin), files, *is_local, versions, fence.clone())
    }

    /// A text that changes with the set of files found so far, or with one of their versions.
    pub fn version(&self) -> String {
        let found = lock(&self.0.found);
        let all: String = found.iter().map(|(at, version)| format!("{at}\n{version}\n")).collect();
        format!("{} files {:016x}", found.len(), versions::of_text(&all))
    }

    /// The versions of these files, for a store of another process: with [`Versions::expect`] it reads the same versions,
    /// or fails. `None` if the version of one of them is not known yet: some stores report none in listings.
    pub fn noted<'a>(&self, files: impl IntoIterator<Item = &'a Path>) -> Option<Vec<Noted>> {
        let noted = |at: &Path| {
            let object = self.object(at);
            Some((object, self.0.versions.version(object)?))
        };
        let all = files.into_iter().map(noted).collect::<Option<Vec<_>>>();
        all.map(|mut all| {
            all.sort_unstable();
            all.dedup();
            all
        })
    }

    fn is_file(&self, at: &Path) -> bool {
        match &self.0.files {
            Listing::All => true,
            Listing::Only(files) | Listing::Each(files) => files.contains(at),
        }
    }

    async fn listed(&self, prefix: Option<&Path>) -> Result<Vec<ObjectMeta>> {
        if let Listing::Each(files) = &self.0.files {
            let heads = files.iter().cloned().map(|at| async move { self.head(&at).await });
            return stream::iter(heads).buffered(HEADS_MAX).try_collect().await;
        }
        let files = self.0.store.list(prefix);
        let is_file = |meta: &ObjectMeta| futures::future::ready(self.is_file(&meta.location));
        files.try_filter(is_file).try_collect().await
    }

    fn object(&self, at: &Path) -> u64 {
        versions::object(self.0.origin, &self.0.root, at.as_ref())
    }

    /// Records a file that was found: it must not change.
    fn find(&self, meta: &ObjectMeta) -> Result<()> {
        if !self.is_file(&meta.location) {
            return Ok(());
        }
        let (version, _) = versions::of_object(meta);
        lock(&self.0.found).entry(meta.location.to_string()).or_insert(version);
        // Some stores report etags only for single objects, not in listings.
        match meta.e_tag {
            Some(_) => self.met(meta),
            None => Ok(()),
        }
    }

    fn met(&self, meta: &ObjectMeta) -> Result<()> {
        let (version, tag) = versions::of_object(meta);
        match self.0.versions.met(self.object(&meta.location), version, tag) {
            true => Ok(()),
            false => Err(self.changed(&meta.location)),
        }
    }

    /// The description of a file, with a time that also depends on its version and storage. DataFusion caches the ends
    /// of Parquet files across statements by path, size and time, which other versions, and files of other storages,
    /// may share.
    fn stamped(&self, meta: &ObjectMeta) -> ObjectMeta {
        let version = match versions::is_told(meta) {
            true => versions::of_object(meta).0,
            false => self.0.number,
        };
        let told = versions::of_text(&format!("{} {version}", self.object(&meta.location)));
        let time = SystemTime::from(meta.last_modified).duration_since(UNIX_EPOCH);
        let seconds = time.map_or(0, |time| time.as_secs());
        let time = UNIX_EPOCH + Duration::new(seconds, (told % 1_000_000_000) as u32);
        ObjectMeta { last_modified: time.into(), ..meta.clone() }
    }

    fn changed(&self, at: &Path) -> Error {
        let what = self.shown(at);
        Error::Precondition {
            path: at.to_string(),
            source: Box::new(SourceError::Changed { what }),
        }
    }

    fn shown(&self, at: &Path) -> String {
        format!("{}/{at}", self.0.root)
    }

    /// Requests a file in the version that was found.
    async fn ask(&self, at: &Path, mut options: GetOptions) -> Result<GetResult> {
        if let (false, Some(fence)) = (self.0.is_local, &self.0.fence) {
            fence.object(at.as_ref(), &self.shown(at)).map_err(|e| refused(at, e))?;
        }
        options.if_match = options.if_match.or_else(|| self.0.versions.tag(self.object(at)));
        match self.0.store.get_opts(at, options).await {
            Ok(got) => {
                if let (GetResultPayload::File(file, path), Some(fence)) =
                    (&got.payload, &self.0.fence)
                {
                    fence.opened(file, path, &self.shown(at)).map_err(|e| refused(at, e))?;
                }
                self.met(&got.meta).map(|()| got)
            }
            Err(Error::Precondition { .. }) => Err(self.changed(at)),
            Err(e @ Error::NotFound { .. }) => {
                match self.0.versions.met(self.object(at), ABSENT, None) {
                    true => Err(e),
                    false => Err(self.changed(at)),
                }
            }
            Err(e) if self.0.is_local && is_denied(&e) => {
                let (what, reason) = (self.shown(at), "the file's permissions".to_string());
                Err(refused(at, SourceError::PermissionDenied { what, reason }))
            }
            Err(e) => Err(e),
        }
    }

    /// Streams a part of a file in blocks, each checked to be read before the file changed.
    fn blocks(&self, at: &Path, file: File, range: Range<u64>) -> Result<GetResultPayload> {
        let failed = |source| failed(at, source);
        let version = versions::of_file(&file.metadata().map_err(failed)?);
        let (file, store, at) = (Arc::new(file), self.clone(), at.clone());
        let blocks = stream::try_unfold(range.start, move |start| {
            let (file, store, at) = (file.clone(), store.clone(), at.clone());
            async move {
                let end = range.end.min(start.saturating_add(BLOCK_BYTES));
                if start >= end {
                    return Ok(None);
                }
                let read = move || store.read(&file, &at, version, start..end);
                Ok(Some((blocking(read).await?, end)))
            }
        });
        Ok(GetResultPayload::Stream(blocks.boxed()))
    }

    fn read(&self, file: &File, at: &Path, version: u64, part: Range<u64>) -> Result<Bytes> {
        let read = block_of(file, &part);
        // A file that was truncated in the meantime is reported as changed.
        if versions::of_file(&file.metadata().map_err(|e| failed(at, e))?) != version {
            return Err(self.changed(at));
        }
        read.map(Bytes::from).map_err(|e| failed(at, e))
    }
}

/// The bytes of a part of a file, in memory that is not zeroed before.
fn block_of(file: &File, part: &Range<u64>) -> std::io::Result<Vec<u8>> {
    let length = part.end.saturating_sub(part.start) as usize;
    let mut block = Vec::with_capacity(length);
    while block.len() < length {
        let at = part.start + block.len() as u64;
        match rustix::io::pread(file, rustix::buffer::spare_capacity(&mut block), at) {
            Ok(0) => return Err(std::io::ErrorKind::UnexpectedEof.into()),
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(e) => return Err(e.into()),
        }
    }
    // The memory may be larger than asked for.
    block.truncate(length);
    Ok(block)
}

fn refused(at: &Path, source: SourceError) -> Error {
    Error::PermissionDenied { path: at.to_string(), source: Box::new(source) }
}

/// True if the operating system denied access.
fn is_denied(error: &(dyn std::error::Error + 'static)) -> bool {
    let mut of_files = causes(error).filter_map(|e| e.downcast_ref::<std::io::Error>());
    of_files.any(|e| e.kind() == std::io::ErrorKind::PermissionDenied)
}

fn failed(at: &Path, source: std::io::Error) -> Error {
    match source.kind() {
        std::io::ErrorKind::NotFound => {
            Error::NotFound { path: at.to_string(), source: source.into() }
        }
        _ => Error::Generic { store: "local files", source: source.into() },
    }
}

/// Reads on a thread for blocking calls, if there is a runtime.
async fn blocking<T: Send + 'static>(
    read: impl FnOnce() -> Result<T> + Send + 'static,
) -> Result<T> {
    match tokio::runtime::Handle::try_current() {
        Ok(io) => io.spawn_blocking(read).await.unwrap_or_else(|e| {
            Err(Error::Generic { store: "local files", source: e.to_string().into() })
        }),
        Err(_) => read(),
    }
}

impl fmt::Display for TableStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.store.fmt(f)
    }
}

#[async_trait::async_trait]
impl ObjectStore for TableStore {
    async fn put_opts(&self, at: &Path, bytes: PutPayload, o: PutOptions) -> Result<PutResult> {
        self.0.store.put_opts(at, bytes, o).await
    }

    async fn put_multipart_opts(
        &self,
        at: &Path,
        o: PutMultipartOptions,
    ) -> Result<Box<dyn MultipartUpload>> {
        self.0.store.put_multipart_opts(at, o).await
    }

    async fn get_opts(&self, at: &Path, options: GetOptions) -> Result<GetResult> {
        let (is_head, is_part) = (options.head, options.range.is_some());
        let mut got = self.ask(at, options).await?;
        if is_head {
            self.find(&got.meta)?;
            got.meta = self.stamped(&got.meta);
        }
        let payload = match got.payload {
            GetResultPayload::File(file, _) if self.0.is_local => {
                self.blocks(at, file, got.range.clone())?
            }
            other => other,
        };
        let Some(packing) = Packing::of(at.as_ref()).filter(|_| !is_head) else {
            return Ok(GetResult { payload, ..got });
        };
        if is_part {
            return Err(Error::NotSupported {
                source: format!("a part of {at}, which is compressed").into(),
            });
        }
        let packed = GetResult { payload, ..got };
        let (meta, range, attributes) =
            (packed.meta.clone(), packed.range.clone(), packed.attributes.clone());
        let payload = GetResultPayload::Stream(unpacked(packing, at, packed.into_stream())?);
        Ok(GetResult { payload, meta, range, attributes })
    }

    async fn get_ranges(&self, at: &Path, ranges: &[Range<u64>]) -> Result<Vec<Bytes>> {
        if !self.0.is_local {
            let part = |part: Range<u64>| self.get_range(at, part);
            return coalesce_ranges(ranges, part, OBJECT_STORE_COALESCE_DEFAULT).await;
        }
        let got = self.ask(at, GetOptions::default()).await?;
        let GetResultPayload::File(file, _) = got.payload else {
            return Err(Error::NotImplemented {
                operation: "reading parts of something that is not a file".into(),
                implementer: self.to_string(),
            });
        };
        let (store, at, ranges) = (self.clone(), at.clone(), ranges.to_vec());
        blocking(move || {
            let version = versions::of_file(&file.metadata().map_err(|e| failed(&at, e))?);
            let size = got.meta.size;
            let within = |r: Range<u64>| r.start.min(size)..r.end.min(size);
            ranges.into_iter().map(|r| store.read(&file, &at, version, within(r))).collect()
        })
        .await
    }

    fn delete_stream(
        &self,
        all: BoxStream<'static, Result<Path>>,
    ) -> BoxStream<'static, Result<Path>> {
        self.0.store.delete_stream(all)
    }

    fn list(&self, prefix: Option<&Path>) -> BoxStream<'static, Result<ObjectMeta>> {
        let (this, prefix) = (self.clone(), prefix.cloned());
        let key = prefix.as_ref().map(Path::to_string).unwrap_or_default();
        let all = async move {
            let known = lock(&this.0.lists).get(&key).cloned();
            let all = match known {
                Some(all) => all,
                None => {
                    let all = this.listed(prefix.as_ref()).await?;
                    all.iter().try_for_each(|meta| this.find(meta))?;
                    let all = all.iter().map(|meta| this.stamped(meta)).collect();
                    lock(&this.0.lists).entry(key).or_insert(Arc::new(all)).clone()
                }
            };
            let count = all.len();
            Ok::<_, Error>(stream::iter((0..count).map(move |i| Ok(all[i].clone()))))
        };
        stream::once(all).try_flatten().boxed()
    }

    async fn list_with_delimiter(&self, prefix: Option<&Path>) -> Result<ListResult> {
        self.0.store.list_with_delimiter(prefix).await
    }

    async fn copy_opts(&self, from: &Path, to: &Path, o: CopyOptions) -> Result<()> {
        self.0.store.copy_opts(from, to, o).await
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]
    use super::*;
    use crate::source::passing;

    #[test]
    fn files_without_permission_differ_from_missing_ones() {
        let of = |kind: std::io::ErrorKind| Error::Generic {
            store: "local files",
            source: Box::new(std::io::Error::from(kind)),
        };
        assert!(is_denied(&of(std::io::ErrorKind::PermissionDenied)));
        assert!(!is_denied(&of(std::io::ErrorKind::InvalidInput)));
        let denied = SourceError::PermissionDenied { what: "/t.csv".into(), reason: "no".into() };
        let told = passing(&refused(&Path::from("t.csv"), denied)).unwrap();
        assert_eq!(told.code(), "permission_denied");
        assert!(told.to_string().contains("/t.csv"), "{told}");
    }
}
