//! Arrow IPC files, message by message.
//!
//! ```text
//! file    ARROW1 · schema · dictionaries, batches … · footer (their offsets) · length · ARROW1
//! stream  schema · dictionaries, batches … · end
//! message length · metadata (flatbuffer) · body
//! ```
//! No memory is allocated by a message's claims alone: lengths and offsets are compared with the file first
//! ([`mod@check`]), and a batch beyond the limit is refused before it is read. Only one batch is in memory at a time.

mod check;

use super::in_place;
use arrow::buffer::Buffer;
use arrow::datatypes::{Schema, SchemaRef};
use arrow::error::ArrowError;
use arrow::ipc::reader::FileDecoder;
use arrow::ipc::{MessageHeader, convert, root_as_footer, root_as_message};
use arrow::record_batch::RecordBatch;
use bytes::Bytes;
use check::MessageSpan;
use datafusion::catalog::Session;
use datafusion::common::Statistics;
use datafusion::common::tree_node::TreeNodeRecursion;
use datafusion::datasource::file_format::FileFormat;
use datafusion::datasource::file_format::file_compression_type::FileCompressionType;
use datafusion::datasource::listing::PartitionedFile;
use datafusion::datasource::physical_plan::{
    FileGroupPartitioner, FileOpenFuture, FileOpener, FileScanConfig, FileSource,
};
use datafusion::datasource::projection::{ProjectionOpener, SplitProjection};
use datafusion::datasource::source::DataSourceExec;
use datafusion::datasource::table_schema::TableSchema;
use datafusion::error::{DataFusionError, Result};
use datafusion::physical_expr::LexOrdering;
use datafusion::physical_expr::projection::ProjectionExprs;
use datafusion::physical_plan::metrics::ExecutionPlanMetricsSet;
use datafusion::physical_plan::{ExecutionPlan, PhysicalExpr};
use futures::stream::{self, BoxStream};
use futures::{StreamExt, TryStreamExt};
use object_store::{ObjectMeta, ObjectStore};
use std::collections::VecDeque;
use std::ops::Range;
use std::sync::Arc;

const MAGIC: &[u8] = b"ARROW1";
/// Maximum bytes of the schema or the footer.
const HEAD_BYTES_MAX: u64 = 64 << 20;
/// Minimum bytes of a read from a stream of messages.
const AHEAD_BYTES: u64 = 1 << 20;

/// Arrow IPC files, with a footer or as streams.
#[derive(Debug, Clone)]
pub(crate) struct IpcFormat {
    /// Maximum bytes of one batch.
    limit: u64,
}

impl IpcFormat {
    /// The format for batches of at most `limit` bytes.
    pub(crate) fn new(limit: u64) -> Self {
        IpcFormat { limit }
    }
}

#[async_trait::async_trait]
impl FileFormat for IpcFormat {
    fn get_ext(&self) -> String {
        "arrow".into()
    }

    fn get_ext_with_compression(&self, of: &FileCompressionType) -> Result<String> {
        match of.is_compressed() {
            false => Ok(self.get_ext()),
            true => Err(said("it is compressed as a whole")),
        }
    }

    fn compression_type(&self) -> Option<FileCompressionType> {
        None
    }

    async fn infer_schema(
        &self,
        _: &dyn Session,
        store: &Arc<dyn ObjectStore>,
        objects: &[ObjectMeta],
    ) -> Result<SchemaRef> {
        let mut all = Vec::with_capacity(objects.len());
        for object in objects {
            let file = IpcFile { store: store.clone(), meta: object.clone(), limit: self.limit };
            all.push(Schema::clone(&file.open().await?.schema));
        }
        Ok(Arc::new(Schema::try_merge(all)?))
    }

    async fn infer_stats(
        &self,
        _: &dyn Session,
        _: &Arc<dyn ObjectStore>,
        schema: SchemaRef,
        _: &ObjectMeta,
    ) -> Result<Statistics> {
        Ok(Statistics::new_unknown(&schema))
    }

