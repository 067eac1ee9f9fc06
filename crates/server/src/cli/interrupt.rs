//! Ctrl-C: the first cancels, the second does not wait.

use crate::answer::Reply;
use crate::engine::{CancelToken, Replies};
use crate::error::Error;
use futures::StreamExt;
use std::time::Duration;

/// What a cancelled engine has to come back.
const PATIENCE: Duration = Duration::from_secs(5);

/// A token that Ctrl-C fires; a second Ctrl-C ends the process with status 130.
pub(super) fn ctrl_c() -> CancelToken {
    let cancel = CancelToken::new();
    let fire = cancel.clone();
    tokio::spawn(async move {
        while tokio::signal::ctrl_c().await.is_ok() {
            if fire.is_cancelled() {
                std::process::exit(130);
            }
            fire.cancel();
        }
    });
    cancel
}

/// The next answer, or [`Error::Cancelled`] if the engine does not come back soon after `cancel` fired.
pub(super) async fn until_cancelled(
    replies: &mut Replies<'_>,
    cancel: &CancelToken,
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
