//! Errors of opening and reading stored arrays.

use crate::source::location;
use tessera_planner::error::Class;
use thiserror::Error;

/// An error of opening or reading stored arrays.
///
/// Texts name the array, the chunk and the object; they never hold credentials or bodies of a server's responses (an
/// S3 server repeats the access key in some).
#[derive(Debug, Clone, PartialEq, Error)]
#[non_exhaustive]
#[expect(missing_docs, reason = "messages document variants and fields")]
pub enum SourceError {
    #[error("`{url}` is not a valid location: {reason}")]
    BadUrl {
        /// The URL, without credentials.
        url: String,
        reason: String,
    },
    #[error("reading from {scheme}:// is not supported yet")]
    Scheme { scheme: String },
    #[error("option `{key}`: {reason}")]
    BadOption {
        key: String,
        /// The reason; never the value of a secret.
        reason: String,
    },
    #[error("{}", absent(what))]
    NotFound { what: String },
    /// A file or store without that group.
    #[error("`{what}` has no group `{group}`")]
    NoGroup { what: String, group: String, groups: Option<Vec<String>> },
    #[error("the bucket of `{what}` does not exist")]
    NoBucket { what: String },
    /// A bucket of another region than the requested one.
    #[error("the bucket of `{what}` is in region {region}")]
    Region { what: String, region: String },
    /// The store rejects requests because this machine's clock is wrong.
    #[error(
        "the storage of `{what}` refused the request: this machine's clock differs too much from its own ({code})"
    )]
    Clock { what: String, code: String },
    /// The store, or the operating system, denied access.
    #[error("access to `{what}` denied: {reason}")]
    PermissionDenied { what: String, reason: String },
    /// A location that the server's operator does not let statements access.
    #[error("statements may not {} `{what}` here", if *.writes { "write" } else { "read" })]
    NotAllowed {
        what: String,
        /// True for a write.
        writes: bool,
        allowed: Vec<String>,
    },
    #[error("the storage of `{what}` cannot be reached: {reason}")]
    Unreachable { what: String, reason: String },
    /// No response in time.
    #[error("`{what}` did not respond within {seconds} s")]
    Timeout { what: String, seconds: u64 },
    /// Any other failure of the storage.
    #[error("`{what}` cannot be read: {reason}")]
    Storage { what: String, reason: String },
    /// The storage refused the request; a retry does not help.
    #[error("the storage of `{what}` refused the request: {reason}")]
    Refused { what: String, reason: String },
    #[error("the server of `{what}` ignores range requests: it sends whole files only")]
    NoRanges { what: String },
    /// The object changed since the statement read it first, or opened it.
    #[error("`{what}` changed while the statement ran")]
    Changed { what: String },
    /// The location exists but holds no array.
    #[error(
        "`{what}` is not of a format that is read: Zarr, NumPy, NetCDF, HDF5, GeoTIFF, GRIB, safetensors, references"
    )]
    NotAnArray { what: String },
    #[error("the archive `{what}` has no Zarr store at its root")]
    NoStore { what: String, directories: Vec<String> },
    /// The location is of another format than the one requested.
    #[error("`{what}` is not {format}")]
    OtherFormat { what: String, format: String },
    /// Metadata that contradicts itself or its format.
    #[error("metadata of array `{array}` in `{path}`: {reason}")]
    Metadata { array: String, path: String, reason: String },
    #[error("dimension `{dim}` has length {a_len} in `{a}` and {b_len} in `{b}`")]
    DimConflict { dim: String, a: String, a_len: u64, b: String, b_len: u64 },
    /// Files that are not one dataset.
    #[error("the files do not form one dataset: {reason}")]
    Combine {
        /// The reason, which names the files.
        reason: String,
    },
    #[error(
        "the files do not form one dataset: coordinate `{coord}` {a_label} in `{a}` and {b_label} in `{b}`"
    )]
    LabelsDiffer { coord: String, a: String, a_label: String, b: String, b_label: String },
    #[error("`{what}` are more than {limit} files")]
    TooManyFiles { what: String, limit: usize },
    /// A time axis in units or a calendar that CF does not know.
    #[error("time units of `{array}`: {reason}")]
    TimeUnits { array: String, reason: String },
    /// A number that is not a valid time of its time axis.
    #[error("time `{array}`: {reason}")]
    TimeValue { array: String, reason: String },
    /// A coordinate whose values are readable but cannot be labels.
    #[error("coordinate `{array}`: {reason}")]
    NoLabels { array: String, reason: String },
    #[error("attribute `{attribute}` of `{array}`: {reason}")]
    Attribute { array: String, attribute: String, reason: String },
    /// An element type that Tessera does not support (yet).
    #[error("array `{array}`: dtype {dtype} is not supported yet")]
    UnsupportedDType { array: String, dtype: String },
    /// A codec, filter, grid or key encoding that cannot be read.
    #[error("array `{array}`: {what} is not supported")]
    Unsupported { array: String, what: String },
    #[error("array `{array}`: a chunk of {chunk} cells has {bytes} bytes, the limit is {limit}")]
    ChunkTooLarge { array: String, chunk: String, bytes: String, limit: u64 },
    #[error("`{what}` has {bytes} bytes, the limit is {limit}")]
    ObjectTooLarge { what: String, bytes: u64, limit: u64 },
    #[error("chunk {chunk} of array `{array}` in `{path}` is damaged: {reason}")]
    Chunk { array: String, chunk: String, path: String, reason: String },
    #[error("`{path}` is not a valid {format} file: at byte {at}, {reason}")]
    BadFile { path: String, format: String, at: u64, reason: String },
    /// A feature of a file's format that is not supported.
    #[error("`{path}` cannot be read: {what} is not supported")]
    UnsupportedFile { path: String, what: String },
    /// A file of a table that its format's reader cannot read.
    #[error("`{path}` cannot be read: {reason}")]
    Damaged { path: String, reason: String },
    /// A row of a file of text that does not fit its columns.
    #[error("`{path}`, {place}: {reason}")]
    BadRow { path: String, place: String, reason: String, hint: Option<String> },
    /// A file of a warehouse that is corrupt or missing.
    #[error("`{path}` is damaged: expected {expected}, found {found}")]
    Corrupt { path: String, expected: String, found: String },
    /// An internal error: a caller's region or buffer does not fit the array.
    #[error("reading array `{array}`: {reason}")]
    Internal { array: String, reason: String },
}

