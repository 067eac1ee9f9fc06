//! Servers of other object stores than S3 for tests: Google's, Azure's, and a web server; each on a loopback address.
//!
//! They implement the requests that our clients make, and check them as the services do: signatures, names of headers,
//! conditions, ranges. Any other request is an error.
//!
//! `service_account.json` is a key that was made for these tests; no account has it.

pub(crate) mod azure;
pub(crate) mod gcs;
pub(crate) mod objects;
pub(crate) mod text;
pub(crate) mod web;

use axum::Router;
use axum::body::{Body, Bytes, to_bytes};
use axum::extract::Request;
use axum::http::{HeaderMap, Method, Response, StatusCode};
use axum::serve::Listener;
use std::io;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::net::{TcpListener, TcpStream};
use tokio_rustls::TlsAcceptor;
use tokio_rustls::server::TlsStream;

/// Faults of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Trouble {
    /// 500 instead of doing it.
    Broken,
    /// 503 instead of doing it.
    Busy,
    /// The server executes the request, and half of the response arrives.
    Truncated,
    /// The server executes the request, and responds with 503.
    Lost,
    /// Nothing, for long.
    Silent,
}

impl Trouble {
    /// The faults after which a request is repeated.
    pub(crate) const PASSING: [Trouble; 3] = [Trouble::Broken, Trouble::Truncated, Trouble::Lost];
}

/// A request.
#[derive(Debug)]
pub(crate) struct Asked {
    pub(crate) method: Method,
    /// The path as it was sent.
    pub(crate) path: String,
    /// The parameters, decoded, in their order.
    pub(crate) query: Vec<(String, String)>,
    pub(crate) headers: HeaderMap,
    pub(crate) body: Bytes,
}

impl Asked {
    pub(crate) fn header(&self, name: &str) -> &str {
        self.headers.get(name).map_or("", |value| value.to_str().unwrap())
    }

    pub(crate) fn parameter(&self, name: &str) -> Option<&str> {
        self.query.iter().find(|(key, _)| key == name).map(|(_, value)| value.as_str())
    }
}

/// Selects the fault of a request by its number and first line.
type Plan = Box<dyn Fn(u64, &str) -> Option<Trouble> + Send + Sync>;
type Answer = Box<dyn Fn(&Asked) -> Response<Body> + Send + Sync>;

/// A server; it ends when it is dropped.
pub(crate) struct Server {
    pub(crate) address: SocketAddr,
    state: Arc<State>,
    _runtime: tokio::runtime::Runtime,
}

struct State {
    answer: Answer,
    plan: Mutex<Plan>,
    count: AtomicU64,
    troubles: AtomicU64,
    /// First lines of the requests, with their range.
    seen: Mutex<Vec<String>>,
}

impl Server {
    pub(crate) fn start(
        tls: Option<TlsAcceptor>,
        answer: impl Fn(&Asked) -> Response<Body> + Send + Sync + 'static,
    ) -> Server {
        let state = Arc::new(State {
            answer: Box::new(answer),
            plan: Mutex::new(Box::new(|_, _| None)),
            count: AtomicU64::default(),
            troubles: AtomicU64::default(),
            seen: Mutex::default(),
        });
        let mut runtime = tokio::runtime::Builder::new_multi_thread();
        let runtime = runtime.worker_threads(2).enable_all().build().unwrap();
        let tcp = runtime.block_on(TcpListener::bind("127.0.0.1:0")).unwrap();
        let address = tcp.local_addr().unwrap();
        let shared = state.clone();
        let router = Router::new().fallback(move |request| serve(shared.clone(), request));
        match tls {
            None => runtime.spawn(axum::serve(tcp, router).into_future()),
            Some(acceptor) => {
                runtime.spawn(axum::serve(Tls { tcp, acceptor }, router).into_future())
            }
        };
        Server { address, state, _runtime: runtime }
    }

    /// From now on requests meet the faults of `plan`.
    pub(crate) fn plan(&self, plan: impl Fn(u64, &str) -> Option<Trouble> + Send + Sync + 'static) {
        *self.state.plan.lock().unwrap() = Box::new(plan);
    }

