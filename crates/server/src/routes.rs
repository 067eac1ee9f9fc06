//! The HTTP server.
//!
//! The life of `POST /v1/statements`:
//! 1. [`accept`] takes the connection; slow or large heads end it.
//! 2. [`guard`] refuses ambiguous heads, and requires the token, or a client of this machine.
//! 3. [`body`] reads the statement within its limit and its timeout; [`tessera_engine::parameters`] binds its
//!    parameters.
//! 4. [`sessions`] finds the session of the header, or makes one for this statement alone.
//! 5. [`registry`] enters it into the queue, runs it when a place is free, and retains its result.
//! 6. The client waits at most `wait_ms`; a small result goes inline, a larger one by [`stream`], with backpressure.
//!
//! Invariants: every wait has a timeout. Whatever a client does, including disconnecting at any moment, its resources
//! are free soon after. A slow client holds only charged memory, and no thread of the engine.

mod accept;
mod body;
mod brake;
mod cluster;
mod error_bodies;
mod guard;
mod health;
mod lead;
mod light;
mod lines;
mod metrics;
mod registry;
mod reply;
mod sessions;
mod statements;
mod stream;
mod tensors;
mod tls;
mod upload;

use axum::Router;
use axum::extract::{DefaultBodyLimit, FromRequestParts, Path};
use axum::http::request::Parts;
use axum::http::{Method, Uri};
use axum::routing::{delete, get, post};
use reply::Failure;
use std::convert::Infallible;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tessera_engine::config::Config;
use tessera_engine::error::Error;
use tessera_engine::session::{Host, Session};
use tessera_engine::{Engine, Handle};
use tokio::net::TcpListener;
use tokio::sync::Semaphore;
use tokio_util::sync::CancellationToken;

/// Upper bound on clients that subscribe to events.
const EVENTS_MAX: usize = 128;
/// Interval between sweeps of finished statements and idle sessions.
const SWEEP_EVERY: Duration = Duration::from_secs(1);
/// Interval between attempts to recover statements from a warehouse that does not respond.
const RESTORE_EVERY: Duration = Duration::from_secs(2);
/// Interval between collections of unneeded chunks.
const COLLECT_EVERY: Duration = Duration::from_secs(600);
/// Interval between collections while chunk storage is full.
const MAKE_ROOM_EVERY: Duration = Duration::from_secs(30);
/// Bytes of a server's result that stay in memory, even if the client reads it slowly; larger ones go to files.
const MEMORY_RESULT_MAX: u64 = 4 << 20;

/// The source of the server's engines.
pub trait Backend: Send + Sync {
    /// Creates a session.
    fn session(&self) -> Arc<dyn Engine>;

    /// The host of all sessions, if they run in this process.
    fn host(&self) -> Option<&Arc<Host>>;
}

/// The engine of this process.
pub struct Local(pub Arc<Host>);

impl Backend for Local {
    fn session(&self) -> Arc<dyn Engine> {
        let limit = self.0.runtime().quota().limit();
        let session = Session::of(self.0.clone());
        Arc::new(session.with_results_in_memory(MEMORY_RESULT_MAX.min(limit / 64)))
    }

    fn host(&self) -> Option<&Arc<Host>> {
        Some(&self.0)
    }
}

/// How long running queries may take during shutdown.
const GRACE: Duration = Duration::from_secs(10);

/// State shared by all requests.
struct Shared {
    backend: Arc<dyn Backend>,
    config: Config,
    statements: Arc<registry::Statements>,
    sessions: sessions::Sessions,
    /// A permit for each result in transfer.
    streams: Arc<Semaphore>,
    /// A permit for each client that subscribes to events.
    events: Arc<Semaphore>,
    uploads: Arc<Semaphore>,
    /// Memory for large bodies.
    bodies: body::Room,
    /// A permit for each catalog lookup and each plan that is shown: they do not wait for running statements.
    look_ups: Arc<Semaphore>,
    metrics: metrics::Metrics,
    role: Arc<lead::Role>,
    /// Counts wrong tokens.
    brake: brake::Brake,
    /// Fired when shutdown begins: new queries are refused.
    leaving: CancellationToken,
    /// Fired when the grace period ends: running queries are cancelled.
    stop: CancellationToken,
}

impl Shared {
    /// A new statement, which ends with the server.
    fn handle(&self) -> Handle {
        Handle::below(&self.stop)
    }

    /// Fails once shutdown has begun.
    fn is_staying(&self) -> Result<(), Error> {
        if self.leaving.is_cancelled() { Err(Error::ShuttingDown) } else { Ok(()) }
    }
}

/// A server that can be shut down.
pub struct Server {
    shared: Arc<Shared>,
    grace: Duration,
    certificates: Option<Arc<tls::Certificates>>,
}

