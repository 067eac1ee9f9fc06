//! Isolates readers of table files: a panic or a reader's error becomes an error that names the file.
//!
//! ```text
//! infer_schema, infer_stats            Guarded (a FileFormat)         a panic is SourceError::Damaged
//! plan_file ─▶ plan ─▶ into_stream     GuardedSource … GuardedMorsel  so is a reader's error about the bytes
//! ```
//! The formats are DataFusion's, which trust a file's own metadata more than is safe for files of
//! strangers. The scans of a plan are wrapped after the optimizer, which recognizes sources by their types.
//! The wrapper also charges the pages of Parquet and the batches of Arrow to the budget, lets the reader of Parquet leave
//! out rows by rare keys of a join, and splits batches that are large when materialized.

use super::csv::{self, CsvRanges, Nulls};
use super::intervals;
use super::ipc;
use super::json::JsonLines;
use super::keyed::Keyed;
use super::opened::{Opened, as_inner};
use super::parquet::charged;
use super::written::{cut, rows_of_fixed};
use crate::error::plain;
use crate::tables::Places;
use crate::walk::Walk;
use arrow::datatypes::SchemaRef;
use arrow::error::ArrowError;
use arrow::record_batch::RecordBatch;
use datafusion::catalog::Session;
use datafusion::common::Statistics;
use datafusion::datasource::file_format::file_compression_type::FileCompressionType;
use datafusion::datasource::file_format::{FileFormat, FileMeta};
use datafusion::datasource::listing::PartitionedFile;
use datafusion::datasource::physical_plan::{
    CsvSource, FileGroup, FileOpener, FileScanConfig, FileScanConfigBuilder, FileSource,
    JsonSource, ParquetSource,
};
use datafusion::datasource::source::DataSourceExec;
use datafusion::datasource::table_schema::TableSchema;
use datafusion::error::{DataFusionError, Result};
use datafusion::physical_expr::LexOrdering;
use datafusion::physical_plan::{ExecutionPlan, PhysicalExpr};
use datafusion_datasource::morsel::{
    Morsel, MorselPlan, MorselPlanner, Morselizer, PendingMorselPlanner,
};
use futures::stream::{self, BoxStream};
use futures::{FutureExt, StreamExt};
use object_store::path::Path;
use object_store::{ObjectMeta, ObjectStore};
use std::any::Any;
use std::future::Future;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use tessera_exec::quota::{Account, Quota};
use tessera_storage::source::SourceError;

/// A file format whose readers may panic.
#[derive(Debug)]
pub(crate) struct Guarded {
    inner: Arc<dyn FileFormat>,
    /// Prefix of paths in messages.
    root: String,
}

impl Guarded {
    /// `root` is the prefix of the URLs of the files.
    pub(crate) fn new(inner: Arc<dyn FileFormat>, root: String) -> Self {
        Guarded { inner, root }
    }

    async fn of<T>(&self, at: &Path, work: impl Future<Output = Result<T>>) -> Result<T> {
        caught(&shown(&self.root, at), work).await
    }
}

#[async_trait::async_trait]
impl FileFormat for Guarded {
    fn get_ext(&self) -> String {
        self.inner.get_ext()
    }

    fn get_ext_with_compression(&self, of: &FileCompressionType) -> Result<String> {
        self.inner.get_ext_with_compression(of)
    }

    fn compression_type(&self) -> Option<FileCompressionType> {
        self.inner.compression_type()
    }

    async fn infer_schema(
        &self,
        state: &dyn Session,
        store: &Arc<dyn ObjectStore>,
        objects: &[ObjectMeta],
    ) -> Result<SchemaRef> {
        let all = AssertUnwindSafe(self.inner.infer_schema(state, store, objects));
        match all.catch_unwind().await {
            Ok(schema) => schema,
            Err(payload) => {
                // Reading each file alone finds the damaged one.
                for one in objects {
                    let alone = self.inner.infer_schema(state, store, std::slice::from_ref(one));
                    self.of(&one.location, alone).await?;
                }
                let all = objects.iter().map(|o| shown(&self.root, &o.location));
                Err(damaged(&all.collect::<Vec<_>>().join("`, `"), &message(&*payload)))
            }
        }
    }

    async fn infer_stats(
        &self,
        state: &dyn Session,
        store: &Arc<dyn ObjectStore>,
        schema: SchemaRef,
        object: &ObjectMeta,
    ) -> Result<Statistics> {
        self.of(&object.location, self.inner.infer_stats(state, store, schema, object)).await
    }

