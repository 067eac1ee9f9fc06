//! Tables in `FROM`: Parquet, CSV, NDJSON and Arrow files, which DataFusion reads.
//!
//! Tessera's rules for storage apply to them too: paths are relative to the working directory, variables (`AWS_…`,
//! `GOOGLE_…`, `AZURE_…`) and `OPTIONS ('aws.endpoint' …)` configure access to a bucket, and a missing file is reported
//! as for arrays.

use crate::error::Error;
use crate::rows::{Guarded, IpcFormat, RowsState, check_parquet};
use arrow::compute::concat_batches;
use arrow::datatypes::SchemaRef;
use arrow::record_batch::RecordBatch;
use datafusion::datasource::file_format::FileFormat;
use datafusion::datasource::file_format::csv::CsvFormat;
use datafusion::datasource::file_format::json::JsonFormat;
use datafusion::datasource::file_format::parquet::ParquetFormat;
use datafusion::datasource::listing::{
    ListingOptions, ListingTable, ListingTableConfig, ListingTableUrl,
};
use datafusion::datasource::{DefaultTableSource, MemTable, TableProvider, provider_as_source};
use datafusion::error::DataFusionError;
use datafusion::execution::object_store::ObjectStoreUrl;
use datafusion::execution::runtime_env::RuntimeEnv;
use datafusion::logical_expr::TableSource;
use futures::TryStreamExt;
use object_store::ObjectMeta;
use object_store::path::Path;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tessera_exec::task::SourceLocation;
use tessera_frontend::RelationRef;
use tessera_frontend::ast::UrlKind;
use tessera_storage::source::{
    Noted, Options, SourceError, Stores, TableStore, Versions, is_in_memory, passing,
};
use url::Url;

/// Timeout for reading the schema of a table.
const TIMEOUT: Duration = Duration::from_secs(60);

/// Files that are checked concurrently.
const CHECKS: usize = 16;

/// Lower bound on the limit for a batch of an Arrow file.
const BATCH_BYTES_LEAST: u64 = 16 << 20;

/// Upper bound on the bytes of tables whose rows are in memory before a statement is planned.
const IN_MEMORY_BYTES_MAX: u64 = 64 << 20;

/// Number of stores registered for tables.
static STORES: AtomicU64 = AtomicU64::new(0);

