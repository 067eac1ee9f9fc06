//! Objects on their way to a store, and the first failure of a writer.

use crate::lock;
use crate::sink::SinkError;
use std::sync::Mutex;
use tokio::runtime::Handle;
use tokio::task::{JoinError, JoinSet};

/// Uploads in progress. Dropping them stops them.
#[derive(Debug, Default)]
pub(super) struct Uploads {
    set: Mutex<JoinSet<Result<(), SinkError>>>,
    failure: Mutex<Option<SinkError>>,
}

impl Uploads {
    /// The first failure so far.
    pub(super) fn failed(&self) -> Option<SinkError> {
        lock(&self.failure).clone()
    }

    fn ended(&self, what: &str, upload: Result<Result<(), SinkError>, JoinError>) {
        let failure = match upload {
            Ok(Ok(())) => return,
            Ok(Err(e)) => e,
            Err(e) => SinkError::Internal { what: what.into(), reason: e.to_string() },
        };
        lock(&self.failure).get_or_insert(failure);
    }

    /// Starts an upload to the output `what`. Finished uploads are removed, so that the set stays as small as the
    /// budget.
    pub(super) fn start(
        &self,
        io: &Handle,
        what: &str,
        upload: impl Future<Output = Result<(), SinkError>> + Send + 'static,
    ) {
        let mut set = lock(&self.set);
        while let Some(done) = set.try_join_next() {
            self.ended(what, done);
        }
        set.spawn_on(upload, io);
    }

    /// Waits until all uploads have ended.
    ///
    /// # Errors
    /// The first failure so far.
    pub(super) async fn drain(&self, what: &str) -> Result<(), SinkError> {
        let mut set = self.take();
        while let Some(done) = set.join_next().await {
            self.ended(what, done);
        }
        self.failed().map_or(Ok(()), Err)
    }

    /// The uploads in progress, which the caller awaits or stops.
    pub(super) fn take(&self) -> JoinSet<Result<(), SinkError>> {
        std::mem::take(&mut *lock(&self.set))
    }
}