    async fn infer_ordering(
        &self,
        state: &dyn Session,
        store: &Arc<dyn ObjectStore>,
        schema: SchemaRef,
        object: &ObjectMeta,
    ) -> Result<Option<LexOrdering>> {
        self.of(&object.location, self.inner.infer_ordering(state, store, schema, object)).await
    }

    async fn infer_stats_and_ordering(
        &self,
        state: &dyn Session,
        store: &Arc<dyn ObjectStore>,
        schema: SchemaRef,
        object: &ObjectMeta,
    ) -> Result<FileMeta> {
        let inferred = self.inner.infer_stats_and_ordering(state, store, schema, object);
        self.of(&object.location, inferred).await
    }

    async fn create_physical_plan(
        &self,
        state: &dyn Session,
        conf: FileScanConfig,
    ) -> Result<Arc<dyn ExecutionPlan>> {
        self.inner.create_physical_plan(state, conf).await
    }

    fn file_source(&self, schema: TableSchema) -> Arc<dyn FileSource> {
        self.inner.file_source(schema)
    }
}

/// Wraps the plan's scans of files and charges their memory to the budget. `places` have the options of their tables.
pub(super) fn guarded(
    plan: Arc<dyn ExecutionPlan>,
    places: Option<&Places>,
    quota: Option<&Arc<Quota>>,
    batch_rows: usize,
) -> Result<Arc<dyn ExecutionPlan>> {
    let text_bytes = quota.map_or(u64::MAX, |q| (q.limit() / TEXT_SHARE).max(TEXT_BYTES_LEAST));
    plan.replace_up(|node| {
        let scan = node.downcast_ref::<DataSourceExec>();
        let scan = scan
            .and_then(|s| (s.data_source().as_ref() as &dyn Any).downcast_ref::<FileScanConfig>());
        let Some(scan) = scan else { return Ok(None) };
        let root = root_of(scan.object_store_url.as_str());
        intervals::refuse(scan, || {
            let first = scan.file_groups.iter().flat_map(FileGroup::iter).next();
            first.map_or_else(|| root.clone(), |file| shown(&root, &file.object_meta.location))
        })?;
        let files = scan.file_groups.iter().flat_map(|group| group.files());
        let largest = files.map(|file| file.object_meta.size).max().unwrap_or(0);
        let placed = places.and_then(|places| places.get(&scan.object_store_url));
        let nulls = placed.map_or_else(Nulls::default, |placed| placed.nulls.clone());
        let inner = charging(scan.file_source.clone(), &nulls, quota, batch_rows);
        let rows_max = match inner.file_type() {
            "csv" => csv_rows(largest, inner.table_schema().file_schema().fields().len()),
            "parquet" => rows_of_fixed(inner.table_schema().file_schema(), text_bytes),
            _ => usize::MAX,
        };
        let account = quota.map(|quota| quota.account());
        let source = GuardedSource { inner, root, rows_max, text_bytes, nulls, account };
        let scan = FileScanConfigBuilder::from(scan.clone()).with_source(Arc::new(source)).build();
        Ok(Some(DataSourceExec::from_data_source(scan)))
    })
}

/// The limits and options that a scan of files adds to the reader of its format.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Bounds {
    /// Maximum rows of a batch.
    pub(super) rows_max: usize,
    /// Maximum bytes of its materialized texts.
    pub(super) text_bytes: u64,
    /// The texts of CSV files that are NULL.
    pub(super) nulls: Nulls,
}

/// The reader of a wrapped scan, and its bounds; `None` if the scan is not wrapped.
pub(super) fn within(source: &Arc<dyn FileSource>) -> Option<(&Arc<dyn FileSource>, Bounds)> {
    let source = source.downcast_ref::<GuardedSource>()?;
    let GuardedSource { rows_max, text_bytes, nulls, .. } = source;
    let bounds = Bounds { rows_max: *rows_max, text_bytes: *text_bytes, nulls: nulls.clone() };
    let inner = match source.inner.downcast_ref::<Opened>() {
        Some(text) if text.is_whole() && is_text(text.inner()) => text.inner(),
        _ => &source.inner,
    };
    Some((inner, bounds))
}

