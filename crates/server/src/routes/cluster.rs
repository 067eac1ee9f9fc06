//! `/v1/cluster`: the workers.

use super::Shared;
use super::reply::{self, Failure};
use crate::error::Error;
use axum::extract::State;
use axum::http::StatusCode;
use axum::response::Response;
use serde_json::json;
use std::sync::Arc;
use std::time::Instant;

/// `GET /v1/cluster`: workers and what happened to them.
pub(super) async fn get(State(shared): State<Arc<Shared>>) -> Response {
    let cluster = shared.backend.host().and_then(|h| h.cluster());
    reply::json(StatusCode::OK, &crate::workers::told(cluster.map(|c| &**c)))
}

/// `POST /v1/cluster/restart`: each worker is told to start again; one that does not answer is ended by its supervisor.
pub(super) async fn restart(State(shared): State<Arc<Shared>>) -> Result<Response, Failure> {
    let cluster = shared.backend.host().and_then(|h| h.cluster());
    let cluster = cluster.ok_or_else(|| Error::Unsupported {
        construct: "a restart of workers by a server that accepts none".into(),
        hint: Some("start it with `--cluster`".into()),
    })?;
    Ok(reply::json(
        StatusCode::OK,
        &json!({ "restarted": cluster.registry().restart(Instant::now()) }),
    ))
}
