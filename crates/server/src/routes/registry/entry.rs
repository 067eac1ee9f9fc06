//! A submitted statement: its state, its outcome, and its record in the journal.

use crate::routes::stream;
use futures::future::BoxFuture;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, Mutex, Weak};
use std::time::{Duration, Instant};
use tessera_engine::Handle;
use tessera_engine::answer::Reply;
use tessera_engine::error::Error;
use tessera_engine::journal::{End, Journal, Record, now_ms};
use tessera_engine::statement::{Keeper, StatementState};
use tessera_storage::lock;
use tessera_storage::sink::Version;
use tokio::sync::{OwnedMutexGuard, watch};

#[derive(Debug)]
pub(in crate::routes) enum Outcome {
    /// The answers of its script.
    Finished(Vec<Reply>),
    Failed(Error),
    /// The statement had answers, which were dropped.
    Gone,
}

/// A submitted statement.
#[derive(Debug)]
pub(in crate::routes) struct Entry {
    /// Its number, ascending by age.
    pub(super) number: u64,
    pub(in crate::routes) handle: Handle,
    pub(in crate::routes) sql: String,
    /// The script as it is shown, without secrets.
    pub(in crate::routes) shown: String,
    pub(in crate::routes) session: Option<String>,
    /// The client's id for it, and a mark of the requested statement.
    pub(super) request: Option<(String, String)>,
    pub(super) outcome: watch::Sender<Option<Arc<Outcome>>>,
    /// When it ended or was last requested.
    pub(super) touched: Mutex<Instant>,
    /// True once its outcome was reported to a client.
    pub(super) told: AtomicBool,
    pub(super) accepted_ms: u64,
    /// Number of servers that began to run it.
    pub(super) starts: u32,
    pub(super) journal: Option<Arc<Journal>>,
    pub(super) kept: Arc<tokio::sync::Mutex<Kept>>,
    /// True if it finished before the server started, and its answers are not computed yet.
    pub(super) asleep: AtomicBool,
    /// True if it finished before the server started.
    pub(super) finished: bool,
    /// True once its client deleted it.
    pub(super) deleted: AtomicBool,
}

/// The state of a statement's record in the journal.
#[derive(Debug, Default)]
pub(super) struct Kept {
    pub(super) is_there: bool,
    /// True once a write was attempted.
    pub(super) may_be_there: bool,
    pub(super) version: Option<Version>,
    pub(super) end: Option<(End, u64)>,
    /// True once the stored record has the end.
    pub(super) is_end_there: bool,
}

/// Writes an entry's record when its statement requests it.
pub(super) struct EntryKeeper(pub(super) Weak<Entry>);

impl Keeper for EntryKeeper {
    fn keep(&self) -> BoxFuture<'_, Result<(), Error>> {
        Box::pin(async move {
            match self.0.upgrade() {
                Some(entry) => entry.keep().await,
                None => Ok(()),
            }
        })
    }

    fn stopped(&self) -> BoxFuture<'_, Result<(), Error>> {
        Box::pin(async move {
            match self.0.upgrade() {
                Some(entry) => entry.stopped().await,
                None => Ok(()),
            }
        })
    }
}

impl Entry {
    /// Writes the statement to the journal, unless it is stored: from here on it survives the server.
    ///
    /// # Errors
    /// Errors of the warehouse; then it must not be acknowledged.
    pub(in crate::routes) async fn accept(self: &Arc<Self>) -> Result<(), Error> {
        if self.journal.is_none() {
            return Ok(());
        }
        // The keeper sees later intents of the statement; an intent that comes now waits for the lock until the record
        // has it.
        self.handle.entry().kept_by(Arc::new(EntryKeeper(Arc::downgrade(self))));
        let kept = self.kept.clone().lock_owned().await;
        match kept.is_there {
            true => Ok(()),
            false => self.write(kept).await.map(|()| self.handle.chunks().survives()),
        }
    }

    /// Updates the record, if the statement is in the journal.
    async fn keep(self: &Arc<Self>) -> Result<(), Error> {
        let kept = self.kept.clone().lock_owned().await;
        if kept.is_there { self.write(kept).await } else { Ok(()) }
    }

    /// Writes the record in a task that no caller can drop, so that writes stay in order.
    async fn write(self: &Arc<Self>, mut kept: OwnedMutexGuard<Kept>) -> Result<(), Error> {
        let Some(journal) = self.journal.clone() else { return Ok(()) };
        let record = self.record(&kept);
        let written = tokio::spawn(async move {
            kept.may_be_there = true;
            let version = journal.write_over(&record, kept.version.clone()).await?;
            (kept.is_there, kept.version) = (true, Some(version));
            kept.is_end_there = record.end.is_some();
            Ok::<(), Error>(())
        });
        written.await.unwrap_or_else(|e| Err(Error::Internal { what: e.to_string() }))
    }

