//! `/healthz`, `/readyz` and `/openapi.json`.

use super::Shared;
use super::reply::Failure;
use axum::extract::State;
use axum::http::StatusCode;
use axum::response::Response;
use std::sync::Arc;

/// The process answers.
pub(super) async fn live() -> &'static str {
    "ok\n"
}

/// New queries are taken, those that were taken before the server started are known, and no other server took its place.
pub(super) async fn ready(State(shared): State<Arc<Shared>>) -> Result<&'static str, Failure> {
    shared.is_staying()?;
    if !shared.statements.is_restored() {
        return Err(tessera_engine::error::Error::Starting.into());
    }
    shared.statements.may_write().await?;
    Ok("ready\n")
}

/// `GET /openapi.json`: what this server answers.
pub(super) async fn openapi() -> Response {
    let document = include_str!("openapi.json")
        .replace("\"VERSION\"", concat!('"', env!("CARGO_PKG_VERSION"), '"'));
    super::reply::text(StatusCode::OK, "application/json", document)
}
