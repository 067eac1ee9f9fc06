//! The store of a table, whose reads count for the operators that read ([`count_read`]).

use crate::rows::count_read;
use bytes::Bytes;
use futures::TryStreamExt;
use futures::stream::{BoxStream, StreamExt};
use object_store::path::Path;
use object_store::{
    CopyOptions, GetOptions, GetResult, GetResultPayload, ListResult, MultipartUpload, ObjectMeta,
    ObjectStore, PutMultipartOptions, PutOptions, PutPayload, PutResult, Result,
};
use std::fmt;
use std::ops::Range;
use tessera_storage::source::TableStore;

/// Counts the bytes that arrive at the reader: those of compressed files are unpacked.
#[derive(Debug)]
pub(super) struct CountedStore(pub(super) TableStore);

impl fmt::Display for CountedStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

#[async_trait::async_trait]
impl ObjectStore for CountedStore {
    async fn put_opts(&self, at: &Path, bytes: PutPayload, o: PutOptions) -> Result<PutResult> {
        self.0.put_opts(at, bytes, o).await
    }

    async fn put_multipart_opts(
        &self,
        at: &Path,
        o: PutMultipartOptions,
    ) -> Result<Box<dyn MultipartUpload>> {
        self.0.put_multipart_opts(at, o).await
    }

    async fn get_opts(&self, at: &Path, options: GetOptions) -> Result<GetResult> {
        let is_head = options.head;
        let got = self.0.get_opts(at, options).await?;
        if is_head {
            return Ok(got);
        }
        let payload = match got.payload {
            GetResultPayload::Stream(bytes) => {
                let bytes = bytes.inspect_ok(|bytes| count_read(bytes.len() as u64));
                GetResultPayload::Stream(bytes.boxed())
            }
            file @ GetResultPayload::File(..) => {
                count_read(got.range.end.saturating_sub(got.range.start));
                file
            }
        };
        Ok(GetResult { payload, ..got })
    }

    async fn get_ranges(&self, at: &Path, ranges: &[Range<u64>]) -> Result<Vec<Bytes>> {
        let parts = self.0.get_ranges(at, ranges).await?;
        count_read(parts.iter().map(|part| part.len() as u64).sum());
        Ok(parts)
    }

    fn delete_stream(
        &self,
        all: BoxStream<'static, Result<Path>>,
    ) -> BoxStream<'static, Result<Path>> {
        self.0.delete_stream(all)
    }

    fn list(&self, prefix: Option<&Path>) -> BoxStream<'static, Result<ObjectMeta>> {
        self.0.list(prefix)
    }

    async fn list_with_delimiter(&self, prefix: Option<&Path>) -> Result<ListResult> {
        self.0.list_with_delimiter(prefix).await
    }

    async fn copy_opts(&self, from: &Path, to: &Path, o: CopyOptions) -> Result<()> {
        self.0.copy_opts(from, to, o).await
    }
}
