//! Tables in `FROM`: Parquet, CSV, NDJSON and Arrow files, which DataFusion reads.
//!
//! Tessera's rules for storage apply to them too: paths are relative to the working directory, variables (`AWS_…`,
//! `GOOGLE_…`, `AZURE_…`) and `OPTIONS ('aws.endpoint' …)` configure access to a bucket, and a missing file is reported
//! as for arrays.

mod calendars;
mod computed;
mod counted;
mod csv_columns;
mod headers;
pub(crate) mod names;
mod options;
mod parquet_columns;
mod partitions;
mod places;
mod uuids;

pub(crate) use parquet_columns::KnownColumns;
pub use places::Registered;
pub(crate) use places::{Places, StoreRecipe};

use crate::error::Error;
use crate::rows::{Guarded, RowsState};
use arrow::compute::concat_batches;
use arrow::datatypes::{DataType, Schema, SchemaRef, TimeUnit};
use arrow::record_batch::RecordBatch;
use datafusion::common::TableReference;
use datafusion::datasource::listing::{ListingOptions, ListingTable, ListingTableConfig};
use datafusion::datasource::{DefaultTableSource, MemTable, TableProvider, provider_as_source};
use datafusion::error::DataFusionError;
use datafusion::logical_expr::TableSource;
use futures::TryStreamExt;
use object_store::ObjectMeta;
use options::Reading;
use places::Place;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;
use tessera_frontend::RelationRef;
use tessera_frontend::ast::UrlKind;
use tessera_storage::source::{SourceError, Stores, Versions, passing};

/// Timeout for reading the schema of a table.
const TIMEOUT: Duration = Duration::from_secs(60);

/// Files that are checked concurrently.
const CHECKS: usize = 16;

/// Lower bound on the limit for a batch of an Arrow file.
const BATCH_BYTES_LEAST: u64 = 16 << 20;

/// Upper bound on the bytes of tables whose rows are in memory before a statement is planned.
const IN_MEMORY_BYTES_MAX: u64 = 64 << 20;

/// The format of a table's files.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum TableFormat {
    /// Apache Parquet.
    Parquet,
    /// Values separated by commas or by another character.
    Csv,
    /// JSON objects, one per line or in one array.
    Json,
    /// Arrow IPC, as a file or as a stream.
    Arrow,
}

impl TableFormat {
    /// Parses the format after `STORED AS` or `read_`.
    pub fn parse(name: &str) -> Option<Self> {
        Some(match name.to_ascii_lowercase().as_str() {
            "parquet" => Self::Parquet,
            "csv" => Self::Csv,
            "json" | "ndjson" => Self::Json,
            "arrow" => Self::Arrow,
            _ => return None,
        })
    }

    /// The format by the suffix of a URL; `None` for arrays.
    pub fn of_url(url: &str) -> Option<Self> {
        match UrlKind::ending(url).as_str() {
            "parquet" => Some(Self::Parquet),
            "csv" | "tsv" => Some(Self::Csv),
            "json" | "ndjson" | "jsonl" => Some(Self::Json),
            "arrow" | "arrows" | "feather" => Some(Self::Arrow),
            _ => None,
        }
    }

    /// The format of a relation that is rows.
    pub fn of(relation: &RelationRef) -> Option<Self> {
        let RelationRef::Url { url, options } = relation else { return None };
        match options.iter().find(|(key, _)| key == "format") {
            Some((_, format)) => Self::parse(format),
            None => Self::of_url(url),
        }
    }

    /// The name in messages.
    pub fn name(self) -> &'static str {
        match self {
            Self::Parquet => "Parquet",
            Self::Csv => "CSV",
            Self::Json => "NDJSON",
            Self::Arrow => "Arrow IPC",
        }
    }

    /// The endings of its files, as messages list them.
    fn endings(self) -> &'static str {
        match self {
            Self::Parquet => "`.parquet`",
            Self::Csv => "`.csv` or `.tsv`",
            Self::Json => "`.ndjson`, `.jsonl` or `.json`",
            Self::Arrow => "`.arrow`, `.arrows` or `.feather`",
        }
    }

    fn has(self, name: &str) -> bool {
        Self::of_url(name) == Some(self)
    }
}