/// The source of a wrapped scan with another reader of the same format.
pub(super) fn with_reader(
    source: &Arc<dyn FileSource>,
    inner: Arc<dyn FileSource>,
) -> Option<Arc<dyn FileSource>> {
    let guarded = source.downcast_ref::<GuardedSource>()?;
    Some(Arc::new(GuardedSource { inner, ..guarded.clone() }))
}

fn is_text(source: &Arc<dyn FileSource>) -> bool {
    source.is::<JsonSource>() || source.is::<CsvSource>()
}

/// Wraps the reader of files of `store` as [`guarded`] does, with the bounds of another process: they cut batches.
pub(super) fn guarded_again(
    inner: Arc<dyn FileSource>,
    store: &str,
    bounds: Bounds,
    quota: Option<&Arc<Quota>>,
    batch_rows: usize,
) -> Arc<dyn FileSource> {
    let Bounds { rows_max, text_bytes, nulls } = bounds;
    let inner = charging(inner, &nulls, quota, batch_rows);
    let account = quota.map(|quota| quota.account());
    Arc::new(GuardedSource { inner, root: root_of(store), rows_max, text_bytes, nulls, account })
}

/// True for a wrapped reader of CSV whose files can be cut.
pub(super) fn can_be_cut(source: &Arc<dyn FileSource>) -> bool {
    source.downcast_ref::<GuardedSource>().is_some_and(|guarded| csv::can_be_cut(&guarded.inner))
}

/// The wrapped reader of CSV files that are cut into `groups`; `None` if they cannot be cut.
pub(super) fn of_ranges(
    source: &Arc<dyn FileSource>,
    groups: &[FileGroup],
) -> Option<Arc<dyn FileSource>> {
    let guarded = source.downcast_ref::<GuardedSource>()?;
    let plain = csv::plain(&guarded.inner);
    let (nulls, account) = (guarded.nulls.clone(), guarded.account.clone());
    let open = CsvRanges::new(plain, groups, nulls, account)?;
    let inner = Arc::new(Opened::new(plain.clone(), open));
    Some(Arc::new(GuardedSource { inner, ..guarded.clone() }))
}

/// Wraps the reader: readers of Parquet and Arrow charge their memory, readers of text check their input.
fn charging(
    inner: Arc<dyn FileSource>,
    nulls: &Nulls,
    quota: Option<&Arc<Quota>>,
    batch_rows: usize,
) -> Arc<dyn FileSource> {
    if inner.is::<JsonSource>() {
        return Arc::new(Opened::new(inner, JsonLines));
    }
    if let Some(whole) = CsvRanges::whole(&inner, nulls) {
        return Arc::new(Opened::new(inner, whole));
    }
    if let Some(arrow) = quota.and_then(|quota| ipc::charged(&inner, quota)) {
        return arrow;
    }
    let pages = inner.downcast_ref::<ParquetSource>();
    match pages.zip(quota).and_then(|(source, quota)| charged(source, quota, batch_rows)) {
        Some(source) => Arc::new(source),
        None => inner,
    }
}

/// The URL prefix of files in a store that is registered as `table-1+s3://bucket/`; empty for local files.
fn root_of(store: &str) -> String {
    let rest = store.split_once('+').map_or("", |(_, rest)| rest);
    match rest.trim_end_matches('/') {
        // A URL of memory has no host.
        scheme if scheme.ends_with(':') => format!("{scheme}/"),
        root => root.to_string(),
    }
}

fn shown(root: &str, at: &Path) -> String {
    format!("{root}/{at}")
}

fn damaged(path: &str, reason: &str) -> DataFusionError {
    let (path, reason) = (path.to_string(), reason.to_string());
    DataFusionError::External(Box::new(SourceError::Damaged { path, reason }))
}

fn message(payload: &(dyn Any + Send)) -> String {
    let text = payload.downcast_ref::<&str>().map(|s| s.to_string());
    let text = text.or_else(|| payload.downcast_ref::<String>().cloned());
    let text = text.unwrap_or_else(|| "its reader failed".into());
    text.lines().next().unwrap_or_default().to_string()
}

#[derive(Debug)]
struct File {
    path: String,
    /// Maximum bytes of the materialized texts of a batch.
    text_bytes: u64,
    /// The number of its first row in errors of the reader.
    first_row: usize,
}

/// Converts a panic to an error of the file.
async fn caught<T>(path: &str, work: impl Future<Output = Result<T>>) -> Result<T> {
    match AssertUnwindSafe(work).catch_unwind().await {
        Ok(done) => done,
        Err(payload) => Err(damaged(path, &message(&*payload))),
    }
}

