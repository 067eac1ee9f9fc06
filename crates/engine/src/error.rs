//! The one error type that leaves Tessera: on a terminal, as an exit status, as an HTTP body.

mod render;

pub use tessera_planner::error::Class;

use std::error::Error as StdError;
use std::fmt;

/// A place in the script: line and column count from 1, in characters.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Position {
    /// The line, from 1.
    pub line: u64,
    /// The column of the first character, from 1.
    pub column: u64,
    /// Characters of the line that belong to the place; 0 means up to the end of the line.
    pub length: u64,
}

/// What an error of any stage tells about itself. Implemented for the error of each crate, so that its type survives
/// inside [`Error::Stage`].
pub trait Report: StdError + Send + Sync + 'static {
    /// A short, stable, machine-readable name.
    fn code(&self) -> &str;
    /// Who has to act.
    fn class(&self) -> Class;
    /// The way out, if there is one to tell.
    fn hint(&self) -> Option<String> {
        None
    }
    /// The place in the script, if the error has one.
    fn position(&self) -> Option<Position> {
        None
    }
    /// True if memory was refused that is there if no other statement has any.
    fn may_fit(&self) -> bool {
        false
    }
}

impl Report for tessera_planner::error::Error {
    fn code(&self) -> &str {
        self.code()
    }
    fn class(&self) -> Class {
        self.class()
    }
    fn hint(&self) -> Option<String> {
        self.hint()
    }
}

/// An error of a stage (frontend, planner, exec), with its type kept. Its text and its source are the inner error's.
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

