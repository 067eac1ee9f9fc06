//! Runs the work of a statement in a task of its own, so that a client gets a response although the work does not check
//! for cancellation.
//!
//! ```text
//!   cancelled ──▶ work that awaits something ends by itself, or is dropped after PATIENCE
//!             └─▶ work that computes without an await is left behind: the statement is over, the task ends by itself
//! ```
//! The parser and DataFusion's planner compute without an await. Tasks that were left behind are counted: at most
//! [`LEFT_MAX`], beyond which a statement waits for its work.

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;
use std::task::{Context, Poll};
use std::time::Duration;
use tessera_engine::Handle;
use tokio::sync::Semaphore;
use tokio::task::{JoinError, JoinHandle};
use tokio::time::{Instant, sleep, timeout};

/// Upper bound on tasks that were left behind.
const LEFT_MAX: usize = 64;
/// How long a cancelled statement may take to return before its work is dropped.
const PATIENCE: Duration = Duration::from_secs(5);
/// Work that has computed for this long without an await after a cancel is left behind.
const LOOK_EVERY: Duration = Duration::from_millis(50);

/// Runs work in tasks of its own.
#[derive(Debug)]
pub(super) struct Detach {
    left: Arc<Semaphore>,
}

/// How work ended.
pub(super) enum Ended<T> {
    /// By itself, or in a panic.
    Itself(Result<T, JoinError>),
    /// The statement was cancelled, and dropped or left behind.
    Cancelled,
    /// The time limit passed, and it was dropped or left behind.
    TooLong,
    /// The time limit of a statement of the script passed, and it was left behind.
    Overdue(Duration),
}

impl Detach {
    pub(super) fn new() -> Self {
        Detach { left: Arc::new(Semaphore::new(LEFT_MAX)) }
    }

    /// Runs work until it ends, is cancelled by the handle, or `too_long` completes.
    pub(super) async fn run<T: Send + 'static>(
        &self,
        work: impl Future<Output = T> + Send + 'static,
        handle: &Handle,
        too_long: impl Future<Output = ()>,
    ) -> Ended<T> {
        let polls = Arc::new(AtomicU64::new(0));
        let work = Watched { work: Box::pin(work), polls: polls.clone() };
        let mut task = Dropped(Some(tokio::spawn(work)));
        let ended = tokio::select! {
            biased;
            ended = task.wait() => return Ended::Itself(ended),
            () = too_long => Ended::TooLong,
            () = handle.cancelled() => Ended::Cancelled,
            limit = handle.clock().is_overdue(LOOK_EVERY) => Ended::Overdue(limit),
        };
        let drop_at = match ended {
            Ended::Cancelled | Ended::Overdue(_) => Instant::now() + PATIENCE,
            _ => {
                task.abort();
                Instant::now()
            }
        };
        let mut seen = polls.load(Relaxed);
        loop {
            tokio::select! {
                biased;
                // The work's own report of a cancel is more precise.
                own = task.wait() => return match (ended, own) {
                    (Ended::Cancelled | Ended::Overdue(_), Ok(own)) => Ended::Itself(Ok(own)),
                    (ended, _) => ended,
                },
                () = sleep(LOOK_EVERY) => {}
            }
            let now = polls.load(Relaxed);
            let computes = now % 2 == 1 && now == seen;
            seen = now;
            if computes && let Ok(permit) = self.left.clone().try_acquire_owned() {
                let mut task = task;
                // Without a cancel it would continue: abort it at its next await.
                if matches!(ended, Ended::Overdue(_)) {
                    task.abort();
                }
                tokio::spawn(async move {
                    let _permit = permit;
                    if timeout(PATIENCE, task.wait()).await.is_err() {
                        task.abort();
                        let _ = task.wait().await;
                    }
                });
                return ended;
            }
            if Instant::now() >= drop_at {
                task.abort();
            }
        }
    }
}

/// A task that is aborted when its waiter drops.
struct Dropped<T>(Option<JoinHandle<T>>);

impl<T> Dropped<T> {
    async fn wait(&mut self) -> Result<T, JoinError> {
        match &mut self.0 {
            Some(task) => {
                let ended = task.await;
                self.0 = None;
                ended
            }
            None => std::future::pending().await,
        }
    }

    fn abort(&self) {
        if let Some(task) = &self.0 {
            task.abort();
        }
    }
}

impl<T> Drop for Dropped<T> {
    fn drop(&mut self) {
        self.abort();
    }
}

/// Work whose polls are counted: the count is odd during a poll.
struct Watched<T> {
    work: Pin<Box<dyn Future<Output = T> + Send>>,
    polls: Arc<AtomicU64>,
}

impl<T> Future for Watched<T> {
    type Output = T;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<T> {
        self.polls.fetch_add(1, Relaxed);
        let polled = self.work.as_mut().poll(cx);
        self.polls.fetch_add(1, Relaxed);
        polled
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::panic, reason = "tests")]
    use super::*;

    async fn never() {
        std::future::pending().await
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn work_that_computes_is_left_behind_and_work_that_waits_is_heard() {
        let apart = Detach::new();
        let handle = Handle::default();
        let done = apart.run(async { 7 }, &handle, never()).await;
        assert!(matches!(done, Ended::Itself(Ok(7))));
        let late = apart.run(never(), &handle, sleep(Duration::from_millis(10))).await;
        assert!(matches!(late, Ended::TooLong));

        // The statement reports its own end, although this takes a while.
        let own = handle.clone();
        let cleans_up = async move {
            own.cancelled().await;
            sleep(Duration::from_millis(300)).await;
            8
        };
        let cancel = handle.clone();
        tokio::spawn(async move {
            sleep(Duration::from_millis(20)).await;
            cancel.cancel();
        });
        let done = apart.run(cleans_up, &handle, never()).await;
        assert!(matches!(done, Ended::Itself(Ok(8))));

        let begun = Instant::now();
        let computes = async { std::thread::sleep(Duration::from_millis(1500)) };
        let done = apart.run(computes, &handle, never()).await;
        assert!(matches!(done, Ended::Cancelled));
        assert!(begun.elapsed() < Duration::from_millis(1000), "{:?}", begun.elapsed());
        assert_eq!(apart.left.available_permits(), LEFT_MAX - 1);
        sleep(Duration::from_millis(2000)).await;
        assert_eq!(apart.left.available_permits(), LEFT_MAX);

        let done = apart.run(async { panic!("once") }, &Handle::default(), never()).await;
        assert!(matches!(done, Ended::<()>::Itself(Err(e)) if e.is_panic()));
    }
}
