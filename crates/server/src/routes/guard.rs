//! Who may ask.
//!
//! With a token: whoever sends it. Without one the server listens on loopback only; then a browser is the danger, as any
//! page that it shows can post to loopback. So requests of other origins, and names that only resolve to loopback, are
//! refused.

use super::Shared;
use super::reply::Failure;
use crate::config::Config;
use crate::error::Error;
use axum::extract::{Request, State};
use axum::http::{HeaderMap, header};
use axum::middleware::Next;
use axum::response::Response;
use std::net::IpAddr;
use std::sync::Arc;

pub(super) async fn check(
    State(shared): State<Arc<Shared>>,
    request: Request,
    next: Next,
) -> Result<Response, Failure> {
    allowed(&shared.config, request.headers())?;
    Ok(next.run(request).await)
}

fn allowed(config: &Config, headers: &HeaderMap) -> Result<(), Error> {
    let text = |name| header_text(headers, name);
    if let Some(token) = &config.token {
        let sent = text(header::AUTHORIZATION).and_then(|v| {
            let (scheme, token) = v.split_once(' ')?;
            scheme.eq_ignore_ascii_case("bearer").then(|| token.trim())
        });
        return match sent {
            Some(s) if same(s.as_bytes(), token.reveal().as_bytes()) => Ok(()),
            sent => Err(Error::Unauthorized { sent: sent.is_some() }),
        };
    }
    let host = text(header::HOST).unwrap_or_default();
    if !is_local(host) {
        return Err(Error::Forbidden { reason: format!("`{host}` is not this machine") });
    }
    match text(header::ORIGIN) {
        Some(origin) if origin.split_once("://").is_none_or(|(_, o)| o != host) => {
            Err(Error::Forbidden { reason: format!("pages of `{origin}` may not ask") })
        }
        _ => Ok(()),
    }
}

fn header_text(headers: &HeaderMap, name: header::HeaderName) -> Option<&str> {
    headers.get(name)?.to_str().ok()
}

/// True for `localhost`, `127.0.0.1:8080`, `[::1]:8080`: what cannot be a name that somebody else controls.
fn is_local(host: &str) -> bool {
    let name = match host.strip_prefix('[') {
        Some(rest) => rest.split(']').next().unwrap_or_default(),
        None => host.rsplit_once(':').map_or(host, |(name, _)| name),
    };
    name.eq_ignore_ascii_case("localhost")
        || name.parse::<IpAddr>().is_ok_and(|ip| ip.is_loopback())
}

/// Compares in a time that does not tell where the first difference is.
fn same(a: &[u8], b: &[u8]) -> bool {
    a.len() == b.len() && a.iter().zip(b).fold(0, |d, (x, y)| d | (x ^ y)) == 0
}