/// What can go wrong between a person and an answer.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A stage refused or failed.
    #[error(transparent)]
    Stage(#[from] Stage),
    /// The query was cancelled: by Ctrl-C, by a client that left, by `CANCEL QUERY`.
    #[error("the query was cancelled")]
    Cancelled,
    /// Something that a later version will do.
    #[error("{construct} is not supported yet")]
    Unsupported {
        /// The construct in the user's words.
        construct: String,
        /// What to do instead.
        hint: Option<String>,
    },
    /// A setting that cannot be used.
    #[error("setting `{key}`: {reason} (set by {origin})")]
    Config {
        /// The key as the user wrote it.
        key: String,
        /// Which layer it came from: a file, a variable of the environment, a flag.
        origin: String,
        /// What is wrong with it.
        reason: String,
        /// The way out.
        hint: Option<String>,
    },
    /// A command line that makes no sense.
    #[error("{reason}")]
    Usage {
        /// What is wrong with it.
        reason: String,
        /// The way out.
        hint: Option<String>,
    },
    /// A file or stream could not be read or written.
    #[error("cannot {action} {what}")]
    Io {
        /// `read`, `write`, `listen on`, …
        action: &'static str,
        /// What it was done to, in quotes if it is a path.
        what: String,
        /// The operating system's reason.
        #[source]
        source: std::io::Error,
    },
    /// No room for a result that has to wait on disk until it is read.
    #[error(
        "no room for the result in `{directory}`: {used_bytes} of {limit_bytes} bytes are in use: {reason}"
    )]
    ResultStorage {
        /// Where results wait.
        directory: String,
        /// The most bytes that may be there.
        limit_bytes: u64,
        /// Bytes of all that is there.
        used_bytes: u64,
        /// What is full.
        reason: String,
    },
    /// An answer that a format cannot hold.
    #[error("{format} cannot hold this result: {reason}")]
    Format {
        /// Name of the format.
        format: &'static str,
        /// Why not.
        reason: String,
        /// The way out.
        hint: Option<String>,
    },
    /// A name of an output format that there is not.
    #[error("unknown output format `{name}`")]
    UnknownFormat {
        /// The name as written.
        name: String,
    },
    /// Rows that Arrow refused to give.
    #[error("the rows of the result cannot be read")]
    Rows {
        /// Arrow's reason.
        #[source]
        source: arrow::error::ArrowError,
    },
    /// A request body that is not SQL text, or a request that cannot be read.
    #[error("the request cannot be read: {reason}")]
    Request {
        /// What is wrong with it.
        reason: String,
    },
    /// A request body beyond the limit.
    #[error("the request is too large (limit {limit_bytes} bytes)")]
    RequestTooLarge {
        /// The limit.
        limit_bytes: usize,
    },
    /// No or a wrong token.
    #[error("{}", if *.sent { "wrong authentication token" } else { "authentication token required" })]
    Unauthorized {
        /// True if there was one.
        sent: bool,
    },
    /// Wrong tokens from an address, one after another.
    #[error("too many wrong tokens from this address: try again in {wait_s} s")]
    TooManyTries {
        /// Seconds until one is.
        wait_s: u64,
    },
    /// A body that is packed in a way that the server does not unpack.
    #[error("unsupported content encoding `{encoding}`")]
    Encoding {
        /// As the request names it.
        encoding: String,
    },
    /// A request that the server must not serve, whoever asks.
    #[error("refused: {reason}")]
    Forbidden {
        /// Why.
        reason: String,
    },
    /// All places for queries that run or wait are taken.
    #[error("too many queries: {running} running, {queued} queued")]
    Busy {
        /// How many run.
        running: usize,
        /// How many may wait.
        queued: usize,
    },
    /// As many results and events are on their way as may be.
    #[error("too many results being sent (limit {limit})")]
    TooManyStreams {
        /// The limit.
        limit: usize,
    },
    /// As many sessions as may be.
    #[error("too many sessions (limit {limit})")]
    TooManySessions {
        /// The limit.
        limit: usize,
    },
    /// As many look-ups into the catalog and plans are under way as may be.
    #[error("too many catalog lookups in progress (limit {limit})")]
    TooManyLookUps {
        /// The most at a time.
        limit: usize,
    },
    /// As many bytes of large request bodies are on their way as may be.
    #[error("too many large request bodies in progress (limit {limit_bytes} bytes in all)")]
    TooManyBodies {
        /// The limit of all together.
        limit_bytes: usize,
    },
    /// Memory that others hold.
    #[error("timed out waiting for {wanted_bytes} of {limit_bytes} bytes of memory")]
    MemoryBusy {
        /// Bytes asked for.
        wanted_bytes: u64,
        /// The memory limit.
        limit_bytes: u64,
    },
    /// No such statement, or it is forgotten.
    #[error("unknown statement `{id}`")]
    UnknownStatement {
        /// The id as sent.
        id: String,
    },
    /// No such session, or it is over.
    #[error("unknown session `{id}`")]
    UnknownSession {
        /// The id as sent.
        id: String,
    },
    /// A result that is asked for too early.
    #[error("statement `{id}` is {state}")]
    NotFinished {
        /// The statement.
        id: String,
        /// Its state.
        state: &'static str,
    },
    /// A result that gave way to newer ones, or was deleted.
    #[error("the result of statement `{id}` is no longer available")]
    ResultGone {
        /// The statement.
        id: String,
    },
    /// A `request_id` that was used for something else.
    #[error("`request_id` `{request_id}` was used for another statement")]
    RequestIdReused {
        /// The id as sent.
        request_id: String,
    },
    /// A statement that was to be cancelled if it took longer than its client waits.
    #[error("the statement did not finish within {wait_ms} ms and was cancelled")]
    WaitTimeout {
        /// How long the client waited.
        wait_ms: u64,
    },
    /// A server that cannot be reached.
    #[error("cannot connect to {url}: {reason}")]
    Connect {
        /// Where it should be.
        url: String,
        /// Why not.
        reason: String,
    },
    /// A server that says what a Tessera of this version does not.
    #[error("{reason}")]
    Protocol {
        /// What cannot be understood.
        reason: String,
    },
    /// A query ran longer than the server or the session allows.
    #[error("the query took longer than {limit_s} s and was cancelled")]
    Timeout {
        /// The limit, in seconds.
        limit_s: u64,
    },
    /// The server is not yet where it was when it ended.
    #[error("the server is recovering statements accepted before its restart")]
    Starting,
    /// A statement during which one server after another was killed.
    #[error("{starts} servers died while they ran the statement; it will not be run again")]
    Poison {
        /// How many.
        starts: u32,
    },
    /// The server is going away.
    #[error("the server is shutting down")]
    ShuttingDown,
    /// No such page.
    #[error("no such path: `{path}`")]
    NotFound {
        /// The path asked for.
        path: String,
    },
    /// No media type of an `Accept` header can be given.
    #[error("cannot respond with `{accept}`")]
    NotAcceptable {
        /// The header.
        accept: String,
    },
    /// A page that does not answer this method.
    #[error("`{path}` does not support {method}")]
    Method {
        /// The path asked for.
        path: String,
        /// The method used.
        method: String,
    },
    /// Listening on more than loopback without TLS or a token.
    #[error("will not listen on {address} without {lacks}")]
    OpenListen {
        /// The address asked for.
        address: std::net::SocketAddr,
        /// What is missing.
        lacks: &'static str,
    },
    /// An engine broke a promise, or a thread panicked: a fault of ours.
    #[error("internal error: {what}")]
    Internal {
        /// What happened.
        what: String,
    },
}

