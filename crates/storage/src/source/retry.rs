//! Retries of object store requests: a transient failure is retried.
//!
//! ```text
//!   client      each request: 5xx, throttling, no connection, a truncated response (reads resume where it ended)
//!   Patient     the rest: lists and deletes with a truncated response, conditional puts with an unknown outcome
//! ```
//! Both wait between two attempts, with exponential backoff and jitter, and start none after half of the storage
//! time-out; a retry has nine tenths of it to end. So the reported error is the store's last one, not a time-out of the
//! retries. Permanent failures (not [`is_transient`]) are reported at once.
//!
//! A conditional put (the object does not exist yet, or has this version) carries a unique mark: if the store says that
//! the condition does not hold, the mark shows whether an earlier attempt, whose response was lost, put the object.

use futures::stream::BoxStream;
use futures::{FutureExt, StreamExt, TryStreamExt, stream};
use object_store::client::{HttpError, HttpErrorKind};
use object_store::path::Path;
use object_store::{
    Attribute, Attributes, CopyMode, CopyOptions, Error, GetOptions, GetRange, GetResult,
    ListResult, MultipartUpload, ObjectMeta, ObjectStore, ObjectStoreExt, PutMode,
    PutMultipartOptions, PutOptions, PutPayload, PutResult, Result, UploadPart,
};
use std::fmt;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tessera_planner::error::causes;

/// Metadata key of the mark of a put. Azure takes letters and digits only.
const MARK: &str = "tesseraput";
/// Azure's code for an anonymous request to an account that takes none.
const PRIVATE: &str = "PublicAccessNotPermitted";
/// Upper bound on the attempts of one request, in addition to those of the client.
const ATTEMPTS_MAX: u32 = 6;
/// Backoff before the second attempt.
const WAIT: Duration = Duration::from_millis(50);
const DELETES_MAX: usize = 16;

/// A store with retries.
#[derive(Debug, Clone)]
pub(crate) struct Patient {
    inner: Arc<dyn ObjectStore>,
    /// Time after which a request is not retried.
    patience: Duration,
    /// True for a container of Azure: its listings have etags without the quotes that other responses have, and it does
    /// not return the last bytes of an object without knowing its size.
    is_azure: bool,
}

impl Patient {
    pub(crate) fn new(inner: Arc<dyn ObjectStore>, patience: Duration) -> Self {
        Patient { inner, patience, is_azure: false }
    }

    /// The same, for a container of Azure.
    pub(crate) fn of_azure(self) -> Self {
        Patient { is_azure: true, ..self }
    }

    /// The description of an object in a listing, with its etag as other responses have it.
    fn listed(&self, mut meta: ObjectMeta) -> ObjectMeta {
        if self.is_azure {
            meta.e_tag = meta.e_tag.map(|tag| match tag.starts_with('"') {
                true => tag,
                false => format!("\"{tag}\""),
            });
        }
        meta
    }

    /// Runs a request, with retries.
    async fn ask<T, F: Future<Output = Result<T>>>(&self, request: impl Fn() -> F) -> Result<T> {
        let start = Instant::now();
        let mut answer = request().await;
        for attempt in 1..ATTEMPTS_MAX {
            let Err(e) = &answer else { break };
            if start.elapsed() >= self.patience || is_unconnected(e) || !is_transient(e) {
                break;
            }
            // The text of an error may hold the signature of a request.
            tracing::debug!(attempt, status = status(e), "a storage request is repeated");
            tokio::time::sleep(WAIT.mul_f64(f64::from(attempt) * (0.5 + chance()))).await;
            let left = self.patience.mul_f64(1.8).saturating_sub(start.elapsed());
            match tokio::time::timeout(left, request()).await {
                Ok(next) => answer = next,
                Err(_) => break,
            }
        }
        answer
    }

