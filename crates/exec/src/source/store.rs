//! Objects of a dataset: files of a directory, or objects below a prefix of an object store.

use crate::source::error::SourceError;
use crate::source::location::{Location, Options, Place};
use crate::source::patient::{Patient, is_transient};
use crate::source::seen::{self, Kept, Seen, Version};
use crate::source::versions::{self, ABSENT, Versions};
use bytes::Bytes;
use futures::{StreamExt, TryStreamExt, stream};
use object_store::aws::{AmazonS3Builder, AmazonS3ConfigKey};
use object_store::http::HttpBuilder;
use object_store::{
    BackoffConfig, ClientOptions, GetOptions, GetRange, ObjectMeta, ObjectStore, ObjectStoreExt,
    RetryConfig,
};
use std::collections::BTreeMap;
use std::fs::File;
use std::future::Future;
use std::io;
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tokio::sync::Semaphore;

/// Requests in flight for one region.
const CONCURRENT_MAX: usize = 16;

/// Requests in flight over all statements, each on a connection that is kept for the next one.
const REQUESTS_MAX: usize = 128;

/// Attempts of a request after the first; together they wait some two seconds.
const RETRIES_MAX: usize = 8;

/// The most that a metadata document may have.
pub(crate) const METADATA_BYTES_MAX: u64 = 256 << 20;

/// What reading has cost so far. Shared by all readers of a [`Stores`].
#[derive(Debug, Default)]
pub struct Counters {
    /// Reads of objects or parts of objects, metadata among them.
    pub requests: AtomicU64,
    /// Bytes that arrived.
    pub bytes: AtomicU64,
    /// Stored chunks (of shards: inner chunks) that were fetched; absent ones count.
    pub chunks: AtomicU64,
}

impl Counters {
    /// `(requests, bytes, chunks)` at this moment.
    pub fn snapshot(&self) -> (u64, u64, u64) {
        let get = |a: &AtomicU64| a.load(Ordering::Relaxed);
        (get(&self.requests), get(&self.bytes), get(&self.chunks))
    }

    fn count(&self, bytes: usize) {
        self.add(bytes);
        // Who reads coordinates and metadata counts nothing of its own.
        let _ = OWN.try_with(|own| own.add(bytes));
    }

    fn add(&self, bytes: usize) {
        self.requests.fetch_add(1, Ordering::Relaxed);
        self.bytes.fetch_add(bytes as u64, Ordering::Relaxed);
    }

    /// Counts here too what `read` reads, whenever it is polled.
    pub(crate) async fn of<T>(self: Arc<Self>, read: impl Future<Output = T>) -> T {
        OWN.scope(self, read).await
    }

    /// Counts here too what `read` reads.
    pub(crate) fn of_now<T>(self: &Arc<Self>, read: impl FnOnce() -> T) -> T {
        OWN.sync_scope(self.clone(), read)
    }
}

tokio::task_local! {
    /// The counters of the plan for which something is read, beside those of the process.
    static OWN: Arc<Counters>;
}

/// What [`Stores::exists`] found.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Found {
    /// True for a directory, or a prefix of objects.
    pub is_directory: bool,
}

/// A place in an object store.
#[derive(Debug, Clone)]
pub struct Client {
    /// The store, rooted at its bucket or host.
    pub store: Arc<dyn ObjectStore>,
    /// The key below the root.
    pub key: String,
}

/// Connections to storages, kept between statements.
pub struct Stores {
    clients: Mutex<BTreeMap<String, Arc<dyn ObjectStore>>>,
    environment: BTreeMap<String, String>,
    timeout: Duration,
    counters: Arc<Counters>,
    requests: Arc<Semaphore>,
    kept: Kept,
}

impl std::fmt::Debug for Stores {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        // Neither clients nor environment are shown: both hold credentials.
        f.debug_struct("Stores").field("timeout", &self.timeout).finish_non_exhaustive()
    }
}

impl Stores {
    /// Stores with the process's `AWS_*` variables. `timeout` bounds each read, retries included.
    pub fn new(timeout: Duration) -> Self {
        Stores::with_environment(timeout, std::env::vars())
    }

    /// The same with other variables.
    pub fn with_environment(
        timeout: Duration,
        environment: impl IntoIterator<Item = (String, String)>,
    ) -> Self {
        Stores {
            clients: Mutex::default(),
            environment: environment.into_iter().filter(|(k, _)| k.starts_with("AWS_")).collect(),
            timeout,
            counters: Arc::default(),
            requests: Arc::new(Semaphore::new(REQUESTS_MAX)),
            kept: Kept::default(),
        }
    }

