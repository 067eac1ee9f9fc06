//! `tessera serve`.

use super::later;
use crate::config::Config;
use crate::error::Error;
use crate::routes::{Local, Server};
use crate::session::Host;
use clap::Args;
use std::collections::BTreeMap;
use std::io::Write;
use std::sync::Arc;

#[derive(Debug, Args)]
pub(super) struct ServeArgs {
    /// Where to listen [default: 127.0.0.1:8080]
    #[arg(long, value_name = "ADDRESS")]
    listen: Option<String>,
    /// Where to listen for Flight SQL
    #[arg(long, value_name = "ADDRESS")]
    flight: Option<String>,
    /// Directory or URL prefix that statements may read, beside the warehouse; `*` for everything (may be repeated)
    #[arg(long, value_name = "PATH")]
    allow_read: Vec<String>,
    /// The same for COPY and reading
    #[arg(long, value_name = "PATH")]
    allow_write: Vec<String>,
    /// Accept workers
    #[arg(long)]
    cluster: bool,
    /// Where workers are accepted
    #[arg(long, value_name = "ADDRESS")]
    cluster_listen: Option<String>,
}

impl ServeArgs {
    pub(super) fn flags(&self, flags: &mut BTreeMap<&'static str, String>) {
        if let Some(l) = &self.listen {
            flags.insert("listen", l.clone());
        }
        for (key, list) in [("allow-read", &self.allow_read), ("allow-write", &self.allow_write)] {
            if !list.is_empty() {
                flags.insert(key, list.join(","));
            }
        }
        if self.cluster {
            flags.insert("cluster", "true".into());
        }
        if let Some(l) = &self.cluster_listen {
            flags.insert("cluster-listen", l.clone());
        }
    }

    pub(super) fn check(&self) -> Result<(), Error> {
        if self.flight.is_some() {
            return Err(later("Flight SQL (`--flight`)"));
        }
        Ok(())
    }
}

/// Serves until SIGINT or SIGTERM.
pub(super) async fn run(config: Config) -> Result<(), Error> {
    let config = config.serving();
    let host = Host::open(config.clone(), tokio::runtime::Handle::current())?;
    host.make_files()?;
    let who = match config.token {
        Some(_) => "with a token",
        None => "on loopback only, as no token is configured",
    };
    let cluster = match config.cluster {
        true => Some(host.accept_workers().await?),
        false => None,
    };
    let collecting = host.clone();
    let server = Server::new(Arc::new(Local(host)), config)?;
    // Now the host knows that it is a server's.
    tokio::spawn(async move { collecting.collect().await });
    let leave = tokio_util::sync::CancellationToken::new();
    let terminated = terminated()?;
    let fire = leave.clone();
    tokio::spawn(async move {
        terminated.await;
        tracing::info!("shutting down");
        fire.cancel();
    });
    let served = server
        .serve(leave, |address| {
            // Without stderr there is nobody to tell.
            let mut out = std::io::stderr().lock();
            let _ = writeln!(out, "listening on http://{address} ({who})");
            if let Some(cluster) = &cluster {
                let at = cluster.address();
                let _ = writeln!(out, "workers join with `tessera worker --scheduler {at}`");
            }
        })
        .await;
    if let Some(cluster) = cluster {
        cluster.close().await;
    }
    served
}

/// Comes when the process is asked to end.
pub(super) fn terminated() -> Result<impl Future<Output = ()>, Error> {
    use tokio::signal::unix::{SignalKind, signal};
    let catch = |kind| signal(kind).map_err(|e| Error::io("catch", "signals", e));
    let (mut interrupt, mut terminate) =
        (catch(SignalKind::interrupt())?, catch(SignalKind::terminate())?);
    Ok(async move {
        tokio::select! {
            _ = interrupt.recv() => {}
            _ = terminate.recv() => {}
        }
    })
}
