//! Bodies of requests, within their limit and their time.

use super::Shared;
use crate::error::Error;
use axum::body::Bytes;
use axum::extract::{FromRequest, Request};
use axum::http::{HeaderMap, StatusCode, header};
use std::sync::Arc;
use std::time::Duration;

/// What a client has to send a statement.
const BODY_TIMEOUT: Duration = Duration::from_secs(30);

/// A body comes as it is: one that is packed would be taken for something else.
pub(super) fn check_encoding(headers: &HeaderMap) -> Result<(), Error> {
    for value in headers.get_all(header::CONTENT_ENCODING) {
        let encoding = String::from_utf8_lossy(value.as_bytes()).trim().to_string();
        if !encoding.is_empty() && !encoding.eq_ignore_ascii_case("identity") {
            return Err(Error::Encoding { encoding });
        }
    }
    Ok(())
}

/// The body as text.
pub(super) async fn text(shared: &Arc<Shared>, request: Request) -> Result<String, Error> {
    check_encoding(request.headers())?;
    let bytes = tokio::time::timeout(BODY_TIMEOUT, Bytes::from_request(request, shared))
        .await
        .map_err(|_| Error::Request { reason: "the body did not come within 30 s".into() })?
        .map_err(|e| match e.status() {
            StatusCode::PAYLOAD_TOO_LARGE => {
                Error::RequestTooLarge { limit_bytes: shared.config.max_request_bytes }
            }
            _ => Error::Request { reason: e.body_text() },
        })?;
    String::from_utf8(bytes.into())
        .map_err(|_| Error::Request { reason: "the body is not UTF-8 text".into() })
}