/// A table of rows that DataFusion reads.
#[derive(Debug, Clone)]
pub struct Table(Arc<dyn TableProvider>);

impl Table {
    /// A table of rows in memory.
    ///
    /// # Errors
    /// DataFusion's.
    pub fn of_rows(rows: RecordBatch) -> Result<Self, Error> {
        Table::of_batches(rows.schema(), vec![rows])
    }

    /// A table of batches in memory.
    ///
    /// # Errors
    /// DataFusion's: a batch has other columns.
    pub fn of_batches(schema: SchemaRef, rows: Vec<RecordBatch>) -> Result<Self, Error> {
        Ok(Table(Arc::new(MemTable::try_new(schema, vec![rows])?)))
    }

    /// Names and types of the columns.
    pub fn schema(&self) -> SchemaRef {
        self.0.schema()
    }

    pub(crate) fn source(&self) -> Arc<dyn TableSource> {
        provider_as_source(self.0.clone())
    }
}

/// The rows of a table that [`RowsState::in_memory`] has read, or of another small one in memory.
pub(crate) fn rows_in_memory(source: &dyn TableSource) -> Option<RecordBatch> {
    let source = source.downcast_ref::<DefaultTableSource>()?;
    let table = source.table_provider.downcast_ref::<MemTable>()?;
    let [part] = table.batches.as_slice() else { return None };
    let batches = part.try_read().ok()?;
    let [rows] = batches.as_slice() else { return None };
    (rows.get_array_memory_size() as u64 <= IN_MEMORY_BYTES_MAX).then(|| rows.clone())
}

/// Opened tables of a statement.
pub type Tables = BTreeMap<RelationRef, Table>;

/// A table whose files were found.
pub struct OpenedTable {
    /// The table.
    pub table: Table,
    /// Its URL, without parts that may be secret.
    pub url: String,
    /// The version of its files.
    pub version: String,
    /// Its store, which has to be retained while the table is read.
    pub store: Registered,
}

