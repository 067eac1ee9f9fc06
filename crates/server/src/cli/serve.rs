//! `tessera serve`.

use super::later;
use crate::routes::{Ended, Local, Server};
use crate::token::{self, Published};
use clap::Args;
use std::collections::BTreeMap;
use std::io::Write;
use std::net::SocketAddr;
use std::sync::Arc;
use tessera_cluster::Cluster;
use tessera_engine::config::{Config, Secret};
use tessera_engine::error::Error;
use tessera_engine::session::Host;
use tokio_util::sync::CancellationToken;

#[derive(Debug, Args)]
pub(super) struct ServeArgs {
    /// Address to listen on [default: 127.0.0.1:8080]
    #[arg(long, value_name = "ADDRESS")]
    listen: Option<String>,
    /// Address to listen on for Flight SQL; hidden while it is not supported
    #[arg(long, value_name = "ADDRESS", hide = true)]
    flight: Option<String>,
    /// Directory or URL prefix that statements may read besides the warehouse, or `*` for everything; may be repeated
    #[arg(long, value_name = "PATH")]
    allow_read: Vec<String>,
    /// Directory or URL prefix that statements may read and write (COPY); may be repeated
    #[arg(long, value_name = "PATH")]
    allow_write: Vec<String>,
    /// Do not require a token: anyone who can reach the port may run statements
    #[arg(long)]
    no_token: bool,
    /// Allow remote clients without TLS (and, with --no-token, without a token)
    #[arg(long)]
    insecure: bool,
    /// PEM file with the server's certificate chain, for HTTPS; reloaded when it changes
    #[arg(long, value_name = "FILE")]
    certificate: Option<String>,
    /// PEM file with the private key of the certificate
    #[arg(long, value_name = "FILE")]
    key: Option<String>,
    /// Wait for the end of a live server of the warehouse and take over from it, instead of fencing it at once
    #[arg(long)]
    standby: bool,
    /// URL at which clients reach this server, if it differs from --listen
    #[arg(long, value_name = "URL")]
    public_url: Option<String>,
    /// Accept workers
    #[arg(long)]
    cluster: bool,
    /// Address to accept workers on
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
        let switches =
            [("no-token", self.no_token), ("insecure", self.insecure), ("standby", self.standby)];
        for (key, is_set) in switches {
            if is_set {
                flags.insert(key, "true".into());
            }
        }
        for (key, file) in [("certificate", &self.certificate), ("key", &self.key)] {
            if let Some(file) = file {
                flags.insert(key, file.clone());
            }
        }
        if let Some(url) = &self.public_url {
            flags.insert("public-url", url.clone());
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

/// Serves until SIGINT or SIGTERM. A server that was started as a standby becomes a standby again after another server
/// has taken over from it.
pub(super) async fn run(config: Config) -> Result<(), Error> {
    let mut config = config.serving();
    let made = (config.token.is_none() && !config.no_token).then(token::make);
    config.token = config.token.or_else(|| made.clone());
    Server::may_listen(&config)?;
    let (mut server, mut cluster) = open(&config).await?;
    let leave = CancellationToken::new();
    let terminated = terminated()?;
    let fire = leave.clone();
    tokio::spawn(async move {
        terminated.await;
        tracing::info!("shutting down");
        fire.cancel();
    });
    let listener = Server::listen(&config).await?;
    let address = listener.local_addr().map_err(|e| Error::io("listen on", "a port", e))?;
    let workers = cluster.as_ref().map(|cluster| cluster.address());
    let published = told(&config, address, workers, made);
    if let Some(at) = workers {
        config.cluster_listen = at;
    }
    let served = loop {
        let served = server.serve(&listener, leave.clone()).await;
        if let Some(cluster) = cluster {
            cluster.close().await;
        }
        match served {
            Ok(Ended::Fenced) => (server, cluster) = open(&config).await?,
            Ok(Ended::Left) => break Ok(()),
            Err(e) => break Err(e),
        }
    };
    drop(published);
    served
}

/// A server that does not listen for clients yet, and its workers' side.
async fn open(config: &Config) -> Result<(Server, Option<Arc<Cluster>>), Error> {
    let host = Host::open(config.clone(), tokio::runtime::Handle::current())?;
    host.keep_private()?;
    let cluster = if config.cluster { Some(host.accept_workers().await?) } else { None };
    Ok((Server::new(Arc::new(Local(host)), config.clone())?, cluster))
}

/// Prints where the server listens, and how clients find the token that it made.
fn told(
    config: &Config,
    address: SocketAddr,
    workers: Option<SocketAddr>,
    made: Option<Secret>,
) -> Option<Published> {
    let who = match (&config.token, config.listen.ip().is_loopback()) {
        (Some(_), _) => "with a token",
        (None, true) => "on loopback only, without a token",
        (None, false) => "for everybody, without a token",
    };
    let scheme = if config.certificate.is_some() { "https" } else { "http" };
    // A failure of stderr cannot be reported.
    let mut out = std::io::stderr().lock();
    let _ = writeln!(out, "listening on {scheme}://{address} ({who})");
    if let Some(at) = workers {
        let _ = writeln!(out, "workers join with `tessera worker --scheduler {at}`");
    }
    if config.standby {
        let _ = writeln!(out, "waiting for the end of the live server of `{}`", config.warehouse);
    }
    let token = made?;
    let bare = token.reveal();
    let _ = writeln!(out, "look at {scheme}://{address}/v1/tensors?token={bare}");
    let _ = writeln!(out, "or send `Authorization: Bearer {bare}`");
    match Published::new(address, &token) {
        Ok(file) => {
            let at = file.path().display();
            let _ = writeln!(out, "`tessera --connect` of this user finds it in {at}");
            Some(file)
        }
        Err(e) => {
            let _ = writeln!(out, "no file was made for it: {e}");
            None
        }
    }
}

/// Returns when the process is asked to end.
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
