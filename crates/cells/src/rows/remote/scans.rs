//! The scans of a part as bytes.
//!
//! ```text
//! server   DataSourceExec over GuardedSource   ⇒   the inner scan as DataFusion encodes it,
//!                                                  how to reach its files, their versions, the bounds of its batches
//! worker   a store of its own, under a new name   ⇒   the inner scan over it, wrapped again
//! ```
//! DataFusion's encoding of a scan of files has neither its compression nor whether it preserves its order. A scan that
//! needs what is not encoded stays, and [`difference`] compares what the text of a plan does not show.
//!
//! DataFusion does not know our reader of Arrow files. Such a scan is encoded as one of JSON with the same columns and
//! ranges, which the other side swaps back.

use super::codec::{RowsCodec, broken};
use crate::rows::Nulls;
use crate::rows::guard::{Bounds, guarded_again, within};
use crate::rows::ipc;
use crate::tables::StoreRecipe;
use datafusion::common::Statistics;
use datafusion::datasource::listing::PartitionedFile;
use datafusion::datasource::memory::MemorySourceConfig;
use datafusion::datasource::physical_plan::{
    CsvSource, FileGroup, FileScanConfig, FileScanConfigBuilder, FileSource, JsonSource,
    ParquetSource,
};
use datafusion::datasource::source::DataSourceExec;
use datafusion::error::Result;
use datafusion::execution::TaskContext;
use datafusion::physical_expr::projection::{ProjectionExpr, ProjectionExprs};
use datafusion::physical_plan::ExecutionPlan;
use datafusion_proto::physical_plan::{PhysicalPlanDecodeContext, PhysicalProtoConverterExtension};
use datafusion_proto::protobuf::physical_plan_node::PhysicalPlanType;
use datafusion_proto::protobuf::{FileScanExecConf, PhysicalPlanNode};
use object_store::path::Path;
use prost::Message;
use std::collections::BTreeMap;
use std::sync::Arc;
use tessera_exec::quota::Quota;

/// A scan of files.
#[derive(Clone, PartialEq, Message)]
pub(super) struct Scan {
    /// The scan as DataFusion encodes it. The first part of each file has the file's statistics.
    #[prost(message, optional, tag = "1")]
    scan: Option<PhysicalPlanNode>,
    /// How to reach the files: a [`StoreRecipe`] as postcard.
    #[prost(bytes = "vec", tag = "2")]
    recipe: Vec<u8>,
    /// The files and their versions, in pairs.
    #[prost(fixed64, repeated, tag = "3")]
    noted: Vec<u64>,
    #[prost(uint64, tag = "4")]
    rows_max: u64,
    #[prost(uint64, tag = "5")]
    text_bytes: u64,
    #[prost(bool, tag = "6")]
    preserve_order: bool,
    /// Upper bound on the bytes of a batch of an Arrow file; `None` for files of other formats.
    #[prost(uint64, optional, tag = "7")]
    batch_bytes: Option<u64>,
    /// The texts of CSV files that are NULL.
    #[prost(string, repeated, tag = "8")]
    nulls: Vec<String>,
}

/// The reason why a scan stays on the server; `None` if it may be sent. `rows_bytes` bounds its rows in memory.
pub(super) fn stays(scan: &DataSourceExec, rows_bytes: usize) -> Option<String> {
    if let Some(rows) = rows_of(scan) {
        let bytes = bytes_of(rows);
        return (bytes > rows_bytes).then(|| {
            format!("a table in memory has {bytes} bytes, and at most {rows_bytes} are sent")
        });
    }
    let Some(files) = files_of(scan) else {
        return Some("it reads what is neither files nor rows in memory".into());
    };
    let Some((inner, _)) = within(&files.file_source) else {
        return Some("it reads files of another kind than a table's".into());
    };
    let is_known = inner.is::<ParquetSource>()
        || inner.is::<CsvSource>()
        || inner.is::<JsonSource>()
        || ipc::batch_bytes_of(inner).is_some();
    if !is_known {
        return Some(match inner.file_type() {
            // Where a range begins in a quote follows from the ranges before it.
            "csv" => "CSV files that are cut into ranges are not sent".into(),
            other => format!("files of the format {other} are not sent"),
        });
    }
    if files.file_compression_type.is_compressed() {
        return Some("compressed files are not sent".into());
    }
    let has_extensions =
        files.file_groups.iter().flat_map(|group| group.files()).any(|f| !f.extensions.is_empty());
    let is_whole = files.expr_adapter_factory.is_none()
        && files.limit.is_none_or(|limit| u32::try_from(limit).is_ok())
        && !has_extensions;
    (!is_whole).then(|| "its scan has parts that are not encoded".into())
}

