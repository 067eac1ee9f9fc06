//! Arrow IPC files, message by message.
//!
//! ```text
//! file    ARROW1 · schema · dictionaries, batches … · footer (their offsets) · length · ARROW1
//! stream  schema · dictionaries, batches … · end
//! message length · metadata (flatbuffer) · body
//! ```
//! No memory is allocated by a message's claims alone: lengths and offsets are compared with the file first
//! ([`mod@check`]), and a batch beyond the limit is refused before it is read. Only one batch of a range is in memory at a
//! time; it is charged to the budget.
//!
//! The ranges of a file are read at the same time: a range has the batches that begin in it, by the footer. A stream is
//! read by one thread.

mod ahead;
mod check;
mod columns;
mod footer;

use super::in_place;
use super::memory::charged_bytes;
use ahead::Ahead;
use arrow::buffer::Buffer;
use arrow::datatypes::{Schema, SchemaRef};
use arrow::error::ArrowError;
use arrow::ipc::reader::FileDecoder;
use arrow::record_batch::RecordBatch;
use bytes::Bytes;
use check::MessageSpan;
use columns::{Columns, Found};
use datafusion::catalog::Session;
use datafusion::common::Statistics;
use datafusion::common::tree_node::TreeNodeRecursion;
use datafusion::datasource::file_format::FileFormat;
use datafusion::datasource::file_format::file_compression_type::FileCompressionType;
use datafusion::datasource::listing::PartitionedFile;
use datafusion::datasource::physical_plan::{
    FileOpenFuture, FileOpener, FileScanConfig, FileSource,
};
use datafusion::datasource::projection::{ProjectionOpener, SplitProjection};
use datafusion::datasource::source::DataSourceExec;
use datafusion::datasource::table_schema::TableSchema;
use datafusion::error::{DataFusionError, Result};
use datafusion::physical_expr::projection::ProjectionExprs;
use datafusion::physical_plan::metrics::ExecutionPlanMetricsSet;
use datafusion::physical_plan::{ExecutionPlan, PhysicalExpr};
use footer::{Footer, Footers, Form};
use futures::stream::{self, BoxStream};
use futures::{FutureExt, StreamExt, TryStreamExt};
use object_store::path::Path;
use object_store::{ObjectMeta, ObjectStore};
use std::collections::HashMap;
use std::ops::Range;
use std::sync::Arc;
use tessera_exec::quota::{Account, Charge, Quota};
use tokio::sync::OnceCell;

const MAGIC: &[u8] = b"ARROW1";
const HEAD_BYTES_MAX: u64 = 64 << 20;
/// Minimum bytes of a read of messages.
const AHEAD_BYTES: u64 = 1 << 20;

/// Arrow IPC files, with a footer or as streams.
#[derive(Debug, Clone)]
pub(crate) struct IpcFormat {
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
            let (store, meta) = (store.clone(), object.clone());
            let file = IpcFile { store, meta, limit: self.limit, account: None };
            all.push(Schema::clone(&*file.schema().await?));
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
        Arc::new(IpcSource::new(SplitProjection::unprojected(&schema), schema, self.limit))
    }
}

/// The reader of a scan. Its ranges share the footers of files.
#[derive(Clone)]
struct IpcSource {
    metrics: ExecutionPlanMetricsSet,
    projection: SplitProjection,
    schema: TableSchema,
    limit: u64,
    footers: Arc<Footers>,
    /// Charges the bytes that are read.
    account: Option<Arc<Account>>,
}

/// The reader, with its memory charged to the budget; `None` for readers of other formats.
pub(super) fn charged(
    source: &Arc<dyn FileSource>,
    quota: &Arc<Quota>,
) -> Option<Arc<dyn FileSource>> {
    let source = source.downcast_ref::<IpcSource>()?;
    Some(Arc::new(IpcSource { account: Some(quota.account()), ..source.clone() }))
}

/// Upper bound on the bytes of a batch of a reader of Arrow files; `None` for readers of other formats.
pub(super) fn batch_bytes_of(source: &Arc<dyn FileSource>) -> Option<u64> {
    source.downcast_ref::<IpcSource>().map(|source| source.limit)
}

/// A reader of Arrow files with the columns of another reader, for batches of at most `limit` bytes.
pub(super) fn with_columns_of(other: &Arc<dyn FileSource>, limit: u64) -> Arc<dyn FileSource> {
    let schema = other.table_schema().clone();
    let projection = match other.projection() {
        Some(projection) => SplitProjection::new(schema.file_schema(), projection),
        None => SplitProjection::unprojected(&schema),
    };
    Arc::new(IpcSource::new(projection, schema, limit))
}

/// True for the name of a stream, which has no footer to find batches by.
pub(super) fn is_stream(file: &Path) -> bool {
    file.as_ref().ends_with(".arrows")
}

