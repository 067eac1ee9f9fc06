//! The role of a server.
//!
//! ```text
//!   standby ── the live server is dead, or has let go ──▶ live ── another server has taken over ──▶ fenced
//! ```
//! A standby listens like a live server. It refuses every request that needs the warehouse (503, `standby`) and every
//! worker, and watches the lease of the live server. Once it has taken over, it recovers statements like any server that
//! starts. A fenced server refuses the same requests (503, `fenced`).

use super::reply::Failure;
use super::{Shared, collect, restore};
use axum::extract::{Request, State};
use axum::middleware::Next;
use axum::response::Response;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;
use tessera_engine::error::Error;
use tessera_engine::journal::{Addresses, NotLive, Standby, Turn};
use tessera_engine::session::Host;
use tokio::sync::watch;
use tokio::time::{MissedTickBehavior, interval, sleep, timeout};
use tokio_util::sync::CancellationToken;

/// How long a server that leaves waits until it has let go of its lease.
const RELEASE_MAX: Duration = Duration::from_secs(2);

/// The role of this server.
#[derive(Debug)]
pub(super) struct Role {
    /// Why it is not live; `None` if it is.
    reason: watch::Sender<Option<NotLive>>,
    /// Fired when this server has let go of its lease, or cannot.
    released: CancellationToken,
}

impl Role {
    /// The role at the start.
    pub(super) fn new(stands_by: bool) -> Self {
        let reason = stands_by.then_some(NotLive::Standby { live: None });
        Role { reason: watch::Sender::new(reason), released: CancellationToken::new() }
    }

    /// Fails unless the server is live.
    ///
    /// # Errors
    /// `standby` or `fenced`, with the URL of the live server.
    pub(super) fn check(&self) -> Result<(), Error> {
        match self.reason() {
            Some(reason) => Err(Error::stage(reason)),
            None => Ok(()),
        }
    }

    /// Why the server is not live; `None` if it is.
    pub(super) fn reason(&self) -> Option<NotLive> {
        self.reason.borrow().clone()
    }

    pub(super) fn name(&self) -> &'static str {
        match &*self.reason.borrow() {
            None => "live",
            Some(NotLive::Standby { .. }) => "standby",
            Some(NotLive::Fenced { .. }) => "fenced",
        }
    }

    pub(super) fn is_fenced(&self) -> bool {
        matches!(&*self.reason.borrow(), Some(NotLive::Fenced { .. }))
    }

    /// Marks the server as fenced if the error says so.
    pub(super) fn note(&self, error: &Error) {
        if let Some(reason @ NotLive::Fenced { .. }) = NotLive::of(error) {
            self.becomes(Some(reason.clone()));
        }
    }

    fn becomes(&self, next: Option<NotLive>) {
        self.reason.send_if_modified(|reason| {
            let is_new = *reason != next;
            *reason = next;
            is_new
        });
    }

    /// Waits, for a limited time, until a live server that leaves has let go of its lease.
    pub(super) async fn released(&self) {
        if self.reason().is_none() && timeout(RELEASE_MAX, self.released.cancelled()).await.is_err()
        {
            tracing::warn!(
                "this server ends without letting go of its lease: a standby waits for it"
            );
        }
    }

    /// Returns once the server is fenced.
    async fn fenced(&self) {
        let mut changes = self.reason.subscribe();
        let is_fenced = |reason: &Option<NotLive>| matches!(reason, Some(NotLive::Fenced { .. }));
        // The sender is held here.
        let _ = changes.wait_for(is_fenced).await;
    }
}

/// Refuses a request unless the server is live.
pub(super) async fn check(
    State(shared): State<Arc<Shared>>,
    request: Request,
    next: Next,
) -> Result<Response, Failure> {
    shared.role.check()?;
    Ok(next.run(request).await)
}