    /// Datasets that were opened before.
    pub(crate) fn kept(&self) -> &Kept {
        &self.kept
    }

    /// What all reads through these stores have cost.
    pub fn counters(&self) -> &Arc<Counters> {
        &self.counters
    }

    /// Whether something is there: a file or object, or a directory of some.
    ///
    /// # Errors
    /// [`SourceError::NotFound`] if nothing is; those of the storage.
    pub async fn exists(&self, url: &str, options: &Options) -> Result<Found, SourceError> {
        let location = Location::parse(url)?;
        let store = self.at(&location, options)?;
        let not_found = || SourceError::NotFound { what: location.display.clone() };
        match &store.kind {
            Kind::Local(path) => match std::fs::metadata(path) {
                Ok(meta) => Ok(Found { is_directory: meta.is_dir() }),
                Err(e) if e.kind() == io::ErrorKind::NotFound => Err(not_found()),
                Err(e) => {
                    Err(SourceError::Storage { what: location.display, reason: e.to_string() })
                }
            },
            Kind::Object { .. } => match store.head("").await? {
                Some(_) => Ok(Found { is_directory: false }),
                None if store.is_empty().await => Err(not_found()),
                None => Ok(Found { is_directory: true }),
            },
        }
    }

    /// The client for a URL of an object store and the key below its root; `None` for a local path. Equal options give
    /// the same client, so connections are kept.
    ///
    /// # Errors
    /// A URL that cannot be read, options from which no client can be made.
    pub fn client_of(&self, url: &str, options: &Options) -> Result<Option<Client>, SourceError> {
        let location = Location::parse(url)?;
        let store = self.at(&location, options)?;
        Ok(match store.kind {
            Kind::Local(_) => None,
            Kind::Object { client, prefix } => Some(Client { store: client, key: prefix }),
        })
    }

    /// The store of a location, rooted at it.
    pub(crate) fn at(&self, location: &Location, options: &Options) -> Result<Store, SourceError> {
        let kind = match &location.place {
            Place::Local(path) => Kind::Local(path.clone()),
            Place::S3 { bucket, prefix } => Kind::Object {
                client: self.client(format!("s3://{bucket} {}", key_of(options)), || {
                    self.s3(bucket, options).map_err(|e| config_error(&location.display, &e))
                })?,
                prefix: prefix.clone(),
            },
            Place::Http { origin, prefix } => Kind::Object {
                client: self.client(origin.clone(), || {
                    let built = HttpBuilder::new()
                        .with_url(origin.as_str())
                        .with_client_options(
                            self.client_options().with_allow_http(origin.starts_with("http://")),
                        )
                        .with_retry(self.retry())
                        .build();
                    built
                        .map(|s| Arc::new(s) as Arc<dyn ObjectStore>)
                        .map_err(|e| config_error(&location.display, &e))
                })?,
                prefix: prefix.clone(),
            },
        };
        Ok(Store {
            kind,
            display: location.display.as_str().into(),
            timeout: self.timeout,
            counters: self.counters.clone(),
            requests: self.requests.clone(),
            origin: origin_of(options),
            seen: None,
            versions: None,
            dropped_whole: options.dropped_whole,
        })
    }

    fn client(
        &self,
        key: String,
        make: impl FnOnce() -> Result<Arc<dyn ObjectStore>, SourceError>,
    ) -> Result<Arc<dyn ObjectStore>, SourceError> {
        let mut clients = self.clients.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(c) = clients.get(&key) {
            return Ok(c.clone());
        }
        let client: Arc<dyn ObjectStore> = Arc::new(Patient::new(make()?, self.timeout / 2));
        clients.insert(key, client.clone());
        Ok(client)
    }

    /// Requests to a bucket go to that client.
    #[cfg(test)]
    pub(crate) fn serve(&self, bucket: &str, client: Arc<dyn ObjectStore>) {
        let key = format!("s3://{bucket} {}", key_of(&Options::default()));
        self.clients.lock().unwrap_or_else(PoisonError::into_inner).insert(key, client);
    }

