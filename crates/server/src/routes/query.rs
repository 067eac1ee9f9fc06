//! `POST /v1/query?format=`: the body is SQL, the answer is the result.

use super::Shared;
use super::reply::Failure;
use crate::answer::Reply;
use crate::engine::Handle;
use crate::error::Error;
use crate::format::{Format, Options, Writer};
use axum::body::Bytes;
use axum::extract::{FromRequest, Query, Request, State};
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use futures::{FutureExt, StreamExt};
use serde::Deserialize;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::Duration;

/// What a client has to send its query.
const BODY_TIMEOUT: Duration = Duration::from_secs(30);

#[derive(Deserialize)]
struct Parameters {
    format: Option<String>,
}

pub(super) async fn run(
    State(shared): State<Arc<Shared>>,
    request: Request,
) -> Result<Response, Failure> {
    answer(shared, request).await.map_err(Failure)
}

async fn answer(shared: Arc<Shared>, request: Request) -> Result<Response, Error> {
    let format = format(&request)?;
    // Known before anything runs: some formats are not there yet.
    Writer::new(format, Options::default(), Vec::new())?;
    let sql = body(&shared, request).await?;
    if shared.leaving.is_cancelled() {
        return Err(Error::ShuttingDown);
    }
    let _place = shared
        .places
        .clone()
        .try_acquire_owned()
        .map_err(|_| Error::Busy { running: shared.config.max_queries })?;
    let replies = replies(&shared, &sql).await?;
    if replies.is_empty() {
        return Err(Error::Request { reason: "the body has no statement".into() });
    }
    // Texts of large results take a while to write: not on a thread that serves others.
    let bytes = tokio::task::spawn_blocking(move || {
        let mut writer = Writer::new(format, Options::default(), Vec::new())?;
        replies.into_iter().try_for_each(|r| writer.push(r))?;
        writer.finish()
    })
    .await
    .map_err(|_| Error::Internal { what: "writing the result panicked".into() })??;
    Ok((StatusCode::OK, [(header::CONTENT_TYPE, format.content_type())], bytes).into_response())
}

/// The format of the URL, else that of `Accept`, else JSON.
fn format(request: &Request) -> Result<Format, Error> {
    let parameters = Query::<Parameters>::try_from_uri(request.uri())
        .map_err(|e| Error::Request { reason: e.body_text() })?;
    if let Some(name) = &parameters.0.format {
        return Format::parse(name);
    }
    let accept = match request.headers().get(header::ACCEPT) {
        Some(v) => {
            v.to_str().map_err(|_| Error::Request { reason: "`Accept` is not ASCII".into() })?
        }
        None => "",
    };
    Ok(Format::from_accept(accept)?.unwrap_or(Format::Json))
}

async fn body(shared: &Arc<Shared>, request: Request) -> Result<String, Error> {
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

/// Runs the script. Whichever way this ends, also by being dropped, nothing runs on.
async fn replies(shared: &Shared, sql: &str) -> Result<Vec<Reply>, Error> {
    // Dropping the stream, as the time-out does, cancels what runs.
    let handle = Handle::below(&shared.stop);
    let work = async {
        let mut replies = Vec::new();
        let mut stream = shared.engine.run(sql, handle.clone());
        while let Some(reply) = stream.next().await {
            replies.push(reply?);
        }
        Ok(replies)
    };
    let limit_s = shared.config.query_timeout_s;
    let fenced = AssertUnwindSafe(work).catch_unwind();
    match tokio::time::timeout(Duration::from_secs(limit_s), fenced).await {
        Err(_) => Err(Error::Timeout { limit_s }),
        // The panic's own text went to the log; it may name what a client should not see.
        Ok(Err(_)) => Err(Error::Internal { what: "the query panicked".into() }),
        Ok(Ok(result)) => result,
    }
}