    /// Returns the result of the put that gave the object this mark; `None` if the object has another mark or does
    /// not exist.
    async fn marked(&self, at: &Path, mark: &str) -> Result<Option<PutResult>> {
        let head = || GetOptions { head: true, ..GetOptions::default() };
        match self.ask(|| self.inner.get_opts(at, head())).await {
            Ok(found) => {
                let is_ours = found
                    .attributes
                    .get(&Attribute::Metadata(MARK.into()))
                    .is_some_and(|m| **m == *mark);
                let meta = found.meta;
                Ok(is_ours.then_some(PutResult { e_tag: meta.e_tag, version: meta.version }))
            }
            Err(Error::NotFound { .. }) => Ok(None),
            Err(e) => Err(e),
        }
    }
}

/// Returns a unique mark.
fn mark(attributes: &mut Attributes) -> String {
    let mark = uuid::Uuid::new_v4().simple().to_string();
    attributes.insert(Attribute::Metadata(MARK.into()), mark.clone().into());
    mark
}

/// A random number in `[0, 1)`.
fn chance() -> f64 {
    (uuid::Uuid::new_v4().as_u128() as u32) as f64 / (f64::from(u32::MAX) + 1.0)
}

/// True for failures that may pass: of the connection, of a response in transit, of a store that is busy or out of
/// order.
pub(crate) fn is_transient(e: &Error) -> bool {
    match e {
        Error::Generic { source, .. } => {
            let source: &(dyn std::error::Error + 'static) = &**source;
            match status(source) {
                Some(501) => false,
                Some(status) => status >= 500 || matches!(status, 408 | 429),
                None => http(source).is_some(),
            }
        }
        _ => false,
    }
}

/// The error of a store of Azure without public access, which answers anonymous requests with a conflict.
fn public(e: Error) -> Error {
    match e {
        Error::AlreadyExists { path, source } if source.to_string().contains(PRIVATE) => {
            Error::PermissionDenied { path, source }
        }
        other => other,
    }
}

/// True if the store does not support the request.
pub(crate) fn is_unsupported(e: &Error) -> bool {
    matches!(e, Error::NotSupported { .. } | Error::NotImplemented { .. }) || status(e) == Some(501)
}

/// True if there was no connection: the client has already retried that often enough.
fn is_unconnected(e: &Error) -> bool {
    http(e).is_some_and(|h| h.kind() == HttpErrorKind::Connect)
}

/// The connection's error among the causes.
fn http<'a>(e: &'a (dyn std::error::Error + 'static)) -> Option<&'a HttpError> {
    causes(e).find_map(|e| e.downcast_ref())
}

/// The HTTP status among the causes: the client has it only in its text.
fn status(e: &(dyn std::error::Error + 'static)) -> Option<u16> {
    for e in causes(e) {
        let text = e.to_string();
        // A success status with an error body, and a status that is too general.
        if text.contains("Server returned error response") || text.contains("RequestTimeout") {
            return Some(503);
        }
        if let Some((_, rest)) = text.split_once("status code: ") {
            return rest.get(..3)?.parse().ok();
        }
    }
    None
}

impl fmt::Display for Patient {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.inner.fmt(f)
    }
}

#[async_trait::async_trait]
impl ObjectStore for Patient {
    async fn put_opts(&self, at: &Path, bytes: PutPayload, mut o: PutOptions) -> Result<PutResult> {
        if o.mode == PutMode::Overwrite {
            let put = self.ask(|| self.inner.put_opts(at, bytes.clone(), o.clone())).await;
            return put.map_err(public);
        }
        let mark = mark(&mut o.attributes);
        match self.ask(|| self.inner.put_opts(at, bytes.clone(), o.clone())).await.map_err(public) {
            Err(e @ (Error::AlreadyExists { .. } | Error::Precondition { .. })) => {
                self.marked(at, &mark).await?.ok_or(e)
            }
            other => other,
        }
    }

    async fn put_multipart_opts(
        &self,
        at: &Path,
        mut o: PutMultipartOptions,
    ) -> Result<Box<dyn MultipartUpload>> {
        let mark = mark(&mut o.attributes);
        let inner = self.ask(|| self.inner.put_multipart_opts(at, o.clone())).await?;
        Ok(Box::new(Upload { inner, store: self.clone(), at: at.clone(), mark }))
    }

    async fn get_opts(&self, at: &Path, mut o: GetOptions) -> Result<GetResult> {
        if let (true, Some(GetRange::Suffix(n))) = (self.is_azure, &o.range) {
            let (n, head) = (*n, GetOptions { head: true, range: None, ..o.clone() });
            let meta = self.ask(|| self.inner.get_opts(at, head.clone())).await?.meta;
            o.range = Some(GetRange::Bounded(meta.size - n.min(meta.size)..meta.size));
            o.if_match = o.if_match.or(meta.e_tag);
        }
        self.ask(|| self.inner.get_opts(at, o.clone())).await.map_err(|e| match (e, o.head) {
            // The response to a HEAD has no code.
            (Error::AlreadyExists { path, source }, true) => {
                Error::PermissionDenied { path, source }
            }
            (e, _) => public(e),
        })
    }

    fn delete_stream(
        &self,
        all: BoxStream<'static, Result<Path>>,
    ) -> BoxStream<'static, Result<Path>> {
        let store = self.clone();
        all.map(move |at| {
            let store = store.clone();
            async move {
                let at = at?;
                store.ask(|| store.inner.delete(&at)).await.map(|()| at)
            }
        })
        .buffered(DELETES_MAX)
        .boxed()
    }

    fn list(&self, prefix: Option<&Path>) -> BoxStream<'static, Result<ObjectMeta>> {
        let (store, prefix) = (self.clone(), prefix.cloned());
        // A truncated list starts over: none of it was returned yet.
        async move {
            let all = || store.inner.list(prefix.as_ref()).try_collect::<Vec<_>>();
            match store.ask(all).await {
                Ok(all) => stream::iter(all).map(move |meta| Ok(store.listed(meta))).boxed(),
                Err(e) => stream::once(async { Err(e) }).boxed(),
            }
        }
        .flatten_stream()
        .boxed()
    }

    async fn list_with_delimiter(&self, prefix: Option<&Path>) -> Result<ListResult> {
        let mut all = self.ask(|| self.inner.list_with_delimiter(prefix)).await?;
        all.objects = all.objects.into_iter().map(|meta| self.listed(meta)).collect();
        Ok(all)
    }

    async fn copy_opts(&self, from: &Path, to: &Path, o: CopyOptions) -> Result<()> {
        match o.mode {
            // An earlier attempt may have made the object.
            CopyMode::Create => self.inner.copy_opts(from, to, o).await,
            CopyMode::Overwrite => {
                let copy = || self.inner.copy_opts(from, to, o.clone());
                match self.ask(copy).await {
                    // The client of Google's store takes the modes for each other.
                    Err(Error::AlreadyExists { .. }) => {
                        match self.ask(|| self.inner.delete(to)).await {
                            // An earlier attempt, whose response was lost, has removed it.
                            Ok(()) | Err(Error::NotFound { .. }) => self.ask(copy).await,
                            Err(e) => Err(e),
                        }
                    }
                    done => done,
                }
            }
        }
    }
}

/// An upload in parts.
#[derive(Debug)]
struct Upload {
    inner: Box<dyn MultipartUpload>,
    store: Patient,
    at: Path,
    mark: String,
}

#[async_trait::async_trait]
impl MultipartUpload for Upload {
    /// The client retries a part that did not arrive.
    fn put_part(&mut self, data: PutPayload) -> UploadPart {
        self.inner.put_part(data)
    }

    /// A completed upload no longer exists: on a retry the store reports that, although it succeeded.
    async fn complete(&mut self) -> Result<PutResult> {
        match self.inner.complete().await {
            Err(e) => match self.store.marked(&self.at, &self.mark).await {
                Ok(Some(put)) => Ok(put),
                _ => Err(e),
            },
            done => done,
        }
    }

    async fn abort(&mut self) -> Result<()> {
        self.inner.abort().await
    }
}