    fn s3(&self, bucket: &str, o: &Options) -> object_store::Result<Arc<dyn ObjectStore>> {
        let mut b = AmazonS3Builder::new();
        for (name, value) in &self.environment {
            // Variables that object_store does not know are for other programs.
            if let Ok(key) = name.to_ascii_lowercase().parse::<AmazonS3ConfigKey>() {
                b = b.with_config(key, value);
            }
        }
        let env = |name: &str| self.environment.get(name).filter(|v| !v.is_empty());
        if let Some(v) = &o.region {
            b = b.with_region(v);
        } else if env("AWS_REGION").is_none() && env("AWS_DEFAULT_REGION").is_none() {
            b = b.with_region("us-east-1");
        }
        let endpoint = o.endpoint.as_ref().or_else(|| {
            ["AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL", "AWS_ENDPOINT"].iter().find_map(|n| env(n))
        });
        if let Some(v) = endpoint {
            b = b.with_endpoint(v.trim_end_matches('/'));
        }
        if let Some(v) = &o.access_key_id {
            b = b.with_access_key_id(v);
            // The token of other credentials would make these wrong.
            b = b.with_token(o.session_token.clone().unwrap_or_default());
        }
        if let Some(v) = &o.secret_access_key {
            b = b.with_secret_access_key(v);
        }
        if let Some(v) = &o.session_token {
            b = b.with_token(v);
        }
        let allow_http = o
            .allow_http
            .or_else(|| env("AWS_ALLOW_HTTP").map(|v| v.eq_ignore_ascii_case("true") || v == "1"))
            .unwrap_or(false);
        // Without any credentials a request is anonymous: asking the metadata service of a cloud would only wait.
        let known = o.access_key_id.is_some()
            || [
                "AWS_ACCESS_KEY_ID",
                "AWS_WEB_IDENTITY_TOKEN_FILE",
                "AWS_CONTAINER_CREDENTIALS_RELATIVE_URI",
                "AWS_CONTAINER_CREDENTIALS_FULL_URI",
            ]
            .iter()
            .any(|n| env(n).is_some());
        let skip = o.skip_signature.or_else(|| {
            env("AWS_SKIP_SIGNATURE").map(|v| v.eq_ignore_ascii_case("true") || v == "1")
        });
        b = b.with_skip_signature(skip.unwrap_or(!known));
        let store = b
            .with_bucket_name(bucket)
            .with_client_options(self.client_options().with_allow_http(allow_http))
            .with_allow_http(allow_http)
            .with_retry(self.retry())
            .build()?;
        Ok(Arc::new(store))
    }

    fn client_options(&self) -> ClientOptions {
        ClientOptions::new()
            // One attempt does not take all the time that there is.
            .with_timeout(self.timeout / 2)
            .with_connect_timeout(self.timeout.min(Duration::from_secs(5)))
    }

    fn retry(&self) -> RetryConfig {
        RetryConfig {
            max_retries: RETRIES_MAX,
            retry_timeout: self.timeout / 2,
            backoff: BackoffConfig {
                init_backoff: Duration::from_millis(100),
                max_backoff: (self.timeout / 10).min(Duration::from_secs(2)),
                base: 2.0,
            },
        }
    }
}

/// What tells two sets of options, and their credentials, apart. In memory only, never shown.
pub(crate) fn key_of(o: &Options) -> String {
    format!(
        "{:?} {:?} {:?} {:?} {:?} {:?} {:?}",
        o.endpoint,
        o.region,
        o.access_key_id,
        o.secret_access_key,
        o.session_token,
        o.skip_signature,
        o.allow_http
    )
}

/// What tells stores apart in which the same URL means something else.
pub(crate) fn origin_of(o: &Options) -> u64 {
    match (&o.endpoint, &o.region) {
        (None, None) => 0,
        place => versions::of_text(&format!("{place:?}")),
    }
}

fn config_error(what: &str, _e: &object_store::Error) -> SourceError {
    SourceError::BadUrl {
        url: what.to_string(),
        reason: "no client can be made from its endpoint, region and options".into(),
    }
}

/// The objects below one place.
#[derive(Clone)]
pub(crate) struct Store {
    kind: Kind,
    display: Arc<str>,
    timeout: Duration,
    counters: Arc<Counters>,
    /// Each request takes a permit.
    requests: Arc<Semaphore>,
    /// See [`versions::object`].
    origin: u64,
    /// Where it notes what was looked at.
    seen: Option<Arc<Seen>>,
    /// What the statement has read until now, which has to stay what it was.
    versions: Option<Arc<Versions>>,
    /// See [`Options::dropped_whole`].
    dropped_whole: bool,
}

#[derive(Clone)]
enum Kind {
    Local(PathBuf),
    Object { client: Arc<dyn ObjectStore>, prefix: String },
}

/// A local file, opened.
#[derive(Debug)]
pub(crate) struct LocalFile {
    pub(crate) key: String,
    file: File,
    /// Bytes that it had when it was opened.
    pub(crate) len: u64,
    /// Its version then.
    version: u64,
}

/// What a store is made of, for whoever writes to it.
pub(crate) enum Parts {
    Local(PathBuf),
    Object { client: Arc<dyn ObjectStore>, prefix: String, timeout: Duration },
}