    async fn create_physical_plan(
        &self,
        _: &dyn Session,
        conf: FileScanConfig,
    ) -> Result<Arc<dyn ExecutionPlan>> {
        Ok(DataSourceExec::from_data_source(conf))
    }

    fn file_source(&self, schema: TableSchema) -> Arc<dyn FileSource> {
        Arc::new(IpcSource {
            metrics: ExecutionPlanMetricsSet::new(),
            projection: SplitProjection::unprojected(&schema),
            schema,
            limit: self.limit,
        })
    }
}

#[derive(Clone)]
struct IpcSource {
    metrics: ExecutionPlanMetricsSet,
    projection: SplitProjection,
    schema: TableSchema,
    limit: u64,
}

impl FileSource for IpcSource {
    fn create_file_opener(
        &self,
        store: Arc<dyn ObjectStore>,
        _: &FileScanConfig,
        _: usize,
    ) -> Result<Arc<dyn FileOpener>> {
        let projection = self.projection.clone();
        let columns = projection.file_indices.clone();
        let opener = Arc::new(IpcOpener { store, columns, limit: self.limit });
        ProjectionOpener::try_new(projection, opener, self.schema.file_schema())
    }

    fn table_schema(&self) -> &TableSchema {
        &self.schema
    }

    fn with_batch_size(&self, _: usize) -> Arc<dyn FileSource> {
        Arc::new(self.clone())
    }

    fn projection(&self) -> Option<&ProjectionExprs> {
        Some(&self.projection.source)
    }

    fn metrics(&self) -> &ExecutionPlanMetricsSet {
        &self.metrics
    }

    fn file_type(&self) -> &str {
        "arrow"
    }

    fn repartitioned(
        &self,
        partitions: usize,
        size_min: usize,
        order: Option<LexOrdering>,
        config: &FileScanConfig,
    ) -> Result<Option<FileScanConfig>> {
        // A stream has no index, so files are distributed over threads but never split.
        let groups = FileGroupPartitioner::new()
            .with_target_partitions(partitions)
            .with_repartition_file_min_size(size_min.max(usize::MAX / 2))
            .with_preserve_order_within_groups(order.is_some())
            .repartition_file_groups(&config.file_groups);
        Ok(groups.map(|file_groups| {
            let mut config = config.clone();
            config.file_groups = file_groups;
            config
        }))
    }

    fn try_pushdown_projection(
        &self,
        projection: &ProjectionExprs,
    ) -> Result<Option<Arc<dyn FileSource>>> {
        let merged = self.projection.source.try_merge(projection)?;
        let projection = SplitProjection::new(self.schema.file_schema(), &merged);
        Ok(Some(Arc::new(IpcSource { projection, ..self.clone() })))
    }

    fn apply_expressions(
        &self,
        f: &mut dyn FnMut(&Arc<dyn PhysicalExpr>) -> Result<TreeNodeRecursion>,
    ) -> Result<TreeNodeRecursion> {
        let mut told = TreeNodeRecursion::Continue;
        for one in self.projection.source.iter() {
            told = f(&one.expr)?;
            if told == TreeNodeRecursion::Stop {
                break;
            }
        }
        Ok(told)
    }
}

struct IpcOpener {
    store: Arc<dyn ObjectStore>,
    columns: Vec<usize>,
    limit: u64,
}

impl FileOpener for IpcOpener {
    fn open(&self, file: PartitionedFile) -> Result<FileOpenFuture> {
        let columns = self.columns.clone();
        let file = IpcFile { store: self.store.clone(), meta: file.object_meta, limit: self.limit };
        Ok(Box::pin(async move { file.open().await?.batches(columns).await }))
    }
}

/// A file that is not open yet.
struct IpcFile {
    store: Arc<dyn ObjectStore>,
    meta: ObjectMeta,
    limit: u64,
}

/// A file whose schema is known.
struct Opened {
    file: IpcFile,
    schema: SchemaRef,
    decoder: FileDecoder,
    rest: Rest,
}