impl IpcSource {
    fn new(projection: SplitProjection, schema: TableSchema, limit: u64) -> Self {
        let (metrics, footers) = (ExecutionPlanMetricsSet::new(), Arc::default());
        IpcSource { metrics, projection, schema, limit, footers, account: None }
    }
}

impl FileSource for IpcSource {
    fn create_file_opener(
        &self,
        store: Arc<dyn ObjectStore>,
        _: &FileScanConfig,
        _: usize,
    ) -> Result<Arc<dyn FileOpener>> {
        let projection = self.projection.clone();
        let opener = Arc::new(IpcOpener {
            store,
            columns: Columns::new(self.schema.file_schema(), &projection.file_indices)?,
            limit: self.limit,
            footers: self.footers.clone(),
            account: self.account.clone(),
        });
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
    columns: Columns,
    limit: u64,
    footers: Arc<Footers>,
    account: Option<Arc<Account>>,
}

impl FileOpener for IpcOpener {
    fn open(&self, file: PartitionedFile) -> Result<FileOpenFuture> {
        let bytes = file.range.as_ref().map(|range| {
            let at = |offset: i64| u64::try_from(offset).unwrap_or(0);
            at(range.start)..at(range.end)
        });
        let (columns, form) = (self.columns.clone(), self.footers.of(&file.object_meta.location));
        let file = IpcFile {
            store: self.store.clone(),
            meta: file.object_meta,
            limit: self.limit,
            account: self.account.clone(),
        };
        Ok(file.opened(form, bytes, columns).boxed())
    }
}

/// A refusal of memory as an error of the reader, to which the name of the file is added.
fn of_reader(error: DataFusionError) -> DataFusionError {
    match error {
        DataFusionError::ResourcesExhausted(_) => {
            DataFusionError::ArrowError(Box::new(ArrowError::ExternalError(Box::new(error))), None)
        }
        other => other,
    }
}

struct IpcFile {
    store: Arc<dyn ObjectStore>,
    meta: ObjectMeta,
    limit: u64,
    account: Option<Arc<Account>>,
}

/// A file whose messages are decoded.
struct Opened {
    file: IpcFile,
    decoder: FileDecoder,
    found: Found,
    rest: Rest,
    ahead: Ahead,
    /// Counts the unpacked bytes of dictionaries, by their ids.
    dictionaries: HashMap<i64, Charge>,
    /// Counts the unpacked bytes of the last batch.
    unpacked: Option<Charge>,
}

/// The messages after the schema.
enum Rest {
    /// The messages of the footer with these numbers.
    Listed { form: Arc<OnceCell<Form>>, batches: Range<usize> },
    /// The messages of a stream.
    Stream,
}

fn said(reason: impl Into<String>) -> DataFusionError {
    DataFusionError::ArrowError(Box::new(ArrowError::IpcError(reason.into())), None)
}

impl IpcFile {
    /// Counts bytes; `None` without a budget.
    fn reserve(&self, what: &str, bytes: u64) -> Result<Option<Charge>> {
        let Some(account) = &self.account else { return Ok(None) };
        let charge = account.try_reserve(bytes).ok_or_else(|| {
            let (used, limit) = (account.quota().used(), account.quota().limit());
            DataFusionError::ResourcesExhausted(format!(
                "{what} of an Arrow file needs {bytes} bytes of memory, and {used} of {limit} are in use; write smaller \
                 record batches"
            ))
        })?;
        Ok(Some(charge))
    }

    /// Reads bytes, which are counted for as long as they live.
    async fn read(&self, range: Range<u64>) -> Result<Bytes> {
        let charge = self.reserve("reading a part", range.end.saturating_sub(range.start))?;
        let mut parts = self.store.get_ranges(&self.meta.location, &[range]).await?;
        let bytes = parts.pop().unwrap_or_default();
        Ok(match charge {
            Some(charge) => charged_bytes(bytes, charge),
            None => bytes,
        })
    }

    /// Finds out whether the file has a footer, and reads it.
    async fn form(&self) -> Result<Form> {
        let head = self.read(0..self.meta.size.min(8)).await?;
        match head.starts_with(MAGIC) {
            true => Ok(Form::Listed(Footer::read(self).await?)),
            false => Ok(Form::Stream),
        }
    }

    async fn schema(&self) -> Result<SchemaRef> {
        match self.form().await? {
            Form::Listed(footer) => Ok(footer.schema().clone()),
            Form::Stream => Ok(Ahead::default().schema(self).await?.0),
        }
    }

