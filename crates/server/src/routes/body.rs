//! Reads bodies of requests within their limit and their timeout.

use super::Shared;
use axum::body::Body;
use axum::extract::Request;
use axum::http::{HeaderMap, header};
use futures::StreamExt;
use std::sync::Arc;
use std::time::Duration;
use tessera_engine::error::Error;
use tokio::sync::{Semaphore, SemaphorePermit};

/// Limits for draining a refused body: bytes and time.
const DRAIN_BYTES: usize = 64 << 20;
const DRAIN: Duration = Duration::from_secs(1);
/// Timeout for receiving a statement.
const BODY_TIMEOUT: Duration = Duration::from_secs(30);

/// Refuses compressed bodies, which would be misread.
pub(super) fn check_encoding(headers: &HeaderMap) -> Result<(), Error> {
    for value in headers.get_all(header::CONTENT_ENCODING) {
        let encoding = String::from_utf8_lossy(value.as_bytes()).trim().to_string();
        if !encoding.is_empty() && !encoding.eq_ignore_ascii_case("identity") {
            return Err(Error::Encoding { encoding });
        }
    }
    Ok(())
}

/// Drains the body for a moment: a client whose connection is closed while it sends would not see the error.
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
    // A slower client may miss the error.
    let _ = tokio::time::timeout(DRAIN, rest).await;
}

/// Memory for bodies in transfer, beyond the free part of each: clients that begin many large ones and stall would fill
/// the memory.
pub(super) struct Room {
    /// A permit for each [`STEP`].
    free: Semaphore,
    limit_bytes: usize,
}

/// Bytes of a body that need no permit: statements that people write.
const SMALL: usize = 64 << 10;
/// Bytes of a permit.
const STEP: usize = 4 << 10;

impl Room {
    /// A quarter of the memory limit, at most 256 MiB.
    pub(super) fn new(memory_limit_bytes: u64) -> Self {
        let limit_bytes = (memory_limit_bytes / 4).min(256 << 20) as usize;
        Room { free: Semaphore::new(limit_bytes / STEP), limit_bytes }
    }
}

async fn read(shared: &Arc<Shared>, body: Body) -> Result<Vec<u8>, Error> {
    let limit_bytes = shared.config.max_request_bytes;
    let (mut bytes, mut pieces) = (Vec::new(), body.into_data_stream());
    let mut room = None;
    let mut has = SMALL;
    while let Some(piece) = pieces.next().await {
        let piece = piece.map_err(|e| Error::Request { reason: e.to_string() })?;
        let now = bytes.len() + piece.len();
        if now > limit_bytes {
            drain(Body::from_stream(pieces)).await;
            return Err(Error::RequestTooLarge { limit_bytes });
        }
        if now > has {
            let steps = (now - has).div_ceil(STEP);
            let more = shared
                .bodies
                .free
                .try_acquire_many(steps as u32)
                .map_err(|_| Error::TooManyBodies { limit_bytes: shared.bodies.limit_bytes })?;
            has += steps * STEP;
            match &mut room {
                Some(room) => SemaphorePermit::merge(room, more),
                None => room = Some(more),
            }
        }
        bytes.extend_from_slice(&piece);
    }
    Ok(bytes)
}

pub(super) async fn text(shared: &Arc<Shared>, request: Request) -> Result<String, Error> {
    check_encoding(request.headers())?;
    // A body with a too large `Content-Length` is refused at once.
    let limit_bytes = shared.config.max_request_bytes;
    let length = request.headers().get(header::CONTENT_LENGTH).and_then(|v| v.to_str().ok());
    if length.and_then(|n| n.parse::<u64>().ok()).is_some_and(|n| n > limit_bytes as u64) {
        drain(request.into_body()).await;
        return Err(Error::RequestTooLarge { limit_bytes });
    }
    let bytes = tokio::time::timeout(BODY_TIMEOUT, read(shared, request.into_body()))
        .await
        .map_err(|_| Error::Request { reason: "the body did not come within 30 s".into() })??;
    String::from_utf8(bytes)
        .map_err(|_| Error::Request { reason: "the body is not UTF-8 text".into() })
}
