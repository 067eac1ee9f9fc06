//! Cancellation and deadlines.

use crate::error::Error;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::Instant;
use tokio::sync::Notify;

/// A flag that kernels poll between blocks of work and that tasks can wait for.
///
/// A child is cancelled with its parent, but not the other way round. A deadline cancels like [`CancelToken::cancel`],
/// with [`Error::DeadlineExceeded`] as the reason.
#[derive(Debug, Clone)]
pub struct CancelToken {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    cancelled: AtomicBool,
    deadline: Option<Instant>,
    notify: Notify,
    children: Mutex<Vec<Weak<Inner>>>,
}

impl Default for CancelToken {
    fn default() -> Self {
        CancelToken::new()
    }
}

impl CancelToken {
    /// Creates a token without a deadline.
    pub fn new() -> Self {
        CancelToken::make(None, false)
    }

    /// Creates a token that cancels itself at `deadline`.
    pub fn with_deadline(deadline: Instant) -> Self {
        CancelToken::make(Some(deadline), false)
    }

    fn make(deadline: Option<Instant>, cancelled: bool) -> Self {
        CancelToken {
            inner: Arc::new(Inner {
                cancelled: AtomicBool::new(cancelled),
                deadline,
                notify: Notify::new(),
                children: Mutex::new(Vec::new()),
            }),
        }
    }

    /// Creates a token that is cancelled with this one and has its deadline.
    pub fn child(&self) -> Self {
        self.child_with_deadline(None)
    }

    /// Creates a child whose deadline is the earlier of its parent's and `deadline`.
    pub fn child_with_deadline(&self, deadline: Option<Instant>) -> Self {
        let deadline = match (self.inner.deadline, deadline) {
            (Some(a), Some(b)) => Some(a.min(b)),
            (a, b) => a.or(b),
        };
        // The list is locked while the flag is read: a concurrent `cancel` either finds the child in the list or has
        // already set the flag.
        let mut children = self.inner.children.lock().unwrap_or_else(PoisonError::into_inner);
        let child = CancelToken::make(deadline, self.inner.cancelled.load(Ordering::Acquire));
        if children.len() >= 16 && children.len().is_power_of_two() {
            children.retain(|c| c.strong_count() > 0);
        }
        children.push(Arc::downgrade(&child.inner));
        child
    }

    /// Cancels this token and its children. Idempotent.
    pub fn cancel(&self) {
        self.inner.cancel();
    }

    /// True once the token is cancelled or its deadline has passed.
    pub fn is_cancelled(&self) -> bool {
        self.inner.cancelled.load(Ordering::Relaxed)
            || self.inner.deadline.is_some_and(|d| Instant::now() >= d)
    }

    /// Fails once the token is cancelled. Kernels call this between blocks of work.
    pub fn check(&self) -> Result<(), Error> {
        if self.is_cancelled() { Err(self.error()) } else { Ok(()) }
    }

    /// Returns the error of a cancelled token.
    pub fn error(&self) -> Error {
        // An explicit cancel wins over a deadline that passed afterwards.
        if self.inner.cancelled.load(Ordering::Acquire) {
            return Error::Cancelled;
        }
        match self.inner.deadline {
            Some(d) if Instant::now() >= d => Error::DeadlineExceeded,
            _ => Error::Cancelled,
        }
    }

    /// Waits until the token is cancelled or its deadline has passed.
    pub async fn cancelled(&self) {
        let notified = self.inner.notify.notified();
        tokio::pin!(notified);
        notified.as_mut().enable();
        if self.is_cancelled() {
            return;
        }
        match self.inner.deadline {
            None => notified.await,
            Some(d) => tokio::select! {
                () = notified => {}
                () = tokio::time::sleep_until(d.into()) => {}
            },
        }
    }
}

impl Inner {
    fn cancel(&self) {
        let children = {
            let mut list = self.children.lock().unwrap_or_else(PoisonError::into_inner);
            self.cancelled.store(true, Ordering::Release);
            std::mem::take(&mut *list)
        };
        self.notify.notify_waiters();
        for child in children.iter().filter_map(Weak::upgrade) {
            child.cancel();
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]
    use super::*;
    use std::time::Duration;

    #[test]
    fn children_are_cancelled_with_the_parent_only() {
        let parent = CancelToken::new();
        let (a, b) = (parent.child(), parent.child());
        a.cancel();
        assert!(a.is_cancelled() && !parent.is_cancelled() && !b.is_cancelled());
        parent.cancel();
        assert!(b.is_cancelled() && parent.child().is_cancelled());
        assert!(matches!(b.check(), Err(Error::Cancelled)));
    }

    #[test]
    fn a_deadline_cancels_with_its_own_reason() {
        let parent = CancelToken::with_deadline(Instant::now());
        assert!(matches!(parent.child().check(), Err(Error::DeadlineExceeded)));
        let far = Instant::now() + Duration::from_secs(3600);
        let child = parent.child_with_deadline(Some(far));
        assert!(child.is_cancelled());
        assert!(!CancelToken::with_deadline(far).is_cancelled());
    }

    #[test]
    fn waiters_wake() {
        let rt = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
        rt.block_on(async {
            let token = CancelToken::new();
            let child = token.child();
            let waiter = tokio::spawn(async move { child.cancelled().await });
            tokio::task::yield_now().await;
            token.cancel();
            waiter.await.unwrap();
            CancelToken::with_deadline(Instant::now() + Duration::from_millis(1)).cancelled().await;
        });
    }
}
