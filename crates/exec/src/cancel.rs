//! Cancellation.

use crate::error::Error;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, Weak};
use tessera_storage::lock;
use tokio::sync::Notify;

/// A flag that kernels poll between blocks of work and that tasks can wait for.
///
/// A child is cancelled with its parent, but not the other way round.
#[derive(Debug, Clone)]
pub struct CancelToken {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    cancelled: AtomicBool,
    notify: Notify,
    children: Mutex<Vec<Weak<Inner>>>,
}

impl Default for CancelToken {
    fn default() -> Self {
        CancelToken::new()
    }
}

impl CancelToken {
    /// Creates a token that is not cancelled.
    pub fn new() -> Self {
        CancelToken::make(false)
    }

    fn make(cancelled: bool) -> Self {
        CancelToken {
            inner: Arc::new(Inner {
                cancelled: AtomicBool::new(cancelled),
                notify: Notify::new(),
                children: Mutex::new(Vec::new()),
            }),
        }
    }

    /// Creates a token that is cancelled with this one.
    pub fn child(&self) -> Self {
        // The list is locked while the flag is read: a concurrent `cancel` either finds the child in the list or has
        // already set the flag.
        let mut children = lock(&self.inner.children);
        let child = CancelToken::make(self.inner.cancelled.load(Ordering::Acquire));
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

    /// True once the token is cancelled.
    pub fn is_cancelled(&self) -> bool {
        self.inner.cancelled.load(Ordering::Relaxed)
    }

    /// Fails once the token is cancelled. Kernels call this between blocks of work.
    pub fn check(&self) -> Result<(), Error> {
        if self.is_cancelled() { Err(Error::Cancelled) } else { Ok(()) }
    }

    /// Waits until the token is cancelled.
    pub async fn cancelled(&self) {
        let notified = self.inner.notify.notified();
        tokio::pin!(notified);
        notified.as_mut().enable();
        if !self.is_cancelled() {
            notified.await;
        }
    }
}

impl Inner {
    fn cancel(&self) {
        let children = {
            let mut list = lock(&self.children);
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
    fn waiters_wake() {
        let rt = tokio::runtime::Builder::new_current_thread().build().unwrap();
        rt.block_on(async {
            let token = CancelToken::new();
            let child = token.child();
            let waiter = tokio::spawn(async move { child.cancelled().await });
            tokio::task::yield_now().await;
            token.cancel();
            waiter.await.unwrap();
        });
    }
}