    /// Each request meets the trouble the first time that it is made.
    pub(crate) fn trouble_once(&self, trouble: Trouble) {
        let seen = Mutex::new(std::collections::BTreeSet::new());
        self.plan(move |_, line| seen.lock().unwrap().insert(line.to_string()).then_some(trouble));
    }

    /// Requests that met a trouble.
    pub(crate) fn troubles(&self) -> u64 {
        self.state.troubles.load(Relaxed)
    }

    /// First lines of the requests since the last call.
    pub(crate) fn take_seen(&self) -> Vec<String> {
        std::mem::take(&mut *self.state.seen.lock().unwrap())
    }
}

async fn serve(state: Arc<State>, request: Request) -> Response<Body> {
    let (parts, body) = request.into_parts();
    let Ok(body) = to_bytes(body, 1 << 30).await else {
        return empty(StatusCode::BAD_REQUEST);
    };
    let asked = Asked {
        method: parts.method,
        path: parts.uri.path().to_string(),
        query: text::pairs(parts.uri.query().unwrap_or_default()),
        headers: parts.headers,
        body,
    };
    let query = parts.uri.query().map_or(String::new(), |query| format!("?{query}"));
    let line = format!("{} {}{query} {}", asked.method, asked.path, asked.header("range"));
    state.seen.lock().unwrap().push(line.clone());
    let number = state.count.fetch_add(1, Relaxed);
    let trouble = (state.plan.lock().unwrap())(number, &line);
    state.troubles.fetch_add(u64::from(trouble.is_some()), Relaxed);
    match trouble {
        Some(Trouble::Broken) => return empty(StatusCode::INTERNAL_SERVER_ERROR),
        Some(Trouble::Busy) => return empty(StatusCode::SERVICE_UNAVAILABLE),
        Some(Trouble::Silent) => tokio::time::sleep(Duration::from_secs(600)).await,
        _ => {}
    }
    let answer = (state.answer)(&asked);
    match trouble {
        Some(Trouble::Lost) => empty(StatusCode::SERVICE_UNAVAILABLE),
        Some(Trouble::Truncated) => truncated(answer).await,
        _ => answer,
    }
}

/// The answer with half of its body; the connection ends there.
async fn truncated(answer: Response<Body>) -> Response<Body> {
    let (mut parts, body) = answer.into_parts();
    let body = to_bytes(body, usize::MAX).await.unwrap();
    parts.headers.entry("content-length").or_insert(body.len().into());
    let half = body.slice(..body.len() / 2);
    if body.is_empty() {
        return Response::from_parts(parts, Body::empty());
    }
    let pieces = [Ok(half), Err(io::Error::other("a trouble of the test"))];
    Response::from_parts(parts, Body::from_stream(futures::stream::iter(pieces)))
}

pub(crate) fn empty(status: StatusCode) -> Response<Body> {
    Response::builder().status(status).body(Body::empty()).unwrap()
}

/// An error as the clouds report it.
pub(crate) fn refusal(asked: &Asked, status: u16, code: &str, details: &str) -> Response<Body> {
    let text = format!(
        "<?xml version=\"1.0\" encoding=\"utf-8\"?><Error><Code>{code}</Code>\
         <Message>A message of the test.</Message><Details>{details}</Details></Error>"
    );
    // The response to a HEAD has no body.
    let body = if asked.method == Method::HEAD { Body::empty() } else { Body::from(text) };
    Response::builder()
        .status(status)
        .header("content-type", "application/xml")
        .header("x-ms-error-code", code)
        .body(body)
        .unwrap()
}

/// Accepts connections with TLS; one without is dropped.
struct Tls {
    tcp: TcpListener,
    acceptor: TlsAcceptor,
}

impl Listener for Tls {
    type Io = TlsStream<TcpStream>;
    type Addr = SocketAddr;

    async fn accept(&mut self) -> (Self::Io, SocketAddr) {
        loop {
            if let Ok((socket, address)) = self.tcp.accept().await
                && let Ok(socket) = self.acceptor.accept(socket).await
            {
                return (socket, address);
            }
        }
    }

    fn local_addr(&self) -> io::Result<SocketAddr> {
        self.tcp.local_addr()
    }
}
