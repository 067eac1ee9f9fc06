//! Errors and documents as HTTP responses.

use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use serde_json::Value;
use tessera_engine::error::Error;

/// Codes of responses with status 503 that are no reason to warn.
const QUIET: [&str; 4] = ["timeout", "shutting_down", "standby", "fenced"];

/// An error response.
pub(super) struct Failure {
    status: u16,
    retry_after_s: u64,
    code: String,
    text: String,
    body: Value,
}

impl Failure {
    /// The error of a statement.
    pub(super) fn of(error: &Error, statement_id: Option<&str>) -> Self {
        let detail = error.detail().map_or(String::new(), |d| format!(": {d}"));
        Failure {
            status: error.status(),
            retry_after_s: error.retry_after_s(),
            code: error.code().into(),
            text: format!("{error}{detail}"),
            body: error.to_json(statement_id),
        }
    }
}

impl Failure {
    /// The same without details that only the server knows: `path` is replaced by `name`, and the position is removed,
    /// because the client did not write the statement.
    pub(super) fn of_upload(error: &Error, path: &str, name: &str) -> Self {
        let mut failure = Failure::of(error, None);
        let told = &mut failure.body["error"];
        told["position"] = Value::Null;
        for field in ["message", "detail", "hint"] {
            if let Some(text) = told[field].as_str() {
                told[field] = text.replace(&format!("`{path}`"), name).replace(path, name).into();
            }
        }
        failure
    }
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        Failure::of(&error, None)
    }
}

impl IntoResponse for Failure {
    fn into_response(self) -> Response {
        let status = StatusCode::from_u16(self.status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
        // Errors that the client may retry are not faults of the server, nor are waits that the client requested.
        match self.status {
            500 => tracing::error!(code = self.code, "{}", self.text),
            501.. if QUIET.contains(&self.code.as_str()) => {
                tracing::info!(code = self.code, "{}", self.text);
            }
            501.. => tracing::warn!(code = self.code, "{}", self.text),
            _ => {}
        }
        let mut response = json(status, &self.body);
        let headers = response.headers_mut();
        match status {
            StatusCode::TOO_MANY_REQUESTS | StatusCode::SERVICE_UNAVAILABLE => {
                headers.insert(header::RETRY_AFTER, HeaderValue::from(self.retry_after_s));
            }
            StatusCode::UNAUTHORIZED => {
                headers.insert(header::WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
            }
            _ => {}
        }
        response
    }
}

pub(super) fn json(status: StatusCode, value: &Value) -> Response {
    text(status, "application/json", format!("{value}\n"))
}

/// A response with a body of this type.
pub(super) fn text(status: StatusCode, kind: &'static str, body: String) -> Response {
    (status, [(header::CONTENT_TYPE, kind)], body).into_response()
}
