//! `/healthz`, `/readyz` and `/openapi.json`.

use super::Shared;
use super::reply::Failure;
use axum::extract::State;
use axum::http::StatusCode;
use axum::response::Response;
use std::sync::Arc;

/// `GET /healthz`: the process responds.
pub(super) async fn live() -> &'static str {
    "ok\n"
}

/// `GET /readyz`: the server accepts queries, has recovered earlier statements, and is neither a standby nor fenced by
/// another server.
pub(super) async fn ready(State(shared): State<Arc<Shared>>) -> Result<&'static str, Failure> {
    shared.is_staying()?;
    shared.role.check()?;
    if !shared.statements.is_restored() {
        return Err(tessera_engine::error::Error::Starting.into());
    }
    shared.statements.may_write().await?;
    Ok("ready\n")
}

/// `GET /openapi.json`: the description of this API.
pub(super) async fn openapi() -> Response {
    let document = include_str!("openapi.json")
        .replace("\"VERSION\"", concat!('"', env!("CARGO_PKG_VERSION"), '"'));
    super::reply::text(StatusCode::OK, "application/json", document)
}
