//! A bucket in memory whose writes fail.

use bytes::Bytes;
use futures::StreamExt;
use futures::stream::BoxStream;
use object_store::memory::InMemory;
use object_store::path::Path;
use object_store::{
    CopyOptions, Error, GetOptions, GetResult, ListResult, MultipartUpload, ObjectMeta,
    ObjectStore, PutMultipartOptions, PutOptions, PutPayload, PutResult, Result, UploadPart,
};
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};

/// Behaviour of a failing write.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Fault {
    NoSpace,
    /// The store responds with 503, to every retry.
    Unavailable,
    /// The store does not respond.
    Silence,
    /// The store has the object, but its response is lost.
    LostAnswer,
}

/// A bucket whose write number `at`, and all later ones, fail.
#[derive(Debug)]
pub(crate) struct Faulty {
    pub(crate) inner: Arc<InMemory>,
    state: Arc<FaultState>,
}

#[derive(Debug)]
struct FaultState {
    fault: Fault,
    at: u64,
    writes: AtomicU64,
}

#[derive(Debug)]
struct Upload {
    inner: Box<dyn MultipartUpload>,
    state: Arc<FaultState>,
}

impl Faulty {
    pub(crate) fn new(fault: Fault, at: u64) -> Arc<Self> {
        let state = FaultState { fault, at, writes: AtomicU64::new(0) };
        Arc::new(Faulty { inner: Arc::new(InMemory::new()), state: Arc::new(state) })
    }

    pub(crate) fn writes(&self) -> u64 {
        self.state.writes.load(SeqCst)
    }

    pub(crate) async fn keys(&self) -> Vec<String> {
        let all: Vec<_> = self.inner.list(None).collect().await;
        all.into_iter().map(|m| m.unwrap().location.to_string()).collect()
    }
}

impl FaultState {
    /// Runs a write, or the fault in its place.
    async fn write<T>(&self, write: impl Future<Output = Result<T>>) -> Result<T> {
        if self.writes.fetch_add(1, SeqCst) < self.at {
            return write.await;
        }
        let told = |source: &str| Error::Generic { store: "faulty", source: source.into() };
        match self.fault {
            Fault::NoSpace => Err(told("507 XMinioStorageFull: the drive has no room")),
            Fault::Unavailable => {
                Err(told("non-2xx status code: 503 Service Unavailable: SlowDown"))
            }
            Fault::Silence => std::future::pending().await,
            Fault::LostAnswer => {
                write.await?;
                Err(told("connection reset after the request was sent"))
            }
        }
    }
}

impl fmt::Display for Faulty {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("faulty")
    }
}

#[async_trait::async_trait]
impl ObjectStore for Faulty {
    async fn put_opts(&self, at: &Path, bytes: PutPayload, o: PutOptions) -> Result<PutResult> {
        self.state.write(self.inner.put_opts(at, bytes, o)).await
    }

    async fn put_multipart_opts(
        &self,
        at: &Path,
        o: PutMultipartOptions,
    ) -> Result<Box<dyn MultipartUpload>> {
        let inner = self.state.write(self.inner.put_multipart_opts(at, o)).await?;
        Ok(Box::new(Upload { inner, state: self.state.clone() }))
    }

    async fn get_opts(&self, at: &Path, o: GetOptions) -> Result<GetResult> {
        self.inner.get_opts(at, o).await
    }

    async fn get_ranges(&self, at: &Path, ranges: &[std::ops::Range<u64>]) -> Result<Vec<Bytes>> {
        self.inner.get_ranges(at, ranges).await
    }

    fn delete_stream(
        &self,
        all: BoxStream<'static, Result<Path>>,
    ) -> BoxStream<'static, Result<Path>> {
        self.inner.delete_stream(all)
    }

    fn list(&self, prefix: Option<&Path>) -> BoxStream<'static, Result<ObjectMeta>> {
        self.inner.list(prefix)
    }

    async fn list_with_delimiter(&self, prefix: Option<&Path>) -> Result<ListResult> {
        self.inner.list_with_delimiter(prefix).await
    }

    async fn copy_opts(&self, from: &Path, to: &Path, o: CopyOptions) -> Result<()> {
        self.state.write(self.inner.copy_opts(from, to, o)).await
    }
}

#[async_trait::async_trait]
impl MultipartUpload for Upload {
    fn put_part(&mut self, data: PutPayload) -> UploadPart {
        let (part, state) = (self.inner.put_part(data), self.state.clone());
        Box::pin(async move { state.write(part).await })
    }

    async fn complete(&mut self) -> Result<PutResult> {
        let state = self.state.clone();
        state.write(self.inner.complete()).await
    }

    async fn abort(&mut self) -> Result<()> {
        self.inner.abort().await
    }
}