impl Server {
    /// A server of `backend`; nothing listens yet.
    ///
    /// # Errors
    /// Errors of [`Server::may_listen`]; unusable certificates.
    pub fn new(backend: Arc<dyn Backend>, config: Config) -> Result<Self, Error> {
        Server::may_listen(&config)?;
        let certificates = match (&config.certificate, &config.key) {
            (Some(certificate), Some(key)) => {
                Some(Arc::new(tls::Certificates::load(certificate, key)?))
            }
            _ => None,
        };
        let stop = CancellationToken::new();
        let host = backend.host().cloned();
        let role = Arc::new(lead::Role::new(config.standby && host.is_some()));
        let statements = registry::Statements::new(&config, stop.clone(), host, role.clone());
        let shared = Shared {
            statements: Arc::new(statements),
            sessions: sessions::Sessions::new(config.session_timeout_s),
            streams: Arc::new(Semaphore::new(stream::streams_max(config.memory_limit_bytes))),
            events: Arc::new(Semaphore::new(EVENTS_MAX)),
            uploads: Arc::new(Semaphore::new(upload::UPLOADS_MAX)),
            bodies: body::Room::new(config.memory_limit_bytes),
            look_ups: Arc::new(Semaphore::new(tensors::LOOK_UPS_MAX)),
            metrics: metrics::Metrics::default(),
            role,
            brake: brake::Brake::default(),
            backend,
            config,
            leaving: CancellationToken::new(),
            stop,
        };
        Ok(Server { shared: Arc::new(shared), grace: GRACE, certificates })
    }

    /// Refuses to serve other machines without TLS or without a token, unless configured.
    ///
    /// # Errors
    /// `open_listen`: the address is reachable from other machines, and TLS or a token is missing.
    pub fn may_listen(config: &Config) -> Result<(), Error> {
        if config.listen.ip().is_loopback() || config.insecure {
            return Ok(());
        }
        let lacks = match (&config.certificate, &config.token) {
            (Some(_), Some(_)) => return Ok(()),
            (Some(_), None) => "a token",
            (None, Some(_)) => "TLS",
            (None, None) => "TLS and a token",
        };
        Err(Error::OpenListen { address: config.listen, lacks })
    }

    /// Sets the grace period for running queries.
    pub fn with_grace(self, grace: Duration) -> Self {
        Server { grace, ..self }
    }

    /// Begins to listen where the configuration says.
    ///
    /// # Errors
    /// The address is in use, or not of this machine.
    pub async fn listen(config: &Config) -> Result<TcpListener, Error> {
        let bound = TcpListener::bind(config.listen).await;
        bound.map_err(|e| Error::io("listen on", config.listen.to_string(), e))
    }

    /// Serves until `leave` is fired, or until a server that is started as a standby is fenced. Then running queries
    /// have ten seconds to end, and clients that wait for them still get a response. It returns earlier if no client
    /// waits.
    ///
    /// # Errors
    /// The listener does not work.
    pub async fn serve(
        self,
        listener: &TcpListener,
        leave: CancellationToken,
    ) -> Result<Ended, Error> {
        let Server { shared, grace, certificates } = self;
        let at = listener.local_addr();
        let at = at.map_err(|e| Error::io("listen on", shared.config.listen.to_string(), e))?;
        let (leaving, stop, end) =
            (shared.leaving.clone(), shared.stop.clone(), leave.child_token());
        let deadline = {
            let end = end.clone();
            async move {
                end.cancelled().await;
                leaving.cancel();
                tokio::time::sleep(grace).await;
                stop.cancel();
                // Cancelled queries respond at once; a client that does not read does not delay the shutdown.
                tokio::time::sleep(Duration::from_secs(2)).await;
            }
        };
        let (swept, awaited, role) = (shared.clone(), shared.clone(), shared.role.clone());
        let is_awaited = move || awaited.statements.is_awaited(grace);
        // A task of its own: a slow disk under the lease delays no connection.
        let mut lead = tokio::spawn(lead::lead(shared.clone(), at, leave.clone(), end.clone()));
        let sweep = async move {
            loop {
                tokio::time::sleep(SWEEP_EVERY).await;
                swept.statements.sweep();
                swept.sessions.sweep();
            }
        };
        let (stop, host) = (shared.stop.clone(), shared.backend.host().cloned());
        let app = router(shared);
        let result = tokio::select! {
            r = accept::serve(listener, certificates, app, end.clone(), is_awaited) => r,
            () = deadline => Ok(()),
            () = sweep => Ok(()),
            Err(e) = &mut lead => Err(Error::Internal { what: format!("the lease: {e}") }),
        };
        if let Some(host) = host {
            host.leave_to_next();
        }
        // Statements without waiting clients end too.
        stop.cancel();
        if leave.is_cancelled() {
            role.released().await;
        }
        lead.abort();
        let is_fenced = role.is_fenced() && !leave.is_cancelled();
        result.map(|()| if is_fenced { Ended::Fenced } else { Ended::Left })
    }
}

/// How a server ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ended {
    /// The worker was asked to leave.
    Left,
    /// Another server has taken over from it. It may stand by for that one.
    Fenced,
}

/// Recovers the statements that an earlier server accepted. Retries while the warehouse does not respond.
async fn restore(shared: Arc<Shared>) {
    let session = || shared.backend.session();
    while let Err(e) = shared.statements.restore(&session).await {
        shared.role.note(&e);
        if shared.role.is_fenced() {
            return;
        }
        tracing::warn!(error = %e, "what was accepted before is not known yet");
        tokio::select! {
            () = shared.stop.cancelled() => return,
            () = tokio::time::sleep(RESTORE_EVERY) => {}
        }
    }
}

