//! `/healthz` and `/readyz`.

use super::Shared;
use super::reply::Failure;
use crate::error::Error;
use axum::extract::State;
use std::sync::Arc;

/// The process answers.
pub(super) async fn live() -> &'static str {
    "ok\n"
}

/// New queries are taken.
pub(super) async fn ready(State(shared): State<Arc<Shared>>) -> Result<&'static str, Failure> {
    if shared.leaving.is_cancelled() {
        return Err(Failure(Error::ShuttingDown));
    }
    Ok("ready\n")
}