    /// Records how the statement ended.
    pub(super) async fn conclude(self: &Arc<Self>, end: End) {
        if let Err(e) = self.ends(end).await {
            // After a restart it would run again.
            tracing::warn!(id = self.id(), error = %e, "the end of a statement could not be written down");
        }
        if self.kept.lock().await.is_there {
            self.handle.remove_chunks().await;
        }
    }

    /// Records an end, in place of an earlier one.
    pub(super) async fn ends(self: &Arc<Self>, end: End) -> Result<(), Error> {
        let mut kept = self.kept.clone().lock_owned().await;
        (kept.end, kept.is_end_there) = (Some((end, now_ms())), false);
        if kept.is_there { self.write(kept).await } else { Ok(()) }
    }

    /// Records that a client stopped the statement, unless its end is recorded. Another end that follows replaces it.
    pub(super) async fn stopped(self: &Arc<Self>) -> Result<(), Error> {
        let mut kept = self.kept.clone().lock_owned().await;
        if kept.end.is_none() {
            kept.end = Some((End::Cancelled, now_ms()));
        }
        if kept.is_there && !kept.is_end_there { self.write(kept).await } else { Ok(()) }
    }

    /// Removes the record and the chunks.
    pub(super) fn unkeep(self: &Arc<Self>) {
        let entry = self.clone();
        tokio::spawn(async move {
            let Some(journal) = &entry.journal else { return };
            let mut kept = entry.kept.lock().await;
            if kept.is_there {
                entry.handle.remove_chunks().await;
            }
            kept.is_there = false;
            if std::mem::take(&mut kept.may_be_there)
                && let Err(e) = journal.remove(entry.id()).await
            {
                tracing::warn!(id = entry.id(), error = %e, "the record of a statement could not be removed");
            }
        });
    }

    pub(super) fn record(&self, kept: &Kept) -> Record {
        let mut record =
            Record::new(self.id(), &self.sql, self.accepted_ms, self.handle.entry().recipe());
        record.session = self.session.clone();
        record.request_id = self.request.as_ref().map(|(id, _)| id.clone());
        record.starts = self.starts;
        record.end = kept.end.clone();
        record
    }

    /// True if its answers are computed again after a restart.
    pub(in crate::routes) fn is_known_to_finish(&self) -> bool {
        self.finished
    }

    /// True if it was submitted in this session with this id of the client.
    pub(super) fn is_of(&self, session: Option<&str>, request_id: &str) -> bool {
        self.session.as_deref() == session
            && self.request.as_ref().is_some_and(|(id, _)| id == request_id)
    }

    pub(in crate::routes) fn id(&self) -> &str {
        self.handle.id()
    }

    /// The outcome; `None` while it waits or runs.
    pub(in crate::routes) fn outcome(&self) -> Option<Arc<Outcome>> {
        self.touch();
        self.outcome.borrow().clone()
    }

    /// Like [`Entry::outcome`], without keeping the statement from being forgotten.
    pub(in crate::routes) fn peek(&self) -> Option<Arc<Outcome>> {
        self.outcome.borrow().clone()
    }

    /// Its state. It ends only once its outcome is available.
    pub(in crate::routes) fn state(&self) -> StatementState {
        match &*self.outcome.borrow() {
            None if self.finished => StatementState::Finished,
            None => match self.handle.state() {
                s if s.is_over() => StatementState::Running,
                s => s,
            },
            Some(o) => match &**o {
                Outcome::Finished(_) | Outcome::Gone => StatementState::Finished,
                Outcome::Failed(e) => StatementState::of_error(e),
            },
        }
    }

    /// True if it has ended. A statement that finished before the server started has, even while its answers are
    /// computed again.
    pub(in crate::routes) fn is_over(&self) -> bool {
        self.finished || self.outcome.borrow().is_some()
    }

    /// Waits at most `time` for the outcome; true if it is available.
    pub(in crate::routes) async fn wait(&self, time: Duration) -> bool {
        let mut outcome = self.outcome.subscribe();
        let over = tokio::time::timeout(time, outcome.wait_for(Option::is_some)).await;
        self.touch();
        matches!(over, Ok(Ok(_)))
    }

    /// Marks the outcome as reported.
    pub(in crate::routes) fn tell(&self) {
        self.told.store(true, Relaxed);
    }

    pub(super) fn touch(&self) {
        *lock(&self.touched) = Instant::now();
    }

    pub(super) fn idle(&self) -> Duration {
        lock(&self.touched).elapsed()
    }

    pub(super) fn bytes(&self) -> (u64, u64) {
        match self.outcome.borrow().as_deref() {
            Some(Outcome::Finished(replies)) => stream::bytes(replies),
            _ => (0, 0),
        }
    }
}