/// Names directly below a key.
#[derive(Debug, Default)]
pub(crate) struct Listing {
    pub(crate) directories: Vec<String>,
}

impl std::fmt::Debug for Store {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Store({})", self.display)
    }
}

impl Store {
    /// The object's URL as messages show it.
    pub(crate) fn show(&self, key: &str) -> String {
        if key.is_empty() { self.display.to_string() } else { format!("{}/{key}", self.display) }
    }

    /// The place itself.
    pub(crate) fn root(&self) -> &str {
        &self.display
    }

    pub(crate) fn counters(&self) -> &Counters {
        &self.counters
    }

    /// Asked when a chunk is absent: of a store that is dropped whole, the group's metadata go first, so as long as
    /// they are there, an absent chunk never was.
    ///
    /// # Errors
    /// [`SourceError::Changed`] if the store is gone.
    pub(crate) async fn check_there(&self) -> Result<(), SourceError> {
        if self.dropped_whole && self.head("zarr.json").await?.is_none() {
            return Err(SourceError::Changed { what: self.root().to_string() });
        }
        Ok(())
    }

    /// The store of what is below a key.
    pub(crate) fn below(&self, key: &str) -> Store {
        let kind = match &self.kind {
            Kind::Local(root) => Kind::Local(join_path(root, key)),
            Kind::Object { client, prefix } => {
                let slash = if prefix.is_empty() || key.is_empty() { "" } else { "/" };
                Kind::Object { client: client.clone(), prefix: format!("{prefix}{slash}{key}") }
            }
        };
        let (seen, versions) = (None, None);
        Store { kind, display: self.show(key).into(), seen, versions, ..self.clone() }
    }

    /// The same store, which notes what is looked at.
    pub(crate) fn noting(&self, seen: &Arc<Seen>) -> Store {
        Store { seen: Some(seen.clone()), ..self.clone() }
    }

    /// The same store, read for a statement that has read this already.
    pub(crate) fn read_for(&self, versions: &Arc<Versions>) -> Store {
        Store { versions: Some(versions.clone()), seen: None, ..self.clone() }
    }

    /// The same store, whose reads are those of the opening that is noted.
    pub(crate) fn opening(&self) -> Store {
        let versions = self.seen.as_ref().map(|s| s.read.clone());
        Store { versions, ..self.clone() }
    }

    fn object(&self, key: &str) -> u64 {
        versions::object(self.origin, &self.display, key)
    }

    /// An object was read and had that version: the one that it had when the statement read it before.
    fn met(&self, key: &str, version: u64, tag: Option<&str>) -> Result<(), SourceError> {
        match &self.versions {
            Some(v) if !v.met(self.object(key), version, tag) => Err(self.changed(key)),
            _ => Ok(()),
        }
    }

    /// The same of an answer, which is `None` if there is no object.
    fn met_answer(&self, key: &str, meta: Option<&ObjectMeta>) -> Result<(), SourceError> {
        let (version, tag) = meta.map_or((ABSENT, None), versions::of_object);
        self.met(key, version, tag)
    }

    /// The etag that an object had when the statement read it before.
    fn tag(&self, key: &str) -> Option<String> {
        self.versions.as_ref()?.tag(self.object(key))
    }

    fn changed(&self, key: &str) -> SourceError {
        SourceError::Changed { what: self.show(key) }
    }

    fn note(&self, key: &str, version: impl FnOnce() -> Option<Version>) {
        if let Some(seen) = &self.seen {
            seen.note(key, version);
        }
    }

    /// What is there now under a key that was noted; `None` if that cannot be told.
    pub(crate) async fn version(&self, key: &str) -> Option<Version> {
        match (&self.kind, key.strip_suffix('/')) {
            (_, Some(directory)) => {
                let names = self.list(directory).await.ok()?.directories;
                Some(Version::Names(names))
            }
            (Kind::Local(root), None) => match std::fs::metadata(join_path(root, key)) {
                Ok(meta) if meta.is_file() => seen::of_file(&meta),
                Ok(_) => Some(Version::Absent),
                Err(e) if is_nothing(&e) => Some(Version::Absent),
                Err(_) => None,
            },
            (Kind::Object { client, prefix }, None) => {
                let path = self.path(prefix, key).ok()?;
                match self.guard(key, client.head(&path)).await.ok()? {
                    Some(meta) => meta.e_tag.map(Version::Object),
                    None => Some(Version::Absent),
                }
            }
        }
    }