/// Works for the warehouse: at once, or when the live server is dead if this one is a standby. Ends when another server
/// has taken over, and fires `end` if this one may stand by for it.
pub(super) async fn lead(
    shared: Arc<Shared>,
    at: SocketAddr,
    leave: CancellationToken,
    end: CancellationToken,
) {
    let Some(host) = shared.backend.host().cloned() else {
        shared.role.released.cancel();
        return begin(&shared);
    };
    if let Some(standby) = host.standby() {
        stand_by(&shared, &host, standby).await;
        tracing::warn!(warehouse = host.config().warehouse, "this server has taken over");
    }
    begin(&shared);
    let collecting = host.clone();
    tokio::spawn(async move { collecting.collect().await });
    hold(&shared, &host, at, &leave).await;
    tracing::error!(
        warehouse = host.config().warehouse,
        "another server has taken over; this one changes nothing any more"
    );
    host.leave_to_next();
    refuse_workers(&host, shared.role.reason().map(|reason| reason.to_string()));
    shared.statements.leave_to_next();
    if shared.config.standby {
        end.cancel();
    }
}

/// Recovers statements that earlier servers accepted, and accepts requests and workers.
fn begin(shared: &Arc<Shared>) {
    // Before the recovery, which may find that another server has taken over.
    shared.role.becomes(None);
    tokio::spawn(restore(shared.clone()));
    tokio::spawn(collect(shared.clone()));
    if let Some(host) = shared.backend.host() {
        refuse_workers(host, None);
    }
}

/// Waits until the live server is dead, or has let go, and this server has begun the next epoch.
async fn stand_by(shared: &Shared, host: &Host, mut standby: Standby) {
    let (mut is_failing, mut told) = (false, None);
    loop {
        match standby.look().await {
            Ok(Turn::Leads) => return,
            Ok(Turn::Waits(lease)) => {
                is_failing = false;
                let reason = NotLive::Standby { live: lease.url };
                let joined = lease.workers.map(|at| format!("; workers join {at}"));
                let of_workers = Some(format!("{reason}{}", joined.unwrap_or_default()));
                shared.role.becomes(Some(reason));
                if told != of_workers {
                    refuse_workers(host, of_workers.clone());
                    told = of_workers;
                }
            }
            Err(e) => {
                if !is_failing {
                    tracing::warn!(error = %e, "whether the live server lives is not known");
                }
                is_failing = true;
            }
        }
        sleep(standby.every()).await;
    }
}

/// Renews the lease until another server has taken over; a server that leaves lets go of it.
async fn hold(shared: &Shared, host: &Host, at: SocketAddr, leave: &CancellationToken) {
    let mut keeper = host.keeper(addresses(shared, host, at));
    // A server without anything to recover is ready before it has begun its epoch.
    shared.statements.restored(keeper.every()).await;
    let mut ticks = interval(keeper.every());
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let (mut leaves, mut has_let_go, mut is_failing) = (false, false, false);
    loop {
        tokio::select! {
            _ = ticks.tick() => {}
            () = leave.cancelled(), if !leaves => leaves = true,
            () = shared.role.fenced() => return,
        }
        let done = match (leaves, has_let_go) {
            (false, _) => keeper.renew().await,
            (true, false) => keeper.release().await.map(|()| {
                has_let_go = true;
                shared.role.released.cancel();
            }),
            (true, true) => keeper.check().await,
        };
        match done {
            Ok(()) => is_failing = false,
            Err(e) => {
                shared.role.note(&e);
                if !is_failing && !shared.role.is_fenced() {
                    tracing::warn!(error = %e, "the lease of this server was not renewed");
                }
                is_failing = true;
            }
        }
    }
}

/// The addresses of this server, as far as its configuration states them.
fn addresses(shared: &Shared, host: &Host, at: SocketAddr) -> Addresses {
    let is_known = |address: &SocketAddr| !address.ip().is_unspecified();
    let scheme = if shared.config.certificate.is_some() { "https" } else { "http" };
    let of_listen = Some(at).filter(is_known).map(|at| format!("{scheme}://{at}"));
    let workers = host.cluster().map(|cluster| cluster.address());
    Addresses {
        url: shared.config.public_url.clone().or(of_listen),
        workers: workers.filter(is_known).map(|at| at.to_string()),
    }
}

fn refuse_workers(host: &Host, reason: Option<String>) {
    if let Some(cluster) = host.cluster() {
        cluster.refuse(reason);
    }
}
