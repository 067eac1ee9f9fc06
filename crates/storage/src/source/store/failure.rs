//! Failed requests and their errors: texts name the object and never hold credentials.

use super::Store;
use crate::source::error::SourceError;
use crate::source::retry::is_transient;
use bytes::Bytes;
use object_store::ObjectMeta;
use std::future::Future;
use std::io;
use tessera_planner::error::causes;

impl Store {
    /// Converts an error of the store's client.
    pub(crate) fn failure(&self, key: &str, e: object_store::Error) -> SourceError {
        let text = texts(&e);
        match e {
            object_store::Error::NotFound { .. } if !lacks_bucket(&text) => {
                SourceError::NotFound { what: self.show(key) }
            }
            e => self.sort(key, &e, &text),
        }
    }

    pub(super) fn io<T>(&self, key: &str, r: io::Result<T>) -> Result<T, SourceError> {
        r.map_err(|e| self.io_error(key, &e))
    }

    pub(super) fn io_error(&self, key: &str, e: &io::Error) -> SourceError {
        let what = self.show(key);
        match e.kind() {
            io::ErrorKind::NotFound | io::ErrorKind::NotADirectory => {
                SourceError::NotFound { what }
            }
            io::ErrorKind::PermissionDenied => {
                SourceError::PermissionDenied { what, reason: "the file's permissions".into() }
            }
            io::ErrorKind::UnexpectedEof => {
                SourceError::Storage { what, reason: "the file ended early".into() }
            }
            _ => SourceError::Storage { what, reason: e.to_string() },
        }
    }

    /// Runs one request within the time-out, counts it, and maps its errors; "not found" is `None`.
    pub(super) async fn guard<T: Measured>(
        &self,
        key: &str,
        request: impl Future<Output = object_store::Result<T>>,
    ) -> Result<Option<T>, SourceError> {
        // Every permit is released within the time-out.
        let permit = self.requests.acquire().await;
        let answered = tokio::time::timeout(self.timeout, request).await;
        drop(permit);
        match answered {
            Err(_) => {
                self.counters.count(0);
                Err(SourceError::Timeout {
                    what: self.show(key),
                    seconds: self.timeout.as_secs().max(1),
                })
            }
            Ok(Ok(v)) => {
                self.counters.count(v.bytes());
                Ok(Some(v))
            }
            Ok(Err(e)) => {
                self.counters.count(0);
                let text = texts(&e);
                match e {
                    // Stores report a missing bucket with the status of a missing key.
                    object_store::Error::NotFound { .. } if !lacks_bucket(&text) => Ok(None),
                    e => Err(self.sort(key, &e, &text)),
                }
            }
        }
    }

    fn sort(&self, key: &str, e: &object_store::Error, text: &str) -> SourceError {
        use object_store::Error as E;
        let what = self.show(key);
        let code = server_code(text);
        match refused(e) {
            Some(SourceError::Region { region, .. }) => {
                return SourceError::Region { what, region };
            }
            Some(refused) => return refused,
            None => {}
        }
        let is_late = text.contains(LATE);
        if let Some(code) = code.as_deref().filter(|code| is_late || CLOCK.contains(code)) {
            return SourceError::Clock { what, code: code.to_string() };
        }
        if lacks_bucket(text) {
            return SourceError::NoBucket { what };
        }
        if NO_RANGES.iter().any(|sign| text.contains(sign)) {
            return SourceError::NoRanges { what };
        }
        match e {
            E::PermissionDenied { .. } | E::Unauthenticated { .. } => {
                SourceError::PermissionDenied {
                    what,
                    reason: code.unwrap_or_else(|| "the server refused the credentials".into()),
                }
            }
            E::Precondition { .. } => SourceError::Changed { what },
            E::NotSupported { .. } | E::NotImplemented { .. } => {
                SourceError::Refused { what, reason: "the server cannot do this".into() }
            }
            _ if is_denied(text) => {
                SourceError::PermissionDenied { what, reason: code.unwrap_or_default() }
            }
            _ => match connection(text) {
                Some(reason) => SourceError::Unreachable { what, reason: reason.into() },
                None => {
                    let reason = code.or_else(|| unusable(text).map(String::from));
                    let reason = reason.unwrap_or_else(|| "the request failed".into());
                    match is_transient(e) {
                        true => SourceError::Storage { what, reason },
                        false => SourceError::Refused { what, reason },
                    }
                }
            },
        }
    }
}