/// Encodes a scan of files.
///
/// # Errors
/// A scan that stays, or DataFusion's.
pub(super) fn encoded(
    codec: &RowsCodec,
    scan: &DataSourceExec,
    converter: &dyn PhysicalProtoConverterExtension,
) -> Result<Scan> {
    let files = files_of(scan).ok_or_else(|| codec.refuse("it reads no files".into()))?;
    let Some((inner, bounds)) = within(&files.file_source) else {
        return Err(codec.refuse("it reads files of another kind than a table's".into()));
    };
    let Some(placed) = codec.places().get(&files.object_store_url) else {
        return Err(codec.refuse("its files are in a store of no table".into()));
    };
    if placed.recipe.is_in_memory() {
        return Err(codec.refuse("its files are in this process's memory".into()));
    }
    let all = files.file_groups.iter().flat_map(|group| group.files());
    let Some(noted) = placed.noted(all.map(|file| &file.object_meta.location)) else {
        return Err(codec.refuse("the version of one of its files is not known".into()));
    };
    let recipe = postcard::to_extend(&placed.recipe, Vec::new());
    let recipe = recipe.map_err(|e| codec.refuse(format!("how to reach its files: {e}")))?;
    let batch_bytes = ipc::batch_bytes_of(inner);
    let known = match batch_bytes {
        Some(_) => in_place_of_arrow(inner)?
            .ok_or_else(|| codec.refuse("the columns of Arrow files are not encoded".into()))?,
        None => inner.clone(),
    };
    let plain = FileScanConfigBuilder::from(files.clone())
        .with_source(known)
        .with_file_groups(
            stripped(&files.file_groups)
                .ok_or_else(|| codec.refuse("parts of a file have other statistics".into()))?,
        )
        .build();
    let plain: Arc<dyn ExecutionPlan> = DataSourceExec::from_data_source(plain);
    let mut node = converter.execution_plan_to_proto(&plain, codec)?;
    if conf_of(&mut node).is_none() {
        return Err(codec.refuse("its scan is encoded in another way than expected".into()));
    }
    Ok(Scan {
        scan: Some(node),
        recipe,
        noted: noted.into_iter().flat_map(|(object, version)| [object, version]).collect(),
        rows_max: bounds.rows_max as u64,
        text_bytes: bounds.text_bytes,
        preserve_order: files.preserve_order,
        batch_bytes,
        nulls: bounds.nulls.texts().to_vec(),
    })
}

/// The scan, over the store of this process.
///
/// # Errors
/// The errors of the storage; bytes that do not encode a scan.
pub(super) fn decoded(
    codec: &RowsCodec,
    sent: Scan,
    session: &TaskContext,
    converter: &dyn PhysicalProtoConverterExtension,
) -> Result<Arc<dyn ExecutionPlan>> {
    let Scan { scan, recipe, noted, rows_max, text_bytes, preserve_order, batch_bytes, nulls } =
        sent;
    let mut node = scan.ok_or_else(|| broken("a scan"))?;
    let noted: Vec<_> = noted.chunks_exact(2).map(|pair| (pair[0], pair[1])).collect();
    // On the server the files are in their store already.
    if let Some(opening) = codec.opening() {
        let url = opening.url(&recipe, &noted, session)?;
        let conf = conf_of(&mut node).ok_or_else(|| broken("a scan"))?;
        conf.object_store_url = url.as_str().to_string();
    }
    let context = PhysicalPlanDecodeContext::new(session, codec);
    let plain = converter.proto_to_execution_plan(&node, &context)?;
    let plain = plain.downcast_ref::<DataSourceExec>().and_then(files_of);
    let plain = plain.ok_or_else(|| broken("a scan"))?;
    let store = plain.object_store_url.as_str();
    let nulls = Nulls::new(nulls).map_err(|_| broken("the options of a scan"))?;
    let rows_max = usize::try_from(rows_max).unwrap_or(usize::MAX);
    let bounds = Bounds { rows_max, text_bytes, nulls };
    let quota = session.session_config().get_extension::<Quota>();
    let batch_rows = session.session_config().batch_size();
    let inner = match batch_bytes {
        // Reads are charged to this process, which may have less memory than the server.
        Some(limit) if plain.file_source.is::<JsonSource>() => {
            ipc::with_columns_of(&plain.file_source, limit)
        }
        Some(_) => return Err(broken("a scan of Arrow files")),
        None => with_size_hint(&plain.file_source),
    };
    let source = guarded_again(inner, store, bounds, quota.as_ref(), batch_rows);
    let scan = FileScanConfigBuilder::from(plain.clone())
        .with_source(source)
        .with_file_groups(restored(&plain.file_groups))
        .with_preserve_order(preserve_order)
        .build();
    Ok(DataSourceExec::from_data_source(scan))
}

