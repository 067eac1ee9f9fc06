//! The error type that leaves Tessera: on a terminal, as an exit status, as an HTTP body.

mod render;

pub use tessera_frontend::Position;
pub use tessera_planner::error::Class;

use std::error::Error as StdError;
use std::fmt;
use tessera_planner::error::causes;

/// The report of an error of any stage. Each crate implements it for its error, so that the type survives inside
/// [`Error::Stage`].
pub trait Report: StdError + Send + Sync + 'static {
    /// A short, stable, machine-readable name.
    fn code(&self) -> &str;
    /// The party that has to act.
    fn class(&self) -> Class;
    /// How to fix it, if known.
    fn hint(&self) -> Option<String> {
        None
    }
    /// The place in the script, if the error has one.
    fn position(&self) -> Option<Position> {
        None
    }
    /// True if memory was refused that would be available if no other statement held any.
    fn may_fit(&self) -> bool {
        false
    }
    /// URL of the server to ask instead, if it is known.
    fn server(&self) -> Option<&str> {
        None
    }
}

/// Forwards the report of an error of another crate to its own methods.
macro_rules! reports {
    ($($error:ty $(, $method:ident: $type:ty)?;)*) => {
        $(impl Report for $error {
            fn code(&self) -> &str {
                self.code()
            }
            fn class(&self) -> Class {
                self.class()
            }
            fn hint(&self) -> Option<String> {
                self.hint()
            }
            $(fn $method(&self) -> $type {
                self.$method()
            })?
        })*
    };
}

reports! {
    tessera_planner::error::Error;
    tessera_frontend::Error, position: Option<Position>;
    tessera_exec::error::Error, may_fit: bool;
    tessera_storage::source::SourceError;
    tessera_storage::sink::SinkError, may_fit: bool;
}

/// An error of a stage (frontend, planner, exec), with its type. Its text and its source are the inner error's.
#[derive(Debug)]
pub struct Stage(pub Box<dyn Report>);

impl fmt::Display for Stage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl StdError for Stage {
    fn source(&self) -> Option<&(dyn StdError + 'static)> {
        self.0.source()
    }
}

