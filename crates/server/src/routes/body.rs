//! Bodies of requests, within their limit and their time.

use super::Shared;
use crate::error::Error;
use axum::body::Bytes;
use axum::extract::{FromRequest, Request};
use axum::http::StatusCode;
use std::sync::Arc;
use std::time::Duration;

/// What a client has to send a statement.
const BODY_TIMEOUT: Duration = Duration::from_secs(30);

/// The body as text.
pub(super) async fn text(shared: &Arc<Shared>, request: Request) -> Result<String, Error> {
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