/// Removes unneeded chunks: once the accepted statements are known, at intervals, and earlier if storage is full.
async fn collect(shared: Arc<Shared>) {
    let age = Duration::from_secs(shared.config.durable_ttl_s);
    let mut last: Option<Instant> = None;
    loop {
        tokio::select! {
            () = shared.stop.cancelled() => return,
            () = tokio::time::sleep(RESTORE_EVERY) => {}
        }
        let wants = shared.backend.host().is_some_and(|h| h.durable().wants_room());
        let every = if wants { MAKE_ROOM_EVERY } else { COLLECT_EVERY };
        let due = last.is_none_or(|at| at.elapsed() >= every.min(age));
        if !shared.statements.is_restored() || !due {
            continue;
        }
        last = Some(Instant::now());
        if let Err(e) = shared.statements.collect_chunks(age).await {
            tracing::warn!(error = %e, "chunks that nobody needs could not be removed");
        }
    }
}

fn router(shared: Arc<Shared>) -> Router {
    let limit = DefaultBodyLimit::max(shared.config.max_request_bytes);
    Router::new()
        .route("/v1/query", post(statements::query))
        .route("/v1/statements", post(statements::submit).get(statements::list))
        .route("/v1/statements/{id}", get(statements::get).delete(statements::delete))
        .route("/v1/statements/{id}/result", get(statements::result))
        .route("/v1/statements/{id}/plan", get(statements::plan))
        .route("/v1/statements/{id}/events", get(statements::events))
        .route("/v1/sessions", post(sessions::create))
        .route("/v1/sessions/{id}", delete(sessions::delete))
        .route("/v1/tensors", get(tensors::list))
        .route("/v1/tensors/{name}", get(tensors::get).put(upload::put).delete(tensors::delete))
        .route("/v1/cluster/restart", post(cluster::restart))
        .layer(axum::middleware::from_fn_with_state(shared.clone(), lead::check))
        .route("/v1/cluster", get(cluster::get))
        .route("/metrics", get(metrics::show))
        .layer(axum::middleware::from_fn_with_state(shared.clone(), guard::check))
        .route("/healthz", get(health::live))
        .route("/readyz", get(health::ready))
        .route("/openapi.json", get(health::openapi))
        .fallback(async |uri: Uri| Failure::from(Error::NotFound { path: uri.path().into() }))
        .method_not_allowed_fallback(async |method: Method, uri: Uri| {
            Failure::from(Error::Method { path: uri.path().into(), method: method.to_string() })
        })
        .layer(axum::middleware::from_fn(guard::well_formed))
        .layer(axum::middleware::from_fn_with_state(shared.clone(), metrics::count))
        .layer(limit)
        .with_state(shared)
}

/// The last part of a path, a name or id.
struct Name(String);

impl FromRequestParts<Arc<Shared>> for Name {
    type Rejection = Failure;

    async fn from_request_parts(parts: &mut Parts, shared: &Arc<Shared>) -> Result<Self, Failure> {
        match Path::<String>::from_request_parts(parts, shared).await {
            Ok(Path(name)) => Ok(Name(name)),
            Err(e) => Err(Error::Request { reason: e.body_text() }.into()),
        }
    }
}

struct Parameters(Vec<(String, String)>);

impl FromRequestParts<Arc<Shared>> for Parameters {
    type Rejection = Infallible;

    async fn from_request_parts(parts: &mut Parts, _: &Arc<Shared>) -> Result<Self, Infallible> {
        let query = parts.uri.query().unwrap_or_default();
        let pairs = url::form_urlencoded::parse(query.as_bytes());
        Ok(Parameters(pairs.map(|(k, v)| (k.into_owned(), v.into_owned())).collect()))
    }
}

impl Parameters {
    fn text(&self, name: &str) -> Option<&str> {
        self.0.iter().find(|(k, _)| k == name).map(|(_, v)| v.as_str())
    }

    /// The value of a parameter as a whole number.
    fn number(&self, name: &str) -> Result<Option<u64>, Error> {
        let Some(text) = self.text(name) else { return Ok(None) };
        let number = text.parse().map_err(|_| Error::Request {
            reason: format!("`{name}` is a whole number, not `{text}`"),
        })?;
        Ok(Some(number))
    }

    /// Refuses unknown and repeated parameters: a typo must not be ignored.
    fn only(&self, names: &[&str]) -> Result<(), Error> {
        if let Some((k, _)) = self.0.iter().find(|(k, _)| !names.contains(&k.as_str())) {
            return Err(Error::Request { reason: format!("unknown parameter `{k}`") });
        }
        let twice = |n: &&&str| self.0.iter().filter(|(k, _)| k == **n).count() > 1;
        match names.iter().find(twice) {
            None => Ok(()),
            Some(n) => {
                Err(Error::Request { reason: format!("the parameter `{n}` is given twice") })
            }
        }
    }
}

#[cfg(test)]
mod tests;
