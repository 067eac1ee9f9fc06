//! Options of the readers of tables.

use super::TableFormat;
use super::csv_columns::Layout;
use crate::error::Error;
use crate::rows::{IpcFormat, JsonFiles, Marks, Nulls};
use datafusion::datasource::file_format::FileFormat;
use datafusion::datasource::file_format::csv::CsvFormat;
use datafusion::datasource::file_format::parquet::ParquetFormat;
use std::sync::Arc;
use tessera_frontend::ast::UrlKind;
use tessera_storage::source::{Options, SourceError};

/// Rows of a file of text that determine the types of its columns, unless `sample_size` is set.
const SAMPLE_ROWS: usize = 20_480;

fn bad(key: &str, reason: String) -> Error {
    Error::Storage(SourceError::BadOption { key: key.to_string(), reason })
}

fn flag(key: &str, value: &str) -> Result<bool, Error> {
    value.parse().map_err(|_| bad(key, format!("`{value}` is neither true nor false")))
}

/// An option that is one byte.
fn character(key: &str, value: &str) -> Result<u8, Error> {
    match value.as_bytes() {
        [one] => Ok(*one),
        _ if value == "\\t" => Ok(b'\t'),
        _ => Err(bad(key, format!("`{value}` is not one character"))),
    }
}

/// A number of rows; `usize::MAX` for all.
fn rows(key: &str, value: &str) -> Result<usize, Error> {
    match value.parse::<i64>() {
        Ok(-1) => Ok(usize::MAX),
        Ok(rows) if rows > 0 => Ok(usize::try_from(rows).unwrap_or(usize::MAX)),
        _ => Err(bad(key, format!("`{value}` is neither -1 nor a number of rows"))),
    }
}

/// The options of a format, as messages list them.
fn known_of(format: TableFormat) -> &'static str {
    match format {
        TableFormat::Csv => {
            "header, delimiter, quote, escape, comment, nullstr, sample_size, all_varchar, aws.…, gcs.… and azure.…"
        }
        TableFormat::Json => "sample_size, aws.…, gcs.… and azure.…",
        TableFormat::Parquet | TableFormat::Arrow => "aws.…, gcs.… and azure.…",
    }
}

pub(super) struct Reading {
    pub(super) format: Arc<dyn FileFormat>,
    pub(super) storage: Options,
    /// The texts of CSV files that are NULL.
    pub(super) nulls: Nulls,
    /// The layout from which the columns of CSV files are inferred; `None` if DataFusion infers them.
    pub(super) csv: Option<Layout>,
}

/// The reader of the file format, and the options of its storage.
pub(super) fn reader(
    format: TableFormat,
    url: &str,
    options: &[(String, String)],
    batch_bytes: u64,
) -> Result<Reading, Error> {
    let mut rest = Vec::new();
    let mut csv = CsvFormat::default().with_has_header(true).with_schema_infer_max_rec(SAMPLE_ROWS);
    let (mut has_header, mut sample_rows, mut nulls) = (true, SAMPLE_ROWS, Vec::new());
    if UrlKind::ending(url) == "tsv" {
        csv = csv.with_delimiter(b'\t');
    }
    for (key, value) in options {
        let key = key.as_str();
        match (format, key.to_ascii_lowercase().as_str()) {
            (_, "format") => {}
            (TableFormat::Csv, "header" | "has_header") => {
                has_header = flag(key, value)?;
                csv = csv.with_has_header(has_header);
            }
            (TableFormat::Csv, "delimiter" | "sep" | "delim") => {
                csv = csv.with_delimiter(character(key, value)?);
            }
            (TableFormat::Csv, "quote") => csv = csv.with_quote(character(key, value)?),
            (TableFormat::Csv, "escape") => csv = csv.with_escape(Some(character(key, value)?)),
            (TableFormat::Csv, "comment") => csv = csv.with_comment(Some(character(key, value)?)),
            // One of several options for each text of a list.
            (TableFormat::Csv, "nullstr") => nulls.push(value.clone()),
            (TableFormat::Csv, "sample_size") => {
                sample_rows = rows(key, value)?;
                csv = csv.with_schema_infer_max_rec(sample_rows);
            }
            (TableFormat::Json, "sample_size") => sample_rows = rows(key, value)?,
            // Without a look at rows the columns are texts.
            (TableFormat::Csv, "all_varchar") => {
                if flag(key, value)? {
                    sample_rows = 0;
                    csv = csv.with_schema_infer_max_rec(0);
                }
            }
            (_, key) if !Options::is_of_store(key) => {
                let known = known_of(format);
                return Err(bad(key, format!("unknown option; known are {known}")));
            }
            _ => rest.push((key, value.as_str())),
        }
    }
    let storage = Options::parse(rest).map_err(Error::Storage)?;
    let nulls = Nulls::new(nulls).map_err(|reason| bad("nullstr", reason))?;
    if let Some(regex) = nulls.regex() {
        csv = csv.with_null_regex(Some(regex.as_str().to_string()));
    }
    let marks = Marks { delimiter: csv.delimiter(), quote: csv.quote() };
    let is_plain = csv.options().escape.is_none() && csv.options().comment.is_none();
    let own = (format == TableFormat::Csv && is_plain && sample_rows > 0).then_some(Layout {
        marks,
        has_header,
        sample_rows,
        nulls: nulls.clone(),
    });
    let format: Arc<dyn FileFormat> = match format {
        TableFormat::Parquet => Arc::new(ParquetFormat::default().with_force_view_types(false)),
        TableFormat::Csv => Arc::new(csv),
        TableFormat::Json => Arc::new(JsonFiles::new(sample_rows, batch_bytes)),
        TableFormat::Arrow => Arc::new(IpcFormat::new(batch_bytes)),
    };
    Ok(Reading { format, storage, nulls, csv: own })
}
