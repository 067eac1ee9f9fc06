//! Tables in `FROM`: Parquet, CSV, NDJSON and Arrow files, which DataFusion reads.
//!
//! What Tessera knows of storages holds for them too: paths start at the working directory, `AWS_*` variables and
//! `OPTIONS ('aws.endpoint' …)` say how a bucket is reached, and a file that is not there is told as for arrays.

use crate::error::Error;
use crate::session::Host;
use crate::session::failure::Failure;
use datafusion::datasource::TableProvider;
use datafusion::datasource::file_format::FileFormat;
use datafusion::datasource::file_format::arrow::ArrowFormat;
use datafusion::datasource::file_format::csv::CsvFormat;
use datafusion::datasource::file_format::json::JsonFormat;
use datafusion::datasource::file_format::parquet::ParquetFormat;
use datafusion::datasource::listing::{
    ListingOptions, ListingTable, ListingTableConfig, ListingTableUrl,
};
use datafusion::execution::SessionState;
use std::sync::Arc;
use std::time::Duration;
use tessera_exec::source::{Options, SourceError};
use tessera_frontend::RelationRef;
use tessera_frontend::ast::UrlKind;
use url::Url;

/// Most that reading the schema of a table may take.
const TIMEOUT: Duration = Duration::from_secs(60);

/// Formats of tables.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum TableFormat {
    Parquet,
    Csv,
    Json,
    Arrow,
}

impl TableFormat {
    /// The format after `STORED AS` or `read_`.
    pub(super) fn parse(name: &str) -> Option<Self> {
        Some(match name.to_ascii_lowercase().as_str() {
            "parquet" => Self::Parquet,
            "csv" => Self::Csv,
            "json" | "ndjson" => Self::Json,
            "arrow" => Self::Arrow,
            _ => return None,
        })
    }

    /// The format by the end of a URL; `None` for arrays.
    pub(super) fn of_url(url: &str) -> Option<Self> {
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
    pub(super) fn of(relation: &RelationRef) -> Option<Self> {
        let RelationRef::Url { url, options } = relation else { return None };
        match options.iter().find(|(key, _)| key == "format") {
            Some((_, format)) => Self::parse(format),
            None => Self::of_url(url),
        }
    }

    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Parquet => "Parquet",
            Self::Csv => "CSV",
            Self::Json => "NDJSON",
            Self::Arrow => "Arrow IPC",
        }
    }

    /// The ending of files in a directory.
    fn ending(self) -> &'static str {
        match self {
            Self::Parquet => ".parquet",
            Self::Csv => ".csv",
            Self::Json => ".json",
            Self::Arrow => ".arrow",
        }
    }
}

/// Opens a table: its files are found and its columns are known.
///
/// # Errors
/// `not_found`, those of the storage, `not_a_table` if the file has another format, `unknown_option`.
pub(super) async fn open(
    format: TableFormat,
    url: &str,
    options: &[(String, String)],
    state: &SessionState,
    host: &Host,
) -> Result<Arc<dyn TableProvider>, Error> {
    let (reading, storage) = reader(format, options)?;
    let place = place(url, &storage, state, host).await?;
    let ending = if place.is_collection() { format.ending() } else { "" };
    let listing = ListingOptions::new(reading).with_file_extension(ending);
    let failed = |e: datafusion::error::DataFusionError| {
        Error::stage(Failure::Table {
            url: shown(url),
            format: format.name(),
            reason: first_line(&e.strip_backtrace()),
        })
    };
    let schema = tokio::time::timeout(TIMEOUT, listing.infer_schema(state, &place))
        .await
        .map_err(|_| Error::Timeout { limit_s: TIMEOUT.as_secs() })?
        .map_err(failed)?;
    if schema.fields().is_empty() {
        return Err(Error::stage(Failure::Table {
            url: shown(url),
            format: format.name(),
            reason: "it has no columns".into(),
        }));
    }
    let config = ListingTableConfig::new(place).with_listing_options(listing).with_schema(schema);
    Ok(Arc::new(ListingTable::try_new(config).map_err(failed)?))
}

/// How the file is read, and how its storage is reached.
fn reader(
    format: TableFormat,
    options: &[(String, String)],
) -> Result<(Arc<dyn FileFormat>, Options), Error> {
    let mut rest = Vec::new();
    let mut csv = CsvFormat::default().with_has_header(true);
    let bad = |key: &str, reason: String| {
        Error::stage(SourceError::BadOption { key: key.to_string(), reason })
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
    let storage = Options::parse(rest).map_err(Error::stage)?;
    let reading: Arc<dyn FileFormat> = match format {
        TableFormat::Parquet => Arc::new(ParquetFormat::default().with_force_view_types(false)),
        TableFormat::Csv => Arc::new(csv),
        TableFormat::Json => Arc::new(JsonFormat::default()),
        TableFormat::Arrow => Arc::new(ArrowFormat),
    };
    Ok((reading, storage))
}

/// Where the files are, as DataFusion names it; its store is registered.
async fn place(
    url: &str,
    options: &Options,
    state: &SessionState,
    host: &Host,
) -> Result<ListingTableUrl, Error> {
    let bad = |reason: String| Error::stage(SourceError::BadUrl { url: shown(url), reason });
    let found = host.stores.exists(url, options).await.map_err(Error::stage)?;
    let Some(client) = host.stores.client_of(url, options).map_err(Error::stage)? else {
        let path = url.strip_prefix("file://").unwrap_or(url);
        return ListingTableUrl::parse(path).map_err(|e| bad(first_line(&e.strip_backtrace())));
    };
    let parsed = Url::parse(url).map_err(|e| bad(e.to_string()))?;
    let authority = parsed.authority().rsplit('@').next().unwrap_or_default().to_string();
    // A table with options of its own has a store of its own: it must not be taken for another one of that bucket.
    let scheme = match options.is_plain() {
        true => parsed.scheme().to_string(),
        false => {
            format!("{}-{:x}", parsed.scheme(), Arc::as_ptr(&client.store).cast::<()>().addr())
        }
    };
    let mut root =
        Url::parse(&format!("{scheme}://{authority}/")).map_err(|e| bad(e.to_string()))?;
    state.runtime_env().register_object_store(&root, client.store);
    let slash = if found.is_directory { "/" } else { "" };
    root.set_path(&format!("/{}{slash}", client.key.trim_end_matches('/')));
    ListingTableUrl::try_new(root, None).map_err(|e| bad(first_line(&e.strip_backtrace())))
}

/// A URL without what may be secret.
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