    /// An object or a part of it, with its description.
    async fn fetch(
        &self,
        client: &Arc<dyn ObjectStore>,
        prefix: &str,
        key: &str,
        range: GetRange,
    ) -> Result<Option<Bytes>, SourceError> {
        let path = self.path(prefix, key)?;
        let if_match = self.tag(key);
        let options = GetOptions { range: Some(range), if_match, ..GetOptions::default() };
        let got = self
            .guard(key, async {
                let r = client.get_opts(&path, options).await?;
                let meta = r.meta.clone();
                Ok((r.bytes().await?, meta))
            })
            .await?;
        self.note(key, || match &got {
            Some((_, meta)) => meta.e_tag.clone().map(Version::Object),
            None => Some(Version::Absent),
        });
        self.met_answer(key, got.as_ref().map(|(_, meta)| meta))?;
        Ok(got.map(|(bytes, _)| bytes))
    }

    /// What it is made of.
    pub(crate) fn parts(&self) -> Parts {
        match &self.kind {
            Kind::Local(root) => Parts::Local(root.clone()),
            Kind::Object { client, prefix } => Parts::Object {
                client: client.clone(),
                prefix: prefix.clone(),
                timeout: self.timeout,
            },
        }
    }

    /// An error of the store's client as one of ours.
    pub(crate) fn failure(&self, key: &str, e: object_store::Error) -> SourceError {
        let text = texts(&e);
        match e {
            object_store::Error::NotFound { .. } if text.contains("NoSuchBucket") => {
                SourceError::NoBucket { what: self.show(key) }
            }
            object_store::Error::NotFound { .. } => SourceError::NotFound { what: self.show(key) },
            e => self.sort(key, &e, &text),
        }
    }

    pub(crate) fn is_local(&self) -> bool {
        matches!(self.kind, Kind::Local(_))
    }

    /// A whole object of at most `limit` bytes; `None` if it does not exist.
    pub(crate) async fn get(&self, key: &str, limit: u64) -> Result<Option<Bytes>, SourceError> {
        let too_large = |bytes| SourceError::ObjectTooLarge { what: self.show(key), bytes, limit };
        match &self.kind {
            Kind::Local(root) => {
                let Some(file) = self.open_file(root, key)? else { return Ok(None) };
                if file.len > limit {
                    return Err(too_large(file.len));
                }
                let bytes = self.read_at(&file, 0..file.len)?;
                self.check_same(&file)?;
                Ok(Some(bytes))
            }
            Kind::Object { client, prefix } => {
                let path = self.path(prefix, key)?;
                let options = GetOptions { if_match: self.tag(key), ..GetOptions::default() };
                let got = self
                    .guard(key, async {
                        let r = client.get_opts(&path, options).await?;
                        let meta = r.meta.clone();
                        if meta.size > limit {
                            return Ok(Err(meta.size));
                        }
                        Ok(Ok((r.bytes().await?, meta)))
                    })
                    .await?;
                self.note(key, || match &got {
                    Some(Ok((_, meta))) => meta.e_tag.clone().map(Version::Object),
                    Some(Err(_)) => None,
                    None => Some(Version::Absent),
                });
                match got {
                    None => self.met_answer(key, None).map(|()| None),
                    Some(Err(size)) => Err(too_large(size)),
                    Some(Ok((bytes, meta))) => {
                        self.met_answer(key, Some(&meta))?;
                        Ok(Some(bytes))
                    }
                }
            }
        }
    }

    /// Parts of an object, in the order asked for, concurrently; `None` if it does not exist. A part beyond the end of
    /// the object comes out short.
    pub(crate) async fn get_ranges(
        &self,
        key: &str,
        ranges: &[Range<u64>],
    ) -> Result<Option<Vec<Bytes>>, SourceError> {
        match &self.kind {
            Kind::Local(_) => self.get_ranges_local(key, ranges),
            Kind::Object { client, prefix } => {
                let one = |r: Range<u64>| self.fetch(client, prefix, key, GetRange::Bounded(r));
                let parts: Vec<Option<Bytes>> = stream::iter(ranges.to_vec())
                    .map(one)
                    .buffered(CONCURRENT_MAX)
                    .try_collect()
                    .await?;
                Ok(parts.into_iter().collect())
            }
        }
    }

    fn get_ranges_local(
        &self,
        key: &str,
        ranges: &[Range<u64>],
    ) -> Result<Option<Vec<Bytes>>, SourceError> {
        let Kind::Local(root) = &self.kind else { return Ok(None) };
        let Some(file) = self.open_file(root, key)? else { return Ok(None) };
        let len = file.len;
        let parts = ranges
            .iter()
            .map(|r| self.read_at(&file, r.start.min(len)..r.end.min(len)))
            .collect::<Result<Vec<_>, _>>()?;
        self.check_same(&file)?;
        Ok(Some(parts))
    }