impl RowsState {
    /// Opens a table: finds its files and reads its columns.
    ///
    /// The statement sees its files as they are now: reading a file that changes later is an error.
    ///
    /// # Errors
    /// `not_found`, those of the storage, [`Error::Table`] if the file has another format, `unknown_option`,
    /// `source_changed` if `versions` expect other versions of its files.
    pub async fn open_table(
        &self,
        format: TableFormat,
        url: &str,
        options: &[(String, String)],
        stores: &Stores,
        versions: &Arc<Versions>,
    ) -> Result<OpenedTable, Error> {
        let state = self.get()?;
        // Larger batches are refused: a batch of an Arrow file is in memory as a whole.
        let batch_bytes = (self.memory_limit() / 4).max(BATCH_BYTES_LEAST);
        let Reading { format: reading, storage, nulls, csv } =
            options::reader(format, url, options, batch_bytes)?;
        let within = (state.runtime_env(), self.places());
        let place = places::place(format, url, &storage, nulls, within, stores, versions).await?;
        let Place { url: place, files, root, store, names } = place;
        let reading = Arc::new(Guarded::new(reading, root.clone()));
        // The listing has no other files.
        let mut listing = ListingOptions::new(reading).with_file_extension("");
        let url = shown(url);
        let not_a_table = |reason| Error::Table { url: url.clone(), format: format.name(), reason };
        let failed = |e: DataFusionError| match passing(&e) {
            Some(
                told @ (SourceError::Changed { .. }
                | SourceError::NotAllowed { .. }
                | SourceError::PermissionDenied { .. }
                | SourceError::Damaged { .. }),
            ) => Error::Storage(told),
            _ if matches!(e, DataFusionError::ResourcesExhausted(_)) => e.into(),
            _ => not_a_table(match &e {
                DataFusionError::Plan(reason) => reason.clone(),
                _ => first_line(&e.strip_backtrace()),
            }),
        };
        let is_xz = |name: &str| name.ends_with(".xz");
        if is_xz(&url) || names.iter().flatten().any(|name| is_xz(name)) {
            return Err(not_a_table(
                "`.xz` is not unpacked, but `.gz`, `.bz2` and `.zst` are".into(),
            ));
        }
        if names.as_ref().is_some_and(Vec::is_empty) {
            let endings = format.endings();
            return Err(not_a_table(format!("the directory has no files of {endings}")));
        }
        let known = async {
            if format == TableFormat::Parquet {
                let within = (&place, &files, root.as_str());
                let columns = self.parquet_columns(state, within, &listing).await?;
                return Ok((columns.schema, None, columns.uuids, columns.version));
            }
            let Some(csv) = &csv else {
                let schema = listing.infer_schema(state, &place).await?;
                return Ok((schema, None, BTreeSet::new(), None));
            };
            let all = place.list_all_files(state, &files, "").await?;
            let mut all: Vec<ObjectMeta> = all.try_collect().await?;
            all.sort_by(|a, b| a.location.cmp(&b.location));
            let differing = match csv.has_header && all.len() > 1 {
                true => headers::differing(&files, &all, &csv.format().with_header(true)).await?,
                false => None,
            };
            let shown = |file: &ObjectMeta| format!("{root}/{}", file.location);
            Ok((csv.columns(&files, &all, shown).await?, differing, BTreeSet::new(), None))
        };
        let (schema, differing, uuids, known) = tokio::time::timeout(TIMEOUT, known)
            .await
            .map_err(|_| Error::Timeout { limit_s: TIMEOUT.as_secs() })?
            .map_err(failed)?;
        if let Some((file, columns, first)) = differing {
            return Err(not_a_table(format!(
                "its files have different header lines: `{file}` has {columns}, and the first file has {first}"
            )));
        }
        let schema = of_all_rows(format, schema, names.is_some());
        if schema.fields().is_empty() {
            return Err(not_a_table("it has no columns".into()));
        }
        let mut keys = names.as_deref().map(partitions::keys).unwrap_or_default();
        // Columns of the files have their own values.
        if keys.iter().any(|key| schema.column_with_name(&key.name).is_some()) {
            keys.clear();
        }
        let listed = keys.iter().map(|key| (key.name.clone(), key.listed()));
        listing = listing.with_table_partition_cols(listed.collect());
        let version = files.version();
        // Statistics are those of this set of files in these versions.
        let statistics = known.and_then(|known| {
            let cache = state.runtime_env().cache_manager.get_file_statistic_cache()?;
            Some((TableReference::bare(format!("{known:x}")), cache))
        });
        let (place, cache) = match statistics {
            Some((name, cache)) => (place.with_table_ref(name), Some(cache)),
            None => (place, None),
        };
        let config =
            ListingTableConfig::new(place).with_listing_options(listing).with_schema(schema);
        let files = ListingTable::try_new(config).map_err(failed)?.with_cache(cache);
        let table = Table(uuids::as_texts(partitions::with_nulls(files, keys), uuids));
        Ok(OpenedTable { table, url, version, store })
    }

    /// Upper bound on the bytes of the tables that a statement reads before it is planned.
    pub fn in_memory_max(&self) -> u64 {
        (self.memory_limit() / 16).min(IN_MEMORY_BYTES_MAX)
    }

    /// The table with its rows in memory, and their bytes, if neither its files nor its rows have more bytes than
    /// `limit`. `None` also if it cannot be read, or not in time: the run reads the columns that the query needs, and
    /// reports their errors.
    pub async fn in_memory(&self, table: &Table, limit: u64) -> Option<(Table, u64)> {
        tokio::time::timeout(TIMEOUT, self.read_small(table, limit)).await.ok()?
    }

