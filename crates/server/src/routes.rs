//! The HTTP server.
//!
//! `POST /v1/query` in order: the guard (token, origin), the body within its limit, a place among the running queries,
//! the engine within its time, the writer, the answer. A client that leaves drops the request, and with it the query.

mod guard;
mod health;
mod query;
mod reply;

use crate::config::Config;
use crate::engine::Engine;
use crate::error::Error;
use axum::Router;
use axum::extract::DefaultBodyLimit;
use axum::http::{Method, Uri};
use axum::routing::{get, post};
use reply::Failure;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::Semaphore;
use tokio_util::sync::CancellationToken;

/// What running queries have to end after the server was asked to go.
const GRACE: Duration = Duration::from_secs(10);

/// What all requests share.
struct Shared {
    engine: Arc<dyn Engine>,
    config: Config,
    /// A permit for each query that may run.
    places: Arc<Semaphore>,
    /// Fired when the server is asked to go: new queries are refused.
    leaving: CancellationToken,
    /// Fired when the grace is over: running queries are cancelled.
    stop: CancellationToken,
}

/// A server that can be asked to go.
pub struct Server {
    shared: Arc<Shared>,
}

impl Server {
    /// A server of `engine`; nothing listens yet.
    ///
    /// # Errors
    /// An address that others can reach, without a token.
    pub fn new(engine: Arc<dyn Engine>, config: Config) -> Result<Self, Error> {
        if config.token.is_none() && !config.listen.ip().is_loopback() {
            return Err(Error::OpenListen { address: config.listen });
        }
        let places = Arc::new(Semaphore::new(config.max_queries));
        let shared = Shared {
            engine,
            config,
            places,
            leaving: CancellationToken::new(),
            stop: CancellationToken::new(),
        };
        Ok(Server { shared: Arc::new(shared) })
    }

    /// Listens and answers until `leave` is fired; then running queries have ten seconds to end.
    ///
    /// `listening` is told the address, which matters when the port asked for is 0.
    pub async fn serve(
        self,
        leave: CancellationToken,
        listening: impl FnOnce(SocketAddr),
    ) -> Result<(), Error> {
        let shared = self.shared;
        let asked = shared.config.listen;
        let failed = |e| Error::io("listen on", asked.to_string(), e);
        let listener = tokio::net::TcpListener::bind(asked).await.map_err(failed)?;
        listening(listener.local_addr().map_err(failed)?);
        let (leaving, stop) = (shared.leaving.clone(), shared.stop.clone());
        let deadline = {
            let leave = leave.clone();
            async move {
                leave.cancelled().await;
                leaving.cancel();
                tokio::time::sleep(GRACE).await;
                stop.cancel();
                // Cancelled queries answer at once; a client that does not read does not hold the server.
                tokio::time::sleep(Duration::from_secs(2)).await;
            }
        };
        let served = axum::serve(listener, router(shared))
            .with_graceful_shutdown(async move { leave.cancelled().await });
        tokio::select! {
            r = served => r.map_err(|e| Error::io("serve on", asked.to_string(), e)),
            () = deadline => Ok(()),
        }
    }
}

fn router(shared: Arc<Shared>) -> Router {
    let limit = DefaultBodyLimit::max(shared.config.max_request_bytes);
    Router::new()
        .route("/v1/query", post(query::run))
        .layer(axum::middleware::from_fn_with_state(shared.clone(), guard::check))
        .route("/healthz", get(health::live))
        .route("/readyz", get(health::ready))
        .fallback(async |uri: Uri| Failure(Error::NotFound { path: uri.path().into() }))
        .method_not_allowed_fallback(async |method: Method, uri: Uri| {
            Failure(Error::Method { path: uri.path().into(), method: method.to_string() })
        })
        .layer(limit)
        .with_state(shared)
}

#[cfg(test)]
mod tests;