    /// The last `n` bytes of an object (all, if it has fewer); `None` if it does not exist.
    pub(crate) async fn get_suffix(&self, key: &str, n: u64) -> Result<Option<Bytes>, SourceError> {
        match &self.kind {
            Kind::Local(root) => {
                let Some(file) = self.open_file(root, key)? else { return Ok(None) };
                let bytes = self.read_at(&file, file.len - n.min(file.len)..file.len)?;
                self.check_same(&file)?;
                Ok(Some(bytes))
            }
            Kind::Object { client, prefix } => {
                self.fetch(client, prefix, key, GetRange::Suffix(n)).await
            }
        }
    }

    /// A local file of this store, opened; `None` if the store is not local or the file does not exist.
    pub(crate) fn local_file(&self, key: &str) -> Result<Option<LocalFile>, SourceError> {
        match &self.kind {
            Kind::Local(root) => self.open_file(root, key),
            Kind::Object { .. } => Ok(None),
        }
    }

    /// Reads `out.len()` bytes at `offset` of a file. Once all is read that is wanted at a time, it is asked whether
    /// the file [is still the same](Store::check_same).
    pub(crate) fn read_exact_at(
        &self,
        from: &LocalFile,
        out: &mut [u8],
        offset: u64,
    ) -> Result<(), SourceError> {
        self.counters.count(out.len());
        from.file.read_exact_at(out, offset).or_else(|e| {
            // A file that was cut off meanwhile is told as one that changed.
            self.check_same(from)?;
            Err(self.io_error(&from.key, &e))
        })
    }

    /// What was read of a file until now is of the version that it had when it was opened.
    pub(crate) fn check_same(&self, from: &LocalFile) -> Result<(), SourceError> {
        if self.versions.is_none() {
            return Ok(());
        }
        let now = self.io(&from.key, from.file.metadata())?;
        match versions::of_file(&now) == from.version {
            true => Ok(()),
            false => Err(self.changed(&from.key)),
        }
    }

    /// Size of an object in bytes, and what tells its versions apart; `None` if it does not exist.
    pub(crate) async fn head(
        &self,
        key: &str,
    ) -> Result<Option<(u64, Option<String>)>, SourceError> {
        match &self.kind {
            Kind::Local(root) => {
                let Some(file) = self.open_file(root, key)? else { return Ok(None) };
                let meta = self.io(key, file.file.metadata())?;
                Ok(Some((meta.len(), local_version(&meta))))
            }
            Kind::Object { client, prefix } => {
                let path = self.path(prefix, key)?;
                let meta = self.guard(key, client.head(&path)).await?;
                self.note(key, || match &meta {
                    Some(m) => m.e_tag.clone().map(Version::Object),
                    None => Some(Version::Absent),
                });
                self.met_answer(key, meta.as_ref())?;
                Ok(meta.map(|m| (m.size, m.e_tag)))
            }
        }
    }

    /// True if something is at the root: a file, a directory, or an object below the prefix.
    pub(crate) fn local_exists(&self) -> Option<bool> {
        match &self.kind {
            Kind::Local(root) => Some(root.exists()),
            Kind::Object { .. } => None,
        }
    }

    /// True if nothing can be seen below the place: neither objects nor prefixes.
    pub(crate) async fn is_empty(&self) -> bool {
        match &self.kind {
            Kind::Local(root) => !root.exists(),
            Kind::Object { client, prefix } => {
                let Ok(path) = self.path(prefix, "") else { return true };
                match self.guard("", client.list_with_delimiter(Some(&path))).await {
                    Ok(Some(l)) => l.objects.is_empty() && l.common_prefixes.is_empty(),
                    _ => true,
                }
            }
        }
    }

    /// The directories directly below `key`, sorted.
    pub(crate) async fn list(&self, key: &str) -> Result<Listing, SourceError> {
        let mut out = Listing::default();
        match &self.kind {
            Kind::Local(root) => {
                let entries = self.io(key, std::fs::read_dir(join_path(root, key)))?;
                for entry in entries {
                    let entry = self.io(key, entry)?;
                    // Names that are no UTF-8 cannot be named in a query either.
                    if let Ok(name) = entry.file_name().into_string()
                        && entry.path().is_dir()
                    {
                        out.directories.push(name);
                    }
                }
            }
            Kind::Object { client, prefix } => {
                let path = self.path(prefix, key)?;
                let listed = self.guard(key, client.list_with_delimiter(Some(&path))).await?;
                let listed =
                    listed.ok_or_else(|| SourceError::NotFound { what: self.show(key) })?;
                out.directories.extend(
                    listed.common_prefixes.iter().filter_map(|p| p.filename()).map(str::to_string),
                );
            }
        }
        out.directories.sort();
        self.note(&format!("{key}/"), || Some(Version::Names(out.directories.clone())));
        Ok(out)
    }

