//! Recovery: a starting server handles the statements that the one before it accepted.
//!
//! ```text
//!   record ─▶ expired          it is removed
//!          ─▶ over             its end is reported; answers are computed again when a client requests them
//!          ─▶ begun too often  FAILED (`poison`), permanently
//!          ─▶ not over         it runs again
//! ```

use super::entry::{Entry, EntryKeeper, Kept, Outcome};
use super::{Statements, Turn};
use crate::client::Failure;
use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;
use tessera_engine::error::{Class, Error};
use tessera_engine::journal::{End, Journal, Record, now_ms};
use tessera_engine::session::{Host, Pin};
use tessera_engine::{Engine, Handle};
use tessera_storage::lock;
use tessera_storage::sink::Version;
use tokio::sync::{Mutex, watch};

/// Servers that began a statement and were killed before its end: after this many the statement is taken for the cause.
const STARTS_MAX: u32 = 4;

/// The next step for a recovered statement.
enum Fate {
    Runs,
    /// Its answers may be requested.
    Sleeps,
    /// Only its outcome is reported.
    Over(Outcome),
    /// Too many servers were killed while they ran it.
    Poison,
}

impl Fate {
    fn of(record: &Record) -> Fate {
        match record.end.as_ref().map(|(end, _)| end) {
            None if record.starts >= STARTS_MAX => Fate::Poison,
            None => Fate::Runs,
            Some(End::Finished) => Fate::Sleeps,
            Some(End::Gone) => Fate::Over(Outcome::Gone),
            Some(End::Cancelled) => Fate::Over(Outcome::Failed(Error::Cancelled)),
            Some(End::Failed(told)) => Fate::Over(Outcome::Failed(Error::stage(Failure::of(told)))),
        }
    }
}

impl Statements {
    /// Recovers the statements of the journal, in the order in which they were accepted; known statements stay as they
    /// are. Each statement gets a session of its own from `session`, with its recorded settings and temp tensors.
    ///
    /// # Errors
    /// Errors of the warehouse: then this may be called again.
    pub(in crate::routes) async fn restore(
        self: &Arc<Self>,
        session: &(dyn Fn() -> Arc<dyn Engine> + Send + Sync),
    ) -> Result<(), Error> {
        let (Some(journal), Some(host)) = (&self.journal, &self.host) else { return Ok(()) };
        let (mut again, mut over, mut expired) = (0, 0, Vec::new());
        let records = journal.load().await?;
        // Pinned until it is known which cells have no name any more.
        let read: Vec<Pin> = records
            .iter()
            .flat_map(|(record, _)| record.recipe.data())
            .map(|data| host.pin(data))
            .collect();
        let mut requests = BTreeSet::new();
        let mut taken = Vec::new();
        // Of two statements of one request the older was never acknowledged: a killed server had sent its record, which
        // arrived after the next server had accepted the request again.
        for (record, version) in records.into_iter().rev() {
            let request = record.request_id.clone().map(|id| (record.session.clone(), id));
            let is_last = request.is_none_or(|request| requests.insert(request));
            if lock(&self.known).contains_key(&record.id) {
                continue;
            }
            match is_last && !self.is_expired(&record) {
                true => taken.push((record, version)),
                false => expired.push(record.id),
            }
        }
        for (record, version) in taken.into_iter().rev() {
            match self.take_up(journal, host, record, version, session).await? {
                true => again += 1,
                false => over += 1,
            }
        }
        host.readers_are_known().await?;
        // Removes the cells that none of the statements that may run reads.
        drop::<Vec<Pin>>(read);
        for id in expired {
            if let Err(e) = host.durable().remove(&id).await {
                tracing::warn!(id, error = %e, "chunks of a statement could not be removed");
            }
            journal.remove(&id).await?;
        }
        if again + over > 0 {
            tracing::info!(again, over, "took up the statements that were accepted before");
        }
        self.is_restored.send_replace(true);
        Ok(())
    }

    fn is_expired(&self, record: &Record) -> bool {
        let age = record.end.as_ref().map(|(_, at)| now_ms().saturating_sub(*at));
        age.is_some_and(|ms| Duration::from_millis(ms) >= self.ttl)
    }

    /// Enters a statement; true if it runs again.
    async fn take_up(
        self: &Arc<Self>,
        journal: &Journal,
        host: &Host,
        record: Record,
        version: Version,
        session: &(dyn Fn() -> Arc<dyn Engine> + Send + Sync),
    ) -> Result<bool, Error> {
        let fate = Fate::of(&record);
        let (runs, is_news) =
            (matches!(fate, Fate::Runs), matches!(fate, Fate::Runs | Fate::Poison));
        let request = record.request_id.clone().map(|id| (id, record.sql.clone()));
        let data: Vec<String> = record.recipe.data().map(String::from).collect();
        let handle = Handle::again(record.id, &self.stop, record.recipe);
        if matches!(fate, Fate::Runs | Fate::Sleeps) {
            data.iter().for_each(|data| handle.entry().pin(host.pin(data)));
        }
        let mut entry = self.entry(handle, record.sql, record.session, request, record.accepted_ms);
        entry.starts = record.starts + u32::from(runs);
        entry.finished = matches!(fate, Fate::Sleeps);
        entry.asleep = AtomicBool::new(entry.finished);
        let mut kept = Kept {
            is_there: true,
            may_be_there: true,
            version: Some(version),
            is_end_there: record.end.is_some(),
            end: record.end,
        };
        let outcome = match fate {
            Fate::Runs | Fate::Sleeps => None,
            Fate::Over(outcome) => Some(outcome),
            Fate::Poison => {
                let error = Error::Poison { starts: record.starts };
                kept.end = Some((End::Failed(error.to_json(None)), now_ms()));
                Some(Outcome::Failed(error))
            }
        };
        if is_news {
            // In a bucket this write fences requests of the earlier server that are still in flight. If the record
            // changed since it was read, this write is refused, and all records are read again.
            match journal.write(&entry.record(&kept), kept.version.clone()).await {
                Ok(version) => {
                    (kept.version, kept.is_end_there) = (Some(version), kept.end.is_some());
                }
                // A bucket that does not respond is retried; a full disk must not prevent reading results.
                Err(e) if e.class() == Class::Retry => return Err(e),
                Err(e) => {
                    tracing::warn!(id = entry.id(), error = %e, "that a statement was taken up could not be written down");
                }
            }
        }
        entry.outcome = watch::Sender::new(outcome.map(Arc::new));
        entry.kept = Arc::new(Mutex::new(kept));
        let entry: Arc<Entry> = Arc::new(entry);
        entry.handle.entry().kept_by(Arc::new(EntryKeeper(Arc::downgrade(&entry))));
        lock(&self.known).insert(entry.id().to_string(), entry.clone());
        match runs {
            true => {
                self.live.fetch_add(1, Relaxed);
                self.start(&entry, session(), Turn::Queue);
            }
            // The server may have been killed before it removed them.
            false => entry.handle.remove_chunks().await,
        }
        Ok(runs)
    }
}