/// The reader that DataFusion encodes in the place of one of Arrow files: it has the same columns. `None` if it cannot
/// have them.
fn in_place_of_arrow(inner: &Arc<dyn FileSource>) -> Result<Option<Arc<dyn FileSource>>> {
    let known = JsonSource::new(inner.table_schema().clone());
    match inner.projection() {
        Some(projection) => known.try_pushdown_projection(projection),
        None => Ok(Some(Arc::new(known))),
    }
}

pub(super) fn recipe_of(bytes: &[u8]) -> Result<StoreRecipe> {
    postcard::from_bytes(bytes).map_err(|_| broken("how to reach files"))
}

/// A difference between an encoded scan and its decoded form, beyond its text and its columns.
pub(super) fn difference(a: &DataSourceExec, b: &DataSourceExec) -> Option<&'static str> {
    match (files_of(a), files_of(b)) {
        (Some(a), Some(b)) => of_files(a, b),
        (None, None) => match (rows_of(a), rows_of(b)) {
            (Some(a), Some(b)) => {
                let is_same = a.partitions() == b.partitions()
                    && a.original_schema() == b.original_schema()
                    && a.projection() == b.projection()
                    && a.sort_information() == b.sort_information();
                (!is_same).then_some("rows in memory")
            }
            _ => Some("the kind of a scan"),
        },
        _ => Some("the kind of a scan"),
    }
}

fn of_files(a: &FileScanConfig, b: &FileScanConfig) -> Option<&'static str> {
    let (Some((of_a, bounds_a)), Some((of_b, bounds_b))) =
        (within(&a.file_source), within(&b.file_source))
    else {
        return Some("the reader of a scan");
    };
    if bounds_a != bounds_b {
        return Some("the bounds of batches");
    }
    let is_same = a.preserve_order == b.preserve_order
        && a.limit == b.limit
        && a.batch_size == b.batch_size
        && a.file_compression_type == b.file_compression_type
        && a.output_ordering == b.output_ordering
        && a.output_partitioning == b.output_partitioning
        && a.constraints == b.constraints;
    if !is_same {
        return Some("the options of a scan");
    }
    let groups = a.file_groups.iter().zip(&b.file_groups);
    let are_same = a.file_groups.len() == b.file_groups.len()
        && groups.into_iter().all(|(a, b)| {
            a.len() == b.len() && a.files().iter().zip(b.files()).all(|(a, b)| is_same_file(a, b))
        });
    if !are_same {
        return Some("the files of a scan");
    }
    if !is_same_projection(of_a.projection(), of_b.projection())
        || of_a.table_schema().file_schema() != of_b.table_schema().file_schema()
    {
        return Some("the columns of files");
    }
    of_readers(of_a, of_b)
}

/// As for the expressions of other nodes, the configuration that a function was planned with is not compared.
fn is_same_projection(a: Option<&ProjectionExprs>, b: Option<&ProjectionExprs>) -> bool {
    match (a, b) {
        (Some(a), Some(b)) => {
            let is_same = |(a, b): (&ProjectionExpr, &ProjectionExpr)| {
                a.alias == b.alias && a.expr.to_string() == b.expr.to_string()
            };
            a.as_ref().len() == b.as_ref().len() && a.iter().zip(b.iter()).all(is_same)
        }
        (None, None) => true,
        _ => false,
    }
}

/// Statistics of files are not compared: a reader prunes by them, and rows are the same without.
fn is_same_file(a: &PartitionedFile, b: &PartitionedFile) -> bool {
    let (of_a, of_b) = (&a.object_meta, &b.object_meta);
    of_a.location == of_b.location
        && of_a.size == of_b.size
        && of_a.last_modified == of_b.last_modified
        && a.range == b.range
        && a.partition_values == b.partition_values
        && a.arrow_schema == b.arrow_schema
}