impl Error {
    /// Wraps the error of a stage.
    pub fn stage(error: impl Report) -> Self {
        Error::Stage(Stage(Box::new(error)))
    }

    /// An error of reading or writing.
    pub fn io(action: &'static str, what: impl Into<String>, source: std::io::Error) -> Self {
        Error::Io { action, what: what.into(), source }
    }

    /// True if memory was refused that is there if no other statement has any.
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

    /// Who has to act.
    pub fn class(&self) -> Class {
        match self {
            Error::Stage(s) => s.0.class(),
            Error::RequestTooLarge { .. }
            | Error::ResultStorage { .. }
            | Error::Busy { .. }
            | Error::TooManyStreams { .. }
            | Error::TooManyLookUps { .. }
            | Error::TooManyBodies { .. }
            | Error::TooManySessions { .. }
            | Error::MemoryBusy { .. }
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

    /// The way out, if there is one to tell.
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
                "send it as `Authorization: Bearer TOKEN`: a server that makes its own token prints it at start".into(),
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
            Error::Busy { .. }
            | Error::TooManyStreams { .. }
            | Error::TooManyLookUps { .. }
            | Error::TooManyBodies { .. }
            | Error::TooManySessions { .. }
            | Error::Starting
            | Error::MemoryBusy { .. } => Some("try again in a moment".into()),
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
            Error::Timeout { .. } => Some("raise `query-timeout` of the server, or what `SET tessera.query_timeout` gave the session, or ask for less".into()),
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
        let mut next = StdError::source(self);
        while let Some(e) = next {
            let text = e.to_string();
            if !above.contains(&text) {
                out.push(text.clone());
            }
            above = text;
            next = e.source();
        }
        (!out.is_empty()).then(|| out.join(": "))
    }

    /// Seconds after which it is worth trying again, if it is.
    pub fn retry_after_s(&self) -> u64 {
        match self {
            Error::TooManyTries { wait_s } => *wait_s,
            _ => 1,
        }
    }

    /// The HTTP status that goes with it.
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
            Error::Busy { .. }
            | Error::TooManyStreams { .. }
            | Error::TooManyLookUps { .. }
            | Error::TooManyBodies { .. }
            | Error::TooManySessions { .. }
            | Error::TooManyTries { .. }
            | Error::MemoryBusy { .. } => 429,
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

    /// The exit status of the command line: 1 the query failed, 2 usage, 130 cancelled.
    pub fn exit_status(&self) -> u8 {
        match self {
            _ if self.code() == "cancelled" => 130,
            Error::Connect { .. } => 3,
            Error::Config { .. } | Error::Usage { .. } | Error::UnknownFormat { .. } => 2,
            _ => 1,
        }
    }

    /// True if the reader of our output went away, which is no error of anybody (`tessera … | head`).
    pub fn is_broken_pipe(&self) -> bool {
        matches!(self, Error::Io { source, .. } if source.kind() == std::io::ErrorKind::BrokenPipe)
    }
}
