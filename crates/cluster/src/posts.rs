//! Whose orders run where: what may be deadly gets a worker for itself, so that a death has one cause.

use crate::registry::Registry;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use tokio::sync::{OwnedRwLockReadGuard, OwnedRwLockWriteGuard, RwLock};

/// The orders of all workers.
#[derive(Debug, Default)]
pub(crate) struct Posts(Mutex<BTreeMap<u32, Arc<Post>>>);

/// Those of one worker.
#[derive(Debug, Default)]
struct Post {
    hall: Arc<RwLock<()>>,
    crowd: Mutex<Crowd>,
}

#[derive(Debug, Default)]
struct Crowd {
    /// Orders that run, by plan.
    plans: BTreeMap<String, u32>,
    /// The plans that had orders there when it died.
    last: Option<BTreeSet<String>>,
}

impl Post {
    fn crowd(&self) -> MutexGuard<'_, Crowd> {
        self.crowd.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// An order that runs, until it is dropped.
#[derive(Debug)]
pub(crate) struct Stay {
    post: Arc<Post>,
    plan: String,
    _hall: Hall,
}

#[derive(Debug)]
enum Hall {
    Shared(#[allow(dead_code, reason = "held")] OwnedRwLockReadGuard<()>),
    Alone(#[allow(dead_code, reason = "held")] OwnedRwLockWriteGuard<()>),
}

impl Posts {
    fn post(&self, worker: u32) -> Arc<Post> {
        let mut posts = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        posts.entry(worker).or_default().clone()
    }

    /// Waits until an order may run: with others, or with nobody else's and no other one.
    pub(crate) async fn enter(&self, worker: u32, plan: &str, alone: bool) -> Stay {
        let post = self.post(worker);
        let hall = match alone {
            true => Hall::Alone(post.hall.clone().write_owned().await),
            false => Hall::Shared(post.hall.clone().read_owned().await),
        };
        *post.crowd().plans.entry(plan.to_owned()).or_default() += 1;
        Stay { post, plan: plan.to_owned(), _hall: hall }
    }

    /// True if a worker that died worked for one plan only.
    pub(crate) fn had_one(&self, worker: u32) -> bool {
        let post = self.post(worker);
        let mut crowd = post.crowd();
        let crowd = &mut *crowd;
        // Whoever sees it first sees all of them: nobody leaves before it looked.
        crowd.last.get_or_insert_with(|| crowd.plans.keys().cloned().collect()).len() <= 1
    }

    /// Forgets workers that the registry has forgotten.
    pub(crate) fn prune(&self, registry: &Registry) {
        let mut posts = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        posts.retain(|worker, _| registry.member(*worker).is_some());
    }
}

impl Drop for Stay {
    fn drop(&mut self) {
        let mut crowd = self.post.crowd();
        if let Some(orders) = crowd.plans.get_mut(&self.plan) {
            *orders -= 1;
            if *orders == 0 {
                crowd.plans.remove(&self.plan);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]
    use super::*;
    use futures::FutureExt;

    #[tokio::test]
    async fn what_is_alone_is_alone() {
        let posts = Posts::default();
        let (a, b) = (posts.enter(1, "a", false).await, posts.enter(1, "b", false).await);
        let mut alone = Box::pin(posts.enter(1, "c", true));
        assert!(alone.as_mut().now_or_never().is_none());
        // Nobody passes one that waits; other workers are others'.
        let mut late = Box::pin(posts.enter(1, "a", false));
        assert!(late.as_mut().now_or_never().is_none());
        assert!(posts.enter(2, "a", true).now_or_never().is_some());
        drop((a, b));
        let alone = alone.now_or_never().unwrap();
        assert!(late.as_mut().now_or_never().is_none());
        assert!(posts.had_one(1));
        drop(alone);
        assert!(late.now_or_never().is_some());
    }

    #[tokio::test]
    async fn a_death_has_the_plans_that_were_there() {
        let posts = Posts::default();
        let (a, b) = (posts.enter(1, "a", false).await, posts.enter(1, "b", false).await);
        assert!(!posts.had_one(1));
        drop(a);
        // The second who looks is told the same.
        assert!(!posts.had_one(1));
        drop(b);
        let two = (posts.enter(2, "a", false).await, posts.enter(2, "a", false).await);
        assert!(posts.had_one(2));
        drop(two);
    }
}
