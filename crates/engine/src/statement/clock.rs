//! The time of a statement: how long it has waited, and its time limits.

use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant};

/// Resolution of time limits.
const TICK: Duration = Duration::from_millis(10);

/// The clock of a statement. Waiting for admission does not count against a limit.
pub struct Clock {
    created: Instant,
    waiting: Mutex<Waiting>,
    /// The limit of the whole script.
    limit: OnceLock<Limit>,
    /// The limit of the running statement of the script, from a setting of its session.
    own: Mutex<Option<Limit>>,
}

#[derive(Default)]
struct Waiting {
    waited: Duration,
    since: Option<Instant>,
}

/// A time limit with its start, and the time that the statement had waited by then.
#[derive(Clone, Copy)]
struct Limit {
    started: Instant,
    waited: Duration,
    limit: Duration,
}

impl Limit {
    /// The time left; `None` if it has passed.
    fn left(&self, waited: Duration) -> Option<Duration> {
        let limit = self.limit + waited.saturating_sub(self.waited);
        limit.checked_sub(self.started.elapsed()).filter(|left| !left.is_zero())
    }
}

impl Default for Clock {
    fn default() -> Self {
        Clock {
            created: Instant::now(),
            waiting: Mutex::default(),
            limit: OnceLock::new(),
            own: Mutex::default(),
        }
    }
}

impl Clock {
    pub(super) fn created(&self) -> Instant {
        self.created
    }

    /// How long the statement has waited for admission.
    pub(crate) fn waited(&self) -> Duration {
        let waiting = lock(&self.waiting);
        waiting.waited + waiting.since.map_or(Duration::ZERO, |since| since.elapsed())
    }

    /// Counts the time of `turn` as waiting.
    pub(super) async fn waits_for<T>(&self, turn: impl Future<Output = T>) -> T {
        let since = Instant::now();
        lock(&self.waiting).since = Some(since);
        let turn = turn.await;
        let mut waiting = lock(&self.waiting);
        waiting.waited += since.elapsed();
        waiting.since = None;
        turn
    }

    fn limit(&self, limit: Duration) -> Limit {
        Limit { started: Instant::now(), waited: self.waited(), limit }
    }

    /// Limits the script from now on. Later calls change nothing. Work that does not await, such as planning and joins,
    /// checks [`Clock::is_late`].
    pub fn limit_script(&self, limit: Duration) {
        let _ = self.limit.set(self.limit(limit));
    }

    /// True once the script has taken more than its limit.
    pub fn is_late(&self) -> bool {
        self.limit.get().is_some_and(|limit| limit.left(self.waited()).is_none())
    }

    /// Limits the running statement of the script; `None` removes the limit.
    pub(crate) fn limit_statement(&self, limit: Option<Duration>) {
        let limit = limit.map(|limit| self.limit(limit));
        *lock(&self.own) = limit;
    }

    /// Waits until the running statement of the script has exceeded its own limit by `grace`; returns the limit.
    pub async fn is_overdue(&self, grace: Duration) -> Duration {
        loop {
            tokio::time::sleep(grace).await;
            let own = *lock(&self.own);
            if let Some(own) = own
                && (Limit { limit: own.limit + grace, ..own }).left(self.waited()).is_none()
            {
                return own.limit;
            }
        }
    }

    /// Waits until the statement has run for `limit` from now on.
    pub async fn has_taken(&self, limit: Duration) {
        let limit = self.limit(limit);
        while let Some(left) = limit.left(self.waited()) {
            tokio::time::sleep(left.max(TICK)).await;
        }
    }
}

fn lock<T>(of: &Mutex<T>) -> MutexGuard<'_, T> {
    // Each change is complete before anything can panic.
    of.lock().unwrap_or_else(PoisonError::into_inner)
}