/// The most groups that a hint lists.
const GROUPS_SHOWN: usize = 10;

fn absent(what: &str) -> String {
    match what.contains('*') {
        true => format!("no file matches `{what}`"),
        false => format!("`{what}` does not exist"),
    }
}

impl SourceError {
    /// Stable name for programs.
    pub fn code(&self) -> &'static str {
        use SourceError::*;
        match self {
            BadUrl { .. } => "bad_url",
            Scheme { .. } | Unsupported { .. } | UnsupportedFile { .. } | NoRanges { .. } => {
                "unsupported"
            }
            UnsupportedDType { .. } => "unsupported_dtype",
            BadOption { .. } => "unknown_option",
            NotFound { .. } | NoGroup { .. } | NoBucket { .. } => "not_found",
            PermissionDenied { .. } => "permission_denied",
            NotAllowed { .. } => "not_allowed",
            Unreachable { .. } => "unreachable",
            Timeout { .. } => "storage_timeout",
            Storage { .. } | Refused { .. } | Region { .. } | Clock { .. } => "storage_error",
            Changed { .. } => "source_changed",
            NotAnArray { .. } | NoStore { .. } | OtherFormat { .. } => "not_an_array",
            Metadata { .. } | DimConflict { .. } | Attribute { .. } => "invalid_metadata",
            Combine { .. } | LabelsDiffer { .. } => "not_one_dataset",
            TimeUnits { .. } => "invalid_metadata",
            TimeValue { .. } => "invalid_time",
            NoLabels { .. } => "no_labels",
            ChunkTooLarge { .. } | ObjectTooLarge { .. } | TooManyFiles { .. } => "too_large",
            Chunk { .. } => "corrupt_chunk",
            Damaged { .. } | BadFile { .. } => "corrupt_file",
            BadRow { .. } => "bad_row",
            Corrupt { .. } => "corrupt",
            Internal { .. } => "internal",
        }
    }

    /// Class of the error: the party that has to act.
    pub fn class(&self) -> Class {
        use SourceError::*;
        match self {
            Unreachable { .. } | Timeout { .. } | Storage { .. } | Changed { .. } => Class::Retry,
            ChunkTooLarge { .. } | ObjectTooLarge { .. } | TooManyFiles { .. } => Class::Limit,
            Corrupt { .. } | Internal { .. } => Class::Internal,
            _ => Class::User,
        }
    }

    /// The remedy, if one is known.
    pub fn hint(&self) -> Option<String> {
        use SourceError::*;
        if let NotAllowed { writes, allowed, .. } = self {
            let (flag, verb) = if *writes { ("write", "written") } else { ("read", "read") };
            let here = match allowed.is_empty() {
                true => "nothing outside of the warehouse".to_string(),
                false => allowed.join(", "),
            };
            return Some(format!(
                "may be {verb}: {here}; the server's operator can allow more with \
                 `tessera serve --allow-{flag} PATH`"
            ));
        }
        if let BadRow { hint, .. } = self {
            return hint.clone();
        }
        if let NoGroup { groups, .. } = self {
            return Some(match groups.as_deref() {
                None => "`DESCRIBE 'url'` lists the groups".to_string(),
                Some([]) => "it has no groups: leave `#…` out".to_string(),
                Some(known) => {
                    let shown = known.iter().take(GROUPS_SHOWN);
                    let shown: Vec<String> =
                        shown.map(|name| format!("`{}`", location::escaped(name))).collect();
                    let more = if known.len() > GROUPS_SHOWN { ", …" } else { "" };
                    format!("it has {}{more}", shown.join(", "))
                }
            });
        }
        if let NoStore { what, directories } = self {
            let first = directories.first()?;
            let group = location::escaped(first);
            return Some(format!("if its directory `{first}` is one, write '{what}#{group}'"));
        }
        if let Region { region, .. } = self {
            return Some(format!("set AWS_REGION={region}, or OPTIONS ('aws.region' '{region}')"));
        }
        let text = match self {
            Clock { .. } => "set the clock of this machine",
            Scheme { .. } => {
                "local paths, file://, s3://, gs://, az://, abfss://, http(s):// and memory:// are read"
            }
            NotFound { what } if what.starts_with("memory://") => {
                "memory:// is the memory of one process: what another process wrote is not in it"
            }
            LabelsDiffer { .. } => {
                "`tolerance => 1e-6` takes labels that differ by no more as the same; \
                 `concat => 'dim'` joins the files along another dimension"
            }
            OtherFormat { .. } => "`FROM 'url'` finds the format by itself",
            NotFound { .. } => {
                "relative paths start at the working directory of the process that runs the query"
            }
            NoRanges { .. } => {
                "copy the file to a disk or an object store, or use a server that supports ranges"
            }
            NoBucket { what } | PermissionDenied { what, .. } | Unreachable { what, .. } => {
                return self.store_hint(what).map(String::from);
            }
            TimeValue { reason, .. } if reason.contains("microsecond") => {
                "times are stored in microseconds: store it as datetime64[us], or as integers"
            }
            UnsupportedDType { dtype, .. }
                if dtype.contains("complex") || dtype.ends_with("c8") || dtype.ends_with("c16") =>
            {
                "store the real and the imaginary part as two arrays"
            }
            UnsupportedDType { dtype, .. } if dtype == "structured" || dtype.starts_with("[[") => {
                "store each field as an array of its own"
            }
            UnsupportedDType { dtype, .. }
                if dtype.contains("datetime64") || dtype.contains("M8") =>
            {
                "of these types the units Y, M, W, D, h, m, s, ms, us and ns are read: store it as datetime64[us]"
            }
            UnsupportedDType { dtype, .. }
                if dtype.contains("timedelta64") || dtype.contains("m8") =>
            {
                "of these types the units W, D, h, m, s, ms, us and ns are read: store it as integers"
            }
            TimeUnits { .. } | Attribute { .. } | TimeValue { .. } => {
                "`read_zarr('url', decode_cf => false)` reads the numbers as they are stored"
            }
            Unsupported { what, .. } if what.starts_with("codec ") => {
                "store the array with another codec, such as zstd or blosc"
            }
            Changed { .. } => "run the statement again",
            ChunkTooLarge { .. } => "store the array in smaller chunks",
            Chunk { .. } | Damaged { .. } | BadFile { .. } => {
                "the stored data is damaged or was written by an incompatible writer"
            }
            Corrupt { .. } => {
                "restore the file, or create the tensor again; `tessera check` lists all damaged files of a warehouse"
            }
            Internal { .. } => "this is a fault in Tessera; please report the query",
            _ => return None,
        };
        Some(text.into())
    }

    /// The remedy for a store that denies access, is unreachable, or does not have the bucket.
    fn store_hint(&self, what: &str) -> Option<&'static str> {
        use SourceError::*;
        let scheme = what.split_once("://").map_or("", |(scheme, _)| scheme);
        Some(match (self, scheme) {
            (Unreachable { reason, .. }, _) if reason.contains("TLS certificate") => {
                "set SSL_CERT_FILE to a file with the certificate of the authority that signed it"
            }
            (NoBucket { .. }, "s3") => "check the bucket's name, AWS_REGION and AWS_ENDPOINT_URL",
            (NoBucket { .. }, "gs") => "check the bucket's name",
            (NoBucket { .. }, "az" | "abfss") => {
                "check the names of the container and of the storage account"
            }
            (PermissionDenied { .. }, "s3") => {
                "set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or OPTIONS ('aws.access_key_id' …); without them \
                 the bucket is read anonymously"
            }
            (PermissionDenied { .. }, "gs") => {
                "set GOOGLE_APPLICATION_CREDENTIALS, or OPTIONS ('gcs.service_account_path' …); without credentials the \
                 bucket is read anonymously, and those of the environment are not sent to an endpoint in OPTIONS"
            }
            (PermissionDenied { .. }, "az" | "abfss") => {
                "set AZURE_STORAGE_ACCOUNT_NAME and AZURE_STORAGE_ACCOUNT_KEY, or OPTIONS ('azure.account' …, \
                 'azure.account_key' …); without credentials the container is read anonymously, and those of the \
                 environment are not sent to an endpoint in OPTIONS"
            }
            (Unreachable { .. }, "s3") => {
                "check AWS_ENDPOINT_URL and AWS_REGION; an http:// endpoint needs AWS_ALLOW_HTTP=true"
            }
            (Unreachable { .. }, "gs") => {
                "check GOOGLE_BASE_URL, if it is set; an http:// endpoint needs GOOGLE_ALLOW_HTTP=true"
            }
            (Unreachable { .. }, "az" | "abfss") => {
                "check the name of the storage account, and AZURE_STORAGE_ENDPOINT, if it is set; an http:// endpoint \
                 needs AZURE_ALLOW_HTTP=true"
            }
            _ => return None,
        })
    }
}