/// The storage failure among the causes of an error, if it may pass when everything is run again, or is a refusal:
/// for readers that do not know our errors.
pub fn passing(error: &(dyn std::error::Error + 'static)) -> Option<SourceError> {
    for e in causes(error) {
        if let Some(
            e @ (SourceError::Changed { .. }
            | SourceError::NotAllowed { .. }
            | SourceError::Region { .. }
            | SourceError::PermissionDenied { .. }
            | SourceError::UnsupportedFile { .. }
            | SourceError::Damaged { .. }
            | SourceError::BadRow { .. }),
        ) = e.downcast_ref()
        {
            return Some(e.clone());
        }
        if let Some(e) = e.downcast_ref::<object_store::Error>()
            && refused(e).is_none()
            && !matches!(e, object_store::Error::Precondition { .. })
        {
            let (what, text) = ("a file of a table".to_string(), texts(e));
            return is_transient(e).then(|| match connection(&text) {
                Some(reason) => SourceError::Unreachable { what, reason: reason.into() },
                None => {
                    let reason = server_code(&text).unwrap_or_else(|| "the request failed".into());
                    SourceError::Storage { what, reason }
                }
            });
        }
    }
    None
}

/// Codes of S3 for a request with a wrong time.
const CLOCK: [&str; 3] = ["RequestTimeTooSkewed", "RequestExpired", "RequestInTheFuture"];

/// A part of Azure's error for a request with a wrong time.
const LATE: &str = "Request date header too old";

/// Errors of clients of servers that answer a request for a part with the whole.
const NO_RANGES: [&str; 2] =
    ["Range request not supported", "Received non-partial response when range requested"];

/// True if an error is that of a bucket or container that does not exist.
fn lacks_bucket(text: &str) -> bool {
    ["NoSuchBucket", "ContainerNotFound"].iter().any(|code| text.contains(code))
}

/// True if an error is that of missing or wrong credentials. The errors of listings have no kind of their own.
fn is_denied(text: &str) -> bool {
    const SIGNS: [&str; 6] = [
        "InvalidAccessKeyId",
        "SignatureDoesNotMatch",
        "AccessDenied",
        "PublicAccessNotPermitted",
        "status code: 401",
        "status code: 403",
    ];
    // The service of tokens may refuse the credentials, too.
    SIGNS.iter().any(|sign| text.contains(sign))
        || text.contains("token request") && text.contains("status code: 4")
}

/// The reason why a response is of no use.
fn unusable(text: &str) -> Option<&'static str> {
    let missing = "Header missing from response";
    let table = [
        ("Content-Length", "the server reports no length of it"),
        ("ETag", "the server reports no etag of it"),
        ("Last-Modified", "the server reports no time of it"),
    ];
    let found = table.iter().find(|(name, _)| text.contains(&format!("{name} {missing}")));
    found.map(|(_, reason)| *reason)
}

/// The reason why our own client gave up a request, if it did: a redirect that is not allowed, a bucket of another
/// region, a file behind a reference.
pub(crate) fn refused(error: &(dyn std::error::Error + 'static)) -> Option<SourceError> {
    causes(error).find_map(|e| e.downcast_ref::<SourceError>()).cloned()
}

pub(super) trait Measured {
    fn bytes(&self) -> usize;
}

impl Measured for (Bytes, ObjectMeta) {
    fn bytes(&self) -> usize {
        self.0.len()
    }
}

impl Measured for Result<(Bytes, ObjectMeta), u64> {
    fn bytes(&self) -> usize {
        self.as_ref().map_or(0, Measured::bytes)
    }
}

impl Measured for ObjectMeta {
    fn bytes(&self) -> usize {
        0
    }
}

/// Names in a listing.
impl Measured for Vec<String> {
    fn bytes(&self) -> usize {
        self.iter().map(String::len).sum()
    }
}

impl Measured for object_store::ListResult {
    fn bytes(&self) -> usize {
        0
    }
}

/// An error's own text and those of its sources.
fn texts(e: &(dyn std::error::Error + 'static)) -> String {
    causes(e).map(ToString::to_string).collect::<Vec<_>>().join("\n")
}

/// The `<Code>` of an S3 error body, or the HTTP status; nothing else of the body is shown, as it may repeat keys.
fn server_code(text: &str) -> Option<String> {
    if let Some((_, rest)) = text.split_once("<Code>")
        && let Some((code, _)) = rest.split_once("</Code>")
        && code.len() <= 64
        && code.bytes().all(|b| b.is_ascii_alphanumeric())
    {
        return Some(code.to_string());
    }
    let (_, rest) = text.split_once("status code: ")?;
    let status: String =
        rest.chars().take_while(|c| c.is_ascii_alphanumeric() || *c == ' ').collect();
    Some(format!("HTTP status {}", status.trim()))
}

/// The failure of a connection, if it failed.
fn connection(text: &str) -> Option<&'static str> {
    // All errors of web servers are called so.
    let lower = text.to_ascii_lowercase().replace("generic http error", "");
    let table = [
        ("connection refused", "connection refused"),
        ("dns error", "its host name is not known"),
        ("failed to lookup", "its host name is not known"),
        ("operation timed out", "no answer in time"),
        ("timed out", "no answer in time"),
        ("network is unreachable", "network is unreachable"),
        ("no route to host", "no route to host"),
        ("connection reset", "connection reset"),
        ("invalid peer certificate", "its TLS certificate is not trusted"),
        ("url scheme is not allowed", "plain http is not allowed"),
        ("error trying to connect", "the connection failed"),
        ("http error", "the connection failed"),
        ("connection", "the connection failed"),
        ("error sending request", "the request could not be sent"),
    ];
    table.iter().find(|(k, _)| lower.contains(k)).map(|(_, v)| *v)
}