/// The messages after the schema.
enum Rest {
    /// Messages listed in the footer.
    Listed { dictionaries: Vec<MessageSpan>, batches: VecDeque<MessageSpan> },
    /// The messages of a stream.
    Stream(Ahead),
}

fn said(reason: impl Into<String>) -> DataFusionError {
    DataFusionError::ArrowError(Box::new(arrow::error::ArrowError::IpcError(reason.into())), None)
}

impl IpcFile {
    async fn read(&self, range: Range<u64>) -> Result<Bytes> {
        let mut parts = self.store.get_ranges(&self.meta.location, &[range]).await?;
        Ok(parts.pop().unwrap_or_default())
    }

    async fn open(self) -> Result<Opened> {
        let size = self.meta.size;
        let head = self.read(0..size.min(8)).await?;
        match head.starts_with(MAGIC) {
            true => self.open_listed(size).await,
            false => self.open_stream(size).await,
        }
    }

    async fn open_listed(self, size: u64) -> Result<Opened> {
        let tail = match size {
            20.. => self.read(size - 10..size).await?,
            _ => return Err(said("the file is too short")),
        };
        let length = match tail.split_first_chunk::<4>() {
            Some((length, MAGIC)) => i32::from_le_bytes(*length),
            _ => return Err(said("the file does not end as an Arrow file")),
        };
        let length = u64::try_from(length).ok().filter(|l| (1..=size - 18).contains(l));
        let length = length.filter(|l| *l <= HEAD_BYTES_MAX);
        let Some(length) = length else {
            return Err(said(format!("the footer does not fit into the file's {size} bytes")));
        };
        let bytes = self.read(size - 10 - length..size - 10).await?;
        let footer = root_as_footer(&bytes).map_err(|e| said(format!("the footer: {e}")))?;
        let schema = footer.schema().ok_or_else(|| said("the footer has no schema"))?;
        let schema = Arc::new(convert::fb_to_schema(schema));
        let decoder = FileDecoder::new(schema.clone(), footer.version());
        let dictionaries = footer.dictionaries().into_iter().flatten();
        let dictionaries = dictionaries.map(|b| MessageSpan::of(b, size)).collect::<Result<_>>()?;
        let batches = footer.recordBatches().into_iter().flatten();
        let batches = batches.map(|b| MessageSpan::of(b, size)).collect::<Result<_>>()?;
        let rest = Rest::Listed { dictionaries, batches };
        Ok(Opened { file: self, schema, decoder, rest })
    }

    async fn open_stream(self, size: u64) -> Result<Opened> {
        let mut ahead = Ahead { at: 0, size, bytes: Bytes::new(), start: 0 };
        let Some((_, bytes)) = ahead.message(&self, HEAD_BYTES_MAX).await? else {
            return Err(said("the file has no schema"));
        };
        let message =
            root_as_message(check::told(&bytes)).map_err(|e| said(format!("the schema: {e}")))?;
        let schema =
            message.header_as_schema().ok_or_else(|| said("the file begins with no schema"))?;
        let schema = Arc::new(convert::fb_to_schema(schema));
        let decoder = FileDecoder::new(schema.clone(), message.version());
        Ok(Opened { file: self, schema, decoder, rest: Rest::Stream(ahead) })
    }
}