    fn path(&self, prefix: &str, key: &str) -> Result<object_store::path::Path, SourceError> {
        let full = match (prefix.is_empty(), key.is_empty()) {
            (true, _) => key.to_string(),
            (_, true) => prefix.to_string(),
            _ => format!("{prefix}/{key}"),
        };
        object_store::path::Path::parse(&full)
            .map_err(|e| SourceError::BadUrl { url: self.show(key), reason: e.to_string() })
    }

    fn open_file(
        &self,
        root: &std::path::Path,
        key: &str,
    ) -> Result<Option<LocalFile>, SourceError> {
        let absent = || {
            self.note(key, || Some(Version::Absent));
            self.met(key, ABSENT, None).map(|()| None)
        };
        match File::open(join_path(root, key)) {
            Ok(file) => match file.metadata() {
                Ok(meta) if meta.is_file() => {
                    self.note(key, || seen::of_file(&meta));
                    let (len, version) = (meta.len(), versions::of_file(&meta));
                    self.met(key, version, None)?;
                    Ok(Some(LocalFile { key: key.into(), file, len, version }))
                }
                // A directory, a pipe or a device is no object.
                Ok(_) => absent(),
                Err(e) => Err(self.io_error(key, &e)),
            },
            Err(e) if is_nothing(&e) => absent(),
            Err(e) => Err(self.io_error(key, &e)),
        }
    }

    fn read_at(&self, from: &LocalFile, range: Range<u64>) -> Result<Bytes, SourceError> {
        let mut out = vec![0u8; (range.end - range.start) as usize];
        self.read_exact_at(from, &mut out, range.start)?;
        Ok(out.into())
    }

    fn io<T>(&self, key: &str, r: io::Result<T>) -> Result<T, SourceError> {
        r.map_err(|e| self.io_error(key, &e))
    }

    fn io_error(&self, key: &str, e: &io::Error) -> SourceError {
        let what = self.show(key);
        match e.kind() {
            io::ErrorKind::NotFound | io::ErrorKind::NotADirectory => {
                SourceError::NotFound { what }
            }
            io::ErrorKind::PermissionDenied => {
                SourceError::PermissionDenied { what, reason: "the file's permissions".into() }
            }
            io::ErrorKind::UnexpectedEof => {
                SourceError::Storage { what, reason: "the file ended early".into() }
            }
            _ => SourceError::Storage { what, reason: e.to_string() },
        }
    }

    /// Runs one request within the time-out, counts it, and sorts its errors; "not found" is `None`.
    async fn guard<T: Measured>(
        &self,
        key: &str,
        request: impl Future<Output = object_store::Result<T>>,
    ) -> Result<Option<T>, SourceError> {
        // Whoever holds a permit gives it back within the time-out.
        let permit = self.requests.acquire().await;
        let answered = tokio::time::timeout(self.timeout, request).await;
        drop(permit);
        match answered {
            Err(_) => {
                self.counters.count(0);
                Err(SourceError::Timeout {
                    what: self.show(key),
                    seconds: self.timeout.as_secs().max(1),
                })
            }
            Ok(Ok(v)) => {
                self.counters.count(v.bytes());
                Ok(Some(v))
            }
            Ok(Err(e)) => {
                self.counters.count(0);
                let text = texts(&e);
                match e {
                    // S3 answers a missing bucket with the status of a missing key.
                    object_store::Error::NotFound { .. } if text.contains("NoSuchBucket") => {
                        Err(SourceError::NoBucket { what: self.show(key) })
                    }
                    object_store::Error::NotFound { .. } => Ok(None),
                    e => Err(self.sort(key, &e, &text)),
                }
            }
        }
    }

