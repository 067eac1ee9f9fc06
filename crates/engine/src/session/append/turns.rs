//! Appends of this process to one target run one after the other.

use crate::Handle;
use crate::error::Error;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError, Weak};
use tokio::sync::OwnedMutexGuard;

/// The lock of one target: one statement holds it while it appends, the others wait.
type Queue = tokio::sync::Mutex<()>;

/// The queues of statements that append, by target.
#[derive(Debug, Default)]
pub(in crate::session) struct AppendTurns(Mutex<BTreeMap<String, Weak<Queue>>>);

impl AppendTurns {
    /// Waits until the statements that came before have appended to `target`, a path, a URL or another text that names
    /// it. The turn ends when the guard drops.
    ///
    /// The statement takes its place in admission first: the one whose turn it is never waits for a place that
    /// statements behind it hold.
    ///
    /// # Errors
    /// [`Error::Cancelled`].
    pub(in crate::session) async fn turn(
        &self,
        target: &str,
        statement: &Handle,
    ) -> Result<OwnedMutexGuard<()>, Error> {
        statement.take_place().await?;
        let queue = self.queue(target.trim_end_matches('/'));
        match queue.clone().try_lock_owned() {
            Ok(turn) => Ok(turn),
            Err(_) => statement.queued(queue.lock_owned()).await,
        }
    }

    fn queue(&self, target: &str) -> Arc<Queue> {
        // Each change is complete before anything can panic.
        let mut queues = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        queues.retain(|_, queue| queue.strong_count() > 0);
        match queues.get(target).and_then(Weak::upgrade) {
            Some(queue) => queue,
            None => {
                let queue = Arc::new(Queue::default());
                queues.insert(target.into(), Arc::downgrade(&queue));
                queue
            }
        }
    }
}
