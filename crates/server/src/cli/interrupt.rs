//! Ctrl-C: the first one cancels, the second one exits at once. SIGTERM and a closed terminal cancel too: a server
//! should not continue for a client whose output is not read.

use futures::StreamExt;
use std::time::Duration;
use tessera_engine::answer::Reply;
use tessera_engine::error::Error;
use tessera_engine::{Handle, Replies};

/// How long a cancelled engine may take to return.
const PATIENCE: Duration = Duration::from_secs(5);

/// A handle that Ctrl-C cancels; a second Ctrl-C ends the process with status 130.
pub(super) fn ctrl_c() -> Handle {
    let cancel = Handle::new();
    let fire = cancel.clone();
    tokio::spawn(async move {
        while tokio::signal::ctrl_c().await.is_ok() {
            if fire.is_cancelled() {
                std::process::exit(130);
            }
            fire.cancel();
        }
    });
    let fire = cancel.clone();
    tokio::spawn(async move {
        let status = asked_to_end().await;
        fire.cancel();
        tokio::time::sleep(PATIENCE * 2).await;
        std::process::exit(status);
    });
    cancel
}

/// Waits until the process is asked to end by SIGTERM, or by SIGHUP unless that is ignored (`nohup`). Returns the exit
/// status for the signal. Never returns if signals cannot be caught: then they end the process by themselves.
pub async fn asked_to_end() -> i32 {
    use tokio::signal::unix::{Signal, SignalKind, signal};
    async fn comes(signal: Option<Signal>, number: i32) -> i32 {
        if let Some(mut signal) = signal
            && signal.recv().await.is_some()
        {
            return 128 + number;
        }
        std::future::pending().await
    }
    let caught = |kind| signal(kind).ok();
    let hang_up = if ignores_hang_up() { None } else { caught(SignalKind::hangup()) };
    let terminate = caught(SignalKind::terminate());
    tokio::select! {
        status = comes(hang_up, SignalKind::hangup().as_raw_value()) => status,
        status = comes(terminate, SignalKind::terminate().as_raw_value()) => status,
    }
}

/// True if the process was started with SIGHUP ignored, or if that is unknown: then SIGHUP is not caught.
fn ignores_hang_up() -> bool {
    let Ok(status) = std::fs::read_to_string("/proc/self/status") else { return true };
    let mask = status.lines().find_map(|l| l.strip_prefix("SigIgn:"));
    mask.and_then(|m| u64::from_str_radix(m.trim(), 16).ok()).is_none_or(|m| m & 1 != 0)
}

/// The next answer, or [`Error::Cancelled`] if the engine does not return soon after `cancel` fired.
pub(super) async fn until_cancelled(
    replies: &mut Replies<'_>,
    cancel: &Handle,
) -> Option<Result<Reply, Error>> {
    let patience = async {
        cancel.cancelled().await;
        tokio::time::sleep(PATIENCE).await;
    };
    tokio::select! {
        reply = replies.next() => reply,
        () = patience => Some(Err(Error::Cancelled)),
    }
}