/// As [`caught`], for synchronous work; a reader's error about the bytes names the file too.
fn caught_now<T>(file: &File, work: impl FnOnce() -> Result<T>) -> Result<T> {
    match catch_unwind(AssertUnwindSafe(work)) {
        Ok(done) => done.map_err(|e| named(file, e)),
        Err(payload) => Err(damaged(&file.path, &message(&*payload))),
    }
}

/// Adds the file to a reader's error about the bytes; an error of the storage is returned unchanged.
fn named(file: &File, error: DataFusionError) -> DataFusionError {
    let path = &file.path;
    if let Some(error) = csv::bad_row(path, file.first_row, &error) {
        return DataFusionError::External(Box::new(error));
    }
    let is_of_reader =
        matches!(error, DataFusionError::ParquetError(_) | DataFusionError::ArrowError(..));
    if let (true, DataFusionError::ResourcesExhausted(what)) = (is_of_reader, error.find_root()) {
        return DataFusionError::ResourcesExhausted(format!("`{path}`: {what}"));
    }
    let is_of_bytes = match &error {
        DataFusionError::ParquetError(_) => true,
        // Division by zero is not an error of the bytes: the reader may evaluate expressions over the columns.
        DataFusionError::ArrowError(e, _) => {
            matches!(
                **e,
                ArrowError::IpcError(_) | ArrowError::ParquetError(_) | ArrowError::JsonError(_)
            )
        }
        _ => false,
    };
    match is_of_bytes && tessera_storage::source::passing(&error).is_none() {
        true => damaged(path, plain(&error.strip_backtrace())),
        false => error,
    }
}

/// Texts of a materialized batch may take the memory limit divided by this.
const TEXT_SHARE: u64 = 16;
/// Lower bound of that share.
const TEXT_BYTES_LEAST: u64 = 1 << 20;

/// Maximum cells of a CSV batch.
const CSV_CELLS: usize = 1 << 20;

/// Rows of a CSV file that are read at a time.
///
/// The reader allocates for that many rows whatever the file has, which for a thousand small files of many columns
/// takes far longer than their data. A cell has at least one byte, its separator.
fn csv_rows(bytes: u64, columns: usize) -> usize {
    let columns = columns.max(1);
    let there = usize::try_from(bytes).unwrap_or(usize::MAX) / columns;
    there.saturating_add(1).min((CSV_CELLS / columns).max(1))
}

#[derive(Clone)]
struct GuardedSource {
    inner: Arc<dyn FileSource>,
    root: String,
    /// Maximum rows of a batch.
    rows_max: usize,
    /// Maximum bytes of its materialized texts.
    text_bytes: u64,
    /// The texts of CSV files that are NULL.
    nulls: Nulls,
    /// Charges the memory of the reader.
    account: Option<Arc<Account>>,
}

impl FileSource for GuardedSource {
    as_inner!();

    fn create_file_opener(
        &self,
        store: Arc<dyn ObjectStore>,
        config: &FileScanConfig,
        partition: usize,
    ) -> Result<Arc<dyn FileOpener>> {
        self.inner.create_file_opener(store, config, partition)
    }

    fn create_morselizer(
        &self,
        store: Arc<dyn ObjectStore>,
        config: &FileScanConfig,
        partition: usize,
    ) -> Result<Box<dyn Morselizer>> {
        let inner = self.inner.create_morselizer(store.clone(), config, partition)?;
        let keyed = Keyed::of(&self.inner, store, config, partition, self.text_bytes);
        let (root, text_bytes) = (self.root.clone(), self.text_bytes);
        let first_row = csv::first_row(&self.inner);
        Ok(Box::new(GuardedMorselizer { inner, keyed, root, text_bytes, first_row }))
    }

    fn with_batch_size(&self, batch_size: usize) -> Arc<dyn FileSource> {
        let inner = self.inner.with_batch_size(batch_size.min(self.rows_max));
        Arc::new(GuardedSource { inner, ..self.clone() })
    }

    fn filter(&self) -> Option<Arc<dyn PhysicalExpr>> {
        self.inner.filter()
    }

    fn reorder_files(&self, files: Vec<PartitionedFile>) -> Vec<PartitionedFile> {
        self.inner.reorder_files(files)
    }
}