    /// As [`Self::batches`], with errors of the reader.
    async fn opened(
        self,
        form: Arc<OnceCell<Form>>,
        bytes: Option<Range<u64>>,
        columns: Columns,
    ) -> Result<BoxStream<'static, Result<RecordBatch>>> {
        let batches = self.batches(form, bytes, columns).await.map_err(of_reader)?;
        Ok(batches.map_err(of_reader).boxed())
    }

    /// Yields the batches that begin within `bytes`, with these columns, one after another. A stream has no index: all
    /// its batches belong to the range that begins the file.
    async fn batches(
        self,
        form: Arc<OnceCell<Form>>,
        bytes: Option<Range<u64>>,
        columns: Columns,
    ) -> Result<BoxStream<'static, Result<RecordBatch>>> {
        let is_first = bytes.as_ref().is_none_or(|bytes| bytes.start == 0);
        let found = form.get_or_try_init(|| self.form()).await?;
        let opened = match found {
            Form::Listed(footer) => {
                let batches = footer.batches_within(bytes);
                if batches.is_empty() {
                    return Ok(stream::empty().boxed());
                }
                let found = columns.within(footer.schema())?;
                let decoder = footer.decoder();
                let rest = Rest::Listed { form: form.clone(), batches };
                let mut opened = Opened::new(self, decoder, found, rest, Ahead::default());
                for (place, bytes) in footer.dictionaries(&opened.file).await? {
                    opened.decode(place, bytes)?;
                }
                opened
            }
            Form::Stream if is_first => {
                let mut ahead = Ahead::default();
                let (schema, version) = ahead.schema(&self).await?;
                let found = columns.within(&schema)?;
                let decoder = FileDecoder::new(schema, version);
                Opened::new(self, decoder, found, Rest::Stream, ahead)
            }
            Form::Stream => return Ok(stream::empty().boxed()),
        };
        let batches = stream::try_unfold(opened, |mut file| async move {
            loop {
                file.unpacked = None;
                let Some((place, bytes)) = file.next().await? else { return Ok(None) };
                if let Some(batch) = file.decode(place, bytes)? {
                    return Ok(Some((file.found.batch(batch)?, file)));
                }
            }
        });
        Ok(batches.into_stream().boxed())
    }
}

impl Opened {
    fn new(file: IpcFile, decoder: FileDecoder, found: Found, rest: Rest, ahead: Ahead) -> Self {
        let decoder = decoder.with_projection(found.own.clone());
        Opened { file, decoder, found, rest, ahead, dictionaries: HashMap::new(), unpacked: None }
    }

    /// The next message and its location.
    async fn next(&mut self) -> Result<Option<(MessageSpan, Bytes)>> {
        let limit = self.file.limit;
        let Rest::Listed { form, batches } = &mut self.rest else {
            return self.ahead.message(&self.file, limit).await;
        };
        let Some(footer) = form.get().and_then(Form::footer) else { return Ok(None) };
        let Some(place) = batches.next().and_then(|number| footer.batch(number)) else {
            return Ok(None);
        };
        check::fits("a batch", place.length, limit)?;
        let range = place.range();
        let to = || footer.read_to(range.start, batches.clone());
        let bytes = self.ahead.get(&self.file, range.clone(), to).await?;
        Ok(Some((place, bytes)))
    }

    /// Decodes a batch; `None` for a dictionary. Errors name the offset of the batch.
    fn decode(&mut self, place: MessageSpan, bytes: Bytes) -> Result<Option<RecordBatch>> {
        let message = check::message(&bytes, place, self.file.limit)?;
        let charge = match message.unpacked {
            0 => None,
            bytes => self.file.reserve("unpacking a batch", bytes)?,
        };
        let (block, bytes) = (place.block(), Buffer::from(bytes));
        let decoded = in_place(|| match message.dictionary {
            Some(_) => self.decoder.read_dictionary(&block, &bytes).map(|()| None),
            None => self.decoder.read_record_batch(&block, &bytes),
        });
        match message.dictionary {
            Some(id) => self.hold_dictionary(id, message.is_delta, charge),
            None => self.unpacked = charge,
        }
        // Any error of the decoder is about the bytes.
        decoded.map_err(|e| {
            let reason = match e {
                ArrowError::IpcError(reason) => reason,
                other => other.to_string(),
            };
            said(format!("the batch at byte {}: {reason}", place.range().start))
        })
    }

    /// Charges a dictionary, which replaces or continues the one of its id.
    fn hold_dictionary(&mut self, id: i64, is_delta: bool, charge: Option<Charge>) {
        if !is_delta {
            self.dictionaries.remove(&id);
        }
        let Some(charge) = charge else { return };
        match self.dictionaries.get_mut(&id) {
            Some(known) => known.join(charge),
            None => {
                self.dictionaries.insert(id, charge);
            }
        }
    }
}

#[cfg(test)]
mod tests;
