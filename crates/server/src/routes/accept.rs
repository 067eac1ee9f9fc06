//! Connections: how many, how slow, how large their heads; TLS, if there are certificates.

use super::brake::Peer;
use super::tls::Certificates;
use super::told::Told;
use crate::error::Error;
use axum::{Extension, Router};
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::server::conn::auto::Builder;
use hyper_util::service::TowerToHyperService;
use std::sync::Arc;
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpListener;
use tokio::sync::Semaphore;
use tokio_rustls::TlsAcceptor;
use tokio_util::sync::CancellationToken;

/// Connections at a time; others wait to be accepted.
const CONNECTIONS_MAX: u32 = 1024;
/// A request's head comes within this time, or the connection ends; also how long a connection may do nothing.
const HEAD_TIMEOUT: Duration = Duration::from_secs(15);
/// Bytes of a request's head.
const HEAD_BYTES_MAX: usize = 64 << 10;
/// Headers of a request.
const HEADERS_MAX: usize = 100;

/// How often a server that was asked to go looks whether it may.
const LOOK_EVERY: Duration = Duration::from_millis(20);

/// Serves connections until `leave` is fired, then until those that are open have ended and nothing `is_awaited` any
/// more. New ones are taken as long: who waits for a statement asks for it anew.
pub(super) async fn serve(
    listener: TcpListener,
    certificates: Option<Arc<Certificates>>,
    app: Router,
    leave: CancellationToken,
    is_awaited: impl Fn() -> bool,
) -> Result<(), Error> {
    let places = Arc::new(Semaphore::new(CONNECTIONS_MAX as usize));
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
        let place = tokio::select! {
            () = over.as_mut() => break,
            place = places.clone().acquire_owned() => place,
        };
        let Ok(place) = place else { break };
        let (stream, from) = tokio::select! {
            () = over.as_mut() => break,
            accepted = listener.accept() => match accepted {
                Ok(accepted) => accepted,
                // Out of file handles, or a client that went away at once: others may still come.
                Err(e) => {
                    tracing::warn!("a connection was not accepted: {e}");
                    tokio::time::sleep(Duration::from_millis(50)).await;
                    continue;
                }
            },
        };
        let (app, leave, held) = (app.clone(), leave.clone(), (place, open.clone()));
        let certificates = certificates.clone();
        tokio::spawn(async move {
            let _held = held;
            let app = app.layer(Extension(Peer::new(from.ip())));
            // Small answers leave at once. That it cannot be set does no harm.
            let _ = stream.set_nodelay(true);
            let Some(certificates) = certificates else {
                return connection(stream, app, leave).await;
            };
            let accepted = TlsAcceptor::from(certificates.current()).accept(stream);
            match tokio::time::timeout(HEAD_TIMEOUT, accepted).await {
                Ok(Ok(stream)) => connection(stream, app, leave).await,
                Ok(Err(e)) => tracing::debug!("a connection is no TLS: {e}"),
                Err(_) => tracing::debug!("a connection took too long to begin TLS"),
            }
        });
    }
    Ok(())
}

async fn connection<S>(stream: S, app: Router, leave: CancellationToken)
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
        // One request each while the server goes: an idle connection would hold it up.
        .keep_alive(!leave.is_cancelled());
    let connection =
        builder.serve_connection(TokioIo::new(Told::new(stream)), TowerToHyperService::new(app));
    let mut connection = std::pin::pin!(connection);
    let late = leave.is_cancelled();
    let result = tokio::select! {
        result = connection.as_mut() => result,
        () = leave.cancelled(), if !late => {
            connection.as_mut().graceful_shutdown();
            connection.await
        }
    };
    if let Err(e) = result {
        tracing::debug!("a connection ended: {e}");
    }
}