#[derive(Debug)]
struct GuardedMorselizer {
    inner: Box<dyn Morselizer>,
    /// The reader that is used where keys of a join are rare.
    keyed: Option<Keyed>,
    root: String,
    text_bytes: u64,
    first_row: usize,
}

impl Morselizer for GuardedMorselizer {
    fn plan_file(&self, file: PartitionedFile) -> Result<Box<dyn MorselPlanner>> {
        let path = shown(&self.root, &file.object_meta.location);
        let of = File { path, text_bytes: self.text_bytes, first_row: self.first_row };
        // Only now the keys of joins are known.
        let by_keys = self.keyed.as_ref().map_or(Ok(None), Keyed::morselizer)?;
        let reader = by_keys.as_ref().unwrap_or(&self.inner);
        let inner = caught_now(&of, || reader.plan_file(file))?;
        Ok(Box::new(GuardedPlanner { inner, of: Arc::new(of) }))
    }
}

#[derive(Debug)]
struct GuardedPlanner {
    inner: Box<dyn MorselPlanner>,
    of: Arc<File>,
}

impl MorselPlanner for GuardedPlanner {
    fn plan(self: Box<Self>) -> Result<Option<MorselPlan>> {
        let GuardedPlanner { inner, of } = *self;
        let Some(mut plan) = caught_now(&of, || inner.plan())? else { return Ok(None) };
        let morsels = plan
            .take_morsels()
            .into_iter()
            .map(|inner| Box::new(GuardedMorsel { inner, of: of.clone() }) as Box<dyn Morsel>);
        let planners = plan.take_ready_planners().into_iter().map(|inner| {
            Box::new(GuardedPlanner { inner, of: of.clone() }) as Box<dyn MorselPlanner>
        });
        let mut ours =
            MorselPlan::new().with_morsels(morsels.collect()).with_planners(planners.collect());
        if let Some(pending) = plan.take_pending_planner() {
            ours.set_pending_planner(guarded_pending(pending, of));
        }
        Ok(Some(ours))
    }
}

async fn guarded_pending(
    pending: PendingMorselPlanner,
    of: Arc<File>,
) -> Result<Box<dyn MorselPlanner>> {
    let inner = caught(&of.path, pending.into_future()).await.map_err(|e| named(&of, e))?;
    Ok(Box::new(GuardedPlanner { inner, of }))
}

#[derive(Debug)]
struct GuardedMorsel {
    inner: Box<dyn Morsel>,
    of: Arc<File>,
}

impl Morsel for GuardedMorsel {
    fn into_stream(self: Box<Self>) -> BoxStream<'static, Result<RecordBatch>> {
        let GuardedMorsel { inner, of } = *self;
        let batches = match caught_now(&of, || Ok(inner.into_stream())) {
            Ok(batches) => batches,
            Err(e) => return stream::iter([Err(e)]).boxed(),
        };
        // The stream ends after a panic: the reader is not polled again.
        let caught = AssertUnwindSafe(batches).catch_unwind();
        caught
            .flat_map(move |batch| {
                let batch = match batch {
                    Ok(batch) => batch.map_err(|e| named(&of, e)),
                    Err(payload) => Err(damaged(&of.path, &message(&*payload))),
                };
                stream::iter(match batch {
                    Ok(batch) => cut(batch, of.text_bytes).into_iter().map(Ok).collect(),
                    Err(e) => vec![Err(e)],
                })
            })
            .boxed()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn batches_of_csv_are_no_larger_than_their_file() {
        assert_eq!(csv_rows(0, 3), 1);
        assert_eq!(csv_rows(12, 2), 7);
        assert_eq!(csv_rows(u64::MAX, 1 << 10), 1 << 10);
        assert_eq!(csv_rows(u64::MAX, 1 << 30), 1);
        assert_eq!(csv_rows(100, 0), 101);
    }

    #[test]
    fn files_of_buckets_are_named_by_their_urls() {
        assert_eq!(root_of("table-1f+s3://bucket/"), "s3://bucket");
        let azure = "abfss://c@a.dfs.core.windows.net";
        assert_eq!(root_of(&format!("table-1f+{azure}/")), azure);
        let memory = root_of("table-1f+memory:///");
        assert_eq!(shown(&memory, &Path::from("a/b.csv")), "memory://a/b.csv");
        assert_eq!(shown(&root_of("table-2:///"), &Path::from("a/b.csv")), "/a/b.csv");
    }
}
