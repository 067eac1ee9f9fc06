//! Errors of writing to a store.

use crate::source::SourceError;
use std::io;
use tessera_planner::error::Class;
use thiserror::Error;

/// An error of writing. Texts name the object and never hold credentials.
#[derive(Debug, Clone, PartialEq, Error)]
#[non_exhaustive]
#[expect(missing_docs, reason = "messages document variants and fields")]
pub enum SinkError {
    #[error("`{what}` already exists")]
    Exists { what: String },
    #[error("another statement appends to `{what}`")]
    Busy { what: String },
    /// The stored version of a document differs from the expected one.
    #[error("`{what}` was modified by another writer")]
    Changed { what: String },
    /// Overwriting would destroy something other than a previous output.
    #[error("refusing to overwrite `{what}`: it is {is}")]
    Foreign { what: String, is: &'static str },
    /// No room on the device, or a quota of the file system or the bucket.
    #[error("no space left while writing `{what}` (after {written_bytes} bytes): {reason}")]
    NoSpace { what: String, written_bytes: u64, reason: String },
    /// The operating system or the store denied access.
    #[error("not permitted to write `{what}`: {reason}")]
    PermissionDenied { what: String, reason: String },
    #[error("writing to {scheme} is not supported")]
    ReadOnly { scheme: String },
    /// Any other failure of the storage.
    #[error("`{what}` cannot be written: {reason}")]
    Storage { what: String, reason: String },
    /// No connection, no response, a refused login, an invalid URL.
    #[error(transparent)]
    Source(SourceError),
    /// An invalid chunk, shard, codec or format.
    #[error("`{option}`: {reason}")]
    Option { option: &'static str, reason: String, hint: Option<String> },
    /// Names or labels that cannot be in one dataset.
    #[error("{reason}")]
    Names { reason: String, hint: String },
    #[error("{format} cannot hold `{name}`: {reason}")]
    Format { format: &'static str, name: String, reason: String, hint: String },
    /// The buffers for encoding do not fit the memory limit.
    #[error(
        "writing chunks of {chunk_bytes} bytes needs {needed_bytes} bytes of memory; {free_bytes} of {limit_bytes} are free"
    )]
    Memory { chunk_bytes: u64, needed_bytes: u64, free_bytes: u64, limit_bytes: u64 },
    /// The writer was aborted.
    #[error("writing was cancelled")]
    Cancelled,
    /// An internal error.
    #[error("writing `{what}`: {reason}")]
    Internal { what: String, reason: String },
}

impl SinkError {
    /// Stable name for programs.
    pub fn code(&self) -> &'static str {
        match self {
            SinkError::Exists { .. } | SinkError::Foreign { .. } => "already_exists",
            SinkError::Changed { .. } => "document_changed",
            SinkError::Busy { .. } => "busy",
            SinkError::NoSpace { .. } => "no_space",
            SinkError::PermissionDenied { .. } => "permission_denied",
            SinkError::ReadOnly { .. } => "unsupported",
            SinkError::Storage { .. } => "storage_error",
            SinkError::Source(e) => e.code(),
            SinkError::Option { .. } => "invalid_option",
            SinkError::Names { .. } => "name_conflict",
            SinkError::Format { .. } => "format",
            SinkError::Memory { .. } => "memory_exceeded",
            SinkError::Cancelled => "cancelled",
            SinkError::Internal { .. } => "internal",
        }
    }

    /// Class of the error: the party that has to act.
    pub fn class(&self) -> Class {
        match self {
            SinkError::Source(e) => e.class(),
            SinkError::NoSpace { .. } | SinkError::Memory { .. } => Class::Limit,
            SinkError::Storage { .. } | SinkError::Changed { .. } | SinkError::Busy { .. } => {
                Class::Retry
            }
            SinkError::Internal { .. } => Class::Internal,
            _ => Class::User,
        }
    }

    /// True if the refused memory is available once nothing else uses it.
    pub fn may_fit(&self) -> bool {
        matches!(self, SinkError::Memory { needed_bytes, limit_bytes, .. } if needed_bytes <= limit_bytes)
    }

    /// The remedy, if one is known.
    pub fn hint(&self) -> Option<String> {
        match self {
            SinkError::Exists { .. } => {
                Some("write OPTIONS (overwrite true), or another name".into())
            }
            SinkError::Foreign { .. } => Some("remove it yourself, or write another name".into()),
            SinkError::NoSpace { .. } => {
                Some("nothing was left behind; make room, or write elsewhere".into())
            }
            SinkError::ReadOnly { .. } => {
                Some("write to a local path, or to s3://, gs://, az://, abfss:// or memory://".into())
            }
            SinkError::Source(SourceError::PermissionDenied { what, .. })
                if what.starts_with("s3://") =>
            {
                Some("set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or OPTIONS ('aws.access_key_id' …)".into())
            }
            SinkError::Source(e) => e.hint(),
            SinkError::Option { hint, .. } => hint.clone(),
            SinkError::Names { hint, .. } | SinkError::Format { hint, .. } => Some(hint.clone()),
            SinkError::Memory { .. } => {
                Some("write smaller chunks (OPTIONS (chunks '[…]')), or raise --memory-limit".into())
            }
            SinkError::Internal { .. } => {
                Some("this is a fault in Tessera; please report the query".into())
            }
            SinkError::Changed { .. } | SinkError::Busy { .. } => Some("try again".into()),
            SinkError::PermissionDenied { .. }
            | SinkError::Storage { .. }
            | SinkError::Cancelled => None,
        }
    }

    /// Adds the number of bytes written.
    pub(crate) fn after(self, bytes: u64) -> SinkError {
        match self {
            SinkError::NoSpace { what, reason, .. } => {
                SinkError::NoSpace { what, written_bytes: bytes, reason }
            }
            other => other,
        }
    }

    /// Converts an error of the operating system on `what`.
    pub(crate) fn io(what: impl Into<String>, e: &io::Error) -> SinkError {
        let what = what.into();
        match e.kind() {
            io::ErrorKind::StorageFull
            | io::ErrorKind::QuotaExceeded
            | io::ErrorKind::FileTooLarge => {
                SinkError::NoSpace { what, written_bytes: 0, reason: e.to_string() }
            }
            io::ErrorKind::PermissionDenied => {
                SinkError::PermissionDenied { what, reason: "the directory's permissions".into() }
            }
            io::ErrorKind::ReadOnlyFilesystem => {
                SinkError::PermissionDenied { what, reason: "the file system is read-only".into() }
            }
            io::ErrorKind::AlreadyExists | io::ErrorKind::DirectoryNotEmpty => {
                SinkError::Exists { what }
            }
            _ => SinkError::Storage { what, reason: e.to_string() },
        }
    }
}

impl From<SourceError> for SinkError {
    fn from(e: SourceError) -> Self {
        match e {
            SourceError::Storage { what, reason } => SinkError::Storage { what, reason },
            SourceError::Scheme { scheme } => {
                SinkError::ReadOnly { scheme: format!("{scheme}://") }
            }
            other => SinkError::Source(other),
        }
    }
}
