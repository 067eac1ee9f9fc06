//! The servers of one warehouse, of which one is live.

use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::time::Duration;
use tessera_engine::error::Error;
use url::{Host, Url};

/// Codes of requests that another server does, or will do.
const OF_OTHERS: [&str; 4] = ["connect", "standby", "fenced", "shutting_down"];
/// The code of a live server that does not know yet which statements earlier servers had accepted.
const STARTING: &str = "starting";

/// A server, and its token.
pub(super) struct Server {
    number: usize,
    base: Url,
    token: Option<String>,
}

/// All servers, and which of them is asked.
pub(super) struct Servers {
    all: Vec<Server>,
    current: AtomicUsize,
}

impl Server {
    fn parse(number: usize, url: &str, token: Option<&str>) -> Result<Self, Error> {
        let usage = |reason: String| Error::Usage {
            reason,
            hint: Some("write `--connect http://127.0.0.1:8080`".into()),
        };
        let base = Url::parse(url).map_err(|e| usage(format!("`{url}` is not a URL: {e}")))?;
        if !matches!(base.scheme(), "http" | "https") || base.host_str().is_none() {
            return Err(usage(format!("`{url}` is not a URL of a server")));
        }
        let token = token.map(String::from).or_else(|| crate::token::find(&base));
        Ok(Server { number, base, token })
    }

    /// The URL of a path and its parameters.
    pub(super) fn url(&self, path: &str) -> Url {
        let mut url = self.base.clone();
        let (path, query) = path.split_once('?').map_or((path, None), |(p, q)| (p, Some(q)));
        url.set_path(&format!("{}{path}", self.base.path().trim_end_matches('/')));
        url.set_query(query);
        url
    }

    pub(super) fn token(&self) -> Option<&str> {
        self.token.as_deref()
    }

    fn is_local(&self) -> bool {
        match self.base.host() {
            Some(Host::Domain(d)) => d.eq_ignore_ascii_case("localhost"),
            Some(Host::Ipv4(ip)) => ip.is_loopback(),
            Some(Host::Ipv6(ip)) => ip.is_loopback(),
            None => false,
        }
    }

    pub(super) fn unreachable(&self, e: &reqwest::Error) -> Error {
        // The innermost cause is the clearest: "connection refused".
        let mut cause: &dyn std::error::Error = e;
        while let Some(inner) = cause.source() {
            cause = inner;
        }
        Error::Connect { url: self.shown(), reason: cause.to_string() }
    }

    /// The error of a server that takes no more of an upload, or does not respond to it.
    pub(super) fn silent(&self, time: Duration) -> Error {
        let reason = format!("an upload did not go on for {} s", time.as_secs());
        Error::Connect { url: self.shown(), reason }
    }

    fn shown(&self) -> String {
        let mut url = self.base.clone();
        // The part before `@` may be a secret. A URL with a host accepts both calls.
        let _ = url.set_username("").and_then(|()| url.set_password(None));
        url.to_string()
    }
}

impl Servers {
    /// The servers of URLs that are separated by commas.
    pub(super) fn parse(urls: &str, token: Option<&str>) -> Result<Self, Error> {
        let urls = urls.split(',').map(str::trim).enumerate();
        let all: Result<Vec<Server>, Error> =
            urls.map(|(number, url)| Server::parse(number, url, token)).collect();
        Ok(Servers { all: all?, current: AtomicUsize::new(0) })
    }

    pub(super) fn are_several(&self) -> bool {
        self.all.len() > 1
    }

    pub(super) fn are_local(&self) -> bool {
        self.all.iter().all(Server::is_local)
    }

    /// The server to ask.
    pub(super) fn current(&self) -> &Server {
        // `split` returns at least one server.
        &self.all[self.current.load(Relaxed) % self.all.len()]
    }

    /// True if a request that met this error is to be sent again: several servers are configured, and this one is not
    /// live, or not yet. If it is not live, the next server is asked from now on.
    pub(super) fn may_go_on(&self, server: &Server, error: &Error) -> bool {
        if !self.are_several() {
            return false;
        }
        if OF_OTHERS.contains(&error.code()) {
            let next = (server.number + 1) % self.all.len();
            // Another request may have found that out at the same time.
            let _ = self.current.compare_exchange(server.number, next, Relaxed, Relaxed);
            return true;
        }
        error.code() == STARTING
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]
    use super::*;

    #[test]
    fn servers_that_are_not_live_are_passed_over() {
        let gone = Error::Connect { url: "http://a".into(), reason: "refused".into() };
        let one = Servers::parse("http://a", None).unwrap();
        assert!(!one.may_go_on(one.current(), &gone));
        let servers = Servers::parse("http://a, https://b:1/below/", Some("x")).unwrap();
        let first = servers.current();
        assert_eq!(first.url("/v1/query?a=b").as_str(), "http://a/v1/query?a=b");
        assert!(!servers.may_go_on(first, &Error::Cancelled));
        assert!(servers.may_go_on(first, &Error::Starting));
        assert_eq!(servers.current().number, 0);
        assert!(servers.may_go_on(first, &gone) && servers.may_go_on(first, &gone));
        let second = servers.current();
        assert_eq!((second.number, second.token()), (1, Some("x")));
        assert_eq!(second.url("/readyz").as_str(), "https://b:1/below/readyz");
        assert!(servers.may_go_on(second, &Error::ShuttingDown));
        assert_eq!(servers.current().number, 0);
        for bad in ["http://a,", "", "http://a,b"] {
            assert!(Servers::parse(bad, None).is_err(), "{bad}");
        }
    }
}
