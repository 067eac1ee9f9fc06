//! Formats of answers: one module for each.
//!
//! 1. [`Format`] is chosen by name, by file name or by an `Accept` header.
//! 2. A [`Writer`] takes the answers of a script. Text formats are written at once, one document or section for each;
//!    the others hold one result, so they are written by [`Writer::finish`].

mod arrow_ipc;
mod boxes;
mod cell;
mod columns;
mod csv;
mod csv_options;
mod digits;
mod fill;
mod json;
mod line;
mod long;
pub mod native;
mod netcdf;
pub mod npy;
mod npz;
mod numpy;
mod parquet;
mod safetensors;
mod table;
mod tiff;
mod tiles;
mod turns;
mod writer;

pub use self::parquet::ParquetOptions;
pub use columns::SURFACE_KEY;
pub use csv_options::CsvOptions;
pub use numpy::array_to_string;
pub use safetensors::Narrow;
pub use tiff::Crs;
pub use tiles::row_bytes;
pub use writer::{Options, Writer, record_batches};

use crate::answer::Windows;
use crate::error::Error;
use std::path::Path;

/// An output format.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Format {
    /// For people: NumPy's look for tensors, boxes for rows.
    Table,
    /// One JSON document for each statement.
    Json,
    /// One JSON object for each row; a tensor is long, a row for each cell.
    Ndjson,
    /// One line for each row; a tensor is long: coordinates, then the value.
    Csv,
    /// Arrow IPC; a tensor is long. A stream, or the file format for `.arrow` and `.feather` files.
    Arrow,
    /// Parquet.
    Parquet,
    /// One NumPy array.
    Npy,
    /// A zip of NumPy arrays.
    Npz,
    /// NetCDF's classic format.
    NetCdf,
    /// A cloud-optimized GeoTIFF.
    Tiff,
    /// Safetensors.
    Safetensors,
}

const ALL: [(Format, &str, &str); 11] = [
    (Format::Table, "table", "text/plain; charset=utf-8"),
    (Format::Json, "json", "application/json"),
    (Format::Ndjson, "ndjson", "application/x-ndjson"),
    (Format::Csv, "csv", "text/csv; charset=utf-8"),
    (Format::Arrow, "arrow", "application/vnd.apache.arrow.stream"),
    (Format::Parquet, "parquet", "application/vnd.apache.parquet"),
    (Format::Npy, "npy", "application/x-npy"),
    (Format::Npz, "npz", "application/x-npz"),
    (Format::NetCdf, "netcdf", "application/x-netcdf"),
    (Format::Tiff, "tiff", "image/tiff"),
    (Format::Safetensors, "safetensors", "application/x-safetensors"),
];

impl Format {
    /// Parses a name.
    pub fn parse(name: &str) -> Result<Self, Error> {
        ALL.iter()
            .find(|f| f.1.eq_ignore_ascii_case(name))
            .map(|f| f.0)
            .ok_or_else(|| Error::UnknownFormat { name: name.into() })
    }

    /// All names, for hints.
    pub fn names() -> String {
        ALL.map(|f| f.1).join(", ")
    }

    /// The name in URLs and on the command line.
    pub fn name(self) -> &'static str {
        ALL.iter().find(|f| f.0 == self).map_or("", |f| f.1)
    }

    /// The media type of HTTP responses.
    pub fn content_type(self) -> &'static str {
        ALL.iter().find(|f| f.0 == self).map_or("", |f| f.2)
    }

    /// The format by a file's extension. A `.zarr` is not a stream: COPY writes it.
    pub fn from_path(path: &Path) -> Result<Self, Error> {
        let extension =
            path.extension().and_then(|e| e.to_str()).unwrap_or_default().to_ascii_lowercase();
        match extension.as_str() {
            "zarr" => Err(Error::Usage {
                reason: "a Zarr store cannot be streamed".into(),
                hint: Some("write COPY (…) TO 'url' STORED AS ZARR".into()),
            }),
            "feather" | "ipc" | "arrows" => Ok(Format::Arrow),
            "jsonl" => Ok(Format::Ndjson),
            "txt" => Ok(Format::Table),
            "nc" => Ok(Format::NetCdf),
            "tif" => Ok(Format::Tiff),
            other => Format::parse(other).map_err(|_| Error::Usage {
                reason: format!("cannot infer a format from the name `{}`", path.display()),
                hint: Some(format!("add `--format`; formats are {}", Format::names())),
            }),
        }
    }

    /// Content negotiation: the first supported format of an `Accept` header, by quality and then by order; `None` if
    /// the header accepts any (`*/*`, or is empty).
    pub fn from_accept(accept: &str) -> Result<Option<Self>, Error> {
        let mut wanted: Vec<(f32, &str)> = Vec::new();
        for part in accept.split(',') {
            let mut fields = part.split(';').map(str::trim);
            let kind = fields.next().unwrap_or_default();
            let q = fields.find_map(|f| f.strip_prefix("q=")?.parse::<f32>().ok()).unwrap_or(1.0);
            if !kind.is_empty() && q > 0.0 {
                wanted.push((q, kind));
            }
        }
        wanted.sort_by(|a, b| b.0.total_cmp(&a.0));
        if wanted.is_empty() {
            return Ok(None);
        }
        for (_, kind) in &wanted {
            if matches!(*kind, "*/*" | "application/*") {
                return Ok(None);
            }
            if *kind == "text/*" {
                return Ok(Some(Format::Csv));
            }
            let same = |f: &&(Format, &str, &str)| {
                f.2.split(';').next().is_some_and(|t| t.eq_ignore_ascii_case(kind))
            };
            if let Some(f) = ALL.iter().find(same) {
                return Ok(Some(f.0));
            }
        }
        Err(Error::NotAcceptable { accept: accept.into() })
    }

    /// True for the formats that hold one result; text formats take several.
    pub fn holds_one(self) -> bool {
        !self.is_text()
    }

    /// True for the formats that hold tensors, and no rows.
    pub fn holds_tensors(self) -> bool {
        use Format::*;
        matches!(self, Npy | Npz | NetCdf | Tiff | Safetensors)
    }

    /// Memory that writing a result needs beside small windows of its cells.
    pub fn working_bytes(self, tensors: &[&dyn Windows]) -> u64 {
        match self {
            Format::Tiff => tiff::working_bytes(tensors),
            _ => 0,
        }
    }

    /// True if the bytes may go to a terminal.
    pub fn is_text(self) -> bool {
        matches!(self, Format::Table | Format::Json | Format::Ndjson | Format::Csv)
    }
}

#[cfg(test)]
mod tests;