impl Opened {
    /// Yields the batches of these columns, one after another.
    async fn batches(
        mut self,
        columns: Vec<usize>,
    ) -> Result<BoxStream<'static, Result<RecordBatch>>> {
        self.decoder = self.decoder.with_projection(columns);
        if let Rest::Listed { dictionaries, .. } = &mut self.rest {
            let dictionaries = std::mem::take(dictionaries);
            let all = dictionaries.iter().map(|d| d.length).fold(0, u64::saturating_add);
            check::fits("dictionaries", all, self.file.limit)?;
            for place in dictionaries {
                let bytes = self.file.read(place.range()).await?;
                self.decode(place, bytes)?;
            }
        }
        let batches = stream::try_unfold(self, |mut file| async move {
            loop {
                let Some((place, bytes)) = file.next().await? else { return Ok(None) };
                if let Some(batch) = file.decode(place, bytes)? {
                    return Ok(Some((batch, file)));
                }
            }
        });
        Ok(batches.into_stream().boxed())
    }

    /// The next message and its location.
    async fn next(&mut self) -> Result<Option<(MessageSpan, Bytes)>> {
        let limit = self.file.limit;
        match &mut self.rest {
            Rest::Listed { batches, .. } => {
                let Some(place) = batches.pop_front() else { return Ok(None) };
                check::fits("a batch", place.length, limit)?;
                Ok(Some((place, self.file.read(place.range()).await?)))
            }
            Rest::Stream(ahead) => ahead.message(&self.file, limit).await,
        }
    }

    /// Decodes a batch; `None` for a dictionary.
    fn decode(&mut self, place: MessageSpan, bytes: Bytes) -> Result<Option<RecordBatch>> {
        let kind = check::message(&bytes, place, self.file.limit)?;
        let (block, bytes) = (place.block(), Buffer::from(bytes));
        // Any error of the decoder is about the bytes.
        let told = |e: ArrowError| match e {
            ArrowError::IpcError(reason) => said(reason),
            other => said(other.to_string()),
        };
        in_place(|| match kind {
            MessageHeader::DictionaryBatch => {
                self.decoder.read_dictionary(&block, &bytes).map_err(told)?;
                Ok(None)
            }
            _ => self.decoder.read_record_batch(&block, &bytes).map_err(told),
        })
    }
}

/// Reads consecutive messages, with read-ahead.
struct Ahead {
    /// Offset of the next message.
    at: u64,
    size: u64,
    /// The bytes read so far, from offset `start`.
    bytes: Bytes,
    start: u64,
}

impl Ahead {
    /// The next message, with its location; `None` at the end.
    async fn message(
        &mut self,
        file: &IpcFile,
        limit: u64,
    ) -> Result<Option<(MessageSpan, Bytes)>> {
        if self.size - self.at < 4 {
            return Ok(None);
        }
        let head = self.get(file, self.at..self.size.min(self.at + 8)).await?;
        // Files from before 2019 lack the marker before the length.
        let (prefix, length) = match (&head[..4], head.get(4..8)) {
            ([0xff, 0xff, 0xff, 0xff], Some(length)) => (8, length),
            ([0xff, 0xff, 0xff, 0xff], None) => return Ok(None),
            (length, _) => (4, length),
        };
        let length = length.try_into().map_or(0, i32::from_le_bytes);
        let left = self.size - self.at - prefix;
        let length = match u64::try_from(length) {
            Ok(0) => return Ok(None),
            Ok(length) if length <= left => length,
            _ => {
                let reason = format!("a message at byte {} would have {length} bytes", self.at);
                return Err(said(reason));
            }
        };
        check::fits("a message", length, HEAD_BYTES_MAX)?;
        let told = self.get(file, self.at..self.at + prefix + length).await?;
        let message = root_as_message(check::told(&told))
            .map_err(|e| said(format!("a message at byte {}: {e}", self.at)))?;
        let place = MessageSpan::new(self.at, prefix + length, message.bodyLength(), self.size)?;
        check::fits("a batch", place.length, limit)?;
        let bytes = self.get(file, place.range()).await?;
        self.at += place.length;
        Ok(Some((place, bytes)))
    }

    async fn get(&mut self, file: &IpcFile, range: Range<u64>) -> Result<Bytes> {
        let end = self.start + self.bytes.len() as u64;
        if range.start < self.start || range.end > end {
            let to = range.end.max(range.start.saturating_add(AHEAD_BYTES)).min(self.size);
            self.bytes = file.read(range.start..to).await?;
            self.start = range.start;
        }
        let from = (range.start - self.start) as usize;
        let to = from + (range.end - range.start) as usize;
        match to <= self.bytes.len() {
            true => Ok(self.bytes.slice(from..to)),
            false => Err(said("the file ends in the middle of a message")),
        }
    }
}

#[cfg(test)]
mod tests;