/// The format of a table's files.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum TableFormat {
    /// Apache Parquet.
    Parquet,
    /// Values separated by commas or by another character.
    Csv,
    /// One JSON object per line.
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
        if UrlKind::of(url) == UrlKind::Tensor {
            return None;
        }
        let path = url.split(['?', '#']).next().unwrap_or_default().trim_end_matches('/');
        let path = path.to_ascii_lowercase();
        let ends = |endings: &[&str]| endings.iter().any(|e| path.contains(e));
        Some(if ends(&[".parquet"]) {
            Self::Parquet
        } else if ends(&[".json", ".ndjson", ".jsonl"]) {
            Self::Json
        } else if ends(&[".arrow", ".feather"]) {
            Self::Arrow
        } else {
            Self::Csv
        })
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

    /// The suffix of files in a directory.
    fn ending(self) -> &'static str {
        match self {
            Self::Parquet => ".parquet",
            Self::Csv => ".csv",
            Self::Json => ".json",
            Self::Arrow => ".arrow",
        }
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
        // Larger batches are refused: a batch is in memory as a whole and is not charged to the quota.
        let batch_bytes = (self.memory_limit() / 4).max(BATCH_BYTES_LEAST);
        let (reading, storage) = reader(format, options, batch_bytes)?;
        let (place, files, root, store) =
            place(format, url, &storage, (state.runtime_env(), self.places()), stores, versions)
                .await?;
        let reading = Arc::new(Guarded::new(reading, root.clone()));
        let ending = if place.is_collection() { format.ending() } else { "" };
        let listing = ListingOptions::new(reading).with_file_extension(ending);
        let url = shown(url);
        let not_a_table = |reason| Error::Table { url: url.clone(), format: format.name(), reason };
        let failed = |e: DataFusionError| match passing(&e) {
            Some(
                told @ (SourceError::Changed { .. }
                | SourceError::NotAllowed { .. }
                | SourceError::Damaged { .. }),
            ) => Error::Storage(told),
            _ if matches!(e, DataFusionError::ResourcesExhausted(_)) => e.into(),
            _ => not_a_table(first_line(&e.strip_backtrace())),
        };
        let known = async {
            if format == TableFormat::Parquet {
                let all = place.list_all_files(state, &files, ending).await?;
                let checked = |meta: ObjectMeta| {
                    let (files, shown) = (&files, format!("{root}/{}", meta.location));
                    async move { check_parquet(files, &meta, &shown).await }
                };
                all.try_for_each_concurrent(CHECKS, checked).await?;
            }
            listing.infer_schema(state, &place).await
        };
        let schema = tokio::time::timeout(TIMEOUT, known)
            .await
            .map_err(|_| Error::Timeout { limit_s: TIMEOUT.as_secs() })?
            .map_err(failed)?;
        if schema.fields().is_empty() {
            return Err(not_a_table("it has no columns".into()));
        }
        let version = files.version();
        let config =
            ListingTableConfig::new(place).with_listing_options(listing).with_schema(schema);
        let table = Table(Arc::new(ListingTable::try_new(config).map_err(failed)?));
        Ok(OpenedTable { table, url, version, store })
    }

    /// Upper bound on the bytes of the tables that a statement reads before it is planned.
    pub fn in_memory_max(&self) -> u64 {
        (self.memory_limit() / 16).min(IN_MEMORY_BYTES_MAX)
    }

    /// The table with its rows in memory, and their bytes, if neither its files nor its rows have more bytes than
    /// `limit`. `None` also if it cannot be read, or not in time: the run reads the columns that the query needs, and reports their
    /// errors.
    pub async fn in_memory(&self, table: &Table, limit: u64) -> Option<(Table, u64)> {
        tokio::time::timeout(TIMEOUT, self.read_small(table, limit)).await.ok()?
    }

    async fn read_small(&self, table: &Table, limit: u64) -> Option<(Table, u64)> {
        let state = self.get().ok()?;
        if let Some(files) = table.0.downcast_ref::<ListingTable>() {
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

/// The reader of the file format, and the options of its storage.
fn reader(
    format: TableFormat,
    options: &[(String, String)],
    batch_bytes: u64,
) -> Result<(Arc<dyn FileFormat>, Options), Error> {
    let mut rest = Vec::new();
    let mut csv = CsvFormat::default().with_has_header(true);
    let bad = |key: &str, reason: String| {
        Error::Storage(SourceError::BadOption { key: key.to_string(), reason })
    };
    for (key, value) in options {
        match (format, key.to_ascii_lowercase().as_str()) {
            (_, "format") => {}
            (TableFormat::Csv, "header" | "has_header") => {
                let header = value
                    .parse::<bool>()
                    .map_err(|_| bad(key, format!("`{value}` is neither true nor false")))?;
                csv = csv.with_has_header(header);
            }
            (TableFormat::Csv, "delimiter" | "sep" | "delim") => match value.as_bytes() {
                [one] => csv = csv.with_delimiter(*one),
                _ if value == "\\t" => csv = csv.with_delimiter(b'\t'),
                _ => return Err(bad(key, format!("`{value}` is not one character"))),
            },
            _ => rest.push((key.as_str(), value.as_str())),
        }
    }
    let storage = Options::parse(rest).map_err(Error::Storage)?;
    let reading: Arc<dyn FileFormat> = match format {
        TableFormat::Parquet => Arc::new(ParquetFormat::default().with_force_view_types(false)),
        TableFormat::Csv => Arc::new(csv),
        TableFormat::Json => Arc::new(JsonFormat::default()),
        TableFormat::Arrow => Arc::new(IpcFormat::new(batch_bytes)),
    };
    Ok((reading, storage))
}

/// Where DataFusion finds the files: in a store that is registered for this table. With the prefix of their URLs.
async fn place(
    format: TableFormat,
    url: &str,
    options: &Options,
    (environment, places): (&Arc<RuntimeEnv>, &Arc<Places>),
    stores: &Stores,
    versions: &Arc<Versions>,
) -> Result<(ListingTableUrl, TableStore, String, Registered), Error> {
    let bad = |reason: String| Error::Storage(SourceError::BadUrl { url: shown(url), reason });
    let failed = |e: DataFusionError| bad(first_line(&e.strip_backtrace()));
    let found = stores.exists(url, options).await.map_err(Error::Storage)?;
    let is_directory = found.is_directory;
    let ending = if is_directory { format.ending() } else { "" };
    let reaching = reaching(url, options, ending, environment, stores, versions)?;
    let mut place = reaching.name(url)?;
    let location = SourceLocation {
        url: reaching.location.clone(),
        options: options.clone(),
        rules: stores.rules_for(url, options),
    };
    let recipe = StoreRecipe { location, format, is_directory };
    let placed = Placed { recipe, files: reaching.files.clone() };
    let store = registered(&place, placed, environment, places);
    // A prefix of objects is a directory.
    let slash = if is_directory && !reaching.root.is_empty() { "/" } else { "" };
    place.set_path(&format!("{}{slash}", reaching.path));
    let place = ListingTableUrl::try_new(place, None).map_err(failed)?;
    Ok((place, reaching.files, reaching.root, store))
}

/// How the files of a URL are reached.
struct Reaching {
    files: TableStore,
    /// Bucket or host.
    authority: String,
    /// The path below it.
    path: String,
    /// Prefix of the URLs of the files; empty for local files.
    root: String,
    /// The URL; the absolute path of local files.
    location: String,
}

fn reaching(
    url: &str,
    options: &Options,
    ending: &'static str,
    environment: &Arc<RuntimeEnv>,
    stores: &Stores,
    versions: &Arc<Versions>,
) -> Result<Reaching, Error> {
    let bad = |reason: String| Error::Storage(SourceError::BadUrl { url: shown(url), reason });
    let failed = |e: DataFusionError| bad(first_line(&e.strip_backtrace()));
    let reached = stores.reach(url, options).map_err(Error::Storage)?;
    Ok(match &reached.place {
        Err(path) => {
            let path = path.to_str().ok_or_else(|| bad("its path is no UTF-8".into()))?;
            let parsed = ListingTableUrl::parse(path).map_err(failed)?;
            let local = environment.object_store(&parsed).map_err(failed)?;
            let absolute = std::path::absolute(path).map_err(|e| bad(e.to_string()))?;
            let location = absolute.to_str().ok_or_else(|| bad("its path is no UTF-8".into()))?;
            Reaching {
                files: TableStore::local(&reached, local, ending, versions),
                authority: String::new(),
                path: AsRef::<Url>::as_ref(&parsed).path().to_string(),
                root: String::new(),
                location: location.to_string(),
            }
        }
        Ok(client) => {
            let root = client.root.clone();
            let authority = root.split_once("://").map_or("", |(_, authority)| authority);
            Reaching {
                files: TableStore::remote(&reached, client, &root, options, ending, versions),
                authority: authority.to_string(),
                path: format!("/{}", client.key.trim_end_matches('/')),
                root,
                location: url.to_string(),
            }
        }
    })
}

impl Reaching {
    /// A name for the store of its own, so that it is not confused with a store of another statement or with other
    /// options.
    fn name(&self, url: &str) -> Result<Url, Error> {
        let number = STORES.fetch_add(1, Ordering::Relaxed);
        // The part after the plus is the scheme that errors show.
        let scheme = self.root.split_once(":/").map_or(String::new(), |(s, _)| format!("+{s}"));
        let name = format!("table-{number:x}{scheme}://{}/", self.authority);
        let bad = |reason| Error::Storage(SourceError::BadUrl { url: shown(url), reason });
        Url::parse(&name).map_err(|e| bad(e.to_string()))
    }
}

/// Registers the store of a table with DataFusion.
fn registered(
    root: &Url,
    placed: Placed,
    environment: &Arc<RuntimeEnv>,
    places: &Arc<Places>,
) -> Registered {
    environment.register_object_store(root, Arc::new(placed.files.clone()));
    places.lock().insert(root.to_string(), Arc::new(placed));
    Registered { root: root.clone(), environment: environment.clone(), places: places.clone() }
}

/// Where the files of a table are, for another process that has to read them too. Its serialized form has the secrets of
/// its options: it is for processes of the same cluster.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct StoreRecipe {
    location: SourceLocation,
    format: TableFormat,
    is_directory: bool,
}

impl StoreRecipe {
    /// True for files that no other process has.
    pub(crate) fn is_in_memory(&self) -> bool {
        is_in_memory(&self.location.url)
    }

    /// Registers the store of the files under a new name. Its readers find the versions that `versions` expect, or fail.
    ///
    /// # Errors
    /// Those of the storage; `not_allowed` if the statement's rules do not allow it.
    pub(crate) fn register(
        &self,
        environment: &Arc<RuntimeEnv>,
        places: &Arc<Places>,
        stores: &Stores,
        versions: &Arc<Versions>,
    ) -> Result<(ObjectStoreUrl, Registered), Error> {
        let SourceLocation { url, options, rules } = &self.location;
        let fenced = rules.clone().map(|rules| stores.fenced(rules, None, &[]));
        let fenced = fenced.transpose().map_err(Error::Storage)?;
        let stores = fenced.as_ref().unwrap_or(stores);
        let ending = if self.is_directory { self.format.ending() } else { "" };
        let reaching = reaching(url, options, ending, environment, stores, versions)?;
        let name = reaching.name(url)?;
        let root = ObjectStoreUrl::parse(name.as_str())?;
        let placed = Placed { recipe: self.clone(), files: reaching.files };
        Ok((root, registered(&name, placed, environment, places)))
    }
}

/// A registered store of a table.
#[derive(Debug)]
pub(crate) struct Placed {
    /// How another process reaches the files.
    pub(crate) recipe: StoreRecipe,
    files: TableStore,
}

impl Placed {
    /// The versions of these files; `None` if one of them is not known yet.
    pub(crate) fn noted<'a>(
        &self,
        files: impl IntoIterator<Item = &'a Path>,
    ) -> Option<Vec<Noted>> {
        self.files.noted(files)
    }
}

/// The registered stores of a process, by the names that DataFusion has for them.
#[derive(Debug, Default)]
pub(crate) struct Places(Mutex<BTreeMap<String, Arc<Placed>>>);

impl Places {
    fn lock(&self) -> MutexGuard<'_, BTreeMap<String, Arc<Placed>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    #[cfg(test)]
    pub(crate) fn count(&self) -> usize {
        self.lock().len()
    }

    /// The store of that name.
    pub(crate) fn get(&self, name: &ObjectStoreUrl) -> Option<Arc<Placed>> {
        self.lock().get(name.as_str()).cloned()
    }
}

/// The store of a table that DataFusion knows, until this is dropped.
pub struct Registered {
    root: Url,
    environment: Arc<RuntimeEnv>,
    places: Arc<Places>,
}

impl Drop for Registered {
    fn drop(&mut self) {
        self.places.lock().remove(self.root.as_str());
        if let Err(e) = self.environment.deregister_object_store(&self.root) {
            tracing::warn!(error = %e, "the store of a table was not known");
        }
    }
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
