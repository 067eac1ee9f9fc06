//! Authentication and origin checks.
//!
//! With a token, a request must carry it, in the header or, for a link that the server printed, as `?token=`. Wrong
//! tokens are [counted](super::brake). Without a token a loopback server serves this machine. Then browsers are the
//! risk, because any page can post to loopback. So requests of other origins, and host names that only resolve to
//! loopback, are refused. Requests that a browser marks as cross-site are always refused.

use super::Shared;
use super::brake::Peer;
use super::reply::Failure;
use axum::extract::{Request, State};
use axum::http::{HeaderMap, HeaderName, Method, Uri, header};
use axum::middleware::Next;
use axum::response::Response;
use std::net::{IpAddr, Ipv6Addr};
use std::sync::Arc;
use tessera_engine::config::Config;
use tessera_engine::error::Error;

/// Headers that must not repeat: a proxy in front of this server could read another value than the server. The HTTP
/// library refuses two different lengths, but accepts a repeated equal one.
const ONCE: [HeaderName; 4] = [
    header::HOST,
    header::AUTHORIZATION,
    header::CONTENT_TYPE,
    HeaderName::from_static(super::sessions::HEADER),
];

/// The parameter of a link with the token.
const TOKEN: &str = "token=";

/// Refuses an ambiguous head, for any route.
pub(super) async fn well_formed(request: Request, next: Next) -> Result<Response, Failure> {
    unambiguous(request.uri(), request.headers())?;
    Ok(next.run(request).await)
}

fn unambiguous(uri: &Uri, headers: &HeaderMap) -> Result<(), Error> {
    let bad = |reason: String| Err(Error::Request { reason });
    if let Some(twice) = ONCE.iter().find(|name| headers.get_all(*name).iter().nth(1).is_some()) {
        return bad(format!("the header `{twice}` is given twice"));
    }
    let Some(host) = headers.get(header::HOST) else { return Ok(()) };
    let host = host.to_str().unwrap_or_default();
    if parts(host).is_none() {
        return bad("the header `host` is not a name or an address, with or without a port".into());
    }
    match uri.authority() {
        Some(asked) if !asked.as_str().eq_ignore_ascii_case(host) => {
            bad("the request is for another host than the header `host` says".into())
        }
        _ => Ok(()),
    }
}

pub(super) async fn check(
    State(shared): State<Arc<Shared>>,
    mut request: Request,
    next: Next,
) -> Result<Response, Failure> {
    let link = take_token(&mut request);
    let (config, headers) = (&shared.config, request.headers());
    same_site(config, headers)?;
    match &config.token {
        Some(token) => {
            let sent = bearer(headers).or(link.as_deref());
            let sent = sent.ok_or(Error::Unauthorized { sent: false })?;
            let peer = request.extensions().get::<Peer>().copied().unwrap_or_default();
            let is_right = || same(sent.as_bytes(), token.reveal().as_bytes());
            match shared.brake.attempt(peer, is_right)? {
                true => {}
                false => return Err(Error::Unauthorized { sent: true }.into()),
            }
        }
        None => from_here(config, headers)?,
    }
    Ok(next.run(request).await)
}

fn bearer(headers: &HeaderMap) -> Option<&str> {
    let (scheme, token) = header_text(headers, header::AUTHORIZATION)?.split_once(' ')?;
    scheme.eq_ignore_ascii_case("bearer").then(|| token.trim())
}

/// Removes the token of a link from the parameters. Only read-only methods may use links.
fn take_token(request: &mut Request) -> Option<String> {
    if !matches!(*request.method(), Method::GET | Method::HEAD) {
        return None;
    }
    let uri = request.uri();
    let (mut token, mut rest) = (None, Vec::new());
    for pair in uri.query()?.split('&') {
        match pair.strip_prefix(TOKEN) {
            Some(value) => token = Some(value.to_string()),
            None => rest.push(pair),
        }
    }
    token.as_ref()?;
    let path = match rest.is_empty() {
        true => uri.path().to_string(),
        false => format!("{}?{}", uri.path(), rest.join("&")),
    };
    let mut parts = uri.clone().into_parts();
    parts.path_and_query = Some(path.parse().ok()?);
    *request.uri_mut() = Uri::from_parts(parts).ok()?;
    token
}

