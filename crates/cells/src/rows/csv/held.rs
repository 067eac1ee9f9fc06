//! A store with the rows of one split, for DataFusion's reader.

use async_trait::async_trait;
use bytes::Bytes;
use futures::stream::{self, BoxStream};
use futures::{StreamExt, TryStreamExt};
use object_store::path::Path;
use object_store::{
    Attributes, CopyOptions, Error, GetOptions, GetRange, GetResult, GetResultPayload, ListResult,
    MultipartUpload, ObjectMeta, ObjectStore, PutMultipartOptions, PutOptions, PutPayload,
    PutResult, Result,
};
use std::fmt;
use std::ops::Range;

/// Bytes of one file, in order and without gaps.
#[derive(Debug)]
pub(super) struct Held {
    pub(super) file: ObjectMeta,
    /// Position of the first byte.
    pub(super) first: u64,
    pub(super) parts: Vec<Bytes>,
}

impl Held {
    fn end(&self) -> u64 {
        self.first + self.parts.iter().map(|part| part.len() as u64).sum::<u64>()
    }

    /// The bytes of the range that are held. A reader asks for some behind the last row, in case it ends there.
    fn within(&self, range: &Range<u64>) -> Vec<Bytes> {
        let mut at = self.first;
        let parts = self.parts.iter().filter_map(|part| {
            let (start, end) = (at, at + part.len() as u64);
            at = end;
            let (from, to) = (range.start.max(start), range.end.min(end));
            (from < to).then(|| part.slice((from - start) as usize..(to - start) as usize))
        });
        parts.collect()
    }

    fn refused<T>(&self, operation: &str) -> Result<T> {
        Err(Error::NotImplemented { operation: operation.into(), implementer: self.to_string() })
    }
}

impl fmt::Display for Held {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "bytes {} to {} of {}", self.first, self.end(), self.file.location)
    }
}

#[async_trait]
impl ObjectStore for Held {
    async fn get_opts(&self, at: &Path, options: GetOptions) -> Result<GetResult> {
        let Some(GetRange::Bounded(range)) = options.range else {
            return self.refused("reading all bytes");
        };
        if *at != self.file.location || range.start < self.first || range.start > self.end() {
            return self.refused(&format!("reading bytes {range:?} of {at}"));
        }
        let parts = self.within(&range);
        let payload = GetResultPayload::Stream(stream::iter(parts.into_iter().map(Ok)).boxed());
        let range = range.start..range.end.min(self.end());
        Ok(GetResult { payload, meta: self.file.clone(), range, attributes: Attributes::new() })
    }

    async fn put_opts(&self, _: &Path, _: PutPayload, _: PutOptions) -> Result<PutResult> {
        self.refused("writing")
    }

    async fn put_multipart_opts(
        &self,
        _: &Path,
        _: PutMultipartOptions,
    ) -> Result<Box<dyn MultipartUpload>> {
        self.refused("writing")
    }

    fn delete_stream(
        &self,
        all: BoxStream<'static, Result<Path>>,
    ) -> BoxStream<'static, Result<Path>> {
        let refused = self.to_string();
        let each = move |_| {
            let (operation, implementer) = ("deleting".into(), refused.clone());
            futures::future::ready(Err(Error::NotImplemented { operation, implementer }))
        };
        all.and_then(each).boxed()
    }

    fn list(&self, _: Option<&Path>) -> BoxStream<'static, Result<ObjectMeta>> {
        stream::iter([self.refused("listing")]).boxed()
    }

    async fn list_with_delimiter(&self, _: Option<&Path>) -> Result<ListResult> {
        self.refused("listing")
    }

    async fn copy_opts(&self, _: &Path, _: &Path, _: CopyOptions) -> Result<()> {
        self.refused("writing")
    }
}