/// Any error that Tessera reports.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
#[expect(missing_docs, reason = "messages document variants and fields")]
pub enum Error {
    /// An error of a stage.
    #[error(transparent)]
    Stage(#[from] Stage),
    /// The query was cancelled: by Ctrl-C, by a client that disconnected, by `CANCEL QUERY`.
    #[error("the query was cancelled")]
    Cancelled,
    /// A construct that a later version will support.
    #[error("{construct} is not supported yet")]
    Unsupported {
        /// The construct in the user's words.
        construct: String,
        hint: Option<String>,
    },
    #[error("setting `{key}`: {reason} (set by {origin})")]
    Config { key: String, origin: String, reason: String, hint: Option<String> },
    /// An invalid command line.
    #[error("{reason}")]
    Usage { reason: String, hint: Option<String> },
    /// A file or stream could not be read or written.
    #[error("cannot {action} {what}")]
    Io {
        /// `read`, `write`, `listen on`, …
        action: &'static str,
        /// The object of the action, in quotes if it is a path.
        what: String,
        #[source]
        source: std::io::Error,
    },
    /// No disk space for a result that has to be stored until it is read.
    #[error(
        "no room for the result in `{directory}`: {used_bytes} of {limit_bytes} bytes are in use: {reason}"
    )]
    ResultStorage { directory: String, limit_bytes: u64, used_bytes: u64, reason: String },
    #[error("{format} cannot hold this result: {reason}")]
    Format { format: &'static str, reason: String, hint: Option<String> },
    #[error("unknown output format `{name}`")]
    UnknownFormat { name: String },
    /// Rows that Arrow could not return.
    #[error("the rows of the result cannot be read")]
    Rows {
        #[source]
        source: arrow::error::ArrowError,
    },
    /// A request body that is not SQL text, or a request that cannot be read.
    #[error("the request cannot be read: {reason}")]
    Request { reason: String },
    #[error("the request is too large (limit {limit_bytes} bytes)")]
    RequestTooLarge { limit_bytes: usize },
    #[error("{}", if *.sent { "wrong authentication token" } else { "authentication token required" })]
    Unauthorized {
        /// True if the request had a token.
        sent: bool,
    },
    #[error("too many wrong tokens from this address: try again in {wait_s} s")]
    TooManyTries { wait_s: u64 },
    /// A content encoding that the server does not support.
    #[error("unsupported content encoding `{encoding}`")]
    Encoding { encoding: String },
    /// A request that is refused whatever its token.
    #[error("refused: {reason}")]
    Forbidden { reason: String },
    #[error("too many queries: {running} running, {queued} queued")]
    Busy { running: usize, queued: usize },
    /// The limit of results and event streams in transfer is reached.
    #[error("too many results being sent (limit {limit})")]
    TooManyStreams { limit: usize },
    #[error("too many sessions (limit {limit})")]
    TooManySessions { limit: usize },
    /// The limit of concurrent catalog lookups and plans is reached.
    #[error("too many catalog lookups in progress (limit {limit})")]
    TooManyLookUps { limit: usize },
    #[error("too many large request bodies in progress (limit {limit_bytes} bytes in all)")]
    TooManyBodies { limit_bytes: usize },
    /// Timeout while waiting for memory that other statements hold.
    #[error("timed out waiting for {wanted_bytes} of {limit_bytes} bytes of memory")]
    MemoryBusy { wanted_bytes: u64, limit_bytes: u64 },
    /// An unknown or forgotten statement.
    #[error("unknown statement `{id}`")]
    UnknownStatement { id: String },
    /// The session is unknown or has ended.
    #[error("unknown session `{id}`")]
    UnknownSession { id: String },
    /// A result that was requested before the statement finished.
    #[error("statement `{id}` is {state}")]
    NotFinished { id: String, state: &'static str },
    /// A result that was evicted by newer ones, or deleted.
    #[error("the result of statement `{id}` is no longer available")]
    ResultGone { id: String },
    #[error("`request_id` `{request_id}` was used for another statement")]
    RequestIdReused { request_id: String },
    /// A statement that was cancelled because it did not finish within its client's wait.
    #[error("the statement did not finish within {wait_ms} ms and was cancelled")]
    WaitTimeout { wait_ms: u64 },
    #[error("cannot connect to {url}: {reason}")]
    Connect { url: String, reason: String },
    /// A response that this version of Tessera does not understand.
    #[error("{reason}")]
    Protocol { reason: String },
    /// A query ran longer than the server or the session allows.
    #[error("the query took longer than {limit_s} s and was cancelled")]
    Timeout { limit_s: u64 },
    /// The server has not yet recovered the statements of its previous run.
    #[error("the server is recovering statements accepted before its restart")]
    Starting,
    /// A statement during which several servers in a row were killed.
    #[error("{starts} servers died while they ran the statement; it will not be run again")]
    Poison { starts: u32 },
    #[error("the server is shutting down")]
    ShuttingDown,
    #[error("no such path: `{path}`")]
    NotFound { path: String },
    /// No media type of an `Accept` header is supported.
    #[error("cannot respond with `{accept}`")]
    NotAcceptable { accept: String },
    #[error("`{path}` does not support {method}")]
    Method { path: String, method: String },
    /// Listening on more than loopback without TLS or a token.
    #[error("will not listen on {address} without {lacks}")]
    OpenListen { address: std::net::SocketAddr, lacks: &'static str },
    /// An engine broke its contract, or a thread panicked: a bug in Tessera.
    #[error("internal error: {what}")]
    Internal { what: String },
}

impl Error {
    /// Wraps the error of a stage.
    pub fn stage(error: impl Report) -> Self {
        Error::Stage(Stage(Box::new(error)))
    }

    /// Wraps an error of reading or writing.
    pub fn io(action: &'static str, what: impl Into<String>, source: std::io::Error) -> Self {
        Error::Io { action, what: what.into(), source }
    }

    /// A result that a format cannot hold.
    pub(crate) fn format(
        format: &'static str,
        reason: impl Into<String>,
        hint: impl Into<String>,
    ) -> Self {
        Error::Format { format, reason: reason.into(), hint: Some(hint.into()) }
    }

    /// True if memory was refused that would be available if no other statement held any.
    pub fn may_fit(&self) -> bool {
        matches!(self, Error::Stage(s) if s.0.may_fit())
    }

    /// A short, stable, machine-readable name.
    pub fn code(&self) -> &str {
        match self {
            Error::Stage(s) => s.0.code(),
            Error::Cancelled => "cancelled",
            Error::Unsupported { .. } => "unsupported",
            Error::Config { .. } => "config",
            Error::Usage { .. } => "usage",
            Error::Io { .. } if self.is_no_space() => "no_space",
            Error::Io { .. } => "io",
            Error::ResultStorage { .. } => "result_storage",
            Error::Format { .. } => "format",
            Error::UnknownFormat { .. } => "unknown_format",
            Error::Rows { .. } => "rows",
            Error::Request { .. } => "bad_request",
            Error::RequestTooLarge { .. } => "request_too_large",
            Error::Unauthorized { .. } => "unauthorized",
            Error::TooManyTries { .. } => "too_many_tries",
            Error::Encoding { .. } => "unsupported_encoding",
            Error::Forbidden { .. } => "forbidden",
            Error::Busy { .. }
            | Error::TooManyStreams { .. }
            | Error::TooManyLookUps { .. }
            | Error::TooManyBodies { .. }
            | Error::TooManySessions { .. }
            | Error::MemoryBusy { .. } => "busy",
            Error::UnknownStatement { .. } => "unknown_statement",
            Error::UnknownSession { .. } => "unknown_session",
            Error::NotFinished { .. } => "not_finished",
            Error::ResultGone { .. } => "result_gone",
            Error::RequestIdReused { .. } => "request_id_reused",
            Error::WaitTimeout { .. } => "timeout",
            Error::Connect { .. } => "connect",
            Error::Protocol { .. } => "protocol",
            Error::Timeout { .. } => "timeout",
            Error::Starting => "starting",
            Error::Poison { .. } => "poison",
            Error::ShuttingDown => "shutting_down",
            Error::NotFound { .. } => "not_found",
            Error::NotAcceptable { .. } => "not_acceptable",
            Error::Method { .. } => "method_not_allowed",
            Error::OpenListen { .. } => "open_listen",
            Error::Internal { .. } => "internal",
        }
    }

    /// True if a limit on concurrent work is reached.
    fn is_busy(&self) -> bool {
        matches!(
            self,
            Error::Busy { .. }
                | Error::TooManyStreams { .. }
                | Error::TooManyLookUps { .. }
                | Error::TooManyBodies { .. }
                | Error::TooManySessions { .. }
                | Error::MemoryBusy { .. }
        )
    }

    /// The party that has to act.
    pub fn class(&self) -> Class {
        match self {
            Error::Stage(s) => s.0.class(),
            _ if self.is_busy() || self.is_no_space() => Class::Limit,
            Error::RequestTooLarge { .. }
            | Error::ResultStorage { .. }
            | Error::TooManyTries { .. }
            | Error::WaitTimeout { .. }
            | Error::Poison { .. }
            | Error::Timeout { .. } => Class::Limit,
            Error::Connect { .. } => Class::Retry,
            Error::Starting | Error::ShuttingDown => Class::Retry,
            Error::Rows { .. } | Error::Io { .. } | Error::Internal { .. } => Class::Internal,
            _ => Class::User,
        }
    }

    /// How to fix it, if known.
    pub fn hint(&self) -> Option<String> {
        match self {
            Error::Stage(s) => s.0.hint(),
            Error::Unsupported { hint, .. }
            | Error::Config { hint, .. }
            | Error::Usage { hint, .. }
            | Error::Format { hint, .. } => hint.clone(),
            Error::UnknownFormat { .. } | Error::NotAcceptable { .. } => {
                Some(format!("formats are {}", crate::format::Format::names()))
            }
            Error::Forbidden { .. } => {
                Some("connect to `localhost`, not from a web page of another site, or send a token".into())
            }
            Error::Unauthorized { sent: false } => Some(
                "send `Authorization: Bearer TOKEN`; a server that generates its token prints it at startup".into(),
            ),
            Error::Unauthorized { sent: true } => Some(
                "use the `token` of the server's configuration (TESSERA_TOKEN), or the one that the server printed at start"
                    .into(),
            ),
            Error::TooManyTries { wait_s } => Some(format!("try again in {wait_s} s, with the right one")),
            Error::Encoding { .. } => {
                Some("send the body uncompressed, without `Content-Encoding`".into())
            }
            Error::ResultStorage { .. } => {
                Some("ask for fewer cells, or read and delete the results of other statements".into())
            }
            _ if self.is_busy() || matches!(self, Error::Starting) => {
                Some("try again in a moment".into())
            }
            Error::UnknownStatement { .. } => Some(
                "finished statements expire (`result-ttl`)".into(),
            ),
            Error::UnknownSession { .. } => Some(
                "create one with POST /v1/sessions; idle sessions expire (`session-timeout`)".into(),
            ),
            Error::NotFinished { id, .. } => {
                Some(format!("wait for it with GET /v1/statements/{id}?wait_ms=10000"))
            }
            Error::ResultGone { .. } => Some("run the statement again".into()),
            Error::RequestIdReused { .. } => Some("use a new `request_id`".into()),
            Error::WaitTimeout { .. } => {
                Some("raise `wait_ms`, or use `on_timeout`: `continue`".into())
            }
            Error::Poison { .. } => Some("find out why they died (out of memory?), then submit it again".into()),
            Error::Connect { .. } => Some("start a server with `tessera serve`".into()),
            Error::Timeout { .. } => Some("raise the server's `query-timeout` or the session's `tessera.query_timeout`, or ask for less".into()),
            Error::OpenListen { .. } => Some(
                "give `--certificate FILE --key FILE`, or listen on 127.0.0.1; behind a proxy that does TLS, or in a \
                 network that you trust, `--insecure` listens without TLS, and `--no-token --insecure` without TLS and \
                 a token"
                    .into(),
            ),
            Error::Internal { .. } | Error::Rows { .. } => {
                Some("this is a fault in Tessera; please report the query".into())
            }
            _ => None,
        }
    }

    /// The place in the script, if the error has one.
    pub fn position(&self) -> Option<Position> {
        match self {
            Error::Stage(s) => s.0.position(),
            _ => None,
        }
    }

    /// The causes below this error, outermost first, as one line; texts that only repeat the one above are left out.
    pub fn detail(&self) -> Option<String> {
        let mut out: Vec<String> = Vec::new();
        let mut above = self.to_string();
        for e in causes(self).skip(1) {
            let text = e.to_string();
            if !above.contains(&text) {
                out.push(text.clone());
            }
            above = text;
        }
        (!out.is_empty()).then(|| out.join(": "))
    }

    /// Seconds after which a retry makes sense.
    pub fn retry_after_s(&self) -> u64 {
        match self {
            Error::TooManyTries { wait_s } => *wait_s,
            _ => 1,
        }
    }

    /// The HTTP status of the response.
    pub fn status(&self) -> u16 {
        match self {
            Error::Unauthorized { .. } => 401,
            Error::Encoding { .. } => 415,
            Error::Forbidden { .. } => 403,
            Error::NotFound { .. }
            | Error::UnknownStatement { .. }
            | Error::UnknownSession { .. }
            | Error::ResultGone { .. } => 404,
            Error::Method { .. } => 405,
            Error::NotAcceptable { .. } => 406,
            Error::NotFinished { .. } | Error::RequestIdReused { .. } => 409,
            Error::TooManyTries { .. } => 429,
            _ if self.is_busy() => 429,
            Error::Timeout { .. } | Error::WaitTimeout { .. } | Error::ShuttingDown => 503,
            _ if self.code() == "cancelled" => 409,
            _ if self.code() == "not_allowed" => 403,
            _ => match self.class() {
                Class::User => 400,
                Class::Limit => 413,
                Class::Retry => 503,
                Class::Internal => 500,
            },
        }
    }

    /// The exit status of the command line: 1 the query failed, 2 usage, 3 no connection, 130 cancelled.
    pub fn exit_status(&self) -> u8 {
        match self {
            _ if self.code() == "cancelled" => 130,
            Error::Connect { .. } => 3,
            Error::Config { .. } | Error::Usage { .. } | Error::UnknownFormat { .. } => 2,
            _ => 1,
        }
    }

    /// True if the output did not fit where it was written.
    fn is_no_space(&self) -> bool {
        use std::io::ErrorKind::{FileTooLarge, QuotaExceeded, StorageFull};
        let Error::Io { source, .. } = self else { return false };
        matches!(source.kind(), StorageFull | QuotaExceeded | FileTooLarge)
    }

    /// True if the reader of our output closed it, which is not an error (`tessera … | head`).
    pub fn is_broken_pipe(&self) -> bool {
        matches!(self, Error::Io { source, .. } if source.kind() == std::io::ErrorKind::BrokenPipe)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_output_without_space_differs_from_other_faults() {
        let of = |kind: std::io::ErrorKind| Error::io("write", "the output", kind.into());
        assert_eq!(of(std::io::ErrorKind::StorageFull).code(), "no_space");
        assert_eq!(of(std::io::ErrorKind::FileTooLarge).code(), "no_space");
        assert_eq!(of(std::io::ErrorKind::BrokenPipe).code(), "io");
    }
}