    fn sort(&self, key: &str, e: &object_store::Error, text: &str) -> SourceError {
        use object_store::Error as E;
        let what = self.show(key);
        let code = server_code(text);
        match e {
            E::PermissionDenied { .. } | E::Unauthenticated { .. } => {
                SourceError::PermissionDenied {
                    what,
                    reason: code.unwrap_or_else(|| "the server refused the credentials".into()),
                }
            }
            E::Precondition { .. } => SourceError::Changed { what },
            E::NotSupported { .. } | E::NotImplemented { .. } => {
                SourceError::Refused { what, reason: "the server cannot do this".into() }
            }
            _ if ["InvalidAccessKeyId", "SignatureDoesNotMatch", "AccessDenied"]
                .iter()
                .any(|c| text.contains(c)) =>
            {
                SourceError::PermissionDenied { what, reason: code.unwrap_or_default() }
            }
            _ => match connection(text) {
                Some(reason) => SourceError::Unreachable { what, reason: reason.into() },
                None => {
                    let reason = code.unwrap_or_else(|| "the request failed".into());
                    match is_transient(e) {
                        true => SourceError::Storage { what, reason },
                        false => SourceError::Refused { what, reason },
                    }
                }
            },
        }
    }
}

/// The failure of a storage among the causes of an error, if it may pass when all is run again: for readers that know
/// no errors of ours.
pub fn passing(error: &(dyn std::error::Error + 'static)) -> Option<SourceError> {
    let mut next = Some(error);
    while let Some(e) = next {
        if let Some(e @ SourceError::Changed { .. }) = e.downcast_ref() {
            return Some(e.clone());
        }
        if let Some(e) = e.downcast_ref::<object_store::Error>()
            && !matches!(e, object_store::Error::Precondition { .. })
        {
            let (what, text) = ("a file of a table".to_string(), texts(e));
            return is_transient(e).then(|| match connection(&text) {
                Some(reason) => SourceError::Unreachable { what, reason: reason.into() },
                None => {
                    let reason = server_code(&text).unwrap_or_else(|| "the request failed".into());
                    SourceError::Storage { what, reason }
                }
            });
        }
        next = e.source();
    }
    None
}

/// Bytes that a request brought.
trait Measured {
    fn bytes(&self) -> usize;
}

impl Measured for (Bytes, ObjectMeta) {
    fn bytes(&self) -> usize {
        self.0.len()
    }
}

impl Measured for Result<(Bytes, ObjectMeta), u64> {
    fn bytes(&self) -> usize {
        self.as_ref().map_or(0, Measured::bytes)
    }
}

impl Measured for ObjectMeta {
    fn bytes(&self) -> usize {
        0
    }
}

impl Measured for object_store::ListResult {
    fn bytes(&self) -> usize {
        0
    }
}

/// True if an error says that a file does not exist.
fn is_nothing(e: &io::Error) -> bool {
    matches!(e.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory)
}

fn join_path(root: &std::path::Path, key: &str) -> PathBuf {
    if key.is_empty() { root.to_path_buf() } else { root.join(key) }
}

pub(crate) fn local_version(meta: &std::fs::Metadata) -> Option<String> {
    let modified = meta.modified().ok()?.duration_since(std::time::UNIX_EPOCH).ok()?;
    Some(format!("{}-{}", meta.len(), modified.as_nanos()))
}

/// An error's own text and those of its sources.
fn texts(e: &dyn std::error::Error) -> String {
    let mut out = e.to_string();
    let mut source = e.source();
    while let Some(s) = source {
        out.push('\n');
        out.push_str(&s.to_string());
        source = s.source();
    }
    out
}

/// The `<Code>` of an S3 error body, or the HTTP status; nothing else of the body is shown, as it may repeat keys.
fn server_code(text: &str) -> Option<String> {
    if let Some((_, rest)) = text.split_once("<Code>")
        && let Some((code, _)) = rest.split_once("</Code>")
        && code.len() <= 64
        && code.bytes().all(|b| b.is_ascii_alphanumeric())
    {
        return Some(code.to_string());
    }
    let (_, rest) = text.split_once("status code: ")?;
    let status: String =
        rest.chars().take_while(|c| c.is_ascii_alphanumeric() || *c == ' ').collect();
    Some(format!("HTTP status {}", status.trim()))
}

/// What happened to a connection, if that is what failed.
fn connection(text: &str) -> Option<&'static str> {
    let lower = text.to_ascii_lowercase();
    let table = [
        ("connection refused", "connection refused"),
        ("dns error", "its host name is not known"),
        ("failed to lookup", "its host name is not known"),
        ("operation timed out", "no answer in time"),
        ("timed out", "no answer in time"),
        ("network is unreachable", "network is unreachable"),
        ("no route to host", "no route to host"),
        ("connection reset", "connection reset"),
        ("invalid peer certificate", "its TLS certificate is not trusted"),
        ("url scheme is not allowed", "plain http is not allowed"),
        ("error trying to connect", "the connection failed"),
        ("http error", "the connection failed"),
        ("connection", "the connection failed"),
        ("error sending request", "the request could not be sent"),
    ];
    table.iter().find(|(k, _)| lower.contains(k)).map(|(_, v)| *v)
}
