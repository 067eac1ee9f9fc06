//! Bodies of requests, within their limit and their time.

use super::Shared;
use crate::error::Error;
use axum::body::{Body, Bytes};
use axum::extract::{FromRequest, Request};
use axum::http::{HeaderMap, StatusCode, header};
use futures::StreamExt;
use std::sync::Arc;
use std::time::Duration;

/// What is read of a body that was refused: bytes, and for how long.
const DRAIN_BYTES: usize = 64 << 20;
const DRAIN: Duration = Duration::from_secs(1);
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

/// Reads what a client still sends for a moment: one that is hung up on would not see why.
async fn drain(body: Body) {
    let rest = async {
        let mut pieces = body.into_data_stream();
        let mut bytes = 0;
        while let Some(Ok(piece)) = pieces.next().await {
            bytes += piece.len();
            if bytes > DRAIN_BYTES {
                return;
            }
        }
    };
    // One that sends slower than that has to live without.
    let _ = tokio::time::timeout(DRAIN, rest).await;
}

/// The body as text.
pub(super) async fn text(shared: &Arc<Shared>, request: Request) -> Result<String, Error> {
    check_encoding(request.headers())?;
    // What says that it is too large is not waited for.
    let limit_bytes = shared.config.max_request_bytes;
    let length = request.headers().get(header::CONTENT_LENGTH).and_then(|v| v.to_str().ok());
    if length.and_then(|n| n.parse::<u64>().ok()).is_some_and(|n| n > limit_bytes as u64) {
        drain(request.into_body()).await;
        return Err(Error::RequestTooLarge { limit_bytes });
    }
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