fn of_readers(a: &Arc<dyn FileSource>, b: &Arc<dyn FileSource>) -> Option<&'static str> {
    let is_same = if let (Some(a), Some(b)) =
        (a.downcast_ref::<ParquetSource>(), b.downcast_ref::<ParquetSource>())
    {
        a.table_parquet_options() == b.table_parquet_options()
    } else if let (Some(a), Some(b)) =
        (a.downcast_ref::<CsvSource>(), b.downcast_ref::<CsvSource>())
    {
        a.has_header() == b.has_header()
            && (a.delimiter(), a.quote()) == (b.delimiter(), b.quote())
            && (a.escape(), a.comment()) == (b.escape(), b.comment())
            && a.terminator() == b.terminator()
            && a.newlines_in_values() == b.newlines_in_values()
            && a.truncate_rows() == b.truncate_rows()
    } else if let (Some(a), Some(b)) = (ipc::batch_bytes_of(a), ipc::batch_bytes_of(b)) {
        a == b
    } else {
        a.is::<JsonSource>() && b.is::<JsonSource>()
    };
    (!is_same).then_some("the options of files")
}

fn files_of(scan: &DataSourceExec) -> Option<&FileScanConfig> {
    scan.data_source().downcast_ref()
}

fn rows_of(scan: &DataSourceExec) -> Option<&MemorySourceConfig> {
    scan.data_source().downcast_ref()
}

/// Bytes of the rows, of slices only those within.
fn bytes_of(rows: &MemorySourceConfig) -> usize {
    let batches = rows.partitions().iter().flatten();
    let columns = batches.flat_map(|batch| batch.columns());
    let bytes = columns.map(|c| c.to_data().get_slice_memory_size().unwrap_or(usize::MAX));
    bytes.fold(0, usize::saturating_add)
}

/// The reader with the size of its first read, which is among its options.
fn with_size_hint(inner: &Arc<dyn FileSource>) -> Arc<dyn FileSource> {
    let parquet = inner.downcast_ref::<ParquetSource>();
    let hint = parquet.and_then(|source| {
        Some((source, source.table_parquet_options().global.metadata_size_hint?))
    });
    match hint {
        Some((source, hint)) => Arc::new(source.clone().with_metadata_size_hint(hint)),
        None => inner.clone(),
    }
}

/// The part of an encoded scan that all formats have.
fn conf_of(node: &mut PhysicalPlanNode) -> Option<&mut FileScanExecConf> {
    match node.physical_plan_type.as_mut()? {
        PhysicalPlanType::ParquetScan(scan) => scan.base_conf.as_mut(),
        PhysicalPlanType::CsvScan(scan) => scan.base_conf.as_mut(),
        PhysicalPlanType::JsonScan(scan) => scan.base_conf.as_mut(),
        _ => None,
    }
}

type FileStatistics = Option<Arc<Statistics>>;

/// Files whose statistics only their first parts have: a file of many columns may have a thousand parts. `None` if parts
/// of one file have other statistics.
fn stripped(groups: &[FileGroup]) -> Option<Vec<FileGroup>> {
    let mut known: BTreeMap<&Path, &FileStatistics> = BTreeMap::new();
    let mut all = Vec::with_capacity(groups.len());
    for group in groups {
        let mut files = Vec::with_capacity(group.len());
        for file in group.files() {
            let mut sent = file.clone();
            if let Some(first) = known.get(&file.object_meta.location) {
                if !is_same_statistics(first, &file.statistics) {
                    return None;
                }
                sent.statistics = None;
            } else {
                known.insert(&file.object_meta.location, &file.statistics);
            }
            files.push(sent);
        }
        all.push(FileGroup::new(files));
    }
    Some(all)
}

fn is_same_statistics(a: &FileStatistics, b: &FileStatistics) -> bool {
    match (a, b) {
        (Some(a), Some(b)) => Arc::ptr_eq(a, b) || a == b,
        (None, None) => true,
        _ => false,
    }
}

/// Files with the statistics that [`stripped`] has removed.
fn restored(groups: &[FileGroup]) -> Vec<FileGroup> {
    let mut known: BTreeMap<&Path, &FileStatistics> = BTreeMap::new();
    let groups = groups.iter().map(|group| {
        let files = group.files().iter().map(|file| {
            let location = &file.object_meta.location;
            let statistics = *known.entry(location).or_insert(&file.statistics);
            let mut file = file.clone();
            file.statistics = statistics.clone();
            file
        });
        FileGroup::new(files.collect())
    });
    groups.collect()
}