/// Refuses cross-site requests of a browser. Without a token, another port of this machine is another site too.
fn same_site(config: &Config, headers: &HeaderMap) -> Result<(), Error> {
    let text = |name| header_text(headers, name);
    let refused = |site: &str| Err(Error::Forbidden { reason: format!("{site} may not ask") });
    match text(HeaderName::from_static("sec-fetch-site")) {
        Some("cross-site") => return refused("pages of other sites"),
        Some("same-site") if config.token.is_none() => return refused("pages of other origins"),
        _ => {}
    }
    let host = text(header::HOST);
    match text(header::ORIGIN).filter(|_| config.token.is_none()) {
        Some(origin) if origin.split_once("://").is_none_or(|(_, o)| Some(o) != host) => {
            refused(&format!("pages of `{origin}`"))
        }
        _ => Ok(()),
    }
}

/// Refuses host names that are not this machine's, unless other machines may connect without a token.
fn from_here(config: &Config, headers: &HeaderMap) -> Result<(), Error> {
    let host = header_text(headers, header::HOST).unwrap_or_default();
    match is_local(host) || !config.listen.ip().is_loopback() {
        true => Ok(()),
        false => Err(Error::Forbidden { reason: format!("`{host}` is not this machine") }),
    }
}

fn header_text(headers: &HeaderMap, name: HeaderName) -> Option<&str> {
    headers.get(name)?.to_str().ok()
}

/// The name or address of a `Host`, and its port.
fn parts(host: &str) -> Option<(&str, Option<u16>)> {
    let is_port = |text: &str| text.bytes().all(|b| b.is_ascii_digit());
    let port = |text: &str| is_port(text).then(|| text.parse::<u16>().ok()).flatten();
    if let Some(rest) = host.strip_prefix('[') {
        let (address, rest) = rest.split_once(']')?;
        address.parse::<Ipv6Addr>().ok()?;
        return match rest.strip_prefix(':') {
            Some(text) => Some((address, Some(port(text)?))),
            None => rest.is_empty().then_some((address, None)),
        };
    }
    let (name, number) = match host.split_once(':') {
        Some((name, text)) => (name, Some(port(text)?)),
        None => (host, None),
    };
    let is_name = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'.' | b'_');
    (!name.is_empty() && name.bytes().all(is_name)).then_some((name, number))
}

/// True for `localhost`, `127.0.0.1:8080`, `[::1]:8080`: names that no other party controls.
fn is_local(host: &str) -> bool {
    let Some((name, _)) = parts(host) else { return false };
    name.eq_ignore_ascii_case("localhost")
        || name.parse::<IpAddr>().is_ok_and(|ip| ip.is_loopback())
}

/// Constant-time comparison.
fn same(a: &[u8], b: &[u8]) -> bool {
    a.len() == b.len() && a.iter().zip(b).fold(0, |d, (x, y)| d | (x ^ y)) == 0
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;

    #[test]
    fn hosts_are_names_or_addresses_and_nothing_more() {
        for local in
            ["localhost", "LOCALHOST:80", "127.0.0.1", "127.1.2.3:8080", "[::1]", "[::1]:80"]
        {
            assert!(is_local(local), "{local}");
        }
        for other in
            ["evil.example", "127.0.0.1.evil.example:80", "localhost.evil", "0.0.0.0", "[::2]:80"]
        {
            assert!(!is_local(other) && parts(other).is_some(), "{other}");
        }
        for none in [
            "[::1].evil.example",
            "[::1]evil",
            "[::1]:80evil",
            "[::1",
            "::1",
            "127.0.0.1:80:evil.example",
            "127.0.0.1:+80",
            "127.0.0.1:99999",
            "localhost:",
            "localhost@evil.example",
            "localhost/evil",
            "",
        ] {
            assert!(!is_local(none) && parts(none).is_none(), "{none}");
        }
    }

    #[test]
    fn the_token_of_a_link_is_taken_out_of_it() {
        let take = |method: Method, uri: &str| {
            let mut request =
                Request::builder().method(method).uri(uri).body(axum::body::Body::empty());
            let request = request.as_mut().unwrap();
            (take_token(request), request.uri().to_string())
        };
        assert_eq!(take(Method::GET, "/a?token=x&b=1"), (Some("x".into()), "/a?b=1".into()));
        assert_eq!(take(Method::GET, "/a?token=x"), (Some("x".into()), "/a".into()));
        assert_eq!(take(Method::GET, "/a?tokens=x"), (None, "/a?tokens=x".into()));
        assert_eq!(take(Method::POST, "/a?token=x"), (None, "/a?token=x".into()));
    }
}