    async fn read_small(&self, table: &Table, limit: u64) -> Option<(Table, u64)> {
        let state = self.get().ok()?;
        if let Some(files) = computed::files(&table.0).downcast_ref::<ListingTable>() {
            let mut bytes = 0;
            for place in files.table_paths() {
                let store = state.runtime_env().object_store(place).ok()?;
                let ending = &files.options().file_extension;
                let mut all = place.list_all_files(state, &store, ending).await.ok()?;
                while let Some(file) = all.try_next().await.ok()? {
                    bytes += file.size;
                    if bytes > limit {
                        return None;
                    }
                }
            }
        }
        let plan = table.0.scan(state, None, &[], None).await.ok()?;
        let mut rows = self.rows_of(plan).await.ok()?;
        let (mut batches, mut bytes) = (Vec::new(), 0);
        while let Some(batch) = rows.rows.try_next().await.ok()? {
            bytes += batch.get_array_memory_size() as u64;
            if bytes > limit {
                return None;
            }
            batches.push(batch);
        }
        let rows = concat_batches(&table.schema(), &batches).ok()?;
        let bytes = rows.get_array_memory_size() as u64;
        Some((Table::of_rows(rows).ok()?, bytes))
    }
}

/// The schema of all rows of the files, from that of the first rows.
fn of_all_rows(format: TableFormat, schema: SchemaRef, is_several: bool) -> SchemaRef {
    match format {
        TableFormat::Csv => with_types(&schema, of_csv),
        TableFormat::Json => with_types(&schema, of_text),
        // One of several files may lack a column that the others require.
        TableFormat::Parquet | TableFormat::Arrow if is_several => nullable(&schema),
        TableFormat::Parquet | TableFormat::Arrow => schema,
    }
}

/// The schema with other types of columns.
fn with_types(schema: &SchemaRef, of: impl Fn(&DataType) -> DataType) -> SchemaRef {
    let fields = schema.fields().iter();
    let fields =
        fields.map(|field| Arc::new(field.as_ref().clone().with_data_type(of(field.data_type()))));
    Arc::new(Schema::new_with_metadata(fields.collect::<Vec<_>>(), schema.metadata().clone()))
}

/// Columns without a value in the first rows are texts: they may have values later.
fn of_text(of: &DataType) -> DataType {
    match of {
        DataType::Null => DataType::Utf8,
        other => other.clone(),
    }
}

/// Times have microseconds, too: later ones may have fractions that the first rows do not have.
fn of_csv(of: &DataType) -> DataType {
    match of {
        DataType::Timestamp(TimeUnit::Second | TimeUnit::Millisecond, zone) => {
            DataType::Timestamp(TimeUnit::Microsecond, zone.clone())
        }
        other => of_text(other),
    }
}

/// The schema with columns that may be NULL.
fn nullable(schema: &SchemaRef) -> SchemaRef {
    let fields = schema.fields().iter();
    let fields = fields.map(|field| Arc::new(field.as_ref().clone().with_nullable(true)));
    Arc::new(Schema::new_with_metadata(fields.collect::<Vec<_>>(), schema.metadata().clone()))
}

/// A URL without parts that may be secret.
fn shown(url: &str) -> String {
    let bare = url.split(['?', '#']).next().unwrap_or_default();
    match bare.split_once("://") {
        Some((scheme, rest)) => {
            let (authority, path) = rest.split_once('/').unwrap_or((rest, ""));
            let authority = authority.rsplit('@').next().unwrap_or_default();
            format!("{scheme}://{authority}/{path}")
        }
        None => bare.to_string(),
    }
}

fn first_line(text: &str) -> String {
    text.lines().next().unwrap_or_default().trim_end_matches('.').to_string()
}
