//! Connections: their number, timeouts, the size of heads, and TLS if there are certificates.

use super::brake::Peer;
use super::error_bodies::ErrorBodies;
use super::lines::{self, Lines, OpenLine};
use super::tls::Certificates;
use axum::{Extension, Router};
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::server::conn::auto::Builder;
use hyper_util::service::TowerToHyperService;
use std::sync::Arc;
use std::time::Duration;
use tessera_engine::error::Error;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpListener;
use tokio::sync::{AcquireError, OwnedSemaphorePermit, Semaphore};
use tokio_rustls::TlsAcceptor;
use tokio_util::sync::CancellationToken;

/// Upper bound on connections; one more takes the place of [an idle one](super::lines).
const CONNECTIONS_MAX: u32 = 1024;
/// How often a waiting connection looks for an idle one to replace.
const ROOM_EVERY: Duration = Duration::from_millis(50);
/// Timeout for a request's head, and for an idle connection.
const HEAD_TIMEOUT: Duration = Duration::from_secs(15);
/// Upper bound on the size of a request's head in bytes.
const HEAD_BYTES_MAX: usize = 64 << 10;
/// Upper bound on the headers of a request.
const HEADERS_MAX: usize = 100;

/// Interval between checks for the end of the shutdown.
const LOOK_EVERY: Duration = Duration::from_millis(20);

/// Serves connections until `leave` is fired, then until all open ones have ended and `is_awaited` returns false. New
/// connections are accepted until then, because clients poll for statements.
pub(super) async fn serve(
    listener: &TcpListener,
    certificates: Option<Arc<Certificates>>,
    app: Router,
    leave: CancellationToken,
    is_awaited: impl Fn() -> bool,
) -> Result<(), Error> {
    let places = Arc::new(Semaphore::new(CONNECTIONS_MAX as usize));
    let lines = Lines::new();
    // Each connection has a clone.
    let open = Arc::new(());
    let over = async {
        leave.cancelled().await;
        while is_awaited() || Arc::strong_count(&open) > 1 {
            tokio::time::sleep(LOOK_EVERY).await;
        }
    };
    let mut over = std::pin::pin!(over);
    loop {
        let (stream, from) = tokio::select! {
            () = over.as_mut() => break,
            accepted = listener.accept() => match accepted {
                Ok(accepted) => accepted,
                // Out of file handles, or a client that disconnected at once: later connections may succeed.
                Err(e) => {
                    tracing::warn!("a connection was not accepted: {e}");
                    lines.make_room();
                    tokio::time::sleep(Duration::from_millis(50)).await;
                    continue;
                }
            },
        };
        let place = tokio::select! {
            () = over.as_mut() => break,
            place = place(&places, &lines) => place,
        };
        let Ok(place) = place else { break };
        let (app, leave, held) = (app.clone(), leave.clone(), (place, open.clone()));
        let line = lines.add();
        let certificates = certificates.clone();
        tokio::spawn(async move {
            let _held = held;
            let asks = axum::middleware::from_fn_with_state(line.line.clone(), lines::asks);
            let app = app.layer(asks).layer(Extension(Peer::new(from.ip())));
            // Small responses are sent at once. A failure to set it is harmless.
            let _ = stream.set_nodelay(true);
            let Some(certificates) = certificates else {
                return connection(stream, app, leave, &line).await;
            };
            let accepted = TlsAcceptor::from(certificates.current()).accept(stream);
            let accepted = tokio::time::timeout(HEAD_TIMEOUT, accepted);
            let accepted = tokio::select! {
                () = line.line.close.cancelled() => return,
                accepted = accepted => accepted,
            };
            match accepted {
                Ok(Ok(stream)) => connection(stream, app, leave, &line).await,
                Ok(Err(e)) => tracing::debug!("a connection is not TLS: {e}"),
                Err(_) => tracing::debug!("a connection took too long to begin TLS"),
            }
        });
    }
    Ok(())
}

/// A permit for a connection. Idle connections are closed while no permit is available.
async fn place(
    places: &Arc<Semaphore>,
    lines: &Lines,
) -> Result<OwnedSemaphorePermit, AcquireError> {
    loop {
        let place = places.clone().acquire_owned();
        if places.available_permits() == 0 {
            lines.make_room();
        }
        if let Ok(place) = tokio::time::timeout(ROOM_EVERY, place).await {
            return place;
        }
    }
}

async fn connection<S>(stream: S, app: Router, leave: CancellationToken, held: &OpenLine)
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let mut builder = Builder::new(TokioExecutor::new()).http1_only();
    builder
        .http1()
        .timer(TokioTimer::new())
        .header_read_timeout(HEAD_TIMEOUT)
        .max_headers(HEADERS_MAX)
        .max_buf_size(HEAD_BYTES_MAX)
        // During shutdown each connection serves one request: an idle connection would delay it.
        .keep_alive(!leave.is_cancelled());
    let connection = builder.serve_connection(
        TokioIo::new(ErrorBodies::new(stream, held.line.clone())),
        TowerToHyperService::new(app),
    );
    let mut connection = std::pin::pin!(connection);
    let late = leave.is_cancelled();
    let makes_room = async {
        held.line.close.cancelled().await;
        // A request that arrived at the same moment is served.
        while !held.line.is_idle() {
            tokio::time::sleep(LOOK_EVERY).await;
        }
    };
    let result = tokio::select! {
        result = connection.as_mut() => result,
        () = makes_room => return tracing::debug!("an idle connection made room"),
        () = leave.cancelled(), if !late => {
            connection.as_mut().graceful_shutdown();
            connection.await
        }
    };
    if let Err(e) = result {
        tracing::debug!("a connection ended: {e}");
    }
}
